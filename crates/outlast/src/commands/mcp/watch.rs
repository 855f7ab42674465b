//! What a line is, as far as the bridge needs to know: which request it makes or answers. Pure.
//!
//! A line that is not understood passes unwatched.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

/// A request's id, spelt in one way: the server may spell it differently than the client did.
pub(super) type Id = String;

/// The server's word that a command was accepted, for the bridge alone.
pub(super) const ACCEPTED: &str = "outlast/accepted";

/// A line from the client.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    Initialize(Id),
    Initialized,
    Request(Id, Asked),
    /// A notification, an answer, or nothing that we know.
    Other,
}

/// What a request is about, as far as it matters when its answer does not come.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Asked {
    /// It changes nothing: it can be asked again.
    Reading,
    /// A command is run.
    Exec(Exec),
    /// Whether it happened cannot be told without an answer.
    Changing { tool: Option<String> },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Exec {
    pub(super) session_id: String,
    /// Raw JSON, to be said again.
    pub(super) budget: Option<String>,
    pub(super) meta: Option<String>,
}

/// A line from the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Answer(Id),
    Accepted { request: Id, command: u64 },
    Other,
}

/// Tools that can be called twice.
const READING: [&str; 5] =
    ["session_list", "session_poll", "session_output", "session_checkpoints", "session_destroy"];

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ExecArguments<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow, default)]
    budget: Option<&'a RawValue>,
}

pub(super) fn said(line: &[u8]) -> Said {
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(line) else { return Said::Other };
    match (envelope.id.and_then(spell), envelope.method.as_deref()) {
        (Some(id), Some("initialize")) => Said::Initialize(id),
        (None, Some("notifications/initialized")) => Said::Initialized,
        (Some(id), Some("tools/call")) => Said::Request(id, call(envelope.params)),
        (Some(id), Some(_)) => Said::Request(id, Asked::Reading),
        (_, _) => Said::Other,
    }
}

fn call(params: Option<&RawValue>) -> Asked {
    let call = params.and_then(|params| serde_json::from_str::<Call<'_>>(params.get()).ok());
    let Some(call) = call else { return Asked::Changing { tool: None } };
    if READING.contains(&call.name.as_ref()) {
        return Asked::Reading;
    }
    let arguments = call.arguments.and_then(|raw| serde_json::from_str::<ExecArguments<'_>>(raw.get()).ok());
    match arguments {
        Some(arguments) if call.name == "session_exec" => Asked::Exec(Exec {
            session_id: arguments.session_id.into_owned(),
            budget: arguments.budget.map(|raw| raw.get().to_owned()),
            meta: call.meta.map(|raw| raw.get().to_owned()),
        }),
        _ => Asked::Changing { tool: Some(call.name.into_owned()) },
    }
}

pub(super) fn heard(line: &[u8]) -> Heard {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Accepted<'a> {
        #[serde(borrow)]
        request_id: &'a RawValue,
        command: u64,
    }
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(line) else { return Heard::Other };
    match (envelope.id.and_then(spell), envelope.method.as_deref(), envelope.params) {
        (Some(id), None, _) => Heard::Answer(id),
        (None, Some(ACCEPTED), Some(params)) => serde_json::from_str::<Accepted<'_>>(params.get())
            .ok()
            .and_then(|told| {
                Some(Heard::Accepted { request: spell(told.request_id)?, command: told.command })
            })
            .unwrap_or(Heard::Other),
        (_, _, _) => Heard::Other,
    }
}

fn spell(id: &RawValue) -> Option<Id> {
    match serde_json::from_str::<Value>(id.get()).ok()? {
        id @ (Value::String(_) | Value::Number(_)) => Some(id.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_client_are_told_apart() {
        let exec = Asked::Exec(Exec {
            session_id: "1_local".to_owned(),
            budget: Some(r#"{"max_chars": 5}"#.to_owned()),
            meta: Some(r#"{"progressToken":1}"#.to_owned()),
        });
        for (line, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#,
                Said::Initialize("0".to_owned()),
            ),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, Said::Initialized),
            (r#"{"id":"\u0061","method":"tools/list"}"#, Said::Request("\"a\"".to_owned(), Asked::Reading)),
            (
                r#"{"id":1,"method":"tools/call","params":{"name":"session_poll","arguments":{}}}"#,
                Said::Request("1".to_owned(), Asked::Reading),
            ),
            (
                r#"{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":1},"name":"session_exec","arguments":{"command":"x","session_id":"1_local","budget":{"max_chars": 5}}}}"#,
                Said::Request("1".to_owned(), exec),
            ),
            (
                r#"{"id":1,"method":"tools/call","params":{"name":"session_create","arguments":{}}}"#,
                Said::Request("1".to_owned(), Asked::Changing { tool: Some("session_create".to_owned()) }),
            ),
            (
                r#"{"id":1,"method":"tools/call"}"#,
                Said::Request("1".to_owned(), Asked::Changing { tool: None }),
            ),
            (r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#, Said::Other),
            (r#"{"id":1,"result":{}}"#, Said::Other),
            (r#"{"id":null,"method":"x"}"#, Said::Other),
            ("junk", Said::Other),
            ("[]", Said::Other),
        ] {
            assert_eq!(said(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn lines_of_the_server_are_told_apart() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":"a","result":{"x":[1]}}"#, Heard::Answer("\"a\"".to_owned())),
            (r#"{"jsonrpc":"2.0","id":3,"error":{}}"#, Heard::Answer("3".to_owned())),
            (
                r#"{"jsonrpc":"2.0","method":"outlast/accepted","params":{"requestId":3,"command":7}}"#,
                Heard::Accepted { request: "3".to_owned(), command: 7 },
            ),
            (r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#, Heard::Other),
            (r#"{"id":3,"method":"ping"}"#, Heard::Other),
            ("", Heard::Other),
        ] {
            assert_eq!(heard(line.as_bytes()), expected, "{line}");
        }
    }
}
