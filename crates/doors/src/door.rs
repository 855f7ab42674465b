//! The listener: accepts within its limits, serves, and stops with grace.
//!
//! Every connection is a task in one set, so that none is forgotten. A connection that is slow with its head or
//! idle between requests is closed by hyper's timer; one that is slow with a body runs into the gate's clock.

use crate::{
    gate::Gate,
    host::Hosts,
    listen::{Accepted, Listeners},
    mcp,
    metrics::{Counted, Metrics, Visitors},
    options::{Limits, Options},
    rest::{self, Shared, Stopping},
    rpc,
};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use session::Sessions;
use std::{fmt, future::Future, io, net::SocketAddr, path::PathBuf, pin::pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};

/// Why a door could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {addr}: {source}; choose another address, or stop the program that has it")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error("cannot listen on the socket {}: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot make the folder for uploads {}: {source}", path.display())]
    Uploads { path: PathBuf, source: io::Error },
}

/// Why a door stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the listener failed: {0}")]
    Accept(io::Error),
}

/// The door, bound and not yet serving.
pub struct Door {
    listeners: Listeners,
    addr: Option<SocketAddr>,
    router: Router,
    limits: Limits,
    metrics: Arc<Metrics>,
    stopping: watch::Sender<bool>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Door {
    pub async fn bind(sessions: Sessions, options: Options) -> Result<Self, BindError> {
        let listeners = Listeners::bind(options.listen, options.socket.as_deref()).await?;
        let addr = listeners.addr;
        tokio::fs::create_dir_all(&options.uploads)
            .await
            .map_err(|source| BindError::Uploads { path: options.uploads.clone(), source })?;

        let metrics = Arc::new(Metrics::default());
        let (stopping, told) = Stopping::new();
        let known = sessions.clone();
        let gate = Gate {
            hosts: Hosts::of(addr, &options.hosts),
            recognise: Box::new(move |key| known.authenticate(key)),
            metrics: metrics.clone(),
            request_time: options.limits.request_time,
            archive_time: options.limits.archive_time,
        };
        let shared = Shared {
            sessions,
            limits: options.limits.clone(),
            docs: options.docs,
            uploads: options.uploads,
            archives: Semaphore::new(options.limits.archives),
            sockets: Arc::new(Semaphore::new(rpc::SOCKETS)),
            files: Semaphore::new(options.limits.files),
            mcp_calls: Arc::new(Semaphore::new(mcp::CALLS)),
            metrics: metrics.clone(),
            stopping: told,
        };
        let router = rest::router(Arc::new(shared), Arc::new(gate));
        Ok(Self { listeners, addr, router, limits: options.limits, metrics, stopping })
    }

    /// Where it listens, with the port the system chose when none was named.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Who is at the door, now and while it is served.
    pub fn visitors(&self) -> Visitors {
        Visitors::of(self.metrics.clone())
    }

    /// Serves until `stop` resolves. Then it accepts no more, tells streams, lets requests finish for `grace`,
    /// cuts what is left and returns.
    pub async fn serve(self, stop: impl Future<Output = ()>, grace: Duration) -> Result<(), ServeError> {
        let Self { listeners, router, limits, metrics, stopping, .. } = self;
        let room = Arc::new(Semaphore::new(limits.connections));
        let http = http(&limits);
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        let result = loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break Ok(()),
                // Finished connections leave the set as they end, not only when it is drained.
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = accept(&listeners, &room) => accepted,
            };
            match accepted {
                Ok((stream, permit)) => {
                    let service = TowerToHyperService::new(router.clone());
                    let held = (permit, metrics.connection());
                    let told = stopping.subscribe();
                    match stream {
                        Accepted::Tcp(stream) => {
                            let stream = http.serve_connection(TokioIo::new(stream), service);
                            connections.spawn(finish(stream.with_upgrades(), told, held));
                        }
                        Accepted::Unix(stream) => {
                            let stream = http.serve_connection(TokioIo::new(stream), service);
                            connections.spawn(finish(stream.with_upgrades(), told, held));
                        }
                    }
                }
                Err(error) if passes(&error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                Err(source) => break Err(ServeError::Accept(source)),
            }
        };
        drop(listeners);
        stopping.send_replace(true);
        drain(connections, grace).await;
        result
    }
}

/// The pause after a failed accept: out of descriptors stays so for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(limits.headers)
        .max_header_size(limits.head_bytes);
    http
}

/// Waits for room first, so that connections over the limit stay with the kernel.
async fn accept(
    listeners: &Listeners,
    room: &Arc<Semaphore>,
) -> Result<(Accepted, OwnedSemaphorePermit), io::Error> {
    let permit = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    Ok((listeners.accept().await?, permit))
}

/// Errors of one connection, or of a moment; the listener itself is fine.
fn passes(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::NotConnected
    )
}

type Connection<S> = http1::UpgradeableConnection<TokioIo<S>, TowerToHyperService<Router>>;

async fn finish<S>(
    connection: Connection<S>,
    mut stopping: watch::Receiver<bool>,
    held: (OwnedSemaphorePermit, Counted),
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => {
            // The request under way is finished, and no other begun.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // The other side went away or spoke no HTTP: its business, and no news.
        tracing::debug!(%error, "a connection ended early");
    }
    drop(held);
}

async fn drain(mut connections: JoinSet<()>, grace: Duration) {
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, finished).await.is_err() {
        tracing::warn!(open = connections.len(), "connections were cut after the grace period");
        connections.shutdown().await;
    }
}
