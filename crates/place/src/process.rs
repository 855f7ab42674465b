//! A running process: numbered output, bounded input, signals to its tree, and its end.
//!
//! Each is held by a keeper, which outlives the server: dropping any of these ends nothing.

use crate::{
    StdinError,
    keeper::{KeptHandle, KeptInput, KeptOutput},
};
use bytes::Bytes;
use protocol::Seq;

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
pub struct Output(pub(crate) KeptOutput);

impl Output {
    /// The next output; waits for it, `None` at the end. Cancel-safe: what was not returned was not read.
    pub async fn next(&mut self) -> Option<Chunk> {
        self.0.next().await
    }

    /// Everything below `upto` is recorded, and the keeper may forget it.
    pub fn ack(&self, upto: u64) {
        self.0.ack(upto);
    }
}

/// A process's input.
#[derive(Debug)]
pub struct Stdin(pub(crate) KeptInput);

impl Stdin {
    /// Takes `bytes` whole or not at all, and never waits. Each `number` is larger than the last: the keeper knows by
    /// it what it has taken already, from this server or the one before.
    pub fn send(&self, number: Seq, bytes: Bytes) -> Result<(), StdinError> {
        self.0.send(number, bytes)
    }

    /// The last number that the keeper has, as far as it is known here; zero before the first.
    pub fn taken(&self) -> Seq {
        self.0.taken()
    }

    /// Ends the input once everything taken is written.
    pub fn close(&self) {
        self.0.close();
    }
}

/// What can be sent to a process and everything it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
    Kill,
    Stop,
    Continue,
}

impl Signal {
    pub(crate) const fn number(self) -> rustix::process::Signal {
        match self {
            Self::Interrupt => rustix::process::Signal::INT,
            Self::Terminate => rustix::process::Signal::TERM,
            Self::Kill => rustix::process::Signal::KILL,
            Self::Stop => rustix::process::Signal::STOP,
            Self::Continue => rustix::process::Signal::CONT,
        }
    }
}

/// How a process ended: by itself with a code, or by a signal. Neither when its keeper was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

/// A process and what it started.
#[derive(Debug)]
pub struct Handle(pub(crate) KeptHandle);

impl Handle {
    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    pub fn kill(&self) {
        self.signal(Signal::Kill);
    }

    /// Waits for the process's end, whoever else still holds its pipes. Cancel-safe; the same answer each time.
    pub async fn wait(&mut self) -> Exit {
        self.0.wait().await
    }
}
