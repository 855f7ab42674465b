//! `backup`, `restore` and `audit verify`: they work on the data folder itself, with or without a server, through
//! the journal's own faces. Blocking work, done in place: nothing else runs in this process meanwhile.

use crate::{
    cli::AuditCommand,
    config::Config,
    exit::{Exit, Failure},
    reach,
    term::{Form, Term},
};
use journal::{Audit, Progress};
use protocol::SessionId;
use serde_json::json;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Between two words about progress.
const TICK: Duration = Duration::from_millis(200);

pub(crate) fn backup(config: &Config, term: &Term, to: &Path) -> Result<Exit, Failure> {
    let mut ticker = Ticker::new(term);
    // Before the journal is copied: what its copy names must still be there when the objects are.
    session::hold_snapshots(&config.data)
        .map_err(|error| Failure::Broken(format!("the snapshots cannot be read: {error}")))?;
    let result = journal::backup(&config.data, to, &mut |progress| ticker.tell(|| words(progress)));
    ticker.finish();
    result.map_err(|error| Failure::Broken(error.to_string()))?;
    session::copy_agents(&config.data, to).map_err(|error| {
        Failure::Broken(format!("the agents could not be copied to {}: {error}", to.display()))
    })?;
    copy_snapshots(&config.data, to, to)?;
    match term.form {
        Form::Json => term.json(&json!({ "data": config.data, "backup": to }))?,
        Form::Text => {
            term.say(&format!("backed up to {}", to.display()))?;
            term.note(
                "it holds snapshots, but neither live workspaces nor master.key; keep that key elsewhere",
            );
        }
    }
    Ok(Exit::Done)
}

pub(crate) fn restore(config: &Config, term: &Term, from: &Path) -> Result<Exit, Failure> {
    let mut ticker = Ticker::new(term);
    let result = journal::restore(from, &config.data, &mut |progress| ticker.tell(|| words(progress)));
    ticker.finish();
    result.map_err(|error| Failure::Broken(error.to_string()))?;
    session::copy_agents(from, &config.data).map_err(|error| {
        Failure::Broken(format!("the agents could not be copied from {}: {error}", from.display()))
    })?;
    copy_snapshots(from, &config.data, from)?;
    match term.form {
        Form::Json => term.json(&json!({ "backup": from, "data": config.data }))?,
        Form::Text => {
            term.say(&format!("restored to {}", config.data.display()))?;
            term.note("put master.key back into the folder too, if credentials were stored");
        }
    }
    Ok(Exit::Done)
}

/// Copies the snapshots that the journal in `named_by` names.
fn copy_snapshots(from: &Path, to: &Path, named_by: &Path) -> Result<(), Failure> {
    let ids = journal::snapshots_in(named_by).map_err(|error| Failure::Broken(error.to_string()))?;
    session::copy_snapshots(from, to, &ids).map_err(|error| {
        Failure::Broken(format!("the snapshots could not be copied to {}: {error}; try again", to.display()))
    })
}

pub(crate) async fn audit(config: &Config, term: &Term, command: &AuditCommand) -> Result<Exit, Failure> {
    let AuditCommand::Verify { session } = command;
    let session = match session {
        Some(typed) => Some(named(config, typed).await?),
        None => None,
    };
    let mut ticker = Ticker::new(term);
    let audit = journal::verify(&config.data, session, &mut |audit| {
        ticker.tell(|| format!("{} sessions, {} events checked", audit.sessions, audit.events));
    });
    ticker.finish();
    report(term, &audit.map_err(|error| Failure::Broken(error.to_string()))?)
}

/// A whole id needs no server; anything shorter does.
async fn named(config: &Config, typed: &str) -> Result<SessionId, Failure> {
    match typed.parse() {
        Ok(id) => Ok(id),
        Err(_) => reach::session(&reach::client(config)?, typed).await,
    }
}

fn report(term: &Term, audit: &Audit) -> Result<Exit, Failure> {
    let breaks = audit.breaks.len() as u64 + audit.more_breaks;
    match term.form {
        Form::Json => term.json(&json!({
            "whole": audit.is_whole(),
            "sessions": audit.sessions,
            "events": audit.events,
            "tombstones": audit.tombstones,
            "erased": audit.erased,
            "breakCount": breaks,
            "breaks": audit.breaks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }))?,
        Form::Text => {
            for flaw in &audit.breaks {
                term.say(&flaw.to_string())?;
            }
            let seen = format!(
                "{} sessions, {} events, {} removed sessions, {} erased bodies",
                audit.sessions, audit.events, audit.tombstones, audit.erased
            );
            if audit.is_whole() {
                term.say(&format!("the record is whole: {seen}"))?;
            } else {
                term.say(&format!("the record was changed in {breaks} places: {seen}"))?;
                term.note("keep the folder as it is, and compare it with a backup (`outlast restore` into another folder)");
            }
        }
    }
    Ok(if audit.is_whole() { Exit::Done } else { Exit::Broken })
}

fn words(progress: Progress) -> String {
    match progress {
        Progress::Verified { events } => format!("{events} events checked"),
        Progress::Pages { done, total } => format!("{done} of {total} pages"),
        Progress::Blobs { done, total } => format!("{done} of {total} large bodies"),
    }
}

/// A line on the terminal that changes as the work goes on.
struct Ticker<'a> {
    term: &'a Term,
    last: Option<Instant>,
}

impl<'a> Ticker<'a> {
    fn new(term: &'a Term) -> Self {
        Self { term, last: None }
    }

    fn tell(&mut self, words: impl FnOnce() -> String) {
        let due = self.last.is_none_or(|last| last.elapsed() >= TICK);
        if due && self.term.can_ask() {
            self.term.prompt(&format!("\r\x1b[K{}", words()));
            self.last = Some(Instant::now());
        }
    }

    fn finish(&self) {
        if self.last.is_some() {
            self.term.prompt("\r\x1b[K");
        }
    }
}
