//! A stored event as this door tells it: ACP's own under ACP's method, the others as `outlast/TYPE`, so that
//! no number is missing. What the agent wrote stays as it wrote it.

use super::wire;
use protocol::{EventKind, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use session::StoredEvent;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Told<'a> {
    session_id: SessionId,
    seq: u64,
    at: String,
    event: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    method: String,
    params: Params<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Params<'a> {
    Update(Update<'a>),
    Raw(&'a RawValue),
    Value(Value),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    session_id: SessionId,
    update: &'a RawValue,
}

#[derive(Deserialize)]
struct Updated<'a> {
    #[serde(borrow)]
    update: &'a RawValue,
}

pub(super) fn told(session: SessionId, event: &StoredEvent) -> Told<'_> {
    Told { session_id: session, seq: event.seq, at: event.at.to_string(), event: inner(session, event) }
}

fn inner(session: SessionId, event: &StoredEvent) -> Inner<'_> {
    let text = std::str::from_utf8(&event.body).unwrap_or("{}");
    match event.kind {
        EventKind::AgentUpdate => {
            if let Ok(Updated { update }) = serde_json::from_str(text) {
                let params = Params::Update(Update { session_id: session, update });
                return Inner { method: "session/update".to_owned(), params };
            }
        }
        EventKind::PermissionRequested => {
            let mut params: Value = serde_json::from_str(text).unwrap_or_default();
            if let Some(fields) = params.as_object_mut() {
                fields.remove("type");
                fields.insert("sessionId".to_owned(), json!(session));
                fields.insert("permissionId".to_owned(), json!(event.seq));
                return Inner {
                    method: "session/request_permission".to_owned(),
                    params: Params::Value(params),
                };
            }
        }
        _ => {}
    }
    let method = format!("outlast/{}", event.kind.as_str());
    match serde_json::from_str(text) {
        Ok(raw) => Inner { method, params: Params::Raw(raw) },
        Err(_) => Inner { method, params: Params::Value(json!({})) },
    }
}

pub(super) fn notification(session: SessionId, event: &StoredEvent) -> String {
    wire::notification("sessionEvent", &told(session, event))
}
