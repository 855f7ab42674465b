//! What the code checks and the derived schemas do not say: names of variants that come from a macro, patterns,
//! lengths, "one of the two". Lengths are in bytes in the code and in characters in a schema; for text beyond
//! ASCII the code is the stricter one.

use crate::rest::table::NAME_PATTERN;
use protocol::{Code, PlaceKind, Scope, SessionKind, Status, limits};
use serde_json::{Value, json};

pub(super) fn schemas(schemas: &mut Value) {
    for name in ["AgentName", "Tenant"] {
        schemas[name] = json!({ "type": "string", "pattern": NAME_PATTERN });
    }
    words(schemas, "Code", Code::ALL.iter().map(|code| code.as_str()));
    words(schemas, "Status", Status::ALL.iter().map(|status| status.as_str()));
    words(schemas, "Scope", Scope::ALL.iter().map(|scope| scope.as_str()));
    words(schemas, "SessionKind", SessionKind::ALL.iter().map(|kind| kind.as_str()));
    words(schemas, "PlaceKind", PlaceKind::ALL.iter().map(|kind| kind.as_str()));
    schemas["ContentBlock"] = content_block();
    schemas["Network"] = network();
    for within in ["HostRule", "NetworkWord"] {
        if let Some(schemas) = schemas.as_object_mut() {
            schemas.remove(within);
        }
    }
    schemas["McpServer"] = mcp_server();
    mcp_servers(schemas);
    schemas["AnswerPermission"]["required"] = json!(["optionId"]);
    bound_fields(schemas);
}

fn words<'a>(schemas: &mut Value, name: &str, words: impl Iterator<Item = &'a str>) {
    schemas[name]["enum"] = words.collect();
}

/// The derived name of a map's alias is the map's.
fn mcp_servers(schemas: &mut Value) {
    if let Some(schemas) = schemas.as_object_mut() {
        schemas.remove("BTreeMap");
    }
    schemas["McpServers"] = json!({
        "type": "object",
        "maxProperties": limits::MCP_SERVERS,
        "propertyNames": { "minLength": 1, "maxLength": limits::LABEL_BYTES },
        "additionalProperties": { "$ref": "#/components/schemas/McpServer" },
    });
    schemas["CreateSession"]["properties"]["mcpServers"] = json!({
        "description": "Merged over the agent's `.mcp.json`; an entry of the same name wins.",
        "oneOf": [{ "$ref": "#/components/schemas/McpServers" }, { "type": "null" }],
    });
}

fn network() -> Value {
    // The port is in the pattern as far as a pattern can say it.
    let host = "^(\\*\\.)?[A-Za-z0-9_-]{1,63}(\\.[A-Za-z0-9_-]{1,63}){0,3}(:[1-9][0-9]{0,3})?$";
    json!({
        "description": "What a sandbox may connect to. Each host is a name, `name:port` or `*.domain`.",
        "oneOf": [
            { "type": "string", "enum": ["none", "full"] },
            { "type": "array", "items": { "type": "string", "pattern": host } },
        ],
    })
}

fn content_block() -> Value {
    let text = || json!({ "type": "string" });
    let block = |kind: &str, required: &[&str], properties: Value| {
        let mut properties = properties;
        properties["type"] = json!({ "type": "string", "enum": [kind] });
        let required: Vec<&str> = [&["type"], required].concat();
        json!({ "type": "object", "required": required, "properties": properties })
    };
    json!({
        "description": "One block, named and spelt as in the Agent Client Protocol.",
        "oneOf": [
            block("text", &["text"], json!({ "text": text() })),
            block("image", &["data", "mimeType"], json!({
                "data": text(), "mimeType": text(), "uri": { "type": ["string", "null"] },
            })),
            block("audio", &["data", "mimeType"], json!({ "data": text(), "mimeType": text() })),
            block("resource_link", &["uri", "name"], json!({
                "uri": text(), "name": text(), "mimeType": { "type": ["string", "null"] },
            })),
            block("resource", &["resource"], json!({ "resource": { "type": "object" } })),
        ],
    })
}

fn mcp_server() -> Value {
    let strings = || json!({ "type": "object", "additionalProperties": { "type": "string" } });
    json!({
        "description": "A URL, or a command to start. Exactly one of the two.",
        "oneOf": [
            {
                "type": "object",
                "required": ["url"],
                "additionalProperties": false,
                "properties": {
                    "type": { "type": ["string", "null"] },
                    "url": { "type": "string", "pattern": "^https?://" },
                    "headers": strings(),
                },
            },
            {
                "type": "object",
                "required": ["command"],
                "additionalProperties": false,
                "properties": {
                    "type": { "type": ["string", "null"] },
                    "command": { "type": "string", "minLength": 1 },
                    "args": { "type": "array", "items": { "type": "string" } },
                    "env": environment(),
                },
            },
        ],
    })
}

fn environment() -> Value {
    json!({
        "type": "object",
        "maxProperties": limits::ENV_ENTRIES,
        "propertyNames": { "pattern": "^[^=\\u0000]+$" },
        "additionalProperties": { "type": "string", "pattern": "^[^\\u0000]*$" },
    })
}

fn bound_fields(schemas: &mut Value) {
    let setting = json!({ "minLength": 1, "maxLength": limits::SETTING_BYTES });
    let name = json!({
        "minLength": 1, "maxLength": limits::LABEL_BYTES, "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
    });
    let label = json!({ "maxLength": limits::LABEL_BYTES });
    let env = environment();
    for (schema, field, bounds) in [
        ("CreateSession", "model", setting.clone()),
        ("CreateSession", "name", name.clone()),
        ("CreateSession", "systemPrompt", json!({ "maxLength": limits::INSTRUCTIONS_BYTES })),
        ("CreateSession", "extraEnv", env.clone()),
        ("SendMessage", "id", json!({ "minLength": 1, "maxLength": limits::CLIENT_ID_BYTES })),
        ("SendMessage", "model", setting.clone()),
        ("SendMessage", "maxTurns", json!({ "maximum": u32::MAX })),
        ("SendMessage", "maxBudgetUsd", json!({ "minimum": 0 })),
        ("Configure", "model", setting.clone()),
        ("Configure", "mode", setting.clone()),
        ("Configure", "thoughtLevel", setting),
        ("Configure", "name", name),
        ("CreateKey", "label", label.clone()),
        ("CreateCredential", "label", label),
        ("CreateCredential", "type", json!({ "minLength": 1, "maxLength": limits::NAME_BYTES })),
        ("CreateCredential", "key", json!({ "minLength": 1 })),
        ("CreateCredential", "env", env),
    ] {
        let property = schemas.pointer_mut(&format!("/{schema}/properties/{field}"));
        if let (Some(Value::Object(property)), Value::Object(bounds)) = (property, bounds) {
            let nullable = property.get("type").is_some_and(|kind| kind.is_array());
            property.extend(bounds);
            if nullable && property["type"] == "object" {
                property.insert("type".to_owned(), json!(["object", "null"]));
            }
        }
    }
}
