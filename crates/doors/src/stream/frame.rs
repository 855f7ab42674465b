//! Frames of server-sent events: `id:`, `event:`, one line of `data:`, an empty line.
//!
//! Data must be one line for every reader. Some split lines not only at CR and LF but at every character that
//! Unicode calls a line break (Python's `splitlines`, and with it httpx). In JSON such a character can stand only
//! inside a string, where its escape means the same, or, for CR and LF, between tokens, where a space does.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_core::Stream;
use protocol::{Code, Fault, SessionId};
use serde::Serialize;
use session::{ReadError, StoredEvent};
use std::{convert::Infallible, fmt::Write as _};

/// What keeps proxies from closing a quiet stream.
pub(crate) const HEARTBEAT: Bytes = Bytes::from_static(b": \n\n");

/// The answer around a stream of frames.
pub(crate) fn response(frames: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // nginx and its kin would hold frames back otherwise.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

/// Appends a frame without an id.
pub(crate) fn push(out: &mut String, event: &str, data: &impl Serialize) {
    out.push_str("event: ");
    out.push_str(event);
    out.push_str("\ndata: ");
    let start = out.len();
    match serde_json::to_string(data) {
        Ok(text) => out.push_str(&text),
        Err(error) => {
            tracing::error!(%error, event, "a frame could not be written as JSON");
            out.push_str("{}");
        }
    }
    one_line(out, start);
    out.push_str("\n\n");
}

/// The frames of consecutive stored events, in one piece.
pub(crate) fn events(session: SessionId, events: &[StoredEvent]) -> Bytes {
    /// What id, event name and envelope add to a body, about.
    const FRAME_BYTES: usize = 256;
    let bytes = events.iter().map(|event| event.body.len() + FRAME_BYTES).sum();
    let mut out = String::with_capacity(bytes);
    for event in events {
        // Writing to a String cannot fail.
        let _ = write!(out, "id: {}\nevent: {}\ndata: ", event.seq, event.kind.as_str());
        let start = out.len();
        event.write_json(session, &mut out);
        one_line(&mut out, start);
        out.push_str("\n\n");
    }
    out.into()
}

/// Why a record cannot be read further, for the last words of its stream.
pub(crate) fn fault(error: &ReadError) -> Fault {
    match error {
        ReadError::NotFound => Fault::new(Code::SessionNotFound, "the session was removed"),
        ReadError::Expired { first_seq } => Fault::new(
            Code::CursorExpired,
            format!("events before {first_seq} are no longer kept; read again from there"),
        ),
        ReadError::Storage(reason) => {
            tracing::error!(reason, "a stream ended because the journal could not be read");
            Fault::new(Code::Internal, "the record could not be read; the server's log has the reason")
        }
    }
}

/// Rewrites what was appended after `start` so that no reader sees a line break in it.
fn one_line(out: &mut String, start: usize) {
    // One cheap pass decides for nearly every event: CR, LF, or a first byte of U+0085, U+2028, U+2029.
    if !out.as_bytes()[start..].iter().any(|byte| matches!(byte, b'\n' | b'\r' | 0xC2 | 0xE2)) {
        return;
    }
    let tail = out.split_off(start);
    let mut rest = tail.as_str();
    while let Some(at) = rest.find(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']) {
        out.push_str(&rest[..at]);
        let breaker = rest[at..].chars().next().unwrap_or(' ');
        out.push_str(match breaker {
            '\u{85}' => "\\u0085",
            '\u{2028}' => "\\u2028",
            '\u{2029}' => "\\u2029",
            _ => " ",
        });
        rest = &rest[at + breaker.len_utf8()..];
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_frame_has_the_exact_prefixes() {
        let mut out = String::new();
        push(&mut out, "text_delta", &json!({"delta": "a\nb"}));
        assert_eq!(out, "event: text_delta\ndata: {\"delta\":\"a\\nb\"}\n\n");
    }

    #[test]
    fn pretty_json_becomes_one_line() {
        let mut out = "data: {\r\n  \"a\": \"\u{e9}\u{2028}\u{85}â\"\n}".to_owned();
        one_line(&mut out, 6);
        assert_eq!(out, "data: {    \"a\": \"\u{e9}\\u2028\\u0085â\" }");
    }

    proptest! {
        #[test]
        fn any_text_stays_one_line_and_means_the_same(text in any::<String>(), breaks in "[\u{85}\u{2028}\u{2029}\n\r]{0,3}") {
            let text = format!("{text}{breaks}{text}");
            let mut out = String::new();
            push(&mut out, "message", &json!({"text": text}));
            let lines: Vec<&str> = out.split(['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}']).collect();
            prop_assert_eq!(lines.len(), 4);
            let data: serde_json::Value = serde_json::from_str(lines[1].strip_prefix("data: ").unwrap()).unwrap();
            prop_assert_eq!(data["text"].as_str().unwrap(), text);
        }
    }
}
