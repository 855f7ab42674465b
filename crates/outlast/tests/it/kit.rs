//! What the modules share: a server on a new folder, a session with the demo agent, and the words for them.

use serde_json::{Value, json};
use std::{fs, path::Path};
pub(crate) use testkit::{Frame, Http, Reply, Server, Setup, Socket, Sse, run, run_in};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_outlast");

pub(crate) async fn server() -> (Server, Http) {
    let server = Server::start(PROGRAM).await.unwrap();
    let http = server.http().unwrap();
    (server, http)
}

/// A new session with the demo agent; its id.
pub(crate) async fn session(http: &Http) -> String {
    session_of(http, &json!({"agent": "demo"})).await
}

pub(crate) async fn session_of(http: &Http, request: &Value) -> String {
    let made = http.post("/api/sessions", request).await.unwrap().expect(201).unwrap();
    assert_eq!(made["session"]["status"], "active", "{made}");
    made["session"]["id"].as_str().unwrap().to_owned()
}

/// One call on a session: `POST /api/sessions/ID/WHAT`.
pub(crate) async fn act(http: &Http, session: &str, what: &str) -> Reply {
    http.call("POST", &format!("/api/sessions/{session}/{what}"), None).await.unwrap()
}

pub(crate) async fn get(http: &Http, session: &str) -> Value {
    http.get(&format!("/api/sessions/{session}")).await.unwrap().expect(200).unwrap()["session"].clone()
}

/// Sends a prompt; the stream begins once it is acknowledged.
pub(crate) async fn send(http: &Http, session: &str, body: &Value) -> Sse {
    http.message(session, body).await.unwrap().ok().unwrap()
}

/// Says something and returns the whole turn.
pub(crate) async fn say(http: &Http, session: &str, text: &str) -> Vec<Frame> {
    let frames = send(http, session, &json!({"content": text})).await.collect().await.unwrap();
    assert!(frames.first().is_some_and(|frame| frame.named("session_start")), "{frames:?}");
    assert!(frames.last().is_some_and(|frame| frame.named("done")), "{frames:?}");
    frames
}

/// All text of a turn.
pub(crate) fn text_of(frames: &[Frame]) -> String {
    let deltas = frames.iter().filter(|frame| frame.named("text_delta"));
    deltas.map(|frame| frame.json().unwrap()["delta"].as_str().unwrap().to_owned()).collect()
}

/// The names of a turn's frames, in order.
pub(crate) fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_deref().unwrap_or_default()).collect()
}

/// The one frame of this name.
pub(crate) fn frame(frames: &[Frame], name: &str) -> Value {
    let mut found = frames.iter().filter(|frame| frame.named(name));
    let only = found.next().unwrap_or_else(|| panic!("no {name} in {:?}", names(frames)));
    assert!(found.next().is_none(), "several {name} in {:?}", names(frames));
    only.json().unwrap()
}

/// Everything recorded so far.
pub(crate) async fn events(http: &Http, session: &str) -> Vec<Value> {
    let mut all = vec![];
    loop {
        let path = format!("/api/sessions/{session}/events?after={}&limit=1000", all.len());
        let page = http.get(&path).await.unwrap().expect(200).unwrap();
        let page = page["events"].as_array().unwrap().clone();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

/// Follows from the beginning until an event fits, and returns everything up to it.
pub(crate) async fn until(http: &Http, session: &str, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut stream = http.follow(session, 0).await.unwrap();
    let mut seen = vec![];
    loop {
        let frame = stream.next().await.unwrap().expect("the stream ended");
        let Some(id) = &frame.id else { continue };
        let event = frame.json().unwrap();
        assert_eq!(event["seq"].to_string(), *id);
        assert_eq!(event["seq"], seen.len() + 1, "in order, once, without a gap");
        seen.push(event);
        if fits(&seen[seen.len() - 1]) {
            return seen;
        }
    }
}

/// Follows until so many events of a type have come.
pub(crate) async fn until_count(http: &Http, session: &str, kind: &str, count: usize) -> Vec<Value> {
    let seen = std::cell::Cell::new(0);
    until(http, session, |event| {
        seen.set(seen.get() + usize::from(event["type"] == kind));
        seen.get() >= count
    })
    .await
}

pub(crate) fn is(kind: &str) -> impl Fn(&Value) -> bool + '_ {
    move |event| event["type"] == kind
}

pub(crate) fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

pub(crate) fn only_end(events: &[Value]) -> (String, String) {
    let ended = of_type(events, "turn_ended");
    assert_eq!(ended.len(), 1, "exactly one outcome: {ended:?}");
    (ended[0]["outcome"].as_str().unwrap().to_owned(), ended[0]["reason"].as_str().unwrap().to_owned())
}

/// Deploys an agent made of one `agent.toml`.
pub(crate) async fn deploy(http: &Http, name: &str, manifest: &str) {
    let files = json!({"name": name, "files": [{"path": "agent.toml", "content": manifest}]});
    http.post("/api/agents", &files).await.unwrap().expect(201).unwrap();
}

/// An agent that is a shell script.
pub(crate) async fn deploy_script(http: &Http, name: &str, script: &str) {
    let script = Value::String(script.to_owned());
    deploy(http, name, &format!("command = \"sh\"\nargs = [\"-c\", {script}]\n")).await;
}

/// Checks an error's status, code and shape; returns its sentence.
pub(crate) fn refusal(reply: &Reply, status: u16, code: &str) -> String {
    let body = reply.json().unwrap_or_else(|error| panic!("{} without JSON: {error:#}", reply.status));
    assert_eq!((reply.status, body["code"].as_str()), (status, Some(code)), "{body}");
    assert_eq!(body["statusCode"], status, "{body}");
    let id = body["requestId"].as_str().expect("a request id");
    assert_eq!(reply.header("x-request-id"), Some(id));
    let sentence = body["error"].as_str().expect("a sentence");
    assert!(!sentence.is_empty());
    sentence.to_owned()
}

/// Every file below a folder that holds these bytes.
pub(crate) fn files_with(folder: &Path, needle: &[u8]) -> Vec<String> {
    let mut found = vec![];
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).unwrap();
                if bytes.windows(needle.len()).any(|window| window == needle) {
                    found.push(entry.path().display().to_string());
                }
            }
        }
    }
    found
}

/// Says loudly that a test did not run, and leaves a note for the summary.
pub(crate) fn skip(test: &str, reason: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(test), reason).unwrap();
    eprintln!("SKIPPED: {test}: {reason}");
}
