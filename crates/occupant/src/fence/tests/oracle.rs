//! A comparison with bash: random texts are run by a bash that knows no command and writes down what it was asked for.
//! Whatever it writes down, the reader must have found, or have refused the text.

use super::super::{expanded, read};
use super::Found;
use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

/// What texts are made of. The commands are `c1` to `c4`, which no machine has.
pub(super) const PIECES: [&str; 78] = [
    "c1",
    "c2",
    "c3",
    "c4",
    "c1 ",
    "c2 ",
    "c3 x",
    "x",
    "y",
    " ",
    " ",
    " ",
    "\n",
    "\n",
    ";",
    "; ",
    "&& ",
    "|| ",
    "| ",
    "& ",
    "(",
    ")",
    "{ ",
    "; }",
    "$(",
    ")",
    "\"$(",
    ")\"",
    "`",
    "`",
    "\"",
    "'",
    "\\",
    "\\\n",
    "\\`",
    "\\\"",
    "$x",
    "${x:-",
    "}",
    "\"${x:-",
    "}\"",
    "$((1+",
    "))",
    "((",
    "# ",
    "#",
    "'a'",
    "\"a\"",
    "$'c\\x31'",
    "c\"\"1",
    "if ",
    "; then ",
    "; fi",
    "else ",
    "while ",
    "; do ",
    "; done",
    "for i in a b",
    "case a in a) ",
    ";; ",
    "esac",
    "x=1 ",
    "x=",
    "y[0]=",
    "x=(",
    "2>/dev/null ",
    "<<E ",
    "<<'E' ",
    "\nE\n",
    "<(",
    "[[ ",
    " ]]",
    "! ",
    "f() ",
    "eval ",
    "{c1,",
    "$(c2",
    "=",
];

/// A generator that gives the same texts every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(most).unwrap()).unwrap()
    }
}

/// Names of commands the reader found; nothing when it refused. `eval` is for the wrappers and passes here.
fn found(text: &str) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut sink = |found: Found<'_>| {
        if let Found::Command { words, .. } = found {
            let words = expanded(words).map_err(|_| ())?;
            // A name that is not known is not compared, and neither is what comes after one that can vanish.
            if words
                .first()
                .is_none_or(|word| word.literal().is_none() || word.literal().as_deref() == Some(b"eval"))
            {
                names.insert("?".to_owned());
            }
            names.extend(
                words
                    .first()
                    .and_then(|word| word.literal())
                    .map(|name| String::from_utf8_lossy(&name).replace('\n', " ")),
            );
        }
        Ok::<(), ()>(())
    };
    read::read(text.as_bytes(), &mut sink).ok()?;
    Some(names)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test compares with bash itself")]
fn every_command_that_bash_runs_is_found() {
    let Ok(bash) = Command::new("bash").arg("--version").output() else { return };
    assert!(bash.status.success());
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let folder = tempfile::tempdir().unwrap();
    let mut texts: Vec<String> = KNOWN.iter().map(|text| (*text).to_owned()).collect();
    while texts.len() < 3_000 {
        let length = 3 + dice.below(12);
        texts.push((0..length).map(|_| PIECES[dice.below(PIECES.len())]).collect());
    }
    let mut run = Command::new("bash")
        .args(["--norc", "--noprofile", "-c", DRIVER, "driver"])
        .arg(folder.path())
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = run.stdin.take().unwrap();
    let input: Vec<u8> = texts.iter().flat_map(|text| text.bytes().chain([0])).collect();
    let feed = std::thread::spawn(move || stdin.write_all(&input));
    let output = run.wait_with_output().unwrap();
    let _ = feed.join();
    let output = String::from_utf8_lossy(&output.stdout);
    let mut read_well = 0;
    let records: Vec<&str> = output.split('\0').collect();
    assert!(records.len() > texts.len(), "bash answered {} of {} texts", records.len(), texts.len());
    for (text, ran) in texts.iter().zip(records) {
        let Some(names) = found(text) else { continue };
        read_well += 1;
        for name in ran.lines() {
            assert!(
                names.contains(name) || names.contains("?"),
                "bash ran {name:?} in {text:?}, and the reader found {names:?}"
            );
        }
    }
    assert!(read_well > 300, "only {read_well} texts could be read; the comparison says little");
}

/// Runs each text apart, without any program in reach, and tells which commands were missing.
const DRIVER: &str = r#"
folder=$1; PATH=/nowhere; n=0
command_not_found_handle() { printf '%s\n' "${1//$'\n'/ }" >> "$ran"; return 0; }
while IFS= read -r -d '' text; do
  ran=$folder/.ran.$((n++))
  : > "$ran"
  ( ulimit -t 2; set +m; count=0; trap '(( ++count > 200 )) && exit' DEBUG; cd "$folder"; eval "$text" ) < /dev/null > /dev/null 2>&1
done
for ((i = 0; i < n; i++)); do printf '%s\0' "$(< "$folder/.ran.$i")"; done
"#;

/// Texts that once were read wrongly, or could be.
const KNOWN: [&str; 15] = [
    "x=()c2 c1",
    "cat=1 c1",
    "x[1 + 1]=2 c1",
    "x[\"]\"]=2 c1",
    "c2 <<E; c1\nE\n",
    "c2 <<E\n`c1`\nE\n",
    "c2 <<E\n`c3 \\\"; c1; \\\"`\nE\n",
    "c2 \"`c3 \\\"; c1; \\\"`\"",
    "c2 <<E\na\\\nE\nE\nc1",
    "c2 $(c3 # )\n c1)",
    "c2 $(case a in a) c1;; esac)",
    "c2 \"${x:-\"$(c1)\"}\"",
    "c2 ${x:-<(c1)}",
    "2>/dev/null c1",
    "c2 a#'\n'; c1",
];
