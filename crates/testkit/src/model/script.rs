//! What the model answers: the last line of the last user text that begins with one of these words decides.
//!
//! | line | answer |
//! |---|---|
//! | `say: TEXT` | the text |
//! | `run: COMMAND` | a call of the shell tool that the request offers; once it gave something back, `ran: ` and that |
//! | `tool: NAME JSON` | a call of that tool, then as above |
//! | `hold: TEXT` | the text, and nothing more until the test lets it go on |
//! | `recall: WORD` | whether the context before holds the word; a transcript that the prompt points at is read first |
//!
//! Anything else is answered `ok`, and with JSON of the shape asked for where there is one. Side requests that agents make with the user's text and without tools (for
//! a title, say) get the text of a `say`, and `ok` otherwise.

use super::{Asked, Role, Tool};
use serde_json::{Map, Value, json};

/// What goes back, whatever the wire form.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Text(String),
    Call {
        tool: String,
        arguments: Value,
    },
    /// Text, and its end only when it is let go on.
    Hold(String),
}

/// Where a prompt points at a transcript.
const THREADS: &str = ".outlast/threads/";

pub(super) enum Word<'a> {
    Say(&'a str),
    Run(&'a str),
    Tool(&'a str),
    Hold(&'a str),
    Recall(&'a str),
}

pub(super) fn answer(asked: &Asked) -> Answer {
    if let Some(schema) = &asked.schema {
        return Answer::Text(filler(schema).to_string());
    }
    let main = !asked.tools.is_empty();
    match word(asked.last_user()) {
        Some(Word::Say(text)) => Answer::Text(text.to_owned()),
        Some(Word::Run(command)) if main => or_result(asked, || shell(&asked.tools, command)),
        Some(Word::Tool(call)) if main => or_result(asked, || named(call)),
        Some(Word::Hold(text)) if main => Answer::Hold(text.to_owned()),
        Some(Word::Recall(word)) if main => recall(asked, word),
        Some(Word::Run(_) | Word::Tool(_) | Word::Hold(_) | Word::Recall(_)) | None => {
            Answer::Text("ok".to_owned())
        }
    }
}

/// The word that a text holds last.
pub(super) fn word(text: &str) -> Option<Word<'_>> {
    text.lines().rev().find_map(|line| {
        let line = line.trim().trim_matches('"');
        let after = |word: &str| line.strip_prefix(word).map(str::trim);
        None.or_else(|| after("say:").map(Word::Say))
            .or_else(|| after("run:").map(Word::Run))
            .or_else(|| after("tool:").map(Word::Tool))
            .or_else(|| after("hold:").map(Word::Hold))
            .or_else(|| after("recall:").map(Word::Recall))
    })
}

/// Something of the shape that was asked for.
fn filler(schema: &Value) -> Value {
    if let Some(first) = schema.pointer("/enum/0") {
        return first.clone();
    }
    match schema["type"].as_str().map(str::to_lowercase).as_deref() {
        Some("object") => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            Value::Object(fields.map(|(name, schema)| (name.clone(), filler(schema))).collect())
        }
        Some("array") => json!([]),
        Some("boolean") => json!(false),
        Some("integer" | "number") => json!(1),
        _ => json!("scripted"),
    }
}

/// A call, unless it was made already.
fn or_result(asked: &Asked, call: impl FnOnce() -> Option<Answer>) -> Answer {
    match asked.results().last() {
        Some(result) => Answer::Text(format!("ran: {result}")),
        None => call().unwrap_or_else(|| Answer::Text("no such tool".to_owned())),
    }
}

fn named(call: &str) -> Option<Answer> {
    let (tool, arguments) = call.split_once(' ').unwrap_or((call, "{}"));
    Some(Answer::Call { tool: tool.to_owned(), arguments: serde_json::from_str(arguments).ok()? })
}

/// Finds the tool that runs commands by what it takes, not by whose it is.
fn shell(tools: &[Tool], command: &str) -> Option<Answer> {
    let runs = |tool: &&Tool| {
        let name = tool.name.to_lowercase();
        ["bash", "shell", "exec", "terminal"].iter().any(|word| name.contains(word))
    };
    let takes = |tool: &Tool| {
        ["command", "cmd"]
            .into_iter()
            .find(|name| tool.schema.pointer(&format!("/properties/{name}")).is_some())
    };
    let (tool, field) = tools.iter().filter(runs).find_map(|tool| Some((tool, takes(tool)?)))?;
    let of = |name: &str, what: &str| {
        tool.schema.pointer(&format!("/properties/{name}/{what}")).and_then(Value::as_str)
    };
    let value = match of(field, "type") {
        Some("array") => json!(["bash", "-lc", command]),
        _ => json!(command),
    };
    let mut arguments = Map::from_iter([(field.to_owned(), value)]);
    let required = tool.schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        let filler = match of(name, "type") {
            Some("boolean") => json!(false),
            Some("integer" | "number") => json!(1000),
            Some("array") => json!([]),
            _ => json!("scripted"),
        };
        arguments.entry(name).or_insert(filler);
    }
    Some(Answer::Call { tool: tool.name.clone(), arguments: Value::Object(arguments) })
}

/// The word must come from before: from the context, or from a transcript that the prompt points at.
fn recall(asked: &Asked, word: &str) -> Answer {
    let last = asked.prompt_at().unwrap_or(0);
    let before = asked.parts[..last].iter().any(|part| part.role != Role::System && part.text.contains(word));
    if before || asked.results().any(|result| result.contains(word)) {
        return Answer::Text(format!("I recall {word}"));
    }
    let pointer = asked.last_user().split_whitespace().find(|part| part.contains(THREADS));
    if let Some(pointer) = pointer
        && asked.results().next().is_none()
    {
        let path = pointer.trim_matches(|sign: char| "`'\"().,:<>".contains(sign));
        if let Some(call) = shell(&asked.tools, &format!("cat {path}")) {
            return call;
        }
    }
    Answer::Text(format!("I do not recall {word}"))
}
