//! The only way out of a sandbox whose network is a list of hosts: a proxy on its loopback, carried by the keeper.
//!
//! It takes `CONNECT` and plain requests with a whole address, resolves names itself, refuses every address that is
//! not public but for the forwards that the operator named, and connects to exactly the address it looked at. Each
//! forward has a port of its own inside as well, from which bytes are carried as they are. It outlives the server with
//! the keeper, so that a model's stream is not cut. Everything is bounded, and every refusal is told with the host's
//! name.

mod head;
mod policy;
mod relay;
mod resolve;

use crate::{
    config::Network,
    poller::{Poller, READ, Side},
    wire::Notice,
};
use policy::Policy;
use relay::{Next, Relay};
use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    fd::OwnedFd,
    io::Errno,
    net::SocketFlags,
};
use std::{collections::VecDeque, time::Instant};

/// Connections carried at once.
const RELAYS: usize = 256;
/// Refusals not yet fetched by the keeper, which fetches them after every round of events.
const REFUSALS: usize = 1024;

#[derive(Debug)]
pub(crate) struct Egress {
    /// Ready when any of the listeners is.
    ready: OwnedFd,
    listeners: Vec<Listener>,
    port: u16,
    policy: Policy,
    relays: Vec<Relay>,
    refusals: VecDeque<Notice>,
    next_id: u32,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    leads: Leads,
}

/// What somebody who connects wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leads {
    /// To say where to.
    ToProxy,
    /// The same port of the host's loopback.
    ToHost(u16),
}

impl Egress {
    /// The first listener is the proxy's; without any there is no way out.
    pub(crate) fn new(sockets: Vec<OwnedFd>, network: &Network) -> Result<Option<Self>, Errno> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let (mut proxy, mut listeners) = (None, Vec::new());
        for socket in sockets {
            let address: std::net::SocketAddr =
                rustix::net::getsockname(&socket)?.try_into().map_err(|_| Errno::AFNOSUPPORT)?;
            epoll::add(&ready, &socket, EventData::new_u64(0), READ)?;
            let leads = if proxy.is_some() { Leads::ToHost(address.port()) } else { Leads::ToProxy };
            proxy = proxy.or(Some(address.port()));
            listeners.push(Listener { socket, leads });
        }
        Ok(proxy.map(|port| Self {
            ready,
            listeners,
            port,
            policy: Policy::new(network),
            relays: Vec::new(),
            refusals: VecDeque::new(),
            next_id: 0,
        }))
    }

    pub(crate) fn listener(&self) -> &OwnedFd {
        &self.ready
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Takes one connection of each listener that has any.
    pub(crate) fn accept(&mut self, poller: &Poller) {
        for at in 0..self.listeners.len() {
            let Listener { socket, leads } = &self.listeners[at];
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            if let Ok(socket) = rustix::net::accept_with(socket, flags) {
                self.begin(socket, *leads, poller);
            }
        }
    }

    fn begin(&mut self, socket: OwnedFd, leads: Leads, poller: &Poller) {
        self.next_id = self.next_id.wrapping_add(1);
        let mut relay = match leads {
            Leads::ToProxy => Relay::new(self.next_id, socket),
            Leads::ToHost(port) => Relay::forward(self.next_id, socket, port),
        };
        let next = if self.relays.len() < RELAYS { relay.begin() } else { relay.too_many() };
        self.relays.push(relay);
        self.settle(self.relays.len() - 1, next, poller);
    }

    fn tell(&mut self, refusal: Notice) {
        if self.refusals.len() < REFUSALS {
            self.refusals.push_back(refusal);
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
                self.tell(notice);
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
                match self.relays.swap_remove(at).late() {
                    Next::Refused(notice) => self.tell(notice),
                    Next::On | Next::Over => {}
                }
            }
        }
    }

    pub(crate) fn refusals(&mut self) -> impl Iterator<Item = Notice> {
        self.refusals.drain(..)
    }
}
