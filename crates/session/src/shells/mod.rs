//! Shells, as the doors ask for them.

use crate::{Caller, Sessions};
use protocol::{
    Budget, Checkpoint, Code, ExecCommand, ExecResult, Fault, ListedShell, LiveOutput, OpenShell,
    OpenedShell, RestoredCheckpoint, SessionRef,
};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A command that was accepted. Whoever drops it lets the command go on.
#[derive(Debug)]
pub struct Execution {
    pub command: u64,
    /// What it writes, while it runs. What does not fit is left out: the result has it.
    pub live: mpsc::Receiver<LiveOutput>,
    /// Its end, or what there is after the time that the caller wanted to wait.
    pub result: oneshot::Receiver<Result<ExecResult, Fault>>,
}

impl Sessions {
    /// Opens a shell; done when it waits for its first command.
    pub async fn open_shell(&self, caller: &Caller, request: OpenShell) -> Result<OpenedShell, Fault> {
        let _ = (caller, request);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// Has a command run behind those before it. Its start is on disk when it runs, and its end when it is told.
    pub async fn exec(
        &self,
        caller: &Caller,
        session: &SessionRef,
        request: ExecCommand,
    ) -> Result<Execution, Fault> {
        let _ = (caller, session, request);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// Stops a command that runs, or takes one back that waits; its result is told as ever. False if it has ended.
    pub async fn cancel_command(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
    ) -> Result<bool, Fault> {
        let _ = (caller, session, command);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// Writes to a running command's input, and closes it when `eof`. The bytes written.
    pub async fn write_input(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
        text: Vec<u8>,
        eof: bool,
    ) -> Result<u64, Fault> {
        let _ = (caller, session, command, text, eof);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// What a command has shown by now, or its end; waits for that as long as it is told to.
    pub async fn poll_command(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
        wait: Duration,
        budget: Option<Budget>,
    ) -> Result<ExecResult, Fault> {
        let _ = (caller, session, command, wait, budget);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// Signals what a running command started, by the signal's number. False if it has ended.
    pub async fn signal_command(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
        signal: i32,
    ) -> Result<bool, Fault> {
        let _ = (caller, session, command, signal);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// Ends a shell with everything that it started; its record stays. False if there is none of that name.
    pub async fn close_shell(&self, caller: &Caller, session: &SessionRef) -> Result<bool, Fault> {
        let _ = (caller, session);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// The tenant's shells that have not ended.
    pub async fn shells(&self, caller: &Caller) -> Result<Vec<ListedShell>, Fault> {
        let _ = caller;
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    pub async fn checkpoint(
        &self,
        caller: &Caller,
        session: &SessionRef,
        label: Option<String>,
    ) -> Result<Checkpoint, Fault> {
        let _ = (caller, session, label);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// Newest first.
    pub async fn checkpoints(&self, caller: &Caller, session: &SessionRef) -> Result<Vec<Checkpoint>, Fault> {
        let _ = (caller, session);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }

    /// Takes a checkpoint, and then brings the files back to another; the newest before when none is named.
    pub async fn restore_checkpoint(
        &self,
        caller: &Caller,
        session: &SessionRef,
        checkpoint: Option<String>,
    ) -> Result<RestoredCheckpoint, Fault> {
        let _ = (caller, session, checkpoint);
        Err(Fault::new(Code::Internal, "shells are being built"))
    }
}
