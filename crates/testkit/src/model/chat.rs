//! OpenAI's `POST /v1/chat/completions`.

use super::{Answer, Asked, Dialect, Frames, Part, Role, Tool, data, text_of};
use serde_json::{Value, json};

pub(super) fn read(body: &Value) -> Asked {
    let parts = body["messages"].as_array().into_iter().flatten().map(|message| Part {
        role: match message["role"].as_str() {
            Some("system" | "developer") => Role::System,
            Some("assistant") => Role::Assistant,
            Some("tool") => Role::Tool,
            _ => Role::User,
        },
        text: text_of(&message["content"]),
    });
    let tools = body["tools"].as_array().into_iter().flatten().map(|tool| Tool {
        name: tool["function"]["name"].as_str().unwrap_or_default().to_owned(),
        schema: tool["function"]["parameters"].clone(),
    });
    Asked {
        dialect: Dialect::Chat,
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        parts: parts.collect(),
        tools: tools.collect(),
        schema: None,
        streamed: body["stream"] == true,
    }
}

fn call(tool: &str, arguments: &Value) -> Value {
    json!({
        "index": 0, "id": format!("call_{}", super::script_id()), "type": "function",
        "function": {"name": tool, "arguments": arguments.to_string()},
    })
}

fn usage() -> Value {
    json!({"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16})
}

pub(super) fn whole(answer: &Answer) -> Value {
    let (message, stop) = match answer {
        Answer::Text(text) | Answer::Hold(text) => (json!({"role": "assistant", "content": text}), "stop"),
        Answer::Call { tool, arguments } => (
            json!({"role": "assistant", "content": null, "tool_calls": [call(tool, arguments)]}),
            "tool_calls",
        ),
    };
    json!({
        "id": format!("chatcmpl-{}", super::script_id()), "object": "chat.completion", "created": 1, "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": stop}], "usage": usage(),
    })
}

fn chunk(id: u64, delta: &Value, stop: Option<&str>) -> String {
    data(&json!({
        "id": format!("chatcmpl-{id}"), "object": "chat.completion.chunk", "created": 1, "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": stop}],
    }))
}

pub(super) fn frames(answer: &Answer) -> Frames {
    let (delta, stop) = match answer {
        Answer::Text(text) | Answer::Hold(text) => (json!({"role": "assistant", "content": text}), "stop"),
        Answer::Call { tool, arguments } => {
            (json!({"role": "assistant", "tool_calls": [call(tool, arguments)]}), "tool_calls")
        }
    };
    let id = super::script_id();
    let mut frames = Frames { now: vec![chunk(id, &delta, None)], later: vec![] };
    let last = data(&json!({
        "id": format!("chatcmpl-{id}"), "object": "chat.completion.chunk", "created": 1, "model": "scripted",
        "choices": [], "usage": usage(),
    }));
    frames.end(answer, [chunk(id, &json!({}), Some(stop)), last, "data: [DONE]\n\n".to_owned()]);
    frames
}
