//! A model on loopback that does as the prompt tells it, for real agents and for tests of them.
//!
//! It speaks the wire forms of Anthropic's messages, OpenAI's chat completions and responses, and Google's
//! `generateContent`, streamed and whole, and keeps every request it got, so that a test can ask what context
//! one carried. What to answer stands in the last user text; [`script`] lists the words. It listens on a free
//! port, needs no key, and ends when it is dropped.

mod anthropic;
mod chat;
mod gemini;
mod responses;
mod script;

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures_util::{StreamExt as _, stream};
pub use script::Answer;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

/// One request body.
const BODY_BYTES: usize = 64 * 1024 * 1024;

/// Where the dialects say what shape an answer must have.
const SCHEMAS: &[&str] = &[
    "/generationConfig/responseJsonSchema",
    "/generationConfig/responseSchema",
    "/response_format/json_schema/schema",
    "/text/format/schema",
    "/output_config/format/schema",
];

/// Whose wire form a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Anthropic,
    Chat,
    Responses,
    Gemini,
}

/// Who said a part of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
    /// What a tool gave back.
    Tool,
}

/// One part of the context, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub role: Role,
    pub text: String,
}

/// A tool that the request offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    pub schema: Value,
}

/// A request, whatever its wire form.
#[derive(Debug, Clone)]
pub struct Asked {
    pub dialect: Dialect,
    pub model: String,
    pub parts: Vec<Part>,
    pub tools: Vec<Tool>,
    /// What the answer must be made like, when it must be JSON.
    pub schema: Option<Value>,
    pub streamed: bool,
}

impl Asked {
    /// Whether the context holds this text in a part of one of these roles.
    pub fn holds(&self, text: &str, roles: &[Role]) -> bool {
        self.parts.iter().any(|part| roles.contains(&part.role) && part.text.contains(text))
    }

    /// What the user said last.
    pub fn last_user(&self) -> &str {
        self.prompt_at().map_or("", |at| self.parts[at].text.as_str())
    }

    /// Agents put words of their own after the user's: the last part with a word for the script counts.
    fn prompt_at(&self) -> Option<usize> {
        let user = |part: &Part| part.role == Role::User;
        let told = self.parts.iter().rposition(|part| user(part) && script::word(&part.text).is_some());
        told.or_else(|| self.parts.iter().rposition(user))
    }

    /// What tools gave back since the user spoke last.
    pub(crate) fn results(&self) -> impl Iterator<Item = &str> {
        let after = self.prompt_at().map_or(0, |at| at + 1);
        self.parts[after..].iter().filter(|part| part.role == Role::Tool).map(|part| part.text.as_str())
    }
}

/// What is sent of a streamed answer at once, and what once it is let go on.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    now: Vec<String>,
    later: Vec<String>,
}

impl Frames {
    /// Adds the end: at once, or when an answer that is held is let go on.
    fn end(&mut self, answer: &Answer, end: impl IntoIterator<Item = String>) {
        match answer {
            Answer::Hold(_) => self.later.extend(end),
            Answer::Text(_) | Answer::Call { .. } => self.now.extend(end),
        }
    }
}

/// The server.
#[derive(Debug)]
pub struct Model {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    asked: watch::Sender<Vec<Asked>>,
    /// Paths that were asked for and are not known.
    strays: Mutex<Vec<String>>,
    /// How often answers that are held have been let go on.
    released: watch::Sender<u64>,
}

impl Model {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot bind loopback")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            asked: watch::Sender::new(Vec::new()),
            strays: Mutex::default(),
            released: watch::Sender::new(0),
        });
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            // It ends with the model that owns it; an error then has no one to hear it.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, shared, task })
    }

    /// Without a path: agents add their own.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.borrow().clone()
    }

    /// Waits for a request that fits, from the first one on.
    pub async fn until(&self, fits: impl Fn(&Asked) -> bool) -> Result<Asked> {
        let mut asked = self.shared.asked.subscribe();
        let found = asked.wait_for(|all| all.iter().any(&fits));
        let all =
            tokio::time::timeout(crate::limits::CALL, found).await.context("the model was not asked")?;
        all?.iter().find(|asked| fits(asked)).cloned().context("a request that was there is gone")
    }

    /// Requests for something that is not here, as `METHOD /path`.
    pub fn strays(&self) -> Vec<String> {
        self.shared.strays.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets answers that are held now go on.
    pub fn release(&self) {
        self.shared.released.send_modify(|count| *count += 1);
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let Ok(body) = axum::body::to_bytes(body, BODY_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    if head.method == Method::GET && path.ends_with("/models") {
        return whole(&json!({"object": "list", "data": [], "models": []}));
    }
    if head.method == Method::POST && path.ends_with("/count_tokens") {
        return whole(&json!({"input_tokens": 7}));
    }
    if head.method == Method::POST && path.ends_with(":countTokens") {
        return whole(&json!({"totalTokens": 7}));
    }
    let asked = match head.method {
        Method::POST => read(&path, &body),
        _ => None,
    };
    let Some(asked) = asked else {
        let stray = format!("{} {path}", head.method);
        shared.strays.lock().unwrap_or_else(PoisonError::into_inner).push(stray);
        let error =
            json!({"error": {"type": "not_found_error", "message": "not a path of the scripted model"}});
        return (StatusCode::NOT_FOUND, axum::Json(error)).into_response();
    };
    answer(&shared, asked).await
}

fn read(path: &str, body: &Bytes) -> Option<Asked> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let schema = SCHEMAS.iter().find_map(|at| body.pointer(at)).cloned();
    read_dialect(path, &body).map(|asked| Asked { schema, ..asked })
}

fn read_dialect(path: &str, body: &Value) -> Option<Asked> {
    if path.ends_with("/messages") {
        return Some(anthropic::read(body));
    }
    if path.ends_with("/chat/completions") {
        return Some(chat::read(body));
    }
    if path.ends_with("/responses") {
        return Some(responses::read(body));
    }
    let (model, call) = path.rsplit('/').next()?.split_once(':')?;
    match call {
        "generateContent" => Some(gemini::read(body, model, false)),
        "streamGenerateContent" => Some(gemini::read(body, model, true)),
        _ => None,
    }
}

async fn answer(shared: &Arc<Shared>, asked: Asked) -> Response {
    let answer = script::answer(&asked);
    // Before the request is known, so that a release that follows on it is not missed.
    let mut released = shared.released.subscribe();
    released.mark_unchanged();
    let (dialect, streamed) = (asked.dialect, asked.streamed);
    shared.asked.send_modify(|all| all.push(asked));
    if !streamed {
        if matches!(answer, Answer::Hold(_)) {
            let _ = released.changed().await;
        }
        return whole(&match dialect {
            Dialect::Anthropic => anthropic::whole(&answer),
            Dialect::Chat => chat::whole(&answer),
            Dialect::Responses => responses::whole(&answer),
            Dialect::Gemini => gemini::whole(&answer),
        });
    }
    let frames = match dialect {
        Dialect::Anthropic => anthropic::frames(&answer),
        Dialect::Chat => chat::frames(&answer),
        Dialect::Responses => responses::frames(&answer),
        Dialect::Gemini => gemini::frames(&answer),
    };
    let later = frames.later;
    let rest = stream::once(async move {
        if !later.is_empty() {
            let _ = released.changed().await;
        }
        stream::iter(later)
    });
    let all = stream::iter(frames.now).chain(rest.flatten()).map(Ok::<_, Infallible>);
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(all)).into_response()
}

fn whole(value: &Value) -> Response {
    axum::Json(value).into_response()
}

/// A number that no other call of a tool has.
pub(crate) fn script_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One server-sent event with a name.
pub(crate) fn event(value: &Value) -> String {
    let name = value["type"].as_str().unwrap_or("message");
    format!("event: {name}\ndata: {value}\n\n")
}

/// One server-sent event without.
pub(crate) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// All text in a value that is a string, a list of blocks, or a block with text inside.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            items.iter().map(text_of).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
        }
        Value::Object(fields) => {
            let inner = ["text", "content", "output", "parts"].into_iter().find_map(|name| fields.get(name));
            inner.map(text_of).unwrap_or_default()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

#[cfg(test)]
mod tests;
