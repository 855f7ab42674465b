//! Anthropic's `POST /v1/messages`.

use super::{Answer, Asked, Dialect, Frames, Part, Role, Tool, event, text_of};
use serde_json::{Value, json};

pub(super) fn read(body: &Value) -> Asked {
    let mut parts = vec![Part { role: Role::System, text: text_of(&body["system"]) }];
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = match message["role"].as_str() {
            Some("assistant") => Role::Assistant,
            Some("system") => Role::System,
            _ => Role::User,
        };
        let content = match &message["content"] {
            Value::Array(blocks) => blocks.clone(),
            text => vec![json!({"type": "text", "text": text})],
        };
        // Blocks of one message are one part, so that a reminder beside the prompt hides nothing.
        let (results, texts): (Vec<_>, Vec<_>) =
            content.iter().partition(|block| block["type"] == "tool_result");
        parts.extend(results.iter().map(|block| Part { role: Role::Tool, text: text_of(&block["content"]) }));
        let text = texts.iter().map(|block| text_of(block)).collect::<Vec<_>>().join("\n");
        let only_results = !results.is_empty() && role == Role::User;
        if !text.is_empty() && !only_results {
            parts.push(Part { role, text });
        }
    }
    let tools = body["tools"].as_array().into_iter().flatten().map(|tool| Tool {
        name: tool["name"].as_str().unwrap_or_default().to_owned(),
        schema: tool["input_schema"].clone(),
    });
    Asked {
        dialect: Dialect::Anthropic,
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        tools: tools.collect(),
        parts,
        schema: None,
        streamed: body["stream"] == true,
    }
}

fn message(content: &Value, stop: Option<&str>) -> Value {
    json!({
        "id": format!("msg_{}", super::script_id()), "type": "message", "role": "assistant", "model": "scripted",
        "content": content, "stop_reason": stop, "stop_sequence": null,
        "usage": {"input_tokens": 11, "output_tokens": 5},
    })
}

pub(super) fn whole(answer: &Answer) -> Value {
    match answer {
        Answer::Text(text) | Answer::Hold(text) => {
            message(&json!([{"type": "text", "text": text}]), Some("end_turn"))
        }
        Answer::Call { tool, arguments } => message(
            &json!([{"type": "tool_use", "id": format!("toolu_{}", super::script_id()), "name": tool, "input": arguments}]),
            Some("tool_use"),
        ),
    }
}

pub(super) fn frames(answer: &Answer) -> Frames {
    let (block, delta, stop) = match answer {
        Answer::Text(text) | Answer::Hold(text) => {
            (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text}), "end_turn")
        }
        Answer::Call { tool, arguments } => (
            json!({"type": "tool_use", "id": format!("toolu_{}", super::script_id()), "name": tool, "input": {}}),
            json!({"type": "input_json_delta", "partial_json": arguments.to_string()}),
            "tool_use",
        ),
    };
    let mut frames = Frames {
        now: vec![
            event(&json!({"type": "message_start", "message": message(&json!([]), None)})),
            event(&json!({"type": "content_block_start", "index": 0, "content_block": block})),
            event(&json!({"type": "content_block_delta", "index": 0, "delta": delta})),
        ],
        later: vec![],
    };
    let end = [
        event(&json!({"type": "content_block_stop", "index": 0})),
        event(&json!({
            "type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
            "usage": {"output_tokens": 5},
        })),
        event(&json!({"type": "message_stop"})),
    ];
    frames.end(answer, end);
    frames
}
