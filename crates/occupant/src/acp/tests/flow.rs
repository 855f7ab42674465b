//! What happens when everybody behaves.

use super::*;

#[test]
fn a_conversation() {
    let mut story = Story::begin(begin());
    check(&mut story, &["-> \"1.1\" initialize"]);
    let sent = &story.sent[0]["params"];
    assert_eq!(sent["protocolVersion"], 1);
    assert_eq!(sent["clientInfo"]["name"], "outlast");
    story.reply(
        json!({"protocolVersion": 1, "agentInfo": {"name": "a"}, "agentCapabilities": {"loadSession": true}}),
    );
    check(&mut story, &["-> \"1.2\" session/new"]);
    assert_eq!(story.sent[1]["params"], json!({"cwd": "/home/user", "mcpServers": []}));
    story.reply(json!({"sessionId": "s"}));
    check(&mut story, &["2 agent started New s", "say ready New s"]);
    story.prompt(1);
    check(&mut story, &["3 turn", "-> 3 session/prompt"]);
    assert_eq!(
        story.sent[2]["params"],
        json!({"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]})
    );
    assert!(story.acp.is_busy());
    story.line(r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{ "sessionUpdate" : "x", "n": 1.50 }}}"#);
    story.reply(json!({"stopReason": "end_turn"}));
    check(&mut story, &[r#"4 agent update { "sessionUpdate" : "x", "n": 1.50 }"#, "say ended Done EndTurn"]);
    assert!(!story.acp.is_busy());
    story.delta("late");
    check(&mut story, &[&format!("5 agent update outside {}", delta("late"))]);
}

#[test]
fn stop_reasons_and_usage() {
    for (result, ended) in [
        (json!({"stopReason": "end_turn"}), "Done EndTurn"),
        (json!({"stopReason": "max_tokens"}), "Done MaxTokens"),
        (json!({"stopReason": "max_turn_requests"}), "Done MaxTurnRequests"),
        (json!({"stopReason": "refusal"}), "Done Refusal"),
        (json!({"stopReason": "cancelled"}), "Cancelled Cancelled"),
        (json!({"stopReason": "new_one"}), "Done EndTurn: the agent stopped with the reason \"new_one\""),
        (json!({}), "Failed AgentProtocol: the agent answered the prompt without a stopReason"),
        (json!(null), "Failed AgentProtocol: the agent answered the prompt without a stopReason"),
    ] {
        let mut story = Story::ready();
        story.prompt(1);
        story.reply(result.clone());
        assert_eq!(story.ended(), [ended], "{result}");
    }
    let whole = json!({"inputTokens": 1, "outputTokens": 2, "cachedReadTokens": 3, "totalTokens": 6});
    for (result, expected) in [
        (json!({"stopReason": "end_turn", "usage": whole}), Some((1, 2, Some(3), None))),
        (
            json!({"stopReason": "end_turn", "_meta": {"usage": whole, "costUsd": 0.5}}),
            Some((1, 2, Some(3), Some(0.5))),
        ),
        (
            json!({"stopReason": "end_turn", "_meta": {"input_tokens": 1, "output_tokens": 2}}),
            Some((1, 2, None, None)),
        ),
        (json!({"stopReason": "end_turn", "usage": {"inputTokens": "many"}}), None),
        (json!({"stopReason": "end_turn"}), None),
    ] {
        let mut story = Story::ready();
        story.prompt(1);
        let id = story.last_id();
        let mut cx = Cx::new(Timestamp::from_millis(START), story.last_seq);
        story.acp.output(
            format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "result": result})).as_bytes(),
            &mut cx,
        );
        let usage = cx.drain().effects.into_iter().find_map(|(_, effect)| match effect {
            Effect::Say(Said::TurnEnded { usage, .. }) => Some(usage),
            Effect::Send(_) | Effect::Say(_) => None,
        });
        let usage =
            usage.unwrap().map(|u| (u.input_tokens, u.output_tokens, u.cached_read_tokens, u.cost_usd));
        assert_eq!(usage, expected, "{result}");
    }
}

#[test]
fn permissions_are_recorded_before_they_are_answered() {
    let mut story = Story::ready();
    story.prompt(1);
    story.told.clear();
    story.ask_permission("7");
    story.ask_permission("\"eight\"");
    check(
        &mut story,
        &["4 agent permission {\"toolCallId\":\"t\"} 2", "5 agent permission {\"toolCallId\":\"t\"} 2"],
    );
    let select = |option: &str| Answer::Selected { option_id: option.to_owned() };
    let wrong = story.step(|acp, cx| acp.answer(4, select("maybe"), key(), cx)).unwrap_err();
    assert_eq!(
        (wrong.code, &*wrong.message),
        (Code::InvalidRequest, "\"maybe\" is not one of the options: yes, no")
    );
    let none = story.step(|acp, cx| acp.answer(3, select("yes"), key(), cx)).unwrap_err();
    assert_eq!(none.code, Code::PermissionNotFound);
    story.step(|acp, cx| acp.answer(5, select("no"), key(), cx)).unwrap();
    story.step(|acp, cx| acp.answer(4, Answer::Cancelled, key(), cx)).unwrap();
    check(
        &mut story,
        &[
            "6 key answered 5 no",
            r#"-> "eight" = {"outcome":{"outcome":"selected","optionId":"no"}}"#,
            "7 key answered 4 cancelled…",
            r#"-> 7 = {"outcome":{"outcome":"cancelled"}}"#,
        ],
    );
    assert_eq!(
        story.step(|acp, cx| acp.answer(5, select("no"), key(), cx)).unwrap_err().code,
        Code::PermissionNotFound
    );
}

#[test]
fn a_permission_nobody_answers_times_out() {
    let mut story = Story::ready();
    story.prompt(1);
    story.ask_permission("7");
    story.told.clear();
    story.pass(limits::PERMISSION_SECS - 1);
    check(&mut story, &[]);
    assert_eq!(story.acp.deadline(), Some(Timestamp::from_millis(story.now + 1000)));
    story.pass(1);
    check(&mut story, &["5 answered 4 cancelled…", r#"-> 7 = {"outcome":{"outcome":"cancelled"}}"#]);
    assert_eq!(story.acp.deadline(), None);
}

#[test]
fn cancel_answers_what_is_open_and_keeps_its_reason() {
    for (reply, reason) in [
        (json!({"result": {"stopReason": "cancelled"}}), Reason::Superseded),
        (json!({"result": {"stopReason": "end_turn"}}), Reason::Cancelled),
        (json!({"error": {"code": -1, "message": "aborted"}}), Reason::Cancelled),
    ] {
        let mut story = Story::ready();
        story.prompt(1);
        story.ask_permission("7");
        story.told.clear();
        story.step(|acp, cx| acp.cancel(reason, cx));
        story.step(|acp, cx| acp.cancel(Reason::SessionEnded, cx));
        check(
            &mut story,
            &[
                "->  session/cancel",
                "5 answered 4 cancelled…",
                r#"-> 7 = {"outcome":{"outcome":"cancelled"}}"#,
            ],
        );
        story.delta("after the cancel");
        let mut answer = json!({"jsonrpc": "2.0", "id": story.last_id()});
        answer.as_object_mut().unwrap().extend(reply.as_object().unwrap().clone());
        story.json(answer);
        assert_eq!(story.ended(), [format!("Cancelled {reason:?}")]);
        story.prompt(2);
        assert!(story.acp.is_busy(), "the session lives on");
    }
    let mut story = Story::ready();
    story.step(|acp, cx| acp.cancel(Reason::Cancelled, cx));
    check(&mut story, &[]);
}

#[test]
fn a_turn_has_a_time_limit() {
    let mut story = Story::ready_with(Begin { turn_secs: Some(30), ..begin() });
    story.prompt(1);
    story.told.clear();
    assert_eq!(story.acp.deadline(), Some(Timestamp::from_millis(START + 30_000)));
    story.pass(30);
    check(&mut story, &["->  session/cancel"]);
    story.reply(json!({"stopReason": "cancelled"}));
    check(&mut story, &["say ended TimedOut Cancelled: the turn took longer than its limit of 30 s"]);
}

fn resuming() -> Begin {
    Begin { resume: Some("old".to_owned()), ..begin() }
}

#[test]
fn ways_back_to_a_conversation() {
    let all = json!({"loadSession": true, "sessionCapabilities": {"resume": {}}});
    let mut story = Story::begin(resuming());
    story.told.clear();
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": all}));
    assert_eq!(story.sent.last().unwrap()["params"]["sessionId"], "old");
    story.reply(json!(null));
    check(&mut story, &["-> \"1.2\" session/resume", "2 agent started Resumed old", "say ready Resumed old"]);

    // Any error moves on; what a load replays is in the journal already.
    let mut story = Story::begin(resuming());
    story.told.clear();
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": all}));
    story.refuse(-32601, "not really");
    story.update("old", delta("replayed"));
    story.reply(json!({}));
    check(
        &mut story,
        &[
            "-> \"1.2\" session/resume",
            "2 notice session/resume did not work: not really",
            "-> \"2.3\" session/load",
            "3 agent started Loaded old",
            "say ready Loaded old",
        ],
    );
    story.update("old", delta("new"));
    check(&mut story, &[&format!("4 agent update outside {}", delta("new"))]);

    // So does a time-out, and the late answer confuses nobody.
    let mut story = Story::begin(resuming());
    story.reply(json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    let load = story.last_id();
    story.told.clear();
    story.pass(limits::HANDSHAKE_SECS);
    story.json(json!({"jsonrpc": "2.0", "id": load, "result": null}));
    story.update("old", delta("replayed late"));
    story.reply(json!({"sessionId": "fresh"}));
    check(
        &mut story,
        &[
            "2 notice session/load did not work: no answer within 60 s",
            "-> \"2.3\" session/new",
            "3 agent notice the agent sent an answer to nothing that was asked: …",
            "4 agent started Fresh fresh",
            "say ready Fresh fresh",
        ],
    );

    // An agent that can do neither begins anew.
    let mut story = Story::begin(resuming());
    story.told.clear();
    story
        .reply(json!({"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": {"resume": null}}}));
    story.reply(json!({"sessionId": "fresh"}));
    check(&mut story, &["-> \"1.2\" session/new", "2 agent started Fresh fresh", "say ready Fresh fresh"]);
}

#[test]
fn updates_before_the_session_has_its_id_are_its_own() {
    let mut story = Story::begin(begin());
    story.reply(json!({"protocolVersion": 1}));
    story.told.clear();
    story.update("s", json!({"sessionUpdate": "available_commands_update"}));
    story.reply(json!({"sessionId": "s"}));
    check(
        &mut story,
        &[
            r#"2 agent update outside {"sessionUpdate":"available_commands_update"}"#,
            "3 agent started New s",
            "say ready New s",
        ],
    );
}

#[test]
fn mcp_servers_go_where_they_are_taken() {
    let servers = McpServers::from([
        (
            "files".to_owned(),
            McpServer::Command {
                command: "f".into(),
                args: vec!["-x".into()],
                env: [("A".into(), "b".into())].into(),
            },
        ),
        (
            "web".to_owned(),
            McpServer::Url { url: "http://h/mcp".into(), headers: [("K".into(), "v".into())].into() },
        ),
    ]);
    let begin = Begin { mcp_servers: servers, ..begin() };
    let stdio =
        json!({"name": "files", "command": "f", "args": ["-x"], "env": [{"name": "A", "value": "b"}]});
    let web = |kind: &str| json!({"type": kind, "name": "web", "url": "http://h/mcp", "headers": [{"name": "K", "value": "v"}]});
    for (capabilities, expected, notices) in [
        (json!({"mcpCapabilities": {"http": true, "sse": true}}), json!([stdio, web("http")]), 0),
        (json!({"mcpCapabilities": {"sse": true}}), json!([stdio, web("sse")]), 0),
        (json!({}), json!([stdio]), 1),
    ] {
        let mut story = Story::begin(begin.clone());
        story.reply(json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
        assert_eq!(story.sent.last().unwrap()["params"]["mcpServers"], expected);
        let said = story.told.iter().filter(|line| line.contains("\"web\" was left out")).count();
        assert_eq!(said, notices);
    }
}

fn offering() -> serde_json::Value {
    json!({"sessionId": "s", "modes": {"currentModeId": "ask"}, "models": {"currentModelId": "m"}, "configOptions": [
        {"id": "llm", "category": "model"}, {"id": "thought_level"}
    ]})
}

fn story_offering(offer: serde_json::Value, config: SessionConfig) -> Story {
    let mut story = Story::begin(Begin { config, ..begin() });
    story.reply(json!({"protocolVersion": 1}));
    story.told.clear();
    story.reply(offer);
    story
}

fn set(model: Option<&str>, mode: Option<&str>, thought_level: Option<&str>) -> SessionConfig {
    let own = |text: Option<&str>| text.map(str::to_owned);
    SessionConfig { model: own(model), mode: own(mode), thought_level: own(thought_level) }
}

#[test]
fn settings_are_changed_by_the_best_way() {
    let mut story = story_offering(offering(), no_config());
    story.told.clear();
    story.step(|acp, cx| acp.configure(set(Some("big"), Some("plan"), Some("high")), key(), cx));
    assert_eq!(
        story.sent.last().unwrap()["params"],
        json!({"sessionId": "s", "configId": "llm", "value": "big"})
    );
    story.refuse(-32601, "no such method");
    assert_eq!(story.sent.last().unwrap()["params"], json!({"sessionId": "s", "modelId": "big"}));
    story.reply(json!(null));
    assert_eq!(story.sent.last().unwrap()["params"], json!({"sessionId": "s", "modeId": "plan"}));
    story.reply(json!({}));
    assert_eq!(story.sent.last().unwrap()["params"]["configId"], "thought_level");
    story.reply(json!({"configOptions": []}));
    check(
        &mut story,
        &[
            "-> \"2.3\" session/set_config_option",
            "-> \"2.4\" session/set_model",
            "-> \"2.5\" session/set_mode",
            "-> \"2.6\" session/set_config_option",
            "3 key config big plan high",
            "say configured Some(\"big\") Some(\"plan\") Some(\"high\")",
        ],
    );
    // The last answer took the options away, and an update brings one back.
    story.step(|acp, cx| acp.configure(set(None, None, Some("low")), key(), cx));
    check(&mut story, &["say configured ! unsupported the agent offers no way to change its thought level"]);
    story.update("s", json!({"sessionUpdate": "config_option_update", "configOptions": [{"id": "t", "category": "thought_level"}]}));
    story.told.clear();
    story.step(|acp, cx| acp.configure(set(None, None, Some("low")), key(), cx));
    check(&mut story, &["-> \"4.7\" session/set_config_option"]);
    story.refuse(-32602, "no such level");
    check(
        &mut story,
        &["say configured ! invalid_request the agent did not take the thought_level \"low\": no such level"],
    );
}

#[test]
fn settings_wait_their_turn_and_are_answered_in_order() {
    let mut story = story_offering(offering(), no_config());
    story.told.clear();
    for number in 0..20 {
        let mode = format!("m{number}");
        story.step(|acp, cx| acp.configure(set(None, Some(&mode), None), key(), cx));
    }
    for _ in 0..16 {
        story.reply(json!(null));
    }
    let said: Vec<&String> = story.told.iter().filter(|line| line.starts_with("say configured")).collect();
    assert_eq!(said.len(), 20);
    assert!(said[15].contains("m15") && said[16].contains("! busy"), "{said:?}");
}

#[test]
fn settings_are_applied_again_before_the_agent_is_ready() {
    let mut story = story_offering(offering(), set(Some("big"), Some("plan"), None));
    story.refuse(-1, "unknown model");
    story.pass(limits::HANDSHAKE_SECS);
    check(
        &mut story,
        &[
            "2 agent started New s",
            "-> \"2.3\" session/set_config_option",
            "3 notice the model was not applied: the agent did not take the model \"big\": unknown model",
            "-> \"3.4\" session/set_mode",
            "4 notice the mode was not applied: the agent did not answer a change of settings within 60 s",
            "say ready New s",
        ],
    );
}

#[test]
fn secrets_are_nowhere() {
    let redactor = Redactor::new([("KEY".to_owned(), "sk-secret-1".to_owned())]);
    let mut story = Story::ready_with(Begin { redactor, ..begin() });
    story.prompt(1);
    story.delta("the key is sk-sec");
    story.delta("ret-1, and so");
    story.line("junk with sk-secret-1");
    story.delta("sk-secret");
    let before = story.acp.consumed();
    story.line(r#"{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"title":"echo sk-secret-1"},"options":[]}}"#);
    assert!(story.acp.consumed() > before, "nothing is held back any more");
    story.refuse(-1, "bad key sk-secret-1");
    story.line("sk-secret-1");
    assert!(!story.told.iter().any(|line| line.contains("sk-secret-1")), "{:#?}", story.told);
    assert_eq!(story.told.iter().filter(|line| line.contains("[REDACTED:KEY]")).count(), 5);
    assert_eq!(story.ended(), ["Failed AgentError: bad key [REDACTED:KEY]"]);
}

#[test]
fn what_is_held_back_is_not_consumed() {
    let redactor = Redactor::new([("KEY".to_owned(), "sk-secret-1".to_owned())]);
    let mut story = Story::ready_with(Begin { redactor, ..begin() });
    story.prompt(1);
    story.delta("whole");
    let before = story.acp.consumed();
    story.delta("sk-s");
    story.delta("ecre");
    assert_eq!(story.acp.consumed(), before);
    story.delta("cy");
    assert!(story.acp.consumed() > before);
}

#[test]
fn a_secret_cut_in_two_by_a_bound_is_still_found() {
    let secret = "s".repeat(3000);
    let redactor = Redactor::new([("KEY".to_owned(), secret.clone())]);
    let mut story = Story::ready_with(Begin { redactor, ..begin() });
    story.line(&format!("{}{}", "x".repeat(notice::TEXT_BYTES - 1000), secret));
    story.line(
        r#"{"jsonrpc":"2.0","method":"_x","params":"\u0073SECRET"}"#.replace("SECRET", &secret[1..]).as_str(),
    );
    assert!(!story.told.iter().any(|line| line.contains("sss")), "{:?}", story.told);
}
