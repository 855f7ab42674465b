//! What an operator adds to the shapes of secrets that are known anyway.
//!
//! A pattern is how a secret begins and what follows, and not a regular expression: a stream is cut into pieces
//! anywhere, and only of such a shape can it be said at each cut how much must be held back.

use std::fmt;

/// Patterns of one operator, and the bounds of each.
pub const PATTERNS: usize = 64;
const STARTS_LEAST: usize = 3;
const STARTS_MOST: usize = 128;
const FOLLOW_MOST: usize = 1_024;
const LABEL_MOST: usize = 64;

/// A secret that begins with a text of at least three bytes, such as `acme_`, and goes on with so many bytes or more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    pub(super) label: String,
    pub(super) starts: String,
    pub(super) follow: Follow,
}

/// What comes after the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// The beginning is the whole secret.
    Nothing,
    /// Letters and digits.
    Alnum { least: usize },
    /// Letters, digits, `_` and `-`.
    Word { least: usize },
    /// Letters, digits, `_`, `-`, `+`, `/` and `=`.
    Base64 { least: usize },
}

/// Why a pattern cannot be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadPattern {
    Label,
    Starts,
    Follow,
}

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label => {
                write!(
                    f,
                    "a redaction pattern needs a label of 1 to {LABEL_MOST} characters of a-z, 0-9 and `-`"
                )
            }
            Self::Starts => write!(
                f,
                "a redaction pattern needs a beginning of {STARTS_LEAST} to {STARTS_MOST} printable characters without blanks"
            ),
            Self::Follow => {
                write!(f, "a redaction pattern can ask for 1 to {FOLLOW_MOST} characters after its beginning")
            }
        }
    }
}

impl std::error::Error for BadPattern {}

impl Pattern {
    /// `label` is shown in the secret's place, as `[REDACTED:label]`.
    pub fn new(label: &str, starts: &str, follow: Follow) -> Result<Self, BadPattern> {
        let in_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if label.is_empty() || label.len() > LABEL_MOST || !label.bytes().all(in_label) {
            return Err(BadPattern::Label);
        }
        let sized = (STARTS_LEAST..=STARTS_MOST).contains(&starts.len());
        if !sized || !starts.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadPattern::Starts);
        }
        match follow {
            Follow::Alnum { least } | Follow::Word { least } | Follow::Base64 { least }
                if !(1..=FOLLOW_MOST).contains(&least) =>
            {
                Err(BadPattern::Follow)
            }
            Follow::Nothing | Follow::Alnum { .. } | Follow::Word { .. } | Follow::Base64 { .. } => {
                Ok(Self { label: label.to_owned(), starts: starts.to_owned(), follow })
            }
        }
    }
}
