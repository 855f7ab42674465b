//! What is worth keeping and nobody's message, bounded in length and in number.

use super::Acp;
use crate::Cx;
use protocol::{Actor, Level, Notice};
use std::borrow::Cow;

/// Kept of one text for people.
pub(super) const TEXT_BYTES: usize = 4 * 1024;
/// Junk lines of one process that are kept one by one; the rest are counted.
pub(super) const JUNK_NOTICES: u64 = 100;
/// The same for messages that are well formed and not known.
pub(super) const UNKNOWN_NOTICES: u64 = 10_000;

/// What has come so far.
#[derive(Debug, Default)]
pub(super) struct Notices {
    junk: u64,
    unknown: u64,
}

#[derive(Clone, Copy)]
pub(super) enum Oddity {
    /// Nothing that a peer should have sent.
    Junk,
    /// Well formed, and not for us to understand.
    Unknown,
}

impl Acp {
    /// Keeps a line that led to nothing.
    pub(super) fn odd(&mut self, oddity: Oddity, what: &str, line: &[u8], cx: &mut Cx) {
        let (count, most, level) = match oddity {
            Oddity::Junk => (&mut self.notices.junk, JUNK_NOTICES, Level::Warning),
            Oddity::Unknown => (&mut self.notices.unknown, UNKNOWN_NOTICES, Level::Info),
        };
        *count += 1;
        if *count <= most {
            // Secrets first, in all of it, and the cut afterwards: one that is cut in two would not be found.
            let line = String::from_utf8_lossy(line);
            let line = self.begin.redactor.json(&line);
            let text = self.say_text(&format!("the agent sent {what}: {line}"));
            cx.record(Actor::Agent, Notice { level, text });
        }
    }

    pub(super) fn warn(&self, text: &str, cx: &mut Cx) {
        let text = self.say_text(text);
        cx.record(Actor::System, Notice { level: Level::Warning, text });
    }

    pub(super) fn sum_up_notices(&mut self, cx: &mut Cx) {
        let Notices { junk, unknown } = std::mem::take(&mut self.notices);
        for (count, most, what) in
            [(junk, JUNK_NOTICES, "junk lines"), (unknown, UNKNOWN_NOTICES, "messages that are not known")]
        {
            if count > most {
                self.warn(&format!("{} more {what} of the agent were not kept one by one", count - most), cx);
            }
        }
    }
}

/// The text, cut where it is too long.
pub(super) fn bounded(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES {
        return Cow::Borrowed(text);
    }
    let kept = &text[..text.floor_char_boundary(TEXT_BYTES)];
    Cow::Owned(format!("{kept}… ({} bytes more)", text.len() - kept.len()))
}
