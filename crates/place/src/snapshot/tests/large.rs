//! Deep trees, many files, large files.

use super::*;
use rustix::fs::{CWD, Mode, OFlags};

/// Folders within folders, with a file at the bottom, too deep for any path.
fn dig(root: &Path, levels: usize, beside: bool) {
    let open = |from: &std::os::fd::OwnedFd, name: &str| {
        rustix::fs::openat(from, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    };
    let mut folder =
        rustix::fs::openat(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&folder, "d", Mode::from_raw_mode(0o755)).unwrap();
        if beside {
            // A second folder after the first, so that every level has to be come back to.
            rustix::fs::mkdirat(&folder, "e", Mode::from_raw_mode(0o755)).unwrap();
        }
        folder = open(&folder, "d");
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(&folder, "bottom", flags, Mode::from_raw_mode(0o644)).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
}

fn remove(bench: &Bench, name: &str) {
    let room = rustix::fs::openat(CWD, bench.room.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let room = room.unwrap();
    crate::files::remove_tree(std::os::fd::AsFd::as_fd(&room), OsStr::new(name)).unwrap();
    assert!(!bench.path(name).exists());
}

#[test]
fn ten_thousand_levels_neither_overflow_nor_run_out_of_descriptors() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    dig(&folder, 10_000, true);
    // A small stack and few descriptors would show either.
    let work = || {
        let taken = bench.take(&folder, None);
        assert_eq!(taken.files, 20_002);
        let again = bench.take(&folder, Some(&taken.id));
        assert_eq!((again.read, again.id), (0, taken.id));
        let back = bench.restore(&taken.id, "back");
        let copy = bench.take(&back, None);
        assert_eq!(bench.snapshots.diff(&taken.id, &copy.id).unwrap(), Diff::default());
        let bottom = "d/".repeat(10_000) + "bottom";
        let read = bench.snapshots.read_file(&taken.id, Path::new(&bottom), 0..10).unwrap();
        assert_eq!(read, b"deep");
        remove(&bench, "back");
        remove(&bench, "work");
    };
    std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, work).unwrap().join().unwrap();
    });
}

#[test]
fn depth_beyond_the_limit_is_refused() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    dig(&folder, DEPTH + 1, false);
    let refused = bench.try_take(&folder, None, &TakeOptions::default());
    assert!(matches!(refused, Err(SnapshotError::TooDeep { limit: DEPTH })), "{refused:?}");
    remove(&bench, "work");
}

#[test]
fn twenty_thousand_small_files_become_few_objects() {
    let bench = Bench::new();
    small_files(&bench, 20_000);
}

#[test]
#[ignore = "two hundred thousand files take a while; run with --ignored"]
fn two_hundred_thousand_small_files_become_few_objects() {
    let bench = Bench::new();
    small_files(&bench, 200_000);
}

fn small_files(bench: &Bench, count: u64) {
    let folder = bench.folder("work");
    for number in 0..count {
        if number.is_multiple_of(1_000) {
            fs::create_dir(folder.join(format!("d{}", number / 1_000))).unwrap();
        }
        let file = folder.join(format!("d{}/f{number}", number / 1_000));
        fs::write(file, noise(number, 40)).unwrap();
    }
    let taken = bench.take(&folder, None);
    assert_eq!(taken.read, count);
    let objects = bench.objects().len() as u64;
    assert!(objects < count / 100, "{objects} objects");
    let again = bench.take(&folder, Some(&taken.id));
    assert_eq!((again.id, again.read, again.new_bytes), (taken.id, 0, 0));
    assert_same(&folder, &bench.restore(&taken.id, "back"));
}
