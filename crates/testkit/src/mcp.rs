//! A small MCP client: over the pipes of `outlast mcp`, and over HTTP. It knows nothing but the wire, so that what
//! a library would mend in silence is seen.

use crate::{Http, limits, process};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout},
    sync::{mpsc, oneshot},
};

/// The last version with a handshake.
pub const HANDSHAKE_VERSION: &str = "2025-11-25";
/// The first one without.
pub const MODERN_VERSION: &str = "2026-07-28";

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// A client at the other end of `outlast mcp`.
#[derive(Debug)]
pub struct Mcp {
    child: Child,
    stdin: tokio::sync::Mutex<Option<ChildStdin>>,
    waiting: Waiting,
    notifications: mpsc::UnboundedReceiver<Value>,
    next: AtomicU64,
}

impl Mcp {
    /// Starts the bridge of a data folder and shakes hands.
    pub async fn open(program: &Path, data: &Path, args: &[&str]) -> Result<Self> {
        Self::open_in(Path::new("/"), program, data, args, &[]).await
    }

    /// As [`Self::open`], started in a folder and with variables.
    pub async fn open_in(
        folder: &Path,
        program: &Path,
        data: &Path,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let client = Self::start(folder, program, data, args, env)?;
        client.shake_hands(HANDSHAKE_VERSION).await?;
        Ok(client)
    }

    /// Starts the bridge and says nothing yet.
    pub fn start(
        folder: &Path,
        program: &Path,
        data: &Path,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = tokio::process::Command::from(process::command(program));
        command.arg("mcp").args(args).arg("--data").arg(data).envs(env.iter().copied());
        command.env("OUTLAST_ORPHAN_SECS", "30").current_dir(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start the bridge")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("no stdout")?;
        let waiting = Waiting::default();
        let (told, notifications) = mpsc::unbounded_channel();
        // It ends with the bridge's stdout.
        tokio::spawn(read(stdout, Arc::clone(&waiting), told));
        let stdin = tokio::sync::Mutex::new(stdin);
        Ok(Self { child, stdin, waiting, notifications, next: AtomicU64::new(1) })
    }

    /// The handshake of the versions that have one; what the server said of itself.
    pub async fn shake_hands(&self, version: &str) -> Result<Value> {
        let params = json!({
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": { "name": "testkit", "version": "1" },
        });
        let said = self.request("initialize", params).await?;
        self.notify("notifications/initialized", Value::Null).await?;
        Ok(said["result"].clone())
    }

    /// Sends a request, and waits for its answer, the whole message.
    pub async fn request(&self, method: &str, params: Value) -> Result<Value> {
        self.begin(method, params).await?.answer().await
    }

    /// Sends a request. Dropping what it returns does not cancel it.
    pub async fn begin(&self, method: &str, params: Value) -> Result<Begun> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(id, answer);
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
        Ok(Begun { id, answered })
    }

    pub async fn notify(&self, method: &str, params: Value) -> Result<()> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await
    }

    /// Calls a tool; its structured content. A tool's error is an error here.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value> {
        result(&self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await?)
    }

    /// Calls a tool that is to fail; its error's code and sentence.
    pub async fn refused(&self, tool: &str, arguments: Value) -> Result<(String, String)> {
        refusal(&self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await?)
    }

    pub async fn begin_call(&self, tool: &str, arguments: Value) -> Result<Begun> {
        self.begin("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    pub async fn send(&self, message: &Value) -> Result<()> {
        self.send_bytes(format!("{message}\n").as_bytes()).await
    }

    pub async fn send_bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut stdin = self.stdin.lock().await;
        let stdin = stdin.as_mut().context("stdin is closed")?;
        stdin.write_all(bytes).await?;
        Ok(stdin.flush().await?)
    }

    /// The next message that answers nothing.
    pub async fn notification(&mut self) -> Result<Value> {
        let next = tokio::time::timeout(limits::CALL, self.notifications.recv()).await;
        next.context("no notification")?.context("the bridge is gone")
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Closes the bridge's stdin.
    pub async fn finish(&self) {
        self.stdin.lock().await.take();
    }

    /// Closes the bridge's stdin, and waits for its end.
    pub async fn close(mut self) -> Result<ExitStatus> {
        self.finish().await;
        self.ended().await
    }

    pub async fn ended(&mut self) -> Result<ExitStatus> {
        Ok(tokio::time::timeout(limits::CALL, self.child.wait())
            .await
            .context("the bridge does not end")??)
    }
}

/// A request that was sent.
#[derive(Debug)]
pub struct Begun {
    pub id: u64,
    answered: oneshot::Receiver<Value>,
}

impl Begun {
    /// The whole answer, within the limit.
    pub async fn answer(self) -> Result<Value> {
        let answered = tokio::time::timeout(limits::CALL, self.answered).await;
        answered
            .with_context(|| format!("request {} is not answered", self.id))?
            .context("the bridge is gone")
    }

    /// Whether an answer has come by now.
    pub fn is_answered(&mut self) -> bool {
        self.answered.try_recv().is_ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(stdout: ChildStdout, waiting: Waiting, told: mpsc::UnboundedSender<Value>) {
    let mut lines = BufReader::with_capacity(256 * 1024, stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let message = serde_json::from_str::<Value>(&line).unwrap_or_else(|_| json!({ "junk": line }));
        let id = message["id"].as_u64().filter(|_| message.get("method").is_none());
        match id.and_then(|id| lock(&waiting).remove(&id)) {
            Some(answer) => drop(answer.send(message)),
            None => drop(told.send(message)),
        }
    }
    // Whoever waits still waits for nothing.
    lock(&waiting).clear();
}

/// A tool's result: both spellings of it, which must say the same.
pub fn result(answer: &Value) -> Result<Value> {
    let result = &answer["result"];
    ensure!(result.is_object() && result["isError"] != true, "the call failed: {answer}");
    let data = result["structuredContent"].clone();
    let content = result["content"].as_array().context("no content")?;
    ensure!(content.len() == 1, "one text item: {answer}");
    let text: Value = serde_json::from_str(content[0]["text"].as_str().context("no text")?)?;
    ensure!(text == data, "the text says something else: {answer}");
    Ok(data)
}

/// A tool's error: its code and its sentence.
pub fn refusal(answer: &Value) -> Result<(String, String)> {
    let result = &answer["result"];
    ensure!(result["isError"] == true, "not a tool's error: {answer}");
    ensure!(result.get("structuredContent").is_none(), "an error has text only: {answer}");
    let text = result["content"][0]["text"].as_str().context("no text")?;
    let error = serde_json::from_str::<Value>(text)?["error"].clone();
    let word =
        |name: &str| error[name].as_str().map(str::to_owned).with_context(|| format!("no {name}: {text}"));
    Ok((word("code")?, word("message")?))
}

/// A client over HTTP, of one protocol version.
#[derive(Debug)]
pub struct McpHttp {
    http: Http,
    version: String,
    session: Option<String>,
    next: AtomicU64,
}

impl McpHttp {
    /// Shakes hands where the version has it.
    pub async fn open(http: &Http, version: &str) -> Result<Self> {
        let mut client =
            Self { http: http.clone(), version: version.to_owned(), session: None, next: AtomicU64::new(1) };
        if version < MODERN_VERSION {
            let params = json!({
                "protocolVersion": version,
                "capabilities": {},
                "clientInfo": { "name": "testkit", "version": "1" },
            });
            let (session, answer) = client.post(&client.message("initialize", params)).await?;
            ensure!(answer["result"]["protocolVersion"] == version, "{answer}");
            client.session = session;
            let body = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
            ensure!(client.raw(&body).await?.status == 202);
        }
        Ok(client)
    }

    pub async fn request(&self, method: &str, params: Value) -> Result<Value> {
        Ok(self.post(&self.message(method, params)).await?.1)
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value> {
        result(&self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await?)
    }

    pub async fn refused(&self, tool: &str, arguments: Value) -> Result<(String, String)> {
        refusal(&self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await?)
    }

    /// A request's message, as this version has it.
    pub fn message(&self, method: &str, mut params: Value) -> Value {
        if self.version.as_str() >= MODERN_VERSION {
            if params.is_null() {
                params = json!({});
            }
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = self.version.clone().into();
            params["_meta"]["io.modelcontextprotocol/clientInfo"] =
                json!({ "name": "testkit", "version": "1" });
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
    }

    /// Sends a message and opens the stream of its answer.
    pub async fn stream(&self, message: &Value) -> Result<crate::Opened> {
        let headers = self.headers(message);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.http.stream("POST", "/mcp", &headers, message.to_string().as_bytes()).await
    }

    /// Sends a message; the reply as it is.
    pub async fn raw(&self, message: &Value) -> Result<crate::Reply> {
        let headers = self.headers(message);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.http.raw("POST", "/mcp", &headers, message.to_string().as_bytes()).await
    }

    fn headers(&self, message: &Value) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json, text/event-stream".to_owned()),
        ];
        if message["method"] != "initialize" {
            headers.push(("mcp-protocol-version", self.version.clone()));
        }
        if self.version.as_str() >= MODERN_VERSION {
            headers.push(("mcp-method", message["method"].as_str().unwrap_or_default().to_owned()));
            if let Some(name) = message["params"]["name"].as_str() {
                headers.push(("mcp-name", name.to_owned()));
            }
        }
        headers.extend(self.session.clone().map(|session| ("mcp-session-id", session)));
        headers
    }

    /// Sends a request and reads its answer, however it is framed; with the protocol session that it opened.
    async fn post(&self, message: &Value) -> Result<(Option<String>, Value)> {
        let reply = self.raw(message).await?;
        let session = reply.header("mcp-session-id").map(str::to_owned);
        let streamed = reply.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        if !streamed {
            return Ok((session, reply.json()?));
        }
        for line in reply.text().lines().filter_map(|line| line.strip_prefix("data:")) {
            let told = serde_json::from_str::<Value>(line.trim()).unwrap_or_default();
            if told["id"] == message["id"] {
                return Ok((session, told));
            }
        }
        bail!("no answer in {}: {}", reply.status, reply.text())
    }
}
