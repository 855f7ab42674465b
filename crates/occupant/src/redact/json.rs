//! Secrets inside encoded JSON: every string literal is looked at as the text it stands for, however it is
//! spelt, and written anew only when something was found.

use super::Secrets;
use std::borrow::Cow;

/// Words that the protocol and our own events are made of. A literal that is exactly one of these says nothing
/// secret, and a record without it could not be read any more. Shorter words need no place here: no secret is.
const WORDS: &[&str] = &[
    "accepted",
    "agent_error",
    "agent_message_chunk",
    "agent_thought_chunk",
    "agent_update",
    "agentInfo",
    "agentSession",
    "agentVersion",
    "allow_always",
    "allow_once",
    "annotations",
    "answer",
    "available_commands_update",
    "availableCommands",
    "cachedReadTokens",
    "cachedWriteTokens",
    "cancelled",
    "capabilities",
    "clientId",
    "completed",
    "config_option_update",
    "configOptions",
    "content",
    "costUsd",
    "current_mode_update",
    "currentModeId",
    "currentValue",
    "delete",
    "description",
    "disposition",
    "entries",
    "execute",
    "expected",
    "failed",
    "forked",
    "forkedFrom",
    "in_progress",
    "inputTokens",
    "interrupted",
    "locations",
    "max_tokens",
    "max_turn_requests",
    "maxBudgetUsd",
    "maxTurns",
    "message",
    "messageId",
    "mimeType",
    "newText",
    "notice",
    "occupant_exited",
    "occupant_started",
    "oldText",
    "onBusy",
    "optionId",
    "options",
    "outcome",
    "outputTokens",
    "pending",
    "permission",
    "permission_answered",
    "permission_requested",
    "priority",
    "prompt_accepted",
    "queued",
    "rawInput",
    "rawOutput",
    "reason",
    "refusal",
    "reject",
    "reject_always",
    "reject_once",
    "resource",
    "resource_link",
    "resumed",
    "search",
    "selected",
    "session",
    "session_config",
    "session_created",
    "session_renamed",
    "session_status",
    "sessionId",
    "sessionUpdate",
    "signal",
    "started",
    "starting",
    "status",
    "stderr",
    "switch_mode",
    "terminal",
    "terminalId",
    "thoughtLevel",
    "thoughtTokens",
    "timed_out",
    "tool_call",
    "tool_call_update",
    "toolCall",
    "toolCallId",
    "totalTokens",
    "turn_ended",
    "turn_started",
    "update",
    "usage_update",
    "user_message_chunk",
    "warning",
];

pub(super) fn redact<'a>(secrets: &Secrets, text: &'a str) -> Cow<'a, str> {
    let bytes = text.as_bytes();
    let mut out: Option<String> = None;
    let (mut copied, mut at) = (0, 0);
    while let Some(open) = bytes[at..].iter().position(|byte| *byte == b'"').map(|found| at + found) {
        let Some(close) = literal_end(bytes, open) else { break };
        if let Some(new) = literal(secrets, &text[open + 1..close]) {
            let out = out.get_or_insert_with(|| String::with_capacity(text.len()));
            out.push_str(&text[copied..open]);
            out.push_str(&new);
            copied = close + 1;
        }
        at = close + 1;
    }
    match out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.push_str(&text[copied..]);
            Cow::Owned(out)
        }
    }
}

/// The place of the quotation mark that ends the literal begun at `open`.
fn literal_end(bytes: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The literal anew, with its quotation marks, when it holds a secret.
fn literal(secrets: &Secrets, inner: &str) -> Option<String> {
    let text = decode(inner);
    match secrets.text(&text) {
        Cow::Borrowed(_) => None,
        Cow::Owned(_) if WORDS.contains(&&*text) => None,
        // An id is not a secret because a part of it happens to read like one.
        Cow::Owned(clean) if is_id(&text) && clean.contains('-') => None,
        Cow::Owned(clean) => Some(encode(&clean)),
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A JSON string literal.
pub(super) fn encode(text: &str) -> String {
    // Writing a str as JSON cannot fail.
    serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned())
}

/// What stands between the quotation marks of a literal, as text. Halves of surrogate pairs, which JSON lets
/// through and text does not, become U+FFFD.
pub(super) fn decode(inner: &str) -> Cow<'_, str> {
    let Some(first) = inner.find('\\') else { return Cow::Borrowed(inner) };
    let mut out = String::with_capacity(inner.len());
    out.push_str(&inner[..first]);
    let mut rest = &inner[first..];
    while let Some(escape) = rest.strip_prefix('\\') {
        let (character, used) = unescape(escape);
        out.push(character);
        rest = &escape[used..];
        let plain = rest.find('\\').unwrap_or(rest.len());
        out.push_str(&rest[..plain]);
        rest = &rest[plain..];
    }
    Cow::Owned(out)
}

/// One escape, without its backslash: the character and how many bytes it took.
fn unescape(escape: &str) -> (char, usize) {
    let lone = char::REPLACEMENT_CHARACTER;
    match escape.chars().next() {
        Some('b') => ('\u{8}', 1),
        Some('f') => ('\u{c}', 1),
        Some('n') => ('\n', 1),
        Some('r') => ('\r', 1),
        Some('t') => ('\t', 1),
        Some('u') => {
            let Some(high) = hex4(&escape[1..]) else { return (lone, 1) };
            if let Some(character) = char::from_u32(high) {
                return (character, 5);
            }
            let low = escape[5..].strip_prefix("\\u").and_then(hex4);
            match low {
                Some(low @ 0xDC00..=0xDFFF) if high < 0xDC00 => {
                    let code = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                    (char::from_u32(code).unwrap_or(lone), 11)
                }
                _ => (lone, 5),
            }
        }
        Some(other) => (other, other.len_utf8()),
        None => (lone, 0),
    }
}

fn hex4(text: &str) -> Option<u32> {
    text.get(..4)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
}
