//! SSH: who gets in and who does not, and what a broken connection costs.

use crate::kit::{self, lost, remotes, run, shut_down, skip, started, within, wrong};
use outlast_place as place;
use place::{
    keeper::{CommandInput, How, ShellPhase},
    remote::{Lodging, Password, Policy, RemoteError, Ssh, Target, Trust},
};
use std::time::{Duration, Instant};
use testkit::sshd::{NOBODY, PASSWORD, Sshd, USER};

macro_rules! server {
    ($name:literal) => {
        match Sshd::start() {
            Ok(started) => started,
            Err(why) => return skip($name, &format!("{why:#}")),
        }
    };
}

fn policy(sshd: &Sshd) -> Policy {
    let ssh_config = Some(sshd.client_config("here").unwrap());
    Policy { ssh_config, orphan: Duration::from_secs(120), ..Policy::default() }
}

fn stranger(sshd: &Sshd) -> Policy {
    Policy { ssh_config: Some(sshd.stranger_config().unwrap()), ..policy(sshd) }
}

fn alias() -> Target {
    Target::Ssh(Ssh { host: "here".to_owned(), ..Ssh::default() })
}

fn address(sshd: &Sshd) -> Ssh {
    Ssh {
        host: "127.0.0.1".to_owned(),
        user: Some(USER.to_owned()),
        port: Some(sshd.port()),
        ..Ssh::default()
    }
}

#[tokio::test]
async fn a_shell_outlives_its_connection_and_its_server() {
    let mut sshd = server!("ssh_outlives");
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy(&sshd));
    let reached = remotes.connect(&alias(), None).await.unwrap();
    assert_eq!(reached.account(), Some((USER, &*sshd.port().to_string())));
    assert_eq!(reached.machine().home, sshd.home().to_string_lossy());
    let joined = reached.lodge().await.unwrap();
    let mut shell = started(&joined.keeper, &reached, &reached.machine().home).await;
    let (ended, out) = run(&mut shell, 1, "x=5; cd /; echo $USER; false").await;
    assert_eq!((ended.how, &*out), (How::Returned(1), &*format!("{USER}\n")));

    // In the middle of a command, everything goes down.
    let text = b"echo one; read y; echo $x $y; seq 1 50000";
    shell.run(2, CommandInput::Open, text).await.unwrap();
    sshd.stop().unwrap();
    lost(&mut shell).await;
    let refused = wrong(remotes.take_up(&alias(), None, &joined.lodged, joined.token).await);
    assert!(matches!(refused, RemoteError::Unreachable { .. }), "{refused}");
    sshd.start_again().unwrap();
    let keeper = remotes.take_up(&alias(), None, &joined.lodged, joined.token).await.unwrap();
    let (mut shell, state) = keeper.attach_shell(1).await.unwrap();
    assert_eq!((state.phase, state.command), (ShellPhase::Busy, 2));
    shell.follow(2, [0, 0]).unwrap();
    shell.write(1, b"six\n");
    let (ended, out) = within(kit::end(&mut shell)).await;
    let expected: String = (1..=50_000).map(|number| format!("{number}\n")).collect();
    assert!(out == format!("one\n5 six\n{expected}"), "whole");
    assert_eq!(ended.how, How::Returned(0));

    // Another server finds it by what was written down.
    drop((shell, keeper, reached, remotes));
    let written = serde_json::to_string(&(alias(), &joined.lodged)).unwrap();
    let (target, lodged): (Target, place::remote::Lodged) = serde_json::from_str(&written).unwrap();
    let remotes = kit::remotes(dir.path(), policy(&sshd));
    let keeper = remotes.take_up(&target, None, &lodged, joined.token).await.unwrap();
    let (mut shell, state) = keeper.attach_shell(1).await.unwrap();
    assert_eq!(state.phase, ShellPhase::Idle);
    let (_, out) = run(&mut shell, 3, "echo $x $PWD").await;
    assert_eq!(out, "5 /\n");

    // With another token nobody gets in, and a keeper that ended is lost for good.
    let refused = wrong(remotes.take_up(&target, None, &lodged, [0; 32]).await);
    assert!(matches!(refused, RemoteError::Lost { .. }), "{refused}");
    shut_down(keeper).await;
    let refused = wrong(remotes.take_up(&target, None, &lodged, joined.token).await);
    assert!(matches!(refused, RemoteError::Lost { .. }), "{refused}");
    let left = std::fs::read_dir(sshd.home().join(".cache/outlast")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "only the program stays: {left:?}");
}

#[tokio::test]
async fn many_shells_share_a_connection_until_it_is_full() {
    let sshd = server!("ssh_many");
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy(&sshd));
    let mut all = Vec::new();
    for number in 1..=12 {
        let reached = remotes.connect(&alias(), None).await.unwrap();
        all.push(reached.lodge().await.unwrap());
        // A host gives a connection ten sessions, and one that has just ended may still count.
        let shared = if number <= 8 { 1..=1 } else { 1..=2 };
        assert!(shared.contains(&sshd.connections()), "{number}: {}", sshd.connections());
    }
    assert_eq!(sshd.connections(), 2);
    sshd.cut().unwrap();
    for joined in all {
        within(joined.keeper.gone()).await;
        remotes.end(&alias(), None, &joined.lodged, joined.token).await.unwrap();
    }
}

#[tokio::test]
async fn a_password_gets_in_and_a_wrong_one_does_not() {
    let sshd = server!("ssh_password");
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy(&sshd));
    let target = Target::Ssh(address(&sshd));
    // The configuration has a key that would be let in, and a wrong password still is not.
    let refused = wrong(remotes.connect(&alias(), Some(&Password::new("wrong"))).await);
    assert!(matches!(refused, RemoteError::AuthRefused { .. }), "{refused}");
    assert!(!refused.to_string().contains("wrong"), "{refused}");
    let reached = remotes.connect(&target, Some(&Password::new(PASSWORD))).await.unwrap();
    assert_eq!(reached.machine().env.get("USER").map(String::as_str), Some(USER));
    // Who has no credential at all shares nobody's connection.
    let refused = wrong(remotes.connect(&target, None).await);
    assert!(matches!(refused, RemoteError::AuthRefused { .. }), "{refused}");
    let key = Target::Ssh(Ssh { key_path: Some(sshd.key()), ..address(&sshd) });
    remotes.connect(&key, None).await.unwrap();
    let left: Vec<_> = std::fs::read_dir(dir.path().join("ssh")).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| entry.file_name().to_string_lossy().starts_with("c-")), "{left:?}");
}

#[tokio::test]
async fn only_the_right_host_key_is_good() {
    let sshd = server!("ssh_host_key");
    let dir = tempfile::tempdir().unwrap();
    let key = Ssh { key_path: Some(sshd.key()), ..address(&sshd) };
    let strict = remotes(dir.path(), stranger(&sshd));
    let unknown = wrong(strict.connect(&Target::Ssh(key.clone()), None).await);
    let RemoteError::HostKeyUnknown { offered, .. } = &unknown else { panic!("{unknown}") };
    assert_eq!(offered.as_deref(), Some(&*sshd.fingerprint("ed25519").unwrap()));

    // A fingerprint is enough, of whichever key.
    for kind in ["ed25519", "rsa"] {
        let fingerprint = Some(sshd.fingerprint(kind).unwrap());
        strict.connect(&Target::Ssh(Ssh { fingerprint, ..key.clone() }), None).await.unwrap();
    }
    // Another is refused, even by who knows the host.
    let fingerprint = Some(format!("SHA256:{}", "A".repeat(43)));
    let known = remotes(&dir.path().join("known"), policy(&sshd));
    let refused = wrong(known.connect(&Target::Ssh(Ssh { fingerprint, ..key.clone() }), None).await);
    assert!(matches!(refused, RemoteError::HostKeyWrong { .. }), "{refused}");

    let trusting = Policy { trust: Trust::FirstUse, ..stranger(&sshd) };
    let trusting = remotes(&dir.path().join("trusting"), trusting);
    trusting.connect(&Target::Ssh(key.clone()), None).await.unwrap();
    // Later the host has another key.
    let learnt = dir.path().join("trusting/ssh/known_hosts");
    let text = std::fs::read_to_string(&learnt).unwrap();
    let other = std::fs::read_to_string(sshd.key().with_extension("pub")).unwrap();
    let other = other.split_whitespace().nth(1).unwrap();
    let changed = text.lines().map(|line| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words[2] = other;
        words.join(" ")
    });
    std::fs::write(&learnt, changed.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    let again = Policy { trust: Trust::FirstUse, ..stranger(&sshd) };
    let again = remotes(&dir.path().join("trusting"), again);
    let refused = wrong(again.connect(&Target::Ssh(key), None).await);
    assert!(matches!(refused, RemoteError::HostKeyWrong { .. }), "{refused}");
}

#[tokio::test]
async fn who_cannot_be_reached_is_told_apart() {
    let mut sshd = server!("ssh_unreachable");
    let dir = tempfile::tempdir().unwrap();
    let key = Ssh { key_path: Some(sshd.key()), ..address(&sshd) };
    let all = remotes(dir.path(), policy(&sshd));
    let refused =
        wrong(all.connect(&Target::Ssh(Ssh { user: Some(NOBODY.to_owned()), ..key.clone() }), None).await);
    assert!(matches!(refused, RemoteError::NoShell { .. }), "{refused}");
    let named = Target::Ssh(Ssh { host: "no-such-host.invalid".to_owned(), ..Ssh::default() });
    let refused = wrong(all.connect(&named, None).await);
    assert!(matches!(refused, RemoteError::Unreachable { .. }), "{refused}");
    sshd.stop().unwrap();
    let refused = wrong(all.connect(&Target::Ssh(key.clone()), None).await);
    assert!(matches!(refused, RemoteError::Unreachable { .. }), "{refused}");

    // Somebody who takes connections and says nothing.
    let mute = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = Some(mute.local_addr().unwrap().port());
    let hasty = Policy { connect: Duration::from_secs(1), ..policy(&sshd) };
    let hasty = remotes(&dir.path().join("hasty"), hasty);
    let since = Instant::now();
    let refused = wrong(hasty.connect(&Target::Ssh(Ssh { port, ..key }), None).await);
    assert!(matches!(refused, RemoteError::TimedOut { .. } | RemoteError::Unreachable { .. }), "{refused}");
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_keeper_that_may_not_be_there_is_not_there() {
    let sshd = server!("ssh_forbidden");
    let dir = tempfile::tempdir().unwrap();
    let forbidden = Policy { lodging: Lodging::Forbidden, ..policy(&sshd) };
    let reached = remotes(dir.path(), forbidden).connect(&alias(), None).await.unwrap();
    let refused = wrong(reached.lodge().await);
    assert!(matches!(refused, RemoteError::NoKeeper { .. }), "{refused}");
}

#[tokio::test]
async fn a_keeper_is_ended_though_its_connection_is_gone() {
    let sshd = server!("ssh_end");
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy(&sshd));
    let reached = remotes.connect(&alias(), None).await.unwrap();
    let joined = reached.lodge().await.unwrap();
    let mut shell = started(&joined.keeper, &reached, "/").await;
    sshd.cut().unwrap();
    lost(&mut shell).await;
    within(remotes.end(&alias(), None, &joined.lodged, joined.token)).await.unwrap();
    let refused = wrong(remotes.take_up(&alias(), None, &joined.lodged, joined.token).await);
    assert!(matches!(refused, RemoteError::Lost { .. }), "{refused}");
    assert!(!refused.may_pass());
    within(remotes.end(&alias(), None, &joined.lodged, joined.token)).await.unwrap();
    let left = std::fs::read_dir(sshd.home().join(".cache/outlast")).unwrap().count();
    assert_eq!(left, 1, "only the program stays");
}

#[tokio::test]
async fn a_certificate_gets_in() {
    let sshd = server!("ssh_certificate");
    let dir = tempfile::tempdir().unwrap();
    let remotes = remotes(dir.path(), policy(&sshd));
    let target = Target::Ssh(Ssh { key_path: Some(sshd.certified_key()), ..address(&sshd) });
    let reached = remotes.connect(&target, None).await.unwrap();
    assert_eq!(reached.machine().env.get("USER").map(String::as_str), Some(USER));
    // Its key alone is nobody's.
    let bare = dir.path().join("bare");
    std::fs::copy(sshd.certified_key(), &bare).unwrap();
    let target = Target::Ssh(Ssh { key_path: Some(bare), ..address(&sshd) });
    let refused = wrong(remotes.connect(&target, None).await);
    assert!(matches!(refused, RemoteError::AuthRefused { .. }), "{refused}");
}

#[tokio::test]
async fn a_host_behind_another_is_reached_and_only_it_hears_the_password() {
    let (far, mut jump) = (server!("ssh_jump"), server!("ssh_jump"));
    let dir = tempfile::tempdir().unwrap();
    // Written over the one that knows the straight way.
    let mut through = policy(&far);
    through.ssh_config = Some(far.client_config_through("here", &jump).unwrap());
    let remotes = remotes(dir.path(), through);
    let reached = remotes.connect(&alias(), None).await.unwrap();
    assert_eq!(reached.machine().home, far.home().to_string_lossy());
    assert_eq!((far.connections(), jump.connections()), (1, 1));
    let joined = reached.lodge().await.unwrap();
    let mut shell = started(&joined.keeper, &reached, "/").await;
    run(&mut shell, 1, "x=5").await;
    // The one in between goes away, and comes back.
    jump.stop().unwrap();
    lost(&mut shell).await;
    let refused = wrong(remotes.take_up(&alias(), None, &joined.lodged, joined.token).await);
    assert!(matches!(refused, RemoteError::Unreachable { .. }), "{refused}");
    jump.start_again().unwrap();
    let keeper = remotes.take_up(&alias(), None, &joined.lodged, joined.token).await.unwrap();
    let (mut shell, _) = keeper.attach_shell(1).await.unwrap();
    let (_, out) = run(&mut shell, 2, "echo $x").await;
    assert_eq!(out, "5\n");
    shut_down(keeper).await;
    // A password is the far host's; the one in between lets its own key in.
    remotes.connect(&alias(), Some(&Password::new(PASSWORD))).await.unwrap();
    let fingerprint = Some(far.fingerprint("rsa").unwrap());
    let pinned = Target::Ssh(Ssh { host: "here".to_owned(), fingerprint, ..Ssh::default() });
    remotes.connect(&pinned, None).await.unwrap();
}
