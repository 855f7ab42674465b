//! A command's end and a command's progress, as they are recorded and as callers are told of them.

use occupant::{
    shell::{self, Finished, Outcome, Progress},
    text::View,
};
use place::keeper;
use protocol::{
    BudgetReport, CommandEnded, CommandOutcome, ExecResult, KeepMode, LeftRunning, OutputStream,
    StreamReport, StreamShown,
};

/// Of a command's own text, what its result says again. All of it is in the record.
const ECHO_CHARS: usize = 4096;

pub(super) fn ended(finished: &Finished, mode: KeepMode) -> CommandEnded {
    CommandEnded {
        command: finished.command,
        outcome: match finished.outcome {
            Outcome::Done => CommandOutcome::Done,
            Outcome::TimedOut => CommandOutcome::TimedOut,
            Outcome::Cancelled => CommandOutcome::Cancelled,
            Outcome::NotRun => CommandOutcome::NotRun,
            Outcome::Interrupted => CommandOutcome::Interrupted,
        },
        exit_code: finished.exit_code,
        duration_ms: finished.milliseconds,
        cwd: finished.cwd.clone(),
        stdout: shown(&finished.stdout, mode),
        stderr: shown(&finished.stderr, mode),
        left: finished
            .left
            .iter()
            .map(|left| LeftRunning { pid: left.pid, name: left.name.clone() })
            .collect(),
        hint: finished.hint.clone(),
    }
}

/// The end of a command that a policy refused.
pub(super) fn refused(command: u64, why: &str, cwd: Option<&str>) -> CommandEnded {
    CommandEnded {
        command,
        outcome: CommandOutcome::Refused,
        exit_code: None,
        duration_ms: 0,
        cwd: cwd.unwrap_or_default().to_owned(),
        stdout: StreamShown::default(),
        stderr: StreamShown::default(),
        left: Vec::new(),
        hint: Some(why.to_owned()),
    }
}

fn shown(view: &View, mode: KeepMode) -> StreamShown {
    StreamShown {
        text: view.shown.text.clone(),
        lines_total: view.shown.lines_total,
        lines_kept: view.shown.lines_kept,
        mode,
        truncated: view.shown.truncated,
        escaped: view.spelt,
        kept: false,
    }
}

/// What callers are told of a command that was recorded.
pub(super) fn result(text: String, ended: CommandEnded) -> ExecResult {
    ExecResult {
        exit_code: ended.exit_code,
        duration_ms: ended.duration_ms,
        cwd: ended.cwd,
        truncated: ended.stdout.truncated || ended.stderr.truncated,
        command_id: ended.command,
        command: echoed(text),
        timed_out: ended.outcome == CommandOutcome::TimedOut,
        cancelled: ended.outcome == CommandOutcome::Cancelled,
        running: false,
        budget: BudgetReport { stdout: report(&ended.stdout), stderr: report(&ended.stderr) },
        escaped: ended.stdout.escaped || ended.stderr.escaped,
        left_running: ended.left,
        whole: [(ended.stdout.kept, OutputStream::Stdout), (ended.stderr.kept, OutputStream::Stderr)]
            .into_iter()
            .filter_map(|(kept, stream)| kept.then_some(stream))
            .collect(),
        hint: ended.hint.or_else(|| outcome_hint(ended.outcome)),
        stdout: ended.stdout.text,
        stderr: ended.stderr.text,
    }
}

/// The caller knows what it sent: a very long text is said by its beginning.
fn echoed(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(ECHO_CHARS) {
        let left = text[at..].chars().count();
        text.truncate(at);
        text.push_str(&format!("… ({left} more characters)"));
    }
    text
}

fn outcome_hint(outcome: CommandOutcome) -> Option<String> {
    let text = match outcome {
        CommandOutcome::Done | CommandOutcome::TimedOut | CommandOutcome::Cancelled => return None,
        CommandOutcome::Refused => "a policy refused the command; nothing of it was run",
        CommandOutcome::NotRun => "nothing of the command was run",
        CommandOutcome::Interrupted => {
            "the shell was lost while the command ran; how far it came is not known"
        }
    };
    Some(text.to_owned())
}

fn report(shown: &StreamShown) -> StreamReport {
    StreamReport { mode: shown.mode, lines_total: shown.lines_total, lines_kept: shown.lines_kept }
}

/// What callers are told of a command that runs or waits.
pub(super) fn so_far(
    command: u64,
    text: String,
    progress: Option<Progress>,
    mode: KeepMode,
    cwd: String,
    duration_ms: u64,
) -> ExecResult {
    let waits = progress.is_none();
    let (stdout, stderr) = progress.map_or_else(Default::default, |progress| {
        (shown(&progress.stdout, mode), shown(&progress.stderr, mode))
    });
    ExecResult {
        exit_code: None,
        duration_ms,
        cwd,
        truncated: stdout.truncated || stderr.truncated,
        command_id: command,
        command: echoed(text),
        timed_out: false,
        cancelled: false,
        running: true,
        budget: BudgetReport { stdout: report(&stdout), stderr: report(&stderr) },
        escaped: stdout.escaped || stderr.escaped,
        left_running: Vec::new(),
        whole: Vec::new(),
        hint: waits.then(|| "the command waits for those before it".to_owned()),
        stdout: stdout.text,
        stderr: stderr.text,
    }
}

/// The end of a command as the machine takes it.
pub(super) fn end(ended: keeper::Ended) -> shell::End {
    shell::End {
        number: ended.command,
        how: match ended.how {
            keeper::How::Returned(code) => shell::How::Returned(code),
            keeper::How::Died(exit) => shell::How::Died { code: exit.code, signal: exit.signal },
            keeper::How::NotRun => shell::How::NotRun,
        },
        cwd: ended.cwd,
        stdout: ended.stdout,
        stderr: ended.stderr,
        milliseconds: ended.milliseconds,
        left: ended.left.into_iter().map(|left| shell::Left { pid: left.pid, name: left.name }).collect(),
    }
}
