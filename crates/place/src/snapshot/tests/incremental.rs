//! What is read and stored again, and what is not.

use super::*;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::os::unix::fs::FileExt;

fn many(folder: &Path, count: u64) {
    for number in 0..count {
        let sub = folder.join(format!("d{}", number % 7));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join(format!("f{number}")), noise(number, 300)).unwrap();
    }
}

#[test]
fn an_unchanged_folder_is_neither_read_nor_stored() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    many(&folder, 500);
    let first = bench.take(&folder, None);
    assert_eq!((first.read, first.files), (500, 508));
    let objects = bench.objects();
    let second = bench.take(&folder, Some(&first.id));
    assert_eq!(second, Taken { new_bytes: 0, read: 0, ..first });
    assert_eq!(bench.objects(), objects);
}

#[test]
fn a_pack_of_one_file_is_the_same_every_time() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("alone"), "x").unwrap();
    let first = bench.take(&folder, None);
    assert_eq!(bench.take(&folder, Some(&first.id)).id, first.id);
}

#[test]
fn one_change_reads_one_file_and_stores_little() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    many(&folder, 5_000);
    let first = bench.take(&folder, None);
    fs::write(folder.join("d3/f3"), "changed").unwrap();
    let second = bench.take(&folder, Some(&first.id));
    assert_eq!(second.read, 1);
    assert_eq!(bench.snapshots.diff(&first.id, &second.id).unwrap(), Diff { changed: 1, ..Diff::default() });
    // One section of the index, not all of it.
    assert!(second.new_bytes < first.new_bytes / 4, "{} of {}", second.new_bytes, first.new_bytes);
    assert_same(&folder, &bench.restore(&second.id, "back"));
}

#[test]
fn a_file_changed_just_before_is_read_again() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    let file = folder.join("file");
    fs::write(&file, "one").unwrap();
    let now = || protocol::Timestamp::now();
    let take = |previous: Option<&SnapshotId>, now| {
        take::take(&*bench.snapshots.store, &folder, previous, &TakeOptions::default(), now).unwrap()
    };
    // Its change lies within a tick of the reading, so it is not to be relied on, however it looks.
    let first = take(None, now());
    assert_eq!(take(Some(&first.id), now()).read, 1);
    // A file of a page or more may be mapped, and is not relied on for longer.
    fs::write(&file, noise(1, 64 * 1024)).unwrap();
    let soon = protocol::Timestamp::from_millis(now().as_millis() + 20_000);
    let second = take(Some(&first.id), soon);
    assert_eq!(take(Some(&second.id), soon).read, 1);
    let late = protocol::Timestamp::from_millis(now().as_millis() + 120_000);
    let third = take(Some(&second.id), late);
    assert_eq!((third.read, take(Some(&third.id), late).read), (1, 0));
}

#[test]
fn a_change_that_hides_its_time_is_found() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    let file = folder.join("file");
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 1 };
    let times = Timestamps { last_access: time, last_modification: time };
    let write = |content: &str| {
        fs::write(&file, content).unwrap();
        rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
    };
    write("same size 1");
    let first = bench.take(&folder, None);
    write("same size 2");
    let second = bench.take(&folder, Some(&first.id));
    assert_eq!(second.read, 1);
    assert_same(&folder, &bench.restore(&second.id, "back"));
}

#[test]
fn a_changed_byte_of_a_large_file_costs_a_piece() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("large"), noise(1, 20 << 20)).unwrap();
    let first = bench.take(&folder, None);
    assert!(first.new_bytes > 20 << 20);
    let file = fs::OpenOptions::new().write(true).open(folder.join("large")).unwrap();
    file.write_all_at(b"!", 7 << 20).unwrap();
    let second = bench.take(&folder, Some(&first.id));
    assert!(second.new_bytes < (1 << 20) + 4096, "{}", second.new_bytes);
    file.write_all_at(b"appended", 20 << 20).unwrap();
    let third = bench.take(&folder, Some(&second.id));
    assert!(third.new_bytes < 4096, "{}", third.new_bytes);
    assert_same(&folder, &bench.restore(&third.id, "back"));
}

#[test]
fn what_is_moved_or_copied_is_not_stored_again() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::create_dir(folder.join("a")).unwrap();
    fs::write(folder.join("a/large"), noise(1, 3 << 20)).unwrap();
    fs::write(folder.join("a/small"), noise(2, 50_000)).unwrap();
    let first = bench.take(&folder, None);
    fs::rename(folder.join("a"), folder.join("b")).unwrap();
    fs::copy(folder.join("b/small"), folder.join("copy")).unwrap();
    let second = bench.take(&folder, Some(&first.id));
    assert!(second.new_bytes < 4096, "{}", second.new_bytes);
    assert_same(&folder, &bench.restore(&second.id, "back"));
}

#[test]
fn folders_without_a_common_snapshot_share_most_of_their_packs() {
    let bench = Bench::new();
    let (one, two) = (bench.folder("one"), bench.folder("two"));
    for folder in [&one, &two] {
        for number in 0..4_000 {
            fs::write(folder.join(format!("f{number:05}")), noise(number, 2_000)).unwrap();
        }
    }
    fs::write(two.join("f00000"), "different").unwrap();
    let first = bench.take(&one, None);
    let second = bench.take(&two, None);
    assert!(second.new_bytes < first.new_bytes / 2, "{} of {}", second.new_bytes, first.new_bytes);
}

#[test]
fn many_small_changes_do_not_leave_many_small_packs() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    for number in 0..200 {
        fs::write(folder.join(format!("f{number:03}")), noise(number, 500)).unwrap();
    }
    let mut last = bench.take(&folder, None).id;
    for number in 0..200 {
        fs::write(folder.join(format!("f{number:03}")), noise(1000 + number, 500)).unwrap();
        last = bench.take(&folder, Some(&last)).id;
    }
    let objects = objects::Objects::new(&*bench.snapshots.store);
    let root = objects.root(&last).unwrap();
    let packs: usize =
        root.sections.iter().map(|section| objects.section(&section.id).unwrap().objects.len()).sum();
    assert!(packs <= 66, "{packs} packs");
    assert_same(&folder, &bench.restore(&last, "back"));
}
