//! The keeper itself: one thread that waits for the processes, for the server and for the clock.
//!
//! It owns all state. A server is a guest until its hello is good, and then the only server until another's is. A
//! keeper without a server goes on for as long as it was told to, and then ends its processes and itself.

mod requests;
mod shells;
mod signals;

pub(crate) use signals::Owed;

use crate::{
    cgroup::{Cgroups, Group},
    config::Config,
    egress::Egress,
    launch::{self, Report},
    line::Line,
    poller::{NOTHING, Poller, READ, Token, WRITE},
    process::{Frost, Process, Stage, exit_of},
    sandbox::Sandbox,
    sys,
    tree::{self, Of},
    wire::{self, CHUNK_BYTES, Isolation, Limit, Mode, Notice, ProcessState, Refusal, Request},
};
use rustix::{
    event::epoll::EventFlags,
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::SocketFlags,
    process::{Pid, WaitOptions, WaitStatus},
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Seconds that somebody who connected has to say hello.
const HELLO: Duration = Duration::from_secs(5);
/// Connections that have not said hello; one more sends the oldest away.
const GUESTS: usize = 8;
/// How often something is looked at that tells nobody when it changes: a freeze under way, a disk that was full, a
/// cgroup whose last process is dying.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(200);
/// How long a word that nobody waits for may wait for another.
const LAZY: Duration = Duration::from_millis(50);
/// Children that ended before their middleman's report was read.
const UNCLAIMED: usize = 64;
/// Refused connections remembered while no server is there.
const UNTOLD: usize = 256;
/// How long the dying are waited for when the keeper ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// Everything that is set up before the first event.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) folder: OwnedFd,
    pub(crate) listener: OwnedFd,
    pub(crate) signals: OwnedFd,
    pub(crate) token: wire::Token,
    pub(crate) epoch: u64,
    pub(crate) cgroups: Cgroups,
    pub(crate) sandbox: Option<Sandbox>,
    pub(crate) egress: Option<Egress>,
}

/// A freeze that waits for everything to stand still.
#[derive(Debug)]
struct Freeze {
    tag: u32,
    process: Option<u64>,
    until: Instant,
}

pub(crate) struct Keeper {
    parts: Parts,
    poller: Poller,
    processes: Vec<Process>,
    server: Option<Line>,
    guests: VecDeque<Line>,
    /// Since when no server is there.
    alone_since: Instant,
    orphan: Duration,
    unclaimed: VecDeque<(Pid, WaitStatus)>,
    /// Groups of forgotten processes that are still dying.
    graves: Vec<Group>,
    freezes: Vec<Freeze>,
    /// A state of another time, and the number of the shell that it is for.
    remembered: Option<(u64, shells::Remembered)>,
    untold: VecDeque<Notice>,
    dropped: u64,
    next_id: u32,
    /// Where the next round of output begins, so that one flood delays nobody.
    turn: usize,
    /// All that there is to say is that something is done, and that can wait until then.
    lazy: Option<Instant>,
    scratch: Vec<u8>,
    ending: bool,
}

impl Keeper {
    pub(crate) fn new(parts: Parts) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        poller.add(&parts.signals, Token::Signals, READ)?;
        poller.add(&parts.listener, Token::Listener, READ)?;
        if let Some(egress) = &parts.egress {
            poller.add(egress.listener(), Token::Egress, READ)?;
        }
        Ok(Self {
            orphan: Duration::from_secs(parts.config.orphan_seconds.into()),
            parts,
            poller,
            processes: Vec::new(),
            server: None,
            guests: VecDeque::new(),
            alone_since: Instant::now(),
            unclaimed: VecDeque::new(),
            graves: Vec::new(),
            freezes: Vec::new(),
            remembered: None,
            untold: VecDeque::new(),
            dropped: 0,
            next_id: 0,
            turn: 0,
            lazy: None,
            scratch: vec![0; CHUNK_BYTES],
            ending: false,
        })
    }

    /// As a keeper of one process at a time, whose everything below it is.
    pub(crate) fn for_one(mut self) -> Self {
        self.parts.cgroups.for_one();
        self
    }

    /// Until it is told to end, or nobody came for too long.
    pub(crate) fn run(mut self) {
        while !self.ending {
            let timeout = self.timeout(Instant::now());
            for (token, flags) in self.poller.wait(timeout) {
                self.event(token, flags);
            }
            self.tick(Instant::now());
            self.serve();
        }
        self.end();
    }

    fn event(&mut self, token: Token, flags: EventFlags) {
        match token {
            Token::Signals => {
                self.ending |= sys::terminated(self.parts.signals.as_fd());
                self.reap();
            }
            Token::Listener => self.welcome_guest(),
            Token::Guest(id) => self.guest(id),
            Token::Server(id) => self.hear_server(id),
            Token::Status(slot) => self.status(slot),
            Token::Output(slot, fd) => self.output(slot, fd),
            Token::Input(slot, fd) => self.input_ready(slot, fd, flags),
            Token::Shell(slot) => self.shell_took(slot),
            Token::Saved(slot) => self.shell_saved(slot),
            Token::Late(slot, number) => self.late(slot, number),
            Token::Egress => {
                if let Some(egress) = &mut self.parts.egress {
                    egress.accept(&self.poller);
                }
            }
            Token::Relay(id, side) => {
                if let Some(egress) = &mut self.parts.egress {
                    egress.event(id, side, flags, &self.poller, &mut self.scratch);
                }
            }
        }
    }

    fn fresh_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    fn tell(&mut self, notice: &Notice) {
        self.lazy = None;
        if let Some(server) = &mut self.server {
            server.tell(notice);
        }
    }

    /// Says of something that it is done, with whatever is said next: the server waits for what comes of it, and not for
    /// this.
    fn tell_lazily(&mut self, tag: u32) {
        // Never moved on, and never where something else is said already.
        let said = self.server.as_ref().is_some_and(Line::pending);
        let lazy = self.lazy.or_else(|| (!said).then(|| Instant::now() + LAZY));
        self.tell(&Notice::Done { tag });
        self.lazy = lazy;
    }
}

/// Coming and going of servers.
impl Keeper {
    fn welcome_guest(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.parts.listener, flags) else { return };
        let own = rustix::process::geteuid();
        // Root may do everything anyway; anybody else has no business here.
        let known = rustix::net::sockopt::socket_peercred(&socket)
            .is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
        if !known {
            return;
        }
        if self.guests.len() >= GUESTS {
            self.guests.pop_front();
        }
        let id = self.fresh_id();
        if self.poller.add(&socket, Token::Guest(id), READ).is_ok() {
            self.guests.push_back(Line::new(id, socket, Instant::now() + HELLO));
        }
    }

    fn guest(&mut self, id: u32) {
        let Some(at) = self.guests.iter().position(|guest| guest.id == id) else { return };
        let Some(mut guest) = self.guests.remove(at) else { return };
        let read = guest.read(&mut self.scratch);
        match guest.next() {
            Ok(Some(Request::Hello { version, token })) => {
                if version >= wire::OLDEST && same(&token, &self.parts.token) {
                    self.take_server(guest);
                }
            }
            Ok(None) if read.is_ok() => self.guests.push_back(guest),
            Ok(Some(_) | None) | Err(_) => {}
        }
    }

    fn take_server(&mut self, mut line: Line) {
        if let Some(mut old) = self.server.take() {
            old.tell(&Notice::Replaced {});
            let _ = old.flush();
        }
        self.lost_server();
        line.deadline = None;
        if self.poller.change(&line.socket, Token::Server(line.id), READ).is_err() {
            return;
        }
        line.tell(&Notice::Welcome {
            version: wire::VERSION,
            epoch: self.parts.epoch,
            isolation: self.isolation(),
            processes: self.states(),
        });
        for notice in self.untold.drain(..) {
            line.tell(&notice);
        }
        if self.dropped > 0 {
            line.tell(&Notice::EgressUntold { count: std::mem::take(&mut self.dropped) });
        }
        let id = line.id;
        self.server = Some(line);
        // What came behind the hello is here already, and the socket will not say so again.
        self.requests(id);
    }

    /// Forgets what belonged to the connection and not to the keeper.
    fn lost_server(&mut self) {
        self.server = None;
        self.alone_since = Instant::now();
        for process in &mut self.processes {
            process.outputs.iter_mut().for_each(crate::channel::Output::unsubscribe);
            process.inputs.iter_mut().for_each(crate::channel::Input::abandon);
            process.asked.clear();
        }
        self.lazy = None;
    }

    fn hear_server(&mut self, id: u32) {
        let Some(server) = self.server.as_mut().filter(|server| server.id == id) else { return };
        if server.read(&mut self.scratch).is_err() {
            return self.lost_server();
        }
        self.requests(id);
    }

    fn requests(&mut self, id: u32) {
        while let Some(server) = self.server.as_mut().filter(|server| server.id == id) {
            match server.next() {
                Ok(Some(request)) => self.request(request),
                Ok(None) => return,
                Err(_) => return self.lost_server(),
            }
        }
    }

    fn isolation(&self) -> Isolation {
        let cgroups = &self.parts.cgroups;
        let mut limits = cgroups.limits().to_vec();
        let mut missing = cgroups.missing().to_vec();
        if self.parts.config.limits.open_files.is_some() {
            limits.push(Limit::OpenFiles);
        }
        if self.processes_by_rlimit().is_some() {
            limits.push(Limit::Processes);
            missing.retain(|text| !text.starts_with("the limit \"pids\""));
        }
        Isolation {
            mode: if self.parts.sandbox.is_some() { Mode::Sandbox } else { Mode::Host },
            tree: cgroups.tree(),
            limits,
            missing,
            pid: std::process::id(),
            init: self
                .parts
                .sandbox
                .as_ref()
                .map(|sandbox| sandbox.init().as_raw_nonzero().get().cast_unsigned()),
            proxy: self.parts.egress.as_ref().map(Egress::port),
        }
    }

    /// In a user namespace of its own a process limit counts that namespace's processes, so that it can stand in
    /// for a cgroup's. On the host it would count all that the user runs.
    fn processes_by_rlimit(&self) -> Option<u64> {
        let by_cgroup = self.parts.cgroups.limits().contains(&Limit::Processes);
        let wanted = self.parts.config.limits.processes;
        if self.parts.sandbox.is_some() && !by_cgroup { wanted } else { None }
    }

    fn states(&self) -> Vec<ProcessState> {
        self.processes.iter().map(Process::state).collect()
    }
}

/// What processes do.
impl Keeper {
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if self.parts.sandbox.as_ref().is_some_and(|sandbox| sandbox.init() == pid) {
                // Its namespace dies with it, and every process in it.
                self.ending = true;
                continue;
            }
            match self.processes.iter_mut().find(|process| process.is(pid)) {
                Some(process) => process.exited(exit_of(status), Instant::now()),
                None => {
                    if self.unclaimed.len() == UNCLAIMED {
                        self.unclaimed.pop_front();
                    }
                    self.unclaimed.push_back((pid, status));
                }
            }
        }
        let starting = |process: &Process| matches!(process.stage, Stage::Starting { .. });
        if !self.processes.iter().any(starting) {
            // Adopted daemons, middlemen and resolvers: nobody will ask for them.
            self.unclaimed.clear();
        }
    }

    fn status(&mut self, slot: u32) {
        let Some(at) = self.processes.iter().position(|process| process.slot == slot) else { return };
        let process = &mut self.processes[at];
        let Stage::Starting { tag, status, got, born, exit } = &mut process.stage else { return };
        let (reports, ended) = launch::reports(status.as_fd(), got);
        let (tag, mut failed) = (*tag, None);
        for report in reports {
            match report {
                Report::Born(pid) => {
                    process.pid = pid;
                    *born = true;
                    if let Some(early) = self.unclaimed.iter().position(|(other, _)| *other == pid) {
                        *exit = self.unclaimed.remove(early).map(|(_, status)| exit_of(status));
                    }
                }
                Report::Failed(failure, errno) => failed = Some((failure, errno)),
            }
        }
        if !ended && failed.is_none() {
            return;
        }
        // A middleman that died without a word leaves nothing behind.
        let failed = failed.or_else(|| (!*born).then_some((wire::SpawnFailure::Setup, libc::EIO)));
        let (exit, id) = (exit.take(), process.id);
        if let Some((failure, errno)) = failed {
            if self.processes[at].shell.as_ref().is_some_and(|shell| shell.command() > 0) {
                // Another try may be made, among the same processes.
                let exit = wire::Exit { code: None, signal: None };
                self.processes[at].stage = Stage::Ended { exit };
                return self.tell(&Notice::SpawnFailed { tag, process: id, failure, errno });
            }
            let process = self.processes.swap_remove(at);
            process.kill();
            self.graves.push(process.group);
            return self.tell(&Notice::SpawnFailed { tag, process: id, failure, errno });
        }
        process.stage = Stage::Running;
        let pid = process.pid.as_raw_nonzero().get().cast_unsigned();
        if let Some(exit) = exit {
            process.exited(exit, Instant::now());
        }
        self.tell(&Notice::Spawned { tag, process: id, pid });
        self.shell_runs(at);
    }

    fn output(&mut self, slot: u32, fd: u32) {
        let Some(process) = self.processes.iter_mut().find(|process| process.slot == slot) else { return };
        let Some(output) = process.output(fd) else { return };
        output.fill(self.parts.folder.as_fd(), &mut self.scratch);
    }

    fn input_ready(&mut self, slot: u32, fd: u32, flags: EventFlags) {
        let Some(process) = self.processes.iter_mut().find(|process| process.slot == slot) else { return };
        let Some(input) = process.input(fd) else { return };
        if flags.contains(EventFlags::ERR) {
            input.shut();
        } else {
            input.deliver(&mut Vec::new());
        }
    }
}

/// After each round of events.
impl Keeper {
    /// When to look again though nothing happened.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        let mut next: Option<Instant> = None;
        let mut at = |time: Instant| next = Some(next.map_or(time, |other| other.min(time)));
        if self.server.is_none() {
            at(self.alone_since + self.orphan);
        }
        self.guests.iter().filter_map(|guest| guest.deadline).for_each(&mut at);
        for process in &self.processes {
            if let Stage::Draining { until, .. } = process.stage {
                at(until);
            }
            if process.frost == Frost::Freezing {
                at(now + SOON);
            }
            if process.outputs.iter().any(crate::channel::Output::stuck) {
                at(now + LATER);
            }
            let resting = process.outputs.iter().filter(|output| output.pipe.is_some());
            resting.filter_map(|output| output.rest).for_each(&mut at);
            process.late.iter().filter_map(|late| late.rest).for_each(&mut at);
            process.shell.iter().filter_map(|shell| shell.deadline()).for_each(&mut at);
            if !process.owed.is_empty() {
                at(now + SOON);
            }
            process.asked.iter().map(|(_, until)| *until).for_each(&mut at);
        }
        if !self.graves.is_empty() {
            at(now + LATER);
        }
        if let Some(time) = self.parts.egress.as_ref().and_then(Egress::deadline) {
            at(time);
        }
        self.lazy.into_iter().for_each(&mut at);
        next.map(|time| time.saturating_duration_since(now))
    }

    fn tick(&mut self, now: Instant) {
        if self.server.is_none() && now >= self.alone_since + self.orphan {
            self.ending = true;
        }
        self.guests.retain(|guest| guest.deadline.is_none_or(|deadline| now < deadline));
        self.graves.retain(|group| !group.remove());
        let mut notices = Vec::new();
        for process in &mut self.processes {
            for output in process.outputs.iter_mut().filter(|output| output.stuck()) {
                output.settle(self.parts.folder.as_fd());
            }
            if let Some(exit) = process.drained(now) {
                match shells::died(process, &exit, now) {
                    Some(ended) => notices.extend(ended),
                    None => notices.push(Notice::Exited { process: process.id, exit }),
                }
            }
            if process.frost == Frost::Freezing && process.group.frozen() {
                process.frost = Frost::Frozen;
            }
        }
        self.shells_tick(now);
        self.finish_freezes(now, &mut notices);
        if let Some(egress) = &mut self.parts.egress {
            egress.tick(now);
            notices.extend(egress.refusals());
        }
        for notice in notices {
            if self.server.is_some() {
                self.tell(&notice);
            } else if matches!(notice, Notice::EgressRefused { .. }) {
                if self.untold.len() == UNTOLD {
                    self.untold.pop_front();
                    self.dropped += 1;
                }
                self.untold.push_back(notice);
            }
        }
        self.watch(now);
    }

    fn finish_freezes(&mut self, now: Instant, notices: &mut Vec<Notice>) {
        let processes = &mut self.processes;
        self.freezes.retain(|freeze| {
            let meant = |process: &Process| freeze.process.is_none_or(|id| id == process.id);
            let tag = freeze.tag;
            if !processes.iter().any(|process| meant(process) && process.frost == Frost::Freezing) {
                notices.push(Notice::Done { tag });
                return false;
            }
            if now < freeze.until {
                return true;
            }
            for process in processes.iter_mut().filter(|process| meant(process)) {
                let _ = process.group.thaw();
                process.frost = Frost::Thawed;
            }
            let text = "the processes did not come to rest, and go on".to_owned();
            notices.push(Notice::Refused { tag, reason: Refusal::Failed, text });
            false
        });
    }

    /// Makes what is waited for match what is wanted.
    fn watch(&mut self, now: Instant) {
        for process in &mut self.processes {
            for output in &mut process.outputs {
                if output.rest.is_some_and(|rest| now < rest) {
                    continue;
                }
                output.rest = None;
                let (wants, token) = (output.wants(), Token::Output(process.slot, output.fd));
                match &output.pipe {
                    Some(pipe) if wants && !output.watched => {
                        output.watched = self.poller.add(pipe, token, READ).is_ok();
                    }
                    Some(pipe) if !wants && output.watched => {
                        self.poller.remove(pipe);
                        output.watched = false;
                    }
                    Some(_) | None => {}
                }
            }
            for input in &mut process.inputs {
                let (pending, token) = (input.pending(), Token::Input(process.slot, input.fd));
                if let Some(pipe) = &input.pipe
                    && pending != input.waiting
                {
                    let interest = if pending { WRITE } else { NOTHING };
                    input.waiting = self.poller.change(pipe, token, interest).is_ok() && pending;
                }
            }
        }
    }

    /// Sends the server what it has room for, a piece of each stream in turn.
    fn serve(&mut self) {
        if let Some(until) = self.lazy {
            let due = |process: &Process| process.outputs.iter().any(|output| output.due().is_some());
            if Instant::now() < until && !self.processes.iter().any(due) {
                return;
            }
            self.lazy = None;
        }
        let Some(server) = &mut self.server else { return };
        let mut over = server.flush().is_err();
        while !over && server.has_room() && feed(&mut self.processes, &mut self.turn, server) {
            over = !server.has_room() && server.flush().is_err();
        }
        over |= server.flush().is_err();
        if over {
            return self.lost_server();
        }
        if server.pending() != server.waiting {
            let interest = if server.pending() { READ | WRITE } else { READ };
            if self.poller.change(&server.socket, Token::Server(server.id), interest).is_ok() {
                server.waiting = server.pending();
            }
        }
    }

    /// Kills everything, removes the socket and the groups; the workspace stays.
    fn end(mut self) {
        self.tell(&Notice::ShuttingDown {});
        if let Some(server) = &mut self.server {
            let _ = server.flush();
        }
        for process in &self.processes {
            process.kill();
        }
        if let Some(sandbox) = &self.parts.sandbox {
            sandbox.kill();
        } else {
            tree::kill(Of::Keeper);
        }
        let _ = rustix::fs::unlinkat(&self.parts.folder, crate::config::SOCKET, rustix::fs::AtFlags::empty());
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until {
            while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
            self.graves.retain(|group| !group.remove());
            let groups = self.processes.iter().map(|process| &process.group);
            let gone = groups.chain(self.parts.sandbox.iter().map(Sandbox::group)).all(Group::remove);
            if gone && self.graves.is_empty() && self.parts.cgroups.remove() {
                break;
            }
            self.poller.wait(Some(SOON));
        }
    }
}

/// One round: a chunk of every stream that has something due. Whether there was any.
fn feed(processes: &mut [Process], turn: &mut usize, server: &mut Line) -> bool {
    use crate::channel::Due;
    let mut any = false;
    let count = processes.len();
    for step in 0..count {
        let process = &mut processes[(*turn + step) % count];
        let id = process.id;
        for output in &mut process.outputs {
            match output.due() {
                None => {}
                Some(Due::End { offset }) => {
                    // Those of a shell's command are told with its end.
                    if process.shell.is_none() {
                        server.tell(&Notice::End { process: id, fd: output.fd, offset });
                        any = true;
                    }
                    output.end_told();
                }
                Some(Due::Bytes { offset, length }) => {
                    let buffer = server.buffer();
                    let start = wire::open_output(id, output.fd, offset, buffer);
                    match output.spool.read(offset, length, buffer) {
                        Ok(length) if length > 0 => {
                            wire::seal_output(start, buffer);
                            output.sent(length);
                            any = true;
                        }
                        // A spool that cannot be read now may be readable later; nothing is skipped.
                        Ok(_) | Err(_) => buffer.truncate(start),
                    }
                }
            }
        }
        if !server.has_room() {
            *turn = (*turn + step + 1) % count;
            break;
        }
    }
    any
}

/// Compares in a time that tells nothing.
fn same(left: &wire::Token, right: &wire::Token) -> bool {
    left.iter().zip(right).fold(0, |seen, (left, right)| seen | std::hint::black_box(left ^ right)) == 0
}
