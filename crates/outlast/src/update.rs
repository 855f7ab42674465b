//! What an agent's update says, read leniently: agents differ, and a terminal can leave out what it does not
//! understand. The journal keeps the update as it came.

use protocol::Raw;
use serde_json::Value;

/// ACP's `session/update`, as far as a terminal shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Update {
    Says(String),
    Thinks(String),
    /// A prompt's echo, as some agents send it.
    User(String),
    Tool(Tool),
    Plan {
        done: usize,
        entries: Vec<String>,
    },
    Mode(String),
    /// Something else, by its name.
    Other(String),
}

/// A tool call, new or changed. Absent fields are unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) id: String,
    pub(crate) title: Option<String>,
    pub(crate) status: Option<String>,
    /// The text among its content, if any.
    pub(crate) output: Option<String>,
}

impl Update {
    pub(crate) fn read(raw: &Raw) -> Self {
        let Ok(value) = raw.read::<Value>() else { return Self::Other("unreadable".to_owned()) };
        let kind = text(&value, "sessionUpdate").unwrap_or_default();
        match kind.as_str() {
            "agent_message_chunk" => Self::Says(block_text(&value["content"])),
            "agent_thought_chunk" => Self::Thinks(block_text(&value["content"])),
            "user_message_chunk" => Self::User(block_text(&value["content"])),
            "tool_call" | "tool_call_update" => Self::Tool(Tool::read(&value)),
            "plan" => Self::plan(&value),
            "current_mode_update" => Self::Mode(text(&value, "currentModeId").unwrap_or_default()),
            _ => Self::Other(if kind.is_empty() { "unnamed".to_owned() } else { kind }),
        }
    }

    fn plan(value: &Value) -> Self {
        let entries = value["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self::Plan {
            done: entries.iter().filter(|entry| entry["status"] == "completed").count(),
            entries: entries.iter().filter_map(|entry| text(entry, "content")).collect(),
        }
    }
}

impl Tool {
    /// A tool call as updates and permission requests carry it.
    pub(crate) fn read(value: &Value) -> Self {
        let blocks = value["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let output: Vec<_> =
            blocks.iter().map(|item| block_text(&item["content"])).filter(|text| !text.is_empty()).collect();
        Self {
            id: text(value, "toolCallId").unwrap_or_default(),
            title: text(value, "title").filter(|title| !title.is_empty()),
            status: text(value, "status"),
            output: (!output.is_empty()).then(|| output.join("\n")),
        }
    }

    pub(crate) fn of_permission(raw: &Raw) -> Self {
        Self::read(&raw.read().unwrap_or(Value::Null))
    }

    /// What it is called, as well as that is known.
    pub(crate) fn name(&self) -> &str {
        self.title.as_deref().unwrap_or(if self.id.is_empty() { "a tool" } else { &self.id })
    }
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// The text of a content block, or a word for what is none.
fn block_text(block: &Value) -> String {
    match block.get("type").and_then(Value::as_str) {
        Some("text") => text(block, "text").unwrap_or_default(),
        Some("image") => "[image]".to_owned(),
        Some("audio") => "[audio]".to_owned(),
        Some("resource_link") => text(block, "uri").unwrap_or_default(),
        Some("resource") => text(&block["resource"], "text").unwrap_or_else(|| "[resource]".to_owned()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Update {
        Update::read(&Raw::parse(text.to_owned()).unwrap())
    }

    #[test]
    fn updates_are_read_as_agents_write_them() {
        for (text, want) in [
            (
                r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi"}}"#,
                Update::Says("hi".into()),
            ),
            (
                r#"{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hm"}}"#,
                Update::Thinks("hm".into()),
            ),
            (
                r#"{"sessionUpdate":"tool_call","toolCallId":"t","title":"ls","status":"pending"}"#,
                Update::Tool(Tool {
                    id: "t".into(),
                    title: Some("ls".into()),
                    status: Some("pending".into()),
                    output: None,
                }),
            ),
            (
                r#"{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed","content":[{"type":"content","content":{"type":"text","text":"out"}},{"type":"diff","path":"x"}]}"#,
                Update::Tool(Tool {
                    id: "t".into(),
                    title: None,
                    status: Some("completed".into()),
                    output: Some("out".into()),
                }),
            ),
            (
                r#"{"sessionUpdate":"plan","entries":[{"content":"a","status":"completed"},{"content":"b","status":"pending"}]}"#,
                Update::Plan { done: 1, entries: vec!["a".into(), "b".into()] },
            ),
            (
                r#"{"sessionUpdate":"current_mode_update","currentModeId":"plan"}"#,
                Update::Mode("plan".into()),
            ),
            (r#"{"sessionUpdate":"usage_update","used":1}"#, Update::Other("usage_update".into())),
            (r#"{"sessionUpdate":7}"#, Update::Other("unnamed".into())),
            (r#"[1]"#, Update::Other("unnamed".into())),
            (r#"{"sessionUpdate":"agent_message_chunk"}"#, Update::Says(String::new())),
        ] {
            assert_eq!(read(text), want, "{text}");
        }
    }
}
