//! Commands that the occupant started through its client: each a process in the session's own room, its newest output
//! kept, its end waited for. They end with the occupant that asked for them, and like it they outlive the server: their
//! ties are written down, and the newest of their output stays with the keeper until the next server reads it again.

use crate::{Shared, faults};
use journal::NewSession;
use occupant::{Done, TerminalExit};
use place::{Exit, Hold, Process, Signal, Spawn, TakenUp, Terms, Tie};
use protocol::{Code, Fault};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

/// Terminals of one occupant.
const TERMINALS: usize = 16;
/// How long an ended command's output is still waited for: a child of its own may hold the pipe.
const DRAIN: Duration = Duration::from_millis(200);

/// How the session's processes are started, for one more of them.
#[derive(Debug)]
pub(super) struct Furnished {
    pub(super) env: BTreeMap<String, String>,
    pub(super) terms: Terms,
}

/// What leads to a terminal again, written down with the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptTerminal {
    id: String,
    pub(crate) tie: Tie,
    output_bytes: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Terminals {
    open: Arc<Mutex<HashMap<String, Arc<Terminal>>>>,
}

#[derive(Debug)]
struct Terminal {
    kept: KeptTerminal,
    output: Arc<Mutex<Newest>>,
    exit: watch::Receiver<Option<TerminalExit>>,
    kill: Arc<Notify>,
    /// The process is to go on when its reader ends.
    left: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The process is the reader's, and ends with it, unless it was left.
        self.reader.abort();
    }
}

/// The newest bytes of what a command wrote.
#[derive(Debug)]
struct Newest {
    bytes: VecDeque<u8>,
    most: usize,
    cut: bool,
}

impl Newest {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(self.most);
        self.cut |= over > 0;
        self.bytes.drain(..over);
    }

    /// As text; one that was cut begins at a whole sign.
    fn text(&self) -> String {
        let (front, back) = self.bytes.as_slices();
        let bytes = [front, back].concat();
        let begin = if self.cut { bytes.iter().take_while(|byte| **byte & 0xc0 == 0x80).count() } else { 0 };
        String::from_utf8_lossy(&bytes[begin..]).into_owned()
    }
}

impl Terminals {
    pub(super) async fn open(
        &self,
        shared: &Shared,
        fixed: &NewSession,
        room: &Furnished,
        asked: occupant::Terminal,
    ) -> Result<String, Fault> {
        if self.lock().len() >= TERMINALS {
            return Err(Fault::new(Code::Busy, format!("{TERMINALS} terminals are open; release one first")));
        }
        let mut env = room.env.clone();
        env.extend(asked.env);
        let spawn = Spawn { program: asked.command, args: asked.args, env, cwd: asked.cwd };
        let spawned = shared.place.spawn(&fixed.sandbox, spawn, room.terms.clone()).await;
        let spawned = spawned.map_err(|error| faults::spawn(&error))?;
        // What waits for its end hears of it; nothing is typed into it.
        spawned.process.stdin.close();
        let id = format!("terminal-{}", uuid::Uuid::now_v7());
        let output_bytes = usize::try_from(asked.output_bytes).unwrap_or(usize::MAX);
        let kept = KeptTerminal { id: id.clone(), tie: spawned.hold.tie().clone(), output_bytes };
        self.follow(kept, spawned.process, spawned.hold);
        Ok(id)
    }

    /// Goes on with one that outlived its server.
    pub(super) fn adopt(&self, kept: KeptTerminal, found: TakenUp) {
        self.follow(kept, found.process, found.hold);
    }

    fn follow(&self, kept: KeptTerminal, process: Process, hold: Hold) {
        let most = kept.output_bytes;
        let output = Arc::new(Mutex::new(Newest { bytes: VecDeque::new(), most, cut: false }));
        let (told, exit) = watch::channel(None);
        let (kill, left) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let followed = Followed { process, hold: Some(hold), left: Arc::clone(&left) };
        let reader = tokio::spawn(follow(followed, Arc::clone(&output), told, Arc::clone(&kill)));
        let id = kept.id.clone();
        self.lock().insert(id, Arc::new(Terminal { kept, output, exit, kill, left, reader }));
    }

    /// What the next server needs to go on with them.
    pub(super) fn kept(&self) -> Vec<KeptTerminal> {
        self.lock().values().map(|terminal| terminal.kept.clone()).collect()
    }

    /// Lets the commands go on without this server.
    pub(super) fn leave(&self) {
        for (_, terminal) in self.lock().drain() {
            terminal.left.store(true, Ordering::Release);
        }
    }

    pub(super) fn read(&self, id: &str) -> Result<Done, Fault> {
        let terminal = self.find(id)?;
        let exit = terminal.exit.borrow().clone();
        let output = terminal.output.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Done::Output { text: output.text(), cut: output.cut, exit })
    }

    pub(super) async fn wait(&self, id: &str) -> Result<TerminalExit, Fault> {
        let mut exit = self.find(id)?.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        ended.ok_or_else(|| Fault::invalid("the terminal was released before its command ended"))
    }

    pub(super) fn kill(&self, id: &str) -> Result<(), Fault> {
        self.find(id)?.kill.notify_one();
        Ok(())
    }

    pub(super) fn close(&self, id: &str) -> Result<(), Fault> {
        self.lock().remove(id).map(drop).ok_or_else(unknown)
    }

    fn find(&self, id: &str) -> Result<Arc<Terminal>, Fault> {
        self.lock().get(id).cloned().ok_or_else(unknown)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Terminal>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown() -> Fault {
    Fault::invalid("there is no such terminal; it may have been released")
}

/// Ends the command when nobody follows it any more, unless it is left to the next server.
struct Followed {
    process: Process,
    hold: Option<Hold>,
    left: Arc<AtomicBool>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        let hold = self.hold.take();
        if self.left.load(Ordering::Acquire) {
            return hold.map(Hold::leave).unwrap_or_default();
        }
        self.process.handle.kill();
    }
}

async fn follow(
    mut followed: Followed,
    output: Arc<Mutex<Newest>>,
    told: watch::Sender<Option<TerminalExit>>,
    kill: Arc<Notify>,
) {
    let Process { stdout, stderr, handle, .. } = &mut followed.process;
    // As much as is kept here stays with the keeper too.
    let most = output.lock().unwrap_or_else(PoisonError::into_inner).most as u64;
    let (mut out_open, mut err_open, mut exit) = (true, true, None::<Exit>);
    let mut drained =
        Box::pin(std::future::pending::<()>()) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
    loop {
        if exit.is_some() && !out_open && !err_open {
            break;
        }
        tokio::select! {
            chunk = stdout.next(), if out_open => match chunk {
                Some(chunk) => {
                    output.lock().unwrap_or_else(PoisonError::into_inner).push(&chunk.bytes);
                    stdout.ack((chunk.offset + chunk.bytes.len() as u64).saturating_sub(most));
                }
                None => out_open = false,
            },
            chunk = stderr.next(), if err_open => match chunk {
                Some(chunk) => {
                    output.lock().unwrap_or_else(PoisonError::into_inner).push(&chunk.bytes);
                    stderr.ack((chunk.offset + chunk.bytes.len() as u64).saturating_sub(most));
                }
                None => err_open = false,
            },
            ended = handle.wait(), if exit.is_none() => {
                exit = Some(ended);
                drained = Box::pin(tokio::time::sleep(DRAIN));
            }
            () = kill.notified() => handle.signal(Signal::Kill),
            () = &mut drained => break,
        }
    }
    let exit = exit.map(|exit| TerminalExit {
        exit_code: exit.code.and_then(|code| u32::try_from(code).ok()),
        signal: exit.signal.map(|signal| signal.to_string()),
    });
    told.send_replace(exit);
    // Its output can still be read, also by the next server: the keeper remembers it until it is released.
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_output_is_kept_at_whole_signs() {
        let mut newest = Newest { bytes: VecDeque::new(), most: 4, cut: false };
        newest.push("ab".as_bytes());
        assert_eq!((newest.text().as_str(), newest.cut), ("ab", false));
        newest.push("cäd".as_bytes());
        assert_eq!((newest.text().as_str(), newest.cut), ("cäd", true));
        newest.push(b"efg");
        assert_eq!(newest.text(), "defg");
        newest.push("äxy".as_bytes());
        newest.push(b"z");
        assert_eq!(newest.text(), "xyz", "half a sign is left out");
    }
}
