//! What of a stream is shown: lines that match, then the first or the last of them, then so many characters.
//!
//! Totals and matches are exact at any size, and no more is held than may be shown in the end. A line may be of any
//! length: the pattern is followed byte by byte, and what cannot be shown of a line is not kept.

use protocol::{Budget, Keep, KeepMode as Mode};
use regex_automata::{
    Anchored,
    hybrid::dfa::{Cache, DFA},
    util::{start, syntax},
};
use std::collections::VecDeque;

/// Characters of one stream, when nothing else is asked for.
pub const DEFAULT_CHARS: usize = 100_000;
/// The most that can be asked for.
pub const MOST_CHARS: usize = 4_000_000;
/// Lines, where a mode is named without a number.
const DEFAULT_LINES: u64 = 100;
/// The machine for a pattern may grow to this.
const PATTERN_BYTES: usize = 2 * 1024 * 1024;
/// Lines before a match that can be asked for.
const MOST_CONTEXT: u64 = 1000;

/// Why a budget cannot be used; for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBudget(pub String);

/// A budget whose pattern is ready. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plan {
    grep: Option<(DFA, u64)>,
    head: u64,
    tail: u64,
    chars: usize,
    pub mode: Mode,
}

impl Plan {
    pub fn new(budget: &Budget) -> Result<Self, BadBudget> {
        let grep = budget.grep.as_ref().map(|grep| {
            if grep.context > MOST_CONTEXT {
                return Err(BadBudget(format!("grep.context is at most {MOST_CONTEXT}")));
            }
            Ok((pattern(&grep.pattern)?, grep.context))
        });
        let keep = budget.keep.clone().unwrap_or(Keep { mode: Mode::All, n: None, head: None, tail: None });
        let n = |own: Option<u64>| own.or(keep.n).unwrap_or(DEFAULT_LINES);
        let (head, tail) = match keep.mode {
            Mode::All => (u64::MAX, 0),
            Mode::Head => (n(keep.head), 0),
            Mode::Tail => (0, n(keep.tail)),
            Mode::HeadTail => (n(keep.head), n(keep.tail)),
        };
        let chars = budget.max_chars.unwrap_or(DEFAULT_CHARS);
        if chars > MOST_CHARS {
            return Err(BadBudget(format!("max_chars is at most {MOST_CHARS}")));
        }
        Ok(Self { grep: grep.transpose()?, head, tail, chars, mode: keep.mode })
    }
}

fn pattern(text: &str) -> Result<DFA, BadBudget> {
    let config = DFA::config().cache_capacity(PATTERN_BYTES).skip_cache_capacity_check(true);
    let build = |unicode: bool| {
        DFA::builder()
            .configure(config.clone())
            .syntax(syntax::Config::new().unicode(unicode).utf8(false))
            .build(text)
            .map_err(Box::new)
    };
    // Some of what Unicode makes of a word's border cannot be followed byte by byte; ASCII's can.
    build(true)
        .or_else(|_| build(false))
        .map_err(|error| BadBudget(format!("grep.pattern is no pattern that can be used: {error}")))
}

impl Default for Plan {
    fn default() -> Self {
        Self { grep: None, head: u64::MAX, tail: 0, chars: DEFAULT_CHARS, mode: Mode::All }
    }
}

/// What was shown of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shown {
    pub text: String,
    pub lines_total: u64,
    pub lines_kept: u64,
    pub truncated: bool,
}

/// One stream on its way through a plan.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    plan: Plan,
    search: Option<Search>,
    /// A line was begun and its end has not come.
    open: bool,
    lines: u64,
    /// Lines that were chosen, with their text as far as it can be shown.
    head: Front,
    tail: Back,
    chosen: u64,
    /// Lines before a match, while none has come; and lines after one that are still due.
    before: Back,
    due: u64,
    /// The line at hand, when it is not known yet whether it is chosen.
    line: Back,
    line_front: Front,
}

#[derive(Debug, Clone)]
struct Search {
    cache: Cache,
    state: regex_automata::hybrid::LazyStateID,
    found: bool,
}

/// The first characters of a text.
#[derive(Debug, Clone, Default)]
struct Front {
    text: String,
    chars: usize,
    lost: bool,
}

/// The last characters of a text, by lines.
#[derive(Debug, Clone, Default)]
struct Back {
    lines: VecDeque<Line>,
    chars: usize,
}

#[derive(Debug, Clone, Default)]
struct Line {
    text: String,
    chars: usize,
    /// Its beginning is gone.
    cut: bool,
}

impl Front {
    fn push(&mut self, text: &str, most: usize) {
        let room = most.saturating_sub(self.chars);
        let (part, count) = first_chars(text, room);
        self.text.push_str(part);
        self.chars += count;
        self.lost |= part.len() < text.len();
    }
}

impl Back {
    /// Adds to the last line.
    fn push(&mut self, text: &str, most: usize) {
        if self.lines.is_empty() {
            self.lines.push_back(Line::default());
        }
        let (skip, count) = last_chars(text, most);
        let Some(line) = self.lines.back_mut() else { return };
        if skip > 0 {
            self.chars -= line.chars;
            *line = Line { cut: true, ..Line::default() };
        }
        line.text.push_str(&text[skip..]);
        line.chars += count;
        self.chars += count;
        self.trim(most);
    }

    fn begin(&mut self, lines: u64) {
        self.lines.push_back(Line::default());
        while self.lines.len() as u64 > lines.max(1) {
            self.drop_line();
        }
    }

    fn drop_line(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.chars -= line.chars;
        }
    }

    /// Gives up what cannot be shown, in pieces so that it is not moved byte by byte.
    fn trim(&mut self, most: usize) {
        while self.lines.len() > 1 && self.lines.front().is_some_and(|line| self.chars - line.chars >= most) {
            self.drop_line();
        }
        if let Some(line) = self.lines.front_mut()
            && self.chars > most.saturating_mul(2).max(most + 4096)
        {
            let over = (self.chars - most).min(line.chars);
            let at = line.text.char_indices().nth(over).map_or(line.text.len(), |(at, _)| at);
            line.text.drain(..at);
            line.chars -= over;
            line.cut = true;
            self.chars -= over;
        }
    }
}

fn first_chars(text: &str, count: usize) -> (&str, usize) {
    if text.len() <= count {
        return (text, if text.is_ascii() { text.len() } else { text.chars().count() });
    }
    match text.char_indices().nth(count) {
        Some((at, _)) => (&text[..at], count),
        None => (text, text.chars().count()),
    }
}

/// Where the last `count` characters begin, and how many there are.
fn last_chars(text: &str, count: usize) -> (usize, usize) {
    let total = if text.is_ascii() { text.len() } else { text.chars().count() };
    if total <= count {
        return (0, total);
    }
    let at = text.char_indices().nth(total - count).map_or(text.len(), |(at, _)| at);
    (at, count)
}

impl Meter {
    pub(crate) fn new(plan: Plan) -> Self {
        let search = plan.grep.as_ref().map(|(dfa, _)| {
            let mut cache = dfa.create_cache();
            let state = start_of(dfa, &mut cache);
            Search { cache, state, found: false }
        });
        Self {
            plan,
            search,
            open: false,
            lines: 0,
            head: Front::default(),
            tail: Back::default(),
            chosen: 0,
            before: Back::default(),
            due: 0,
            line: Back::default(),
            line_front: Front::default(),
        }
    }

    pub(crate) fn push(&mut self, text: &str) {
        let mut rest = text;
        while !rest.is_empty() {
            if self.is_full() {
                return self.count(rest);
            }
            let end = memchr::memchr(b'\n', rest.as_bytes());
            let part = &rest[..end.unwrap_or(rest.len())];
            if !self.open {
                self.open = true;
                self.lines += 1;
                self.begin();
            }
            self.part(part);
            match end {
                None => return,
                Some(end) => {
                    self.end_line();
                    rest = &rest[end + 1..];
                }
            }
        }
    }

    /// Whether nothing of what comes can be shown, so that its lines only count.
    fn is_full(&self) -> bool {
        let shown = self.head.lost && self.head.chars >= self.plan.chars || self.chosen > self.plan.head;
        self.search.is_none() && self.plan.tail == 0 && shown
    }

    fn count(&mut self, text: &str) {
        let ends = memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64;
        let open = !text.ends_with('\n');
        // The first may have been begun before, and the last may not be at its end.
        let begun = ends + u64::from(open) - u64::from(self.open);
        self.lines += begun;
        self.chosen += begun;
        self.open = open;
    }

    fn begin(&mut self) {
        if self.search.is_none() {
            self.choose();
        } else {
            (self.line, self.line_front) = (Back::default(), Front::default());
            self.line.begin(1);
        }
    }

    /// Opens the next chosen line.
    fn choose(&mut self) {
        self.chosen += 1;
        if self.chosen <= self.plan.head {
            if self.chosen > 1 {
                self.head.push("\n", self.plan.chars);
            }
        } else if self.plan.tail > 0 {
            self.tail.begin(self.plan.tail);
        }
    }

    fn part(&mut self, text: &str) {
        let Some(search) = &mut self.search else { return self.show(text) };
        let Some((dfa, _)) = &self.plan.grep else { return };
        search.follow(dfa, text.as_bytes());
        // Until the line's end it may be wanted as the beginning or as the end of what is shown.
        self.line_front.push(text, self.plan.chars);
        if self.plan.tail > 0 {
            self.line.push(text, self.plan.chars);
        }
    }

    fn show(&mut self, text: &str) {
        if self.chosen <= self.plan.head {
            self.head.push(text, self.plan.chars);
        } else if self.plan.tail > 0 {
            self.tail.push(text, self.plan.chars);
        }
    }

    fn end_line(&mut self) {
        self.open = false;
        let Some(search) = &mut self.search else { return };
        let Some((dfa, context)) = self.plan.grep.as_ref().map(|(dfa, context)| (dfa, *context)) else {
            return;
        };
        let found = search.end(dfa);
        let front = std::mem::take(&mut self.line_front);
        let back = std::mem::take(&mut self.line);
        if found {
            for line in std::mem::take(&mut self.before).lines {
                self.choose();
                self.show(&line.text);
            }
            self.choose_line(&front, &back);
            self.due = context;
        } else if self.due > 0 {
            self.due -= 1;
            self.choose_line(&front, &back);
        } else if context > 0 {
            self.before.begin(context);
            self.before.push(&front.text, self.plan.chars);
        }
    }

    fn choose_line(&mut self, front: &Front, back: &Back) {
        self.choose();
        if self.chosen <= self.plan.head {
            self.head.push(&front.text, self.plan.chars);
            self.head.lost |= front.lost;
        } else if let Some(line) = back.lines.back()
            && self.plan.tail > 0
        {
            self.tail.push(&line.text, self.plan.chars);
            if let Some(last) = self.tail.lines.back_mut() {
                last.cut |= line.cut;
            }
        }
    }

    /// What there is to show by now.
    pub(crate) fn finish(mut self) -> Shown {
        if self.open {
            self.end_line();
        }
        let chars = self.plan.chars;
        let head_lines = self.chosen.min(self.plan.head);
        let tail_lines = (self.chosen - head_lines).min(self.plan.tail);
        let whole =
            self.tail.lines.len() as u64 == tail_lines && !self.tail.lines.iter().any(|line| line.cut);
        let tail: Vec<&str> = self.tail.lines.iter().map(|line| line.text.as_str()).collect();
        let tail = tail.join("\n");
        let gap = if head_lines > 0 && tail_lines > 0 { "\n" } else { "" };
        let tail_chars = tail.chars().count();
        let over = self.head.lost || !whole || self.head.chars + gap.len() + tail_chars > chars;
        let text = if over {
            join(&self.head.text, gap, &tail, chars)
        } else {
            [&self.head.text, gap, &tail].concat()
        };
        let kept = head_lines + tail_lines;
        let seen = memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64 + 1;
        Shown {
            lines_total: self.lines,
            lines_kept: if over { seen.min(kept) } else { kept },
            truncated: over || kept < self.lines,
            text,
        }
    }
}

/// So many characters of both: half for each, and what one does not need for the other.
fn join(head: &str, gap: &str, tail: &str, chars: usize) -> String {
    let head_chars = head.chars().count();
    let for_tail = (chars - chars / 2).max(chars.saturating_sub(head_chars + gap.len()));
    let for_tail = if head.is_empty() && gap.is_empty() { chars } else { for_tail };
    let (at, kept) = last_chars(tail, for_tail);
    let (front, count) = first_chars(head, chars.saturating_sub(kept + gap.len()));
    let gap = if count > 0 && kept > 0 { gap } else { "" };
    [front, gap, &tail[at..]].concat()
}

fn start_of(dfa: &DFA, cache: &mut Cache) -> regex_automata::hybrid::LazyStateID {
    dfa.start_state(cache, &start::Config::new().anchored(Anchored::No))
        .unwrap_or_else(|_| regex_automata::hybrid::LazyStateID::default())
}

impl Search {
    fn follow(&mut self, dfa: &DFA, bytes: &[u8]) {
        if self.found {
            return;
        }
        let mut state = self.state;
        for byte in bytes {
            // A machine that would grow too large starts over from where it is, so this does not fail.
            let Ok(next) = dfa.next_state(&mut self.cache, state, *byte) else { break };
            state = next;
            if state.is_tagged() {
                if state.is_match() {
                    self.found = true;
                    break;
                }
                if state.is_dead() || state.is_quit() {
                    break;
                }
            }
        }
        self.state = state;
    }

    /// The line ended: whether it had a match. The next one starts over.
    fn end(&mut self, dfa: &DFA) -> bool {
        let at_end = !(self.found || self.state.is_dead() || self.state.is_quit())
            && dfa.next_eoi_state(&mut self.cache, self.state).is_ok_and(|state| state.is_match());
        let found = self.found || at_end;
        self.found = false;
        self.state = start_of(dfa, &mut self.cache);
        found
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
