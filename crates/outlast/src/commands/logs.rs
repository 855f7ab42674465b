//! `logs`: a session's events, read or followed, and its agent's stderr.

use super::Asking;
use crate::{
    cli::Logs,
    exit::{Exit, Failure},
    reach,
    render::line,
    table::one_line,
    term::{Form, Term, clean},
};
use client::Followed;
use protocol::{Body, Event, Seq, Session, SessionId, Status, limits};

impl Asking<'_> {
    pub(crate) async fn logs(&self, asked: &Logs) -> Result<Exit, Failure> {
        let id = reach::session(&self.client, &asked.session).await?;
        if asked.stderr {
            return self.stderr(id).await;
        }
        if asked.follow {
            self.follow(id, asked.after).await
        } else {
            self.page_through(id, asked.after).await
        }
    }

    async fn stderr(&self, id: SessionId) -> Result<Exit, Failure> {
        let logs = self.client.logs(id).await?;
        if self.term.form == Form::Json {
            self.term.json(&logs)?;
            return Ok(Exit::Done);
        }
        if logs.dropped > 0 {
            self.term.note(&format!("{} earlier bytes are no longer kept", logs.dropped));
        }
        self.term.stream(&if self.term.shows() { clean(&logs.text) } else { logs.text })?;
        self.term.finish_line()?;
        Ok(Exit::Done)
    }

    /// Everything up to the last event there is now.
    async fn page_through(&self, id: SessionId, after: Seq) -> Result<Exit, Failure> {
        let session = self.client.session(id).await?;
        let last = session.last_seq;
        let mut at = beginning(&session, after);
        while at < last {
            let events = self.client.event_page(id, at, limits::PAGE_EVENTS).await?;
            let Some(end) = events.last().map(|event| event.seq) else { break };
            for event in events.iter().filter(|event| event.seq <= last) {
                print(self.term, event)?;
            }
            at = end;
        }
        Ok(Exit::Done)
    }

    /// Until the session has ended and its last event was shown. Ctrl-C ends the process as usual.
    pub(super) async fn follow(&self, id: SessionId, after: Seq) -> Result<Exit, Failure> {
        let session = self.client.session(id).await?;
        let mut last = (session.status == Status::Ended).then_some(session.last_seq);
        let mut events = self.client.events(id, beginning(&session, after));
        while last.is_none_or(|last| events.last_seq() < last) {
            match events.next().await? {
                Followed::Event(event) => {
                    print(self.term, &event)?;
                    if matches!(&event.body, Body::SessionStatusChanged(change) if change.to == Status::Ended)
                    {
                        last = Some(self.client.session(id).await?.last_seq);
                    }
                }
                Followed::Reconnecting { attempt, cause, .. } => note_reconnect(self.term, attempt, &cause),
            }
        }
        Ok(Exit::Done)
    }
}

/// "From the beginning" means from the first event that is still kept.
fn beginning(session: &Session, after: Seq) -> Seq {
    if after == 0 { session.first_seq.saturating_sub(1) } else { after }
}

/// Said once per loss: what follows is the same story.
pub(crate) fn note_reconnect(term: &Term, attempt: u32, cause: &client::Error) {
    if attempt == 1 {
        let why = match cause {
            client::Error::Unreachable { cause, .. } => one_line(cause),
            other => one_line(&other.to_string()),
        };
        term.note(&term.note_paint().dim(&format!("connection lost ({why}); connecting again")));
    }
}

pub(crate) fn print(term: &Term, event: &Event) -> Result<(), Failure> {
    match term.form {
        Form::Json => term.say(&as_json(event)?),
        Form::Text => term.say(&line(term.paint(), event, term.width())),
    }
}

/// The wire form, with what the agent sent kept as it came.
fn as_json(event: &Event) -> Result<String, Failure> {
    let body = event
        .body
        .encode()
        .map_err(|error| Failure::Broken(format!("event {} cannot be written: {error}", event.seq)))?;
    let mut text = String::with_capacity(body.len() + 192);
    Event::splice(&mut text, event.session, event.seq, event.at, &event.actor, &body);
    Ok(text)
}
