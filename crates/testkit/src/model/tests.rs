//! Each dialect through the wire: text, a tool's call and what it gave back, an answer that is held, and what
//! context a request carried.

use super::*;
use crate::{Http, Opened};

/// A request of a dialect for a conversation of `(role, text)`.
fn body(dialect: Dialect, said: &[(&str, &str)], streamed: bool) -> (String, Value) {
    let shell =
        json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    match dialect {
        Dialect::Anthropic => {
            let messages = said.iter().map(|(role, text)| match *role {
                "tool" => json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}),
                role => json!({"role": role, "content": text}),
            });
            let tools = json!([{"name": "Bash", "input_schema": shell}]);
            let messages: Vec<_> = messages.collect();
            (
                "/v1/messages".into(),
                json!({"model": "m", "messages": messages, "tools": tools, "stream": streamed}),
            )
        }
        Dialect::Chat => {
            let messages: Vec<_> =
                said.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
            let tools = json!([{"type": "function", "function": {"name": "bash", "parameters": shell}}]);
            let body = json!({"model": "m", "messages": messages, "tools": tools, "stream": streamed});
            ("/v1/chat/completions".into(), body)
        }
        Dialect::Responses => {
            let input = said.iter().map(|(role, text)| match *role {
                "tool" => json!({"type": "function_call_output", "call_id": "c", "output": text}),
                role => json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}),
            });
            let input: Vec<_> = input.collect();
            let tools = json!([{"type": "function", "name": "shell", "parameters": shell}]);
            (
                "/v1/responses".into(),
                json!({"model": "m", "input": input, "tools": tools, "stream": streamed}),
            )
        }
        Dialect::Gemini => {
            let contents = said.iter().map(|(role, text)| match *role {
                "tool" => {
                    json!({"role": "user", "parts": [{"functionResponse": {"response": {"output": text}}}]})
                }
                "assistant" => json!({"role": "model", "parts": [{"text": text}]}),
                role => json!({"role": role, "parts": [{"text": text}]}),
            });
            let contents: Vec<_> = contents.collect();
            let tools =
                json!([{"functionDeclarations": [{"name": "run_shell_command", "parameters": shell}]}]);
            let call = if streamed { "streamGenerateContent?alt=sse" } else { "generateContent" };
            (format!("/v1beta/models/m:{call}"), json!({"contents": contents, "tools": tools}))
        }
    }
}

async fn ask(model: &Model, dialect: Dialect, said: &[(&str, &str)]) -> (String, String) {
    let http = Http::new(model.address(), None);
    let (path, request) = body(dialect, said, false);
    let whole = http.post(&path, &request).await.unwrap().expect(200).unwrap();
    let (path, request) = body(dialect, said, true);
    let json = [("content-type", "application/json")];
    let streamed = http.raw("POST", &path, &json, request.to_string().as_bytes()).await.unwrap();
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    (whole.to_string(), streamed.text())
}

const ALL: [Dialect; 4] = [Dialect::Anthropic, Dialect::Chat, Dialect::Responses, Dialect::Gemini];

#[tokio::test]
async fn every_dialect_says_calls_and_recalls() {
    let model = Model::start().await.unwrap();
    for dialect in ALL {
        for (said, words) in [
            (&[("user", "be kind\nsay: hello there")][..], &["hello there"][..]),
            (&[("user", "run: echo hi")], &["echo hi", "ommand"]),
            (&[("user", "run: echo hi"), ("tool", "hi from it")], &["ran: ", "hi from it"]),
            (
                &[("user", "keep swordfish"), ("assistant", "ok"), ("user", "recall: swordfish")],
                &["I recall"],
            ),
            (&[("user", "recall: swordfish")], &["I do not recall swordfish"]),
            (
                &[("user", "Before: `/h/.outlast/threads/x.md`.\nrecall: swordfish")],
                &["cat /h/.outlast/threads/x.md"],
            ),
        ] {
            let (whole, streamed) = ask(&model, dialect, said).await;
            for word in words {
                assert!(whole.contains(word), "{dialect:?} {said:?}: {whole}");
                assert!(streamed.contains(word), "{dialect:?} {said:?}: {streamed}");
            }
        }
    }
    let asked = model.asked();
    assert_eq!(asked.len(), 4 * 6 * 2);
    let recalled = asked.iter().filter(|asked| asked.last_user() == "recall: swordfish");
    assert_eq!(recalled.filter(|asked| asked.holds("keep swordfish", &[Role::User])).count(), 8);
}

#[tokio::test]
async fn a_held_answer_begins_and_waits_for_its_release() {
    let model = Model::start().await.unwrap();
    for dialect in ALL {
        let (path, request) = body(dialect, &[("user", "hold: first words")], true);
        let http = Http::new(model.address(), None);
        let headers = [("content-type", "application/json")];
        let opened = http.stream("POST", &path, &headers, request.to_string().as_bytes()).await.unwrap();
        let Opened::Stream(mut stream) = opened else { panic!("{dialect:?} was refused") };
        loop {
            let frame = stream.next().await.unwrap().expect("it goes on");
            if frame.data.contains("first words") {
                break;
            }
        }
        model.release();
        while stream.next().await.unwrap().is_some() {}
    }
}

#[tokio::test]
async fn what_is_not_here_is_named() {
    let model = Model::start().await.unwrap();
    let http = Http::new(model.address(), None);
    assert_eq!(http.get("/v1/other").await.unwrap().status, 404);
    assert_eq!(http.get("/v1/models").await.unwrap().status, 200);
    assert_eq!(model.strays(), ["GET /v1/other"]);
}
