//! One rule of a fence: plain words with `*` and `?`, compared with the leading words of a simple command.
//!
//! The two lists read a rule differently, each towards refusing. A deny rule matches what *could* be meant (any path
//! to the program, options before a subcommand, wildcards that could expand to the name). An allow rule matches only
//! what *is* meant (the bare name or the system's own program, the words as they are written).

use super::word::{Token, Word};
use std::fmt;

/// Rules of one list, words of one rule, bytes of one word.
pub const RULES: usize = 1_000;
pub const RULE_WORDS: usize = 16;
pub const RULE_WORD_BYTES: usize = 256;
/// A longer word with wildcards is taken to match whatever it is compared with.
const PATTERN_BYTES: usize = 4_096;

/// Where a program's file counts as the program of that name.
const SYSTEM_FOLDERS: [&[u8]; 6] =
    [b"/bin", b"/sbin", b"/usr/bin", b"/usr/sbin", b"/usr/local/bin", b"/usr/local/sbin"];

/// Why a rule cannot be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadRule {
    Empty,
    TooLong {
        rule: String,
    },
    TooMany,
    /// A rule is words; syntax would never match a simple command.
    Syntax {
        rule: String,
        byte: char,
    },
}

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                f.write_str("a rule is empty; write the words a command begins with, such as `git status`")
            }
            Self::TooLong { rule } => write!(
                f,
                "the rule `{}…` is too long; {RULE_WORDS} words of {RULE_WORD_BYTES} bytes are the most",
                rule.chars().take(40).collect::<String>()
            ),
            Self::TooMany => write!(f, "a list has more than {RULES} rules"),
            Self::Syntax { rule, byte } => write!(
                f,
                "the rule `{rule}` has `{byte}` in it; a rule is the plain words of one command, without shell syntax"
            ),
        }
    }
}

impl std::error::Error for BadRule {}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    text: String,
    name: Pattern,
    rest: Vec<Pattern>,
}

impl Rule {
    pub(super) fn parse(text: &str) -> Result<Self, BadRule> {
        let rule = || text.to_owned();
        if let Some(byte) = text.chars().find(|byte| "|&;<>()$`\\\"'\n\0".contains(*byte)) {
            return Err(BadRule::Syntax { rule: rule(), byte });
        }
        let mut words = text.split_whitespace().map(Pattern::new);
        let name = words.next().ok_or(BadRule::Empty)?;
        let rest: Vec<Pattern> = words.collect();
        let long = |pattern: &Pattern| pattern.text.len() > RULE_WORD_BYTES;
        if rest.len() >= RULE_WORDS || long(&name) || rest.iter().any(long) {
            return Err(BadRule::TooLong { rule: rule() });
        }
        Ok(Self { text: text.split_whitespace().collect::<Vec<_>>().join(" "), name, rest })
    }

    pub(super) fn list(texts: &[String]) -> Result<Vec<Self>, BadRule> {
        if texts.len() > RULES {
            return Err(BadRule::TooMany);
        }
        texts.iter().map(|text| Self::parse(text)).collect()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// It names more than a program.
    pub(super) fn names_arguments(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Could these words be what the rule means?
    pub(super) fn could_match(&self, words: &[Word]) -> bool {
        let Some((first, args)) = words.split_first() else { return false };
        let tokens = if self.name.is_path() { &first.tokens[..] } else { base(&first.tokens) };
        self.name.could_be(tokens) && self.could_match_args(args)
    }

    /// Between the rule's words there may be options, each with a value or without, and what is unknown.
    fn could_match_args(&self, args: &[Word]) -> bool {
        let mut here = vec![false; args.len() + 2];
        here[0] = true;
        for pattern in &self.rest {
            let mut next = vec![false; args.len() + 2];
            for (at, arg) in args.iter().enumerate() {
                if !here[at] {
                    continue;
                }
                if pattern.could_be(&arg.tokens) {
                    next[at + 1] = true;
                }
                if arg.tokens.first() == Some(&Token::Byte(b'-')) {
                    here[at + 1] = true;
                    here[at + 2] = true;
                } else if arg.has_hole() {
                    here[at + 1] = true;
                }
            }
            here = next;
        }
        here.iter().any(|reached| *reached)
    }

    /// Are these words certainly what the rule means?
    pub(super) fn surely_matches(&self, words: &[Word]) -> bool {
        let Some((first, args)) = words.split_first() else { return false };
        let Some(name) = first.literal() else { return false };
        let named = if self.name.is_path() {
            self.name.is(&name)
        } else {
            system_name(&name).is_some_and(|name| self.name.is(name))
        };
        let fits = |(pattern, arg): (&Pattern, &Word)| {
            pattern.text == b"*" || arg.literal().is_some_and(|arg| pattern.is(&arg))
        };
        named && args.len() >= self.rest.len() && self.rest.iter().zip(args).all(fits)
    }
}

/// The name of a program that is given bare or by its path in a folder of the system.
pub(super) fn system_name(name: &[u8]) -> Option<&[u8]> {
    match name.iter().rposition(|byte| *byte == b'/') {
        None => Some(name),
        Some(slash) => SYSTEM_FOLDERS.contains(&&name[..slash]).then_some(&name[slash + 1..]),
    }
}

/// What follows the last slash.
fn base(tokens: &[Token]) -> &[Token] {
    let slash = tokens.iter().rposition(|token| *token == Token::Byte(b'/'));
    slash.map_or(tokens, |slash| &tokens[slash + 1..])
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: Vec<u8>,
}

/// One step of a pattern: a byte, any byte, or any run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Byte(u8),
    One,
    Run,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Self { text: text.as_bytes().to_vec() }
    }

    fn is_path(&self) -> bool {
        self.text.contains(&b'/')
    }

    fn is(&self, text: &[u8]) -> bool {
        let text: Vec<Step> = text.iter().map(|byte| Step::Byte(*byte)).collect();
        meet(&self.steps(), &text)
    }

    /// Is there a text that both could be? A word with a hole is not guessed at.
    fn could_be(&self, tokens: &[Token]) -> bool {
        let mut steps = Vec::with_capacity(tokens.len());
        let mut rest = tokens.iter().copied();
        let mut wild = false;
        while let Some(token) = rest.next() {
            steps.push(match token {
                Token::Whole | Token::Split => return self.text == b"*",
                Token::Byte(byte) => Step::Byte(byte),
                Token::Special(b'*') => Step::Run,
                Token::Special(b'[') => {
                    // At least one byte stands between the brackets; a `]` may be the first of them.
                    rest.next();
                    rest.find(|token| *token == Token::Special(b']') || *token == Token::Byte(b']'));
                    Step::One
                }
                Token::Special(_) => Step::One,
            });
            wild |= !matches!(steps.last(), Some(Step::Byte(_)));
        }
        (wild && steps.len() > PATTERN_BYTES) || meet(&self.steps(), &steps)
    }

    fn steps(&self) -> Vec<Step> {
        let step = |byte: &u8| match byte {
            b'*' => Step::Run,
            b'?' => Step::One,
            byte => Step::Byte(*byte),
        };
        self.text.iter().map(step).collect()
    }
}

/// Do two patterns have a text in common? The rule's is short, so that its positions fit one row.
fn meet(rule: &[Step], other: &[Step]) -> bool {
    let mut row = vec![false; rule.len() + 1];
    row[0] = true;
    skip_runs(rule, &mut row);
    for step in other {
        let mut next = vec![false; rule.len() + 1];
        for at in 0..=rule.len() {
            if !row[at] {
                continue;
            }
            let mine = rule.get(at);
            match (step, mine) {
                (Step::Run, _) => {
                    // It takes nothing, or any number of the rule's steps.
                    next[at..].fill(true);
                    break;
                }
                (_, Some(Step::Run)) => next[at] = true,
                (Step::Byte(theirs), Some(Step::Byte(mine))) if theirs != mine => {}
                (_, Some(_)) => next[at + 1] = true,
                (_, None) => {}
            }
        }
        skip_runs(rule, &mut next);
        row = next;
        if !row.contains(&true) {
            return false;
        }
    }
    row[rule.len()]
}

/// A run may be empty.
fn skip_runs(rule: &[Step], row: &mut [bool]) {
    for at in 0..rule.len() {
        if row[at] && rule[at] == Step::Run {
            row[at + 1] = true;
        }
    }
}
