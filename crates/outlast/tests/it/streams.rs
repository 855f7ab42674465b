//! Streams: a turn's frames, a session's events, reconnecting with the last id, across a restart.

use crate::kit::*;
use serde_json::{Value, json};

#[tokio::test]
async fn a_turn_is_framed_as_existing_clients_read_it() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, "echo hello there").await;
    assert_eq!(
        names(&frames),
        ["session_start", "text_delta", "message", "turn_complete", "done"],
        "{frames:?}"
    );
    let start = frame(&frames, "session_start");
    assert_eq!(start["sessionId"], id.as_str());
    assert!(start["version"].is_string());
    assert_eq!(text_of(&frames), "hello there");
    assert_eq!(frame(&frames, "done")["sessionId"], id.as_str());
    assert!(frames.iter().all(|frame| !frame.data.contains('\n')), "one line of data");

    let partial = json!({"content": "stream 30 8", "includePartialMessages": true});
    let frames = send(&http, &id, &partial).await.collect().await.unwrap();
    assert_eq!(names(&frames).iter().filter(|name| **name == "text_delta").count(), 30, "{frames:?}");
    let whole = send(&http, &id, &json!({"content": "stream 30 8"})).await.collect().await.unwrap();
    assert_eq!(text_of(&frames).len(), text_of(&whole).len());
    assert_eq!(names(&whole).iter().filter(|name| **name == "message").count(), 1);
}

#[tokio::test]
async fn a_tool_call_shows_its_use_and_its_result() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, "tool").await;
    let call = frame(&frames, "tool_use");
    let result = frame(&frames, "tool_result");
    assert!(call["name"].is_string() && call.get("input").is_some(), "{call}");
    assert_eq!(call["id"], result["tool_use_id"]);
    assert_eq!(result["is_error"], false);
}

#[tokio::test]
async fn a_follower_gets_replay_then_live_in_order_and_once() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "stream 50 20").await;
    let watching = {
        let (http, id) = (http.clone(), id.clone());
        tokio::spawn(async move {
            until(&http, &id, |event| event["type"] == "turn_ended" && event["seq"].as_u64() > Some(100))
                .await
        })
    };
    while events(&http, &id).await.len() <= 100 {
        say(&http, &id, "stream 50 20").await;
    }
    say(&http, &id, "echo last").await;
    let seen = watching.await.unwrap();
    let stored = events(&http, &id).await;
    assert_eq!(seen[..], stored[..seen.len()]);
}

#[tokio::test]
async fn the_last_event_id_is_where_a_stream_goes_on() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "stream 20 10").await;
    let stored = events(&http, &id).await;
    for after in [0, 1, stored.len() / 2, stored.len() - 1] {
        let mut stream = http.follow(&id, after as u64).await.unwrap();
        for expected in &stored[after..] {
            assert_eq!(stream.next().await.unwrap().unwrap().json().unwrap(), *expected);
        }
    }
    // The header wins over the address, which a browser cannot change when it reconnects.
    let headers = [("accept", "text/event-stream"), ("last-event-id", "3")];
    let path = format!("/api/sessions/{id}/events?after=1");
    let mut stream = http.stream("GET", &path, &headers, b"").await.unwrap().ok().unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().id.as_deref(), Some("4"));

    server.kill9().unwrap();
    server.restart().await.unwrap();
    let mut stream = http.follow(&id, 3).await.unwrap();
    for expected in &stored[3..] {
        assert_eq!(stream.next().await.unwrap().unwrap().json().unwrap(), *expected);
    }
    assert!(text_of(&say(&http, &id, "echo after the restart").await).contains("after the restart"));
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_nothing_and_hears_only_its_own_turn() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let mut stream = send(&http, &id, &json!({"content": "stream 200 10", "id": "first"})).await;
    assert!(stream.next().await.unwrap().unwrap().named("session_start"));
    drop(stream);
    let frames = say(&http, &id, "echo second").await;
    assert_eq!(text_of(&frames), "second", "nothing of the turn before");
    let ended: Vec<Value> = of_type(&events(&http, &id).await, "turn_ended")
        .iter()
        .map(|event| event["outcome"].clone())
        .collect();
    assert_eq!(ended, ["done", "done"]);
}

#[tokio::test]
async fn two_messages_at_once_never_mix() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let turns = (0..4).map(|number| {
        let (http, id) = (http.clone(), id.clone());
        tokio::spawn(
            async move { (number, text_of(&say(&http, &id, &format!("echo number-{number}")).await)) },
        )
    });
    for turn in turns.collect::<Vec<_>>() {
        let (number, text) = turn.await.unwrap();
        assert_eq!(text, format!("number-{number}"));
    }
}

#[tokio::test]
async fn a_large_update_goes_to_a_blob_and_comes_back_whole() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let frames = say(&http, &id, "stream 2 300000").await;
    assert_eq!(text_of(&frames).len(), 600_000);
    let before = events(&http, &id).await;
    server.kill9().unwrap();
    server.restart().await.unwrap();
    let after = events(&http, &id).await;
    assert_eq!(before[..], after[..before.len()]);
}

#[tokio::test]
async fn our_own_client_follows_through_kills_without_a_gap() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let followed: protocol::SessionId = id.parse().unwrap();
    let mut stream = server.client().unwrap().events(followed, 0);
    let mut last = 0;
    for round in 0..3 {
        say(&http, &id, &format!("echo round {round}")).await;
        let end = events(&http, &id).await.len() as u64;
        while last < end {
            let next = tokio::time::timeout(testkit::limits::CALL, stream.next()).await.unwrap().unwrap();
            if let client::Followed::Event(event) = next {
                assert_eq!(event.seq, last + 1, "in order, once, without a gap");
                last = event.seq;
            }
        }
        server.kill9().unwrap();
        server.restart().await.unwrap();
    }
}
