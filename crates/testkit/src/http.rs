//! A tiny HTTP/1.1 and server-sent-events reader over a TCP stream.
//!
//! The crash checker must not trust the product's own client, whose resuming would hide the very faults that
//! are looked for. So this one knows nothing but the wire: heads, lengths, chunks, frames. Every read is
//! bounded in size, and every call in time.

use crate::limits;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::net::SocketAddr;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// Where a server is and which key opens it. Each call makes a connection of its own.
#[derive(Debug, Clone)]
pub struct Http {
    address: SocketAddr,
    key: Option<String>,
}

/// A whole reply.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// The first header of this name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.text()))
    }

    /// The body, when the status is the one expected.
    pub fn expect(&self, status: u16) -> Result<Value> {
        ensure!(self.status == status, "expected {status}, got {}: {}", self.status, self.text());
        self.json()
    }
}

impl Http {
    pub fn new(address: SocketAddr, key: Option<String>) -> Self {
        Self { address, key }
    }

    /// The same server, another key or none.
    #[must_use]
    pub fn with_key(&self, key: Option<&str>) -> Self {
        Self { address: self.address, key: key.map(str::to_owned) }
    }

    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.call("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.call("POST", path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<Reply> {
        self.call("DELETE", path, None).await
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Reply> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let json = [("content-type", "application/json")];
        self.raw(method, path, if body.is_empty() { &[] } else { &json }, body.as_bytes()).await
    }

    /// A call with headers and a body as they are.
    pub async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Reply> {
        let call = async {
            let mut connection = self.connect().await?;
            connection.send(method, path, headers, body).await?;
            connection.reply().await
        };
        tokio::time::timeout(limits::CALL, call)
            .await
            .with_context(|| format!("{method} {path}: no reply"))?
    }

    pub async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::with_capacity(32 * 1024, stream), http: self.clone() })
    }

    /// Follows a session's events after `after`, as a browser would that reconnects.
    pub async fn follow(&self, session: &str, after: u64) -> Result<Sse> {
        let last = after.to_string();
        let headers = [("accept", "text/event-stream"), ("last-event-id", last.as_str())];
        self.stream("GET", &format!("/api/sessions/{session}/events"), &headers, b"").await?.ok()
    }

    /// Sends a message; the stream is there once the server has acknowledged the prompt.
    pub async fn message(&self, session: &str, body: &Value) -> Result<Opened> {
        let headers = [("accept", "text/event-stream"), ("content-type", "application/json")];
        let path = format!("/api/sessions/{session}/messages");
        self.stream("POST", &path, &headers, body.to_string().as_bytes()).await
    }

    pub async fn stream(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Opened> {
        let call = async {
            let mut connection = self.connect().await?;
            connection.send(method, path, headers, body).await?;
            let head = connection.head().await?;
            let streams = find_header(&head.headers, "content-type")
                .is_some_and(|kind| kind.starts_with("text/event-stream"));
            if head.status == 200 && streams {
                return Ok(Opened::Stream(Sse::new(connection, head.framing)));
            }
            connection.rest(head).await.map(Opened::Refused)
        };
        tokio::time::timeout(limits::CALL, call).await.with_context(|| format!("{method} {path}: no head"))?
    }
}

/// What became of a call that asked for a stream.
#[derive(Debug)]
pub enum Opened {
    Stream(Sse),
    Refused(Reply),
}

impl Opened {
    pub fn ok(self) -> Result<Sse> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Refused(reply) => bail!("expected a stream, got {}: {}", reply.status, reply.text()),
        }
    }

    pub fn refused(self) -> Result<Reply> {
        match self {
            Self::Stream(_) => bail!("expected a refusal, got a stream"),
            Self::Refused(reply) => Ok(reply),
        }
    }
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

#[derive(Debug)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
    framing: Framing,
}

/// One connection that may carry call after call.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    http: Http,
}

impl Connection {
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<()> {
        use std::fmt::Write as _;
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.http.address);
        if let Some(key) = &self.http.key {
            write!(head, "authorization: Bearer {key}\r\n")?;
        }
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n")?;
        }
        if !body.is_empty() || method == "POST" {
            write!(head, "content-length: {}\r\n", body.len())?;
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        // A server that refuses early may close before it has read the whole body: its reply counts then.
        if let Err(error) = self.stream.get_mut().write_all(&bytes).await
            && body.len() < limits::HEAD_BYTES
        {
            return Err(error.into());
        }
        Ok(())
    }

    /// Bytes as they are, for requests that are not HTTP.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(bytes).await?)
    }

    pub async fn reply(&mut self) -> Result<Reply> {
        let head = self.head().await?;
        self.rest(head).await
    }

    async fn rest(&mut self, head: Head) -> Result<Reply> {
        let mut body = vec![];
        match head.framing {
            Framing::Length(length) => {
                body.resize(length, 0);
                self.stream.read_exact(&mut body).await?;
            }
            Framing::Chunked => while self.chunk(&mut body).await? {},
            Framing::UntilClose => {
                self.stream.read_to_end(&mut body).await?;
            }
        }
        Ok(Reply { status: head.status, headers: head.headers, body })
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = vec![];
        let limit = limits::HEAD_BYTES as u64;
        (&mut self.stream).take(limit).read_until(b'\n', &mut line).await?;
        ensure!(line.ends_with(b"\n"), "the connection ended within a head");
        while line.last().is_some_and(|byte| matches!(byte, b'\r' | b'\n')) {
            line.pop();
        }
        Ok(String::from_utf8(line)?)
    }

    async fn head(&mut self) -> Result<Head> {
        let first = self.line().await?;
        let status = first
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("not a status line: {first:?}"))?;
        let mut headers = vec![];
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').with_context(|| format!("not a header: {line:?}"))?;
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
        if status == 100 {
            return Box::pin(self.head()).await;
        }
        let framing = if find_header(&headers, "transfer-encoding").is_some_and(|kind| kind == "chunked") {
            Framing::Chunked
        } else if let Some(length) = find_header(&headers, "content-length") {
            Framing::Length(length.parse()?)
        } else {
            Framing::UntilClose
        };
        Ok(Head { status, headers, framing })
    }

    /// Appends the next chunk; false at the last one.
    async fn chunk(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let size = self.line().await?;
        let length = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
            .with_context(|| format!("not a chunk size: {size:?}"))?;
        ensure!(out.len() + length <= limits::FRAME_BYTES, "a chunk of {length} bytes is over the limit");
        let start = out.len();
        out.resize(start + length, 0);
        self.stream.read_exact(&mut out[start..]).await?;
        ensure!(self.line().await?.is_empty(), "a chunk does not end with its length");
        Ok(length > 0)
    }
}

fn find_header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(each, _)| each.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: String,
}

impl Frame {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.data).with_context(|| format!("not JSON: {:?}", self.data))
    }

    pub fn named(&self, event: &str) -> bool {
        self.event.as_deref() == Some(event)
    }
}

/// A stream of server-sent events.
#[derive(Debug)]
pub struct Sse {
    connection: Connection,
    framing: Framing,
    buffer: Vec<u8>,
    /// Where the next frame begins, and up to where no frame's end was found.
    start: usize,
    scanned: usize,
    ended: bool,
    comments: u64,
}

impl Sse {
    fn new(connection: Connection, framing: Framing) -> Self {
        Self { connection, framing, buffer: vec![], start: 0, scanned: 0, ended: false, comments: 0 }
    }

    /// Comment lines so far: heartbeats.
    pub fn comments(&self) -> u64 {
        self.comments
    }

    /// The next event, within the limit; none at a clean end. A broken connection is an error.
    pub async fn next(&mut self) -> Result<Option<Frame>> {
        tokio::time::timeout(limits::CALL, self.next_unbounded())
            .await
            .with_context(|| format!("no event within {:?}", limits::CALL))?
    }

    /// As [`Self::next`], for as long as it takes.
    pub async fn next_unbounded(&mut self) -> Result<Option<Frame>> {
        loop {
            while let Some(frame) = self.take_frame()? {
                if let Some(frame) = frame {
                    return Ok(Some(frame));
                }
            }
            if self.ended {
                ensure!(self.start == self.buffer.len(), "the stream ended within an event");
                return Ok(None);
            }
            self.fill().await?;
        }
    }

    /// All events up to the end.
    pub async fn collect(&mut self) -> Result<Vec<Frame>> {
        let mut frames = vec![];
        while let Some(frame) = self.next().await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    async fn fill(&mut self) -> Result<()> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        ensure!(self.buffer.len() <= limits::FRAME_BYTES, "an event is over the limit");
        match self.framing {
            Framing::Chunked => self.ended = !self.connection.chunk(&mut self.buffer).await?,
            Framing::UntilClose => {
                let count = self.connection.stream.read_buf(&mut self.buffer).await?;
                self.ended = count == 0;
            }
            Framing::Length(_) => bail!("an event stream with a length"),
        }
        Ok(())
    }

    /// The outer `None` means: more bytes are needed; the inner one: a frame of comments only.
    fn take_frame(&mut self) -> Result<Option<Option<Frame>>> {
        let from = self.scanned.saturating_sub(1).max(self.start);
        let Some(offset) = self.buffer[from..].windows(2).position(|pair| pair == b"\n\n") else {
            self.scanned = self.buffer.len();
            return Ok(None);
        };
        let end = from + offset;
        let text = std::str::from_utf8(&self.buffer[self.start..end])?;
        let mut frame = Frame::default();
        let mut fields = 0;
        let mut data: Option<String> = None;
        for line in text.lines() {
            if line.starts_with(':') {
                self.comments += 1;
                continue;
            }
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            fields += 1;
            match name {
                "id" => frame.id = Some(value.to_owned()),
                "event" => frame.event = Some(value.to_owned()),
                "data" => match &mut data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => data = Some(value.to_owned()),
                },
                _ => {}
            }
        }
        frame.data = data.unwrap_or_default();
        self.start = end + 2;
        self.scanned = self.start;
        Ok(Some((fields > 0).then_some(frame)))
    }
}
