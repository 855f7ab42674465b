//! A shell as a session's occupant: commands in, one at a time and in their order, and exactly one end of each out.
//!
//! ```text
//! Starting ─ready─► Idle ─run─► Running ─ended─► Idle
//!    ▲                │exited      │died, unfit, not run
//!    └────────────────┴────────────┘            Over: it cannot be started, or its keeper is gone
//! ```
//! The machine is pure: it takes what the place says and the time, and leaves [`Effect`]s in order. It knows no
//! process and no journal. A command's start is told by [`Effect::Begin`] before the [`Effect::Run`] that must wait for
//! it to be durable, and its end by [`Effect::End`], which is recorded before anybody is answered. Who drives it
//! records output, and acknowledges it, by offsets; after a restart the same output is given again from the
//! beginning, and the machine is where it was.

pub mod checkpoint;
mod finished;
mod launch;
mod saved;
mod stop;

pub use finished::{Finished, Left, Outcome};
pub use launch::{ARGS, PROGRAM, fit_env, site_prefixes};
pub use saved::{Saved, SavedExec};

use crate::text::{Plan, Screen, Secrets, View};
use bytes::Bytes;
use protocol::Timestamp;
use std::collections::VecDeque;
use stop::{Stop, Why};

/// Commands that wait behind the one that runs.
pub const WAITING: usize = 1024;
/// How often a command that its shell did not run is given to a new one.
const TRIES: u32 = 2;
/// Starts without a command in between, after which the shell is given up.
const STARTS: u32 = 3;

/// A command to run.
#[derive(Debug, Clone)]
pub struct Exec {
    /// Names the command to its caller; never used again in the session.
    pub command: u64,
    pub text: Bytes,
    pub stdin: Stdin,
    pub plan: Plan,
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// At its end from the start.
    Empty,
    /// Fed by [`Shell::write`].
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Whom a signal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// What the command started, and not the shell nor what was there before.
    Own,
    Shell,
    Both,
}

/// What the place says about the end of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub number: u64,
    pub how: How,
    pub cwd: Option<Vec<u8>>,
    /// Where its streams end.
    pub stdout: u64,
    pub stderr: u64,
    pub milliseconds: u64,
    pub left: Vec<Left>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Returned(i32),
    Died { code: Option<i32>, signal: Option<i32> },
    NotRun,
}

/// Why the place did not take a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The shell is there and can run nothing more.
    Unfit,
    /// The shell has ended; its end is told too.
    Ended,
    Failed(String),
}

/// How a command's text is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// As it is, so that it can be had from the record again.
    Whole,
    /// Without what must not be seen.
    Redacted,
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A command starts now. To be recorded.
    Begin {
        command: u64,
        text: String,
        spelling: Spelling,
    },
    /// To be given to the place once everything before is durable. `number` is the place's name for it.
    Run {
        number: u64,
        stdin: Stdin,
        text: Bytes,
    },
    Write {
        number: u64,
        bytes: Bytes,
    },
    CloseInput,
    Signal {
        signal: i32,
        whom: Whom,
    },
    /// The shell is to be started, or started again: then where it was.
    Start,
    /// Exactly once for each command. To be recorded, and then answered.
    End(Box<Finished>),
    /// Nothing more comes, and nothing more can be run; for people.
    Over(String),
}

/// What a command has shown by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub stdout: View,
    pub stderr: View,
}

/// Why a command was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unaccepted {
    TooMany,
    Over,
}

#[derive(Debug)]
pub struct Shell {
    secrets: Secrets,
    phase: Phase,
    waiting: VecDeque<Waiting>,
    /// The place's last name for a command.
    number: u64,
    /// The last input's number.
    input: u64,
    cwd: Vec<u8>,
    starts: u32,
}

#[derive(Debug)]
enum Phase {
    Starting {
        /// A command whose end waits for where the new shell is.
        ending: Option<Box<Finished>>,
    },
    Idle,
    Running(Box<Running>),
    /// The shell is being killed, to be started again.
    Ending {
        again: Option<Box<Waiting>>,
    },
    Over,
}

#[derive(Debug)]
struct Waiting {
    exec: Exec,
    tries: u32,
    hint: Option<&'static str>,
}

#[derive(Debug)]
struct Running {
    exec: Exec,
    number: u64,
    tries: u32,
    hint: Option<&'static str>,
    screens: [Screen; 2],
    offsets: [u64; 2],
    end: Option<End>,
    deadline: Timestamp,
    stop: Option<Stop>,
}

impl Shell {
    /// Has the shell started.
    pub fn begin(secrets: Secrets, out: &mut Vec<Effect>) -> Self {
        out.push(Effect::Start);
        Self {
            secrets,
            phase: Phase::Starting { ending: None },
            waiting: VecDeque::new(),
            number: 0,
            input: 0,
            cwd: Vec::new(),
            starts: 1,
        }
    }

    /// What is hidden from now on, when more is known than at the beginning.
    pub fn hide(&mut self, secrets: Secrets) {
        self.secrets = secrets;
    }

    /// Where the shell is, as far as is known.
    pub fn cwd(&self) -> String {
        String::from_utf8_lossy(&self.cwd).into_owned()
    }

    /// The command that runs.
    pub fn running(&self) -> Option<u64> {
        match &self.phase {
            Phase::Running(running) => Some(running.exec.command),
            _ => None,
        }
    }

    pub fn exec(&mut self, exec: Exec, now: Timestamp, out: &mut Vec<Effect>) -> Result<(), Unaccepted> {
        match self.phase {
            Phase::Over => return Err(Unaccepted::Over),
            _ if self.waiting.len() >= WAITING => return Err(Unaccepted::TooMany),
            _ => {}
        }
        self.waiting.push_back(Waiting { exec, tries: 0, hint: None });
        self.next(now, out);
        Ok(())
    }

    /// Gives the next command, if there is one and the shell is free.
    fn next(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        let Some(waiting) = self.waiting.pop_front() else { return };
        self.give(waiting, now, out);
    }

    fn give(&mut self, waiting: Waiting, now: Timestamp, out: &mut Vec<Effect>) {
        let Waiting { exec, tries, hint } = waiting;
        self.number += 1;
        if tries == 0 {
            let text = self.secrets.text(&String::from_utf8_lossy(&exec.text));
            let spelling = if text.as_bytes() == exec.text { Spelling::Whole } else { Spelling::Redacted };
            out.push(Effect::Begin { command: exec.command, text, spelling });
        }
        out.push(Effect::Run { number: self.number, stdin: exec.stdin, text: exec.text.clone() });
        let screen = || Screen::new(exec.plan.clone(), self.secrets.clone());
        self.phase = Phase::Running(Box::new(Running {
            number: self.number,
            tries: tries + 1,
            hint,
            screens: [screen(), screen()],
            offsets: [0; 2],
            end: None,
            deadline: stop::after(now, exec.timeout_ms),
            stop: None,
            exec,
        }));
    }

    /// Input for the running command; false if it is not that one, or takes none.
    pub fn write(&mut self, command: u64, bytes: Bytes, out: &mut Vec<Effect>) -> bool {
        let open = self.of(command).is_some_and(|running| running.exec.stdin == Stdin::Open);
        if open {
            self.input += 1;
            out.push(Effect::Write { number: self.input, bytes });
        }
        open
    }

    pub fn close_input(&mut self, command: u64, out: &mut Vec<Effect>) -> bool {
        let open = self.of(command).is_some_and(|running| running.exec.stdin == Stdin::Open);
        if open {
            out.push(Effect::CloseInput);
        }
        open
    }

    /// Signals what the command started, by the signal's number; false if it does not run.
    pub fn signal(&mut self, command: u64, signal: i32, out: &mut Vec<Effect>) -> bool {
        let runs = self.of(command).is_some();
        if runs {
            out.push(Effect::Signal { signal, whom: Whom::Own });
        }
        runs
    }

    /// Stops a command that runs, or takes one back that waits.
    pub fn cancel(&mut self, command: u64, now: Timestamp, out: &mut Vec<Effect>) -> bool {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.exec.command == command) {
            if let Some(waiting) = self.waiting.remove(at) {
                let text = self.secrets.text(&String::from_utf8_lossy(&waiting.exec.text));
                out.push(Effect::End(Box::new(Finished::unrun(command, text, self.cwd()))));
            }
            return true;
        }
        let Some(running) = self.of(command) else { return false };
        running.begin_stop(Why::Cancelled, now, out);
        true
    }

    fn of(&mut self, command: u64) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Running(running) if running.exec.command == command => Some(running),
            _ => None,
        }
    }

    /// What the running command has shown by now.
    pub fn progress(&self, command: u64) -> Option<Progress> {
        match &self.phase {
            Phase::Running(running) if running.exec.command == command => {
                let [stdout, stderr] = &running.screens;
                Some(Progress { stdout: stdout.peek(), stderr: stderr.peek() })
            }
            _ => None,
        }
    }

    /// What the last [`Self::output`] added to what is shown, before the budget; once.
    pub fn take_fresh(&mut self, stream: Stream) -> &str {
        match &mut self.phase {
            Phase::Running(running) => running.screens[usize::from(stream == Stream::Stderr)].take_fresh(),
            _ => "",
        }
    }

    /// The connection to the place was made again, which had commands up to `known` before. What is to be followed, by
    /// its number and from which offsets on; what the place did not get is given again.
    pub fn rejoin(&mut self, known: u64, now: Timestamp, out: &mut Vec<Effect>) -> Option<(u64, [u64; 2])> {
        let Phase::Running(running) = &mut self.phase else { return None };
        let there = running.number <= known;
        if !there {
            let (number, stdin, text) = (running.number, running.exec.stdin, running.exec.text.clone());
            out.push(Effect::Run { number, stdin, text });
        }
        if let Some(stop) = running.stop.take() {
            running.begin_stop(stop.why, now, out);
        }
        there.then_some((running.number, running.offsets))
    }

    /// The place no longer has the running command's streams up to here.
    pub fn skip(&mut self, upto: [u64; 2]) {
        if upto != [0; 2]
            && let Phase::Running(running) = &mut self.phase
        {
            running.offsets = upto;
            running.hint = Some(
                "the server was restarted in the middle of a very long output; what is shown begins after that",
            );
        }
    }

    /// The next moment at which [`Self::tick`] has something to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Running(running) => Some(running.next_moment()),
            _ => None,
        }
    }

    pub fn tick(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        if let Phase::Running(running) = &mut self.phase {
            running.walk(now, out);
        }
    }
}

/// What the place says.
impl Shell {
    /// The shell waits for commands.
    pub fn ready(&mut self, cwd: Vec<u8>, now: Timestamp, out: &mut Vec<Effect>) {
        self.cwd = cwd;
        let Phase::Starting { ending } = &mut self.phase else { return };
        let ending = ending.take();
        self.phase = Phase::Idle;
        if let Some(mut finished) = ending {
            finished.cwd = self.cwd();
            out.push(Effect::End(finished));
        }
        self.next(now, out);
    }

    /// The shell could not be started.
    pub fn unstartable(&mut self, why: &str, out: &mut Vec<Effect>) {
        if let Phase::Starting { ending: Some(finished) } = std::mem::replace(&mut self.phase, Phase::Over) {
            out.push(Effect::End(finished));
        }
        self.over(why, out);
    }

    /// The place, and the shell with it, is gone.
    pub fn lost(&mut self, out: &mut Vec<Effect>) {
        if let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Over) {
            let cwd = self.cwd();
            out.push(Effect::End(Box::new(running.finish(&self.secrets, Outcome::Interrupted, cwd, None))));
        }
        self.over("the connection to the shell's keeper is gone", out);
    }

    fn over(&mut self, why: &str, out: &mut Vec<Effect>) {
        let cwd = self.cwd();
        for waiting in std::mem::take(&mut self.waiting) {
            let text = self.secrets.text(&String::from_utf8_lossy(&waiting.exec.text));
            out.push(Effect::End(Box::new(Finished::unrun(waiting.exec.command, text, cwd.clone()))));
        }
        self.phase = Phase::Over;
        out.push(Effect::Over(why.to_owned()));
    }

    /// Output of the running command. What was given before is passed over.
    pub fn output(
        &mut self,
        number: u64,
        stream: Stream,
        offset: u64,
        bytes: &[u8],
        now: Timestamp,
        out: &mut Vec<Effect>,
    ) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.number != number {
            return;
        }
        let index = usize::from(stream == Stream::Stderr);
        let known = usize::try_from(running.offsets[index].saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(new) = bytes.get(known..) else { return };
        running.screens[index].push(new);
        running.offsets[index] += new.len() as u64;
        self.settle(now, out);
    }

    /// A command's end. Its output may come before or after.
    pub fn ended(&mut self, end: End, now: Timestamp, out: &mut Vec<Effect>) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.number == end.number {
            running.end = Some(end);
            self.settle(now, out);
        }
    }

    /// Ends the running command once all of its output is there.
    fn settle(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let Phase::Running(running) = &self.phase else { return };
        let Some(end) = &running.end else { return };
        if running.offsets[0] < end.stdout || running.offsets[1] < end.stderr {
            return;
        }
        let how = end.how;
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        match how {
            How::Returned(_) => {
                self.starts = 0;
                if let Some(cwd) = running.end.as_ref().and_then(|end| end.cwd.clone()) {
                    self.cwd = cwd;
                }
                let (outcome, cwd) = (running.outcome(), self.cwd());
                out.push(Effect::End(Box::new(running.finish(&self.secrets, outcome, cwd, None))));
                self.next(now, out);
            }
            How::Died { .. } => {
                if running.stop.is_some() {
                    // The shell was the first to go.
                    out.push(Effect::Signal { signal: stop::KILL, whom: Whom::Own });
                }
                self.starts = 0;
                let (outcome, cwd) = (running.outcome(), self.cwd());
                let hint = running.died_hint();
                let ending = Some(Box::new(running.finish(&self.secrets, outcome, cwd, Some(hint))));
                self.start(ending, out);
            }
            How::NotRun => self.again(*running, out),
        }
    }

    /// The place refused a command.
    pub fn refused(&mut self, number: u64, refused: &Refused, now: Timestamp, out: &mut Vec<Effect>) {
        let Phase::Running(running) = &self.phase else { return };
        if running.number != number {
            return;
        }
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        match refused {
            Refused::Unfit => self.again(*running, out),
            // Its end, which is told too, has the shell started again.
            Refused::Ended => {
                let again = Waiting { exec: running.exec, tries: running.tries, hint: running.hint };
                self.phase = Phase::Ending { again: Some(Box::new(again)) };
            }
            Refused::Failed(_) => {
                let cwd = self.cwd();
                let hint = "the command could not be handed to the shell; nothing of it was run";
                let finished = running.finish(&self.secrets, Outcome::NotRun, cwd, Some(hint));
                out.push(Effect::End(Box::new(finished)));
                self.next(now, out);
            }
        }
    }

    /// A shell that cannot run anything more is ended, and the command given to the next one.
    fn again(&mut self, running: Running, out: &mut Vec<Effect>) {
        out.push(Effect::Signal { signal: stop::KILL, whom: Whom::Shell });
        if running.tries >= TRIES {
            let cwd = self.cwd();
            let hint = "the shell did not run the command, and neither did the one after it";
            out.push(Effect::End(Box::new(running.finish(&self.secrets, Outcome::NotRun, cwd, Some(hint)))));
            self.phase = Phase::Ending { again: None };
            return;
        }
        let hint = "an earlier command left the shell unable to run anything (such as by `set -n`, `set -r`, a trap \
                    that skips commands, or functions in the place of builtins); it was started again with the \
                    state that it had before";
        let again = Waiting { exec: running.exec, tries: running.tries, hint: Some(hint) };
        self.phase = Phase::Ending { again: Some(Box::new(again)) };
    }

    /// The shell ended while it ran no command.
    pub fn exited(&mut self, out: &mut Vec<Effect>) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Ending { again } => {
                if let Some(again) = again {
                    self.waiting.push_front(*again);
                }
                self.start(None, out);
            }
            Phase::Idle => self.start(None, out),
            // A shell that ends before its first command will do so again.
            Phase::Starting { ending } if self.starts >= STARTS => {
                out.extend(ending.map(Effect::End));
                self.over("the shell ends as soon as it is started", out);
            }
            Phase::Starting { ending } => self.start(ending, out),
            // The end of a command that ran would have been told; this one was not begun.
            Phase::Running(running) if running.end.is_none() => {
                let Running { exec, tries, hint, .. } = *running;
                self.waiting.push_front(Waiting { exec, tries, hint });
                self.start(None, out);
            }
            other @ (Phase::Running(_) | Phase::Over) => self.phase = other,
        }
    }

    fn start(&mut self, ending: Option<Box<Finished>>, out: &mut Vec<Effect>) {
        self.starts += 1;
        self.phase = Phase::Starting { ending };
        out.push(Effect::Start);
    }
}

#[cfg(test)]
mod tests;
