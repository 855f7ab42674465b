//! `outlast watch` on a terminal of its own, and without one.

use crate::kit::*;
use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

const ROWS: usize = 30;
const COLUMNS: usize = 120;
/// How long the picture may take to show something.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program on a terminal.
struct Watched {
    child: Child,
    keyboard: File,
    /// The other side, which stays open so that its settings can be looked at.
    terminal: File,
    output: Receiver<Vec<u8>>,
    screen: Screen,
}

/// What a terminal shows, as far as the program uses one: text, and where the cursor is sent. Only what changes is
/// written, so that words cannot be looked for in the bytes.
struct Screen {
    cells: Vec<Vec<char>>,
    cursor: (usize, usize),
    alternate: bool,
    /// Bytes that do not make a whole character or sequence yet.
    rest: Vec<u8>,
}

impl Screen {
    fn new() -> Self {
        Self { cells: vec![vec![' '; COLUMNS]; ROWS], cursor: (0, 0), alternate: false, rest: Vec::new() }
    }

    fn text(&self) -> String {
        self.cells.iter().map(|row| row.iter().collect::<String>()).collect::<Vec<_>>().join("\n")
    }

    fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.rest);
        let whole = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap(),
        };
        let mut left = whole;
        while let Some(character) = left.chars().next() {
            let Some(sequence) = left.strip_prefix("\u{1b}[") else {
                left = &left[character.len_utf8()..];
                self.put(character);
                continue;
            };
            let Some(end) = sequence.find(|end: char| end.is_ascii_alphabetic()) else { break };
            self.obey(&sequence[..end], sequence.as_bytes()[end]);
            left = &sequence[end + 1..];
        }
        self.rest = bytes[whole.len() - left.len()..].to_vec();
    }

    fn put(&mut self, character: char) {
        let (row, column) = self.cursor;
        if !character.is_control() && row < ROWS && column < COLUMNS {
            self.cells[row][column] = character;
            self.cursor.1 += 1;
        }
    }

    fn obey(&mut self, parameters: &str, what: u8) {
        match (what, parameters) {
            (b'H', place) => {
                let mut numbers = place.split(';').map(|number| number.parse().unwrap_or(1_usize).max(1) - 1);
                self.cursor = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            }
            (b'J', _) => self.cells = vec![vec![' '; COLUMNS]; ROWS],
            (b'h', "?1049") => self.alternate = true,
            (b'l', "?1049") => self.alternate = false,
            _ => {}
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the test gives the program a terminal")]
fn watch(server: &Server, args: &[&str]) -> Watched {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let side = || Stdio::from(terminal.try_clone().unwrap());
    let child = std::process::Command::new(PROGRAM)
        .arg("watch")
        .args(args)
        .env("OUTLAST_DATA", server.data())
        .env("OUTLAST_URL", server.url().unwrap())
        .env("TERM", "xterm")
        .stdin(side())
        .stdout(side())
        .stderr(side())
        .spawn()
        .unwrap();
    let keyboard = File::from(master);
    let mut reading = keyboard.try_clone().unwrap();
    let (sender, output) = channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = reading.read(&mut piece) {
            if sender.send(piece[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    Watched { child, keyboard, terminal, output, screen: Screen::new() }
}

impl Watched {
    fn shows(&mut self, text: &str) {
        self.until(text, |screen| screen.text().contains(text));
    }

    fn until(&mut self, what: &str, is: impl Fn(&Screen) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is(&self.screen) {
            match self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.screen.push(&piece),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("waited for {what:?}; the screen shows\n{}", self.screen.text())
                }
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    fn ends(&mut self) -> ExitStatus {
        self.until("the screen is given back", |screen| !screen.alternate);
        let status = self.child.wait().unwrap();
        assert!(!self.is_raw(), "the terminal is as it was");
        status
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_watched_live_across_a_restart_of_the_server() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "echo from-before").await;
    let mut watched = watch(&server, &[&id]);
    watched.shows("from-before");
    assert!(watched.screen.alternate);
    assert!(watched.is_raw());
    say(&http, &id, "echo while-watched").await;
    watched.shows("while-watched");
    server.kill9().unwrap();
    watched.shows("connection lost");
    server.restart().await.unwrap();
    say(&server.http().unwrap(), &id, "echo after-restart").await;
    watched.shows("after-restart");
    watched.press("?");
    watched.shows("half a page");
    watched.press("xq");
    assert!(watched.ends().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_gives_the_terminal_back() {
    let (server, http) = server().await;
    let id = session(&http).await;
    let mut watched = watch(&server, &[]);
    watched.shows(&id[..8]);
    assert!(watched.is_raw() && watched.screen.alternate);
    let pid = Pid::from_raw(i32::try_from(watched.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    watched.ends();
}

#[tokio::test]
async fn without_a_terminal_it_prints_lines() {
    let (server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "echo in-the-tail").await;
    act(&http, &id, "pause").await;
    http.call("DELETE", &format!("/api/sessions/{id}"), None).await.unwrap().expect(200).unwrap();
    let said = server.cli(&["watch", &id]).await.unwrap().ok().unwrap();
    assert!(said.contains("in-the-tail") && said.contains("ended"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said:?}");
}
