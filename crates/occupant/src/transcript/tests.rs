//! Events in, Markdown out.

#![expect(clippy::needless_pass_by_value, reason = "stories write their JSON where they use it")]

use super::*;
use proptest::prelude::*;
use protocol::{
    Actor, AgentUpdate, Disposition, OnBusy, PromptAccepted, Raw, Reason, TurnEnded, TurnStarted,
};
use serde_json::json;

struct Story {
    transcript: Transcript,
    seq: u64,
}

fn turn(number: u8) -> TurnId {
    format!("019a8000-0000-7000-8000-0000000000{number:02x}").parse().unwrap()
}

impl Story {
    fn within(limit: usize) -> Self {
        let session = "019a8000-0000-7000-8000-000000000001".parse().unwrap();
        Self { transcript: Transcript::within(session, limit), seq: 0 }
    }

    fn event(&mut self, body: impl Into<Body>) {
        self.seq += 1;
        let event = Event {
            session: self.transcript.session,
            seq: self.seq,
            at: Timestamp::from_millis(1_750_000_000_000),
            actor: Actor::System,
            body: body.into(),
        };
        self.transcript.hear(&event);
    }

    fn accept(&mut self, number: u8, text: &str) {
        self.event(PromptAccepted {
            turn: turn(number),
            client_id: None,
            content: vec![ContentBlock::Text { text: text.to_owned() }],
            on_busy: OnBusy::Queue,
            disposition: Disposition::Started,
            model: None,
            max_turns: None,
            max_budget_usd: None,
        });
    }

    fn start(&mut self, number: u8) {
        self.event(TurnStarted { turn: turn(number) });
    }

    fn update(&mut self, update: Value) {
        self.event(AgentUpdate { turn: None, update: Raw::of(&update).unwrap() });
    }

    fn say(&mut self, text: &str) {
        self.update(
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}),
        );
    }

    fn end(&mut self, number: u8, outcome: Outcome) {
        self.event(TurnEnded {
            turn: turn(number),
            outcome,
            reason: Reason::EndTurn,
            message: None,
            usage: None,
        });
    }
}

#[test]
fn a_conversation_reads_well() {
    let mut story = Story::within(TRANSCRIPT_BYTES);
    assert!(story.transcript.is_empty());
    story.accept(1, "what is in the folder?");
    story.start(1);
    story.say("I will ");
    story.say("look.");
    story.update(
        json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "secret"}}),
    );
    story
        .update(json!({"sessionUpdate": "tool_call", "toolCallId": "a", "title": "ls", "status": "pending"}));
    story.say("Wait.");
    story.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed",
        "content": [{"type": "content", "content": {"type": "text", "text": "```\nfile"}}]}));
    story.say("One file.");
    story.end(1, Outcome::Done);
    story.accept(2, "never begun");
    story.end(2, Outcome::Interrupted);
    story.accept(3, "and now?");
    story.start(3);
    story.end(3, Outcome::Cancelled);
    assert_eq!(story.transcript.last_prompt(), Some("and now?"));
    let text = story.transcript.markdown();
    let expected = "\
# Conversation 019a8000-0000-7000-8000-000000000001

Written by Outlast from what it recorded; newest last.

## Turn 1, 2025-06-15T15:06:40.000Z

### User

what is in the folder?

### Agent

I will look.

- Tool: ls (completed)

````
```
file
````

Wait.One file.

## Turn 2, 2025-06-15T15:06:40.000Z

### User

and now?

### Agent

(This turn did not finish (Cancelled): no more is known)

";
    assert_eq!(text, expected);
}

#[test]
fn the_oldest_turns_go_first_and_the_newest_stays_whole() {
    let mut story = Story::within(1000);
    for number in 1..=50 {
        story.accept(number, &format!("prompt {number}"));
        story.start(number);
        story.say(&format!("answer {number} {}", "x".repeat(80)));
        story.end(number, Outcome::Done);
    }
    let text = story.transcript.markdown();
    assert!(text.contains("prompt 50") && text.contains("answer 50"));
    assert!(!text.contains("prompt 1\n"));
    let turns = text.matches("## Turn").count() - text.matches("### Turn").count();
    assert!(text.contains(&format!("{} earlier turns are left out.", 50 - turns)), "{text}");
    assert!(text.contains("## Turn 50"));
}

#[test]
fn a_turn_that_is_too_long_by_itself_keeps_its_prompt_and_its_end() {
    let mut story = Story::within(1000);
    story.accept(1, "tell me everything");
    story.start(1);
    story.update(
        json!({"sessionUpdate": "tool_call", "toolCallId": "a", "title": "early", "status": "completed"}),
    );
    for number in 0..1000 {
        story.say(&format!("ä{number} "));
    }
    let text = story.transcript.markdown();
    assert!(text.contains("tell me everything") && text.contains("ä999") && text.contains("left out"));
    assert!(!text.contains("early") && text.len() < 1400, "{}", text.len());
}

proptest! {
    /// Whatever comes, the sum is right and the bound holds.
    #[test]
    fn the_bound_holds(steps in proptest::collection::vec((0u8..4, 0usize..200), 0..200)) {
        let mut story = Story::within(500);
        let mut number = 0;
        for (kind, size) in steps {
            match kind {
                0 => {
                    number = (number + 1) % 250;
                    story.accept(number, &"p".repeat(size));
                    story.start(number);
                }
                1 => story.say(&"ü".repeat(size)),
                2 => story.update(json!({"sessionUpdate": "tool_call", "toolCallId": format!("t{}", size % 3),
                    "title": "t".repeat(size), "status": "pending", "rawOutput": "o".repeat(size)})),
                _ => story.update(json!({"sessionUpdate": "plan", "entries": []})),
            }
            let sum: usize = story.transcript.turns.iter().map(|turn| turn.bytes).sum();
            prop_assert_eq!(sum, story.transcript.bytes);
            prop_assert!(story.transcript.bytes <= 500 + 200);
        }
        story.transcript.markdown();
    }
}
