//! The only way out of a sandbox whose network is a list of hosts: a proxy on its loopback, carried by the keeper.
//!
//! It takes `CONNECT` and plain requests with a whole address, resolves names itself, refuses every address that is
//! not public but for the forwards that the operator named, and connects to exactly the address it looked at. It
//! outlives the server with the keeper, so that a model's stream is not cut. Everything is bounded, and every refusal
//! is told with the host's name.

mod head;
mod policy;
mod relay;
mod resolve;

use crate::{
    config::Network,
    poller::{Poller, Side},
    wire::Notice,
};
use policy::Policy;
use relay::{Next, Relay};
use rustix::{event::epoll::EventFlags, fd::OwnedFd, io::Errno, net::SocketFlags};
use std::{collections::VecDeque, time::Instant};

/// Connections carried at once.
const RELAYS: usize = 256;
/// Refusals not yet fetched by the keeper, which fetches them after every round of events.
const REFUSALS: usize = 1024;

#[derive(Debug)]
pub(crate) struct Egress {
    listener: OwnedFd,
    port: u16,
    policy: Policy,
    relays: Vec<Relay>,
    refusals: VecDeque<Notice>,
    next_id: u32,
}

impl Egress {
    pub(crate) fn new(listener: OwnedFd, network: &Network) -> Result<Self, Errno> {
        let address: std::net::SocketAddr =
            rustix::net::getsockname(&listener)?.try_into().map_err(|_| Errno::AFNOSUPPORT)?;
        Ok(Self {
            listener,
            port: address.port(),
            policy: Policy::new(network),
            relays: Vec::new(),
            refusals: VecDeque::new(),
            next_id: 0,
        })
    }

    pub(crate) fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn accept(&mut self, poller: &Poller) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { return };
        self.next_id = self.next_id.wrapping_add(1);
        let mut relay = Relay::new(self.next_id, socket);
        if self.relays.len() >= RELAYS {
            relay.too_many();
            return;
        }
        if relay.watch(poller).is_ok() {
            self.relays.push(relay);
        }
    }

    pub(crate) fn event(
        &mut self,
        id: u32,
        side: Side,
        flags: EventFlags,
        poller: &Poller,
        scratch: &mut [u8],
    ) {
        let Some(at) = self.relays.iter().position(|relay| relay.id == id) else { return };
        let next = self.relays[at].event(side, flags, &self.policy, poller, scratch);
        self.settle(at, next, poller);
    }

    fn settle(&mut self, at: usize, next: Next, poller: &Poller) {
        match next {
            Next::On if self.relays[at].watch(poller).is_ok() => {}
            Next::On | Next::Over => drop(self.relays.swap_remove(at)),
            Next::Refused(notice) => {
                self.relays.swap_remove(at);
                if self.refusals.len() < REFUSALS {
                    self.refusals.push_back(notice);
                }
            }
        }
    }

    /// When the first connection that has not come about is given up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.relays.iter().filter_map(|relay| relay.deadline).min()
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        for at in (0..self.relays.len()).rev() {
            if self.relays[at].deadline.is_some_and(|deadline| now >= deadline) {
                let next = self.relays[at].late();
                match next {
                    Next::Refused(notice) if self.refusals.len() < REFUSALS => {
                        self.refusals.push_back(notice);
                    }
                    Next::Refused(_) | Next::On | Next::Over => {}
                }
                self.relays.swap_remove(at);
            }
        }
    }

    pub(crate) fn refusals(&mut self) -> impl Iterator<Item = Notice> {
        self.refusals.drain(..)
    }
}
