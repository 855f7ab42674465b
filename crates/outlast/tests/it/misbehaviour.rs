//! Agents that break the protocol in every way that was seen or can be thought of. For each: one outcome, everything
//! that it sent is in the journal, and the session beside it notices nothing.

use crate::kit::*;
use serde_json::{Value, json};

/// Shakes hands and waits for a prompt; what it does then is the case's own. `$prompt` is the prompt's id.
const AGENT: &str = r#"
id() { printf %s "$1" | sed 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/'; }
say() { printf '%s\n' "$1"; }
update() { say "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"$1\",\"update\":$2}}"; }
text() { update "$1" "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"$2\"}}"; }
finish() { say "{\"jsonrpc\":\"2.0\",\"id\":$prompt,\"result\":{\"stopReason\":\"$1\"}}"; }
permission() { say "{\"jsonrpc\":\"2.0\",\"id\":\"$1\",\"method\":\"session/request_permission\",\"params\":{\"sessionId\":\"s\",\"toolCall\":{\"toolCallId\":\"t\"},\"options\":[{\"optionId\":\"yes\",\"name\":\"Yes\",\"kind\":\"allow_once\"}]}}"; }
read -r line; say "{\"jsonrpc\":\"2.0\",\"id\":$(id "$line"),\"result\":{\"protocolVersion\":1}}"
read -r line; say "{\"jsonrpc\":\"2.0\",\"id\":$(id "$line"),\"result\":{\"sessionId\":\"s\"}}"
read -r line; prompt=$(id "$line")
"#;

/// What a case leaves behind.
struct Seen {
    http: Http,
    id: String,
    events: Vec<Value>,
}

impl Seen {
    fn ended(&self) -> (String, String) {
        let ended = of_type(&self.events, "turn_ended");
        assert_eq!(ended.len(), 1, "exactly one outcome: {ended:?}");
        let word = |name: &str| ended[0][name].as_str().unwrap().to_owned();
        (word("outcome"), word("reason"))
    }

    fn noted(&self, words: &str) {
        let notices = of_type(&self.events, "notice");
        let found = notices.iter().any(|notice| notice["text"].as_str().unwrap().contains(words));
        assert!(found, "no notice with {words:?} in {notices:?}");
    }

    fn holds(&self, words: &str) {
        assert!(
            self.events.iter().any(|event| event.to_string().contains(words)),
            "{words:?} is not in the journal"
        );
    }

    /// Waits until an event fits; then everything is looked at.
    async fn until(&mut self, fits: impl Fn(&Value) -> bool) {
        until(&self.http, &self.id, fits).await;
        self.events = events(&self.http, &self.id).await;
    }

    fn find(&self, words: &str) -> &Value {
        self.events.iter().find(|event| event.to_string().contains(words)).unwrap()
    }
}

/// Runs a case beside a session that behaves.
async fn case(server: &(Server, Http), name: &str, script: &str, cancel: bool) -> Seen {
    let http = server.1.clone();
    deploy_script(&http, name, &format!("{AGENT}{script}")).await;
    let id = session_of(&http, &json!({"agent": name})).await;
    let beside = session(&http).await;
    let mut stream = send(&http, &id, &json!({"content": "go"})).await;
    if cancel {
        until(&http, &id, is("agent_update")).await;
        act(&http, &id, "cancel").await.expect(200).unwrap();
    }
    assert_eq!(text_of(&say(&http, &beside, "echo unharmed").await), "unharmed", "{name}");
    stream.collect().await.unwrap();
    let events = until(&http, &id, is("turn_ended")).await;
    assert_eq!(text_of(&say(&http, &beside, "echo still").await), "still", "{name}");
    Seen { http, id, events }
}

#[tokio::test]
async fn nonsense_is_kept_and_the_turn_goes_on() {
    let server = server().await;
    let script = r#"
say 'not json at all'; say '[1,2]'; say '{"half":'; say '{"jsonrpc":"1.0","method":"x"}'
say '{"jsonrpc":"2.0","id":"nobody-asked","result":{}}'
say '{"jsonrpc":"2.0","method":"_vendor/note","params":{"a":"vendor note"}}'
say '{"jsonrpc":"2.0","id":"v1","method":"_vendor/ask","params":{}}'; read -r answer
text other 'for another session'
text s "answered: $(printf %s "$answer" | tr -d '"')"
update s '{"sessionUpdate":"tool_call","toolCallId":"twice","title":"first","status":"pending"}'
update s '{"sessionUpdate":"tool_call","toolCallId":"twice","title":"second","status":"completed"}'
update s '{"sessionUpdate":"something_new","later":true}'
finish end_turn; finish end_turn; finish refusal
exec cat >/dev/null"#;
    let mut seen = case(&server, "nonsense", script, false).await;
    assert_eq!(seen.ended(), ("done".into(), "end_turn".into()));
    let answers = |event: &Value| event["text"].as_str().is_some_and(|text| text.contains("refusal"));
    seen.until(answers).await;
    for words in
        ["not json at all", "[1,2]", "{\"half\":", "1.0", "nobody-asked", "vendor note", "_vendor/ask"]
    {
        seen.noted(words);
    }
    for words in ["for another session", "-32601", "first", "second", "something_new"] {
        seen.holds(words);
    }
    assert_eq!(of_type(&seen.events, "turn_ended").len(), 1, "a second answer ends nothing");
    assert_eq!(get(&seen.http, &seen.id).await["status"], "active");
}

#[tokio::test]
async fn what_comes_after_the_end_of_a_turn_belongs_to_none() {
    let server = server().await;
    let script = "text s now; finish end_turn; permission p1; read -r answer; text s \"late: $(printf %s \"$answer\" | tr -d '\"')\"; exec cat >/dev/null";
    let mut seen = case(&server, "late", script, false).await;
    assert_eq!(seen.ended(), ("done".into(), "end_turn".into()));
    seen.until(|event| event.to_string().contains("late: ")).await;
    seen.holds("outcome:cancelled");
    let late = seen.find("late: ");
    assert!(late["turn"].is_null(), "{late}");

    let script =
        "text s begun; read -r cancel; finish cancelled; text s 'after the cancel'; exec cat >/dev/null";
    let mut seen = case(&server, "cancelled", script, true).await;
    assert_eq!(seen.ended(), ("cancelled".into(), "cancelled".into()));
    seen.until(|event| event.to_string().contains("after the cancel")).await;
    assert!(seen.find("after the cancel")["turn"].is_null());
}

#[tokio::test]
async fn an_agent_that_goes_away_ends_its_turn_once() {
    let server = server().await;
    for (name, script) in [
        ("dies", "text s 'last words'; exit 7"),
        ("killed", "text s 'last words'; kill -9 $$"),
        ("deaf", "text s 'last words'; exec >&-; exec sleep 100000"),
        // The daemon holds every pipe open for ever.
        ("daemon", "text s 'last words'; sleep 100000 & exit 0"),
    ] {
        let seen = case(&server, name, script, false).await;
        assert_eq!(seen.ended(), ("interrupted".into(), "agent_died".into()), "{name}");
        seen.holds("last words");
    }
    let mut seen = case(&server, "leaves", "text s bye; finish end_turn; exit 0", false).await;
    assert_eq!(seen.ended(), ("done".into(), "end_turn".into()));
    seen.until(is("occupant_exited")).await;
}

#[tokio::test]
async fn a_hundred_megabytes_in_one_line_are_a_typed_end() {
    let server = server().await;
    let script =
        "text s first; head -c 100000000 /dev/zero | tr '\\0' x; finish end_turn; exec cat >/dev/null";
    let seen = case(&server, "endless", script, false).await;
    assert_eq!(seen.ended(), ("failed".into(), "agent_protocol".into()));
    seen.holds("first");
}

#[tokio::test]
async fn a_hundred_thousand_deltas_lose_nothing() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "stream 100000 8").await;
    let all = events(&http, &id).await;
    assert_eq!(of_type(&all, "agent_update").len(), 100_000);
    assert_eq!(of_type(&all, "turn_ended").len(), 1);
}

#[tokio::test]
async fn an_agent_that_hears_neither_cancel_nor_sigterm_is_ended() {
    let server = server().await;
    let script = "trap '' TERM INT HUP; text s begun; while :; do sleep 1; done";
    let seen = case(&server, "stubborn", script, true).await;
    assert_eq!(seen.ended(), ("cancelled".into(), "agent_unresponsive".into()));
}
