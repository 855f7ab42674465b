//! Signals to what a shell's command runs, which arrive or are said to have reached nobody.

use super::{
    Keeper,
    requests::{Answer, refuse},
    shells::members,
};
use crate::{
    process::{Process, Stage},
    shell::Depth,
    tree::{self, Kin, Likeness},
    wire::{Refusal, Whom},
};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// How long a signal is owed. A command begins, and a process becomes another program, in far less.
const OWED: Duration = Duration::from_secs(1);
/// Signals owed at once; of more, the later ones are sent and not owed.
const OWED_MOST: usize = 64;

/// A signal that was taken and may not have arrived.
#[derive(Debug)]
pub(crate) struct Owed {
    signal: Signal,
    to: Debtor,
    until: Instant,
}

#[derive(Debug)]
enum Debtor {
    /// This command, which the shell has not begun: it would die without having run it.
    Command(u64),
    /// What this command starts: the shell itself got it, and could begin to wait for a child in the same moment without
    /// seeing it.
    Child(u64),
    /// The shell or a fork of it, on its way to another program. It still catches what the shell does, and forgets
    /// what it caught when it becomes that program.
    Shell(Kin, Likeness),
}

impl Keeper {
    pub(super) fn signal_command(&mut self, process: u64, signal: i32, whom: Whom) -> Answer {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return refuse(Refusal::BadRequest, format!("there is no signal {signal}"));
        };
        let known = self.known(process)?;
        let Some(shell) = &known.shell else {
            return refuse(Refusal::NoProcess, format!("process {process} is no shell"));
        };
        let now = Instant::now();
        if let Some(command) = shell.unbegun().filter(|_| whom == Whom::Own) {
            let same = |owed: &Owed| {
                owed.signal == signal && matches!(owed.to, Debtor::Command(other) if other == command)
            };
            // Twice the same before it is heard is once, as with any signal.
            if !known.owed.iter().any(same) {
                known.owed.push(Owed { signal, to: Debtor::Command(command), until: now + OWED });
            }
            return Ok(());
        }
        if whom != Whom::Shell && shell.running().is_none() {
            return refuse(Refusal::Ended, "no command runs");
        }
        if send(known, signal, whom, now) {
            Ok(())
        } else {
            refuse(Refusal::Ended, "nobody is left to signal")
        }
    }

    /// Sends what is owed to those who can hear it now.
    pub(super) fn pay(&mut self, at: usize, now: Instant) {
        let process = &mut self.processes[at];
        for owed in std::mem::take(&mut process.owed) {
            let waits = match &owed.to {
                Debtor::Command(command) => match &process.shell {
                    Some(shell) if shell.unbegun() == Some(*command) && now < owed.until => true,
                    Some(shell) if shell.command() == *command && shell.running().is_some() => {
                        send(process, owed.signal, Whom::Own, now);
                        false
                    }
                    Some(_) | None => false,
                },
                Debtor::Child(command) => match &process.shell {
                    Some(shell) if shell.command() == *command => match shell.running() {
                        Some((older, _)) if tree::own(&members(process), older, process.pid).is_empty() => {
                            now < owed.until
                        }
                        Some(_) => {
                            send(process, owed.signal, Whom::Own, now);
                            false
                        }
                        None => false,
                    },
                    Some(_) | None => false,
                },
                Debtor::Shell(kin, likeness) => match Pid::from_raw(kin.pid) {
                    Some(pid) if tree::kin(pid).is_some_and(|other| other.is(kin)) => {
                        let same = Likeness::of(pid).is_some_and(|other| other.same_program(likeness));
                        if !same {
                            let _ = kill_process(pid, owed.signal);
                        }
                        same && now < owed.until
                    }
                    Some(_) | None => false,
                },
            };
            if waits {
                process.owed.push(owed);
            }
        }
    }
}

/// Whether it reached anybody.
fn send(process: &mut Process, signal: Signal, whom: Whom, now: Instant) -> bool {
    let running = process.shell.as_ref().and_then(|shell| shell.running());
    let (older, depth) = running.map_or((Vec::new(), Depth::Deep), |(older, depth)| (older.to_vec(), depth));
    let shell = matches!(process.stage, Stage::Running).then(|| tree::kin(process.pid)).flatten();
    let likeness = shell.and_then(|_| Likeness::of(process.pid));
    let own = match whom {
        Whom::Shell => Vec::new(),
        Whom::Own | Whom::Both => tree::own(&members(process), &older, process.pid),
    };
    // A shell that is deep in functions would go on with the next thing in them. Where there is nothing else, what runs
    // in the shell itself is all that there is of the command.
    let with_shell = whom != Whom::Own || depth == Depth::Deep || own.is_empty();
    if let (Whom::Own, true, Some(_), Some(known)) = (whom, own.is_empty(), shell, &process.shell) {
        process.owed.push(Owed { signal, to: Debtor::Child(known.command()), until: now + OWED });
    }
    let targets = shell.filter(|_| with_shell).into_iter().chain(own);
    let mut sent = false;
    for kin in targets {
        let Some(pid) = Pid::from_raw(kin.pid) else { continue };
        let catches = |shell: &Likeness| {
            Likeness::of(pid).is_some_and(|other| other.same_program(shell) && other.catches(signal))
        };
        let alike = likeness.filter(catches);
        if kill_process(pid, signal).is_ok() {
            sent = true;
            let owed = |shell| Owed { signal, to: Debtor::Shell(kin, shell), until: now + OWED };
            process.owed.extend(alike.map(owed));
        }
    }
    process.owed.truncate(OWED_MOST);
    sent
}
