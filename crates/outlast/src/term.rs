//! The terminal: the only module that writes to stdout and stderr, or reads what a person types.
//!
//! Results go to stdout, everything else to stderr, so that `outlast run … > file` holds the answer alone.
//! Colours are for terminals only. Text that others wrote loses its control characters before a terminal
//! sees it: an agent must not move the cursor or rename the window.

use crate::exit::Failure;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde::Serialize;
use std::{
    cell::Cell,
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
};

/// The longest line or piped text that is taken as one prompt.
const INPUT_BYTES: u64 = protocol::limits::PROMPT_BYTES as u64;

/// May colours be used where there is a terminal?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    OnTerminals,
    Never,
}

/// How a command prints its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    /// One JSON object a line.
    Json,
}

/// Colours, or none. Pure, so that what is drawn can be tested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self(false);

    #[cfg(test)]
    pub(crate) const COLOURED: Self = Self(true);

    pub(crate) const fn is_coloured(self) -> bool {
        self.0
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }
}

/// Text of others, fit for a terminal: line feeds and tabs stay, other control characters are shown as �.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .filter(|c| *c != '\r')
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c })
        .collect()
}

/// stdin, stdout and stderr of this process.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) form: Form,
    colour: Colour,
    /// The last text left the cursor in the middle of a line.
    mid_line: Cell<bool>,
}

impl Term {
    pub(crate) fn new(form: Form, colour: Colour) -> Self {
        Self { form, colour, mid_line: Cell::new(false) }
    }

    /// Colours for stdout.
    pub(crate) fn paint(&self) -> Paint {
        Paint(self.colour == Colour::OnTerminals && io::stdout().is_terminal())
    }

    /// Colours for stderr.
    pub(crate) fn note_paint(&self) -> Paint {
        Paint(self.colour == Colour::OnTerminals && io::stderr().is_terminal())
    }

    /// Can a person be asked something?
    pub(crate) fn can_ask(&self) -> bool {
        io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    pub(crate) fn shows(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// The width of the terminal that stdout is, if it is one.
    pub(crate) fn width(&self) -> Option<usize> {
        if !self.shows() {
            return None;
        }
        tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)
    }

    /// One line of result.
    pub(crate) fn say(&self, line: &str) -> Result<(), Failure> {
        self.stream(&format!("{line}\n"))
    }

    /// A piece of result, at once.
    pub(crate) fn stream(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        if let Some(last) = text.chars().next_back() {
            self.mid_line.set(last != '\n');
        }
        Ok(())
    }

    /// Bytes as they are: a file's content.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()?;
        Ok(())
    }

    /// Ends a line that was left open.
    pub(crate) fn finish_line(&self) -> Result<(), Failure> {
        if self.mid_line.get() { self.stream("\n") } else { Ok(()) }
    }

    /// One object as a line of result.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::Broken(format!("the result cannot be written as JSON: {error}")))?;
        self.say(&text)
    }

    /// One line beside the result. That nobody hears it is no reason to stop.
    pub(crate) fn note(&self, line: &str) {
        if self.mid_line.get() && self.shows() && io::stderr().is_terminal() {
            let _ = self.finish_line();
        }
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    pub(crate) fn complain(&self, message: &str) {
        let who = self.note_paint().red("outlast:");
        self.note(&format!("{who} {message}"));
    }

    /// A question without a line's end. The answer is read by [`read_line`] or [`Lines`].
    pub(crate) fn prompt(&self, text: &str) {
        if self.mid_line.get() && self.shows() {
            let _ = self.finish_line();
        }
        let mut err = io::stderr().lock();
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }

    /// Yes or no, asked of a person. No terminal means no.
    pub(crate) fn confirm(&self, question: &str) -> Result<bool, Failure> {
        if !self.can_ask() {
            return Ok(false);
        }
        self.prompt(&format!("{question} [y/N] "));
        let answer = read_line()?.unwrap_or_default();
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// A secret: typed without an echo, or the whole of what is piped in, without its last line's end.
    pub(crate) fn secret(&self, question: &str) -> Result<String, Failure> {
        if !self.can_ask() {
            let mut text = read_all()?;
            if text.ends_with('\n') {
                text.truncate(text.trim_end_matches(['\r', '\n']).len());
            }
            return Ok(text);
        }
        self.prompt(question);
        let silence = Silence::begin();
        let line = read_line();
        drop(silence);
        self.note("");
        Ok(line?.unwrap_or_default())
    }
}

/// The next line of stdin without its end; nothing at the end of input.
fn read_line() -> Result<Option<String>, Failure> {
    let mut bytes = vec![];
    let count = io::stdin()
        .lock()
        .take(INPUT_BYTES)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| Failure::Broken(format!("stdin cannot be read: {error}")))?;
    if count == 0 {
        return Ok(None);
    }
    let text = String::from_utf8(bytes).map_err(|_| Failure::Usage("the input is not UTF-8".to_owned()))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// All of stdin, as one prompt.
pub(crate) fn read_all() -> Result<String, Failure> {
    let mut text = String::new();
    let count = io::stdin()
        .lock()
        .take(INPUT_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::Usage(format!("stdin cannot be read as text: {error}")))?;
    if count as u64 > INPUT_BYTES {
        return Err(Failure::Usage(format!("the input is longer than {INPUT_BYTES} bytes")));
    }
    Ok(text)
}

/// Echo is off while this lives.
struct Silence(Option<Termios>);

impl Silence {
    fn begin() -> Self {
        let Ok(before) = tcgetattr(io::stdin()) else { return Self(None) };
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        Self(tcsetattr(io::stdin(), OptionalActions::Flush, &quiet).is_ok().then_some(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, before);
        }
    }
}

/// Lines that a person types while other things happen. A thread of its own reads one line for each time it is
/// asked, so that nothing is taken from stdin that nobody waits for.
#[derive(Debug)]
pub(crate) struct Lines {
    ask: std::sync::mpsc::Sender<()>,
    lines: tokio::sync::mpsc::UnboundedReceiver<Result<Option<String>, Failure>>,
    asked: bool,
}

impl Lines {
    /// The thread ends with the process, or when this is dropped and its read returns.
    pub(crate) fn start() -> Result<Self, Failure> {
        let (ask, asks) = std::sync::mpsc::channel();
        let (sender, lines) = tokio::sync::mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || {
                while asks.recv().is_ok() {
                    if sender.send(read_line()).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| Failure::Broken(format!("no thread for stdin can be started: {error}")))?;
        Ok(Self { ask, lines, asked: false })
    }

    /// The next line; nothing at the end of input. Cancel-safe: a line that was asked for is kept.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Failure> {
        if !self.asked {
            self.asked = self.ask.send(()).is_ok();
        }
        let line = self.lines.recv().await;
        self.asked = false;
        line.unwrap_or(Ok(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_agents_write_cannot_steer_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\r\nc\td\u{9b}e"), "a\u{fffd}[2Jb\nc\td\u{fffd}e");
    }

    #[test]
    fn colours_are_only_where_they_were_asked_for() {
        assert_eq!(Paint::PLAIN.red("x"), "x");
        assert_eq!(Paint::COLOURED.red("x"), "\x1b[31mx\x1b[0m");
        assert_eq!(Paint::COLOURED.dim(""), "");
    }
}
