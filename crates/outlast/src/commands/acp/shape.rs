//! From one vocabulary to the other: what an editor says in ACP as the server's requests, what the server
//! answers as ACP. Pure.

use agent_client_protocol::{Error, v1::schema};
use protocol::{Content, ContentBlock, McpServer, McpServers, Outcome, Reason, Session, Status, TurnEnded};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Where a sandboxed session's agent begins.
const SANDBOX_HOME: &str = "/home/user";

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(-32602, message)
}

pub(super) fn failed(message: impl Into<String>) -> Error {
    Error::new(-32603, message)
}

/// A refusal with the server's own sentence, code and status.
pub(super) fn refusal(error: &client::Error) -> Error {
    let code = match error.status() {
        Some(404 | 410) => -32002,
        Some(400 | 409 | 413) => -32602,
        _ => -32603,
    };
    let data = error.code().map(|code| json!({"code": code, "statusCode": error.status()}));
    let refusal = Error::new(code, error.to_string());
    match data {
        Some(data) => refusal.data(data),
        None => refusal,
    }
}

/// A prompt's blocks. Both sides spell them alike; what this side does not know is refused, not dropped.
pub(super) fn content(blocks: &[schema::ContentBlock]) -> Result<Content, Error> {
    let value = serde_json::to_value(blocks).map_err(|error| failed(error.to_string()))?;
    let blocks: Vec<ContentBlock> = serde_json::from_value(value)
        .map_err(|error| invalid(format!("the prompt holds what the server cannot pass on: {error}")))?;
    Ok(Content::Blocks(blocks))
}

pub(super) fn mcp_servers(servers: Vec<schema::McpServer>) -> Result<Option<McpServers>, Error> {
    let mut named = McpServers::new();
    for server in servers {
        let (name, server) = match server {
            schema::McpServer::Http(server) => {
                let headers = server.headers.into_iter().map(|header| (header.name, header.value)).collect();
                (server.name, McpServer::Url { url: server.url, headers })
            }
            schema::McpServer::Sse(server) => {
                let headers = server.headers.into_iter().map(|header| (header.name, header.value)).collect();
                (server.name, McpServer::Url { url: server.url, headers })
            }
            schema::McpServer::Stdio(server) => {
                let command = text(&server.command)?;
                let env = server.env.into_iter().map(|variable| (variable.name, variable.value)).collect();
                (server.name, McpServer::Command { command, args: server.args, env })
            }
            _ => return Err(invalid("an MCP server of a kind that is not known here")),
        };
        if named.insert(name.clone(), server).is_some() {
            return Err(invalid(format!("two MCP servers are called {name:?}")));
        }
    }
    Ok((!named.is_empty()).then_some(named))
}

/// A folder as the server takes it.
pub(super) fn text(path: &Path) -> Result<String, Error> {
    let text = path.to_str().ok_or_else(|| invalid(format!("{} is not UTF-8", path.display())))?;
    Ok(text.to_owned())
}

/// What a turn's end means to an editor: a stop reason where ACP has one, else an error that says what happened.
pub(super) fn stop(ended: &TurnEnded) -> Result<schema::PromptResponse, Error> {
    let reason = match (ended.outcome, ended.reason) {
        (_, Reason::MaxTokens) => schema::StopReason::MaxTokens,
        (_, Reason::MaxTurnRequests | Reason::StepLimit | Reason::Budget) => {
            schema::StopReason::MaxTurnRequests
        }
        (_, Reason::Refusal) => schema::StopReason::Refusal,
        (Outcome::Done, _) => schema::StopReason::EndTurn,
        // Somebody wanted it so, here or at another door.
        (Outcome::Cancelled, _) | (_, Reason::SessionPaused | Reason::SessionEnded) => {
            schema::StopReason::Cancelled
        }
        (Outcome::Failed | Outcome::TimedOut | Outcome::Interrupted, _) => return Err(failure(ended)),
    };
    Ok(schema::PromptResponse::new(reason))
}

fn failure(ended: &TurnEnded) -> Error {
    let what = match ended.outcome {
        Outcome::TimedOut => "the turn took too long",
        Outcome::Interrupted => "the turn was interrupted",
        Outcome::Done | Outcome::Failed | Outcome::Cancelled => "the turn failed",
    };
    let reason = json!(ended.reason);
    let why = match &ended.message {
        Some(message) => message.clone(),
        None => reason.as_str().unwrap_or_default().replace('_', " "),
    };
    failed(format!("{what}: {why}")).data(json!({"outcome": ended.outcome, "reason": reason}))
}

/// A session in a list, unless it is none for this editor: ended, or at home in another folder. One that names
/// no folder lives in its sandbox, and is listed for every folder.
pub(super) fn listed(session: &Session, folder: Option<&Path>) -> Option<schema::SessionInfo> {
    if session.status == Status::Ended {
        return None;
    }
    let cwd = match (&session.cwd, folder) {
        (Some(cwd), Some(folder)) if Path::new(cwd) != folder => return None,
        (Some(cwd), _) => PathBuf::from(cwd),
        (None, Some(folder)) => folder.to_owned(),
        (None, None) => PathBuf::from(SANDBOX_HOME),
    };
    let title = session.name.clone().unwrap_or_else(|| session.agent_name.clone());
    Some(
        schema::SessionInfo::new(session.id.to_string(), cwd)
            .title(title)
            .updated_at(session.last_active_at.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(outcome: Outcome, reason: Reason) -> TurnEnded {
        let turn = "019a8000-0000-7000-8000-000000000001".parse().unwrap();
        TurnEnded { turn, outcome, reason, message: None, usage: None }
    }

    #[test]
    fn every_end_of_a_turn_has_a_word() {
        use schema::StopReason as Stop;
        for (outcome, reason, stop_reason) in [
            (Outcome::Done, Reason::EndTurn, Stop::EndTurn),
            (Outcome::Done, Reason::MaxTokens, Stop::MaxTokens),
            (Outcome::Done, Reason::Refusal, Stop::Refusal),
            (Outcome::Failed, Reason::Budget, Stop::MaxTurnRequests),
            (Outcome::Cancelled, Reason::Cancelled, Stop::Cancelled),
            (Outcome::Cancelled, Reason::Superseded, Stop::Cancelled),
            (Outcome::Interrupted, Reason::SessionPaused, Stop::Cancelled),
        ] {
            assert_eq!(
                stop(&ended(outcome, reason)).unwrap().stop_reason,
                stop_reason,
                "{outcome:?} {reason:?}"
            );
        }
        for (outcome, reason, sentence) in [
            (Outcome::Interrupted, Reason::AgentDied, "the turn was interrupted: agent died"),
            (Outcome::Failed, Reason::AgentError, "the turn failed: agent error"),
        ] {
            assert_eq!(stop(&ended(outcome, reason)).unwrap_err().message, sentence);
        }
    }

    #[test]
    fn blocks_pass_unchanged() {
        let value = json!([
            {"type": "text", "text": "look"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
        ]);
        let blocks: Vec<schema::ContentBlock> = serde_json::from_value(value.clone()).unwrap();
        let passed = content(&blocks).unwrap();
        assert_eq!(serde_json::to_value(passed).unwrap(), value);
    }

    #[test]
    fn mcp_servers_are_named_once() {
        let server = |name: &str| schema::McpServer::Stdio(schema::McpServerStdio::new(name, "/bin/x"));
        assert_eq!(mcp_servers(vec![]).unwrap(), None);
        assert_eq!(mcp_servers(vec![server("a"), server("b")]).unwrap().unwrap().len(), 2);
        assert!(mcp_servers(vec![server("a"), server("a")]).is_err());
    }
}
