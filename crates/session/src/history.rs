//! A session's messages, merged from its events: what was asked and what was answered, without the deltas.
//! A pure fold; the caller feeds it events in order.

use journal::StoredEvent;
use protocol::{Body, ContentBlock, EventKind, Message, Role, Seq, SessionId, Tenant, Timestamp, TurnId};
use serde::Deserialize;
use std::{borrow::Cow, collections::HashMap};

pub(crate) struct History {
    session: SessionId,
    tenant: Tenant,
    prompts: HashMap<TurnId, Vec<ContentBlock>>,
    reply: Option<Reply>,
    messages: Vec<Message>,
}

/// An assistant's message that may still grow.
struct Reply {
    turn: Option<TurnId>,
    text: String,
    seq: Seq,
    at: Timestamp,
}

/// What matters of an agent's update here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(default, borrow)]
    content: Option<&'a serde_json::value::RawValue>,
}

#[derive(Deserialize)]
struct Text {
    #[serde(default)]
    text: String,
}

impl History {
    pub(crate) fn new(session: SessionId, tenant: Tenant) -> Self {
        Self { session, tenant, prompts: HashMap::new(), reply: None, messages: Vec::new() }
    }

    pub(crate) fn add(&mut self, event: &StoredEvent) {
        match event.kind {
            EventKind::PromptAccepted
            | EventKind::TurnStarted
            | EventKind::TurnEnded
            | EventKind::AgentUpdate => {}
            EventKind::SessionCreated
            | EventKind::SessionStatusChanged
            | EventKind::SessionConfig
            | EventKind::SessionRenamed
            | EventKind::PermissionRequested
            | EventKind::PermissionAnswered
            | EventKind::CommandStarted
            | EventKind::CommandEnded
            | EventKind::OutputKept
            | EventKind::SnapshotTaken
            | EventKind::SnapshotRestored
            | EventKind::OccupantStarted
            | EventKind::OccupantExited
            | EventKind::Notice
            | EventKind::ErrorRaised => return,
        }
        // An erased or unreadable body has nothing to show.
        let Ok(body) = event.decode() else { return };
        match body {
            Body::PromptAccepted(prompt) => {
                self.prompts.insert(prompt.turn, prompt.content);
            }
            // A prompt that waited is shown where its turn begins, between the answers.
            Body::TurnStarted(started) => self.show_prompt(started.turn, event),
            Body::TurnEnded(ended) => {
                self.close();
                self.show_prompt(ended.turn, event);
            }
            Body::AgentUpdate(update) => self.hear(update.turn, update.update.as_str(), event),
            Body::SessionCreated(_)
            | Body::SessionStatusChanged(_)
            | Body::SessionConfig(_)
            | Body::SessionRenamed(_)
            | Body::PermissionRequested(_)
            | Body::PermissionAnswered(_)
            | Body::OccupantStarted(_)
            | Body::OccupantExited(_)
            | Body::CommandStarted(_)
            | Body::CommandEnded(_)
            | Body::OutputKept(_)
            | Body::SnapshotTaken(_)
            | Body::SnapshotRestored(_)
            | Body::Notice(_)
            | Body::ErrorRaised(_) => {}
        }
    }

    /// How many messages after a seq are whole by now.
    pub(crate) fn len_after(&self, after: Seq) -> usize {
        self.messages.iter().rev().take_while(|message| message.sequence > after).count()
    }

    /// Everything so far, a reply under way as far as it is.
    pub(crate) fn finish(mut self) -> Vec<Message> {
        self.close();
        self.messages
    }

    fn hear(&mut self, turn: Option<TurnId>, update: &str, event: &StoredEvent) {
        let Ok(update) = serde_json::from_str::<Update<'_>>(update) else { return };
        if update.session_update != "agent_message_chunk" {
            // A tool call or a plan ends one message; what comes after is the next.
            if matches!(&*update.session_update, "tool_call" | "plan") {
                self.close();
            }
            return;
        }
        let text = update.content.and_then(|content| serde_json::from_str::<Text>(content.get()).ok());
        let Some(text) = text.map(|content| content.text).filter(|text| !text.is_empty()) else { return };
        let reply = self.reply.get_or_insert_with(|| Reply {
            turn,
            text: String::new(),
            seq: event.seq,
            at: event.at,
        });
        reply.text.push_str(&text);
        reply.seq = event.seq;
    }

    fn show_prompt(&mut self, turn: TurnId, event: &StoredEvent) {
        let Some(content) = self.prompts.remove(&turn) else { return };
        self.close();
        let text = content.iter().map(ContentBlock::plain).collect::<Vec<_>>().join("\n");
        self.push(Some(turn), Role::User, text, event.seq, event.at);
    }

    fn close(&mut self) {
        if let Some(reply) = self.reply.take() {
            self.push(reply.turn, Role::Assistant, reply.text, reply.seq, reply.at);
        }
    }

    fn push(
        &mut self,
        turn: Option<TurnId>,
        role: Role,
        content: String,
        sequence: Seq,
        created_at: Timestamp,
    ) {
        self.messages.push(Message {
            id: message_id(self.session, sequence),
            session_id: self.session,
            tenant_id: self.tenant.clone(),
            turn,
            role,
            content,
            sequence,
            created_at,
        });
    }
}

/// The same message has the same id every time it is read.
fn message_id(session: SessionId, seq: Seq) -> uuid::Uuid {
    let mut hasher = blake3::Hasher::new_derive_key("outlast message id v1");
    hasher.update(session.uuid().as_bytes());
    hasher.update(&seq.to_le_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Actor, AgentUpdate, Disposition, OnBusy, PromptAccepted, Raw, TurnEnded, TurnStarted};

    fn stored(seq: Seq, body: impl Into<Body>) -> StoredEvent {
        let body = body.into();
        StoredEvent {
            seq,
            at: Timestamp::from_millis(1_000),
            actor: Actor::System,
            kind: body.kind(),
            version: protocol::SCHEMA_VERSION,
            body: body.encode().unwrap().into(),
        }
    }

    fn prompt(turn: TurnId, text: &str) -> PromptAccepted {
        PromptAccepted {
            turn,
            client_id: None,
            content: vec![ContentBlock::Text { text: text.to_owned() }],
            on_busy: OnBusy::Queue,
            disposition: Disposition::Queued,
            model: None,
            max_turns: None,
            max_budget_usd: None,
        }
    }

    fn update(turn: TurnId, text: &str) -> AgentUpdate {
        AgentUpdate { turn: Some(turn), update: Raw::parse(text.to_owned()).unwrap() }
    }

    fn chunk(turn: TurnId, text: &str) -> AgentUpdate {
        update(
            turn,
            &format!(
                r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}"#
            ),
        )
    }

    fn ended(turn: TurnId) -> TurnEnded {
        let (outcome, reason) = (protocol::Outcome::Done, protocol::Reason::EndTurn);
        TurnEnded { turn, outcome, reason, message: None, usage: None }
    }

    #[test]
    fn deltas_become_messages_in_the_order_of_the_turns() {
        let (one, two) = (TurnId::new(), TurnId::new());
        let mut history = History::new(SessionId::new(), Tenant::default_tenant());
        for event in [
            stored(1, prompt(one, "first")),
            stored(2, TurnStarted { turn: one }),
            stored(3, chunk(one, "Hel")),
            stored(4, prompt(two, "second")),
            stored(5, chunk(one, "lo")),
            stored(6, update(one, r#"{"sessionUpdate":"tool_call","toolCallId":"t"}"#)),
            stored(7, chunk(one, "done")),
            stored(8, ended(one)),
            stored(9, ended(two)),
        ] {
            history.add(&event);
        }
        let messages = history.finish();
        let seen: Vec<_> = messages.iter().map(|m| (m.sequence, m.role, m.content.as_str())).collect();
        assert_eq!(
            seen,
            [
                (2, Role::User, "first"),
                (5, Role::Assistant, "Hello"),
                (7, Role::Assistant, "done"),
                (9, Role::User, "second"),
            ]
        );
        assert_eq!(messages.iter().map(|m| m.id).collect::<std::collections::HashSet<_>>().len(), 4);
    }
}
