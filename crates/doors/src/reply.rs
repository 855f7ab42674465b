//! The envelopes around protocol types in answers.

use protocol::{Agent, ApiKey, Credential, FileEntry, Health, Message, Session, limits};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionReply {
    pub(crate) session: Session,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionsReply {
    /// Newest first.
    pub(crate) sessions: Vec<Session>,
    /// Ask again with it as `cursor` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessagesReply {
    pub(crate) messages: Vec<Message>,
}

/// Never built: the answer is written around the stored text. Here for the document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct EventsReply {
    /// Consecutive events in order, as they are stored.
    #[schema(value_type = Vec<Object>)]
    events: Vec<EventObject>,
    /// The session's last event when the page was read; `after` it there is nothing yet.
    #[schema(rename = "lastSeq")]
    last_seq: u64,
}

#[derive(ToSchema)]
pub(crate) struct EventObject {}

/// The end of what the agent wrote to stderr.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LogsReply {
    pub(crate) text: String,
    /// Bytes before `text` that are no longer kept.
    pub(crate) dropped: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileReply {
    pub(crate) file: FileEntry,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileRemovedReply {
    pub(crate) ok: bool,
    pub(crate) path: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AgentReply {
    pub(crate) agent: Agent,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AgentsReply {
    pub(crate) agents: Vec<Agent>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AgentRemovedReply {
    pub(crate) ok: bool,
    /// As it was last.
    pub(crate) agent: Agent,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CredentialReply {
    pub(crate) credential: Credential,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CredentialsReply {
    pub(crate) credentials: Vec<Credential>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyReply {
    pub(crate) api_key: ApiKey,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeysReply {
    pub(crate) api_keys: Vec<ApiKey>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthReply {
    #[serde(flatten)]
    pub(crate) health: Health,
    pub(crate) pool: Pool,
}

/// Sandboxes by state, as existing clients read them. Without sandboxes each live session counts as running.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pool {
    total: usize,
    cold: usize,
    warming: usize,
    warm: usize,
    waiting: usize,
    running: usize,
    max_capacity: usize,
    resume_warm_hits: u64,
    resume_cold_hits: u64,
    pre_warm_hits: u64,
}

impl From<Health> for HealthReply {
    fn from(health: Health) -> Self {
        let pool = Pool {
            total: health.active_sandboxes,
            cold: 0,
            warming: 0,
            warm: 0,
            waiting: 0,
            running: health.active_sandboxes,
            max_capacity: limits::LIVE_SESSIONS,
            resume_warm_hits: 0,
            resume_cold_hits: 0,
            pre_warm_hits: 0,
        };
        Self { health, pool }
    }
}
