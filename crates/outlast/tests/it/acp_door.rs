//! `outlast acp` for an editor: the official SDK's client against the real program.

use crate::{acp_client::*, kit::*};
use agent_client_protocol::v1::schema;
use serde_json::{Value, json};
use std::{os::unix::fs::PermissionsExt as _, path::Path};

fn is_update(kind: &str) -> impl Fn(&Value) -> bool + '_ {
    move |update| update["sessionUpdate"] == kind
}

#[tokio::test]
async fn a_conversation_from_an_editor() {
    let (server, http) = server().await;
    let folder = server.scratch().join("a project");
    std::fs::create_dir(&folder).unwrap();
    let mut editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let mcp = schema::McpServer::Stdio(schema::McpServerStdio::new("notes", "/bin/notes"));
    let made = editor.ask(schema::NewSessionRequest::new(&folder).mcp_servers(vec![mcp])).await.unwrap();
    let session = made.session_id;
    let modes = made.modes.unwrap();
    assert_eq!(&*modes.current_mode_id.0, "ask");
    let options: Vec<_> = made.config_options.unwrap().iter().map(|option| option.id.to_string()).collect();
    assert_eq!(options, ["model", "mode", "thought_level"]);
    assert!(editor.updates().is_empty(), "a new session has no history");

    let stop = editor.prompt(&session, "cwd\nmcp\nthink deeply\ntool").await.unwrap();
    assert_eq!(stop, schema::StopReason::EndTurn);
    // Everything of the turn came before its answer.
    let updates = editor.updates();
    let words = agent_text(&updates);
    assert!(words.contains(folder.to_str().unwrap()) && words.contains("notes"), "{words}");
    assert_eq!(text(&updates, "agent_thought_chunk"), "deeply");
    assert!(updates.iter().any(is_update("tool_call")) && updates.iter().any(is_update("tool_call_update")));
    assert!(!updates.iter().any(is_update("user_message_chunk")), "an editor knows what it said");
    // As the agent wrote it: what the journal holds is what came.
    let recorded = events(&http, &session.to_string()).await;
    let recorded: Vec<_> =
        of_type(&recorded, "agent_update").iter().map(|event| event["update"].clone()).collect();
    assert_eq!(updates.len(), recorded.len());
    assert_eq!(get(&http, &session.to_string()).await["place"], "host");

    let error = editor.prompt(&session, "error").await.unwrap_err();
    assert!(error.message.contains("the turn failed"), "{error:?}");
    let blocks = vec!["echo of two".into(), "echo blocks".into()];
    editor.ask(schema::PromptRequest::new(session.clone(), blocks)).await.unwrap();
    assert_eq!(agent_text(&editor.updates()), "blocks");
    editor.close().await;
    assert_eq!(get(&http, &session.to_string()).await["status"], "active", "a session outlives its editor");
}

#[tokio::test]
async fn a_flood_arrives_whole_and_in_order() {
    let (server, http) = server().await;
    let mut editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let session = editor.session(server.scratch()).await;
    assert_eq!(editor.prompt(&session, "stream 10000").await.unwrap(), schema::StopReason::EndTurn);
    let updates = editor.updates();
    let recorded = events(&http, &session.to_string()).await;
    let recorded: Vec<_> =
        of_type(&recorded, "agent_update").iter().map(|event| event["update"].clone()).collect();
    assert_eq!(updates.len(), recorded.len());
    assert_eq!(agent_text(&updates), agent_text(&recorded));
    assert_eq!(editor.prompt(&session, "huge 9000000").await.unwrap(), schema::StopReason::EndTurn);
    assert_eq!(agent_text(&editor.updates()).len(), 9_000_000);
    editor.close().await;
}

#[tokio::test]
async fn an_editor_may_leave_in_the_middle_of_a_flood() {
    let (server, http) = server().await;
    let mut editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let session = editor.session(server.scratch()).await;
    let prompt = editor.begin(&session, "stream 20000\necho to the end");
    editor.update().await;
    // Nobody reads what the bridge still writes; that is no failure of the bridge.
    editor.close().await;
    assert!(prompt.await.unwrap().is_err());
    let recorded = until(&http, &session.to_string(), is("turn_ended")).await;
    assert_eq!(only_end(&recorded), ("done".to_owned(), "end_turn".to_owned()));
}

#[tokio::test]
async fn questions_go_to_the_editor_and_back() {
    let (server, http) = server().await;
    let mut editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let session = editor.session(server.scratch()).await;
    let id = session.to_string();
    let prompt = editor.begin(&session, "permission");
    let (question, responder) = editor.question().await;
    assert_eq!(question.session_id, session);
    let allow = question.options[0].option_id.to_string();
    responder.respond(select(&question, 0)).unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::EndTurn);
    assert!(agent_text(&editor.updates()).contains(&allow));
    let recorded = events(&http, &id).await;
    assert_eq!(of_type(&recorded, "permission_answered")[0]["answer"]["optionId"], allow.as_str());

    // Answered at another door: the editor's question is taken back.
    let prompt = editor.begin(&session, "permission");
    let (_, responder) = editor.question().await;
    let asked = until_count(&http, &id, "permission_requested", 2).await;
    let seq = &asked[asked.len() - 1]["seq"];
    let path = format!("/api/sessions/{id}/permissions/{seq}");
    http.post(&path, &json!({"optionId": allow})).await.unwrap().expect(200).unwrap();
    tokio::time::timeout(testkit::limits::CALL, responder.cancellation().cancelled()).await.unwrap();
    drop(responder);
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::EndTurn);

    // Open when the editor went away: asked again by the next one.
    let mut running = send(&http, &id, &json!({"content": "permission"})).await;
    let (_, unanswered) = editor.question().await;
    drop(unanswered.respond_with_error(agent_client_protocol::Error::internal_error()));
    editor.close().await;
    let mut next = Editor::open(server.data(), &[]).await;
    next.ask(schema::ResumeSessionRequest::new(session.clone(), server.scratch())).await.unwrap();
    let (question, responder) = next.question().await;
    responder.respond(select(&question, 1)).unwrap();
    let frames = running.collect().await.unwrap();
    assert!(text_of(&frames).contains(&question.options[1].option_id.to_string()), "{frames:?}");
    next.close().await;
}

#[tokio::test]
async fn a_turn_is_cancelled() {
    let (server, http) = server().await;
    let mut editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let session = editor.session(server.scratch()).await;
    let prompt = editor.begin(&session, "echo begun\nsilent");
    editor.until(|update| update["content"]["text"] == "begun").await;
    editor.agent.send_notification(schema::CancelNotification::new(session.clone())).unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::Cancelled);
    // At once: the cancel does not overtake the prompt.
    let prompt = editor.begin(&session, "silent");
    editor.agent.send_notification(schema::CancelNotification::new(session.clone())).unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::Cancelled);
    // From elsewhere.
    let prompt = editor.begin(&session, "silent");
    until_count(&http, &session.to_string(), "turn_started", 3).await;
    act(&http, &session.to_string(), "cancel").await.expect(200).unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::Cancelled);
    // Closing ends the turn and keeps the session.
    let prompt = editor.begin(&session, "silent");
    until_count(&http, &session.to_string(), "turn_started", 4).await;
    editor.ask(schema::CloseSessionRequest::new(session.clone())).await.unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::Cancelled);
    assert_eq!(get(&http, &session.to_string()).await["status"], "paused");
    let refused = editor.prompt(&session, "echo no").await.unwrap_err();
    assert!(refused.message.contains("load or resume"), "{refused:?}");
    editor.ask(schema::ResumeSessionRequest::new(session.clone(), server.scratch())).await.unwrap();
    assert_eq!(editor.prompt(&session, "echo back").await.unwrap(), schema::StopReason::EndTurn);
    editor.close().await;
}

#[tokio::test]
async fn sessions_are_listed_loaded_and_resumed() {
    let (server, http) = server().await;
    let (here, there) = (server.scratch().join("here"), server.scratch().join("there"));
    for folder in [&here, &there] {
        std::fs::create_dir(folder).unwrap();
    }
    let editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let first = editor.session(&here).await;
    editor.prompt(&first, "echo one").await.unwrap();
    let second = editor.session(&there).await;
    let elsewhere = session(&http).await;
    say(&http, &elsewhere, "echo from rest").await;
    let ended = editor.session(&here).await;
    http.delete(&format!("/api/sessions/{ended}")).await.unwrap().expect(200).unwrap();
    editor.close().await;

    let mut editor = Editor::open(server.data(), &[]).await;
    let listed = |answer: schema::ListSessionsResponse| -> Vec<(String, String)> {
        let shape = |session: schema::SessionInfo| {
            (session.session_id.to_string(), session.cwd.to_string_lossy().into_owned())
        };
        answer.sessions.into_iter().map(shape).collect()
    };
    let path = |folder: &Path| folder.to_string_lossy().into_owned();
    let all = listed(editor.ask(schema::ListSessionsRequest::new()).await.unwrap());
    let home = "/home/user".to_owned();
    let expected =
        [(elsewhere.clone(), home), (second.to_string(), path(&there)), (first.to_string(), path(&here))];
    assert_eq!(all, expected);
    let of_folder = listed(editor.ask(schema::ListSessionsRequest::new().cwd(here.clone())).await.unwrap());
    assert_eq!(of_folder, [(elsewhere.clone(), path(&here)), (first.to_string(), path(&here))]);

    editor.ask(schema::LoadSessionRequest::new(first.clone(), &here)).await.unwrap();
    let history = editor.updates();
    assert_eq!(text(&history, "user_message_chunk"), "echo one");
    assert_eq!(agent_text(&history), "one");
    assert!(editor.prompt(&first, "echo two").await.is_ok());
    assert_eq!(agent_text(&editor.updates()), "two");
    // Loading what is open already tells it all again.
    editor.ask(schema::LoadSessionRequest::new(first.clone(), &here)).await.unwrap();
    let history = editor.updates();
    assert_eq!(
        (text(&history, "user_message_chunk"), agent_text(&history)),
        ("echo oneecho two".into(), "onetwo".into())
    );

    // Begun over REST, gone on with in the editor, and watched while others speak.
    let other = schema::SessionId::new(elsewhere.clone());
    let resumed = editor.ask(schema::ResumeSessionRequest::new(other.clone(), &here)).await.unwrap();
    assert!(resumed.modes.is_some() && resumed.config_options.is_some());
    assert!(editor.updates().is_empty(), "resuming shows no history");
    say(&http, &elsewhere, "echo seen").await;
    let seen = editor.until(|update| update["content"]["text"] == "seen").await;
    assert_eq!(text(&seen, "user_message_chunk"), "echo seen");
    for missing in ["no id", "019a8000-0000-7000-8000-000000000001"] {
        let refused = editor.ask(schema::LoadSessionRequest::new(missing, &here)).await.unwrap_err();
        assert_eq!(refused.code.value(), -32002, "{refused:?}");
    }
    editor.close().await;
}

#[tokio::test]
async fn settings_are_changed_here_and_elsewhere() {
    let (server, http) = server().await;
    let mut editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let session = editor.session(server.scratch()).await;
    editor.ask(schema::SetSessionModeRequest::new(session.clone(), "plan")).await.unwrap();
    let set = |option: &'static str, value: &'static str| {
        let value = schema::SessionConfigOptionValue::value_id(value);
        schema::SetSessionConfigOptionRequest::new(session.clone(), option, value)
    };
    let answer = editor.ask(set("thought_level", "high")).await.unwrap();
    let current: Vec<_> = serde_json::to_value(&answer.config_options)
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .map(|option| option["currentValue"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(current, ["demo-small", "plan", "high"]);
    editor.updates();
    let path = format!("/api/sessions/{session}/config");
    http.call("PATCH", &path, Some(&json!({"model": "demo-large", "mode": "code"})))
        .await
        .unwrap()
        .expect(200)
        .unwrap();
    let told = editor
        .until(|update| {
            update["sessionUpdate"] == "config_option_update"
                && update["configOptions"][0]["currentValue"] == "demo-large"
        })
        .await;
    assert!(told.iter().any(|update| update["currentModeId"] == "code"), "{told:?}");
    editor.prompt(&session, "model").await.unwrap();
    let words = agent_text(&editor.updates());
    assert!(["demo-large", "code", "high"].iter().all(|word| words.contains(word)), "{words}");
    let refused = editor.ask(set("colour", "red")).await.unwrap_err();
    assert!(refused.message.contains("no option"), "{refused:?}");
    assert!(editor.ask(schema::SetSessionModeRequest::new(session.clone(), "fly")).await.is_err());
    editor.close().await;
}

#[tokio::test]
async fn a_sandbox_is_said_to_be_one() {
    let (server, http) = server().await;
    let mut editor = Editor::open(server.data(), &["--agent", "demo", "--place", "sandbox"]).await;
    let session = editor.session(server.scratch()).await;
    assert_eq!(get(&http, &session.to_string()).await["place"], "sandbox");
    editor.prompt(&session, "cwd").await.unwrap();
    let words = agent_text(&editor.updates());
    assert!(words.contains("does not see") && words.ends_with("/home/user"), "{words}");
    editor.prompt(&session, "echo again").await.unwrap();
    assert_eq!(agent_text(&editor.updates()), "again", "said once");
    editor.close().await;
}

#[tokio::test]
async fn a_turn_goes_on_over_a_killed_server() {
    let (mut server, http) = server().await;
    let mut editor = Editor::open(server.data(), &["--agent", "demo"]).await;
    let session = editor.session(server.scratch()).await;
    let script: String = (0..20).map(|step| format!("echo {step}.\nsleep 100\n")).collect();
    let prompt = editor.begin(&session, &script);
    let mut seen = editor.until(|update| update["content"]["text"] == "3.").await;
    server.kill9().unwrap();
    server.restart().await.unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::EndTurn);
    seen.extend(editor.updates());
    let whole: String = (0..20).map(|step| format!("{step}.")).collect();
    assert_eq!(agent_text(&seen), whole, "not a word lost or doubled");
    // A question that is answered while no server is there reaches the next one.
    let prompt = editor.begin(&session, "permission");
    let (question, responder) = editor.question().await;
    server.kill9().unwrap();
    responder.respond(select(&question, 0)).unwrap();
    // And what is said meanwhile is not lost either.
    let waiting = editor.begin(&session, "echo later");
    server.restart().await.unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::EndTurn);
    assert_eq!(waiting.await.unwrap().unwrap(), schema::StopReason::EndTurn);
    assert!(agent_text(&editor.updates()).ends_with("later"));
    assert_eq!(of_type(&events(&http, &session.to_string()).await, "turn_ended").len(), 3);
    editor.close().await;
}

/// Created over REST, followed over JSON-RPC, prompted from an editor, shown on the command line.
#[tokio::test]
async fn one_session_through_every_door() {
    let (server, http) = server().await;
    let id = session(&http).await;
    let mut rpc =
        Socket::open(server.address().unwrap(), "/rpc", Some(&server.key().unwrap())).await.unwrap();
    rpc.call("subscribe", json!([id, 0])).await.unwrap();
    let mut editor = Editor::open(server.data(), &[]).await;
    let session = schema::SessionId::new(id.clone());
    editor.ask(schema::LoadSessionRequest::new(session.clone(), server.scratch())).await.unwrap();
    let prompt = editor.begin(&session, "permission\necho through every door");
    // Asked in the editor and on the socket; answered on the socket.
    let (_, responder) = editor.question().await;
    let mut told = vec![];
    let asked = loop {
        let event = rpc.notification().await.unwrap()["params"].clone();
        told.push(event["seq"].clone());
        if event["event"]["method"] == "session/request_permission" {
            break event["event"]["params"].clone();
        }
    };
    let answer = json!([id, asked["permissionId"], asked["options"][0]["optionId"]]);
    rpc.call("respondPermission", answer).await.unwrap();
    tokio::time::timeout(testkit::limits::CALL, responder.cancellation().cancelled()).await.unwrap();
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::EndTurn);
    assert!(agent_text(&editor.updates()).ends_with("through every door"));
    loop {
        let event = rpc.notification().await.unwrap()["params"].clone();
        told.push(event["seq"].clone());
        if event["event"]["method"] == "outlast/turn_ended" {
            break;
        }
    }
    assert!(told.iter().enumerate().all(|(at, seq)| *seq == at as u64 + 1), "{told:?}");
    let shown = server.cli(&["show", &id, "--json"]).await.unwrap().ok().unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((shown["id"].as_str(), shown["status"].as_str()), (Some(id.as_str()), Some("active")));
    let logs = server.cli(&["logs", &id]).await.unwrap().ok().unwrap();
    assert!(logs.contains("through every door"), "{logs}");
    let messages = http.get(&format!("/api/sessions/{id}/messages")).await.unwrap().expect(200).unwrap();
    assert_eq!(messages["messages"].as_array().unwrap().len(), 2, "{messages}");
    let fork = server.cli(&["fork", &id]).await.unwrap().ok().unwrap();
    assert_eq!(get(&http, fork.trim()).await["forkedFrom"]["session"], id);
    let logs = server.cli(&["logs", fork.trim()]).await.unwrap().ok().unwrap();
    assert!(logs.contains("through every door"), "{logs}");
    editor.close().await;
}

#[tokio::test]
async fn bad_lines_do_not_end_the_bridge() {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
    let (server, _http) = server().await;
    #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
    let mut child = tokio::process::Command::new(PROGRAM)
        .args(["acp", "--data"])
        .arg(server.data())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap()).lines();
    for (line, code) in [
        ("not json", json!(-32700)),
        (r#"{"jsonrpc":"2.0","id":0,"method":"session/list","params":{}}"#, json!(-32600)),
        (r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"session/fly","params":{}}"#, json!(-32601)),
        (
            r#"{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"x","prompt":[]}}"#,
            json!(-32002),
        ),
        (r#"{"jsonrpc":"2.0","id":3,"method":"session/new","params":{"cwd":7}}"#, json!(-32602)),
        (
            r#"{"jsonrpc":"2.0","id":4,"method":"session/new","params":{"cwd":"relative","mcpServers":[]}}"#,
            json!(-32602),
        ),
    ] {
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let answer =
            tokio::time::timeout(testkit::limits::CALL, lines.next_line()).await.unwrap().unwrap().unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
    }
    drop(stdin);
    assert!(child.wait().await.unwrap().success());
}

const BACKGROUND: &[(&str, &str)] = &[("OUTLAST_LISTEN", "127.0.0.1:0")];

#[tokio::test]
async fn two_bridges_at_once_start_one_server() {
    let folder = Folder::new();
    // Left by a server and a bridge that were killed: neither is in the way.
    std::fs::create_dir_all(folder.data()).unwrap();
    std::fs::write(folder.data().join("start.lock"), "").unwrap();
    let stale = json!({"url": "http://127.0.0.1:9", "pid": 1, "version": "0.0.1"});
    std::fs::write(folder.data().join("server.json"), stale.to_string()).unwrap();
    let data = folder.data();
    let (first, mut second) =
        tokio::join!(Editor::open_with(&data, &[], BACKGROUND), Editor::open_with(&data, &[], BACKGROUND));
    assert_eq!(folder.log().matches("listening").count(), 1, "{}", folder.log());
    let pid = folder.pid();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let session: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(session, pid.as_raw_nonzero().get(), "it has a session of its own");
    let cwd = std::fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).unwrap();
    assert_eq!(cwd, Path::new("/"));
    let made = first.session(&data).await;
    first.close().await;
    second.ask(schema::ResumeSessionRequest::new(made.clone(), &data)).await.unwrap();
    second.prompt(&made, "echo still here").await.unwrap();
    assert_eq!(agent_text(&second.updates()), "still here");
    second.close().await;
    assert!(alive(pid), "the server outlives its bridges");
}

#[tokio::test]
async fn a_killed_background_server_is_started_again() {
    let folder = Folder::new();
    let mut editor = Editor::open_with(&folder.data(), &[], BACKGROUND).await;
    let mode = std::fs::metadata(folder.data()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let session = editor.session(&folder.data()).await;
    let script: String = (0..20).map(|step| format!("echo {step}.\nsleep 100\n")).collect();
    let prompt = editor.begin(&session, &script);
    let mut seen = editor.until(|update| update["content"]["text"] == "3.").await;
    let before = folder.running().unwrap();
    folder.kill().await;
    assert_eq!(prompt.await.unwrap().unwrap(), schema::StopReason::EndTurn);
    seen.extend(editor.updates());
    let whole: String = (0..20).map(|step| format!("{step}.")).collect();
    assert_eq!(agent_text(&seen), whole, "not a word lost or doubled");
    let now = folder.running().unwrap();
    assert_ne!(now["pid"], before["pid"]);
    assert_ne!(now["url"], before["url"], "the bridge followed it to another port");
    let recorded = events(&folder.http(), &session.to_string()).await;
    assert_eq!(only_end(&recorded), ("done".to_owned(), "end_turn".to_owned()));
    editor.close().await;
}

#[tokio::test]
async fn an_idle_background_server_ends_by_itself() {
    let folder = Folder::new();
    let env = [
        ("OUTLAST_LISTEN", "127.0.0.1:0"),
        ("OUTLAST_BACKGROUND_IDLE_SECS", "1"),
        ("OUTLAST_IDLE_SECS", "1"),
    ];
    let editor = Editor::open_with(&folder.data(), &[], &env).await;
    let session = editor.session(&folder.data()).await;
    let pid = folder.pid();
    // An open session keeps it: its stream is open, whatever its agent does.
    until(&folder.http(), &session.to_string(), |event| {
        event["type"] == "session_status" && event["to"] == "paused"
    })
    .await;
    assert_eq!(editor.prompt(&session, "sleep 2500").await.unwrap(), schema::StopReason::EndTurn);
    assert_eq!(folder.pid(), pid);
    editor.close().await;
    tokio::time::timeout(testkit::limits::STOP, async {
        while alive(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(folder.running(), None, "{}", folder.log());
    assert!(folder.log().contains("nobody needed the server"), "{}", folder.log());
    // The next one finds everything.
    let mut editor = Editor::open_with(&folder.data(), &[], &env).await;
    editor.ask(schema::LoadSessionRequest::new(session.clone(), folder.data())).await.unwrap();
    assert_eq!(text(&editor.updates(), "user_message_chunk"), "sleep 2500");
    editor.close().await;
}

#[tokio::test]
async fn a_server_that_cannot_start_is_explained() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.data()).unwrap();
    let data = folder.data().to_string_lossy().into_owned();
    let env = [
        ("OUTLAST_LISTEN", "127.0.0.1:0"),
        ("OUTLAST_MASTER_KEY", "not a key"),
        ("OUTLAST_DATA", data.as_str()),
    ];
    let finished = run(PROGRAM, ["acp"], &env).await.unwrap();
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""));
    assert!(finished.stderr.contains("server.log") && finished.stderr.contains("key"), "{}", finished.stderr);
}
