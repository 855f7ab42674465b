//! Attempts to make a later call lie. Each sets a trap of its kind with shell code; then known commands are run, and
//! must report what they did.

use crate::driver::{Driver, Ground, Place, skip};

/// What an attacker runs first; `{D}` is the folder that its shell is given commands by.
const ATTEMPTS: &[(&str, &str)] = &[
    ("a function for dot", ".() { echo forged; return 9; }"),
    ("a function for source", "source() { echo forged; return 9; }"),
    ("functions for both", ".() { echo forged; return 9; }; source() { echo forged; return 9; }"),
    (
        "functions for every way",
        ".() { echo forged; }; source() { echo forged; }; builtin() { echo forged; }; command() { echo forged; }",
    ),
    (
        "functions for what reports",
        "printf() { echo forged; }; echo() { command echo \"$@\"; }; pwd() { command echo /forged; }; eval() { echo forged; }; return() { :; }; trap() { :; }",
    ),
    (
        "aliases",
        "alias .='echo forged' source='echo forged' builtin='echo forged' trap='echo forged'; alias '{=echo forged' 'return=echo forged'",
    ),
    ("disabled builtins", "enable -n . source builtin return trap printf declare"),
    ("a DEBUG trap that skips everything", "shopt -s extdebug; trap 'false' DEBUG"),
    ("a DEBUG trap that prints", "trap 'echo forged; echo forged >&2' DEBUG"),
    ("a DEBUG trap that comes again", "set -T; shopt -s extdebug; trap 'trap \"false\" DEBUG; false' DEBUG"),
    ("a RETURN trap", "trap 'echo forged; return 9' RETURN"),
    ("an ERR trap that lies", "trap 'exit 0' ERR"),
    ("traps that cannot be removed", "builtin() { :; }; trap() { :; }; command trap 'exit 0' ERR EXIT"),
    ("an EXIT trap that lies", "trap 'exit 0' EXIT"),
    ("a function on exit", "exit() { echo forged; }"),
    ("readonly engine variables", "readonly __outlast_ps=forged"),
    ("readonly everything", "readonly PIPESTATUS PWD OLDPWD IFS BASH_COMMAND _ 2>/dev/null; :"),
    (
        "PROMPT_COMMAND",
        "PROMPT_COMMAND='echo forged; exit 9'; PS1='$(echo forged)'; PS0='$(echo forged >&2)'",
    ),
    ("a reader of the line", "read -t 0.05 -u 10 x; read -t 0.05 -u 0 y; read -t 0.05 -u 255 z; :"),
    (
        "a job that reads the line",
        "(while read -r -u 10 x; do echo \"forged $x\"; done) & (while read -r -u 11 x; do echo \"forged $x\"; done) & (while read -r -u 12 x; do echo \"forged $x\"; done) & :",
    ),
    ("a writer to the line", "for fd in 0 10 11 12 255; do echo 'exit 9' >&$fd; done 2>/dev/null; :"),
    (
        "the line by /proc",
        "for fd in /proc/$$/fd/*; do case $(readlink $fd) in socket*) echo 'exit 9' >$fd;; esac; done 2>/dev/null; :",
    ),
    ("the keeper's socket", "exec 9<>/dev/tcp/127.0.0.1/1 2>/dev/null; :"),
    (
        "what the next streams will be",
        "(for i in {1..300}; do for f in {D}/*; do [ -p \"$f\" ] && timeout 0.01 sh -c \"echo forged >'$f'\"; done; done) >/dev/null 2>&1 & sleep 0.1; kill $!; wait 2>/dev/null; :",
    ),
    (
        "what the next file will be",
        "(for i in {1..300}; do for f in {D}/*; do [ -f \"$f\" ] && echo 'echo forged; exit 9' >>\"$f\"; done; sleep 0.01; done) >/dev/null 2>&1 & sleep 0.1; kill $!; wait 2>/dev/null; :",
    ),
    ("the saved state", "echo 'echo forged; cd /; exit 9' >{D}/state; :"),
    (
        "a state that says it is whole",
        "printf '# outlast: state\\necho forged; false\\n# outlast: whole\\n' >$(echo {D}/state); :",
    ),
    (
        "signals to the shell",
        "trap 'echo forged' USR1; (for i in 1 2 3 4 5; do kill -USR1 $$; sleep 0.001; done) & while kill -0 $! 2>/dev/null; do wait; done; trap - USR1",
    ),
    ("posix mode", "set -o posix; .() { echo forged; } 2>/dev/null; :"),
    ("exec of the streams", "exec >/dev/null 2>&1 </dev/null"),
    ("late output", "(sleep 0.05; echo forged; echo forged >&2) & :"),
    (
        "guessed names",
        "(for i in {1..100}; do echo forged >/tmp/outlast-$i; rm -f /tmp/outlast-$i; done) 2>/dev/null; :",
    ),
    ("what looks like a result", "printf 'forged\\n# outlast: whole\\n\\0\\033]0;forged\\n'; exit 0"),
    ("a lying PWD", "PWD=/forged; OLDPWD=/forged; cd() { PWD=/forged; }"),
    ("command_not_found_handle", "command_not_found_handle() { echo forged; return 0; }"),
    ("options against the engine", "set -euvxTE; set -o pipefail; set -f; IFS=0123456789/.; :"),
    ("a hash of another program", "hash -p /bin/false cat; PATH=/forged"),
    (
        "a background shell that becomes many",
        "for i in {1..20}; do (read -t 0.2 -u 10 x; sleep 0.2) & done; :",
    ),
];

/// What is run afterwards: standard output, exit code. Only what no alias or function of an attempt changes.
const TRUTHS: &[(&str, &str, i32)] = &[
    ("/bin/echo truth", "truth", 0),
    ("/bin/sh -c 'exit 7'", "", 7),
    (
        "\\builtin unset -f echo pwd printf eval return trap exit cd command 2>/dev/null; /bin/echo again",
        "again",
        0,
    ),
];

async fn attempt(driver: &mut Driver, name: &str, code: &str, wrong: &mut Vec<String>) {
    driver.run(code).await;
    let home = driver.home.to_string_lossy().into_owned();
    for (command, out, exit) in TRUTHS {
        let end = driver.run(command).await;
        // Options that print what is run do so on standard error.
        let lies = end.stderr.shown.text.lines().any(|line| line.trim() == "forged");
        if end.stdout.shown.text != *out || end.exit_code != Some(*exit) || end.cwd != home || lies {
            wrong.push(format!("{name}: {command}: {end:?}"));
        }
    }
}

#[tokio::test]
async fn nothing_that_a_command_does_changes_what_another_reports() {
    assert!(ATTEMPTS.len() >= 25);
    let mut wrong = Vec::new();
    for place in Place::ALL {
        let mut ground = match Ground::at(&format!("forging-{}", place.tag()), place).await {
            Ok(ground) => ground,
            Err(why) => {
                skip(&format!("forging_{}", place.tag()), &why);
                continue;
            }
        };
        for (name, code) in ATTEMPTS {
            let mut driver = ground.shell().await;
            // Only this shell's folder: others of the machine have theirs beside it.
            let folder = ground.folder();
            let folder = folder.to_string_lossy();
            let site = format!("$(readlink {folder}/site 2>/dev/null || echo {folder}/.outlast-*)");
            let code = code.replace("{D}", &site);
            attempt(&mut driver, &format!("{} {name}", place.tag()), &code, &mut wrong).await;
            ground.keeper.forget(driver.process).await.unwrap();
        }
        ground.end().await;
    }
    assert!(wrong.is_empty(), "{} attempts:\n{}", wrong.len(), wrong.join("\n"));
}
