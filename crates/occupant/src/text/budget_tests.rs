//! Budgets against a plain reference that holds everything.

use super::*;
use proptest::prelude::*;
use protocol::Grep;

fn budget(json: serde_json::Value) -> Budget {
    serde_json::from_value(json).unwrap()
}

fn show(budget: &Budget, text: &str, size: usize) -> Shown {
    let mut meter = Meter::new(Plan::new(budget).unwrap());
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.ceil_char_boundary(size.min(rest.len()));
        meter.push(&rest[..length]);
        rest = &rest[length..];
    }
    meter.finish()
}

/// The same, from the whole text; without a bound on characters.
fn reference(budget: &Budget, text: &str) -> (String, u64, u64) {
    let mut lines: Vec<&str> = text.split('\n').collect();
    if lines.last() == Some(&"") {
        lines.pop();
    }
    let total = lines.len() as u64;
    if let Some(grep) = &budget.grep {
        let hit = |line: &str| line.contains(&grep.pattern);
        let context = grep.context as usize;
        let near = |at: usize| {
            let (from, to) = (at.saturating_sub(context), (at + context).min(lines.len() - 1));
            lines[from..=to].iter().any(|line| hit(line))
        };
        lines = (0..lines.len()).filter(|at| near(*at)).map(|at| lines[at]).collect();
    }
    if let Some(keep) = &budget.keep {
        let n = |own: Option<u64>| own.or(keep.n).unwrap_or(100) as usize;
        let count = lines.len();
        lines = match keep.mode {
            Mode::All => lines,
            Mode::Head => lines[..n(keep.head).min(count)].to_vec(),
            Mode::Tail => lines[count - n(keep.tail).min(count)..].to_vec(),
            Mode::HeadTail if n(keep.head) + n(keep.tail) >= count => lines,
            Mode::HeadTail => [&lines[..n(keep.head)], &lines[count - n(keep.tail)..]].concat(),
        };
    }
    (lines.join("\n"), total, lines.len() as u64)
}

#[test]
fn exactly_one_final_newline_goes() {
    for (given, expected, lines) in [
        ("", "", 0),
        ("\n", "", 1),
        ("a", "a", 1),
        ("a\n", "a", 1),
        ("a\n\n", "a\n", 2),
        ("\n\na", "\n\na", 3),
    ] {
        let shown = show(&Budget::default(), given, 3);
        assert_eq!((&*shown.text, shown.lines_total, shown.truncated), (expected, lines, false), "{given:?}");
    }
}

#[test]
fn characters_are_the_last_bound() {
    let text = "0123456789\n".repeat(1000);
    let head = show(&budget(serde_json::json!({"max_chars": 25})), &text, 7);
    assert_eq!((&*head.text, head.truncated, head.lines_total), ("0123456789\n0123456789\n012", true, 1000));
    assert_eq!(head.lines_kept, 3);
    let tail = budget(serde_json::json!({"keep": {"mode": "tail", "n": 5}, "max_chars": 15}));
    assert_eq!(show(&tail, &text, 7).text, "6789\n0123456789");
    let both = budget(serde_json::json!({"keep": {"mode": "head_tail", "n": 2}, "max_chars": 20}));
    let both = show(&both, &text, 7);
    assert!(both.text.chars().count() <= 20 && both.text.starts_with("0123") && both.text.ends_with("789"));
    let line = "é".repeat(500_000);
    let shown = show(&Budget::default(), &line, 1000);
    assert_eq!((shown.text.chars().count(), shown.truncated, shown.lines_total), (DEFAULT_CHARS, true, 1));
}

#[test]
fn a_match_in_a_line_of_any_length_is_found() {
    let text = format!("{}needle\nother\n", "x".repeat(3_000_000));
    let grep = budget(serde_json::json!({"grep": {"pattern": "ne+dle$"}, "max_chars": 10}));
    let shown = show(&grep, &text, 65_536);
    assert_eq!((&*shown.text, shown.lines_total, shown.lines_kept), ("xxxxxxxxxx", 2, 1));
    assert!(Plan::new(&budget(serde_json::json!({"grep": {"pattern": "("}}))).is_err());
    let words = budget(serde_json::json!({"grep": {"pattern": r"\bid\b"}}));
    assert_eq!(show(&words, "idle\nan id\n", 3).text, "an id");
}

fn any_budget() -> impl Strategy<Value = Budget> {
    let grep = proptest::option::of((proptest::sample::select(vec!["a", "b", "ab", "é"]), 0_u64..3))
        .prop_map(|grep| grep.map(|(pattern, context)| Grep { pattern: pattern.to_owned(), context }));
    let mode = proptest::sample::select(vec![Mode::All, Mode::Head, Mode::Tail, Mode::HeadTail]);
    let keep = proptest::option::of((mode, proptest::option::of(0_u64..5), proptest::option::of(0_u64..4)))
        .prop_map(|keep| keep.map(|(mode, n, head)| Keep { mode, n, head, tail: head }));
    (grep, keep).prop_map(|(grep, keep)| Budget { grep, keep, max_chars: None })
}

proptest! {
    #[test]
    fn totals_and_matches_are_exact(budget in any_budget(), text in "[abé\n ]{0,60}", size in 1_usize..9) {
        let shown = show(&budget, &text, size);
        let (expected, total, kept) = reference(&budget, &text);
        prop_assert_eq!((shown.text, shown.lines_total, shown.lines_kept), (expected, total, kept));
        prop_assert_eq!(shown.truncated, kept < total);
    }

    #[test]
    fn never_more_characters_than_asked_for(
        budget in any_budget(), chars in 0_usize..20, text in "[abé\n ]{0,80}", size in 1_usize..9,
    ) {
        let budget = Budget { max_chars: Some(chars), ..budget };
        let shown = show(&budget, &text, size);
        prop_assert!(shown.text.chars().count() <= chars);
        prop_assert_eq!(shown, show(&budget, &text, text.len().max(1)));
    }
}
