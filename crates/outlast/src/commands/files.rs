//! `files ls|get|put|rm|tar`. Paths are bytes on both sides; they travel in the protocol's encoding. A download into
//! a file takes its name when it is whole.

use super::Asking;
use crate::{
    cli::FilesCommand,
    exit::{Exit, Failure},
    reach,
    table::table,
    term::{Form, clean},
};
use client::{Archive, Download, Removal};
use protocol::{FileEntry, FileKind, FileSource, ListFiles, SessionId, path_text};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, fs::PermissionsExt},
    },
    path::Path,
};

impl Asking<'_> {
    pub(crate) async fn files(&self, command: &FilesCommand) -> Result<Exit, Failure> {
        match command {
            FilesCommand::Ls { session, path } => {
                let id = reach::session(&self.client, session).await?;
                self.list_files(id, &folder(path.as_deref())).await?;
            }
            FilesCommand::Get { session, path, file } => {
                let id = reach::session(&self.client, session).await?;
                let content = self.client.read_file(id, &text(path), None).await?;
                self.store(content, file.as_deref()).await?;
            }
            FilesCommand::Put { session, path, file } => {
                let id = reach::session(&self.client, session).await?;
                self.put_file(id, &text(path), file.as_deref()).await?;
            }
            FilesCommand::Rm { session, paths, recursive } => {
                let id = reach::session(&self.client, session).await?;
                let removal = if *recursive { Removal::All } else { Removal::One };
                for path in paths {
                    let path = text(path);
                    self.client.remove_file(id, &path, removal).await?;
                    match self.term.form {
                        Form::Json => self.term.json(&serde_json::json!({ "ok": true, "path": path }))?,
                        Form::Text => self.term.say(&format!("{}  removed", clean(&path)))?,
                    }
                }
            }
            FilesCommand::Tar { session, path, output } => {
                let to_terminal = output.is_none() && self.term.shows();
                if to_terminal {
                    return Err(Failure::Usage(
                        "a tar is not for a terminal; give a file with --output, or pipe it into `tar -x`"
                            .to_owned(),
                    ));
                }
                let id = reach::session(&self.client, session).await?;
                let content = self.client.archive(id, &folder(path.as_deref())).await?;
                self.store(content, output.as_deref()).await?;
            }
        }
        Ok(Exit::Done)
    }

    async fn list_files(&self, id: SessionId, path: &str) -> Result<(), Failure> {
        let mut request = ListFiles { path: path.to_owned(), ..ListFiles::default() };
        let mut rows = vec![];
        let mut source;
        loop {
            let page = self.client.files(id, &request).await?;
            source = page.source;
            for file in &page.files {
                match self.term.form {
                    Form::Json => self.term.json(file)?,
                    Form::Text => rows.push(row(file)),
                }
            }
            request.cursor = page.next_cursor;
            if request.cursor.is_none() {
                break;
            }
        }
        if self.term.form == Form::Json {
            return Ok(());
        }
        match (source, rows.is_empty()) {
            (FileSource::Snapshot, _) => {
                self.term.note("from the last snapshot; resume the session to change files");
            }
            (FileSource::Sandbox, true) => self.term.note("the folder is empty"),
            (FileSource::Sandbox, false) => {}
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.term.say(&table(self.term.paint(), &["MODE", "SIZE", "MODIFIED", "NAME"], &rows))
    }

    async fn put_file(&self, id: SessionId, path: &str, file: Option<&Path>) -> Result<(), Failure> {
        let (content, mode) = match file.filter(|file| *file != Path::new("-")) {
            Some(file) => {
                let broken =
                    |error: io::Error| Failure::Broken(format!("{} cannot be read: {error}", file.display()));
                let opened = File::open(file).map_err(broken)?;
                let metadata = opened.metadata().map_err(broken)?;
                if metadata.is_dir() {
                    return Err(Failure::Usage(format!(
                        "{} is a folder; put its files one by one",
                        file.display()
                    )));
                }
                (opened, Some(metadata.permissions().mode() & 0o777))
            }
            None => {
                let stdin = io::stdin().as_fd().try_clone_to_owned();
                (
                    File::from(
                        stdin.map_err(|error| Failure::Broken(format!("stdin cannot be read: {error}")))?,
                    ),
                    None,
                )
            }
        };
        let written = self.client.write_file(id, path, mode, Archive::File(content)).await?;
        match self.term.form {
            Form::Json => self.term.json(&written),
            Form::Text => self.term.say(&format!("{}  {} bytes", clean(&written.path), written.size)),
        }
    }

    async fn store(&self, mut content: Download, to: Option<&Path>) -> Result<(), Failure> {
        let Some(to) = to.filter(|to| *to != Path::new("-")) else {
            while let Some(piece) = content.next().await? {
                self.term.bytes(&piece)?;
            }
            return Ok(());
        };
        let broken =
            |error: io::Error| Failure::Broken(format!("{} cannot be written: {error}", to.display()));
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // With the permissions of any new file, not a temporary one's.
        let mut draft = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(broken)?;
        while let Some(piece) = content.next().await? {
            draft.write_all(&piece).map_err(broken)?;
        }
        draft.persist(to).map_err(|error| broken(error.error))?;
        Ok(())
    }
}

/// A path as it was typed, in the protocol's encoding.
fn text(path: impl AsRef<OsStr>) -> String {
    path_text(path.as_ref().as_bytes())
}

fn folder(path: Option<&Path>) -> String {
    path.map(text).unwrap_or_default()
}

fn row(file: &FileEntry) -> Vec<String> {
    let name = match (&file.kind, &file.target) {
        (FileKind::Folder, _) => format!("{}/", file.name),
        (FileKind::Link, Some(target)) => format!("{} -> {target}", file.name),
        (FileKind::File | FileKind::Link | FileKind::Other, _) => file.name.clone(),
    };
    let modified = file.modified_at.to_string();
    vec![
        file.mode.clone(),
        if file.kind == FileKind::File { file.size.to_string() } else { "-".to_owned() },
        modified.get(..16).unwrap_or(&modified).replace('T', " "),
        name,
    ]
}
