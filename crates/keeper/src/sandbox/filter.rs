//! The system calls that nothing inside needs and that reach deep into the kernel.
//!
//! A list of refusals, because programs inside are arbitrary: what is not named is allowed, and the namespaces and
//! the lack of capabilities hold it. Refused with EPERM, or with ENOSYS where programs know how to go on without:
//!
//! - mounts, roots and namespaces (`mount`, `pivot_root`, `setns`, `unshare`, `clone` with new namespaces): the
//!   sandbox's own walls, and the way to kernel code that otherwise only root reaches. `clone3` hides its flags behind
//!   a pointer, so it does not exist; C libraries fall back to `clone`.
//! - other processes' insides (`ptrace`, `process_vm_*`, `pidfd_getfd`, `kcmp`): sessions may share a sandbox.
//!   Debuggers and tracers do not work inside; that is the price.
//! - keys (`keyctl` and its kin): keyrings are not per namespace.
//! - kernel machinery (`bpf`, `perf_event_open`, `userfaultfd`, `io_uring`, modules, kexec, `fanotify`,
//!   `open_by_handle_at`): large, and the stuff of escapes.
//! - the machine (`reboot`, `swapon`, clocks, host names, `syslog`, `acct`, quotas, ports): root's business, refused
//!   twice.
//! - sockets of other families than Unix, IP and netlink: raw packets, VSOCK (which reaches a virtual machine's
//!   host past every network namespace), ALG and the rarely tested rest. Raw IP sockets need a capability.
//! - in a project, whose files others on the machine may run: making a file set-user-id.
//! - terminals: `TIOCSTI` and `TIOCLINUX`, which type into somebody else's.
//!
//! System calls of another architecture (32-bit ones, x32) do not exist.

use crate::sys::Step;
use std::ffi::c_long;

const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Offsets within the kernel's record of a call. Arguments are little-endian 64-bit words, of which the low half
/// says everything that is looked at here.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST: u32 = 16;
const SECOND: u32 = 24;
const THIRD: u32 = 32;
const FOURTH: u32 = 40;

#[cfg(target_arch = "x86_64")]
const OWN_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OWN_ARCHITECTURE: u32 = 0xc000_00b7;

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    // CLONE_NEWTIME, which `clone` reads as a part of the signal.
    | 0x80)
    .cast_unsigned();

const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

const FORBIDDEN: &[c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

const ABSENT: &[c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

const SET_USER_ID: u32 = 0o4000;
/// With either, `open` makes a file and looks at its mode.
const MAKES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY).cast_unsigned();
/// Calls that give a file its mode, and where in their arguments it is.
const MODES: &[(c_long, u32)] = &[
    (libc::SYS_fchmod, SECOND),
    (libc::SYS_fchmodat, THIRD),
    (libc::SYS_fchmodat2, THIRD),
    (libc::SYS_mknodat, THIRD),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, SECOND),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, SECOND),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, SECOND),
];
/// Calls that do so when their flags say it, and where the flags and the mode are.
const OPENS: &[(c_long, u32, u32)] = &[
    (libc::SYS_openat, THIRD, FOURTH),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, SECOND, THIRD),
];

/// What may be done to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    /// They are the sandbox's own.
    Own,
    /// Others may run them: none becomes set-user-id.
    Shared,
}

/// Calls looked at one after the other before the next jump.
const GROUP: usize = 8;

/// In groups by number, so that a call passes a few comparisons and not all: the kernel runs the whole filter for
/// every number once when it is installed.
pub(crate) fn steps(files: Files) -> Vec<Step> {
    let mut steps = vec![
        Step(LOAD, 0, 0, ARCHITECTURE),
        Step(EQUAL, 1, 0, OWN_ARCHITECTURE),
        refuse(libc::ENOSYS),
        Step(LOAD, 0, 0, NUMBER),
    ];
    #[cfg(target_arch = "x86_64")]
    steps.extend([Step(AT_LEAST, 0, 1, 0x4000_0000), refuse(libc::ENOSYS)]);
    let mut rules = rules();
    if files == Files::Shared {
        rules.extend(mode_rules());
    }
    rules.sort_unstable_by_key(|(number, _)| *number);
    let groups: Vec<&[(u32, Vec<Step>)]> = rules.chunks(GROUP).collect();
    for (at, group) in groups.iter().enumerate() {
        let mut body = Vec::new();
        for (number, verdict) in *group {
            body.push(Step(EQUAL, 0, length(verdict), *number));
            body.extend(verdict);
        }
        body.push(Step(RETURN, 0, 0, ALLOW));
        if let Some((next, _)) = groups.get(at + 1).and_then(|next| next.first()) {
            steps.push(Step(AT_LEAST, length(&body), 0, *next));
        }
        steps.extend(body);
    }
    steps
}

fn length(steps: &[Step]) -> u8 {
    u8::try_from(steps.len()).unwrap_or(u8::MAX)
}

fn refuse(error: i32) -> Step {
    Step(RETURN, 0, 0, ERRNO | error.cast_unsigned())
}

/// What becomes of a call, by its number.
fn rules() -> Vec<(u32, Vec<Step>)> {
    let allow = Step(RETURN, 0, 0, ALLOW);
    let number = |call: c_long| u32::try_from(call).unwrap_or(u32::MAX);
    let mut rules = Vec::new();
    for (calls, error) in [(FORBIDDEN, libc::EPERM), (ABSENT, libc::ENOSYS)] {
        rules.extend(calls.iter().map(|call| (number(*call), vec![refuse(error)])));
    }
    // The time namespace's bit is a part of the signal in `clone`, so only `unshare` has it looked at.
    for (call, bits) in [(libc::SYS_clone, NEW_NAMESPACES & !0xff), (libc::SYS_unshare, NEW_NAMESPACES)] {
        let verdict = vec![Step(LOAD, 0, 0, FIRST), Step(ANY_BIT, 0, 1, bits), refuse(libc::EPERM), allow];
        rules.push((number(call), verdict));
    }
    let mut families = vec![Step(LOAD, 0, 0, FIRST)];
    for (at, family) in FAMILIES.iter().enumerate() {
        families.push(Step(EQUAL, length(&[allow; FAMILIES.len()][at..]), 0, family.cast_unsigned()));
    }
    families.extend([refuse(libc::EAFNOSUPPORT), allow]);
    rules.push((number(libc::SYS_socket), families));
    let terminals = vec![
        Step(LOAD, 0, 0, SECOND),
        Step(EQUAL, 1, 0, u32::try_from(libc::TIOCSTI).unwrap_or(0)),
        Step(EQUAL, 0, 1, u32::try_from(libc::TIOCLINUX).unwrap_or(0)),
        refuse(libc::EPERM),
        allow,
    ];
    rules.push((number(libc::SYS_ioctl), terminals));
    rules
}

fn mode_rules() -> Vec<(u32, Vec<Step>)> {
    let allow = Step(RETURN, 0, 0, ALLOW);
    let number = |call: c_long| u32::try_from(call).unwrap_or(u32::MAX);
    let judge = |mode| [Step(LOAD, 0, 0, mode), Step(ANY_BIT, 0, 1, SET_USER_ID), refuse(libc::EPERM), allow];
    // Its flags and mode are behind a pointer; who calls it knows how to go on without.
    let mut rules = vec![(number(libc::SYS_openat2), vec![refuse(libc::ENOSYS)])];
    rules.extend(MODES.iter().map(|(call, mode)| (number(*call), judge(*mode).to_vec())));
    for (call, flags, mode) in OPENS {
        let verdict = judge(*mode);
        let beyond = length(&verdict) - 1;
        let asked = [Step(LOAD, 0, 0, *flags), Step(ANY_BIT, 0, beyond, MAKES)];
        rules.push((number(*call), asked.into_iter().chain(verdict).collect()));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's machine, as far as the filter uses it.
    fn run(steps: &[Step], number: c_long, architecture: u32, arguments: [u64; 4]) -> u32 {
        let load = |at: u32| match at {
            NUMBER => u32::try_from(number).unwrap(),
            ARCHITECTURE => architecture,
            FIRST => arguments[0] as u32,
            SECOND => arguments[1] as u32,
            THIRD => arguments[2] as u32,
            FOURTH => arguments[3] as u32,
            _ => panic!("loads from {at}"),
        };
        let (mut at, mut value) = (0, 0);
        loop {
            let Step(code, yes, no, operand) = steps[at];
            let holds = match code {
                LOAD => {
                    value = load(operand);
                    at += 1;
                    continue;
                }
                RETURN => return operand,
                EQUAL => value == operand,
                AT_LEAST => value >= operand,
                ANY_BIT => value & operand != 0,
                _ => panic!("unknown code {code}"),
            };
            at += 1 + usize::from(if holds { yes } else { no });
        }
    }

    #[test]
    fn refusals_and_permissions() {
        [Files::Own, Files::Shared].into_iter().for_each(refusals_of);
    }

    #[test]
    fn nothing_becomes_set_user_id_where_others_may_run_it() {
        let (own, shared) = (steps(Files::Own), steps(Files::Shared));
        let made = libc::O_CREAT as u64;
        for (number, arguments, refused) in [
            (libc::SYS_fchmod, [3, 0o4755, 0, 0], true),
            (libc::SYS_fchmod, [3, 0o2755, 0, 0], false),
            (libc::SYS_fchmodat, [3, 0, 0o4755, 0], true),
            (libc::SYS_fchmodat, [3, 0o4000, 0o755, 0], false),
            (libc::SYS_openat, [3, 0, made, 0o4755], true),
            (libc::SYS_openat, [3, 0, libc::O_TMPFILE as u64, 0o4755], true),
            (libc::SYS_openat, [3, 0, made, 0o755], false),
            (libc::SYS_openat, [3, 0, libc::O_DIRECTORY as u64, 0o4755], false),
            (libc::SYS_mknodat, [3, 0, 0o4755, 0], true),
        ] {
            let verdict = if refused { ERRNO | libc::EPERM.cast_unsigned() } else { ALLOW };
            let name = format!("{number} {arguments:?}");
            assert_eq!(run(&shared, number, OWN_ARCHITECTURE, arguments), verdict, "{name}");
            assert_eq!(run(&own, number, OWN_ARCHITECTURE, arguments), ALLOW, "{name}");
        }
        let absent = ERRNO | libc::ENOSYS.cast_unsigned();
        assert_eq!(run(&shared, libc::SYS_openat2, OWN_ARCHITECTURE, [0; 4]), absent);
    }

    fn refusals_of(files: Files) {
        let steps = steps(files);
        let call = |number, first, second| run(&steps, number, OWN_ARCHITECTURE, [first, second, 0, 0]);
        let refused = |error: i32| ERRNO | error.cast_unsigned();
        for forbidden in FORBIDDEN {
            assert_eq!(call(*forbidden, 0, 0), refused(libc::EPERM), "{forbidden}");
        }
        for absent in ABSENT {
            assert_eq!(call(*absent, 0, 0), refused(libc::ENOSYS), "{absent}");
        }
        let fork = (libc::SIGCHLD | libc::CLONE_VM | libc::CLONE_VFORK) as u64;
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(call(libc::SYS_clone, fork | flag as u64, 0), refused(libc::EPERM));
            assert_eq!(call(libc::SYS_unshare, flag as u64, 0), refused(libc::EPERM));
        }
        assert_eq!(call(libc::SYS_unshare, 0x80, 0), refused(libc::EPERM));
        for (number, first, second) in [
            (libc::SYS_read, 0, 0),
            (libc::SYS_execve, 0, 0),
            (libc::SYS_clone, fork, 0),
            (libc::SYS_unshare, libc::CLONE_FILES as u64, 0),
            (libc::SYS_socket, libc::AF_UNIX as u64, 0),
            (libc::SYS_socket, libc::AF_INET as u64, 0),
            (libc::SYS_socket, libc::AF_INET6 as u64, 0),
            (libc::SYS_socket, libc::AF_NETLINK as u64, 0),
            (libc::SYS_ioctl, 0, libc::TCGETS),
            (c_long::from(u16::MAX), 0, 0),
        ] {
            assert_eq!(call(number, first, second), ALLOW, "{number} {first}");
        }
        for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH, 0] {
            assert_eq!(call(libc::SYS_socket, family as u64, 0), refused(libc::EAFNOSUPPORT), "{family}");
        }
        assert_eq!(call(libc::SYS_ioctl, 0, libc::TIOCSTI), refused(libc::EPERM));
        assert_eq!(call(libc::SYS_ioctl, 0, libc::TIOCLINUX), refused(libc::EPERM));
        assert_eq!(run(&steps, libc::SYS_read, 0x4000_0003, [0; 4]), refused(libc::ENOSYS));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(call(libc::SYS_read | 0x4000_0000, 0, 0), refused(libc::ENOSYS));
    }
}
