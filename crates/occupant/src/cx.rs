//! What a machine wants done, in order. Events are numbered at once; an effect fires when every event that
//! was recorded before it is durable.

use crate::{Ask, AskId};
use bytes::Bytes;
use protocol::{Actor, Body, Fault, How, Outcome, Reason, Seq, SessionConfig, Timestamp, TurnId, Usage};

/// One step of a machine: the time it happens at, and what it leaves behind.
#[derive(Debug)]
pub struct Cx {
    pub now: Timestamp,
    last_seq: Seq,
    records: Vec<(Actor, Body)>,
    effects: Vec<(Seq, Effect)>,
    asks: Vec<(AskId, Ask)>,
}

/// What a step left behind.
#[derive(Debug, Default)]
pub struct Drained {
    pub records: Vec<(Actor, Body)>,
    /// Each fires once the seq beside it is durable.
    pub effects: Vec<(Seq, Effect)>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A whole line for the process's input.
    Send(Bytes),
    /// Something for the session to act on.
    Say(Said),
}

/// What a machine tells its session.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// The handshake is finished and the settings are applied; `occupant_started` was recorded.
    Ready { how: How, agent_session: String },
    /// Exactly once for each prompt. The session records `turn_ended`, the machine does not.
    TurnEnded {
        turn: TurnId,
        outcome: Outcome,
        reason: Reason,
        message: Option<String>,
        usage: Option<Usage>,
    },
    /// Once for each `configure`, in order. What the agent took is recorded as `session_config` before this.
    Configured(Result<SessionConfig, Fault>),
    /// At most once, and last: the process must be stopped, and this machine does nothing more.
    Unusable(Fault),
}

impl Cx {
    /// `last_seq` is the last number that the session has given out.
    pub fn new(now: Timestamp, last_seq: Seq) -> Self {
        Self { now, last_seq, records: Vec::new(), effects: Vec::new(), asks: Vec::new() }
    }

    /// Numbers an event.
    pub fn record(&mut self, actor: Actor, body: impl Into<Body>) -> Seq {
        self.last_seq += 1;
        self.records.push((actor, body.into()));
        self.last_seq
    }

    /// The number that the next event will get.
    pub fn next_seq(&self) -> Seq {
        self.last_seq + 1
    }

    pub fn send(&mut self, line: Bytes) {
        self.effects.push((self.last_seq, Effect::Send(line)));
    }

    pub fn say(&mut self, said: Said) {
        self.effects.push((self.last_seq, Effect::Say(said)));
    }

    /// Asks for something to be done in the session's place.
    pub(crate) fn ask(&mut self, id: AskId, ask: Ask) {
        self.asks.push((id, ask));
    }

    /// Takes what was asked for so far. [`crate::Acp::done`] takes what came of each, in any order; one whose
    /// machine is over need not be answered.
    pub fn take_asks(&mut self) -> Vec<(AskId, Ask)> {
        std::mem::take(&mut self.asks)
    }

    /// The last number given out.
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// Takes what was said so far; the session acts on it within the same step.
    pub fn take_said(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        self.effects.retain_mut(|(_, effect)| match effect {
            Effect::Send(_) => true,
            Effect::Say(word) => {
                said.push(word.clone());
                false
            }
        });
        said
    }

    pub fn drain(self) -> Drained {
        Drained { records: self.records, effects: self.effects }
    }

    /// The time `secs` from now.
    pub(crate) fn after(&self, secs: u64) -> Timestamp {
        let millis = i64::try_from(secs.saturating_mul(1000)).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.now.as_millis().saturating_add(millis))
    }
}
