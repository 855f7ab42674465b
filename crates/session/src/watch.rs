//! What is looked at on a timer: room on the disk, and workspaces that nobody has used for long. It decides nothing
//! about a live session; it tells the session's task.

use crate::{Shared, shared::Folder, task::Command};
use journal::Space;
use protocol::{Status, Timestamp};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::Instant;

/// Between two looks at the disk. What writes fastest here fills 64 MiB in less, which is what the reserve is for.
const SPACE_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at the workspaces, at most.
const WORKSPACES_EVERY: Duration = Duration::from_secs(60);

/// Runs until the sessions are gone.
pub(crate) async fn always(shared: Weak<Shared>) {
    let mut space = Space::Enough;
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(SPACE_EVERY).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.is_closing() {
            return;
        }
        let now = shared.journal.space();
        if now != space {
            space = now;
            tell(&shared, now).await;
        }
        let every = WORKSPACES_EVERY.min(shared.options.evict / 4).max(SPACE_EVERY);
        if looked.elapsed() >= every || (now == Space::Low && looked.elapsed() >= SPACE_EVERY * 4) {
            clear(&shared, now).await;
            looked = Instant::now();
        }
    }
}

/// Sessions stand still while the disk is nearly full: what they write would take the room that is kept for their
/// record.
async fn tell(shared: &Arc<Shared>, space: Space) {
    match space {
        Space::Low => tracing::warn!("the disk is nearly full; sandboxes stand still until there is room"),
        Space::Enough => tracing::info!("there is room on the disk again; sandboxes go on"),
    }
    for mailbox in shared.live.mailboxes() {
        // A task that is just leaving has nothing to stop.
        let _ = mailbox.send(Command::Space { space }).await;
    }
}

/// Puts workspaces away that nobody has used for long, and any when the disk is nearly full; the least recently used
/// first.
async fn clear(shared: &Arc<Shared>, space: Space) {
    let mut idle = Vec::new();
    for sandbox in shared.place.workspaces().await {
        if let Ok(Some(folder)) = shared.folder_of(&sandbox).await
            && !folder.live
        {
            idle.push(folder);
        }
    }
    idle.sort_by_key(|folder| folder.last_active);
    let now = Timestamp::now().as_millis();
    let patience = i64::try_from(shared.options.evict.as_millis()).unwrap_or(i64::MAX);
    for Folder { session, last_active, status, .. } in idle {
        let enough = shared.journal.space() == Space::Enough;
        let old = now.saturating_sub(last_active.as_millis()) >= patience;
        if (enough && !old) || (!enough && space == Space::Enough) || status == Status::Active {
            continue;
        }
        if let Err(fault) = shared.call(session, |reply| Command::Evict { reply }).await {
            tracing::warn!(%session, %fault, "a workspace could not be put away");
        }
    }
}
