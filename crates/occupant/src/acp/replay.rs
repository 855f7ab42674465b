//! What `session/load` tells again. The journal has it, so that none of it is recorded or streamed; it is
//! listened to for one thing: the last prompt must be in it, because an agent may answer success and have
//! forgotten everything.

use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// Looked for of a prompt. Agents put words of their own around it, and cut what is long.
const SOUGHT_BYTES: usize = 256;
/// Kept of one message while it comes in pieces.
const HEARD_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Replay {
    /// The beginning of the last prompt, without its spaces; none when there is nothing to look for.
    sought: Option<String>,
    /// The user's message that comes in pieces now, the same way.
    heard: String,
}

impl Replay {
    pub(super) fn new(last_prompt: Option<&str>) -> Self {
        let sought = last_prompt.map(bare).filter(|text| !text.is_empty()).map(|mut text| {
            text.truncate(text.floor_char_boundary(SOUGHT_BYTES));
            text
        });
        Self { sought, heard: String::new() }
    }

    /// Whether the last prompt has come, or none is looked for.
    pub(super) fn is_found(&self) -> bool {
        self.sought.is_none()
    }

    pub(super) fn hear(&mut self, update: &str) {
        let Some(sought) = &self.sought else { return };
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Glance<'a> {
            #[serde(borrow)]
            session_update: Cow<'a, str>,
            #[serde(default)]
            content: Value,
        }
        let Ok(glance) = serde_json::from_str::<Glance<'_>>(update) else { return };
        if glance.session_update != "user_message_chunk" {
            return self.heard.clear();
        }
        if self.heard.len() < HEARD_BYTES {
            self.heard.push_str(&bare(glance.content["text"].as_str().unwrap_or_default()));
        }
        if self.heard.contains(sought.as_str()) {
            self.sought = None;
            self.heard = String::new();
        }
    }
}

/// Spaces are the first thing that is lost on the way.
fn bare(text: &str) -> String {
    text.chars().filter(|sign| !sign.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chunk(kind: &str, text: &str) -> String {
        json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}).to_string()
    }

    #[test]
    fn the_last_prompt_is_found_whole_in_pieces_and_among_other_words() {
        let user = |text: &str| chunk("user_message_chunk", text);
        let agent = |text: &str| chunk("agent_message_chunk", text);
        for (updates, found) in [
            (vec![user("remember the fish")], true),
            (vec![user("remember "), user("the"), user(" fish")], true),
            (vec![user("<context>x</context>\nremember\nthe fish\n")], true),
            (vec![agent("hello"), user("other"), agent("ok"), user("remember the fish"), agent("ok")], true),
            (vec![], false),
            (vec![agent("remember the fish")], false),
            (vec![user("remember "), agent("what?"), user("the fish")], false),
            (vec!["{}".to_owned(), "nonsense".to_owned()], false),
        ] {
            let mut replay = Replay::new(Some("remember the fish"));
            for update in &updates {
                replay.hear(update);
            }
            assert_eq!(replay.is_found(), found, "{updates:?}");
        }
        assert!(Replay::new(None).is_found());
        assert!(Replay::new(Some("  ")).is_found());
        let long = "word ".repeat(10_000);
        let mut replay = Replay::new(Some(&long));
        replay.hear(&user(&long[..2000]));
        assert!(replay.is_found(), "the beginning is enough");
    }
}
