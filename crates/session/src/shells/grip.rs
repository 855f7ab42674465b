//! What holds a shell: a room of this machine, or a keeper on another one. The task asks the same of both.

use super::command::ShellCommand;
use crate::{Shared, task::Command};
use place::{
    Hold, Tie,
    keeper::{Keeper, KeeperError, SavedState},
    remote::{Lodged, Password, Target},
};
use protocol::SessionId;
use std::{pin::Pin, sync::Arc, time::Duration};

/// How long a keeper has to say what its shell's state was.
const ASKING: Duration = Duration::from_secs(3);
/// How long a keeper elsewhere has to end once it was asked to.
const ENDING: Duration = Duration::from_secs(10);
/// How long it may take to reach one again whose connection is gone, and to end it.
const ENDING_AGAIN: Duration = Duration::from_secs(60);

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
    pub(super) way: Way,
}

/// What leads to a keeper on another machine again. Holds secrets.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) target: Target,
    pub(super) password: Option<Password>,
    pub(super) lodged: Lodged,
    pub(super) token: [u8; 32],
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Way {
    /// Reaches a keeper once more to end it, for a session that is done with it. The journal says so if that fails: what
    /// the keeper holds goes on over there until nobody has come for it for as long as the operator lets it wait.
    pub(super) fn end_later(self, shared: &Arc<Shared>, id: SessionId) {
        let shared = Arc::clone(shared);
        // Bounded by its own limit; a server that stops meanwhile leaves the keeper to its orphan time.
        tokio::spawn(async move {
            let ending = shared.remotes.end(&self.target, self.password.as_ref(), &self.lodged, self.token);
            let why = match tokio::time::timeout(ENDING_AGAIN, ending).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("it was not reached within {ENDING_AGAIN:?}"),
            };
            let hours = shared.options.shells.remote.orphan.as_secs().div_ceil(3600);
            let text = format!(
                "what is left of the shell could not be ended on its machine: {why}; it ends by itself when no server has \
                 come for {hours} h, or end the keeper of {} there",
                self.lodged.folder
            );
            tracing::warn!(session = %id, text);
            // A session that was removed has no journal to say it in.
            let _ = shared.call(id, |reply| Command::Shell(ShellCommand::Remark { text, reply })).await;
        });
    }
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
            Self::Remote(far) => Some(&far.way.lodged),
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

    /// What the shell last said of its state; none when it does not answer.
    pub(super) async fn saved_state(&self) -> Option<SavedState> {
        let process = match self {
            Self::Local(hold) => hold.tie().process,
            Self::Remote(far) => far.process,
        };
        let asked = tokio::time::timeout(ASKING, self.keeper().saved_state(process));
        asked.await.ok().flatten()
    }

    /// Lets the shell go on without an owner, for the next server.
    pub(super) fn leave(self) {
        match self {
            Self::Local(hold) => hold.leave(),
            // Dropping the connection ends nothing.
            Self::Remote(_) => {}
        }
    }

    /// Kills what is left of it. The way to it, if it did not hear that: its connection is gone, and it may be there.
    pub(super) async fn end(self) -> Option<Way> {
        match self {
            Self::Local(hold) => {
                hold.end().await;
                None
            }
            Self::Remote(far) => {
                let ended = async {
                    far.keeper.shutdown().await?;
                    far.keeper.gone().await;
                    Ok::<(), KeeperError>(())
                };
                match tokio::time::timeout(ENDING, ended).await {
                    Ok(Ok(())) => None,
                    Ok(Err(_)) | Err(_) => Some(far.way),
                }
            }
        }
    }
}
