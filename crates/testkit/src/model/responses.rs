//! OpenAI's `POST /v1/responses`.

use super::{Answer, Asked, Dialect, Frames, Part, Role, Tool, event, text_of};
use serde_json::{Value, json};

pub(super) fn read(body: &Value) -> Asked {
    let mut parts = vec![Part { role: Role::System, text: text_of(&body["instructions"]) }];
    let input = match &body["input"] {
        Value::Array(items) => items.clone(),
        text => vec![json!({"type": "message", "role": "user", "content": text})],
    };
    for item in &input {
        let role = match (item["type"].as_str(), item["role"].as_str()) {
            (Some("message") | None, Some("system" | "developer")) => Role::System,
            (Some("message") | None, Some("assistant")) => Role::Assistant,
            (Some("message") | None, _) => Role::User,
            (Some("function_call_output" | "local_shell_call_output" | "custom_tool_call_output"), _) => {
                Role::Tool
            }
            (Some(_), _) => continue,
        };
        let text = text_of(if role == Role::Tool { &item["output"] } else { &item["content"] });
        // What the agent puts around its environment is not what its user said.
        if role == Role::User && text.trim_start().starts_with('<') {
            continue;
        }
        parts.push(Part { role, text });
    }
    let tools = body["tools"].as_array().into_iter().flatten().filter(|tool| tool["type"] == "function");
    Asked {
        dialect: Dialect::Responses,
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        parts,
        schema: None,
        tools: tools
            .map(|tool| Tool {
                name: tool["name"].as_str().unwrap_or_default().to_owned(),
                schema: tool["parameters"].clone(),
            })
            .collect(),
        streamed: body["stream"] == true,
    }
}

fn item(answer: &Answer, status: &str) -> Value {
    match answer {
        Answer::Text(text) | Answer::Hold(text) => json!({
            "type": "message", "id": format!("msg_{}", super::script_id()), "role": "assistant", "status": status,
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }),
        Answer::Call { tool, arguments } => {
            let id = super::script_id();
            json!({
                "type": "function_call", "id": format!("fc_{id}"), "call_id": format!("call_{id}"), "status": status,
                "name": tool, "arguments": arguments.to_string(),
            })
        }
    }
}

fn response(id: u64, output: &Value, status: &str) -> Value {
    json!({
        "id": format!("resp_{id}"), "object": "response", "created_at": 1, "model": "scripted", "status": status,
        "output": output,
        "usage": {
            "input_tokens": 11, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 16,
        },
    })
}

pub(super) fn whole(answer: &Answer) -> Value {
    response(super::script_id(), &json!([item(answer, "completed")]), "completed")
}

pub(super) fn frames(answer: &Answer) -> Frames {
    let done = item(answer, "completed");
    let mut begun = done.clone();
    begun["status"] = json!("in_progress");
    let id = super::script_id();
    let mut frames = Frames {
        now: vec![
            event(&json!({"type": "response.created", "response": response(id, &json!([]), "in_progress")})),
            event(&json!({"type": "response.output_item.added", "output_index": 0, "item": begun})),
        ],
        later: vec![],
    };
    frames.now.push(event(&match answer {
        Answer::Text(text) | Answer::Hold(text) => json!({
            "type": "response.output_text.delta", "item_id": done["id"], "output_index": 0,
            "content_index": 0, "delta": text,
        }),
        Answer::Call { arguments, .. } => json!({
            "type": "response.function_call_arguments.delta", "item_id": done["id"], "output_index": 0,
            "delta": arguments.to_string(),
        }),
    }));
    let end = [
        event(&json!({"type": "response.output_item.done", "output_index": 0, "item": done})),
        event(&json!({"type": "response.completed", "response": response(id, &json!([done]), "completed")})),
    ];
    frames.end(answer, end);
    frames
}
