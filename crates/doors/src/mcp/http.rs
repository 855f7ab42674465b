//! `/mcp`: Streamable HTTP. The gate has checked host and key; what a browser's page sends is refused here.
//!
//! From 2026-07-28 on each request stands alone. Clients of older versions get a protocol session, which belongs to
//! the tenant that opened it: to others it is not there. It carries nothing but the conversation; shells are not in it.

use super::handler::{Handler, Visitor};
use crate::{fault::Refusal, gate::Who, rest::Shared};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, any},
};
use protocol::{Code, Fault, Tenant};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub(crate) const PATH: &str = "/mcp";
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
/// Protocol sessions of older clients at once.
const SESSIONS: usize = 1_024;
/// An older client that says nothing for so long begins anew; longer than any command.
const SESSION_IDLE: Duration = Duration::from_secs(2 * 3600);
/// How long an older client may take to fetch an answer whose stream broke.
const ANSWER_KEPT: Duration = Duration::from_secs(10);

/// The route, for the router.
pub(crate) fn route(shared: &Arc<Shared>) -> MethodRouter<Arc<Shared>> {
    let http = Arc::new(Http::new(Arc::clone(shared)));
    any(move |Who(caller): Who, request: Request| {
        let http = Arc::clone(&http);
        async move { http.serve(&caller.tenant, request).await }
    })
}

struct Http {
    service: StreamableHttpService<Handler, LocalSessionManager>,
    manager: Arc<LocalSessionManager>,
    /// Whose each protocol session is.
    owners: Mutex<HashMap<String, Tenant>>,
}

impl Http {
    fn new(shared: Arc<Shared>) -> Self {
        let mut manager = LocalSessionManager::default();
        manager.session_config.keep_alive = Some(SESSION_IDLE);
        manager.session_config.completed_cache_ttl = ANSWER_KEPT;
        let manager = Arc::new(manager);
        // The gate has looked at the host, and this door looks at the origin.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_sse_keep_alive(Some(shared.limits.heartbeat))
            .with_max_request_body_bytes(shared.limits.body_bytes);
        let (mut stopping, stop) = (shared.stopping.clone(), config.cancellation_token.clone());
        tokio::spawn(async move {
            stopping.wait().await;
            stop.cancel();
        });
        let handler = move || Ok(Handler::new(Arc::clone(&shared), Visitor::Http));
        let service = StreamableHttpService::new(handler, Arc::clone(&manager), config);
        Self { service, manager, owners: Mutex::default() }
    }

    async fn serve(&self, tenant: &Tenant, request: Request) -> Response {
        match self.admit(tenant, request.headers(), request.uri()).await {
            Ok(()) => {}
            Err(fault) => return Refusal(fault).into_response(),
        }
        let ends = request.method() == Method::DELETE;
        let mut response = self.service.handle(request).await.map(Body::new);
        if ends && response.status() == StatusCode::ACCEPTED {
            // It is done when this is said, and some clients take anything else for a failure.
            *response.status_mut() = StatusCode::OK;
        }
        if let Some(opened) = response.headers().get(SESSION_HEADER).and_then(|value| value.to_str().ok()) {
            self.owners().insert(opened.to_owned(), tenant.clone());
        }
        response
    }

    async fn admit(&self, tenant: &Tenant, headers: &HeaderMap, uri: &Uri) -> Result<(), Fault> {
        if !own_origin(headers, uri) {
            return Err(Fault::new(
                Code::Forbidden,
                "the Origin header names another site than the Host header; pages of other sites may not call tools",
            ));
        }
        if let Some(named) = headers.get(SESSION_HEADER) {
            let known = named.to_str().ok().is_some_and(|named| self.owners().get(named) == Some(tenant));
            return if known {
                Ok(())
            } else {
                Err(Fault::new(Code::NotFound, "there is no such protocol session; begin with initialize"))
            };
        }
        if self.owners().len() >= SESSIONS {
            let open = self.manager.sessions.read().await;
            self.owners().retain(|id, _| open.contains_key(id.as_str()));
        }
        if self.owners().len() >= SESSIONS {
            return Err(Fault::new(
                Code::CapacityReached,
                "too many protocol sessions are open; try again later",
            ));
        }
        Ok(())
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, Tenant>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Programs send no origin. A page does, and only one that this server itself gave may call tools.
fn own_origin(headers: &HeaderMap, uri: &Uri) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let (origin, more) = (origins.next(), origins.next());
    let Some(origin) = origin else { return true };
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(axum::http::uri::Authority::as_str).or(named);
    more.is_none() && site.zip(host).is_some_and(|(site, host)| site.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_sites_are_refused() {
        let headers = |origin: Option<&str>, host: &str| {
            let mut headers = HeaderMap::new();
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            headers.insert(header::HOST, host.parse().unwrap());
            headers
        };
        let uri = Uri::from_static("/mcp");
        for (origin, host) in [
            (None, "127.0.0.1:4100"),
            (Some("http://127.0.0.1:4100"), "127.0.0.1:4100"),
            (Some("https://Box.example"), "box.example"),
        ] {
            assert!(own_origin(&headers(origin, host), &uri), "{origin:?}");
        }
        for (origin, host) in [
            (Some("null"), "127.0.0.1:4100"),
            (Some("http://evil.example"), "127.0.0.1:4100"),
            (Some("http://127.0.0.1:4101"), "127.0.0.1:4100"),
            (Some("http://127.0.0.1:4100.evil.example"), "127.0.0.1:4100"),
        ] {
            assert!(!own_origin(&headers(origin, host), &uri), "{origin:?}");
        }
    }
}
