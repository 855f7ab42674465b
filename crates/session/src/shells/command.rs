//! What callers ask of a shell's task.

use super::Execution;
use crate::live::Reply;
use protocol::{Actor, Budget, Checkpoint, Code, ExecResult, Fault, RestoredCheckpoint};
use std::time::Duration;

/// A command, checked.
#[derive(Debug)]
pub(crate) struct Order {
    pub(super) actor: Actor,
    pub(super) text: bytes::Bytes,
    pub(super) stdin: occupant::shell::Stdin,
    /// None is the session's own.
    pub(super) budget: Option<(occupant::text::Plan, Budget)>,
    pub(super) timeout: Duration,
    pub(super) yields: Option<Duration>,
}

pub(crate) enum ShellCommand {
    Exec {
        order: Box<Order>,
        reply: Reply<Execution>,
    },
    Cancel {
        command: u64,
        reply: Reply<bool>,
    },
    Write {
        command: u64,
        bytes: bytes::Bytes,
        eof: bool,
        reply: Reply<u64>,
    },
    Poll {
        command: u64,
        wait: Duration,
        plan: Option<Box<occupant::text::Plan>>,
        reply: Reply<ExecResult>,
    },
    Signal {
        command: u64,
        signal: i32,
        reply: Reply<bool>,
    },
    /// Answered when all texts so far are kept, or are not.
    Kept {
        reply: Reply<()>,
    },
    Look {
        reply: Reply<Glimpse>,
    },
    Checkpoint {
        label: Option<String>,
        reply: Reply<Checkpoint>,
    },
    Checkpoints {
        reply: Reply<Vec<Checkpoint>>,
    },
    Restore {
        checkpoint: Option<String>,
        reply: Reply<RestoredCheckpoint>,
    },
    /// Something to be written down about a shell that its task has let go.
    Remark {
        text: String,
        reply: Reply<()>,
    },
}

/// What a shell is about right now.
#[derive(Debug, Clone)]
pub(crate) struct Glimpse {
    pub(super) cwd: String,
    pub(super) running: Option<u64>,
    pub(super) idle: Duration,
    /// What this shell cannot promise.
    pub(super) lesser: Vec<String>,
}

impl ShellCommand {
    pub(crate) fn refuse(self, fault: &Fault) {
        let fault = fault.clone();
        // A caller that went away wanted no answer.
        match self {
            Self::Exec { reply, .. } => drop(reply.send(Err(fault))),
            Self::Cancel { reply, .. } | Self::Signal { reply, .. } => drop(reply.send(Err(fault))),
            Self::Write { reply, .. } => drop(reply.send(Err(fault))),
            Self::Poll { reply, .. } => drop(reply.send(Err(fault))),
            Self::Kept { reply } => drop(reply.send(Err(fault))),
            Self::Look { reply } => drop(reply.send(Err(fault))),
            Self::Checkpoint { reply, .. } => drop(reply.send(Err(fault))),
            Self::Checkpoints { reply } => drop(reply.send(Err(fault))),
            Self::Restore { reply, .. } => drop(reply.send(Err(fault))),
            Self::Remark { reply, .. } => drop(reply.send(Err(fault))),
        }
    }
}

/// The session is an agent's.
pub(crate) fn no_shell() -> Fault {
    Fault::new(
        Code::WrongStatus,
        "The session is an agent's and runs no commands; open one with session_create",
    )
}

/// The session is a shell's.
pub(super) fn no_agent() -> Fault {
    Fault::new(Code::WrongStatus, "The session is a shell and takes commands, not messages; use session_exec")
}
