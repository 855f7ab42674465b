//! What agents get wrong. Each prompt ends once, everything received is kept, nothing stops the machine.

use super::*;

#[test]
fn the_handshake_fails_with_what_the_agent_said() {
    let mut story = Story::begin(begin());
    story.told.clear();
    story.refuse(-32000, "please log in");
    check(&mut story, &["say unusable agent_failed the agent did not start: initialize: please log in"]);

    let mut story = Story::begin(begin());
    story.told.clear();
    story.reply(json!({"protocolVersion": 2}));
    check(
        &mut story,
        &["say unusable agent_failed the agent did not start: initialize: it speaks version 2 of…"],
    );

    let mut story = Story::begin(begin());
    assert_eq!(story.acp.deadline(), Some(Timestamp::from_millis(START + 60_000)));
    story.told.clear();
    story.pass(59);
    check(&mut story, &[]);
    story.pass(1);
    check(
        &mut story,
        &["say unusable agent_failed the agent did not start: initialize: no answer within 60 s"],
    );
    story.pass(1000);
    check(&mut story, &[]);

    for (answer, said) in [
        (
            json!({"error": {"code": -32000, "message": "Authentication required", "data": {"a": 1}}}),
            "session/new: Authentication required: {\"a\":1}",
        ),
        (json!({"error": "just a word"}), "session/new: \"just a word\""),
        (json!({"result": {}}), "session/new: the answer has no usable sessionId"),
        (json!({"result": {"sessionId": 7}}), "session/new: the answer has no usable sessionId"),
        (json!({"result": null}), "session/new: the answer has no usable sessionId"),
    ] {
        let mut story = Story::begin(begin());
        story.reply(json!({"protocolVersion": 1}));
        story.told.clear();
        let mut line = json!({"jsonrpc": "2.0", "id": story.last_id()});
        line.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        story.json(line);
        check(&mut story, &[&format!("say unusable agent_failed the agent did not start: {said}")]);
    }
}

#[test]
fn an_agent_that_dies_ends_its_turn_once() {
    type Die = fn(&mut Acp, &mut Cx);
    let died: [(Die, &str); 2] =
        [(Acp::eof, "the agent closed its output"), (Acp::exited, "the agent's process ended")];
    for (die, text) in died {
        let mut story = Story::begin(begin());
        story.told.clear();
        story.step(die);
        check(&mut story, &[&format!("say unusable agent_failed {text} before it answered initialize")]);

        let mut story = Story::ready();
        story.prompt(1);
        story.ask_permission("7");
        story.step(|acp, cx| acp.configure(no_config(), key(), cx));
        story.told.clear();
        story.step(die);
        story.step(Acp::exited);
        story.step(Acp::eof);
        story.delta("after the end");
        story.pass(100_000);
        check(
            &mut story,
            &[
                "5 answered 4 cancelled…",
                &format!("say ended Interrupted AgentDied: {text}"),
                &format!("say unusable agent_failed {text}"),
            ],
        );
        story.prompt(2);
        check(&mut story, &["6 turn", "say ended Interrupted AgentDied: the agent is gone"]);
        story.step(|acp, cx| acp.configure(no_config(), key(), cx));
        check(&mut story, &["say configured ! agent_failed the agent is not running"]);
        assert_eq!(story.acp.deadline(), None);
    }
    // Between turns nothing is interrupted.
    let mut story = Story::ready();
    story.step(Acp::exited);
    check(&mut story, &["say unusable agent_failed the agent's process ended"]);
}

#[test]
fn a_pending_change_is_answered_when_the_agent_dies() {
    let mut story = Story::begin(begin());
    story.reply(json!({"protocolVersion": 1}));
    story.reply(json!({"sessionId": "s", "modes": {}}));
    let mode = SessionConfig { mode: Some("plan".to_owned()), ..no_config() };
    story.step(|acp, cx| acp.configure(mode, key(), cx));
    story.told.clear();
    story.step(Acp::eof);
    check(
        &mut story,
        &[
            "say configured ! agent_failed the agent closed its output",
            "say unusable agent_failed the agent closed its output",
        ],
    );
}

#[test]
fn a_last_answer_without_its_line_end_counts() {
    let mut story = Story::ready();
    story.prompt(1);
    story.told.clear();
    story.step(|acp, cx| acp.output(br#"{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}"#, cx));
    check(&mut story, &[]);
    story.step(Acp::eof);
    check(&mut story, &["say ended Done EndTurn", "say unusable agent_failed the agent closed its output"]);
}

#[test]
fn an_agent_that_ignores_cancel_is_given_up() {
    let mut story = Story::ready();
    story.prompt(1);
    story.step(|acp, cx| acp.cancel(Reason::Cancelled, cx));
    story.delta("still here");
    story.told.clear();
    story.pass(limits::CANCEL_GRACE_SECS);
    check(
        &mut story,
        &[
            "say ended Cancelled AgentUnresponsive: the agent did not stop within 10 s of being told to",
            "say unusable agent_failed the agent did not stop within 10 s of being told to",
        ],
    );
    let mut story = Story::ready();
    story.prompt(1);
    story.step(|acp, cx| acp.cancel(Reason::Superseded, cx));
    story.step(Acp::exited);
    assert_eq!(story.ended(), ["Cancelled Superseded: the agent's process ended"]);
}

#[test]
fn a_line_over_the_limit_ends_the_agent() {
    let mut story = Story::ready();
    story.prompt(1);
    story.told.clear();
    let before = story.acp.consumed();
    let part = vec![b'x'; 1024 * 1024];
    for _ in 0..32 {
        story.step(|acp, cx| acp.output(&part, cx));
    }
    check(&mut story, &[]);
    story.step(|acp, cx| acp.output(b"x", cx));
    check(
        &mut story,
        &[
            "say ended Failed AgentProtocol: the agent wrote a line of more than 33554432 bytes",
            "say unusable agent_failed the agent wrote a line of more than 33554432 bytes",
        ],
    );
    assert_eq!(story.acp.consumed(), before);
    assert_eq!(story.acp.partial.capacity(), 0);
}

#[test]
fn a_long_line_leaves_no_buffer_behind() {
    let mut story = Story::ready();
    let text = "y".repeat(1024 * 1024);
    let line = format!(
        "{}\n",
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": delta(&text)}})
    );
    for part in line.as_bytes().chunks(65_536) {
        story.step(|acp, cx| acp.output(part, cx));
    }
    assert_eq!(story.told.len(), 1);
    assert!(story.acp.partial.capacity() <= KEPT_BUFFER_BYTES);
}

#[test]
fn junk_is_kept_and_survived() {
    let sent = "the agent sent";
    for (line, what) in [
        ("Debugger attached.", "a line that is not JSON: Debugger attached."),
        ("{\"half\":", "a line that is not JSON: {\"half\":"),
        ("[{\"jsonrpc\":\"2.0\"}]", "a line that is not a JSON object: [{\"jsonrpc\":\"2.0\"}]"),
        ("42", "a line that is not a JSON object: 42"),
        (r#"{"level":"info"}"#, r#"an object that is not JSON-RPC 2.0: {"level":"info"}"#),
        (
            r#"{"jsonrpc":"1.0","id":3,"result":{}}"#,
            r#"an object that is not JSON-RPC 2.0: {"jsonrpc":"1.0","id":3,"result":{}}"#,
        ),
        (r#"{"jsonrpc":"2.0"}"#, r#"an object that is neither a request nor an answer: {"jsonrpc":"2.0"}"#),
        (
            r#"{"jsonrpc":"2.0","id":99,"result":{}}"#,
            r#"an answer to nothing that was asked: {"jsonrpc":"2.0","id":99,"result":{}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":"3","result":{}}"#,
            r#"an answer to nothing that was asked: {"jsonrpc":"2.0","id":"3","result":{}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s"}}"#,
            r#"a session/update without a session or an update: {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s"}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"t","update":{}}}"#,
            r#"an update for another session: {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"t","update":{}}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"_vendor/thing"}"#,
            r#"a notification that is not known: {"jsonrpc":"2.0","method":"_vendor/thing"}"#,
        ),
    ] {
        let mut story = Story::ready();
        story.prompt(1);
        story.told.clear();
        story.line(line);
        check(&mut story, &[&format!("4 agent notice {sent} {what}")]);
        story.reply(json!({"stopReason": "end_turn"}));
        check(&mut story, &["say ended Done EndTurn"]);
    }
    let mut story = Story::ready();
    story.step(|acp, cx| acp.output(b"\xff\xfe\n\n  \r\n", cx));
    check(&mut story, &["3 agent notice the agent sent a line that is not UTF-8: \u{fffd}\u{fffd}"]);
}

#[test]
fn junk_is_bounded() {
    let mut story = Story::ready();
    for _ in 0..1000 {
        story.line("junk");
    }
    assert_eq!(story.told.len() as u64, notice::JUNK_NOTICES);
    story.told.clear();
    story.step(Acp::exited);
    check(
        &mut story,
        &["103 notice 900 more junk lines of the agent were not kept one by one", "say unusable …"],
    );

    let mut story = Story::ready();
    story.line(&"é".repeat(100_000));
    assert!(story.told[0].len() < notice::TEXT_BYTES + 100, "{}", story.told[0].len());
}

#[test]
fn windows_line_ends_are_taken() {
    let mut story = Story::ready();
    story.prompt(1);
    story.told.clear();
    story.step(|acp, cx| {
        acp.output(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"stopReason\":\"end_turn\"}}\r\n", cx);
    });
    check(&mut story, &["say ended Done EndTurn"]);
}

#[test]
fn requests_that_are_not_known_are_answered() {
    for (line, answer) in [
        (
            r#"{"jsonrpc":"2.0","id":5,"method":"fs/read_text_file","params":{"path":"/etc/passwd"}}"#,
            "-> 5 ! -32601",
        ),
        (r#"{"jsonrpc":"2.0","id":"v","method":"_vendor/ask"}"#, "-> \"v\" ! -32601"),
        (r#"{"jsonrpc":"2.0","id":6,"method":"session/request_permission"}"#, "-> 6 ! -32602"),
        (
            r#"{"jsonrpc":"2.0","id":6,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{},"options":[{"optionId":7}]}}"#,
            "-> 6 ! -32602",
        ),
        (
            r#"{"jsonrpc":"2.0","id":6,"method":"session/request_permission","params":{"sessionId":"t","toolCall":{},"options":[]}}"#,
            "-> 6 ! -32602",
        ),
        (r#"{"jsonrpc":"2.0","id":7,"method":8}"#, "-> 7 ! -32600"),
    ] {
        let mut story = Story::ready();
        story.line(line);
        assert_eq!(
            story.told.iter().filter(|line| line.starts_with("->")).collect::<Vec<_>>(),
            [answer],
            "{line}"
        );
        assert!(story.told.iter().any(|line| line.contains("notice")), "{line}");
    }
    // An id that is no id cannot be answered.
    let mut story = Story::ready();
    story.line(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#);
    assert!(!story.told.iter().any(|line| line.starts_with("->")));
}

#[test]
fn duplicate_answers_change_nothing() {
    let mut story = Story::ready();
    story.prompt(1);
    story.reply(json!({"stopReason": "end_turn"}));
    story.reply(json!({"stopReason": "refusal"}));
    story.prompt(2);
    story.json(json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "refusal"}}));
    assert_eq!(story.ended(), ["Done EndTurn"]);
    assert!(story.acp.is_busy());
    story.reply(json!({"stopReason": "max_tokens"}));
    assert_eq!(story.ended(), ["Done EndTurn", "Done MaxTokens"]);
}

#[test]
fn an_answer_that_is_nothing_ends_the_turn() {
    let mut story = Story::ready();
    story.prompt(1);
    story.line(r#"{"jsonrpc":"2.0","id":3}"#);
    assert_eq!(story.ended(), ["Failed AgentProtocol: the agent answered the prompt without a stopReason"]);
}

#[test]
fn errors_are_bounded() {
    let mut story = Story::ready();
    story.prompt(1);
    story.refuse(-1, &"x".repeat(100_000));
    assert!(story.ended()[0].starts_with("Failed AgentError: xxx") && story.ended()[0].len() < 5000);
}

#[test]
fn permission_requests_out_of_a_turn_are_cancelled_at_once() {
    let mut story = Story::ready();
    story.ask_permission("7");
    check(
        &mut story,
        &[
            "3 agent permission outside {\"toolCallId\":\"t\"} 2",
            "4 answered 3 cancelled…",
            r#"-> 7 = {"outcome":{"outcome":"cancelled"}}"#,
        ],
    );
    story.prompt(1);
    story.step(|acp, cx| acp.cancel(Reason::Cancelled, cx));
    story.told.clear();
    story.ask_permission("8");
    check(
        &mut story,
        &[
            "6 agent permission {\"toolCallId\":\"t\"} 2",
            "7 answered 6 cancelled…",
            r#"-> 8 = {"outcome":{"outcome":"cancelled"}}"#,
        ],
    );
}

#[test]
fn open_permissions_are_bounded_and_closed_with_their_turn() {
    let mut story = Story::ready();
    story.prompt(1);
    for number in 0..65 {
        story.ask_permission(&number.to_string());
    }
    assert_eq!(story.told.iter().filter(|line| line.contains("answered")).count(), 1);
    story.reply(json!({"stopReason": "end_turn"}));
    assert_eq!(story.told.iter().filter(|line| line.contains("answered")).count(), 65);
    assert!(story.told.last().unwrap().starts_with("say ended"), "closed before the turn ends");
}

#[test]
fn a_prompt_that_cannot_run_ends_at_once() {
    let mut story = Story::begin(begin());
    story.prompt(1);
    assert_eq!(story.ended(), ["Failed AgentNotStarted: the agent is not ready yet"]);
    let mut story = Story::ready();
    story.prompt(1);
    story.prompt(2);
    assert_eq!(story.ended(), ["Failed AgentError: a turn is running already"]);
    story.reply(json!({"stopReason": "end_turn"}));
    assert_eq!(story.ended(), ["Failed AgentError: a turn is running already", "Done EndTurn"]);
}

#[test]
fn a_flood_is_kept_whole() {
    let mut story = Story::ready();
    story.prompt(1);
    let mut bytes = Vec::new();
    for number in 0..10_000 {
        let params = json!({"sessionId": "s", "update": delta(&number.to_string())});
        bytes.extend(
            format!("{}\n", json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
                .into_bytes(),
        );
    }
    bytes.extend(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"stopReason\":\"end_turn\"}}\n");
    story.told.clear();
    for part in bytes.chunks(65_536) {
        story.step(|acp, cx| acp.output(part, cx));
    }
    assert_eq!(story.told.len(), 10_001);
    assert_eq!(story.ended(), ["Done EndTurn"]);
    assert!(story.told[9_999].contains("\"9999\""));
}
