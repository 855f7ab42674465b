//! Whatever is changed behind the journal's back is found, and said what it is.
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

/// A store with a session of five events, one of them large, and a removed session.
async fn recorded() -> (Store, SessionId) {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 4).await;
    writer.append(append(vec![large(100_000)])).unwrap();
    settled(&writer).await;
    let removed = session_with(&journal, 3).await;
    removed.remove(Actor::System, Timestamp::from_millis(9)).await.unwrap();
    let session = writer.session();
    journal.close().await;
    (store, session)
}

#[tokio::test]
async fn an_untouched_store_verifies() {
    let (store, session) = recorded().await;
    let audit = store.verify();
    assert_eq!(audit.breaks, []);
    assert_eq!((audit.sessions, audit.events, audit.tombstones, audit.erased), (1, 5, 1, 0));
    assert!(verify(store.path(), Some(session), &mut |_| {}).unwrap().is_whole());
    let missing = verify(store.path(), Some(SessionId::new()), &mut |_| {}).unwrap();
    assert!(matches!(missing.breaks[0].flaw, Flaw::Unreadable(_)));
}

#[tokio::test]
async fn every_change_is_found_where_it_is() {
    let cases: &[(&str, Option<u64>, Flaw)] = &[
        ("UPDATE events SET body = replace(body, '2', '3') WHERE seq = 2", Some(2), Flaw::Body),
        ("UPDATE events SET salt = zeroblob(16) WHERE seq = 2", Some(2), Flaw::Body),
        ("UPDATE events SET salt = NULL WHERE seq = 2", Some(2), Flaw::Body),
        ("UPDATE events SET at = at + 1 WHERE seq = 2", Some(2), Flaw::Envelope),
        ("UPDATE events SET actor = 'agent' WHERE seq = 3", Some(3), Flaw::Envelope),
        ("UPDATE events SET kind = 'error' WHERE seq = 3", Some(3), Flaw::Envelope),
        ("UPDATE events SET version = 0 WHERE seq = 3", Some(3), Flaw::Envelope),
        ("UPDATE events SET body_hash = zeroblob(32) WHERE seq = 3", Some(3), Flaw::Envelope),
        ("UPDATE events SET hash = zeroblob(32) WHERE seq = 3", Some(3), Flaw::Envelope),
        ("UPDATE events SET blob = zeroblob(32) WHERE seq = 5", Some(5), Flaw::BlobMissing),
        ("UPDATE events SET seq = 9 WHERE seq = 3", Some(3), Flaw::Gap),
        ("UPDATE events SET seq = 9 WHERE seq = 5", Some(5), Flaw::Gap),
        ("DELETE FROM events WHERE seq = 1", Some(1), Flaw::Gap),
        ("DELETE FROM events WHERE seq = 3", Some(3), Flaw::Gap),
        ("DELETE FROM events WHERE seq = 5", Some(5), Flaw::Gap),
        ("UPDATE events SET seq = 13 - seq WHERE seq IN (2, 3)", Some(2), Flaw::Gap),
        ("UPDATE sessions SET head_seq = 4", Some(4), Flaw::Head),
        ("UPDATE sessions SET head_hash = zeroblob(32)", Some(5), Flaw::Head),
        ("UPDATE sessions SET base_hash = zeroblob(32)", Some(1), Flaw::Origin),
        ("UPDATE sessions SET id = randomblob(16)", Some(1), Flaw::Origin),
        ("UPDATE tenants SET name = 'other'", Some(1), Flaw::Origin),
        ("UPDATE sessions SET bytes = bytes + 1", None, Flaw::Count),
        ("DELETE FROM sessions", None, Flaw::Count),
        ("UPDATE tenant_chain SET last_seq = 2", Some(1), Flaw::Tombstone),
        ("UPDATE tenant_chain SET at = at + 1", Some(1), Flaw::Tombstone),
        ("DELETE FROM tenant_chain", Some(1), Flaw::Tombstone),
    ];
    for (sql, seq, flaw) in cases {
        let (store, _) = recorded().await;
        store.tamper(sql);
        let audit = store.verify();
        let first = audit.breaks.first().unwrap_or_else(|| panic!("{sql} was not found"));
        assert_eq!((first.seq, &first.flaw), (*seq, flaw), "{sql}");
    }
}

#[tokio::test]
async fn swapped_events_are_found() {
    let (store, _) = recorded().await;
    for sql in [
        "UPDATE events SET seq = 99 WHERE seq = 2",
        "UPDATE events SET seq = 2 WHERE seq = 3",
        "UPDATE events SET seq = 3 WHERE seq = 99",
    ] {
        store.tamper(sql);
    }
    let audit = store.verify();
    assert_eq!((audit.breaks[0].seq, &audit.breaks[0].flaw), (Some(2), &Flaw::Envelope));
}

#[tokio::test]
async fn an_end_that_was_cut_off_with_care_is_missed_by_the_count() {
    let (store, _) = recorded().await;
    store.tamper("DELETE FROM events WHERE seq = 5");
    store.tamper("UPDATE sessions SET head_seq = 4, head_hash = (SELECT hash FROM events WHERE seq = 4)");
    assert_eq!(store.verify().breaks[0].flaw, Flaw::Count);
}

#[tokio::test]
async fn every_single_byte_of_a_body_counts() {
    let (store, _) = recorded().await;
    let db = rusqlite::Connection::open(store.database()).unwrap();
    let body: String = db.query_row("SELECT body FROM events WHERE seq = 2", [], |row| row.get(0)).unwrap();
    let write = |bytes: &[u8]| {
        db.execute("UPDATE events SET body = CAST(?1 AS TEXT) WHERE seq = 2", [bytes]).unwrap();
    };
    for index in 0..body.len() {
        let mut bytes = body.clone().into_bytes();
        bytes[index] ^= 1;
        write(&bytes);
        let audit = store.verify();
        assert_eq!((audit.breaks[0].seq, &audit.breaks[0].flaw), (Some(2), &Flaw::Body), "byte {index}");
    }
    write(body.as_bytes());
    assert!(store.verify().is_whole());
}

#[tokio::test]
async fn a_changed_blob_is_found() {
    let (store, _) = recorded().await;
    let blob = blobs(&store).pop().unwrap();
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[50_000] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let audit = store.verify();
    assert_eq!((audit.breaks[0].seq, &audit.breaks[0].flaw), (Some(5), &Flaw::Body));
    assert!(audit.breaks[0].to_string().ends_with(", event 5: the body was changed after it was recorded"));
    std::fs::remove_file(&blob).unwrap();
    assert_eq!(store.verify().breaks[0].flaw, Flaw::BlobMissing);
}

#[tokio::test]
async fn what_the_journal_itself_takes_away_still_verifies() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1_000).await;
    writer.append(append(vec![large(100_000)])).unwrap();
    settled(&writer).await;
    journal.erase(writer.session(), 900).await.unwrap();
    journal.erase(writer.session(), 1_001).await.unwrap();
    journal.cut(writer.session(), 701).await.unwrap();
    writer.append(notes(1_002..=1_010)).unwrap();
    settled(&writer).await;
    session_with(&journal, 700).await.remove(Actor::Agent, Timestamp::default()).await.unwrap();
    session_with(&journal, 1).await.remove(Actor::Agent, Timestamp::default()).await.unwrap();
    // Beside the running journal.
    let audit = store.verify();
    assert_eq!(audit.breaks, []);
    assert_eq!((audit.sessions, audit.events, audit.erased, audit.tombstones), (1, 310, 2, 2));
    assert!(blobs(&store).is_empty(), "the erased body's file is gone");
    // Everything cut, and written on.
    journal.cut(writer.session(), 9_999).await.unwrap();
    assert_eq!(store.verify().breaks, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verifying_beside_writers_finds_no_ghosts() {
    let store = Store::new();
    let journal = store.open();
    let mut writers = Vec::new();
    for _ in 0..4 {
        writers.push(session_with(&journal, 1).await);
    }
    let path = store.path().to_owned();
    let audits = tokio::task::spawn_blocking(move || {
        (0..20).flat_map(|_| verify(&path, None, &mut |_| {}).unwrap().breaks).collect::<Vec<_>>()
    });
    let mut n = 1;
    while !audits.is_finished() {
        n += 1;
        for writer in &mut writers {
            writer.append(notes(n..=n)).unwrap();
        }
        settled(&writers[0]).await;
        journal.cut(writers[1].session(), n / 2).await.unwrap();
        session_with(&journal, 2).await.remove(Actor::System, Timestamp::default()).await.unwrap();
    }
    assert_eq!(audits.await.unwrap(), []);
}
