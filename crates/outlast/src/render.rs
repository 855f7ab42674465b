//! Events as people read them: one line each for `logs`, a conversation for `run`. Pure.

use crate::{
    table::{cut, one_line},
    term::{Paint, clean},
    update::{Tool, Update},
};
use protocol::{
    Answer, Body, CommandEnded, CommandOutcome, Disposition, Event, How, Level, Outcome, PermissionRequested,
    PromptAccepted, Reason, SessionCreated, Status, TurnEnded, TurnId, Usage,
};
use std::collections::HashMap;

/// How much of a tool's output a conversation shows.
const OUTPUT_LINES: usize = 5;
/// Tool calls whose titles a conversation remembers; one that is forgotten is shown by its id.
const REMEMBERED_TOOLS: usize = 1_000;

/// The longest word for what happened, and what is left of the text on the narrowest terminal.
const WORD_WIDTH: usize = 8;
const LEAST_TEXT: usize = 8;

/// `seq  time  what happened`, cut to the width of a terminal.
pub(crate) fn line(paint: Paint, event: &Event, width: Option<usize>) -> String {
    let (what, text) = summary(&event.body);
    let at = event.at.to_string().replace('T', " ");
    let head = format!("{:>6}  {}  ", event.seq, at.trim_end_matches('Z'));
    let what = format!("{what:<WORD_WIDTH$}");
    let taken = head.chars().count() + what.chars().count() + 2;
    let text = cut(&one_line(&text), width.map(|width| width.saturating_sub(taken).max(LEAST_TEXT)));
    let line = format!("{}{}  {text}", paint.dim(&head), tint(paint, &event.body, &what));
    line.trim_end().to_owned()
}

fn tint(paint: Paint, body: &Body, what: &str) -> String {
    match body {
        Body::PromptAccepted(_) => paint.bold(what),
        Body::TurnEnded(ended) if ended.outcome == Outcome::Done => paint.green(what),
        Body::TurnEnded(_) | Body::ErrorRaised(_) => paint.red(what),
        Body::PermissionRequested(_) => paint.yellow(what),
        Body::OccupantExited(exited) if !exited.expected => paint.red(what),
        Body::CommandStarted(_) => paint.bold(what),
        Body::CommandEnded(ended) if ended.exit_code == Some(0) => paint.green(what),
        Body::CommandEnded(_) => paint.red(what),
        Body::AgentUpdate(_) => paint.cyan(what),
        Body::SessionCreated(_)
        | Body::SessionStatusChanged(_)
        | Body::SessionConfig(_)
        | Body::SessionRenamed(_)
        | Body::TurnStarted(_)
        | Body::PermissionAnswered(_)
        | Body::OccupantStarted(_)
        | Body::OccupantExited(_)
        | Body::OutputKept(_)
        | Body::SnapshotTaken(_)
        | Body::SnapshotRestored(_)
        | Body::Notice(_) => what.to_owned(),
    }
}

/// A word for what happened, and the rest.
pub(crate) fn summary(body: &Body) -> (&'static str, String) {
    match body {
        Body::SessionCreated(created) => ("created", of_created(created)),
        Body::SessionStatusChanged(change) => {
            ("status", format!("{} → {}{}", change.from, change.to, in_brackets(change.reason.as_deref())))
        }
        Body::SessionConfig(config) => {
            let settings =
                [("model", &config.model), ("mode", &config.mode), ("thought level", &config.thought_level)];
            let settings =
                settings.iter().filter_map(|(name, value)| Some(format!("{name} {}", value.as_ref()?)));
            ("settings", settings.collect::<Vec<_>>().join(", "))
        }
        Body::SessionRenamed(renamed) => ("renamed", renamed.name.clone()),
        Body::PromptAccepted(prompt) => ("prompt", of_prompt(prompt)),
        Body::TurnStarted(_) => ("turn", "started".to_owned()),
        Body::TurnEnded(ended) => ("turn", of_ended(ended)),
        Body::AgentUpdate(update) => of_update(&Update::read(&update.update)),
        Body::PermissionRequested(request) => ("asks", of_request(request)),
        Body::PermissionAnswered(answered) => {
            let answer = match &answered.answer {
                Answer::Selected { option_id } => option_id,
                Answer::Cancelled => "cancelled",
            };
            ("answer", format!("{answer} (to question {})", answered.permission))
        }
        Body::OccupantStarted(started) => ("agent", of_start(started.how).to_owned()),
        Body::OccupantExited(exited) => {
            let how = match (exited.code, exited.signal) {
                (Some(code), _) => format!("exited with code {code}"),
                (None, Some(signal)) => format!("was ended by signal {signal}"),
                (None, None) => "exited".to_owned(),
            };
            let asked = if exited.expected { "" } else { ", unasked" };
            let stderr =
                exited.stderr.as_deref().map(|text| format!(": {}", text.trim_end())).unwrap_or_default();
            ("agent", format!("{how}{asked}{stderr}"))
        }
        Body::CommandStarted(started) => ("command", format!("{}: {}", started.command, started.text)),
        Body::CommandEnded(ended) => ("command", of_command(ended)),
        Body::OutputKept(kept) => {
            let all = if kept.complete { "" } else { ", not all of it" };
            let stream = match kept.stream {
                protocol::OutputStream::Stdout => "stdout",
                protocol::OutputStream::Stderr => "stderr",
            };
            (
                "output",
                format!("the whole {stream} of command {} is kept: {} bytes{all}", kept.command, kept.bytes),
            )
        }
        Body::SnapshotTaken(taken) => {
            let parts = [(taken.left_out, "left out"), (taken.torn, "changed meanwhile")];
            let counted = parts.iter().filter(|(count, _)| *count > 0);
            let rest: String = counted.map(|(count, what)| format!(", {count} {what}")).collect();
            ("snapshot", format!("taken: {} files, {} bytes{rest}", taken.files, taken.bytes))
        }
        Body::SnapshotRestored(restored) => {
            ("snapshot", format!("restored: {} files, {} bytes", restored.files, restored.bytes))
        }
        Body::Notice(notice) => match notice.level {
            Level::Info => ("notice", notice.text.clone()),
            Level::Warning => ("warning", notice.text.clone()),
        },
        Body::ErrorRaised(error) => ("error", format!("{} ({})", error.message, error.code)),
    }
}

fn of_command(ended: &CommandEnded) -> String {
    let how = match (ended.outcome, ended.exit_code) {
        (CommandOutcome::Done, Some(code)) => format!("exited with code {code}"),
        (CommandOutcome::Done, None) => "ended".to_owned(),
        (CommandOutcome::TimedOut, _) => "ran out of time".to_owned(),
        (CommandOutcome::Cancelled, _) => "was cancelled".to_owned(),
        (CommandOutcome::Refused, _) => "was refused".to_owned(),
        (CommandOutcome::NotRun, _) => "was not run".to_owned(),
        (CommandOutcome::Interrupted, _) => "was lost with its shell".to_owned(),
    };
    let hint = ended.hint.as_deref().map(|hint| format!(": {hint}")).unwrap_or_default();
    let shown = [&ended.stdout, &ended.stderr].into_iter().filter(|stream| !stream.text.is_empty());
    let shown: String = shown.map(|stream| format!("\n{}", stream.text)).collect();
    format!("{}: {how} after {} ms{hint}{shown}", ended.command, ended.duration_ms)
}

fn of_created(created: &SessionCreated) -> String {
    let mut text = match (&created.agent, created.agent_version) {
        (Some(agent), Some(version)) => format!("agent {agent}, version {version}"),
        (Some(agent), None) => format!("agent {agent}"),
        (None, _) => created.kind.to_string(),
    };
    text.push_str(&format!(", on {}", created.place));
    if let Some(model) = &created.model {
        text.push_str(&format!(", model {model}"));
    }
    if let Some(fork) = &created.forked_from {
        text.push_str(&format!(", forked from {} at {}", fork.session, fork.seq));
    }
    text
}

fn of_prompt(prompt: &PromptAccepted) -> String {
    let text: Vec<_> = prompt.content.iter().map(|block| block.plain()).collect();
    let waits = if prompt.disposition == Disposition::Queued { " (queued)" } else { "" };
    format!("{}{waits}", text.join(" "))
}

fn of_ended(ended: &TurnEnded) -> String {
    let message = ended.message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    let usage = ended.usage.map(|usage| format!(", {}", of_usage(&usage))).unwrap_or_default();
    match ended.outcome {
        Outcome::Done => format!("done{usage}"),
        outcome => format!("{} ({}){message}{usage}", outcome_word(outcome), reason_words(ended.reason)),
    }
}

fn of_usage(usage: &Usage) -> String {
    let cost = usage.cost_usd.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
    format!("{} tokens in, {} out{cost}", usage.input_tokens, usage.output_tokens)
}

fn of_update(update: &Update) -> (&'static str, String) {
    match update {
        Update::Says(text) => ("says", text.clone()),
        Update::Thinks(text) => ("thinks", text.clone()),
        Update::User(text) => ("user", text.clone()),
        Update::Tool(tool) => {
            let output = tool.output.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
            ("tool", format!("{}{}{output}", tool.name(), in_brackets(tool.status.as_deref())))
        }
        Update::Plan { done, entries } => {
            ("plan", format!("{done} of {} done: {}", entries.len(), entries.join("; ")))
        }
        Update::Mode(mode) => ("mode", mode.clone()),
        Update::Other(name) => ("update", name.clone()),
    }
}

fn of_request(request: &PermissionRequested) -> String {
    let options: Vec<_> =
        request.options.iter().map(|option| format!("{} ({})", option.option_id, option.name)).collect();
    format!("{}; options: {}", Tool::of_permission(&request.tool_call).name(), options.join(", "))
}

const fn of_start(how: How) -> &'static str {
    match how {
        How::New => "started",
        How::Resumed => "is back, with its conversation",
        How::Forked => "has the conversation of its parent",
        How::Loaded => "is back, its conversation loaded",
        How::Transcript => "started anew, with a transcript of the conversation",
        How::Fresh => "started anew; it does not remember the conversation",
    }
}

fn in_brackets(text: Option<&str>) -> String {
    text.map(|text| format!(" ({text})")).unwrap_or_default()
}

pub(crate) const fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Failed => "failed",
        Outcome::Cancelled => "cancelled",
        Outcome::TimedOut => "timed out",
        Outcome::Interrupted => "interrupted",
    }
}

const fn reason_words(reason: Reason) -> &'static str {
    match reason {
        Reason::EndTurn => "the agent finished",
        Reason::MaxTokens => "the model's token limit",
        Reason::MaxTurnRequests => "the limit of requests in one turn",
        Reason::Budget => "a budget was used up",
        Reason::StepLimit => "the limit of steps in one turn",
        Reason::Refusal => "the agent refused",
        Reason::Cancelled => "cancelled by a caller",
        Reason::Superseded => "a later prompt took its place",
        Reason::AgentError => "the agent answered with an error",
        Reason::AgentDied => "the agent's process ended",
        Reason::AgentUnresponsive => "the agent did not stop and was killed",
        Reason::AgentProtocol => "the agent broke the protocol",
        Reason::AgentNotStarted => "the agent could not be started",
        Reason::LimitExceeded => "the sandbox took more than its limits allow",
        Reason::SessionPaused => "the session was paused",
        Reason::SessionEnded => "the session was ended",
        Reason::ServerStopped => "the server stopped",
    }
}

/// A part of a conversation on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The agent's words, as they come.
    Words(String),
    /// A line beside them.
    Line(String),
}

/// One turn as a conversation shows it. Remembers what later events refer to.
#[derive(Debug)]
pub(crate) struct Conversation {
    paint: Paint,
    tools: HashMap<String, String>,
    /// The thoughts so far, shown when they end: they come in pieces and may be many lines.
    thought: String,
}

impl Conversation {
    pub(crate) fn new(paint: Paint) -> Self {
        Self { paint, tools: HashMap::new(), thought: String::new() }
    }

    /// What an event of `turn` looks like. Events of other turns, and the prompt itself, show nothing.
    pub(crate) fn show(&mut self, event: &Event, turn: TurnId) -> Vec<Piece> {
        let ours = |other: Option<TurnId>| other.is_none_or(|other| other == turn);
        match &event.body {
            Body::AgentUpdate(update) if ours(update.turn) => self.update(Update::read(&update.update)),
            Body::PermissionRequested(request) if ours(request.turn) => self.question(event.seq, request),
            Body::TurnEnded(ended) if ended.turn == turn => self.end(ended),
            Body::OccupantStarted(started) if started.how != How::New => {
                vec![Piece::Line(self.paint.dim(&format!("the agent {}", of_start(started.how))))]
            }
            Body::Notice(notice) if notice.level == Level::Warning => {
                vec![Piece::Line(self.paint.yellow(&format!("! {}", one_line(&notice.text))))]
            }
            Body::ErrorRaised(error) => {
                vec![Piece::Line(self.paint.red(&format!("! {}", one_line(&error.message))))]
            }
            Body::SessionStatusChanged(change) if change.to == Status::Error => {
                let reason = in_brackets(change.reason.as_deref());
                vec![Piece::Line(self.paint.red(&format!("! the session is in error{}", one_line(&reason))))]
            }
            Body::SessionCreated(_)
            | Body::SessionStatusChanged(_)
            | Body::SessionConfig(_)
            | Body::SessionRenamed(_)
            | Body::PromptAccepted(_)
            | Body::TurnStarted(_)
            | Body::TurnEnded(_)
            | Body::AgentUpdate(_)
            | Body::PermissionRequested(_)
            | Body::PermissionAnswered(_)
            | Body::OccupantStarted(_)
            | Body::OccupantExited(_)
            | Body::CommandStarted(_)
            | Body::CommandEnded(_)
            | Body::OutputKept(_)
            | Body::SnapshotTaken(_)
            | Body::SnapshotRestored(_)
            | Body::Notice(_) => vec![],
        }
    }

    fn update(&mut self, update: Update) -> Vec<Piece> {
        if let Update::Thinks(text) = update {
            self.thought.push_str(&text);
            return vec![];
        }
        let mut pieces = self.finish_thought();
        match update {
            Update::Says(text) => pieces.push(Piece::Words(text)),
            Update::Tool(tool) => pieces.extend(self.tool(&tool)),
            Update::Plan { done, entries } => {
                let plan = format!("plan: {done} of {} done", entries.len());
                pieces.push(Piece::Line(self.paint.dim(&plan)));
            }
            Update::Mode(mode) => {
                pieces.push(Piece::Line(self.paint.dim(&format!("mode: {}", one_line(&mode)))));
            }
            Update::Thinks(_) | Update::User(_) | Update::Other(_) => {}
        }
        pieces
    }

    fn finish_thought(&mut self) -> Vec<Piece> {
        let thought = clean(std::mem::take(&mut self.thought).trim());
        thought.lines().map(|line| Piece::Line(self.paint.dim(&format!("· {line}")))).collect()
    }

    fn tool(&mut self, tool: &Tool) -> Vec<Piece> {
        let known = self.tools.get(&tool.id).cloned();
        let name = one_line(tool.title.as_deref().or(known.as_deref()).unwrap_or(tool.name()));
        if known.is_none() && self.tools.len() < REMEMBERED_TOOLS {
            self.tools.insert(tool.id.clone(), name.clone());
        }
        let mut lines = match tool.status.as_deref() {
            Some("completed") => vec![self.paint.green(&format!("✓ {name}"))],
            Some("failed") => vec![self.paint.red(&format!("✗ {name}"))],
            _ if known.is_none() => vec![self.paint.cyan(&format!("→ {name}"))],
            _ => vec![],
        };
        if matches!(tool.status.as_deref(), Some("completed" | "failed"))
            && let Some(output) = &tool.output
        {
            let output = clean(output.trim_end());
            let all = output.lines().count();
            lines.extend(output.lines().take(OUTPUT_LINES).map(|line| self.paint.dim(&format!("  {line}"))));
            if all > OUTPUT_LINES {
                lines.push(self.paint.dim(&format!("  … {} more lines", all - OUTPUT_LINES)));
            }
        }
        lines.into_iter().map(Piece::Line).collect()
    }

    fn question(&mut self, seq: u64, request: &PermissionRequested) -> Vec<Piece> {
        let tool = Tool::of_permission(&request.tool_call);
        let known = self.tools.get(&tool.id).cloned();
        let name = one_line(tool.title.as_deref().or(known.as_deref()).unwrap_or(tool.name()));
        let mut pieces = self.finish_thought();
        pieces.push(Piece::Line(
            self.paint.yellow(&format!("? the agent asks to run: {name} (question {seq})")),
        ));
        for (number, option) in request.options.iter().enumerate() {
            pieces.push(Piece::Line(format!("  {}  {}", number + 1, one_line(&option.name))));
        }
        pieces
    }

    fn end(&mut self, ended: &TurnEnded) -> Vec<Piece> {
        let mut pieces = self.finish_thought();
        if ended.outcome != Outcome::Done {
            let text = format!("! the turn ended: {}", one_line(&of_ended(ended)));
            pieces.push(Piece::Line(self.paint.red(&text)));
        }
        pieces
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
