//! The units that are shipped keep what the promises rest on.

use crate::kit::PROGRAM;
use std::{collections::BTreeMap, path::Path};

/// The last value of each key, by section.
fn unit(name: &str) -> BTreeMap<(String, String), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let mut section = String::new();
    let mut keys = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else {
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{name}: {line}"));
            keys.insert((section.clone(), key.to_owned()), value.to_owned());
        }
    }
    keys
}

fn get<'a>(unit: &'a BTreeMap<(String, String), String>, section: &str, key: &str) -> Option<&'a str> {
    unit.get(&(section.to_owned(), key.to_owned())).map(String::as_str)
}

#[tokio::test]
async fn a_restart_of_the_service_kills_no_agent() {
    for (name, target) in
        [("outlast.service", "multi-user.target"), ("user/outlast.service", "default.target")]
    {
        let unit = unit(name);
        for (key, value) in [
            ("KillMode", "process"),
            ("Delegate", "yes"),
            ("OOMPolicy", "continue"),
            ("Restart", "on-failure"),
            ("TasksMax", "infinity"),
            ("NoNewPrivileges", "yes"),
        ] {
            assert_eq!(get(&unit, "Service", key), Some(value), "{name}: {key}");
        }
        // Each of these was seen or is known to break sandboxes, or what outlives the server.
        for key in [
            "ProtectKernelTunables",
            "ProtectKernelLogs",
            "ProtectProc",
            "ProcSubset",
            "ProtectControlGroups",
            "RestrictNamespaces",
            "PrivateUsers",
            "ProtectHostname",
            "PrivateTmp",
            "RestrictSUIDSGID",
            "MemoryDenyWriteExecute",
            "SystemCallFilter",
        ] {
            assert_eq!(get(&unit, "Service", key), None, "{name}: {key}");
        }
        let wants = get(&unit, "Unit", "Wants").unwrap();
        assert!(wants.split(' ').any(|unit| unit == "outlast-sandboxes.service"), "{name}: {wants}");
        for key in ["Requires", "BindsTo", "PartOf"] {
            assert_eq!(get(&unit, "Unit", key), None, "{name}: {key} would tie their lives together");
        }
        assert_eq!(get(&unit, "Install", "WantedBy"), Some(target), "{name}");
        // The exit code of a wrong configuration, which is not tried again.
        let usage = get(&unit, "Service", "RestartPreventExitStatus").unwrap();
        let command = get(&unit, "Service", "ExecStart").unwrap();
        let mut words = command.split(' ').skip(1).chain(["--no-such-flag"]).collect::<Vec<_>>();
        let ended = testkit::run(PROGRAM, &words, &[]).await.unwrap();
        assert_eq!(ended.code.unwrap().to_string(), usage, "{name}: {ended:?}");
        words.pop();
        words.push("--help");
        testkit::run(PROGRAM, &words, &[]).await.unwrap().ok().unwrap();
    }
}

#[test]
fn sandboxes_have_a_unit_that_stays() {
    for name in ["outlast-sandboxes.service", "user/outlast-sandboxes.service"] {
        let unit = unit(name);
        assert_eq!(get(&unit, "Service", "Delegate"), Some("yes"), "{name}");
        assert_eq!(get(&unit, "Service", "OOMPolicy"), Some("continue"), "{name}");
        assert!(get(&unit, "Service", "ExecStart").unwrap().ends_with("exec sleep infinity'"), "{name}");
        for key in ["PartOf", "BindsTo", "StopWhenUnneeded"] {
            assert_eq!(get(&unit, "Unit", key), None, "{name}: {key}");
        }
    }
}
