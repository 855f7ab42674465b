//! One process of the keeper, from the spawn until it is forgotten.

use crate::{
    cgroup::Group,
    channel::{Input, OUTPUT_BYTES, Output},
    keeper::Owed,
    launch::Launched,
    shell::Shell,
    tree::{self, Of},
    wire::{Exit, Flow, Life, ProcessState, Reach},
};
use rustix::{
    fd::OwnedFd,
    process::{Pid, Signal, WaitStatus},
};
use std::time::{Duration, Instant};

/// How long the end of a process is held back for the end of its streams, which a daemon may keep open for ever.
pub(crate) const DRAIN: Duration = Duration::from_millis(250);
/// A command that ends within this is told of once, when it has ended. Every word before costs its shell and its server
/// a turn on the processor.
pub(crate) const QUIET: Duration = Duration::from_millis(5);
/// How long a freeze may take before it is refused and taken back.
pub(crate) const FREEZE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) slot: u32,
    pub(crate) pid: Pid,
    pub(crate) stage: Stage,
    pub(crate) group: Group,
    pub(crate) frost: Frost,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) shell: Option<Box<Shell>>,
    /// Streams of commands that have ended, which others still write to.
    pub(crate) late: Vec<Late>,
    /// Signals that have yet to arrive.
    pub(crate) owed: Vec<Owed>,
    /// The tags by which the shell's state was asked for, and until when it is waited for.
    pub(crate) asked: Vec<(u32, Instant)>,
}

/// What comes by it is read, so that nobody is held up or killed by a full pipe, and dropped.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) number: u32,
    pub(crate) pipe: OwnedFd,
    /// Not read before then: a flood that nobody wants may not keep a processor busy.
    pub(crate) rest: Option<Instant>,
}

/// ```text
/// Starting ─► Running ─► Draining ─► Ended
///     └─► (gone: the spawn failed)
/// ```
#[derive(Debug)]
pub(crate) enum Stage {
    /// `born` once the number in `pid` is the process's and not the middleman's.
    Starting {
        tag: u32,
        status: OwnedFd,
        got: Vec<u8>,
        born: bool,
        exit: Option<Exit>,
    },
    Running,
    /// Ended, and its streams may still hold something.
    Draining {
        exit: Exit,
        until: Instant,
    },
    Ended {
        exit: Exit,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frost {
    Thawed,
    Freezing,
    Frozen,
}

impl Process {
    pub(crate) fn new(id: u64, slot: u32, tag: u32, group: Group, launched: Launched, born: bool) -> Self {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (fd, flow, end) in launched.ends {
            match flow {
                Flow::In => inputs.push(Input::new(fd, end)),
                Flow::Out => outputs.push(Output::new(fd, end, OUTPUT_BYTES)),
                // A shell's line is the shell's.
                Flow::Null | Flow::Line => {}
            }
        }
        let stage = Stage::Starting { tag, status: launched.status, got: Vec::new(), born, exit: None };
        Self {
            id,
            slot,
            pid: launched.pid,
            stage,
            group,
            frost: Frost::Thawed,
            inputs,
            outputs,
            shell: None,
            late: Vec::new(),
            owed: Vec::new(),
            asked: Vec::new(),
        }
    }

    pub(crate) fn state(&self) -> ProcessState {
        let life = match &self.stage {
            Stage::Starting { .. } => Life::Starting {},
            Stage::Running | Stage::Draining { .. } => Life::Running {},
            Stage::Ended { exit } => Life::Exited { exit: exit.clone() },
        };
        ProcessState {
            process: self.id,
            pid: self.pid.as_raw_nonzero().get().cast_unsigned(),
            life,
            frozen: self.frost != Frost::Thawed,
            inputs: self.inputs.iter().map(Input::state).collect(),
            outputs: self.outputs.iter().map(Output::state).collect(),
        }
    }

    pub(crate) fn output(&mut self, fd: u32) -> Option<&mut Output> {
        self.outputs.iter_mut().find(|output| output.fd == fd)
    }

    pub(crate) fn input(&mut self, fd: u32) -> Option<&mut Input> {
        self.inputs.iter_mut().find(|input| input.fd == fd)
    }

    /// Whether `pid` is this process, alive or not reaped yet.
    pub(crate) fn is(&self, pid: Pid) -> bool {
        match self.stage {
            Stage::Starting { born, exit: None, .. } => born && self.pid == pid,
            Stage::Running => self.pid == pid,
            Stage::Starting { .. } | Stage::Draining { .. } | Stage::Ended { .. } => false,
        }
    }

    /// Whether the number still is the process's own.
    fn reaped(&self) -> bool {
        match self.stage {
            Stage::Starting { ref exit, .. } => exit.is_some(),
            Stage::Running => false,
            Stage::Draining { .. } | Stage::Ended { .. } => true,
        }
    }

    pub(crate) fn exited(&mut self, exit: Exit, now: Instant) {
        match &mut self.stage {
            Stage::Starting { exit: ended, .. } => *ended = Some(exit),
            Stage::Running => self.stage = Stage::Draining { exit, until: now + DRAIN },
            Stage::Draining { .. } | Stage::Ended { .. } => {}
        }
    }

    /// The exit, once it may be told.
    pub(crate) fn drained(&mut self, now: Instant) -> Option<Exit> {
        let Stage::Draining { exit, until } = &self.stage else { return None };
        // A shell's streams end with its commands.
        if self.shell.is_none() && now < *until && !self.outputs.iter().all(Output::ended) {
            return None;
        }
        let exit = exit.clone();
        self.stage = Stage::Ended { exit: exit.clone() };
        Some(exit)
    }

    pub(crate) fn signal(&self, signal: Signal, reach: Reach) -> rustix::io::Result<()> {
        let gone = Err(rustix::io::Errno::SRCH);
        match reach {
            Reach::Process if self.reaped() => gone,
            Reach::Process => rustix::process::kill_process(self.pid, signal),
            // The group's number may be another's once the process was reaped and the group is empty.
            Reach::Group if self.reaped() => gone,
            Reach::Group => rustix::process::kill_process_group(self.pid, signal),
            Reach::Tree if signal == Signal::KILL => {
                self.kill();
                Ok(())
            }
            Reach::Tree => {
                let members = match &self.group {
                    Group::None => tree::members(Of::Root(self.pid)),
                    group => group.members(),
                };
                let sent = members.iter().filter(|pid| rustix::process::kill_process(**pid, signal).is_ok());
                if sent.count() > 0 { Ok(()) } else { gone }
            }
        }
    }

    /// Kills the tree.
    pub(crate) fn kill(&self) {
        if !self.group.kill() {
            tree::kill(Of::Root(self.pid));
        }
    }
}

pub(crate) fn exit_of(status: WaitStatus) -> Exit {
    Exit { code: status.exit_status(), signal: status.terminating_signal() }
}
