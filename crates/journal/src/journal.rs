//! The journal's handle: opening, closing, and every call that is not a writer's or a follower's. Reads go to the
//! readers, changes to the committer; this file only connects them.

use crate::{
    AgentRow, CredentialRow, Draft, Faults, Figures, Follower, KeyRow, NewSession, OpenError, Page,
    ReadError, SandboxRow, Seat, SessionPage, SessionQuery, SessionRow, SnapshotRow, Space, StoredEvent,
    TenantUsage, TurnRow, WriteError, Writer,
    blobs::{BlobBench, BlobPool, Blobs, unhex},
    chain,
    committer::{Committer, Desk},
    figures::Counts,
    follow::Hubs,
    lanes::{Head, Lane, Lanes},
    lock,
    readers::Readers,
    requests::{Change, Outcome, Request},
    space::Gauge,
    store::{
        Found, Reader,
        sqlite::{FIRST_EPOCH, SqliteReader, SqliteStore},
    },
};
use bytes::Bytes;
use protocol::{
    AgentName, CredentialId, EventKind, ForkPoint, KeyId, Seq, SessionId, SessionRef, Tenant,
    limits::PAGE_EVENTS,
};
use std::{
    fs::{File, TryLockError},
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Held by whoever writes in a data folder.
const LOCK_FILE: &str = "lock";
/// How long a folder in use is waited for, and how often it is tried.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(5);
/// Connections that read at once, unless told otherwise.
const READERS: usize = 4;
/// Orphaned blobs are looked for this long after the start, when nobody waits for it.
const SWEEP_AFTER: Duration = Duration::from_secs(60);

/// Where the store is and how much room it keeps.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder; the store is `outlast.db` in it, blobs are in `blobs/`.
    pub dir: PathBuf,
    /// A file of this size is kept so that running work can be recorded when the disk is full.
    pub reserve_bytes: u64,
    /// New work is refused while less than this is free.
    pub low_water_bytes: u64,
}

/// What hardly anybody changes.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// Connections that read at once.
    pub readers: usize,
    /// For tests: a hand that makes commits fail.
    pub faults: Option<Faults>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { readers: READERS, faults: None }
    }
}

/// A cheap handle; clones share one store. The last one dropped, without `close`, stops it as a crash would.
#[derive(Clone)]
pub struct Journal {
    core: Arc<Core>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("dir", &self.core.dir).finish_non_exhaustive()
    }
}

pub(crate) struct Core {
    dir: PathBuf,
    desk: Desk,
    pool: Arc<BlobPool>,
    readers: Readers,
    threads: Mutex<Option<Threads>>,
    closing: tokio::sync::Mutex<()>,
}

/// What runs behind the handle; taken once, by `close` or by the last drop.
struct Threads {
    committer: JoinHandle<()>,
    sweep: JoinHandle<()>,
    stop_sweep: Arc<AtomicBool>,
    /// Dropping it wakes a sweep that has not begun.
    wake_sweep: mpsc::Sender<()>,
    lock: File,
}

impl Threads {
    fn join(self, pool: &BlobPool) {
        self.stop_sweep.store(true, Relaxed);
        drop(self.wake_sweep);
        for thread in [self.committer, self.sweep] {
            if thread.join().is_err() {
                tracing::error!("a thread of the journal panicked");
            }
        }
        pool.close();
        drop(self.lock);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(threads) = lock(&self.threads).take() {
            self.desk.lanes.abandon();
            threads.join(&self.pool);
        }
    }
}

impl Core {
    pub(crate) fn hubs(&self) -> &Arc<Hubs> {
        &self.desk.hubs
    }

    pub(crate) async fn page(&self, session: SessionId, after: Seq, limit: usize) -> Result<Page, ReadError> {
        let blobs = self.desk.blobs.clone();
        self.readers.run(move |reader| look_twice(|| read_page(reader, &blobs, session, after, limit))).await
    }

    async fn ask(&self, change: Change) -> Result<Outcome, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.desk.lanes.request(Request { change, reply })?;
        answer.await.unwrap_or(Err(WriteError::Closed))
    }
}

/// A session removed between its row and its blob takes the blob with it: the second look says so.
fn look_twice<T>(mut look: impl FnMut() -> Result<T, ReadError>) -> Result<T, ReadError> {
    match look() {
        Err(ReadError::Storage(_)) => look(),
        other => other,
    }
}

fn read_page(
    reader: &mut dyn Reader,
    blobs: &Blobs,
    session: SessionId,
    after: Seq,
    limit: usize,
) -> Result<Page, ReadError> {
    let page = reader.page(session, after, limit)?;
    let events = page.events.into_iter().map(|found| whole(found, blobs)).collect::<Result<_, _>>()?;
    Ok(Page { events, last_seq: page.last_seq })
}

/// The event with its body, wherever that is.
fn whole(found: Found, blobs: &Blobs) -> Result<StoredEvent, ReadError> {
    let mut event = found.event;
    if let Some(address) = found.blob {
        event.body = blobs.read(&address)?;
    }
    Ok(event)
}

/// Takes the folder for this process.
pub(crate) fn take_lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK_FILE);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|error| OpenError::io(&path, &error))?;
    // A child that a killed server was just starting holds the lock until its exec: that is over in a moment.
    let patient_until = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < patient_until => std::thread::sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(OpenError::io(&path, &error)),
        }
    }
}

impl Journal {
    /// Opens or makes the store; blocking.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        Self::open_with(options, Tuning::default())
    }

    #[expect(clippy::needless_pass_by_value, reason = "the face is one for every store, and some keep them")]
    pub fn open_with(options: Options, tuning: Tuning) -> Result<Self, OpenError> {
        let dir = std::path::absolute(&options.dir).map_err(|error| OpenError::io(&options.dir, &error))?;
        std::fs::create_dir_all(&dir).map_err(|error| OpenError::io(&dir, &error))?;
        let lock = take_lock(&dir)?;
        let failed = |error: io::Error| OpenError::io(&dir, &error);
        let gauge = Arc::new(Gauge::open(&dir, options.reserve_bytes, options.low_water_bytes));
        let store = open_store(&dir, &gauge, tuning.faults.as_ref())?;
        let desk = Desk {
            lanes: Arc::new(Lanes::new()),
            hubs: Arc::default(),
            blobs: Arc::new(Blobs::open(&dir).map_err(failed)?),
            gauge,
            counts: Arc::<Counts>::default(),
            faults: tuning.faults,
        };
        let pool = BlobPool::start(&BlobBench {
            blobs: desk.blobs.clone(),
            lanes: desk.lanes.clone(),
            gauge: desk.gauge.clone(),
            faults: desk.faults.clone(),
        })
        .map_err(failed)?;
        let committer = Committer::new(desk.clone(), Box::new(store));
        let faults = desk.faults.clone();
        let committer =
            spawn("outlast-commit", move || run_committer(committer, faults.as_ref())).map_err(failed)?;
        let stop_sweep = Arc::new(AtomicBool::new(false));
        let (wake_sweep, wake) = mpsc::channel();
        let sweep = {
            let (blobs, dir, stop) = (desk.blobs.clone(), dir.clone(), stop_sweep.clone());
            spawn("outlast-sweep", move || sweep(&blobs, &dir, &wake, &stop)).map_err(failed)?
        };
        let reader_dir = dir.clone();
        let readers = Readers::new(
            tuning.readers,
            Box::new(move || match SqliteReader::open(&reader_dir) {
                Ok(reader) => Ok(Box::new(reader)),
                Err(error) => Err(ReadError::Storage(error.to_string())),
            }),
        );
        let threads = Threads { committer, sweep, stop_sweep, wake_sweep, lock };
        Ok(Self {
            core: Arc::new(Core {
                dir,
                desk,
                pool: Arc::new(pool),
                readers,
                threads: Mutex::new(Some(threads)),
                closing: tokio::sync::Mutex::default(),
            }),
        })
    }

    /// Writes what is enqueued, checkpoints and closes. Later writes fail with `Closed`.
    pub async fn close(&self) {
        let _one_at_a_time = self.core.closing.lock().await;
        self.core.desk.lanes.close();
        let core = self.core.clone();
        self.core.readers.close().await;
        let joined = tokio::task::spawn_blocking(move || {
            let threads = lock(&core.threads).take();
            if let Some(threads) = threads {
                threads.join(&core.pool);
            }
        });
        if joined.await.is_err() {
            tracing::error!("closing the journal was interrupted");
        }
        self.core.desk.hubs.close();
    }

    /// Cheap enough to ask before every piece of new work.
    pub fn space(&self) -> Space {
        self.core.desk.gauge.space()
    }

    /// What was done since the store was opened.
    pub fn figures(&self) -> Figures {
        self.core.desk.counts.read()
    }

    // Sessions.

    /// A writer for a session that does not exist yet: its first append makes the row in the same commit.
    pub fn begin(&self, row: NewSession) -> Writer {
        let head = Head { seq: 0, hash: chain::genesis(&row.tenant, row.id), at: row.created_at };
        let lane = Lane::new(row.id, row.tenant.clone(), FIRST_EPOCH, 0, 0);
        Writer::new(lane, head, Some(row), self.core.desk.lanes.clone(), self.core.pool.clone())
    }

    /// The same for a fork: its events go on after the parent's, which must be there.
    pub async fn begin_fork(&self, row: NewSession, from: ForkPoint) -> Result<Writer, ReadError> {
        let mark = self.core.readers.run(move |reader| reader.mark(from.session, from.seq)).await?;
        let (parent, at) = mark.ok_or(ReadError::NotFound)?;
        let hash = chain::fork_genesis(&row.tenant, row.id, &parent);
        let head = Head { seq: from.seq, hash, at };
        let lane = Lane::new(row.id, row.tenant.clone(), FIRST_EPOCH, 0, from.seq);
        let row = NewSession { forked_from: Some(from), ..row };
        Ok(Writer::new(lane, head, Some(row), self.core.desk.lanes.clone(), self.core.pool.clone()))
    }

    /// Was any session forked from this one? Its events are theirs too.
    pub async fn has_forks(&self, session: SessionId) -> Result<bool, ReadError> {
        self.core.readers.run(move |reader| reader.has_forks(session)).await
    }

    /// Takes a stored session's lease: bumps its epoch (durably) so that every older writer is fenced off.
    pub async fn acquire(&self, session: SessionId) -> Result<(Writer, SessionRow), WriteError> {
        let Outcome::Acquired(taken) = self.core.ask(Change::Acquire(session)).await? else {
            return Err(WriteError::Storage("the store answered another question".to_owned()));
        };
        let row = taken.row;
        let lane = Lane::new(session, row.fixed.tenant.clone(), row.epoch, taken.no, taken.head.seq);
        let writer =
            Writer::new(lane, taken.head, None, self.core.desk.lanes.clone(), self.core.pool.clone());
        Ok((writer, row))
    }

    pub async fn session(&self, session: SessionId) -> Result<Option<SessionRow>, ReadError> {
        self.core.readers.run(move |reader| reader.session(session)).await
    }

    pub async fn find(&self, tenant: &Tenant, session: &SessionRef) -> Result<Option<SessionRow>, ReadError> {
        let (tenant, session) = (tenant.clone(), session.clone());
        self.core.readers.run(move |reader| reader.find(&tenant, &session)).await
    }

    pub async fn sessions(&self, query: SessionQuery) -> Result<SessionPage, ReadError> {
        self.core.readers.run(move |reader| reader.sessions(&query)).await
    }

    /// Sessions whose state says `live`, with their memos: what a server has to take up when it starts.
    pub async fn live_sessions(&self) -> Result<Vec<(SessionId, String)>, ReadError> {
        self.core.readers.run(|reader| reader.live_sessions()).await
    }

    /// A turn by its client's id.
    pub async fn turn_by_client_id(
        &self,
        session: SessionId,
        client_id: &str,
    ) -> Result<Option<TurnRow>, ReadError> {
        let client_id = client_id.to_owned();
        self.core.readers.run(move |reader| reader.turn_by_client_id(session, &client_id)).await
    }

    /// Turns without an outcome, in the order they were accepted.
    pub async fn open_turns(&self, session: SessionId) -> Result<Vec<TurnRow>, ReadError> {
        self.core.readers.run(move |reader| reader.open_turns(session)).await
    }

    pub async fn tenant_usage(&self, tenant: &Tenant) -> Result<TenantUsage, ReadError> {
        let tenant = tenant.clone();
        self.core.readers.run(move |reader| reader.tenant_usage(&tenant)).await
    }

    // Events.

    /// Events after a seq: at most `limit` of them, and no more than a page.
    pub async fn read(&self, session: SessionId, after: Seq, limit: usize) -> Result<Page, ReadError> {
        self.core.page(session, after, limit.min(PAGE_EVENTS)).await
    }

    /// One event, whole.
    pub async fn event(&self, session: SessionId, seq: Seq) -> Result<Option<StoredEvent>, ReadError> {
        let blobs = self.core.desk.blobs.clone();
        let look = move |reader: &mut dyn Reader| {
            look_twice(|| reader.event(session, seq)?.map(|found| whole(found, &blobs)).transpose())
        };
        self.core.readers.run(look).await
    }

    /// The session's own events of one kind after a seq, whole and in order; no more than a page's number of them.
    pub async fn of_kind(
        &self,
        session: SessionId,
        kind: EventKind,
        after: Seq,
    ) -> Result<Vec<StoredEvent>, ReadError> {
        let blobs = self.core.desk.blobs.clone();
        let look = move |reader: &mut dyn Reader| {
            look_twice(|| {
                let found = reader.of_kind(session, kind, after, PAGE_EVENTS)?;
                found.into_iter().map(|found| whole(found, &blobs)).collect()
            })
        };
        self.core.readers.run(look).await
    }

    /// Begins a text that an event will have attached; blocking.
    pub fn draft(&self) -> io::Result<Draft> {
        Draft::new(self.core.desk.blobs.clone())
    }

    /// A part of an attached text, by the name that its event has written down.
    pub async fn attached(&self, name: &str, offset: u64, limit: usize) -> Result<Bytes, ReadError> {
        let blobs = self.core.desk.blobs.clone();
        let unknown = || ReadError::Storage(format!("{name:?} names no text"));
        let address = unhex(name).ok_or_else(unknown)?;
        let look = move |_: &mut dyn Reader| {
            blobs.read_range(&address, offset, limit).map(Bytes::from).map_err(|error| {
                let name = crate::blobs::hex(&address);
                ReadError::Storage(format!("blob {name} cannot be read ({error})"))
            })
        };
        self.core.readers.run(look).await
    }

    pub fn follow(&self, session: SessionId, after: Seq) -> Follower {
        Follower::new(self.core.clone(), session, after)
    }

    /// A place at the tail, for whoever is about to ask for something to be recorded.
    pub fn seat(&self, session: SessionId) -> Seat {
        Seat::new(self.core.clone(), session)
    }

    /// Takes an event's body out for good. Its hash stays, and the chain still verifies.
    pub async fn erase(&self, session: SessionId, seq: Seq) -> Result<(), WriteError> {
        self.core.ask(Change::Erase { session, seq }).await.map(|_| ())
    }

    /// Drops the events before `first_seq`; a cursor before it is `Expired` from then on.
    pub async fn cut(&self, session: SessionId, first_seq: Seq) -> Result<(), WriteError> {
        while let Outcome::More = self.core.ask(Change::Cut { session, first_seq }).await? {}
        Ok(())
    }

    // Small tables.

    /// The next number of a tenant's counter, from 1. Never the same twice.
    pub async fn count(&self, tenant: &Tenant, counter: &str) -> Result<u64, WriteError> {
        self.count_many(tenant, counter, 1).await.map(|numbers| numbers.start)
    }

    /// The next numbers of a tenant's counter, as many as asked for.
    pub async fn count_many(
        &self,
        tenant: &Tenant,
        counter: &str,
        many: u32,
    ) -> Result<Range<u64>, WriteError> {
        let change = Change::Count { tenant: tenant.clone(), counter: counter.to_owned(), many };
        match self.core.ask(change).await? {
            Outcome::Number(last) => Ok((last + 1).saturating_sub(many.into())..last + 1),
            Outcome::Done | Outcome::More | Outcome::Acquired(_) => {
                Err(WriteError::Storage("the store answered another question".to_owned()))
            }
        }
    }

    /// A new version; the same version again is a `Conflict`.
    pub async fn put_agent(&self, row: AgentRow) -> Result<(), WriteError> {
        self.core.ask(Change::PutAgent(Box::new(row))).await.map(|_| ())
    }

    /// The newest version of each, by name.
    pub async fn agents(&self, tenant: &Tenant) -> Result<Vec<AgentRow>, ReadError> {
        let tenant = tenant.clone();
        self.core.readers.run(move |reader| reader.agents(&tenant)).await
    }

    /// The newest version, or the one named.
    pub async fn agent(
        &self,
        tenant: &Tenant,
        name: &AgentName,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, ReadError> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.core.readers.run(move |reader| reader.agent(&tenant, &name, version)).await
    }

    /// Every version of it.
    pub async fn remove_agent(&self, tenant: &Tenant, name: &AgentName) -> Result<(), WriteError> {
        let change = Change::RemoveAgent { tenant: tenant.clone(), name: name.clone() };
        self.core.ask(change).await.map(|_| ())
    }

    pub async fn put_key(&self, row: KeyRow) -> Result<(), WriteError> {
        self.core.ask(Change::PutKey(Box::new(row))).await.map(|_| ())
    }

    pub async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        self.core.readers.run(|reader| reader.keys()).await
    }

    pub async fn remove_key(&self, id: KeyId) -> Result<(), WriteError> {
        self.core.ask(Change::RemoveKey(id)).await.map(|_| ())
    }

    /// The same id again replaces it.
    pub async fn put_credential(&self, row: CredentialRow) -> Result<(), WriteError> {
        self.core.ask(Change::PutCredential(Box::new(row))).await.map(|_| ())
    }

    pub async fn credentials(&self, tenant: &Tenant) -> Result<Vec<CredentialRow>, ReadError> {
        let tenant = tenant.clone();
        self.core.readers.run(move |reader| reader.credentials(&tenant, None)).await
    }

    pub async fn credential(
        &self,
        tenant: &Tenant,
        id: CredentialId,
    ) -> Result<Option<CredentialRow>, ReadError> {
        let tenant = tenant.clone();
        self.core.readers.run(move |reader| Ok(reader.credentials(&tenant, Some(id))?.pop())).await
    }

    pub async fn remove_credential(&self, tenant: &Tenant, id: CredentialId) -> Result<(), WriteError> {
        self.core.ask(Change::RemoveCredential { tenant: tenant.clone(), id }).await.map(|_| ())
    }

    /// A new one; an id that is there, or a key that the tenant has given to another, is a `Conflict`. It goes by
    /// itself with the last session that names it.
    pub async fn put_sandbox(&self, row: SandboxRow) -> Result<(), WriteError> {
        self.core.ask(Change::PutSandbox(Box::new(row))).await.map(|_| ())
    }

    /// The sandbox's last good snapshot from now on. `NotFound` when the sandbox was removed meanwhile.
    pub async fn put_snapshot(&self, sandbox: &str, snapshot: SnapshotRow) -> Result<(), WriteError> {
        let change = Change::PutSnapshot { sandbox: sandbox.to_owned(), snapshot: Box::new(snapshot) };
        self.core.ask(change).await.map(|_| ())
    }

    pub async fn sandbox(&self, id: &str) -> Result<Option<SandboxRow>, ReadError> {
        let id = id.to_owned();
        self.core.readers.run(move |reader| reader.sandbox(&id)).await
    }

    pub async fn sandbox_by_key(&self, tenant: &Tenant, key: &str) -> Result<Option<SandboxRow>, ReadError> {
        let (tenant, key) = (tenant.clone(), key.to_owned());
        self.core.readers.run(move |reader| reader.sandbox_by_key(&tenant, &key)).await
    }

    /// The sessions that name the sandbox, ended ones too.
    pub async fn sandbox_sessions(&self, id: &str) -> Result<Vec<SessionId>, ReadError> {
        let id = id.to_owned();
        self.core.readers.run(move |reader| reader.sandbox_sessions(&id)).await
    }

    /// Does a session other than this one, and not ended, use the sandbox?
    pub async fn sandbox_has_others(&self, id: &str, except: SessionId) -> Result<bool, ReadError> {
        let id = id.to_owned();
        self.core.readers.run(move |reader| reader.sandbox_has_others(&id, except)).await
    }

    /// Every snapshot that some sandbox needs, of all tenants: what garbage collection keeps.
    pub async fn snapshots(&self) -> Result<Vec<String>, ReadError> {
        self.core.readers.run(|reader| reader.snapshots()).await
    }

    /// `NotFound` also while a session names it.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), WriteError> {
        self.core.ask(Change::RemoveSandbox(id.to_owned())).await.map(|_| ())
    }
}

/// Even opening needs a little room: on a full disk, the reserve's.
fn open_store(dir: &Path, gauge: &Arc<Gauge>, faults: Option<&Faults>) -> Result<SqliteStore, OpenError> {
    match SqliteStore::open(dir, gauge.clone(), faults.cloned()) {
        Err(OpenError::Io { .. }) if gauge.is_full() => {
            gauge.release();
            SqliteStore::open(dir, gauge.clone(), faults.cloned())
        }
        other => other,
    }
}

/// A committer that panics must not leave writers waiting for ever, nor half a batch published.
fn run_committer(committer: Committer, faults: Option<&Faults>) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| committer.run())).is_err() {
        crate::faults::stop(faults, "the committer panicked");
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Waits a while, then looks once for blobs that a crash left without an event.
fn sweep(blobs: &Blobs, dir: &Path, wake: &mpsc::Receiver<()>, stop: &AtomicBool) {
    if wake.recv_timeout(SWEEP_AFTER) != Err(mpsc::RecvTimeoutError::Timeout) {
        return;
    }
    let swept = SqliteReader::open(dir).map_err(|error| ReadError::Storage(error.to_string())).and_then(
        |mut reader| blobs.sweep(stop, |address| crate::store::Events::has_blob(&mut reader, address)),
    );
    match swept {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "blobs that no event names were removed"),
        Err(error) => tracing::warn!(%error, "the look for orphaned blobs was given up"),
    }
}
