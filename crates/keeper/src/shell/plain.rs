//! A shell that cannot be seen into: any that POSIX describes, or a bash where the kernel lets nobody look.
//!
//! Such a shell is asked. When it waits for its next line, as far as the kernel tells that, it is sent a question with
//! a number that nobody knew before, and answers by the queue that its state comes by: the number, and the status of
//! its last command. What this gives up is said in [`crate::wire::Manner::lesser`].

use super::{
    glass::{self, Depth, Glass, Look, Obstacle, Stand, Way, Words},
    script::{self, State, quoted},
    site,
};
use crate::wire::Manner;
use rustix::{io::Errno, process::Pid};

const TOLD: &[u8] = b"# outlast: told ";
/// The longest answer; whatever has no end by then is none.
const TOLD_BYTES: usize = 256;
/// What a plain shell runs for the keeper.
pub(super) const SAVE_SCRIPT: &str = "plain-save";
pub(super) const FAREWELL_SCRIPT: &str = "plain-end";

/// How a shell is known.
#[derive(Debug)]
pub(crate) enum Sight {
    Seen(Glass),
    Told(Plain),
}

#[derive(Debug)]
pub(crate) struct Plain {
    pid: Pid,
    /// The line as the kernel names it; none where it does not say.
    line: Option<String>,
    question: Question,
    /// The status that the last command left.
    pub(super) code: i32,
    /// Of a line that has not come whole.
    heard: Vec<u8>,
}

/// ```text
/// Open ─► Asked ─► Answered
///   └──────────┴──────┴─► Open (with each line that is sent)
/// ```
#[derive(Debug)]
enum Question {
    Open,
    Asked { number: String },
    Answered { code: i32 },
}

/// What to do about a shell that is asked.
pub(super) enum Next {
    Ask(String),
    Wait,
    Idle { code: i32 },
}

impl Sight {
    pub(super) fn manner(&self) -> Manner {
        match self {
            Self::Seen(_) => Manner::Seen,
            Self::Told(_) => Manner::Told,
        }
    }

    pub(super) fn look(&self) -> Look {
        match self {
            Self::Seen(glass) => glass.look(),
            Self::Told(_) => Look::Between,
        }
    }

    pub(super) fn depth(&self) -> Depth {
        match self {
            Self::Seen(glass) => glass.depth(),
            Self::Told(_) => Depth::Deep,
        }
    }

    pub(super) fn shared_with(&self, pid: Pid) -> bool {
        match self {
            Self::Seen(glass) => glass.shared_with(pid),
            Self::Told(plain) => plain.line.as_ref().is_some_and(|line| glass::has_open(pid, line)),
        }
    }

    pub(super) fn way(&self) -> Result<Way, Obstacle> {
        match self {
            Self::Seen(glass) => glass.way(),
            Self::Told(_) => Ok(Way::Command),
        }
    }

    /// As [`Self::way`], and what plain words can be.
    pub(super) fn stand(&self) -> Result<Stand, Obstacle> {
        match self {
            Self::Seen(glass) => glass.stand(),
            Self::Told(_) => Ok(Stand { way: Way::Command, words: Words::Defined }),
        }
    }

    /// Whether a text can change nothing of the shell's state, if its words are plain.
    pub(super) fn neutral(&self, text: &[u8]) -> bool {
        match self {
            Self::Seen(glass) => script::is_neutral(text, |name| glass.is_builtin(name)),
            Self::Told(_) => false,
        }
    }

    pub(super) fn quiet(&self) -> bool {
        match self {
            Self::Seen(glass) => glass.quiet(),
            Self::Told(_) => false,
        }
    }

    pub(super) fn traps_errors(&self) -> bool {
        match self {
            Self::Seen(glass) => glass.traps_errors(),
            Self::Told(_) => false,
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<Vec<u8>> {
        match self {
            Self::Seen(glass) => glass.variable(name),
            Self::Told(_) => None,
        }
    }

    /// A line is on its way, and what was told before it is past.
    pub(super) fn renew(&mut self) {
        if let Self::Told(plain) = self {
            plain.question = Question::Open;
        }
    }
}

impl Plain {
    pub(super) fn new(pid: Pid, line: Option<u64>) -> Self {
        let raw = pid.as_raw_nonzero();
        // Where the kernel does not say what a process waits for, it is asked without having been seen.
        let seen = std::fs::read(format!("/proc/{raw}/syscall")).is_ok();
        let line = line.filter(|_| seen).map(|inode| format!("socket:[{inode}]"));
        Self { pid, line, question: Question::Open, code: 0, heard: Vec::new() }
    }

    /// Whether it waits for a line, as far as that can be told.
    pub(super) fn waits(&self) -> bool {
        self.line.as_ref().is_none_or(|line| glass::reads(self.pid, line))
    }

    pub(super) fn next(&mut self) -> Result<Next, Errno> {
        match &self.question {
            Question::Open if self.waits() => {
                let number = site::fresh()?;
                self.question = Question::Asked { number: number.clone() };
                Ok(Next::Ask(number))
            }
            Question::Open | Question::Asked { .. } => Ok(Next::Wait),
            Question::Answered { code } => Ok(Next::Idle { code: *code }),
        }
    }

    /// Takes what came by the queue: answers are for here, the rest is the shell's state.
    pub(super) fn hear(&mut self, bytes: &[u8], state: &mut State) {
        self.heard.extend_from_slice(bytes);
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            match line.strip_prefix(TOLD) {
                Some(answer) => self.answer(answer),
                None => state.take(&line),
            }
        }
        if self.heard.len() > TOLD_BYTES {
            state.take(&std::mem::take(&mut self.heard));
        }
    }

    fn answer(&mut self, answer: &[u8]) {
        let Question::Asked { number } = &self.question else { return };
        let text = std::str::from_utf8(answer).unwrap_or_default();
        let mut words = text.split_ascii_whitespace();
        let (told, code) = (words.next(), words.next().and_then(|code| code.parse().ok()));
        if let (true, Some(code)) = (told == Some(number), code) {
            self.question = Question::Answered { code };
        }
    }
}

/// The line that asks.
pub(super) fn ask(number: &str, to: &[u8]) -> Vec<u8> {
    let told = String::from_utf8_lossy(TOLD);
    let mut line = format!("\\command printf '%s\\n' \"{told}{number} $?\" >").into_bytes();
    line.extend(quoted(to));
    line.push(b'\n');
    line
}

/// What a shell runs first: the state of the one before it.
pub(super) fn fit(state: &[u8], farewell: &[u8]) -> Vec<u8> {
    let mut text = state.to_vec();
    text.extend(b"\\command cd -P -- \"$PWD\" 2>/dev/null\n");
    let trap = quoted(&[b"\\command . ".as_slice(), &quoted(farewell)].concat());
    text.extend([b"\\command trap ".as_slice(), &trap, b" EXIT\n"].concat());
    text
}

/// Saves what every shell can say of itself.
pub(super) fn save(to: &[u8]) -> Vec<u8> {
    let mut text = format!(
        "{{ \\command printf '%s\\n' '{}'\n\\command export -p\n\\command printf 'umask '\n\\command umask -S\n\
         \\command printf '%s\\n' '{}'\n}} 2>/dev/null >",
        script::BEGIN,
        script::WHOLE
    )
    .into_bytes();
    text.extend(quoted(to));
    text.push(b'\n');
    text
}

/// As the shell ends: with the folder it is in.
pub(super) fn farewell(to: &[u8]) -> Vec<u8> {
    [b"\\command cd -P . 2>/dev/null\n\\command export PWD\n".as_slice(), &save(to)].concat()
}

/// What goes before a command's text that asks for the last status, which the keeper's own lines have changed.
pub(super) fn prologue(text: &[u8], code: i32) -> Vec<u8> {
    let asks = text.windows(2).any(|window| window == b"$?");
    if asks && code != 0 { format!("(exit {code}); ").into_bytes() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Plain {
        let question = Question::Asked { number: "n1".to_owned() };
        let pid = rustix::process::getpid();
        Plain { pid, line: None, question, code: 0, heard: Vec::new() }
    }

    #[test]
    fn only_the_number_that_was_asked_counts() {
        let (mut plain, mut state) = (plain(), State::default());
        for lie in ["# outlast: told n0 0\n", "# outlast: told n1\n", "# outlast: told n1 x\n", "n1 0\n"] {
            plain.hear(lie.as_bytes(), &mut state);
            assert!(matches!(plain.next(), Ok(Next::Wait)), "{lie}");
        }
        plain.hear(b"# outlast: state\nexport A=1\n# outlast: to", &mut state);
        plain.hear(b"ld n1 7\n# outlast: whole\n", &mut state);
        assert!(matches!(plain.next(), Ok(Next::Idle { code: 7 })));
        assert_eq!(state.whole, b"export A=1\n# outlast: whole\n");
        plain.hear(b"# outlast: told n1 0\n", &mut state);
        assert!(matches!(plain.next(), Ok(Next::Idle { code: 7 })), "an answer is given once");
    }

    #[test]
    fn a_line_without_end_is_let_go() {
        let (mut plain, mut state) = (plain(), State::default());
        plain.hear(&vec![b'x'; 10 * TOLD_BYTES], &mut state);
        assert!(plain.heard.is_empty());
    }

    #[test]
    fn the_last_status_is_brought_only_where_it_is_asked_for() {
        assert_eq!(prologue(b"echo $?", 3), b"(exit 3); ");
        assert_eq!(prologue(b"echo $?", 0), b"");
        assert_eq!(prologue(b"echo", 3), b"");
    }
}
