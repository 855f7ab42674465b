//! What a shell needs to be started, today or after a year, and what the task writes down for its successor.

use crate::{
    spec::{check_env, internal},
    vault::{Vault, VaultError},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use place::keeper::SavedState;
use protocol::{Budget, DockerTarget, Fault, OpenShell, SshTarget, Transport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const PURPOSE: &str = "shell options";
const SAVED: &str = "shell state";
const TOKEN: &str = "keeper token";
const STATE: &str = "saved shell state";
/// A state that is kept while there is no shell.
const STATE_BYTES: usize = 256 * 1024;
/// Rules of one list, and bytes of one.
const RULES: usize = 256;
const RULE_BYTES: usize = 1024;
/// Paths of a checkpoint, and its ignores.
const PATHS: usize = 256;
const PATH_BYTES: usize = 4096;

/// The caller's options for one shell. May hold secrets, and is kept sealed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ShellSpec {
    pub(crate) target: Target,
    pub(crate) cwd: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) own_env: Option<BTreeMap<String, String>>,
    pub(crate) umask: Option<u32>,
    pub(crate) allow: Vec<String>,
    pub(crate) deny: Vec<String>,
    pub(crate) output_budget: Option<Budget>,
    pub(crate) workspace: Option<String>,
    /// The folder of a shell in a project, without links.
    pub(crate) project: Option<String>,
    pub(crate) auto_snapshot: bool,
    pub(crate) paths: Vec<String>,
    pub(crate) checkpoint_ignores: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    #[default]
    Local,
    Ssh(SshTarget),
    Docker(DockerTarget),
}

impl ShellSpec {
    pub(crate) fn check(request: OpenShell) -> Result<Self, Fault> {
        check_env("env", &request.env)?;
        if request.cwd.as_ref().is_some_and(|cwd| !is_path(cwd)) {
            return Err(Fault::invalid("cwd must be an absolute path"));
        }
        if request.workspace.as_ref().is_some_and(|path| !is_path(path)) {
            return Err(Fault::invalid("workspace must be an absolute path"));
        }
        for (what, rules) in [("allow", &request.allow), ("deny", &request.deny)] {
            if rules.len() > RULES || rules.iter().any(|rule| rule.len() > RULE_BYTES) {
                return Err(Fault::invalid(format!(
                    "{what} has at most {RULES} rules of at most {RULE_BYTES} bytes"
                )));
            }
        }
        for (what, paths) in [("paths", &request.paths), ("checkpoint_ignores", &request.checkpoint_ignores)]
        {
            if paths.len() > PATHS || paths.iter().any(|path| path.len() > PATH_BYTES || path.contains('\0'))
            {
                return Err(Fault::invalid(format!(
                    "{what} has at most {PATHS} entries of at most {PATH_BYTES} bytes"
                )));
            }
        }
        if request.umask.is_some_and(|umask| umask > 0o777) {
            return Err(Fault::invalid("umask must be 0 to 0777"));
        }
        Ok(Self {
            target: match request.transport {
                Transport::Local => Target::Local,
                Transport::Ssh(target) => Target::Ssh(target),
                Transport::Docker(target) => Target::Docker(target),
            },
            cwd: request.cwd,
            env: request.env,
            // What no process could be started with is not the caller's doing, and left out.
            own_env: request
                .own_env
                .map(|env| env.into_iter().filter(|(name, value)| is_variable(name, value)).collect()),
            umask: request.umask,
            allow: request.allow,
            deny: request.deny,
            output_budget: request.output_budget,
            workspace: request.workspace,
            project: None,
            auto_snapshot: request.auto_snapshot,
            paths: request.paths,
            checkpoint_ignores: request.checkpoint_ignores,
        })
    }

    pub(crate) fn seal(&self, vault: &Vault) -> Result<String, Fault> {
        let plain = serde_json::to_vec(self).map_err(internal)?;
        Ok(STANDARD.encode(vault.seal(PURPOSE, &plain).map_err(internal)?))
    }

    pub(crate) fn open(vault: &Vault, sealed: &str) -> Result<Self, VaultError> {
        let bytes = STANDARD.decode(sealed).map_err(|_| VaultError::Sealed)?;
        let plain = vault.unseal(PURPOSE, &bytes)?;
        serde_json::from_slice(&plain).map_err(|_| VaultError::Sealed)
    }

    /// Values that must not be seen again: those whose names say so. A shell's other variables are ordinary words.
    pub(crate) fn secrets(&self) -> Vec<(String, String)> {
        const WORDS: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "PRIVATE_KEY"];
        let of_env = self.env.iter().filter(|(name, _)| {
            let name = name.to_ascii_uppercase();
            WORDS.iter().any(|word| name.contains(word))
        });
        let mut secrets: Vec<(String, String)> =
            of_env.map(|(name, value)| (name.clone(), value.clone())).collect();
        if let Target::Ssh(SshTarget { password: Some(password), .. }) = &self.target {
            secrets.push(("ssh-password".to_owned(), password.clone()));
        }
        secrets
    }
}

fn is_path(path: &str) -> bool {
    path.starts_with('/') && !path.contains('\0') && path.len() <= PATH_BYTES
}

fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

/// In the clear, but for what was run. `tie` is read by whoever looks for strays, and named as in an agent's memo.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ShellMemo {
    pub(crate) tie: Option<place::Tie>,
    /// The last command's number.
    pub(crate) commands: u64,
    /// Where the shell was last.
    pub(crate) cwd: Option<String>,
    /// The machine, sealed.
    pub(crate) machine: Option<String>,
    /// What the keeper no longer has of the running command's streams.
    pub(crate) let_go: [u64; 2],
    /// A keeper on another machine, and its token, sealed.
    pub(crate) lodged: Option<place::remote::Lodged>,
    pub(crate) token: Option<String>,
    /// How much is kept of what commands wrote.
    pub(crate) kept_bytes: u64,
    /// Why the last shell was lost, until a command's result has said it.
    pub(crate) lost: Option<String>,
    /// What an ended shell said of its state, sealed, until there is another one.
    pub(crate) state: Option<String>,
    /// The number of the last checkpoint, and those that are kept, oldest first.
    pub(crate) checkpoint: u64,
    pub(super) checkpoints: Vec<super::checkpoints::Kept>,
}

impl ShellMemo {
    pub(crate) fn encode(&self) -> String {
        // A struct of strings and numbers always encodes.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn decode(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

pub(crate) fn seal_machine(vault: &Vault, saved: &occupant::shell::Saved) -> Option<String> {
    let plain = serde_json::to_vec(saved).ok()?;
    vault.seal(SAVED, &plain).map(|sealed| STANDARD.encode(sealed)).ok()
}

pub(crate) fn open_machine(vault: &Vault, sealed: &str) -> Option<occupant::shell::Saved> {
    let plain = vault.unseal(SAVED, &STANDARD.decode(sealed).ok()?).ok()?;
    serde_json::from_slice(&plain).ok()
}

/// None for one that is too large.
pub(crate) fn seal_state(vault: &Vault, state: &SavedState) -> Option<String> {
    let plain = state.encode();
    if plain.len() > STATE_BYTES {
        return None;
    }
    vault.seal(STATE, &plain).map(|sealed| STANDARD.encode(sealed)).ok()
}

pub(crate) fn open_state(vault: &Vault, sealed: &str) -> Option<SavedState> {
    SavedState::decode(&vault.unseal(STATE, &STANDARD.decode(sealed).ok()?).ok()?)
}

pub(crate) fn seal_token(vault: &Vault, token: &[u8; 32]) -> Option<String> {
    vault.seal(TOKEN, token).map(|sealed| STANDARD.encode(sealed)).ok()
}

pub(crate) fn open_token(vault: &Vault, sealed: &str) -> Option<[u8; 32]> {
    vault.unseal(TOKEN, &STANDARD.decode(sealed).ok()?).ok()?.try_into().ok()
}
