//! A project's folder whose files belong to somebody who may not run anything, such as root: shown to the sandbox's
//! user as its own, by a mount that maps owners.
//!
//! Only the machine's root can make such a mount, and only outside of the sandbox's namespaces: it is made by the
//! keeper and handed in. What is written through it belongs to the folder's owner on disk.

use super::{explain, root::CLONED};
use crate::{
    config::{self, HostUser, Project},
    start::Failure,
    sys::{self, Side},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
    mount::OpenTreeFlags,
    process::{Pid, Signal, WaitOptions},
};

/// The folder's tree, cloned and not yet in its place; none when the user owns it anyway.
pub(super) fn folder(project: &Project, wanted: &config::Sandbox) -> Result<Option<OwnedFd>, Failure> {
    let Some(owner) = &project.mapped else { return Ok(None) };
    let tree = open(&project.folder.0).and_then(|tree| {
        let users = users(owner, wanted)?;
        sys::mount_owners(tree.as_fd(), users.as_fd())?;
        Ok(tree)
    });
    tree.map(Some).map_err(|error| match error {
        Errno::INVAL | Errno::PERM | Errno::NOSYS => Failure::new(
            format!(
                "{} belongs to root, and its file system cannot show it as somebody else's: {error}",
                String::from_utf8_lossy(&project.folder.0)
            ),
            "give the folder to an ordinary user (chown -R), or choose another place",
        ),
        error => explain::failure("open the project's folder", error),
    })
}

/// Clones the folder at a path that holds no link: one that was put there since would lead elsewhere.
pub(super) fn open(path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    rustix::mount::open_tree(&folder, c"", CLONED | OpenTreeFlags::AT_EMPTY_PATH)
}

/// A user namespace in which the owner on disk is named, and is the sandbox's user outside.
fn users(owner: &HostUser, wanted: &config::Sandbox) -> Result<OwnedFd, Errno> {
    let pid = match sys::clone(sys::NEW_USERS, None)? {
        Side::Parent(pid) => pid,
        // Only its namespace is wanted; it is killed as soon as that is held.
        Side::Child => loop {
            sys::pause();
        },
    };
    let held = hold(pid, owner, wanted);
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    held
}

fn hold(pid: Pid, owner: &HostUser, wanted: &config::Sandbox) -> Result<OwnedFd, Errno> {
    let file = |name: &str| format!("/proc/{}/{name}", pid.as_raw_nonzero());
    let write = |name: &str, content: String| {
        std::fs::write(file(name), content).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    write("uid_map", format!("{} {} 1\n", owner.uid, wanted.host_uid))?;
    write("gid_map", format!("{} {} 1\n", owner.gid, wanted.host_gid))?;
    rustix::fs::open(file("ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
