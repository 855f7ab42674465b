//! From exec to the first event: read what to do, let go of the caller, set everything up, say how it went.
//!
//! The order matters. The fork comes first, so that the sandbox's first process is the final keeper's child; the
//! token is read last, so that no process of the sandbox ever held it.

use crate::{
    cgroup::Cgroups,
    config::{CONFIG_BYTES, CONFIG_VERSION, Config, SOCKET, Started, TOKEN},
    egress::Egress,
    keeper::{Keeper, Parts},
    sandbox::Sandbox,
    sys::{self, Side},
    wire,
};
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::{DumpableBehavior, Signal},
};
use std::io::{Read, Write};

/// Connections that the kernel holds for the keeper.
const BACKLOG: i32 = 8;

/// Why a keeper did not start: what happened, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub what: String,
    pub fix: String,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }

    pub(crate) fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(
            format!("{what}: {error}"),
            "look at the message; the keeper needs a working /proc and /dev",
        )
    }
}

/// The whole life of a keeper that is told on standard input what to do. Returns its exit code.
pub(crate) fn main() -> i32 {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let config = match read_config(input.lock()) {
        Ok(config) => config,
        Err(failure) => return report(output.lock(), Err(&failure)),
    };
    match sys::clone(0, None) {
        // The caller need not wait for a keeper, nor reap one.
        Ok(Side::Parent(_)) => sys::exit_now(0),
        Ok(Side::Child) => {}
        Err(error) => {
            return report(output.lock(), Err(&Failure::system("cannot fork", error)));
        }
    }
    match prepare(config) {
        Err(failure) => report(output.lock(), Err(&failure)),
        Ok(keeper) => {
            let code = report(output.lock(), Ok(()));
            if code == 0 && quiet().is_ok() {
                keeper.run();
            }
            code
        }
    }
}

fn read_config(input: impl Read) -> Result<Config, Failure> {
    let mut bytes = Vec::new();
    let limit = CONFIG_BYTES as u64 + 4;
    input
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::system("cannot read what to do from standard input", error))?;
    let by_hand = || {
        Failure::new(
            "standard input does not hold what a keeper needs to start",
            "keepers are started by the Outlast server; there is nothing to run by hand",
        )
    };
    let (body, _) = wire::split(&bytes, CONFIG_BYTES).map_err(|_| by_hand())?.ok_or_else(by_hand)?;
    let version = body.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    if version != Some(CONFIG_VERSION) {
        return Err(Failure::new(
            format!("this keeper reads start version {CONFIG_VERSION}, not {version:?}"),
            "use the keeper that came with the server",
        ));
    }
    wire::read(body).map_err(|_| by_hand())
}

pub(crate) fn report(mut output: impl Write, outcome: Result<(), &Failure>) -> i32 {
    let started = match outcome {
        Ok(()) => Started::Ready { pid: std::process::id() },
        Err(failure) => Started::Failed { what: failure.what.clone(), fix: failure.fix.clone() },
    };
    let mut bytes = Vec::new();
    let framed = wire::frame(&started, &mut bytes).is_ok();
    let told = framed && output.write_all(&bytes).and_then(|()| output.flush()).is_ok();
    i32::from(outcome.is_err() || !told)
}

pub(crate) fn prepare(config: Config) -> Result<Keeper, Failure> {
    let failed = |what| move |error: Errno| Failure::system(what, error);
    rustix::process::setsid().map_err(failed("cannot leave the session"))?;
    rustix::process::chdir("/").map_err(failed("cannot leave the folder"))?;
    // What is made in a sandbox's root is for its user to read; the caller's mask is the caller's.
    rustix::process::umask(Mode::from_raw_mode(crate::config::UMASK));
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::PIPE, Signal::TSTP] {
        sys::ignore(signal.as_raw());
    }
    let signals = sys::signal_descriptor().map_err(failed("cannot listen for signals"))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(failed("cannot adopt daemons"))?;
    let folder = open_folder(&config)?;
    let listener = listen(folder.as_fd())?;
    check_name(&config.name)?;
    let cgroups = Cgroups::make(&config.name, &config.limits);
    let sandbox = config.sandbox.as_ref().map(|wanted| Sandbox::make(wanted, &cgroups)).transpose();
    let mut sandbox = match sandbox {
        Ok(sandbox) => sandbox,
        Err(failure) => {
            cgroups.remove();
            return Err(failure);
        }
    };
    // From here on nobody of the same user can look into this process or what it forks.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(failed("cannot become undumpable"))?;
    let listeners = sandbox.as_mut().map(Sandbox::take_way_out).unwrap_or_default();
    let egress = match &config.sandbox {
        Some(wanted) => {
            Egress::new(listeners, &wanted.network).map_err(failed("cannot set up the way out"))?
        }
        None => None,
    };
    let token = read_token(folder.as_fd())?;
    let mut epoch = [0; 8];
    rustix::rand::getrandom(&mut epoch, rustix::rand::GetRandomFlags::empty())
        .map_err(failed("cannot draw a random number"))?;
    let epoch = u64::from_le_bytes(epoch);
    let parts = Parts { config, folder, listener, signals, token, epoch, cgroups, sandbox, egress };
    Keeper::new(parts).map_err(failed("cannot wait for events"))
}

/// Opens the folder and locks it for as long as this keeper lives.
fn open_folder(config: &Config) -> Result<OwnedFd, Failure> {
    let path = String::from_utf8_lossy(&config.folder.0).into_owned();
    let failed = |error: Errno| {
        Failure::new(
            format!("cannot open the keeper's folder {path}: {error}"),
            "check that it is there and yours",
        )
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let folder = rustix::fs::open(config.folder.0.as_slice(), flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&folder).map_err(failed)?;
    if stat.st_mode & 0o077 != 0 || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Failure::new(
            format!("the keeper's folder {path} is open to others"),
            format!("chmod 700 {path}, as its owner"),
        ));
    }
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(folder),
        Err(Errno::AGAIN) => Err(Failure::new(
            format!("a keeper lives in {path} already"),
            "take that one up, or shut it down first",
        )),
        Err(error) => Err(failed(error)),
    }
}

/// Binds by way of the open folder, because a socket's path holds 107 bytes and a folder's may be longer.
fn listen(folder: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    let failed = |error: Errno| Failure::system("cannot listen in the keeper's folder", error);
    match rustix::fs::unlinkat(folder, SOCKET, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(failed(error)),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    Ok(socket)
}

fn check_name(name: &str) -> Result<(), Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.is_empty() && name.len() <= 128 && name.bytes().all(plain) {
        return Ok(());
    }
    Err(Failure::new(format!("{name:?} cannot name a keeper"), "use letters, digits, \"-\" and \"_\""))
}

fn read_token(folder: BorrowedFd<'_>) -> Result<wire::Token, Failure> {
    let failed = |error: Errno| {
        Failure::new(
            format!("cannot read the keeper's token: {error}"),
            "write 32 bytes to \"token\" in its folder",
        )
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder, TOKEN, flags, Mode::empty()).map_err(failed)?;
    let mut token = wire::Token::default();
    match rustix::io::read(&file, &mut token).map_err(failed)? {
        length if length == token.len() => Ok(token),
        _ => Err(failed(Errno::INVAL)),
    }
}

/// Lets go of the caller's pipes; standard error stays, for a log that the caller may have given.
pub(crate) fn quiet() -> Result<(), Errno> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    sys::replace_standard(null.as_fd())
}
