//! SSH by the system's own client: its configuration, agent, jump hosts and certificates are the user's.
//!
//! A connection is one or more masters of the client's multiplexing. A master is started in the background, carries as
//! many sessions as the host lets it, and ends by itself a while after its last one, also when the server was killed.
//! Its control socket has a relative name, because a socket's path holds 107 bytes and a data folder's may be
//! longer; the client is always run in the socket's folder. A session that finds no master fails at once and never
//! connects for itself.

mod ask;
mod verdict;

use super::{
    Password, Policy, RemoteError, Ssh, Trust,
    channel::{self, Channel, Complaints, NotBegun, quoted},
};
use ask::Asking;
use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{io::AsyncReadExt, process::Command, sync::Mutex};
use verdict::Refusal;
pub(crate) use verdict::Resolved;

const PROGRAM: &str = "ssh";
/// How long a master stays without a session.
const PERSIST: &str = "60";
/// A host that says nothing for so many seconds is asked, and given up after so many questions.
const ALIVE_SECONDS: u32 = 5;
const ALIVE_TIMES: u32 = 3;
/// How long the client may take to read its configuration.
const RESOLVE: Duration = Duration::from_secs(10);
/// What the client says of itself, at most.
const LOG_BYTES: u64 = 256 * 1024;
/// Connections to one account; each carries ten sessions by a host's default.
const MASTERS: usize = 16;
/// Tried in this order when a fingerprint is given: it does not say of which kind the key is.
const KEY_KINDS: [&str; 3] = [
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256",
    "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521",
    "rsa-sha2-512,rsa-sha2-256",
];
/// Host keys that were trusted on first use.
const LEARNT: &str = "known_hosts";

/// Where the client finds what is ours.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) folder: PathBuf,
    /// The keeper's program, which answers the client's questions.
    pub(crate) program: PathBuf,
}

/// One account on one host, by one credential.
#[derive(Debug)]
pub(crate) struct Connection {
    name: String,
    target: Ssh,
    resolved: Resolved,
    password: Option<Password>,
    known: Known,
    policy: Policy,
    masters: Mutex<Vec<String>>,
    number: AtomicU64,
}

/// Makes the folder, and removes what a stopped server left in it. Its masters, if any, end by themselves.
pub(crate) fn sweep(folder: &Path) -> Result<(), RemoteError> {
    let failed = |error| RemoteError::io("prepare the folder for SSH connections")(error);
    fs::DirBuilder::new().mode(0o700).recursive(true).create(folder).map_err(failed)?;
    for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
        if entry.file_name() != LEARNT {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// What the client makes of a target.
pub(crate) async fn resolve(target: &Ssh, policy: &Policy) -> Result<Resolved, RemoteError> {
    let mut command = client(Path::new("/"), policy);
    command.arg("-G").args(address(target)).stderr(Stdio::piped()).stdout(Stdio::piped());
    let limit = RESOLVE.min(policy.connect);
    let output = match tokio::time::timeout(limit, command.output()).await {
        Err(_) => return Err(RemoteError::TimedOut { whom: target.host.clone(), limit }),
        Ok(output) => output.map_err(no_client)?,
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match Resolved::parse(&text).filter(|_| output.status.success()) {
        Some(resolved) => Ok(resolved),
        None => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(RemoteError::BadTarget(format!("the SSH configuration cannot be used: {why}")))
        }
    }
}

fn no_client(source: io::Error) -> RemoteError {
    RemoteError::NoClient { program: PROGRAM, source }
}

#[expect(clippy::disallowed_methods, reason = "this is the room in which processes are spawned")]
fn client(folder: &Path, policy: &Policy) -> Command {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    if let Some(config) = &policy.ssh_config {
        command.arg("-F").arg(config);
    }
    command
}

/// Last on the command line. Nothing in it is an option.
fn address(target: &Ssh) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    if let Some(user) = &target.user {
        args.extend(["-l".into(), user.into()]);
    }
    if let Some(port) = target.port {
        args.extend(["-p".into(), port.to_string().into()]);
    }
    if let Some(path) = &target.key_path {
        args.extend(["-i".into(), path.into(), "-o".into(), "IdentitiesOnly=yes".into()]);
    }
    args.extend(["--".into(), (&target.host).into()]);
    args
}

impl Connection {
    pub(crate) fn new(
        name: &str,
        target: &Ssh,
        resolved: Resolved,
        password: Option<Password>,
        known: Known,
        policy: Policy,
    ) -> Self {
        let (name, target) = (name.to_owned(), target.clone());
        let (masters, number) = (Mutex::default(), AtomicU64::new(0));
        Self { name, target, resolved, password, known, policy, masters, number }
    }

    pub(crate) fn whom(&self) -> String {
        let Resolved { user, port, .. } = &self.resolved;
        let port = if port == "22" { String::new() } else { format!(":{port}") };
        format!("{user}@{}{port}", self.target.host)
    }

    pub(crate) fn account(&self) -> (&str, &str) {
        (&self.resolved.user, &self.resolved.port)
    }

    /// Runs a script in a session of its own.
    pub(crate) async fn open(&self, script: &str) -> Result<Channel, RemoteError> {
        let mut masters = self.masters.lock().await;
        let mut full = None;
        let mut at = 0;
        while let Some(socket) = masters.get(at) {
            match self.session(socket, script).await? {
                Session::Open(channel) => return Ok(*channel),
                Session::Full(why) => {
                    full = Some(why);
                    at += 1;
                }
                Session::Dead => {
                    let socket = masters.remove(at);
                    self.end(&socket).await;
                }
            }
        }
        if masters.len() >= MASTERS {
            return Err(RemoteError::Full { whom: self.whom(), why: full.unwrap_or_default() });
        }
        let socket = self.master().await?;
        match self.session(&socket, script).await? {
            Session::Open(channel) => {
                masters.push(socket);
                Ok(*channel)
            }
            Session::Full(why) => Err(RemoteError::Full { whom: self.whom(), why }),
            Session::Dead => {
                let why = "it closed a connection that it had just let in".to_owned();
                Err(RemoteError::Unreachable { whom: self.whom(), why })
            }
        }
    }

    /// A session of a master that may or may not be there still.
    async fn session(&self, socket: &str, script: &str) -> Result<Session, RemoteError> {
        let mut command = client(&self.known.folder, &Policy { ssh_config: None, ..self.policy.clone() });
        command.args(["-F", "none", "-S", socket, "-T", "-e", "none"]);
        // Without its master it would connect for itself, as somebody else perhaps.
        command.args(["-o", "ProxyCommand=false", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]);
        command.arg("--").arg(&self.target.host).arg(format!("exec /bin/sh -c {}", quoted(script)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(no_client)?;
        let missing = || RemoteError::io("run the SSH client")(io::Error::other("a pipe is missing"));
        let (stdin, stdout, stderr) = (
            child.stdin.take().ok_or_else(missing)?,
            child.stdout.take().ok_or_else(missing)?,
            child.stderr.take().ok_or_else(missing)?,
        );
        let complaints = Complaints::default();
        let draining = tokio::spawn(complaints.clone().drain(stderr));
        let begun = channel::begun(stdout, Box::new(stdin), Some(child), complaints.clone()).await;
        let (not_begun, child) = match begun {
            Ok(channel) => return Ok(Session::Open(Box::new(channel))),
            Err(not) => not,
        };
        let said = match not_begun {
            // The host, or the way there, is gone without a word.
            NotBegun::TimedOut => return Ok(Session::Dead),
            NotBegun::Ended { said } => said,
        };
        if let Some(mut child) = child {
            let _ = child.wait().await;
        }
        let _ = draining.await;
        match verdict::of_session(&complaints.text()) {
            verdict::SessionEnd::Full(why) => Ok(Session::Full(why)),
            verdict::SessionEnd::Dead => Ok(Session::Dead),
            verdict::SessionEnd::NoShell(why) => {
                let why = [said, why].into_iter().find(|text| !text.is_empty());
                let why = why.unwrap_or_else(|| "it ends every session at once".to_owned());
                Err(RemoteError::NoShell { whom: self.whom(), why })
            }
        }
    }

    /// Connects. The name of the master's socket.
    async fn master(&self) -> Result<String, RemoteError> {
        let kinds: &[&str] = if self.target.fingerprint.is_some() { &KEY_KINDS } else { &[""] };
        let mut offered = None;
        for kind in kinds {
            let socket = format!("c-{}-{}", self.name, self.number.fetch_add(1, Ordering::Relaxed));
            let refusal = match self.connect(&socket, kind).await? {
                Ok(()) => return Ok(socket),
                Err(refusal) => refusal,
            };
            match refusal {
                // The host may have the right key of another kind.
                Refusal::HostKey { offered: key, .. } if self.target.fingerprint.is_some() => {
                    offered = offered.or(key);
                }
                Refusal::NoSuchKeyKind if self.target.fingerprint.is_some() => {}
                other => return Err(other.error(self.whom())),
            }
        }
        Err(RemoteError::HostKeyWrong { whom: self.whom(), offered })
    }

    async fn connect(&self, socket: &str, kind: &str) -> Result<Result<(), Refusal>, RemoteError> {
        let folder = &self.known.folder;
        let mut command = client(folder, &self.policy);
        command.args(["-f", "-N", "-M", "-T"]);
        for option in self.options(socket, kind) {
            command.arg("-o").arg(option);
        }
        let asking = match &self.password {
            Some(password) => Some(Asking::start(folder, password.clone(), &self.resolved)?),
            None => None,
        };
        if let Some(asking) = &asking {
            command.env("SSH_ASKPASS", &self.known.program).env("SSH_ASKPASS_REQUIRE", "force");
            command.env(::keeper::roles::ASK, asking.name());
            // Before OpenSSH 8.4 only who has a display is asked in this way.
            command.env("DISPLAY", ":0");
        }
        command.args(address(&self.target));
        let log = folder.join(format!("{socket}.log"));
        let (status, text) = self.watched(command, &log).await?;
        drop(asking);
        if status.success() {
            return Ok(Ok(()));
        }
        Ok(Err(verdict::of_connect(&text)))
    }

    /// Runs the client until it is in the background or gave up. What it says goes to a file, because whoever stands
    /// between, a jump host's client perhaps, goes on saying it.
    async fn watched(&self, mut command: Command, log: &Path) -> Result<(ExitStatus, String), RemoteError> {
        let failed = |error| RemoteError::io("keep the SSH client's messages")(error);
        let open = || fs::OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(log);
        let file = open().map_err(failed)?;
        command.stdout(Stdio::null()).stderr(file.try_clone().map_err(failed)?);
        let reader = open().map_err(failed);
        let _ = fs::remove_file(log);
        let mut reader = tokio::fs::File::from_std(reader?).take(LOG_BYTES);
        let mut child = command.spawn().map_err(no_client)?;
        let limit = self.policy.connect;
        let status = match tokio::time::timeout(limit, child.wait()).await {
            Ok(status) => status.map_err(RemoteError::io("wait for the SSH client"))?,
            Err(_) => {
                let _ = child.kill().await;
                return Err(RemoteError::TimedOut { whom: self.whom(), limit });
            }
        };
        let mut text = Vec::new();
        reader.read_to_end(&mut text).await.map_err(failed)?;
        Ok((status, String::from_utf8_lossy(&text).into_owned()))
    }

    /// What the user's configuration must not decide.
    fn options(&self, socket: &str, kind: &str) -> Vec<OsString> {
        let mut options: Vec<OsString> = [
            "LogLevel=DEBUG1",
            "RemoteCommand=none",
            "PermitLocalCommand=no",
            "ClearAllForwardings=yes",
            "ForwardAgent=no",
            "ForwardX11=no",
            "Tunnel=no",
            "ConnectionAttempts=1",
            "NumberOfPasswordPrompts=1",
            "TCPKeepAlive=yes",
        ]
        .into_iter()
        .map(OsString::from)
        .collect();
        let mut add = |option: String| options.push(option.into());
        add(format!("ControlPath={socket}"));
        add(format!("ControlPersist={PERSIST}"));
        add(format!("ConnectTimeout={}", self.policy.connect.as_secs().max(1)));
        add(format!("ServerAliveInterval={ALIVE_SECONDS}"));
        add(format!("ServerAliveCountMax={ALIVE_TIMES}"));
        match &self.password {
            None => add("BatchMode=yes".to_owned()),
            // A wrong password must not get in by a key of the server's own user.
            Some(_) => {
                add("PreferredAuthentications=password,keyboard-interactive".to_owned());
                add("PubkeyAuthentication=no".to_owned());
                add("GSSAPIAuthentication=no".to_owned());
                add("HostbasedAuthentication=no".to_owned());
            }
        }
        match (&self.target.fingerprint, self.policy.trust) {
            (Some(pin), _) => {
                add("StrictHostKeyChecking=yes".to_owned());
                add("UserKnownHostsFile=none".to_owned());
                add("GlobalKnownHostsFile=none".to_owned());
                add("VerifyHostKeyDNS=no".to_owned());
                add(format!("HostKeyAlgorithms={kind}"));
                let program = verdict::word(&self.known.program.to_string_lossy());
                let role = ::keeper::roles::KNOWN;
                add(format!("KnownHostsCommand={program} {role} {pin} %f %t %K %H"));
            }
            (None, Trust::Known) => add("StrictHostKeyChecking=yes".to_owned()),
            (None, Trust::FirstUse) => {
                add("StrictHostKeyChecking=accept-new".to_owned());
                let own = verdict::word(&self.known.folder.join(LEARNT).to_string_lossy());
                add(format!("UserKnownHostsFile={own} {}", self.resolved.known_hosts));
            }
        }
        options
    }

    /// Ends a master that no longer answers, as far as it still can be told.
    async fn end(&self, socket: &str) {
        let mut command = client(&self.known.folder, &Policy { ssh_config: None, ..self.policy.clone() });
        command.args(["-F", "none", "-S", socket, "-O", "exit", "--"]).arg(&self.target.host);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let ended = tokio::time::timeout(RESOLVE, command.status()).await;
        if ended.is_err() {
            tracing::warn!(whom = self.whom(), "an SSH connection did not end when it was told to");
        }
        let _ = fs::remove_file(self.known.folder.join(socket));
    }
}

enum Session {
    Open(Box<Channel>),
    Full(String),
    Dead,
}
