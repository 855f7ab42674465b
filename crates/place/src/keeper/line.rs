//! The connection to a keeper: one task that reads, one that writes, and what both share.
//!
//! Nothing here waits for a slow reader: the keeper sends a stream only as far as its reader has given room for.

use super::{
    EgressRefused, KeeperError, exit_of,
    shell::{Mail, ShellEvent},
};
use crate::{Chunk, Exit};
use ::keeper::wire::{self, Notice, Request};
use bytes::Bytes;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
    sync::{Notify, oneshot, watch},
};

/// Refused connections that nobody has asked for yet; the oldest are dropped.
const REFUSALS: usize = 1024;
/// Read from the socket at once.
const READ_BYTES: usize = 128 * 1024;
/// A buffer for sending is given back above this.
const KEEP_BYTES: usize = 64 * 1024;

pub(crate) struct Welcome {
    pub(crate) version: u16,
    pub(crate) epoch: u64,
    pub(crate) isolation: wire::Isolation,
    pub(crate) processes: Vec<wire::ProcessState>,
}

/// Whatever carries a connection to a keeper: its socket, or the streams of a program that relays to it.
pub(crate) struct Pipe {
    pub(crate) read: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) write: Box<dyn AsyncWrite + Send + Unpin>,
    /// The program and its like, which end with the connection.
    pub(crate) hold: Box<dyn Send>,
}

impl From<UnixStream> for Pipe {
    fn from(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self { read: Box::new(read), write: Box::new(write), hold: Box::new(()) }
    }
}

/// A connection that said hello, and what has been read beyond the answer.
pub(crate) struct Greeted {
    pipe: Pipe,
    read: Vec<u8>,
}

/// Says hello and waits for the welcome.
pub(crate) async fn greet(mut pipe: Pipe, token: wire::Token) -> Result<(Greeted, Welcome), KeeperError> {
    let mut bytes = Vec::new();
    let framed = wire::frame(&Request::Hello { version: wire::VERSION, token }, &mut bytes);
    framed.map_err(|_| KeeperError::TurnedAway)?;
    pipe.write.write_all(&bytes).await.map_err(|_| KeeperError::TurnedAway)?;
    pipe.write.flush().await.map_err(|_| KeeperError::TurnedAway)?;
    let mut read = Vec::new();
    loop {
        if let Some((body, length)) = wire::split(&read, wire::FRAME_BYTES).map_err(|_| KeeperError::Gone)? {
            // The kind and the version come first in every version.
            let theirs = body.get(1..3).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
            if !(wire::OLDEST..=wire::VERSION).contains(&theirs) {
                return Err(KeeperError::Version { theirs, ours: wire::VERSION });
            }
            let Ok(Notice::Welcome { epoch, isolation, processes, .. }) = wire::read(body) else {
                return Err(KeeperError::Gone);
            };
            read.drain(..length);
            return Ok((Greeted { pipe, read }, Welcome { version: theirs, epoch, isolation, processes }));
        }
        match pipe.read.read_buf(&mut read).await {
            Ok(0) | Err(_) => return Err(KeeperError::TurnedAway),
            Ok(_) => {}
        }
    }
}

/// Why a request was not granted.
#[derive(Debug)]
pub(crate) enum Refused {
    TooLong,
    Gone,
    Said(String),
}

impl From<Refused> for KeeperError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::TooLong => Self::Refused("the request is larger than a keeper reads".to_owned()),
            Refused::Gone => Self::Gone,
            Refused::Said(text) => Self::Refused(text),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Line {
    shared: Arc<Shared>,
    gone: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    more: Notify,
    refusal: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// To be sent.
    out: Vec<u8>,
    over: bool,
    tag: u32,
    answers: HashMap<u32, oneshot::Sender<Notice>>,
    holds: HashMap<u64, Hold>,
    /// Ends of processes that nobody has attached to yet; at most as many as a keeper has processes.
    ends: HashMap<u64, Exit>,
    inputs: HashMap<(u64, u32), Arc<Input>>,
    shells: HashMap<u64, Arc<Mail>>,
    refusals: VecDeque<EgressRefused>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of one process: its streams and its end.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) process: u64,
    pub(crate) streams: Arc<Vec<Stream>>,
    exit: watch::Sender<Option<Exit>>,
}

/// One stream's bytes that came and were not yet read.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) fd: u32,
    queue: Mutex<Queue>,
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    ended: bool,
}

/// What the keeper answered to inputs of one channel.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) state: Mutex<Answered>,
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Answered {
    pub(crate) taken: u64,
    pub(crate) refused: Option<(u64, wire::InputRefusal)>,
    pub(crate) over: bool,
}

impl Input {
    pub(crate) fn state(&self) -> MutexGuard<'_, Answered> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next chunk if there is one, or whether the stream ended.
    pub(crate) fn take(&self) -> (Option<Chunk>, bool) {
        let mut queue = self.queue();
        let chunk = queue.chunks.pop_front();
        (chunk, queue.ended)
    }

    fn end(&self) {
        self.queue().ended = true;
        self.changed.notify_one();
    }
}

impl Hold {
    pub(crate) fn stream(&self, fd: u32) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.fd == fd)
    }

    pub(crate) fn exited(&self, exit: Exit) {
        self.exit.send_modify(|known| *known = known.or(Some(exit)));
    }

    pub(crate) fn exit(&self) -> watch::Receiver<Option<Exit>> {
        self.exit.subscribe()
    }

    fn lost(&self) {
        self.exited(Exit { code: None, signal: None });
        self.streams.iter().for_each(Stream::end);
    }
}

impl Line {
    pub(crate) fn start(greeted: Greeted) -> Arc<Self> {
        let shared =
            Arc::new(Shared { state: Mutex::default(), more: Notify::new(), refusal: Notify::new() });
        let (tell_gone, gone) = watch::channel(false);
        let Greeted { pipe: Pipe { read, write, hold }, read: ahead } = greeted;
        let (reader, writer) = (Arc::clone(&shared), Arc::clone(&shared));
        let writing = tokio::spawn(async move { writer.write(write).await });
        tokio::spawn(async move {
            reader.read(read, ahead).await;
            reader.close();
            writing.abort();
            drop(hold);
            let _ = tell_gone.send(true);
        });
        Arc::new(Self { shared, gone })
    }

    pub(crate) fn hold(&self, process: u64, fds: [u32; 2]) -> Hold {
        let streams = fds
            .into_iter()
            .map(|fd| Stream { fd, queue: Mutex::default(), changed: Notify::new() })
            .collect();
        let hold = Hold { process, streams: Arc::new(streams), exit: watch::channel(None).0 };
        let mut state = self.shared.state();
        if let Some(exit) = state.ends.remove(&process) {
            hold.exited(exit);
        }
        if state.over {
            hold.lost();
        }
        state.holds.insert(process, hold.clone());
        hold
    }

    pub(crate) fn input(&self, process: u64, fd: u32) -> Arc<Input> {
        let input = Arc::new(Input::default());
        let mut state = self.shared.state();
        input.state().over = state.over;
        state.inputs.insert((process, fd), Arc::clone(&input));
        input
    }

    /// What comes of a shell from now on; whoever drove it before hears nothing more.
    pub(crate) fn mail(&self, process: u64) -> Arc<Mail> {
        let mail = Arc::new(Mail::default());
        let mut state = self.shared.state();
        if state.over {
            mail.put(ShellEvent::Lost);
        }
        if let Some(before) = state.shells.insert(process, Arc::clone(&mail)) {
            before.put(ShellEvent::Lost);
        }
        mail
    }

    pub(crate) fn let_go(&self, process: u64) {
        let mut state = self.shared.state();
        if let Some(mail) = state.shells.remove(&process) {
            mail.put(ShellEvent::Lost);
        }
        state.ends.remove(&process);
        if let Some(hold) = state.holds.remove(&process) {
            hold.lost();
        }
        state.inputs.retain(|(of, _), input| {
            let stays = *of != process;
            if !stays {
                input.state().over = true;
                input.changed.notify_one();
            }
            stays
        });
    }

    /// Sends without waiting. Bounded by those who call: small requests, and inputs that wait for their answer.
    pub(crate) fn send(&self, request: &Request) -> Result<(), Refused> {
        let mut state = self.shared.state();
        if state.over {
            return Err(Refused::Gone);
        }
        wire::frame(request, &mut state.out).map_err(|_| Refused::TooLong)?;
        drop(state);
        self.shared.more.notify_one();
        Ok(())
    }

    pub(crate) async fn ask(&self, make: impl FnOnce(u32) -> Request) -> Result<Notice, Refused> {
        match self.ask_for(make)?.await {
            Ok(Notice::Refused { text, .. }) => Err(Refused::Said(text)),
            Ok(notice) => Ok(notice),
            Err(_) => Err(Refused::Gone),
        }
    }

    /// Asks at once, and leaves the waiting to the caller. The answer may be a refusal.
    pub(crate) fn ask_for(
        &self,
        make: impl FnOnce(u32) -> Request,
    ) -> Result<oneshot::Receiver<Notice>, Refused> {
        let (answer, answered) = oneshot::channel();
        let (tag, request) = {
            let mut state = self.shared.state();
            state.tag = state.tag.wrapping_add(1);
            let tag = state.tag;
            state.answers.insert(tag, answer);
            (tag, make(tag))
        };
        if let Err(refused) = self.send(&request) {
            self.shared.state().answers.remove(&tag);
            return Err(refused);
        }
        Ok(answered)
    }

    pub(crate) async fn done(&self, make: impl FnOnce(u32) -> Request) -> Result<(), KeeperError> {
        self.ask(make).await.map(drop).map_err(KeeperError::from)
    }

    pub(crate) async fn egress_refused(&self) -> Option<EgressRefused> {
        loop {
            let told = self.shared.refusal.notified();
            {
                let mut state = self.shared.state();
                if let Some(refused) = state.refusals.pop_front() {
                    return Some(refused);
                }
                if state.over {
                    return None;
                }
            }
            told.await;
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    pub(crate) async fn gone(&self) {
        let mut gone = self.gone.clone();
        // The sender goes with the connection, which is the same news.
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

impl Drop for Line {
    /// The last handle is gone: the writer sends what is left and closes, and with it the reader ends.
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.more.notify_one();
    }
}

impl Shared {
    async fn write(&self, mut socket: impl AsyncWrite + Unpin) {
        let mut bytes = Vec::new();
        loop {
            let more = self.more.notified();
            let over = {
                let mut state = self.state();
                std::mem::swap(&mut bytes, &mut state.out);
                state.over
            };
            if bytes.is_empty() {
                if over {
                    // One that is closed already needs no word.
                    let _ = socket.shutdown().await;
                    return;
                }
                more.await;
                continue;
            }
            if socket.write_all(&bytes).await.is_err() || socket.flush().await.is_err() {
                return;
            }
            bytes.clear();
            bytes.shrink_to(KEEP_BYTES);
        }
    }

    async fn read(&self, mut socket: impl AsyncRead + Unpin, mut bytes: Vec<u8>) {
        loop {
            let mut used = 0;
            while let Ok(Some((body, length))) = wire::split(&bytes[used..], wire::FRAME_BYTES) {
                match wire::read(body) {
                    Ok(notice) => self.notice(notice),
                    Err(error) => {
                        tracing::warn!(%error, "a keeper said something that cannot be read");
                        return;
                    }
                }
                used += length;
            }
            bytes.drain(..used);
            bytes.reserve(READ_BYTES);
            match socket.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if bytes.capacity() > 2 * READ_BYTES && bytes.len() < READ_BYTES {
                bytes.shrink_to(READ_BYTES);
            }
        }
    }

    fn notice(&self, notice: Notice) {
        let mut state = self.state();
        if let Some(mail) = about(&notice).and_then(|process| state.shells.get(&process)) {
            return mail.notice(notice);
        }
        match notice {
            Notice::Done { tag }
            | Notice::Refused { tag, .. }
            | Notice::Spawned { tag, .. }
            | Notice::SpawnFailed { tag, .. }
            | Notice::Processes { tag, .. }
            | Notice::ShellIs { tag, .. }
            | Notice::StateIs { tag, .. } => {
                if let Some(answer) = state.answers.remove(&tag) {
                    // Whoever asked may have given up.
                    let _ = answer.send(notice);
                }
            }
            Notice::Output { process, fd, offset, bytes } => {
                if let Some(stream) = state.holds.get(&process).and_then(|hold| hold.stream(fd)) {
                    stream.queue().chunks.push_back(Chunk { offset, bytes: Bytes::from(bytes.0) });
                    stream.changed.notify_one();
                }
            }
            Notice::End { process, fd, .. } => {
                if let Some(stream) = state.holds.get(&process).and_then(|hold| hold.stream(fd)) {
                    stream.end();
                }
            }
            Notice::Exited { process, exit } => match state.holds.get(&process) {
                Some(hold) => hold.exited(exit_of(&exit)),
                None => drop(state.ends.insert(process, exit_of(&exit))),
            },
            Notice::InputTaken { process, fd, number } => {
                if let Some(input) = state.inputs.get(&(process, fd)) {
                    input.state().taken = number;
                    input.changed.notify_one();
                }
            }
            Notice::InputRefused { process, fd, number, reason } => {
                if let Some(input) = state.inputs.get(&(process, fd)) {
                    input.state().refused = Some((number, reason));
                    input.changed.notify_one();
                }
            }
            Notice::EgressRefused { host, port, reason } => {
                if state.refusals.len() == REFUSALS {
                    state.refusals.pop_front();
                }
                state.refusals.push_back(EgressRefused { host, port, reason });
                self.refusal.notify_one();
            }
            Notice::EgressUntold { count } => {
                tracing::warn!(
                    count,
                    "refused connections of a sandbox were dropped while no server was there"
                );
            }
            // Of shells that nobody drives: whoever takes one up asks for its state.
            Notice::ShellReady { .. } | Notice::ShellUnusable { .. } | Notice::CommandEnded { .. } => {}
            Notice::Welcome { .. } | Notice::Replaced {} | Notice::ShuttingDown {} => {}
        }
    }

    /// Everybody who waits is told.
    fn close(&self) {
        let mut state = self.state();
        state.over = true;
        state.answers.clear();
        state.holds.values().for_each(Hold::lost);
        state.shells.values().for_each(|mail| mail.put(ShellEvent::Lost));
        for input in state.inputs.values() {
            input.state().over = true;
            input.changed.notify_one();
        }
        self.more.notify_one();
        self.refusal.notify_one();
    }
}

/// The process that a notice, which answers no request, is about.
fn about(notice: &Notice) -> Option<u64> {
    match notice {
        Notice::Output { process, .. }
        | Notice::End { process, .. }
        | Notice::Exited { process, .. }
        | Notice::InputTaken { process, .. }
        | Notice::InputRefused { process, .. }
        | Notice::ShellReady { process, .. }
        | Notice::ShellUnusable { process, .. }
        | Notice::CommandEnded { process, .. } => Some(*process),
        Notice::Welcome { .. }
        | Notice::Done { .. }
        | Notice::Refused { .. }
        | Notice::Spawned { .. }
        | Notice::SpawnFailed { .. }
        | Notice::EgressRefused { .. }
        | Notice::EgressUntold { .. }
        | Notice::Processes { .. }
        | Notice::ShellIs { .. }
        | Notice::StateIs { .. }
        | Notice::Replaced {}
        | Notice::ShuttingDown {} => None,
    }
}
