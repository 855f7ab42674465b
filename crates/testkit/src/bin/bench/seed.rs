//! Fills a data folder through the journal itself, faster than a server could be asked to.

use anyhow::{Context as _, Result, ensure};
use journal::{Append, Durable, Journal, NewEvent, NewSession, Options, SessionState, Writer};
use protocol::{
    Actor, AgentName, AgentUpdate, Body, PlaceKind, Raw, SessionCreated, SessionId, SessionKind, Status,
    Tenant, Timestamp,
};
use std::path::Path;

/// Appends enqueued before one is waited for.
const WINDOW: usize = 2_000;

pub(crate) struct Seeder {
    journal: Journal,
}

impl Seeder {
    /// No server may run on the folder.
    pub(crate) fn open(data: &Path) -> Result<Self> {
        let options = Options { dir: data.to_owned(), reserve_bytes: 0, low_water_bytes: 0 };
        Ok(Self { journal: Journal::open(options)? })
    }

    /// Ended sessions of one event each.
    pub(crate) async fn sessions(&self, count: usize) -> Result<()> {
        let mut open: Vec<Writer> = vec![];
        for _ in 0..count {
            open.push(self.session()?);
            if open.len() == WINDOW {
                settle(&open).await?;
                open.clear();
            }
        }
        settle(&open).await
    }

    /// One session with this many updates of about 300 bytes.
    pub(crate) async fn updates(&self, count: usize) -> Result<SessionId> {
        let mut writer = self.session()?;
        let text = "x".repeat(180);
        for start in (0..count).step_by(WINDOW) {
            let mut events = vec![];
            for number in start..count.min(start + WINDOW) {
                let update = format!(
                    r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{number} {text}"}}}}"#
                );
                events.push(event(&AgentUpdate { turn: None, update: Raw::parse(update)? }.into())?);
            }
            writer.append(Append { at: Timestamp::now(), events, ..Append::default() })?;
            settle(std::slice::from_ref(&writer)).await?;
        }
        Ok(writer.session())
    }

    pub(crate) async fn close(self) {
        self.journal.close().await;
    }

    fn session(&self) -> Result<Writer> {
        let id = SessionId::new();
        let now = Timestamp::now();
        let agent = AgentName::new("demo")?;
        let mut writer = self.journal.begin(NewSession {
            id,
            tenant: Tenant::default_tenant(),
            kind: SessionKind::Agent,
            place: PlaceKind::Host,
            sandbox: id.to_string(),
            agent: Some(agent.clone()),
            agent_version: Some(1),
            alias: None,
            created_at: now,
            forked_from: None,
            spec: String::new(),
        });
        let created = SessionCreated {
            kind: SessionKind::Agent,
            place: PlaceKind::Host,
            agent: Some(agent),
            agent_version: Some(1),
            model: None,
            name: None,
            forked_from: None,
        };
        let state = SessionState {
            status: Status::Ended,
            status_reason: None,
            model: None,
            name: None,
            last_active_at: now,
            live: false,
            memo: "{}".to_owned(),
            usage: protocol::UsageSums::default(),
        };
        let events = vec![event(&created.into())?];
        writer.append(Append { at: now, events, state: Some(state), ..Append::default() })?;
        Ok(writer)
    }
}

fn event(body: &Body) -> Result<NewEvent> {
    Ok(NewEvent::new(Actor::System, body.kind(), body.encode()?))
}

/// Waits until everything enqueued is on disk.
async fn settle(writers: &[Writer]) -> Result<()> {
    for writer in writers {
        let last = writer.last_seq();
        let mut durable = writer.durable();
        let waiting = |state: &Durable| matches!(state, Durable::Upto(seq) if *seq < last);
        let state = durable.wait_for(|state| !waiting(state)).await.context("the journal is gone")?;
        ensure!(matches!(*state, Durable::Upto(_)), "the journal refused: {:?}", *state);
    }
    Ok(())
}
