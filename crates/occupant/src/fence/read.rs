//! Reads a shell text and hands on each simple command that could run, wherever it stands: in groups, loops and
//! functions, in substitutions of any kind, in here-documents.
//!
//! It is a reader for judging and not for running, which decides what it does: every command is found or the text is
//! refused; what different shells read differently is refused; compound commands are kept on a stack of their own and
//! nested texts are counted, so that no input overflows the stack; each byte is read once for each level it is nested
//! in. Where something stands at all is decided here, what is in a word in `scan.rs`.

use super::word::Word;

/// How deep substitutions may be nested, and how many groups may be open at once.
const NESTED: usize = 64;
const OPEN: usize = 1_000;

/// Why reading stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop<R> {
    /// The text cannot be read for certain.
    Unreadable { line: usize, why: &'static str },
    /// The receiver had enough.
    Refused(R),
}

/// What is found in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found<'t> {
    Command {
        words: Vec<Word>,
        /// Names that are assigned to, before the command or without one.
        assigned: Vec<Vec<u8>>,
        /// How it is written.
        source: &'t [u8],
    },
    /// Code that is only known when it runs.
    Computed(&'static str),
}

/// What a text or a part of it ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Text,
    Paren,
}

/// A compound command that is not closed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    If,
    Loop,
    Case,
    Brace,
    Subshell,
}

/// A here-document whose body comes after the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heredoc {
    pub(super) delimiter: Vec<u8>,
    pub(super) expands: bool,
    pub(super) strips_tabs: bool,
}

pub(super) type Sink<'s, R> = &'s mut dyn FnMut(Found<'_>) -> Result<(), R>;

pub(super) struct Reader<'t, 's, R> {
    pub(super) text: &'t [u8],
    pub(super) at: usize,
    pub(super) depth: usize,
    pub(super) open: Vec<Open>,
    pub(super) pending: Vec<Heredoc>,
    pub(super) sink: Sink<'s, R>,
}

/// Finds every command of a text.
pub(super) fn read<R>(text: &[u8], sink: Sink<'_, R>) -> Result<(), Stop<R>> {
    Reader { text, at: 0, depth: 0, open: Vec::new(), pending: Vec::new(), sink }.list(End::Text)
}

impl<R> Reader<'_, '_, R> {
    pub(super) fn unreadable(&self, why: &'static str) -> Stop<R> {
        let before = &self.text[..self.at.min(self.text.len())];
        Stop::Unreadable { line: 1 + before.iter().filter(|byte| **byte == b'\n').count(), why }
    }

    pub(super) fn found(&mut self, found: Found<'_>) -> Result<(), Stop<R>> {
        (self.sink)(found).map_err(Stop::Refused)
    }

    /// Runs a part that is nested in this one.
    pub(super) fn deeper<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, Stop<R>>,
    ) -> Result<T, Stop<R>> {
        self.depth += 1;
        if self.depth > NESTED {
            return Err(self.unreadable("it is nested too deeply"));
        }
        let done = part(self);
        self.depth -= 1;
        done
    }

    /// The next byte, after line continuations.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while self.text[self.at..].starts_with(b"\\\n") {
            self.at += 2;
        }
        self.text.get(self.at).copied()
    }

    /// Takes these bytes when they come next.
    pub(super) fn take(&mut self, wanted: &[u8]) -> bool {
        let before = self.at;
        for byte in wanted {
            if self.peek() != Some(*byte) {
                self.at = before;
                return false;
            }
            self.at += 1;
        }
        true
    }

    pub(super) fn comes(&mut self, wanted: &[u8]) -> bool {
        let before = self.at;
        let comes = self.take(wanted);
        self.at = before;
        comes
    }

    /// Blanks, and a comment up to its newline. Only where a word could begin.
    fn blanks(&mut self) {
        while let Some(b' ' | b'\t') = self.peek() {
            self.at += 1;
        }
        if self.peek() == Some(b'#') {
            let line = self.text[self.at..].iter().position(|byte| *byte == b'\n');
            self.at = line.map_or(self.text.len(), |line| self.at + line);
        }
    }

    fn lines(&mut self) -> Result<(), Stop<R>> {
        loop {
            self.blanks();
            if !self.take(b"\n") {
                return Ok(());
            }
            self.bodies()?;
        }
    }

    pub(super) fn list(&mut self, end: End) -> Result<(), Stop<R>> {
        loop {
            self.lines()?;
            let Some(byte) = self.peek() else { break };
            match byte {
                b';' if self.take(b";;&") || self.take(b";;") || self.take(b";&") => {
                    if self.open.last() != Some(&Open::Case) {
                        return Err(self.unreadable("`;;` stands outside `case`"));
                    }
                    self.patterns()?;
                }
                b'&' if self.comes(b"&>") => self.command()?,
                b';' | b'&' | b'|' => self.at += 1,
                b'(' if self.take(b"((") => self.arithmetic()?,
                b'(' => {
                    self.at += 1;
                    self.enter(Open::Subshell)?;
                }
                b')' if self.open.last() == Some(&Open::Subshell) => {
                    self.at += 1;
                    self.open.pop();
                }
                b')' if end == End::Paren && self.open.is_empty() => {
                    self.at += 1;
                    return Ok(());
                }
                b')' => return Err(self.unreadable("`)` closes nothing")),
                _ => self.command()?,
            }
        }
        match (end, self.open.is_empty()) {
            (End::Text, true) => Ok(()),
            (End::Text | End::Paren, _) => Err(self.unreadable("something that is opened is not closed")),
        }
    }

    fn enter(&mut self, open: Open) -> Result<(), Stop<R>> {
        if self.open.len() >= OPEN {
            return Err(self.unreadable("too many groups are open at once"));
        }
        self.open.push(open);
        Ok(())
    }

    fn leave(&mut self, open: Open) -> Result<(), Stop<R>> {
        self.within(open)?;
        self.open.pop();
        Ok(())
    }

    fn within(&self, open: Open) -> Result<(), Stop<R>> {
        match self.open.last() == Some(&open) {
            true => Ok(()),
            false => {
                Err(self
                    .unreadable("a word such as `then`, `done` or `}` stands where it belongs to nothing"))
            }
        }
    }

    /// A simple command with its assignments and redirections, or a reserved word, after which the list goes on.
    fn command(&mut self) -> Result<(), Stop<R>> {
        let start = self.at;
        let (mut words, mut assigned, mut prefixed) = (Vec::new(), Vec::new(), false);
        loop {
            self.blanks();
            match self.peek() {
                Some(b'&') if self.comes(b"&>") => {}
                None | Some(b'\n' | b';' | b'&' | b'|' | b')') => break,
                Some(b'(') => return Err(self.unreadable("`(` stands in the middle of a command")),
                Some(_) => {}
            }
            if self.redirection()? {
                prefixed |= words.is_empty();
                continue;
            }
            let word = self.word(if words.is_empty() { Place::First } else { Place::Later })?;
            if is_descriptor(&word) && matches!(self.peek(), Some(b'<' | b'>')) {
                continue;
            }
            let first = words.is_empty();
            if first && !prefixed && self.reserved(&word)? {
                return Ok(());
            }
            if word.awaits_list() && self.take(b"(") {
                self.values()?;
                // What follows without a blank still belongs to the value.
                self.word(Place::Later)?;
            }
            match word.assigned() {
                Some(name) if first => {
                    assigned.push(name);
                    prefixed = true;
                }
                _ => words.push(word),
            }
            if words.len() == 1 && first && !prefixed && self.function()? {
                return Ok(());
            }
        }
        let source = &self.text[start..self.at];
        if words.is_empty() && assigned.is_empty() {
            return Ok(());
        }
        (self.sink)(Found::Command { words, assigned, source }).map_err(Stop::Refused)
    }

    /// `NAME ()`: what follows is its body, and judged where it stands.
    fn function(&mut self) -> Result<bool, Stop<R>> {
        self.blanks();
        if !self.take(b"(") {
            return Ok(false);
        }
        self.blanks();
        match self.take(b")") {
            true => Ok(true),
            false => Err(self.unreadable("`(` stands after a word")),
        }
    }

    /// The values of `NAME=(…)`.
    fn values(&mut self) -> Result<(), Stop<R>> {
        loop {
            self.lines()?;
            match self.peek() {
                None => return Err(self.unreadable("a list of values is not closed")),
                Some(b')') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b';' | b'&' | b'|' | b'(') => return Err(self.unreadable("a list of values is broken")),
                Some(_) => self.some_word()?,
            }
        }
    }

    /// A word of which only what it substitutes matters.
    fn some_word(&mut self) -> Result<(), Stop<R>> {
        let before = self.at;
        self.word(Place::Later)?;
        match self.at > before {
            true => Ok(()),
            false => Err(self.unreadable("a word is missing")),
        }
    }

    fn reserved(&mut self, word: &Word) -> Result<bool, Stop<R>> {
        let Some(text) = word.bare() else { return Ok(false) };
        match text.as_slice() {
            b"if" => self.enter(Open::If)?,
            b"then" | b"else" | b"elif" => self.within(Open::If)?,
            b"fi" => self.leave(Open::If)?,
            b"while" | b"until" => self.enter(Open::Loop)?,
            b"for" | b"select" => self.for_header()?,
            b"do" => self.within(Open::Loop)?,
            b"done" => self.leave(Open::Loop)?,
            b"case" => self.case_header()?,
            b"esac" => self.leave(Open::Case)?,
            b"{" => self.enter(Open::Brace)?,
            b"}" => self.leave(Open::Brace)?,
            b"!" | b"coproc" => {}
            b"time" => return Ok(self.time()),
            b"[[" => self.condition()?,
            b"function" => {
                self.blanks();
                self.some_word()?;
                self.function()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The reserved word, which takes `-p` and `--`; with other options it is the program.
    fn time(&mut self) -> bool {
        let before = self.at;
        loop {
            self.blanks();
            if !self.comes(b"-") {
                return true;
            }
            let known = self.take(b"-p") || self.take(b"--");
            if !known || !matches!(self.peek(), None | Some(b' ' | b'\t' | b'\n' | b';' | b'(')) {
                self.at = before;
                return false;
            }
        }
    }

    fn for_header(&mut self) -> Result<(), Stop<R>> {
        self.blanks();
        if self.take(b"((") {
            self.arithmetic()?;
        } else {
            self.some_word()?;
            self.lines()?;
            let before = self.at;
            if self.peek() == Some(b'i') && self.word(Place::Later)?.bare().as_deref() == Some(b"in") {
                loop {
                    self.blanks();
                    match self.peek() {
                        None | Some(b';' | b'\n') => break,
                        Some(b'&' | b'|' | b'(' | b')') => return Err(self.unreadable("a `for` is broken")),
                        Some(_) => self.some_word()?,
                    }
                }
            } else {
                self.at = before;
            }
        }
        // The body may stand in braces instead of `do` and `done`.
        self.blanks();
        self.take(b";");
        self.lines()?;
        let braces = self.comes(b"{ ") || self.comes(b"{\t") || self.comes(b"{\n");
        if braces { Ok(()) } else { self.enter(Open::Loop) }
    }

    fn case_header(&mut self) -> Result<(), Stop<R>> {
        self.blanks();
        self.some_word()?;
        self.lines()?;
        if self.word(Place::Later)?.bare().as_deref() != Some(b"in") {
            return Err(self.unreadable("a `case` has no `in`"));
        }
        self.enter(Open::Case)?;
        self.patterns()
    }

    /// From the beginning of a `case` item to its `)`, or `esac`.
    fn patterns(&mut self) -> Result<(), Stop<R>> {
        self.lines()?;
        let grouped = self.take(b"(");
        loop {
            self.blanks();
            let before = self.at;
            let word = self.word(Place::Later)?;
            if self.at == before {
                return Err(self.unreadable("a pattern of a `case` is missing"));
            }
            if !grouped && word.bare().as_deref() == Some(b"esac") {
                return self.leave(Open::Case);
            }
            self.blanks();
            if self.take(b")") {
                return Ok(());
            }
            if !self.take(b"|") {
                return Err(self.unreadable("a pattern of a `case` is broken"));
            }
        }
    }

    /// `[[ … ]]`. Its operators, and those of a regular expression in it, run nothing.
    fn condition(&mut self) -> Result<(), Stop<R>> {
        loop {
            while let Some(b' ' | b'\t' | b'\n') = self.peek() {
                self.at += 1;
            }
            match self.peek() {
                None => return Err(self.unreadable("a `[[` is not closed")),
                Some(b';' | b'#') => {
                    return Err(self.unreadable("a `[[` holds what cannot be read for certain"));
                }
                Some(b'(' | b')' | b'|' | b'&') => self.at += 1,
                Some(b'<' | b'>') if !self.comes(b"<(") && !self.comes(b">(") => self.at += 1,
                Some(_) => {
                    if self.word(Place::Later)?.bare().as_deref() == Some(b"]]") {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// One redirection, when one comes next.
    fn redirection(&mut self) -> Result<bool, Stop<R>> {
        if self.comes(b"<(") || self.comes(b">(") {
            return Ok(false);
        }
        const HERE: [(&[u8], bool); 2] = [(b"<<-", true), (b"<<", false)];
        const PLAIN: [&[u8]; 10] = [b"<<<", b"<&", b"<>", b"<", b"&>>", b"&>", b">>", b">&", b">|", b">"];
        if !self.comes(b"<<<") {
            for (operator, strips_tabs) in HERE {
                if self.take(operator) {
                    self.blanks();
                    let (delimiter, expands) = self.delimiter()?;
                    self.pending.push(Heredoc { delimiter, expands, strips_tabs });
                    return Ok(true);
                }
            }
        }
        if !PLAIN.iter().any(|operator| self.take(operator)) {
            return Ok(false);
        }
        self.blanks();
        self.some_word()?;
        Ok(true)
    }
}

/// Where a word stands: only the first can assign to `NAME[…]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Later,
}

/// `2` and `{name}`, right before a redirection.
fn is_descriptor(word: &Word) -> bool {
    let Some(text) = word.bare() else { return false };
    let named = text.strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}"));
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    digits || named.is_some_and(|name| !name.is_empty() && name.iter().all(is_part))
}
