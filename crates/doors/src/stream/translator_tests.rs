//! The translator as tables: bodies as they are stored in, frames as clients read them out.

use super::*;
use proptest::prelude::*;
use protocol::{Code, Fault};
use std::collections::BTreeMap;

const OURS: &str = "019a8000-0000-7000-8000-000000000001";
const OTHER: &str = "019a8000-0000-7000-8000-000000000002";
const SESSION: &str = "019a8000-0000-7000-8000-0000000000aa";

fn translator(detail: Detail) -> Translator {
    let accepted = Accepted { turn: OURS.parse().unwrap(), seq: 3, disposition: Disposition::Started };
    Translator::new(SESSION.parse().unwrap(), &accepted, detail)
}

fn feed(translator: &mut Translator, seq: Seq, body: &str, out: &mut String) -> Progress {
    let head: Value = serde_json::from_str(body).unwrap();
    let kind = EventKind::parse(head["type"].as_str().unwrap()).unwrap();
    translator.event(seq, kind, || Body::decode(protocol::SCHEMA_VERSION, body), out)
}

/// Runs bodies through a translator and returns `name data` lines.
fn frames(detail: Detail, bodies: &[String]) -> (Vec<String>, Progress) {
    let mut translator = translator(detail);
    let mut out = translator.open();
    let mut progress = Progress::More;
    for (index, body) in bodies.iter().enumerate() {
        progress = feed(&mut translator, 4 + index as Seq, body, &mut out);
    }
    (parse(&out), progress)
}

fn parse(out: &str) -> Vec<String> {
    out.split_terminator("\n\n")
        .map(|frame| {
            let (event, data) = frame.split_once('\n').unwrap();
            let data = data.strip_prefix("data: ").unwrap();
            sorted(&format!("{} {data}", event.strip_prefix("event: ").unwrap()))
        })
        .collect()
}

/// A line with its keys in order: which order they are written in depends on a feature of serde_json.
fn sorted(line: &str) -> String {
    fn sort(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields: BTreeMap<String, Value> = fields.into_iter().map(|(k, v)| (k, sort(v))).collect();
                Value::Object(fields.into_iter().collect())
            }
            Value::Array(items) => items.into_iter().map(sort).collect(),
            other => other,
        }
    }
    let (name, data) = line.split_once(' ').unwrap();
    format!("{name} {}", sort(serde_json::from_str(data).unwrap()))
}

fn lines<S: AsRef<str>>(expected: impl IntoIterator<Item = S>) -> Vec<String> {
    expected.into_iter().map(|line| sorted(line.as_ref())).collect()
}

fn update(turn: &str, update: &str) -> String {
    format!(r#"{{"type":"agent_update","turn":"{turn}","update":{update}}}"#)
}

fn says(text: &str) -> String {
    update(
        OURS,
        &json!({"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":text}}).to_string(),
    )
}

fn thinks(text: &str) -> String {
    update(
        OURS,
        &json!({"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":text}}).to_string(),
    )
}

fn ended(turn: &str, outcome: &str, reason: &str) -> String {
    format!(r#"{{"type":"turn_ended","turn":"{turn}","outcome":"{outcome}","reason":"{reason}"}}"#)
}

const START: &str = r#"session_start {"sessionId":"019a8000-0000-7000-8000-0000000000aa","version":"0.1.0","turn":"019a8000-0000-7000-8000-000000000001","seq":3,"disposition":"started"}"#;
const DONE: &str = r#"done {"sessionId":"019a8000-0000-7000-8000-0000000000aa"}"#;

fn complete(result: &str) -> String {
    format!(r#"turn_complete {{"turn":"{OURS}","result":{},"reason":"end_turn"}}"#, json!(result))
}

fn said(text: &str) -> String {
    format!(
        r#"message {{"message":{{"content":[{{"text":{},"type":"text"}}],"role":"assistant"}},"type":"assistant"}}"#,
        json!(text)
    )
}

#[test]
fn text_is_one_delta_and_one_message_per_run() {
    let bodies = [says("Hel"), says("lo"), ended(OURS, "done", "end_turn")];
    let (frames, progress) = frames(Detail::Messages, &bodies);
    assert!(matches!(progress, Progress::Ended));
    assert_eq!(
        frames,
        lines([START, r#"text_delta {"delta":"Hello"}"#, &said("Hello"), &complete("Hello"), DONE])
    );
}

#[test]
fn partial_messages_come_as_they_come() {
    let bodies = [says("Hel"), says(""), says("lo"), ended(OURS, "done", "end_turn")];
    let (frames, _) = frames(Detail::Deltas, &bodies);
    assert_eq!(
        frames,
        lines([
            START,
            r#"text_delta {"delta":"Hel"}"#,
            r#"text_delta {"delta":"lo"}"#,
            &said("Hello"),
            &complete("Hello"),
            DONE,
        ])
    );
}

#[test]
fn a_run_ends_where_something_else_begins() {
    let bodies = [
        thinks("hm"),
        says("a"),
        update(
            OURS,
            r#"{"sessionUpdate":"tool_call","toolCallId":"t1","title":"Read","kind":"read","status":"pending","rawInput":{"path":"x"}}"#,
        ),
        update(
            OURS,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"in_progress","content":[{"type":"content","content":{"type":"text","text":"old"}}]}"#,
        ),
        update(
            OURS,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"t1","content":[{"type":"content","content":{"type":"text","text":"new"}},{"type":"diff","path":"p"}]}"#,
        ),
        update(OURS, r#"{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed"}"#),
        update(OURS, r#"{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed"}"#),
        says("b"),
        ended(OURS, "done", "end_turn"),
    ];
    let (frames, _) = frames(Detail::Messages, &bodies);
    let result = r#"[{"text":"new","type":"text"},{"path":"p","type":"diff"}]"#;
    assert_eq!(
        frames,
        lines([
            START.to_owned(),
            r#"thinking_delta {"delta":"hm"}"#.to_owned(),
            r#"message {"message":{"content":[{"thinking":"hm","type":"thinking"}],"role":"assistant"},"type":"assistant"}"#.to_owned(),
            r#"text_delta {"delta":"a"}"#.to_owned(),
            said("a"),
            r#"tool_use {"id":"t1","input":{"path":"x"},"name":"Read"}"#.to_owned(),
            r#"message {"message":{"content":[{"id":"t1","input":{"path":"x"},"name":"Read","type":"tool_use"}],"role":"assistant"},"type":"assistant"}"#.to_owned(),
            format!(r#"tool_result {{"content":{result},"is_error":false,"tool_use_id":"t1"}}"#),
            format!(r#"message {{"message":{{"content":[{{"content":{result},"is_error":false,"tool_use_id":"t1","type":"tool_result"}}],"role":"user"}},"type":"user"}}"#),
            r#"text_delta {"delta":"b"}"#.to_owned(),
            said("b"),
            complete("ab"),
            DONE.to_owned(),
        ])
    );
}

#[test]
fn tools_in_other_shapes() {
    let table: &[(&str, &[&str])] = &[
        // Begun and finished in one update, failed, with only a raw output.
        (
            r#"{"sessionUpdate":"tool_call","toolCallId":"t","kind":"execute","status":"failed","rawOutput":{"code":1}}"#,
            &[
                r#"tool_use {"id":"t","input":{},"name":"execute"}"#,
                r#"tool_result {"content":{"code":1},"is_error":true,"tool_use_id":"t"}"#,
            ],
        ),
        // The input comes later.
        (
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"t","title":"Run","rawInput":{"a":1}}"#,
            &[r#"tool_update {"id":"t","input":{"a":1},"name":"Run"}"#],
        ),
        // Never announced: a result without a use would confuse.
        (r#"{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed"}"#, &[]),
        (r#"{"sessionUpdate":"tool_call"}"#, &[]),
        (
            r#"{"sessionUpdate":"plan","entries":[{"content":"x"}]}"#,
            &[r#"plan {"entries":[{"content":"x"}]}"#],
        ),
        (r#"{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"x"}}"#, &[]),
        (r#"{"sessionUpdate":"current_mode_update","currentModeId":"plan"}"#, &[]),
        (r#"{"sessionUpdate":"agent_message_chunk"}"#, &[]),
        (r#"{"sessionUpdate":"agent_message_chunk","content":7}"#, &[]),
        (r#"{"sessionUpdate":7}"#, &[]),
        (r#""junk""#, &[]),
    ];
    for (body, expected) in table {
        let (frames, _) = frames(Detail::Messages, &[update(OURS, body)]);
        let shown: Vec<&String> = frames[1..].iter().filter(|frame| !frame.starts_with("message ")).collect();
        assert_eq!(shown, lines(*expected).iter().collect::<Vec<_>>(), "{body}");
    }
}

#[test]
fn images_are_messages_of_their_own() {
    let image = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"AA==","mimeType":"image/png"}}"#;
    let (frames, _) = frames(Detail::Deltas, &[says("look"), update(OURS, image)]);
    assert_eq!(frames[2], said("look"));
    assert_eq!(
        frames[3],
        sorted(
            r#"message {"message":{"content":[{"source":{"data":"AA==","media_type":"image/png","type":"base64"},"type":"image"}],"role":"assistant"},"type":"assistant"}"#
        )
    );
}

#[test]
fn messages_with_names_are_kept_apart() {
    let chunk = |id: &str, text: &str| {
        let update_text = json!({"sessionUpdate":"agent_message_chunk","messageId":id,"content":{"type":"text","text":text}});
        update(OURS, &update_text.to_string())
    };
    let (frames, _) = frames(
        Detail::Deltas,
        &[chunk("1", "a"), chunk("1", "b"), chunk("2", "c"), ended(OURS, "done", "end_turn")],
    );
    let messages: Vec<&String> = frames.iter().filter(|frame| frame.starts_with("message ")).collect();
    assert_eq!(messages, [&said("ab"), &said("c")]);
}

#[test]
fn a_permission_is_asked_with_its_seq() {
    let body = format!(
        r#"{{"type":"permission_requested","turn":"{OURS}","toolCall":{{"toolCallId":"t"}},"options":[{{"optionId":"y","name":"Yes","kind":"allow_once"}}]}}"#
    );
    let (frames, _) = frames(Detail::Messages, &[says("may I?"), body]);
    assert_eq!(frames[2], said("may I?"));
    assert_eq!(
        frames[3],
        sorted(
            r#"permission_request {"id":5,"options":[{"optionId":"y","name":"Yes","kind":"allow_once"}],"toolCall":{"toolCallId":"t"}}"#
        )
    );
}

#[test]
fn other_turns_are_not_ours() {
    let chunk = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"not for you"}}"#;
    let bodies = [
        update(OTHER, chunk),
        format!(r#"{{"type":"agent_update","update":{chunk}}}"#),
        ended(OTHER, "done", "end_turn"),
        format!(r#"{{"type":"turn_started","turn":"{OURS}"}}"#),
        says("mine"),
        ended(OURS, "done", "end_turn"),
    ];
    let (frames, _) = frames(Detail::Messages, &bodies);
    assert_eq!(
        frames,
        lines([START, r#"text_delta {"delta":"mine"}"#, &said("mine"), &complete("mine"), DONE])
    );
}

#[test]
fn what_is_not_done_is_a_typed_error_and_still_done() {
    let table = [
        (ended(OURS, "cancelled", "cancelled"), "cancelled", "cancelled", "the turn was cancelled"),
        (ended(OURS, "failed", "agent_error"), "failed", "agent_error", "the agent answered with an error"),
        (ended(OURS, "interrupted", "agent_died"), "interrupted", "agent_died", "the agent's process ended"),
        (
            ended(OURS, "interrupted", "session_ended"),
            "interrupted",
            "session_ended",
            "the session was ended",
        ),
        (
            format!(
                r#"{{"type":"turn_ended","turn":"{OURS}","outcome":"timed_out","reason":"cancelled","message":"60 s passed"}}"#
            ),
            "timed_out",
            "cancelled",
            "60 s passed",
        ),
    ];
    for (body, outcome, code, sentence) in table {
        let (frames, progress) = frames(Detail::Messages, &[says("so far"), body]);
        assert!(matches!(progress, Progress::Ended));
        let error = format!(
            r#"error {{"error":"{sentence}","code":"{code}","outcome":"{outcome}","turn":"{OURS}"}}"#
        );
        assert_eq!(frames[2..], lines([&said("so far"), &error, DONE]));
    }
}

#[test]
fn breaking_off_is_an_error_and_still_done() {
    let mut translator = translator(Detail::Messages);
    let mut out = String::new();
    feed(&mut translator, 4, &says("half"), &mut out);
    let error = crate::fault::body_of(Fault::new(Code::SessionNotFound, "gone"), "r");
    translator.break_off(&error, &mut out);
    assert_eq!(
        parse(&out)[1..],
        lines([
            said("half").as_str(),
            r#"error {"error":"gone","statusCode":404,"code":"session_not_found","requestId":"r"}"#,
            DONE,
        ])
    );
}

#[test]
fn an_unreadable_event_is_not_passed_over() {
    let mut translator = translator(Detail::Messages);
    let mut out = String::new();
    let newer = || Err(BodyError::Newer { version: 9 });
    let progress = translator.event(9, EventKind::TurnEnded, newer, &mut out);
    assert!(matches!(progress, Progress::Unreadable(BodyError::Newer { version: 9 })));
    let progress = translator.event(9, EventKind::Notice, newer, &mut out);
    assert!(matches!(progress, Progress::More), "what says nothing here is not even read");
}

#[test]
fn what_is_kept_is_bounded() {
    let mut translator = translator(Detail::Messages);
    let mut out = String::new();
    let piece = says(&"é".repeat(300_000));
    for seq in 0..4 {
        feed(&mut translator, seq, &piece, &mut out);
        assert!(translator.run.as_ref().map_or(0, |run| run.text.len()) < MESSAGE_BYTES);
    }
    assert!(translator.result.len() <= RESULT_BYTES);
    for call in 0..20 {
        let body = json!({
            "sessionUpdate": "tool_call", "toolCallId": format!("t{call}"), "title": "x",
            "content": [{"type": "content", "content": {"type": "text", "text": "y".repeat(500_000)}}],
        });
        feed(&mut translator, 9, &update(OURS, &body.to_string()), &mut out);
    }
    assert!(translator.tools.bytes <= TOOL_BYTES + 20 * OVER_LIMIT.len());
    out.clear();
    feed(
        &mut translator,
        9,
        &update(OURS, r#"{"sessionUpdate":"tool_call_update","toolCallId":"t19","status":"completed"}"#),
        &mut out,
    );
    assert!(out.contains("too large"), "a result that was not kept says so");
    out.clear();
    feed(&mut translator, 10, &ended(OURS, "done", "end_turn"), &mut out);
    assert!(out.contains("\"truncated\":true"));
}

proptest! {
    /// However text is cut into pieces and mixed with thought, deltas and messages say the same.
    #[test]
    fn deltas_and_messages_agree(pieces in proptest::collection::vec((any::<bool>(), "\\PC{0,12}"), 0..40), deltas in any::<bool>()) {
        let mut bodies: Vec<String> =
            pieces.iter().map(|(speech, text)| if *speech { says(text) } else { thinks(text) }).collect();
        bodies.push(ended(OURS, "done", "end_turn"));
        let (frames, _) = frames(if deltas { Detail::Deltas } else { Detail::Messages }, &bodies);
        let expected: String = pieces.iter().filter(|(speech, _)| *speech).map(|(_, text)| text.as_str()).collect();
        let (mut from_deltas, mut from_messages, mut result) = (String::new(), String::new(), String::new());
        for frame in &frames {
            let (name, data) = frame.split_once(' ').unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            match name {
                "text_delta" => from_deltas += data["delta"].as_str().unwrap(),
                "message" => from_messages += data["message"]["content"][0]["text"].as_str().unwrap_or_default(),
                "turn_complete" => result += data["result"].as_str().unwrap(),
                _ => {}
            }
        }
        prop_assert_eq!(&from_deltas, &expected);
        prop_assert_eq!(&from_messages, &expected);
        prop_assert_eq!(&result, &expected);
        prop_assert_eq!(frames.last().unwrap(), DONE);
    }
}
