//! An agent's folder as `outlast agent add` writes it, filled by npm once and kept below `target`.

use crate::kit::*;
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folder with everything in it but the model's address.
pub(crate) async fn folder(server: &Server, name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("agents").join(name);
    let fresh = server.scratch().join(name);
    let fresh_text = fresh.to_str().unwrap();
    server.cli(&["agent", "add", name, "--dir", fresh_text, "--write-only"]).await.unwrap().ok().unwrap();
    let package = fs::read(fresh.join("package.json")).unwrap();
    let same = fs::read(kept.join("package.json")).is_ok_and(|old| old == package);
    if !same || !kept.join("installed").exists() {
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir_all(&kept).unwrap();
        fs::write(kept.join("package.json"), package).unwrap();
        let args = ["install", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"];
        run_in(&kept, "npm", args, &[]).await.unwrap().ok().unwrap();
        fs::write(kept.join("installed"), "").unwrap();
    }
    for file in ["agent.toml", "run.sh"] {
        fs::copy(fresh.join(file), kept.join(file)).unwrap();
    }
    kept
}

/// Deploys it with what leads it to the scripted model. The folder is large, so the server reads it itself.
pub(crate) async fn deploy(http: &Http, folder: &Path, name: &str, setup: &crate::Setup, port: u16) {
    let manifest = folder.join("agent.toml");
    let mut toml: toml::Table = fs::read_to_string(&manifest).unwrap().parse().unwrap();
    let env = toml.entry("env").or_insert_with(|| toml::Value::Table(toml::Table::new()));
    for (name, value) in &setup.env {
        env.as_table_mut().unwrap().insert((*name).to_owned(), toml::Value::String(value.clone()));
    }
    let policy = toml.entry("policy").or_insert_with(|| toml::Value::Table(toml::Table::new()));
    let model = toml::Value::String(format!("127.0.0.1:{port}"));
    policy.as_table_mut().unwrap().insert("network".to_owned(), toml::Value::Array(vec![model]));
    fs::write(&manifest, toml::to_string(&toml).unwrap()).unwrap();
    for (path, text) in &setup.files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let request = json!({"name": name, "path": folder.to_str().unwrap()});
    http.post("/api/agents", &request).await.unwrap().expect(201).unwrap();
}
