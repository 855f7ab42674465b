//! Shells as MCP tools, through a client that knows nothing but the wire: every tool, over stdio and over HTTP, and
//! what is refused.

use crate::kit::*;
use serde_json::{Value, json};
use testkit::{
    Mcp, McpHttp,
    mcp::{HANDSHAKE_VERSION, MODERN_VERSION},
};

const TOOLS: [&str; 11] = [
    "session_create",
    "session_exec",
    "session_poll",
    "session_output",
    "session_write",
    "session_signal",
    "session_list",
    "session_destroy",
    "session_checkpoint",
    "session_checkpoints",
    "session_restore",
];

pub(crate) async fn client(server: &Server) -> Mcp {
    Mcp::open(PROGRAM.as_ref(), server.data(), &[]).await.unwrap()
}

pub(crate) async fn shell(client: &Mcp, arguments: Value) -> String {
    let made = client.call("session_create", arguments).await.unwrap();
    made["session_id"].as_str().unwrap().to_owned()
}

pub(crate) async fn exec(client: &Mcp, session: &str, command: &str) -> Value {
    client.call("session_exec", json!({"session_id": session, "command": command})).await.unwrap()
}

#[tokio::test]
async fn the_tools_are_listed_with_what_they_take_and_give() {
    let (server, _http) = server().await;
    let client = client(&server).await;
    let listed = client.request("tools/list", json!({})).await.unwrap();
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, TOOLS);
    for tool in tools {
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        assert!(tool["annotations"]["readOnlyHint"].is_boolean(), "{tool}");
        assert!(!tool["description"].as_str().unwrap().is_empty());
    }
    assert!(client.close().await.unwrap().success());
}

#[tokio::test]
async fn every_version_of_the_protocol_is_spoken() {
    let (server, http) = server().await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", HANDSHAKE_VERSION] {
        let client = Mcp::start("/".as_ref(), PROGRAM.as_ref(), server.data(), &[], &[]).unwrap();
        let said = client.shake_hands(version).await.unwrap();
        assert_eq!(said["protocolVersion"], version);
        assert_eq!(said["serverInfo"]["name"], "outlast");
        assert!(said["instructions"].as_str().unwrap().contains("session_create"));
        let set = client.request("logging/setLevel", json!({"level": "debug"})).await.unwrap();
        assert!(set["result"].is_object(), "{set}");
        let pong = client.request("ping", json!({})).await.unwrap();
        assert!(pong["result"].is_object(), "{pong}");
    }
    for version in ["2025-03-26", "2025-06-18", HANDSHAKE_VERSION, MODERN_VERSION] {
        let client = McpHttp::open(&http, version).await.unwrap();
        let listed = client.request("tools/list", json!({})).await.unwrap();
        assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), TOOLS.len(), "{version}: {listed}");
        let refused = client.refused("session_create", json!({})).await.unwrap();
        assert_eq!(refused.0, "invalid_request", "{version}");
    }
    // Without a handshake, over stdio too.
    let client = Mcp::start("/".as_ref(), PROGRAM.as_ref(), server.data(), &[], &[]).unwrap();
    let modern = McpHttp::open(&http, MODERN_VERSION).await.unwrap();
    let params = modern.message("tools/list", json!({}))["params"].clone();
    let listed = client.request("tools/list", params).await.unwrap();
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), TOOLS.len(), "{listed}");
    assert_eq!(listed["result"]["resultType"], "complete");
}

#[tokio::test]
async fn what_is_wrong_with_a_call_is_said() {
    let (server, _http) = server().await;
    let client = client(&server).await;
    for (tool, arguments, code, part) in [
        ("session_create", json!({}), "invalid_request", "`transport` is missing"),
        ("session_create", json!({"transport": "telnet"}), "invalid_request", "telnet"),
        ("session_create", json!({"transport": "local", "colour": 1}), "invalid_request", "`colour`"),
        ("session_create", json!({"transport": "ssh"}), "invalid_request", "`host` is missing"),
        ("session_list", json!({"all": true}), "invalid_request", "`all`"),
        ("session_exec", json!({"session_id": "1_local"}), "invalid_request", "`command` is missing"),
        ("session_exec", json!({"session_id": "1_local", "command": 5}), "invalid_request", "`command`"),
        ("session_exec", json!({"session_id": "a b", "command": "x"}), "invalid_id", "session"),
        ("session_exec", json!({"session_id": "77_local", "command": "x"}), "session_not_found", "77_local"),
        (
            "session_exec",
            json!({"session_id": "1_local", "command": "x", "budget": {"keep": {"mode": "some"}}}),
            "invalid_request",
            "budget.keep.mode",
        ),
        ("session_poll", json!({"session_id": "77_local", "command_id": 1}), "session_not_found", "77_local"),
        (
            "session_signal",
            json!({"session_id": "1_local", "command_id": 1, "signal": "BOOM"}),
            "invalid_request",
            "one of",
        ),
    ] {
        let (told, sentence) = client.refused(tool, arguments.clone()).await.unwrap();
        assert_eq!(told, code, "{tool} {arguments}: {sentence}");
        assert!(sentence.contains(part), "{tool} {arguments}: {sentence}");
    }
    let unknown = client.request("tools/call", json!({"name": "rm", "arguments": {}})).await.unwrap();
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    let shapeless =
        client.request("tools/call", json!({"name": "session_list", "arguments": []})).await.unwrap();
    assert_eq!(shapeless["error"]["code"], -32602, "{shapeless}");
    let method = client.request("no/such", json!({})).await.unwrap();
    assert_eq!(method["error"]["code"], -32601, "{method}");
    assert_eq!(
        client.call("session_destroy", json!({"session_id": "77_local"})).await.unwrap()["destroyed"],
        false
    );
    assert_eq!(
        client.call("session_destroy", json!({"session_id": "a b"})).await.unwrap()["destroyed"],
        false
    );
}

#[tokio::test]
async fn over_http_the_key_the_host_and_the_origin_are_checked() {
    let (_server, http) = server().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let usual = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    let stranger = http.with_key(None).raw("POST", "/mcp", &usual, body.as_bytes()).await.unwrap();
    refusal(&stranger, 401, "unauthorized");
    let page = [usual[0], usual[1], ("origin", "http://evil.example")];
    refusal(&http.raw("POST", "/mcp", &page, body.as_bytes()).await.unwrap(), 403, "forbidden");
    let session = [usual[0], usual[1], ("mcp-session-id", "6f1c6a58-0000-4000-8000-000000000000")];
    refusal(&http.raw("POST", "/mcp", &session, body.as_bytes()).await.unwrap(), 404, "not_found");
    let plain = http.get("/mcp/stream").await.unwrap();
    assert!(refusal(&plain, 400, "unsupported").contains("outlast mcp"));
}

#[tokio::test]
async fn a_protocol_session_is_its_tenants() {
    let (server, http) = server().await;
    let made = server.cli(&["key", "create", "--tenant", "other", "--json"]).await.unwrap().ok().unwrap();
    let other = serde_json::from_str::<Value>(&made).unwrap()["key"].as_str().unwrap().to_owned();
    let opened = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    });
    let usual = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    let reply = http.raw("POST", "/mcp", &usual, opened.to_string().as_bytes()).await.unwrap();
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    let headers = [usual[0], usual[1], ("mcp-session-id", session.as_str())];
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    let theirs = http.with_key(Some(&other)).raw("POST", "/mcp", &headers, list.as_bytes()).await.unwrap();
    refusal(&theirs, 404, "not_found");
    assert_eq!(http.raw("POST", "/mcp", &headers, list.as_bytes()).await.unwrap().status, 200);
    assert_eq!(http.raw("DELETE", "/mcp", &headers, b"").await.unwrap().status, 200);
    let gone = http.raw("POST", "/mcp", &headers, list.as_bytes()).await.unwrap();
    assert_eq!(gone.status, 404);
}

#[tokio::test]
async fn a_key_that_may_only_read_only_reads() {
    let (server, http) = server().await;
    let made = server.cli(&["key", "create", "--scope", "read", "--json"]).await.unwrap().ok().unwrap();
    let key = serde_json::from_str::<Value>(&made).unwrap()["key"].as_str().unwrap().to_owned();
    let client = McpHttp::open(&http.with_key(Some(&key)), MODERN_VERSION).await.unwrap();
    for (tool, arguments) in [
        ("session_create", json!({"transport": "local"})),
        ("session_exec", json!({"session_id": "1_local", "command": "id"})),
        ("session_destroy", json!({"session_id": "1_local"})),
    ] {
        assert_eq!(client.refused(tool, arguments).await.unwrap().0, "forbidden", "{tool}");
    }
    assert_eq!(client.call("session_list", json!({})).await.unwrap(), json!({"sessions": []}));
}

#[tokio::test]
async fn junk_on_the_line_is_answered_and_survived() {
    let (server, _http) = server().await;
    let mut client = client(&server).await;
    client.send_bytes(b"what?\n").await.unwrap();
    assert_eq!(client.notification().await.unwrap()["error"]["code"], -32700);
    let long =
        format!(r#"{{"jsonrpc":"2.0","id":990,"method":"tools/call","params":"{}"}}"#, "x".repeat(17 << 20));
    client.send_bytes(long.as_bytes()).await.unwrap();
    client.send_bytes(b"\n").await.unwrap();
    let refused = client.notification().await.unwrap();
    assert_eq!(refused["id"], 990, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("bytes"));
    assert!(client.request("ping", json!({})).await.unwrap()["result"].is_object());
}

#[tokio::test]
async fn a_shell_from_its_opening_to_its_end() {
    let (server, http) = server().await;
    let client = client(&server).await;
    let modern = McpHttp::open(&http, MODERN_VERSION).await.unwrap();
    let made = client
        .call("session_create", json!({"transport": "local", "env": {"COLOUR": "blue"}}))
        .await
        .unwrap();
    assert_eq!(made["place"], "host", "{made}");
    let id = made["session_id"].as_str().unwrap();
    assert!(id.ends_with("_local"), "{made}");
    let said = exec(&client, id, "echo $COLOUR; cd /tmp; echo problem >&2; false").await;
    assert_eq!(said["stdout"], "blue");
    assert_eq!(said["stderr"], "problem");
    assert_eq!(said["exit_code"], 1);
    assert_eq!(said["cwd"], "/tmp");
    assert_eq!(said["running"], false);
    // The shell is the tenant's, and not the connection's.
    let arguments = json!({"session_id": id, "command": "pwd; exit 3"});
    let elsewhere = modern.call("session_exec", arguments).await.unwrap();
    assert_eq!((&elsewhere["stdout"], &elsewhere["exit_code"]), (&json!("/tmp"), &json!(3)));
    let budget =
        json!({"session_id": id, "command": "seq 1 1000", "budget": {"keep": {"mode": "tail", "n": 2}}});
    let short = client.call("session_exec", budget).await.unwrap();
    assert_eq!(short["stdout"], "999\n1000");
    assert_eq!(short["budget"]["stdout"]["lines_total"], 1000);
    assert_eq!(short["truncated"], true);
    let listed = client.call("session_list", json!({})).await.unwrap();
    assert_eq!(listed["sessions"][0]["session_id"], id);
    assert_eq!(client.call("session_destroy", json!({"session_id": id})).await.unwrap()["destroyed"], true);
    let ended = client.refused("session_exec", json!({"session_id": id, "command": "true"})).await.unwrap();
    assert_eq!(ended.0, "session_ended", "{ended:?}");
}

#[tokio::test]
async fn a_long_command_is_polled_written_to_and_signalled() {
    let (server, _http) = server().await;
    let client = client(&server).await;
    let id = shell(&client, json!({"transport": "local"})).await;
    let arguments = json!({"session_id": id, "command": "read line; echo got $line; sleep 60", "yield_secs": 0, "stdin": "open"});
    let begun = client.call("session_exec", arguments).await.unwrap();
    assert_eq!(begun["running"], true, "{begun}");
    let command = begun["command_id"].as_u64().unwrap();
    let written = json!({"session_id": id, "command_id": command, "text": "hello\n", "eof": true});
    assert_eq!(client.call("session_write", written).await.unwrap()["written"], 6);
    let poll = |wait: u64| {
        client.call("session_poll", json!({"session_id": id, "command_id": command, "wait_secs": wait}))
    };
    let mut polled = poll(0).await.unwrap();
    while polled["stdout"] != "got hello" {
        assert_eq!(polled["running"], true, "{polled}");
        polled = poll(0).await.unwrap();
    }
    let signal = json!({"session_id": id, "command_id": command, "signal": "TERM"});
    assert_eq!(client.call("session_signal", signal.clone()).await.unwrap()["signalled"], true);
    let ended = poll(20).await.unwrap();
    assert_eq!((&ended["running"], &ended["exit_code"]), (&json!(false), &json!(143)), "{ended}");
    assert_eq!(client.call("session_signal", signal).await.unwrap()["signalled"], false);
}

/// Before the command has begun, in the shell itself, in a process that is not its program yet, and in the program.
#[tokio::test]
async fn a_signal_arrives_at_whatever_moment() {
    let (server, _http) = server().await;
    let client = client(&server).await;
    let id = shell(&client, json!({"transport": "local"})).await;
    exec(&client, &id, "kept=here").await;
    for round in 0..60 {
        let (command, awaited) = match round % 5 {
            0 => ("sleep 60", false),
            1 => ("while :; do :; done", false),
            2 => ("exec sleep 60", false),
            3 => ("echo begun; exec sleep 60", true),
            _ => ("echo begun; sleep 60", true),
        };
        let begun = json!({"session_id": id, "command": command, "yield_secs": 0});
        let number = client.call("session_exec", begun).await.unwrap()["command_id"].clone();
        let poll = |wait: u64| {
            client.call("session_poll", json!({"session_id": id, "command_id": number, "wait_secs": wait}))
        };
        while awaited && poll(0).await.unwrap()["stdout"] != "begun" {}
        let signal = json!({"session_id": id, "command_id": number, "signal": "TERM"});
        assert_eq!(client.call("session_signal", signal).await.unwrap()["signalled"], true);
        let ended = poll(20).await.unwrap();
        assert_eq!(
            (&ended["running"], &ended["exit_code"]),
            (&json!(false), &json!(143)),
            "{round}: {ended}"
        );
    }
    assert_eq!(exec(&client, &id, "echo $kept").await["stdout"], "here");
}

#[tokio::test]
async fn live_output_is_told_to_who_asks_for_it() {
    let (server, _http) = server().await;
    let mut client = client(&server).await;
    let id = shell(&client, json!({"transport": "local"})).await;
    let params = json!({
        "name": "session_exec",
        "arguments": {"session_id": id, "command": "echo first; read line; echo last", "stdin": "open"},
        "_meta": {"progressToken": "mine"},
    });
    let begun = client.begin("tools/call", params).await.unwrap();
    let told = client.notification().await.unwrap();
    assert_eq!(told["method"], "notifications/progress", "{told}");
    assert_eq!(told["params"]["progressToken"], "mine");
    assert_eq!(told["params"]["message"], "first\n");
    let running = client.call("session_list", json!({})).await.unwrap()["sessions"][0]["running"].clone();
    let text = json!({"session_id": id, "command_id": running, "text": "\n"});
    client.call("session_write", text).await.unwrap();
    let answer = testkit::mcp::result(&begun.answer().await.unwrap()).unwrap();
    assert_eq!(answer["stdout"], "first\nlast");
}

#[tokio::test]
async fn a_cancelled_call_stops_its_command_and_leaving_does_not() {
    let (server, _http) = server().await;
    let client = client(&server).await;
    let id = shell(&client, json!({"transport": "local"})).await;
    let mut begun =
        client.begin_call("session_exec", json!({"session_id": id, "command": "sleep 60"})).await.unwrap();
    let cancel = json!({"requestId": begun.id, "reason": "enough"});
    client.notify("notifications/cancelled", cancel).await.unwrap();
    // Commands run in order: this one after the other's end.
    assert_eq!(exec(&client, &id, "echo next").await["stdout"], "next");
    assert!(!begun.is_answered(), "a cancelled request has no answer");
    let long = json!({"session_id": id, "command": "sleep 1; echo survived", "yield_secs": 0});
    let command = client.call("session_exec", long).await.unwrap()["command_id"].clone();
    let begun = client
        .begin_call("session_poll", json!({"session_id": id, "command_id": command, "wait_secs": 60}))
        .await;
    drop(begun);
    client.close().await.unwrap();
    let again = self::client(&server).await;
    let polled = json!({"session_id": id, "command_id": command, "wait_secs": 20});
    let polled = again.call("session_poll", polled).await.unwrap();
    assert_eq!((&polled["stdout"], &polled["cancelled"]), (&json!("survived"), &json!(false)), "{polled}");
}

/// Over HTTP, leaving means what the protocol's version says.
#[tokio::test]
async fn leaving_a_call_over_http_cancels_it_from_the_version_on_that_says_so() {
    let (_server, http) = server().await;
    for (version, cancels) in [(HANDSHAKE_VERSION, false), (MODERN_VERSION, true)] {
        let client = McpHttp::open(&http, version).await.unwrap();
        let made =
            client.call("session_create", json!({"transport": "local", "place": "host"})).await.unwrap();
        let command = "echo begun; sleep 3; echo over";
        let params = json!({
            "name": "session_exec",
            "arguments": {"session_id": made["session_id"], "command": command},
            "_meta": {"progressToken": 1},
        });
        let mut stream = client.stream(&client.message("tools/call", params)).await.unwrap().ok().unwrap();
        loop {
            let frame = stream.next().await.unwrap().expect("the stream ended");
            if frame.data.contains("begun") {
                break;
            }
        }
        drop(stream);
        let poll = json!({"session_id": made["session_id"], "command_id": 1, "wait_secs": 30});
        let ended = client.call("session_poll", poll).await.unwrap();
        let said = if cancels { "begun" } else { "begun\nover" };
        assert_eq!(
            (&ended["cancelled"], &ended["stdout"]),
            (&json!(cancels), &json!(said)),
            "{version}: {ended}"
        );
    }
}

#[tokio::test]
async fn a_thousand_calls_at_once_are_answered() {
    let (server, _http) = server().await;
    let client = client(&server).await;
    let id = shell(&client, json!({"transport": "local"})).await;
    let mut begun = vec![];
    for _ in 0..1000 {
        begun.push(
            client.begin_call("session_exec", json!({"session_id": id, "command": "true"})).await.unwrap(),
        );
    }
    let mut done = 0;
    for call in begun {
        let answer = call.answer().await.unwrap();
        match testkit::mcp::result(&answer) {
            Ok(result) => {
                assert_eq!(result["exit_code"], 0);
                done += 1;
            }
            Err(_) => {
                let (code, _) = testkit::mcp::refusal(&answer).unwrap();
                assert!(matches!(code.as_str(), "capacity_reached" | "queue_full"), "{code}");
            }
        }
    }
    assert!(done > 0);
    assert_eq!(exec(&client, &id, "echo still here").await["stdout"], "still here");
}

#[tokio::test]
async fn checkpoints_are_taken_listed_and_restored() {
    let (server, _http) = server().await;
    let folder = server.scratch().join("work");
    std::fs::create_dir(&folder).unwrap();
    let client = client(&server).await;
    let id = shell(&client, json!({"transport": "local", "cwd": folder})).await;
    exec(&client, &id, "echo one > a").await;
    let asked = json!({"name": "session_checkpoint", "arguments": {"session_id": id, "label": "first"}});
    let answer = client.request("tools/call", asked).await.unwrap();
    if testkit::mcp::refusal(&answer).is_ok_and(|(code, _)| code == "unsupported") {
        return skip(
            "mcp::checkpoints_are_taken_listed_and_restored",
            "this server takes no checkpoints of shells",
        );
    }
    let taken = testkit::mcp::result(&answer).unwrap();
    let taken = taken["checkpoint_id"].as_str().unwrap().to_owned();
    exec(&client, &id, "echo two > a; touch b").await;
    let listed = client.call("session_checkpoints", json!({"session_id": id})).await.unwrap();
    assert_eq!(
        (&listed["checkpoints"][0]["id"], &listed["checkpoints"][0]["label"]),
        (&json!(taken), &json!("first"))
    );
    let restored = client.call("session_restore", json!({"session_id": id})).await.unwrap();
    assert_eq!(restored["restored_to"], taken);
    assert_eq!(exec(&client, &id, "cat a; ls").await["stdout"], "one\na");
    let undone = json!({"session_id": id, "checkpoint_id": restored["undo"]});
    client.call("session_restore", undone).await.unwrap();
    assert_eq!(exec(&client, &id, "cat a; ls").await["stdout"], "two\na\nb");
}
