//! What was asked and is not yet answered, and what becomes of it when the server goes away and comes back. Pure.
//!
//! Every request gets one answer: what only reads is asked again, a command that was accepted is read on, and
//! for the rest the caller is told what is known.

use super::watch::{Asked, Heard, Id, Said};
use serde_json::{Value, json};
use std::collections::HashMap;

/// A longer request is not kept to be asked again.
const KEPT_BYTES: usize = 64 * 1024;
/// How long a command that is read on may still take: as long as any.
const WAIT_SECS: u64 = 3600;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The client's first words, to be said to every server.
    initialize: Option<(Id, Vec<u8>)>,
    initialized: Option<Vec<u8>>,
    /// The answer to the repeated first words, which the client has had already.
    repeated: Option<Id>,
    open: HashMap<Id, Open>,
}

#[derive(Debug)]
struct Open {
    asked: Asked,
    /// The line, where it may be said again.
    line: Option<Vec<u8>>,
    /// The command that it became.
    command: Option<u64>,
}

/// Whether the client gets to see a line of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    On,
    Swallow,
}

/// What to say after a server came back.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Resumption {
    pub(super) to_server: Vec<Vec<u8>>,
    pub(super) to_client: Vec<Vec<u8>>,
}

impl Ledger {
    pub(super) fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    /// Before the line is sent.
    pub(super) fn said(&mut self, said: Said, line: &[u8]) {
        match said {
            Said::Initialize(id) => {
                self.initialize = Some((id.clone(), line.to_vec()));
                self.open.insert(id, Open { asked: Asked::Reading, line: None, command: None });
            }
            Said::Initialized => self.initialized = Some(line.to_vec()),
            Said::Request(id, asked) => {
                let again = asked == Asked::Reading && line.len() <= KEPT_BYTES;
                let line = again.then(|| line.to_vec());
                self.open.insert(id, Open { asked, line, command: None });
            }
            Said::Other => {}
        }
    }

    pub(super) fn heard(&mut self, heard: Heard) -> Pass {
        match heard {
            Heard::Answer(id) => {
                let repeated = self.repeated.as_ref() == Some(&id);
                if repeated {
                    self.repeated = None;
                }
                let known = self.open.remove(&id).is_some();
                if repeated && !known { Pass::Swallow } else { Pass::On }
            }
            Heard::Accepted { request, command } => {
                if let Some(open) = self.open.get_mut(&request) {
                    open.command = Some(command);
                }
                Pass::Swallow
            }
            Heard::Other => Pass::On,
        }
    }

    /// A new server listens.
    pub(super) fn resume(&mut self) -> Resumption {
        let mut resumption = Resumption::default();
        if let Some((id, line)) = &self.initialize {
            resumption.to_server.push(line.clone());
            if !self.open.contains_key(id) {
                self.repeated = Some(id.clone());
            }
            resumption.to_server.extend(self.initialized.clone());
        }
        let first = self.initialize.as_ref().map(|(id, _)| id.clone());
        self.open.retain(|id, open| {
            if first.as_ref() == Some(id) {
                return true;
            }
            match again(id, open) {
                Some(line) => resumption.to_server.push(line),
                None => {
                    resumption.to_client.push(unknown(id, open));
                    return false;
                }
            }
            true
        });
        resumption
    }

    /// No server comes back: everything that is open is answered.
    pub(super) fn give_up(&mut self, why: &str) -> Vec<Vec<u8>> {
        let answer = |(id, open): (Id, Open)| match open.asked {
            Asked::Reading if open.line.is_none() || !is_call(&open) => line(
                &json!({ "jsonrpc": "2.0", "id": value(&id), "error": { "code": -32000, "message": why } }),
            ),
            Asked::Reading | Asked::Exec(_) | Asked::Changing { .. } => refusal(&id, "unreachable", why),
        };
        self.open.drain().map(answer).collect()
    }
}

fn is_call(open: &Open) -> bool {
    let line = open.line.as_deref().unwrap_or_default();
    line.windows(TOOLS_CALL.len()).any(|part| part == TOOLS_CALL)
}

const TOOLS_CALL: &[u8] = b"\"tools/call\"";

/// How to ask again, where that does nothing twice.
fn again(id: &str, open: &Open) -> Option<Vec<u8>> {
    match (&open.asked, open.command, &open.line) {
        (Asked::Reading, _, said) => said.clone(),
        (Asked::Exec(exec), Some(command), _) => {
            let mut arguments =
                json!({ "session_id": exec.session_id, "command_id": command, "wait_secs": WAIT_SECS });
            if let Some(budget) = exec.budget.as_deref().and_then(|raw| serde_json::from_str(raw).ok()) {
                arguments["budget"] = budget;
            }
            let mut params = json!({ "name": "session_poll", "arguments": arguments });
            if let Some(meta) = exec.meta.as_deref().and_then(|raw| serde_json::from_str(raw).ok()) {
                params["_meta"] = meta;
            }
            Some(line(
                &json!({ "jsonrpc": "2.0", "id": value(id), "method": "tools/call", "params": params }),
            ))
        }
        (Asked::Exec(_) | Asked::Changing { .. }, _, _) => None,
    }
}

/// What is said of a request that cannot be asked again.
fn unknown(id: &str, open: &Open) -> Vec<u8> {
    let text = match &open.asked {
        Asked::Exec(exec) => format!(
            "the server was restarted while this call was under way. If the command had begun, it goes on: session_list \
             shows its command_id as `running` of {}, and session_poll reads its result",
            exec.session_id
        ),
        Asked::Changing { tool } => format!(
            "the server was restarted while {} was under way; whether it was done is not known, session_list shows what there is",
            tool.as_deref().unwrap_or("this call")
        ),
        Asked::Reading => "the server was restarted while this call was under way; ask again".to_owned(),
    };
    refusal(id, "shutting_down", &text)
}

/// A tool's error, as the server itself says it.
fn refusal(id: &str, code: &str, text: &str) -> Vec<u8> {
    let error = json!({ "error": { "code": code, "message": text } }).to_string();
    let result = json!({ "content": [{ "type": "text", "text": error }], "isError": true });
    line(&json!({ "jsonrpc": "2.0", "id": value(id), "result": result }))
}

fn value(id: &str) -> Value {
    serde_json::from_str(id).unwrap_or_default()
}

fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::{super::watch, *};

    fn say(ledger: &mut Ledger, line: &str) {
        ledger.said(watch::said(line.as_bytes()), line.as_bytes());
    }

    fn hear(ledger: &mut Ledger, line: &str) -> Pass {
        ledger.heard(watch::heard(line.as_bytes()))
    }

    fn texts(lines: &[Vec<u8>]) -> Vec<String> {
        let mut texts: Vec<_> = lines.iter().map(|line| String::from_utf8(line.clone()).unwrap()).collect();
        texts.sort();
        texts
    }

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
    const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    const EXEC: &str = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"session_exec","arguments":{"session_id":"1_local","command":"x","budget":{"max_chars":9}}}}"#;

    #[test]
    fn first_words_are_repeated_and_answered_once() {
        let mut ledger = Ledger::default();
        say(&mut ledger, INITIALIZE);
        assert_eq!(hear(&mut ledger, r#"{"id":0,"result":{}}"#), Pass::On);
        say(&mut ledger, INITIALIZED);
        assert!(ledger.is_settled());
        let resumption = ledger.resume();
        assert_eq!(resumption.to_server, [INITIALIZE.as_bytes(), INITIALIZED.as_bytes()]);
        assert_eq!(hear(&mut ledger, r#"{"id":0,"result":{}}"#), Pass::Swallow);
        assert_eq!(hear(&mut ledger, r#"{"id":0,"result":{}}"#), Pass::On, "an id may be used again");
    }

    #[test]
    fn first_words_without_an_answer_are_answered_by_the_next_server() {
        let mut ledger = Ledger::default();
        say(&mut ledger, INITIALIZE);
        assert_eq!(ledger.resume().to_server, [INITIALIZE.as_bytes()]);
        assert_eq!(hear(&mut ledger, r#"{"id":0,"result":{}}"#), Pass::On);
    }

    #[test]
    fn an_accepted_command_is_read_on_under_its_old_id() {
        let mut ledger = Ledger::default();
        say(&mut ledger, EXEC);
        let told = r#"{"method":"outlast/accepted","params":{"requestId":5,"command":7}}"#;
        assert_eq!(hear(&mut ledger, told), Pass::Swallow);
        for _ in 0..2 {
            let resumption = ledger.resume();
            assert!(resumption.to_client.is_empty());
            let asked: Value = serde_json::from_slice(&resumption.to_server[0]).unwrap();
            assert_eq!(asked["id"], 5);
            assert_eq!(asked["params"]["name"], "session_poll");
            let arguments = json!({"session_id": "1_local", "command_id": 7, "wait_secs": 3600, "budget": {"max_chars": 9}});
            assert_eq!(asked["params"]["arguments"], arguments);
        }
        assert_eq!(hear(&mut ledger, r#"{"id":5,"result":{}}"#), Pass::On);
        assert!(ledger.is_settled());
    }

    #[test]
    fn what_cannot_be_asked_again_is_answered() {
        let mut ledger = Ledger::default();
        say(&mut ledger, EXEC);
        say(
            &mut ledger,
            r#"{"id":"c","method":"tools/call","params":{"name":"session_create","arguments":{}}}"#,
        );
        let list = r#"{"id":6,"method":"tools/list"}"#;
        say(&mut ledger, list);
        let resumption = ledger.resume();
        assert_eq!(resumption.to_server, [list.as_bytes()]);
        let told = texts(&resumption.to_client);
        assert!(told[0].contains("\"id\":\"c\"") && told[0].contains("session_create"), "{told:?}");
        assert!(told[1].contains("\"id\":5") && told[1].contains("session_poll"), "{told:?}");
        assert!(told.iter().all(|line| line.contains("\"isError\":true") && line.ends_with('\n')));
        assert_eq!(hear(&mut ledger, r#"{"id":6,"result":{}}"#), Pass::On);
        assert!(ledger.is_settled());
    }

    #[test]
    fn nobody_is_left_waiting() {
        let mut ledger = Ledger::default();
        say(&mut ledger, INITIALIZE);
        say(&mut ledger, EXEC);
        say(&mut ledger, r#"{"id":6,"method":"tools/list"}"#);
        let told = texts(&ledger.give_up("no server"));
        assert_eq!(told.len(), 3);
        assert!(told.iter().all(|line| line.contains("no server")));
        assert!(ledger.is_settled());
    }
}
