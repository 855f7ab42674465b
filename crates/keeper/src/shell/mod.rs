//! One shell: a bash that lives as long as its session, and the commands it is given one at a time.
//!
//! ```text
//! Waking ─► Fitting ─► Idle ─► Running ─► Saving ─► Idle
//!    └─────────┴─────────┴────────┴─────────┴─► Dead ─► (started again) Waking
//! ```
//! The shell reads its lines from a socket. The keeper writes one line for each command, which makes the shell run a
//! file with streams that are the command's alone, and behind it an empty line, the bell: when the shell takes
//! that, it may be back. Whether it is, and what the command returned, is seen through the [`Glass`], never told by
//! the shell. What a command has written by then is its output; whoever writes later writes into nothing.

mod glass;
mod order;
mod plain;
mod script;
mod site;
mod symbols;

pub(crate) use glass::Depth;
use glass::{Glass, Look, Names, Obstacle};
use order::{Arriving, Pipes};
pub(crate) use order::{Effect, Order, Streams};
use plain::{Next, Plain, Sight};
pub(crate) use script::STATE_BYTES;
pub use script::quoted;
pub(crate) use site::{Owner, Site};

use crate::{
    process::QUIET,
    sys,
    tree::Kin,
    wire::{Ended, Exit, How, Left, Manner, ShellPhase, Unfit, Unusable},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::SendFlags,
    process::Pid,
};
use std::time::{Duration, Instant};

/// How long a shell may take to its first line, and to save its state.
const WAKE: Duration = Duration::from_secs(20);
const SAVE: Duration = Duration::from_secs(5);
/// A look that finds the shell between two places is repeated this often at once, and then after waits that double.
const LOOKS: usize = 24;
const WAIT_FIRST: Duration = Duration::from_micros(40);
/// From here on the bell is rung again, so that the next look has a reason.
const WAIT_LAST: Duration = Duration::from_millis(2);
/// While a command's names are still there, how often it is looked at whether it has begun.
const BEGUN: Duration = QUIET;
/// While a shell says its state, how often room is made in the queue.
const ROOM: Duration = Duration::from_millis(2);
/// How often it is looked for somebody else who could read from a line.
const HUSHES: usize = 8;
const BELL: &[u8] = b"\n";
/// Of what a shell says of itself, read at once.
const DRAIN_BYTES: usize = 16 * 1024;
const SAVE_SCRIPT: &str = "save";
const FAREWELL_SCRIPT: &str = "end";
const STATE_QUEUE: &str = "state";

#[derive(Debug)]
pub(crate) struct Shell {
    line: OwnedFd,
    pid: Option<Pid>,
    /// Of the program as it started.
    names: Option<Names>,
    glass: Option<Sight>,
    pub(crate) site: Option<Site>,
    /// The queue that states come by.
    pub(crate) saved: Option<OwnedFd>,
    state: script::State,
    /// How the shell was known whose state that is, where it was another keeper's.
    told_as: Option<Manner>,
    phase: Phase,
    /// Taken, and given to the shell as soon as it is idle.
    waiting: Option<Order>,
    arriving: Option<Arriving>,
    cwd: Vec<u8>,
    command: u64,
    /// The end of the last command, until it can be told, and from then on.
    pub(crate) ending: Option<Ended>,
    pub(crate) ended: Option<Ended>,
    unfit: Option<Unfit>,
    /// The statuses of the last pipeline, as the shell spelt them.
    pipes: Vec<u8>,
    look: Option<Wait>,
    bell: Bell,
    /// Stopped while a line is on its way, because they could read from it.
    stopped: Vec<Pid>,
    /// Who was there before the command with which the shell died.
    remains: Vec<Kin>,
    /// What a command that has ended leaves to be cleared away.
    spent: Option<Order>,
}

#[derive(Debug)]
enum Phase {
    Waking { until: Instant },
    Fitting { until: Instant, script: String },
    Idle,
    Running(Running),
    Saving { until: Instant },
    Dead,
}

#[derive(Debug)]
struct Running {
    order: Order,
    begun: bool,
    since: Instant,
    /// Who was there before.
    older: Vec<Kin>,
    effect: Effect,
}

/// Rung once the line is the shell's own, so that nobody else can take the line for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bell {
    Held,
    Rung,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    at: Instant,
    next: Duration,
}

/// What a look at the shell led to.
#[derive(Debug)]
pub(crate) enum Event {
    /// It waits for its first command.
    Ready,
    /// The running command has returned. Its streams are to be cut, and then the shell saves its state, if that can be
    /// another one.
    Returned {
        code: i32,
        command: u64,
        since: Instant,
        older: Vec<Kin>,
        effect: Effect,
    },
    Unusable(Unusable),
    /// Its state is saved. A command that waited for that can be given now.
    Saved(Option<Order>),
}

impl Shell {
    /// `before` is the state of a shell of another time, and how that was known.
    pub(crate) fn new(line: OwnedFd, cwd: &[u8], before: Option<(Manner, Vec<u8>)>) -> Self {
        let (told_as, whole) = before.map_or((None, Vec::new()), |(manner, state)| (Some(manner), state));
        Self {
            line,
            pid: None,
            names: None,
            glass: None,
            site: None,
            saved: None,
            state: script::State::of(whole),
            told_as,
            phase: Phase::Dead,
            waiting: None,
            arriving: None,
            cwd: cwd.to_vec(),
            command: 0,
            ending: None,
            ended: None,
            unfit: None,
            pipes: Vec::new(),
            look: None,
            bell: Bell::Rung,
            stopped: Vec::new(),
            remains: Vec::new(),
            spent: None,
        }
    }

    /// Another process in the place of one that ended.
    pub(crate) fn renew(&mut self, line: OwnedFd) {
        (self.line, self.glass, self.pid) = (line, None, None);
        (self.unfit, self.look) = (None, None);
    }

    pub(crate) fn line(&self) -> &OwnedFd {
        &self.line
    }

    pub(crate) fn cwd(&self) -> &[u8] {
        &self.cwd
    }

    pub(crate) fn command(&self) -> u64 {
        self.command
    }

    pub(crate) fn unfit(&self) -> Option<Unfit> {
        self.unfit
    }

    pub(crate) fn dead(&self) -> bool {
        matches!(self.phase, Phase::Dead)
    }

    pub(crate) fn phase(&self) -> ShellPhase {
        match self.phase {
            Phase::Waking { .. } | Phase::Fitting { .. } => ShellPhase::Starting,
            Phase::Dead => ShellPhase::Dead,
            Phase::Idle | Phase::Saving { .. } if self.waiting.is_none() => ShellPhase::Idle,
            Phase::Idle | Phase::Saving { .. } | Phase::Running(_) => ShellPhase::Busy,
        }
    }

    /// Whether the running command has begun, its streams open.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(&self.phase, Phase::Running(running) if running.begun)
    }

    /// The command that was taken and that the shell has not begun, as far as that can be seen.
    pub(crate) fn unbegun(&self) -> Option<u64> {
        if let Some(command) = self.arriving.as_ref().map(Arriving::command) {
            return Some(command);
        }
        if let Some(order) = &self.waiting {
            return Some(order.command);
        }
        // One that has become another program cannot be looked into.
        let before = |sight: &Sight| match sight {
            Sight::Seen(glass) => matches!(glass.look(), Look::Idle { .. } | Look::Between),
            Sight::Told(_) => false,
        };
        let given = matches!(&self.phase, Phase::Running(running) if !running.begun)
            && self.glass.as_ref().is_some_and(before);
        given.then_some(self.command)
    }

    /// The command that runs, or with which the shell died: who was there before it, and how deep in it the shell is.
    pub(crate) fn running(&self) -> Option<(&[Kin], Depth)> {
        match &self.phase {
            Phase::Running(running) => {
                let depth = self.glass.as_ref().map_or(Depth::Deep, Sight::depth);
                Some((&running.older, depth))
            }
            Phase::Dead => Some((&self.remains, Depth::Deep)),
            Phase::Waking { .. } | Phase::Fitting { .. } | Phase::Idle | Phase::Saving { .. } => None,
        }
    }

    /// The program runs: it says that it is there by taking the bell.
    pub(crate) fn wake(&mut self, pid: Pid, now: Instant) {
        self.pid = Some(pid);
        self.phase = Phase::Waking { until: now + WAKE };
        self.bell = Bell::Rung;
        self.ring();
    }

    fn ring(&self) {
        // A shell that takes nothing is found out by its deadline.
        let _ = send(&self.line, BELL);
    }

    /// When to look again though nothing happened.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let until = match self.phase {
            Phase::Waking { until } | Phase::Fitting { until, .. } | Phase::Saving { until } => Some(until),
            Phase::Idle | Phase::Running(_) | Phase::Dead => None,
        };
        let look = self.look.map(|wait| wait.at);
        until.into_iter().chain(look).min()
    }

    /// The shell has taken something from its line.
    pub(crate) fn taken(&mut self, now: Instant) -> Option<Event> {
        if !self.all_taken() || self.line_taken() {
            return None;
        }
        for _ in 0..LOOKS {
            if let Some(event) = self.see(now) {
                self.look = None;
                return Some(event);
            }
            if matches!(self.phase, Phase::Idle | Phase::Dead) {
                self.look = None;
                return None;
            }
            std::thread::yield_now();
        }
        self.look = Some(Wait { at: now + WAIT_FIRST, next: WAIT_FIRST * 2 });
        None
    }

    /// Whether the shell has read everything that was sent. The kernel tells of a piece that was read before it has
    /// struck the last byte of it off its count, and a piece that waits counts for hundreds.
    fn all_taken(&self) -> bool {
        sys::unread(self.line.as_fd()).unwrap_or(0) <= 1
    }

    /// The shell has all that was sent. Whether that was a line, and only now the bell is rung.
    fn line_taken(&mut self) -> bool {
        if self.bell == Bell::Rung {
            return false;
        }
        self.bell = Bell::Rung;
        self.let_go_on();
        self.ring();
        true
    }

    /// Sends a line while nobody else can read it; the bell follows, at the latest when the shell has it. Who was there
    /// before.
    fn say(&mut self, mut line: Vec<u8>, others: &dyn Fn() -> Vec<Kin>) -> Vec<Kin> {
        let older = self.hush(others);
        self.bell = if older.is_empty() {
            // Nobody else is there, so the bell can come right behind: one wake-up less.
            line.extend(BELL);
            Bell::Rung
        } else {
            Bell::Held
        };
        if let Some(sight) = &mut self.glass {
            sight.renew();
        }
        if send(&self.line, &line).is_err() {
            self.unfit = Some(Unfit::Deaf);
        }
        older
    }

    /// Stops everybody who could read from the line, also those who are born meanwhile. Everybody, as last seen.
    fn hush(&mut self, others: &dyn Fn() -> Vec<Kin>) -> Vec<Kin> {
        let mut all = others();
        let Some(glass) = &self.glass else { return all };
        for _ in 0..HUSHES {
            let awake = all.iter().filter(|kin| !kin.stopped()).filter_map(|kin| Pid::from_raw(kin.pid));
            let stopped = stop(awake.filter(|pid| glass.shared_with(*pid)));
            if stopped.is_empty() {
                break;
            }
            self.stopped.extend(stopped);
            all = others();
        }
        all
    }

    fn let_go_on(&mut self) {
        for pid in self.stopped.drain(..) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
        }
    }

    pub(crate) fn tick(&mut self, now: Instant) -> Option<Event> {
        if let Some(wait) = self.look
            && now >= wait.at
        {
            self.look = None;
            if !self.all_taken() {
                self.note_begun(now);
                self.make_room(now);
                return None;
            }
            if self.line_taken() {
                return None;
            }
            if let Some(event) = self.see(now) {
                return Some(event);
            }
            if wait.next <= WAIT_LAST {
                self.look = Some(Wait { at: now + wait.next, next: wait.next * 2 });
            } else if !matches!(self.phase, Phase::Idle | Phase::Dead) {
                // Somebody else took the bell.
                self.ring();
            }
        }
        match &self.phase {
            Phase::Waking { until } | Phase::Fitting { until, .. } if now >= *until => {
                self.phase = Phase::Dead;
                Some(Event::Unusable(Unusable::Silent))
            }
            Phase::Saving { until } if now >= *until => {
                self.unfit = Some(Unfit::Stuck);
                self.phase = Phase::Idle;
                Some(Event::Saved(self.waiting.take()))
            }
            _ => None,
        }
    }

    /// A command that has begun needs its names no longer.
    fn note_begun(&mut self, now: Instant) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.begun || matches!(self.glass, Some(Sight::Told(_))) {
            return;
        }
        if self.glass.as_ref().is_some_and(|glass| glass.look() == Look::Inside) {
            running.begun = true;
            if let Some(site) = &self.site {
                running.order.forget(site);
            }
        } else {
            self.look = Some(Wait { at: now + BEGUN, next: BEGUN });
        }
    }

    /// A state that is larger than its queue would wait in it.
    fn make_room(&mut self, now: Instant) {
        if self.saves() {
            self.drain();
            self.look = Some(Wait { at: now + ROOM, next: ROOM });
        }
    }

    /// One look. It counts only when the shell has everything: one that has not woken for its line yet still waits.
    fn see(&mut self, now: Instant) -> Option<Event> {
        if !self.all_taken() {
            return None;
        }
        if matches!(self.phase, Phase::Waking { .. }) {
            return self.first_look(now);
        }
        let code = self.idle_code()?;
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Fitting { script, .. } => {
                if let Some(site) = &self.site {
                    site.remove(&script);
                }
                self.note_cwd();
                Some(Event::Ready)
            }
            Phase::Running(running) => {
                self.note_cwd();
                let glass = self.glass.as_ref().filter(|_| running.order.script.pipes == Pipes::Told);
                self.pipes = glass.and_then(|glass| glass.variable(script::PIPES)).unwrap_or_default();
                let (command, since, effect) = (running.order.command, running.since, running.effect);
                self.spent = Some(running.order);
                Some(Event::Returned { code, command, since, older: running.older, effect })
            }
            Phase::Saving { .. } => {
                self.drain();
                Some(Event::Saved(self.waiting.take()))
            }
            other @ (Phase::Waking { .. } | Phase::Idle | Phase::Dead) => {
                self.phase = other;
                None
            }
        }
    }

    fn first_look(&mut self, now: Instant) -> Option<Event> {
        let pid = self.pid?;
        if self.glass.is_none() {
            let inode = rustix::fs::readlink(format!("/proc/{}/fd/0", pid.as_raw_nonzero()), Vec::new());
            let inode = inode.ok().and_then(|link| {
                let text = link.into_string().ok()?;
                text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
            });
            self.glass = Some(match inode.map(|inode| Glass::new(pid, inode, self.names.take())) {
                Some(Ok(glass)) => Sight::Seen(glass),
                // It can still be asked.
                Some(Err(_)) | None => Sight::Told(Plain::new(pid, inode)),
            });
        }
        match self.glass.as_ref()? {
            Sight::Seen(glass) if matches!(glass.look(), Look::Idle { .. }) => {}
            Sight::Told(plain) if plain.waits() => {}
            Sight::Seen(_) | Sight::Told(_) => return None,
        }
        match self.fit(now) {
            // A shell that is gone is told of by its end.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => None,
            Err(_) => self.give_up(Unusable::NoFolder),
        }
    }

    /// The status that the last command left, once the shell is back.
    fn idle_code(&mut self) -> Option<i32> {
        let next = match self.glass.as_mut()? {
            Sight::Seen(glass) => {
                let Look::Idle { code } = glass.look() else { return None };
                return Some(code);
            }
            Sight::Told(_) => {
                self.drain();
                let Some(Sight::Told(plain)) = &mut self.glass else { return None };
                plain.next()
            }
        };
        match next {
            Ok(Next::Idle { code }) => Some(code),
            Ok(Next::Ask(number)) => {
                let queue = self.site.as_ref().map(|site| site.path(STATE_QUEUE))?;
                // A shell that takes nothing is found out by its deadline, or by its end.
                let _ = send(&self.line, &plain::ask(&number, &queue));
                None
            }
            Ok(Next::Wait) | Err(_) => None,
        }
    }

    /// Takes what the shell said of itself so far.
    pub(crate) fn drain(&mut self) {
        let mut buffer = [0; DRAIN_BYTES];
        while let Some(queue) = &self.saved {
            match rustix::io::read(queue, &mut buffer) {
                Ok(length) if length > 0 => self.take_state(&buffer[..length]),
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// The last state that was said whole.
    pub(crate) fn saved_state(&self) -> &[u8] {
        &self.state.whole
    }

    pub(crate) fn manner(&self) -> Manner {
        self.glass.as_ref().map_or(Manner::Seen, Sight::manner)
    }

    fn give_up(&mut self, reason: Unusable) -> Option<Event> {
        self.phase = Phase::Dead;
        Some(Event::Unusable(reason))
    }

    fn fit(&mut self, now: Instant) -> Result<(), Errno> {
        if self.told_as.take().is_some_and(|manner| manner != self.manner()) {
            // What one kind of shell says of itself, another would stumble over.
            self.state.whole = Vec::new();
        }
        let site = self.site.as_ref().ok_or(Errno::NOENT)?;
        let name = site::fresh()?;
        let (text, way) = match &self.glass {
            Some(Sight::Told(_)) => {
                // They stay for the next shell in this one's place.
                let queue = site.path(STATE_QUEUE);
                for (name, text) in [
                    (plain::SAVE_SCRIPT, plain::save(&queue)),
                    (plain::FAREWELL_SCRIPT, plain::farewell(&queue)),
                ] {
                    match site.write(name, &text) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error),
                    }
                }
                (plain::fit(&self.state.whole, &site.path(plain::FAREWELL_SCRIPT)), glass::Way::Command)
            }
            Some(Sight::Seen(_)) | None => {
                (script::fit(&self.state.whole, &site.path(FAREWELL_SCRIPT)), glass::Way::Dot)
            }
        };
        site.write(&name, &text)?;
        let line = script::call(way, &site.path(&name), 0, script::ErrorTrap::None);
        self.phase = Phase::Fitting { until: now + WAKE, script: name };
        // Nobody else has this line yet.
        self.bell = Bell::Held;
        if let Some(sight) = &mut self.glass {
            sight.renew();
        }
        send(&self.line, &line)
    }

    /// Takes the folder, with what the shell runs for the keeper in it.
    pub(crate) fn settle(&mut self, site: Site) -> Result<(), Errno> {
        let queue = site.path(STATE_QUEUE);
        site.write(SAVE_SCRIPT, &script::save(&queue, &site.path(FAREWELL_SCRIPT)))?;
        site.write(FAREWELL_SCRIPT, &script::farewell(&queue))?;
        site.put_by()?;
        self.saved = Some(site.queue(STATE_QUEUE, site::Side::Both)?);
        self.site = Some(site);
        Ok(())
    }

    pub(crate) fn take_state(&mut self, bytes: &[u8]) {
        match &mut self.glass {
            Some(Sight::Told(plain)) => plain.hear(bytes, &mut self.state),
            Some(Sight::Seen(_)) | None => self.state.take(bytes),
        }
    }

    fn note_cwd(&mut self) {
        if let Some(cwd) = self.pid.and_then(folder_of) {
            self.cwd = cwd;
        }
    }

    fn obstacle(&self) -> Option<Unfit> {
        match self.glass.as_ref().map(Sight::way)? {
            Ok(_) => None,
            Err(Obstacle::NoExec) => Some(Unfit::NoExec),
            Err(Obstacle::Restricted) => Some(Unfit::Restricted),
            Err(Obstacle::Shadowed) => Some(Unfit::Shadowed),
            Err(Obstacle::Trapped) => Some(Unfit::Trapped),
        }
    }

    pub(crate) fn is_saving(&self) -> bool {
        matches!(self.phase, Phase::Saving { .. })
    }

    /// Whether it says its state: line by line, of which nobody needs to hear before it is done.
    pub(crate) fn saves(&self) -> bool {
        matches!((&self.phase, &self.glass), (Phase::Saving { .. }, Some(Sight::Seen(_))))
    }

    /// Whether a command can be given at once.
    pub(crate) fn idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.waiting.is_none()
    }

    pub(crate) fn wait(&mut self, order: Order) {
        self.waiting = Some(order);
    }

    pub(crate) fn take_waiting(&mut self) -> Option<Order> {
        self.waiting.take()
    }

    /// What can be learnt about the program before it is ready, and takes as long as it does.
    pub(crate) fn look_ahead(&mut self) {
        self.names = self.pid.and_then(Names::of);
    }

    /// Clears away what the last command needed, once its end is told.
    pub(crate) fn clear_away(&mut self) {
        if let (Some(order), Some(site)) = (self.spent.take(), &self.site) {
            order.forget(site);
        }
    }

    /// Gives the shell a command. `others` looks up all of the tree but the shell.
    pub(crate) fn give(
        &mut self,
        order: Order,
        others: &dyn Fn() -> Vec<Kin>,
        now: Instant,
    ) -> Result<(), Unfit> {
        let (Some(glass), Some(site)) = (&self.glass, &self.site) else { return Err(Unfit::Deaf) };
        let stand = match glass.stand() {
            Ok(stand) if self.unfit.is_none() => stand,
            Ok(_) | Err(_) => {
                let unfit = self.unfit.or_else(|| self.obstacle()).unwrap_or(Unfit::Deaf);
                order.forget(site);
                self.unfit = Some(unfit);
                return Err(unfit);
            }
        };
        let stdin = order.stdin.as_ref().map_or_else(|| b"/dev/null".to_vec(), |name| site.path(name));
        let (script, out, err) =
            (site.path(&order.script.name), site.path(&order.stdout), site.path(&order.stderr));
        let line = script::run(stand.way, &script, &stdin, &out, &err);
        let effect = if stand.words == glass::Words::Plain { order.script.effect } else { Effect::Any };
        let older = self.say(line, others);
        self.phase = Phase::Running(Running { order, begun: false, since: now, older, effect });
        self.look = Some(Wait { at: now + BEGUN, next: BEGUN });
        Ok(())
    }

    /// Has the shell save its state, after a command that returned `code`.
    pub(crate) fn save(&mut self, code: i32, others: &dyn Fn() -> Vec<Kin>, now: Instant) {
        let (Some(glass), Some(site)) = (&self.glass, &self.site) else { return };
        let way = match glass.way() {
            Ok(way) => way,
            // Saving is what removes the trap.
            Err(Obstacle::Trapped) => glass::Way::Dot,
            Err(_) => {
                self.unfit = self.obstacle();
                return;
            }
        };
        let trap = if glass.traps_errors() { script::ErrorTrap::Remove } else { script::ErrorTrap::None };
        let name = match glass {
            Sight::Seen(_) => SAVE_SCRIPT,
            Sight::Told(_) => plain::SAVE_SCRIPT,
        };
        let line = script::call(way, &site.path(name), code, trap);
        if let Some(Sight::Told(plain)) = &mut self.glass {
            plain.code = code;
        }
        self.phase = Phase::Saving { until: now + SAVE };
        self.look = Some(Wait { at: now + ROOM, next: ROOM });
        self.say(line, others);
    }

    /// The process ended. The end of the command that it was running, if any.
    pub(crate) fn died(&mut self, exit: &Exit, now: Instant) -> Option<Ended> {
        self.look = None;
        self.glass = None;
        self.pid = None;
        self.pipes = Vec::new();
        self.let_go_on();
        let phase = std::mem::replace(&mut self.phase, Phase::Dead);
        if let (Some(site), Some(order)) = (&self.site, self.waiting.take()) {
            order.forget(site);
        }
        let Phase::Running(running) = phase else { return None };
        self.remains = running.older;
        if let Some(site) = &self.site {
            running.order.forget(site);
        }
        let how = How::Died { exit: exit.clone() };
        Some(ended(running.order.command, how, None, running.since, now))
    }
}

/// An end whose streams are not counted yet.
pub(crate) fn ended(command: u64, how: How, cwd: Option<Vec<u8>>, since: Instant, now: Instant) -> Ended {
    Ended {
        command,
        how,
        cwd: cwd.map(crate::codec::Blob),
        stdout: 0,
        stderr: 0,
        milliseconds: u64::try_from(now.duration_since(since).as_millis()).unwrap_or(u64::MAX),
        left: Vec::new(),
    }
}

pub(crate) fn left(kin: &Kin) -> Left {
    let name = std::fs::read(format!("/proc/{}/comm", kin.pid)).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name).to_vec();
    Left { pid: kin.pid.cast_unsigned(), name: crate::codec::Blob(name) }
}

fn send(line: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    loop {
        // A line is far smaller than a socket's buffer, and the shell has read all before it.
        match rustix::net::send(line, bytes, SendFlags::NOSIGNAL) {
            Ok(length) if length == bytes.len() => return Ok(()),
            Ok(_) => return Err(Errno::NOBUFS),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Stops processes, and waits until each stands still. Those that cannot be stopped are left out.
fn stop(pids: impl Iterator<Item = Pid>) -> Vec<Pid> {
    const LOOKS: usize = 2000;
    pids.filter(|pid| {
        let sent = rustix::process::kill_process(*pid, rustix::process::Signal::STOP).is_ok();
        for _ in 0..LOOKS {
            if !sent || crate::tree::kin(*pid).is_none_or(|kin| kin.stopped()) {
                break;
            }
            std::thread::yield_now();
        }
        sent
    })
    .collect()
}

/// Where a process is, as it sees it. A folder that was removed keeps its last name.
fn folder_of(pid: Pid) -> Option<Vec<u8>> {
    const GONE: &[u8] = b" (deleted)";
    let path = format!("/proc/{}/cwd", pid.as_raw_nonzero());
    let link = rustix::fs::readlink(&path, Vec::new()).ok()?.into_bytes();
    if let Some(name) = link.strip_suffix(GONE)
        && rustix::fs::stat(&path).is_ok_and(|stat| stat.st_nlink == 0)
    {
        return Some(name.to_vec());
    }
    Some(link)
}
