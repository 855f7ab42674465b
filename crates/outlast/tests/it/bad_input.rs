//! Bad input: every row is answered with a clear typed error, and nothing is lost by it.

use crate::kit::*;
use serde_json::json;

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

#[tokio::test]
async fn every_malformed_request_is_refused_with_a_type() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let sessions = "/api/sessions".to_owned();
    let messages = format!("/api/sessions/{id}/messages");
    let nobody = "019a8000-0000-7000-8000-000000000001";
    let before = events(&http, &id).await;
    let long = "x".repeat(300);
    let long_id = format!(r#"{{"content":"x","id":"{long}"}}"#);
    let rows: Vec<(&str, &str, &[u8], u16, &str)> = vec![
        ("POST", &sessions, b"", 400, "invalid_request"),
        ("POST", &sessions, b"{", 400, "invalid_request"),
        ("POST", &sessions, b"[]", 400, "invalid_request"),
        ("POST", &sessions, b"null", 400, "invalid_request"),
        ("POST", &sessions, b"{}", 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":7}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":""}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"../demo"}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"demo","modle":"m"}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"demo","model":""}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"demo","extraEnv":{"A":1}}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"demo","extraEnv":{"A=B":"x"}}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"demo","extraEnv":{"A":"\u0000"}}"#, 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"demo","mcpServers":{"s":{}}}"#, 400, "invalid_request"),
        (
            "POST",
            &sessions,
            br#"{"agent":"demo","mcpServers":{"s":{"url":"http://h","command":"c"}}}"#,
            400,
            "invalid_request",
        ),
        ("POST", &sessions, br#"{"agent":"demo","credentialId":"nope"}"#, 400, "invalid_request"),
        ("POST", &sessions, b"{\"agent\":\"\xff\xfe\"}", 400, "invalid_request"),
        ("POST", &sessions, br#"{"agent":"nobody"}"#, 404, "agent_not_found"),
        (
            "POST",
            &sessions,
            br#"{"agent":"demo","credentialId":"019a8000-0000-7000-8000-000000000001"}"#,
            404,
            "credential_not_found",
        ),
        ("POST", &messages, b"{}", 400, "invalid_request"),
        ("POST", &messages, br#"{"content":7}"#, 400, "invalid_request"),
        ("POST", &messages, br#"{"content":""}"#, 400, "invalid_request"),
        ("POST", &messages, br#"{"content":[]}"#, 400, "invalid_request"),
        ("POST", &messages, br#"{"content":[{"type":"smell"}]}"#, 400, "invalid_request"),
        ("POST", &messages, br#"{"content":"x","id":""}"#, 400, "invalid_request"),
        ("POST", &messages, long_id.as_bytes(), 400, "invalid_request"),
        ("POST", &messages, br#"{"content":"x","onBusy":"push"}"#, 400, "invalid_request"),
        ("POST", &messages, br#"{"content":"x","maxTurns":-1}"#, 400, "invalid_request"),
        ("POST", &messages, br#"{"content":"x","maxBudgetUsd":-1}"#, 400, "invalid_request"),
        ("POST", &messages, br#"{"content":"x","extra":1}"#, 400, "invalid_request"),
        ("POST", "/api/api-keys", br#"{"scope":"root"}"#, 400, "invalid_request"),
        ("POST", "/api/api-keys", br#"{"scope":"read","tenant":"../x"}"#, 400, "invalid_request"),
        ("POST", "/api/credentials", br#"{"type":"custom"}"#, 400, "invalid_request"),
        ("POST", "/api/agents", br#"{"name":"a"}"#, 400, "invalid_request"),
        ("POST", "/api/agents", br#"{"name":"a/b","files":[]}"#, 400, "invalid_request"),
    ];
    for (method, path, body, status, code) in rows {
        let reply = http.raw(method, path, JSON, body).await.unwrap();
        let shown = String::from_utf8_lossy(body);
        assert_eq!((reply.status, &*shown), (status, &*shown), "{path} {shown}: {}", reply.text());
        refusal(&reply, status, code);
    }
    for (method, path, status, code) in [
        ("GET", "/api/sessions/not%20an%20id", 400, "invalid_id"),
        ("GET", "/api/sessions/%ff", 400, "invalid_id"),
        ("GET", "/api/sessions/..%2f..%2fetc", 400, "invalid_id"),
        ("GET", &format!("/api/sessions/{nobody}"), 404, "session_not_found"),
        ("DELETE", &format!("/api/sessions/{nobody}"), 404, "session_not_found"),
        ("POST", &format!("/api/sessions/{nobody}/pause"), 404, "session_not_found"),
        ("POST", &format!("/api/sessions/{nobody}/resume"), 404, "session_not_found"),
        ("GET", &format!("/api/sessions/{nobody}/events"), 404, "session_not_found"),
        ("GET", &format!("/api/sessions/{id}/events?after=-1"), 400, "invalid_request"),
        ("GET", &format!("/api/sessions/{id}/events?after=x"), 400, "invalid_request"),
        ("GET", &format!("/api/sessions/{id}/events?limit=0"), 400, "invalid_request"),
        ("GET", &format!("/api/sessions/{id}/events?limit=1000000"), 400, "invalid_request"),
        ("GET", &format!("/api/sessions/{id}/events?unknown=1"), 400, "invalid_request"),
        ("GET", "/api/sessions?status=happy", 400, "invalid_request"),
        ("GET", "/api/sessions?limit=0", 400, "invalid_request"),
        ("GET", "/api/sessions?cursor=%00", 400, "invalid_request"),
        ("GET", "/api/agents/nobody", 404, "agent_not_found"),
        ("GET", "/api/nowhere", 404, "not_found"),
        ("PUT", "/api/sessions", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ] {
        let reply = http.raw(method, path, &[], b"").await.unwrap();
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        refusal(&reply, status, code);
    }
    assert_eq!(events(&http, &id).await, before, "nothing of this was recorded");
    assert!(server.is_running());
    assert_eq!(text_of(&say(&http, &id, "echo still here").await), "still here");
}

#[tokio::test]
async fn wrong_types_of_media_and_huge_bodies_are_refused() {
    let (mut server, http) = server().await;
    let plain = [("content-type", "text/plain")];
    let reply = http.raw("POST", "/api/sessions", &plain, br#"{"agent":"demo"}"#).await.unwrap();
    refusal(&reply, 415, "unsupported_media_type");
    let huge = json!({"agent": "demo", "systemPrompt": "x".repeat(20 * 1024 * 1024)}).to_string();
    let reply = http.raw("POST", "/api/sessions", JSON, huge.as_bytes()).await.unwrap();
    refusal(&reply, 413, "payload_too_large");
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let reply = http.raw("POST", "/api/sessions", JSON, deep.as_bytes()).await.unwrap();
    refusal(&reply, 400, "invalid_request");
    assert!(server.is_running());
}

#[tokio::test]
async fn what_is_not_http_harms_nobody() {
    let (mut server, http) = server().await;
    let long_header =
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(1024 * 1024));
    let bad = [
        b"\x16\x03\x01\x02\x00".as_slice(),
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\r\n\r\n\0\0",
        long_header.as_bytes(),
    ];
    for bytes in bad {
        let mut connection = http.connect().await.unwrap();
        // The server may close while we still write.
        let _ = connection.send_bytes(bytes).await;
        if let Ok(Ok(reply)) = tokio::time::timeout(testkit::limits::CALL, connection.reply()).await {
            assert!((400..500).contains(&reply.status), "{}", reply.status);
        }
    }
    assert!(server.is_running());
    http.get("/health").await.unwrap().expect(200).unwrap();
}

#[tokio::test]
async fn a_foreign_host_header_is_refused() {
    let (_server, http) = server().await;
    let mut connection = http.connect().await.unwrap();
    connection.send_bytes(b"GET /health HTTP/1.1\r\nhost: evil.example\r\n\r\n").await.unwrap();
    assert_eq!(connection.reply().await.unwrap().status, 403, "a page elsewhere cannot reach a local server");
}
