//! What is on disk: backup while running, restore, the audit, a damaged store, shutdown.

use crate::kit::*;
use serde_json::json;
use std::fs;

#[tokio::test]
async fn a_backup_made_while_running_restores_to_the_same_sessions() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "stream 20 100").await;
    say(&http, &id, "stream 1 100000").await;
    let writing = {
        let (http, id) = (http.clone(), session(&http).await);
        tokio::spawn(async move { say(&http, &id, "stream 2000 100").await })
    };
    let before = events(&http, &id).await;
    let copy = server.scratch().join("backup");
    server.cli(&["backup", copy.to_str().unwrap()]).await.unwrap().ok().unwrap();
    writing.await.unwrap();
    server.stop().await.unwrap();

    let restored = server.scratch().join("restored");
    let (from, to) = (copy.to_str().unwrap().to_owned(), restored.to_str().unwrap().to_owned());
    run(PROGRAM, ["restore", &from, "--data", &to], &[]).await.unwrap().ok().unwrap();
    run(PROGRAM, ["audit", "verify", "--data", &to], &[]).await.unwrap().ok().unwrap();
    // A backup does not hold the key that opens its secrets: the operator keeps that elsewhere.
    fs::copy(server.data().join("master.key"), restored.join("master.key")).unwrap();
    let second = Setup::new(PROGRAM).data(&restored).start().await.unwrap();
    let again = Http::new(second.address().unwrap(), Some(server.key().unwrap()));
    let after = events(&again, &id).await;
    assert_eq!(after[..before.len()], before[..]);
    let frames = say(&again, &id, "echo restored").await;
    assert_eq!(text_of(&frames), "restored", "{frames:?}");
}

#[tokio::test]
async fn the_audit_notices_a_changed_event() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "echo the original words").await;
    server.stop().await.unwrap();
    let data = server.data().to_str().unwrap().to_owned();
    run(PROGRAM, ["audit", "verify", "--data", &data], &[]).await.unwrap().ok().unwrap();

    let mut changed = 0;
    for entry in fs::read_dir(server.data()).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_file() {
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        let needle = b"the original words";
        while let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            bytes[at..at + needle.len()].copy_from_slice(b"the falsified word");
            changed += 1;
        }
        fs::write(&path, bytes).unwrap();
    }
    assert!(changed > 0, "the words are in the store");
    let verdict = run(PROGRAM, ["audit", "verify", "--data", &data], &[]).await.unwrap();
    assert_ne!(verdict.code, Some(0), "{verdict:?}");
    assert!(verdict.stderr.contains(&id) || verdict.stdout.contains(&id), "it says where: {verdict:?}");
}

#[tokio::test]
async fn a_damaged_store_is_refused_with_what_to_do() {
    let (mut server, http) = server().await;
    session(&http).await;
    server.stop().await.unwrap();
    fs::write(server.data().join("outlast.db"), b"this is not a database, and never was one").unwrap();
    let data = server.data().to_str().unwrap().to_owned();
    let ended = run(PROGRAM, ["serve", "--data", &data, "--listen", "127.0.0.1:0"], &[]).await.unwrap();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.stderr.contains("outlast.db") || ended.stderr.contains("restore"), "{ended:?}");
}

#[tokio::test]
async fn two_servers_do_not_share_a_folder() {
    let (server, http) = server().await;
    let data = server.data().to_str().unwrap().to_owned();
    let ended = run(PROGRAM, ["serve", "--data", &data, "--listen", "127.0.0.1:0"], &[]).await.unwrap();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    session(&http).await;
}

#[tokio::test]
async fn a_graceful_stop_tells_streams_and_turns_go_on() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let mut turn = send(&http, &id, &json!({"content": "sleep 600000", "id": "p"})).await;
    until(&http, &id, is("turn_started")).await;
    let mut follower = http.follow(&id, 0).await.unwrap();
    let status = server.stop().await.unwrap();
    assert!(status.success(), "{status}");
    let frames = turn.collect().await.unwrap();
    assert!(frames.last().unwrap().named("done"), "{frames:?}");
    follower.collect().await.unwrap();

    server.restart().await.unwrap();
    assert_eq!(get(&http, &id).await["status"], "active");
    act(&http, &id, "cancel").await.expect(200).unwrap();
    let recorded = until(&http, &id, is("turn_ended")).await;
    let ended = recorded.last().unwrap();
    assert_eq!((ended["outcome"].as_str(), ended["reason"].as_str()), (Some("cancelled"), Some("cancelled")));
    assert_eq!(text_of(&say(&http, &id, "echo again").await), "again");
    assert_eq!(of_type(&events(&http, &id).await, "occupant_started").len(), 1, "the same agent went on");
}

#[tokio::test]
async fn a_second_signal_means_now() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    let _turn = send(&http, &id, &json!({"content": "stubborn 600000"})).await;
    until(&http, &id, is("turn_started")).await;
    server.signal(rustix::process::Signal::TERM).unwrap();
    server.stop().await.unwrap();
    server.restart().await.unwrap();
    act(&http, &id, "stop").await.expect(200).unwrap();
    until(&http, &id, is("turn_ended")).await;
}

/// A small disk of the test's own, which goes away with it.
struct Disk(tempfile::TempDir);

impl Disk {
    async fn make(size: &str) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let made = run("mount", ["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", &path], &[]).await;
        made.and_then(testkit::Finished::ok).map(|_| Self(folder)).map_err(|error| format!("{error:#}"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn sandboxes_stand_still_while_the_disk_is_nearly_full() {
    let disk = match Disk::make("256m").await {
        Ok(disk) => disk,
        Err(why) => {
            return skip("storage::sandboxes_stand_still_while_the_disk_is_nearly_full", &why);
        }
    };
    let server = Setup::new(PROGRAM).data(disk.0.path().join("data")).start().await.unwrap();
    let http = server.http().unwrap();
    let id = session(&http).await;
    drop(send(&http, &id, &json!({"content": "echo one\nsleep 300\npermission"})).await);
    until(&http, &id, is("turn_started")).await;
    // Below the mark of 64 MiB, and above the reserve.
    let space = rustix::fs::statvfs(disk.0.path()).unwrap();
    let filler = disk.0.path().join("filler");
    let bytes = usize::try_from(space.f_bavail * space.f_frsize).unwrap() - 40 * 1024 * 1024;
    fs::write(&filler, vec![1; bytes]).unwrap();
    let says = |words: &'static str| {
        move |event: &serde_json::Value| event["text"].as_str().is_some_and(|text| text.contains(words))
    };
    until(&http, &id, says("stand still")).await;
    let refused = http.post("/api/sessions", &json!({"agent": "demo"})).await.unwrap();
    refusal(&refused, 507, "storage_full");
    fs::remove_file(&filler).unwrap();
    until(&http, &id, says("go on")).await;
    let asked = until(&http, &id, is("permission_requested")).await.pop().unwrap();
    let path = format!("/api/sessions/{id}/permissions/{}", asked["seq"]);
    http.post(&path, &json!({"optionId": null})).await.unwrap().expect(200).unwrap();
    until(&http, &id, is("turn_ended")).await;
}
