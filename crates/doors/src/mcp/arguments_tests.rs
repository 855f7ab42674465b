//! Arguments as agents get them wrong.

use super::*;
use crate::mcp::tools;
use serde_json::json;

fn object(value: &Value) -> Option<JsonObject> {
    value.as_object().cloned()
}

fn create(value: &Value, own: Option<&Own>) -> Result<OpenShell, Fault> {
    read::<Create>(object(value))?.shell(own)
}

fn own(place: LocalPlace) -> Own {
    let env = BTreeMap::from([("HOME".to_owned(), "/srv/mine".to_owned())]);
    Own { cwd: "/srv/mine/project".to_owned(), env, umask: Some(0o022), place }
}

#[test]
fn what_is_wrong_is_named() {
    for (given, part) in [
        (json!({}), "the argument `transport` is missing"),
        (json!({"transport": "telnet"}), "`transport` is not what this tool takes: unknown variant `telnet`"),
        (
            json!({"transport": "local", "cmd": "x"}),
            "there is no argument `cmd`: expected one of `transport`",
        ),
        (json!({"transport": "local", "cwd": 5}), "`cwd` is not what this tool takes"),
        (
            json!({"transport": "local", "host": "x"}),
            "`host` belongs to the transport ssh; this one is local",
        ),
        (json!({"transport": "ssh", "place": "host"}), "`place` belongs to the transport local"),
        (json!({"transport": "ssh"}), "`host` is missing"),
        (json!({"transport": "ssh", "host": ""}), "`host` is missing"),
        (json!({"transport": "ssh", "host": "x", "port": 65536}), "`port` is not what"),
        (json!({"transport": "ssh", "host": "x", "password": "p", "key_path": "k"}), "not both"),
        (json!({"transport": "docker", "user": "u"}), "`container` is missing"),
        (json!({"transport": "local", "place": "moon"}), "`place` is not what"),
        (
            json!({"transport": "local", "output_budget": {"lines": 1}}),
            "there is no `lines` in the argument `output_budget`",
        ),
        (
            json!({"transport": "local", "output_budget": {"keep": {"mode": "some"}}}),
            "`output_budget.keep.mode`",
        ),
        (
            json!({"transport": "local", "output_budget": {"grep": {}}}),
            "`pattern` of the argument `output_budget.grep` is missing",
        ),
    ] {
        let fault = create(&given, None).unwrap_err();
        assert!(fault.message.contains(part), "{given}: {}", fault.message);
        assert_eq!(fault.code, Code::InvalidRequest, "{given}");
    }
}

#[test]
fn commands_are_checked() {
    let exec = |value: Value| read::<Exec>(object(&value)).and_then(Exec::command);
    for (given, part) in [
        (json!({"session_id": "1_local", "command": "a\u{0}b"}), "NUL"),
        (json!({"session_id": "1_local", "command": "x", "timeout_secs": 0}), "1 to 3600"),
        (json!({"session_id": "1_local", "command": "x", "timeout_secs": 3601}), "1 to 3600"),
        (json!({"session_id": "1_local", "command": "x", "timeout_secs": -1}), "`timeout_secs`"),
        (json!({"session_id": "1_local", "command": "x", "yield_secs": 4000}), "0 to 3600"),
        (json!({"session_id": "1_local", "command": "x", "stdin": "yes"}), "`stdin`"),
        (json!({"session_id": "1 local", "command": "x"}), "`session_id`"),
        (json!({"session_id": 1, "command": "x"}), "`session_id`"),
        (json!({"session_id": "1_local"}), "`command` is missing"),
    ] {
        let fault = exec(given.clone()).unwrap_err();
        assert!(fault.message.contains(part), "{given}: {}", fault.message);
    }
    let (_, command) =
        exec(json!({"session_id": "1_local", "command": "x", "stdin": "open", "timeout_secs": null}))
            .unwrap();
    assert!(command.open_stdin && command.timeout_secs.is_none());
}

#[test]
fn signals_have_names() {
    let number = |name: &str| {
        let signal: Signal =
            read(object(&json!({"session_id": "1_local", "command_id": 1, "signal": name}))).unwrap();
        signal.number()
    };
    assert_eq!(number("INT"), Ok(2));
    assert_eq!(number("SIGTERM"), Ok(15));
    assert_eq!(number("kill"), Ok(9));
    assert!(number("9").unwrap_err().message.contains("one of HUP"));
}

#[test]
fn what_a_bridge_brings_goes_where_it_means_something() {
    let local = json!({"transport": "local"});
    let host = create(&local, Some(&own(LocalPlace::Host))).unwrap();
    assert_eq!(host.place, Some(PlaceKind::Host));
    assert_eq!(host.cwd.as_deref(), Some("/srv/mine/project"));
    assert!(host.own_env.is_some() && host.umask == Some(0o022));
    let project = create(&local, Some(&own(LocalPlace::Project))).unwrap();
    assert_eq!(project.cwd.as_deref(), Some("/srv/mine/project"));
    assert!(project.own_env.is_none());
    let sandbox =
        create(&json!({"transport": "local", "place": "sandbox"}), Some(&own(LocalPlace::Host))).unwrap();
    assert!(sandbox.cwd.is_none() && sandbox.own_env.is_none() && sandbox.umask.is_none());
    let ssh = create(&json!({"transport": "ssh", "host": "box"}), Some(&own(LocalPlace::Host))).unwrap();
    assert!(ssh.cwd.is_none() && ssh.own_env.is_none() && ssh.place.is_none());
    let wider = create(&json!({"transport": "local", "place": "host"}), Some(&own(LocalPlace::Project)));
    assert_eq!(wider.unwrap_err().code, Code::Forbidden);
    assert_eq!(create(&local, None).unwrap().place, None, "over HTTP the operator decides");
}

/// The schemas and the readers say the same: an object with every property of the schema is read, and one with any
/// other is not.
#[test]
fn schemas_and_readers_agree() {
    fn check<T: DeserializeOwned + std::fmt::Debug>(name: &str) {
        let tool = tools::listed().iter().find(|tool| tool.name == name).unwrap();
        let properties = tool.input_schema["properties"].as_object().unwrap();
        let mut given = JsonObject::new();
        for (property, schema) in properties {
            given.insert(property.clone(), sample(schema));
        }
        assert!(read::<T>(Some(given.clone())).is_ok(), "{name}: {:?}", read::<T>(Some(given)).err());
        for property in tool.input_schema["required"].as_array().unwrap() {
            let mut given = given.clone();
            given.remove(property.as_str().unwrap());
            assert!(read::<T>(Some(given)).is_err(), "{name} without {property}");
        }
        given.insert("another".to_owned(), Value::Bool(true));
        assert!(read::<T>(Some(given)).unwrap_err().message.contains("another"), "{name}");
    }
    check::<Create>("session_create");
    check::<Exec>("session_exec");
    check::<Write>("session_write");
    check::<Poll>("session_poll");
    check::<Signal>("session_signal");
    check::<OneSession>("session_destroy");
    check::<Nothing>("session_list");
    check::<TakeCheckpoint>("session_checkpoint");
    check::<OneSession>("session_checkpoints");
    check::<Restore>("session_restore");
}

fn sample(schema: &Value) -> Value {
    match schema["type"].as_str().unwrap() {
        "string" => schema["enum"].get(0).cloned().unwrap_or_else(|| "text".into()),
        "integer" => schema["minimum"].as_u64().unwrap_or(1).into(),
        "boolean" => true.into(),
        "array" => json!(["text"]),
        "object" => {
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            properties
                .iter()
                .map(|(name, schema)| (name.clone(), sample(schema)))
                .collect::<JsonObject>()
                .into()
        }
        other => panic!("{other}"),
    }
}
