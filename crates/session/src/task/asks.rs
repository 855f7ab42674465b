//! What the occupant asks of its place: a transcript of the conversation, files, terminals. Done here, inside the
//! session's own place and beside its task, so that a slow disk or a long command holds nothing up. What a process asked
//! for ends with it.

use super::{KeptTerminal, Occupied, Task, terminals::Terminals};
use crate::{Shared, faults, policy::walls};
use journal::NewSession;
use occupant::{Ask, AskId, Done, Transcript};
use place::files::Files;
use protocol::{Event, Fault, limits};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::task::JoinSet;

/// Below home: where agents find what was said before they came.
const THREADS: &str = ".outlast/threads";
/// One file that an agent reads or writes through us.
const FILE_BYTES: usize = limits::LINE_BYTES / 4;

/// What is being done for the occupant.
#[derive(Debug, Default)]
pub(super) struct Asks {
    running: JoinSet<(AskId, Result<Done, Fault>)>,
    terminals: Terminals,
}

impl Asks {
    /// The next that is done; for ever when nothing is asked for. Cancel-safe.
    pub(super) async fn next(&mut self) -> (AskId, Result<Done, Fault>) {
        loop {
            match self.running.join_next().await {
                Some(Ok(done)) => return done,
                // It broke or was stopped: the occupant's own time-out is its answer.
                Some(Err(error)) => {
                    tracing::warn!(%error, "something asked for by an agent was not finished");
                }
                None => std::future::pending().await,
            }
        }
    }

    pub(super) fn kept_terminals(&self) -> Vec<KeptTerminal> {
        self.terminals.kept()
    }

    /// Terminals that outlived their server, for the occupant that did.
    pub(super) fn adopt(&mut self, found: Vec<(KeptTerminal, place::TakenUp)>) {
        for (kept, found) in found {
            self.terminals.adopt(kept, found);
        }
    }

    /// The occupant goes on without this server, and so do its terminals.
    pub(super) fn leave(&mut self) {
        self.terminals.leave();
    }

    /// The process that asked is gone.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Task {
    pub(super) fn start_ask(&mut self, id: AskId, ask: Ask) {
        let (shared, fixed) = (Arc::clone(&self.shared), self.fixed.clone());
        let terminals = self.asks.terminals.clone();
        let room = self.room.clone();
        self.asks.running.spawn(async move {
            let result = match ask {
                Ask::Transcript => transcript(&shared, &fixed).await.map(Done::Text),
                Ask::ReadFile { path, line, limit } => {
                    read(&shared, &fixed, &path, line, limit).await.map(Done::Text)
                }
                Ask::WriteFile { path, content } => {
                    write(&shared, &fixed, &path, &content).await.map(|()| Done::Nothing)
                }
                Ask::OpenTerminal(asked) => match room {
                    Some(room) => terminals.open(&shared, &fixed, &room, asked).await.map(Done::Text),
                    None => Err(Fault::invalid("no command can be started here now")),
                },
                Ask::ReadTerminal { terminal } => terminals.read(&terminal),
                Ask::AwaitTerminal { terminal } => terminals.wait(&terminal).await.map(Done::Exited),
                Ask::KillTerminal { terminal } => terminals.kill(&terminal).map(|()| Done::Nothing),
                Ask::CloseTerminal { terminal } => terminals.close(&terminal).map(|()| Done::Nothing),
            };
            (id, result)
        });
    }

    pub(super) fn on_asked(&mut self, id: AskId, result: Result<Done, Fault>) {
        let mut cx = self.cx();
        if let Occupied::Live(live) = &mut self.occupied {
            live.acp.done(id, result, &mut cx);
        }
        self.settle(cx);
    }
}

/// Writes the conversation so far into the agent's home; the path as the agent sees it.
async fn transcript(shared: &Shared, fixed: &NewSession) -> Result<String, Fault> {
    let mut transcript = Transcript::new(fixed.id);
    let mut cursor = 0;
    loop {
        let page = shared.journal.read(fixed.id, cursor, limits::PAGE_EVENTS).await;
        let page = match page {
            Ok(page) => page,
            // Retention has cut the front: what is left is told.
            Err(journal::ReadError::Expired { first_seq }) if first_seq > cursor + 1 => {
                cursor = first_seq - 1;
                continue;
            }
            Err(error) => return Err(faults::read(error)),
        };
        for event in &page.events {
            cursor = event.seq;
            // One that cannot be read is passed over: the rest is still worth having.
            if let Ok(body) = event.decode() {
                let (at, actor) = (event.at, event.actor.clone());
                transcript.hear(&Event { session: fixed.id, seq: event.seq, at, actor, body });
            }
        }
        if page.events.is_empty() || cursor >= page.last_seq {
            break;
        }
    }
    let path = format!("{THREADS}/{}.md", fixed.id);
    let written = shared.place.write_file(&fixed.sandbox, &path, transcript.markdown().as_bytes()).await;
    written.map_err(|error| faults::place(&error))?;
    let home = shared.place.home(&fixed.sandbox, walls(fixed.place));
    Ok(home.join(path).to_string_lossy().into_owned())
}

async fn read(
    shared: &Shared,
    fixed: &NewSession,
    path: &str,
    line: Option<u32>,
    limit: Option<u32>,
) -> Result<String, Fault> {
    let below = below_home(shared, fixed, path)?;
    let folder = shared.place.folder(&fixed.sandbox);
    let bytes = blocking(move || {
        let files = Files::open(&folder)?;
        files.read(&below, 0..FILE_BYTES as u64 + 1)
    })
    .await?
    .map_err(|error| Fault::invalid(error.to_string()))?;
    if bytes.len() > FILE_BYTES {
        return Err(Fault::invalid(format!("{path} is larger than {FILE_BYTES} bytes; read it with a tool")));
    }
    let text = String::from_utf8(bytes).map_err(|_| Fault::invalid(format!("{path} is not UTF-8 text")))?;
    Ok(lines(&text, line, limit))
}

/// Lines count from 1, and keep their ends.
fn lines(text: &str, line: Option<u32>, limit: Option<u32>) -> String {
    if line.is_none() && limit.is_none() {
        return text.to_owned();
    }
    let skip = line.unwrap_or(1).saturating_sub(1) as usize;
    let take = limit.map_or(usize::MAX, |limit| limit as usize);
    text.split_inclusive('\n').skip(skip).take(take).collect()
}

async fn write(shared: &Shared, fixed: &NewSession, path: &str, content: &str) -> Result<(), Fault> {
    if content.len() > FILE_BYTES {
        return Err(Fault::invalid(format!("{path} would be larger than {FILE_BYTES} bytes")));
    }
    let below = below_home(shared, fixed, path)?;
    let below = below.to_str().ok_or_else(|| Fault::invalid("the path is not UTF-8"))?;
    let written = shared.place.write_file(&fixed.sandbox, below, content.as_bytes()).await;
    written.map_err(|error| Fault::invalid(error.to_string()))
}

/// The path below the session's home. Nothing else of the machine is reached this way, whatever its rights.
fn below_home(shared: &Shared, fixed: &NewSession, path: &str) -> Result<PathBuf, Fault> {
    let home = shared.place.home(&fixed.sandbox, walls(fixed.place));
    let below = Path::new(path).strip_prefix(&home).map_err(|_| {
        Fault::invalid(format!("only files below {} can be reached through the client", home.display()))
    })?;
    Ok(below.to_owned())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(crate::spec::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_file_is_counted_in_lines() {
        let text = "one\ntwo\nthree";
        for (line, limit, expected) in [
            (None, None, text),
            (Some(1), None, text),
            (Some(2), None, "two\nthree"),
            (Some(2), Some(1), "two\n"),
            (None, Some(2), "one\ntwo\n"),
            (Some(9), None, ""),
            (Some(0), Some(0), ""),
        ] {
            assert_eq!(lines(text, line, limit), expected, "{line:?} {limit:?}");
        }
    }
}
