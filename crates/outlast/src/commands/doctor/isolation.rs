//! What this machine can isolate. A sandbox is really made and taken down again, below the data folder or where that
//! will be; the rest says why it could not be, or which of its limits will not hold.

use super::{Finding, Verdict, service};
use crate::{commands::serve, config::Config, exit::Failure, running::Running};
use protocol::limits;
use session::{NoSandbox, Pausing, Probe, Users, probe_sandbox};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// The kernel's names of what a sandbox is made of, and ours.
const NAMESPACES: [(&str, &str); 7] = [
    ("user", "user"),
    ("mnt", "mount"),
    ("pid", "pid"),
    ("ipc", "ipc"),
    ("uts", "uts"),
    ("cgroup", "cgroup"),
    ("net", "net"),
];
const MOUNTS: &str = "/proc/self/mountinfo";
/// How an ordinary user gets cgroups to write to.
const UNITS: &str = "; as an ordinary user: copy the units of packaging/user to ~/.config/systemd/user, then \
                     systemctl --user enable --now outlast-sandboxes outlast";

pub(super) async fn isolation(config: &Config, server: Option<&Running>) -> Result<Vec<Finding>, Failure> {
    let mut findings = Settings::look().findings();
    let begin = Instant::now();
    let outcome = probe(config).await?;
    findings.push(namespaces(&outcome, begin.elapsed()));
    findings.push(cgroups(&fs::read_to_string(MOUNTS).unwrap_or_default()));
    if let Ok(probe) = &outcome {
        let elsewhere = server.is_some_and(|server| !service::same_group(server.pid));
        findings.extend([in_force(probe, elsewhere), pausing(probe.pausing)]);
    }
    findings.push(disk(config.server.sandbox.limits.disk_mb));
    Ok(findings)
}

/// In a folder of its own on the disk that sessions will use, so that a disk from which nothing may run is found too.
async fn probe(config: &Config) -> Result<Result<Probe, NoSandbox>, Failure> {
    let sandboxing = serve::sandboxing(config.server.sandbox.clone())?;
    let there = config.data.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let folder = match tempfile::Builder::new().prefix(".outlast-doctor-").tempdir_in(there) {
        Ok(folder) => folder,
        Err(error) => {
            return Ok(Err(NoSandbox {
                what: format!("{} cannot be written to: {error}", there.display()),
                fix: "run as its owner, or name another folder with --data".to_owned(),
            }));
        }
    };
    Ok(probe_sandbox(folder.path(), &sandboxing).await)
}

fn namespaces(outcome: &Result<Probe, NoSandbox>, took: Duration) -> Finding {
    let subject = "namespaces";
    match outcome {
        Ok(probe) => {
            let names = NAMESPACES.map(|(_, name)| name).join(", ");
            let users = match probe.users {
                Users::OneEach => "each sandbox has a user of its own",
                Users::ServersOwn => {
                    "all sandboxes have the server's user, as only root can give each its own"
                }
            };
            let millis = took.as_millis();
            let text = format!("{names}: a sandbox was made and ended in {millis} ms; {users}");
            Finding::new(subject, Verdict::Good, text)
        }
        Err(NoSandbox { what, fix }) => Finding::new(
            subject,
            Verdict::Fault,
            format!("no session can be created in a sandbox: {what}; {fix}"),
        ),
    }
}

/// The kernel's settings that commonly stand in the way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Settings {
    root: bool,
    apparmor_restricts: bool,
    clone_forbidden: bool,
    /// Kinds of namespaces that the kernel does not have.
    absent: Vec<&'static str>,
    /// Kinds of which none may be made.
    none_allowed: Vec<&'static str>,
}

impl Settings {
    fn look() -> Self {
        let is = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
        let kinds = NAMESPACES.into_iter().map(|(kind, _)| kind);
        Self {
            root: rustix::process::geteuid().is_root(),
            apparmor_restricts: is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            clone_forbidden: is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            absent: kinds.clone().filter(|kind| !Path::new("/proc/self/ns").join(kind).exists()).collect(),
            none_allowed: kinds
                .filter(|kind| is(&format!("/proc/sys/user/max_{kind}_namespaces"), "0"))
                .collect(),
        }
    }

    /// One for each obstacle, with the command that removes it.
    fn findings(&self) -> Vec<Finding> {
        let subject = "kernel setup";
        let mut findings = Vec::new();
        let mut found = |verdict, text: String| findings.push(Finding::new(subject, verdict, text));
        for kind in &self.absent {
            found(
                Verdict::Fault,
                format!(
                    "this kernel has no {kind} namespaces; run one built with CONFIG_{}_NS",
                    kind.to_uppercase()
                ),
            );
        }
        for kind in &self.none_allowed {
            let key = format!("user.max_{kind}_namespaces");
            found(Verdict::Fault, format!("{key} is 0, so that none can be made; {}", set(&key, "65536")));
        }
        if self.clone_forbidden {
            found(
                self.for_users(),
                format!(
                    "kernel.unprivileged_userns_clone is 0, which keeps ordinary users out of user namespaces; {}",
                    set("kernel.unprivileged_userns_clone", "1")
                ),
            );
        }
        if self.apparmor_restricts {
            found(
                self.for_users(),
                format!(
                    "AppArmor (kernel.apparmor_restrict_unprivileged_userns is 1, as on Ubuntu since 23.10) keeps ordinary \
                 users out of user namespaces; {}, or give the keeper in DATA/bin an AppArmor profile with \"userns,\"",
                    set("kernel.apparmor_restrict_unprivileged_userns", "0")
                ),
            );
        }
        if findings.is_empty() {
            let text = "nothing in the kernel's settings stands in the way of namespaces";
            findings.push(Finding::new(subject, Verdict::Good, text));
        }
        findings
    }

    /// What only keeps ordinary users out does not touch root. A profile may let the keeper through, so that whether
    /// it is a fault is for the attempt to say.
    fn for_users(&self) -> Verdict {
        if self.root { Verdict::Good } else { Verdict::Warning }
    }
}

/// Now, and after a restart of the machine.
fn set(key: &str, value: &str) -> String {
    format!("sudo sysctl -w {key}={value}, and the same line in /etc/sysctl.d/90-outlast.conf to keep it")
}

/// Which versions are mounted, with which controllers.
fn cgroups(mounts: &str) -> Finding {
    let subject = "cgroups";
    let (mut v2, mut v1) = (None, Vec::new());
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(4);
        let (at, access) = (left.next().unwrap_or_default(), left.next().unwrap_or_default());
        let mut right = right.split(' ');
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        match kind {
            Some("cgroup2") => v2 = v2.or(Some((at, access))),
            Some("cgroup") => v1.extend(
                ["memory", "pids", "cpu", "freezer"]
                    .into_iter()
                    .filter(|name| options.split(',').any(|option| option == *name)),
            ),
            Some(_) | None => {}
        }
    }
    let old = if v1.is_empty() { String::new() } else { format!("version 1 with {}", v1.join(", ")) };
    match v2 {
        None if v1.is_empty() => Finding::new(
            subject,
            Verdict::Warning,
            "none: no limits on memory and processor time, and no freezing; mount -t cgroup2 none /sys/fs/cgroup",
        ),
        None => Finding::new(subject, Verdict::Good, old),
        Some((at, access)) => {
            let both = if old.is_empty() { String::new() } else { format!(", and {old}") };
            if v1.is_empty() && access.split(',').any(|option| option == "ro") {
                let text = format!(
                    "version 2 at {at}, and not writable: no limits on memory and processor time, and no freezing; start the \
                     container with --privileged, or bound the container as a whole"
                );
                return Finding::new(subject, Verdict::Warning, text);
            }
            Finding::new(subject, Verdict::Good, format!("version 2 at {at}{both}"))
        }
    }
}

fn in_force(probe: &Probe, elsewhere: bool) -> Finding {
    let subject = "limits";
    let list = if probe.limits.is_empty() { "none".to_owned() } else { probe.limits.join(", ") };
    let mut text = format!("in force: {list}");
    if probe.missing.is_empty() {
        return Finding::new(subject, Verdict::Good, text);
    }
    text.push_str("; ");
    text.push_str(&probe.missing.join("; "));
    text.push_str(UNITS);
    if elsewhere {
        text.push_str(
            "; this is how it is for you here, and the server is in another cgroup: each session's record says \
             which limits are in force for it",
        );
    }
    Finding::new(subject, Verdict::Warning, text)
}

fn pausing(pausing: Pausing) -> Finding {
    let subject = "pausing";
    match pausing {
        Pausing::Freezes => Finding::new(subject, Verdict::Good, "processes can be frozen"),
        Pausing::Stops => Finding::new(
            subject,
            Verdict::Warning,
            "no cgroup can be written, so that nothing can be frozen: pausing a session means stop and snapshot; \
             run the server as root, or as a systemd service",
        ),
    }
}

fn disk(limit_mb: Option<u64>) -> Finding {
    let limit = limit_mb.map_or_else(|| "its limit".to_owned(), |limit| format!("{limit} MiB"));
    let text = format!(
        "not a quota: a workspace's size is looked at every {} s while its session works and every {} s at rest, so \
         that {limit} can be passed for as long",
        limits::DISK_BUSY_SECS,
        limits::DISK_IDLE_SECS,
    );
    Finding::new("disk limit", Verdict::Good, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_comes_with_its_command() {
        let user = |settings: Settings| settings.findings();
        for (settings, verdict, command) in [
            (
                Settings { apparmor_restricts: true, ..Settings::default() },
                Verdict::Warning,
                "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (
                Settings { clone_forbidden: true, ..Settings::default() },
                Verdict::Warning,
                "sudo sysctl -w kernel.unprivileged_userns_clone=1",
            ),
            (
                Settings { clone_forbidden: true, root: true, ..Settings::default() },
                Verdict::Good,
                "sysctl -w",
            ),
            (
                Settings { none_allowed: vec!["user"], root: true, ..Settings::default() },
                Verdict::Fault,
                "sudo sysctl -w user.max_user_namespaces=65536",
            ),
            (Settings { absent: vec!["net"], ..Settings::default() }, Verdict::Fault, "CONFIG_NET_NS"),
        ] {
            let found = user(settings.clone());
            assert_eq!(found.len(), 1, "{settings:?}");
            assert_eq!(found[0].verdict, verdict, "{settings:?}");
            assert!(found[0].text.contains(command), "{}", found[0].text);
        }
        let many =
            Settings { none_allowed: vec!["pid", "net"], clone_forbidden: true, ..Settings::default() };
        assert_eq!(user(many).len(), 3);
        assert_eq!(user(Settings::default())[0].verdict, Verdict::Good);
    }

    #[test]
    fn a_machines_cgroups_are_named() {
        let hybrid = "\
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
33 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
34 31 0:30 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw";
        let found = cgroups(hybrid);
        assert_eq!(found.verdict, Verdict::Good);
        assert_eq!(found.text, "version 2 at /sys/fs/cgroup/unified, and version 1 with cpu, memory");
        let pure = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(cgroups(pure).text, "version 2 at /sys/fs/cgroup");
        let contained = "30 24 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw";
        assert_eq!(cgroups(contained).verdict, Verdict::Warning);
        assert!(cgroups(contained).text.contains("not writable"));
        assert_eq!(cgroups("junk\n- - -\n").verdict, Verdict::Warning);
    }

    #[test]
    fn a_missing_limit_warns_and_a_missing_namespace_is_a_fault() {
        let probe = Probe {
            limits: vec!["memory", "processes"],
            missing: vec![],
            pausing: Pausing::Freezes,
            users: Users::OneEach,
        };
        assert_eq!(in_force(&probe, false).verdict, Verdict::Good);
        let less = Probe { missing: vec!["the limit \"cpu\" is not in force".into()], ..probe.clone() };
        let found = in_force(&less, true);
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(
            found.text.contains("memory, processes; the limit \"cpu\"")
                && found.text.contains("another cgroup")
        );
        assert_eq!(pausing(Pausing::Stops).verdict, Verdict::Warning);
        let good = namespaces(&Ok(probe), Duration::from_millis(7));
        assert_eq!(good.verdict, Verdict::Good);
        assert!(good.text.starts_with("user, mount, pid, ipc, uts, cgroup, net:"), "{}", good.text);
        let none = NoSandbox { what: "it could not".into(), fix: "do this".into() };
        let bad = namespaces(&Err(none), Duration::ZERO);
        assert_eq!(bad.verdict, Verdict::Fault);
        assert!(bad.text.ends_with("it could not; do this"), "{}", bad.text);
    }
}
