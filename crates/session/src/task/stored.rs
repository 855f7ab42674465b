//! Waking a stored session: taking its lease, and giving every turn that a stopped server left open its
//! outcome before anything else happens.

use super::{Command, Stage, Task};
use crate::{
    Shared, faults,
    lifecycle::Move,
    live::Inbox,
    spec::Memo,
    turns::{Admission, Turn},
};
use journal::Journal;
use protocol::{Actor, Body, Code, Fault, Level, Notice, Outcome, Reason, SessionId, Status};
use std::sync::Arc;
use tracing::Instrument as _;

const SERVER_STOPPED: &str = "the server stopped";

/// Starts a task for a session that is in the store. Its inbox is registered already.
pub(crate) fn spawn_stored(shared: Arc<Shared>, id: SessionId, mut inbox: Inbox) {
    let owner = Arc::clone(&shared);
    let span = tracing::info_span!("session", %id);
    let future = async move {
        match load(&shared, id, &mut inbox).await {
            Ok(()) => {}
            Err(fault) => refuse_all(&shared, id, &mut inbox, &fault),
        }
    };
    supervise(Arc::clone(&owner), future.instrument(span), id);
}

/// Starts the task of a session that has just been made.
pub(crate) fn spawn_new(task: Task, id: SessionId) {
    let span = tracing::info_span!("session", %id);
    supervise(Arc::clone(&task.shared), task.serve().instrument(span), id);
}

/// After this many broken tasks sessions are no longer taken up by themselves: something is badly wrong.
const BREAKDOWNS: u64 = 100;

/// A task that panics is a bug; it must not look like a quiet end. The next task gives the turns it left
/// open their outcome.
fn supervise(shared: Arc<Shared>, future: impl Future<Output = ()> + Send + 'static, id: SessionId) {
    let task = tokio::spawn(future);
    tokio::spawn(async move {
        if let Err(error) = task.await {
            tracing::error!(session = %id, %error, "a session's task broke");
            if shared.counters.broke() < BREAKDOWNS {
                shared.redispatch(id, Command::Wake).await;
            }
        }
    });
}

async fn load(shared: &Arc<Shared>, id: SessionId, inbox: &mut Inbox) -> Result<(), Fault> {
    let (writer, row) = shared.journal.acquire(id).await.map_err(faults::write)?;
    let open =
        if row.state.live { shared.journal.open_turns(id).await.map_err(faults::read)? } else { Vec::new() };
    // The receiver moves into the task; what is left here is closed and empty.
    let (_, empty) = tokio::sync::mpsc::channel(1);
    let inbox = std::mem::replace(inbox, empty);
    let memo = Memo::decode(&row.state.memo);
    let was_live = row.state.live;
    let mut task =
        Task::assemble(Arc::clone(shared), inbox, writer, row.fixed, row.state, row.first_seq, memo);
    task.written = Some(task.state.clone());
    if was_live {
        task.recover(open).await;
    }
    task.serve().await;
    Ok(())
}

impl Task {
    /// Runs, and passes on what came too late.
    pub(crate) async fn serve(self) {
        let _forget = Forget { shared: Arc::clone(&self.shared), id: self.fixed.id };
        self.run().await;
    }

    /// A server stopped while this session was live. Its process is gone with it: the running turn is
    /// interrupted, the prompts that waited run now.
    async fn recover(&mut self, open: Vec<journal::TurnRow>) {
        let mut cx = self.cx();
        for row in open {
            let mut turn = Turn {
                id: row.turn,
                client_id: row.client_id,
                digest: row.digest,
                accepted_seq: row.accepted_seq,
                content: Vec::new(),
                model: None,
            };
            if row.started {
                let message = Some("the server stopped, and the agent with it".to_owned());
                self.end_turn(&turn, Outcome::Interrupted, Reason::ServerStopped, message, None, &mut cx);
                continue;
            }
            let journal = self.shared.journal.clone();
            match prompt_of(&journal, self.fixed.id, &turn).await {
                Ok((content, model)) => {
                    turn.content = content;
                    turn.model = model;
                    self.turns.place(turn, Admission::Back);
                }
                Err(message) => {
                    self.end_turn(
                        &turn,
                        Outcome::Failed,
                        Reason::ServerStopped,
                        Some(message),
                        None,
                        &mut cx,
                    );
                }
            }
        }
        match self.state.status {
            Status::Active | Status::Starting => {
                self.shift(Move::Rest, Some(SERVER_STOPPED.to_owned()), &mut cx);
            }
            Status::Paused | Status::Error | Status::Ended => {}
        }
        if self.state.status == Status::Ended {
            // Ended, but the row still said live: the end was recorded and its process had not gone yet.
            for turn in self.turns.take_all() {
                self.end_turn(&turn, Outcome::Interrupted, Reason::SessionEnded, None, None, &mut cx);
            }
        } else if self.turns.has_waiting()
            && let Err(fault) = self.bring()
        {
            self.fail_start(&fault, &mut cx);
        }
        self.settle(cx);
    }

    /// The server stops: the occupant goes, waiting prompts stay in the journal for the next one.
    pub(super) fn close(&mut self) {
        self.stage = Stage::Closing;
        let mut cx = self.cx();
        self.interrupt_running(Reason::ServerStopped, &mut cx);
        if self.turns.has_waiting() {
            let text = "the server stopped; waiting prompts run when it is back".to_owned();
            cx.record(Actor::System, Notice { level: Level::Info, text });
        }
        match &self.occupied {
            super::Occupied::Live(_) => {
                self.occupied.stop(super::occupied::After::Rest { reason: Some(SERVER_STOPPED.to_owned()) });
            }
            super::Occupied::Launching(_) => {
                self.occupied = super::Occupied::Empty;
                self.shift(Move::Rest, Some(SERVER_STOPPED.to_owned()), &mut cx);
                let fault =
                    Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment");
                self.dismiss_joiners(&fault, &cx);
            }
            super::Occupied::Empty => {}
        }
        self.settle(cx);
    }
}

/// What a waiting prompt says, from the journal.
async fn prompt_of(
    journal: &Journal,
    session: SessionId,
    turn: &Turn,
) -> Result<(Vec<protocol::ContentBlock>, Option<String>), String> {
    let event = journal.event(session, turn.accepted_seq).await.map_err(|error| error.to_string())?;
    let event = event.ok_or("the prompt is no longer in the journal")?;
    match event.decode().map_err(|error| error.to_string())? {
        Body::PromptAccepted(prompt) if prompt.turn == turn.id => Ok((prompt.content, prompt.model)),
        _ => Err("the journal holds something else where the prompt should be".to_owned()),
    }
}

/// However a task ends, its entry goes: a mailbox nobody reads would take commands for ever.
struct Forget {
    shared: Arc<Shared>,
    id: SessionId,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.shared.live.forget_closed(self.id);
    }
}

/// The session could not be loaded: everyone who asked is told, and the entry goes.
fn refuse_all(shared: &Arc<Shared>, id: SessionId, inbox: &mut Inbox, fault: &Fault) {
    shared.live.forget(id);
    inbox.close();
    while let Ok(command) = inbox.try_recv() {
        command.refuse(fault);
    }
}
