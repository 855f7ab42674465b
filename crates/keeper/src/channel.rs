//! A process's channels as the keeper holds them: output on its way to a server that may be away, and input that is
//! taken whole or not at all.

use crate::{
    poller::Poller,
    spool::Spool,
    wire::{CHUNK_BYTES, InputRefusal, InputState, OutputState, Part},
};
use rustix::{
    fd::{BorrowedFd, OwnedFd},
    io::Errno,
};
use std::time::Instant;

/// Output that may wait for a server: more than the longest line that it has to see whole before it can
/// acknowledge anything (32 MiB).
pub const OUTPUT_BYTES: u64 = 34 * 1024 * 1024;
/// The same of a shell's command, whose server acknowledges nothing before its end unless there is very much.
pub(crate) const COMMAND_OUTPUT_BYTES: u64 = 96 * 1024 * 1024;
/// Input that may wait for a process that does not read: a longest line, and the next one's beginning.
pub const INPUT_BYTES: u64 = 34 * 1024 * 1024;

/// One stream out of a process.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) fd: u32,
    /// Gone once the stream ended.
    pub(crate) pipe: Option<OwnedFd>,
    pub(crate) spool: Spool,
    /// Read, and not on disk because the disk would not take it.
    held: Vec<u8>,
    /// How far the server that is there now was sent, and has room for.
    feed: Option<Feed>,
    /// Whether the pipe is being watched.
    pub(crate) watched: bool,
    /// Not watched before then.
    pub(crate) rest: Option<Instant>,
    /// Where the stream ends, though its pipe may go on.
    cut: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Feed {
    sent: u64,
    upto: u64,
    end_told: bool,
}

/// What there is to say to the server about a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Bytes { offset: u64, length: usize },
    End { offset: u64 },
}

impl Output {
    pub(crate) fn new(fd: u32, pipe: OwnedFd, limit: u64) -> Self {
        let spool = Spool::new(limit);
        let (held, feed, watched, rest, cut) = (Vec::new(), None, false, None, None);
        Self { fd, pipe: Some(pipe), spool, held, feed, watched, rest, cut }
    }

    /// Leaves the pipe unwatched until then: a stream that ends before is read once, where it ends.
    pub(crate) fn resting(mut self, until: Instant) -> Self {
        self.rest = Some(until);
        self
    }

    pub(crate) fn state(&self) -> OutputState {
        OutputState { fd: self.fd, start: self.spool.start(), end: self.spool.end(), ended: self.ended() }
    }

    /// Whether nothing more will come into the spool.
    pub(crate) fn ended(&self) -> bool {
        self.pipe.is_none() && self.held.is_empty()
    }

    /// Whether the pipe should be read now.
    pub(crate) fn wants(&self) -> bool {
        self.pipe.is_some() && self.held.is_empty() && self.spool.room() > 0
    }

    pub(crate) fn stuck(&self) -> bool {
        !self.held.is_empty()
    }

    /// Reads once, into the spool.
    pub(crate) fn fill(&mut self, folder: BorrowedFd<'_>, scratch: &mut [u8]) {
        let before_cut = self.cut.map_or(u64::MAX, |cut| cut.saturating_sub(self.spool.end()));
        let length =
            scratch.len().min(self.spool.room()).min(usize::try_from(before_cut).unwrap_or(usize::MAX));
        let (Some(pipe), true) = (&self.pipe, self.held.is_empty() && length > 0) else { return };
        match rustix::io::read(pipe, &mut scratch[..length]) {
            Ok(0) => self.pipe = None,
            Ok(length) => {
                let written = self.spool.append(folder, &scratch[..length]).unwrap_or(0);
                self.held.extend_from_slice(&scratch[written..length]);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.pipe = None,
        }
    }

    /// Ends the stream behind what is in its pipe now, and says where that is. Whoever writes later is not heard.
    pub(crate) fn cut(&mut self) -> u64 {
        let there = self.pipe.as_ref().and_then(|pipe| rustix::io::ioctl_fionread(pipe).ok()).unwrap_or(0);
        let end = self.spool.end() + self.held.len() as u64 + there;
        self.cut = Some(end);
        end
    }

    pub(crate) fn behind_cut(&self) -> bool {
        self.cut.is_some_and(|cut| self.spool.end() + (self.held.len() as u64) < cut)
    }

    /// The pipe of a stream that was cut, once everything before the cut is read. None if nobody writes to it any more.
    pub(crate) fn take_late(&mut self, poller: &Poller, scratch: &mut [u8]) -> Option<OwnedFd> {
        let read = self.spool.end() + self.held.len() as u64;
        let pipe = if self.cut.is_some_and(|cut| read >= cut) { self.pipe.take()? } else { return None };
        let watched = std::mem::take(&mut self.watched);
        if rustix::io::read(&pipe, scratch) == Ok(0) {
            // Closed here, it leaves the poller by itself.
            return None;
        }
        if watched {
            poller.remove(&pipe);
        }
        Some(pipe)
    }

    /// Whether anybody ever opened the other side of a queue.
    pub(crate) fn was_opened(&self) -> bool {
        let Some(pipe) = &self.pipe else { return true };
        let mut polled = [rustix::event::PollFd::new(pipe, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.spool.end() > 0
            || !self.held.is_empty()
            || rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Tries again to write what the disk did not take.
    pub(crate) fn settle(&mut self, folder: BorrowedFd<'_>) {
        if let Ok(written) = self.spool.append(folder, &self.held)
            && written > 0
        {
            self.held.drain(..written);
        }
    }

    pub(crate) fn subscribe(&mut self, from: u64, upto: u64) -> Result<(), ()> {
        if from < self.spool.start() || from > self.spool.end() {
            return Err(());
        }
        self.feed = Some(Feed { sent: from, upto, end_told: false });
        Ok(())
    }

    pub(crate) fn unsubscribe(&mut self) {
        self.feed = None;
    }

    pub(crate) fn want(&mut self, upto: u64) {
        if let Some(feed) = &mut self.feed {
            feed.upto = feed.upto.max(upto);
        }
    }

    pub(crate) fn due(&self) -> Option<Due> {
        let feed = self.feed?;
        let end = self.spool.end().min(feed.upto);
        if feed.sent < end {
            let length = usize::try_from(end - feed.sent).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            return Some(Due::Bytes { offset: feed.sent, length });
        }
        let end = self.ended() && feed.sent == self.spool.end() && !feed.end_told;
        end.then_some(Due::End { offset: feed.sent })
    }

    pub(crate) fn sent(&mut self, length: usize) {
        if let Some(feed) = &mut self.feed {
            feed.sent += length as u64;
        }
    }

    pub(crate) fn end_told(&mut self) {
        if let Some(feed) = &mut self.feed {
            feed.end_told = true;
        }
    }
}

/// One stream into a process. In the spool: up to `committed` taken and on its way, behind it the parts of an input
/// whose last part has not come.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) fd: u32,
    pub(crate) pipe: Option<OwnedFd>,
    spool: Spool,
    committed: u64,
    /// Taken, goes before the spool, and not on disk because the disk would not take it.
    held: Vec<u8>,
    taken: u64,
    arriving: Option<Arriving>,
    closing: bool,
    /// Nobody has opened the other side yet: what is written before would be lost if this side were closed.
    unopened: bool,
    /// Whether the pipe is being watched for room.
    pub(crate) waiting: bool,
}

#[derive(Debug)]
struct Arriving {
    number: u64,
    refused: Option<InputRefusal>,
}

/// What became of an input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    Partly,
    Taken,
    Refused(InputRefusal),
}

impl Input {
    pub(crate) fn new(fd: u32, pipe: OwnedFd) -> Self {
        Self {
            fd,
            pipe: Some(pipe),
            spool: Spool::new(INPUT_BYTES),
            committed: 0,
            held: Vec::new(),
            taken: 0,
            arriving: None,
            closing: false,
            unopened: false,
            waiting: false,
        }
    }

    /// A queue whose other side is opened later.
    pub(crate) fn queue(fd: u32, pipe: OwnedFd) -> Self {
        Self { unopened: true, ..Self::new(fd, pipe) }
    }

    /// The other side is open now.
    pub(crate) fn opened(&mut self) {
        self.unopened = false;
        if self.closing && !self.pending() {
            self.shut();
        }
    }

    pub(crate) fn state(&self) -> InputState {
        InputState { fd: self.fd, taken: self.taken, open: self.pipe.is_some() && !self.closing }
    }

    /// Whether anything taken waits for the process to read.
    pub(crate) fn pending(&self) -> bool {
        self.pipe.is_some() && (!self.held.is_empty() || self.spool.start() < self.committed)
    }

    pub(crate) fn take(&mut self, folder: BorrowedFd<'_>, number: u64, part: Part, bytes: &[u8]) -> Taking {
        if number <= self.taken {
            return if part == Part::Last { Taking::Taken } else { Taking::Partly };
        }
        if self.arriving.as_ref().is_none_or(|arriving| arriving.number != number) {
            self.abandon();
            self.arriving = Some(Arriving { number, refused: None });
        }
        let refused = self.arriving.as_ref().and_then(|arriving| arriving.refused);
        let refused = refused.or_else(|| self.stage(folder, part, bytes).err());
        if part == Part::More {
            if let Some(arriving) = &mut self.arriving {
                arriving.refused = refused;
            }
            return Taking::Partly;
        }
        if let Some(reason) = refused {
            self.abandon();
            return Taking::Refused(reason);
        }
        self.arriving = None;
        self.committed = self.spool.end();
        self.taken = number;
        Taking::Taken
    }

    fn stage(&mut self, folder: BorrowedFd<'_>, part: Part, bytes: &[u8]) -> Result<(), InputRefusal> {
        if self.pipe.is_none() || self.closing {
            return Err(InputRefusal::Closed);
        }
        if bytes.len() > self.spool.room() {
            return Err(InputRefusal::Full);
        }
        let mut bytes = bytes;
        let at_once = part == Part::Last && !self.pending() && self.spool.end() == self.committed;
        if at_once {
            // A pipe with room takes it here and now, past the disk.
            let written = self.write_out(bytes).map_err(|_| InputRefusal::Closed)?;
            bytes = &bytes[written..];
        }
        let written = if bytes.is_empty() { 0 } else { self.spool.append(folder, bytes).unwrap_or(0) };
        if written < bytes.len() {
            if !at_once {
                return Err(InputRefusal::Failed);
            }
            // A part may be with the process already, so the whole is taken, if need be into memory.
            self.spool.rewind(self.committed);
            self.held = bytes.to_vec();
        }
        Ok(())
    }

    /// Drops the parts of an input that will not be completed: its server is gone.
    pub(crate) fn abandon(&mut self) {
        self.arriving = None;
        self.spool.rewind(self.committed);
    }

    pub(crate) fn close(&mut self) {
        self.closing = true;
        if !self.pending() && !self.unopened {
            self.shut();
        }
    }

    pub(crate) fn shut(&mut self) {
        self.pipe = None;
        self.held = Vec::new();
        self.spool.forget(self.committed);
    }

    /// Writes what was taken until the pipe is full.
    pub(crate) fn deliver(&mut self, scratch: &mut Vec<u8>) {
        while self.pending() {
            scratch.clear();
            if self.held.is_empty() {
                let there = usize::try_from(self.committed - self.spool.start()).unwrap_or(usize::MAX);
                match self.spool.read(self.spool.start(), there.min(CHUNK_BYTES), scratch) {
                    Ok(length) if length > 0 => {}
                    // A spool that cannot be read back is an input that cannot go on.
                    Ok(_) | Err(_) => return self.shut(),
                }
            } else {
                scratch.extend_from_slice(&self.held);
            }
            match self.write_out(scratch) {
                Ok(0) => return,
                Ok(written) if self.held.is_empty() => self.spool.forget(self.spool.start() + written as u64),
                Ok(written) => drop(self.held.drain(..written)),
                Err(_) => return self.shut(),
            }
        }
        if self.closing && !self.unopened {
            self.shut();
        }
    }

    fn write_out(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let pipe = self.pipe.as_ref().ok_or(Errno::PIPE)?;
        let mut written = 0;
        while written < bytes.len() {
            match rustix::io::write(pipe, &bytes[written..]) {
                Ok(length) => written += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}
