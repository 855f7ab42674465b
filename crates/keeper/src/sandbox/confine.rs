//! stub
use crate::sys::Step;
use rustix::{io::Errno, process::{Gid, Uid}};
pub(crate) fn seal(_f: &[Step]) -> Result<(), Errno> { Ok(()) }
pub(crate) fn become_user(_u: Uid, _g: Gid) -> Result<(), Errno> { Ok(()) }
