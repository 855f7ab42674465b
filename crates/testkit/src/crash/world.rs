//! The people around a crashing server: followers that reconnect, writers that repeat themselves, and one who
//! pauses, cancels, opens and ends sessions. They share a [`World`] and report what they were told.

use super::ledger::{Answered, Ledger, Prompt};
use crate::{Http, Opened, Reply, Rng, limits};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// Between two attempts to reach a server that is being killed and started.
const RETRY: Duration = Duration::from_millis(3);
/// Sessions that the mover has open at most.
const MOVED_SESSIONS: usize = 40;

/// What the people may do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The server is down, or up and being checked.
    Down,
    /// Everybody works.
    Open,
    /// Followers read on, writers wait.
    Quiet,
}

/// One session, its ledger and its name.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) id: String,
    ledger: Mutex<Ledger>,
}

impl Watched {
    pub(super) fn new(id: String) -> Self {
        Self { id, ledger: Mutex::default() }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a session of the mover's must look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Its creation was acknowledged.
    There,
    /// Its end was acknowledged.
    Ended,
    /// Its end was asked for and not answered.
    Ending,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) http: Http,
    pub(super) sessions: Vec<Watched>,
    pub(super) phase: watch::Sender<Phase>,
    /// Events seen by all followers together, and a bell for each.
    pub(super) seen: AtomicU64,
    pub(super) bell: Notify,
    pub(super) resent: AtomicU64,
    /// Counted up before each kill: what breaks within one life of the server is the server's fault.
    lives: AtomicU64,
    violations: Mutex<Vec<String>>,
    moved: Mutex<BTreeMap<String, Known>>,
}

impl World {
    pub(super) fn new(http: Http, sessions: Vec<Watched>) -> Self {
        Self {
            http,
            sessions,
            phase: watch::Sender::new(Phase::Down),
            seen: AtomicU64::new(0),
            bell: Notify::new(),
            resent: AtomicU64::new(0),
            lives: AtomicU64::new(0),
            violations: Mutex::default(),
            moved: Mutex::default(),
        }
    }

    pub(super) fn violation(&self, text: String) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        self.bell.notify_waiters();
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn moved(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a phase; the answer is the life of the server that it was seen in.
    async fn enter(&self, wanted: &[Phase]) -> u64 {
        loop {
            // The sender lives as long as the world, so this waits and never fails.
            let _ = self.phase.subscribe().wait_for(|phase| wanted.contains(phase)).await;
            // In this order: the phase changes before the count, so a life read here is not yet over.
            let life = self.life();
            if wanted.contains(&*self.phase.borrow()) {
                return life;
            }
        }
    }

    /// The server is about to be killed.
    pub(super) fn falls(&self) {
        self.phase.send_replace(Phase::Down);
        self.lives.fetch_add(1, Ordering::SeqCst);
    }

    fn life(&self) -> u64 {
        self.lives.load(Ordering::SeqCst)
    }

    /// Something broke off that began in this life. A kill since then explains it.
    fn broke(&self, life: u64, what: impl FnOnce() -> String) {
        if self.life() == life {
            self.violation(format!("{} on a live server", what()));
        }
    }

    /// Waits until followers have seen this many events in all.
    pub(super) async fn wait_seen(&self, target: u64) {
        loop {
            let bell = self.bell.notified();
            if self.seen.load(Ordering::Relaxed) >= target {
                return;
            }
            bell.await;
        }
    }
}

/// Follows one session for ever, reconnecting with the last id as a browser would.
pub(super) async fn follower(world: &World, session: &Watched) {
    loop {
        let life = world.enter(&[Phase::Open, Phase::Quiet]).await;
        let after = session.ledger().last_seen();
        let mut stream = match world.http.follow(&session.id, after).await {
            Ok(stream) => stream,
            Err(error) => {
                world.broke(life, || format!("following failed: {error:#}"));
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        loop {
            let frame = match stream.next_unbounded().await {
                Ok(Some(frame)) => frame,
                ended => {
                    world.broke(life, || format!("a follower's stream ended: {ended:?}"));
                    break;
                }
            };
            let Some(seq) = frame.id.as_deref().and_then(|id| id.parse().ok()) else { continue };
            let told = session.ledger().saw(seq, frame.data);
            if let Err(rule) = told {
                world.violation(format!("session {}: {rule}", session.id));
                return;
            }
            world.seen.fetch_add(1, Ordering::Relaxed);
            world.bell.notify_waiters();
        }
    }
}

/// Sends prompts to one session for ever; repeats those that were not answered.
pub(super) async fn writer(world: &World, session: &Watched, name: &str, mut rng: Rng) {
    for count in 0_u64.. {
        let life = world.enter(&[Phase::Open]).await;
        let unanswered = own_prompts(session, name, |prompt| prompt.answered == Answered::Unknown);
        let again = if let Some(id) = unanswered.into_iter().next() {
            Some(id)
        } else if rng.chance(15) {
            rng.pick(&own_prompts(session, name, |_| true)).cloned()
        } else {
            None
        };
        let id = match again {
            Some(id) => {
                world.resent.fetch_add(1, Ordering::Relaxed);
                session.ledger().sends_again(&id);
                id
            }
            None => new_prompt(session, format!("{name}-{count}"), &mut rng),
        };
        send(world, session, &id, Sending { life, hang_up: rng.chance(25) }).await;
    }
}

fn own_prompts(session: &Watched, name: &str, wanted: impl Fn(&Prompt) -> bool) -> Vec<String> {
    let prefix = format!("{name}-");
    let ledger = session.ledger();
    let own = ledger.prompts().iter().filter(|(id, prompt)| id.starts_with(&prefix) && wanted(prompt));
    own.map(|(id, _)| id.clone()).collect()
}

fn new_prompt(session: &Watched, id: String, rng: &mut Rng) -> String {
    let text = match rng.within(0, 10) {
        0..4 => format!("echo {id}"),
        4..7 => format!("stream {} {}", rng.within(1, 120), rng.within(1, 400)),
        7 => "tool".to_owned(),
        8 => format!("sleep {}", rng.within(1, 60)),
        // Over the size that goes into a blob.
        _ => format!("stream 2 {}", rng.within(70_000, 90_000)),
    };
    let on_busy = match rng.within(0, 10) {
        0 => "interrupt",
        1 => "steer",
        2 => "reject",
        _ => "queue",
    };
    session.ledger().sends(id.clone(), Prompt { text, on_busy, answered: Answered::Unknown });
    id
}

struct Sending {
    /// The server's life in which it began.
    life: u64,
    hang_up: bool,
}

/// Sends a prompt and reads its stream to the end, or hangs up on it.
async fn send(world: &World, session: &Watched, id: &str, Sending { life, hang_up }: Sending) {
    let Some(prompt) = session.ledger().prompts().get(id).cloned() else { return };
    let body = json!({"content": prompt.text, "id": id, "onBusy": prompt.on_busy});
    let mut stream = match world.http.message(&session.id, &body).await {
        Ok(Opened::Stream(stream)) => stream,
        Ok(Opened::Refused(reply)) => return refused(world, session, id, &reply),
        Err(error) => {
            world.broke(life, || format!("sending {id} failed: {error:#}"));
            return tokio::time::sleep(RETRY).await;
        }
    };
    note(world, session, id, Answered::Acknowledged);
    if hang_up {
        return;
    }
    let mut last = None;
    loop {
        match stream.next().await {
            Ok(Some(frame)) => last = frame.event,
            Ok(None) if last.as_deref() == Some("done") => return,
            ended => {
                return world.broke(life, || format!("the stream of {id} ended after {last:?}: {ended:?}"));
            }
        }
    }
}

fn refused(world: &World, session: &Watched, id: &str, reply: &Reply) {
    let code =
        reply.json().ok().and_then(|body| body["code"].as_str().map(str::to_owned)).unwrap_or_default();
    match (reply.status, code.as_str()) {
        (409, "busy") | (429, "queue_full" | "rate_limited") => note(world, session, id, Answered::Refused),
        (503, "shutting_down") => {}
        _ => world.violation(format!("prompt {id} got {}: {}", reply.status, reply.text())),
    }
}

fn note(world: &World, session: &Watched, id: &str, answer: Answered) {
    let told = session.ledger().answered(id, answer);
    if let Err(rule) = told {
        world.violation(rule);
    }
}

/// Opens and ends sessions, and pauses, resumes and cancels the watched ones.
pub(super) async fn mover(world: &World, mut rng: Rng) {
    loop {
        world.enter(&[Phase::Open]).await;
        let watched = rng.pick(&world.sessions).map(|session| session.id.clone()).unwrap_or_default();
        let moved: Vec<String> = {
            let moved = world.moved();
            moved.iter().filter(|(_, known)| **known == Known::There).map(|(id, _)| id.clone()).collect()
        };
        match rng.within(0, 10) {
            0..3 if moved.len() < MOVED_SESSIONS => open(world).await,
            0..5 => {
                if let Some(id) = rng.pick(&moved) {
                    end(world, id).await;
                }
            }
            5 | 6 => poke(world, "POST", &format!("/api/sessions/{watched}/pause")).await,
            7 => poke(world, "POST", &format!("/api/sessions/{watched}/resume")).await,
            8 => poke(world, "POST", &format!("/api/sessions/{watched}/cancel")).await,
            _ => poke(world, "GET", &format!("/api/sessions/{watched}")).await,
        }
        tokio::time::sleep(Duration::from_millis(rng.within(1, 40))).await;
    }
}

async fn open(world: &World) {
    let Ok(reply) = world.http.post("/api/sessions", &json!({"agent": "demo"})).await else { return };
    let id = reply.json().ok().and_then(|body| body["session"]["id"].as_str().map(str::to_owned));
    match (reply.status, id) {
        (201, Some(id)) => {
            world.moved().insert(id, Known::There);
        }
        (503, _) => {}
        _ => world.violation(format!("creating a session got {}: {}", reply.status, reply.text())),
    }
}

async fn end(world: &World, id: &str) {
    world.moved().insert(id.to_owned(), Known::Ending);
    let Ok(reply) = world.http.delete(&format!("/api/sessions/{id}")).await else { return };
    match reply.status {
        200 => {
            world.moved().insert(id.to_owned(), Known::Ended);
        }
        503 => {}
        _ => world.violation(format!("ending session {id} got {}: {}", reply.status, reply.text())),
    }
}

/// A call whose refusal is nobody's concern, but whose failure is.
async fn poke(world: &World, method: &str, path: &str) {
    let Ok(reply) = world.http.call(method, path, None).await else { return };
    if !matches!(reply.status, 200 | 400 | 409 | 503) {
        world.violation(format!("{method} {path} got {}: {}", reply.status, reply.text()));
    }
}

/// What the mover was told must still be so.
pub(super) async fn check_moved(world: &World) -> anyhow::Result<()> {
    let moved = world.moved().clone();
    for (id, known) in moved {
        let reply =
            tokio::time::timeout(limits::CALL, world.http.get(&format!("/api/sessions/{id}"))).await??;
        let body = reply.json().unwrap_or(Value::Null);
        let status = body["session"]["status"].as_str().unwrap_or_default();
        match known {
            Known::There if reply.status == 200 && status != "ended" => {}
            Known::Ending if reply.status == 200 => {
                let now = if status == "ended" { Known::Ended } else { Known::There };
                world.moved().insert(id, now);
            }
            Known::Ended if reply.status == 200 && status == "ended" => {
                // Looked at once after a crash: enough, and the list stays short.
                world.moved().remove(&id);
            }
            _ => {
                world.violation(format!("session {id} must be {known:?}: {} {}", reply.status, reply.text()));
            }
        }
    }
    Ok(())
}
