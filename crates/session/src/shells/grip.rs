//! What holds a shell: a room of this machine, or a keeper on another one. The task asks the same of both.

use place::{
    Hold, Tie,
    keeper::{Keeper, KeeperError},
    remote::Lodged,
};
use std::{pin::Pin, time::Duration};

/// How long a keeper elsewhere has to end once it was asked to.
const ENDING: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) enum Grip {
    Local(Hold),
    Remote(Far),
}

/// A shell on another machine. Its keeper holds nothing else.
#[derive(Debug)]
pub(crate) struct Far {
    pub(super) keeper: Keeper,
    pub(super) process: u64,
    pub(super) lodged: Lodged,
}

type Moved = Pin<Box<dyn Future<Output = Result<(), KeeperError>> + Send>>;

impl Grip {
    pub(super) fn keeper(&self) -> &Keeper {
        match self {
            Self::Local(hold) => hold.keeper(),
            Self::Remote(far) => &far.keeper,
        }
    }

    /// What leads to a local shell again.
    pub(super) fn tie(&self) -> Option<&Tie> {
        match self {
            Self::Local(hold) => Some(hold.tie()),
            Self::Remote(_) => None,
        }
    }

    /// What leads to a shell on another machine again.
    pub(super) fn lodged(&self) -> Option<&Lodged> {
        match self {
            Self::Local(_) => None,
            Self::Remote(far) => Some(&far.lodged),
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    pub(super) fn freeze(&self) -> Moved {
        match self {
            Self::Local(hold) => Box::pin(hold.freeze()),
            Self::Remote(far) => {
                let (keeper, process) = (far.keeper.clone(), far.process);
                Box::pin(async move { keeper.freeze(Some(process)).await })
            }
        }
    }

    pub(super) fn thaw(&self) -> Moved {
        match self {
            Self::Local(hold) => Box::pin(hold.thaw()),
            Self::Remote(far) => {
                let (keeper, process) = (far.keeper.clone(), far.process);
                Box::pin(async move { keeper.thaw(Some(process)).await })
            }
        }
    }

    /// Lets the shell go on without an owner, for the next server.
    pub(super) fn leave(self) {
        match self {
            Self::Local(hold) => hold.leave(),
            // Dropping the connection ends nothing.
            Self::Remote(_) => {}
        }
    }

    /// Kills what is left of it.
    pub(super) async fn end(self) {
        match self {
            Self::Local(hold) => hold.end().await,
            Self::Remote(far) => {
                let ended = async {
                    // One that is gone already needs no word.
                    if far.keeper.shutdown().await.is_ok() {
                        far.keeper.gone().await;
                    }
                };
                if tokio::time::timeout(ENDING, ended).await.is_err() {
                    tracing::warn!("a keeper on another machine did not end when it was asked to");
                }
            }
        }
    }
}
