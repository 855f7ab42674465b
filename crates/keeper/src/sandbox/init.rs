//! The sandbox's first process: it builds the root, gives up its rights, says how it went, and then does nothing for as
//! long as the sandbox lives. Children that others leave behind are reaped by the kernel, because it ignores their
//! signal. It holds no descriptor, and nobody inside can look into it.

use super::{confine, explain, root};
use crate::{
    cgroup::Entry,
    config::{self, INSIDE_ID, Network},
    start::Failure,
    sys::{self, Descriptors},
};
use rustix::{
    cmsg_space,
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
    process::{DumpableBehavior, Signal},
};
use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::{Ipv4Addr, SocketAddrV4},
};

/// Where programs inside find the way out.
pub(crate) const PROXY_PORT: u16 = 3128;
const BACKLOG: i32 = 64;
/// The longest report.
const REPORT_BYTES: usize = 1024;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// What could not be done, as the end of "the sandbox could not".
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) what: String,
    pub(crate) error: Errno,
}

pub(crate) fn trouble(what: impl Into<String>) -> impl FnOnce(Errno) -> Trouble {
    move |error| Trouble { what: what.into(), error }
}

/// In the new process, which never leaves it.
pub(crate) fn main(wanted: &config::Sandbox, entry: &Entry<'_>, socket: &OwnedFd) -> ! {
    let mut go = [0];
    // A keeper that died meanwhile closed its end.
    if !matches!(rustix::io::read(socket, &mut go), Ok(1)) {
        sys::exit_now(1);
    }
    match set_up(wanted, entry) {
        Ok(way_out) => {
            if send(socket.as_fd(), &[READY], way_out.as_ref().map(AsFd::as_fd)).is_err() {
                sys::exit_now(1);
            }
        }
        Err(trouble) => {
            let mut report = vec![FAILED];
            report.extend(trouble.error.raw_os_error().to_le_bytes());
            report.extend(trouble.what.as_bytes());
            report.truncate(REPORT_BYTES);
            let _ = send(socket.as_fd(), &report, None);
            sys::exit_now(1);
        }
    }
    let _ = sys::descriptors_from(0, Descriptors::Closed);
    loop {
        sys::pause();
    }
}

fn set_up(wanted: &config::Sandbox, entry: &Entry<'_>) -> Result<Option<OwnedFd>, Trouble> {
    entry.enter().map_err(trouble("enter its cgroup"))?;
    rustix::process::setsid().map_err(trouble("leave the keeper's session"))?;
    let sources = root::Sources::open(wanted)?;
    let (uid, gid) = (rustix::process::Uid::from_raw(INSIDE_ID), rustix::process::Gid::from_raw(INSIDE_ID));
    confine::become_user(uid, gid).map_err(trouble("become its own user"))?;
    sources.build(wanted)?;
    rustix::system::sethostname(wanted.hostname.as_bytes()).map_err(trouble("set its host name"))?;
    let way_out = match wanted.network {
        Network::Full {} => None,
        Network::None {} => loopback().map(|_| None).map_err(trouble("bring up its loopback network"))?,
        Network::Allow { .. } => Some(listen().map_err(trouble("listen for its way out"))?),
    };
    sys::default_signals();
    sys::ignore(Signal::CHILD.as_raw());
    // No filter: it runs nothing but the loop below, and installing one costs as much as a mount.
    confine::drop_rights().map_err(trouble("give up its rights"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(trouble("hide its first process"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(trouble("tie its life to the keeper's"))?;
    Ok(way_out)
}

fn loopback() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sys::loopback_up(socket.as_fd())?;
    Ok(socket)
}

fn listen() -> Result<OwnedFd, Errno> {
    let socket = loopback()?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, PROXY_PORT))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd
        && !control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)))
    {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// In the keeper: the user is mapped, begin.
pub(crate) fn go(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::io::write(socket, &[1]).map(drop)
}

/// In the keeper: how it went.
pub(crate) fn outcome(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Failure> {
    let mut bytes = [0; REPORT_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(explain::failure("hear from its first process", error)),
            Ok(received) => break received,
        }
    };
    let fds = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let cut = received.flags.contains(ReturnFlags::TRUNC);
    match bytes.get(..received.bytes) {
        Some([READY]) if !cut => Ok(fds),
        Some([FAILED, rest @ ..]) => {
            let (number, text) = rest.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
            let error = Errno::from_raw_os_error(i32::from_le_bytes(*number));
            Err(explain::failure(&String::from_utf8_lossy(text), error))
        }
        _ => Err(explain::failure("keep its first process alive", Errno::CHILD)),
    }
}
