//! Containers by their engine's own interface, over its socket: Docker's, and Podman's that speaks like it.
//!
//! Only four calls are made: look at a container, make an exec in it, start that with its streams on the connection,
//! and none to change anything. Paths carry no version, because engines drop old ones.

mod frames;

use super::{
    Docker, RemoteError,
    channel::{self, Channel, Complaints, NotBegun},
};
use frames::Frames;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE},
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWrite},
    net::{UnixStream, unix::OwnedReadHalf},
};

/// How long the engine has to answer. Starting an exec takes it a twentieth of a second.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest answer that is read.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// The state of a container whose processes are there and stand still.
pub(crate) const PAUSED: &str = "paused";

/// A running container, and as whom it is entered.
#[derive(Debug)]
pub(crate) struct Container {
    target: Docker,
    id: String,
}

impl Container {
    pub(crate) async fn find(target: &Docker) -> Result<Arc<Self>, RemoteError> {
        let path = format!("/containers/{}/json", target.container);
        let (status, answer) = ask(&target.socket, Method::GET, &path, None).await?;
        let missing = || RemoteError::NoContainer(target.container.clone());
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(missing()),
            _ => return Err(refused(&target.container, &answer)),
        }
        let state = &answer["State"];
        let is = |what: &str| state[what].as_bool().unwrap_or(false);
        if !is("Running") || is("Paused") {
            let state = state["Status"].as_str().unwrap_or("not running").to_owned();
            return Err(RemoteError::NotRunning { container: target.container.clone(), state });
        }
        let id = answer["Id"].as_str().ok_or_else(missing)?.to_owned();
        Ok(Arc::new(Self { target: target.clone(), id }))
    }

    pub(crate) fn whom(&self) -> String {
        format!("the container {}", self.target.container)
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Runs a script in the container.
    pub(crate) async fn open(&self, script: &str) -> Result<Channel, RemoteError> {
        let exec = self.exec(script).await?;
        let (read, write) = self.start(&exec).await?;
        let complaints = Complaints::default();
        let read = Frames::new(read, complaints.clone());
        let not = match channel::begun(read, write, None, complaints.clone()).await {
            Ok(channel) => return Ok(channel),
            Err((not, _)) => not,
        };
        let whom = self.whom();
        match not {
            NotBegun::TimedOut => {
                let why = "the engine runs nothing in it".to_owned();
                Err(RemoteError::Broken { whom, why })
            }
            NotBegun::Ended { said } => Err(self.not_run(&[said, complaints.text()].join(" "))),
        }
    }

    async fn exec(&self, script: &str) -> Result<String, RemoteError> {
        let mut order = json!({
            "AttachStdin": true, "AttachStdout": true, "AttachStderr": true, "Tty": false,
            "Cmd": ["sh", "-c", script],
        });
        if let Some(user) = &self.target.user {
            order["User"] = json!(user);
        }
        if let Some(workdir) = &self.target.workdir {
            order["WorkingDir"] = json!(workdir);
        }
        let path = format!("/containers/{}/exec", self.id);
        let (status, answer) = ask(&self.target.socket, Method::POST, &path, Some(&order)).await?;
        match (status, answer["Id"].as_str()) {
            (StatusCode::CREATED, Some(id)) => Ok(id.to_owned()),
            (StatusCode::NOT_FOUND, _) => Err(RemoteError::NoContainer(self.target.container.clone())),
            (StatusCode::CONFLICT, _) => {
                let (container, state) = (self.target.container.clone(), "not running".to_owned());
                Err(RemoteError::NotRunning { container, state })
            }
            _ => Err(refused(&self.whom(), &answer)),
        }
    }

    /// Starts an exec; the connection is its streams from then on.
    async fn start(
        &self,
        exec: &str,
    ) -> Result<
        (impl tokio::io::AsyncRead + Send + Unpin + use<>, Box<dyn AsyncWrite + Send + Unpin>),
        RemoteError,
    > {
        let path = format!("/exec/{exec}/start");
        let order = json!({ "Detach": false, "Tty": false });
        let broken = |why: String| RemoteError::Broken { whom: self.whom(), why };
        let response = tokio::time::timeout(ANSWER, async {
            let request = request(Method::POST, &path, Some(&order))
                .header(CONNECTION, "Upgrade")
                .header(UPGRADE, "tcp");
            send(&self.target.socket, request, Some(&order)).await
        });
        let response = response.await.map_err(|_| broken("the engine does not answer".to_owned()))??;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let answer = body(response).await.map_err(broken)?;
            return Err(self.not_run(message(&answer)));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| broken(error.to_string()))?;
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .map_err(|_| broken("the engine's connection is not a socket".to_owned()))?;
        let (read, write) = parts.io.into_inner().into_split();
        let ahead = io::Cursor::new(parts.read_buf);
        let read: tokio::io::Chain<io::Cursor<Bytes>, OwnedReadHalf> = ahead.chain(read);
        Ok((read, Box::new(write)))
    }

    /// Why the engine did not run the script.
    fn not_run(&self, said: &str) -> RemoteError {
        let (whom, why) = (self.whom(), said.trim().to_owned());
        let no_shell = ["executable file not found", "no such file or directory", "exec: \"sh\""];
        if no_shell.iter().any(|part| why.contains(part)) && !why.contains("chdir") && !why.contains("user") {
            return RemoteError::NoShell { whom, why };
        }
        if why.contains("is not running") || why.contains("is paused") {
            let container = self.target.container.clone();
            return RemoteError::NotRunning { container, state: "not running".to_owned() };
        }
        RemoteError::Refused { whom, why }
    }
}

fn message(answer: &Value) -> &str {
    answer["message"].as_str().unwrap_or("the engine gave no reason")
}

fn refused(whom: &str, answer: &Value) -> RemoteError {
    RemoteError::Refused { whom: whom.to_owned(), why: message(answer).to_owned() }
}

fn request(method: Method, path: &str, order: Option<&Value>) -> hyper::http::request::Builder {
    let request = Request::builder().method(method).uri(path).header(HOST, "engine");
    match order {
        Some(_) => request.header(CONTENT_TYPE, "application/json"),
        None => request,
    }
}

async fn ask(
    socket: &Path,
    method: Method,
    path: &str,
    order: Option<&Value>,
) -> Result<(StatusCode, Value), RemoteError> {
    let no_engine = |source: io::Error| RemoteError::NoEngine { socket: PathBuf::from(socket), source };
    let asked = async {
        let response = send(socket, request(method, path, order), order).await?;
        let status = response.status();
        let answer = body(response).await.map_err(|why| no_engine(io::Error::other(why)))?;
        Ok((status, answer))
    };
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(no_engine(io::ErrorKind::TimedOut.into())),
    }
}

/// One request on a connection of its own.
async fn send(
    socket: &Path,
    request: hyper::http::request::Builder,
    order: Option<&Value>,
) -> Result<Response<Incoming>, RemoteError> {
    let no_engine = |source: io::Error| RemoteError::NoEngine { socket: PathBuf::from(socket), source };
    let stream = UnixStream::connect(socket).await.map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => {
            RemoteError::NoPermission { socket: PathBuf::from(socket), source }
        }
        _ => no_engine(source),
    })?;
    let bytes = order.map(|order| Bytes::from(order.to_string())).unwrap_or_default();
    let request = request.body(Full::new(bytes)).map_err(|error| no_engine(io::Error::other(error)))?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| no_engine(io::Error::other(error)))?;
    // It ends with the connection: when the answer is read, or its streams are handed on.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a container engine ended");
        }
    });
    sender.send_request(request).await.map_err(|error| no_engine(io::Error::other(error)))
}

async fn body(response: Response<Incoming>) -> Result<Value, String> {
    let read = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
    let bytes = read.map_err(|error| error.to_string())?.to_bytes();
    // Not every refusal is in JSON.
    Ok(serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| json!({ "message": String::from_utf8_lossy(&bytes).trim() })))
}
