//! What callers send and get back, beyond sessions and events themselves.

use crate::{
    AgentName, Content, CredentialId, Disposition, KeyId, McpServers, OnBusy, PlaceKind, Policy, Scope, Seq,
    SessionId, SessionKind, Status, Tenant, Timestamp, TurnId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `POST /api/sessions`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateSession {
    pub agent: AgentName,
    /// Overrides the agent's default model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Merged over the agent's `.mcp.json`; an entry of the same name wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<McpServers>,
    /// Replaces the agent's CLAUDE.md in this session's copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Told to the agent once, through its session: with it where the agent takes that, else before the first prompt.
    /// No file is changed, so that sessions which share a sandbox can each have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional_instructions: Option<String>,
    /// A stored credential whose variables join the agent's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential_id: Option<CredentialId>,
    /// More environment; wins over the credential's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_env: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it runs; the server's default, most often a sandbox, unless named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PlaceKind>,
    /// The key of a sandbox to share with other sessions of the tenant; it is made when there is none. Each session
    /// has a process of its own, and all see the same files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Where the agent starts, as it sees it; its home unless named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Narrows the agent's policy; it can widen nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// `POST /api/sessions/:id/fork`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkSession {
    /// The last event that both share; the session's last one unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Seq>,
    /// The parent's unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Which sessions a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SessionKindFilter {
    #[default]
    Agent,
    Shell,
    All,
}

impl SessionKindFilter {
    pub const fn kind(self) -> Option<SessionKind> {
        match self {
            Self::Agent => Some(SessionKind::Agent),
            Self::Shell => Some(SessionKind::Shell),
            Self::All => None,
        }
    }
}

/// `GET /api/sessions`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
pub struct ListSessions {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(default)]
    pub kind: SessionKindFilter,
    /// 1 to 1,000; without it, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `nextCursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// `POST /api/sessions/:id/messages`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SendMessage {
    pub content: Content,
    /// The caller's own id: sent again with the same content, it returns the first outcome and runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default)]
    pub on_busy: OnBusy,
    /// A model for the session from this turn on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Stream deltas as they come, not only whole messages.
    #[serde(default)]
    pub include_partial_messages: bool,
    /// Steps that the turn may have: what the agent does between two results of its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// What the turn may cost, as far as the agent tells; one that does not tell is warned of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
}

/// `PATCH /api/sessions/:id/config`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Configure {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought_level: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `POST /api/sessions/:id/permissions/:permission`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AnswerPermission {
    /// One of the request's options; null cancels the request. Never left out: an empty object must not cancel.
    #[serde(deserialize_with = "Option::deserialize")]
    pub option_id: Option<String>,
}

/// One message of a session's history, merged from its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    pub id: uuid::Uuid,
    pub session_id: SessionId,
    pub tenant_id: Tenant,
    pub turn: Option<TurnId>,
    pub role: Role,
    pub content: String,
    /// The seq of the message's last event; `after` takes it.
    pub sequence: Seq,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    User,
    Assistant,
}

/// What a caller is told of a prompt once it is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Accepted {
    pub turn: TurnId,
    /// The seq of its `prompt_accepted` event.
    pub seq: Seq,
    pub disposition: Disposition,
}

/// `POST /api/agents`: files, or a path that the server itself can read (operators only).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeployAgent {
    pub name: AgentName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<DeployFile>>,
    /// Written as the agent's CLAUDE.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeployFile {
    /// Relative, without `..`.
    pub path: String,
    pub content: String,
    #[serde(default)]
    pub encoding: FileEncoding,
    #[serde(default)]
    pub executable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FileEncoding {
    #[default]
    #[serde(alias = "utf-8", alias = "utf8")]
    Utf8,
    Base64,
}

/// `POST /api/credentials`: a set of variables, or one key under the name its type gives.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateCredential {
    /// `anthropic`, `openai`, `google`, `custom`, …
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl std::fmt::Debug for CreateCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateCredential")
            .field("kind", &self.kind)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

/// A credential as callers see it: never its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Credential {
    pub id: CredentialId,
    pub tenant_id: Tenant,
    #[serde(rename = "type")]
    pub kind: String,
    pub label: Option<String>,
    /// The names of its variables.
    pub variables: Vec<String>,
    pub created_at: Timestamp,
}

/// `POST /api/api-keys`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKey {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub scope: Scope,
    /// Another tenant's, for an admin of `default`; made when it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
}

/// A key as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    pub id: KeyId,
    pub tenant_id: Tenant,
    pub scope: Scope,
    pub label: Option<String>,
    pub created_at: Timestamp,
}

/// The answer to [`CreateKey`]: the only time the key itself is shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedKey {
    pub api_key: ApiKey,
    pub key: String,
}

impl std::fmt::Debug for CreatedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedKey").field("api_key", &self.api_key).finish_non_exhaustive()
    }
}

/// `GET /health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// `ok`, or `full` while the disk leaves no room for new work.
    pub status: String,
    pub version: String,
    /// Sessions that have a live task now.
    pub active_sessions: usize,
    pub active_sandboxes: usize,
    /// Seconds.
    pub uptime: u64,
}
