//! A turn: one prompt and everything until its one recorded outcome.

use crate::{Tenant, Usd};
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

/// What turns have used, added up as far as their agents said. A sum that is full stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageSums {
    /// Turns that have ended, each with its `turn_ended` event.
    pub turns: u64,
    /// Of these, turns of which nobody said what they used.
    pub untold_turns: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_read_tokens: u64,
    pub cached_write_tokens: u64,
    pub thought_tokens: u64,
    pub cost_usd: Usd,
}

impl UsageSums {
    /// The most that a sum can be: every reader of JSON knows it exactly.
    pub const MOST: u64 = (1 << 53) - 1;

    /// One turn, with what its agent said of it.
    pub fn of_turn(usage: Option<&Usage>) -> Self {
        let told = usage.copied().unwrap_or_default();
        let most = |count: u64| count.min(Self::MOST);
        Self {
            turns: 1,
            untold_turns: u64::from(usage.is_none()),
            input_tokens: most(told.input_tokens),
            output_tokens: most(told.output_tokens),
            cached_read_tokens: most(told.cached_read_tokens.unwrap_or(0)),
            cached_write_tokens: most(told.cached_write_tokens.unwrap_or(0)),
            thought_tokens: most(told.thought_tokens.unwrap_or(0)),
            cost_usd: Usd::from_micros(most(told.cost_usd.and_then(Usd::new).unwrap_or_default().micros())),
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |a: u64, b: u64| a.saturating_add(b).min(Self::MOST);
        Self {
            turns: sum(self.turns, other.turns),
            untold_turns: sum(self.untold_turns, other.untold_turns),
            input_tokens: sum(self.input_tokens, other.input_tokens),
            output_tokens: sum(self.output_tokens, other.output_tokens),
            cached_read_tokens: sum(self.cached_read_tokens, other.cached_read_tokens),
            cached_write_tokens: sum(self.cached_write_tokens, other.cached_write_tokens),
            thought_tokens: sum(self.thought_tokens, other.thought_tokens),
            cost_usd: Usd::from_micros(sum(self.cost_usd.micros(), other.cost_usd.micros())),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `GET /api/usage`: what a tenant has used, and what it has stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageReport {
    pub tenant_id: Tenant,
    /// Of all its turns ever; removing a session takes nothing back.
    pub usage: UsageSums,
    pub stored: Stored,
}

/// What is in the store now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stored {
    pub sessions: u64,
    pub events: u64,
    /// Of events' bodies.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_stop_when_full() {
        let cent = Usage { input_tokens: 3, cost_usd: Some(0.01), ..Usage::default() };
        let mut sums = UsageSums::default();
        assert!(sums.is_empty());
        for told in [Some(&cent), None, Some(&cent)] {
            sums = sums.plus(UsageSums::of_turn(told));
        }
        assert_eq!((sums.turns, sums.untold_turns, sums.input_tokens), (3, 1, 6));
        assert_eq!(sums.cost_usd, Usd::new(0.02).unwrap());
        let huge = Usage { input_tokens: u64::MAX, cost_usd: Some(1e300), ..Usage::default() };
        let sums = UsageSums::of_turn(Some(&huge)).plus(UsageSums::of_turn(Some(&huge)));
        assert_eq!((sums.input_tokens, sums.cost_usd.micros()), (UsageSums::MOST, UsageSums::MOST));
        let text = serde_json::to_string(&sums).unwrap();
        assert_eq!(serde_json::from_str::<UsageSums>(&text).unwrap().input_tokens, UsageSums::MOST);
        assert_eq!(serde_json::from_str::<UsageSums>("{}").unwrap(), UsageSums::default());
    }
}
