//! What must survive for another server to go on with a shell where this one stopped: the command that runs and those
//! that wait. Its output is not among it: the driver has recorded that, and gives it again.

use super::{Effect, Exec, Finished, Outcome, Phase, Running, Shell, Stdin, Waiting, stop};
use crate::text::{Plan, Screen, Secrets};
use bytes::Bytes;
use protocol::{Budget, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A text above this is not kept twice.
const TEXT_HERE: usize = 4096;

/// A machine, as data. Times are kept as what is left of them: the next server has a clock of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    number: u64,
    input: u64,
    cwd: Vec<u8>,
    running: Option<SavedRunning>,
    waiting: Vec<SavedExec>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedRunning {
    exec: SavedExec,
    number: u64,
    tries: u32,
    left_ms: u64,
    stopping: Option<stop::Why>,
}

/// A command, with its budget as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedExec {
    pub command: u64,
    #[serde(with = "spelt")]
    pub text: Vec<u8>,
    /// Where the text is told whole, if it is not here.
    #[serde(default)]
    pub text_at: Option<u64>,
    pub stdin: Stdin,
    pub budget: Budget,
    pub timeout_ms: u64,
}

impl SavedExec {
    fn exec(self) -> Exec {
        Exec {
            command: self.command,
            text: Bytes::from(self.text),
            stdin: self.stdin,
            // It was usable when it was accepted.
            plan: Plan::new(&self.budget).unwrap_or_default(),
            timeout_ms: self.timeout_ms,
        }
    }
}

impl Saved {
    /// The command that runs, and those that wait.
    pub fn execs(&self) -> impl Iterator<Item = &SavedExec> {
        self.running.iter().map(|running| &running.exec).chain(&self.waiting)
    }

    /// Where the running command's text is to be had, if it is not here.
    pub fn text_at(&self) -> Option<u64> {
        self.running.as_ref()?.exec.text_at
    }

    /// Brings the running command's text.
    pub fn complete(&mut self, text: String) {
        if let Some(running) = &mut self.running {
            (running.exec.text, running.exec.text_at) = (text.into_bytes(), None);
        }
    }

    /// The end of the command that ran, when its shell is gone.
    pub fn interrupted(self, secrets: &Secrets, cwd: &str) -> Option<Finished> {
        let exec = self.running?.exec;
        let text = secrets.text(&String::from_utf8_lossy(&exec.text));
        let unrun = Finished::unrun(exec.command, text, cwd.to_owned());
        Some(Finished { outcome: Outcome::Interrupted, begun: true, ..unrun })
    }
}

impl Shell {
    /// `budget` says what each command's was, `keep` which of those that wait somebody was promised, and `told` where a
    /// command's text is told whole.
    pub fn save(
        &self,
        budget: impl Fn(u64) -> Budget,
        keep: impl Fn(u64) -> bool,
        told: impl Fn(u64) -> Option<u64>,
        now: Timestamp,
    ) -> Saved {
        let text_at = |exec: &Exec| told(exec.command).filter(|_| exec.text.len() > TEXT_HERE);
        let exec = |exec: &Exec| SavedExec {
            command: exec.command,
            text: if text_at(exec).is_some() { Vec::new() } else { exec.text.to_vec() },
            text_at: text_at(exec),
            stdin: exec.stdin,
            budget: budget(exec.command),
            timeout_ms: exec.timeout_ms,
        };
        let running = match &self.phase {
            Phase::Running(running) => {
                let left = running.deadline.as_millis().saturating_sub(now.as_millis());
                Some(SavedRunning {
                    exec: exec(&running.exec),
                    number: running.number,
                    tries: running.tries,
                    left_ms: u64::try_from(left).unwrap_or(0),
                    stopping: running.stop.map(|stop| stop.why),
                })
            }
            _ => None,
        };
        let again = match &self.phase {
            Phase::Ending { again } => again.as_deref(),
            _ => None,
        };
        Saved {
            number: self.number,
            input: self.input,
            cwd: self.cwd.clone(),
            running,
            waiting: again
                .into_iter()
                .chain(self.waiting.iter().filter(|waiting| keep(waiting.exec.command)))
                .map(|waiting| exec(&waiting.exec))
                .collect(),
        }
    }

    /// Goes on with a shell that outlived its server. The running command is given to the place again, which knows by
    /// its number whether it had it; what was recorded of its output is given with [`Shell::output`], from the
    /// beginning, and what the place has of it after that.
    pub fn take_up(secrets: Secrets, saved: Saved, now: Timestamp, out: &mut Vec<Effect>) -> Self {
        let waiting = saved.waiting.into_iter();
        let waiting: VecDeque<Waiting> =
            waiting.map(|exec| Waiting { exec: exec.exec(), tries: 0, hint: None }).collect();
        let mut shell = Self {
            secrets,
            phase: Phase::Idle,
            waiting,
            number: saved.number,
            input: saved.input,
            cwd: saved.cwd,
            starts: 0,
        };
        if let Some(running) = saved.running {
            let exec = running.exec.exec();
            out.push(Effect::Run { number: running.number, stdin: exec.stdin, text: exec.text.clone() });
            let screen = || Screen::new(exec.plan.clone(), shell.secrets.clone());
            let mut taken = Running {
                number: running.number,
                tries: running.tries,
                hint: None,
                screens: [screen(), screen()],
                offsets: [0; 2],
                end: None,
                deadline: stop::after(now, running.left_ms),
                stop: None,
                exec,
            };
            if let Some(why) = running.stopping {
                taken.begin_stop(why, now, out);
            }
            shell.phase = Phase::Running(Box::new(taken));
        } else {
            shell.next(now, out);
        }
        shell
    }
}

/// Bytes as text where they are text, and as numbers where they are not.
mod spelt {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Spelt<'a> {
        Text(std::borrow::Cow<'a, str>),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let spelt = match std::str::from_utf8(bytes) {
            Ok(text) => Spelt::Text(text.into()),
            Err(_) => Spelt::Bytes(bytes.to_vec()),
        };
        spelt.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        Ok(match Spelt::deserialize(deserializer)? {
            Spelt::Text(text) => text.into_owned().into_bytes(),
            Spelt::Bytes(bytes) => bytes,
        })
    }
}
