//! Control groups: one for the sandbox, which bears its limits, and one for each process within it, by which the
//! process's whole tree is killed and frozen.
//!
//! Version 2 is taken where it is; a limit whose controller only version 1 has is set there; and where only the
//! freezer of version 1 can be written, trees are held by that. Nothing here is required: what cannot be had is
//! told, in words, by [`Cgroups::missing`].
//!
//! A process enters by the fast ways only: born into a version 2 group, or writing itself into a version 1 group.
//! Moving another process takes a lock that all forks of the machine wait for, for milliseconds.

use crate::{
    config::Limits,
    kernel,
    tree::{self, Of},
    wire::{Limit, Tree},
};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{Mode, OFlags},
    process::{Pid, Signal},
};
use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::Duration,
};

/// The folder of all keepers' groups within whatever group the server is in.
const HOME: &str = "outlast";
/// The leaf that a server moves itself to, so that the group above can give its controllers to sandboxes.
pub const SERVER_LEAF: &str = "outlast-server";
/// The systemd service whose group is for sandboxes, where there is one. They cannot get their limits within the
/// server's own: systemd does not start a service again in a group that hands controllers to processes still running.
pub const SANDBOXES_UNIT: &str = "outlast-sandboxes.service";
/// What systemd names the groups of services.
const SERVICE: &str = ".service";
/// How often the members of a version 1 group are killed again before it is left to die in its own time.
const KILL_ROUNDS: usize = 64;
/// How long, and how often, the remains of an earlier keeper are waited for.
const CLEAR_ROUNDS: usize = 400;
const CLEAR_EVERY: Duration = Duration::from_millis(5);
const CPU_PERIOD: u64 = 100_000;

/// The sandbox's groups.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    v2: Option<PathBuf>,
    freezer: Option<PathBuf>,
    /// Version 1 groups that bear a limit.
    v1: Vec<PathBuf>,
    limits: Vec<Limit>,
    missing: Vec<String>,
    /// Whether the keeper is there for one process, and everything below it is that process's.
    lone: bool,
}

/// One process's group, or none where the machine has none.
#[derive(Debug)]
pub(crate) enum Group {
    V2 {
        path: PathBuf,
        folder: OwnedFd,
    },
    Freezer {
        path: PathBuf,
    },
    /// Everything that the keeper started or adopted: daemons too come back to it, because it is their reaper.
    All,
    None,
}

/// How a new process comes into its groups.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) v2: Option<BorrowedFd<'a>>,
    /// Files into which the process writes itself.
    tasks: Vec<OwnedFd>,
}

impl Entry<'_> {
    /// Called by the new process itself, while it still has the keeper's rights.
    pub(crate) fn enter(&self) -> rustix::io::Result<()> {
        for file in &self.tasks {
            rustix::io::write(file, b"0")?;
        }
        Ok(())
    }
}

impl Cgroups {
    /// Makes the groups named `name` and sets the limits, as far as the machine allows.
    pub(crate) fn make(name: &str, limits: &Limits) -> Self {
        let mut made = Self::default();
        let machine = match Machine::look() {
            Ok(machine) => machine,
            Err(error) => {
                made.missing.push(format!("cgroups cannot be looked at: {error}"));
                Machine::default()
            }
        };
        let v2 = machine.v2.as_deref().map(|own| v2_home(own).and_then(|home| group(&home, name)));
        match v2 {
            Some(Ok(path)) => made.v2 = Some(path),
            Some(Err(error)) => made.missing.push(format!("no cgroup of version 2 could be made: {error}")),
            None => {}
        }
        if made.v2.is_none() {
            made.freezer = machine.v1("freezer").and_then(|own| group(&own.join(HOME), name).ok());
        }
        if let Some(bytes) = limits.memory_bytes {
            let v1 = [("memory.limit_in_bytes", bytes.to_string())];
            made.limit(&machine, name, Limit::Memory, "memory", &[("memory.max", bytes.to_string())], &v1);
        }
        if let Some(count) = limits.processes {
            let file = [("pids.max", count.to_string())];
            made.limit(&machine, name, Limit::Processes, "pids", &file, &file);
        }
        if let Some(percent) = limits.cpu_percent {
            let quota = u64::from(percent) * CPU_PERIOD / 100;
            let v1 = [("cpu.cfs_period_us", CPU_PERIOD.to_string()), ("cpu.cfs_quota_us", quota.to_string())];
            let v2 = [("cpu.max", format!("{quota} {CPU_PERIOD}"))];
            made.limit(&machine, name, Limit::Cpu, "cpu", &v2, &v1);
        }
        made
    }

    /// The keeper will have one process at a time.
    pub(crate) fn for_one(&mut self) {
        self.lone = true;
    }

    pub(crate) fn is_for_one(&self) -> bool {
        self.lone
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// What was asked for and could not be had, for people.
    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }

    pub(crate) fn tree(&self) -> Tree {
        match (&self.v2, &self.freezer) {
            (Some(_), _) => Tree::Cgroup2,
            (None, Some(_)) => Tree::Freezer1,
            (None, None) => Tree::Walk,
        }
    }

    fn limit(
        &mut self,
        machine: &Machine,
        name: &str,
        limit: Limit,
        controller: &str,
        v2: &[(&str, String)],
        v1: &[(&str, String)],
    ) {
        if let Some(path) = &self.v2
            && set(path, v2).is_ok()
        {
            // Swap would stretch the memory limit; a machine without it has no such file.
            if limit == Limit::Memory {
                let _ = fs::write(path.join("memory.swap.max"), "0");
            }
            self.limits.push(limit);
            return;
        }
        let made = match machine.v1(controller) {
            None => Err(io::Error::other("no hierarchy has this controller")),
            Some(own) => group(&own.join(HOME), name).and_then(|path| set(&path, v1).map(|()| path)),
        };
        match made {
            Ok(path) => {
                if limit == Limit::Memory {
                    let _ = fs::write(path.join("memory.swappiness"), "0");
                }
                self.v1.push(path);
                self.limits.push(limit);
            }
            Err(error) => self.missing.push(format!(
                "the limit \"{controller}\" is not in force: {error}; run the server as root, or as a systemd \
                 service with {SANDBOXES_UNIT} beside it"
            )),
        }
    }

    /// A new group within the sandbox's. Its name is never used again: in some kernels (6.18 among them) a child
    /// born into a group that was killed before is killed too.
    pub(crate) fn group(&self, name: &str) -> Group {
        let within = |home: &PathBuf| {
            let path = home.join(name);
            fs::create_dir(&path).ok().map(|()| path)
        };
        self.v2.as_ref().and_then(within).and_then(opened).unwrap_or_else(|| {
            let none = if self.lone { Group::All } else { Group::None };
            self.freezer.as_ref().and_then(within).map_or(none, |path| Group::Freezer { path })
        })
    }

    /// The sandbox's own group, for its first process. Killing it kills all the others too.
    pub(crate) fn whole(&self) -> Group {
        self.v2
            .clone()
            .and_then(opened)
            .unwrap_or_else(|| self.freezer.clone().map_or(Group::None, |path| Group::Freezer { path }))
    }

    pub(crate) fn entry<'a>(&self, group: &'a Group) -> io::Result<Entry<'a>> {
        let mut tasks = Vec::new();
        for path in &self.v1 {
            tasks.push(tasks_of(path)?);
        }
        let v2 = match group {
            Group::V2 { folder, .. } => Some(folder.as_fd()),
            Group::Freezer { path } => {
                tasks.push(tasks_of(path)?);
                None
            }
            Group::All | Group::None => None,
        };
        Ok(Entry { v2, tasks })
    }

    /// Removes everything. False while processes in them are still dying.
    pub(crate) fn remove(&self) -> bool {
        self.v2.iter().chain(&self.freezer).chain(&self.v1).all(|path| removed(path))
    }
}

impl Group {
    pub(crate) fn members(&self) -> Vec<Pid> {
        match self {
            Self::V2 { path, .. } | Self::Freezer { path } => members(path),
            Self::All => tree::members(Of::Keeper),
            Self::None => Vec::new(),
        }
    }

    /// Kills every member, also frozen ones and those born meanwhile. False where there is no group to do it by.
    pub(crate) fn kill(&self) -> bool {
        match self {
            Self::None => false,
            Self::All => {
                tree::kill(Of::Keeper);
                true
            }
            Self::V2 { path, .. } => {
                if fs::write(path.join("cgroup.kill"), "1").is_err() {
                    // Before Linux 5.14: nothing escapes from a frozen group, and a kill thaws what it hits.
                    let _ = fs::write(path.join("cgroup.freeze"), "1");
                    kill_members(path);
                    let _ = fs::write(path.join("cgroup.freeze"), "0");
                }
                true
            }
            Self::Freezer { path } => {
                for _ in 0..KILL_ROUNDS {
                    let _ = fs::write(path.join("freezer.state"), "FROZEN");
                    let any = kill_members(path);
                    // A frozen process of version 1 dies only when it is thawed.
                    let _ = fs::write(path.join("freezer.state"), "THAWED");
                    if !any {
                        break;
                    }
                }
                true
            }
        }
    }

    pub(crate) fn freeze(&self) -> io::Result<()> {
        match self {
            Self::V2 { path, .. } => fs::write(path.join("cgroup.freeze"), "1"),
            Self::Freezer { path } => fs::write(path.join("freezer.state"), "FROZEN"),
            Self::All | Self::None => Err(ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) fn thaw(&self) -> io::Result<()> {
        match self {
            Self::V2 { path, .. } => fs::write(path.join("cgroup.freeze"), "0"),
            Self::Freezer { path } => fs::write(path.join("freezer.state"), "THAWED"),
            Self::All | Self::None => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Whether everything in it stands still.
    pub(crate) fn frozen(&self) -> bool {
        let holds = |path: &Path, file, text| {
            fs::read_to_string(path.join(file)).is_ok_and(|content| content.lines().any(|line| line == text))
        };
        match self {
            Self::V2 { path, .. } => holds(path, "cgroup.events", "frozen 1"),
            Self::Freezer { path } => holds(path, "freezer.state", "FROZEN"),
            Self::All | Self::None => false,
        }
    }

    /// False while processes in it are still dying.
    pub(crate) fn remove(&self) -> bool {
        match self {
            Self::V2 { path, .. } | Self::Freezer { path } => removed(path),
            Self::All | Self::None => true,
        }
    }
}

fn opened(path: PathBuf) -> Option<Group> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
    Some(Group::V2 { path, folder })
}

fn tasks_of(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::open(path.join("tasks"), flags, Mode::empty()).map_err(io::Error::from)
}

/// The group `name` below `home`, new: one that an ended keeper of the same name left is emptied and removed first.
fn group(home: &Path, name: &str) -> io::Result<PathBuf> {
    match fs::create_dir(home) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let path = home.join(name);
    for _ in 0..CLEAR_ROUNDS {
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => clear(&path),
            Err(error) => return Err(error),
        }
        if !removed(&path) {
            std::thread::sleep(CLEAR_EVERY);
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

/// Kills everything in a group and in those right below it.
fn clear(path: &Path) {
    let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in below.filter(|path| path.is_dir()).chain([path.to_owned()]) {
        if fs::write(folder.join("cgroup.kill"), "1").is_err() {
            kill_members(&folder);
        }
        let _ = fs::OpenOptions::new()
            .write(true)
            .open(folder.join("freezer.state"))
            .and_then(|mut file| io::Write::write_all(&mut file, b"THAWED"));
    }
}

fn set(path: &Path, values: &[(&str, String)]) -> io::Result<()> {
    values.iter().try_for_each(|(file, value)| {
        // Opened without creating: a file that is not there is a controller that is not.
        let mut file = fs::OpenOptions::new().write(true).open(path.join(file))?;
        io::Write::write_all(&mut file, value.as_bytes())
    })
}

fn members(path: &Path) -> Vec<Pid> {
    let text = kernel::read_text(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect()
}

/// Whether there was any.
fn kill_members(path: &Path) -> bool {
    let members = members(path);
    for pid in &members {
        let _ = rustix::process::kill_process(*pid, Signal::KILL);
    }
    !members.is_empty()
}

/// Removes a group and those below it. True once it is not there.
fn removed(path: &Path) -> bool {
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let _ = fs::remove_dir(entry.path());
        }
    }
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Where this process stands in each hierarchy.
#[derive(Debug, Default)]
struct Machine {
    v2: Option<PathBuf>,
    v1: Vec<(String, PathBuf)>,
}

impl Machine {
    fn look() -> io::Result<Self> {
        Ok(Self::read(
            &fs::read_to_string("/proc/self/mountinfo")?,
            &fs::read_to_string("/proc/self/cgroup")?,
        ))
    }

    fn read(mounts: &str, own: &str) -> Self {
        let mut machine = Self::default();
        let own_path = |controller: &str| {
            own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
                names.split(',').any(|name| name == controller).then_some(path)
            })
        };
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let mut left = left.split(' ').skip(3);
            let (Some(root), Some(at)) = (left.next(), left.next()) else { continue };
            let mut right = right.split(' ');
            let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
            let place = |controller: &str| {
                let path = own_path(controller)?;
                let below = if root == "/" { path } else { path.strip_prefix(root)? };
                Some(Path::new(at).join(below.trim_start_matches('/')))
            };
            match kind {
                Some("cgroup2") if machine.v2.is_none() => machine.v2 = place(""),
                Some("cgroup") => {
                    for controller in options.split(',') {
                        if let Some(path) = place(controller) {
                            machine.v1.push((controller.to_owned(), path));
                        }
                    }
                }
                Some(_) | None => {}
            }
        }
        machine
    }

    fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.iter().find(|(name, _)| name == controller).map(|(_, path)| path.as_path())
    }
}

/// The group that holds all sandboxes, with the controllers handed down as far as they can be.
fn v2_home(own: &Path) -> io::Result<PathBuf> {
    let above = &above(own);
    let home = above.join(HOME);
    match fs::create_dir(&home) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let words = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    for folder in [above, &home] {
        let (there, file) = (words(folder.join("cgroup.controllers")), folder.join("cgroup.subtree_control"));
        let given = words(file.clone());
        let has = |list: &str, controller: &str| list.split_whitespace().any(|name| name == controller);
        for controller in ["memory", "pids", "cpu"] {
            if has(&there, controller) && !has(&given, controller) {
                // Refused where a group has processes of its own: then the limit will be missing, and said to be.
                let _ = fs::write(&file, format!("+{controller}"));
            }
        }
    }
    Ok(home)
}

/// The group that sandboxes' groups are made below.
fn above(own: &Path) -> PathBuf {
    // One that belongs to somebody else would be theirs to kill and to unbind.
    let ours = |path: &PathBuf| {
        rustix::fs::stat(path).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
                && stat.st_uid == rustix::process::geteuid().as_raw()
        })
    };
    if let Some(unit) = own.ancestors().skip(1).map(|group| group.join(SANDBOXES_UNIT)).find(ours) {
        return unit;
    }
    // A server that settled in a leaf leaves the group above to its sandboxes.
    match (own.file_name(), own.parent()) {
        (Some(name), Some(parent)) if name == SERVER_LEAF => parent.to_owned(),
        _ => own.to_owned(),
    }
}

/// Moves this process into a leaf of its own cgroup, so that the group can hand its controllers down to sandboxes.
/// For a server at its start; it does nothing but where the group is there for the server alone, as in a container.
pub fn settle() -> io::Result<()> {
    match Machine::look()?.v2 {
        Some(own) => settle_in(&own, std::process::id()),
        None => Ok(()),
    }
}

fn settle_in(own: &Path, pid: u32) -> io::Result<()> {
    let name = own.file_name().unwrap_or_default().to_string_lossy();
    // The machine's first group has no type, and needs no leaf.
    let fixed = !own.join("cgroup.type").exists() || name == SERVER_LEAF || name.ends_with(SERVICE);
    let alone = fs::read_to_string(own.join("cgroup.procs"))?.trim() == pid.to_string();
    if fixed || !alone {
        return Ok(());
    }
    let leaf = own.join(SERVER_LEAF);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::write(leaf.join("cgroup.procs"), pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_pure_and_contained_machines_are_read() {
        let hybrid = "\
31 24 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
33 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
34 31 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        let machine = Machine::read(hybrid, "4:memory:/a/b\n1:cpu,cpuacct:/\n0::/x");
        assert_eq!(machine.v2.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/x")));
        assert_eq!(machine.v1("memory"), Some(Path::new("/sys/fs/cgroup/memory/a/b")));
        assert_eq!(machine.v1("cpu"), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct/")));
        assert_eq!(machine.v1("pids"), None);

        let pure = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let machine = Machine::read(pure, "0::/user.slice/s.scope\n");
        assert_eq!(machine.v2.as_deref(), Some(Path::new("/sys/fs/cgroup/user.slice/s.scope")));

        let contained = "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw";
        let machine = Machine::read(contained, "0::/docker/abc/inner");
        assert_eq!(machine.v2.as_deref(), Some(Path::new("/sys/fs/cgroup/inner")));
        let elsewhere = Machine::read(contained, "0::/other");
        assert_eq!(elsewhere.v2, None);
        assert_eq!(Machine::read("", "").v2, None);
        assert_eq!(Machine::read("junk\n1 2 3 - \n- - -", ":::\n\n0").v2, None);
    }

    /// The way of machines that have version 1 only, on the one hierarchy that a hybrid machine shares with them.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process to freeze")]
    fn a_version_1_freezer_freezes_and_kills() {
        let own = Machine::look().unwrap();
        let home = own.v1("freezer").map(|own| own.join(HOME));
        let name = format!("unit-{}", std::process::id());
        let Some(path) = home.and_then(|home| group(&home, &name).ok()) else { return };
        let group = Group::Freezer { path: path.clone() };
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        fs::write(path.join("tasks"), child.id().to_string()).unwrap();
        group.freeze().unwrap();
        while !group.frozen() {
            group.freeze().unwrap();
        }
        assert!(group.members().contains(&pid));
        assert!(!group.remove());
        assert!(group.kill());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
        while !group.remove() {
            std::thread::yield_now();
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_group_left_by_another_keeper_is_emptied_and_new() {
        let own = Machine::look().unwrap();
        let home = own.v2.map(|own| own.join(HOME));
        let name = format!("left-{}", std::process::id());
        let Some((home, path)) = home.and_then(|home| group(&home, &name).ok().map(|path| (home, path)))
        else {
            return;
        };
        fs::create_dir(path.join("p1")).unwrap();
        let before = rustix::fs::stat(&path).unwrap().st_ino;
        assert_eq!(group(&home, &name).unwrap(), path);
        assert_ne!(
            rustix::fs::stat(&path).unwrap().st_ino,
            before,
            "a group that was killed is not used again"
        );
        assert!(removed(&path));
    }

    #[test]
    fn sandboxes_go_where_their_unit_is() {
        let dir = tempfile::tempdir().unwrap();
        let slice = dir.path().join("system.slice");
        let server = slice.join("outlast.service");
        fs::create_dir_all(server.join(SERVER_LEAF)).unwrap();
        assert_eq!(above(&server), server);
        assert_eq!(above(&server.join(SERVER_LEAF)), server);
        let unit = slice.join(SANDBOXES_UNIT);
        fs::write(&unit, "no folder").unwrap();
        assert_eq!(above(&server), server);
        fs::remove_file(&unit).unwrap();
        fs::create_dir(&unit).unwrap();
        assert_eq!(above(&server), unit);
        assert_eq!(above(&server.join(SERVER_LEAF)), unit);
    }

    #[test]
    fn the_units_agree_with_the_names_here() {
        let server = include_str!("../../../packaging/outlast.service");
        assert!(server.contains(&format!("\nWants=network-online.target {SANDBOXES_UNIT}\n")));
        let user = include_str!("../../../packaging/user/outlast.service");
        assert!(user.contains(&format!("\nWants={SANDBOXES_UNIT}\n")));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process to move")]
    fn a_server_settles_where_it_is_alone() {
        let Some(own) = Machine::look().unwrap().v2 else { return };
        let start = || std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        for (name, company, moves) in
            [("alone", false, true), ("a.service", false, false), ("full", true, false)]
        {
            let group = own.join(format!("settle-{}-{name}", std::process::id()));
            // Whoever may not make groups has nothing to settle.
            if fs::create_dir(&group).is_err() {
                return;
            }
            let mut children = vec![start()];
            if company {
                children.push(start());
            }
            for child in &children {
                fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
            }
            let pid = children[0].id();
            settle_in(&group, pid).unwrap();
            let leaf = group.join(SERVER_LEAF);
            assert_eq!(
                members(&leaf),
                if moves { vec![Pid::from_child(&children[0])] } else { vec![] },
                "{name}"
            );
            // Again, from where it is now.
            settle_in(if moves { &leaf } else { &group }, pid).unwrap();
            for child in &mut children {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            while !removed(&group) {
                std::thread::yield_now();
            }
        }
    }
}
