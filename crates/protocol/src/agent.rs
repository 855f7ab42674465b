//! Agents as they are deployed: a folder with an `agent.toml`.

use crate::{AgentName, Policy, Tenant, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `agent.toml`: how an agent runs. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentManifest {
    /// The program: a name looked up in PATH, or a path below the agent's folder such as `./bin/agent`.
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    /// Its whole environment, with PATH and HOME given when missing. Nothing of the server's comes along.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The model used when a session names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How it gets its MCP servers.
    #[serde(default)]
    pub mcp: McpDelivery,
    /// The `authenticate` method to call before a session, one of those that the agent offers. Without it none
    /// is called, unless the agent demands it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<String>,
    /// Which of its own ways back to a conversation are used.
    #[serde(default, skip_serializing_if = "WaysBack::is_any")]
    pub resume: WaysBack,
    #[serde(default)]
    pub policy: Policy,
}

/// Which of an agent's own ways back to a conversation are used. Where none of them leads there, a transcript does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WaysBack {
    /// `session/resume` (for a fork, `session/fork` before it), then `session/load`.
    #[default]
    Any,
    /// `session/load` alone, whose replay is compared: for an agent that says it resumed and did not.
    Load,
    /// None of them.
    Transcript,
}

impl WaysBack {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_any(&self) -> bool {
        *self == Self::Any
    }
}

/// How MCP servers reach an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum McpDelivery {
    /// In ACP's `session/new`.
    #[default]
    Session,
    /// The agent reads `.mcp.json` itself: its workspace's copy is the merged one.
    File,
}

/// A deployed agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    /// Stable across versions.
    pub id: uuid::Uuid,
    pub tenant_id: Tenant,
    pub name: AgentName,
    /// The newest version; sessions keep the one they were made from.
    pub version: u32,
    /// Where the version's files are, relative to the server's data folder.
    pub path: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub manifest: AgentManifest,
}

/// MCP servers by name, as in `.mcp.json`.
pub type McpServers = BTreeMap<String, McpServer>;

/// One MCP server: a URL, or a command to start. Exactly one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "McpServerFields", into = "McpServerFields")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = McpServer))]
pub enum McpServer {
    Url { url: String, headers: BTreeMap<String, String> },
    Command { command: String, args: Vec<String>, env: BTreeMap<String, String> },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct McpServerFields {
    /// `http`, `sse` or `stdio`, as some clients write it; the other fields already say it.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
}

impl TryFrom<McpServerFields> for McpServer {
    type Error = &'static str;
    fn try_from(fields: McpServerFields) -> Result<Self, Self::Error> {
        match (fields.url, fields.command) {
            (Some(_), Some(_)) => Err("an MCP server has a url or a command, not both"),
            (None, None) => Err("an MCP server needs a url or a command"),
            (Some(url), None) if !(url.starts_with("http://") || url.starts_with("https://")) => {
                Err("an MCP server's url must begin with http:// or https://")
            }
            (Some(_), None) if !fields.args.is_empty() || !fields.env.is_empty() => {
                Err("an MCP server with a url takes no args or env")
            }
            (Some(url), None) => Ok(Self::Url { url, headers: fields.headers }),
            (None, Some(_)) if !fields.headers.is_empty() => {
                Err("an MCP server with a command takes no headers")
            }
            (None, Some(command)) if command.is_empty() => Err("an MCP server's command is empty"),
            (None, Some(command)) => Ok(Self::Command { command, args: fields.args, env: fields.env }),
        }
    }
}

impl From<McpServer> for McpServerFields {
    fn from(server: McpServer) -> Self {
        let empty = Self {
            kind: None,
            url: None,
            headers: BTreeMap::new(),
            command: None,
            args: vec![],
            env: BTreeMap::new(),
        };
        match server {
            McpServer::Url { url, headers } => Self { url: Some(url), headers, ..empty },
            McpServer::Command { command, args, env } => Self { command: Some(command), args, env, ..empty },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mcp_server_is_one_or_the_other() {
        let parse = |text: &str| serde_json::from_str::<McpServer>(text);
        assert!(parse(r#"{"url":"http://h/mcp"}"#).is_ok());
        assert!(parse(r#"{"type":"stdio","command":"x","args":["y"],"env":{"A":"b"}}"#).is_ok());
        for bad in [
            r#"{}"#,
            r#"{"url":"http://h","command":"x"}"#,
            r#"{"url":"file:///etc"}"#,
            r#"{"url":"http://h","args":["x"]}"#,
            r#"{"command":""}"#,
            r#"{"command":"x","headers":{"a":"b"}}"#,
            r#"{"command":"x","unknown":1}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
