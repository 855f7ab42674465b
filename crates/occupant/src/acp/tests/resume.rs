//! The ways back to a conversation, and signing in before them.

use super::*;
use protocol::WaysBack;

fn before(last_prompt: &str) -> Terms {
    Terms { before: Before::Conversation { last_prompt: Some(last_prompt.to_owned()) }, ..Terms::default() }
}

fn resuming() -> Begin {
    Begin { resume: Some("old".to_owned()), ..begin() }
}

fn user(text: &str) -> serde_json::Value {
    json!({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": text}})
}

/// An agent that can load, and was asked to.
fn loading(terms: Terms) -> Story {
    let mut story = Story::begin_under(resuming(), terms);
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    assert_eq!(story.sent.last().unwrap()["method"], "session/load");
    story.told.clear();
    story
}

#[test]
fn a_load_that_tells_the_last_prompt_again_is_believed() {
    let mut story = loading(before("what is it"));
    story.update("old", user("what is"));
    story.update("old", user(" it"));
    story.update("old", delta("it is that"));
    story.reply(json!({}));
    check(&mut story, &["2 agent started Loaded old", "say ready Loaded old"]);
}

#[test]
fn a_load_that_forgot_moves_on_to_the_transcript() {
    let mut story = loading(before("what is it"));
    story.update("old", user("something else"));
    story.reply(json!({}));
    check(&mut story, &[]);
    story.pass(3);
    check(
        &mut story,
        &[
            "2 notice session/load did not work: it was answered, and what was told again does not hold the last prompt",
            "-> \"2.3\" session/new",
        ],
    );
    story.reply(json!({"sessionId": "s"}));
    check(&mut story, &["ask Transcript"]);
    story.done(Ok(Done::Text("/home/user/.outlast/threads/x.md".to_owned())));
    check(&mut story, &["3 agent started Transcript s", "say ready Transcript s"]);
    story.prompt(1);
    let prompt = &story.sent.last().unwrap()["params"]["prompt"];
    assert!(prompt[0]["text"].as_str().unwrap().contains("/home/user/.outlast/threads/x.md"), "{prompt}");
    assert_eq!(prompt[1]["text"], "hi");
    story.reply(json!({"stopReason": "end_turn"}));
    story.prompt(2);
    assert_eq!(
        story.sent.last().unwrap()["params"]["prompt"],
        json!([{"type": "text", "text": "hi"}]),
        "once"
    );
}

#[test]
fn a_replay_after_the_answer_is_waited_for_and_not_recorded() {
    let mut story = loading(before("what is it"));
    story.reply(json!({}));
    story.pass(2);
    story.update("old", user("what is it"));
    story.update("old", delta("it is that"));
    check(&mut story, &[]);
    story.pass(1);
    check(&mut story, &["2 agent started Loaded old", "say ready Loaded old"]);
}

#[test]
fn a_lost_home_leaves_only_the_transcript() {
    let mut story = Story::begin_under(begin(), before("what is it"));
    let can = json!({"loadSession": true, "sessionCapabilities": {"resume": {}}});
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": can}));
    assert_eq!(story.sent.last().unwrap()["method"], "session/new");
    story.reply(json!({"sessionId": "s"}));
    story.told.clear();
    story.done(Err(Fault::invalid("the disk is full")));
    check(
        &mut story,
        &[
            "2 notice the agent gets no transcript of the conversation: the disk is full",
            "3 agent started Fresh s",
            "say ready Fresh s",
        ],
    );
    // One that nobody writes is not waited for without end.
    let mut story = Story::begin_under(begin(), before("what is it"));
    story.reply(json!({"protocolVersion": 1}));
    story.reply(json!({"sessionId": "s"}));
    story.told.clear();
    story.pass(60);
    check(
        &mut story,
        &[
            "2 notice the agent gets no transcript of the conversation: it was not written within 60 s",
            "3 agent started Fresh s",
            "say ready Fresh s",
        ],
    );
}

#[test]
fn every_tier_is_tried_in_turn() {
    let mut story = Story::begin_under(resuming(), before("x"));
    let can = json!({"loadSession": true, "sessionCapabilities": {"resume": {}}});
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": can}));
    assert_eq!(story.sent.last().unwrap()["method"], "session/resume");
    story.refuse(-32601, "advertised, not implemented");
    assert_eq!(story.sent.last().unwrap()["method"], "session/load");
    story.refuse(-32002, "Resource not found");
    assert_eq!(story.sent.last().unwrap()["method"], "session/new");
    story.reply(json!({"sessionId": "s"}));
    assert_eq!(story.asked.len(), 1);
}

/// Answers `initialize`: everything that leads back is offered.
fn offers_all(begin: Begin, terms: Terms) -> Story {
    let mut story = Story::begin_under(begin, terms);
    let can = json!({"loadSession": true, "sessionCapabilities": {"resume": {}, "list": {}, "fork": {}}});
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": can}));
    story.told.clear();
    story
}

fn last_method(story: &Story) -> &str {
    story.sent.last().unwrap()["method"].as_str().unwrap()
}

/// Success says nothing of what an agent remembers; its list does.
#[test]
fn an_agent_that_does_not_list_the_conversation_is_not_believed() {
    let mut story = offers_all(resuming(), before("x"));
    assert_eq!(last_method(&story), "session/list");
    story.reply(json!({"sessions": [{"sessionId": "other"}], "nextCursor": "2"}));
    assert_eq!(story.sent.last().unwrap()["params"]["cursor"], "2");
    story.reply(json!({"sessions": [{"sessionId": "old"}]}));
    assert_eq!(last_method(&story), "session/resume");
    story.reply(json!({}));
    assert!(story.told.contains(&"say ready Resumed old".to_owned()), "{:?}", story.told);

    let mut story = offers_all(resuming(), before("x"));
    story.reply(json!({"sessions": []}));
    assert_eq!(last_method(&story), "session/load", "which is compared");
    assert!(story.told[0].contains("session/list does not have the conversation"), "{:?}", story.told);

    // A list that cannot be had says nothing, and one without end is not read to it.
    let mut story = offers_all(resuming(), before("x"));
    story.refuse(-32601, "advertised, not implemented");
    assert_eq!(last_method(&story), "session/resume");
    let mut story = offers_all(resuming(), before("x"));
    for page in 1..=20 {
        assert_eq!(last_method(&story), "session/list");
        story.reply(json!({"sessions": [], "nextCursor": page.to_string()}));
    }
    assert_eq!(last_method(&story), "session/resume");
    // Before the first prompt there is nothing to forget.
    assert_eq!(last_method(&offers_all(resuming(), Terms::default())), "session/resume");
}

#[test]
fn an_owner_may_trust_an_agent_with_less() {
    for (ways, method) in [
        (WaysBack::Any, "session/list"),
        (WaysBack::Load, "session/load"),
        (WaysBack::Transcript, "session/new"),
    ] {
        let story = offers_all(resuming(), Terms { ways, whose: Whose::Parents, ..before("x") });
        assert_eq!(last_method(&story), method, "{ways:?}");
    }
}

#[test]
fn a_fork_is_the_agents_own_where_it_can() {
    let terms = || Terms { whose: Whose::Parents, ..before("what is it") };
    let mut story = offers_all(resuming(), terms());
    story.reply(json!({"sessions": [{"sessionId": "old"}]}));
    let sent = story.sent.last().unwrap();
    assert_eq!((&sent["method"], &sent["params"]["sessionId"]), (&json!("session/fork"), &json!("old")));
    // What it tells again is in the journal.
    story.update("new", user("what is it"));
    story.told.clear();
    story.reply(json!({"sessionId": "new"}));
    check(&mut story, &["2 agent started Forked new", "say ready Forked new"]);

    for answer in [None, Some(json!({}))] {
        let mut story = offers_all(resuming(), terms());
        story.reply(json!({"sessions": [{"sessionId": "old"}]}));
        match answer {
            None => story.refuse(-32601, "advertised, not implemented"),
            Some(answer) => story.reply(answer),
        }
        assert_eq!(last_method(&story), "session/resume");
    }
    // A session that is nobody's fork is never forked.
    let mut story = offers_all(resuming(), before("x"));
    story.reply(json!({"sessions": [{"sessionId": "old"}]}));
    assert_eq!(last_method(&story), "session/resume");
}

#[test]
fn instructions_come_with_the_session_or_before_the_first_prompt() {
    let terms = || Terms { instructions: Some("be kind".to_owned()), ..Terms::default() };
    let mut story = Story::ready_under(begin(), terms());
    story.take_up_again();
    story.prompt(1);
    let prompt = story.sent.last().unwrap()["params"]["prompt"].clone();
    assert!(prompt[0]["text"].as_str().unwrap().contains("be kind"), "{prompt}");
    assert_eq!(prompt[1]["text"], "hi");
    story.reply(json!({"stopReason": "end_turn"}));
    story.prompt(2);
    assert_eq!(story.sent.last().unwrap()["params"]["prompt"].as_array().unwrap().len(), 1, "once");

    let mut story = Story::begin_under(begin(), terms());
    let can = json!({"sessionCapabilities": {"systemPrompt": {}}});
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": can}));
    let params = story.sent.last().unwrap()["params"].clone();
    let expected = json!({"mode": "append", "content": [{"type": "text", "text": "be kind"}]});
    assert_eq!((&params["systemPrompt"], &params["cwd"]), (&expected, &json!("/home/user")), "{params}");
    story.reply(json!({"sessionId": "s"}));
    story.prompt(1);
    assert_eq!(story.sent.last().unwrap()["params"]["prompt"].as_array().unwrap().len(), 1);

    // A conversation that came back has heard them.
    let mut story = Story::begin_under(resuming(), terms());
    let can = json!({"sessionCapabilities": {"resume": {}}});
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": can}));
    story.reply(json!({}));
    story.prompt(1);
    assert_eq!(story.sent.last().unwrap()["params"]["prompt"].as_array().unwrap().len(), 1);
    assert!(story.sent.iter().all(|sent| sent["params"].get("systemPrompt").is_none()));
}

fn methods(ids: &[&str]) -> serde_json::Value {
    let methods: Vec<_> = ids.iter().map(|id| json!({"id": id, "name": id})).collect();
    json!({"protocolVersion": 1, "authMethods": methods})
}

#[test]
fn a_named_method_is_called_first() {
    let terms = || Terms { auth: Some("key".to_owned()), ..Terms::default() };
    let mut story = Story::begin_under(begin(), terms());
    story.reply(methods(&["login", "key"]));
    let sent = story.sent.last().unwrap();
    assert_eq!((&sent["method"], &sent["params"]["methodId"]), (&json!("authenticate"), &json!("key")));
    story.reply(json!({}));
    assert_eq!(story.sent.last().unwrap()["method"], "session/new");

    // An agent that does not need it may refuse it.
    let mut story = Story::begin_under(begin(), terms());
    story.reply(methods(&["login"]));
    story.told.clear();
    story.refuse(-32602, "no such method");
    check(&mut story, &["2 notice authenticate did not work: no such method", "-> \"2.3\" session/new"]);
    story.refuse(-32000, "Authentication required");
    check(
        &mut story,
        &["say unusable agent_failed the agent did not start: session/new: Authentication required"],
    );
}

#[test]
fn an_agent_that_demands_it_gets_its_only_method() {
    let mut story = Story::begin_under(resuming(), Terms::default());
    let mut hello = methods(&["key"]);
    hello["agentCapabilities"] = json!({"sessionCapabilities": {"resume": {}}});
    hello["authMethods"].as_array_mut().unwrap().push(json!({"id": "tty", "name": "t", "type": "terminal"}));
    story.reply(hello);
    story.refuse(-32000, "Authentication required");
    assert_eq!(story.sent.last().unwrap()["params"]["methodId"], "key");
    story.reply(json!({}));
    assert_eq!(story.sent.last().unwrap()["method"], "session/resume", "the same way again");

    let mut story = Story::begin(begin());
    story.reply(methods(&["login", "key"]));
    story.told.clear();
    story.refuse(-32000, "Authentication required");
    check(
        &mut story,
        &[
            "say unusable agent_failed the agent did not start: session/new: Authentication required; name one of its methods as auth in agent.toml: login, key",
        ],
    );
}

#[test]
fn what_it_offers_is_recorded() {
    let mut story = Story::begin(begin());
    story.reply(json!({"protocolVersion": 1}));
    let id = story.last_id();
    let mut cx = Cx::new(Timestamp::from_millis(START), story.last_seq);
    let modes = json!({"currentModeId": "a", "availableModes": []});
    let answer =
        json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": "s", "modes": modes, "models": null}});
    story.acp.output(format!("{answer}\n").as_bytes(), &mut cx);
    let records = cx.drain().records;
    let Body::OccupantStarted(started) = &records[0].1 else { panic!("{records:?}") };
    assert_eq!(
        started.offers.as_ref().unwrap().read::<serde_json::Value>().unwrap(),
        json!({"modes": modes})
    );
}
