//! What a bridge says of itself in its first line: whoever opens a shell through it on this machine opens it for
//! himself, with his folder, his environment and his umask, and not with the server's.

use super::arguments::LocalPlace;
use serde::Deserialize;
use std::{collections::BTreeMap, fmt};

/// A longer first line is refused: no environment that a process can be started with is.
pub(super) const HELLO_BYTES: usize = 8 * 1024 * 1024;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Own {
    pub(super) cwd: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) umask: Option<u32>,
    /// The widest place that is opened through this connection, and the one when none is named.
    pub(super) place: LocalPlace,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Environments hold secrets.
        f.debug_struct("Own").field("cwd", &self.cwd).field("place", &self.place).finish_non_exhaustive()
    }
}
