//! What an agent may ask of its client: files and terminals, done by the session room inside the session's
//! place and never by this one. A request that is not offered is answered so, one that cannot be read too;
//! the number that may be open is bounded. The answer to the agent goes out when the room has given its own.

use super::{Acp, Oddity, PlaceOffers, rpc};
use crate::Cx;
use agent_client_protocol_schema::v1::{CreateElicitationResponse, ElicitationAction};
use protocol::{Fault, Raw};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// Requests that may be open at once; more are refused.
const OPEN_ASKS: usize = 64;
/// Kept of a terminal's output when the agent names no limit.
const TERMINAL_BYTES: u64 = 1024 * 1024;

/// Something to be done in the session's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Write the conversation so far to its file in the agent's home. Answered with [`Done::Text`], the path.
    Transcript,
    /// Answered with [`Done::Text`]. Lines count from 1; without a limit, to the end.
    ReadFile { path: String, line: Option<u32>, limit: Option<u32> },
    /// Answered with [`Done::Nothing`].
    WriteFile { path: String, content: String },
    /// Start a command. Answered with [`Done::Text`], an id of the room's choosing.
    OpenTerminal(Terminal),
    /// Answered with [`Done::Output`].
    ReadTerminal { terminal: String },
    /// Answered with [`Done::Exited`], when it has.
    AwaitTerminal { terminal: String },
    /// End the command, keep its output. Answered with [`Done::Nothing`].
    KillTerminal { terminal: String },
    /// End the command and forget it. Answered with [`Done::Nothing`].
    CloseTerminal { terminal: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// None means the session's own.
    pub cwd: Option<String>,
    /// The newest output that is kept.
    pub output_bytes: u64,
}

/// What came of an [`Ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    Nothing,
    Text(String),
    Output {
        text: String,
        /// Its beginning is gone.
        cut: bool,
        exit: Option<TerminalExit>,
    },
    Exited(TerminalExit),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminalExit {
    pub exit_code: Option<u32>,
    pub signal: Option<String>,
}

/// Which ask an answer is for; never used twice by one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AskId(u64);

/// Asks that wait for the room.
#[derive(Debug, Default)]
pub(super) struct Asks {
    next: u64,
    open: Vec<(AskId, Waits)>,
}

#[derive(Debug)]
enum Waits {
    /// The agent's own id for its request, and how its answer looks; the terminal whose end it waits for.
    Agent { call: Raw, shape: Shape, end_of: Option<String> },
    /// The handshake.
    Handshake,
}

/// How an answer looks on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Nothing,
    Content,
    TerminalId,
    Output,
    Exit,
}

impl Asks {
    /// The agent's requests that wait, so that whoever takes the machine up can answer them.
    pub(super) fn save(&self) -> Vec<Raw> {
        let calls = self.open.iter().filter_map(|(_, waits)| match waits {
            Waits::Agent { call, end_of: None, .. } => Some(call.clone()),
            Waits::Agent { end_of: Some(_), .. } | Waits::Handshake => None,
        });
        calls.collect()
    }

    /// Those that wait for a terminal's end: it outlives the server, and is waited for again.
    pub(super) fn save_waits(&self) -> Vec<(Raw, String)> {
        let waits = self.open.iter().filter_map(|(_, waits)| match waits {
            Waits::Agent { call, end_of: Some(terminal), .. } => Some((call.clone(), terminal.clone())),
            Waits::Agent { end_of: None, .. } | Waits::Handshake => None,
        });
        waits.collect()
    }

    pub(super) fn wait_again(waits: Vec<(Raw, String)>, cx: &mut Cx) -> Self {
        let mut asks = Self::default();
        for (call, terminal) in waits {
            let end_of = Some(terminal.clone());
            let id = asks.add(Waits::Agent { call, shape: Shape::Exit, end_of });
            cx.ask(id, Ask::AwaitTerminal { terminal });
        }
        asks
    }

    fn add(&mut self, waits: Waits) -> AskId {
        self.next += 1;
        let id = AskId(self.next);
        self.open.push((id, waits));
        id
    }
}

impl Acp {
    /// What came of something that [`Cx::take_asks`] gave out. One that is not waited for any more is dropped.
    pub fn done(&mut self, id: AskId, result: Result<Done, Fault>, cx: &mut Cx) {
        let Some(place) = self.asks.open.iter().position(|(open, _)| *open == id) else { return };
        match self.asks.open.remove(place).1 {
            Waits::Handshake => self.transcribed(result, cx),
            Waits::Agent { call, shape, .. } => match result {
                Ok(done) => cx.send(rpc::result(call.as_raw(), &shape.answer(done))),
                Err(fault) => {
                    cx.send(rpc::error(call.as_raw(), rpc::INTERNAL_ERROR, &self.say_text(&fault.message)));
                }
            },
        }
    }

    pub(super) fn ask_transcript(&mut self, cx: &mut Cx) {
        let id = self.asks.add(Waits::Handshake);
        cx.ask(id, Ask::Transcript);
    }

    /// Requests of a server before this one: what became of them is not known here.
    pub(super) fn refuse_saved_asks(calls: &[Raw], cx: &mut Cx) {
        for call in calls {
            let text = "the server was restarted while it worked on this; ask again";
            cx.send(rpc::error(call.as_raw(), rpc::INTERNAL_ERROR, text));
        }
    }

    /// Takes a request that asks the place for something; false when it is none of those.
    pub(super) fn place_asked(
        &mut self,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        cx: &mut Cx,
    ) -> bool {
        let (needs, shape) = match method {
            "fs/read_text_file" => (PlaceOffers::Files, Shape::Content),
            "fs/write_text_file" => (PlaceOffers::Files, Shape::Nothing),
            "terminal/create" => (PlaceOffers::FilesAndTerminals, Shape::TerminalId),
            "terminal/output" => (PlaceOffers::FilesAndTerminals, Shape::Output),
            "terminal/wait_for_exit" => (PlaceOffers::FilesAndTerminals, Shape::Exit),
            "terminal/kill" | "terminal/release" => (PlaceOffers::FilesAndTerminals, Shape::Nothing),
            _ => return false,
        };
        if self.begin.terms.place < needs {
            return false;
        }
        let text = params.map_or("", RawValue::get);
        match read(method, text, self.session()) {
            Err(wrong) => {
                self.odd(Oddity::Junk, &format!("a {method} that cannot be followed"), text.as_bytes(), cx);
                cx.send(rpc::error(id, rpc::INVALID_PARAMS, wrong));
            }
            Ok(_) if self.asks.open.len() >= OPEN_ASKS => {
                cx.send(rpc::error(id, rpc::INTERNAL_ERROR, "too many requests are open; wait for one"));
            }
            Ok(ask) => {
                let end_of = match &ask {
                    Ask::AwaitTerminal { terminal } => Some(terminal.clone()),
                    _ => None,
                };
                let id = self.asks.add(Waits::Agent { call: Raw::from(id), shape, end_of });
                cx.ask(id, ask);
            }
        }
        true
    }

    /// Questions to a person are not passed on yet, and not advertised: one that comes is cancelled.
    pub(super) fn elicited(&mut self, id: &RawValue, params: Option<&RawValue>, cx: &mut Cx) {
        let asked = params.map_or("", RawValue::get);
        self.odd(Oddity::Unknown, "a question, which was cancelled", asked.as_bytes(), cx);
        cx.send(rpc::result(id, &CreateElicitationResponse::new(ElicitationAction::Cancel)));
    }
}

impl Shape {
    fn answer(self, done: Done) -> Value {
        match (self, done) {
            (Self::Content, Done::Text(content)) => json!({"content": content}),
            (Self::TerminalId, Done::Text(terminal)) => json!({"terminalId": terminal}),
            (Self::Output, Done::Output { text, cut, exit }) => {
                json!({"output": text, "truncated": cut, "exitStatus": exit})
            }
            (Self::Exit, Done::Exited(exit)) => json!(exit),
            // An answer of another kind than was asked for says nothing that the agent could use.
            (Self::Nothing | Self::Content | Self::TerminalId | Self::Output | Self::Exit, _) => json!({}),
        }
    }
}

fn read(method: &str, params: &str, session: Option<&str>) -> Result<Ask, &'static str> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        session_id: Cow<'a, str>,
        path: Option<String>,
        content: Option<String>,
        line: Option<u32>,
        limit: Option<u32>,
        terminal_id: Option<String>,
        command: Option<String>,
        #[serde(default)]
        args: Vec<String>,
        #[serde(default)]
        env: Vec<Variable>,
        cwd: Option<String>,
        output_byte_limit: Option<u64>,
    }
    #[derive(Deserialize)]
    struct Variable {
        name: String,
        value: String,
    }
    let Ok(params) = serde_json::from_str::<Params<'_>>(params) else { return Err("the params are wrong") };
    if session != Some(&*params.session_id) {
        return Err("no such session");
    }
    let terminal = || params.terminal_id.clone().ok_or("terminalId is missing");
    Ok(match method {
        "fs/read_text_file" => {
            Ask::ReadFile { path: absolute(params.path)?, line: params.line, limit: params.limit }
        }
        "fs/write_text_file" => Ask::WriteFile {
            path: absolute(params.path)?,
            content: params.content.ok_or("content is missing")?,
        },
        "terminal/create" => Ask::OpenTerminal(Terminal {
            command: params.command.ok_or("command is missing")?,
            args: params.args,
            env: params.env.into_iter().map(|variable| (variable.name, variable.value)).collect(),
            cwd: params.cwd,
            output_bytes: params.output_byte_limit.unwrap_or(TERMINAL_BYTES).min(TERMINAL_BYTES),
        }),
        "terminal/output" => Ask::ReadTerminal { terminal: terminal()? },
        "terminal/wait_for_exit" => Ask::AwaitTerminal { terminal: terminal()? },
        "terminal/kill" => Ask::KillTerminal { terminal: terminal()? },
        _ => Ask::CloseTerminal { terminal: terminal()? },
    })
}

fn absolute(path: Option<String>) -> Result<String, &'static str> {
    path.filter(|path| path.starts_with('/')).ok_or("path must be absolute")
}
