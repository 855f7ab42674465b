//! What each call of an editor does: one method for each of ACP's, on sessions that live on the server. It keeps
//! which sessions this editor has open, and nothing else.

use super::{
    editor::Editor,
    follower::{ASKS, Ask, Follower, History},
    settings::{Setting, Settings},
    shape::{self, failed, invalid},
};
use crate::{background::Server, cli::Acp};
use agent_client_protocol::{
    Error,
    v1::{Responder, schema},
};
use client::Client;
use protocol::{
    AgentName, Configure, CreateSession, ListSessions, OnBusy, PlaceKind, SendMessage, Session, SessionId,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit, mpsc, oneshot},
    task::JoinHandle,
};

/// Calls of one editor that may be under way at once, prompts apart.
const CALLS: usize = 64;
/// Sessions that one editor may have open.
const OPEN_SESSIONS: usize = 256;
/// Prompts and cancels that wait to be sent.
const ERRANDS: usize = 32;
/// Sessions in one page of a list.
const LIST_PAGE: usize = 50;
/// How long a session that is closed may take to answer its prompts.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
const DEMO: &str = "demo";

pub(super) struct Bridge {
    server: Arc<Server>,
    agent: Option<AgentName>,
    place: PlaceKind,
    open: Mutex<HashMap<SessionId, Open>>,
    calls: Semaphore,
}

/// A session that the editor has open. Its tasks end when it is dropped.
struct Open {
    asks: mpsc::Sender<Ask>,
    errands: mpsc::Sender<Errand>,
    _tasks: [Task; 2],
}

/// A task that ends with its owner.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What must reach the server in the editor's order.
enum Errand {
    Prompt(Box<Prompt>),
    Cancel,
}

struct Prompt {
    message: SendMessage,
    responder: Responder<schema::PromptResponse>,
}

impl Bridge {
    pub(super) fn new(server: Server, asked: &Acp) -> Self {
        Self {
            server: Arc::new(server),
            agent: asked.agent.clone(),
            place: asked.place,
            open: Mutex::default(),
            calls: Semaphore::new(CALLS),
        }
    }

    /// Room for one more call.
    pub(super) fn admit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.calls.try_acquire().map_err(|_| failed("too many calls are under way; wait for an answer"))
    }

    pub(super) async fn new_session(
        &self,
        editor: Editor,
        asked: schema::NewSessionRequest,
    ) -> Result<schema::NewSessionResponse, Error> {
        self.check_room()?;
        // A create is not repeated, so the server is looked for first.
        self.server.renew().await.map_err(|failure| failed(failure.to_string()))?;
        let client = self.server.client();
        let request = CreateSession {
            agent: self.agent(&client).await?,
            model: None,
            mcp_servers: shape::mcp_servers(asked.mcp_servers)?,
            system_prompt: None,
            additional_instructions: None,
            credential_id: None,
            extra_env: None,
            name: None,
            place: Some(self.place),
            sandbox: None,
            cwd: match self.place {
                PlaceKind::Host => Some(shape::text(&asked.cwd)?),
                PlaceKind::Sandbox | PlaceKind::Project | PlaceKind::Ssh | PlaceKind::Docker => None,
            },
            policy: None,
        };
        let session = client.create(&request).await.map_err(|error| self.not_made(&error))?;
        let note = (self.place == PlaceKind::Sandbox).then(|| sandbox_note(&asked.cwd));
        self.attach(&session, editor, History::Read, note);
        let mut fields = self.settings_at(&session).await?.fields();
        fields["sessionId"] = json!(session.id);
        typed(fields)
    }

    /// `session/load` and `session/resume`: the same, with and without the history.
    pub(super) async fn open<T: DeserializeOwned>(
        &self,
        editor: Editor,
        named: &schema::SessionId,
        history: History,
    ) -> Result<T, Error> {
        let id = session_id(named)?;
        let session = self.call(move |client| async move { client.session(id).await }).await?;
        let attached =
            self.sessions().get(&id).map(|open| open.asks.clone()).filter(|asks| !asks.is_closed());
        match (attached, history) {
            (None, _) => {
                self.check_room()?;
                self.attach(&session, editor, history, None);
            }
            (Some(_), History::Read) => {}
            (Some(asks), History::Shown) => {
                let after = session.first_seq.saturating_sub(1);
                let again = Ask::Again { after, until: session.last_seq };
                asks.send(again).await.map_err(|_| lost())?;
            }
        }
        typed(self.settings_at(&session).await?.fields())
    }

    pub(super) async fn list(
        &self,
        asked: schema::ListSessionsRequest,
    ) -> Result<schema::ListSessionsResponse, Error> {
        let request =
            ListSessions { limit: Some(LIST_PAGE), cursor: asked.cursor, ..ListSessions::default() };
        let page = self
            .call(|client| {
                let request = request.clone();
                async move { client.sessions(&request).await }
            })
            .await?;
        let folder = asked.cwd.as_deref();
        let listed = page.sessions.iter().filter_map(|session| shape::listed(session, folder)).collect();
        Ok(schema::ListSessionsResponse::new(listed).next_cursor(page.next_cursor))
    }

    /// Frees what the session holds, and keeps it: it can be loaded again, here and elsewhere.
    pub(super) async fn close(
        &self,
        named: &schema::SessionId,
    ) -> Result<schema::CloseSessionResponse, Error> {
        let id = session_id(named)?;
        self.call(move |client| async move { client.cancel(id).await }).await?;
        let stopped = self.call(move |client| async move { client.stop(id).await }).await;
        match stopped {
            // A prompt that was cancelled by this still gets its answer.
            Ok(session) => drop(tokio::time::timeout(LAST_ANSWERS, self.settings_at(&session)).await),
            // At rest already, or ended.
            Err(error) if error.code.value() == -32602 || error.code.value() == -32002 => {}
            Err(error) => return Err(error),
        }
        self.sessions().remove(&id);
        Ok(schema::CloseSessionResponse::new())
    }

    pub(super) async fn set_mode(
        &self,
        asked: &schema::SetSessionModeRequest,
    ) -> Result<schema::SetSessionModeResponse, Error> {
        let id = session_id(&asked.session_id)?;
        self.configure(id, Setting::Mode.change(asked.mode_id.to_string())).await?;
        Ok(schema::SetSessionModeResponse::new())
    }

    pub(super) async fn set_option(
        &self,
        asked: &schema::SetSessionConfigOptionRequest,
    ) -> Result<schema::SetSessionConfigOptionResponse, Error> {
        let id = session_id(&asked.session_id)?;
        let value =
            asked.value.as_value_id().ok_or_else(|| invalid("the value must be one of those offered"))?;
        let option = asked.config_id.to_string();
        let setting = self.settings(id, 0).await?.setting(&option);
        let setting = setting.ok_or_else(|| invalid(format!("the session has no option {option:?}")))?;
        let session = self.configure(id, setting.change(value.to_string())).await?;
        let mut fields = self.settings_at(&session).await?.fields();
        if fields.get("configOptions").is_none() {
            fields["configOptions"] = json!([]);
        }
        typed(fields)
    }

    /// Sent behind what this editor sent before; the follower answers when the turn has ended.
    pub(super) fn prompt(
        &self,
        asked: &schema::PromptRequest,
        responder: Responder<schema::PromptResponse>,
    ) -> Result<(), Error> {
        let message = session_id(&asked.session_id).and_then(|id| {
            let message = SendMessage {
                content: shape::content(&asked.prompt)?,
                id: Some(uuid::Uuid::new_v4().to_string()),
                on_busy: OnBusy::Queue,
                model: None,
                include_partial_messages: true,
                max_turns: None,
                max_budget_usd: None,
            };
            Ok((self.errands(id)?, message))
        });
        let (errands, message) = match message {
            Ok(message) => message,
            Err(error) => return responder.respond_with_error(error),
        };
        match errands.try_send(Errand::Prompt(Box::new(Prompt { message, responder }))) {
            Ok(()) => Ok(()),
            Err(
                mpsc::error::TrySendError::Full(Errand::Prompt(prompt))
                | mpsc::error::TrySendError::Closed(Errand::Prompt(prompt)),
            ) => prompt
                .responder
                .respond_with_error(failed("too many prompts are waiting; wait for an answer")),
            Err(_) => Ok(()),
        }
    }

    pub(super) fn cancel(&self, named: &schema::SessionId) {
        if let Ok(errands) = session_id(named).and_then(|id| self.errands(id)) {
            // A full queue has prompts that were never sent; their senders learn of it.
            let _ = errands.try_send(Errand::Cancel);
        }
    }

    fn attach(&self, session: &Session, editor: Editor, history: History, note: Option<String>) {
        let (asks, asked) = mpsc::channel(ASKS);
        let (errands, sent) = mpsc::channel(ERRANDS);
        let follower = Follower::new(session, Arc::clone(&self.server), editor.clone(), asked, history, note);
        let running = run_errands(session.id, Arc::clone(&self.server), editor, asks.clone(), sent);
        let tasks = [tokio::spawn(follower.run()), tokio::spawn(running)].map(Task);
        self.sessions().insert(session.id, Open { asks, errands, _tasks: tasks });
    }

    async fn configure(&self, id: SessionId, change: Configure) -> Result<Session, Error> {
        self.call(move |client| {
            let change = change.clone();
            async move { client.configure(id, &change).await }
        })
        .await
    }

    /// The settings as they are once everything up to the session's last event has been seen.
    async fn settings_at(&self, session: &Session) -> Result<Settings, Error> {
        self.settings(session.id, session.last_seq).await
    }

    async fn settings(&self, id: SessionId, seq: protocol::Seq) -> Result<Settings, Error> {
        let asks = self.sessions().get(&id).map(|open| open.asks.clone()).ok_or_else(not_open)?;
        let (reply, settings) = oneshot::channel();
        asks.send(Ask::At { seq, reply }).await.map_err(|_| lost())?;
        settings.await.map_err(|_| lost())
    }

    async fn call<T, F>(&self, call: impl Fn(Client) -> F + Send) -> Result<T, Error>
    where
        F: Future<Output = Result<T, client::Error>> + Send,
    {
        self.server.call(call).await.map_err(|error| shape::refusal(&error))
    }

    /// The agent that was named, else the only one there is.
    async fn agent(&self, client: &Client) -> Result<AgentName, Error> {
        if let Some(agent) = &self.agent {
            return Ok(agent.clone());
        }
        let agents = client.agents().await.map_err(|error| shape::refusal(&error))?;
        let (demo, others): (Vec<_>, Vec<_>) =
            agents.into_iter().map(|agent| agent.name).partition(|name| name.as_str() == DEMO);
        match (others.as_slice(), demo.into_iter().next()) {
            ([only], _) => Ok(only.clone()),
            ([], Some(demo)) => Ok(demo),
            ([], None) => Err(failed("no agent is deployed; run `outlast agent add NAME` first")),
            (several, _) => {
                let names: Vec<_> = several.iter().map(AgentName::as_str).collect();
                Err(failed(format!(
                    "several agents are deployed; name one in the editor's settings with `--agent NAME`: {}",
                    names.join(", ")
                )))
            }
        }
    }

    fn not_made(&self, error: &client::Error) -> Error {
        let refusal = shape::refusal(error);
        if self.place == PlaceKind::Host && error.status() == Some(403) {
            let hint = "start the bridge with `--place sandbox` in the editor's settings to work in a sandbox instead";
            return Error::new(refusal.code.value(), format!("{}; {hint}", refusal.message));
        }
        refusal
    }

    fn check_room(&self) -> Result<(), Error> {
        let mut open = self.sessions();
        open.retain(|_, open| !open.asks.is_closed());
        if open.len() < OPEN_SESSIONS {
            return Ok(());
        }
        Err(failed(format!("{OPEN_SESSIONS} sessions are open; close one first")))
    }

    fn errands(&self, id: SessionId) -> Result<mpsc::Sender<Errand>, Error> {
        self.sessions().get(&id).map(|open| open.errands.clone()).ok_or_else(not_open)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends prompts and cancels one after another, so that a cancel finds the prompt that came before it.
async fn run_errands(
    id: SessionId,
    server: Arc<Server>,
    editor: Editor,
    asks: mpsc::Sender<Ask>,
    mut errands: mpsc::Receiver<Errand>,
) {
    while let Some(errand) = errands.recv().await {
        match errand {
            Errand::Prompt(prompt) => {
                let Prompt { message, responder } = *prompt;
                let name = message.id.clone().unwrap_or_default();
                let announced = asks.send(Ask::Prompt { id: name.clone(), responder }).await;
                if let Err(mpsc::error::SendError(ask)) = announced {
                    if let Ask::Prompt { responder, .. } = ask {
                        let _ = responder.respond_with_error(lost());
                    }
                    continue;
                }
                let sent = server.call(|client| {
                    let message = message.clone();
                    async move { client.send(id, message).await }
                });
                if let Err(error) = sent.await {
                    let _ = asks.send(Ask::Refused { id: name, error }).await;
                }
            }
            Errand::Cancel => {
                let cancelled = server.call(move |client| async move { client.cancel(id).await });
                if let Err(error) = cancelled.await {
                    editor.complain(&format!("session {id} was not cancelled: {error}"));
                }
            }
        }
    }
}

fn session_id(named: &schema::SessionId) -> Result<SessionId, Error> {
    let unknown = |_| Error::new(-32002, format!("no session is called {:?}", named.to_string()));
    named.to_string().parse().map_err(unknown)
}

fn not_open() -> Error {
    Error::new(-32002, "this editor has not opened the session; load or resume it first")
}

fn lost() -> Error {
    failed("the session was closed or removed, or the server stays away; load it again")
}

fn typed<T: DeserializeOwned>(fields: Value) -> Result<T, Error> {
    serde_json::from_value(fields)
        .map_err(|error| failed(format!("the agent's settings cannot be shown: {error}")))
}

fn sandbox_note(folder: &Path) -> String {
    format!(
        "*This agent works in a sandbox with files of its own and does not see {}. Leave out `--place sandbox` in \
         the editor's settings to let it work there, or move files with `outlast files`.*\n\n",
        folder.display()
    )
}
