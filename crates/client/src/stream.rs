//! A session's events, followed across lost connections and server restarts.
//!
//! The stream remembers the last seq it gave out, asks for what comes after it whenever it connects, and checks
//! every number itself: what it yields has no gap and no double, whatever the network or the server does.
//!
//! ```text
//!  connect ──ok──► read ──frame──► event out
//!     ▲  └─error─┐  └─lost, silent, gap─┐
//!     │          ▼                      ▼
//!     └───── wait (doubling, jittered) ◄┘      final error or too many tries ─► over
//! ```

use crate::{Client, Error, Frame, Frames, Target, backoff::Backoff};
use protocol::{ErrorBody, Event, Seq, SessionId};
use reqwest::{Method, Response, header::ACCEPT};
use std::{fmt, pin::Pin, time::Duration};
use tokio::time::Instant;

/// What a follower sees.
#[derive(Debug)]
pub enum Followed {
    Event(Box<Event>),
    /// The connection was lost; the stream goes on by itself after `wait`. Nothing is missed.
    Reconnecting {
        attempt: u32,
        wait: Duration,
        cause: Error,
    },
}

/// Replays from a seq and then goes on live. Made by [`Client::events`].
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    target: Target,
    session: Option<SessionId>,
    last: Seq,
    backoff: Backoff,
    state: State,
}

/// Whatever is under way is kept here, so that a reader that is cancelled and comes back takes it up again.
enum State {
    Connect(Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>),
    Wait { until: Instant },
    Read(Box<Connection>),
    Over,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect(_) => "Connect",
            Self::Wait { .. } => "Wait",
            Self::Read(_) => "Read",
            Self::Over => "Over",
        })
    }
}

struct Connection {
    response: Response,
    frames: Frames,
    since: Instant,
    /// When the last bytes came.
    heard: Instant,
}

impl Client {
    /// Follows a session from the event after `after`; 0 means from the first. Connects when it is first read.
    pub fn events(&self, session: impl Into<Target>, after: Seq) -> EventStream {
        let target = session.into();
        let state = State::Connect(Box::pin(Connection::open(self.clone(), target.clone(), after)));
        let backoff = Backoff::new(self.patience());
        EventStream { client: self.clone(), target, session: None, last: after, backoff, state }
    }
}

impl EventStream {
    /// The seq of the last event given out.
    pub const fn last_seq(&self) -> Seq {
        self.last
    }

    /// The next event, or word of a reconnect. Cancel-safe. An error is final: the session or the key is gone,
    /// the cursor lies before what is kept, or the server stayed away for too long.
    pub async fn next(&mut self) -> Result<Followed, Error> {
        loop {
            let step = match &mut self.state {
                State::Wait { until } => {
                    tokio::time::sleep_until(*until).await;
                    let connection = Connection::open(self.client.clone(), self.target.clone(), self.last);
                    self.state = State::Connect(Box::pin(connection));
                    continue;
                }
                State::Connect(connecting) => connecting.await.map(|connection| {
                    self.state = State::Read(Box::new(connection));
                    None
                }),
                State::Read(connection) => match connection.next_frame(&self.client).await {
                    Ok(frame) => self.take(&frame),
                    Err(error) => Err(error),
                },
                State::Over => return Err(Error::Protocol("the stream is over".to_owned())),
            };
            match step {
                Ok(None) => {}
                Ok(Some(event)) => {
                    self.backoff.reset();
                    return Ok(Followed::Event(event));
                }
                Err(error) => return self.fall(error),
            }
        }
    }

    /// Checks a frame against what came before it.
    fn take(&mut self, frame: &Frame) -> Result<Option<Box<Event>>, Error> {
        let event = match Event::parse(&frame.data) {
            Ok(event) => event,
            Err(error) => return Err(last_word(frame).unwrap_or_else(|| error.into())),
        };
        if frame.id.as_ref().is_some_and(|id| *id != event.seq.to_string()) {
            return Err(Error::Protocol(format!("event {} came under another id", event.seq)));
        }
        if *self.session.get_or_insert(event.session) != event.session {
            return Err(Error::Protocol(format!("event {} is another session's", event.seq)));
        }
        if event.seq <= self.last {
            return Ok(None);
        }
        if event.seq != self.last + 1 {
            return Err(Error::Protocol(format!("event {} came after {}", event.seq, self.last)));
        }
        self.last = event.seq;
        Ok(Some(Box::new(event)))
    }

    /// Waits and tries again, or ends.
    fn fall(&mut self, error: Error) -> Result<Followed, Error> {
        // A quiet session behind a proxy that cuts connections brings no events, and is no failure either.
        if let State::Read(connection) = &self.state
            && connection.since.elapsed() >= self.client.patience().longest_wait
        {
            self.backoff.reset();
        }
        let wait = if error.passes() { self.backoff.next_wait() } else { None };
        match wait {
            Some(wait) => {
                self.state = State::Wait { until: Instant::now() + wait };
                Ok(Followed::Reconnecting { attempt: self.backoff.attempt(), wait, cause: error })
            }
            None => {
                self.state = State::Over;
                Err(error)
            }
        }
    }
}

impl Connection {
    async fn open(client: Client, target: Target, after: Seq) -> Result<Self, Error> {
        let request = client
            .request(Method::GET, &format!("/api/sessions/{target}/events"))
            .query(&[("after", after)])
            .header(ACCEPT, "text/event-stream");
        let response = client.within(client.patience().answer, client.head(request)).await?;
        let now = Instant::now();
        Ok(Self { response, frames: Frames::new(), since: now, heard: now })
    }

    async fn next_frame(&mut self, client: &Client) -> Result<Frame, Error> {
        let silence = client.patience().silence;
        loop {
            match self.frames.next_frame() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => return Err(Error::Protocol(error.to_string())),
            }
            let chunk = tokio::time::timeout_at(self.heard + silence, self.response.chunk())
                .await
                .map_err(|_| client.silent(silence))?
                .map_err(|error| client.unreachable(&error))?
                .ok_or_else(|| client.hung_up())?;
            self.heard = Instant::now();
            self.frames.push(&chunk);
        }
    }
}

/// The server's word that the stream cannot go on, if a frame that is no event is that.
fn last_word(frame: &Frame) -> Option<Error> {
    let body: ErrorBody = serde_json::from_str(&frame.data).ok()?;
    Some(Error::Refused { status: body.status_code, body })
}
