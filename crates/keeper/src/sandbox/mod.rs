//! A sandbox: seven namespaces around one process that does nothing, a root of its own, and a filter.
//!
//! [`Sandbox::make`] clones that process, gives its user namespace exactly one user, and waits until it has built
//! the root ([`root`]) and given up its rights ([`confine`]). The keeper holds the namespaces open and lets others in
//! through [`Sandbox::enter`]. A namespace that cannot be had fails the whole, with what is missing and what to do.

pub(crate) mod confine;
mod explain;
mod filter;
mod init;
mod mapped;
mod root;

use crate::{
    cgroup::{Cgroups, Group},
    config::{self, Network, View},
    start::Failure,
    sys::{self, Side, Step},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
    process::{Gid, Pid, Signal, Uid},
    thread::LinkNameSpaceType as Kind,
};

#[derive(Debug)]
pub(crate) struct Sandbox {
    init: Pid,
    /// In the order in which they are entered: the user's first, which gives the right to the others.
    spaces: Vec<(OwnedFd, Kind)>,
    filter: Vec<Step>,
    group: Group,
    way_out: Vec<OwnedFd>,
    user: (Uid, Gid),
}

const SPACES: [(&str, Kind); 6] = [
    ("user", Kind::User),
    ("mnt", Kind::Mount),
    ("pid", Kind::ProcessID),
    ("ipc", Kind::InterProcessCommunication),
    ("uts", Kind::HostNameAndNISDomainName),
    ("cgroup", Kind::ControlGroup),
];

impl Sandbox {
    pub(crate) fn make(wanted: &config::Sandbox, cgroups: &Cgroups) -> Result<Self, Failure> {
        check_user(wanted)?;
        let failed = |what: &'static str| move |error| explain::failure(what, error);
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed("make a socket"))?;
        let group = cgroups.whole();
        let entry = cgroups.entry(&group).map_err(|error| {
            explain::failure("open its cgroup", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let network = if matches!(wanted.network, Network::Full {}) { 0 } else { sys::NEW_NETWORK };
        let (files, mapped) = match &wanted.view {
            View::Project { project } => (filter::Files::Shared, mapped::folder(project, wanted)?),
            View::System {} | View::Root { .. } => (filter::Files::Own, None),
        };
        let filter = filter::steps(files);
        let pid = match sys::clone(sys::NEW_NAMESPACES | network, entry.v2) {
            Ok(Side::Parent(pid)) => pid,
            Ok(Side::Child) => {
                drop(ours);
                init::main(wanted, &entry, &theirs, mapped)
            }
            Err(error) => return Err(explain::failure("make its namespaces", error)),
        };
        drop(entry);
        drop(theirs);
        drop(mapped);
        let user = (Uid::from_raw(wanted.inside_uid), Gid::from_raw(wanted.inside_gid));
        let mut sandbox = Self { init: pid, spaces: Vec::new(), filter, group, way_out: Vec::new(), user };
        match sandbox.bring_up(wanted, &ours) {
            Ok(()) => Ok(sandbox),
            Err(failure) => {
                sandbox.kill();
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                sandbox.group.remove();
                Err(failure)
            }
        }
    }

    fn bring_up(&mut self, wanted: &config::Sandbox, ours: &OwnedFd) -> Result<(), Failure> {
        self.map_user(wanted).map_err(|error| explain::failure("map its user", error))?;
        self.hold(wanted).map_err(|error| explain::failure("hold its namespaces", error))?;
        init::go(ours.as_fd()).map_err(|error| explain::failure("wake its first process", error))?;
        self.way_out = init::outcome(ours.as_fd())?;
        Ok(())
    }

    fn map_user(&self, wanted: &config::Sandbox) -> Result<(), Errno> {
        let write = |file: &str, content: String| {
            let path = format!("/proc/{}/{file}", self.init.as_raw_nonzero());
            std::fs::write(path, content).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        if !rustix::process::geteuid().is_root() {
            // The price of mapping a group without privileges: none of the groups can be changed.
            write("setgroups", "deny".to_owned())?;
        }
        write("uid_map", format!("{} {} 1\n", wanted.inside_uid, wanted.host_uid))?;
        write("gid_map", format!("{} {} 1\n", wanted.inside_gid, wanted.host_gid))
    }

    /// Opens the namespaces while the first process may still be looked at.
    fn hold(&mut self, wanted: &config::Sandbox) -> Result<(), Errno> {
        let network = (!matches!(wanted.network, Network::Full {})).then_some(("net", Kind::Network));
        for (name, kind) in SPACES.into_iter().chain(network) {
            let path = format!("/proc/{}/ns/{name}", self.init.as_raw_nonzero());
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
            let space = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
            self.spaces.push((space, kind));
        }
        Ok(())
    }

    /// Moves the calling process in; its next child is inside altogether.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        for (space, kind) in &self.spaces {
            rustix::thread::move_into_link_name_space(space.as_fd(), Some(*kind))?;
        }
        Ok(())
    }

    pub(crate) fn filter(&self) -> &[Step] {
        &self.filter
    }

    /// The one user, as processes inside see it.
    pub(crate) fn user(&self) -> (Uid, Gid) {
        self.user
    }

    pub(crate) fn init(&self) -> Pid {
        self.init
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// The listening sockets inside, for whoever carries what comes in by them; the proxy's is the first.
    pub(crate) fn take_way_out(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.way_out)
    }

    /// Everything inside dies with the first process.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::kill_process(self.init, Signal::KILL);
        self.group.kill();
    }
}

fn check_user(wanted: &config::Sandbox) -> Result<(), Failure> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() {
        if wanted.host_uid == 0 || wanted.host_gid == 0 {
            return Err(Failure::new(
                "a sandbox may not run as the host's root",
                "give it a user id of its own, above those of the machine's users",
            ));
        }
        return Ok(());
    }
    if wanted.host_uid != uid.as_raw() || wanted.host_gid != gid.as_raw() {
        return Err(Failure::new(
            format!("only root can give a sandbox another user id than its own ({})", uid.as_raw()),
            "run the server as root, or let the sandbox have the server's own user",
        ));
    }
    Ok(())
}
