//! The gate before stub calls: everything it refuses by itself, in the one error shape.

use super::*;
use axum::{Router, body::Body, http::StatusCode, middleware, routing};
use protocol::{ErrorBody, KeyId, Tenant};
use std::future::pending;
use tower::ServiceExt;

fn gate() -> Arc<Gate> {
    Arc::new(Gate {
        hosts: Hosts::of("127.0.0.1:4100".parse().ok(), &[]),
        recognise: Box::new(|key| {
            let scope = match key {
                "read" => Scope::Read,
                "write" => Scope::Write,
                "admin" => Scope::Admin,
                _ => return None,
            };
            Some(Caller { tenant: Tenant::default_tenant(), key: KeyId::new(), scope })
        }),
        metrics: Arc::new(Metrics::default()),
        request_time: Duration::from_millis(50),
        archive_time: Duration::from_millis(50),
    })
}

/// Stubs on paths of the table, behind the real gate.
fn stubs() -> Router {
    async fn fine(Who(caller): Who) -> String {
        caller.tenant.to_string()
    }
    async fn broken() -> String {
        panic!("on purpose")
    }
    Router::new()
        .route("/health", routing::get(|| async { "well" }))
        .route("/api/sessions", routing::get(fine).post(fine))
        .route("/api/sessions/{id}", routing::get(broken).delete(pending::<String>))
        .route("/api/api-keys", routing::get(fine))
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(gate(), pass))
}

struct Case {
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    expected: Result<(), Code>,
}

const READ: (&str, &str) = ("authorization", "Bearer read");
const WRITE: (&str, &str) = ("authorization", "bearer write");
const ADMIN: (&str, &str) = ("authorization", "Bearer admin");
const LOCAL: (&str, &str) = ("host", "localhost:4100");

#[tokio::test]
async fn the_gate_refuses_in_one_shape() {
    let cases = [
        Case { method: "GET", path: "/health", headers: &[LOCAL], expected: Ok(()) },
        Case { method: "HEAD", path: "/health", headers: &[LOCAL], expected: Ok(()) },
        Case {
            method: "GET",
            path: "/health",
            headers: &[("host", "evil.example")],
            expected: Err(Code::Forbidden),
        },
        Case { method: "GET", path: "/health", headers: &[], expected: Err(Code::Forbidden) },
        Case {
            method: "GET",
            path: "/health",
            headers: &[("host", "\u{e9}")],
            expected: Err(Code::InvalidRequest),
        },
        Case { method: "POST", path: "/health", headers: &[LOCAL], expected: Err(Code::Unauthorized) },
        Case {
            method: "POST",
            path: "/health",
            headers: &[LOCAL, READ],
            expected: Err(Code::MethodNotAllowed),
        },
        Case { method: "GET", path: "/nowhere", headers: &[LOCAL], expected: Err(Code::Unauthorized) },
        Case { method: "GET", path: "/nowhere", headers: &[LOCAL, READ], expected: Err(Code::NotFound) },
        Case { method: "GET", path: "/api/sessions", headers: &[LOCAL], expected: Err(Code::Unauthorized) },
        Case {
            method: "GET",
            path: "/api/sessions",
            headers: &[LOCAL, ("authorization", "Bearer stranger")],
            expected: Err(Code::Unauthorized),
        },
        Case {
            method: "GET",
            path: "/api/sessions",
            headers: &[LOCAL, ("authorization", "Basic read")],
            expected: Err(Code::Unauthorized),
        },
        Case {
            method: "GET",
            path: "/api/sessions",
            headers: &[LOCAL, READ, ADMIN],
            expected: Err(Code::Unauthorized),
        },
        Case { method: "GET", path: "/api/sessions", headers: &[LOCAL, READ], expected: Ok(()) },
        Case {
            method: "POST",
            path: "/api/sessions",
            headers: &[LOCAL, READ],
            expected: Err(Code::Forbidden),
        },
        Case { method: "POST", path: "/api/sessions", headers: &[LOCAL, WRITE], expected: Ok(()) },
        Case {
            method: "GET",
            path: "/api/api-keys",
            headers: &[LOCAL, WRITE],
            expected: Err(Code::Forbidden),
        },
        Case { method: "GET", path: "/api/api-keys", headers: &[LOCAL, ADMIN], expected: Ok(()) },
        Case {
            method: "GET",
            path: "/api/sessions/x",
            headers: &[LOCAL, READ],
            expected: Err(Code::Internal),
        },
        Case {
            method: "DELETE",
            path: "/api/sessions/x",
            headers: &[LOCAL, WRITE],
            expected: Err(Code::TimedOut),
        },
    ];
    let router = stubs();
    for case in cases {
        let mut request = Request::builder().method(case.method).uri(case.path);
        for (name, value) in case.headers {
            request = request.header(*name, *value);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        check(&case, response).await;
    }
}

async fn check(case: &Case, response: Response) {
    let name = format!("{} {} {:?}", case.method, case.path, case.headers);
    assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{name}");
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let status = response.status();
    match case.expected {
        Ok(()) => assert_eq!(status, StatusCode::OK, "{name}"),
        Err(code) => {
            assert_eq!(status, fault::status(code), "{name}");
            assert_eq!(response.headers().contains_key("www-authenticate"), status == 401, "{name}");
            assert!(status != 405 || response.headers().contains_key("allow"), "{name}");
            let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
            let body: ErrorBody = serde_json::from_slice(&body).unwrap();
            assert_eq!((body.code, body.status_code), (code, status.as_u16()), "{name}");
            assert_eq!(body.request_id, id, "{name}");
        }
    }
}

#[tokio::test]
async fn a_sane_request_id_is_kept_and_another_replaced() {
    for (given, kept) in [("trace-1.a_B", true), ("has space", false), ("", false), (&"x".repeat(129), false)]
    {
        let request =
            Request::builder().uri("/health").header("host", "localhost").header("x-request-id", given);
        let response = stubs().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()["x-request-id"] == given, kept, "{given:?}");
    }
}
