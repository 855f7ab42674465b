//! What sandboxes cost: made, paused, resumed warm and cold, and five hundred of them at once.

use crate::{
    figures::{Report, Target, memory, millis, p50},
    latency::bare_start,
};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use testkit::{Http, Server, Setup, run};
use tokio::task::JoinSet;

const TIMES: usize = 40;
const AT_ONCE: usize = 100;
const LIVE: usize = 500;
const COLD_BYTES: usize = 1024 * 1024;
const COLD_FILES: usize = 32;

async fn create(http: &Http) -> Result<String> {
    let made = http.post("/api/sessions", &json!({"agent": "demo"})).await?.expect(201)?;
    Ok(made["session"]["id"].as_str().context("no id")?.to_owned())
}

async fn act(http: &Http, id: &str, what: &str) -> Result<Duration> {
    let began = Instant::now();
    http.call("POST", &format!("/api/sessions/{id}/{what}"), None).await?.expect(200)?;
    Ok(began.elapsed())
}

/// A clone with the same namespaces that runs `true`.
async fn bare_clones(folder: &Path) -> Result<Vec<Duration>> {
    let (source, program) = (folder.join("floor.c"), folder.join("floor-of-a-sandbox"));
    fs::write(&source, include_str!("floor.c"))?;
    let (source, program) = (source.to_string_lossy(), program.to_string_lossy());
    run("cc", ["-O2", "-o", &program, &source], &[]).await?.ok()?;
    let out = run(&*program, [TIMES.to_string()], &[]).await?.ok()?;
    out.lines().map(|line| Ok(Duration::from_nanos(line.parse()?))).collect()
}

pub(crate) async fn made(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let (mut samples, mut starts) = (vec![], vec![]);
    let floor = p50(bare_clones(server.scratch()).await?);
    for _ in 0..TIMES {
        let began = Instant::now();
        let id = create(&http).await?;
        samples.push(began.elapsed());
        http.delete(&format!("/api/sessions/{id}?purge=true")).await?.expect(200)?;
        let program = program.to_owned();
        starts.push(tokio::task::spawn_blocking(move || bare_start(&program)).await??);
    }
    let (whole, start) = (p50(samples), p50(starts));
    report.line("sandbox: floor, bare clone of its namespaces, p50", millis(floor), "ms", Target::None);
    report.line("sandbox: floor, the agent's own start, p50", millis(start), "ms", Target::None);
    let limit = 3.0 * millis(floor) + millis(start);
    report.line("sandbox: a session made over REST, p50", millis(whole), "ms", Target::AtMost(limit));
    report.line("sandbox: the same, against the machine's figure", millis(whole), "ms", Target::AtMost(15.0));

    let mut creates = JoinSet::new();
    let began = Instant::now();
    for _ in 0..AT_ONCE {
        let http = http.clone();
        creates.spawn(async move {
            let made = create(&http).await;
            (began.elapsed(), made)
        });
    }
    let mut times = vec![];
    while let Some(made) = creates.join_next().await {
        let (took, made) = made?;
        made?;
        times.push(took);
    }
    times.sort_unstable();
    ensure!(times.len() == AT_ONCE, "all succeed");
    let p95 = times[AT_ONCE * 95 / 100];
    report.line("sandbox: 100 made at once, p95", millis(p95), "ms", Target::AtMost(1000.0));
    Ok(())
}

pub(crate) async fn moved(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let id = create(&http).await?;
    let (mut pauses, mut resumes) = (vec![], vec![]);
    for _ in 0..TIMES {
        pauses.push(act(&http, &id, "pause").await?);
        resumes.push(act(&http, &id, "resume").await?);
    }
    // The snapshot is in it; it is small here, so the whole is held to the bound without it.
    report.line("sandbox: warm pause with its snapshot, p50", millis(p50(pauses)), "ms", Target::AtMost(5.0));
    report.line("sandbox: warm resume, p50", millis(p50(resumes)), "ms", Target::AtMost(2.0));

    let server = Setup::new(program).env("OUTLAST_IDLE_SECS", "1").start().await?;
    let http = server.http()?;
    let (mut colds, mut starts) = (vec![], vec![]);
    for _ in 0..TIMES / 4 {
        let id = create(&http).await?;
        let folder = server.data().join("places").join(&id);
        for number in 0..COLD_FILES {
            fs::write(folder.join(format!("file-{number}")), vec![b'x'; COLD_BYTES / COLD_FILES])?;
        }
        let mut stream = http.follow(&id, 0).await?;
        act(&http, &id, "pause").await?;
        // Paused for a second it is evicted, which takes a second snapshot.
        for _ in 0..2 {
            while !stream.next().await?.context("the stream ended")?.data.contains("snapshot_taken") {}
        }
        ensure!(!folder.exists(), "it was not evicted");
        colds.push(act(&http, &id, "resume").await?);
        let program = program.to_owned();
        starts.push(tokio::task::spawn_blocking(move || bare_start(&program)).await??);
    }
    let (cold, start) = (p50(colds), p50(starts));
    let limit = 25.0 + millis(start);
    report.line("sandbox: cold resume of 1 MB, p50", millis(cold), "ms", Target::AtMost(limit));
    Ok(())
}

pub(crate) async fn crowd(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let pid = server.pid().context("no pid")?;
    let before = memory(pid)?.0;
    for _ in 0..LIVE {
        create(&http).await?;
    }
    let after = memory(pid)?.0;
    report.line("sandbox: server's memory with 500 live sessions", after, "MB", Target::AtMost(60.0));
    let each = (after - before) * 1024.0 / LIVE as f64;
    report.line("sandbox: of it for each session", each, "KB", Target::AtMost(50.0));
    let keepers = private_of("outlast-keeper")?;
    let most = keepers.iter().copied().fold(0.0, f64::max);
    ensure!(keepers.len() >= LIVE, "only {} keepers", keepers.len());
    report.line("sandbox: a keeper's private memory, the most", most, "MB", Target::AtMost(2.0));
    Ok(())
}

/// Private memory, in MB, of every process whose command line begins so.
fn private_of(name: &str) -> Result<Vec<f64>> {
    let mut found = vec![];
    for entry in fs::read_dir("/proc")?.flatten() {
        let process = entry.path();
        if !fs::read(process.join("cmdline")).is_ok_and(|line| line.starts_with(name.as_bytes())) {
            continue;
        }
        let Ok(text) = fs::read_to_string(process.join("smaps_rollup")) else { continue };
        let kib: f64 = text
            .lines()
            .filter(|line| line.starts_with("Private_"))
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok())
            .sum();
        found.push(kib / 1024.0);
    }
    Ok(found)
}
