//! The sandbox's first process: it builds the root, gives up its rights, says how it went, and then does nothing for as
//! long as the sandbox lives. Children that others leave behind are reaped by the kernel, because it ignores their
//! signal. It holds no descriptor, and nobody inside can look into it.

use super::{confine, explain, root};
use crate::{
    cgroup::Entry,
    config::{self, Network},
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
/// Ports of the host that one sandbox may be let through to; their listeners cross in one message.
pub(crate) const FORWARDS: usize = 128;
/// The way out's own listener, and the forwards'.
const LISTENERS: usize = 1 + FORWARDS;
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
pub(crate) fn main(
    wanted: &config::Sandbox,
    entry: &Entry<'_>,
    socket: &OwnedFd,
    mapped: Option<OwnedFd>,
) -> ! {
    let mut go = [0];
    // A keeper that died meanwhile closed its end.
    if !matches!(rustix::io::read(socket, &mut go), Ok(1)) {
        sys::exit_now(1);
    }
    match set_up(wanted, entry, mapped) {
        Ok(way_out) => {
            if send(socket.as_fd(), &[READY], &way_out).is_err() {
                sys::exit_now(1);
            }
        }
        Err(trouble) => {
            let mut report = vec![FAILED];
            report.extend(trouble.error.raw_os_error().to_le_bytes());
            report.extend(trouble.what.as_bytes());
            report.truncate(REPORT_BYTES);
            let _ = send(socket.as_fd(), &report, &[]);
            sys::exit_now(1);
        }
    }
    let _ = sys::descriptors_from(0, Descriptors::Closed);
    loop {
        sys::pause();
    }
}

/// The listeners of the way out, its own first.
fn set_up(
    wanted: &config::Sandbox,
    entry: &Entry<'_>,
    mapped: Option<OwnedFd>,
) -> Result<Vec<OwnedFd>, Trouble> {
    entry.enter().map_err(trouble("enter its cgroup"))?;
    rustix::process::setsid().map_err(trouble("leave the keeper's session"))?;
    let sources = root::Sources::open(wanted, mapped)?;
    let uid = rustix::process::Uid::from_raw(wanted.inside_uid);
    let gid = rustix::process::Gid::from_raw(wanted.inside_gid);
    confine::become_user(uid, gid).map_err(trouble("become its own user"))?;
    sources.build(wanted)?;
    rustix::system::sethostname(wanted.hostname.as_bytes()).map_err(trouble("set its host name"))?;
    let way_out = match &wanted.network {
        Network::Full {} => Vec::new(),
        Network::None {} => {
            loopback().map(|_| Vec::new()).map_err(trouble("bring up its loopback network"))?
        }
        Network::Allow { forwards, .. } => way_out(forwards)?,
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

/// Where the proxy listens, and each port that is carried to the host's own. A forward of the proxy's own port is
/// reached through the proxy only.
fn way_out(forwards: &[u16]) -> Result<Vec<OwnedFd>, Trouble> {
    let mut ports = vec![PROXY_PORT];
    for port in forwards {
        if !ports.contains(port) {
            ports.push(*port);
        }
    }
    if ports.len() > LISTENERS {
        return Err(trouble(format!("listen for more than {FORWARDS} forwards"))(Errno::TOOBIG));
    }
    let listen = |port| listen(port).map_err(trouble(format!("listen on port {port} for its way out")));
    ports.into_iter().map(listen).collect()
}

fn listen(port: u16) -> Result<OwnedFd, Errno> {
    let socket = loopback()?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(LISTENERS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// In the keeper: the user is mapped, begin.
pub(crate) fn go(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::io::write(socket, &[1]).map(drop)
}

/// In the keeper: how it went, with the listeners of the way out.
pub(crate) fn outcome(socket: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Failure> {
    let mut bytes = [0; REPORT_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(LISTENERS))];
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
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    let cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
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
