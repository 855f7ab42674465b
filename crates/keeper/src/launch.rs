//! Starting one process: everything that can be prepared is prepared in the keeper, then a child enters its cgroup
//! and sandbox, arranges its descriptors and becomes the program.
//!
//! The child reports on a pipe that exec closes: nothing but the end means that the program runs. A process in a
//! sandbox is born by a middleman, because only children enter a pid namespace; the middleman makes it the
//! keeper's own child, reports its number and ends.

use crate::{
    cgroup::Entry,
    sandbox::{Sandbox, confine},
    sys::{self, Descriptors, Side, Strings},
    wire::{Channel, Flow, Spawn, SpawnFailure},
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{Access, AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, Shutdown, SocketFlags, SocketType},
    pipe::PipeFlags,
    process::{Pid, Resource, Rlimit, Signal},
};
use std::ffi::{CString, c_int};

/// Descriptors are first moved out of the way of the numbers that they will get.
const ASIDE: c_int = 64;
/// A report: the middleman's with a pid, or a failure with its errno.
const REPORT_BYTES: usize = 6;
const BORN: u8 = 1;
const FAILED: u8 = 2;

const _: () = assert!(crate::wire::CHANNELS < ASIDE as usize);

/// A process on its way.
#[derive(Debug)]
pub(crate) struct Launched {
    /// The process, or in a sandbox the middleman.
    pub(crate) pid: Pid,
    pub(crate) status: OwnedFd,
    /// The keeper's ends of the channels.
    pub(crate) ends: Vec<(u32, Flow, OwnedFd)>,
}

impl Launched {
    /// The keeper's end of the process's line, if it has one.
    pub(crate) fn take_line(&mut self) -> Option<OwnedFd> {
        let at = self.ends.iter().position(|(_, flow, _)| *flow == Flow::Line)?;
        Some(self.ends.swap_remove(at).2)
    }
}

/// What the status pipe said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Born(Pid),
    Failed(SpawnFailure, i32),
}

struct Plan<'a> {
    argv: Strings,
    env: Strings,
    candidates: Vec<CString>,
    cwd: CString,
    ends: Vec<(c_int, OwnedFd)>,
    open_files: Option<u64>,
    processes: Option<u64>,
    entry: Entry<'a>,
    sandbox: Option<&'a Sandbox>,
    keeper: Pid,
}

/// Why a process cannot even be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    BadRequest(&'static str),
    System(Errno),
}

impl From<Errno> for Unfit {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

/// Bounds that a process gets when it does not bring its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) open_files: Option<u64>,
    /// By rlimit, where no cgroup bounds them.
    pub(crate) processes: Option<u64>,
}

pub(crate) fn launch(
    spawn: Spawn,
    bounds: Bounds,
    entry: Entry<'_>,
    sandbox: Option<&Sandbox>,
) -> Result<Launched, Unfit> {
    let argv = texts(spawn.argv.into_iter().map(|arg| arg.0))?;
    let env = texts(spawn.env.into_iter().map(|entry| entry.0))?;
    let program = argv.first().ok_or(Unfit::BadRequest("no program is named"))?;
    let candidates = candidates(program, &env);
    let cwd = CString::new(spawn.cwd.0).map_err(|_| Unfit::BadRequest("the folder's name holds a NUL"))?;
    let (ours, theirs) = channels(&spawn.channels)?;
    let (status, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&status, true)?;
    let plan = Plan {
        argv: Strings::new(argv),
        env: Strings::new(env),
        candidates,
        cwd,
        ends: theirs,
        open_files: spawn.open_files.or(bounds.open_files),
        processes: bounds.processes,
        entry,
        sandbox,
        keeper: rustix::process::getpid(),
    };
    match sys::clone(0, plan.entry.v2)? {
        Side::Parent(pid) => Ok(Launched { pid, status, ends: ours }),
        Side::Child => {
            let (failure, error) = plan.run(report.as_fd());
            tell(report.as_fd(), FAILED, code(failure), error.raw_os_error());
            sys::exit_now(127)
        }
    }
}

/// What has come on the status pipe so far: the reports, and whether its end.
pub(crate) fn reports(status: BorrowedFd<'_>, got: &mut Vec<u8>) -> (Vec<Report>, bool) {
    let mut buffer = [0; 64];
    let ended = loop {
        match rustix::io::read(status, &mut buffer) {
            Ok(0) => break true,
            Ok(length) => got.extend_from_slice(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break false,
            Err(_) => break true,
        }
    };
    let mut reports = Vec::new();
    while let Some((report, rest)) = got.split_first_chunk::<REPORT_BYTES>() {
        let [kind, failure, number @ ..] = *report;
        let number = i32::from_le_bytes(number);
        match (kind, Pid::from_raw(number)) {
            (BORN, Some(pid)) => reports.push(Report::Born(pid)),
            _ => reports.push(Report::Failed(failure_of(failure), number)),
        }
        *got = rest.to_vec();
    }
    (reports, ended)
}

fn tell(report: BorrowedFd<'_>, kind: u8, failure: u8, number: i32) {
    let mut bytes = [kind, failure, 0, 0, 0, 0];
    bytes[2..].copy_from_slice(&number.to_le_bytes());
    // Nobody is left to tell of a failure to tell.
    let _ = rustix::io::write(report, &bytes);
}

fn code(failure: SpawnFailure) -> u8 {
    SpawnFailure::ALL
        .iter()
        .position(|each| *each == failure)
        .and_then(|at| u8::try_from(at).ok())
        .unwrap_or(0)
}

fn failure_of(code: u8) -> SpawnFailure {
    SpawnFailure::ALL.get(usize::from(code)).copied().unwrap_or(SpawnFailure::Setup)
}

fn texts(all: impl Iterator<Item = Vec<u8>>) -> Result<Vec<CString>, Unfit> {
    all.map(|text| CString::new(text).map_err(|_| Unfit::BadRequest("an argument or variable holds a NUL")))
        .collect()
}

/// The files that may be meant by the program's name, in order. Relative ones are meant from the cwd.
fn candidates(program: &CString, env: &[CString]) -> Vec<CString> {
    let name = program.as_bytes();
    if name.contains(&b'/') {
        return vec![program.clone()];
    }
    let path = env.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="));
    path.unwrap_or_default()
        .split(|byte| *byte == b':')
        .filter(|folder| !folder.is_empty() && !name.is_empty())
        .filter_map(|folder| CString::new([folder, b"/", name].concat()).ok())
        .collect()
}

type Ends = (Vec<(u32, Flow, OwnedFd)>, Vec<(c_int, OwnedFd)>);

/// Our ends, which never block, and the process's.
fn channels(wanted: &[Channel]) -> Result<Ends, Unfit> {
    let (mut ours, mut theirs): Ends = Default::default();
    let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    if wanted.len() > crate::wire::CHANNELS {
        return Err(Unfit::BadRequest("too many channels"));
    }
    for channel in wanted {
        let number = c_int::try_from(channel.fd).unwrap_or(c_int::MAX);
        if number >= ASIDE || theirs.iter().any(|(other, _)| *other == number) {
            return Err(Unfit::BadRequest("a channel's number is too high or named twice"));
        }
        match channel.flow {
            Flow::Null => theirs.push((number, null()?)),
            Flow::In | Flow::Out => {
                let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                let (our, their) = if channel.flow == Flow::In { (write, read) } else { (read, write) };
                rustix::io::ioctl_fionbio(&our, true)?;
                ours.push((channel.fd, channel.flow, our));
                theirs.push((number, their));
            }
            Flow::Line => {
                let (our, their) = rustix::net::socketpair(
                    AddressFamily::UNIX,
                    SocketType::STREAM,
                    SocketFlags::CLOEXEC,
                    None,
                )?;
                rustix::io::ioctl_fionbio(&our, true)?;
                // Nothing comes back by it.
                rustix::net::shutdown(&our, Shutdown::Read)?;
                ours.push((channel.fd, channel.flow, our));
                theirs.push((number, their));
            }
        }
    }
    for number in 0..3 {
        if !theirs.iter().any(|(other, _)| *other == number) {
            theirs.push((number, null()?));
        }
    }
    Ok((ours, theirs))
}

impl Plan<'_> {
    /// In the child. Returns only when it failed.
    fn run(&self, report: BorrowedFd<'_>) -> (SpawnFailure, Errno) {
        let setup = |error| (SpawnFailure::Setup, error);
        if let Err(error) = self.entry.enter() {
            return setup(error);
        }
        if let Some(sandbox) = self.sandbox {
            if let Err(error) = sandbox.enter() {
                return setup(error);
            }
            match sys::clone(sys::SIBLING, None) {
                Err(error) => return setup(error),
                Ok(Side::Parent(pid)) => {
                    tell(report, BORN, 0, pid.as_raw_nonzero().get());
                    sys::exit_now(0);
                }
                Ok(Side::Child) => {}
            }
        }
        if let Err(error) = self.arrange() {
            return setup(error);
        }
        if let Err(error) = rustix::process::chdir(&self.cwd) {
            return (SpawnFailure::BadCwd, error);
        }
        if let Some(sandbox) = self.sandbox
            && let Err(error) = confine::seal(sandbox.filter())
        {
            return setup(error);
        }
        self.exec()
    }

    fn arrange(&self) -> Result<(), Errno> {
        rustix::process::setsid()?;
        if let Some(sandbox) = self.sandbox {
            let (uid, gid) = sandbox.user();
            confine::become_user(uid, gid)?;
        } else {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The keeper may have died before the line above, and then nothing would ever kill this child.
            if rustix::process::getppid() != Some(self.keeper) {
                return Err(Errno::SRCH);
            }
        }
        sys::default_signals();
        sys::descriptors_from(3, Descriptors::ClosedByExec)?;
        let mut moved = Vec::new();
        for (number, end) in &self.ends {
            moved.push((*number, rustix::io::fcntl_dupfd_cloexec(end, ASIDE)?));
        }
        for (number, end) in &moved {
            sys::place_descriptor(end.as_fd(), *number)?;
        }
        // A hard limit below the wish is the wish's end.
        bound(Resource::Nofile, self.open_files)?;
        bound(Resource::Nproc, self.processes)?;
        bound(Resource::Core, self.sandbox.map(|_| 0))
    }

    fn exec(&self) -> (SpawnFailure, Errno) {
        let mut refused = None;
        for path in &self.candidates {
            let regular = rustix::fs::statat(CWD, path, AtFlags::empty())
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
            if !regular {
                continue;
            }
            if let Err(error) = rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::empty()) {
                refused.get_or_insert(error);
                continue;
            }
            return match sys::exec(path, &self.argv, &self.env) {
                Errno::TOOBIG => (SpawnFailure::TooLarge, Errno::TOOBIG),
                error => (SpawnFailure::Exec, error),
            };
        }
        match refused {
            Some(error) => (SpawnFailure::NotExecutable, error),
            None => (SpawnFailure::NotFound, Errno::NOENT),
        }
    }
}

fn bound(resource: Resource, limit: Option<u64>) -> Result<(), Errno> {
    let Some(limit) = limit else { return Ok(()) };
    let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limit = Some(limit.min(hard));
    rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_where_the_environment_says() {
        let text = |text: &str| CString::new(text).unwrap();
        let env = [text("A=PATH=/no"), text("PATH=/a::b:/c"), text("PATH=/late")];
        assert_eq!(candidates(&text("sh"), &env), [text("/a/sh"), text("b/sh"), text("/c/sh")]);
        assert_eq!(candidates(&text("./sh"), &env), [text("./sh")]);
        assert!(candidates(&text("sh"), &[]).is_empty());
        assert!(candidates(&text(""), &env).is_empty());
    }

    #[test]
    fn failures_cross_the_pipe_unharmed() {
        for failure in SpawnFailure::ALL {
            assert_eq!(failure_of(code(*failure)), *failure);
        }
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        let mut got = Vec::new();
        assert_eq!(reports(read.as_fd(), &mut got), (vec![], false));
        tell(write.as_fd(), BORN, 0, 77);
        rustix::io::write(&write, &[FAILED, code(SpawnFailure::NotFound)]).unwrap();
        let born = Report::Born(Pid::from_raw(77).unwrap());
        assert_eq!(reports(read.as_fd(), &mut got), (vec![born], false));
        rustix::io::write(&write, &2_i32.to_le_bytes()).unwrap();
        drop(write);
        assert_eq!(reports(read.as_fd(), &mut got), (vec![Report::Failed(SpawnFailure::NotFound, 2)], true));
    }
}
