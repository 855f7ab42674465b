//! The live sessions: one task each, found by id. A command for a session without a task wakes one.
//!
//! The map holds mailboxes and nothing of the sessions' insides. A task that has nothing left to do takes
//! itself out under the lock; a command that crossed its way is handed to the next task, never lost.

use crate::{Shared, task};
use journal::NewSession;
use protocol::{Alias, Code, Fault, SessionId, SessionKind, SessionRef, Tenant};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, mpsc, oneshot};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Fault>>;
pub(crate) type Mailbox = mpsc::Sender<task::Command>;
pub(crate) type Inbox = mpsc::Receiver<task::Command>;

/// The inbox, for another owner; what is left is closed and empty.
pub(crate) fn take(inbox: &mut Inbox) -> Inbox {
    std::mem::replace(inbox, mpsc::channel(1).1)
}

#[derive(Debug, Default)]
pub(crate) struct Live {
    tasks: Mutex<HashMap<SessionId, Mailbox>>,
    cards: Mutex<Cards>,
    emptied: Notify,
}

/// Who the live sessions are, so that a call for one of them need not look that up on disk.
#[derive(Debug, Default)]
struct Cards {
    by_id: HashMap<SessionId, Card>,
    by_name: HashMap<(Tenant, Alias), SessionId>,
}

#[derive(Debug)]
pub(crate) struct Card {
    tenant: Tenant,
    alias: Option<Alias>,
    kind: SessionKind,
}

impl Card {
    pub(crate) fn of(fixed: &NewSession) -> Self {
        Self { tenant: fixed.tenant.clone(), alias: fixed.alias.clone(), kind: fixed.kind }
    }
}

impl Cards {
    fn remove(&mut self, id: SessionId) {
        if let Some(Card { tenant, alias: Some(alias), .. }) = self.by_id.remove(&id) {
            self.by_name.remove(&(tenant, alias));
        }
    }
}

impl Live {
    fn tasks(&self) -> MutexGuard<'_, HashMap<SessionId, Mailbox>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cards(&self) -> MutexGuard<'_, Cards> {
        self.cards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session known that has a task and whose birth is on disk.
    pub(crate) fn introduce(&self, id: SessionId, card: Card) {
        // Taken first, as where a task leaves: one that is gone already is not introduced.
        let tasks = self.tasks();
        if tasks.contains_key(&id) {
            let mut cards = self.cards();
            if let Some(alias) = &card.alias {
                cards.by_name.insert((card.tenant.clone(), alias.clone()), id);
            }
            cards.by_id.insert(id, card);
        }
    }

    /// The tenant's live session of this name. None says nothing: it may be at rest.
    pub(crate) fn known(&self, tenant: &Tenant, session: &SessionRef) -> Option<(SessionId, SessionKind)> {
        let cards = self.cards();
        let id = match session {
            SessionRef::Id(id) => *id,
            SessionRef::Alias(alias) => *cards.by_name.get(&(tenant.clone(), alias.clone()))?,
        };
        let card = cards.by_id.get(&id).filter(|card| card.tenant == *tenant)?;
        Some((id, card.kind))
    }

    pub(crate) fn count(&self) -> usize {
        self.tasks().len()
    }

    pub(crate) fn has(&self, id: SessionId) -> bool {
        self.tasks().contains_key(&id)
    }

    pub(crate) fn mailboxes(&self) -> Vec<Mailbox> {
        self.tasks().values().cloned().collect()
    }

    /// Waits until no session has a task.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.tasks().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// A mailbox for a session that is being made.
    pub(crate) fn open(&self, id: SessionId) -> Inbox {
        let (mailbox, inbox) = mpsc::channel(protocol::limits::MAILBOX);
        self.tasks().insert(id, mailbox);
        inbox
    }

    /// Takes a task out, unless a command is waiting for it.
    pub(crate) fn leave(&self, id: SessionId, inbox: &mut Inbox) -> bool {
        let mut tasks = self.tasks();
        if !inbox.is_empty() {
            return false;
        }
        tasks.remove(&id);
        self.cards().remove(id);
        inbox.close();
        drop(tasks);
        self.emptied.notify_waiters();
        true
    }

    /// Takes a task out that gives up: it lost its lease, or could not be loaded.
    pub(crate) fn forget(&self, id: SessionId) {
        let mut tasks = self.tasks();
        tasks.remove(&id);
        self.cards().remove(id);
        drop(tasks);
        self.emptied.notify_waiters();
    }

    /// Takes out what a broken task left; the mailbox of a later task stays.
    pub(crate) fn forget_closed(&self, id: SessionId) {
        let mut tasks = self.tasks();
        if tasks.get(&id).is_some_and(Mailbox::is_closed) {
            tasks.remove(&id);
            self.cards().remove(id);
        }
        drop(tasks);
        self.emptied.notify_waiters();
    }
}

impl Shared {
    /// Sends a command to the session's task, waking one if there is none, and waits for the answer.
    pub(crate) async fn call<T>(
        self: &Arc<Self>,
        id: SessionId,
        command: impl FnOnce(Reply<T>) -> task::Command,
    ) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        self.dispatch(id, command(reply)).await?;
        answer.await.unwrap_or_else(|_| {
            Err(Fault::new(
                Code::Internal,
                "The session's task ended before it answered; look at the session and try again",
            ))
        })
    }

    /// For a command that a leaving task could not take any more.
    pub(crate) async fn redispatch(self: &Arc<Self>, id: SessionId, command: task::Command) {
        if let Err((command, fault)) = self.try_dispatch(id, command).await {
            command.refuse(&fault);
        }
    }

    /// Hands commands that crossed a task's leaving to the next one. What the task held goes before: the next one asks
    /// for the pen.
    pub(crate) async fn pass_on(self: Arc<Self>, id: SessionId, mut inbox: Inbox, task: impl Send) {
        inbox.close();
        let mut rest = Vec::new();
        while let Some(command) = inbox.recv().await {
            rest.push(command);
        }
        drop(task);
        for command in rest {
            self.redispatch(id, command).await;
        }
    }

    async fn dispatch(self: &Arc<Self>, id: SessionId, command: task::Command) -> Result<(), Fault> {
        self.try_dispatch(id, command).await.map_err(|(_, fault)| fault)
    }

    async fn try_dispatch(
        self: &Arc<Self>,
        id: SessionId,
        command: task::Command,
    ) -> Result<(), (task::Command, Fault)> {
        let mut command = command;
        loop {
            if self.is_closing() {
                let fault =
                    Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment");
                return Err((command, fault));
            }
            let mailbox = self.mailbox(id);
            match mailbox.send(command).await {
                Ok(()) => return Ok(()),
                // The task left in between; the next one takes it.
                Err(mpsc::error::SendError(back)) => command = back,
            }
        }
    }

    /// The mailbox of the session's task, which is started when there is none.
    pub(crate) fn mailbox(self: &Arc<Self>, id: SessionId) -> Mailbox {
        let mut tasks = self.live.tasks();
        if let Some(mailbox) = tasks.get(&id)
            && !mailbox.is_closed()
        {
            return mailbox.clone();
        }
        let (mailbox, inbox) = mpsc::channel(protocol::limits::MAILBOX);
        tasks.insert(id, mailbox.clone());
        drop(tasks);
        task::spawn_stored(Arc::clone(self), id, inbox);
        mailbox
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_session_is_known_to_its_own_tenant_only() {
        let live = Live::default();
        let (ours, theirs) = (Tenant::default_tenant(), Tenant::new("other").unwrap());
        let (id, kind) = (SessionId::new(), SessionKind::Shell);
        let alias: Alias = Alias::new("1_local").unwrap();
        let names = [SessionRef::Id(id), SessionRef::Alias(alias.clone())];
        let card = || Card { tenant: ours.clone(), alias: Some(alias.clone()), kind };
        let known = |tenant| names.each_ref().map(|name| live.known(tenant, name));
        live.introduce(id, card());
        assert_eq!(known(&ours), [None; 2], "it has no task");
        let mut inbox = live.open(id);
        assert_eq!(known(&ours), [None; 2], "its birth may not be on disk");
        live.introduce(id, card());
        assert_eq!(known(&ours), [Some((id, kind)); 2]);
        assert_eq!(known(&theirs), [None; 2]);
        assert!(live.leave(id, &mut inbox));
        assert_eq!(known(&ours), [None; 2], "its task has gone");
    }
}
