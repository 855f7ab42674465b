//! A shell on another machine, driven as a session drives it.

use outlast_place as place;
use place::{
    Spawn,
    keeper::{CommandInput, Ended, Keeper, Shell, ShellEvent, Stream},
    remote::{Policy, Reached, RemoteError, Remotes},
};
use std::{fs, path::Path, time::Duration};

/// Nothing here takes as long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says loudly that a test did not run, and leaves a note for the summary.
pub(crate) fn skip(test: &str, reason: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(test), reason).unwrap();
    eprintln!("SKIPPED: {test}: {reason}");
}

pub(crate) fn remotes(dir: &Path, policy: Policy) -> Remotes {
    Remotes::new(dir, policy).unwrap()
}

pub(crate) fn bash(reached: &Reached) -> Spawn {
    let machine = reached.machine();
    Spawn {
        program: machine.bash.clone().expect("a bash"),
        args: ["--noprofile", "--norc", "-s"].map(str::to_owned).to_vec(),
        env: machine.env.clone(),
        cwd: None,
    }
}

pub(crate) async fn started(keeper: &Keeper, reached: &Reached, cwd: &str) -> Shell {
    let mut shell = keeper.start_shell(1, bash(reached), cwd).await.unwrap();
    match within(shell.next()).await {
        Some(ShellEvent::Ready { .. }) => shell,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("this hangs")
}

/// Runs a command to its end.
pub(crate) async fn run(shell: &mut Shell, command: u64, text: &str) -> (Ended, String) {
    shell.run(command, CommandInput::Empty, text.as_bytes()).await.unwrap();
    within(end(shell)).await
}

pub(crate) async fn end(shell: &mut Shell) -> (Ended, String) {
    let mut out = Vec::new();
    let mut ended: Option<Ended> = None;
    loop {
        if let Some(ended) = &ended
            && out.len() as u64 == ended.stdout
        {
            return (ended.clone(), String::from_utf8(out).unwrap());
        }
        match shell.next().await {
            Some(ShellEvent::Output { stream: Stream::Stdout, bytes, .. }) => out.extend_from_slice(&bytes),
            Some(ShellEvent::Output { .. } | ShellEvent::InputTaken { .. }) => {}
            Some(ShellEvent::Ended(end)) => ended = Some(end),
            other => panic!("{other:?}"),
        }
    }
}

/// Waits for a shell's connection to break.
pub(crate) async fn lost(shell: &mut Shell) {
    loop {
        match within(shell.next()).await {
            Some(ShellEvent::Lost) => return,
            Some(_) => {}
            None => panic!("the end came without a word"),
        }
    }
}

pub(crate) fn wrong<T>(result: Result<T, RemoteError>) -> RemoteError {
    match result {
        Ok(_) => panic!("it should have been refused"),
        Err(error) => error,
    }
}

pub(crate) async fn shut_down(keeper: Keeper) {
    keeper.shutdown().await.unwrap();
    within(keeper.gone()).await;
}
