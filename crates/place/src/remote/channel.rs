//! One program on the other side and its streams, whichever way they are carried.

use super::{RemoteError, docker::Container, ssh::Connection};
use crate::keeper::Pipe;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Child,
};

/// Said before anything that counts: whatever a login prints comes before it.
const MARK: &str = "outlast: here";
/// What a login may print, and what is kept of what programs complain.
const NOISE_BYTES: usize = 64 * 1024;
/// The answer of one of our scripts; an environment is in it.
const ANSWER_BYTES: u64 = 4 * 1024 * 1024;
/// How long the other side may take to run the first word of a script.
const BEGIN: Duration = Duration::from_secs(20);

/// The way to a target.
#[derive(Debug, Clone)]
pub(crate) enum Link {
    Ssh(Arc<Connection>),
    Docker(Arc<Container>),
}

impl Link {
    /// For people.
    pub(crate) fn whom(&self) -> String {
        match self {
            Self::Ssh(connection) => connection.whom(),
            Self::Docker(container) => container.whom(),
        }
    }

    /// What tells this machine from another that has its name: a container's own id.
    pub(crate) fn machine(&self) -> String {
        match self {
            Self::Ssh(_) => String::new(),
            Self::Docker(container) => container.id().to_owned(),
        }
    }

    /// Runs a script of the plainest shell, whose streams from its first word on are the channel's.
    pub(crate) async fn open(&self, script: &str) -> Result<Channel, RemoteError> {
        let script = format!("echo '{MARK}'; {script}");
        let mut channel = match self {
            Self::Ssh(connection) => connection.open(&script).await,
            Self::Docker(container) => container.open(&script).await,
        }?;
        // Others who come while it is open share the way.
        channel.pipe.hold = Box::new((channel.pipe.hold, self.clone()));
        Ok(channel)
    }

    /// Runs a script to its end. What it wrote, and what it complained of.
    pub(crate) async fn run(
        &self,
        script: &str,
        input: &[u8],
        limit: Duration,
    ) -> Result<(Vec<u8>, String), RemoteError> {
        let broken = |why: String| RemoteError::Broken { whom: self.whom(), why };
        let channel = self.open(script).await?;
        let complaints = channel.complaints.clone();
        let Pipe { read, mut write, hold } = channel.pipe;
        let mut answer = Vec::new();
        let both = async {
            let sending = async move {
                // A script that has had enough closes its end, and says why in its answer.
                let _ = write.write_all(input).await;
                let _ = write.shutdown().await;
                // Only now a pipe is closed.
                drop(write);
                std::future::pending::<std::convert::Infallible>().await
            };
            let mut bounded = read.take(ANSWER_BYTES);
            // An engine whose program ended may never take the rest.
            tokio::select! {
                read = bounded.read_to_end(&mut answer) => read,
                never = sending => match never {},
            }
        };
        let read = tokio::time::timeout(limit, both).await;
        drop(hold);
        match read {
            Err(_) => Err(broken(format!("no answer within {limit:?}"))),
            Ok(Err(error)) => Err(broken(error.to_string())),
            Ok(Ok(_)) => Ok((answer, complaints.text())),
        }
    }
}

/// An open program. Dropping it closes its streams.
pub(crate) struct Channel {
    pub(crate) pipe: Pipe,
    pub(crate) complaints: Complaints,
}

/// What came on standard error, the first of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Complaints(Arc<Mutex<Vec<u8>>>);

impl Complaints {
    pub(crate) fn add(&self, bytes: &[u8]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = NOISE_BYTES.saturating_sub(all.len());
        all.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    pub(crate) fn text(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&all).trim().to_owned()
    }

    /// Reads until the end, whoever asks for it.
    pub(crate) async fn drain(self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; 4096];
        while let Ok(length) = from.read(&mut buffer).await {
            if length == 0 {
                return;
            }
            self.add(&buffer[..length]);
        }
    }
}

/// Why a program did not get to the mark. What it said instead is in `said`.
pub(crate) enum NotBegun {
    TimedOut,
    Ended { said: String },
}

/// Reads past the mark.
pub(crate) async fn begun(
    read: impl AsyncRead + Send + Unpin + 'static,
    write: Box<dyn tokio::io::AsyncWrite + Send + Unpin>,
    child: Option<Child>,
    complaints: Complaints,
) -> Result<Channel, (NotBegun, Option<Child>)> {
    let mut read = BufReader::with_capacity(NOISE_BYTES, read);
    let mut said = Vec::new();
    let past = async {
        loop {
            let mut line = Vec::new();
            let room = NOISE_BYTES.saturating_sub(said.len()) as u64;
            match (&mut read).take(room).read_until(b'\n', &mut line).await {
                Ok(length) if length > 0 => {}
                Ok(_) | Err(_) => return false,
            }
            if line.strip_suffix(b"\n").is_some_and(|line| line == MARK.as_bytes()) {
                return true;
            }
            said.extend(line);
        }
    };
    match tokio::time::timeout(BEGIN, past).await {
        Err(_) => Err((NotBegun::TimedOut, child)),
        Ok(false) => Err((NotBegun::Ended { said: String::from_utf8_lossy(&said).trim().to_owned() }, child)),
        Ok(true) => {
            let pipe = Pipe { read: Box::new(read), write, hold: Box::new(child) };
            Ok(Channel { pipe, complaints })
        }
    }
}

/// A word of the plainest shell, whatever it holds.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $x"), "'it'\\''s $x'");
    }

    #[tokio::test]
    async fn whatever_a_login_prints_is_not_the_answer() {
        let text = format!("Welcome!\n{MARK} not\n{MARK}\nreal\n{MARK}\n");
        let read = std::io::Cursor::new(text.into_bytes());
        let channel = begun(read, Box::new(tokio::io::sink()), None, Complaints::default()).await;
        let Ok(mut channel) = channel else { panic!("the mark is there") };
        let mut rest = String::new();
        channel.pipe.read.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, format!("real\n{MARK}\n"));
        let read = std::io::Cursor::new(b"no shell for you\n".to_vec());
        let none = begun(read, Box::new(tokio::io::sink()), None, Complaints::default()).await;
        assert!(matches!(none, Err((NotBegun::Ended { said }, None)) if said == "no shell for you"));
    }
}
