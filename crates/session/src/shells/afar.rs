//! Checkpoints on another machine or in a container: a text of plain shell that is run there in a session of its own,
//! beside the shell's keeper, with git as the store of contents.

use super::{memo::ShellSpec, seat};
use crate::{Shared, faults, spec::internal};
use journal::NewSession;
use occupant::shell::checkpoint::{self, Checkpoints, Failed, Reach};
use protocol::{Code, Fault};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How long a checkpoint may take there.
const PATIENCE: Duration = Duration::from_secs(600);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) struct Afar {
    shared: Arc<Shared>,
    spec: ShellSpec,
    texts: Checkpoints,
    env: BTreeMap<String, String>,
}

impl Afar {
    pub(super) fn new(
        shared: &Arc<Shared>,
        fixed: &NewSession,
        spec: &ShellSpec,
        cwd: Option<&str>,
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
        Ok(Self { shared: Arc::clone(shared), spec: spec.clone(), texts, env })
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
        let target = seat::far_target(&self.shared, &self.spec);
        let (target, password) = target.ok_or_else(|| internal("a checkpoint without a machine"))?;
        let reached = self.shared.remotes.connect(&target, password.as_ref()).await;
        let reached = reached.map_err(|error| faults::remote(&error))?;
        let said = reached.script(&self.env, &text, PATIENCE).await;
        said.map_err(|error| faults::remote(&error))
    }
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
