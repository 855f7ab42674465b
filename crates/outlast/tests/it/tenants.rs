//! Tenants do not see each other, and keys do what their scope says.

use crate::kit::*;
use serde_json::json;

async fn key(http: &Http, scope: &str, tenant: Option<&str>) -> (String, String) {
    let mut request = json!({"scope": scope, "label": "a test's"});
    if let Some(tenant) = tenant {
        request["tenant"] = json!(tenant);
    }
    let made = http.post("/api/api-keys", &request).await.unwrap().expect(201).unwrap();
    (made["key"].as_str().unwrap().to_owned(), made["apiKey"]["id"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn another_tenants_session_does_not_exist() {
    let (server, http) = server().await;
    let id = session(&http).await;
    let (other, _) = key(&http, "admin", Some("other")).await;
    let other = http.with_key(Some(&other));
    let path = format!("/api/sessions/{id}");
    for (method, suffix, body) in [
        ("GET", "", None),
        ("DELETE", "", None),
        ("DELETE", "?purge=true", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/stop", None),
        ("POST", "/cancel", None),
        ("GET", "/events", None),
        ("GET", "/messages", None),
        ("GET", "/logs", None),
        ("POST", "/messages", Some(json!({"content": "echo x"}))),
        ("PATCH", "/config", Some(json!({"name": "mine"}))),
        ("POST", "/permissions/1", Some(json!({"optionId": null}))),
    ] {
        let reply = other.call(method, &format!("{path}{suffix}"), body.as_ref()).await.unwrap();
        refusal(&reply, 404, "session_not_found");
    }
    let stream = [("accept", "text/event-stream")];
    let followed = other.stream("GET", &format!("{path}/events"), &stream, b"").await.unwrap();
    refusal(&followed.refused().unwrap(), 404, "session_not_found");
    let list = other.get("/api/sessions?kind=all").await.unwrap().expect(200).unwrap();
    assert_eq!(list["sessions"], json!([]));

    // Agents and credentials are each tenant's own, too.
    let files =
        json!({"name": "private", "files": [{"path": "agent.toml", "content": "command = \"true\"\n"}]});
    http.post("/api/agents", &files).await.unwrap().expect(201).unwrap();
    refusal(&other.get("/api/agents/private").await.unwrap(), 404, "agent_not_found");
    refusal(
        &other.post("/api/sessions", &json!({"agent": "private"})).await.unwrap(),
        404,
        "agent_not_found",
    );
    let credential = json!({"type": "custom", "env": {"A_TOKEN": "a-secret-value"}});
    let made = http.post("/api/credentials", &credential).await.unwrap().expect(201).unwrap();
    let credential = made["credential"]["id"].as_str().unwrap();
    let path = format!("/api/credentials/{credential}");
    refusal(&other.delete(&path).await.unwrap(), 404, "credential_not_found");
    let from_path = json!({"name": "stolen", "path": server.data().to_str().unwrap()});
    refusal(&other.post("/api/agents", &from_path).await.unwrap(), 403, "forbidden");
    assert_eq!(get(&http, &id).await["status"], "active", "nothing of this touched it");
}

#[tokio::test]
async fn a_scope_allows_what_it_says() {
    let (_server, http) = server().await;
    let id = session(&http).await;
    let (read, read_id) = key(&http, "read", None).await;
    let (write, _) = key(&http, "write", None).await;
    let (read, write) = (http.with_key(Some(&read)), http.with_key(Some(&write)));

    read.get(&format!("/api/sessions/{id}")).await.unwrap().expect(200).unwrap();
    read.get(&format!("/api/sessions/{id}/events")).await.unwrap().expect(200).unwrap();
    for path in ["/api/sessions", "/api/agents", "/api/api-keys", "/api/credentials"] {
        let body = json!({"agent": "demo"});
        refusal(&read.post(path, &body).await.unwrap(), 403, "forbidden");
    }
    refusal(&act(&read, &id, "pause").await, 403, "forbidden");
    refusal(&read.delete(&format!("/api/sessions/{id}")).await.unwrap(), 403, "forbidden");

    assert_eq!(text_of(&say(&write, &id, "echo w").await), "w");
    refusal(&write.post("/api/api-keys", &json!({"scope": "admin"})).await.unwrap(), 403, "forbidden");

    let keys = http.get("/api/api-keys").await.unwrap();
    assert!(!keys.text().contains("\"key\""), "a key is shown once: {}", keys.text());
    http.delete(&format!("/api/api-keys/{read_id}")).await.unwrap().expect(200).unwrap();
    refusal(&read.get("/api/sessions").await.unwrap(), 401, "unauthorized");
}

#[tokio::test]
async fn a_tenants_admin_makes_keys_for_itself_only() {
    let (mut server, http) = server().await;
    let (other, _) = key(&http, "admin", Some("other")).await;
    let other = http.with_key(Some(&other));
    refusal(
        &other.post("/api/api-keys", &json!({"scope": "read", "tenant": "default"})).await.unwrap(),
        403,
        "forbidden",
    );
    let (second, _) = key(&other, "read", None).await;
    server.kill9().unwrap();
    server.restart().await.unwrap();
    let list = http.with_key(Some(&second)).get("/api/sessions").await.unwrap().expect(200).unwrap();
    assert_eq!(list["sessions"], json!([]), "keys outlive the server");
}

#[cfg(unix)]
#[tokio::test]
async fn the_first_key_is_private_and_stored_only_as_a_hash() {
    use std::os::unix::fs::PermissionsExt as _;
    let (server, http) = server().await;
    let key = server.key().unwrap();
    let path = server.data().join("api-key");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    session(&http).await;
    let places = files_with(server.data(), key.as_bytes());
    assert_eq!(places, [path.display().to_string()]);
    assert!(files_with(server.scratch(), key.as_bytes()).iter().all(|each| each.ends_with("api-key")));
}
