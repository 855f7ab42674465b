//! The editor's end of the line, as the rest of the bridge speaks to it.

use super::wire::Outbox;
use agent_client_protocol::{
    Client, UntypedMessage,
    v1::{ConnectionTo, schema},
};
use protocol::SessionId;
use serde_json::{Value, json};
use std::{io::Write as _, sync::Arc};

/// The editor does not listen any more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone;

/// An update, and how large it is, about.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) value: Value,
    pub(super) bytes: usize,
}

/// One of our own: small, or as large as a prompt.
impl From<Value> for Update {
    fn from(value: Value) -> Self {
        let bytes = value.to_string().len();
        Self { value, bytes }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Editor {
    connection: ConnectionTo<Client>,
    outbox: Arc<Outbox>,
}

impl Editor {
    pub(super) fn new(connection: ConnectionTo<Client>, outbox: Arc<Outbox>) -> Self {
        Self { connection, outbox }
    }

    /// Sends a `session/update` as the agent wrote it; waits while the editor is behind.
    pub(super) async fn update(&self, session: SessionId, update: Update) -> Result<(), Gone> {
        let Update { value, bytes } = update;
        let mut params = json!({"sessionId": session});
        params["update"] = value;
        let message = UntypedMessage::new("session/update", params).map_err(|_| Gone)?;
        let send = || self.connection.send_notification(message);
        self.outbox.queue(bytes, send).await.map_err(|_| Gone)
    }

    /// Asks for a permission. The option that was chosen, none for a cancelled question; nothing when the editor
    /// gave no answer.
    pub(super) async fn ask(&self, params: Value) -> Option<Option<String>> {
        let message = UntypedMessage::new("session/request_permission", params).ok()?;
        let answer = self.connection.send_request(message).block_task().await.ok()?;
        let answer: schema::RequestPermissionResponse = serde_json::from_value(answer).ok()?;
        match answer.outcome {
            schema::RequestPermissionOutcome::Selected(selected) => {
                Some(Some(selected.option_id.to_string()))
            }
            schema::RequestPermissionOutcome::Cancelled => Some(None),
            _ => None,
        }
    }

    /// To stderr, which editors keep as the agent's log.
    pub(super) fn complain(&self, sentence: &str) {
        let _ = writeln!(std::io::stderr(), "outlast: {sentence}");
    }
}
