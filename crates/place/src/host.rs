//! The bare host: workspaces are folders below one root, processes are the server's children. Nothing is
//! contained here, and whoever chooses it is told so.

use crate::{Handle, Output, PlaceError, Process, Spawn, SpawnError, Stdin, copy, file, spawner::Spawner};
use rustix::{
    fs::{Access, AtFlags, CWD, RenameFlags},
    process::Pid,
};
use std::{
    ffi::OsString,
    io,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::OnceCell;

/// Names beginning so are workspaces in the making or in removal; no workspace id does.
const UNFINISHED: &str = ".unfinished-";

/// Workspaces in `root/<id>/`. A cheap handle.
#[derive(Debug, Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    spawner: OnceCell<Spawner>,
    unfinished: AtomicU64,
}

impl Host {
    /// `root` is made when the first workspace is.
    pub fn new(root: PathBuf) -> Self {
        Self { inner: Arc::new(Inner { root, spawner: OnceCell::new(), unfinished: AtomicU64::new(0) }) }
    }

    pub(crate) fn home(&self, id: &str) -> PathBuf {
        self.inner.root.join(id)
    }

    pub(crate) async fn exists(&self, id: &str) -> bool {
        check_id(id).is_ok()
            && tokio::fs::symlink_metadata(self.home(id)).await.is_ok_and(|meta| meta.is_dir())
    }

    pub(crate) async fn create(&self, id: &str, from: &Path) -> Result<(), PlaceError> {
        check_id(id)?;
        let (host, id, from) = (self.clone(), id.to_owned(), from.to_owned());
        blocking(move || {
            let (home, draft) = (host.home(&id), host.unfinished(&id));
            if home.symlink_metadata().is_ok() {
                return Err(PlaceError::Exists(id));
            }
            let root = &host.inner.root;
            std::fs::create_dir_all(root).map_err(|error| PlaceError::io("make the folder", root, error))?;
            let made = copy::tree(&from, &draft).and_then(|()| {
                rename_new(&draft, &home).map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => PlaceError::Exists(id),
                    _ => PlaceError::io("make the workspace", &home, error),
                })
            });
            if made.is_err() {
                // What cannot be removed now is removed by the next sweep.
                let _ = copy::remove(&draft);
            }
            made
        })
        .await
    }

    pub(crate) async fn destroy(&self, id: &str) -> Result<(), PlaceError> {
        check_id(id)?;
        let (host, id) = (self.clone(), id.to_owned());
        blocking(move || {
            let (home, gone) = (host.home(&id), host.unfinished(&id));
            // Renamed first: a workspace is there whole, or not at all.
            match std::fs::rename(&home, &gone) {
                Ok(()) => copy::remove(&gone),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(PlaceError::io("remove the workspace", &home, error)),
            }
        })
        .await
    }

    pub(crate) async fn sweep(&self) -> Result<(), PlaceError> {
        let host = self.clone();
        blocking(move || {
            let root = &host.inner.root;
            let entries = match std::fs::read_dir(root) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(PlaceError::io("list", root, error)),
            };
            for entry in entries.flatten() {
                if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                    copy::remove(&entry.path())?;
                }
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn write_file(&self, id: &str, path: &str, content: &[u8]) -> Result<(), PlaceError> {
        check_id(id)?;
        let (home, id, path, content) =
            (self.home(id), id.to_owned(), path.to_owned(), bytes::Bytes::copy_from_slice(content));
        blocking(move || file::write(&home, &id, &path, &content)).await
    }

    pub(crate) async fn spawn(&self, id: &str, spawn: Spawn) -> Result<Process, SpawnError> {
        let home = self.home(id);
        if !self.exists(id).await {
            return Err(SpawnError::NoHome { home });
        }
        check_text(&spawn)?;
        let path = find(&spawn, &home)?;
        let failed = |source: io::Error| failure(&path, source);
        let spawner =
            self.inner.spawner.get_or_try_init(|| async { Spawner::start() }).await.map_err(failed)?;
        let spawned = spawner.spawn(command(&spawn, &path, &home)).await.map_err(failed)?;
        let mut child = spawned.child;
        let pid =
            Pid::from_raw(child.id().cast_signed()).ok_or_else(|| failed(io::Error::other("no pid")))?;
        // From here on dropping the handle kills and reaps.
        let handle = Handle::new(pid, spawned.pidfd, spawner.clone()).map_err(failed)?;
        let missing = || io::Error::other("a pipe is missing");
        let stdin = child.stdin.take().ok_or_else(missing).and_then(|pipe| Stdin::new(pipe.into()));
        let stdout = child.stdout.take().ok_or_else(missing).and_then(|pipe| Output::new(pipe.into()));
        let stderr = child.stderr.take().ok_or_else(missing).and_then(|pipe| Output::new(pipe.into()));
        Ok(Process {
            stdin: stdin.map_err(failed)?,
            stdout: stdout.map_err(failed)?,
            stderr: stderr.map_err(failed)?,
            handle,
        })
    }

    /// A name that no other call uses.
    fn unfinished(&self, id: &str) -> PathBuf {
        let number = self.inner.unfinished.fetch_add(1, Ordering::Relaxed);
        self.inner.root.join(format!("{UNFINISHED}{id}-{}-{number}", std::process::id()))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PlaceError> + Send + 'static,
) -> Result<T, PlaceError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(PlaceError::io("finish the work on", "the workspace", io::Error::other(error))),
    }
}

fn check_id(id: &str) -> Result<(), PlaceError> {
    let plain = !id.is_empty()
        && id.len() <= protocol::limits::ALIAS_BYTES
        && !id.starts_with('.')
        && !id.contains(['/', '\0']);
    if plain { Ok(()) } else { Err(PlaceError::BadId(id.to_owned())) }
}

fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system without the flag: a folder still cannot replace one that holds anything.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::rename(from, to),
        done => done.map_err(io::Error::from),
    }
}

fn check_text(spawn: &Spawn) -> Result<(), SpawnError> {
    let nul = |text: &str| text.contains('\0');
    let bad = spawn.args.iter().any(|arg| nul(arg))
        || spawn
            .env
            .iter()
            .any(|(name, value)| name.is_empty() || name.contains('=') || nul(name) || nul(value));
    if bad { Err(SpawnError::BadText) } else { Ok(()) }
}

/// The file to run, as an absolute path.
fn find(spawn: &Spawn, home: &Path) -> Result<PathBuf, SpawnError> {
    let program = Path::new(&spawn.program);
    let bad = || SpawnError::BadProgram { program: spawn.program.clone() };
    if spawn.program.is_empty() || spawn.program.contains('\0') || spawn.program.ends_with('/') {
        return Err(bad());
    }
    let searched: Vec<PathBuf> = if program.is_absolute() {
        vec![program.to_owned()]
    } else if spawn.program.contains('/') {
        if program.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(bad());
        }
        vec![home.join(program.strip_prefix(".").unwrap_or(program))]
    } else if matches!(spawn.program.as_str(), "." | "..") {
        return Err(bad());
    } else {
        // An entry that is not absolute is meant from where the process starts.
        let path = spawn.env.get("PATH").map(OsString::from).unwrap_or_default();
        std::env::split_paths(&path)
            .filter(|entry| !entry.as_os_str().is_empty())
            .map(|entry| home.join(entry).join(program))
            .collect()
    };
    let mut refused = None;
    for path in &searched {
        if !path.is_file() {
            continue;
        }
        if rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::empty()).is_ok() {
            return Ok(path.clone());
        }
        refused.get_or_insert_with(|| path.clone());
    }
    match refused {
        Some(path) => Err(SpawnError::NotExecutable { path }),
        None => Err(SpawnError::NotFound { program: spawn.program.clone(), searched }),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the room in which processes are spawned")]
fn command(spawn: &Spawn, path: &Path, home: &Path) -> Command {
    let mut command = Command::new(path);
    command
        .args(&spawn.args)
        .env_clear()
        .envs(&spawn.env)
        .current_dir(home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn failure(path: &Path, source: io::Error) -> SpawnError {
    match source.kind() {
        io::ErrorKind::ArgumentListTooLong => SpawnError::TooLarge,
        _ => SpawnError::Failed { path: path.to_owned(), source },
    }
}
