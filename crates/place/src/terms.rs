//! On what terms processes run: how they are contained, and how much they may take.

use crate::keeper::{Access, Limits, Mount, Network, Order, Sandbox};
use ::keeper::codec::Blob;
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
    Sandbox,
}

/// The terms of a room. The first process to come in sets them for all.
#[derive(Debug, Clone)]
pub struct Terms {
    pub walls: Walls,
    pub limits: Limits,
    /// The rest matters in a sandbox only: a folder that holds a whole system, or none for the machine's own.
    pub root: Option<PathBuf>,
    pub mounts: Vec<Mount>,
    pub network: Network,
    /// Bytes of `/tmp`.
    pub tmp_bytes: u64,
}

impl Terms {
    /// The bare machine: nothing is contained or bounded.
    pub fn host() -> Self {
        Self {
            walls: Walls::None,
            limits: Limits::default(),
            root: None,
            mounts: Vec::new(),
            network: Network::Full {},
            tmp_bytes: 0,
        }
    }

    /// Something of the machine at a place inside.
    pub fn mount(from: &Path, to: &Path, access: Access) -> Mount {
        Mount { from: bytes(from), to: bytes(to), access }
    }

    pub(crate) fn order(self, orphan: Duration, workspace: &Path, owner: crate::Owner) -> Order {
        let sandbox = match self.walls {
            Walls::None => None,
            Walls::Sandbox => Some(Sandbox {
                host_uid: owner.uid,
                host_gid: owner.gid,
                workspace: bytes(workspace),
                root: self.root.as_deref().map(bytes),
                mounts: self.mounts,
                network: self.network,
                tmp_bytes: self.tmp_bytes,
                hostname: HOSTNAME.to_owned(),
            }),
        };
        Order { orphan, limits: self.limits, sandbox }
    }
}

fn bytes(path: &Path) -> Blob {
    Blob(path.as_os_str().as_bytes().to_vec())
}
