//! `agent add`: a folder for an agent of the catalogue, or for a command, filled by npm and deployed.
//! It refuses to write into a folder that holds something already.

use super::Asking;
use crate::{
    catalogue::{self, Written},
    cli::AddAgent,
    exit::Failure,
};
use protocol::AgentName;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

/// What npm is told: nothing that asks, reports or funds.
const NPM: &[&str] =
    &["install", "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"];

impl Asking<'_> {
    pub(super) async fn add_agent(&self, asked: &AddAgent) -> Result<(), Failure> {
        let entry = catalogue::find(&asked.what);
        if let (Some(entry), false) = (&entry, asked.args.is_empty()) {
            let id = &entry.id;
            return Err(Failure::Usage(format!(
                "{id} is an agent of the catalogue and takes no arguments; give its path to add a command"
            )));
        }
        let files = match &entry {
            Some(entry) => entry.files(std::env::consts::ARCH),
            None => catalogue::custom(&asked.what, &asked.args),
        };
        let name = match (&asked.name, &entry) {
            (Some(name), _) => name.clone(),
            (None, Some(entry)) => named(&entry.id)?,
            (None, None) => named(&stem(&asked.what))?,
        };
        let dir = asked.dir.clone().unwrap_or_else(|| PathBuf::from(name.as_str()));
        write(&dir, &files)?;
        if let Some(entry) = &entry {
            let keys = entry.keys().join(", ");
            self.term.note(&format!("{} needs in its environment: {keys}", entry.name));
        }
        if asked.write_only {
            return self.term.say(&format!("{}", dir.display()));
        }
        if entry.is_some() {
            self.term.note("installing with npm; this can take minutes");
            install(&dir).await?;
        }
        self.deploy(&dir, Some(&name)).await?;
        self.term.note(&format!("see whether it works with: outlast agent test {name}"));
        Ok(())
    }
}

fn named(text: &str) -> Result<AgentName, Failure> {
    AgentName::new(text)
        .map_err(|error| Failure::Usage(format!("{text:?} is no agent name ({error}); give one with --name")))
}

/// `../bin/my-agent.sh` is called `my-agent`.
fn stem(command: &str) -> String {
    Path::new(command).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn write(dir: &Path, files: &[Written]) -> Result<(), Failure> {
    let broken = |path: &Path, error: io::Error| {
        Failure::Broken(format!("{} cannot be written: {error}", path.display()))
    };
    fs::create_dir_all(dir).map_err(|error| broken(dir, error))?;
    if fs::read_dir(dir).map_err(|error| broken(dir, error))?.next().is_some() {
        let dir = dir.display();
        return Err(Failure::Usage(format!("{dir} is not empty; remove it or give another with --dir")));
    }
    for file in files {
        let path = dir.join(file.path);
        fs::write(&path, &file.text).map_err(|error| broken(&path, error))?;
        if file.executable {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&path, mode).map_err(|error| broken(&path, error))?;
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "npm runs for the person at this terminal, and in no session")]
async fn install(dir: &Path) -> Result<(), Failure> {
    let mut npm = tokio::process::Command::new("npm");
    npm.args(NPM).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let status = npm.status().await.map_err(|error| {
        Failure::Broken(format!(
            "npm cannot be started ({error}); install Node.js, or run npm install in {} elsewhere and deploy it",
            dir.display()
        ))
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Broken(format!("npm failed ({status}); the folder {} is left as it is", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_written_once() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("claude");
        let files = catalogue::find("claude").unwrap().files("x86_64");
        write(&dir, &files).unwrap();
        let mode = fs::metadata(dir.join("run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(write(&dir, &files).unwrap_err().to_string().contains("not empty"));
        assert_eq!(stem("../bin/my-agent.sh"), "my-agent");
    }
}
