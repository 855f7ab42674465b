//! A window on a session's events, as entries that people read: prompts, words, tool calls, commands with their output.
//!
//! Pure. It holds a bounded stretch of the history: what falls out at one end can be asked for again, so that a session
//! with a million events costs no more than one with a thousand. The caller says which end gives way.

use crate::{
    render::summary,
    term::clean,
    update::{Tool, Update},
};
use protocol::{Body, CommandEnded, CommandOutcome, Event, Level, Outcome, Seq};
use std::collections::VecDeque;

/// What a window holds at most.
pub(super) const MOST_ENTRIES: usize = 2_000;
pub(super) const MOST_BYTES: usize = 4 * 1024 * 1024;
/// What one entry holds at most; the record has the rest.
const ENTRY_BYTES: usize = 64 * 1024;
/// How far back a command or a tool call is looked for when news of it come.
const LOOK_BACK: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Prompt,
    Words,
    Thought,
    Tool { id: String, state: State },
    Command { number: u64, state: State },
    Ask,
    Note,
    Warning,
    Failure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The event that began it.
    pub(super) seq: Seq,
    pub(super) kind: Kind,
    /// What was said or asked for.
    pub(super) head: String,
    /// What came of it.
    pub(super) output: String,
    /// How it ended, in a few words.
    pub(super) foot: String,
}

impl Entry {
    fn new(seq: Seq, kind: Kind, head: &str) -> Self {
        Self { seq, kind, head: fit(head), output: String::new(), foot: String::new() }
    }

    fn bytes(&self) -> usize {
        self.head.len() + self.output.len() + self.foot.len()
    }

    /// News of the same command or tool call.
    fn is_about(&self, kind: &Kind) -> bool {
        match (&self.kind, kind) {
            (Kind::Tool { id: mine, .. }, Kind::Tool { id, .. }) => mine == id,
            (Kind::Command { number: mine, .. }, Kind::Command { number, .. }) => mine == number,
            _ => false,
        }
    }

    fn take_news(&mut self, news: Self) {
        if !news.head.is_empty() {
            self.head = news.head;
        }
        if !news.output.is_empty() {
            self.output = news.output;
        }
        if !news.foot.is_empty() {
            self.foot = news.foot;
        }
        self.kind = news.kind;
    }
}

/// Fit for a terminal, and not longer than an entry may be.
fn fit(text: &str) -> String {
    let mut text = clean(text).replace('\t', "    ");
    if text.len() > ENTRY_BYTES {
        text.truncate(text.floor_char_boundary(ENTRY_BYTES));
        text.push_str("\n… the rest is in `outlast logs`");
    }
    text
}

#[derive(Debug, Default)]
pub(super) struct Transcript {
    entries: VecDeque<Entry>,
    /// The first and the last event that are in it; `last` is before `first` when nothing is.
    first: Seq,
    last: Seq,
    bytes: usize,
}

impl Transcript {
    /// An empty window right after an event.
    pub(super) fn after(seq: Seq) -> Self {
        Self { first: seq + 1, last: seq, ..Self::default() }
    }

    pub(super) fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
    }

    pub(super) const fn first(&self) -> Seq {
        self.first
    }

    pub(super) const fn last(&self) -> Seq {
        self.last
    }

    /// The entry that an event began or stands in.
    pub(super) fn index_of(&self, seq: Seq) -> usize {
        let after = self.entries.partition_point(|entry| entry.seq <= seq);
        after.saturating_sub(1)
    }

    /// Takes the next event; one that is not the next is left out.
    pub(super) fn append(&mut self, event: &Event) {
        if event.seq != self.last + 1 {
            return;
        }
        self.last = event.seq;
        if let Some(entry) = entry_of(event) {
            self.push(entry);
        }
    }

    fn push(&mut self, entry: Entry) {
        let joins = matches!(entry.kind, Kind::Words | Kind::Thought);
        if joins
            && let Some(last) = self.entries.back_mut()
            && last.kind == entry.kind
        {
            if last.head.len() < ENTRY_BYTES {
                self.bytes += entry.head.len();
                last.head.push_str(&entry.head);
            }
            return;
        }
        let known = self.entries.iter_mut().rev().take(LOOK_BACK).find(|known| known.is_about(&entry.kind));
        if let Some(known) = known {
            let before = known.bytes();
            known.take_news(entry);
            self.bytes = (self.bytes + known.bytes()).saturating_sub(before);
            return;
        }
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    /// Puts older events before what is there. They end where it begins.
    pub(super) fn prepend(&mut self, events: &[Event]) {
        let Some(first) = events.first() else { return };
        let mut older = Self::after(first.seq.saturating_sub(1));
        events.iter().for_each(|event| older.append(event));
        if older.last + 1 != self.first {
            return;
        }
        let newer = std::mem::take(&mut self.entries);
        *self = Self { last: self.last, ..older };
        newer.into_iter().for_each(|entry| self.push(entry));
    }

    fn is_full(&self) -> bool {
        self.entries.len() > MOST_ENTRIES || (self.bytes > MOST_BYTES && self.entries.len() > 1)
    }

    /// Lets the oldest go.
    pub(super) fn trim_front(&mut self) {
        while self.is_full() {
            self.bytes -= self.entries.pop_front().map_or(0, |entry| entry.bytes());
            self.first = self.entries.front().map_or(self.last + 1, |entry| entry.seq);
        }
    }

    /// Lets the newest go.
    pub(super) fn trim_back(&mut self) {
        while self.is_full() {
            let Some(gone) = self.entries.pop_back() else { return };
            self.bytes -= gone.bytes();
            self.last = gone.seq - 1;
        }
    }
}

fn entry_of(event: &Event) -> Option<Entry> {
    let seq = event.seq;
    let entry = |kind, head: &str| Some(Entry::new(seq, kind, head));
    let note = |kind| {
        let (what, text) = summary(&event.body);
        Some(Entry::new(seq, kind, &format!("{what}: {text}")))
    };
    match &event.body {
        Body::PromptAccepted(prompt) => {
            let text: Vec<_> = prompt.content.iter().map(|block| block.plain()).collect();
            entry(Kind::Prompt, &text.join("\n"))
        }
        Body::AgentUpdate(update) => match Update::read(&update.update) {
            Update::Says(text) => entry(Kind::Words, &text),
            Update::Thinks(text) => entry(Kind::Thought, &text),
            Update::Tool(tool) => Some(of_tool(seq, &tool)),
            Update::Plan { .. } | Update::Mode(_) => note(Kind::Note),
            Update::User(_) | Update::Other(_) => None,
        },
        Body::CommandStarted(started) => {
            entry(Kind::Command { number: started.command, state: State::Running }, &started.text)
        }
        Body::CommandEnded(ended) => Some(of_command(seq, ended)),
        Body::PermissionRequested(_) => note(Kind::Ask),
        Body::TurnEnded(ended) if ended.outcome != Outcome::Done => note(Kind::Failure),
        Body::TurnStarted(_) | Body::TurnEnded(_) => None,
        Body::OccupantExited(exited) if !exited.expected => note(Kind::Failure),
        Body::ErrorRaised(_) => note(Kind::Failure),
        Body::Notice(notice) if notice.level == Level::Warning => entry(Kind::Warning, &notice.text),
        Body::SessionCreated(_)
        | Body::SessionStatusChanged(_)
        | Body::SessionConfig(_)
        | Body::SessionRenamed(_)
        | Body::PermissionAnswered(_)
        | Body::OccupantStarted(_)
        | Body::OccupantExited(_)
        | Body::OutputKept(_)
        | Body::SnapshotTaken(_)
        | Body::SnapshotRestored(_)
        | Body::Notice(_) => note(Kind::Note),
    }
}

fn of_tool(seq: Seq, tool: &Tool) -> Entry {
    let state = match tool.status.as_deref() {
        Some("completed") => State::Done,
        Some("failed") => State::Failed,
        _ => State::Running,
    };
    let kind = Kind::Tool { id: tool.id.clone(), state };
    let mut entry = Entry::new(seq, kind, tool.title.as_deref().unwrap_or_default());
    entry.output = tool.output.as_deref().map(|text| fit(text.trim_end())).unwrap_or_default();
    entry
}

fn of_command(seq: Seq, ended: &CommandEnded) -> Entry {
    let good = ended.outcome == CommandOutcome::Done && ended.exit_code == Some(0);
    let state = if good { State::Done } else { State::Failed };
    let mut entry = Entry::new(seq, Kind::Command { number: ended.command, state }, "");
    let streams = [&ended.stdout, &ended.stderr].into_iter().filter(|stream| !stream.text.is_empty());
    let texts: Vec<&str> = streams.map(|stream| stream.text.trim_end_matches('\n')).collect();
    entry.output = fit(&texts.join("\n"));
    let outcome = match ended.outcome {
        CommandOutcome::Done => String::new(),
        CommandOutcome::TimedOut => "timed out, ".to_owned(),
        CommandOutcome::Cancelled => "cancelled, ".to_owned(),
        CommandOutcome::Refused => "refused by a policy, ".to_owned(),
        CommandOutcome::NotRun => "not run, ".to_owned(),
        CommandOutcome::Interrupted => "interrupted, ".to_owned(),
    };
    let code = match ended.exit_code {
        Some(0) | None => String::new(),
        Some(code) => format!("exit code {code}, "),
    };
    let truncated = if ended.stdout.truncated || ended.stderr.truncated { ", truncated" } else { "" };
    entry.foot = format!("{outcome}{code}{}{truncated}", duration(ended.duration_ms));
    entry
}

pub(super) fn duration(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        _ => format!("{} min {} s", millis / 60_000, millis / 1_000 % 60),
    }
}
