//! What a caller may choose: bounds, owners, and how to watch and stop the work.

use super::SnapshotError;
use std::sync::atomic::{AtomicBool, Ordering};

/// Content of one snapshot, holes left out, unless the caller says otherwise.
pub const SNAPSHOT_BYTES: u64 = 64 * 1024 * 1024 * 1024;
/// Files, folders and links of one snapshot, unless the caller says otherwise.
pub const SNAPSHOT_FILES: u64 = 2_000_000;
/// Folders within folders.
pub const DEPTH: usize = 16_384;
/// One path, from the workspace on.
pub const PATH_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub bytes: u64,
    pub files: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: SNAPSHOT_BYTES, files: SNAPSHOT_FILES }
    }
}

#[derive(Debug, Clone, Default)]
pub struct TakeOptions<'a> {
    pub limits: Limits,
    /// Owners are recorded as they are seen inside.
    pub owners: Owners,
    pub watch: Watch<'a>,
}

#[derive(Debug, Clone)]
pub struct RestoreOptions<'a> {
    /// `None`: all of it belongs to whoever restores.
    pub owners: Option<Owners>,
    pub special_bits: SpecialBits,
    pub existing: Existing,
    pub sync: Sync,
    pub watch: Watch<'a>,
}

impl Default for RestoreOptions<'_> {
    fn default() -> Self {
        Self {
            owners: None,
            special_bits: SpecialBits::Drop,
            existing: Existing::Refuse,
            sync: Sync::Lazily,
            watch: Watch::default(),
        }
    }
}

/// Whether files get their setuid and setgid bits back. They are recorded either way; a sandbox without new
/// privileges has no use for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialBits {
    Keep,
    Drop,
}

/// What to do with a folder that is where the restored one should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    /// Exchange the two in one step once the new one is whole, then remove the old one.
    Replace,
}

/// When the restored files must be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// Whenever the kernel writes them: after a power loss the caller restores again, from the same snapshot.
    Lazily,
    /// Before the folder gets its name.
    First,
}

/// A run of user or group ids, as in `/proc/PID/uid_map`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// How owners inside relate to those outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    pub uids: Vec<IdRange>,
    pub gids: Vec<IdRange>,
}

impl Default for Owners {
    /// The same inside and outside.
    fn default() -> Self {
        let all = IdRange { inside: 0, outside: 0, count: u32::MAX };
        Self { uids: vec![all], gids: vec![all] }
    }
}

/// The kernel's own name for an id that a map does not hold.
pub(crate) const NOBODY: u32 = 65_534;

impl Owners {
    pub(crate) fn inside(&self, uid: u32, gid: u32) -> (Option<u32>, Option<u32>) {
        let find = |ranges: &[IdRange], id| translate(ranges, id, |range| (range.outside, range.inside));
        (find(&self.uids, uid), find(&self.gids, gid))
    }

    pub(crate) fn outside(&self, uid: u32, gid: u32) -> (Option<u32>, Option<u32>) {
        let find = |ranges: &[IdRange], id| translate(ranges, id, |range| (range.inside, range.outside));
        (find(&self.uids, uid), find(&self.gids, gid))
    }
}

fn translate(ranges: &[IdRange], id: u32, ends: impl Fn(&IdRange) -> (u32, u32)) -> Option<u32> {
    ranges.iter().find_map(|range| {
        let (from, to) = ends(range);
        let offset = id.checked_sub(from).filter(|offset| *offset < range.count)?;
        to.checked_add(offset)
    })
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub files: u64,
    pub bytes: u64,
}

/// Stops an operation and is told how far it is, every few hundred files or megabytes.
#[derive(Clone, Copy, Default)]
pub struct Watch<'a> {
    pub cancel: Option<&'a AtomicBool>,
    pub progress: Option<&'a (dyn Fn(Progress) + std::marker::Sync)>,
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}

impl Watch<'_> {
    pub(crate) fn check(&self) -> Result<(), SnapshotError> {
        match self.cancel {
            Some(cancel) if cancel.load(Ordering::Relaxed) => Err(SnapshotError::Cancelled),
            _ => Ok(()),
        }
    }

    pub(crate) fn tell(&self, progress: Progress) {
        if let Some(tell) = self.progress {
            tell(progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_shifted_both_ways() {
        let range = |inside, outside, count| IdRange { inside, outside, count };
        let owners = Owners {
            uids: vec![range(0, 100_000, 1000), range(1000, 1000, 1)],
            gids: vec![range(5, u32::MAX, 2)],
        };
        for (outside, inside) in
            [(100_000, Some(0)), (100_999, Some(999)), (101_000, None), (1000, Some(1000))]
        {
            assert_eq!(owners.inside(outside, 0).0, inside, "{outside}");
            if let Some(inside) = inside {
                assert_eq!(owners.outside(inside, 0).0, Some(outside));
            }
        }
        // A range that would pass the largest id maps what it can.
        assert_eq!(owners.outside(0, 5).1, Some(u32::MAX));
        assert_eq!(owners.outside(0, 6).1, None);
        assert_eq!(Owners::default().inside(7, 8), (Some(7), Some(8)));
    }
}
