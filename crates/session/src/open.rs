//! Opening and closing a server's sessions: the data folder, the first key, what a stopped server left behind.

use crate::{
    Sessions,
    agents::Agents,
    credentials::Credentials,
    keys::{self, Keys},
    live::Live,
    policy::Sandboxing,
    quota::{Frozen, Quotas, Rates, Slots},
    sandboxes::Sandboxes,
    shared::{Counters, Shared},
    shells::ShellOptions,
    spec::Memo,
    task::Command,
    vault::{Vault, VaultError},
};
use journal::Journal;
use place::{Known, Place, remote::Remotes};
use std::{
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// Resolved by the binary; nothing here reads the environment.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder; made when it is not there.
    pub data: PathBuf,
    /// This program, for the bundled demo agent.
    pub exe: PathBuf,
    /// 64 hexadecimal digits; without it, `master.key` in the data folder.
    pub master_key: Option<String>,
    pub quotas: Quotas,
    pub sandboxing: Sandboxing,
    pub shells: ShellOptions,
    /// After this long without a turn, an agent's process is stopped.
    pub idle: Duration,
    /// After this long without use, the workspace of a session at rest is put away into its snapshot.
    pub evict: Duration,
    /// After this long without a server, an agent's keeper ends it.
    pub orphan: Duration,
    /// Kept for recording what runs when the disk is full, and the mark below which new work is refused.
    pub reserve_bytes: u64,
    pub low_water_bytes: u64,
    /// What one snapshot of a workspace may hold.
    pub snapshots: place::snapshot::Limits,
}

impl Options {
    pub fn new(data: PathBuf, exe: PathBuf) -> Self {
        Self {
            data,
            exe,
            master_key: None,
            quotas: Quotas::default(),
            sandboxing: Sandboxing::default(),
            shells: ShellOptions::default(),
            idle: Duration::from_secs(protocol::limits::IDLE_SECS),
            evict: Duration::from_secs(protocol::limits::EVICT_SECS),
            orphan: Duration::from_secs(protocol::limits::ORPHAN_SECS),
            reserve_bytes: 16 * 1024 * 1024,
            low_water_bytes: 64 * 1024 * 1024,
            snapshots: place::snapshot::Limits::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data folder {} cannot be used: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    #[error(transparent)]
    Read(#[from] journal::ReadError),
    #[error("{0}")]
    Secrets(String),
    #[error("the first start failed: {0}")]
    First(protocol::Fault),
}

impl From<VaultError> for OpenError {
    fn from(error: VaultError) -> Self {
        Self::Secrets(error.to_string())
    }
}

/// Is there a first key to tell the operator about?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstKey {
    /// Just made; it is in this file.
    Made(PathBuf),
    Known,
}

impl Sessions {
    /// Opens the data folder, makes key and demo agent on first start, and takes up what a stopped server
    /// left. The sessions that were live are woken in the background.
    pub async fn open(options: Options) -> Result<(Self, FirstKey), OpenError> {
        let data = options.data.clone();
        make_folder(&data)?;
        let journal_options = journal::Options {
            dir: data.clone(),
            reserve_bytes: options.reserve_bytes,
            low_water_bytes: options.low_water_bytes,
        };
        let journal = blocking(move || Journal::open(journal_options)).await??;
        let (folder, master) = (data.clone(), options.master_key.clone());
        let vault = blocking(move || Vault::open(&folder, master.as_deref())).await??;
        let keys = Keys::load(journal.clone()).await?;
        let shared = Arc::new(Shared {
            agents: Agents::new(journal.clone(), data.clone()),
            credentials: Credentials { journal: journal.clone(), vault: vault.clone() },
            place: Place::new(&data, options.orphan),
            remotes: Remotes::new(&data, options.shells.remote.clone())
                .map_err(|error| OpenError::Secrets(error.to_string()))?,
            sandboxes: Sandboxes::open(&data, &data.join("places"), journal.clone(), options.snapshots)
                .await
                .map_err(|source| OpenError::Folder { path: data.clone(), source })?,
            live: Live::default(),
            slots: Slots::new(&options.quotas),
            shell_slots: Slots::of(options.shells.sessions),
            shell_numbers: tokio::sync::Mutex::new(0..0),
            frozen: Frozen::default(),
            rates: Rates::new(&options.quotas),
            counters: Counters::default(),
            started: Instant::now(),
            closing: false.into(),
            keys,
            vault,
            journal,
            options,
        });
        let first = if shared.keys.is_empty() {
            shared.agents.deploy_demo().await.map_err(OpenError::First)?;
            shared.keys.make_first(&data).await.map_err(OpenError::First)?;
            FirstKey::Made(data.join(keys::FIRST_KEY_FILE))
        } else {
            FirstKey::Known
        };
        if let Err(error) = shared.place.sweep().await {
            tracing::warn!(%error, "half-made workspaces could not be cleaned up");
        }
        shared.clear_orphans().await;
        tokio::spawn(crate::watch::always(Arc::downgrade(&shared)));
        let sessions = Self { shared };
        sessions.wake_live().await?;
        Ok((sessions, first))
    }

    /// Stops accepting, asks every task to end, waits as long as `grace`, then closes the journal.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.closing.store(true, Ordering::Release);
        for mailbox in self.shared.live.mailboxes() {
            // A task that is just leaving needs no word.
            let _ = mailbox.send(Command::Shutdown).await;
        }
        if tokio::time::timeout(grace, self.shared.live.empty()).await.is_err() {
            tracing::warn!(
                left = self.shared.live.count(),
                "sessions did not end in time; the next start takes them up"
            );
        }
        self.shared.journal.close().await;
    }

    async fn wake_live(&self) -> Result<(), OpenError> {
        let live = self.shared.journal.live_sessions().await?;
        let mut known = Known::new();
        for (_, memo) in &live {
            for tie in Memo::decode(memo).ties() {
                known.entry(tie.keeper.clone()).or_default().insert(tie.process);
            }
        }
        self.shared.place.adopt(known).await;
        if live.is_empty() {
            return Ok(());
        }
        tracing::info!(sessions = live.len(), "taking up sessions that were live when the server stopped");
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            for (id, _) in live {
                shared.redispatch(id, Command::Wake).await;
            }
        });
        Ok(())
    }
}

fn make_folder(path: &Path) -> Result<(), OpenError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| OpenError::Folder { path: path.to_owned(), source })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, OpenError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| OpenError::Secrets(error.to_string()))
}
