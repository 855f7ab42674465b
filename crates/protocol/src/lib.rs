//! Everything that crosses a process boundary, as data: ids, requests, events, error codes, limits.
//!
//! Every other room speaks in these types, so they hold no behaviour beyond parsing, printing and checking
//! themselves. This room knows neither tokio nor IO; the one exception is [`Timestamp::now`], the only place
//! that reads the wall clock.
//!
//! Requests refuse unknown fields: a misspelt option must not be dropped in silence. Stored events do the
//! opposite and ignore what they do not know, so that a journal stays readable across versions.

mod agent;
mod content;
mod error;
mod event;
mod file;
mod id;
pub mod limits;
mod policy;
mod raw;
mod request;
mod session;
mod shell;
mod time;
mod turn;
mod verdict;

pub use agent::{Agent, AgentManifest, McpDelivery, McpServer, McpServers, WaysBack};
pub use content::{Content, ContentBlock};
pub use error::{Code, ErrorBody, Fault};
pub use event::{
    AgentUpdate, Answer, Body, BodyError, CommandEnded, CommandOutcome, CommandStarted, ErrorRaised, Event,
    EventKind, ForkPoint, How, Level, Notice, OccupantExited, OccupantStarted, OutputKept,
    PermissionAnswered, PermissionOption, PermissionRequested, PromptAccepted, SCHEMA_VERSION, SessionConfig,
    SessionCreated, SessionRenamed, SessionStatusChanged, SnapshotRestored, SnapshotTaken, StreamShown,
    TurnEnded, TurnStarted,
};
pub use file::{FileEntry, FileKind, FileList, FileSource, ListFiles, path_bytes, path_text};
pub use id::{
    Actor, AgentName, Alias, CredentialId, IdError, KeyId, Seq, SessionId, SessionRef, Tenant, TurnId,
};
pub use policy::{Bounds, HostRule, MountRule, Network, NetworkWord, Policy};
pub use raw::Raw;
pub use request::{
    Accepted, AnswerPermission, ApiKey, Configure, CreateCredential, CreateKey, CreateSession, CreatedKey,
    Credential, DeployAgent, DeployFile, FileEncoding, ForkSession, Health, ListSessions, Message, Role,
    SendMessage, SessionKindFilter,
};
pub use session::{PlaceKind, Scope, Session, SessionKind, Status};
pub use shell::{
    Budget, BudgetReport, Checkpoint, DockerTarget, ExecCommand, ExecResult, Grep, Keep, KeepMode,
    LeftRunning, ListedShell, LiveOutput, OpenShell, OpenedShell, OutputPiece, OutputStream,
    RestoredCheckpoint, SshTarget, StreamReport, Transport,
};
pub use time::Timestamp;
pub use turn::{Disposition, OnBusy, Outcome, Reason, Stored, Usage, UsageReport, UsageSums};
pub use verdict::{Rule, Usd, Verdict};
