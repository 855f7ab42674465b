//! Copies made beside a running journal, and brought back.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that breaks should stop; clippy knows helpers of tests only inside test functions"
)]

mod support;

use outlast_journal::*;
use protocol::*;
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_taken_while_writing_is_whole_and_restores() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 2_000).await;
    writer.append(append(vec![large(200_000)])).unwrap();
    settled(&writer).await;
    let session = writer.session();
    let target = tempfile::tempdir().unwrap();
    let (dir, to) = (store.path().to_owned(), target.path().join("copy"));
    let copying = tokio::task::spawn_blocking(move || {
        let mut seen = Vec::new();
        backup(&dir, &to, &mut |progress| seen.push(progress)).unwrap();
        seen
    });
    let mut n = writer.last_seq();
    while !copying.is_finished() {
        n += 1;
        writer.append(notes(n..=n)).unwrap();
        settled(&writer).await;
    }
    let seen = copying.await.unwrap();
    assert!(matches!(seen.first(), Some(Progress::Pages { .. })));
    assert_eq!(seen.last(), Some(&Progress::Blobs { done: 1, total: 1 }));
    journal.close().await;

    let copy = target.path().join("copy");
    assert!(verify(&copy, None, &mut |_| {}).unwrap().is_whole());
    let restored = target.path().join("restored");
    let mut stages = Vec::new();
    restore(&copy, &restored, &mut |progress| stages.push(progress)).unwrap();
    assert!(matches!(stages[0], Progress::Verified { events } if events >= 2_001));
    let journal = Journal::open(options(&restored)).unwrap();
    let page = journal.read(session, 1_999, 2).await.unwrap();
    assert!((2_001..=n).contains(&page.last_seq));
    assert_eq!(text(&page.events[0]), "2000");
    assert_eq!(text(&page.events[1]).len(), 200_000);
    // It goes on from there.
    let (mut writer, row) = journal.acquire(session).await.unwrap();
    writer.append(append(vec![note("more")])).unwrap();
    assert_eq!(settled(&writer).await, Durable::Upto(row.last_seq + 1));
    journal.close().await;
    assert!(verify(&restored, None, &mut |_| {}).unwrap().is_whole());
    let left: Vec<_> =
        std::fs::read_dir(target.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing half-made is left: {left:?}");
}

#[tokio::test]
async fn a_backup_never_overwrites_and_a_restore_never_mixes() {
    let store = Store::new();
    let journal = store.open();
    session_with(&journal, 1).await;
    let target = tempfile::tempdir().unwrap();
    let copy = target.path().join("copy");
    backup(store.path(), &copy, &mut |_| {}).unwrap();
    assert!(matches!(backup(store.path(), &copy, &mut |_| {}), Err(BackupError::Exists { .. })));
    assert!(matches!(
        backup(&target.path().join("nowhere"), &target.path().join("x"), &mut |_| {}),
        Err(BackupError::Open(OpenError::Missing { .. }))
    ));
    assert!(matches!(
        restore(&copy, store.path(), &mut |_| {}),
        Err(BackupError::Open(OpenError::InUse { .. }))
    ));
    journal.close().await;
    assert!(matches!(restore(&copy, store.path(), &mut |_| {}), Err(BackupError::HoldsData { .. })));
    assert!(matches!(
        restore(&target.path().join("nowhere"), &target.path().join("x"), &mut |_| {}),
        Err(BackupError::Open(OpenError::Missing { .. }))
    ));
}

#[tokio::test]
async fn a_damaged_backup_is_refused_and_leaves_nothing() {
    let store = Store::new();
    let journal = store.open();
    let writer = session_with(&journal, 3).await;
    let target = tempfile::tempdir().unwrap();
    let copy = target.path().join("copy");
    backup(store.path(), &copy, &mut |_| {}).unwrap();
    let db = rusqlite::Connection::open(copy.join("outlast.db")).unwrap();
    db.execute("UPDATE events SET at = at + 1 WHERE seq = 2", []).unwrap();
    drop(db);
    let empty = target.path().join("empty");
    let refused = restore(&copy, &empty, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains(&format!("session {}, event 2", writer.session())), "{refused}");
    assert!(!empty.join("outlast.db").exists());
    // The folder is still good for a whole one.
    let good = target.path().join("good");
    backup(store.path(), &good, &mut |_| {}).unwrap();
    restore(&good, &empty, &mut |_| {}).unwrap();
    let journal = Journal::open(options(&empty)).unwrap();
    assert_eq!(read_all(&journal, writer.session()).await, numbers(1..=3));
    assert_eq!(journal.keys().await.unwrap().len(), 0);
    let rows = journal
        .sessions(SessionQuery {
            tenant: Tenant::default_tenant(),
            agent: None,
            status: None,
            kind: None,
            limit: None,
            cursor: None,
        })
        .await
        .unwrap();
    assert_eq!(rows.sessions.len(), 1);
}

/// A folder as the first release left it is verified, copied and brought back without being started first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_the_first_schema_is_read_copied_and_upgraded() {
    let store = Store::new();
    let journal = store.open();
    let writer = session_with(&journal, 3).await;
    let session = writer.session();
    journal.close().await;
    let db = rusqlite::Connection::open(store.database()).unwrap();
    db.execute_batch("DROP INDEX sessions_sandbox; DROP INDEX sessions_parent; DROP TABLE sandboxes; PRAGMA user_version = 1").unwrap();
    db.execute_batch("ALTER TABLE sessions DROP COLUMN usage").unwrap();
    for sum in
        ["turns", "untold_turns", "input", "output", "cached_read", "cached_write", "thought", "cost_micros"]
    {
        db.execute_batch(&format!("ALTER TABLE tenants DROP COLUMN used_{sum}")).unwrap();
    }
    drop(db);
    assert!(store.verify().is_whole());
    assert!(snapshots_in(store.path()).unwrap().is_empty());
    let target = tempfile::tempdir().unwrap();
    let (copy, restored) = (target.path().join("copy"), target.path().join("restored"));
    backup(store.path(), &copy, &mut |_| {}).unwrap();
    restore(&copy, &restored, &mut |_| {}).unwrap();
    for dir in [store.path(), &restored] {
        let journal = Journal::open(options(dir)).unwrap();
        assert_eq!(journal.read(session, 0, 10).await.unwrap().events.len(), 3);
        let row = SandboxRow {
            id: "s".to_owned(),
            tenant: Tenant::default_tenant(),
            key: None,
            created_at: Timestamp::from_millis(1),
            snapshot: Some(SnapshotRow {
                id: "ab".to_owned(),
                taken_at: Timestamp::from_millis(2),
                files: 1,
                bytes: 1,
            }),
        };
        journal.put_sandbox(row).await.unwrap();
        journal.close().await;
        assert_eq!(snapshots_in(dir).unwrap(), ["ab"]);
    }
}
