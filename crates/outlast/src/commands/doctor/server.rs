//! The running server, if there is one: whether it answers, and whether the key works.

use super::{Finding, Verdict};
use crate::{config::Config, exit::Failure, reach, running::Running};
use client::Client;

pub(super) async fn server(config: &Config) -> Vec<Finding> {
    let url = reach::url(config);
    // Health needs no key, so a broken key does not hide a running server.
    let health = match Client::new(&url, "") {
        Ok(client) => client.health().await,
        Err(error) => Err(error),
    };
    let health = match health {
        Ok(health) => health,
        Err(error) => {
            let stale = Running::read(&config.data)
                .filter(|running| config.url.is_none() && running.url == url)
                .map(|running| format!(" (process {} said it listens there and is gone)", running.pid))
                .unwrap_or_default();
            return vec![Finding::new("server", Verdict::Warning, format!("{error}{stale}"))];
        }
    };
    let ours = env!("CARGO_PKG_VERSION");
    let mut findings = vec![match (health.version == ours, health.status.as_str()) {
        (true, "ok") => Finding::new(
            "server",
            Verdict::Good,
            format!("{url}, version {}, {} live sessions", health.version, health.active_sessions),
        ),
        (false, "ok") => Finding::new(
            "server",
            Verdict::Warning,
            format!("{url} has version {}, this program {ours}; use the same", health.version),
        ),
        (_, status) => Finding::new(
            "server",
            Verdict::Fault,
            format!("{url} says {status}: the disk leaves no room for new work; make room"),
        ),
    }];
    findings.push(match reach::client(config) {
        Ok(client) => match client.agents().await {
            Ok(agents) => Finding::new("key", Verdict::Good, format!("works; {} agents", agents.len())),
            Err(error) => {
                Finding::new("key", Verdict::Fault, Failure::from(error).message().unwrap_or_default())
            }
        },
        Err(failure) => Finding::new("key", Verdict::Fault, failure.to_string()),
    });
    findings
}
