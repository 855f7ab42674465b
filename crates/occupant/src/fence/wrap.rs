//! Commands that run other commands: what stands inside them.
//!
//! A table for the usual ones, by name. What is not in it is taken for a program that runs only itself, which is one of
//! the reasons why a fence is not a sandbox.

use super::word::{Token, Word};
use std::borrow::Cow;

/// Whether the command around counts as a command of its own in an allow list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outer {
    /// It changes how another command runs and does nothing else, or it is no wrapper.
    SeenThrough,
    Judged,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Inner<'a> {
    Words(Cow<'a, [Word]>),
    /// A shell text, in which a hole became `$x`.
    Text {
        text: Vec<u8>,
        known: Known,
    },
    /// Code from elsewhere: what it is, and whether a rule that names it is enough.
    Elsewhere {
        what: &'static str,
        nameable: Nameable,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Whole,
    InPart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nameable {
    /// A file that a rule can name.
    ByRule,
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inside<'a> {
    pub(super) outer: Outer,
    pub(super) inner: Vec<Inner<'a>>,
}

/// The options of a wrapper that take the next word, and how many words stand before the command.
struct Shape {
    name: &'static [u8],
    outer: Outer,
    /// Letters of the short options with a value.
    valued: &'static [u8],
    /// Long options whose value may be the next word.
    long: &'static [&'static [u8]],
    operands: usize,
    /// `NAME=VALUE` may stand before the command.
    assigns: bool,
}

const fn shape(name: &'static [u8], outer: Outer, valued: &'static [u8], operands: usize) -> Shape {
    Shape { name, outer, valued, long: &[], operands, assigns: false }
}

const WRAPPERS: [Shape; 22] = [
    Shape { long: &[b"--unset", b"--chdir"], assigns: true, ..shape(b"env", Outer::SeenThrough, b"uCP", 0) },
    Shape { long: &[b"--adjustment"], ..shape(b"nice", Outer::SeenThrough, b"n", 0) },
    shape(b"nohup", Outer::SeenThrough, b"", 0),
    shape(b"setsid", Outer::SeenThrough, b"", 0),
    shape(b"builtin", Outer::SeenThrough, b"", 0),
    shape(b"command", Outer::SeenThrough, b"", 0),
    shape(b"exec", Outer::SeenThrough, b"a", 0),
    Shape { long: &[b"--signal", b"--kill-after"], ..shape(b"timeout", Outer::SeenThrough, b"sk", 1) },
    Shape { long: &[b"--format", b"--output"], ..shape(b"time", Outer::SeenThrough, b"fo", 0) },
    Shape { long: &[b"--input", b"--output", b"--error"], ..shape(b"stdbuf", Outer::SeenThrough, b"ioe", 0) },
    Shape { long: &[b"--class", b"--classdata"], ..shape(b"ionice", Outer::SeenThrough, b"cn", 0) },
    Shape {
        long: &[b"--user", b"--group", b"--host", b"--prompt", b"--chdir", b"--chroot", b"--role", b"--type"],
        assigns: true,
        ..shape(b"sudo", Outer::Judged, b"ughpCcrtTUDR", 0)
    },
    shape(b"doas", Outer::Judged, b"uC", 0),
    Shape { long: &[b"--userspec", b"--groups"], ..shape(b"chroot", Outer::Judged, b"", 1) },
    shape(b"busybox", Outer::Judged, b"", 0),
    shape(b"toybox", Outer::Judged, b"", 0),
    shape(b"strace", Outer::Judged, b"aAbeEIoOpPsSuX", 0),
    shape(b"chrt", Outer::Judged, b"TPD", 1),
    shape(b"taskset", Outer::Judged, b"", 1),
    shape(b"unshare", Outer::Judged, b"RwSG", 0),
    shape(b"flock", Outer::Judged, b"wE", 1),
    Shape {
        long: &[
            b"--arg-file",
            b"--delimiter",
            b"--max-args",
            b"--max-procs",
            b"--max-chars",
            b"--max-lines",
            b"--replace",
        ],
        ..shape(b"xargs", Outer::Judged, b"aEdILnPs", 0)
    },
];

const SHELLS: [&[u8]; 9] = [b"sh", b"bash", b"dash", b"zsh", b"ksh", b"mksh", b"ash", b"rbash", b"fish"];

/// What stands inside the command `name` with these words after it.
pub(super) fn inside<'a>(name: &[u8], args: &'a [Word]) -> Inside<'a> {
    if SHELLS.contains(&name) {
        return Inside { outer: Outer::Judged, inner: vec![shell(args)] };
    }
    let seen_through = |inner| Inside { outer: Outer::SeenThrough, inner };
    let judged = |inner| Inside { outer: Outer::Judged, inner };
    match name {
        b"eval" => seen_through(text_of(args).into_iter().collect()),
        b"trap" => judged(trapped(args).into_iter().collect()),
        b"alias" => judged(args.iter().filter_map(aliased).collect()),
        b"." | b"source" => {
            judged(vec![Inner::Elsewhere { what: "a file that is sourced", nameable: Nameable::ByRule }])
        }
        b"su" | b"runuser" => judged(vec![switched(args)]),
        b"watch" => judged(watched(args)),
        b"find" => judged(found(args)),
        b"command" if looks_up(args) => judged(Vec::new()),
        _ => match WRAPPERS.iter().find(|shape| shape.name == name) {
            Some(shape) => {
                let mut inner = wrapped(shape, args);
                if let (b"xargs", Some(mark)) = (name, replaced(args)) {
                    inner.iter_mut().for_each(|inner| hollow(inner, &mark));
                }
                Inside { outer: shape.outer, inner }
            }
            None => judged(Vec::new()),
        },
    }
}

fn starts(word: &Word, with: &[u8]) -> bool {
    word.tokens.len() >= with.len()
        && with.iter().zip(&word.tokens).all(|(byte, token)| *token == Token::Byte(*byte))
}

/// `command -v` says where a command is and runs nothing.
fn looks_up(args: &[Word]) -> bool {
    args.first().and_then(Word::literal).is_some_and(|first| {
        first.len() > 1 && first[0] == b'-' && first.iter().any(|byte| matches!(byte, b'v' | b'V'))
    })
}

fn wrapped<'a>(shape: &Shape, args: &'a [Word]) -> Vec<Inner<'a>> {
    // `env -S` and `flock -c` hold a text instead of words.
    let text_option: Option<u8> = match shape.name {
        b"env" => Some(b'S'),
        b"flock" => Some(b'c'),
        _ => None,
    };
    let (mut at, mut operands) = (0, shape.operands);
    while let Some(word) = args.get(at) {
        let Some(literal) = word.literal() else {
            // An option, the command, or its first word: it cannot be told.
            if operands > 0 && !word.can_vanish() {
                operands -= 1;
                at += 1;
                continue;
            }
            return vec![Inner::Words(Cow::Borrowed(&args[at..]))];
        };
        if literal == b"--" {
            at += 1;
            let rest = args.get(at + operands..).unwrap_or_default();
            return if rest.is_empty() { Vec::new() } else { vec![Inner::Words(Cow::Borrowed(rest))] };
        }
        if literal.len() > 1 && literal[0] == b'-' {
            if let Some(letter) = text_option
                && let Some(inner) = option_text(letter, &literal, &args[at + 1..])
            {
                return inner;
            }
            at += 1 + usize::from(takes_next(shape, &literal));
        } else if shape.assigns && word.assigned().is_some() {
            at += 1;
        } else if operands > 0 {
            operands -= 1;
            at += 1;
        } else {
            return vec![Inner::Words(Cow::Borrowed(&args[at..]))];
        }
    }
    Vec::new()
}

/// What `xargs` puts its input in place of.
fn replaced(args: &[Word]) -> Option<Vec<u8>> {
    args.iter().enumerate().find_map(|(at, word)| {
        let option = word.literal()?;
        let value = option
            .strip_prefix(b"-I")
            .or(option.strip_prefix(b"-i"))
            .or(option.strip_prefix(b"--replace="))?;
        match (value, option.get(1)) {
            (b"", Some(b'I')) => args.get(at + 1).and_then(Word::literal),
            (b"", _) => Some(b"{}".to_vec()),
            (value, _) => Some(value.to_vec()),
        }
    })
}

/// Makes a hole of what is replaced when the command runs.
fn hollow(inner: &mut Inner<'_>, mark: &[u8]) {
    let Inner::Words(words) = inner else { return };
    for word in words.to_mut() {
        let Some(text) = word.literal().filter(|_| !mark.is_empty()) else { continue };
        let (mut tokens, mut rest) = (Vec::new(), text.as_slice());
        while let Some((first, after)) = rest.split_first() {
            if let Some(after) = rest.strip_prefix(mark) {
                tokens.push(Token::Whole);
                rest = after;
            } else {
                tokens.push(Token::Byte(*first));
                rest = after;
            }
        }
        word.tokens = tokens;
    }
}

fn takes_next(shape: &Shape, option: &[u8]) -> bool {
    if option.starts_with(b"--") {
        return shape.long.contains(&option);
    }
    // The value follows when the letter is the last; otherwise the rest of the word is the value.
    let letter = option[1..].iter().position(|letter| shape.valued.contains(letter));
    letter.is_some_and(|at| at + 2 == option.len())
}

fn option_text(letter: u8, option: &[u8], rest: &[Word]) -> Option<Vec<Inner<'static>>> {
    let split = option.strip_prefix(b"--split-string").or(option.strip_prefix(b"--command"));
    let value = match (option, split) {
        (_, Some([])) => None,
        (_, Some([b'=', value @ ..])) => Some(value),
        ([b'-', letters @ ..], _) if !letters.starts_with(b"-") => {
            let at = letters.iter().position(|each| *each == letter)?;
            Some(&letters[at + 1..]).filter(|value| !value.is_empty())
        }
        _ => return None,
    };
    let mut words: Vec<Word> = value.map(Word::plain).into_iter().collect();
    words.extend_from_slice(rest);
    Some(text_of(&words).into_iter().collect())
}

/// The words joined by blanks, as a text.
fn text_of(words: &[Word]) -> Option<Inner<'static>> {
    let (mut text, mut known) = (Vec::new(), Known::Whole);
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            text.push(b' ');
        }
        for token in &word.tokens {
            match token {
                Token::Byte(byte) => text.push(*byte),
                Token::Special(byte) => {
                    known = Known::InPart;
                    text.push(*byte);
                }
                Token::Whole | Token::Split => {
                    known = Known::InPart;
                    text.extend_from_slice(b"${x}");
                }
            }
        }
    }
    (!words.is_empty()).then_some(Inner::Text { text, known })
}

fn shell(args: &[Word]) -> Inner<'static> {
    let elsewhere = |what, nameable| Inner::Elsewhere { what, nameable };
    let mut at = 0;
    let mut command = false;
    while let Some(word) = args.get(at) {
        let Some(literal) = word.literal() else {
            return if command {
                text_of(&args[at..=at]).unwrap_or(elsewhere("nothing", Nameable::Never))
            } else {
                elsewhere("what a shell is given, which is only known when it runs", Nameable::Never)
            };
        };
        let option = literal.len() > 1 && (literal[0] == b'-' || literal[0] == b'+');
        if literal == b"--" || literal == b"-" {
            at += 1;
        } else if literal.starts_with(b"--") {
            let valued = [b"--rcfile".as_slice(), b"--init-file", b"--command", b"--init-command"];
            command |= literal == b"--command";
            at += 1 + usize::from(valued[..2].contains(&literal.as_slice()));
            continue;
        } else if option {
            command |= literal[1..].contains(&b'c');
            at += 1 + literal[1..].iter().filter(|letter| matches!(letter, b'o' | b'O')).count();
            continue;
        }
        break;
    }
    match args.get(at..at + 1) {
        Some(text) if command => text_of(text).unwrap_or(elsewhere("nothing", Nameable::Never)),
        Some(_) => elsewhere("a script", Nameable::ByRule),
        None => elsewhere("what a shell reads from its input", Nameable::Never),
    }
}

fn trapped(args: &[Word]) -> Option<Inner<'static>> {
    let skip = usize::from(args.first().and_then(Word::literal).as_deref() == Some(b"--"));
    let first = args.get(skip)?;
    // One word resets or lists; with more, the first is a text.
    let listing = starts(first, b"-") || args.len() == skip + 1;
    if listing { None } else { text_of(std::slice::from_ref(first)) }
}

fn aliased(word: &Word) -> Option<Inner<'static>> {
    let equals = word.tokens.iter().position(|token| *token == Token::Byte(b'='))?;
    let value = Word::of(word.tokens[equals + 1..].to_vec());
    text_of(&[value])
}

/// `su -c TEXT` and `runuser -u USER COMMAND`.
fn switched(args: &[Word]) -> Inner<'_> {
    let is = |word: &Word, text: &[u8]| word.literal().as_deref() == Some(text);
    let by_option = args.iter().position(|word| is(word, b"-c") || is(word, b"--command"));
    if let Some(text) = by_option.and_then(|at| args.get(at + 1..at + 2)).and_then(text_of) {
        return text;
    }
    if let Some(at) = args.iter().position(|word| is(word, b"-u") || is(word, b"--")) {
        let rest = &args[(at + 1 + usize::from(is(&args[at], b"-u"))).min(args.len())..];
        if !rest.is_empty() {
            return Inner::Words(Cow::Borrowed(rest));
        }
    }
    Inner::Elsewhere { what: "a login shell", nameable: Nameable::Never }
}

fn watched(args: &[Word]) -> Vec<Inner<'_>> {
    const WATCH: Shape = shape(b"watch", Outer::Judged, b"nq", 0);
    let text = wrapped(&WATCH, args).into_iter().filter_map(|inner| match inner {
        Inner::Words(words) => text_of(&words),
        Inner::Text { .. } | Inner::Elsewhere { .. } => None,
    });
    text.collect()
}

/// The commands of `find`. A word that is not known could be `-exec`.
fn found(args: &[Word]) -> Vec<Inner<'_>> {
    const RUNS: [&[u8]; 4] = [b"-exec", b"-execdir", b"-ok", b"-okdir"];
    let literals: Vec<Option<Vec<u8>>> = args.iter().map(Word::literal).collect();
    let is = |at: usize, text: &[u8]| literals[at].as_deref() == Some(text);
    let mut inner = Vec::new();
    let (mut at, mut unsure, mut stray) = (0, false, false);
    while at < args.len() {
        let runs = literals[at].as_deref().is_some_and(|text| RUNS.contains(&text));
        if runs {
            let end =
                (at + 1..args.len()).find(|end| is(*end, b";") || (is(*end, b"+") && is(end - 1, b"{}")));
            let end = end.unwrap_or(args.len());
            let mut command = Inner::Words(Cow::Borrowed(&args[at + 1..end]));
            hollow(&mut command, b"{}");
            inner.push(command);
            at = end;
        } else {
            stray |= is(at, b";") || is(at, b"+");
            unsure |= args[at].tokens.contains(&Token::Split);
        }
        at += 1;
    }
    let any_hole = args.iter().any(Word::has_hole);
    if unsure || (stray && any_hole) {
        inner.push(Inner::Elsewhere {
            what: "what `find` is given, which is only known when it runs",
            nameable: Nameable::Never,
        });
    }
    inner
}
