//! The terms an agent lives under: what its owner allows it, what its place can do for it, what came before.
//! The session room fills them in from the agent's manifest, the session's record and the place.

use protocol::{Policy, Usage, Usd, WaysBack};
use serde::{Deserialize, Serialize};

/// In [`super::Begin`]; the default is an agent that is asked for everything and helped with nothing.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// The `authenticate` method to call before a session.
    pub auth: Option<String>,
    /// What the agent may ask of us.
    pub place: PlaceOffers,
    pub before: Before,
    /// Whose conversation the agent is asked to bring back.
    pub whose: Whose,
    /// Which of its own ways back the agent is trusted with.
    pub ways: WaysBack,
    /// Told to the agent once in each conversation of its own.
    pub instructions: Option<String>,
    pub policy: Policy,
    /// What the session's turns have used so far.
    pub spent: Spent,
}

/// What the session's place can do when the agent asks for it. Only what is here is advertised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum PlaceOffers {
    #[default]
    Nothing,
    /// `fs/read_text_file` and `fs/write_text_file`.
    Files,
    /// These, and `terminal/*`.
    FilesAndTerminals,
}

/// Whose a conversation is that an agent remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    #[default]
    Own,
    /// The session was forked and its agent has not run yet: what its home remembers is the parent's.
    Parents,
}

/// The conversation so far, as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Before {
    /// There was none, or nobody can write it down for the agent.
    #[default]
    Nothing,
    /// There was one. Where the agent cannot bring it back, [`crate::Ask::Transcript`] is asked.
    Conversation {
        /// The text of the last prompt that the agent was given: what `session/load` tells again must hold it.
        last_prompt: Option<String>,
    },
}

/// What a session's turns have used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    pub turns: u64,
    pub tokens: u64,
    pub cost: Usd,
}

impl Spent {
    /// One more turn has ended.
    pub fn add(&mut self, usage: Option<&Usage>) {
        self.turns = self.turns.saturating_add(1);
        if let Some(usage) = usage {
            self.tokens = self.tokens.saturating_add(usage.input_tokens).saturating_add(usage.output_tokens);
            self.cost = self.cost.plus(usage.cost_usd.and_then(Usd::new).unwrap_or_default());
        }
    }
}

/// The caller's limits for one turn, besides the policy's; the smaller one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TurnLimits {
    pub steps: Option<u32>,
    pub cost: Option<Usd>,
}

impl Terms {
    /// Both the caller's and the policy's.
    pub(super) fn limits(&self, asked: TurnLimits) -> TurnLimits {
        let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        TurnLimits {
            steps: least(asked.steps, self.policy.turn_steps),
            cost: asked.cost.into_iter().chain(self.policy.turn_cost_usd).min(),
        }
    }

    /// Why no further turn may start, if so.
    pub(super) fn exhausted(&self) -> Option<String> {
        let Policy { session_turns, session_tokens, session_cost_usd, .. } = &self.policy;
        let Spent { turns, tokens, cost } = self.spent;
        if let Some(most) = session_turns.filter(|most| turns >= *most) {
            return Some(format!("the session has had its {most} turns"));
        }
        if let Some(most) = session_tokens.filter(|most| tokens >= *most) {
            return Some(format!("the session has used {tokens} of its {most} tokens"));
        }
        if let Some(most) = session_cost_usd.filter(|most| cost >= *most) {
            return Some(format!("the session has cost {cost} of its {most}"));
        }
        None
    }
}
