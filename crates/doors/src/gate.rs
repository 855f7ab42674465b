//! What every request passes, in this order: a request id, a span, the clock, the `Host` check, the key and its
//! scope; and on the way out the error's body, the security headers, the histogram and one line in the log.
//!
//! The gate knows the table of calls and nothing else of them. It never logs a key, a query or a body.

use crate::{
    fault::{self, Refusal},
    host::Hosts,
    mcp,
    metrics::{Metrics, Seen},
    rest::table::{self, Call, Needs, Pace},
};
use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use protocol::{Code, Fault, Scope};
use session::Caller;
use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{Instrument, Span, field::Empty};
use uuid::Uuid;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A caller's own request id is taken up to this length.
const REQUEST_ID_BYTES: usize = 128;

/// Who a key belongs to. A function, so that the gate can be tested without a server behind it.
pub(crate) type Recognise = Box<dyn Fn(&str) -> Option<Caller> + Send + Sync>;

pub(crate) struct Gate {
    pub(crate) hosts: Hosts,
    pub(crate) recognise: Recognise,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) request_time: Duration,
    pub(crate) archive_time: Duration,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// The caller, for calls behind the gate.
pub(crate) struct Who(pub(crate) Caller);

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        parts.extensions.get::<Caller>().cloned().map(Self).ok_or_else(|| Refusal(unknown_key()))
    }
}

/// The request's id, for streams that may have to say it long after their head.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for RequestId {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_else(|| Self(String::new())))
    }
}

/// The middleware around every call.
pub(crate) async fn pass(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or(UNMATCHED, MatchedPath::as_str);
    let method = request.method().clone();
    let call = table::find(&method, route);
    request.extensions_mut().insert(RequestId(id.clone()));
    let span = tracing::info_span!(
        "request", id = %id, method = %method, route, tenant = Empty, status = Empty, micros = Empty
    );
    let response = gate.timed(request, next, call).instrument(span.clone()).await;
    let mut response = fault::render(response, &id);
    finish(response.headers_mut(), &id);

    let taken = started.elapsed();
    let status = response.status();
    gate.metrics.saw(Seen { route, method: &method, status }, taken);
    span.record("status", status.as_u16());
    span.record("micros", u64::try_from(taken.as_micros()).unwrap_or(u64::MAX));
    span.in_scope(|| tracing::info!("answered"));
    response
}

/// The route label of a path that no call has: raw paths would let anyone grow the metrics.
const UNMATCHED: &str = "unmatched";

impl Gate {
    async fn timed(&self, request: Request, next: Next, call: Option<&'static Call>) -> Response {
        let limit = match (call.map(|call| call.pace), request.uri().path()) {
            (Some(Pace::Upload), _) => self.archive_time,
            // A tool's answer begins when its command has ended, or when there is something to tell of it.
            (None, mcp::PATH) => mcp::CALL_TIME,
            (Some(Pace::Quick) | None, _) => self.request_time,
        };
        let guarded = AssertUnwindSafe(self.checked(request, next, call)).catch_unwind();
        match tokio::time::timeout(limit, guarded).await {
            Ok(Ok(response)) => response,
            // The panic's own message is in the log by way of the panic hook.
            Ok(Err(_)) => Refusal(Fault::new(
                Code::Internal,
                "the server failed on this request; its log has the reason under this request id",
            ))
            .into_response(),
            Err(_) => Refusal(Fault::new(
                Code::TimedOut,
                format!("the request took longer than {} seconds", limit.as_secs()),
            ))
            .into_response(),
        }
    }

    async fn checked(&self, mut request: Request, next: Next, call: Option<&'static Call>) -> Response {
        match self.admit(&request, call) {
            Ok(Some(caller)) => {
                Span::current().record("tenant", caller.tenant.as_str());
                request.extensions_mut().insert(caller);
                next.run(request).await
            }
            Ok(None) => next.run(request).await,
            Err(fault) => Refusal(fault).into_response(),
        }
    }

    /// Nobody is fine only where the table says so. A path that no call has needs a key like the rest.
    fn admit(&self, request: &Request, call: Option<&Call>) -> Result<Option<Caller>, Fault> {
        let header = request.headers().get(header::HOST).map(HeaderValue::to_str).transpose();
        let named = header.map_err(|_| Fault::invalid("the Host header is not text"))?;
        let absolute = request.uri().authority().map(axum::http::uri::Authority::as_str);
        if !self.hosts.accept(absolute.or(named)) {
            return Err(Fault::new(
                Code::Forbidden,
                "this server listens for this machine only and does not know the name in the Host header; \
                 add it to the allowed hosts, or use localhost",
            ));
        }
        let needed = match call.map(|call| call.needs) {
            Some(Needs::Nothing) => return Ok(None),
            Some(Needs::Key(scope)) => scope,
            None => Scope::Read,
        };
        let caller = self.caller(request.headers())?;
        if caller.scope < needed {
            return Err(Fault::new(
                Code::Forbidden,
                format!("this call needs a key with the scope {needed}; this key has {}", caller.scope),
            ));
        }
        Ok(Some(caller))
    }

    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Fault> {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else { return Err(unknown_key()) };
        let (scheme, key) =
            value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(unknown_key)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(unknown_key());
        }
        (self.recognise)(key.trim()).ok_or_else(unknown_key)
    }
}

/// One sentence for no key, a malformed one and a wrong one: a stranger learns nothing from the difference.
fn unknown_key() -> Fault {
    Fault::new(Code::Unauthorized, "give a known key as `Authorization: Bearer KEY`")
}

fn request_id(headers: &HeaderMap) -> String {
    headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| (1..=REQUEST_ID_BYTES).contains(&id.len()))
        .filter(|id| id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')))
        .map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

fn finish(headers: &mut HeaderMap, id: &str) {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Answers belong to the key that asked for them.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// What a path without a call answers, once the caller is known.
pub(crate) async fn nowhere(method: Method) -> Refusal {
    Refusal(Fault::new(
        Code::NotFound,
        format!("there is no such path for {method}; /openapi.json lists them all"),
    ))
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
