//! Many shells opened, used and closed on one server, and what is left of them afterwards: nothing, but for the record.
//!
//! The suite and the soak run the same code with different numbers. Looked at are the server's threads, descriptors,
//! mounts and memory; keepers and their folders, workspaces, drafts and queues; and the cgroups that keepers had.

use crate::{Mcp, Server, limits};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Shells open at once.
const AT_ONCE: usize = 6;
/// Shells before the first count: caches fill and pools grow with the first few.
const WARM_UP: usize = 30;
/// Descriptors and threads that a server at rest may have more than one that just warmed up.
const SLACK: usize = 6;
/// The server's memory may grow by this, and by so much for each shell: what it remembers of ended sessions.
const MEMORY_SLACK: u64 = 12 * 1024 * 1024;
const MEMORY_EACH: u64 = 2 * 1024;
/// Threads that have nothing to do end after ten seconds.
const REST: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Where keepers have their queues and cgroups.
const QUEUES: &str = "/dev/shm";
const CGROUPS: &str = "/sys/fs/cgroup";

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    pub program: PathBuf,
    pub sessions: usize,
    /// Says how it goes after so many; never when zero.
    pub say_every: usize,
}

/// What there was before and after.
#[derive(Debug, Clone)]
pub struct Summary {
    pub sessions: usize,
    pub before: Count,
    pub after: Count,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shells; before {:?}; after {:?}", self.sessions, self.before, self.after)
    }
}

/// Everything that could be left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    pub threads: usize,
    pub descriptors: usize,
    pub mounts: usize,
    pub children: usize,
    /// Folders of keepers, workspaces and half-written texts.
    pub folders: usize,
    pub memory: u64,
}

/// What keepers of this run were called, and where their queues were.
#[derive(Debug, Default)]
struct Traces {
    keepers: HashSet<String>,
    queues: HashSet<PathBuf>,
}

/// Opens, uses and closes shells; an error says what they left.
pub async fn run(plan: &Plan) -> Result<Summary> {
    let server = Server::start(&plan.program).await?;
    let project = server.scratch().join("project");
    std::fs::create_dir_all(&project)?;
    let client = Mcp::open(&plan.program, server.data(), &[]).await?;
    let mut traces = Traces::default();
    batch(&client, &server, &project, WARM_UP, &mut traces).await?;
    let before = settled(&server, &traces, None).await?;
    let mut done = 0;
    while done < plan.sessions {
        let share = if plan.say_every == 0 { usize::MAX } else { plan.say_every };
        let some = (plan.sessions - done).min(share);
        batch(&client, &server, &project, some, &mut traces).await?;
        done += some;
        if plan.say_every > 0 {
            say(&format!("{done} shells: {:?}", Count::of(&server)?));
        }
    }
    let most = before.memory + MEMORY_SLACK + MEMORY_EACH * plan.sessions as u64;
    let after = settled(&server, &traces, Some((&before, most))).await?;
    client.close().await?;
    Ok(Summary { sessions: plan.sessions, before, after })
}

#[expect(clippy::print_stdout, reason = "a soak says how it goes")]
fn say(text: &str) {
    println!("{text}");
}

/// Opens and closes so many, a few at a time.
async fn batch(
    client: &Mcp,
    server: &Server,
    project: &Path,
    count: usize,
    traces: &mut Traces,
) -> Result<()> {
    let mut next = 0;
    while next < count {
        let some: Vec<usize> = (next..count.min(next + AT_ONCE)).collect();
        next += some.len();
        let opened =
            futures_util::future::try_join_all(some.iter().map(|at| open(client, project, *at))).await?;
        traces.note(server.data())?;
        futures_util::future::try_join_all(opened.iter().map(|session| use_up(client, session))).await?;
    }
    Ok(())
}

async fn open(client: &Mcp, project: &Path, at: usize) -> Result<String> {
    let place = ["host", "sandbox", "project"][at % 3];
    let mut wanted = json!({"transport": "local", "place": place});
    if place == "project" {
        wanted["cwd"] = Value::from(project.to_string_lossy());
    }
    let made = client.call("session_create", wanted).await?;
    Ok(made["session_id"].as_str().context("a session_id")?.to_owned())
}

/// A command, a job, a shell that dies, an output that is kept whole, and the end of it all.
async fn use_up(client: &Mcp, session: &str) -> Result<()> {
    for command in ["x=1; sleep 1000 & echo $x", "seq 1 30000", "exit 3"] {
        let ran = client.call("session_exec", json!({"session_id": session, "command": command})).await?;
        ensure!(!ran["running"].as_bool().unwrap_or(true), "{ran}");
    }
    let gone = client.call("session_destroy", json!({"session_id": session})).await?;
    ensure!(gone["destroyed"] == true, "{gone}");
    Ok(())
}

/// Looks until nothing is left, within a limit; there is no event to wait for when a thread or a process ends.
async fn settled(server: &Server, traces: &Traces, bound: Option<(&Count, u64)>) -> Result<Count> {
    let until = tokio::time::Instant::now() + REST.max(limits::SETTLE);
    loop {
        let count = Count::of(server)?;
        let left = count.left(bound).or_else(|| traces.left());
        match left {
            None => return Ok(count),
            Some(left) if tokio::time::Instant::now() >= until => {
                anyhow::bail!("left behind: {left}\nnow {count:?}, before {:?}\n{}", bound, server.log_tail())
            }
            Some(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

impl Count {
    fn of(server: &Server) -> Result<Self> {
        let pid = server.pid().context("a server that runs")?;
        let process = PathBuf::from(format!("/proc/{pid}"));
        let status = std::fs::read_to_string(process.join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        let mounts = std::fs::read_to_string(process.join("mountinfo"))?;
        // Those of other programs come and go.
        let own = server.data().to_string_lossy();
        let children =
            std::fs::read_to_string(process.join(format!("task/{pid}/children"))).unwrap_or_default();
        let folders = ["keepers", "places", "drafts"].map(|name| entries(&server.data().join(name)).len());
        Ok(Self {
            threads: usize::try_from(field("Threads:"))?,
            descriptors: entries(&process.join("fd")).len(),
            mounts: mounts.lines().filter(|line| line.contains(&*own)).count(),
            children: children.split_whitespace().count(),
            folders: folders.iter().sum(),
            memory: field("VmRSS:") * 1024,
        })
    }

    fn left(&self, bound: Option<(&Self, u64)>) -> Option<String> {
        if self.folders > 0 || self.children > 0 {
            return Some(format!("{} folders, {} processes", self.folders, self.children));
        }
        let (before, memory) = bound?;
        let more = self.threads > before.threads + SLACK
            || self.descriptors > before.descriptors + SLACK
            || self.mounts > before.mounts
            || self.memory > memory;
        more.then(|| format!("threads, descriptors, mounts or memory (bound {memory})"))
    }
}

impl Traces {
    fn note(&mut self, data: &Path) -> Result<()> {
        for keeper in entries(&data.join("keepers")) {
            if let Some(name) = keeper.file_name().and_then(|name| name.to_str()) {
                self.keepers.insert(name.to_owned());
            }
            self.queues.extend(std::fs::read_link(keeper.join("site")));
        }
        ensure!(!self.keepers.is_empty(), "no keeper was seen: this test looks in the wrong place");
        Ok(())
    }

    /// What is still there of what was seen.
    fn left(&self) -> Option<String> {
        let queue = self.queues.iter().find(|queue| queue.starts_with(QUEUES) && queue.exists());
        if let Some(queue) = queue {
            return Some(format!("queues in {}", queue.display()));
        }
        let groups = self.groups(Path::new(CGROUPS), 4);
        groups.map(|group| format!("the cgroup {}", group.display()))
    }

    fn groups(&self, below: &Path, depth: usize) -> Option<PathBuf> {
        for folder in entries(below).into_iter().filter(|path| path.is_dir() && !path.is_symlink()) {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if self.keepers.iter().any(|keeper| name.contains(keeper.as_str())) {
                return Some(folder);
            }
            if let Some(found) = depth.checked_sub(1).and_then(|depth| self.groups(&folder, depth)) {
                return Some(found);
            }
        }
        None
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
