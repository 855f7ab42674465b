//! A shell's task: the one owner of a live shell session.
//!
//! It takes commands from its mailbox and events from the shell's keeper, asks the pure machine what they mean, records
//! what the machine wants recorded, and lets its effects out once that is on disk. A command's start is durable before
//! the keeper has it, and its end before anybody is told.

mod asks;
mod input;
mod keep;
mod life;
mod machine;
mod place;
mod whole;

pub(in crate::shells) use asks::narrowed;
use asks::no_command;
use input::Inputs;
use whole::Wholes;

use super::{
    Execution, LIVE_PIECES, checkpoints,
    chores::{self, Chore, Done, Memory},
    command::{Glimpse, Order, ShellCommand, no_agent},
    grip::{Grip, Way},
    memo::{self, ShellMemo, ShellSpec, Target},
    results,
    seat::{self, Found, Launched, Launching, Outfit, Rejoining, Restarting},
    whole::Kept,
};
use crate::{
    Shared,
    lifecycle::{self, Move, Step},
    live::{Inbox, Reply, take},
    pen::{Lost, Pen},
    quota::Slot,
    task::{
        Command,
        clock::Clock,
        errand::{Stays, Taken},
    },
};
use ::place::keeper::{self, CommandInput, RunError, ShellEvent};
use journal::{SessionRow, Space, Writer};
use occupant::{
    Redactor,
    fence::Fence,
    shell::{self, Effect, Finished, Spelling, Stream},
    text::{Plan, Screen, Secrets, Shapes},
};
use protocol::{
    Actor, Body, Budget, Checkpoint, Code, CommandStarted, ErrorRaised, ExecResult, Fault, KeepMode, Level,
    LiveOutput, Notice, RestoredCheckpoint, Seq, Session, SessionCreated, SessionStatusChanged, Status,
    Timestamp, limits,
};
use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

/// Ends that are kept for whoever asks again; older ones are in the journal.
const RECENT: usize = 64;
/// Output that a keeper holds for a server that may come back. What is beyond is let go, and cannot be seen again.
const HELD_BYTES: u64 = 64 * 1024 * 1024;
/// A text that surely fits into an event, however it is spelt there.
const TOLD_BYTES: usize = limits::EVENT_BYTES / 8;
/// Questions about running commands that wait for an answer.
const POLLERS: usize = 1024;

pub(crate) struct ShellTask {
    pen: Pen<Deed>,
    inbox: Inbox,
    spec: ShellSpec,
    memo: ShellMemo,
    secrets: Secrets,
    fence: Fence,
    machine: Option<shell::Shell>,
    link: Link,
    clock: Clock,
    /// Who waits for a command, and what was said of it.
    open: HashMap<u64, Open>,
    recent: VecDeque<Arc<ExecResult>>,
    pollers: Vec<Poller>,
    wholes: Wholes,
    inputs: Inputs,
    /// A command that was begun while there was no way to the shell, and that the shell does not have.
    unsent: Option<u64>,
    joiners: Vec<Reply<Session>>,
    leavers: Vec<Reply<Session>>,
    chore: Option<(Chore, Purpose)>,
    idle_since: Instant,
    stage: Stage,
}

/// What is done to the shell once the record of it is on disk.
pub(super) enum Deed {
    Run { number: u64, stdin: shell::Stdin, text: bytes::Bytes },
    Write { number: u64, bytes: bytes::Bytes },
    CloseInput,
    Signal { signal: i32, whom: shell::Whom },
    Tell(u64, Box<ExecResult>),
}

enum Link {
    None,
    Launching(Launching),
    Up(Box<Up>),
    /// It is there, and the connection to it is not.
    Rejoining(Rejoining, Slot),
}

/// A shell that is there.
struct Up {
    shell: keeper::Shell,
    grip: Grip,
    slot: Slot,
    outfit: Outfit,
    giving: Option<Giving>,
    restarting: Option<Restarting>,
    frozen: bool,
    /// How far the keeper was told that it may forget the running command's streams.
    let_go: [u64; 2],
}

type Giving = Pin<Box<dyn Future<Output = (u64, Result<(), RunError>)> + Send>>;

/// A command whose end has not been told.
struct Open {
    actor: Actor,
    budget: Budget,
    mode: KeepMode,
    text: String,
    since: Instant,
    live: Option<mpsc::Sender<LiveOutput>>,
    reply: Option<oneshot::Sender<Result<ExecResult, Fault>>>,
    yields: Option<Instant>,
    /// The caller knows of it and is gone: it must not be forgotten while it waits.
    acknowledged: bool,
    /// The event that has its text as it is.
    told_at: Option<Seq>,
    /// What its result says beside.
    hint: Option<String>,
}

struct Poller {
    command: u64,
    until: Instant,
    plan: Option<Box<Plan>>,
    reply: Reply<ExecResult>,
}

/// What a chore is for.
enum Purpose {
    Pause(Reply<Session>),
    Checkpoint(Reply<Checkpoint>),
    Restore(Reply<RestoredCheckpoint>),
    /// A checkpoint before a command that waits for it.
    Before(Box<Order>, Reply<Execution>),
    /// What it says itself.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// The server stops; what runs goes on without it.
    Leaving,
    Over,
}

/// What came first.
enum Heard {
    Durable(Result<(), Lost>),
    Done(Done),
    Command(Command),
    Launched(Result<Launched, Fault>),
    Rejoined(Result<(Found, Outfit), String>),
    Restarted(Result<(), ::place::SpawnError>),
    Given(u64, Result<(), RunError>),
    Shell(Option<ShellEvent>),
    Whole(Option<(u64, std::io::Result<Kept>)>),
    Tick,
}

/// Wakes a stored shell, and serves it for as long as there is something to do.
pub(crate) async fn serve_stored(shared: Arc<Shared>, writer: Writer, row: SessionRow, inbox: Inbox) {
    let spec = match ShellSpec::open(&shared.vault, &row.fixed.spec) {
        Ok(spec) => spec,
        Err(error) => {
            tracing::error!(session = %row.fixed.id, %error, "the shell's options cannot be opened");
            ShellSpec::default()
        }
    };
    let memo = ShellMemo::decode(&row.state.memo);
    let (was_live, written) = (row.state.live, Some(row.state.clone()));
    let pen = Pen::new(shared, writer, row.fixed, row.state, row.first_seq, written);
    let mut task = ShellTask::assemble(pen, inbox, spec, memo);
    if was_live {
        task.recover().await;
    }
    task.run().await;
}

impl ShellTask {
    pub(super) fn assemble(pen: Pen<Deed>, inbox: Inbox, spec: ShellSpec, memo: ShellMemo) -> Self {
        let secrets = seat::secrets(&pen.shared, &pen.fixed, &spec, &memo);
        // They were usable when the shell was opened.
        let own = Fence::new(&spec.allow, &spec.deny).unwrap_or_default();
        let fence = pen.shared.options.shells.fence.clone().and(own);
        Self {
            pen,
            inbox,
            spec,
            memo,
            secrets,
            fence,
            machine: None,
            link: Link::None,
            clock: Clock::new(Instant::now()),
            open: HashMap::new(),
            recent: VecDeque::new(),
            pollers: Vec::new(),
            wholes: Wholes::default(),
            inputs: Inputs::default(),
            unsent: None,
            joiners: Vec::new(),
            leavers: Vec::new(),
            chore: None,
            idle_since: Instant::now(),
            stage: Stage::Serving,
        }
    }

    /// Records the session's birth and starts its shell; `reply` is answered when that is ready.
    pub(super) fn create(&mut self, actor: Actor, slot: Slot, reply: Reply<Session>) {
        let created = SessionCreated {
            kind: self.pen.fixed.kind,
            place: self.pen.fixed.place,
            agent: None,
            agent_version: None,
            model: None,
            name: self.pen.state.name.clone(),
            forked_from: None,
        };
        self.pen.record(actor, created);
        self.joiners.push(reply);
        self.begin(slot);
        self.settle();
    }

    /// Runs until nothing needs it.
    pub(crate) async fn run(mut self) {
        loop {
            let (shared, id) = (&self.pen.shared, self.pen.fixed.id);
            if self.stage == Stage::Over || (self.is_done() && shared.live.leave(id, &mut self.inbox)) {
                let (shared, inbox) = (Arc::clone(shared), take(&mut self.inbox));
                return shared.pass_on(id, inbox, self).await;
            }
            match self.hear().await {
                Heard::Durable(Ok(())) => {}
                Heard::Durable(Err(Lost(why))) => self.lose(&why),
                Heard::Done(done) => self.on_done(done),
                Heard::Command(command) => self.on_command(command).await,
                Heard::Launched(launched) => self.on_launched(launched),
                Heard::Rejoined(found) => self.on_rejoined(found),
                Heard::Restarted(Ok(())) => {}
                Heard::Restarted(Err(error)) => {
                    let why = error.to_string();
                    self.step(|machine, _, out| machine.unstartable(&why, out));
                }
                Heard::Given(number, Err(error)) => self.on_refused(number, error),
                Heard::Given(_, Ok(())) => {}
                Heard::Shell(event) => self.on_event(event),
                Heard::Whole(kept) => self.on_whole(kept),
                Heard::Tick => self.on_tick(),
            }
            self.settle();
        }
    }

    async fn hear(&mut self) -> Heard {
        let readable = self.pen.has_room() && !self.wholes.is_behind();
        let deadline = self.deadline();
        // A shell of this machine is found again in a moment, or is gone.
        let finding = matches!(self.link, Link::Rejoining(..)) && self.spec.target == Target::Local;
        let busy = self.chore.is_some() || finding;
        tokio::select! {
            biased;
            changed = self.pen.changed() => Heard::Durable(changed),
            done = run(&mut self.chore) => Heard::Done(done),
            heard = hear_link(&mut self.link, readable) => heard,
            kept = self.wholes.progress() => Heard::Whole(kept),
            Some(command) = self.inbox.recv(), if !busy => Heard::Command(command),
            () = until(deadline) => Heard::Tick,
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.link, Link::None)
            && self.chore.is_none()
            && self.open.is_empty()
            && self.pollers.is_empty()
            && self.wholes.is_settled()
            && self.pen.is_settled()
    }

    fn now(&self) -> Timestamp {
        self.clock.read(Instant::now())
    }

    /// The moment at which something has to be done although nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let machine = self.machine.as_ref().and_then(shell::Shell::deadline);
        let machine = machine.and_then(|at| self.clock.when(at, now));
        let yields = self.open.values().filter_map(|open| open.yields);
        let pollers = self.pollers.iter().map(|poller| poller.until);
        machine.into_iter().chain(yields).chain(pollers).chain(self.idle_deadline()).min()
    }

    /// A shell that runs something is never idle, unless it is frozen.
    fn idle_deadline(&self) -> Option<Instant> {
        let Link::Up(up) = &self.link else { return None };
        let resting = up.frozen || self.open.is_empty();
        let idle = self.pen.shared.options.shells.idle;
        (resting && self.chore.is_none() && self.stage == Stage::Serving).then(|| self.idle_since + idle)
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        if self.idle_deadline().is_some_and(|deadline| deadline <= now) {
            let secs = self.pen.shared.options.shells.idle.as_secs();
            return if matches!(&self.link, Link::Up(up) if up.frozen) {
                self.stop(
                    Move::Rest,
                    Some(format!("paused for {secs} s: its shell was stopped")),
                    Stays::Snapshot,
                );
            } else {
                self.stop(Move::End, Some(format!("idle for {secs} s")), Stays::Snapshot);
            };
        }
        self.step(|machine, now, out| machine.tick(now, out));
        let due: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| open.yields.is_some_and(|at| at <= now))
            .map(|(command, _)| *command)
            .collect();
        for command in due {
            self.tell_so_far(command);
        }
        let (due, later) = self.pollers.drain(..).partition(|poller| poller.until <= now);
        self.pollers = later;
        let due: Vec<Poller> = due;
        for poller in due {
            let answer = self.so_far(poller.command).ok_or_else(|| no_command(poller.command));
            self.pen.answer(poller.reply, answer.map(|result| narrowed(result, poller.plan.as_deref())));
        }
    }
}

impl Open {
    fn taken_up(exec: &shell::SavedExec, secrets: &Secrets) -> Self {
        Self {
            actor: Actor::System,
            budget: exec.budget.clone(),
            mode: mode_of(&exec.budget),
            text: secrets.text(&String::from_utf8_lossy(&exec.text)),
            since: Instant::now(),
            live: None,
            reply: None,
            yields: None,
            acknowledged: true,
            told_at: None,
            hint: None,
        }
    }
}

fn mode_of(budget: &Budget) -> KeepMode {
    budget.keep.as_ref().map_or(KeepMode::All, |keep| keep.mode)
}

/// Waits for the chore; for ever when there is none. Cancel-safe.
async fn run(chore: &mut Option<(Chore, Purpose)>) -> Done {
    match chore {
        Some((chore, _)) => chore.await,
        None => std::future::pending().await,
    }
}

async fn hear_link(link: &mut Link, readable: bool) -> Heard {
    match link {
        Link::None => std::future::pending().await,
        Link::Launching(launching) => Heard::Launched(launching.await),
        Link::Rejoining(rejoining, _) => Heard::Rejoined(rejoining.await),
        Link::Up(up) => {
            let Up { shell, giving, restarting, .. } = &mut **up;
            tokio::select! {
                biased;
                restarted = maybe(restarting) => {
                    *restarting = None;
                    Heard::Restarted(restarted)
                }
                (number, given) = maybe(giving) => {
                    *giving = None;
                    Heard::Given(number, given)
                }
                event = shell.next(), if readable => Heard::Shell(event),
            }
        }
    }
}

async fn maybe<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
