//! Calls: what goes out, what comes back, and what a failure is called.

use super::server::{Server, Then, broken, refusal, reply, stream};
use crate::{Archive, Error};
use bytes::Bytes;
use protocol::{
    AnswerPermission, Code, Content, CreateSession, ListSessions, OnBusy, SendMessage, SessionId,
};
use std::io::{Seek as _, Write as _};

const ID: &str = "019a8000-0000-7000-8000-0000000000aa";
const TURN: &str = "019a8000-0000-7000-8000-0000000000bb";

fn id() -> SessionId {
    ID.parse().unwrap()
}

fn session() -> String {
    format!(
        r#"{{"session":{{"id":"{ID}","tenantId":"default","agentName":"demo","sandboxId":"{ID}","status":"active","model":null,"runnerId":null,"createdAt":"2026-01-01T00:00:00.000Z","lastActiveAt":"2026-01-01T00:00:00.000Z","kind":"agent","place":"host","agentVersion":1,"name":null,"alias":null,"statusReason":null,"firstSeq":1,"lastSeq":2,"forkedFrom":null,"later":1}}}}"#
    )
}

fn message() -> SendMessage {
    SendMessage {
        content: Content::Text("hello".into()),
        id: None,
        on_busy: OnBusy::Queue,
        model: None,
        include_partial_messages: false,
        max_turns: None,
        max_budget_usd: None,
    }
}

fn accepted() -> String {
    format!("x-outlast-turn: {TURN}\r\nx-outlast-seq: 7\r\n")
}

#[tokio::test]
async fn calls_go_where_the_contract_says() {
    let one = || reply(200, "", &session());
    let mut server = Server::with((0..9).map(|_| one()).collect()).await;
    let client = server.client();
    let create = CreateSession {
        agent: "demo".parse().unwrap(),
        model: None,
        mcp_servers: None,
        system_prompt: None,
        additional_instructions: None,
        credential_id: None,
        extra_env: None,
        name: None,
        place: None,
        sandbox: None,
        cwd: None,
        policy: None,
    };
    assert_eq!(client.create(&create).await.unwrap().id, id());
    client.session(id()).await.unwrap();
    client.pause(id()).await.unwrap();
    client.resume(id()).await.unwrap();
    client.stop(id()).await.unwrap();
    client.cancel(id()).await.unwrap();
    client.end(id()).await.unwrap();
    client.purge(id()).await.unwrap();
    client.answer(id(), 9, &AnswerPermission { option_id: None }).await.unwrap();
    for line in [
        "POST /api/sessions".to_owned(),
        format!("GET /api/sessions/{ID}"),
        format!("POST /api/sessions/{ID}/pause"),
        format!("POST /api/sessions/{ID}/resume"),
        format!("POST /api/sessions/{ID}/stop"),
        format!("POST /api/sessions/{ID}/cancel"),
        format!("DELETE /api/sessions/{ID}"),
        format!("DELETE /api/sessions/{ID}?purge=true"),
        format!("POST /api/sessions/{ID}/permissions/9"),
    ] {
        assert_eq!(server.request().await.line(), format!("{line} HTTP/1.1"));
    }
}

#[tokio::test]
async fn a_list_leaves_out_what_was_not_asked() {
    let mut server = Server::with(vec![reply(200, "", r#"{"sessions":[]}"#)]).await;
    let request = ListSessions { limit: Some(5), ..ListSessions::default() };
    assert!(server.client().sessions(&request).await.unwrap().sessions.is_empty());
    assert_eq!(server.request().await.line(), "GET /api/sessions?kind=agent&limit=5 HTTP/1.1");
}

#[tokio::test]
async fn refusals_keep_status_code_and_sentence() {
    let server = Server::with(vec![reply(410, "", &refusal(410, "session_ended"))]).await;
    let error = server.client().resume(id()).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (Some(410), Some(Code::SessionEnded)));
    assert_eq!(error.to_string(), "A sentence.");
}

#[tokio::test]
async fn strangers_and_nonsense_are_told_apart() {
    let server = Server::with(vec![
        reply(404, "", "nginx"),
        reply(200, "", "[]"),
        broken(),
        reply(200, "content-length: 900\r\n", "{"),
        reply(302, "location: http://127.0.0.1:1/\r\n", ""),
    ])
    .await;
    let client = server.client();
    assert!(matches!(client.session(id()).await, Err(Error::Foreign { status: 404, .. })));
    assert!(matches!(client.session(id()).await, Err(Error::Protocol(_))));
    assert!(matches!(client.session(id()).await, Err(Error::Unreachable { .. })));
    assert!(client.session(id()).await.is_err(), "an answer cut short is no answer");
    assert!(matches!(client.session(id()).await, Err(Error::Foreign { status: 302, .. })));
}

#[tokio::test]
async fn a_prompt_is_repeated_under_one_id() {
    let mut server = Server::with(vec![
        broken(),
        reply(503, "", &refusal(503, "shutting_down")),
        reply(504, "", "gateway"),
        reply(200, &accepted(), ""),
    ])
    .await;
    let sent = server.client().send(id(), message()).await.unwrap();
    assert_eq!((sent.turn.to_string().as_str(), sent.seq), (TURN, 7));
    assert_eq!(sent.id.len(), 36);
    for _ in 0..4 {
        let request = server.request().await;
        assert_eq!(request.line(), format!("POST /api/sessions/{ID}/messages HTTP/1.1"));
        assert_eq!(request.json()["id"], sent.id.as_str());
    }
}

#[tokio::test]
async fn a_prompt_is_known_before_its_stream_says_anything() {
    let mut answer = stream(&[], Then::Hold);
    let head = String::from_utf8(answer.pieces.remove(0)).unwrap();
    answer.pieces.push(head.replace("\r\n\r\n", &format!("\r\n{}\r\n", accepted())).into_bytes());
    let mut server = Server::with(vec![answer]).await;
    let sent =
        server.client().send(id(), SendMessage { id: Some("mine".into()), ..message() }).await.unwrap();
    assert_eq!(sent.id, "mine");
    assert_eq!(server.request().await.json()["id"], "mine");
}

#[tokio::test]
async fn a_refused_prompt_is_not_repeated() {
    let answers = vec![reply(409, "", &refusal(409, "busy")), reply(200, &accepted(), "")];
    let server = Server::with(answers).await;
    assert_eq!(server.client().send(id(), message()).await.unwrap_err().code(), Some(Code::Busy));
}

#[tokio::test]
async fn a_prompt_without_the_servers_word_is_an_error() {
    let server = Server::with(vec![reply(200, "", "")]).await;
    assert!(matches!(server.client().send(id(), message()).await, Err(Error::Protocol(_))));
}

#[tokio::test]
async fn archives_go_up_from_memory_and_from_disk() {
    let not_found = || reply(404, "", &refusal(404, "not_found"));
    let mut server = Server::with(vec![not_found(), not_found()]).await;
    let client = server.client();
    let name = "qa-bot".parse().unwrap();
    let content = "tar".repeat(300_000);

    let bytes = Bytes::from(content.clone());
    assert_eq!(client.deploy_tar(&name, Archive::Bytes(bytes)).await.unwrap_err().status(), Some(404));
    let request = server.request().await;
    assert_eq!(request.line(), "PUT /api/agents/qa-bot HTTP/1.1");
    assert!(request.head.contains("application/x-tar"));
    assert_eq!(request.body.len(), content.len());

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file.rewind().unwrap();
    assert_eq!(client.deploy_tar(&name, Archive::File(file)).await.unwrap_err().status(), Some(404));
    let request = server.request().await;
    let text = String::from_utf8(request.body).unwrap();
    assert!(text.matches("tar").count() >= 299_990, "chunk lines aside, all of it arrived");
}
