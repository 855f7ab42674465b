//! `ls`, `show`, and the verbs that take sessions.

use super::Asking;
use crate::{
    cli::{self, Ls},
    exit::{Exit, Failure},
    reach,
    table::{facts, table},
    term::Form,
};
use protocol::{
    AnswerPermission, Configure, ListSessions, Session, SessionKindFilter, Status, UsageSums, limits,
};

/// What is done to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Pause,
    Resume,
    Stop,
    End,
    Cancel,
    Remove,
}

impl Asking<'_> {
    pub(crate) async fn ls(&self, asked: &Ls) -> Result<Exit, Failure> {
        let limit = asked.limit as usize;
        let mut request = ListSessions {
            agent: asked.agent.clone(),
            status: asked.status,
            kind: if asked.all { SessionKindFilter::All } else { SessionKindFilter::Agent },
            limit: Some(limit.min(limits::LIST_PAGE)),
            cursor: None,
        };
        let ended_too = asked.all || asked.status.is_some();
        let mut sessions = vec![];
        loop {
            let page = self.client.sessions(&request).await?;
            sessions.extend(page.sessions.into_iter().filter(|one| ended_too || one.status != Status::Ended));
            request.cursor = page.next_cursor;
            if sessions.len() >= limit || request.cursor.is_none() {
                break;
            }
        }
        let more = sessions.len() > limit || request.cursor.is_some();
        sessions.truncate(limit);
        self.list(&sessions)?;
        if more && self.term.form == Form::Text {
            self.term
                .note(&format!("there are more; --limit {} shows more of them", limit.saturating_mul(4)));
        }
        Ok(Exit::Done)
    }

    fn list(&self, sessions: &[Session]) -> Result<(), Failure> {
        if self.term.form == Form::Json {
            return sessions.iter().try_for_each(|session| self.term.json(session));
        }
        if sessions.is_empty() {
            self.term.note("no sessions; `outlast run demo` makes one, `--all` shows ended ones too");
            return Ok(());
        }
        let rows: Vec<_> = sessions.iter().map(row).collect();
        self.term.say(&table(
            self.term.paint(),
            &["SESSION", "AGENT", "STATUS", "LAST ACTIVE", "EVENTS", "NAME"],
            &rows,
        ))
    }

    pub(crate) async fn show(&self, typed: &str) -> Result<Exit, Failure> {
        let id = reach::session(&self.client, typed).await?;
        let session = self.client.session(id).await?;
        match self.term.form {
            Form::Json => self.term.json(&session)?,
            Form::Text => self.term.say(&facts(self.term.paint(), &description(&session)))?,
        }
        Ok(Exit::Done)
    }

    pub(crate) async fn usage(&self, typed: Option<&str>) -> Result<Exit, Failure> {
        let Some(typed) = typed else {
            let all = self.client.usage().await?;
            match self.term.form {
                Form::Json => self.term.json(&all)?,
                Form::Text => {
                    let stored = &all.stored;
                    let mut lines = vec![("tenant", Some(all.tenant_id.to_string()))];
                    lines.extend(used(&all.usage));
                    lines.push((
                        "stored",
                        Some(format!(
                            "{} sessions, {} events, {} bytes",
                            stored.sessions, stored.events, stored.bytes
                        )),
                    ));
                    self.term.say(&facts(self.term.paint(), &lines))?;
                }
            }
            return Ok(Exit::Done);
        };
        let id = reach::session(&self.client, typed).await?;
        let session = self.client.session(id).await?;
        match self.term.form {
            Form::Json => self.term.json(&session.usage)?,
            Form::Text => {
                let mut lines = vec![("session", Some(id.to_string()))];
                lines.extend(used(&session.usage));
                self.term.say(&facts(self.term.paint(), &lines))?;
            }
        }
        Ok(Exit::Done)
    }

    /// Does it to each; one that fails does not keep the others from it.
    pub(crate) async fn each(&self, verb: Verb, typed: &[String]) -> Result<Exit, Failure> {
        let mut exit = Exit::Done;
        for name in typed {
            match self.one(verb, name).await {
                Ok(()) => {}
                Err(Failure::Pipe) => return Err(Failure::Pipe),
                Err(failure) => {
                    if let Some(message) = failure.message() {
                        self.term.complain(&format!("{name}: {message}"));
                    }
                    if exit == Exit::Done {
                        exit = failure.exit();
                    }
                }
            }
        }
        Ok(exit)
    }

    pub(crate) async fn fork(
        &self,
        typed: &str,
        at: Option<u64>,
        name: Option<String>,
    ) -> Result<Exit, Failure> {
        let id = reach::session(&self.client, typed).await?;
        let session = self.client.fork(id, &protocol::ForkSession { at, name }).await?;
        match self.term.form {
            Form::Json => self.term.json(&session)?,
            Form::Text => self.term.say(&session.id.to_string())?,
        }
        Ok(Exit::Done)
    }

    async fn one(&self, verb: Verb, typed: &str) -> Result<(), Failure> {
        let id = reach::session(&self.client, typed).await?;
        let session = match verb {
            Verb::Pause => self.client.pause(id).await?,
            Verb::Resume => self.client.resume(id).await?,
            Verb::Stop => self.client.stop(id).await?,
            Verb::End => self.client.end(id).await?,
            Verb::Cancel => self.client.cancel(id).await?,
            Verb::Remove => self.client.purge(id).await?,
        };
        match (self.term.form, verb) {
            (Form::Json, _) => self.term.json(&session),
            (Form::Text, Verb::Remove) => self.term.say(&format!("{id}  removed")),
            (Form::Text, _) => self.term.say(&format!("{id}  {}", session.status)),
        }
    }

    pub(crate) async fn rm(&self, asked: &cli::Rm) -> Result<Exit, Failure> {
        if !asked.yes && self.term.can_ask() {
            let what = match asked.sessions.as_slice() {
                [one] => format!("session {one}"),
                several => format!("{} sessions", several.len()),
            };
            if !self
                .term
                .confirm(&format!("Remove {what}, with history and files? This cannot be undone."))?
            {
                self.term.note("nothing was removed");
                return Ok(Exit::Broken);
            }
        }
        self.each(Verb::Remove, &asked.sessions).await
    }

    pub(crate) async fn rename(&self, typed: &str, name: &str) -> Result<Exit, Failure> {
        let id = reach::session(&self.client, typed).await?;
        let request = Configure { name: Some(name.to_owned()), ..Configure::default() };
        let session = self.client.configure(id, &request).await?;
        match self.term.form {
            Form::Json => self.term.json(&session)?,
            Form::Text => self.term.say(&format!("{id}  {name}"))?,
        }
        Ok(Exit::Done)
    }

    pub(crate) async fn answer(&self, asked: &cli::Answer) -> Result<Exit, Failure> {
        let id = reach::session(&self.client, &asked.session).await?;
        let answer = AnswerPermission { option_id: asked.option.clone() };
        let session = self.client.answer(id, asked.permission, &answer).await?;
        let said = asked.option.as_deref().unwrap_or("cancelled");
        match self.term.form {
            Form::Json => self.term.json(&session)?,
            Form::Text => self.term.say(&format!("{id}  question {} answered: {said}", asked.permission))?,
        }
        Ok(Exit::Done)
    }
}

fn row(session: &Session) -> Vec<String> {
    vec![
        session.id.to_string(),
        if session.agent_name.is_empty() { session.kind.to_string() } else { session.agent_name.clone() },
        session.status.to_string(),
        minutes(&session.last_active_at.to_string()),
        session.last_seq.to_string(),
        session.name.clone().or_else(|| session.alias.as_ref().map(ToString::to_string)).unwrap_or_default(),
    ]
}

/// `2025-06-15T15:06:40.000Z` to the minute.
fn minutes(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

fn used(usage: &UsageSums) -> Vec<(&'static str, Option<String>)> {
    let some = |count: u64| (count > 0).then(|| count.to_string());
    vec![
        ("turns", Some(usage.turns.to_string())),
        ("of them untold", some(usage.untold_turns)),
        ("tokens in", Some(usage.input_tokens.to_string())),
        ("tokens out", Some(usage.output_tokens.to_string())),
        ("read from cache", some(usage.cached_read_tokens)),
        ("written to cache", some(usage.cached_write_tokens)),
        ("thought", some(usage.thought_tokens)),
        ("cost", Some(usage.cost_usd.to_string())),
    ]
}

fn description(session: &Session) -> Vec<(&'static str, Option<String>)> {
    let version = session.agent_version.map(|version| format!(" (version {version})")).unwrap_or_default();
    let reason = session.status_reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    vec![
        ("session", Some(session.id.to_string())),
        ("name", session.name.clone()),
        ("alias", session.alias.as_ref().map(ToString::to_string)),
        ("agent", (!session.agent_name.is_empty()).then(|| format!("{}{version}", session.agent_name))),
        ("kind", Some(session.kind.to_string())),
        ("status", Some(format!("{}{reason}", session.status))),
        ("model", session.model.clone()),
        ("place", Some(session.place.to_string())),
        ("tenant", Some(session.tenant_id.to_string())),
        ("created", Some(session.created_at.to_string())),
        ("last active", Some(session.last_active_at.to_string())),
        ("events", Some(format!("{} to {}", session.first_seq, session.last_seq))),
        (
            "used",
            (session.usage.turns > 0).then(|| {
                let UsageSums { turns, input_tokens, output_tokens, cost_usd, .. } = session.usage;
                format!("{turns} turns, {input_tokens} tokens in, {output_tokens} out, {cost_usd}")
            }),
        ),
        ("forked from", session.forked_from.map(|fork| format!("{} at {}", fork.session, fork.seq))),
    ]
}
