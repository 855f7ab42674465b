//! Shells that cannot be seen into, and what can still be promised of them.

use crate::kit::{run, shut_down, within};
use outlast_place as place;
use place::{
    Spawn,
    keeper::{How, Keepers, Limits, Manner, Order, Shell, ShellEvent},
};
use std::{collections::BTreeMap, time::Duration};

async fn ready(shell: &mut Shell) {
    let event = within(shell.next()).await;
    assert!(matches!(event, Some(ShellEvent::Ready { .. })), "{event:?}");
}

/// Any shell that there is on this machine; none is a bash.
fn plain_shells() -> Vec<Spawn> {
    let all = [("/usr/bin/dash", vec!["-s"]), ("/usr/bin/busybox", vec!["sh", "-s"])];
    let there = all.into_iter().filter(|(path, _)| std::path::Path::new(path).exists());
    there
        .map(|(program, args)| Spawn {
            program: program.to_owned(),
            args: args.into_iter().map(str::to_owned).collect(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            cwd: None,
        })
        .collect()
}

#[tokio::test]
async fn a_plain_shell_is_asked_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let keepers = Keepers::new(dir.path());
    let order = Order { orphan: Duration::from_secs(60), limits: Limits::default(), sandbox: None };
    let keeper = keepers.start(&format!("plain-{}", std::process::id()), order).await.unwrap();
    let shells = plain_shells();
    assert!(!shells.is_empty(), "every machine has a plain shell");
    for (number, spawn) in (1..).zip(shells) {
        let program = spawn.program.clone();
        let mut shell = keeper.start_shell(number, spawn.clone(), "/").await.unwrap();
        ready(&mut shell).await;
        assert_eq!(shell.manner(), Manner::Told);
        assert!(!shell.manner().lesser().is_empty());
        let (ended, out) = run(&mut shell, 1, "cd /tmp; x=5; echo hi; echo no >&2; false").await;
        assert_eq!((ended.how, &*out, ended.stderr), (How::Returned(1), "hi\n", 3), "{program}");
        assert_eq!(ended.cwd.as_deref(), Some(b"/tmp".as_slice()), "{program}");
        let (ended, out) = run(&mut shell, 2, "echo $? $x").await;
        assert_eq!((ended.how, &*out, ended.stderr), (How::Returned(0), "1 5\n", 0), "{program}");
        let (ended, _) = run(&mut shell, 3, "if then").await;
        assert_eq!(ended.how, How::Returned(2), "{program}");
        assert!(ended.stderr > 0, "{program}");
        let (_, out) = run(&mut shell, 4, "(sleep 0.05; echo late) & echo now").await;
        assert_eq!(out, "now\n", "{program}");
        let (ended, out) = run(&mut shell, 5, "wait; echo '# outlast: told 0 0'; exec >&-; (exit 3)").await;
        assert_eq!((ended.how, &*out), (How::Returned(3), "# outlast: told 0 0\n"), "{program}");
        let (ended, _) = run(&mut shell, 6, "cd /usr; export A=\"a'b\"; umask 027; exit 4").await;
        assert_eq!(ended.how, How::Died(place::Exit { code: Some(4), signal: None }), "{program}");
        keeper.restart_shell(number, spawn, "").await.unwrap();
        ready(&mut shell).await;
        let (_, out) = run(&mut shell, 7, "pwd; echo \"$A\"; umask").await;
        assert_eq!(out, "/usr\na'b\n0027\n", "{program}");
        keeper.forget(number).await.unwrap();
    }
    shut_down(keeper).await;
}
