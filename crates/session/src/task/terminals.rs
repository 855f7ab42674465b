//! Commands that the occupant started through its client: each a process in the session's own room, its newest output
//! kept, its end waited for. They end with the occupant that asked for them.

use crate::{Shared, faults};
use journal::NewSession;
use occupant::{Done, TerminalExit};
use place::{Exit, Process, Signal, Spawn, Spawned, Terms};
use protocol::{Code, Fault};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

#[derive(Debug, Clone, Default)]
pub(super) struct Terminals {
    open: Arc<Mutex<HashMap<String, Arc<Terminal>>>>,
}

#[derive(Debug)]
struct Terminal {
    output: Arc<Mutex<Newest>>,
    exit: watch::Receiver<Option<TerminalExit>>,
    kill: Arc<Notify>,
    reader: JoinHandle<()>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The process is the reader's, and ends with it.
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
        let most = usize::try_from(asked.output_bytes).unwrap_or(usize::MAX);
        let output = Arc::new(Mutex::new(Newest { bytes: VecDeque::new(), most, cut: false }));
        let (told, exit) = watch::channel(None);
        let kill = Arc::new(Notify::new());
        let reader = tokio::spawn(follow(spawned, Arc::clone(&output), told, Arc::clone(&kill)));
        let id = format!("terminal-{}", uuid::Uuid::now_v7());
        self.lock().insert(id.clone(), Arc::new(Terminal { output, exit, kill, reader }));
        Ok(id)
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

/// Ends the command when nobody follows it any more.
struct Followed(Spawned);

impl Drop for Followed {
    fn drop(&mut self) {
        self.0.process.handle.kill();
    }
}

async fn follow(
    spawned: Spawned,
    output: Arc<Mutex<Newest>>,
    told: watch::Sender<Option<TerminalExit>>,
    kill: Arc<Notify>,
) {
    let mut followed = Followed(spawned);
    let Process { stdin, stdout, stderr, handle } = &mut followed.0.process;
    stdin.close();
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
                    stdout.ack(chunk.offset + chunk.bytes.len() as u64);
                }
                None => out_open = false,
            },
            chunk = stderr.next(), if err_open => match chunk {
                Some(chunk) => {
                    output.lock().unwrap_or_else(PoisonError::into_inner).push(&chunk.bytes);
                    stderr.ack(chunk.offset + chunk.bytes.len() as u64);
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
    // Its output can still be read; the process itself is gone.
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
