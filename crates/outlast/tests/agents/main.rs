//! Real agents from npm, driven through the built binary against the scripted model. Opt-in, because npm and
//! the network are needed: `cargo xtask test --agents`. Each agent leaves a row for the table in
//! `docs/agents.md` below `target/agents/table`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking and says why"
)]

mod drive;
mod install;
#[path = "../it/kit.rs"]
#[allow(dead_code, unused_imports, reason = "the kit serves another test program as well")]
mod kit;
mod story;

use serde_json::json;
use testkit::model::Model;

/// What an agent must be told to use the scripted model: environment, and files in its home.
struct Setup {
    env: Vec<(&'static str, String)>,
    files: Vec<(&'static str, String)>,
    /// A setting to change while it runs.
    change: (&'static str, &'static str),
}

#[tokio::test]
async fn claude() {
    story::tell("claude", |model| Setup {
        env: vec![
            ("ANTHROPIC_BASE_URL", model.url()),
            ("ANTHROPIC_API_KEY", "sk-ant-scripted".to_owned()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            // It will not skip questions as root; here it asks them all.
            ("IS_SANDBOX", "1".to_owned()),
        ],
        files: vec![],
        change: ("mode", "plan"),
    })
    .await;
}

#[tokio::test]
async fn codex() {
    story::tell("codex", |model| Setup {
        env: vec![("OPENAI_API_KEY", "sk-scripted".to_owned())],
        files: vec![(".codex/config.toml", codex_config(model))],
        // Modes are its own only where its configuration names no approval policy.
        change: ("model", "gpt-5.4"),
    })
    .await;
}

fn codex_config(model: &Model) -> String {
    format!(
        "model = \"scripted\"\nmodel_provider = \"scripted\"\napproval_policy = \"untrusted\"\nsandbox_mode = \"danger-full-access\"\n\n\
         [model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{}/v1\"\nwire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\n",
        model.url()
    )
}

#[tokio::test]
async fn opencode() {
    story::tell("opencode", |model| Setup {
        env: vec![
            ("OPENCODE_DISABLE_AUTOUPDATE", "1".to_owned()),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
            ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1".to_owned()),
            // It talks to a server of its own, which the sandbox's way out does not lead to.
            ("NO_PROXY", "127.0.0.1:4096,localhost:4096".to_owned()),
        ],
        files: vec![("opencode.json", opencode_config(model))],
        change: ("mode", "plan"),
    })
    .await;
}

fn opencode_config(model: &Model) -> String {
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": "scripted",
        "options": {"baseURL": format!("{}/v1", model.url()), "apiKey": "sk-scripted"},
        "models": {"scripted": {"name": "scripted", "tool_call": true, "limit": {"context": 100_000, "output": 10_000}}},
    });
    json!({
        "$schema": "https://opencode.ai/config.json", "model": "scripted/scripted", "small_model": "scripted/scripted",
        "autoupdate": false, "share": "disabled", "provider": {"scripted": provider}, "permission": {"bash": "ask"},
    })
    .to_string()
}

#[tokio::test]
async fn gemini() {
    story::tell("gemini", |model| Setup {
        env: vec![
            ("GOOGLE_GEMINI_BASE_URL", model.url()),
            ("GEMINI_API_KEY", "scripted-key".to_owned()),
            ("GEMINI_CLI_NO_RELAUNCH", "true".to_owned()),
        ],
        files: vec![(
            ".gemini/settings.json",
            json!({
                "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
                "general": {"disableAutoUpdate": true}, "privacy": {"usageStatisticsEnabled": false},
                "telemetry": {"enabled": false},
            })
            .to_string(),
        )],
        change: ("mode", "autoEdit"),
    })
    .await;
}

#[tokio::test]
async fn qwen() {
    story::tell("qwen", |model| Setup {
        env: vec![
            ("OPENAI_BASE_URL", format!("{}/v1", model.url())),
            ("OPENAI_API_KEY", "sk-scripted".to_owned()),
            ("OPENAI_MODEL", "scripted".to_owned()),
        ],
        files: vec![(
            ".qwen/settings.json",
            json!({
                "security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": false},
                "general": {"disableAutoUpdate": true},
            })
            .to_string(),
        )],
        change: ("mode", "plan"),
    })
    .await;
}
