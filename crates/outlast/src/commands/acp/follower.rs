//! One session as the editor sees it: its events become updates, questions and the answers to prompts, in the
//! order in which they were recorded. The follower owns everything that waits for an event; it is one task, and
//! reads no faster than the editor does.
//!
//! It begins at the first event: up to the head that there was, the history is shown (`session/load`) or only
//! read (`session/new`, `session/resume`), so that it knows settings and open questions; from there on it is live.
//! A server that goes away is waited for and looked for; the stream goes on after the last event seen.

use super::{
    editor::{Editor, Gone, Update},
    settings::Settings,
    shape,
};
use crate::background::Server;
use agent_client_protocol::v1::{Responder, schema};
use client::{EventStream, Followed};
use protocol::{
    AgentUpdate, AnswerPermission, Body, ContentBlock, Event, PermissionRequested, PromptAccepted, Seq,
    Session, SessionId, TurnId,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::{AbortHandle, JoinSet},
    time::Instant,
};

/// Asks that wait for a follower.
pub(super) const ASKS: usize = 64;
/// How long a follower looks for a server that is away.
const AWAY: Duration = Duration::from_secs(600);
const AWAY_LOOK: Duration = Duration::from_millis(500);

/// What the door asks of a follower.
pub(super) enum Ask {
    /// A prompt is about to be sent under this id; its turn's end is the answer.
    Prompt { id: String, responder: Responder<schema::PromptResponse> },
    /// The server did not take it.
    Refused { id: String, error: client::Error },
    /// The settings, once the event of this number has been seen.
    At { seq: Seq, reply: oneshot::Sender<Settings> },
    /// The history again, up to this event.
    Again { after: Seq, until: Seq },
}

/// What becomes of the events that were there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum History {
    Shown,
    Read,
}

/// Why a follower ended.
enum End {
    /// The session is not attached any more, or the editor has gone.
    Left,
    /// The session, the key or the server is gone.
    Lost(client::Error),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        Self::Left
    }
}

pub(super) struct Follower {
    id: SessionId,
    server: Arc<Server>,
    editor: Editor,
    asks: mpsc::Receiver<Ask>,
    stream: EventStream,
    history: History,
    /// Events up to this one are history.
    until: Seq,
    settings: Settings,
    /// Prompts of this editor that the server has not recorded yet, by their id.
    sent: HashMap<String, Responder<schema::PromptResponse>>,
    /// Prompts of this editor whose turn has not ended.
    ours: HashMap<TurnId, Responder<schema::PromptResponse>>,
    /// Prompts that the editor has not seen, until their turn starts.
    unseen: HashMap<TurnId, Vec<ContentBlock>>,
    /// Questions of the history that nobody has answered so far.
    open: BTreeMap<Seq, PermissionRequested>,
    /// Questions that the editor was asked.
    asked: HashMap<Seq, AbortHandle>,
    questions: JoinSet<()>,
    waits: Vec<(Seq, oneshot::Sender<Settings>)>,
    /// Said before this editor's first turn.
    note: Option<String>,
}

impl Follower {
    pub(super) fn new(
        session: &Session,
        server: Arc<Server>,
        editor: Editor,
        asks: mpsc::Receiver<Ask>,
        history: History,
        note: Option<String>,
    ) -> Self {
        let stream = server.client().events(session.id, session.first_seq.saturating_sub(1));
        Self {
            id: session.id,
            server,
            editor,
            asks,
            stream,
            history,
            until: session.last_seq,
            settings: Settings::default(),
            sent: HashMap::new(),
            ours: HashMap::new(),
            unseen: HashMap::new(),
            open: BTreeMap::new(),
            asked: HashMap::new(),
            questions: JoinSet::new(),
            waits: vec![],
            note,
        }
    }

    /// Follows until the session is left or lost; whoever still waits is told.
    pub(super) async fn run(mut self) {
        let Err(end) = self.follow().await;
        let error = match end {
            End::Left => return,
            End::Lost(error) => shape::refusal(&error),
        };
        self.asks.close();
        while let Some(ask) = self.asks.recv().await {
            if let Ask::Prompt { responder, .. } = ask {
                let _ = responder.respond_with_error(error.clone());
            }
        }
        for responder in self.sent.into_values().chain(self.ours.into_values()) {
            let _ = responder.respond_with_error(error.clone());
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, End> {
        let mut lost: Option<Instant> = None;
        loop {
            self.arrived();
            tokio::select! {
                // Asks first: a prompt is announced before its events can come.
                biased;
                ask = self.asks.recv() => self.take(ask.ok_or(End::Left)?),
                Some(_) = self.questions.join_next() => {}
                followed = self.stream.next() => match followed {
                    Ok(Followed::Event(event)) => {
                        lost = None;
                        self.see(&event).await?;
                    }
                    Ok(Followed::Reconnecting { .. }) => self.look().await,
                    Err(error) if error.passes() && lost.get_or_insert_with(Instant::now).elapsed() < AWAY => {
                        tokio::time::sleep(AWAY_LOOK).await;
                        self.look().await;
                        self.stream = self.server.client().events(self.id, self.stream.last_seq());
                    }
                    Err(error) => return Err(End::Lost(error)),
                },
            }
        }
    }

    /// The connection broke: the server may be somewhere else now.
    async fn look(&mut self) {
        let before = self.server.client();
        // Still away is what the stream says next.
        let _ = self.server.renew().await;
        let now = self.server.client();
        if now.url() != before.url() {
            self.stream = now.events(self.id, self.stream.last_seq());
        }
    }

    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Prompt { id, responder } => {
                self.sent.insert(id, responder);
            }
            Ask::Refused { id, error } => {
                if let Some(responder) = self.sent.remove(&id) {
                    let _ = responder.respond_with_error(shape::refusal(&error));
                }
            }
            Ask::At { seq, reply } => self.waits.push((seq, reply)),
            Ask::Again { after, until } => {
                self.stream = self.server.client().events(self.id, after);
                (self.history, self.until) = (History::Shown, until);
                self.questions.abort_all();
                self.asked.clear();
                self.unseen.clear();
            }
        }
    }

    /// Does what was to be done once the stream had come this far.
    fn arrived(&mut self) {
        let seen = self.stream.last_seq();
        if seen < self.until {
            return;
        }
        for (seq, request) in std::mem::take(&mut self.open) {
            self.ask(seq, &request);
        }
        for (seq, reply) in std::mem::take(&mut self.waits) {
            if seq <= seen {
                // One that does not wait any more is fine.
                let _ = reply.send(self.settings.clone());
            } else {
                self.waits.push((seq, reply));
            }
        }
    }

    fn is_history(&self, seq: Seq) -> bool {
        seq <= self.until
    }

    async fn see(&mut self, event: &Event) -> Result<(), End> {
        let shown = !self.is_history(event.seq) || self.history == History::Shown;
        match &event.body {
            Body::AgentUpdate(update) => self.update(update, shown).await?,
            Body::PromptAccepted(prompt) => self.prompt_accepted(event.seq, prompt).await?,
            Body::TurnStarted(started) => {
                let blocks = self.unseen.remove(&started.turn).unwrap_or_default();
                for block in blocks.iter().filter(|_| shown) {
                    let chunk = json!({"sessionUpdate": "user_message_chunk", "content": block});
                    self.editor.update(self.id, chunk.into()).await?;
                }
            }
            Body::TurnEnded(ended) => {
                self.unseen.remove(&ended.turn);
                if let Some(responder) = self.ours.remove(&ended.turn) {
                    let _ = responder.respond_with_result(shape::stop(ended));
                }
            }
            Body::PermissionRequested(request) if self.is_history(event.seq) => {
                self.open.insert(event.seq, request.clone());
            }
            Body::PermissionRequested(request) => self.ask(event.seq, request),
            Body::PermissionAnswered(answered) => {
                self.open.remove(&answered.permission);
                // Answered elsewhere: the editor's question is taken back.
                if let Some(question) = self.asked.remove(&answered.permission) {
                    question.abort();
                }
            }
            Body::SessionConfig(config) => {
                let before = self.settings.clone();
                self.settings.take(config);
                self.tell_settings(event.seq, &before).await?;
            }
            Body::OccupantStarted(started) => {
                let offers = started.offers.as_ref().and_then(|offers| offers.read::<Value>().ok());
                if let Some(offers) = offers {
                    let before = std::mem::replace(&mut self.settings, Settings::offered(&offers));
                    self.tell_settings(event.seq, &before).await?;
                }
            }
            Body::SessionRenamed(renamed) if shown => {
                let info = json!({"sessionUpdate": "session_info_update", "title": renamed.name});
                self.editor.update(self.id, info.into()).await?;
            }
            Body::SessionCreated(_)
            | Body::SessionStatusChanged(_)
            | Body::SessionRenamed(_)
            | Body::OccupantExited(_)
            | Body::CommandStarted(_)
            | Body::CommandEnded(_)
            | Body::OutputKept(_)
            | Body::SnapshotTaken(_)
            | Body::SnapshotRestored(_)
            | Body::Notice(_)
            | Body::ErrorRaised(_) => {}
        }
        Ok(())
    }

    async fn update(&mut self, update: &AgentUpdate, shown: bool) -> Result<(), End> {
        // It was JSON when it was recorded.
        let Ok(value) = update.update.read::<Value>() else { return Ok(()) };
        self.settings.hear(&value);
        if shown {
            let bytes = update.update.as_str().len();
            self.editor.update(self.id, Update { value, bytes }).await?;
        }
        Ok(())
    }

    async fn prompt_accepted(&mut self, seq: Seq, prompt: &PromptAccepted) -> Result<(), End> {
        let sent = prompt.client_id.as_ref().and_then(|id| self.sent.remove(id));
        if let Some(responder) = sent {
            self.ours.insert(prompt.turn, responder);
            if let Some(note) = self.note.take() {
                let content = json!({"type": "text", "text": note});
                let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": content});
                self.editor.update(self.id, chunk.into()).await?;
            }
        }
        // The editor shows what it sent itself; in a history it shows what it is told.
        if self.is_history(seq) || !self.ours.contains_key(&prompt.turn) {
            self.unseen.insert(prompt.turn, prompt.content.clone());
        }
        Ok(())
    }

    /// In a history, the settings are part of the answer that ends it.
    async fn tell_settings(&mut self, seq: Seq, before: &Settings) -> Result<(), End> {
        if !self.is_history(seq) {
            for change in self.settings.changes(before) {
                self.editor.update(self.id, change.into()).await?;
            }
        }
        Ok(())
    }

    /// Asks the editor, in a task of its own. Dropping that task takes the question back.
    fn ask(&mut self, seq: Seq, request: &PermissionRequested) {
        let (id, server, editor) = (self.id, Arc::clone(&self.server), self.editor.clone());
        let tool_call = request.tool_call.read::<Value>().unwrap_or_default();
        let params = json!({"sessionId": id, "toolCall": tool_call, "options": request.options});
        let question = self.questions.spawn(async move {
            // An editor that cannot ask leaves the question to the other doors.
            let Some(option_id) = editor.ask(params).await else { return };
            let answer = AnswerPermission { option_id };
            let answered = server.call(|client| {
                let answer = answer.clone();
                async move { client.answer(id, seq, &answer).await }
            });
            if let Err(error) = answered.await {
                editor.complain(&format!(
                    "the answer to question {seq} of session {id} was not taken: {error}"
                ));
            }
        });
        self.asked.insert(seq, question);
    }
}
