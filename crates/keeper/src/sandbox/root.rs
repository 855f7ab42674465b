//! The root that processes inside see: the host's system or an operator's, read-only; a `/proc` of their own; a `/dev`
//! of a few harmless nodes; a sized `/tmp`; and the workspace as `/home/user`.
//!
//! Done in two steps, because one user cannot do both: what is bound from the host is opened with the keeper's
//! identity, which may reach the data folder, and what is made anew is made as the sandbox's user, the only one that
//! exists inside.

mod project;

use super::init::{Trouble, trouble};
use crate::{
    config::{self, Access, Network, View},
    sys::{self, MountReach},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
    mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags},
};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

/// Top-level folders of a system. What is not there is left out, a link stays a link.
const SYSTEM: [&str; 8] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt"];
/// Never taken from an operator's root: these are the sandbox's own.
const OWN: [&str; 9] = ["proc", "sys", "dev", "tmp", "home", "workspace", "run", "boot", "lost+found"];
/// Folders of `/etc` that programs need, and that tell nothing about the machine's users.
const ETC_FOLDERS: [&str; 8] =
    ["alternatives", "crypto-policies", "fonts", "perl", "pki", "python3", "ssl", "terminfo"];
/// Files of `/etc` that are copied.
const ETC_FILES: [&str; 15] = [
    "bash.bashrc",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "profile",
    "protocols",
    "services",
    "shells",
    "timezone",
    "host.conf",
];
/// A file of `/etc` above this is left out.
const ETC_BYTES: u64 = 1024 * 1024;
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("dev/ptmx", "pts/ptmx"),
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
];
/// Told to nobody, though the modes of most say so already.
const MASKED: [&str; 6] = ["kcore", "keys", "kmsg", "sysrq-trigger", "timer_list", "sched_debug"];
/// The root itself holds a few small files.
const ROOT_OPTIONS: &str = "mode=0755,size=8m,nr_inodes=4096";
/// Where the new root is put together; any folder would do, because only this process sees it.
const SITE: &str = "/tmp";

/// A copy of a mount and all below it, which is nowhere yet.
pub(super) const CLONED: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_RECURSIVE);

const RDONLY: u64 = 0x1;
const NOSUID: u64 = 0x2;
const NODEV: u64 = 0x4;
const NOEXEC: u64 = 0x8;

/// Something of the host, cloned and not yet in its place.
struct Bind {
    to: PathBuf,
    tree: OwnedFd,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
}

/// Whose `/etc` there is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Etc {
    Own,
    Roots,
}

/// What comes from the host.
pub(crate) struct Sources {
    /// The whole host, for a project.
    whole: Option<OwnedFd>,
    binds: Vec<Bind>,
    links: Vec<(PathBuf, PathBuf)>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Sources {
    /// With the keeper's identity.
    pub(crate) fn open(wanted: &config::Sandbox, mapped: Option<OwnedFd>) -> Result<Self, Trouble> {
        let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", propagation).map_err(trouble("make its mounts private"))?;
        let mut sources = Self { whole: None, binds: Vec::new(), links: Vec::new(), files: Vec::new() };
        match &wanted.view {
            View::System {} => sources.host_system(&wanted.network)?,
            View::Root { folder } => sources.named_system(path(&folder.0))?,
            View::Project { project } => sources.project(wanted, project, mapped)?,
        }
        for name in DEVICES {
            let from = Path::new("/dev").join(name);
            if from.exists() {
                sources.bind(&from, Path::new("dev").join(name), NOSUID | NOEXEC)?;
            }
        }
        if sources.whole.is_none() {
            sources.bind(path(&wanted.workspace.0), PathBuf::from("home/user"), NOSUID | NODEV)?;
        }
        for mount in &wanted.mounts {
            let flags = match mount.access {
                Access::ReadOnly => RDONLY | NOSUID | NODEV,
                Access::ReadWrite => NOSUID | NODEV,
            };
            sources.bind(path(&mount.from.0), inside(&mount.to.0)?, flags)?;
        }
        Ok(sources)
    }

    fn host_system(&mut self, network: &Network) -> Result<(), Trouble> {
        for name in SYSTEM {
            self.system(&Path::new("/").join(name), name)?;
        }
        for name in ETC_FOLDERS {
            let from = Path::new("/etc").join(name);
            if from.is_dir() {
                self.bind(&from, Path::new("etc").join(name), RDONLY | NOSUID | NODEV)?;
            }
        }
        let resolver = matches!(network, Network::Full {}).then_some("resolv.conf");
        for name in ETC_FILES.into_iter().chain(resolver) {
            let from = Path::new("/etc").join(name);
            let small = from.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= ETC_BYTES);
            if small && let Ok(content) = std::fs::read(&from) {
                self.files.push((Path::new("etc").join(name), content));
            }
        }
        Ok(())
    }

    fn named_system(&mut self, root: &Path) -> Result<(), Trouble> {
        let failed = |error: std::io::Error| Trouble {
            what: format!("read the root folder {}", root.display()),
            error: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        };
        for entry in std::fs::read_dir(root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if !OWN.iter().any(|own| OsStr::new(own) == name) {
                self.system(&root.join(&name), &name)?;
            }
        }
        Ok(())
    }

    fn system(&mut self, from: &Path, name: impl AsRef<Path>) -> Result<(), Trouble> {
        let Ok(meta) = from.symlink_metadata() else { return Ok(()) };
        if meta.is_symlink() {
            let aim = from.read_link().unwrap_or_default();
            self.links.push((name.as_ref().to_owned(), aim));
            return Ok(());
        }
        self.bind(from, name.as_ref().to_owned(), RDONLY | NOSUID | NODEV)
    }

    /// Clones what is at `from`, with everything mounted below it, and sets the flags while nobody sees it.
    fn bind(&mut self, from: &Path, to: PathBuf, flags: u64) -> Result<(), Trouble> {
        let what = || format!("bind {} from the host", from.display());
        let tree = rustix::mount::open_tree(CWD, from, CLONED).map_err(trouble(what()))?;
        self.bind_tree(tree, to, flags).map_err(trouble(what()))
    }

    fn bind_tree(&mut self, tree: OwnedFd, to: PathBuf, flags: u64) -> Result<(), Errno> {
        sys::mount_attributes(tree.as_fd(), flags, MountReach::Below)?;
        let stat = rustix::fs::statat(&tree, c"", AtFlags::EMPTY_PATH)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Folder,
            _ => Kind::File,
        };
        self.binds.push(Bind { to, tree, kind });
        Ok(())
    }

    /// As the sandbox's user. Afterwards the process stands in the new root, and the old one is gone.
    pub(crate) fn build(self, wanted: &config::Sandbox) -> Result<(), Trouble> {
        match &wanted.view {
            View::System {} => self.build_sandbox(wanted, Etc::Own),
            View::Root { .. } => self.build_sandbox(wanted, Etc::Roots),
            View::Project { project } => self.build_project(wanted, project),
        }
    }

    fn build_sandbox(self, wanted: &config::Sandbox, etc: Etc) -> Result<(), Trouble> {
        let plain = MountFlags::NOSUID | MountFlags::NODEV;
        let on = |what: &str| trouble(format!("make {what}"));
        rustix::mount::mount("tmpfs", SITE, "tmpfs", plain, Some(&*text(ROOT_OPTIONS)))
            .map_err(on("its root"))?;
        rustix::process::chdir(SITE).map_err(on("its root"))?;
        for folder in ["etc", "dev", "dev/pts", "dev/shm", "proc", "tmp", "run", "var", "home", "home/user"] {
            make_folder(Path::new(folder))?;
        }
        if etc == Etc::Own {
            self.own_etc(wanted)?;
        }
        for (name, aim) in &self.links {
            rustix::fs::symlinkat(aim, CWD, name).map_err(on("a link of the system"))?;
        }
        mount_own(wanted)?;
        for (name, aim) in [("workspace", "home/user"), ("var/tmp", "../tmp")].into_iter().chain(DEVICE_LINKS)
        {
            match rustix::fs::symlinkat(aim, CWD, name) {
                // An operator's root may bring its own `/var`.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(on("a link")(error)),
            }
        }
        self.place_binds()?;
        mask()?;
        enter()
    }

    fn own_etc(&self, wanted: &config::Sandbox) -> Result<(), Trouble> {
        let id = wanted.inside_uid;
        let host = &wanted.hostname;
        let own = [
            (
                "passwd",
                format!(
                    "user:x:{id}:{id}:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
                ),
            ),
            ("group", format!("user:x:{id}:\nnogroup:x:65534:\n")),
            ("hostname", format!("{host}\n")),
            ("hosts", format!("127.0.0.1 localhost {host}\n::1 localhost\n")),
        ];
        for (name, content) in own {
            make_file(&Path::new("etc").join(name), content.as_bytes())?;
        }
        for (name, content) in &self.files {
            make_file(name, content)?;
        }
        Ok(())
    }

    fn place_binds(&self) -> Result<(), Trouble> {
        for Bind { to, tree, kind } in &self.binds {
            make_place(to, *kind)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(tree, c"", CWD, to, flags)
                .map_err(trouble(format!("put /{} in its place", to.display())))?;
        }
        Ok(())
    }
}

/// What each root has of its own: `/proc`, `/tmp`, shared memory and terminals.
fn mount_own(wanted: &config::Sandbox) -> Result<(), Trouble> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    let on = |what: &str| trouble(format!("make {what}"));
    let proc_flags = plain | MountFlags::NOEXEC | MountFlags::RDONLY;
    rustix::mount::mount("proc", "proc", "proc", proc_flags, None).map_err(trouble("mount /proc"))?;
    let tmp = format!("mode=1777,size={}", wanted.tmp_bytes);
    for folder in ["tmp", "dev/shm"] {
        rustix::mount::mount("tmpfs", folder, "tmpfs", plain, Some(&*text(&tmp))).map_err(on("/tmp"))?;
    }
    let terminals = text("newinstance,ptmxmode=0666,mode=0620");
    let quiet = MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount("devpts", "dev/pts", "devpts", quiet, Some(&*terminals)).map_err(on("/dev/pts"))
}

fn mask() -> Result<(), Trouble> {
    for name in MASKED {
        let masked = Path::new("proc").join(name);
        if masked.exists() {
            rustix::mount::mount_bind("dev/null", &masked).map_err(trouble("mask a file of /proc"))?;
        }
    }
    Ok(())
}

/// Makes the current folder the root, lets go of the old one, and lets nobody write to the new one itself.
fn enter() -> Result<(), Trouble> {
    let failed = || trouble("change its root");
    rustix::process::pivot_root(".", ".").map_err(failed())?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed())?;
    rustix::process::chdir("/").map_err(failed())?;
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed())?;
    sys::mount_attributes(root.as_fd(), RDONLY | NOSUID | NODEV, MountReach::One).map_err(failed())
}

fn make_place(to: &Path, kind: Kind) -> Result<(), Trouble> {
    let mut so_far = PathBuf::new();
    for part in to.parent().into_iter().flat_map(Path::components) {
        so_far.push(part);
        make_folder(&so_far)?;
    }
    match kind {
        Kind::Folder => make_folder(to),
        Kind::File if to.symlink_metadata().is_ok() => Ok(()),
        Kind::File => make_file(to, b""),
    }
}

fn make_folder(path: &Path) -> Result<(), Trouble> {
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        // A place below something read-only is there, or it cannot be made.
        Err(Errno::ROFS) if path.is_dir() => Ok(()),
        Err(error) => Err(trouble(format!("make the folder /{}", path.display()))(error)),
    }
}

fn make_file(path: &Path, content: &[u8]) -> Result<(), Trouble> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o644)).and_then(|file| {
        let mut rest = content;
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = &rest[written..];
        }
        Ok(())
    });
    made.map_err(trouble(format!("write /{}", path.display())))
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// An absolute path inside, as it is seen from the new root.
fn inside(bytes: &[u8]) -> Result<PathBuf, Trouble> {
    let path = path(bytes);
    let below = path.strip_prefix("/").unwrap_or(Path::new(""));
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if plain && below.components().next().is_some() {
        return Ok(below.to_owned());
    }
    Err(Trouble {
        what: format!("mount at {}, which is no plain absolute path", path.display()),
        error: Errno::INVAL,
    })
}

fn text(text: &str) -> std::ffi::CString {
    // Numbers and constants, without a NUL.
    std::ffi::CString::new(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_go_to_plain_places_only() {
        assert_eq!(inside(b"/data/set").unwrap(), Path::new("data/set"));
        assert_eq!(inside(b"/data//set/").unwrap(), Path::new("data/set"));
        for bad in [&b""[..], b"/", b"data", b"/a/../etc", b"/..", b"//"] {
            assert!(inside(bad).is_err(), "{:?}", path(bad));
        }
    }
}
