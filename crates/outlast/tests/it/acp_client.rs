//! An editor for tests: the official SDK's client over the pipes of a real `outlast acp`.

use crate::kit::PROGRAM;
use agent_client_protocol::{
    Agent, Client, Error, Lines, on_receive_notification, on_receive_request,
    schema::ProtocolVersion,
    v1::{ConnectionTo, Responder, schema},
};
use futures_util::{sink, stream};
use serde_json::Value;
use std::{fs, path::Path, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

/// What an editor waits for at most.
const WAIT: Duration = Duration::from_secs(60);

/// A question as it came, and the way to answer it.
pub(crate) type Question = (schema::RequestPermissionRequest, Responder<schema::RequestPermissionResponse>);

pub(crate) struct Editor {
    pub(crate) agent: ConnectionTo<Agent>,
    updates: mpsc::UnboundedReceiver<schema::SessionNotification>,
    questions: mpsc::UnboundedReceiver<Question>,
    leave: oneshot::Sender<()>,
    speaking: JoinHandle<Result<(), Error>>,
    child: Child,
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
fn start(data: &Path, args: &[&str], env: &[(&str, &str)]) -> Child {
    let mut command = Command::new(PROGRAM);
    command.arg("acp").args(args).arg("--data").arg(data).envs(env.iter().copied());
    command.env("OUTLAST_ORPHAN_SECS", "30").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

impl Editor {
    /// An editor that has shaken hands with the bridge of a data folder.
    pub(crate) async fn open(data: &Path, args: &[&str]) -> Self {
        Self::open_with(data, args, &[]).await
    }

    pub(crate) async fn open_with(data: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = start(data, args, env);
        let outgoing = sink::unfold(child.stdin.take().unwrap(), async |mut stdin, line: String| {
            stdin.write_all(format!("{line}\n").as_bytes()).await?;
            stdin.flush().await?;
            Ok::<_, std::io::Error>(stdin)
        });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let incoming = stream::unfold(lines, async |mut lines| {
            let line = lines.next_line().await.transpose()?;
            Some((line, lines))
        });
        let (update, updates) = mpsc::unbounded_channel();
        let (question, questions) = mpsc::unbounded_channel();
        let (ready, connected) = oneshot::channel();
        let (leave, left) = oneshot::channel::<()>();
        let editor = Client
            .v1()
            .on_receive_notification(
                async move |told: schema::SessionNotification, _| {
                    let _ = update.send(told);
                    Ok(())
                },
                on_receive_notification!(),
            )
            .on_receive_request(
                async move |asked: schema::RequestPermissionRequest, responder, _| {
                    let _ = question.send((asked, responder));
                    Ok(())
                },
                on_receive_request!(),
            );
        let transport = Lines::new(Box::pin(outgoing), Box::pin(incoming));
        let speaking =
            tokio::spawn(editor.connect_with(transport, async move |agent: ConnectionTo<Agent>| {
                let _ = ready.send(agent);
                let _ = left.await;
                Ok(())
            }));
        let agent = within(connected).await.unwrap();
        let editor = Self { agent, updates, questions, leave, speaking, child };
        let hello = editor.ask(schema::InitializeRequest::new(ProtocolVersion::V1)).await.unwrap();
        assert!(hello.agent_capabilities.load_session);
        assert_eq!(hello.agent_info.unwrap().name, "outlast");
        editor
    }

    pub(crate) async fn ask<R>(&self, request: R) -> Result<R::Response, Error>
    where
        R: agent_client_protocol::JsonRpcRequest,
        R::Response: Send,
    {
        within(self.agent.send_request(request).block_task()).await
    }

    /// A new session in a folder; its id.
    pub(crate) async fn session(&self, folder: &Path) -> schema::SessionId {
        self.ask(schema::NewSessionRequest::new(folder)).await.unwrap().session_id
    }

    pub(crate) async fn prompt(
        &self,
        session: &schema::SessionId,
        text: &str,
    ) -> Result<schema::StopReason, Error> {
        Ok(self.ask(said(session, text)).await?.stop_reason)
    }

    /// A prompt under way.
    pub(crate) fn begin(
        &self,
        session: &schema::SessionId,
        text: &str,
    ) -> JoinHandle<Result<schema::StopReason, Error>> {
        let prompt = self.agent.send_request(said(session, text));
        tokio::spawn(async move { Ok(within(prompt.block_task()).await?.stop_reason) })
    }

    pub(crate) async fn update(&mut self) -> Value {
        let told = within(self.updates.recv()).await.expect("the bridge is gone");
        serde_json::to_value(told.update).unwrap()
    }

    /// Updates up to the one that fits.
    pub(crate) async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = vec![];
        loop {
            seen.push(self.update().await);
            if fits(&seen[seen.len() - 1]) {
                return seen;
            }
        }
    }

    /// What came so far.
    pub(crate) fn updates(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.updates.try_recv().ok())
            .map(|told| serde_json::to_value(told.update).unwrap())
            .collect()
    }

    pub(crate) async fn question(&mut self) -> Question {
        within(self.questions.recv()).await.expect("the bridge is gone")
    }

    /// Closes the editor's end, and waits until the bridge has ended well.
    pub(crate) async fn close(mut self) {
        let _ = self.leave.send(());
        within(self.speaking).await.unwrap().unwrap();
        let status = within(self.child.wait()).await.unwrap();
        assert!(status.success(), "{status}");
    }
}

pub(crate) fn said(session: &schema::SessionId, text: &str) -> schema::PromptRequest {
    schema::PromptRequest::new(session.clone(), vec![text.into()])
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT, work).await.expect("not within the limit")
}

/// All text of one kind of chunk.
pub(crate) fn text(updates: &[Value], kind: &str) -> String {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == kind);
    chunks.map(|update| update["content"]["text"].as_str().unwrap_or_default()).collect()
}

pub(crate) fn agent_text(updates: &[Value]) -> String {
    text(updates, "agent_message_chunk")
}

pub(crate) fn select(
    question: &schema::RequestPermissionRequest,
    at: usize,
) -> schema::RequestPermissionResponse {
    let chosen = schema::SelectedPermissionOutcome::new(question.options[at].option_id.clone());
    schema::RequestPermissionResponse::new(schema::RequestPermissionOutcome::Selected(chosen))
}

/// A data folder on which bridges start servers of their own; what is left of them ends with it.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("outlast-test-").tempdir().unwrap())
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.0.path().join("data")
    }

    /// What the server wrote about itself, if one runs.
    pub(crate) fn running(&self) -> Option<Value> {
        let text = fs::read_to_string(self.data().join("server.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        let pid = self.running().expect("a server")["pid"].as_i64().unwrap();
        rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    /// SIGKILL to the server, and waits until it is gone.
    pub(crate) async fn kill(&self) {
        let pid = self.pid();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        within(async {
            while alive(pid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    pub(crate) fn http(&self) -> crate::kit::Http {
        let url = self.running().expect("a server")["url"].as_str().unwrap().to_owned();
        let address = url.strip_prefix("http://").unwrap().parse().unwrap();
        let key = fs::read_to_string(self.data().join("api-key")).unwrap();
        crate::kit::Http::new(address, Some(key.trim().to_owned()))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.data().join("server.log")).unwrap_or_default()
    }
}

/// A process that has not ended; one that waits for its parent to notice has.
pub(crate) fn alive(pid: rustix::process::Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(pid) = self.running().and_then(|running| running["pid"].as_i64())
            && let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)
            && fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero()))
                .is_ok_and(|line| line.contains(&*self.data().to_string_lossy()))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        testkit::end_below(self.0.path());
        if std::thread::panicking() {
            eprintln!("---- the server's log ----\n{}", self.log());
        }
    }
}
