//! A tiny WebSocket client over a TCP stream, with JSON-RPC on it.
//!
//! Like [`crate::Http`] it shares no code with the product: it knows the wire, RFC 6455 without extensions, and
//! nothing else. Every read is bounded in size, and every wait in time.

use crate::limits;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::{collections::VecDeque, net::SocketAddr};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// Any sixteen bytes, and what the standard makes of them.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// The payload is disguised with this; one that is all zeros would hide a server that does not undo it.
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

/// An open socket.
#[derive(Debug)]
pub struct Socket {
    stream: BufReader<TcpStream>,
    next_id: u64,
    /// Notifications that came while an answer was waited for.
    told: VecDeque<Value>,
}

impl Socket {
    /// Opens `path` with a key; the error holds what the server said instead.
    pub async fn open(address: SocketAddr, path: &str, key: Option<&str>) -> Result<Self> {
        let mut stream = BufReader::new(TcpStream::connect(address).await?);
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n{key}\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut lines = vec![];
        loop {
            let mut line = String::new();
            let read = tokio::time::timeout(limits::CALL, stream.read_line(&mut line));
            ensure!(read.await.context("no answer to the upgrade")?? > 0, "hung up: {lines:?}");
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        ensure!(lines[0].contains(" 101 "), "refused: {}", lines[0]);
        let accepted = lines.iter().any(|line| {
            line.split_once(':').is_some_and(|(name, value)| {
                name.eq_ignore_ascii_case("sec-websocket-accept") && value.trim() == ACCEPT
            })
        });
        ensure!(accepted, "no right Sec-WebSocket-Accept: {lines:?}");
        Ok(Self { stream, next_id: 1, told: VecDeque::new() })
    }

    /// Calls a method and waits for its answer, keeping what comes before it.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.begin(method, params).await?;
        let answer = self.answer(id).await?;
        ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        Ok(answer["result"].clone())
    }

    /// As [`Self::call`], for a call that must be refused: its error.
    pub async fn refused(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.begin(method, params).await?;
        let answer = self.answer(id).await?;
        ensure!(answer["error"].is_object(), "{method} was not refused: {answer}");
        Ok(answer["error"].clone())
    }

    /// Sends a call; its id.
    pub async fn begin(&mut self, method: &str, params: Value) -> Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(&call.to_string()).await?;
        Ok(id)
    }

    pub async fn answer(&mut self, id: u64) -> Result<Value> {
        loop {
            let message = self.message().await?;
            if message["id"] == id {
                return Ok(message);
            }
            ensure!(message["method"].is_string(), "an answer to another call: {message}");
            self.told.push_back(message);
        }
    }

    /// The next notification.
    pub async fn notification(&mut self) -> Result<Value> {
        match self.told.pop_front() {
            Some(told) => Ok(told),
            None => self.message().await,
        }
    }

    /// The next message, whatever it is.
    pub async fn message(&mut self) -> Result<Value> {
        let next = tokio::time::timeout(limits::CALL, self.next());
        let text = next.await.context("no message")??;
        serde_json::from_slice(&text).with_context(|| format!("not JSON: {}", String::from_utf8_lossy(&text)))
    }

    async fn next(&mut self) -> Result<Vec<u8>> {
        let mut whole = vec![];
        loop {
            let (last, kind, payload) = self.frame().await?;
            match kind {
                PING => self.write(PONG, &payload).await?,
                PONG => {}
                CLOSE => bail!("closed: {}", String::from_utf8_lossy(payload.get(2..).unwrap_or_default())),
                _ => {
                    whole.extend_from_slice(&payload);
                    if last {
                        return Ok(whole);
                    }
                }
            }
        }
    }

    async fn frame(&mut self) -> Result<(bool, u8, Vec<u8>)> {
        let first = self.stream.read_u8().await.context("hung up")?;
        let second = self.stream.read_u8().await?;
        ensure!(first & 0x70 == 0 && second & 0x80 == 0, "bits that a server must not set");
        let length = match second & 0x7f {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            short => u64::from(short),
        };
        ensure!(length <= limits::FRAME_BYTES as u64, "a frame of {length} bytes");
        let mut payload = vec![0; usize::try_from(length)?];
        self.stream.read_exact(&mut payload).await?;
        Ok((first & 0x80 != 0, first & 0x0f, payload))
    }

    /// Sends text as it is.
    pub async fn send(&mut self, text: &str) -> Result<()> {
        self.write(TEXT, text.as_bytes()).await
    }

    async fn write(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let mut frame = vec![0x80 | kind];
        match payload.len() {
            short @ 0..126 => frame.push(0x80 | u8::try_from(short)?),
            middle @ 126..=0xffff => {
                frame.push(0x80 | 126);
                frame.extend(u16::try_from(middle)?.to_be_bytes());
            }
            long => {
                frame.push(0x80 | 127);
                frame.extend(u64::try_from(long)?.to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.stream.write_all(&frame).await?;
        Ok(())
    }
}
