//! Where a shell is: how it is started, found again and let go. The task drives what is here and decides nothing about
//! places.

use super::memo::{ShellMemo, ShellSpec, Target};
use crate::{Shared, faults, policy::walls, quota::Slot};
use journal::NewSession;
use occupant::{
    Redactor,
    shell::{ARGS, PROGRAM, fit_env, site_prefix},
    text::Secrets,
};
use place::{
    FoundShell, Hold, Spawn, SpawnError, StartedShell, Terms, Walls,
    keeper::{Keeper, Shell},
};
use protocol::{Body, Code, Fault, McpServers, PlaceKind, Policy};
use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc};

/// What PATH is where nobody names one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) type Launching = Pin<Box<dyn Future<Output = Result<Launched, Fault>> + Send>>;

/// A shell that was started and has not said a word yet.
pub(super) struct Launched {
    pub(super) shell: Shell,
    pub(super) hold: Hold,
    pub(super) slot: Slot,
    /// Recorded before its first command.
    pub(super) told: Vec<Body>,
}

/// Everything about a shell but its process.
pub(super) struct Outfit {
    pub(super) spawn: Spawn,
    terms: Terms,
    warnings: Vec<String>,
    /// Where it starts when where it was is gone.
    pub(super) home: String,
}

pub(super) fn outfit(
    shared: &Shared,
    fixed: &NewSession,
    spec: &ShellSpec,
    memo: &ShellMemo,
) -> Result<Outfit, Fault> {
    if spec.target != Target::Local {
        return Err(Fault::new(Code::Unsupported, "This server reaches no other machines or containers yet"));
    }
    let applied =
        shared.options.sandboxing.apply(fixed.place, &Policy::default(), None, &McpServers::new())?;
    let home = shared.place.home(&fixed.sandbox, walls(fixed.place)).to_string_lossy().into_owned();
    let mut env = match (fixed.place, &spec.own_env) {
        (PlaceKind::Host, Some(own)) => own.clone(),
        (PlaceKind::Host, None) => shared.options.shells.host_env.clone(),
        _ => BTreeMap::from([("HOME".to_owned(), home.clone())]),
    };
    for (name, value) in [("PATH", DEFAULT_PATH), ("HOME", home.as_str()), ("LANG", "C.UTF-8")] {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    env.extend(spec.env.clone());
    // No terminal is there, whatever the caller's own said.
    env.insert("TERM".to_owned(), "dumb".to_owned());
    let cwd = memo.cwd.clone().or_else(|| spec.cwd.clone());
    let (program, args) = command(spec.umask);
    let spawn = Spawn { program, args, env: fit_env(env), cwd };
    Ok(Outfit { spawn, terms: applied.terms, warnings: applied.warnings, home })
}

/// What is hidden from callers: what the caller gave, what looks like a secret, and the paths that a shell is given its
/// commands by.
pub(super) fn secrets(shared: &Shared, fixed: &NewSession, spec: &ShellSpec, memo: &ShellMemo) -> Secrets {
    let site = match (walls(fixed.place), &memo.tie) {
        (Walls::Sandbox, _) => Some(PathBuf::from("/tmp")),
        (Walls::None, Some(tie)) => Some(shared.options.data.join("keepers").join(&tie.keeper)),
        (Walls::None, None) => None,
    };
    let site = site.map(|folder| site_prefix(&folder.to_string_lossy()));
    let given = Redactor::new(spec.secrets());
    Secrets::new(&given, shared.options.shells.shapes, site.as_deref())
}

fn command(umask: Option<u32>) -> (String, Vec<String>) {
    let own = ARGS.map(str::to_owned);
    match umask {
        None => (PROGRAM.to_owned(), own.to_vec()),
        Some(umask) => {
            let first = ["-c".to_owned(), format!("umask {umask:04o}; exec \"$@\""), "sh".to_owned()];
            let shell = [PROGRAM.to_owned()].into_iter().chain(own);
            ("/bin/sh".to_owned(), first.into_iter().chain(shell).collect())
        }
    }
}

/// Sets out; the task hears when it is there.
pub(super) fn launch(
    shared: &Arc<Shared>,
    fixed: &NewSession,
    spec: &ShellSpec,
    memo: &ShellMemo,
    slot: Slot,
) -> Launching {
    let (shared, fixed, outfit) = (Arc::clone(shared), fixed.clone(), outfit(shared, fixed, spec, memo));
    Box::pin(async move {
        let outfit = outfit?;
        // Nobody clears the folder while somebody comes in.
        let _entry = shared.sandboxes.entry(&fixed.sandbox).await;
        let mut told = prepare(&shared, &fixed).await?;
        let StartedShell { shell, hold } = start(&shared, &fixed, &outfit).await?;
        if !hold.keeper().has_shells() {
            return Err(Fault::new(Code::SandboxFailed, "The session's keeper is too old for shells"));
        }
        told.extend(outfit.warnings.into_iter().map(crate::task::warning));
        Ok(Launched { shell, hold, slot, told })
    })
}

async fn start(shared: &Shared, fixed: &NewSession, outfit: &Outfit) -> Result<StartedShell, Fault> {
    let started = shared.place.start_shell(&fixed.sandbox, outfit.spawn.clone(), outfit.terms.clone()).await;
    let started = match started {
        Err(SpawnError::NoHome { .. }) if outfit.spawn.cwd.is_some() => {
            let spawn = Spawn { cwd: Some(outfit.home.clone()), ..outfit.spawn.clone() };
            shared.place.start_shell(&fixed.sandbox, spawn, outfit.terms.clone()).await
        }
        other => other,
    };
    started.map_err(|error| faults::shell(&error))
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

/// Looks for the shell that a stopped server left.
pub(super) async fn find(
    shared: &Shared,
    fixed: &NewSession,
    memo: &ShellMemo,
) -> Result<FoundShell, String> {
    let tie = memo.tie.as_ref().ok_or("it had none")?;
    shared.place.take_up_shell(&fixed.sandbox, tie).await.map_err(|error| error.to_string())
}
