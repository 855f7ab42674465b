//! Stopping a command: an interrupt, then a request to end, then the end, each with its time to work.

use super::{Effect, Running, Whom};
use protocol::Timestamp;

/// How long an interrupt, and then a request to end, has before the next.
pub(super) const GRACE_MS: u64 = 1_500;
pub(super) const INT: i32 = 2;
pub(super) const KILL: i32 = 9;
pub(super) const TERM: i32 = 15;
const CONT: i32 = 18;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    TimedOut,
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) why: Why,
    stage: Stage,
    until: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Interrupted,
    Asked,
    Killed,
}

pub(super) fn after(now: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_add(i64::try_from(millis).unwrap_or(i64::MAX)))
}

impl Running {
    pub(super) fn next_moment(&self) -> Timestamp {
        self.stop.map_or(self.deadline, |stop| stop.until)
    }

    pub(super) fn begin_stop(&mut self, why: Why, now: Timestamp, out: &mut Vec<Effect>) {
        if self.stop.is_some() || self.end.is_some() {
            return;
        }
        // A shell that runs one program has nothing to go on with after it, and can stay as it is. Any other would
        // go on with the next thing, and must be interrupted too.
        let whom = if one_program(&self.exec.text) { Whom::Own } else { Whom::Both };
        out.push(Effect::Signal { signal: INT, whom });
        self.stop = Some(Stop { why, stage: Stage::Interrupted, until: after(now, GRACE_MS) });
    }

    pub(super) fn walk(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let Some(stop) = &mut self.stop else {
            if now >= self.deadline {
                self.begin_stop(Why::TimedOut, now, out);
            }
            return;
        };
        if now < stop.until || self.end.is_some() {
            return;
        }
        let (signal, stage) = match stop.stage {
            Stage::Interrupted => (TERM, Stage::Asked),
            Stage::Asked | Stage::Killed => (KILL, Stage::Killed),
        };
        out.push(Effect::Signal { signal, whom: Whom::Both });
        if signal == TERM {
            // Whoever stands still hears nothing else.
            out.push(Effect::Signal { signal: CONT, whom: Whom::Both });
        }
        (stop.stage, stop.until) = (stage, after(now, GRACE_MS));
    }
}

/// Whether a command is one program and its arguments, and nothing that a shell does itself.
fn one_program(text: &[u8]) -> bool {
    const SHELL: &[u8] = b";&|(){}`\n$!<>";
    const WORDS: [&[u8]; 8] = [b"while", b"until", b"for", b"if", b"case", b"time", b"eval", b"select"];
    let text = text.trim_ascii();
    let first = text.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    !text.iter().any(|byte| SHELL.contains(byte)) && !WORDS.contains(&first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_from_scripts() {
        for text in ["sleep 100", " make -j2 \n", "npm run build"] {
            assert!(one_program(text.as_bytes()), "{text}");
        }
        for text in ["sleep 1; rm x", "a | b", "while true", "f() { :; }", "a\nb", "echo $(b)", "eval x"] {
            assert!(!one_program(text.as_bytes()), "{text}");
        }
    }
}
