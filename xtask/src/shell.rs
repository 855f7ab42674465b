//! The one place of the chores that spawns.

use crate::root;
use anyhow::{Context as _, Result, ensure};
use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

#[expect(clippy::disallowed_methods, reason = "a chore runs cargo and friends")]
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

pub(crate) fn cargo(args: &[&str]) -> Result<()> {
    cargo_with(args, &[])
}

pub(crate) fn cargo_with(args: &[&str], more: &[String]) -> Result<()> {
    let words = [args, &more.iter().map(String::as_str).collect::<Vec<_>>()].concat().join(" ");
    eprintln!("$ cargo {words}");
    let status = command("cargo").args(args).args(more).status().context("cannot run cargo")?;
    ensure!(status.success(), "`cargo {words}` failed");
    Ok(())
}

/// Whether a program runs and is content.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    let quiet = command(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// Runs a command, shows its output as it comes, and hands each line to `look`. Returns whether it succeeded.
pub(crate) fn watch(command: &mut Command, mut look: impl FnMut(&str)) -> Result<bool> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds copies of the pipe's end; without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        look(&line);
    }
    Ok(child.wait()?.success())
}
