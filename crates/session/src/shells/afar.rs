//! Checkpoints on another machine or in a container: a text of plain shell that the keeper there runs beside the shell,
//! with git as the store of contents.

use super::memo::ShellSpec;
use crate::faults;
use journal::NewSession;
use occupant::shell::checkpoint::{self, Checkpoints, Failed, Reach};
use place::{Process, Spawn, keeper::Keeper};
use protocol::{Code, Fault};
use std::{collections::BTreeMap, time::Duration};

/// How long a checkpoint may take there.
const PATIENCE: Duration = Duration::from_secs(600);
/// More than the text ever says.
const ANSWER_BYTES: usize = 64 * 1024;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) struct Afar {
    keeper: Keeper,
    texts: Checkpoints,
    env: BTreeMap<String, String>,
}

impl Afar {
    pub(super) fn new(
        fixed: &NewSession,
        spec: &ShellSpec,
        cwd: Option<&str>,
        keeper: &Keeper,
    ) -> Result<Self, Fault> {
        let named = spec.workspace.as_deref();
        let Some(folder) = named.or(spec.cwd.as_deref()).or(cwd) else {
            return Err(Fault::invalid(
                "Name the folder that checkpoints are of with session_create's workspace",
            ));
        };
        let kept = checkpoint::Kept {
            folder,
            key: &fixed.id.to_string(),
            store: None,
            paths: &spec.paths,
            ignores: &spec.checkpoint_ignores,
            reach: if named.is_some() { Reach::Anywhere } else { Reach::Usual },
        };
        let texts = Checkpoints::new(&kept).map_err(|bad| Fault::invalid(bad.to_string()))?;
        let mut env = spec.env.clone();
        env.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        Ok(Self { keeper: keeper.clone(), texts, env })
    }

    /// The checkpoint's id, and how many entries it has.
    pub(super) async fn take(&self, label: Option<&str>) -> Result<(String, u64), Fault> {
        let said = self.run(self.texts.take(label)).await?;
        let taken = checkpoint::taken(&said).map_err(|error| failed(&error))?;
        Ok((taken.id, taken.entries))
    }

    /// The checkpoint taken before, and how many entries changed.
    pub(super) async fn restore(&self, id: &str) -> Result<(String, u64), Fault> {
        let text = self.texts.restore(Some(id)).map_err(|bad| Fault::invalid(bad.to_string()))?;
        let said = self.run(text).await?;
        let restored = checkpoint::restored(&said).map_err(|error| failed(&error))?;
        Ok((restored.undo, restored.changed))
    }

    async fn run(&self, text: String) -> Result<String, Fault> {
        let process = uuid::Uuid::new_v4().as_u64_pair().0;
        let spawn = Spawn {
            program: "sh".to_owned(),
            args: vec!["-c".to_owned(), text],
            env: self.env.clone(),
            cwd: None,
        };
        let started = self.keeper.spawn(process, spawn, "/").await.map_err(|error| faults::shell(&error))?;
        let said = tokio::time::timeout(PATIENCE, read(started)).await;
        if let Err(error) = self.keeper.forget(process).await {
            tracing::warn!(%error, "a checkpoint's process could not be let go");
        }
        said.map_err(|_| {
            Fault::new(Code::TimedOut, format!("The checkpoint did not end within {PATIENCE:?}"))
        })
    }
}

async fn read(mut process: Process) -> String {
    process.stdin.close();
    let mut said = Vec::new();
    while let Some(chunk) = process.stdout.next().await {
        let room = ANSWER_BYTES.saturating_sub(said.len());
        said.extend_from_slice(&chunk.bytes[..chunk.bytes.len().min(room)]);
        process.stdout.ack(chunk.offset + chunk.bytes.len() as u64);
    }
    process.handle.wait().await;
    String::from_utf8_lossy(&said).into_owned()
}

fn failed(failed: &Failed) -> Fault {
    let code = match &*failed.code {
        "no_checkpoint" => Code::NotFound,
        "no_git" => Code::Unsupported,
        "no_folder" | "too_wide" | "bad_path" => Code::BadPath,
        "busy" => Code::Busy,
        _ => Code::RemoteFailed,
    };
    Fault::new(code, format!("The other side says: {}", failed.sentence))
}
