//! The whole text of what a command wrote, beyond what its budget shows.

use crate::kit::{Room, Shell, text_of};
use outlast_session::Options;
use protocol::{Budget, Code, ExecCommand, OutputStream, PlaceKind, SessionRef, Tenant};

/// Reads all of it, a piece at a time.
async fn whole(room: &Room, session: &SessionRef, command: u64, stream: OutputStream) -> (String, bool) {
    let (mut text, mut at) = (String::new(), Some(0));
    let mut complete = true;
    while let Some(offset) = at {
        let read = room.sessions.output(&room.caller, session, command, stream, offset, Some(300_000));
        let piece = read.await.unwrap();
        assert_eq!(piece.offset, offset);
        text.push_str(&piece.text);
        (at, complete) = (piece.next_offset, piece.complete);
        assert!(at.is_some() || text.len() as u64 == piece.bytes);
    }
    (text, complete)
}

async fn refusal(room: &Room, shell: &Shell<'_>, command: u64, stream: OutputStream) -> Code {
    let read = room.sessions.output(&room.caller, &shell.session, command, stream, 0, None);
    read.await.unwrap_err().code
}

fn blobs(options: &Options) -> usize {
    let folders = std::fs::read_dir(options.data.join("blobs")).unwrap();
    folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
}

#[tokio::test]
async fn what_a_budget_leaves_out_is_read_by_range() {
    let room = Room::new().await;
    let mut request = room.request(PlaceKind::Host);
    request.env.insert("MY_TOKEN".to_owned(), "s3cret-value".to_owned());
    let shell = room.shell(room.sessions.open_shell(&room.caller, request).await.unwrap());
    let text = "printf '\\033[1mbegin\\033[0m é\\n'; echo $MY_TOKEN; seq 1 300000; echo few >&2; printf end";
    let result = shell.run(text).await;
    assert!(result.truncated && result.whole == [OutputStream::Stdout], "{:?}", result.whole);
    let numbers: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    let (read, complete) = whole(&room, &shell.session, result.command_id, OutputStream::Stdout).await;
    assert!(complete && !read.contains("s3cret"));
    let (first, rest) = read.split_once('\n').unwrap();
    assert_eq!(first, "begin é", "without the terminal's language");
    assert!(rest.contains("REDACTED"), "without secrets");
    assert!(rest.ends_with(&format!("\n{numbers}end")), "to the last byte");
    // What was shown whole is not kept a second time, and what never was is not there.
    assert_eq!(refusal(&room, &shell, result.command_id, OutputStream::Stderr).await, Code::NotFound);
    assert_eq!(refusal(&room, &shell, 99, OutputStream::Stdout).await, Code::NotFound);
    // A few lines chosen of little, on the other stream.
    let budget = Budget { max_chars: Some(3), ..Budget::default() };
    let small = ExecCommand { budget: Some(budget), ..text_of("echo out; echo error >&2") };
    let small = shell.result(small).await;
    assert_eq!(small.whole, [OutputStream::Stderr]);
    let little = whole(&room, &shell.session, small.command_id, OutputStream::Stderr).await;
    assert_eq!(little, ("error\n".to_owned(), true));
    // To its tenant only.
    let mut stranger = room.caller.clone();
    stranger.tenant = Tenant::new("acme").unwrap();
    let id = SessionRef::Id(shell.opened.session);
    let other = room.sessions.output(&stranger, &id, 1, OutputStream::Stdout, 0, None).await.unwrap_err();
    assert_eq!(other.code, Code::SessionNotFound);
    // After a restart, after the end, and not after the session is removed.
    let opened = shell.opened.clone();
    let room = room.restart().await;
    let shell = room.shell(opened);
    assert_eq!(whole(&room, &shell.session, result.command_id, OutputStream::Stdout).await.0, read);
    shell.close().await;
    assert_eq!(whole(&room, &shell.session, result.command_id, OutputStream::Stdout).await.0, read);
    assert!(blobs(&room.options) >= 2);
    room.sessions.remove(&room.caller, &shell.session).await.unwrap();
    assert_eq!(refusal(&room, &shell, result.command_id, OutputStream::Stdout).await, Code::SessionNotFound);
    assert_eq!(blobs(&room.options), 0, "the text goes with its session");
    room.end().await;
}

#[tokio::test]
async fn a_command_that_outlives_the_server_is_kept_whole() {
    let room = Room::new().await;
    let shell = room.open(PlaceKind::Host).await;
    let text = "seq 1 100000; read line; seq 100001 200000";
    let told = shell.result(ExecCommand { yield_secs: Some(0), open_stdin: true, ..text_of(text) }).await;
    let (opened, command) = (shell.opened.clone(), told.command_id);
    let room = room.restart().await;
    let shell = room.shell(opened);
    let write = room.sessions.write_input(&room.caller, &shell.session, command, b"\n".to_vec(), true).await;
    assert_eq!(write, Ok(1));
    assert_eq!(shell.poll(command, 30).await.whole, [OutputStream::Stdout]);
    let numbers: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let read = whole(&room, &shell.session, command, OutputStream::Stdout).await;
    assert_eq!(read, (numbers, true));
    let drafts = std::fs::read_dir(room.options.data.join("drafts")).map_or(0, Iterator::count);
    assert_eq!(drafts, 0, "nothing half written is left");
    shell.close().await;
    room.end().await;
}

#[tokio::test]
async fn the_operator_says_how_much_is_kept() {
    let room = Room::with(|options| options.shells.output_bytes = 70_000).await;
    let shell = room.open(PlaceKind::Host).await;
    let result = shell.run("yes é | head -c 400000").await;
    let (text, complete) = whole(&room, &shell.session, result.command_id, OutputStream::Stdout).await;
    assert!(!complete);
    assert_eq!(text.len(), 69_999, "whole characters within the limit");
    let bad = room.sessions.output(&room.caller, &shell.session, 1, OutputStream::Stdout, 0, Some(0)).await;
    assert_eq!(bad.unwrap_err().code, Code::InvalidRequest);
    shell.close().await;
    room.end().await;
    let room = Room::with(|options| options.shells.output_bytes = 0).await;
    let shell = room.open(PlaceKind::Host).await;
    let result = shell.run("seq 1 100000").await;
    assert!(result.truncated && result.whole.is_empty());
    assert_eq!(refusal(&room, &shell, result.command_id, OutputStream::Stdout).await, Code::NotFound);
    shell.close().await;
    room.end().await;
}
