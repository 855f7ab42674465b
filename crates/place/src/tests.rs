//! Workspaces and rooms on the bare host, with real processes. What waits, waits for output, an end or a descriptor;
//! nothing sleeps.

use crate::{
    Exit, Hold, Known, Place, PlaceError, Process, STDIN_BYTES, Signal, Spawn, SpawnError, Spawned,
    StdinError, Terms, Tie, Walls,
};
use bytes::Bytes;
use rustix::process::{Pid, PidfdFlags};
use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::Duration,
};

/// Keepers that a failed test leaves end by themselves.
const ORPHAN: Duration = Duration::from_secs(20);

/// A process that ends with the test.
#[derive(Debug)]
struct Running {
    process: Process,
    hold: Hold,
}

impl Deref for Running {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl From<Spawned> for Running {
    fn from(Spawned { process, hold }: Spawned) -> Self {
        Self { process, hold }
    }
}

async fn start(place: &Place, id: &str, spawn: Spawn) -> Result<Running, SpawnError> {
    place.spawn(id, spawn, Terms::host()).await.map(Running::from)
}

struct Fixture {
    dir: tempfile::TempDir,
    place: Place,
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("agent")).unwrap();
        let place = Place::new(dir.path(), ORPHAN);
        place.create("s", &dir.path().join("agent"), Walls::None).await.unwrap();
        Self { dir, place }
    }

    async fn sh(&self, script: &str) -> Running {
        start(&self.place, "s", sh(script)).await.unwrap()
    }

    fn home(&self) -> std::path::PathBuf {
        self.place.folder("s")
    }
}

fn sh(script: &str) -> Spawn {
    Spawn {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cwd: None,
    }
}

async fn all(output: &mut crate::Output) -> String {
    let (mut bytes, mut end) = (Vec::new(), None);
    while let Some(chunk) = output.next().await {
        assert_eq!(chunk.offset, end.unwrap_or(chunk.offset), "no gap, no double");
        bytes.extend_from_slice(&chunk.bytes);
        output.ack(*end.insert(chunk.offset + chunk.bytes.len() as u64));
    }
    String::from_utf8(bytes).unwrap()
}

/// Reads until the process has written `line`.
async fn line(process: &mut Process) -> String {
    let mut text = String::new();
    while !text.ends_with('\n') {
        text.push_str(std::str::from_utf8(&process.stdout.next().await.unwrap().bytes).unwrap());
    }
    text.trim().to_owned()
}

/// Waits until nobody has this number any more.
async fn gone(pid: &str) {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    if let Ok(fd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        #[expect(deprecated, reason = "the safe constructor is enough for a test")]
        let fd = tokio::io::unix::AsyncFd::with_interest(fd, tokio::io::Interest::READABLE).unwrap();
        let _ = fd.readable().await.unwrap();
    }
}

const fn exited(code: i32) -> Exit {
    Exit { code: Some(code), signal: None }
}

const fn killed(signal: i32) -> Exit {
    Exit { code: None, signal: Some(signal) }
}

#[tokio::test]
async fn a_process_reads_writes_and_ends() {
    let fixture = Fixture::new().await;
    let mut process = fixture.sh("cat; echo problem >&2; exit 7").await;
    process.stdin.send(1, Bytes::from_static(b"one ")).unwrap();
    process.stdin.send(2, Bytes::from_static(b"two")).unwrap();
    process.stdin.close();
    assert_eq!(process.stdin.send(3, Bytes::from_static(b"late")), Err(StdinError::Closed));
    assert_eq!(all(&mut process.stdout).await, "one two");
    assert_eq!(process.stdout.next().await, None, "the end stays the end");
    assert_eq!(all(&mut process.stderr).await, "problem\n");
    assert_eq!(process.handle.wait().await, exited(7));
    assert_eq!(process.handle.wait().await, exited(7));
}

#[tokio::test]
async fn it_starts_at_home_with_only_what_it_was_given() {
    let fixture = Fixture::new().await;
    let mut spawn =
        sh("pwd; /usr/bin/env; ls -l /proc/self/fd; grep Sig /proc/self/status; ps -o pgid= -p $$; echo $$");
    spawn.env.insert("GIVEN".to_owned(), "yes".to_owned());
    let mut process = start(&fixture.place, "s", spawn).await.unwrap();
    let text = all(&mut process.stdout).await;
    let mut lines = text.lines();
    let home = std::fs::canonicalize(fixture.home()).unwrap();
    assert_eq!(lines.next(), home.to_str());
    let env: Vec<&str> = lines.clone().take_while(|line| !line.starts_with("total")).collect();
    // The shell itself sets PWD and, in some, OLDPWD, SHLVL and _.
    for line in env {
        let name = line.split('=').next().unwrap();
        assert!(["PATH", "GIVEN", "PWD", "OLDPWD", "SHLVL", "_"].contains(&name), "{line}");
    }
    assert!(text.contains("GIVEN=yes"));
    let descriptors = lines.clone().filter(|line| line.contains(" -> ")).count();
    assert_eq!(descriptors, 4, "0, 1, 2 and the folder that ls itself reads: {text}");
    for (mask, unsettable) in [("SigBlk:\t", 0), ("SigIgn:\t", 0b11 << 31)] {
        let value = text.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
        // 32 and 33 are the C library's own, which it lets nobody set.
        assert_eq!(u64::from_str_radix(value, 16).unwrap() & !unsettable, 0, "{mask}{value}");
    }
    let last: Vec<&str> = text.lines().rev().take(2).map(str::trim).collect();
    assert_eq!(last[0], last[1], "leads its own group");
}

#[tokio::test]
async fn a_descriptor_without_cloexec_does_not_cross() {
    let fixture = Fixture::new().await;
    let leak = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    let mut process = fixture.sh("ls -l /proc/self/fd").await;
    let text = all(&mut process.stdout).await;
    assert!(!text.contains("/dev/null"), "{text}");
    drop(leak);
}

#[tokio::test]
async fn programs_are_found_in_the_given_path_only() {
    let fixture = Fixture::new().await;
    let home = fixture.home();
    std::fs::create_dir(home.join("bin")).unwrap();
    std::fs::write(home.join("bin/tool"), "#!/bin/sh\necho tool").unwrap();
    std::fs::write(home.join("plain"), "text").unwrap();
    std::fs::write(home.join("broken"), "#!/no/such/interpreter\n").unwrap();
    for name in ["bin/tool", "broken"] {
        std::fs::set_permissions(home.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let spawn = |program: &str, path: Option<&str>| {
        let env = path.map(|path| ("PATH".to_owned(), path.to_owned())).into_iter().collect();
        let spawn = Spawn { program: program.to_owned(), env, ..Spawn::default() };
        let place = fixture.place.clone();
        async move { start(&place, "s", spawn).await }
    };
    for (program, path) in [
        ("./bin/tool", None),
        ("bin/tool", None),
        ("tool", Some("bin")),
        ("/bin/true", None),
        ("true", Some("/none:/bin")),
    ] {
        let mut process = spawn(program, path).await.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert_eq!(process.handle.wait().await, exited(0), "{program}");
    }
    match spawn("sh", Some("/none:/nowhere")).await {
        Err(SpawnError::NotFound { program, searched }) => {
            assert_eq!(program, "sh");
            assert_eq!(searched, [Path::new("/none/sh"), Path::new("/nowhere/sh")]);
        }
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(spawn("sh", None).await, Err(SpawnError::NotFound { searched, .. }) if searched.is_empty())
    );
    assert!(matches!(spawn("./none", None).await, Err(SpawnError::NotFound { .. })));
    assert!(matches!(spawn("./plain", None).await, Err(SpawnError::NotExecutable { .. })));
    assert!(matches!(spawn("./broken", None).await, Err(SpawnError::Failed { .. })));
    for bad in ["", "../sh", "./../sh", "a/../../sh", "..", "x/", "a\0b"] {
        assert!(matches!(spawn(bad, Some("/bin")).await, Err(SpawnError::BadProgram { .. })), "{bad:?}");
    }
    assert!(matches!(start(&fixture.place, "none", sh("true")).await, Err(SpawnError::NoHome { .. })));
}

#[tokio::test]
async fn large_environments_and_arguments() {
    let fixture = Fixture::new().await;
    let mut spawn = sh("echo ${#A} ${#B} ${#1}");
    spawn.args.extend(["name".to_owned(), "y".repeat(100_000)]);
    // The kernel takes 128 KiB in one string.
    spawn.env.insert("A".to_owned(), "x".repeat(100_000));
    spawn.env.insert("B".to_owned(), "x".repeat(100_000));
    let mut process = start(&fixture.place, "s", spawn.clone()).await.unwrap();
    assert_eq!(all(&mut process.stdout).await, "100000 100000 100000\n");
    spawn.env.insert("C".to_owned(), "x".repeat(200_000));
    assert!(matches!(start(&fixture.place, "s", spawn.clone()).await, Err(SpawnError::TooLarge)));
    spawn.env.insert("C".to_owned(), "a\0b".to_owned());
    assert!(matches!(start(&fixture.place, "s", spawn).await, Err(SpawnError::BadText)));
}

#[tokio::test]
async fn a_process_that_ignores_terminate_is_killed() {
    let fixture = Fixture::new().await;
    let mut process =
        fixture.sh("trap '' TERM INT; echo ready; while :; do read line || sleep 1000; done").await;
    assert_eq!(line(&mut process).await, "ready");
    process.handle.signal(Signal::Terminate);
    process.handle.signal(Signal::Interrupt);
    process.stdin.send(1, Bytes::from_static(b"x\n")).unwrap();
    process.handle.kill();
    assert_eq!(process.handle.wait().await, killed(9));

    let mut process = fixture.sh("echo ready; exec sleep 1000").await;
    line(&mut process).await;
    process.handle.signal(Signal::Stop);
    process.handle.signal(Signal::Continue);
    process.handle.signal(Signal::Terminate);
    assert_eq!(process.handle.wait().await, killed(15));
}

#[tokio::test]
async fn the_whole_group_is_signalled_even_after_its_leader_ended() {
    let fixture = Fixture::new().await;
    let mut process = fixture.sh("sleep 1000 & echo $!").await;
    let daemon = line(&mut process).await;
    // The daemon holds the pipes, and yet the end of the process is seen.
    assert_eq!(process.handle.wait().await, exited(0));
    assert!(Path::new(&format!("/proc/{daemon}")).exists());
    process.handle.kill();
    gone(&daemon).await;
    assert_eq!(process.stdout.next().await, None);
}

#[tokio::test]
async fn a_dropped_hold_ends_the_process_and_a_left_one_can_be_taken_up() {
    let fixture = Fixture::new().await;
    let mut dropped = fixture.sh("echo $$; exec sleep 1000").await;
    let pid = line(&mut dropped).await;
    drop(dropped);
    gone(&pid).await;

    let mut left = fixture.sh("cat; echo end; exec sleep 1000").await;
    left.stdin.send(1, Bytes::from_static(b"one\n")).unwrap();
    assert_eq!(line(&mut left).await, "one");
    let tie = left.hold.tie().clone();
    left.hold.leave();
    drop(left.process);
    drop(fixture.place);

    let place = Place::new(fixture.dir.path(), ORPHAN);
    place.adopt(Known::from([(tie.keeper.clone(), [tie.process].into())])).await;
    let mut found = place.take_up("s", &tie, 2).await.unwrap();
    assert_eq!((found.input_taken, found.frozen, found.exit), (1, false, None));
    assert!(place.is_occupied("s").await);
    found.process.stdin.send(1, Bytes::from_static(b"again\n")).unwrap();
    found.process.stdin.send(2, Bytes::from_static(b"two\n")).unwrap();
    found.process.stdin.close();
    let mut text = String::new();
    while !text.ends_with("end\n") {
        text.push_str(std::str::from_utf8(&found.process.stdout.next().await.unwrap().bytes).unwrap());
    }
    assert_eq!(text, "e\ntwo\nend\n", "read on from an offset; an input that was taken is not given twice");
    found.hold.end().await;
    assert!(!place.is_occupied("s").await);
    let again = place.take_up("s", &tie, 2).await;
    assert!(matches!(again, Err(PlaceError::Lost { .. })), "{again:?}");
    assert_eq!(std::fs::read_dir(fixture.dir.path().join("keepers")).unwrap().count(), 0, "no folder stays");
}

#[tokio::test]
async fn a_room_is_shared_and_closes_after_the_last() {
    let fixture = Fixture::new().await;
    let mut one = fixture.sh("echo $$; exec sleep 1000").await;
    let mut two = fixture.sh("echo $$; exec sleep 1000").await;
    assert_eq!(one.hold.tie().keeper, two.hold.tie().keeper);
    let (first, second) = (line(&mut one).await, line(&mut two).await);
    one.hold.end().await;
    gone(&first).await;
    assert!(Path::new(&format!("/proc/{second}")).exists());
    two.hold.end().await;
    gone(&second).await;
    assert!(!fixture.place.is_occupied("s").await);
}

#[tokio::test]
async fn strays_are_ended_at_the_start() {
    let fixture = Fixture::new().await;
    let mut known = fixture.sh("echo $$; exec sleep 1000").await;
    let mut unknown = fixture.sh("echo $$; exec sleep 1000").await;
    let agent = fixture.dir.path().join("agent");
    fixture.place.create("t", &agent, Walls::None).await.unwrap();
    let mut stray = start(&fixture.place, "t", sh("echo $$; exec sleep 1000")).await.unwrap();
    let pids = (line(&mut known).await, line(&mut unknown).await, line(&mut stray).await);
    let tie: Tie = known.hold.tie().clone();
    for left in [known, unknown, stray] {
        left.hold.leave();
    }
    drop(fixture.place);

    let place = Place::new(fixture.dir.path(), ORPHAN);
    place.adopt(Known::from([(tie.keeper.clone(), [tie.process].into())])).await;
    gone(&pids.2).await;
    let found = place.take_up("s", &tie, 0).await.unwrap();
    gone(&pids.1).await;
    assert!(Path::new(&format!("/proc/{}", pids.0)).exists());
    found.hold.end().await;
}

#[tokio::test]
async fn a_process_stands_still_and_goes_on() {
    let fixture = Fixture::new().await;
    let mut process = fixture.sh("while read line; do echo $line; done").await;
    if !process.hold.keeper().can_freeze() {
        return eprintln!("SKIPPED: nothing can be frozen on this machine");
    }
    process.hold.freeze().await.unwrap();
    process.stdin.send(1, Bytes::from_static(b"thawed\n")).unwrap();
    process.hold.thaw().await.unwrap();
    assert_eq!(line(&mut process).await, "thawed");
}

#[tokio::test]
async fn input_is_bounded_and_taken_whole() {
    let fixture = Fixture::new().await;
    let mut process = fixture.sh("echo ready; exec wc -c").await;
    line(&mut process).await;
    process.handle.signal(Signal::Stop);
    let large = Bytes::from(vec![b'x'; STDIN_BYTES - 1000]);
    process.stdin.send(1, large.clone()).unwrap();
    // The pipe itself takes a part, so the bound may be a little further off; never by a whole line.
    assert_eq!(process.stdin.send(2, large), Err(StdinError::Full));
    process.stdin.send(3, Bytes::from_static(b"last")).unwrap();
    process.stdin.close();
    process.handle.signal(Signal::Continue);
    assert_eq!(all(&mut process.stdout).await.trim(), (STDIN_BYTES - 1000 + 4).to_string());
    assert_eq!(process.handle.wait().await, exited(0));
}

#[tokio::test]
async fn input_to_a_process_that_closed_it_is_refused() {
    let fixture = Fixture::new().await;
    let mut process = fixture.sh("exec 0<&-; echo closed; exec sleep 1000").await;
    line(&mut process).await;
    let mut sent = Ok(());
    // The first write finds out; it may be the writer's task that does.
    while sent.is_ok() {
        sent = process.stdin.send(1, Bytes::from_static(b"x"));
        tokio::task::yield_now().await;
    }
    assert_eq!(sent, Err(StdinError::Closed));
}

#[tokio::test]
async fn waiting_for_output_can_be_given_up() {
    let fixture = Fixture::new().await;
    let mut running = fixture.sh("cat").await;
    let process = &mut running.process;
    {
        let mut next = std::pin::pin!(process.stdout.next());
        assert!(futures_poll(next.as_mut()).await.is_none());
        let mut wait = std::pin::pin!(process.handle.wait());
        assert!(futures_poll(wait.as_mut()).await.is_none());
    }
    process.stdin.send(1, Bytes::from_static(b"still here")).unwrap();
    process.stdin.close();
    assert_eq!(all(&mut process.stdout).await, "still here");
}

/// Polls once.
async fn futures_poll<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn a_large_stream_is_whole() {
    let fixture = Fixture::new().await;
    let mut process = fixture.sh("head -c 5000000 /dev/zero | tr '\\0' x").await;
    assert_eq!(all(&mut process.stdout).await.len(), 5_000_000);
}

#[tokio::test]
async fn workspaces_are_made_whole_once_and_removed() {
    let fixture = Fixture::new().await;
    let agent = fixture.dir.path().join("agent");
    assert!(fixture.place.exists("s").await);
    assert!(matches!(fixture.place.create("s", &agent, Walls::None).await, Err(PlaceError::Exists(_))));
    for bad in ["", ".", "..", ".hidden", "a/b", "a\0"] {
        assert!(
            matches!(fixture.place.create(bad, &agent, Walls::None).await, Err(PlaceError::BadId(_))),
            "{bad:?}"
        );
        assert!(!fixture.place.exists(bad).await);
    }
    let missing = fixture.place.create("t", Path::new("/no/such/folder"), Walls::None).await;
    assert!(matches!(missing, Err(PlaceError::NoSource(_))));
    assert!(!fixture.place.exists("t").await);
    let at_once = tokio::join!(
        fixture.place.create("t", &agent, Walls::None),
        fixture.place.create("t", &agent, Walls::None)
    );
    assert!(at_once.0.is_ok() != at_once.1.is_ok(), "{at_once:?}");

    let root = fixture.dir.path().join("places");
    std::fs::create_dir(root.join(".unfinished-x-1-1")).unwrap();
    fixture.place.sweep().await.unwrap();
    fixture.place.destroy("s").await.unwrap();
    fixture.place.destroy("s").await.unwrap();
    let left: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["t"]);
}

#[tokio::test]
async fn files_are_written_below_home_only() {
    let fixture = Fixture::new().await;
    let (home, outside) = (fixture.home(), fixture.dir.path().join("outside"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "theirs").unwrap();
    symlink(&outside, home.join("link")).unwrap();
    symlink(outside.join("file"), home.join("CLAUDE.md")).unwrap();
    std::fs::write(home.join("script"), "old").unwrap();
    std::fs::set_permissions(home.join("script"), PermissionsExt::from_mode(0o755)).unwrap();
    let write = |path: &'static str| {
        let place = fixture.place.clone();
        async move { place.write_file("s", path, b"new").await }
    };
    for path in ["CLAUDE.md", "a/b/c", "./d", "script"] {
        write(path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(std::fs::read(home.join(path)).unwrap(), b"new");
    }
    assert!(home.join("CLAUDE.md").symlink_metadata().unwrap().is_file(), "the link itself was replaced");
    assert_eq!(home.join("script").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    for path in ["link/file", "link/new", "script/x"] {
        assert!(matches!(write(path).await, Err(PlaceError::NotFolder(_))), "{path}");
    }
    for path in ["", "/etc/x", "../x", "a/../../x", "..", "a/"] {
        assert!(matches!(write(path).await, Err(PlaceError::BadPath(_))), "{path:?}");
    }
    assert!(matches!(write("a").await, Err(PlaceError::Io { .. })), "a folder is not replaced");
    assert!(matches!(fixture.place.write_file("no", "x", b"").await, Err(PlaceError::NoWorkspace(_))));
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"theirs");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}
