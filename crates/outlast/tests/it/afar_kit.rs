//! Other machines for shells: a real SSH server or a real container engine, a server of ours that knows it, and a
//! client over `outlast mcp`.

use crate::{kit::*, mcp::client};
use serde_json::{Value, json};
use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};
use testkit::{Engine, Inside, Mcp, sshd::Sshd};

/// The container's name, and the host's in the client's configuration.
pub(crate) const BOX: &str = "box";
pub(crate) const HERE: &str = "here";
/// Nothing on a machine that was told to end takes as long.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) enum Machine {
    Ssh(Sshd),
    Docker(Engine),
}

/// A machine, a server and a client.
pub(crate) struct Afar {
    // In the order in which they go.
    pub(crate) client: Mcp,
    pub(crate) server: Server,
    pub(crate) machine: Machine,
}

impl Machine {
    pub(crate) fn ssh() -> Result<Self, String> {
        Sshd::start().map(Self::Ssh).map_err(|why| format!("{why:#}"))
    }

    /// With one container that holds this machine's own programs.
    pub(crate) fn docker() -> Result<Self, String> {
        let engine = Engine::start().map_err(|why| format!("{why:#}"))?;
        engine.run(BOX, Inside::Machine, &[]).unwrap();
        Ok(Self::Docker(engine))
    }

    /// The operator's file for a server that reaches it.
    pub(crate) fn settings(&self) -> String {
        match self {
            Self::Ssh(sshd) => {
                format!("ssh_config = {}\n", json!(sshd.client_config(HERE).unwrap()))
            }
            Self::Docker(engine) => format!("engine_socket = {}\n", json!(engine.socket())),
        }
    }

    /// What `session_create` is given.
    pub(crate) fn target(&self) -> Value {
        match self {
            Self::Ssh(_) => json!({"transport": "ssh", "host": HERE}),
            Self::Docker(_) => json!({"transport": "docker", "container": BOX}),
        }
    }

    /// Cuts every connection there is; new ones are taken at once by SSH, and when the engine is back by Docker.
    pub(crate) fn cut(&mut self) {
        match self {
            Self::Ssh(sshd) => sshd.cut().unwrap(),
            Self::Docker(engine) => {
                engine.stop().unwrap();
                engine.start_again().unwrap();
            }
        }
    }

    pub(crate) fn stop(&mut self) {
        match self {
            Self::Ssh(sshd) => sshd.stop().unwrap(),
            Self::Docker(engine) => engine.stop().unwrap(),
        }
    }

    pub(crate) fn start_again(&mut self) {
        match self {
            Self::Ssh(sshd) => sshd.start_again().unwrap(),
            Self::Docker(engine) => engine.start_again().unwrap(),
        }
    }

    /// What runs there and was not there before the first shell, by its command line.
    pub(crate) fn running(&self) -> Vec<String> {
        match self {
            Self::Ssh(sshd) => commands_at(&sshd.home()),
            Self::Docker(engine) => {
                let listed = engine.docker(&["top", BOX, "-eo", "pid,args"]).unwrap();
                let own = |line: &&str| !line.contains("sleep 100000");
                listed.lines().skip(1).filter(own).map(|line| line.trim().to_owned()).collect()
            }
        }
    }

    /// What is in the folder where keepers lodge, but for the program itself.
    pub(crate) fn lodged(&self) -> Vec<String> {
        let names: Vec<String> = match self {
            Self::Ssh(sshd) => {
                let all = fs::read_dir(sshd.home().join(".cache/outlast")).unwrap();
                all.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
            }
            Self::Docker(engine) => {
                let listed = engine.docker(&["exec", BOX, "sh", "-c", "ls -A ~/.cache/outlast"]).unwrap();
                listed.lines().map(str::to_owned).collect()
            }
        };
        names.into_iter().filter(|name| !name.starts_with("keeper-")).collect()
    }

    /// Waits until nothing of any shell is left there.
    pub(crate) async fn empty(&self) {
        eventually("nothing runs and nothing lies there", || {
            let (running, lodged) = (self.running(), self.lodged());
            if running.is_empty() && lodged.is_empty() {
                Ok(())
            } else {
                Err(format!("{running:?} {lodged:?}"))
            }
        })
        .await;
    }
}

/// Other tests have users of the same name and number, whose home is another.
fn commands_at(home: &Path) -> Vec<String> {
    let mut found = vec![];
    let home = format!("HOME={}", home.display()).into_bytes();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if environment.split(|byte| *byte == 0).any(|each| each == home) && !line.is_empty() {
            found.push(line);
        }
    }
    found
}

/// Looks until it is so; there is no event to wait for when somebody else's process ends.
pub(crate) async fn eventually(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(()) => return,
            Err(seen) => {
                assert!(tokio::time::Instant::now() < until, "not so in {PATIENCE:?}: {what}: {seen}");
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Afar {
    pub(crate) async fn new(machine: Machine) -> Self {
        let settings = machine.settings();
        Self::with(machine, &settings).await
    }

    /// A server whose operator says this of shells.
    pub(crate) async fn with(machine: Machine, shells: &str) -> Self {
        let server = server_with(shells).await;
        let client = client(&server).await;
        Self { client, server, machine }
    }

    pub(crate) async fn create(&self, more: Value) -> Value {
        let mut arguments = self.machine.target();
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.client.call("session_create", arguments).await.unwrap()
    }

    pub(crate) async fn shell(&self) -> String {
        id_of(&self.create(json!({})).await)
    }

    pub(crate) async fn run(&self, session: &str, command: &str) -> Value {
        self.exec(session, json!({"command": command})).await
    }

    pub(crate) async fn exec(&self, session: &str, arguments: Value) -> Value {
        self.of("session_exec", session, arguments).await
    }

    pub(crate) async fn of(&self, tool: &str, session: &str, mut arguments: Value) -> Value {
        arguments["session_id"] = json!(session);
        self.client.call(tool, arguments).await.unwrap()
    }

    /// A command that goes on; its number.
    pub(crate) async fn begin(&self, session: &str, command: &str, stdin: &str) -> u64 {
        let begun = self.exec(session, json!({"command": command, "stdin": stdin, "yield_secs": 0})).await;
        assert_eq!(begun["running"], true, "{begun}");
        begun["command_id"].as_u64().unwrap()
    }

    /// A command's end.
    pub(crate) async fn end(&self, session: &str, command: u64) -> Value {
        let ended = self.of("session_poll", session, json!({"command_id": command, "wait_secs": 50})).await;
        assert_eq!(ended["running"], false, "{ended}");
        ended
    }

    /// Waits until a running command has shown so much.
    pub(crate) async fn shows(&self, session: &str, command: u64, text: &str) {
        let until = tokio::time::Instant::now() + PATIENCE;
        let arguments = json!({"session_id": session, "command_id": command});
        loop {
            let params = json!({"name": "session_poll", "arguments": arguments});
            let answer = self.client.request("tools/call", params).await.unwrap();
            if answer["result"]["structuredContent"]["stdout"] == text {
                return;
            }
            assert!(tokio::time::Instant::now() < until, "{answer}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(crate) async fn destroy(&self, session: &str) {
        assert_eq!(self.of("session_destroy", session, json!({})).await["destroyed"], true);
    }

    /// What the journal says in words.
    pub(crate) async fn notices(&self, session: &str) -> Vec<String> {
        let all = events(&self.server.http().unwrap(), session).await;
        let texts = all.iter().filter(|event| event["type"] == "notice");
        texts.map(|event| event["text"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) async fn server_with(shells: &str) -> Server {
    let mut server = Setup::new(PROGRAM).prepare().unwrap();
    let file: PathBuf = server.scratch().join("operator.toml");
    fs::write(&file, format!("[shells]\n{shells}")).unwrap();
    server.env("OUTLAST_CONFIG", &file.to_string_lossy());
    server.restart().await.unwrap();
    server
}

pub(crate) fn id_of(made: &Value) -> String {
    made["session_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

/// Runs a story on a machine that may not be had here.
pub(crate) async fn story<F: Future<Output = ()>>(
    name: &str,
    machine: Result<Machine, String>,
    tell: impl FnOnce(Afar) -> F,
) {
    match machine {
        Ok(machine) => tell(Afar::new(machine).await).await,
        Err(why) => skip(name, &why),
    }
}
