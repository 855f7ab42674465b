//! `DATA/server.json`: where the server of a data folder listens, while it runs. A crash leaves it behind, so
//! it is a hint for clients and never a lock.

use crate::exit::Failure;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

const FILE_NAME: &str = "server.json";
const SOCKET_NAME: &str = "server.sock";
/// A socket's path has no room for more.
const SOCKET_PATH_BYTES: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) url: String,
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// A bridge started it, and it ends when nobody needs it.
    #[serde(default)]
    pub(crate) background: bool,
    /// Its Unix socket, for bridges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) socket: Option<PathBuf>,
}

/// Where the server of a data folder has its socket; none when the folder's path is too long for one.
pub(crate) fn socket_path(data: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(data).ok()?.join(SOCKET_NAME);
    (path.as_os_str().len() <= SOCKET_PATH_BYTES).then_some(path)
}

/// A socket as an address for clients.
pub(crate) fn socket_url(path: &Path) -> String {
    format!("unix:{}", path.display())
}

impl Running {
    /// This process, which listens there.
    pub(crate) fn here(url: String, socket: Option<PathBuf>) -> Self {
        Self {
            url,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            background: false,
            socket,
        }
    }

    /// What a server left there; nothing when there is none, or none that can be read.
    pub(crate) fn read(data: &Path) -> Option<Self> {
        let text = fs::read_to_string(data.join(FILE_NAME)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Is the process that wrote it there? Another one may have its number by now.
    pub(crate) fn is_alive(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }

    /// Writes the file, readable by its owner alone. It is removed with the value that is returned.
    pub(crate) fn announce(&self, data: &Path) -> Result<Announced, Failure> {
        let path = data.join(FILE_NAME);
        let broken =
            |error: io::Error| Failure::Broken(format!("{} cannot be written: {error}", path.display()));
        let text = serde_json::to_string(self).map_err(|error| broken(error.into()))?;
        let new = path.with_extension("json.new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(broken)?;
        writeln!(file, "{text}").map_err(broken)?;
        fs::rename(&new, &path).map_err(broken)?;
        Ok(Announced { data: data.to_owned(), pid: self.pid })
    }
}

/// The file is there; dropping this removes it.
#[derive(Debug)]
pub(crate) struct Announced {
    data: PathBuf,
    pid: u32,
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Another server may have taken the folder over since.
        if Running::read(&self.data).is_some_and(|running| running.pid == self.pid) {
            let _ = fs::remove_file(self.data.join(FILE_NAME));
        }
    }
}

/// An address that clients on this machine can use: "every address" is none.
pub(crate) fn reachable_url(addr: SocketAddr) -> String {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, addr.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_file_is_there_while_the_server_is() {
        let data = tempfile::tempdir().unwrap();
        let running = Running::here("http://127.0.0.1:4100".to_owned(), None);
        let announced = running.announce(data.path()).unwrap();
        assert_eq!(Running::read(data.path()), Some(running));
        let mode = fs::metadata(data.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(announced);
        assert_eq!(Running::read(data.path()), None);
    }

    #[test]
    fn a_successors_file_is_left_alone() {
        let data = tempfile::tempdir().unwrap();
        let ours = Running::here("http://127.0.0.1:1".to_owned(), None);
        let announced = ours.announce(data.path()).unwrap();
        let theirs = Running { pid: ours.pid + 1, ..ours };
        let kept = theirs.announce(data.path()).unwrap();
        drop(announced);
        assert_eq!(Running::read(data.path()), Some(theirs));
        drop(kept);
    }

    #[test]
    fn a_long_path_has_no_socket() {
        assert_eq!(socket_path(Path::new("/data")), Some(PathBuf::from("/data/server.sock")));
        assert_eq!(socket_path(&Path::new("/").join("x".repeat(100))), None);
    }

    #[test]
    fn junk_is_no_server() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join(FILE_NAME), "{").unwrap();
        assert_eq!(Running::read(data.path()), None);
    }

    #[test]
    fn every_address_is_reached_at_home() {
        for (addr, url) in [
            ("0.0.0.0:1", "http://127.0.0.1:1"),
            ("[::]:1", "http://[::1]:1"),
            ("10.0.0.2:1", "http://10.0.0.2:1"),
        ] {
            assert_eq!(reachable_url(addr.parse().unwrap()), url);
        }
    }
}
