//! JSON-RPC 2.0, one object a line: shallow reading of what comes in, writing of what goes out.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

pub(super) const INVALID_REQUEST: i32 = -32600;
pub(super) const METHOD_NOT_FOUND: i32 = -32601;
pub(super) const INVALID_PARAMS: i32 = -32602;
pub(super) const INTERNAL_ERROR: i32 = -32603;
/// The agent wants `authenticate` first.
pub(super) const AUTH_REQUIRED: i32 = -32000;

/// One line, as far as it must be understood to be passed on.
pub(super) enum Incoming<'a> {
    Request { id: &'a RawValue, method: Cow<'a, str>, params: Option<&'a RawValue> },
    Notification { method: Cow<'a, str>, params: Option<&'a RawValue> },
    Response { id: &'a RawValue, reply: Reply<'a> },
}

/// An answer; a result of null is none.
pub(super) type Reply<'a> = Result<Option<&'a RawValue>, RpcError>;

#[derive(Debug)]
pub(super) struct RpcError {
    pub(super) code: Option<i64>,
    pub(super) message: String,
}

/// Why a line is none of these.
#[derive(Debug)]
pub(super) enum Junk {
    NotUtf8,
    NotJson,
    NotObject,
    Version,
    /// JSON-RPC by its version, and neither request nor answer.
    Shape {
        id: Option<Box<RawValue>>,
    },
}

impl Junk {
    pub(super) const fn what(&self) -> &'static str {
        match self {
            Self::NotUtf8 => "a line that is not UTF-8",
            Self::NotJson => "a line that is not JSON",
            Self::NotObject => "a line that is not a JSON object",
            Self::Version => "an object that is not JSON-RPC 2.0",
            Self::Shape { .. } => "an object that is neither a request nor an answer",
        }
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl<'a> Incoming<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, Junk> {
        let text = std::str::from_utf8(line).map_err(|_| Junk::NotUtf8)?;
        if !text.trim_start().starts_with('{') {
            let json = serde_json::from_str::<&RawValue>(text).is_ok();
            return Err(if json { Junk::NotObject } else { Junk::NotJson });
        }
        let envelope: Envelope<'a> = serde_json::from_str(text).map_err(|_| Junk::NotJson)?;
        if envelope.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(Junk::Version);
        }
        let Envelope { id, method, params, result, error, .. } = envelope;
        // An id is a string or a number; anything else could not be answered.
        let shape = || Junk::Shape { id: id.filter(|id| is_id(id)).map(ToOwned::to_owned) };
        match (method, id) {
            (Some(method), id) => {
                let method = read::<Cow<'a, str>>(method).ok_or_else(shape)?;
                match id {
                    None => Ok(Self::Notification { method, params }),
                    Some(id) if is_id(id) => Ok(Self::Request { id, method, params }),
                    Some(_) => Err(shape()),
                }
            }
            (None, Some(id)) => {
                let reply = match error {
                    Some(error) => Err(RpcError::read(error)),
                    None => Ok(result),
                };
                Ok(Self::Response { id, reply })
            }
            (None, None) => Err(shape()),
        }
    }
}

fn is_id(id: &RawValue) -> bool {
    id.get().starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
}

/// Reads a raw value as a typed one, or not at all.
pub(super) fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

impl RpcError {
    /// Agents put what matters in `message`, in `data`, or in neither.
    fn read(raw: &RawValue) -> Self {
        let value: serde_json::Value = read(raw).unwrap_or_default();
        let text = |value: &serde_json::Value| match value {
            serde_json::Value::Null => None,
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let message = match (value.get("message").and_then(text), value.get("data").and_then(text)) {
            (Some(message), Some(data)) => format!("{message}: {data}"),
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) => raw.get().to_owned(),
        };
        Self { code: value.get("code").and_then(serde_json::Value::as_i64), message }
    }
}

/// `id` is encoded already.
pub(super) fn request(id: &str, method: &str, params: &impl Serialize) -> Bytes {
    line(&format!("\"id\":{id},\"method\":\"{method}\",\"params\":"), params)
}

pub(super) fn notification(method: &str, params: &impl Serialize) -> Bytes {
    line(&format!("\"method\":\"{method}\",\"params\":"), params)
}

pub(super) fn result(id: &RawValue, result: &impl Serialize) -> Bytes {
    line(&format!("\"id\":{},\"result\":", id.get()), result)
}

pub(super) fn error(id: &RawValue, code: i32, message: &str) -> Bytes {
    #[derive(Serialize)]
    struct Error<'a> {
        code: i32,
        message: &'a str,
    }
    line(&format!("\"id\":{},\"error\":", id.get()), &Error { code, message })
}

fn line(head: &str, body: &impl Serialize) -> Bytes {
    let mut line = Vec::with_capacity(256);
    line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",");
    line.extend_from_slice(head.as_bytes());
    let begin = line.len();
    // Strings, numbers and maps of strings go in: none of them can fail. If one did, null keeps the line JSON.
    if serde_json::to_writer(&mut line, body).is_err() {
        line.truncate(begin);
        line.extend_from_slice(b"null");
    }
    line.extend_from_slice(b"}\n");
    Bytes::from(line)
}
