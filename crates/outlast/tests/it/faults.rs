//! Agents that misbehave: each ends in a typed outcome, and the server goes on as if nothing had been.

use crate::kit::*;
use serde_json::{Value, json};

/// Creating a session with this agent fails; nothing else does.
async fn cannot_start(http: &Http, agent: &str, words: &[&str]) {
    let reply = http.post("/api/sessions", &json!({"agent": agent})).await.unwrap();
    let sentence = refusal(&reply, 500, "agent_failed");
    for word in words {
        assert!(sentence.contains(word), "{agent}: {sentence:?} does not say {word:?}");
    }
    let list = http.get(&format!("/api/sessions?agent={agent}")).await.unwrap().expect(200).unwrap();
    for session in list["sessions"].as_array().unwrap() {
        assert_eq!(session["status"], "error", "{session}");
    }
    assert!(healthy(http).await);
}

async fn healthy(http: &Http) -> bool {
    let id = session(http).await;
    text_of(&say(http, &id, "echo unharmed").await) == "unharmed"
}

#[tokio::test]
async fn an_agent_that_cannot_start_is_a_typed_error() {
    let (_server, http) = server().await;
    deploy(&http, "missing", "command = \"no-such-program-anywhere\"\n").await;
    cannot_start(&http, "missing", &["no-such-program-anywhere"]).await;
    deploy_script(&http, "quits", "echo why it failed >&2; exit 3").await;
    cannot_start(&http, "quits", &["3", "why it failed"]).await;
    deploy_script(&http, "killed", "kill -9 $$").await;
    cannot_start(&http, "killed", &["9"]).await;
    let answer = r#"{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"not today"}}\n"#;
    let refuse = format!(
        r#"read line; id=$(printf %s "$line" | sed 's/.*"id":\([^,}}]*\).*/\1/'); printf '{answer}' "$id"; exec cat"#
    );
    deploy_script(&http, "refuses", &refuse).await;
    cannot_start(&http, "refuses", &["not today"]).await;
}

#[tokio::test]
async fn an_agent_that_never_answers_can_be_deleted() {
    let (_server, http) = server().await;
    deploy_script(&http, "mute", "exec sleep 100000").await;
    let creating = {
        let http = http.clone();
        tokio::spawn(async move { http.post("/api/sessions", &json!({"agent": "mute"})).await.unwrap() })
    };
    let id = loop {
        let list = http.get("/api/sessions?agent=mute").await.unwrap().expect(200).unwrap();
        if let Some(session) = list["sessions"].as_array().unwrap().first() {
            assert_eq!(session["status"], "starting");
            break session["id"].as_str().unwrap().to_owned();
        }
    };
    let ended = http.delete(&format!("/api/sessions/{id}")).await.unwrap().expect(200).unwrap();
    assert_eq!(ended["session"]["status"], "ended");
    let created = creating.await.unwrap();
    assert!(created.status >= 400, "the caller who created it is told: {}", created.text());
    assert!(healthy(&http).await);
}

#[tokio::test]
async fn an_agent_that_floods_before_the_handshake_is_stopped() {
    let (mut server, http) = server().await;
    deploy_script(&http, "junk-flood", "exec yes this is not json").await;
    let creating = {
        let http = http.clone();
        tokio::spawn(
            async move { http.post("/api/sessions", &json!({"agent": "junk-flood"})).await.unwrap() },
        )
    };
    // The server stays quick for everybody else while the flood goes on.
    assert!(healthy(&http).await);
    let list = http.get("/api/sessions?agent=junk-flood").await.unwrap().expect(200).unwrap();
    if let Some(session) = list["sessions"].as_array().unwrap().first() {
        let path = format!("/api/sessions/{}", session["id"].as_str().unwrap());
        http.delete(&path).await.unwrap().expect(200).unwrap();
    }
    assert!(creating.await.unwrap().status >= 400);
    assert!(server.is_running());
}

#[tokio::test]
async fn a_crash_in_a_turn_has_one_outcome_and_the_next_prompt_brings_the_agent_back() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, "crash").await;
    let error = frame(&frames, "error");
    assert_eq!(
        (error["outcome"].as_str(), error["code"].as_str()),
        (Some("interrupted"), Some("agent_died"))
    );
    until(&http, &id, is("occupant_exited")).await;
    let recorded = events(&http, &id).await;
    assert_eq!(only_end(&recorded), ("interrupted".into(), "agent_died".into()));
    let exits = of_type(&recorded, "occupant_exited");
    assert_eq!(exits.len(), 1);
    assert_eq!(exits[0]["expected"], false);
    assert_eq!(text_of(&say(&http, &id, "echo back").await), "back");
}

/// The end of its input comes first, and a signal only when that was not enough.
#[tokio::test]
async fn a_stopped_agent_has_time_to_save_what_it_knows() {
    let (_server, http) = server().await;
    let shake = r#"
id() { printf %s "$1" | sed 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/'; }
trap 'echo told >>how; exit 0' TERM
read -r line; printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1}}\n' "$(id "$line")"
read -r line; printf '{"jsonrpc":"2.0","id":%s,"result":{"sessionId":"s"}}\n' "$(id "$line")"
while read -r line; do :; done
"#;
    for (name, rest, how) in [
        ("saves", "sleep 0.3; echo saved >>how; exit 0", "saved"),
        ("stays", "echo waits >>how; while :; do sleep 0.05; done", "waits\ntold"),
    ] {
        deploy_script(&http, name, &format!("{shake}{rest}")).await;
        let id = session_of(&http, &json!({"agent": name})).await;
        act(&http, &id, "stop").await.expect(200).unwrap();
        let file = http.get(&format!("/api/sessions/{id}/files/content?path=how")).await.unwrap();
        assert_eq!(file.text().trim(), how, "{name}");
    }
}

/// What the session's record says of its agent's comings and goings, from the first end on.
fn told(recorded: &[Value]) -> Vec<String> {
    let first = recorded.iter().position(is("occupant_exited")).unwrap();
    let told = recorded[first..].iter().filter_map(|event| match event["type"].as_str()? {
        kind @ ("occupant_exited" | "occupant_started") => Some(kind.to_owned()),
        "session_status" => Some(event["to"].as_str()?.to_owned()),
        "notice" => event["text"].as_str()?.split_once(": it ").map(|(_, text)| text.to_owned()),
        _ => None,
    });
    told.collect()
}

#[tokio::test]
async fn a_crashed_agent_comes_back_unasked_with_its_memory() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "remember blue").await;
    say(&http, &id, "crash 3").await;
    let recorded = until_count(&http, &id, "occupant_started", 2).await;
    let expected = [
        "occupant_exited",
        "error",
        "is started again in 500 ms, 1 of 5 times within 600 s",
        "occupant_started",
    ];
    assert_eq!(told(&recorded), expected);
    until(&http, &id, |event| event["to"] == "active" && event["from"] == "error").await;
    assert_eq!(text_of(&say(&http, &id, "recall").await), "blue");
    assert_eq!(of_type(&events(&http, &id).await, "occupant_started").len(), 2, "the prompt started nothing");
    // One that leaves with success meant to: it is not brought back before it is needed.
    say(&http, &id, "crash 0").await;
    until(&http, &id, |event| {
        event["type"] == "session_status"
            && event["to"] == "error"
            && event["seq"].as_u64() > recorded.last().unwrap()["seq"].as_u64()
    })
    .await;
    assert_eq!(text_of(&say(&http, &id, "recall").await), "blue");
    let recorded = events(&http, &id).await;
    assert_eq!(
        told(&recorded).iter().filter(|text| text.contains("started again")).count(),
        1,
        "{recorded:?}"
    );
}

#[tokio::test]
async fn an_agent_that_crashes_for_ever_stays_down_until_it_is_needed() {
    let (_server, http) = server().await;
    let script = r#"
id() { printf %s "$1" | sed 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/'; }
echo x >>starts
read -r line; printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1}}\n' "$(id "$line")"
read -r line; printf '{"jsonrpc":"2.0","id":%s,"result":{"sessionId":"s"}}\n' "$(id "$line")"
[ "$(wc -l <starts)" -gt 6 ] || exit 3
while read -r line; do printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}\n' "$(id "$line")"; done"#;
    deploy_script(&http, "unstable", script).await;
    let id = session_of(&http, &json!({"agent": "unstable"})).await;
    let down = |event: &Value| {
        event["text"].as_str().is_some_and(|text| text.contains("stays down until it is needed"))
    };
    let recorded = until(&http, &id, down).await;
    let waits: Vec<_> =
        told(&recorded).into_iter().filter(|text| text.contains("started again in")).collect();
    assert_eq!(waits.len(), 5, "{waits:?}");
    assert!(waits[4].contains("8000 ms"), "{waits:?}");
    assert_eq!(of_type(&recorded, "occupant_started").len(), 6);
    assert_eq!(get(&http, &id).await["status"], "error");
    assert!(names(&say(&http, &id, "go").await).contains(&"turn_complete"));
}

/// Ending a session whose agent is about to be brought back ends that too.
#[tokio::test]
async fn an_end_is_obeyed_before_a_restart() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "crash").await;
    until(&http, &id, |event| event["text"].as_str().is_some_and(|text| text.contains("started again in")))
        .await;
    let ended = http.delete(&format!("/api/sessions/{id}")).await.unwrap().expect(200).unwrap();
    assert_eq!(ended["session"]["status"], "ended");
    assert_eq!(of_type(&events(&http, &id).await, "occupant_started").len(), 1);
}

#[tokio::test]
async fn junk_lines_are_survived_and_noted() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, "junk").await;
    assert!(names(&frames).contains(&"turn_complete"), "{frames:?}");
    assert!(!of_type(&events(&http, &id).await, "notice").is_empty());
}

#[tokio::test]
async fn a_line_over_the_limit_is_a_protocol_failure() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, &format!("huge {}", 40 * 1024 * 1024)).await;
    let error = frame(&frames, "error");
    assert_eq!(error["code"], "agent_protocol", "{error}");
    assert_eq!(only_end(&events(&http, &id).await).1, "agent_protocol");
    assert!(server.is_running());
    assert_eq!(text_of(&say(&http, &id, "echo back").await), "back");
}

#[tokio::test]
async fn a_large_line_below_the_limit_is_recorded_whole() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, &format!("huge {}", 4 * 1024 * 1024)).await;
    assert!(text_of(&frames).len() >= 4 * 1024 * 1024);
}

#[tokio::test]
async fn an_error_answer_is_a_failed_turn() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let error = frame(&say(&http, &id, "error").await, "error");
    assert_eq!((error["outcome"].as_str(), error["code"].as_str()), (Some("failed"), Some("agent_error")));
    assert_eq!(get(&http, &id).await["status"], "active");
    assert_eq!(text_of(&say(&http, &id, "echo on").await), "on");
}

#[tokio::test]
async fn a_flood_of_updates_loses_nothing() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, "stream 10000 20").await;
    assert!(names(&frames).contains(&"turn_complete"));
    assert_eq!(text_of(&frames).len(), 200_000);
    assert_eq!(of_type(&events(&http, &id).await, "agent_update").len(), 10_000);
}

#[tokio::test]
async fn a_silent_agent_is_cancelled_and_a_stubborn_one_is_stopped() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    for (script, code) in [("silent", "cancelled"), ("stubborn 600000", "agent_unresponsive")] {
        let before = events(&http, &id).await.len() as u64;
        let mut stream = send(&http, &id, &json!({"content": script})).await;
        until(&http, &id, |event| event["type"] == "turn_started" && event["seq"].as_u64() > Some(before))
            .await;
        act(&http, &id, "cancel").await.expect(200).unwrap();
        let error = frame(&stream.collect().await.unwrap(), "error");
        assert_eq!(error["code"], code, "{script}: {error}");
        assert_eq!(text_of(&say(&http, &id, "echo back").await), "back", "{script}");
    }
}

#[tokio::test]
async fn a_turn_limit_in_the_manifest_ends_the_turn() {
    let (_server, http) = server().await;
    let program = Value::String("outlast".to_owned());
    let manifest = format!("command = {program}\nargs = [\"demo-agent\"]\n[policy]\nturn_secs = 1\n");
    deploy(&http, "brief", &manifest).await;
    let id = session_of(&http, &json!({"agent": "brief"})).await;
    let error = frame(&say(&http, &id, "sleep 600000").await, "error");
    assert_eq!(error["outcome"], "timed_out", "{error}");
}

#[tokio::test]
async fn the_agents_stderr_is_readable() {
    let (_server, http) = server().await;
    deploy_script(&http, "talker", &format!("echo a word on stderr >&2; exec {PROGRAM} demo-agent")).await;
    let id = session_of(&http, &json!({"agent": "talker", "place": "host"})).await;
    say(&http, &id, "echo x").await;
    let logs = http.get(&format!("/api/sessions/{id}/logs")).await.unwrap();
    assert_eq!(logs.status, 200);
    assert!(logs.text().contains("a word on stderr"), "{}", logs.text());
}
