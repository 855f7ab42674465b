//! `serve`: opens the sessions, opens the door, says where it listens, and stops with grace.
//!
//! stdout gets one line once the server listens, and a second one on the first start; logs go to stderr. The
//! first SIGINT or SIGTERM stops accepting, lets requests and turns end, and closes the journal; a second one
//! means now, and costs nothing that was acknowledged.

use crate::{
    config::{self, Config, LogFormat, ServerConfig},
    exit::{Exit, Failure},
    running::{self, Running},
    term::Term,
};
use doors::{Door, Visitors};
use session::{FirstKey, Sessions};
use std::{path::Path, time::Duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time::Instant,
};
use tracing_subscriber::EnvFilter;

const UPLOADS: &str = "uploads";

pub(crate) async fn serve(config: &Config, term: &Term) -> Result<Exit, Failure> {
    if config.server.detached {
        // Its own session: what happens to the terminal or the editor behind it is not its business.
        rustix::process::setsid()
            .map_err(|error| Failure::Broken(format!("the terminal cannot be left: {error}")))?;
    }
    start_logs(&config.server, term)?;
    let mut signals = Signals::listen()?;
    if let Err(error) = session::settle() {
        tracing::warn!(%error, "sandboxes may lack limits: no cgroup could be made beside the server's own");
    }
    let grace = config.server.grace;
    let opening = Sessions::open(session_options(config)?).await;
    let (sessions, first_key) = opening.map_err(|error| Failure::Broken(error.to_string()))?;
    let door = match Door::bind(sessions.clone(), door_options(config)).await {
        Ok(door) => door,
        Err(error) => {
            sessions.shutdown(grace).await;
            return Err(Failure::Broken(error.to_string()));
        }
    };
    let socket = running::socket_path(&config.data);
    let url = match (door.addr(), &socket) {
        (Some(addr), _) => running::reachable_url(addr),
        (None, Some(socket)) => running::socket_url(socket),
        (None, None) => return Err(no_socket(&config.data)),
    };
    let running = Running { background: config.server.detached, ..Running::here(url.clone(), socket) };
    let _announced = running.announce(&config.data)?;
    if let Some(addr) = door.addr().filter(|addr| !addr.ip().is_loopback()) {
        term.note(&format!(
            "warning: {addr} can be reached from other machines, and speaks plain HTTP; put a TLS proxy in front of it"
        ));
    }
    announce(
        term,
        &format!("outlast listens on {}", door.addr().map_or(url, |addr| format!("http://{addr}"))),
    );
    if let FirstKey::Made(path) = first_key {
        announce(term, &format!("the first key is in {}", path.display()));
    }
    tracing::info!(url = running.url, data = %config.data.display(), version = env!("CARGO_PKG_VERSION"), "listening");
    until_stopped(door, &sessions, &mut signals, &config.server).await
}

fn no_socket(data: &Path) -> Failure {
    Failure::Usage(format!("the path of {} is too long for a socket; choose a shorter one", data.display()))
}

/// That nobody reads stdout any more is no reason not to serve.
fn announce(term: &Term, line: &str) {
    if let Err(error) = term.say(line) {
        tracing::warn!(%error, line, "stdout cannot be written");
    }
}

async fn until_stopped(
    door: Door,
    sessions: &Sessions,
    signals: &mut Signals,
    server: &ServerConfig,
) -> Result<Exit, Failure> {
    let grace = server.grace;
    let visitors = door.visitors();
    let (stop, stopped) = oneshot::channel::<()>();
    let told = async {
        // A sender that is gone means the same as one that was used.
        let _ = stopped.await;
    };
    let mut serving = std::pin::pin!(door.serve(told, grace));
    tokio::select! {
        result = &mut serving => {
            sessions.shutdown(grace).await;
            return match result {
                Ok(()) => Ok(Exit::Done),
                Err(error) => Err(Failure::Broken(error.to_string())),
            };
        }
        name = signals.next() => tracing::info!(signal = name, "stopping; a second signal stops at once"),
        secs = idle(sessions, &visitors, server.until_idle) => {
            tracing::info!(secs, "nobody needed the server; stopping");
        }
    }
    drop(stop);
    let ending = async {
        let served = serving.await;
        sessions.shutdown(grace).await;
        served
    };
    tokio::select! {
        result = ending => match result {
            Ok(()) => {
                tracing::info!("stopped");
                Ok(Exit::Done)
            }
            Err(error) => Err(Failure::Broken(error.to_string())),
        },
        name = signals.next() => {
            tracing::warn!(signal = name, "stopped at once; the next start takes up what ran");
            Ok(Exit::Forced)
        }
    }
}

/// How often the server looks whether somebody needs it.
const IDLE_LOOKS: u32 = 8;

/// Waits until no session was live, no connection open and none made for so long; without a time, for ever.
async fn idle(sessions: &Sessions, visitors: &Visitors, until_idle: Option<Duration>) -> u64 {
    let Some(until_idle) = until_idle else { return std::future::pending().await };
    let (mut since, mut arrived) = (Instant::now(), visitors.arrived());
    while since.elapsed() < until_idle {
        tokio::time::sleep(until_idle / IDLE_LOOKS).await;
        let before = std::mem::replace(&mut arrived, visitors.arrived());
        let quiet = visitors.open() == 0 && sessions.figures().live_sessions == 0;
        if !quiet || before != arrived {
            since = Instant::now();
        }
    }
    until_idle.as_secs()
}

fn start_logs(server: &ServerConfig, term: &Term) -> Result<(), Failure> {
    let bad = |error: &dyn std::fmt::Display| {
        Failure::Usage(format!("the log filter {:?} cannot be used: {error}", server.log))
    };
    // The MCP library writes whole messages into its own log, with what is secret in them: never below a warning.
    let filter = EnvFilter::try_new(&server.log).map_err(|error| bad(&error))?.add_directive(
        "rmcp=warn".parse().map_err(|error: tracing_subscriber::filter::ParseError| bad(&error))?,
    );
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(term.note_paint().is_coloured());
    let started = match server.log_format {
        LogFormat::Text => logs.try_init(),
        LogFormat::Json => logs.json().try_init(),
    };
    started.map_err(|error| Failure::Broken(format!("logging cannot be started: {error}")))
}

/// The one place where the configuration becomes the session room's options.
fn session_options(config: &Config) -> Result<session::Options, Failure> {
    let limits = &config.server.limits;
    let mut options = session::Options::new(config.data.clone(), config::own_path()?);
    options.master_key = config.server.master_key.as_ref().map(|key| key.reveal().to_owned());
    let count = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
    if let Some(limit) = limits.live_sessions {
        options.quotas.live_sessions = count(limit);
    }
    if let Some(limit) = limits.tenant_live_sessions {
        options.quotas.tenant_live_sessions = count(limit);
    }
    options.quotas.tenant_sessions = limits.tenant_sessions.or(options.quotas.tenant_sessions);
    options.quotas.tenant_bytes = limits.tenant_bytes.or(options.quotas.tenant_bytes);
    if let Some(limit) = limits.tenant_events_per_sec {
        options.quotas.tenant_events_per_sec = Some(u32::try_from(limit).unwrap_or(u32::MAX));
    }
    if let Some(secs) = limits.orphan_secs {
        options.orphan = Duration::from_secs(secs);
    }
    if let Some(secs) = limits.evict_secs {
        options.evict = Duration::from_secs(secs);
    }
    if let Some(secs) = limits.idle_secs {
        options.idle = Duration::from_secs(secs);
    }
    options.sandboxing = sandboxing(config.server.sandbox.clone())?;
    options.shells = shells(config, options.orphan)?;
    options.reserve_bytes = limits.reserve_bytes.unwrap_or(options.reserve_bytes);
    options.low_water_bytes = limits.low_water_bytes.unwrap_or(options.low_water_bytes);
    options.snapshots.bytes = limits.snapshot_bytes.unwrap_or(options.snapshots.bytes);
    options.snapshots.files = limits.snapshot_files.unwrap_or(options.snapshots.files);
    Ok(options)
}

/// The operator's words about shells, over the defaults.
fn shells(config: &Config, orphan: Duration) -> Result<session::ShellOptions, Failure> {
    let (given, limits) = (&config.server.shells, &config.server.limits);
    let usual = session::ShellOptions::default();
    let fence = session::Fence::new(&given.allow, &given.deny);
    let patterns = given.redact.iter().map(|redact| {
        let follow = match redact.follow {
            None => session::Follow::Nothing,
            Some(config::RedactFollow::Alnum) => session::Follow::Alnum { least: redact.least },
            Some(config::RedactFollow::Word) => session::Follow::Word { least: redact.least },
            Some(config::RedactFollow::Base64) => session::Follow::Base64 { least: redact.least },
        };
        session::Pattern::new(&redact.label, &redact.starts, follow)
            .map_err(|bad| Failure::Usage(format!("shells.redact: {bad}")))
    });
    Ok(session::ShellOptions {
        sessions: limits
            .shell_sessions
            .map_or(usual.sessions, |most| usize::try_from(most).unwrap_or(usize::MAX)),
        idle: limits.shell_idle_secs.map_or(usual.idle, Duration::from_secs),
        host_env: config.environment.for_shells(),
        shapes: if given.redact_shapes == Some(false) {
            session::Shapes::Off
        } else {
            session::Shapes::Known
        },
        patterns: patterns.collect::<Result<_, _>>()?,
        fence: fence.map_err(|bad| Failure::Usage(format!("shells.allow and shells.deny: {bad}")))?,
        output_bytes: limits.shell_output_bytes.unwrap_or(usual.output_bytes),
        network: given.network.clone().unwrap_or(usual.network),
        remote: session::RemotePolicy {
            trust: if given.trust_on_first_use { session::Trust::FirstUse } else { session::Trust::Known },
            lodging: match given.lodge {
                Some(false) => session::Lodging::Forbidden,
                Some(true) | None => session::Lodging::Allowed,
            },
            connect: given.connect_secs.map_or(usual.remote.connect, Duration::from_secs),
            orphan: orphan.max(usual.remote.orphan),
            ssh_config: given.ssh_config.clone(),
        },
        engine: given.engine_socket.clone().unwrap_or(usual.engine),
    })
}

/// The operator's words about sandboxes, over the defaults.
pub(super) fn sandboxing(given: config::Sandbox) -> Result<session::Sandboxing, Failure> {
    let usual = session::Sandboxing::default();
    let mounts = given.mounts.iter().map(|folder| {
        std::fs::canonicalize(folder)
            .map_err(|error| Failure::Usage(format!("sandbox.mounts: {}: {error}", folder.display())))
    });
    Ok(session::Sandboxing {
        place: given.place.unwrap_or(usual.place),
        host_place: given.host_place.map_or(usual.host_place, who),
        projects: session::Projects {
            place: given.project_place.map_or(usual.projects.place, who),
            within: absolute("sandbox.projects", given.projects)?,
            readable: absolute("sandbox.readable", given.readable)?,
        },
        root: given.root,
        network: match given.network {
            None => usual.network,
            Some(config::MostNetwork::None) => session::MostNetwork::None,
            Some(config::MostNetwork::Allow) => session::MostNetwork::Allow,
            Some(config::MostNetwork::Full) => session::MostNetwork::Full,
        },
        forwards: given.forwards,
        mounts: mounts.collect::<Result<_, _>>()?,
        // What the operator names replaces the default; it may be more.
        limits: protocol::Bounds {
            memory_mb: given.limits.memory_mb.or(usual.limits.memory_mb),
            processes: given.limits.processes.or(usual.limits.processes),
            cpu_percent: given.limits.cpu_percent.or(usual.limits.cpu_percent),
            open_files: given.limits.open_files.or(usual.limits.open_files),
            disk_mb: given.limits.disk_mb.or(usual.limits.disk_mb),
            tmp_mb: given.limits.tmp_mb.or(usual.limits.tmp_mb),
        },
    })
}

fn who(place: config::HostPlace) -> session::HostPlace {
    match place {
        config::HostPlace::Nobody => session::HostPlace::Nobody,
        config::HostPlace::Operator => session::HostPlace::Operator,
        config::HostPlace::Everybody => session::HostPlace::Everybody,
    }
}

/// Paths that may not be there yet, and are not the server's working directory's.
fn absolute(setting: &str, paths: Vec<std::path::PathBuf>) -> Result<Vec<std::path::PathBuf>, Failure> {
    match paths.iter().find(|path| !path.is_absolute()) {
        Some(path) => Err(Failure::Usage(format!("{setting}: {} is not an absolute path", path.display()))),
        None => Ok(paths),
    }
}

fn door_options(config: &Config) -> doors::Options {
    let mut options = doors::Options::new(config.server.listen, config.data.join(UPLOADS));
    options.hosts.clone_from(&config.server.hosts);
    options.socket = running::socket_path(&config.data);
    options
}

/// The signals that ask for an end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind).map_err(|error| Failure::Broken(format!("signals cannot be listened for: {error}")))
        };
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
