//! Whoever runs the server: would it kill the keepers too? A systemd unit without `KillMode=process` does, and so does
//! a container that ends.

use super::{Finding, Verdict};
use crate::running::Running;
use std::{fs, path::Path, process::Stdio, time::Duration};

/// The unit beside the server's in which sandboxes have their cgroups.
const SANDBOXES: &str = "outlast-sandboxes.service";
/// How long systemctl may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn service(server: Option<&Running>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(container) = container(Path::new("/"), &read("/proc/1/cgroup")) {
        findings.push(contained(container));
    }
    let Some(server) = server else { return findings };
    if let Some(unit) = unit_of(&read(&format!("/proc/{}/cgroup", server.pid))) {
        let told = ask(&unit).await;
        findings.extend(judge(&unit, told.as_deref()));
    } else if findings.is_empty() {
        let text =
            format!("process {} is run by no systemd service; nothing kills keepers with it", server.pid);
        findings.push(Finding::new(SUBJECT, Verdict::Good, text));
    }
    findings
}

const SUBJECT: &str = "service";

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Whether this process and another stand in the same cgroups.
pub(super) fn same_group(pid: u32) -> bool {
    read(&format!("/proc/{pid}/cgroup")) == read("/proc/self/cgroup")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    System,
    User,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    name: String,
    manager: Manager,
}

/// The systemd service that a process belongs to, by its cgroups. A scope is not one: nothing restarts it.
fn unit_of(cgroups: &str) -> Option<Unit> {
    cgroups.lines().find_map(|line| match line.splitn(3, ':').collect::<Vec<_>>().as_slice() {
        ["0", "", path] | [_, "name=systemd", path] => unit_at(path),
        _ => None,
    })
}

fn unit_at(path: &str) -> Option<Unit> {
    let is_unit = |part: &&str| {
        [".service", ".scope"].iter().any(|kind| part.len() > kind.len() && part.ends_with(kind))
    };
    let units: Vec<&str> = path.split('/').filter(is_unit).collect();
    let (name, above) = units.split_last()?;
    if !name.ends_with(".service") || name.starts_with("user@") {
        return None;
    }
    let manager =
        if above.iter().any(|part| part.starts_with("user@")) { Manager::User } else { Manager::System };
    Some(Unit { name: (*name).to_owned(), manager })
}

/// What systemd says of the unit, as `KEY=VALUE` lines; none where it cannot be asked.
#[expect(clippy::disallowed_methods, reason = "only systemctl knows; it is no process of a session")]
async fn ask(unit: &Unit) -> Option<String> {
    let mut command = tokio::process::Command::new("systemctl");
    if unit.manager == Manager::User {
        command.arg("--user");
    }
    command.args(["show", "--property=KillMode,Delegate,OOMPolicy,Wants,Requires", &unit.name]);
    command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn judge(unit: &Unit, told: Option<&str>) -> Vec<Finding> {
    let Unit { name, manager } = unit;
    let systemctl = match manager {
        Manager::System => "sudo systemctl",
        Manager::User => "systemctl --user",
    };
    let value = |key: &str| told?.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let Some(mode) = value("KillMode") else {
        let text = format!("{name}, whose KillMode cannot be asked for; see to it that it is \"process\"");
        return vec![Finding::new(SUBJECT, Verdict::Warning, text)];
    };
    let mut findings = vec![if mode == "process" {
        Finding::new(SUBJECT, Verdict::Good, format!("{name}, KillMode=process: agents outlive its restarts"))
    } else {
        Finding::new(
            SUBJECT,
            Verdict::Fault,
            format!(
                "{name} has KillMode={mode}: its restart kills every agent; {systemctl} edit {name}, and add the lines \
                 \"[Service]\" and \"KillMode=process\""
            ),
        )
    }];
    if value("OOMPolicy").is_some_and(|policy| policy != "continue") {
        let text = format!(
            "{name} stops when one of its processes runs out of memory; {systemctl} edit {name}, and add the lines \
             \"[Service]\" and \"OOMPolicy=continue\""
        );
        findings.push(Finding::new(SUBJECT, Verdict::Warning, text));
    }
    let beside = [value("Wants"), value("Requires")].into_iter().flatten();
    if !beside.flat_map(str::split_whitespace).any(|other| other == SANDBOXES) {
        let text = format!(
            "{name} has no {SANDBOXES} beside it, so that sandboxes have no limits on memory and processor time where \
             cgroups are of version 2; install both units, see docs/operations.md"
        );
        findings.push(Finding::new(SUBJECT, Verdict::Warning, text));
    }
    findings
}

/// What this machine is inside of, if it is.
fn container(root: &Path, first: &str) -> Option<&'static str> {
    let there = |path: &str| root.join(path).exists();
    if there(".dockerenv") {
        return Some("Docker");
    }
    if there("run/.containerenv") {
        return Some("Podman");
    }
    if there("run/systemd/container") {
        return Some("a systemd container");
    }
    [("kubepods", "Kubernetes"), ("/docker", "Docker"), ("/libpod", "Podman"), ("/lxc", "LXC")]
        .into_iter()
        .find_map(|(sign, name)| first.contains(sign).then_some(name))
}

fn contained(name: &str) -> Finding {
    let text = format!(
        "this is a container ({name}): when it ends, every agent ends with it, and a session then goes on from its \
         record and its last snapshot; restart the server inside, not the container, to keep agents alive"
    );
    Finding::new("container", Verdict::Warning, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_read_from_cgroups() {
        let unit = |name: &str, manager| Some(Unit { name: name.to_owned(), manager });
        for (cgroups, want) in [
            ("0::/system.slice/outlast.service\n", unit("outlast.service", Manager::System)),
            ("0::/system.slice/outlast.service/outlast-server\n", unit("outlast.service", Manager::System)),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/app.slice/outlast.service",
                unit("outlast.service", Manager::User),
            ),
            (
                "4:memory:/x\n1:name=systemd:/system.slice/o.service\n0::/\n",
                unit("o.service", Manager::System),
            ),
            ("1:name=systemd:/\n0::/system.slice/o.service\n", unit("o.service", Manager::System)),
            ("0::/user.slice/user-1000.slice/session-3.scope", None),
            ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte.scope", None),
            ("0::/user.slice/user-1000.slice/user@1000.service/init.scope", None),
            ("0::/\n1:name=systemd:/\n", None),
            ("junk", None),
            ("", None),
        ] {
            assert_eq!(unit_of(cgroups), want, "{cgroups}");
        }
    }

    #[test]
    fn a_unit_that_kills_keepers_is_a_fault_with_a_command() {
        let unit = Unit { name: "outlast.service".to_owned(), manager: Manager::User };
        let verdicts = |told: Option<&str>| -> Vec<Verdict> {
            judge(&unit, told).iter().map(|finding| finding.verdict).collect()
        };
        let good =
            "KillMode=process\nDelegate=no\nOOMPolicy=continue\nWants=outlast-sandboxes.service a.target\n";
        assert_eq!(verdicts(Some(good)), [Verdict::Good]);
        let killing = good.replace("KillMode=process", "KillMode=control-group");
        assert_eq!(verdicts(Some(&killing)), [Verdict::Fault]);
        let text = &judge(&unit, Some(&killing))[0].text;
        assert!(text.contains("systemctl --user edit outlast.service"), "{text}");
        let plain = "KillMode=process\nOOMPolicy=stop\nWants=\nRequires=sysinit.target\n";
        assert_eq!(verdicts(Some(plain)), [Verdict::Good, Verdict::Warning, Verdict::Warning]);
        assert_eq!(verdicts(None), [Verdict::Warning]);
        assert_eq!(verdicts(Some("")), [Verdict::Warning]);
    }

    #[test]
    fn containers_are_known_by_their_signs() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(container(root.path(), "0::/\n"), None);
        assert_eq!(container(root.path(), "0::/kubepods/burstable/pod1"), Some("Kubernetes"));
        fs::create_dir_all(root.path().join("run/systemd")).unwrap();
        fs::write(root.path().join("run/systemd/container"), "lxc").unwrap();
        assert_eq!(container(root.path(), ""), Some("a systemd container"));
        fs::write(root.path().join(".dockerenv"), "").unwrap();
        assert_eq!(container(root.path(), ""), Some("Docker"));
    }
}
