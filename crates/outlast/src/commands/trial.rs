//! `agent test`: a session with one prompt, and what came of each step.

use super::{Asking, run::variables};
use crate::{
    cli::TryAgent,
    config::Environment,
    exit::{Exit, Failure},
    table::facts,
    term::{Form, clean},
};
use client::Followed;
use protocol::{
    AgentUpdate, AnswerPermission, Body, Content, CreateSession, OccupantStarted, Outcome, SendMessage,
    Session, SessionId, TurnEnded,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// An agent that works answers within this, model and all.
const PATIENCE: Duration = Duration::from_secs(180);
const PROMPT: &str = "Answer with one short sentence: who are you?";

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    started: Option<OccupantStarted>,
    said: String,
    asked: u32,
    ended: Option<TurnEnded>,
}

impl Asking<'_> {
    pub(super) async fn try_agent(
        &self,
        asked: &TryAgent,
        environment: &Environment,
    ) -> Result<Exit, Failure> {
        let env = variables(&asked.env, environment)?;
        let request = CreateSession {
            agent: asked.name.clone(),
            model: asked.model.clone(),
            mcp_servers: None,
            system_prompt: None,
            additional_instructions: None,
            credential_id: asked.credential,
            extra_env: (!env.is_empty()).then_some(env),
            name: Some(format!("test of {}", asked.name)),
            place: None,
            sandbox: None,
            cwd: None,
            policy: None,
        };
        let begun = Instant::now();
        let session = self.client.create(&request).await?;
        let ready = begun.elapsed();
        let talk = tokio::time::timeout(PATIENCE, self.trial(&session, asked)).await;
        let took = begun.elapsed().saturating_sub(ready);
        // Whatever came of it, nothing is left behind.
        let removed = self.client.purge(session.id).await;
        let seen = match talk {
            Ok(seen) => seen?,
            Err(_) => {
                let secs = PATIENCE.as_secs();
                return Err(Failure::Broken(format!(
                    "the agent shook hands and did not answer within {secs} s"
                )));
            }
        };
        removed?;
        self.tell(&seen, ready, took)?;
        Ok(seen.ended.map_or(Exit::Failed, |ended| ended.outcome.into()))
    }

    async fn trial(&self, session: &Session, asked: &TryAgent) -> Result<Seen, Failure> {
        let content = Content::Text(asked.prompt.clone().unwrap_or_else(|| PROMPT.to_owned()));
        let message = SendMessage {
            content,
            id: None,
            on_busy: protocol::OnBusy::Queue,
            model: None,
            include_partial_messages: false,
            max_turns: None,
            max_budget_usd: None,
        };
        let sent = self.client.send(session.id, message).await?;
        let mut events = self.client.events(session.id, 0);
        let mut seen = Seen::default();
        while seen.ended.is_none() {
            let Followed::Event(event) = events.next().await? else { continue };
            match event.body {
                Body::OccupantStarted(started) => seen.started = Some(started),
                Body::AgentUpdate(update) => seen.said.push_str(&words(&update)),
                Body::PermissionRequested(_) => {
                    seen.asked += 1;
                    self.decline(session.id, event.seq).await;
                }
                Body::TurnEnded(ended) if ended.turn == sent.turn => seen.ended = Some(ended),
                _ => {}
            }
        }
        Ok(seen)
    }

    /// A trial lets the agent do nothing. The answer may come too late, which is as good.
    async fn decline(&self, session: SessionId, permission: u64) {
        let _ = self.client.answer(session, permission, &AnswerPermission { option_id: None }).await;
    }

    fn tell(&self, seen: &Seen, ready: Duration, took: Duration) -> Result<(), Failure> {
        let report = report(seen, ready, took);
        if self.term.form == Form::Json {
            let fields = report.into_iter().map(|(name, value)| (name.to_owned(), json!(value)));
            return self.term.json(&Value::Object(fields.collect()));
        }
        self.term.say(&facts(self.term.paint(), &report))
    }
}

fn words(update: &AgentUpdate) -> String {
    let value: Value = update.update.read().unwrap_or_default();
    if value["sessionUpdate"] != "agent_message_chunk" {
        return String::new();
    }
    value["content"]["text"].as_str().unwrap_or_default().to_owned()
}

fn report(seen: &Seen, ready: Duration, took: Duration) -> Vec<(&'static str, Option<String>)> {
    let raw = |raw: Option<&protocol::Raw>| raw.and_then(|raw| raw.read::<Value>().ok()).unwrap_or_default();
    let started = seen.started.as_ref();
    let info = raw(started.and_then(|started| started.agent_info.as_ref()));
    let can = raw(started.and_then(|started| started.capabilities.as_ref()));
    let has = |path: &str| {
        can.pointer(path).is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
    };
    let list = |all: &[(&str, &str)]| {
        let there: Vec<_> = all.iter().filter(|(path, _)| has(path)).map(|(_, name)| *name).collect();
        if there.is_empty() { "none".to_owned() } else { there.join(", ") }
    };
    let ended = seen.ended.as_ref();
    let outcome = ended.map(|ended| {
        let word = if ended.outcome == Outcome::Done { "works" } else { "does not work" };
        let why = ended.message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        format!("{word} ({:?}, {:?}, {} ms){why}", ended.outcome, ended.reason, took.as_millis())
    });
    let usage = ended.and_then(|ended| ended.usage);
    let agent = format!(
        "{} {}",
        info["title"].as_str().or(info["name"].as_str()).unwrap_or("unnamed"),
        info["version"].as_str().unwrap_or_default()
    );
    vec![
        ("agent", Some(clean(&agent))),
        ("handshake", Some(format!("works ({} ms)", ready.as_millis()))),
        (
            "comes back by",
            Some(list(&[
                ("/sessionCapabilities/resume", "session/resume"),
                ("/loadSession", "session/load"),
            ])),
        ),
        (
            "takes besides text",
            Some(list(&[
                ("/promptCapabilities/image", "images"),
                ("/promptCapabilities/audio", "audio"),
                ("/promptCapabilities/embeddedContext", "embedded resources"),
                ("/mcpCapabilities/http", "MCP by HTTP"),
                ("/mcpCapabilities/sse", "MCP by SSE"),
            ])),
        ),
        ("prompt", outcome),
        ("answer", (!seen.said.is_empty()).then(|| clean(seen.said.trim()))),
        ("permissions asked", (seen.asked > 0).then(|| format!("{}, all declined", seen.asked))),
        ("tokens", usage.map(|usage| format!("{} in, {} out", usage.input_tokens, usage.output_tokens))),
    ]
}
