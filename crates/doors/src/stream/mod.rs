//! Events on their way to a reader: [`frame`] is the wire form of server-sent events, [`tail`] a session's
//! whole record, [`turn`] one prompt's answer in the shape existing clients read.
//!
//! A stream is pulled by the connection: it holds one batch at a time and reads no further while its reader
//! is slow. It never buffers ahead.

pub(crate) mod frame;
pub(crate) mod tail;
pub(crate) mod translator;
pub(crate) mod turn;

use crate::rest::Stopping;
use session::{Batch, Follower, ReadError};
use std::{sync::Arc, time::Duration};

/// What makes a quiet stream move, and the name under which the log knows it.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    pub(crate) request_id: String,
    pub(crate) heartbeat: Duration,
    pub(crate) stopping: Stopping,
}

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was sent: the head should go out at once, also of a quiet session.
    Opening,
    Following,
    Ended,
}

/// What a stream got to do next.
pub(crate) enum Beat {
    Events(Arc<Batch>),
    /// Nothing came for a while.
    Quiet,
    /// The server stops.
    Stopping,
    /// The record cannot be read further: removed, expired, broken.
    Broken(ReadError),
}

impl Pulse {
    pub(crate) async fn next(&mut self, follower: &mut Follower) -> Beat {
        tokio::select! {
            // The end before events: a flood must not keep a server from stopping. Its reader comes back for the rest.
            biased;
            () = self.stopping.wait() => Beat::Stopping,
            batch = follower.next() => match batch {
                Ok(batch) => Beat::Events(batch),
                Err(error) => Beat::Broken(error),
            },
            () = tokio::time::sleep(self.heartbeat) => Beat::Quiet,
        }
    }
}
