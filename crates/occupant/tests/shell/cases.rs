//! The torture suite: cases as data, each in a shell of its own, each followed by a probe that the session is clean.
//!
//! `{W}` stands for the shell's first folder. The table says nothing about where the shell is, so that other
//! transports can run it too.

use crate::driver::{Driver, Ground, Place, skip};

/// What a stream must show.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Show {
    Is(&'static str),
    Has(&'static str),
    /// So many characters of a longer text.
    Chars(usize),
    Any,
}
use Show::{Any, Chars, Has, Is};

/// A command, its standard output and error, its exit code.
pub(crate) type Step = (&'static str, Show, Show, i32);

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) steps: &'static [Step],
    /// Where the shell is in the end.
    pub(crate) cwd: &'static str,
}

const fn case(name: &'static str, steps: &'static [Step]) -> Case {
    Case { name, steps, cwd: "{W}" }
}

const fn moved(name: &'static str, cwd: &'static str, steps: &'static [Step]) -> Case {
    Case { name, steps, cwd }
}

const NONE: Show = Is("");

const STATE: &[Case] = &[
    case("exit code", &[("exit 3", NONE, NONE, 3), ("echo hi", Is("hi"), NONE, 0)]),
    case("exit zero", &[("exit", NONE, NONE, 0)]),
    case("exit 256 wraps", &[("exit 259", NONE, NONE, 3)]),
    case(
        "exit keeps exports",
        &[
            ("export A=1 B='x y'", NONE, NONE, 0),
            ("exit 3", NONE, NONE, 3),
            ("echo $A $B", Is("1 x y"), NONE, 0),
        ],
    ),
    case(
        "exit keeps what it set itself",
        &[("export A=1; exit 4", NONE, NONE, 4), ("echo $A", Is("1"), NONE, 0)],
    ),
    moved("exit keeps the folder", "/tmp", &[("cd /tmp", NONE, NONE, 0), ("exit 3", NONE, NONE, 3)]),
    moved("exit keeps the folder it went to", "/usr", &[("cd /usr; exit 3", NONE, NONE, 3)]),
    case(
        "a state larger than a queue survives its shell",
        &[
            ("x=$(head -c 300000 /dev/zero | tr '\\0' a); echo ${#x}", Is("300000"), NONE, 0),
            ("exit 3", NONE, NONE, 3),
            ("echo ${#x}", Is("300000"), NONE, 0),
            ("kill -KILL $$", NONE, NONE, 137),
            ("echo ${#x}", Is("300000"), NONE, 0),
        ],
    ),
    case(
        "a state survives commands that cannot change it",
        &[
            ("y=kept; export Z=too", NONE, NONE, 0),
            ("true", NONE, NONE, 0),
            ("test -e /nowhere", NONE, NONE, 1),
            ("echo a && echo b", Is("a\nb"), NONE, 0),
            ("kill -KILL $$", NONE, NONE, 137),
            ("echo $y $Z", Is("kept too"), NONE, 0),
        ],
    ),
    case(
        "exit keeps functions",
        &[("f() { echo f $1; }", NONE, NONE, 0), ("exit 1", NONE, NONE, 1), ("f 2", Is("f 2"), NONE, 0)],
    ),
    case(
        "exit keeps aliases",
        &[("alias g='echo alias'", NONE, NONE, 0), ("exit 1", NONE, NONE, 1), ("g", Is("alias"), NONE, 0)],
    ),
    case(
        "exit keeps options",
        &[
            ("set -f; shopt -s nullglob", NONE, NONE, 0),
            ("exit 1", NONE, NONE, 1),
            ("echo *; shopt -q nullglob; echo $?; set +f", Is("*\n0"), NONE, 0),
        ],
    ),
    case(
        "exit keeps plain variables and arrays",
        &[
            ("a=(1 '2 3'); declare -A m=([k]=v); n=7", NONE, NONE, 0),
            ("exit 1", NONE, NONE, 1),
            ("echo ${a[1]} ${m[k]} $n", Is("2 3 v 7"), NONE, 0),
        ],
    ),
    case("exit in a function", &[("f() { exit 5; }; f; echo no", NONE, NONE, 5)]),
    case("exit in a subshell stays there", &[("(exit 4); echo $?", Is("4"), NONE, 0)]),
    case(
        "exit trap runs once",
        &[("trap 'echo bye' EXIT; exit 2", Is("bye"), NONE, 2), ("echo on", Is("on"), NONE, 0)],
    ),
    case(
        "exec a program",
        &[
            ("export A=1", NONE, NONE, 0),
            ("exec echo gone", Is("gone"), NONE, 0),
            ("echo back $A", Is("back 1"), NONE, 0),
        ],
    ),
    case("exec with a status", &[("exec sh -c 'exit 6'", NONE, NONE, 6)]),
    case("exec of what is not there", &[("exec no-such-program", NONE, Has("not found"), 127)]),
    case("exec bash", &[("exec bash", NONE, NONE, 0)]),
    case(
        "kill -9",
        &[("export A=1", NONE, NONE, 0), ("kill -9 $$", NONE, NONE, 137), ("echo $A", Is("1"), NONE, 0)],
    ),
    case("kill", &[("kill $$", NONE, NONE, 143)]),
    case("kill -INT", &[("kill -INT $$; echo after", Any, NONE, 130)]),
    case("segfault of the shell", &[("kill -SEGV $$", NONE, NONE, 139)]),
    case(
        "set -e and a failure",
        &[
            ("export A=1; set -e", NONE, NONE, 0),
            ("false; echo no", NONE, NONE, 1),
            ("echo on $A", Is("on 1"), NONE, 0),
            ("set +e", NONE, NONE, 0),
        ],
    ),
    case(
        "set -e in one command",
        &[("set -e; false; echo no", NONE, NONE, 1), ("set +e; echo on", Is("on"), NONE, 0)],
    ),
    case(
        "set -e and a pipe",
        &[("set -eo pipefail; false | true; echo no", NONE, NONE, 1), ("set +e +o pipefail", NONE, NONE, 0)],
    ),
    case(
        "exec >file",
        &[
            ("exec >out; echo in file", NONE, NONE, 0),
            ("echo visible; cat out", Is("visible\nin file"), NONE, 0),
        ],
    ),
    case("exec >&-", &[("exec >&-", NONE, NONE, 0), ("echo visible", Is("visible"), NONE, 0)]),
    case("exec 2>&-", &[("exec 2>&-", NONE, NONE, 0), ("echo err >&2", NONE, Is("err"), 0)]),
    case("exec 2>&1", &[("exec 2>&1; echo a >&2", Is("a"), NONE, 0), ("echo b >&2", NONE, Is("b"), 0)]),
    case(
        "exec <file",
        &[
            ("echo data >in; exec <in; read x; echo $x", Is("data"), NONE, 0),
            ("read y; echo $?", Is("1"), NONE, 0),
        ],
    ),
    case("exec <&-", &[("exec <&-", NONE, NONE, 0), ("cat; echo $?", Is("0"), NONE, 0)]),
    case(
        "own descriptors stay",
        &[
            ("exec 5>five", NONE, NONE, 0),
            ("echo to five >&5", NONE, NONE, 0),
            ("exec 5>&-; cat five", Is("to five"), NONE, 0),
        ],
    ),
    case(
        "a saved stdout does not last",
        &[
            ("exec 7>&1; echo x >&7", Is("x"), NONE, 0),
            ("echo y >&7; echo z", Is("z"), Any, 0),
            ("exec 7>&-", NONE, NONE, 0),
        ],
    ),
    case(
        "all descriptors closed",
        &[
            ("for i in {3..64}; do eval \"exec $i>&-\" 2>/dev/null; done; echo x", Any, Any, 0),
            ("echo on", Is("on"), NONE, 0),
        ],
    ),
    case("ulimit on files", &[("ulimit -f 0", NONE, NONE, 0), ("echo on", Is("on"), NONE, 0)]),
    case(
        "ulimit on descriptors",
        &[("ulimit -n 32; echo x", Is("x"), NONE, 0), ("echo on", Is("on"), NONE, 0)],
    ),
    case("hardly any descriptors", &[("ulimit -n 4", NONE, NONE, 0), ("echo on", Is("on"), NONE, 0)]),
    case(
        "ulimit on processor time of a child",
        &[("(ulimit -t 1; while :; do :; done); echo $?", Is("137"), Any, 0)],
    ),
    case(
        "bad TMPDIR",
        &[("export TMPDIR=/no/such", NONE, NONE, 0), ("cat <<E\nhere\nE", Is("here"), NONE, 0)],
    ),
    case(
        "empty PATH",
        &[
            ("PATH=", NONE, NONE, 0),
            ("echo on", Is("on"), NONE, 0),
            ("ls", NONE, Has("ls"), 127),
            ("PATH=/usr/bin:/bin", NONE, NONE, 0),
        ],
    ),
    case(
        "unset PATH and HOME",
        &[("unset PATH HOME", NONE, NONE, 0), ("PATH=/usr/bin:/bin; echo on", Is("on"), NONE, 0)],
    ),
    case(
        "set -x",
        &[("set -x", NONE, NONE, 0), ("echo hi", Is("hi"), Is("++ echo hi"), 0), ("set +x", NONE, Any, 0)],
    ),
    case(
        "set -v",
        &[("set -v", NONE, NONE, 0), ("echo hi", Is("hi"), Is("echo hi"), 0), ("set +v", NONE, Any, 0)],
    ),
    case(
        "set -n",
        &[("export A=1", NONE, NONE, 0), ("set -n", NONE, NONE, 0), ("echo $A", Is("1"), NONE, 0)],
    ),
    case(
        "set -u",
        &[
            ("set -u", NONE, NONE, 0),
            ("echo $nothing", NONE, Has("unbound"), 1),
            ("echo on; set +u", Is("on"), NONE, 0),
        ],
    ),
    case(
        "set -o posix",
        &[("set -o posix", NONE, NONE, 0), ("echo on", Is("on"), NONE, 0), ("set +o posix", NONE, NONE, 0)],
    ),
    case(
        "POSIXLY_CORRECT",
        &[
            ("POSIXLY_CORRECT=1", NONE, NONE, 0),
            ("echo on", Is("on"), NONE, 0),
            ("unset POSIXLY_CORRECT", NONE, NONE, 0),
        ],
    ),
    case("set -r", &[("set -r", NONE, NONE, 0), ("cd /; cd - >/dev/null; echo on", Is("on"), NONE, 0)]),
    case(
        "set -C",
        &[
            ("set -C; echo 1 >f", NONE, NONE, 0),
            ("echo 2 >f", NONE, Has("overwrite"), 1),
            ("set +C", NONE, NONE, 0),
        ],
    ),
    case(
        "set -m",
        &[("set -m; sleep 0.01 & wait; echo done", Is("done"), NONE, 0), ("set +m", NONE, NONE, 0)],
    ),
    case("IFS", &[("IFS=/", NONE, NONE, 0), ("echo on", Is("on"), NONE, 0), ("unset IFS", NONE, NONE, 0)]),
    case("PS1 and PS4", &[("PS1='evil> '; PS4='$(echo evil >&2)'", NONE, NONE, 0)]),
    case(
        "PROMPT_COMMAND",
        &[("PROMPT_COMMAND='echo evil; echo evil >&2; exit 9'", NONE, NONE, 0), ("true", NONE, NONE, 0)],
    ),
    case(
        "BASH_ENV",
        &[
            ("echo 'echo evil' >e; export BASH_ENV=$PWD/e", NONE, NONE, 0),
            ("bash -c 'echo child'", Is("evil\nchild"), NONE, 0),
            ("exit 1", NONE, NONE, 1),
            ("unset BASH_ENV", NONE, NONE, 0),
        ],
    ),
    case(
        "the status is carried",
        &[
            ("false", NONE, NONE, 1),
            ("echo $?", Is("1"), NONE, 0),
            ("(exit 42)", NONE, NONE, 42),
            ("echo $?", Is("42"), NONE, 0),
        ],
    ),
    case(
        "PIPESTATUS is carried",
        &[("false | true | (exit 3)", NONE, NONE, 3), ("echo ${PIPESTATUS[@]}", Is("1 0 3"), NONE, 0)],
    ),
    case(
        "the last job is carried",
        &[("sleep 0.01 & p=$!", NONE, NONE, 0), ("[ $! = $p ]; wait $!; echo $?", Is("0"), NONE, 0)],
    ),
    case("functions are carried", &[("f() { echo $#; }", NONE, NONE, 0), ("f a b", Is("2"), NONE, 0)]),
    case(
        "aliases are carried",
        &[
            ("alias ll='echo long'", NONE, NONE, 0),
            ("ll x", Is("long x"), NONE, 0),
            ("unalias ll", NONE, NONE, 0),
        ],
    ),
    case(
        "a function named cd",
        &[("cd() { echo no; }", NONE, NONE, 0), ("cd /", Is("no"), NONE, 0), ("unset -f cd", NONE, NONE, 0)],
    ),
    case(
        "functions named as builtins",
        &[
            (
                "echo() { printf 'E %s\\n' \"$*\"; }; printf() { builtin printf \"$@\"; }; trap() { :; }; set() { :; }",
                NONE,
                NONE,
                0,
            ),
            ("echo x", Is("E x"), NONE, 0),
            ("unset -f echo printf trap set", NONE, NONE, 0),
        ],
    ),
    case(
        "aliases of words",
        &[
            ("alias echo='echo A' if='echo no' trap=false builtin=false", NONE, NONE, 0),
            ("echo x", Is("A x"), NONE, 0),
            ("unalias -a", NONE, NONE, 0),
        ],
    ),
    case("return outside of a function", &[("return 7; echo no", NONE, NONE, 7)]),
    case("break outside of a loop", &[("break; echo on", Is("on"), Any, 0)]),
    case("set arguments", &[("set -- a b; echo $#", Is("2"), NONE, 0)]),
    case("shift and getopts", &[("set -- -a x; getopts a o; echo $o", Is("a"), NONE, 0)]),
    case(
        "readonly",
        &[
            ("readonly R=1", NONE, NONE, 0),
            ("R=2; echo no", NONE, Has("readonly"), 1),
            ("echo $R", Is("1"), NONE, 0),
        ],
    ),
    case("umask", &[("umask 077", NONE, NONE, 0), ("exit 1", NONE, NONE, 1), ("umask", Is("0077"), NONE, 0)]),
    case(
        "SECONDS and RANDOM",
        &[("SECONDS=100; [ $SECONDS -ge 100 ] && echo $((RANDOM < 32768))", Is("1"), NONE, 0)],
    ),
    case(
        "a trap on USR1",
        &[("trap 'echo got' USR1; kill -USR1 $$", Is("got"), NONE, 0), ("trap - USR1", NONE, NONE, 0)],
    ),
    case(
        "a trap on ERR is run once and ends with its command",
        &[("trap 'echo E' ERR; false", Is("E"), NONE, 1), ("false", NONE, NONE, 1)],
    ),
    case("a trap on DEBUG", &[("trap 'echo D' DEBUG; true", Is("D"), NONE, 0), ("echo x", Is("x"), NONE, 0)]),
    case("a trap on RETURN", &[("trap 'echo R' RETURN; f() { :; }; f; trap - RETURN", NONE, NONE, 0)]),
    case(
        "coproc",
        &[(
            "coproc cat; echo hi >&${COPROC[1]}; read x <&${COPROC[0]}; echo $x; kill $COPROC_PID; wait 2>/dev/null",
            Is("hi"),
            Any,
            -1,
        )],
    ),
];

const SYNTAX: &[Case] = &[
    case("a comment", &[("# nothing", NONE, NONE, 0), ("echo a # b", Is("a"), NONE, 0)]),
    case("nothing", &[("", NONE, NONE, 0), ("   ", NONE, NONE, 0), ("\n\n", NONE, NONE, 0)]),
    case("nothing keeps the status", &[("false", NONE, NONE, 1), ("true", NONE, NONE, 0)]),
    case("a heredoc", &[("cat <<EOF\none\n  two $((1+1))\nEOF", Is("one\n  two 2"), NONE, 0)]),
    case("a quoted heredoc", &[("cat <<'EOF'\n$x `y`\nEOF\necho after", Is("$x `y`\nafter"), NONE, 0)]),
    case(
        "a heredoc without its end",
        &[("cat <<EOF\nonly", Is("only"), Has("here-document"), 0), ("echo on", Is("on"), NONE, 0)],
    ),
    case("a here-string", &[("cat <<<'a b'", Is("a b"), NONE, 0)]),
    case("trailing semicolon", &[("echo a;", Is("a"), NONE, 0)]),
    case("trailing ampersand", &[("echo a >f &", NONE, NONE, 0), ("wait; cat f", Is("a"), NONE, 0)]),
    case("trailing newlines", &[("echo a\n\n\n", Is("a"), NONE, 0)]),
    case("trailing backslash", &[("echo a \\", Is("a \\"), NONE, 0)]),
    case("carriage returns", &[("echo a\r", Is("a\r"), NONE, 0)]),
    case(
        "an open double quote",
        &[("echo \"open", NONE, Has("unexpected EOF"), 2), ("echo on", Is("on"), NONE, 0)],
    ),
    case("an open single quote", &[("echo 'open", NONE, Has("unexpected EOF"), 2)]),
    case("an open backquote", &[("echo `open", NONE, Has("unexpected EOF"), 2)]),
    case("an open brace", &[("{ echo a", NONE, Has("syntax error"), 2)]),
    case("an open parenthesis", &[("( echo a", NONE, Has("syntax error"), 2)]),
    case("an open substitution", &[("echo $(ls", NONE, Has("unexpected EOF"), 2)]),
    case("an open if", &[("if true; then", NONE, Has("syntax error"), 2)]),
    case("an open loop", &[("while true; do", NONE, Has("syntax error"), 2)]),
    case("a lone brace", &[("}", NONE, Has("syntax error"), 2), (")", NONE, Has("syntax error"), 2)]),
    case("a lone keyword", &[("done", NONE, Has("syntax error"), 2), ("fi", NONE, Has("syntax error"), 2)]),
    case("what comes before an error is run", &[("echo a\necho \"b", Is("a"), Has("unexpected EOF"), 2)]),
    case(
        "an error names bash and its line",
        &[("no-such-command", NONE, Is("bash: line 1: no-such-command: command not found"), 127)],
    ),
    case("several lines", &[("for i in 1 2\ndo\n  echo $i\ndone", Is("1\n2"), NONE, 0)]),
    case("continued lines", &[("echo a \\\n b", Is("a b"), NONE, 0)]),
    case("and or not", &[("true && false || echo c; ! true", Is("c"), NONE, 1)]),
    case("a case statement", &[("case abc in a*) echo yes;; esac", Is("yes"), NONE, 0)]),
    case("arithmetic", &[("((1 > 2)); echo $? $((2**10))", Is("1 1024"), NONE, 0)]),
    case("process substitution", &[("cat <(echo a) <(echo b)", Is("a\nb"), NONE, 0)]),
    case("a function over lines", &[("g()\n{\n echo g\n}\ng", Is("g"), NONE, 0)]),
    case("special characters", &[("echo '$`\\\"!*?[]{}~#&;|<>'", Is("$`\\\"!*?[]{}~#&;|<>"), NONE, 0)]),
    case("history characters", &[("echo 'a!b' \"c!d\" !e", Is("a!b c!d !e"), NONE, 0)]),
    case("unicode", &[("é=1; echo 'ü日本🎉'", Is("ü日本🎉"), Any, 0)]),
    case("a dash first", &[("-n", NONE, Has("not found"), 127)]),
    case(
        "what a line looks like",
        &[("echo '. /dev/null </dev/null'", Is(". /dev/null </dev/null"), NONE, 0)],
    ),
    case("command not executable", &[("/", NONE, Has("directory"), 126)]),
];

const TERMINAL: &[Case] = &[
    case("stdin is empty", &[("cat", NONE, NONE, 0), ("read x; echo $?", Is("1"), NONE, 0)]),
    case("no terminal", &[("test -t 0 || test -t 1 || test -t 2; echo $?", Is("1"), NONE, 0)]),
    case("no controlling terminal", &[("(: </dev/tty) 2>/dev/null; echo $?", Is("1"), NONE, 0)]),
    case("tty says so", &[("tty", Is("not a tty"), NONE, 1)]),
    case("a prompt fails", &[("read -p 'sure? ' x || echo no", Is("no"), NONE, 0)]),
    case("select fails", &[("select x in a b; do echo $x; done; echo $?", Any, Any, 0)]),
    case(
        "python sees no terminal",
        &[(
            "python3 -c 'import sys; print(sys.stdin.isatty(), repr(sys.stdin.read()))'",
            Is("False ''"),
            NONE,
            0,
        )],
    ),
    case(
        "a password prompt fails",
        &[("python3 -c 'import getpass; getpass.getpass()' 2>/dev/null; echo $?", Any, NONE, 0)],
    ),
    case("not interactive", &[("case $- in *i*) echo yes;; *) echo no;; esac", Is("no"), NONE, 0)]),
    case("stdout can be named", &[("echo a >/dev/stdout; echo b >/dev/stderr", Is("a"), Is("b"), 0)]),
    case("tee to stderr", &[("echo a | tee /dev/stderr", Is("a"), Is("a"), 0)]),
];

const OUTPUT: &[Case] = &[
    case("both streams", &[("echo o; echo e >&2", Is("o"), Is("e"), 0)]),
    case("no final newline", &[("printf abc", Is("abc"), NONE, 0)]),
    case("one final newline goes", &[("printf 'a\\n\\n\\n'", Is("a\n\n"), NONE, 0)]),
    case("leading newlines stay", &[("printf '\\n\\na'", Is("\n\na"), NONE, 0)]),
    case("spaces stay", &[("printf '  a  \\n'", Is("  a  "), NONE, 0)]),
    case("carriage return", &[("printf 'a\\rb'", Is("a\rb"), NONE, 0)]),
    case("NUL is spelt", &[("printf 'a\\0b'", Is("a\\x00b"), NONE, 0)]),
    case("broken UTF-8 is spelt", &[("printf '\\xff\\xfe'", Is("\\xff\\xfe"), NONE, 0)]),
    case("colours go", &[("printf '\\033[1;31mred\\033[0m'", Is("red"), NONE, 0)]),
    case("titles go", &[("printf '\\033]0;title\\007text'", Is("text"), NONE, 0)]),
    case(
        "an open title costs its line",
        &[("printf '\\033]0;title\\nnext'", Is("\nnext"), NONE, 0), ("echo clean", Is("clean"), NONE, 0)],
    ),
    case("device strings go", &[("printf '\\033Pq\\033\\\\\\033_x\\033\\\\ok'", Is("ok"), NONE, 0)]),
    case("C1 goes", &[("printf '\\302\\2331mok'", Is("ok"), NONE, 0)]),
    case("character sets go", &[("printf '\\033(Bok\\016\\017'", Is("ok"), NONE, 0)]),
    case(
        "a cut sequence does not reach the next",
        &[("printf 'a\\033['", Is("a"), NONE, 0), ("printf '31mb'", Is("31mb"), NONE, 0)],
    ),
    case(
        "a long line is cut to the budget",
        &[("head -c 300000 /dev/zero | tr '\\0' x", Chars(100_000), NONE, 0)],
    ),
    case("many lines are cut to the budget", &[("seq 1 100000", Chars(100_000), NONE, 0)]),
    case("a flood on stderr", &[("seq 1 100000 >&2", NONE, Chars(100_000), 0)]),
    case(
        "both at once",
        &[(
            "for i in {1..2000}; do echo out$i; echo err$i >&2; done | tail -1",
            Is("out2000"),
            Has("err2000"),
            0,
        )],
    ),
    case(
        "a megabyte on both",
        &[(
            "head -c 1000000 /dev/zero | tr '\\0' a & head -c 1000000 /dev/zero | tr '\\0' b >&2; wait",
            Chars(100_000),
            Chars(100_000),
            0,
        )],
    ),
    case(
        "what looks like an end",
        &[("echo '# outlast: whole'; echo __outlast_ps", Is("# outlast: whole\n__outlast_ps"), NONE, 0)],
    ),
    case("output of a subshell", &[("(echo a; echo b >&2)", Is("a"), Is("b"), 0)]),
    case("binary stays bounded", &[("head -c 100000 /dev/urandom", Any, NONE, 0)]),
];

const JOBS: &[Case] = &[
    case(
        "a job does not hold the call",
        &[("sleep 5 & echo now", Is("now"), NONE, 0), ("kill %1; wait", NONE, Any, 0)],
    ),
    case(
        "a job that holds the streams",
        &[("(sleep 5; echo late) & echo now", Is("now"), NONE, 0), ("kill $!; wait", NONE, Any, 0)],
    ),
    case(
        "late output is in no result",
        &[
            ("(sleep 0.1; echo late; echo late >&2) & echo now", Is("now"), NONE, 0),
            ("sleep 0.3; echo next", Is("next"), NONE, 0),
            ("wait; echo third", Is("third"), NONE, 0),
        ],
    ),
    case(
        "a job is not killed by its late output",
        &[
            ("(sleep 0.05; echo late; echo alive >f) & :", NONE, NONE, 0),
            ("wait; cat f", Is("alive"), NONE, 0),
        ],
    ),
    case("job messages stay out", &[("sleep 0.01 &", NONE, NONE, 0), ("sleep 0.1; true", NONE, NONE, 0)]),
    case("jobs and wait", &[("(exit 7) & p=$!", NONE, NONE, 0), ("wait $p; echo $?", Is("7"), NONE, 0)]),
    case(
        "a daemon",
        &[
            ("setsid sh -c 'sleep 5' >/dev/null 2>&1 & echo now", Is("now"), NONE, 0),
            ("pkill -P $$ -f 'sleep 5'; echo on", Is("on"), Any, 0),
        ],
    ),
    case("a double fork", &[("(sleep 0.2 &) ; echo now", Is("now"), NONE, 0)]),
    case(
        "nohup",
        &[
            ("nohup sleep 0.1 >/dev/null 2>&1 & echo now", Is("now"), NONE, 0),
            ("wait; echo $?", Is("0"), NONE, 0),
        ],
    ),
    case("disown", &[("sleep 0.2 & disown; echo now", Is("now"), NONE, 0)]),
    case(
        "a flooding job",
        &[
            // How much of the flood comes before the word, and so whether the budget shows it, is chance.
            ("yes & echo now", Any, NONE, 0),
            ("echo next", Is("next"), NONE, 0),
            // It was held still at most while a line was on its way.
            (
                "for i in {1..300}; do read -r _ _ s _ </proc/$!/stat; [ $s = T ] || break; sleep 0.01; done; [ $s = T ] || echo runs",
                Is("runs"),
                NONE,
                0,
            ),
            // A bash that has forked and not become its program yet swallows milder signals.
            ("kill -9 $!; wait $! 2>/dev/null; echo done", Is("done"), Any, 0),
        ],
    ),
    case("a job reads nothing", &[("cat & wait; echo done", Is("done"), NONE, 0)]),
    case("a pipeline in the background", &[("seq 1 3 | tail -1 >f & wait; cat f", Is("3"), NONE, 0)]),
    case(
        "a job survives the shell",
        &[("(sleep 0.2; echo alive >f) & exit 2", NONE, NONE, 2), ("sleep 0.4; cat f", Is("alive"), NONE, 0)],
    ),
    case(
        "a loop in the background",
        &[
            ("while :; do sleep 0.01; done & echo $((1+1))", Is("2"), NONE, 0),
            ("echo on", Is("on"), NONE, 0),
            ("kill $!; wait 2>/dev/null; :", NONE, Any, 0),
        ],
    ),
];

const FOLDERS: &[Case] = &[
    moved("cd", "/tmp", &[("cd /tmp; pwd", Is("/tmp"), NONE, 0)]),
    case("cd in a subshell", &[("(cd /tmp)", NONE, NONE, 0)]),
    moved("cd back", "{W}", &[("cd /tmp", NONE, NONE, 0), ("cd -", Is("{W}"), NONE, 0)]),
    case("PWD lies", &[("PWD=/nowhere; true", NONE, NONE, 0), ("cd .; cd {W}", Any, Any, -1)]),
    case("cd fails", &[("cd /no/such/folder", NONE, Has("No such file"), 1)]),
    moved("a newline in the name", "{W}/a\nb", &[("mkdir $'a\\nb'; cd $'a\\nb'", NONE, NONE, 0)]),
    moved(
        "quotes in the name",
        "{W}/it's \"q\" $x",
        &[("mkdir 'it'\\''s \"q\" $x'; cd 'it'\\''s \"q\" $x'", NONE, NONE, 0), ("exit 1", NONE, NONE, 1)],
    ),
    moved(
        "a name that ends as the removed do",
        "{W}/x (deleted)",
        &[("mkdir 'x (deleted)'; cd 'x (deleted)'", NONE, NONE, 0)],
    ),
    moved("pushd", "/", &[("pushd / >/dev/null", NONE, NONE, 0)]),
    case("popd", &[("pushd / >/dev/null", NONE, NONE, 0), ("popd >/dev/null", NONE, NONE, 0)]),
    case("a removed folder", &[("mkdir d; cd d; rmdir ../d", NONE, NONE, 0), ("cd {W}", NONE, NONE, 0)]),
    case(
        "a removed folder and an exit",
        &[("mkdir d; cd d; rmdir ../d; exit 3", NONE, Any, 3), ("cd {W}", NONE, NONE, 0)],
    ),
];

const LONG: &[Case] = &[
    case(
        "a thousand variables",
        &[
            ("for i in {1..1000}; do export V$i=$i; done", NONE, NONE, 0),
            ("echo $V1000", Is("1000"), NONE, 0),
            ("exit 1", NONE, NONE, 1),
            ("echo $V999", Is("999"), NONE, 0),
        ],
    ),
    case(
        "deep recursion",
        &[
            ("FUNCNEST=500; f() { f; }; f; echo no", NONE, Has("nesting"), 1),
            ("unset FUNCNEST; echo on", Is("on"), NONE, 0),
        ],
    ),
    case("a long argument list", &[("set -- {1..50000}; echo $#", Is("50000"), NONE, 0)]),
    case(
        "a fork of many",
        &[("for i in {1..50}; do (exit $((i%2))) & done; wait; echo $?", Is("0"), NONE, 0)],
    ),
];

fn shown(show: Show, text: &str, home: &str) -> bool {
    let filled = |text: &str| text.replace("{W}", home);
    match show {
        Is(expected) => text == filled(expected),
        Has(part) => text.contains(&filled(part)),
        Chars(count) => text.chars().count() == count,
        Any => true,
    }
}

async fn check(driver: &mut Driver, case: &Case, wrong: &mut Vec<String>) {
    let home = driver.home.to_string_lossy().into_owned();
    let name = case.name;
    for (command, out, err, code) in case.steps {
        let end = driver.run(&command.replace("{W}", &home)).await;
        let (stdout, stderr) = (&end.stdout.shown.text, &end.stderr.shown.text);
        let right = shown(*out, stdout, &home)
            && shown(*err, stderr, &home)
            && (*code == -1 || end.exit_code == Some(*code));
        if !right {
            let cut = |text: &str| text.chars().take(300).collect::<String>();
            wrong.push(format!(
                "{name}: {command:?}\n  out {:?}\n  err {:?}\n  code {:?} {:?} {:?}\n  wanted {out:?} {err:?} {code}",
                cut(stdout), cut(stderr), end.exit_code, end.outcome, end.hint
            ));
        }
    }
    let probe = driver.run("echo ok; pwd").await;
    let cwd = case.cwd.replace("{W}", &home);
    let expected = format!("ok\n{cwd}");
    let clean = probe.stdout.shown.text == expected && probe.stderr.shown.text.is_empty();
    if !clean || probe.exit_code != Some(0) || probe.cwd != cwd {
        wrong.push(format!("{name}: the probe says {probe:?}"));
    }
}

async fn family(name: &str, cases: &[Case]) {
    let near = async {
        let host = run(name, cases, Place::Host).await;
        [host, run(name, cases, Place::Sandbox).await, run(name, cases, Place::Project).await].concat()
    };
    let far = async { [run(name, cases, Place::Ssh).await, run(name, cases, Place::Docker).await].concat() };
    let (near, far) = tokio::join!(near, far);
    let wrong = [near, far].concat();
    assert!(wrong.is_empty(), "{} of {name}:\n{}", wrong.len(), wrong.join("\n"));
}

async fn run(name: &str, cases: &[Case], place: Place) -> Vec<String> {
    let (tag, mut wrong) = (place.tag(), Vec::new());
    let mut ground = match Ground::at(&format!("{tag}-{name}"), place).await {
        Ok(ground) => ground,
        Err(why) => {
            skip(&format!("torture_{name}_{tag}"), &why);
            return wrong;
        }
    };
    for case in cases {
        let mut driver = ground.shell().await;
        check(&mut driver, case, &mut wrong).await;
        ground.keeper.forget(driver.process).await.unwrap();
    }
    ground.end().await;
    wrong.into_iter().map(|text| format!("{tag}: {text}")).collect()
}

#[tokio::test]
async fn shell_state() {
    family("state", STATE).await;
}

#[tokio::test]
async fn syntax() {
    family("syntax", SYNTAX).await;
}

#[tokio::test]
async fn no_terminal() {
    family("terminal", TERMINAL).await;
}

#[tokio::test]
async fn output() {
    family("output", OUTPUT).await;
}

#[tokio::test]
async fn background_jobs() {
    family("jobs", JOBS).await;
}

#[tokio::test]
async fn folders() {
    family("folders", FOLDERS).await;
}

#[tokio::test]
async fn long_ones() {
    family("long", LONG).await;
    let mut ground = Ground::new("large").await;
    let mut driver = ground.shell().await;
    let lines: String = (0..20_000).map(|line| format!("x={line}\n")).collect();
    let end = driver.run(&format!("{lines}echo $x")).await;
    assert_eq!((end.exit_code, &*end.stdout.shown.text), (Some(0), "19999"));
    let end = driver.run(&format!("x='{}'; echo ${{#x}}", "y".repeat(1 << 20))).await;
    assert_eq!((end.exit_code, &*end.stdout.shown.text), (Some(0), "1048576"));
    assert_eq!(driver.run("echo ok").await.stdout.shown.text, "ok");
    ground.end().await;
}

#[test]
fn there_are_enough() {
    let families = [STATE, SYNTAX, TERMINAL, OUTPUT, JOBS, FOLDERS, LONG];
    let count: usize = families.iter().map(|cases| cases.len()).sum();
    assert!(count >= 150, "{count}");
}
