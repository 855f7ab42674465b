//! What a fence lets through and what it refuses, as tables; that it never panics; and that it finds every command that
//! bash runs (`oracle.rs`).

mod oracle;

use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn fence(allow: &[&str], deny: &[&str]) -> Fence {
    let owned = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>();
    Fence::new(&owned(allow), &owned(deny)).unwrap()
}

fn check_all(fence: &Fence, passes: &[&str], refused: &[&str]) {
    for text in passes {
        assert_eq!(fence.judge(text), Ok(()), "{text:?} should pass");
    }
    for text in refused {
        assert!(fence.judge(text).is_err(), "{text:?} should be refused");
    }
}

#[test]
fn without_rules_nothing_is_refused_and_nothing_is_read() {
    let open = fence(&[], &[]);
    assert!(open.is_open());
    check_all(&open, &["rm -rf /", "((((", "'", "$("], &[]);
    assert_eq!(open.judge(&"(".repeat(TEXT_BYTES + 1)), Ok(()));
}

#[test]
fn a_denied_command_is_found_wherever_it_stands() {
    let refused = [
        "rm x",
        "rm",
        "/bin/rm x",
        "./rm x",
        "~/bin/rm x",
        "\"rm\" x",
        "'rm' x",
        "r'm' x",
        "r\\m x",
        "\\rm x",
        "r\\\nm x",
        "$'rm' x",
        "$'\\x72m' x",
        "$'\\162\\155' x",
        "$'\\u0072m' x",
        "$'rm\\0junk' x",
        "$\"rm\" x",
        "ls; rm x",
        "ls\nrm x",
        "ls & rm x",
        "ls && rm x",
        "ls || rm x",
        "ls | rm x",
        "ls |& rm x",
        "! rm x",
        "(rm x)",
        "( ls; ( rm x ) )",
        "{ rm x; }",
        "if rm x; then ls; fi",
        "if ls; then rm x; fi",
        "if ls; then ls; elif rm x; then ls; fi",
        "if ls; then ls; else rm x; fi",
        "while rm x; do ls; done",
        "until ls; do rm x; done",
        "for i in 1 2; do rm x; done",
        "for i\ndo rm x; done",
        "for i do rm x; done",
        "for ((i=0;i<2;i++)); do rm x; done",
        "for i in a; { rm x; }",
        "select i in a; do rm x; done",
        "for i in $(rm x); do ls; done",
        "case a in a) rm x;; esac",
        "case a in (a|b) ls;; *) rm x; esac",
        "case $(rm x) in a) ls;; esac",
        "case a in $(rm x)) ls;; esac",
        "case a in a) ls;& b) rm x;; esac",
        "f() { rm x; }",
        "function f { rm x; }",
        "function f() ( rm x )",
        "f () { ls; }; rm x",
        "time rm x",
        "time -p rm x",
        "ls | time -f %e rm x",
        "coproc rm x",
        "coproc { rm x; }",
        "echo $(rm x)",
        "echo \"$(rm x)\"",
        "echo `rm x`",
        "echo \"`rm x`\"",
        "echo `echo \\`rm x\\``",
        "echo $(echo $(echo \"$(rm x)\"))",
        "x=$(rm x)",
        "x=$(rm x) ls",
        "x[$(rm x)]=1",
        "x=(1 $(rm x))",
        "declare -a x=(1 $(rm x))",
        "echo ${y:-$(rm x)}",
        "echo \"${y:-\"$(rm x)\"}\"",
        "echo ${y/$(rm x)/b}",
        "echo $((1 + $(rm x)))",
        "(( $(rm x) ))",
        "[[ $(rm x) == a ]]",
        "[[ a =~ ^(a|b)$ && $(rm x) ]]",
        "cat <(rm x)",
        "tee >(rm x)",
        "ls > $(rm x)",
        "ls 2>\"$(rm x)\"",
        "ls < <(rm x)",
        "echo ${y:-<(rm x)}",
        "cat <<EOF\n$(rm x)\nEOF",
        "cat <<-EOF\n\t`rm x`\n\tEOF",
        "cat <<EOF\nit's $((1+$(rm x)))\nEOF",
        "cat <<EOF\nbody\nEOF\nrm x",
        "cat <<'EOF'\nbody\nEOF\nrm x",
        "cat <<A <<B\n1\nA\n2\nB\nrm x",
        "cat <<EOF; rm x\nbody\nEOF",
        "cat <<EOF\nno end\\\nEOF\nEOF\nrm x",
        "cat <<< \"$(rm x)\"",
        "echo a # it's\nrm x",
        "echo a#'\n'; rm x",
        "echo $(ls # it's )\n); rm x",
        "echo $(case a in a) rm x;; esac)",
        "x=1 rm x",
        "x=1 y=2 rm x",
        "x+=1 rm x",
        "x[1 + 1]=1 rm x",
        "x[\"a\"]=1 rm x",
        "2>/dev/null rm x",
        ">out rm x",
        "&>out rm x",
        "{fd}>out rm x",
        "<in rm x",
        "rm>out",
        "rm<in",
        "rm&",
        "rm;",
        "rm|cat",
        "{rm,-rf,x}",
        "{/bin/,}rm x",
        "r{m,n} x",
        "r{m..m} x",
        "/bin/r? x",
        "/???/rm x",
        "/bin/[r]m x",
        "/bin/r* x",
        "$unset rm x",
        "$(true) rm x",
        "$a/rm x",
        "\"$HOME\"/bin/rm x",
    ];
    let passes = [
        "ls",
        "",
        "  # rm x",
        "echo rm",
        "echo 'rm x'",
        "echo \"rm x\"",
        "echo '$(rm x)'",
        "echo \"\\$(rm x)\"",
        "cat <<'EOF'\n$(rm x)\nrm x\nEOF",
        "cat <<\\EOF\n`rm x`\nEOF",
        "grep rm file",
        "git rm x",
        "firm x",
        "rmdir x",
        "./rm.sh",
        "echo $rm",
        "$x y",
        "x=rm",
        "rm=1",
        "case rm in rm) ls;; esac",
        "for rm in rm; do ls; done",
        "[[ rm == rm ]]",
        "ls > rm",
        "cat < rm",
        "cat <<rm\nrm x\nrm",
        "echo {rm,x}",
        "{ls,rm} x",
        "git commit -m \"$(cat <<'EOF'\nfix :) it's (rm x\nEOF\n)\"",
        "awk '{ print $1 }' rm",
        "((rm = 1))",
        "echo $((rm + 1))",
        "echo ${rm:-x}",
    ];
    // Not refused for the rule, but because a policy applies and nobody can say what they are.
    let unreadable = [
        "echo 'rm",
        "echo \"rm",
        "echo $(ls",
        "echo `ls",
        "( ls",
        "ls )",
        "{ ls;",
        "if ls; then ls",
        "fi",
        "ls; done",
        "echo \\$(ls)x",
        "((ls); (ls))",
        "echo $((ls) )",
        "a ( b",
        "echo a(b)",
        "[[ a",
        "case a",
        "case a in b",
        "echo ${",
        "x=(1",
        "for i in a; do ls",
        ";;",
        "}",
        "echo \"${x:-'}'}\"",
        "$[1+1]",
        "echo ${ rm x; }",
        "cat <<$(x)\na",
    ];
    let deny = fence(&[], &["rm"]);
    check_all(&deny, &passes, &refused);
    for text in refused {
        let refusal = deny.judge(text).unwrap_err();
        assert_eq!(refusal.rule(), Some("rm"), "{text:?} is refused with {refusal}");
    }
    for text in unreadable {
        let refusal = deny.judge(text).unwrap_err();
        assert!(matches!(refusal, Refusal::Unreadable { .. }), "{text:?} is refused with {refusal}");
    }
}

#[test]
fn a_denied_command_is_found_inside_those_that_run_it() {
    let refused = [
        "env rm x",
        "env -i A=1 rm x",
        "env -u A -C /tmp rm x",
        "env --chdir /tmp rm x",
        "env -S 'rm x'",
        "env -vS'rm x'",
        "env --split-string='rm x'",
        "/usr/bin/env rm x",
        "./env rm x",
        "nice rm x",
        "nice -n 5 rm x",
        "nice -n5 rm x",
        "nice -5 rm x",
        "nohup rm x",
        "setsid -f rm x",
        "timeout 5 rm x",
        "timeout -k 1 -s KILL 5 rm x",
        "timeout --signal KILL 5 rm x",
        "timeout \"$t\" rm x",
        "stdbuf -oL rm x",
        "stdbuf -o L rm x",
        "ionice -c 3 rm x",
        "command rm x",
        "command -p rm x",
        "command -- rm x",
        "builtin rm x",
        "exec rm x",
        "exec -a ls rm x",
        "sudo rm x",
        "sudo -u root rm x",
        "sudo -E A=1 rm x",
        "sudo -- rm x",
        "doas -u root rm x",
        "busybox rm x",
        "chroot / rm x",
        "ls | xargs rm",
        "xargs -n 1 -P 4 rm",
        "xargs -I{} rm {}",
        "xargs -0 -- rm",
        "flock f rm x",
        "flock f -c 'rm x'",
        "watch -n 1 rm x",
        "watch 'rm x'",
        "find . -exec rm {} \\;",
        "find . -exec rm {} +",
        "find . -name a -execdir /bin/rm {} ';'",
        "find . -ok ls {} \\; -exec rm {} \\;",
        "bash -c 'rm x'",
        "sh -c 'ls; rm x'",
        "/bin/bash -lc 'rm x'",
        "bash -e -o pipefail -c 'rm x'",
        "bash --norc -c 'rm x'",
        "bash -c \"rm $file\"",
        "eval rm x",
        "eval 'rm x'",
        "eval \"rm $file\"",
        "eval r'm' x",
        "trap 'rm x' EXIT",
        "alias l='rm x'",
        "alias l=rm",
        "su -c 'rm x'",
        "su root -c 'rm x'",
        "runuser -u me rm x",
        "env nice nohup timeout 5 bash -c 'sudo sh -c \"eval rm x\"'",
        "$v env rm x",
        "strace -o f rm x",
        "time -f %e -o f rm x | cat",
        "find . -exec sh -c 'rm {}' \\;",
    ];
    let passes = [
        "command -v rm",
        "command -V rm",
        "env",
        "env A=rm ls",
        "env -u rm ls",
        "timeout 5 ls rm",
        "xargs echo rm",
        "bash rm.sh",
        "find . -name rm",
        "find rm -exec ls {} \\;",
        "sudo -l",
        "trap - EXIT",
        "trap",
        "alias rm",
        "eval",
        "eval \"$x\"",
        "bash",
        "bash -c \"$x\"",
        ". rm",
        "source ./rm",
        "nice",
        "xargs",
        "exec 3>&1",
    ];
    check_all(&fence(&[], &["rm"]), &passes, &refused);
}

#[test]
fn a_deny_rule_with_more_words_sees_past_options() {
    let deny = fence(&[], &["git push", "npm run deploy*", "docker * --privileged", "/opt/tool"]);
    let refused = [
        "git push",
        "git push origin main",
        "git -C /x push",
        "git --no-pager push",
        "git -c a=b --git-dir /x push -f",
        "git $opts push",
        "git 'push'",
        "npm run deploy",
        "npm run deploy:all",
        "npm --silent run deploy",
        "docker run --privileged x",
        "docker run -it --privileged x",
        "/opt/tool x",
    ];
    let passes = [
        "git pull",
        "git commit -m push",
        "git status",
        "git",
        "git log push",
        "npm run build",
        "npm run",
        "docker ps",
        "docker run x --privileged",
        "tool x",
        "git $x",
    ];
    check_all(&deny, &passes, &refused);
}

#[test]
fn an_allow_list_lets_nothing_else_through() {
    let allow = fence(&["ls", "git status", "npm run *", "cd", "bash ./build.sh", "find", "echo"], &[]);
    let passes = [
        "ls",
        "ls -la \"$x\" *",
        "/bin/ls",
        "/usr/bin/ls x",
        "git status",
        "git status -s",
        "cd x && ls",
        "x=1",
        "x=1 ls",
        "echo $(ls)",
        "npm run build",
        "npm run \"$x\" -- y",
        "env A=1 ls",
        "timeout 5 git status",
        "nice -n 5 ls",
        "command ls",
        "eval 'ls; cd x'",
        "if ls; then cd x; fi",
        "f() { ls; }",
        "bash ./build.sh a",
        "find \"$dir\" -name '*.rs'",
        "find . -exec ls {} \\;",
        "[[ -f x ]] && ls",
        "((x++))",
        "{ ls; } > x",
        "",
        "# x",
        "l{s,s} x",
        "time ls",
        "for i in 1 2; do ls $i; done",
    ];
    let refused = [
        "rm x",
        "ls; rm x",
        "./ls",
        "/tmp/ls",
        "../bin/ls",
        "~/ls",
        "git push",
        "git",
        "git -C x status",
        "npm run",
        "npm install",
        "$x",
        "\"$x\" y",
        "$(ls)",
        "`ls`",
        "l? x",
        "{ls,cd}x",
        "eval \"$x\"",
        "eval \"ls $x\"",
        "bash -c ls",
        "bash ./other.sh",
        "bash",
        "echo ls | bash",
        ". ./x",
        "source x",
        "sudo ls",
        "env $x",
        "env rm",
        "./env ls",
        "timeout 5 rm x",
        "xargs ls",
        "find . -exec rm {} \\;",
        "find $x",
        "find . \"$x\" rm {} ';'",
        "find . -exec sh -c 'ls {}' \\;",
        "f",
        "PATH=/tmp ls",
        "PATH=/tmp",
        "LD_PRELOAD=x ls",
        "env PATH=/tmp ls",
        "BASH_ENV=x ls",
        "GIT_SSH_COMMAND=x git status",
        "PROMPT_COMMAND=x",
        "echo \"${x@P}\"",
        "trap 'ls' EXIT",
        "alias x=ls",
        "exec",
        "test -f x",
        "true",
        "git $x",
        "\"git status\"",
        "ls(",
        "echo 'ls",
    ];
    check_all(&allow, &passes, &refused);
    let refusal = allow.judge("cd x; rm -rf \"$y\"  &&\n ls").unwrap_err();
    assert_eq!(refusal.to_string(), "`rm -rf \"$y\"` is refused: no rule of the allow list matches it");
}

#[test]
fn deny_comes_before_allow_and_two_fences_must_both_pass() {
    let both = fence(&["git *", "ls"], &["git push"]);
    check_all(&both, &["git status", "ls"], &["git push", "git -C x push", "rm"]);
    let operator = fence(&[], &["curl"]);
    let session = fence(&["ls", "curl"], &[]);
    let combined = operator.and(session);
    check_all(&combined, &["ls"], &["curl x", "git status"]);
    assert!(fence(&[], &[]).and(fence(&[], &[])).is_open());
    let everything = fence(&["*"], &["rm"]);
    check_all(&everything, &["ls", "sudo ls", "bash -c ls"], &["rm x", "$x", "bash x.sh", "echo 'x"]);
}

#[test]
fn a_refusal_is_a_sentence_with_the_command_and_the_rule() {
    let deny = fence(&[], &["rm"]);
    let refusal = deny.judge("ls && sudo rm -rf / && ls").unwrap_err();
    assert_eq!(refusal.to_string(), "`sudo rm -rf /` is refused by the deny rule `rm`");
    assert_eq!(refusal.command(), Some("sudo rm -rf /"));
    let refusal = deny.judge("ls\necho 'x").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the command is refused because a policy applies and line 2 cannot be read for certain: a single quote is not closed"
    );
    let long = deny.judge(&format!("rm {}", "x".repeat(5_000))).unwrap_err();
    assert!(long.to_string().len() < 200);
}

#[test]
fn a_rule_is_plain_words() {
    for bad in ["", "  ", "rm; ls", "a | b", "$x", "'rm'", "a\\b", "a > b", "(a)"] {
        assert!(Fence::new(&[bad.to_owned()], &[]).is_err(), "{bad:?}");
    }
    assert!(Fence::new(&["x".repeat(RULE_WORD_BYTES + 1)], &[]).is_err());
    assert!(Fence::new(&["x ".repeat(RULE_WORDS + 1)], &[]).is_err());
    assert_eq!(Fence::new(&vec!["x".to_owned(); RULES + 1], &[]), Err(BadRule::TooMany));
}

#[test]
fn hostile_sizes_are_judged_in_time_without_a_deep_stack() {
    const BYTES: usize = 128 << 10;
    let deny = fence(&[], &["rm", "git push"]);
    let repeat = |piece: &str| piece.repeat(BYTES / piece.len());
    let texts = [
        "(".repeat(1 << 20),
        "( ".repeat(1 << 19),
        repeat("$("),
        repeat("\"$("),
        repeat("${x:-"),
        repeat("$(("),
        repeat("`"),
        repeat("{"),
        repeat("{a,"),
        repeat("{a,b}"),
        repeat("if "),
        repeat("case a in a) "),
        repeat("x=("),
        repeat("="),
        repeat("x[a="),
        repeat("\\\n"),
        repeat("<<a "),
        repeat("<<a\n"),
        repeat("echo hello; "),
        repeat("git -a "),
        repeat("*"),
        repeat("[[ "),
        repeat("((1)) "),
        repeat("eval "),
        repeat("env "),
        repeat("sudo "),
        repeat("! "),
        repeat("$x "),
        repeat("f() "),
        repeat("time "),
        repeat("bash -c "),
        repeat("find -exec "),
        format!("cat > x <<'EOF'\n{}EOF\n", repeat("a line of text\n")),
        format!("cat > x <<EOF\n{}EOF\n", repeat("a $line of text\n")),
        format!("echo '{}'", repeat("x")),
    ];
    // On a thread whose stack is a quarter of what the server's have.
    let judge = move || {
        for text in &texts {
            let start = Instant::now();
            let verdict = deny.judge(text);
            let took = start.elapsed();
            assert!(took < Duration::from_secs(5), "{:?}… took {took:?}: {verdict:?}", &text[..20]);
        }
    };
    std::thread::Builder::new().stack_size(512 * 1024).spawn(judge).unwrap().join().unwrap();
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = fence(&["ls", "git *"], &["rm"]).judge(&text);
    }

    #[test]
    fn no_shell_like_text_panics(
        pieces in prop::collection::vec(prop::sample::select(oracle::PIECES.to_vec()), 0..60)
    ) {
        let text = pieces.concat();
        let _ = fence(&["ls", "git *"], &["rm"]).judge(&text);
        let _ = fence(&[], &["c1", "c2 x"]).judge(&text);
    }

    /// A command that is refused alone is refused among others, however they are joined.
    #[test]
    fn what_is_denied_stays_denied(
        before in prop::sample::select(vec!["ls", "ls -a", "x=1 ls", "(ls)", "echo 'a b'", "echo \"$(ls)\""]),
        joint in prop::sample::select(vec![";", "&&", "||", "|", "&", "\n"]),
        wrap in prop::sample::select(vec!["@", "(@)", "{ @; }", "echo $(@)", "echo \"`@`\"", "if @; then ls; fi", "sh -c '@'"]),
    ) {
        let text = format!("{before} {joint} {}", wrap.replace('@', "rm x"));
        prop_assert!(fence(&[], &["rm"]).judge(&text).is_err(), "{}", text);
    }
}
