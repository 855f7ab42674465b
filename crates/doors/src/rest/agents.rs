//! Agents: deploy as JSON or as a tar, list, get, delete.

use super::Shared;
use crate::{
    answer::{self, Outcome},
    fault::Refusal,
    gate::Who,
    intake::{self, Json, Named, NoBody},
    reply::{AgentRemovedReply, AgentReply, AgentsReply},
    upload::Upload,
};
use axum::{
    body::Body,
    extract::{Request, State},
};
use protocol::{AgentName, Code, DeployAgent, Fault, Scope, Tenant};
use session::Caller;
use std::sync::Arc;

/// A tar under its own name, or as bytes that a client has no name for.
pub(crate) const TAR: &[&str] = &["application/x-tar", "application/octet-stream"];

pub(crate) async fn deploy(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Json(request): Json<DeployAgent>,
) -> Outcome {
    if request.path.is_some() {
        expect_operator(&caller)?;
    }
    let agent = door.sessions.deploy(&caller, request).await?;
    answer::created(&AgentReply { agent })
}

/// A path names a folder of the server's machine, so it is for those who run the server.
fn expect_operator(caller: &Caller) -> Result<(), Refusal> {
    if caller.scope == Scope::Admin && caller.tenant == Tenant::default_tenant() {
        return Ok(());
    }
    Err(Refusal(Fault::new(
        Code::Forbidden,
        "`path` is for admins of the tenant default; send the agent's `files`, or a tar to PUT /api/agents/NAME",
    )))
}

pub(crate) async fn deploy_tar(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Named(name): Named<AgentName>,
    request: Request<Body>,
) -> Outcome {
    let (parts, body) = request.into_parts();
    intake::expect_type(&parts.headers, TAR)?;
    let limit = door.limits.archive_bytes;
    if intake::announced(&parts.headers).is_some_and(|bytes| bytes > limit) {
        return Err(intake::too_large(usize::try_from(limit).unwrap_or(usize::MAX)));
    }
    let Ok(_place) = door.archives.try_acquire() else {
        return Err(Refusal(Fault::new(
            Code::CapacityReached,
            "other archives are being received; try again in a moment",
        )));
    };
    let upload = Upload::receive(&door.uploads, body, limit, || door.sessions.admit_bytes()).await?;
    let agent = door.sessions.deploy_tar(&caller, name, upload.path()).await?;
    answer::ok(&AgentReply { agent })
}

pub(crate) async fn list(State(door): State<Arc<Shared>>, Who(caller): Who) -> Outcome {
    answer::ok(&AgentsReply { agents: door.sessions.agents(&caller).await? })
}

pub(crate) async fn get(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Named(name): Named<AgentName>,
) -> Outcome {
    answer::ok(&AgentReply { agent: door.sessions.agent(&caller, &name).await? })
}

pub(crate) async fn remove(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Named(name): Named<AgentName>,
    _: NoBody,
) -> Outcome {
    let agent = door.sessions.remove_agent(&caller, &name).await?;
    answer::ok(&AgentRemovedReply { ok: true, agent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::KeyId;

    #[test]
    fn a_path_is_for_operators() {
        let caller =
            |tenant: &str, scope| Caller { tenant: Tenant::new(tenant).unwrap(), key: KeyId::new(), scope };
        assert!(expect_operator(&caller("default", Scope::Admin)).is_ok());
        assert!(expect_operator(&caller("default", Scope::Write)).is_err());
        assert!(expect_operator(&caller("other", Scope::Admin)).is_err());
    }
}
