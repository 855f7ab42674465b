//! Damaged and missing objects, and a crash at every write of the store.

use super::*;
use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
};

fn workspace(bench: &Bench) -> PathBuf {
    let folder = bench.folder("work");
    fs::create_dir(folder.join("sub")).unwrap();
    fs::write(folder.join("sub/small"), "a few words, a few words, a few words").unwrap();
    fs::write(folder.join("sub/large"), noise(1, 1_500_000)).unwrap();
    folder
}

#[test]
fn a_flipped_byte_anywhere_in_the_store_is_found_and_named() {
    let bench = Bench::new();
    let folder = workspace(&bench);
    let id = bench.take(&folder, None).id;
    let (mut named, mut unnamed) = (0, 0);
    for object in bench.objects() {
        let whole = fs::read(&object).unwrap();
        let step = (whole.len() / 50).max(1);
        for at in (0..whole.len()).step_by(step) {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            fs::write(&object, bad).unwrap();
            let refused = bench.snapshots.restore(&id, &bench.path("back"), &RestoreOptions::default());
            match refused {
                Err(SnapshotError::Damaged { file: Some(file), .. }) => {
                    assert!(file.starts_with("sub"), "{file:?}");
                    named += 1;
                }
                // The index has no file of its own.
                Err(SnapshotError::Damaged { file: None, .. }) => unnamed += 1,
                other => panic!("byte {at} of {object:?}: {other:?}"),
            }
            assert!(!bench.path("back").exists());
        }
        fs::write(&object, whole).unwrap();
    }
    assert!(named > 50 && unnamed > 50, "{named} {unnamed}");
    assert_same(&folder, &bench.restore(&id, "back"));
}

#[test]
fn an_object_that_is_gone_is_named_and_a_snapshot_that_is_gone_too() {
    let bench = Bench::new();
    let id = bench.take(&workspace(&bench), None).id;
    let restore = || bench.snapshots.restore(&id, &bench.path("back"), &RestoreOptions::default());
    let (mut files, mut index) = (0, 0);
    for object in bench.objects() {
        let whole = fs::read(&object).unwrap();
        fs::remove_file(&object).unwrap();
        match restore() {
            Err(SnapshotError::Missing { file: Some(_), .. }) => files += 1,
            Err(SnapshotError::Missing { file: None, .. } | SnapshotError::NoSnapshot(_)) => index += 1,
            other => panic!("{other:?}"),
        }
        fs::write(&object, whole).unwrap();
    }
    assert_eq!((files, index), (3, 2));
    restore().unwrap();
}

/// A store that fails after some writes, some of them half done, as a crash would leave it.
#[derive(Debug)]
struct Failing {
    inner: Local,
    left: AtomicUsize,
}

impl Store for Failing {
    fn put(&self, frames: &[(ObjectId, Vec<u8>)]) -> io::Result<()> {
        for frame in frames {
            let left =
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            left.map_err(|_| io::Error::other("power lost"))?;
            self.inner.put(std::slice::from_ref(frame))?;
        }
        Ok(())
    }

    fn get(&self, id: &ObjectId) -> io::Result<Option<Vec<u8>>> {
        self.inner.get(id)
    }

    fn refresh(&self, id: &ObjectId) -> io::Result<bool> {
        self.inner.refresh(id)
    }

    fn list(&self, each: &mut dyn FnMut(Listed)) -> io::Result<()> {
        self.inner.list(each)
    }

    fn delete(&self, id: &ObjectId, idle: Duration) -> io::Result<bool> {
        self.inner.delete(id, idle)
    }
}

#[test]
fn a_crash_at_any_write_leaves_the_last_good_snapshot_and_only_garbage() {
    let bench = Bench::new();
    let folder = workspace(&bench);
    let good = bench.take(&folder, None).id;
    let kept = bench.restore(&good, "kept");
    for number in 0..3 {
        fs::write(folder.join(format!("new{number}")), noise(number, 400_000)).unwrap();
    }
    let store = || Local::open(bench.path("store")).unwrap();
    let mut failures = 0;
    for left in 0.. {
        let failing = Snapshots::new(Failing { inner: store(), left: AtomicUsize::new(left) });
        match failing.take(&folder, Some(&good), &TakeOptions::default()) {
            Err(SnapshotError::Store(_)) => failures += 1,
            Ok(taken) => {
                assert_same(&folder, &bench.restore(&taken.id, "done"));
                break;
            }
            Err(other) => panic!("{other}"),
        }
        let back = bench.restore(&good, &format!("back{left}"));
        assert_same(&kept, &back);
        let swept = bench.collect([good]);
        assert_eq!(swept.removed, left as u64, "after {left} writes");
    }
    assert!(failures >= 4, "{failures}");
}
