//! What the demo agent knows of one session, and the files that it keeps it in: what was set and remembered is written
//! whole, prompts are added to a file of their own. An agent that replaced a file at every prompt would measure the file
//! system in each benchmark of a turn.

use serde_json::{Value, json};
use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

/// Prompts kept for a later `session/load`, and how much of each.
const KEPT_PROMPTS: usize = 50;
/// The file of prompts is written anew when it may have this many.
const LOGGED_PROMPTS: usize = 4 * KEPT_PROMPTS;
const KEPT_PROMPT_BYTES: usize = 2_000;

pub(super) const MODES: &[&str] = &["ask", "code", "plan"];
pub(super) const LEVELS: &[&str] = &["low", "medium", "high"];
pub(super) const MODELS: &[&str] = &["demo-small", "demo-large"];

#[derive(Default, Clone)]
pub(super) struct Session {
    pub(super) cwd: PathBuf,
    pub(super) servers: Vec<String>,
    pub(super) model: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) level: Option<String>,
    pub(super) memory: Vec<String>,
    pub(super) prompts: Vec<String>,
    /// Prompts in the file, at most.
    pub(super) logged: usize,
}

impl Session {
    pub(super) fn given(params: &Value) -> Self {
        let servers = params["mcpServers"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            cwd: PathBuf::from(params["cwd"].as_str().unwrap_or_default()),
            servers: servers.iter().filter_map(|server| Some(server["name"].as_str()?.to_owned())).collect(),
            ..Self::default()
        }
    }

    pub(super) fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(MODELS[0])
    }

    pub(super) fn mode(&self) -> &str {
        self.mode.as_deref().unwrap_or(MODES[0])
    }

    pub(super) fn level(&self) -> &str {
        self.level.as_deref().unwrap_or(LEVELS[1])
    }

    /// What a client may change, as ACP shows it.
    pub(super) fn settings(&self) -> Value {
        let option = |id: &str, name: &str, current: &str, known: &[&str]| {
            // A value from elsewhere is offered too, since it is the current one.
            let other = Some(current).filter(|current| !known.contains(current));
            let values: Vec<Value> = known
                .iter()
                .copied()
                .chain(other)
                .map(|value| json!({"value": value, "name": value}))
                .collect();
            json!({"id": id, "name": name, "category": id, "type": "select", "currentValue": current, "options": values})
        };
        let modes: Vec<Value> = MODES.iter().map(|mode| json!({"id": mode, "name": mode})).collect();
        json!({
            "modes": {"currentModeId": self.mode(), "availableModes": modes},
            "configOptions": [
                option("model", "Model", self.model(), MODELS),
                option("mode", "Mode", self.mode(), MODES),
                option("thought_level", "Thought level", self.level(), LEVELS),
            ],
        })
    }

    /// Keeps a prompt, on disk as well. Best effort, like everything that a demo keeps.
    pub(super) fn keep_prompt(&mut self, id: &str, text: &str) {
        let kept = &text[..text.floor_char_boundary(KEPT_PROMPT_BYTES)];
        self.prompts.push(kept.to_owned());
        if self.prompts.len() > KEPT_PROMPTS {
            self.prompts.remove(0);
        }
        if self.logged >= LOGGED_PROMPTS {
            return self.save_prompts(id);
        }
        self.logged += 1;
        let Some(path) = Self::prompts_path(id) else { return };
        if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
            let _ = file.write_all(format!("{}\n", json!(kept)).as_bytes());
        }
    }

    fn save_prompts(&mut self, id: &str) {
        let Some(path) = Self::prompts_path(id) else { return };
        let lines: String = self.prompts.iter().map(|prompt| format!("{}\n", json!(prompt))).collect();
        self.logged = self.prompts.len();
        replace(&path, &lines);
    }

    /// Best effort: a demo without a home forgets, and says so when asked.
    pub(super) fn save(&self, id: &str) {
        let Some(path) = Self::path(id) else { return };
        let state = json!({
            "model": self.model, "mode": self.mode, "thoughtLevel": self.level,
            "memory": self.memory,
        });
        replace(&path, &state.to_string());
    }

    /// All of it under another id.
    pub(super) fn save_as(&mut self, id: &str) {
        self.save(id);
        if !self.prompts.is_empty() {
            self.save_prompts(id);
        }
    }

    pub(super) fn saved(id: &str) -> Option<Self> {
        let state: Value = serde_json::from_str(&fs::read_to_string(Self::path(id)?).ok()?).ok()?;
        let log = Self::prompts_path(id).and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let logged: Vec<String> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let text = |key: &str| state[key].as_str().map(str::to_owned);
        let list = |key: &str| {
            let list = state[key].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
        };
        Some(Self {
            model: text("model"),
            mode: text("mode"),
            level: text("thoughtLevel"),
            memory: list("memory"),
            prompts: logged[logged.len().saturating_sub(KEPT_PROMPTS)..].to_vec(),
            logged: logged.len(),
            ..Self::default()
        })
    }

    pub(super) fn path(id: &str) -> Option<PathBuf> {
        let plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let home = variable("HOME").filter(|home| plain && !home.is_empty())?;
        Some(Path::new(&home).join(".demo-agent").join(format!("{id}.json")))
    }

    fn prompts_path(id: &str) -> Option<PathBuf> {
        Some(Self::path(id)?.with_extension("prompts"))
    }
}

/// Whole or not at all: the process may be killed at any moment.
fn replace(path: &Path, text: &str) {
    if let Some(folder) = path.parent() {
        let _ = fs::create_dir_all(folder);
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    if fs::write(&draft, text).is_ok() {
        let _ = fs::rename(&draft, path);
    }
}

#[expect(clippy::disallowed_methods, reason = "an agent's environment is its own, and showing it is its job")]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
