//! Files that are not ours, not whole or not of our time: refused with what to do, never guessed at.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that breaks should stop; clippy knows helpers of tests only inside test functions"
)]

mod support;

use outlast_journal::*;
use protocol::*;
use std::fs;
use support::*;

/// A closed store with something in it.
async fn closed() -> (Store, SessionId) {
    let store = Store::new();
    let journal = store.open();
    let writer = session_with(&journal, 3_000).await;
    let session = writer.session();
    journal.close().await;
    assert_eq!(fs::metadata(store.path().join("outlast.db-wal")).map_or(0, |file| file.len()), 0);
    (store, session)
}

fn refused(store: &Store) -> OpenError {
    match store.try_open() {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_damaged_file_is_refused_with_what_to_do() {
    type Damage = fn(&mut Vec<u8>);
    let cases: &[(&str, Damage)] = &[
        ("empty", |bytes| bytes.clear()),
        ("cut in the header", |bytes| bytes.truncate(50)),
        ("cut after the header", |bytes| bytes.truncate(8192)),
        ("cut in the middle", |bytes| bytes.truncate(bytes.len() / 2)),
        ("last page gone", |bytes| bytes.truncate(bytes.len() - 8192)),
        ("magic", |bytes| bytes[0] ^= 1),
        ("page size", |bytes| bytes[16] ^= 0xff),
        ("garbage", |bytes| bytes.fill(0xa5)),
        ("first page", |bytes| bytes[100..8192].fill(0xff)),
    ];
    let (store, _) = closed().await;
    let whole = fs::read(store.database()).unwrap();
    for (what, damage) in cases {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(store.database(), &bytes).unwrap();
        let error = refused(&store);
        assert!(matches!(error, OpenError::Damaged { .. }), "{what}: {error:?}");
        assert!(error.to_string().contains("outlast restore"), "{what}: {error}");
        assert_eq!(fs::read(store.database()).unwrap(), bytes, "{what}: the file was left alone");
    }
    fs::write(store.database(), &whole).unwrap();
    store.open().close().await;
}

#[tokio::test]
async fn damage_deeper_inside_is_named_when_it_is_met() {
    let (store, session) = closed().await;
    let mut bytes = fs::read(store.database()).unwrap();
    let length = bytes.len();
    bytes[length / 2..length * 9 / 10].fill(0xff);
    fs::write(store.database(), &bytes).unwrap();
    let journal = store.open();
    let mut after = 0;
    let error = loop {
        match journal.read(session, after, 500).await {
            Ok(page) if page.events.is_empty() => panic!("everything was read"),
            Ok(page) => after += page.events.len() as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, ReadError::Storage(why) if why.contains("outlast restore")), "{error}");
    assert!(!store.verify().is_whole());
}

#[tokio::test]
async fn other_peoples_databases_are_left_alone() {
    let store = Store::new();
    let db = rusqlite::Connection::open(store.database()).unwrap();
    db.execute_batch("CREATE TABLE theirs (x); PRAGMA user_version = 7").unwrap();
    drop(db);
    let before = fs::read(store.database()).unwrap();
    assert!(matches!(refused(&store), OpenError::NotOurs { .. }));
    assert_eq!(fs::read(store.database()).unwrap(), before);
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_the_version_it_needs() {
    let (store, _) = closed().await;
    let db = rusqlite::Connection::open(store.database()).unwrap();
    db.execute_batch("PRAGMA user_version = 9; UPDATE meta SET value = '4.5.6' WHERE key = 'program'")
        .unwrap();
    drop(db);
    let error = refused(&store);
    assert!(matches!(error, OpenError::Newer { found: 9, supported: 3, .. }));
    assert!(error.to_string().contains("use outlast 4.5.6 or newer"), "{error}");
    assert!(matches!(verify(store.path(), None, &mut |_| {}), Err(OpenError::Newer { .. })));
}

#[tokio::test]
async fn a_lost_database_beside_its_blobs_is_no_fresh_start() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = journal.begin(new_session());
    writer.append(append(vec![large(100_000)])).unwrap();
    settled(&writer).await;
    journal.close().await;
    fs::remove_file(store.database()).unwrap();
    assert!(matches!(refused(&store), OpenError::Damaged { .. }));
}

#[tokio::test]
async fn a_half_made_database_of_a_crash_is_made_again() {
    let store = Store::new();
    fs::write(store.path().join("outlast.db.new"), b"half").unwrap();
    let journal = store.open();
    session_with(&journal, 1).await;
}

#[tokio::test]
async fn a_torn_log_keeps_what_was_whole() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    for n in 2..=20 {
        writer.append(notes(n..=n)).unwrap();
        settled(&writer).await;
    }
    // As after a power cut: the files as they are now, with rubbish at the log's end.
    let copy = Store::new();
    for file in ["outlast.db", "outlast.db-wal"] {
        fs::copy(store.path().join(file), copy.path().join(file)).unwrap();
    }
    let path = copy.path().join("outlast.db-wal");
    let mut log = fs::read(&path).unwrap();
    let end = log.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(log.len() > end + 10_000, "zeros follow what was written");
    log[end..end + 10_000].fill(0x5a);
    fs::write(&path, log).unwrap();
    let copied = copy.open();
    assert_eq!(read_all(&copied, writer.session()).await, numbers(1..=20));
    copied.close().await;
    assert!(copy.verify().is_whole());
}

/// A log that grows makes every commit wait for the file system's own log.
#[tokio::test]
async fn the_log_is_written_over_under_unbroken_load() {
    let store = Store::new();
    let journal = store.open();
    let length = || fs::metadata(store.path().join("outlast.db-wal")).unwrap().len();
    let laid = length();
    let mut writer = session_with(&journal, 1).await;
    // Several times what is laid out: a commit logs four pages of 8 KiB.
    for n in 2..=1_000 {
        writer.append(notes(n..=n)).unwrap();
        settled(&writer).await;
    }
    assert!(laid > 4 * 1024 * 1024, "{laid}");
    // All of it would be five times that.
    assert!(length() < 3 * laid, "{}", length());
    assert_eq!(read_all(&journal, writer.session()).await, numbers(1..=1_000));
    journal.close().await;
    assert!(store.verify().is_whole());
}

#[tokio::test]
async fn one_folder_has_one_server() {
    let store = Store::new();
    let journal = store.open();
    let error = refused(&store);
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(error.to_string().contains("--data"), "{error}");
    journal.close().await;
    store.open();
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_said() {
    let store = Store::new();
    let file = store.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(Journal::open(options(&file.join("dir"))), Err(OpenError::Io { .. })));
    assert!(matches!(verify(&store.path().join("none"), None, &mut |_| {}), Err(OpenError::Missing { .. })));
}
