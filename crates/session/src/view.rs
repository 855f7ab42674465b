//! A stored session as callers see it.

use crate::spec::Spec;
use journal::{NewSession, SessionRow, SessionState};
use protocol::{Seq, Session};

pub(crate) fn row(row: &SessionRow) -> Session {
    session(&row.fixed, &row.state, row.first_seq, row.last_seq)
}

pub(crate) fn session(fixed: &NewSession, state: &SessionState, first_seq: Seq, last_seq: Seq) -> Session {
    Session {
        id: fixed.id,
        tenant_id: fixed.tenant.clone(),
        agent_name: fixed.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
        sandbox_id: fixed.sandbox.clone(),
        status: state.status,
        model: state.model.clone(),
        runner_id: None,
        created_at: fixed.created_at,
        last_active_at: state.last_active_at,
        kind: fixed.kind,
        place: fixed.place,
        agent_version: fixed.agent_version,
        name: state.name.clone(),
        alias: fixed.alias.clone(),
        status_reason: state.status_reason.clone(),
        first_seq,
        last_seq,
        forked_from: fixed.forked_from,
        cwd: Spec::visible_cwd(&fixed.spec),
        usage: state.usage,
    }
}
