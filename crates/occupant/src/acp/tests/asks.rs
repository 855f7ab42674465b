//! Files and terminals: offered only where the place has them, done by the room, answered once.

use super::*;

fn helped(place: PlaceOffers) -> Story {
    Story::ready_under(begin(), Terms { place, ..Terms::default() })
}

impl Story {
    fn request(&mut self, method: &str, params: serde_json::Value) {
        self.json(json!({"jsonrpc": "2.0", "id": "r", "method": method, "params": params}));
    }
}

#[test]
fn only_what_the_place_has_is_offered_and_done() {
    for (place, files, terminals) in [
        (PlaceOffers::Nothing, false, false),
        (PlaceOffers::Files, true, false),
        (PlaceOffers::FilesAndTerminals, true, true),
    ] {
        let mut story = helped(place);
        let told = &story.sent[0]["params"]["clientCapabilities"];
        assert_eq!(
            (&told["fs"]["readTextFile"], &told["fs"]["writeTextFile"]),
            (&json!(files), &json!(files))
        );
        assert_eq!(told["terminal"], terminals);
        story.request("fs/read_text_file", json!({"sessionId": "s", "path": "/x"}));
        assert_eq!(story.asked.len(), usize::from(files), "{place:?}");
        story.request("terminal/create", json!({"sessionId": "s", "command": "ls"}));
        assert_eq!(story.asked.len(), usize::from(files) + usize::from(terminals), "{place:?}");
    }
}

#[test]
fn every_ask_gets_its_answer() {
    let exit = TerminalExit { exit_code: Some(3), signal: None };
    for (method, params, ask, done, answer) in [
        (
            "fs/read_text_file",
            json!({"path": "/a", "line": 2, "limit": 5}),
            Ask::ReadFile { path: "/a".into(), line: Some(2), limit: Some(5) },
            Done::Text("text".into()),
            json!({"content": "text"}),
        ),
        (
            "fs/write_text_file",
            json!({"path": "/a", "content": "c"}),
            Ask::WriteFile { path: "/a".into(), content: "c".into() },
            Done::Nothing,
            json!({}),
        ),
        (
            "terminal/create",
            json!({"command": "ls", "args": ["-l"], "env": [{"name": "A", "value": "b"}], "outputByteLimit": 9}),
            Ask::OpenTerminal(Terminal {
                command: "ls".into(),
                args: vec!["-l".into()],
                env: [("A".to_owned(), "b".to_owned())].into(),
                cwd: None,
                output_bytes: 9,
            }),
            Done::Text("t1".into()),
            json!({"terminalId": "t1"}),
        ),
        (
            "terminal/output",
            json!({"terminalId": "t1"}),
            Ask::ReadTerminal { terminal: "t1".into() },
            Done::Output { text: "out".into(), cut: true, exit: Some(exit.clone()) },
            json!({"output": "out", "truncated": true, "exitStatus": {"exitCode": 3, "signal": null}}),
        ),
        (
            "terminal/wait_for_exit",
            json!({"terminalId": "t1"}),
            Ask::AwaitTerminal { terminal: "t1".into() },
            Done::Exited(exit),
            json!({"exitCode": 3, "signal": null}),
        ),
        (
            "terminal/kill",
            json!({"terminalId": "t1"}),
            Ask::KillTerminal { terminal: "t1".into() },
            Done::Nothing,
            json!({}),
        ),
        (
            "terminal/release",
            json!({"terminalId": "t1"}),
            Ask::CloseTerminal { terminal: "t1".into() },
            Done::Nothing,
            json!({}),
        ),
    ] {
        let mut story = helped(PlaceOffers::FilesAndTerminals);
        let mut params = params;
        params["sessionId"] = json!("s");
        story.request(method, params);
        assert_eq!(story.asked[0].1, ask);
        story.done(Ok(done));
        assert_eq!(story.sent.last().unwrap()["result"], answer, "{method}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let mut story = helped(PlaceOffers::FilesAndTerminals);
    story.told.clear();
    for params in [
        json!({"sessionId": "other", "path": "/a"}),
        json!({"sessionId": "s", "path": "relative"}),
        json!({"sessionId": "s"}),
        json!({"path": "/a"}),
    ] {
        story.request("fs/read_text_file", params);
        assert_eq!(story.sent.last().unwrap()["error"]["code"], -32602);
    }
    assert!(story.asked.is_empty());
    story.request("fs/read_text_file", json!({"sessionId": "s", "path": "/a"}));
    story.done(Err(Fault::invalid("there is no such file")));
    let error = &story.sent.last().unwrap()["error"];
    assert_eq!((&error["code"], &error["message"]), (&json!(-32603), &json!("there is no such file")));
    // Many at once are refused, not kept.
    for _ in 0..70 {
        story.request("fs/read_text_file", json!({"sessionId": "s", "path": "/a"}));
    }
    assert_eq!(story.asked.len(), 64);
    // Another server does not know what became of them.
    let before = story.sent.len();
    story.take_up_again();
    let refused = story.sent[before..].iter().filter(|sent| sent["error"]["code"] == -32603).count();
    assert_eq!(refused, 64);
    // An answer that nobody waits for any more is dropped.
    let before = story.sent.len();
    story.done(Ok(Done::Nothing));
    assert_eq!(story.sent.len(), before);
}

#[test]
fn questions_are_cancelled() {
    let mut story = Story::ready();
    story.request("elicitation/create", json!({"sessionId": "s", "mode": "form", "message": "Who?"}));
    assert_eq!(story.sent.last().unwrap()["result"]["action"], "cancel");
}
