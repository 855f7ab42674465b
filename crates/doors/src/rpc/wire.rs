//! The words on the wire: requests in, results, errors and notifications out.

use crate::fault;
use protocol::{Code, Fault};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json, value::RawValue};

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
/// Everything the server itself refuses; `data.code` says what.
const REFUSED: i32 = -32000;

/// A call that can be answered.
#[derive(Debug)]
pub(super) struct Request {
    /// None for a notification, which is carried out and not answered.
    pub(super) id: Option<Box<RawValue>>,
    pub(super) method: String,
    pub(super) params: Value,
}

/// Reads one message, or says what to answer it with.
pub(super) fn read(text: &str) -> Result<Request, String> {
    #[derive(Deserialize)]
    struct Envelope {
        jsonrpc: Option<String>,
        id: Option<Box<RawValue>>,
        method: Option<String>,
        #[serde(default)]
        params: Value,
    }
    let refuse = |id: Option<&RawValue>, code: i32, message: &str| error(id, code, message, None);
    if text.trim_start().starts_with('[') {
        return Err(refuse(None, INVALID_REQUEST, "batches are not taken; send one call a message"));
    }
    if let Err(problem) = serde_json::from_str::<&RawValue>(text) {
        return Err(refuse(None, PARSE_ERROR, &format!("the message is not JSON: {problem}")));
    }
    let Ok(envelope) = serde_json::from_str::<Envelope>(text) else {
        return Err(refuse(None, INVALID_REQUEST, "the message is not a call"));
    };
    // An id is a string or a number; anything else could not be told from none.
    let id = envelope.id;
    let usable = id.as_ref().is_none_or(|id| {
        id.get().starts_with(|sign: char| sign == '"' || sign == '-' || sign.is_ascii_digit())
    });
    match envelope.method {
        Some(method) if usable && envelope.jsonrpc.as_deref() == Some("2.0") => {
            Ok(Request { id, method, params: envelope.params })
        }
        _ => Err(refuse(
            id.as_deref().filter(|_| usable),
            INVALID_REQUEST,
            "a call has \"jsonrpc\": \"2.0\", a method, and an id that is a string or a number",
        )),
    }
}

pub(super) fn result(id: &RawValue, result: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Reply<'a, T> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        result: &'a T,
    }
    encode(&Reply { jsonrpc: "2.0", id, result })
}

pub(super) fn unknown(id: &RawValue, method: &str) -> String {
    error(Some(id), METHOD_NOT_FOUND, &format!("there is no method {method:?}"), None)
}

/// A refusal with the code and the status that it has at the other doors.
pub(super) fn refusal(id: &RawValue, fault: &Fault) -> String {
    let code = match fault.code {
        Code::InvalidRequest | Code::InvalidId => INVALID_PARAMS,
        _ => REFUSED,
    };
    let data = json!({"code": fault.code, "statusCode": fault::status(fault.code).as_u16()});
    error(Some(id), code, &fault.message, Some(data))
}

fn error(id: Option<&RawValue>, code: i32, message: &str, data: Option<Value>) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        code: i32,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<Value>,
    }
    #[derive(Serialize)]
    struct Reply<'a> {
        jsonrpc: &'static str,
        id: Option<&'a RawValue>,
        error: Body<'a>,
    }
    encode(&Reply { jsonrpc: "2.0", id, error: Body { code, message, data } })
}

pub(super) fn notification(method: &str, params: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Told<'a, T> {
        jsonrpc: &'static str,
        method: &'a str,
        params: &'a T,
    }
    encode(&Told { jsonrpc: "2.0", method, params })
}

fn encode(value: &impl Serialize) -> String {
    // Strings, numbers and what was JSON before: none of it can fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// Params by name, or in the order that a client's own function takes them. `options` among the names is an
/// object whose fields stand for themselves.
pub(super) fn params<T: DeserializeOwned>(params: Value, names: &[&str]) -> Result<T, Fault> {
    let given = match params {
        Value::Null => Map::new(),
        Value::Object(fields) => fields,
        Value::Array(values) if values.len() > names.len() => {
            return Err(Fault::invalid(format!(
                "the call takes {} params: {}",
                names.len(),
                names.join(", ")
            )));
        }
        Value::Array(values) => names.iter().map(|name| (*name).to_owned()).zip(values).collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(Fault::invalid("params must be an object or a list"));
        }
    };
    let mut fields = Map::new();
    for (name, value) in given {
        match (name.as_str(), value) {
            ("options", Value::Null) => {}
            ("options", Value::Object(options)) => fields.extend(options),
            ("options", _) => return Err(Fault::invalid("options must be an object")),
            (_, value) => {
                fields.insert(name, value);
            }
        }
    }
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let path = error.path().to_string();
        Fault::invalid(match path.as_str() {
            "." => format!("the params are not what this call takes: {}", error.inner()),
            path => format!("the param `{path}` is not what this call takes: {}", error.inner()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_call_is_answered_as_such() {
        for (text, code, id) in [
            ("{", PARSE_ERROR, "null"),
            ("[]", INVALID_REQUEST, "null"),
            ("7", INVALID_REQUEST, "null"),
            (r#"{"jsonrpc":"2.0","id":1}"#, INVALID_REQUEST, "1"),
            (r#"{"id":"a","method":"x"}"#, INVALID_REQUEST, "\"a\""),
            (r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, INVALID_REQUEST, "null"),
        ] {
            let answer: Value = serde_json::from_str(&read(text).unwrap_err()).unwrap();
            assert_eq!(
                (answer["error"]["code"].as_i64(), answer["id"].to_string()),
                (Some(code.into()), id.to_owned()),
                "{text}"
            );
        }
        let call = read(r#"{"jsonrpc":"2.0","id":1.50,"method":"m","params":[1]}"#).unwrap();
        assert_eq!((call.method.as_str(), call.id.unwrap().get()), ("m", "1.50"));
        assert!(read(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap().id.is_none());
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Taken {
        a: u8,
        b: Option<String>,
    }

    #[test]
    fn params_are_named_or_in_order() {
        let names = ["a", "options"];
        let taken = |value: Value| params::<Taken>(value, &names);
        let whole = Taken { a: 1, b: Some("x".into()) };
        assert_eq!(taken(json!({"a": 1, "b": "x"})).unwrap(), whole);
        assert_eq!(taken(json!([1, {"b": "x"}])).unwrap(), whole);
        assert_eq!(taken(json!({"a": 1, "options": {"b": "x"}})).unwrap(), whole);
        assert_eq!(taken(json!([1])).unwrap(), Taken { a: 1, b: None });
        for bad in
            [json!([1, {}, 2]), json!({"a": 1, "c": 2}), json!({}), json!("a"), json!([1, 2]), json!(["1"])]
        {
            assert!(taken(bad.clone()).is_err(), "{bad}");
        }
        let fault = taken(json!({"a": "one"})).unwrap_err();
        assert!(fault.message.contains("`a`"), "{fault}");
    }
}
