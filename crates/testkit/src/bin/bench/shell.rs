//! What a shell costs through `outlast mcp`: one command, a flood of output, many sessions at once, opening one, and
//! a command of a megabyte; each beside what the same work costs without any of it.
//!
//! The client is plain blocking pipes: what it measures is the bridge and the server, and not itself.

use crate::figures::{Floor, Report, Target, memory, millis, p50};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};
use testkit::Server;

const TRUES: usize = 500;
const WARM_UP: usize = 20;
const FLOODS: usize = 3;
const SEQ: &str = "seq 1 5000000";
const LINE: &str = "head -c 50000000 /dev/zero | tr '\\0' x";
const SESSIONS: usize = 64;
const EACH: usize = 20;
const CREATES: usize = 20;
const TEXT_BYTES: usize = 1024 * 1024;
/// What a bare shell says when it is there.
const READY: &str = "a bare shell is there";
/// The tool that is measured beside ours when asked for, from the crate registry.
const PEER: &str = "execkit-mcp";

/// Whether others are measured too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peers {
    Measured,
    Left,
}

#[expect(clippy::disallowed_methods, reason = "a benchmark starts what it measures")]
pub(crate) fn command(program: &Path) -> Command {
    Command::new(program)
}

/// An MCP client on pipes.
pub(crate) struct Client {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
    line: String,
}

impl Client {
    fn start(program: &Path, args: &[&str]) -> Result<Self> {
        let mut command = command(program);
        command
            .args(args)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = BufReader::with_capacity(256 * 1024, child.stdout.take().context("no stdout")?);
        let mut client = Self { child, stdin, stdout, next: 1, line: String::new() };
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"},
        });
        let id = client.send("initialize", &params)?;
        client.answer(id)?;
        client.stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        Ok(client)
    }

    pub(crate) fn of(program: &Path, server: &Server) -> Result<Self> {
        Self::start(program, &["mcp", "--data", &server.data().to_string_lossy()])
    }

    fn send(&mut self, method: &str, params: &Value) -> Result<u64> {
        let id = self.next;
        self.next += 1;
        let line = format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.stdin.write_all(line.as_bytes())?;
        Ok(id)
    }

    /// The next message that answers something, as it was read.
    fn read(&mut self) -> Result<u64> {
        loop {
            self.line.clear();
            ensure!(self.stdout.read_line(&mut self.line)? > 0, "the bridge ended");
            let id = serde_json::from_str::<Head>(&self.line)?.id;
            if let Some(id) = id {
                return Ok(id);
            }
        }
    }

    fn answer(&mut self, id: u64) -> Result<Value> {
        while self.read()? != id {}
        Ok(serde_json::from_str(&self.line)?)
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value> {
        let id = self.send("tools/call", &json!({"name": tool, "arguments": arguments}))?;
        let answer = self.answer(id)?;
        ensure!(answer["result"]["isError"] != true && answer["result"].is_object(), "{tool}: {answer}");
        let text = answer["result"]["content"][0]["text"].as_str().context("no text")?;
        Ok(serde_json::from_str(text)?)
    }

    pub(crate) fn shell(&mut self, arguments: &Value) -> Result<String> {
        let made = self.call("session_create", arguments)?;
        Ok(made["session_id"].as_str().context("no session_id")?.to_owned())
    }

    fn exec(&mut self, session: &str, command: &str) -> Result<Value> {
        self.call("session_exec", &json!({"session_id": session, "command": command}))
    }

    /// How long `true` takes, so many times.
    pub(crate) fn trues(&mut self, session: &str, times: usize) -> Result<Vec<Duration>> {
        let params = json!({"name": "session_exec", "arguments": {"session_id": session, "command": "true"}});
        let mut samples = Vec::with_capacity(times);
        for _ in 0..times {
            let began = Instant::now();
            let id = self.send("tools/call", &params)?;
            while self.read()? != id {}
            samples.push(began.elapsed());
        }
        Ok(samples)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(serde::Deserialize)]
struct Head {
    id: Option<u64>,
}

/// A bash that is kept open, and nothing else.
pub(crate) struct Bare {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

pub(crate) fn bare(bash: &mut Command) -> Result<Bare> {
    let mut child = bash.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdin = child.stdin.take().context("no stdin")?;
    let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
    let mut bare = Bare { child, stdin, stdout };
    bare.stdin.write_all(format!("echo {READY}\n").as_bytes())?;
    let mut line = String::new();
    // A login may have something to say first.
    while line.trim_end() != READY {
        line.clear();
        ensure!(bare.stdout.read_line(&mut line)? > 0, "a bare shell ended");
    }
    Ok(bare)
}

impl Bare {
    /// How long one round trip takes, so many times.
    pub(crate) fn trues(&mut self, times: usize) -> Result<Vec<Duration>> {
        let mut samples = Vec::with_capacity(times);
        let mut line = String::new();
        for _ in 0..times {
            let began = Instant::now();
            self.stdin.write_all(b"true; echo $?\n")?;
            line.clear();
            self.stdout.read_line(&mut line)?;
            samples.push(began.elapsed());
            ensure!(line == "0\n", "a bare shell says {line:?}");
        }
        Ok(samples)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One round trip to a persistent bash over a pipe.
fn bare_bash(times: usize) -> Result<Vec<Duration>> {
    bare(command(Path::new("bash")).args(["--noprofile", "--norc", "-s"]))?.trues(times)
}

/// How long it takes to read a command's output from a plain pipe.
fn bare_pipe(text: &str) -> Result<Duration> {
    let began = Instant::now();
    let mut bash = command(Path::new("bash"));
    let mut bash = bash.args(["-c", text]).stdout(Stdio::piped()).spawn()?;
    let mut stdout = bash.stdout.take().context("no stdout")?;
    let mut buffer = vec![0; 64 * 1024];
    while stdout.read(&mut buffer)? > 0 {}
    bash.wait()?;
    Ok(began.elapsed())
}

fn p99(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples.get(samples.len() * 99 / 100).copied().unwrap_or_default()
}

pub(crate) async fn one(report: &mut Report, program: &Path, peers: Peers) -> Result<()> {
    let server = Server::start(program).await?;
    let mut client = Client::of(program, &server)?;
    let shell = client.shell(&json!({"transport": "local", "place": "host"}))?;
    client.trues(&shell, WARM_UP)?;
    let mut floor = Floor::on(server.data())?;
    let (mut samples, mut bash) = (vec![], vec![]);
    // In turns: a shared machine is not equally fast at all times.
    for _ in 0..TRUES / 50 {
        samples.extend(client.trues(&shell, 50)?);
        bash.extend(bare_bash(50)?);
        for _ in 0..50 {
            floor.sample()?;
        }
    }
    let bash = p50(bash);
    let floor = bash + 2 * floor.p50();
    report.line("shell: floor, bash over a pipe, p50", millis(bash), "ms", Target::None);
    report.line("shell: floor, and two appends with fdatasync, p50", millis(floor), "ms", Target::None);
    let whole = p50(samples.clone());
    report.line(
        "shell: `true` over MCP stdio, p50",
        millis(whole),
        "ms",
        Target::AtMost(3.0 * millis(floor)),
    );
    report.line(
        "shell: the same, against its floor",
        millis(whole) / millis(floor),
        "x",
        Target::AtMost(3.0),
    );
    report.line("shell: the same, p99", millis(p99(samples)), "ms", Target::AtMost(4.0));

    let text = format!("true # {}", "x".repeat(TEXT_BYTES));
    let mut times = vec![];
    for _ in 0..FLOODS {
        let began = Instant::now();
        client.exec(&shell, &text)?;
        times.push(began.elapsed());
    }
    report.line("shell: a command of 1 MB, p50", millis(p50(times)), "ms", Target::AtMost(50.0));
    if peers == Peers::Measured {
        let peer = peer(server.scratch())?;
        let mut client = Client::start(&peer, &[])?;
        let shell = client.shell(&json!({"transport": "local"}))?;
        client.trues(&shell, WARM_UP)?;
        let theirs = p50(client.trues(&shell, TRUES / 5)?);
        report.line(
            &format!("shell: `true` of {PEER}, which records nothing, p50"),
            millis(theirs),
            "ms",
            Target::None,
        );
        report.line("shell: ours is faster by", millis(theirs) / millis(whole), "x", Target::AtLeast(10.0));
    }
    Ok(())
}

/// Built once, into a folder that stays.
fn peer(scratch: &Path) -> Result<PathBuf> {
    let cache = std::env::current_dir().unwrap_or_else(|_| scratch.to_owned()).join("target/peers");
    let program = cache.join("bin").join(PEER);
    if !program.exists() {
        let mut cargo = command(Path::new("cargo"));
        let built = cargo.args(["install", PEER, "--quiet", "--root"]).arg(&cache).status()?;
        ensure!(built.success(), "{PEER} cannot be built");
    }
    Ok(program)
}

pub(crate) async fn flood(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let pid = server.pid().context("no server")?;
    let mut client = Client::of(program, &server)?;
    let shell = client.shell(&json!({"transport": "local", "place": "host"}))?;
    for (name, text) in [("seq 1 5000000", SEQ), ("50 MB in one line", LINE)] {
        let (mut ours, mut bare) = (vec![], vec![]);
        for _ in 0..FLOODS {
            bare.push(bare_pipe(text)?);
            let began = Instant::now();
            let result = client.exec(&shell, text)?;
            ours.push(began.elapsed());
            ensure!(result["exit_code"] == 0 && result["truncated"] == true, "{result}");
        }
        let (ours, bare) = (millis(p50(ours)), millis(p50(bare)));
        report.line(&format!("shell: floor, {name} from a plain pipe"), bare, "ms", Target::None);
        report.line(&format!("shell: {name}"), ours, "ms", Target::AtMost(2.5 * bare));
        report.line(&format!("shell: {name}, against its floor"), ours / bare, "x", Target::AtMost(2.5));
    }
    report.line(
        "shell: the server's memory at its most through both",
        memory(pid)?.1,
        "MB",
        Target::AtMost(40.0),
    );

    let mut shells = vec![shell];
    while shells.len() < SESSIONS {
        shells.push(client.shell(&json!({"transport": "local", "place": "host"}))?);
    }
    let mut open = 0;
    for shell in &shells {
        let arguments = json!({"session_id": shell, "command": "seq 1 500000", "timeout_secs": 600});
        client.send("tools/call", &json!({"name": "session_exec", "arguments": arguments}))?;
        open += 1;
    }
    for _ in 0..open {
        client.read()?;
    }
    report.line("shell: the same with 64 sessions at once", memory(pid)?.1, "MB", Target::AtMost(120.0));
    Ok(())
}

pub(crate) async fn crowd(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let mut client = Client::of(program, &server)?;
    let mut made = HashMap::new();
    for place in ["host", "sandbox"] {
        let mut times = vec![];
        for _ in 0..CREATES {
            let began = Instant::now();
            let shell = client.shell(&json!({"transport": "local", "place": place}))?;
            times.push(began.elapsed());
            client.call("session_destroy", &json!({"session_id": shell}))?;
        }
        made.insert(place, p50(times));
    }
    report.line("shell: opened on the host, p50", millis(made["host"]), "ms", Target::AtMost(5.0));
    report.line("shell: opened in the sandbox, p50", millis(made["sandbox"]), "ms", Target::AtMost(10.0));

    let mut shells = vec![];
    for _ in 0..SESSIONS {
        shells.push(client.shell(&json!({"transport": "local", "place": "host"}))?);
    }
    let began = Instant::now();
    let mut of: HashMap<u64, usize> = HashMap::new();
    let mut left = vec![EACH; SESSIONS];
    let run = |client: &mut Client, shell: usize| {
        let arguments = json!({"session_id": shells[shell], "command": "true"});
        client.send("tools/call", &json!({"name": "session_exec", "arguments": arguments}))
    };
    for shell in 0..SESSIONS {
        of.insert(run(&mut client, shell)?, shell);
    }
    while !of.is_empty() {
        let id = client.read()?;
        let shell = of.remove(&id).context("an answer to nothing")?;
        left[shell] -= 1;
        if left[shell] > 0 {
            of.insert(run(&mut client, shell)?, shell);
        }
    }
    let rate = (SESSIONS * EACH) as f64 / began.elapsed().as_secs_f64();
    report.line("shell: 64 sessions x 20 `true`", rate, "/s", Target::AtLeast(3_000.0));
    Ok(())
}
