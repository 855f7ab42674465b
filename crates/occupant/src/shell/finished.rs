//! The end of a command, as it is recorded and told.

use super::{End, How, Running, stop::Why};
use crate::text::{Secrets, View};

/// Exactly one of these is every command's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    TimedOut,
    Cancelled,
    /// It was accepted, and never run.
    NotRun,
    /// The shell was lost while it ran; what became of it is not known.
    Interrupted,
}

/// A process that a command left running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub pid: u32,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub command: u64,
    /// What was run, without its secrets.
    pub text: String,
    pub outcome: Outcome,
    /// As a shell counts: 128 and the signal's number for what a signal ended. None where it is not known.
    pub exit_code: Option<i32>,
    pub stdout: View,
    pub stderr: View,
    pub cwd: String,
    pub milliseconds: u64,
    pub left: Vec<Left>,
    /// What the caller should know, in a sentence.
    pub hint: Option<String>,
    /// Whether its start was told.
    pub begun: bool,
}

impl Finished {
    pub(super) fn unrun(command: u64, text: String, cwd: String) -> Self {
        Self {
            command,
            text,
            outcome: Outcome::NotRun,
            exit_code: None,
            stdout: View::default(),
            stderr: View::default(),
            cwd,
            milliseconds: 0,
            left: Vec::new(),
            hint: None,
            begun: false,
        }
    }

    pub fn truncated(&self) -> bool {
        self.stdout.shown.truncated || self.stderr.shown.truncated
    }

    pub fn timed_out(&self) -> bool {
        self.outcome == Outcome::TimedOut
    }
}

impl Running {
    pub(super) fn outcome(&self) -> Outcome {
        match self.stop.map(|stop| stop.why) {
            None => Outcome::Done,
            Some(Why::TimedOut) => Outcome::TimedOut,
            Some(Why::Cancelled) => Outcome::Cancelled,
        }
    }

    pub(super) fn died_hint(&self) -> &'static str {
        if self.stop.is_some() {
            "the shell was stopped with the command and started again, with its folder, variables, functions, \
             aliases and options as far as they could be saved"
        } else {
            "the command ended the shell, which was started again with its folder, variables, functions, aliases \
             and options as far as they could be saved"
        }
    }

    pub(super) fn finish(
        self,
        secrets: &Secrets,
        outcome: Outcome,
        cwd: String,
        hint: Option<&'static str>,
    ) -> Finished {
        let [stdout, stderr] = self.screens;
        let End { how, milliseconds, left, .. } = self.end.unwrap_or(End {
            number: self.number,
            how: How::NotRun,
            cwd: None,
            stdout: 0,
            stderr: 0,
            milliseconds: 0,
            left: Vec::new(),
        });
        Finished {
            command: self.exec.command,
            text: secrets.text(&String::from_utf8_lossy(&self.exec.text)),
            outcome,
            exit_code: match how {
                How::Returned(code) => Some(code),
                How::Died { code: Some(code), .. } => Some(code),
                How::Died { signal, .. } => signal.map(|signal| 128 + signal),
                How::NotRun => None,
            },
            stdout: stdout.finish(),
            stderr: stderr.finish(),
            cwd,
            milliseconds,
            left,
            hint: hint.or(self.hint).map(str::to_owned),
            begun: true,
        }
    }
}
