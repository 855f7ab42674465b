//! The REST calls. Each is a few lines: take the request apart, ask [`Sessions`], write the answer.
//! [`table`] lists them all; the router, the scopes and the OpenAPI document are made from it.

mod agents;
mod events;
mod files;
mod messages;
mod secrets;
mod server;
mod sessions;
pub(crate) mod table;

use crate::{
    gate::{self, Gate},
    mcp,
    metrics::Metrics,
    options::{DocsPage, Limits},
};
use axum::{Router, middleware};
use session::Sessions;
use std::{fmt, path::PathBuf, sync::Arc};
use tokio::sync::{Semaphore, watch};

/// What calls share. No session's state among it.
pub(crate) struct Shared {
    pub(crate) sessions: Sessions,
    pub(crate) limits: Limits,
    pub(crate) docs: DocsPage,
    pub(crate) uploads: PathBuf,
    pub(crate) archives: Semaphore,
    /// Room for sockets of the RPC door.
    pub(crate) sockets: Arc<Semaphore>,
    pub(crate) files: Semaphore,
    /// Room for calls of tools.
    pub(crate) mcp_calls: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stopping: Stopping,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Tells streams that the server stops.
#[derive(Debug, Clone)]
pub(crate) struct Stopping(watch::Receiver<bool>);

impl Stopping {
    pub(crate) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Returns once the server stops. A door that is gone counts as stopping.
    pub(crate) async fn wait(&mut self) {
        let _ = self.0.wait_for(|stopping| *stopping).await;
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.0.borrow()
    }
}

pub(crate) fn router(shared: Arc<Shared>, gate: Arc<Gate>) -> Router {
    table::CALLS
        .iter()
        .fold(Router::new(), |router, call| router.route(call.path, (call.route)()))
        .route("/rpc", axum::routing::get(crate::rpc::open))
        .route(mcp::PATH, mcp::route(&shared))
        .route(mcp::STREAM_PATH, axum::routing::get(mcp::open_stream))
        .fallback(gate::nowhere)
        .with_state(shared)
        .layer(middleware::from_fn_with_state(gate, gate::pass))
}
