//! A real container engine on a socket of its own, and containers made from the machine's own files.
//!
//! Nothing is pulled: one image holds a static busybox and nothing else, the other is an empty tree into which the
//! machine's `/usr` is mounted. It needs root, `dockerd` and `docker`; where one is missing [`Engine::start`] says
//! so, and the test is skipped.

use crate::{limits, process};
use anyhow::{Context as _, Result, bail, ensure};
use std::{
    fs,
    io::Write as _,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

const DAEMON: &str = "/usr/sbin/dockerd";
const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 16] = [
    "sh", "cat", "chmod", "echo", "env", "false", "id", "ls", "mkdir", "mv", "rm", "seq", "sleep", "touch",
    "true", "uname",
];
const MACHINE_IMAGE: &str = "machine:1";
const BUSYBOX_IMAGE: &str = "busybox:1";

/// A running engine. Dropping it ends it and its containers.
#[derive(Debug)]
pub struct Engine {
    dir: tempfile::TempDir,
    child: Option<Child>,
}

/// What a container holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// The machine's own programs, bash among them.
    Machine,
    /// The plainest shell and its tools.
    Busybox,
}

impl Engine {
    /// What is in the way on this machine, if that can be told beforehand.
    fn obstacle() -> Option<String> {
        if let Some(missing) = [DAEMON, BUSYBOX].into_iter().find(|path| !Path::new(path).exists()) {
            return Some(format!("{missing} is not installed"));
        }
        (!rustix::process::geteuid().is_root()).then(|| "only root can run a container engine".to_owned())
    }

    pub fn start() -> Result<Self> {
        if let Some(why) = Self::obstacle() {
            bail!("{why}");
        }
        let mut made = Self { dir: tempfile::tempdir()?, child: None };
        made.start_again()?;
        made.import(MACHINE_IMAGE, Inside::Machine)?;
        made.import(BUSYBOX_IMAGE, Inside::Busybox)?;
        Ok(made)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Listens again; containers that run are taken up.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "it runs already");
        let dir = self.dir.path();
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
        let mut command = process::command(DAEMON);
        command.args(["--iptables=false", "--ip6tables=false", "--bridge=none", "--ip-forward=false"]);
        command.args(["--live-restore", "--data-root"]).arg(dir.join("data"));
        command.arg("--exec-root").arg(dir.join("exec")).arg("--pidfile").arg(dir.join("pid"));
        command.arg("-H").arg(format!("unix://{}", self.socket().display()));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().context(DAEMON)?);
        let until = Instant::now() + limits::START;
        while UnixStream::connect(self.socket()).is_err() || self.docker(&["version"]).is_err() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok()).flatten();
            if ended.is_some() || Instant::now() >= until {
                let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                let from = log.len().saturating_sub(limits::LOG_TAIL_BYTES);
                bail!("the container engine did not start:\n{}", log.get(from..).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends the engine; its containers go on.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).context("a pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        child.wait()?;
        Ok(())
    }

    /// Runs the engine's own client.
    pub fn docker(&self, args: &[&str]) -> Result<String> {
        let mut command = process::command("docker");
        command.arg("-H").arg(format!("unix://{}", self.socket().display())).args(args);
        let output = command.stdin(Stdio::null()).output().context("docker")?;
        ensure!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// A container that does nothing until it is ended.
    pub fn run(&self, name: &str, inside: Inside, more: &[&str]) -> Result<()> {
        let mut args = vec!["run", "-d", "--network", "none", "--name", name];
        let image = match inside {
            Inside::Machine => {
                args.extend(["-v", "/usr:/usr:ro", "-v", "/etc/alternatives:/etc/alternatives:ro"]);
                args.extend(["-e", "PATH=/usr/local/bin:/usr/bin:/bin", "-e", "LANG=C.UTF-8"]);
                MACHINE_IMAGE
            }
            Inside::Busybox => BUSYBOX_IMAGE,
        };
        args.extend(more);
        args.extend([image, "sleep", "100000"]);
        self.docker(&args).map(drop)
    }

    fn import(&self, image: &str, inside: Inside) -> Result<()> {
        let root = self.dir.path().join(image.replace(':', "-"));
        for folder in ["bin", "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var/tmp"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
        )?;
        for open in ["tmp", "var/tmp"] {
            fs::set_permissions(root.join(open), PermissionsExt::from_mode(0o1777))?;
        }
        fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
        match inside {
            Inside::Busybox => {
                fs::copy(BUSYBOX, root.join("bin/busybox"))?;
                for name in APPLETS {
                    std::os::unix::fs::symlink("busybox", root.join("bin").join(name))?;
                }
            }
            Inside::Machine => {
                fs::remove_dir(root.join("bin"))?;
                for name in ["bin", "sbin", "lib", "lib64"] {
                    std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
                }
            }
        }
        let tar = process::command("tar").arg("-C").arg(&root).args(["-c", "."]).output()?;
        ensure!(tar.status.success(), "tar: {}", String::from_utf8_lossy(&tar.stderr));
        let mut command = process::command("docker");
        command.arg("-H").arg(format!("unix://{}", self.socket().display())).args(["import", "-", image]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        child.stdin.take().context("a pipe")?.write_all(&tar.stdout)?;
        ensure!(child.wait()?.success(), "docker import failed");
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.child.is_none() {
            let _ = self.start_again();
        }
        if let Ok(all) = self.docker(&["ps", "-aq"]) {
            for container in all.lines() {
                let _ = self.docker(&["rm", "-f", container]);
            }
        }
        let _ = self.stop();
        // The engine mounts its folder onto itself, and an engine that lets containers live leaves it so.
        let mut command = process::command("umount");
        command.arg("--lazy").arg(self.dir.path().join("data"));
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
