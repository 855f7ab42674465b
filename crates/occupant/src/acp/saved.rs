//! What must survive for another server to go on with a live agent where this one stopped: the calls that wait
//! for an answer, on both sides. It is written beside the events of the same step, so that it always fits
//! them. The handshake is not saved: one that was under way is started again, with a new process.

use super::{
    Acp, Begin, Phase,
    asks::Asks,
    config::{self, SavedOffers},
    notice::Notices,
    permission::Permission,
    turn::Turn,
};
use crate::Cx;
use protocol::{Actor, Level, Notice, Timestamp, TurnId};
use serde::{Deserialize, Serialize};

/// A live machine, as data. Times are kept as what is left of them: the next server has a clock of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    session: String,
    turn: Option<super::turn::SavedTurn>,
    permissions: Vec<super::permission::SavedPermission>,
    offers: SavedOffers,
    calls: u32,
    #[serde(default)]
    meter: super::watch::Meter,
    #[serde(default)]
    spent: Option<super::Spent>,
    #[serde(default)]
    transcript: Option<String>,
    #[serde(default)]
    instruct: bool,
    /// The agent's own requests that wait for an answer.
    #[serde(default)]
    asks: Vec<protocol::Raw>,
    /// Those of them that wait for the end of a terminal.
    #[serde(default)]
    waits: Vec<(protocol::Raw, String)>,
}

impl Saved {
    /// The turn that was running.
    pub fn turn(&self) -> Option<TurnId> {
        self.turn.as_ref().map(|turn| turn.id)
    }
}

/// Milliseconds.
pub(super) fn left(until: Timestamp, now: Timestamp) -> i64 {
    until.as_millis().saturating_sub(now.as_millis())
}

pub(super) fn until(left: i64, now: Timestamp) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_add(left))
}

impl Acp {
    /// None while the handshake is under way, and when it is over.
    pub fn save(&self, now: Timestamp) -> Option<Saved> {
        let Phase::Live { session } = &self.phase else { return None };
        Some(Saved {
            session: session.clone(),
            turn: self.turn.as_ref().map(|turn| turn.save(now)),
            permissions: self.permissions.iter().map(|open| open.save(now)).collect(),
            offers: self.config.save(),
            calls: self.calls,
            meter: self.meter,
            spent: Some(self.begin.terms.spent),
            transcript: self.transcript.clone(),
            instruct: self.instruct,
            asks: self.asks.save(),
            waits: self.asks.save_waits(),
        })
    }

    /// Goes on with a process that outlived its server. `consumed` is the offset in its output up to which
    /// everything is recorded; what comes after it is given to [`Self::output`].
    pub fn take_up(mut begin: Begin, saved: Saved, consumed: u64, cx: &mut Cx) -> Self {
        begin.terms.spent = saved.spent.unwrap_or(begin.terms.spent);
        Self::refuse_saved_asks(&saved.asks, cx);
        if saved.offers.changing {
            // Whether the agent took it is known to the agent only; its answer may still come.
            let text = "a change of settings was under way when the server stopped; it may have been taken";
            cx.record(Actor::System, Notice { level: Level::Warning, text: text.to_owned() });
        }
        Self {
            begin,
            phase: Phase::Live { session: saved.session },
            turn: saved.turn.map(|turn| Turn::take_up(turn, cx.now)),
            permissions: saved
                .permissions
                .into_iter()
                .map(|open| Permission::take_up(open, cx.now))
                .collect(),
            asks: Asks::wait_again(saved.waits, cx),
            config: config::Config::take_up(saved.offers),
            notices: Notices::default(),
            meter: saved.meter,
            transcript: saved.transcript,
            instruct: saved.instruct,
            calls: saved.calls,
            partial: Vec::new(),
            handled: consumed,
            line_at: consumed,
        }
    }
}
