//! What lies on disk: replay, paging, and a server with very many stored sessions.

use crate::{
    figures::{Report, Target, memory, millis, p50},
    seed::Seeder,
};
use anyhow::{Context as _, Result, ensure};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use testkit::{Http, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const REPLAYED: usize = 200_000;
const PAGED: usize = 10_000;
const PAGE: usize = 1_000;
const FEW: usize = 100;
const MANY: usize = 100_000;
const LIST_PAGE: usize = 50;
const LISTS: usize = 200;
const STARTS: usize = 5;
const REPLAYS: usize = 3;

/// A server that has stopped, on a folder that a first start has made.
async fn prepared(program: &Path) -> Result<Server> {
    let mut server = Server::start(program).await?;
    server.stop().await?;
    Ok(server)
}

pub(crate) async fn replay(report: &mut Report, program: &Path) -> Result<()> {
    let mut server = prepared(program).await?;
    let seeder = Seeder::open(server.data())?;
    let long = seeder.updates(REPLAYED).await?.to_string();
    let short = seeder.updates(PAGED - 1).await?.to_string();
    seeder.close().await;
    server.restart().await?;
    let http = server.http()?;

    let mut best = Duration::MAX;
    let mut bytes = 0;
    for _ in 0..REPLAYS {
        let (took, size) = replay_once(&http, &long).await?;
        best = best.min(took);
        bytes = size;
    }
    let floor = loopback(bytes).await?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = |took: Duration| REPLAYED as f64 / took.as_secs_f64();
    report.line("replay: floor, the same bytes over loopback", rate(floor), "events/s", Target::None);
    report.line("replay: over SSE to one client", rate(best), "events/s", Target::AtLeast(100_000.0));
    report.line("replay: times the floor", best.as_secs_f64() / floor.as_secs_f64(), "x", Target::None);

    let mut samples = vec![];
    for _ in 0..REPLAYS * 3 {
        samples.push(page_through(&http, &short).await?);
    }
    report.line(
        "replay: paging through 10,000 events, p50",
        millis(p50(samples)),
        "ms",
        Target::AtMost(100.0),
    );
    Ok(())
}

/// The time to the last event, and the bytes of all.
async fn replay_once(http: &Http, id: &str) -> Result<(Duration, usize)> {
    let began = Instant::now();
    let mut stream = http.follow(id, 0).await?;
    let mut last = 0;
    let mut bytes = 0;
    while last < REPLAYED as u64 {
        let frame = stream.next().await?.context("the stream ended")?;
        let seq: u64 = frame.id.context("an event without an id")?.parse()?;
        ensure!(seq == last + 1, "event {seq} came after {last}");
        last = seq;
        bytes += frame.data.len() + 16;
    }
    Ok((began.elapsed(), bytes))
}

async fn page_through(http: &Http, id: &str) -> Result<Duration> {
    let mut connection = http.connect().await?;
    let began = Instant::now();
    let mut after = 0;
    while after < PAGED {
        let path = format!("/api/sessions/{id}/events?after={after}&limit={PAGE}");
        connection.send("GET", &path, &[], b"").await?;
        let reply = connection.reply().await?;
        ensure!(reply.status == 200, "{}", reply.text());
        // Counting is enough here: the crash test looks at what pages hold.
        let count = reply.body.windows(6).filter(|window| window.starts_with(b"\"seq\":")).count();
        ensure!(count > 0, "an empty page after {after}");
        after += count;
    }
    Ok(began.elapsed())
}

/// The same number of bytes through a bare socket.
async fn loopback(bytes: usize) -> Result<Duration> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let sending = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await?;
        let block = vec![b'x'; 64 * 1024];
        let mut left = bytes;
        while left > 0 {
            let count = left.min(block.len());
            socket.write_all(&block[..count]).await?;
            left -= count;
        }
        anyhow::Ok(())
    });
    let began = Instant::now();
    let mut socket = tokio::net::TcpStream::connect(address).await?;
    let mut block = vec![0; 64 * 1024];
    while socket.read(&mut block).await? > 0 {}
    sending.await??;
    Ok(began.elapsed())
}

/// What one server looks like from outside.
struct Look {
    list: Duration,
    start: Duration,
    memory: f64,
}

pub(crate) async fn sessions(report: &mut Report, program: &Path) -> Result<()> {
    let mut few_server = prepared(program).await?;
    fill(&few_server, FEW).await?;
    let few = look(&mut few_server).await?;
    few_server.stop().await?;
    let mut many_server = prepared(program).await?;
    fill(&many_server, MANY).await?;
    let many = look(&mut many_server).await?;

    report.line("stored: floor, a list page at 100 sessions, p50", millis(few.list), "ms", Target::None);
    report.line("stored: a list page at 100,000 sessions, p50", millis(many.list), "ms", Target::AtMost(2.0));
    let ratio = many.list.as_secs_f64() / few.list.as_secs_f64();
    report.line("stored: list page, times the one at 100 sessions", ratio, "x", Target::AtMost(1.5));
    report.line("stored: start to /health at 100,000, p50", millis(many.start), "ms", Target::AtMost(150.0));
    report.line("stored: memory idle at 100 sessions", few.memory, "MB", Target::AtMost(30.0));
    report.line("stored: memory idle at 100,000 sessions", many.memory, "MB", Target::AtMost(30.0));
    report.line(
        "stored: growth of memory for each stored session",
        (many.memory - few.memory).max(0.0) * 1024.0 * 1024.0 / (MANY - FEW) as f64,
        "bytes",
        Target::AtMost(20.0),
    );
    Ok(())
}

async fn fill(server: &Server, count: usize) -> Result<()> {
    let seeder = Seeder::open(server.data())?;
    seeder.sessions(count).await?;
    seeder.close().await;
    Ok(())
}

async fn look(server: &mut Server) -> Result<Look> {
    let mut starts = vec![];
    for _ in 0..STARTS {
        let began = Instant::now();
        server.restart().await?;
        let http = server.http()?;
        http.get("/health").await?.expect(200)?;
        starts.push(began.elapsed());
        server.stop().await?;
    }
    server.restart().await?;
    let http = server.http()?;
    http.get("/health").await?.expect(200)?;
    let (memory, _) = memory(server.pid().context("no process")?)?;
    let mut connection = http.connect().await?;
    let mut samples = vec![];
    for number in 0..LISTS + LISTS / 10 {
        let began = Instant::now();
        connection.send("GET", &format!("/api/sessions?limit={LIST_PAGE}"), &[], b"").await?;
        let reply = connection.reply().await?;
        let took = began.elapsed();
        ensure!(reply.status == 200, "{}", reply.text());
        if number >= LISTS / 10 {
            samples.push(took);
        }
    }
    Ok(Look { list: p50(samples), start: p50(starts), memory })
}
