//! Followers that start anywhere, lag, are cancelled and come back: each sees exactly the journal.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that breaks should stop; clippy knows helpers of tests only inside test functions"
)]

mod support;

use outlast_journal::*;
use proptest::prelude::*;
use protocol::*;
use support::*;

#[derive(Debug, Clone)]
enum Step {
    /// One append of so many events, without waiting.
    Append(u64),
    /// Appends that each become a batch of their own.
    Trickle(u64),
    Large,
    /// A follower from somewhere in what is there.
    Start(u16),
    /// A follower of what it has recorded itself, from a seat that it took before.
    Sit(u64),
    /// One batch for one of the followers.
    Advance(u8),
    /// A wait that is given up.
    Cancel(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1u64..40).prop_map(Step::Append),
        2 => (1u64..100).prop_map(Step::Trickle),
        1 => Just(Step::Large),
        3 => any::<u16>().prop_map(Step::Start),
        2 => (1u64..4).prop_map(Step::Sit),
        6 => any::<u8>().prop_map(Step::Advance),
        3 => any::<u8>().prop_map(Step::Cancel),
    ];
    proptest::collection::vec(step, 1..60)
}

struct Watcher {
    follower: Follower,
    next: u64,
}

impl Watcher {
    fn take(&mut self, batch: &Batch) {
        assert!(!batch.events.is_empty());
        for event in &batch.events {
            assert_eq!(event.seq, self.next, "a gap or a double");
            self.next += 1;
        }
    }
}

async fn run(steps: Vec<Step>) {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    let session = writer.session();
    let mut watchers: Vec<Watcher> = Vec::new();
    for step in steps {
        let last = writer.last_seq();
        match step {
            Step::Append(count) => {
                writer.append(notes(last + 1..=last + count)).unwrap();
            }
            Step::Trickle(count) => {
                for n in last + 1..=last + count {
                    writer.append(notes(n..=n)).unwrap();
                    settled(&writer).await;
                }
            }
            Step::Large => {
                writer.append(append(vec![large(limits::INLINE_BODY_BYTES + 1)])).unwrap();
            }
            Step::Start(at) => {
                let after = u64::from(at) % (last + 1);
                watchers.push(Watcher { follower: journal.follow(session, after), next: after + 1 });
            }
            Step::Sit(count) => {
                let seat = journal.seat(session);
                writer.append(notes(last + 1..=last + count)).unwrap();
                watchers.push(Watcher { follower: seat.follow(last), next: last + 1 });
            }
            Step::Advance(who) => {
                let count = watchers.len().max(1);
                if let Some(watcher) = watchers.get_mut(usize::from(who) % count)
                    && watcher.next <= last
                {
                    let batch = watcher.follower.next().await.unwrap();
                    watcher.take(&batch);
                }
            }
            Step::Cancel(who) => {
                let count = watchers.len().max(1);
                if let Some(watcher) = watchers.get_mut(usize::from(who) % count) {
                    let batch = tokio::select! {
                        biased;
                        batch = watcher.follower.next() => Some(batch.unwrap()),
                        () = tokio::task::yield_now() => None,
                    };
                    if let Some(batch) = batch {
                        watcher.take(&batch);
                    }
                }
            }
        }
    }
    for watcher in &mut watchers {
        while watcher.next <= writer.last_seq() {
            let batch = watcher.follower.next().await.unwrap();
            watcher.take(&batch);
        }
        assert_eq!(watcher.next, writer.last_seq() + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_follower_sees_exactly_the_journal(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_followers_of_a_running_writer_see_everything() {
    const EVENTS: u64 = 3_000;
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 1).await;
    let session = writer.session();
    let followers: Vec<_> = (0..50)
        .map(|n| {
            let mut watcher = Watcher { follower: journal.follow(session, 0), next: 1 };
            tokio::spawn(async move {
                while watcher.next <= EVENTS {
                    let batch = watcher.follower.next().await.unwrap();
                    watcher.take(&batch);
                    // Some are slow.
                    for _ in 0..n % 7 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    let mut n = 1;
    while n < EVENTS {
        n = writer.append(notes(n + 1..=(n + 1 + n % 5).min(EVENTS))).unwrap();
        if n.is_multiple_of(3) {
            settled(&writer).await;
        }
    }
    for follower in followers {
        follower.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_beyond_the_end_waits_for_what_comes_after_it() {
    let store = Store::new();
    let journal = store.open();
    let mut writer = session_with(&journal, 2).await;
    let mut follower = journal.follow(writer.session(), 5);
    writer.append(notes(3..=4)).unwrap();
    settled(&writer).await;
    writer.append(notes(5..=8)).unwrap();
    let batch = follower.next().await.unwrap();
    assert_eq!(batch.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [6, 7, 8]);
}
