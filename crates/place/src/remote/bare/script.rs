//! What is said to the two shells over there. Pure: text in and out.
//!
//! The hand's script is handed on by a login shell that may be any, so that it is one line without `!` and without two
//! backslashes; what goes by standard input may be anything. Only `cat`, `mkdir` and `rm` are needed beside the shell.

use crate::remote::channel::quoted;
use ::keeper::quoted as word;

/// A shell's word that the folder in which it was to start is not there.
pub(super) const OUT: &str = "out";

/// The hand: it makes the folder, and then does what it is told, a line at a time. When nobody tells it anything any
/// more, it ends what the shell has running and removes the folder.
pub(super) fn hand(folder: &str) -> String {
    let steps = [
        "umask 077".to_owned(),
        format!("d={}", quoted(folder)),
        "mkdir \"$d\" || exit 1".to_owned(),
        "shell=; before=; sessions=\" \"; trap : HUP INT TERM".to_owned(),
        "mark() { printf '\\n%s\\n' \"$1\"; }".to_owned(),
        // Every process, its parent and its session. A name may hold anything, and ends with the last parenthesis.
        "look() { all=; if [ -r /proc/self/stat ]; then for s in /proc/[0-9]*/stat; do l=; \
         { while IFS= read -r p; do l=$l$p; done <\"$s\"; } 2>/dev/null; [ -n \"$l\" ] || continue; \
         set -- ${l##*) }; all=\"$all ${l%% *}:$2:$4\"; done; \
         else all=$(ps -A -o pid= -o ppid= | while read -r p q; do echo \"$p:$q:0\"; done); fi; }"
            .to_owned(),
        // Its session is found again when it has ended. One that is not its own is nobody's.
        "drive() { look; shell=$1; for q in $all; do case $q in \"$$\":*) o=${q##*:} ;; esac; done; \
         for q in $all; do case $q in *:0 | *:\"$o\") ;; \"$shell\":*) sessions=\"$sessions${q##*:} \" ;; esac; done; }"
            .to_owned(),
        // What descends from the shell, or is of its session but for that one's leader, which tells of its end.
        "find_tree() { look; tree=\" $shell \"; m=1; while [ \"$m\" = 1 ]; do m=0; for q in $all; do \
         p=${q%%:*}; r=${q#*:}; \
         case $sessions in *\" $p \"*) continue ;; esac; case $tree in *\" $p \"*) continue ;; esac; \
         case $tree in *\" ${r%:*} \"*) ;; *) case $sessions in *\" ${r#*:} \"*) ;; *) continue ;; esac ;; esac; \
         tree=\"$tree$p \"; m=1; done; done; }"
            .to_owned(),
        "begin() { : >\"$d/out\"; : >\"$d/err\"; exec 3<\"$d/out\" 4<\"$d/err\"; find_tree; before=$tree; mark \"$1\"; }"
            .to_owned(),
        "fetch() { cat <&3; mark \"$1\"; cat <&4; mark \"$1\"; }".to_owned(),
        // Whoever still writes has a file without a name.
        "finish() { exec 3<&- 4<&-; rm -f \"$d/out\" \"$d/err\"; mark \"$1\"; }".to_owned(),
        "hit() { n=; for p in $tree; do case $before in *\" $p \"*) ;; *) kill -\"$1\" \"$p\" 2>/dev/null && n=1 ;; esac; done; }"
            .to_owned(),
        // What runs in the shell itself is all that there is of such a command.
        "own() { find_tree; hit \"$2\"; [ -n \"$n\" ] || kill -\"$2\" \"$shell\" 2>/dev/null; mark \"$1\"; }".to_owned(),
        // The shell first: it would go on with the next thing.
        "both() { find_tree; kill -\"$2\" \"$shell\" 2>/dev/null; hit \"$2\"; mark \"$1\"; }".to_owned(),
        "main() { kill -\"$2\" \"$shell\" 2>/dev/null; mark \"$1\"; }".to_owned(),
        // The shell last: without it fewer know whose its children were.
        "leave() { for i in 1 2 3; do find_tree; for p in $tree; do [ \"$p\" = \"$shell\" ] || kill -9 \"$p\" 2>/dev/null; \
         done; done; [ -n \"$shell\" ] && kill -9 \"$shell\" 2>/dev/null; rm -rf \"$d\"; }"
            .to_owned(),
        "while IFS= read -r order; do eval \"$order\"; done; leave".to_owned(),
    ];
    steps.join("; ")
}

/// The shell, and the word that it ended behind it.
pub(super) fn line(argv: &[String], end: &str) -> String {
    let words: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
    format!("{}; printf '\\n%s %s\\n' {end} \"$?\"", words.join(" "))
}

/// The first thing that a shell is told: what it has, where it is, and what to do when it ends. It says whether the
/// folder is there, and its number.
pub(super) fn outfit(env: &[Vec<u8>], cwd: Option<&[u8]>, folder: &str, nonce: &str) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in env {
        let Some(at) = entry.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (&entry[..at], &entry[at + 1..]);
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        if name.is_empty() || name[0].is_ascii_digit() || !name.iter().all(plain) {
            continue;
        }
        text.extend([b"export ", name, b"=", &word(value), b"\n"].concat());
    }
    let state = word(format!("{folder}/state").as_bytes());
    // In the place of another it has what that left.
    text.extend([b"[ -r ".as_slice(), &state, b" ] && \\command . ", &state, b"\n"].concat());
    let to = match cwd {
        Some(cwd) => [b"\\command cd -- ".as_slice(), &word(cwd)].concat(),
        None => b"\\command cd -P -- \"$PWD\"".to_vec(),
    };
    let told = |how: &str| format!("\\command printf '\\n%s %s %s' {nonce} {how} \"$$\"");
    text.extend([&to, b" 2>/dev/null && ".as_slice(), told("in").as_bytes()].concat());
    text.extend([b" || ".as_slice(), told(OUT).as_bytes(), b"\n"].concat());
    text.extend([b"\\command trap ".as_slice(), &word(&save(folder)), b" EXIT\n"].concat());
    text.extend(where_to(nonce));
    text
}

/// One command, and the question how it went.
pub(super) fn command(text: &[u8], code: i32, folder: &str, nonce: &str) -> Vec<u8> {
    // The lines in between have changed the last status.
    let asks = text.windows(2).any(|window| window == b"$?");
    let last = if asks && code != 0 { format!("(exit {code}); ") } else { String::new() };
    let text = [last.as_bytes(), text].concat();
    let file = |name: &str| word(format!("{folder}/{name}").as_bytes());
    let run: [&[u8]; 7] =
        [b"\\command eval ", &word(&text), b" </dev/null >>", &file("out"), b" 2>>", &file("err"), b"\n"];
    let told = format!("\\command printf '\\n%s %s %s' {nonce} \"$?\" \"$$\"\n");
    [run.concat(), told.into_bytes(), where_to(nonce), save(folder), b"\n".to_vec()].concat()
}

/// The folder, and the end of an answer.
fn where_to(nonce: &str) -> Vec<u8> {
    format!("\\command printf ' '; \\command pwd -P; \\command printf '%s\\n' {nonce}\n").into_bytes()
}

/// What every shell can say of itself.
fn save(folder: &str) -> Vec<u8> {
    let state = word(format!("{folder}/state").as_bytes());
    let text = b"{ \\command export PWD; \\command export -p; \\command printf 'umask '; \\command umask; } 2>/dev/null >";
    [text.as_slice(), &state].concat()
}

/// The last answer to a question, once it is whole: its two words, and the folder.
pub(super) fn answer(heard: &[u8], nonce: &str) -> Option<(String, String, Vec<u8>)> {
    let (begin, end) = (format!("\n{nonce} "), format!("\n{nonce}\n"));
    let from = find(heard, begin.as_bytes())? + begin.len();
    let rest = &heard[from..];
    let rest = &rest[..find(rest, end.as_bytes())?];
    let mut parts = rest.splitn(3, |byte| *byte == b' ');
    let mut word = || parts.next().map(|part| String::from_utf8_lossy(part).into_owned());
    Some((word()?, word()?, parts.next()?.to_vec()))
}

/// The status that a shell ended with.
pub(super) fn ended(heard: &[u8], end: &str) -> Option<i32> {
    let begin = format!("\n{end} ");
    let rest = &heard[find(heard, begin.as_bytes())? + begin.len()..];
    let line = &rest[..find(rest, b"\n")?];
    std::str::from_utf8(line).ok()?.parse().ok()
}

pub(super) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_login_shell_hands_on_is_one_plain_line() {
        for script in [hand("/a b"), line(&["/bin/sh".to_owned(), "-s".to_owned()], "n")] {
            assert!(!script.contains(['\n', '!']) && !script.contains("\\\\"), "{script}");
        }
    }

    #[test]
    fn an_answer_counts_when_it_is_whole_and_asked_for() {
        let whole = b"noise\n\nn1 7 42 /a b\nc\nn1\n";
        assert_eq!(answer(whole, "n1"), Some(("7".to_owned(), "42".to_owned(), b"/a b\nc".to_vec())));
        for length in 0..whole.len() {
            assert_eq!(answer(&whole[..length], "n1"), None, "{length}");
        }
        assert_eq!(answer(whole, "n2"), None);
        assert_eq!(
            (ended(b"x\n\ne 3\n", "e"), ended(b"\ne 3", "e"), ended(b"e 3\n", "e")),
            (Some(3), None, None)
        );
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(word(b"it's \xff"), b"'it'\\''s \xff'");
        let text = outfit(&[b"A=x y".to_vec(), b"B C=1".to_vec(), b"9=1".to_vec()], Some(b"/tmp"), "/f", "n");
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.starts_with("export A='x y'\n[ -r '/f/state' ] && "), "{text}");
    }
}
