//! Bringing an occupant to its place: the workspace, the environment, the process. Runs beside the task, so
//! that a session can be cancelled, ended or asked about while its agent is on the way.

use super::{
    occupied::{DISK_BUSY, Occupied},
    terminals::Furnished,
};
use crate::{
    Shared, agents, faults,
    policy::{Applied, narrowed, walls},
    quota::Slot,
    spec::{Memo, Spec, internal},
};
use journal::NewSession;
use occupant::{Before, Begin, PlaceOffers, Redactor};
use place::{Spawn, Spawned, Terms, Walls, keeper::Access};
use protocol::{
    Body, Code, ContentBlock, Fault, Level, McpDelivery, McpServers, Notice, SessionConfig, SessionKind,
};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// A process that has not said a word yet, and how to greet it.
pub(crate) struct Launched {
    pub(super) spawned: Spawned,
    pub(super) begin: Begin,
    pub(super) room: Furnished,
    pub(super) slot: Slot,
    /// Recorded before the occupant's first word.
    pub(super) told: Vec<Body>,
    pub(super) disk_bytes: Option<u64>,
}

/// What PATH is when the agent's environment names none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// As an agent's command, this program itself.
const OWN_PROGRAM: &str = "outlast";
/// Where a sandbox sees it.
const OWN_PROGRAM_INSIDE: &str = "/run/outlast/outlast";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workspace {
    /// The session has never run.
    New,
    /// It should be there from before.
    Kept,
}

/// Whether the agent finds what it left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    New,
    Kept,
}

/// Sets out; the task hears when it is there.
pub(super) fn start(
    shared: &Arc<Shared>,
    fixed: &NewSession,
    memo: &Memo,
    spec: Spec,
    slot: Slot,
    workspace: Workspace,
) -> Occupied {
    let (shared, fixed, memo) = (Arc::clone(shared), fixed.clone(), memo.clone());
    Occupied::Launching(Box::pin(async move { launch(&shared, &fixed, &memo, spec, slot, workspace).await }))
}

async fn launch(
    shared: &Shared,
    fixed: &NewSession,
    memo: &Memo,
    spec: Spec,
    slot: Slot,
    workspace: Workspace,
) -> Result<Launched, Fault> {
    let mut outfit = outfit(shared, fixed, memo, &spec).await?;
    // Nobody clears the folder while somebody comes in.
    let _entry = shared.sandboxes.entry(&fixed.sandbox).await;
    let (home, mut told) = prepare(shared, fixed, &spec, &outfit, workspace).await?;
    if home == Home::New {
        // What the agent kept of the conversation was in the home that is gone.
        outfit.begin.resume = None;
    }
    let manifest = &outfit.version.manifest;
    let mut terms = outfit.applied.terms.clone();
    let program = match (manifest.command.as_str(), terms.walls()) {
        (OWN_PROGRAM, Walls::None) => shared.options.exe.to_string_lossy().into_owned(),
        (OWN_PROGRAM, Walls::Sandbox | Walls::Project) => {
            terms.mounts.push(Terms::mount(
                &shared.options.exe,
                Path::new(OWN_PROGRAM_INSIDE),
                Access::ReadOnly,
            ));
            OWN_PROGRAM_INSIDE.to_owned()
        }
        (other, _) => other.to_owned(),
    };
    let room = Furnished { env: outfit.env.clone(), terms: terms.clone() };
    let spawn = Spawn { program, args: manifest.args.clone(), env: outfit.env, cwd: spec.cwd };
    let spawned = shared.place.spawn(&fixed.sandbox, spawn, terms).await;
    let spawned = spawned.map_err(|error| faults::spawn(&error))?;
    told.extend(outfit.applied.warnings.into_iter().map(warning));
    told.extend(in_force(&spawned, outfit.applied.disk_bytes));
    Ok(Launched { spawned, begin: outfit.begin, room, slot, told, disk_bytes: outfit.applied.disk_bytes })
}

pub(crate) fn warning(text: String) -> Body {
    Notice { level: Level::Warning, text }.into()
}

/// Which of a sandbox's limits hold on this machine.
fn in_force(spawned: &Spawned, disk_bytes: Option<u64>) -> Option<Body> {
    let keeper = spawned.hold.keeper();
    if !keeper.in_sandbox() {
        return None;
    }
    let mut text = format!("in a sandbox; limits in force: {}", list(&keeper.limit_names()));
    if disk_bytes.is_some() {
        text.push_str(", disk (looked at every ");
        text.push_str(&format!("{} s while a turn runs)", DISK_BUSY.as_secs()));
    }
    if keeper.missing().is_empty() {
        return Some(Notice { level: Level::Info, text }.into());
    }
    text.push_str("; not in force: ");
    text.push_str(&keeper.missing().join("; "));
    Some(warning(text))
}

fn list(words: &[&str]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Everything about an occupant but its process.
pub(super) struct Outfit {
    version: agents::Version,
    servers: McpServers,
    env: BTreeMap<String, String>,
    applied: Applied,
    pub(super) begin: Begin,
}

impl Outfit {
    pub(super) fn disk_bytes(&self) -> Option<u64> {
        self.applied.disk_bytes
    }

    /// For what is taken up: how to greet the occupant, and how to start a process beside it.
    pub(super) fn into_parts(self) -> (Begin, Furnished) {
        (self.begin, Furnished { env: self.env, terms: self.applied.terms })
    }
}

/// The same for a new process and for one that is taken up.
pub(super) async fn outfit(
    shared: &Shared,
    fixed: &NewSession,
    memo: &Memo,
    spec: &Spec,
) -> Result<Outfit, Fault> {
    let name = match (fixed.kind, &fixed.agent) {
        (SessionKind::Agent, Some(name)) => name,
        (SessionKind::Agent | SessionKind::Shell, _) => {
            return Err(Fault::new(Code::Unsupported, "This server cannot run shell sessions yet"));
        }
    };
    let version = shared.agents.version(&fixed.tenant, name, fixed.agent_version).await?;
    if spec.agent.is_some_and(|id| id != version.id) {
        return Err(agents::missing(name));
    }
    let credential = match spec.credential {
        Some(id) => shared.credentials.open(&fixed.tenant, id).await?,
        None => BTreeMap::new(),
    };
    let mut secrets = spec.secrets();
    secrets.extend(credential.iter().map(|(name, value)| (name.clone(), value.clone())));

    let mut servers = agents::read_mcp_servers(&version.folder)?;
    servers.extend(spec.mcp_servers.clone());

    let policy = &version.manifest.policy;
    let applied = shared.options.sandboxing.apply(fixed.place, policy, spec.policy.as_ref(), &servers)?;
    let turn_secs = [policy.turn_secs, spec.policy.as_ref().and_then(|own| own.turn_secs)];
    let turn_secs = turn_secs.into_iter().flatten().min();

    let home = shared.place.home(&fixed.sandbox, walls(fixed.place));
    let home = home.to_str().ok_or_else(|| internal("the data folder's path is not UTF-8"))?.to_owned();
    // The later wins: defaults, agent, credential, the session's own.
    let mut env =
        BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned()), ("HOME".to_owned(), home.clone())]);
    env.extend(version.manifest.env.clone());
    env.extend(credential);
    env.extend(spec.extra_env.clone());

    let mut config = memo.settings();
    config.model = config.model.or_else(|| version.manifest.model.clone());
    let begin = Begin {
        cwd: spec.cwd.clone().unwrap_or(home),
        mcp_servers: match version.manifest.mcp {
            McpDelivery::Session => servers.clone(),
            McpDelivery::File => McpServers::new(),
        },
        config: SessionConfig { model: config.model, mode: config.mode, thought_level: config.thought_level },
        resume: memo.agent_session.clone(),
        turn_secs,
        redactor: Redactor::new(secrets),
        terms: occupant::Terms {
            auth: version.manifest.auth.clone(),
            place: PlaceOffers::FilesAndTerminals,
            before: before(shared, fixed, memo).await?,
            whose: memo.whose,
            ways: version.manifest.resume,
            instructions: spec.instructions.clone(),
            policy: narrowed(policy, spec.policy.as_ref()),
            spent: memo.spent,
        },
    };
    Ok(Outfit { version, servers, env, applied, begin })
}

/// What the agent must know of when it comes back: none before its first prompt.
async fn before(shared: &Shared, fixed: &NewSession, memo: &Memo) -> Result<Before, Fault> {
    let Some(seq) = memo.last_prompt else { return Ok(Before::Nothing) };
    let event = shared.journal.event(fixed.id, seq).await.map_err(faults::read)?;
    let last_prompt = event.and_then(|event| match event.decode() {
        Ok(Body::PromptAccepted(prompt)) => {
            let text: Vec<&str> = prompt.content.iter().map(ContentBlock::plain).collect();
            Some(text.join("\n"))
        }
        // Erased, or cut off by retention: there is nothing to compare with.
        Ok(_) | Err(_) => None,
    });
    Ok(Before::Conversation { last_prompt })
}

/// Makes the workspace where there is none: from its last snapshot, or new, with the session's own instructions and
/// servers in it.
async fn prepare(
    shared: &Shared,
    fixed: &NewSession,
    spec: &Spec,
    outfit: &Outfit,
    workspace: Workspace,
) -> Result<(Home, Vec<Body>), Fault> {
    let (place, version) = (&shared.place, &outfit.version);
    if place.exists(&fixed.sandbox).await {
        return Ok((Home::Kept, Vec::new()));
    }
    // Also for a new session: the sandbox that it shares may have been put away.
    if let Some(restored) = restore(shared, fixed).await? {
        return Ok((Home::Kept, vec![restored]));
    }
    let created = place.create(&fixed.sandbox, &version.folder, walls(fixed.place)).await;
    created.map_err(|error| faults::place(&error))?;
    if let Some(text) = &spec.system_prompt {
        place
            .write_file(&fixed.sandbox, "CLAUDE.md", text.as_bytes())
            .await
            .map_err(|error| faults::place(&error))?;
    }
    if version.manifest.mcp == McpDelivery::File {
        let file = serde_json::to_vec_pretty(&serde_json::json!({ "mcpServers": outfit.servers }))
            .map_err(internal)?;
        place.write_file(&fixed.sandbox, ".mcp.json", &file).await.map_err(|error| faults::place(&error))?;
    }
    let notices = match workspace {
        Workspace::New => Vec::new(),
        Workspace::Kept => vec![warning(format!(
            "the workspace was gone, and there is no snapshot of it: it was made again from version {} of agent {}",
            version.number, version.name
        ))],
    };
    Ok((Home::New, notices))
}

pub(crate) async fn restore(shared: &Shared, fixed: &NewSession) -> Result<Option<Body>, Fault> {
    let (place, walls) = (&shared.place, walls(fixed.place));
    let owner = place.owner(&fixed.sandbox, walls).await.map_err(|error| faults::place(&error))?;
    let folder = place.folder(&fixed.sandbox);
    let restored = shared.sandboxes.restore(&fixed.sandbox, &folder, Some(owner.owners(walls))).await;
    if !matches!(restored, Ok(Some(_))) {
        place.give_back(owner);
    }
    Ok(restored?.map(Body::from))
}
