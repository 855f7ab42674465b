//! The folder that a shell in a project works in: which one is meant, and whether it may be.

use super::memo::ShellSpec;
use crate::{Shared, spec::internal};
use place::{Naming, Project, ProjectError, ProjectRules};
use protocol::{Code, Fault};
use std::path::PathBuf;

/// Writes down, once and for all, which folder a new shell's project is.
pub(super) async fn settle(shared: &Shared, spec: &mut ShellSpec) -> Result<(), Fault> {
    let found = find(shared, spec).await?;
    let real = spec.cwd.as_ref().and_then(|cwd| std::fs::canonicalize(cwd).ok());
    if let Some(real) = real.and_then(|real| real.into_os_string().into_string().ok()) {
        spec.cwd = Some(real);
    }
    let Ok(folder) = found.folder().to_path_buf().into_os_string().into_string() else {
        return Err(Fault::invalid("the project's folder has a name that is not UTF-8"));
    };
    spec.project = Some(folder);
    Ok(())
}

/// Looks at the folder again: it may be gone, or somebody else's.
pub(super) async fn find(shared: &Shared, spec: &ShellSpec) -> Result<Project, Fault> {
    let Some(folder) = spec.project.as_ref().or(spec.workspace.as_ref()).or(spec.cwd.as_ref()) else {
        return Err(Fault::invalid(
            "A shell in a project needs its folder: name it with workspace, or open the shell in it with cwd",
        ));
    };
    let naming = if spec.workspace.is_some() { Naming::Named } else { Naming::Found };
    let (folder, options) = (PathBuf::from(folder), &shared.options);
    let projects = &options.sandboxing.projects;
    let rules = ProjectRules {
        within: projects.within.clone(),
        readable: projects.readable.clone(),
        hidden: vec![options.shells.engine.clone()],
        data: options.data.clone(),
    };
    let found = tokio::task::spawn_blocking(move || Project::find(&folder, naming, &rules));
    found.await.map_err(internal)?.map_err(|error| {
        let code = match error {
            ProjectError::NotThere { .. } | ProjectError::NotFolder(_) => Code::BadPath,
            ProjectError::Home(_) => Code::InvalidRequest,
            ProjectError::System(_) | ProjectError::Ours(_) | ProjectError::Outside(_) => Code::Forbidden,
        };
        Fault::new(code, format!("The shell cannot have its project: {error}"))
    })
}
