//! The machine alone, told by a table what its place does.

use super::*;
use crate::{Redactor, text::Shapes};

fn secrets() -> Secrets {
    Secrets::new(&Redactor::default(), Shapes::Known, &[])
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn exec(command: u64, text: &str) -> Exec {
    Exec {
        command,
        text: Bytes::copy_from_slice(text.as_bytes()),
        stdin: Stdin::Empty,
        plan: Plan::default(),
        timeout_ms: 1000,
    }
}

fn end(number: u64, how: How, stdout: u64) -> End {
    let cwd = matches!(how, How::Returned(_)).then(|| b"/tmp".to_vec());
    End { number, how, cwd, stdout, stderr: 0, milliseconds: 5, left: Vec::new() }
}

fn started() -> Shell {
    let mut out = Vec::new();
    let mut shell = Shell::begin(secrets(), &mut out);
    assert_eq!(out, [Effect::Start]);
    shell.ready(b"/".to_vec(), at(0), &mut out);
    shell
}

fn finished(out: &[Effect]) -> Vec<&Finished> {
    out.iter()
        .filter_map(|effect| match effect {
            Effect::End(finished) => Some(&**finished),
            _ => None,
        })
        .collect()
}

fn runs(out: &[Effect]) -> Vec<u64> {
    out.iter()
        .filter_map(|effect| match effect {
            Effect::Run { number, .. } => Some(*number),
            _ => None,
        })
        .collect()
}

#[test]
fn commands_run_one_at_a_time_in_their_order() {
    let mut shell = started();
    let mut out = Vec::new();
    for command in 10..13 {
        shell.exec(exec(command, "x"), at(0), &mut out).unwrap();
    }
    assert_eq!(runs(&out), [1]);
    assert!(matches!(&out[0], Effect::Begin { command: 10, .. }), "recorded before it is run");
    // The end comes before the output.
    shell.ended(end(1, How::Returned(3), 4), at(1), &mut out);
    assert!(finished(&out).is_empty());
    shell.output(1, Stream::Stdout, 0, b"hi\n", at(1), &mut out);
    shell.output(1, Stream::Stdout, 0, b"hi\n!", at(1), &mut out);
    let first = finished(&out)[0].clone();
    assert_eq!((first.command, first.exit_code, &*first.stdout.shown.text), (10, Some(3), "hi\n!"));
    assert_eq!(first.cwd, "/tmp");
    assert_eq!(runs(&out), [1, 2]);
    assert!(shell.cancel(12, at(2), &mut out));
    shell.ended(end(2, How::Returned(0), 0), at(2), &mut out);
    let outcomes: Vec<_> = finished(&out).iter().map(|end| (end.command, end.outcome)).collect();
    assert_eq!(outcomes, [(10, Outcome::Done), (12, Outcome::NotRun), (11, Outcome::Done)]);
    assert_eq!(shell.running(), None);
}

#[test]
fn a_timeout_walks_and_is_told_as_one() {
    let mut shell = started();
    let mut out = Vec::new();
    shell.exec(exec(1, "a; b"), at(0), &mut out).unwrap();
    out.clear();
    shell.tick(at(999), &mut out);
    assert!(out.is_empty());
    let mut now = 1000;
    for (signal, whom) in [(2, Whom::Both), (15, Whom::Both), (9, Whom::Both), (9, Whom::Both)] {
        assert_eq!(shell.deadline(), Some(at(now)));
        shell.tick(at(now), &mut out);
        assert_eq!(out[0], Effect::Signal { signal, whom });
        out.clear();
        now += i64::try_from(stop::GRACE_MS).unwrap();
    }
    shell.ended(end(1, How::Died { code: None, signal: Some(9) }, 0), at(now), &mut out);
    assert_eq!(out, [Effect::Signal { signal: 9, whom: Whom::Own }, Effect::Start]);
    shell.ready(b"/home".to_vec(), at(now), &mut out);
    let told = finished(&out)[0];
    assert_eq!((told.outcome, told.exit_code, &*told.cwd), (Outcome::TimedOut, Some(137), "/home"));
    assert!(told.hint.is_some());
}

#[test]
fn a_shell_that_runs_nothing_is_replaced_and_the_command_run_once() {
    let mut shell = started();
    let mut out = Vec::new();
    shell.exec(exec(1, "x"), at(0), &mut out).unwrap();
    out.clear();
    shell.refused(1, &Refused::Unfit, at(0), &mut out);
    assert_eq!(out, [Effect::Signal { signal: 9, whom: Whom::Shell }]);
    out.clear();
    shell.exited(&mut out);
    assert_eq!(out, [Effect::Start]);
    out.clear();
    shell.ready(b"/".to_vec(), at(0), &mut out);
    assert_eq!(runs(&out), [2]);
    assert!(!out.iter().any(|effect| matches!(effect, Effect::Begin { .. })), "it began once");
    shell.ended(end(2, How::NotRun, 0), at(0), &mut out);
    let told = finished(&out)[0];
    assert_eq!((told.outcome, told.exit_code), (Outcome::NotRun, None));
}

#[test]
fn a_machine_is_taken_up_where_it_was() {
    let mut shell = started();
    let mut out = Vec::new();
    shell.exec(exec(7, "x"), at(0), &mut out).unwrap();
    shell.exec(exec(8, "y"), at(0), &mut out).unwrap();
    shell.output(1, Stream::Stdout, 0, b"abc", at(1), &mut out);
    let saved = shell.save(|_| Default::default(), |_| true, |_| None, at(400));
    let text = serde_json::to_string(&saved).unwrap();
    out.clear();
    let mut shell = Shell::take_up(secrets(), serde_json::from_str(&text).unwrap(), at(9000), &mut out);
    assert_eq!(runs(&out), [1], "the place knows whether it had it");
    assert_eq!(shell.deadline(), Some(at(9600)));
    shell.output(1, Stream::Stdout, 0, b"abc", at(9001), &mut out);
    shell.output(1, Stream::Stdout, 3, b"def", at(9001), &mut out);
    shell.ended(end(1, How::Returned(0), 6), at(9001), &mut out);
    assert_eq!(finished(&out)[0].stdout.shown.text, "abcdef");
    assert_eq!(runs(&out), [1, 2]);
}

#[test]
fn a_lost_place_ends_everything_once() {
    let mut shell = started();
    let mut out = Vec::new();
    shell.exec(exec(1, "x"), at(0), &mut out).unwrap();
    shell.exec(exec(2, "y"), at(0), &mut out).unwrap();
    shell.lost(&mut out);
    let outcomes: Vec<_> = finished(&out).iter().map(|end| (end.command, end.outcome)).collect();
    assert_eq!(outcomes, [(1, Outcome::Interrupted), (2, Outcome::NotRun)]);
    assert_eq!(shell.exec(exec(3, "z"), at(0), &mut out), Err(Unaccepted::Over));
}
