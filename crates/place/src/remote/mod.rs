//! Other machines and containers: reaching them, and lodging keepers there.
//!
//! The session room asks [`Remotes`] for a target and gets a [`Reached`], and from that a [`Keeper`] like a local one.
//! The keeper on the other side is this build's own program, uploaded once; its socket is carried here by the
//! streams of a program that relays to it, through the system's SSH client or the container engine. So a connection
//! that drops, or a server that restarts, loses nothing: another relay takes the keeper up again by its [`Lodged`].
//! This module never writes a secret to disk or onto a command line, and trusts no host key that nobody vouched for.

mod bare;
mod channel;
mod docker;
mod error;
mod reached;
mod site;
mod ssh;
mod target;

pub use error::RemoteError;
pub use reached::{Joined, Lodged, Reached};
pub use site::Machine;
pub use target::{Docker, Password, Ssh, Target};

#[cfg(doc)]
use crate::keeper::Keeper;
use crate::keeper::{binary, blocking};
use channel::Link;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

/// What the operator decides about other machines.
#[derive(Debug, Clone)]
pub struct Policy {
    pub trust: Trust,
    pub lodging: Lodging,
    /// From the first packet to a connection that is authenticated.
    pub connect: Duration,
    /// How long a keeper over there waits for a server before it ends its processes and itself.
    pub orphan: Duration,
    /// Read instead of the user's and the system's own SSH configuration.
    pub ssh_config: Option<PathBuf>,
}

/// Which host keys are good, where the caller gives no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Those in the user's and the system's lists.
    Known,
    /// Also a new host's, which is then remembered in the data folder. A changed one never.
    FirstUse,
}

/// Whether keepers may be uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lodging {
    Allowed,
    Forbidden,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            trust: Trust::Known,
            lodging: Lodging::Allowed,
            connect: Duration::from_secs(15),
            orphan: Duration::from_secs(24 * 60 * 60),
            ssh_config: None,
        }
    }
}

/// All connections to other machines of one data folder. A cheap handle.
#[derive(Debug, Clone)]
pub struct Remotes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    policy: Policy,
    data: PathBuf,
    /// Makes names of connections from what they are to, credentials and all, and gives nothing of that away.
    secret: [u8; 32],
    ssh: Mutex<HashMap<String, Weak<ssh::Connection>>>,
}

impl Remotes {
    /// Sockets and learnt host keys are in `data/ssh`, the program in `data/bin`.
    pub fn new(data: &Path, policy: Policy) -> Result<Self, RemoteError> {
        ssh::sweep(&data.join("ssh"))?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)
            .map_err(|error| RemoteError::io("draw a random number")(std::io::Error::other(error)))?;
        let data = data.to_owned();
        Ok(Self { inner: Arc::new(Inner { policy, data, secret, ssh: Mutex::default() }) })
    }

    /// Connects to a target, or shares the connection that is there already, and looks at what is on the other side.
    pub async fn connect(
        &self,
        target: &Target,
        password: Option<&Password>,
    ) -> Result<Reached, RemoteError> {
        let link = self.link(target, password).await?;
        let machine = site::look(&link, &[]).await?;
        Ok(Reached::new(link, machine, self.inner.policy.clone()))
    }

    /// The user and the port that the SSH configuration and a target come to; asks nobody but the configuration.
    pub async fn account(&self, ssh: &Ssh) -> Result<(String, String), RemoteError> {
        Target::Ssh(ssh.clone()).check()?;
        let resolved = ssh::resolve(ssh, &self.inner.policy).await?;
        Ok((resolved.user, resolved.port))
    }

    /// Takes up a keeper that this server or another one lodged there. [`RemoteError::Lost`] means that it is gone for
    /// good; anything else may be tried again.
    pub async fn take_up(
        &self,
        target: &Target,
        password: Option<&Password>,
        lodged: &Lodged,
        token: [u8; 32],
    ) -> Result<crate::keeper::Keeper, RemoteError> {
        let link = self.link(target, password).await?;
        reached::take_up(&link, lodged, token).await
    }

    /// Ends a keeper and all that it has, for who has no connection to it any more. One that is gone is ended already,
    /// and so is one whose container does not run.
    pub async fn end(
        &self,
        target: &Target,
        password: Option<&Password>,
        lodged: &Lodged,
        token: [u8; 32],
    ) -> Result<(), RemoteError> {
        let keeper = match self.take_up(target, password, lodged, token).await {
            Err(RemoteError::Lost { .. } | RemoteError::NoContainer(_)) => return Ok(()),
            Err(RemoteError::NotRunning { state, .. }) if state != docker::PAUSED => return Ok(()),
            keeper => keeper?,
        };
        // A connection that breaks now does so because the keeper ends.
        if keeper.shutdown().await.is_ok() {
            keeper.gone().await;
        }
        Ok(())
    }

    async fn link(&self, target: &Target, password: Option<&Password>) -> Result<Link, RemoteError> {
        target.check()?;
        match target {
            Target::Docker(docker) => Ok(Link::Docker(docker::Container::find(docker).await?)),
            Target::Ssh(ssh) => {
                let programs = self.inner.data.join("bin");
                let program = blocking(move || binary::written(&programs)).await?;
                let resolved = ssh::resolve(ssh, &self.inner.policy).await?;
                let known = ssh::Known { folder: self.inner.data.join("ssh"), program };
                let name = self.name(ssh, &resolved, password);
                let mut all = self.inner.ssh.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|_, connection| connection.strong_count() > 0);
                if let Some(connection) = all.get(&name).and_then(Weak::upgrade) {
                    return Ok(Link::Ssh(connection));
                }
                let policy = self.inner.policy.clone();
                let made = ssh::Connection::new(&name, ssh, resolved, password.cloned(), known, policy);
                let made = Arc::new(made);
                all.insert(name, Arc::downgrade(&made));
                Ok(Link::Ssh(made))
            }
        }
    }

    /// One name for all that lead to the same user on the same host by the same credential.
    fn name(&self, ssh: &Ssh, resolved: &ssh::Resolved, password: Option<&Password>) -> String {
        let mut hash = blake3::Hasher::new_keyed(&self.inner.secret);
        let key = ssh.key_path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let parts = [
            Some(ssh.host.as_str()),
            Some(&*resolved.user),
            Some(&*resolved.port),
            key.as_deref(),
            ssh.fingerprint.as_deref(),
            password.map(Password::text),
        ];
        for part in parts {
            let (kind, part) = part.map_or((0, ""), |part| (1, part));
            hash.update(&[kind]).update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hash.finalize().to_hex()[..20].to_owned()
    }
}
