//! Names to addresses, by a child process: the C library's resolver blocks, and what it parses comes from strangers.

use crate::sys::{self, Descriptors, Side};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    pipe::PipeFlags,
    process::{Gid, Signal, Uid},
};
use std::net::{IpAddr, ToSocketAddrs};

/// Addresses of one name that are tried.
pub(crate) const ADDRESSES: usize = 8;
/// Seconds after which a resolver is killed.
pub(crate) const SECONDS: u32 = 10;
/// An address on the pipe: in its IPv6 form, and whether it is one of IPv4.
const RECORD: usize = 17;
/// Somebody without rights, on every Linux.
const NOBODY: u32 = 65534;
/// Where the child keeps its one descriptor.
const ANSWER: i32 = 3;

/// Starts a resolver for `host`; the answer comes on the returned descriptor, which ends with it.
pub(crate) fn start(host: &str) -> Result<OwnedFd, Errno> {
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    match sys::clone(0, None)? {
        Side::Parent(_) => Ok(ours),
        Side::Child => {
            let _ = work(host, theirs.as_fd());
            sys::exit_now(0)
        }
    }
}

fn work(host: &str, answer: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    sys::default_signals();
    sys::end_after(SECONDS);
    // The keeper's pipes must not stay open because a name server is slow.
    sys::place_descriptor(answer, ANSWER)?;
    sys::descriptors_from(ANSWER.cast_unsigned() + 1, Descriptors::Closed)?;
    if rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let found = (host, 0).to_socket_addrs().map_err(|_| Errno::NOENT)?;
    let mut bytes = Vec::new();
    for address in found.take(ADDRESSES) {
        bytes.extend(encode(address.ip()));
    }
    sys::write_to(ANSWER, &bytes)
}

fn encode(address: IpAddr) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    match address {
        IpAddr::V4(address) => record[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => {
            record[..16].copy_from_slice(&address.octets());
            record[16] = 1;
        }
    }
    record
}

/// The addresses that a resolver found, each once.
pub(crate) fn addresses(bytes: &[u8]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for record in bytes.chunks_exact(RECORD).take(ADDRESSES) {
        let mut v6 = [0; 16];
        v6.copy_from_slice(&record[..16]);
        let [a, b, c, d, ..] = v6;
        let address = if record[16] == 0 { IpAddr::from([a, b, c, d]) } else { IpAddr::from(v6) };
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_cross_the_pipe() {
        let all: Vec<IpAddr> = vec!["8.8.8.8".parse().unwrap(), "::ffff:10.0.0.1".parse().unwrap()];
        let bytes: Vec<u8> = all.iter().chain(&all).flat_map(|address| encode(*address)).collect();
        assert_eq!(addresses(&bytes), all);
        assert_eq!(addresses(&bytes[..20]), all[..1]);
        assert!(addresses(&[]).is_empty());
    }
}
