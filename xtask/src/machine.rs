//! What a fresh machine lacks: toolchain components, Python's venv for the tests with public clients, and an SSH server
//! and a container engine for the tests of other machines.

use crate::shell;
use anyhow::{Result, ensure};

/// A toolchain component, added when it is missing.
pub(crate) fn component(name: &str) -> Result<()> {
    let subcommand = if name == "rustfmt" { "fmt" } else { name };
    if shell::works("cargo", &[subcommand, "--version"]) {
        return Ok(());
    }
    eprintln!("$ rustup component add {name}");
    ensure!(
        shell::works("rustup", &["component", "add", name]),
        "cargo {subcommand} is missing and `rustup component add {name}` failed"
    );
    Ok(())
}

/// Python with venv. Its absence is not an error here: the tests that need it say that they are skipped.
pub(crate) fn python() {
    if shell::works("python3", &["-c", "import venv, ensurepip"]) {
        return;
    }
    eprintln!("$ apt-get install -y python3-venv");
    let update = shell::works("apt-get", &["update", "-q"]);
    let install = ["install", "-y", "-q", "--no-install-recommends", "python3", "python3-venv"];
    if !update || !shell::works("apt-get", &install) {
        eprintln!(
            "python3-venv is not there and cannot be installed; the tests with public clients are skipped"
        );
    }
}

/// An SSH server and a container engine. Their absence is not an error here: the tests that need them say that they are
/// skipped.
pub(crate) fn engines() {
    let there = |path: &str| std::path::Path::new(path).exists();
    if ["/usr/bin/ssh", "/usr/sbin/sshd", "/usr/sbin/dockerd", "/bin/busybox"].into_iter().all(there) {
        return;
    }
    eprintln!("$ apt-get install -y openssh-client openssh-server docker.io busybox-static");
    let update = shell::works("apt-get", &["update", "-q"]);
    let options = ["install", "-y", "-q", "--no-install-recommends"];
    let packages = ["openssh-client", "openssh-server", "docker.io", "iptables", "busybox-static"];
    if !update || !shell::works("apt-get", &[options.as_slice(), &packages].concat()) {
        eprintln!(
            "an SSH server and a container engine cannot be installed; the tests with them are skipped"
        );
    }
}
