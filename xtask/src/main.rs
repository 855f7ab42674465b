//! Repository chores: `cargo xtask check|test|tidy|bench|soak`.
//!
//! Owns what a developer and the CI machine both call, so that they call the same thing. Each chore runs cargo
//! and says in one line what came of it; it refuses to guess at arguments that it does not know.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a chore talks to the terminal")]

mod machine;
mod shell;
mod suite;
#[cfg(test)]
mod tests;
mod tidy;

use anyhow::{Result, bail};
use std::{path::PathBuf, process::ExitCode};

/// One thing to do for the repository.
struct Chore {
    name: &'static str,
    what: &'static str,
    run: fn(&[String]) -> Result<()>,
}

const CHORES: &[Chore] = &[
    Chore { name: "check", what: "formatting and clippy, warnings are errors", run: check },
    Chore {
        name: "test",
        what: "check, build and every test of the workspace; --agents: real agents instead; --mcp: only public MCP clients from npm",
        run: suite::test,
    },
    Chore {
        name: "tidy",
        what: "the rules of the house that no compiler knows",
        run: |_| tidy::run(&root()),
    },
    Chore {
        name: "bench",
        what: "the numbers of SPECIFICATION.md, with a release build; takes a filter; --peers: others beside ours",
        run: bench,
    },
    Chore {
        name: "soak",
        what: "the crash test for long: --kills N (5000), --seed N, --power; or --leaks N shells",
        run: soak,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<()> {
    let name = args.first().map_or("", String::as_str);
    if let Some(chore) = CHORES.iter().find(|chore| chore.name == name) {
        return (chore.run)(&args[1..]);
    }
    for chore in CHORES {
        eprintln!("  cargo xtask {:<6} {}", chore.name, chore.what);
    }
    bail!("no chore is called {name:?}; the list is above")
}

/// The repository.
fn root() -> PathBuf {
    let mut here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.pop();
    here
}

fn check(_: &[String]) -> Result<()> {
    machine::component("rustfmt")?;
    machine::component("clippy")?;
    shell::cargo(&["fmt", "--all", "--check"])?;
    shell::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // Targets that are only run when asked for are not among all of them.
    shell::cargo(&["clippy", "--workspace", "--test", "agents", "--", "-D", "warnings"])
}

fn bench(args: &[String]) -> Result<()> {
    shell::cargo(&["build", "--release", "--workspace", "--bins"])?;
    // The journal's own figures first: the whole server's are read against them.
    let own: Vec<_> = args.iter().filter(|arg| *arg != "--peers").cloned().collect();
    shell::cargo_with(&["bench", "--package", "outlast-journal", "--"], &own)?;
    let program = root().join("target/release/outlast");
    let program = program.to_string_lossy();
    let bench = ["run", "--release", "--quiet", "-p", "outlast-testkit", "--bin", "bench", "--"];
    let mut all: Vec<&str> = bench.to_vec();
    all.extend(["--program", &program]);
    shell::cargo_with(&all, args)
}

fn soak(args: &[String]) -> Result<()> {
    shell::cargo(&["build", "--workspace", "--bins"])?;
    let program = root().join("target/debug/outlast");
    let program = program.to_string_lossy();
    let mut all = vec!["run", "--quiet", "-p", "outlast-testkit", "--bin", "soak", "--"];
    all.extend(["--program", &program]);
    shell::cargo_with(&all, args)
}
