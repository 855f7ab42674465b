//! The texts, run on this machine by every shell it has, in folders and under configurations that are made to trip them.

use super::*;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// A folder with a home whose git configuration is hostile.
struct Target {
    root: TempDir,
    shell: Vec<&'static str>,
}

fn shells() -> Vec<Vec<&'static str>> {
    let all = [vec!["sh"], vec!["dash"], vec!["bash"], vec!["busybox", "sh"]];
    all.into_iter().filter(|shell| run(shell, "exit 0", &[]).is_some()).collect()
}

/// What a text writes; nothing when the shell is not there.
#[expect(clippy::disallowed_methods, reason = "a test runs the texts as a target would")]
fn run(shell: &[&str], text: &str, env: &[(&str, &str)]) -> Option<String> {
    use std::io::Write as _;
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg("-s").envs(env.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let text = text.to_owned();
    let feed = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = feed.join();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{shell:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

impl Target {
    fn new(shell: Vec<&'static str>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let target = Self { root, shell };
        fs::create_dir(target.work()).unwrap();
        fs::create_dir(target.home()).unwrap();
        let config = "[core]\n autocrlf = true\n excludesFile = ~/ignore\n hooksPath = /nonexistent\n fileMode = false\n\
                      [filter \"bad\"]\n clean = false\n smudge = false\n required = true\n\
                      [user]\n useConfigOnly = true\n[commit]\n gpgSign = true\n";
        fs::write(target.home().join(".gitconfig"), config).unwrap();
        fs::write(target.home().join("ignore"), "*\n").unwrap();
        target
    }

    fn work(&self) -> PathBuf {
        self.root.path().join("it's a work")
    }

    fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    fn kept<'a>(&self, folder: &'a str, paths: &'a [String], ignores: &'a [String]) -> Checkpoints {
        Checkpoints::new(&Kept { folder, key: "1_local", paths, ignores, ..Kept::default() }).unwrap()
    }

    fn run(&self, text: &str) -> String {
        let home = self.home();
        let env =
            [("HOME", home.to_str().unwrap()), ("GIT_DIR", "/nonexistent"), ("GIT_INDEX_FILE", "/nope")];
        run(&self.shell, text, &env).unwrap()
    }

    fn write(&self, name: &str, content: &str, mode: u32) {
        let path = self.work().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Everything below the folder: kind and mode, with the content.
    fn picture(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        fn walk(at: &Path, found: &mut BTreeMap<PathBuf, (u32, Vec<u8>)>) {
            for entry in fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                let facts = fs::symlink_metadata(&path).unwrap();
                let content = if facts.is_symlink() {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                } else if facts.is_dir() {
                    walk(&path, found);
                    Vec::new()
                } else {
                    fs::read(&path).unwrap()
                };
                found.insert(path, (facts.permissions().mode(), content));
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.work(), &mut found);
        found
    }
}

#[test]
fn what_was_taken_comes_back_under_every_shell_and_any_configuration() {
    assert!(shells().len() >= 2, "there are shells to test with");
    for shell in shells() {
        let target = Target::new(shell);
        target.write("crlf", "one\r\ntwo\n", 0o644);
        target.write(".gitattributes", "* filter=bad text=auto ident\n", 0o600);
        target.write(".gitignore", "*.log\nempty\n", 0o644);
        target.write("ignored.log", "$Id$", 0o640);
        target.write("sub/run.sh", "#!/bin/sh\n", 0o751);
        target.write("nested/.git/config", "[core]\n", 0o644);
        target.write("nested/.git/HEAD", "ref: refs/heads/x\n", 0o644);
        target.write("nested/file", "n", 0o444);
        for odd in [
            "-n",
            "*",
            "back\\slash",
            "trail ",
            " lead",
            "ünï",
            "a\"b'c",
            "$(touch x)",
            "tab\there",
            "sub/.x",
        ] {
            target.write(odd, odd, 0o644);
        }
        symlink("../crlf", target.work().join("sub/link")).unwrap();
        symlink("/nowhere at all", target.work().join("broken")).unwrap();
        fs::create_dir(target.work().join("empty")).unwrap();
        fs::set_permissions(target.work().join("empty"), fs::Permissions::from_mode(0o2750)).unwrap();
        let folder = target.work();
        let kept = target.kept(folder.to_str().unwrap(), &[], &[]);
        let before = target.picture();

        let first = taken(&target.run(&kept.take(Some("it's\nfirst")))).unwrap();
        assert_eq!((first.id.as_str(), first.left_out), ("000001", 0));
        assert_eq!(target.picture(), before, "taking one changes nothing");

        fs::remove_dir_all(target.work().join("nested/.git")).unwrap();
        fs::remove_dir(target.work().join("empty")).unwrap();
        fs::remove_file(target.work().join("crlf")).unwrap();
        fs::remove_file(target.work().join("sub/link")).unwrap();
        target.write("crlf/now a folder/deep", "x", 0o600);
        target.write("sub/link", "now a file", 0o600);
        target.write("sub/run.sh", "changed", 0o600);
        target.write("new/one", "x", 0o600);
        let changed = target.picture();
        let back = restored(&target.run(&kept.restore(Some(&first.id)).unwrap())).unwrap();
        assert_eq!((back.id.as_str(), back.undo.as_str()), ("000001", "000002"));
        assert!(back.changed >= 9, "{back:?}");
        assert_eq!(target.picture(), before, "{:?}", target.shell);

        restored(&target.run(&kept.restore(Some(&back.undo)).unwrap())).unwrap();
        assert_eq!(target.picture(), changed, "a restore can be undone");
        let list = listed(&target.run(&kept.list())).unwrap();
        let labels: Vec<&str> = list.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["before 000002 was restored", "before 000001 was restored", "it's first"]);
        assert!(list.iter().all(|one| one.created > 1_700_000_000));

        let none = restored(&target.run(&kept.restore(Some("000099")).unwrap())).unwrap_err();
        assert_eq!(none.code, "no_checkpoint");
        let same = restored(&target.run(&kept.restore(None).unwrap())).unwrap();
        assert_eq!((same.id.as_str(), target.picture() == changed), ("000003", false), "the newest is meant");
    }
}

#[test]
fn only_what_is_named_is_kept_and_the_rest_is_left_alone() {
    let target = Target::new(vec!["sh"]);
    for name in ["src/a", "src/target/big", "src/b.tmp", "other", "deep/target/x"] {
        target.write(name, "1", 0o644);
    }
    let folder = target.work();
    let ignores = ["target".to_owned(), "*.tmp".to_owned(), "/deep/x".to_owned()];
    let kept = target.kept(folder.to_str().unwrap(), &["src".to_owned()], &ignores);
    let first = taken(&target.run(&kept.take(None))).unwrap();
    assert_eq!(first.entries, 2, "src and src/a");
    for name in ["src/a", "src/target/big", "src/b.tmp", "other", "src/new"] {
        target.write(name, "2", 0o644);
    }
    restored(&target.run(&kept.restore(None).unwrap())).unwrap();
    let read = |name: &str| fs::read_to_string(target.work().join(name)).ok();
    let now: Vec<Option<String>> =
        ["src/a", "src/target/big", "src/b.tmp", "other", "src/new"].into_iter().map(read).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(now, [text("1"), text("2"), text("2"), text("2"), None]);
    let outside = target.kept(folder.to_str().unwrap(), &["../home".to_owned()], &[]);
    assert!(target.run(&outside.take(None)).contains("error bad_path"));
}

#[test]
fn the_home_folder_is_only_kept_when_it_is_asked_for() {
    let target = Target::new(vec!["sh"]);
    let home = target.home();
    let folder = home.to_str().unwrap();
    assert_eq!(taken(&target.run(&target.kept(folder, &[], &[]).take(None))).unwrap_err().code, "too_wide");
    assert_eq!(taken(&target.run(&target.kept("/", &[], &[]).take(None))).unwrap_err().code, "too_wide");
    let asked = Kept { folder, key: "k", reach: Reach::Anywhere, ..Kept::default() };
    let asked = Checkpoints::new(&asked).unwrap();
    let first = taken(&target.run(&asked.take(None))).unwrap();
    // The store lies in the home folder, and is not a part of it.
    let second = taken(&target.run(&asked.take(None))).unwrap();
    assert!(second.entries <= first.entries + 5, "{first:?} {second:?}");
    let missing = target.kept("/nonexistent/folder", &[], &[]);
    assert_eq!(taken(&target.run(&missing.take(None))).unwrap_err().code, "no_folder");
}

#[test]
fn nothing_that_is_given_becomes_shell_text() {
    let target = Target::new(vec!["sh"]);
    let evil = "$(touch never)'\"`;\\";
    let folder = target.work();
    let kept = target.kept(folder.to_str().unwrap(), &[evil.to_owned()], &[evil.to_owned()]);
    let one = taken(&target.run(&kept.take(Some(evil)))).unwrap();
    assert_eq!(listed(&target.run(&kept.list())).unwrap()[0].label, evil);
    assert_eq!(one.entries, 0);
    assert!(kept.restore(Some("1; rm")).is_err());
    let new = |kept: Kept<'_>| Checkpoints::new(&kept).unwrap_err();
    let good = Kept { folder: "/x", key: "k", ..Kept::default() };
    assert_eq!(new(Kept { folder: "x", ..good.clone() }), BadCheckpoint::Folder);
    assert_eq!(new(Kept { folder: "/x\ny", ..good.clone() }), BadCheckpoint::Folder);
    for key in ["a/b", "..", "a b", "", &"k".repeat(200)] {
        assert_eq!(new(Kept { key, ..good.clone() }), BadCheckpoint::Key, "{key}");
    }
    assert_eq!(new(Kept { paths: &["a\nb".to_owned()], ..good.clone() }), BadCheckpoint::Name);
    assert_eq!(new(Kept { ignores: &[String::new()], ..good }), BadCheckpoint::Name);
    for junk in ["", "hello", "ok", "ok 1", "ok 1 x 2", "error"] {
        assert_eq!(taken(junk).unwrap_err().code, "no_answer", "{junk}");
    }
}
