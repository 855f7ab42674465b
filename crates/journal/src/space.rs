//! Room on the disk: is there enough for new work, and a file kept in reserve for the work that already runs.
//!
//! Asked by doors before every piece of new work, so the answer is cached for a moment. The committer gives the
//! reserve up when the disk is full, and takes it back once there is room again.

use crate::lock;
use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Is there room for new work?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Enough,
    Low,
}

/// How long an answer of the file system is believed.
const FRESH_MILLIS: u64 = 100;
/// How often the reserve is tried again once it was given up.
pub(crate) const REFILL_EVERY: Duration = Duration::from_secs(1);
/// What a probe writes to see whether the disk takes anything at all.
const PROBE_BYTES: usize = 64 * 1024;
const RESERVE_FILE: &str = "reserve";
const PROBE_FILE: &str = "reserve.probe";

#[derive(Debug)]
pub(crate) struct Gauge {
    dir: PathBuf,
    reserve_bytes: u64,
    low_water_bytes: u64,
    born: Instant,
    /// Milliseconds after `born` at which `free` was read, plus one; 0 means never.
    read_at: AtomicU64,
    free: AtomicU64,
    /// How many threads wait for the disk to take a write.
    waiting: AtomicUsize,
    reserve: Mutex<Reserve>,
    reserve_missing: AtomicBool,
}

#[derive(Debug)]
struct Reserve {
    tried_at: Option<Instant>,
}

/// Somebody waits for the disk; space is low for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Gauge>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

impl Gauge {
    /// Makes the reserve where it is missing. A disk without room for it is not an error: it is low.
    pub(crate) fn open(dir: &Path, reserve_bytes: u64, low_water_bytes: u64) -> Self {
        let gauge = Self {
            dir: dir.to_owned(),
            reserve_bytes,
            low_water_bytes,
            born: Instant::now(),
            read_at: AtomicU64::new(0),
            free: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            reserve: Mutex::new(Reserve { tried_at: None }),
            reserve_missing: AtomicBool::new(true),
        };
        gauge.refill();
        gauge
    }

    pub(crate) fn space(&self) -> Space {
        let low = self.waiting.load(Relaxed) > 0
            || self.reserve_missing.load(Relaxed)
            || self.free_bytes() < self.low_water_bytes;
        if low { Space::Low } else { Space::Enough }
    }

    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self.clone())
    }

    pub(crate) fn wants_refill(&self) -> bool {
        self.reserve_missing.load(Relaxed)
    }

    /// Gives the reserved blocks back to the file system.
    pub(crate) fn release(&self) {
        let mut reserve = lock(&self.reserve);
        if self.reserve_bytes == 0 || self.reserve_missing.load(Relaxed) {
            return;
        }
        self.reserve_missing.store(true, Relaxed);
        reserve.tried_at = Some(Instant::now());
        match std::fs::remove_file(self.dir.join(RESERVE_FILE)) {
            Ok(()) => tracing::warn!(bytes = self.reserve_bytes, "the disk is full; the reserve is released"),
            Err(error) => tracing::error!(%error, "the disk is full and the reserve cannot be released"),
        }
        self.read_at.store(0, Relaxed);
    }

    /// Takes the reserve back if there is room for it and the low-water mark; does little when asked often.
    pub(crate) fn refill(&self) {
        if !self.wants_refill() {
            return;
        }
        let mut reserve = lock(&self.reserve);
        if reserve.tried_at.is_some_and(|at| at.elapsed() < REFILL_EVERY) {
            return;
        }
        reserve.tried_at = Some(Instant::now());
        let path = self.dir.join(RESERVE_FILE);
        let there = std::fs::metadata(&path).is_ok_and(|file| file.len() == self.reserve_bytes);
        if self.reserve_bytes == 0 || there {
            self.reserve_missing.store(false, Relaxed);
            return;
        }
        self.read_at.store(0, Relaxed);
        if self.free_bytes() < self.reserve_bytes.saturating_add(self.low_water_bytes) {
            return;
        }
        match allocate(&path, self.reserve_bytes) {
            Ok(()) => self.reserve_missing.store(false, Relaxed),
            Err(error) => {
                tracing::warn!(%error, bytes = self.reserve_bytes, "no room for the reserve");
                // Half a reserve would only take room from what runs.
                let _ = std::fs::remove_file(&path);
            }
        }
        self.read_at.store(0, Relaxed);
    }

    /// Does the disk refuse even a small file? Tells a full disk from a failing one where the error did not.
    pub(crate) fn is_full(&self) -> bool {
        let path = self.dir.join(PROBE_FILE);
        let result = File::create(&path).and_then(|mut file| {
            file.write_all(&[0; PROBE_BYTES])?;
            file.sync_data()
        });
        let _ = std::fs::remove_file(&path);
        result.is_err_and(|error| means_full(&error))
    }

    fn free_bytes(&self) -> u64 {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX) + 1;
        let read_at = self.read_at.load(Relaxed);
        if read_at != 0 && now.saturating_sub(read_at) < FRESH_MILLIS {
            return self.free.load(Relaxed);
        }
        match rustix::fs::statvfs(&self.dir) {
            Ok(stat) => {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                self.free.store(free, Relaxed);
                self.read_at.store(now, Relaxed);
                free
            }
            Err(error) => {
                tracing::error!(%error, "the free space of the data folder cannot be read");
                0
            }
        }
    }
}

pub(crate) fn means_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Real blocks, not a hole: a reserve of holes would reserve nothing.
fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(rustix::io::Errno::OPNOTSUPP) => {
            io::copy(&mut io::Read::take(io::repeat(1), bytes), &mut file)?;
        }
        Err(error) => return Err(error.into()),
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_made_and_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let gauge = Gauge::open(dir.path(), 1024 * 1024, 0);
        let file = dir.path().join(RESERVE_FILE);
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 1024 * 1024);
        assert_eq!(gauge.space(), Space::Enough);
        gauge.release();
        assert!(!file.exists());
        assert_eq!(gauge.space(), Space::Low);
        assert!(gauge.wants_refill());
    }

    #[test]
    fn below_the_low_water_mark_or_while_a_write_waits_space_is_low() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Gauge::open(dir.path(), 0, u64::MAX).space(), Space::Low);
        let gauge = Arc::new(Gauge::open(dir.path(), 0, 0));
        let waiting = gauge.wait();
        assert_eq!(gauge.space(), Space::Low);
        drop(waiting);
        assert_eq!(gauge.space(), Space::Enough);
    }
}
