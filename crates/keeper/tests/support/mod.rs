//! A keeper of its own for each test, and a plain client that speaks to it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is a test's own code")]

use keeper::{
    codec::Blob,
    config::{CONFIG_VERSION, Config, Limits, SOCKET, Sandbox, Started, TOKEN},
    wire::{self, Channel, Exit, Flow, Notice, Part, Request, Spawn},
};
use std::{
    collections::VecDeque,
    io::{Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{OpenOptionsExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

pub const TOKEN_BYTES: wire::Token = [7; 32];
/// Nothing here takes as long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
pub const STDOUT: u32 = 1;
pub const STDERR: u32 = 2;

/// A running keeper. Dropping it ends it.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub pid: u32,
    pub name: String,
}

pub fn config(folder: &Path) -> Config {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Config {
        version: CONFIG_VERSION,
        folder: Blob(folder.as_os_str().as_bytes().to_vec()),
        name: format!("test-{}-{number}", std::process::id()),
        orphan_seconds: 120,
        limits: Limits::default(),
        sandbox: None,
    }
}

/// A folder as a server prepares it.
pub fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(dir.path().join(TOKEN)).unwrap();
    file.write_all(&TOKEN_BYTES).unwrap();
    dir
}

pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_outlast-keeper"))
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
pub fn run(config: &Config) -> Started {
    start_with(Command::new(binary()), config)
}

pub fn start_with(mut command: Command, config: &Config) -> Started {
    let mut bytes = Vec::new();
    wire::frame(config, &mut bytes).unwrap();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let mut answer = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut answer).unwrap();
    child.wait().unwrap();
    let (body, _) = wire::split(&answer, wire::FRAME_BYTES).unwrap().expect("an answer");
    wire::read(body).unwrap()
}

/// A keeper that another command starts.
pub fn fixture(command: Command, dir: tempfile::TempDir, config: Config) -> Fixture {
    match start_with(command, &config) {
        Started::Ready { pid } => Fixture { dir, pid, name: config.name },
        Started::Failed { what, fix } => panic!("{what}; {fix}"),
    }
}

/// The keeper as an ordinary user, which the tests are not when they run as root.
#[expect(clippy::disallowed_methods, reason = "a test starts the program under test as somebody else")]
pub fn as_ordinary(id: u32, dir: &Path) -> Command {
    let program = dir.join("program");
    std::fs::copy(binary(), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    for path in [dir, &program, &dir.join("token")] {
        std::os::unix::fs::chown(path, Some(id), Some(id)).unwrap();
    }
    let mut command = Command::new("setpriv");
    let id = id.to_string();
    command.args([
        "--reuid",
        &id,
        "--regid",
        &id,
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]);
    command.arg(program).env("KEEPER_SECRET", "outside");
    command
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = folder();
        let mut config = config(dir.path());
        change(&mut config);
        match run(&config) {
            Started::Ready { pid } => Self { dir, pid, name: config.name },
            Started::Failed { what, fix } => panic!("{what}; {fix}"),
        }
    }

    pub fn sandboxed(sandbox: Sandbox) -> Self {
        Self::with(|config| config.sandbox = Some(sandbox))
    }

    pub fn socket(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join(SOCKET)).unwrap()
    }

    pub fn client(&self) -> Client {
        Client::new(self.socket(), TOKEN_BYTES).expect("a welcome")
    }

    pub fn alive(&self) -> bool {
        alive(self.pid)
    }

    /// Waits until the keeper's process is gone.
    pub fn wait_gone(&self) {
        wait_gone(self.pid);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if self.alive() {
            let pid = rustix::process::Pid::from_raw(self.pid.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            self.wait_gone();
        }
    }
}

pub fn alive(pid: u32) -> bool {
    // A zombie is not alive: nobody may be left to reap it in this test.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

/// Waits on the process itself, and not on the clock.
pub fn wait_gone(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    let Ok(fd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
    let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut polled, Some(&patience)).unwrap();
    assert_eq!(ready, 1, "process {pid:?} is still there");
}

/// A server's side of the socket.
pub struct Client {
    pub stream: UnixStream,
    input: Vec<u8>,
    /// Told while something else was waited for.
    pub aside: VecDeque<Notice>,
    pub welcome: Notice,
    tag: u32,
}

impl Client {
    pub fn new(stream: UnixStream, token: wire::Token) -> Option<Self> {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let welcome = Notice::Replaced {};
        let mut client = Self { stream, input: Vec::new(), aside: VecDeque::new(), welcome, tag: 0 };
        client.send(&Request::Hello { version: wire::VERSION, token });
        client.welcome = client.read()?;
        Some(client)
    }

    pub fn send(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        wire::frame(request, &mut bytes).unwrap();
        // A keeper that has let go is found out by reading.
        let _ = self.stream.write_all(&bytes);
    }

    /// The next notice, or `None` at the end of the connection.
    pub fn read(&mut self) -> Option<Notice> {
        loop {
            if let Some((body, length)) = wire::split(&self.input, wire::FRAME_BYTES).unwrap() {
                let notice = wire::read(body).unwrap();
                self.input.drain(..length);
                return Some(notice);
            }
            let mut buffer = vec![0; 256 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.input.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the keeper says nothing: {error}"),
            }
        }
    }

    /// The next notice that `wanted` takes; others wait aside.
    pub fn wait<T>(&mut self, mut wanted: impl FnMut(&Notice) -> Option<T>) -> T {
        for at in 0..self.aside.len() {
            if let Some(found) = wanted(&self.aside[at]) {
                self.aside.remove(at);
                return found;
            }
        }
        loop {
            let notice = self.read().expect("the connection ended");
            match wanted(&notice) {
                Some(found) => return found,
                None => self.aside.push_back(notice),
            }
        }
    }

    pub fn tag(&mut self) -> u32 {
        self.tag += 1;
        self.tag
    }

    /// Sends what `make` makes of a new tag and returns the answer.
    pub fn ask(&mut self, make: impl FnOnce(u32) -> Request) -> Notice {
        let tag = self.tag();
        let request = make(tag);
        self.send(&request);
        self.wait(|notice| match notice {
            Notice::Done { tag: of }
            | Notice::Refused { tag: of, .. }
            | Notice::Spawned { tag: of, .. }
            | Notice::SpawnFailed { tag: of, .. }
            | Notice::Processes { tag: of, .. }
                if *of == tag =>
            {
                Some(notice.clone())
            }
            _ => None,
        })
    }

    pub fn done(&mut self, make: impl FnOnce(u32) -> Request) {
        match self.ask(make) {
            Notice::Done { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// Starts a shell script as process `id` and follows its output; its pid.
    pub fn sh(&mut self, id: u64, script: &str) -> u32 {
        let pid = match self.ask(|tag| Request::Spawn { tag, spawn: sh(id, script) }) {
            Notice::Spawned { pid, .. } => pid,
            other => panic!("{other:?}"),
        };
        self.follow(id, STDOUT, 0);
        self.follow(id, STDERR, 0);
        pid
    }

    pub fn follow(&mut self, process: u64, fd: u32, from: u64) {
        self.done(|tag| Request::Subscribe { tag, process, fd, from, upto: u64::MAX });
    }

    pub fn input(&mut self, process: u64, number: u64, bytes: &[u8]) -> Notice {
        self.send(&Request::Input { process, fd: 0, number, part: Part::Last, bytes: Blob(bytes.to_vec()) });
        self.wait(|notice| match notice {
            Notice::InputTaken { number: of, .. } | Notice::InputRefused { number: of, .. }
                if *of == number =>
            {
                Some(notice.clone())
            }
            _ => None,
        })
    }

    pub fn close(&mut self, process: u64) {
        self.send(&Request::CloseInput { process, fd: 0 });
    }

    /// Everything a stream says until its end.
    pub fn all(&mut self, process: u64, fd: u32) -> String {
        let (mut bytes, mut next) = (Vec::new(), 0);
        loop {
            let more = self.wait(|notice| match notice {
                Notice::Output { process: of, fd: stream, offset, bytes }
                    if (*of, *stream) == (process, fd) =>
                {
                    assert_eq!(*offset, next, "no gap, no double");
                    Some(Some(bytes.0.clone()))
                }
                Notice::End { process: of, fd: stream, offset } if (*of, *stream) == (process, fd) => {
                    assert_eq!(*offset, next);
                    Some(None)
                }
                _ => None,
            });
            let Some(more) = more else { break };
            next += more.len() as u64;
            bytes.extend(more);
            self.send(&Request::Ack { process, fd, upto: next });
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Reads a stream until it has said a whole line.
    pub fn line(&mut self, process: u64) -> String {
        let mut text = String::new();
        while !text.ends_with('\n') {
            text.push_str(&self.wait(|notice| match notice {
                Notice::Output { process: of, fd: STDOUT, bytes, .. } if *of == process => {
                    Some(String::from_utf8(bytes.0.clone()).unwrap())
                }
                _ => None,
            }));
        }
        text.trim().to_owned()
    }

    pub fn exit(&mut self, process: u64) -> Exit {
        self.wait(|notice| match notice {
            Notice::Exited { process: of, exit } if *of == process => Some(exit.clone()),
            _ => None,
        })
    }

    pub fn states(&mut self) -> Vec<wire::ProcessState> {
        match self.ask(|tag| Request::List { tag }) {
            Notice::Processes { processes, .. } => processes,
            other => panic!("{other:?}"),
        }
    }
}

pub fn sh(id: u64, script: &str) -> Spawn {
    let text = |text: &str| Blob(text.as_bytes().to_vec());
    Spawn {
        process: id,
        argv: vec![text("sh"), text("-c"), text(script)],
        env: vec![text("PATH=/usr/local/bin:/usr/bin:/bin"), text("HOME=/home/user")],
        cwd: text("/"),
        channels: vec![
            Channel { fd: 0, flow: Flow::In },
            Channel { fd: STDOUT, flow: Flow::Out },
            Channel { fd: STDERR, flow: Flow::Out },
        ],
        open_files: None,
    }
}

pub const fn exited(code: i32) -> Exit {
    Exit { code: Some(code), signal: None }
}

pub const fn killed(signal: i32) -> Exit {
    Exit { code: None, signal: Some(signal) }
}
