//! A fork: a new session that begins with another one's events up to a point, and with its files as they were then, as
//! far as a snapshot of that time is left. Said honestly in the fork's own record.

use crate::{
    Caller, Sessions, faults,
    spec::Memo,
    task::{self, Answered, Command, Task},
};
use journal::{NewSession, SandboxRow, SessionRow, SnapshotRow};
use protocol::{
    Actor, Body, Code, Fault, ForkPoint, ForkSession, Level, Notice, Seq, Session, SessionId, SessionRef,
    SnapshotTaken, Status, Timestamp, limits,
};
use std::sync::Arc;

/// What the fork's files are.
struct Files {
    taken: Option<SnapshotTaken>,
    /// As of the fork's own point, so that the agent's own store fits the conversation.
    exact: bool,
    /// The last prompt that both share: the agent is asked whether it knows it, or given a transcript.
    last_prompt: Option<Seq>,
    told: Option<String>,
}

impl Sessions {
    /// Returns once the fork is on disk. Its agent is on the way then; a prompt waits for it.
    pub async fn fork(
        &self,
        caller: &Caller,
        session: &SessionRef,
        request: ForkSession,
    ) -> Result<Session, Fault> {
        let shared = &self.shared;
        crate::check_label("name", request.name.as_deref())?;
        let mut parent = self.row(caller, session).await?;
        if request.at.is_some_and(|at| at == 0 || at > parent.last_seq) {
            return Err(Fault::invalid(format!(
                "at must be 1 to {}, the session's last event",
                parent.last_seq
            )));
        }
        self.admit_work(&caller.tenant, crate::NewWork::Session).await?;
        shared.make_room(&caller.tenant).await;
        let slot = shared.slots.take(&caller.tenant)?;
        let files = match request.at {
            Some(at) if at < parent.last_seq => self.files_at(&parent, at).await?,
            Some(_) | None => {
                let files = self.files_now(&parent).await?;
                // The snapshot's own event is shared too.
                parent = self.row(caller, &SessionRef::Id(parent.fixed.id)).await?;
                files
            }
        };
        let from = ForkPoint { session: parent.fixed.id, seq: request.at.unwrap_or(parent.last_seq) };
        let (id, now) = (SessionId::new(), Timestamp::now());
        let fixed = NewSession {
            id,
            sandbox: id.to_string(),
            alias: None,
            created_at: now,
            forked_from: Some(from),
            ..parent.fixed.clone()
        };
        if let Some(taken) = &files.taken {
            let snapshot = SnapshotRow {
                id: taken.snapshot.clone(),
                taken_at: now,
                files: taken.files,
                bytes: taken.bytes,
            };
            let row = SandboxRow {
                id: fixed.sandbox.clone(),
                tenant: fixed.tenant.clone(),
                key: None,
                created_at: now,
                snapshot: Some(snapshot),
            };
            shared.journal.put_sandbox(row).await.map_err(faults::write)?;
        }
        let kept = Memo::decode(&parent.state.memo);
        let memo = Memo {
            agent_session: kept.agent_session.filter(|_| files.exact),
            whose: occupant::Whose::Parents,
            config: kept.config,
            // Where the parent's last prompt is not shared, there is nothing to compare with; a conversation there was.
            last_prompt: files.last_prompt,
            ..Memo::default()
        };
        let spec = crate::spec::Spec::open(&shared.vault, &fixed.spec).map_err(crate::spec::internal)?;
        let name = request.name.or_else(|| parent.state.name.clone());
        let state = task::first_state(parent.state.model.clone(), name, now);
        let writer = shared.journal.begin_fork(fixed.clone(), from).await.map_err(faults::read)?;
        let (reply, answer) = tokio::sync::oneshot::channel();
        let (inbox, card) = (shared.live.open(id), crate::live::Card::of(&fixed));
        let mut task = Task::begin_fork(Arc::clone(shared), writer, fixed, state, memo, inbox);
        let told = files.told.map(|text| Notice { level: Level::Info, text });
        task.create(Actor::Key(caller.key), spec, slot, told, Answered::AtOnce(reply));
        task::spawn_new(task, id);
        let ended = || Err(crate::spec::internal("a fork's task ended without an answer"));
        let forked = answer.await.unwrap_or_else(|_| ended())?;
        shared.live.introduce(id, card);
        Ok(forked)
    }

    /// The files as they are now.
    async fn files_now(&self, parent: &SessionRow) -> Result<Files, Fault> {
        let id = parent.fixed.id;
        // An ended session's files are in its last snapshot already, and nothing about it changes any more.
        let taken = match parent.state.status {
            Status::Ended => self.shared.sandboxes.last_taken(&parent.fixed.sandbox).await?,
            Status::Starting | Status::Active | Status::Paused | Status::Error => {
                match self.shared.call(id, |reply| Command::Snapshot { reply }).await? {
                    Some(taken) => Some(taken),
                    None => self.shared.sandboxes.last_taken(&parent.fixed.sandbox).await?,
                }
            }
        };
        let told = match &taken {
            Some(_) => "forked with the files as they are now".to_owned(),
            None => "forked without files: its parent has neither a workspace nor a snapshot".to_owned(),
        };
        let last_prompt = Memo::decode(&parent.state.memo).last_prompt;
        Ok(Files { exact: taken.is_some(), taken, last_prompt, told: Some(told) })
    }

    /// The newest snapshot up to a point that is still there, or the files as they are now.
    async fn files_at(&self, parent: &SessionRow, at: Seq) -> Result<Files, Fault> {
        let mut found: Vec<(Seq, SnapshotTaken)> = Vec::new();
        let mut last_prompt = None;
        let mut cursor = parent.first_seq - 1;
        while cursor < at {
            let page = self.shared.journal.read(parent.fixed.id, cursor, limits::PAGE_EVENTS).await;
            let page = page.map_err(faults::read)?;
            let Some(last) = page.events.last().map(|event| event.seq) else { break };
            for event in page.events.iter().filter(|event| event.seq <= at) {
                match event.decode() {
                    Ok(Body::SnapshotTaken(taken)) => found.push((event.seq, taken)),
                    Ok(Body::PromptAccepted(_)) => last_prompt = Some(event.seq),
                    Ok(_) | Err(_) => {}
                }
            }
            cursor = last;
        }
        for (seq, taken) in found.into_iter().rev() {
            if self.shared.sandboxes.is_kept(&taken.snapshot).await {
                let told = format!("forked at event {at} with the files as of event {seq}");
                return Ok(Files { taken: Some(taken), exact: false, last_prompt, told: Some(told) });
            }
        }
        let now = self.files_now(parent).await?;
        let told = format!(
            "forked at event {at}; no snapshot from before it is left, so that the files are as they are now"
        );
        Ok(Files { told: Some(told), exact: false, last_prompt, ..now })
    }
}

/// Events that other sessions share may not go.
pub(crate) fn refuse_removal() -> Fault {
    Fault::new(
        Code::Conflict,
        "Other sessions were forked from this one and share its events; remove them first",
    )
}
