//! A keeper with a project: one folder of the machine to work in, the rest to look at, and what is private hidden.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is a test's own code")]

mod support;

use keeper::{
    codec::Blob,
    config::{HostUser, INSIDE_ID, Network, Project, Sandbox, Started, View},
    wire::{Exit, Notice, Request},
};
use std::{
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};
use support::{Client, Fixture, STDERR, STDOUT, as_ordinary, config, exited, fixture, folder, run, sh};

/// Nobody else's on a test machine.
const OWNER: u32 = 217_441;

/// A machine's folders as far as a project meets them, below a folder that is not `/tmp` itself.
struct Ground {
    dir: tempfile::TempDir,
    folder: PathBuf,
    wanted: Sandbox,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owned {
    /// By an ordinary user.
    Plainly,
    /// By root, who runs nothing.
    ByRoot,
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder of the machine that a project shows: `/tmp` and `/var/tmp` are its own, and below them nothing could be seen
/// to be hidden.
fn uncovered() -> tempfile::TempDir {
    let build = Path::new(env!("CARGO_TARGET_TMPDIR")).canonicalize().unwrap();
    let covered = build.starts_with("/tmp") || build.starts_with("/var/tmp");
    let others = ["/var/lib", "/srv", "/opt"].map(Path::new);
    let all = (!covered).then_some(build.as_path()).into_iter().chain(others);
    let made = all.into_iter().find_map(|folder| tempfile::tempdir_in(folder).ok());
    made.expect("a folder outside of /tmp that can be written to; build somewhere else, or run this as root")
}

fn blob(path: &Path) -> Blob {
    Blob(path.as_os_str().as_bytes().to_vec())
}

impl Ground {
    fn new(owned: Owned) -> Self {
        let dir = uncovered();
        let base = dir.path().canonicalize().unwrap();
        std::fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["project", "den", "workspace", "data", "others", "open"] {
            std::fs::create_dir(base.join(name)).unwrap();
            std::fs::set_permissions(base.join(name), PermissionsExt::from_mode(0o777)).unwrap();
        }
        std::fs::write(base.join("den/secret"), "private").unwrap();
        std::fs::create_dir(base.join("den/tools")).unwrap();
        std::fs::write(base.join("den/tools/tool"), "named").unwrap();
        std::fs::write(base.join("data/master.key"), "key").unwrap();
        std::fs::write(base.join("open/file"), "seen").unwrap();
        std::fs::write(base.join("project/file"), "old").unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (mut user, mut inside, mut mapped) = ((uid, gid), (uid, gid), None);
        let own = |name: &str| chown(base.join(name), Some(OWNER), Some(OWNER)).unwrap();
        if is_root() {
            user = (OWNER, OWNER);
            own("workspace");
            if owned == Owned::ByRoot {
                std::fs::set_permissions(base.join("project"), PermissionsExt::from_mode(0o700)).unwrap();
                (inside, mapped) = ((INSIDE_ID, INSIDE_ID), Some(HostUser { uid: 0, gid: 0 }));
            } else {
                inside = user;
                own("project");
                own("project/file");
            }
        }
        let project = Project {
            folder: blob(&base.join("project")),
            mapped,
            home: blob(&base.join("den")),
            hidden: ["den", "data", "others", "socket"].iter().map(|name| blob(&base.join(name))).collect(),
            readable: vec![blob(&base.join("den/tools"))],
        };
        let wanted = Sandbox {
            host_uid: user.0,
            host_gid: user.1,
            inside_uid: inside.0,
            inside_gid: inside.1,
            workspace: blob(&base.join("workspace")),
            view: View::Project { project },
            mounts: vec![],
            network: Network::None {},
            tmp_bytes: 16 << 20,
            hostname: "here".to_owned(),
        };
        Self { folder: base, dir, wanted }
    }
}

fn ran(client: &mut Client, script: &str, cwd: &Path) -> (String, String, Exit) {
    let mut spawn = sh(1, script);
    spawn.cwd = blob(cwd);
    match client.ask(|tag| Request::Spawn { tag, spawn }) {
        Notice::Spawned { .. } => {}
        other => panic!("{other:?}"),
    }
    client.follow(1, STDOUT, 0);
    client.follow(1, STDERR, 0);
    client.close(1);
    let outcome = (client.all(1, STDOUT), client.all(1, STDERR), client.exit(1));
    client.done(|tag| Request::Forget { tag, process: 1 });
    outcome
}

/// Who the keeper is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// The test itself.
    Own,
    /// The project's owner, who is nobody special.
    Ordinary,
}

impl Ground {
    fn keeper(&self, keeper: Keeper) -> Fixture {
        if keeper == Keeper::Own || !is_root() {
            return Fixture::sandboxed(self.wanted.clone());
        }
        let dir = folder();
        let mut config = config(dir.path());
        config.sandbox = Some(self.wanted.clone());
        fixture(as_ordinary(OWNER, dir.path()), dir, config)
    }
}

fn works_in_its_folder(owned: Owned, keeper: Keeper) {
    let ground = Ground::new(owned);
    let base = ground.folder.clone();
    let fixture = ground.keeper(keeper);
    let mut client = fixture.client();
    let shown = base.display();
    for (script, expected) in [
        (
            "pwd; cat file; echo new > made; mkdir d && chmod 700 d && ls",
            format!("{shown}/project\noldd\nfile\nmade\n"),
        ),
        ("test -O file && test -O made && echo mine", "mine\n".to_owned()),
        (&format!("cat {shown}/open/file; head -c 5 /etc/passwd | wc -c"), "seen5\n".to_owned()),
        ("echo x > /tmp/y; cat /var/tmp/y; touch /dev/shm/z && echo shm", "x\nshm\n".to_owned()),
        (
            &format!("cat {shown}/den/tools/tool; echo > {shown}/den/.rc; ls -A {shown}/den"),
            "named.rc\ntools\n".to_owned(),
        ),
        (
            "whoami >/dev/null 2>&1; echo | cat; ls -d /proc/[0-9]* | wc -l | grep -q '^[2-9]$' && echo few",
            "\nfew\n".to_owned(),
        ),
    ] {
        let (out, err, exit) = ran(&mut client, script, &base.join("project"));
        assert_eq!((&*out, exit), (&*expected, exited(0)), "{script}: {err}");
    }
    let made = std::fs::metadata(base.join("project/made")).unwrap();
    let folder = std::fs::metadata(base.join("project")).unwrap();
    assert_eq!(
        (made.uid(), made.gid()),
        (folder.uid(), folder.gid()),
        "what is made belongs to the folder's owner"
    );
    assert!(!Path::new("/tmp/y").exists());
    assert!(base.join("workspace/.rc").exists());
    drop(ground.dir);
}

#[test]
fn a_project_is_worked_in_by_its_owner() {
    works_in_its_folder(Owned::Plainly, Keeper::Own);
    works_in_its_folder(Owned::Plainly, Keeper::Ordinary);
}

#[test]
fn a_project_of_roots_is_worked_in_by_nobody_who_is_root() {
    if is_root() {
        works_in_its_folder(Owned::ByRoot, Keeper::Own);
    }
}

/// Each must print nothing but `no`.
fn escapes(base: &Path, socket: &Path) -> Vec<String> {
    let (base, socket) = (base.display(), socket.display());
    vec![
        // Writing outside.
        format!("echo x > {base}/open/new"),
        format!("echo x >> {base}/open/file"),
        format!("rm -f {base}/open/file; test ! -e {base}/open/file"),
        "echo x > /etc/outlast-was-here".to_owned(),
        "touch /usr/bin/outlast-was-here".to_owned(),
        "mkdir /outlast-was-here".to_owned(),
        format!("ln {base}/open/file linked && echo x > linked"),
        format!("mv {base}/open/file ./taken"),
        "echo 1 > /proc/sys/kernel/sysrq".to_owned(),
        "echo x > /sys/kernel/profiling".to_owned(),
        "cp /bin/true planted; chmod 4755 planted && test -u planted".to_owned(),
        "perl -e 'sysopen(F, q(planted2), 0101, 04755) && -u q(planted2) or exit 1'".to_owned(),
        // Reading what is private.
        "test -n \"$(ls -A /root)\" && ls -A /root".to_owned(),
        format!("cat {base}/den/secret"),
        format!("cat {base}/data/master.key"),
        format!("ls {base}/others/x"),
        "cat /etc/shadow".to_owned(),
        "cat /proc/kcore".to_owned(),
        format!("cd {base}/project && cat ../den/secret"),
        format!("ln -s {base}/data s && cat s/master.key"),
        "cat /proc/1/cwd/etc/hostname".to_owned(),
        // Services.
        "test -e /run/docker.sock || test -e /var/run/docker.sock".to_owned(),
        "test -n \"$(ls -A /run/user)\"".to_owned(),
        format!(
            "perl -MSocket -e 'socket(S,AF_UNIX,SOCK_STREAM,0);connect(S,sockaddr_un(q({socket})))||exit 1'"
        ),
        // Taking the walls down.
        format!("umount {base}/den"),
        format!("umount -l {base}/data; cat {base}/data/master.key"),
        format!("mount -o remount,rw,bind / && touch {base}/open/new"),
        "unshare -Ur true".to_owned(),
        "unshare -m true".to_owned(),
        "chroot / true".to_owned(),
        "mknod disk b 8 0 && head -c1 disk".to_owned(),
        "nsenter -t 1 -m true".to_owned(),
        "cat /dev/mem /dev/sda".to_owned(),
        "ls /dev/kvm /dev/fuse /dev/disk".to_owned(),
    ]
}

fn keeps_in(owned: Owned, keeper: Keeper) {
    let ground = Ground::new(owned);
    let base = ground.folder.clone();
    // The socket's path holds 107 bytes at the most, and a folder's may be longer.
    let socket = base.join("socket");
    let listening = UnixListener::bind(&socket);
    if listening.is_ok() {
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let fixture = ground.keeper(keeper);
    let mut client = fixture.client();
    let mut through = Vec::new();
    for script in escapes(&base, &socket) {
        let probe = format!("( {script} ) >/dev/null 2>&1 && echo ESCAPED || echo no");
        let (out, err, _) = ran(&mut client, &probe, &base.join("project"));
        if out != "no\n" {
            through.push(format!("{script}: {out:?} {err:?}"));
        }
    }
    assert_eq!(through, [""; 0]);
    assert_eq!(std::fs::read_to_string(base.join("open/file")).unwrap(), "seen");
    assert!(!Path::new("/etc/outlast-was-here").exists());
    drop(ground.dir);
}

#[test]
fn nothing_gets_out_of_a_project() {
    keeps_in(Owned::Plainly, Keeper::Own);
    keeps_in(Owned::Plainly, Keeper::Ordinary);
}

#[test]
fn nothing_gets_out_of_a_project_of_roots() {
    if is_root() {
        keeps_in(Owned::ByRoot, Keeper::Own);
    }
}

#[test]
fn what_is_hidden_inside_the_project_stays_hidden() {
    let mut ground = Ground::new(Owned::Plainly);
    let base = ground.folder.clone();
    std::fs::create_dir(base.join("project/data")).unwrap();
    std::fs::write(base.join("project/data/key"), "key").unwrap();
    let View::Project { project } = &mut ground.wanted.view else { panic!() };
    project.hidden.push(blob(&base.join("project/data")));
    let fixture = Fixture::sandboxed(ground.wanted.clone());
    let mut client = fixture.client();
    let (out, _, _) = ran(&mut client, "ls -A data; echo x > data/y || echo closed", &base.join("project"));
    assert_eq!(out, "closed\n");
}

#[test]
fn a_link_in_the_folders_place_is_not_followed() {
    let ground = Ground::new(Owned::Plainly);
    std::fs::rename(ground.folder.join("project"), ground.folder.join("moved")).unwrap();
    std::os::unix::fs::symlink(ground.folder.join("open"), ground.folder.join("project")).unwrap();
    let dir = folder();
    let mut config = config(dir.path());
    config.sandbox = Some(ground.wanted);
    match run(&config) {
        Started::Failed { what, .. } => assert!(what.contains("project's folder"), "{what}"),
        Started::Ready { .. } => panic!("the link was followed"),
    }
}
