//! Joins the machine and its place, as a session task does: effects are carried out in order, and what the place says
//! is given back. It records output by offset before it acknowledges it.

use bytes::Bytes;
use outlast_occupant::{
    Redactor,
    shell::{self, Effect, Exec, Finished, How, Left, Refused, Stdin, Whom},
    text::{Plan, Secrets, Shapes},
};
use place::{
    Spawn, SpawnError,
    keeper::{self, CommandInput, Keeper, Keepers, Limits, Order, RunError, ShellEvent, Stream},
    remote::{Docker, Policy, Remotes, Ssh, Target},
};
use protocol::Timestamp;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use testkit::{
    Engine, Inside,
    sshd::{Sshd, USER_ID},
};

/// Nothing here takes as long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const TIMEOUT_MS: u64 = 30_000;

/// A keeper of its own in a data folder of its own.
pub(crate) struct Ground {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) keepers: Keepers,
    pub(crate) keeper: Keeper,
    pub(crate) name: String,
    place: Place,
    shells: u64,
    /// Ends with the ground.
    far: Option<Far>,
    /// Where the folders of the shells' commands are, as the shells see it.
    site: PathBuf,
}

/// Where the shells are. The tables know nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Sandbox,
    Project,
    Ssh,
    Docker,
}

impl Place {
    pub(crate) const ALL: [Self; 5] = [Self::Host, Self::Sandbox, Self::Project, Self::Ssh, Self::Docker];

    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Sandbox => "box",
            Self::Project => "project",
            Self::Ssh => "ssh",
            Self::Docker => "docker",
        }
    }
}

/// What another machine is made of.
enum Far {
    Ssh { sshd: Sshd },
    Docker { engine: Engine },
}

/// Says loudly that something did not run, and leaves a note for the summary.
pub(crate) fn skip(test: &str, reason: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(test), reason).unwrap();
    eprintln!("SKIPPED: {test}: {reason}");
}

/// The folder of all homes, in a container.
const FAR_WORK: &str = "/work-box";
/// Whom a sandbox's user is on the host, when the tests run as root.
const SANDBOX_ID: u32 = 217_433;

impl Ground {
    pub(crate) async fn new(name: &str) -> Self {
        Self::at(name, Place::Host).await.unwrap()
    }

    /// At a place that may not be had on this machine; why not.
    pub(crate) async fn at(name: &str, place: Place) -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        let keepers = Keepers::new(dir.path());
        match place {
            Place::Host | Place::Sandbox | Place::Project => Ok(Self::near(name, dir, keepers, place).await),
            Place::Ssh | Place::Docker => Self::far(dir, keepers, place).await,
        }
    }

    async fn near(name: &str, dir: tempfile::TempDir, keepers: Keepers, place: Place) -> Self {
        let sandbox = match place {
            Place::Sandbox => Some(sandbox(dir.path(), keeper::View::System {})),
            Place::Project => Some(project(dir.path())),
            Place::Host | Place::Ssh | Place::Docker => None,
        };
        let order = Order { orphan: Duration::from_secs(120), limits: Limits::default(), sandbox };
        let name = format!("sh-{name}-{}", std::process::id());
        let keeper = keepers.start(&name, order).await.unwrap();
        let site = match place {
            Place::Sandbox | Place::Project => PathBuf::from("/tmp"),
            Place::Host | Place::Ssh | Place::Docker => dir.path().join("keepers").join(&name),
        };
        Self { dir, keepers, keeper, name, place, shells: 0, far: None, site }
    }

    async fn far(dir: tempfile::TempDir, keepers: Keepers, place: Place) -> Result<Self, String> {
        // Its owner is another user there, who must get to the folders in it.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        let orphan = Duration::from_secs(120);
        let (far, target, policy) = if place == Place::Ssh {
            let sshd = Sshd::start().map_err(|error| format!("{error:#}"))?;
            let ssh_config = Some(sshd.client_config("here").unwrap());
            let target = Target::Ssh(Ssh { host: "here".to_owned(), ..Ssh::default() });
            (Far::Ssh { sshd }, target, Policy { orphan, ssh_config, ..Policy::default() })
        } else {
            let engine = Engine::start().map_err(|error| format!("{error:#}"))?;
            let mount = format!("{}:{FAR_WORK}", work.display());
            engine.run("box", Inside::Machine, &["-v", &mount]).unwrap();
            let target = Target::Docker(Docker {
                socket: engine.socket(),
                container: "box".to_owned(),
                user: None,
                workdir: None,
            });
            (Far::Docker { engine }, target, Policy { orphan, ..Policy::default() })
        };
        let remotes = Remotes::new(dir.path(), policy).unwrap();
        let joined = remotes.connect(&target, None).await.unwrap().lodge().await.unwrap();
        let (keeper, site) = (joined.keeper, PathBuf::from(joined.lodged.folder));
        let name = String::new();
        Ok(Self { dir, keepers, keeper, name, place, shells: 0, far: Some(far), site })
    }

    /// A shell in an empty folder of its own.
    pub(crate) async fn shell(&mut self) -> Driver {
        self.shells += 1;
        let name = format!("home-{}", self.shells);
        let home = match self.place {
            Place::Host => {
                let home = self.dir.path().join(name);
                std::fs::create_dir(&home).unwrap();
                home
            }
            Place::Sandbox => {
                let outside = self.dir.path().join("workspace").join(&name);
                std::fs::create_dir(&outside).unwrap();
                own(&outside);
                Path::new("/home/user").join(name)
            }
            Place::Project => {
                let home = self.dir.path().canonicalize().unwrap().join("project").join(name);
                std::fs::create_dir(&home).unwrap();
                own(&home);
                home
            }
            Place::Ssh => {
                let home = self.dir.path().join("work").join(name);
                std::fs::create_dir(&home).unwrap();
                std::os::unix::fs::chown(&home, Some(USER_ID), Some(USER_ID)).unwrap();
                home
            }
            Place::Docker => {
                std::fs::create_dir(self.dir.path().join("work").join(&name)).unwrap();
                Path::new(FAR_WORK).join(name)
            }
        };
        let sites = shell::site_prefixes(&self.site.to_string_lossy());
        let secrets = Secrets::new(&Redactor::default(), Shapes::Known, &sites);
        Driver::start(self.keeper.clone(), self.shells, home, secrets).await
    }

    /// Where the keeper lives, and with it the folders of its shells' commands.
    pub(crate) fn folder(&self) -> PathBuf {
        self.site.clone()
    }

    /// What keeps a plain shell open over the same transport, to compare with.
    pub(crate) fn bare(&self) -> Vec<String> {
        let words: Vec<String> = match &self.far {
            None => vec!["sh".to_owned()],
            Some(Far::Ssh { sshd }) => {
                let config = sshd.client_config("here").unwrap();
                vec![
                    "ssh".to_owned(),
                    "-F".to_owned(),
                    config.to_string_lossy().into_owned(),
                    "here".to_owned(),
                ]
            }
            Some(Far::Docker { engine }) => {
                let engine = format!("unix://{}", engine.socket().display());
                ["docker", "-H", &engine, "exec", "-i", "box"].map(str::to_owned).to_vec()
            }
        };
        words
            .into_iter()
            .chain(["bash".to_owned(), "-s".to_owned()])
            .skip(usize::from(self.far.is_none()))
            .collect()
    }

    pub(crate) async fn end(self) {
        self.keeper.shutdown().await.unwrap();
        self.keeper.gone().await;
    }
}

fn own(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(SANDBOX_ID), Some(SANDBOX_ID)).unwrap();
    }
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

/// A folder of the machine to work in, by its own user.
fn project(dir: &Path) -> keeper::Sandbox {
    let folder = dir.canonicalize().unwrap().join("project");
    std::fs::create_dir(&folder).unwrap();
    own(&folder);
    let blob = |path: &Path| keeper::Blob(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec());
    let project = keeper::ShownProject {
        folder: blob(&folder),
        mapped: None,
        home: blob(Path::new("/home/user")),
        hidden: ["/home", "/root"].map(|path| blob(Path::new(path))).to_vec(),
        readable: Vec::new(),
    };
    let wanted = sandbox(dir, keeper::View::Project { project });
    keeper::Sandbox { inside_uid: wanted.host_uid, inside_gid: wanted.host_gid, ..wanted }
}

fn sandbox(dir: &Path, view: keeper::View) -> keeper::Sandbox {
    let workspace = dir.join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    own(&workspace);
    let this = std::fs::metadata(&workspace).unwrap();
    keeper::Sandbox {
        host_uid: std::os::unix::fs::MetadataExt::uid(&this),
        host_gid: std::os::unix::fs::MetadataExt::gid(&this),
        workspace: keeper::Blob(std::os::unix::ffi::OsStrExt::as_bytes(workspace.as_os_str()).to_vec()),
        inside_uid: 1000,
        inside_gid: 1000,
        view,
        mounts: Vec::new(),
        network: keeper::Network::None {},
        tmp_bytes: 64 << 20,
        hostname: "sandbox".to_owned(),
    }
}

pub(crate) struct Driver {
    pub(crate) keeper: Keeper,
    pub(crate) shell: keeper::Shell,
    pub(crate) machine: shell::Shell,
    pub(crate) home: PathBuf,
    pub(crate) finished: HashMap<u64, Finished>,
    pub(crate) recorded: [Vec<u8>; 2],
    pub(crate) over: Option<String>,
    pub(crate) secrets: Secrets,
    pub(crate) process: u64,
    number: u64,
    next: u64,
    born: Instant,
}

fn spawn(home: &Path) -> Spawn {
    let text = |text: &str| text.to_owned();
    let env = BTreeMap::from([
        (text("PATH"), text("/usr/local/bin:/usr/bin:/bin")),
        (text("HOME"), home.to_string_lossy().into_owned()),
        (text("LANG"), text("C.UTF-8")),
    ]);
    Spawn {
        program: text(shell::PROGRAM),
        args: shell::ARGS.map(str::to_owned).to_vec(),
        env: shell::fit_env(env),
        cwd: None,
    }
}

impl Driver {
    pub(crate) async fn start(keeper: Keeper, process: u64, home: PathBuf, secrets: Secrets) -> Self {
        let mut effects = Vec::new();
        let machine = shell::Shell::begin(secrets.clone(), &mut effects);
        assert_eq!(effects, [Effect::Start]);
        let cwd = home.to_string_lossy().into_owned();
        let shell = keeper.start_shell(process, spawn(&home), &cwd).await.unwrap();
        Self::joined(keeper, shell, machine, home, secrets, process)
    }

    pub(crate) fn joined(
        keeper: Keeper,
        shell: keeper::Shell,
        machine: shell::Shell,
        home: PathBuf,
        secrets: Secrets,
        process: u64,
    ) -> Self {
        Self {
            keeper,
            shell,
            machine,
            home,
            finished: HashMap::new(),
            recorded: Default::default(),
            over: None,
            secrets,
            process,
            number: 0,
            next: 0,
            born: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millis(i64::try_from(self.born.elapsed().as_millis()).unwrap())
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&mut self, text: &str) -> Finished {
        self.run_for(text, TIMEOUT_MS).await
    }

    pub(crate) async fn run_for(&mut self, text: &str, timeout_ms: u64) -> Finished {
        let command = self.begin(text, timeout_ms, Stdin::Empty).await;
        self.end(command).await
    }

    pub(crate) async fn begin(&mut self, text: &str, timeout_ms: u64, stdin: Stdin) -> u64 {
        self.next += 1;
        let exec = Exec {
            command: self.next,
            text: Bytes::copy_from_slice(text.as_bytes()),
            stdin,
            plan: Plan::default(),
            timeout_ms,
        };
        self.exec(exec).await
    }

    pub(crate) async fn exec(&mut self, exec: Exec) -> u64 {
        let (command, mut effects) = (exec.command, Vec::new());
        let accepted = self.machine.exec(exec, self.now(), &mut effects);
        assert_eq!(accepted, Ok(()), "{:?}", self.over);
        self.carry_out(effects).await;
        command
    }

    pub(crate) async fn end(&mut self, command: u64) -> Finished {
        tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(finished) = self.finished.remove(&command) {
                    return finished;
                }
                self.step().await;
            }
        })
        .await
        .expect("the command hangs")
    }

    /// One event, or one moment.
    pub(crate) async fn step(&mut self) {
        let wait = self.machine.deadline().map(|at| {
            let left = at.as_millis() - self.now().as_millis();
            Duration::from_millis(u64::try_from(left).unwrap_or(0))
        });
        let mut effects = Vec::new();
        tokio::select! {
            event = self.shell.next() => self.event(event.expect("an event"), &mut effects),
            () = tokio::time::sleep(wait.unwrap_or(PATIENCE)) => {
                let now = self.now();
                self.machine.tick(now, &mut effects);
            }
        }
        self.carry_out(effects).await;
    }

    fn event(&mut self, event: ShellEvent, out: &mut Vec<Effect>) {
        let now = self.now();
        match event {
            ShellEvent::Ready { cwd } => self.machine.ready(cwd, now, out),
            ShellEvent::Unusable(why) => self.machine.unstartable(why, out),
            ShellEvent::Output { command, stream, offset, bytes } => {
                let recorded = &mut self.recorded[usize::from(stream == Stream::Stderr)];
                assert_eq!(offset, recorded.len() as u64, "no gap, no double");
                recorded.extend_from_slice(&bytes);
                let end = recorded.len() as u64;
                self.machine.output(command, stream_of(stream), offset, &bytes, now, out);
                self.shell.ack(stream, end);
            }
            ShellEvent::Ended(ended) => self.machine.ended(end_of(ended), now, out),
            ShellEvent::Exited(_) => self.machine.exited(out),
            ShellEvent::InputTaken { .. } | ShellEvent::InputRefused { .. } => {}
            ShellEvent::Lost => self.machine.lost(out),
        }
    }

    pub(crate) async fn carry_out(&mut self, effects: Vec<Effect>) {
        let mut effects = std::collections::VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            let mut more = Vec::new();
            match effect {
                Effect::Begin { .. } => {}
                Effect::Run { number, stdin, text } => {
                    if number > self.number {
                        self.recorded = Default::default();
                    }
                    self.number = number;
                    let stdin = match stdin {
                        Stdin::Empty => CommandInput::Empty,
                        Stdin::Open => CommandInput::Open,
                    };
                    if let Err(error) = self.shell.run(number, stdin, &text).await {
                        let refused = match error {
                            RunError::Ended => Refused::Ended,
                            RunError::Unfit => Refused::Unfit,
                            RunError::Failed(text) => Refused::Failed(text),
                            RunError::Gone => panic!("the keeper is gone"),
                        };
                        let now = self.now();
                        self.machine.refused(number, &refused, now, &mut more);
                    }
                }
                Effect::Write { number, bytes } => self.shell.write(number, &bytes),
                Effect::CloseInput => self.shell.close_input(),
                Effect::Signal { signal, whom } => self.shell.signal(signal, whom_of(whom)),
                Effect::Start => self.restart(&mut more).await,
                Effect::End(finished) => drop(self.finished.insert(finished.command, *finished)),
                Effect::Over(why) => self.over = Some(why),
            }
            effects.extend(more);
        }
    }

    async fn restart(&mut self, out: &mut Vec<Effect>) {
        let again = self.keeper.restart_shell(self.process, spawn(&self.home), "").await;
        let again = match again {
            // Where it was is no longer there.
            Err(SpawnError::NoHome { .. }) => {
                let home = self.home.to_string_lossy().into_owned();
                self.keeper.restart_shell(self.process, spawn(&self.home), &home).await
            }
            other => other,
        };
        if let Err(error) = again {
            self.machine.unstartable(&error.to_string(), out);
        }
    }
}

pub(crate) fn stream_of(stream: Stream) -> shell::Stream {
    match stream {
        Stream::Stdout => shell::Stream::Stdout,
        Stream::Stderr => shell::Stream::Stderr,
    }
}

fn whom_of(whom: Whom) -> keeper::Whom {
    match whom {
        Whom::Own => keeper::Whom::Own,
        Whom::Shell => keeper::Whom::Shell,
        Whom::Both => keeper::Whom::Both,
    }
}

pub(crate) fn end_of(ended: keeper::Ended) -> shell::End {
    shell::End {
        number: ended.command,
        how: match ended.how {
            keeper::How::Returned(code) => How::Returned(code),
            keeper::How::Died(exit) => How::Died { code: exit.code, signal: exit.signal },
            keeper::How::NotRun => How::NotRun,
        },
        cwd: ended.cwd,
        stdout: ended.stdout,
        stderr: ended.stderr,
        milliseconds: ended.milliseconds,
        left: ended.left.into_iter().map(|left| Left { pid: left.pid, name: left.name }).collect(),
    }
}

impl Driver {
    /// Goes on where another driver stopped: with what that one recorded, then with what the keeper has.
    pub(crate) async fn take_up(
        &mut self,
        recorded: [Vec<u8>; 2],
        state: keeper::ShellState,
        effects: Vec<Effect>,
    ) {
        self.number = state.command;
        self.next = 1000;
        let mut out = Vec::new();
        let offsets = [recorded[0].len() as u64, recorded[1].len() as u64];
        self.recorded = recorded.clone();
        for (stream, bytes) in [shell::Stream::Stdout, shell::Stream::Stderr].into_iter().zip(&recorded) {
            self.machine.output(state.command, stream, 0, bytes, self.now(), &mut out);
        }
        for effect in effects {
            match effect {
                Effect::Run { number, .. } if number <= state.command => {
                    self.shell.follow(number, offsets).unwrap();
                }
                other => self.carry_out(vec![other]).await,
            }
        }
        if let Some(ended) = state.ended {
            self.machine.ended(end_of(ended), self.now(), &mut out);
        }
        self.carry_out(out).await;
    }
}
