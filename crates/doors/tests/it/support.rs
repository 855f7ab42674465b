//! A server on a free port, an agent, and an HTTP client small enough to send what a good one would refuse to.

use doors::{Door, Options};
use session::Sessions;
use std::{net::SocketAddr, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

/// Longer than anything here takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Speaks as much ACP as a prompt needs. `hold` in a prompt keeps the turn open until it is cancelled.
const AGENT: &str = r#"
say() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":%s}}\n' "$1"; }
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([^,}]*\).*/\1/')
  case "$line" in
    *'"initialize"'*) answer "$id" '{"protocolVersion":1,"agentCapabilities":{}}' ;;
    *'"session/new"'*) answer "$id" '{"sessionId":"s"}' ;;
    *'"session/cancel"'*) answer "$held" '{"stopReason":"cancelled"}' ;;
    *'"session/prompt"'*)
      say '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"Hel"}}'
      say '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"lo"}}'
      case "$line" in
        *hold*) held=$id ;;
        *) answer "$id" '{"stopReason":"end_turn"}' ;;
      esac ;;
  esac
done
"#;

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) key: String,
    sessions: Sessions,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
    _data: TempDir,
}

impl Server {
    /// With the agent `shell` deployed.
    pub(crate) async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let exe = std::env::current_exe().unwrap();
        let mut options = session::Options::new(data.path().to_owned(), exe);
        // Agents outlive the server, and these soon end after it.
        options.orphan = Duration::from_secs(10);
        let (sessions, _) = Sessions::open(options).await.unwrap();
        let key = std::fs::read_to_string(data.path().join("api-key")).unwrap().trim().to_owned();
        let listen = "127.0.0.1:0".parse().ok();
        let door =
            Door::bind(sessions.clone(), Options::new(listen, data.path().join("uploads"))).await.unwrap();
        let addr = door.addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(async { door.serve(stopped, Duration::from_secs(5)).await.unwrap() });
        let server = Self { addr, key, sessions, stop: Some(stop), serving: Some(serving), _data: data };
        let manifest = "command = \"sh\"\nargs = [\"agent.sh\"]\n";
        let files = serde_json::json!([
            { "path": "agent.toml", "content": manifest },
            { "path": "agent.sh", "content": AGENT },
        ]);
        let body = serde_json::json!({ "name": "shell", "files": files });
        assert_eq!(server.post("/api/agents", &body.to_string()).await.status, 201);
        server
    }

    pub(crate) async fn session(&self) -> String {
        let reply = self.post("/api/sessions", r#"{"agent":"shell"}"#).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()["session"]["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &[], b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Reply {
        self.call("POST", path, &[("content-type", "application/json")], body.as_bytes()).await
    }

    /// One request on a connection of its own, with the key.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let bearer = format!("Bearer {}", self.key);
        let headers: Vec<(&str, &str)> =
            headers.iter().copied().chain([("authorization", bearer.as_str())]).collect();
        self.bare(method, path, &headers, body).await
    }

    /// The same without a key.
    pub(crate) async fn bare(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut stream = self.open(method, path, headers, body).await;
        stream.rest().await;
        Reply { status: stream.status, headers: stream.headers, body: stream.body }
    }

    /// A request whose answer is read as it comes.
    pub(crate) async fn stream(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let bearer = format!("Bearer {}", self.key);
        let headers: Vec<(&str, &str)> =
            headers.iter().copied().chain([("authorization", bearer.as_str())]).collect();
        self.open(method, path, &headers, body.as_bytes()).await
    }

    async fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut wire = BufStream::new(TcpStream::connect(self.addr).await.unwrap());
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.addr);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        wire.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses early may close before all of a large body is sent.
        let _ = wire.write_all(body).await;
        let _ = wire.flush().await;
        Answer::read(wire).await
    }

    pub(crate) async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        within(self.serving.take().unwrap()).await.unwrap();
        self.sessions.shutdown(Duration::from_secs(5)).await;
    }
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }
}

/// An answer whose body may still be coming.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    body: Vec<u8>,
    wire: BufStream<TcpStream>,
    chunked: bool,
}

impl Answer {
    async fn read(mut wire: BufStream<TcpStream>) -> Self {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(within(wire.read_u8()).await.expect("an answer"));
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        Self { status, headers, body: Vec::new(), wire, chunked }
    }

    /// The next piece of the body; false at its end.
    async fn more(&mut self) -> bool {
        if !self.chunked {
            let mut buffer = vec![0; 65536];
            let count = within(self.wire.read(&mut buffer)).await.unwrap_or(0);
            self.body.extend_from_slice(&buffer[..count]);
            return count > 0;
        }
        let mut size = Vec::new();
        while !size.ends_with(b"\r\n") {
            match within(self.wire.read_u8()).await {
                Ok(byte) => size.push(byte),
                Err(_) => return false,
            }
        }
        let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap().trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        within(self.wire.read_exact(&mut chunk)).await.unwrap();
        self.body.extend_from_slice(&chunk[..size]);
        size > 0
    }

    async fn rest(&mut self) {
        while self.more().await {}
    }

    /// The next frame that is not only a comment, or nothing at the end.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        // Heartbeats keep the wire busy; they must not keep a test waiting.
        within(self.next_frame()).await
    }

    async fn next_frame(&mut self) -> Option<Frame> {
        loop {
            while let Some(end) = self.body.windows(2).position(|pair| pair == b"\n\n") {
                let text = String::from_utf8(self.body.drain(..end + 2).collect()).unwrap();
                if let Some(frame) = Frame::parse(&text) {
                    return Some(frame);
                }
            }
            if !self.more().await {
                return None;
            }
        }
    }

    pub(crate) async fn frames(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    pub(crate) id: Option<u64>,
    pub(crate) event: String,
    pub(crate) data: serde_json::Value,
}

impl Frame {
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        Some(Self {
            id: field("id: ").map(|id| id.parse().unwrap()),
            event: field("event: ")?.to_owned(),
            data: serde_json::from_str(field("data: ")?).unwrap(),
        })
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it took too long")
}
