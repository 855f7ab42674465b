//! How an MCP client is told to start `outlast mcp`: the text for its settings, and where that goes.
//!
//! Each client has a format of its own, and two of them give up on a tool call after a minute or so unless they are told
//! otherwise, which is shorter than a command may take.

use crate::{
    cli::{LocalPlace, Mcp},
    config::{Config, own_path},
    exit::{Exit, Failure},
    term::Term,
};
use clap::ValueEnum as _;
use serde::Serialize;
use std::collections::HashMap;

/// The longest that a command may take, which a client must not cut short.
const TOOL_SECS: u64 = 3600;
/// The name under which the tools appear.
const NAME: &str = "outlast";

/// A program that speaks MCP and can be set up from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum McpClient {
    /// Claude Code
    Claude,
    /// Codex CLI
    Codex,
    Cursor,
    /// VS Code
    Vscode,
    /// Gemini CLI
    Gemini,
}

/// What to put where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snippet {
    /// The settings, ready to be pasted.
    pub(crate) text: String,
    /// Where they go, and the shorter way where there is one, for people.
    pub(crate) place: String,
}

/// The settings to stdout, so that they can be put into a file, and where they go to stderr.
pub(crate) fn print(client: McpClient, asked: &Mcp, config: &Config, term: &Term) -> Result<Exit, Failure> {
    let mut args = vec!["mcp".to_owned()];
    // A client starts it elsewhere and with another environment: what was named here is named there.
    let named =
        [("--data", (!config.data_is_default()).then_some(&config.data)), ("--config", config.file.as_ref())];
    for (flag, path) in named {
        if let Some(path) = path {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            args.extend([flag.to_owned(), path.display().to_string()]);
        }
    }
    if asked.place != LocalPlace::Host {
        let place = asked.place.to_possible_value();
        args.extend(place.map(|place| format!("--place={}", place.get_name())));
    }
    let Snippet { text, place } = snippet(client, &own_path()?.display().to_string(), &args);
    term.note(&place);
    term.say(&text)?;
    Ok(Exit::Done)
}

/// The settings with which a client starts `program` with these arguments.
pub(crate) fn snippet(client: McpClient, program: &str, args: &[String]) -> Snippet {
    let server = Server { kind: None, command: program, args, timeout: None };
    let typed = Server { kind: Some("stdio"), ..server };
    let patient = Server { timeout: Some(TOOL_SECS * 1000), ..server };
    let line = command_line(program, args);
    let (text, place) = match client {
        McpClient::Claude => (
            json_text("mcpServers", typed),
            format!(
                "Claude Code: into `.mcp.json` in the project's folder. For all your projects, run instead:\n  \
                 claude mcp add --scope user {NAME} -- {line}\n\
                 Claude Code waits for a tool as long as MCP_TOOL_TIMEOUT says, in milliseconds: {} for an hour.",
                TOOL_SECS * 1000
            ),
        ),
        McpClient::Codex => (
            toml_text(program, args),
            "Codex: into `~/.codex/config.toml`, or `.codex/config.toml` in a trusted project's folder."
                .to_owned(),
        ),
        McpClient::Cursor => (
            json_text("mcpServers", server),
            "Cursor: into `~/.cursor/mcp.json`, or `.cursor/mcp.json` in the project's folder.".to_owned(),
        ),
        McpClient::Vscode => (
            json_text("servers", typed),
            "VS Code: into `.vscode/mcp.json` in the project's folder, or into the file that the command \
             `MCP: Open User Configuration` opens."
                .to_owned(),
        ),
        McpClient::Gemini => (
            json_text("mcpServers", patient),
            "Gemini CLI: into `~/.gemini/settings.json`, or `.gemini/settings.json` in the project's folder."
                .to_owned(),
        ),
    };
    Snippet { text, place }
}

/// A server in the JSON that most clients read.
#[derive(Clone, Copy, Serialize)]
struct Server<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    command: &'a str,
    args: &'a [String],
    /// In milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
}

fn json_text(servers: &str, server: Server<'_>) -> String {
    let whole = HashMap::from([(servers, HashMap::from([(NAME, server)]))]);
    // Text and numbers can always be written.
    serde_json::to_string_pretty(&whole).unwrap_or_default()
}

fn toml_text(program: &str, args: &[String]) -> String {
    // What JSON quotes and escapes means the same in TOML.
    let text = |value: &str| serde_json::to_string(value).unwrap_or_default();
    let args: Vec<String> = args.iter().map(|arg| text(arg)).collect();
    format!(
        "[mcp_servers.{NAME}]\ncommand = {}\nargs = [{}]\ntool_timeout_sec = {TOOL_SECS}",
        text(program),
        args.join(", ")
    )
}

/// As it is typed into a shell.
fn command_line(program: &str, args: &[String]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:@%+,".contains(&byte);
    let quoted = |word: &str| match word.bytes().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let words = std::iter::once(program).chain(args.iter().map(String::as_str));
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn args() -> Vec<String> {
        vec!["mcp".to_owned(), "--data".to_owned(), "it's \"here\"".to_owned()]
    }

    fn shown(client: McpClient) -> String {
        let Snippet { text, place } = snippet(client, "/usr/bin/outlast", &args());
        format!("{text}\n---\n{place}")
    }

    #[test]
    fn each_client_has_its_format() {
        insta::assert_snapshot!(shown(McpClient::Claude), @r##"
        {
          "mcpServers": {
            "outlast": {
              "type": "stdio",
              "command": "/usr/bin/outlast",
              "args": [
                "mcp",
                "--data",
                "it's \"here\""
              ]
            }
          }
        }
        ---
        Claude Code: into `.mcp.json` in the project's folder. For all your projects, run instead:
          claude mcp add --scope user outlast -- /usr/bin/outlast mcp --data 'it'\''s "here"'
        Claude Code waits for a tool as long as MCP_TOOL_TIMEOUT says, in milliseconds: 3600000 for an hour.
        "##);
        insta::assert_snapshot!(shown(McpClient::Codex), @r##"
        [mcp_servers.outlast]
        command = "/usr/bin/outlast"
        args = ["mcp", "--data", "it's \"here\""]
        tool_timeout_sec = 3600
        ---
        Codex: into `~/.codex/config.toml`, or `.codex/config.toml` in a trusted project's folder.
        "##);
        insta::assert_snapshot!(shown(McpClient::Cursor), @r##"
        {
          "mcpServers": {
            "outlast": {
              "command": "/usr/bin/outlast",
              "args": [
                "mcp",
                "--data",
                "it's \"here\""
              ]
            }
          }
        }
        ---
        Cursor: into `~/.cursor/mcp.json`, or `.cursor/mcp.json` in the project's folder.
        "##);
        insta::assert_snapshot!(shown(McpClient::Vscode), @r##"
        {
          "servers": {
            "outlast": {
              "type": "stdio",
              "command": "/usr/bin/outlast",
              "args": [
                "mcp",
                "--data",
                "it's \"here\""
              ]
            }
          }
        }
        ---
        VS Code: into `.vscode/mcp.json` in the project's folder, or into the file that the command `MCP: Open User Configuration` opens.
        "##);
        insta::assert_snapshot!(shown(McpClient::Gemini), @r##"
        {
          "mcpServers": {
            "outlast": {
              "command": "/usr/bin/outlast",
              "args": [
                "mcp",
                "--data",
                "it's \"here\""
              ],
              "timeout": 3600000
            }
          }
        }
        ---
        Gemini CLI: into `~/.gemini/settings.json`, or `.gemini/settings.json` in the project's folder.
        "##);
    }

    #[test]
    fn what_is_pasted_says_what_was_meant() {
        for client in McpClient::value_variants() {
            let text = snippet(*client, "/usr/bin/outlast", &args()).text;
            let value: Value = match client {
                McpClient::Codex => toml::from_str(&text).unwrap(),
                McpClient::Claude | McpClient::Cursor | McpClient::Vscode | McpClient::Gemini => {
                    serde_json::from_str(&text).unwrap()
                }
            };
            let servers = value.as_object().unwrap().values().next().unwrap();
            assert_eq!(servers["outlast"]["command"], "/usr/bin/outlast", "{text}");
            assert_eq!(servers["outlast"]["args"], json!(args()), "{text}");
        }
    }

    #[test]
    fn a_command_line_is_quoted_for_a_shell() {
        assert_eq!(command_line("outlast", &args()), r#"outlast mcp --data 'it'\''s "here"'"#);
    }
}
