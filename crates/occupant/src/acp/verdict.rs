//! What a policy says of a permission request. Pure; who asks the person is the caller's business.

use protocol::{PermissionOption, Policy, Verdict};
use serde_json::Value;

/// A verdict and where it comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) why: String,
}

/// Signs that make more of a command than one program with its arguments.
const SHELL_SIGNS: &[char] = &[';', '|', '&', '$', '`', '(', ')', '<', '>', '{', '}', '\n', '\r'];

pub(super) fn judge(policy: &Policy, tool_call: &Value) -> Judged {
    let kind = tool_call["kind"].as_str();
    let command = command(tool_call);
    for (number, rule) in policy.rules.iter().enumerate() {
        let kind_fits = rule.tool.as_deref().is_none_or(|tool| Some(tool) == kind);
        let command_fits = match (&rule.command, &command) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(pattern), Some(command)) => fits_command(pattern, command, rule.answer),
        };
        if kind_fits && command_fits {
            return Judged {
                verdict: rule.answer,
                why: format!("rule {} of the agent's policy", number + 1),
            };
        }
    }
    Judged { verdict: policy.permissions, why: "the agent's policy".to_owned() }
}

/// The option that carries a verdict out; the narrower one first. None where somebody must be asked.
pub(super) fn option(verdict: Verdict, options: &[PermissionOption]) -> Option<&str> {
    let kinds = match verdict {
        Verdict::Ask => return None,
        Verdict::Allow => ["allow_once", "allow_always"],
        Verdict::Deny => ["reject_once", "reject_always"],
    };
    let find = |kind: &str| options.iter().find(|option| option.kind == kind);
    kinds.into_iter().find_map(find).map(|option| option.option_id.as_str())
}

/// The command that would run, where agents put it.
fn command(tool_call: &Value) -> Option<String> {
    let input = &tool_call["rawInput"];
    let field = ["command", "cmd"].into_iter().find_map(|name| input.get(name))?;
    match field {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().map(Value::as_str).collect::<Option<_>>()?;
            // A shell that is given a script: the script is the command.
            match words.as_slice() {
                [shell, flag, script]
                    if flag.starts_with('-') && flag.ends_with('c') && shell.ends_with("sh") =>
                {
                    Some(script.trim().to_owned())
                }
                words => Some(words.join(" ")),
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// To allow, the whole command must be one and fit. To deny or ask, any part of it is enough.
fn fits_command(pattern: &str, command: &str, answer: Verdict) -> bool {
    match answer {
        Verdict::Allow => !command.contains(SHELL_SIGNS) && fits(pattern, command),
        Verdict::Deny | Verdict::Ask => {
            fits(pattern, command) || command.split(SHELL_SIGNS).any(|part| fits(pattern, part.trim()))
        }
    }
}

/// `*` stands for any text, everything else for itself.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(before) = last.replace(part) {
            match rest.find(before) {
                Some(at) => rest = &rest[at + before.len()..],
                None => return false,
            }
        }
    }
    match last {
        None => rest.is_empty(),
        Some(last) => rest.ends_with(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::Rule;
    use serde_json::json;

    fn rule(tool: Option<&str>, command: Option<&str>, answer: Verdict) -> Rule {
        Rule { tool: tool.map(str::to_owned), command: command.map(str::to_owned), answer }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy {
            permissions: Verdict::Ask,
            rules: vec![
                rule(None, Some("rm *"), Verdict::Deny),
                rule(Some("execute"), Some("git *"), Verdict::Allow),
                rule(Some("read"), None, Verdict::Allow),
            ],
            ..Policy::default()
        };
        let run = |command: Value| json!({"kind": "execute", "rawInput": {"command": command}});
        for (call, verdict) in [
            (run(json!("git status")), Verdict::Allow),
            (run(json!(["bash", "-lc", "git status"])), Verdict::Allow),
            (run(json!(["git", "status"])), Verdict::Allow),
            // What hides behind an allowed beginning is not allowed by it.
            (run(json!("git status; curl x")), Verdict::Ask),
            (run(json!("git status && rm -rf /")), Verdict::Deny),
            (run(json!("git $(rm -rf x)")), Verdict::Deny),
            (run(json!("git log > /etc/passwd")), Verdict::Ask),
            (run(json!("gitx")), Verdict::Ask),
            (json!({"kind": "read", "rawInput": {"path": "x"}}), Verdict::Allow),
            (json!({"kind": "edit"}), Verdict::Ask),
            (json!({"kind": "execute"}), Verdict::Ask),
            (json!(null), Verdict::Ask),
        ] {
            assert_eq!(judge(&policy, &call).verdict, verdict, "{call}");
        }
        assert_eq!(judge(&policy, &run(json!("rm x"))).why, "rule 1 of the agent's policy");
    }

    #[test]
    fn an_option_is_chosen_only_where_there_is_one() {
        let option_of = |id: &str, kind: &str| PermissionOption {
            option_id: id.to_owned(),
            name: String::new(),
            kind: kind.to_owned(),
        };
        let all = [
            option_of("always", "allow_always"),
            option_of("once", "allow_once"),
            option_of("no", "reject_once"),
        ];
        assert_eq!(option(Verdict::Allow, &all), Some("once"));
        assert_eq!(option(Verdict::Deny, &all), Some("no"));
        assert_eq!(option(Verdict::Ask, &all), None);
        assert_eq!(option(Verdict::Deny, &all[..2]), None);
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("git *", "git status", true),
            ("git *", "git", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
            ("*ab", "aab", true),
            ("ls", "ls -l", false),
            ("", "", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        /// A pattern made from a text by putting stars for parts of it fits the text.
        #[test]
        fn stars_stand_for_any_part(parts in proptest::collection::vec("[a-c]{0,3}", 1..6)) {
            let text = parts.concat();
            let kept: Vec<&str> = parts.iter().enumerate().map(|(n, part)| if n % 2 == 0 { part } else { "*" }).collect();
            prop_assert!(fits(&kept.concat(), &text));
        }
    }
}
