//! The whole text of what commands write, as far as a budget leaves something out: gathered while they run, and written
//! down when it is on disk.

use super::*;
use crate::shells::whole::{Kept, Whole};
use occupant::text::View;
use protocol::{OutputKept, OutputStream, limits};
use std::io;
use tokio::task::JoinSet;

/// Texts on their way to the disk after their commands; one more is not kept.
const KEEPINGS: usize = 8;

/// What the task knows of whole texts.
#[derive(Default)]
pub(super) struct Wholes {
    /// The running command's; none if it was not to be kept when its output began.
    now: Option<(u64, Option<Whole>)>,
    keeping: JoinSet<(u64, io::Result<Kept>)>,
    /// Who waits until everything so far is kept.
    waiters: Vec<Reply<()>>,
}

impl Wholes {
    pub(super) fn is_behind(&self) -> bool {
        matches!(&self.now, Some((_, Some(whole))) if whole.is_behind())
    }

    pub(super) fn is_settled(&self) -> bool {
        self.keeping.is_empty()
    }

    /// Waits until a text is kept, or the disk is no longer behind. Cancel-safe; for ever when there is neither.
    pub(super) async fn progress(&mut self) -> Option<(u64, io::Result<Kept>)> {
        let behind = self.is_behind();
        let Self { now, keeping, .. } = self;
        tokio::select! {
            Some(joined) = keeping.join_next() => joined.ok(),
            () = async { if let Some((_, Some(whole))) = now { whole.catch_up().await } }, if behind => None,
            else => std::future::pending().await,
        }
    }
}

impl Wholes {
    /// A command's text; none where nothing is to be kept, or a full disk has other worries. `let_go` is what the
    /// keeper no longer had when this server came, and cannot be had again.
    pub(super) fn of(&mut self, command: u64, shared: &Shared, let_go: [u64; 2]) -> Option<&mut Whole> {
        if self.now.as_ref().is_none_or(|(known, _)| *known != command) {
            let most = shared.options.shells.output_bytes;
            let wanted = most > 0 && shared.journal.space() != Space::Low;
            let whole = wanted.then(|| Whole::new(shared.journal.clone(), most, let_go.map(|from| from > 0)));
            self.now = Some((command, whole));
        }
        self.now.as_mut().and_then(|(_, whole)| whole.as_mut())
    }
}

impl ShellTask {
    /// A command has ended: which of its streams are kept whole.
    pub(super) fn keep_whole(&mut self, finished: &Finished) -> [bool; 2] {
        let both = [(OutputStream::Stdout, &finished.stdout), (OutputStream::Stderr, &finished.stderr)];
        let wanted = |(_, view): &(_, &View)| view.shown.truncated;
        let mut kept = [false; 2];
        if both.iter().any(wanted)
            && let Some(whole) = self.wholes.of(finished.command, &self.pen.shared, self.memo.let_go)
        {
            let mut keepings = Vec::new();
            for (at, (stream, view)) in both.into_iter().enumerate() {
                whole.push(stream, &view.last);
                if view.shown.truncated {
                    keepings.push((at, whole.bytes(stream), whole.keep(stream)));
                }
            }
            for (at, bytes, keeping) in keepings {
                let fits = self.memo.kept_bytes.saturating_add(bytes) <= limits::OUTPUTS_BYTES;
                if fits && self.wholes.keeping.len() < KEEPINGS {
                    kept[at] = true;
                    self.memo.kept_bytes += bytes;
                    let command = finished.command;
                    self.wholes.keeping.spawn(async move { (command, keeping.await) });
                }
            }
        }
        self.wholes.now.take_if(|(command, _)| *command == finished.command);
        self.memo.let_go = [0; 2];
        kept
    }

    pub(super) fn on_whole(&mut self, kept: Option<(u64, io::Result<Kept>)>) {
        match kept {
            None => {}
            Some((command, Ok(Kept { stream, attachment, complete }))) => {
                let (bytes, blob) = (attachment.bytes(), attachment.name());
                self.pen.record(Actor::System, OutputKept { command, stream, bytes, complete, blob });
                self.pen.attach(attachment);
            }
            Some((command, Err(error))) => {
                let text = format!("the whole output of command {command} could not be kept: {error}");
                self.pen.record(Actor::System, Notice { level: Level::Warning, text });
            }
        }
        if self.wholes.is_settled() {
            for waiter in std::mem::take(&mut self.wholes.waiters) {
                self.pen.answer(waiter, Ok(()));
            }
        }
    }

    /// Answers once all texts so far are kept, or are not.
    pub(super) fn when_kept(&mut self, reply: Reply<()>) {
        self.wholes.waiters.push(reply);
        self.on_whole(None);
    }
}
