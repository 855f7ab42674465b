//! What the program is, by how it is called: a keeper, or one of the small parts that a server needs around keepers on
//! other machines.
//!
//! A relay joins its standard streams to a keeper's socket, so that whatever carries a program's streams carries the
//! keeper. A lodging is a keeper that is started by the same call that relays to it. The two others answer the SSH
//! client of the server's own machine: which host key is the right one, and what the password is. No secret is ever
//! an argument.

use crate::{
    config::{CONFIG_BYTES, CONFIG_VERSION, Lodging, SITE, SOCKET, Started, TOKEN, is_site},
    start::{self, Failure},
    sys::{self, Side},
    wire,
};
use rustix::{
    event::{PollFd, PollFlags},
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    fs::{Mode, OFlags},
    io::Errno,
    net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType},
    pipe::PipeFlags,
};
use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Write},
    os::unix::{ffi::OsStrExt, fs::MetadataExt, net::UnixStream},
    path::Path,
    time::Duration,
};

/// Starts a keeper in a folder of its own, and then is a relay to it.
pub const LODGE: &str = "lodge";
/// `relay FOLDER`: to the keeper that lives there. It says first whether that is so.
pub const RELAY: &str = "relay";
/// `check BYTES`: whether the program arrived whole and runs here.
pub const CHECK: &str = "check";
/// `known FINGERPRINT OFFERED TYPE KEY HOST`: the line of a known host, if the key offered is the one that is meant.
pub const KNOWN: &str = "known";
/// Names the socket by which a password is asked for; then the only argument is what the SSH client asks.
pub const ASK: &str = "OUTLAST_ASK";
/// What a good [`CHECK`] says.
pub const FIT: &str = "outlast keeper fit";
/// The longest question and the longest password.
pub const ASK_BYTES: usize = 4096;

const LOG: &str = "log";
/// Copied at once.
const COPY_BYTES: usize = 64 * 1024;
/// How long the one who knows the password has to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The whole life of the program. Returns its exit code.
pub fn main() -> i32 {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
    match words.as_slice() {
        [] => start::main(),
        [word] if *word == LODGE.as_bytes() => lodge(),
        [word, folder] if *word == RELAY.as_bytes() => go_between(folder),
        [word, bytes] if *word == CHECK.as_bytes() => check(bytes),
        [word, pin, offered, kind, key, host] if *word == KNOWN.as_bytes() => {
            known(pin, offered, [host, kind, key])
        }
        [question] => ask(question),
        _ => complain("keepers are started by the Outlast server; there is nothing to run by hand"),
    }
}

fn complain(text: &str) -> i32 {
    // Nobody may be there to read it, and then the exit code says enough.
    let _ = writeln!(std::io::stderr(), "{text}");
    1
}

/// Whether this is a whole program that may fork here.
fn check(bytes: &[u8]) -> i32 {
    let wanted = std::str::from_utf8(bytes).ok().and_then(|digits| digits.parse::<u64>().ok());
    let there = File::open("/proc/self/exe").and_then(|file| file.metadata()).map(|meta| meta.size());
    match there {
        Ok(size) if Some(size) == wanted => {}
        Ok(size) => return complain(&format!("the program has {size} bytes; it did not arrive whole")),
        Err(error) => return complain(&format!("/proc cannot be read: {error}")),
    }
    match sys::clone(0, None) {
        Ok(Side::Child) => sys::exit_now(0),
        Ok(Side::Parent(pid)) => {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
        Err(error) => return complain(&format!("cannot fork: {error}")),
    }
    i32::from(writeln!(std::io::stdout(), "{FIT}").is_err())
}

/// Says nothing about any other key, and then the SSH client does not know the host.
fn known(pin: &[u8], offered: &[u8], line: [&[u8]; 3]) -> i32 {
    if pin != offered {
        return 0;
    }
    i32::from(std::io::stdout().write_all(&[&line.join(&b' '), b"\n".as_slice()].concat()).is_err())
}

/// Asks the server, which is the one who knows, and knows whom it may tell.
fn ask(question: &[u8]) -> i32 {
    let Some(socket) = std::env::var_os(ASK) else {
        return complain("keepers are started by the Outlast server; there is nothing to run by hand");
    };
    let answer = UnixStream::connect(socket).and_then(|mut server| {
        server.set_read_timeout(Some(ANSWER))?;
        server.write_all(&question[..question.len().min(ASK_BYTES)])?;
        server.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        server.take(ASK_BYTES as u64).read_to_end(&mut answer)?;
        Ok(answer)
    });
    match answer {
        Ok(answer) if !answer.is_empty() => {
            let line = [answer.as_slice(), b"\n"].concat();
            i32::from(std::io::stdout().write_all(&line).is_err())
        }
        Ok(_) | Err(_) => 1,
    }
}

/// By way of the open folder, because a socket's path holds 107 bytes and a folder's may be longer.
fn connect(folder: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Says whether the keeper is there, and relays if it is.
fn go_between(folder: &[u8]) -> i32 {
    match connect(folder) {
        Ok(socket) => match start::report(std::io::stdout().lock(), Ok(())) {
            0 => relay(socket.as_fd()),
            code => code,
        },
        Err(error) => {
            // Nobody listens: the machine was restarted, or something killed it. What it left is nobody's.
            if error == Errno::CONNREFUSED {
                remove(folder);
            }
            let failure = Failure::new(format!("the keeper is gone: {error}"), "start another");
            start::report(std::io::stdout().lock(), Err(&failure))
        }
    }
}

/// Copies both ways until the keeper hangs up. The end of our input is passed on, and the keeper hangs up on it.
fn relay(socket: BorrowedFd<'_>) -> i32 {
    let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    let mut buffer = vec![0; COPY_BYTES];
    let mut open = true;
    loop {
        let mut both = vec![PollFd::new(&socket, PollFlags::IN)];
        if open {
            both.push(PollFd::new(&input, PollFlags::IN));
        }
        match rustix::event::poll(&mut both, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return 1,
        }
        let ready = |at: usize| both.get(at).is_some_and(|each| !each.revents().is_empty());
        let (from_keeper, from_server) = (ready(0), ready(1));
        if from_keeper {
            match copy(socket, output, &mut buffer) {
                Ok(true) => {}
                Ok(false) => return 0,
                Err(_) => return 1,
            }
        }
        if from_server && !copy(input, socket, &mut buffer).unwrap_or(false) {
            open = false;
            let _ = rustix::net::shutdown(socket, Shutdown::Write);
        }
    }
}

/// One piece. False at the end.
fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<bool, Errno> {
    let length = match rustix::io::read(from, &mut *buffer) {
        Ok(length) => length,
        Err(Errno::INTR | Errno::AGAIN) => return Ok(true),
        Err(error) => return Err(error),
    };
    let mut rest = &buffer[..length];
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut room = [PollFd::new(&to, PollFlags::OUT)];
                let _ = rustix::event::poll(&mut room, None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(length > 0)
}

/// Starts a keeper, says how that went, and goes on as a relay to it.
fn lodge() -> i32 {
    let started = read_lodging().and_then(|lodging| {
        let folder = lodging.config.folder.0.clone();
        make(&lodging)?;
        let started = launch(lodging, &folder);
        if started.is_err() {
            remove(&folder);
        }
        started.map(|answer| (folder, answer))
    });
    let (folder, answer) = match started {
        Ok(started) => started,
        Err(failure) => return start::report(std::io::stdout().lock(), Err(&failure)),
    };
    let mut output = std::io::stdout().lock();
    if output.write_all(&answer).and_then(|()| output.flush()).is_err() {
        return 1;
    }
    drop(output);
    let body = wire::split(&answer, CONFIG_BYTES).ok().flatten().map(|(body, _)| wire::read(body));
    match body {
        Some(Ok(Started::Ready { .. })) => match connect(&folder) {
            Ok(socket) => relay(socket.as_fd()),
            Err(_) => 1,
        },
        Some(Ok(Started::Failed { .. }) | Err(_)) | None => {
            remove(&folder);
            1
        }
    }
}

/// Reads the one frame and nothing behind it, which is for the keeper.
fn read_lodging() -> Result<Lodging, Failure> {
    let bad = || Failure::new("the start of a keeper arrived damaged", "connect again");
    let mut input = File::from(
        rustix::io::dup(rustix::stdio::stdin())
            .map_err(|error| Failure::system("cannot read standard input", error))?,
    );
    let mut head = [0; 4];
    input.read_exact(&mut head).map_err(|_| bad())?;
    let length = u32::from_le_bytes(head) as usize;
    if length > CONFIG_BYTES {
        return Err(bad());
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).map_err(|_| bad())?;
    let lodging: Lodging = wire::read(&body).map_err(|_| bad())?;
    if lodging.config.version != CONFIG_VERSION {
        return Err(Failure::new(
            format!("this keeper reads start version {CONFIG_VERSION}, not {}", lodging.config.version),
            "use the keeper that came with the server",
        ));
    }
    Ok(lodging)
}

/// Makes the folder and puts the token into it.
fn make(lodging: &Lodging) -> Result<(), Failure> {
    let folder = lodging.config.folder.0.as_slice();
    let failed = |error: Errno| {
        let path = String::from_utf8_lossy(folder);
        let fix = "there must be room on the disk, and the folder above must be yours";
        Failure::new(format!("cannot make the keeper's folder {path}: {error}"), fix)
    };
    rustix::fs::mkdir(folder, Mode::RWXU).map_err(failed)?;
    let written = file(folder, TOKEN, OFlags::EXCL).and_then(|token| {
        let written = rustix::io::write(&token, &lodging.token)?;
        if written == lodging.token.len() { Ok(()) } else { Err(Errno::NOSPC) }
    });
    written.map_err(|error| {
        remove(folder);
        failed(error)
    })
}

fn file(folder: &[u8], name: &str, more: OFlags) -> Result<OwnedFd, Errno> {
    let path = [folder, b"/", name.as_bytes()].concat();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags | more, Mode::RUSR | Mode::WUSR)
}

/// Forks the keeper off, with nothing of the caller's left in its hands. Its answer, framed.
fn launch(lodging: Lodging, folder: &[u8]) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::system("cannot fork", error);
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    match sys::clone(0, None).map_err(failed)? {
        Side::Child => {
            drop(read);
            let code = keep(lodging, folder, write);
            sys::exit_now(code)
        }
        Side::Parent(_) => {
            drop(write);
            let mut answer = Vec::new();
            let read = File::from(read).take(CONFIG_BYTES as u64).read_to_end(&mut answer);
            match read {
                Ok(length) if length > 0 => Ok(answer),
                Ok(_) | Err(_) => Err(Failure::new(
                    "the keeper ended without saying why",
                    "look at what ends processes there: memory, limits, a policy",
                )),
            }
        }
    }
}

fn keep(lodging: Lodging, folder: &[u8], write: OwnedFd) -> i32 {
    let mut answer = File::from(write);
    let quiet = file(folder, LOG, OFlags::empty())
        .and_then(|log| sys::replace_error(log.as_fd()))
        .and_then(|()| start::quiet());
    let prepared = match quiet {
        Ok(()) => start::prepare(lodging.config),
        Err(error) => Err(Failure::system("cannot let go of the caller", error)),
    };
    match prepared {
        Err(failure) => start::report(&mut answer, Err(&failure)),
        Ok(keeper) => {
            let code = start::report(&mut answer, Ok(()));
            drop(answer);
            if code == 0 {
                keeper.for_one().run();
            }
            // Nobody else knows that it ended.
            remove(folder);
            code
        }
    }
}

/// Removes a folder and what a keeper has in it; one that was killed left its shells' folders too. Follows no link.
fn remove(folder: &[u8]) {
    let folder = Path::new(std::ffi::OsStr::from_bytes(folder));
    if let Ok(site) = std::fs::read_link(folder.join(SITE))
        && is_site(&site)
    {
        let _ = std::fs::remove_dir_all(site);
    }
    let _ = std::fs::remove_dir_all(folder);
}
