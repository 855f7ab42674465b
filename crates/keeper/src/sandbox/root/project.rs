//! The root of a project: the whole host in its own place, read-only, with one folder that can be written to.
//!
//! Covered, whatever the modes of files say: devices, `/sys`, `/run` with the sockets of services, and what the caller
//! hides, such as homes. `/tmp` is the project's own. A home is put where the user's is looked for.

use super::{
    CLONED, DEVICE_LINKS, Kind, NODEV, NOSUID, RDONLY, SITE, Sources, enter, inside, make_file, make_folder,
    make_place, mask, mount_own, path, text,
};
use crate::{
    config::{self, Network, Project},
    sandbox::{
        init::{Trouble, trouble},
        mapped,
    },
    sys::{self, MountReach},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
    mount::{MountFlags, MoveMountFlags},
};
use std::path::{Path, PathBuf};

/// Nothing of these is for a project, whoever asks.
const COVERED: [&str; 2] = ["run", "sys"];
/// Folders that cover others hold a few folders to mount on, and small files.
const COVER_OPTIONS: &str = "mode=0755,size=1m,nr_inodes=1024";
const RESOLVER: &str = "/etc/resolv.conf";
/// A resolver's file above this is left out.
const RESOLVER_BYTES: u64 = 64 * 1024;
const PASSWD: &str = "etc/passwd";
/// Where the list of users lies that is shown in the place of the host's.
const OWN_PASSWD: &str = "run/passwd";

impl Sources {
    pub(super) fn project(
        &mut self,
        wanted: &config::Sandbox,
        project: &Project,
        mapped: Option<OwnedFd>,
    ) -> Result<(), Trouble> {
        let whole = rustix::mount::open_tree(CWD, "/", CLONED).map_err(trouble("see the host's tree"))?;
        sys::mount_attributes(whole.as_fd(), RDONLY | NOSUID | NODEV, MountReach::Below)
            .map_err(trouble("make the host's tree read-only"))?;
        self.whole = Some(whole);
        self.bind(path(&wanted.workspace.0), inside(&project.home.0)?, NOSUID | NODEV)?;
        let folder = match mapped {
            Some(tree) => tree,
            None => mapped::open(&project.folder.0).map_err(trouble("open the project's folder"))?,
        };
        self.bind_tree(folder, inside(&project.folder.0)?, NOSUID | NODEV)
            .map_err(trouble("open the project's folder"))?;
        for readable in &project.readable {
            let from = path(&readable.0);
            if from.symlink_metadata().is_ok() {
                self.bind(from, inside(&readable.0)?, RDONLY | NOSUID | NODEV)?;
            }
        }
        // What lies in another is mounted after it.
        self.binds.sort_by_key(|bind| bind.to.components().count());
        if matches!(wanted.network, Network::Full {}) {
            self.resolver();
        }
        if project.mapped.is_some() {
            self.files.push((PathBuf::from(OWN_PASSWD), passwd(wanted, project)));
        }
        Ok(())
    }

    /// Where names are looked up is often said in a file below `/run`.
    fn resolver(&mut self) {
        let Ok(real) = std::fs::canonicalize(RESOLVER) else { return };
        let small = real.metadata().is_ok_and(|meta| meta.len() <= RESOLVER_BYTES);
        if let (true, Ok(below), Ok(content)) = (small, real.strip_prefix("/"), std::fs::read(&real))
            && below.starts_with("run")
        {
            self.files.push((below.to_owned(), content));
        }
    }

    pub(super) fn build_project(self, wanted: &config::Sandbox, project: &Project) -> Result<(), Trouble> {
        let on = |what: &str| trouble(format!("make {what}"));
        let Some(whole) = &self.whole else { return Err(on("its root")(Errno::NOENT)) };
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(whole, c"", CWD, SITE, flags).map_err(on("its root"))?;
        rustix::process::chdir(SITE).map_err(on("its root"))?;
        let mut covers = Covers::default();
        for folder in COVERED.into_iter().chain(["dev"]) {
            covers.cover(Path::new(folder))?;
        }
        for folder in ["dev/pts", "dev/shm"] {
            make_folder(Path::new(folder))?;
        }
        mount_own(wanted)?;
        for (name, aim) in DEVICE_LINKS {
            rustix::fs::symlinkat(aim, CWD, name).map_err(on("a link"))?;
        }
        if Path::new("var/tmp").is_dir() {
            rustix::mount::mount_bind("tmp", "var/tmp").map_err(on("/var/tmp"))?;
        }
        let mut hidden = project.hidden.iter().map(|path| inside(&path.0)).collect::<Result<Vec<_>, _>>()?;
        hidden.sort_by_key(|path| path.components().count());
        // What is within something that is shown is hidden once that is there.
        let shown =
            |path: &PathBuf| self.binds.iter().any(|bind| *path != bind.to && path.starts_with(&bind.to));
        let (later, first): (Vec<_>, Vec<_>) =
            hidden.into_iter().partition(|path| shown(path) || !path.is_dir());
        first.iter().try_for_each(|path| covers.cover(path))?;
        for (name, content) in &self.files {
            make_place(name.parent().unwrap_or(name), Kind::Folder)?;
            make_file(name, content)?;
        }
        self.place_binds()?;
        later.iter().try_for_each(|path| covers.cover(path))?;
        mask()?;
        if project.mapped.is_some() {
            rustix::mount::mount_bind(OWN_PASSWD, PASSWD).map_err(on("its list of users"))?;
        }
        covers.close()?;
        enter()
    }
}

/// Empty folders over others.
#[derive(Default)]
struct Covers {
    folders: Vec<OwnedFd>,
}

impl Covers {
    /// Hides a folder or a file. What the user cannot get to is hidden already.
    fn cover(&mut self, at: &Path) -> Result<(), Trouble> {
        let failed = || trouble(format!("hide /{}", at.display()));
        let kind = match rustix::fs::statat(CWD, at, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
            Err(error) => return Err(failed()(error)),
        };
        match kind {
            FileType::Directory => {
                let plain = MountFlags::NOSUID | MountFlags::NODEV;
                rustix::mount::mount("tmpfs", at, "tmpfs", plain, Some(&*text(COVER_OPTIONS)))
                    .map_err(failed())?;
                // Held, because something else may be put over it.
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let cover = rustix::fs::open(at, flags, Mode::empty()).map_err(failed())?;
                self.folders.push(cover);
                Ok(())
            }
            // Who gave the path resolved it; a link that was made since leads to what is hidden by its own name.
            FileType::Symlink => Ok(()),
            _ => rustix::mount::mount_bind("dev/null", at).map_err(failed()),
        }
    }

    /// Nobody puts anything into them.
    fn close(&self) -> Result<(), Trouble> {
        let flags = RDONLY | NOSUID | NODEV;
        let mut all = self.folders.iter();
        all.try_for_each(|cover| sys::mount_attributes(cover.as_fd(), flags, MountReach::One))
            .map_err(trouble("close what is hidden"))
    }
}

/// The host's users, with the sandbox's own among them.
fn passwd(wanted: &config::Sandbox, project: &Project) -> Vec<u8> {
    let theirs = std::fs::read("/etc/passwd").unwrap_or_default();
    let id = wanted.inside_uid.to_string();
    let mut all = Vec::new();
    for line in theirs.split_inclusive(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, uid) = (fields.next(), fields.nth(1));
        if name != Some(b"user") && uid != Some(id.as_bytes()) {
            all.extend_from_slice(line);
        }
    }
    all.extend(format!("user:x:{id}:{}:user:", wanted.inside_gid).into_bytes());
    all.extend_from_slice(&project.home.0);
    all.extend_from_slice(b":/bin/sh\n");
    all
}
