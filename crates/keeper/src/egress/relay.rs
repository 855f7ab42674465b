//! One connection from inside, from its head to its end.
//!
//! ```text
//! Asking ─► Resolving ─► Connecting ─► Carrying ─► (over)
//!    └──────────┴────────────┴─► (refused, told)
//! ```
//!
//! One through a forward begins with Connecting.

use super::{
    head::{self, Opening, Target},
    policy::{self, Policy, Verdict},
    resolve,
};
use crate::{
    poller::{Poller, READ, Side, Token, WRITE},
    wire::{EgressRefusal, Notice},
};
use rustix::{
    event::epoll::EventFlags,
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, sockopt},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

/// What a forward leads to.
const HOST: &str = "127.0.0.1";
/// What is read from one side and not yet taken by the other.
const BUFFER_BYTES: usize = 64 * 1024;
/// A request's head, its name and its connection each come about within this.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) id: u32,
    inner: End,
    stage: Stage,
    /// The host's port, for one that asks for nothing and is answered nothing.
    forward: Option<u16>,
    /// None once it is connected: a model may think for a long time.
    pub(crate) deadline: Option<Instant>,
    /// On its way out, and in.
    up: Vec<u8>,
    down: Vec<u8>,
}

#[derive(Debug)]
enum Stage {
    Asking,
    Resolving { target: Target, pipe: End, answer: Vec<u8> },
    Connecting { target: Target, outer: End, others: Vec<SocketAddr> },
    Carrying { outer: End },
}

/// A descriptor and what is known of it.
#[derive(Debug)]
struct End {
    fd: OwnedFd,
    watched: Option<EventFlags>,
    /// Nothing more will be read from it, or written to it.
    ended: bool,
    shut: bool,
}

/// What becomes of a relay.
#[derive(Debug)]
pub(crate) enum Next {
    On,
    Over,
    Refused(Notice),
}

impl End {
    fn new(fd: OwnedFd) -> Self {
        Self { fd, watched: None, ended: false, shut: false }
    }

    fn watch(&mut self, poller: &Poller, token: Token, interest: EventFlags) -> Result<(), Errno> {
        match (self.watched, interest.is_empty()) {
            (Some(now), false) if now == interest => return Ok(()),
            (Some(_), false) => poller.change(&self.fd, token, interest)?,
            (None, false) => poller.add(&self.fd, token, interest)?,
            // Not watched at all, because a gone peer would be told again and again.
            (Some(_), true) => poller.remove(&self.fd),
            (None, true) => {}
        }
        self.watched = (!interest.is_empty()).then_some(interest);
        Ok(())
    }

    /// Reads once; an error is taken as the end.
    fn read(&mut self, to: &mut Vec<u8>, scratch: &mut [u8]) {
        let room = scratch.len().min(BUFFER_BYTES.saturating_sub(to.len()));
        if self.ended || room == 0 {
            return;
        }
        match rustix::io::read(&self.fd, &mut scratch[..room]) {
            Ok(0) => self.ended = true,
            Ok(length) => to.extend_from_slice(&scratch[..length]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.ended = true,
        }
    }

    fn write(&mut self, from: &mut Vec<u8>) -> Result<(), Errno> {
        while !from.is_empty() {
            match rustix::net::send(&self.fd, from, SendFlags::NOSIGNAL) {
                Ok(length) => drop(from.drain(..length)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        from.shrink_to(0);
        Ok(())
    }

    fn shut(&mut self) {
        if !self.shut {
            self.shut = true;
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        }
    }
}

impl Relay {
    pub(crate) fn new(id: u32, inner: OwnedFd) -> Self {
        Self {
            id,
            inner: End::new(inner),
            stage: Stage::Asking,
            forward: None,
            deadline: Some(Instant::now() + PATIENCE),
            up: Vec::new(),
            down: Vec::new(),
        }
    }

    /// One that is carried to a port of the host's loopback as it is.
    pub(crate) fn forward(id: u32, inner: OwnedFd, port: u16) -> Self {
        Self { forward: Some(port), ..Self::new(id, inner) }
    }

    pub(crate) fn begin(&mut self) -> Next {
        let Some(port) = self.forward else { return Next::On };
        let target = Target { host: HOST.to_owned(), port, opening: Opening::Nothing };
        self.connect(target, vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))])
    }

    /// Makes what is waited for match the stage.
    pub(crate) fn watch(&mut self, poller: &Poller) -> Result<(), Errno> {
        let token = |side| Token::Relay(self.id, side);
        let (inner, outer) = (token(Side::Inner), token(Side::Outer));
        let wish = |end: &End, into: &[u8], out_of: &[u8]| {
            let mut interest = EventFlags::empty();
            interest.set(READ, !end.ended && into.len() < BUFFER_BYTES);
            interest.set(WRITE, !out_of.is_empty());
            interest
        };
        match &mut self.stage {
            Stage::Asking => self.inner.watch(poller, inner, READ),
            Stage::Resolving { pipe, .. } => {
                self.inner.watch(poller, inner, EventFlags::empty())?;
                pipe.watch(poller, token(Side::Resolver), READ)
            }
            Stage::Connecting { outer: end, .. } => {
                self.inner.watch(poller, inner, EventFlags::empty())?;
                end.watch(poller, outer, WRITE)
            }
            Stage::Carrying { outer: end } => {
                let inner_wish = wish(&self.inner, &self.up, &self.down);
                self.inner.watch(poller, inner, inner_wish)?;
                let outer_wish = wish(end, &self.down, &self.up);
                end.watch(poller, outer, outer_wish)
            }
        }
    }

    pub(crate) fn event(
        &mut self,
        side: Side,
        flags: EventFlags,
        policy: &Policy,
        poller: &Poller,
        scratch: &mut [u8],
    ) -> Next {
        match (&mut self.stage, side) {
            (Stage::Asking, Side::Inner) => {
                self.inner.read(&mut self.up, scratch);
                self.asked(policy)
            }
            (Stage::Resolving { pipe, answer, .. }, Side::Resolver) => {
                pipe.read(answer, scratch);
                if pipe.ended { self.resolved() } else { Next::On }
            }
            (Stage::Connecting { .. }, Side::Outer) => self.connected(poller),
            (Stage::Carrying { .. }, Side::Inner | Side::Outer) => self.carry(side, flags, scratch),
            (_, Side::Inner | Side::Outer | Side::Resolver) => Next::On,
        }
    }

    fn asked(&mut self, policy: &Policy) -> Next {
        let (target, length) = match head::read(&self.up) {
            Ok(None) if self.inner.ended => return Next::Over,
            Ok(None) => return Next::On,
            Ok(Some(asked)) => asked,
            Err(head::Bad) => return self.refuse("", 0, EgressRefusal::BadRequest),
        };
        self.up.drain(..length);
        self.deadline = Some(Instant::now() + PATIENCE);
        match policy.judge(&target.host, target.port) {
            Verdict::No => self.refuse(&target.host, target.port, EgressRefusal::NotAllowed),
            Verdict::Forward(port) => {
                self.connect(target, vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))])
            }
            Verdict::Resolve => match target.host.parse::<IpAddr>() {
                Ok(address) => self.connect_public(target, &[address]),
                Err(_) => match resolve::start(&target.host) {
                    Ok(pipe) => {
                        self.stage = Stage::Resolving { target, pipe: End::new(pipe), answer: Vec::new() };
                        Next::On
                    }
                    Err(_) => self.refuse(&target.host, target.port, EgressRefusal::NotResolved),
                },
            },
        }
    }

    fn resolved(&mut self) -> Next {
        let Stage::Resolving { target, answer, .. } = std::mem::replace(&mut self.stage, Stage::Asking)
        else {
            return Next::Over;
        };
        let found = resolve::addresses(&answer);
        if found.is_empty() {
            return self.refuse(&target.host, target.port, EgressRefusal::NotResolved);
        }
        self.connect_public(target, &found)
    }

    fn connect_public(&mut self, target: Target, found: &[IpAddr]) -> Next {
        let public: Vec<SocketAddr> = found
            .iter()
            .filter(|address| policy::public(**address))
            .map(|address| SocketAddr::new(*address, target.port))
            .collect();
        if public.is_empty() {
            return self.refuse(&target.host, target.port, EgressRefusal::PrivateAddress);
        }
        self.connect(target, public)
    }

    /// Tries the addresses in order.
    fn connect(&mut self, target: Target, mut addresses: Vec<SocketAddr>) -> Next {
        while !addresses.is_empty() {
            if let Ok(outer) = begin(addresses.remove(0)) {
                self.deadline = Some(Instant::now() + PATIENCE);
                self.stage = Stage::Connecting { target, outer: End::new(outer), others: addresses };
                return Next::On;
            }
        }
        self.refuse(&target.host, target.port, EgressRefusal::Unreachable)
    }

    fn connected(&mut self, poller: &Poller) -> Next {
        let Stage::Connecting { target, outer, others } = std::mem::replace(&mut self.stage, Stage::Asking)
        else {
            return Next::Over;
        };
        if !matches!(sockopt::socket_error(&outer.fd), Ok(Ok(()))) {
            poller.remove(&outer.fd);
            return self.connect(target, others);
        }
        self.deadline = None;
        match target.opening {
            Opening::Nothing => {}
            Opening::Tunnel => self.down = b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec(),
            Opening::Request(mut request) => {
                request.append(&mut self.up);
                self.up = request;
            }
        }
        self.stage = Stage::Carrying { outer };
        Next::On
    }

    fn carry(&mut self, side: Side, flags: EventFlags, scratch: &mut [u8]) -> Next {
        let Stage::Carrying { outer } = &mut self.stage else { return Next::Over };
        if side == Side::Inner && flags.contains(EventFlags::ERR) {
            return Next::Over;
        }
        self.inner.read(&mut self.up, scratch);
        outer.read(&mut self.down, scratch);
        if outer.write(&mut self.up).is_err() {
            outer.ended = true;
            self.up.clear();
        }
        if self.inner.write(&mut self.down).is_err() {
            return Next::Over;
        }
        if self.inner.ended && self.up.is_empty() {
            outer.shut();
        }
        if outer.ended && self.down.is_empty() {
            self.inner.shut();
            return Next::Over;
        }
        Next::On
    }

    /// Given up on, whatever it was waiting for.
    pub(crate) fn late(&mut self) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Asking) {
            Stage::Asking | Stage::Carrying { .. } => Next::Over,
            Stage::Resolving { target, .. } => {
                self.refuse(&target.host, target.port, EgressRefusal::NotResolved)
            }
            Stage::Connecting { target, .. } => {
                self.refuse(&target.host, target.port, EgressRefusal::Unreachable)
            }
        }
    }

    pub(crate) fn too_many(&mut self) -> Next {
        match self.forward {
            Some(port) => self.refuse(HOST, port, EgressRefusal::TooMany),
            None => self.refuse("", 0, EgressRefusal::TooMany),
        }
    }

    fn refuse(&mut self, host: &str, port: u16, reason: EgressRefusal) -> Next {
        if self.forward.is_none() {
            self.answer(host, port, reason);
        }
        self.inner.shut();
        Next::Refused(Notice::EgressRefused { host: host.to_owned(), port, reason })
    }

    /// Says in HTTP why not.
    fn answer(&mut self, host: &str, port: u16, reason: EgressRefusal) {
        let (status, text) = match reason {
            EgressRefusal::NotAllowed => ("403 Forbidden", "is not on this sandbox's list of hosts"),
            EgressRefusal::PrivateAddress => ("403 Forbidden", "is not a public address"),
            EgressRefusal::NotResolved => ("502 Bad Gateway", "could not be resolved"),
            EgressRefusal::BadRequest => ("400 Bad Request", "is not a request to a proxy"),
            EgressRefusal::Unreachable => ("504 Gateway Timeout", "could not be reached"),
            EgressRefusal::TooMany => ("503 Service Unavailable", "too many connections"),
        };
        let body = if host.is_empty() { format!("{text}\n") } else { format!("{host}:{port} {text}\n") };
        self.down = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes();
        // A new socket has room for this.
        let _ = self.inner.write(&mut self.down);
    }
}

fn begin(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    // A quiet stream whose other side vanished ends some day.
    sockopt::set_socket_keepalive(&socket, true)?;
    match rustix::net::connect(socket.as_fd(), &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}
