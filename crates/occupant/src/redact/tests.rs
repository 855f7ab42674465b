use super::*;
use proptest::prelude::*;

fn redactor(secrets: &[&str]) -> Redactor {
    Redactor::new(secrets.iter().enumerate().map(|(n, value)| (format!("S{n}"), (*value).to_owned())))
}

fn delta(kind: &str, text: &str) -> Raw {
    let text = serde_json::to_string(text).unwrap();
    let update =
        format!(r#"{{ "sessionUpdate":"{kind}", "content":{{"type":"text","text":{text}}}, "n" : 1.50}}"#);
    Raw::parse(update).unwrap()
}

fn text_of(update: &Raw) -> String {
    let value: serde_json::Value = update.read().unwrap();
    value["content"]["text"].as_str().unwrap().to_owned()
}

#[test]
fn plain_text_and_encoded_json() {
    let redactor = redactor(&["hunter22", "hunter22-long", "a\"b\\c\nd", "short", "content", "message"]);
    for (text, expected) in [
        ("nothing here", "nothing here"),
        ("x hunter22 y", "x [REDACTED:S0] y"),
        ("hunter22-long hunter22", "[REDACTED:S1] [REDACTED:S0]"),
        ("a\"b\\c\nd", "[REDACTED:S2]"),
        ("in JSON: a\\\"b\\\\c\\nd", "in JSON: [REDACTED:S2]"),
        ("short is too short", "short is too short"),
    ] {
        assert_eq!(redactor.text(text), expected);
    }
    for (json, expected) in [
        (r#"{"a":"hunter22","b":[1,"x"]}"#, r#"{"a":"[REDACTED:S0]","b":[1,"x"]}"#),
        (r#"{"hunter22":1}"#, r#"{"[REDACTED:S0]":1}"#),
        (r#"["\u0068unter22"]"#, r#"["[REDACTED:S0]"]"#),
        (r#"["a\"b\\c\nd"]"#, r#"["[REDACTED:S2]"]"#),
        (r#"["{\"k\":\"a\\\"b\\\\c\\nd\"}"]"#, r#"["{\"k\":\"[REDACTED:S2]\"}"]"#),
        (r#"["\ud800 hunter22"]"#, "[\"\u{fffd} [REDACTED:S0]\"]"),
        // Words of the protocol stay, also those that a secret is a part of.
        (
            r#"{"content":"x","sessionUpdate":"agent_message_chunk"}"#,
            r#"{"content":"x","sessionUpdate":"agent_message_chunk"}"#,
        ),
        (r#"{"x":"the content"}"#, r#"{"x":"the [REDACTED:S4]"}"#),
    ] {
        assert_eq!(redactor.json(json), expected, "{json}");
        assert!(serde_json::from_str::<&serde_json::value::RawValue>(&redactor.json(json)).is_ok());
    }
}

#[test]
fn an_id_is_no_secret_unless_it_is_one() {
    let id = "019a8000-0000-7000-8000-000000000001";
    assert_eq!(redactor(&["019a8000"]).json(&format!("[\"{id}\"]")), format!("[\"{id}\"]"));
    assert_eq!(redactor(&[id]).json(&format!("[\"{id}\"]")), "[\"[REDACTED:S0]\"]");
}

#[test]
fn structure_that_reads_like_a_secret_stays() {
    let text = r#"{"a":"b","c":"d"}"#;
    assert_eq!(redactor(&[r#"b","c":"d"#]).json(text), text);
}

#[test]
fn harmless_deltas_are_released_byte_for_byte() {
    let mut redactor = redactor(&["secret-value"]);
    let sent = [
        delta("agent_message_chunk", "a sec"),
        delta("agent_message_chunk", "ond one"),
        delta("agent_message_chunk", ""),
    ];
    let mut out = Vec::new();
    redactor.update(sent[0].clone(), 10, |update| out.push(update));
    assert!(out.is_empty(), "its end could begin a secret");
    assert_eq!(redactor.held_from(), Some(10));
    redactor.update(sent[1].clone(), 20, |update| out.push(update));
    redactor.update(sent[2].clone(), 30, |update| out.push(update));
    assert_eq!(out, sent);
    assert_eq!(redactor.held_from(), None);
}

#[test]
fn other_updates_and_kinds_flush() {
    let mut redactor = redactor(&["secret-value"]);
    let other = Raw::parse(r#"{"sessionUpdate":"tool_call","title":"secret-value"}"#.to_owned()).unwrap();
    let mut out = Vec::new();
    for update in [delta("agent_message_chunk", "sec"), delta("agent_thought_chunk", "ret-value sec"), other]
    {
        redactor.update(update, 0, |update| out.push(update));
    }
    assert_eq!(out.len(), 3);
    assert_eq!(text_of(&out[0]), "sec");
    assert_eq!(text_of(&out[1]), "ret-value sec");
    assert_eq!(out[2].as_str(), r#"{"sessionUpdate":"tool_call","title":"[REDACTED:S0]"}"#);
}

#[test]
fn what_is_held_is_bounded() {
    let mut redactor = redactor(&["secret-value"]);
    let mut out = Vec::new();
    for text in std::iter::once("x secret").chain(std::iter::repeat_n("", 10_000)) {
        redactor.update(delta("agent_message_chunk", text), 7, |update| out.push(update));
        assert!(redactor.stream.held.len() < 100);
    }
    assert_eq!(redactor.held_from(), Some(7));
    redactor.update(delta("agent_message_chunk", "-value y"), 8, |update| out.push(update));
    assert_eq!(out.iter().map(text_of).collect::<String>(), "x [REDACTED:S0] y");
}

#[test]
fn without_secrets_nothing_is_touched() {
    let mut redactor = redactor(&["tiny"]);
    assert!(redactor.is_empty());
    let update = delta("agent_message_chunk", "tiny");
    let mut out = Vec::new();
    redactor.update(update.clone(), 0, |update| out.push(update));
    assert_eq!(out, [update]);
}

/// Few letters, so that secrets begin, nest, overlap and fail all the time.
fn letters() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[ab\"\\\\é\n]{0,60}").unwrap()
}

proptest! {
    #[test]
    fn any_split_gives_the_redacted_whole(
        secrets in proptest::collection::vec("[ab\"\\\\é\n]{6,9}", 1..4),
        text in letters(),
        planted in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..4),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let names: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let mut text: Vec<char> = text.chars().collect();
        for (which, place) in planted {
            let at = place.index(text.len() + 1);
            text.splice(at..at, secrets[which.index(secrets.len())].chars());
        }
        let whole: String = text.iter().collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut redactor = redactor(&names);
        let mut out = String::new();
        for pair in cuts.windows(2) {
            let part: String = text[pair[0]..pair[1]].iter().collect();
            redactor.update(delta("agent_message_chunk", &part), 0, |update| out.push_str(&text_of(&update)));
            for secret in &secrets {
                prop_assert!(!out.contains(secret.as_str()), "{out:?} shows {secret:?}");
            }
        }
        redactor.flush(|update| out.push_str(&text_of(&update)));
        prop_assert_eq!(out, redactor.text(&whole).into_owned());
    }

    #[test]
    fn redacted_json_stays_json(secrets in proptest::collection::vec("[ab\"\\\\:,{}]{6,8}", 1..4), text in "\\PC{0,80}", plant in any::<prop::sample::Index>()) {
        let names: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let value = serde_json::json!({ "k": [format!("{text}{}", secrets[plant.index(secrets.len())])], text: 1 });
        let json = redactor(&names).json(&value.to_string()).into_owned();
        prop_assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
    }
}
