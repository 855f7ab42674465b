//! A session's life over REST: create, list, get, pause, resume, stop, end, purge, with exact answers.

use crate::kit::*;
use serde_json::json;

#[tokio::test]
async fn a_session_is_created_as_the_contract_draws_it() {
    let (_server, http) = server().await;
    let reply = http.post("/api/sessions", &json!({"agent": "demo", "model": "m-1"})).await.unwrap();
    let session = reply.expect(201).unwrap()["session"].clone();
    let id = session["id"].as_str().unwrap();
    assert_eq!(id.len(), 36);
    assert_eq!(session["tenantId"], "default");
    assert_eq!(session["agentName"], "demo");
    assert_eq!(session["sandboxId"], id);
    assert_eq!(session["status"], "active");
    assert_eq!(session["model"], "m-1");
    assert!(session["runnerId"].is_null());
    for field in ["createdAt", "lastActiveAt"] {
        let time = session[field].as_str().unwrap();
        assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[19] == b'.', "{field}: {time}");
    }
    assert_eq!(get(&http, id).await["id"], id);

    let plain = session_of(&http, &json!({"agent": "demo"})).await;
    assert!(get(&http, &plain).await["model"].is_null(), "null when none was asked for");

    let recorded = events(&http, id).await;
    assert_eq!(recorded[0]["type"], "session_created");
    assert_eq!(recorded[0]["agent"], "demo");
    assert_eq!(of_type(&recorded, "occupant_started")[0]["how"], "new");
}

#[tokio::test]
async fn the_list_is_newest_first_filtered_and_paged() {
    let (_server, http) = server().await;
    let mut ids = vec![];
    for _ in 0..5 {
        ids.push(session(&http).await);
    }
    ids.reverse();
    http.delete(&format!("/api/sessions/{}", ids[4])).await.unwrap().expect(200).unwrap();
    let list = |query: &'static str| {
        let http = http.clone();
        async move {
            let body = http.get(&format!("/api/sessions{query}")).await.unwrap().expect(200).unwrap();
            let ids = body["sessions"].as_array().unwrap().iter();
            let ids: Vec<String> = ids.map(|each| each["id"].as_str().unwrap().to_owned()).collect();
            (ids, body["nextCursor"].as_str().map(str::to_owned))
        }
    };
    assert_eq!(list("").await, (ids.clone(), None), "all, ended ones too");
    assert_eq!(list("?status=ended").await.0, ids[4..]);
    assert_eq!(list("?status=active").await.0, ids[..4]);
    assert_eq!(list("?agent=demo").await.0.len(), 5);
    assert_eq!(list("?agent=other").await.0.len(), 0);
    assert_eq!(list("?kind=shell").await.0.len(), 0);
    assert_eq!(list("?kind=all").await.0.len(), 5);

    let mut paged = vec![];
    let mut cursor = None;
    loop {
        let path = match &cursor {
            None => "/api/sessions?limit=2".to_owned(),
            Some(cursor) => format!("/api/sessions?limit=2&cursor={cursor}"),
        };
        let body = http.get(&path).await.unwrap().expect(200).unwrap();
        let page = body["sessions"].as_array().unwrap();
        assert!(page.len() <= 2);
        paged.extend(page.iter().map(|each| each["id"].as_str().unwrap().to_owned()));
        cursor = body["nextCursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(paged, ids);
}

#[tokio::test]
async fn pause_resume_stop_and_end_answer_as_the_contract_says() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "remember blue").await;

    // Existing clients send a JSON content type with an empty body.
    let path = format!("/api/sessions/{id}/pause");
    let paused = http.raw("POST", &path, &[("content-type", "application/json")], b"").await.unwrap();
    assert_eq!(paused.expect(200).unwrap()["session"]["status"], "paused");
    let again = refusal(&act(&http, &id, "pause").await, 400, "wrong_status");
    assert_eq!(again, "Cannot pause session with status \"paused\"");

    let resumed = act(&http, &id, "resume").await.expect(200).unwrap();
    assert_eq!(resumed["session"]["status"], "active");
    assert_eq!(act(&http, &id, "resume").await.expect(200).unwrap()["session"]["status"], "active");

    assert_eq!(act(&http, &id, "stop").await.expect(200).unwrap()["session"]["status"], "paused");
    let answer = say(&http, &id, "echo lazily resumed").await;
    assert!(text_of(&answer).contains("lazily resumed"));
    assert_eq!(get(&http, &id).await["status"], "active", "a message to a paused session resumes it first");

    for _ in 0..2 {
        let ended = http.delete(&format!("/api/sessions/{id}")).await.unwrap().expect(200).unwrap();
        assert_eq!(ended["session"]["status"], "ended");
    }
    let resume = refusal(&act(&http, &id, "resume").await, 410, "session_ended");
    assert_eq!(resume, "Session has ended \u{2014} create a new session");
    assert_eq!(
        refusal(&act(&http, &id, "pause").await, 400, "wrong_status"),
        "Cannot pause session with status \"ended\""
    );
    let message = http.message(&id, &json!({"content": "echo x"})).await.unwrap().refused().unwrap();
    refusal(&message, 410, "session_ended");
    assert!(!events(&http, &id).await.is_empty(), "history outlives the end");
}

#[tokio::test]
async fn purge_removes_session_and_journal() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "echo the only copy").await;
    let mut follower = http.follow(&id, 0).await.unwrap();
    http.delete(&format!("/api/sessions/{id}?purge=true")).await.unwrap().expect(200).unwrap();
    for path in ["", "/events", "/messages"] {
        let reply = http.get(&format!("/api/sessions/{id}{path}")).await.unwrap();
        refusal(&reply, 404, "session_not_found");
    }
    refusal(&http.delete(&format!("/api/sessions/{id}")).await.unwrap(), 404, "session_not_found");
    let last = follower.collect().await.unwrap().pop().expect("frames before the end");
    assert!(last.named("error"), "a follower of a removed session is told: {last:?}");
}

#[tokio::test]
async fn last_active_moves_on_messages_only() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let before = get(&http, &id).await;
    act(&http, &id, "pause").await.expect(200).unwrap();
    assert_eq!(get(&http, &id).await["lastActiveAt"], before["lastActiveAt"]);
    say(&http, &id, "sleep 5").await;
    let after = get(&http, &id).await;
    assert!(after["lastActiveAt"].as_str() > before["lastActiveAt"].as_str(), "{after}");
    assert_eq!(after["createdAt"], before["createdAt"]);
}

#[tokio::test]
async fn parallel_resumes_all_succeed_and_start_one_agent() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    act(&http, &id, "pause").await.expect(200).unwrap();
    let before = of_type(&events(&http, &id).await, "occupant_started").len();
    let resumes = (0..8).map(|_| {
        let (http, id) = (http.clone(), id.clone());
        tokio::spawn(async move { act(&http, &id, "resume").await })
    });
    for resume in resumes.collect::<Vec<_>>() {
        assert_eq!(resume.await.unwrap().expect(200).unwrap()["session"]["status"], "active");
    }
    let after = of_type(&events(&http, &id).await, "occupant_started").len();
    assert!(after - before <= 1, "{} agents were started", after - before);
}

#[tokio::test]
async fn messages_are_the_merged_history() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "echo one").await;
    say(&http, &id, "stream 20 10").await;
    let path = format!("/api/sessions/{id}/messages");
    let all = http.get(&path).await.unwrap().expect(200).unwrap()["messages"].as_array().unwrap().clone();
    let roles: Vec<_> = all.iter().map(|each| each["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"], "{all:?}");
    assert_eq!(all[0]["content"], "echo one");
    assert_eq!(all[1]["content"], "one");
    let first = all[0]["sequence"].as_u64().unwrap();
    let rest = http.get(&format!("{path}?after={first}&limit=2")).await.unwrap().expect(200).unwrap();
    assert_eq!(rest["messages"].as_array().unwrap()[..], all[1..3]);
}

#[tokio::test]
async fn health_and_metrics_and_openapi_are_there() {
    let (_server, http) = server().await;
    let health = http.with_key(None).get("/health").await.unwrap().expect(200).unwrap();
    assert_eq!(health["status"], "ok");
    session(&http).await;
    let metrics = http.get("/metrics").await.unwrap();
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().contains("_bucket{"), "latency histograms: {}", metrics.text());
    let openapi = http.get("/openapi.json").await.unwrap().expect(200).unwrap();
    assert!(openapi["openapi"].as_str().unwrap().starts_with("3.1"));
    assert_eq!(http.get("/docs").await.unwrap().status, 200);
    for path in ["/metrics", "/openapi.json", "/docs", "/api/sessions", "/nowhere"] {
        refusal(&http.with_key(None).get(path).await.unwrap(), 401, "unauthorized");
        refusal(&http.with_key(Some("wrong")).get(path).await.unwrap(), 401, "unauthorized");
    }
    let reply = http.raw("GET", "/health", &[("origin", "http://example.org")], b"").await.unwrap();
    assert!(reply.header("access-control-allow-origin").is_none(), "no CORS by default");
}
