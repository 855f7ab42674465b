//! Power loss, played on one machine: the server runs under a helper that remembers what was synced, and after
//! a kill the data folder is rebuilt from that memory.
//!
//! The helper (`powercut.c`, compiled here with `cc`) takes the server's fsync and fdatasync calls through a
//! seccomp notification, so that neither libc nor raw system calls pass it by. What a disk may have kept beyond
//! the synced bytes is chosen by a seeded [`Rng`]: nothing, names only, or a torn mixture.
//!
//! It refuses to model what no file system does: a rename is never half done, a sync that returned is kept.

use crate::{Rng, process};
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, UNIX_EPOCH},
};
use tempfile::TempDir;

/// The unit that a disk writes whole.
const SECTOR: usize = 512;
/// The helper writes its child's id at once; this many looks, a millisecond apart, are plenty.
const PID_LOOKS: u32 = 10_000;

/// What the disk kept of the writes that nobody synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// Nothing.
    Lost,
    /// Names of files, but none of their bytes.
    NamesKept,
    /// Each folder's names and each sector of each file: the old or the new, at random.
    Torn,
}

impl Unsynced {
    pub fn pick(rng: &mut Rng) -> Self {
        match rng.within(0, 4) {
            0 | 1 => Self::Lost,
            2 => Self::NamesKept,
            _ => Self::Torn,
        }
    }
}

/// The helper and its memory.
#[derive(Debug)]
pub struct Rig {
    home: TempDir,
}

impl Rig {
    /// Compiles the helper and tries it. An error says what this machine lacks.
    pub fn new() -> Result<Self> {
        let home = tempfile::Builder::new().prefix("outlast-power-").tempdir()?;
        let source = home.path().join("powercut.c");
        fs::write(&source, include_str!("powercut.c"))?;
        let rig = Self { home };
        let output = process::command("cc")
            .args(["-O2", "-Wall", "-Werror", "-o"])
            .arg(rig.helper())
            .arg(&source)
            .output()
            .context("no C compiler: install gcc")?;
        ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        let trial = rig.home.path().join("trial");
        fs::create_dir(&trial)?;
        let output = rig.wrap(&trial, Path::new("/bin/true"))?.output()?;
        ensure!(
            output.status.success(),
            "the kernel gives no seccomp notifications: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(rig)
    }

    /// The program under the helper. Whatever is in `data` now counts as synced.
    pub(crate) fn wrap(&self, data: &Path, program: &Path) -> Result<Command> {
        fs::create_dir_all(data)?;
        let shadow = self.shadow();
        if shadow.exists() {
            fs::remove_dir_all(&shadow)?;
        }
        fs::create_dir_all(shadow.join("files"))?;
        fs::create_dir_all(shadow.join("folders"))?;
        let mut command = process::command(self.helper());
        command.arg(&shadow).arg(data).arg(program);
        Ok(command)
    }

    /// SIGKILL to the server; its helper ends by itself.
    pub(crate) fn kill_server(&self, helper: &mut Child) -> Result<()> {
        for _ in 0..PID_LOOKS {
            if helper.try_wait()?.is_some() {
                return Ok(());
            }
            if let Some(pid) = self.server_pid() {
                // Gone already is as good.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the helper has not said which process the server is")
    }

    /// The server itself, not its helper.
    pub(crate) fn server_pid(&self) -> Option<rustix::process::Pid> {
        let text = fs::read_to_string(self.shadow().join("pid")).ok()?;
        rustix::process::Pid::from_raw(text.trim().parse().ok()?)
    }

    /// Replaces `data` by what the disk holds. The server must be dead.
    pub fn cut(&self, data: &Path, unsynced: Unsynced, rng: &mut Rng) -> Result<()> {
        // Nothing goes on without power.
        process::end_below(data);
        let live = data.with_extension("before-the-cut");
        fs::rename(data, &live)?;
        let root = fs::read_to_string(self.shadow().join("root"))?;
        let mut disk = Disk { shadow: self.shadow(), unsynced, rng };
        let there = fs::metadata(&live)?;
        disk.folder(root.trim(), Some(&live), data, there.permissions().mode())?;
        fs::remove_dir_all(&live)?;
        Ok(())
    }

    fn helper(&self) -> PathBuf {
        self.home.path().join("powercut")
    }

    fn shadow(&self) -> PathBuf {
        self.home.path().join("shadow")
    }
}

/// One name in a folder.
#[derive(Debug, Clone)]
struct Name {
    kind: char,
    mode: u32,
    key: String,
}

type Names = BTreeMap<String, Name>;

struct Disk<'a> {
    shadow: PathBuf,
    unsynced: Unsynced,
    rng: &'a mut Rng,
}

impl Disk<'_> {
    /// `live` is where the same folder was before the cut, if it still was.
    fn folder(&mut self, key: &str, live: Option<&Path>, out: &Path, mode: u32) -> Result<()> {
        let synced = self.synced_names(key)?;
        let current = live.map(live_names).transpose()?.unwrap_or_default();
        let names = match self.unsynced {
            Unsynced::Lost => synced,
            Unsynced::NamesKept => current.clone(),
            // All or nothing for one folder: a rename within it is never half done.
            Unsynced::Torn if self.rng.chance(50) => current.clone(),
            Unsynced::Torn => synced,
        };
        fs::create_dir(out)?;
        for (name, entry) in names {
            let same = current.get(&name).filter(|each| each.key == entry.key);
            let was = live.filter(|_| same.is_some()).map(|live| live.join(&name));
            let target = out.join(&name);
            match entry.kind {
                'd' => self.folder(&entry.key, was.as_deref(), &target, entry.mode)?,
                'f' => self.file(&entry, was.as_deref(), &target)?,
                'l' => {
                    if let Some(was) = was {
                        std::os::unix::fs::symlink(fs::read_link(was)?, target)?;
                    }
                }
                // Sockets and the like do not outlive their process.
                _ => {}
            }
        }
        fs::set_permissions(out, fs::Permissions::from_mode(mode & 0o7777))?;
        Ok(())
    }

    fn file(&mut self, entry: &Name, live: Option<&Path>, out: &Path) -> Result<()> {
        let path = self.shadow.join("files").join(&entry.key);
        let synced = if path.exists() { fs::read(path)? } else { vec![] };
        let bytes = match (self.unsynced, live) {
            (Unsynced::Torn, Some(live)) => self.tear(synced, &fs::read(live)?),
            _ => synced,
        };
        fs::write(out, bytes)?;
        fs::set_permissions(out, fs::Permissions::from_mode(entry.mode & 0o7777))?;
        Ok(())
    }

    fn tear(&mut self, mut old: Vec<u8>, new: &[u8]) -> Vec<u8> {
        if self.rng.chance(50) {
            old.resize(new.len(), 0);
        }
        for (mine, theirs) in old.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
            let length = mine.len().min(theirs.len());
            if mine[..length] != theirs[..length] && self.rng.chance(50) {
                mine[..length].copy_from_slice(&theirs[..length]);
            }
        }
        old
    }

    fn synced_names(&self, key: &str) -> Result<Names> {
        let path = self.shadow.join("folders").join(key);
        if !path.exists() {
            return Ok(Names::new());
        }
        let mut names = Names::new();
        for line in fs::read_to_string(path)?.split_terminator('\0') {
            let mut parts = line.splitn(4, ' ');
            let mut part = || parts.next().context("a damaged list of names");
            let kind = part()?.chars().next().context("a name without a type")?;
            let mode = u32::from_str_radix(part()?, 8)?;
            let key = part()?.to_owned();
            names.insert(part()?.to_owned(), Name { kind, mode, key });
        }
        Ok(names)
    }
}

fn live_names(folder: &Path) -> Result<Names> {
    let mut names = Names::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let there = entry.metadata()?;
        let kind = match there.file_type() {
            kind if kind.is_dir() => 'd',
            kind if kind.is_file() => 'f',
            kind if kind.is_symlink() => 'l',
            _ => 'o',
        };
        let born = there.created()?.duration_since(UNIX_EPOCH)?;
        let key = format!("{}-{}.{:09}", there.ino(), born.as_secs(), born.subsec_nanos());
        let name =
            entry.file_name().into_string().map_err(|name| anyhow::anyhow!("a strange name {name:?}"))?;
        names.insert(name, Name { kind, mode: there.mode() & 0o7777, key });
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes as a program would and "loses power"; returns what is left.
    fn after(script: &str, unsynced: Unsynced) -> Option<BTreeMap<String, String>> {
        let rig = match Rig::new() {
            Ok(rig) => rig,
            Err(error) => {
                eprintln!("SKIPPED: power loss cannot be played here: {error:#}");
                return None;
            }
        };
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        let mut command = rig.wrap(&data, Path::new("/bin/sh")).unwrap();
        let status = command.args(["-euc", script]).current_dir(&data).status().unwrap();
        assert!(status.success());
        rig.cut(&data, unsynced, &mut Rng::new(1)).unwrap();
        let mut left = BTreeMap::new();
        for entry in fs::read_dir(&data).unwrap() {
            let entry = entry.unwrap();
            left.insert(
                entry.file_name().into_string().unwrap(),
                fs::read_to_string(entry.path()).unwrap_or_default(),
            );
        }
        Some(left)
    }

    #[test]
    fn what_was_synced_is_kept_and_nothing_else() {
        let script = "printf one > a; sync a; printf two >> a; printf b > b; sync .; printf c > c; sync c";
        let Some(left) = after(script, Unsynced::Lost) else { return };
        let expected = [("a", "one"), ("b", "")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(left, BTreeMap::from(expected), "c was synced, its name was not");
    }

    #[test]
    fn names_can_outlive_their_bytes() {
        let Some(left) = after("printf one > a; sync a; printf b > b", Unsynced::NamesKept) else { return };
        let expected = [("a", "one"), ("b", "")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(left, BTreeMap::from(expected));
    }

    #[test]
    fn a_rename_is_whole_and_lost_without_its_folder() {
        let script = "printf one > a; sync a; sync .; printf two > t; sync t; mv t a";
        let Some(left) = after(script, Unsynced::Lost) else { return };
        assert_eq!(left, BTreeMap::from([("a".to_owned(), "one".to_owned())]));
        let Some(left) = after(&format!("{script}; sync ."), Unsynced::Lost) else { return };
        assert_eq!(left, BTreeMap::from([("a".to_owned(), "two".to_owned())]));
    }
}
