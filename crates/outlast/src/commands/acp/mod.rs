//! `acp`: Outlast as an ACP agent on stdin and stdout, for editors.
//!
//! A thin bridge. The editor's side is the official SDK, the server's side our client; sessions live on the
//! server and outlast the bridge. The SDK hands out messages one by one, so no handler waits: each starts a task
//! and returns. stdout belongs to the protocol; words for people go to stderr.

mod bridge;
mod editor;
mod follower;
mod settings;
mod shape;
mod wire;

use crate::{
    background::Server,
    cli::Acp,
    config::Config,
    exit::{Exit, Failure},
    term::Term,
};
use agent_client_protocol::{
    Agent, Client, Error, JsonRpcResponse, Lines, on_receive_notification, on_receive_request,
    schema::ProtocolVersion,
    v1::{ConnectionTo, Responder, schema},
};
use bridge::Bridge;
use editor::Editor;
use follower::History;
use std::sync::Arc;
use wire::{Ending, Outbox};

pub(crate) async fn acp(asked: &Acp, config: &Config, term: &Term) -> Result<Exit, Failure> {
    let server = Server::find_or_start(config).await?;
    if let Some(remark) = server.remark() {
        term.note(&remark);
    }
    let threads = |error: std::io::Error| Failure::Broken(format!("a thread cannot be started: {error}"));
    let outbox = Outbox::new();
    let incoming = wire::incoming().map_err(threads)?;
    let (outgoing, writer) = wire::outgoing(Arc::clone(&outbox)).map_err(threads)?;
    let door = Door { bridge: Arc::new(Bridge::new(server, asked)), outbox };
    let spoken = door.speak(Lines::new(outgoing, incoming)).await;
    match (spoken, writer.finish().await) {
        (Ok(()), _) | (Err(_), Ending::EditorLeft) => Ok(Exit::Done),
        (Err(error), Ending::Written) => Err(Failure::Broken(format!("the editor's line broke: {error}"))),
    }
}

#[derive(Clone)]
struct Door {
    bridge: Arc<Bridge>,
    outbox: Arc<Outbox>,
}

impl Door {
    /// Answers until the editor closes its end.
    async fn speak(self, line: impl agent_client_protocol::ConnectTo<Agent> + 'static) -> Result<(), Error> {
        let (new, load, resume) = (self.clone(), self.clone(), self.clone());
        let (list, close, mode, option) = (self.clone(), self.clone(), self.clone(), self.clone());
        let (prompt, cancel) = (self.clone(), self);
        Agent
            .v1()
            .name("outlast")
            .on_receive_request(
                async move |_: schema::InitializeRequest, responder, _| responder.respond(introduction()),
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::NewSessionRequest, responder, connection| {
                    let editor = new.editor(&connection);
                    new.run(&connection, responder, async move |bridge| {
                        bridge.new_session(editor, asked).await
                    })
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::LoadSessionRequest, responder, connection| {
                    let editor = load.editor(&connection);
                    load.run(&connection, responder, async move |bridge| {
                        bridge.open(editor, &asked.session_id, History::Shown).await
                    })
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::ResumeSessionRequest, responder, connection| {
                    let editor = resume.editor(&connection);
                    resume.run(&connection, responder, async move |bridge| {
                        bridge.open(editor, &asked.session_id, History::Read).await
                    })
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::ListSessionsRequest, responder, connection| {
                    list.run(&connection, responder, async move |bridge| bridge.list(asked).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::CloseSessionRequest, responder, connection| {
                    close.run(&connection, responder, async move |bridge| {
                        bridge.close(&asked.session_id).await
                    })
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::SetSessionModeRequest, responder, connection| {
                    mode.run(&connection, responder, async move |bridge| bridge.set_mode(&asked).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::SetSessionConfigOptionRequest, responder, connection| {
                    option.run(&connection, responder, async move |bridge| bridge.set_option(&asked).await)
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |asked: schema::PromptRequest, responder, _| {
                    prompt.bridge.prompt(&asked, responder)
                },
                on_receive_request!(),
            )
            .on_receive_notification(
                async move |asked: schema::CancelNotification, _| {
                    cancel.bridge.cancel(&asked.session_id);
                    Ok(())
                },
                on_receive_notification!(),
            )
            .connect_to(line)
            .await
    }

    fn editor(&self, connection: &ConnectionTo<Client>) -> Editor {
        Editor::new(connection.clone(), Arc::clone(&self.outbox))
    }

    /// Does the work of a call beside the SDK's loop, and answers.
    fn run<T, F>(
        &self,
        connection: &ConnectionTo<Client>,
        responder: Responder<T>,
        work: impl FnOnce(Arc<Bridge>) -> F + Send + 'static,
    ) -> Result<(), Error>
    where
        T: JsonRpcResponse,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let bridge = Arc::clone(&self.bridge);
        connection.spawn(async move {
            let result = match bridge.admit() {
                Ok(_admitted) => work(Arc::clone(&bridge)).await,
                Err(error) => Err(error),
            };
            responder.respond_with_result(result)
        })
    }
}

/// What Outlast says of itself. The hosted agent's own capabilities are known only once a session is there, so
/// these are those of the server: what it passes on.
fn introduction() -> schema::InitializeResponse {
    let sessions = schema::SessionCapabilities::new()
        .list(schema::SessionListCapabilities::new())
        .resume(schema::SessionResumeCapabilities::new())
        .close(schema::SessionCloseCapabilities::new());
    let capabilities = schema::AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(schema::PromptCapabilities::new().image(true).embedded_context(true))
        .mcp_capabilities(schema::McpCapabilities::new().http(true))
        .session_capabilities(sessions);
    schema::InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(schema::Implementation::new("outlast", env!("CARGO_PKG_VERSION")).title("Outlast"))
}
