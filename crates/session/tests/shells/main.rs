//! Shells through the room's face, with real keepers: what a door sees, without a door.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is a test's own code")]

mod kit;
mod output;
mod project;

use kit::{GRACE, Room, text_of};
use protocol::{
    Body, Budget, Code, CommandOutcome, EventKind, ExecCommand, OpenShell, PlaceKind, SessionRef, Status,
};
use std::time::Duration;

async fn keeps_state_and_records(place: PlaceKind) {
    let room = Room::new().await;
    let shell = room.open(place).await;
    assert_eq!(shell.opened.place, place);
    assert_eq!(shell.opened.session_id, "1_local");
    let first = shell.run("cd /usr && export A='a b'; f() { echo \"f:$A\"; }; echo out; echo err >&2").await;
    assert_eq!((&*first.stdout, &*first.stderr, first.exit_code), ("out", "err", Some(0)));
    assert_eq!((&*first.cwd, first.command_id, first.running), ("/usr", 1, false));
    let second = shell.run("pwd; f; exit 3").await;
    assert_eq!((&*second.stdout, second.exit_code), ("/usr\nf:a b", Some(3)));
    assert!(second.hint.is_some(), "the shell was started again");
    let third = shell.run("f; echo $A; pwd").await;
    assert_eq!((&*third.stdout, third.exit_code), ("f:a b\na b\n/usr", Some(0)));
    let slow = ExecCommand { timeout_secs: Some(1), ..text_of("echo before; sleep 60; echo after") };
    let slow = shell.result(slow).await;
    assert_eq!((&*slow.stdout, slow.timed_out), ("before", true));
    assert_eq!(shell.run("echo on; alias l='echo alias'; umask 027").await.stdout, "on");
    room.sessions.stop(&room.caller, &shell.session).await.unwrap();
    let again = shell.run("f; l; umask; pwd").await;
    assert_eq!((&*again.stdout, &*again.stderr), ("f:a b\nalias\n0027\n/usr", ""), "also after a stop");
    let (_, page) = room.sessions.events(&room.caller, &shell.session, 0, 100).await.unwrap();
    let count = |kind| page.events.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(EventKind::CommandStarted), count(EventKind::CommandEnded)), (6, 6));
    shell.close().await;
    let session = room.sessions.get(&room.caller, &shell.session).await.unwrap();
    assert_eq!(session.status, Status::Ended);
    assert_eq!(room.sessions.close_shell(&room.caller, &"9_local".parse().unwrap()).await, Ok(false));
    let refused = room.sessions.exec(&room.caller, &shell.session, text_of("true")).await.unwrap_err();
    assert_eq!(refused.code, Code::SessionEnded);
    assert!(room.sessions.shells(&room.caller).await.unwrap().is_empty());
    room.end().await;
}

#[tokio::test]
async fn a_shell_on_the_host_keeps_its_state_and_leaves_a_record() {
    keeps_state_and_records(PlaceKind::Host).await;
}

#[tokio::test]
async fn a_shell_in_a_sandbox_keeps_its_state_and_leaves_a_record() {
    keeps_state_and_records(PlaceKind::Sandbox).await;
}

#[tokio::test]
async fn a_shell_in_a_project_keeps_its_state_and_leaves_a_record() {
    keeps_state_and_records(PlaceKind::Project).await;
}

#[tokio::test]
async fn a_running_command_outlives_the_server() {
    outlives_the_server(PlaceKind::Host).await;
}

#[tokio::test]
async fn a_running_command_in_a_project_outlives_the_server() {
    outlives_the_server(PlaceKind::Project).await;
}

async fn outlives_the_server(place: PlaceKind) {
    let room = Room::new().await;
    let shell = room.open(place).await;
    shell.run("x=5").await;
    let text = "echo one; read line; echo \"$x $line\"; seq 1 200000 | tail -1; (exit 4)";
    let request = ExecCommand { yield_secs: Some(0), open_stdin: true, ..text_of(text) };
    let told = shell.result(request).await;
    assert!(told.running && told.exit_code.is_none());
    let (opened, command) = (shell.opened.clone(), told.command_id);
    let room = room.restart().await;
    let shell = room.shell(opened);
    assert!(shell.poll(command, 0).await.running);
    let written =
        room.sessions.write_input(&room.caller, &shell.session, command, b"two\n".to_vec(), true).await;
    assert_eq!(written, Ok(4));
    let ended = shell.poll(command, 30).await;
    assert_eq!((&*ended.stdout, ended.exit_code), ("one\n5 two\n200000", Some(4)));
    assert_eq!(shell.run("echo $x").await.stdout, "5", "the shell is the same");
    // Also when everything was at rest.
    let opened = shell.opened.clone();
    let room = room.restart().await;
    let shell = room.shell(opened);
    assert_eq!(shell.run("echo $x").await.stdout, "5");
    assert_eq!(shell.poll(command, 0).await.exit_code, Some(4), "from the journal");
    shell.close().await;
    room.end().await;
}

#[tokio::test]
async fn commands_keep_their_order_and_can_be_taken_back() {
    let room = Room::new().await;
    let shell = room.open(PlaceKind::Host).await;
    let first = shell.begin(text_of("read x < <(sleep 60); echo never")).await;
    let waiting = shell.begin(text_of("echo waited")).await;
    let last = shell.begin(text_of("echo last")).await;
    let cancel = |command| room.sessions.cancel_command(&room.caller, &shell.session, command);
    assert_eq!(cancel(waiting.command).await, Ok(true));
    assert_eq!(waiting.result.await.unwrap().unwrap().exit_code, None);
    assert_eq!(cancel(first.command).await, Ok(true));
    assert!(first.result.await.unwrap().unwrap().cancelled);
    assert_eq!(last.result.await.unwrap().unwrap().stdout, "last");
    assert_eq!(cancel(99).await, Ok(false));
    shell.close().await;
    room.end().await;
}

#[tokio::test]
async fn what_is_live_is_seen_and_what_is_secret_is_not() {
    let room = Room::new().await;
    let mut request = OpenShell { place: Some(PlaceKind::Host), ..OpenShell::default() };
    request.env.insert("MY_TOKEN".to_owned(), "s3cret-value".to_owned());
    request.output_budget = Some(Budget { max_chars: Some(30), ..Budget::default() });
    let opened = room.sessions.open_shell(&room.caller, request).await.unwrap();
    let shell = room.shell(opened);
    let text = "echo $MY_TOKEN; echo ghp_0123456789abcdefghijklmnopqrstuvwxyz; read x; seq 1 1000";
    let mut execution = shell.begin(ExecCommand { open_stdin: true, ..text_of(text) }).await;
    let mut seen = String::new();
    while !seen.contains("github-token") {
        seen.push_str(&execution.live.recv().await.unwrap().text);
    }
    assert!(!seen.contains("s3cret") && !seen.contains("0123456789"), "{seen}");
    let command = execution.command;
    let write = room.sessions.write_input(&room.caller, &shell.session, command, Vec::new(), true).await;
    assert_eq!(write, Ok(0));
    let result = execution.result.await.unwrap().unwrap();
    assert!(result.truncated && result.stdout.len() <= 30 && !result.stdout.contains("s3cret"), "{result:?}");
    assert_eq!(result.budget.stdout.lines_total, 1002);
    shell.close().await;
    room.end().await;
}

#[tokio::test]
async fn a_paused_shell_stands_still_and_goes_on_and_an_idle_one_is_ended() {
    let room = Room::with(|options| options.shells.idle = Duration::from_millis(700)).await;
    let shell = room.open(PlaceKind::Sandbox).await;
    shell.run("x=kept; cd /tmp").await;
    let paused = room.sessions.pause(&room.caller, &shell.session).await.unwrap();
    assert_eq!(paused.status, Status::Paused);
    assert_eq!(shell.run("echo $x").await.stdout, "kept", "a command thaws it");
    let (id, mut events) = room.sessions.follow(&room.caller, &shell.session, 0).await.unwrap();
    let ended = tokio::time::timeout(GRACE, async {
        loop {
            let batch = events.next().await.unwrap();
            let ended = |event: &outlast_session::StoredEvent| matches!(event.decode(), Ok(Body::SessionStatusChanged(change)) if change.to == Status::Ended);
            if batch.events.iter().any(ended) {
                return;
            }
        }
    });
    ended.await.expect("an idle shell is ended by itself");
    let session = room.sessions.get(&room.caller, &SessionRef::Id(id)).await.unwrap();
    assert!(session.status_reason.unwrap().contains("idle"));
    room.end().await;
}

#[tokio::test]
async fn limits_and_bad_input_are_told() {
    let room = Room::with(|options| options.shells.sessions = 1).await;
    let shell = room.open(PlaceKind::Host).await;
    let more = room.sessions.open_shell(&room.caller, OpenShell::default()).await.unwrap_err();
    assert_eq!(more.code, Code::CapacityReached);
    for (request, code) in [
        (ExecCommand { timeout_secs: Some(0), ..text_of("true") }, Code::InvalidRequest),
        (ExecCommand { timeout_secs: Some(3601), ..text_of("true") }, Code::InvalidRequest),
        (ExecCommand { command: b"a\0b".to_vec(), ..ExecCommand::default() }, Code::InvalidRequest),
        (ExecCommand { command: vec![b' '; 9 << 20], ..ExecCommand::default() }, Code::PayloadTooLarge),
    ] {
        let refused = room.sessions.exec(&room.caller, &shell.session, request).await.unwrap_err();
        assert_eq!(refused.code, code);
    }
    shell.close().await;
    let bad = OpenShell { cwd: Some("relative".to_owned()), ..OpenShell::default() };
    assert_eq!(room.sessions.open_shell(&room.caller, bad).await.unwrap_err().code, Code::InvalidRequest);
    let again = room.open(PlaceKind::Host).await;
    assert_eq!(again.opened.session_id, "2_local", "the slot is free again, and numbers go on");
    again.close().await;
    room.end().await;
}

async fn checkpoints_come_back(place: PlaceKind) {
    let room = Room::new().await;
    let mut request = room.request(place);
    if place == PlaceKind::Host {
        request.cwd = Some(room.project().to_string_lossy().into_owned());
    }
    let shell = room.shell(room.sessions.open_shell(&room.caller, request).await.unwrap());
    let (sessions, caller, session) = (&room.sessions, &room.caller, &shell.session);
    shell.run("mkdir -p sub empty; echo one > sub/f; chmod 600 sub/f; ln -s f sub/l; cd sub").await;
    let first = sessions.checkpoint(caller, session, Some("first".to_owned())).await.unwrap();
    shell.run("echo two > f; echo new > ../g; rmdir ../empty; rm l").await;
    let restored = sessions.restore_checkpoint(caller, session, None).await.unwrap();
    assert_eq!((&restored.restored_to, restored.files_changed), (&first.id, 4));
    let now = shell.run("cat f; stat -c %a f; readlink l; ls -A ..; pwd").await;
    let lines: Vec<&str> = now.stdout.lines().collect();
    assert_eq!(lines[..3], ["one", "600", "f"], "{now:?}");
    assert_eq!(lines[3..5], ["empty", "sub"], "{now:?}");
    assert!(lines[5].ends_with("/sub"), "the shell still stands in its folder");
    // The restore itself can be undone.
    let undone = sessions.restore_checkpoint(caller, session, Some(restored.undo)).await.unwrap();
    assert_eq!(undone.files_changed, 4);
    assert_eq!(shell.run("cat f ../g").await.stdout, "two\nnew");
    let all = sessions.checkpoints(caller, session).await.unwrap();
    assert_eq!((all.len(), all[2].label.as_deref()), (3, Some("first")), "newest first");
    let unknown = sessions.restore_checkpoint(caller, session, Some("c99".to_owned())).await.unwrap_err();
    assert_eq!(unknown.code, Code::NotFound);
    shell.close().await;
    room.end().await;
}

#[tokio::test]
async fn a_sandboxs_files_are_brought_back_under_a_running_shell() {
    checkpoints_come_back(PlaceKind::Sandbox).await;
}

#[tokio::test]
async fn a_folder_on_the_host_is_brought_back_under_a_running_shell() {
    checkpoints_come_back(PlaceKind::Host).await;
}

#[tokio::test]
async fn a_projects_folder_is_brought_back_under_a_running_shell() {
    checkpoints_come_back(PlaceKind::Project).await;
}

#[tokio::test]
async fn a_checkpoint_is_taken_before_a_command_when_something_changed() {
    let room = Room::new().await;
    let request = OpenShell { place: Some(PlaceKind::Sandbox), auto_snapshot: true, ..OpenShell::default() };
    let shell = room.shell(room.sessions.open_shell(&room.caller, request).await.unwrap());
    for text in ["echo 1 > f", "cat f", "cat f", "rm f"] {
        assert_eq!(shell.run(text).await.hint, None, "{text}");
    }
    let all = room.sessions.checkpoints(&room.caller, &shell.session).await.unwrap();
    let labels: Vec<_> = all.iter().filter_map(|kept| kept.label.as_deref()).collect();
    assert_eq!(labels, ["before command 2", "before command 1"], "nothing changed before the others");
    room.sessions.restore_checkpoint(&room.caller, &shell.session, None).await.unwrap();
    assert_eq!(shell.run("cat f").await.stdout, "1");
    shell.close().await;
    // On the host nothing is named that could be taken, and the result says so.
    let request = OpenShell { place: Some(PlaceKind::Host), auto_snapshot: true, ..OpenShell::default() };
    let shell = room.shell(room.sessions.open_shell(&room.caller, request).await.unwrap());
    assert!(shell.run("true").await.hint.unwrap().contains("no checkpoint"));
    shell.close().await;
    room.end().await;
}

#[tokio::test]
async fn a_policy_refuses_and_the_record_says_so() {
    let room = Room::new().await;
    let request =
        OpenShell { place: Some(PlaceKind::Host), deny: vec!["rm".to_owned()], ..OpenShell::default() };
    let shell = room.shell(room.sessions.open_shell(&room.caller, request).await.unwrap());
    let refused = room.sessions.exec(&room.caller, &shell.session, text_of("echo $(/bin/rm x)")).await;
    assert_eq!(refused.unwrap_err().code, Code::CommandRefused);
    assert_eq!(shell.run("echo rm").await.stdout, "rm");
    let (_, page) = room.sessions.events(&room.caller, &shell.session, 0, 100).await.unwrap();
    let outcomes: Vec<_> = page
        .events
        .iter()
        .filter_map(|event| match event.decode() {
            Ok(Body::CommandEnded(ended)) => Some((ended.command, ended.outcome)),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, [(1, CommandOutcome::Refused), (2, CommandOutcome::Done)]);
    shell.close().await;
    let bad = OpenShell { allow: vec!["a; b".to_owned()], ..OpenShell::default() };
    assert_eq!(room.sessions.open_shell(&room.caller, bad).await.unwrap_err().code, Code::InvalidRequest);
    room.end().await;
}
