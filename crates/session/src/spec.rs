//! What a session needs to be started, today or after a year: its options sealed, its memo beside them.
//! Everything a caller gave that could hold a secret (environment, MCP headers, instructions, input for the occupant)
//! is inside a seal; the rest of the memo holds only what the journal shows anyway.

use crate::{
    restarts::Restarts,
    task::KeptTerminal,
    vault::{Vault, VaultError},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Buf as _, Bytes};
use protocol::{Code, CredentialId, Fault, McpServer, McpServers, Policy, SessionConfig, limits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

const PURPOSE: &str = "session options";
const OUTBOX: &str = "session input";

/// The caller's options for one session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The agent that the session was made from; one that took its name later is another.
    pub(crate) agent: Option<uuid::Uuid>,
    pub(crate) mcp_servers: McpServers,
    pub(crate) system_prompt: Option<String>,
    pub(crate) credential: Option<CredentialId>,
    pub(crate) extra_env: BTreeMap<String, String>,
    /// Where the occupant starts, as it sees it.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Narrows the agent's.
    #[serde(default)]
    pub(crate) policy: Option<Policy>,
    /// Told to the agent through the session, not by a file.
    #[serde(default)]
    pub(crate) instructions: Option<String>,
}

/// A sealed spec with what may be read without opening it. One without a folder is the seal alone.
#[derive(Serialize, Deserialize)]
struct Labelled {
    cwd: String,
    sealed: String,
}

impl Labelled {
    fn read(text: &str) -> Option<Self> {
        // No seal begins so: base64 has no brace.
        text.starts_with('{').then(|| serde_json::from_str(text).ok()).flatten()
    }
}

impl Spec {
    pub(crate) fn seal(&self, vault: &Vault) -> Result<String, Fault> {
        let plain = serde_json::to_vec(self).map_err(internal)?;
        let sealed = vault.seal(PURPOSE, &plain).map_err(|error| internal(&error))?;
        let sealed = STANDARD.encode(sealed);
        match &self.cwd {
            None => Ok(sealed),
            Some(cwd) => serde_json::to_string(&Labelled { cwd: cwd.clone(), sealed }).map_err(internal),
        }
    }

    pub(crate) fn open(vault: &Vault, sealed: &str) -> Result<Self, VaultError> {
        let labelled = Labelled::read(sealed);
        let sealed = labelled.as_ref().map_or(sealed, |labelled| &labelled.sealed);
        let bytes = STANDARD.decode(sealed).map_err(|_| VaultError::Sealed)?;
        let plain = vault.unseal(PURPOSE, &bytes)?;
        serde_json::from_slice(&plain).map_err(|_| VaultError::Sealed)
    }

    /// The folder, which callers see again, of a sealed spec.
    pub(crate) fn visible_cwd(sealed: &str) -> Option<String> {
        Labelled::read(sealed).map(|labelled| labelled.cwd)
    }

    /// Bad values are the caller's to mend; nothing is dropped or cut.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        check_env("extraEnv", &self.extra_env)?;
        if self
            .cwd
            .as_ref()
            .is_some_and(|cwd| !cwd.starts_with('/') || cwd.contains('\0') || cwd.len() > 4096)
        {
            return Err(Fault::invalid("cwd must be an absolute path"));
        }
        if self.mcp_servers.len() > limits::MCP_SERVERS {
            return Err(Fault::invalid(format!("mcpServers has over {} entries", limits::MCP_SERVERS)));
        }
        for (name, server) in &self.mcp_servers {
            if name.is_empty() || name.len() > limits::LABEL_BYTES {
                return Err(Fault::invalid("an MCP server's name must have 1 to 256 bytes"));
            }
            if let McpServer::Command { env, .. } = server {
                check_env("an MCP server's env", env)?;
            }
        }
        let texts = [("systemPrompt", &self.system_prompt), ("additionalInstructions", &self.instructions)];
        match texts
            .iter()
            .find(|(_, text)| text.as_ref().is_some_and(|text| text.len() > limits::INSTRUCTIONS_BYTES))
        {
            Some((name, _)) => {
                Err(Fault::invalid(format!("{name} is over {} bytes", limits::INSTRUCTIONS_BYTES)))
            }
            None => Ok(()),
        }
    }

    /// Every value that must not be seen again, with the name it is redacted under.
    pub(crate) fn secrets(&self) -> Vec<(String, String)> {
        let mut secrets: Vec<(String, String)> =
            self.extra_env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        for server in self.mcp_servers.values() {
            let values = match server {
                McpServer::Url { headers, .. } => headers,
                McpServer::Command { env, .. } => env,
            };
            secrets.extend(values.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        secrets
    }
}

/// Environment must be something a process can be started with.
pub(crate) fn check_env(what: &str, env: &BTreeMap<String, String>) -> Result<(), Fault> {
    if env.len() > limits::ENV_ENTRIES {
        return Err(Fault::invalid(format!("{what} has over {} entries", limits::ENV_ENTRIES)));
    }
    let mut bytes = 0;
    for (name, value) in env {
        if name.is_empty() || name.contains('=') || name.contains('\0') {
            return Err(Fault::invalid(format!("{what}: {name:?} cannot be a variable's name")));
        }
        if value.contains('\0') {
            return Err(Fault::invalid(format!("{what}: the value of {name:?} holds a NUL byte")));
        }
        bytes += name.len() + value.len();
    }
    if bytes > limits::ENV_BYTES {
        return Err(Fault::invalid(format!("{what} is over {} bytes", limits::ENV_BYTES)));
    }
    Ok(())
}

/// What the session task writes down for its successor, in the clear.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Memo {
    /// The agent's own id for the conversation, once it has one.
    pub(crate) agent_session: Option<String>,
    /// Whose that conversation is.
    pub(crate) whose: occupant::Whose,
    /// Settings to apply again whenever the occupant comes back.
    pub(crate) config: Option<SessionConfig>,
    /// The occupant's output up to here is in the journal.
    pub(crate) consumed: u64,
    /// What leads to the occupant's process again.
    pub(crate) tie: Option<place::Tie>,
    /// The occupant's machine; none while it shakes hands.
    pub(crate) saved: Option<occupant::Saved>,
    /// The number of the last input that was given out for this process.
    pub(crate) sent: u64,
    /// Input that may not have arrived yet, sealed.
    pub(crate) outbox: Option<String>,
    /// Commands that the occupant started through us.
    pub(crate) terminals: Vec<KeptTerminal>,
    /// The event of the last prompt that an occupant was given.
    pub(crate) last_prompt: Option<u64>,
    /// What the session's turns have used.
    pub(crate) spent: occupant::Spent,
    /// How often the agent crashed of late and was started again.
    pub(crate) restarts: Restarts,
}

/// Input for the occupant, by number, as long as it is not known to have arrived.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    lines: VecDeque<(u64, Bytes)>,
    sealed: Option<String>,
}

impl Outbox {
    pub(crate) fn push(&mut self, number: u64, bytes: Bytes) {
        self.lines.push_back((number, bytes));
        self.sealed = None;
    }

    /// Everything up to here has arrived.
    pub(crate) fn arrived(&mut self, upto: u64) {
        while self.lines.front().is_some_and(|(number, _)| *number <= upto) {
            self.lines.pop_front();
            self.sealed = None;
        }
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &(u64, Bytes)> {
        self.lines.iter()
    }

    /// None when it is empty. Sealed again only when it changed.
    pub(crate) fn seal(&mut self, vault: &Vault) -> Result<Option<String>, VaultError> {
        if self.lines.is_empty() {
            return Ok(None);
        }
        if self.sealed.is_none() {
            let mut plain = Vec::new();
            for (number, bytes) in &self.lines {
                plain.extend_from_slice(&number.to_le_bytes());
                plain.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                plain.extend_from_slice(bytes);
            }
            self.sealed = Some(STANDARD.encode(vault.seal(OUTBOX, &plain)?));
        }
        Ok(self.sealed.clone())
    }

    pub(crate) fn open(vault: &Vault, sealed: &str) -> Result<Self, VaultError> {
        let bytes = STANDARD.decode(sealed).map_err(|_| VaultError::Sealed)?;
        let mut plain = Bytes::from(vault.unseal(OUTBOX, &bytes)?);
        let mut lines = VecDeque::new();
        while !plain.is_empty() {
            let number = plain.try_get_u64_le().map_err(|_| VaultError::Sealed)?;
            let length = plain.try_get_u64_le().map_err(|_| VaultError::Sealed)?;
            let length = usize::try_from(length).ok().filter(|length| *length <= plain.len());
            lines.push_back((number, plain.split_to(length.ok_or(VaultError::Sealed)?)));
        }
        Ok(Self { lines, sealed: Some(sealed.to_owned()) })
    }
}

impl Memo {
    /// Every process that it leads to.
    pub(crate) fn ties(&self) -> impl Iterator<Item = &place::Tie> {
        self.tie.iter().chain(self.terminals.iter().map(|terminal| &terminal.tie))
    }

    pub(crate) fn encode(&self) -> String {
        // A struct of strings and numbers always encodes.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn decode(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Nothing is left of the process.
    pub(crate) fn let_go(&mut self) {
        (self.consumed, self.sent) = (0, 0);
        (self.tie, self.saved, self.outbox) = (None, None, None);
        self.terminals = Vec::new();
    }

    pub(crate) fn settings(&self) -> SessionConfig {
        self.config.clone().unwrap_or(SessionConfig { model: None, mode: None, thought_level: None })
    }
}

pub(crate) fn internal(error: impl std::fmt::Display) -> Fault {
    tracing::error!(%error, "internal error");
    Fault::new(
        Code::Internal,
        "The server met an error of its own; its log has the details under the request's id",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_spec_shows_nothing_and_opens_again() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(dir.path(), None).unwrap();
        let spec = Spec {
            extra_env: [("TOKEN".to_owned(), "s3cret-value".to_owned())].into(),
            system_prompt: Some("be kind".to_owned()),
            ..Spec::default()
        };
        let sealed = spec.seal(&vault).unwrap();
        assert!(!sealed.contains("s3cret"));
        assert_eq!(Spec::open(&vault, &sealed).unwrap(), spec);
        assert_eq!(Spec::visible_cwd(&sealed), None);
        assert!(Spec::open(&vault, "not base64!").is_err());
        let spec = Spec { cwd: Some("/a folder".to_owned()), ..spec };
        let sealed = spec.seal(&vault).unwrap();
        assert!(!sealed.contains("s3cret"));
        assert_eq!(Spec::visible_cwd(&sealed).as_deref(), Some("/a folder"));
        assert_eq!(Spec::open(&vault, &sealed).unwrap(), spec);
    }

    #[test]
    fn environment_that_no_process_could_take_is_refused() {
        let env = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        for bad in
            [env("", "x"), env("A=B", "x"), env("A\0", "x"), env("A", "x\0y"), env("A", &"x".repeat(300_000))]
        {
            assert!(check_env("extraEnv", &bad).is_err());
        }
        let many = (0..=limits::ENV_ENTRIES).map(|n| (format!("V{n}"), String::new())).collect();
        assert!(check_env("extraEnv", &many).is_err());
        assert!(check_env("extraEnv", &env("PATH", "/bin")).is_ok());
    }

    #[test]
    fn an_old_or_empty_memo_is_readable() {
        assert_eq!(Memo::decode("{}"), Memo::default());
        assert_eq!(Memo::decode(""), Memo::default());
        let tie = place::Tie { keeper: "k".into(), epoch: u64::MAX, process: 1 };
        let mut memo =
            Memo { agent_session: Some("s".into()), consumed: 7, tie: Some(tie), ..Memo::default() };
        assert_eq!(Memo::decode(&memo.encode()), memo);
        memo.let_go();
        assert_eq!(memo, Memo { agent_session: Some("s".into()), ..Memo::default() });
    }

    #[test]
    fn an_outbox_is_sealed_and_keeps_what_has_not_arrived() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(dir.path(), None).unwrap();
        let mut outbox = Outbox::default();
        assert_eq!(outbox.seal(&vault).unwrap(), None);
        for (number, line) in [(1, "one"), (2, ""), (5, "s3cret-value")] {
            outbox.push(number, Bytes::from_static(line.as_bytes()));
        }
        outbox.arrived(1);
        let sealed = outbox.seal(&vault).unwrap().unwrap();
        assert!(!sealed.contains("s3cret"));
        assert_eq!(outbox.seal(&vault).unwrap().as_ref(), Some(&sealed), "the same until it changes");
        let opened = Outbox::open(&vault, &sealed).unwrap();
        let lines: Vec<_> = opened.lines().cloned().collect();
        assert_eq!(lines, [(2, Bytes::new()), (5, Bytes::from_static(b"s3cret-value"))]);
        outbox.arrived(5);
        assert_eq!(outbox.seal(&vault).unwrap(), None);
        assert!(Outbox::open(&vault, "not base64!").is_err());
    }
}
