//! Where blocking work runs, how much of it at once, and how it is stopped when nobody waits for it any more.

use super::Sandboxes;
use crate::spec::internal;
use protocol::{Code, Fault};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Snapshots, and restores, at once. Each keeps a disk and a core busy; whoever resumes does not wait behind those
/// who pause.
const TAKES: usize = 4;
const RESTORES: usize = 4;
/// Files and folders written or removed from outside at once.
const CHANGES: usize = 8;
/// Short looks into folders and pieces of files at once.
const LOOKS: usize = 16;
/// Archives at once. Each holds a thread as long as its reader takes.
const ARCHIVES: usize = 8;

#[derive(Debug)]
pub(super) struct Work {
    pub(super) takes: Arc<Semaphore>,
    pub(super) restores: Arc<Semaphore>,
    pub(super) collections: Arc<Semaphore>,
    pub(super) changes: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    archives: Arc<Semaphore>,
}

impl Work {
    pub(super) fn new() -> Self {
        let room = |places| Arc::new(Semaphore::new(places));
        Self {
            takes: room(TAKES),
            restores: room(RESTORES),
            collections: room(1),
            changes: room(CHANGES),
            looks: room(LOOKS),
            archives: room(ARCHIVES),
        }
    }

    /// Refuses rather than waits: those before may take long.
    pub(super) fn archive(&self) -> Result<OwnedSemaphorePermit, Fault> {
        Arc::clone(&self.archives).try_acquire_owned().map_err(|_| {
            Fault::new(
                Code::CapacityReached,
                format!("{ARCHIVES} archives are being downloaded; try again in a moment"),
            )
        })
    }
}

impl Sandboxes {
    /// A short piece of blocking work.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let permit = Arc::clone(&self.inner.work.looks).acquire_owned().await.map_err(internal)?;
        blocking(permit, work).await
    }
}

/// A long piece of blocking work, which is told to stop when its caller goes away.
pub(super) async fn cancellable<T: Send + 'static>(
    room: &Arc<Semaphore>,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> Result<T, Fault> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(internal)?;
    let cancel = CancelOnDrop(Arc::default());
    let told = Arc::clone(&cancel.0);
    blocking(permit, move || work(&told)).await
}

/// The place is given back when the work is done, not when its caller stops waiting.
async fn blocking<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    });
    done.await.map_err(internal)
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
