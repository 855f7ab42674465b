//! The chores' own tests; the first one is the house rules themselves.

use crate::{CHORES, root, suite::Tally, tidy};

#[test]
fn the_house_is_tidy() {
    tidy::run(&root()).unwrap();
}

/// Every rule must be able to fail.
#[test]
fn breaches_are_noticed() {
    let unfinished = concat!("// TO", "DO later\n");
    let machine = concat!("let path = \"/wo", "rk/x\";\n");
    let home = concat!("/ho", "me/somebody/x\n");
    let inside = concat!("/ho", "me/user/x\n");
    let count = |text: &str| {
        let mut found = vec![];
        tidy::lines("f", text, &mut found);
        found.len()
    };
    assert_eq!(count("fine\n"), 0);
    assert_eq!(count(inside), 0);
    for bad in ["space \n", "no end", unfinished, machine, home] {
        assert_eq!(count(bad), 1, "{bad:?}");
    }

    let mut found = vec![];
    tidy::source("f.rs", "fn main() {}\n", &mut found);
    tidy::source("f.rs", &"//!\n".repeat(801), &mut found);
    tidy::lock("source = \"registry+https://example.org/index\"\n", &mut found);
    let text = "`xtask/src/nowhere.rs`, `xtask/src/main.rs`, `NOWHERE.md` and `cargo xtask fly`";
    tidy::document(&root(), "D.md", text, &mut found);
    assert_eq!(found.len(), 6, "{found:?}");

    let mut found = vec![];
    tidy::walls("journal", "m", "[dependencies]\nsession.workspace = true\naxum = \"1\"\n", &mut found);
    tidy::walls("doors", "m", "[dev-dependencies]\njournal = { path = \"x\" }\n", &mut found);
    tidy::walls("outlast", "m", "[dev-dependencies]\ntestkit.workspace = true\n", &mut found);
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn summaries_are_added_up() {
    let mut tally = Tally::default();
    tally.read("     Summary [  10.2s] 12 tests run: 10 passed (1 slow), 2 failed, 3 skipped");
    assert_eq!(tally, Tally { passed: 10, failed: 2, skipped: 3 });
    tally.read("test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
    tally.read("something else: 9 passed");
    tally.read("    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
    assert_eq!(tally, Tally { passed: 15, failed: 2, skipped: 4 });
}

#[test]
fn chores_have_one_name_each() {
    let mut names: Vec<_> = CHORES.iter().map(|chore| chore.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CHORES.len());
}
