//! A session's files as callers reach them: list, read, write, remove, archive. Finds the session, checks what may
//! be changed, and leaves the rest to [`crate::sandboxes`]. Paths arrive as text in the protocol's encoding.

use crate::{Caller, Content, NewWork, Sessions, lifecycle, sandboxes};
use journal::SessionRow;
use place::files::{Remove, decode_path};
use protocol::{Code, Fault, FileEntry, FileList, ListFiles, SessionRef, Status, limits};
use std::path::{Path, PathBuf};

impl Sessions {
    pub async fn list_files(
        &self,
        caller: &Caller,
        session: &SessionRef,
        request: ListFiles,
    ) -> Result<FileList, Fault> {
        let limit = request.limit.unwrap_or(limits::FILE_PAGE);
        if !(1..=limits::FILE_PAGE).contains(&limit) {
            return Err(Fault::invalid(format!("limit must be 1 to {}", limits::FILE_PAGE)));
        }
        let path = path(&request.path)?;
        let cursor = request.cursor.as_deref().map(decode_path).transpose();
        let cursor = cursor.map_err(|_| Fault::invalid("cursor is not one that a page gave"))?;
        let files = self.files_of(&self.row(caller, session).await?).await?;
        files.list(path, cursor.map(PathBuf::into_os_string), limit).await
    }

    pub async fn read_file(
        &self,
        caller: &Caller,
        session: &SessionRef,
        file: &str,
    ) -> Result<Content, Fault> {
        let path = path(file)?;
        self.files_of(&self.row(caller, session).await?).await?.read(path).await
    }

    /// A tar of what lies at and below the path.
    pub async fn archive_files(
        &self,
        caller: &Caller,
        session: &SessionRef,
        top: &str,
    ) -> Result<Content, Fault> {
        let path = path(top)?;
        self.files_of(&self.row(caller, session).await?).await?.tar(path).await
    }

    /// May the file be written? To be asked before its content is received.
    pub async fn admit_file(&self, caller: &Caller, session: &SessionRef, file: &str) -> Result<(), Fault> {
        path(file)?;
        changeable(&self.row(caller, session).await?)?;
        self.admit_work(&caller.tenant, NewWork::Prompt).await
    }

    /// `content` is a file on this machine's disk. `mode` has permission bits; without it, those of the file that
    /// is replaced.
    pub async fn write_file(
        &self,
        caller: &Caller,
        session: &SessionRef,
        file: &str,
        content: &Path,
        mode: Option<u32>,
    ) -> Result<FileEntry, Fault> {
        let path = path(file)?;
        let row = self.row(caller, session).await?;
        changeable(&row)?;
        self.files_of(&row).await?.write(path, content, sandboxes::Written { mode }).await
    }

    pub async fn remove_file(
        &self,
        caller: &Caller,
        session: &SessionRef,
        file: &str,
        how: RemoveFile,
    ) -> Result<(), Fault> {
        let path = path(file)?;
        let row = self.row(caller, session).await?;
        changeable(&row)?;
        let how = match how {
            RemoveFile::Alone => Remove::Alone,
            RemoveFile::WithContents => Remove::WithContents,
        };
        self.files_of(&row).await?.remove(path, how).await
    }

    /// The one place that knows where a sandbox's folder is on this machine.
    async fn files_of(&self, row: &SessionRow) -> Result<sandboxes::Files, Fault> {
        let folder = self.shared.place.folder(&row.fixed.sandbox);
        self.shared.sandboxes.files(&row.fixed.sandbox, folder).await
    }
}

/// Whether removing a folder removes what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveFile {
    /// A folder must be empty.
    Alone,
    WithContents,
}

fn path(text: &str) -> Result<PathBuf, Fault> {
    decode_path(text).map_err(|_| {
        let message =
            format!("{text:?} is not a path: write a % as %25, and other bytes as % and two digits");
        Fault::new(Code::BadPath, message)
    })
}

/// What has ended stays as it was.
fn changeable(row: &SessionRow) -> Result<(), Fault> {
    match row.state.status {
        Status::Ended => Err(lifecycle::ended()),
        Status::Starting | Status::Active | Status::Paused | Status::Error => Ok(()),
    }
}
