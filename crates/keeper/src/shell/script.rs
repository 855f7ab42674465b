//! The few lines of shell that the keeper itself says, and the state that a shell says of itself.
//!
//! Every word that could be an alias is quoted, and builtins are called as such. What is said runs outside of any
//! command, with nothing but `/dev/null` around it. No result depends on it: a shell that spoils it loses the saved
//! copy of its own state and nothing else.

use super::glass::Way;

/// Holds the statuses of a command's last pipeline, for the next command to find.
pub(crate) const PIPES: &str = "__outlast_ps";
/// What brackets a saved state, so that a part is not taken for the whole.
pub(super) const BEGIN: &str = "# outlast: state";
pub(super) const WHOLE: &str = "# outlast: whole";
/// How the keeper's own trap for a shell's end begins.
pub(crate) const OWN_END: &[u8] = b"\\builtin . ";
/// A saved state larger than this is not kept.
pub(crate) const STATE_BYTES: usize = 1024 * 1024;
/// Statuses of one pipeline that are carried to the next command; a longer one is not.
const PIPES_MOST: usize = 32;

/// A word of any shell, of any bytes.
pub fn quoted(text: &[u8]) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in text {
        match byte {
            b'\'' => out.extend(b"'\\''"),
            other => out.push(*other),
        }
    }
    out.push(b'\'');
    out
}

fn verb(way: Way) -> &'static [u8] {
    match way {
        Way::Dot => b"\\.",
        Way::Source => b"\\source",
        Way::Builtin => b"\\builtin .",
        Way::Command => b"\\command .",
    }
}

/// A word, quoted only where it must be: a shell reads its line letter by letter.
fn word(text: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    if text.starts_with(b"/") && text.iter().all(plain) { text.to_vec() } else { quoted(text) }
}

/// The line that runs a file with the given streams.
pub(crate) fn run(way: Way, file: &[u8], stdin: &[u8], stdout: &[u8], stderr: &[u8]) -> Vec<u8> {
    let (file, stdin, stdout, stderr) = (word(file), word(stdin), word(stdout), word(stderr));
    [verb(way), b" ", &file, b" <", &stdin, b" >", &stdout, b" 2>", &stderr, b"\n"].concat()
}

/// What there is to do about a trap for failures before a file of the keeper's own is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorTrap {
    None,
    /// Inside the file it would be put back.
    Remove,
}

/// The line that runs a file of the keeper's own, and leaves the status as it was.
pub(crate) fn call(way: Way, file: &[u8], code: i32, trap: ErrorTrap) -> Vec<u8> {
    let file = quoted(file);
    let before: &[u8] = match trap {
        ErrorTrap::None => b"",
        ErrorTrap::Remove => b"\\builtin trap - ERR; ",
    };
    // A failure on the left of a list neither ends a shell that ends at failures nor runs its trap for them.
    let after: &[u8] = if code == 0 { b"\n" } else { b" && _=\n" };
    [before, verb(way), b" ", &file, b" ", code.to_string().as_bytes(), after].concat()
}

/// Saves the state into the queue `to` and returns the status that it was given. Traps that would run for the
/// commands of others end here.
pub(crate) fn save(to: &[u8], end: &[u8]) -> Vec<u8> {
    let mut text =
        format!("\\builtin trap - DEBUG RETURN ERR\n\\builtin unset {PIPES} 2>/dev/null\n").into_bytes();
    text.extend(trap_end(end));
    text.extend(dump(to, ""));
    text.extend(b"\\return \"$1\"\n");
    text
}

/// Has the shell save its state when it ends, by the file `end`.
fn trap_end(end: &[u8]) -> Vec<u8> {
    let farewell = quoted(&[OWN_END, &quoted(end)].concat());
    [b"\\builtin trap ".as_slice(), &farewell, b" EXIT\n"].concat()
}

/// Saves the state of a shell that is about to end, with the folder it is in.
pub(crate) fn farewell(to: &[u8]) -> Vec<u8> {
    let folder = "\\builtin cd -P . && \
                  \\builtin printf '\\\\builtin cd -P -- %q || \\\\builtin cd -P .\\n' \"$PWD\"\n";
    dump(to, folder)
}

/// What could end the reading of the rest comes last.
fn dump(to: &[u8], last: &str) -> Vec<u8> {
    let mut text = format!(
        "{{ \\builtin printf '%s\\n' '{BEGIN}'\n\
         \\builtin declare -p\n\\builtin declare -f\n\\builtin export -fp\n\\builtin alias -p\n\
         \\builtin trap -p\n\\builtin umask -p\n\\builtin shopt -p\n\\builtin set +o\n{last}\
         \\builtin printf '%s\\n' '{WHOLE}'\n}} 2>/dev/null >"
    )
    .into_bytes();
    text.extend(quoted(to));
    text.push(b'\n');
    text
}

/// What a shell runs first: the state of the one before it, if there was one, and then the keeper's own traps.
pub(crate) fn fit(state: &[u8], farewell: &[u8]) -> Vec<u8> {
    let mut text = b"\\builtin shopt -s expand_aliases\n".to_vec();
    text.extend(state);
    text.extend(trap_end(farewell));
    text.extend(b"\\return 0\n");
    text
}

/// What goes before a command's text: the statuses of the last pipeline, if it will ask for them.
pub(crate) fn prologue(text: &[u8], pipes: &[u8]) -> Vec<u8> {
    const WORD: &[u8] = b"PIPESTATUS";
    let statuses: Option<Vec<u8>> = std::str::from_utf8(pipes)
        .ok()
        .and_then(|pipes| pipes.split_ascii_whitespace().map(|status| status.parse().ok()).collect());
    let Some(statuses) = statuses.filter(|all| (2..=PIPES_MOST).contains(&all.len())) else {
        return Vec::new();
    };
    if !text.windows(WORD.len()).any(|window| window == WORD) {
        return Vec::new();
    }
    let parts: Vec<String> = statuses.iter().map(|status| format!("(exit {status})")).collect();
    format!("{}; ", parts.join("|")).into_bytes()
}

/// What goes behind a command's text that ends in a pipeline, so that its statuses are not lost with the file. Only
/// behind a text that can have something behind it, and never where it could be seen.
pub(crate) fn epilogue(text: &[u8]) -> Vec<u8> {
    const NEVER: [&[u8]; 11] =
        [b"<<", b"#", b"set", b"trap", b"shopt", b"exec", b"return", b"alias", b"PS4", b"BASH", b"\\\n"];
    let trimmed = text.trim_ascii_end();
    let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
    let open_end = trimmed.last().is_none_or(|byte| b"|&\\({".contains(byte));
    if !has(b"|") || open_end || NEVER.iter().any(|part| has(part)) || !balanced(trimmed) {
        return Vec::new();
    }
    format!("\n\\builtin eval \"{PIPES}='${{PIPESTATUS[@]}}'; \\\\return $?\"\n").into_bytes()
}

/// Reserved words, and what else begins something other than a simple command.
const RESERVED: [&[u8]; 19] = [
    b"if",
    b"then",
    b"else",
    b"elif",
    b"fi",
    b"case",
    b"esac",
    b"for",
    b"select",
    b"while",
    b"until",
    b"do",
    b"done",
    b"in",
    b"function",
    b"time",
    b"coproc",
    b"!",
    b"[[",
];
/// Builtins that change nothing of the shell, whatever their arguments.
const HARMLESS: [&[u8]; 7] = [b"true", b"false", b":", b"echo", b"pwd", b"test", b"["];

/// Whether a text changes nothing of a shell's state, where plain words are programs or builtins: simple commands one
/// after the other, each a program or a harmless builtin, with nothing expanded. It says so only of the plainest.
pub(crate) fn is_neutral(text: &[u8], is_builtin: impl Fn(&[u8]) -> bool) -> bool {
    const PLAIN: &[u8] = b" \t\n./_-+:,@%^=~?*[]\"'";
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || PLAIN.contains(byte) || b"&;".contains(byte);
    if !text.iter().all(plain) || !balanced(text) {
        return false;
    }
    // Quotes keep what they hold from being anything else, and the words of quoted text are judged all the same.
    let alone = |byte: &u8| b"&;\n".contains(byte);
    let jobs = text.split(|byte| *byte != b'&').any(|run| !matches!(run.len(), 0 | 2));
    !jobs && text.split(alone).all(|command| harmless(command.trim_ascii(), &is_builtin))
}

fn harmless(command: &[u8], is_builtin: impl Fn(&[u8]) -> bool) -> bool {
    let Some(first) = command.split(u8::is_ascii_whitespace).next().filter(|word| !word.is_empty()) else {
        return true;
    };
    let named = first.iter().all(|byte| byte.is_ascii_alphanumeric() || b"./_-+:[".contains(byte));
    named && !RESERVED.contains(&first) && (HARMLESS.contains(&first) || !is_builtin(first))
}

/// Whether every quote is closed, as far as can be told without parsing.
fn balanced(text: &[u8]) -> bool {
    let (mut quote, mut escaped) = (None, false);
    for byte in text {
        match (quote, byte) {
            _ if escaped => escaped = false,
            (None | Some(b'"' | b'`'), b'\\') => escaped = true,
            (None, b'\'' | b'"' | b'`') => quote = Some(*byte),
            (Some(open), byte) if open == *byte => quote = None,
            _ => {}
        }
    }
    quote.is_none() && !escaped
}

/// What came from a shell that saves its state. Nothing is taken over before all of it is there.
#[derive(Debug, Default)]
pub(crate) struct State {
    arriving: Vec<u8>,
    pub(crate) whole: Vec<u8>,
}

impl State {
    /// One that was said before.
    pub(crate) fn of(whole: Vec<u8>) -> Self {
        Self { arriving: Vec::new(), whole }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if self.arriving.len() + bytes.len() > STATE_BYTES {
            // The rest finds no beginning, and is dropped too.
            self.arriving = Vec::new();
            return;
        }
        self.arriving.extend_from_slice(bytes);
        let whole = format!("\n{WHOLE}\n");
        if self.arriving.ends_with(whole.as_bytes()) {
            let begin = format!("{BEGIN}\n");
            let from = self.arriving.windows(begin.len()).position(|window| window == begin.as_bytes());
            if let Some(from) = from {
                self.whole = self.arriving.split_off(from + begin.len());
                self.whole.shrink_to_fit();
            }
            self.arriving = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_everything() {
        assert_eq!(quoted(b"a'b\n$x"), b"'a'\\''b\n$x'");
        assert_eq!(call(Way::Dot, b"/d/s", 0, ErrorTrap::None), b"\\. '/d/s' 0\n");
        let line = call(Way::Source, b"/d/s", 7, ErrorTrap::Remove);
        assert_eq!(line, b"\\builtin trap - ERR; \\source '/d/s' 7 && _=\n");
        let line = run(Way::Builtin, b"/f", b"/dev/null", b"/o", b"/e");
        assert_eq!(line, b"\\builtin . /f </dev/null >/o 2>/e\n");
        let line = run(Way::Dot, b"/a b/f", b"/dev/null", b"/~", b"e");
        assert_eq!(line, b"\\. '/a b/f' </dev/null >'/~' 2>'e'\n");
    }

    #[test]
    fn statuses_are_brought_only_where_they_are_asked_for() {
        assert_eq!(prologue(b"echo ${PIPESTATUS[@]}", b"1 0"), b"(exit 1)|(exit 0); ");
        assert_eq!(prologue(b"echo $?", b"1 0"), b"");
        assert_eq!(prologue(b"echo ${PIPESTATUS[@]}", b"1"), b"");
        assert_eq!(prologue(b"echo ${PIPESTATUS[@]}", b"1 ; rm"), b"");
    }

    #[test]
    fn only_a_closed_pipeline_gets_something_behind_it() {
        for text in ["false | true", "a | b\n", "echo 'x|y' | cat; c"] {
            assert!(!epilogue(text.as_bytes()).is_empty(), "{text}");
        }
        for text in
            ["echo a", "a |", "a | b &", "cat <<E | x\nE", "a | b # c", "set -x; a | b", "a | 'b", "a | b \\"]
        {
            assert!(epilogue(text.as_bytes()).is_empty(), "{text}");
        }
    }

    #[test]
    fn only_the_plainest_commands_are_neutral() {
        let builtin =
            |name: &[u8]| [b"cd".as_slice(), b"export", b"printf", b"echo", b"true", b"["].contains(&name);
        for text in
            ["true", "", " \n", "ls -la /tmp", "git status && cargo test", "echo a; ./x.sh 'a b'", "[ -e x ]"]
        {
            assert!(is_neutral(text.as_bytes(), builtin), "{text}");
        }
        for text in [
            "cd /",
            "export A=1",
            "A=1",
            "a[1]=x",
            "[[ -e x ]]",
            "A=1 ls",
            "x=$(y)",
            "ls $x",
            "ls `x`",
            "f() { :; }",
            "ls | cat",
            "ls &",
            "ls & ls",
            "! ls",
            "time ls",
            "if true",
            "ls > x",
            "echo {a,b}",
            "ls \\\n",
            "'cd' /",
            "\"cd\" /",
            "c'd' /",
            "ls 'a",
            "ls && cd x",
            "true\ncd /",
            "printf -v x y",
            "ls # cd",
            "%1",
        ] {
            assert!(!is_neutral(text.as_bytes(), builtin), "{text}");
        }
    }

    #[test]
    fn a_state_is_taken_whole_or_not_at_all() {
        let mut state = State::default();
        state.take(b"# outlast: state\nA=1\n# outlast");
        assert_eq!(state.whole, b"");
        state.take(b": whole\n");
        assert_eq!(state.whole, b"A=1\n# outlast: whole\n");
        state.take(b"A=2\n# outlast: whole\n");
        assert_eq!(state.whole, b"A=1\n# outlast: whole\n", "no beginning");
        state.take(b"# outlast: state\n");
        state.take(&vec![b'x'; STATE_BYTES]);
        state.take(b"\n# outlast: whole\n");
        assert_eq!(state.whole, b"A=1\n# outlast: whole\n", "too much");
    }
}
