//! Files and folders read from a snapshot without restoring it.

use super::*;
use crate::files::{FileKind, More};
use std::{ffi::OsStr, os::unix::fs::symlink};

fn workspace(bench: &Bench) -> (PathBuf, SnapshotId, Vec<u8>) {
    let folder = bench.folder("work");
    let large = noise(9, 2_600_000);
    fs::create_dir_all(folder.join("src/deep")).unwrap();
    fs::write(folder.join("src/large"), &large).unwrap();
    fs::write(folder.join("src/deep/small"), "small").unwrap();
    fs::write(folder.join("src.txt"), "beside").unwrap();
    fs::hard_link(folder.join("src/large"), folder.join("z")).unwrap();
    symlink("/etc/passwd", folder.join("src/link")).unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"src/\xff")), "odd").unwrap();
    let hole = fs::File::create(folder.join("hole")).unwrap();
    hole.set_len(5_000_000).unwrap();
    let id = bench.take(&folder, None).id;
    (folder, id, large)
}

#[test]
fn folders_are_listed_without_what_lies_deeper_or_beside() {
    let bench = Bench::new();
    let (_, id, _) = workspace(&bench);
    let names = |path: &str| -> Vec<Vec<u8>> {
        // Page by page, as short as they can be.
        let (mut names, mut after) = (Vec::new(), None::<std::ffi::OsString>);
        loop {
            let page = bench.snapshots.list(&id, Path::new(path), after.as_deref(), 1).unwrap();
            names.extend(page.entries.iter().map(|entry| entry.name.as_bytes().to_vec()));
            match page.more {
                More::After(name) => after = Some(name),
                More::No => return names,
            }
        }
    };
    assert_eq!(names(""), [&b"hole"[..], b"src", b"src.txt", b"z"]);
    assert_eq!(names("./src/"), [&b"deep"[..], b"large", b"link", b"\xff"]);
    assert_eq!(names("src/deep"), [b"small"]);
    let file = bench.snapshots.list(&id, Path::new("src.txt"), None, 1);
    assert!(matches!(file, Err(SnapshotError::NotFolder(_))), "{file:?}");
    let link = bench.snapshots.look(&id, Path::new("src/link")).unwrap();
    assert_eq!(
        (link.name.as_os_str(), link.kind),
        (OsStr::new("link"), FileKind::Link("/etc/passwd".into()))
    );
    let second = bench.snapshots.look(&id, Path::new("z")).unwrap();
    assert_eq!((second.kind, second.size), (FileKind::File, 2_600_000));
    assert_eq!(bench.snapshots.look(&id, Path::new("")).unwrap().kind, FileKind::Folder);
    for bad in ["../work", "/etc", "nothing", "src/nothing", "src.txt/below", "sr"] {
        let refused = bench.snapshots.list(&id, Path::new(bad), None, 1);
        assert!(matches!(refused, Err(SnapshotError::NotFound(_))), "{bad}: {refused:?}");
    }
}

#[test]
fn any_part_of_a_file_can_be_read() {
    let bench = Bench::new();
    let (_, id, large) = workspace(&bench);
    let read = |path: &str, range| bench.snapshots.read_file(&id, Path::new(path), range);
    let piece = 1u64 << 20;
    for range in [0..10, piece - 5..piece + 5, 0..2_600_000, 2_599_990..9_000_000, 2_600_000..2_600_001, 7..7]
    {
        let end = range.end.min(2_600_000) as usize;
        let expected = large.get(range.start as usize..end).unwrap_or_default();
        assert!(read("src/large", range.clone()).unwrap() == expected, "{range:?}");
        assert!(read("z", range.clone()).unwrap() == expected, "{range:?} through the other name");
    }
    assert_eq!(read("hole", 4_999_990..5_000_010).unwrap(), [0; 10]);
    for path in ["src", "src/link"] {
        assert!(matches!(read(path, 0..1), Err(SnapshotError::NotFile(_))), "{path}");
    }
    assert!(matches!(read("src/../hole", 0..1), Err(SnapshotError::NotFound(_))));
}

#[test]
fn an_archive_of_a_snapshot_is_the_one_of_the_folder() {
    let bench = Bench::new();
    let (folder, id, _) = workspace(&bench);
    let files = crate::files::Files::open(&folder).unwrap();
    for path in ["", "src", "src/deep/small", "src/deep"] {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        bench.snapshots.tar(&id, Path::new(path), &mut a, &Watch::default()).unwrap();
        files.tar(Path::new(path), &mut b).unwrap();
        // The snapshot writes the workspace itself as `./`.
        let skip = if path.is_empty() { 512 } else { 0 };
        assert!(a[skip..] == b, "{path:?}: {} and {} bytes", a.len(), b.len());
    }
    // The first name lies outside of what is archived, so its content goes with the second.
    let mut alone = Vec::new();
    bench.snapshots.tar(&id, Path::new("z"), &mut alone, &Watch::default()).unwrap();
    assert!(alone.len() > 2_600_000);
}

#[test]
fn differences_are_counted() {
    let bench = Bench::new();
    let (folder, id, _) = workspace(&bench);
    fs::write(folder.join("src/deep/small"), "SMALL").unwrap();
    fs::remove_file(folder.join("src.txt")).unwrap();
    fs::write(folder.join("one"), "").unwrap();
    fs::write(folder.join("two"), "").unwrap();
    let other = bench.take(&folder, Some(&id)).id;
    let diff = |a, b| bench.snapshots.diff(a, b).unwrap();
    assert_eq!(diff(&id, &other), Diff { added: 2, removed: 1, changed: 1 });
    assert_eq!(diff(&other, &id), Diff { added: 1, removed: 2, changed: 1 });
    assert_eq!(diff(&id, &id), Diff::default());
}
