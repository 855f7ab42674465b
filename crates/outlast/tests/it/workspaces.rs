//! What becomes of a session's files: paused, evicted, resumed cold, ended; and what they may take.

use crate::kit::*;
use serde_json::json;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

/// A tree as a user would have it: a repository, installed modules, a lock file, `tmp`, and odd things.
async fn populate(folder: &Path) {
    let write = |path: &str, content: &[u8]| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    write("src/main.c", b"int main(void) { return 0; }\n");
    write("node_modules/left-pad/index.js", b"module.exports = 1\n");
    write("node_modules/.bin/tool", b"#!/bin/sh\nexit 0\n");
    write("package-lock.json", b"{}\n");
    write("tmp/kept", b"still here\n");
    write(".hidden/.deeper/file", &[0, 1, 2, 255]);
    write("large", &vec![b'x'; 300_000]);
    fs::write(folder.join(OsStr::from_bytes(b"not-utf8-\xff")), b"odd").unwrap();
    fs::write(folder.join("a line\nbreak"), b"odd").unwrap();
    fs::create_dir_all(folder.join("empty/nested")).unwrap();
    fs::set_permissions(folder.join("node_modules/.bin/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(folder.join("package-lock.json"), PermissionsExt::from_mode(0o444)).unwrap();
    fs::set_permissions(folder.join("empty"), PermissionsExt::from_mode(0o1777)).unwrap();
    symlink("src/main.c", folder.join("link")).unwrap();
    symlink("/nowhere/at/all", folder.join("dangling")).unwrap();
    fs::hard_link(folder.join("large"), folder.join("large-too")).unwrap();
    for args in [
        &["init", "-q"][..],
        &["add", "src"],
        &["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "first"],
    ] {
        let args = ["-c", "safe.directory=*"].iter().chain(args);
        run_in(folder, "git", args, &[("HOME", "/nonexistent")]).await.unwrap().ok().unwrap();
    }
    let owner = fs::metadata(folder).unwrap();
    for path in all(folder) {
        std::os::unix::fs::lchown(folder.join(path), Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

fn all(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (vec![], vec![PathBuf::new()]);
    while let Some(below) = open.pop() {
        for entry in fs::read_dir(folder.join(&below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

/// Everything that must be the same again: kind and mode, time, owner, and content or aim.
fn record(folder: &Path) -> BTreeMap<PathBuf, (u32, i64, bool, Vec<u8>)> {
    let own = fs::metadata(folder).unwrap().uid();
    let one = |path: PathBuf| {
        let full = folder.join(&path);
        let meta = full.symlink_metadata().unwrap();
        let content = if meta.is_symlink() {
            fs::read_link(&full).unwrap().into_os_string().as_bytes().to_vec()
        } else if meta.is_file() {
            fs::read(&full).unwrap()
        } else {
            vec![]
        };
        (path, (meta.mode(), meta.mtime(), meta.uid() == own, content))
    };
    // What the agent itself keeps changes with each prompt.
    all(folder).into_iter().filter(|path| !path.starts_with(".demo-agent")).map(one).collect()
}

async fn gone(http: &Http, id: &str, folder: &Path) {
    let recorded = until(http, id, is("occupant_exited")).await;
    let exits = of_type(&recorded, "occupant_exited").len();
    until_count(http, id, "snapshot_taken", exits + 1).await;
    assert!(!folder.exists(), "evicted: {}", folder.display());
}

#[tokio::test]
async fn a_workspace_comes_back_byte_for_byte_after_pause_eviction_and_end() {
    let mut server = Setup::new(PROGRAM).env("OUTLAST_IDLE_SECS", "1").start().await.unwrap();
    let http = server.http().unwrap();
    let id = session(&http).await;
    let folder = server.data().join("places").join(&id);
    say(&http, &id, "remember blue").await;
    populate(&folder).await;
    let before = record(&folder);
    assert!(before.len() > 30 && before.contains_key(Path::new(".git/HEAD")), "{}", before.len());

    server.cli(&["pause", &id]).await.unwrap().ok().unwrap();
    let taken = events(&http, &id).await;
    let taken = of_type(&taken, "snapshot_taken")[0].clone();
    assert_eq!(taken["torn"].as_u64().unwrap_or(0), 0, "nothing changes while it stands still");
    gone(&http, &id, &folder).await;
    assert_eq!(get(&http, &id).await["status"], "paused");

    // From the snapshot, while there is no folder.
    let path = format!("/api/sessions/{id}/files/content?path=src/main.c");
    assert_eq!(http.get(&path).await.unwrap().text(), "int main(void) { return 0; }\n");
    let listed = http.get(&format!("/api/sessions/{id}/files?path=node_modules")).await.unwrap();
    assert_eq!(listed.expect(200).unwrap()["files"].as_array().unwrap().len(), 2);
    server.kill9().unwrap();
    server.restart().await.unwrap();

    server.cli(&["resume", &id]).await.unwrap().ok().unwrap();
    let after = record(&folder);
    for (path, entry) in &before {
        assert_eq!(after.get(path), Some(entry), "{}", path.display());
    }
    assert_eq!(after.len(), before.len());
    let links = |name: &str| fs::metadata(folder.join(name)).unwrap().ino();
    assert_eq!(links("large"), links("large-too"), "one file with two names");
    run_in(&folder, "git", ["-c", "safe.directory=*", "fsck", "--strict"], &[]).await.unwrap().ok().unwrap();
    assert_eq!(text_of(&say(&http, &id, "recall").await), "blue", "the agent's own store came along");
    assert_eq!(text_of(&say(&http, &id, "cat src/main.c").await), "int main(void) { return 0; }\n");
    let recorded = events(&http, &id).await;
    assert_eq!(of_type(&recorded, "snapshot_restored").len(), 1);

    server.cli(&["end", &id]).await.unwrap().ok().unwrap();
    assert!(!folder.exists());
    assert_eq!(
        http.get(&path).await.unwrap().text(),
        "int main(void) { return 0; }\n",
        "its last snapshot stays"
    );
    let tar = http.get(&format!("/api/sessions/{id}/files/archive")).await.unwrap();
    assert_eq!(tar.status, 200);
    assert!(tar.body.windows(9).any(|window| window == b"not-utf8-"));
}

#[tokio::test]
async fn parallel_resumes_of_an_evicted_session_make_one_sandbox() {
    let server = Setup::new(PROGRAM).env("OUTLAST_IDLE_SECS", "1").start().await.unwrap();
    let http = server.http().unwrap();
    let id = session(&http).await;
    let folder = server.data().join("places").join(&id);
    act(&http, &id, "pause").await.expect(200).unwrap();
    gone(&http, &id, &folder).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (http, id) = (http.clone(), id.clone());
        calls.spawn(async move { act(&http, &id, "resume").await.expect(200).unwrap() });
    }
    while let Some(resumed) = calls.join_next().await {
        assert_eq!(resumed.unwrap()["session"]["status"], "active");
    }
    let recorded = events(&http, &id).await;
    assert_eq!(of_type(&recorded, "occupant_started").len(), 2);
    assert_eq!(of_type(&recorded, "snapshot_restored").len(), 1);
}

#[tokio::test]
async fn a_paused_session_makes_room_for_a_new_one() {
    let server = Setup::new(PROGRAM).env("OUTLAST_LIVE_SESSIONS", "2").start().await.unwrap();
    let http = server.http().unwrap();
    let (first, second) = (session(&http).await, session(&http).await);
    say(&http, &first, "remember red").await;
    let full = http.post("/api/sessions", &json!({"agent": "demo"})).await.unwrap();
    refusal(&full, 503, "capacity_reached");
    act(&http, &first, "pause").await.expect(200).unwrap();
    act(&http, &second, "pause").await.expect(200).unwrap();
    // The one that has been paused longest goes.
    let third = session(&http).await;
    assert!(!server.data().join("places").join(&first).exists());
    assert!(server.data().join("places").join(&second).exists());
    // A message brings it back, and the other paused one goes in its turn.
    assert_eq!(text_of(&say(&http, &first, "recall").await), "red");
    assert_eq!(get(&http, &second).await["status"], "paused");
    assert!(!server.data().join("places").join(&second).exists());
    assert_eq!(get(&http, &third).await["status"], "active");
    let full = act(&http, &second, "resume").await;
    refusal(&full, 503, "capacity_reached");
    assert_eq!(get(&http, &second).await["status"], "paused", "a failed resume leaves the status");
}

#[tokio::test]
async fn a_workspace_over_its_limit_ends_the_turn() {
    let (_server, http) = server().await;
    let narrow = json!({"agent": "demo", "policy": {"limits": {"disk_mb": 1}}});
    let id = session_of(&http, &narrow).await;
    let script = format!("write big {}\nsleep 600000", "x".repeat(2_000_000));
    let frames = send(&http, &id, &json!({"content": script})).await.collect().await.unwrap();
    let error = frame(&frames, "error");
    assert_eq!((error["outcome"].as_str(), error["code"].as_str()), (Some("failed"), Some("limit_exceeded")));
    until(&http, &id, is("occupant_exited")).await;
    let session = get(&http, &id).await;
    assert!(session["statusReason"].as_str().unwrap().contains("the limit is 1 MiB"), "{session}");
    http.delete(&format!("/api/sessions/{id}/files?path=big")).await.unwrap();
    assert_eq!(text_of(&say(&http, &id, "echo smaller").await), "smaller");
}

#[tokio::test]
async fn sessions_share_a_sandbox_by_its_key_and_nothing_without() {
    let (mut server, http) = server().await;
    let shared = json!({"agent": "demo", "sandbox": "team"});
    // At once: one of them makes it.
    let (one, two) = tokio::join!(session_of(&http, &shared), session_of(&http, &shared));
    let other = session_of(&http, &json!({"agent": "demo", "sandbox": "others"})).await;
    let sandbox = get(&http, &one).await["sandboxId"].clone();
    assert_eq!(get(&http, &two).await["sandboxId"], sandbox);
    assert_ne!(get(&http, &other).await["sandboxId"], sandbox);
    say(&http, &one, "write note from one").await;
    assert_eq!(text_of(&say(&http, &two, "cat note").await).trim(), "from one");
    assert!(!text_of(&say(&http, &other, "cat note").await).contains("from one"));
    let elsewhere = json!({"agent": "demo", "sandbox": "team", "place": "host"});
    refusal(&http.post("/api/sessions", &elsewhere).await.unwrap(), 409, "conflict");

    // Pausing and ending one touches only its own process.
    act(&http, &one, "pause").await.expect(200).unwrap();
    assert_eq!(text_of(&say(&http, &two, "echo awake").await), "awake");
    server.kill9().unwrap();
    server.restart().await.unwrap();
    assert_eq!(get(&http, &one).await["status"], "paused");
    assert_eq!(text_of(&say(&http, &two, "echo still here").await), "still here");
    http.delete(&format!("/api/sessions/{one}")).await.unwrap().expect(200).unwrap();
    assert_eq!(text_of(&say(&http, &two, "cat note").await).trim(), "from one");
    assert_eq!(of_type(&events(&http, &two).await, "occupant_started").len(), 1, "it went on all along");
    http.delete(&format!("/api/sessions/{one}?purge=true")).await.unwrap().expect(200).unwrap();
    assert_eq!(text_of(&say(&http, &two, "cat note").await).trim(), "from one");

    // Put away with its last session, and there again for the next.
    http.delete(&format!("/api/sessions/{two}")).await.unwrap().expect(200).unwrap();
    assert!(!server.data().join("places").join(sandbox.as_str().unwrap()).exists());
    let three = session_of(&http, &shared).await;
    assert_eq!(text_of(&say(&http, &three, "cat note").await).trim(), "from one");
}
