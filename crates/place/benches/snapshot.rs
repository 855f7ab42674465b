//! What snapshots cost, beside the floor of the same work without any of the promises, in one run.
//!
//! `cargo bench -p outlast-place --bench snapshot`

#![expect(clippy::print_stdout, reason = "a bench is read by people")]
#![expect(clippy::unwrap_used, reason = "a bench that cannot run has nothing to say")]

use outlast_place::{
    files::{Files, Remove},
    snapshot::{Existing, Local, RestoreOptions, SnapshotId, Snapshots, Sync, TakeOptions, Taken, Watch},
};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

const ROUNDS: usize = 21;

fn main() {
    let room = tempfile::tempdir().unwrap();
    let snapshots = Snapshots::new(Local::open(room.path().join("store")).unwrap());
    println!("median of {ROUNDS}; ms, and the ratio to the floor above");
    many_files(room.path(), &snapshots);
    small_workspace(room.path(), &snapshots);
    large_file(room.path(), &snapshots);
}

fn many_files(room: &Path, snapshots: &Snapshots) {
    let folder = room.join("many");
    for number in 0..10_000u64 {
        let sub = folder.join(format!("d{:02}/e{}", number / 100, number % 3));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join(format!("file-{number}.txt")), text(number, 2_000)).unwrap();
    }
    let started = Instant::now();
    let first = take(snapshots, &folder, None);
    println!("10,000 files: first snapshot {:.1}, {} bytes stored", ms(started.elapsed()), first.new_bytes);
    // Files are read again until their last change is old enough to be relied on.
    let mut last = first;
    while last.read > 0 {
        last = take(snapshots, &folder, Some(&last.id));
    }
    let floor = median(|| {
        bare_walk(&folder);
    });
    show("  floor: bare walk with fstatat", floor, floor);
    let unchanged = median(|| {
        assert_eq!(take(snapshots, &folder, Some(&last.id)).id, last.id);
    });
    show("  snapshot, unchanged", unchanged, floor);
    let mut round = 0;
    let changed = median_after(
        || {
            round += 1;
            fs::write(folder.join("d50/e1/file-5002.txt"), text(round, 2_000)).unwrap();
            fs::write(folder.join("d50/e1/file-5002.txt"), text(round + 1, 2_000)).unwrap();
        },
        || last = take(snapshots, &folder, Some(&last.id)),
    );
    show("  snapshot, one file changed", changed, unchanged);
    let files = Files::open(room).unwrap();
    let (into, copy) = (room.join("restored"), Path::new("copy"));
    let options = RestoreOptions { existing: Existing::Replace, ..RestoreOptions::default() };
    // In turn, since the disk has moods; each removes what it made before.
    let (mut copies, mut restores) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        copies.push(timed(|| {
            let _ = files.remove(copy, Remove::WithContents);
            bare_copy(&folder, &room.join(copy));
        }));
        restores.push(timed(|| {
            snapshots.restore(&last.id, &into, &options).unwrap();
        }));
    }
    let floor = middle(copies);
    show("  floor: bare copy over the last one", floor, floor);
    show("  restore over the last one", middle(restores), floor);
    let collect = median_of(5, || {
        snapshots.collect([last.id], Duration::from_secs(3600), &Watch::default()).unwrap();
    });
    println!("  {:<38} {collect:>9.2}", "garbage collection");
}

fn small_workspace(room: &Path, snapshots: &Snapshots) {
    let folder = room.join("small");
    for number in 0..100u64 {
        let sub = folder.join(format!("d{}", number / 20));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join(format!("file-{number}")), text(number, 10_000)).unwrap();
    }
    let taken = take(snapshots, &folder, None);
    println!("1 MB in 100 files:");
    let into = room.join("again");
    let files = Files::open(room).unwrap();
    let clear = || {
        let _ = files.remove(Path::new("again"), Remove::WithContents);
    };
    let floor = median_after(clear, || bare_copy(&folder, &into));
    show("  floor: bare copy", floor, floor);
    for (name, sync) in [("  restore", Sync::Lazily), ("  restore, on disk before it is named", Sync::First)]
    {
        let options = RestoreOptions { sync, ..RestoreOptions::default() };
        let restore = median_after(clear, || {
            snapshots.restore(&taken.id, &into, &options).unwrap();
        });
        show(name, restore, floor);
    }
    let read = median(|| {
        snapshots.read_file(&taken.id, Path::new("d3/file-77"), 0..100_000).unwrap();
    });
    println!("  {:<38} {read:>9.2}", "one file read from the snapshot");
}

fn large_file(room: &Path, snapshots: &Snapshots) {
    let folder = room.join("large");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("file");
    let file = fs::File::create(&path).unwrap();
    for megabyte in 0..256u64 {
        file.write_all_at(&text(megabyte, 1 << 20), megabyte << 20).unwrap();
    }
    println!("256 MB in one file:");
    let floor = median_of(3, || {
        blake3::Hasher::new().update(&fs::read(&path).unwrap()).finalize();
    });
    show("  floor: read and hash", floor, floor);
    let mut last: Option<SnapshotId> = None;
    let started = Instant::now();
    last = Some(take(snapshots, &folder, last.as_ref()).id);
    show("  first snapshot", ms(started.elapsed()), floor);
    let mut at = 0;
    let changed = median_of(3, || {
        at += 50;
        file.write_all_at(b"!", at << 20).unwrap();
        last = Some(take(snapshots, &folder, last.as_ref()).id);
    });
    show("  snapshot, one byte changed", changed, floor);
}

fn take(snapshots: &Snapshots, folder: &Path, previous: Option<&SnapshotId>) -> Taken {
    snapshots.take(folder, previous, &TakeOptions::default()).unwrap()
}

/// Words that compress about as well as source code.
fn text(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(format!("{:x} let ", state >> 52).as_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn bare_walk(folder: &Path) -> u64 {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut left = vec![rustix::fs::openat(CWD, folder, flags, Mode::empty()).unwrap()];
    let mut bytes = 0;
    while let Some(folder) = left.pop() {
        for entry in Dir::read_from(&folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if entry.file_type() == FileType::Directory {
                left.push(rustix::fs::openat(&folder, name, flags, Mode::empty()).unwrap());
            } else {
                let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
                bytes += stat.st_size as u64;
            }
        }
    }
    bytes
}

fn bare_copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            bare_copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::write(to.join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

fn show(what: &str, median: f64, floor: f64) {
    println!("{what:<40} {median:>9.2}  {:>6.2}x", median / floor);
}

fn median(work: impl FnMut()) -> f64 {
    median_of(ROUNDS, work)
}

fn median_of(rounds: usize, mut work: impl FnMut()) -> f64 {
    middle((0..rounds).map(|_| timed(&mut work)).collect())
}

fn median_after(mut before: impl FnMut(), mut work: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        before();
        timed(&mut work)
    });
    middle(times.collect())
}

fn timed(mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    work();
    ms(started.elapsed())
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
