//! The schemas of what the tools take and give, as callers see them. [`super::arguments`] enforces the first;
//! a test holds the two together.

use super::arguments::{MAX_SECS, signal_names};
use protocol::limits;
use rmcp::model::JsonObject;
use serde_json::{Value, json};
use std::sync::Arc;

/// An object of these properties and no others.
fn closed(properties: &Value, required: &[&str]) -> Arc<JsonObject> {
    object(json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    }))
}

/// An object of at least these properties: later versions may say more.
fn open(properties: &Value, required: &[&str]) -> Arc<JsonObject> {
    object(json!({ "type": "object", "properties": properties, "required": required }))
}

fn object(value: Value) -> Arc<JsonObject> {
    match value {
        Value::Object(fields) => Arc::new(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Arc::default()
        }
    }
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn texts(description: &str) -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "description": description })
}

fn count(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": description })
}

fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

fn secs(from: u64, description: &str) -> Value {
    json!({ "type": "integer", "minimum": from, "maximum": MAX_SECS, "description": description })
}

fn session_id() -> Value {
    text("From session_create or session_list, such as 1_local")
}

fn command_id() -> Value {
    count("From a session_exec that says `running`, or `running` in session_list")
}

fn budget(description: &str) -> Value {
    json!({
        "type": "object",
        "description": description,
        "additionalProperties": false,
        "properties": {
            "grep": {
                "type": "object",
                "description": "Only lines that match",
                "additionalProperties": false,
                "required": ["pattern"],
                "properties": {
                    "pattern": text("A regular expression"),
                    "context": count("Lines around each match"),
                },
            },
            "keep": {
                "type": "object",
                "description": "Which of those lines",
                "additionalProperties": false,
                "required": ["mode"],
                "properties": {
                    "mode": { "type": "string", "enum": ["all", "head", "tail", "head_tail"] },
                    "n": count("Lines, for head and tail"),
                    "head": count("First lines, for head_tail"),
                    "tail": count("Last lines, for head_tail"),
                },
            },
            "max_chars": count("Characters of each stream; 100000 without a budget"),
        },
    })
}

pub(super) fn nothing() -> Arc<JsonObject> {
    closed(&json!({}), &[])
}

pub(super) fn one_session() -> Arc<JsonObject> {
    closed(&json!({ "session_id": session_id() }), &["session_id"])
}

pub(super) fn create() -> Arc<JsonObject> {
    closed(
        &json!({
            "transport": { "type": "string", "enum": ["local", "ssh", "docker"], "description": "Where the shell runs" },
            "place": {
                "type": "string",
                "enum": ["sandbox", "project", "host"],
                "description": "local: what it sees of this machine. sandbox: private files only; project: reads the machine but homes, writes the workspace (or cwd) and a private /tmp only; host: all that its user may do. Only narrower than the default",
            },
            "host": text("ssh: a name, an address or an alias of ssh_config"),
            "user": text("ssh, docker: the user"),
            "port": { "type": "integer", "minimum": 1, "maximum": 65535, "description": "ssh: the port" },
            "password": text("ssh: the password; never recorded"),
            "key_path": text("ssh: a private key file of the server's machine"),
            "fingerprint": text("ssh: the host key must have this fingerprint, SHA256:…"),
            "container": text("docker: a running container, by name or id"),
            "shell": text("docker: the shell to run"),
            "cwd": text("The first working directory"),
            "env": {
                "type": "object",
                "additionalProperties": { "type": "string" },
                "description": "Environment variables to set",
            },
            "allow": texts("Only commands that match one of these rules are run"),
            "deny": texts("Commands that match one of these rules are refused"),
            "output_budget": budget("How much of each output is shown, unless a call says otherwise"),
            "workspace": text("The folder that checkpoints are about; the first working directory without it"),
            "auto_snapshot": flag("Take a checkpoint before each command that may change files"),
            "paths": texts("Only these paths of the workspace are in checkpoints"),
            "checkpoint_ignores": texts("Patterns that checkpoints leave out"),
        }),
        &["transport"],
    )
}

pub(super) fn created() -> Arc<JsonObject> {
    open(
        &json!({
            "session_id": text("Names the session in every other call"),
            "place": { "type": "string", "enum": ["sandbox", "project", "host", "ssh", "docker"] },
            "cwd": text("Its working directory"),
            "lesser": texts("What this shell cannot promise"),
        }),
        &["session_id", "place", "cwd"],
    )
}

pub(super) fn exec() -> Arc<JsonObject> {
    closed(
        &json!({
            "session_id": session_id(),
            "command": text("Shell code: one command or a whole script"),
            "timeout_secs": secs(1, "Stops the command after this; 120 without it"),
            "yield_secs": secs(0, "Answer after this with what there is; the command goes on, session_poll reads on"),
            "budget": budget("How much of the output is shown; replaces the session's"),
            "stdin": {
                "type": "string",
                "enum": ["empty", "open"],
                "description": "open: session_write can write to it while it runs. empty, the default: its input is at its end",
            },
        }),
        &["session_id", "command"],
    )
}

pub(super) fn exec_result() -> Arc<JsonObject> {
    let stream = json!({
        "type": "object",
        "required": ["mode", "lines_total", "lines_kept"],
        "properties": {
            "mode": { "type": "string", "enum": ["all", "head", "tail", "head_tail"] },
            "lines_total": count("Lines that were written"),
            "lines_kept": count("Lines that are shown"),
        },
    });
    open(
        &json!({
            "stdout": text("Without its last newline"),
            "stderr": text("Without its last newline"),
            "exit_code": { "anyOf": [{ "type": "integer" }, { "type": "null" }], "description": "null while it runs, and where it cannot be known" },
            "duration_ms": count("Milliseconds"),
            "cwd": text("The shell's working directory afterwards"),
            "truncated": flag("Something was left out; budget says how much"),
            "command_id": count("Names the command in session_poll, session_write and session_signal"),
            "command": text("What was run, without its secrets"),
            "timed_out": flag("It was stopped because its time was over"),
            "cancelled": flag("It was stopped because a caller cancelled it"),
            "running": flag("It goes on; session_poll reads on"),
            "budget": {
                "type": "object",
                "required": ["stdout", "stderr"],
                "properties": { "stdout": stream, "stderr": stream },
            },
            "escaped": flag("There were bytes that are no text; they are spelt"),
            "left_running": {
                "type": "array",
                "description": "Processes that it left in the background",
                "items": {
                    "type": "object",
                    "required": ["pid", "name"],
                    "properties": { "pid": count("Process id"), "name": text("Program") },
                },
            },
            "whole": {
                "type": "array",
                "description": "Streams of which something was left out and that session_output reads whole",
                "items": { "type": "string", "enum": ["stdout", "stderr"] },
            },
            "hint": text("What to do next"),
        }),
        &[
            "stdout",
            "stderr",
            "exit_code",
            "duration_ms",
            "cwd",
            "truncated",
            "command_id",
            "command",
            "timed_out",
            "cancelled",
            "running",
            "budget",
        ],
    )
}

pub(super) fn write() -> Arc<JsonObject> {
    closed(
        &json!({
            "session_id": session_id(),
            "command_id": command_id(),
            "text": text("Written as it is; end a line with a newline"),
            "eof": flag("Close its input afterwards"),
        }),
        &["session_id", "command_id", "text"],
    )
}

pub(super) fn written() -> Arc<JsonObject> {
    open(&json!({ "written": count("Bytes") }), &["written"])
}

pub(super) fn poll() -> Arc<JsonObject> {
    closed(
        &json!({
            "session_id": session_id(),
            "command_id": command_id(),
            "wait_secs": secs(0, "Wait this long for its end; 0 without it"),
            "budget": budget("How much of the output is shown"),
        }),
        &["session_id", "command_id"],
    )
}

pub(super) fn output() -> Arc<JsonObject> {
    closed(
        &json!({
            "session_id": session_id(),
            "command_id": command_id(),
            "stream": { "type": "string", "enum": ["stdout", "stderr"] },
            "offset": { "type": "integer", "minimum": 0, "description": "In bytes; 0 without it" },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": limits::OUTPUT_PIECE_MOST,
                "description": "Bytes at most; 65536 without it",
            },
        }),
        &["session_id", "command_id", "stream"],
    )
}

pub(super) fn output_piece() -> Arc<JsonObject> {
    open(
        &json!({
            "text": text("The piece, in whole characters"),
            "offset": count("Where it begins"),
            "next_offset": count("Where to read on; not there at the end"),
            "bytes": count("Of all that is kept"),
            "complete": flag("false: not all that was written is kept"),
        }),
        &["text", "offset", "bytes", "complete"],
    )
}

pub(super) fn signal() -> Arc<JsonObject> {
    closed(
        &json!({
            "session_id": session_id(),
            "command_id": command_id(),
            "signal": { "type": "string", "enum": signal_names(), "description": "Sent to all that the command started" },
        }),
        &["session_id", "command_id", "signal"],
    )
}

pub(super) fn signalled() -> Arc<JsonObject> {
    open(&json!({ "signalled": flag("false: it had ended") }), &["signalled"])
}

pub(super) fn destroyed() -> Arc<JsonObject> {
    open(&json!({ "destroyed": flag("false: there is none of that name") }), &["destroyed"])
}

pub(super) fn sessions() -> Arc<JsonObject> {
    open(
        &json!({
            "sessions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["session_id", "transport", "idle_secs"],
                    "properties": {
                        "session_id": text("Its name in every call"),
                        "id": text("Its id at the other doors"),
                        "transport": { "type": "string", "enum": ["local", "ssh", "docker"] },
                        "place": text("Where it is"),
                        "status": text("active, paused, …"),
                        "idle_secs": count("Seconds since its last command"),
                        "created_at": text("When it was opened"),
                        "cwd": text("Its working directory"),
                        "running": count("The command that runs"),
                    },
                },
            },
        }),
        &["sessions"],
    )
}

pub(super) fn take_checkpoint() -> Arc<JsonObject> {
    closed(&json!({ "session_id": session_id(), "label": text("For people") }), &["session_id"])
}

pub(super) fn checkpoint() -> Arc<JsonObject> {
    open(&json!({ "checkpoint_id": text("For session_restore") }), &["checkpoint_id"])
}

pub(super) fn checkpoints() -> Arc<JsonObject> {
    open(
        &json!({
            "checkpoints": {
                "type": "array",
                "description": "Newest first",
                "items": {
                    "type": "object",
                    "required": ["id", "created"],
                    "properties": { "id": text("For session_restore"), "label": text("For people"), "created": text("When") },
                },
            },
        }),
        &["checkpoints"],
    )
}

pub(super) fn restore() -> Arc<JsonObject> {
    closed(
        &json!({
            "session_id": session_id(),
            "checkpoint_id": text("From session_checkpoints; without it, the newest"),
        }),
        &["session_id"],
    )
}

pub(super) fn restored() -> Arc<JsonObject> {
    open(
        &json!({
            "restored_to": text("The checkpoint"),
            "files_changed": count("Files"),
            "undo": text("The checkpoint that was taken before; restoring it undoes this"),
        }),
        &["restored_to", "files_changed"],
    )
}
