//! Takes secrets out of a stream of text: those that Outlast was given, and what has the shape of a well-known token,
//! a private key or a password in an address.
//!
//! Any split of the same text leaves the same text. What could be the beginning of a secret is held back until it is
//! decided, for a bounded length. Words such as `password: string` have no shape and stay.

use super::pattern::{Follow, Pattern};
use crate::Redactor;
use aho_corasick::{AhoCorasick, MatchKind};
use std::{fmt, sync::Arc};

/// How far a secret is followed before it is decided that it is none.
const JWT_BYTES: usize = 8 * 1024;
const KEY_BYTES: usize = 64 * 1024;
const URL_BYTES: usize = 512;
const LABEL_BYTES: usize = 64;

/// Which shapes are looked for beside the given secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shapes {
    Known,
    /// The operator turned them off.
    Off,
}

/// A way to recognise a secret by how it begins.
#[derive(Clone)]
struct Rule {
    label: Arc<str>,
    shape: Shape,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// The beginning is the whole.
    Given,
    /// So many bytes of a kind follow, or more.
    Token {
        least: usize,
        body: Body,
    },
    /// Exactly so many bytes of a kind follow.
    Fixed {
        count: usize,
        body: Body,
    },
    Jwt,
    KeyBlock,
    Address,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    Alnum,
    Upper,
    /// Letters, digits, `_` and `-`.
    Word,
    /// Letters, digits, `_`, `-`, `+`, `/` and `=`.
    Base64,
    /// Of a path that the keeper makes.
    Path,
}

impl From<Follow> for Shape {
    fn from(follow: Follow) -> Self {
        match follow {
            Follow::Nothing => Self::Given,
            Follow::Alnum { least } => Self::Token { least, body: Body::Alnum },
            Follow::Word { least } => Self::Token { least, body: Body::Word },
            Follow::Base64 { least } => Self::Token { least, body: Body::Base64 },
        }
    }
}

impl Body {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Alnum => byte.is_ascii_alphanumeric(),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Word => byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-',
            Self::Base64 => Self::Word.has(byte) || matches!(byte, b'+' | b'/' | b'='),
            Self::Path => byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'/',
        }
    }
}

const TOKENS: [(&str, &str, usize, Body); 27] = [
    ("ghp_", "github-token", 36, Body::Alnum),
    ("gho_", "github-token", 36, Body::Alnum),
    ("ghu_", "github-token", 36, Body::Alnum),
    ("ghs_", "github-token", 36, Body::Alnum),
    ("ghr_", "github-token", 36, Body::Alnum),
    ("github_pat_", "github-token", 22, Body::Word),
    ("glpat-", "gitlab-token", 20, Body::Word),
    ("sk-ant-", "anthropic-key", 20, Body::Word),
    ("sk-proj-", "openai-key", 20, Body::Word),
    ("sk-svcacct-", "openai-key", 20, Body::Word),
    ("sk-", "api-key", 32, Body::Alnum),
    ("xoxb-", "slack-token", 20, Body::Word),
    ("xoxp-", "slack-token", 20, Body::Word),
    ("xoxa-", "slack-token", 20, Body::Word),
    ("xoxr-", "slack-token", 20, Body::Word),
    ("xoxs-", "slack-token", 20, Body::Word),
    ("xapp-", "slack-token", 20, Body::Word),
    ("AIza", "google-key", 35, Body::Word),
    ("npm_", "npm-token", 36, Body::Alnum),
    ("pypi-AgEIcHlwaS5vcmc", "pypi-token", 40, Body::Word),
    ("hf_", "huggingface-token", 30, Body::Alnum),
    ("sk_live_", "stripe-key", 16, Body::Alnum),
    ("sk_test_", "stripe-key", 16, Body::Alnum),
    ("rk_live_", "stripe-key", 16, Body::Alnum),
    ("dop_v1_", "digitalocean-token", 60, Body::Alnum),
    ("SG.", "sendgrid-key", 60, Body::Word),
    ("whsec_", "webhook-secret", 24, Body::Alnum),
];
const AWS: [&str; 3] = ["AKIA", "ASIA", "ABIA"];
const AWS_BODY: usize = 16;

/// What is looked for, built once for a session.
#[derive(Clone)]
pub struct Secrets {
    finder: Option<AhoCorasick>,
    rules: Arc<[Rule]>,
    starts: Arc<[String]>,
    /// The longest beginning.
    longest: usize,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("rules", &self.rules.len()).finish_non_exhaustive()
    }
}

impl Secrets {
    /// `sites` are how the paths begin that the keeper makes for commands; bash names them where it means itself.
    pub fn new(given: &Redactor, shapes: Shapes, sites: &[String]) -> Self {
        Self::with_patterns(given, shapes, &[], sites)
    }

    /// The same with what the operator looks for beside the known shapes, or instead of them.
    pub fn with_patterns(given: &Redactor, shapes: Shapes, patterns: &[Pattern], sites: &[String]) -> Self {
        let mut starts: Vec<String> = Vec::new();
        let mut rules = Vec::new();
        let mut add = |start: &str, label: String, shape| {
            starts.push(start.to_owned());
            rules.push(Rule { label: label.into(), shape });
        };
        for (text, label) in given.spellings() {
            add(text, label.to_owned(), Shape::Given);
        }
        for site in sites {
            add(site, "bash".to_owned(), Shape::Fixed { count: SITE_BYTES, body: Body::Path });
        }
        for pattern in patterns {
            add(&pattern.starts, format!("[REDACTED:{}]", pattern.label), pattern.follow.into());
        }
        if shapes == Shapes::Known {
            for (start, kind, least, body) in TOKENS {
                // What follows the second point of this one is longer still.
                let least = if start == "SG." { 20 } else { least };
                add(start, format!("[REDACTED:{kind}]"), Shape::Token { least, body });
            }
            for start in AWS {
                let shape = Shape::Fixed { count: AWS_BODY, body: Body::Upper };
                add(start, "[REDACTED:aws-key-id]".to_owned(), shape);
            }
            add("eyJ", "[REDACTED:jwt]".to_owned(), Shape::Jwt);
            add("-----BEGIN ", "[REDACTED:private-key]".to_owned(), Shape::KeyBlock);
            add("://", "[REDACTED:url-password]".to_owned(), Shape::Address);
        }
        let longest = starts.iter().map(String::len).max().unwrap_or(0);
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&starts).ok();
        Self { finder: finder.filter(|_| longest > 0), rules: rules.into(), starts: starts.into(), longest }
    }

    /// How many of the last bytes could be the beginning of a secret's beginning.
    fn begun(&self, text: &[u8]) -> usize {
        let most = text.len().min(self.longest.saturating_sub(1));
        let last = &text[text.len() - most..];
        let begins = |tail: &[u8]| self.starts.iter().any(|start| start.as_bytes().starts_with(tail));
        (0..most).find(|at| begins(&last[*at..])).map_or(0, |at| most - at)
    }

    /// A whole text without its secrets.
    pub fn text(&self, text: &str) -> String {
        let (mut hide, mut out) = (Hide::new(self.clone()), String::with_capacity(text.len()));
        hide.push(text, &mut out);
        hide.finish(&mut out);
        out
    }
}

/// What follows the beginning of a keeper's path: a folder's name and a file's, twelve letters each.
const SITE_BYTES: usize = 25;

/// One stream.
#[derive(Debug, Clone)]
pub(crate) struct Hide {
    secrets: Secrets,
    held: String,
    /// The byte before what is held.
    before: u8,
    /// A secret that was recognised and goes on.
    within: Option<Within>,
    pub(crate) hidden: u64,
}

#[derive(Debug, Clone, Copy)]
enum Within {
    Alnum,
    Word,
    Base64,
    Jwt,
}

enum Verdict {
    No,
    Wait,
    Hit { length: usize, instead: String, within: Option<Within> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    Comes,
    Ended,
}

impl Hide {
    pub(crate) fn new(secrets: Secrets) -> Self {
        Self { secrets, held: String::new(), before: b'\n', within: None, hidden: 0 }
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut String) {
        if self.secrets.finder.is_none() {
            return out.push_str(text);
        }
        self.held.push_str(text);
        self.run(More::Comes, out);
    }

    pub(crate) fn finish(&mut self, out: &mut String) {
        self.run(More::Ended, out);
        out.push_str(&std::mem::take(&mut self.held));
    }

    fn run(&mut self, more: More, out: &mut String) {
        let Some(finder) = self.secrets.finder.clone() else { return };
        let keep = match more {
            More::Comes => self.secrets.begun(self.held.as_bytes()),
            More::Ended => 0,
        };
        let mut from = 0;
        loop {
            if let Some(within) = self.within {
                let length = self.held.bytes().take_while(|byte| within.has(*byte)).count();
                self.drop_front(length);
                if self.held.is_empty() && more == More::Comes {
                    return;
                }
                self.within = None;
            }
            let Some(found) = finder.find(&self.held.as_bytes()[from..]) else {
                return self.release(self.held.len().saturating_sub(keep), out);
            };
            let at = from + found.start();
            // A longer beginning at the same place, or one that begins before it, could still come.
            let begun = self.held.len().saturating_sub(keep);
            if keep > 0 && begun <= at {
                return self.release(begun, out);
            }
            let rule = self.secrets.rules[found.pattern().as_usize()].clone();
            let before = if at == 0 { self.before } else { self.held.as_bytes()[at - 1] };
            match judge(&rule, &self.held[at..], found.len(), before, more) {
                Verdict::No => from = at + 1,
                Verdict::Wait => return self.release(at, out),
                Verdict::Hit { length, instead, within } => {
                    out.push_str(&self.held[..at]);
                    out.push_str(&instead);
                    self.hidden += 1;
                    self.drop_front(at + length);
                    (self.within, from) = (within, 0);
                }
            }
        }
    }

    fn release(&mut self, upto: usize, out: &mut String) {
        let upto = self.held.floor_char_boundary(upto);
        out.push_str(&self.held[..upto]);
        self.drop_front(upto);
    }

    fn drop_front(&mut self, length: usize) {
        if length > 0 {
            self.before = self.held.as_bytes()[length - 1];
            self.held.drain(..length);
        }
    }
}

impl Within {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Alnum => Body::Alnum.has(byte),
            Self::Word => Body::Word.has(byte),
            Self::Base64 => Body::Base64.has(byte),
            Self::Jwt => Body::Word.has(byte) || byte == b'.',
        }
    }
}

/// `text` begins with the rule's beginning, of `start` bytes.
fn judge(rule: &Rule, text: &str, start: usize, before: u8, more: More) -> Verdict {
    let bytes = text.as_bytes();
    let rest = &bytes[start..];
    let hit = |length, within| Verdict::Hit { length, instead: rule.label.to_string(), within };
    let short = if more == More::Comes { Verdict::Wait } else { Verdict::No };
    let own_word = !(before.is_ascii_alphanumeric() || before == b'_');
    match rule.shape {
        Shape::Given => hit(start, None),
        Shape::Token { least, body } => {
            let count = rest.iter().take(least).take_while(|byte| body.has(**byte)).count();
            let within = match body {
                Body::Word => Within::Word,
                Body::Base64 => Within::Base64,
                Body::Alnum | Body::Upper | Body::Path => Within::Alnum,
            };
            match count {
                _ if !own_word => Verdict::No,
                _ if count == least => hit(start + count, Some(within)),
                _ if count == rest.len() => short,
                _ => Verdict::No,
            }
        }
        Shape::Fixed { count: wanted, body } => {
            let count = rest.iter().take(wanted + 1).take_while(|byte| body.has(**byte)).count();
            match count {
                _ if body == Body::Upper && !own_word => Verdict::No,
                _ if count < rest.len() || more == More::Ended => {
                    if count == wanted {
                        hit(start + wanted, None)
                    } else {
                        Verdict::No
                    }
                }
                _ if count > wanted => Verdict::No,
                _ => Verdict::Wait,
            }
        }
        Shape::Jwt if !own_word => Verdict::No,
        Shape::Jwt => jwt(bytes, more, hit),
        Shape::KeyBlock => key_block(text, more, hit),
        Shape::Address => address(rule, text, more),
    }
}

fn jwt(bytes: &[u8], more: More, hit: impl Fn(usize, Option<Within>) -> Verdict) -> Verdict {
    const LEAST: usize = 10;
    let window = &bytes[..bytes.len().min(JWT_BYTES)];
    let length = window.iter().take_while(|byte| Within::Jwt.has(**byte)).count();
    let mut parts = window[..length].split(|byte| *byte == b'.');
    let (head, claims, mac) = (parts.next(), parts.next(), parts.next());
    let long = |part: Option<&[u8]>| part.is_some_and(|part| part.len() >= LEAST);
    if long(head) && long(claims) && claims.is_some_and(|part| part.starts_with(b"eyJ")) && long(mac) {
        return hit(length, Some(Within::Jwt));
    }
    if length == bytes.len() && more == More::Comes && length < JWT_BYTES {
        Verdict::Wait
    } else {
        Verdict::No
    }
}

fn key_block(text: &str, more: More, hit: impl Fn(usize, Option<Within>) -> Verdict) -> Verdict {
    const START: usize = "-----BEGIN ".len();
    const DASHES: &str = "-----";
    const END: &str = "-----END ";
    let label = text[START..].bytes().take(LABEL_BYTES);
    let label = label.take_while(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b' ');
    let after = START + label.count();
    if text.len() < after + DASHES.len() && more == More::Comes {
        return if DASHES.starts_with(&text[after..]) { Verdict::Wait } else { Verdict::No };
    }
    if !text[after..].starts_with(DASHES) || !text[START..after].contains("PRIVATE KEY") {
        return Verdict::No;
    }
    let most = text.floor_char_boundary(KEY_BYTES);
    let Some(end) = text[..most].find(END) else {
        return if more == More::Comes && text.len() < KEY_BYTES { Verdict::Wait } else { hit(most, None) };
    };
    let tail = text.floor_char_boundary((end + END.len() + LABEL_BYTES + DASHES.len()).min(text.len()));
    match text[end + END.len()..tail].find(DASHES) {
        Some(dashes) => hit(end + END.len() + dashes + DASHES.len(), None),
        None if more == More::Comes && text.len() < end + END.len() + LABEL_BYTES + DASHES.len() => {
            Verdict::Wait
        }
        None => hit(end, None),
    }
}

/// `://user:password@`, of which only the password goes.
fn address(rule: &Rule, text: &str, more: More) -> Verdict {
    const START: usize = "://".len();
    let ends = |byte: &u8| byte.is_ascii_whitespace() || b"/\"'<>@`|\\".contains(byte);
    let bytes = text.as_bytes();
    let window = &bytes[..bytes.len().min(URL_BYTES)];
    let whole = window.len() == URL_BYTES || more == More::Ended;
    let Some(colon) = window[START..].iter().position(|byte| *byte == b':' || ends(byte)) else {
        return if whole { Verdict::No } else { Verdict::Wait };
    };
    let colon = START + colon;
    if window[colon] != b':' {
        return Verdict::No;
    }
    let Some(end) = window[colon + 1..].iter().position(ends) else {
        return if whole { Verdict::No } else { Verdict::Wait };
    };
    let end = colon + 1 + end;
    let password = &window[colon + 1..end];
    // A variable in a script is no password.
    if window[end] != b'@' || password.is_empty() || matches!(password[0], b'$' | b'{' | b'%' | b'[') {
        return Verdict::No;
    }
    let instead = format!("{}{}", &text[..=colon], rule.label);
    Verdict::Hit { length: end, instead, within: None }
}

#[cfg(test)]
#[path = "hide_tests.rs"]
mod tests;
