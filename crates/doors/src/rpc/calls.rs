//! The methods, one arm each. Names and params are the contract's; answers are sessions as every door shows
//! them, unless a method has more to say.

use super::{events, wire};
use crate::{intake::MAX_SEQ, rest::Shared};
use protocol::{
    AgentName, AnswerPermission, Body, Code, Configure, Content, CreateSession, CredentialId, Fault,
    ForkSession, ListSessions, McpServers, OnBusy, Reason, Scope, SendMessage, Seq, Session, SessionId,
    SessionKindFilter, SessionRef, Status, TurnId, limits,
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use session::{Caller, Follower, Sent};
use std::collections::BTreeMap;

/// Events of a new session that are looked through for what its agent said of itself.
const FIRST_EVENTS: usize = 200;

/// An id or an alias, as everywhere an id goes.
fn session_ref<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SessionRef, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Create {
    /// What `vm.getOrCreate` gave, or its key.
    vm: Option<Key>,
    agent_type: AgentName,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    mcp_servers: Option<McpServers>,
    additional_instructions: Option<String>,
    /// Taken, since the contract has it: Outlast has no instructions of its own that could be left out.
    #[serde(rename = "skipOsInstructions")]
    _skip_os_instructions: Option<bool>,
    model: Option<String>,
    name: Option<String>,
    credential_id: Option<CredentialId>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Prompt {
    #[serde(deserialize_with = "session_ref")]
    session_id: SessionRef,
    /// Text, or blocks.
    #[serde(alias = "text", alias = "blocks")]
    content: Content,
    id: Option<String>,
    #[serde(default)]
    on_busy: OnBusy,
    model: Option<String>,
    max_turns: Option<u32>,
    max_budget_usd: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    #[serde(deserialize_with = "session_ref")]
    session_id: SessionRef,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Forking {
    #[serde(deserialize_with = "session_ref")]
    session_id: SessionRef,
    at: Option<Seq>,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Reading {
    #[serde(deserialize_with = "session_ref")]
    pub(super) session_id: SessionRef,
    #[serde(default)]
    pub(super) after: Seq,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Setting {
    #[serde(deserialize_with = "session_ref")]
    session_id: SessionRef,
    #[serde(alias = "model", alias = "mode", alias = "thoughtLevel")]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Permission {
    #[serde(deserialize_with = "session_ref")]
    session_id: SessionRef,
    permission_id: Seq,
    #[serde(deserialize_with = "Option::deserialize")]
    option_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Listing {
    agent_type: Option<AgentName>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    #[serde(alias = "key")]
    vm: Key,
}

/// The name of a sandbox that sessions share: text, or a list of texts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a vm is a string or a list of strings")]
enum Key {
    Text(String),
    List(Vec<String>),
}

impl Key {
    /// What `vm.getOrCreate` answers with, so that both its key and its answer name the sandbox.
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::List(parts) => json!(parts).to_string(),
        }
    }
}

/// What a method needs, or nothing when there is no such method.
pub(super) fn scope(method: &str) -> Option<Scope> {
    Some(match method {
        "listSessions" | "listPersistedSessions" | "getSessionEvents" | "subscribe" | "unsubscribe" => {
            Scope::Read
        }
        "createSession" | "sendPrompt" | "cancelPrompt" | "resumeSession" | "closeSession"
        | "destroySession" | "forkSession" | "vm.getOrCreate" | "vm.sleep" | "setModel" | "setMode"
        | "setThoughtLevel" | "respondPermission" => Scope::Write,
        _ => return None,
    })
}

/// Carries a call out. Subscriptions are the socket's own and do not come here.
pub(super) async fn call(
    door: &Shared,
    caller: &Caller,
    method: &str,
    params: Value,
) -> Result<Value, Fault> {
    let sessions = &door.sessions;
    let of = |params| wire::params::<Named>(params, &["sessionId"]);
    match method {
        "createSession" => create(door, caller, params).await,
        "sendPrompt" => prompt(door, caller, params).await,
        "cancelPrompt" => shown(sessions.cancel(caller, &of(params)?.session_id).await),
        "resumeSession" => shown(sessions.resume(caller, &of(params)?.session_id).await),
        "closeSession" => shown(sessions.end(caller, &of(params)?.session_id).await),
        "destroySession" => shown(sessions.remove(caller, &of(params)?.session_id).await),
        "forkSession" => {
            let asked: Forking = wire::params(params, &["sessionId", "options"])?;
            let request = ForkSession { at: asked.at, name: asked.name };
            shown(sessions.fork(caller, &asked.session_id, request).await)
        }
        "listSessions" => list(door, caller, params, Which::Open).await,
        "listPersistedSessions" => list(door, caller, params, Which::All).await,
        "getSessionEvents" => read(door, caller, params).await,
        "setModel" => {
            set(door, caller, params, "model", |model| Configure {
                model: Some(model),
                ..Configure::default()
            })
            .await
        }
        "setMode" => {
            set(door, caller, params, "mode", |mode| Configure { mode: Some(mode), ..Configure::default() })
                .await
        }
        "setThoughtLevel" => {
            let level = |level| Configure { thought_level: Some(level), ..Configure::default() };
            set(door, caller, params, "thoughtLevel", level).await
        }
        "vm.getOrCreate" => {
            let key = wire::params::<Machine>(params, &["vm"])?.vm.into_text();
            let sandbox = sessions.sandbox(caller, &key).await?;
            Ok(json!({"vm": key, "sandboxId": sandbox}))
        }
        "vm.sleep" => sleep(door, caller, params).await,
        "respondPermission" => {
            let names = ["sessionId", "permissionId", "optionId"];
            let asked: Permission = wire::params(params, &names)?;
            let answer = AnswerPermission { option_id: asked.option_id };
            shown(sessions.answer(caller, &asked.session_id, asked.permission_id, answer).await)
        }
        _ => Err(Fault::new(Code::NotFound, format!("there is no method {method:?}"))),
    }
}

fn shown(session: Result<Session, Fault>) -> Result<Value, Fault> {
    Ok(json!({"session": session?}))
}

async fn create(door: &Shared, caller: &Caller, params: Value) -> Result<Value, Fault> {
    let asked: Create = wire::params(params, &["vm", "agentType", "options"])?;
    let request = CreateSession {
        agent: asked.agent_type,
        model: asked.model,
        mcp_servers: asked.mcp_servers,
        system_prompt: None,
        additional_instructions: asked.additional_instructions,
        credential_id: asked.credential_id,
        extra_env: asked.env,
        name: asked.name,
        place: None,
        sandbox: asked.vm.map(Key::into_text),
        cwd: asked.cwd,
        policy: None,
    };
    let session = door.sessions.create(caller, request).await?;
    let id = SessionRef::Id(session.id);
    let (_, page) = door.sessions.events(caller, &id, 0, FIRST_EVENTS).await?;
    let started = page.events.iter().find_map(|event| match event.decode() {
        Ok(Body::OccupantStarted(started)) => Some(started),
        _ => None,
    });
    let (info, capabilities) =
        started.map_or((None, None), |started| (started.agent_info, started.capabilities));
    Ok(json!({"sessionId": session.id, "capabilities": capabilities, "agentInfo": info, "session": session}))
}

/// Stops the processes of every session in a sandbox; each comes back with its next prompt.
async fn sleep(door: &Shared, caller: &Caller, params: Value) -> Result<Value, Fault> {
    let key = wire::params::<Machine>(params, &["vm"])?.vm.into_text();
    let sandbox = door.sessions.sandbox(caller, &key).await?;
    let all = ListSessions { kind: SessionKindFilter::All, ..ListSessions::default() };
    let all = door.sessions.list(caller, all).await?.sessions;
    let mut suspended = vec![];
    for session in all.into_iter().filter(|session| session.sandbox_id == sandbox) {
        match session.status {
            Status::Active => {
                door.sessions.stop(caller, &SessionRef::Id(session.id)).await?;
                suspended.push(session.id);
            }
            Status::Starting | Status::Paused | Status::Ended | Status::Error => {}
        }
    }
    Ok(json!({"vm": key, "sandboxId": sandbox, "suspended": suspended}))
}

/// Answers with the turn's outcome. Whoever hangs up before loses the answer, and nothing else.
async fn prompt(door: &Shared, caller: &Caller, params: Value) -> Result<Value, Fault> {
    let asked: Prompt = wire::params(params, &["sessionId", "content", "options"])?;
    let message = SendMessage {
        content: asked.content,
        id: asked.id,
        on_busy: asked.on_busy,
        model: asked.model,
        include_partial_messages: false,
        max_turns: asked.max_turns,
        max_budget_usd: asked.max_budget_usd,
    };
    let Sent { session, accepted, follower } = door.sessions.send(caller, &asked.session_id, message).await?;
    outcome(session, accepted.turn, follower).await
}

async fn outcome(session: SessionId, turn: TurnId, mut follower: Follower) -> Result<Value, Fault> {
    let mut text = String::new();
    loop {
        let batch = follower.next().await.map_err(|error| crate::stream::frame::fault(&error))?;
        for event in &batch.events {
            match event.decode() {
                Ok(Body::AgentUpdate(update)) if update.turn == Some(turn) => {
                    let value: Value = update.update.read().unwrap_or_default();
                    if value["sessionUpdate"] == "agent_message_chunk" && text.len() < limits::EVENT_BYTES {
                        text.push_str(value["content"]["text"].as_str().unwrap_or_default());
                    }
                }
                Ok(Body::TurnEnded(ended)) if ended.turn == turn => {
                    return Ok(json!({
                        "sessionId": session, "turn": turn, "seq": event.seq, "stopReason": stop_reason(ended.reason),
                        "outcome": ended.outcome, "reason": ended.reason, "message": ended.message,
                        "text": text, "usage": ended.usage,
                    }));
                }
                _ => {}
            }
        }
    }
}

/// ACP's word where it has one for how a turn ended, else ours.
fn stop_reason(reason: Reason) -> Value {
    match reason {
        Reason::StepLimit => json!(Reason::MaxTurnRequests),
        reason => json!(reason),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Open,
    All,
}

async fn list(door: &Shared, caller: &Caller, params: Value, which: Which) -> Result<Value, Fault> {
    let asked: Listing = wire::params(params, &["options"])?;
    let request = ListSessions {
        agent: asked.agent_type,
        status: None,
        kind: SessionKindFilter::Agent,
        limit: asked.limit,
        cursor: asked.cursor,
    };
    let list = door.sessions.list(caller, request).await?;
    let sessions =
        list.sessions.into_iter().filter(|session| which == Which::All || session.status != Status::Ended);
    Ok(json!({"sessions": sessions.collect::<Vec<_>>(), "nextCursor": list.next_cursor}))
}

async fn read(door: &Shared, caller: &Caller, params: Value) -> Result<Value, Fault> {
    let asked: Reading = wire::params(params, &["sessionId", "options"])?;
    let limit = asked.limit.unwrap_or(limits::PAGE_EVENTS);
    if !(1..=limits::PAGE_EVENTS).contains(&limit) || asked.after > MAX_SEQ {
        return Err(Fault::invalid(format!(
            "limit must be 1 to {}, after 0 to {MAX_SEQ}",
            limits::PAGE_EVENTS
        )));
    }
    let (session, page) = door.sessions.events(caller, &asked.session_id, asked.after, limit).await?;
    let events: Vec<_> = page.events.iter().map(|event| events::told(session, event)).collect();
    Ok(json!({"events": events, "lastSeq": page.last_seq}))
}

async fn set(
    door: &Shared,
    caller: &Caller,
    params: Value,
    name: &str,
    configure: impl FnOnce(String) -> Configure,
) -> Result<Value, Fault> {
    let asked: Setting = wire::params(params, &["sessionId", name])?;
    shown(door.sessions.configure(caller, &asked.session_id, configure(asked.value)).await)
}
