//! The server's side of keepers: starting one, finding it again after a restart, and handing out its processes as
//! [`Process`]es like any other.
//!
//! A keeper lives in `DATA/keepers/<id>/` (0700), which holds its socket and its token, and outlives the server; a
//! dropped [`Keeper`] or [`Process`] ends nothing. What a process wrote and nobody acknowledged waits in the keeper,
//! by offset; what was sent to it is numbered and arrives once. This module knows nothing of what is inside.

pub(crate) mod binary;
mod folder;
mod line;
mod shell;
#[cfg(test)]
mod shell_tests;
mod streams;
#[cfg(test)]
mod tests;

use crate::{Exit, Handle, Output, Process, Signal, Spawn, SpawnError, Stdin};
pub use ::keeper::codec::Blob;
use ::keeper::{
    config::{self, CONFIG_VERSION, Config, Started},
    wire::{
        Channel, EgressRefusal, Flow, Isolation, Life, Limit, Mode, Notice, ProcessState, Reach, Request,
        SpawnFailure, Tree,
    },
};
pub use config::{Access, HostRule, Limits, Mount, Network, Project as ShownProject, Sandbox, UMASK, View};
pub use folder::Keepers;
pub(crate) use folder::{blocking, join};
pub(crate) use line::Pipe;
use line::{Line, Refused};
pub use shell::{
    CommandInput, Ended, How, Left, Manner, RunError, SavedState, Shell, ShellEvent, ShellPhase, ShellState,
    Stream, Unfit, Whom,
};
use std::{io, path::PathBuf, sync::Arc, time::Duration};
pub(crate) use streams::{KeptHandle, KeptInput, KeptOutput};

/// The descriptors of a process.
const STDIN: u32 = 0;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;
/// How long a keeper has to come up, with its sandbox, on a machine under load.
const START: Duration = Duration::from_secs(20);
/// How long a keeper has to answer a connection. It has one thread and never waits.
const HELLO: Duration = Duration::from_secs(10);

/// Why a keeper could not be started, found or asked.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("{0:?} cannot name a keeper: letters, digits, \"-\" and \"_\" only")]
    BadId(String),
    #[error("there is no keeper {0}")]
    Missing(String),
    /// The keeper's own words: what happened, and what to do about it.
    #[error("{what}; {fix}")]
    NotStarted { what: String, fix: String },
    #[error("the keeper speaks version {theirs} and this server {ours}; run the server that started it")]
    Version { theirs: u16, ours: u16 },
    #[error("the keeper did not answer within {0:?}")]
    Silent(Duration),
    #[error("the keeper turned the connection away: another token, or another user")]
    TurnedAway,
    #[error("the connection to the keeper is gone")]
    Gone,
    #[error("the keeper refused: {0}")]
    Refused(String),
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl KeeperError {
    fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// What a keeper is started with.
#[derive(Debug, Clone)]
pub struct Order {
    /// How long it waits for a server before it ends its processes and itself.
    pub orphan: Duration,
    pub limits: Limits,
    /// None for the bare host.
    pub sandbox: Option<Sandbox>,
}

/// A connection that something inside was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressRefused {
    pub host: String,
    pub port: u16,
    pub reason: EgressRefusal,
}

impl EgressRefused {
    /// In words, to follow a colon.
    pub fn why(&self) -> &'static str {
        match self.reason {
            EgressRefusal::NotAllowed => "the policy does not allow the host",
            EgressRefusal::PrivateAddress => "its address is not a public one",
            EgressRefusal::NotResolved => "its name could not be resolved",
            EgressRefusal::BadRequest => "the request could not be understood",
            EgressRefusal::Unreachable => "it could not be reached",
            EgressRefusal::TooMany => "too many connections are open",
        }
    }
}

/// A process that a keeper had when it was taken up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub process: u64,
    /// Some once it ended.
    pub exit: Option<Exit>,
    pub frozen: bool,
    /// The number of the last input that arrived, zero before the first.
    pub input_taken: u64,
    /// What of each stream can still be read: from the first offset that nobody acknowledged to the end so far.
    pub stdout: (u64, u64),
    pub stderr: (u64, u64),
}

/// A connection to a keeper. A cheap handle; the keeper outlives all of them.
#[derive(Debug, Clone)]
pub struct Keeper {
    line: Arc<Line>,
    version: u16,
    epoch: u64,
    isolation: Arc<Isolation>,
    found: Arc<Vec<Kept>>,
}

impl Keeper {
    /// Drawn at the keeper's start: an offset or a number means nothing to a keeper of another epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The processes that were there when this connection was made.
    pub fn found(&self) -> &[Kept] {
        &self.found
    }

    pub fn in_sandbox(&self) -> bool {
        self.isolation.mode == Mode::Sandbox
    }

    /// Whether processes can be frozen.
    pub fn can_freeze(&self) -> bool {
        self.isolation.tree != Tree::Walk
    }

    pub fn limits(&self) -> &[Limit] {
        &self.isolation.limits
    }

    /// The same, in words.
    pub fn limit_names(&self) -> Vec<&'static str> {
        let name = |limit: &Limit| match limit {
            Limit::Memory => "memory",
            Limit::Processes => "processes",
            Limit::Cpu => "processor time",
            Limit::OpenFiles => "open files",
        };
        self.isolation.limits.iter().map(name).collect()
    }

    /// What was asked for and is not in force, in words.
    pub fn missing(&self) -> &[String] {
        &self.isolation.missing
    }

    /// The keeper's own process.
    pub fn pid(&self) -> u32 {
        self.isolation.pid
    }

    /// Where programs inside find the proxy, as an address for `http_proxy` and its like.
    pub fn proxy(&self) -> Option<String> {
        self.isolation.proxy.map(|port| format!("http://127.0.0.1:{port}"))
    }

    /// Starts a process under a number that this keeper never had. `cwd` is a path as the process sees it.
    pub async fn spawn(&self, process: u64, spawn: Spawn, cwd: &str) -> Result<Process, SpawnError> {
        // Known before it starts, so that nothing it says is missed.
        let hold = self.line.hold(process, [STDOUT, STDERR]);
        let program = PathBuf::from(&spawn.program);
        let started = match self.launch(process, spawn, cwd).await {
            Ok(()) => self
                .process(process, hold, 0, 0)
                .await
                .map_err(|error| SpawnError::Failed { path: program, source: io::Error::other(error) }),
            Err(error) => Err(error),
        };
        if started.is_err() {
            self.line.let_go(process);
        }
        started
    }

    async fn launch(&self, process: u64, spawn: Spawn, cwd: &str) -> Result<(), SpawnError> {
        let channel = |fd, flow| Channel { fd, flow };
        let channels = vec![channel(STDIN, Flow::In), channel(STDOUT, Flow::Out), channel(STDERR, Flow::Out)];
        self.launch_by(|tag, spawn| Request::Spawn { tag, spawn }, process, spawn, cwd, channels).await
    }

    async fn launch_shell(&self, process: u64, spawn: Spawn, cwd: &str) -> Result<(), SpawnError> {
        self.launch_by(|tag, spawn| Request::StartShell { tag, spawn }, process, spawn, cwd, Vec::new()).await
    }

    async fn launch_by(
        &self,
        request: impl FnOnce(u32, ::keeper::wire::Spawn) -> Request,
        process: u64,
        spawn: Spawn,
        cwd: &str,
        channels: Vec<Channel>,
    ) -> Result<(), SpawnError> {
        let program = spawn.program.clone();
        let path = spawn.env.get("PATH").cloned().unwrap_or_default();
        let failed = |source| SpawnError::Failed { path: PathBuf::from(&program), source };
        let wanted = ::keeper::wire::Spawn {
            process,
            argv: [spawn.program].into_iter().chain(spawn.args).map(blob).collect(),
            env: spawn.env.into_iter().map(|(name, value)| blob(format!("{name}={value}"))).collect(),
            cwd: blob(cwd.to_owned()),
            channels,
            open_files: None,
        };
        match self.line.ask(|tag| request(tag, wanted)).await {
            Ok(Notice::Spawned { .. }) => Ok(()),
            Ok(Notice::SpawnFailed { failure, errno, .. }) => Err(match failure {
                SpawnFailure::NotFound => {
                    SpawnError::NotFound { searched: searched(&program, &path), program }
                }
                SpawnFailure::NotExecutable => SpawnError::NotExecutable { path: PathBuf::from(program) },
                SpawnFailure::TooLarge => SpawnError::TooLarge,
                SpawnFailure::BadCwd => SpawnError::NoHome { home: PathBuf::from(cwd) },
                SpawnFailure::Exec | SpawnFailure::Setup => failed(io::Error::from_raw_os_error(errno)),
            }),
            Ok(other) => Err(failed(io::Error::other(format!("an unexpected answer: {other:?}")))),
            Err(Refused::TooLong) => Err(SpawnError::TooLarge),
            Err(error) => Err(failed(io::Error::other(KeeperError::from(error)))),
        }
    }

    /// Takes up a process that the keeper has, reading on from the given offsets.
    pub async fn attach(&self, process: u64, stdout: u64, stderr: u64) -> Result<Process, KeeperError> {
        let hold = self.line.hold(process, [STDOUT, STDERR]);
        if let Some(exit) = self.found.iter().find(|kept| kept.process == process).and_then(|kept| kept.exit)
        {
            hold.exited(exit);
        }
        self.process(process, hold, stdout, stderr).await
    }

    async fn process(
        &self,
        process: u64,
        hold: line::Hold,
        stdout: u64,
        stderr: u64,
    ) -> Result<Process, KeeperError> {
        let out = KeptOutput::follow(&self.line, &hold, STDOUT, stdout).await?;
        let err = KeptOutput::follow(&self.line, &hold, STDERR, stderr).await?;
        let stdin = KeptInput::new(Arc::clone(&self.line), process, STDIN);
        Ok(Process {
            stdin: Stdin(stdin),
            stdout: Output(out),
            stderr: Output(err),
            handle: Handle(KeptHandle::new(Arc::clone(&self.line), hold)),
        })
    }

    /// Stops one process's tree, or everything, until it is thawed. Returns once all stand still.
    pub async fn freeze(&self, process: Option<u64>) -> Result<(), KeeperError> {
        self.line.done(|tag| Request::Freeze { tag, process }).await
    }

    pub async fn thaw(&self, process: Option<u64>) -> Result<(), KeeperError> {
        self.line.done(|tag| Request::Thaw { tag, process }).await
    }

    /// Kills the process's whole tree; its end is told by its [`Handle`].
    pub async fn kill(&self, process: u64) -> Result<(), KeeperError> {
        self.line.done(|tag| Request::Kill { tag, process }).await
    }

    /// Kills what is left of the process's tree and drops its output and its end.
    pub async fn forget(&self, process: u64) -> Result<(), KeeperError> {
        let done = self.line.done(|tag| Request::Forget { tag, process }).await;
        self.line.let_go(process);
        done
    }

    pub async fn set_orphan(&self, time: Duration) -> Result<(), KeeperError> {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self.line.done(|tag| Request::SetOrphanTimeout { tag, seconds }).await
    }

    /// Ends every process and the keeper. The workspace stays.
    pub async fn shutdown(&self) -> Result<(), KeeperError> {
        self.line.done(|tag| Request::Shutdown { tag }).await
    }

    /// Waits for the next refused connection; `None` once the keeper is gone. One waits at a time.
    pub async fn egress_refused(&self) -> Option<EgressRefused> {
        self.line.egress_refused().await
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.line.is_gone()
    }

    /// Waits until the connection is gone: the keeper ended or died, or another server took it up.
    pub async fn gone(&self) {
        self.line.gone().await;
    }
}

fn blob(text: String) -> Blob {
    Blob(text.into_bytes())
}

fn searched(program: &str, path: &str) -> Vec<PathBuf> {
    if program.contains('/') {
        return vec![PathBuf::from(program)];
    }
    path.split(':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| PathBuf::from(folder).join(program))
        .collect()
}

fn exit_of(exit: &::keeper::wire::Exit) -> Exit {
    Exit { code: exit.code, signal: exit.signal }
}

fn kept(state: &ProcessState) -> Kept {
    let stream = |fd| {
        let found = state.outputs.iter().find(|output| output.fd == fd);
        found.map_or((0, 0), |output| (output.start, output.end))
    };
    Kept {
        process: state.process,
        exit: match &state.life {
            Life::Exited { exit } => Some(exit_of(exit)),
            Life::Starting {} | Life::Running {} => None,
        },
        frozen: state.frozen,
        input_taken: state.inputs.iter().find(|input| input.fd == STDIN).map_or(0, |input| input.taken),
        stdout: stream(STDOUT),
        stderr: stream(STDERR),
    }
}

/// The number and the reach of a signal. An interrupt goes to the group, as from a terminal; the others mean all.
fn signal_of(signal: Signal) -> (i32, Reach) {
    let reach = match signal {
        Signal::Interrupt => Reach::Group,
        Signal::Terminate | Signal::Kill | Signal::Stop | Signal::Continue => Reach::Tree,
    };
    (signal.number().as_raw(), reach)
}
