//! Every call of the REST contract, typed. Each is one exchange; none is repeated by itself, for only the
//! caller knows whether a second `create` would be welcome.

use crate::{Client, Error, Target};
use bytes::Bytes;
use protocol::{
    Agent, AgentName, AnswerPermission, ApiKey, Configure, CreateCredential, CreateKey, CreateSession,
    CreatedKey, Credential, CredentialId, DeployAgent, Event, ForkSession, Health, KeyId, ListSessions,
    Message, Seq, Session, UsageReport,
};
use reqwest::{Body, Method, header::CONTENT_TYPE};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{fs::File, io::Read};

/// How much of what is uploaded is read at a time.
const UPLOAD_PIECE_BYTES: usize = 256 * 1024;

/// One page of a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionPage {
    /// Newest first.
    pub sessions: Vec<Session>,
    /// Give it as `cursor` to get the page after this one.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// The newest of what an agent wrote to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Logs {
    pub text: String,
    /// Bytes that no longer fit.
    #[serde(default)]
    pub dropped: u64,
}

/// Bytes to upload: a tar, or a file's content.
#[derive(Debug)]
pub enum Archive {
    Bytes(Bytes),
    /// Read from where it stands to its end, piece by piece.
    File(File),
}

impl Archive {
    pub(crate) fn into_body(self) -> Body {
        match self {
            Self::Bytes(bytes) => Body::from(bytes),
            Self::File(file) => Body::wrap_stream(pieces(file)),
        }
    }
}

#[derive(Deserialize)]
struct OneSession {
    session: Session,
}

#[derive(Deserialize)]
struct OneAgent {
    agent: Agent,
}

#[derive(Deserialize)]
struct OneCredential {
    credential: Credential,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OneKey {
    api_key: ApiKey,
}

const NO_QUERY: [(&str, &str); 0] = [];

impl Client {
    pub async fn health(&self) -> Result<Health, Error> {
        self.get("/health", &NO_QUERY).await
    }

    /// What the key's tenant has used and stored.
    pub async fn usage(&self) -> Result<UsageReport, Error> {
        self.get("/api/usage", &NO_QUERY).await
    }

    pub async fn create(&self, request: &CreateSession) -> Result<Session, Error> {
        self.post("/api/sessions", request).await.map(|reply: OneSession| reply.session)
    }

    pub async fn sessions(&self, request: &ListSessions) -> Result<SessionPage, Error> {
        self.get("/api/sessions", request).await
    }

    pub async fn session(&self, session: impl Into<Target>) -> Result<Session, Error> {
        let path = format!("/api/sessions/{}", session.into());
        self.get(&path, &NO_QUERY).await.map(|reply: OneSession| reply.session)
    }

    pub async fn pause(&self, session: impl Into<Target>) -> Result<Session, Error> {
        self.turn_to(session.into(), "pause").await
    }

    pub async fn resume(&self, session: impl Into<Target>) -> Result<Session, Error> {
        self.turn_to(session.into(), "resume").await
    }

    /// Stops its processes; the session is paused.
    pub async fn stop(&self, session: impl Into<Target>) -> Result<Session, Error> {
        self.turn_to(session.into(), "stop").await
    }

    /// A new session with the events up to a point.
    pub async fn fork(&self, session: impl Into<Target>, request: &ForkSession) -> Result<Session, Error> {
        let path = format!("/api/sessions/{}/fork", session.into());
        self.post(&path, request).await.map(|reply: OneSession| reply.session)
    }

    /// Cancels the running turn; nothing to cancel is not an error.
    pub async fn cancel(&self, session: impl Into<Target>) -> Result<Session, Error> {
        self.turn_to(session.into(), "cancel").await
    }

    /// Ends it and keeps its history.
    pub async fn end(&self, session: impl Into<Target>) -> Result<Session, Error> {
        let path = format!("/api/sessions/{}", session.into());
        self.act(Method::DELETE, &path).await.map(|reply: OneSession| reply.session)
    }

    /// Ends it and removes session, journal and files. Answers with what it was last.
    pub async fn purge(&self, session: impl Into<Target>) -> Result<Session, Error> {
        let path = format!("/api/sessions/{}?purge=true", session.into());
        self.act(Method::DELETE, &path).await.map(|reply: OneSession| reply.session)
    }

    pub async fn configure(&self, session: impl Into<Target>, request: &Configure) -> Result<Session, Error> {
        let path = format!("/api/sessions/{}/config", session.into());
        let call = self.request(Method::PATCH, &path).json(request);
        self.json(call, self.patience().answer).await.map(|reply: OneSession| reply.session)
    }

    /// Answers the permission request that was event `permission`.
    pub async fn answer(
        &self,
        session: impl Into<Target>,
        permission: Seq,
        answer: &AnswerPermission,
    ) -> Result<Session, Error> {
        let path = format!("/api/sessions/{}/permissions/{permission}", session.into());
        self.post(&path, answer).await.map(|reply: OneSession| reply.session)
    }

    /// One page of events after `after`; empty at the end. The server may give fewer than `limit`.
    pub async fn event_page(
        &self,
        session: impl Into<Target>,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Event>, Error> {
        #[derive(Deserialize)]
        struct Reply {
            events: Vec<Box<RawValue>>,
        }
        let path = format!("/api/sessions/{}/events", session.into());
        let reply: Reply = self.get(&path, &[("after", after), ("limit", limit as u64)]).await?;
        reply.events.iter().map(|raw| Event::parse(raw.get()).map_err(Error::from)).collect()
    }

    /// The history as messages, after the one with sequence `after`.
    pub async fn messages(
        &self,
        session: impl Into<Target>,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Message>, Error> {
        #[derive(Deserialize)]
        struct Reply {
            messages: Vec<Message>,
        }
        let path = format!("/api/sessions/{}/messages", session.into());
        let reply: Reply = self.get(&path, &[("after", after), ("limit", limit as u64)]).await?;
        Ok(reply.messages)
    }

    /// What the agent's process wrote to stderr.
    pub async fn logs(&self, session: impl Into<Target>) -> Result<Logs, Error> {
        let path = format!("/api/sessions/{}/logs", session.into());
        self.get(&path, &NO_QUERY).await
    }

    async fn turn_to(&self, session: Target, verb: &str) -> Result<Session, Error> {
        let path = format!("/api/sessions/{session}/{verb}");
        self.act(Method::POST, &path).await.map(|reply: OneSession| reply.session)
    }
}

impl Client {
    pub async fn deploy(&self, request: &DeployAgent) -> Result<Agent, Error> {
        let call = self.request(Method::POST, "/api/agents").json(request);
        self.json(call, self.patience().upload).await.map(|reply: OneAgent| reply.agent)
    }

    /// Uploads a folder as a plain tar.
    pub async fn deploy_tar(&self, name: &AgentName, archive: Archive) -> Result<Agent, Error> {
        let call = self
            .request(Method::PUT, &format!("/api/agents/{name}"))
            .header(CONTENT_TYPE, "application/x-tar")
            .body(archive.into_body());
        self.json(call, self.patience().upload).await.map(|reply: OneAgent| reply.agent)
    }

    pub async fn agents(&self) -> Result<Vec<Agent>, Error> {
        #[derive(Deserialize)]
        struct Reply {
            agents: Vec<Agent>,
        }
        self.get("/api/agents", &NO_QUERY).await.map(|reply: Reply| reply.agents)
    }

    pub async fn agent(&self, name: &AgentName) -> Result<Agent, Error> {
        self.get(&format!("/api/agents/{name}"), &NO_QUERY).await.map(|reply: OneAgent| reply.agent)
    }

    pub async fn remove_agent(&self, name: &AgentName) -> Result<Agent, Error> {
        let path = format!("/api/agents/{name}");
        self.act(Method::DELETE, &path).await.map(|reply: OneAgent| reply.agent)
    }

    pub async fn create_credential(&self, request: &CreateCredential) -> Result<Credential, Error> {
        self.post("/api/credentials", request).await.map(|reply: OneCredential| reply.credential)
    }

    pub async fn credentials(&self) -> Result<Vec<Credential>, Error> {
        #[derive(Deserialize)]
        struct Reply {
            credentials: Vec<Credential>,
        }
        self.get("/api/credentials", &NO_QUERY).await.map(|reply: Reply| reply.credentials)
    }

    pub async fn remove_credential(&self, id: CredentialId) -> Result<Credential, Error> {
        let path = format!("/api/credentials/{id}");
        self.act(Method::DELETE, &path).await.map(|reply: OneCredential| reply.credential)
    }

    pub async fn create_key(&self, request: &CreateKey) -> Result<CreatedKey, Error> {
        self.post("/api/api-keys", request).await
    }

    pub async fn keys(&self) -> Result<Vec<ApiKey>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Reply {
            api_keys: Vec<ApiKey>,
        }
        self.get("/api/api-keys", &NO_QUERY).await.map(|reply: Reply| reply.api_keys)
    }

    pub async fn remove_key(&self, id: KeyId) -> Result<ApiKey, Error> {
        let path = format!("/api/api-keys/{id}");
        self.act(Method::DELETE, &path).await.map(|reply: OneKey| reply.api_key)
    }
}

/// The file's bytes, read off the async threads.
fn pieces(file: File) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    futures_util::stream::try_unfold(file, |mut file| async move {
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; UPLOAD_PIECE_BYTES];
            let count = file.read(&mut piece)?;
            piece.truncate(count);
            Ok::<_, std::io::Error>((piece, file))
        });
        let (piece, file) = read.await.map_err(std::io::Error::other)??;
        Ok(if piece.is_empty() { None } else { Some((Bytes::from(piece), file)) })
    })
}
