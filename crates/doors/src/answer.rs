//! Successful answers: a status and one JSON value.

use crate::fault::Refusal;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use protocol::{Code, Fault};
use serde::Serialize;

/// What a call returns.
pub(crate) type Outcome<T = Response> = Result<T, Refusal>;

pub(crate) fn ok(value: &impl Serialize) -> Outcome {
    with_status(StatusCode::OK, value)
}

pub(crate) fn created(value: &impl Serialize) -> Outcome {
    with_status(StatusCode::CREATED, value)
}

/// JSON that is already text.
pub(crate) fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

fn with_status(status: StatusCode, value: &impl Serialize) -> Outcome {
    let text = serde_json::to_vec(value).map_err(|error| {
        tracing::error!(%error, "an answer could not be written as JSON");
        Refusal(Fault::new(Code::Internal, "the answer could not be written; the log has the reason"))
    })?;
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((status, kind, text).into_response())
}

/// Writes a value whose types cannot fail to be JSON: strings, numbers and lists of them.
pub(crate) fn encode(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).map(Bytes::from).unwrap_or_else(|error| {
        tracing::error!(%error, "a plain value could not be written as JSON");
        Bytes::from_static(b"null")
    })
}
