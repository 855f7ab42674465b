//! A full disk, a failing fsync, a damaged page met in a commit, floods, and blobs that lose their events.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that breaks should stop; clippy knows helpers of tests only inside test functions"
)]

mod support;

use outlast_journal::*;
use protocol::{Actor, Tenant, Timestamp, limits};
use std::{fs, path::Path};
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_delays_and_loses_nothing() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    assert_eq!(journal.space(), Space::Enough);
    store.faults.fail_commits(Fault::Full, 4);
    let mut other = session_with_lane(&journal);
    for n in 2..=50 {
        writer.append(notes(n..=n)).unwrap();
        other.append(notes(n - 1..=n - 1)).unwrap();
    }
    let counted = tokio::spawn({
        let journal = journal.clone();
        async move { journal.count(&Tenant::default_tenant(), "x").await }
    });
    until("space is low while a commit waits", || journal.space() == Space::Low || store.faults.left() == 0)
        .await;
    assert_eq!(settled(&writer).await, Durable::Upto(50));
    assert_eq!(settled(&other).await, Durable::Upto(49));
    assert_eq!(counted.await.unwrap().unwrap(), 1);
    assert_eq!(journal.figures().retries, 4);
    assert_eq!(read_all(&journal, writer.session()).await, numbers(1..=50));
    assert_eq!(read_all(&journal, other.session()).await, numbers(1..=49));
    assert_eq!(journal.space(), Space::Enough);
}

fn session_with_lane(journal: &Journal) -> Writer {
    journal.begin(new_session())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_does_not_wait_for_a_full_disk() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    store.faults.fail_commits(Fault::Full, 1_000_000);
    writer.append(notes(2..=2)).unwrap();
    until("the commit is retried", || journal.figures().retries > 0).await;
    drop(journal);
    assert!(matches!(settled(&writer).await, Durable::Lost(_)));
    let again = Store { faults: Faults::default(), ..store };
    assert_eq!(read_all(&again.open(), writer.session()).await, numbers(1..=1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fsync_stops_the_process() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    store.faults.fail_commits(Fault::Sync, 1);
    writer.append(notes(2..=2)).unwrap();
    store.faults.stopped().await;
    assert!(matches!(settled(&writer).await, Durable::Lost(_)), "nothing was acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_met_in_a_commit_ends_every_writer_with_a_reason() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    let mut idle = session_with(&journal, 1).await;
    store.faults.fail_commits(Fault::Corrupt, 1);
    writer.append(notes(2..=2)).unwrap();
    let Durable::Lost(why) = settled(&writer).await else { panic!("it was stored") };
    assert!(why.contains("outlast restore"), "{why}");
    assert!(matches!(writer.append(notes(3..=3)), Err(WriteError::Storage(_))));
    assert!(matches!(idle.append(notes(2..=2)), Err(WriteError::Storage(_))));
    let refused = journal.count(&Tenant::default_tenant(), "x").await;
    assert!(matches!(refused, Err(WriteError::Storage(why)) if why.contains("outlast restore")));
    assert_eq!(read_all(&journal, idle.session()).await, numbers(1..=1), "reading goes on");
    journal.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_delays_nobody() {
    let store = Store::new();
    let journal = store.open();
    let mut flood = session_with(&journal, 1).await;
    let mut quiet = session_with(&journal, 1).await;
    store.faults.hold();
    let size = limits::INLINE_BODY_BYTES - 1_000;
    let appends = 8 * limits::COMMIT_BYTES_PER_SESSION / size;
    for _ in 0..appends {
        flood.append(append(vec![large(size)])).unwrap();
    }
    assert!(flood.pending_bytes() > 7 * limits::COMMIT_BYTES_PER_SESSION);
    quiet.append(notes(2..=2)).unwrap();
    let before = journal.figures().commits;
    store.faults.release();
    assert_eq!(settled(&quiet).await, Durable::Upto(2));
    let delay = journal.figures().commits - before;
    assert!(delay <= 3, "the quiet one waited for {delay} commits");
    let flooded = flood.durable().borrow().clone();
    assert_ne!(flooded, Durable::Upto(flood.last_seq()), "the flood is not through yet");
    settled(&flood).await;
    assert_eq!(flood.pending_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_never_waits_for_the_disk() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    let mut follower = journal.follow(writer.session(), 1);
    store.faults.hold();
    for n in 2..=100 {
        assert_eq!(writer.append(notes(n..=n)).unwrap(), n);
    }
    assert_eq!(*writer.durable().borrow(), Durable::Upto(1), "numbered, and not yet durable");
    assert_eq!(journal.read(writer.session(), 0, 10).await.unwrap().last_seq, 1, "nor visible");
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), follower.next()).await;
    assert!(early.is_err(), "nor followed");
    store.faults.release();
    settled(&writer).await;
    assert_eq!(follower.next().await.unwrap().events[0].seq, 2, "and the cancelled wait lost nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_lives_as_long_as_an_event_names_it() {
    let store = Store::new();
    let journal = store.open();
    let mut one = session_with(&journal, 1).await;
    let mut two = session_with(&journal, 1).await;
    for writer in [&mut one, &mut two] {
        writer.append(append(vec![large(100_000), large(100_000), large(150_000)])).unwrap();
        settled(writer).await;
    }
    assert_eq!(blobs(&store).len(), 2, "the same content is kept once");
    let kept = two.session();
    one.remove(Actor::System, Timestamp::default()).await.unwrap();
    assert_eq!(blobs(&store).len(), 2);
    assert_eq!(text(&journal.event(kept, 3).await.unwrap().unwrap()).len(), 100_000);
    journal.erase(kept, 4).await.unwrap();
    assert_eq!(blobs(&store).len(), 1);
    two.remove(Actor::System, Timestamp::default()).await.unwrap();
    assert_eq!(blobs(&store).len(), 0);
    let audit = store.verify();
    assert_eq!((audit.breaks.len(), audit.tombstones), (0, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_text_is_its_events_and_a_draft_is_nobodys() {
    let store = Store::new();
    let journal = store.open();
    let (mut one, mut two) = (session_with(&journal, 1).await, session_with(&journal, 1).await);
    let mut draft = journal.draft().unwrap();
    draft.write(b"piece by ").unwrap();
    draft.write(b"piece").unwrap();
    let attachment = draft.finish().unwrap();
    for writer in [&mut one, &mut two] {
        let mut event = note("with a text");
        event.attachment = Some(attachment.clone());
        writer.append(append(vec![event, large(100_000)])).unwrap();
        settled(writer).await;
    }
    let name = attachment.name();
    drop(attachment);
    assert_eq!(journal.attached(&name, 6, 100).await.unwrap(), "by piece");
    assert_eq!(journal.attached(&name, 6, 2).await.unwrap(), "by");
    assert_eq!(journal.attached(&name, 99, 2).await.unwrap(), "");
    assert!(journal.attached("../lock", 0, 1).await.is_err());
    let own = journal.of_kind(one.session(), protocol::EventKind::Notice, 1).await.unwrap();
    assert_eq!(own.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 3]);
    assert!(own[1].body.len() > 100_000, "read whole");
    // Erased with its event, or removed with its session; the other's stays.
    journal.erase(one.session(), 2).await.unwrap();
    assert_eq!(blobs(&store).len(), 2);
    two.remove(Actor::System, Timestamp::default()).await.unwrap();
    assert_eq!(blobs(&store).len(), 1, "the large body of the first is left");
    assert!(journal.attached(&name, 0, 1).await.is_err());
    // One that nobody finishes leaves nothing, whether its writer goes or its server is killed.
    let drafts = || fs::read_dir(store.dir.path().join("drafts")).map_or(0, Iterator::count);
    drop(journal.draft().unwrap());
    assert_eq!(drafts(), 0);
    std::mem::forget(journal.draft().unwrap());
    assert_eq!(drafts(), 1);
    drop((one, two));
    journal.close().await;
    drop(journal);
    let journal = store.open();
    assert_eq!(drafts(), 0);
    journal.close().await;
    let audit = store.verify();
    assert_eq!((audit.breaks.len(), audit.tombstones), (0, 1));
}

/// A small file system of our own, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

#[expect(clippy::disallowed_methods, reason = "mounting needs the system's own tool")]
fn tool(program: &str, args: &[&str]) -> bool {
    std::process::Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        tool("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", &path]).then_some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        tool("umount", &["-l", self.path().to_str().unwrap()]);
    }
}

/// Writes until nothing more fits.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).unwrap();
    let mut size = 1024 * 1024;
    while size > 0 {
        if file.write_all(&vec![1; size]).is_err() {
            size /= 2;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_really_full_disk_uses_the_reserve_and_recovers() {
    const RESERVE: u64 = 2 * 1024 * 1024;
    let Some(disk) = SmallDisk::mount("48m") else {
        println!("SKIPPED: a small file system cannot be mounted here, so a really full disk was not tested");
        return;
    };
    let dir = disk.path().join("data");
    let options = Options { dir: dir.clone(), reserve_bytes: RESERVE, low_water_bytes: 1024 * 1024 };
    let journal = Journal::open(options).unwrap();
    assert_eq!(journal.space(), Space::Enough);
    let mut writer = session_with(&journal, 1).await;
    let ballast = disk.path().join("ballast");
    fill(&ballast);
    until("space is low", || journal.space() == Space::Low).await;
    // What is laid out carries what runs, and then the reserve.
    let mut last = 1;
    while dir.join("reserve").exists() {
        last += 1;
        assert!(last < 1_000, "the log grew and no reserve was used");
        writer.append(notes(last..=last)).unwrap();
        assert_eq!(settled(&writer).await, Durable::Upto(last));
    }
    assert!(last > 100, "what was laid out held {last} commits only");
    // Past the reserve nothing is durable, and nothing is lost. Large bodies wait as well.
    let mut other = session_with_lane(&journal);
    // More than the reserve and all of the log, should it begin anew.
    for n in last + 1..=last + 600 {
        writer.append(append(vec![note(&n.to_string()), large(20_000)])).unwrap();
    }
    other.append(append(vec![large(3_000_000)])).unwrap();
    let retries = journal.figures().retries;
    until("the disk is full again", || journal.figures().retries > retries + 2).await;
    assert_ne!(*writer.durable().borrow(), Durable::Upto(writer.last_seq()));
    assert_eq!(journal.space(), Space::Low);
    let durable = match *writer.durable().borrow() {
        Durable::Upto(seq) => seq,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(journal.read(writer.session(), durable - 1, 1).await.unwrap().last_seq, durable);
    fs::remove_file(&ballast).unwrap();
    assert_eq!(settled(&writer).await, Durable::Upto(writer.last_seq()));
    assert_eq!(settled(&other).await, Durable::Upto(1));
    until("the reserve is back", || dir.join("reserve").exists()).await;
    until("there is room again", || journal.space() == Space::Enough).await;
    let mut short: Vec<_> = read_all(&journal, writer.session()).await;
    short.retain(|text| text.len() < 100);
    assert_eq!(short, numbers(1..=last + 600));
    journal.close().await;
    assert_eq!(verify(&dir, None, &mut |_| {}).unwrap().breaks, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_a_full_disk_opens_with_its_reserve() {
    let Some(disk) = SmallDisk::mount("12m") else {
        println!(
            "SKIPPED: a small file system cannot be mounted here, so a start on a full disk was not tested"
        );
        return;
    };
    let options = Options { dir: disk.path().join("data"), reserve_bytes: 1024 * 1024, low_water_bytes: 0 };
    let journal = Journal::open(options.clone()).unwrap();
    let session = session_with(&journal, 3).await.session();
    journal.close().await;
    drop(journal);
    let ballast = disk.path().join("ballast");
    fill(&ballast);
    let journal = Journal::open(options).unwrap();
    assert_eq!(journal.space(), Space::Low);
    let (mut writer, _) = journal.acquire(session).await.unwrap();
    writer.append(notes(4..=4)).unwrap();
    assert_eq!(settled(&writer).await, Durable::Upto(4));
    assert_eq!(read_all(&journal, session).await, numbers(1..=4));
}
