//! `watch` without a terminal: lines that go on, like `tail -f`. Of one session its events; without one, a line for each
//! session that appears or changes its status.

use super::{REFRESH, list, short};
use crate::{
    commands::Asking,
    exit::{Exit, Failure},
    table::one_line,
    term::Form,
};
use protocol::{Session, SessionId, Status};
use std::collections::HashMap;

/// How many events are shown of what was before.
const BEFORE: u64 = 10;

impl Asking<'_> {
    pub(super) async fn watch_plainly(&self, named: Option<SessionId>) -> Result<Exit, Failure> {
        match named {
            Some(id) => self.watch_one(id).await,
            None => self.watch_all().await,
        }
    }

    /// As `logs -f`, from shortly before now.
    async fn watch_one(&self, id: SessionId) -> Result<Exit, Failure> {
        let session = self.client.session(id).await?;
        let after = session.last_seq.saturating_sub(BEFORE).max(session.first_seq.saturating_sub(1));
        self.follow(id, after).await
    }

    /// Until the output is closed or a signal ends it.
    async fn watch_all(&self) -> Result<Exit, Failure> {
        let mut known: HashMap<SessionId, Status> = HashMap::new();
        let mut tick = tokio::time::interval(REFRESH);
        // The first answer tells whether there is a server at all; later ones may fail and come back.
        let mut page = list(&self.client, None).await?;
        let mut lost = false;
        loop {
            let changed = |session: &&Session| known.get(&session.id) != Some(&session.status);
            for session in page.sessions.iter().filter(changed).rev() {
                self.tell_status(session)?;
            }
            // Only the page that is looked at is remembered, so that this never grows.
            known = page.sessions.iter().map(|session| (session.id, session.status)).collect();
            loop {
                tick.tick().await;
                match list(&self.client, None).await {
                    Ok(next) => {
                        page = next;
                        lost = false;
                        break;
                    }
                    Err(error) if !lost => {
                        lost = true;
                        self.term.note(&format!("connection lost ({}); connecting again", short(&error)));
                    }
                    Err(_) => {}
                }
            }
        }
    }

    fn tell_status(&self, session: &Session) -> Result<(), Failure> {
        if self.term.form == Form::Json {
            return self.term.json(session);
        }
        let what = if session.agent_name.is_empty() { session.kind.as_str() } else { &session.agent_name };
        let alias = session.alias.as_ref().map(ToString::to_string);
        let name = session.name.clone().or(alias).unwrap_or_default();
        let line = format!("{}  {:<8}  {what}  {name}", session.id, session.status.as_str());
        self.term.say(one_line(&line).trim_end())
    }
}
