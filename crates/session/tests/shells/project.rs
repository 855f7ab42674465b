//! Shells in a project: what they may see and write, whose files they make, what becomes of them over a pause.

use crate::kit::Room;
use outlast_session::{HostPlace, Projects};
use protocol::{Code, OpenShell, PlaceKind, Status, Tenant};
use std::os::unix::fs::{MetadataExt as _, chown};

/// Nobody else's on a test machine.
const OWNER: u32 = 217_451;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[tokio::test]
async fn a_project_is_written_by_its_owner_and_the_rest_of_the_machine_by_nobody() {
    let room = Room::new().await;
    let folder = room.project();
    let mut owners = vec![(folder.metadata().unwrap().uid(), folder.metadata().unwrap().gid())];
    if is_root() {
        owners.push((OWNER, OWNER));
    }
    for (uid, gid) in owners {
        chown(&folder, Some(uid), Some(gid)).unwrap();
        let shell = room.open(PlaceKind::Project).await;
        assert_eq!(
            (shell.opened.place, &*shell.opened.cwd),
            (PlaceKind::Project, &*folder.to_string_lossy())
        );
        let made = format!("made-by-{uid}");
        assert_eq!(
            shell.run(&format!("echo x > {made} && test -O {made} && echo mine")).await.stdout,
            "mine"
        );
        assert_eq!(folder.join(&made).metadata().unwrap().uid(), uid, "it belongs to the folder's owner");
        assert_eq!(shell.run("echo y > ~/own && cat ~/own").await.stdout, "y", "and there is a home");
        let data = room.options.data.display().to_string();
        for outside in [
            "echo x > /etc/outlast-was-here",
            "echo x > /usr/outlast-was-here",
            "cat /etc/shadow",
            "test -n \"$(ls -A /root | grep -v own)\"",
            &format!("ls {data}"),
            &format!("cat {data}/api-key"),
            "test -S /var/run/docker.sock",
            "curl -m 2 http://127.0.0.1:1/ || test $? != 7",
        ] {
            let tried = shell.run(&format!("( {outside} ) >/dev/null 2>&1 && echo ESCAPED")).await;
            assert_eq!(tried.stdout, "", "{outside}");
        }
        shell.close().await;
    }
    room.end().await;
}

#[tokio::test]
async fn a_project_stands_still_and_comes_back_after_a_stop() {
    let room = Room::new().await;
    let shell = room.open(PlaceKind::Project).await;
    shell.run("x=kept; echo 1 > f; echo 2 > ~/g").await;
    let paused = room.sessions.pause(&room.caller, &shell.session).await.unwrap();
    assert_eq!(paused.status, Status::Paused);
    assert_eq!(shell.run("echo $x").await.stdout, "kept", "a command thaws it");
    // Its shell is lost, and its files are not.
    shell.run("kill -9 $$").await;
    assert_eq!(shell.run("cat f ~/g").await.stdout, "1\n2");
    shell.close().await;
    assert!(room.project().join("f").exists(), "the folder is the user's, whatever becomes of the session");
    room.end().await;
}

#[tokio::test]
async fn what_is_no_project_is_refused() {
    let room = Room::with(|options| {
        options.sandboxing.host_place = HostPlace::Nobody;
        options.sandboxing.projects.readable = vec!["/no/such".into()];
    })
    .await;
    let data = room.options.data.to_string_lossy().into_owned();
    let open = async |workspace: Option<&str>, cwd: Option<&str>| {
        let request = OpenShell {
            place: Some(PlaceKind::Project),
            workspace: workspace.map(str::to_owned),
            cwd: cwd.map(str::to_owned),
            ..OpenShell::default()
        };
        room.sessions.open_shell(&room.caller, request).await.map(|_| ()).map_err(|fault| fault.code)
    };
    assert_eq!(open(None, None).await, Err(Code::InvalidRequest));
    assert_eq!(open(Some("/"), None).await, Err(Code::Forbidden));
    assert_eq!(open(Some("/etc"), None).await, Err(Code::Forbidden));
    assert_eq!(open(Some("/no/such/folder"), None).await, Err(Code::BadPath));
    assert_eq!(open(Some("relative"), None).await, Err(Code::InvalidRequest));
    assert_eq!(open(Some(&data), None).await, Err(Code::Forbidden));
    let home = if is_root() { Some("/root") } else { None };
    if let Some(home) = home {
        assert_eq!(open(None, Some(home)).await, Err(Code::InvalidRequest), "a home is not meant by itself");
    }
    let mut stranger = room.caller.clone();
    stranger.tenant = Tenant::new("acme").unwrap();
    let refused = room.sessions.open_shell(&stranger, room.request(PlaceKind::Project)).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    let bare = room.sessions.open_shell(&room.caller, room.request(PlaceKind::Host)).await.unwrap_err();
    assert_eq!(bare.code, Code::Forbidden, "a project can be had where the host cannot");
    room.open(PlaceKind::Project).await.close().await;
    room.end().await;
    let room = Room::with(|options| {
        options.sandboxing.projects = Projects { within: vec!["/srv".into()], ..Projects::default() };
    })
    .await;
    let refused = room.sessions.open_shell(&room.caller, room.request(PlaceKind::Project)).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    assert!(refused.message.contains("/srv"), "{refused}");
    room.end().await;
}
