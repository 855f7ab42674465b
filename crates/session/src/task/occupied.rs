//! The occupant's side of a session task: nobody, somebody on the way, or a process with its machine.
//! Everything the task can hear from there comes out of one cancel-safe `hear`.

use super::{GRACE, clock::Clock, launch::Launched};
use crate::quota::Slot;
use occupant::{Acp, Redactor};
use place::{Chunk, Exit, Hold, Process, Signal, Spawned, TakenUp, keeper::EgressRefused};
use protocol::{Fault, limits};
use std::{collections::VecDeque, future::Future, path::PathBuf, pin::Pin, time::Duration};
use tokio::{sync::Semaphore, time::Instant};

/// How long a dead process's output is still waited for: a child of its own may hold the pipe open for ever.
const DRAIN: Duration = Duration::from_millis(200);
const INPUT_END_GRACE: Duration = Duration::from_millis(limits::INPUT_END_GRACE_MS);
/// Refused connections of one process that are told; a program that tries for ever fills no journal.
const REFUSALS: u32 = 200;
/// Between two looks at a workspace's size.
pub(super) const DISK_BUSY: Duration = Duration::from_secs(limits::DISK_BUSY_SECS);
const DISK_IDLE: Duration = Duration::from_secs(limits::DISK_IDLE_SECS);
/// Output that is recorded and still with the keeper, at most. Its spool holds a line of any size beside it.
const ACKNOWLEDGE_BYTES: u64 = 64 * 1024;
const _: () = assert!(limits::LINE_BYTES as u64 + 2 * ACKNOWLEDGE_BYTES < place::SPOOL_BYTES);
/// What an `occupant_exited` event tells of stderr.
const STDERR_TAIL: usize = 4 * 1024;

pub(super) type Launching = Pin<Box<dyn Future<Output = Result<Launched, Fault>> + Send>>;

pub(super) enum Occupied {
    Empty,
    Launching(Launching),
    Live(Box<LiveOccupant>),
}

/// Why a process was asked to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum After {
    /// The session rests and can be resumed; evicted, its files rest in the snapshot alone.
    Rest { reason: Option<String>, evict: bool },
    /// The session has ended.
    End,
    /// The session is being removed.
    Remove,
}

impl After {
    /// Of two wishes the one that goes further.
    fn or_further(self, later: Self) -> Self {
        match (self, later) {
            (Self::Remove, _) | (_, Self::Remove) => Self::Remove,
            (Self::End, _) | (_, Self::End) => Self::End,
            (Self::Rest { .. }, later @ Self::Rest { .. }) => later,
        }
    }
}

#[derive(Debug)]
pub(super) struct Gone {
    pub(super) exit: Exit,
    /// None when nobody had asked.
    pub(super) after: Option<After>,
}

impl Gone {
    pub(super) fn describe(&self) -> String {
        match (self.exit.code, self.exit.signal) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "was lost with its keeper".to_owned(),
        }
    }
}

pub(super) enum Heard {
    Launched(Box<Result<Launched, Fault>>),
    Stdout(Chunk),
    /// It lives and can say nothing more.
    StdoutClosed,
    /// Something in its sandbox was refused a connection.
    Refused(EgressRefused),
    /// Its workspace takes more than it may.
    OverDisk {
        used: u64,
        limit: u64,
    },
    /// Something that only concerns this side.
    Nothing,
    Gone(Gone),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshake,
    Ready,
    /// Standing still, to go on where it was.
    Frozen,
}

pub(super) struct LiveOccupant {
    pub(super) acp: Acp,
    pub(super) process: Process,
    /// Dropping it ends the process and everything that it started.
    pub(super) hold: Hold,
    phase: Phase,
    leaving: Option<Leaving>,
    exit: Option<(Exit, Instant)>,
    stdout: Stdout,
    stderr_open: bool,
    /// Whether refused connections may still be told of.
    refusals: Refusals,
    stderr: Ring,
    redactor: Redactor,
    disk: Option<Disk>,
    /// Standing still because the disk is nearly full.
    halted: bool,
    /// Output up to here is, or will be, acknowledged to the place.
    acknowledged: u64,
    _slot: Slot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stdout {
    Open,
    /// Closed since then; most often the process ends at the same moment, and its exit says more.
    Closed(Instant),
    /// Closed, and the task has been told.
    Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusals {
    Told(u32),
    Over,
}

struct Leaving {
    after: After,
    /// What comes next when it is still there at this moment.
    next: Urge,
    at: Instant,
}

/// Its input has ended; these follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urge {
    Terminate,
    Kill,
}

impl Occupied {
    /// A process that has just been started.
    pub(super) fn live(acp: Acp, spawned: Spawned, slot: Slot, redactor: Redactor) -> Self {
        let Spawned { process, hold } = spawned;
        Self::Live(Box::new(LiveOccupant::new(acp, process, hold, slot, redactor)))
    }

    /// A process that outlived its server.
    pub(super) fn taken_up(acp: Acp, found: TakenUp, slot: Slot, redactor: Redactor) -> Self {
        let TakenUp { process, hold, frozen, .. } = found;
        let mut live = LiveOccupant::new(acp, process, hold, slot, redactor);
        live.phase = if frozen { Phase::Frozen } else { Phase::Ready };
        live.acknowledged = live.acp.consumed();
        Self::Live(Box::new(live))
    }

    /// The next thing from there; pending for ever when there is nobody. `readable` is false while the
    /// journal has enough to do: then the agent's pipe fills and the agent waits.
    pub(super) async fn hear(&mut self, readable: bool) -> Heard {
        match self {
            Self::Empty => std::future::pending().await,
            Self::Launching(launching) => Heard::Launched(Box::new(launching.await)),
            Self::Live(live) => live.hear(readable).await,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Live(live) if live.phase == Phase::Ready && live.leaving.is_none())
    }

    pub(super) fn is_frozen(&self) -> bool {
        matches!(self, Self::Live(live) if live.phase == Phase::Frozen && live.leaving.is_none())
    }

    /// The process was asked to go and is not gone yet.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Live(live) if live.leaving.is_some())
    }

    /// It leaves because the session ends.
    pub(super) fn leaves_for_good(&self) -> bool {
        matches!(self, Self::Live(live) if live.leaving.as_ref().is_some_and(|leaving| matches!(leaving.after, After::End | After::Remove)))
    }

    /// Asks the process to end, by the end of its input at first; it is told to terminate when that is not enough, and
    /// killed when it has not gone after a grace time. A launch under way is dropped, and its process with it.
    pub(super) fn stop(&mut self, after: After) {
        match self {
            Self::Empty => {}
            Self::Launching(_) => *self = Self::Empty,
            Self::Live(live) => {
                live.process.stdin.close();
                live.thaw();
                live.go_on();
                let (next, at) = (Urge::Terminate, Instant::now() + INPUT_END_GRACE);
                // Nothing takes an end back, and asking again gives no more time.
                live.leaving = Some(match live.leaving.take() {
                    None => Leaving { after, next, at },
                    Some(leaving) => Leaving { after: leaving.after.or_further(after), ..leaving },
                });
            }
        }
    }

    pub(super) fn kill(&mut self, after: After) {
        self.stop(after);
        if let Self::Live(live) = self {
            live.process.handle.kill();
        }
    }

    pub(super) fn deadline(&self, clock: &Clock) -> Option<Instant> {
        let Self::Live(live) = self else { return None };
        let machine = live.acp.deadline().and_then(|at| clock.when(at, Instant::now()));
        let kill = live.leaving.as_ref().filter(|_| live.exit.is_none()).map(|leaving| leaving.at);
        let drain = live.exit.as_ref().map(|(_, at)| *at + DRAIN);
        let closed = match live.stdout {
            Stdout::Closed(at) if live.exit.is_none() => Some(at + DRAIN),
            Stdout::Open | Stdout::Closed(_) | Stdout::Told => None,
        };
        [machine, kill, drain, closed].into_iter().flatten().min()
    }

    /// What a passed deadline means here, if it was one of ours.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<Heard> {
        let Self::Live(live) = self else { return None };
        if let Some((exit, at)) = live.exit {
            return (at + DRAIN <= now).then(|| live.gone(exit));
        }
        if let Stdout::Closed(at) = live.stdout
            && at + DRAIN <= now
        {
            live.stdout = Stdout::Told;
            return live.leaving.is_none().then_some(Heard::StdoutClosed);
        }
        if let Some(leaving) = &mut live.leaving
            && leaving.at <= now
        {
            match leaving.next {
                Urge::Terminate => {
                    live.process.handle.signal(Signal::Terminate);
                    (leaving.next, leaving.at) = (Urge::Kill, now + GRACE.saturating_sub(INPUT_END_GRACE));
                }
                Urge::Kill => {
                    live.process.handle.kill();
                    leaving.at = now + GRACE;
                }
            }
        }
        None
    }
}

impl LiveOccupant {
    fn new(acp: Acp, process: Process, hold: Hold, slot: Slot, redactor: Redactor) -> Self {
        let sandboxed = hold.keeper().in_sandbox();
        Self {
            acp,
            process,
            hold,
            phase: Phase::Handshake,
            leaving: None,
            exit: None,
            stdout: Stdout::Open,
            stderr_open: true,
            refusals: if sandboxed { Refusals::Told(0) } else { Refusals::Over },
            stderr: Ring::default(),
            redactor,
            disk: None,
            halted: false,
            acknowledged: 0,
            _slot: slot,
        }
    }

    pub(super) fn ready(&mut self) {
        if self.phase == Phase::Handshake {
            self.phase = Phase::Ready;
        }
    }

    /// How far its output is in the events appended by now, when that is so much further than the last time that it
    /// is worth the keeper's while. Nothing depends on the rest: whoever takes the process up reads on from the offset
    /// in the memo, and a keeper that is told after every line is woken for each of them, while the agent works.
    pub(super) fn newly_consumed(&mut self) -> Option<u64> {
        let consumed = self.acp.consumed();
        (consumed >= self.acknowledged + ACKNOWLEDGE_BYTES).then(|| {
            self.acknowledged = consumed;
            consumed
        })
    }

    /// Did it ever get through its handshake?
    pub(super) fn is_ready(&self) -> bool {
        self.phase != Phase::Handshake
    }

    pub(super) fn can_configure(&self) -> bool {
        self.phase == Phase::Ready && self.leaving.is_none() && self.exit.is_none()
    }

    pub(super) fn can_prompt(&self) -> bool {
        self.can_configure() && !self.acp.is_busy()
    }

    pub(super) fn into_hold(self) -> Hold {
        self.hold
    }

    /// Lets the process go on without this server.
    pub(super) fn leave(self) {
        self.hold.leave();
    }

    /// It stands still now.
    pub(super) fn frozen(&mut self) {
        if self.phase == Phase::Ready {
            self.phase = Phase::Frozen;
        }
    }

    /// Lets it go on. The keeper does what it is told in order, so that input sent from now on finds it awake.
    pub(super) fn thaw(&mut self) {
        if self.phase == Phase::Frozen {
            self.phase = Phase::Ready;
            self.thaw_now();
        }
    }

    /// Neither paused nor stopped for want of room.
    pub(super) fn runs(&self) -> bool {
        self.phase != Phase::Frozen && !self.halted
    }

    /// Is there anything to stop? A paused one stands still already.
    pub(super) fn stand_still(&mut self) -> bool {
        let running = self.phase == Phase::Ready && !self.halted && self.hold.keeper().can_freeze();
        self.halted |= running;
        running
    }

    /// Was it stopped for want of room? Then it goes on.
    pub(super) fn go_on(&mut self) -> bool {
        let halted = std::mem::take(&mut self.halted);
        if halted && self.phase == Phase::Ready {
            self.thaw_now();
        }
        halted
    }

    fn thaw_now(&self) {
        let thawed = self.hold.thaw();
        tokio::spawn(async move {
            if let Err(error) = thawed.await {
                tracing::error!(%error, "a frozen process could not be thawed");
            }
        });
    }

    pub(super) fn watch_disk(&mut self, folder: PathBuf, limit: u64) {
        self.disk = Some(Disk { look: look(folder.clone(), limit, DISK_BUSY), folder, limit });
    }

    pub(super) fn logs(&self) -> (String, u64) {
        (self.redactor.text(&self.stderr.text()).into_owned(), self.stderr.dropped)
    }

    pub(super) fn stderr_tail(&self) -> Option<String> {
        let (text, _) = self.logs();
        if text.is_empty() {
            return None;
        }
        let mut start = text.len().saturating_sub(STDERR_TAIL);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        Some(text[start..].to_owned())
    }

    async fn hear(&mut self, readable: bool) -> Heard {
        loop {
            if let Some((exit, _)) = self.exit
                && self.stdout != Stdout::Open
                && !self.stderr_open
            {
                return self.gone(exit);
            }
            tokio::select! {
                chunk = self.process.stdout.next(), if self.stdout == Stdout::Open && readable => match chunk {
                    Some(chunk) => return Heard::Stdout(chunk),
                    None => {
                        self.stdout = Stdout::Closed(Instant::now());
                        // The next round of the task's loop sets the deadline that bounds the wait.
                        return Heard::Nothing;
                    }
                },
                chunk = self.process.stderr.next(), if self.stderr_open => match chunk {
                    Some(chunk) => {
                        self.stderr.push(&chunk.bytes);
                        // The newest stay with the keeper: the next server reads them again.
                        let end = chunk.offset + chunk.bytes.len() as u64;
                        self.process.stderr.ack(end.saturating_sub(limits::STDERR_BYTES as u64));
                        return Heard::Nothing;
                    }
                    None => self.stderr_open = false,
                },
                used = looked(&mut self.disk), if self.exit.is_none() && self.leaving.is_none() => {
                    let Some(disk) = &mut self.disk else { continue };
                    let pace = if self.acp.is_busy() { DISK_BUSY } else { DISK_IDLE };
                    disk.look = look(disk.folder.clone(), disk.limit, pace);
                    if used > disk.limit {
                        return Heard::OverDisk { used, limit: disk.limit };
                    }
                }
                refused = self.hold.egress_refused(), if self.refusals != Refusals::Over => {
                    self.refusals = match (&refused, self.refusals) {
                        (Some(_), Refusals::Told(count)) if count < REFUSALS => Refusals::Told(count + 1),
                        _ => Refusals::Over,
                    };
                    match refused {
                        Some(refused) => return Heard::Refused(refused),
                        None => return Heard::Nothing,
                    }
                }
                exit = self.process.handle.wait(), if self.exit.is_none() => {
                    self.exit = Some((exit, Instant::now()));
                    // The deadline that bounds the draining is set by the next round of the task's loop.
                    return Heard::Nothing;
                }
                // Dead, and its output may not be read now: the next round of the task's loop decides.
                () = std::future::pending(), if !readable || self.exit.is_some() => {}
            }
        }
    }

    fn gone(&mut self, exit: Exit) -> Heard {
        Heard::Gone(Gone { exit, after: self.leaving.take().map(|leaving| leaving.after) })
    }
}

/// A workspace's size, looked at now and then.
struct Disk {
    folder: PathBuf,
    limit: u64,
    look: Pin<Box<dyn Future<Output = u64> + Send>>,
}

/// Walks over workspaces at once: they are there to be stopped, not to keep the disk busy.
static WALKS: Semaphore = Semaphore::const_new(2);

fn look(folder: PathBuf, limit: u64, after: Duration) -> Pin<Box<dyn Future<Output = u64> + Send>> {
    Box::pin(async move {
        tokio::time::sleep(after).await;
        let _walk = WALKS.acquire().await;
        // A walk that broke is made again.
        tokio::task::spawn_blocking(move || place::usage(&folder, limit)).await.unwrap_or(0)
    })
}

async fn looked(disk: &mut Option<Disk>) -> u64 {
    match disk {
        Some(disk) => (&mut disk.look).await,
        None => std::future::pending().await,
    }
}

/// The newest bytes of stderr.
#[derive(Debug, Default)]
struct Ring {
    bytes: VecDeque<u8>,
    dropped: u64,
}

impl Ring {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(limits::STDERR_BYTES);
        self.bytes.drain(..over);
        self.dropped += over as u64;
    }

    fn text(&self) -> String {
        let (front, back) = self.bytes.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_bytes() {
        let mut ring = Ring::default();
        ring.push(&vec![b'a'; limits::STDERR_BYTES]);
        ring.push(b"end");
        assert_eq!(ring.bytes.len(), limits::STDERR_BYTES);
        assert_eq!(ring.dropped, 3);
        assert!(ring.text().ends_with("aend"));
    }
}
