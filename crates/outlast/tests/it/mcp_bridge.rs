//! The bridge `outlast mcp`: what it brings along, the server it starts, and servers that go away under it.

use crate::{
    kit::*,
    mcp::{client, exec, shell},
};
use serde_json::{Value, json};
use std::{fs, path::Path};
use testkit::{Mcp, mcp::HANDSHAKE_VERSION};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

/// A data folder of its own, whose background server ends with it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("outlast-mcp-").tempdir().unwrap())
    }

    fn data(&self) -> std::path::PathBuf {
        self.0.path().join("data")
    }

    fn running(&self) -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(self.data().join("server.json")).ok()?).ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let pid = self.running().and_then(|running| running["pid"].as_i64());
        let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        testkit::end_below(self.0.path());
    }
}

async fn open(data: &Path, args: &[&str]) -> Mcp {
    Mcp::open(PROGRAM.as_ref(), data, args).await.unwrap()
}

#[tokio::test]
async fn bridges_start_one_server_on_a_socket_which_outlives_them() {
    let folder = Folder::new();
    let data = folder.data();
    let (one, two) = tokio::join!(open(&data, &[]), open(&data, &[]));
    let running = folder.running().unwrap();
    assert_eq!(running["background"], true);
    assert!(running["url"].as_str().unwrap().starts_with("unix:"), "{running}");
    assert!(one.close().await.unwrap().success());
    assert!(two.close().await.unwrap().success());
    let three = open(&data, &[]).await;
    assert_eq!(folder.running().unwrap()["pid"], running["pid"]);
    // The command line finds it too.
    let listed = run(PROGRAM, ["agent", "ls", "--data", &data.to_string_lossy()], &[]).await.unwrap();
    assert_eq!(listed.code, Some(0), "{listed:?}");
    drop(three);
}

/// A server of a version without this door, as far as a bridge can see.
async fn old_server(listener: tokio::net::TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut stream = tokio::io::BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.is_ok_and(|count| count > 0) {}
        let health = json!({"status": "ok", "version": "0.0.1", "activeSessions": 0, "activeSandboxes": 0, "uptime": 1});
        let (status, body) = match head.split(' ').nth(1) {
            Some("/health") => ("200 OK", health),
            Some("/api/agents") => ("200 OK", json!({"agents": []})),
            _ => (
                "404 Not Found",
                json!({"error": "there is no such path", "statusCode": 404, "code": "not_found", "requestId": "1"}),
            ),
        };
        let body = body.to_string();
        let reply = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.get_mut().write_all(reply.as_bytes()).await;
    }
}

#[tokio::test]
async fn an_older_server_is_told_of_and_left_alone() {
    let folder = Folder::new();
    let data = folder.data();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(old_server(listener));
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("api-key"), "key").unwrap();
    // Our own process stands for the server's: it must survive.
    let running = json!({"url": url, "pid": std::process::id(), "version": "0.0.1"});
    fs::write(data.join("server.json"), running.to_string()).unwrap();
    let ended = run(PROGRAM, ["mcp", "--data", &data.to_string_lossy()], &[]).await.unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.is_empty());
    assert!(ended.stderr.contains("0.0.1") && ended.stderr.contains("Restart it"), "{}", ended.stderr);
    fs::remove_file(data.join("server.json")).unwrap();
    serving.abort();
}

#[tokio::test]
async fn a_server_that_is_killed_is_replaced_and_nothing_hangs() {
    let folder = Folder::new();
    let data = folder.data();
    let client = open(&data, &[]).await;
    for _ in 0..3 {
        let pid = folder.running().unwrap()["pid"].as_i64().unwrap();
        let server = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        let listed = client.request("tools/list", json!({})).await.unwrap();
        assert!(listed["result"]["tools"].is_array(), "{listed}");
        assert_ne!(folder.running().unwrap()["pid"], pid);
    }
}

#[tokio::test]
async fn a_command_outlives_the_server_and_its_call_is_answered() {
    let (mut server, _http) = server().await;
    let client = client(&server).await;
    let id = shell(&client, json!({"transport": "local"})).await;
    let command = "for i in 1 2 3 4 5; do echo $i; sleep 0.5; done";
    let begun =
        client.begin_call("session_exec", json!({"session_id": id, "command": command})).await.unwrap();
    // It has run for a while when something of it can be read.
    loop {
        let listed = client.call("session_list", json!({})).await.unwrap();
        let Some(running) = listed["sessions"][0]["running"].as_u64() else { continue };
        let polled =
            client.call("session_poll", json!({"session_id": id, "command_id": running})).await.unwrap();
        if polled["stdout"].as_str().unwrap().contains('2') {
            break;
        }
    }
    server.kill9().unwrap();
    server.restart().await.unwrap();
    let answer = testkit::mcp::result(&begun.answer().await.unwrap()).unwrap();
    assert_eq!(answer["stdout"], "1\n2\n3\n4\n5", "{answer}");
    assert_eq!(answer["exit_code"], 0);
    assert_eq!(exec(&client, &id, "echo $i").await["stdout"], "5", "the shell is the same one");
}

#[tokio::test]
async fn a_shell_has_the_folder_the_environment_and_the_umask_of_its_bridge() {
    let (server, _http) = server().await;
    let folder = server.scratch().join("mine");
    fs::create_dir(&folder).unwrap();
    let env = [("FROM_BRIDGE", "yes"), ("OUTLAST_KEY", &server.key().unwrap())];
    let client = Mcp::open_in(&folder, PROGRAM.as_ref(), server.data(), &[], &env).await.unwrap();
    let id = shell(&client, json!({"transport": "local"})).await;
    let said = exec(&client, &id, "pwd; echo $FROM_BRIDGE; echo key:$OUTLAST_KEY; umask").await;
    let text = said["stdout"].as_str().unwrap();
    let folder = fs::canonicalize(&folder).unwrap();
    assert!(text.starts_with(&format!("{}\nyes\nkey:\n0", folder.display())), "{text}");
}

#[tokio::test]
async fn a_narrow_bridge_opens_nothing_wider() {
    let (server, _http) = server().await;
    let client = Mcp::open(PROGRAM.as_ref(), server.data(), &["--place", "sandbox"]).await.unwrap();
    let (code, sentence) =
        client.refused("session_create", json!({"transport": "local", "place": "host"})).await.unwrap();
    assert_eq!(code, "forbidden");
    assert!(sentence.contains("sandbox"), "{sentence}");
}

#[tokio::test]
async fn words_before_the_end_of_stdin_are_answered() {
    let (server, _http) = server().await;
    let mut client = Mcp::start("/".as_ref(), PROGRAM.as_ref(), server.data(), &[], &[]).unwrap();
    client.shake_hands(HANDSHAKE_VERSION).await.unwrap();
    let begun = client.begin("tools/list", json!({})).await.unwrap();
    client.finish().await;
    assert!(begun.answer().await.unwrap()["result"]["tools"].is_array());
    assert!(client.ended().await.unwrap().success());
}
