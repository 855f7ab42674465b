//! The one place of the kit that spawns: programs that are run to their end within a limit.

use crate::limits;
use anyhow::{Context as _, Result};
use std::{ffi::OsStr, path::Path, process::Stdio};

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Its stdout, or an error that shows both streams when it did not exit with 0.
    pub fn ok(self) -> Result<String> {
        anyhow::ensure!(
            self.code == Some(0),
            "exit code {:?}\nstdout: {}\nstderr: {}",
            self.code,
            self.stdout,
            self.stderr
        );
        Ok(self.stdout)
    }
}

#[expect(clippy::disallowed_methods, reason = "the kit starts the programs that it tests")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    std::process::Command::new(program)
}

/// How often [`end_below`] looks again for processes that were started while it looked.
const LOOKS: usize = 1000;

/// Kills every process that works below a folder: keepers and what they hold outlive the server that started them.
pub fn end_below(folder: &Path) {
    let below = |link: &Path| std::fs::read_link(link).is_ok_and(|to| to.starts_with(folder));
    for _ in 0..LOOKS {
        let Ok(all) = std::fs::read_dir("/proc") else { return };
        let mut found = false;
        for entry in all.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { continue };
            let process = entry.path();
            let opened = || std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            let keeper = || {
                std::fs::read(process.join("cmdline")).is_ok_and(|line| line.starts_with(b"outlast-keeper"))
                    && opened().any(|fd| below(&fd.path()))
            };
            // A program that was put there, by a server that holds that machine for another, is there for good.
            if below(&process.join("cwd")) || below(&process.join("exe")) || keeper() {
                found = true;
                // Gone already is as good.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if !found {
            return clear_sites(folder);
        }
    }
}

/// What killed keepers could not remove: the folder in memory that a shell was given commands by, to which a link leads,
/// and their cgroups. Thousands of those make every other one slow.
fn clear_sites(folder: &Path) {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let homes = entries(folder).into_iter().chain([folder.to_owned()]).map(|home| home.join("keepers"));
    for keeper in homes.flat_map(|keepers| entries(&keepers)) {
        if let Ok(site) = std::fs::read_link(keeper.join("site"))
            && site.starts_with("/dev/shm")
        {
            let _ = std::fs::remove_dir_all(site);
        }
        let Some(name) = keeper.file_name() else { continue };
        let cgroups = Path::new("/sys/fs/cgroup");
        for tree in entries(cgroups).into_iter().chain([cgroups.to_owned()]) {
            let group = tree.join("outlast").join(name);
            for below in entries(&group).into_iter().filter(|path| path.is_dir()).chain([group]) {
                // One that is not empty stays.
                let _ = std::fs::remove_dir(below);
            }
        }
    }
}

/// Runs a program to its end, without input.
pub async fn run<I, S>(program: impl AsRef<OsStr>, args: I, env: &[(&str, &str)]) -> Result<Finished>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    run_in(Path::new("."), program, args, env).await
}

/// As [`run`], in a folder.
pub async fn run_in<I, S>(
    folder: &Path,
    program: impl AsRef<OsStr>,
    args: I,
    env: &[(&str, &str)],
) -> Result<Finished>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = program.as_ref();
    let mut command = tokio::process::Command::from(command(program));
    command.args(args).envs(env.iter().copied());
    command.current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(limits::RUN, command.output())
        .await
        .with_context(|| format!("{} did not end in {:?}", Path::new(program).display(), limits::RUN))?
        .with_context(|| format!("cannot start {}", Path::new(program).display()))?;
    Ok(Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
