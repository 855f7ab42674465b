//! Why a sandbox could not be made, in words, with what to do about it.

use crate::start::Failure;
use rustix::io::Errno;

pub(crate) fn failure(what: &str, error: Errno) -> Failure {
    Failure::new(format!("the sandbox could not {what}: {error}"), fix(&Machine::look(), what, error))
}

/// The settings that commonly stand in the way.
#[derive(Debug, Default)]
struct Machine {
    root: bool,
    apparmor_restricts: bool,
    clone_forbidden: bool,
    no_namespaces: bool,
}

impl Machine {
    fn look() -> Self {
        let is =
            |path: &str, value: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
        Self {
            root: rustix::process::geteuid().is_root(),
            apparmor_restricts: is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            clone_forbidden: is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            no_namespaces: is("/proc/sys/user/max_user_namespaces", "0"),
        }
    }
}

fn fix(machine: &Machine, what: &str, error: Errno) -> String {
    if machine.no_namespaces {
        return "user namespaces are switched off: sysctl -w user.max_user_namespaces=65536".to_owned();
    }
    if matches!(error, Errno::PERM | Errno::ACCESS) {
        if machine.clone_forbidden && !machine.root {
            return "ordinary users may not make user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
                .to_owned();
        }
        if machine.apparmor_restricts && !machine.root {
            return "AppArmor keeps ordinary users out of user namespaces (Ubuntu 23.10 and later): \
                    sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give the keeper an AppArmor profile \
                    with \"userns,\", or run the server as root"
                .to_owned();
        }
        if what.contains("/proc") {
            return "this looks like a container that masks parts of /proc; start it with \
                    --security-opt systempaths=unconfined, or choose place = \"host\""
                .to_owned();
        }
        return "the machine or the container around it forbids this; in Docker start with \
                --security-opt seccomp=unconfined --security-opt systempaths=unconfined, or choose place = \"host\""
            .to_owned();
    }
    match error {
        Errno::NOSPC | Errno::USERS => {
            "the machine's bound on namespaces is reached: raise user.max_user_namespaces and its like"
                .to_owned()
        }
        Errno::NOSYS | Errno::INVAL => {
            "the kernel lacks what a sandbox needs; Linux 5.14 or later with namespaces is required"
                .to_owned()
        }
        _ => "look at the message, or choose place = \"host\" to run without isolation".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_has_its_command() {
        let ubuntu = Machine { apparmor_restricts: true, ..Machine::default() };
        let debian = Machine { clone_forbidden: true, ..Machine::default() };
        let off = Machine { no_namespaces: true, ..Machine::default() };
        let root = Machine { root: true, apparmor_restricts: true, ..Machine::default() };
        for (machine, what, error, expected) in [
            (&ubuntu, "mount", Errno::ACCESS, "apparmor_restrict_unprivileged_userns=0"),
            (&debian, "make its namespaces", Errno::PERM, "unprivileged_userns_clone=1"),
            (&off, "make its namespaces", Errno::NOSPC, "max_user_namespaces=65536"),
            (&root, "mount /proc", Errno::PERM, "systempaths=unconfined"),
            (&root, "make its namespaces", Errno::PERM, "seccomp=unconfined"),
            (&root, "make its namespaces", Errno::NOSYS, "Linux 5.14"),
            (&root, "make its namespaces", Errno::NOSPC, "bound on namespaces"),
        ] {
            let text = fix(machine, what, error);
            assert!(text.contains(expected), "{text}");
        }
    }
}
