//! The OpenAPI 3.1 document, made from the table of calls and from the types' own schemas.
//!
//! What the types' derived schemas cannot say is added in [`refine`].

mod refine;

use crate::{
    fault,
    rest::table::{CALLS, Call, Gives, Needs, Param, Place, Takes},
};
use protocol::{Code, ErrorBody};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// Schemas by name, as they are met.
pub(crate) type Schemas = BTreeMap<String, RefOr<Schema>>;
/// Registers a type and everything in it, and returns its name.
pub(crate) type SchemaOf = fn(&mut Schemas) -> String;

pub(crate) fn schema<T: ToSchema + PartialSchema>(schemas: &mut Schemas) -> String {
    let name = T::name().into_owned();
    let mut inner = Vec::new();
    T::schemas(&mut inner);
    schemas.extend(inner);
    schemas.insert(name.clone(), T::schema());
    name
}

/// The whole document.
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    schema::<ErrorBody>(&mut schemas);
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for call in CALLS {
        let method = call.method.as_str().to_ascii_lowercase();
        paths.entry(call.path).or_default().insert(method, operation(call, &mut schemas));
    }
    let mut schemas = serde_json::to_value(schemas).unwrap_or_default();
    refine::schemas(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Outlast",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable, resumable, replayable sessions with AI agents. Every error has the shape of \
                `ErrorBody`; every answer carries `x-request-id`, and takes one from the request.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "key": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key. Its scope is read, write or admin; each includes the ones before it.",
                },
            },
        },
    })
}

fn operation(call: &Call, schemas: &mut Schemas) -> Value {
    let scope = match call.needs {
        Needs::Nothing => "Needs no key.".to_owned(),
        Needs::Key(scope) => format!("Needs a key with the scope {scope}."),
    };
    let detail = if call.detail.is_empty() { scope } else { format!("{}\n\n{scope}", call.detail) };
    let mut operation = json!({
        "operationId": operation_id(call),
        "tags": [call.topic],
        "summary": call.summary,
        "description": detail,
        "responses": responses(call, schemas),
    });
    if call.needs == Needs::Nothing {
        operation["security"] = json!([]);
    }
    if !call.params.is_empty() {
        operation["parameters"] = call.params.iter().map(parameter).collect();
    }
    match &call.takes {
        Takes::Nothing => {}
        Takes::Json(of) => {
            let content = json!({ "application/json": { "schema": reference(&of(schemas)) } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        Takes::Bytes(kinds) => {
            let bytes = || json!({ "schema": { "type": "string", "format": "binary" } });
            let content: Map<String, Value> =
                kinds.iter().map(|kind| ((*kind).to_owned(), bytes())).collect();
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
    }
    operation
}

/// `post /api/sessions/{id}/pause` is `post_api_sessions_id_pause`.
fn operation_id(call: &Call) -> String {
    let path = call.path.replace(['/', '-', '.'], "_").replace(['{', '}'], "");
    format!("{}{path}", call.method.as_str().to_ascii_lowercase())
}

fn parameter(param: &Param) -> Value {
    let place = match param.place {
        Place::Path => "path",
        Place::Query | Place::RequiredQuery => "query",
        Place::Header => "header",
    };
    json!({
        "name": param.name,
        "in": place,
        "required": matches!(param.place, Place::Path | Place::RequiredQuery),
        "description": param.text,
        "schema": (param.schema)(),
    })
}

/// What every call can answer besides its own.
fn common_faults(call: &Call) -> Vec<Code> {
    let mut faults =
        vec![Code::InvalidRequest, Code::Forbidden, Code::Internal, Code::TimedOut, Code::ShuttingDown];
    match call.needs {
        Needs::Nothing => {}
        Needs::Key(_) => faults.extend([Code::Unauthorized, Code::RateLimited, Code::Fenced]),
    }
    match call.takes {
        Takes::Nothing => {}
        Takes::Json(_) => faults.extend([Code::PayloadTooLarge, Code::UnsupportedMediaType]),
        Takes::Bytes(_) => {}
    }
    faults
}

fn responses(call: &Call, schemas: &mut Schemas) -> Value {
    let mut responses = Map::new();
    let (statuses, content): (&[u16], _) = match &call.gives {
        Gives::Json(status, of) => (
            std::slice::from_ref(status),
            json!({ "application/json": { "schema": reference(&of(schemas)) } }),
        ),
        Gives::Object => (&[200], json!({ "application/json": { "schema": { "type": "object" } } })),
        // OpenAPI 3.1 has no schema for a stream's events; the description says what they are.
        Gives::Stream => (&[200], json!({ "text/event-stream": {} })),
        Gives::JsonOrStream(of) => (
            &[200],
            json!({
                "application/json": { "schema": reference(&of(schemas)) },
                "text/event-stream": {},
            }),
        ),
        Gives::Text(kind) => {
            let essence = kind.split(';').next().unwrap_or(kind);
            (&[200], json!({ essence: { "schema": { "type": "string" } } }))
        }
        Gives::Bytes(kind, statuses) => {
            (statuses, json!({ *kind: { "schema": { "type": "string", "format": "binary" } } }))
        }
    };
    for status in statuses {
        responses
            .insert(status.to_string(), json!({ "description": call.summary, "content": content.clone() }));
    }

    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in common_faults(call).iter().chain(call.faults) {
        let codes = by_status.entry(fault::status(*code).as_u16()).or_default();
        if !codes.contains(&code.as_str()) {
            codes.push(code.as_str());
        }
    }
    for (status, codes) in by_status {
        let content = json!({ "application/json": { "schema": reference("ErrorBody") } });
        let description = format!("One of the codes: {}", codes.join(", "));
        responses.insert(status.to_string(), json!({ "description": description, "content": content }));
    }
    Value::Object(responses)
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::table::NAME_PATTERN;
    use protocol::limits;

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk(value: &Value, document: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(target)) = fields.get("$ref") {
                        let pointer = target.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{target}");
                    }
                    fields.values().for_each(|inner| walk(inner, document));
                }
                Value::Array(items) => items.iter().for_each(|inner| walk(inner, document)),
                _ => {}
            }
        }
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        walk(&document, &document);
    }

    #[test]
    fn every_bound_found_its_field() {
        let document = document();
        let field = |path: &str| document.pointer(&format!("/components/schemas/{path}")).cloned();
        assert_eq!(field("SendMessage/properties/id/maxLength"), Some(json!(limits::CLIENT_ID_BYTES)));
        assert_eq!(field("Configure/properties/thoughtLevel/minLength"), Some(json!(1)));
        assert_eq!(field("AgentName/pattern"), Some(json!(NAME_PATTERN)));
        assert_eq!(field("AnswerPermission/required"), Some(json!(["optionId"])));
        assert_eq!(field("CreateSession/additionalProperties"), Some(json!(false)));
        assert_eq!(field("Code/enum/0"), Some(json!("invalid_request")));
        assert_eq!(field("Scope/enum"), Some(json!(["read", "write", "admin"])));
        assert_eq!(field("BTreeMap"), None, "the type's alias has a name of its own");
    }

    #[test]
    fn calls_say_how_they_fail() {
        let document = document();
        let statuses = |pointer: &str| -> Vec<String> {
            document.pointer(pointer).unwrap()["responses"].as_object().unwrap().keys().cloned().collect()
        };
        let mut send = statuses("/paths/~1api~1sessions~1{id}~1messages/post");
        send.sort();
        assert_eq!(
            send,
            [
                "200", "400", "401", "403", "404", "409", "410", "413", "415", "429", "500", "503", "504",
                "507"
            ]
        );
        assert!(!statuses("/paths/~1health/get").contains(&"401".to_owned()));
    }
}
