//! The rules of the house that no compiler knows. A chore, and a test.
//!
//! Reads only what git tracks. Every breach is one line with the file and what to do; all are shown at once.

use crate::{CHORES, shell};
use anyhow::{Context as _, Result, ensure};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const FILE_LINES: usize = 800;
/// Split so that this file keeps its own rule.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Folders of somebody's machine.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
/// The only home that may be named is the one inside a sandbox.
const HOME: &str = concat!("/ho", "me/");
const HOME_INSIDE: &str = "user";
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
const ROOT_DOCUMENTS: &[&str] =
    &["README.md", "ARCHITECTURE.md", "SPECIFICATION.md", "STYLE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Which rooms a room may use. Anything else is a wall broken.
const EDGES: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("journal", &["protocol"]),
    ("keeper", &[]),
    ("place", &["protocol", "keeper"]),
    ("occupant", &["protocol", "place"]),
    ("session", &["protocol", "journal", "place", "occupant"]),
    ("doors", &["protocol", "session"]),
    ("client", &["protocol"]),
    ("outlast", &["protocol", "journal", "session", "doors", "client"]),
    ("testkit", &["protocol", "journal", "client"]),
];
/// Rooms that a room may use in its tests only.
const TEST_EDGES: &[(&str, &[&str])] =
    &[("outlast", &["testkit"]), ("place", &["testkit"]), ("occupant", &["testkit"])];
/// Libraries that a room must not know.
const STRANGERS: &[(&str, &[&str])] = &[
    ("protocol", &["tokio", "rusqlite", "axum", "hyper", "reqwest"]),
    ("journal", &["axum", "hyper", "reqwest", "utoipa"]),
    ("keeper", &["tokio", "serde", "clap", "tracing", "rusqlite", "axum", "hyper", "reqwest"]),
    ("place", &["rusqlite", "axum", "reqwest"]),
    ("occupant", &["rusqlite", "axum", "hyper", "reqwest"]),
    ("session", &["rusqlite", "axum", "hyper", "reqwest", "utoipa"]),
    ("doors", &["rusqlite", "reqwest"]),
    ("client", &["rusqlite", "axum"]),
    ("outlast", &["rusqlite", "axum", "reqwest"]),
];

pub(crate) fn run(root: &Path) -> Result<()> {
    let files = tracked(root)?;
    let breaches = breaches(root, &files)?;
    for breach in &breaches {
        println!("{breach}");
    }
    ensure!(breaches.is_empty(), "{} breaches of the house rules", breaches.len());
    println!("tidy: {} files", files.len());
    Ok(())
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    // New files count before they are added, so that a breach shows before the commit.
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = shell::command("git").args(list).output().context("cannot run git")?;
    ensure!(output.status.success(), "git ls-files failed");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(PathBuf::from).filter(|path| root.join(path).is_file()).collect())
}

pub(crate) fn breaches(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = vec![];
    for path in files {
        let Ok(text) = String::from_utf8(fs::read(root.join(path))?) else { continue };
        let name = path.to_string_lossy();
        if name == "LICENSE" {
            continue;
        }
        if name == "Cargo.lock" {
            lock(&text, &mut found);
            continue;
        }
        lines(&name, &text, &mut found);
        if path.extension().is_some_and(|kind| kind == "rs") {
            source(&name, &text, &mut found);
        }
    }
    for name in ROOT_DOCUMENTS {
        if let Ok(text) = fs::read_to_string(root.join(name)) {
            document(root, name, &text, &mut found);
        } else {
            found.push(format!("{name}: is missing"));
        }
    }
    for (room, _) in EDGES {
        let name = format!("crates/{room}/Cargo.toml");
        let text = fs::read_to_string(root.join(&name)).with_context(|| name.clone())?;
        walls(room, &name, &text, &mut found);
    }
    Ok(found)
}

pub(crate) fn lock(text: &str, found: &mut Vec<String>) {
    for line in text.lines().filter(|line| line.starts_with("source = ")) {
        if line.trim_start_matches("source = ").trim_matches('"') != CRATES_IO {
            found.push(format!("Cargo.lock: {line}: only crates.io is a source"));
        }
    }
}

pub(crate) fn lines(name: &str, text: &str, found: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        let mut breach = |what: String| found.push(format!("{name}:{}: {what}", number + 1));
        if line.ends_with(' ') || line.ends_with('\t') || line.ends_with('\r') {
            breach("trailing white space".into());
        }
        for word in UNFINISHED {
            if line.contains(word) {
                breach(format!("{word}: do it, or say it in an issue"));
            }
        }
        for path in MACHINE_PATHS {
            if line.contains(path) {
                breach(format!("{path} is a path of one machine"));
            }
        }
        let homes = line.match_indices(HOME).map(|(at, _)| &line[at + HOME.len()..]);
        if homes
            .into_iter()
            .any(|rest| rest.starts_with(char::is_alphanumeric) && !rest.starts_with(HOME_INSIDE))
        {
            breach(format!("{HOME}… is a path of one machine"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found.push(format!("{name}: does not end with a new line"));
    }
}

pub(crate) fn source(name: &str, text: &str, found: &mut Vec<String>) {
    if !text.starts_with("//!") {
        found.push(format!("{name}: does not begin with `//!`: say what the module owns"));
    }
    let count = text.lines().count();
    if count > FILE_LINES {
        found.push(format!("{name}: {count} lines; split it before {FILE_LINES}"));
    }
}

/// Paths and chores that a document names must exist.
pub(crate) fn document(root: &Path, name: &str, text: &str, found: &mut Vec<String>) {
    let folders: BTreeSet<String> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|folder| folder != "target" && folder != ".git")
        .collect();
    for span in text.split('`').skip(1).step_by(2) {
        let first = span.split('/').next().unwrap_or_default();
        let is_path = span.contains('/') && folders.contains(first) && !span.contains(char::is_whitespace);
        let is_document =
            span.ends_with(".md") && span.starts_with(char::is_uppercase) && !span.contains(' ');
        // CLAUDE.md and AGENTS.md belong to agents, not to this repository.
        let of_agents = span == "CLAUDE.md" || span == "AGENTS.md";
        if (is_path || (is_document && !of_agents)) && !root.join(span).exists() {
            found.push(format!("{name}: names `{span}`, which does not exist"));
        }
    }
    for (at, _) in text.match_indices("cargo xtask ") {
        let rest = &text[at + "cargo xtask ".len()..];
        let chore: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
        if !chore.is_empty() && !CHORES.iter().any(|each| each.name == chore) {
            found.push(format!("{name}: names `cargo xtask {chore}`, which is no chore"));
        }
    }
}

/// The room's dependencies, read from its manifest, against the tables above.
pub(crate) fn walls(room: &str, name: &str, manifest: &str, found: &mut Vec<String>) {
    let allowed = |table: &[(&str, &'static [&'static str])]| {
        table.iter().find(|(each, _)| *each == room).map_or(&[][..], |(_, list)| *list)
    };
    let mut section = String::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
            continue;
        }
        let Some((left, _)) = line.split_once('=') else { continue };
        let dependency = left.split('.').next().unwrap_or_default().trim();
        let in_tests = section == "dev-dependencies";
        if !in_tests && !section.ends_with("dependencies") {
            continue;
        }
        let is_room = EDGES.iter().any(|(each, _)| *each == dependency);
        let may =
            allowed(EDGES).contains(&dependency) || (in_tests && allowed(TEST_EDGES).contains(&dependency));
        if is_room && !may {
            found.push(format!("{name}: {room} must not depend on {dependency}"));
        }
        if allowed(STRANGERS).contains(&dependency) && !in_tests {
            found.push(format!("{name}: {room} must not know {dependency}"));
        }
    }
}
