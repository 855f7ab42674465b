//! A connection to whoever knocked: frames in, frames out, both bounded.

use crate::wire::{self, FRAME_BYTES, HELLO_BYTES, Notice, Request};
use rustix::{fd::OwnedFd, io::Errno, net::SendFlags};
use std::time::Instant;

/// Output is not added above this; answers are.
pub(crate) const OUT_BYTES: usize = 256 * 1024;
/// A server that asks and asks and never reads is let go of at this.
const OUT_LIMIT: usize = 16 * 1024 * 1024;
/// Buffers larger than this are given back when they are empty.
const KEEP_BYTES: usize = 16 * 1024;

/// A connection. `deadline` is when somebody who has not said hello is sent away.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) id: u32,
    pub(crate) socket: OwnedFd,
    pub(crate) deadline: Option<Instant>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Of `output`, sent already.
    sent: usize,
    /// Whether the socket is being watched for room.
    pub(crate) waiting: bool,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Over;

impl Line {
    pub(crate) fn new(id: u32, socket: OwnedFd, deadline: Instant) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        Self { id, socket, deadline: Some(deadline), input, output, sent: 0, waiting: false }
    }

    /// Reads once. What came before the end is still there to be looked at.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> Result<(), Over> {
        // Somebody unknown gets no more room than a hello needs.
        let most = if self.deadline.is_some() { HELLO_BYTES + 4 } else { scratch.len() };
        match rustix::io::read(&self.socket, &mut scratch[..most]) {
            Ok(0) => Err(Over),
            Ok(length) => {
                self.input.extend_from_slice(&scratch[..length]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Over),
        }
    }

    /// The next whole request.
    pub(crate) fn next(&mut self) -> Result<Option<Request>, Over> {
        let limit = if self.deadline.is_some() { HELLO_BYTES } else { FRAME_BYTES };
        let Some((body, length)) = wire::split(&self.input, limit).map_err(|_| Over)? else {
            return Ok(None);
        };
        let request = wire::read(body).map_err(|_| Over)?;
        self.input.drain(..length);
        if self.input.is_empty() && self.input.capacity() > KEEP_BYTES {
            self.input = Vec::new();
        }
        Ok(Some(request))
    }

    pub(crate) fn tell(&mut self, notice: &Notice) {
        // Only a welcome or a list could ever be too long, and the bound on processes keeps them short.
        let _ = wire::frame(notice, &mut self.output);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.output.len() - self.sent < OUT_BYTES
    }

    pub(crate) fn pending(&self) -> bool {
        self.sent < self.output.len()
    }

    /// The buffer to which a frame may be added whole.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends until the socket is full.
    pub(crate) fn flush(&mut self) -> Result<(), Over> {
        while self.pending() {
            match rustix::net::send(&self.socket, &self.output[self.sent..], SendFlags::NOSIGNAL) {
                Ok(length) => self.sent += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.output.drain(..self.sent);
                    self.sent = 0;
                    return if self.output.len() > OUT_LIMIT { Err(Over) } else { Ok(()) };
                }
                Err(_) => return Err(Over),
            }
        }
        self.sent = 0;
        self.output.clear();
        self.output.shrink_to(KEEP_BYTES);
        Ok(())
    }
}
