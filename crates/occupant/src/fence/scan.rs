//! What is in a word, in quotes, in an expansion and in the body of a here-document. Nested texts are read where they
//! stand, so that quotes, comments and `case` patterns inside a substitution close what they close in a shell.

use super::{
    read::{End, Found, Heredoc, Place, Reader, Stop},
    word::{Token, Word},
};

/// What an expansion stands in, which decides what quotes mean inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    Bare,
    Quotes,
    Heredoc,
}

impl<R> Reader<'_, '_, R> {
    pub(super) fn word(&mut self, place: Place) -> Result<Word, Stop<R>> {
        let mut word = Word::default();
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' => break,
                b'<' | b'>' if self.take(b"<(") || self.take(b">(") => {
                    self.substitution()?;
                    word.push_hole(Token::Whole);
                }
                b'<' | b'>' => break,
                b'[' if place == Place::First && word.is_name() => {
                    self.at += 1;
                    self.subscript()?;
                    word.push_subscript();
                }
                b'\\' => {
                    self.at += 1;
                    word.push_quoted(self.raw().unwrap_or(b'\\'));
                }
                b'\'' => self.single(&mut word)?,
                b'"' => self.double(&mut word)?,
                b'`' => {
                    self.backquote(Around::Bare)?;
                    word.push_hole(Token::Split);
                }
                b'$' => self.dollar(Around::Bare, &mut word)?,
                byte => {
                    self.at += 1;
                    word.push_bare(byte);
                }
            }
        }
        Ok(word)
    }

    /// The next byte as it stands.
    fn raw(&mut self) -> Option<u8> {
        let byte = self.text.get(self.at).copied();
        self.at += usize::from(byte.is_some());
        byte
    }

    /// A backslash and what it escapes.
    fn skip_escaped(&mut self) {
        self.at = (self.at + 2).min(self.text.len());
    }

    fn single(&mut self, word: &mut Word) -> Result<(), Stop<R>> {
        self.at += 1;
        word.quote();
        let Some(length) = self.text[self.at..].iter().position(|byte| *byte == b'\'') else {
            return Err(self.unreadable("a single quote is not closed"));
        };
        for byte in &self.text[self.at..self.at + length] {
            word.push_quoted(*byte);
        }
        self.at += length + 1;
        Ok(())
    }

    fn double(&mut self, word: &mut Word) -> Result<(), Stop<R>> {
        self.at += 1;
        word.quote();
        self.deeper(|reader| {
            loop {
                match reader.peek() {
                    None => return Err(reader.unreadable("a double quote is not closed")),
                    Some(b'"') => {
                        reader.at += 1;
                        return Ok(());
                    }
                    Some(b'\\') => {
                        reader.at += 1;
                        match reader.raw() {
                            Some(byte @ (b'$' | b'`' | b'"' | b'\\')) => word.push_quoted(byte),
                            Some(byte) => {
                                word.push_quoted(b'\\');
                                word.push_quoted(byte);
                            }
                            None => return Err(reader.unreadable("a double quote is not closed")),
                        }
                    }
                    Some(b'`') => {
                        reader.backquote(Around::Quotes)?;
                        word.push_hole(Token::Whole);
                    }
                    Some(b'$') => reader.dollar(Around::Quotes, word)?,
                    Some(byte) => {
                        reader.at += 1;
                        word.push_quoted(byte);
                    }
                }
            }
        })
    }

    /// What `$` begins.
    fn dollar(&mut self, around: Around, word: &mut Word) -> Result<(), Stop<R>> {
        self.at += 1;
        let mut hole = if around == Around::Bare { Token::Split } else { Token::Whole };
        match self.peek() {
            Some(b'(') if self.take(b"((") => self.arithmetic()?,
            Some(b'(') => {
                self.at += 1;
                self.substitution()?;
            }
            Some(b'{') => {
                self.at += 1;
                let from = self.at;
                self.parameter(around)?;
                if self.text[from..self.at].windows(3).any(|part| part == b"[@]") || self.text[from] == b'@' {
                    hole = Token::Split;
                }
            }
            Some(b'[') => {
                return Err(self.unreadable("`$[` is read differently by different shells; write `$((`"));
            }
            Some(b'\'') if around == Around::Bare => return self.ansi(word),
            Some(b'"') if around == Around::Bare => return self.double(word),
            Some(b'@') => {
                self.at += 1;
                hole = Token::Split;
            }
            Some(b'*' | b'#' | b'?' | b'-' | b'$' | b'!' | b'0'..=b'9') => self.at += 1,
            Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' => {
                while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                    self.at += 1;
                }
            }
            _ => {
                word.push_quoted(b'$');
                return Ok(());
            }
        }
        word.push_hole(hole);
        Ok(())
    }

    /// After `$(`, `<(` or `>(`.
    fn substitution(&mut self) -> Result<(), Stop<R>> {
        let (open, pending) = (std::mem::take(&mut self.open), std::mem::take(&mut self.pending));
        let from = self.at;
        self.deeper(|reader| reader.list(End::Paren))?;
        if !self.pending.is_empty() || (!pending.is_empty() && self.text[from..self.at].contains(&b'\n')) {
            return Err(self.unreadable("a here-document and a substitution cross"));
        }
        (self.open, self.pending) = (open, pending);
        Ok(())
    }

    /// After `${`, to its `}`.
    fn parameter(&mut self, around: Around) -> Result<(), Stop<R>> {
        if let Some(b' ' | b'\t' | b'\n' | b'|') = self.peek() {
            return Err(self.unreadable("`${` is followed by no name"));
        }
        let from = self.at;
        self.deeper(|reader| reader.nested(around, b'}'))?;
        if self.text[from..self.at].ends_with(b"@P}") {
            self.found(Found::Computed("a value that is expanded like a prompt"))?;
        }
        Ok(())
    }

    /// After the `[` of `NAME[`.
    fn subscript(&mut self) -> Result<(), Stop<R>> {
        self.deeper(|reader| reader.nested(Around::Bare, b']'))
    }

    /// Up to a closing byte, with quotes and substitutions on the way.
    fn nested(&mut self, around: Around, close: u8) -> Result<(), Stop<R>> {
        let mut aside = Word::default();
        let mut brackets = 0_usize;
        loop {
            aside.tokens.clear();
            match self.peek() {
                None => return Err(self.unreadable("an expansion is not closed")),
                Some(b'[') if close == b']' => {
                    self.at += 1;
                    brackets += 1;
                }
                Some(byte) if byte == close => {
                    self.at += 1;
                    if brackets == 0 {
                        return Ok(());
                    }
                    brackets -= 1;
                }
                Some(b'\\') => self.skip_escaped(),
                Some(b'\'') if around == Around::Bare => self.single(&mut aside)?,
                Some(b'\'') => {
                    return Err(
                        self.unreadable("a single quote in `${…}` in double quotes is read in two ways")
                    );
                }
                Some(b'"') if around == Around::Heredoc => {
                    return Err(self.unreadable("a quote in `${…}` in a here-document is read in two ways"));
                }
                Some(b'"') => self.double(&mut aside)?,
                Some(b'`') => self.backquote(around)?,
                Some(b'$') => self.dollar(around, &mut aside)?,
                Some(b'<' | b'>') if around == Around::Bare && (self.take(b"<(") || self.take(b">(")) => {
                    self.substitution()?;
                }
                Some(_) => self.at += 1,
            }
        }
    }

    /// After `((`, to its `))`. Whether it is that or two groups is only clear when they close together.
    pub(super) fn arithmetic(&mut self) -> Result<(), Stop<R>> {
        self.deeper(|reader| {
            let (mut parens, mut aside) = (0_usize, Word::default());
            loop {
                aside.tokens.clear();
                match reader.peek() {
                    None => return Err(reader.unreadable("`((` is not closed")),
                    Some(b'(') => {
                        reader.at += 1;
                        parens += 1;
                    }
                    Some(b')') if parens > 0 => {
                        reader.at += 1;
                        parens -= 1;
                    }
                    Some(b')') if reader.take(b"))") => return Ok(()),
                    Some(b')') => {
                        return Err(
                            reader.unreadable("`((` can be read in two ways; write `( (` for two groups")
                        );
                    }
                    Some(b'\'') => {
                        return Err(reader.unreadable("a single quote in arithmetic is read in two ways"));
                    }
                    Some(b'\\') => reader.skip_escaped(),
                    Some(b'"') => reader.double(&mut aside)?,
                    Some(b'`') => reader.backquote(Around::Quotes)?,
                    Some(b'$') => reader.dollar(Around::Quotes, &mut aside)?,
                    Some(_) => reader.at += 1,
                }
            }
        })
    }

    /// At a backquote. Its text loses one layer of backslashes and is a text of its own.
    fn backquote(&mut self, around: Around) -> Result<(), Stop<R>> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.raw() {
                None => return Err(self.unreadable("a backquote is not closed")),
                Some(b'`') => break,
                Some(b'\\') => match self.raw() {
                    Some(byte @ (b'`' | b'\\' | b'$')) => text.push(byte),
                    Some(b'"') if around == Around::Quotes => text.push(b'"'),
                    Some(byte) => text.extend([b'\\', byte]),
                    None => return Err(self.unreadable("a backquote is not closed")),
                },
                Some(byte) => text.push(byte),
            }
        }
        self.apart(&text, |reader| reader.list(End::Text))
    }

    /// Reads a text that is not a piece of this one; a line of it means nothing to the caller.
    fn apart(
        &mut self,
        text: &[u8],
        part: impl FnOnce(&mut Reader<'_, '_, R>) -> Result<(), Stop<R>>,
    ) -> Result<(), Stop<R>> {
        let depth = self.depth;
        let mut inner =
            Reader { text, at: 0, depth, open: Vec::new(), pending: Vec::new(), sink: &mut *self.sink };
        let done = inner.deeper(part);
        done.map_err(|stop| match stop {
            Stop::Unreadable { why, .. } => self.unreadable(why),
            Stop::Refused(refused) => Stop::Refused(refused),
        })
    }

    /// `$'…'`, whose escapes can spell anything.
    fn ansi(&mut self, word: &mut Word) -> Result<(), Stop<R>> {
        self.at += 1;
        word.quote();
        // A NUL ends what the quotes hold, as it does in bash.
        let mut ended = false;
        loop {
            let byte = match self.raw() {
                None => return Err(self.unreadable("a quote is not closed")),
                Some(b'\'') => return Ok(()),
                Some(b'\\') => match self.escape()? {
                    Escape::Byte(byte) => byte,
                    Escape::Char(character) => {
                        let mut spelt = [0; 4];
                        for byte in character.encode_utf8(&mut spelt).bytes().filter(|_| !ended) {
                            word.push_quoted(byte);
                        }
                        continue;
                    }
                    Escape::Unknown(byte) => {
                        if !ended {
                            word.push_quoted(b'\\');
                        }
                        byte
                    }
                },
                Some(byte) => byte,
            };
            ended |= byte == 0;
            if !ended {
                word.push_quoted(byte);
            }
        }
    }

    fn escape(&mut self) -> Result<Escape, Stop<R>> {
        let Some(byte) = self.raw() else { return Err(self.unreadable("a quote is not closed")) };
        Ok(match byte {
            b'a' => Escape::Byte(7),
            b'b' => Escape::Byte(8),
            b'e' | b'E' => Escape::Byte(27),
            b'f' => Escape::Byte(12),
            b'n' => Escape::Byte(b'\n'),
            b'r' => Escape::Byte(b'\r'),
            b't' => Escape::Byte(b'\t'),
            b'v' => Escape::Byte(11),
            b'\\' | b'\'' | b'"' | b'?' => Escape::Byte(byte),
            b'0'..=b'7' => {
                self.at -= 1;
                let value = self.digits(8, 3).unwrap_or(0);
                Escape::Byte(value.to_le_bytes()[0])
            }
            b'x' => {
                self.digits(16, 2).map_or(Escape::Unknown(b'x'), |value| Escape::Byte(value.to_le_bytes()[0]))
            }
            b'u' | b'U' => match self.digits(16, if byte == b'u' { 4 } else { 8 }).map(char::from_u32) {
                Some(Some('\0')) => Escape::Byte(0),
                Some(Some(character)) => Escape::Char(character),
                Some(None) => return Err(self.unreadable("an escape names no character")),
                None => Escape::Unknown(byte),
            },
            b'c' => Escape::Byte(self.raw().unwrap_or(0) & 0x1f),
            byte => Escape::Unknown(byte),
        })
    }

    fn digits(&mut self, radix: u32, most: usize) -> Option<u32> {
        let mut value = None;
        for _ in 0..most {
            let digit = self.text.get(self.at).and_then(|byte| char::from(*byte).to_digit(radix));
            let Some(digit) = digit else { break };
            self.at += 1;
            value = Some(value.unwrap_or(0_u32).wrapping_mul(radix).wrapping_add(digit));
        }
        value
    }

    /// The word after `<<`, and whether the body expands.
    pub(super) fn delimiter(&mut self) -> Result<(Vec<u8>, bool), Stop<R>> {
        let (mut word, mut expands) = (Word::default(), true);
        let before = self.at;
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>' => break,
                b'$' | b'`' => {
                    return Err(
                        self.unreadable("the end of a here-document is written in a way that is read in two")
                    );
                }
                b'\'' => self.single(&mut word)?,
                b'"' => self.double(&mut word)?,
                b'\\' => {
                    self.at += 1;
                    word.push_quoted(self.raw().unwrap_or(b'\\'));
                }
                byte => {
                    self.at += 1;
                    word.push_bare(byte);
                    continue;
                }
            }
            expands = false;
        }
        let text: Option<Vec<u8>> = word
            .tokens
            .iter()
            .map(|token| match token {
                Token::Byte(byte) | Token::Special(byte) => Some(*byte),
                Token::Whole | Token::Split => None,
            })
            .collect();
        match text {
            Some(text) if self.at > before && !text.contains(&b'\n') => Ok((text, expands)),
            _ => Err(self.unreadable("a here-document has no end that can be read")),
        }
    }

    /// After a newline: the bodies of the here-documents of the line.
    pub(super) fn bodies(&mut self) -> Result<(), Stop<R>> {
        for heredoc in std::mem::take(&mut self.pending) {
            let body = self.body(&heredoc)?;
            if heredoc.expands {
                self.apart(&body, |reader| reader.expansions())?;
            }
        }
        Ok(())
    }

    fn body(&mut self, heredoc: &Heredoc) -> Result<Vec<u8>, Stop<R>> {
        let mut body = Vec::new();
        while self.at < self.text.len() {
            let from = body.len();
            self.line(heredoc, &mut body);
            let line = &body[from..];
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            if line == heredoc.delimiter {
                body.truncate(from);
                return Ok(body);
            }
            // Some shells end it there too.
            if self.depth > 0 && line.starts_with(&heredoc.delimiter) && line.contains(&b')') {
                return Err(self.unreadable("the end of a here-document shares its line with `)`"));
            }
        }
        Ok(body)
    }

    /// One line of a body with its newline, joined where the body expands and a backslash ends it.
    fn line(&mut self, heredoc: &Heredoc, body: &mut Vec<u8>) {
        while heredoc.strips_tabs && self.text.get(self.at) == Some(&b'\t') {
            self.at += 1;
        }
        while let Some(byte) = self.raw() {
            if byte == b'\\' && heredoc.expands {
                match self.raw() {
                    Some(b'\n') => {}
                    Some(next) => body.extend([byte, next]),
                    None => body.push(byte),
                }
                continue;
            }
            body.push(byte);
            if byte == b'\n' {
                return;
            }
        }
    }

    /// A text in which only expansions mean something.
    fn expansions(&mut self) -> Result<(), Stop<R>> {
        let mut aside = Word::default();
        while let Some(byte) = self.peek() {
            aside.tokens.clear();
            match byte {
                b'\\' => self.skip_escaped(),
                b'`' => self.backquote(Around::Heredoc)?,
                b'$' => self.dollar(Around::Heredoc, &mut aside)?,
                _ => self.at += 1,
            }
        }
        Ok(())
    }
}

enum Escape {
    Byte(u8),
    Char(char),
    /// The backslash stays.
    Unknown(u8),
}
