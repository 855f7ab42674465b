//! Lines in, records and effects out. One agent is driven through [`Story`]; [`check`] compares what it left
//! with what a test wrote down.

#![expect(clippy::needless_pass_by_value, reason = "stories write their JSON where they use it")]

use super::*;
use crate::{Drained, Effect};
use proptest::prelude::*;
use protocol::{Answer, Body, KeyId, McpServer, Seq};
use serde_json::json;

mod asks;
mod faults;
mod flow;
mod random;
mod resume;
mod terms;

const START: i64 = 1_750_000_000_000;

/// One agent process and its session.
struct Story {
    acp: Acp,
    now: i64,
    last_seq: Seq,
    /// Everything recorded and done, in order, one line each.
    told: Vec<String>,
    sent: Vec<serde_json::Value>,
    asked: Vec<(AskId, Ask)>,
}

fn begin() -> Begin {
    Begin {
        cwd: "/home/user".to_owned(),
        mcp_servers: McpServers::new(),
        config: no_config(),
        resume: None,
        turn_secs: None,
        redactor: Redactor::default(),
        terms: Terms::default(),
    }
}

fn no_config() -> SessionConfig {
    SessionConfig { model: None, mode: None, thought_level: None }
}

fn turn_id(number: u8) -> TurnId {
    format!("019a8000-0000-7000-8000-0000000000{number:02x}").parse().unwrap()
}

fn key() -> Actor {
    Actor::Key("019a8000-0000-7000-8000-000000000009".parse::<KeyId>().unwrap())
}

impl Story {
    fn begin(begin: Begin) -> Self {
        let terms = begin.terms.clone();
        Self::begin_under(begin, terms)
    }

    fn begin_under(begin: Begin, terms: Terms) -> Self {
        let mut cx = Cx::new(Timestamp::from_millis(START), 1);
        let acp = Acp::begin(Begin { terms, ..begin }, &mut cx);
        let mut story = Self { acp, now: START, last_seq: 1, told: vec![], sent: vec![], asked: vec![] };
        story.take(cx);
        story
    }

    /// An agent that is ready, with session id `s`.
    fn ready() -> Self {
        Self::ready_with(begin())
    }

    fn ready_with(begin: Begin) -> Self {
        Self::ready_under(begin, Terms::default())
    }

    fn ready_under(begin: Begin, terms: Terms) -> Self {
        let mut story = Self::begin_under(begin, terms);
        story.reply(json!({"protocolVersion": 1, "agentCapabilities": {}}));
        story.reply(json!({"sessionId": "s"}));
        story.told.clear();
        story
    }

    fn step<T>(&mut self, act: impl FnOnce(&mut Acp, &mut Cx) -> T) -> T {
        let mut cx = Cx::new(Timestamp::from_millis(self.now), self.last_seq);
        let value = act(&mut self.acp, &mut cx);
        self.take(cx);
        value
    }

    /// The server stops and another one goes on, after a while and with a clock of its own.
    fn take_up_again(&mut self) {
        let now = Timestamp::from_millis(self.now);
        let Some(saved) = self.acp.save(now) else { return };
        let text = serde_json::to_string(&saved).unwrap();
        let saved: Saved = serde_json::from_str(&text).unwrap();
        let (begin, consumed) = (self.acp.begin.clone(), self.acp.consumed());
        let mut cx = Cx::new(now, self.last_seq);
        self.acp = Acp::take_up(begin, saved, consumed, &mut cx);
        self.take(cx);
    }

    fn take(&mut self, mut cx: Cx) {
        let first = self.last_seq + 1;
        let asks = cx.take_asks();
        let Drained { records, effects } = cx.drain();
        self.last_seq += records.len() as Seq;
        let mut records = (first..).zip(records).peekable();
        let mut fired = 0;
        for (at, effect) in effects {
            assert!(at >= fired && at <= self.last_seq, "effects fire in order");
            fired = at;
            while let Some((seq, (actor, body))) = records.next_if(|(seq, _)| *seq <= at) {
                self.told.push(told(seq, &actor, &body));
            }
            match effect {
                Effect::Send(line) => {
                    assert_eq!(line.last(), Some(&b'\n'));
                    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
                    let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
                    assert_eq!(value["jsonrpc"], "2.0");
                    self.told.push(format!("-> {}", brief(&value)));
                    self.sent.push(value);
                }
                Effect::Say(said) => self.told.push(format!("say {}", say(&said))),
            }
        }
        for (seq, (actor, body)) in records {
            self.told.push(told(seq, &actor, &body));
        }
        for (id, ask) in asks {
            self.told.push(format!("ask {ask:?}"));
            self.asked.push((id, ask));
        }
    }

    /// Answers the last ask.
    fn done(&mut self, result: Result<Done, Fault>) {
        let (id, _) = self.asked.pop().unwrap();
        self.step(|acp, cx| acp.done(id, result, cx));
    }

    fn line(&mut self, line: &str) {
        self.step(|acp, cx| acp.output(format!("{line}\n").as_bytes(), cx));
    }

    fn json(&mut self, value: serde_json::Value) {
        self.line(&value.to_string());
    }

    /// Answers the last request.
    fn reply(&mut self, result: serde_json::Value) {
        let id = self.last_id();
        self.json(json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn refuse(&mut self, code: i64, message: &str) {
        let id = self.last_id();
        self.json(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}));
    }

    fn last_id(&self) -> serde_json::Value {
        self.sent.iter().rev().find(|sent| sent.get("method").is_some() && sent.get("id").is_some()).unwrap()
            ["id"]
            .clone()
    }

    fn update(&mut self, session: &str, update: serde_json::Value) {
        self.json(json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}));
    }

    fn delta(&mut self, text: &str) {
        self.update("s", delta(text));
    }

    /// Records `turn_started` and sends the prompt.
    fn prompt(&mut self, number: u8) {
        self.step(|acp, cx| {
            cx.record(Actor::System, protocol::TurnStarted { turn: turn_id(number) });
            acp.prompt(
                turn_id(number),
                &[ContentBlock::Text { text: "hi".to_owned() }],
                TurnLimits::default(),
                cx,
            );
        });
    }

    fn ask_permission(&mut self, id: &str) {
        self.line(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{{"sessionId":"s","toolCall":{{"toolCallId":"t"}},"options":[{{"optionId":"yes","name":"Yes","kind":"allow_once"}},{{"optionId":"no","name":"No","kind":"reject_once"}}]}}}}"#
        ));
    }

    fn pass(&mut self, secs: u64) {
        self.now += i64::try_from(secs).unwrap() * 1000;
        self.step(Acp::tick);
        let due = self.acp.deadline();
        assert!(due.is_none_or(|due| due.as_millis() > self.now), "nothing is due twice");
    }

    fn ended(&self) -> Vec<&str> {
        self.told.iter().filter_map(|line| line.strip_prefix("say ended ")).collect()
    }
}

fn delta(text: &str) -> serde_json::Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

/// One line for an event: what a reader of the journal would care for.
fn told(seq: Seq, actor: &Actor, body: &Body) -> String {
    let who = match actor {
        Actor::System => "",
        Actor::Agent => " agent",
        Actor::Key(_) => " key",
    };
    let turn = |turn: &Option<TurnId>| if turn.is_some() { "" } else { " outside" };
    let what = match body {
        Body::AgentUpdate(update) => format!("update{} {}", turn(&update.turn), update.update.as_str()),
        Body::PermissionRequested(asked) => {
            format!("permission{} {} {}", turn(&asked.turn), asked.tool_call.as_str(), asked.options.len())
        }
        Body::PermissionAnswered(answered) => {
            let why = answered.why.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
            match &answered.answer {
                Answer::Selected { option_id } => {
                    format!("answered {} {option_id}{why}", answered.permission)
                }
                Answer::Cancelled => format!("answered {} cancelled{why}", answered.permission),
            }
        }
        Body::OccupantStarted(started) => {
            format!("started {:?} {}", started.how, started.agent_session.as_deref().unwrap_or("-"))
        }
        Body::SessionConfig(config) => format!(
            "config {} {} {}",
            config.model.as_deref().unwrap_or("-"),
            config.mode.as_deref().unwrap_or("-"),
            config.thought_level.as_deref().unwrap_or("-")
        ),
        Body::Notice(notice) => format!("notice {}", notice.text),
        Body::TurnStarted(_) => "turn".to_owned(),
        other => panic!("the machine does not record {other:?}"),
    };
    format!("{seq}{who} {what}")
}

fn brief(sent: &serde_json::Value) -> String {
    let id = sent.get("id").map(ToString::to_string).unwrap_or_default();
    match (sent["method"].as_str(), sent.get("result"), sent.get("error")) {
        (Some(method), _, _) => format!("{id} {method}"),
        (_, Some(result), _) => format!("{id} = {result}"),
        (_, _, Some(error)) => format!("{id} ! {}", error["code"]),
        _ => panic!("neither request nor answer: {sent}"),
    }
}

fn say(said: &Said) -> String {
    match said {
        Said::Ready { how, agent_session } => format!("ready {how:?} {agent_session}"),
        Said::TurnEnded { outcome, reason, message, .. } => {
            let message = message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
            format!("ended {outcome:?} {reason:?}{message}")
        }
        Said::Configured(Ok(config)) => {
            format!("configured {:?} {:?} {:?}", config.model, config.mode, config.thought_level)
        }
        Said::Configured(Err(fault)) => format!("configured ! {} {fault}", fault.code),
        Said::Unusable(fault) => format!("unusable {} {fault}", fault.code),
    }
}

/// What the story has told since it was last looked at. A line that ends in `…` is compared up to there.
#[track_caller]
fn check(story: &mut Story, expected: &[&str]) {
    let told = std::mem::take(&mut story.told);
    let same = told.len() == expected.len()
        && told.iter().zip(expected).all(|(told, expected)| match expected.strip_suffix('…') {
            Some(beginning) => told.starts_with(beginning),
            None => told == expected,
        });
    assert!(same, "told:\n{}\nexpected:\n{}", told.join("\n"), expected.join("\n"));
}
