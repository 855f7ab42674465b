//! Workspaces: folders below one root, each there whole or not at all.

use crate::{Owner, PlaceError, Walls, copy, file, owner::Ids};
use rustix::fs::{CWD, RenameFlags};
use std::{
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Names beginning so are workspaces in the making or in removal; no workspace id does.
const UNFINISHED: &str = ".unfinished-";

/// Workspaces in `root/<id>/`. A cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct Workspaces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    ids: Ids,
    unfinished: AtomicU64,
}

impl Workspaces {
    /// `root` is made when the first workspace is.
    pub(crate) fn new(root: PathBuf, ids: Ids) -> Self {
        Self { inner: Arc::new(Inner { root, ids, unfinished: AtomicU64::new(0) }) }
    }

    pub(crate) fn folder(&self, id: &str) -> PathBuf {
        self.inner.root.join(id)
    }

    pub(crate) async fn exists(&self, id: &str) -> bool {
        check_id(id).is_ok()
            && tokio::fs::symlink_metadata(self.folder(id)).await.is_ok_and(|meta| meta.is_dir())
    }

    pub(crate) async fn owner(&self, id: &str, walls: Walls) -> Result<Owner, PlaceError> {
        check_id(id)?;
        match tokio::fs::symlink_metadata(self.folder(id)).await {
            Ok(meta) => {
                let found = Owner { uid: meta.uid(), gid: meta.gid() };
                // A user of the machine's is nobody's own: its other processes could reach into these.
                let foreign = rustix::process::geteuid().is_root() && !found.is_drawn();
                if walls == Walls::Sandbox && foreign { self.hand_over(id).await } else { Ok(found) }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.new_owner(walls),
            Err(error) => Err(PlaceError::io("look at", self.folder(id), error)),
        }
    }

    pub(crate) fn give_back(&self, owner: Owner) {
        self.inner.ids.give_back(owner.uid);
    }

    /// The workspace's owner from now on, if it has another.
    pub(crate) async fn give(&self, id: &str, owner: Owner) -> Result<(), PlaceError> {
        check_id(id)?;
        let folder = self.folder(id);
        let meta = tokio::fs::symlink_metadata(&folder).await;
        let meta = meta.map_err(|error| PlaceError::io("look at", &folder, error))?;
        if (meta.uid(), meta.gid()) == (owner.uid, owner.gid) {
            return Ok(());
        }
        blocking(move || copy::hand_over(&folder, owner)).await
    }

    /// Root is nobody's user inside: a workspace that is still the server's own gets an owner.
    async fn hand_over(&self, id: &str) -> Result<Owner, PlaceError> {
        let (folder, owner) = (self.folder(id), self.new_owner(Walls::Sandbox)?);
        blocking(move || copy::hand_over(&folder, owner)).await?;
        Ok(owner)
    }

    fn new_owner(&self, walls: Walls) -> Result<Owner, PlaceError> {
        self.inner.ids.take(walls).ok_or(PlaceError::NoOwner)
    }

    pub(crate) async fn create(&self, id: &str, from: &Path, walls: Walls) -> Result<(), PlaceError> {
        check_id(id)?;
        let (own, id, from) = (self.clone(), id.to_owned(), from.to_owned());
        blocking(move || {
            let (home, draft) = (own.folder(&id), own.unfinished(&id));
            if home.symlink_metadata().is_ok() {
                return Err(PlaceError::Exists(id));
            }
            let root = &own.inner.root;
            std::fs::create_dir_all(root).map_err(|error| PlaceError::io("make the folder", root, error))?;
            let owner = own.new_owner(walls)?;
            let made = copy::tree_for(&from, &draft, owner).and_then(|()| {
                rename_new(&draft, &home).map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => PlaceError::Exists(id),
                    _ => PlaceError::io("make the workspace", &home, error),
                })
            });
            if made.is_err() {
                own.inner.ids.give_back(owner.uid);
                // What cannot be removed now is removed by the next sweep.
                let _ = copy::remove(&draft);
            }
            made
        })
        .await
    }

    pub(crate) async fn create_empty(&self, id: &str, walls: Walls) -> Result<(), PlaceError> {
        check_id(id)?;
        let (own, id) = (self.clone(), id.to_owned());
        blocking(move || {
            let (home, draft) = (own.folder(&id), own.unfinished(&id));
            let root = &own.inner.root;
            std::fs::create_dir_all(root).map_err(|error| PlaceError::io("make the folder", root, error))?;
            let owner = own.new_owner(walls)?;
            let made = std::fs::DirBuilder::new().mode(0o700).create(&draft).and_then(|()| {
                if owner != Owner::ourselves() {
                    std::os::unix::fs::lchown(&draft, Some(owner.uid), Some(owner.gid))?;
                }
                rename_new(&draft, &home)
            });
            made.map_err(|error| {
                own.inner.ids.give_back(owner.uid);
                let _ = copy::remove(&draft);
                match error.kind() {
                    io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => PlaceError::Exists(id),
                    _ => PlaceError::io("make the workspace", &home, error),
                }
            })
        })
        .await
    }

    pub(crate) async fn destroy(&self, id: &str) -> Result<(), PlaceError> {
        check_id(id)?;
        let (own, id) = (self.clone(), id.to_owned());
        blocking(move || {
            let (home, gone) = (own.folder(&id), own.unfinished(&id));
            let owner = home.symlink_metadata().map(|meta| meta.uid());
            // Renamed first: a workspace is there whole, or not at all.
            match std::fs::rename(&home, &gone) {
                Ok(()) => {
                    copy::remove(&gone)?;
                    if let Ok(uid) = owner {
                        own.inner.ids.give_back(uid);
                    }
                    Ok(())
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(PlaceError::io("remove the workspace", &home, error)),
            }
        })
        .await
    }

    pub(crate) async fn list(&self) -> Vec<String> {
        let root = self.inner.root.clone();
        let listed = tokio::task::spawn_blocking(move || {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| check_id(name).is_ok()).collect()
        });
        listed.await.unwrap_or_default()
    }

    pub(crate) async fn sweep(&self) -> Result<(), PlaceError> {
        let own = self.clone();
        blocking(move || {
            let root = &own.inner.root;
            let entries = match std::fs::read_dir(root) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(PlaceError::io("list", root, error)),
            };
            for entry in entries.flatten() {
                if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                    copy::remove(&entry.path())?;
                } else if let Ok(meta) = entry.metadata() {
                    own.inner.ids.found(meta.uid());
                }
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn write_file(&self, id: &str, path: &str, content: &[u8]) -> Result<(), PlaceError> {
        check_id(id)?;
        let (home, id, path, content) =
            (self.folder(id), id.to_owned(), path.to_owned(), bytes::Bytes::copy_from_slice(content));
        blocking(move || file::write(&home, &id, &path, &content)).await
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
