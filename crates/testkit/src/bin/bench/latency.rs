//! How long one event and one turn take on their way.

use crate::figures::{Floor, Report, Target, millis, p50};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};
use testkit::{Http, Server};

const WARM_UP: usize = 30;
const TIMES: usize = 300;

async fn demo_session(http: &Http) -> Result<String> {
    let made = http.post("/api/sessions", &json!({"agent": "demo"})).await?.expect(201)?;
    Ok(made["session"]["id"].as_str().context("no id")?.to_owned())
}

/// From a request that records one event to that event at a follower. The request's own way is in it too, so
/// the figure is an upper bound of what comes on top of the commit.
pub(crate) async fn delivery(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let id = demo_session(&http).await?;
    let mut floor = Floor::on(server.scratch())?;
    let after = http.get(&format!("/api/sessions/{id}/events")).await?.expect(200)?;
    let after = after["events"].as_array().map_or(0, Vec::len) as u64;
    let mut stream = http.follow(&id, after).await?;
    let mut writing = http.connect().await?;
    let path = format!("/api/sessions/{id}/config");
    let mut samples = vec![];
    for number in 0..WARM_UP + TIMES {
        let body = json!({"name": format!("name {number}")}).to_string();
        let headers = [("content-type", "application/json")];
        floor.sample()?;
        let began = Instant::now();
        writing.send("PATCH", &path, &headers, body.as_bytes()).await?;
        stream.next().await?.context("the stream ended")?;
        let took = began.elapsed();
        writing.reply().await?.expect(200)?;
        if number >= WARM_UP {
            samples.push(took);
        }
    }
    let (whole, floor) = (p50(samples), floor.p50());
    report.line("delivery: floor, 200 bytes appended and synced, p50", millis(floor), "ms", Target::None);
    report.line("delivery: request to event at a follower, p50", millis(whole), "ms", Target::None);
    // Below nothing when the disk was quicker for the server than for the floor.
    let extra = millis(whole) - millis(floor);
    report.line("delivery: on top of the commit, p50", extra, "ms", Target::AtMost(1.0));
    Ok(())
}

/// From a prompt to its first event, against the agent alone on a pipe.
pub(crate) async fn turn(report: &mut Report, program: &Path) -> Result<()> {
    let bare = {
        let program = program.to_owned();
        tokio::task::spawn_blocking(move || bare_agent(&program)).await??
    };
    let server = Server::start(program).await?;
    let http = server.http()?;
    let id = demo_session(&http).await?;
    let body = json!({"content": "echo x", "includePartialMessages": true});
    let mut floor = Floor::on(server.scratch())?;
    let mut samples = vec![];
    for number in 0..WARM_UP + TIMES {
        floor.sample()?;
        let began = Instant::now();
        let mut stream = http.message(&id, &body).await?.ok()?;
        loop {
            let frame = stream.next().await?.context("the turn ended without a word")?;
            if frame.named("text_delta") {
                break;
            }
        }
        let took = began.elapsed();
        stream.collect().await?;
        if number >= WARM_UP {
            samples.push(took);
        }
    }
    let whole = p50(samples);
    report.line("turn: floor, the agent alone on a pipe, p50", millis(bare), "ms", Target::None);
    report.line("turn: floor, one synced append, p50", millis(floor.p50()), "ms", Target::None);
    report.line("turn: request to first event, p50", millis(whole), "ms", Target::None);
    let own = millis(whole) - millis(bare);
    report.line("turn: the server's own part, p50", own, "ms", Target::AtMost(2.0));
    Ok(())
}

/// The demo agent's own time from its start to an answered `session/new`.
pub(crate) fn bare_start(program: &Path) -> Result<Duration> {
    let began = Instant::now();
    #[expect(clippy::disallowed_methods, reason = "the benchmark runs the agent without a server")]
    let mut command = std::process::Command::new(program);
    let mut child = command.arg("demo-agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no stdin")?;
    let mut output = BufReader::new(child.stdout.take().context("no stdout")?);
    for (id, method, params) in [
        (0, "initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})),
        (1, "session/new", json!({"cwd": "/", "mcpServers": []})),
    ] {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string() + "\n";
        input.write_all(line.as_bytes())?;
        let mut answer = String::new();
        anyhow::ensure!(output.read_line(&mut answer)? > 0, "the agent ended");
    }
    let took = began.elapsed();
    child.kill()?;
    child.wait()?;
    Ok(took)
}

/// The demo agent's own time from a prompt to its first update.
fn bare_agent(program: &Path) -> Result<Duration> {
    #[expect(clippy::disallowed_methods, reason = "the benchmark runs the agent without a server")]
    let mut command = std::process::Command::new(program);
    let mut child = command.arg("demo-agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no stdin")?;
    let mut output = BufReader::new(child.stdout.take().context("no stdout")?);
    let mut call = |id: usize,
                    method: &str,
                    params: Value,
                    until: &dyn Fn(&Value) -> bool|
     -> Result<(Duration, Value)> {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string() + "\n";
        let began = Instant::now();
        input.write_all(line.as_bytes())?;
        let mut first = None;
        loop {
            let mut line = String::new();
            anyhow::ensure!(output.read_line(&mut line)? > 0, "the agent ended");
            let message: Value = serde_json::from_str(&line)?;
            if first.is_none() && until(&message) {
                first = Some(began.elapsed());
            }
            if message["id"] == id {
                return Ok((first.unwrap_or_else(|| began.elapsed()), message["result"].clone()));
            }
        }
    };
    let answer = |_: &Value| false;
    call(0, "initialize", json!({"protocolVersion": 1, "clientCapabilities": {}}), &answer)?;
    let (_, made) = call(1, "session/new", json!({"cwd": "/", "mcpServers": []}), &answer)?;
    let mut samples = vec![];
    for number in 0..WARM_UP + TIMES {
        let prompt = json!({"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "echo x"}]});
        let update = |message: &Value| message["method"] == "session/update";
        let (took, _) = call(number + 2, "session/prompt", prompt, &update)?;
        if number >= WARM_UP {
            samples.push(took);
        }
    }
    child.kill()?;
    child.wait()?;
    Ok(p50(samples))
}
