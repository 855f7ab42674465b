//! Messages on a byte stream, one a line, both ways, with bounds: a line has a longest, and a reader that does not
//! read is not read from either, so that answers do not pile up.
//!
//! What is no message is answered, with its id wherever one can be found: nobody is left waiting.

use crate::rest::Stopping;
use protocol::limits;
use rmcp::{
    ErrorData, RoleServer,
    model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::Transport,
};
use serde::Deserialize;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{Mutex, Notify},
};

/// One message.
pub(super) const LINE_BYTES: usize = limits::REQUEST_BYTES;
/// Answers that wait to be written; above it no more calls are read.
const UNREAD_BYTES: usize = 8 * 1024 * 1024;
/// How much of a message is read at a time.
const READ_BYTES: usize = 64 * 1024;
/// Kept of the two ends of a line that is too long: its id is at one of them.
const EDGE_BYTES: usize = 512;

pub(super) struct Line<R, W> {
    reader: BufReader<R>,
    line: Vec<u8>,
    long: Option<Edges>,
    writer: Arc<Writer<W>>,
    stopping: Stopping,
}

struct Writer<W> {
    out: Mutex<W>,
    unread: AtomicUsize,
    read: Notify,
}

/// The ends of a line that is too long.
#[derive(Default)]
struct Edges {
    head: Vec<u8>,
    tail: Vec<u8>,
}

enum Read {
    Line,
    TooLong(Edges),
    End,
}

impl<R, W> Line<R, W>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    pub(super) fn new(read: R, write: W, stopping: Stopping) -> Self {
        let writer = Writer { out: Mutex::new(write), unread: AtomicUsize::new(0), read: Notify::new() };
        Self {
            reader: BufReader::with_capacity(READ_BYTES, read),
            line: Vec::new(),
            long: None,
            writer: Arc::new(writer),
            stopping,
        }
    }

    /// The first line, which is not a message.
    pub(super) async fn first(&mut self) -> Option<Vec<u8>> {
        match self.read().await {
            Read::Line => Some(std::mem::take(&mut self.line)),
            Read::TooLong(_) | Read::End => None,
        }
    }

    /// Reads one line into `self.line`. May be dropped and asked again: what was read so far stays.
    async fn read(&mut self) -> Read {
        loop {
            let Ok(bytes) = self.reader.fill_buf().await else { return Read::End };
            if bytes.is_empty() {
                return Read::End;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |end| end + 1);
            let piece = &bytes[..taken];
            if let Some(edges) = &mut self.long {
                edges.add(piece);
            } else if self.line.len() + piece.len() > LINE_BYTES {
                let mut edges = Edges::default();
                edges.add(&self.line);
                edges.add(piece);
                self.line = Vec::new();
                self.long = Some(edges);
            } else {
                self.line.extend_from_slice(piece);
            }
            self.reader.consume(taken);
            if end.is_some() {
                return self.long.take().map_or(Read::Line, Read::TooLong);
            }
        }
    }

    /// The message in `self.line`, or what to answer.
    fn parse(&self) -> Result<ClientJsonRpcMessage, Box<ServerJsonRpcMessage>> {
        let line = self.line.trim_ascii();
        serde_json::from_slice(line).map_err(|error| {
            if error.is_data() {
                let id = serde_json::from_slice::<Addressed>(line).ok().map(|addressed| addressed.id);
                Box::new(refuse(
                    ErrorData::invalid_request("the line is not a JSON-RPC 2.0 message", None),
                    id,
                ))
            } else {
                Box::new(refuse(ErrorData::parse_error(format!("the line is not JSON: {error}"), None), None))
            }
        })
    }
}

#[derive(Deserialize)]
struct Addressed {
    id: RequestId,
}

fn refuse(error: ErrorData, id: Option<RequestId>) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(error, id)
}

impl Edges {
    fn add(&mut self, piece: &[u8]) {
        let room = EDGE_BYTES.saturating_sub(self.head.len()).min(piece.len());
        self.head.extend_from_slice(&piece[..room]);
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(EDGE_BYTES)..]);
        self.tail.drain(..self.tail.len().saturating_sub(EDGE_BYTES));
    }

    /// The message's id, as far as it can be told without the message.
    fn id(&self) -> Option<RequestId> {
        const KEY: &str = "\"id\":";
        let head = String::from_utf8_lossy(&self.head);
        let tail = String::from_utf8_lossy(&self.tail);
        let found = head.find(KEY).map(|at| &head[at + KEY.len()..]);
        let found = found.or_else(|| tail.rfind(KEY).map(|at| &tail[at + KEY.len()..]))?;
        let mut values = serde_json::Deserializer::from_str(found).into_iter::<serde_json::Value>();
        serde_json::from_value(values.next()?.ok()?).ok()
    }
}

impl<W: AsyncWrite + Unpin + Send> Writer<W> {
    fn expect(&self, message: &ServerJsonRpcMessage) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(message)?;
        bytes.push(b'\n');
        self.unread.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(bytes)
    }

    async fn write(&self, bytes: Vec<u8>) -> io::Result<()> {
        let written = async {
            let mut out = self.out.lock().await;
            out.write_all(&bytes).await?;
            out.flush().await
        };
        let written = written.await;
        self.unread.fetch_sub(bytes.len(), Ordering::Relaxed);
        self.read.notify_waiters();
        written
    }

    async fn has_room(&self) {
        loop {
            let read = self.read.notified();
            if self.unread.load(Ordering::Relaxed) <= UNREAD_BYTES {
                return;
            }
            read.await;
        }
    }
}

impl<R, W> Transport<RoleServer> for Line<R, W>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let writer = Arc::clone(&self.writer);
        let bytes = writer.expect(&message);
        async move { writer.write(bytes?).await }
    }

    /// Nothing more comes once the server stops: calls under way are answered, and the stream ends.
    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        let mut stopping = self.stopping.clone();
        let writer = Arc::clone(&self.writer);
        loop {
            let read = tokio::select! {
                biased;
                () = stopping.wait() => return None,
                read = async { writer.has_room().await; self.read().await } => read,
            };
            let answer = match read {
                Read::End => return None,
                Read::Line if self.line.trim_ascii().is_empty() => None,
                Read::Line => match self.parse() {
                    Ok(message) => {
                        self.clear();
                        return Some(message);
                    }
                    Err(answer) => Some(*answer),
                },
                Read::TooLong(edges) => {
                    let text = format!("the message is over {LINE_BYTES} bytes");
                    Some(refuse(ErrorData::invalid_request(text, None), edges.id()))
                }
            };
            self.clear();
            if let Some(answer) = answer {
                let bytes = writer.expect(&answer).ok()?;
                writer.write(bytes).await.ok()?;
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.out.lock().await.shutdown().await
    }
}

impl<R, W> Line<R, W> {
    /// Forgets the line, and the room of an unusually long one.
    fn clear(&mut self) {
        self.line.clear();
        self.line.shrink_to(READ_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, DuplexStream};

    fn pair() -> (
        DuplexStream,
        Line<tokio::io::ReadHalf<DuplexStream>, tokio::io::WriteHalf<DuplexStream>>,
        tokio::sync::watch::Sender<bool>,
    ) {
        let (ours, theirs) = tokio::io::duplex(1024 * 1024);
        let (read, write) = tokio::io::split(theirs);
        let (stop, stopping) = Stopping::new();
        (ours, Line::new(read, write, stopping), stop)
    }

    async fn answered(mut ours: DuplexStream) -> serde_json::Value {
        let mut text = vec![0; 4096];
        let read = ours.read(&mut text).await.unwrap();
        serde_json::from_slice(&text[..read]).unwrap()
    }

    #[tokio::test]
    async fn junk_is_answered_and_survived() {
        for (junk, code, id) in [
            ("not json", -32700, serde_json::Value::Null),
            ("[]", -32600, serde_json::Value::Null),
            (r#"{"jsonrpc":"2.0","id":7,"method":5}"#, -32600, 7.into()),
        ] {
            let (mut ours, mut line, _stop) = pair();
            let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
            ours.write_all(format!("{junk}\n\n{ping}\n").as_bytes()).await.unwrap();
            let message = line.receive().await.unwrap();
            assert!(matches!(message, ClientJsonRpcMessage::Request(_)), "{junk}");
            let answer = answered(ours).await;
            assert_eq!(answer["error"]["code"], code, "{junk}");
            assert_eq!(answer.get("id").cloned().unwrap_or_default(), id, "{junk}");
        }
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_refused_by_its_id() {
        for long in [
            format!(r#"{{"jsonrpc":"2.0","id":"a","method":"x","params":"{}"}}"#, "y".repeat(LINE_BYTES)),
            format!(r#"{{"method":"x","params":"{}","jsonrpc":"2.0","id": "a"}}"#, "y".repeat(LINE_BYTES)),
        ] {
            let (ours, mut line, _stop) = pair();
            let (mut read, mut write) = tokio::io::split(ours);
            let writing = async {
                write.write_all(long.as_bytes()).await.unwrap();
                write.write_all(b"\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").await.unwrap();
            };
            let (_, message) = tokio::join!(writing, line.receive());
            assert!(matches!(message, Some(ClientJsonRpcMessage::Request(_))));
            let mut text = vec![0; 4096];
            let count = read.read(&mut text).await.unwrap();
            let answer: serde_json::Value = serde_json::from_slice(&text[..count]).unwrap();
            assert_eq!(answer["id"], "a");
        }
    }

    #[tokio::test]
    async fn a_reader_that_does_not_read_is_not_read_from() {
        let (mut ours, mut line, _stop) = pair();
        let message = refuse(ErrorData::internal_error("x".repeat(UNREAD_BYTES), None), None);
        let sending = tokio::spawn(line.send(message));
        ours.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").await.unwrap();
        assert!(futures_util::poll!(Box::pin(line.receive())).is_pending());
        let mut read = vec![0; UNREAD_BYTES];
        ours.read_exact(&mut read).await.unwrap();
        let mut rest = vec![0; 4096];
        ours.read(&mut rest).await.map(drop).unwrap();
        assert!(line.receive().await.is_some());
        sending.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_server_that_stops_reads_no_more() {
        let (_ours, mut line, stop) = pair();
        stop.send_replace(true);
        assert!(line.receive().await.is_none());
    }
}
