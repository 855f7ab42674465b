//! Text in lines of a width, counted as a terminal counts it.

use unicode_width::UnicodeWidthChar as _;

/// Where a line is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    /// Between words, where there is room for it.
    Words,
    /// Anywhere: output keeps its columns.
    Anywhere,
}

/// The lines of a text, none wider than `width`. An empty text is one empty line.
pub(super) fn wrap(text: &str, width: usize, breaks: Break) -> Vec<&str> {
    wrap_some(text, width, breaks, usize::MAX).0
}

/// The first lines of a text, and how many of its own lines are not among them, or not whole.
pub(super) fn wrap_some(text: &str, width: usize, breaks: Break, most: usize) -> (Vec<&str>, usize) {
    // No character is wider than two columns, so that every line takes at least one.
    let width = width.max(2);
    let mut lines = Vec::new();
    let all = || text.split('\n');
    for (number, line) in all().enumerate() {
        let mut rest = line;
        loop {
            if lines.len() >= most {
                return (lines, all().count() - number);
            }
            let Some(cut) = too_wide(rest, width) else { break };
            let blank = rest[..cut].rfind(' ').filter(|at| breaks == Break::Words && *at > 0);
            let (end, next) = blank.map_or((cut, cut), |at| (at, at + 1));
            lines.push(&rest[..end]);
            rest = &rest[next..];
        }
        lines.push(rest);
    }
    (lines, 0)
}

/// The byte at which a line becomes wider than `width`.
fn too_wide(line: &str, width: usize) -> Option<usize> {
    let mut taken = 0;
    for (at, character) in line.char_indices() {
        taken += character.width().unwrap_or(0);
        if taken > width {
            return Some(at);
        }
    }
    None
}
