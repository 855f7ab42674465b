//! The crash tests of the suite. `cargo xtask soak` runs the same code for longer.

use crate::kit::*;
use serde_json::{Value, json};
use std::sync::Arc;
use testkit::{
    Rng,
    crash::{self, Cut, Plan},
    power::{Rig, Unsynced},
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
    if rig("crash::power_cuts_lose_nothing").is_none() {
        return;
    }
    let summary = crash::run(&plan(POWER_CUTS, Cut::Power)).await.unwrap();
    eprintln!("{summary}");
    assert!(summary.turns > 0, "the test did not test: {summary}");
}

/// The rig, or a note that this machine has none.
fn rig(test: &str) -> Option<Arc<Rig>> {
    match Rig::new() {
        Ok(rig) => Some(Arc::new(rig)),
        Err(error) => {
            skip(test, &format!("power loss cannot be played here: {error:#}"));
            None
        }
    }
}

/// What a caller was told of agents, keys and credentials is on disk, too.
#[tokio::test]
async fn what_was_deployed_and_made_survives_a_power_cut() {
    let Some(rig) = rig("crash::what_was_deployed_and_made_survives_a_power_cut") else { return };
    let mut server = Setup::new(PROGRAM).rig(rig.clone()).start().await.unwrap();
    let http = server.http().unwrap();
    let key = server.key().unwrap();
    let program = Value::String("outlast".to_owned());
    let files = json!({"name": "mine", "files": [
        {"path": "agent.toml", "content": format!("command = {program}\nargs = [\"demo-agent\"]\n")},
        {"path": "notes/deep/a.txt", "content": "kept"},
    ]});
    http.post("/api/agents", &files).await.unwrap().expect(201).unwrap();
    let made = http.post("/api/api-keys", &json!({"scope": "write"})).await.unwrap().expect(201).unwrap();
    let credential = json!({"type": "custom", "env": {"A_TOKEN": "a-secret-value"}});
    let credential = http.post("/api/credentials", &credential).await.unwrap().expect(201).unwrap();
    server.kill9().unwrap();
    rig.cut(server.data(), Unsynced::Lost, &mut Rng::new(SEED)).unwrap();

    server.restart().await.unwrap();
    assert_eq!(server.key().unwrap(), key, "the first key's file");
    let http = http.with_key(made["key"].as_str());
    for agent in ["demo", "mine"] {
        let id =
            session_of(&http, &json!({"agent": agent, "credentialId": credential["credential"]["id"]})).await;
        if agent == "mine" {
            assert!(text_of(&say(&http, &id, "cat notes/deep/a.txt").await).contains("kept"));
        }
    }
}
