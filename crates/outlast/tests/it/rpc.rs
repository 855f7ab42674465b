//! JSON-RPC over a WebSocket, with a client that shares no code with the server.

use crate::kit::*;
use serde_json::{Value, json};

async fn socket(server: &Server) -> Socket {
    Socket::open(server.address().unwrap(), "/rpc", Some(&server.key().unwrap())).await.unwrap()
}

/// Notifications up to the one that fits; their numbers must follow one another.
async fn told_until(socket: &mut Socket, after: u64, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut seen = vec![];
    loop {
        let told = socket.notification().await.unwrap();
        assert_eq!(told["method"], "sessionEvent", "{told}");
        let params = told["params"].clone();
        assert_eq!(params["seq"].as_u64().unwrap(), after + seen.len() as u64 + 1, "no gap, no double");
        seen.push(params);
        if fits(&seen[seen.len() - 1]["event"]) {
            return seen;
        }
    }
}

#[tokio::test]
async fn a_conversation_with_its_events() {
    let (server, http) = server().await;
    let mut rpc = socket(&server).await;
    let made = rpc.call("createSession", json!({"agentType": "demo"})).await.unwrap();
    let id = made["sessionId"].as_str().unwrap().to_owned();
    assert!(made["agentInfo"]["name"].is_string() && made["capabilities"].is_object(), "{made}");
    rpc.call("subscribe", json!([id, 0])).await.unwrap();
    let reply = rpc.call("sendPrompt", json!([id, "echo over the socket", {"id": "mine"}])).await.unwrap();
    assert_eq!(
        (&reply["stopReason"], &reply["text"]),
        (&json!("end_turn"), &json!("over the socket")),
        "{reply}"
    );
    assert!(reply["usage"]["inputTokens"].is_u64(), "{reply}");
    let seen = told_until(&mut rpc, 0, |event| event["method"] == "outlast/turn_ended").await;
    let updates: Vec<_> = seen.iter().filter(|told| told["event"]["method"] == "session/update").collect();
    assert!(updates.iter().all(|told| told["event"]["params"]["sessionId"] == id.as_str()));
    assert!(
        updates.iter().any(|told| told["event"]["params"]["update"]["content"]["text"] == "over the socket")
    );
    assert_eq!(seen[0]["event"]["method"], "outlast/session_created");

    // The same again runs nothing, and gives the first outcome.
    let again = rpc.call("sendPrompt", json!([id, "echo over the socket", {"id": "mine"}])).await.unwrap();
    assert_eq!(again["turn"], reply["turn"]);
    let page = rpc.call("getSessionEvents", json!({"sessionId": id, "after": 0, "limit": 3})).await.unwrap();
    assert_eq!(page["events"].as_array().unwrap().len(), 3);
    assert_eq!(page["events"][0], seen[0]);

    // Prompted at another door, heard at this one.
    say(&http, &id, "echo from rest").await;
    let after = seen.len() as u64;
    let more = told_until(&mut rpc, after, |event| event["method"] == "outlast/turn_ended").await;
    assert!(more.iter().any(|told| told["event"]["params"]["update"]["content"]["text"] == "from rest"));

    rpc.call("setMode", json!([id, "plan"])).await.unwrap();
    rpc.call("setModel", json!({"sessionId": id, "model": "demo-large"})).await.unwrap();
    rpc.call("setThoughtLevel", json!([id, "high"])).await.unwrap();
    let said = rpc.call("sendPrompt", json!([id, "model"])).await.unwrap();
    for word in ["plan", "demo-large", "high"] {
        assert!(said["text"].as_str().unwrap().contains(word), "{said}");
    }
    let open = rpc.call("listSessions", json!({})).await.unwrap();
    assert_eq!(open["sessions"][0]["id"], id.as_str());
    let forked = rpc.call("forkSession", json!([id, {"name": "twin"}])).await.unwrap();
    let forked = &forked["session"];
    assert_eq!((&forked["forkedFrom"]["session"], &forked["name"]), (&json!(id), &json!("twin")), "{forked}");
    let said = rpc.call("sendPrompt", json!([forked["id"], "echo from the fork"])).await.unwrap();
    assert_eq!(said["text"], "from the fork", "a prompt waits for its agent");
    rpc.call("destroySession", json!([forked["id"]])).await.unwrap();
    rpc.call("closeSession", json!([id])).await.unwrap();
    assert_eq!(rpc.call("listSessions", json!([])).await.unwrap()["sessions"], json!([]));
    assert_eq!(
        rpc.call("listPersistedSessions", json!(null)).await.unwrap()["sessions"][0]["status"],
        "ended"
    );
    rpc.call("destroySession", json!([id])).await.unwrap();
    let gone = rpc.refused("getSessionEvents", json!([id])).await.unwrap();
    assert_eq!(
        (&gone["data"]["code"], &gone["data"]["statusCode"]),
        (&json!("session_not_found"), &json!(404))
    );
}

/// Instructions reach the agent once, before its first prompt, and each session of a machine has its own.
#[tokio::test]
async fn instructions_come_through_the_session() {
    let (server, http) = server().await;
    let mut rpc = socket(&server).await;
    for words in ["speak of tides", "speak of stars"] {
        let options = json!({"additionalInstructions": words, "skipOsInstructions": true});
        let made = rpc.call("createSession", json!(["sea", "demo", options])).await.unwrap();
        let id = made["sessionId"].as_str().unwrap().to_owned();
        let first = rpc.call("sendPrompt", json!([id, "blocks"])).await.unwrap();
        let told = first["text"].as_str().unwrap();
        assert!(told.contains(words) && told.ends_with("|blocks"), "{told}");
        let second = rpc.call("sendPrompt", json!([id, "blocks"])).await.unwrap();
        assert_eq!(second["text"], "blocks", "once");
        let recorded = events(&http, &id).await;
        let asked = of_type(&recorded, "prompt_accepted");
        assert!(
            asked.iter().all(|event| !event.to_string().contains(words)),
            "no words in the person's mouth"
        );
    }
}

#[tokio::test]
async fn a_permission_is_answered_and_a_turn_cancelled() {
    let (server, http) = server().await;
    let mut rpc = socket(&server).await;
    let id = session(&http).await;
    rpc.call("subscribe", json!({"sessionId": id, "after": 0})).await.unwrap();
    let prompt = rpc.begin("sendPrompt", json!({"sessionId": id, "text": "permission"})).await.unwrap();
    let seen = told_until(&mut rpc, 0, |event| event["method"] == "session/request_permission").await;
    let asked = &seen[seen.len() - 1]["event"]["params"];
    assert_eq!(asked["permissionId"], seen.len() as u64);
    let answer = json!([id, asked["permissionId"], asked["options"][0]["optionId"]]);
    rpc.call("respondPermission", answer.clone()).await.unwrap();
    let done = rpc.answer(prompt).await.unwrap();
    assert_eq!(done["result"]["outcome"], "done", "{done}");
    let again = rpc.refused("respondPermission", answer).await.unwrap();
    assert_eq!(again["data"]["code"], "permission_not_found");

    let prompt = rpc.begin("sendPrompt", json!([id, "silent"])).await.unwrap();
    until(&http, &id, |event| {
        event["type"] == "turn_started" && event["seq"].as_u64() > Some(seen.len() as u64)
    })
    .await;
    rpc.call("cancelPrompt", json!([id])).await.unwrap();
    let cancelled = rpc.answer(prompt).await.unwrap();
    assert_eq!(cancelled["result"]["stopReason"], "cancelled", "{cancelled}");
}

#[tokio::test]
async fn sessions_share_a_machine_that_sleeps() {
    let (server, _http) = server().await;
    let mut rpc = socket(&server).await;
    let vm = rpc.call("vm.getOrCreate", json!([["team", "shared"]])).await.unwrap();
    assert_eq!(rpc.call("vm.getOrCreate", json!({"key": ["team", "shared"]})).await.unwrap(), vm);
    let other = rpc.call("vm.getOrCreate", json!(["other"])).await.unwrap();
    assert_ne!(other["sandboxId"], vm["sandboxId"]);
    let mut ids = vec![];
    for machine in [&vm, &vm, &other] {
        let made = rpc.call("createSession", json!([machine["vm"], "demo"])).await.unwrap();
        assert_eq!(made["session"]["sandboxId"], machine["sandboxId"]);
        ids.push(made["sessionId"].clone());
    }
    rpc.call("sendPrompt", json!([ids[0], "write shared.txt from the first"])).await.unwrap();
    let read = rpc.call("sendPrompt", json!([ids[1], "cat shared.txt"])).await.unwrap();
    assert!(read["text"].as_str().unwrap().contains("from the first"), "{read}");
    let apart = rpc.call("sendPrompt", json!([ids[2], "cat shared.txt"])).await.unwrap();
    assert!(!apart["text"].as_str().unwrap_or_default().contains("from the first"), "{apart}");

    let slept = rpc.call("vm.sleep", json!([vm["vm"]])).await.unwrap();
    assert_eq!(slept["suspended"].as_array().unwrap().len(), 2, "{slept}");
    let open = rpc.call("listSessions", json!([])).await.unwrap();
    let status = |id: &Value| {
        let all = open["sessions"].as_array().unwrap();
        all.iter().find(|session| session["id"] == *id).unwrap()["status"].clone()
    };
    assert_eq!((status(&ids[0]), status(&ids[2])), (json!("paused"), json!("active")));
    let back = rpc.call("sendPrompt", json!([ids[1], "cat shared.txt"])).await.unwrap();
    assert!(back["text"].as_str().unwrap().contains("from the first"), "{back}");
}

#[tokio::test]
async fn bad_calls_are_refused_and_keys_checked() {
    let (server, http) = server().await;
    let address = server.address().unwrap();
    for key in [None, Some("wrong")] {
        let refused = Socket::open(address, "/rpc", key).await.unwrap_err();
        assert!(refused.to_string().contains("401"), "{refused}");
    }
    let made = http.post("/api/api-keys", &json!({"scope": "read"})).await.unwrap().expect(201).unwrap();
    let mut reader = Socket::open(address, "/rpc", made["key"].as_str()).await.unwrap();
    let id = session(&http).await;
    assert!(reader.call("getSessionEvents", json!([id])).await.is_ok());
    let refused = reader.refused("sendPrompt", json!([id, "echo x"])).await.unwrap();
    assert_eq!(refused["data"]["code"], "forbidden");
    let other = http.post("/api/api-keys", &json!({"scope": "admin", "tenant": "other"})).await.unwrap();
    let other = other.expect(201).unwrap();
    let mut stranger = Socket::open(address, "/rpc", other["key"].as_str()).await.unwrap();
    for method in ["subscribe", "getSessionEvents", "sendPrompt", "destroySession", "cancelPrompt"] {
        let params = if method == "sendPrompt" { json!([id, "x"]) } else { json!([id]) };
        assert_eq!(stranger.refused(method, params).await.unwrap()["data"]["code"], "session_not_found");
    }

    let mut rpc = socket(&server).await;
    for (method, params, code) in [
        ("fly", json!([]), -32601),
        ("sendPrompt", json!([id]), -32602),
        ("sendPrompt", json!([id, 7]), -32602),
        ("sendPrompt", json!({"sessionId": id, "text": "x", "extra": 1}), -32602),
        ("sendPrompt", json!(["not an id", "x"]), -32602),
        ("getSessionEvents", json!([id, {"limit": 0}]), -32602),
        ("createSession", json!({"agentType": "nobody"}), -32000),
        ("createSession", json!({"agentType": "demo", "vm": 7}), -32602),
        ("createSession", json!({"agentType": "demo", "additionalInstructions": 7}), -32602),
        ("respondPermission", json!([id, 1]), -32602),
    ] {
        let error = rpc.refused(method, params.clone()).await.unwrap();
        assert_eq!(error["code"], code, "{method} {params}: {error}");
    }
    for (text, code) in [("{", -32700), ("[]", -32600), (r#"{"jsonrpc":"2.0","id":5}"#, -32600)] {
        rpc.send(text).await.unwrap();
        assert_eq!(rpc.message().await.unwrap()["error"]["code"], code, "{text}");
    }
    // Nobody was harmed by it.
    assert_eq!(rpc.call("sendPrompt", json!([id, "echo fine"])).await.unwrap()["text"], "fine");
}

#[tokio::test]
async fn a_flood_reaches_a_reader_that_was_away() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let mut rpc = socket(&server).await;
    rpc.call("subscribe", json!([id, 0])).await.unwrap();
    // The socket is not read while 20,000 deltas are made: the server keeps none of them for it.
    let turn = say(&http, &id, "stream 20000 64").await;
    assert!(turn.last().is_some_and(|frame| frame.named("done")));
    let seen = told_until(&mut rpc, 0, |event| event["method"] == "outlast/turn_ended").await;
    assert!(seen.len() > 20_000);
    // A stopping server says so.
    server.stop().await.unwrap();
    let goodbye = loop {
        match rpc.notification().await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(goodbye.to_string().contains("stopping"), "{goodbye}");
    server.restart().await.unwrap();
    let mut rpc = socket(&server).await;
    rpc.call("subscribe", json!([id, seen.len()])).await.unwrap();
    let more = rpc.call("sendPrompt", json!([id, "echo again"])).await.unwrap();
    assert_eq!(more["text"], "again");
    told_until(&mut rpc, seen.len() as u64, |event| event["params"]["update"]["content"]["text"] == "again")
        .await;
}
