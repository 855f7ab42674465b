//! A real SSH server on a free loopback port, with users and keys of its own.
//!
//! Nothing of the machine changes: the users are files that are laid over the machine's in a mount namespace of the
//! server's own. It needs root and the machine's `sshd`; where either is missing [`Sshd::start`] says so, and the
//! test is skipped.

use crate::{limits, process};
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

const PROGRAM: &str = "/usr/sbin/sshd";
/// The password of [`USER`], and how the machine writes it down.
pub const PASSWORD: &str = "correct horse";
const HASH: &str =
    "$6$outlast$32WYn3cg73rbAKb3NwPPw8SgnQroXD9z0w8FLGbMQptolcughoRQiAvUGPDDkOXMs1.UeTpYZNqXKdxo0nI7V/";
/// Who may log in, and has a login that prints something.
pub const USER: &str = "walker";
/// Who gets no shell.
pub const NOBODY: &str = "shut";
pub const USER_ID: u32 = 217_601;
const NOBODY_ID: u32 = 217_602;

/// A running server. Dropping it ends it and everything that came in by it.
#[derive(Debug)]
pub struct Sshd {
    dir: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Sshd {
    /// What is in the way on this machine, if that can be told beforehand.
    fn obstacle() -> Option<String> {
        if !Path::new(PROGRAM).exists() {
            return Some("openssh-server is not installed".to_owned());
        }
        let root = rustix::process::geteuid().is_root();
        (!root).then(|| "only root can give an SSH server users of its own".to_owned())
    }

    pub fn start() -> Result<Self> {
        if let Some(why) = Self::obstacle() {
            bail!("{why}");
        }
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut made = Self { dir, port, child: None };
        made.prepare()?;
        made.start_again()?;
        Ok(made)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The private key of [`USER`].
    pub fn key(&self) -> PathBuf {
        self.path("id")
    }

    /// A private key that no list has, with a certificate for [`USER`] beside it.
    pub fn certified_key(&self) -> PathBuf {
        self.path("signed")
    }

    /// Of the host's key of a kind: `ed25519` or `rsa`.
    pub fn fingerprint(&self, kind: &str) -> Result<String> {
        let file = self.path(&format!("host_{kind}.pub"));
        let shown = output("ssh-keygen", &["-l", "-f", &file.to_string_lossy()])?;
        shown.split_whitespace().nth(1).map(str::to_owned).context("a fingerprint")
    }

    /// A client's configuration that knows this host, and `name` as another name for it.
    pub fn client_config(&self, name: &str) -> Result<PathBuf> {
        let (known, config) = (self.path("known_hosts"), self.path("client_config"));
        fs::write(&known, self.known()?)?;
        let text = format!(
            "Host {name}\n  HostName 127.0.0.1\n  Port {}\n  User {USER}\n  IdentityFile {}\nHost *\n  \
             UserKnownHostsFile {}\n  GlobalKnownHostsFile none\n  IdentityAgent none\n",
            self.port,
            self.key().display(),
            known.display()
        );
        fs::write(&config, text)?;
        Ok(config)
    }

    /// As [`Self::client_config`], for who must go through another host first, and as `jump` gets in there.
    pub fn client_config_through(&self, name: &str, jump: &Self) -> Result<PathBuf> {
        let config = self.client_config(name)?;
        fs::write(self.path("known_hosts"), self.known()? + &jump.known()?)?;
        let mut text = format!("Host {name}\n  ProxyJump between\n");
        text.push_str(&format!(
            "Host between\n  HostName 127.0.0.1\n  Port {}\n  User {USER}\n  IdentityFile {}\n",
            jump.port,
            jump.key().display()
        ));
        fs::write(&config, text + &fs::read_to_string(&config)?)?;
        Ok(config)
    }

    /// The lines of a list of known hosts.
    fn known(&self) -> Result<String> {
        let mut lines = String::new();
        for kind in ["ed25519", "rsa"] {
            let key = fs::read_to_string(self.path(&format!("host_{kind}.pub")))?;
            lines.push_str(&format!("[127.0.0.1]:{} {key}", self.port));
        }
        Ok(lines)
    }

    /// A configuration that knows no host and has no key.
    pub fn stranger_config(&self) -> Result<PathBuf> {
        let config = self.path("stranger_config");
        let known = self.path("known_by_stranger");
        let text = format!(
            "UserKnownHostsFile {}\nGlobalKnownHostsFile none\nIdentityAgent none\nIdentityFile none\n",
            known.display()
        );
        fs::write(&config, text)?;
        Ok(config)
    }

    /// Where [`USER`] is at home.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn prepare(&self) -> Result<()> {
        let host = [("ed25519", "host_ed25519"), ("rsa", "host_rsa")];
        for (kind, name) in host.into_iter().chain(["id", "ca", "signed"].map(|name| ("ed25519", name))) {
            let file = self.path(name);
            output("ssh-keygen", &["-q", "-t", kind, "-N", "", "-f", &file.to_string_lossy()])?;
        }
        let (ca, signed) = (self.path("ca"), self.path("signed.pub"));
        let (ca, signed) = (ca.to_string_lossy(), signed.to_string_lossy());
        output("ssh-keygen", &["-q", "-s", &ca, "-I", "a test", "-n", USER, &signed])?;
        let home = self.home();
        fs::create_dir(&home)?;
        fs::write(home.join(".bashrc"), "echo 'Welcome to this machine.'\n")?;
        chown(&home, Some(USER_ID), Some(USER_ID))?;
        fs::copy(self.path("id.pub"), self.path("authorized"))?;
        fs::set_permissions(self.path("authorized"), PermissionsExt::from_mode(0o644))?;
        let user =
            |name: &str, id: u32, shell: &str| format!("{name}:x:{id}:{id}::{}:{shell}\n", home.display());
        let more = user(USER, USER_ID, "/bin/bash") + &user(NOBODY, NOBODY_ID, "/usr/sbin/nologin");
        fs::write(self.path("passwd"), fs::read_to_string("/etc/passwd")? + &more)?;
        let more = format!("{USER}:{HASH}:19000:0:99999:7:::\n{NOBODY}:*:19000:0:99999:7:::\n");
        fs::write(self.path("shadow"), fs::read_to_string("/etc/shadow")? + &more)?;
        fs::set_permissions(self.path("shadow"), PermissionsExt::from_mode(0o600))?;
        let dir = self.dir.path().display();
        let config = format!(
            "Port {}\nListenAddress 127.0.0.1\nHostKey {dir}/host_ed25519\nHostKey {dir}/host_rsa\n\
             AuthorizedKeysFile {dir}/authorized\nTrustedUserCAKeys {dir}/ca.pub\nUsePAM no\nPidFile none\nStrictModes no\n\
             PasswordAuthentication yes\nKbdInteractiveAuthentication no\nPermitRootLogin no\nPrintMotd no\n",
            self.port
        );
        fs::write(self.path("config"), config)?;
        Ok(())
    }

    /// Listens again, on the same port and with the same keys.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "it runs already");
        let dir = self.dir.path().display();
        // Where its unprivileged part lives; an init system would have made it.
        fs::create_dir_all("/run/sshd")?;
        let script = format!(
            "mount --bind {dir}/passwd /etc/passwd && mount --bind {dir}/shadow /etc/shadow && \
             exec {PROGRAM} -D -e -f {dir}/config"
        );
        let mut command = process::command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("a pipe")?).lines();
        let mut log = String::new();
        self.child = Some(child);
        loop {
            let Some(line) = lines.next().transpose()? else { bail!("the SSH server did not start:\n{log}") };
            if line.contains("Server listening on") {
                break;
            }
            log.push_str(&line);
            log.push('\n');
        }
        // It would stop at a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(())
    }

    /// Ends the server and every connection that it has, as a machine's power loss would. Programs go on.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let all = below(child.id());
        child.kill()?;
        child.wait()?;
        for pid in all.iter().copied().filter(|pid| is_sshd(*pid)) {
            kill(pid);
        }
        let until = Instant::now() + limits::STOP;
        while all.iter().any(|pid| is_sshd(*pid)) {
            ensure!(Instant::now() < until, "connections of the SSH server do not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Cuts every connection; new ones are taken.
    pub fn cut(&self) -> Result<()> {
        let child = self.child.as_ref().context("it does not run")?;
        below(child.id()).into_iter().filter(|pid| is_sshd(*pid)).for_each(kill);
        Ok(())
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        let Some(child) = &self.child else { return 0 };
        parents().iter().filter(|(_, parent)| *parent == child.id()).count()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.stop();
        process::end_below(self.dir.path());
    }
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = process::command(program).args(args).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return vec![] };
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// Everything that descends from a process.
fn below(root: u32) -> Vec<u32> {
    let all = parents();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        let next = all.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid);
        found.extend(next);
        at += 1;
    }
    found.split_off(1)
}

fn is_sshd(pid: u32) -> bool {
    let dead = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    !dead && fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sshd"))
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // Gone already is as good.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
