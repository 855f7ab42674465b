//! The picture: sessions on the left, the transcript on the right, one line of state below. Reads the model and
//! changes nothing.

use super::{
    model::{Extent, Focus, Link, Mode, Model, Scroll},
    transcript::{Entry, Kind, State},
    wrap::{Break, wrap, wrap_some},
};
use crate::table::one_line;
use protocol::{Session, SessionKind, Status};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Borders, Clear, List, ListItem, ListState, Paragraph},
};

/// Lines of a command's or a tool's output when it is not shown whole.
const SHORT_LINES: usize = 12;
/// Columns of the list, and the width under which only one pane is shown.
const LIST_WIDTH: u16 = 34;
const NARROW: u16 = 70;
const ID_CHARS: usize = 8;
/// Every line of an entry after its mark.
const INDENT: usize = 2;

const HELP: &str = "\
 arrows, j k        move              tab, h l    other pane
 page keys, space   a page            enter       into the transcript
 ctrl-u ctrl-d      half a page       esc         back to the list
 g G, home end      first, last       o           whole output, or its beginning
 /                  search; filters the list of sessions
 n N                next, previous    q, ctrl-c   leave

 The end of the transcript is followed while it is in sight.
 Any key closes this.";

/// May colours be used?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Coloured,
    Plain,
}

impl Ink {
    fn of(self, colour: Color) -> Style {
        match self {
            Self::Coloured => Style::new().fg(colour),
            Self::Plain => Style::new(),
        }
    }
}

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Where the two panes and the line of state are.
pub(super) struct Areas {
    list: Rect,
    pub(super) transcript: Rect,
    state: Rect,
}

pub(super) fn areas(screen: Rect, focus: Focus) -> Areas {
    let [panes, state] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(screen);
    let (left, right) = match (screen.width < NARROW, focus) {
        (false, _) => (LIST_WIDTH, 1),
        (true, Focus::Sessions) => (panes.width, 0),
        (true, Focus::Transcript) => (0, 1),
    };
    let [list, transcript] =
        Layout::horizontal([Constraint::Length(left), Constraint::Min(right)]).areas(panes);
    Areas { list, transcript, state }
}

/// The part of the transcript's pane in which its lines stand: beside the border and below the title.
pub(super) fn inner(transcript: Rect) -> (usize, usize) {
    (usize::from(transcript.width.saturating_sub(2)), usize::from(transcript.height.saturating_sub(1)))
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, ink: Ink) {
    let areas = areas(frame.area(), model.focus);
    draw_list(frame, model, ink, areas.list);
    draw_transcript(frame, model, ink, areas.transcript);
    draw_state(frame, model, ink, areas.state);
    if model.mode == Mode::Help {
        let lines = u16::try_from(HELP.lines().count()).unwrap_or(u16::MAX);
        let screen = frame.area();
        let area = Rect::new(2, 1, 76.min(screen.width.saturating_sub(4)), (lines + 2).min(screen.height));
        let area = area.intersection(screen);
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" keys ")), area);
    }
}

fn title(text: &str, focused: bool) -> Line<'static> {
    let style = if focused { BOLD.add_modifier(Modifier::REVERSED) } else { BOLD };
    Line::styled(format!(" {text} "), style)
}

/// What a session is called, for people.
pub(super) fn row(session: &Session) -> String {
    let id: String = session.id.to_string().chars().take(ID_CHARS).collect();
    let what = match session.kind {
        SessionKind::Agent => session.agent_name.clone(),
        SessionKind::Shell => "shell".to_owned(),
    };
    let alias = session.alias.as_ref().map(ToString::to_string);
    let name = session.name.clone().or(alias).unwrap_or(what);
    one_line(&format!("{name}  {id}"))
}

fn mark(status: Status) -> (&'static str, Color) {
    match status {
        Status::Starting => ("◌", Color::Yellow),
        Status::Active => ("●", Color::Green),
        Status::Paused => ("‖", Color::Blue),
        Status::Ended => ("·", Color::DarkGray),
        Status::Error => ("✗", Color::Red),
    }
}

fn draw_list(frame: &mut Frame<'_>, model: &Model, ink: Ink, area: Rect) {
    let listed = model.listed();
    let items: Vec<ListItem<'_>> = listed
        .iter()
        .map(|session| {
            let (mark, colour) = mark(session.status);
            let style = if session.status == Status::Ended { DIM } else { Style::new() };
            ListItem::new(Line::from(vec![
                Span::styled(format!("{mark} "), ink.of(colour)),
                Span::styled(row(session), style),
            ]))
        })
        .collect();
    let selected = listed.iter().position(|session| Some(session.id) == model.selected);
    let more = if model.more { "+" } else { "" };
    let heading = match model.filter.as_str() {
        "" => format!("{}{more} sessions", listed.len()),
        filter => format!("{} with {}", listed.len(), one_line(filter)),
    };
    let block = Block::new().title(title(&heading, model.focus == Focus::Sessions));
    let list = List::new(items).block(block).highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(list, area, &mut ListState::default().with_selected(selected));
}

fn draw_transcript(frame: &mut Frame<'_>, model: &Model, ink: Ink, area: Rect) {
    if area.width == 0 {
        return;
    }
    let (width, height) = inner(area);
    let heading = model
        .watched
        .as_ref()
        .and_then(|watched| model.sessions.iter().find(|session| session.id == watched.id))
        .map_or_else(|| "no session".to_owned(), |session| format!("{}, {}", row(session), session.status));
    let block = Block::new()
        .borders(Borders::LEFT)
        .border_style(DIM)
        .title(title(&heading, model.focus == Focus::Transcript));
    let mut lines: Vec<Line<'_>> = Vec::with_capacity(height);
    if let Some((watched, (index, line))) = model.shown(width, height) {
        for (at, entry) in watched.transcript.entries().iter().enumerate().skip(index) {
            let skip = if at == index { line } else { 0 };
            lines.extend(entry_lines(entry, width, model.extent, ink).into_iter().skip(skip));
            if lines.len() >= height {
                break;
            }
        }
        lines.truncate(height);
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_state(frame: &mut Frame<'_>, model: &Model, ink: Ink, area: Rect) {
    if let Mode::Search(text) = &model.mode {
        frame.render_widget(Line::from(format!("/{}", one_line(text))), area);
        return;
    }
    let (state, colour) = match model.watched.as_ref().map(|watched| &watched.link) {
        None => ("nothing is watched".to_owned(), Color::DarkGray),
        Some(Link::Opening) => ("opening…".to_owned(), Color::DarkGray),
        Some(Link::Live) if model.is_live() => ("live".to_owned(), Color::Green),
        Some(Link::Live) => ("ended".to_owned(), Color::DarkGray),
        Some(Link::Lost(why)) => (format!("connection lost, connecting again ({why})"), Color::Yellow),
        Some(Link::Over(why)) => (format!("over: {why}"), Color::Red),
    };
    let place = model.watched.as_ref().map_or(String::new(), |watched| {
        let behind = watched.head.saturating_sub(watched.transcript.last());
        match (watched.scroll, behind) {
            (Scroll::Follow, _) => format!("event {}", watched.transcript.last()),
            (Scroll::At { seq, .. }, 0) => format!("event {seq} of {}", watched.head),
            (Scroll::At { seq, .. }, _) => format!("event {seq} of {}, G for the end", watched.head),
        }
    });
    let line = Line::from(vec![
        Span::styled(format!(" {} ", one_line(&state)), ink.of(colour)),
        Span::raw(format!(" {place} ")),
        Span::styled(one_line(&model.notice), ink.of(Color::Yellow)),
        Span::styled("  ? help  q leave", DIM),
    ]);
    frame.render_widget(line, area);
}

/// How many lines an entry takes.
pub(super) fn height(entry: &Entry, width: usize, extent: Extent) -> usize {
    let (output, more) = output_lines(entry, width, extent);
    head_lines(entry, width).len()
        + output.len()
        + usize::from(more > 0)
        + usize::from(!entry.foot.is_empty())
        + 1
}

fn head_lines(entry: &Entry, width: usize) -> Vec<&str> {
    let breaks = if matches!(entry.kind, Kind::Command { .. }) { Break::Anywhere } else { Break::Words };
    wrap(entry.head.trim_end_matches('\n'), width.saturating_sub(INDENT), breaks)
}

/// The output that is shown, and how many lines are not.
fn output_lines(entry: &Entry, width: usize, extent: Extent) -> (Vec<&str>, usize) {
    if entry.output.is_empty() {
        return (Vec::new(), 0);
    }
    let most = if extent == Extent::Whole { usize::MAX } else { SHORT_LINES };
    wrap_some(&entry.output, width.saturating_sub(INDENT), Break::Anywhere, most)
}

fn entry_lines<'a>(entry: &'a Entry, width: usize, extent: Extent, ink: Ink) -> Vec<Line<'a>> {
    let (sign, colour, style) = look(&entry.kind);
    let head = head_lines(entry, width);
    let mut lines: Vec<Line<'a>> = Vec::with_capacity(head.len() + 2);
    for (at, text) in head.into_iter().enumerate() {
        let sign = if at == 0 { sign } else { " " };
        let style = colour.map_or(style, |colour| style.patch(ink.of(colour)));
        lines.push(Line::from(vec![
            Span::styled(format!("{sign} "), colour.map_or(DIM, |colour| ink.of(colour))),
            Span::styled(text, style),
        ]));
    }
    let (output, more) = output_lines(entry, width, extent);
    let indent = || Span::raw(" ".repeat(INDENT));
    lines.extend(output.into_iter().map(|text| Line::from(vec![indent(), Span::raw(text)])));
    if more > 0 {
        lines.push(Line::from(vec![
            indent(),
            Span::styled(format!("… {more} more lines, o shows them"), DIM),
        ]));
    }
    if !entry.foot.is_empty() {
        lines.push(Line::from(vec![indent(), Span::styled(entry.foot.as_str(), DIM)]));
    }
    lines.push(Line::default());
    lines
}

/// The sign before an entry, its colour and the style of its words.
fn look(kind: &Kind) -> (&'static str, Option<Color>, Style) {
    let of_state = |state: &State, running| match state {
        State::Running => (running, Some(Color::Cyan), Style::new()),
        State::Done => ("✓", Some(Color::Green), Style::new()),
        State::Failed => ("✗", Some(Color::Red), Style::new()),
    };
    match kind {
        Kind::Prompt => (">", None, BOLD),
        Kind::Words => (" ", None, Style::new()),
        Kind::Thought => ("·", None, DIM),
        Kind::Tool { state, .. } => of_state(state, "→"),
        Kind::Command { state: State::Failed, .. } => ("$", Some(Color::Red), BOLD),
        Kind::Command { state: State::Running, .. } => ("$", Some(Color::Cyan), BOLD),
        Kind::Command { state: State::Done, .. } => ("$", Some(Color::Green), BOLD),
        Kind::Ask => ("?", Some(Color::Yellow), Style::new()),
        Kind::Note => ("-", None, DIM),
        Kind::Warning => ("!", Some(Color::Yellow), Style::new()),
        Kind::Failure => ("!", Some(Color::Red), Style::new()),
    }
}
