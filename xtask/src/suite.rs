//! `cargo xtask test`: everything that must be green, and one line that adds it up.

use crate::{machine, root, shell};
use anyhow::{Result, ensure};
use std::{fs, path::Path};

/// Tests that cannot run on this machine leave a file here, so that they count as skipped and not as passed.
const SKIPPED: &str = "target/tmp/skipped";

/// Where each real agent leaves what it did.
const AGENTS_TABLE: &str = "target/agents/table";

/// How many tests came to what.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

pub(crate) fn test(args: &[String]) -> Result<()> {
    if let Some((_, rest)) = args.split_first().filter(|(first, _)| *first == "--agents") {
        return agents(rest);
    }
    if let Some((_, rest)) = args.split_first().filter(|(first, _)| *first == "--mcp") {
        return from_npm("mcp", rest);
    }
    crate::check(&[])?;
    machine::python();
    machine::engines();
    forget_excuses()?;
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
    tally.excuse()?;
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    ensure!(succeeded && tally.failed == 0, "the tests failed");
    ensure!(tally.passed > 0, "no test ran");
    Ok(())
}

/// Real agents from npm against the scripted model. Slow, and needs the network: only when asked for. One at a
/// time, because each brings a runtime of its own.
fn agents(args: &[String]) -> Result<()> {
    let table = root().join(AGENTS_TABLE);
    if table.exists() {
        fs::remove_dir_all(&table)?;
    }
    let ran = from_npm("agents", args);
    print!("{}", agents_table(&table)?);
    ran
}

/// A test program that needs npm and the network.
fn from_npm(name: &str, args: &[String]) -> Result<()> {
    ensure!(shell::works("npm", &["--version"]), "npm is not installed, and the {name} tests need it");
    forget_excuses()?;
    let mut command = shell::command("cargo");
    if shell::works("cargo", &["nextest", "--version"]) {
        command.args(["nextest", "run", "--workspace", "--test", name, "--no-fail-fast", "-j", "1"]);
    } else {
        command.args(["test", "--workspace", "--test", name, "--no-fail-fast", "--", "--test-threads=1"]);
    }
    command.args(args);
    let mut tally = Tally::default();
    let succeeded = shell::watch(&mut command, |line| tally.read(line))?;
    tally.excuse()?;
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    ensure!(succeeded && tally.failed == 0, "a test of {name} failed");
    Ok(())
}

/// The rows that the agents left, as Markdown: a line for each step, a column for each agent.
fn agents_table(folder: &Path) -> Result<String> {
    let mut agents: Vec<(String, Vec<(String, String)>)> = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "tsv") {
            continue;
        }
        let rows = fs::read_to_string(&path)?;
        let rows = rows.lines().filter_map(|line| line.split_once('\t'));
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        agents.push((name, rows.map(|(step, came)| (step.to_owned(), came.to_owned())).collect()));
    }
    agents.sort();
    let names: Vec<_> = agents.iter().map(|(name, _)| name.as_str()).collect();
    let mut table = format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let steps = agents.iter().max_by_key(|(_, rows)| rows.len()).map(|(_, rows)| rows.clone());
    for (step, _) in steps.unwrap_or_default() {
        let came = agents.iter().map(|(_, rows)| {
            let found = rows.iter().find(|(known, _)| *known == step);
            found.map_or("-", |(_, came)| came.as_str()).replace('|', "\\|")
        });
        table.push_str(&format!("| {step} | {} |\n", came.collect::<Vec<_>>().join(" | ")));
    }
    Ok(table)
}

fn forget_excuses() -> Result<()> {
    let skipped = root().join(SKIPPED);
    if skipped.exists() {
        fs::remove_dir_all(&skipped)?;
    }
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
    /// Tests that said why they did not run have not passed.
    fn excuse(&mut self) -> Result<()> {
        for (name, reason) in excuses()? {
            println!("SKIPPED: {name}: {reason}");
            self.passed = self.passed.saturating_sub(1);
            self.skipped += 1;
        }
        Ok(())
    }

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
