//! Deploying agents: files, a tar, a folder; versions; and every way out of the folder that must stay shut.

use crate::kit::*;
use serde_json::json;
use std::fs;

const TAR: &[(&str, &str)] = &[("content-type", "application/x-tar")];

fn manifest() -> String {
    "command = \"outlast\"\nargs = [\"demo-agent\"]\n".to_owned()
}

/// One entry of a hand-made archive; `name` is written as it is, also when a careful library would refuse.
struct Entry<'a> {
    name: &'a str,
    kind: u8,
    link: &'a str,
    body: &'a [u8],
}

fn file<'a>(name: &'a str, body: &'a [u8]) -> Entry<'a> {
    Entry { name, kind: b'0', link: "", body }
}

fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = vec![];
    for entry in entries {
        let mut header = [0_u8; 512];
        header[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        header[100..107].copy_from_slice(b"0000755");
        header[108..115].copy_from_slice(b"0000000");
        header[116..123].copy_from_slice(b"0000000");
        header[124..135].copy_from_slice(format!("{:011o}", entry.body.len()).as_bytes());
        header[136..147].copy_from_slice(b"00000000000");
        header[148..156].copy_from_slice(b"        ");
        header[156] = entry.kind;
        header[157..157 + entry.link.len()].copy_from_slice(entry.link.as_bytes());
        header[257..263].copy_from_slice(b"ustar\0");
        header[263..265].copy_from_slice(b"00");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(entry.body);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

#[tokio::test]
async fn files_a_tar_and_a_folder_make_the_same_agent() {
    let (server, http) = server().await;
    let files = json!({"name": "by-files", "files": [
        {"path": "agent.toml", "content": manifest()},
        {"path": "notes/a.txt", "content": "bm90ZWQ=", "encoding": "base64"},
        {"path": "bin/run", "content": "#!/bin/sh\n", "executable": true},
    ]});
    let made = http.post("/api/agents", &files).await.unwrap().expect(201).unwrap();
    assert_eq!(
        (made["agent"]["name"].as_str(), made["agent"]["version"].as_u64()),
        (Some("by-files"), Some(1))
    );

    let text = manifest();
    let archive = tar(&[
        file("agent.toml", text.as_bytes()),
        file("notes/a.txt", b"noted"),
        file("bin/run", b"#!/bin/sh\n"),
    ]);
    http.raw("PUT", "/api/agents/by-tar", TAR, &archive).await.unwrap().expect(200).unwrap();

    let folder = server.scratch().join("agent");
    fs::create_dir_all(folder.join("notes")).unwrap();
    fs::write(folder.join("agent.toml"), manifest()).unwrap();
    fs::write(folder.join("notes/a.txt"), "noted").unwrap();
    let by_path = json!({"name": "by-path", "path": folder.to_str().unwrap()});
    http.post("/api/agents", &by_path).await.unwrap().expect(201).unwrap();

    for name in ["by-files", "by-tar", "by-path"] {
        let id = session_of(&http, &json!({"agent": name})).await;
        assert!(text_of(&say(&http, &id, "cat notes/a.txt").await).contains("noted"), "{name}");
    }
    let list = http.get("/api/agents").await.unwrap().expect(200).unwrap();
    let mut listed: Vec<_> =
        list["agents"].as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, ["by-files", "by-path", "by-tar", "demo"]);
}

#[tokio::test]
async fn a_new_version_does_not_change_sessions_that_run() {
    let (mut server, http) = server().await;
    let deploy = |text: &'static str| {
        let http = http.clone();
        async move {
            let files = json!({"name": "versioned", "files": [
                {"path": "agent.toml", "content": manifest()}, {"path": "v.txt", "content": text},
            ]});
            http.post("/api/agents", &files).await.unwrap().expect(201).unwrap()["agent"]["version"].as_u64()
        }
    };
    assert_eq!(deploy("one").await, Some(1));
    assert_eq!(deploy("one").await, Some(1), "the same folder again is the same version");
    let old = session_of(&http, &json!({"agent": "versioned"})).await;
    assert_eq!(deploy("two").await, Some(2));
    let new = session_of(&http, &json!({"agent": "versioned"})).await;
    server.kill9().unwrap();
    server.restart().await.unwrap();
    assert!(text_of(&say(&http, &old, "cat v.txt").await).contains("one"));
    assert!(text_of(&say(&http, &new, "cat v.txt").await).contains("two"));
    assert_eq!(get(&http, &old).await["agentVersion"], 1);

    http.delete("/api/agents/versioned").await.unwrap().expect(200).unwrap();
    refusal(&http.get("/api/agents/versioned").await.unwrap(), 404, "agent_not_found");
    refusal(
        &http.post("/api/sessions", &json!({"agent": "versioned"})).await.unwrap(),
        404,
        "agent_not_found",
    );
}

#[tokio::test]
async fn no_upload_leaves_its_folder() {
    let (server, http) = server().await;
    let text = manifest();
    let manifest = || file("agent.toml", text.as_bytes());
    let link = |name, link| Entry { name, kind: b'2', link, body: b"" };
    let odd = |kind| Entry { name: "odd", kind, link: "agent.toml", body: b"" };
    let archives = [
        ("a parent", tar(&[manifest(), file("../escaped", b"x")])),
        ("a parent in the middle", tar(&[manifest(), file("a/../../escaped", b"x")])),
        ("an absolute name", tar(&[manifest(), file("/tmp/outlast-escaped", b"x")])),
        ("an absolute link", tar(&[manifest(), link("out", "/etc")])),
        ("a link to the parent", tar(&[manifest(), link("out", "..")])),
        ("through a link", tar(&[manifest(), link("out", "../.."), file("out/escaped", b"x")])),
        (
            "a hard link",
            tar(&[manifest(), Entry { name: "hard", kind: b'1', link: "/etc/passwd", body: b"" }]),
        ),
        ("a character device", tar(&[manifest(), odd(b'3')])),
        ("a block device", tar(&[manifest(), odd(b'4')])),
        ("a pipe", tar(&[manifest(), odd(b'6')])),
        ("no manifest", tar(&[file("a.txt", b"x")])),
        ("junk", vec![7; 4096]),
        ("nothing", vec![]),
    ];
    for (what, archive) in archives {
        let reply = http.raw("PUT", "/api/agents/escape", TAR, &archive).await.unwrap();
        assert_eq!(reply.status, 400, "{what}: {}", reply.text());
        refusal(&reply, 400, "invalid_request");
    }
    for path in ["../escaped", "/tmp/outlast-escaped", "a/../../escaped", "", ".", "a//../..", "a\u{0}b"] {
        let files = json!({"name": "escape", "files": [
            {"path": "agent.toml", "content": text}, {"path": path, "content": "x"},
        ]});
        let reply = http.post("/api/agents", &files).await.unwrap();
        assert_eq!(reply.status, 400, "{path:?}: {}", reply.text());
    }
    refusal(&http.get("/api/agents/escape").await.unwrap(), 404, "agent_not_found");
    for place in [server.data(), server.scratch(), std::path::Path::new("/tmp")] {
        assert!(!place.join("escaped").exists() && !place.join("outlast-escaped").exists());
    }
}

#[tokio::test]
async fn a_manifest_is_read_strictly() {
    let (_server, http) = server().await;
    for bad in ["", "command = 7", "command = \"\"", "command = \"x\"\ncomand = \"y\"", "not toml at all ["] {
        let files = json!({"name": "strict", "files": [{"path": "agent.toml", "content": bad}]});
        let reply = http.post("/api/agents", &files).await.unwrap();
        let sentence = refusal(&reply, 400, "invalid_request");
        assert!(sentence.contains("agent.toml"), "{bad:?}: {sentence}");
    }
}

#[tokio::test]
async fn an_archive_that_unpacks_to_too_much_is_refused() {
    let (server, http) = server().await;
    let text = manifest();
    let head = tar(&[file("agent.toml", text.as_bytes())]);
    // The header promises more than there is: refused for its size or as broken, and never written.
    let mut archive = head[..head.len() - 1024].to_vec();
    let mut huge = tar(&[file("huge", b"")]);
    huge[124..135].copy_from_slice(b"77777777777");
    huge[148..156].copy_from_slice(b"        ");
    let sum: u32 = huge[..512].iter().map(|byte| u32::from(*byte)).sum();
    huge[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&huge[..512]);
    let reply = http.raw("PUT", "/api/agents/huge", TAR, &archive).await.unwrap();
    assert!(matches!(reply.status, 400 | 413), "{}", reply.text());
    assert!(files_with(server.data(), b"never there").is_empty());
    refusal(&http.get("/api/agents/huge").await.unwrap(), 404, "agent_not_found");
}

#[tokio::test]
async fn an_agent_is_added_and_tried_from_the_command_line() {
    let (server, http) = server().await;
    let said = server.cli(&["agent", "test", "demo", "echo I am well"]).await.unwrap().ok().unwrap();
    for words in ["handshake", "works (Done", "session/resume, session/load", "I am well", "tokens"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let left = http.get("/api/sessions").await.unwrap().expect(200).unwrap();
    assert_eq!(left["sessions"], json!([]), "a trial leaves nothing behind");
    let failed = server.cli(&["agent", "test", "demo", "error"]).await.unwrap();
    assert_eq!(failed.code, Some(10), "{failed:?}");
    assert!(failed.stdout.contains("does not work"), "{failed:?}");

    let dir = server.scratch().join("mine");
    let add = [
        "agent",
        "add",
        "--name",
        "mine",
        "--dir",
        dir.to_str().unwrap(),
        "outlast",
        "demo-agent",
        "--no-load",
    ];
    server.cli(&add).await.unwrap().ok().unwrap();
    let said = server.cli(&["agent", "test", "mine", "echo added"]).await.unwrap().ok().unwrap();
    assert!(said.contains("added") && !said.contains("session/load"), "{said}");
    let again = server.cli(&add).await.unwrap();
    assert_eq!(again.code, Some(2), "{again:?}");

    let dir = server.scratch().join("claude");
    server
        .cli(&["agent", "add", "claude", "--dir", dir.to_str().unwrap(), "--write-only"])
        .await
        .unwrap()
        .ok()
        .unwrap();
    assert!(
        dir.join("run.sh").is_file()
            && dir.join("package.json").is_file()
            && dir.join("agent.toml").is_file()
    );
}
