//! Keepers as a server uses them, with real processes. What waits, waits for output, an end or the connection.

use super::{Keeper, KeeperError, Keepers, Limits, Network, Order, Sandbox};
use crate::{Exit, Output, Process, Signal, Spawn, SpawnError, StdinError};
use ::keeper::codec::Blob;
use bytes::Bytes;
use std::{collections::BTreeMap, os::unix::ffi::OsStrExt, path::Path, time::Duration};

struct Fixture {
    dir: tempfile::TempDir,
    keepers: Keepers,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keepers = Keepers::new(dir.path());
        Self { dir, keepers }
    }

    async fn start(&self, id: &str) -> Keeper {
        self.keepers.start(&name(id), order()).await.unwrap()
    }
}

/// Cgroups are the machine's, so names are this process's own.
fn name(id: &str) -> String {
    format!("{id}-{}", std::process::id())
}

fn order() -> Order {
    Order { orphan: Duration::from_secs(60), limits: Limits::default(), sandbox: None }
}

fn sh(script: &str) -> Spawn {
    Spawn {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: None,
    }
}

async fn all(output: &mut Output, from: u64) -> Vec<u8> {
    let (mut bytes, mut end) = (Vec::new(), from);
    while let Some(chunk) = output.next().await {
        assert_eq!(chunk.offset, end, "no gap, no double");
        bytes.extend_from_slice(&chunk.bytes);
        end += chunk.bytes.len() as u64;
        output.ack(end);
    }
    bytes
}

async fn line(process: &mut Process) -> String {
    let mut text = String::new();
    while !text.ends_with('\n') {
        text.push_str(std::str::from_utf8(&process.stdout.next().await.unwrap().bytes).unwrap());
    }
    text.trim().to_owned()
}

const fn exited(code: i32) -> Exit {
    Exit { code: Some(code), signal: None }
}

#[tokio::test]
async fn a_kept_process_has_the_same_face() {
    let fixture = Fixture::new();
    let keeper = fixture.start("face").await;
    let mut process = keeper.spawn(1, sh("cat; echo problem >&2; exit 7"), "/").await.unwrap();
    process.stdin.send(1, Bytes::from_static(b"one ")).unwrap();
    process.stdin.send(2, Bytes::from_static(b"two")).unwrap();
    process.stdin.close();
    assert_eq!(process.stdin.send(3, Bytes::from_static(b"late")), Err(StdinError::Closed));
    assert_eq!(all(&mut process.stdout, 0).await, b"one two");
    assert_eq!(process.stdout.next().await, None, "the end stays the end");
    assert_eq!(all(&mut process.stderr, 0).await, b"problem\n");
    assert_eq!(process.handle.wait().await, exited(7));
    assert_eq!(process.handle.wait().await, exited(7));

    let mut process = keeper.spawn(2, sh("trap '' TERM; echo ready; cat; sleep 1000"), "/").await.unwrap();
    assert_eq!(line(&mut process).await, "ready");
    process.handle.signal(Signal::Terminate);
    process.handle.kill();
    assert_eq!(process.handle.wait().await, Exit { code: None, signal: Some(9) });

    let spawn = |program: &str| Spawn { program: program.to_owned(), ..sh("") };
    let missing = keeper.spawn(3, spawn("no-such-program"), "/").await;
    assert!(matches!(missing, Err(SpawnError::NotFound { searched, .. }) if searched.len() == 2));
    let homeless = keeper.spawn(3, sh("true"), "/no/such/folder").await;
    assert!(matches!(homeless, Err(SpawnError::NoHome { .. })));
    let twice = keeper.spawn(1, sh("true"), "/").await;
    assert!(matches!(twice, Err(SpawnError::Failed { .. })), "a number is used once");
    keeper.forget(1).await.unwrap();
    keeper.shutdown().await.unwrap();
    keeper.gone().await;
    assert!(matches!(keeper.freeze(None).await, Err(KeeperError::Gone)));
}

#[tokio::test]
async fn a_new_server_takes_up_where_the_old_one_stopped() {
    let fixture = Fixture::new();
    let keeper = fixture.start("take-up").await;
    let script = "while read line; do echo got $line; done; exit 5";
    let mut process = keeper.spawn(7, sh(script), "/").await.unwrap();
    process.stdin.send(10, Bytes::from_static(b"first\n")).unwrap();
    assert_eq!(line(&mut process).await, "got first");
    process.stdout.ack(10);
    process.stdin.send(11, Bytes::from_static(b"second\n")).unwrap();
    assert_eq!(line(&mut process).await, "got second");
    // Read and not acknowledged, as by a server that died before its commit.
    let epoch = keeper.epoch();
    drop((process, keeper));

    let keepers = Keepers::new(fixture.dir.path());
    assert_eq!(keepers.list().await.unwrap(), [name("take-up")]);
    let keeper = keepers.take_up(&name("take-up")).await.unwrap();
    assert_eq!(keeper.epoch(), epoch);
    let [kept] = keeper.found() else { panic!("{:?}", keeper.found()) };
    assert_eq!((kept.process, kept.exit, kept.input_taken), (7, None, 11));
    assert_eq!(kept.stdout, (10, 21));
    let mut process = keeper.attach(7, kept.stdout.0, kept.stderr.0).await.unwrap();
    // Sent again, because this server cannot know that it arrived.
    process.stdin.send(11, Bytes::from_static(b"second\n")).unwrap();
    process.stdin.send(12, Bytes::from_static(b"third\n")).unwrap();
    process.stdin.close();
    assert_eq!(all(&mut process.stdout, 10).await, b"got second\ngot third\n");
    assert_eq!(process.handle.wait().await, exited(5));
    drop((process, keeper));

    let keeper = keepers.take_up(&name("take-up")).await.unwrap();
    assert_eq!(keeper.found()[0].exit, Some(exited(5)));
    let mut process = keeper.attach(7, 31, 0).await.unwrap();
    assert_eq!(process.handle.wait().await, exited(5));
    assert_eq!(process.stdout.next().await, None);
    keeper.shutdown().await.unwrap();
    keeper.gone().await;
    assert!(matches!(keepers.take_up(&name("take-up")).await, Err(KeeperError::Missing(_))));
    keepers.remove(&name("take-up")).await.unwrap();
    assert!(keepers.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_flood_is_whole_and_bounded_on_the_way() {
    let fixture = Fixture::new();
    let keeper = fixture.start("flood").await;
    let mut process = keeper.spawn(1, sh("seq 1 400000"), "/").await.unwrap();
    let text = all(&mut process.stdout, 0).await;
    let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert!(text == expected.as_bytes(), "every byte once");
    // An input of a longest line, through a process that echoes it.
    let mut process = keeper.spawn(2, sh("wc -c"), "/").await.unwrap();
    let large = Bytes::from(vec![b'x'; protocol::limits::LINE_BYTES]);
    process.stdin.send(1, large.clone()).unwrap();
    assert_eq!(process.stdin.send(2, large), Err(StdinError::Full));
    process.stdin.send(3, Bytes::from_static(b"!")).unwrap();
    process.stdin.close();
    let counted = all(&mut process.stdout, 0).await;
    assert_eq!(String::from_utf8(counted).unwrap().trim(), (protocol::limits::LINE_BYTES + 1).to_string());
    keeper.shutdown().await.unwrap();
    keeper.gone().await;
}

#[tokio::test]
async fn the_newer_server_ends_the_older_one() {
    let fixture = Fixture::new();
    let old = fixture.start("two").await;
    let mut process = old.spawn(1, sh("cat"), "/").await.unwrap();
    let second = fixture.keepers.start(&name("two"), order()).await;
    assert!(matches!(second, Err(KeeperError::NotStarted { .. })), "{second:?}");
    let new = fixture.keepers.take_up(&name("two")).await.unwrap();
    old.gone().await;
    assert_eq!(process.handle.wait().await, Exit { code: None, signal: None });
    assert_eq!(process.stdout.next().await, None);
    let mut process = new.attach(1, 0, 0).await.unwrap();
    process.stdin.send(1, Bytes::from_static(b"still here")).unwrap();
    process.stdin.close();
    assert_eq!(all(&mut process.stdout, 0).await, b"still here");
    new.shutdown().await.unwrap();
    new.gone().await;
}

fn sandbox(workspace: &Path) -> Sandbox {
    const HOST_ID: u32 = 217_432;
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(workspace, Some(HOST_ID), Some(HOST_ID)).unwrap();
    }
    Sandbox {
        host_uid: if root { HOST_ID } else { rustix::process::geteuid().as_raw() },
        host_gid: if root { HOST_ID } else { rustix::process::getegid().as_raw() },
        workspace: Blob(workspace.as_os_str().as_bytes().to_vec()),
        inside_uid: 1000,
        inside_gid: 1000,
        view: super::View::System {},
        mounts: Vec::new(),
        network: Network::None {},
        tmp_bytes: 16 << 20,
        hostname: "sandbox".to_owned(),
    }
}

#[tokio::test]
async fn a_sandbox_is_started_used_and_reported() {
    let fixture = Fixture::new();
    let workspace = tempfile::tempdir().unwrap();
    let order = Order { sandbox: Some(sandbox(workspace.path())), ..order() };
    let keeper = fixture.keepers.start(&name("box"), order).await.unwrap();
    assert!(keeper.in_sandbox());
    let script = "id -un; pwd; echo kept > file; tr '\\0' ' ' < /proc/1/cmdline";
    let mut process = keeper.spawn(1, sh(script), "/home/user").await.unwrap();
    assert_eq!(all(&mut process.stdout, 0).await, b"user\n/home/user\noutlast-keeper ");
    assert_eq!(process.handle.wait().await, exited(0));
    assert_eq!(std::fs::read(workspace.path().join("file")).unwrap(), b"kept\n");
    keeper.shutdown().await.unwrap();
    keeper.gone().await;
}

#[tokio::test]
async fn failures_say_what_to_do() {
    let fixture = Fixture::new();
    let mut wanted = sandbox(fixture.dir.path());
    wanted.workspace = Blob(b"/no/such/workspace".to_vec());
    let order = Order { sandbox: Some(wanted), ..order() };
    match fixture.keepers.start(&name("broken"), order).await {
        Err(KeeperError::NotStarted { what, fix }) => {
            assert!(what.contains("/no/such/workspace"), "{what}");
            assert!(!fix.is_empty());
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(fixture.keepers.take_up("none").await, Err(KeeperError::Missing(_))));
    for bad in ["", "..", "a/b", "a b"] {
        assert!(matches!(fixture.keepers.take_up(bad).await, Err(KeeperError::BadId(_))), "{bad:?}");
    }
}
