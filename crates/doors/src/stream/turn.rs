//! One prompt's answer as a stream: the translator fed from the journal, from the prompt to its outcome.

use super::{
    Beat, Phase, Pulse, frame,
    translator::{Progress, Translator},
};
use crate::{fault, metrics::Counted};
use bytes::Bytes;
use futures_core::Stream;
use protocol::{Accepted, Code, Fault, SessionId};
use session::{Batch, Follower};
use std::convert::Infallible;

pub(crate) use super::translator::Detail;

pub(crate) struct TurnStream {
    translator: Translator,
    follower: Follower,
    pulse: Pulse,
    phase: Phase,
    _counted: Counted,
}

impl TurnStream {
    pub(crate) fn new(
        session: SessionId,
        accepted: &Accepted,
        detail: Detail,
        follower: Follower,
        pulse: Pulse,
        counted: Counted,
    ) -> Self {
        let translator = Translator::new(session, accepted, detail);
        Self { translator, follower, pulse, phase: Phase::Opening, _counted: counted }
    }

    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        futures_util::stream::unfold(self, async |mut turn| turn.next().await.map(|bytes| (Ok(bytes), turn)))
    }

    async fn next(&mut self) -> Option<Bytes> {
        match self.phase {
            Phase::Opening => {
                self.phase = Phase::Following;
                return Some(self.translator.open().into());
            }
            Phase::Following => {}
            Phase::Ended => return None,
        }
        loop {
            match self.pulse.next(&mut self.follower).await {
                Beat::Events(batch) => {
                    let frames = self.translate(&batch);
                    // A batch may hold only other turns' events: a queued prompt waits in silence.
                    if !frames.is_empty() {
                        return Some(frames.into());
                    }
                }
                Beat::Quiet => return Some(frame::HEARTBEAT),
                Beat::Stopping => {
                    let words =
                        "the server is stopping; what is recorded of the turn is in the session's events";
                    return Some(self.break_off(Fault::new(Code::ShuttingDown, words)));
                }
                Beat::Broken(error) => return Some(self.break_off(frame::fault(&error))),
            }
        }
    }

    fn translate(&mut self, batch: &Batch) -> String {
        let mut out = String::new();
        for event in &batch.events {
            match self.translator.event(event.seq, event.kind, || event.decode(), &mut out) {
                Progress::More => continue,
                Progress::Ended => {}
                Progress::Unreadable(error) => {
                    // It may have been our end; waiting for another would be waiting for ever.
                    tracing::error!(%error, seq = event.seq, "a stored event could not be read");
                    let words = format!("event {} could not be read: {error}", event.seq);
                    let words = fault::body_of(Fault::new(Code::Internal, words), &self.pulse.request_id);
                    self.translator.break_off(&words, &mut out);
                }
            }
            self.phase = Phase::Ended;
            break;
        }
        out
    }

    fn break_off(&mut self, fault: Fault) -> Bytes {
        self.phase = Phase::Ended;
        let mut out = String::new();
        self.translator.break_off(&fault::body_of(fault, &self.pulse.request_id), &mut out);
        out.into()
    }
}
