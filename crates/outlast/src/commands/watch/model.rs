//! What `watch` shows and what a key does to it. Pure: it takes keys, lists, events and pages, and leaves what is to be
//! asked of the server in the returned [`Ask`]s.

use super::{
    transcript::{Entry, Transcript},
    view,
};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use protocol::{Event, Seq, Session, SessionId, Status};

/// Events asked for at once, and how far back a session is first shown.
pub(super) const PAGE: usize = 200;
/// Sessions that the list keeps; older ones are found by their id.
const MOST_SESSIONS: usize = 5_000;
/// Rows from the end of the list at which more of it is asked for.
const NEAR_END: usize = 10;
const SEARCH_CHARS: usize = 200;

/// Something to ask of the server, or of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Watch(SessionId),
    Page(SessionId, Page),
    MoreSessions,
    Quit,
}

/// A stretch of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    /// Those before this one.
    Before(Seq),
    /// Those after this one.
    After(Seq),
    /// From this one on, instead of what is there.
    From(Seq),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Focus {
    #[default]
    Sessions,
    Transcript,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Mode {
    #[default]
    Keys,
    /// What is typed after `/`.
    Search(String),
    Help,
}

/// Where the transcript stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Scroll {
    /// At its end, and goes on with it.
    #[default]
    Follow,
    /// This line of the entry that this event began is the first one shown.
    At { seq: Seq, line: usize },
}

/// How the events come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    Opening,
    Live,
    Lost(String),
    Over(String),
}

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) id: SessionId,
    pub(super) transcript: Transcript,
    pub(super) scroll: Scroll,
    pub(super) link: Link,
    /// The first event that is kept, and the newest there is.
    pub(super) floor: Seq,
    pub(super) head: Seq,
    /// The last event that was followed; a window that ends before it needs pages to catch up.
    followed: Seq,
    /// A page is on its way.
    asked: Option<Page>,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) sessions: Vec<Session>,
    /// There are more than these.
    pub(super) more: bool,
    pub(super) filter: String,
    pub(super) selected: Option<SessionId>,
    pub(super) watched: Option<Watched>,
    pub(super) focus: Focus,
    pub(super) mode: Mode,
    pub(super) notice: String,
    /// All of each command's output, or its beginning.
    pub(super) extent: Extent,
    sought: String,
    /// The transcript's width and height in the last picture.
    size: (usize, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Extent {
    #[default]
    Short,
    Whole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// A line of the transcript: an entry and a line of it.
type Spot = (usize, usize);

impl Model {
    /// The sessions that the filter lets through.
    pub(super) fn listed(&self) -> Vec<&Session> {
        let wanted = self.filter.to_lowercase();
        let fits =
            |session: &&Session| wanted.is_empty() || view::row(session).to_lowercase().contains(&wanted);
        self.sessions.iter().filter(fits).collect()
    }

    /// The newest sessions, as the server lists them now. Those that were loaded before stay.
    pub(super) fn refreshed(&mut self, page: Vec<Session>, more: bool) -> Vec<Ask> {
        if self.sessions.is_empty() {
            self.more = more;
        }
        let known = std::mem::take(&mut self.sessions);
        let old = known.into_iter().filter(|session| !page.iter().any(|new| new.id == session.id));
        let old: Vec<Session> = old.collect();
        self.sessions = page;
        self.sessions.extend(old);
        self.sessions.sort_by(|one, other| other.created_at.cmp(&one.created_at).then(other.id.cmp(&one.id)));
        self.sessions.truncate(MOST_SESSIONS);
        match (self.selected, self.sessions.first().map(|session| session.id)) {
            (None, Some(first)) => self.select(first),
            _ => Vec::new(),
        }
    }

    /// Older sessions, at the end of the list.
    pub(super) fn extended(&mut self, page: Vec<Session>, more: bool) {
        self.more = more && self.sessions.len() < MOST_SESSIONS;
        for session in page {
            if !self.sessions.iter().any(|known| known.id == session.id) {
                self.sessions.push(session);
            }
        }
    }

    pub(super) fn select(&mut self, id: SessionId) -> Vec<Ask> {
        self.selected = Some(id);
        if self.watched.as_ref().is_some_and(|watched| watched.id == id) {
            return Vec::new();
        }
        self.watched = None;
        vec![Ask::Watch(id)]
    }

    /// The session that was asked for is there; returns after which event to follow it.
    pub(super) fn opened(&mut self, session: Session) -> Option<Seq> {
        if self.selected != Some(session.id) {
            return None;
        }
        let floor = session.first_seq.max(1);
        let after = session.last_seq.saturating_sub(PAGE as Seq).max(floor - 1);
        self.watched = Some(Watched {
            id: session.id,
            transcript: Transcript::after(after),
            scroll: Scroll::Follow,
            link: Link::Opening,
            floor,
            head: session.last_seq,
            followed: after,
            asked: None,
        });
        match self.sessions.iter_mut().find(|known| known.id == session.id) {
            Some(known) => *known = session,
            None => self.sessions.insert(0, session),
        }
        Some(after)
    }

    pub(super) fn link(&mut self, link: Link) {
        if let Some(watched) = &mut self.watched {
            watched.link = link;
        }
    }

    /// The next event of the session that is watched.
    pub(super) fn event(&mut self, event: &Event) -> Vec<Ask> {
        let Some(watched) = self.watched.as_mut().filter(|watched| watched.id == event.session) else {
            return Vec::new();
        };
        watched.link = Link::Live;
        watched.head = watched.head.max(event.seq);
        watched.followed = event.seq;
        if let protocol::Body::SessionStatusChanged(change) = &event.body {
            let known = self.sessions.iter_mut().find(|session| session.id == event.session);
            if let Some(session) = known {
                session.status = change.to;
            }
        }
        watched.transcript.append(event);
        match watched.scroll {
            Scroll::Follow => watched.transcript.trim_front(),
            // What is being read stays where it is; the end can be had again.
            Scroll::At { .. } => watched.transcript.trim_back(),
        }
        self.fill()
    }

    /// Events that were asked for.
    pub(super) fn paged(&mut self, id: SessionId, page: Page, events: &[Event]) -> Vec<Ask> {
        let Some(watched) = self.watched.as_mut().filter(|watched| watched.id == id) else {
            return Vec::new();
        };
        watched.asked = None;
        match page {
            Page::Before(_) => {
                let top = watched.transcript.first();
                watched.transcript.prepend(events);
                watched.transcript.trim_back();
                if watched.transcript.first() == top {
                    // The front was cut at the server: there is nothing before.
                    watched.floor = top;
                }
            }
            Page::After(_) => {
                events.iter().for_each(|event| watched.transcript.append(event));
                watched.transcript.trim_front();
            }
            Page::From(first) => {
                watched.transcript = Transcript::after(first.saturating_sub(1));
                events.iter().for_each(|event| watched.transcript.append(event));
                let seq = watched.transcript.entries().front().map_or(first, |entry| entry.seq);
                watched.scroll = Scroll::At { seq, line: 0 };
            }
        }
        self.fill()
    }

    pub(super) fn page_failed(&mut self, id: SessionId, why: String) {
        if let Some(watched) = self.watched.as_mut().filter(|watched| watched.id == id) {
            watched.asked = None;
        }
        self.notice = why;
    }

    /// The size of the transcript's field.
    pub(super) fn resized(&mut self, width: usize, height: usize) -> Vec<Ask> {
        self.size = (width, height);
        self.fill()
    }

    /// Asks for what the picture lacks: the end that is followed, or what comes before its top.
    fn fill(&mut self) -> Vec<Ask> {
        let size = self.size;
        let extent = self.extent;
        let Some(watched) = &mut self.watched else { return Vec::new() };
        if watched.asked.is_some() || watched.link == Link::Opening {
            return Vec::new();
        }
        let transcript = &watched.transcript;
        let top = match watched.scroll {
            Scroll::Follow if transcript.last() < watched.followed => {
                let after = transcript.last();
                return watched.ask(Page::After(after));
            }
            // The beginning is still being replayed.
            Scroll::Follow if watched.followed < watched.head => return Vec::new(),
            Scroll::Follow => last_top(watched, size, extent),
            Scroll::At { seq, line } => (transcript.index_of(seq), line),
        };
        if top == (0, 0) && transcript.first() > watched.floor {
            return watched.ask(Page::Before(transcript.first()));
        }
        Vec::new()
    }
}

impl Watched {
    /// The window ends where the followed events do, so that the next one belongs into it.
    const fn is_attached(&self) -> bool {
        self.transcript.last() >= self.followed
    }

    fn ask(&mut self, page: Page) -> Vec<Ask> {
        self.asked = Some(page);
        vec![Ask::Page(self.id, page)]
    }
}

/// The first line shown when the last one is at the bottom.
fn last_top(watched: &Watched, (width, height): (usize, usize), extent: Extent) -> Spot {
    let entries = watched.transcript.entries();
    let mut left = height;
    for (index, entry) in entries.iter().enumerate().rev() {
        let lines = view::height(entry, width, extent);
        if lines >= left {
            return (index, lines - left);
        }
        left -= lines;
    }
    (0, 0)
}

// What keys do.
impl Model {
    pub(super) fn key(&mut self, key: KeyEvent) -> Vec<Ask> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return vec![Ask::Quit];
        }
        self.notice.clear();
        match std::mem::take(&mut self.mode) {
            Mode::Help => Vec::new(),
            Mode::Search(text) => self.typed(key, text),
            Mode::Keys => self.pressed(key),
        }
    }

    fn typed(&mut self, key: KeyEvent, mut text: String) -> Vec<Ask> {
        match key.code {
            KeyCode::Esc => {
                if self.focus == Focus::Sessions {
                    self.filter.clear();
                }
                return Vec::new();
            }
            KeyCode::Enter => {
                if self.focus == Focus::Transcript {
                    self.sought = text;
                    return self.seek(Way::Down);
                }
                return self.keep_selection();
            }
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char(character) if text.chars().count() < SEARCH_CHARS => text.push(character),
            _ => {}
        }
        if self.focus == Focus::Sessions {
            self.filter.clone_from(&text);
        }
        self.mode = Mode::Search(text);
        Vec::new()
    }

    /// A filter can hide what was selected.
    fn keep_selection(&mut self) -> Vec<Ask> {
        let listed: Vec<SessionId> = self.listed().iter().map(|session| session.id).collect();
        match (self.selected, listed.first()) {
            (Some(selected), Some(first)) if !listed.contains(&selected) => self.select(*first),
            _ => Vec::new(),
        }
    }

    fn pressed(&mut self, key: KeyEvent) -> Vec<Ask> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = self.size.1.saturating_sub(1).max(1);
        match key.code {
            KeyCode::Char('q') => return vec![Ask::Quit],
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Search(String::new()),
            KeyCode::Char('n') => return self.seek(Way::Down),
            KeyCode::Char('N') => return self.seek(Way::Up),
            KeyCode::Char('o') => {
                self.extent = if self.extent == Extent::Short { Extent::Whole } else { Extent::Short };
                return self.fill();
            }
            KeyCode::Tab | KeyCode::BackTab => {
                self.focus = if self.focus == Focus::Sessions { Focus::Transcript } else { Focus::Sessions };
            }
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.focus = Focus::Transcript,
            KeyCode::Left | KeyCode::Char('h') => self.focus = Focus::Sessions,
            KeyCode::Esc => {
                self.filter.clear();
                self.focus = Focus::Sessions;
            }
            KeyCode::Char('d') if control => return self.go(Way::Down, page / 2),
            KeyCode::Char('u') if control => return self.go(Way::Up, page / 2),
            KeyCode::Char('f') if control => return self.go(Way::Down, page),
            KeyCode::Char('b') if control => return self.go(Way::Up, page),
            KeyCode::Down | KeyCode::Char('j') => return self.go(Way::Down, 1),
            KeyCode::Up | KeyCode::Char('k') => return self.go(Way::Up, 1),
            KeyCode::PageDown | KeyCode::Char(' ') => return self.go(Way::Down, page),
            KeyCode::PageUp => return self.go(Way::Up, page),
            KeyCode::Home | KeyCode::Char('g') => return self.go_first(),
            KeyCode::End | KeyCode::Char('G') => return self.go_last(),
            _ => {}
        }
        Vec::new()
    }

    fn go(&mut self, way: Way, lines: usize) -> Vec<Ask> {
        match self.focus {
            Focus::Sessions => self.move_selection(way, lines),
            Focus::Transcript => self.move_lines(way, lines),
        }
    }

    fn move_selection(&mut self, way: Way, rows: usize) -> Vec<Ask> {
        let listed: Vec<SessionId> = self.listed().iter().map(|session| session.id).collect();
        let Some(last) = listed.len().checked_sub(1) else { return Vec::new() };
        let at = listed.iter().position(|id| Some(*id) == self.selected).unwrap_or(0);
        let to = if way == Way::Up { at.saturating_sub(rows) } else { at.saturating_add(rows).min(last) };
        let mut asks = self.select(listed[to]);
        if self.more && to + NEAR_END > last {
            asks.push(Ask::MoreSessions);
        }
        asks
    }

    fn move_lines(&mut self, way: Way, count: usize) -> Vec<Ask> {
        let (size, extent) = (self.size, self.extent);
        let Some(watched) = &mut self.watched else { return Vec::new() };
        let bottom = last_top(watched, size, extent);
        let entries = watched.transcript.entries();
        let (mut index, mut line) = match watched.scroll {
            Scroll::Follow => bottom,
            Scroll::At { seq, line } => (watched.transcript.index_of(seq), line),
        };
        for _ in 0..count {
            match way {
                Way::Up if line > 0 => line -= 1,
                Way::Up if index > 0 => {
                    index -= 1;
                    line = view::height(&entries[index], size.0, extent).saturating_sub(1);
                }
                Way::Up => break,
                Way::Down if (index, line) >= bottom => break,
                Way::Down if line + 1 < view::height(&entries[index], size.0, extent) => line += 1,
                Way::Down => (index, line) = (index + 1, 0),
            }
        }
        let at_end = (index, line) >= bottom;
        match entries.get(index) {
            Some(_) if way == Way::Down && at_end && watched.is_attached() => {
                watched.scroll = Scroll::Follow;
            }
            Some(entry) => watched.scroll = Scroll::At { seq: entry.seq, line },
            None => {}
        }
        // The window ends before the session does: the next stretch is wanted.
        if way == Way::Down && at_end && !watched.is_attached() && watched.asked.is_none() {
            let after = watched.transcript.last();
            return watched.ask(Page::After(after));
        }
        self.fill()
    }

    fn go_first(&mut self) -> Vec<Ask> {
        if self.focus == Focus::Sessions {
            return self.move_selection(Way::Up, usize::MAX);
        }
        let Some(watched) = &mut self.watched else { return Vec::new() };
        if watched.transcript.first() > watched.floor {
            let floor = watched.floor;
            return watched.ask(Page::From(floor));
        }
        let first = watched.transcript.entries().front().map_or(watched.floor, |entry| entry.seq);
        watched.scroll = Scroll::At { seq: first, line: 0 };
        Vec::new()
    }

    fn go_last(&mut self) -> Vec<Ask> {
        if self.focus == Focus::Sessions {
            return self.move_selection(Way::Down, usize::MAX);
        }
        let Some(watched) = &mut self.watched else { return Vec::new() };
        watched.scroll = Scroll::Follow;
        if watched.followed.saturating_sub(watched.transcript.last()) > PAGE as Seq {
            // Far away: begin anew near the end instead of reading through.
            watched.transcript = Transcript::after(watched.followed - PAGE as Seq);
        }
        watched.asked = None;
        self.fill()
    }

    /// The next entry that holds what was sought, among those that are loaded.
    fn seek(&mut self, way: Way) -> Vec<Ask> {
        let wanted = self.sought.to_lowercase();
        let (size, extent) = (self.size, self.extent);
        let Some(watched) = self.watched.as_mut().filter(|_| !wanted.is_empty()) else { return Vec::new() };
        let entries = watched.transcript.entries();
        let has = |entry: &Entry| {
            entry.head.to_lowercase().contains(&wanted) || entry.output.to_lowercase().contains(&wanted)
        };
        let here = match watched.scroll {
            Scroll::Follow => last_top(watched, size, extent).0,
            Scroll::At { seq, .. } => watched.transcript.index_of(seq),
        };
        let count = entries.len();
        let next = (1..=count).map(|step| match way {
            Way::Down => (here + step) % count,
            Way::Up => (here + count - step) % count,
        });
        match next.into_iter().find(|index| has(&entries[*index])) {
            Some(index) => watched.scroll = Scroll::At { seq: entries[index].seq, line: 0 },
            None => {
                self.notice = format!("{:?} is not in what is loaded; g loads the beginning", self.sought);
            }
        }
        self.focus = Focus::Transcript;
        self.fill()
    }

    /// The lines of the transcript that are to be seen, with where they begin.
    pub(super) fn shown(&self, width: usize, height: usize) -> Option<(&Watched, Spot)> {
        let watched = self.watched.as_ref()?;
        let bottom = last_top(watched, (width, height), self.extent);
        let spot = match watched.scroll {
            Scroll::Follow => bottom,
            Scroll::At { seq, line } => (watched.transcript.index_of(seq), line).min(bottom),
        };
        Some((watched, spot))
    }

    pub(super) fn is_live(&self) -> bool {
        let ended = |id| {
            self.sessions.iter().any(|session: &Session| session.id == id && session.status == Status::Ended)
        };
        self.watched.as_ref().is_some_and(|watched| watched.link == Link::Live && !ended(watched.id))
    }
}
