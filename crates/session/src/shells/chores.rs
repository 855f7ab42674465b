//! Work for a shell that takes a moment and must be finished before the next command is looked at.

use super::{
    checkpoints::{Did, Doing},
    grip::{Grip, Way},
};
use crate::{
    Shared,
    live::Reply,
    task::errand::{self, Stays, Taken},
};
use journal::NewSession;
use place::keeper::SavedState;
use protocol::{Fault, SnapshotTaken};
use std::{pin::Pin, sync::Arc};

pub(super) type Chore = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What came of it.
pub(super) enum Done {
    /// Everything stands still, or could not be made to.
    Stood { frozen: Result<(), String>, taken: Option<Taken> },
    /// A snapshot was taken beside the running shell.
    Copied { reply: Reply<Option<SnapshotTaken>>, taken: Option<Taken> },
    /// A checkpoint was taken, or brought back, or neither.
    Checkpointed(Result<Did, Fault>),
    /// What was left of the shell is gone, and its files are put away as far as was asked.
    /// `left` leads to a keeper on another machine that did not hear that it should end.
    PutAway { taken: Option<Taken>, left: Option<Box<Way>>, state: Option<SavedState> },
}

/// Whether another shell is to find the state of the one that is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Kept,
    Dropped,
}

/// Stops everything where it is, then takes a snapshot.
pub(super) fn freeze(shared: &Arc<Shared>, fixed: &NewSession, grip: &Grip) -> Chore {
    let (shared, fixed, frozen) = (Arc::clone(shared), fixed.clone(), grip.freeze());
    Box::pin(async move {
        let frozen = frozen.await.map_err(|error| error.to_string());
        let taken = match frozen {
            Ok(()) => Some(errand::take(&shared, &fixed).await),
            Err(_) => None,
        };
        Done::Stood { frozen, taken }
    })
}

/// The disk is nearly full: stops everything where it is.
pub(super) fn stand_still(grip: &Grip) -> Chore {
    let frozen = grip.freeze();
    Box::pin(
        async move { Done::Stood { frozen: frozen.await.map_err(|error| error.to_string()), taken: None } },
    )
}

/// Takes a snapshot; what runs stands still for as long as that takes, where it can be made to.
pub(super) fn copy(
    shared: &Arc<Shared>,
    fixed: &NewSession,
    grip: Option<&Grip>,
    reply: Reply<Option<SnapshotTaken>>,
) -> Chore {
    let (shared, fixed) = (Arc::clone(shared), fixed.clone());
    let still = grip.filter(|grip| grip.keeper().can_freeze()).map(|grip| (grip.freeze(), grip.thaw()));
    Box::pin(async move {
        if !shared.place.exists(&fixed.sandbox).await {
            return Done::Copied { reply, taken: None };
        }
        let thaw = match still {
            None => None,
            Some((freeze, thaw)) => freeze.await.is_ok().then_some(thaw),
        };
        let taken = errand::take(&shared, &fixed).await;
        if let Some(thaw) = thaw
            && let Err(error) = thaw.await
        {
            tracing::error!(session = %fixed.id, %error, "a shell could not be thawed after a snapshot");
        }
        Done::Copied { reply, taken: Some(taken) }
    })
}

pub(super) fn checkpoint(doing: Doing) -> Chore {
    Box::pin(async move { Done::Checkpointed(doing.await) })
}

/// Ends what the shell left, and puts the files away.
pub(super) fn put_away(
    shared: &Arc<Shared>,
    fixed: &NewSession,
    grip: Option<Grip>,
    stays: Stays,
    memory: Memory,
) -> Chore {
    let (shared, fixed) = (Arc::clone(shared), fixed.clone());
    Box::pin(async move {
        let state = match (&grip, memory) {
            (Some(grip), Memory::Kept) => grip.saved_state().await,
            (Some(_), Memory::Dropped) | (None, _) => None,
        };
        let left = match grip {
            Some(grip) => grip.end().await.map(Box::new),
            None => None,
        };
        Done::PutAway { taken: errand::away(&shared, &fixed, None, stays).await, left, state }
    })
}
