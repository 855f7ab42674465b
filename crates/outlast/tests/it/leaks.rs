//! Shells leave nothing behind but their record. `cargo xtask soak --leaks N` runs the same code for longer.

use crate::kit::*;
use testkit::leaks::{self, Plan};

const SESSIONS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_shells_leave_nothing_behind() {
    let plan = Plan { program: PROGRAM.into(), sessions: SESSIONS, say_every: 0 };
    let summary = leaks::run(&plan).await.unwrap();
    eprintln!("{summary}");
}
