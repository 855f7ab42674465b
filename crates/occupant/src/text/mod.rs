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
    /// Whether what the last push added was taken.
    taken: bool,
}

/// What a stream shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    pub shown: Shown,
    /// NUL or broken UTF-8 was there and is spelt.
    pub spelt: bool,
    /// How many secrets were taken out.
    pub hidden: u64,
    /// What came at the end and was not taken before, without regard to the budget.
    pub last: String,
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
            taken: true,
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
        self.taken = false;
    }

    /// What the last [`Self::push`] added, before the budget; once. Taken after each push, and with what the end has
    /// [`last`](View::last), it is the whole text.
    pub fn take_fresh(&mut self) -> &str {
        if std::mem::replace(&mut self.taken, true) { "" } else { &self.hidden }
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
        let mut last = if self.taken { String::new() } else { self.hidden.clone() };
        self.hidden.clear();
        self.hide.push(&self.spelt, &mut self.hidden);
        self.hide.finish(&mut self.hidden);
        self.meter.push(&self.hidden);
        last.push_str(&self.hidden);
        View { shown: self.meter.finish(), spelt: self.spell.spelt, hidden: self.hide.hidden, last }
    }
}
