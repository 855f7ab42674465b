//! A scripted server: each accepted connection gets the next answer and is then closed or held open.

use crate::{Client, Patience};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};

/// What happens after the bytes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Close,
    Hold,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) then: Then,
}

/// A request as it came: the head's lines and the body.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// The task ends with the test's runtime.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    requests: mpsc::UnboundedReceiver<Request>,
    _task: JoinHandle<()>,
}

impl Server {
    /// Answers the first connections as told; later ones are closed unanswered.
    pub(crate) async fn with(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut held = vec![];
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let Some(request) = read_request(&mut stream).await else { continue };
                let _ = sender.send(request);
                for piece in &answer.pieces {
                    if stream.write_all(piece).await.is_err() {
                        break;
                    }
                    let _ = stream.flush().await;
                    // Let the reader run, so that pieces arrive as pieces.
                    tokio::task::yield_now().await;
                }
                if answer.then == Then::Hold {
                    held.push(stream);
                }
            }
            while let Ok((stream, _)) = listener.accept().await {
                drop(stream);
            }
        });
        Self { url, requests, _task: task }
    }

    pub(crate) fn client(&self) -> Client {
        Client::with_patience(&self.url, "k", quick()).unwrap()
    }

    pub(crate) async fn request(&mut self) -> Request {
        self.requests.recv().await.unwrap()
    }
}

/// Short waits, so that a test of many faults stays quick.
pub(crate) fn quick() -> Patience {
    Patience {
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(5),
        silence: Duration::from_millis(200),
        answer: Duration::from_secs(5),
        tries: 4,
        ..Patience::default()
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = vec![];
    let mut chunk = [0; 4096];
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let lower = head.to_lowercase();
    let length: usize = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |text| text.parse().unwrap());
    let chunked = lower.contains("transfer-encoding: chunked");
    let whole = |body: &[u8]| if chunked { body.ends_with(b"0\r\n\r\n") } else { body.len() >= length };
    let mut body = bytes[head_end..].to_vec();
    while !whole(&body) {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => body.extend_from_slice(&chunk[..count]),
        }
    }
    Some(Request { head, body })
}

/// A whole answer with a length.
pub(crate) fn reply(status: u16, headers: &str, body: &str) -> Answer {
    let text = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    );
    Answer { pieces: vec![text.into_bytes()], then: Then::Close }
}

/// A stream without a length: it ends when the connection does.
pub(crate) fn stream(pieces: &[&str], then: Then) -> Answer {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let mut all = vec![head.as_bytes().to_vec()];
    all.extend(pieces.iter().map(|piece| piece.as_bytes().to_vec()));
    Answer { pieces: all, then }
}

/// A connection that breaks before it says anything.
pub(crate) fn broken() -> Answer {
    Answer { pieces: vec![], then: Then::Close }
}

pub(crate) fn refusal(status: u16, code: &str) -> String {
    format!(r#"{{"error":"A sentence.","statusCode":{status},"code":"{code}","requestId":"r"}}"#)
}
