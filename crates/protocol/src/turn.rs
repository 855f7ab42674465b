//! A turn: one prompt and everything until its one recorded outcome.

use serde::{Deserialize, Serialize};

/// What a prompt that comes during a turn should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OnBusy {
    /// Wait behind the prompts that came before.
    #[default]
    Queue,
    /// Run next, before the queue, without ending the running turn.
    Steer,
    /// Cancel the running turn and run next.
    Interrupt,
    /// Be refused.
    Reject,
}

/// What became of a prompt when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Disposition {
    /// Its turn starts now.
    Started,
    /// It waits.
    Queued,
    /// It was accepted before under the same client id; this time nothing runs.
    Repeated,
}

/// How a turn ended. Every turn has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Outcome {
    /// The occupant finished it.
    Done,
    /// The occupant answered with an error, or broke.
    Failed,
    /// A caller asked for its end.
    Cancelled,
    /// A time limit passed.
    TimedOut,
    /// Something around it went away: the server, the session, the agent's process.
    Interrupted,
}

/// Why a turn ended as it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Reason {
    /// The agent said it was finished.
    EndTurn,
    /// The model's own token limit.
    MaxTokens,
    /// The agent's limit of model requests in one turn.
    MaxTurnRequests,
    /// A budget of the turn or the session was used up.
    Budget,
    /// The turn had as many steps as it may have.
    StepLimit,
    /// The agent refused to go on.
    Refusal,
    /// A caller cancelled it.
    Cancelled,
    /// A later prompt interrupted it.
    Superseded,
    /// The agent answered the prompt with an error.
    AgentError,
    /// The agent's process ended.
    AgentDied,
    /// The agent did not stop when cancelled and was killed.
    AgentUnresponsive,
    /// The agent broke the protocol, for example with a line over the limit.
    AgentProtocol,
    /// The agent could not be started or brought back.
    AgentNotStarted,
    /// The sandbox took more than its limits allow.
    LimitExceeded,
    /// The session was paused and its process stopped.
    SessionPaused,
    /// The session was ended or removed.
    SessionEnded,
    /// The server stopped and the agent with it.
    ServerStopped,
}

/// What a turn cost, as far as the agent said.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_read_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_write_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}
