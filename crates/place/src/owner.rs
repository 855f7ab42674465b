//! Who owns a workspace. A server that is root gives each sandbox a user of its own, so that nothing of one sandbox
//! means anything in another; any other server can only give its own.

use crate::Walls;
use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::{Mutex, PoisonError},
};

/// Ids are drawn from here on: above what distributions, directories and other container runtimes give out.
const FIRST: u32 = 1_000_000_000;
/// How many ids one data folder may use at once.
const COUNT: u32 = 65_536;
/// Where a data folder's ids begin is spread over this many.
const SPREAD: u64 = 700_000_000;

/// A user and group of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    pub(crate) fn ourselves() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Whether it is one that only workspaces have.
    pub(crate) fn is_drawn(self) -> bool {
        self.uid >= FIRST
    }

    /// How owners in the workspace relate to those that processes see: behind walls there is one user.
    pub fn owners(self, walls: Walls) -> crate::snapshot::Owners {
        use crate::snapshot::{IdRange, Owners};
        match walls {
            Walls::None => Owners::default(),
            Walls::Sandbox | Walls::Project => {
                let range =
                    |outside| vec![IdRange { inside: ::keeper::config::INSIDE_ID, outside, count: 1 }];
                Owners { uids: range(self.uid), gids: range(self.gid) }
            }
        }
    }
}

/// Which ids are in use.
#[derive(Debug)]
pub(crate) struct Ids {
    /// None when the server may not give any.
    first: Option<u32>,
    used: Mutex<HashSet<u32>>,
}

impl Ids {
    pub(crate) fn new(data: &Path) -> Self {
        let root = rustix::process::geteuid().is_root();
        Self { first: root.then(|| first_of(data)), used: Mutex::default() }
    }

    /// A workspace of this owner was found.
    pub(crate) fn found(&self, uid: u32) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
    }

    /// The lowest id that no workspace has; none when they are used up.
    pub(crate) fn take(&self, walls: Walls) -> Option<Owner> {
        let first = match (walls, self.first) {
            (Walls::Sandbox, Some(first)) => first,
            // A project's is known when somebody comes in.
            (Walls::None | Walls::Project, _) | (_, None) => return Some(Owner::ourselves()),
        };
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (first..first + COUNT).find(|id| !used.contains(id))?;
        used.insert(id);
        Some(Owner { uid: id, gid: id })
    }

    pub(crate) fn give_back(&self, uid: u32) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    }
}

/// Servers of several data folders on one machine seldom meet this way; where they do, only the ids are shared.
fn first_of(data: &Path) -> u32 {
    let mut hasher = DefaultHasher::new();
    std::fs::canonicalize(data).unwrap_or_else(|_| data.to_owned()).hash(&mut hasher);
    FIRST + u32::try_from(hasher.finish() % SPREAD).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_given_once_at_a_time() {
        let ids = Ids { first: Some(10), used: Mutex::default() };
        ids.found(11);
        let take = || ids.take(Walls::Sandbox).unwrap().uid;
        assert_eq!((take(), take()), (10, 12));
        ids.give_back(10);
        assert_eq!(take(), 10);
        assert_eq!(ids.take(Walls::None), Some(Owner::ourselves()));
        let ordinary = Ids { first: None, used: Mutex::default() };
        assert_eq!(ordinary.take(Walls::Sandbox), Some(Owner::ourselves()));
    }
}
