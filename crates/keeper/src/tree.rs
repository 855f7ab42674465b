//! Trees of processes where no cgroup holds them: by process group and by parentage, read from `/proc`.
//!
//! A daemon that left its group and whose parents are gone belongs to whoever adopted it, the keeper, and can no
//! longer be told from another process's daemon. It is counted to a process only when that is the last one left.

use crate::kernel;
use rustix::process::{Pid, Signal};
use std::{fs, io::ErrorKind, os::unix::fs::MetadataExt};

/// How often a tree is looked at and killed again; a fork in the middle is found the next time.
const KILL_ROUNDS: usize = 64;
/// How often it is tried to find the same descendants twice in a row.
const LOOKS: usize = 4;

/// What `/proc/PID/stat` says of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kin {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    session: i32,
    dead: bool,
    stopped: bool,
    /// With the pid, a name that no other process ever has.
    started: u64,
}

impl Kin {
    pub(crate) fn stopped(&self) -> bool {
        self.stopped
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }
}

/// What is known of one process; none for the dead.
pub(crate) fn kin(pid: Pid) -> Option<Kin> {
    let stat = kernel::read(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    parse(&stat).filter(|kin| !kin.dead)
}

/// A process's program, and which signals it catches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Likeness {
    program: (u64, u64),
    /// A bit for each, from one on.
    caught: u64,
}

impl Likeness {
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let folder = format!("/proc/{}", pid.as_raw_nonzero());
        let program = fs::metadata(format!("{folder}/exe")).ok()?;
        let status = kernel::read_text(format!("{folder}/status"))?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim();
        let caught = u64::from_str_radix(caught, 16).ok()?;
        Some(Self { program: (program.dev(), program.ino()), caught })
    }

    pub(crate) fn same_program(&self, other: &Self) -> bool {
        self.program == other.program
    }

    pub(crate) fn catches(&self, signal: Signal) -> bool {
        let bit = u32::try_from(signal.as_raw() - 1).ok().and_then(|bit| 1_u64.checked_shl(bit));
        bit.is_some_and(|bit| self.caught & bit != 0)
    }
}

/// Of the members of a shell's tree, those that its running command started: all but the shell, those who were there
/// before, and their descendants. An orphan whose parents are gone counts by its process group.
pub(crate) fn own(members: &[Kin], older: &[Kin], shell: Pid) -> Vec<Kin> {
    let shell = shell.as_raw_nonzero().get();
    let old = |kin: &Kin| older.iter().any(|other| other.is(kin));
    members
        .iter()
        .filter(|kin| kin.pid != shell)
        .filter(|kin| {
            let mut at = **kin;
            for _ in 0..members.len() {
                if old(&at) {
                    return false;
                }
                if at.parent == shell {
                    return true;
                }
                match members.iter().find(|other| other.pid == at.parent) {
                    Some(parent) => at = *parent,
                    None => break,
                }
            }
            at.group == shell || !older.iter().any(|other| other.group == at.group)
        })
        .copied()
        .collect()
}

/// Whose descendants are meant.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Of {
    /// A process of ours, alive or not.
    Root(Pid),
    /// Everything that the keeper started or adopted, but for its first child if that keeps a sandbox.
    Keeper,
}

pub(crate) fn members(of: Of) -> Vec<Pid> {
    let keeper = std::process::id().cast_signed();
    let root = match of {
        Of::Root(pid) => pid.as_raw_nonzero().get(),
        Of::Keeper => keeper,
    };
    select(&all(), root, keeper).into_iter().filter_map(Pid::from_raw).collect()
}

pub(crate) fn kill(of: Of) {
    for _ in 0..KILL_ROUNDS {
        let members = members(of);
        if members.is_empty() {
            break;
        }
        // Stopped first, so that none forks while the others die.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &members {
                let _ = rustix::process::kill_process(*pid, signal);
            }
        }
    }
}

fn select(all: &[Kin], root: i32, keeper: i32) -> Vec<i32> {
    let mut chosen: Vec<i32> = Vec::new();
    loop {
        let before = chosen.len();
        for kin in all {
            let ours = kin.pid == root
                || kin.parent == root
                || (root != keeper && (kin.group == root || kin.session == root))
                || chosen.contains(&kin.parent);
            if ours && kin.pid != keeper && !kin.dead && !chosen.contains(&kin.pid) {
                chosen.push(kin.pid);
            }
        }
        if chosen.len() == before {
            return chosen;
        }
    }
}

/// Everybody who could be ours: what descends from the keeper, which adopts every orphan, as two looks in a row find it;
/// where the kernel has no lists of children, or they change meanwhile, everybody.
fn all() -> Vec<Kin> {
    let kin = |pid: &i32| parse(&kernel::read(format!("/proc/{pid}/stat"))?);
    for _ in 0..LOOKS {
        let Some(first) = descendants() else { break };
        if descendants().as_ref() == Some(&first) {
            return first.iter().filter_map(kin).collect();
        }
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| kin(&entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// What descends from the keeper, by the kernel's own lists. None where it has none.
fn descendants() -> Option<Vec<i32>> {
    let mut found = vec![std::process::id().cast_signed()];
    let mut at = 0;
    while let Some(parent) = found.get(at) {
        at += 1;
        // Whoever is gone by now has no children.
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            match fs::read_to_string(task.path().join("children")) {
                Ok(text) => found.extend(text.split_ascii_whitespace().flat_map(str::parse::<i32>)),
                Err(error) if error.kind() == ErrorKind::NotFound && task.path().exists() => return None,
                Err(_) => {}
            }
        }
    }
    found.remove(0);
    Some(found)
}

/// The name, in parentheses, may hold anything; what follows the last one does not.
fn parse(stat: &[u8]) -> Option<Kin> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(stat.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // Fields are counted from one, of which two are before the name's end and four were read.
    let started = fields.nth(22 - 2 - 4 - 1).and_then(|field| field.parse().ok()).unwrap_or(0);
    Some(Kin {
        pid,
        parent,
        group,
        session,
        dead: matches!(state, "Z" | "X"),
        stopped: matches!(state, "T" | "t"),
        started,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_lie() {
        let stat = b"42 (a) R 1 (x) T 7 8 9 0 10 11 12 13 14 15 16 17 18 19 20 21 22 0 22222 23";
        let kin = parse(stat).unwrap();
        let expected =
            Kin { pid: 42, parent: 7, group: 8, session: 9, dead: false, stopped: true, started: 22222 };
        assert_eq!(kin, expected);
        assert_eq!(parse(b"42 (sh) S 1 2 3").map(|kin| kin.started), Some(0));
        assert_eq!(parse(b"42 (sh"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b")42("), None);
    }

    #[test]
    fn descendants_groups_and_sessions_are_found() {
        let kin = |pid, parent, group, session| Kin {
            pid,
            parent,
            group,
            session,
            dead: false,
            stopped: false,
            started: 0,
        };
        let all = [
            kin(1, 0, 1, 1),
            kin(10, 1, 10, 10),
            kin(20, 10, 20, 20),
            // A grandchild in its own group and session, then its child, listed before it.
            kin(23, 22, 22, 22),
            kin(22, 20, 22, 22),
            // Orphaned, adopted by the keeper, still in the group.
            kin(24, 10, 20, 20),
            // Another process of the keeper, and a stranger.
            kin(30, 10, 30, 30),
            kin(99, 1, 99, 99),
            Kin { dead: true, ..kin(25, 20, 20, 20) },
        ];
        let mut found = select(&all, 20, 10);
        found.sort_unstable();
        assert_eq!(found, [20, 22, 23, 24]);
        let mut found = select(&all, 10, 10);
        found.sort_unstable();
        assert_eq!(found, [20, 22, 23, 24, 30]);
    }

    #[test]
    fn a_command_owns_what_it_started_and_not_what_was_there() {
        let kin = |pid, parent, group, started| Kin {
            pid,
            parent,
            group,
            session: 20,
            dead: false,
            stopped: false,
            started,
        };
        let older = [kin(30, 20, 20, 1), kin(40, 20, 40, 1), kin(50, 20, 20, 1)];
        let members = [
            kin(20, 10, 20, 0),
            // An older job and its new child; an orphan of an older job's own group.
            kin(30, 20, 20, 1),
            kin(31, 30, 20, 5),
            kin(41, 10, 40, 5),
            // The command's child and grandchild, its orphan, and one that has an older one's number.
            kin(60, 20, 20, 5),
            kin(61, 60, 61, 5),
            kin(62, 10, 20, 5),
            kin(50, 20, 20, 6),
        ];
        let shell = Pid::from_raw(20).unwrap();
        let found: Vec<i32> = own(&members, &older, shell).iter().map(|kin| kin.pid).collect();
        assert_eq!(found, [60, 61, 62, 50]);
    }
}
