//! stub
pub(crate) mod confine;
use crate::{cgroup::{Cgroups, Group}, config, start::Failure, sys::Step};
use rustix::{fd::OwnedFd, io::Errno, process::Pid};
#[derive(Debug)]
pub(crate) struct Sandbox { init: Pid, filter: Vec<Step>, group: Group }
impl Sandbox {
    pub(crate) fn make(_w: &config::Sandbox, _c: &Cgroups) -> Result<Self, Failure> { Err(Failure::new("no", "no")) }
    pub(crate) fn take_way_out(&mut self) -> Option<OwnedFd> { None }
    pub(crate) fn enter(&self) -> Result<(), Errno> { Ok(()) }
    pub(crate) fn filter(&self) -> &[Step] { &self.filter }
    pub(crate) fn init(&self) -> Pid { self.init }
    pub(crate) fn group(&self) -> &Group { &self.group }
    pub(crate) fn kill(&self) {}
}
