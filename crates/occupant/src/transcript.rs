//! A conversation as people and agents read it: Markdown made from a session's events.
//!
//! Pure: the session room feeds it the journal, oldest first, and writes what comes of it where the agent can
//! read it. It is bounded in memory and in length: whole turns are left out from the front, the newest one is
//! kept whole as far as the bound allows, and what is left out is said.

use protocol::{Body, ContentBlock, Event, Outcome, SessionId, Timestamp, TurnId};
use serde_json::Value;
use std::{
    collections::{HashMap, VecDeque},
    fmt::Write as _,
};

/// A whole transcript.
pub const TRANSCRIPT_BYTES: usize = 512 * 1024;
/// Kept of what one tool gave back, its end.
const TOOL_BYTES: usize = 4 * 1024;
/// Prompts that wait for their turn; a session queues fewer.
const WAITING_PROMPTS: usize = 64;

/// A transcript in the making.
#[derive(Debug)]
pub struct Transcript {
    session: SessionId,
    limit: usize,
    /// Accepted, and not begun yet.
    waiting: HashMap<TurnId, String>,
    turns: VecDeque<Told>,
    /// Bytes in `turns`.
    bytes: usize,
    left_out: u64,
    last_prompt: Option<String>,
}

/// One turn.
#[derive(Debug)]
struct Told {
    number: u64,
    at: Timestamp,
    prompt: String,
    parts: Vec<Part>,
    bytes: usize,
    cut: bool,
    end: Option<String>,
}

#[derive(Debug)]
enum Part {
    Said(String),
    Tool { id: String, title: String, status: String, output: String },
}

impl Transcript {
    pub fn new(session: SessionId) -> Self {
        Self::within(session, TRANSCRIPT_BYTES)
    }

    fn within(session: SessionId, limit: usize) -> Self {
        Self {
            session,
            limit,
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            bytes: 0,
            left_out: 0,
            last_prompt: None,
        }
    }

    /// Takes the session's next event.
    pub fn hear(&mut self, event: &Event) {
        match &event.body {
            Body::PromptAccepted(prompt) if self.waiting.len() < WAITING_PROMPTS => {
                self.waiting.insert(prompt.turn, plain(&prompt.content));
            }
            Body::TurnStarted(started) => self.start(started.turn, event.at),
            Body::AgentUpdate(update) => self.update(update.update.as_str()),
            Body::TurnEnded(ended) => {
                let end = (ended.outcome != Outcome::Done).then(|| {
                    let why = ended.message.as_deref().unwrap_or("no more is known");
                    format!("This turn did not finish ({:?}): {why}", ended.outcome)
                });
                match (self.waiting.remove(&ended.turn), self.turns.back_mut()) {
                    // It never began: nobody but the person knows of it.
                    (Some(_), _) | (None, None) => {}
                    (None, Some(turn)) => turn.end = end,
                }
            }
            _ => {}
        }
    }

    /// The text of the last prompt that reached the agent.
    pub fn last_prompt(&self) -> Option<&str> {
        self.last_prompt.as_deref()
    }

    fn start(&mut self, turn: TurnId, at: Timestamp) {
        let prompt = self.waiting.remove(&turn).unwrap_or_default();
        self.last_prompt = Some(prompt.clone());
        let number = self.left_out + self.turns.len() as u64 + 1;
        self.bytes += prompt.len();
        let bytes = prompt.len();
        self.turns.push_back(Told { number, at, prompt, parts: Vec::new(), bytes, cut: false, end: None });
        self.trim();
    }

    fn update(&mut self, update: &str) {
        let Ok(value) = serde_json::from_str::<Value>(update) else { return };
        let Some(turn) = self.turns.back_mut() else { return };
        let before = turn.bytes;
        match value["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => turn.say(value["content"]["text"].as_str().unwrap_or_default()),
            Some("tool_call" | "tool_call_update") => turn.tool(&value),
            _ => {}
        }
        turn.trim(self.limit);
        self.bytes = self.bytes + turn.bytes - before;
        self.trim();
    }

    /// Leaves out the oldest turns until the rest fits, but never the newest.
    fn trim(&mut self) {
        while self.bytes > self.limit && self.turns.len() > 1 {
            if let Some(oldest) = self.turns.pop_front() {
                self.bytes -= oldest.bytes;
                self.left_out += 1;
            }
        }
    }

    /// Whether there is anything to tell.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub fn markdown(&self) -> String {
        let mut text = String::with_capacity(self.bytes + 1024);
        let session = self.session;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "# Conversation {session}\n\nWritten by Outlast from what it recorded; newest last."
        );
        if self.left_out > 0 {
            let _ = writeln!(text, "{} earlier turns are left out.", self.left_out);
        }
        for turn in &self.turns {
            turn.write(&mut text);
        }
        text
    }
}

impl Told {
    fn say(&mut self, words: &str) {
        self.bytes += words.len();
        match self.parts.last_mut() {
            Some(Part::Said(text)) => text.push_str(words),
            Some(Part::Tool { .. }) | None => self.parts.push(Part::Said(words.to_owned())),
        }
    }

    /// A call is told once, where it began, as it was last heard of.
    fn tool(&mut self, update: &Value) {
        let id = update["toolCallId"].as_str().unwrap_or_default();
        let known = self
            .parts
            .iter_mut()
            .rev()
            .find(|part| matches!(part, Part::Tool { id: known, .. } if known == id));
        let part = match known {
            Some(part) => part,
            None => {
                let part = Part::Tool {
                    id: id.to_owned(),
                    title: String::new(),
                    status: String::new(),
                    output: String::new(),
                };
                self.parts.push(part);
                let Some(part) = self.parts.last_mut() else { return };
                part
            }
        };
        let Part::Tool { title, status, output, .. } = part else { return };
        let before = title.len() + status.len() + output.len();
        if let Some(new) = update["title"].as_str() {
            *title = end(new, TOOL_BYTES).to_owned();
        }
        if let Some(new) = update["status"].as_str() {
            *status = end(new, TOOL_BYTES).to_owned();
        }
        let given = tool_output(update);
        if !given.is_empty() {
            *output = end(&given, TOOL_BYTES).to_owned();
        }
        self.bytes = self.bytes + title.len() + status.len() + output.len() - before;
    }

    /// A turn that is too long by itself loses the beginning of what the agent did, never the prompt.
    fn trim(&mut self, limit: usize) {
        while self.bytes > limit && !self.parts.is_empty() {
            self.cut = true;
            let over = self.bytes - limit;
            match &mut self.parts[0] {
                Part::Said(text) if text.len() > over => {
                    let kept = end(text, text.len() - over).to_owned();
                    self.bytes -= text.len() - kept.len();
                    *text = kept;
                }
                Part::Said(text) => {
                    self.bytes -= text.len();
                    self.parts.remove(0);
                }
                Part::Tool { title, status, output, .. } => {
                    self.bytes -= title.len() + status.len() + output.len();
                    self.parts.remove(0);
                }
            }
        }
    }

    fn write(&self, text: &mut String) {
        if !text.ends_with("\n\n") {
            text.push('\n');
        }
        let _ =
            writeln!(text, "## Turn {}, {}\n\n### User\n\n{}\n", self.number, self.at, self.prompt.trim());
        if self.parts.is_empty() && self.end.is_none() {
            return;
        }
        let _ = writeln!(text, "### Agent\n");
        if self.cut {
            let _ = writeln!(text, "(The beginning of this answer is left out.)\n");
        }
        for part in &self.parts {
            match part {
                Part::Said(said) => {
                    let _ = writeln!(text, "{}\n", said.trim());
                }
                Part::Tool { title, status, output, .. } => {
                    let title = title.lines().next().unwrap_or_default();
                    let _ = writeln!(text, "- Tool: {title} ({status})\n");
                    if !output.trim().is_empty() {
                        let fence = fence(output);
                        let _ = writeln!(text, "{fence}\n{}\n{fence}\n", output.trim_end());
                    }
                }
            }
        }
        if let Some(end) = &self.end {
            let _ = writeln!(text, "({end})\n");
        }
    }
}

fn plain(content: &[ContentBlock]) -> String {
    content.iter().map(ContentBlock::plain).collect::<Vec<_>>().join("\n")
}

/// What a tool gave back, as far as it is text.
fn tool_output(update: &Value) -> String {
    let blocks = update["content"].as_array().into_iter().flatten();
    let texts: Vec<&str> = blocks
        .filter_map(|block| block.pointer("/content/text").or_else(|| block.get("newText"))?.as_str())
        .collect();
    if !texts.is_empty() {
        return texts.join("\n");
    }
    match &update["rawOutput"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The last bytes of a text, whole signs.
fn end(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// Longer than any that the text holds.
fn fence(text: &str) -> String {
    let longest = text.split(|sign| sign != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests;
