//! Modes, times, links, names and sparse files: what comes back is what went in.

use super::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::{
    ffi::OsStr,
    fs::Permissions,
    os::unix::{
        fs::{FileExt, PermissionsExt, symlink},
        net::UnixListener,
    },
};

fn set_time(path: &Path, sec: i64, nsec: i64) {
    let time = Timespec { tv_sec: sec, tv_nsec: nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn odd_workspace(root: &Path) {
    fs::create_dir_all(root.join(".git/objects/ab")).unwrap();
    fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(root.join(".gitignore"), "node_modules\n").unwrap();
    fs::create_dir_all(root.join("node_modules/.bin")).unwrap();
    fs::write(root.join("node_modules/tool.js"), "#!/usr/bin/env node\n").unwrap();
    fs::set_permissions(root.join("node_modules/tool.js"), Permissions::from_mode(0o755)).unwrap();
    symlink("../tool.js", root.join("node_modules/.bin/tool")).unwrap();
    symlink("/etc/passwd", root.join("absolute")).unwrap();
    symlink("nowhere/at all", root.join("dangling")).unwrap();
    symlink(OsStr::from_bytes(b"to \xff\xfe"), root.join(OsStr::from_bytes(b"link \xff"))).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::set_permissions(root.join("empty"), Permissions::from_mode(0o1777)).unwrap();
    fs::write(root.join("empty file"), "").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"not utf-8 \xc3\x28")), "bytes").unwrap();
    fs::write(root.join("line\nbreak"), "x").unwrap();
    // Names whose order as bytes is not the order of a walk.
    fs::create_dir(root.join("a")).unwrap();
    fs::write(root.join("a/z"), "1").unwrap();
    fs::write(root.join("a.b"), "2").unwrap();
    fs::write(root.join("a-b"), "3").unwrap();
    fs::write(root.join("first name"), "shared").unwrap();
    fs::hard_link(root.join("first name"), root.join("a/second name")).unwrap();
    fs::hard_link(root.join("first name"), root.join("zz third name")).unwrap();
    fs::write(root.join("secret"), "s").unwrap();
    fs::set_permissions(root.join("secret"), Permissions::from_mode(0o400)).unwrap();
    fs::write(root.join("setuid"), "s").unwrap();
    fs::set_permissions(root.join("setuid"), Permissions::from_mode(0o6755)).unwrap();
    fs::write(root.join("large"), noise(1, 3_500_000)).unwrap();
    rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o620), 0).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 40 << 20).unwrap();
    sparse.set_len(100 << 20).unwrap();
    let attributes = fs::File::open(root.join("secret")).unwrap();
    let _ = rustix::fs::fsetxattr(&attributes, c"user.note", b"\0kept\xff", XattrFlags::empty());
    let attributes = fs::File::open(root.join("empty")).unwrap();
    let _ = rustix::fs::fsetxattr(&attributes, c"user.folder", b"too", XattrFlags::empty());
    if is_root() {
        std::os::unix::fs::chown(root.join("secret"), Some(4321), Some(1234)).unwrap();
        std::os::unix::fs::lchown(root.join("dangling"), Some(77), Some(88)).unwrap();
    }
    set_time(&root.join("absolute"), 1_000_000_000, 123_456_789);
    set_time(&root.join("a.b"), -5, 1);
    set_time(&root.join("a"), 1_234_567_890, 987_654_321);
    set_time(root, 1_111_111_111, 1);
}

#[test]
fn an_odd_workspace_comes_back_as_it_was() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    odd_workspace(&folder);
    let taken = bench.take(&folder, None);
    assert_eq!(taken.skipped, Skipped::default());
    let back = bench.restore(&taken.id, "back");
    assert_same(&folder, &back);
    let sparse = fs::metadata(back.join("sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "the hole was filled");
    assert!(!bench.snapshots.list(&taken.id, Path::new(""), None, 9).unwrap().entries.is_empty());
    // And a snapshot of the restored folder is no different.
    let again = bench.take(&back, None);
    assert_eq!(bench.snapshots.diff(&taken.id, &again.id).unwrap(), Diff::default());
    assert!(again.new_bytes < 64 * 1024, "contents were stored twice: {}", again.new_bytes);
}

#[test]
fn sockets_and_devices_are_skipped_and_counted() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    let _socket = UnixListener::bind(folder.join("socket")).unwrap();
    fs::write(folder.join("file"), "stays").unwrap();
    let mut expected = Skipped { sockets: 1, ..Skipped::default() };
    if is_root()
        && rustix::fs::mknodat(
            CWD,
            folder.join("null"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            rustix::fs::makedev(1, 3),
        )
        .is_ok()
    {
        expected.devices = 1;
    }
    let taken = bench.take(&folder, None);
    assert_eq!(taken.skipped, expected);
    assert_eq!(taken.files, 2);
    let back = bench.restore(&taken.id, "back");
    assert_eq!(fs::read_dir(&back).unwrap().count(), 1);
}

#[test]
fn setuid_is_recorded_and_dropped_unless_asked_for() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("tool"), "x").unwrap();
    fs::set_permissions(folder.join("tool"), Permissions::from_mode(0o4755)).unwrap();
    fs::create_dir(folder.join("shared")).unwrap();
    fs::set_permissions(folder.join("shared"), Permissions::from_mode(0o3770)).unwrap();
    let taken = bench.take(&folder, None);
    let plain = bench.path("plain");
    bench.snapshots.restore(&taken.id, &plain, &RestoreOptions::default()).unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(plain.join("tool")), 0o755);
    // On a folder these bits give nobody anything.
    assert_eq!(mode(plain.join("shared")), 0o3770);
    assert_eq!(mode(bench.restore(&taken.id, "kept").join("tool")), 0o4755);
}

#[test]
fn owners_are_kept_as_seen_inside() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("file"), "x").unwrap();
    fs::write(folder.join("stranger"), "x").unwrap();
    let shift = |outside| {
        let range = IdRange { inside: 1000, outside, count: 10 };
        Owners { uids: vec![range], gids: vec![range] }
    };
    for path in [folder.clone(), folder.join("file")] {
        std::os::unix::fs::chown(path, Some(50_001), Some(50_002)).unwrap();
    }
    let options = TakeOptions { owners: shift(50_000), ..TakeOptions::default() };
    let taken = bench.try_take(&folder, None, &options).unwrap();
    assert_eq!(taken.skipped, Skipped { unmapped: 1, ..Skipped::default() });
    let entry = bench.snapshots.look(&taken.id, Path::new("file")).unwrap();
    assert_eq!((entry.uid, entry.gid), (1001, 1002));
    let into = bench.path("shifted");
    let options = RestoreOptions { owners: Some(shift(70_000)), ..RestoreOptions::default() };
    let restored = bench.snapshots.restore(&taken.id, &into, &options).unwrap();
    assert_eq!(restored.owners_lost, 1);
    for path in [into.clone(), into.join("file")] {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (70_001, 70_002));
    }
}

#[test]
fn a_link_as_the_folder_is_refused() {
    let bench = Bench::new();
    symlink("/etc", bench.path("link")).unwrap();
    for path in [bench.path("link"), bench.path("nothing")] {
        let refused = bench.try_take(&path, None, &TakeOptions::default());
        assert!(matches!(refused, Err(SnapshotError::NoFolder(_))), "{refused:?}");
    }
}

#[test]
fn restore_replaces_only_when_asked_and_leaves_nothing_beside() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    fs::write(folder.join("new"), "new").unwrap();
    let taken = bench.take(&folder, None);
    let into = bench.folder("into");
    fs::write(into.join("old"), "old").unwrap();
    let refused = bench.snapshots.restore(&taken.id, &into, &RestoreOptions::default());
    assert!(matches!(refused, Err(SnapshotError::Exists(_))), "{refused:?}");
    assert!(into.join("old").exists());
    let options =
        RestoreOptions { existing: Existing::Replace, sync: Sync::First, ..RestoreOptions::default() };
    bench.snapshots.restore(&taken.id, &into, &options).unwrap();
    assert_eq!(fs::read(into.join("new")).unwrap(), b"new");
    assert!(!into.join("old").exists());
    let mut names: Vec<_> =
        fs::read_dir(bench.room.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["into", "store", "work"]);
}

#[test]
fn drafts_of_a_killed_restore_are_cleared() {
    let bench = Bench::new();
    let draft = bench.folder(".outlast-restore-1-1");
    fs::create_dir(draft.join("sub")).unwrap();
    fs::set_permissions(draft.join("sub"), Permissions::from_mode(0o000)).unwrap();
    bench.folder("work");
    assert_eq!(clear_drafts(bench.room.path()).unwrap(), 1);
    assert!(!draft.exists() && bench.path("work").exists());
}

#[test]
fn quotas_are_typed_and_leave_nothing_named() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    for number in 0..10 {
        fs::write(folder.join(number.to_string()), noise(number, 1000)).unwrap();
    }
    let limited = |bytes, files| TakeOptions { limits: Limits { bytes, files }, ..TakeOptions::default() };
    let refused = bench.try_take(&folder, None, &limited(9_999, 100));
    assert!(matches!(refused, Err(SnapshotError::TooLarge { limit: 9_999 })), "{refused:?}");
    let refused = bench.try_take(&folder, None, &limited(1 << 20, 10));
    assert!(matches!(refused, Err(SnapshotError::TooMany { limit: 10 })), "{refused:?}");
    assert_eq!(bench.objects().len(), 0);
    bench.try_take(&folder, None, &limited(10_000, 11)).unwrap();
    // A file is refused by what it occupies before it is read; a hole occupies nothing.
    fs::File::create(folder.join("hole")).unwrap().set_len(1 << 40).unwrap();
    bench.try_take(&folder, None, &limited(10_000, 12)).unwrap();
}

#[test]
fn work_can_be_stopped_and_watched() {
    let bench = Bench::new();
    let folder = bench.folder("work");
    for number in 0..600 {
        fs::write(folder.join(number.to_string()), "x").unwrap();
    }
    let cancel = std::sync::atomic::AtomicBool::new(false);
    let seen = Mutex::new(Vec::new());
    let tell = |progress: Progress| {
        seen.lock().unwrap().push(progress.files);
        cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let watch = Watch { cancel: Some(&cancel), progress: Some(&tell) };
    let stopped = bench.try_take(&folder, None, &TakeOptions { watch, ..TakeOptions::default() });
    assert!(matches!(stopped, Err(SnapshotError::Cancelled)), "{stopped:?}");
    assert_eq!(*seen.lock().unwrap(), [256]);
    let taken = bench.take(&folder, None);
    let options = RestoreOptions { watch, ..RestoreOptions::default() };
    let stopped = bench.snapshots.restore(&taken.id, &bench.path("into"), &options);
    assert!(matches!(stopped, Err(SnapshotError::Cancelled)), "{stopped:?}");
    assert!(!bench.path("into").exists());
    assert_eq!(fs::read_dir(bench.room.path()).unwrap().count(), 2);
}
