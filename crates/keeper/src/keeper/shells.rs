//! Shells as the keeper runs them: starting one and starting it again, giving it commands, and telling how they ended.

use super::{
    Keeper,
    requests::{Answer, Fault, refuse},
};
use crate::{
    cgroup::Group,
    channel::{COMMAND_OUTPUT_BYTES, Input, Output},
    codec::Blob,
    poller::{NOTHING, READ, TAKEN, Token},
    process::{Frost, Late, Process, QUIET, Stage},
    shell::{self, Effect, Event, Order, Owner, Shell, Site, Streams},
    tree::{self, Kin, Of},
    wire::{
        COMMAND_BYTES, Channel, CommandInput, Ended, Exit, Flow, How, LEFT, Manner, Notice, Part, Refusal,
        ShellState, Spawn, Unusable, command_stream,
    },
};
use rustix::{
    fd::AsFd,
    fs::{Mode, OFlags},
    io::Errno,
    process::{Pid, Signal},
};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// Where a shell in a sandbox finds its folder.
const INSIDE: &[u8] = b"/tmp";
/// How much late output is read at once, and how long not, when there was that much.
const LATE_BYTES: usize = 64 * 1024;
const LATE_REST: Duration = Duration::from_millis(10);
/// Streams that ended commands' processes still write to; beyond it the oldest are closed.
const LATE: usize = 256;
/// Questions for one shell's state that wait for it.
const ASKED: usize = 16;
/// A shell that says its state for longer is not waited for.
const SAYING: Duration = Duration::from_secs(2);

/// How the shell was known that said a state, and the state.
pub(super) type Remembered = (Manner, Vec<u8>);

/// Requests.
impl Keeper {
    pub(super) fn start_shell(&mut self, tag: u32, mut spawn: Spawn) {
        let id = spawn.process;
        if !spawn.channels.is_empty() {
            let text = "a shell's channels are the keeper's to make".to_owned();
            return self.tell_start(tag, id, Err(Fault::Refused(Refusal::BadRequest, text)));
        }
        spawn.channels = vec![Channel { fd: 0, flow: Flow::Line }];
        let started = match self.processes.iter().position(|process| process.id == id) {
            Some(at) => self.start_again(tag, at, spawn),
            None => self.start_first(tag, spawn),
        };
        self.tell_start(tag, id, started);
    }

    fn start_first(&mut self, tag: u32, spawn: Spawn) -> Result<(), Fault> {
        let cwd = spawn.cwd.0.clone();
        let line = self.start_process(tag, spawn)?;
        if let (Some(line), Some(process)) = (line, self.processes.last_mut()) {
            let remembered = self.remembered.take().filter(|(meant, _)| *meant == process.id);
            process.shell = Some(Box::new(Shell::new(line, &cwd, remembered.map(|(_, state)| state))));
        }
        Ok(())
    }

    pub(super) fn remember(&mut self, process: u64, manner: Manner, state: Vec<u8>) -> Answer {
        if state.len() > shell::STATE_BYTES {
            return refuse(Refusal::BadRequest, "the state is too large");
        }
        self.remembered = Some((process, (manner, state)));
        Ok(())
    }

    pub(super) fn saved_state(&mut self, tag: u32, process: u64) -> Answer {
        let known = self.known(process)?;
        if known.shell.is_none() {
            return refuse(Refusal::NoProcess, format!("process {process} is no shell"));
        }
        if known.asked.len() >= ASKED {
            return refuse(Refusal::TooMany, "the state is asked for already");
        }
        known.asked.push((tag, Instant::now() + SAYING));
        Ok(())
    }

    /// Tells whoever asked what a shell said of its state, when it is not just saying another, or cannot.
    fn tell_state(&mut self, at: usize, now: Instant) {
        let Process { shell: Some(shell), asked, frost, .. } = &mut self.processes[at] else { return };
        let says =
            shell.is_saving() && *frost == Frost::Thawed && asked.iter().all(|(_, until)| now < *until);
        if asked.is_empty() || says {
            return;
        }
        shell.drain();
        let (manner, state) = (shell.manner(), Blob(shell.saved_state().to_vec()));
        for (tag, _) in std::mem::take(asked) {
            self.tell(&Notice::StateIs { tag, manner, state: state.clone() });
        }
    }

    /// In the place of a shell that ended, where it was last, unless another place is named.
    fn start_again(&mut self, tag: u32, at: usize, mut spawn: Spawn) -> Result<(), Fault> {
        let process = &self.processes[at];
        let Some(shell) = process.shell.as_ref().filter(|shell| shell.dead()) else {
            let text = format!("process {} is there already, and no ended shell", process.id);
            return Err(Fault::Refused(Refusal::Exists, text));
        };
        if spawn.cwd.0.is_empty() {
            spawn.cwd = Blob(shell.cwd().to_vec());
        }
        let mut launched = self.launch_in(&process.group, spawn)?;
        let Some(line) = launched.take_line() else { return Err(Fault::Failed(Errno::IO.raw_os_error())) };
        let born = self.parts.sandbox.is_none();
        let process = &mut self.processes[at];
        process.pid = launched.pid;
        process.stage = Stage::Starting { tag, status: launched.status, got: Vec::new(), born, exit: None };
        if let Some(shell) = &mut process.shell {
            shell.renew(line);
        }
        self.watch_new(&self.processes[at]).map_err(|error| Fault::Failed(error.raw_os_error()))
    }

    pub(super) fn run_command(
        &mut self,
        process: u64,
        command: u64,
        stdin: CommandInput,
        part: Part,
        text: &[u8],
    ) -> Answer {
        let known = self.known(process)?;
        let Some(shell) = &mut known.shell else {
            return refuse(Refusal::NoProcess, format!("process {process} is no shell"));
        };
        if command <= shell.command() {
            return Ok(());
        }
        if shell.dead() {
            return refuse(Refusal::Ended, "the shell has ended");
        }
        if shell.unfit().is_some() {
            return refuse(Refusal::Unfit, "the shell can run nothing more and must be started again");
        }
        let failed =
            |error: Errno| (Refusal::Failed, format!("the command could not be handed over: {error}"));
        let script = shell.take_text(command, text, part == Part::Last, COMMAND_BYTES).map_err(failed)?;
        let Some(script) = script else { return Ok(()) };
        let (order, streams) = shell.prepare(command, script, stdin).map_err(failed)?;
        let idle = shell.idle();
        self.add_streams(process, command, streams);
        let Some(at) = self.processes.iter().position(|known| known.id == process) else { return Ok(()) };
        if idle {
            return self.give(at, order);
        }
        if let Some(shell) = &mut self.processes[at].shell {
            shell.wait(order);
        }
        Ok(())
    }

    /// The streams of a command; those of the commands before it are forgotten.
    fn add_streams(&mut self, process: u64, command: u64, streams: Streams) {
        let Some(process) = self.processes.iter_mut().find(|known| known.id == process) else { return };
        process.outputs.clear();
        process.inputs.clear();
        for (stream, pipe) in [(1, streams.stdout), (2, streams.stderr)] {
            let output = Output::new(command_stream(command, stream), pipe, COMMAND_OUTPUT_BYTES);
            process.outputs.push(output.resting(Instant::now() + QUIET));
        }
        if let Some(stdin) = streams.stdin {
            let number = command_stream(command, 0);
            // Watched from the start, as all inputs are.
            if self.poller.add(&stdin, Token::Input(process.slot, number), NOTHING).is_ok() {
                process.inputs.push(Input::queue(number, stdin));
            }
        }
    }

    fn give(&mut self, at: usize, order: Order) -> Answer {
        let Process { group, pid, shell, .. } = &mut self.processes[at];
        let Some(shell) = shell else { return Ok(()) };
        let others = others(group, *pid);
        match shell.give(order, &others, Instant::now()) {
            Ok(()) => Ok(()),
            Err(_) => refuse(Refusal::Unfit, "the shell can run nothing more and must be started again"),
        }
    }

    pub(super) fn shell_state(&mut self, process: u64) -> Result<ShellState, (Refusal, String)> {
        let known = self.known(process)?;
        let Some(shell) = &known.shell else {
            return refuse(Refusal::NoProcess, format!("process {process} is no shell"));
        };
        let running = members(known);
        Ok(ShellState {
            phase: shell.phase(),
            manner: shell.manner(),
            cwd: Blob(shell.cwd().to_vec()),
            command: shell.command(),
            ended: shell.ended.clone(),
            unfit: shell.unfit(),
            running: running.iter().take(LEFT).map(shell::left).collect(),
        })
    }
}

/// Events.
impl Keeper {
    /// The program of a shell runs: it gets its folder, and is waited for.
    pub(super) fn shell_runs(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let (pid, slot, id) = (process.pid, process.slot, process.id);
        let Some(shell) = &mut process.shell else { return };
        let stands = shell.site.as_ref().is_some_and(Site::stands);
        let settled = if stands { Ok(()) } else { self.parts.settle(shell, pid, slot, &self.poller) };
        let watched = self.poller.add(shell.line(), Token::Shell(slot), TAKEN);
        if settled.and(watched).is_err() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            return self.tell(&Notice::ShellUnusable { process: id, reason: Unusable::NoFolder });
        }
        shell.wake(pid, Instant::now());
        // The one before it may have ended while it said its state.
        self.listen_for_state(at);
        // The server has something to do meanwhile too.
        self.serve();
        if let Some(shell) = &mut self.processes[at].shell {
            shell.look_ahead();
        }
    }

    pub(super) fn shell_took(&mut self, slot: u32) {
        let Some(at) = self.processes.iter().position(|process| process.slot == slot) else { return };
        let event = self.processes[at].shell.as_mut().and_then(|shell| shell.taken(Instant::now()));
        if let Some(event) = event {
            self.shell_event(at, event);
        }
    }

    pub(super) fn shell_saved(&mut self, slot: u32) {
        let Some(process) = self.processes.iter_mut().find(|process| process.slot == slot) else { return };
        if let Some(shell) = &mut process.shell {
            shell.drain();
        }
    }

    /// Late output: read, and dropped.
    pub(super) fn late(&mut self, slot: u32, number: u32) {
        let Some(process) = self.processes.iter_mut().find(|process| process.slot == slot) else { return };
        let Some(at) = process.late.iter().position(|late| late.number == number) else { return };
        let late = &mut process.late[at];
        match rustix::io::read(&late.pipe, &mut self.scratch[..LATE_BYTES]) {
            Ok(LATE_BYTES) => {
                late.rest = Some(Instant::now() + LATE_REST);
                self.poller.remove(&late.pipe);
            }
            Ok(0) => drop(process.late.swap_remove(at)),
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => drop(process.late.swap_remove(at)),
        }
    }

    pub(super) fn shells_tick(&mut self, now: Instant) {
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            for late in &mut process.late {
                if late.rest.is_some_and(|rest| now >= rest) {
                    let token = Token::Late(process.slot, late.number);
                    late.rest = self.poller.add(&late.pipe, token, READ).is_err().then(|| now + LATE_REST);
                }
            }
            let event = process.shell.as_mut().and_then(|shell| shell.tick(now));
            if process.shell.as_ref().is_some_and(|shell| shell.has_begun()) {
                process.inputs.iter_mut().for_each(Input::opened);
            }
            if let Some(event) = event {
                self.shell_event(at, event);
            }
            self.pay(at, now);
            self.tell_state(at, now);
            self.finish_command(at);
        }
    }

    fn shell_event(&mut self, at: usize, event: Event) {
        let now = Instant::now();
        let process = &mut self.processes[at];
        let id = process.id;
        match event {
            Event::Ready => {
                let Some(shell) = &process.shell else { return };
                let (cwd, manner) = (Blob(shell.cwd().to_vec()), shell.manner());
                self.tell(&Notice::ShellReady { process: id, cwd, manner });
            }
            Event::Unusable(reason) => {
                let _ = rustix::process::kill_process(process.pid, Signal::KILL);
                self.tell(&Notice::ShellUnusable { process: id, reason });
            }
            Event::Saved(waiting) => {
                self.listen_for_state(at);
                self.give_waiting(at, waiting, now);
            }
            Event::Returned { code, command, since, older, effect } => {
                let own = tree::own(&members(process), &older, process.pid);
                let ran = !own.is_empty() || ran(process, command);
                let how = if ran { How::Returned { code } } else { How::NotRun {} };
                let Some(shell) = &process.shell else { return };
                let cwd = Some(shell.cwd().to_vec());
                let mut ended = shell::ended(command, how, cwd, since, now);
                ended.left = own.iter().take(LEFT).map(shell::left).collect();
                self.end_command(at, ended);
                // The end is on its way before the shell is busy again, and whoever hears it goes first: the kernel has
                // put it on this processor, behind us.
                self.serve();
                std::thread::yield_now();
                let Process { group, pid, shell: Some(shell), .. } = &mut self.processes[at] else { return };
                shell.clear_away();
                match effect {
                    Effect::None => {
                        let waiting = shell.take_waiting();
                        self.give_waiting(at, waiting, now);
                    }
                    Effect::Any => {
                        shell.save(code, &others(group, *pid), now);
                        self.listen_for_state(at);
                    }
                }
            }
        }
    }

    fn give_waiting(&mut self, at: usize, waiting: Option<Order>, now: Instant) {
        let Some(order) = waiting else { return };
        let number = order.command;
        if self.give(at, order).is_err() {
            // The command was taken, and now cannot be run.
            self.end_command(at, shell::ended(number, How::NotRun {}, None, now, now));
        }
    }

    /// A shell that ends says its state by itself; while it says it on demand, nothing is listened to line by line.
    fn listen_for_state(&self, at: usize) {
        let process = &self.processes[at];
        let Some((shell, queue)) =
            process.shell.as_ref().and_then(|shell| Some((shell, shell.saved.as_ref()?)))
        else {
            return;
        };
        let interest = if shell.saves() { NOTHING } else { READ };
        // One that cannot be listened to is still read when the shell is done, or dead.
        let _ = self.poller.change(queue, Token::Saved(process.slot), interest);
    }

    fn end_command(&mut self, at: usize, ended: Ended) {
        cut(&mut self.processes[at], ended);
        self.finish_command(at);
    }

    /// Tells of an end once everything before it is read, and lets go of the streams.
    fn finish_command(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let Some(shell) = process.shell.as_mut().filter(|shell| shell.ending.is_some()) else { return };
        for output in &mut process.outputs {
            while output.wants() && output.behind_cut() {
                output.fill(self.parts.folder.as_fd(), &mut self.scratch);
            }
        }
        let mut late = Vec::new();
        for output in &mut process.outputs {
            if let Some(pipe) = output.take_late(&self.poller, &mut self.scratch[..LATE_BYTES]) {
                late.push((output.fd, pipe));
            }
        }
        if process.outputs.iter().all(Output::ended)
            && let Some(ended) = shell.ending.take()
        {
            shell.ended = Some(ended.clone());
            // Nobody reads it any more.
            process.inputs.clear();
            let id = process.id;
            self.tell(&Notice::CommandEnded { process: id, ended });
        }
        for (number, pipe) in late {
            self.keep_late(at, number, pipe);
        }
    }

    fn keep_late(&mut self, at: usize, number: u32, pipe: rustix::fd::OwnedFd) {
        let process = &mut self.processes[at];
        process.late.retain(|late| late.number != number);
        if process.late.len() >= LATE {
            process.late.remove(0);
        }
        if self.poller.add(&pipe, Token::Late(process.slot, number), READ).is_ok() {
            process.late.push(Late { number, pipe, rest: None });
        }
    }
}

impl super::Parts {
    /// In memory where there is such a folder, so that no command waits for a disk; else where the keeper is.
    fn site_outside(&self) -> Result<Site, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = crate::config::MEMORY.as_bytes();
        let site = rustix::fs::open(path, flags, Mode::empty()).and_then(|parent| {
            let site = Site::make(parent, path, None)?;
            // Whoever clears up after a keeper that was killed finds it by this.
            let _ = rustix::fs::unlinkat(&self.folder, crate::config::SITE, rustix::fs::AtFlags::empty());
            rustix::fs::symlinkat(site.folder_path(), &self.folder, crate::config::SITE)?;
            Ok(site)
        });
        site.or_else(|_| {
            Site::make(self.folder.try_clone().map_err(|_| Errno::MFILE)?, &self.config.folder.0, None)
        })
    }

    /// Makes the folder for a shell's commands where the shell can reach it.
    fn settle(
        &self,
        shell: &mut Shell,
        pid: Pid,
        slot: u32,
        poller: &crate::poller::Poller,
    ) -> Result<(), Errno> {
        let site = match &self.config.sandbox {
            None => self.site_outside(),
            Some(wanted) => {
                let path: PathBuf =
                    ["/proc", &pid.as_raw_nonzero().to_string(), "root", "tmp"].iter().collect();
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let parent = rustix::fs::open(path, flags, Mode::empty())?;
                let owner: Owner =
                    rustix::process::geteuid().is_root().then_some((wanted.host_uid, wanted.host_gid));
                Site::make(parent, INSIDE, owner)
            }
        }?;
        shell.settle(site)?;
        match &shell.saved {
            Some(queue) => poller.add(queue, Token::Saved(slot), READ),
            None => Ok(()),
        }
    }
}

/// A shell's process ended: what there is to tell, or none if it was no shell or ran nothing.
pub(super) fn died(process: &mut Process, exit: &Exit, now: Instant) -> Option<Vec<Notice>> {
    let shell = process.shell.as_mut()?;
    // What it said of itself on its way out is there already.
    shell.drain();
    let ended = shell.died(exit, now)?;
    // Told once its streams are read, like any other end.
    cut(process, ended);
    Some(Vec::new())
}

fn cut(process: &mut Process, mut ended: Ended) {
    let mut ends = process.outputs.iter_mut().map(Output::cut);
    (ended.stdout, ended.stderr) = (ends.next().unwrap_or(0), ends.next().unwrap_or(0));
    if let Some(shell) = &mut process.shell {
        shell.ending = Some(ended);
    }
}

pub(super) fn members(process: &Process) -> Vec<Kin> {
    others_of(&process.group, process.pid)
}

/// All of a shell's tree but the shell itself.
fn others_of(group: &Group, pid: Pid) -> Vec<Kin> {
    let pids = match group {
        Group::None => tree::members(Of::Root(pid)),
        group => group.members(),
    };
    pids.into_iter().filter(|other| *other != pid).filter_map(tree::kin).collect()
}

fn others(group: &Group, pid: Pid) -> impl Fn() -> Vec<Kin> {
    move || others_of(group, pid)
}

/// Whether the shell got as far as the command's file: its streams are opened right before, the error stream last.
fn ran(process: &Process, command: u64) -> bool {
    let number = command_stream(command, 2);
    let Some(output) = process.outputs.iter().find(|output| output.fd == number) else { return false };
    output.was_opened() || output.pipe.as_ref().is_some_and(|pipe| holds(process.pid, pipe))
}

/// Whether a process has the other side of a queue open, by whatever number.
fn holds(pid: Pid, queue: &rustix::fd::OwnedFd) -> bool {
    let Ok(wanted) = rustix::fs::fstat(queue) else { return false };
    let folder = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        rustix::fs::stat(entry.path())
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (wanted.st_dev, wanted.st_ino))
    })
}
