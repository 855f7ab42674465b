//! A session's record as a stream: replay from a cursor, then live.
//!
//! The stream stays open when the session ends: it is a view of the record, and what a reader does at
//! `session_status` `ended` is the reader's choice. (Closing would make browsers reconnect for ever.) It ends
//! when the reader leaves, when the server stops, or, with an `error` frame, when the session is removed.

use super::{Beat, Phase, Pulse, frame};
use crate::{fault, metrics::Counted};
use bytes::Bytes;
use futures_core::Stream;
use protocol::{Seq, SessionId};
use session::{Batch, Follower};
use std::convert::Infallible;

/// Said to readers before the server stops; those that reconnect with their last id miss nothing.
const STOPPING: Bytes = Bytes::from_static(b": the server is stopping\nretry: 1000\n\n");

struct Tail {
    session: SessionId,
    /// The last seq that was delivered.
    cursor: Seq,
    follower: Follower,
    pulse: Pulse,
    phase: Phase,
    _counted: Counted,
}

pub(crate) fn stream(
    session: SessionId,
    after: Seq,
    follower: Follower,
    pulse: Pulse,
    counted: Counted,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let tail = Tail { session, cursor: after, follower, pulse, phase: Phase::Opening, _counted: counted };
    futures_util::stream::unfold(tail, async |mut tail| tail.next().await.map(|bytes| (Ok(bytes), tail)))
}

impl Tail {
    async fn next(&mut self) -> Option<Bytes> {
        match self.phase {
            Phase::Opening => {
                self.phase = Phase::Following;
                return Some(frame::HEARTBEAT);
            }
            Phase::Following => {}
            Phase::Ended => return None,
        }
        loop {
            match self.pulse.next(&mut self.follower).await {
                Beat::Events(batch) => {
                    if let Some(bytes) = self.encode(&batch) {
                        return Some(bytes);
                    }
                }
                Beat::Quiet => return Some(frame::HEARTBEAT),
                Beat::Stopping => {
                    self.phase = Phase::Ended;
                    return Some(STOPPING);
                }
                Beat::Broken(error) => {
                    self.phase = Phase::Ended;
                    let mut out = String::new();
                    let words = fault::body_of(frame::fault(&error), &self.pulse.request_id);
                    frame::push(&mut out, "error", &words);
                    return Some(out.into());
                }
            }
        }
    }

    /// Everyone whose cursor is at the batch's beginning shares one encoding of it; one who begins in its
    /// middle gets the rest of it.
    fn encode(&mut self, batch: &Batch) -> Option<Bytes> {
        let fresh = batch.events.iter().position(|event| event.seq > self.cursor)?;
        self.cursor = batch.events.last()?.seq;
        Some(match fresh {
            0 => batch.encoded(|batch| frame::events(batch.session, &batch.events)),
            fresh => frame::events(self.session, &batch.events[fresh..]),
        })
    }
}
