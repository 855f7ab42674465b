//! `watch`: sessions and what happens in them, on a terminal, as it happens. Elsewhere the same as plain lines.
//!
//! The picture is made from a pure model (`model.rs`, `view.rs`); this module drives it: keys, the server's answers
//! and the followed session's events come in, pictures go out, at most thirty in a second. The terminal is given back
//! as it was when the command ends, panics or is told to stop.

mod model;
mod plain;
#[cfg(test)]
mod tests;
mod transcript;
mod view;
mod wrap;

use super::Asking;
use crate::{
    cli::Watch,
    exit::{Exit, Failure},
    reach,
    table::one_line,
    term::Form,
};
use client::{Client, EventStream, Followed, SessionPage};
use crossterm::event::{Event as TerminalEvent, EventStream as Keys, KeyEventKind};
use futures_util::StreamExt as _;
use model::{Ask, Link, Model, PAGE, Page};
use protocol::{Event, ListSessions, Seq, Session, SessionId, SessionKindFilter};
use ratatui::{DefaultTerminal, layout::Rect};
use std::{io::IsTerminal as _, time::Duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, sleep_until},
};
use view::Ink;

/// Between two looks at the list of sessions.
const REFRESH: Duration = Duration::from_secs(2);
/// Sessions in one page of the list.
const LIST: usize = 200;
/// Between two pictures.
const FRAME: Duration = Duration::from_millis(33);

impl Asking<'_> {
    pub(crate) async fn watch(&self, asked: &Watch) -> Result<Exit, Failure> {
        let named = match &asked.session {
            Some(typed) => Some(reach::session(&self.client, typed).await?),
            None => None,
        };
        if self.term.form == Form::Json || !self.term.shows() || !std::io::stdin().is_terminal() {
            return self.watch_plainly(named).await;
        }
        // Failing before the screen is taken leaves a message that can be read.
        self.client.health().await?;
        let ink = if self.term.paint().is_coloured() { Ink::Coloured } else { Ink::Plain };
        let screen = Screen::take()?;
        Watching::new(self.client.clone(), screen, ink)?.run(named).await
    }
}

/// The terminal, taken over; given back when this is dropped. A panic gives it back too.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> Result<Self, Failure> {
        let broken = |error| Failure::Broken(format!("the terminal cannot be used: {error}"));
        ratatui::try_init().map(Self).map_err(broken)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// An answer of the server.
enum Reply {
    Sessions(Result<SessionPage, client::Error>),
    MoreSessions(Result<SessionPage, client::Error>),
    Opened(SessionId, Result<Box<Session>, client::Error>),
    Page(SessionId, Page, Result<Vec<Event>, client::Error>),
}

struct Watching {
    client: Client,
    screen: Screen,
    ink: Ink,
    model: Model,
    /// Calls under way; dropped and ended with this.
    calls: JoinSet<Reply>,
    events: Option<EventStream>,
    /// Where the list goes on.
    cursor: Option<String>,
    signals: [Signal; 3],
}

/// What woke the loop.
enum Woken {
    Key(Option<std::io::Result<TerminalEvent>>),
    Reply(Reply),
    Event(Result<Followed, client::Error>),
    Tick,
    Draw,
    Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Leave,
}

impl Watching {
    fn new(client: Client, screen: Screen, ink: Ink) -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::Broken(format!("signals cannot be listened to: {error}")))
        };
        let signals = [
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
            listen(SignalKind::interrupt())?,
        ];
        let (calls, model) = (JoinSet::new(), Model::default());
        Ok(Self { client, screen, ink, model, calls, events: None, cursor: None, signals })
    }

    async fn run(mut self, named: Option<SessionId>) -> Result<Exit, Failure> {
        let mut keys = Keys::new();
        let mut tick = tokio::time::interval(REFRESH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut drawn, mut due) = (Instant::now(), Some(Instant::now()));
        if let Some(id) = named {
            let asks = self.model.select(id);
            self.ask(asks);
        }
        loop {
            let [terminate, hangup, interrupt] = &mut self.signals;
            let woken = tokio::select! {
                biased;
                _ = terminate.recv() => Woken::Signal,
                _ = hangup.recv() => Woken::Signal,
                _ = interrupt.recv() => Woken::Signal,
                key = keys.next() => Woken::Key(key),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Woken::Draw,
                Some(Ok(reply)) = self.calls.join_next(), if !self.calls.is_empty() => Woken::Reply(reply),
                _ = tick.tick() => Woken::Tick,
                event = next_event(&mut self.events) => Woken::Event(event),
            };
            if matches!(woken, Woken::Draw) {
                self.draw()?;
                (drawn, due) = (Instant::now(), None);
                continue;
            }
            if self.step(woken)? == Next::Leave {
                return Ok(Exit::Done);
            }
            due = due.or(Some(drawn + FRAME));
        }
    }

    fn step(&mut self, woken: Woken) -> Result<Next, Failure> {
        let asks = match woken {
            Woken::Signal | Woken::Key(None) => return Ok(Next::Leave),
            Woken::Key(Some(Err(error))) => {
                return Err(Failure::Broken(format!("the terminal cannot be read: {error}")));
            }
            Woken::Key(Some(Ok(TerminalEvent::Key(key)))) if key.kind != KeyEventKind::Release => {
                self.model.key(key)
            }
            Woken::Key(_) | Woken::Draw => Vec::new(),
            Woken::Tick => {
                let client = self.client.clone();
                self.calls.spawn(async move { Reply::Sessions(list(&client, None).await) });
                Vec::new()
            }
            Woken::Reply(reply) => self.replied(reply),
            Woken::Event(followed) => self.followed(followed),
        };
        Ok(self.ask(asks))
    }

    fn replied(&mut self, reply: Reply) -> Vec<Ask> {
        match reply {
            Reply::Sessions(Ok(page)) => {
                if self.model.sessions.is_empty() {
                    self.cursor = page.next_cursor.clone();
                }
                self.model.refreshed(page.sessions, page.next_cursor.is_some())
            }
            Reply::MoreSessions(Ok(page)) => {
                self.cursor.clone_from(&page.next_cursor);
                self.model.extended(page.sessions, page.next_cursor.is_some());
                Vec::new()
            }
            Reply::Sessions(Err(error)) | Reply::MoreSessions(Err(error)) => {
                self.model.notice = short(&error);
                Vec::new()
            }
            Reply::Opened(id, Ok(session)) => {
                if let Some(after) = self.model.opened(*session) {
                    self.events = Some(self.client.events(id, after));
                }
                Vec::new()
            }
            Reply::Opened(_, Err(error)) => {
                self.model.notice = short(&error);
                Vec::new()
            }
            Reply::Page(id, page, Ok(events)) => self.model.paged(id, page, &events),
            Reply::Page(id, _, Err(error)) => {
                self.model.page_failed(id, short(&error));
                Vec::new()
            }
        }
    }

    fn followed(&mut self, followed: Result<Followed, client::Error>) -> Vec<Ask> {
        match followed {
            Ok(Followed::Event(event)) => self.model.event(&event),
            Ok(Followed::Reconnecting { cause, .. }) => {
                self.model.link(Link::Lost(short(&cause)));
                Vec::new()
            }
            Err(error) => {
                self.events = None;
                self.model.link(Link::Over(short(&error)));
                Vec::new()
            }
        }
    }

    fn ask(&mut self, asks: Vec<Ask>) -> Next {
        for ask in asks {
            let client = self.client.clone();
            match ask {
                Ask::Quit => return Next::Leave,
                Ask::Watch(id) => {
                    self.events = None;
                    self.calls
                        .spawn(async move { Reply::Opened(id, client.session(id).await.map(Box::new)) });
                }
                Ask::Page(id, page) => {
                    self.calls.spawn(async move { Reply::Page(id, page, fetch(&client, id, page).await) });
                }
                Ask::MoreSessions => {
                    let Some(cursor) = self.cursor.take() else { continue };
                    self.calls.spawn(async move { Reply::MoreSessions(list(&client, Some(cursor)).await) });
                }
            }
        }
        Next::GoOn
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let broken = |error| Failure::Broken(format!("the terminal cannot be written: {error}"));
        let size = self.screen.0.size().map_err(broken)?;
        let area = Rect::new(0, 0, size.width, size.height);
        let (width, height) = view::inner(view::areas(area, self.model.focus).transcript);
        let asks = self.model.resized(width, height);
        self.ask(asks);
        let (model, ink) = (&self.model, self.ink);
        self.screen.0.draw(|frame| view::draw(frame, model, ink)).map_err(broken)?;
        Ok(())
    }
}

/// The followed session's next event; never, when none is followed.
async fn next_event(events: &mut Option<EventStream>) -> Result<Followed, client::Error> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

async fn list(client: &Client, cursor: Option<String>) -> Result<SessionPage, client::Error> {
    let request =
        ListSessions { kind: SessionKindFilter::All, limit: Some(LIST), cursor, ..ListSessions::default() };
    client.sessions(&request).await
}

async fn fetch(client: &Client, id: SessionId, page: Page) -> Result<Vec<Event>, client::Error> {
    match page {
        Page::After(seq) => client.event_page(id, seq, PAGE).await,
        Page::From(seq) => client.event_page(id, seq.saturating_sub(1), PAGE).await,
        Page::Before(seq) => {
            let after = seq.saturating_sub(1 + PAGE as Seq);
            let mut events = client.event_page(id, after, PAGE).await?;
            // A page can be cut short by its size; it must reach to where the window begins.
            while let Some(last) = events.last().map(|event| event.seq).filter(|last| *last + 1 < seq) {
                let more = client.event_page(id, last, PAGE).await?;
                if more.is_empty() {
                    break;
                }
                events.extend(more);
            }
            events.retain(|event| event.seq < seq);
            Ok(events)
        }
    }
}

fn short(error: &client::Error) -> String {
    match error {
        client::Error::Unreachable { cause, .. } => one_line(cause),
        other => one_line(&other.to_string()),
    }
}
