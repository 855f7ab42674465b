//! Google's `POST /v1beta/models/MODEL:generateContent` and its streamed form.

use super::{Answer, Asked, Dialect, Frames, Part, Role, Tool, data, text_of};
use serde_json::{Value, json};

pub(super) fn read(body: &Value, model: &str, streamed: bool) -> Asked {
    let mut parts = vec![Part { role: Role::System, text: text_of(&body["systemInstruction"]) }];
    for content in body["contents"].as_array().into_iter().flatten() {
        let said = content["parts"].as_array().into_iter().flatten();
        let (results, texts): (Vec<_>, Vec<_>) = said.partition(|part| part["functionResponse"].is_object());
        parts.extend(
            results.iter().map(|part| Part {
                role: Role::Tool,
                text: part["functionResponse"]["response"].to_string(),
            }),
        );
        let text = texts.iter().map(|part| text_of(part)).collect::<Vec<_>>().join("\n");
        let role = if content["role"] == "model" { Role::Assistant } else { Role::User };
        if !text.is_empty() && results.is_empty() {
            parts.push(Part { role, text });
        }
    }
    let declared = body["tools"].as_array().into_iter().flatten();
    let declared = declared.filter_map(|tool| tool["functionDeclarations"].as_array()).flatten();
    let tools = declared.map(|tool| {
        let schema = ["parametersJsonSchema", "parameters"].into_iter().find_map(|name| tool.get(name));
        Tool {
            name: tool["name"].as_str().unwrap_or_default().to_owned(),
            schema: lower_types(schema.cloned().unwrap_or_default()),
        }
    });
    Asked {
        dialect: Dialect::Gemini,
        model: model.to_owned(),
        tools: tools.collect(),
        parts,
        schema: None,
        streamed,
    }
}

/// Types are spelt `STRING` here and `string` elsewhere.
fn lower_types(mut schema: Value) -> Value {
    for property in schema["properties"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
        if let Some(word) = property["type"].as_str().map(str::to_lowercase) {
            property["type"] = json!(word);
        }
    }
    schema
}

fn candidate(part: &Value, stop: Option<&str>) -> Value {
    json!({
        "candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": stop}],
        "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 5, "totalTokenCount": 16},
        "modelVersion": "scripted", "responseId": super::script_id().to_string(),
    })
}

fn part(answer: &Answer) -> Value {
    match answer {
        Answer::Text(text) | Answer::Hold(text) => json!({"text": text}),
        Answer::Call { tool, arguments } => json!({"functionCall": {"name": tool, "args": arguments}}),
    }
}

pub(super) fn whole(answer: &Answer) -> Value {
    candidate(&part(answer), Some("STOP"))
}

pub(super) fn frames(answer: &Answer) -> Frames {
    let mut frames = Frames { now: vec![data(&candidate(&part(answer), None))], later: vec![] };
    frames.end(answer, [data(&candidate(&json!({"text": ""}), Some("STOP")))]);
    frames
}
