//! What a keeper is told when it is started, on its standard input, and what it answers on its standard output.
//!
//! Both are single frames in the encoding of [`crate::wire`]. The token is not among them: the keeper reads it from
//! its folder once the sandbox stands, so that nothing inside ever shared memory with it.

use crate::{
    codec::{Blob, choice, record, word},
    wire::Token,
};
use std::{os::unix::ffi::OsStrExt, path::Path};

/// The names within a keeper's folder.
pub const SOCKET: &str = "socket";
pub const TOKEN: &str = "token";
/// A link to the folder that a shell is given its commands by, where that is elsewhere.
pub const SITE: &str = "site";
/// Where such folders are, if the machine has it, and how their names begin.
pub const MEMORY: &str = "/dev/shm";
pub const SITE_NAME: &str = ".outlast-";

/// Whether a link leads to such a folder: it is as good as whoever could write it.
pub fn is_site(path: &Path) -> bool {
    let named = path.file_name().is_some_and(|name| name.as_bytes().starts_with(SITE_NAME.as_bytes()));
    named && path.parent() == Some(Path::new(MEMORY))
}

/// What a process finds as its umask, unless it is told another one.
pub const UMASK: u32 = 0o022;
/// The largest start frame.
pub const CONFIG_BYTES: usize = 1024 * 1024;
/// What a start frame begins with; another version of the keeper refuses it by name.
pub const CONFIG_VERSION: u16 = 2;
/// Uid and gid of `user` in a sandbox.
pub const INSIDE_ID: u32 = 1000;

record! {
    pub struct Config {
        pub version: u16,
        /// A folder of mode 0700 that holds the token, and will hold the socket and the spools.
        pub folder: Blob,
        /// Names the cgroup: one plain path component, unique on the machine.
        pub name: String,
        /// Seconds without a server after which the keeper ends its processes and itself.
        pub orphan_seconds: u32,
        pub limits: Limits,
        pub sandbox: Option<Sandbox>,
    }
}

record! {
    pub struct Limits {
        pub memory_bytes: Option<u64>,
        pub processes: Option<u64>,
        /// Hundredths of one processor.
        pub cpu_percent: Option<u32>,
        pub open_files: Option<u64>,
    }
}

record! {
    pub struct Sandbox {
        /// Who the one user is on the host. A keeper that is not root can only give its own.
        pub host_uid: u32,
        pub host_gid: u32,
        /// Who that is inside.
        pub inside_uid: u32,
        pub inside_gid: u32,
        /// Becomes the home: `/home/user`, or where a project says.
        pub workspace: Blob,
        pub view: View,
        pub mounts: Vec<Mount>,
        pub network: Network,
        /// Bytes of `/tmp`, and of `/dev/shm`.
        pub tmp_bytes: u64,
        pub hostname: String,
    }
}

choice! {
    /// What there is beside the home.
    pub enum View {
        /// The host's own system, and nothing else of it.
        1 => System {},
        /// A folder that holds a whole system.
        2 => Root { folder: Blob },
        /// The whole host to look at, and one folder of it to work in.
        3 => Project { project: Project },
    }
}

record! {
    /// All paths are absolute and without links: who gives them has resolved them.
    pub struct Project {
        /// Can be written to, in its own place.
        pub folder: Blob,
        /// Whose files in the folder count as the user's, where that is not the user itself.
        pub mapped: Option<HostUser>,
        /// Where the workspace goes.
        pub home: Blob,
        /// Files and folders that are hidden, although the user might read them.
        pub hidden: Vec<Blob>,
        /// What of the hidden can be read all the same.
        pub readable: Vec<Blob>,
    }
}

record! {
    pub struct HostUser {
        pub uid: u32,
        pub gid: u32,
    }
}

record! {
    pub struct Mount {
        pub from: Blob,
        /// Absolute, without `..`.
        pub to: Blob,
        pub access: Access,
    }
}

word! {
    pub enum Access {
        1 => ReadOnly,
        2 => ReadWrite,
    }
}

choice! {
    pub enum Network {
        /// Loopback only.
        1 => None {},
        /// Loopback, and a proxy on it that reaches these.
        2 => Allow { hosts: Vec<HostRule>, forwards: Vec<u16> },
        /// The host's own.
        3 => Full {},
    }
}

record! {
    /// `example.org` or `*.example.org`, and a port or all of them.
    pub struct HostRule {
        pub host: String,
        pub port: Option<u16>,
    }
}

record! {
    /// A keeper to start on another machine, in a folder that is not there yet.
    pub struct Lodging {
        pub token: Token,
        pub config: Config,
    }
}

choice! {
    /// The answer to a start.
    pub enum Started {
        1 => Ready { pid: u32 },
        /// Nothing was left behind. `what` happened, and `fix` is what to do about it.
        2 => Failed { what: String, fix: String },
    }
}

impl Default for Limits {
    /// None.
    fn default() -> Self {
        Self { memory_bytes: None, processes: None, cpu_percent: None, open_files: None }
    }
}
