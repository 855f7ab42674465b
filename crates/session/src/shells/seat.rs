//! Where a shell is: how it is started, found again and let go. The task drives what is here and decides nothing about
//! places.

use super::{
    grip::{Far, Grip, Way},
    memo::{self, ShellMemo, ShellSpec, Target},
    project,
};
use crate::{Shared, faults, policy::walls, quota::Slot, spec::internal};
use journal::NewSession;
use occupant::{
    Redactor,
    shell::{ARGS, PROGRAM, fit_env, site_prefixes},
    text::Secrets,
};
use place::{
    Outlook, Project, Spawn, SpawnError, Terms, Walls,
    keeper::{Keeper, Manner, SavedState, Shell, ShellState},
    remote::{self, Machine, Password, RemoteError},
};
use protocol::{Body, Code, Fault, McpServers, PlaceKind, Policy, SessionId};
use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

/// What PATH is where nobody names one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The one process of a keeper on another machine.
const FAR_PROCESS: u64 = 1;
/// Where there is no bash.
const PLAIN: &str = "sh";
/// How long a connection that broke is tried again, and how soon.
const REJOIN: Duration = Duration::from_secs(300);
const REJOIN_FIRST: Duration = Duration::from_millis(200);
const REJOIN_LAST: Duration = Duration::from_secs(15);

pub(super) type Launching = Pin<Box<dyn Future<Output = Result<Launched, Fault>> + Send>>;

/// A shell that was started and has not said a word yet.
pub(super) struct Launched {
    pub(super) shell: Shell,
    pub(super) grip: Grip,
    pub(super) slot: Slot,
    pub(super) outfit: Outfit,
    /// For a keeper on another machine.
    pub(super) token: Option<[u8; 32]>,
    /// Recorded before its first command.
    pub(super) told: Vec<Body>,
}

/// A shell that was there already.
pub(super) struct Found {
    pub(super) shell: Shell,
    pub(super) state: ShellState,
    pub(super) grip: Grip,
    pub(super) frozen: bool,
}

/// Everything about a shell but its process.
#[derive(Clone)]
pub(super) struct Outfit {
    spawn: Spawn,
    /// Where it starts when where it was is gone.
    home: String,
}

fn local_outfit(
    shared: &Shared,
    fixed: &NewSession,
    spec: &ShellSpec,
    memo: &ShellMemo,
    program: &str,
    project: Option<&Project>,
) -> Outfit {
    let home = shared.place.home(&fixed.sandbox, walls(fixed.place));
    let (home, start) = match project {
        Some(project) => (project.home().to_owned(), project.folder().to_owned()),
        None => (home.clone(), home),
    };
    let mut env = match (fixed.place, &spec.own_env) {
        (PlaceKind::Host, Some(own)) => own.clone(),
        (PlaceKind::Host, None) => shared.options.shells.host_env.clone(),
        _ => BTreeMap::new(),
    };
    env.entry("HOME".to_owned()).or_insert_with(|| home.to_string_lossy().into_owned());
    outfit(spec, memo, env, start.to_string_lossy().into_owned(), program.to_owned())
}

fn far_outfit(spec: &ShellSpec, memo: &ShellMemo, machine: &Machine) -> Result<Outfit, Fault> {
    let named = match &spec.target {
        Target::Docker(docker) => docker.shell.clone(),
        Target::Local | Target::Ssh(_) => None,
    };
    let found = named.or_else(|| machine.bash.clone()).or_else(|| machine.sh.clone());
    let Some(program) = found else {
        return Err(Fault::new(Code::Unsupported, "There is no shell on the other side; install bash there"));
    };
    let start = if machine.cwd.is_empty() { machine.home.clone() } else { machine.cwd.clone() };
    Ok(outfit(spec, memo, machine.env.clone(), start, program))
}

fn outfit(
    spec: &ShellSpec,
    memo: &ShellMemo,
    mut env: BTreeMap<String, String>,
    home: String,
    program: String,
) -> Outfit {
    for (name, value) in [("PATH", DEFAULT_PATH), ("HOME", home.as_str()), ("LANG", "C.UTF-8")] {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    env.extend(spec.env.clone());
    // No terminal is there, whatever the caller's own said.
    env.insert("TERM".to_owned(), "dumb".to_owned());
    let cwd = memo.cwd.clone().or_else(|| spec.cwd.clone());
    let (program, args) = command(program, spec.umask);
    Outfit { spawn: Spawn { program, args, env: fit_env(env), cwd }, home }
}

fn command(shell: String, umask: Option<u32>) -> (String, Vec<String>) {
    let own: Vec<String> = match shell.rsplit('/').next() {
        Some(PROGRAM) => ARGS.map(str::to_owned).to_vec(),
        // Every other shell reads its input by itself.
        Some(_) | None => vec!["-s".to_owned()],
    };
    match umask {
        None | Some(place::keeper::UMASK) => (shell, own),
        Some(umask) => {
            let first = ["-c".to_owned(), format!("umask {umask:04o}; exec \"$@\""), "sh".to_owned(), shell];
            ("/bin/sh".to_owned(), first.into_iter().chain(own).collect())
        }
    }
}

/// What is hidden from callers: what the caller gave, what looks like a secret, and the paths that a shell is given its
/// commands by.
pub(super) fn secrets(shared: &Shared, fixed: &NewSession, spec: &ShellSpec, memo: &ShellMemo) -> Secrets {
    let site = match (&spec.target, walls(fixed.place), &memo.tie) {
        (Target::Ssh(_) | Target::Docker(_), ..) => {
            memo.lodged.as_ref().map(|far| PathBuf::from(&far.folder))
        }
        (Target::Local, Walls::Sandbox | Walls::Project, _) => Some(PathBuf::from("/tmp")),
        (Target::Local, Walls::None, Some(tie)) => {
            Some(shared.options.data.join("keepers").join(&tie.keeper))
        }
        (Target::Local, Walls::None, None) => None,
    };
    let sites = site.map(|folder| site_prefixes(&folder.to_string_lossy()));
    let (given, options) = (Redactor::new(spec.secrets()), &shared.options.shells);
    Secrets::with_patterns(
        &given,
        options.shapes,
        &options.patterns,
        sites.as_ref().map_or(&[], <[_; 2]>::as_slice),
    )
}

/// Sets out; the task hears when it is there.
pub(super) fn launch(
    shared: &Arc<Shared>,
    fixed: &NewSession,
    spec: &ShellSpec,
    memo: &ShellMemo,
    slot: Slot,
) -> Launching {
    let (shared, fixed) = (Arc::clone(shared), fixed.clone());
    let (spec, memo) = (spec.clone(), memo.clone());
    Box::pin(async move {
        match spec.target {
            Target::Local => launch_local(&shared, &fixed, &spec, &memo, slot).await,
            Target::Ssh(_) | Target::Docker(_) => launch_far(&shared, fixed.id, &spec, &memo, slot).await,
        }
    })
}

async fn launch_local(
    shared: &Shared,
    fixed: &NewSession,
    spec: &ShellSpec,
    memo: &ShellMemo,
    slot: Slot,
) -> Result<Launched, Fault> {
    let sandboxing = &shared.options.sandboxing;
    let policy = Policy { network: Some(shared.options.shells.network.clone()), ..Policy::default() };
    let mut applied = sandboxing.apply(fixed.place, &policy, None, &McpServers::new())?;
    let project = match fixed.place {
        PlaceKind::Project => Some(project::find(shared, spec).await?),
        PlaceKind::Sandbox | PlaceKind::Host | PlaceKind::Ssh | PlaceKind::Docker => None,
    };
    if let Some(project) = &project {
        applied.terms.outlook = Outlook::Project(Box::new(project.clone()));
    }
    let outfit = local_outfit(shared, fixed, spec, memo, PROGRAM, project.as_ref());
    // Nobody clears the folder while somebody comes in.
    let _entry = shared.sandboxes.entry(&fixed.sandbox).await;
    let mut told = prepare(shared, fixed).await?;
    let before = state_before(shared, memo);
    let (started, outfit) = match start_local(shared, fixed, &outfit, &applied.terms, &before).await {
        Err(SpawnError::NotFound { .. }) => {
            let plain = local_outfit(shared, fixed, spec, memo, PLAIN, project.as_ref());
            (start_local(shared, fixed, &plain, &applied.terms, &before).await, plain)
        }
        started => (started, outfit),
    };
    let started = started.map_err(|error| faults::shell(&error))?;
    if !started.hold.keeper().has_shells() {
        return Err(Fault::new(Code::SandboxFailed, "The session's keeper is too old for shells"));
    }
    told.extend(applied.warnings.into_iter().map(crate::task::warning));
    let (shell, grip) = (started.shell, Grip::Local(started.hold));
    Ok(Launched { shell, grip, slot, outfit, token: None, told })
}

async fn start_local(
    shared: &Shared,
    fixed: &NewSession,
    outfit: &Outfit,
    terms: &Terms,
    before: &Option<SavedState>,
) -> Result<place::StartedShell, SpawnError> {
    let start = |spawn| shared.place.start_shell(&fixed.sandbox, spawn, terms.clone(), before.clone());
    let started = start(outfit.spawn.clone()).await;
    match started {
        Err(SpawnError::NoHome { .. }) if outfit.spawn.cwd.is_some() => {
            let spawn = Spawn { cwd: Some(outfit.home.clone()), ..outfit.spawn.clone() };
            start(spawn).await
        }
        other => other,
    }
}

/// What the shell before this one said of its state.
fn state_before(shared: &Shared, memo: &ShellMemo) -> Option<SavedState> {
    memo.state.as_deref().and_then(|sealed| memo::open_state(&shared.vault, sealed))
}

/// Makes the workspace where there is none, from its last snapshot when there is one.
async fn prepare(shared: &Shared, fixed: &NewSession) -> Result<Vec<Body>, Fault> {
    if shared.place.exists(&fixed.sandbox).await {
        return Ok(Vec::new());
    }
    if let Some(restored) = crate::task::restore(shared, fixed).await? {
        return Ok(vec![restored]);
    }
    let made = shared.place.create_empty(&fixed.sandbox, walls(fixed.place)).await;
    made.map(|()| Vec::new()).map_err(|error| faults::place(&error))
}

async fn launch_far(
    shared: &Arc<Shared>,
    id: SessionId,
    spec: &ShellSpec,
    memo: &ShellMemo,
    slot: Slot,
) -> Result<Launched, Fault> {
    let (target, password) = far_target(shared, spec).ok_or_else(|| internal("a shell without a machine"))?;
    let reached = shared.remotes.connect(&target, password.as_ref()).await;
    let reached = reached.map_err(|error| faults::remote(&error))?;
    let outfit = far_outfit(spec, memo, reached.machine())?;
    let (joined, told) = match reached.lodge().await {
        Ok(joined) => (joined, Vec::new()),
        Err(none @ RemoteError::NoKeeper { .. }) => {
            let joined = reached.stand_in().await.map_err(|error| faults::remote(&error))?;
            (joined, vec![crate::task::warning(format!("{none}; the shell there ends with its connection"))])
        }
        Err(error) => return Err(faults::remote(&error)),
    };
    let cwd = outfit.spawn.cwd.clone().unwrap_or_else(|| outfit.home.clone());
    let before = state_before(shared, memo);
    let start = async |cwd: &str| match &before {
        None => joined.keeper.start_shell(FAR_PROCESS, outfit.spawn.clone(), cwd).await,
        Some(before) => joined.keeper.continue_shell(FAR_PROCESS, outfit.spawn.clone(), cwd, before).await,
    };
    let started = match start(&cwd).await {
        Err(SpawnError::NoHome { .. }) if cwd != outfit.home => start(&outfit.home).await,
        other => other,
    };
    let way = Way { target, password, lodged: joined.lodged, token: joined.token };
    let grip = Grip::Remote(Far { keeper: joined.keeper, process: FAR_PROCESS, way });
    match started {
        Ok(shell) => Ok(Launched { shell, grip, slot, outfit, token: Some(joined.token), told }),
        Err(error) => {
            if let Some(way) = grip.end().await {
                way.end_later(shared, id);
            }
            Err(faults::shell(&error))
        }
    }
}

/// A target as the place takes it, and its password; none for this machine.
pub(super) fn far_target(shared: &Shared, spec: &ShellSpec) -> Option<(remote::Target, Option<Password>)> {
    Some(match &spec.target {
        Target::Ssh(ssh) => {
            let target = remote::Ssh {
                host: ssh.host.clone(),
                user: ssh.user.clone(),
                port: ssh.port,
                key_path: ssh.key_path.as_ref().map(PathBuf::from),
                fingerprint: ssh.fingerprint.clone(),
            };
            (remote::Target::Ssh(target), ssh.password.clone().map(Password::new))
        }
        Target::Docker(docker) => {
            let target = remote::Docker {
                socket: shared.options.shells.engine.clone(),
                container: docker.container.clone(),
                user: docker.user.clone(),
                workdir: None,
            };
            (remote::Target::Docker(target), None)
        }
        Target::Local => return None,
    })
}

pub(super) type Restarting = Pin<Box<dyn Future<Output = Result<(), SpawnError>> + Send>>;

/// Starts the shell again in its keeper: where it was, or at home when that is gone.
pub(super) fn restart(keeper: &Keeper, process: u64, outfit: &Outfit) -> Restarting {
    let (keeper, spawn, home) = (keeper.clone(), outfit.spawn.clone(), outfit.home.clone());
    Box::pin(async move {
        match keeper.restart_shell(process, spawn.clone(), "").await {
            Err(SpawnError::NoHome { .. }) => keeper.restart_shell(process, spawn, &home).await,
            other => other,
        }
    })
}

pub(super) type Rejoining = Pin<Box<dyn Future<Output = Result<(Found, Outfit), String>> + Send>>;

/// Looks for a shell that is there already: a stopped server left it, or its connection broke. One on this machine is
/// found at once or never; one elsewhere is tried for a while.
pub(super) fn rejoin(
    shared: &Arc<Shared>,
    fixed: &NewSession,
    spec: &ShellSpec,
    memo: &ShellMemo,
    way: Option<Way>,
) -> Rejoining {
    let (shared, fixed) = (Arc::clone(shared), fixed.clone());
    let (spec, memo) = (spec.clone(), memo.clone());
    Box::pin(async move {
        match (&spec.target, way) {
            (Target::Local, _) => {
                let tie = memo.tie.as_ref().ok_or("it had none")?;
                let found = shared.place.take_up_shell(&fixed.sandbox, tie).await;
                let place::FoundShell { shell, state, hold, frozen } =
                    found.map_err(|error| error.to_string())?;
                let found = Found { shell, state, grip: Grip::Local(hold), frozen };
                let program = if found.shell.manner() == Manner::Seen { PROGRAM } else { PLAIN };
                let project = match fixed.place {
                    // It runs there already, whatever became of the folder.
                    PlaceKind::Project => project::find(&shared, &spec).await.ok(),
                    PlaceKind::Sandbox | PlaceKind::Host | PlaceKind::Ssh | PlaceKind::Docker => None,
                };
                Ok((found, local_outfit(&shared, &fixed, &spec, &memo, program, project.as_ref())))
            }
            (Target::Ssh(_) | Target::Docker(_), Some(way)) => rejoin_far(&shared, &spec, &memo, way).await,
            (Target::Ssh(_) | Target::Docker(_), None) => Err("nothing is known of it".to_owned()),
        }
    })
}

async fn rejoin_far(
    shared: &Shared,
    spec: &ShellSpec,
    memo: &ShellMemo,
    way: Way,
) -> Result<(Found, Outfit), String> {
    let (target, password) = (&way.target, way.password.as_ref());
    let (until, mut wait) = (tokio::time::Instant::now() + REJOIN, REJOIN_FIRST);
    loop {
        let taken = shared.remotes.take_up(target, password, &way.lodged, way.token).await;
        let error = match taken {
            Ok(keeper) => match keeper.attach_shell(FAR_PROCESS).await {
                Ok((shell, state)) => {
                    let reached = shared.remotes.connect(target, password).await;
                    let machine = reached.map(|reached| reached.machine().clone()).unwrap_or_default();
                    let outfit = far_outfit(spec, memo, &machine);
                    let outfit = outfit.map_err(|fault| fault.message.to_string())?;
                    let frozen = keeper.found().iter().any(|kept| kept.process == FAR_PROCESS && kept.frozen);
                    let far = Far { keeper, process: FAR_PROCESS, way };
                    return Ok((Found { shell, state, grip: Grip::Remote(far), frozen }, outfit));
                }
                Err(error) => error.to_string(),
            },
            Err(error @ (RemoteError::Lost { .. } | RemoteError::NoContainer(_))) => {
                return Err(error.to_string());
            }
            Err(error) => error.to_string(),
        };
        if tokio::time::Instant::now() >= until {
            return Err(error);
        }
        tracing::info!(error, "a shell on another machine is not reached; trying again");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(REJOIN_LAST);
    }
}
