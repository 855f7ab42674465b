//! Events in, frames out: one turn of a session in the shape that existing clients of the REST contract read.
//!
//! Pure: no clock, no IO. It takes the session's events in order, ignores those of other turns, and says when
//! its turn is over. What it keeps is bounded, whatever an agent sends.
//!
//! ```text
//! session_start · ( text_delta… message | thinking_delta… message | tool_use message | tool_update
//!                 | tool_result message | permission_request | plan )* · (turn_complete | error) · done
//! ```
//!
//! A run of text (or thought) is one `message`: it ends when anything else comes, when the agent begins another
//! message, or at [`MESSAGE_BYTES`]. With `includePartialMessages` each piece is a `text_delta` as it comes;
//! without it the run is one `text_delta` right before its `message`. Either way a client that joins the deltas
//! and one that reads the messages get the same text, and who did not ask for pieces is not woken for each.

use super::frame;
use protocol::{
    Accepted, Body, BodyError, Disposition, ErrorBody, EventKind, Outcome, PermissionOption, Reason, Seq,
    SessionId, TurnEnded, TurnId, Usage,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use std::{borrow::Cow, collections::HashMap};

/// A run of text longer than this is sent as several messages.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// The text of the whole turn that `turn_complete` repeats.
const RESULT_BYTES: usize = 1024 * 1024;
/// Tool calls of one turn whose state is kept, and the results that wait for their call's end.
const TOOL_CALLS: usize = 4_096;
const TOOL_BYTES: usize = 4 * 1024 * 1024;

/// How finely text is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// A delta for each whole message.
    Messages,
    /// Deltas as the agent sends them.
    Deltas,
}

#[derive(Debug)]
pub(crate) enum Progress {
    More,
    /// `done` was written.
    Ended,
    /// The event may concern this turn and cannot be read. The caller breaks the stream off.
    Unreadable(BodyError),
}

pub(crate) struct Translator {
    session: SessionId,
    turn: TurnId,
    seq: Seq,
    disposition: Disposition,
    detail: Detail,
    run: Option<Run>,
    result: String,
    result_cut: bool,
    tools: Tools,
}

/// Text that is still growing.
struct Run {
    voice: Voice,
    message: Option<String>,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Speech,
    Thought,
}

impl Translator {
    pub(crate) fn new(session: SessionId, accepted: &Accepted, detail: Detail) -> Self {
        Self {
            session,
            turn: accepted.turn,
            seq: accepted.seq,
            disposition: accepted.disposition,
            detail,
            run: None,
            result: String::new(),
            result_cut: false,
            tools: Tools::default(),
        }
    }

    /// The first frame.
    pub(crate) fn open(&self) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Start {
            session_id: SessionId,
            version: &'static str,
            turn: TurnId,
            seq: Seq,
            disposition: Disposition,
        }
        let mut out = String::new();
        let version = env!("CARGO_PKG_VERSION");
        let (session_id, turn, seq, disposition) = (self.session, self.turn, self.seq, self.disposition);
        frame::push(&mut out, "session_start", &Start { session_id, version, turn, seq, disposition });
        out
    }

    /// The next event of the session. Kinds that say nothing here are not decoded.
    pub(crate) fn event(
        &mut self,
        seq: Seq,
        kind: EventKind,
        decode: impl FnOnce() -> Result<Body, BodyError>,
        out: &mut String,
    ) -> Progress {
        match kind {
            EventKind::AgentUpdate | EventKind::PermissionRequested | EventKind::TurnEnded => {}
            EventKind::SessionCreated
            | EventKind::SessionStatusChanged
            | EventKind::SessionConfig
            | EventKind::SessionRenamed
            | EventKind::PromptAccepted
            | EventKind::TurnStarted
            | EventKind::PermissionAnswered
            | EventKind::OccupantStarted
            | EventKind::OccupantExited
            | EventKind::CommandStarted
            | EventKind::CommandEnded
            | EventKind::OutputKept
            | EventKind::SnapshotTaken
            | EventKind::SnapshotRestored
            | EventKind::Notice
            | EventKind::ErrorRaised => return Progress::More,
        }
        match decode() {
            Ok(Body::AgentUpdate(body)) if body.turn == Some(self.turn) => {
                self.update(body.update.as_str(), out);
                Progress::More
            }
            Ok(Body::PermissionRequested(body)) if body.turn == Some(self.turn) => {
                self.permission(seq, body.tool_call.as_str(), &body.options, out);
                Progress::More
            }
            Ok(Body::TurnEnded(body)) if body.turn == self.turn => {
                self.end(&body, out);
                Progress::Ended
            }
            Ok(_) => Progress::More,
            Err(error) => Progress::Unreadable(error),
        }
    }

    /// Ends the stream before the turn's end.
    pub(crate) fn break_off(&mut self, error: &ErrorBody, out: &mut String) {
        self.close_run(out);
        frame::push(out, "error", error);
        self.done(out);
    }

    fn update(&mut self, text: &str, out: &mut String) {
        // What is not an ACP update in its known shape is in the session's events as it came, and not here.
        let Ok(update) = serde_json::from_str::<Update<'_>>(text) else { return };
        match &*update.session_update {
            "agent_message_chunk" => self.chunk(Voice::Speech, &update, out),
            "agent_thought_chunk" => self.chunk(Voice::Thought, &update, out),
            "tool_call" => self.tool_call(&update, out),
            "tool_call_update" => self.tool_update(&update, out),
            "plan" => {
                self.close_run(out);
                frame::push(out, "plan", &json!({ "entries": update.entries }));
            }
            _ => {}
        }
    }

    fn chunk(&mut self, voice: Voice, update: &Update<'_>, out: &mut String) {
        let Some(content) = update.content else { return };
        let Ok(block) = serde_json::from_str::<Chunk<'_>>(content.get()) else { return };
        let Some(text) = block.text.filter(|_| block.kind == "text") else {
            self.close_run(out);
            message(out, "assistant", &[claude_block(content)]);
            return;
        };
        if text.is_empty() {
            return;
        }
        let message = update.message_id.as_deref();
        if self.run.as_ref().is_some_and(|run| !run.goes_on(voice, message)) {
            self.close_run(out);
        }
        if self.detail == Detail::Deltas {
            frame::push(out, voice.delta(), &Delta { delta: &text });
        }
        let run = self.run.get_or_insert_with(|| Run {
            voice,
            message: message.map(str::to_owned),
            text: String::new(),
        });
        run.text.push_str(&text);
        if run.text.len() >= MESSAGE_BYTES {
            self.close_run(out);
        }
    }

    /// What was said since the last message becomes one.
    fn close_run(&mut self, out: &mut String) {
        let Some(run) = self.run.take() else { return };
        if self.detail == Detail::Messages {
            frame::push(out, run.voice.delta(), &Delta { delta: &run.text });
        }
        let block = match run.voice {
            Voice::Speech => json!({ "type": "text", "text": run.text }),
            Voice::Thought => json!({ "type": "thinking", "thinking": run.text }),
        };
        message(out, "assistant", &[block]);
        if run.voice == Voice::Speech {
            self.keep(&run.text);
        }
    }

    fn keep(&mut self, text: &str) {
        let room = RESULT_BYTES.saturating_sub(self.result.len());
        let end = text.floor_char_boundary(room);
        self.result.push_str(&text[..end]);
        self.result_cut |= end < text.len();
    }

    fn tool_call(&mut self, update: &Update<'_>, out: &mut String) {
        self.close_run(out);
        let Some(id) = update.tool_call_id.as_deref() else { return };
        let name = update.title.as_deref().or(update.kind.as_deref()).unwrap_or("tool");
        let input = update.raw_input.map_or_else(|| json!({}), value);
        let call = json!({ "id": id, "name": name, "input": input });
        frame::push(out, "tool_use", &call);
        message(out, "assistant", &[json!({ "type": "tool_use", "id": id, "name": name, "input": input })]);
        self.tools.begin(id);
        self.tool_progress(id, update, out);
    }

    fn tool_update(&mut self, update: &Update<'_>, out: &mut String) {
        let Some(id) = update.tool_call_id.as_deref() else { return };
        if update.title.is_some() || update.raw_input.is_some() {
            self.close_run(out);
            let (name, input) = (&update.title, update.raw_input);
            frame::push(out, "tool_update", &json!({ "id": id, "name": name, "input": input }));
        }
        self.tool_progress(id, update, out);
    }

    fn tool_progress(&mut self, id: &str, update: &Update<'_>, out: &mut String) {
        self.tools.keep(id, update);
        let is_error = match update.status.as_deref() {
            Some("completed") => false,
            Some("failed") => true,
            _ => return,
        };
        let Some(content) = self.tools.finish(id) else { return };
        self.close_run(out);
        let result = json!({ "tool_use_id": id, "content": content, "is_error": is_error });
        frame::push(out, "tool_result", &result);
        let block =
            json!({ "type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error });
        message(out, "user", &[block]);
    }

    fn permission(&mut self, seq: Seq, tool_call: &str, options: &[PermissionOption], out: &mut String) {
        self.close_run(out);
        let tool_call: Value = serde_json::from_str(tool_call).unwrap_or_default();
        frame::push(
            out,
            "permission_request",
            &json!({ "id": seq, "toolCall": tool_call, "options": options }),
        );
    }

    fn end(&mut self, ended: &TurnEnded, out: &mut String) {
        self.close_run(out);
        if ended.outcome == Outcome::Done {
            let complete = TurnComplete {
                turn: self.turn,
                result: &self.result,
                truncated: self.result_cut,
                reason: ended.reason,
                usage: ended.usage,
            };
            frame::push(out, "turn_complete", &complete);
        } else {
            let failure = TurnFailure {
                error: ended.message.as_deref().unwrap_or(sentence(ended.reason)),
                code: ended.reason,
                outcome: ended.outcome,
                turn: self.turn,
            };
            frame::push(out, "error", &failure);
        }
        self.done(out);
    }

    fn done(&self, out: &mut String) {
        frame::push(out, "done", &json!({ "sessionId": self.session }));
    }
}

impl Run {
    /// Both unnamed, or of one name: agents that name no messages have one message until something else comes.
    fn goes_on(&self, voice: Voice, message: Option<&str>) -> bool {
        self.voice == voice && self.message.as_deref() == message
    }
}

impl Voice {
    const fn delta(self) -> &'static str {
        match self {
            Self::Speech => "text_delta",
            Self::Thought => "thinking_delta",
        }
    }
}

/// What a turn's end says when nobody wrote a sentence for it.
const fn sentence(reason: Reason) -> &'static str {
    match reason {
        Reason::EndTurn => "the turn ended",
        Reason::MaxTokens => "the model's token limit was reached",
        Reason::MaxTurnRequests => "the agent's limit of requests in one turn was reached",
        Reason::Budget => "a budget was used up",
        Reason::StepLimit => "the limit of steps in one turn was reached",
        Reason::Refusal => "the agent refused to go on",
        Reason::Cancelled => "the turn was cancelled",
        Reason::Superseded => "a later prompt interrupted the turn",
        Reason::AgentError => "the agent answered with an error",
        Reason::AgentDied => "the agent's process ended",
        Reason::AgentUnresponsive => "the agent did not stop when it was cancelled, and was stopped",
        Reason::AgentProtocol => "the agent broke the protocol",
        Reason::AgentNotStarted => "the agent could not be started",
        Reason::LimitExceeded => "the sandbox took more than its limits allow",
        Reason::SessionPaused => "the session was paused",
        Reason::SessionEnded => "the session was ended",
        Reason::ServerStopped => "the server stopped",
    }
}

/// Tool calls that are under way, with what they have shown so far; updates replace, as ACP has it.
#[derive(Default)]
struct Tools {
    calls: HashMap<String, Tool>,
    bytes: usize,
}

enum Tool {
    Running { content: Option<Box<RawValue>>, output: Option<Box<RawValue>> },
    Finished,
}

impl Tools {
    fn begin(&mut self, id: &str) {
        if self.calls.len() < TOOL_CALLS {
            self.calls.entry(id.to_owned()).or_insert(Tool::Running { content: None, output: None });
        }
    }

    fn keep(&mut self, id: &str, update: &Update<'_>) {
        let Some(Tool::Running { content, output }) = self.calls.get_mut(id) else { return };
        for (kept, new) in [(content, update.content), (output, update.raw_output)] {
            let Some(new) = new else { continue };
            self.bytes -= kept.take().map_or(0, |old| old.get().len());
            if self.bytes + new.get().len() <= TOOL_BYTES {
                self.bytes += new.get().len();
                *kept = Some(new.to_owned());
            } else {
                *kept = RawValue::from_string(OVER_LIMIT.to_owned()).ok();
                self.bytes += OVER_LIMIT.len();
            }
        }
    }

    /// The result of a call, the first time it ends. One that was never announced, or came after
    /// [`TOOL_CALLS`] others, has none here.
    fn finish(&mut self, id: &str) -> Option<Value> {
        let tool = self.calls.get_mut(id)?;
        let Tool::Running { content, output } = std::mem::replace(tool, Tool::Finished) else { return None };
        self.bytes -= content.as_ref().map_or(0, |raw| raw.get().len());
        self.bytes -= output.as_ref().map_or(0, |raw| raw.get().len());
        let blocks = content.map(|raw| value(&raw)).and_then(|shown| match shown {
            Value::Array(items) if !items.is_empty() => Some(items.into_iter().map(unwrapped).collect()),
            _ => None,
        });
        Some(blocks.unwrap_or_else(|| output.map_or(Value::Null, |raw| value(&raw))))
    }
}

/// Stands for a tool's result that is too large to wait here; the session's events have it.
const OVER_LIMIT: &str =
    r#"[{"type":"text","text":"[the result is too large for this stream; see the session's events]"}]"#;

/// ACP wraps a tool's content blocks once more; diffs and terminals stay as they are.
fn unwrapped(item: Value) -> Value {
    match item {
        Value::Object(mut fields) if fields.get("type").is_some_and(|kind| kind == "content") => {
            fields.remove("content").unwrap_or_default()
        }
        other => other,
    }
}

/// A block that is not text, in the shape of the Claude SDK where that has one.
fn claude_block(raw: &RawValue) -> Value {
    let block = value(raw);
    if block["type"] != "image" {
        return block;
    }
    json!({
        "type": "image",
        "source": { "type": "base64", "media_type": block["mimeType"], "data": block["data"] },
    })
}

fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

fn message(out: &mut String, role: &'static str, content: &[Value]) {
    frame::push(out, "message", &json!({ "type": role, "message": { "role": role, "content": content } }));
}

/// The parts of ACP's `session/update` that this stream shows.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(default)]
    message_id: Option<String>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(borrow, default)]
    raw_input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    raw_output: Option<&'a RawValue>,
    #[serde(borrow, default)]
    entries: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct Delta<'a> {
    delta: &'a str,
}

#[derive(Serialize)]
struct TurnComplete<'a> {
    turn: TurnId,
    result: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    reason: Reason,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct TurnFailure<'a> {
    error: &'a str,
    code: Reason,
    outcome: Outcome,
    turn: TurnId,
}

#[cfg(test)]
#[path = "translator_tests.rs"]
mod tests;
