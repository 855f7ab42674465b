//! The built program as a child process on a data folder of its own.
//!
//! A test starts it, kills it, starts it again on the same folder and the same port, and reads its key from the
//! folder as a user would. Nothing here sleeps: the server is up when it says so on stdout. Dropping it kills
//! the process, and shows the end of its log when the test is failing.

use crate::{Http, limits, power::Rig, process};
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal};
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, ExitStatus, Stdio},
    sync::Arc,
};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// What a test leaves running ends by itself, soon after its server.
const ORPHAN_SECS: &str = "30";
/// What the server prints on stdout, before its address, once it listens.
const LISTENS: &str = "outlast listens on http://";

/// How a server is to be started.
#[derive(Debug, Clone)]
pub struct Setup {
    program: PathBuf,
    data: Option<PathBuf>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    rig: Option<Arc<Rig>>,
}

impl Setup {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), data: None, args: vec![], env: vec![], rig: None }
    }

    /// On this data folder instead of a new one; it is not removed afterwards.
    #[must_use]
    pub fn data(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data = Some(dir.into());
        self
    }

    /// One more argument to `serve`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Under a rig that remembers what was synced, so that the power can be cut.
    #[must_use]
    pub fn rig(mut self, rig: Arc<Rig>) -> Self {
        self.rig = Some(rig);
        self
    }

    /// Starts it and waits until it listens.
    pub async fn start(self) -> Result<Server> {
        let mut server = self.prepare()?;
        server.restart().await?;
        Ok(server)
    }

    /// A server that does not run yet.
    pub fn prepare(self) -> Result<Server> {
        let home = tempfile::Builder::new().prefix("outlast-test-").tempdir()?;
        let data = self.data.clone().unwrap_or_else(|| home.path().join("data"));
        let log = home.path().join("stderr.log");
        Ok(Server { setup: self, home, data, log, address: None, child: None })
    }
}

/// The program, running or between two runs.
#[derive(Debug)]
pub struct Server {
    setup: Setup,
    home: TempDir,
    data: PathBuf,
    log: PathBuf,
    address: Option<SocketAddr>,
    child: Option<Child>,
}

impl Server {
    /// Starts the program on a new data folder.
    pub async fn start(program: impl Into<PathBuf>) -> Result<Self> {
        Setup::new(program).start().await
    }

    /// One more variable, from its next start on.
    pub fn env(&mut self, name: &str, value: &str) {
        self.setup.env.push((name.to_owned(), value.to_owned()));
    }

    /// Starts it (again): the same data folder and, from the second time on, the same port.
    pub async fn restart(&mut self) -> Result<()> {
        let listening = self.launch()?;
        match tokio::time::timeout(limits::START, listening).await {
            Ok(Ok(address)) => {
                self.address = Some(address);
                Ok(())
            }
            Ok(Err(_)) => bail!("the server ended before it listened; its log:\n{}", self.log_tail()),
            Err(_) => {
                bail!("the server did not listen within {:?}; its log:\n{}", limits::START, self.log_tail())
            }
        }
    }

    /// Spawns it without waiting; the receiver yields its address once it listens.
    pub fn launch(&mut self) -> Result<oneshot::Receiver<SocketAddr>> {
        self.kill9()?;
        let listen = self.address.map_or_else(|| "127.0.0.1:0".to_owned(), |address| address.to_string());
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = match &self.setup.rig {
            Some(rig) => rig.wrap(&self.data, &self.setup.program)?,
            None => process::command(&self.setup.program),
        };
        command.arg("serve").arg("--data").arg(&self.data).arg("--listen").arg(listen);
        command.env("OUTLAST_ORPHAN_SECS", ORPHAN_SECS);
        command.args(&self.setup.args).envs(self.setup.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", self.setup.program.display()))?;
        let stdout = child.stdout.take().context("the child has no stdout")?;
        self.child = Some(child);
        let (up, listening) = oneshot::channel();
        // The thread ends with the child's stdout; it also keeps that pipe from filling up.
        std::thread::Builder::new().name("server-stdout".into()).spawn(move || watch_stdout(stdout, up))?;
        Ok(listening)
    }

    /// SIGKILL, and waits until the process is gone. Without a running process nothing happens.
    pub fn kill9(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        match &self.setup.rig {
            // The rig's helper is the parent; it ends with the server.
            Some(rig) => rig.kill_server(&mut child)?,
            None => child.kill()?,
        }
        child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let mut child = self.child.take().context("the server does not run")?;
        let waiting = tokio::task::spawn_blocking(move || wait_bounded(&mut child));
        waiting.await?.with_context(|| format!("its log:\n{}", self.log_tail()))
    }

    /// Sends a signal to the running process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let child = self.child.as_ref().context("the server does not run")?;
        let pid = match &self.setup.rig {
            Some(rig) => rig.server_pid(),
            None => pid_of(child),
        };
        rustix::process::kill_process(pid.context("the server has no pid")?, signal)?;
        Ok(())
    }

    /// Whether the process is still there.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn program(&self) -> &Path {
        &self.setup.program
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// A folder of the test's own that goes away with the server.
    pub fn scratch(&self) -> &Path {
        self.home.path()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    pub fn address(&self) -> Result<SocketAddr> {
        self.address.context("the server has not listened yet")
    }

    pub fn url(&self) -> Result<String> {
        Ok(format!("http://{}", self.address()?))
    }

    /// The first key, as the server left it for its user.
    pub fn key(&self) -> Result<String> {
        let path = self.data.join("api-key");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// The independent client.
    pub fn http(&self) -> Result<Http> {
        Ok(Http::new(self.address()?, Some(self.key()?)))
    }

    /// The product's own client.
    pub fn client(&self) -> Result<client::Client> {
        Ok(client::Client::new(&self.url()?, &self.key()?)?)
    }

    /// Runs the program's command line against this server's data folder and address.
    pub async fn cli(&self, args: &[&str]) -> Result<process::Finished> {
        let data = self.data.to_string_lossy().into_owned();
        let url = self.url()?;
        process::run(&self.setup.program, args, &[("OUTLAST_DATA", &data), ("OUTLAST_URL", &url)]).await
    }

    /// The end of what it wrote to stderr, over all its runs.
    pub fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill9();
        process::end_below(&self.data);
        if std::thread::panicking() {
            show(&self.log_tail());
        }
    }
}

#[expect(clippy::print_stderr, reason = "a failing test shows the server's log")]
fn show(log: &str) {
    eprintln!("---- the server's log ----\n{log}\n--------------------------");
}

fn watch_stdout(stdout: ChildStdout, up: oneshot::Sender<SocketAddr>) {
    let mut up = Some(up);
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        let Some(address) = line.trim().strip_prefix(LISTENS).and_then(|text| text.parse().ok()) else {
            continue;
        };
        if let Some(up) = up.take() {
            let _ = up.send(address);
        }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Waits for the end, and kills what does not end in time.
fn wait_bounded(child: &mut Child) -> Result<ExitStatus> {
    let (timer, expired) = std::sync::mpsc::channel::<()>();
    let pid = pid_of(child);
    let watchdog = std::thread::spawn(move || {
        let late = expired.recv_timeout(limits::STOP) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if let (true, Some(pid)) = (late, pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        late
    });
    let status = child.wait()?;
    drop(timer);
    let late = watchdog.join().unwrap_or(true);
    anyhow::ensure!(!late, "the server did not end within {:?} of SIGTERM", limits::STOP);
    Ok(status)
}

fn tail(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limits::LOG_TAIL_BYTES as u64)))?;
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
