//! Shells on other machines through the whole program: `outlast mcp`, a server, a real SSH server or container engine.
//! The same story on both; what only one of them can do to a shell is told beside it.

use crate::afar_kit::*;
use serde_json::json;

#[tokio::test]
async fn a_shell_over_ssh_is_a_shell() {
    story("afar::a_shell_over_ssh_is_a_shell", Machine::ssh(), is_a_shell).await;
}

#[tokio::test]
async fn a_shell_in_a_container_is_a_shell() {
    story("afar::a_shell_in_a_container_is_a_shell", Machine::docker(), is_a_shell).await;
}

async fn is_a_shell(afar: Afar) {
    let made = afar.create(json!({"env": {"GIVEN": "yes"}})).await;
    let id = id_of(&made);
    let (place, home) = match &afar.machine {
        Machine::Ssh(sshd) => {
            assert_eq!(id, format!("1_ssh_{}@{HERE}:{}", testkit::sshd::USER, sshd.port()));
            ("ssh", sshd.home().to_string_lossy().into_owned())
        }
        Machine::Docker(_) => {
            assert_eq!(id, format!("1_docker_{BOX}"));
            ("docker", "/".to_owned())
        }
    };
    assert_eq!((made["place"].as_str(), made["cwd"].as_str()), (Some(place), Some(&*home)), "{made}");
    assert!(made["lesser"].as_array().is_none_or(Vec::is_empty), "nothing less is promised: {made}");

    let first = "cd /usr; export A='a b'; f() { echo \"f:$A:$GIVEN\"; }; x=5; echo out; echo err >&2; false";
    let first = afar.run(&id, first).await;
    assert_eq!((&first["stdout"], &first["stderr"]), (&json!("out"), &json!("err")), "{first}");
    assert_eq!((&first["exit_code"], &first["cwd"]), (&json!(1), &json!("/usr")), "{first}");
    let left = afar.run(&id, "f; echo $x; exit 3").await;
    assert_eq!((&left["stdout"], &left["exit_code"]), (&json!("f:a b:yes\n5"), &json!(3)), "{left}");
    let back = afar.run(&id, "f; echo $x; pwd").await;
    assert_eq!(back["stdout"], "f:a b:yes\n5\n/usr", "{back}");

    let slow = json!({"command": "echo before; sleep 600; echo after", "timeout_secs": 1});
    let slow = afar.exec(&id, slow).await;
    assert_eq!((&slow["stdout"], &slow["timed_out"]), (&json!("before"), &json!(true)), "{slow}");
    let job = afar.run(&id, "(sleep 600; echo late) & echo now").await;
    assert_eq!(job["stdout"], "now", "{job}");
    assert!(job["left_running"].as_array().is_some_and(|left| !left.is_empty()), "{job}");
    assert_eq!(afar.run(&id, "kill -9 $! && wait; echo on").await["stdout"], "on");

    let command = afar.begin(&id, "read y; echo got:$y; exec sleep 600", "open").await;
    let written = afar.of("session_write", &id, json!({"command_id": command, "text": "hi\n"})).await;
    assert_eq!(written["written"], 3);
    afar.shows(&id, command, "got:hi").await;
    let signalled = json!({"command_id": command, "signal": "TERM"});
    assert_eq!(afar.of("session_signal", &id, signalled).await["signalled"], true);
    let ended = afar.end(&id, command).await;
    assert_eq!(ended["exit_code"], 143, "{ended}");
    let flood = afar
        .exec(&id, json!({"command": "seq 1 200000", "budget": {"keep": {"mode": "tail", "n": 1}}}))
        .await;
    assert_eq!(flood["stdout"], "200000");
    assert_eq!(flood["budget"]["stdout"]["lines_total"], 200_000, "{flood}");
    afar.destroy(&id).await;
    afar.machine.empty().await;
}

#[tokio::test]
async fn files_over_ssh_can_be_brought_back() {
    story("afar::files_over_ssh_can_be_brought_back", Machine::ssh(), brings_back).await;
}

#[tokio::test]
async fn files_in_a_container_can_be_brought_back() {
    story("afar::files_in_a_container_can_be_brought_back", Machine::docker(), brings_back).await;
}

async fn brings_back(afar: Afar) {
    let first = afar.shell().await;
    let folder =
        afar.run(&first, "d=$(mktemp -d) && cd \"$d\" && pwd").await["stdout"].as_str().unwrap().to_owned();
    afar.destroy(&first).await;
    let id = id_of(&afar.create(json!({"cwd": folder, "workspace": folder})).await);
    afar.run(&id, "mkdir -p a/empty; echo one >a/x; chmod 750 a/x; ln -s x a/l; git init -q r; echo n >r/f")
        .await;
    let before = "find . ! -path './r/.git*' -printf '%p %m %l\\n' | sort; cat a/x r/f";
    let was = afar.run(&id, before).await;
    let taken = afar.of("session_checkpoint", &id, json!({"label": "good"})).await;
    afar.run(&id, "echo two >a/x; rmdir a/empty; rm -r r; touch new; v=kept").await;
    let kept = afar.of("session_checkpoints", &id, json!({})).await;
    assert_eq!(kept["checkpoints"][0]["label"], "good", "{kept}");
    let restored = afar.of("session_restore", &id, json!({})).await;
    assert_eq!(restored["restored_to"], taken["checkpoint_id"], "{restored}");
    let now = afar.run(&id, before).await;
    assert_eq!(now["stdout"], was["stdout"]);
    // And undone again.
    let undo = json!({"checkpoint_id": restored["undo"]});
    afar.of("session_restore", &id, undo).await;
    assert_eq!(afar.run(&id, "cat a/x; ls; echo $v").await["stdout"], "two\na\nnew\nkept");
    afar.run(&id, "cd / && rm -r \"$OLDPWD\"").await;
    afar.destroy(&id).await;
    afar.machine.empty().await;
}

#[tokio::test]
async fn a_shell_over_ssh_outlives_server_and_connection() {
    story("afar::a_shell_over_ssh_outlives_server_and_connection", Machine::ssh(), outlives).await;
}

#[tokio::test]
async fn a_shell_in_a_container_outlives_server_and_engine() {
    story("afar::a_shell_in_a_container_outlives_server_and_engine", Machine::docker(), outlives).await;
}

async fn outlives(mut afar: Afar) {
    let id = afar.shell().await;
    // The server is killed in the middle, and the call that waits is answered all the same.
    let text = "for i in 1 2 3; do echo $i; sleep 0.5; done; v=set; seq 1 20000";
    let arguments = json!({"session_id": id, "command": text, "budget": {"keep": {"mode": "head_tail", "head": 3, "tail": 1}}});
    let begun = afar.client.begin_call("session_exec", arguments).await.unwrap();
    // The bridge knows of a command that has run for a moment.
    afar.shows(&id, 1, "1\n2").await;
    afar.server.kill9().unwrap();
    afar.server.restart().await.unwrap();
    let told = testkit::mcp::result(&begun.answer().await.unwrap()).unwrap();
    let text = told["stdout"].as_str().unwrap();
    assert!(text.starts_with("1\n2\n3") && text.ends_with("20000"), "{told}");
    assert_eq!(
        (&told["exit_code"], &told["budget"]["stdout"]["lines_total"]),
        (&json!(0), &json!(20_003)),
        "{told}"
    );
    assert_eq!(afar.run(&id, "echo $v").await["stdout"], "set", "the shell is the same one");

    // The connection is cut in the middle of a command.
    let command = afar.begin(&id, "echo one; read y; echo $v:$y; seq 1 20000 | tail -1", "open").await;
    afar.shows(&id, command, "one").await;
    afar.machine.cut();
    write_when_back(&afar, &id, command, "two\n").await;
    let ended = afar.end(&id, command).await;
    assert_eq!(
        (&ended["stdout"], &ended["exit_code"]),
        (&json!("one\nset:two\n20000"), &json!(0)),
        "{ended}"
    );

    // Nobody is there for a while, and a command that was given meanwhile runs when somebody is.
    afar.machine.stop();
    let waiting = afar.begin(&id, "echo $v; v=again", "empty").await;
    afar.machine.start_again();
    assert_eq!(afar.end(&id, waiting).await["stdout"], "set");
    assert_eq!(afar.run(&id, "echo $v").await["stdout"], "again");
    let notices = afar.notices(&id).await;
    assert!(notices.iter().any(|text| text.contains("being made again")), "{notices:?}");
    afar.destroy(&id).await;
    afar.machine.empty().await;
}

/// Writes to a command's input as soon as its machine is reached again.
async fn write_when_back(afar: &Afar, session: &str, command: u64, text: &str) {
    let arguments = json!({"session_id": session, "command_id": command, "text": text});
    loop {
        let params = json!({"name": "session_write", "arguments": arguments});
        let answer = afar.client.request("tools/call", params).await.unwrap();
        match testkit::mcp::refusal(&answer) {
            Ok((code, _)) => assert_eq!(code, "unreachable", "{answer}"),
            Err(_) => return,
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_container_that_is_restarted_has_lost_its_shell_and_that_is_said() {
    let name = "afar::a_container_that_is_restarted_has_lost_its_shell_and_that_is_said";
    story(name, Machine::docker(), async |afar: Afar| {
        let Machine::Docker(engine) = &afar.machine else { return };
        let (busy, quiet) = (afar.shell().await, afar.shell().await);
        afar.run(&quiet, "v=set; cd /tmp").await;
        let command = afar.begin(&busy, "echo begun; sleep 600", "empty").await;
        afar.shows(&busy, command, "begun").await;
        engine.docker(&["restart", "-t", "0", BOX]).unwrap();
        let ended = afar.end(&busy, command).await;
        assert_eq!((&ended["stdout"], &ended["exit_code"]), (&json!("begun"), &json!(null)), "{ended}");
        assert!(ended["hint"].as_str().unwrap().contains("lost"), "{ended}");
        for id in [&busy, &quiet] {
            let mut next = afar.run(id, "echo \"[$v]\"").await;
            if next["exit_code"].is_null() {
                // It was given before the server knew of the loss.
                assert!(next["hint"].as_str().unwrap().contains("nothing of it was run"), "{next}");
                next = afar.run(id, "echo \"[$v]\"").await;
            }
            assert_eq!(next["stdout"], "[]", "{next}");
            assert!(next["hint"].as_str().unwrap().contains("was lost"), "{next}");
            assert!(afar.run(id, "true").await["hint"].is_null(), "it is said once");
        }
        assert_eq!(afar.run(&quiet, "pwd").await["stdout"], "/tmp", "the folder is known still");
        for id in [&busy, &quiet] {
            afar.destroy(id).await;
        }
        afar.machine.empty().await;
        // One that is removed for good is not waited for.
        let id = afar.shell().await;
        engine.docker(&["rm", "-f", BOX]).unwrap();
        let lost = afar.run(&id, "echo never").await;
        assert_eq!(lost["exit_code"], json!(null), "{lost}");
        let (code, _) =
            afar.client.refused("session_exec", json!({"session_id": id, "command": "x"})).await.unwrap();
        assert_eq!(code, "container_not_found");
    })
    .await;
}

#[tokio::test]
async fn a_shell_whose_connection_is_gone_is_ended_all_the_same() {
    let name = "afar::a_shell_whose_connection_is_gone_is_ended_all_the_same";
    story(name, Machine::ssh(), async |mut afar: Afar| {
        let (one, two) = (afar.shell().await, afar.shell().await);
        for id in [&one, &two] {
            afar.run(id, "sleep 600 & sleep 600 &").await;
        }
        afar.machine.cut();
        afar.destroy(&one).await;
        eventually("only the other is left", || match afar.machine.lodged().len() {
            1 => Ok(()),
            _ => Err(format!("{:?}", afar.machine.lodged())),
        })
        .await;
        // Nobody can be reached, and that is said.
        assert_eq!(afar.run(&two, "echo there").await["stdout"], "there");
        afar.machine.stop();
        afar.destroy(&two).await;
        let http = afar.server.http().unwrap();
        let said = crate::kit::until(&http, &two, |event| {
            event["text"].as_str().is_some_and(|text| text.contains("could not be ended on its machine"))
        });
        said.await;
    })
    .await;
}
