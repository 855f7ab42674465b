//! Lifecycle, admission, the session task, recovery, reaping, agents, credentials, keys.
//!
//! [`Sessions`] is the whole face of the room: every door asks it, with a [`Caller`] it has recognised.
//! Questions are answered from the journal; commands go to the session's own task, which is woken when there
//! is none. Knows nothing of HTTP or SQL.

mod agents;
mod credentials;
mod faults;
mod files;
mod fork;
mod history;
mod keys;
mod lifecycle;
mod live;
mod open;
mod pen;
mod policy;
mod probe;
mod quota;
mod restarts;
mod sandboxes;
mod shared;
mod shells;
mod spec;
mod task;
mod turns;
mod vault;
mod view;
mod watch;

pub use agents::copy_agents;
pub use files::RemoveFile;
pub use journal::{Batch, Follower, Page, ReadError, StoredEvent};
pub use occupant::{
    fence::Fence,
    text::{Follow, Pattern, Shapes},
};
pub use open::{FirstKey, OpenError, Options};
pub use place::{
    remote::{Lodging, Policy as RemotePolicy, Trust},
    settle,
};
pub use policy::{HostPlace, MostNetwork, Projects, Sandboxing};
pub use probe::{NoSandbox, Pausing, Probe, Users, probe_sandbox};
pub use quota::Quotas;
pub use sandboxes::{Content, copy_snapshots, hold_snapshots};
pub use shells::{Execution, ShellOptions};

use history::History;
use journal::{NewSession, SessionQuery, Space};
use protocol::{
    Accepted, Actor, Agent, AgentName, Answer, AnswerPermission, ApiKey, Code, Configure, CreateCredential,
    CreateKey, CreateSession, CreatedKey, Credential, CredentialId, DeployAgent, Disposition, Fault, Health,
    KeyId, ListSessions, Message, Outcome, PlaceKind, Scope, SendMessage, Seq, Session, SessionConfig,
    SessionId, SessionKind, SessionRef, Stored, Tenant, Timestamp, UsageReport, limits,
};
use shared::Shared;
use spec::{Spec, internal};
use std::{path::Path, sync::Arc};
use task::{Answered, Command, Prompt, Task};

/// Who is asking, once a key was recognised.
#[derive(Debug, Clone)]
pub struct Caller {
    pub tenant: Tenant,
    pub key: KeyId,
    pub scope: Scope,
}

/// Every session of this server. A cheap handle.
#[derive(Debug, Clone)]
pub struct Sessions {
    shared: Arc<Shared>,
}

/// A prompt that was taken, and everything that comes of it, from its `prompt_accepted` on.
#[derive(Debug)]
pub struct Sent {
    pub session: SessionId,
    pub accepted: Accepted,
    pub follower: Follower,
}

#[derive(Debug, Clone)]
pub struct SessionList {
    pub sessions: Vec<Session>,
    pub next_cursor: Option<String>,
}

/// The newest lines of an agent's stderr.
#[derive(Debug, Clone)]
pub struct Logs {
    pub text: String,
    /// Bytes that no longer fit.
    pub dropped: u64,
}

/// Numbers for `/metrics`.
#[derive(Debug, Clone)]
pub struct Figures {
    pub live_sessions: usize,
    pub occupants: usize,
    pub journal: journal::Figures,
    pub turns: Vec<(Outcome, u64)>,
}

impl Sessions {
    /// In memory; constant time for each key.
    pub fn authenticate(&self, key: &str) -> Option<Caller> {
        self.shared.keys.authenticate(key)
    }

    pub fn health(&self) -> Health {
        let status = match self.shared.journal.space() {
            Space::Enough => "ok",
            Space::Low => "full",
        };
        Health {
            status: status.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            active_sessions: self.shared.live.count(),
            active_sandboxes: self.shared.slots.taken(),
            uptime: self.shared.started.elapsed().as_secs(),
        }
    }

    /// Is there room on the disk for more? Cheap enough to be asked while something is being received.
    pub fn admit_bytes(&self) -> Result<(), Fault> {
        match self.shared.journal.space() {
            Space::Enough => Ok(()),
            Space::Low => Err(faults::full()),
        }
    }

    pub fn figures(&self) -> Figures {
        Figures {
            live_sessions: self.shared.live.count(),
            occupants: self.shared.slots.taken(),
            journal: self.shared.journal.figures(),
            turns: shared::OUTCOMES
                .iter()
                .map(|outcome| (*outcome, self.shared.counters.turns(*outcome)))
                .collect(),
        }
    }

    /// What the caller's tenant has used and stored. Kept as sums, so that asking costs the same however much it is.
    pub async fn usage(&self, caller: &Caller) -> Result<UsageReport, Fault> {
        let found = self.shared.journal.tenant_usage(&caller.tenant).await.map_err(faults::read)?;
        Ok(UsageReport {
            tenant_id: caller.tenant.clone(),
            usage: found.used,
            stored: Stored { sessions: found.sessions, events: found.events, bytes: found.bytes },
        })
    }

    /// Returns once the agent is ready, or could not be made.
    pub async fn create(&self, caller: &Caller, request: CreateSession) -> Result<Session, Fault> {
        let shared = &self.shared;
        check_setting("model", request.model.as_deref())?;
        check_label("name", request.name.as_deref())?;
        check_label("sandbox", request.sandbox.as_deref())?;
        let version = shared.agents.version(&caller.tenant, &request.agent, None).await?;
        let spec = Spec {
            agent: Some(version.id),
            mcp_servers: request.mcp_servers.unwrap_or_default(),
            system_prompt: request.system_prompt,
            credential: request.credential_id,
            extra_env: request.extra_env.unwrap_or_default(),
            policy: request.policy,
            cwd: request.cwd,
            instructions: request.additional_instructions.filter(|text| !text.trim().is_empty()),
        };
        spec.check()?;
        let sandboxing = &shared.options.sandboxing;
        if request.place.is_some_and(|place| !matches!(place, PlaceKind::Sandbox | PlaceKind::Host)) {
            return Err(Fault::invalid("an agent's place is sandbox or host; the others are for shells"));
        }
        let place = sandboxing.choose(&caller.tenant, request.place)?;
        sandboxing.apply(place, &version.manifest.policy, spec.policy.as_ref(), &spec.mcp_servers)?;
        if let Some(id) = spec.credential {
            shared.credentials.open(&caller.tenant, id).await?;
        }
        self.admit_work(&caller.tenant, NewWork::Session).await?;
        shared.make_room(&caller.tenant).await;
        let slot = shared.slots.take(&caller.tenant)?;
        let (id, now) = (SessionId::new(), Timestamp::now());
        let sandbox = match &request.sandbox {
            None => id.to_string(),
            Some(key) => shared.shared_sandbox(&caller.tenant, key, place).await?,
        };
        let fixed = NewSession {
            id,
            tenant: caller.tenant.clone(),
            kind: SessionKind::Agent,
            place,
            sandbox,
            agent: Some(version.name),
            agent_version: Some(version.number),
            alias: None,
            created_at: now,
            forked_from: None,
            spec: spec.seal(&shared.vault)?,
        };
        let config = request.model.clone().map(|model| SessionConfig {
            model: Some(model),
            mode: None,
            thought_level: None,
        });
        let state = task::first_state(request.model, request.name, now);
        let (reply, answer) = tokio::sync::oneshot::channel();
        let (inbox, card) = (shared.live.open(id), live::Card::of(&fixed));
        let mut task = Task::begin(Arc::clone(shared), fixed, state, config, inbox);
        task.create(Actor::Key(caller.key), spec, slot, None, Answered::WhenReady(reply));
        task::spawn_new(task, id);
        let ended = || Err(internal("a new session's task ended without an answer"));
        let created = answer.await.unwrap_or_else(|_| ended())?;
        shared.live.introduce(id, card);
        Ok(created)
    }

    /// The id of the sandbox with this key, made when there is none; its first session fills it.
    pub async fn sandbox(&self, caller: &Caller, key: &str) -> Result<String, Fault> {
        check_label("sandbox", Some(key))?;
        let place = self.shared.options.sandboxing.choose(&caller.tenant, None)?;
        self.shared.shared_sandbox(&caller.tenant, key, place).await
    }

    pub async fn list(&self, caller: &Caller, request: ListSessions) -> Result<SessionList, Fault> {
        if request.limit.is_some_and(|limit| limit == 0 || limit > limits::LIST_PAGE) {
            return Err(Fault::invalid(format!("limit must be 1 to {}", limits::LIST_PAGE)));
        }
        let cursor = request.cursor.as_deref().map(str::parse).transpose();
        let query = SessionQuery {
            tenant: caller.tenant.clone(),
            agent: request.agent,
            status: request.status,
            kind: request.kind.kind(),
            limit: request.limit,
            cursor: cursor.map_err(|_| Fault::invalid("cursor is not one that a page gave"))?,
        };
        let page = self.shared.journal.sessions(query).await.map_err(faults::read)?;
        Ok(SessionList {
            sessions: page.sessions.iter().map(view::row).collect(),
            next_cursor: page.next.map(|cursor| cursor.to_string()),
        })
    }

    pub async fn get(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        Ok(view::row(&self.row(caller, session).await?))
    }

    pub async fn pause(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        self.command(caller, session, |reply| Command::Pause { reply }).await
    }

    pub async fn resume(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        if !self.row(caller, session).await?.state.live {
            self.shared.make_room(&caller.tenant).await;
        }
        self.command(caller, session, |reply| Command::Resume { reply }).await
    }

    /// Stops its processes; the session is paused.
    pub async fn stop(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        self.command(caller, session, |reply| Command::Stop { reply }).await
    }

    pub async fn end(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        self.command(caller, session, |reply| Command::End { reply }).await
    }

    /// Ends it and removes session, journal and files. Returns it as it was last.
    pub async fn remove(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        let actor = Actor::Key(caller.key);
        let id = self.row(caller, session).await?.fixed.id;
        if self.shared.journal.has_forks(id).await.map_err(faults::read)? {
            return Err(fork::refuse_removal());
        }
        self.command(caller, session, |reply| Command::Remove { actor, reply }).await
    }

    /// Cancels the running turn; nothing to cancel is not an error.
    pub async fn cancel(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        self.command(caller, session, |reply| Command::Cancel { reply }).await
    }

    pub async fn configure(
        &self,
        caller: &Caller,
        session: &SessionRef,
        request: Configure,
    ) -> Result<Session, Fault> {
        check_setting("model", request.model.as_deref())?;
        check_setting("mode", request.mode.as_deref())?;
        check_setting("thoughtLevel", request.thought_level.as_deref())?;
        check_label("name", request.name.as_deref())?;
        let actor = Actor::Key(caller.key);
        self.command(caller, session, |reply| Command::Configure { actor, request, reply }).await
    }

    pub async fn answer(
        &self,
        caller: &Caller,
        session: &SessionRef,
        permission: Seq,
        answer: AnswerPermission,
    ) -> Result<Session, Fault> {
        let actor = Actor::Key(caller.key);
        let answer = match answer.option_id {
            Some(option_id) => Answer::Selected { option_id },
            None => Answer::Cancelled,
        };
        self.command(caller, session, |reply| Command::Answer { actor, permission, answer, reply }).await
    }

    /// The prompt is on disk when this returns, and runs whatever becomes of the caller.
    pub async fn send(
        &self,
        caller: &Caller,
        session: &SessionRef,
        message: SendMessage,
    ) -> Result<Sent, Fault> {
        let prompt = Box::new(check_prompt(message)?);
        let known = self.shared.live.known(&caller.tenant, session);
        let id = match known.filter(|_| self.shared.slots.short(&caller.tenant).is_none()) {
            Some((id, _)) => {
                self.admit_work(&caller.tenant, NewWork::Prompt).await?;
                id
            }
            None => {
                let row = self.row(caller, session).await?;
                self.admit_work(&caller.tenant, NewWork::Prompt).await?;
                if !row.state.live {
                    self.shared.make_room(&caller.tenant).await;
                }
                row.fixed.id
            }
        };
        let seat = self.shared.journal.seat(id);
        let actor = Actor::Key(caller.key);
        let accepted = self.shared.call(id, |reply| Command::Prompt { actor, prompt, reply }).await?;
        // From its own `prompt_accepted` on: a turn holds nothing from before it.
        let before = accepted.seq.saturating_sub(1);
        let follower = match accepted.disposition {
            Disposition::Started | Disposition::Queued => seat.follow(before),
            // What is to be seen may be long past.
            Disposition::Repeated => self.shared.journal.follow(id, before),
        };
        Ok(Sent { session: id, accepted, follower })
    }

    pub async fn events(
        &self,
        caller: &Caller,
        session: &SessionRef,
        after: Seq,
        limit: usize,
    ) -> Result<(SessionId, Page), Fault> {
        let id = self.row(caller, session).await?.fixed.id;
        let page = self.shared.journal.read(id, after, limit).await.map_err(faults::read)?;
        Ok((id, page))
    }

    /// Replays after a seq, then goes on live.
    pub async fn follow(
        &self,
        caller: &Caller,
        session: &SessionRef,
        after: Seq,
    ) -> Result<(SessionId, Follower), Fault> {
        let row = self.row(caller, session).await?;
        if after + 1 < row.first_seq {
            return Err(faults::read(ReadError::Expired { first_seq: row.first_seq }));
        }
        Ok((row.fixed.id, self.shared.journal.follow(row.fixed.id, after)))
    }

    pub async fn messages(
        &self,
        caller: &Caller,
        session: &SessionRef,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Message>, Fault> {
        let row = self.row(caller, session).await?;
        let (id, mut history) = (row.fixed.id, History::new(row.fixed.id, row.fixed.tenant));
        let mut cursor = row.first_seq - 1;
        loop {
            let page =
                self.shared.journal.read(id, cursor, limits::PAGE_EVENTS).await.map_err(faults::read)?;
            for event in &page.events {
                history.add(event);
                cursor = event.seq;
            }
            if page.events.is_empty() || cursor >= page.last_seq || history.len_after(after) > limit {
                break;
            }
        }
        Ok(history.finish().into_iter().filter(|message| message.sequence > after).take(limit).collect())
    }

    pub async fn logs(&self, caller: &Caller, session: &SessionRef) -> Result<Logs, Fault> {
        let id = self.row(caller, session).await?.fixed.id;
        let live = if self.shared.live.has(id) {
            self.shared.call(id, |reply| Command::Logs { reply }).await?
        } else {
            None
        };
        let kept = match live {
            Some(logs) => Some(logs),
            None => self.shared.kept_logs(id).await,
        };
        let (text, dropped) = kept.unwrap_or_default();
        Ok(Logs { text, dropped })
    }

    pub async fn deploy(&self, caller: &Caller, request: DeployAgent) -> Result<Agent, Fault> {
        self.admit_work(&caller.tenant, NewWork::Prompt).await?;
        self.shared.agents.deploy(caller, request).await
    }

    /// `archive` is a plain tar on this machine's disk.
    pub async fn deploy_tar(&self, caller: &Caller, name: AgentName, archive: &Path) -> Result<Agent, Fault> {
        self.admit_work(&caller.tenant, NewWork::Prompt).await?;
        self.shared.agents.deploy_tar(caller, name, archive).await
    }

    pub async fn agents(&self, caller: &Caller) -> Result<Vec<Agent>, Fault> {
        self.shared.agents.list(&caller.tenant).await
    }

    pub async fn agent(&self, caller: &Caller, name: &AgentName) -> Result<Agent, Fault> {
        self.shared.agents.get(&caller.tenant, name).await
    }

    pub async fn remove_agent(&self, caller: &Caller, name: &AgentName) -> Result<Agent, Fault> {
        self.shared.agents.remove(&caller.tenant, name).await
    }

    pub async fn create_credential(
        &self,
        caller: &Caller,
        request: CreateCredential,
    ) -> Result<Credential, Fault> {
        self.shared.credentials.create(caller, request).await
    }

    pub async fn credentials(&self, caller: &Caller) -> Result<Vec<Credential>, Fault> {
        self.shared.credentials.list(caller).await
    }

    pub async fn remove_credential(&self, caller: &Caller, id: CredentialId) -> Result<Credential, Fault> {
        self.shared.credentials.remove(caller, id).await
    }

    pub async fn create_key(&self, caller: &Caller, request: CreateKey) -> Result<CreatedKey, Fault> {
        self.shared.keys.create(caller, request).await
    }

    /// The tenant's keys; for the operator, everyone's.
    pub fn keys(&self, caller: &Caller) -> Vec<ApiKey> {
        self.shared.keys.list(caller)
    }

    pub async fn remove_key(&self, caller: &Caller, id: KeyId) -> Result<ApiKey, Fault> {
        self.shared.keys.remove(caller, id).await
    }

    async fn row(&self, caller: &Caller, session: &SessionRef) -> Result<journal::SessionRow, Fault> {
        let found = self.shared.journal.find(&caller.tenant, session).await.map_err(faults::read)?;
        found.ok_or_else(|| faults::no_session(session))
    }

    async fn command<T>(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: impl FnOnce(live::Reply<T>) -> Command,
    ) -> Result<T, Fault> {
        let (id, _) = self.identify(caller, session).await?;
        self.shared.call(id, command).await
    }

    /// Which session is meant; only one that is at rest has to be looked up on disk.
    async fn identify(
        &self,
        caller: &Caller,
        session: &SessionRef,
    ) -> Result<(SessionId, SessionKind), Fault> {
        if let Some(known) = self.shared.live.known(&caller.tenant, session) {
            return Ok(known);
        }
        let row = self.row(caller, session).await?;
        Ok((row.fixed.id, row.fixed.kind))
    }

    /// Is there room for more, on the disk and in the tenant's quota?
    async fn admit_work(&self, tenant: &Tenant, work: NewWork) -> Result<(), Fault> {
        if self.shared.is_closing() {
            return Err(Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment"));
        }
        if self.shared.journal.space() == Space::Low {
            return Err(faults::full());
        }
        let quotas = &self.shared.options.quotas;
        if quotas.tenant_sessions.is_none() && quotas.tenant_bytes.is_none() {
            return Ok(());
        }
        let usage = self.shared.journal.tenant_usage(tenant).await.map_err(faults::read)?;
        let sessions =
            quotas.tenant_sessions.filter(|limit| work == NewWork::Session && usage.sessions >= *limit);
        let bytes = quotas.tenant_bytes.filter(|limit| usage.bytes >= *limit);
        match (sessions, bytes) {
            (Some(limit), _) => Err(Fault::new(
                Code::QuotaExceeded,
                format!("The tenant's quota of {limit} stored sessions is used up; remove some with purge"),
            )),
            (None, Some(limit)) => Err(Fault::new(
                Code::QuotaExceeded,
                format!("The tenant's quota of {limit} stored bytes is used up; remove sessions with purge"),
            )),
            (None, None) => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewWork {
    Session,
    Prompt,
}

fn check_prompt(message: SendMessage) -> Result<Prompt, Fault> {
    check_setting("model", message.model.as_deref())?;
    if let Some(id) = &message.id
        && (id.is_empty() || id.len() > limits::CLIENT_ID_BYTES)
    {
        return Err(Fault::invalid(format!("id must have 1 to {} bytes", limits::CLIENT_ID_BYTES)));
    }
    if message.max_budget_usd.is_some_and(|budget| !budget.is_finite() || budget < 0.0) {
        return Err(Fault::invalid("maxBudgetUsd must be a number from 0 up"));
    }
    let content = message.content.into_blocks();
    let empty = content.iter().all(|block| block.plain().is_empty());
    if empty {
        return Err(Fault::invalid("content is empty"));
    }
    let encoded = serde_json::to_vec(&content).map_err(internal)?;
    if encoded.len() > limits::PROMPT_BYTES {
        return Err(Fault::new(
            Code::PayloadTooLarge,
            format!("content is over {} bytes", limits::PROMPT_BYTES),
        ));
    }
    let mut hasher = blake3::Hasher::new_derive_key("outlast prompt v1");
    hasher.update(&encoded);
    hasher.update(message.model.as_deref().unwrap_or("").as_bytes());
    Ok(Prompt {
        client_id: message.id,
        content,
        on_busy: message.on_busy,
        model: message.model,
        max_turns: message.max_turns,
        max_budget_usd: message.max_budget_usd,
        digest: *hasher.finalize().as_bytes(),
    })
}

fn check_setting(what: &str, value: Option<&str>) -> Result<(), Fault> {
    match value {
        Some(text) if text.is_empty() || text.len() > limits::SETTING_BYTES => {
            Err(Fault::invalid(format!("{what} must have 1 to {} bytes", limits::SETTING_BYTES)))
        }
        _ => Ok(()),
    }
}

fn check_label(what: &str, value: Option<&str>) -> Result<(), Fault> {
    match value {
        Some(text)
            if text.is_empty() || text.len() > limits::LABEL_BYTES || text.contains(char::is_control) =>
        {
            Err(Fault::invalid(format!(
                "{what} must have 1 to {} bytes and no control characters",
                limits::LABEL_BYTES
            )))
        }
        _ => Ok(()),
    }
}
