//! What a door is told when it is opened. Resolved by the binary; nothing here reads the environment.

use protocol::limits;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Everything a REST door needs besides the sessions.
#[derive(Debug, Clone)]
pub struct Options {
    /// Port 0 takes a free one; [`crate::Door::addr`] says which. Without one only the socket is listened on.
    pub listen: Option<SocketAddr>,
    /// A Unix socket for the server's own user, in a folder that is nobody else's. What is at the path is replaced:
    /// whoever has the data folder has it.
    pub socket: Option<PathBuf>,
    pub docs: DocsPage,
    /// Names a `Host` header may hold besides the loopback ones and the bound address, without a port.
    /// Only looked at while the door is bound to a loopback address.
    pub hosts: Vec<String>,
    /// A folder for archives on their way in, on the same disk as the data folder. Made when missing.
    pub uploads: PathBuf,
    pub limits: Limits,
}

impl Options {
    pub fn new(listen: Option<SocketAddr>, uploads: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            socket: None,
            docs: DocsPage::Served,
            hosts: Vec::new(),
            uploads: uploads.into(),
            limits: Limits::default(),
        }
    }
}

/// Is the page for people at `/docs` there? `/openapi.json` always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocsPage {
    Served,
    Absent,
}

/// The door's own bounds.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections served at once; the next ones wait in the kernel's queue.
    pub connections: usize,
    /// A request's line and headers, together.
    pub head_bytes: usize,
    pub headers: usize,
    /// From the first byte, or from the end of the answer before, to the end of the head.
    pub head_time: Duration,
    /// One JSON body.
    pub body_bytes: usize,
    /// From the end of the head to the beginning of the answer. A stream may take as long as it likes after that.
    pub request_time: Duration,
    /// One archive, how many at once, and the time for each.
    pub archive_bytes: u64,
    pub archives: usize,
    pub archive_time: Duration,
    /// One file written into a workspace, and how many are received at once; the next ones wait. They have an
    /// archive's time.
    pub file_bytes: u64,
    pub files: usize,
    /// The pause after which a quiet stream sends a comment.
    pub heartbeat: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8_192,
            head_bytes: 32 * 1024,
            headers: 64,
            head_time: Duration::from_secs(15),
            body_bytes: limits::REQUEST_BYTES,
            // A session is created or resumed within one request, and its handshake has this long.
            request_time: Duration::from_secs(limits::HANDSHAKE_SECS + 30),
            archive_bytes: limits::AGENT_ARCHIVE_BYTES as u64,
            archives: 4,
            archive_time: Duration::from_secs(600),
            file_bytes: limits::FILE_BYTES,
            files: 64,
            heartbeat: Duration::from_secs(15),
        }
    }
}
