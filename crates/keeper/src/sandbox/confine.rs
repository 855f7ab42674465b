//! What every process inside gives up before it runs anything: the keeper's identity, all capabilities for good, new
//! privileges, and the system calls that the filter refuses.

use crate::sys::{self, Step};
use rustix::{
    io::Errno,
    process::{Gid, Uid},
    thread::{CapabilitySet, CapabilitySets},
};

/// Becomes the sandbox's one user. Capabilities within the namespace stay until [`drop_rights`].
pub(crate) fn become_user(uid: Uid, gid: Gid) -> Result<(), Errno> {
    match rustix::thread::set_thread_groups(&[]) {
        // A keeper that is not root had to give up changing groups. Those left mean nothing inside, but for files
        // of these groups on mounts that the operator adds.
        Ok(()) | Err(Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// The last step, which nothing undoes.
pub(crate) fn seal(filter: &[Step]) -> Result<(), Errno> {
    drop_rights()?;
    sys::install_filter(filter)
}

/// All capabilities, and the ways to new ones.
pub(crate) fn drop_rights() -> Result<(), Errno> {
    for number in 0..u64::BITS {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << number,
        )) {
            Ok(()) => {}
            // Beyond the last that this kernel knows.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    rustix::thread::set_no_new_privs(true)
}
