//! What a server asks for, one function for each kind of request.

use super::{Freeze, Keeper};
use crate::{
    cgroup::Group,
    channel::Taking,
    launch::{self, Bounds, Launched, Unfit},
    poller::{NOTHING, READ, Token},
    process::{FREEZE, Frost, Process},
    wire::{Flow, InputRefusal, Notice, PROCESSES, Part, Reach, Refusal, Request, Spawn, SpawnFailure},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    process::Signal,
};
use std::time::{Duration, Instant};

pub(super) type Answer = Result<(), (Refusal, String)>;

pub(super) fn refuse<T>(reason: Refusal, text: impl Into<String>) -> Result<T, (Refusal, String)> {
    Err((reason, text.into()))
}

impl Keeper {
    pub(super) fn request(&mut self, request: Request) {
        let (tag, answer) = match request {
            Request::Hello { .. } => return,
            Request::Spawn { tag, spawn } => return self.spawn(tag, spawn),
            Request::Input { process, fd, number, part, bytes } => {
                return self.take_input(process, fd, number, part, &bytes.0);
            }
            Request::CloseInput { process, fd } => return self.close_input(process, fd),
            Request::Want { process, fd, upto } => {
                if let Some(output) = self.known(process).ok().and_then(|process| process.output(fd)) {
                    output.want(upto);
                }
                return;
            }
            Request::Ack { process, fd, upto } => {
                if let Some(output) = self.known(process).ok().and_then(|process| process.output(fd)) {
                    output.spool.forget(upto);
                }
                return;
            }
            Request::Signal { tag, process, signal, reach } => (tag, self.signal(process, signal, reach)),
            Request::Subscribe { tag, process, fd, from, upto } => {
                match self.subscribe(process, fd, from, upto) {
                    // By this tag nobody asks.
                    Ok(()) if tag == 0 => return self.tell_lazily(tag),
                    answer => (tag, answer),
                }
            }
            Request::Freeze { tag, process } => match self.freeze(tag, process) {
                // Answered once everything stands still.
                Ok(()) => return,
                refused => (tag, refused),
            },
            Request::Thaw { tag, process } => (tag, self.thaw(process)),
            Request::Kill { tag, process } => (tag, self.known(process).map(|process| process.kill())),
            Request::List { tag } => {
                let processes = self.states();
                return self.tell(&Notice::Processes { tag, processes });
            }
            Request::StartShell { tag, spawn } => return self.start_shell(tag, spawn),
            Request::RunCommand { tag, process, command, stdin, part, text } => {
                match self.run_command(process, command, stdin, part, &text.0) {
                    // Answered with the last part.
                    Ok(()) if part == Part::More => return,
                    Ok(()) => return self.tell_lazily(tag),
                    refused => (tag, refused),
                }
            }
            Request::SignalCommand { tag, process, signal, whom } => {
                (tag, self.signal_command(process, signal, whom))
            }
            Request::ShellState { tag, process } => match self.shell_state(process) {
                Ok(shell) => return self.tell(&Notice::ShellIs { tag, process, shell }),
                Err(refused) => (tag, Err(refused)),
            },
            Request::SavedState { tag, process } => match self.saved_state(tag, process) {
                // Answered once the shell has said it.
                Ok(()) => return,
                refused => (tag, refused),
            },
            Request::Remember { tag, process, manner, state } => {
                (tag, self.remember(process, manner, state.0))
            }
            Request::Forget { tag, process } => (tag, self.forget(process)),
            Request::Shutdown { tag } => {
                self.ending = true;
                (tag, Ok(()))
            }
            Request::SetOrphanTimeout { tag, seconds } => {
                self.orphan = Duration::from_secs(seconds.into());
                (tag, Ok(()))
            }
        };
        self.tell(&match answer {
            Ok(()) => Notice::Done { tag },
            Err((reason, text)) => Notice::Refused { tag, reason, text },
        });
    }

    pub(super) fn known(&mut self, id: u64) -> Result<&mut Process, (Refusal, String)> {
        match self.processes.iter_mut().find(|process| process.id == id) {
            Some(process) => Ok(process),
            None => refuse(Refusal::NoProcess, format!("there is no process {id}")),
        }
    }

    fn spawn(&mut self, tag: u32, spawn: Spawn) {
        let id = spawn.process;
        let started = if spawn.channels.iter().any(|channel| channel.flow == Flow::Line) {
            Err(Fault::Refused(Refusal::BadRequest, "only the keeper has lines to processes".to_owned()))
        } else {
            self.start_process(tag, spawn).map(drop)
        };
        self.tell_start(tag, id, started);
    }

    /// Says why a process was not even tried. How a try went, the status pipe will say.
    pub(super) fn tell_start(&mut self, tag: u32, process: u64, started: Result<(), Fault>) {
        match started {
            Ok(()) => {}
            Err(Fault::Refused(reason, text)) => self.tell(&Notice::Refused { tag, reason, text }),
            Err(Fault::Failed(errno)) => {
                self.tell(&Notice::SpawnFailed { tag, process, failure: SpawnFailure::Setup, errno });
            }
        }
    }

    /// Starts a new process; the keeper's end of its line, if it has one.
    pub(super) fn start_process(&mut self, tag: u32, spawn: Spawn) -> Result<Option<OwnedFd>, Fault> {
        let id = spawn.process;
        if self.processes.iter().any(|process| process.id == id) {
            return Err(Fault::Refused(Refusal::Exists, format!("there is a process {id} already")));
        }
        let most = if self.parts.cgroups.is_for_one() { 1 } else { PROCESSES };
        if self.processes.len() >= most {
            let text = format!("{most} processes are kept already; forget some");
            return Err(Fault::Refused(Refusal::TooMany, text));
        }
        let slot = self.fresh_id();
        let group = self.parts.cgroups.group(&format!("p{slot}"));
        let mut launched = match self.launch_in(&group, spawn) {
            Ok(launched) => launched,
            Err(fault) => {
                self.graves.push(group);
                return Err(fault);
            }
        };
        let line = launched.take_line();
        let born = self.parts.sandbox.is_none();
        let process = Process::new(id, slot, tag, group, launched, born);
        let watched = self.watch_new(&process);
        self.processes.push(process);
        watched.map_err(|error| Fault::Failed(error.raw_os_error()))?;
        Ok(line)
    }

    pub(super) fn launch_in(&self, group: &Group, spawn: Spawn) -> Result<Launched, Fault> {
        let bounds =
            Bounds { open_files: self.parts.config.limits.open_files, processes: self.processes_by_rlimit() };
        let launched = match self.parts.cgroups.entry(group) {
            Ok(entry) => launch::launch(spawn, bounds, entry, self.parts.sandbox.as_ref()),
            Err(error) => {
                Err(Unfit::System(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)))
            }
        };
        launched.map_err(|unfit| match unfit {
            Unfit::BadRequest(text) => Fault::Refused(Refusal::BadRequest, text.to_owned()),
            Unfit::System(error) => Fault::Failed(error.raw_os_error()),
        })
    }

    pub(super) fn watch_new(&self, process: &Process) -> rustix::io::Result<()> {
        if let crate::process::Stage::Starting { status, .. } = &process.stage {
            self.poller.add(status, Token::Status(process.slot), READ)?;
        }
        for input in &process.inputs {
            if let Some(pipe) = &input.pipe {
                self.poller.add(pipe, Token::Input(process.slot, input.fd), NOTHING)?;
            }
        }
        Ok(())
    }

    fn take_input(&mut self, process: u64, fd: u32, number: u64, part: Part, bytes: &[u8]) {
        let refused = |reason| Notice::InputRefused { process, fd, number, reason };
        let folder = self.parts.folder.as_fd();
        let found = self.processes.iter_mut().find(|known| known.id == process);
        let notice = match found.map(|process| process.input(fd)) {
            None if part == Part::Last => refused(InputRefusal::NoProcess),
            Some(None) if part == Part::Last => refused(InputRefusal::NoChannel),
            None | Some(None) => return,
            Some(Some(input)) => match input.take(folder, number, part, bytes) {
                Taking::Partly => return,
                Taking::Refused(reason) => refused(reason),
                Taking::Taken => {
                    input.deliver(&mut Vec::new());
                    Notice::InputTaken { process, fd, number }
                }
            },
        };
        self.tell(&notice);
    }

    fn close_input(&mut self, process: u64, fd: u32) {
        if let Some(input) = self.known(process).ok().and_then(|process| process.input(fd)) {
            input.close();
        }
    }

    fn signal(&mut self, process: u64, signal: i32, reach: Reach) -> Answer {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return refuse(Refusal::BadRequest, format!("there is no signal {signal}"));
        };
        match self.known(process)?.signal(signal, reach) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::SRCH) => refuse(Refusal::Ended, "nobody is left to signal"),
            Err(error) => refuse(Refusal::Failed, error.to_string()),
        }
    }

    fn subscribe(&mut self, process: u64, fd: u32, from: u64, upto: u64) -> Answer {
        let Some(output) = self.known(process)?.output(fd) else {
            return refuse(Refusal::NoChannel, format!("process {process} has no output {fd}"));
        };
        let (start, end) = (output.spool.start(), output.spool.end());
        match output.subscribe(from, upto) {
            Ok(()) => Ok(()),
            Err(()) => refuse(
                Refusal::BadOffset,
                format!("the stream can be read from {start} to {end}, not from {from}"),
            ),
        }
    }

    fn freeze(&mut self, tag: u32, process: Option<u64>) -> Answer {
        if let Some(id) = process {
            self.known(id)?;
        }
        if self.processes.is_empty() {
            return refuse(Refusal::NoProcess, "there is nothing to freeze");
        }
        for known in self.processes.iter_mut().filter(|known| process.is_none_or(|id| id == known.id)) {
            if let Err(error) = known.group.freeze() {
                let text = format!("processes cannot be frozen here: {error}");
                // Whole or not at all.
                let _ = self.thaw(process);
                return refuse(Refusal::Unsupported, text);
            }
            known.frost = Frost::Freezing;
        }
        self.freezes.push(Freeze { tag, process, until: Instant::now() + FREEZE });
        Ok(())
    }

    fn thaw(&mut self, process: Option<u64>) -> Answer {
        self.freezes.retain(|freeze| process.is_some() && freeze.process != process);
        if let Some(id) = process {
            self.known(id)?;
        }
        for known in self.processes.iter_mut().filter(|known| process.is_none_or(|id| id == known.id)) {
            if known.frost == Frost::Thawed {
                continue;
            }
            if let Err(error) = known.group.thaw() {
                return refuse(Refusal::Failed, format!("process {} cannot be thawed: {error}", known.id));
            }
            known.frost = Frost::Thawed;
        }
        Ok(())
    }

    fn forget(&mut self, process: u64) -> Answer {
        self.known(process)?;
        if let Some(at) = self.processes.iter().position(|known| known.id == process) {
            let gone = self.processes.swap_remove(at);
            gone.kill();
            self.graves.push(gone.group);
        }
        Ok(())
    }
}

pub(super) enum Fault {
    Refused(Refusal, String),
    Failed(i32),
}
