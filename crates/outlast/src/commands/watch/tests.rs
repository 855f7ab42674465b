//! What is on the screen after events and keys, drawn into memory.

use super::{
    model::{Ask, Focus, Link, Model, PAGE, Page, Scroll},
    transcript::{MOST_BYTES, MOST_ENTRIES, Transcript, duration},
    view::{self, Ink},
    wrap::{Break, wrap},
};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use protocol::{Event, Seq, Session, SessionId};
use ratatui::{Terminal, backend::TestBackend};
use serde_json::{Value, json};

const WIDTH: u16 = 100;
const HEIGHT: u16 = 20;

fn id(number: u64) -> SessionId {
    format!("019a8000-0000-7000-8000-{number:012}").parse().unwrap()
}

fn session(number: u64, last_seq: Seq) -> Session {
    let at = format!("2026-11-16T00:00:{:02}.000Z", number % 60);
    serde_json::from_value(json!({
        "id": id(number), "tenantId": "default", "agentName": "demo", "sandboxId": "s", "status": "active",
        "model": null, "runnerId": null, "createdAt": at, "lastActiveAt": at, "kind": "agent", "place": "host",
        "agentVersion": 1, "name": format!("session {number}"), "alias": null, "statusReason": null, "firstSeq": 1,
        "lastSeq": last_seq, "forkedFrom": null,
    }))
    .unwrap()
}

fn event(seq: Seq, body: Value) -> Event {
    let mut event = json!({
        "session": id(1), "seq": seq, "at": "2026-11-16T00:00:00.000Z", "actor": "system",
    });
    let Value::Object(body) = body else { panic!("a body is an object") };
    event.as_object_mut().unwrap().extend(body);
    Event::parse(&event.to_string()).unwrap()
}

fn says(seq: Seq, text: &str) -> Event {
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
    event(seq, json!({"type": "agent_update", "update": update}))
}

fn tool(seq: Seq, status: &str, title: Option<&str>, output: Option<&str>) -> Event {
    let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t1", "status": status});
    if let Some(title) = title {
        update["title"] = json!(title);
    }
    if let Some(output) = output {
        update["content"] = json!([{"type": "content", "content": {"type": "text", "text": output}}]);
    }
    event(seq, json!({"type": "agent_update", "update": update}))
}

fn started(seq: Seq, command: u64, text: &str) -> Event {
    event(seq, json!({"type": "command_started", "command": command, "text": text}))
}

fn ended(seq: Seq, command: u64, code: i32, stdout: &str) -> Event {
    let stream = |text: &str| json!({"text": text, "linesTotal": 1, "linesKept": 1});
    event(
        seq,
        json!({
            "type": "command_ended", "command": command, "outcome": "done", "exitCode": code, "durationMs": 1500,
            "cwd": "/", "stdout": stream(stdout), "stderr": stream(""),
        }),
    )
}

/// A model that watches session 1, whose history is this long.
fn watching(last_seq: Seq) -> Model {
    let mut model = Model::default();
    let asks = model.refreshed(vec![session(2, 0), session(1, last_seq)], false);
    assert_eq!(asks, [Ask::Watch(id(2))], "the newest is shown first");
    assert_eq!(model.select(id(1)), [Ask::Watch(id(1))]);
    assert!(model.opened(session(1, last_seq)).is_some());
    model.link(Link::Live);
    picture(&mut model);
    model
}

fn press(model: &mut Model, keys: &str) -> Vec<Ask> {
    keys.chars().flat_map(|key| model.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))).collect()
}

fn code(model: &mut Model, code: KeyCode) -> Vec<Ask> {
    model.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn picture_of(model: &mut Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let screen = terminal.get_frame().area();
    let (columns, lines) = view::inner(view::areas(screen, model.focus).transcript);
    model.resized(columns, lines);
    terminal.draw(|frame| view::draw(frame, model, Ink::Coloured)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

fn picture(model: &mut Model) -> String {
    picture_of(model, WIDTH, HEIGHT)
}

#[test]
fn a_conversation_and_commands_are_shown() {
    let mut model = watching(0);
    let prompt = json!({
        "type": "prompt_accepted", "turn": id(9), "content": [{"type": "text", "text": "fix the build"}],
        "onBusy": "queue", "disposition": "started",
    });
    let events = [
        event(1, prompt),
        says(2, "I will look "),
        says(3, "at it."),
        tool(4, "pending", Some("cargo check"), None),
        tool(5, "completed", None, Some("error: \u{1b}[31mbad\nline two")),
        says(6, "Found."),
        started(7, 1, "make test"),
        ended(8, 1, 2, "one\ntwo\n"),
        event(9, json!({"type": "error", "code": "agent_failed", "message": "it broke"})),
        started(10, 2, "sleep 9"),
    ];
    for event in &events {
        model.event(event);
    }
    insta::assert_snapshot!(picture(&mut model), @r"
     2 sessions                       │ session 1  019a8000, active
    ● session 2  019a8000             │
    ● session 1  019a8000             │  I will look at it.
                                      │
                                      │✓ cargo check
                                      │  error: �[31mbad
                                      │  line two
                                      │
                                      │  Found.
                                      │
                                      │$ make test
                                      │  one
                                      │  two
                                      │  exit code 2, 1.5 s
                                      │
                                      │! error: it broke (agent_failed)
                                      │
                                      │$ sleep 9
                                      │
     live  event 10   ? help  q leave
    ");
    assert!(picture_of(&mut model, 40, 10).contains("2 sessions"), "a narrow terminal shows one pane");
    model.focus = Focus::Transcript;
    assert!(picture_of(&mut model, 40, 10).contains("$ sleep 9"));
    for (width, height) in [(1, 1), (3, 2), (0, 0), (200, 3), (5, 60)] {
        picture_of(&mut model, width, height);
    }
}

#[test]
fn keys_move_search_and_help() {
    let mut model = watching(0);
    for seq in 1..=60 {
        model.event(&started(seq, seq, &format!("command number {seq}")));
    }
    assert!(picture(&mut model).contains("number 60"));
    code(&mut model, KeyCode::Tab);
    assert_eq!(model.focus, Focus::Transcript);
    press(&mut model, "kk");
    assert!(!picture(&mut model).contains("number 60"));
    model.event(&started(61, 61, "command number 61"));
    assert!(!picture(&mut model).contains("number 61"), "what is read stays");
    press(&mut model, "jjjj");
    assert!(picture(&mut model).contains("number 61"), "and the end is followed again");
    code(&mut model, KeyCode::PageUp);
    code(&mut model, KeyCode::PageUp);
    assert!(!picture(&mut model).contains("number 51"));
    press(&mut model, "g");
    assert!(picture(&mut model).contains("number 1\n"));
    press(&mut model, "G");
    assert!(picture(&mut model).contains("number 61"));
    press(&mut model, "/Number 33");
    assert!(picture(&mut model).contains("/Number 33"));
    code(&mut model, KeyCode::Enter);
    let shown = picture(&mut model);
    assert!(shown.lines().nth(1).unwrap().contains("number 33"), "{shown}");
    press(&mut model, "/nothing like it");
    code(&mut model, KeyCode::Enter);
    assert!(picture(&mut model).contains("is not in what is loaded"));
    press(&mut model, "?");
    assert!(picture(&mut model).contains("half a page"));
    press(&mut model, "x");
    assert!(!picture(&mut model).contains("half a page"));
    assert_eq!(press(&mut model, "q"), [Ask::Quit]);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut model, "/typing");
    assert_eq!(model.key(control_c), [Ask::Quit]);
}

#[test]
fn the_list_is_moved_through_filtered_and_extended() {
    let mut model = Model::default();
    model.refreshed((10..=30).rev().map(|number| session(number, 0)).collect(), true);
    assert_eq!(press(&mut model, "j"), [Ask::Watch(id(29))]);
    assert_eq!(press(&mut model, "k"), [Ask::Watch(id(30))]);
    assert_eq!(press(&mut model, "G"), [Ask::Watch(id(10)), Ask::MoreSessions]);
    model.extended((1..10).rev().map(|number| session(number, 0)).collect(), false);
    assert_eq!(press(&mut model, "j"), [Ask::Watch(id(9))]);
    press(&mut model, "/SESSION 12");
    assert_eq!(model.listed().len(), 1);
    assert_eq!(code(&mut model, KeyCode::Enter), [Ask::Watch(id(12))]);
    code(&mut model, KeyCode::Esc);
    assert_eq!(model.listed().len(), 30);
    // A refresh keeps the selection and what was loaded, and puts new sessions on top.
    let asks = model.refreshed(vec![session(31, 0), session(30, 0)], true);
    assert_eq!((asks, model.listed().len(), model.selected), (vec![], 31, Some(id(12))));
    assert_eq!(model.listed()[0].id, id(31));
}

/// Plays the server: answers pages from a history of commands, as long as the model asks.
fn serve(model: &mut Model, mut asks: Vec<Ask>, last: Seq) -> usize {
    let mut pages = 0;
    while let Some(ask) = asks.pop() {
        let Ask::Page(session, page) = ask else { continue };
        pages += 1;
        assert!(pages < 100, "it asks without an end");
        let (from, to) = match page {
            Page::Before(seq) => (seq.saturating_sub(PAGE as Seq).max(1), seq - 1),
            Page::After(seq) => (seq + 1, (seq + PAGE as Seq).min(last)),
            Page::From(seq) => (seq, (seq + PAGE as Seq - 1).min(last)),
        };
        let events: Vec<Event> = (from..=to).map(|seq| started(seq, seq, &format!("number {seq}"))).collect();
        asks.extend(model.paged(session, page, &events));
    }
    pages
}

#[test]
fn a_long_history_is_loaded_as_it_is_looked_at_and_stays_bounded() {
    const LAST: Seq = 100_000;
    let mut model = watching(LAST);
    for seq in LAST - PAGE as Seq + 1..=LAST {
        let asks = model.event(&started(seq, seq, &format!("number {seq}")));
        serve(&mut model, asks, LAST);
    }
    model.focus = Focus::Transcript;
    assert!(picture(&mut model).contains("number 100000"));
    let mut pages = 0;
    for _ in 0..800 {
        let asks = code(&mut model, KeyCode::PageUp);
        pages += serve(&mut model, asks, LAST);
        let entries = model.watched.as_ref().unwrap().transcript.entries().len();
        assert!(entries <= MOST_ENTRIES, "{entries} entries");
    }
    assert!(pages > 20, "older pages come as they are needed: {pages}");
    // New events while the past is read are counted and not kept.
    let asks = model.event(&started(LAST + 1, LAST + 1, "new"));
    serve(&mut model, asks, LAST + 1);
    assert!(picture(&mut model).contains("G for the end"), "{}", picture(&mut model));
    let asks = press(&mut model, "g");
    assert_eq!(serve(&mut model, asks, LAST + 1), 1);
    assert!(picture(&mut model).contains("number 1\n"));
    for _ in 0..300 {
        let asks = code(&mut model, KeyCode::PageDown);
        serve(&mut model, asks, LAST + 1);
    }
    assert!(model.watched.as_ref().unwrap().transcript.entries().len() <= MOST_ENTRIES);
    assert!(matches!(model.watched.as_ref().unwrap().scroll, Scroll::At { .. }));
    let asks = press(&mut model, "G");
    assert!(serve(&mut model, asks, LAST + 1) <= 2);
    assert!(picture(&mut model).contains("number 100001"));
    model.event(&started(LAST + 2, LAST + 2, "live again"));
    assert!(picture(&mut model).contains("live again"));
}

#[test]
fn a_window_joins_what_its_pages_cut() {
    let mut window = Transcript::after(4);
    window.append(&says(5, "world"));
    window.append(&ended(6, 7, 0, "out"));
    window.append(&tool(7, "completed", None, Some("done")));
    window.append(&says(9, "a gap is not filled"));
    window.prepend(&[
        started(1, 7, "make"),
        tool(2, "pending", Some("read"), None),
        says(3, "hello "),
        says(4, "big "),
    ]);
    let heads: Vec<(&str, &str)> =
        window.entries().iter().map(|entry| (entry.head.as_str(), entry.output.as_str())).collect();
    assert_eq!(heads, [("make", "out"), ("read", "done"), ("hello big world", "")]);
    assert_eq!((window.first(), window.last()), (1, 7));
    let before = window.entries().len();
    window.prepend(&[says(20, "does not fit")]);
    assert_eq!(window.entries().len(), before);
}

#[test]
fn a_flood_of_large_output_stays_bounded() {
    let mut model = watching(0);
    let large = "x".repeat(100_000);
    for seq in 1..=500 {
        model.event(&ended(seq, seq, 0, &large));
    }
    let transcript = &model.watched.as_ref().unwrap().transcript;
    let bytes: usize = transcript.entries().iter().map(|entry| entry.output.len()).sum();
    assert!(bytes <= MOST_BYTES && bytes > MOST_BYTES / 2, "{bytes}");
    assert!(picture(&mut model).contains("o shows them"));
    press(&mut model, "o");
    assert!(!picture(&mut model).contains("o shows them"));
}

#[test]
fn a_lost_connection_and_an_end_are_said() {
    let mut model = watching(0);
    model.link(Link::Lost("refused".to_owned()));
    assert!(picture(&mut model).contains("connection lost, connecting again (refused)"));
    model.event(&event(1, json!({"type": "session_status", "from": "active", "to": "ended"})));
    let shown = picture(&mut model);
    assert!(shown.contains("ended") && !shown.contains(" live "), "{shown}");
    model.link(Link::Over("gone".to_owned()));
    assert!(picture(&mut model).contains("over: gone"));
}

#[test]
fn times_are_short() {
    let shown: Vec<String> = [0, 999, 1_000, 59_999, 60_000, 3_723_000].into_iter().map(duration).collect();
    assert_eq!(shown, ["0 ms", "999 ms", "1.0 s", "59.9 s", "1 min 0 s", "62 min 3 s"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn wrapping_loses_nothing_and_fits(text in "[a-z é漢\n]{0,80}", width in 2_usize..20) {
        use unicode_width::UnicodeWidthStr as _;
        let lines = wrap(&text, width, Break::Anywhere);
        prop_assert!(lines.iter().all(|line| line.width() <= width));
        prop_assert_eq!(lines.concat(), text.replace('\n', ""));
        let by_words = wrap(&text, width, Break::Words);
        prop_assert!(by_words.iter().all(|line| line.width() <= width));
        prop_assert_eq!(by_words.concat().replace(' ', ""), text.replace(['\n', ' '], ""));
    }

    #[test]
    fn no_keys_and_no_sizes_panic(
        keys in proptest::collection::vec(0_u8..20, 0..60),
        width in 0_u16..120,
        height in 0_u16..40,
    ) {
        let mut model = watching(1_000);
        for seq in 801..=1_000 {
            model.event(&started(seq, seq, "a command"));
        }
        for key in keys {
            let asks = match key {
                0 => code(&mut model, KeyCode::Tab),
                1 => code(&mut model, KeyCode::PageUp),
                2 => code(&mut model, KeyCode::PageDown),
                3 => code(&mut model, KeyCode::Enter),
                4 => code(&mut model, KeyCode::Esc),
                other => press(&mut model, &"jkgGonN/?hl jk g"[usize::from(other) - 5..][..1]),
            };
            if !asks.contains(&Ask::Quit) {
                serve(&mut model, asks, 1_000);
            }
            picture_of(&mut model, width, height);
        }
    }
}
