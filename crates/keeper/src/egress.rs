//! stub
use crate::{config::Network, poller::{Poller, Side}, wire::Notice};
use rustix::{event::epoll::EventFlags, fd::OwnedFd, io::Errno};
use std::time::Instant;
#[derive(Debug)]
pub(crate) struct Egress { listener: OwnedFd, port: u16 }
impl Egress {
    pub(crate) fn new(listener: OwnedFd, _n: &Network) -> Result<Self, Errno> { Ok(Self { listener, port: 0 }) }
    pub(crate) fn listener(&self) -> &OwnedFd { &self.listener }
    pub(crate) fn port(&self) -> u16 { self.port }
    pub(crate) fn accept(&mut self, _p: &Poller) {}
    pub(crate) fn event(&mut self, _i: u32, _s: Side, _f: EventFlags, _p: &Poller, _b: &mut Vec<u8>) {}
    pub(crate) fn deadline(&self) -> Option<Instant> { None }
    pub(crate) fn tick(&mut self, _n: Instant) {}
    pub(crate) fn refusals(&mut self) -> Vec<Notice> { Vec::new() }
}
