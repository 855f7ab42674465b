//! Snapshots taken, restored, read and collected through the one face that the session task and the doors use.

use super::*;
use place::files::Remove;
use protocol::{FileKind, FileSource};
use std::{
    fs::{self, FileTimes},
    os::unix::fs::{PermissionsExt, symlink},
    time::SystemTime,
};

const BOX: &str = "box-1";

struct Bench {
    room: tempfile::TempDir,
    journal: Journal,
    sandboxes: Sandboxes,
}

impl Bench {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let room = tempfile::tempdir().unwrap();
        let (journal, sandboxes) = open(room.path(), limits);
        let bench = Self { room, journal, sandboxes };
        let work = bench.work();
        fs::create_dir_all(work.join("src/empty")).unwrap();
        fs::write(work.join("src/main.rs"), "fn main() {}").unwrap();
        fs::set_permissions(work.join("src/main.rs"), PermissionsExt::from_mode(0o750)).unwrap();
        symlink("src/main.rs", work.join("link")).unwrap();
        fs::write(work.join("large"), vec![7; 3_000_000]).unwrap();
        bench
    }

    fn work(&self) -> PathBuf {
        self.room.path().join("places").join(BOX)
    }

    async fn take(&self) -> Result<SnapshotTaken, Fault> {
        self.sandboxes.snapshot(&Tenant::default_tenant(), BOX, &self.work(), Owners::default()).await
    }

    async fn files(&self) -> Files {
        self.sandboxes.files(BOX, self.work()).await.unwrap()
    }

    async fn last(&self) -> Option<String> {
        self.journal.sandbox(BOX).await.unwrap().and_then(|row| row.snapshot).map(|snapshot| snapshot.id)
    }

    fn objects(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.room.path().join("snapshots/objects")).unwrap();
        let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().path()).collect()
    }

    /// As if everything had been stored long ago.
    fn age(&self) {
        let past = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        for object in self.objects() {
            fs::File::open(object).unwrap().set_times(past).unwrap();
        }
    }
}

fn open(dir: &Path, limits: Limits) -> (Journal, Sandboxes) {
    let options = journal::Options { dir: dir.to_owned(), reserve_bytes: 0, low_water_bytes: 0 };
    let journal = Journal::open(options).unwrap();
    let sandboxes = Sandboxes::without_collector(dir, journal.clone(), limits).unwrap();
    (journal, sandboxes)
}

async fn whole(mut content: Content) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = content.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_goes_into_a_snapshot_and_comes_back() {
    let bench = Bench::new();
    let none = bench.sandboxes.restore(BOX, &bench.room.path().join("x"), None).await.unwrap();
    assert_eq!(none, None, "there is nothing to restore before the first snapshot");
    let first = bench.take().await.unwrap();
    assert_eq!((first.files, first.left_out, first.torn), (6, 0, 0));
    assert_eq!(bench.last().await, Some(first.snapshot.clone()));
    fs::write(bench.work().join("new"), "x").unwrap();
    let second = bench.take().await.unwrap();
    assert_ne!(second.snapshot, first.snapshot);
    assert_eq!(bench.last().await, Some(second.snapshot.clone()));

    fs::rename(bench.work(), bench.room.path().join("before")).unwrap();
    let restored =
        bench.sandboxes.restore(BOX, &bench.work(), Some(Owners::default())).await.unwrap().unwrap();
    assert_eq!((restored.snapshot, restored.files, restored.lost), (second.snapshot, 7, 0));
    for path in ["src/main.rs", "large", "new"] {
        let read = |root: PathBuf| fs::read(root.join(path)).unwrap();
        assert_eq!(read(bench.work()), read(bench.room.path().join("before")), "{path}");
    }
    let mode = fs::metadata(bench.work().join("src/main.rs")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);
    assert!(bench.work().join("src/empty").is_dir());
    assert_eq!(fs::read_link(bench.work().join("link")).unwrap(), Path::new("src/main.rs"));
    let again = bench.sandboxes.restore(BOX, &bench.work(), None).await.unwrap_err();
    assert_eq!(again.code, Code::SandboxFailed, "a folder that is there is not overwritten: {again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_the_same_on_disk_and_in_the_snapshot_but_for_changing_them() {
    let bench = Bench::new();
    bench.take().await.unwrap();
    let live = bench.files().await;
    let gone = bench.room.path().join("nowhere");
    let kept = bench.sandboxes.files(BOX, gone.clone()).await.unwrap();
    assert_eq!((live.source(), kept.source()), (FileSource::Sandbox, FileSource::Snapshot));
    for path in ["", "src", "./src//"] {
        let listed = live.list(path.into(), None, 100).await.unwrap();
        let stored = kept.list(path.into(), None, 100).await.unwrap();
        assert_eq!(listed.files, stored.files, "{path}");
        assert!(!listed.files.is_empty());
    }
    let page = kept.list(PathBuf::new(), None, 2).await.unwrap();
    assert_eq!(page.next_cursor.as_deref(), Some("link"));
    let rest = kept.list(PathBuf::new(), page.next_cursor.map(Into::into), 2).await.unwrap();
    assert_eq!((rest.files[0].path.as_str(), rest.next_cursor), ("src", None));
    for files in [&live, &kept] {
        let large = files.read("large".into()).await.unwrap();
        assert_eq!(large.size(), Some(3_000_000));
        assert!(whole(large).await == vec![7; 3_000_000]);
        let part = files.read("src/main.rs".into()).await.unwrap().part(3..7);
        assert_eq!(whole(part).await, b"main");
        let beyond = files.read("src/main.rs".into()).await.unwrap().part(100..200);
        assert_eq!(whole(beyond).await, b"");
        for (bad, code) in
            [("nothing", Code::FileNotFound), ("src", Code::BadPath), ("src/main.rs/x", Code::FileNotFound)]
        {
            let fault = files.read(bad.into()).await.unwrap_err();
            assert!(fault.code == code || fault.code == Code::BadPath, "{bad}: {fault:?}");
        }
        let entry = files.look("link".into()).await.unwrap();
        assert_eq!((entry.kind, entry.target.as_deref()), (FileKind::Link, Some("src/main.rs")));
    }
    let tars = (whole(live.tar("src".into()).await.unwrap()), whole(kept.tar("src".into()).await.unwrap()));
    assert_eq!(tars.0.await, tars.1.await);
    assert_eq!(kept.tar("nothing".into()).await.unwrap_err().code, Code::FileNotFound);

    let content = bench.room.path().join("content");
    fs::write(&content, "written").unwrap();
    let how = Written { mode: Some(0o700) };
    for fault in [
        kept.write("a/b".into(), &content, how).await.unwrap_err(),
        kept.remove("large".into(), Remove::Alone).await.unwrap_err(),
    ] {
        assert_eq!(fault.code, Code::NotRunning);
        assert!(fault.message.contains("resume the session first"), "{fault}");
    }
    let written = live.write("a/b".into(), &content, how).await.unwrap();
    assert_eq!((written.path.as_str(), written.mode.as_str(), written.size), ("a/b", "700", 7));
    assert_eq!(live.remove("a".into(), Remove::Alone).await.unwrap_err().code, Code::Conflict);
    live.remove("a".into(), Remove::WithContents).await.unwrap();
    assert_eq!(live.look("a".into()).await.unwrap_err().code, Code::FileNotFound);

    let nobody = bench.sandboxes.files("box-2", gone).await.unwrap_err();
    assert_eq!(nobody.code, Code::FileNotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_over_its_quota_is_refused_and_the_last_snapshot_stays() {
    let bench = Bench::with(Limits { bytes: 3_100_000, files: 7 });
    let good = bench.take().await.unwrap();
    fs::write(bench.work().join("more"), vec![1; 200_000]).unwrap();
    let fault = bench.take().await.unwrap_err();
    assert_eq!(fault.code, Code::QuotaExceeded);
    assert!(fault.message.contains("3100000 bytes"), "{fault}");
    fs::write(bench.work().join("more"), "").unwrap();
    fs::write(bench.work().join("and more"), "").unwrap();
    let fault = bench.take().await.unwrap_err();
    assert_eq!(fault.code, Code::QuotaExceeded);
    assert_eq!(bench.last().await, Some(good.snapshot));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_nobody_waits_for_stops_and_changes_nothing() {
    let bench = Bench::new();
    let good = bench.take().await.unwrap();
    for number in 0..3_000 {
        fs::write(bench.work().join(format!("file-{number}")), vec![0; 2_000]).unwrap();
    }
    // Long enough to have begun, as the permit shows, and dropped then.
    let bulk = Arc::clone(&bench.sandboxes.inner.work.takes);
    let all = bulk.available_permits();
    let begun = async {
        while bulk.available_permits() == all {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = bench.take() => panic!("too quick to be dropped: {done:?}"),
        () = begun => {}
    }
    let everything = u32::try_from(all).unwrap();
    let _all = bulk.acquire_many(everything).await.unwrap();
    assert_eq!(
        bench.last().await,
        Some(good.snapshot),
        "the work is over, and the last good one is the same"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_before_the_row_is_written_keeps_the_snapshot_before() {
    let bench = Bench::new();
    let good = bench.take().await.unwrap();
    fs::write(bench.work().join("large"), "small now").unwrap();
    // The objects of the second one are stored, and then the journal is gone.
    let id = bench.sandboxes.inner.snapshots.take(&bench.work(), None, &TakeOptions::default()).unwrap().id;
    bench.journal.close().await;
    assert_eq!(bench.take().await.unwrap_err().code, Code::Internal);
    let Bench { room, journal, sandboxes } = bench;
    drop((journal, sandboxes));
    let (journal, sandboxes) = open(room.path(), Limits::default());
    let row = journal.sandbox(BOX).await.unwrap().unwrap();
    assert_eq!(row.snapshot.unwrap().id, good.snapshot);
    assert_ne!(id.to_string(), good.snapshot);
    let into = room.path().join("back");
    sandboxes.restore(BOX, &into, None).await.unwrap().unwrap();
    assert_eq!(fs::metadata(into.join("large")).unwrap().len(), 3_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_store_makes_the_next_snapshot_whole_again() {
    let bench = Bench::new();
    bench.take().await.unwrap();
    for object in bench.objects() {
        fs::remove_file(object).unwrap();
    }
    let fault = bench.sandboxes.restore(BOX, &bench.room.path().join("x"), None).await.unwrap_err();
    assert_eq!(fault.code, Code::SandboxFailed);
    assert!(!bench.room.path().join("x").exists(), "whole or not at all");
    bench.take().await.unwrap();
    bench.sandboxes.restore(BOX, &bench.room.path().join("y"), None).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_goes_and_what_a_sandbox_needs_stays() {
    let bench = Bench::new();
    bench.take().await.unwrap();
    bench.age();
    let kept = bench.sandboxes.collect(COLLECT_GRACE).await.unwrap();
    assert_eq!((kept.removed, kept.young), (0, 0));
    let reading = bench.sandboxes.files(BOX, bench.room.path().join("nowhere")).await.unwrap();
    bench.sandboxes.forget(BOX).await.unwrap();
    bench.sandboxes.forget(BOX).await.unwrap();
    assert_eq!(bench.sandboxes.collect(COLLECT_GRACE).await.unwrap().removed, 0, "somebody is reading it");
    assert!(!whole(reading.read("large".into()).await.unwrap()).await.is_empty());
    drop(reading);
    assert!(bench.sandboxes.collect(COLLECT_GRACE).await.unwrap().removed > 0);
    assert_eq!(bench.objects().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_clears_half_made_restores_and_starts_collecting() {
    let bench = Bench::new();
    bench.take().await.unwrap();
    bench.sandboxes.forget(BOX).await.unwrap();
    bench.age();
    let half = bench.work().with_file_name(".outlast-restore-1-2");
    fs::create_dir_all(half.join("part")).unwrap();
    let places = bench.room.path().join("places");
    let opened =
        Sandboxes::open(bench.room.path(), &places, bench.journal.clone(), Limits::default()).await.unwrap();
    assert!(!half.exists() && bench.work().exists());
    let collected = async {
        while !bench.objects().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), collected).await.unwrap();
    drop(opened);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_takes_snapshots_along() {
    let bench = Bench::new();
    bench.take().await.unwrap();
    bench.age();
    let copy = bench.room.path().join("copy");
    hold_snapshots(bench.room.path()).unwrap();
    assert!(bench.objects().iter().all(|object| {
        let modified = fs::metadata(object).unwrap().modified().unwrap();
        modified.elapsed().unwrap_or_default() < COLLECT_GRACE
    }));
    journal::backup(bench.room.path(), &copy, &mut |_| {}).unwrap();
    copy_snapshots(bench.room.path(), &copy, &journal::snapshots_in(&copy).unwrap()).unwrap();
    let (_journal, sandboxes) = open(&copy, Limits::default());
    sandboxes.restore(BOX, &copy.join("back"), None).await.unwrap().unwrap();
    assert_eq!(fs::read(copy.join("back/src/main.rs")).unwrap(), b"fn main() {}");
    // A folder without snapshots has none to copy.
    let empty = tempfile::tempdir().unwrap();
    hold_snapshots(empty.path()).unwrap();
    copy_snapshots(empty.path(), &copy, &[]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_an_archive_that_goes_away_frees_its_place() {
    let bench = Bench::new();
    let files = bench.files().await;
    // More than the number of archives at once, each left after its first piece.
    for _ in 0..20 {
        let mut content = loop {
            match files.tar(PathBuf::new()).await {
                Ok(content) => break content,
                Err(fault) => assert_eq!(fault.code, Code::CapacityReached),
            }
            tokio::task::yield_now().await;
        };
        assert!(content.next().await.unwrap().is_some());
    }
}
