//! Time: timeouts, cancellation, yields, and who is stopped by them.

use crate::driver::{Ground, Place, TIMEOUT_MS, skip};
use bytes::Bytes;
use outlast_occupant::{
    shell::{Exec, Outcome, Stdin},
    text::Plan,
};

/// Commands that do not end by themselves, and whether the shell can be kept as it is.
const ENDLESS: &[(&str, &str)] = &[
    ("a program", "sleep 1000"),
    ("a program that takes no interrupt", "sh -c 'trap \"\" INT; sleep 1000'"),
    ("one that takes nothing", "sh -c 'trap \"\" INT TERM; while :; do sleep 1; done'"),
    ("a busy loop", "while :; do :; done"),
    ("a busy loop that takes nothing", "trap '' INT TERM; while :; do :; done"),
    ("a list", "echo part; sleep 1000; echo never"),
    ("a function", "g() { sleep 1000; echo never; }; g"),
    ("a flood", "yes"),
    ("a stopped child", "sh -c 'kill -STOP $$'"),
    ("a stopped shell", "kill -STOP $$"),
    ("a wait for a job", "sleep 1000 & wait"),
    ("a read of a queue", "mkfifo q; read x <q"),
    ("a pipeline", "sleep 1000 | cat"),
    ("a substitution", "x=$(sleep 1000)"),
    ("a group of its own", "setsid sleep 1000"),
    ("a reader of the line", "read -u 10 x; read -u 11 x; read -u 12 x; sleep 1000"),
];

#[tokio::test]
async fn a_timeout_stops_everything_and_the_session_goes_on() {
    let near = async {
        [timeouts(Place::Host).await, timeouts(Place::Sandbox).await, timeouts(Place::Project).await].concat()
    };
    let (near, ssh, docker) = tokio::join!(near, timeouts(Place::Ssh), timeouts(Place::Docker));
    let wrong = [near, ssh, docker].concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn timeouts(place: Place) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut ground = match Ground::at(&format!("timeout-{}", place.tag()), place).await {
        Ok(ground) => ground,
        Err(why) => {
            skip(&format!("timeouts_{}", place.tag()), &why);
            return wrong;
        }
    };
    for (name, command) in ENDLESS {
        eprintln!("{}: {name}", place.tag());
        let mut driver = ground.shell().await;
        driver.run("export A=1; b=2; f() { echo f; }; sleep 1001 & job=$!").await;
        let end = driver.run_for(command, 300).await;
        if end.outcome != Outcome::TimedOut || end.stdout.shown.text.contains("never") {
            wrong.push(format!("{name}: {end:?}"));
        }
        let end = driver
            .run("echo $A $b $(f); kill -0 $job && echo alive; ps -eo args | grep -c '^sleep 1000$'")
            .await;
        if !end.stdout.shown.text.starts_with("1 2 f\nalive\n") && !name.contains("function") {
            wrong.push(format!("{name}: afterwards {end:?}"));
        }
        let probe = driver.run("echo ok; pwd").await;
        let home = driver.home.to_string_lossy();
        if probe.stdout.shown.text != format!("ok\n{home}") || !probe.stderr.shown.text.is_empty() {
            wrong.push(format!("{name}: the probe says {probe:?}"));
        }
        let running = driver.shell.state().await.unwrap().running;
        if running.len() != 1 {
            wrong.push(format!("{name}: still there: {running:?}"));
        }
        ground.keeper.forget(driver.process).await.unwrap();
    }
    ground.end().await;
    wrong.into_iter().map(|text| format!("{}: {text}", place.tag())).collect()
}

#[tokio::test]
async fn partial_output_is_kept() {
    let mut ground = Ground::new("partial").await;
    let mut driver = ground.shell().await;
    let end = driver.run_for("echo one; echo two >&2; sleep 1000", 300).await;
    assert_eq!((&*end.stdout.shown.text, &*end.stderr.shown.text), ("one", "two"));
    assert!(end.timed_out());
    ground.end().await;
}

#[tokio::test]
async fn a_cancelled_command_ends_and_the_next_one_runs() {
    let mut ground = Ground::new("cancel").await;
    let mut driver = ground.shell().await;
    let first = driver.begin("sleep 1000", TIMEOUT_MS, Stdin::Empty).await;
    let second = driver.begin("echo second", TIMEOUT_MS, Stdin::Empty).await;
    let third = driver.begin("echo third", TIMEOUT_MS, Stdin::Empty).await;
    while driver.machine.running() != Some(first) {
        driver.step().await;
    }
    let (now, mut effects) = (driver.now(), Vec::new());
    assert!(driver.machine.cancel(second, now, &mut effects));
    assert!(driver.machine.cancel(first, now, &mut effects));
    driver.carry_out(effects).await;
    assert_eq!(driver.end(first).await.outcome, Outcome::Cancelled);
    assert_eq!(driver.end(second).await.outcome, Outcome::NotRun);
    assert_eq!(driver.end(third).await.stdout.shown.text, "third");
    ground.end().await;
}

#[tokio::test]
async fn a_long_command_is_read_on_and_written_to() {
    let mut ground = Ground::new("yield").await;
    let mut driver = ground.shell().await;
    let exec = Exec {
        command: 100,
        text: Bytes::from_static(b"echo first; while read -r x; do echo \"got $x\"; done; echo last"),
        stdin: Stdin::Open,
        plan: Plan::default(),
        timeout_ms: TIMEOUT_MS,
    };
    driver.exec(exec).await;
    while driver.machine.progress(100).is_none_or(|seen| seen.stdout.shown.text != "first") {
        driver.step().await;
    }
    let mut effects = Vec::new();
    assert!(driver.machine.write(100, Bytes::from_static(b"a\nb\n"), &mut effects));
    driver.carry_out(effects).await;
    while !driver.machine.progress(100).unwrap().stdout.shown.text.contains("got b") {
        driver.step().await;
    }
    let mut effects = Vec::new();
    assert!(driver.machine.close_input(100, &mut effects));
    driver.carry_out(effects).await;
    let end = driver.end(100).await;
    assert_eq!((&*end.stdout.shown.text, end.exit_code), ("first\ngot a\ngot b\nlast", Some(0)));
    let command = driver.begin("trap 'echo usr; exit' USR1; sh -c 'trap \"echo child; exit 4\" USR1; echo up; while :; do sleep 0.01; done'", TIMEOUT_MS, Stdin::Empty).await;
    while driver.machine.progress(command).is_none_or(|seen| seen.stdout.shown.text != "up") {
        driver.step().await;
    }
    let mut effects = Vec::new();
    assert!(driver.machine.signal(command, 10, &mut effects));
    driver.carry_out(effects).await;
    let end = driver.end(command).await;
    assert_eq!((&*end.stdout.shown.text, end.exit_code), ("up\nchild", Some(4)), "the shell is not reached");
    ground.end().await;
}

#[tokio::test]
async fn what_a_command_left_running_is_known() {
    let mut ground = Ground::new("left").await;
    let mut driver = ground.shell().await;
    let end = driver.run("sleep 1002 & sleep 1003 & :").await;
    let names: Vec<&str> = end.left.iter().map(|left| left.name.as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let end = driver.run("true").await;
    assert!(end.left.is_empty(), "they are not this command's: {:?}", end.left);
    assert_eq!(driver.shell.state().await.unwrap().running.len(), 2);
    driver.run("kill %1 %2; wait").await;
    assert!(driver.shell.state().await.unwrap().running.is_empty());
    ground.end().await;
}

#[tokio::test]
async fn a_thousand_at_once_keep_their_order() {
    let mut ground = Ground::new("order").await;
    let mut driver = ground.shell().await;
    let mut last = 0;
    for number in 1..=1000 {
        last = driver
            .begin(&format!("n=$((n+1)); [ $n = {number} ] || echo wrong"), TIMEOUT_MS, Stdin::Empty)
            .await;
    }
    let end = driver.end(last).await;
    assert_eq!((end.stdout.shown.text.as_str(), end.exit_code), ("", Some(0)));
    assert!(driver.finished.values().all(|end| end.stdout.shown.text.is_empty()));
    ground.end().await;
}
