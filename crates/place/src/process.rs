//! A running process: numbered output, bounded input, signals to its group, and its end.
//!
//! An idle process holds no buffer: output is read into a thread's scratch space once there is some.

use crate::{StdinError, spawner::Spawner};
use bytes::{Buf, Bytes};
use protocol::Seq;
use rustix::process::{Pid, WaitId, WaitIdOptions};
use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::unix::pipe,
    sync::Notify,
    task::JoinHandle,
};

/// The most that one [`Chunk`] holds: what a pipe holds.
pub const READ_BYTES: usize = 64 * 1024;
/// Input that may wait for a process that is not reading: a whole line and the next one's beginning.
pub const STDIN_BYTES: usize = protocol::limits::LINE_BYTES + 1024 * 1024;

const _: () = assert!(STDIN_BYTES >= protocol::limits::LINE_BYTES);

/// A process and its three streams.
#[derive(Debug)]
pub struct Process {
    pub stdin: Stdin,
    pub stdout: Output,
    pub stderr: Output,
    pub handle: Handle,
}

/// Output in order; `offset` counts the stream's bytes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub offset: u64,
    pub bytes: Bytes,
}

/// One stream of a process's output.
#[derive(Debug)]
pub struct Output {
    pipe: Option<pipe::Receiver>,
    offset: u64,
}

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

impl Output {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { pipe: Some(pipe::Receiver::from_owned_fd(fd)?), offset: 0 })
    }

    /// The next output; waits for it, `None` at the end. Cancel-safe: what was not returned was not read.
    pub async fn next(&mut self) -> Option<Chunk> {
        loop {
            let pipe = self.pipe.as_ref()?;
            let read = match pipe.readable().await {
                Ok(()) => SCRATCH.with_borrow_mut(|scratch| {
                    pipe.try_read(scratch).map(|length| Bytes::copy_from_slice(&scratch[..length]))
                }),
                Err(error) => Err(error),
            };
            match read {
                Ok(bytes) if bytes.is_empty() => self.pipe = None,
                Ok(bytes) => {
                    let offset = self.offset;
                    self.offset += bytes.len() as u64;
                    return Some(Chunk { offset, bytes });
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => {
                    tracing::warn!(%error, "a process's output cannot be read; taken as its end");
                    self.pipe = None;
                }
            }
        }
    }

    /// Everything below `upto` is recorded, and the place may forget it. The host forgets as it goes.
    pub fn ack(&self, upto: u64) {
        debug_assert!(upto <= self.offset, "acknowledged what was never read");
    }
}

/// A process's input.
#[derive(Debug)]
pub struct Stdin {
    shared: Arc<Shared>,
    writer: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Debug)]
struct Queue {
    /// Gone once the process closed its end, or everything before [`Stdin::close`] was written.
    pipe: Option<Arc<pipe::Sender>>,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    closing: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic while it was held leaves a queue that is still a queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Writes until the pipe is full or nothing waits.
    fn write(&mut self) {
        while let (Some(pipe), Some(front)) = (&self.pipe, self.waiting.front_mut()) {
            match pipe.try_write(front) {
                Ok(written) => {
                    front.advance(written);
                    self.bytes -= written;
                    if front.is_empty() {
                        self.waiting.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.shut(),
            }
        }
        if self.closing {
            self.shut();
        }
    }

    fn shut(&mut self) {
        self.pipe = None;
        self.waiting = VecDeque::new();
        self.bytes = 0;
    }
}

impl Stdin {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let pipe = Some(Arc::new(pipe::Sender::from_owned_fd(fd)?));
        let queue = Queue { pipe, waiting: VecDeque::new(), bytes: 0, closing: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), more: Notify::new() });
        let writer = tokio::spawn(write_rest(Arc::clone(&shared)));
        Ok(Self { shared, writer })
    }

    /// Takes `bytes` whole or not at all, and never waits. `number` is the journal seq that they belong to and
    /// never goes back; a keeper will know by it what it has taken already.
    pub fn send(&self, number: Seq, bytes: Bytes) -> Result<(), StdinError> {
        let mut queue = self.shared.queue();
        if queue.pipe.is_none() || queue.closing {
            return Err(StdinError::Closed);
        }
        if queue.bytes + bytes.len() > STDIN_BYTES {
            tracing::debug!(number, waiting = queue.bytes, "input refused: the process is not reading");
            return Err(StdinError::Full);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        queue.bytes += bytes.len();
        queue.waiting.push_back(bytes);
        // An empty pipe takes it here and now, without a task switch.
        if queue.waiting.len() == 1 {
            queue.write();
        }
        let rest = !queue.waiting.is_empty();
        drop(queue);
        if rest {
            self.shared.more.notify_one();
        }
        Ok(())
    }

    /// Ends the input once everything taken is written.
    pub fn close(&self) {
        let mut queue = self.shared.queue();
        queue.closing = true;
        queue.write();
        drop(queue);
        self.shared.more.notify_one();
    }
}

impl Drop for Stdin {
    /// Ends the input now; what waits is lost.
    fn drop(&mut self) {
        self.shared.queue().shut();
        self.writer.abort();
    }
}

/// The writer task: ends with the pipe, or is aborted with its [`Stdin`].
async fn write_rest(shared: Arc<Shared>) {
    loop {
        let pipe = {
            let queue = shared.queue();
            match &queue.pipe {
                None => return,
                Some(pipe) if !queue.waiting.is_empty() => Some(Arc::clone(pipe)),
                Some(_) => None,
            }
        };
        match pipe {
            None => shared.more.notified().await,
            Some(pipe) => {
                if pipe.writable().await.is_err() {
                    shared.queue().shut();
                    return;
                }
                shared.queue().write();
            }
        }
    }
}

/// What can be sent to a process and everything it started in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
    Kill,
    Stop,
    Continue,
}

impl Signal {
    const fn number(self) -> rustix::process::Signal {
        match self {
            Self::Interrupt => rustix::process::Signal::INT,
            Self::Terminate => rustix::process::Signal::TERM,
            Self::Kill => rustix::process::Signal::KILL,
            Self::Stop => rustix::process::Signal::STOP,
            Self::Continue => rustix::process::Signal::CONT,
        }
    }
}

/// How a process ended: by itself with a code, or by a signal. Neither when the system would not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

/// A process and its group. Dropping it kills both.
#[derive(Debug)]
pub struct Handle {
    pid: Pid,
    /// Taken only by drop.
    pidfd: Option<AsyncFd<OwnedFd>>,
    exit: Option<Exit>,
    spawner: Spawner,
}

impl Handle {
    #[expect(unsafe_code, reason = "tokio asks for a promise that the type keeps")]
    pub(crate) fn new(pid: Pid, pidfd: OwnedFd, spawner: Spawner) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` returns the same open descriptor for as long as it lives, and the `AsyncFd`
        // owns it until it is deregistered.
        let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
        match registered {
            Ok(pidfd) => Ok(Self { pid, pidfd: Some(pidfd), exit: None, spawner }),
            Err(error) => {
                let (pidfd, error) = error.into_parts();
                let _ = rustix::process::kill_process_group(pid, Signal::Kill.number());
                spawner.reap(pidfd);
                Err(error)
            }
        }
    }

    /// The process's number, which is also its group's. Its own until the handle is dropped.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Signals the whole group, also what is left of it after the process has ended.
    pub fn signal(&self, signal: Signal) {
        // The process is not reaped before drop, so that the group's number cannot be another's. The only
        // error left is a group of which nobody may be signalled any more.
        let _ = rustix::process::kill_process_group(self.pid, signal.number());
    }

    pub fn kill(&self) {
        self.signal(Signal::Kill);
    }

    /// Waits for the process's end, whoever else still holds its pipes. Cancel-safe; the same answer each time.
    pub async fn wait(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        let exit = match &self.pidfd {
            Some(pidfd) => ended(pidfd).await,
            None => Exit { code: None, signal: None },
        };
        *self.exit.insert(exit)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.kill();
        if let Some(pidfd) = self.pidfd.take() {
            self.spawner.reap(pidfd.into_inner());
        }
    }
}

async fn ended(pidfd: &AsyncFd<OwnedFd>) -> Exit {
    loop {
        let Ok(mut ready) = pidfd.readable().await else {
            return Exit { code: None, signal: None };
        };
        // NOWAIT: looked at, not reaped.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::PidFd(pidfd.get_ref().as_fd()), options) {
            Ok(Some(status)) => {
                return Exit { code: status.exit_status(), signal: status.terminating_signal() };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => ready.clear_ready(),
            // Reaped by somebody else: a server started with SIGCHLD ignored.
            Err(_) => return Exit { code: None, signal: None },
        }
    }
}
