//! Trees of processes where no cgroup holds them: by process group and by parentage, read from `/proc`.
//!
//! A daemon that left its group and whose parents are gone belongs to whoever adopted it, the keeper, and can no
//! longer be told from another process's daemon. It is counted to a process only when that is the last one left.

use rustix::process::{Pid, Signal};
use std::fs;

/// How often a tree is looked at and killed again; a fork in the middle is found the next time.
const KILL_ROUNDS: usize = 64;

/// What `/proc/PID/stat` says of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kin {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    dead: bool,
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

fn all() -> Vec<Kin> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit))
        .filter_map(|entry| parse(&fs::read(entry.path().join("stat")).ok()?))
        .collect()
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
    Some(Kin {
        pid,
        parent: number()?,
        group: number()?,
        session: number()?,
        dead: matches!(state, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_lie() {
        let kin = parse(b"42 (a) R 1 (x) S 7 8 9 0 rest").unwrap();
        assert_eq!(kin, Kin { pid: 42, parent: 7, group: 8, session: 9, dead: false });
        assert_eq!(parse(b"42 (sh"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b")42("), None);
    }

    #[test]
    fn descendants_groups_and_sessions_are_found() {
        let kin = |pid, parent, group, session| Kin { pid, parent, group, session, dead: false };
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
}
