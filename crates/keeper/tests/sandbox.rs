//! A keeper with a sandbox: what is inside works, and what is outside stays there.

mod support;

use keeper::{
    codec::Blob,
    config::{Limits, Network, Sandbox},
    wire::{Mode, Notice, Request},
};
use std::{os::unix::ffi::OsStrExt, path::Path};
use support::{Client, Fixture, STDERR, STDOUT, exited, sh};

/// Nobody else's on a test machine.
const HOST_ID: u32 = 217_431;

fn sandbox(workspace: &Path) -> Sandbox {
    let root = rustix::process::geteuid().is_root();
    let (uid, gid) = if root {
        std::os::unix::fs::chown(workspace, Some(HOST_ID), Some(HOST_ID)).unwrap();
        (HOST_ID, HOST_ID)
    } else {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    };
    Sandbox {
        host_uid: uid,
        host_gid: gid,
        workspace: Blob(workspace.as_os_str().as_bytes().to_vec()),
        root: None,
        mounts: vec![],
        network: Network::None {},
        tmp_bytes: 16 << 20,
        hostname: "sandbox".to_owned(),
    }
}

fn run(client: &mut Client, id: u64, script: &str) -> (String, String, keeper::wire::Exit) {
    let mut spawn = sh(id, script);
    spawn.cwd = Blob(b"/home/user".to_vec());
    match client.ask(|tag| Request::Spawn { tag, spawn }) {
        Notice::Spawned { .. } => {}
        other => panic!("{other:?}"),
    }
    client.follow(id, STDOUT, 0);
    client.follow(id, STDERR, 0);
    client.close(id);
    (client.all(id, STDOUT), client.all(id, STDERR), client.exit(id))
}

#[test]
fn ordinary_work_works() {
    let workspace = tempfile::tempdir().unwrap();
    let fixture = Fixture::sandboxed(sandbox(workspace.path()));
    let mut client = fixture.client();
    let Notice::Welcome { isolation, .. } = client.welcome.clone() else { panic!() };
    assert_eq!(isolation.mode, Mode::Sandbox);
    let script = "id -u; id -un; pwd; hostname; echo hello > file; cat file; echo x > /tmp/y; cat /tmp/y; \
                  ls /; ls -l /dev; ps ax; touch /dev/shm/z; cat /proc/self/status | grep -E 'Cap|NoNew|Seccomp'; \
                  echo sub | cat; ls -la /proc/self/fd; python3 -c 'print(1+1)'; cat /proc/mounts";
    let (out, err, exit) = run(&mut client, 1, script);
    println!("{out}\n{err}\n{exit:?} {isolation:?}");
    assert_eq!(exit, exited(0));
    panic!("look");
}
