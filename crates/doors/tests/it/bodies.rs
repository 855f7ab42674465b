//! What comes in: every call of the document with no key, with bad ids, with any bytes and any JSON as a body.
//! Nothing is a server error, and every refusal has the one shape.

use crate::support::{Reply, Server};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use serde_json::{Value, json};

/// Bodies tried on each call that takes one.
const BODIES: usize = 24;

fn expect_refusal(reply: &Reply, name: &str) {
    let body = reply.json();
    assert_eq!(body["statusCode"], reply.status, "{name}");
    assert!(body["error"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    assert!(body["code"].is_string(), "{name}");
    assert_eq!(body["requestId"].as_str(), reply.header("x-request-id"), "{name}");
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{name}");
}

/// Every call as `(method, path with something in place of its parameters, takes a JSON body)`.
fn calls(session: &str) -> Vec<(String, String, bool)> {
    let document = doors::openapi_document();
    let mut calls = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = if path.starts_with("/api/sessions") {
                session
            } else {
                "019a8000-0000-7000-8000-000000000001"
            };
            let path = path.replace("{id}", id).replace("{name}", "nobody").replace("{permission}", "1");
            let json = operation.pointer("/requestBody/content/application~1json").is_some();
            calls.push((method.to_ascii_uppercase(), path, json));
        }
    }
    calls
}

#[tokio::test]
async fn nothing_but_health_answers_a_stranger() {
    let server = Server::start().await;
    for (method, path, _) in calls("019a8000-0000-7000-8000-000000000001") {
        let name = format!("{method} {path}");
        let reply = server.bare(&method, &path, &[], b"").await;
        if path == "/health" {
            assert_eq!(reply.status, 200, "{name}");
            assert!(reply.json()["pool"]["maxCapacity"].is_number());
        } else {
            assert_eq!(reply.status, 401, "{name}");
            assert!(reply.header("www-authenticate").is_some(), "{name}");
            expect_refusal(&reply, &name);
        }
    }
    server.stop().await;
}

/// Method, path, headers, body; the status and words of the refusal.
type Bad<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);

#[tokio::test]
async fn bad_requests_are_told_what_is_wrong() {
    let server = Server::start().await;
    let id = server.session().await;
    let events = format!("/api/sessions/{id}/events");
    let json = ("content-type", "application/json");
    let table: &[Bad<'_>] = &[
        ("POST", "/api/sessions", &[json], b"{}", 400, "`agent` is missing"),
        ("POST", "/api/sessions", &[json], b"{\"agent\":\"nobody\"}", 404, "nobody"),
        ("POST", "/api/sessions", &[json], b"{", 400, "not JSON"),
        ("POST", "/api/sessions", &[json], b"\xff", 400, "not UTF-8"),
        ("POST", "/api/sessions", &[], b"{}", 415, "content type is missing"),
        ("POST", "/api/sessions", &[("content-type", "text/plain")], b"{}", 415, "takes application/json"),
        ("PUT", "/api/agents/x", &[json], b"{}", 415, "takes application/x-tar"),
        ("GET", "/api/sessions?limit=0", &[], b"", 400, "limit"),
        ("GET", "/api/sessions?limit=x", &[], b"", 400, "limit"),
        ("GET", "/api/sessions?colour=red", &[], b"", 400, "colour"),
        ("GET", "/api/sessions?agent=%ff", &[], b"", 400, "UTF-8"),
        ("GET", "/api/sessions/no%20id", &[], b"", 400, "a session must be"),
        ("GET", "/api/sessions/%ff", &[], b"", 400, "UTF-8"),
        ("GET", "/api/sessions/nobody", &[], b"", 404, "nobody"),
        ("GET", &format!("{events}?after=-1"), &[], b"", 400, "after"),
        (
            "GET",
            &events,
            &[("accept", "text/event-stream"), ("last-event-id", "x")],
            b"",
            400,
            "Last-Event-ID",
        ),
        ("POST", &format!("/api/sessions/{id}/permissions/x"), &[json], b"{\"optionId\":null}", 400, "seq"),
        ("POST", &format!("/api/sessions/{id}/pause"), &[json], b"{\"a\":1}", 400, "takes no body"),
        ("POST", &format!("/api/sessions/{id}/fork"), &[json], b"{\"at\":0}", 400, "at must be"),
        ("POST", &format!("/api/sessions/{id}/fork"), &[json], b"{\"to\":1}", 400, "to"),
        ("POST", &format!("/api/sessions/{id}/exec"), &[json], b"", 404, "no such path"),
        ("PUT", "/api/sessions", &[json], b"", 405, "Allow"),
        ("GET", "/", &[], b"", 404, "no such path"),
    ];
    for (method, path, headers, body, status, words) in table {
        let name = format!("{method} {path}");
        let reply = server.call(method, path, headers, body).await;
        assert_eq!(reply.status, *status, "{name}: {}", reply.text());
        assert!(reply.text().contains(words), "{name}: {}", reply.text());
        expect_refusal(&reply, &name);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_unread() {
    let server = Server::start().await;
    let length = (protocol::limits::REQUEST_BYTES + 1).to_string();
    // Announced and not sent: the refusal comes before the body would.
    let headers = [("content-type", "application/json"), ("content-length", length.as_str())];
    let reply = server.stream("POST", "/api/sessions", &headers, "").await;
    // Two different lengths are refused by the HTTP layer itself; one is ours to refuse.
    assert!(matches!(reply.status, 400 | 413), "{}", reply.status);
    server.stop().await;
}

#[tokio::test]
async fn an_empty_json_body_is_fine_where_none_is_needed() {
    let server = Server::start().await;
    let id = server.session().await;
    for body in ["", "{}", " {\n} "] {
        assert_eq!(server.post(&format!("/api/sessions/{id}/cancel"), body).await.status, 200, "{body:?}");
    }
    server.stop().await;
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        any::<String>().prop_map(Value::from),
    ];
    let key = prop_oneof![
        prop::sample::select(vec![
            "agent",
            "model",
            "mcpServers",
            "extraEnv",
            "content",
            "id",
            "name",
            "files",
            "path",
            "scope",
            "type",
            "key",
            "env",
            "optionId",
            "label",
            "tenant",
            "onBusy",
            "maxTurns",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

#[tokio::test]
async fn no_body_breaks_the_server() {
    let server = Server::start().await;
    let session = server.session().await;
    let mut runner = TestRunner::deterministic();
    for (method, path, takes_json) in calls(&session) {
        if !takes_json {
            continue;
        }
        for round in 0..BODIES {
            let body = if round % 4 == 0 {
                prop::collection::vec(any::<u8>(), 0..256).new_tree(&mut runner).unwrap().current()
            } else {
                any_json().new_tree(&mut runner).unwrap().current().to_string().into_bytes()
            };
            let name = format!("{method} {path} {:?}", String::from_utf8_lossy(&body));
            let reply = server.call(&method, &path, &[("content-type", "application/json")], &body).await;
            assert!(reply.status < 500, "{name}: {} {}", reply.status, reply.text());
            if reply.status >= 400 {
                expect_refusal(&reply, &name);
            }
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn the_document_and_its_page_are_served() {
    let server = Server::start().await;
    assert_eq!(server.get("/openapi.json").await.json(), doors::openapi_document());
    let page = server.get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    let metrics = server.get("/metrics").await.text();
    for figure in [
        "outlast_http_request_seconds_bucket",
        "outlast_live_sessions",
        "outlast_turns_total{outcome=\"done\"}",
    ] {
        assert!(metrics.contains(figure), "{figure} in {metrics}");
    }
    server.stop().await;
}
