//! Prompts: ids that run once, what a prompt may do during a turn, the queue's bound, cancel, permissions.

use crate::kit::*;
use serde_json::{Value, json};

/// Starts a turn that goes on until it is cancelled, and waits until the agent has it.
async fn busy(http: &Http, id: &str) -> Sse {
    let before = events(http, id).await.len() as u64;
    let stream = send(http, id, &json!({"content": "sleep 600000"})).await;
    until(http, id, |event| event["type"] == "turn_started" && event["seq"].as_u64() > Some(before)).await;
    stream
}

#[tokio::test]
async fn the_same_id_replays_and_other_content_is_refused() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let prompt = json!({"content": "echo once", "id": "p-1"});
    let first = send(&http, &id, &prompt).await.collect().await.unwrap();
    let count = events(&http, &id).await.len();
    let again = send(&http, &id, &prompt).await.collect().await.unwrap();
    assert_eq!(again[1..], first[1..], "the first outcome, frame by frame");
    assert_eq!(again[0].json().unwrap()["disposition"], "repeated");
    assert_eq!(events(&http, &id).await.len(), count, "nothing was recorded, so nothing ran");

    let other = json!({"content": "echo twice", "id": "p-1"});
    let refused = http.message(&id, &other).await.unwrap().refused().unwrap();
    refusal(&refused, 409, "id_reused");

    server.kill9().unwrap();
    server.restart().await.unwrap();
    let after = send(&http, &id, &prompt).await.collect().await.unwrap();
    assert_eq!(text_of(&after), "once");
    assert_eq!(of_type(&events(&http, &id).await, "prompt_accepted").len(), 1);

    let elsewhere = session(&http).await;
    let frames = send(&http, &elsewhere, &other).await.collect().await.unwrap();
    assert_eq!(text_of(&frames), "twice", "an id belongs to its session");
}

#[tokio::test]
async fn a_repeat_of_a_running_prompt_joins_its_turn() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let prompt = json!({"content": "sleep 300", "id": "p-1"});
    let mut first = send(&http, &id, &prompt).await;
    let mut second = send(&http, &id, &prompt).await;
    let (first, second) = (first.collect().await.unwrap(), second.collect().await.unwrap());
    assert_eq!(first.last(), second.last());
    assert_eq!(of_type(&events(&http, &id).await, "prompt_accepted").len(), 1);
}

#[tokio::test]
async fn a_prompt_during_a_turn_does_what_its_sender_chose() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let mut running = busy(&http, &id).await;

    let reject = json!({"content": "echo r", "onBusy": "reject"});
    refusal(&http.message(&id, &reject).await.unwrap().refused().unwrap(), 409, "busy");

    let mut queued = send(&http, &id, &json!({"content": "echo queued"})).await;
    let start = queued.next().await.unwrap().unwrap().json().unwrap();
    assert_eq!(start["disposition"], "queued");
    let mut steered = send(&http, &id, &json!({"content": "echo steered", "onBusy": "steer"})).await;
    let mut interrupting =
        send(&http, &id, &json!({"content": "echo interrupting", "onBusy": "interrupt"})).await;

    let ended = running.collect().await.unwrap();
    let error = frame(&ended, "error");
    assert_eq!((error["outcome"].as_str(), error["code"].as_str()), (Some("cancelled"), Some("superseded")));
    assert_eq!(text_of(&interrupting.collect().await.unwrap()), "interrupting");
    assert_eq!(text_of(&steered.collect().await.unwrap()), "steered");
    assert_eq!(text_of(&queued.collect().await.unwrap()), "queued");

    let recorded = events(&http, &id).await;
    let text_of_turn = |turn: &Value| {
        let accepted = of_type(&recorded, "prompt_accepted").into_iter().find(|event| event["turn"] == *turn);
        accepted.unwrap()["content"][0]["text"].as_str().unwrap().to_owned()
    };
    let order: Vec<_> =
        of_type(&recorded, "turn_started").iter().map(|event| text_of_turn(&event["turn"])).collect();
    assert_eq!(order, ["sleep 600000", "echo interrupting", "echo steered", "echo queued"]);
}

#[tokio::test]
async fn the_queue_holds_twenty_and_survives_a_restart() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let _running = busy(&http, &id).await;
    for number in 0..20 {
        drop(
            send(&http, &id, &json!({"content": format!("echo q{number}"), "id": format!("q{number}")}))
                .await,
        );
    }
    let over = http.message(&id, &json!({"content": "echo over", "id": "over"})).await.unwrap();
    let over = over.refused().unwrap();
    refusal(&over, 429, "queue_full");
    assert!(over.header("retry-after").is_some());

    server.kill9().unwrap();
    server.restart().await.unwrap();
    act(&http, &id, "cancel").await.expect(200).unwrap();
    for number in [0, 19] {
        let again = json!({"content": format!("echo q{number}"), "id": format!("q{number}")});
        let frames = send(&http, &id, &again).await.collect().await.unwrap();
        assert_eq!(text_of(&frames), format!("q{number}"), "{frames:?}");
    }
    let recorded = events(&http, &id).await;
    assert_eq!(of_type(&recorded, "prompt_accepted").len(), 21);
    let ended = of_type(&recorded, "turn_ended");
    assert_eq!(ended.len(), 21);
    assert_eq!(ended[0]["outcome"], "cancelled", "the turn that ran went on until it was cancelled");
    assert_eq!(of_type(&recorded, "occupant_started").len(), 1);
}

#[tokio::test]
async fn cancel_ends_the_turn_and_not_the_session() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let mut running = busy(&http, &id).await;
    act(&http, &id, "cancel").await.expect(200).unwrap();
    let frames = running.collect().await.unwrap();
    let error = frame(&frames, "error");
    assert_eq!((error["outcome"].as_str(), error["code"].as_str()), (Some("cancelled"), Some("cancelled")));
    assert_eq!(get(&http, &id).await["status"], "active");
    assert_eq!(text_of(&say(&http, &id, "echo alive").await), "alive");
    act(&http, &id, "cancel").await.expect(200).unwrap();
    assert_eq!(of_type(&events(&http, &id).await, "occupant_started").len(), 1, "the same agent went on");
}

#[tokio::test]
async fn deleting_a_session_ends_its_stream_at_once() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let mut running = busy(&http, &id).await;
    http.delete(&format!("/api/sessions/{id}")).await.unwrap().expect(200).unwrap();
    let frames = running.collect().await.unwrap();
    let error = frame(&frames, "error");
    assert_eq!(
        (error["outcome"].as_str(), error["code"].as_str()),
        (Some("interrupted"), Some("session_ended"))
    );
    assert!(frames.last().unwrap().named("done"));
}

#[tokio::test]
async fn a_permission_is_asked_recorded_and_answered() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    for choice in [Some("allow"), Some("reject"), None] {
        let asked = events(&http, &id).await.len() as u64;
        let mut stream = send(&http, &id, &json!({"content": "permission"})).await;
        let fresh =
            |event: &Value| event["type"] == "permission_requested" && event["seq"].as_u64() > Some(asked);
        let request = until(&http, &id, fresh).await.pop().unwrap();
        let permission = request["seq"].as_u64().unwrap();
        let path = format!("/api/sessions/{id}/permissions/{permission}");

        refusal(
            &http.post(&path, &json!({"optionId": "no such option"})).await.unwrap(),
            400,
            "invalid_request",
        );
        let option = choice.map(|kind| {
            let options = request["options"].as_array().unwrap();
            let fits = |option: &&Value| option["kind"].as_str().unwrap().starts_with(kind);
            options.iter().find(fits).unwrap()["optionId"].clone()
        });
        let answer = json!({"optionId": option});
        http.post(&path, &answer).await.unwrap().expect(200).unwrap();
        let frames = stream.collect().await.unwrap();
        assert!(names(&frames).contains(&"permission_request"), "{frames:?}");
        let recorded = events(&http, &id).await;
        let answered = of_type(&recorded, "permission_answered");
        let answered = answered.last().unwrap();
        assert_eq!(answered["permission"], permission);
        match option {
            Some(option) => {
                assert_eq!(answered["answer"], json!({"outcome": "selected", "optionId": option}));
            }
            None => assert_eq!(answered["answer"], json!({"outcome": "cancelled"})),
        }
        refusal(&http.post(&path, &answer).await.unwrap(), 404, "permission_not_found");
    }
    let nowhere = format!("/api/sessions/{id}/permissions/999999");
    refusal(&http.post(&nowhere, &json!({"optionId": null})).await.unwrap(), 404, "permission_not_found");
}

#[tokio::test]
async fn a_stop_interrupts_the_turn() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let mut running = busy(&http, &id).await;
    assert_eq!(act(&http, &id, "stop").await.expect(200).unwrap()["session"]["status"], "paused");
    let error = frame(&running.collect().await.unwrap(), "error");
    assert_eq!(
        (error["outcome"].as_str(), error["code"].as_str()),
        (Some("interrupted"), Some("session_paused"))
    );
}

#[tokio::test]
async fn a_pause_freezes_the_turn_and_a_resume_lets_it_go_on() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let mut running = send(&http, &id, &json!({"content": "sleep 300\necho went on"})).await;
    until(&http, &id, is("turn_started")).await;
    assert_eq!(act(&http, &id, "pause").await.expect(200).unwrap()["session"]["status"], "paused");
    assert!(of_type(&events(&http, &id).await, "turn_ended").is_empty());
    assert_eq!(act(&http, &id, "resume").await.expect(200).unwrap()["session"]["status"], "active");
    let frames = running.collect().await.unwrap();
    assert!(text_of(&frames).contains("went on"), "{frames:?}");
    assert_eq!(of_type(&events(&http, &id).await, "occupant_started").len(), 1, "the same agent");
}
