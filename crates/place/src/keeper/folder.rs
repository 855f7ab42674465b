//! Where keepers live on disk, how one is started there, and how it is found again.

use super::{
    CONFIG_VERSION, Config, HELLO, Keeper, KeeperError, Order, START, Started, binary, config, kept,
    line::{self, Line, Pipe},
};
use ::keeper::{codec::Blob, wire};
use std::{
    fs,
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::Command,
    sync::OnceCell,
};

/// What processes inside see of their first process's command line.
const NAME: &str = "outlast-keeper";
const LOG: &str = "log";
/// How often, and how far apart, a program that was only just written is tried.
const BUSY_TRIES: u32 = 100;
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// All keepers of one data folder. A cheap handle.
#[derive(Debug, Clone)]
pub struct Keepers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    programs: PathBuf,
    program: OnceCell<PathBuf>,
}

impl Keepers {
    /// In `data/keepers`, with the program in `data/bin`.
    pub fn new(data: &Path) -> Self {
        let (root, programs) = (data.join("keepers"), data.join("bin"));
        Self { inner: Arc::new(Inner { root, programs, program: OnceCell::new() }) }
    }

    /// Starts a keeper and connects to it. A folder left by an ended one is used again.
    pub async fn start(&self, id: &str, order: Order) -> Result<Keeper, KeeperError> {
        let folder = self.folder(id)?;
        let programs = self.inner.programs.clone();
        let program = self
            .inner
            .program
            .get_or_try_init(|| async { blocking(move || binary::written(&programs)).await })
            .await?
            .clone();
        let token = {
            let folder = folder.clone();
            blocking(move || prepare(&folder)).await?
        };
        let started = Config {
            version: CONFIG_VERSION,
            folder: Blob(folder.as_os_str().as_bytes().to_vec()),
            name: id.to_owned(),
            orphan_seconds: u32::try_from(order.orphan.as_secs()).unwrap_or(u32::MAX),
            limits: order.limits,
            sandbox: order.sandbox,
        };
        match tokio::time::timeout(START, run(&program, &folder, &started)).await {
            Err(_) => return Err(KeeperError::Silent(START)),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(Started::Failed { what, fix })) => return Err(KeeperError::NotStarted { what, fix }),
            Ok(Ok(Started::Ready { .. })) => {}
        }
        connect(id, &folder, token).await
    }

    /// Connects to a keeper that another server, or this one before its restart, started.
    pub async fn take_up(&self, id: &str) -> Result<Keeper, KeeperError> {
        let folder = self.folder(id)?;
        let file = folder.join(config::TOKEN);
        let missing = |_| KeeperError::Missing(id.to_owned());
        let token = tokio::fs::read(file).await.map_err(missing)?;
        let token = token.try_into().map_err(|_| KeeperError::Missing(id.to_owned()))?;
        connect(id, &folder, token).await
    }

    /// The ids of all folders, of living keepers and of ended ones.
    pub async fn list(&self) -> Result<Vec<String>, KeeperError> {
        let root = self.inner.root.clone();
        blocking(move || {
            let entries = match fs::read_dir(root) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(KeeperError::io("list the keepers")(error)),
            };
            Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        })
        .await
    }

    /// Removes the folder of a keeper that ended. One that lives loses its socket, and its processes go on until its
    /// own time is up: shut it down first.
    pub async fn remove(&self, id: &str) -> Result<(), KeeperError> {
        let folder = self.folder(id)?;
        if let Ok(site) = tokio::fs::read_link(folder.join(config::SITE)).await
            && config::is_site(&site)
        {
            // One that ended by itself has removed it.
            let _ = tokio::fs::remove_dir_all(site).await;
        }
        match tokio::fs::remove_dir_all(folder).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(KeeperError::io("remove the keeper's folder")(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn folder(&self, id: &str) -> Result<PathBuf, KeeperError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if id.is_empty() || id.len() > protocol::limits::ALIAS_BYTES || !id.bytes().all(plain) {
            return Err(KeeperError::BadId(id.to_owned()));
        }
        Ok(self.inner.root.join(id))
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeeperError> + Send + 'static,
) -> Result<T, KeeperError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(KeeperError::io("finish the work on a keeper's folder")(io::Error::other(error))),
    }
}

/// Makes the folder and a new token in it.
fn prepare(folder: &Path) -> Result<wire::Token, KeeperError> {
    let failed = |error| KeeperError::io("prepare the keeper's folder")(error);
    fs::DirBuilder::new().mode(0o700).recursive(true).create(folder).map_err(failed)?;
    // A living keeper holds the lock, and must keep the token that it was started with.
    let open = fs::File::open(folder).map_err(failed)?;
    if rustix::fs::flock(&open, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(KeeperError::NotStarted {
            what: format!("a keeper lives in {} already", folder.display()),
            fix: "take that one up, or shut it down first".to_owned(),
        });
    }
    drop(open);
    let mut token = wire::Token::default();
    getrandom::fill(&mut token).map_err(|error| failed(io::Error::other(error)))?;
    let (path, draft) = (folder.join(config::TOKEN), folder.join(".token"));
    let _ = fs::remove_file(&draft);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
    file.write_all(&token).map_err(failed)?;
    fs::rename(draft, path).map_err(failed)?;
    Ok(token)
}

#[expect(clippy::disallowed_methods, reason = "this is the room in which processes are spawned")]
async fn run(program: &Path, folder: &Path, started: &Config) -> Result<Started, KeeperError> {
    let failed = |error| KeeperError::io("start the keeper")(error);
    let mut order = Vec::new();
    wire::frame(started, &mut order)
        .map_err(|_| failed(io::Error::from(io::ErrorKind::ArgumentListTooLong)))?;
    let log = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(folder.join(LOG))
        .map_err(failed)?;
    let mut command = Command::new(program);
    command.arg0(NAME).env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut tries = 0;
    let mut child = loop {
        match command.spawn() {
            // Whoever forked while the program was being written holds it open until it becomes another.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                tries += 1;
                tokio::time::sleep(BUSY_WAIT).await;
            }
            started => break started.map_err(failed)?,
        }
    };
    let missing = || failed(io::Error::other("a pipe is missing"));
    let (mut stdin, mut stdout) =
        (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
    stdin.write_all(&order).await.map_err(failed)?;
    drop(stdin);
    let mut answer = Vec::new();
    (&mut stdout).take(config::CONFIG_BYTES as u64).read_to_end(&mut answer).await.map_err(failed)?;
    // What was started is the keeper's parent, which is long gone.
    child.wait().await.map_err(failed)?;
    let garbled = || failed(io::Error::other("it ended without saying why; look at its log"));
    let (body, _) = wire::split(&answer, config::CONFIG_BYTES).ok().flatten().ok_or_else(garbled)?;
    wire::read(body).map_err(|_| garbled())
}

async fn connect(id: &str, folder: &Path, token: wire::Token) -> Result<Keeper, KeeperError> {
    let gone = |_| KeeperError::Missing(id.to_owned());
    // A socket's path holds 107 bytes, so the way there goes through an open folder.
    let open = fs::File::open(folder).map_err(gone)?;
    let path = format!("/proc/self/fd/{}/{}", open.as_raw_fd(), config::SOCKET);
    let stream = UnixStream::connect(path).await.map_err(gone)?;
    drop(open);
    join(stream.into(), token).await
}

/// Says hello to whoever is at the other end.
pub(crate) async fn join(pipe: Pipe, token: wire::Token) -> Result<Keeper, KeeperError> {
    let greeted = tokio::time::timeout(HELLO, line::greet(pipe, token)).await;
    let (stream, welcome) = greeted.map_err(|_| KeeperError::Silent(HELLO))??;
    Ok(Keeper {
        version: welcome.version,
        epoch: welcome.epoch,
        found: Arc::new(welcome.processes.iter().map(kept).collect()),
        isolation: Arc::new(welcome.isolation),
        line: Line::start(stream),
    })
}
