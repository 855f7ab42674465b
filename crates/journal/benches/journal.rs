//! The journal's numbers as ratios to a floor measured in the same run: a raw append with fdatasync on the same
//! disk. `cargo bench -p outlast-journal`; a folder as argument chooses the disk.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark reports on stdout and stops when it breaks"
)]

use outlast_journal::*;
use protocol::*;
use std::{
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

fn main() {
    let home = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_else(|| ".".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        idle_append(Path::new(&home)).await;
        many_writers(Path::new(&home)).await;
        replay(Path::new(&home)).await;
        lists(Path::new(&home)).await;
    });
}

fn verdict(holds: bool) -> &'static str {
    if holds { "ok" } else { "MISSED" }
}

fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

fn open(dir: &Path) -> Journal {
    Journal::open(Options { dir: dir.to_owned(), reserve_bytes: 0, low_water_bytes: 0 }).unwrap()
}

fn new_session() -> NewSession {
    let id = SessionId::new();
    NewSession {
        id,
        tenant: Tenant::default_tenant(),
        kind: SessionKind::Agent,
        place: PlaceKind::Host,
        sandbox: id.to_string(),
        agent: Some(AgentName::new("demo").unwrap()),
        agent_version: Some(1),
        alias: None,
        created_at: Timestamp::now(),
        forked_from: None,
        spec: "{}".to_owned(),
    }
}

fn event(bytes: usize) -> NewEvent {
    let body = Body::from(Notice { level: Level::Info, text: "x".repeat(bytes) });
    NewEvent::new(Actor::Agent, body.kind(), body.encode().unwrap())
}

fn one(bytes: usize) -> Append {
    Append { at: Timestamp::now(), events: vec![event(bytes)], ..Append::default() }
}

async fn durable(writer: &Writer, seq: Seq) {
    let mut durable = writer.durable();
    let state = durable.wait_for(|state| !matches!(state, Durable::Upto(upto) if *upto < seq)).await.unwrap();
    assert!(matches!(*state, Durable::Upto(_)), "{state:?}");
}

/// The floor and the journal take turns, so that both meet the same disk.
async fn idle_append(home: &Path) {
    let dir = tempfile::tempdir_in(home).unwrap();
    let mut raw = std::fs::File::create(dir.path().join("raw")).unwrap();
    let journal = open(&dir.path().join("data"));
    let mut writer = journal.begin(new_session());
    let (mut floor, mut times) = (Vec::new(), Vec::new());
    for _ in 0..1_000 {
        let start = Instant::now();
        raw.write_all(&[7; 200]).unwrap();
        raw.sync_data().unwrap();
        floor.push(start.elapsed());
        let append = one(150);
        let start = Instant::now();
        let seq = writer.append(append).unwrap();
        durable(&writer, seq).await;
        times.push(start.elapsed());
    }
    let (floor, typical, slow) = (p50(floor), p50(times.clone()), p99(times));
    let ratio = typical.as_secs_f64() / floor.as_secs_f64();
    let holds = verdict(ratio <= 2.5);
    println!("floor: 200-byte append + fdatasync            p50 {floor:>9.1?}");
    println!(
        "one durable append, idle                      p50 {typical:>9.1?}  p99 {slow:.1?}  {ratio:.2} x floor (<= 2.5) {holds}"
    );
    journal.close().await;
}

/// 64 writers with some events in flight each, against one writer that waits for every event.
async fn many_writers(home: &Path) {
    const WRITERS: usize = 64;
    const EVENTS: u64 = 2_000;
    let dir = tempfile::tempdir_in(home).unwrap();
    let journal = open(dir.path());
    let mut writer = journal.begin(new_session());
    let start = Instant::now();
    for _ in 0..500 {
        let seq = writer.append(one(1_400)).unwrap();
        durable(&writer, seq).await;
    }
    let alone = 500.0 / start.elapsed().as_secs_f64();
    for window in [1, 16] {
        let start = Instant::now();
        let tasks: Vec<_> = (0..WRITERS)
            .map(|_| {
                let mut writer = journal.begin(new_session());
                tokio::spawn(async move {
                    for _ in 0..EVENTS {
                        let seq = writer.append(one(1_400)).unwrap();
                        durable(&writer, seq.saturating_sub(window - 1)).await;
                    }
                    durable(&writer, EVENTS).await;
                })
            })
            .collect();
        let mut longest_log = 0;
        for task in tasks {
            task.await.unwrap();
            let log = std::fs::metadata(dir.path().join("outlast.db-wal")).map_or(0, |file| file.len());
            longest_log = longest_log.max(log);
        }
        let rate = (WRITERS as u64 * EVENTS) as f64 / start.elapsed().as_secs_f64();
        let holds = verdict(rate >= 25_000.0 && rate >= 5.0 * alone);
        println!(
            "64 writers, 1.4 KB, {window:>2} in flight each        {rate:>8.0}/s  {:.1} x one at a time (>= 25,000/s, >= 5 x) {holds}; log <= {} MB",
            rate / alone,
            longest_log / 1_000_000
        );
    }
    println!("   {:?}", journal.figures());
    journal.close().await;
}

async fn replay(home: &Path) {
    const EVENTS: usize = 200_000;
    let dir = tempfile::tempdir_in(home).unwrap();
    let journal = open(dir.path());
    for bytes in [200, 1_400] {
        let mut writer = journal.begin(new_session());
        for _ in 0..EVENTS / 1_000 {
            let events = (0..1_000).map(|_| event(bytes)).collect();
            let seq = writer.append(Append { at: Timestamp::now(), events, ..Append::default() }).unwrap();
            durable(&writer, seq).await;
        }
        let session = writer.session();
        let start = Instant::now();
        let mut follower = journal.follow(session, 0);
        let mut seen = 0;
        while seen < EVENTS {
            seen += follower.next().await.unwrap().events.len();
        }
        let rate = EVENTS as f64 / start.elapsed().as_secs_f64();
        println!(
            "replay, {bytes:>4} bytes                            {rate:>8.0}/s (>= 200,000/s) {}",
            verdict(rate >= 200_000.0)
        );
        let start = Instant::now();
        for after in (0..10_000).step_by(100) {
            assert_eq!(journal.read(session, after, 100).await.unwrap().events.len(), 100);
        }
        let time = start.elapsed();
        println!(
            "page-through of 10,000 events, 100 a page         {time:>9.1?} (<= 100 ms) {}",
            verdict(time <= Duration::from_millis(100))
        );
    }
    journal.close().await;
}

async fn lists(home: &Path) {
    const MANY: usize = 100_000;
    let dir = tempfile::tempdir_in(home).unwrap();
    let journal = open(dir.path());
    let mut made = 0;
    let mut few = Duration::ZERO;
    for count in [100, MANY] {
        while made < count {
            let mut writers: Vec<_> = (0..100).map(|_| journal.begin(new_session())).collect();
            for writer in &mut writers {
                writer.append(one(200)).unwrap();
            }
            for writer in &writers {
                durable(writer, 1).await;
            }
            made += writers.len();
        }
        let time = list_page(&journal).await;
        if count == MANY {
            let ratio = time.as_secs_f64() / few.as_secs_f64();
            let holds = verdict(time <= Duration::from_millis(2) && ratio <= 1.5);
            println!(
                "list page of 50 at 100,000 sessions           p50 {time:>9.1?}  {ratio:.2} x of 100 sessions (<= 2 ms, <= 1.5 x) {holds}"
            );
        } else {
            few = time;
        }
    }
    journal.close().await;
    drop(journal);
    let start = Instant::now();
    let journal = open(dir.path());
    let time = start.elapsed();
    println!(
        "open at 100,000 sessions                          {time:>9.1?} (<= 50 ms) {}",
        verdict(time <= Duration::from_millis(50))
    );
    let start = Instant::now();
    assert!(journal.live_sessions().await.unwrap().is_empty());
    println!("live sessions at 100,000                          {:>9.1?}", start.elapsed());
    journal.close().await;
}

async fn list_page(journal: &Journal) -> Duration {
    let query = SessionQuery {
        tenant: Tenant::default_tenant(),
        agent: None,
        status: None,
        kind: Some(SessionKind::Agent),
        limit: Some(50),
        cursor: None,
    };
    let mut times = Vec::new();
    for _ in 0..500 {
        let start = Instant::now();
        assert_eq!(journal.sessions(query.clone()).await.unwrap().sessions.len(), 50);
        times.push(start.elapsed());
    }
    p50(times)
}
