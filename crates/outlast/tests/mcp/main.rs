//! Public MCP clients from npm against the built binary: the inspector's command line calls every tool, and the
//! conformance suite runs what applies to a server of tools. Where npm or the network is missing they are skipped,
//! and counted as that. `cargo xtask test --mcp` runs them alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking and says why"
)]

#[path = "../it/kit.rs"]
#[allow(dead_code, unused_imports, reason = "the kit serves another test program as well")]
mod kit;

use kit::*;
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

/// What of the conformance suite is about servers that have tools and nothing else.
const SCENARIOS: [&str; 10] = [
    "server-initialize",
    "server-session-lifecycle",
    "server-stateless",
    "logging-set-level",
    "ping",
    "tools-list",
    "server-sse-multiple-streams",
    "server-sse-polling",
    "dns-rebinding-protection",
    "http-header-validation",
];
/// Checks that call tools of the suite's own, which no other server has.
const NOT_OURS: [&str; 4] = [
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
    "sep-2575-http-server-no-independent-requests-on-stream",
    "sep-2575-server-no-log-without-loglevel",
];

/// The folder that npm filled, once for all; or why there is none.
async fn clients() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("mcp-clients");
    fs::create_dir_all(&home).unwrap();
    let lock = fs::File::create(home.join("lock")).unwrap();
    let _held = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock)).await.unwrap().unwrap();
    let package = include_str!("package.json");
    if fs::read_to_string(home.join("installed")).is_ok_and(|text| text == package) {
        return Ok(home);
    }
    fs::write(home.join("package.json"), package).unwrap();
    let args = ["install", "--no-audit", "--no-fund", "--loglevel=error"];
    let installed = run_in(&home, "npm", args, &[]).await.and_then(testkit::Finished::ok);
    installed.map_err(|error| format!("npm install: {error:#}"))?;
    fs::write(home.join("installed"), package).unwrap();
    Ok(home)
}

async fn node(home: &Path, program: &str, args: &[&str]) -> testkit::Finished {
    let node = home.join("node_modules/node/bin/node");
    let path = format!("{}:/usr/bin:/bin", node.parent().unwrap().display());
    let program = format!("node_modules/.bin/{program}");
    let mut all = vec![program.as_str()];
    all.extend(args);
    run_in(home, node, all, &[("PATH", &path), ("NO_COLOR", "1")]).await.unwrap()
}

/// One call by the inspector; the result as it prints it.
async fn inspect(home: &Path, target: &[&str], tool: &str, arguments: &Value) -> Value {
    let mut args = vec!["--cli"];
    args.extend(target);
    args.extend(["--method", "tools/call", "--tool-name", tool]);
    let pairs: Vec<String> = arguments
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| {
            format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        })
        .collect();
    for pair in &pairs {
        args.extend(["--tool-arg", pair]);
    }
    let finished = node(home, "mcp-inspector", &args).await;
    let start = finished.stdout.find('{').unwrap_or_else(|| panic!("{tool}: {finished:?}"));
    serde_json::from_str(&finished.stdout[start..])
        .unwrap_or_else(|error| panic!("{tool}: {error}: {finished:?}"))
}

#[tokio::test]
async fn the_inspector_calls_every_tool() {
    let home = match clients().await {
        Ok(home) => home,
        Err(why) => return skip("mcp::the_inspector_calls_every_tool", &why),
    };
    let (server, _http) = server().await;
    let folder = fs::canonicalize(server.scratch()).unwrap().join("work");
    fs::create_dir(&folder).unwrap();
    let data = server.data().to_string_lossy().into_owned();
    let (url, authorization) = (
        format!("{}/mcp", server.url().unwrap()),
        format!("Authorization: Bearer {}", server.key().unwrap()),
    );
    let stdio = [PROGRAM, "mcp", "--data", &data];
    let http = [&url, "--transport", "http", "--header", &authorization];
    for target in [&stdio[..], &http[..]] {
        let mut list = vec!["--cli"];
        list.extend(target);
        list.extend(["--method", "tools/list", "--strict"]);
        let listed = node(&home, "mcp-inspector", &list).await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
        assert!(!listed.stderr.contains("Warning: tool"), "{}", listed.stderr);
        let create = json!({"transport": "local", "place": "host", "cwd": folder});
        let made = inspect(&home, target, "session_create", &create).await;
        let id =
            made["structuredContent"]["session_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        let exec = json!({"session_id": id, "command": "cat", "stdin": "open", "yield_secs": 0});
        let begun = inspect(&home, target, "session_exec", &exec).await;
        let command = begun["structuredContent"]["command_id"].as_u64().unwrap_or_else(|| panic!("{begun}"));
        let of = |extra: Value| {
            let mut arguments = json!({"session_id": id, "command_id": command});
            arguments.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            arguments
        };
        for (tool, arguments, field, value) in [
            ("session_write", of(json!({"text": "hello"})), "written", json!(5)),
            ("session_signal", of(json!({"signal": "INT"})), "signalled", json!(true)),
            ("session_poll", of(json!({"wait_secs": 20})), "running", json!(false)),
            ("session_destroy", json!({"session_id": id}), "destroyed", json!(true)),
            ("session_list", json!({}), "sessions", json!([])),
        ] {
            let result = inspect(&home, target, tool, &arguments).await;
            assert_eq!(result["structuredContent"][field], value, "{tool}: {result}");
        }
        for tool in ["session_checkpoint", "session_checkpoints", "session_restore"] {
            let refused = inspect(&home, target, tool, &json!({"session_id": "77_local"})).await;
            assert_eq!(refused["isError"], true, "{tool}: {refused}");
        }
    }
}

#[tokio::test]
async fn the_conformance_suite_passes_what_applies() {
    let home = match clients().await {
        Ok(home) => home,
        Err(why) => return skip("mcp::the_conformance_suite_passes_what_applies", &why),
    };
    let (server, _http) = server().await;
    let port = with_key(server.address().unwrap(), server.key().unwrap()).await;
    let url = format!("http://127.0.0.1:{port}/mcp");
    let mut wrong = vec![];
    for scenario in SCENARIOS {
        let ended = node(&home, "conformance", &["server", "--url", &url, "--scenario", scenario]).await;
        let said = format!("{}{}", ended.stdout, ended.stderr);
        let summary = said.lines().find(|line| line.contains("Passed:")).unwrap_or("no summary");
        eprintln!("{scenario}: {summary}");
        let failed = said.lines().filter(|line| line.contains("FAILURE"));
        wrong.extend(
            failed
                .filter(|line| !NOT_OURS.iter().any(|known| line.contains(known)))
                .map(|line| format!("{scenario}: {line}")),
        );
        if !summary.contains("Passed:") {
            wrong.push(format!("{scenario}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The suite cannot send a key: it goes through here, one request a connection.
async fn with_key(server: SocketAddr, key: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let key = key.clone();
            tokio::spawn(async move {
                // A client that leaves early is its own affair.
                let _ = pass(stream, server, &key).await;
            });
        }
    });
    port
}

async fn pass(client: TcpStream, server: SocketAddr, key: &str) -> std::io::Result<()> {
    let mut client = BufReader::new(client);
    let mut head = format!("Authorization: Bearer {key}\r\nConnection: close\r\n");
    let mut first = String::new();
    client.read_line(&mut first).await?;
    loop {
        let mut line = String::new();
        client.read_line(&mut line).await?;
        if line.trim_end().is_empty() {
            break;
        }
        if !line.to_ascii_lowercase().starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let mut onward = TcpStream::connect(server).await?;
    onward.write_all(format!("{first}{head}\r\n").as_bytes()).await?;
    tokio::io::copy_bidirectional(&mut client, &mut onward).await.map(drop)
}
