//! Reading JSON from outside, strictly: UTF-8, one value, no key twice at any depth, and an error that names
//! the field. Serde alone lets the last of two equal keys of a map win, in silence.

use protocol::Fault;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor},
};
use std::{collections::HashSet, fmt};

/// Reads a request's body.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Fault::invalid(format!("the body is not UTF-8 after byte {}", error.valid_up_to()))
    })?;
    serde_json::from_str::<Strict>(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Eof if text.trim().is_empty() => {
            Fault::invalid("the body is empty; this call takes a JSON object")
        }
        serde_json::error::Category::Data => Fault::invalid(format!("the body is refused: {error}")),
        _ => Fault::invalid(format!("the body is not JSON: {error}")),
    })?;
    // Serde would also take a list of a struct's fields in their order of declaration.
    if !text.trim_start().starts_with('{') {
        return Err(Fault::invalid("the body must be a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| Fault::invalid(sentence(&error.path().to_string(), &error.inner().to_string())))
}

/// `path` is serde's, with `.` for the whole; `message` still has its line and column.
fn sentence(path: &str, message: &str) -> String {
    let message = message.rfind(" at line ").map_or(message, |end| &message[..end]);
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    match (path, missing) {
        (".", Some(field)) => format!("the field `{field}` is missing"),
        (path, Some(field)) => format!("the field `{field}` of `{path}` is missing"),
        (".", None) => format!("the body is not what this call takes: {message}"),
        (path, None) => format!("the field `{path}` is not what this call takes: {message}"),
    }
}

/// Any JSON without a doubled key. Keeps nothing.
struct Strict;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        de.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_str<E>(self, _: &str) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
        while seq.next_element::<Strict>()?.is_some() {}
        Ok(Strict)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value::<Strict>()?;
            if let Some(key) = keys.replace(key) {
                return Err(A::Error::custom(format_args!("the key {key:?} appears twice in one object")));
            }
        }
        Ok(Strict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::{AnswerPermission, CreateSession, DeployAgent, SendMessage};

    #[test]
    fn errors_name_what_is_wrong() {
        let table: &[(&[u8], &str)] = &[
            (b"", "the body is empty"),
            (b"  ", "the body is empty"),
            (b"{", "not JSON"),
            (b"{} x", "not JSON"),
            (b"\xff{}", "not UTF-8 after byte 0"),
            (b"{}", "the field `agent` is missing"),
            (b"[]", "must be a JSON object"),
            (b"7", "must be a JSON object"),
            (b"[\"demo\"]", "must be a JSON object"),
            (b"{\"agent\":7}", "the field `agent` is not what this call takes"),
            (b"{\"agent\":\"../x\"}", "the field `agent` is not what this call takes: an agent name must be"),
            (b"{\"agent\":\"a\",\"agent\":\"b\"}", "\"agent\" appears twice"),
            (b"{\"agent\":\"a\",\"extraEnv\":{\"A\":\"1\",\"A\":\"2\"}}", "\"A\" appears twice"),
            (b"{\"agent\":\"a\",\"extraEnv\":{\"A\":1}}", "`extraEnv.A`"),
            (b"{\"agent\":\"a\",\"colour\":1}", "unknown field `colour`"),
            (b"{\"agent\":\"a\",\"mcpServers\":{\"s\":{}}}", "`mcpServers.s`"),
            (b"{\"agent\":\"\\ud800\"}", "not JSON"),
        ];
        for (body, expected) in table {
            let fault = decode::<CreateSession>(body).unwrap_err();
            assert!(
                fault.message.contains(expected),
                "{:?}: {}",
                String::from_utf8_lossy(body),
                fault.message
            );
            assert!(
                !fault.message.contains(" at line 1 column")
                    || fault.message.contains("not JSON")
                    || fault.message.contains("refused")
            );
        }
        let fault = decode::<DeployAgent>(br#"{"name":"a","files":[{"path":"x"}]}"#).unwrap_err();
        assert_eq!(fault.message, "the field `content` of `files[0]` is missing");
    }

    #[test]
    fn an_answer_to_a_permission_must_say_which() {
        assert!(decode::<AnswerPermission>(b"{}").is_err(), "an empty object must not cancel a request");
        assert_eq!(decode::<AnswerPermission>(br#"{"optionId":null}"#).unwrap().option_id, None);
    }

    #[test]
    fn deep_nesting_is_refused() {
        let body = format!("{{\"content\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(decode::<SendMessage>(body.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<SendMessage>(&bytes);
        }

        #[test]
        fn what_serde_takes_without_doubled_keys_is_taken(text in "\\PC{0,64}") {
            let body = serde_json::json!({"content": text, "id": text}).to_string();
            let message = decode::<SendMessage>(body.as_bytes()).unwrap();
            prop_assert_eq!(message.id, Some(text));
        }
    }
}
