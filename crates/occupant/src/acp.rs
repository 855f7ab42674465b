//! An agent that speaks ACP v1, seen from the client's side of its pipes.
//!
//! ```text
//! Opening ──handshake──► Live ──eof, exit, broken protocol, ignored cancel──► Over
//!    └──────────error, time-out, eof, exit──────────────────────────────────────▲
//! ```
//! Requests that go with an event have that event's seq as their id; the others are `"SEQ.N"`, the last seq
//! and a count, so that no id comes twice in a session. What the agent sends is read shallowly and kept as it
//! came. Nothing it sends can stop the machine: what is not understood becomes a notice, a request that is not
//! known is answered so, and each prompt ends exactly once.

mod asks;
mod config;
mod handshake;
mod notice;
mod permission;
mod replay;
mod rpc;
mod saved;
mod terms;
mod turn;
mod verdict;
mod watch;
mod ways;

pub use asks::{Ask, AskId, Done, Terminal, TerminalExit};
pub use saved::Saved;
pub use terms::{Before, PlaceOffers, Spent, Terms, TurnLimits, Whose};

use crate::{Cx, Redactor, Said};
use handshake::Opening;
use notice::{Notices, Oddity};
use protocol::{
    Actor, AgentUpdate, Code, ContentBlock, Fault, McpServers, Outcome, Raw, Reason, SessionConfig,
    Timestamp, TurnId, limits,
};
use rpc::{Incoming, Junk};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A line's buffer above this is given back once the line is handled.
const KEPT_BUFFER_BYTES: usize = 16 * 1024;

/// How to begin with a process that has just been started.
#[derive(Clone)]
pub struct Begin {
    pub cwd: String,
    pub mcp_servers: McpServers,
    /// Applied after the handshake, whichever way that went.
    pub config: SessionConfig,
    /// The agent's own session id, when there was a conversation before.
    pub resume: Option<String>,
    /// Seconds a turn may take.
    pub turn_secs: Option<u64>,
    /// Applied to everything that is recorded or said.
    pub redactor: Redactor,
    pub terms: Terms,
}

impl std::fmt::Debug for Begin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // MCP servers come with secrets in their environment and headers.
        f.debug_struct("Begin").field("cwd", &self.cwd).field("resume", &self.resume).finish_non_exhaustive()
    }
}

/// The machine for one agent process.
#[derive(Debug)]
pub struct Acp {
    begin: Begin,
    phase: Phase,
    turn: Option<turn::Turn>,
    permissions: Vec<permission::Permission>,
    asks: asks::Asks,
    config: config::Config,
    notices: Notices,
    meter: watch::Meter,
    /// Where the transcript is that the next prompt must point at.
    transcript: Option<String>,
    /// The next prompt must bring the session's instructions.
    instruct: bool,
    /// Requests sent without an event of their own.
    calls: u32,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// Bytes of whole lines handled, and of the line being handled now.
    handled: u64,
    line_at: u64,
}

#[derive(Debug)]
enum Phase {
    Opening(Box<Opening>),
    Live {
        /// The agent's own session id.
        session: String,
    },
    Over,
}

impl Acp {
    /// Sends `initialize`.
    pub fn begin(begin: Begin, cx: &mut Cx) -> Self {
        let mut acp = Self {
            begin,
            phase: Phase::Over,
            turn: None,
            permissions: Vec::new(),
            asks: asks::Asks::default(),
            config: config::Config::default(),
            notices: Notices::default(),
            meter: watch::Meter::default(),
            transcript: None,
            instruct: false,
            calls: 0,
            partial: Vec::new(),
            handled: 0,
            line_at: 0,
        };
        acp.initialize(cx);
        acp
    }

    /// Takes what the process wrote. Any split of the same bytes leaves the same records.
    pub fn output(&mut self, mut bytes: &[u8], cx: &mut Cx) {
        while !bytes.is_empty() && !matches!(self.phase, Phase::Over) {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let length = end.unwrap_or(bytes.len());
            if self.partial.len() + length > limits::LINE_BYTES {
                self.line_too_long(cx);
                return;
            }
            let (line, rest) = bytes.split_at(length);
            let Some(rest) = end.and(rest.get(1..)) else {
                self.partial.extend_from_slice(line);
                return;
            };
            self.line_at = self.handled;
            if self.partial.is_empty() {
                self.handled += length as u64 + 1;
                self.line(line, cx);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.handled += whole.len() as u64 + 1;
                self.line(&whole, cx);
                if whole.capacity() <= KEPT_BUFFER_BYTES {
                    whole.clear();
                    self.partial = whole;
                }
            }
            bytes = rest;
        }
    }

    /// The process closed its output: nothing more can be heard of it.
    pub fn eof(&mut self, cx: &mut Cx) {
        // A last line without its end may still be whole.
        let rest = std::mem::take(&mut self.partial);
        if !rest.is_empty() && !matches!(self.phase, Phase::Over) {
            self.line_at = self.handled;
            self.line(&rest, cx);
        }
        self.died("the agent closed its output", cx);
    }

    /// The process ended. What it wrote before must have been given to [`Self::output`]: what comes later is
    /// not heard.
    pub fn exited(&mut self, cx: &mut Cx) {
        self.died("the agent's process ended", cx);
    }

    /// Time has passed.
    pub fn tick(&mut self, cx: &mut Cx) {
        match &self.phase {
            Phase::Opening(_) => self.tick_handshake(cx),
            Phase::Live { .. } => {
                self.tick_permissions(cx);
                self.tick_config(cx);
                self.tick_turn(cx);
            }
            Phase::Over => {}
        }
    }

    /// When [`Self::tick`] wants to be called next.
    pub fn deadline(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Opening(opening) => Some(opening.until),
            Phase::Live { .. } => {
                let turn = self.turn.as_ref().and_then(turn::Turn::deadline);
                let permission = self.permissions.iter().map(|open| open.until).min();
                [turn, permission, self.config.deadline()].into_iter().flatten().min()
            }
            Phase::Over => None,
        }
    }

    /// The offset in the process's output up to which everything is recorded: the end of the last whole line
    /// handled, or the beginning of the first one that is held back for its secrets.
    pub fn consumed(&self) -> u64 {
        self.begin.redactor.held_from().unwrap_or(self.handled)
    }

    /// A turn is running.
    pub fn is_busy(&self) -> bool {
        self.turn.is_some()
    }

    fn session(&self) -> Option<&str> {
        match &self.phase {
            Phase::Live { session } => Some(session),
            Phase::Opening(_) | Phase::Over => None,
        }
    }

    fn line(&mut self, line: &[u8], cx: &mut Cx) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match Incoming::parse(line) {
            Ok(Incoming::Notification { method, params }) => self.notification(&method, params, line, cx),
            Ok(Incoming::Request { id, method, params }) => self.request(id, &method, params, cx),
            Ok(Incoming::Response { id, reply }) => self.response(id, reply, line, cx),
            Err(junk) => self.junk(&junk, line, cx),
        }
    }

    fn notification(&mut self, method: &str, params: Option<&RawValue>, line: &[u8], cx: &mut Cx) {
        if method != "session/update" {
            // Protocol-level notifications ask for nothing that we do.
            return self.odd(Oddity::Unknown, "a notification that is not known", line, cx);
        }
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(rename = "sessionId", borrow)]
            session: Cow<'a, str>,
            #[serde(borrow)]
            update: &'a RawValue,
        }
        let Some(Params { session, update }) =
            params.and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok())
        else {
            return self.odd(Oddity::Junk, "a session/update without a session or an update", line, cx);
        };
        let ours = match &self.phase {
            Phase::Live { session: ours } => ours == &*session,
            Phase::Opening(opening) => match opening.hears(&session, self.begin.resume.as_deref()) {
                handshake::Hears::Ours => true,
                handshake::Hears::Replay => return self.hear_replay(update, cx),
                handshake::Hears::Others => false,
            },
            Phase::Over => return,
        };
        if ours {
            self.update(update, cx);
        } else {
            self.odd(Oddity::Unknown, "an update for another session", line, cx);
        }
    }

    fn update(&mut self, update: &RawValue, cx: &mut Cx) {
        self.config.hear(update.get());
        self.meter.hear(update.get());
        let turn = self.turn.as_ref().map(|turn| turn.id);
        self.begin.redactor.update(Raw::from(update), self.line_at, |update| {
            cx.record(Actor::Agent, AgentUpdate { turn, update });
        });
        self.watch_turn(update.get(), cx);
    }

    fn flush(&mut self, cx: &mut Cx) {
        let turn = self.turn.as_ref().map(|turn| turn.id);
        self.begin.redactor.flush(|update| {
            cx.record(Actor::Agent, AgentUpdate { turn, update });
        });
    }

    fn request(&mut self, id: &RawValue, method: &str, params: Option<&RawValue>, cx: &mut Cx) {
        match method {
            "session/request_permission" => return self.permission_requested(id, params, cx),
            "elicitation/create" => return self.elicited(id, params, cx),
            _ if self.place_asked(id, method, params, cx) => return,
            _ => {}
        }
        let asked = format!("{method} {}", params.map_or("", RawValue::get));
        self.odd(Oddity::Unknown, "a request that is not known, and was answered so", asked.as_bytes(), cx);
        cx.send(rpc::error(id, rpc::METHOD_NOT_FOUND, "this client does not have the method"));
    }

    fn response(&mut self, id: &RawValue, reply: rpc::Reply<'_>, line: &[u8], cx: &mut Cx) {
        let text = id.get();
        match &self.phase {
            Phase::Opening(opening) if opening.call == text => return self.handshake_reply(reply, cx),
            Phase::Opening(_) | Phase::Over => {}
            Phase::Live { .. } => {
                if self.turn.as_ref().is_some_and(|turn| turn.call == text) {
                    return self.prompt_reply(reply, cx);
                }
                if self.config.awaits(text) {
                    return self.config_reply(reply, cx);
                }
            }
        }
        self.odd(Oddity::Junk, "an answer to nothing that was asked", line, cx);
    }

    fn junk(&mut self, junk: &Junk, line: &[u8], cx: &mut Cx) {
        // What has an id waits for an answer, however wrong it is.
        if let Junk::Shape { id: Some(id) } = junk {
            cx.send(rpc::error(id, rpc::INVALID_REQUEST, "neither a request nor an answer"));
        }
        self.odd(Oddity::Junk, junk.what(), line, cx);
    }

    fn line_too_long(&mut self, cx: &mut Cx) {
        self.partial = Vec::new();
        let text = format!("the agent wrote a line of more than {} bytes", limits::LINE_BYTES);
        self.over((Outcome::Failed, Reason::AgentProtocol), &text, cx);
    }

    fn died(&mut self, what: &str, cx: &mut Cx) {
        let text = match &self.phase {
            Phase::Opening(opening) => format!("{what} {}", opening.when()),
            Phase::Live { .. } => what.to_owned(),
            Phase::Over => return,
        };
        self.over((Outcome::Interrupted, Reason::AgentDied), &text, cx);
    }

    /// Ends whatever is under way, once, and everything after it.
    fn over(&mut self, turn: (Outcome, Reason), text: &str, cx: &mut Cx) {
        self.close_permissions(cx);
        self.flush(cx);
        self.sum_up_notices(cx);
        self.end_turn(turn.0, turn.1, Some(text.to_owned()), None, cx);
        self.phase = Phase::Over;
        self.partial = Vec::new();
        let fault = Fault::new(Code::AgentFailed, self.say_text(text));
        self.drop_config(&fault, cx);
        cx.say(Said::Unusable(fault));
    }

    /// Text for people: without secrets, and bounded.
    fn say_text(&self, text: &str) -> String {
        notice::bounded(&self.begin.redactor.text(text)).into_owned()
    }

    /// An id for a request that has no event of its own.
    fn call(&mut self, cx: &Cx) -> String {
        self.calls += 1;
        format!("\"{}.{}\"", cx.next_seq() - 1, self.calls)
    }

    /// Sends a prompt as the turn whose `turn_started` was recorded just before.
    pub fn prompt(&mut self, turn: TurnId, content: &[ContentBlock], limits: TurnLimits, cx: &mut Cx) {
        self.start_turn(turn, content, limits, cx);
    }

    /// What the session's turns have used, this process's among them.
    pub fn spent(&self) -> Spent {
        self.begin.terms.spent
    }
}

#[cfg(test)]
mod tests;
