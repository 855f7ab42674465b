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

/// How long a signal is owed to a fork, which becomes its program in far less.
const OWED: Duration = Duration::from_secs(1);

/// A signal that was taken and could not arrive yet.
#[derive(Debug)]
pub(crate) struct Owed {
    signal: Signal,
    to: Debtor,
}

#[derive(Debug)]
enum Debtor {
    /// This command, which the shell has not begun: it would die without having run it.
    Command(u64),
    /// A fork of the shell on its way to a program. It still catches what the shell does, and forgets what it caught
    /// when it becomes that program.
    Fork { kin: Kin, shell: Likeness, until: Instant },
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
                known.owed.push(Owed { signal, to: Debtor::Command(command) });
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
                    Some(shell) if shell.unbegun() == Some(*command) => true,
                    Some(shell) if shell.command() == *command && shell.running().is_some() => {
                        send(process, owed.signal, Whom::Own, now);
                        false
                    }
                    Some(_) | None => false,
                },
                Debtor::Fork { kin, shell, until } => match Pid::from_raw(kin.pid) {
                    Some(pid) if tree::kin(pid).is_some_and(|other| other.is(kin)) => {
                        let forked = Likeness::of(pid).is_some_and(|other| other.same_program(shell));
                        if !forked {
                            let _ = kill_process(pid, owed.signal);
                        }
                        forked && now < *until
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
    let alive = matches!(process.stage, Stage::Running);
    // A shell that is deep in functions would go on with the next thing in them.
    let first = alive && (whom != Whom::Own || depth == Depth::Deep);
    let mut sent = first && kill_process(process.pid, signal).is_ok();
    if whom == Whom::Shell {
        return sent;
    }
    let shell = if alive && catchable(signal) { Likeness::of(process.pid) } else { None };
    for kin in tree::own(&members(process), &older, process.pid) {
        let Some(pid) = Pid::from_raw(kin.pid) else { continue };
        let forked = shell.as_ref().filter(|shell| Likeness::of(pid).is_some_and(|fork| fork == **shell));
        if kill_process(pid, signal).is_ok() {
            sent = true;
            if let Some(shell) = forked.cloned() {
                let to = Debtor::Fork { kin, shell, until: now + OWED };
                process.owed.push(Owed { signal, to });
            }
        }
    }
    // What runs in the shell itself is all that there is of such a command.
    sent || (alive && kill_process(process.pid, signal).is_ok())
}

fn catchable(signal: Signal) -> bool {
    signal != Signal::KILL && signal != Signal::STOP
}
