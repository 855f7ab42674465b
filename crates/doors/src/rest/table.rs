//! Every call, once: where it is, who may make it, what it takes, what it gives and how it can fail.
//! The router, the gate's scopes and the OpenAPI document are all made from here, so they cannot disagree.

mod files;

use super::{Shared, agents, events, messages, secrets, server, sessions};
use crate::{
    intake::MAX_SEQ,
    metrics,
    openapi::{SchemaOf, schema},
    reply::{
        AgentRemovedReply, AgentReply, AgentsReply, CredentialReply, CredentialsReply, EventsReply,
        HealthReply, KeyReply, KeysReply, LogsReply, MessagesReply, SessionReply, SessionsReply,
    },
};
use axum::{
    http::Method,
    routing::{MethodRouter, delete, get, patch, post, put},
};
use protocol::{
    AnswerPermission, Code, Configure, CreateCredential, CreateKey, CreateSession, CreatedKey, DeployAgent,
    ForkSession, Scope, SendMessage, UsageReport, limits,
};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) needs: Needs,
    pub(crate) pace: Pace,
    pub(crate) topic: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) detail: &'static str,
    pub(crate) params: &'static [Param],
    pub(crate) takes: Takes,
    pub(crate) gives: Gives,
    /// Its own ways to fail, beside those that every call has.
    pub(crate) faults: &'static [Code],
    pub(crate) route: fn() -> MethodRouter<Arc<Shared>>,
}

/// The key a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Key(Scope),
}

/// Which time limit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Quick,
    Upload,
}

pub(crate) enum Takes {
    Nothing,
    Json(SchemaOf),
    Bytes(&'static [&'static str]),
}

pub(crate) enum Gives {
    Json(u16, SchemaOf),
    /// Any JSON object.
    Object,
    Stream,
    JsonOrStream(SchemaOf),
    Text(&'static str),
    /// Bytes of this type, under one of these statuses.
    Bytes(&'static str, &'static [u16]),
}

pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    pub(crate) text: &'static str,
    pub(crate) schema: fn() -> Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Path,
    Query,
    RequiredQuery,
    Header,
}

/// The call that a request is, by its method and the path's pattern. HEAD is answered by GET.
pub(crate) fn find(method: &Method, path: &str) -> Option<&'static Call> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    CALLS.iter().find(|call| call.method == *method && call.path == path)
}

/// What a name in a path looks like, as protocol checks it.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";
const SESSION_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._@:+-]{0,127}$";
const UUID_PATTERN: &str = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";

const SESSION: Param = Param {
    name: "id",
    place: Place::Path,
    text: "A session's UUID, or one of its tenant's aliases such as `1_local`.",
    schema: || json!({ "type": "string", "pattern": SESSION_PATTERN }),
};
const PERMISSION: Param = Param {
    name: "permission",
    place: Place::Path,
    text: "The seq of the `permission_requested` event.",
    schema: || json!({ "type": "integer", "minimum": 1, "maximum": MAX_SEQ }),
};
const AGENT: Param = Param {
    name: "name",
    place: Place::Path,
    text: "An agent's name.",
    schema: || json!({ "type": "string", "pattern": NAME_PATTERN }),
};
const UUID: Param = Param {
    name: "id",
    place: Place::Path,
    text: "Its id.",
    schema: || json!({ "type": "string", "format": "uuid", "pattern": UUID_PATTERN }),
};
const AFTER: Param = Param {
    name: "after",
    place: Place::Query,
    text: "Only what came after this seq; 0, the default, means from the beginning.",
    schema: || json!({ "type": "integer", "minimum": 0, "maximum": MAX_SEQ, "default": 0 }),
};
const LIMIT: Param = Param {
    name: "limit",
    place: Place::Query,
    text: "How many at most. A page of events may be shorter when they are large; a stream has no limit.",
    schema: || json!({ "type": "integer", "minimum": 1, "maximum": limits::PAGE_EVENTS, "default": limits::PAGE_EVENTS }),
};
const LAST_EVENT_ID: Param = Param {
    name: "Last-Event-ID",
    place: Place::Header,
    text: "For streams: the last `id` that was seen. Wins over `after`.",
    schema: || json!({ "type": "string", "pattern": "^[0-9]{0,15}$" }),
};
const LIST: &[Param] = &[
    Param {
        name: "agent",
        place: Place::Query,
        text: "Only sessions of this agent.",
        schema: || json!({ "type": "string", "pattern": NAME_PATTERN }),
    },
    Param {
        name: "status",
        place: Place::Query,
        text: "Only sessions with this status.",
        schema: || json!({ "type": "string", "enum": ["starting", "active", "paused", "ended", "error"] }),
    },
    Param {
        name: "kind",
        place: Place::Query,
        text: "What lives in the session.",
        schema: || json!({ "type": "string", "enum": ["agent", "shell", "all"], "default": "agent" }),
    },
    Param {
        name: "limit",
        place: Place::Query,
        text: "How many on one page; without it, all.",
        schema: || json!({ "type": "integer", "minimum": 1, "maximum": limits::LIST_PAGE }),
    },
    Param {
        name: "cursor",
        place: Place::Query,
        text: "`nextCursor` of the page before.",
        schema: || json!({ "type": "string" }),
    },
];
const PURGE: Param = Param {
    name: "purge",
    place: Place::Query,
    text: "Also remove the session, its record and its files, for good.",
    schema: || json!({ "type": "boolean", "default": false }),
};

const READ: Needs = Needs::Key(Scope::Read);
const WRITE: Needs = Needs::Key(Scope::Write);
const ADMIN: Needs = Needs::Key(Scope::Admin);

const SESSION_FAULTS: &[Code] = &[Code::InvalidId, Code::SessionNotFound];
/// What starting an agent can meet.
const START_FAULTS: &[Code] = &[
    Code::InvalidId,
    Code::SessionNotFound,
    Code::AgentNotFound,
    Code::SessionEnded,
    Code::Conflict,
    Code::QuotaExceeded,
    Code::AgentFailed,
    Code::SandboxFailed,
    Code::CapacityReached,
    Code::StorageFull,
];
const CHANGE_FAULTS: &[Code] = &[
    Code::InvalidId,
    Code::SessionNotFound,
    Code::WrongStatus,
    Code::SessionEnded,
    Code::Conflict,
    Code::StorageFull,
];

const SEND_TEXT: &str = "Records a prompt and streams its turn as server-sent events, once the prompt is on disk.\n\n\
Frames: `session_start`, then per message of the agent its `text_delta`, `thinking_delta`, `tool_use`, `tool_update`, \
`tool_result`, `plan` and `permission_request` events and `message`; then `turn_complete`, or `error` with the turn's \
outcome and a reason as `code`; and always a last `done`. With `includePartialMessages` deltas come as the agent sends \
them, without it one for each message. Hanging up cancels nothing. The same `id` with the same content replays the \
recorded turn. The headers `x-outlast-turn` and `x-outlast-seq` name the turn and its first event.";

const EVENTS_TEXT: &str = "A page of the session's record, or, with `Accept: text/event-stream`, all of it after the \
cursor and then what comes: `id` is the event's seq, `event` its type, `data` the event. Quiet streams carry a comment \
every 15 seconds. The stream stays open when the session ends; it closes, with an `error` frame, when the session is \
removed, and with a comment when the server stops.";

/// The table. Sessions first, then what they are made of, then the server itself.
pub(crate) static CALLS: &[Call] = &[
    Call {
        method: Method::POST,
        path: "/api/sessions",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "Create a session",
        detail: "Starts the agent in a copy of its folder. The session is active in the answer.",
        params: &[],
        takes: Takes::Json(schema::<CreateSession>),
        gives: Gives::Json(201, schema::<SessionReply>),
        faults: &[
            Code::AgentNotFound,
            Code::CredentialNotFound,
            Code::Conflict,
            Code::Unsupported,
            Code::QuotaExceeded,
            Code::AgentFailed,
            Code::SandboxFailed,
            Code::CapacityReached,
            Code::StorageFull,
        ],
        route: || post(sessions::create),
    },
    Call {
        method: Method::GET,
        path: "/api/sessions",
        needs: READ,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "List sessions",
        detail: "The tenant's sessions, newest first, ended ones too.",
        params: LIST,
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<SessionsReply>),
        faults: &[],
        route: || get(sessions::list),
    },
    Call {
        method: Method::GET,
        path: "/api/sessions/{id}",
        needs: READ,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "Get a session",
        detail: "",
        params: &[SESSION],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: SESSION_FAULTS,
        route: || get(sessions::get),
    },
    Call {
        method: Method::DELETE,
        path: "/api/sessions/{id}",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "End a session",
        detail: "Ended sessions stay readable and cannot be resumed. Ending one twice is fine.",
        params: &[SESSION, PURGE],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: &[Code::InvalidId, Code::SessionNotFound, Code::Conflict, Code::StorageFull],
        route: || delete(sessions::end),
    },
    Call {
        method: Method::POST,
        path: "/api/sessions/{id}/pause",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "Pause an active session",
        detail: "",
        params: &[SESSION],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: CHANGE_FAULTS,
        route: || post(sessions::pause),
    },
    Call {
        method: Method::POST,
        path: "/api/sessions/{id}/resume",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "Resume a paused, failed or starting session",
        detail: "An active one is returned as it is. A resume that fails leaves the status unchanged.",
        params: &[SESSION],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: START_FAULTS,
        route: || post(sessions::resume),
    },
    Call {
        method: Method::POST,
        path: "/api/sessions/{id}/stop",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "Stop a session's processes",
        detail: "The session is paused afterwards and can be resumed.",
        params: &[SESSION],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: CHANGE_FAULTS,
        route: || post(sessions::stop),
    },
    Call {
        method: Method::POST,
        path: "/api/sessions/{id}/fork",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "Fork a session",
        detail: "A new session with the events up to `at`, and the files as they were then as far as a snapshot of that time is left; its journal says which. The agent goes on natively where its own store fits, else with a transcript. It is on its way when this is answered: the session is `starting`, and becomes active by itself.",
        params: &[SESSION],
        takes: Takes::Json(schema::<ForkSession>),
        gives: Gives::Json(201, schema::<SessionReply>),
        faults: START_FAULTS,
        route: || post(sessions::fork),
    },
    Call {
        method: Method::POST,
        path: "/api/sessions/{id}/messages",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Messages",
        summary: "Send a message and stream the answer",
        detail: SEND_TEXT,
        params: &[SESSION],
        takes: Takes::Json(schema::<SendMessage>),
        gives: Gives::Stream,
        faults: &[
            Code::InvalidId,
            Code::SessionNotFound,
            Code::AgentNotFound,
            Code::WrongStatus,
            Code::Unsupported,
            Code::Busy,
            Code::IdReused,
            Code::SessionEnded,
            Code::CursorExpired,
            Code::QueueFull,
            Code::QuotaExceeded,
            Code::AgentFailed,
            Code::SandboxFailed,
            Code::CapacityReached,
            Code::StorageFull,
        ],
        route: || post(messages::send),
    },
    Call {
        method: Method::GET,
        path: "/api/sessions/{id}/messages",
        needs: READ,
        pace: Pace::Quick,
        topic: "Messages",
        summary: "The session's messages",
        detail: "Merged from its events. `after` takes the `sequence` of the last one seen.",
        params: &[SESSION, AFTER, LIMIT],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<MessagesReply>),
        faults: &[Code::InvalidId, Code::SessionNotFound, Code::CursorExpired],
        route: || get(messages::history),
    },
    Call {
        method: Method::GET,
        path: "/api/sessions/{id}/events",
        needs: READ,
        pace: Pace::Quick,
        topic: "Events",
        summary: "The session's events",
        detail: EVENTS_TEXT,
        params: &[SESSION, AFTER, LIMIT, LAST_EVENT_ID],
        takes: Takes::Nothing,
        gives: Gives::JsonOrStream(schema::<EventsReply>),
        faults: &[Code::InvalidId, Code::SessionNotFound, Code::CursorExpired],
        route: || get(events::read),
    },
    Call {
        method: Method::POST,
        path: "/api/sessions/{id}/cancel",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Messages",
        summary: "Cancel the running turn",
        detail: "Nothing to cancel is not an error.",
        params: &[SESSION],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: CHANGE_FAULTS,
        route: || post(sessions::cancel),
    },
    Call {
        method: Method::PATCH,
        path: "/api/sessions/{id}/config",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "Change a session's settings",
        detail: "Fields that are left out stay as they are.",
        params: &[SESSION],
        takes: Takes::Json(schema::<Configure>),
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: &[
            Code::InvalidId,
            Code::SessionNotFound,
            Code::WrongStatus,
            Code::Unsupported,
            Code::Busy,
            Code::Conflict,
            Code::SessionEnded,
            Code::AgentFailed,
            Code::StorageFull,
        ],
        route: || patch(sessions::configure),
    },
    Call {
        method: Method::POST,
        path: "/api/sessions/{id}/permissions/{permission}",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Messages",
        summary: "Answer a permission request",
        detail: "Any caller of the tenant may answer, also long after the request; the first answer counts.",
        params: &[SESSION, PERMISSION],
        takes: Takes::Json(schema::<AnswerPermission>),
        gives: Gives::Json(200, schema::<SessionReply>),
        faults: &[
            Code::InvalidId,
            Code::SessionNotFound,
            Code::PermissionNotFound,
            Code::WrongStatus,
            Code::Conflict,
            Code::SessionEnded,
            Code::StorageFull,
        ],
        route: || post(sessions::answer),
    },
    Call {
        method: Method::GET,
        path: "/api/sessions/{id}/logs",
        needs: READ,
        pace: Pace::Quick,
        topic: "Sessions",
        summary: "The end of what the agent wrote to stderr",
        detail: "",
        params: &[SESSION],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<LogsReply>),
        faults: SESSION_FAULTS,
        route: || get(sessions::logs),
    },
    files::LIST,
    files::REMOVE,
    files::CONTENT,
    files::WRITE_CONTENT,
    files::ARCHIVE,
    Call {
        method: Method::POST,
        path: "/api/agents",
        needs: ADMIN,
        pace: Pace::Quick,
        topic: "Agents",
        summary: "Deploy an agent from files or a path",
        detail: "Files carry the agent's folder in the request. A path is a folder on the server's machine and is \
                 for admins of the tenant `default`. A name that exists gets a new version; the same content does not.",
        params: &[],
        takes: Takes::Json(schema::<DeployAgent>),
        gives: Gives::Json(201, schema::<AgentReply>),
        faults: &[Code::Conflict, Code::QuotaExceeded, Code::StorageFull],
        route: || post(agents::deploy),
    },
    Call {
        method: Method::GET,
        path: "/api/agents",
        needs: READ,
        pace: Pace::Quick,
        topic: "Agents",
        summary: "List agents",
        detail: "",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<AgentsReply>),
        faults: &[],
        route: || get(agents::list),
    },
    Call {
        method: Method::GET,
        path: "/api/agents/{name}",
        needs: READ,
        pace: Pace::Quick,
        topic: "Agents",
        summary: "Get an agent",
        detail: "",
        params: &[AGENT],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<AgentReply>),
        faults: &[Code::InvalidId, Code::AgentNotFound],
        route: || get(agents::get),
    },
    Call {
        method: Method::PUT,
        path: "/api/agents/{name}",
        needs: ADMIN,
        pace: Pace::Upload,
        topic: "Agents",
        summary: "Deploy an agent from a tar",
        detail: "The body is a plain tar of the agent's folder.",
        params: &[AGENT],
        takes: Takes::Bytes(agents::TAR),
        gives: Gives::Json(200, schema::<AgentReply>),
        faults: &[
            Code::InvalidId,
            Code::Conflict,
            Code::PayloadTooLarge,
            Code::UnsupportedMediaType,
            Code::QuotaExceeded,
            Code::CapacityReached,
            Code::StorageFull,
        ],
        route: || put(agents::deploy_tar),
    },
    Call {
        method: Method::DELETE,
        path: "/api/agents/{name}",
        needs: ADMIN,
        pace: Pace::Quick,
        topic: "Agents",
        summary: "Delete an agent",
        detail: "Sessions that were made from it keep their copy.",
        params: &[AGENT],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<AgentRemovedReply>),
        faults: &[Code::InvalidId, Code::AgentNotFound, Code::Conflict, Code::StorageFull],
        route: || delete(agents::remove),
    },
    Call {
        method: Method::POST,
        path: "/api/credentials",
        needs: ADMIN,
        pace: Pace::Quick,
        topic: "Credentials",
        summary: "Store a credential",
        detail: "Encrypted at rest; no reply ever holds a value.",
        params: &[],
        takes: Takes::Json(schema::<CreateCredential>),
        gives: Gives::Json(201, schema::<CredentialReply>),
        faults: &[Code::Conflict, Code::QuotaExceeded, Code::StorageFull],
        route: || post(secrets::create_credential),
    },
    Call {
        method: Method::GET,
        path: "/api/credentials",
        needs: WRITE,
        pace: Pace::Quick,
        topic: "Credentials",
        summary: "List credentials",
        detail: "Names of variables, never values. For those who create sessions and choose among them.",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<CredentialsReply>),
        faults: &[],
        route: || get(secrets::credentials),
    },
    Call {
        method: Method::DELETE,
        path: "/api/credentials/{id}",
        needs: ADMIN,
        pace: Pace::Quick,
        topic: "Credentials",
        summary: "Delete a credential",
        detail: "",
        params: &[UUID],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<CredentialReply>),
        faults: &[Code::InvalidId, Code::CredentialNotFound, Code::Conflict, Code::StorageFull],
        route: || delete(secrets::remove_credential),
    },
    Call {
        method: Method::POST,
        path: "/api/api-keys",
        needs: ADMIN,
        pace: Pace::Quick,
        topic: "Keys",
        summary: "Create an API key",
        detail: "The answer is the only time the key is shown.",
        params: &[],
        takes: Takes::Json(schema::<CreateKey>),
        gives: Gives::Json(201, schema::<CreatedKey>),
        faults: &[Code::Conflict, Code::QuotaExceeded, Code::StorageFull],
        route: || post(secrets::create_key),
    },
    Call {
        method: Method::GET,
        path: "/api/api-keys",
        needs: ADMIN,
        pace: Pace::Quick,
        topic: "Keys",
        summary: "List API keys",
        detail: "",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<KeysReply>),
        faults: &[],
        route: || get(secrets::keys),
    },
    Call {
        method: Method::DELETE,
        path: "/api/api-keys/{id}",
        needs: ADMIN,
        pace: Pace::Quick,
        topic: "Keys",
        summary: "Delete an API key",
        detail: "",
        params: &[UUID],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<KeyReply>),
        faults: &[Code::InvalidId, Code::KeyNotFound, Code::Conflict, Code::StorageFull],
        route: || delete(secrets::remove_key),
    },
    Call {
        method: Method::GET,
        path: "/api/usage",
        needs: READ,
        pace: Pace::Quick,
        topic: "Usage",
        summary: "What the tenant has used",
        detail: "Tokens and cost of all its turns, as far as their agents said, and what it has stored. A session's own \
                 are in the session, as `usage`.",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<UsageReport>),
        faults: &[],
        route: || get(server::usage),
    },
    Call {
        method: Method::GET,
        path: "/health",
        needs: Needs::Nothing,
        pace: Pace::Quick,
        topic: "Server",
        summary: "Is the server well?",
        detail: "The one call that needs no key.",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Json(200, schema::<HealthReply>),
        faults: &[],
        route: || get(server::health),
    },
    Call {
        method: Method::GET,
        path: "/metrics",
        needs: READ,
        pace: Pace::Quick,
        topic: "Server",
        summary: "Figures for Prometheus",
        detail: "",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Text(metrics::CONTENT_TYPE),
        faults: &[],
        route: || get(server::figures),
    },
    Call {
        method: Method::GET,
        path: "/openapi.json",
        needs: READ,
        pace: Pace::Quick,
        topic: "Server",
        summary: "This document",
        detail: "",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Object,
        faults: &[],
        route: || get(server::document),
    },
    Call {
        method: Method::GET,
        path: "/docs",
        needs: READ,
        pace: Pace::Quick,
        topic: "Server",
        summary: "This document as a page",
        detail: "",
        params: &[],
        takes: Takes::Nothing,
        gives: Gives::Text("text/html"),
        faults: &[Code::NotFound],
        route: || get(server::page),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_there_once() {
        for (index, call) in CALLS.iter().enumerate() {
            let twin = CALLS[..index].iter().find(|c| c.method == call.method && c.path == call.path);
            assert!(twin.is_none(), "{} {}", call.method, call.path);
            assert!(std::ptr::eq(find(&call.method, call.path).unwrap(), call));
        }
        assert!(find(&Method::HEAD, "/health").is_some());
        assert!(find(&Method::TRACE, "/health").is_none());
    }

    #[test]
    fn nothing_but_health_is_open_and_nothing_changes_on_a_read_key() {
        for call in CALLS {
            let name = format!("{} {}", call.method, call.path);
            match call.needs {
                Needs::Nothing => assert_eq!(call.path, "/health"),
                Needs::Key(Scope::Read) => assert_eq!(call.method, Method::GET, "{name}"),
                Needs::Key(Scope::Write | Scope::Admin) => {}
            }
        }
    }

    #[test]
    fn paths_name_their_parameters() {
        for call in CALLS {
            let in_path: Vec<&str> =
                call.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            let named: Vec<&str> = call
                .params
                .iter()
                .filter(|param| param.place == Place::Path)
                .map(|param| param.name)
                .collect();
            assert_eq!(in_path, named, "{}", call.path);
        }
    }
}
