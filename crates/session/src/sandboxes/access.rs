//! One sandbox's files from outside: the live folder while it is on disk, else the last snapshot, which can only be
//! looked at. Opened for one call; whatever happens to the sandbox meanwhile, the call goes on with what it opened.

use super::{Content, Sandboxes, snapshot_fault, work::cancellable};
use crate::faults;
use place::{
    files::{self, FilesError, More, Page, Parents, Remove, encode_path},
    snapshot::{Held, SnapshotId},
};
use protocol::{Code, Fault, FileEntry, FileKind, FileList, FileSource, Timestamp};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(super) sandboxes: Sandboxes,
    pub(super) source: Source,
}

#[derive(Debug, Clone)]
pub(super) enum Source {
    Live(Arc<files::Files>),
    Snapshot {
        id: SnapshotId,
        /// Garbage collection waits for it.
        _held: Arc<Held>,
    },
}

/// What a written file should be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    /// Permission bits; without, those of the file that is replaced.
    pub(crate) mode: Option<u32>,
}

impl Files {
    pub(super) fn live(sandboxes: Sandboxes, files: files::Files) -> Self {
        Self { sandboxes, source: Source::Live(Arc::new(files)) }
    }

    pub(super) fn snapshot(sandboxes: Sandboxes, id: SnapshotId) -> Self {
        let held = Arc::new(sandboxes.inner.snapshots.hold(&id));
        Self { sandboxes, source: Source::Snapshot { id, _held: held } }
    }

    pub(crate) fn source(&self) -> FileSource {
        match self.source {
            Source::Live(_) => FileSource::Sandbox,
            Source::Snapshot { .. } => FileSource::Snapshot,
        }
    }

    pub(crate) async fn list(
        &self,
        path: PathBuf,
        after: Option<OsString>,
        limit: usize,
    ) -> Result<FileList, Fault> {
        let (source, snapshots, folder) =
            (self.source.clone(), self.sandboxes.inner.snapshots.clone(), path.clone());
        let page = self.sandboxes.look(move || match source {
            Source::Live(files) => files.list(&path, after.as_deref(), limit).map_err(files_fault),
            Source::Snapshot { id, .. } => {
                snapshots.list(&id, &path, after.as_deref(), limit).map_err(snapshot_fault)
            }
        });
        let Page { entries, more } = page.await??;
        let next_cursor = match more {
            More::After(name) => Some(encode_path(name)),
            More::No => None,
        };
        let files = entries
            .into_iter()
            .map(|entry| {
                let path = plain(&folder).join(&entry.name);
                shown(&path, entry)
            })
            .collect();
        Ok(FileList { files, source: self.source(), next_cursor })
    }

    /// What is at `path`. A link is told as such.
    pub(crate) async fn look(&self, path: PathBuf) -> Result<FileEntry, Fault> {
        let (source, snapshots) = (self.source.clone(), self.sandboxes.inner.snapshots.clone());
        let looked = self.sandboxes.look(move || {
            let entry = match source {
                Source::Live(files) => files.look(&path).map_err(files_fault)?,
                Source::Snapshot { id, .. } => snapshots.look(&id, &path).map_err(snapshot_fault)?,
            };
            Ok(shown(&plain(&path), entry))
        });
        looked.await?
    }

    /// A regular file, to be read piece by piece. On disk, links that stay inside are followed.
    pub(crate) async fn read(&self, path: PathBuf) -> Result<Content, Fault> {
        match &self.source {
            Source::Live(files) => {
                let (files, wanted) = (Arc::clone(files), path.clone());
                let opened = self.sandboxes.look(move || {
                    let file = files.open_file(&wanted).map_err(files_fault)?;
                    let size = file.metadata().map_err(crate::spec::internal)?.len();
                    Ok((file, size))
                });
                let (file, size) = opened.await??;
                Ok(Content::of_file(self.clone(), file, size))
            }
            Source::Snapshot { id, .. } => {
                let entry = self.look(path.clone()).await?;
                match entry.kind {
                    FileKind::File => Ok(Content::of_snapshot(self.clone(), *id, path, entry.size)),
                    FileKind::Folder | FileKind::Link | FileKind::Other => {
                        Err(files_fault(FilesError::NotFile(path)))
                    }
                }
            }
        }
    }

    /// Makes `from`, a file outside, the file at `path`, whole or not at all, and durably, making the folders on the
    /// way. It is moved where it can be, and copied otherwise.
    pub(crate) async fn write(&self, path: PathBuf, from: &Path, how: Written) -> Result<FileEntry, Fault> {
        let (files, from) = (self.writable()?, from.to_owned());
        let wanted = path.clone();
        cancellable(&self.sandboxes.inner.work.changes, move |_| {
            files.adopt(&wanted, &from, how.mode, Parents::Make).map_err(files_fault)
        })
        .await??;
        self.look(path).await
    }

    /// Removes what is at `path`; a link itself, never what it points to.
    pub(crate) async fn remove(&self, path: PathBuf, how: Remove) -> Result<(), Fault> {
        let files = self.writable()?;
        cancellable(&self.sandboxes.inner.work.changes, move |_| files.remove(&path, how))
            .await?
            .map_err(files_fault)
    }

    /// What lies at and below `path`, as a tar.
    pub(crate) async fn tar(&self, path: PathBuf) -> Result<Content, Fault> {
        // Before the first byte, while there is still a status to say it with.
        self.look(path.clone()).await?;
        let permit = self.sandboxes.inner.work.archive()?;
        Ok(Content::of_archive(self.clone(), path, permit))
    }

    fn writable(&self) -> Result<Arc<files::Files>, Fault> {
        match &self.source {
            Source::Live(files) => Ok(Arc::clone(files)),
            Source::Snapshot { .. } => Err(Fault::new(
                Code::NotRunning,
                "The session's files are in its last snapshot and can only be read; resume the session first",
            )),
        }
    }
}

/// The path without `.` and doubled slashes; whether it stays inside was checked by whoever resolved it.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect()
}

fn shown(path: &Path, entry: files::FileEntry) -> FileEntry {
    let (kind, size, target) = match entry.kind {
        files::FileKind::File => (FileKind::File, entry.size, None),
        files::FileKind::Folder => (FileKind::Folder, 0, None),
        files::FileKind::Link(target) => (FileKind::Link, 0, Some(encode_path(target))),
        files::FileKind::Other => (FileKind::Other, 0, None),
    };
    let (seconds, nanos) = entry.modified;
    FileEntry {
        name: encode_path(entry.name),
        path: encode_path(path),
        kind,
        size,
        mode: format!("{:03o}", entry.mode & 0o7777),
        modified_at: Timestamp::from_millis(
            seconds.saturating_mul(1000).saturating_add(i64::from(nanos / 1_000_000)),
        ),
        target,
    }
}

/// One table from what file access meets to what callers are told. The text shows the path as it was given.
#[expect(clippy::needless_pass_by_value, reason = "given to map_err as it is")]
pub(super) fn files_fault(error: FilesError) -> Fault {
    let text = error.to_string();
    let code = match error {
        FilesError::NotFound(_) => Code::FileNotFound,
        FilesError::BadPath(_)
        | FilesError::NotFolder(_)
        | FilesError::NotFile(_)
        | FilesError::Link(_)
        | FilesError::TooMany { .. }
        | FilesError::TooDeep { .. } => Code::BadPath,
        FilesError::Exists(_) | FilesError::NotEmpty(_) => Code::Conflict,
        FilesError::Denied(_) => Code::Forbidden,
        FilesError::Full(_) => return faults::full(),
        FilesError::Io { .. } => {
            tracing::error!(error = text, "a session's file could not be reached");
            Code::Internal
        }
    };
    Fault::new(code, text)
}
