//! A few readers, shared by everyone who reads. A read runs on a blocking thread and gives its reader back by
//! itself, also when whoever asked has gone away. More callers than readers wait their turn.

use crate::{ReadError, lock, store::Reader};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

type Open = Box<dyn Fn() -> Result<Box<dyn Reader>, ReadError> + Send + Sync>;

pub(crate) struct Readers {
    count: usize,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Box<dyn Reader>>>>,
    open: Arc<Open>,
}

impl Readers {
    pub(crate) fn new(count: usize, open: Open) -> Self {
        let count = count.max(1);
        Self { count, permits: Arc::new(Semaphore::new(count)), idle: Arc::default(), open: Arc::new(open) }
    }

    pub(crate) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut dyn Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let closed = || ReadError::Storage("the store is closed".to_owned());
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| closed())?;
        let (idle, open) = (self.idle.clone(), self.open.clone());
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let taken = lock(&idle).pop();
            let mut reader = match taken {
                Some(reader) => reader,
                None => open()?,
            };
            let result = read(&mut *reader);
            lock(&idle).push(reader);
            result
        });
        task.await.unwrap_or_else(|error| Err(ReadError::Storage(format!("a read ended early: {error}"))))
    }

    /// Later reads fail; the idle readers' connections are closed.
    pub(crate) async fn close(&self) {
        let all = u32::try_from(self.count).unwrap_or(u32::MAX);
        let _all = self.permits.acquire_many(all).await;
        self.permits.close();
        lock(&self.idle).clear();
    }
}
