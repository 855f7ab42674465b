//! Work for a session that takes a moment and must be finished before the next command is looked at. Events, output
//! and deadlines go on meanwhile.

use super::{Occupied, Pend, Task};
use crate::{
    lifecycle::{self, Move},
    live::Reply,
};
use protocol::Session;
use std::pin::Pin;
use tokio::time::Instant;

pub(super) type Errand = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// What came of it.
pub(super) enum Ran {
    /// The occupant stands still, or could not be made to.
    Froze { reply: Reply<Session>, result: Result<(), String> },
}

/// Waits for the errand; for ever when there is none. Cancel-safe.
pub(super) async fn run(errand: &mut Option<Errand>) -> Ran {
    match errand {
        Some(running) => {
            let ran = running.await;
            *errand = None;
            ran
        }
        None => std::future::pending().await,
    }
}

impl Task {
    pub(super) fn on_ran(&mut self, ran: Ran) {
        match ran {
            Ran::Froze { reply, result } => self.on_froze(reply, result),
        }
    }

    fn on_froze(&mut self, reply: Reply<Session>, result: Result<(), String>) {
        let mut cx = self.cx();
        // It may have ended in the meantime.
        if let Err(fault) = lifecycle::step(self.state.status, Move::Pause) {
            self.clock.thaw(Instant::now());
            let _ = reply.send(Err(fault));
            return self.settle(cx);
        }
        match (result, &mut self.occupied) {
            (Ok(()), Occupied::Live(live)) => {
                live.frozen();
                self.idle_since = Instant::now();
                self.shift(Move::Pause, None, &mut cx);
                let (seq, view) = (cx.last_seq(), self.view(cx.last_seq()));
                self.pending.push_back((seq, Pend::answer(reply, Ok(view))));
            }
            (Err(why), _) => {
                self.clock.thaw(Instant::now());
                self.rest(
                    Some(format!("nothing could be frozen, so that its agent was stopped: {why}")),
                    &mut cx,
                );
                self.leavers.push(reply);
            }
            (Ok(()), Occupied::Empty | Occupied::Launching(_)) => self.leavers.push(reply),
        }
        self.settle(cx);
    }
}
