//! How much a folder takes on disk.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use std::path::Path;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A block of `stat`, whatever the file system's own.
const BLOCK: u64 = 512;

/// Bytes that everything below the folder takes, stopping early once it is over `enough`. Blocking; what cannot be
/// looked at counts nothing, and a file with two names counts twice.
pub fn usage(folder: &Path, enough: u64) -> u64 {
    let Ok(top) = rustix::fs::openat(CWD, folder, FOLDER, Mode::empty()) else { return 0 };
    let mut used = 0_u64;
    let mut open = vec![Dir::new(top)];
    while let Some(listing) = open.pop() {
        let Ok(mut listing) = listing else { continue };
        while let Some(entry) = listing.read() {
            let (Ok(entry), Ok(fd)) = (entry, listing.fd()) else { break };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            used = used.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK));
            if used > enough {
                return used;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                && let Ok(below) = rustix::fs::openat(fd, name, FOLDER, Mode::empty())
            {
                open.push(Ok(listing));
                listing = match Dir::new(below) {
                    Ok(below) => below,
                    Err(_) => break,
                };
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_below_counts_and_links_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), vec![1; 1 << 20]).unwrap();
        std::fs::write(dir.path().join("other"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("out")).unwrap();
        let used = usage(dir.path(), u64::MAX);
        assert!((2 << 20..3 << 20).contains(&used), "{used}");
        assert!(usage(dir.path(), 1 << 20) > 1 << 20);
        assert_eq!(usage(&dir.path().join("none"), 0), 0);
    }
}
