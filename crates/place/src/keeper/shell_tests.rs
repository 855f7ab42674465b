//! Shells as a server drives them, with a real keeper and a real bash.

use super::{
    CommandInput, Ended, How, Keeper, Keepers, Limits, Order, Shell, ShellEvent, ShellPhase, Stream,
};
use crate::Spawn;
use std::{collections::BTreeMap, time::Duration};

async fn keeper(dir: &tempfile::TempDir, id: &str) -> (Keepers, Keeper) {
    let keepers = Keepers::new(dir.path());
    let order = Order { orphan: Duration::from_secs(60), limits: Limits::default(), sandbox: None };
    let keeper = keepers.start(&name(id), order).await.unwrap();
    (keepers, keeper)
}

fn name(id: &str) -> String {
    format!("{id}-{}", std::process::id())
}

fn bash() -> Spawn {
    Spawn {
        program: "bash".to_owned(),
        args: ["--noprofile", "--norc", "-s"].map(str::to_owned).to_vec(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: None,
    }
}

async fn ready(shell: &mut Shell) -> String {
    match shell.next().await {
        Some(ShellEvent::Ready { cwd }) => String::from_utf8(cwd).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn end(shell: &mut Shell, out: &mut [Vec<u8>; 2]) -> Ended {
    let mut ended: Option<Ended> = None;
    loop {
        if let Some(ended) = &ended
            && out[0].len() as u64 == ended.stdout
            && out[1].len() as u64 == ended.stderr
        {
            return ended.clone();
        }
        match shell.next().await {
            Some(ShellEvent::Output { stream, offset, bytes, .. }) => {
                let out = &mut out[usize::from(stream == Stream::Stderr)];
                assert_eq!(offset, out.len() as u64, "no gap, no double");
                out.extend_from_slice(&bytes);
                shell.ack(stream, out.len() as u64);
            }
            Some(ShellEvent::Ended(end)) => ended = Some(end),
            other => panic!("{other:?}"),
        }
    }
}

async fn run(shell: &mut Shell, command: u64, text: &str) -> (Ended, String, String) {
    shell.run(command, CommandInput::Empty, text.as_bytes()).await.unwrap();
    let mut out = [Vec::new(), Vec::new()];
    let ended = end(shell, &mut out).await;
    let [stdout, stderr] = out.map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(ended.command, command);
    (ended, stdout, stderr)
}

#[tokio::test]
async fn a_shell_keeps_its_state_and_its_commands_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (_keepers, keeper) = keeper(&dir, "state").await;
    assert!(keeper.has_shells());
    let mut shell = keeper.start_shell(1, bash(), "/").await.unwrap();
    assert_eq!(ready(&mut shell).await, "/");
    let (ended, out, err) = run(&mut shell, 1, "cd /tmp; x=5; echo hi; echo no >&2; false").await;
    assert_eq!((ended.how, &*out, &*err), (How::Returned(1), "hi\n", "no\n"));
    assert_eq!(ended.cwd.as_deref(), Some(b"/tmp".as_slice()));
    let (ended, out, err) = run(&mut shell, 2, "echo $? $x").await;
    assert_eq!((ended.how, &*out, &*err), (How::Returned(0), "1 5\n", ""));
    let (_, out, err) = run(&mut shell, 3, "(sleep 0.05; echo late) & echo now; false | true").await;
    assert_eq!((&*out, &*err), ("now\n", ""));
    let (_, out, _) = run(&mut shell, 4, "echo ${PIPESTATUS[@]}; wait; echo on").await;
    assert_eq!(out, "1 0\non\n");
    keeper.shutdown().await.unwrap();
    keeper.gone().await;
}

#[tokio::test]
async fn a_shell_that_ended_comes_back_with_what_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let (_keepers, keeper) = keeper(&dir, "back").await;
    let mut shell = keeper.start_shell(1, bash(), "/").await.unwrap();
    ready(&mut shell).await;
    let text = "cd /tmp; export A='a b'; f() { echo \"f $A\"; }; alias g=f; set -u; exit 3";
    let (ended, ..) = run(&mut shell, 1, text).await;
    assert_eq!(ended.how, How::Died(crate::Exit { code: Some(3), signal: None }));
    assert_eq!(shell.state().await.unwrap().phase, ShellPhase::Dead);
    keeper.restart_shell(1, bash(), "").await.unwrap();
    assert_eq!(ready(&mut shell).await, "/tmp");
    let (ended, out, err) = run(&mut shell, 2, "g\necho $- | tr -cd u").await;
    assert_eq!((ended.how, &*out, &*err), (How::Returned(0), "f a b\nu", ""));
    let (ended, ..) = run(&mut shell, 3, "kill -9 $$").await;
    assert_eq!(ended.how, How::Died(crate::Exit { code: None, signal: Some(9) }));
    keeper.restart_shell(1, bash(), "").await.unwrap();
    assert_eq!(ready(&mut shell).await, "/tmp");
    let (_, out, _) = run(&mut shell, 4, "f").await;
    assert_eq!(out, "f a b\n");
    keeper.shutdown().await.unwrap();
    keeper.gone().await;
}

#[tokio::test]
async fn a_server_that_was_away_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (keepers, keeper) = keeper(&dir, "away").await;
    let mut shell = keeper.start_shell(1, bash(), "/").await.unwrap();
    ready(&mut shell).await;
    shell.run(1, CommandInput::Open, b"echo one; read x; echo $x; seq 1 100000; (exit 4)").await.unwrap();
    let Some(ShellEvent::Output { bytes, .. }) = shell.next().await else { panic!() };
    assert_eq!(bytes, "one\n");
    drop((shell, keeper));
    let keeper = keepers.take_up(&name("away")).await.unwrap();
    let (mut shell, state) = keeper.attach_shell(1).await.unwrap();
    assert_eq!((state.phase, state.command, state.ended), (ShellPhase::Busy, 1, None));
    shell.run(1, CommandInput::Open, b"never run twice").await.unwrap();
    shell.write(1, b"two\n");
    assert_eq!(shell.next().await.map(|event| matches!(event, ShellEvent::Output { .. })), Some(true));
    drop((shell, keeper));
    let keeper = keepers.take_up(&name("away")).await.unwrap();
    let (mut shell, _) = keeper.attach_shell(1).await.unwrap();
    shell.follow(1, [4, 0]).unwrap();
    let mut out = [b"one\n".to_vec(), Vec::new()];
    // Whether the end comes by itself or is asked for depends on who was first.
    let ended = match shell.state().await.unwrap().ended {
        Some(ended) => ended,
        None => end(&mut shell, &mut out).await,
    };
    while (out[0].len() as u64) < ended.stdout {
        match shell.next().await {
            Some(ShellEvent::Output { bytes, .. }) => out[0].extend_from_slice(&bytes),
            // It came between the taking up and the question, and is told both ways.
            Some(ShellEvent::Ended(again)) => assert_eq!(again, ended),
            other => panic!("{other:?}"),
        }
    }
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(out[0] == format!("one\ntwo\n{expected}").as_bytes(), "whole");
    assert_eq!(ended.how, How::Returned(4));
    keeper.shutdown().await.unwrap();
    keeper.gone().await;
}
