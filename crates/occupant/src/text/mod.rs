//! What a command wrote, as it is shown: without the terminal's language and without secrets, and no more of it than
//! was asked for. Pure and streaming: any split of the same bytes shows the same, in memory that depends on what is
//! shown and not on what was written.
//!
//! The order is fixed: strip, spell, hide, budget. A secret that a colour code cuts in two is found, and a budget
//! never shows half of one.

mod budget;
mod hide;
mod pattern;
mod strip;
mod utf8;

pub use budget::{BadBudget, DEFAULT_CHARS, MOST_CHARS, Plan, Shown};
pub use hide::{Secrets, Shapes};
pub use pattern::{BadPattern, Follow, PATTERNS, Pattern};

use budget::Meter;
use hide::Hide;
use strip::Strip;
use utf8::Spell;

/// One stream of one command. It never outlives the command, so that nothing reaches across.
#[derive(Debug, Clone)]
pub struct Screen {
    strip: Strip,
    spell: Spell,
    hide: Hide,
    meter: Meter,
    bytes: Vec<u8>,
    spelt: String,
    hidden: String,
}

/// What a stream shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    pub shown: Shown,
    /// NUL or broken UTF-8 was there and is spelt.
    pub spelt: bool,
    /// How many secrets were taken out.
    pub hidden: u64,
}

impl Screen {
    pub fn new(plan: Plan, secrets: Secrets) -> Self {
        Self {
            strip: Strip::default(),
            spell: Spell::default(),
            hide: Hide::new(secrets),
            meter: Meter::new(plan),
            bytes: Vec::new(),
            spelt: String::new(),
            hidden: String::new(),
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.strip.push(bytes, &mut self.bytes);
        self.spelt.clear();
        self.spell.push(&self.bytes, &mut self.spelt);
        self.hidden.clear();
        self.hide.push(&self.spelt, &mut self.hidden);
        self.meter.push(&self.hidden);
    }

    /// What the last [`Self::push`] added, before the budget.
    pub fn fresh(&self) -> &str {
        &self.hidden
    }

    /// What would be shown if nothing more came.
    pub fn peek(&self) -> View {
        self.clone().finish()
    }

    pub fn finish(mut self) -> View {
        self.bytes.clear();
        self.strip.finish(&mut self.bytes);
        self.spelt.clear();
        self.spell.push(&self.bytes, &mut self.spelt);
        self.spell.finish(&mut self.spelt);
        self.hidden.clear();
        self.hide.push(&self.spelt, &mut self.hidden);
        self.hide.finish(&mut self.hidden);
        self.meter.push(&self.hidden);
        View { shown: self.meter.finish(), spelt: self.spell.spelt, hidden: self.hide.hidden }
    }
}
