//! Deployed agents: folders with an `agent.toml`, kept by version below `agents/` in the data folder.
//!
//! A version is immutable once it has its name: it is gathered in a staging folder, checked, hashed, and
//! renamed into place before its row is written. Sessions keep the version they were made from. Deploying the
//! same content again makes no new version.

mod gather;

use crate::{Caller, faults, spec::internal};
use gather::Staging;
use journal::{AgentRow, Journal, WriteError};
use protocol::{
    Agent, AgentManifest, AgentName, Code, DeployAgent, Fault, McpServers, Scope, Tenant, Timestamp, limits,
};
use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Debug, Clone)]
pub(crate) struct Agents {
    journal: Journal,
    data: PathBuf,
    /// Versions are numbered one at a time.
    numbering: Arc<tokio::sync::Mutex<()>>,
}

/// A version that a session can be made from.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    /// Another one when the name is deployed again after a removal.
    pub(crate) id: uuid::Uuid,
    pub(crate) name: AgentName,
    pub(crate) number: u32,
    pub(crate) manifest: AgentManifest,
    pub(crate) folder: PathBuf,
}

/// Where a deployment's files come from.
enum Source {
    Request(DeployAgent),
    Tar(PathBuf),
}

impl Agents {
    pub(crate) fn new(journal: Journal, data: PathBuf) -> Self {
        Self { journal, data, numbering: Arc::default() }
    }

    pub(crate) async fn deploy(&self, caller: &Caller, request: DeployAgent) -> Result<Agent, Fault> {
        if request.path.is_some() && request.files.is_some() {
            return Err(Fault::invalid("give files or path, not both"));
        }
        if request.path.is_none() && request.files.is_none() {
            return Err(Fault::invalid("files or path is missing"));
        }
        if request.path.is_some()
            && !(caller.tenant == Tenant::default_tenant() && caller.scope == Scope::Admin)
        {
            return Err(Fault::new(
                Code::Forbidden,
                "Only the operator (an admin key of the tenant default) may deploy from a path on the server; send files or a tar",
            ));
        }
        self.deploy_from(&caller.tenant, request.name.clone(), Source::Request(request)).await
    }

    pub(crate) async fn deploy_tar(
        &self,
        caller: &Caller,
        name: AgentName,
        tar: &Path,
    ) -> Result<Agent, Fault> {
        self.deploy_from(&caller.tenant, name, Source::Tar(tar.to_owned())).await
    }

    /// The demo that is there on first start: this program's own scripted agent.
    pub(crate) async fn deploy_demo(&self) -> Result<Agent, Fault> {
        let file = |path: &str, content: &str| protocol::DeployFile {
            path: path.to_owned(),
            content: content.to_owned(),
            encoding: protocol::FileEncoding::Utf8,
            executable: false,
        };
        let request = DeployAgent {
            name: AgentName::new("demo").map_err(internal)?,
            path: None,
            files: Some(vec![
                file("agent.toml", include_str!("demo/agent.toml")),
                file("CLAUDE.md", include_str!("demo/CLAUDE.md")),
            ]),
            system_prompt: None,
        };
        self.deploy_from(&Tenant::default_tenant(), request.name.clone(), Source::Request(request)).await
    }

    pub(crate) async fn list(&self, tenant: &Tenant) -> Result<Vec<Agent>, Fault> {
        let rows = self.journal.agents(tenant).await.map_err(faults::read)?;
        Ok(rows.into_iter().map(|row| row.agent).collect())
    }

    pub(crate) async fn get(&self, tenant: &Tenant, name: &AgentName) -> Result<Agent, Fault> {
        Ok(self.row(tenant, name, None).await?.agent)
    }

    /// Sessions made from it keep their files, but cannot be resumed any more.
    pub(crate) async fn remove(&self, tenant: &Tenant, name: &AgentName) -> Result<Agent, Fault> {
        let _turn = self.numbering.lock().await;
        let row = self.row(tenant, name, None).await?;
        match self.journal.remove_agent(tenant, name).await {
            Ok(()) => {}
            Err(WriteError::NotFound) => return Err(missing(name)),
            Err(error) => return Err(faults::write(error)),
        }
        let folder = self.folder(tenant, name);
        let removal = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(&folder)).await;
        if let Ok(Err(error)) = removal {
            tracing::warn!(agent = %name, %error, "a removed agent's files could not be deleted");
        }
        Ok(row.agent)
    }

    /// The newest version, or a session's own.
    pub(crate) async fn version(
        &self,
        tenant: &Tenant,
        name: &AgentName,
        number: Option<u32>,
    ) -> Result<Version, Fault> {
        let agent = self.row(tenant, name, number).await?.agent;
        let folder = self.data.join(&agent.path);
        Ok(Version {
            id: agent.id,
            name: agent.name,
            number: agent.version,
            manifest: agent.manifest,
            folder,
        })
    }

    async fn row(&self, tenant: &Tenant, name: &AgentName, number: Option<u32>) -> Result<AgentRow, Fault> {
        self.journal.agent(tenant, name, number).await.map_err(faults::read)?.ok_or_else(|| missing(name))
    }

    fn folder(&self, tenant: &Tenant, name: &AgentName) -> PathBuf {
        self.data.join("agents").join(tenant.as_str()).join(name.as_str())
    }

    async fn deploy_from(&self, tenant: &Tenant, name: AgentName, source: Source) -> Result<Agent, Fault> {
        let root = self.data.join("agents");
        let gathered =
            tokio::task::spawn_blocking(move || gather(&root, source)).await.map_err(internal)??;
        let (staging, manifest) = gathered;

        let _turn = self.numbering.lock().await;
        let newest = self.journal.agent(tenant, &name, None).await.map_err(faults::read)?;
        if let Some(row) = &newest
            && row.digest == staging.digest
        {
            return Ok(row.agent.clone());
        }
        let now = Timestamp::now();
        let number = match &newest {
            Some(row) => row.agent.version + 1,
            None => 1,
        };
        let path = format!("agents/{tenant}/{name}/{number}");
        let agent = Agent {
            id: newest.as_ref().map_or_else(uuid::Uuid::now_v7, |row| row.agent.id),
            tenant_id: tenant.clone(),
            name,
            version: number,
            path: path.clone(),
            created_at: newest.map_or(now, |row| row.agent.created_at),
            updated_at: now,
            manifest,
        };
        let digest = staging.digest;
        let target = self.data.join(path);
        tokio::task::spawn_blocking(move || staging.settle(&target))
            .await
            .map_err(internal)?
            .map_err(internal)?;
        self.journal.put_agent(AgentRow { agent: agent.clone(), digest }).await.map_err(faults::write)?;
        Ok(agent)
    }
}

pub(crate) fn missing(name: &AgentName) -> Fault {
    Fault::new(Code::AgentNotFound, format!("Agent \"{name}\" not found"))
}

/// Collects, checks and hashes; blocking. What is half gathered is removed again when it fails.
fn gather(root: &Path, source: Source) -> Result<(Staging, AgentManifest), Fault> {
    let mut staging = Staging::new(root)?;
    match source {
        Source::Request(request) => {
            if let Some(path) = &request.path {
                staging.copy_folder(Path::new(path))?;
            }
            for file in request.files.iter().flatten() {
                staging.add_file(file)?;
            }
            if let Some(text) = &request.system_prompt {
                staging.write("CLAUDE.md", text.as_bytes(), gather::Mode::Plain)?;
            }
        }
        Source::Tar(path) => staging.unpack(&path)?,
    }
    let manifest = read_manifest(staging.folder())?;
    read_mcp_servers(staging.folder())?;
    staging.finish()?;
    Ok((staging, manifest))
}

fn read_manifest(folder: &Path) -> Result<AgentManifest, Fault> {
    let Some(text) = read_bounded(&folder.join("agent.toml"))? else {
        return Err(Fault::invalid(
            "agent.toml is missing; it says how the agent runs, for example: command = \"my-agent\"",
        ));
    };
    let manifest: AgentManifest =
        toml::from_str(&text).map_err(|error| Fault::invalid(format!("agent.toml: {}", error.message())))?;
    if manifest.command.is_empty() || manifest.command.contains('\0') {
        return Err(Fault::invalid("agent.toml: command is empty or holds a NUL byte"));
    }
    if manifest.args.iter().any(|arg| arg.contains('\0')) {
        return Err(Fault::invalid("agent.toml: an argument holds a NUL byte"));
    }
    crate::spec::check_env("agent.toml: env", &manifest.env)?;
    Ok(manifest)
}

/// The MCP servers that a version brings along.
pub(crate) fn read_mcp_servers(folder: &Path) -> Result<McpServers, Fault> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct File {
        #[serde(default)]
        mcp_servers: McpServers,
    }
    match read_bounded(&folder.join(".mcp.json"))? {
        None => Ok(McpServers::new()),
        Some(text) => serde_json::from_str::<File>(&text)
            .map(|file| file.mcp_servers)
            .map_err(|error| Fault::invalid(format!(".mcp.json: {error}"))),
    }
}

/// Copies every version below a data folder's `agents/` to another folder; blocking. For backup and restore.
pub fn copy_agents(from: &Path, to: &Path) -> std::io::Result<()> {
    let copied = walk_versions(&from.join("agents"), |version| {
        let target = to.join("agents").join(version);
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        place::copy_tree(&from.join("agents").join(version), &target).map_err(std::io::Error::other)
    });
    match copied {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(Found::Some) => std::fs::File::open(to)?.sync_all(),
        Ok(Found::None) => Ok(()),
    }
}

/// Was there a version at all?
enum Found {
    Some,
    None,
}

/// Visits `TENANT/NAME/VERSION`.
fn walk_versions(root: &Path, mut visit: impl FnMut(&Path) -> std::io::Result<()>) -> std::io::Result<Found> {
    let mut found = Found::None;
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        for entry in std::fs::read_dir(root.join(&relative))? {
            let name = entry?.file_name();
            // The staging folder is nobody's version.
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = relative.join(name);
            if path.components().count() == 3 {
                visit(&path)?;
                found = Found::Some;
            } else {
                open.push(path);
            }
        }
    }
    Ok(found)
}

fn read_bounded(path: &Path) -> Result<Option<String>, Fault> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::invalid(format!("{name} cannot be read: {error}"))),
    };
    let mut bytes = Vec::new();
    file.take(limits::MANIFEST_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(internal)?;
    if bytes.len() > limits::MANIFEST_BYTES {
        return Err(Fault::invalid(format!("{name} is over {} bytes", limits::MANIFEST_BYTES)));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| Fault::invalid(format!("{name} is not UTF-8")))
}

#[cfg(test)]
mod tests;
