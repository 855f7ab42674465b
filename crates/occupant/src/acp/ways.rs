//! Which ways lead back to a conversation, and in which order. Whether the agent still has it is asked where that can be
//! asked: an agent may answer `session/resume` with success and have forgotten everything, and nothing in that answer
//! tells. One that offers `session/list` must list the conversation, or it is neither resumed nor forked but loaded, which
//! is compared, or given a transcript. One that offers no list is believed, unless its owner says not to
//! ([`protocol::WaysBack`]).

use super::{
    Acp, Before, Whose,
    handshake::{Agent, Step},
    rpc,
};
use crate::Cx;
use agent_client_protocol_schema::v1::ListSessionsRequest;
use protocol::WaysBack;
use serde_json::Value;
use std::collections::VecDeque;

/// Pages of `session/list` that are looked through; a conversation beyond them may be there.
const LIST_PAGES: u32 = 20;

/// What a page of the list says of the conversation.
#[derive(Debug, PartialEq, Eq)]
enum Listed {
    Here,
    Nowhere,
    /// Perhaps on the page behind this cursor.
    Further(String),
}

fn look(answer: &Value, session: &str) -> Option<Listed> {
    let listed = answer.get("sessions")?.as_array()?;
    if listed.iter().any(|one| one["sessionId"] == session) {
        return Some(Listed::Here);
    }
    let cursor = answer.get("nextCursor").and_then(Value::as_str).filter(|cursor| !cursor.is_empty());
    Some(cursor.map_or(Listed::Nowhere, |cursor| Listed::Further(cursor.to_owned())))
}

impl Acp {
    /// The steps to try, the best first; a new session is always the last.
    pub(super) fn ways(&self, agent: &Agent) -> VecDeque<Step> {
        let mut ways = VecDeque::new();
        let terms = &self.begin.terms;
        if self.begin.resume.is_some() {
            let any = terms.ways == WaysBack::Any;
            if any && agent.can_fork && terms.whose == Whose::Parents {
                ways.push_back(Step::Fork);
            }
            if any && agent.can_resume {
                ways.push_back(Step::Resume);
            }
            // Before its first prompt a conversation may be in no list, and there is nothing to forget.
            let spoken = matches!(terms.before, Before::Conversation { .. });
            if !ways.is_empty() && agent.can_list && spoken {
                ways.push_front(Step::List);
            }
            if agent.can_load && matches!(terms.ways, WaysBack::Any | WaysBack::Load) {
                ways.push_back(Step::Load);
            }
        }
        ways.push_back(Step::New);
        ways
    }

    pub(super) fn ask_list(&mut self, cursor: Option<String>, mut agent: Agent, cx: &mut Cx) {
        agent.pages += 1;
        let call = self.call(cx);
        cx.send(rpc::request(&call, Step::List.call(), &ListSessionsRequest::new().cursor(cursor)));
        self.wait(Step::List, call, agent, cx);
    }

    /// A page has come.
    pub(super) fn listed(&mut self, answer: &Value, mut agent: Agent, cx: &mut Cx) {
        let session = self.begin.resume.as_deref().unwrap_or_default();
        match look(answer, session) {
            Some(Listed::Further(cursor)) if agent.pages < LIST_PAGES => {
                return self.ask_list(Some(cursor), agent, cx);
            }
            Some(Listed::Nowhere) => {
                self.warn("session/list does not have the conversation any more: the agent forgot it", cx);
                agent.ways.retain(|way| !matches!(way, Step::Fork | Step::Resume));
            }
            // There, or nobody can tell.
            Some(Listed::Here | Listed::Further(_)) | None => {}
        }
        self.go_on(agent, cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_says_here_nowhere_or_further() {
        let page = |ids: &[&str], cursor: Value| {
            let sessions: Vec<_> = ids.iter().map(|id| json!({"sessionId": id, "cwd": "/"})).collect();
            json!({"sessions": sessions, "nextCursor": cursor})
        };
        for (answer, expected) in [
            (page(&["a", "mine"], Value::Null), Some(Listed::Here)),
            (page(&["mine"], json!("more")), Some(Listed::Here)),
            (page(&["a"], json!("more")), Some(Listed::Further("more".to_owned()))),
            (page(&["a"], json!("")), Some(Listed::Nowhere)),
            (page(&[], Value::Null), Some(Listed::Nowhere)),
            (json!({"sessions": []}), Some(Listed::Nowhere)),
            (json!({}), None),
            (json!({"sessions": "none"}), None),
            (Value::Null, None),
        ] {
            assert_eq!(look(&answer, "mine"), expected, "{answer}");
        }
    }
}
