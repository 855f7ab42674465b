//! The live sessions: one task each, found by id. A command for a session without a task wakes one.
//!
//! The map holds mailboxes, whose they are, and nothing of the sessions' insides. A task that has nothing left to do takes
//! itself out under the lock; a command that crossed its way is handed to the next task, never lost.

use crate::{Shared, task};
use protocol::{Code, Fault, SessionId, SessionRef, Tenant};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, mpsc, oneshot};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Fault>>;
pub(crate) type Mailbox = mpsc::Sender<task::Command>;
pub(crate) type Inbox = mpsc::Receiver<task::Command>;

#[derive(Debug, Default)]
pub(crate) struct Live {
    tasks: Mutex<HashMap<SessionId, Entry>>,
    emptied: Notify,
}

#[derive(Debug)]
struct Entry {
    mailbox: Mailbox,
    /// None until a stored session's row was read.
    tenant: Option<Tenant>,
}

impl Live {
    fn tasks(&self) -> MutexGuard<'_, HashMap<SessionId, Entry>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.tasks().len()
    }

    pub(crate) fn has(&self, id: SessionId) -> bool {
        self.tasks().contains_key(&id)
    }

    pub(crate) fn mailboxes(&self) -> Vec<Mailbox> {
        self.tasks().values().map(|entry| entry.mailbox.clone()).collect()
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
    pub(crate) fn open(&self, id: SessionId, tenant: &Tenant) -> Inbox {
        let (mailbox, inbox) = mpsc::channel(protocol::limits::MAILBOX);
        self.tasks().insert(id, Entry { mailbox, tenant: Some(tenant.clone()) });
        inbox
    }

    /// Whose a session is, now that its task knows.
    pub(crate) fn belongs(&self, id: SessionId, tenant: &Tenant) {
        if let Some(entry) = self.tasks().get_mut(&id) {
            entry.tenant = Some(tenant.clone());
        }
    }

    /// The session, if it has a task, is named by its id and is the tenant's. Anything else has to be looked up.
    pub(crate) fn find(&self, tenant: &Tenant, session: &SessionRef) -> Option<SessionId> {
        let SessionRef::Id(id) = session else { return None };
        let tasks = self.tasks();
        let entry = tasks.get(id).filter(|entry| !entry.mailbox.is_closed())?;
        (entry.tenant.as_ref() == Some(tenant)).then_some(*id)
    }

    /// Takes a task out, unless a command is waiting for it.
    pub(crate) fn leave(&self, id: SessionId, inbox: &mut Inbox) -> bool {
        let mut tasks = self.tasks();
        if !inbox.is_empty() {
            return false;
        }
        tasks.remove(&id);
        inbox.close();
        drop(tasks);
        self.emptied.notify_waiters();
        true
    }

    /// Takes a task out that gives up: it lost its lease, or could not be loaded.
    pub(crate) fn forget(&self, id: SessionId) {
        self.tasks().remove(&id);
        self.emptied.notify_waiters();
    }

    /// Takes out what a broken task left; the mailbox of a later task stays.
    pub(crate) fn forget_closed(&self, id: SessionId) {
        let mut tasks = self.tasks();
        if tasks.get(&id).is_some_and(|entry| entry.mailbox.is_closed()) {
            tasks.remove(&id);
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
        if let Some(Entry { mailbox, .. }) = tasks.get(&id)
            && !mailbox.is_closed()
        {
            return mailbox.clone();
        }
        let (mailbox, inbox) = mpsc::channel(protocol::limits::MAILBOX);
        tasks.insert(id, Entry { mailbox: mailbox.clone(), tenant: None });
        drop(tasks);
        task::spawn_stored(Arc::clone(self), id, inbox);
        mailbox
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_session_is_found_by_its_own_tenant_only() {
        let live = Live::default();
        let (ours, theirs) = (Tenant::default_tenant(), Tenant::new("other").unwrap());
        let id = SessionId::new();
        let named = SessionRef::Id(id);
        assert_eq!(live.find(&ours, &named), None, "it has no task");
        let inbox = live.open(id, &ours);
        assert_eq!(live.find(&ours, &named), Some(id));
        assert_eq!(live.find(&theirs, &named), None);
        assert_eq!(live.find(&ours, &"1_local".parse().unwrap()), None, "an alias is looked up");
        live.belongs(id, &theirs);
        assert_eq!(live.find(&ours, &named), None);
        live.belongs(id, &ours);
        drop(inbox);
        assert_eq!(live.find(&ours, &named), None, "its task has gone");
    }
}
