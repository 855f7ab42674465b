//! How long things take, beside a bare pipe to the same shell. Run in release, by name:
//! `cargo test --release -p outlast-occupant --test shell -- --ignored --nocapture speed`.

use crate::driver::{Ground, Place, skip};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn p(times: &mut [Duration], part: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * part) as usize]
}

#[expect(clippy::disallowed_methods, reason = "the floor is a bare shell")]
fn floor(shell: &[String]) -> Vec<Duration> {
    let mut command = Command::new(&shell[0]);
    let mut child = command.args(&shell[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut line = String::new();
    let times = (0..1000)
        .map(|_| {
            let start = Instant::now();
            input.write_all(b"true; echo $?\n").unwrap();
            line.clear();
            output.read_line(&mut line).unwrap();
            start.elapsed()
        })
        .collect();
    drop(input);
    child.wait().unwrap();
    times
}

#[expect(clippy::disallowed_methods, reason = "the floor is a bare pipe")]
fn pipe(script: &str) -> Duration {
    let start = Instant::now();
    let mut child = Command::new("bash").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    child.wait().unwrap();
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, for a quiet machine"]
async fn speed() {
    let mut ground = Ground::new("speed").await;
    let mut driver = ground.shell().await;
    driver.run("true").await;
    let mut times = Vec::new();
    for _ in 0..1000 {
        let start = Instant::now();
        driver.run("true").await;
        times.push(start.elapsed());
    }
    let mut bare = floor(&ground.bare());
    println!(
        "true: p50 {:?} p99 {:?}; a bare pipe: p50 {:?} p99 {:?}",
        p(&mut times, 0.5),
        p(&mut times, 0.99),
        p(&mut bare, 0.5),
        p(&mut bare, 0.99)
    );
    for (name, script) in
        [("seq 1 5000000", "seq 1 5000000"), ("50 MB in one line", "head -c 50000000 /dev/zero | tr '\\0' x")]
    {
        let start = Instant::now();
        let end = driver.run(script).await;
        println!(
            "{name}: {:?}, {} lines; a bare pipe: {:?}",
            start.elapsed(),
            end.stdout.shown.lines_total,
            pipe(script)
        );
    }
    let text = format!("x='{}'", "y".repeat(1 << 20));
    let start = Instant::now();
    driver.run(&text).await;
    println!("a command of 1 MiB: {:?}", start.elapsed());
    let start = Instant::now();
    for _ in 0..5 {
        driver.run("exit 3").await;
    }
    println!("exit 3 and back: {:?}", start.elapsed() / 5);
    let status =
        std::fs::read_to_string(format!("/proc/{}/smaps_rollup", ground.keeper.pid())).unwrap_or_default();
    let private: Vec<&str> = status.lines().filter(|line| line.starts_with("Private")).collect();
    println!("the keeper: {private:?}");
    ground.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, for a quiet machine"]
async fn speed_elsewhere() {
    for place in [Place::Ssh, Place::Docker] {
        let start = Instant::now();
        let mut ground = match Ground::at("speed", place).await {
            Ok(ground) => ground,
            Err(why) => {
                skip(&format!("speed_{}", place.tag()), &why);
                continue;
            }
        };
        println!("{}: server, connection, upload and keeper: {:?}", place.tag(), start.elapsed());
        let start = Instant::now();
        let mut driver = ground.shell().await;
        driver.run("true").await;
        println!("{}: a shell and its first command: {:?}", place.tag(), start.elapsed());
        let mut times = Vec::new();
        for _ in 0..1000 {
            let start = Instant::now();
            driver.run("true").await;
            times.push(start.elapsed());
        }
        let mut bare = floor(&ground.bare());
        println!(
            "{}: true: p50 {:?} p99 {:?}; a shell kept open: p50 {:?} p99 {:?}",
            place.tag(),
            p(&mut times, 0.5),
            p(&mut times, 0.99),
            p(&mut bare, 0.5),
            p(&mut bare, 0.99)
        );
        ground.end().await;
    }
}
