//! `/mcp/stream`: a connection that becomes a stream of MCP messages, for the bridge of `outlast mcp`.
//!
//! The gate has checked the key. After the upgrade the bridge says in one line what it brings along; from then on
//! the lines are messages.

use super::{
    handler::{Handler, Visitor},
    line::Line,
    own::{HELLO_BYTES, Own},
};
use crate::{fault::Refusal, gate::Who, rest::Shared};
use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use protocol::{Code, Fault};
use session::Caller;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
};

pub(crate) const STREAM_PATH: &str = "/mcp/stream";
/// What the bridge asks to upgrade to; the number changes when either side would misread the other.
const PROTOCOL: &str = "outlast-mcp/1";
/// Calls of one bridge under way at once.
const CALLS: usize = 256;
/// From the upgrade to the end of the first line.
const HELLO_TIME: Duration = Duration::from_secs(15);

pub(crate) async fn open(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    mut request: Request,
) -> Result<Response, Refusal> {
    let asked = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(PROTOCOL)) {
        return Err(Refusal(Fault::new(
            Code::Unsupported,
            format!("this path is for `outlast mcp` of this version: it takes an upgrade to {PROTOCOL}"),
        )));
    }
    let Ok(room) = Arc::clone(&door.sockets).try_acquire_owned() else {
        return Err(Refusal(Fault::new(Code::CapacityReached, "too many sockets are open; try again later")));
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        // A connection that ends before it is upgraded has nobody to tell.
        let Ok(upgraded) = upgrade.await else { return };
        let counted = door.metrics.stream();
        serve_upgraded(door, caller, upgraded).await;
        drop((room, counted));
    });
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(PROTOCOL)),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

async fn serve_upgraded(door: Arc<Shared>, caller: Caller, upgraded: Upgraded) {
    let (read, write) = tokio::io::split(TokioIo::new(upgraded));
    serve(door, caller, read, write).await;
}

async fn serve<R, W>(door: Arc<Shared>, caller: Caller, read: R, write: W)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut line = Line::new(read, write, door.stopping.clone());
    let Ok(Some(hello)) = tokio::time::timeout(HELLO_TIME, line.first()).await else { return };
    let own = match serde_json::from_slice::<Own>(&hello) {
        Ok(own) if hello.len() <= HELLO_BYTES => own,
        Ok(_) => return tracing::warn!("a bridge brought an environment that is too large"),
        Err(error) => return tracing::warn!(%error, "a bridge's first line cannot be read"),
    };
    let visitor = Visitor::Bridge { caller, own: Arc::new(own), room: Arc::new(Semaphore::new(CALLS)) };
    // Whatever ends it, the bridge sees the stream's end and comes again; what runs goes on.
    match rmcp::serve_server(Handler::new(door, visitor), line).await {
        Ok(running) => drop(running.waiting().await),
        Err(error) => tracing::debug!(%error, "a bridge left before it said anything"),
    }
}
