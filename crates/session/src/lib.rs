//! Lifecycle, admission, the session task, recovery, reaping, agents, credentials, keys.
//! SKELETON: signatures only; the session room's owner replaces the bodies.
#![allow(unused, missing_debug_implementations, clippy::todo, clippy::unused_async, reason = "skeleton")]

pub use journal::{Batch, Follower, Page, ReadError, StoredEvent};
use protocol::*;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Who is asking, once a key was recognised.
#[derive(Debug, Clone)]
pub struct Caller {
    pub tenant: Tenant,
    pub key: KeyId,
    pub scope: Scope,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub data: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("skeleton")]
pub struct OpenError;

/// Every session of this server. A cheap handle.
#[derive(Clone)]
pub struct Sessions;

#[derive(Debug, Clone)]
pub struct SessionList {
    pub sessions: Vec<Session>,
    pub next_cursor: Option<String>,
}

/// The newest lines of an agent's stderr.
#[derive(Debug, Clone)]
pub struct Logs {
    pub text: String,
    /// Bytes that no longer fit.
    pub dropped: u64,
}

/// Numbers for `/metrics`.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub live_sessions: usize,
    pub events: u64,
    pub commits: u64,
    pub turns: u64,
}

impl Sessions {
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        todo!()
    }
    /// Stops accepting, ends what runs with `grace`, closes the journal.
    pub async fn shutdown(&self, grace: Duration) {
        todo!()
    }
    /// In memory, constant time per key.
    pub fn authenticate(&self, key: &str) -> Option<Caller> {
        todo!()
    }
    pub fn health(&self) -> Health {
        todo!()
    }
    pub fn figures(&self) -> Figures {
        todo!()
    }

    pub async fn create(&self, caller: &Caller, request: CreateSession) -> Result<Session, Fault> {
        todo!()
    }
    pub async fn list(&self, caller: &Caller, request: ListSessions) -> Result<SessionList, Fault> {
        todo!()
    }
    pub async fn get(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        todo!()
    }
    pub async fn pause(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        todo!()
    }
    pub async fn resume(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        todo!()
    }
    /// Stops its processes; the session is paused.
    pub async fn stop(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        todo!()
    }
    pub async fn end(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        todo!()
    }
    /// Ends it and removes session, journal and files. Returns it as it was last.
    pub async fn remove(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        todo!()
    }
    /// Durable when it returns.
    pub async fn send(
        &self,
        caller: &Caller,
        session: &SessionRef,
        message: SendMessage,
    ) -> Result<Accepted, Fault> {
        todo!()
    }
    /// Cancels the running turn; nothing to cancel is not an error.
    pub async fn cancel(&self, caller: &Caller, session: &SessionRef) -> Result<Session, Fault> {
        todo!()
    }
    pub async fn configure(
        &self,
        caller: &Caller,
        session: &SessionRef,
        request: Configure,
    ) -> Result<Session, Fault> {
        todo!()
    }
    pub async fn answer(
        &self,
        caller: &Caller,
        session: &SessionRef,
        permission: Seq,
        answer: AnswerPermission,
    ) -> Result<Session, Fault> {
        todo!()
    }
    pub async fn events(
        &self,
        caller: &Caller,
        session: &SessionRef,
        after: Seq,
        limit: usize,
    ) -> Result<(SessionId, Page), Fault> {
        todo!()
    }
    pub async fn follow(
        &self,
        caller: &Caller,
        session: &SessionRef,
        after: Seq,
    ) -> Result<(SessionId, Follower), Fault> {
        todo!()
    }
    pub async fn messages(
        &self,
        caller: &Caller,
        session: &SessionRef,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Message>, Fault> {
        todo!()
    }
    pub async fn logs(&self, caller: &Caller, session: &SessionRef) -> Result<Logs, Fault> {
        todo!()
    }

    pub async fn deploy(&self, caller: &Caller, request: DeployAgent) -> Result<Agent, Fault> {
        todo!()
    }
    /// `archive` is a tar, plain, on this machine's disk.
    pub async fn deploy_tar(&self, caller: &Caller, name: AgentName, archive: &Path) -> Result<Agent, Fault> {
        todo!()
    }
    pub async fn agents(&self, caller: &Caller) -> Result<Vec<Agent>, Fault> {
        todo!()
    }
    pub async fn agent(&self, caller: &Caller, name: &AgentName) -> Result<Agent, Fault> {
        todo!()
    }
    pub async fn remove_agent(&self, caller: &Caller, name: &AgentName) -> Result<Agent, Fault> {
        todo!()
    }

    pub async fn create_credential(
        &self,
        caller: &Caller,
        request: CreateCredential,
    ) -> Result<Credential, Fault> {
        todo!()
    }
    pub async fn credentials(&self, caller: &Caller) -> Result<Vec<Credential>, Fault> {
        todo!()
    }
    pub async fn remove_credential(&self, caller: &Caller, id: CredentialId) -> Result<Credential, Fault> {
        todo!()
    }

    pub async fn create_key(&self, caller: &Caller, request: CreateKey) -> Result<CreatedKey, Fault> {
        todo!()
    }
    pub async fn keys(&self, caller: &Caller) -> Result<Vec<ApiKey>, Fault> {
        todo!()
    }
    pub async fn remove_key(&self, caller: &Caller, id: KeyId) -> Result<ApiKey, Fault> {
        todo!()
    }
}
