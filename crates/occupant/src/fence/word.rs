//! One word of a shell text, as far as it can be known without running it: bytes that stand for themselves, wildcards,
//! and holes where an expansion will put something. Braces are expanded here, because `{rm,-rf,x}` is three words.

/// A word with braces is expanded up to these; past them it cannot be read.
const BRACE_TOKENS: usize = 1024;
const BRACE_WORDS: usize = 64;
const BRACE_DEPTH: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Byte(u8),
    /// An unquoted byte that can mean more than itself: one of `*?[]{},`.
    Special(u8),
    /// Something unknown that is one piece of one word.
    Whole,
    /// Something unknown that can be several words, or none.
    Split,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Quoting {
    /// Every byte stands there as it is meant: only such a word can be reserved or assign.
    #[default]
    Bare,
    /// Some of it is quoted, escaped or expanded.
    Some,
}

/// How far a word has the form of an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Form {
    #[default]
    Start,
    Name,
    /// After `NAME[…]`.
    Subscript,
    /// After the `+` of `+=`.
    Plus,
    Assignment,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Word {
    pub(super) tokens: Vec<Token>,
    pub(super) quoting: Quoting,
    form: Form,
}

/// The braces of a word make more of it than can be followed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyBraces;

impl Word {
    pub(super) fn of(tokens: Vec<Token>) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// A word that stands for itself.
    pub(super) fn plain(text: &[u8]) -> Self {
        Self::of(text.iter().map(|byte| Token::Byte(*byte)).collect())
    }

    pub(super) fn push_bare(&mut self, byte: u8) {
        let special = matches!(byte, b'*' | b'?' | b'[' | b']' | b'{' | b'}' | b',');
        self.form = match (self.form, byte) {
            (Form::Assignment, _) => Form::Assignment,
            (Form::Start | Form::Name, byte) if byte.is_ascii_alphabetic() || byte == b'_' => Form::Name,
            (Form::Name, byte) if byte.is_ascii_digit() => Form::Name,
            (Form::Name | Form::Subscript, b'+') => Form::Plus,
            (Form::Name | Form::Subscript | Form::Plus, b'=') => Form::Assignment,
            (Form::Start | Form::Name | Form::Subscript | Form::Plus | Form::Other, _) => Form::Other,
        };
        self.tokens.push(if special { Token::Special(byte) } else { Token::Byte(byte) });
    }

    pub(super) fn push_quoted(&mut self, byte: u8) {
        self.quote();
        self.tokens.push(Token::Byte(byte));
    }

    pub(super) fn push_hole(&mut self, hole: Token) {
        self.quote();
        self.tokens.push(hole);
    }

    /// `[…]` after what is so far a name.
    pub(super) fn push_subscript(&mut self) {
        self.push_hole(Token::Whole);
        self.form = Form::Subscript;
    }

    /// Something of it is quoted, if only nothing.
    pub(super) fn quote(&mut self) {
        self.quoting = Quoting::Some;
        if self.form != Form::Assignment {
            self.form = Form::Other;
        }
    }

    pub(super) fn is_name(&self) -> bool {
        self.form == Form::Name
    }

    /// It ends with the `=` of an assignment, so that a list of values may follow.
    pub(super) fn awaits_list(&self) -> bool {
        self.form == Form::Assignment && self.tokens.last() == Some(&Token::Byte(b'='))
    }

    /// What stands there, when nothing of it is quoted or expanded.
    pub(super) fn bare(&self) -> Option<Vec<u8>> {
        (self.quoting == Quoting::Bare).then(|| self.tokens.iter().filter_map(Token::byte).collect())
    }

    /// The name that is assigned to, in `NAME=`, `NAME+=` and `NAME[…]=`.
    pub(super) fn assigned(&self) -> Option<Vec<u8>> {
        let name = self.tokens.iter().map_while(Token::byte);
        let name = name.take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        (self.form == Form::Assignment).then(|| name.collect())
    }

    /// The text, when all of it is known. Only of a word whose braces are expanded.
    pub(super) fn literal(&self) -> Option<Vec<u8>> {
        self.tokens
            .iter()
            .map(|token| if let Token::Byte(byte) = token { Some(*byte) } else { None })
            .collect()
    }

    /// Something that an unset variable makes to nothing, so that the next word is the command.
    pub(super) fn can_vanish(&self) -> bool {
        !self.tokens.is_empty() && self.tokens.iter().all(|token| *token == Token::Split)
    }

    pub(super) fn has_hole(&self) -> bool {
        self.tokens.iter().any(|token| matches!(token, Token::Whole | Token::Split))
    }

    /// The words that the braces make of it, each with what cannot be a wildcard as plain bytes.
    pub(super) fn expanded(self) -> Result<Vec<Self>, TooManyBraces> {
        let opens = self.tokens.contains(&Token::Special(b'{'));
        if !opens || self.tokens == [Token::Special(b'{')] {
            return Ok(vec![Self { tokens: settled(self.tokens), ..self }]);
        }
        if self.tokens.len() > BRACE_TOKENS {
            return Err(TooManyBraces);
        }
        let words = braces(&self.tokens, 0)?;
        Ok(words
            .into_iter()
            .map(|tokens| Self { tokens: settled(tokens), quoting: self.quoting, form: self.form })
            .collect())
    }
}

impl Token {
    fn byte(&self) -> Option<u8> {
        match self {
            Self::Byte(byte) | Self::Special(byte) => Some(*byte),
            Self::Whole | Self::Split => None,
        }
    }
}

/// Leaves only the wildcards special: `*`, `?` and a `[` that some `]` closes.
fn settled(mut tokens: Vec<Token>) -> Vec<Token> {
    let last_close = tokens.iter().rposition(|token| *token == Token::Special(b']'));
    for (at, token) in tokens.iter_mut().enumerate() {
        let wild = match *token {
            Token::Special(b'*' | b'?') => true,
            Token::Special(b'[') => last_close.is_some_and(|close| close > at + 1),
            Token::Special(_) | Token::Byte(_) | Token::Whole | Token::Split => false,
        };
        if let Token::Special(byte) = *token
            && !wild
        {
            *token = Token::Byte(byte);
        }
    }
    tokens
}

/// One `{…}` that expands: its ends and the commas between.
struct Brace {
    open: usize,
    close: usize,
    commas: Vec<usize>,
}

fn first_brace(tokens: &[Token]) -> Option<Brace> {
    for (open, _) in tokens.iter().enumerate().filter(|(_, token)| **token == Token::Special(b'{')) {
        let (mut depth, mut commas) = (0_usize, Vec::new());
        for (at, token) in tokens.iter().enumerate().skip(open + 1) {
            match token {
                Token::Special(b'{') => depth += 1,
                Token::Special(b',') if depth == 0 => commas.push(at),
                Token::Special(b'}') if depth > 0 => depth -= 1,
                Token::Special(b'}') if commas.is_empty() && !is_sequence(&tokens[open + 1..at]) => break,
                Token::Special(b'}') => return Some(Brace { open, close: at, commas }),
                Token::Special(_) | Token::Byte(_) | Token::Whole | Token::Split => {}
            }
        }
    }
    None
}

/// `a..c` and `1..9..2`.
fn is_sequence(tokens: &[Token]) -> bool {
    tokens.windows(2).any(|pair| pair == [Token::Byte(b'.'), Token::Byte(b'.')])
}

fn braces(tokens: &[Token], depth: usize) -> Result<Vec<Vec<Token>>, TooManyBraces> {
    let Some(brace) = first_brace(tokens) else { return Ok(vec![tokens.to_vec()]) };
    if depth > BRACE_DEPTH {
        return Err(TooManyBraces);
    }
    let mut middles = Vec::new();
    if brace.commas.is_empty() {
        // Whatever a sequence counts through is as good as any text.
        middles.push(vec![Token::Special(b'*')]);
    } else {
        let mut from = brace.open + 1;
        for to in brace.commas.into_iter().chain([brace.close]) {
            middles.extend(braces(&tokens[from..to], depth + 1)?);
            from = to + 1;
        }
    }
    let tails = braces(&tokens[brace.close + 1..], depth + 1)?;
    if middles.len().saturating_mul(tails.len()) > BRACE_WORDS {
        return Err(TooManyBraces);
    }
    let join = |middle: &Vec<Token>, tail: &Vec<Token>| {
        [&tokens[..brace.open], middle.as_slice(), tail.as_slice()].concat()
    };
    Ok(middles.iter().flat_map(|middle| tails.iter().map(|tail| join(middle, tail))).collect())
}
