//! What the world was told about one session, and what its journal may therefore hold. Pure.
//!
//! Followers say what they saw, writers what was acknowledged or refused, and the checker reads the journal
//! after each crash and hands every event to [`Ledger::confirm`]. Each rule broken is a sentence.

use serde::Deserialize;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

/// What a caller knows of a prompt it sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    /// The connection broke before an answer: it may or may not be there.
    Unknown,
    /// It must be there, once.
    Acknowledged,
    /// It must not be there.
    Refused,
}

#[derive(Debug, Clone)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) on_busy: &'static str,
    pub(super) answered: Answered,
}

#[derive(Debug, Default)]
struct Turn {
    started: u32,
    ended: u32,
}

/// The parts of an event that the rules are about.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    seq: u64,
    #[serde(rename = "type")]
    kind: String,
    turn: Option<String>,
    client_id: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Seen by the follower and not yet compared with the journal.
    seen: BTreeMap<u64, String>,
    last_seen: u64,
    /// One digest for each event read from the journal; the last one's seq is the length.
    digests: Vec<u64>,
    turns: HashMap<String, Turn>,
    accepted: HashMap<String, u32>,
    prompts: BTreeMap<String, Prompt>,
}

impl Ledger {
    pub(super) fn last_seen(&self) -> u64 {
        self.last_seen
    }

    /// How far the journal has been read.
    pub(super) fn confirmed(&self) -> u64 {
        self.digests.len() as u64
    }

    pub(super) fn prompts(&self) -> &BTreeMap<String, Prompt> {
        &self.prompts
    }

    pub(super) fn sends(&mut self, id: String, prompt: Prompt) {
        self.prompts.entry(id).or_insert(prompt);
    }

    /// A prompt is sent again: one that was refused before may be accepted now.
    pub(super) fn sends_again(&mut self, id: &str) {
        if let Some(prompt) = self.prompts.get_mut(id)
            && prompt.answered == Answered::Refused
        {
            prompt.answered = Answered::Unknown;
        }
    }

    pub(super) fn answered(&mut self, id: &str, answer: Answered) -> Result<(), String> {
        let Some(prompt) = self.prompts.get_mut(id) else { return Err(format!("{id} was never sent")) };
        match (prompt.answered, answer) {
            (Answered::Acknowledged, Answered::Refused) => {
                return Err(format!("{id} was acknowledged, and refused when it was sent again"));
            }
            (_, Answered::Acknowledged) => prompt.answered = Answered::Acknowledged,
            (Answered::Unknown, _) => prompt.answered = answer,
            (Answered::Acknowledged | Answered::Refused, _) => {}
        }
        Ok(())
    }

    /// A follower got this event.
    pub(super) fn saw(&mut self, seq: u64, text: String) -> Result<(), String> {
        let expected = self.last_seen + 1;
        if seq != expected {
            return Err(format!("a follower at {} got {seq} next", self.last_seen));
        }
        self.last_seen = seq;
        match self.digests.get(index(seq)) {
            Some(known) if *known == digest(&text) => Ok(()),
            Some(_) => Err(format!("a follower got another event {seq} than the journal holds: {text}")),
            None => {
                self.seen.insert(seq, text);
                Ok(())
            }
        }
    }

    /// The journal holds this event.
    pub(super) fn confirm(&mut self, text: &str) -> Result<(), String> {
        let head: Head =
            serde_json::from_str(text).map_err(|error| format!("unreadable event {text}: {error}"))?;
        let expected = self.confirmed() + 1;
        if head.seq != expected {
            return Err(format!("the journal has {} where {expected} belongs", head.seq));
        }
        if let Some(seen) = self.seen.remove(&head.seq)
            && seen != text
        {
            return Err(format!(
                "event {} was seen as\n  {seen}\nand is in the journal as\n  {text}",
                head.seq
            ));
        }
        self.digests.push(digest(text));
        self.count(&head)
    }

    fn count(&mut self, head: &Head) -> Result<(), String> {
        let Some(turn) = &head.turn else { return Ok(()) };
        match head.kind.as_str() {
            "prompt_accepted" => {
                if self.turns.insert(turn.clone(), Turn::default()).is_some() {
                    return Err(format!("turn {turn} was accepted twice, at {}", head.seq));
                }
                if let Some(id) = &head.client_id {
                    let times = self.accepted.entry(id.clone()).or_default();
                    *times += 1;
                    if *times > 1 {
                        return Err(format!("prompt {id} was accepted {times} times, at {}", head.seq));
                    }
                }
            }
            "turn_started" => {
                let known = self.turn(turn, head)?;
                known.started += 1;
                if known.started > 1 || known.ended > 0 {
                    return Err(format!("turn {turn} was started again at {}", head.seq));
                }
            }
            "turn_ended" => {
                let known = self.turn(turn, head)?;
                known.ended += 1;
                if known.ended > 1 {
                    return Err(format!("turn {turn} ended a second time at {}", head.seq));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn turn(&mut self, turn: &str, head: &Head) -> Result<&mut Turn, String> {
        self.turns
            .get_mut(turn)
            .ok_or_else(|| format!("{} {} is of turn {turn}, which was never accepted", head.kind, head.seq))
    }

    /// The whole journal was read up to `confirmed`; `must` and `owed` were true before the reading began.
    pub(super) fn complete(&self, must: u64, owed: &[String]) -> Result<(), String> {
        if self.confirmed() < must {
            return Err(format!(
                "a follower saw event {must}, and the journal ends at {}: a phantom",
                self.confirmed()
            ));
        }
        for id in owed {
            if self.accepted.get(id) != Some(&1) {
                return Err(format!("prompt {id} was acknowledged and is not in the journal"));
            }
        }
        for (id, prompt) in &self.prompts {
            if prompt.answered == Answered::Refused && self.accepted.contains_key(id) {
                return Err(format!("prompt {id} was refused and is in the journal"));
            }
        }
        Ok(())
    }

    /// The prompts that must be in the journal by now.
    pub(super) fn owed(&self) -> Vec<String> {
        let acknowledged = |(id, prompt): (&String, &Prompt)| {
            (prompt.answered == Answered::Acknowledged).then(|| id.clone())
        };
        self.prompts.iter().filter_map(acknowledged).collect()
    }

    /// Turns without an outcome.
    pub(super) fn open_turns(&self) -> usize {
        self.turns.values().filter(|turn| turn.ended == 0).count()
    }

    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Reads the journal a second time: every event must be the one that was read before.
    pub(super) fn same(&self, seq: u64, text: &str) -> Result<(), String> {
        match self.digests.get(index(seq)) {
            Some(known) if *known == digest(text) => Ok(()),
            Some(_) => Err(format!("event {seq} has changed: {text}")),
            None => Err(format!("event {seq} is new on a quiet server: {text}")),
        }
    }
}

fn index(seq: u64) -> usize {
    usize::try_from(seq.wrapping_sub(1)).unwrap_or(usize::MAX)
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64, kind: &str, rest: &str) -> String {
        format!(r#"{{"session":"s","seq":{seq},"type":"{kind}","turn":"t"{rest}}}"#)
    }

    /// Every rule must be able to fail.
    #[test]
    fn broken_rules_are_noticed() {
        let accepted = event(1, "prompt_accepted", r#","clientId":"c""#);
        let ended = event(2, "turn_ended", "");
        let mut ledger = Ledger::default();
        ledger.confirm(&accepted).unwrap();
        ledger.confirm(&ended).unwrap();
        assert_eq!(ledger.open_turns(), 0);

        assert!(ledger.confirm(&event(4, "notice", "")).unwrap_err().contains("where 3 belongs"));
        assert!(ledger.confirm(&event(3, "turn_ended", "")).unwrap_err().contains("second time"));
        assert!(ledger.confirm(&event(4, "turn_started", "")).unwrap_err().contains("started again"));
        assert!(ledger.complete(9, &[]).unwrap_err().contains("phantom"));
        assert!(ledger.complete(0, &["d".into()]).unwrap_err().contains("not in the journal"));
        assert!(ledger.same(1, "other").unwrap_err().contains("changed"));
        assert!(ledger.saw(2, String::new()).unwrap_err().contains("got 2 next"));
        assert!(ledger.saw(1, "other".into()).unwrap_err().contains("another event"));

        let mut ledger = Ledger::default();
        ledger.saw(1, "what the follower saw".into()).unwrap();
        assert!(ledger.confirm(&accepted).unwrap_err().contains("was seen as"));
    }

    #[test]
    fn a_refused_prompt_must_not_be_there_and_an_acknowledged_one_must() {
        let prompt = Prompt { text: String::new(), on_busy: "queue", answered: Answered::Unknown };
        let mut ledger = Ledger::default();
        ledger.sends("c".into(), prompt);
        ledger.answered("c", Answered::Refused).unwrap();
        ledger.confirm(&event(1, "prompt_accepted", r#","clientId":"c""#)).unwrap();
        assert!(ledger.complete(0, &[]).unwrap_err().contains("was refused"));
        ledger.sends_again("c");
        ledger.complete(0, &[]).unwrap();
        ledger.answered("c", Answered::Acknowledged).unwrap();
        assert!(ledger.answered("c", Answered::Refused).is_err());
        assert_eq!(ledger.owed(), ["c"]);
        ledger.complete(1, &ledger.owed()).unwrap();
        assert!(ledger.confirm(&event(2, "prompt_accepted", r#","clientId":"c""#)).is_err());
    }
}
