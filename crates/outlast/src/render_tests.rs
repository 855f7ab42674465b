//! What a terminal shows of each event, as snapshots: a change of words should be seen.

use super::*;
use protocol::{Actor, SessionId, Timestamp};

const TURN: &str = "019a8000-0000-7000-8000-000000000001";
const OTHER: &str = "019a8000-0000-7000-8000-000000000002";

fn event(seq: u64, body: &str) -> Event {
    Event {
        session: "019a8000-0000-7000-8000-0000000000aa".parse::<SessionId>().unwrap(),
        seq,
        at: Timestamp::from_millis(1_750_000_000_000),
        actor: Actor::System,
        body: Body::decode(1, body).unwrap_or_else(|error| panic!("{body}: {error}")),
    }
}

fn update(fields: &str) -> String {
    format!(r#"{{"type":"agent_update","turn":"{TURN}","update":{{{fields}}}}}"#)
}

fn says(text: &str) -> String {
    update(&format!(
        r#""sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":{}}}"#,
        serde_json::to_string(text).unwrap()
    ))
}

fn thinks(text: &str) -> String {
    update(&format!(
        r#""sessionUpdate":"agent_thought_chunk","content":{{"type":"text","text":{}}}"#,
        serde_json::to_string(text).unwrap()
    ))
}

fn story() -> Vec<Event> {
    let bodies = [
        r#"{"type":"session_created","kind":"agent","place":"host","agent":"demo","agentVersion":1,"model":"m"}"#.to_owned(),
        r#"{"type":"session_status","from":"starting","to":"active"}"#.to_owned(),
        r#"{"type":"occupant_started","how":"new"}"#.to_owned(),
        r#"{"type":"session_config","model":"m","mode":"plan"}"#.to_owned(),
        r#"{"type":"session_renamed","name":"mine"}"#.to_owned(),
        format!(r#"{{"type":"prompt_accepted","turn":"{TURN}","content":[{{"type":"text","text":"list\nthe files"}}],"onBusy":"queue","disposition":"queued"}}"#),
        format!(r#"{{"type":"turn_started","turn":"{TURN}"}}"#),
        thinks("let me "),
        thinks("see\nfiles"),
        says("I look. "),
        update(r#""sessionUpdate":"tool_call","toolCallId":"t1","title":"ls -la","status":"pending""#),
        format!(r#"{{"type":"permission_requested","turn":"{TURN}","toolCall":{{"toolCallId":"t1"}},"options":[{{"optionId":"yes","name":"Allow","kind":"allow_once"}},{{"optionId":"no","name":"Reject","kind":"reject_once"}}]}}"#),
        r#"{"type":"permission_answered","permission":12,"answer":{"outcome":"selected","optionId":"yes"}}"#.to_owned(),
        update(r#""sessionUpdate":"tool_call_update","toolCallId":"t1","status":"in_progress""#),
        update(r#""sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"1\n2\n3\n4\n5\n6\n7"}}]"#),
        update(r#""sessionUpdate":"plan","entries":[{"content":"look","status":"completed"},{"content":"tell","status":"pending"}]"#),
        update(r#""sessionUpdate":"usage_update","used":5"#),
        says("Done.\u{1b}[2J\n"),
        r#"{"type":"notice","level":"warning","text":"a junk line"}"#.to_owned(),
        format!(r#"{{"type":"turn_ended","turn":"{OTHER}","outcome":"done","reason":"end_turn"}}"#),
        format!(r#"{{"type":"turn_ended","turn":"{TURN}","outcome":"failed","reason":"agent_died","message":"it crashed","usage":{{"inputTokens":3,"outputTokens":4,"costUsd":0.01}}}}"#),
        r#"{"type":"occupant_exited","code":3,"expected":false,"stderr":"boom\n"}"#.to_owned(),
        r#"{"type":"occupant_started","how":"fresh"}"#.to_owned(),
        r#"{"type":"error","code":"agent_failed","message":"no luck"}"#.to_owned(),
        r#"{"type":"permission_answered","permission":12,"answer":{"outcome":"cancelled"}}"#.to_owned(),
        r#"{"type":"session_status","from":"active","to":"error","reason":"agent died"}"#.to_owned(),
    ];
    bodies.iter().zip(1..).map(|(body, seq)| event(seq, body)).collect()
}

#[test]
fn each_event_is_one_line() {
    let lines: Vec<_> = story().iter().map(|event| line(Paint::PLAIN, event, None)).collect();
    assert!(lines.iter().all(|line| !line.contains('\n') && !line.contains('\u{1b}')));
    insta::assert_snapshot!("log-lines", lines.join("\n"));
}

#[test]
fn lines_fit_a_narrow_terminal() {
    let long = event(1, &says(&"word ".repeat(100)));
    let shown = line(Paint::PLAIN, &long, Some(80));
    assert_eq!(shown.chars().count(), 80);
    assert!(shown.ends_with('…'));
    assert!(line(Paint::PLAIN, &long, None).len() > 500, "a file gets all of it");
}

#[test]
fn a_turn_reads_as_a_conversation() {
    let mut conversation = Conversation::new(Paint::PLAIN);
    let mut shown = String::new();
    for event in story() {
        for piece in conversation.show(&event, TURN.parse().unwrap()) {
            match piece {
                Piece::Words(words) => shown.push_str(&format!("words {words:?}\n")),
                Piece::Line(line) => shown.push_str(&format!("line  {line}\n")),
            }
        }
    }
    insta::assert_snapshot!("conversation", shown);
}

#[test]
fn another_turns_words_are_not_shown() {
    let mut conversation = Conversation::new(Paint::PLAIN);
    assert!(conversation.show(&event(1, &says("x")), OTHER.parse().unwrap()).is_empty());
}
