//! One shell on another machine, with a keeper of its own: started, found again, and ended with its [`Hold`].

use super::{Joined, Lodged, Reached, RemoteError, channel::Link, reached::take_up};
use crate::{
    FoundShell, Hold, Spawn, SpawnError, Tie,
    keeper::{Keeper, KeeperError, Shell},
    room,
};
use std::time::Duration;

/// How long one has to end, a new connection included.
const ENDING: Duration = Duration::from_secs(30);

/// A shell that was started, and what to write down to find it again.
#[derive(Debug)]
pub struct FarShell {
    pub shell: Shell,
    pub hold: Hold,
    pub lodged: Lodged,
    /// To be sealed.
    pub token: [u8; 32],
}

/// Why a shell was not started.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

impl Reached {
    /// Lodges a keeper for one shell and starts it there. `spawn` is whole: nothing is added to its environment.
    pub async fn start_shell(&self, spawn: Spawn, cwd: &str) -> Result<FarShell, FarError> {
        room::check_text(&spawn)?;
        let Joined { keeper, lodged, token } = self.lodge().await?;
        let hold = hold(self.link(), &lodged, token, keeper.clone(), room::number());
        match keeper.start_shell(hold.tie().process, spawn, cwd).await {
            Ok(shell) => Ok(FarShell { shell, hold, lodged, token }),
            Err(error) => {
                // Nothing is left behind.
                hold.end().await;
                Err(error.into())
            }
        }
    }
}

fn hold(link: &Link, lodged: &Lodged, token: [u8; 32], keeper: Keeper, process: u64) -> Hold {
    let name = lodged.folder.rsplit('/').next().unwrap_or_default().to_owned();
    let tie = Tie { keeper: name, epoch: lodged.epoch, process };
    Hold::far(Far { link: link.clone(), lodged: lodged.clone(), token }, keeper, tie)
}

/// Takes up a shell that this server or another one started.
pub(super) async fn take_up_shell(
    link: &Link,
    lodged: &Lodged,
    token: [u8; 32],
    process: u64,
) -> Result<FoundShell, RemoteError> {
    let keeper = take_up(link, lodged, token).await?;
    let lost = |why: String| RemoteError::Lost { whom: link.whom(), why };
    let Some(kept) = keeper.found().iter().find(|kept| kept.process == process) else {
        return Err(lost("the keeper does not have the shell any more".to_owned()));
    };
    let frozen = kept.frozen;
    let (shell, state) = match keeper.attach_shell(process).await {
        Ok(both) => both,
        Err(KeeperError::Gone) => {
            let why = "it broke while the shell was taken up".to_owned();
            return Err(RemoteError::Broken { whom: link.whom(), why });
        }
        Err(error) => return Err(lost(error.to_string())),
    };
    Ok(FoundShell { shell, state, hold: hold(link, lodged, token, keeper, process), frozen })
}

/// The way to a keeper that has one shell.
#[derive(Debug, Clone)]
pub(crate) struct Far {
    link: Link,
    lodged: Lodged,
    token: [u8; 32],
}

impl Far {
    /// Ends the keeper and all that it has, by a new connection if the old one is gone.
    pub(crate) async fn end(&self, keeper: &Keeper) {
        let ended = async {
            let keeper = if keeper.is_gone() {
                take_up(&self.link, &self.lodged, self.token).await?
            } else {
                keeper.clone()
            };
            // One that is gone already needs no word.
            if keeper.shutdown().await.is_ok() {
                keeper.gone().await;
            }
            Ok(())
        };
        let whom = self.link.whom();
        match tokio::time::timeout(ENDING, ended).await {
            Ok(Ok(()) | Err(RemoteError::Lost { .. })) => {}
            Ok(Err(error)) => {
                tracing::warn!(whom, %error, "a shell was not told to end; it ends when nobody comes for it");
            }
            Err(_) => tracing::warn!(whom, "a shell did not end when it was told to"),
        }
    }
}
