//! Clients that others wrote: `ash-ai-sdk`, `mcp` and `schemathesis`, from PyPI, in a virtual environment of their own.

use crate::kit::*;
use std::{
    fs,
    path::{Path, PathBuf},
};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python");

/// The environment's Python, prepared once for all tests; or why there is none.
async fn python() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("python");
    let requirements = fs::read_to_string(format!("{SCRIPTS}/requirements.txt")).unwrap();
    fs::create_dir_all(&home).unwrap();
    // Tests run as processes of their own: one prepares, the others wait for its lock.
    let lock = fs::File::create(home.join("lock")).unwrap();
    // Bound to a name: the lock goes with the file.
    let _held = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock)).await.unwrap().unwrap();
    let (done, python) = (home.join("done"), home.join("venv/bin/python"));
    if fs::read_to_string(&done).is_ok_and(|text| text == requirements) {
        return Ok(python);
    }
    let failed = |what: &str, said: String| Err(format!("{what} failed: {}", said.trim()));
    let venv = home.join("venv").to_string_lossy().into_owned();
    let made =
        run("python3", ["-m", "venv", "--clear", &venv], &[]).await.map_err(|error| error.to_string())?;
    if made.code != Some(0) {
        return failed("python3 -m venv", made.stderr + &made.stdout);
    }
    let list = format!("{SCRIPTS}/requirements.txt");
    let install = ["-m", "pip", "install", "--quiet", "--requirement", &list];
    let installed = run(&python, install, &[]).await.map_err(|error| error.to_string())?;
    if installed.code != Some(0) {
        return failed("pip install", installed.stderr);
    }
    fs::write(done, requirements).unwrap();
    Ok(python)
}

#[tokio::test]
async fn ash_sdk_holds_a_conversation() {
    let python = match python().await {
        Ok(python) => python,
        Err(reason) => return skip("public_clients::ash_sdk_holds_a_conversation", &reason),
    };
    let (server, _http) = server().await;
    let script = format!("{SCRIPTS}/ash_conversation.py");
    let (url, key) = (server.url().unwrap(), server.key().unwrap());
    let said = run(python, [script.as_str(), &url, &key], &[]).await.unwrap().ok().unwrap();
    assert_eq!(said.trim(), "ok");
}

#[tokio::test]
async fn schemathesis_finds_no_server_error() {
    let python = match python().await {
        Ok(python) => python,
        Err(reason) => return skip("public_clients::schemathesis_finds_no_server_error", &reason),
    };
    let (mut server, http) = server().await;
    session(&http).await;
    let authorization = format!("Authorization: Bearer {}", server.key().unwrap());
    let schema = format!("{}/openapi.json", server.url().unwrap());
    let options = [
        "run",
        &schema,
        "--header",
        &authorization,
        "--checks",
        "not_a_server_error",
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        "20",
        "--generation-deterministic",
        "--request-timeout",
        "20",
        // With more, Python 3.11's parser fails now and then.
        "--workers",
        "1",
        "--no-color",
    ];
    let hooks = [("SCHEMATHESIS_HOOKS", "hooks"), ("PYTHONPATH", SCRIPTS), ("PYTHONDONTWRITEBYTECODE", "1")];
    let program = python.with_file_name("schemathesis");
    let ended = run_in(server.scratch(), program, options, &hooks).await.unwrap();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(server.is_running());
    // It may well have removed every session and agent that it found.
    let program = serde_json::Value::String("outlast".to_owned());
    deploy(&http, "after", &format!("command = {program}\nargs = [\"demo-agent\"]\n")).await;
    let id = session_of(&http, &serde_json::json!({"agent": "after"})).await;
    assert_eq!(text_of(&say(&http, &id, "echo unharmed").await), "unharmed");
}

/// Every tool, in the last version with a handshake and the first one without.
const MCP_VERSIONS: [&str; 2] = ["legacy", "2026-07-28"];

#[tokio::test]
async fn the_mcp_sdk_calls_every_tool_over_stdio() {
    let python = match python().await {
        Ok(python) => python,
        Err(reason) => return skip("public_clients::the_mcp_sdk_calls_every_tool_over_stdio", &reason),
    };
    let (server, _http) = server().await;
    let script = format!("{SCRIPTS}/mcp_tools.py");
    let data = server.data().to_string_lossy().into_owned();
    for version in MCP_VERSIONS {
        let folder = scratch(&server, version);
        let args = [script.as_str(), "stdio", version, &folder, PROGRAM, "mcp", "--data", &data];
        let said = run(&python, args, &[]).await.unwrap().ok().unwrap();
        assert_eq!(said.trim(), "ok", "{version}");
    }
}

#[tokio::test]
async fn the_mcp_sdk_calls_every_tool_over_http() {
    let python = match python().await {
        Ok(python) => python,
        Err(reason) => return skip("public_clients::the_mcp_sdk_calls_every_tool_over_http", &reason),
    };
    let (server, _http) = server().await;
    let script = format!("{SCRIPTS}/mcp_tools.py");
    let (url, key) = (server.url().unwrap(), server.key().unwrap());
    for version in MCP_VERSIONS {
        let folder = scratch(&server, version);
        let args = [script.as_str(), "http", version, &folder, &url, &key];
        let said = run(&python, args, &[]).await.unwrap().ok().unwrap();
        assert_eq!(said.trim(), "ok", "{version}");
    }
}

fn scratch(server: &Server, name: &str) -> String {
    let folder = server.scratch().join(name);
    fs::create_dir(&folder).unwrap();
    fs::canonicalize(folder).unwrap().to_string_lossy().into_owned()
}
