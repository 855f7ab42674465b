//! What hosting an agent costs: a text turn, a flood, waking, forking and memory, each beside the same agent driven bare
//! over a pipe by this program.

use crate::{
    figures::{Floor, Report, Target, memory, millis, p50},
    latency::bare_start,
};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    time::{Duration, Instant},
};
use testkit::{Http, Server, Socket, Sse};

const WARM_UP: usize = 30;
const TURNS: usize = 300;
const FLOOD: usize = 10_000;
const FLOODS: usize = 5;
const WAKES: usize = 20;
const FORKS: usize = 20;
/// Prompts and answers together.
const MESSAGES: usize = 200;
const IDLE: usize = 200;

/// The demo agent on a pipe of ours, with a session.
struct Bare {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: String,
    calls: u64,
    line: String,
}

impl Bare {
    fn start(program: &Path) -> Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "the benchmark runs the agent without a server")]
        let mut command = std::process::Command::new(program);
        let mut child = command.arg("demo-agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut bare = Self { child, input, output, session: String::new(), calls: 0, line: String::new() };
        bare.call("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}))?;
        let (made, _) = bare.call("session/new", &json!({"cwd": "/", "mcpServers": []}))?;
        made["sessionId"].as_str().context("no session")?.clone_into(&mut bare.session);
        Ok(bare)
    }

    /// The answer, and how many updates came before it; each is parsed, as any client must.
    fn call(&mut self, method: &str, params: &Value) -> Result<(Value, usize)> {
        self.calls += 1;
        let id = self.calls;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.input.write_all((request.to_string() + "\n").as_bytes())?;
        let mut updates = 0;
        loop {
            self.line.clear();
            ensure!(self.output.read_line(&mut self.line)? > 0, "the agent ended");
            let message: Value = serde_json::from_str(&self.line)?;
            if message["id"] == id {
                return Ok((message["result"].clone(), updates));
            }
            updates += usize::from(message["method"] == "session/update");
        }
    }

    fn turn(&mut self, text: &str) -> Result<(Duration, usize)> {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        let began = Instant::now();
        let (_, updates) = self.call("session/prompt", &params)?;
        Ok((began.elapsed(), updates))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn create(http: &Http) -> Result<String> {
    let made = http.post("/api/sessions", &json!({"agent": "demo"})).await?.expect(201)?;
    Ok(made["session"]["id"].as_str().context("no id")?.to_owned())
}

/// A text turn from the prompt to its whole answer, over the socket as over the pipe.
pub(crate) async fn turn(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let id = create(&http).await?;
    let (address, key) = (server.address()?, server.key()?);
    let (mut bare, mut floor) = (Bare::start(program)?, Floor::on(server.scratch())?);
    // On one thread: the client waits for its socket as it waits for the pipe, and is not woken twice for an answer.
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut socket = Socket::open(address, "/rpc", Some(&key)).await?;
            let (mut hosted, mut alone) = (vec![], vec![]);
            for number in 0..WARM_UP + TURNS {
                floor.sample()?;
                let (pipe, _) = bare.turn("echo x")?;
                let began = Instant::now();
                let reply = socket.call("sendPrompt", json!([id, "echo x"])).await?;
                let took = began.elapsed();
                ensure!(reply["text"] == "x", "{reply}");
                if number >= WARM_UP {
                    hosted.push(took);
                    alone.push(pipe);
                }
            }
            Ok((hosted, alone, floor))
        })
    });
    let (hosted, alone, floor) = measured.await??;
    let (hosted, alone, floor) = (millis(p50(hosted)), millis(p50(alone)), millis(floor.p50()));
    report.line("hosted-turn: floor, the agent alone on a pipe, p50", alone, "ms", Target::None);
    report.line("hosted-turn: floor, one synced append, p50", floor, "ms", Target::None);
    report.line("hosted-turn: a text turn over /rpc, p50", hosted, "ms", Target::None);
    report.line("hosted-turn: hosting on top, p50", hosted - alone, "ms", Target::AtMost(1.5));
    report.line("hosted-turn: of it in synced appends", (hosted - alone) / floor, "×", Target::None);
    Ok(())
}

/// A turn of unpaced deltas, each of them durable before a follower sees it.
pub(crate) async fn flood(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let mut bare = Bare::start(program)?;
    let script = format!("stream {FLOOD} 20");
    let (mut hosted, mut alone) = (vec![], vec![]);
    for _ in 0..FLOODS {
        let (took, updates) = tokio::task::block_in_place(|| bare.turn(&script))?;
        ensure!(updates == FLOOD, "{updates} updates on the pipe");
        alone.push(took);
        let id = create(&http).await?;
        let mut stream = http.follow(&id, 0).await?;
        let (http, body) = (http.clone(), json!({"content": script}));
        let began = Instant::now();
        let prompt = tokio::spawn(async move { http.message(&id, &body).await?.ok()?.collect().await });
        let updates = count_updates(&mut stream).await?;
        hosted.push(began.elapsed());
        ensure!(updates == FLOOD, "{updates} updates at the follower");
        prompt.await??;
    }
    let (hosted, alone) = (p50(hosted).as_secs_f64(), p50(alone).as_secs_f64());
    report.line("hosted-flood: floor, 10,000 deltas on a pipe", alone, "s", Target::None);
    report.line("hosted-flood: the same, durable and followed", hosted, "s", Target::AtMost(0.4));
    report.line("hosted-flood: ratio", hosted / alone, "×", Target::None);
    report.line("hosted-flood: rate", FLOOD as f64 / hosted, "deltas/s", Target::AtLeast(25_000.0));
    Ok(())
}

async fn count_updates(stream: &mut Sse) -> Result<usize> {
    let mut updates = 0;
    loop {
        let frame = stream.next().await?.context("the stream ended")?;
        updates += usize::from(frame.named("agent_update"));
        if frame.named("turn_ended") {
            return Ok(updates);
        }
    }
}

/// From a prompt to a suspended session to the first word of its agent.
pub(crate) async fn wake(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let id = create(&http).await?;
    let body = json!({"content": "echo x", "includePartialMessages": true});
    http.message(&id, &body).await?.ok()?.collect().await?;
    let (mut wakes, mut starts) = (vec![], vec![]);
    for _ in 0..WAKES {
        http.call("POST", &format!("/api/sessions/{id}/stop"), None).await?.expect(200)?;
        let began = Instant::now();
        let mut stream = http.message(&id, &body).await?.ok()?;
        while !stream.next().await?.context("the turn ended without a word")?.named("text_delta") {}
        wakes.push(began.elapsed());
        stream.collect().await?;
        starts.push(tokio::task::block_in_place(|| bare_start(program))?);
    }
    let (wake, start) = (millis(p50(wakes)), millis(p50(starts)));
    report.line("hosted-wake: floor, the agent's own start, p50", start, "ms", Target::None);
    let limit = 30.0 + start;
    report.line("hosted-wake: suspended to first update, p50", wake, "ms", Target::AtMost(limit));
    report.line("hosted-wake: ratio", wake / start, "×", Target::None);
    Ok(())
}

/// A fork of a session with a past, from the request to a session that is on disk and can be prompted.
pub(crate) async fn fork(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let id = create(&http).await?;
    let mut socket = Socket::open(server.address()?, "/rpc", Some(&server.key()?)).await?;
    for _ in 0..MESSAGES / 2 {
        socket.call("sendPrompt", json!([id, "tell me more"])).await?;
    }
    let mut floor = Floor::on(server.scratch())?;
    let (mut forks, mut readies) = (vec![], vec![]);
    for _ in 0..FORKS {
        floor.sample()?;
        let began = Instant::now();
        let made = http.post(&format!("/api/sessions/{id}/fork"), &json!({})).await?.expect(201)?;
        forks.push(began.elapsed());
        let fork = made["session"]["id"].as_str().context("no id")?;
        let after = made["session"]["lastSeq"].as_u64().context("no seq")?;
        let mut stream = http.follow(fork, after).await?;
        while !stream.next().await?.context("the stream ended")?.named("occupant_started") {}
        readies.push(began.elapsed());
        http.delete(&format!("/api/sessions/{fork}?purge=true")).await?.expect(200)?;
    }
    let (fork, ready, floor) = (millis(p50(forks)), millis(p50(readies)), millis(floor.p50()));
    report.line("hosted-fork: floor, one synced append, p50", floor, "ms", Target::None);
    report.line("hosted-fork: of a 200-message session, p50", fork, "ms", Target::AtMost(10.0));
    report.line("hosted-fork: ratio", fork / floor, "×", Target::None);
    report.line("hosted-fork: until its agent is ready too, p50", ready, "ms", Target::None);
    Ok(())
}

/// What a live session that has talked and is idle takes of the server.
pub(crate) async fn idle(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let pid = server.pid().context("no pid")?;
    // One of each first: what the server needs only once is not a session's.
    let first = create(&http).await?;
    let body = json!({"content": "tell me more"});
    http.message(&first, &body).await?.ok()?.collect().await?;
    let before = memory(pid)?.0;
    for _ in 0..IDLE {
        let id = create(&http).await?;
        http.message(&id, &body).await?.ok()?.collect().await?;
    }
    let after = memory(pid)?.0;
    report.line("hosted-idle: server's memory with one session", before, "MB", Target::None);
    report.line("hosted-idle: with 200 more that have talked", after, "MB", Target::None);
    let each = (after - before) * 1024.0 / IDLE as f64;
    report.line("hosted-idle: for each of them", each, "KB", Target::AtMost(100.0));
    Ok(())
}
