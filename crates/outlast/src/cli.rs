//! The command line as it is typed. Nothing is decided here; `config` makes it what is meant.

use crate::{commands::mcp_config::McpClient, config::LogFormat, exit};
use clap::{Args, Parser, Subcommand, ValueEnum};
use protocol::{AgentName, CredentialId, KeyId, OnBusy, Scope, Seq, Status, Tenant};
use std::{net::SocketAddr, path::PathBuf};

const EXAMPLES: &str = "\
Examples:
  outlast serve                          start a server on 127.0.0.1:4100
  outlast run demo \"hello\"               talk to the bundled agent
  outlast run demo                       talk, line by line
  outlast logs -f SESSION                follow what happens in a session
  outlast agent deploy ./my-agent        deploy a folder with an agent.toml

A SESSION is an id, a beginning of one (4 characters or more) that fits no other, or an alias.
";

#[derive(Debug, Parser)]
#[command(
    name = "outlast",
    version,
    about = "A session server for AI agents: durable, resumable, replayable",
    after_help = format!("{EXAMPLES}\n{}", exit::TABLE),
    disable_help_subcommand = true,
    max_term_width = 110
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options for every command")]
pub(crate) struct Common {
    /// The data folder [env: OUTLAST_DATA] [default: outlast in the XDG data home]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The configuration file [env: OUTLAST_CONFIG] [default: outlast.toml in the data folder]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The server to talk to [env: OUTLAST_URL] [default: the one running on the data folder]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The key to use; better in the environment, where others cannot see it [env: OUTLAST_KEY] [default: the
    /// data folder's first key]
    #[arg(long, global = true, value_name = "KEY", hide_default_value = true)]
    pub(crate) key: Option<String>,
    /// Print results as JSON, one object a line, as the REST API spells them
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Serve),
    Run(Box<Run>),
    Ls(Ls),
    /// Show one session
    Show {
        session: String,
    },
    /// Show what turns have used: tokens and cost, as far as agents said
    Usage {
        /// One session's; all of the tenant's unless named
        session: Option<String>,
    },
    Logs(Logs),
    Watch(Watch),
    /// Pause sessions: their processes stop, the next message brings them back
    Pause(Sessions),
    /// Bring paused or failed sessions back
    Resume(Sessions),
    /// Make a new session with the events of another one up to a point
    Fork {
        session: String,
        /// The last event that both share; the session's last one unless named
        #[arg(long, value_name = "SEQ")]
        at: Option<u64>,
        /// A name for the new session
        #[arg(long)]
        name: Option<String>,
    },
    /// Stop the processes of sessions; they can be resumed
    Stop(Sessions),
    /// End sessions for good and keep their history
    End(Sessions),
    /// Cancel the running turn of sessions
    Cancel(Sessions),
    Rm(Rm),
    /// Give a session a name
    Rename {
        session: String,
        name: String,
    },
    Answer(Answer),
    Acp(Acp),
    Mcp(Mcp),
    /// Look into a session's workspace, and change it
    Files {
        #[command(subcommand)]
        command: FilesCommand,
    },
    /// Deploy and list agents
    Agent {
        #[command(subcommand)]
        command: AgentCommand,
    },
    /// Store values for agents' environments; they are never shown again
    Credential {
        #[command(subcommand)]
        command: CredentialCommand,
    },
    /// Make and remove API keys
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Copy the whole store to a new folder; the server may go on running
    Backup {
        /// A folder that is not there yet, or is empty
        to: PathBuf,
    },
    /// Make the data folder from a backup; no server may run on it
    Restore {
        /// A folder that `outlast backup` made
        from: PathBuf,
    },
    /// Check the record
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Look at the data folder, the machine and the server, and say what is wrong
    Doctor,
    /// Print a completion script for a shell
    Completions {
        shell: clap_complete::Shell,
    },
    /// The bundled scripted agent, as the server starts it
    #[command(hide = true, disable_help_flag = true)]
    DemoAgent {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

/// Start a server
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "\
When it listens, it prints `outlast listens on http://ADDRESS` on stdout, and on its first start one more line \
that says where the first key is. Logs go to stderr. SIGINT or SIGTERM ends it with grace, a second one at once.

Examples:
  outlast serve
  outlast serve --data /srv/outlast --listen 127.0.0.1:4200 --log-format json")]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one [env: OUTLAST_LISTEN] [default: 127.0.0.1:4100]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// How logs are written [env: OUTLAST_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// What is logged, such as `info` or `warn,outlast_session=debug` [env: OUTLAST_LOG] [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Seconds that running work has to end in when the server stops [env: OUTLAST_GRACE_SECS] [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_secs: Option<u64>,
    /// End after so many seconds without a live session, a stream or a request
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) until_idle: Option<u64>,
    /// Leave the terminal: how a bridge starts a server
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Listen on the Unix socket in the data folder only
    #[arg(long, conflicts_with = "listen")]
    pub(crate) socket_only: bool,
}

/// Talk to an agent
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The agent's words go to stdout, everything else to stderr. Ctrl-C cancels the turn; a second Ctrl-C leaves, and \
the turn goes on. Permission questions are asked on the terminal; without one they are answered `cancelled`.

Examples:
  outlast run demo \"hello\"
  git diff | outlast run reviewer -
  outlast run --session 019a8c1e \"and now the tests\"")]
pub(crate) struct Run {
    /// The agent's name; left out with --session
    #[arg(value_name = "AGENT", required_unless_present = "session")]
    pub(crate) agent: Option<String>,
    /// What to say; `-` reads it from stdin; without it, a conversation line by line
    #[arg(value_name = "PROMPT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Go on with this session instead of making one
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["name", "credential", "env", "system_prompt", "mcp"])]
    pub(crate) session: Option<String>,
    /// End the session afterwards
    #[arg(long)]
    pub(crate) end: bool,
    /// Use this model instead of the agent's own
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// A name for the new session
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Where it runs: sandbox or host (the bare machine: nothing is contained)
    #[arg(long, value_name = "PLACE", conflicts_with = "session")]
    pub(crate) place: Option<protocol::PlaceKind>,
    /// Share the files of the sandbox with this key; it is made when there is none
    #[arg(long, value_name = "KEY", conflicts_with = "session")]
    pub(crate) sandbox: Option<String>,
    /// Give the agent a stored credential's variables
    #[arg(long, value_name = "ID")]
    pub(crate) credential: Option<CredentialId>,
    /// Give the agent a variable; without a value, the one of this shell
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// A file whose text replaces the agent's instructions
    #[arg(long, value_name = "FILE")]
    pub(crate) system_prompt: Option<PathBuf>,
    /// A `.mcp.json` whose servers join the agent's
    #[arg(long, value_name = "FILE")]
    pub(crate) mcp: Option<PathBuf>,
    /// What to do when a turn is running already
    #[arg(long, value_name = "WAY", default_value = "queue")]
    pub(crate) on_busy: Busy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Busy {
    /// Wait behind the prompts that came before
    Queue,
    /// Run next, before the queue
    Steer,
    /// Cancel the running turn and run next
    Interrupt,
    /// Be refused
    Reject,
}

impl From<Busy> for OnBusy {
    fn from(busy: Busy) -> Self {
        match busy {
            Busy::Queue => Self::Queue,
            Busy::Steer => Self::Steer,
            Busy::Interrupt => Self::Interrupt,
            Busy::Reject => Self::Reject,
        }
    }
}

/// List sessions, newest first
#[derive(Debug, Clone, Args)]
pub(crate) struct Ls {
    /// Only this agent's
    #[arg(long)]
    pub(crate) agent: Option<AgentName>,
    /// Only those with this status: starting, active, paused, ended or error
    #[arg(long)]
    pub(crate) status: Option<Status>,
    /// Ended sessions and shells too
    #[arg(long)]
    pub(crate) all: bool,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// Show a session's events
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  outlast logs SESSION
  outlast logs -f SESSION --after 120
  outlast logs SESSION --json | jq 'select(.type == \"turn_ended\")'")]
pub(crate) struct Logs {
    /// An id, a beginning of one, or an alias
    pub(crate) session: String,
    /// Go on with new events as they come, across lost connections, until the session ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin after this event
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: Seq,
    /// What the agent's process wrote to stderr instead
    #[arg(long, conflicts_with_all = ["follow", "after"])]
    pub(crate) stderr: bool,
}

/// Watch sessions live: their list, and what happens in one of them
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Keys: arrows or j k move, tab changes the pane, / searches, g and G go to the beginning and the end, ? shows all of \
them, q leaves. Without a terminal it prints lines and goes on, like `tail -f`.

Examples:
  outlast watch
  outlast watch 019a8c1e
  outlast watch | grep error")]
pub(crate) struct Watch {
    /// An id, a beginning of one, or an alias; without it, the newest session is shown first
    pub(crate) session: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Sessions {
    #[arg(value_name = "SESSION", required = true)]
    pub(crate) sessions: Vec<String>,
}

/// Remove sessions with their history and files; asks first on a terminal
#[derive(Debug, Clone, Args)]
pub(crate) struct Rm {
    #[arg(value_name = "SESSION", required = true)]
    pub(crate) sessions: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Answer an agent's permission question
#[derive(Debug, Clone, Args)]
#[command(after_help = "`outlast logs SESSION` shows the questions with their numbers and options.")]
pub(crate) struct Answer {
    pub(crate) session: String,
    /// The number of the question
    pub(crate) permission: Seq,
    /// One of its options; without one the question is cancelled
    pub(crate) option: Option<String>,
}

/// Be an ACP agent on stdin and stdout, for editors
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
An editor that speaks the Agent Client Protocol (Zed, JetBrains, Neovim) starts this command. Its sessions live on \
the server of the data folder, which is started in the background when none runs: they go on when the editor is \
closed, and in the browser, the command line or another editor.

By default the agent runs on this machine as you, in the folder that the editor names; nothing is contained. With \
`--place sandbox` it runs in a sandbox, and does not see the editor's folder.

Examples:
  outlast acp --agent claude
  outlast acp --agent claude --place sandbox")]
pub(crate) struct Acp {
    /// The deployed agent that new sessions are with [default: the only one there is besides demo]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<AgentName>,
    /// Where new sessions run: host (this machine, nothing is contained) or sandbox
    #[arg(long, value_name = "PLACE", default_value = "host")]
    pub(crate) place: protocol::PlaceKind,
}

/// Serve shells to agents as MCP tools, on stdin and stdout
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
An agent or an editor that speaks the Model Context Protocol starts this command. Its shells live on the server of \
the data folder, which is started in the background when none runs: they and their commands go on when the agent \
leaves, and are found again with session_list.

By default shells run on this machine as you, with your environment, in the folder that this command is started in; \
nothing is contained. `--place project` lets them read this machine, write to that folder and a private /tmp only, and \
see nothing of homes. `--place sandbox` shows them nothing of this machine's files.

Examples:
  outlast mcp
  outlast mcp --place project
  outlast mcp --place sandbox")]
pub(crate) struct Mcp {
    /// The widest place that shells are opened in, and the one when the agent names none
    #[arg(long, value_name = "PLACE", default_value = "host")]
    pub(crate) place: LocalPlace,
    /// Print the settings with which a client starts this command, and where they go, instead of serving
    #[arg(long, value_name = "CLIENT")]
    pub(crate) print_config: Option<McpClient>,
}

/// How much of this machine a shell sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LocalPlace {
    /// Private files only
    Sandbox,
    /// This machine to read, homes apart, and the folder to work in
    Project,
    /// All that you may do
    Host,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Paths are relative to the workspace. The files of a session that is not on this machine any more, or has ended, are \
read from its last snapshot.

Examples:
  outlast files ls SESSION src
  outlast files get SESSION report.md
  outlast files put SESSION data/input.csv ./input.csv
  outlast files tar SESSION | tar -x")]
pub(crate) enum FilesCommand {
    /// List a folder
    Ls {
        session: String,
        /// [default: the workspace itself]
        path: Option<PathBuf>,
    },
    /// Read a file
    Get {
        session: String,
        path: PathBuf,
        /// Where to; `-`, the default, is stdout
        file: Option<PathBuf>,
    },
    /// Write a file, making the folders on the way; its permissions go with it
    Put {
        session: String,
        path: PathBuf,
        /// Where from; `-`, the default, is stdin
        file: Option<PathBuf>,
    },
    /// Remove files and empty folders
    Rm {
        session: String,
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Folders with everything in them, too
        #[arg(short, long)]
        recursive: bool,
    },
    /// Download a folder or a file as a tar
    Tar {
        session: String,
        /// [default: the workspace itself]
        path: Option<PathBuf>,
        /// A file to write it to, instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Make, install and deploy an agent of the catalogue, or a command of your own
    Add(AddAgent),
    /// Deploy a folder with an agent.toml; the same name again makes a new version
    Deploy {
        dir: PathBuf,
        /// The agent's name [default: the folder's]
        #[arg(long)]
        name: Option<AgentName>,
    },
    /// List agents
    Ls,
    /// Show one agent
    Show { name: AgentName },
    /// Shake hands with an agent, send it one prompt, and say what works
    Test(TryAgent),
    /// Remove agents; their sessions go on
    Rm {
        #[arg(required = true)]
        names: Vec<AgentName>,
    },
}

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The catalogue has claude, codex, gemini, opencode and qwen; they are installed with npm. Examples:
  outlast agent add claude
  outlast agent add ./my-agent --acp")]
pub(crate) struct AddAgent {
    /// An agent of the catalogue, or a command that speaks the Agent Client Protocol
    #[arg(value_name = "AGENT|COMMAND")]
    pub(crate) what: String,
    /// The command's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<String>,
    /// The agent's name [default: the catalogue's, or the command's]
    #[arg(long)]
    pub(crate) name: Option<AgentName>,
    /// The folder to make [default: the agent's name, here]
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Only write the folder; install and deploy it yourself
    #[arg(long)]
    pub(crate) write_only: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct TryAgent {
    pub(crate) name: AgentName,
    /// What to say instead of the usual question
    pub(crate) prompt: Option<String>,
    /// Use this model instead of the agent's own
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Give the agent a stored credential's variables
    #[arg(long)]
    pub(crate) credential: Option<CredentialId>,
    /// Give the agent a variable; without a value, the one of this shell
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CredentialCommand {
    /// Store a credential. The value is typed, piped in or taken from the environment, never an argument
    #[command(after_help = "\
Examples:
  outlast credential add anthropic                      asks for the key, or reads it from stdin
  outlast credential add custom --env GITHUB_TOKEN      stores this shell's GITHUB_TOKEN
  outlast credential add custom --lines < secrets.env   stores NAME=VALUE lines")]
    Add {
        /// anthropic, openai, google, custom, …
        #[arg(value_name = "TYPE")]
        kind: String,
        /// A word to know it by
        #[arg(long)]
        label: Option<String>,
        /// Store this variable of the environment; may be given again
        #[arg(long, value_name = "NAME")]
        env: Vec<String>,
        /// Read NAME=VALUE lines from stdin
        #[arg(long, conflicts_with = "env")]
        lines: bool,
    },
    /// List credentials, without their values
    Ls,
    /// Remove credentials
    Rm {
        #[arg(required = true)]
        ids: Vec<CredentialId>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key; it is printed once
    Create {
        /// A word to know it by
        #[arg(long)]
        label: Option<String>,
        /// read, write or admin
        #[arg(long, default_value = "write")]
        scope: Scope,
        /// Another tenant's, made when it is new
        #[arg(long)]
        tenant: Option<Tenant>,
    },
    /// List keys, without the keys themselves
    Ls,
    /// Remove keys
    Rm {
        #[arg(required = true)]
        ids: Vec<KeyId>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Check the hash chain of every session, or of one; the server may go on running
    Verify { session: Option<String> },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_people_type_is_taken() {
        for line in [
            "serve --data /x --listen 127.0.0.1:0 --log-format json",
            "run demo",
            "run demo -",
            "run demo hello --json --end",
            "run --session 019a hello",
            "ls --all --status paused",
            "logs -f 019a --after 3",
            "rm -y a b",
            "agent deploy . --name x",
            "agent add claude --dir x --write-only",
            "agent add --name x ./my-agent --acp -v",
            "agent test claude --env KEY",
            "files ls 019a",
            "files get 019a a/b -",
            "files rm -r 019a a b",
            "files tar 019a -o x.tar",
            "credential add custom --env A --env B",
            "key create --scope read",
            "audit verify",
            "completions bash",
            "demo-agent --exit 3",
            "demo-agent --help",
        ] {
            let words = std::iter::once("outlast").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        for line in
            ["run", "rm", "ls --limit 0", "serve --listen here", "key rm nonsense", "logs a -f --stderr"]
        {
            let words = std::iter::once("outlast").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }

    /// The width is fixed so that the snapshots do not depend on the terminal that runs the tests.
    fn help(path: &[&str]) -> String {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut at = &mut command;
        for word in path {
            at = at.find_subcommand_mut(word).unwrap();
        }
        let mut named = at.clone().term_width(100);
        let text = named.render_long_help().to_string();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn help_reads_well() {
        for path in [
            &[][..],
            &["serve"],
            &["run"],
            &["logs"],
            &["agent"],
            &["files"],
            &["acp"],
            &["mcp"],
            &["credential", "add"],
        ] {
            let name = format!("help{}", path.iter().map(|word| format!("-{word}")).collect::<String>());
            insta::assert_snapshot!(name, help(path));
        }
    }
}
