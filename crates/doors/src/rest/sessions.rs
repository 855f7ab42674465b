//! Sessions: create, list, get, pause, resume, stop, end, cancel, configure, answer a permission, logs.

use super::Shared;
use crate::{
    answer::{self, Outcome},
    fault::Refusal,
    gate::Who,
    intake::{Asked, Json, Named, NamedPermission, NoBody},
    reply::{LogsReply, SessionReply, SessionsReply},
};
use axum::extract::State;
use protocol::{
    AnswerPermission, Configure, CreateSession, Fault, ForkSession, ListSessions, Session, SessionRef, limits,
};
use serde::Deserialize;
use std::sync::Arc;

type Door = State<Arc<Shared>>;

pub(crate) async fn create(
    State(door): Door,
    Who(caller): Who,
    Json(request): Json<CreateSession>,
) -> Outcome {
    let session = door.sessions.create(&caller, request).await?;
    answer::created(&SessionReply { session })
}

pub(crate) async fn list(
    State(door): Door,
    Who(caller): Who,
    Asked(request): Asked<ListSessions>,
) -> Outcome {
    if request.limit.is_some_and(|limit| !(1..=limits::LIST_PAGE).contains(&limit)) {
        return Err(Refusal(Fault::invalid(format!("limit must be 1 to {}", limits::LIST_PAGE))));
    }
    let list = door.sessions.list(&caller, request).await?;
    answer::ok(&SessionsReply { sessions: list.sessions, next_cursor: list.next_cursor })
}

pub(crate) async fn get(State(door): Door, Who(caller): Who, Named(id): Named<SessionRef>) -> Outcome {
    shown(door.sessions.get(&caller, &id).await)
}

pub(crate) async fn pause(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    _: NoBody,
) -> Outcome {
    shown(door.sessions.pause(&caller, &id).await)
}

pub(crate) async fn resume(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    _: NoBody,
) -> Outcome {
    shown(door.sessions.resume(&caller, &id).await)
}

pub(crate) async fn fork(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Json(request): Json<ForkSession>,
) -> Outcome {
    let session = door.sessions.fork(&caller, &id, request).await?;
    answer::created(&SessionReply { session })
}

pub(crate) async fn stop(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    _: NoBody,
) -> Outcome {
    shown(door.sessions.stop(&caller, &id).await)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ending {
    #[serde(default)]
    purge: bool,
}

pub(crate) async fn end(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Asked(ending): Asked<Ending>,
    _: NoBody,
) -> Outcome {
    if ending.purge {
        shown(door.sessions.remove(&caller, &id).await)
    } else {
        shown(door.sessions.end(&caller, &id).await)
    }
}

pub(crate) async fn cancel(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    _: NoBody,
) -> Outcome {
    shown(door.sessions.cancel(&caller, &id).await)
}

pub(crate) async fn configure(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Json(request): Json<Configure>,
) -> Outcome {
    shown(door.sessions.configure(&caller, &id, request).await)
}

pub(crate) async fn answer(
    State(door): Door,
    Who(caller): Who,
    named: NamedPermission,
    Json(answer): Json<AnswerPermission>,
) -> Outcome {
    shown(door.sessions.answer(&caller, &named.session, named.permission, answer).await)
}

pub(crate) async fn logs(State(door): Door, Who(caller): Who, Named(id): Named<SessionRef>) -> Outcome {
    let logs = door.sessions.logs(&caller, &id).await?;
    answer::ok(&LogsReply { text: logs.text, dropped: logs.dropped })
}

fn shown(result: Result<Session, Fault>) -> Outcome {
    answer::ok(&SessionReply { session: result? })
}
