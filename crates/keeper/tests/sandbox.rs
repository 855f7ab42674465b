//! A keeper with a sandbox: what is inside works, and what is outside stays there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is a test's own code")]
#![allow(clippy::print_stdout, reason = "what a probe found is shown when the test fails")]

mod support;

use keeper::{
    codec::Blob,
    config::{Access, Config, HostRule, Limits, Mount, Network, Sandbox, Started, View},
    wire::{EgressRefusal, Exit, Limit, Mode, Notice, Request, Tree},
};
use std::{
    io::{Read, Write},
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            fs::{PermissionsExt, chown},
            net::{SocketAddr, UnixListener},
        },
    },
    path::Path,
    process::Command,
};
use support::{
    Client, Fixture, STDERR, STDOUT, as_ordinary, config, exited, fixture, folder, killed, sh, start_with,
};

/// Nobody else's on a test machine.
const HOST_ID: u32 = 217_431;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn sandbox(workspace: &Path) -> Sandbox {
    let (mut uid, mut gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if is_root() {
        chown(workspace, Some(HOST_ID), Some(HOST_ID)).unwrap();
        (uid, gid) = (HOST_ID, HOST_ID);
    }
    Sandbox {
        host_uid: uid,
        host_gid: gid,
        workspace: Blob(workspace.as_os_str().as_bytes().to_vec()),
        inside_uid: 1000,
        inside_gid: 1000,
        view: View::System {},
        mounts: vec![],
        network: Network::None {},
        tmp_bytes: 16 << 20,
        hostname: "sandbox".to_owned(),
    }
}

fn run_with(client: &mut Client, id: u64, script: &str, env: &[String], cwd: &str) -> (String, String, Exit) {
    let mut spawn = sh(id, script);
    spawn.cwd = Blob(cwd.into());
    spawn.env.extend(env.iter().map(|entry| Blob(entry.clone().into_bytes())));
    match client.ask(|tag| Request::Spawn { tag, spawn }) {
        Notice::Spawned { .. } => {}
        other => panic!("{other:?}"),
    }
    client.follow(id, STDOUT, 0);
    client.follow(id, STDERR, 0);
    client.close(id);
    let outcome = (client.all(id, STDOUT), client.all(id, STDERR), client.exit(id));
    client.done(|tag| Request::Forget { tag, process: id });
    outcome
}

fn run(client: &mut Client, id: u64, script: &str) -> (String, String, Exit) {
    run_with(client, id, script, &[], "/home/user")
}

#[test]
fn ordinary_work_works() {
    let workspace = tempfile::tempdir().unwrap();
    let extra = tempfile::tempdir().unwrap();
    std::fs::set_permissions(extra.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(extra.path().join("data"), "read me").unwrap();
    let mut wanted = sandbox(workspace.path());
    let mount = |to: &str, access| Mount {
        from: Blob(extra.path().as_os_str().as_bytes().to_vec()),
        to: Blob(to.into()),
        access,
    };
    wanted.mounts = vec![mount("/data/in", Access::ReadOnly), mount("/data/out", Access::ReadWrite)];
    let fixture = Fixture::sandboxed(wanted);
    let mut client = fixture.client();
    let Notice::Welcome { isolation, .. } = client.welcome.clone() else { panic!() };
    assert_eq!(isolation.mode, Mode::Sandbox);
    for (script, expected) in [
        (
            "id -u; id -un; id -gn; pwd; hostname; echo $HOME",
            "1000\nuser\nuser\n/home/user\nsandbox\n/home/user\n",
        ),
        ("echo hello > file; cat /workspace/file", "hello\n"),
        ("echo x > /tmp/y; cat /var/tmp/y; touch /dev/shm/z && echo shm", "x\nshm\n"),
        ("echo piped | cat; cat < /dev/null; head -c 3 /dev/zero | wc -c", "piped\n3\n"),
        ("cat /data/in/data; echo > /data/out/made; ls /data/in", "read medata\nmade\n"),
        ("touch /data/in/no 2>/dev/null || echo read-only", "read-only\n"),
        ("(setsid sleep 0.01 &); wait; ls -d /proc/[0-9]* | wc -l | grep -q '^[2-9]$' && echo few", "few\n"),
        ("perl -e 'print 6*7'; cat /proc/sys/kernel/ostype; tail -c +1 /dev/fd/0 </dev/null", "42Linux\n"),
    ] {
        let (out, err, exit) = run(&mut client, 1, script);
        assert_eq!((&*out, exit), (expected, exited(0)), "{script}: {err}");
    }
    assert_eq!(std::fs::read_to_string(workspace.path().join("file")).unwrap(), "hello\n");
    assert!(extra.path().join("made").exists());
}

#[test]
fn several_processes_share_a_sandbox_and_die_alone() {
    let workspace = tempfile::tempdir().unwrap();
    let fixture = Fixture::sandboxed(sandbox(workspace.path()));
    let mut client = fixture.client();
    let Notice::Welcome { isolation, .. } = client.welcome.clone() else { panic!() };
    for id in [1, 2] {
        client.sh(id, "echo up; (setsid sh -c 'sleep 1000' &); cat");
        assert_eq!(client.line(id), "up");
    }
    client.done(|tag| Request::Kill { tag, process: 1 });
    assert_eq!(client.exit(1), killed(9));
    client.input(2, 1, b"alive\n");
    assert_eq!(client.line(2), "alive");
    if isolation.tree != Tree::Walk {
        client.done(|tag| Request::Freeze { tag, process: None });
        client.done(|tag| Request::Thaw { tag, process: None });
    }
    let (out, _, _) = run(&mut client, 3, "pgrep -c sleep");
    if isolation.tree != Tree::Walk {
        assert_eq!(out.trim(), "1", "the other's daemon lives, the killed one's does not");
    }
    // Everything inside ends with the keeper, however it dies.
    let inside = isolation.init.unwrap();
    let pid = rustix::process::Pid::from_raw(fixture.pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    support::wait_gone(inside);
    // Its cgroups are left, and its successor of the same name begins without them.
    let next = Fixture::with(|config| {
        config.name.clone_from(&fixture.name);
        config.sandbox = Some(sandbox(workspace.path()));
    });
    let (out, _, exit) = run(&mut next.client(), 1, "echo again");
    assert_eq!((&*out, exit), ("again\n", exited(0)));
}

/// Attempts to get out. Each ends with 0 when it got somewhere; `bare` marks those that do so for root on the bare
/// host, which shows that the attempt itself is sound.
struct Probe {
    name: &'static str,
    script: &'static str,
    bare: bool,
}

const fn probe(name: &'static str, script: &'static str) -> Probe {
    Probe { name, script, bare: true }
}

/// For what not even root can do here.
const fn hard(name: &'static str, script: &'static str) -> Probe {
    Probe { name, script, bare: false }
}

/// Calls one system call; reached means that the kernel looked at its arguments.
const fn call(name: &'static str, script: &'static str) -> Probe {
    Probe { name, script, bare: cfg!(target_arch = "x86_64") }
}

const PROBES: &[Probe] = &[
    // Files.
    probe("password hashes", "cat /etc/shadow"),
    probe("root's home", "ls -A /root | grep ."),
    probe("a secret outside", "cat $SECRET"),
    probe("a secret through a link", "ln -sf $SECRET /tmp/probe-link && cat /tmp/probe-link"),
    probe("a secret by climbing", "cd ../../../../..; cat .$SECRET"),
    hard("a secret through the first process", "cat /proc/1/root$SECRET"),
    probe("the first process's descriptors", "ls /proc/1/fd | grep ."),
    hard("the first process's program", "readlink /proc/1/exe"),
    probe("writing to the system", "touch /usr/.outlast-probe && rm /usr/.outlast-probe"),
    probe("writing to etc", "touch /etc/.outlast-probe && rm /etc/.outlast-probe"),
    probe("writing to the root", "touch /.outlast-probe && rm /.outlast-probe"),
    probe("changing the system's modes", "chmod 755 /usr/bin/env"),
    probe("the kernel's objects", "ls /sys/kernel"),
    probe("cgroups", "ls /sys/fs/cgroup | grep ."),
    probe("disks", "ls -l /dev | grep '^b'"),
    probe("making a device", "mknod /tmp/outlast-probe c 1 1 && rm /tmp/outlast-probe"),
    hard("the machine's memory", "head -c 1 /dev/mem && test -e /dev/mem"),
    probe("the keeper's socket", "test -S $KEEPER/socket"),
    probe("the keeper's token", "cat $KEEPER/token"),
    // Environment and processes.
    probe("the keeper's environment", "cat /proc/[0-9]*/environ 2>/dev/null | grep -a KEEPER_SECRET=outside"),
    probe("other processes", "test $(ls -d /proc/[0-9]* | wc -l) -gt 12"),
    probe("signalling the host", "kill -0 $TESTER"),
    hard("the first process's variables", "tr '\\0' '\\n' < /proc/1/environ | grep ."),
    probe(
        "attaching to a child",
        "perl -e 'my $p=fork; sleep 9 unless $p; my $r=syscall(101,16,$p,0,0); kill 9,$p; exit($r!=0)'",
    ),
    call("reading another's memory", "perl -e 'syscall(310,$$,0,0,0,0,0); exit($!{EPERM})'"),
    call("comparing processes", "perl -e 'syscall(312,$$,$$,1,0,0); exit($!{EPERM})'"),
    call("taking another's descriptor", "perl -e 'syscall(438,-1,0,0); exit($!{EPERM})'"),
    // Namespaces and mounts.
    probe("mounting", "mkdir -p /tmp/probe-m && mount -t tmpfs none /tmp/probe-m && umount /tmp/probe-m"),
    hard("remounting", "mount -o remount,rw,bind /usr"),
    hard("unmounting a mask", "umount /proc/keys"),
    hard("unmounting home", "umount -l /home/user && false || test ! -d /home/user"),
    probe("a user namespace", "unshare -U true"),
    probe("a user and mount namespace", "unshare -r -m true"),
    probe("a network namespace", "unshare -n true"),
    probe("a pid namespace", "unshare -p -f true"),
    probe(
        "entering a namespace",
        "perl -e 'open(F,q(<),q(/proc/self/ns/uts)) or exit 1; exit(syscall(308,fileno(F),0)!=0)'",
    ),
    probe("changing root", "perl -e 'exit(!chroot(\"/\"))'"),
    call("the new mount calls", "perl -e 'syscall(430,0,0); exit($!{EPERM})'"),
    call("cloning trees", "perl -e 'syscall(428,-1,0,0); exit($!{EPERM})'"),
    call("mount attributes", "perl -e 'syscall(442,-1,0,0,0,0); exit($!{EPERM})'"),
    call("files by handle", "perl -e 'syscall(304,-1,0,0); exit($!{EPERM})'"),
    // The network.
    probe(
        "the host's loopback",
        "perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerAddr=>\"127.0.0.1:$ENV{PORT}\",Timeout=>2)'",
    ),
    probe(
        "the host's abstract sockets",
        "perl -MSocket -e 'socket(S,AF_UNIX,SOCK_STREAM,0); exit !connect(S,pack(\"S a*\",1,\"\\0$ENV{ABSTRACT}\"))'",
    ),
    probe("raw sockets", "perl -e 'exit !socket(S,2,3,1)'"),
    probe("packet sockets", "perl -e 'exit !socket(S,17,3,0)'"),
    hard("host sockets of a virtual machine", "perl -e 'exit !socket(S,40,1,0)'"),
    hard("kernel crypto sockets", "perl -e 'exit !socket(S,38,5,0)'"),
    hard(
        "a way to the world",
        "perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerAddr=>\"1.1.1.1:53\",Timeout=>2)'",
    ),
    // Kernel interfaces.
    call("bpf", "perl -e 'syscall(321,-1,0,0); exit($!{EPERM})'"),
    call("performance events", "perl -e 'syscall(298,0,0,0,0,0); exit($!{EPERM}||$!{EACCES})'"),
    call("user page faults", "perl -e 'syscall(323,-1); exit($!{EPERM})'"),
    call("keys", "perl -e 'syscall(250,-1,0,0,0,0); exit($!{EPERM})'"),
    call("adding keys", "perl -e 'syscall(248,0,0,0,0,0); exit($!{EPERM})'"),
    call("io_uring", "perl -e 'syscall(425,0,0); exit($!{ENOSYS}||$!{EPERM})'"),
    call("kernel modules", "perl -e 'syscall(175,0,0,0); exit($!{EPERM})'"),
    call("another kernel", "perl -e 'syscall(246,0,99,0,0); exit($!{EPERM})'"),
    call("swap", "perl -e 'syscall(167,0,0); exit($!{EPERM})'"),
    call("accounting", "perl -e 'my $p=q(/no/such); syscall(163,$p); exit($!{EPERM})'"),
    call("rebooting", "perl -e 'syscall(169,0,0,0,0); exit($!{EPERM})'"),
    call("the clock", "perl -e 'exit(syscall(164,0,0)!=0)'"),
    call("the host's name", "perl -e 'syscall(170,0,1); exit($!{EPERM})'"),
    call("kernel logs", "perl -e 'exit(syscall(103,10,0,0)<0)'"),
    call("ports", "perl -e 'syscall(172,0); exit($!{EPERM})'"),
    call("watching the file system", "perl -e 'syscall(300,-1,0); exit($!{EPERM})'"),
    call("hidden clone flags", "perl -e 'syscall(435,0,0); exit($!{ENOSYS})'"),
    hard("32-bit numbers", "perl -e 'exit(syscall(0x40000000+39)<0)'"),
    hard("the kernel's memory", "test -r /proc/kcore && head -c 4 /proc/kcore | grep -q ELF"),
    hard("the magic key", "test -w /proc/sysrq-trigger"),
    probe("kernel settings", "test -w /proc/sys/kernel/hostname"),
    // Privileges.
    probe("becoming root", "perl -e '$< = $> = 0; exit($> != 0)'"),
    probe("capabilities", "grep -E 'Cap(Eff|Prm|Bnd|Amb|Inh)' /proc/self/status | grep -v ':.0*$'"),
    probe("new privileges", "grep -E 'NoNewPrivs:.0' /proc/self/status"),
    probe("no filter", "grep -E 'Seccomp:.0' /proc/self/status"),
    probe(
        "setuid programs",
        "find /usr/bin -perm -4000 | head -1 | grep . && grep -E 'NoNewPrivs:.0' /proc/self/status",
    ),
    probe("a better priority", "perl -e 'exit(!setpriority(0,0,-5))'"),
    probe("giving files away", "touch /tmp/probe-own && chown 1 /tmp/probe-own"),
];

/// The names of the probes that got somewhere.
fn escapes(client: &mut Client, keeper: &Path, cwd: &str) -> Vec<&'static str> {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "outside").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("outlast-probe-{}-{}", std::process::id(), client.stream_id());
    let _abstract =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
    let env = [
        format!("SECRET={}", secret.display()),
        format!("KEEPER={}", keeper.display()),
        format!("TESTER={}", std::process::id()),
        format!("PORT={}", listener.local_addr().unwrap().port()),
        format!("ABSTRACT={name}"),
    ];
    let mut escaped = Vec::new();
    for (at, probe) in PROBES.iter().enumerate() {
        let (out, err, exit) = run_with(client, at as u64 + 100, probe.script, &env, cwd);
        if exit == exited(0) {
            println!("{}: {out}{err}", probe.name);
            escaped.push(probe.name);
        }
    }
    escaped
}

impl Client {
    fn stream_id(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.stream)
    }
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
fn keeper_with_secret() -> Command {
    let mut command = Command::new(support::binary());
    command.env("KEEPER_SECRET", "outside");
    command
}

#[test]
fn nothing_gets_out() {
    assert!(PROBES.len() >= 40);
    let (workspace, dir) = (tempfile::tempdir().unwrap(), folder());
    let config = Config { sandbox: Some(sandbox(workspace.path())), ..config(dir.path()) };
    let fixture = fixture(keeper_with_secret(), dir, config);
    let escaped = escapes(&mut fixture.client(), fixture.dir.path(), "/home/user");
    assert!(escaped.is_empty(), "{escaped:?}");
}

#[test]
fn the_same_probes_succeed_without_isolation() {
    if !is_root() {
        return;
    }
    let dir = folder();
    let config = config(dir.path());
    let fixture = fixture(keeper_with_secret(), dir, config);
    let escaped = escapes(&mut fixture.client(), fixture.dir.path(), "/tmp");
    let silent: Vec<_> = PROBES
        .iter()
        .filter(|probe| probe.bare && !escaped.contains(&probe.name))
        .map(|probe| probe.name)
        .collect();
    assert!(silent.is_empty(), "these probes cannot fail: {silent:?}");
}

#[test]
fn an_ordinary_user_gets_the_same_walls() {
    if !is_root() {
        return;
    }
    let id = HOST_ID + 1;
    let (workspace, dir) = (tempfile::tempdir().unwrap(), folder());
    chown(workspace.path(), Some(id), Some(id)).unwrap();
    let limits = Limits { processes: Some(40), memory_bytes: Some(64 << 20), ..Limits::default() };
    let wanted = Sandbox { host_uid: id, host_gid: id, ..sandbox(workspace.path()) };
    chown(workspace.path(), Some(id), Some(id)).unwrap();
    let config = Config { sandbox: Some(wanted), limits, ..config(dir.path()) };
    let command = as_ordinary(id, dir.path());
    let fixture = fixture(command, dir, config);
    let mut client = fixture.client();
    let Notice::Welcome { isolation, .. } = client.welcome.clone() else { panic!() };
    // Without a cgroup of its own: processes by rlimit, memory not at all, and that is said.
    assert_eq!(isolation.tree, Tree::Walk);
    assert_eq!(isolation.limits, [Limit::Processes]);
    assert!(isolation.missing.iter().any(|text| text.contains("memory")), "{:?}", isolation.missing);
    let (out, err, exit) = run(&mut client, 1, "id -u; echo kept > file; cat file");
    assert_eq!((&*out, exit), ("1000\nkept\n", exited(0)), "{err}");
    assert_bomb_is_bounded(&mut client, 40);
    let escaped = escapes(&mut client, fixture.dir.path(), "/home/user");
    assert!(escaped.is_empty(), "{escaped:?}");
    // Another user cannot be had without being root.
    let other = folder();
    let command = as_ordinary(id, other.path());
    let wanted = Sandbox { host_uid: id + 1, host_gid: id, ..sandbox(workspace.path()) };
    match start_with(command, &Config { sandbox: Some(wanted), ..support::config(other.path()) }) {
        Started::Failed { what, .. } => assert!(what.contains("only root"), "{what}"),
        Started::Ready { .. } => panic!("another user without being root"),
    }
}

fn assert_bomb_is_bounded(client: &mut Client, bound: u32) {
    let bomb = "perl -e '$|=1; my $n=0; while(1){my $p=fork; last unless defined $p; if(!$p){sleep 100} $n++; last if $n>5000} \
                print \"$n\\n\"; kill 9, -$$'";
    let (out, _, _) = run(client, 50, &format!("setsid {bomb}"));
    let count: u32 = out.trim().parse().unwrap();
    assert!(count < bound, "{count} processes");
}

#[test]
fn limits_hold() {
    let workspace = tempfile::tempdir().unwrap();
    let limits = Limits {
        memory_bytes: Some(64 << 20),
        processes: Some(40),
        cpu_percent: Some(50),
        open_files: Some(64),
    };
    let wanted = sandbox(workspace.path());
    let fixture = Fixture::with(|config| {
        config.sandbox = Some(wanted);
        config.limits = limits;
    });
    let mut client = fixture.client();
    let Notice::Welcome { isolation, .. } = client.welcome.clone() else { panic!() };
    let (out, _, _) = run(&mut client, 1, "ulimit -n; ulimit -c");
    assert_eq!(out, "64\n0\n");
    if isolation.limits.contains(&Limit::Processes) {
        assert_bomb_is_bounded(&mut client, 40);
    }
    if isolation.limits.contains(&Limit::Memory) {
        let (_, _, exit) = run(&mut client, 2, "exec perl -e '$x = \"a\" x (1 << 28); print length $x'");
        assert_eq!(exit, killed(9));
        let (out, _, _) = run(&mut client, 3, "echo the sandbox lives on");
        assert_eq!(out, "the sandbox lives on\n");
    }
    let (out, _, _) =
        run(&mut client, 4, "head -c 20000000 /dev/zero > /tmp/large || echo full; rm /tmp/large");
    assert_eq!(out, "full\n");
    for limit in [Limit::Memory, Limit::Processes, Limit::Cpu] {
        let told = isolation.limits.contains(&limit) || !isolation.missing.is_empty();
        assert!(told, "{limit:?} is neither in force nor said to be missing");
    }
}

/// A tiny web server that answers every connection with what it was sent.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 4096];
            let length = stream.read(&mut bytes).unwrap_or(0);
            let _ = stream.write_all(&bytes[..length]);
        }
    });
    port
}

/// Says back all that a connection said, once it has said it.
fn mirror() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = stream.read_to_end(&mut bytes);
                let _ = stream.write_all(&bytes);
            });
        }
    });
    port
}

fn local_name() -> Option<String> {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let mut lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default().split_whitespace());
    lines.find_map(|mut words| {
        let address: std::net::IpAddr = words.next()?.parse().ok()?;
        let name = words.next()?;
        (address.is_loopback() && name != "localhost").then(|| name.to_owned())
    })
}

#[test]
fn the_list_of_hosts_is_the_only_way_out() {
    let workspace = tempfile::tempdir().unwrap();
    let (open, closed) = (echo(), echo());
    let rule = |host: &str| HostRule { host: host.to_owned(), port: None };
    // A name that the machine's own files give a loopback address, as a hostile name server could.
    let local = local_name().unwrap_or_else(|| "10.1.2.3".to_owned());
    let hosts = ["10.1.2.3", "169.254.169.254", &local, "no-such-host.invalid"].map(rule).to_vec();
    let network = Network::Allow { hosts, forwards: vec![open] };
    let fixture = Fixture::sandboxed(Sandbox { network, ..sandbox(workspace.path()) });
    let mut client = fixture.client();
    let Notice::Welcome { isolation, .. } = client.welcome.clone() else { panic!() };
    let proxy = isolation.proxy.expect("a proxy");
    // Sends its argument to the proxy, and prints the answer.
    let say = "perl -MIO::Socket::INET -e '$s=IO::Socket::INET->new(PeerAddr=>\"127.0.0.1:$ENV{PROXY}\") or die; \
               print $s $ENV{SAY}; $s->flush; shutdown($s,1) unless $ENV{KEEP}; print while <$s>'";
    let mut id = 10;
    let mut ask = |client: &mut Client, text: String| {
        id += 1;
        let env = [format!("PROXY={proxy}"), format!("SAY={text}")];
        run_with(client, id, say, &env, "/").0
    };
    let answer = ask(&mut client, format!("CONNECT 127.0.0.1:{open} HTTP/1.1\r\n\r\nthrough the tunnel"));
    assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\nthrough the tunnel");
    let answer = ask(&mut client, format!("GET http://localhost:{open}/path HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert_eq!(answer, "GET /path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    for (target, status, reason) in [
        (format!("127.0.0.1:{closed}"), 403, EgressRefusal::NotAllowed),
        ("example.org:443".to_owned(), 403, EgressRefusal::NotAllowed),
        ("127.0.0.2:443".to_owned(), 403, EgressRefusal::NotAllowed),
        ("10.1.2.3:443".to_owned(), 403, EgressRefusal::PrivateAddress),
        ("169.254.169.254:80".to_owned(), 403, EgressRefusal::PrivateAddress),
        (format!("{local}:80"), 403, EgressRefusal::PrivateAddress),
        ("no-such-host.invalid:80".to_owned(), 502, EgressRefusal::NotResolved),
    ] {
        let answer = ask(&mut client, format!("CONNECT {target} HTTP/1.1\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
        let (name, port) = target.rsplit_once(':').unwrap();
        client.wait(|notice| match notice {
            Notice::EgressRefused { host, port: at, reason: why }
                if host == name && at.to_string() == port =>
            {
                assert_eq!(*why, reason, "{target}");
                Some(())
            }
            _ => None,
        });
    }
    let answer = ask(&mut client, "nonsense\r\n\r\n".to_owned());
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    // Past the proxy and the forwards there is nothing.
    let env = [format!("PORT={closed}")];
    let direct = "perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerAddr=>\"127.0.0.1:$ENV{PORT}\",Timeout=>2)'";
    let (_, _, exit) = run_with(&mut client, 99, direct, &env, "/");
    assert_ne!(exit, exited(0));
    drop(client);

    // Refused while no server was there, and told to the next.
    let mut client = fixture.client();
    let mut spawn = sh(200, &format!("sleep 0.2; {say}"));
    spawn.env.push(Blob(format!("PROXY={proxy}").into_bytes()));
    spawn.env.push(Blob(b"SAY=CONNECT later.example:443 HTTP/1.1\r\n\r\n".to_vec()));
    let Notice::Spawned { pid, .. } = client.ask(|tag| Request::Spawn { tag, spawn }) else { panic!() };
    drop(client);
    support::wait_gone(pid);
    let mut client = fixture.client();
    client.wait(|notice| {
        matches!(notice, Notice::EgressRefused { host, .. } if host == "later.example").then_some(())
    });
}

/// Waits for the refusal of a port of the host's loopback.
fn refused_port(client: &mut Client, port: u16) -> EgressRefusal {
    client.wait(|notice| match notice {
        Notice::EgressRefused { host, port: at, reason } if host == "127.0.0.1" && *at == port => {
            Some(*reason)
        }
        _ => None,
    })
}

#[test]
fn a_forward_is_a_port_inside() {
    let workspace = tempfile::tempdir().unwrap();
    let (open, closed) = (mirror(), mirror());
    // Nobody listens there any more.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // Named twice, and on the proxy's own port: neither is in anybody's way.
    let network = Network::Allow { hosts: vec![], forwards: vec![open, open, dead, 3128] };
    let fixture = Fixture::sandboxed(Sandbox { network, ..sandbox(workspace.path()) });
    let mut client = fixture.client();
    let talk = "perl -MIO::Socket::INET -e '$s=IO::Socket::INET->new(PeerAddr=>\"127.0.0.1:$ENV{PORT}\",Timeout=>5) \
                or exit 7; $m=\"\\0raw\\xff\" x 50000; print $s $m; $s->flush; shutdown($s,1); \
                while (sysread($s,$b,65536)) { $a .= $b } print $a eq $m ? \"same\" : length $a'";
    let ask = |client: &mut Client, id, port: u16| {
        let (out, _, exit) = run_with(client, id, talk, &[format!("PORT={port}")], "/");
        (out, exit)
    };
    assert_eq!(ask(&mut client, 1, open), ("same".to_owned(), exited(0)), "every byte, as it was");
    assert_eq!(ask(&mut client, 2, closed).1, exited(7), "a port that was not named is nobody's");
    let (out, _) = ask(&mut client, 3, dead);
    assert_eq!(out.trim_matches('0'), "");
    assert_eq!(refused_port(&mut client, dead), EgressRefusal::Unreachable);

    // More than are carried at once: the rest is closed and told, and there is room again afterwards.
    let many = "perl -MIO::Socket::INET -e 'for (1..300) { push @s, IO::Socket::INET->new(\
                PeerAddr=>\"127.0.0.1:$ENV{PORT}\",Timeout=>9) or exit 7 } $l=pop @s; sysread($l,$b,1) and exit 8'";
    let (_, err, exit) = run_with(&mut client, 4, many, &[format!("PORT={open}")], "/");
    assert_eq!(exit, exited(0), "{err}");
    assert_eq!(refused_port(&mut client, open), EgressRefusal::TooMany);
    let again = (5..200).any(|id| ask(&mut client, id, open).0 == "same");
    assert!(again, "connections that ended make room");
}

#[test]
fn too_many_forwards_are_refused() {
    let workspace = tempfile::tempdir().unwrap();
    let network = Network::Allow { hosts: vec![], forwards: (20_000..20_129).collect() };
    let dir = folder();
    let wanted = Sandbox { network, ..sandbox(workspace.path()) };
    match support::run(&Config { sandbox: Some(wanted), ..config(dir.path()) }) {
        Started::Failed { what, .. } => assert!(what.contains("128 forwards"), "{what}"),
        Started::Ready { .. } => panic!("it started"),
    }
}

#[test]
fn a_sandbox_that_cannot_be_is_refused_whole() {
    let workspace = tempfile::tempdir().unwrap();
    let good = sandbox(workspace.path());
    let mount =
        |to: &str| Mount { from: Blob(b"/etc".to_vec()), to: Blob(to.into()), access: Access::ReadOnly };
    let mut bad = vec![
        ("no workspace", Sandbox { workspace: Blob(b"/no/such".to_vec()), ..good.clone() }),
        ("no root", Sandbox { view: View::Root { folder: Blob(b"/no/such".to_vec()) }, ..good.clone() }),
        ("a mount out of place", Sandbox { mounts: vec![mount("/a/../b")], ..good.clone() }),
        ("a mount in a read-only place", Sandbox { mounts: vec![mount("/usr/no/such")], ..good.clone() }),
    ];
    if is_root() {
        bad.push(("root inside", Sandbox { host_uid: 0, ..good }));
    }
    for (name, wanted) in bad {
        let dir = folder();
        let config = Config { sandbox: Some(wanted), ..config(dir.path()) };
        match support::run(&config) {
            Started::Failed { what, fix } => assert!(!what.is_empty() && !fix.is_empty(), "{name}"),
            Started::Ready { .. } => panic!("{name}"),
        }
        for home in ["/sys/fs/cgroup/unified/outlast", "/sys/fs/cgroup/memory/outlast"] {
            assert!(!Path::new(home).join(&config.name).exists(), "{name} left its cgroup");
        }
    }
}

#[test]
fn an_operators_root_is_used() {
    let (workspace, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for folder in ["bin", "etc", "home/secret"] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    // A root that holds one static program and nothing else.
    let Some(shell) = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists())
    else {
        println!("no static shell on this machine");
        return;
    };
    std::fs::copy(shell, root.path().join("bin/sh")).unwrap();
    std::fs::write(root.path().join("etc/motd"), "of the root\n").unwrap();
    let wanted = Sandbox {
        view: View::Root { folder: Blob(root.path().as_os_str().as_bytes().to_vec()) },
        ..sandbox(workspace.path())
    };
    let fixture = Fixture::sandboxed(wanted);
    let mut client = fixture.client();
    let (out, err, _) = run(&mut client, 1, "read line < /etc/motd; echo $line; echo /home/* /usr/*");
    assert_eq!(out, "of the root\n/home/user /usr/*\n", "{err}");
}
