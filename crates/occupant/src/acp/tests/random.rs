//! Any split of the bytes, and any bytes at all.

use super::*;

/// A conversation's output with every kind of line in it.
fn script() -> Vec<String> {
    let update = |text: &str| {
        let params = json!({"sessionId": "s", "update": delta(text)});
        json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string()
    };
    vec![
        "banner".to_owned(),
        r#"{"jsonrpc":"2.0","id":"1.1","result":{"protocolVersion":1}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":"2.2","result":{"sessionId":"s"}}"#.to_owned(),
        update("hé sk-"),
        update("secret-1 llo"),
        String::new(),
        r#"{"jsonrpc":"2.0","id":9,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{},"options":[]}}"#.to_owned(),
        "{junk".to_owned(),
        r#"{"jsonrpc":"2.0","id":"x","method":"fs/none"}"#.to_owned(),
        update("bye sk-sec"),
    ]
}

fn run(parts: &[&[u8]]) -> (Vec<String>, u64) {
    let redactor = Redactor::new([("KEY".to_owned(), "sk-secret-1".to_owned())]);
    let mut story = Story::begin(Begin { redactor, ..begin() });
    for part in parts {
        story.step(|acp, cx| acp.output(part, cx));
    }
    let consumed = story.acp.consumed();
    story.step(Acp::eof);
    (story.told, consumed)
}

fn any_line() -> impl Strategy<Value = String> {
    let id = prop_oneof![
        Just("3".to_owned()),
        Just("\"2.3\"".to_owned()),
        Just("null".to_owned()),
        Just("{}".to_owned()),
        "[0-9]{1,3}"
    ];
    let method =
        prop_oneof![Just("session/update"), Just("session/request_permission"), Just("fs/x"), Just("")];
    let params = prop_oneof![
        Just(
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"}}}"#
        ),
        Just(r#"{"sessionId":"s","toolCall":{},"options":[{"optionId":"a","name":"b","kind":"c"}]}"#),
        Just(
            r#"{"sessionId":"s","update":{"sessionUpdate":"config_option_update","configOptions":[1,{"id":2}]}}"#
        ),
        Just("null"),
        Just("[]"),
        Just("\"\\ud800\""),
    ];
    let result = prop_oneof![
        Just(r#"{"stopReason":"end_turn","usage":{"inputTokens":-1}}"#),
        Just("null"),
        Just("[]"),
        Just("{\"stopReason\":7}")
    ];
    prop_oneof![
        (id.clone(), method.clone(), params.clone()).prop_map(|(id, method, params)| format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        )),
        (method, params).prop_map(|(method, params)| format!(
            r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#
        )),
        (id.clone(), result)
            .prop_map(|(id, result)| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)),
        id.prop_map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601}}}}"#)),
        "\\PC{0,40}",
    ]
}

#[derive(Debug, Clone)]
enum Act {
    Line(String),
    Bytes(Vec<u8>),
    Prompt,
    Cancel,
    Answer(Seq, String),
    Configure(SessionConfig),
    Pass(u64),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => any_line().prop_map(Act::Line),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Act::Bytes),
        2 => Just(Act::Prompt),
        1 => Just(Act::Cancel),
        1 => (0..20_u64, "[ab]").prop_map(|(seq, option)| Act::Answer(seq, option)),
        1 => proptest::option::of("[ab]").prop_map(|mode| Act::Configure(SessionConfig { mode, ..no_config() })),
        1 => (0..100_u64).prop_map(Act::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_split_leaves_the_same(cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..30), ends in any::<bool>()) {
        let text = script().join(if ends { "\n" } else { "\r\n" });
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(run(&parts), run(&[bytes]));
    }

    #[test]
    fn nothing_stops_the_machine(acts in proptest::collection::vec(any_act(), 0..60), handshake in any::<bool>(), offers in any::<bool>()) {
        let mut story = Story::begin(begin());
        if handshake {
            story.reply(json!({"protocolVersion": 1}));
            story.reply(if offers { json!({"sessionId": "s", "modes": {}}) } else { json!({"sessionId": "s"}) });
        }
        let (mut prompts, mut changes) = (0, 0);
        for act in acts {
            match act {
                Act::Line(line) => story.line(&line),
                Act::Bytes(bytes) => story.step(|acp, cx| acp.output(&bytes, cx)),
                Act::Prompt => { prompts += 1; story.prompt(1); }
                Act::Cancel => story.step(|acp, cx| acp.cancel(Reason::Cancelled, cx)),
                Act::Answer(seq, option_id) => {
                    let _ = story.step(|acp, cx| acp.answer(seq, Answer::Selected { option_id }, key(), cx));
                }
                Act::Configure(config) => { changes += 1; story.step(|acp, cx| acp.configure(config, key(), cx)); }
                Act::Pass(secs) => story.pass(secs),
            }
        }
        story.step(Acp::eof);
        story.step(Acp::exited);
        let count = |what: &str| story.told.iter().filter(|line| line.starts_with(what)).count();
        let recorded = |what: &str| {
            let word = |line: &String| line.split(' ').map(str::to_owned).find(|word| !["agent", "key"].contains(&word.as_str()) && word.parse::<Seq>().is_err());
            story.told.iter().filter(|line| word(line).as_deref() == Some(what)).count()
        };
        prop_assert_eq!(count("say ended "), prompts, "one end for each prompt");
        prop_assert_eq!(count("say configured "), changes, "one answer for each change");
        prop_assert_eq!(count("say unusable "), 1);
        prop_assert!(count("say ready ") <= 1);
        prop_assert_eq!(recorded("permission"), recorded("answered"), "every request is closed");
    }
}
