//! Bytes on their way out: a file, part of one, or an archive, in pieces that are made when they are asked for.
//! However large the file and slow the reader, one piece is in memory, and only an archive holds a thread meanwhile.

use super::access::{Files, Source, files_fault};
use super::snapshot_fault;
use crate::spec::internal;
use bytes::Bytes;
use place::snapshot::{SnapshotId, Watch};
use protocol::{Code, Fault, FileSource};
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, mpsc},
};

/// One piece of a file on disk, and of an archive.
const PIECE_BYTES: usize = 256 * 1024;
/// One piece of a file in a snapshot: finding its place costs more than reading it.
const SNAPSHOT_PIECE_BYTES: u64 = 1024 * 1024;
/// Pieces of an archive that wait for their reader.
const PIECES_AHEAD: usize = 2;
/// A reader that takes no piece of an archive for so long has gone.
const STALLED: Duration = Duration::from_secs(60);

/// Content to be streamed. Ends early only with an error.
#[derive(Debug)]
pub struct Content {
    source: FileSource,
    pieces: Pieces,
}

#[derive(Debug)]
enum Pieces {
    File { files: Files, file: Arc<File>, size: u64, rest: Range<u64> },
    Snapshot { files: Files, id: SnapshotId, path: PathBuf, size: u64, rest: Range<u64> },
    Archive { pieces: mpsc::Receiver<Result<Bytes, Fault>> },
}

impl Content {
    pub(super) fn of_file(files: Files, file: File, size: u64) -> Self {
        let source = files.source();
        Self { source, pieces: Pieces::File { files, file: Arc::new(file), size, rest: 0..size } }
    }

    pub(super) fn of_snapshot(files: Files, id: SnapshotId, path: PathBuf, size: u64) -> Self {
        let source = files.source();
        Self { source, pieces: Pieces::Snapshot { files, id, path, size, rest: 0..size } }
    }

    pub(super) fn of_archive(files: Files, path: PathBuf, permit: OwnedSemaphorePermit) -> Self {
        let source = files.source();
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            archive(&files, &path, &runtime, &sender);
            drop(permit);
        });
        Self { source, pieces: Pieces::Archive { pieces } }
    }

    pub fn source(&self) -> FileSource {
        self.source
    }

    /// Of the whole file; an archive's is not known before its end.
    pub fn size(&self) -> Option<u64> {
        match &self.pieces {
            Pieces::File { size, .. } | Pieces::Snapshot { size, .. } => Some(*size),
            Pieces::Archive { .. } => None,
        }
    }

    /// Only this part of the file, as far as it is there. An archive has no parts.
    #[must_use]
    pub fn part(mut self, range: Range<u64>) -> Self {
        match &mut self.pieces {
            Pieces::File { size, rest, .. } | Pieces::Snapshot { size, rest, .. } => {
                *rest = range.start.min(*size)..range.end.min(*size);
            }
            Pieces::Archive { .. } => {}
        }
        self
    }

    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        match &mut self.pieces {
            Pieces::File { rest, .. } | Pieces::Snapshot { rest, .. } if rest.is_empty() => Ok(None),
            Pieces::File { files, file, rest, .. } => {
                let (file, at) = (Arc::clone(file), rest.start);
                let most = usize::try_from(rest.end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let piece =
                    files.sandboxes.look(move || read_at(&file, at, most)).await?.map_err(internal)?;
                advance(rest, piece)
            }
            Pieces::Snapshot { files, id, path, rest, .. } => {
                let (snapshots, id, path) = (files.sandboxes.inner.snapshots.clone(), *id, path.clone());
                let range = rest.start..rest.end.min(rest.start + SNAPSHOT_PIECE_BYTES);
                let piece = files.sandboxes.look(move || snapshots.read_file(&id, &path, range)).await?;
                advance(rest, piece.map_err(snapshot_fault)?)
            }
            Pieces::Archive { pieces } => pieces.recv().await.transpose(),
        }
    }
}

fn read_at(file: &File, at: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; most];
    let mut filled = 0;
    while filled < most {
        match file.read_at(piece.get_mut(filled..).unwrap_or_default(), at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    piece.truncate(filled);
    Ok(piece)
}

fn advance(rest: &mut Range<u64>, piece: Vec<u8>) -> Result<Option<Bytes>, Fault> {
    if piece.is_empty() {
        // Its length was promised; a short answer must not look like a whole one.
        return Err(Fault::new(Code::Conflict, "The file became shorter while it was read; read it again"));
    }
    rest.start += piece.len() as u64;
    Ok(Some(piece.into()))
}

fn archive(
    files: &Files,
    path: &std::path::Path,
    runtime: &Handle,
    sender: &mpsc::Sender<Result<Bytes, Fault>>,
) {
    let mut into = BufWriter::with_capacity(PIECE_BYTES, Outlet { runtime, sender });
    // A reader that is gone is no failure of ours, and needs no word.
    let gone = || sender.is_closed();
    let written = match &files.source {
        Source::Live(live) => match live.tar(path, &mut into) {
            Err(_) if gone() => return,
            written => written.map_err(files_fault),
        },
        Source::Snapshot { id, .. } => {
            let snapshots = &files.sandboxes.inner.snapshots;
            match snapshots.tar(id, path, &mut into, &Watch::default()) {
                Err(_) if gone() => return,
                written => written.map_err(snapshot_fault),
            }
        }
    };
    let flushed = written.and_then(|()| match into.flush() {
        Err(_) if gone() => Ok(()),
        flushed => flushed.map_err(internal),
    });
    if let Err(fault) = flushed {
        // One that is there must not take it for whole.
        let _ = runtime.block_on(sender.send_timeout(Err(fault), STALLED));
    }
}

/// The writing end: waits for the reader, but not for ever.
struct Outlet<'a> {
    runtime: &'a Handle,
    sender: &'a mpsc::Sender<Result<Bytes, Fault>>,
}

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        let sent = self.runtime.block_on(self.sender.send_timeout(Ok(piece), STALLED));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
