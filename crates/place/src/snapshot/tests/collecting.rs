//! Garbage collection, also beside a take that is under way.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const NOW: Duration = Duration::ZERO;

#[test]
fn what_no_snapshot_needs_goes_and_the_rest_stays() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("both"), noise(1, 400_000)).unwrap();
    fs::write(folder.join("first"), noise(2, 400_000)).unwrap();
    let first = bench.take(&folder, None).id;
    fs::rename(folder.join("first"), bench.path("elsewhere")).unwrap();
    fs::write(folder.join("second"), noise(3, 400_000)).unwrap();
    let second = bench.take(&folder, Some(&first)).id;
    assert_eq!(bench.collect([first, second]).removed, 0);
    // What is not idle for long enough stays, needed or not.
    let patient = bench.snapshots.collect([second], Duration::from_secs(2 * 86_400), &Watch::default());
    assert_eq!(patient.unwrap(), Collected { needed: 4, young: 3, ..Collected::default() });
    let collected = bench.collect([second]);
    assert_eq!((collected.removed, collected.needed), (3, 4));
    assert!(collected.freed_bytes > 400_000);
    assert_same(&folder, &bench.restore(&second, "second"));
    let gone = bench.snapshots.list(&first, Path::new(""), None, 1);
    assert!(matches!(gone, Err(SnapshotError::NoSnapshot(_))), "{gone:?}");
    assert_eq!(bench.collect([]).removed, 4);
    assert_eq!(bench.objects().len(), 0);
}

#[test]
fn a_copy_holds_what_was_asked_for_and_nothing_else() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("both"), noise(1, 400_000)).unwrap();
    let first = bench.take(&folder, None).id;
    fs::write(folder.join("second"), noise(3, 400_000)).unwrap();
    let second = bench.take(&folder, Some(&first)).id;
    let other = Snapshots::new(Local::open(bench.path("other")).unwrap());
    let copied = bench.snapshots.copy([first], &*other.store, &Watch::default()).unwrap();
    assert_eq!(copied.objects, 3);
    let more = bench.snapshots.copy([first, second], &*other.store, &Watch::default()).unwrap();
    assert!(
        more.objects > 0 && more.objects < bench.objects().len() as u64,
        "only what was missing: {more:?}"
    );
    let into = bench.path("back");
    other.restore(&second, &into, &RestoreOptions::default()).unwrap();
    assert_same(&folder, &into);
    fs::remove_dir_all(bench.path("store/objects")).unwrap();
    let third = Snapshots::new(Local::open(bench.path("third")).unwrap());
    let gone = bench.snapshots.copy([second], &*third.store, &Watch::default());
    assert!(matches!(gone, Err(SnapshotError::NoSnapshot(_))), "{gone:?}");
}

#[test]
fn a_held_snapshot_outlives_a_collection() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("file"), "x").unwrap();
    let id = bench.take(&folder, None).id;
    let held = bench.snapshots.hold(&id);
    assert_eq!(bench.collect([]).removed, 0);
    bench.restore(&id, "back");
    drop(held);
    assert_eq!(bench.collect([]).removed, 3);
}

#[test]
fn a_kept_snapshot_that_cannot_be_read_stops_it() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("file"), "x").unwrap();
    let id = bench.take(&folder, None).id;
    let stranger = SnapshotId(ObjectId::of(b"nothing"));
    let stopped = bench.snapshots.collect([stranger], NOW, &Watch::default());
    assert!(matches!(stopped, Err(SnapshotError::NoSnapshot(_))), "{stopped:?}");
    assert_eq!(bench.objects().len(), 3);
    bench.restore(&id, "back");
}

#[test]
fn objects_found_again_by_a_running_take_are_not_collected() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    for number in 0..40 {
        fs::write(folder.join(number.to_string()), noise(number, 300_000)).unwrap();
    }
    // Before each round all objects are there, old and unneeded. A snapshot that finds them again must get to
    // keep them, although they are being collected all the while.
    let snapshots = bench.snapshots.clone();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut removed = 0;
            while !done.load(Ordering::Relaxed) {
                removed += snapshots.collect([], NOW, &Watch::default()).unwrap().removed;
            }
            removed
        });
        for round in 0..10 {
            bench.age();
            let taken = bench.snapshots.take(&folder, None, &TakeOptions::default()).unwrap();
            let back = bench.path(&format!("back{round}"));
            bench.snapshots.restore(&taken.id, &back, &RestoreOptions::default()).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(collector.join().unwrap() > 0, "the collector had nothing to do");
    });
}
