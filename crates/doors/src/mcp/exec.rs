//! One command, from its start to what its caller is told: its result, what it writes meanwhile, and what becomes
//! of it when the caller cancels, leaves, or the server stops.
//!
//! Live output is for looking at: it is told at a bounded pace, the newest of it, and left out where the reader is
//! slow. The result has all of it. Only a cancel stops a command.

use crate::rest::Stopping;
use futures_util::future::{BoxFuture, FusedFuture as _, FutureExt as _};
use protocol::{Code, ExecCommand, ExecResult, Fault, LiveOutput, SessionRef};
use rmcp::{
    Peer, RoleServer, ServiceError,
    model::{CustomNotification, ProgressNotificationParam, ProgressToken, RequestId, ServerNotification},
};
use session::{Caller, Execution, Sessions};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::Notify, time::Instant};

/// Between two pieces of live output.
const PACE: Duration = Duration::from_millis(100);
/// One piece of live output; of more, the newest.
const PIECE_BYTES: usize = 8 * 1024;
/// A cancelled command is stopped step by step, and its result waited for no longer than this.
const CANCEL_TIME: Duration = Duration::from_secs(30);
/// A command that runs longer is told of to bridges.
const NOTICE_TIME: Duration = Duration::from_millis(50);
/// The name of that notice. No client but a bridge sees it.
const ACCEPTED: &str = "outlast/accepted";
/// The SDK says that a call is over before it says why: so long a cancel may lag behind.
const REASON_TIME: Duration = Duration::from_secs(1);

/// How a caller hears of a call, and how it is known that he does not any more.
pub(super) struct Hearing {
    pub(super) live: Option<Live>,
    pub(super) notice: Option<Notice>,
    /// The caller asked that the call be cancelled.
    pub(super) asked: Arc<Notify>,
    /// The call is over: cancelled, or its connection gone.
    pub(super) over: BoxFuture<'static, ()>,
    pub(super) leaving: Leaving,
    pub(super) stopping: Stopping,
}

/// Where live output goes.
pub(super) struct Live {
    pub(super) peer: Peer<RoleServer>,
    pub(super) token: ProgressToken,
}

/// A bridge hears which command a call became, so that it can read on when the server is another one.
pub(super) struct Notice {
    pub(super) peer: Peer<RoleServer>,
    pub(super) request: RequestId,
}

impl Notice {
    /// Once the command has run for a moment: most have ended by then.
    async fn tell(notice: Option<Self>, command: u64) {
        let Some(Self { peer, request }) = notice else { return };
        tokio::time::sleep(NOTICE_TIME).await;
        let params = serde_json::json!({ "requestId": request, "command": command });
        let told = CustomNotification::new(ACCEPTED, Some(params));
        let _ = peer.send_notification(ServerNotification::CustomNotification(told)).await;
    }
}

/// What it means when a connection ends under a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Nothing: whoever wants a call cancelled says so.
    Leaves,
    /// The protocol has no other way to cancel one.
    Cancels,
}

/// Why nobody waits for a call any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unheard {
    Cancelled,
    Left,
    Stopping,
}

impl Hearing {
    /// Returns when nobody waits any more.
    pub(super) async fn over(&mut self) -> Unheard {
        let Self { asked, over, leaving, stopping, .. } = self;
        let mut told = stopping.clone();
        tokio::select! {
            biased;
            () = told.wait() => return Unheard::Stopping,
            () = asked.notified() => return Unheard::Cancelled,
            () = over => {}
        }
        if stopping.is_over() {
            return Unheard::Stopping;
        }
        match leaving {
            Leaving::Cancels => Unheard::Cancelled,
            Leaving::Leaves => match tokio::time::timeout(REASON_TIME, asked.notified()).await {
                Ok(()) => Unheard::Cancelled,
                Err(_) => Unheard::Left,
            },
        }
    }
}

/// Has the command run, and waits for its result or for as long as the caller wants to.
pub(super) async fn run(
    sessions: &Sessions,
    caller: &Caller,
    session: &SessionRef,
    command: ExecCommand,
    mut hearing: Hearing,
) -> Result<ExecResult, Fault> {
    let Execution { command, mut live, result } = sessions.exec(caller, session, command).await?;
    let mut telling = hearing.live.take().map(Telling::new);
    if telling.is_none() {
        // Nobody looks: nothing needs to be prepared for it.
        live.close();
    }
    let mut notice = pin!(Notice::tell(hearing.notice.take(), command).fuse());
    let mut result = pin!(result);
    let mut over = pin!(hearing.over());
    let why = loop {
        tokio::select! {
            biased;
            ended = &mut result => return ended.unwrap_or_else(|_| Err(lost(session, command))),
            why = &mut over => break why,
            written = live.recv(), if telling.is_some() => match (written, &mut telling) {
                (Some(written), Some(telling)) => telling.add(&written),
                (_, telling) => *telling = None,
            },
            () = step(&mut telling) => {}
            () = &mut notice, if !notice.is_terminated() => {}
        }
    };
    if why != Unheard::Cancelled {
        return Err(unheard(why, &name(session), command));
    }
    sessions.cancel_command(caller, session, command).await?;
    match tokio::time::timeout(CANCEL_TIME, result).await {
        Ok(ended) => ended.unwrap_or_else(|_| Err(lost(session, command))),
        Err(_) => Err(unheard(why, &name(session), command)),
    }
}

/// What is said to whoever may still hear it.
pub(super) fn unheard(why: Unheard, session: &str, command: u64) -> Fault {
    let read = format!("session_poll with session_id {session} and command_id {command} reads its result");
    match why {
        Unheard::Cancelled => Fault::new(Code::TimedOut, format!("the call was cancelled; {read}")),
        Unheard::Left => {
            Fault::new(Code::TimedOut, format!("the connection ended; the command goes on, and {read}"))
        }
        Unheard::Stopping => {
            Fault::new(Code::ShuttingDown, format!("the server is stopping; the command goes on, and {read}"))
        }
    }
}

fn lost(session: &SessionRef, command: u64) -> Fault {
    unheard(Unheard::Stopping, &name(session), command)
}

fn name(session: &SessionRef) -> String {
    match session {
        SessionRef::Id(id) => id.to_string(),
        SessionRef::Alias(alias) => alias.to_string(),
    }
}

async fn step(telling: &mut Option<Telling>) {
    match telling {
        Some(telling) => telling.step().await,
        None => std::future::pending().await,
    }
}

/// Live output on its way to a reader.
struct Telling {
    live: Live,
    /// Not yet sent; the newest of it.
    text: String,
    /// Bytes that were written so far: what progress is measured in.
    written: u64,
    next: Instant,
    sending: Option<BoxFuture<'static, Result<(), ServiceError>>>,
}

impl Telling {
    fn new(live: Live) -> Self {
        Self { live, text: String::new(), written: 0, next: Instant::now(), sending: None }
    }

    fn add(&mut self, output: &LiveOutput) {
        self.written += output.text.len() as u64;
        self.text.push_str(&output.text);
        keep_newest(&mut self.text);
    }

    /// Sends what is due. Safe to be dropped and asked again at any time.
    async fn step(&mut self) {
        if let Some(sending) = &mut self.sending {
            // A reader that is gone is noticed elsewhere.
            let _ = sending.await;
            self.sending = None;
            return;
        }
        if self.text.is_empty() {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.next).await;
        self.next = Instant::now() + PACE;
        #[expect(clippy::cast_precision_loss, reason = "progress only has to grow")]
        let written = self.written as f64;
        let told = ProgressNotificationParam::new(self.live.token.clone(), written)
            .with_message(std::mem::take(&mut self.text));
        let peer = self.live.peer.clone();
        self.sending = Some(Box::pin(async move { peer.notify_progress(told).await }));
    }
}

/// Cuts the front off at a border between characters, and says so.
fn keep_newest(text: &mut String) {
    const CUT: &str = "…";
    if text.len() <= PIECE_BYTES {
        return;
    }
    let mut from = text.len() - PIECE_BYTES + CUT.len();
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.replace_range(..from, CUT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_kept() {
        let mut text = "é".repeat(PIECE_BYTES);
        text.push('z');
        keep_newest(&mut text);
        assert!(text.len() <= PIECE_BYTES && text.starts_with('…') && text.ends_with('z'));
        let mut short = "short".to_owned();
        keep_newest(&mut short);
        assert_eq!(short, "short");
    }

    fn hearing(leaving: Leaving) -> (Hearing, Arc<Notify>, tokio::sync::watch::Sender<bool>) {
        let (stop, stopping) = Stopping::new();
        let asked = Arc::new(Notify::new());
        let over = Box::pin(std::future::ready(()));
        (
            Hearing { live: None, notice: None, asked: Arc::clone(&asked), over, leaving, stopping },
            asked,
            stop,
        )
    }

    #[tokio::test]
    async fn leaving_cancels_only_where_the_protocol_says_so() {
        let (mut left, _asked, _stop) = hearing(Leaving::Leaves);
        assert_eq!(left.over().await, Unheard::Left);
        let (mut cancelled, _asked, _stop) = hearing(Leaving::Cancels);
        assert_eq!(cancelled.over().await, Unheard::Cancelled);
        let (mut asked, ask, _stop) = hearing(Leaving::Leaves);
        ask.notify_one();
        assert_eq!(asked.over().await, Unheard::Cancelled);
        let (mut stopped, _asked, stop) = hearing(Leaving::Cancels);
        stop.send_replace(true);
        assert_eq!(stopped.over().await, Unheard::Stopping, "a server that stops cancels nothing");
    }
}
