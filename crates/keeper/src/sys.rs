//! The system calls that rustix does not have, and the only `unsafe` of this crate.
//!
//! The keeper has one thread, always: nothing in this crate starts another. That is what makes a child after
//! [`clone`] an ordinary program that may allocate, and it is the proof that several blocks below lean on.

#![expect(unsafe_code, reason = "the one module of system call wrappers, each block with its proof")]

use rustix::{
    fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    io::Errno,
    process::Pid,
};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_long},
    ptr,
};

type Result<T> = std::result::Result<T, Errno>;

fn checked(returned: c_long) -> Result<c_long> {
    if returned < 0 { Err(last()) } else { Ok(returned) }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Who returns from [`clone`].
#[derive(Debug)]
pub(crate) enum Side {
    Parent(Pid),
    Child,
}

/// Flags of [`clone`]: users alone.
pub(crate) const NEW_USERS: u64 = libc::CLONE_NEWUSER as u64;
/// Flags of [`clone`]; all namespaces of a sandbox but the network's.
pub(crate) const NEW_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;
pub(crate) const NEW_NETWORK: u64 = libc::CLONE_NEWNET as u64;
/// The C library's constant of this name is an int, too small for it.
const INTO_CGROUP: u64 = 0x2_0000_0000;
/// The child belongs to the caller's own parent.
pub(crate) const SIBLING: u64 = libc::CLONE_PARENT as u64;

/// A fork, with namespaces and straight into a cgroup of version 2 if one is given.
pub(crate) fn clone(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Side> {
    // SAFETY: `clone_args` is plain data for which all zeroes is valid and means "a fork".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags;
    // A sibling inherits the signal of the caller, and naming another is refused.
    args.exit_signal = if flags & SIBLING == 0 { libc::SIGCHLD as u64 } else { 0 };
    if let Some(cgroup) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd().cast_unsigned().into();
    }
    // SAFETY: `args` lives across the call and its size is given. Neither CLONE_VM nor a stack is asked for, so
    // the child runs on its own copy of this stack, as after fork. There is one thread (see the module), so
    // no lock is held by somebody who is not in the child.
    let pid =
        checked(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) });
    match pid {
        // Kernels before 5.3, and the filters that containers run under.
        Err(Errno::NOSYS | Errno::PERM) if flags == 0 => fork(cgroup),
        pid => Ok(side(pid?)),
    }
}

fn side(pid: c_long) -> Side {
    c_int::try_from(pid).ok().and_then(Pid::from_raw).map_or(Side::Child, Side::Parent)
}

/// The old way, in which the child moves itself into its cgroup.
fn fork(cgroup: Option<BorrowedFd<'_>>) -> Result<Side> {
    let procs = cgroup.map(|folder| {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::openat(folder, "cgroup.procs", flags, rustix::fs::Mode::empty())
    });
    let procs = procs.transpose()?;
    // SAFETY: no arguments, no memory. There is one thread (see the module).
    let side = side(checked(unsafe { libc::fork() }.into())?);
    if let (Side::Child, Some(procs)) = (&side, &procs)
        && rustix::io::write(procs, b"0").is_err()
    {
        // Outside of its group nobody could end what it starts.
        exit_now(127);
    }
    Ok(side)
}

/// Ends this process without running anything on the way out, as a child that shares its parent's state must.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: `_exit` takes a number, returns never and touches no memory.
    unsafe { libc::_exit(code) }
}

/// Strings as exec takes them.
pub(crate) struct Strings {
    /// Null-terminated; each entry but the last points into `_owned`, whose heap blocks never move.
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

impl Strings {
    pub(crate) fn new(owned: Vec<CString>) -> Self {
        let pointers = owned.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        Self { pointers, _owned: owned }
    }
}

/// Becomes another program; returns only why not.
pub(crate) fn exec(path: &CStr, argv: &Strings, env: &Strings) -> Errno {
    // SAFETY: all three are null-terminated and owned by values that live across the call.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
    last()
}

/// Gives `fd` the number `number`, replacing what had it, and lets it cross exec.
pub(crate) fn place_descriptor(fd: BorrowedFd<'_>, number: c_int) -> Result<()> {
    // SAFETY: dup2 takes two numbers. It is called in a child right before exec, where no Rust value that owns
    // `number` is used any more.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// What becomes of descriptors from `first` on.
#[derive(Clone, Copy)]
pub(crate) enum Descriptors {
    Closed,
    ClosedByExec,
}

pub(crate) fn descriptors_from(first: u32, fate: Descriptors) -> Result<()> {
    let flags = match fate {
        Descriptors::Closed => 0,
        Descriptors::ClosedByExec => libc::CLOSE_RANGE_CLOEXEC,
    };
    // SAFETY: three numbers, no memory. Closing for good is only asked for by a process that uses none of its
    // descriptors again.
    let done = checked(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) });
    match (done, fate) {
        // Kernels before 5.11.
        (Err(Errno::NOSYS | Errno::INVAL | Errno::PERM), Descriptors::ClosedByExec) => close_by_exec(first),
        (done, _) => done.map(drop),
    }
}

fn close_by_exec(first: u32) -> Result<()> {
    let entries = std::fs::read_dir("/proc/self/fd").map_err(|_| Errno::NOSYS)?;
    for entry in entries.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok());
        if let Some(number) = number.filter(|number| number.cast_unsigned() >= first) {
            // SAFETY: numbers only. One that was closed meanwhile, as the folder's own is, is refused.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Blocks SIGCHLD and SIGTERM and returns a descriptor that reads them instead.
pub(crate) fn signal_descriptor() -> Result<OwnedFd> {
    // SAFETY: `mask` is plain data, filled by sigemptyset before it is read, and lives across the calls.
    // signalfd returns a new descriptor that nobody else owns.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        libc::sigaddset(&raw mut mask, libc::SIGCHLD);
        libc::sigaddset(&raw mut mask, libc::SIGTERM);
        checked(libc::sigprocmask(libc::SIG_BLOCK, &raw const mask, ptr::null_mut()).into())?;
        let fd = libc::signalfd(-1, &raw const mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        checked(fd.into())?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Reads the signals waiting at a [`signal_descriptor`]: whether SIGTERM is among them.
pub(crate) fn terminated(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: `signalfd_siginfo` is plain data for which all zeroes is valid.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    let mut found = false;
    loop {
        // SAFETY: the buffer is one whole record, which is the least that signalfd returns.
        let read = unsafe {
            libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size_of::<libc::signalfd_siginfo>())
        };
        if read <= 0 {
            return found;
        }
        found |= info.ssi_signo == libc::SIGTERM.cast_unsigned();
    }
}

/// Every signal to its default and none blocked: both outlive exec, and few programs reset them.
pub(crate) fn default_signals() {
    // SAFETY: plain data for which all zeroes is valid (no handler, no flags), alive across the calls. Numbers
    // that cannot be set fail with EINVAL and change nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        for number in 1..=64 {
            libc::sigaction(number, &raw const action, ptr::null_mut());
        }
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
    }
}

pub(crate) fn ignore(signal: c_int) {
    // SAFETY: SIG_IGN is a constant that the kernel knows; no handler of ours is ever run.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sleeps until a signal; forever, for a process that ignores them all.
pub(crate) fn pause() {
    // SAFETY: no arguments, no memory.
    unsafe { libc::pause() };
}

/// Sets attributes of the mount at `fd` and, if asked, of all below it.
pub(crate) fn mount_attributes(fd: BorrowedFd<'_>, set: u64, reach: MountReach) -> Result<()> {
    // SAFETY: `mount_attr` is plain data for which all zeroes is valid and means "change nothing".
    let mut attributes: libc::mount_attr = unsafe { std::mem::zeroed() };
    attributes.attr_set = set;
    let flags = libc::AT_EMPTY_PATH
        | match reach {
            MountReach::One => 0,
            MountReach::Below => libc::AT_RECURSIVE,
        };
    set_attributes(fd, flags, &attributes)
}

/// Shows the files of the detached mount at `fd`, and of all below it, with other owners: as `users` says, a user
/// namespace in which the owners on disk are named.
pub(crate) fn mount_owners(fd: BorrowedFd<'_>, users: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: `mount_attr` is plain data for which all zeroes is valid and means "change nothing".
    let mut attributes: libc::mount_attr = unsafe { std::mem::zeroed() };
    attributes.attr_set = libc::MOUNT_ATTR_IDMAP;
    attributes.userns_fd = users.as_raw_fd().cast_unsigned().into();
    set_attributes(fd, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, &attributes)
}

fn set_attributes(fd: BorrowedFd<'_>, flags: c_int, attributes: &libc::mount_attr) -> Result<()> {
    // SAFETY: the path is a null-terminated constant, and `attributes` lives across the call with its size given.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

#[derive(Clone, Copy)]
pub(crate) enum MountReach {
    One,
    Below,
}

/// One instruction of a filter: code, jump if true, jump if false, operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step(pub(crate) u16, pub(crate) u8, pub(crate) u8, pub(crate) u32);

/// Installs a filter for this process and all that it starts. Needs no-new-privs.
pub(crate) fn install_filter(steps: &[Step]) -> Result<()> {
    let mut program: Vec<libc::sock_filter> = steps
        .iter()
        .map(|step| libc::sock_filter { code: step.0, jt: step.1, jf: step.2, k: step.3 })
        .collect();
    let length = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: `filter` points to `length` instructions, both alive across the call; the kernel copies and checks
    // them.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) })
        .map(drop)
}

/// Brings up `lo` in this network namespace, which needs the right to administer it.
pub(crate) fn loopback_up(socket: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: `ifreq` is plain data for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives across the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into())
        .map(drop)
}

/// Replaces standard error of this process by `fd`.
pub(crate) fn replace_error(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: two numbers. The standard library's handle for 2 stays valid, now meaning `fd`.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), 2) }.into()).map(drop)
}

/// Replaces standard input and output of this process by `fd`.
pub(crate) fn replace_standard(fd: BorrowedFd<'_>) -> Result<()> {
    for number in 0..=1 {
        // SAFETY: two numbers. The standard library's handles for 0 and 1 stay valid, now meaning `fd`.
        checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into())?;
    }
    Ok(())
}

/// Kills this process after so many seconds, unless it ended before.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: alarm takes a number. Its signal is at its default, which is the end.
    unsafe { libc::alarm(seconds) };
}

/// Writes to a descriptor that this process was given by number.
pub(crate) fn write_to(number: c_int, bytes: &[u8]) -> Result<()> {
    // SAFETY: `bytes` lives across the call and its length is given; a number that is not open is refused.
    checked(unsafe { libc::write(number, bytes.as_ptr().cast(), bytes.len()) } as c_long).map(drop)
}

/// Copies pieces of another process's memory, each given by address and length, one after the other into `to`.
/// All or nothing.
pub(crate) fn read_memory(pid: Pid, pieces: &[(u64, usize)], to: &mut Vec<u8>) -> Result<()> {
    let length: usize = pieces.iter().map(|piece| piece.1).sum();
    to.clear();
    to.resize(length, 0);
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: length };
    let remote: Vec<libc::iovec> = pieces
        .iter()
        .map(|(address, length)| libc::iovec {
            iov_base: ptr::without_provenance_mut(usize::try_from(*address).unwrap_or(0)),
            iov_len: *length,
        })
        .collect();
    // SAFETY: `local` names `length` writable bytes of `to`, which nobody else touches during the call. The remote
    // addresses are numbers to this process; the kernel checks them against the other's memory.
    let read = checked(unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    } as c_long);
    match read {
        Ok(read) if usize::try_from(read).is_ok_and(|read| read == length) => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        // Containers' filters before 2023 let nobody call it, and let everybody read the file.
        Err(Errno::PERM | Errno::NOSYS) => read_memory_file(pid, pieces, to),
        Err(error) => Err(error),
    }
}

fn read_memory_file(pid: Pid, pieces: &[(u64, usize)], to: &mut [u8]) -> Result<()> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let path = format!("/proc/{}/mem", pid.as_raw_nonzero());
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    let mut rest = to;
    for (address, length) in pieces {
        let (piece, later) = rest.split_at_mut(*length);
        if rustix::io::pread(&file, piece, *address)? != *length {
            return Err(Errno::FAULT);
        }
        rest = later;
    }
    Ok(())
}

/// Bytes that were sent on a socket and not yet read at its other end.
pub(crate) fn unread(socket: BorrowedFd<'_>) -> Result<usize> {
    let mut count: c_int = 0;
    // SAFETY: the request writes one int, which lives across the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) }.into())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Does something with files as another user, for whom what is made belongs to; as itself when none is named.
pub(crate) fn files_as<T>(user: Option<(u32, u32)>, work: impl FnOnce() -> T) -> T {
    let Some((uid, gid)) = user else { return work() };
    let (own_uid, own_gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: each takes a number and changes only this thread's identity towards file systems. They cannot fail for
    // root, who alone names another user; for anybody else they change nothing.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
    let done = work();
    // SAFETY: as above, back to what it was.
    unsafe {
        libc::setfsuid(own_uid);
        libc::setfsgid(own_gid);
    }
    done
}
