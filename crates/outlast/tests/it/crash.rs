//! The crash tests of the suite. `cargo xtask soak` runs the same code for longer.

use crate::kit::*;
use testkit::{
    crash::{self, Cut, Plan},
    power::Rig,
};

const KILLS: u32 = 200;
const POWER_CUTS: u32 = 25;
/// A fixed seed: a failure in CI is the same failure at home.
const SEED: u64 = 20_261_115;

fn plan(kills: u32, cut: Cut) -> Plan {
    Plan { program: PROGRAM.into(), kills, seed: SEED, sessions: 4, cut, say_every: 50 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_kills_lose_nothing() {
    let summary = crash::run(&plan(KILLS, Cut::Process)).await.unwrap();
    eprintln!("{summary}");
    assert!(summary.turns > 0 && summary.resent > 0, "the test did not test: {summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cuts_lose_nothing() {
    if let Err(error) = Rig::new() {
        skip("crash::power_cuts_lose_nothing", &format!("power loss cannot be played here: {error:#}"));
        return;
    }
    let summary = crash::run(&plan(POWER_CUTS, Cut::Power)).await.unwrap();
    eprintln!("{summary}");
    assert!(summary.turns > 0, "the test did not test: {summary}");
}
