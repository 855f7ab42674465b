//! On what terms processes run: how they are contained, and how much they may take.

use crate::{
    Owner, Project,
    keeper::{Access, Limits, Mount, Network, Order, Sandbox, View},
    project::Runner,
};
use ::keeper::{codec::Blob, config::INSIDE_ID};
use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// The workspace, as processes in a sandbox see it.
pub const HOME_INSIDE: &str = "/home/user";
/// Processes inside see this as the machine's name.
const HOSTNAME: &str = "sandbox";

/// Whether there is anything between a process and the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walls {
    /// The bare host.
    None,
    /// The machine to look at, and one folder of it to work in.
    Project,
    Sandbox,
}

/// What processes see of the machine.
#[derive(Debug, Clone)]
pub enum Outlook {
    /// All of it, with nothing between.
    Bare,
    /// Its system, and a home.
    System,
    /// A folder that holds a whole system, and a home.
    Root(PathBuf),
    Project(Box<Project>),
}

impl Outlook {
    pub fn walls(&self) -> Walls {
        match self {
            Self::Bare => Walls::None,
            Self::Project(_) => Walls::Project,
            Self::System | Self::Root(_) => Walls::Sandbox,
        }
    }
}

/// The terms of a room. The first process to come in sets them for all.
#[derive(Debug, Clone)]
pub struct Terms {
    pub outlook: Outlook,
    pub limits: Limits,
    /// The rest matters behind walls only.
    pub mounts: Vec<Mount>,
    pub network: Network,
    /// Bytes of `/tmp`.
    pub tmp_bytes: u64,
}

impl Terms {
    /// The bare machine: nothing is contained or bounded.
    pub fn host() -> Self {
        Self {
            outlook: Outlook::Bare,
            limits: Limits::default(),
            mounts: Vec::new(),
            network: Network::Full {},
            tmp_bytes: 0,
        }
    }

    /// Something of the machine at a place inside.
    pub fn mount(from: &Path, to: &Path, access: Access) -> Mount {
        Mount { from: bytes(from), to: bytes(to), access }
    }

    pub fn walls(&self) -> Walls {
        self.outlook.walls()
    }

    /// What a keeper is told. `owner` is who runs there.
    pub(crate) fn order(self, orphan: Duration, workspace: &Path, owner: Owner) -> Order {
        let own = (INSIDE_ID, INSIDE_ID);
        let seen = match &self.outlook {
            Outlook::Bare => None,
            Outlook::System => Some((View::System {}, own, HOSTNAME.to_owned())),
            Outlook::Root(root) => Some((View::Root { folder: bytes(root) }, own, HOSTNAME.to_owned())),
            Outlook::Project(project) => {
                let runner = project.runner();
                // Files are shown with the owners that they have, or with one whom everybody knows.
                let inside = if runner == Runner::Mapped { own } else { (owner.uid, owner.gid) };
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                Some((project.view(runner), inside, host))
            }
        };
        let sandbox = seen.map(|(view, (inside_uid, inside_gid), hostname)| Sandbox {
            host_uid: owner.uid,
            host_gid: owner.gid,
            inside_uid,
            inside_gid,
            workspace: bytes(workspace),
            view,
            mounts: self.mounts,
            network: self.network,
            tmp_bytes: self.tmp_bytes,
            hostname,
        });
        Order { orphan, limits: self.limits, sandbox }
    }
}

pub(crate) fn bytes(path: &Path) -> Blob {
    Blob(path.as_os_str().as_bytes().to_vec())
}
