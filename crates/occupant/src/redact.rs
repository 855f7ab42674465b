//! Registered secrets, taken out of what is recorded.
//!
//! A secret is matched as it is and as a JSON string would spell it, longest first, inside JSON strings only,
//! so that the text stays valid. In a stream of text deltas it is matched across them too: a delta whose end
//! could be the beginning of a secret is held back, whole, until the next ones decide. Held deltas that turn
//! out harmless are released byte for byte. Without secrets everything passes through untouched.
//!
//! It does not find a secret that an agent encodes in another way, or writes as a bare JSON number.

mod json;
mod stream;

use protocol::{Raw, limits::SECRET_MIN_BYTES};
use std::{borrow::Cow, ops::Range, sync::Arc};

/// The secrets of one session, and what is held back of its stream. A clone starts with nothing held back.
#[derive(Default)]
pub struct Redactor {
    secrets: Option<Arc<Secrets>>,
    stream: stream::Stream,
}

impl Clone for Redactor {
    fn clone(&self) -> Self {
        Self { secrets: self.secrets.clone(), stream: stream::Stream::default() }
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.secrets.as_ref().map_or(0, |secrets| secrets.patterns.len());
        f.debug_struct("Redactor").field("patterns", &count).finish_non_exhaustive()
    }
}

impl Redactor {
    /// Names and values. Values too short to be told from ordinary text are left out.
    pub fn new(secrets: impl IntoIterator<Item = (String, String)>) -> Self {
        let secrets = Secrets::new(secrets);
        Self { secrets: secrets.map(Arc::new), stream: stream::Stream::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.secrets.is_none()
    }

    /// Everything that is looked for, with what stands in its place.
    pub(crate) fn spellings(&self) -> impl Iterator<Item = (&str, &str)> {
        let patterns = self.secrets.iter().flat_map(|secrets| &secrets.patterns);
        patterns.map(|pattern| (pattern.text.as_str(), &*pattern.label))
    }

    /// Plain text without its secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.secrets {
            None => Cow::Borrowed(text),
            Some(secrets) => secrets.text(text),
        }
    }

    /// Encoded JSON without its secrets. Words of the protocol, such as the name of a member, stay: a secret
    /// that reads `content` must not make a record unreadable.
    pub fn json<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.secrets {
            None => Cow::Borrowed(text),
            Some(secrets) => json::redact(secrets, text),
        }
    }

    /// As [`Self::json`], for raw JSON.
    pub fn raw(&self, raw: Raw) -> Raw {
        match self.json(raw.as_str()) {
            Cow::Borrowed(_) => raw,
            // Only string literals were replaced, by string literals.
            Cow::Owned(text) => Raw::parse(text).unwrap_or_else(|_| stream::unreadable()),
        }
    }

    /// Takes the next update of the stream and releases what is decided, in order. `at` is where the update
    /// came from, for [`Self::held_from`].
    pub fn update(&mut self, update: Raw, at: u64, mut release: impl FnMut(Raw)) {
        match &self.secrets {
            None => release(update),
            Some(secrets) => {
                let secrets = Arc::clone(secrets);
                self.stream.update(&secrets, update, at, &mut release);
            }
        }
    }

    /// Releases what is held back: at the end of a turn or of the stream.
    pub fn flush(&mut self, mut release: impl FnMut(Raw)) {
        if let Some(secrets) = &self.secrets {
            let secrets = Arc::clone(secrets);
            self.stream.flush(&secrets, &mut release);
        }
    }

    /// Where the oldest update that is held back came from.
    pub fn held_from(&self) -> Option<u64> {
        self.stream.held_from()
    }
}

/// What to look for, ready to be looked for.
struct Secrets {
    /// By first byte, then longest first.
    patterns: Vec<Pattern>,
    /// `starts[b]..starts[b + 1]` are the patterns that begin with the byte `b`.
    starts: Box<[usize; 257]>,
    longest: usize,
}

struct Pattern {
    text: String,
    /// What stands in its place.
    label: Arc<str>,
}

/// A secret found, and the label for its place.
struct Hit {
    range: Range<usize>,
    label: Arc<str>,
}

/// Whether more text may follow the one that is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follows {
    Nothing,
    Perhaps,
}

impl Secrets {
    fn new(secrets: impl IntoIterator<Item = (String, String)>) -> Option<Self> {
        let mut patterns = Vec::new();
        for (name, value) in secrets {
            if value.len() < SECRET_MIN_BYTES {
                continue;
            }
            let label: Arc<str> = format!("[REDACTED:{name}]").into();
            let spelt = json::encode(&value);
            let spelt = &spelt[1..spelt.len() - 1];
            if spelt != value {
                patterns.push(Pattern { text: spelt.to_owned(), label: Arc::clone(&label) });
            }
            patterns.push(Pattern { text: value, label });
        }
        if patterns.is_empty() {
            return None;
        }
        let first = |pattern: &Pattern| pattern.text.as_bytes()[0];
        patterns.sort_by(|a, b| {
            first(a).cmp(&first(b)).then(b.text.len().cmp(&a.text.len())).then_with(|| a.text.cmp(&b.text))
        });
        patterns.dedup_by(|a, b| a.text == b.text);
        let mut starts = Box::new([patterns.len(); 257]);
        for byte in 0..=255_usize {
            starts[byte] = patterns.partition_point(|pattern| usize::from(first(pattern)) < byte);
        }
        let longest = patterns.iter().map(|pattern| pattern.text.len()).max().unwrap_or(0);
        Some(Self { patterns, starts, longest })
    }

    /// Finds every secret from the left, the longest at each place. Stops, and says where, at a place that
    /// text to come could still change.
    fn scan(&self, text: &str, follows: Follows) -> (Vec<Hit>, usize) {
        let bytes = text.as_bytes();
        let mut hits = Vec::new();
        let mut at = 0;
        'places: while at < bytes.len() {
            let first = usize::from(bytes[at]);
            let rest = &bytes[at..];
            let candidates = &self.patterns[self.starts[first]..self.starts[first + 1]];
            for pattern in candidates {
                let wanted = pattern.text.as_bytes();
                if wanted.len() > rest.len() {
                    if follows == Follows::Perhaps && wanted.starts_with(rest) {
                        return (hits, at);
                    }
                } else if rest.starts_with(wanted) {
                    hits.push(Hit { range: at..at + wanted.len(), label: Arc::clone(&pattern.label) });
                    at += wanted.len();
                    continue 'places;
                }
            }
            at += 1;
        }
        (hits, at)
    }

    fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let (hits, _) = self.scan(text, Follows::Nothing);
        if hits.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        let mut copied = 0;
        for hit in hits {
            out.push_str(&text[copied..hit.range.start]);
            out.push_str(&hit.label);
            copied = hit.range.end;
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }
}

#[cfg(test)]
mod tests;
