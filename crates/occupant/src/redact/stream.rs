//! Secrets across consecutive text deltas of one kind.
//!
//! The deltas that are held back form one text, the window, which begins at the first place that is not yet
//! decided. Each new delta extends it; what is decided is released, and rewritten only where a secret was.

use super::{Follows, Secrets, json};
use protocol::Raw;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::VecDeque, ops::Range, sync::Arc};

/// Deltas held beyond one for each byte of the longest secret (only empty ones can be) are made one.
const HELD_SLACK: usize = 64;

#[derive(Default)]
pub(super) struct Stream {
    kind: Option<Kind>,
    pub(super) held: VecDeque<Held>,
    /// The text of the held deltas from the first undecided place on.
    window: String,
    /// Where the window begins in the first held delta's text.
    base: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Thought,
    User,
}

pub(super) struct Held {
    update: Raw,
    at: u64,
    text: String,
    /// What to take out of the text, in order, and what to put in its place.
    edits: Vec<(Range<usize>, Option<Arc<str>>)>,
    /// The text is no longer the update's own.
    joined: bool,
}

impl Stream {
    pub(super) fn update(&mut self, secrets: &Secrets, update: Raw, at: u64, release: &mut impl FnMut(Raw)) {
        let Some((kind, text)) = delta(&update).map(|(kind, text)| (kind, text.into_owned())) else {
            self.flush(secrets, release);
            release(clean(secrets, update));
            return;
        };
        if self.kind != Some(kind) {
            self.flush(secrets, release);
            self.kind = Some(kind);
        }
        self.window.push_str(&text);
        self.held.push_back(Held { update, at, text, edits: Vec::new(), joined: false });
        self.decide(secrets, Follows::Perhaps, release);
        if self.held.len() > secrets.longest + HELD_SLACK {
            self.join();
        }
    }

    pub(super) fn flush(&mut self, secrets: &Secrets, release: &mut impl FnMut(Raw)) {
        self.decide(secrets, Follows::Nothing, release);
        self.kind = None;
    }

    pub(super) fn held_from(&self) -> Option<u64> {
        self.held.front().map(|held| held.at)
    }

    fn decide(&mut self, secrets: &Secrets, follows: Follows, release: &mut impl FnMut(Raw)) {
        let (hits, decided) = secrets.scan(&self.window, follows);
        // Hits and deltas both go from left to right.
        let mut hits = hits.into_iter().peekable();
        let (mut begin, mut base) = (0, self.base);
        for held in &mut self.held {
            let end = begin + held.text.len() - base;
            while let Some(hit) = hits.peek() {
                let (from, to) = (hit.range.start.max(begin), hit.range.end.min(end));
                if from < to {
                    let label = (hit.range.start >= begin).then(|| Arc::clone(&hit.label));
                    held.edits.push((from - begin + base..to - begin + base, label));
                }
                if hit.range.end > end {
                    break;
                }
                hits.next();
            }
            (begin, base) = (end, 0);
        }
        self.release_until(decided, secrets, release);
    }

    /// Releases the deltas that end at or before `decided`, a place in the window.
    fn release_until(&mut self, decided: usize, secrets: &Secrets, release: &mut impl FnMut(Raw)) {
        let mut begin = 0;
        while let Some(held) = self.held.front() {
            let end = begin + held.text.len() - self.base;
            if end > decided {
                break;
            }
            if let Some(held) = self.held.pop_front() {
                release(held.write(secrets));
            }
            (begin, self.base) = (end, 0);
        }
        self.base = if self.held.is_empty() { 0 } else { self.base + decided - begin };
        self.window.drain(..decided);
    }

    /// Makes one delta of all that are held.
    fn join(&mut self) {
        let rest: Vec<Held> = self.held.drain(1..).collect();
        if let Some(first) = self.held.front_mut() {
            first.joined = true;
            first.text.extend(rest.iter().map(|held| held.text.as_str()));
        }
    }
}

impl Held {
    fn write(self, secrets: &Secrets) -> Raw {
        if self.edits.is_empty() && !self.joined {
            return clean(secrets, self.update);
        }
        let mut text = String::with_capacity(self.text.len());
        let mut copied = 0;
        for (range, label) in self.edits {
            text.push_str(&self.text[copied..range.start]);
            text.push_str(label.as_deref().unwrap_or(""));
            copied = range.end;
        }
        text.push_str(&self.text[copied..]);
        let whole = self.update.as_str();
        let Some(place) = text_place(whole) else { return unreadable() };
        let new = format!("{}{}{}", &whole[..place.start], json::encode(&text), &whole[place.end..]);
        Raw::parse(new).map_or_else(|_| unreadable(), |update| clean(secrets, update))
    }
}

/// The members that are not the delta's own text may hold secrets too.
fn clean(secrets: &Secrets, update: Raw) -> Raw {
    match json::redact(secrets, update.as_str()) {
        Cow::Borrowed(_) => update,
        Cow::Owned(text) => Raw::parse(text).unwrap_or_else(|_| unreadable()),
    }
}

/// Stands for an update that could not be written without its secrets. Nothing known leads here; if something
/// does, the update is lost rather than the secret.
pub(super) fn unreadable() -> Raw {
    Raw::from(RawValue::NULL)
}

#[derive(Deserialize)]
struct Update<'a> {
    #[serde(rename = "sessionUpdate", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: &'a RawValue,
}

/// The kind and text of a delta; none for every other update.
fn delta(update: &Raw) -> Option<(Kind, Cow<'_, str>)> {
    let Update { kind, content } = update.read().ok()?;
    let kind = match &*kind {
        "agent_message_chunk" => Kind::Message,
        "agent_thought_chunk" => Kind::Thought,
        "user_message_chunk" => Kind::User,
        _ => return None,
    };
    let block: Block<'_> = serde_json::from_str(content.get()).ok()?;
    let inner = block.text.get().strip_prefix('"')?.strip_suffix('"')?;
    (block.kind == "text").then(|| (kind, json::decode(inner)))
}

/// Where the text's literal stands in a delta.
fn text_place(update: &str) -> Option<Range<usize>> {
    let Update { content, .. } = serde_json::from_str(update).ok()?;
    let block: Block<'_> = serde_json::from_str(content.get()).ok()?;
    // The raw value borrows from the update, so the distance of the two is its place.
    let start = (block.text.get().as_ptr() as usize).checked_sub(update.as_ptr() as usize)?;
    Some(start..start + block.text.get().len())
}
