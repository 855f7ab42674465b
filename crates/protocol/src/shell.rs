//! Shells as callers ask for them and are told of them. The names are those of the tools' contract.

use crate::{PlaceKind, SessionId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// A shell to be opened.
#[derive(Debug, Clone, Default)]
pub struct OpenShell {
    pub transport: Transport,
    /// For a local shell, how much of this machine it sees; none is the operator's default.
    pub place: Option<PlaceKind>,
    pub cwd: Option<String>,
    /// Set on top of what the place gives.
    pub env: BTreeMap<String, String>,
    /// Of somebody who opens a shell for himself on the bare host: his whole environment, in the place of the server's.
    pub own_env: Option<BTreeMap<String, String>>,
    pub umask: Option<u32>,
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub output_budget: Option<Budget>,
    /// A checkpoint's folder; none is the shell's first.
    pub workspace: Option<String>,
    pub auto_snapshot: bool,
    /// What of the workspace is in its checkpoints; empty is all of it.
    pub paths: Vec<String>,
    pub checkpoint_ignores: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub enum Transport {
    #[default]
    Local,
    Ssh(SshTarget),
    Docker(DockerTarget),
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshTarget {
    pub host: String,
    pub user: Option<String>,
    pub port: Option<u16>,
    pub password: Option<String>,
    pub key_path: Option<String>,
    /// `SHA256:…`
    pub fingerprint: Option<String>,
}

impl fmt::Debug for SshTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password stays out of every log.
        f.debug_struct("SshTarget")
            .field("host", &self.host)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DockerTarget {
    pub container: String,
    pub user: Option<String>,
    pub shell: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedShell {
    pub session: SessionId,
    /// Its alias, such as `1_local`: what callers use.
    pub session_id: String,
    pub place: PlaceKind,
    pub cwd: String,
    /// What this shell cannot promise, for people; empty is everything promised.
    pub lesser: Vec<String>,
}

/// What to show of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grep: Option<Grep>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_chars: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grep {
    pub pattern: String,
    #[serde(default)]
    pub context: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    pub mode: KeepMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepMode {
    #[default]
    All,
    Head,
    Tail,
    HeadTail,
}

/// A command to be run.
#[derive(Debug, Clone, Default)]
pub struct ExecCommand {
    /// Any bytes but NUL.
    pub command: Vec<u8>,
    pub budget: Option<Budget>,
    /// None is the default.
    pub timeout_secs: Option<u64>,
    /// After this the caller is told what there is, and the command goes on.
    pub yield_secs: Option<u64>,
    /// Whether more input can be written to it; without, its input is at its end from the start.
    pub open_stdin: bool,
}

/// What there is to say of a command, at its end or while it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecResult {
    pub stdout: String,
    pub stderr: String,
    /// None while it runs, and where it cannot be known.
    pub exit_code: Option<i32>,
    pub duration_ms: u64,
    pub cwd: String,
    /// Whether anything was dropped.
    pub truncated: bool,
    pub command_id: u64,
    /// What was run, without its secrets.
    pub command: String,
    pub timed_out: bool,
    pub cancelled: bool,
    pub running: bool,
    pub budget: BudgetReport,
    /// What bytes that are no text were there, and are spelt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
    /// What it left running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_running: Vec<LeftRunning>,
    /// Streams of which something was dropped, and whose whole text is kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub whole: Vec<OutputStream>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One of a command's two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// A part of a kept output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPiece {
    pub text: String,
    /// Where the text begins, in bytes of UTF-8: where it was asked for, or after the character that this cut.
    pub offset: u64,
    /// Where to read on; none at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// Of all that is kept.
    pub bytes: u64,
    /// Whether that is all that was written.
    pub complete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetReport {
    pub stdout: StreamReport,
    pub stderr: StreamReport,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamReport {
    pub mode: KeepMode,
    pub lines_total: u64,
    pub lines_kept: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftRunning {
    pub pid: u32,
    pub name: String,
}

/// A part of a running command's output, without its secrets. It has no number, and is kept nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveOutput {
    pub stderr: bool,
    pub text: String,
}

/// A shell in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedShell {
    pub session_id: String,
    pub id: SessionId,
    /// `local`, `ssh` or `docker`.
    pub transport: String,
    pub place: PlaceKind,
    pub status: crate::Status,
    pub idle_secs: u64,
    pub created_at: Timestamp,
    pub cwd: String,
    /// The command that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
}

/// A kept state of a shell's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub created: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredCheckpoint {
    pub restored_to: String,
    pub files_changed: u64,
    /// The checkpoint taken before, by which it can be undone.
    pub undo: String,
}
