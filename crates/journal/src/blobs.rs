//! Bodies too large for a row: files named by their content, `blobs/xx/<blake3>`.
//!
//! A blob is safe on disk (file synced, renamed, folder synced) before the event that names it is committed; a
//! small pool of threads does that, so that neither the committer nor a caller waits. Blobs without a reference
//! are removed after the commit that dropped the last one, and orphans of a crash by a sweep. Pins keep the two
//! from removing a file that an event on its way in is about to name.

use crate::{
    ReadError, attachment,
    faults::{self, Faults},
    lanes::{End, Lane, Lanes},
    lock,
    space::{Gauge, means_full},
};
use bytes::Bytes;
use protocol::Timestamp;
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

pub(crate) type Address = [u8; 32];

pub(crate) const BLOBS_FOLDER: &str = "blobs";
/// Threads that write blobs.
const POOL: usize = 2;
/// A younger file is never swept: it may belong to a backup, or to a hand that repairs something.
const SWEEP_AGE_MILLIS: i64 = 3600 * 1000;
/// Between two attempts to write to a full disk.
const RETRY: Duration = Duration::from_millis(200);

pub(crate) fn hex(address: &[u8]) -> String {
    use std::fmt::Write as _;
    address.iter().fold(String::with_capacity(2 * address.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Option<Address> {
    let mut address = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in address.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(address)
}

/// Where a blob is below the data folder.
pub(crate) fn path_in(dir: &Path, address: &[u8]) -> PathBuf {
    let name = hex(address);
    dir.join(BLOBS_FOLDER).join(&name[..2.min(name.len())]).join(&name)
}

pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[derive(Debug)]
pub(crate) struct Blobs {
    dir: PathBuf,
    pins: Mutex<HashMap<Address, usize>>,
    temporary: AtomicU64,
}

/// Why a blob is not on disk.
enum StoreFailure {
    Write(io::Error),
    /// The disk did not confirm.
    Sync(io::Error),
}

impl Blobs {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir.join(BLOBS_FOLDER))?;
        attachment::clear(dir)?;
        Ok(Self { dir: dir.to_owned(), pins: Mutex::default(), temporary: AtomicU64::new(0) })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn pins(&self) -> &Mutex<HashMap<Address, usize>> {
        &self.pins
    }

    /// One that no other file of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.temporary.fetch_add(1, Relaxed)
    }

    /// Writes and pins a blob. Returns once it would survive a power cut.
    fn store(&self, body: &[u8]) -> Result<Address, StoreFailure> {
        let address = *blake3::hash(body).as_bytes();
        self.pin(address);
        let result = self.write(&address, body);
        if result.is_err() {
            self.unpin(&address);
        }
        result.map(|()| address)
    }

    fn write(&self, address: &Address, body: &[u8]) -> Result<(), StoreFailure> {
        use StoreFailure::{Sync, Write};
        let path = path_in(&self.dir, address);
        let folder = path.parent().unwrap_or(&self.dir);
        if !folder.is_dir() {
            fs::create_dir_all(folder).map_err(Write)?;
            sync_folder(&self.dir.join(BLOBS_FOLDER)).map_err(Sync)?;
        }
        let there = fs::metadata(&path).is_ok_and(|file| file.len() == body.len() as u64);
        if !there {
            let number = self.number();
            let temporary = path.with_extension(format!("{}.{number}.tmp", std::process::id()));
            let written = File::create(&temporary)
                .and_then(|mut file| file.write_all(body).map(|()| file))
                .map_err(Write)
                .and_then(|file| file.sync_all().map_err(Sync))
                .and_then(|()| fs::rename(&temporary, &path).map_err(Write));
            if let Err(failure) = written {
                let _ = fs::remove_file(&temporary);
                return Err(failure);
            }
        }
        // Also when it was there already: whoever renamed it may not have come to this line yet.
        sync_folder(folder).map_err(Sync)
    }

    pub(crate) fn unpin(&self, address: &Address) {
        let mut pins = lock(&self.pins);
        if let Some(count) = pins.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                pins.remove(address);
            }
        }
    }

    /// A whole body, checked against its name.
    pub(crate) fn read(&self, address: &Address) -> Result<Bytes, ReadError> {
        let damaged = |why: &str| {
            ReadError::Storage(format!(
                "blob {} {why}; restore the data folder from a backup with `outlast restore`",
                hex(address)
            ))
        };
        let body = fs::read(path_in(&self.dir, address)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => damaged("is missing"),
            _ => damaged(&format!("cannot be read ({error})")),
        })?;
        if blake3::hash(&body).as_bytes() != address {
            return Err(damaged("is damaged"));
        }
        Ok(body.into())
    }

    /// Removes blobs that lost their last reference, unless something on its way in names them again. Runs on
    /// the committer's thread, between the commit that dropped the references and the next one.
    pub(crate) fn collect(&self, orphans: &[Address]) {
        let pins = lock(&self.pins);
        for address in orphans {
            if !pins.contains_key(address) {
                self.remove(address);
            }
        }
    }

    fn remove(&self, address: &Address) {
        match fs::remove_file(path_in(&self.dir, address)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, blob = hex(address), "a blob cannot be removed"),
        }
    }

    /// Looks once through all files for those a crash left behind.
    pub(crate) fn sweep(
        &self,
        stop: &AtomicBool,
        mut is_referenced: impl FnMut(&Address) -> Result<bool, ReadError>,
    ) -> Result<usize, ReadError> {
        let failed = |error: io::Error| ReadError::Storage(error.to_string());
        let mut removed = 0;
        for folder in fs::read_dir(self.dir.join(BLOBS_FOLDER)).map_err(failed)? {
            let folder = folder.map_err(failed)?.path();
            if !folder.is_dir() {
                continue;
            }
            for file in fs::read_dir(&folder).map_err(failed)? {
                if stop.load(Relaxed) {
                    return Ok(removed);
                }
                let path = file.map_err(failed)?.path();
                if !is_old(&path) {
                    continue;
                }
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let unused = match unhex(name) {
                    // The pins are held while the store is asked: an event that named the blob in between
                    // is either still pinned or already visible.
                    Some(address) => {
                        let pins = lock(&self.pins);
                        let unused = !pins.contains_key(&address) && !is_referenced(&address)?;
                        if unused {
                            self.remove(&address);
                        }
                        unused
                    }
                    None => name.ends_with(".tmp") && fs::remove_file(&path).is_ok(),
                };
                removed += usize::from(unused);
            }
        }
        Ok(removed)
    }
}

fn is_old(path: &Path) -> bool {
    let modified = fs::metadata(path)
        .and_then(|file| file.modified())
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|age| i64::try_from(age.as_millis()).ok());
    modified.is_some_and(|modified| Timestamp::now().as_millis() - modified > SWEEP_AGE_MILLIS)
}

/// One body on its way to a file.
pub(crate) struct Job {
    pub(crate) lane: Arc<Lane>,
    pub(crate) body: Bytes,
    pub(crate) slot: Arc<OnceLock<Address>>,
}

/// The threads that write blobs.
#[derive(Debug)]
pub(crate) struct BlobPool {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a pool thread needs.
#[derive(Clone)]
pub(crate) struct BlobBench {
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) faults: Option<Faults>,
}

impl BlobPool {
    pub(crate) fn start(bench: &BlobBench) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let mut threads = Vec::with_capacity(POOL);
        for _ in 0..POOL {
            let (bench, receiver) = (bench.clone(), receiver.clone());
            let thread = std::thread::Builder::new().name("outlast-blobs".to_owned()).spawn(move || {
                loop {
                    let job: Result<Job, _> = lock(&receiver).recv();
                    match job {
                        Ok(job) => bench.run(&job),
                        Err(mpsc::RecvError) => break,
                    }
                }
            })?;
            threads.push(thread);
        }
        Ok(Self { jobs: Mutex::new(Some(sender)), threads: Mutex::new(threads) })
    }

    pub(crate) fn submit(&self, job: Job) {
        if let Some(jobs) = &*lock(&self.jobs) {
            // The receivers live as long as the sender does.
            let _ = jobs.send(job);
        }
    }

    /// After the lanes are drained: nothing is submitted any more.
    pub(crate) fn close(&self) {
        lock(&self.jobs).take();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            let _ = thread.join();
        }
    }
}

impl BlobBench {
    fn run(&self, job: &Job) {
        let mut waiting = None;
        loop {
            match self.blobs.store(&job.body) {
                Ok(address) => {
                    let _ = job.slot.set(address);
                    self.lanes.blob_written(&job.lane);
                    return;
                }
                Err(StoreFailure::Write(error) | StoreFailure::Sync(error))
                    if means_full(&error) && !self.lanes.is_abandoned() =>
                {
                    waiting.get_or_insert_with(|| self.gauge.wait());
                    self.gauge.release();
                    std::thread::sleep(RETRY);
                }
                Err(StoreFailure::Write(error)) => {
                    tracing::error!(%error, session = %job.lane.session, "a blob cannot be written");
                    self.lanes.end(&job.lane, &End::Lost(format!("a large body cannot be written: {error}")));
                    return;
                }
                Err(StoreFailure::Sync(error)) => {
                    let why = format!("a blob cannot be synced: {error}");
                    faults::stop(self.faults.as_ref(), &why);
                    self.lanes.end(&job.lane, &End::Lost(why));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(dir.path()).unwrap();
        (dir, blobs)
    }

    fn store(blobs: &Blobs, body: &[u8]) -> Address {
        blobs.store(body).unwrap_or_else(|_| panic!("stored"))
    }

    #[test]
    fn names_round_trip() {
        let address = *blake3::hash(b"x").as_bytes();
        assert_eq!(unhex(&hex(&address)), Some(address));
        assert_eq!(unhex("zz"), None);
        assert_eq!(unhex(&"é".repeat(32)), None);
    }

    #[test]
    fn what_is_stored_is_read_and_damage_is_noticed() {
        let (dir, blobs) = open();
        let address = store(&blobs, b"body");
        assert_eq!(blobs.read(&address).unwrap(), "body");
        fs::write(path_in(dir.path(), &address), b"bodY").unwrap();
        assert!(matches!(blobs.read(&address), Err(ReadError::Storage(why)) if why.contains("damaged")));
        fs::remove_file(path_in(dir.path(), &address)).unwrap();
        assert!(matches!(blobs.read(&address), Err(ReadError::Storage(why)) if why.contains("missing")));
    }

    #[test]
    fn a_pinned_blob_is_not_collected() {
        let (dir, blobs) = open();
        let address = store(&blobs, b"body");
        blobs.collect(&[address]);
        assert!(path_in(dir.path(), &address).exists());
        blobs.unpin(&address);
        blobs.collect(&[address]);
        assert!(!path_in(dir.path(), &address).exists());
    }

    #[test]
    fn the_sweep_takes_old_orphans_only() {
        let (dir, blobs) = open();
        let old = std::time::UNIX_EPOCH + Duration::from_secs(1);
        let age = |address: &Address| {
            File::options()
                .write(true)
                .open(path_in(dir.path(), address))
                .unwrap()
                .set_modified(old)
                .unwrap();
        };
        let [orphan, used, pinned, young] = [&b"a"[..], b"b", b"c", b"d"].map(|body| store(&blobs, body));
        for address in [&orphan, &used, &young] {
            blobs.unpin(address);
        }
        for address in [&orphan, &used, &pinned] {
            age(address);
        }
        let removed = blobs.sweep(&AtomicBool::new(false), |address| Ok(*address == used)).unwrap();
        assert_eq!(removed, 1);
        assert!(!path_in(dir.path(), &orphan).exists());
        for kept in [&used, &pinned, &young] {
            assert!(path_in(dir.path(), kept).exists());
        }
    }
}
