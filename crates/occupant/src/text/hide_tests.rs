//! What is hidden, what stays, and that no split of a text changes either.

use super::{super::pattern::BadPattern, *};
use proptest::prelude::*;

fn secrets() -> Secrets {
    let given = Redactor::new([
        ("db".to_owned(), "hunter22-long".to_owned()),
        ("deep".to_owned(), "hunter22-longer-yet".to_owned()),
    ]);
    let patterns = [
        Pattern::new("acme-token", "acme_", Follow::Word { least: 12 }).unwrap(),
        Pattern::new("acme-blob", "AcmeSig=", Follow::Base64 { least: 8 }).unwrap(),
        Pattern::new("codename", "bluebird", Follow::Nothing).unwrap(),
    ];
    Secrets::with_patterns(&given, Shapes::Known, &patterns, &["/data/k/.outlast-".to_owned()])
}

fn split(text: &str, size: usize) -> String {
    let (mut hide, mut out) = (Hide::new(secrets()), String::new());
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.ceil_char_boundary(size.min(rest.len()));
        hide.push(&rest[..length], &mut out);
        rest = &rest[length..];
    }
    hide.finish(&mut out);
    out
}

fn samples() -> Vec<(String, String)> {
    let body = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0";
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\nbnNz\n-----END OPENSSH PRIVATE KEY-----";
    let same = |text: &str| (text.to_owned(), text.to_owned());
    vec![
        (format!("t=ghp_{body} end"), "t=[REDACTED:github-token] end".to_owned()),
        (format!("(sk-ant-api03-{body})"), "([REDACTED:anthropic-key])".to_owned()),
        (format!("sk-{body}"), "[REDACTED:api-key]".to_owned()),
        ("id AKIAIOSFODNN7EXAMPLE.".to_owned(), "id [REDACTED:aws-key-id].".to_owned()),
        (
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P!".to_owned(),
            "[REDACTED:jwt]!".to_owned(),
        ),
        (format!("key:\n{key}\nafter"), "key:\n[REDACTED:private-key]\nafter".to_owned()),
        ("postgres://u:p4ss@host/db".to_owned(), "postgres://u:[REDACTED:url-password]@host/db".to_owned()),
        ("is hunter22-long here".to_owned(), "is [REDACTED:db] here".to_owned()),
        ("is hunter22-longer-yet here".to_owned(), "is [REDACTED:deep] here".to_owned()),
        (format!("/data/k/.outlast-{0}/{0}: line 1: x", "abcdefgh2345"), "bash: line 1: x".to_owned()),
        ("a acme_0123-4567_89ab-more.".to_owned(), "a [REDACTED:acme-token].".to_owned()),
        ("AcmeSig=ab+/cd==&x=1".to_owned(), "[REDACTED:acme-blob]&x=1".to_owned()),
        ("Operation bluebirds".to_owned(), "Operation [REDACTED:codename]s".to_owned()),
        same("acme_short my_acme_0123456789abcdef"),
        same("password: string"),
        same("task-runner sk-1 ghp_short risk-averse-long-word-with-many-letters-in-it"),
        same("http://localhost:8080/path@x https://u:$PASS@h http://a:b c"),
        same("-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"),
        same("eyJhbGciOiJIUzI1NiJ9 and eyJ.eyJ"),
        same("AKIAIOSFODNN7EXAMPLETOOLONG xAKIAIOSFODNN7EXAMPLE"),
        same("hunter22-lon"),
    ]
}

#[test]
fn shapes_are_told_from_words() {
    for (given, expected) in samples() {
        assert_eq!(split(&given, given.len()), expected, "{given}");
        for size in 1..8 {
            assert_eq!(split(&given, size), expected, "{given} by {size}");
        }
    }
    assert_eq!(
        Secrets::new(&Redactor::default(), Shapes::Off, &[]).text("AKIAIOSFODNN7EXAMPLE"),
        "AKIAIOSFODNN7EXAMPLE"
    );
}

#[test]
fn patterns_stay_when_the_known_shapes_are_off() {
    let patterns = [Pattern::new("acme", "acme_", Follow::Alnum { least: 4 }).unwrap()];
    let secrets = Secrets::with_patterns(&Redactor::default(), Shapes::Off, &patterns, &[]);
    assert_eq!(secrets.text("AKIAIOSFODNN7EXAMPLE acme_abcd"), "AKIAIOSFODNN7EXAMPLE [REDACTED:acme]");
}

#[test]
fn a_pattern_has_a_label_a_beginning_and_a_length() {
    for label in ["", "Acme", "a b", "a]", &"a".repeat(65)] {
        assert_eq!(Pattern::new(label, "acme_", Follow::Nothing), Err(BadPattern::Label), "{label}");
    }
    for starts in ["", "ab", "a b c", "é!", &"a".repeat(129)] {
        assert_eq!(Pattern::new("a", starts, Follow::Nothing), Err(BadPattern::Starts), "{starts}");
    }
    for least in [0, 1_025] {
        assert_eq!(Pattern::new("a", "acme_", Follow::Word { least }), Err(BadPattern::Follow));
    }
}

#[test]
fn a_key_that_never_ends_is_not_shown() {
    let text = format!("-----BEGIN RSA PRIVATE KEY-----\n{}", "secret\n".repeat(20));
    assert_eq!(split(&text, 7), "[REDACTED:private-key]");
}

proptest! {
    #[test]
    fn any_split_leaves_the_same(
        parts in proptest::collection::vec(prop_oneof![
            proptest::sample::select(samples().into_iter().map(|(given, _)| given).collect::<Vec<_>>()),
            "[ -~é\n]{0,10}",
            proptest::sample::select(vec!["eyJ".to_owned(), "://".into(), "ghp_".into(), "-----BEGIN ".into(), "hunter22".into()]),
        ], 0..12),
        size in 1_usize..40,
    ) {
        let whole = parts.concat();
        prop_assert_eq!(split(&whole, size), split(&whole, whole.len()));
    }
}
