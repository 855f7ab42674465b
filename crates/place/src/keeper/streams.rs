//! The three faces of a kept process: output that is read on, input that arrives once, and a handle that outlives
//! nothing.

use super::{
    KeeperError,
    line::{Hold, Input, Line},
    signal_of,
};
use crate::{Chunk, Exit, STDIN_BYTES, Signal, StdinError};
use ::keeper::{
    codec::Blob,
    wire::{CHUNK_BYTES, InputRefusal, Part, Request},
};
use bytes::Bytes;
use protocol::Seq;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, task::JoinHandle};

/// How far the keeper may send ahead of what was read here.
const WINDOW: u64 = 512 * 1024;
/// How long to wait before an input is offered again to a keeper whose process does not read.
const AGAIN: Duration = Duration::from_millis(50);

/// A stream of a kept process.
#[derive(Debug)]
pub(crate) struct KeptOutput {
    line: Arc<Line>,
    hold: Hold,
    fd: u32,
    offset: u64,
    granted: u64,
}

impl KeptOutput {
    pub(crate) async fn follow(
        line: &Arc<Line>,
        hold: &Hold,
        fd: u32,
        from: u64,
    ) -> Result<Self, KeeperError> {
        let (process, granted) = (hold.process, from + WINDOW);
        line.done(|tag| Request::Subscribe { tag, process, fd, from, upto: granted }).await?;
        Ok(Self { line: Arc::clone(line), hold: hold.clone(), fd, offset: from, granted })
    }

    /// Cancel-safe: what was not returned stays.
    pub(crate) async fn next(&mut self) -> Option<Chunk> {
        let streams = Arc::clone(&self.hold.streams);
        let stream = streams.iter().find(|stream| stream.fd == self.fd)?;
        loop {
            let changed = stream.changed.notified();
            let (chunk, ended) = stream.take();
            if let Some(chunk) = chunk {
                self.offset = chunk.offset + chunk.bytes.len() as u64;
                self.grant();
                return Some(chunk);
            }
            if ended {
                return None;
            }
            changed.await;
        }
    }

    fn grant(&mut self) {
        if self.granted - self.offset <= WINDOW / 2 {
            self.granted = self.offset + WINDOW;
            let (process, fd, upto) = (self.hold.process, self.fd, self.granted);
            // A connection that is gone ends the stream, which the reader sees next.
            let _ = self.line.send(&Request::Want { process, fd, upto });
        }
    }

    pub(crate) fn ack(&self, upto: u64) {
        debug_assert!(upto <= self.offset, "acknowledged what was never read");
        let (process, fd) = (self.hold.process, self.fd);
        // What a lost connection does not acknowledge is acknowledged by the next server.
        let _ = self.line.send(&Request::Ack { process, fd, upto });
    }
}

/// The input of a kept process. A task sends one numbered input at a time and waits until it was taken, so that a
/// refused one never lets a later one overtake it.
#[derive(Debug)]
pub(crate) struct KeptInput {
    shared: Arc<Shared>,
    answers: Arc<Input>,
    sender: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Seq, Bytes)>,
    bytes: usize,
    closing: bool,
    closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptInput {
    pub(crate) fn new(line: Arc<Line>, process: u64, fd: u32) -> Self {
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Notify::new() });
        let answers = line.input(process, fd);
        let post = Post { shared: Arc::clone(&shared), line, answers: Arc::clone(&answers), process, fd };
        Self { shared, answers, sender: tokio::spawn(post.work()) }
    }

    pub(crate) fn taken(&self) -> Seq {
        self.answers.state().taken
    }

    pub(crate) fn send(&self, number: Seq, bytes: Bytes) -> Result<(), StdinError> {
        let mut queue = self.shared.queue();
        if queue.closed || queue.closing {
            return Err(StdinError::Closed);
        }
        if queue.bytes + bytes.len() > STDIN_BYTES {
            return Err(StdinError::Full);
        }
        queue.bytes += bytes.len();
        queue.waiting.push_back((number, bytes));
        drop(queue);
        self.shared.more.notify_one();
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.shared.queue().closing = true;
        self.shared.more.notify_one();
    }
}

impl Drop for KeptInput {
    /// Ends the sending, not the input: the process reads on with the next server.
    fn drop(&mut self) {
        self.sender.abort();
    }
}

/// The sending task.
struct Post {
    shared: Arc<Shared>,
    line: Arc<Line>,
    answers: Arc<Input>,
    process: u64,
    fd: u32,
}

/// What became of an offer.
enum Outcome {
    Taken,
    Again,
    Closed,
}

impl Post {
    /// Until the input is closed, by either side.
    async fn work(self) {
        loop {
            let more = self.shared.more.notified();
            let (next, closing) = {
                let queue = self.shared.queue();
                (queue.waiting.front().cloned(), queue.closing)
            };
            let Some((number, bytes)) = next else {
                if closing {
                    let _ = self.line.send(&Request::CloseInput { process: self.process, fd: self.fd });
                    return self.shut();
                }
                more.await;
                continue;
            };
            match self.offer(number, &bytes).await {
                Outcome::Taken => {
                    let mut queue = self.shared.queue();
                    queue.waiting.pop_front();
                    queue.bytes -= bytes.len();
                }
                Outcome::Again => tokio::time::sleep(AGAIN).await,
                Outcome::Closed => return self.shut(),
            }
        }
    }

    fn shut(&self) {
        let mut queue = self.shared.queue();
        *queue = Queue { closed: true, ..Queue::default() };
    }

    async fn offer(&self, number: Seq, bytes: &Bytes) -> Outcome {
        let (process, fd) = (self.process, self.fd);
        self.answers.state().refused = None;
        let mut parts = bytes.chunks(CHUNK_BYTES).peekable();
        loop {
            let chunk = parts.next().unwrap_or_default();
            let part = if parts.peek().is_some() { Part::More } else { Part::Last };
            let request = Request::Input { process, fd, number, part, bytes: Blob(chunk.to_vec()) };
            if self.line.send(&request).is_err() {
                return Outcome::Closed;
            }
            if part == Part::Last {
                break;
            }
        }
        loop {
            let changed = self.answers.changed.notified();
            {
                let answered = self.answers.state();
                if answered.taken >= number {
                    return Outcome::Taken;
                }
                match answered.refused {
                    Some((of, InputRefusal::Full | InputRefusal::Failed)) if of == number => {
                        return Outcome::Again;
                    }
                    Some((of, _)) if of == number => return Outcome::Closed,
                    Some(_) | None => {}
                }
                if answered.over {
                    return Outcome::Closed;
                }
            }
            changed.await;
        }
    }
}

/// A kept process. Dropping it leaves the process to the keeper.
#[derive(Debug)]
pub(crate) struct KeptHandle {
    line: Arc<Line>,
    hold: Hold,
}

impl KeptHandle {
    pub(crate) fn new(line: Arc<Line>, hold: Hold) -> Self {
        Self { line, hold }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let (number, reach) = signal_of(signal);
        let process = self.hold.process;
        // The answer, that nobody was left to signal, says nothing that the end does not. Tag zero asks for none.
        let _ = self.line.send(&Request::Signal { tag: 0, process, signal: number, reach });
    }

    pub(crate) async fn wait(&self) -> Exit {
        let mut exit = self.hold.exit();
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit { code: None, signal: None }),
            Err(_) => Exit { code: None, signal: None },
        }
    }
}
