//! Machines that cannot be reached, or that lack what most have. Every refusal has a code and says what to do.

use crate::{afar_kit::*, kit::*, mcp::client};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use testkit::{
    Engine, Inside,
    sshd::{NOBODY, PASSWORD, Sshd, USER, USER_ID},
};

fn with(base: &Value, more: &Value) -> Value {
    let mut all = base.clone();
    let Value::Object(more) = more else { panic!("an object: {more}") };
    all.as_object_mut().unwrap().extend(more.clone());
    all
}

#[tokio::test]
async fn who_is_not_let_in_is_told_why() {
    let sshd = match Sshd::start() {
        Ok(sshd) => sshd,
        Err(why) => return skip("afar_faults::who_is_not_let_in_is_told_why", &format!("{why:#}")),
    };
    let config = json!(sshd.stranger_config().unwrap());
    let server = server_with(&format!("ssh_config = {config}\nconnect_secs = 2\n")).await;
    let client = client(&server).await;
    let mute = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let shut = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let pin = sshd.fingerprint("ed25519").unwrap();
    let base = json!({
        "transport": "ssh", "host": "127.0.0.1", "port": sshd.port(), "user": USER, "key_path": sshd.key(),
        "fingerprint": pin,
    });
    let no_key = |more: &Value| {
        let mut all = with(&base, more);
        all.as_object_mut().unwrap().remove("key_path");
        all
    };
    let mut unknown = base.clone();
    unknown.as_object_mut().unwrap().remove("fingerprint");
    for (arguments, code, part) in [
        (no_key(&json!({"password": "wrong"})), "auth_refused", "password"),
        (no_key(&json!({})), "auth_refused", "key"),
        (with(&base, &json!({"user": NOBODY})), "unsupported", "shell"),
        (with(&base, &json!({"fingerprint": format!("SHA256:{}", "A".repeat(43))})), "host_key_wrong", &*pin),
        (unknown, "host_key_unknown", &*pin),
        (with(&base, &json!({"port": shut})), "unreachable", "refused"),
        (with(&base, &json!({"port": mute.local_addr().unwrap().port()})), "unreachable or timed_out", ""),
        (with(&base, &json!({"host": "no-such-host.invalid"})), "unreachable", "resolve"),
        (with(&base, &json!({"host": "-oProxyCommand=x"})), "invalid_request", "host"),
        (with(&base, &json!({"fingerprint": "MD5:aa"})), "invalid_request", "fingerprint"),
        (with(&base, &json!({"key_path": "/nowhere/key"})), "auth_refused", "key"),
        (with(&base, &json!({"container": "x"})), "invalid_request", "container"),
    ] {
        let since = Instant::now();
        let (told, sentence) = client.refused("session_create", arguments.clone()).await.unwrap();
        assert!(code.split(" or ").any(|code| code == told), "{arguments}: {told}: {sentence}");
        assert!(sentence.contains(part) && !sentence.contains("wrong\""), "{arguments}: {sentence}");
        assert!(since.elapsed() < Duration::from_secs(10), "{arguments}: {:?}", since.elapsed());
    }
    // What is right gets in after all that, by a password and by a key.
    let by_password = client.call("session_create", no_key(&json!({"password": PASSWORD}))).await.unwrap();
    let by_key = client.call("session_create", base.clone()).await.unwrap();
    for made in [by_password, by_key] {
        let id = json!(id_of(&made));
        let said = client.call("session_exec", json!({"session_id": id, "command": "id -un"})).await.unwrap();
        assert_eq!(said["stdout"], USER, "{said}");
        client.call("session_destroy", json!({"session_id": id})).await.unwrap();
    }
    assert!(files_with(server.data(), PASSWORD.as_bytes()).is_empty(), "the password is written nowhere");
    let listed = client.call("session_list", json!({})).await.unwrap();
    let open = listed["sessions"].as_array().unwrap().iter().filter(|each| each["status"] != "error").count();
    assert_eq!(open, 0, "{listed}");
}

#[tokio::test]
async fn a_home_that_cannot_be_written_to_is_no_obstacle() {
    let name = "afar_faults::a_home_that_cannot_be_written_to_is_no_obstacle";
    story(name, Machine::ssh(), async |afar: Afar| {
        let Machine::Ssh(sshd) = &afar.machine else { return };
        std::os::unix::fs::chown(sshd.home(), Some(0), Some(0)).unwrap();
        let id = afar.shell().await;
        assert_eq!(afar.run(&id, "echo $HOME; touch ~/x").await["exit_code"], 1);
        assert_eq!(afar.run(&id, "exit 4").await["exit_code"], 4);
        afar.destroy(&id).await;
        let elsewhere = std::path::PathBuf::from(format!("/var/tmp/outlast-{USER_ID}"));
        let left: Vec<_> =
            std::fs::read_dir(&elsewhere).unwrap().flatten().map(|entry| entry.file_name()).collect();
        std::fs::remove_dir_all(&elsewhere).unwrap();
        assert_eq!(left.len(), 1, "only the program stays: {left:?}");
    })
    .await;
}

#[tokio::test]
async fn containers_that_lack_things() {
    let engine = match Engine::start() {
        Ok(engine) => engine,
        Err(why) => return skip("afar_faults::containers_that_lack_things", &format!("{why:#}")),
    };
    let server = server_with(&format!("engine_socket = {}\n", json!(engine.socket()))).await;
    let client = client(&server).await;
    let refused = async |arguments: Value| client.refused("session_create", arguments).await.unwrap();
    let (code, sentence) = refused(json!({"transport": "docker", "container": "nowhere"})).await;
    assert_eq!(code, "container_not_found", "{sentence}");
    engine.run("stopped", Inside::Busybox, &[]).unwrap();
    engine.docker(&["kill", "stopped"]).unwrap();
    let (code, sentence) = refused(json!({"transport": "docker", "container": "stopped"})).await;
    assert_eq!(code, "not_running", "{sentence}");

    // No bash, no git, no mktemp, a root that cannot be written to, and no /tmp to speak of.
    let bare = ["--read-only", "--tmpfs", "/run:exec,size=8m", "--tmpfs", "/tmp:ro"];
    engine.run("bare", Inside::Busybox, &bare).unwrap();
    let made =
        client.call("session_create", json!({"transport": "docker", "container": "bare"})).await.unwrap();
    let lesser = made["lesser"].as_array().unwrap();
    assert!(!lesser.is_empty(), "what a plain shell cannot promise is said: {made}");
    let id = json!(id_of(&made));
    let exec = async |command: &str| {
        let arguments = json!({"session_id": id, "command": command, "timeout_secs": 20});
        client.call("session_exec", arguments).await.unwrap()
    };
    let said = exec("cd /bin; export A=1; x=5; touch /tmp/x; touch ~/x; false").await;
    assert_eq!((&said["exit_code"], &said["cwd"]), (&json!(1), &json!("/bin")), "{said}");
    assert_eq!(exec("echo $A$x; exit 3").await["exit_code"], 3);
    let said = exec("echo $A; pwd").await;
    assert_eq!(said["stdout"], "1\n/bin", "{said}");
    let slow = json!({"session_id": id, "command": "echo a; sleep 600", "timeout_secs": 1});
    let slow = client.call("session_exec", slow).await.unwrap();
    assert_eq!((&slow["stdout"], &slow["timed_out"]), (&json!("a"), &json!(true)), "{slow}");
    assert_eq!(exec("echo $A").await["stdout"], "1");
    let (code, sentence) = client.refused("session_checkpoint", json!({"session_id": id})).await.unwrap();
    assert_eq!(code, "unsupported", "{sentence}");
    assert!(sentence.contains("git"), "{sentence}");
    client.call("session_destroy", json!({"session_id": id})).await.unwrap();
    eventually("nothing is left", || {
        let listed = engine.docker(&["top", "bare", "-eo", "pid,args"]).unwrap();
        if listed.lines().count() == 2 { Ok(()) } else { Err(listed) }
    })
    .await;
}

#[tokio::test]
async fn a_disk_that_is_full_over_there_can_be_emptied_from_its_shell() {
    let name = "afar_faults::a_disk_that_is_full_over_there_can_be_emptied_from_its_shell";
    let engine = match Engine::start() {
        Ok(engine) => engine,
        Err(why) => return skip(name, &format!("{why:#}")),
    };
    engine
        .run(BOX, Inside::Machine, &["--tmpfs", "/full:exec,size=8m", "-e", "XDG_CACHE_HOME=/full"])
        .unwrap();
    let afar = Afar::new(Machine::Docker(engine)).await;
    let id = afar.shell().await;
    let fill = "v=kept; dd if=/dev/zero of=/full/fill bs=64k 2>/dev/null; head -c 100000 /dev/zero >>/full/fill; echo $?";
    let full = afar.run(&id, fill).await;
    assert_eq!((&full["stdout"], &full["exit_code"]), (&json!("1"), &json!(0)), "{full}");
    // What it says on a full disk is whole all the same.
    let flood = json!({"command": "seq 1 20000; echo $v", "budget": {"keep": {"mode": "tail", "n": 1}}});
    let flood = afar.exec(&id, flood).await;
    assert_eq!(
        (&flood["stdout"], &flood["budget"]["stdout"]["lines_total"]),
        (&json!("kept"), &json!(20_001)),
        "{flood}"
    );
    assert_eq!(afar.run(&id, "rm /full/fill; echo $v").await["stdout"], "kept");
    assert_eq!(afar.run(&id, "exit 3").await["exit_code"], 3);
    assert_eq!(afar.run(&id, "echo $v >/full/x && cat /full/x").await["stdout"], "kept");
    afar.destroy(&id).await;
    let running = afar.machine.running();
    assert!(running.is_empty(), "{running:?}");
}
