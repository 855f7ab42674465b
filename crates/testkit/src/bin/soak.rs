//! The crash test for long: `soak --program PATH [--kills N] [--seed N] [--sessions N] [--power]`, and many
//! shells on one server with `--leaks N`; usually through `cargo xtask soak`. Prints the seed first, so that a failure can be played again.
#![allow(clippy::print_stdout, reason = "a soak says how it goes")]

use anyhow::{Context as _, Result, bail};
use std::{path::PathBuf, time::UNIX_EPOCH};
use testkit::{
    crash::{self, Cut, Plan},
    leaks,
};

const KILLS: u32 = 5_000;
const SESSIONS: usize = 4;

fn main() -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a seed nobody chose")]
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut plan = Plan {
        program: PathBuf::from("target/debug/outlast"),
        kills: KILLS,
        seed: now,
        sessions: SESSIONS,
        cut: Cut::Process,
        say_every: 100,
    };
    let mut shells = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--program" => plan.program = value()?.into(),
            "--kills" => plan.kills = value()?.parse()?,
            "--seed" => plan.seed = value()?.parse()?,
            "--sessions" => plan.sessions = value()?.parse()?,
            "--leaks" => shells = Some(value()?.parse()?),
            "--power" => plan.cut = Cut::Power,
            other => {
                bail!("unknown option {other}; options: --program --kills --seed --sessions --power --leaks")
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(sessions) = shells {
        let plan = leaks::Plan { program: plan.program, sessions, say_every: 500 };
        println!("{}", runtime.block_on(leaks::run(&plan))?);
        return Ok(());
    }
    println!("seed {}, {} kills, {:?}", plan.seed, plan.kills, plan.cut);
    println!("{}", runtime.block_on(crash::run(&plan))?);
    Ok(())
}
