//! A keeper on the bare host, with real processes. What waits, waits for a notice or for a process's end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is a test's own code")]

mod support;

use keeper::{
    codec::Blob,
    config::{SOCKET, Started},
    wire::{
        Channel, Flow, InputRefusal, Life, Mode, Notice, Part, Reach, Refusal, Request, SpawnFailure, Tree,
    },
};
use std::{io::Read, os::unix::fs::PermissionsExt};
use support::{
    Client, Fixture, STDERR, STDOUT, TOKEN_BYTES, alive, config, exited, folder, killed, run, sh, wait_gone,
};

#[test]
fn a_process_reads_writes_and_ends() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.sh(1, "cat; echo problem >&2; exit 7");
    assert_eq!(client.input(1, 10, b"one "), Notice::InputTaken { process: 1, fd: 0, number: 10 });
    client.input(1, 11, b"two");
    client.close(1);
    assert_eq!(client.all(1, STDOUT), "one two");
    assert_eq!(client.all(1, STDERR), "problem\n");
    assert_eq!(client.exit(1), exited(7));
    let late = client.input(1, 12, b"late");
    assert_eq!(late, Notice::InputRefused { process: 1, fd: 0, number: 12, reason: InputRefusal::Closed });
    let states = client.states();
    assert_eq!(states[0].life, Life::Exited { exit: exited(7) });
    client.done(|tag| Request::Forget { tag, process: 1 });
    assert_eq!(client.states(), []);
}

#[test]
fn it_starts_with_only_what_it_was_given() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut spawn = sh(1, "pwd; /usr/bin/env; ls -l /proc/self/fd; grep Sig /proc/self/status; cat <&5");
    spawn.cwd = Blob(b"/usr".to_vec());
    spawn.channels.push(Channel { fd: 5, flow: Flow::In });
    spawn.channels.push(Channel { fd: 9, flow: Flow::Out });
    client.ask(|tag| Request::Spawn { tag, spawn });
    client.follow(1, STDOUT, 0);
    let extra = Request::Input {
        process: 1,
        fd: 5,
        number: 1,
        part: Part::Last,
        bytes: Blob(b"by another channel".to_vec()),
    };
    client.send(&extra);
    client.send(&Request::CloseInput { process: 1, fd: 5 });
    let text = client.all(1, STDOUT);
    assert!(text.starts_with("/usr\n"), "{text}");
    assert!(text.ends_with("by another channel"), "{text}");
    let links = text.lines().filter(|line| line.contains(" -> ")).count();
    assert_eq!(links, 6, "0, 1, 2, 5, 9 and the folder that ls itself reads: {text}");
    for (mask, unsettable) in [("SigBlk:\t", 0), ("SigIgn:\t", 0b11 << 31)] {
        let value = text.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
        assert_eq!(u64::from_str_radix(value, 16).unwrap() & !unsettable, 0, "{mask}{value}");
    }
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    assert!(
        names.iter().all(|name| ["PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_"].contains(name)),
        "{names:?}"
    );
}

#[test]
fn failed_spawns_are_told_apart() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let dir = fixture.dir.path();
    std::fs::write(dir.join("plain"), "text").unwrap();
    std::fs::write(dir.join("broken"), "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(dir.join("broken"), PermissionsExt::from_mode(0o755)).unwrap();
    let huge = "x".repeat(200_000);
    for (program, cwd, argument, expected) in [
        ("no-such-program", "/", "", SpawnFailure::NotFound),
        ("./plain", dir.to_str().unwrap(), "", SpawnFailure::NotExecutable),
        ("./broken", dir.to_str().unwrap(), "", SpawnFailure::Exec),
        ("true", "/no/such/folder", "", SpawnFailure::BadCwd),
        ("true", "/", &huge, SpawnFailure::TooLarge),
    ] {
        let mut spawn = sh(1, "");
        spawn.argv = vec![Blob(program.into()), Blob(argument.into())];
        spawn.cwd = Blob(cwd.into());
        match client.ask(|tag| Request::Spawn { tag, spawn }) {
            Notice::SpawnFailed { failure, .. } => assert_eq!(failure, expected, "{program}"),
            other => panic!("{program}: {other:?}"),
        }
        assert_eq!(client.states(), [], "a failed spawn leaves nothing");
    }
    client.sh(1, "cat");
    for (spawn, expected) in [
        (sh(1, "true"), Refusal::Exists),
        (keeper::wire::Spawn { argv: vec![], ..sh(2, "") }, Refusal::BadRequest),
        (keeper::wire::Spawn { argv: vec![Blob(b"a\0b".to_vec())], ..sh(2, "") }, Refusal::BadRequest),
        (
            keeper::wire::Spawn { channels: vec![Channel { fd: 1000, flow: Flow::Out }], ..sh(2, "") },
            Refusal::BadRequest,
        ),
    ] {
        match client.ask(|tag| Request::Spawn { tag, spawn }) {
            Notice::Refused { reason, .. } => assert_eq!(reason, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn input_is_numbered_and_taken_once() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.sh(1, "cat");
    client.input(1, 5, b"five ");
    client.input(1, 5, b"again");
    client.input(1, 3, b"older");
    // An input whose last part never comes, because its server died.
    let part = |part, bytes: &[u8]| Request::Input {
        process: 1,
        fd: 0,
        number: 6,
        part,
        bytes: Blob(bytes.to_vec()),
    };
    client.send(&part(Part::More, b"half of six "));
    client.done(|tag| Request::SetOrphanTimeout { tag, seconds: 120 });
    drop(client);

    let mut client = fixture.client();
    let Notice::Welcome { processes, .. } = &client.welcome else { panic!("{:?}", client.welcome) };
    assert_eq!(processes[0].inputs[0].taken, 5);
    client.follow(1, STDOUT, 0);
    client.input(1, 5, b"again");
    client.send(&part(Part::More, b"si"));
    client.send(&part(Part::Last, b"x"));
    client.wait(|notice| matches!(notice, Notice::InputTaken { number: 6, .. }).then_some(()));
    client.close(1);
    assert_eq!(client.all(1, STDOUT), "five six");
}

#[test]
fn input_for_a_process_that_does_not_read_is_bounded_and_whole() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let pid = client.sh(1, "kill -STOP $$; wc -c");
    let block = vec![b'x'; 1024 * 1024];
    let mut number = 0;
    let full = loop {
        number += 1;
        match client.input(1, number, &block) {
            Notice::InputTaken { .. } => {}
            Notice::InputRefused { reason, .. } => break reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(full, InputRefusal::Full);
    let taken = number - 1;
    assert!(taken as usize * block.len() >= 32 * 1024 * 1024, "a longest line fits: {taken}");
    // The refused number may be sent again, and a small one still fits.
    assert!(matches!(client.input(1, number, b"\n"), Notice::InputTaken { .. }));
    assert!(matches!(client.input(1, number + 1, b"rest"), Notice::InputTaken { .. }));
    client.close(1);
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    client.done(|tag| Request::Signal { tag, process: 1, signal: 18, reach: Reach::Process });
    assert_eq!(client.all(1, STDOUT).trim(), (taken as usize * block.len() + 5).to_string());
}

#[test]
fn input_to_a_closed_pipe_is_refused() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.sh(1, "exec 0<&-; echo closed; exec sleep 1000");
    assert_eq!(client.line(1), "closed");
    let refused = client.input(1, 1, b"x");
    assert_eq!(refused, Notice::InputRefused { process: 1, fd: 0, number: 1, reason: InputRefusal::Closed });
}

#[test]
fn a_stubborn_process_and_its_daemons_are_killed_with_the_tree() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    // A daemon of the classic kind: own session, parent gone, and deaf.
    let daemon = "trap '' TERM INT HUP; echo $$ >&3; while :; do sleep 1000; done";
    let script = format!("(setsid sh -c \"{daemon}\" 3>&1 >/dev/null 2>&1 &) ; trap '' TERM; cat; cat");
    client.sh(1, &script.replace("$$", "\\$\\$"));
    let daemon: u32 = client.line(1).parse().unwrap();
    client.done(|tag| Request::Signal { tag, process: 1, signal: 15, reach: Reach::Tree });
    client.done(|tag| Request::Signal { tag, process: 1, signal: 15, reach: Reach::Group });
    assert!(alive(daemon));
    client.done(|tag| Request::Kill { tag, process: 1 });
    assert_eq!(client.exit(1), killed(9));
    wait_gone(daemon);
    let answer = client.ask(|tag| Request::Signal { tag, process: 1, signal: 15, reach: Reach::Process });
    assert!(matches!(answer, Notice::Refused { reason: Refusal::Ended, .. }), "{answer:?}");
}

#[test]
fn the_end_of_a_process_is_told_though_a_daemon_holds_its_pipes() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.sh(1, "sleep 1000 & echo $!; exit 3");
    let daemon: u32 = client.line(1).parse().unwrap();
    assert_eq!(client.exit(1), exited(3));
    assert!(alive(daemon));
    client.done(|tag| Request::Forget { tag, process: 1 });
    wait_gone(daemon);
}

#[test]
fn freezing_stops_and_thawing_goes_on() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let Notice::Welcome { isolation, .. } = client.welcome.clone() else { panic!() };
    assert_eq!(isolation.mode, Mode::Host);
    client.sh(1, "while read line; do echo $line; done");
    client.sh(2, "while read line; do echo $line; done");
    client.input(1, 1, b"warm\n");
    assert_eq!(client.line(1), "warm");
    let answer = client.ask(|tag| Request::Freeze { tag, process: Some(1) });
    if isolation.tree == Tree::Walk {
        assert!(matches!(answer, Notice::Refused { reason: Refusal::Unsupported, .. }), "{answer:?}");
        return;
    }
    assert!(matches!(answer, Notice::Done { .. }), "{answer:?}");
    assert!(client.states().iter().find(|state| state.process == 1).unwrap().frozen);
    // The frozen one takes input and says nothing; the other is not touched.
    client.input(1, 2, b"cold\n");
    client.input(2, 1, b"other\n");
    assert_eq!(client.line(2), "other");
    assert!(!client.aside.iter().any(|notice| matches!(notice, Notice::Output { process: 1, .. })));
    client.done(|tag| Request::Thaw { tag, process: Some(1) });
    assert_eq!(client.line(1), "cold");
    // A frozen tree dies like any other.
    client.done(|tag| Request::Freeze { tag, process: None });
    client.done(|tag| Request::Kill { tag, process: 1 });
    assert_eq!(client.exit(1), killed(9));
}

#[test]
fn strangers_are_turned_away() {
    let fixture = Fixture::new();
    let mut wrong = TOKEN_BYTES;
    wrong[31] ^= 1;
    assert!(Client::new(fixture.socket(), wrong).is_none());
    // Something that is no hello, something too long, and something that never comes.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[255; 100], &[1, 0, 0, 0, 12], &[]] {
        let mut socket = fixture.socket();
        std::io::Write::write_all(&mut socket, bytes).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{bytes:?} got {rest:?}");
    }
    // A crowd of silent guests keeps nobody out.
    let crowd: Vec<_> = (0..40).map(|_| fixture.socket()).collect();
    assert_eq!(fixture.client().states(), []);
    drop(crowd);
    let modes = std::fs::metadata(fixture.dir.path()).unwrap().permissions().mode() & 0o777;
    assert_eq!(modes, 0o700);
}

#[test]
fn the_newer_server_replaces_the_older() {
    let fixture = Fixture::new();
    let mut old = fixture.client();
    old.sh(1, "cat");
    old.input(1, 1, b"seen by both");
    let mut new = fixture.client();
    let Notice::Welcome { epoch, processes, .. } = new.welcome.clone() else { panic!() };
    assert!(matches!(old.welcome, Notice::Welcome { epoch: before, .. } if before == epoch));
    assert_eq!(processes[0].life, Life::Running {});
    while let Some(notice) = old.read() {
        assert!(matches!(notice, Notice::Replaced {} | Notice::Output { .. }), "{notice:?}");
    }
    new.follow(1, STDOUT, 0);
    new.close(1);
    assert_eq!(new.all(1, STDOUT), "seen by both");
}

#[test]
fn an_end_is_remembered_until_it_is_forgotten() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let pid = client.sh(1, "read line; echo after; exit 4");
    client.input(1, 1, b"go\n");
    drop(client);
    wait_gone(pid);
    loop {
        let mut client = fixture.client();
        let Notice::Welcome { processes, .. } = client.welcome.clone() else { panic!() };
        if processes[0].life == (Life::Exited { exit: exited(4) }) {
            client.follow(1, STDOUT, 0);
            assert_eq!(client.all(1, STDOUT), "after\n");
            break;
        }
    }
    let mut client = fixture.client();
    let Notice::Welcome { processes, .. } = client.welcome.clone() else { panic!() };
    let output = &processes[0].outputs[0];
    assert_eq!((output.start, output.end, output.ended), (6, 6, true));
    let answer = client.ask(|tag| Request::Subscribe { tag, process: 1, fd: STDOUT, from: 5, upto: 9 });
    assert!(matches!(answer, Notice::Refused { reason: Refusal::BadOffset, .. }), "{answer:?}");
}

#[test]
fn a_keeper_whose_server_never_returns_ends_its_processes_and_itself() {
    let fixture = Fixture::with(|config| config.orphan_seconds = 1);
    let mut client = fixture.client();
    let pid = client.sh(1, "trap '' TERM HUP; cat; sleep 1000");
    client.done(|tag| Request::SetOrphanTimeout { tag, seconds: 0 });
    drop(client);
    fixture.wait_gone();
    wait_gone(pid);
    assert!(!fixture.dir.path().join(SOCKET).exists());
}

#[test]
fn shutdown_ends_everything_and_leaves_no_group() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let pid = client.sh(1, "(setsid sleep 1000 &); cat");
    client.done(|tag| Request::Shutdown { tag });
    client.wait(|notice| matches!(notice, Notice::ShuttingDown {}).then_some(()));
    fixture.wait_gone();
    wait_gone(pid);
    for home in ["/sys/fs/cgroup/unified/outlast", "/sys/fs/cgroup/outlast"] {
        assert!(!std::path::Path::new(home).join(&fixture.name).exists());
    }
}

#[test]
fn one_folder_has_one_keeper() {
    let fixture = Fixture::new();
    match run(&config(fixture.dir.path())) {
        Started::Failed { what, .. } => assert!(what.contains("already"), "{what}"),
        Started::Ready { .. } => panic!("two keepers in one folder"),
    }
    assert_eq!(fixture.client().states(), []);
    let open = folder();
    std::fs::set_permissions(open.path(), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(matches!(run(&config(open.path())), Started::Failed { .. }));
}

#[test]
fn long_paths_are_no_obstacle() {
    let outer = folder();
    let long = outer.path().join("x".repeat(200)).join("y".repeat(200));
    std::fs::create_dir_all(&long).unwrap();
    std::fs::set_permissions(&long, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::copy(outer.path().join("token"), long.join("token")).unwrap();
    let Started::Ready { pid } = run(&config(&long)) else { panic!() };
    let folder = std::fs::File::open(&long).unwrap();
    let path = format!("/proc/self/fd/{}/{SOCKET}", std::os::fd::AsRawFd::as_raw_fd(&folder));
    let stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    let mut client = Client::new(stream, TOKEN_BYTES).unwrap();
    client.done(|tag| Request::Shutdown { tag });
    wait_gone(pid);
}

/// Small, fast and the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn fifty_megabytes_arrive_once_through_servers_that_keep_dying() {
    const NUMBERS: u64 = 6_600_000;
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.sh(1, &format!("seq 1 {NUMBERS}; echo done >&2; exit 9"));
    drop(client);
    let mut dice = Dice(11);
    // What a server recorded, and therefore acknowledged; what it read beyond that died with it.
    let mut recorded: Vec<u8> = Vec::new();
    let mut servers = 0;
    let mut ended = false;
    while !ended {
        servers += 1;
        let mut client = fixture.client();
        let from = recorded.len() as u64;
        client.done(|tag| Request::Subscribe { tag, process: 1, fd: STDOUT, from, upto: from + (4 << 20) });
        let mut pending: Vec<u8> = Vec::new();
        let life = dice.roll(60);
        for _ in 0..life {
            match client.read() {
                Some(Notice::Output { fd: STDOUT, offset, bytes, .. }) => {
                    assert_eq!(offset, (recorded.len() + pending.len()) as u64, "no gap, no double");
                    pending.extend(bytes.0);
                }
                Some(Notice::End { offset, .. }) => {
                    assert_eq!(offset, (recorded.len() + pending.len()) as u64);
                    ended = true;
                    break;
                }
                Some(_) => {}
                None => break,
            }
            if ended || dice.roll(4) == 0 {
                let whole = usize::try_from(dice.roll(pending.len() as u64 + 1)).unwrap();
                recorded.extend(pending.drain(..whole));
                let upto = recorded.len() as u64;
                client.send(&Request::Ack { process: 1, fd: STDOUT, upto });
                client.send(&Request::Want { process: 1, fd: STDOUT, upto: upto + (4 << 20) });
            }
        }
        if ended {
            recorded.append(&mut pending);
        }
    }
    let mut expected = Vec::with_capacity(recorded.len());
    for number in 1..=NUMBERS {
        std::io::Write::write_fmt(&mut expected, format_args!("{number}\n")).unwrap();
    }
    assert!(expected.len() > 50_000_000);
    assert!(recorded == expected, "every byte once, through {servers} servers");
    assert!(servers > 20, "{servers}");
    let mut client = fixture.client();
    client.follow(1, STDERR, 0);
    assert_eq!(client.all(1, STDERR), "done\n");
    let Notice::Welcome { processes, .. } = client.welcome.clone() else { panic!() };
    assert_eq!(processes[0].life, Life::Exited { exit: exited(9) });
}

#[test]
fn a_full_spool_stops_the_process_and_loses_nothing() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut spawn = sh(1, "head -c 40000000 /dev/zero; echo end >&2");
    spawn.channels.retain(|channel| channel.fd != 0);
    client.ask(|tag| Request::Spawn { tag, spawn });
    // Nobody reads: the process is stopped by its pipe, at the spool's bound.
    let full = keeper::OUTPUT_BYTES;
    while client.states()[0].outputs[0].end < full {
        std::thread::yield_now();
    }
    assert_eq!(client.states()[0].outputs[0].end, full);
    assert_eq!(client.states()[0].outputs[1].end, 0, "it has not come to its end");
    client.follow(1, STDOUT, 0);
    assert_eq!(client.all(1, STDOUT).len(), 40_000_000);
    client.follow(1, STDERR, 0);
    assert_eq!(client.all(1, STDERR), "end\n");
}

#[test]
fn a_flood_does_not_starve_a_neighbour() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    client.sh(1, "yes");
    client.sh(2, "while read line; do echo $line; done");
    for number in 1..20 {
        client.input(2, number, b"ping\n");
        assert_eq!(client.line(2), "ping");
        client.aside.clear();
    }
}
