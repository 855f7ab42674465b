//! Shells where no keeper can run: what they promise, what they say that they do not, and that nothing of them stays.

use crate::{afar_kit::*, kit::*};
use serde_json::json;
use testkit::{Engine, Inside};

#[tokio::test]
async fn a_shell_over_ssh_without_a_keeper_is_a_shell() {
    let name = "afar_plain::a_shell_over_ssh_without_a_keeper_is_a_shell";
    let machine = match Machine::ssh() {
        Ok(machine) => machine,
        Err(why) => return skip(name, &why),
    };
    let settings = format!("{}lodge = false\n", machine.settings());
    let mut afar = Afar::with(machine, &settings).await;
    let made = afar.create(json!({"env": {"GIVEN": "yes"}})).await;
    assert!(made["lesser"][0].as_str().unwrap().contains("no keeper runs there"), "{made}");
    let id = id_of(&made);
    let folder = is_a_plain_shell(&afar, &id).await;

    // Checkpoints need git there and no keeper.
    let kept = id_of(&afar.create(json!({"cwd": folder, "workspace": folder})).await);
    afar.run(&kept, "echo one >x").await;
    afar.of("session_checkpoint", &kept, json!({})).await;
    afar.run(&kept, "echo two >x").await;
    afar.of("session_restore", &kept, json!({})).await;
    assert_eq!(afar.run(&kept, "cat x; cd / && rm -r \"$OLDPWD\"").await["stdout"], "one");
    afar.destroy(&kept).await;

    // What a cut connection costs is said.
    let command = afar.begin(&id, "echo begun; sleep 600", "empty").await;
    afar.shows(&id, command, "begun").await;
    afar.machine.cut();
    let ended = afar.end(&id, command).await;
    assert_eq!((&ended["stdout"], &ended["exit_code"]), (&json!("begun"), &json!(null)), "{ended}");
    let next = afar.run(&id, "echo \"[$x]\"; x=6").await;
    assert_eq!(next["stdout"], "[]", "{next}");
    assert!(next["hint"].as_str().unwrap().contains("without a keeper"), "{next}");
    afar.server.kill9().unwrap();
    afar.server.restart().await.unwrap();
    let mut next = afar.run(&id, "echo \"[$x]\"").await;
    if next["exit_code"].is_null() {
        // It was given before the server knew of the loss.
        assert!(next["hint"].as_str().unwrap().contains("nothing of it was run"), "{next}");
        next = afar.run(&id, "echo \"[$x]\"").await;
    }
    assert_eq!(next["stdout"], "[]", "{next}");
    assert!(next["hint"].as_str().unwrap().contains("was lost"), "{next}");
    let notices = afar.notices(&id).await;
    assert!(notices.iter().any(|text| text.contains("forbids keepers")), "{notices:?}");
    afar.destroy(&id).await;
    afar.machine.empty().await;
}

/// The same story on every such machine; the folder that it made there.
async fn is_a_plain_shell(afar: &Afar, id: &str) -> String {
    let made = afar.run(id, "d=$(mktemp -d) && cd \"$d\" && pwd").await;
    let folder = made["stdout"].as_str().unwrap().to_owned();
    assert_eq!(made["cwd"], folder, "{made}");
    let first = afar.run(id, "export A='a b'; x=5; echo out; echo err >&2; false").await;
    assert_eq!((&first["stdout"], &first["stderr"]), (&json!("out"), &json!("err")), "{first}");
    assert_eq!(first["exit_code"], 1, "{first}");
    let second = afar.run(id, "echo $? $x $GIVEN; if then").await;
    assert_eq!((&second["stdout"], &second["exit_code"]), (&json!(""), &json!(2)), "{second}");
    assert_eq!(afar.run(id, "echo $? $x $GIVEN; (exit 7)").await["stdout"], "2 5 yes");
    assert_eq!(afar.run(id, "echo $?; exit 3").await["stdout"], "7");
    let back = afar.run(id, "echo \"$A\"; pwd; cat; printf 'no newline'").await;
    assert_eq!(back["stdout"], format!("a b\n{folder}\nno newline"), "{back}");
    let late = afar.run(id, "(sleep 0.2; echo late; echo there >done) & echo now").await;
    assert_eq!(late["stdout"], "now");
    let quiet = afar.run(id, "until [ -s done ]; do sleep 0.05; done; rm done; exec 5>&1; echo here").await;
    assert_eq!(quiet["stdout"], "here", "{quiet}");
    let slow = json!({"command": "echo before; sleep 600 & sleep 600; echo after", "timeout_secs": 1});
    let slow = afar.exec(id, slow).await;
    assert_eq!((&slow["stdout"], &slow["timed_out"]), (&json!("before"), &json!(true)), "{slow}");
    assert_eq!(afar.run(id, "echo $A").await["stdout"], "a b");
    let command = afar.begin(id, "echo one; sleep 600; echo two", "open").await;
    afar.shows(id, command, "one").await;
    let write = json!({"session_id": id, "command_id": command, "text": "x"});
    assert_eq!(afar.client.refused("session_write", write).await.unwrap().0, "not_running");
    let signal = json!({"command_id": command, "signal": "KILL"});
    assert_eq!(afar.of("session_signal", id, signal).await["signalled"], true);
    assert_eq!(afar.end(id, command).await["stdout"], "one\ntwo");
    let flood = json!({"command": "seq 1 300000; echo x >&2", "budget": {"keep": {"mode": "tail", "n": 1}}});
    let flood = afar.exec(id, flood).await;
    assert_eq!((&flood["stdout"], &flood["stderr"]), (&json!("300000"), &json!("x")), "{flood}");
    assert_eq!(flood["budget"]["stdout"]["lines_total"], 300_000, "{flood}");
    folder
}

#[tokio::test]
async fn a_container_that_runs_no_programs_of_ours_has_a_plain_shell() {
    let name = "afar_plain::a_container_that_runs_no_programs_of_ours_has_a_plain_shell";
    let engine = match Engine::start() {
        Ok(engine) => engine,
        Err(why) => return skip(name, &format!("{why:#}")),
    };
    let noexec = ["--read-only", "--tmpfs", "/tmp:noexec", "--shm-size", "1m"];
    engine.run(BOX, Inside::Machine, &noexec).unwrap();
    engine.run("bare", Inside::Busybox, &noexec).unwrap();
    engine.run("stone", Inside::Busybox, &["--read-only", "--ipc", "none"]).unwrap();
    let afar = Afar::new(Machine::Docker(engine)).await;
    let id = id_of(&afar.create(json!({"env": {"GIVEN": "yes"}})).await);
    is_a_plain_shell(&afar, &id).await;
    afar.destroy(&id).await;

    // With nothing but a busybox.
    let made = json!({"transport": "docker", "container": "bare"});
    let made = afar.client.call("session_create", made).await.unwrap();
    assert!(made["lesser"][0].as_str().unwrap().contains("no keeper runs there"), "{made}");
    let id = id_of(&made);
    assert_eq!(afar.run(&id, "cd /bin; export A=1; echo hi; exit 3").await["exit_code"], 3);
    assert_eq!(afar.run(&id, "pwd; echo $A").await["stdout"], "/bin\n1");
    let slow = afar.exec(&id, json!({"command": "sleep 600", "timeout_secs": 1})).await;
    assert_eq!(slow["timed_out"], true, "{slow}");
    assert_eq!(afar.run(&id, "sleep 600 & echo on").await["stdout"], "on");
    afar.destroy(&id).await;
    let Machine::Docker(engine) = &afar.machine else { return };
    for container in [BOX, "bare"] {
        eventually("nothing is left", || {
            let running = engine.docker(&["top", container, "-eo", "pid,args"]).unwrap();
            let lying = engine.docker(&["exec", container, "ls", "-A", "/tmp/outlast-0"]).unwrap();
            if running.lines().count() == 2 && lying.is_empty() { Ok(()) } else { Err(running + &lying) }
        })
        .await;
    }
    // Nowhere to write to at all.
    let (code, sentence) = {
        let made = json!({"transport": "docker", "container": "stone", "user": "1000:1000"});
        afar.client.refused("session_create", made).await.unwrap()
    };
    assert_eq!(code, "unsupported", "{sentence}");
    assert!(sentence.contains("make one of them writable"), "{sentence}");
}
