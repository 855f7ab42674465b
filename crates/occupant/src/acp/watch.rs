//! What a turn's updates say besides their text: tool calls that are still open, steps, and cost. Read
//! shallowly, and only where an update looks as if it held one of them.

use protocol::{Raw, Usd};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Tool calls of one turn whose state is followed; an agent with more open ones is not told apart.
const OPEN_CALLS: usize = 1024;

/// What the updates of a turn have said so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Watch {
    /// Tool calls that have begun and not ended, by id.
    open: Vec<String>,
    /// What the agent did between two results of its tools counts as one.
    pub(super) steps: u32,
    between: Between,
}

/// Where in a step the agent is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Between {
    /// The model was given something and has not answered yet.
    #[default]
    Waiting,
    /// It answers.
    Answering,
}

/// What the agent says that its process has cost so far, and at the turn's beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Meter {
    now: Option<Usd>,
    at_start: Usd,
}

impl Meter {
    pub(super) fn start_turn(&mut self) {
        self.at_start = self.now.unwrap_or_default();
    }

    /// What the turn has cost so far, where the agent tells.
    pub(super) fn turn(&self) -> Option<Usd> {
        self.now.map(|now| now.minus(self.at_start))
    }

    /// Hears `usage_update`, whose amount is the sum over the process's life.
    pub(super) fn hear(&mut self, update: &str) {
        if !update.contains("usage_update") {
            return;
        }
        let Ok(value) = serde_json::from_str::<Value>(update) else { return };
        let dollars = value.pointer("/cost/currency").and_then(Value::as_str) == Some("USD");
        if value["sessionUpdate"] == "usage_update" && dollars {
            self.now = value.pointer("/cost/amount").and_then(Value::as_f64).and_then(Usd::new).or(self.now);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Glance<'a> {
    #[serde(borrow)]
    session_update: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    tool_call_id: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow, default)]
    status: Option<std::borrow::Cow<'a, str>>,
}

impl Watch {
    /// Hears an update of the turn.
    pub(super) fn hear(&mut self, update: &str) {
        // Deltas of a message are most of what comes: they only ever begin a step.
        if self.between == Between::Answering && !update.contains("tool_call") {
            return;
        }
        let Ok(glance) = serde_json::from_str::<Glance<'_>>(update) else { return };
        match &*glance.session_update {
            "agent_message_chunk" | "agent_thought_chunk" => self.answers(),
            "tool_call" | "tool_call_update" => {
                let Some(id) = glance.tool_call_id.as_deref() else { return };
                let status = glance.status.as_deref();
                // Saying that a call has ended is no step of the model's.
                if !matches!(status, Some("completed" | "failed")) {
                    self.answers();
                }
                self.call(id, status);
            }
            _ => {}
        }
    }

    fn answers(&mut self) {
        if self.between == Between::Waiting {
            self.between = Between::Answering;
            self.steps = self.steps.saturating_add(1);
        }
    }

    fn call(&mut self, id: &str, status: Option<&str>) {
        let place = self.open.iter().position(|open| open == id);
        match (place, status) {
            (Some(place), Some("completed" | "failed")) => {
                self.open.remove(place);
                if self.open.is_empty() {
                    self.between = Between::Waiting;
                }
            }
            // One that begins and ends in one update.
            (None, Some("completed" | "failed")) => {
                self.answers();
                if self.open.is_empty() {
                    self.between = Between::Waiting;
                }
            }
            (None, _) if self.open.len() < OPEN_CALLS => self.open.push(id.to_owned()),
            (None | Some(_), _) => {}
        }
    }

    /// An update for each call that is still open, to say that it will not end.
    pub(super) fn unfinished(&mut self, why: &str) -> Vec<Raw> {
        let marks = std::mem::take(&mut self.open).into_iter().filter_map(|id| {
            Raw::of(&json!({
                "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "failed",
                "_meta": {"outlast": {"unfinished": why}},
            }))
            .ok()
        });
        marks.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: &str, id: &str, status: Option<&str>) -> String {
        let mut update = json!({"sessionUpdate": kind, "toolCallId": id});
        if let Some(status) = status {
            update["status"] = json!(status);
        }
        update.to_string()
    }

    fn says() -> String {
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "a tool_call"}})
            .to_string()
    }

    #[test]
    fn steps_are_what_lies_between_results() {
        for (updates, steps, open) in [
            (vec![], 0, 0),
            (vec![says(), says()], 1, 0),
            (vec![says(), call("tool_call", "a", Some("pending"))], 1, 1),
            (
                vec![call("tool_call", "a", None), call("tool_call_update", "a", Some("completed")), says()],
                2,
                0,
            ),
            // Two calls at once are one step.
            (
                vec![
                    call("tool_call", "a", None),
                    call("tool_call", "b", None),
                    call("tool_call_update", "a", Some("failed")),
                    call("tool_call_update", "b", Some("completed")),
                    call("tool_call", "c", Some("in_progress")),
                ],
                2,
                1,
            ),
            // The same call twice, and one that is there at once.
            (vec![call("tool_call", "a", None), call("tool_call", "a", None)], 1, 1),
            (vec![call("tool_call", "a", Some("completed")), says()], 2, 0),
            (vec!["{}".to_owned(), "nonsense".to_owned()], 0, 0),
        ] {
            let mut watch = Watch::default();
            for update in &updates {
                watch.hear(update);
            }
            assert_eq!((watch.steps, watch.unfinished("x").len()), (steps, open), "{updates:?}");
            assert!(watch.unfinished("x").is_empty(), "marked once");
        }
    }

    #[test]
    fn cost_is_the_difference_to_the_turns_beginning() {
        let mut meter = Meter::default();
        let cost = |amount: f64, currency: &str| {
            json!({"sessionUpdate": "usage_update", "used": 1, "cost": {"amount": amount, "currency": currency}}).to_string()
        };
        assert_eq!(meter.turn(), None);
        meter.hear(&cost(0.5, "USD"));
        meter.start_turn();
        meter.hear(&cost(0.75, "USD"));
        meter.hear(&cost(9.0, "EUR"));
        meter.hear(&says());
        assert_eq!(meter.turn(), Usd::new(0.25));
    }
}
