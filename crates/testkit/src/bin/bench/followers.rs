//! One session, a thousand followers: everyone gets everything, in order, and the server's memory stays small.

use crate::figures::{Report, Target, memory};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use std::{path::Path, time::Instant};
use testkit::{Http, Server};
use tokio::task::JoinSet;

const FOLLOWERS: usize = 1_000;
const EVENTS: usize = 2_000;
/// What one follower may cost the server at most, its sockets' buffers aside.
const FOLLOWER_KIB: f64 = 64.0;

pub(crate) async fn measure(report: &mut Report, program: &Path) -> Result<()> {
    let server = Server::start(program).await?;
    let http = server.http()?;
    let pid = server.pid().context("no process")?;
    let made = http.post("/api/sessions", &json!({"agent": "demo"})).await?.expect(201)?;
    let id = made["session"]["id"].as_str().context("no id")?.to_owned();
    let (before, _) = memory(pid)?;

    let mut followers = JoinSet::new();
    for _ in 0..FOLLOWERS {
        let stream = http.follow(&id, 0).await?;
        followers.spawn(read_all(stream));
    }
    let (connected, _) = memory(pid)?;
    let began = Instant::now();
    let turn = tokio::spawn(prompt(http.clone(), id.clone()));
    let mut counts = vec![];
    while let Some(count) = followers.join_next().await {
        counts.push(count??);
    }
    let took = began.elapsed();
    turn.await??;
    let (_, peak) = memory(pid)?;
    let least = counts.iter().copied().min().unwrap_or_default();
    ensure!(counts.len() == FOLLOWERS && least >= EVENTS as u64, "a follower got only {least} events");

    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = counts.iter().sum::<u64>() as f64 / took.as_secs_f64();
    report.line(
        "followers: complete and in order, of 1,000",
        counts.len() as f64,
        "followers",
        Target::AtLeast(1_000.0),
    );
    report.line("followers: events delivered", rate, "events/s", Target::None);
    report.line("followers: server's memory before", before, "MB", Target::None);
    report.line("followers: server's memory, 1,000 connected", connected, "MB", Target::None);
    report.line("followers: server's peak memory", peak, "MB", Target::None);
    let each = (peak - before) * 1024.0 / FOLLOWERS as f64;
    report.line("followers: peak memory for each follower", each, "KiB", Target::AtMost(FOLLOWER_KIB));
    Ok(())
}

async fn prompt(http: Http, id: String) -> Result<()> {
    let body = json!({"content": format!("stream {EVENTS} 100")});
    http.message(&id, &body).await?.ok()?.collect().await?;
    Ok(())
}

/// Reads to the turn's end; every event must be the next one.
async fn read_all(mut stream: testkit::Sse) -> Result<u64> {
    let mut last = 0;
    loop {
        let frame = stream.next().await?.context("the stream ended")?;
        let Some(id) = frame.id else { continue };
        let seq: u64 = id.parse()?;
        ensure!(seq == last + 1, "event {seq} came after {last}");
        last = seq;
        if frame.data.contains("\"type\":\"turn_ended\"") {
            return Ok(last);
        }
    }
}
