//! The password, told to the SSH client when it asks and to nobody else.
//!
//! The client runs the keeper's program to ask, which asks here over a socket. So the password is on no command line,
//! in no environment and in no file. It is given only to the question of the host that is meant: a jump host on the
//! way asks too.

use super::{RemoteError, Resolved};
use crate::remote::Password;
use ::keeper::roles::ASK_BYTES;
use std::{
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

/// Answers questions for as long as it lives.
pub(super) struct Asking {
    name: String,
    path: PathBuf,
    answering: JoinHandle<()>,
}

impl Asking {
    pub(super) fn start(folder: &Path, password: Password, resolved: &Resolved) -> Result<Self, RemoteError> {
        let failed = |error| RemoteError::io("listen for the SSH client's questions")(error);
        let name = format!("ask-{}", uuid::Uuid::new_v4().simple());
        // A socket's path holds 107 bytes, so the way there goes through an open folder.
        let open = fs::File::open(folder).map_err(failed)?;
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{name}", open.as_raw_fd()));
        let listener = listener.map_err(failed)?;
        let asked = Asked::new(resolved);
        let answering = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Whoever hangs up in the middle gets nothing.
                let _ = answer(client, &asked, &password).await;
            }
        });
        Ok(Self { path: folder.join(&name), name, answering })
    }

    /// The socket's name, for a client that runs in its folder.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.answering.abort();
        let _ = fs::remove_file(&self.path);
    }
}

async fn answer(mut client: UnixStream, asked: &Asked, password: &Password) -> std::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if client.peer_cred()?.uid() != own {
        return Ok(());
    }
    let mut question = Vec::new();
    (&mut client).take(ASK_BYTES as u64).read_to_end(&mut question).await?;
    if asked.is_meant(&String::from_utf8_lossy(&question)) {
        client.write_all(password.text().as_bytes()).await?;
    }
    client.shutdown().await
}

/// Whose question counts.
struct Asked {
    /// `user@host`, in each way that the client may spell it.
    names: Vec<String>,
    direct: bool,
}

impl Asked {
    fn new(resolved: &Resolved) -> Self {
        let hosts = [Some(&resolved.host), resolved.alias.as_ref()];
        let names =
            hosts.into_iter().flatten().map(|host| format!("{}@{host}", resolved.user).to_lowercase());
        Self { names: names.collect(), direct: resolved.direct }
    }

    fn is_meant(&self, question: &str) -> bool {
        let question = question.trim().to_lowercase();
        let whole = |name: &String| {
            question.starts_with(&format!("{name}'s password")) || question.starts_with(&format!("({name}) "))
        };
        // A passphrase is a key's, and a yes is nobody's to give.
        if question.contains("passphrase") || question.contains("yes/no") {
            return false;
        }
        // Older clients do not say whose question it is, which matters only where there are several.
        self.names.iter().any(whole) || (self.direct && question.starts_with("password"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_that_is_meant_gets_the_password() {
        let asked = |direct| Asked { names: vec!["me@db.example.org".to_owned()], direct };
        for question in ["me@db.example.org's password: ", "(me@db.example.org) Password: "] {
            assert!(asked(false).is_meant(question), "{question}");
        }
        for question in [
            "me@jump.example.org's password: ",
            "(me@jump.example.org) Password: ",
            "x@jump's password for me@db.example.org's password",
            "Enter passphrase for key '/me@db.example.org's password': ",
            "Are you sure you want to continue connecting (yes/no/[fingerprint])? ",
            "Password: ",
            "",
        ] {
            assert!(!asked(false).is_meant(question), "{question}");
        }
        assert!(asked(true).is_meant("Password: "));
    }
}
