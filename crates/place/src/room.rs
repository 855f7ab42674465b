//! Rooms: what runs in a workspace, held by one keeper. A room opens with its first process and closes with its last;
//! its keeper's name is never used again.
//!
//! Several sessions may share a workspace, and then its room; each holds its own process. The one owner of which
//! keeper serves which workspace is [`Rooms`].

use crate::{
    Exit, Outlook, Owner, PlaceError, Process, Spawn, SpawnError, Terms, Walls,
    keeper::{EgressRefused, Keeper, KeeperError, Keepers, Kept, SavedState, Shell, ShellState},
    project::Runner,
    workspaces::Workspaces,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    io,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a keeper has to end once it was asked to.
const ENDING: Duration = Duration::from_secs(10);

/// What leads to a running process again, for whoever has it written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tie {
    pub keeper: String,
    /// A keeper of the same name and another epoch is another keeper.
    pub epoch: u64,
    pub process: u64,
}

/// All ties that a server's sessions have written down: processes by keeper.
pub type Known = HashMap<String, HashSet<u64>>;

/// A process that was just started.
#[derive(Debug)]
pub struct Spawned {
    pub process: Process,
    pub hold: Hold,
}

/// A process that was found running, or ended with output that nobody has read.
#[derive(Debug)]
pub struct TakenUp {
    pub process: Process,
    pub hold: Hold,
    /// The number of the last input that arrived, zero before the first.
    pub input_taken: u64,
    pub frozen: bool,
    pub exit: Option<Exit>,
}

/// A shell that was just started; its first word follows.
#[derive(Debug)]
pub struct StartedShell {
    pub shell: Shell,
    pub hold: Hold,
}

/// A shell that was found, and how.
#[derive(Debug)]
pub struct FoundShell {
    pub shell: Shell,
    pub state: ShellState,
    pub hold: Hold,
    pub frozen: bool,
}

/// The right to a process in a room. Dropping it ends the process, and the room after the last one; whoever wants it
/// to stay for the next server says so by [`leave`](Self::leave).
#[derive(Debug)]
pub struct Hold {
    rooms: Rooms,
    room: String,
    keeper: Keeper,
    tie: Tie,
    left: bool,
}

impl Hold {
    pub fn tie(&self) -> &Tie {
        &self.tie
    }

    /// What is in force here, and what is not.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Stops the process and everything that it started; done when all stand still.
    pub fn freeze(&self) -> impl Future<Output = Result<(), KeeperError>> + Send + use<> {
        let (keeper, process) = (self.keeper.clone(), self.tie.process);
        async move { keeper.freeze(Some(process)).await }
    }

    pub fn thaw(&self) -> impl Future<Output = Result<(), KeeperError>> + Send + use<> {
        let (keeper, process) = (self.keeper.clone(), self.tie.process);
        async move { keeper.thaw(Some(process)).await }
    }

    /// Waits for the next connection that something in the room was refused; `None` once the keeper is gone.
    pub async fn egress_refused(&self) -> Option<EgressRefused> {
        self.keeper.egress_refused().await
    }

    /// Lets the process go on without an owner, for the next server.
    pub fn leave(mut self) {
        self.left = true;
    }

    /// Kills what is left of the process, and closes the room after the last one.
    pub async fn end(mut self) {
        self.left = true;
        self.rooms.clone().end(&self.room, &self.tie).await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        // Without a runtime the server is going down, and the next one finds the stray.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (rooms, room, tie) = (self.rooms.clone(), self.room.clone(), self.tie.clone());
            runtime.spawn(async move { rooms.end(&room, &tie).await });
        }
    }
}

/// A keeper at work, and whose processes it has.
#[derive(Debug)]
struct Room {
    name: String,
    keeper: Keeper,
    processes: HashSet<u64>,
}

type Slot = Arc<tokio::sync::Mutex<Option<Room>>>;

#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    keepers: Keepers,
    workspaces: Workspaces,
    orphan: Duration,
    /// By workspace. The slot's own lock is held while its room opens or closes.
    slots: Mutex<HashMap<String, Slot>>,
    known: Mutex<Known>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rooms {
    pub(crate) fn new(data: &Path, orphan: Duration, workspaces: Workspaces) -> Self {
        let keepers = Keepers::new(data);
        let inner = Inner { keepers, workspaces, orphan, slots: Mutex::default(), known: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    fn slot(&self, id: &str) -> Slot {
        Arc::clone(lock(&self.inner.slots).entry(id.to_owned()).or_default())
    }

    /// Drops the slot of a workspace in which nothing runs and that nobody is looking at.
    fn tidy(&self, id: &str, slot: &Slot) {
        let mut slots = lock(&self.inner.slots);
        // The map's and the caller's.
        if Arc::strong_count(slot) == 2 && slot.try_lock().is_ok_and(|room| room.is_none()) {
            slots.remove(id);
        }
    }

    pub(crate) async fn is_occupied(&self, id: &str) -> bool {
        let slot = self.slot(id);
        let occupied = slot.lock().await.as_ref().is_some_and(|room| !room.processes.is_empty());
        self.tidy(id, &slot);
        occupied
    }

    pub(crate) async fn spawn(&self, id: &str, spawn: Spawn, terms: Terms) -> Result<Spawned, SpawnError> {
        let program = PathBuf::from(&spawn.program);
        let (rooms, id) = (self.clone(), id.to_owned());
        // A task of its own: whoever gives up waiting drops what comes of it, and with it the process.
        let started = tokio::spawn(async move {
            let slot = rooms.slot(&id);
            let started = rooms.start(&id, &slot, spawn, terms).await;
            rooms.tidy(&id, &slot);
            started
        });
        started.await.unwrap_or_else(|error| {
            Err(SpawnError::Failed { path: program, source: io::Error::other(error) })
        })
    }

    async fn start(&self, id: &str, slot: &Slot, spawn: Spawn, terms: Terms) -> Result<Spawned, SpawnError> {
        let entered = self.enter(id, slot, spawn, terms, async |keeper, process, spawn, cwd| {
            keeper.spawn(process, spawn, cwd).await
        });
        let (process, hold) = entered.await?;
        Ok(Spawned { process, hold })
    }

    pub(crate) async fn start_shell(
        &self,
        id: &str,
        spawn: Spawn,
        terms: Terms,
        before: Option<SavedState>,
    ) -> Result<StartedShell, SpawnError> {
        let program = PathBuf::from(&spawn.program);
        let (rooms, id) = (self.clone(), id.to_owned());
        let started = tokio::spawn(async move {
            let slot = rooms.slot(&id);
            let entered =
                rooms.enter(&id, &slot, spawn, terms, async |keeper, process, spawn, cwd| match before {
                    None => keeper.start_shell(process, spawn, cwd).await,
                    Some(before) => keeper.continue_shell(process, spawn, cwd, &before).await,
                });
            let entered = entered.await;
            rooms.tidy(&id, &slot);
            entered
        });
        let started = started.await.unwrap_or_else(|error| {
            Err(SpawnError::Failed { path: program, source: io::Error::other(error) })
        });
        started.map(|(shell, hold)| StartedShell { shell, hold })
    }

    /// Has one more process started in the room, which is opened when nothing runs in it.
    async fn enter<T>(
        &self,
        id: &str,
        slot: &Slot,
        spawn: Spawn,
        terms: Terms,
        start: impl AsyncFnOnce(&Keeper, u64, Spawn, &str) -> Result<T, SpawnError>,
    ) -> Result<(T, Hold), SpawnError> {
        check_text(&spawn)?;
        check_program(&spawn.program)?;
        let folder = self.inner.workspaces.folder(id);
        if !self.inner.workspaces.exists(id).await {
            return Err(SpawnError::NoHome { home: folder });
        }
        let mut slot = slot.lock().await;
        if slot.as_ref().is_none_or(|room| room.keeper.is_gone()) {
            *slot = Some(self.open(id, &folder, &terms).await?);
        }
        let Some(room) = slot.as_mut() else { return Err(SpawnError::NoHome { home: folder }) };
        let home = match &terms.outlook {
            Outlook::Bare => folder.to_string_lossy().into_owned(),
            Outlook::System | Outlook::Root(_) => crate::HOME_INSIDE.to_owned(),
            Outlook::Project(project) => project.folder().to_string_lossy().into_owned(),
        };
        let cwd = spawn.cwd.clone().unwrap_or(home);
        let spawn = with_proxy(spawn, &room.keeper);
        let process = number();
        match start(&room.keeper, process, spawn, &cwd).await {
            Ok(started) => {
                room.processes.insert(process);
                let tie = Tie { keeper: room.name.clone(), epoch: room.keeper.epoch(), process };
                Ok((started, self.hold(id, room, tie)))
            }
            Err(error) => {
                if room.processes.is_empty() {
                    self.close(slot.take()).await;
                }
                Err(error)
            }
        }
    }

    fn hold(&self, id: &str, room: &Room, tie: Tie) -> Hold {
        Hold { rooms: self.clone(), room: id.to_owned(), keeper: room.keeper.clone(), tie, left: false }
    }

    async fn open(&self, id: &str, folder: &Path, terms: &Terms) -> Result<Room, SpawnError> {
        let failed = |source: io::Error| SpawnError::Failed { path: folder.to_owned(), source };
        let owner = self.runner(id, &terms.outlook).await;
        let owner = owner.map_err(|error| failed(io::Error::other(error)))?;
        let name = uuid::Uuid::now_v7().simple().to_string();
        let order = terms.clone().order(self.inner.orphan, folder, owner);
        match self.inner.keepers.start(&name, order).await {
            Ok(keeper) => Ok(Room { name, keeper, processes: HashSet::new() }),
            Err(error) => {
                if let Err(error) = self.inner.keepers.remove(&name).await {
                    tracing::warn!(keeper = name, %error, "the folder of a keeper that did not start stays");
                }
                Err(SpawnError::NoRoom(error))
            }
        }
    }

    /// Who runs in a workspace's room; the workspace is his.
    async fn runner(&self, id: &str, outlook: &Outlook) -> Result<Owner, PlaceError> {
        let workspaces = &self.inner.workspaces;
        match outlook {
            Outlook::Bare => workspaces.owner(id, Walls::None).await,
            Outlook::System | Outlook::Root(_) => workspaces.owner(id, Walls::Sandbox).await,
            Outlook::Project(project) => match project.runner() {
                Runner::Mapped => workspaces.owner(id, Walls::Sandbox).await,
                Runner::Owner(owner) => workspaces.give(id, owner).await.map(|()| owner),
            },
        }
    }

    /// Without an offset, its output is read from where the keeper's memory of it begins.
    pub(crate) async fn take_up(
        &self,
        id: &str,
        tie: &Tie,
        stdout: Option<u64>,
    ) -> Result<TakenUp, PlaceError> {
        let slot = self.slot(id);
        let taken = self.attach(id, &slot, tie, stdout).await;
        self.tidy(id, &slot);
        taken
    }

    pub(crate) async fn take_up_shell(&self, id: &str, tie: &Tie) -> Result<FoundShell, PlaceError> {
        let slot = self.slot(id);
        let found = self.reach(id, &slot, tie, async |keeper, kept| {
            let (shell, state) = keeper.attach_shell(kept.process).await?;
            Ok((shell, state, kept.frozen))
        });
        let found = found.await;
        self.tidy(id, &slot);
        found.map(|((shell, state, frozen), hold)| FoundShell { shell, state, hold, frozen })
    }

    async fn attach(
        &self,
        id: &str,
        slot: &Slot,
        tie: &Tie,
        stdout: Option<u64>,
    ) -> Result<TakenUp, PlaceError> {
        let reached = self.reach(id, slot, tie, async |keeper, kept| {
            let stdout = stdout.unwrap_or(kept.stdout.0);
            let process = keeper.attach(kept.process, stdout, kept.stderr.0).await?;
            Ok((process, kept))
        });
        let ((process, Kept { exit, frozen, input_taken, .. }), hold) = reached.await?;
        Ok(TakenUp { process, hold, input_taken, frozen, exit })
    }

    /// Takes up a process of a keeper that this server or another one started.
    async fn reach<T>(
        &self,
        id: &str,
        slot: &Slot,
        tie: &Tie,
        attach: impl AsyncFnOnce(&Keeper, Kept) -> Result<T, KeeperError>,
    ) -> Result<(T, Hold), PlaceError> {
        let lost = |why: String| PlaceError::Lost { why };
        let mut slot = slot.lock().await;
        let known = slot.as_ref().is_some_and(|room| room.name == tie.keeper && !room.keeper.is_gone());
        if !known {
            let keeper = self.inner.keepers.take_up(&tie.keeper).await;
            let keeper = keeper.map_err(|error| lost(error.to_string()))?;
            self.forget_unknown(&tie.keeper, &keeper).await;
            *slot = Some(Room { name: tie.keeper.clone(), keeper, processes: HashSet::new() });
        }
        let Some(room) = slot.as_mut() else { return Err(lost("the room closed".to_owned())) };
        if room.keeper.epoch() != tie.epoch {
            return Err(lost("another keeper has its name".to_owned()));
        }
        let found = room.keeper.found().iter().find(|kept| kept.process == tie.process).cloned();
        let Some(kept) = found else {
            return Err(lost("the keeper does not have the process any more".to_owned()));
        };
        let attached = attach(&room.keeper, kept).await.map_err(|error| lost(error.to_string()))?;
        room.processes.insert(tie.process);
        Ok((attached, self.hold(id, room, tie.clone())))
    }

    /// What a killed server started and had no time to write down.
    async fn forget_unknown(&self, name: &str, keeper: &Keeper) {
        let known = lock(&self.inner.known).get(name).cloned().unwrap_or_default();
        for kept in keeper.found().iter().filter(|kept| !known.contains(&kept.process)) {
            if let Err(error) = keeper.forget(kept.process).await {
                tracing::warn!(keeper = name, %error, "a process that belongs to nobody could not be ended");
            }
        }
    }

    async fn end(&self, id: &str, tie: &Tie) {
        let slot = self.slot(id);
        {
            let mut slot = slot.lock().await;
            if let Some(room) = slot.as_mut().filter(|room| room.name == tie.keeper) {
                room.processes.remove(&tie.process);
                if room.processes.is_empty() {
                    self.close(slot.take()).await;
                } else if let Err(error) = room.keeper.forget(tie.process).await {
                    tracing::warn!(keeper = tie.keeper, %error, "a process could not be ended");
                }
            }
        }
        self.tidy(id, &slot);
    }

    async fn close(&self, room: Option<Room>) {
        let Some(Room { name, keeper, .. }) = room else { return };
        let ended = async {
            // One that is gone already needs no word.
            if keeper.shutdown().await.is_ok() {
                keeper.gone().await;
            }
        };
        if tokio::time::timeout(ENDING, ended).await.is_err() {
            // Its folder stays, and the next server ends it.
            return tracing::warn!(keeper = name, "a keeper did not end when it was asked to");
        }
        if let Err(error) = self.inner.keepers.remove(&name).await {
            tracing::warn!(keeper = name, %error, "an ended keeper's folder could not be removed");
        }
    }

    pub(crate) async fn adopt(&self, known: Known) {
        let keepers = &self.inner.keepers;
        let all = keepers.list().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "keepers that a stopped server left cannot be looked for");
            Vec::new()
        });
        let strays: Vec<String> = all.into_iter().filter(|name| !known.contains_key(name)).collect();
        *lock(&self.inner.known) = known;
        for name in strays {
            let rooms = self.clone();
            tokio::spawn(async move {
                if let Ok(keeper) = rooms.inner.keepers.take_up(&name).await {
                    tracing::info!(keeper = name, "ending a keeper that belongs to no session");
                    rooms.close(Some(Room { name, keeper, processes: HashSet::new() })).await;
                } else if let Err(error) = rooms.inner.keepers.remove(&name).await {
                    tracing::warn!(keeper = name, %error, "an ended keeper's folder could not be removed");
                }
            });
        }
    }
}

/// Tells programs where the way out is. What the caller set stays.
/// What programs look for to find the way out.
const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"];

pub(crate) fn is_proxy(name: &str) -> bool {
    PROXIES.contains(&name)
}

fn with_proxy(mut spawn: Spawn, keeper: &Keeper) -> Spawn {
    let Some(proxy) = keeper.proxy() else { return spawn };
    for name in PROXIES {
        spawn.env.entry(name.to_owned()).or_insert_with(|| proxy.clone());
    }
    // What listens inside is reached directly, and so are the forwards.
    for name in ["no_proxy", "NO_PROXY"] {
        spawn.env.entry(name.to_owned()).or_insert_with(|| "localhost,127.0.0.1,::1".to_owned());
    }
    // Node looks at the others only when it is told to.
    spawn.env.entry("NODE_USE_ENV_PROXY".to_owned()).or_insert_with(|| "1".to_owned());
    spawn
}

/// A number that no process of any keeper had.
fn number() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

fn check_text(spawn: &Spawn) -> Result<(), SpawnError> {
    let nul = |text: &str| text.contains('\0');
    let bad = spawn.args.iter().any(|arg| nul(arg))
        || spawn.cwd.as_deref().is_some_and(nul)
        || spawn
            .env
            .iter()
            .any(|(name, value)| name.is_empty() || name.contains('=') || nul(name) || nul(value));
    if bad { Err(SpawnError::BadText) } else { Ok(()) }
}

/// A name, an absolute path, or a path that stays below where the process starts.
fn check_program(program: &str) -> Result<(), SpawnError> {
    let path = Path::new(program);
    let plain = !program.is_empty()
        && !program.contains('\0')
        && !program.ends_with('/')
        && !matches!(program, "." | "..")
        && (path.is_absolute()
            || path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)));
    if plain { Ok(()) } else { Err(SpawnError::BadProgram { program: program.to_owned() }) }
}
