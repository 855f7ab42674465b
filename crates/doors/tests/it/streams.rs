//! What goes out: a turn's stream, its replay, a session's events as pages and as a stream, and their ends.

use crate::support::{Frame, Server};
use serde_json::json;

const SSE: (&str, &str) = ("accept", "text/event-stream");
const JSON: (&str, &str) = ("content-type", "application/json");

fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

#[tokio::test]
async fn a_turn_is_streamed_and_replayed() {
    let server = Server::start().await;
    let id = server.session().await;
    let path = format!("/api/sessions/{id}/messages");
    let body = json!({ "content": "hello", "id": "once" }).to_string();

    let mut first = server.stream("POST", &path, &[JSON], &body).await;
    assert_eq!(first.status, 200);
    let turn = first.headers.iter().find(|(name, _)| name == "x-outlast-turn").unwrap().1.clone();
    let frames = first.frames().await;
    assert_eq!(names(&frames), ["session_start", "text_delta", "message", "turn_complete", "done"]);
    assert_eq!(frames[0].data["sessionId"], json!(id));
    assert_eq!(frames[0].data["turn"], json!(turn));
    assert_eq!(frames[1].data, json!({ "delta": "Hello" }));
    assert_eq!(frames[3].data["result"], "Hello");
    assert_eq!(frames[4].data, json!({ "sessionId": id }));

    // The same id again: the same frames, and nothing ran.
    let again = server.stream("POST", &path, &[JSON], &body).await.frames().await;
    assert_eq!(again[1..], frames[1..]);
    assert_eq!(again[0].data["turn"], json!(turn));

    let other = json!({ "content": "something else", "id": "once" }).to_string();
    let refused = server.post(&path, &other).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (409, Some("id_reused")));

    let partial = json!({ "content": "hello", "includePartialMessages": true }).to_string();
    let frames = server.stream("POST", &path, &[JSON], &partial).await.frames().await;
    assert_eq!(
        names(&frames),
        ["session_start", "text_delta", "text_delta", "message", "turn_complete", "done"]
    );

    let messages = server.get(&path).await.json();
    assert_eq!(messages["messages"].as_array().unwrap().len(), 4, "{messages}");
    server.stop().await;
}

#[tokio::test]
async fn hanging_up_cancels_nothing_and_cancelling_is_a_typed_end() {
    let server = Server::start().await;
    let id = server.session().await;
    let path = format!("/api/sessions/{id}/messages");
    let body = json!({ "content": "hold", "id": "held", "includePartialMessages": true }).to_string();
    let mut first = server.stream("POST", &path, &[JSON], &body).await;
    while first.frame().await.unwrap().event != "text_delta" {}
    drop(first);

    let mut again = server.stream("POST", &path, &[JSON], &body).await;
    while again.frame().await.unwrap().event != "text_delta" {}
    assert_eq!(server.post(&format!("/api/sessions/{id}/cancel"), "").await.status, 200);
    let rest = again.frames().await;
    let end = &rest[rest.len() - 2..];
    assert_eq!(names(end), ["error", "done"]);
    assert_eq!((&end[0].data["outcome"], &end[0].data["code"]), (&json!("cancelled"), &json!("cancelled")));
    server.stop().await;
}

#[tokio::test]
async fn events_are_pages_and_a_stream_of_the_same() {
    let server = Server::start().await;
    let id = server.session().await;
    let body = json!({ "content": "hello" }).to_string();
    server.stream("POST", &format!("/api/sessions/{id}/messages"), &[JSON], &body).await.frames().await;

    let path = format!("/api/sessions/{id}/events");
    let page = server.get(&path).await.json();
    let events = page["events"].as_array().unwrap().clone();
    assert_eq!(page["lastSeq"], json!(events.len()));
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], json!(index + 1), "gapless from 1");
    }
    let second = server.get(&format!("{path}?after=2&limit=3")).await.json();
    assert_eq!(second["events"].as_array().unwrap()[..], events[2..5]);

    let mut stream = server.stream("GET", &path, &[SSE], "").await;
    for event in &events {
        let frame = stream.frame().await.unwrap();
        assert_eq!(frame.id.map(|id| json!(id)).as_ref(), Some(&event["seq"]));
        assert_eq!(json!(frame.event), event["type"]);
        assert_eq!(&frame.data, event);
    }
    // The header wins over the address.
    let from = events.len() as u64 - 2;
    let headers = [SSE, ("last-event-id", &from.to_string())];
    let mut resumed = server.stream("GET", &format!("{path}?after=1"), &headers, "").await;
    assert_eq!(resumed.frame().await.unwrap().id, Some(from + 1));
    assert_eq!(resumed.frame().await.unwrap().id, Some(from + 2));

    // Live, and on until the session is removed.
    assert_eq!(server.call("DELETE", &format!("/api/sessions/{id}"), &[], b"").await.status, 200);
    let ended = loop {
        let frame = resumed.frame().await.unwrap();
        if frame.event == "session_status" && frame.data["to"] == "ended" {
            break frame.id.unwrap();
        }
    };
    assert!(ended > from + 2);
    assert_eq!(server.call("DELETE", &format!("/api/sessions/{id}?purge=true"), &[], b"").await.status, 200);
    let last = resumed.frames().await.pop().unwrap();
    assert_eq!((last.event.as_str(), &last.data["code"]), ("error", &json!("session_not_found")));
    assert_eq!(server.get(&path).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn stopping_tells_every_stream() {
    let server = Server::start().await;
    let id = server.session().await;
    let body = json!({ "content": "hold" }).to_string();
    let mut turn = server.stream("POST", &format!("/api/sessions/{id}/messages"), &[JSON], &body).await;
    assert_eq!(turn.frame().await.unwrap().event, "session_start");
    let mut events = server.stream("GET", &format!("/api/sessions/{id}/events"), &[SSE], "").await;
    assert!(events.frame().await.is_some());

    let (_, turn, events) = tokio::join!(server.stop(), turn.frames(), events.frames());
    let end = &turn[turn.len() - 2..];
    assert_eq!(names(end), ["error", "done"]);
    assert_eq!(end[0].data["code"], "shutting_down");
    assert!(events.iter().all(|frame| frame.id.is_some()), "the events' stream just ends, to be resumed");
}
