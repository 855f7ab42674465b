//! Through the whole program: what a session's agent cannot reach, and who may ask for more. The probes of single
//! system calls are the keeper's own (`crates/keeper/tests/sandbox.rs`).

use crate::kit::*;
use serde_json::{Value, json};
use std::path::PathBuf;

/// What the agent says when it did not get at a file.
fn barred(said: &str) -> bool {
    said.starts_with("cannot read ") || said.starts_with("cannot write ")
}

/// Files of the machine and of the server that are there, by what they are.
fn outside(server: &Server, neighbour: &str) -> Vec<(&'static str, PathBuf)> {
    let data = server.data();
    vec![
        ("password hashes", PathBuf::from("/etc/shadow")),
        ("the journal", data.join("outlast.db")),
        ("the first key", data.join("api-key")),
        ("the master key", data.join("master.key")),
        ("another session's workspace", data.join("places").join(neighbour).join("note")),
        ("the server's log", server.log().to_owned()),
    ]
}

#[tokio::test]
async fn a_session_reads_and_writes_nothing_outside() {
    let (server, http) = server().await;
    let (neighbour, id) = (session(&http).await, session(&http).await);
    assert!(!barred(&text_of(&say(&http, &neighbour, "write note of the neighbour").await)));
    let files = outside(&server, &neighbour);
    for (what, path) in &files {
        assert!(path.exists(), "{what}: {}", path.display());
        let said = text_of(&say(&http, &id, &format!("cat {}", path.display())).await);
        assert!(barred(&said), "{what} was read: {said}");
        // By climbing out of home as well.
        let climbing = format!("cat ../..{}", path.display());
        assert!(barred(&text_of(&say(&http, &id, &climbing).await)), "{what}");
        // Not every tester can read the password hashes.
        let before = std::fs::read(path).ok();
        let said = text_of(&say(&http, &id, &format!("write {} overwritten", path.display())).await);
        assert!(barred(&said), "{what} was written: {said}");
        let after = std::fs::read(path).ok();
        let grows = *what == "the journal" || *what == "the server's log";
        assert!(grows || before == after, "{what} has changed");
    }
    for folder in ["/etc", "/usr", "/var", server.data().to_str().unwrap()] {
        let file = format!("{folder}/outlast-probe");
        let said = text_of(&say(&http, &id, &format!("write {file} x")).await);
        assert!(barred(&said), "{said}");
        assert!(!PathBuf::from(&file).exists(), "{file}");
    }
    // What is the session's own works, and stays apart from the machine's.
    assert!(!barred(&text_of(&say(&http, &id, "write /tmp/outlast-probe-own x").await)));
    assert!(!PathBuf::from("/tmp/outlast-probe-own").exists());
    assert_eq!(text_of(&say(&http, &id, "cat /tmp/outlast-probe-own").await), "x");
    assert_eq!(text_of(&say(&http, &neighbour, "cat note").await), "of the neighbour");

    let told = events(&http, &id).await;
    let limits = of_type(&told, "notice");
    let limits = limits.iter().filter_map(|notice| notice["text"].as_str());
    assert_eq!(
        limits.filter(|text| text.starts_with("in a sandbox; limits in force: ")).count(),
        1,
        "{told:?}"
    );
}

/// The same attempts without walls: they are sound, and the record says that nothing was contained.
#[tokio::test]
async fn on_the_bare_host_the_same_attempts_succeed() {
    let (server, http) = server().await;
    let neighbour = session(&http).await;
    say(&http, &neighbour, "write note of the neighbour").await;
    let id = session_of(&http, &json!({"agent": "demo", "place": "host"})).await;
    let root = rustix::process::geteuid().is_root();
    for (what, path) in outside(&server, &neighbour) {
        let said = text_of(&say(&http, &id, &format!("cat {}", path.display())).await);
        assert_eq!(barred(&said), !root && what == "password hashes", "{what}: {said}");
    }
    let told = events(&http, &id).await;
    let notices = of_type(&told, "notice");
    assert!(
        notices.iter().any(|notice| notice["text"].as_str().unwrap().contains("nothing is contained")),
        "{notices:?}"
    );
}

async fn deploy(http: &Http, name: &str, policy: &str) {
    let manifest = format!("command = \"outlast\"\nargs = [\"demo-agent\"]\n[policy]\n{policy}\n");
    let request = json!({"name": name, "files": [{"path": "agent.toml", "content": manifest}]});
    http.post("/api/agents", &request).await.unwrap().expect(201).unwrap();
}

#[tokio::test]
async fn nobody_gets_more_than_the_operator_allows() {
    let (_server, http) = server().await;
    for (name, policy) in [
        ("full", "network = \"full\""),
        ("forward", "network = [\"127.0.0.1:22\"]"),
        ("mount", "mounts = [{ from = \"/etc\" }]"),
    ] {
        deploy(&http, name, policy).await;
        let reply = http.post("/api/sessions", &json!({"agent": name})).await.unwrap();
        let sentence = refusal(&reply, 403, "forbidden");
        assert!(sentence.contains("sandbox."), "it names the setting: {sentence}");
    }
    let list = http.get("/api/sessions").await.unwrap().expect(200).unwrap();
    assert_eq!(list["sessions"], json!([]), "nothing is left of a refused session");
}

#[tokio::test]
async fn a_session_only_narrows() {
    let (_server, http) = server().await;
    deploy(&http, "listed", "network = [\"*.example.org\"]").await;
    let create = async |policy: Value| {
        http.post("/api/sessions", &json!({"agent": "listed", "policy": policy})).await.unwrap()
    };
    for wider in [
        json!({"network": "full"}),
        json!({"network": ["example.com"]}),
        json!({"network": ["127.0.0.1:80"]}),
        json!({"mounts": [{"from": "/etc"}]}),
    ] {
        refusal(&create(wider).await, 400, "invalid_request");
    }
    for narrower in [
        json!({"network": "none"}),
        json!({"network": ["a.example.org:443"]}),
        json!({"limits": {"memory_mb": 256, "processes": 64}}),
    ] {
        create(narrower).await.expect(201).unwrap();
    }
}

#[tokio::test]
async fn the_bare_host_is_not_for_other_tenants() {
    let (_server, http) = server().await;
    let wanted = json!({"scope": "admin", "label": "a test's", "tenant": "other"});
    let made = http.post("/api/api-keys", &wanted).await.unwrap().expect(201).unwrap();
    let other = http.with_key(Some(made["key"].as_str().unwrap()));
    deploy(&other, "theirs", "").await;
    let reply = other.post("/api/sessions", &json!({"agent": "theirs", "place": "host"})).await.unwrap();
    refusal(&reply, 403, "forbidden");
    session_of(&other, &json!({"agent": "theirs"})).await;
}
