//! `outlast doctor`: it tries what sandboxes need, says what is in force, and leaves nothing behind.

use crate::kit::*;
use serde_json::Value;

fn findings(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(findings: &[Value], subject: &str) -> String {
    let of = findings.iter().find(|finding| finding["subject"] == subject);
    let of = of.unwrap_or_else(|| panic!("nothing about {subject} in {findings:?}"));
    assert_ne!(of["verdict"], "fault", "{of}");
    of["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn it_names_the_namespaces_and_the_limits_of_this_machine() {
    let (server, http) = server().await;
    let told = server.cli(&["--json", "doctor"]).await.unwrap().ok().unwrap();
    let findings = findings(&told);
    let namespaces = text(&findings, "namespaces");
    for name in ["user", "mount", "pid", "ipc", "uts", "cgroup", "net"] {
        assert!(namespaces.contains(name), "{namespaces}");
    }
    let limits = text(&findings, "limits");
    assert!(limits.starts_with("in force: ") && limits.contains("open files"), "{limits}");
    for subject in ["kernel setup", "cgroups", "pausing", "disk limit"] {
        assert!(!text(&findings, subject).is_empty());
    }
    // A session is told the same.
    let session = session(&http).await;
    let events = events(&http, &session).await;
    let said = events.iter().filter_map(|event| event["text"].as_str());
    let said = said.filter(|text| text.contains("limits in force")).collect::<Vec<_>>();
    assert_eq!(said.len(), 1, "{events:?}");
    assert!(said[0].contains("open files"), "{said:?}");
    let left = std::fs::read_dir(server.data()).unwrap().flatten().map(|entry| entry.file_name());
    let left = left.filter(|name| name.to_string_lossy().contains("doctor")).collect::<Vec<_>>();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_is_a_fault_that_says_what_to_do() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("outlast.toml"), "[sandbox]\nroot = \"/no/such/root\"\n").unwrap();
    let folder = data.path().to_str().unwrap();
    let ended = run(PROGRAM, ["--json", "doctor", "--data", folder], &[]).await.unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let findings = findings(&ended.stdout);
    let fault = findings.iter().find(|finding| finding["subject"] == "namespaces").unwrap();
    assert_eq!(fault["verdict"], "fault");
    assert!(fault["text"].as_str().unwrap().contains("/no/such/root"), "{fault}");
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1, "nothing is left behind");
}
