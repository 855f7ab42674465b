//! A shell that a keeper holds, from the server's side: commands in, and everything that comes of them out, in one
//! ordered stream.
//!
//! The keeper delivers a command once, whoever asks and however often, and holds its output and its end until they
//! are acknowledged, so that a server that was away misses nothing. Whoever drives a shell reads with
//! [`Shell::next`] and records before it acknowledges.

use super::{Keeper, KeeperError, exit_of, line::Line};
use crate::{Exit, Spawn, SpawnError};
pub use ::keeper::wire::{CommandInput, Manner, ShellPhase, Unfit, Whom};
use ::keeper::{
    codec::Blob,
    wire::{self, CHUNK_BYTES, Notice, Part, Request, Unusable, command_stream},
};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// How far the keeper may send ahead of what was read here, for each stream.
const WINDOW: u64 = 1024 * 1024;

/// What comes of a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShellEvent {
    /// It waits for a command, for the first time or after it was started again.
    Ready {
        cwd: Vec<u8>,
    },
    /// It came up and cannot be used, and why; for people.
    Unusable(&'static str),
    Output {
        command: u64,
        stream: Stream,
        offset: u64,
        bytes: Bytes,
    },
    /// Everything below the two ends comes before or after this, and nothing beyond them ever does.
    Ended(Ended),
    /// It ended while it ran no command.
    Exited(Exit),
    InputTaken {
        number: u64,
    },
    InputRefused {
        number: u64,
    },
    /// The connection to the keeper is gone.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn fd(self) -> u32 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub command: u64,
    pub how: How,
    /// None when the shell died: the one that is started next knows.
    pub cwd: Option<Vec<u8>>,
    pub stdout: u64,
    pub stderr: u64,
    pub milliseconds: u64,
    pub left: Vec<Left>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Returned(i32),
    /// The shell ended, or became a program that did.
    Died(Exit),
    /// The shell took the command and did not run it.
    NotRun,
}

/// A process that a command left running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub pid: u32,
    pub name: String,
}

/// A shell as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellState {
    pub phase: ShellPhase,
    pub manner: Manner,
    pub cwd: Vec<u8>,
    /// The last command that was taken, zero before the first.
    pub command: u64,
    pub ended: Option<Ended>,
    pub unfit: Option<Unfit>,
    /// Everything that runs, but for the shell.
    pub running: Vec<Left>,
}

/// What a shell said of its variables, functions, aliases and options, for another one after it. Holds secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct SavedState {
    manner: Manner,
    script: Vec<u8>,
}

impl std::fmt::Debug for SavedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedState").field("bytes", &self.script.len()).finish_non_exhaustive()
    }
}

impl SavedState {
    const SEEN: u8 = 1;
    const TOLD: u8 = 2;

    /// As bytes, to be kept sealed.
    pub fn encode(&self) -> Vec<u8> {
        let manner = match self.manner {
            Manner::Seen => Self::SEEN,
            Manner::Told | Manner::Bare => Self::TOLD,
        };
        [&[manner], self.script.as_slice()].concat()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (manner, script) = bytes.split_first()?;
        let manner = match *manner {
            Self::SEEN => Manner::Seen,
            Self::TOLD => Manner::Told,
            _ => return None,
        };
        Some(Self { manner, script: script.to_vec() })
    }
}

/// Why a command was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    #[error("the shell has ended")]
    Ended,
    /// Nothing of it was run, and nothing can be before the shell is started again.
    #[error("the shell can run nothing more")]
    Unfit,
    #[error("{0}")]
    Failed(String),
    #[error("the connection to the keeper is gone")]
    Gone,
}

/// What the connection hands to whoever drives the shell.
#[derive(Debug)]
pub(crate) struct Mail {
    queue: Mutex<VecDeque<ShellEvent>>,
    changed: Notify,
    manner: Mutex<Manner>,
}

impl Default for Mail {
    fn default() -> Self {
        Self { queue: Mutex::default(), changed: Notify::new(), manner: Mutex::new(Manner::Seen) }
    }
}

impl Mail {
    fn queue(&self) -> MutexGuard<'_, VecDeque<ShellEvent>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn manner(&self) -> MutexGuard<'_, Manner> {
        self.manner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, event: ShellEvent) {
        self.queue().push_back(event);
        self.changed.notify_one();
    }

    /// Hands on what a notice means to the shell's driver.
    pub(crate) fn notice(&self, notice: Notice) {
        self.put(match notice {
            Notice::Output { fd, offset, bytes, .. } => {
                let stream = if fd % 4 == Stream::Stdout.fd() { Stream::Stdout } else { Stream::Stderr };
                // The number is told with the end; until then there is one command at a time.
                ShellEvent::Output { command: u64::from(fd / 4), stream, offset, bytes: Bytes::from(bytes.0) }
            }
            Notice::ShellReady { cwd, manner, .. } => {
                *self.manner() = manner;
                ShellEvent::Ready { cwd: cwd.0 }
            }
            Notice::ShellUnusable { reason, .. } => ShellEvent::Unusable(explain(reason)),
            Notice::CommandEnded { ended, .. } => ShellEvent::Ended(ended_of(ended)),
            Notice::Exited { exit, .. } => ShellEvent::Exited(exit_of(&exit)),
            Notice::InputTaken { number, .. } => ShellEvent::InputTaken { number },
            Notice::InputRefused { number, .. } => ShellEvent::InputRefused { number },
            // The end of a stream is told with the command's; the others are about no shell.
            Notice::End { .. }
            | Notice::Welcome { .. }
            | Notice::Done { .. }
            | Notice::Refused { .. }
            | Notice::Spawned { .. }
            | Notice::SpawnFailed { .. }
            | Notice::EgressRefused { .. }
            | Notice::EgressUntold { .. }
            | Notice::Processes { .. }
            | Notice::ShellIs { .. }
            | Notice::StateIs { .. }
            | Notice::Replaced {}
            | Notice::ShuttingDown {} => return,
        });
    }
}

/// A shell. Dropping it ends nothing.
#[derive(Debug)]
pub struct Shell {
    line: Arc<Line>,
    process: u64,
    mail: Arc<Mail>,
    /// The command whose streams are read, and how far the keeper may send each.
    command: u64,
    granted: [u64; 2],
    over: bool,
}

impl Keeper {
    /// Starts a shell under a number that this keeper never had, or again in the place of one that ended; then an
    /// empty `cwd` means where that one was. [`ShellEvent::Ready`] follows.
    pub async fn start_shell(&self, process: u64, spawn: Spawn, cwd: &str) -> Result<Shell, SpawnError> {
        let shell = self.shell(process);
        self.launch_shell(process, spawn, cwd).await?;
        Ok(shell)
    }

    /// As [`Self::start_shell`] for a new shell, in the state that another one had. One that cannot be brought about is
    /// left out.
    pub async fn continue_shell(
        &self,
        process: u64,
        spawn: Spawn,
        cwd: &str,
        before: &SavedState,
    ) -> Result<Shell, SpawnError> {
        if self.version >= wire::STATES {
            let mut script = before.script.clone();
            // What leads out of this sandbox is not what led out of the other.
            for (name, value) in spawn.env.iter().filter(|(name, _)| crate::room::is_proxy(name)) {
                let value = value.replace('\'', "'\\''");
                script.extend(format!("export {name}='{value}'\n").into_bytes());
            }
            let (manner, state) = (before.manner, Blob(script));
            let asked = self.line.ask(|tag| Request::Remember { tag, process, manner, state }).await;
            if let Err(error) = asked {
                tracing::warn!(?error, "a shell begins without the state of the one before it");
            }
        }
        self.start_shell(process, spawn, cwd).await
    }

    /// What a shell last said of its state; none from a keeper that is older than the question.
    pub async fn saved_state(&self, process: u64) -> Option<SavedState> {
        if self.version < wire::STATES {
            return None;
        }
        match self.line.ask(|tag| Request::SavedState { tag, process }).await {
            Ok(Notice::StateIs { manner, state, .. }) if !state.0.is_empty() => {
                Some(SavedState { manner, script: state.0 })
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// As [`Self::start_shell`] for a shell that is driven already and has ended.
    pub async fn restart_shell(&self, process: u64, spawn: Spawn, cwd: &str) -> Result<(), SpawnError> {
        self.launch_shell(process, spawn, cwd).await
    }

    /// Takes up a shell that the keeper has.
    pub async fn attach_shell(&self, process: u64) -> Result<(Shell, ShellState), KeeperError> {
        let shell = self.shell(process);
        let state = shell.state().await?;
        *shell.mail.manner() = state.manner;
        Ok((shell, state))
    }

    /// Whether this keeper, which may be older than the server, knows shells.
    pub fn has_shells(&self) -> bool {
        self.version >= wire::SHELLS
    }

    fn shell(&self, process: u64) -> Shell {
        let mail = self.line.mail(process);
        let line = Arc::clone(&self.line);
        Shell { line, process, mail, command: 0, granted: [0; 2], over: false }
    }
}

impl Shell {
    /// The next event. Cancel-safe: what was not returned stays. [`ShellEvent::Lost`] comes once, and then nothing.
    pub async fn next(&mut self) -> Option<ShellEvent> {
        loop {
            let mail = Arc::clone(&self.mail);
            let changed = mail.changed.notified();
            let event = mail.queue().pop_front();
            match event {
                Some(ShellEvent::Output { stream, offset, bytes, command }) => {
                    // What a command left behind that is no longer read.
                    if command != u64::from(command_stream(self.command, 0) / 4) {
                        continue;
                    }
                    self.grant(stream, offset + bytes.len() as u64);
                    return Some(ShellEvent::Output { command: self.command, stream, offset, bytes });
                }
                Some(ShellEvent::Lost) => {
                    self.over = true;
                    return Some(ShellEvent::Lost);
                }
                Some(event) => return Some(event),
                None if self.over => return None,
                None => changed.await,
            }
        }
    }

    /// How the keeper knows what the shell does; known once it is ready. What that gives up is in
    /// [`Manner::lesser`].
    pub fn manner(&self) -> Manner {
        *self.mail.manner()
    }

    /// The number that the keeper knows it by.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Has a command run. Returns once the keeper has it, whatever becomes of this server from then on; a number
    /// that it had already is not run again.
    pub async fn run(&mut self, command: u64, stdin: CommandInput, text: &[u8]) -> Result<(), RunError> {
        self.give(command, stdin, text)?.await
    }

    /// The same, with the waiting left to the caller.
    pub fn give(
        &mut self,
        command: u64,
        stdin: CommandInput,
        text: &[u8],
    ) -> Result<impl Future<Output = Result<(), RunError>> + Send + use<>, RunError> {
        let mut parts = text.chunks(CHUNK_BYTES).peekable();
        let process = self.process;
        let asked = loop {
            let text = Blob(parts.next().unwrap_or_default().to_vec());
            if parts.peek().is_some() {
                let part = Part::More;
                let request = Request::RunCommand { tag: 0, process, command, stdin, part, text };
                self.line.send(&request).map_err(|_| RunError::Gone)?;
                continue;
            }
            let part = Part::Last;
            let request = |tag| Request::RunCommand { tag, process, command, stdin, part, text };
            let asked = self.line.ask_for(request)?;
            self.follow(command, [0; 2])?;
            break asked;
        };
        Ok(async {
            match asked.await {
                Ok(Notice::Refused { reason: wire::Refusal::Ended, .. }) => Err(RunError::Ended),
                Ok(Notice::Refused { reason: wire::Refusal::Unfit, .. }) => Err(RunError::Unfit),
                Ok(Notice::Refused { text, .. }) => Err(RunError::Failed(text)),
                Ok(_) => Ok(()),
                Err(_) => Err(RunError::Gone),
            }
        })
    }

    /// Reads a command's streams from these offsets on, standard output's first.
    pub fn follow(&mut self, command: u64, from: [u64; 2]) -> Result<(), RunError> {
        self.command = command;
        for (stream, from) in [Stream::Stdout, Stream::Stderr].into_iter().zip(from) {
            let (process, fd, upto) = (self.process, command_stream(command, stream.fd()), from + WINDOW);
            self.granted[index(stream)] = upto;
            // A command that was refused has no streams; the refusal says so.
            let request = Request::Subscribe { tag: 0, process, fd, from, upto };
            self.line.send(&request).map_err(|_| RunError::Gone)?;
        }
        Ok(())
    }

    fn grant(&mut self, stream: Stream, read: u64) {
        let granted = &mut self.granted[index(stream)];
        if granted.saturating_sub(read) <= WINDOW / 2 {
            *granted = read + WINDOW;
            let (process, upto) = (self.process, *granted);
            let fd = command_stream(self.command, stream.fd());
            // A connection that is gone is told by the mail.
            let _ = self.line.send(&Request::Want { process, fd, upto });
        }
    }

    /// Everything of the running command's stream below `upto` is recorded, or no longer wanted.
    pub fn ack(&self, stream: Stream, upto: u64) {
        let (process, fd) = (self.process, command_stream(self.command, stream.fd()));
        let _ = self.line.send(&Request::Ack { process, fd, upto });
    }

    /// Sends input to a command that was run with an open one. Numbers go up; [`ShellEvent::InputTaken`] or
    /// `InputRefused` follows.
    pub fn write(&self, number: u64, bytes: &[u8]) {
        let (process, fd) = (self.process, command_stream(self.command, 0));
        let mut parts = bytes.chunks(CHUNK_BYTES).peekable();
        loop {
            let bytes = Blob(parts.next().unwrap_or_default().to_vec());
            let part = if parts.peek().is_some() { Part::More } else { Part::Last };
            let sent = self.line.send(&Request::Input { process, fd, number, part, bytes });
            if part == Part::Last || sent.is_err() {
                return;
            }
        }
    }

    pub fn close_input(&self) {
        let (process, fd) = (self.process, command_stream(self.command, 0));
        let _ = self.line.send(&Request::CloseInput { process, fd });
    }

    /// Signals the running command, by the signal's number.
    pub fn signal(&self, signal: i32, whom: Whom) {
        let process = self.process;
        // That nobody is left to signal is told by the end.
        let _ = self.line.send(&Request::SignalCommand { tag: 0, process, signal, whom });
    }

    pub async fn state(&self) -> Result<ShellState, KeeperError> {
        let process = self.process;
        match self.line.ask(|tag| Request::ShellState { tag, process }).await? {
            Notice::ShellIs { shell, .. } => Ok(ShellState {
                phase: shell.phase,
                manner: shell.manner,
                cwd: shell.cwd.0,
                command: shell.command,
                ended: shell.ended.map(ended_of),
                unfit: shell.unfit,
                running: shell.running.iter().map(left_of).collect(),
            }),
            other => Err(KeeperError::Refused(format!("an unexpected answer: {other:?}"))),
        }
    }
}

impl From<super::Refused> for RunError {
    fn from(refused: super::Refused) -> Self {
        match refused {
            super::Refused::Gone => Self::Gone,
            super::Refused::TooLong => Self::Failed("the command is larger than a keeper reads".to_owned()),
            super::Refused::Said(text) => Self::Failed(text),
        }
    }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

fn ended_of(ended: wire::Ended) -> Ended {
    Ended {
        command: ended.command,
        how: match ended.how {
            wire::How::Returned { code } => How::Returned(code),
            wire::How::Died { exit } => How::Died(exit_of(&exit)),
            wire::How::NotRun {} => How::NotRun,
        },
        cwd: ended.cwd.map(|cwd| cwd.0),
        stdout: ended.stdout,
        stderr: ended.stderr,
        milliseconds: ended.milliseconds,
        left: ended.left.iter().map(left_of).collect(),
    }
}

fn left_of(left: &wire::Left) -> Left {
    Left { pid: left.pid, name: String::from_utf8_lossy(&left.name.0).into_owned() }
}

fn explain(reason: Unusable) -> &'static str {
    match reason {
        Unusable::Opaque => "the shell is not a bash that can be seen into; use one with its usual symbols",
        Unusable::Forbidden => {
            "this machine lets nobody look into its own processes; lower kernel.yama.ptrace_scope"
        }
        Unusable::Silent => "the shell did not come to its first command",
        Unusable::NoFolder => "the folder for the shell's commands could not be made",
    }
}
