//! A stream of messages to the server: over its Unix socket, or over TCP where it has none.

use crate::{cli::LocalPlace, config::Config, exit::Failure};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

/// What the connection is upgraded to; the number changes when either side would misread the other.
const PROTOCOL: &str = "outlast-mcp/1";
const PATH: &str = "/mcp/stream";
/// For the server to answer the upgrade.
const ANSWER: Duration = Duration::from_secs(15);
/// The head of that answer, and the body of a refusal.
const HEAD_BYTES: u64 = 16 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// Our own variables that hold secrets: not for shells.
const OWN_SECRETS: [&str; 2] = ["OUTLAST_KEY", "OUTLAST_MASTER_KEY"];

/// Where the server's door is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Socket(PathBuf),
    Tcp(String),
}

impl Address {
    /// Of a server's URL.
    pub(crate) fn of(url: &str) -> Result<Self, Failure> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self::Socket(path.into()));
        }
        let authority = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        match authority {
            Some(authority) if !authority.contains('/') => {
                let port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                Ok(Self::Tcp(if port { authority.to_owned() } else { format!("{authority}:80") }))
            }
            _ => Err(Failure::Usage(format!(
                "`outlast mcp` reaches servers at http://HOST:PORT, and not {url}; for others give the client {url}/mcp itself"
            ))),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Tcp(authority) => write!(f, "http://{authority}"),
        }
    }
}

/// What the bridge says of itself: a shell on this machine is opened with its folder, environment and umask.
#[derive(Serialize)]
pub(super) struct Hello {
    cwd: String,
    env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    umask: Option<u32>,
    place: LocalPlace,
}

impl Hello {
    pub(super) fn of_this_process(place: LocalPlace, config: &Config) -> Result<Self, Failure> {
        let cwd = std::env::current_dir()
            .map_err(|error| Failure::Broken(format!("the working directory is gone: {error}")))?;
        // What is not text cannot be told, and a secret of ours is not for shells.
        let env = config.environment.texts().filter(|(name, _)| !OWN_SECRETS.contains(name));
        Ok(Self {
            cwd: cwd.to_string_lossy().into_owned(),
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            umask: umask(),
            place,
        })
    }

    fn line(&self) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// Read, because asking the kernel for it would set it.
fn umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(value.trim(), 8).ok()
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Socket(path) => UnixStream::connect(path).map(Self::Unix),
            Address::Tcp(authority) => {
                let stream = TcpStream::connect(authority.as_str())?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(time),
            Self::Tcp(stream) => stream.set_read_timeout(time),
        }
    }

    /// Says that nothing more comes from here.
    pub(super) fn finish(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Ends both directions: whoever reads here sees the end.
    pub(super) fn close(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }
}

/// Both directions: what is read, and what is written to.
pub(super) struct Connection {
    pub(super) reader: BufReader<Stream>,
    pub(super) writer: Stream,
}

/// Why there is no stream.
#[derive(Debug)]
pub(super) enum Refused {
    /// Nobody is there, or not yet.
    Away(io::Error),
    /// Somebody is there and does not want to, and will not want to later.
    Final(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Away(error)
    }
}

pub(super) fn connect(address: &Address, key: &str, hello: &Hello) -> Result<Connection, Refused> {
    let writer = Stream::open(address)?;
    let host = match address {
        Address::Socket(_) => "localhost",
        Address::Tcp(authority) => authority,
    };
    let request = format!(
        "GET {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: upgrade\r\nUpgrade: {PROTOCOL}\r\nAuthorization: Bearer {key}\r\n\r\n"
    );
    writer.send(request.as_bytes())?;
    let mut reader = BufReader::with_capacity(READ_BYTES, writer.try_clone()?);
    reader.get_ref().set_read_timeout(Some(ANSWER))?;
    read_head(&mut reader, address)?;
    reader.get_ref().set_read_timeout(None)?;
    writer.send(&hello.line()?)?;
    Ok(Connection { reader, writer })
}

/// Reads the answer's head up to its last line.
fn read_head(reader: &mut BufReader<Stream>, address: &Address) -> Result<(), Refused> {
    let mut lines = vec![];
    let mut head = reader.take(HEAD_BYTES);
    loop {
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Err(Refused::Away(io::ErrorKind::UnexpectedEof.into()));
        }
        if line.trim_end().is_empty() {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let status = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    if status == "101" {
        return Ok(());
    }
    let length = lines.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
    });
    let mut body = String::new();
    let _ = reader.take(length.unwrap_or(0).min(HEAD_BYTES)).read_to_string(&mut body);
    let said = serde_json::from_str::<serde_json::Value>(&body)
        .ok()
        .and_then(|body| body["error"].as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("status {status}"));
    match status.as_str() {
        "404" | "400" => Err(Refused::Final(format!(
            "the server at {address} has no door for this version of `outlast mcp`: {said}. Restart it with version {}, or use its own",
            env!("CARGO_PKG_VERSION")
        ))),
        "503" => Err(Refused::Away(io::Error::other(said))),
        _ => Err(Refused::Final(format!("the server at {address} refused: {said}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (url, address) in [
            ("unix:/data/server.sock", Address::Socket("/data/server.sock".into())),
            ("http://127.0.0.1:4100", Address::Tcp("127.0.0.1:4100".to_owned())),
            ("http://box/", Address::Tcp("box:80".to_owned())),
            ("http://[::1]:5", Address::Tcp("[::1]:5".to_owned())),
        ] {
            assert_eq!(Address::of(url).unwrap(), address);
        }
        for url in ["https://box", "http://box/path"] {
            assert!(Address::of(url).is_err(), "{url}");
        }
    }

    #[test]
    fn this_process_has_a_umask() {
        assert!(umask().is_some_and(|mask| mask <= 0o777));
    }
}
