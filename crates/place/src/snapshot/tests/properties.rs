//! Random folders and edits: what is restored is what was taken, an incremental snapshot is a full one, and
//! garbage collection removes nothing that is needed.

use super::*;
use proptest::{collection::vec, prelude::*, sample::select};
use std::{
    ffi::OsStr,
    fs::Permissions,
    os::unix::fs::{PermissionsExt, symlink},
};

#[derive(Debug, Clone)]
enum Edit {
    Write(Vec<u8>, u64, usize),
    Folder(Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Hard(Vec<u8>, Vec<u8>),
    Mode(Vec<u8>, u32),
    Move(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Append(Vec<u8>, u64),
}

/// Few names, so that edits meet, and odd ones among them.
fn path() -> impl Strategy<Value = Vec<u8>> {
    let names: Vec<&[u8]> = vec![b"a", b"b", b"a.b", b"a-", b"\xff", b"long name here", b".git"];
    vec(select(names), 1..4).prop_map(|parts| parts.join(&b'/'))
}

fn edit() -> impl Strategy<Value = Edit> {
    let size = prop_oneof![
        4 => 0usize..300,
        2 => 1_000usize..70_000,
        1 => 250_000usize..300_000,
        1 => select(vec![1 << 20, (1 << 20) - 1, (1 << 20) + 1, 2_300_000])
    ];
    prop_oneof![
        6 => (path(), 0u64..20, size).prop_map(|(path, seed, size)| Edit::Write(path, seed, size)),
        2 => path().prop_map(Edit::Folder),
        1 => (path(), vec(1u8..=255, 1..20)).prop_map(|(path, target)| Edit::Link(path, target)),
        2 => (path(), path()).prop_map(|(from, to)| Edit::Hard(from, to)),
        2 => (path(), 0u32..0o10000).prop_map(|(path, mode)| Edit::Mode(path, mode)),
        2 => (path(), path()).prop_map(|(from, to)| Edit::Move(from, to)),
        2 => path().prop_map(Edit::Remove),
        2 => (path(), 0u64..20).prop_map(|(path, seed)| Edit::Append(path, seed)),
    ]
}

/// Makes an edit where it can be made; what cannot is part of the game.
fn apply(root: &Path, edit: &Edit) {
    let at = |path: &[u8]| root.join(OsStr::from_bytes(path));
    let room = |path: &Path| {
        let _ = path.parent().map(fs::create_dir_all);
    };
    let done = match edit {
        Edit::Write(path, seed, size) => {
            room(&at(path));
            fs::write(at(path), noise(*seed, *size))
        }
        Edit::Folder(path) => fs::create_dir_all(at(path)),
        Edit::Link(path, target) => {
            room(&at(path));
            symlink(OsStr::from_bytes(target), at(path))
        }
        Edit::Hard(from, to) => {
            room(&at(to));
            match fs::symlink_metadata(at(from)) {
                Ok(metadata) if metadata.is_file() => fs::hard_link(at(from), at(to)),
                _ => Ok(()),
            }
        }
        Edit::Mode(path, mode) => match fs::symlink_metadata(at(path)) {
            // Owners can always read their own here, as root or not.
            Ok(metadata) if !metadata.is_symlink() => {
                let least = if metadata.is_dir() { 0o700 } else { 0o600 };
                fs::set_permissions(at(path), Permissions::from_mode(*mode | least))
            }
            _ => Ok(()),
        },
        Edit::Move(from, to) => {
            room(&at(to));
            fs::rename(at(from), at(to))
        }
        Edit::Remove(path) => match fs::symlink_metadata(at(path)) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(at(path)),
            _ => fs::remove_file(at(path)),
        },
        Edit::Append(path, seed) => match fs::symlink_metadata(at(path)) {
            Ok(metadata) if metadata.is_file() => {
                let mut content = fs::read(at(path)).unwrap();
                content.extend(noise(*seed, 5_000));
                fs::write(at(path), content)
            }
            _ => Ok(()),
        },
    };
    drop(done);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_taken_comes_back(edits in vec(edit(), 0..60)) {
        let bench = Bench::new();
        let folder = bench.folder("work");
        edits.iter().for_each(|edit| apply(&folder, edit));
        let taken = bench.take(&folder, None);
        prop_assert_eq!(taken.skipped, Skipped::default());
        assert_same(&folder, &bench.restore(&taken.id, "back"));
    }

    #[test]
    fn incremental_snapshots_are_full_ones_and_collection_keeps_them(
        rounds in vec((vec(edit(), 0..15), any::<bool>()), 1..8)
    ) {
        let bench = Bench::new();
        let folder = bench.folder("work");
        let mut kept: Vec<(SnapshotId, PathBuf)> = Vec::new();
        let mut last = None;
        for (number, (edits, keep)) in rounds.iter().enumerate() {
            edits.iter().for_each(|edit| apply(&folder, edit));
            let taken = bench.take(&folder, last.as_ref());
            let full = bench.take(&folder, None);
            prop_assert_eq!(bench.snapshots.diff(&taken.id, &full.id).unwrap(), Diff::default());
            prop_assert_eq!((taken.files, taken.bytes), (full.files, full.bytes));
            let back = bench.restore(&taken.id, &format!("back{number}"));
            assert_same(&folder, &back);
            if *keep {
                kept.push((taken.id, back));
            }
            let needed = kept.iter().map(|(id, _)| *id).chain([taken.id]);
            bench.collect(needed);
            last = Some(taken.id);
        }
        for (number, (id, before)) in kept.iter().enumerate() {
            assert_same(before, &bench.restore(id, &format!("again{number}")));
        }
        // Nothing but what they need is left.
        bench.collect([]);
        prop_assert_eq!(bench.objects().len(), 0);
    }
}
