//! What can be deployed and what cannot, against a folder on disk.

use super::*;
use protocol::{DeployFile, FileEncoding};

const MANIFEST: &str = "command = \"x\"\n";

fn file(path: &str, content: &str) -> DeployFile {
    DeployFile {
        path: path.to_owned(),
        content: content.to_owned(),
        encoding: FileEncoding::Utf8,
        executable: false,
    }
}

fn request(files: Vec<DeployFile>) -> Source {
    Source::Request(DeployAgent {
        name: AgentName::new("a").unwrap(),
        path: None,
        files: Some(files),
        system_prompt: None,
    })
}

fn tar(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> (tempfile::TempDir, Source) {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    let path = dir.path().join("a.tar");
    std::fs::write(&path, builder.into_inner().unwrap()).unwrap();
    (dir, Source::Tar(path))
}

/// Written by hand, because the builder refuses the paths that an attacker would choose.
fn entry(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, path: &str, link: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..path.len()].copy_from_slice(path.as_bytes());
    gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

/// Gathers into a fresh root; says what was refused, and checks that nothing was left or written outside.
fn check(source: Source) -> Result<Vec<String>, String> {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("agents");
    let result = gather(&root, source).map(|(staging, _)| {
        let mut names: Vec<_> = std::fs::read_dir(staging.folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    });
    let outside: Vec<_> =
        std::fs::read_dir(outer.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside, ["agents"], "nothing is written outside");
    assert_eq!(std::fs::read_dir(root.join(".staging")).unwrap().count(), 0, "nothing is left behind");
    result.map_err(|fault| fault.message.into_owned())
}

#[test]
fn plain_files_are_taken() {
    let names = check(request(vec![file("agent.toml", MANIFEST), file("./bin/run", "#!/bin/sh\n")])).unwrap();
    assert_eq!(names, ["agent.toml", "bin"]);
}

#[test]
fn paths_that_leave_the_folder_are_refused() {
    for path in ["../x", "/etc/x", "a/../../x", "", ".", "a\0b", "bin/../x"] {
        let error = check(request(vec![file("agent.toml", MANIFEST), file(path, "")])).unwrap_err();
        assert!(error.contains("cannot be deployed"), "{path:?}: {error}");
    }
    let error = check(request(vec![file("a", ""), file("a/b", "")])).unwrap_err();
    assert!(error.contains("parent's name"), "{error}");
}

#[test]
fn a_manifest_must_be_there_and_be_right() {
    for (content, expected) in [
        ("", "command"),
        ("command = \"\"", "empty"),
        ("command = \"x\"\nunknown = 1", "unknown"),
        ("command = 3", "invalid type"),
        ("command = \"x\"\n[env]\n\"A=B\" = \"c\"", "cannot be a variable's name"),
    ] {
        let error = check(request(vec![file("agent.toml", content)])).unwrap_err();
        assert!(error.starts_with("agent.toml") && error.contains(expected), "{content:?}: {error}");
    }
    assert!(check(request(vec![])).unwrap_err().contains("agent.toml is missing"));
    let bad = vec![file("agent.toml", MANIFEST), file(".mcp.json", r#"{"mcpServers":{"x":{}}}"#)];
    assert!(check(request(bad)).unwrap_err().contains("needs a url or a command"));
}

#[test]
fn archives_cannot_escape() {
    use tar::EntryType;
    let cases: &[(&str, EntryType, &str, &str)] = &[
        ("parent", EntryType::Regular, "../x", ""),
        ("absolute", EntryType::Regular, "/tmp/outlast-escape", ""),
        ("link up", EntryType::Symlink, "l", "../../x"),
        ("link absolute", EntryType::Symlink, "l", "/etc"),
        ("hard link", EntryType::Link, "l", "agent.toml"),
        ("device", EntryType::Char, "d", ""),
        ("pipe", EntryType::Fifo, "p", ""),
    ];
    for (name, kind, path, link) in cases {
        let (_dir, source) = tar(|builder| {
            entry(builder, EntryType::Regular, "agent.toml", "", MANIFEST.as_bytes());
            entry(builder, *kind, path, link, b"");
        });
        assert!(check(source).is_err(), "{name}");
    }
    assert!(!Path::new("/tmp/outlast-escape").exists());
    // Through a link that is itself fine.
    let (_dir, source) = tar(|builder| {
        entry(builder, EntryType::Directory, "real", "", b"");
        entry(builder, EntryType::Symlink, "l", "real", b"");
        entry(builder, EntryType::Regular, "l/x", "", b"x");
    });
    assert!(check(source).unwrap_err().contains("parent's name"));
}

#[test]
fn a_good_archive_is_taken_with_links_and_modes() {
    let (_dir, source) = tar(|builder| {
        entry(builder, tar::EntryType::Directory, "bin/", "", b"");
        entry(builder, tar::EntryType::Regular, "./agent.toml", "", MANIFEST.as_bytes());
        entry(builder, tar::EntryType::Regular, "bin/run", "", b"#!/bin/sh\n");
        entry(builder, tar::EntryType::Symlink, "bin/up", "../agent.toml", b"");
    });
    assert_eq!(check(source).unwrap(), ["agent.toml", "bin"]);
    let (_dir, garbage) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(garbage.path(), vec![7; 4096]).unwrap();
    assert!(check(Source::Tar(garbage.path().to_owned())).unwrap_err().contains("not a readable tar"));
}

#[test]
fn the_digest_follows_content_names_and_modes() {
    let digest = |files: Vec<DeployFile>| {
        let root = tempfile::tempdir().unwrap();
        gather(root.path(), request(files)).unwrap().0.digest
    };
    let base = || vec![file("agent.toml", MANIFEST), file("x", "1")];
    assert_eq!(digest(base()), digest(base().into_iter().rev().collect()));
    let mut executable = base();
    executable[1].executable = true;
    for other in [
        vec![file("agent.toml", MANIFEST), file("x", "2")],
        vec![file("agent.toml", MANIFEST), file("y", "1")],
        executable,
    ] {
        assert_ne!(digest(base()), digest(other));
    }
}

#[test]
fn the_bundled_demo_is_valid() {
    let files = vec![
        file("agent.toml", include_str!("demo/agent.toml")),
        file("CLAUDE.md", include_str!("demo/CLAUDE.md")),
    ];
    assert!(check(request(files)).is_ok());
}
