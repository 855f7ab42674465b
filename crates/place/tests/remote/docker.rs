//! Containers: which can be entered, and what outlives what.

use crate::kit::{self, lost, remotes, run, shut_down, skip, started, within, wrong};
use outlast_place as place;
use place::{
    Spawn,
    keeper::{CommandInput, How, Manner, ShellEvent, ShellPhase},
    remote::{Docker, Policy, RemoteError, Target},
};
use std::{path::PathBuf, time::Duration};
use testkit::{Engine, Inside};

macro_rules! engine {
    ($name:literal) => {
        match Engine::start() {
            Ok(started) => started,
            Err(why) => return skip($name, &format!("{why:#}")),
        }
    };
}

fn policy() -> Policy {
    Policy { orphan: Duration::from_secs(120), ..Policy::default() }
}

fn container(engine: &Engine, name: &str) -> Docker {
    Docker { socket: engine.socket(), container: name.to_owned(), user: None, workdir: None }
}

#[tokio::test]
async fn a_shell_in_a_container_outlives_connection_and_engine() {
    let mut engine = engine!("docker_outlives");
    engine.run("box", Inside::Machine, &["--memory", "256m"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy());
    let target = Target::Docker(container(&engine, "box"));
    let reached = remotes.connect(&target, None).await.unwrap();
    assert_eq!(reached.machine().cwd, "/");
    let joined = reached.lodge().await.unwrap();
    let mut shell = started(&joined.keeper, &reached, "/").await;
    let (ended, out) = run(&mut shell, 1, "x=5; cd /tmp; id -u; false").await;
    assert_eq!((ended.how, &*out), (How::Returned(1), "0\n"));
    shell.run(2, CommandInput::Open, b"echo one; read y; echo $x $y; seq 1 50000").await.unwrap();
    engine.stop().unwrap();
    lost(&mut shell).await;
    let refused = wrong(remotes.take_up(&target, None, &joined.lodged, joined.token).await);
    assert!(matches!(refused, RemoteError::NoEngine { .. }), "{refused}");
    engine.start_again().unwrap();
    let keeper = remotes.take_up(&target, None, &joined.lodged, joined.token).await.unwrap();
    let (mut shell, state) = keeper.attach_shell(1).await.unwrap();
    assert_eq!((state.phase, state.command), (ShellPhase::Busy, 2));
    shell.follow(2, [0, 0]).unwrap();
    shell.write(1, b"six\n");
    let (ended, out) = within(kit::end(&mut shell)).await;
    let expected: String = (1..=50_000).map(|number| format!("{number}\n")).collect();
    assert!(out == format!("one\n5 six\n{expected}"), "whole");
    assert_eq!(ended.how, How::Returned(0));

    // A container that was restarted has lost its shells; one that was replaced is another.
    engine.docker(&["restart", "-t", "0", "box"]).unwrap();
    lost(&mut shell).await;
    let refused = wrong(remotes.take_up(&target, None, &joined.lodged, joined.token).await);
    assert!(matches!(refused, RemoteError::Lost { .. }), "{refused}");
    let second = remotes.connect(&target, None).await.unwrap().lodge().await.unwrap();
    engine.docker(&["rm", "-f", "box"]).unwrap();
    engine.run("box", Inside::Machine, &[]).unwrap();
    within(second.keeper.gone()).await;
    let refused = wrong(remotes.take_up(&target, None, &second.lodged, second.token).await);
    assert!(matches!(refused, RemoteError::Lost { .. }), "{refused}");
}

#[tokio::test]
async fn a_container_is_entered_as_it_is_asked() {
    let engine = engine!("docker_as_asked");
    engine.run("box", Inside::Machine, &["--read-only", "--tmpfs", "/tmp:exec,mode=1777"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy());
    let user = Some("1000:1000".to_owned());
    let target = Docker { user, workdir: Some("/tmp".to_owned()), ..container(&engine, "box") };
    let reached = remotes.connect(&Target::Docker(target.clone()), None).await.unwrap();
    assert_eq!((&*reached.machine().cwd, &*reached.machine().uid), ("/tmp", "1000"));
    let joined = reached.lodge().await.unwrap();
    let mut shell = started(&joined.keeper, &reached, "/tmp").await;
    let (_, out) = run(&mut shell, 1, "id -u; pwd").await;
    assert_eq!(out, "1000\n/tmp\n");
    shut_down(joined.keeper).await;
    let nobody = Docker { user: Some("nosuch".to_owned()), ..target };
    let refused = wrong(remotes.connect(&Target::Docker(nobody), None).await);
    assert!(matches!(refused, RemoteError::Refused { .. }), "{refused}");
}

#[tokio::test]
async fn what_cannot_be_entered_is_told_apart() {
    let engine = engine!("docker_refusals");
    let dir = tempfile::tempdir().unwrap();
    let all = remotes(dir.path(), policy());
    let refused = async |target: Docker| wrong(all.connect(&Target::Docker(target), None).await);
    let error = refused(container(&engine, "nowhere")).await;
    assert!(matches!(error, RemoteError::NoContainer(_)), "{error}");
    engine.run("box", Inside::Busybox, &[]).unwrap();
    engine.docker(&["pause", "box"]).unwrap();
    let error = refused(container(&engine, "box")).await;
    assert!(matches!(error, RemoteError::NotRunning { .. }), "{error}");
    engine.docker(&["unpause", "box"]).unwrap();
    engine.docker(&["kill", "box"]).unwrap();
    let error = refused(container(&engine, "box")).await;
    assert!(matches!(error, RemoteError::NotRunning { .. }), "{error}");
    let nowhere = Docker { socket: PathBuf::from("/nowhere/socket"), ..container(&engine, "box") };
    let error = refused(nowhere).await;
    assert!(matches!(error, RemoteError::NoEngine { .. }), "{error}");
}

#[tokio::test]
async fn where_nothing_can_be_written_or_run_there_is_no_keeper() {
    let engine = engine!("docker_no_keeper");
    engine
        .run("hard", Inside::Busybox, &["--read-only", "--tmpfs", "/tmp:noexec", "--shm-size", "1m"])
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy());
    let reached = remotes.connect(&Target::Docker(container(&engine, "hard")), None).await.unwrap();
    assert_eq!(reached.machine().bash, None);
    let refused = wrong(reached.lodge().await);
    let RemoteError::NoKeeper { why, .. } = &refused else { panic!("{refused}") };
    assert!(why.contains("/tmp/outlast-0 runs no programs"), "{why}");

    // Where there is no room for it, the next folder is taken.
    let small = ["--read-only", "--tmpfs", "/tmp:exec,size=64k", "--tmpfs", "/run:exec,size=8m"];
    engine.run("small", Inside::Busybox, &small).unwrap();
    let reached = remotes.connect(&Target::Docker(container(&engine, "small")), None).await.unwrap();
    let joined = reached.lodge().await.unwrap();
    assert!(joined.lodged.folder.starts_with("/run/user/0/outlast/"), "{:?}", joined.lodged);
    // There is no bash, and another shell will do, with less to promise.
    let sh = Spawn {
        program: reached.machine().sh.clone().expect("a shell"),
        args: vec!["-s".to_owned()],
        env: reached.machine().env.clone(),
        cwd: None,
    };
    let mut shell = joined.keeper.start_shell(1, sh, "/").await.unwrap();
    assert!(matches!(within(shell.next()).await, Some(ShellEvent::Ready { .. })));
    assert_eq!(shell.manner(), Manner::Told);
    let (ended, out) = run(&mut shell, 1, "cd /bin; pwd; false").await;
    assert_eq!((ended.how, &*out), (How::Returned(1), "/bin\n"));
    shut_down(joined.keeper).await;
    engine.run("full", Inside::Busybox, &small[..3]).unwrap();
    let reached = remotes.connect(&Target::Docker(container(&engine, "full")), None).await.unwrap();
    let refused = wrong(reached.lodge().await);
    let RemoteError::NoKeeper { why, .. } = &refused else { panic!("{refused}") };
    assert!(why.contains("No space left"), "{why}");
}
