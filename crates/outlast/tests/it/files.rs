//! A session's files over REST and the command line: whole, bounded, and never anything outside the workspace.

use crate::kit::*;
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::PathBuf,
};

/// Where the session's workspace is on the server's machine.
fn workspace(server: &Server, id: &str) -> PathBuf {
    server.data().join("places").join(id)
}

/// A path as a query's value.
fn quoted(path: &str) -> String {
    path.bytes()
        .map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

fn content(id: &str, path: &str) -> String {
    format!("/api/sessions/{id}/files/content?path={}", quoted(path))
}

fn folder(id: &str, path: &str) -> String {
    format!("/api/sessions/{id}/files?path={}", quoted(path))
}

async fn put(http: &Http, id: &str, path: &str, body: &[u8]) -> Reply {
    http.raw("PUT", &content(id, path), &[("content-type", "application/octet-stream")], body).await.unwrap()
}

async fn names_in(http: &Http, id: &str, path: &str) -> Vec<String> {
    let list = http.get(&folder(id, path)).await.unwrap().expect(200).unwrap();
    let files = list["files"].as_array().unwrap();
    files.iter().map(|file| file["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn files_are_written_listed_read_and_removed() {
    let (server, http) = server().await;
    let id = session(&http).await;
    let written = put(&http, &id, "deep/er/file.txt", b"0123456789").await.expect(200).unwrap();
    let file = &written["file"];
    assert_eq!((&file["name"], &file["path"]), (&json!("file.txt"), &json!("deep/er/file.txt")));
    assert_eq!((&file["size"], &file["mode"], &file["kind"]), (&json!(10), &json!("644"), &json!("file")));
    assert_eq!(fs::read(workspace(&server, &id).join("deep/er/file.txt")).unwrap(), b"0123456789");
    // The agent's side sees it, and what the agent writes is seen here.
    fs::write(workspace(&server, &id).join("deep/theirs"), "agent").unwrap();
    assert_eq!(names_in(&http, &id, "deep").await, ["er", "theirs"]);
    let whole = http.get(&content(&id, "deep/er/file.txt")).await.unwrap();
    assert_eq!((whole.status, whole.body.as_slice()), (200, &b"0123456789"[..]));
    assert_eq!(whole.header("content-length"), Some("10"));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    assert_eq!(whole.header("content-type"), Some("application/octet-stream"));
    assert_eq!(whole.header("x-outlast-source"), Some("sandbox"));
    let disposition = whole.header("content-disposition").unwrap();
    assert!(disposition.starts_with("attachment; filename=\"file.txt\""), "{disposition}");

    let again =
        http.raw("PUT", &format!("{}&mode=750", content(&id, "deep/er/file.txt")), &[], b"x").await.unwrap();
    assert_eq!(again.expect(200).unwrap()["file"]["mode"], "750");
    put(&http, &id, "deep/er/file.txt", b"").await.expect(200).unwrap();
    let empty = http.get(&content(&id, "deep/er/file.txt")).await.unwrap();
    assert_eq!((empty.status, empty.header("content-length")), (200, Some("0")));
    let mode = fs::metadata(workspace(&server, &id).join("deep/er/file.txt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750, "a file that is replaced keeps its mode");

    refusal(&http.delete(&folder(&id, "deep")).await.unwrap(), 409, "conflict");
    http.delete(&folder(&id, "deep/theirs")).await.unwrap().expect(200).unwrap();
    let gone = http.delete(&format!("{}&recursive=true", folder(&id, "deep"))).await.unwrap();
    assert_eq!(gone.expect(200).unwrap(), json!({"ok": true, "path": "deep"}));
    refusal(&http.get(&folder(&id, "deep")).await.unwrap(), 404, "file_not_found");
    refusal(&http.get(&content(&id, "deep/er/file.txt")).await.unwrap(), 404, "file_not_found");
    refusal(&http.delete(&folder(&id, "deep")).await.unwrap(), 404, "file_not_found");
    assert_eq!(fs::read_dir(server.data().join("uploads")).unwrap().count(), 0, "nothing is left on the way");
}

#[tokio::test]
async fn parts_of_a_file_are_read_by_range() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    put(&http, &id, "f", b"0123456789").await.expect(200).unwrap();
    let part = |range: &'static str| {
        let (http, path) = (http.clone(), content(&id, "f"));
        async move { http.raw("GET", &path, &[("range", range)], b"").await.unwrap() }
    };
    for (range, want, says) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=8-", "89", "bytes 8-9/10"),
        ("bytes=-4", "6789", "bytes 6-9/10"),
        ("bytes=5-500", "56789", "bytes 5-9/10"),
    ] {
        let reply = part(range).await;
        assert_eq!((reply.status, reply.text().as_str()), (206, want), "{range}");
        assert_eq!(reply.header("content-range"), Some(says));
        assert_eq!(reply.header("content-length"), Some(want.len().to_string().as_str()));
    }
    for whole in ["bytes=0-1,4-5", "lines=1-2", "bytes=9-1"] {
        assert_eq!(part(whole).await.status, 200, "{whole}");
    }
    let beyond = part("bytes=10-").await;
    refusal(&beyond, 416, "bad_range");
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
}

#[tokio::test]
async fn odd_names_and_long_folders_come_across() {
    let (server, http) = server().await;
    let id = session(&http).await;
    let odd = workspace(&server, &id).join(OsStr::from_bytes(b"caf\xe9 100% \n\"x"));
    fs::write(&odd, "odd").unwrap();
    let list = http.get(&folder(&id, "")).await.unwrap().expect(200).unwrap();
    let listed = list["files"].as_array().unwrap().iter().find(|file| file["size"] == 3).unwrap();
    assert_eq!(listed["name"], "caf%E9 100%25 %0A\"x");
    let path = listed["path"].as_str().unwrap();
    assert_eq!(http.get(&content(&id, path)).await.unwrap().text(), "odd");
    put(&http, &id, path, b"changed").await.expect(200).unwrap();
    assert_eq!(fs::read(&odd).unwrap(), b"changed");
    http.delete(&folder(&id, path)).await.unwrap().expect(200).unwrap();
    assert!(!odd.exists());

    let many = workspace(&server, &id).join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..2_500 {
        fs::write(many.join(format!("{number:04}")), "").unwrap();
    }
    let (mut seen, mut cursor) = (vec![], String::new());
    loop {
        let page = http.get(&format!("{}&limit=700{cursor}", folder(&id, "many"))).await.unwrap();
        let page = page.expect(200).unwrap();
        seen.extend(
            page["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap().to_owned()),
        );
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={}", quoted(next)),
            None => break,
        }
    }
    assert_eq!(seen, (0..2_500).map(|number| format!("{number:04}")).collect::<Vec<_>>());
    assert_eq!(names_in(&http, &id, "many").await.len(), 1_000, "a page is bounded");
}

#[tokio::test]
async fn no_path_and_no_link_leads_out_of_the_workspace() {
    let (server, http) = server().await;
    let (id, other) = (session(&http).await, session(&http).await);
    put(&http, &other, "secret", b"SECRET").await.expect(200).unwrap();
    let (mine, theirs) = (workspace(&server, &id), workspace(&server, &other));
    symlink(theirs.join("secret"), mine.join("absolute")).unwrap();
    symlink(format!("../{other}/secret"), mine.join("relative")).unwrap();
    symlink(&theirs, mine.join("folder")).unwrap();
    symlink("/proc/self/exe", mine.join("magic")).unwrap();
    symlink("inside", mine.join("fine")).unwrap();
    fs::write(mine.join("inside"), "inside").unwrap();

    let up = format!("../{other}/secret");
    for path in [
        "absolute",
        "relative",
        "folder/secret",
        "magic",
        &up,
        "/etc/passwd",
        "..",
        "%2E%2E/x",
        "%zz",
        "a%00b",
        "/",
    ] {
        let read = http.get(&content(&id, path)).await.unwrap();
        refusal(&read, 400, "bad_path");
        let tar = http.get(&format!("/api/sessions/{id}/files/archive?path={}", quoted(path))).await.unwrap();
        assert!(!tar.text().contains("SECRET"), "{path}");
    }
    for path in ["folder", "folder/x", &up, ".."] {
        let list = http.get(&folder(&id, path)).await.unwrap();
        refusal(&list, 400, "bad_path");
    }
    // A link in the file's own place is replaced, and one on the way is refused.
    put(&http, &id, "relative", b"mine").await.expect(200).unwrap();
    refusal(&put(&http, &id, "folder/secret", b"x").await, 400, "bad_path");
    refusal(&put(&http, &id, &up, b"x").await, 400, "bad_path");
    refusal(&put(&http, &id, "", b"x").await, 400, "bad_path");
    refusal(
        &http.delete(&format!("{}&recursive=true", folder(&id, "folder/secret"))).await.unwrap(),
        400,
        "bad_path",
    );
    refusal(&http.delete(&format!("{}&recursive=true", folder(&id, ""))).await.unwrap(), 400, "bad_path");
    http.delete(&format!("{}&recursive=true", folder(&id, "folder"))).await.unwrap().expect(200).unwrap();
    assert_eq!(fs::read(theirs.join("secret")).unwrap(), b"SECRET", "nothing of this reached it");
    assert_eq!(http.get(&content(&id, "fine")).await.unwrap().text(), "inside");
    let list = http.get(&folder(&id, "")).await.unwrap().expect(200).unwrap();
    let link = list["files"].as_array().unwrap().iter().find(|file| file["name"] == "absolute").unwrap();
    assert_eq!(link["kind"], "link");
}

#[tokio::test]
async fn tenants_scopes_and_ended_sessions_hold_for_files() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    put(&http, &id, "f", b"x").await.expect(200).unwrap();
    let key = |scope: &'static str, tenant: &'static str| {
        let http = http.clone();
        async move {
            let request = json!({"scope": scope, "tenant": tenant});
            let made = http.post("/api/api-keys", &request).await.unwrap().expect(201).unwrap();
            http.with_key(made["key"].as_str())
        }
    };
    let archive = format!("/api/sessions/{id}/files/archive");
    let stranger = key("admin", "other").await;
    for reply in [
        stranger.get(&folder(&id, "")).await.unwrap(),
        stranger.get(&content(&id, "f")).await.unwrap(),
        stranger.get(&archive).await.unwrap(),
        stranger.delete(&folder(&id, "f")).await.unwrap(),
        put(&stranger, &id, "f", b"y").await,
    ] {
        refusal(&reply, 404, "session_not_found");
    }
    let reader = key("read", "default").await;
    assert_eq!(reader.get(&content(&id, "f")).await.unwrap().text(), "x");
    assert_eq!(reader.get(&archive).await.unwrap().status, 200);
    refusal(&put(&reader, &id, "f", b"y").await, 403, "forbidden");
    refusal(&reader.delete(&folder(&id, "f")).await.unwrap(), 403, "forbidden");
    refusal(&http.with_key(None).get(&content(&id, "f")).await.unwrap(), 401, "unauthorized");

    for (path, code) in [
        (format!("/api/sessions/{id}/files?limit=0"), "invalid_request"),
        (format!("/api/sessions/{id}/files?limit=1001"), "invalid_request"),
        (format!("/api/sessions/{id}/files?colour=red"), "invalid_request"),
        (format!("/api/sessions/{id}/files/content"), "invalid_request"),
        (content(&id, ""), "bad_path"),
        (folder(&id, "f"), "bad_path"),
    ] {
        refusal(&http.get(&path).await.unwrap(), 400, code);
    }
    let bad_mode = format!("{}&mode=9999", content(&id, "f"));
    refusal(&http.raw("PUT", &bad_mode, &[], b"x").await.unwrap(), 400, "invalid_request");
    let announced = [("content-length", "99999999999999")];
    let mut connection = http.connect().await.unwrap();
    connection.send("PUT", &content(&id, "f"), &announced, b"").await.unwrap();
    refusal(&connection.reply().await.unwrap(), 413, "payload_too_large");

    http.delete(&format!("/api/sessions/{id}")).await.unwrap().expect(200).unwrap();
    refusal(&put(&http, &id, "f", b"y").await, 410, "session_ended");
    refusal(&http.delete(&folder(&id, "f")).await.unwrap(), 410, "session_ended");
}

/// The most memory that the server ever had, in KiB.
fn peak(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn large_files_pass_through_a_small_server() {
    const SIZE: u64 = 400 * 1024 * 1024;
    /// Far below one file, and above what pieces and buffers take.
    const ROOM_KIB: u64 = 48 * 1024;
    let (server, http) = server().await;
    let id: protocol::SessionId = session(&http).await.parse().unwrap();
    let client = server.client().unwrap();
    let local = server.scratch().join("large");
    // Holes cost the test's disk nothing and the server as much as any bytes.
    fs::File::create(&local).unwrap().set_len(SIZE).unwrap();
    let before = peak(&server);
    let content = client::Archive::File(fs::File::open(&local).unwrap());
    let written = client.write_file(id, "large", None, content).await.unwrap();
    assert_eq!(written.size, SIZE);
    let mut downloads = vec![client.read_file(id, "large", None).await.unwrap()];
    assert_eq!(downloads[0].length(), Some(SIZE));
    downloads.push(client.archive(id, "").await.unwrap());
    for mut download in downloads {
        let mut bytes = 0;
        while let Some(piece) = download.next().await.unwrap() {
            bytes += piece.len() as u64;
        }
        assert!(bytes >= SIZE);
    }
    let grown = peak(&server) - before;
    assert!(grown < ROOM_KIB, "the server grew by {grown} KiB");
}

#[tokio::test]
async fn an_upload_that_breaks_off_changes_nothing() {
    let (server, http) = server().await;
    let id = session(&http).await;
    put(&http, &id, "f", b"before").await.expect(200).unwrap();
    let mut connection = http.connect().await.unwrap();
    let announced = [("content-length", "1000")];
    connection.send("PUT", &content(&id, "f"), &announced, b"").await.unwrap();
    connection.send_bytes(b"only a part").await.unwrap();
    // Once the server has begun to receive it.
    let uploads = server.data().join("uploads");
    let arrived = async {
        while fs::read_dir(&uploads).unwrap().count() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(testkit::limits::CALL, arrived).await.unwrap();
    drop(connection);
    let cleared = async {
        while fs::read_dir(&uploads).unwrap().count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(testkit::limits::CALL, cleared).await.unwrap();
    assert_eq!(http.get(&content(&id, "f")).await.unwrap().text(), "before");
}

#[tokio::test]
async fn the_command_line_handles_files() {
    let (server, http) = server().await;
    let id = session(&http).await;
    let local = server.scratch().join("script.sh");
    fs::write(&local, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&local, fs::Permissions::from_mode(0o755)).unwrap();
    let (local, back) = (local.to_str().unwrap().to_owned(), server.scratch().join("back"));
    let back = back.to_str().unwrap().to_owned();
    let cli = |args: &[&str]| {
        let args: Vec<String> =
            std::iter::once("files").chain(args.iter().copied()).map(str::to_owned).collect();
        let server = &server;
        async move {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            server.cli(&args).await.unwrap()
        }
    };
    assert!(cli(&["put", &id, "bin/run%", &local]).await.ok().unwrap().contains("bin/run%25"));
    let listed = cli(&["ls", &id, "bin"]).await.ok().unwrap();
    assert!(listed.contains("755") && listed.contains("run%25"), "{listed}");
    let line: Value =
        serde_json::from_str(cli(&["ls", &id, "bin", "--json"]).await.ok().unwrap().trim()).unwrap();
    assert_eq!(line["path"], "bin/run%25");
    assert_eq!(cli(&["get", &id, "bin/run%"]).await.ok().unwrap(), "#!/bin/sh\n");
    cli(&["get", &id, "bin/run%", &back]).await.ok().unwrap();
    assert_eq!(fs::read(&back).unwrap(), b"#!/bin/sh\n");
    assert!(cli(&["tar", &id, "bin"]).await.ok().unwrap().contains("bin/run%"));
    let archive = format!("{back}.tar");
    cli(&["tar", &id, "-o", &archive]).await.ok().unwrap();
    assert!(fs::metadata(archive).unwrap().len() > 1024);
    let refused = cli(&["rm", &id, "bin"]).await;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("not empty"), "{}", refused.stderr);
    assert!(cli(&["rm", "-r", &id, "bin"]).await.ok().unwrap().contains("removed"));
    let missing = cli(&["get", &id, "bin/run", &back]).await;
    assert_eq!(missing.code, Some(3));
    assert_eq!(fs::read(&back).unwrap(), b"#!/bin/sh\n", "a download that fails leaves what was there");
}
