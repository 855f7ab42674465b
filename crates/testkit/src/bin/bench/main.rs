//! The whole server's numbers, each beside a floor measured in the same run and the target it is held to.
//!
//! `bench [--program PATH] [--peers] [FILTER]`, usually through `cargo xtask bench`. It starts the release binary on a
//! folder of its own and talks to it over loopback with the kit's own reader; a figure that misses its target
//! says so, and the run then ends with a failure.
#![allow(clippy::print_stdout, reason = "figures are printed")]

mod afar;
mod figures;
mod followers;
mod hosted;
mod latency;
mod sandbox;
mod seed;
mod shell;
mod stored;

use anyhow::{Context as _, Result, ensure};
use figures::Report;
use shell::Peers;
use std::path::PathBuf;

fn main() -> Result<()> {
    let mut program = PathBuf::from("target/release/outlast");
    let mut filter = String::new();
    let mut peers = Peers::Left;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--program" => program = args.next().context("--program needs a path")?.into(),
            "--peers" => peers = Peers::Measured,
            // cargo bench passes it to every benchmark.
            "--bench" => {}
            other if other.starts_with('-') => anyhow::bail!("unknown option {other}"),
            other => filter = other.to_owned(),
        }
    }
    ensure!(program.exists(), "{} is missing: cargo build --release", program.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(all(Report::new(filter), program, peers))
}

async fn all(mut report: Report, program: PathBuf, peers: Peers) -> Result<()> {
    if report.wants("delivery") {
        latency::delivery(&mut report, &program).await?;
    }
    if report.wants("turn") {
        latency::turn(&mut report, &program).await?;
    }
    if report.wants("hosted-turn") {
        hosted::turn(&mut report, &program).await?;
    }
    if report.wants("hosted-flood") {
        hosted::flood(&mut report, &program).await?;
    }
    if report.wants("hosted-wake") {
        hosted::wake(&mut report, &program).await?;
    }
    if report.wants("hosted-fork") {
        hosted::fork(&mut report, &program).await?;
    }
    if report.wants("hosted-idle") {
        hosted::idle(&mut report, &program).await?;
    }
    if report.wants("followers") {
        followers::measure(&mut report, &program).await?;
    }
    if report.wants("replay") {
        stored::replay(&mut report, &program).await?;
    }
    if report.wants("stored") {
        stored::sessions(&mut report, &program).await?;
    }
    if report.wants("sandbox-made") {
        sandbox::made(&mut report, &program).await?;
    }
    if report.wants("sandbox-moved") {
        sandbox::moved(&mut report, &program).await?;
    }
    if report.wants("sandbox-crowd") {
        sandbox::crowd(&mut report, &program).await?;
    }
    if report.wants("shell-one") {
        shell::one(&mut report, &program, peers).await?;
    }
    if report.wants("shell-flood") {
        shell::flood(&mut report, &program).await?;
    }
    if report.wants("shell-crowd") {
        shell::crowd(&mut report, &program).await?;
    }
    if report.wants("shell-ssh") {
        afar::ssh(&mut report, &program).await?;
    }
    if report.wants("shell-docker") {
        afar::docker(&mut report, &program).await?;
    }
    report.finish()
}
