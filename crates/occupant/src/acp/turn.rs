//! One prompt: sent, perhaps cancelled, and ended exactly once.

use super::{Acp, Phase, TurnLimits, rpc, saved, watch::Watch};
use crate::{Cx, Said};
use agent_client_protocol_schema::v1::CancelNotification;
use protocol::{
    Actor, AgentUpdate, ContentBlock, Outcome, Reason, Timestamp, TurnId, Usage, Usd,
    limits::CANCEL_GRACE_SECS,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

/// The turn that runs.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) id: TurnId,
    /// The id of its `session/prompt`: the seq of its `turn_started`.
    pub(super) call: String,
    /// Its own time limit.
    until: Option<Timestamp>,
    limits: TurnLimits,
    watch: Watch,
    stopping: Option<Stopping>,
}

/// It was told to stop and has not yet.
#[derive(Debug)]
struct Stopping {
    outcome: Outcome,
    reason: Reason,
    message: Option<String>,
    until: Timestamp,
}

/// See [`super::Saved`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedTurn {
    pub(super) id: TurnId,
    call: String,
    left: Option<i64>,
    stopping: Option<SavedStopping>,
    #[serde(default)]
    steps: Option<u32>,
    #[serde(default)]
    cost: Option<Usd>,
    #[serde(default)]
    watch: Watch,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SavedStopping {
    outcome: Outcome,
    reason: Reason,
    message: Option<String>,
    left: i64,
}

impl Turn {
    pub(super) fn save(&self, now: Timestamp) -> SavedTurn {
        SavedTurn {
            id: self.id,
            call: self.call.clone(),
            left: self.until.map(|until| saved::left(until, now)),
            stopping: self.stopping.as_ref().map(|stopping| SavedStopping {
                outcome: stopping.outcome,
                reason: stopping.reason,
                message: stopping.message.clone(),
                left: saved::left(stopping.until, now),
            }),
            steps: self.limits.steps,
            cost: self.limits.cost,
            watch: self.watch.clone(),
        }
    }

    pub(super) fn take_up(turn: SavedTurn, now: Timestamp) -> Self {
        Self {
            id: turn.id,
            call: turn.call,
            until: turn.left.map(|left| saved::until(left, now)),
            limits: TurnLimits { steps: turn.steps, cost: turn.cost },
            watch: turn.watch,
            stopping: turn.stopping.map(|stopping| Stopping {
                outcome: stopping.outcome,
                reason: stopping.reason,
                message: stopping.message,
                until: saved::until(stopping.left, now),
            }),
        }
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        match &self.stopping {
            Some(stopping) => Some(stopping.until),
            None => self.until,
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }
}

impl Acp {
    pub(super) fn start_turn(
        &mut self,
        turn: TurnId,
        content: &[ContentBlock],
        limits: TurnLimits,
        cx: &mut Cx,
    ) {
        let refused =
            |outcome: Outcome, reason: Reason, message: &str| Some((outcome, reason, message.to_owned()));
        let refusal = match &self.phase {
            Phase::Live { .. } if self.turn.is_none() => {
                self.begin.terms.exhausted().map(|why| (Outcome::Failed, Reason::Budget, why))
            }
            Phase::Live { .. } => refused(Outcome::Failed, Reason::AgentError, "a turn is running already"),
            Phase::Opening(_) => {
                refused(Outcome::Failed, Reason::AgentNotStarted, "the agent is not ready yet")
            }
            Phase::Over => refused(Outcome::Interrupted, Reason::AgentDied, "the agent is gone"),
        };
        if let Some((outcome, reason, message)) = refusal {
            let message = Some(message);
            cx.say(Said::TurnEnded { turn, outcome, reason, message, usage: None });
            return;
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            session_id: &'a str,
            prompt: Vec<&'a ContentBlock>,
        }
        let instructions =
            std::mem::take(&mut self.instruct).then_some(self.begin.terms.instructions.as_deref());
        let instructions = instructions.flatten().map(|text| ContentBlock::Text { text: preface(text) });
        let pointer = self.transcript.take().map(|path| ContentBlock::Text { text: pointer(&path) });
        let call = (cx.next_seq() - 1).to_string();
        let session_id = self.session().unwrap_or_default();
        let prompt = instructions.iter().chain(&pointer).chain(content).collect();
        cx.send(rpc::request(&call, "session/prompt", &Params { session_id, prompt }));
        let until = self.begin.turn_secs.map(|secs| cx.after(secs));
        let limits = self.begin.terms.limits(limits);
        self.meter.start_turn();
        self.turn = Some(Turn { id: turn, call, until, limits, watch: Watch::default(), stopping: None });
    }

    /// Looks at an update of the running turn, and stops it when it has had what it may have.
    pub(super) fn watch_turn(&mut self, update: &str, cx: &mut Cx) {
        let Some(turn) = &mut self.turn else { return };
        turn.watch.hear(update);
        if turn.is_stopping() {
            return;
        }
        let TurnLimits { steps, cost } = turn.limits;
        let (had, spent) = (turn.watch.steps, self.meter.turn());
        if let Some(most) = steps.filter(|most| had > *most) {
            let message = format!("the turn has had its {most} steps");
            return self.stop_turn(Outcome::Failed, Reason::StepLimit, Some(message), cx);
        }
        if let (Some(most), Some(spent)) = (cost, spent)
            && spent >= most
        {
            let message = format!("the turn has cost {spent} of its {most}");
            self.stop_turn(Outcome::Failed, Reason::Budget, Some(message), cx);
        }
    }

    /// What the agent told so far of the cost of this turn, if it runs.
    pub fn used_so_far(&self, turn: TurnId) -> Option<Usage> {
        let cost = self.turn.as_ref().filter(|running| running.id == turn).and_then(|_| self.meter.turn())?;
        Some(Usage { cost_usd: Some(cost.dollars()), ..Usage::default() })
    }

    /// Asks the agent to stop. The turn ends when it answers, as cancelled for this reason, or when it has
    /// not for the grace time; then the agent is unusable. Nothing to cancel is nothing to do.
    pub fn cancel(&mut self, reason: Reason, cx: &mut Cx) {
        self.stop_turn(Outcome::Cancelled, reason, None, cx);
    }

    fn stop_turn(&mut self, outcome: Outcome, reason: Reason, message: Option<String>, cx: &mut Cx) {
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_stopping()) else { return };
        turn.stopping = Some(Stopping { outcome, reason, message, until: cx.after(CANCEL_GRACE_SECS) });
        self.flush(cx);
        if let Some(session) = self.session() {
            cx.send(rpc::notification("session/cancel", &CancelNotification::new(session.to_owned())));
        }
        self.cancel_permissions(cx);
    }

    pub(super) fn tick_turn(&mut self, cx: &mut Cx) {
        let Some(turn) = &self.turn else { return };
        if turn.deadline().is_none_or(|deadline| cx.now < deadline) {
            return;
        }
        match &turn.stopping {
            None => {
                let secs = self.begin.turn_secs.unwrap_or(0);
                let message = format!("the turn took longer than its limit of {secs} s");
                self.stop_turn(Outcome::TimedOut, Reason::Cancelled, Some(message), cx);
            }
            Some(_) => {
                let text = format!("the agent did not stop within {CANCEL_GRACE_SECS} s of being told to");
                self.over((Outcome::Cancelled, Reason::AgentUnresponsive), &text, cx);
            }
        }
    }

    pub(super) fn prompt_reply(&mut self, reply: rpc::Reply<'_>, cx: &mut Cx) {
        let (outcome, reason, message, usage) = match reply {
            Ok(result) => {
                let value: Value = result.and_then(rpc::read::<Value>).unwrap_or_default();
                let (outcome, reason, message) = outcome(value.get("stopReason"));
                (outcome, reason, message, result.and_then(usage))
            }
            Err(error) => (Outcome::Failed, Reason::AgentError, Some(error.message), None),
        };
        self.cancel_permissions(cx);
        self.flush(cx);
        self.end_turn(outcome, reason, message, usage, cx);
    }

    /// Says how the turn ended, if one runs. A turn that was told to stop ends as it was told, except that
    /// an agent which had to be stopped by force says so.
    pub(super) fn end_turn(
        &mut self,
        outcome: Outcome,
        reason: Reason,
        message: Option<String>,
        usage: Option<Usage>,
        cx: &mut Cx,
    ) {
        let Some(turn) = self.turn.take() else { return };
        let (outcome, reason, message) = match turn.stopping {
            None => (outcome, reason, message),
            Some(stopping) if reason == Reason::AgentUnresponsive => (stopping.outcome, reason, message),
            // What a cancelled agent says of its end is not news; that it died is.
            Some(stopping) => {
                let died = message.filter(|_| reason == Reason::AgentDied);
                (stopping.outcome, stopping.reason, stopping.message.or(died))
            }
        };
        let message = message.map(|text| self.say_text(&text));
        let mut watch = turn.watch;
        if outcome != Outcome::Done {
            for update in watch.unfinished("the turn ended first") {
                cx.record(Actor::System, AgentUpdate { turn: Some(turn.id), update });
            }
        }
        let cost = self.meter.turn().map(Usd::dollars);
        let usage = match (usage, cost) {
            (Some(usage), cost) => Some(Usage { cost_usd: usage.cost_usd.or(cost), ..usage }),
            (None, Some(cost)) => Some(Usage { cost_usd: Some(cost), ..Usage::default() }),
            (None, None) => None,
        };
        if turn.limits.cost.is_some() && usage.as_ref().is_none_or(|usage| usage.cost_usd.is_none()) {
            // A limit that did nothing must not look as if it had.
            self.warn("the agent does not say what it costs, so that the turn's budget was not enforced", cx);
        }
        self.begin.terms.spent.add(usage.as_ref());
        cx.say(Said::TurnEnded { turn: turn.id, outcome, reason, message, usage });
    }
}

/// How the session's own instructions are told to an agent that takes none with the session.
fn preface(instructions: &str) -> String {
    format!("Instructions for the whole of this conversation, from whoever opened it:\n\n{instructions}\n\n")
}

/// What an agent is told that must read the conversation instead of remembering it.
fn pointer(path: &str) -> String {
    format!(
        "This conversation was begun before. What was said and done in it so far is in the file {path} \
         (Markdown, newest last). Read it before you answer the message below, and go on from there without \
         repeating it.\n\n"
    )
}

fn outcome(stop: Option<&Value>) -> (Outcome, Reason, Option<String>) {
    match stop.and_then(Value::as_str) {
        Some("end_turn") => (Outcome::Done, Reason::EndTurn, None),
        Some("max_tokens") => (Outcome::Done, Reason::MaxTokens, None),
        Some("max_turn_requests") => (Outcome::Done, Reason::MaxTurnRequests, None),
        Some("refusal") => (Outcome::Done, Reason::Refusal, None),
        // Nobody asked for it here: the agent gave up by itself.
        Some("cancelled") => (Outcome::Cancelled, Reason::Cancelled, None),
        Some(other) => {
            (Outcome::Done, Reason::EndTurn, Some(format!("the agent stopped with the reason {other:?}")))
        }
        None => {
            let text = "the agent answered the prompt without a stopReason";
            (Outcome::Failed, Reason::AgentProtocol, Some(text.to_owned()))
        }
    }
}

/// What the turn cost, in `usage` or, from agents that came before it, in `_meta`.
fn usage(result: &RawValue) -> Option<Usage> {
    let value: Value = rpc::read(result)?;
    let meta = value.get("_meta");
    let found = [value.get("usage"), meta.and_then(|meta| meta.get("usage")), meta]
        .into_iter()
        .flatten()
        .find(|found| number(found, "inputTokens", "input_tokens").is_some())?;
    let cost = [Some(found), meta]
        .into_iter()
        .flatten()
        .find_map(|found| found.get("costUsd").or_else(|| found.get("cost_usd"))?.as_f64())
        .filter(|cost| cost.is_finite() && *cost >= 0.0);
    Some(Usage {
        input_tokens: number(found, "inputTokens", "input_tokens")?,
        output_tokens: number(found, "outputTokens", "output_tokens").unwrap_or(0),
        cached_read_tokens: number(found, "cachedReadTokens", "cached_read_tokens"),
        cached_write_tokens: number(found, "cachedWriteTokens", "cached_write_tokens"),
        thought_tokens: number(found, "thoughtTokens", "thought_tokens"),
        cost_usd: cost,
    })
}

fn number(value: &Value, name: &str, other_name: &str) -> Option<u64> {
    value.get(name).or_else(|| value.get(other_name))?.as_u64()
}
