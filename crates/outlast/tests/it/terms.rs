//! What an agent lives under: the ways back to its conversation, permission policies, budgets, and what it may ask of
//! its place.

use crate::kit::*;
use serde_json::{Value, json};

async fn demo_with(http: &Http, name: &str, flags: &str, policy: &str) -> String {
    let manifest = format!("command = \"outlast\"\nargs = [\"demo-agent\"{flags}]\n\n[policy]\n{policy}\n");
    deploy(http, name, &manifest).await;
    session_of(http, &json!({"agent": name})).await
}

fn last<'a>(events: &'a [Value], kind: &str) -> &'a Value {
    of_type(events, kind).last().copied().unwrap_or_else(|| panic!("no {kind}"))
}

/// An agent that says it loaded everything and knows nothing gets the conversation to read.
#[tokio::test]
async fn an_agent_that_forgot_is_given_a_transcript() {
    let (_server, http) = server().await;
    for (name, flags) in [
        ("lost", ", \"--no-resume\", \"--no-load\""),
        ("forgetful", ", \"--no-resume\", \"--forgetful\""),
        // It answers session/resume with success too, but its own list does not have the conversation.
        ("liar", ", \"--no-load\", \"--forgetful\""),
    ] {
        let id = demo_with(&http, name, flags, "").await;
        say(&http, &id, "echo the word is swordfish").await;
        say(&http, &id, "tool").await;
        act(&http, &id, "stop").await.expect(200).unwrap();
        let told = text_of(&say(&http, &id, &format!("cat .outlast/threads/{id}.md")).await);
        for words in ["## Turn 1", "echo the word is swordfish", "- Tool:", "newest last"] {
            assert!(told.contains(words), "{name}: no {words:?} in {told}");
        }
        let all = events(&http, &id).await;
        assert_eq!(last(&all, "occupant_started")["how"], "transcript", "{name}");
        // The journal holds what the person said, not what the agent was told besides.
        let said = last(&all, "prompt_accepted")["content"].to_string();
        assert!(!said.contains("Markdown"), "{said}");
    }
    // One that has nothing to remember is not bothered with it.
    let id = demo_with(&http, "fresh", ", \"--no-resume\", \"--no-load\"", "").await;
    act(&http, &id, "stop").await.expect(200).unwrap();
    say(&http, &id, "echo first").await;
    assert_eq!(last(&events(&http, &id).await, "occupant_started")["how"], "fresh");
}

/// A load whose replay holds the last prompt is believed, and told to nobody twice.
#[tokio::test]
async fn a_load_is_compared_and_not_recorded_again() {
    let (_server, http) = server().await;
    let id = demo_with(&http, "loads", ", \"--no-resume\"", "").await;
    say(&http, &id, "remember swordfish").await;
    let before = of_type(&events(&http, &id).await, "agent_update").len();
    act(&http, &id, "stop").await.expect(200).unwrap();
    assert!(text_of(&say(&http, &id, "recall").await).contains("swordfish"));
    let all = events(&http, &id).await;
    assert_eq!(last(&all, "occupant_started")["how"], "loaded");
    let started = last(&all, "occupant_started")["seq"].as_u64().unwrap();
    let replayed =
        of_type(&all, "agent_update").into_iter().filter(|event| event["seq"].as_u64().unwrap() < started);
    assert_eq!(replayed.count(), before, "nothing was recorded while it was told again");
}

/// Where an agent lists nothing, its word is all there is, and its owner may not take it.
#[tokio::test]
async fn an_owner_can_have_only_what_is_compared() {
    let (_server, http) = server().await;
    for (name, resume, how) in
        [("any", "any", "resumed"), ("load", "load", "loaded"), ("none", "transcript", "transcript")]
    {
        let manifest =
            format!("command = \"outlast\"\nargs = [\"demo-agent\", \"--no-list\"]\nresume = \"{resume}\"\n");
        deploy(&http, name, &manifest).await;
        let id = session_of(&http, &json!({"agent": name})).await;
        say(&http, &id, "remember swordfish").await;
        act(&http, &id, "stop").await.expect(200).unwrap();
        say(&http, &id, "echo back").await;
        assert_eq!(last(&events(&http, &id).await, "occupant_started")["how"], how, "{name}");
    }
}

#[tokio::test]
async fn a_policy_answers_for_a_person() {
    let (_server, http) = server().await;
    let allowed = demo_with(&http, "trusted", "", "permissions = \"allow\"").await;
    say(&http, &allowed, "permission").await;
    let all = events(&http, &allowed).await;
    let answered = last(&all, "permission_answered");
    assert_eq!((&answered["actor"], &answered["why"]), (&json!("system"), &json!("the agent's policy")));
    assert_eq!(answered["answer"]["outcome"], "selected");

    let policy = "permissions = \"allow\"\n[[policy.rules]]\nanswer = \"deny\"";
    let denied = demo_with(&http, "untrusted", "", policy).await;
    say(&http, &denied, "permission").await;
    let all = events(&http, &denied).await;
    assert_eq!(last(&all, "permission_answered")["why"], "rule 1 of the agent's policy");
    assert_ne!(
        last(&all, "permission_answered")["answer"]["optionId"],
        json!(of_type(&all, "permission_requested")[0]["options"][0]["optionId"])
    );

    let late = demo_with(&http, "impatient", "", "permission_secs = 1").await;
    say(&http, &late, "permission").await;
    let all = events(&http, &late).await;
    assert_eq!(last(&all, "permission_answered")["answer"]["outcome"], "cancelled");
    assert_eq!(last(&all, "permission_answered")["why"], "nobody answered in time");
}

#[tokio::test]
async fn budgets_end_turns_with_a_reason() {
    let (_server, http) = server().await;
    let id = demo_with(&http, "once", "", "session_turns = 2").await;
    say(&http, &id, "echo one").await;
    act(&http, &id, "stop").await.expect(200).unwrap();
    say(&http, &id, "echo two").await;
    say(&http, &id, "echo three").await;
    let ended = last(&events(&http, &id).await, "turn_ended").clone();
    assert_eq!((&ended["outcome"], &ended["reason"]), (&json!("failed"), &json!("budget")), "{ended}");

    let id = session(&http).await;
    let limited = json!({"content": "tool\ntool\ntool\nsleep 60000", "maxTurns": 2});
    send(&http, &id, &limited).await.collect().await.unwrap();
    let ended = last(&events(&http, &id).await, "turn_ended").clone();
    assert_eq!((&ended["outcome"], &ended["reason"]), (&json!("failed"), &json!("step_limit")), "{ended}");
    // The session lives on, and one that stays within its limit is not touched.
    let within = json!({"content": "echo fine", "maxTurns": 2});
    assert_eq!(text_of(&send(&http, &id, &within).await.collect().await.unwrap()), "fine");
    // An agent that does not tell its cost cannot be held to a budget, and that is said.
    let limited = json!({"content": "echo with", "maxBudgetUsd": 0.5});
    assert_eq!(text_of(&send(&http, &id, &limited).await.collect().await.unwrap()), "with");
    let all = events(&http, &id).await;
    let warned = of_type(&all, "notice")
        .iter()
        .any(|notice| notice["text"].as_str().unwrap().contains("not enforced"));
    assert!(warned, "{all:?}");
}

/// Sums of what turns used: in the session, of the tenant, and the same after a kill, a fork and a removal.
#[tokio::test]
async fn what_turns_used_is_summed_for_session_and_tenant() {
    let (mut server, http) = server().await;
    let tenants = async |http: &Http| http.get("/api/usage").await.unwrap().expect(200).unwrap();
    assert_eq!(tenants(&http).await["usage"]["turns"], 0);
    let (one, two) = (session(&http).await, session(&http).await);
    say(&http, &one, "echo 12345678\ncost 7").await;
    say(&http, &one, "cost 5").await;
    say(&http, &two, "error").await;
    say(&http, &two, "cost 100").await;
    // A turn that is ended from outside has cost what was told by then.
    let mut stopped = send(&http, &two, &json!({"content": "cost 3\nsilent"})).await;
    until(&http, &two, |event| event["update"]["cost"]["amount"] == 1.03).await;
    act(&http, &two, "stop").await.expect(200).unwrap();
    stopped.collect().await.unwrap();

    let recorded = [events(&http, &one).await, events(&http, &two).await].concat();
    let ended = of_type(&recorded, "turn_ended");
    let tokens =
        |name: &str| ended.iter().map(|event| event["usage"][name].as_u64().unwrap_or(0)).sum::<u64>();
    let (first, all) = (get(&http, &one).await["usage"].clone(), tenants(&http).await);
    assert_eq!(
        (&first["turns"], &first["untoldTurns"], &first["costUsd"]),
        (&json!(2), &json!(0), &json!(0.12))
    );
    assert!(first["inputTokens"].as_u64().unwrap() > 0);
    assert_eq!((&all["usage"]["turns"], &all["usage"]["untoldTurns"]), (&json!(5), &json!(1)), "{all}");
    assert_eq!(all["usage"]["costUsd"], 1.15, "{all}");
    assert_eq!(all["usage"]["inputTokens"], tokens("inputTokens"));
    assert_eq!(all["usage"]["outputTokens"], tokens("outputTokens"));

    server.kill9().unwrap();
    server.restart().await.unwrap();
    let http = server.http().unwrap();
    assert_eq!(tenants(&http).await["usage"], all["usage"], "the same after a kill");
    assert_eq!(get(&http, &one).await["usage"], first);
    let forked =
        http.post(&format!("/api/sessions/{one}/fork"), &json!({})).await.unwrap().expect(201).unwrap();
    assert_eq!(forked["session"]["usage"]["turns"], 0, "a fork has used nothing yet");
    http.delete(&format!("/api/sessions/{two}?purge=true")).await.unwrap().expect(200).unwrap();
    assert_eq!(tenants(&http).await["usage"], all["usage"], "what is used stays used");
    let told = server.cli(&["usage"]).await.unwrap().ok().unwrap();
    assert!(told.contains("$1.15") && told.contains("stored"), "{told}");
    let told = server.cli(&["usage", &one]).await.unwrap().ok().unwrap();
    assert!(told.contains("$0.12"), "{told}");
}

#[tokio::test]
async fn open_tool_calls_are_marked_when_a_turn_is_cancelled() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let mut running = send(&http, &id, &json!({"content": "permission"})).await;
    until(&http, &id, is("permission_requested")).await;
    act(&http, &id, "cancel").await.expect(200).unwrap();
    running.collect().await.unwrap();
    let all = events(&http, &id).await;
    assert_eq!(last(&all, "permission_answered")["answer"]["outcome"], "cancelled");
    let mut open: Vec<Value> = vec![];
    for update in of_type(&all, "agent_update").iter().map(|event| &event["update"]) {
        let (call, status) = (&update["toolCallId"], update["status"].as_str());
        match (update["sessionUpdate"].as_str(), status) {
            (Some("tool_call_update"), Some("completed" | "failed")) => open.retain(|known| known != call),
            (Some("tool_call"), _) => open.push(call.clone()),
            _ => {}
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

/// A shell script that speaks just enough ACP to ask its client for files and a terminal.
const ASKS: &str = r#"
id() { printf %s "$1" | sed 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/'; }
say() { printf '%s\n' "$1"; }
ask() { say "{\"jsonrpc\":\"2.0\",\"id\":\"$1\",\"method\":\"$2\",\"params\":{\"sessionId\":\"s\",$3}}"; read -r answer; }
tell() { text=$(printf %s "$answer" | sed 's/\\/\\\\/g; s/"/\\"/g'); say "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s\",\"update\":{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"$text;\"}}}}"; }
read -r line; can=$line; say "{\"jsonrpc\":\"2.0\",\"id\":$(id "$line"),\"result\":{\"protocolVersion\":1}}"
read -r line; say "{\"jsonrpc\":\"2.0\",\"id\":$(id "$line"),\"result\":{\"sessionId\":\"s\"}}"
read -r line; prompt=$(id "$line")
answer=$can; tell
ask a fs/write_text_file "\"path\":\"$HOME/notes/a.txt\",\"content\":\"one\\ntwo\\nthree\\n\""; tell
ask b fs/read_text_file "\"path\":\"$HOME/notes/a.txt\",\"line\":2,\"limit\":1"; tell
ask c fs/read_text_file "\"path\":\"/etc/passwd\""; tell
ask d fs/read_text_file "\"path\":\"$HOME/../x\""; tell
ask e terminal/create "\"command\":\"sh\",\"args\":[\"-c\",\"cat notes/a.txt; echo \$EXTRA >&2; exit 3\"],\"env\":[{\"name\":\"EXTRA\",\"value\":\"more\"}]"; tell
terminal=$(printf %s "$answer" | sed 's/.*"terminalId":"\([^"]*\)".*/\1/')
ask f terminal/wait_for_exit "\"terminalId\":\"$terminal\""; tell
ask g terminal/output "\"terminalId\":\"$terminal\""; tell
ask h terminal/release "\"terminalId\":\"$terminal\""; tell
ask i terminal/output "\"terminalId\":\"$terminal\""; tell
ask j terminal/create "\"command\":\"sleep\",\"args\":[\"1000\"]"; terminal=$(printf %s "$answer" | sed 's/.*"terminalId":"\([^"]*\)".*/\1/')
ask k terminal/kill "\"terminalId\":\"$terminal\""
ask l terminal/wait_for_exit "\"terminalId\":\"$terminal\""; tell
say "{\"jsonrpc\":\"2.0\",\"id\":$prompt,\"result\":{\"stopReason\":\"end_turn\"}}"
exec cat >/dev/null
"#;

#[tokio::test]
async fn files_and_terminals_are_the_places_own() {
    let (_server, http) = server().await;
    deploy_script(&http, "asks", ASKS).await;
    let id = session_of(&http, &json!({"agent": "asks"})).await;
    let told = text_of(&say(&http, &id, "go").await);
    for words in [
        r#""readTextFile":true"#,
        r#""terminal":true"#,
        r#""id":"b","result":{"content":"two\n"}"#,
        r#""id":"c","error""#,
        r#""id":"d","error""#,
        r#""exitCode":3"#,
        r#"one\ntwo\nthree\n"#,
        r"more\n",
        r#""id":"h","result":{}"#,
        r#""id":"i","error""#,
        r#""signal":"9""#,
    ] {
        assert!(told.contains(words), "no {words} in {told}");
    }
    assert!(!told.contains("root:"), "{told}");
}
