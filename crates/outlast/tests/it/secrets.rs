//! Credentials and extra environment reach the agent, and nothing else.

use crate::kit::*;
use serde_json::json;
use std::path::Path;

const CREDENTIAL: &str = "sk-credential-3f9a6c1e77";
const EXTRA: &str = "extra-value-8b21d0c4";

fn assert_nowhere(server: &Server, needle: &str) {
    // The workspaces are the agents' own: the demo agent notes there what it was told.
    let workspaces = server.data().join("places").display().to_string();
    let mut found = files_with(server.data(), needle.as_bytes());
    found.retain(|path| !path.starts_with(&workspaces));
    assert_eq!(found, Vec::<String>::new(), "in the data folder");
    let log = std::fs::read(server.log()).unwrap();
    assert!(!String::from_utf8_lossy(&log).contains(needle), "in the log");
}

#[tokio::test]
async fn secrets_reach_the_agent_and_no_record() {
    let (mut server, http) = server().await;
    let request =
        json!({"type": "custom", "label": "l", "env": {"A_TOKEN": CREDENTIAL, "BOTH": "credential's"}});
    let made = http.post("/api/credentials", &request).await.unwrap();
    assert!(!made.text().contains(CREDENTIAL));
    let credential = made.expect(201).unwrap()["credential"]["id"].as_str().unwrap().to_owned();
    let create = json!({
        "agent": "demo",
        "credentialId": credential,
        "extraEnv": {"EXTRA": EXTRA, "BOTH": "extra's"},
    });
    let created = http.post("/api/sessions", &create).await.unwrap();
    assert!(!created.text().contains(EXTRA) && !created.text().contains(CREDENTIAL));
    let id = created.expect(201).unwrap()["session"]["id"].as_str().unwrap().to_owned();

    // The agent has them: it says so without showing them, since what it says is redacted.
    for (name, value) in [("A_TOKEN", CREDENTIAL), ("EXTRA", EXTRA)] {
        let said = text_of(&say(&http, &id, &format!("env {name}")).await);
        assert!(!said.is_empty() && !said.contains(value), "{name}: {said:?}");
        assert_ne!(said, text_of(&say(&http, &id, "env NOT_SET_ANYWHERE").await), "{name} is set");
    }
    let both = text_of(&say(&http, &id, "env BOTH").await);
    assert!(!both.contains("credential's"), "the session's own wins: {both:?}");
    let home = text_of(&say(&http, &id, "env OUTLAST_DATA").await);
    assert!(!home.contains(server.data().to_str().unwrap()), "nothing of the server's environment: {home:?}");

    // A value split over two deltas is still the value.
    say(&http, &id, &format!("echo {EXTRA}")).await;
    let listed = http.get("/api/credentials").await.unwrap();
    assert!(!listed.text().contains(CREDENTIAL) && listed.text().contains("A_TOKEN"));
    for event in events(&http, &id).await {
        let text = event.to_string();
        assert!(!text.contains(CREDENTIAL) && !text.contains(EXTRA), "{text}");
    }
    for path in ["", "/messages", "/logs"] {
        let reply = http.get(&format!("/api/sessions/{id}{path}")).await.unwrap().text();
        assert!(!reply.contains(CREDENTIAL) && !reply.contains(EXTRA), "{path}: {reply}");
    }
    assert_nowhere(&server, CREDENTIAL);
    assert_nowhere(&server, EXTRA);

    // There again after a cold resume, on a server that has only the disk.
    server.kill9().unwrap();
    server.restart().await.unwrap();
    let missing = text_of(&say(&http, &id, "env NOT_SET_ANYWHERE").await);
    for name in ["A_TOKEN", "EXTRA"] {
        assert_ne!(text_of(&say(&http, &id, &format!("env {name}")).await), missing, "{name}");
    }
    server.stop().await.unwrap();
    assert_nowhere(&server, CREDENTIAL);
    assert_nowhere(&server, EXTRA);
}

#[tokio::test]
async fn one_sessions_environment_is_not_anothers() {
    let (_server, http) = server().await;
    let first = session_of(&http, &json!({"agent": "demo", "extraEnv": {"ONLY_HERE": "short"}})).await;
    let second = session(&http).await;
    let missing = text_of(&say(&http, &second, "env NOT_SET_ANYWHERE").await);
    assert_ne!(text_of(&say(&http, &first, "env ONLY_HERE").await), missing);
    assert_eq!(
        text_of(&say(&http, &second, "env ONLY_HERE").await).replace("ONLY_HERE", ""),
        missing.replace("NOT_SET_ANYWHERE", "")
    );
}

#[tokio::test]
async fn the_servers_own_environment_does_not_reach_agents() {
    let server = Setup::new(PROGRAM).env("A_HOST_SECRET", "leak-7c1d2e").start().await.unwrap();
    let http = server.http().unwrap();
    let id = session(&http).await;
    let said = text_of(&say(&http, &id, "env A_HOST_SECRET").await);
    assert!(!said.contains("leak-7c1d2e"), "{said}");
    let cwd = text_of(&say(&http, &id, "cwd").await);
    assert_eq!(cwd.trim(), "/home/user");
    let host = session_of(&http, &json!({"agent": "demo", "place": "host"})).await;
    let said = text_of(&say(&http, &host, "env A_HOST_SECRET").await);
    assert!(!said.contains("leak-7c1d2e"), "{said}");
    let cwd = text_of(&say(&http, &host, "cwd").await);
    assert!(Path::new(cwd.trim()).starts_with(server.data()), "its own copy of the agent's folder: {cwd}");
}

#[tokio::test]
async fn a_system_prompt_replaces_the_instructions_in_this_session_only() {
    let (_server, http) = server().await;
    let program = serde_json::Value::String("outlast".to_owned());
    let files = json!({"name": "instructed", "files": [
        {"path": "agent.toml", "content": format!("command = {program}\nargs = [\"demo-agent\"]\n")},
        {"path": "CLAUDE.md", "content": "the agent's own"},
    ]});
    http.post("/api/agents", &files).await.unwrap().expect(201).unwrap();
    let with = session_of(&http, &json!({"agent": "instructed", "systemPrompt": "the session's"})).await;
    let without = session_of(&http, &json!({"agent": "instructed"})).await;
    assert!(text_of(&say(&http, &with, "cat CLAUDE.md").await).contains("the session's"));
    assert!(text_of(&say(&http, &without, "cat CLAUDE.md").await).contains("the agent's own"));
}
