//! The server of a data folder, for bridges that are to work without one being started by hand: found where it
//! listens, or started in the background, and found again when it went away.
//!
//! A server is started under a lock in the data folder, so that two bridges at once start one. The lock is the
//! kernel's and ends with its holder: there is no stale one. What is started leaves the terminal, writes its log
//! to `server.log` in the data folder, and ends by itself when nobody needs it. A server that runs is never
//! stopped from here, whatever its version; that another version answers is said.

use crate::{
    commands::mcp::Address,
    config::{Config, DEFAULT_LISTEN, own_path},
    exit::Failure,
    reach,
    running::{self, Running},
};
use client::{Client, Patience};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{process::Child, time::Instant};

const LOCK_FILE: &str = "start.lock";
const LOG_FILE: &str = "server.log";
const OLD_LOG_FILE: &str = "server.log.old";
/// A longer log makes room when the next server is started.
const LOG_BYTES: u64 = 8 * 1024 * 1024;
/// How much of the log a failed start shows.
const LOG_TAIL_BYTES: u64 = 2 * 1024;
/// A server that does not answer its health check within this is not there.
const PROBE: Duration = Duration::from_secs(2);
/// For one server to listen, and for another bridge's start to be over.
const START: Duration = Duration::from_secs(30);
/// Between two looks for a lock or a server.
const LOOK: Duration = Duration::from_millis(20);
/// A start may find its predecessor still closing the store, and is tried again.
const ATTEMPTS: u32 = 5;
/// How long a server that somebody else started may be away before a bridge starts one in its stead.
const RETURN: Duration = Duration::from_secs(20);
/// How long a call is repeated while the server is away.
const AWAY: Duration = Duration::from_secs(120);
/// Short waits: whoever waits longer looks for the server again.
const PATIENCE_TRIES: u32 = 3;
const PATIENCE_WAIT: Duration = Duration::from_millis(400);

/// The server of the data folder, or the one at the address that was given.
#[derive(Debug)]
pub(crate) struct Server {
    config: Config,
    known: Mutex<Known>,
    /// One looks, the others wait for what it finds.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
struct Known {
    client: Client,
    origin: Origin,
    version: Option<String>,
    /// Since when it does not answer.
    lost: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// At an address that was given: it may be anywhere, so none is started in its stead.
    Given,
    /// Somebody runs it, and will most likely start it again.
    Somebodys,
    /// A bridge started it.
    Ours,
}

impl Server {
    /// Finds the server, and starts one when there is none.
    pub(crate) async fn find_or_start(config: &Config) -> Result<Self, Failure> {
        let known = if config.url.is_some() {
            let client = reach::patient_client(config, patience())?;
            Known { client, origin: Origin::Given, version: None, lost: None }
        } else {
            match find(config).await? {
                Some(known) => known,
                None => start(config).await?,
            }
        };
        Ok(Self { config: config.clone(), known: Mutex::new(known), looking: tokio::sync::Mutex::new(()) })
    }

    /// A client for where the server was last seen.
    pub(crate) fn client(&self) -> Client {
        self.known().client.clone()
    }

    /// Where a bridge connects to the server that was last seen, and with which key.
    pub(crate) fn door(&self) -> Result<(Address, String), Failure> {
        let known = self.known().clone();
        let running = Running::read(&self.config.data).filter(|_| known.origin != Origin::Given);
        let url = running.as_ref().map_or(known.client.url(), |running| running.url.as_str());
        let key = reach::key(&self.config, url)?;
        match running.as_ref().and_then(|running| running.socket.clone()) {
            Some(socket) => Ok((Address::Socket(socket), key)),
            None => Ok((Address::of(url)?, key)),
        }
    }

    /// A sentence about a server of another version.
    pub(crate) fn remark(&self) -> Option<String> {
        let ours = env!("CARGO_PKG_VERSION");
        let theirs = self.known().version.clone().filter(|theirs| theirs != ours)?;
        Some(format!(
            "the server is version {theirs} and this program {ours}; if a call fails, restart the server with this version"
        ))
    }

    /// Sees to it that the server answers: at its old address, at a new one, or as a new process. Fails when it
    /// is still away; the caller may ask again.
    pub(crate) async fn renew(&self) -> Result<(), Failure> {
        let _turn = self.looking.lock().await;
        let known = self.known().clone();
        let error = match probe(&known.client).await {
            Ok(_) => {
                self.known().lost = None;
                return Ok(());
            }
            Err(error) => error,
        };
        let away_for = self.known().lost.get_or_insert_with(Instant::now).elapsed();
        let found = match known.origin {
            Origin::Given => None,
            Origin::Somebodys if away_for < RETURN => find(&self.config).await?,
            Origin::Somebodys | Origin::Ours => Some(start(&self.config).await?),
        };
        *self.known() = found.ok_or(error)?;
        Ok(())
    }

    /// Makes a call that may be repeated, also across a restart of the server.
    pub(crate) async fn call<T, F>(&self, call: impl Fn(Client) -> F + Send) -> Result<T, client::Error>
    where
        F: Future<Output = Result<T, client::Error>> + Send,
    {
        let until = Instant::now() + AWAY;
        loop {
            match call(self.client()).await {
                Err(error) if error.lost() && Instant::now() < until => {
                    // Still away is what the next call says.
                    let _ = self.renew().await;
                    tokio::time::sleep(PATIENCE_WAIT).await;
                }
                result => return result,
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn patience() -> Patience {
    Patience { tries: PATIENCE_TRIES, longest_wait: PATIENCE_WAIT, ..Patience::default() }
}

async fn probe(client: &Client) -> Result<protocol::Health, client::Error> {
    let late = || client::Error::TimedOut { url: client.url().to_owned(), secs: PROBE.as_secs() };
    tokio::time::timeout(PROBE, client.health()).await.unwrap_or_else(|_| Err(late()))
}

/// The server that the data folder names, if it is there and takes the folder's key: after a crash, another
/// program may listen where it did.
async fn find(config: &Config) -> Result<Option<Known>, Failure> {
    let Some(running) = Running::read(&config.data) else { return Ok(None) };
    let client = match reach::patient_client(config, patience()) {
        Ok(client) => client,
        // The key comes with the first start; before it there was no server.
        Err(Failure::Usage(_)) if config.key.is_none() => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let Ok(health) = probe(&client).await else { return Ok(None) };
    let stranger =
        config.key.is_none() && client.agents().await.is_err_and(|error| error.status() == Some(401));
    if stranger {
        return Ok(None);
    }
    let origin = if running.background { Origin::Ours } else { Origin::Somebodys };
    Ok(Some(Known { client, origin, version: Some(health.version), lost: None }))
}

async fn start(config: &Config) -> Result<Known, Failure> {
    // As the server itself makes it: nobody else's to look into.
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&config.data)
        .map_err(|error| about(&config.data, "cannot be made", &error))?;
    let _lock = lock(&config.data.join(LOCK_FILE)).await?;
    for attempt in 0..ATTEMPTS {
        if let Some(known) = find(config).await? {
            return Ok(known);
        }
        let mut child = spawn(config)?;
        if let Some(known) = listening(config, &mut child).await? {
            return Ok(known);
        }
        tokio::time::sleep(LOOK * 2u32.pow(attempt + 2)).await;
    }
    let log = config.data.join(LOG_FILE);
    Err(Failure::Broken(format!(
        "no server could be started in the background; {} ends with:\n{}",
        log.display(),
        tail(&log).unwrap_or_else(|error| error.to_string())
    )))
}

/// Waits for another bridge that is starting a server. The file stays; the lock goes with the value.
async fn lock(path: &Path) -> Result<File, Failure> {
    let broken = |error: io::Error| about(path, "cannot be locked", &error);
    let file = File::options().create(true).append(true).mode(0o600).open(path).map_err(broken)?;
    let until = Instant::now() + START * 2;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => tokio::time::sleep(LOOK).await,
            Err(error) => return Err(broken(error.into())),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the server in the background is this program itself")]
fn spawn(config: &Config) -> Result<Child, Failure> {
    let data =
        std::path::absolute(&config.data).map_err(|error| about(&config.data, "has no path", &error))?;
    let log = open_log(&data).map_err(|error| about(&data.join(LOG_FILE), "cannot be written", &error))?;
    let mut command = std::process::Command::new(own_path()?);
    command.arg("serve").arg("--detached").arg("--data").arg(&data);
    command.arg("--until-idle").arg(config.background_idle.as_secs().max(1).to_string());
    if let Some(file) = &config.file {
        let file = std::path::absolute(file).map_err(|error| about(file, "has no path", &error))?;
        command.arg("--config").arg(file);
    }
    // A port that the operator named is listened on too; without one the socket is enough.
    if config.server.listen.is_none_or(|listen| listen == DEFAULT_LISTEN) {
        match running::socket_path(&data) {
            Some(_) => command.arg("--socket-only"),
            None => command.arg("--listen").arg("127.0.0.1:0"),
        };
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    tokio::process::Command::from(command)
        .spawn()
        .map_err(|error| Failure::Broken(format!("a server cannot be started in the background: {error}")))
}

/// The server once it listens; nothing when it ended instead.
async fn listening(config: &Config, child: &mut Child) -> Result<Option<Known>, Failure> {
    let until = Instant::now() + START;
    let pid = child.id();
    while Instant::now() < until {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return Ok(None);
        }
        if Running::read(&config.data).is_some_and(|running| Some(running.pid) == pid)
            && let Some(known) = find(config).await?
        {
            return Ok(Some(known));
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(Failure::Broken(format!(
        "the server in the background does not listen after {} s; its log is {}",
        START.as_secs(),
        config.data.join(LOG_FILE).display()
    )))
}

fn open_log(data: &Path) -> io::Result<File> {
    let path = data.join(LOG_FILE);
    if fs::metadata(&path).is_ok_and(|log| log.len() > LOG_BYTES) {
        fs::rename(&path, data.join(OLD_LOG_FILE))?;
    }
    File::options().create(true).append(true).mode(0o600).open(path)
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = vec![];
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

fn about(path: &Path, what: &str, error: &io::Error) -> Failure {
    Failure::Broken(format!("{} {what}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::Common, config::Environment};

    fn server(version: &str) -> Server {
        let common = Common { data: Some("/nowhere".into()), ..Common::default() };
        let config = Config::resolve(common, None, Environment::of(&[])).unwrap();
        let client = Client::new("http://127.0.0.1:9", "key").unwrap();
        let known =
            Known { client, origin: Origin::Somebodys, version: Some(version.to_owned()), lost: None };
        Server { config, known: Mutex::new(known), looking: tokio::sync::Mutex::new(()) }
    }

    #[test]
    fn another_version_is_remarked_on() {
        assert_eq!(server(env!("CARGO_PKG_VERSION")).remark(), None);
        let remark = server("99.0.0").remark().unwrap();
        assert!(remark.contains("99.0.0") && remark.contains("restart the server"), "{remark}");
    }

    #[tokio::test]
    async fn somebodys_server_is_waited_for() {
        let server = server("0.1.0");
        assert!(matches!(server.renew().await, Err(Failure::Client(_))));
        assert!(server.known().lost.is_some());
        assert!(!Path::new("/nowhere").exists(), "none is started in its stead at once");
    }

    #[tokio::test]
    async fn one_holds_the_lock_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK_FILE);
        let first = lock(&path).await.unwrap();
        let mut second = Box::pin(lock(&path));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        second.await.unwrap();
    }

    #[test]
    fn a_long_log_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOG_FILE);
        File::create(&path).unwrap().set_len(LOG_BYTES + 1).unwrap();
        open_log(folder.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert!(folder.path().join(OLD_LOG_FILE).exists());
        fs::write(&path, "x".repeat(5000)).unwrap();
        assert_eq!(tail(&path).unwrap().len() as u64, LOG_TAIL_BYTES);
    }
}
