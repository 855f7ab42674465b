//! Figures, floors and targets: measured, printed, judged.

use anyhow::{Context as _, Result, ensure};
use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

/// What a figure is held to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// Printed for the record.
    None,
}

#[derive(Debug)]
pub(crate) struct Report {
    filter: String,
    misses: Vec<String>,
}

impl Report {
    pub(crate) fn new(filter: String) -> Self {
        Self { filter, misses: vec![] }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || name.contains(&self.filter)
    }

    pub(crate) fn line(&mut self, name: &str, value: f64, unit: &str, target: Target) {
        let (verdict, wanted) = match target {
            Target::AtMost(limit) => (value <= limit, format!("target ≤ {} {unit}", short(limit))),
            Target::AtLeast(limit) => (value >= limit, format!("target ≥ {} {unit}", short(limit))),
            Target::None => {
                println!("      {name:<58} {:>12} {unit}", short(value));
                return;
            }
        };
        let word = if verdict { "PASS" } else { "MISS" };
        println!("{word}  {name:<58} {:>12} {unit:<9} {wanted}", short(value));
        if !verdict {
            self.misses.push(name.to_owned());
        }
    }

    pub(crate) fn finish(self) -> Result<()> {
        ensure!(self.misses.is_empty(), "{} missed: {}", self.misses.len(), self.misses.join("; "));
        Ok(())
    }
}

fn short(value: f64) -> String {
    if value.abs() >= 1_000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// The middle of the samples.
pub(crate) fn p50(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

/// The floor of everything durable: 200 bytes appended and synced on the same disk. Sampled between the
/// measurements it is held against, because a shared disk is not equally fast at all times.
#[derive(Debug)]
pub(crate) struct Floor {
    file: File,
    samples: Vec<Duration>,
}

impl Floor {
    pub(crate) fn on(folder: &Path) -> Result<Self> {
        Ok(Self { file: File::create(folder.join("floor"))?, samples: vec![] })
    }

    pub(crate) fn sample(&mut self) -> Result<()> {
        let began = Instant::now();
        self.file.write_all(&[7; 200])?;
        self.file.sync_data()?;
        self.samples.push(began.elapsed());
        Ok(())
    }

    pub(crate) fn p50(self) -> Duration {
        p50(self.samples)
    }
}

/// A process's memory, in MB: what it has now, and the most it ever had.
pub(crate) fn memory(pid: u32) -> Result<(f64, f64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Result<f64> {
        let line = text.lines().find(|line| line.starts_with(name)).with_context(|| format!("no {name}"))?;
        let kib: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok(kib / 1024.0)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}
