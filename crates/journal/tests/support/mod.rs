//! What the tests of this room share: stores to open, sessions to make, and ways to wait.
#![allow(dead_code, reason = "each test program uses a part of it")]

use outlast_journal::*;
use protocol::*;
use std::path::{Path, PathBuf};

pub(crate) struct Store {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) faults: Faults,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), faults: Faults::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path().join("outlast.db")
    }

    pub(crate) fn open(&self) -> Journal {
        self.try_open().unwrap()
    }

    pub(crate) fn try_open(&self) -> Result<Journal, OpenError> {
        let tuning = Tuning { faults: Some(self.faults.clone()), ..Tuning::default() };
        Journal::open_with(options(self.path()), tuning)
    }

    /// A connection of the test's own, to tamper with.
    pub(crate) fn tamper(&self, sql: &str) {
        let db = rusqlite::Connection::open(self.database()).unwrap();
        assert!(db.execute(sql, []).unwrap() > 0, "{sql} changed nothing");
    }

    pub(crate) fn verify(&self) -> Audit {
        verify(self.path(), None, &mut |_| {}).unwrap()
    }
}

pub(crate) fn options(dir: &Path) -> Options {
    Options { dir: dir.to_owned(), reserve_bytes: 0, low_water_bytes: 0 }
}

pub(crate) fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

pub(crate) fn new_session() -> NewSession {
    let id = SessionId::new();
    NewSession {
        id,
        tenant: Tenant::default_tenant(),
        kind: SessionKind::Agent,
        place: PlaceKind::Host,
        sandbox: id.to_string(),
        agent: Some(AgentName::new("demo").unwrap()),
        agent_version: Some(1),
        alias: None,
        created_at: Timestamp::from_millis(1_000),
        forked_from: None,
        spec: r#"{"a":1}"#.to_owned(),
    }
}

pub(crate) fn state(status: Status, live: bool) -> SessionState {
    SessionState {
        status,
        status_reason: None,
        model: Some("m".to_owned()),
        name: None,
        last_active_at: Timestamp::from_millis(2_000),
        live,
        memo: "{}".to_owned(),
        usage: UsageSums::default(),
    }
}

pub(crate) fn note(text: &str) -> NewEvent {
    let body = Body::from(Notice { level: Level::Info, text: text.to_owned() });
    NewEvent::new(Actor::System, body.kind(), body.encode().unwrap())
}

/// An event whose body has about this many bytes.
pub(crate) fn large(bytes: usize) -> NewEvent {
    note(&"x".repeat(bytes))
}

pub(crate) fn append(events: Vec<NewEvent>) -> Append {
    Append { at: Timestamp::from_millis(3_000), events, ..Append::default() }
}

pub(crate) fn notes(range: std::ops::RangeInclusive<u64>) -> Append {
    append(range.map(|n| note(&n.to_string())).collect())
}

/// Waits until everything appended so far is durable.
pub(crate) async fn settled(writer: &Writer) -> Durable {
    let wanted = writer.last_seq();
    let mut durable = writer.durable();
    durable.wait_for(|durable| !matches!(durable, Durable::Upto(seq) if *seq < wanted)).await.unwrap().clone()
}

/// A session with these many events.
pub(crate) async fn session_with(journal: &Journal, count: u64) -> Writer {
    let mut writer = journal.begin(new_session());
    writer.append(Append { state: Some(state(Status::Active, true)), ..notes(1..=count) }).unwrap();
    assert_eq!(settled(&writer).await, Durable::Upto(count));
    writer
}

pub(crate) fn text(event: &StoredEvent) -> String {
    match event.decode().unwrap() {
        Body::Notice(notice) => notice.text,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn read_all(journal: &Journal, session: SessionId) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let page = journal.read(session, texts.len() as u64, 100).await.unwrap();
        texts.extend(page.events.iter().map(text));
        if texts.len() as u64 == page.last_seq {
            return texts;
        }
    }
}

pub(crate) fn numbers(range: std::ops::RangeInclusive<u64>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// The files of all blobs.
pub(crate) fn blobs(store: &Store) -> Vec<PathBuf> {
    let files = |path: &Path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files(&store.path().join("blobs")).flat_map(|folder| files(&folder).collect::<Vec<_>>()).collect()
}

/// Looks again and again until it is so. For states that nothing announces.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(5));
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        tick.tick().await;
    }
    panic!("it never came to: {what}");
}
