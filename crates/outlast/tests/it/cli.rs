//! The command line against a running server.

use crate::kit::*;
use serde_json::Value;
use std::fs;

#[tokio::test]
async fn a_conversation_through_run() {
    let (server, _http) = server().await;
    let said = server.cli(&["run", "demo", "hello"]).await.unwrap().ok().unwrap();
    assert!(!said.trim().is_empty());
    let said = server.cli(&["run", "demo", "echo plain words"]).await.unwrap().ok().unwrap();
    assert!(said.contains("plain words"), "{said}");
    assert!(!said.contains('\u{1b}'), "no colours without a terminal: {said:?}");
    let lines = server.cli(&["run", "demo", "echo x", "--json"]).await.unwrap().ok().unwrap();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[tokio::test]
async fn sessions_are_listed_shown_followed_and_moved() {
    let (server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "echo for the log").await;
    let cli = |args: &'static [&'static str]| {
        let args: Vec<String> = args.iter().map(|arg| arg.replace("ID", &id)).collect();
        let server = &server;
        async move {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            server.cli(&args).await.unwrap().ok().unwrap_or_else(|error| panic!("{args:?}: {error:#}"))
        }
    };
    assert!(cli(&["ls"]).await.contains(&id));
    let list: Value = serde_json::from_str(&cli(&["ls", "--json"]).await).unwrap();
    assert!(list.to_string().contains(&id));
    assert!(cli(&["show", "ID"]).await.contains("active"));
    let shown: Value = serde_json::from_str(&cli(&["show", "ID", "--json"]).await).unwrap();
    assert!(shown.to_string().contains(&id));
    assert!(cli(&["logs", "ID"]).await.contains("for the log"));
    for line in cli(&["logs", "ID", "--json"]).await.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(event["seq"].is_u64(), "{line}");
    }
    cli(&["pause", "ID"]).await;
    assert_eq!(get(&http, &id).await["status"], "paused");
    cli(&["resume", "ID"]).await;
    assert_eq!(get(&http, &id).await["status"], "active");
    cli(&["end", "ID"]).await;
    assert_eq!(get(&http, &id).await["status"], "ended");
    cli(&["rm", "--yes", "ID"]).await;
    refusal(&http.get(&format!("/api/sessions/{id}")).await.unwrap(), 404, "session_not_found");
}

#[tokio::test]
async fn agents_and_keys_are_handled() {
    let (server, _http) = server().await;
    let folder = server.scratch().join("mine");
    fs::create_dir(&folder).unwrap();
    let program = Value::String("outlast".to_owned());
    fs::write(folder.join("agent.toml"), format!("command = {program}\nargs = [\"demo-agent\"]\n")).unwrap();
    server.cli(&["agent", "deploy", folder.to_str().unwrap()]).await.unwrap().ok().unwrap();
    assert!(server.cli(&["agent", "ls"]).await.unwrap().ok().unwrap().contains("mine"));
    assert!(server.cli(&["run", "mine", "echo mine"]).await.unwrap().ok().unwrap().contains("mine"));
    server.cli(&["agent", "rm", "mine"]).await.unwrap().ok().unwrap();
    assert!(!server.cli(&["agent", "ls"]).await.unwrap().ok().unwrap().contains("mine"));

    let made = server.cli(&["key", "create", "--scope", "read", "--json"]).await.unwrap().ok().unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    let key = made["key"].as_str().unwrap();
    let reading = server.http().unwrap().with_key(Some(key));
    reading.get("/api/sessions").await.unwrap().expect(200).unwrap();
    let id = made["apiKey"]["id"].as_str().unwrap();
    assert!(server.cli(&["key", "ls"]).await.unwrap().ok().unwrap().contains(id));
    server.cli(&["key", "rm", id]).await.unwrap().ok().unwrap();
    refusal(&reading.get("/api/sessions").await.unwrap(), 401, "unauthorized");
    server.cli(&["doctor"]).await.unwrap().ok().unwrap();
}

#[tokio::test]
async fn failures_have_exit_codes_and_say_what_to_do() {
    let (mut server, _http) = server().await;
    let nobody = "019a8000-0000-7000-8000-000000000001";
    for args in
        [&["show", nobody][..], &["run", "nobody", "x"], &["pause", "not an id"], &["fly"], &["ls", "--nope"]]
    {
        let ended = server.cli(args).await.unwrap();
        assert!(ended.code.is_some_and(|code| code != 0), "{args:?}: {ended:?}");
        assert!(!ended.stderr.trim().is_empty(), "{args:?}");
    }
    let crashed = server.cli(&["run", "demo", "crash"]).await.unwrap();
    assert!(crashed.code.is_some_and(|code| code != 0), "a turn that failed is no success: {crashed:?}");
    server.kill9().unwrap();
    let unreachable = server.cli(&["ls"]).await.unwrap();
    assert!(unreachable.code.is_some_and(|code| code != 0));
    assert!(unreachable.stderr.contains("serve"), "it says how to start one: {}", unreachable.stderr);
}

#[tokio::test]
async fn help_and_completions_are_there() {
    for args in
        [&["--help"][..], &["serve", "--help"], &["run", "--help"], &["--version"], &["completions", "bash"]]
    {
        let said =
            run(PROGRAM, args, &[]).await.unwrap().ok().unwrap_or_else(|error| panic!("{args:?}: {error:#}"));
        assert!(!said.is_empty(), "{args:?}");
    }
}

#[tokio::test]
async fn logs_follow_across_a_restart_of_the_server() {
    use std::process::Stdio;
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let (mut server, http) = server().await;
    let id = session(&http).await;
    #[expect(clippy::disallowed_methods, reason = "the test reads the program's output as it comes")]
    let mut following = tokio::process::Command::new(PROGRAM)
        .args(["logs", "-f", "--json", &id])
        .env("OUTLAST_DATA", server.data())
        .env("OUTLAST_URL", server.url().unwrap())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut seen = 0;
    for round in 0..2 {
        say(&http, &id, &format!("echo round {round}")).await;
        loop {
            let line = tokio::time::timeout(testkit::limits::CALL, lines.next_line()).await.unwrap().unwrap();
            let event: Value = serde_json::from_str(&line.expect("the command ended")).unwrap();
            seen += 1;
            assert_eq!(event["seq"], seen, "in order, once, without a gap");
            if event.to_string().contains(&format!("round {round}")) && event["type"] == "agent_update" {
                break;
            }
        }
        server.kill9().unwrap();
        server.restart().await.unwrap();
    }
}
