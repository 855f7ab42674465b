//! The crash test: a server under load is killed again and again, and must keep every promise each time.
//!
//! A round starts the server, compares its journal with what the world had been told, lets followers and
//! writers work until a seeded number of events has been seen, and kills it: by SIGKILL, or by SIGKILL and a
//! power cut. Some rounds kill it while it starts. Now and then, and at the end, the writers rest until every
//! turn has its outcome. The suite and the soak run the same code with different numbers.

mod ledger;
mod world;

use crate::{Rng, Server, Setup, limits, power::Rig, power::Unsynced, process};
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use world::{Phase, Watched, World};

/// Events seen in one round before the kill, at most.
const EVENTS_PER_ROUND: u64 = 160;
/// A round that sees fewer events ends after this.
const ROUND: Duration = Duration::from_millis(300);
/// The kill comes up to this long after the last event waited for.
const JITTER_MICROS: u64 = 3_000;
/// A kill during start comes within this time.
const START_KILL_MICROS: u64 = 60_000;
const START_KILLS_PERCENT: u64 = 10;
/// Rounds between two rests.
const REST_EVERY: u32 = 20;
const WRITERS_PER_SESSION: usize = 2;
const PAGE: usize = 1_000;

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The process: what the kernel has, it keeps.
    Process,
    /// The machine: what was not synced is lost, kept or torn.
    Power,
}

/// How a crash test is run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub program: PathBuf,
    pub kills: u32,
    pub seed: u64,
    pub sessions: usize,
    pub cut: Cut,
    /// Say how it goes every so many kills; 0 says nothing.
    pub say_every: u32,
}

/// What was seen.
#[derive(Debug)]
pub struct Summary {
    pub kills: u32,
    pub start_kills: u32,
    pub events: u64,
    pub turns: usize,
    pub resent: u64,
    pub took: Duration,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} kills ({} during start), {} events, {} turns, {} prompts sent again, {:.1} s, nothing lost",
            self.kills,
            self.start_kills,
            self.events,
            self.turns,
            self.resent,
            self.took.as_secs_f64()
        )
    }
}

/// Runs the plan. An error names the seed and the round.
pub async fn run(plan: &Plan) -> Result<Summary> {
    let began = Instant::now();
    let rig = match plan.cut {
        Cut::Process => None,
        Cut::Power => Some(Arc::new(Rig::new()?)),
    };
    // A first start makes the folder, so that the rounds are about sessions and not about the bundled agent.
    let home = tempfile::Builder::new().prefix("outlast-crash-").tempdir()?;
    let mut setup = Setup::new(&plan.program).data(home.path().join("data"));
    setup.clone().start().await?.stop().await?;
    if let Some(rig) = &rig {
        setup = setup.rig(rig.clone());
    }
    let mut rng = Rng::new(plan.seed);
    let mut server = setup.start().await?;
    let world = Arc::new(populate(&server, plan.sessions).await?);
    let people = employ(&world, &mut rng);
    let mut test = Test { plan, rig, world, rng, start_kills: 0 };
    for round in 0..plan.kills {
        let result = test.round(&mut server, round).await;
        let context =
            || format!("seed {}, round {round}; the server's log:\n{}", plan.seed, server.log_tail());
        result.with_context(context)?;
    }
    let ending = test.finish(&mut server).await;
    drop(people);
    ending.with_context(|| format!("seed {}, at the end; log:\n{}", plan.seed, server.log_tail()))?;
    Ok(Summary {
        kills: plan.kills,
        start_kills: test.start_kills,
        events: test.world.sessions.iter().map(|session| session.ledger().confirmed()).sum(),
        turns: test.world.sessions.iter().map(|session| session.ledger().turns()).sum(),
        resent: test.world.resent.load(Ordering::Relaxed),
        took: began.elapsed(),
    })
}

async fn populate(server: &Server, count: usize) -> Result<World> {
    let http = server.http()?;
    let mut sessions = vec![];
    for _ in 0..count {
        let made = http.post("/api/sessions", &json!({"agent": "demo"})).await?.expect(201)?;
        sessions.push(Watched::new(made["session"]["id"].as_str().context("no id")?.to_owned()));
    }
    Ok(World::new(http, sessions))
}

fn employ(world: &Arc<World>, rng: &mut Rng) -> JoinSet<()> {
    let mut people = JoinSet::new();
    for index in 0..world.sessions.len() {
        let watching = world.clone();
        people.spawn(async move { world::follower(&watching, &watching.sessions[index]).await });
        for number in 0..WRITERS_PER_SESSION {
            let (writing, rng) = (world.clone(), rng.fork());
            let name = format!("w{number}");
            people.spawn(async move { world::writer(&writing, &writing.sessions[index], &name, rng).await });
        }
    }
    let (moving, rng) = (world.clone(), rng.fork());
    people.spawn(async move { world::mover(&moving, rng).await });
    people
}

struct Test<'a> {
    plan: &'a Plan,
    rig: Option<Arc<Rig>>,
    world: Arc<World>,
    rng: Rng,
    start_kills: u32,
}

impl Test<'_> {
    /// The server runs when a round begins, and again when it has ended.
    async fn round(&mut self, server: &mut Server, round: u32) -> Result<()> {
        self.check().await?;
        if round % REST_EVERY == REST_EVERY - 1 {
            self.rest().await?;
        }
        self.world.phase.send_replace(Phase::Open);
        let target = self.world.seen.load(Ordering::Relaxed) + self.rng.within(1, EVENTS_PER_ROUND);
        let _ = tokio::time::timeout(ROUND, self.world.wait_seen(target)).await;
        tokio::time::sleep(Duration::from_micros(self.rng.within(0, JITTER_MICROS))).await;
        ensure!(server.is_running(), "the server ended by itself");
        self.kill(server)?;
        while self.rng.chance(START_KILLS_PERCENT) {
            self.start_kills += 1;
            let _listening = server.launch()?;
            tokio::time::sleep(Duration::from_micros(self.rng.within(0, START_KILL_MICROS))).await;
            self.kill(server)?;
        }
        server.restart().await?;
        self.say(round);
        self.verdict()
    }

    fn kill(&mut self, server: &mut Server) -> Result<()> {
        self.world.falls();
        server.kill9()?;
        if let Some(rig) = &self.rig {
            let unsynced = Unsynced::pick(&mut self.rng);
            rig.cut(server.data(), unsynced, &mut self.rng).with_context(|| format!("{unsynced:?}"))?;
        }
        Ok(())
    }

    /// Compares the journal with what the world was told.
    async fn check(&self) -> Result<()> {
        for session in &self.world.sessions {
            let (must, owed) = {
                let ledger = session.ledger();
                (ledger.last_seen(), ledger.owed())
            };
            self.read_on(session).await?;
            let told = session.ledger().complete(must, &owed);
            if let Err(rule) = told {
                self.world.violation(format!("session {}: {rule}", session.id));
            }
        }
        world::check_moved(&self.world).await?;
        self.verdict()
    }

    async fn read_on(&self, session: &Watched) -> Result<()> {
        loop {
            let after = session.ledger().confirmed();
            let texts = self.page(session, after).await?;
            let mut ledger = session.ledger();
            for text in &texts {
                if let Err(rule) = ledger.confirm(text) {
                    bail!("session {}: {rule}", session.id);
                }
            }
            if texts.is_empty() {
                return Ok(());
            }
        }
    }

    async fn page(&self, session: &Watched, after: u64) -> Result<Vec<String>> {
        #[derive(Deserialize)]
        struct Page<'a> {
            #[serde(borrow)]
            events: Vec<&'a RawValue>,
        }
        let path = format!("/api/sessions/{}/events?after={after}&limit={PAGE}", session.id);
        let reply = self.world.http.get(&path).await?;
        ensure!(reply.status == 200, "GET {path}: {} {}", reply.status, reply.text());
        let page: Page<'_> = serde_json::from_slice(&reply.body)?;
        Ok(page.events.iter().map(|event| event.get().to_owned()).collect())
    }

    /// Waits until every accepted turn has its outcome. One that stands still in a paused session is let go on: a pause
    /// outlives the server too.
    async fn rest(&self) -> Result<()> {
        self.world.phase.send_replace(Phase::Quiet);
        let resting = async {
            loop {
                let bell = self.world.bell.notified();
                for session in &self.world.sessions {
                    let path = format!("/api/sessions/{}/resume", session.id);
                    let reply = self.world.http.call("POST", &path, None).await?;
                    ensure!(reply.status == 200, "POST {path}: {} {}", reply.status, reply.text());
                }
                self.check().await?;
                if self.world.sessions.iter().all(|session| session.ledger().open_turns() == 0) {
                    return Ok(());
                }
                bell.await;
            }
        };
        match tokio::time::timeout(limits::SETTLE, resting).await {
            Ok(result) => result,
            Err(_) => {
                let open: Vec<_> = self
                    .world
                    .sessions
                    .iter()
                    .map(|session| (session.id.clone(), session.ledger().open_turns()))
                    .collect();
                bail!("turns without an outcome after {:?}: {open:?}", limits::SETTLE)
            }
        }
    }

    /// Everything once more, on a quiet server, and then on the folder it leaves behind.
    async fn finish(&self, server: &mut Server) -> Result<()> {
        self.check().await?;
        self.rest().await?;
        for session in &self.world.sessions {
            let mut after = 0;
            loop {
                let texts = self.page(session, after).await?;
                if texts.is_empty() {
                    break;
                }
                for text in texts {
                    after += 1;
                    session.ledger().same(after, &text).map_err(|rule| anyhow::anyhow!(rule))?;
                }
            }
            ensure!(after == session.ledger().confirmed(), "session {} shrank to {after}", session.id);
        }
        self.verdict()?;
        self.world.falls();
        let status = server.stop().await?;
        ensure!(status.success(), "the server ended with {status} after SIGTERM");
        let data = server.data().to_string_lossy().into_owned();
        process::run(server.program(), ["audit", "verify", "--data", &data], &[]).await?.ok()?;
        Ok(())
    }

    fn verdict(&self) -> Result<()> {
        let violations = self.world.violations();
        ensure!(violations.is_empty(), "{} broken: {}", violations.len(), violations.join("\n"));
        Ok(())
    }

    #[expect(clippy::print_stderr, reason = "a long test says how it goes")]
    fn say(&self, round: u32) {
        if self.plan.say_every > 0 && (round + 1).is_multiple_of(self.plan.say_every) {
            let seen = self.world.seen.load(Ordering::Relaxed);
            eprintln!("{} of {} kills, {seen} events seen", round + 1, self.plan.kills);
        }
    }
}
