//! Checkpoints, asked for and automatic.

use super::*;
use checkpoints::{Did, Ground, Kept};

impl ShellTask {
    fn ground(&self) -> Result<Ground, Fault> {
        if self.pen.state.status == Status::Ended {
            return Err(lifecycle::ended());
        }
        let cwd = self.memo.cwd.as_deref();
        Ground::new(&self.pen.shared, &self.pen.fixed, &self.spec, cwd, self.grip())
    }

    fn next_checkpoint(&mut self) -> u64 {
        self.memo.checkpoint += 1;
        self.memo.checkpoint
    }

    pub(super) fn on_checkpoint(&mut self, label: Option<String>, reply: Reply<Checkpoint>) {
        match self.ground() {
            Ok(ground) => {
                let doing = checkpoints::take(ground, self.next_checkpoint(), label, None);
                self.chore = Some((chores::checkpoint(doing), Purpose::Checkpoint(reply)));
            }
            Err(fault) => drop(reply.send(Err(fault))),
        }
    }

    pub(super) fn on_restore(&mut self, checkpoint: Option<String>, reply: Reply<RestoredCheckpoint>) {
        let known = |id: &String| self.memo.checkpoints.iter().any(|kept| kept.id == *id);
        let to = match checkpoint {
            Some(id) if known(&id) => id,
            Some(id) => {
                let text =
                    format!("There is no checkpoint {id:?}; session_checkpoints lists those there are");
                return drop(reply.send(Err(Fault::new(Code::NotFound, text))));
            }
            None => match self.memo.checkpoints.last() {
                Some(kept) => kept.id.clone(),
                None => {
                    let text = "There is no checkpoint yet; take one with session_checkpoint";
                    return drop(reply.send(Err(Fault::new(Code::NotFound, text))));
                }
            },
        };
        match self.ground() {
            Ok(ground) => {
                let doing = checkpoints::restore(ground, self.next_checkpoint(), to);
                self.chore = Some((chores::checkpoint(doing), Purpose::Restore(reply)));
            }
            Err(fault) => drop(reply.send(Err(fault))),
        }
    }

    /// Takes a checkpoint before a command, if something has changed since the last one.
    pub(super) fn checkpoint_before(&mut self, order: Box<Order>, reply: Reply<Execution>) {
        match self.ground() {
            Ok(ground) => {
                let previous = self.memo.checkpoints.last().map(|kept| kept.id.clone());
                let label = Some(format!("before command {}", self.memo.commands + 1));
                let doing = checkpoints::take(ground, self.next_checkpoint(), label, previous);
                self.chore = Some((chores::checkpoint(doing), Purpose::Before(order, reply)));
            }
            Err(fault) => self.start_exec(*order, Some(not_taken(&fault)), reply),
        }
    }

    pub(super) fn on_checkpointed(&mut self, did: Result<Did, Fault>, purpose: Purpose) {
        match (did, purpose) {
            (Ok(Did::Took { kept: Some(kept), files }), Purpose::Checkpoint(reply)) => {
                let told = kept.told();
                self.keep_checkpoint(kept, &format!("taken, of {files} files, folders and links"));
                self.pen.answer(reply, Ok(told));
            }
            (Ok(Did::Restored { undo, told }), Purpose::Restore(reply)) => {
                self.keep_checkpoint(undo, "taken before a restore");
                let text = format!(
                    "checkpoint {} restored; {} entries changed",
                    told.restored_to, told.files_changed
                );
                self.pen.record(Actor::System, Notice { level: Level::Info, text });
                self.pen.answer(reply, Ok(told));
            }
            (Ok(did), Purpose::Before(order, reply)) => {
                if let Did::Took { kept: Some(kept), .. } = did {
                    self.keep_checkpoint(kept, "taken before a command");
                }
                self.start_exec(*order, None, reply);
            }
            (Err(fault), Purpose::Before(order, reply)) => {
                self.start_exec(*order, Some(not_taken(&fault)), reply);
            }
            (Err(fault), Purpose::Checkpoint(reply)) => drop(reply.send(Err(fault))),
            (Err(fault), Purpose::Restore(reply)) => drop(reply.send(Err(fault))),
            // A purpose is answered by what was done for it.
            (Ok(_) | Err(_), _) => {}
        }
    }

    fn keep_checkpoint(&mut self, kept: Kept, how: &str) {
        let text = format!("checkpoint {} {how}", kept.id);
        self.pen.record(Actor::System, Notice { level: Level::Info, text });
        self.memo.checkpoints.push(kept);
        if self.memo.checkpoints.len() > checkpoints::MOST {
            let oldest = self.memo.checkpoints.remove(0);
            self.forget_checkpoint(&oldest);
        }
    }

    fn forget_checkpoint(&self, kept: &Kept) {
        let (sandboxes, name) =
            (self.pen.shared.sandboxes.clone(), checkpoints::row(&self.pen.fixed, &kept.id));
        tokio::spawn(async move {
            if let Err(fault) = sandboxes.forget(&name).await {
                tracing::warn!(name, %fault, "a checkpoint could not be let go");
            }
        });
    }

    /// The session is being removed, and its checkpoints with it.
    pub(super) fn forget_checkpoints(&self) {
        self.memo.checkpoints.iter().for_each(|kept| self.forget_checkpoint(kept));
    }
}

fn not_taken(fault: &Fault) -> String {
    format!("no checkpoint could be taken before the command: {fault}")
}
