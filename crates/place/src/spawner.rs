//! The one thread that is every process's parent.
//!
//! A process asks the kernel to be killed when its parent *thread* ends, so that a killed server leaves no
//! agent behind. Threads of a pool come and go; this one lives as long as anybody holds a [`Spawner`]. It also
//! reaps the processes whose handles were dropped. The `unsafe` of the whole program is in [`prepare`].

use rustix::process::{Pid, WaitId, WaitIdOptions};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};
use tokio::sync::oneshot;

/// How often a killed process that has not ended yet is looked at again.
const REAP_EVERY: Duration = Duration::from_millis(20);

/// A handle to the thread. The thread ends, and every process with it, when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    orders: Sender<Order>,
}

pub(crate) struct Spawned {
    pub(crate) child: Child,
    pub(crate) pidfd: OwnedFd,
}

enum Order {
    Spawn(Box<Command>, oneshot::Sender<io::Result<Spawned>>),
    Reap(OwnedFd),
}

impl Spawner {
    pub(crate) fn start() -> io::Result<Self> {
        let (orders, inbox) = channel();
        std::thread::Builder::new()
            .name("place-spawner".to_owned())
            // Forking and waiting need little stack.
            .stack_size(256 * 1024)
            .spawn(move || work(&inbox))?;
        Ok(Self { orders })
    }

    pub(crate) async fn spawn(&self, mut command: Command) -> io::Result<Spawned> {
        prepare(&mut command);
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Spawn(Box::new(command), reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Takes a process that was killed and whose handle is gone.
    pub(crate) fn reap(&self, pidfd: OwnedFd) {
        // A thread that is gone has taken its children along.
        let _ = self.orders.send(Order::Reap(pidfd));
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts processes has ended")
}

fn work(inbox: &Receiver<Order>) {
    let mut ending: Vec<OwnedFd> = Vec::new();
    loop {
        let order = if ending.is_empty() {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(REAP_EVERY)
        };
        match order {
            Ok(Order::Spawn(mut command, reply)) => {
                if let Err(Ok(unwanted)) = reply.send(spawn(&mut command)) {
                    // Whoever asked has gone; nobody else knows of the process.
                    kill(&unwanted.child);
                    ending.push(unwanted.pidfd);
                }
            }
            Ok(Order::Reap(pidfd)) => ending.push(pidfd),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        ending.retain(|pidfd| {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            matches!(rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options), Ok(None))
        });
    }
}

fn spawn(command: &mut Command) -> io::Result<Spawned> {
    let child = command.spawn()?;
    // The child has not been waited for, so its number is still its own.
    let pidfd = Pid::from_raw(child.id().cast_signed())
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()));
    match pidfd {
        Ok(pidfd) => Ok(Spawned { child, pidfd }),
        Err(error) => {
            let mut child = child;
            kill(&child);
            let _ = child.wait();
            Err(error.into())
        }
    }
}

fn kill(child: &Child) {
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// What the child does between fork and exec.
#[expect(unsafe_code, reason = "the one place where a child is prepared between fork and exec")]
fn prepare(command: &mut Command) {
    let server = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: the closure runs in the child of a threaded process, where only async-signal-safe calls are
    // sound. It makes system calls only (prctl, getppid, close_range) and calls sigaction, sigemptyset and
    // sigprocmask, which POSIX lists as async-signal-safe. It captures one integer, allocates nothing, takes
    // no lock and cannot panic. An error is built from a number, without allocation.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The server may have died before the line above; then nothing would ever kill this child.
            if rustix::process::getppid() != Some(server) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            default_signals();
            close_on_exec_from(3)
        });
    }
}

/// Ignored signals and the mask outlive exec, and few programs reset them.
#[expect(unsafe_code, reason = "part of what the child does between fork and exec")]
fn default_signals() {
    // SAFETY: `action` and `mask` are plain data for which all zeroes is a valid value (no handler flags, no
    // pointer is read with SIG_DFL), and both live across the calls that read them. Numbers that cannot be
    // set (SIGKILL, SIGSTOP, libc's own) fail with EINVAL and change nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        for number in 1..=64 {
            libc::sigaction(number, &raw const action, std::ptr::null_mut());
        }
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
    }
}

/// Rust opens everything with CLOEXEC, a C library linked in may not: nothing but 0, 1, 2 crosses.
#[expect(unsafe_code, reason = "part of what the child does between fork and exec")]
fn close_on_exec_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: close_range takes three integers and touches no memory; with CLOEXEC it closes nothing now, so
    // the pipe on which the standard library reports a failed exec stays open until exec.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        // Before Linux 5.11 there is no such call; CLOEXEC of each opener is then what there is.
        Some(libc::ENOSYS | libc::EINVAL | libc::EPERM) => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EIO))),
    }
}
