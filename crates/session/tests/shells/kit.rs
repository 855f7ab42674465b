//! A server's room of sessions in a data folder of its own, and shells in it as a door drives them.

use outlast_session::{Caller, Execution, FirstKey, Options, Sessions};
use protocol::{ExecCommand, ExecResult, OpenShell, OpenedShell, PlaceKind, SessionRef};
use std::{os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

pub(crate) const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct Room {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) options: Options,
    pub(crate) sessions: Sessions,
    pub(crate) caller: Caller,
}

impl Room {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path().join("data"), std::env::current_exe().unwrap());
        options.orphan = Duration::from_secs(60);
        change(&mut options);
        let (sessions, first) = Sessions::open(options.clone()).await.unwrap();
        let FirstKey::Made(path) = first else { panic!("a first key") };
        let key = std::fs::read_to_string(path).unwrap();
        let caller = sessions.authenticate(key.trim()).unwrap();
        Self { dir, options, sessions, caller }
    }

    /// The server stops and another one starts.
    pub(crate) async fn restart(self) -> Self {
        let Self { dir, options, sessions, caller } = self;
        sessions.shutdown(GRACE).await;
        drop(sessions);
        let (sessions, _) = Sessions::open(options.clone()).await.unwrap();
        Self { dir, options, sessions, caller }
    }

    pub(crate) async fn open(&self, place: PlaceKind) -> Shell<'_> {
        let opened = self.sessions.open_shell(&self.caller, self.request(place)).await.unwrap();
        self.shell(opened)
    }

    pub(crate) fn request(&self, place: PlaceKind) -> OpenShell {
        let cwd = (place == PlaceKind::Project).then(|| self.project().to_string_lossy().into_owned());
        OpenShell { place: Some(place), cwd, ..OpenShell::default() }
    }

    /// A folder to work in, beside the server's data.
    pub(crate) fn project(&self) -> PathBuf {
        let folder = self.dir.path().canonicalize().unwrap().join("project");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        folder
    }

    pub(crate) fn shell(&self, opened: OpenedShell) -> Shell<'_> {
        Shell { room: self, session: opened.session_id.parse().unwrap(), opened }
    }

    pub(crate) async fn end(self) {
        self.sessions.shutdown(GRACE).await;
        drop(self.dir);
    }
}

pub(crate) struct Shell<'a> {
    pub(crate) room: &'a Room,
    pub(crate) session: SessionRef,
    pub(crate) opened: OpenedShell,
}

impl Shell<'_> {
    pub(crate) async fn begin(&self, request: ExecCommand) -> Execution {
        self.room.sessions.exec(&self.room.caller, &self.session, request).await.unwrap()
    }

    pub(crate) async fn run(&self, text: &str) -> ExecResult {
        self.result(text_of(text)).await
    }

    pub(crate) async fn result(&self, request: ExecCommand) -> ExecResult {
        self.begin(request).await.result.await.unwrap().unwrap()
    }

    pub(crate) async fn poll(&self, command: u64, secs: u64) -> ExecResult {
        let wait = Duration::from_secs(secs);
        self.room.sessions.poll_command(&self.room.caller, &self.session, command, wait, None).await.unwrap()
    }

    pub(crate) async fn close(&self) {
        assert_eq!(self.room.sessions.close_shell(&self.room.caller, &self.session).await, Ok(true));
    }
}

pub(crate) fn text_of(text: &str) -> ExecCommand {
    ExecCommand { command: text.as_bytes().to_vec(), ..ExecCommand::default() }
}
