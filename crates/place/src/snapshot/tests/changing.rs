//! A folder that changes while it is read: nothing escapes, nothing crashes, what was torn is counted.

use super::*;
use std::{
    io::Write,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
};

/// Changes a folder in every way until told to stop.
fn unrest(folder: &Path, outside: &Path, stop: &AtomicBool) {
    let mut round = 0u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let _ = fs::write(folder.join("grows and shrinks"), noise(round, (round as usize * 7919) % 900_000));
        if let Ok(mut log) = fs::OpenOptions::new().append(true).create(true).open(folder.join("log")) {
            let _ = log.write_all(&noise(round, 4096));
        }
        let _ = fs::remove_file(folder.join("comes and goes"));
        let _ = fs::write(folder.join("comes and goes"), "x");
        // A file becomes a link to outside, a folder does too, and back.
        let _ = fs::remove_file(folder.join("file or link"));
        let _ = symlink(outside.join("secret"), folder.join("file or link"));
        let _ = fs::remove_file(folder.join("file or link"));
        let _ = fs::write(folder.join("file or link"), "inside");
        let _ = fs::rename(folder.join("sub"), folder.join("moved"));
        let _ = symlink(outside, folder.join("sub"));
        let _ = fs::remove_file(folder.join("sub"));
        let _ = fs::rename(folder.join("moved"), folder.join("sub"));
    }
}

#[test]
fn a_folder_in_unrest_is_taken_without_leaving_it() {
    let bench = Bench::new();
    let (folder, outside) = (bench.folder("work"), bench.folder("outside"));
    fs::write(outside.join("secret"), "SECRET").unwrap();
    fs::create_dir_all(folder.join("sub/deeper")).unwrap();
    for number in 0..50 {
        fs::write(folder.join(format!("sub/deeper/{number}")), "inside").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stopped = StopAtEnd(&stop);
        scope.spawn(|| unrest(&folder, &outside, &stop));
        let mut last = None;
        for round in 0..60 {
            let taken = bench.snapshots.take(&folder, last.as_ref(), &TakeOptions::default()).unwrap();
            let back = bench.path(&format!("back{round}"));
            bench.snapshots.restore(&taken.id, &back, &RestoreOptions::default()).unwrap();
            for (path, node) in tree(&back) {
                assert!(node.content != b"SECRET", "{} escaped", String::from_utf8_lossy(&path));
            }
            fs::remove_dir_all(&back).unwrap();
            last = Some(taken.id);
        }
    });
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
