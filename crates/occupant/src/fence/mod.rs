//! A fence around a shell: which commands a session may give, judged on the text as a shell reads it.
//!
//! The session task asks before a command is sent. A fence keeps an honest agent on the path that was agreed; it does
//! not hold a program that is allowed to run from doing anything else, which is what the sandbox is for. The rules and
//! what they see through are described in `docs/shells.md`.
//!
//! The text is read by a reader of our own. `brush-parser`, which was tried first, panics on `echo 99999999999>x`, does
//! not know `select` or a `case` inside `$(…)`, and keeps the words it saw in a cache of the whole process.

mod read;
mod rule;
mod scan;
mod word;
mod wrap;

pub use rule::{BadRule, RULE_WORD_BYTES, RULE_WORDS, RULES};

use read::{Found, Stop};
use rule::{Rule, system_name};
use std::fmt;
use word::Word;
use wrap::{Inner, Known, Nameable, Outer};

/// A longer text is not read, and refused.
pub const TEXT_BYTES: usize = 4 * 1024 * 1024;
/// How deep commands may stand inside commands that run them. What is read again
/// or copied for each level counts more.
const WRAPPED: usize = 32;
const TEXT_LEVEL: usize = 4;
/// How much of a command a refusal shows.
const SHOWN_CHARS: usize = 120;

/// Assigning to these changes what the names of commands mean or what runs beside them.
const POWERFUL: [&str; 29] = [
    "PATH",
    "BASH_ENV",
    "ENV",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS4",
    "SHELLOPTS",
    "BASHOPTS",
    "SHELL",
    "PAGER",
    "EDITOR",
    "VISUAL",
    "LESSOPEN",
    "MANPAGER",
    "NODE_OPTIONS",
    "PYTHONSTARTUP",
    "PERL5OPT",
    "RUBYOPT",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_PAGER",
    "GIT_EDITOR",
    "GIT_SEQUENCE_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_ASKPASS",
    "GIT_PROXY_COMMAND",
    "GIT_EXEC_PATH",
];
const POWERFUL_STARTS: [&str; 4] = ["LD_", "DYLD_", "BASH_FUNC_", "GIT_CONFIG"];
/// Builtins that assign by their arguments.
const DECLARING: [&[u8]; 5] = [b"export", b"declare", b"typeset", b"readonly", b"local"];

/// Allow and deny lists, of which each layer has both. A text passes when every layer lets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fence {
    layers: Vec<Layer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Layer {
    /// Nothing else may run, when there is one.
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

/// Why a text may not run. Its sentence says which command and which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A deny rule matches.
    Denied {
        command: String,
        rule: String,
    },
    /// There is an allow list, and no rule of it matches.
    NotAllowed {
        command: String,
    },
    /// There is an allow list, and what would run cannot be known beforehand.
    Unknown {
        command: String,
        what: &'static str,
    },
    /// There is an allow list, and a variable would change what its names mean.
    Variable {
        name: String,
    },
    /// The text does not parse, or can be read in two ways.
    Unreadable {
        line: usize,
        why: &'static str,
    },
    TooLong,
}

impl Refusal {
    /// The simple command that is refused, when it is one.
    pub fn command(&self) -> Option<&str> {
        match self {
            Self::Denied { command, .. } | Self::NotAllowed { command } | Self::Unknown { command, .. } => {
                Some(command)
            }
            Self::Variable { .. } | Self::Unreadable { .. } | Self::TooLong => None,
        }
    }

    /// The rule that refuses it, when it is one.
    pub fn rule(&self) -> Option<&str> {
        if let Self::Denied { rule, .. } = self { Some(rule) } else { None }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied { command, rule } => {
                write!(f, "`{command}` is refused by the deny rule `{rule}`")
            }
            Self::NotAllowed { command } => {
                write!(f, "`{command}` is refused: no rule of the allow list matches it")
            }
            Self::Unknown { command, what } => write!(
                f,
                "`{command}` is refused: it runs {what}, and under an allow list every command must be known beforehand"
            ),
            Self::Variable { name } => write!(
                f,
                "setting `{name}` is refused: under an allow list no variable may change what commands mean"
            ),
            Self::Unreadable { line, why } => write!(
                f,
                "the command is refused because a policy applies and line {line} cannot be read for certain: {why}"
            ),
            Self::TooLong => write!(
                f,
                "the command is refused because a policy applies and it is longer than {TEXT_BYTES} bytes"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

impl Fence {
    /// One layer. Without rules it refuses nothing.
    pub fn new(allow: &[String], deny: &[String]) -> Result<Self, BadRule> {
        let layer = Layer { allow: Rule::list(allow)?, deny: Rule::list(deny)? };
        let layers = if layer.allow.is_empty() && layer.deny.is_empty() { Vec::new() } else { vec![layer] };
        Ok(Self { layers })
    }

    /// Both fences at once: the operator's and the session's.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.layers.extend(other.layers);
        self
    }

    /// Nothing is ever refused.
    pub fn is_open(&self) -> bool {
        self.layers.is_empty()
    }

    /// May this text run? Without rules it is not even looked at.
    pub fn judge(&self, text: &str) -> Result<(), Refusal> {
        self.judge_bytes(text.as_bytes())
    }

    /// The same for a text that need not be UTF-8.
    pub fn judge_bytes(&self, text: &[u8]) -> Result<(), Refusal> {
        if self.is_open() {
            return Ok(());
        }
        if text.len() > TEXT_BYTES {
            return Err(Refusal::TooLong);
        }
        self.judge_text(text, 0)
    }

    fn has_allow(&self) -> bool {
        self.layers.iter().any(|layer| !layer.allow.is_empty())
    }

    fn judge_text(&self, text: &[u8], level: usize) -> Result<(), Refusal> {
        let mut sink = |found: Found<'_>| match found {
            Found::Command { words, assigned, source } => {
                let source = shown(source);
                assigned.iter().try_for_each(|name| self.judge_variable(name))?;
                let words = expanded(words)?;
                self.judge_words(&words, &source, level)
            }
            Found::Computed(what) => self.unknown("${…}", what),
        };
        read::read(text, &mut sink).map_err(|stop| match stop {
            Stop::Unreadable { line, why } => Refusal::Unreadable { line, why },
            Stop::Refused(refusal) => refusal,
        })
    }

    fn judge_variable(&self, name: &[u8]) -> Result<(), Refusal> {
        let name = String::from_utf8_lossy(name);
        let powerful =
            POWERFUL.contains(&&*name) || POWERFUL_STARTS.iter().any(|start| name.starts_with(start));
        if powerful && self.has_allow() {
            return Err(Refusal::Variable { name: name.into_owned() });
        }
        Ok(())
    }

    /// Refused where there is an allow list.
    fn unknown(&self, source: &str, what: &'static str) -> Result<(), Refusal> {
        match self.has_allow() {
            true => Err(Refusal::Unknown { command: source.to_owned(), what }),
            false => Ok(()),
        }
    }

    fn judge_words(&self, mut words: &[Word], source: &str, level: usize) -> Result<(), Refusal> {
        if level > WRAPPED {
            let why = "commands stand too deep inside commands that run them";
            return Err(Refusal::Unreadable { line: 1, why });
        }
        let (name, args) = loop {
            let Some((first, args)) = words.split_first() else { return Ok(()) };
            self.judge_denied(words, source)?;
            if let Some(name) = first.literal() {
                break (name, args);
            }
            self.unknown(source, "a command whose name is only known when it runs")?;
            if !first.can_vanish() {
                return Ok(());
            }
            // An empty variable leaves the next word as the command.
            words = args;
        };
        let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(&name);
        if DECLARING.contains(&base) || base == b"env" {
            args.iter().filter_map(Word::assigned).try_for_each(|name| self.judge_variable(&name))?;
        }
        let inside = wrap::inside(base, args);
        let seen_through = inside.outer == Outer::SeenThrough && system_name(&name).is_some();
        self.judge_allowed(words, source, seen_through && !inside.inner.is_empty(), &inside.inner)?;
        let step = if base == b"find" || base == b"xargs" { TEXT_LEVEL } else { 1 };
        for inner in &inside.inner {
            match inner {
                Inner::Words(words) => self.judge_words(words, source, level + step)?,
                Inner::Text { known: Known::Whole, text } => self.judge_text(text, level + TEXT_LEVEL)?,
                Inner::Text { known: Known::InPart, text } => {
                    self.unknown(source, "a text that is only known when it runs")?;
                    match self.judge_text(text, level + TEXT_LEVEL) {
                        // What it is in the end may well be readable.
                        Ok(()) | Err(Refusal::Unreadable { .. }) => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
                Inner::Elsewhere { .. } => {}
            }
        }
        Ok(())
    }

    fn judge_denied(&self, words: &[Word], source: &str) -> Result<(), Refusal> {
        let rules = self.layers.iter().flat_map(|layer| &layer.deny);
        match rules.into_iter().find(|rule| rule.could_match(words)) {
            Some(rule) => Err(Refusal::Denied { command: source.to_owned(), rule: rule.text().to_owned() }),
            None => Ok(()),
        }
    }

    /// The allow lists' word on one command. One that is seen through is judged by what is inside alone.
    fn judge_allowed(
        &self,
        words: &[Word],
        source: &str,
        seen_through: bool,
        inner: &[Inner<'_>],
    ) -> Result<(), Refusal> {
        let elsewhere = inner.iter().find_map(|inner| match inner {
            Inner::Elsewhere { what, nameable } => Some((*what, *nameable)),
            Inner::Words(_) | Inner::Text { .. } => None,
        });
        for layer in self.layers.iter().filter(|layer| !layer.allow.is_empty()) {
            let mut matching = layer.allow.iter().filter(|rule| rule.surely_matches(words)).peekable();
            if matching.peek().is_none() && !seen_through {
                return Err(Refusal::NotAllowed { command: source.to_owned() });
            }
            match elsewhere {
                Some((_, Nameable::ByRule)) if matching.any(Rule::names_arguments) => {}
                Some((what, _)) => return Err(Refusal::Unknown { command: source.to_owned(), what }),
                None => {}
            }
        }
        Ok(())
    }
}

fn expanded(words: Vec<Word>) -> Result<Vec<Word>, Refusal> {
    let mut all = Vec::with_capacity(words.len());
    for word in words {
        let why = "the braces of a word make too many words";
        all.extend(word.expanded().map_err(|_| Refusal::Unreadable { line: 1, why })?);
    }
    Ok(all)
}

/// A command as a refusal shows it: on one line, and not all of a long one.
fn shown(source: &[u8]) -> String {
    let text = String::from_utf8_lossy(&source[..source.len().min(SHOWN_CHARS * 4)]);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

#[cfg(test)]
mod tests;
