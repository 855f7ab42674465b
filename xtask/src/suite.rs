//! `cargo xtask test`: everything that must be green, and one line that adds it up.

use crate::{machine, root, shell};
use anyhow::{Result, ensure};
use std::fs;

/// Tests that cannot run on this machine leave a file here, so that they count as skipped and not as passed.
const SKIPPED: &str = "target/tmp/skipped";

/// How many tests came to what.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

pub(crate) fn test(args: &[String]) -> Result<()> {
    crate::check(&[])?;
    machine::python();
    let skipped = root().join(SKIPPED);
    if skipped.exists() {
        fs::remove_dir_all(&skipped)?;
    }
    let nextest = shell::works("cargo", &["nextest", "--version"]);
    let mut command = shell::command("cargo");
    if nextest {
        command.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        command.args(["test", "--workspace", "--no-fail-fast"]);
    }
    command.args(args);
    let mut tally = Tally::default();
    let succeeded = shell::watch(&mut command, |line| tally.read(line))?;
    for (name, reason) in excuses()? {
        println!("SKIPPED: {name}: {reason}");
        tally.passed = tally.passed.saturating_sub(1);
        tally.skipped += 1;
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    ensure!(succeeded && tally.failed == 0, "the tests failed");
    ensure!(tally.passed > 0, "no test ran");
    Ok(())
}

fn excuses() -> Result<Vec<(String, String)>> {
    let folder = root().join(SKIPPED);
    if !folder.exists() {
        return Ok(vec![]);
    }
    let mut excuses = vec![];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        excuses.push((entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?));
    }
    excuses.sort();
    Ok(excuses)
}

impl Tally {
    /// Adds what a summary line of nextest or of cargo's own harness says; other lines say nothing.
    pub(crate) fn read(&mut self, line: &str) {
        // nextest shows the output of a failed test indented, with a "test result" of its own.
        if !line.trim_start().starts_with("Summary [") && !line.starts_with("test result: ") {
            return;
        }
        for part in line.split([':', ',', ';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) =
                (words.next().and_then(|word| word.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match what {
                "passed" => self.passed += count,
                "failed" | "timed" => self.failed += count,
                "skipped" | "ignored" => self.skipped += count,
                _ => {}
            }
        }
    }
}
