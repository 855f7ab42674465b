//! What outlives the server: agents in the middle of their turns, frozen ones, and what waits for them.

use crate::kit::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

const SESSIONS: usize = 50;
const KILLS: usize = 20;
/// So that the agents write while servers come and go. In the end each asks for permission and waits: however slow the
/// machine is, every turn outlives every server.
const STEPS: usize = 60;
const STEP_MILLIS: usize = 150;

/// Follows a session over any number of servers until its turn has ended, noting each event as it came.
async fn follow(http: Http, id: String) -> (String, Vec<(u64, Value)>) {
    let mut seen: Vec<(u64, Value)> = Vec::new();
    loop {
        let after = seen.last().map_or(0, |(seq, _)| *seq);
        let Ok(mut stream) = http.follow(&id, after).await else {
            tokio::task::yield_now().await;
            continue;
        };
        while let Ok(Some(frame)) = stream.next_unbounded().await {
            let Some(seq) = frame.id.as_deref().and_then(|id| id.parse().ok()) else { continue };
            let event: Value = serde_json::from_str(&frame.data).unwrap();
            let ended = event["type"] == "turn_ended";
            seen.push((seq, event));
            if ended {
                return (id, seen);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_turns_outlive_twenty_servers() {
    let (mut server, http) = server().await;
    let steps: String = (0..STEPS).map(|step| format!("echo {step}.\nsleep {STEP_MILLIS}\n")).collect();
    let script = format!("{steps}permission");
    let mut followers = JoinSet::new();
    let mut ids = Vec::new();
    for _ in 0..SESSIONS {
        let id = session(&http).await;
        ids.push(id.clone());
        drop(send(&http, &id, &json!({"content": script, "id": "the turn"})).await);
        followers.spawn(follow(http.clone(), id));
    }
    for id in ids.iter().take(KILLS) {
        let last = get(&http, id).await["lastSeq"].as_u64().unwrap();
        server.kill9().unwrap();
        server.restart().await.unwrap();
        // Each server serves until it has taken one of the agents up.
        let mut stream = http.follow(id, last).await.unwrap();
        while !stream.next().await.unwrap().unwrap().data.contains("was taken up") {}
    }
    for id in &ids {
        let asked = until(&http, id, is("permission_requested")).await.pop().unwrap();
        let path = format!("/api/sessions/{id}/permissions/{}", asked["seq"]);
        let answer = json!({"optionId": asked["options"][0]["optionId"]});
        http.post(&path, &answer).await.unwrap().expect(200).unwrap();
    }
    let whole: String = (0..STEPS).map(|step| format!("{step}.")).collect();
    let mut records = BTreeMap::new();
    while let Some(followed) = followers.join_next().await {
        let (id, seen) = followed.unwrap();
        let text: String = seen
            .iter()
            .filter(|(_, event)| event["update"]["sessionUpdate"] == "agent_message_chunk")
            .filter_map(|(_, event)| event["update"]["content"]["text"].as_str())
            .collect();
        let rest =
            text.strip_prefix(&whole).unwrap_or_else(|| panic!("{id}: a word lost or doubled: {text}"));
        assert!(!rest.is_empty() && rest.len() < 200, "{id}: what was chosen, once: {rest}");
        records.insert(id, seen);
    }
    let mut taken_up = 0;
    for (id, seen) in &records {
        let recorded = events(&http, id).await;
        assert_eq!(only_end(&recorded), ("done".to_owned(), "end_turn".to_owned()), "{id}");
        assert_eq!(of_type(&recorded, "occupant_started").len(), 1, "{id}: one agent all along");
        let upto = seen.len();
        assert!(seen.iter().map(|(seq, _)| *seq).eq(1..=upto as u64), "{id}: a gap or a double");
        assert!(
            seen.iter().map(|(_, event)| event).eq(&recorded[..upto]),
            "{id}: the journal says otherwise"
        );
        taken_up += of_type(&recorded, "notice").len();
    }
    assert!(taken_up >= SESSIONS * 5, "the turns were over too soon for the test to test: {taken_up}");
}

#[tokio::test]
async fn a_pause_outlives_the_server_and_the_turn_goes_on() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let mut turn = send(&http, &id, &json!({"content": "echo one\nsleep 300\necho two", "id": "p"})).await;
    until(&http, &id, is("agent_update")).await;
    act(&http, &id, "pause").await.expect(200).unwrap();
    server.kill9().unwrap();
    server.restart().await.unwrap();
    assert_eq!(get(&http, &id).await["status"], "paused");
    drop(turn.collect().await);
    act(&http, &id, "resume").await.expect(200).unwrap();
    let frames = send(&http, &id, &json!({"content": "echo one\nsleep 300\necho two", "id": "p"})).await;
    drop(frames);
    let recorded = until(&http, &id, is("turn_ended")).await;
    assert_eq!(only_end(&recorded), ("done".to_owned(), "end_turn".to_owned()));
    assert_eq!(of_type(&recorded, "occupant_started").len(), 1);
}

#[tokio::test]
async fn a_lost_keeper_is_a_typed_outcome_and_the_session_comes_back() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    drop(send(&http, &id, &json!({"content": "sleep 600000"})).await);
    until(&http, &id, is("turn_started")).await;
    // While the server runs: the agent's end is seen at once.
    testkit::end_below(server.data());
    let recorded = until(&http, &id, is("turn_ended")).await;
    assert_eq!(only_end(&recorded), ("interrupted".to_owned(), "agent_died".to_owned()));
    assert_eq!(text_of(&say(&http, &id, "echo back").await), "back");

    // While none runs: the next server finds nothing to take up.
    drop(send(&http, &id, &json!({"content": "sleep 600000", "id": "second"})).await);
    until(&http, &id, |event| event["type"] == "turn_started" && event["seq"].as_u64() > Some(12)).await;
    server.kill9().unwrap();
    testkit::end_below(server.data());
    server.restart().await.unwrap();
    let recorded = until_count(&http, &id, "turn_ended", 3).await;
    let last = of_type(&recorded, "turn_ended").last().copied().unwrap().clone();
    assert_eq!(
        (last["outcome"].as_str(), last["reason"].as_str()),
        (Some("interrupted"), Some("server_stopped"))
    );
    assert_eq!(text_of(&say(&http, &id, "echo again").await), "again");
}

#[tokio::test]
async fn what_no_session_needs_ends_with_the_next_server() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    server.kill9().unwrap();
    let keepers = server.data().join("keepers");
    assert_eq!(std::fs::read_dir(&keepers).unwrap().count(), 1);
    server.restart().await.unwrap();
    http.delete(&format!("/api/sessions/{id}")).await.unwrap().expect(200).unwrap();
    server.stop().await.unwrap();
    assert_eq!(std::fs::read_dir(&keepers).unwrap().count(), 0, "an ended session leaves no keeper");
}

/// Opens a terminal, waits for its end, and tells what it heard of it.
const IN_A_TERMINAL: &str = r#"
id() { printf %s "$1" | sed 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/'; }
say() { printf '%s\n' "$1"; }
ask() { say "{\"jsonrpc\":\"2.0\",\"id\":\"$1\",\"method\":\"$2\",\"params\":{\"sessionId\":\"s\",$3}}"; read -r answer; }
tell() { text=$(printf %s "$1" | sed 's/\\/\\\\/g; s/"/\\"/g'); say "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"$text;\"}}}}"; }
read -r line; say "{\"jsonrpc\":\"2.0\",\"id\":$(id "$line"),\"result\":{\"protocolVersion\":1}}"
read -r line; say "{\"jsonrpc\":\"2.0\",\"id\":$(id "$line"),\"result\":{\"sessionId\":\"s\"}}"
read -r line; prompt=$(id "$line")
ask a terminal/create "\"command\":\"sh\",\"args\":[\"-c\",\"echo begun; until [ -e go ]; do sleep 0.05; done; echo finished; exit 4\"]"
terminal=$(printf %s "$answer" | sed 's/.*"terminalId":"\([^"]*\)".*/\1/')
tell opened
ask b terminal/wait_for_exit "\"terminalId\":\"$terminal\""; tell "$answer"
ask c terminal/output "\"terminalId\":\"$terminal\""; tell "$answer"
ask d terminal/release "\"terminalId\":\"$terminal\""; tell "$answer"
say "{\"jsonrpc\":\"2.0\",\"id\":$prompt,\"result\":{\"stopReason\":\"end_turn\"}}"
exec cat >/dev/null
"#;

#[tokio::test]
async fn a_terminal_outlives_the_server_as_its_agent_does() {
    let (mut server, http) = server().await;
    deploy_script(&http, "in-a-terminal", IN_A_TERMINAL).await;
    let id = session_of(&http, &json!({"agent": "in-a-terminal"})).await;
    drop(send(&http, &id, &json!({"content": "go"})).await);
    until(&http, &id, |event| event.to_string().contains("opened;")).await;
    // Killed once, and stopped as asked once.
    server.kill9().unwrap();
    server.restart().await.unwrap();
    until(&http, &id, |event| event.to_string().contains("was taken up")).await;
    server.stop().await.unwrap();
    server.restart().await.unwrap();
    let path = format!("/api/sessions/{id}/files/content?path=go");
    let put = http.raw("PUT", &path, &[("content-type", "application/octet-stream")], b"now").await.unwrap();
    assert!(put.status < 300, "{}", put.text());
    let recorded = until(&http, &id, is("turn_ended")).await;
    let told: String =
        recorded.iter().filter_map(|event| event["update"]["content"]["text"].as_str()).collect();
    for words in [r#""exitCode":4"#, r"begun\nfinished\n", r#""id":"d","result""#] {
        assert!(told.contains(words), "no {words} in {told}");
    }
    assert_eq!(only_end(&recorded), ("done".to_owned(), "end_turn".to_owned()));
}
