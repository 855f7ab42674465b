//! `agent add|deploy|ls|show|test|rm`. A folder goes up as a tar that is made here, bounded before it is sent.

use super::Asking;
use crate::{
    cli::AgentCommand,
    config::Environment,
    exit::{Exit, Failure},
    table::{facts, table},
    term::Form,
};
use client::Archive;
use protocol::{Agent, AgentName, limits};
use std::{
    fs::{self, File},
    io::{self, Seek as _},
    path::{Path, PathBuf},
};

const MANIFEST: &str = "agent.toml";

impl Asking<'_> {
    pub(crate) async fn agent(
        &self,
        command: &AgentCommand,
        environment: &Environment,
    ) -> Result<Exit, Failure> {
        match command {
            AgentCommand::Add(asked) => self.add_agent(asked).await?,
            AgentCommand::Test(asked) => return self.try_agent(asked, environment).await,
            AgentCommand::Deploy { dir, name } => self.deploy(dir, name.as_ref()).await?,
            AgentCommand::Ls => self.list_agents(&self.client.agents().await?)?,
            AgentCommand::Show { name } => {
                let agent = self.client.agent(name).await?;
                match self.term.form {
                    Form::Json => self.term.json(&agent)?,
                    Form::Text => self.term.say(&facts(self.term.paint(), &description(&agent)))?,
                }
            }
            AgentCommand::Rm { names } => {
                for name in names {
                    let agent = self.client.remove_agent(name).await?;
                    match self.term.form {
                        Form::Json => self.term.json(&agent)?,
                        Form::Text => self.term.say(&format!("{name}  removed"))?,
                    }
                }
            }
        }
        Ok(Exit::Done)
    }

    pub(super) async fn deploy(&self, dir: &Path, name: Option<&AgentName>) -> Result<(), Failure> {
        let name = match name {
            Some(name) => name.clone(),
            None => folder_name(dir)?,
        };
        let folder = dir.to_owned();
        let archive = tokio::task::spawn_blocking(move || pack(&folder))
            .await
            .map_err(|error| Failure::Broken(format!("packing the folder broke off: {error}")))??;
        let agent = self.client.deploy_tar(&name, Archive::File(archive)).await?;
        match self.term.form {
            Form::Json => self.term.json(&agent),
            Form::Text => {
                self.term.say(&format!("{}  version {}", agent.name, agent.version))?;
                self.term.note(&format!("talk to it with: outlast run {}", agent.name));
                Ok(())
            }
        }
    }

    fn list_agents(&self, agents: &[Agent]) -> Result<(), Failure> {
        if self.term.form == Form::Json {
            return agents.iter().try_for_each(|agent| self.term.json(agent));
        }
        if agents.is_empty() {
            self.term.note("no agents; `outlast agent deploy DIR` deploys one");
            return Ok(());
        }
        let row = |agent: &Agent| {
            vec![
                agent.name.to_string(),
                agent.version.to_string(),
                command_line(agent),
                agent.manifest.description.clone().unwrap_or_default(),
            ]
        };
        let rows: Vec<_> = agents.iter().map(row).collect();
        self.term.say(&table(self.term.paint(), &["AGENT", "VERSION", "COMMAND", "DESCRIPTION"], &rows))
    }
}

fn command_line(agent: &Agent) -> String {
    let words = std::iter::once(&agent.manifest.command).chain(&agent.manifest.args);
    words.map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn description(agent: &Agent) -> Vec<(&'static str, Option<String>)> {
    let variables: Vec<_> = agent.manifest.env.keys().map(String::as_str).collect();
    vec![
        ("agent", Some(agent.name.to_string())),
        ("version", Some(agent.version.to_string())),
        ("description", agent.manifest.description.clone()),
        ("command", Some(command_line(agent))),
        ("model", agent.manifest.model.clone()),
        ("variables", (!variables.is_empty()).then(|| variables.join(", "))),
        ("turn limit", agent.manifest.policy.turn_secs.map(|secs| format!("{secs} s"))),
        ("files", Some(agent.path.clone())),
        ("created", Some(agent.created_at.to_string())),
        ("updated", Some(agent.updated_at.to_string())),
    ]
}

fn folder_name(dir: &Path) -> Result<AgentName, Failure> {
    let whole = dir
        .canonicalize()
        .map_err(|error| Failure::Usage(format!("{} cannot be read: {error}", dir.display())))?;
    let name = whole.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    AgentName::new(name)
        .map_err(|error| Failure::Usage(format!("{name:?} is no agent name ({error}); give one with --name")))
}

/// The folder as a tar in an unnamed temporary file, wound back to its beginning.
fn pack(dir: &Path) -> Result<File, Failure> {
    if !dir.join(MANIFEST).is_file() {
        return Err(Failure::Usage(format!(
            "{} holds no {MANIFEST}; it says how the agent runs, for example: command = \"my-agent\"",
            dir.display()
        )));
    }
    let broken = |error: io::Error| Failure::Broken(format!("the archive cannot be written: {error}"));
    let mut builder = tar::Builder::new(tempfile::tempfile().map_err(broken)?);
    builder.follow_symlinks(false);
    for path in files(dir)? {
        let name = path.strip_prefix(dir).unwrap_or(&path);
        builder
            .append_path_with_name(&path, name)
            .map_err(|error| Failure::Broken(format!("{} cannot be packed: {error}", path.display())))?;
        let size = builder.get_mut().stream_position().map_err(broken)?;
        if size > limits::AGENT_ARCHIVE_BYTES as u64 {
            return Err(Failure::Usage(format!(
                "{} is larger than {} bytes; leave out what the agent does not need",
                dir.display(),
                limits::AGENT_ARCHIVE_BYTES
            )));
        }
    }
    let mut file = builder.into_inner().map_err(broken)?;
    file.rewind().map_err(broken)?;
    Ok(file)
}

/// Everything below the folder, parents first, in an order that is the same every time. What is neither file,
/// folder nor link is refused: it could not be deployed as it is.
fn files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |path: &Path, error: io::Error| {
        Failure::Broken(format!("{} cannot be read: {error}", path.display()))
    };
    let mut found = vec![];
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| unreadable(&folder, error))? {
            let entry = entry.map_err(|error| unreadable(&folder, error))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| unreadable(&path, error))?;
            if kind.is_dir() {
                folders.push(path.clone());
            } else if !kind.is_file() && !kind.is_symlink() {
                return Err(Failure::Usage(format!(
                    "{} is neither a file, a folder nor a link; remove it",
                    path.display()
                )));
            }
            found.push(path);
            if found.len() > limits::AGENT_FILES {
                return Err(Failure::Usage(format!(
                    "{} holds more than {} files; leave out what the agent does not need",
                    dir.display(),
                    limits::AGENT_FILES
                )));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_folder_is_packed_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("bin/empty")).unwrap();
        fs::write(at(MANIFEST), "command = \"./bin/a\"").unwrap();
        fs::write(at("bin/a"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(at("bin/a"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(at(".hidden"), "").unwrap();
        symlink("bin/a", at("link")).unwrap();

        let mut archive = tar::Archive::new(pack(dir.path()).unwrap());
        let mut seen = vec![];
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let kind = entry.header().entry_type();
            let executable = entry.header().mode().unwrap() & 0o100 != 0;
            seen.push((path.trim_end_matches('/').to_owned(), kind, executable && kind.is_file()));
        }
        use tar::EntryType::{Directory, Regular, Symlink};
        let want = [
            (".hidden", Regular, false),
            ("agent.toml", Regular, false),
            ("bin", Directory, false),
            ("bin/a", Regular, true),
            ("bin/empty", Directory, false),
            ("link", Symlink, false),
        ];
        assert_eq!(seen, want.map(|(path, kind, executable)| (path.to_owned(), kind, executable)));
    }

    #[test]
    fn what_is_no_agent_is_not_sent() {
        let dir = tempfile::tempdir().unwrap();
        assert!(pack(dir.path()).unwrap_err().to_string().contains("holds no agent.toml"));
        fs::write(dir.path().join(MANIFEST), "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        assert!(pack(dir.path()).unwrap_err().to_string().contains("neither a file"));
        assert!(folder_name(Path::new("/")).is_err());
    }
}
