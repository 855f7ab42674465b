//! Prompts: `POST …/messages` records one and streams its turn; `GET …/messages` is the history.

use super::{Shared, events::Span};
use crate::{
    answer::{self, Outcome},
    gate::{RequestId, Who},
    intake::{Asked, Json, Named},
    reply::MessagesReply,
    stream::{
        frame,
        turn::{Detail, TurnStream},
    },
};
use axum::{
    extract::State,
    http::{HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use protocol::{SendMessage, SessionRef};
use session::Sent;
use std::sync::Arc;

pub(crate) const TURN_HEADER: HeaderName = HeaderName::from_static("x-outlast-turn");
pub(crate) const SEQ_HEADER: HeaderName = HeaderName::from_static("x-outlast-seq");

/// The answer begins once the prompt is on disk. What follows is read from the journal: a client that hangs up
/// cancels nothing, and the same client id again replays what was recorded.
pub(crate) async fn send(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    RequestId(request_id): RequestId,
    Named(id): Named<SessionRef>,
    Json(message): Json<SendMessage>,
) -> Outcome {
    let detail = if message.include_partial_messages { Detail::Deltas } else { Detail::Messages };
    let Sent { session, accepted, follower } = door.sessions.send(&caller, &id, message).await?;
    let stream =
        TurnStream::new(session, &accepted, detail, follower, door.pulse(request_id), door.metrics.stream());
    let mut response: Response = frame::response(stream.into_stream()).into_response();
    for (name, value) in [(TURN_HEADER, accepted.turn.to_string()), (SEQ_HEADER, accepted.seq.to_string())] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

pub(crate) async fn history(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Asked(span): Asked<Span>,
) -> Outcome {
    let (after, limit) = span.checked()?;
    let messages = door.sessions.messages(&caller, &id, after, limit).await?;
    answer::ok(&MessagesReply { messages })
}
