//! The one place where the keeper waits: epoll, with tokens that say what is ready.

use rustix::{
    buffer::spare_capacity,
    event::{
        PollFd, PollFlags, Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
        poll,
    },
    fd::{AsFd, OwnedFd},
    io::Errno,
};
use std::time::Duration;

/// Events taken at once.
const BATCH: usize = 64;
/// In nanoseconds.
const MILLISECOND: i64 = 1_000_000;

/// What became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Signals,
    Listener,
    Guest(u32),
    Server(u32),
    Status(u32),
    Output(u32, u32),
    Input(u32, u32),
    /// A shell has read from its line.
    Shell(u32),
    /// What a shell saves.
    Saved(u32),
    /// A stream whose command has ended.
    Late(u32, u32),
    Egress,
    /// A proxied connection: its side towards the sandbox, towards the world, or its resolver.
    Relay(u32, Side),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Inner,
    Outer,
    Resolver,
}

impl Token {
    fn encode(self) -> u64 {
        let pack = |kind: u64, id: u32, fd: u32| kind << 56 | u64::from(id) << 16 | u64::from(fd & 0xffff);
        match self {
            Self::Signals => pack(1, 0, 0),
            Self::Listener => pack(2, 0, 0),
            Self::Guest(id) => pack(3, id, 0),
            Self::Server(id) => pack(4, id, 0),
            Self::Status(slot) => pack(5, slot, 0),
            Self::Output(slot, fd) => pack(6, slot, fd),
            Self::Input(slot, fd) => pack(7, slot, fd),
            Self::Egress => pack(8, 0, 0),
            Self::Shell(slot) => pack(10, slot, 0),
            Self::Saved(slot) => pack(11, slot, 0),
            Self::Late(slot, number) => pack(12, slot, number),
            Self::Relay(id, Side::Inner) => pack(9, id, 1),
            Self::Relay(id, Side::Outer) => pack(9, id, 2),
            Self::Relay(id, Side::Resolver) => pack(9, id, 3),
        }
    }

    fn decode(raw: u64) -> Option<Self> {
        let id = u32::try_from(raw >> 16 & 0xffff_ffff).ok()?;
        let fd = u32::try_from(raw & 0xffff).ok()?;
        Some(match (raw >> 56, fd) {
            (1, _) => Self::Signals,
            (2, _) => Self::Listener,
            (3, _) => Self::Guest(id),
            (4, _) => Self::Server(id),
            (5, _) => Self::Status(id),
            (6, _) => Self::Output(id, fd),
            (7, _) => Self::Input(id, fd),
            (8, _) => Self::Egress,
            (10, _) => Self::Shell(id),
            (11, _) => Self::Saved(id),
            (12, _) => Self::Late(id, fd),
            (9, 1) => Self::Relay(id, Side::Inner),
            (9, 2) => Self::Relay(id, Side::Outer),
            (9, 3) => Self::Relay(id, Side::Resolver),
            _ => return None,
        })
    }
}

pub(crate) const READ: EventFlags = EventFlags::IN;
pub(crate) const WRITE: EventFlags = EventFlags::OUT;
/// Each time that the other side reads.
pub(crate) const TAKEN: EventFlags = EventFlags::OUT.union(EventFlags::ET);
/// Only that the other side is gone, which is always told.
pub(crate) const NOTHING: EventFlags = EventFlags::empty();

pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(BATCH) })
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: Token, interest: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.encode()), interest)
    }

    pub(crate) fn change(&self, fd: impl AsFd, token: Token, interest: EventFlags) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.encode()), interest)
    }

    /// For a descriptor that stays open; a closed one leaves by itself.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Vec<(Token, EventFlags)> {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        // epoll itself counts in milliseconds, and its finer call is too new for some machines.
        let fine = timeout.as_ref().filter(|time| time.tv_nsec % MILLISECOND != 0);
        if fine.is_some() {
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], fine);
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if fine.is_some() { Some(&now) } else { timeout.as_ref() };
        self.events.clear();
        // Interrupted means that nothing came; the caller looks at its clocks and waits again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout);
        self.events
            .iter()
            .filter_map(|event| {
                // The record is packed, so its fields are copied out.
                let (data, flags) = (event.data, event.flags);
                Token::decode(data.u64()).map(|token| (token, flags))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Signals,
            Token::Listener,
            Token::Egress,
            Token::Guest(u32::MAX),
            Token::Server(7),
            Token::Status(1),
            Token::Output(u32::MAX, 15),
            Token::Input(0, 63),
            Token::Shell(3),
            Token::Saved(u32::MAX),
            Token::Late(4, u16::MAX as u32),
            Token::Output(5, u16::MAX as u32),
            Token::Relay(9, Side::Inner),
            Token::Relay(9, Side::Outer),
            Token::Relay(u32::MAX, Side::Resolver),
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
        assert_eq!(Token::decode(0), None);
    }
}
