//! Where connections come from: an address, a Unix socket, or both.
//!
//! The socket is for the server's own user. Its folder keeps others out, and whoever connects all the same is sent
//! away; the key is asked for there as everywhere.

use crate::door::BindError;
use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

pub(crate) struct Listeners {
    tcp: Option<TcpListener>,
    pub(crate) addr: Option<SocketAddr>,
    unix: Option<Socket>,
}

pub(crate) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A bound socket; its file goes with it.
struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// The file that was made: a successor may have put another in its place.
    inode: u64,
    owner: u32,
}

impl Listeners {
    pub(crate) async fn bind(listen: Option<SocketAddr>, socket: Option<&Path>) -> Result<Self, BindError> {
        let tcp = match listen {
            Some(addr) => {
                Some(TcpListener::bind(addr).await.map_err(|source| BindError::Listen { addr, source })?)
            }
            None => None,
        };
        let addr = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
        let bound = |path: &Path| {
            Socket::bind(path).map_err(|source| BindError::Socket { path: path.to_owned(), source })
        };
        Ok(Self { tcp, addr, unix: socket.map(bound).transpose()? })
    }

    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        let tcp = async {
            match &self.tcp {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        let unix = async {
            match &self.unix {
                Some(socket) => socket.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = tcp => {
                let (stream, _) = accepted?;
                // A frame should leave when it is written, not when the next one comes.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream))
            }
            accepted = unix => Ok(Accepted::Unix(accepted?)),
        }
    }
}

impl Socket {
    fn bind(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let made = fs::metadata(path)?;
        Ok(Self { listener, path: path.to_owned(), inode: made.ino(), owner: made.uid() })
    }

    async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let visitor = stream.peer_cred()?.uid();
            if visitor == self.owner || visitor == 0 {
                return Ok(stream);
            }
            tracing::warn!(uid = visitor, "another user came to the socket and was sent away");
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_successors_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Socket::bind(&path).unwrap();
        let second = Socket::bind(&path).unwrap();
        drop(first);
        assert!(path.exists(), "it is the second one's");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (came, _client) = tokio::join!(second.accept(), UnixStream::connect(&path));
        came.unwrap();
        drop(second);
        assert!(!path.exists());
    }
}
