//! Policies, budgets, and tool calls that a turn leaves behind.

use super::*;
use protocol::{Policy, Rule, Usd, Verdict};

fn under(policy: Policy) -> Story {
    let mut story = Story::ready_under(begin(), Terms { policy, ..Terms::default() });
    story.prompt(1);
    story.told.clear();
    story
}

fn call(id: &str, status: &str) -> serde_json::Value {
    json!({"sessionUpdate": "tool_call", "toolCallId": id, "status": status})
}

#[test]
fn a_policy_answers_and_says_so() {
    let allow = Policy { permissions: Verdict::Allow, ..Policy::default() };
    let mut story = under(allow);
    story.ask_permission("7");
    check(
        &mut story,
        &[
            "4 agent permission {\"toolCallId\":\"t\"} 2",
            "5 answered 4 yes (the agent's policy)",
            r#"-> 7 = {"outcome":{"outcome":"selected","optionId":"yes"}}"#,
        ],
    );
    let rules = vec![Rule { tool: None, command: None, answer: Verdict::Deny }];
    let mut story = under(Policy { rules, ..Policy::default() });
    story.ask_permission("7");
    assert!(
        story.told.contains(&"5 answered 4 no (rule 1 of the agent's policy)".to_owned()),
        "{:?}",
        story.told
    );
    // After the turn nobody is asked, and no policy either.
    story.reply(json!({"stopReason": "end_turn"}));
    story.told.clear();
    story.ask_permission("8");
    check(
        &mut story,
        &[
            "6 agent permission outside {\"toolCallId\":\"t\"} 2",
            "7 answered 6 cancelled (no turn is running that could use it)",
            r#"-> 8 = {"outcome":{"outcome":"cancelled"}}"#,
        ],
    );
}

#[test]
fn a_request_may_have_a_time_of_its_own() {
    let mut story = under(Policy { permission_secs: Some(5), ..Policy::default() });
    story.ask_permission("7");
    story.told.clear();
    story.pass(4);
    check(&mut story, &[]);
    story.pass(1);
    check(
        &mut story,
        &[
            "5 answered 4 cancelled (nobody answered in time)",
            r#"-> 7 = {"outcome":{"outcome":"cancelled"}}"#,
        ],
    );
}

#[test]
fn open_tool_calls_are_marked_when_a_turn_is_cut_short() {
    let mut story = under(Policy::default());
    story.update("s", call("a", "pending"));
    story.update("s", call("b", "in_progress"));
    story.update("s", call("b", "completed"));
    // The same call twice is recorded twice and marked once.
    story.update("s", call("a", "pending"));
    story.step(|acp, cx| acp.cancel(Reason::Cancelled, cx));
    story.told.clear();
    story.reply(json!({"stopReason": "cancelled"}));
    let told = std::mem::take(&mut story.told);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains(r#""toolCallId":"a""#) && told[0].contains(r#""status":"failed""#), "{told:?}");
    assert!(
        !told[0].contains("agent update") && !told[0].contains("outside"),
        "the server's own word: {told:?}"
    );
    assert_eq!(told[1], "say ended Cancelled Cancelled");
    // What comes late is kept, and belongs to no turn.
    story.update("s", call("a", "completed"));
    assert!(story.told[0].contains("agent update outside"), "{:?}", story.told);

    let mut story = under(Policy::default());
    story.update("s", call("a", "pending"));
    story.told.clear();
    story.step(Acp::exited);
    assert!(story.told[0].contains("failed"), "{:?}", story.told);

    let mut story = under(Policy::default());
    story.update("s", call("a", "pending"));
    story.told.clear();
    story.reply(json!({"stopReason": "end_turn"}));
    check(&mut story, &["say ended Done EndTurn"]);
}

#[test]
fn a_turn_has_no_more_steps_than_it_may() {
    let policy = Policy { turn_steps: Some(2), ..Policy::default() };
    let mut story = under(policy);
    for id in ["a", "b"] {
        story.update("s", call(id, "pending"));
        story.update("s", call(id, "completed"));
    }
    assert!(!story.told.iter().any(|line| line.starts_with("->")), "{:?}", story.told);
    story.delta("a third step");
    assert_eq!(story.sent.last().unwrap()["method"], "session/cancel");
    // The same limit holds across a restart of the server.
    story.take_up_again();
    story.told.clear();
    story.reply(json!({"stopReason": "cancelled"}));
    check(&mut story, &["say ended Failed StepLimit: the turn has had its 2 steps"]);
}

fn cost(amount: f64) -> serde_json::Value {
    json!({"sessionUpdate": "usage_update", "used": 1, "cost": {"amount": amount, "currency": "USD"}})
}

#[test]
fn a_turn_costs_no_more_than_it_may() {
    let mut story = Story::ready();
    story.update("s", cost(1.0));
    let limits = TurnLimits { cost: Usd::new(0.25), steps: None };
    story.step(|acp, cx| {
        cx.record(Actor::System, protocol::TurnStarted { turn: turn_id(1) });
        acp.prompt(turn_id(1), &[ContentBlock::Text { text: "hi".to_owned() }], limits, cx);
    });
    story.update("s", cost(1.2));
    assert_ne!(story.sent.last().unwrap()["method"], "session/cancel");
    story.update("s", cost(1.3));
    assert_eq!(story.sent.last().unwrap()["method"], "session/cancel");
    story.told.clear();
    story.reply(json!({"stopReason": "cancelled"}));
    check(&mut story, &["say ended Failed Budget: the turn has cost $0.3 of its $0.25"]);
    assert_eq!(story.acp.spent().cost, Usd::new(0.3).unwrap());
}

#[test]
fn a_session_uses_no_more_than_it_may() {
    let usage = json!({"stopReason": "end_turn", "usage": {"inputTokens": 60, "outputTokens": 40}});
    for (policy, said) in [
        (Policy { session_turns: Some(1), ..Policy::default() }, "the session has had its 1 turns"),
        (
            Policy { session_tokens: Some(100), ..Policy::default() },
            "the session has used 100 of its 100 tokens",
        ),
        (
            Policy { session_cost_usd: Usd::new(0.5), ..Policy::default() },
            "the session has cost $0.5 of its $0.5",
        ),
    ] {
        let mut story = under(policy);
        story.update("s", cost(0.5));
        story.reply(usage.clone());
        story.take_up_again();
        story.told.clear();
        story.prompt(2);
        let told = std::mem::take(&mut story.told);
        assert_eq!(told[1], format!("say ended Failed Budget: {said}"), "{told:?}");
        assert!(!story.acp.is_busy());
    }
}
