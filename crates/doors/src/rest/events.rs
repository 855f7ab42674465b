//! Events: pages as JSON, or replay and then live as server-sent events.

use super::Shared;
use crate::{
    answer::{self, Outcome},
    fault::Refusal,
    gate::{RequestId, Who},
    intake::{Asked, MAX_SEQ, Named},
    stream::{Pulse, frame, tail},
};
use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, header},
    response::IntoResponse,
};
use protocol::{Fault, Seq, SessionId, SessionRef, limits};
use serde::Deserialize;
use session::Page;
use std::{fmt::Write as _, sync::Arc};

pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Which part of a session's record.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Span {
    #[serde(default)]
    after: Seq,
    limit: Option<usize>,
}

impl Span {
    pub(crate) fn checked(&self) -> Result<(Seq, usize), Refusal> {
        let limit = self.limit.unwrap_or(limits::PAGE_EVENTS);
        if !(1..=limits::PAGE_EVENTS).contains(&limit) {
            return Err(Refusal(Fault::invalid(format!("limit must be 1 to {}", limits::PAGE_EVENTS))));
        }
        if self.after > MAX_SEQ {
            return Err(Refusal(Fault::invalid(format!("after must be 0 to {MAX_SEQ}"))));
        }
        Ok((self.after, limit))
    }
}

pub(crate) async fn read(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    RequestId(request_id): RequestId,
    Named(id): Named<SessionRef>,
    Asked(span): Asked<Span>,
    headers: HeaderMap,
) -> Outcome {
    let (after, limit) = span.checked()?;
    if !wants_stream(&headers) {
        let (session, page) = door.sessions.events(&caller, &id, after, limit).await?;
        return Ok(answer::json_text(page_text(session, &page)));
    }
    let after = last_event_id(&headers)?.unwrap_or(after);
    let (session, follower) = door.sessions.follow(&caller, &id, after).await?;
    let stream = tail::stream(session, after, follower, door.pulse(request_id), door.metrics.stream());
    Ok(frame::response(stream).into_response())
}

impl Shared {
    pub(crate) fn pulse(&self, request_id: String) -> Pulse {
        Pulse { request_id, heartbeat: self.limits.heartbeat, stopping: self.stopping.clone() }
    }
}

fn wants_stream(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            range.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
        })
}

/// What a reconnecting reader saw last. It knows better than the address it was first given.
fn last_event_id(headers: &HeaderMap) -> Result<Option<Seq>, Refusal> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    // A reader that has seen no event yet sends an empty one.
    if value.is_empty() {
        return Ok(None);
    }
    let seq = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|seq| *seq <= MAX_SEQ);
    seq.map(Some).ok_or_else(|| {
        Refusal(Fault::invalid(format!("Last-Event-ID must be an event's seq, a number from 0 to {MAX_SEQ}")))
    })
}

/// The stored texts with an envelope around them; nothing is parsed.
fn page_text(session: SessionId, page: &Page) -> String {
    /// What the envelope adds to a body, about.
    const ENVELOPE_BYTES: usize = 192;
    let bytes: usize = page.events.iter().map(|event| event.body.len() + ENVELOPE_BYTES).sum();
    let mut out = String::with_capacity(bytes + 64);
    out.push_str("{\"events\":[");
    for (index, event) in page.events.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        event.write_json(session, &mut out);
    }
    // Writing to a String cannot fail.
    let _ = write!(out, "],\"lastSeq\":{}}}", page.last_seq);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn a_stream_is_given_to_those_who_accept_one() {
        for (accept, wants) in [
            ("text/event-stream", true),
            ("application/json, Text/Event-Stream;q=0.9", true),
            ("application/json", false),
            ("*/*", false),
            ("text/*", false),
        ] {
            assert_eq!(wants_stream(&headers(header::ACCEPT, accept)), wants, "{accept}");
        }
        assert!(!wants_stream(&HeaderMap::new()));
    }

    #[test]
    fn the_last_event_id_is_a_seq() {
        let read = |value: &str| last_event_id(&headers(LAST_EVENT_ID, value)).ok();
        assert_eq!(read("7"), Some(Some(7)));
        assert_eq!(read(""), Some(None));
        for bad in ["x", "-1", "1.5", "18446744073709551616", "9007199254740992"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn spans_are_bounded() {
        let span = |after, limit| Span { after, limit }.checked().ok();
        assert_eq!(span(0, None), Some((0, limits::PAGE_EVENTS)));
        assert_eq!(span(MAX_SEQ, Some(1)), Some((MAX_SEQ, 1)));
        assert_eq!(span(0, Some(0)), None);
        assert_eq!(span(0, Some(limits::PAGE_EVENTS + 1)), None);
        assert_eq!(span(MAX_SEQ + 1, None), None);
    }
}
