//! Every tool, once: its name, what agents read of it, what it takes and gives, who may call it, and what runs.

use super::{calls, schema};
use futures_util::future::BoxFuture;
use protocol::{Fault, Scope};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::Value;
use std::sync::{Arc, LazyLock};

pub(super) struct Entry {
    pub(super) name: &'static str,
    title: &'static str,
    description: &'static str,
    takes: fn() -> Arc<JsonObject>,
    gives: fn() -> Arc<JsonObject>,
    pub(super) needs: Scope,
    kind: Kind,
    pub(super) run: fn(calls::Ask) -> BoxFuture<'static, Result<Answer, Fault>>,
}

/// What a tool does to the world, for those that ask people before they call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads,
    /// Adds something, and takes nothing away.
    Adds,
    /// May change or remove anything that a command can reach.
    Acts,
    /// Ends something; ending it again changes nothing.
    Ends,
    /// Changes files, all of them its own.
    Restores,
}

/// What a call gave, spelt twice for two kinds of readers: the fields in the order of their declaration, and as data.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) data: Value,
}

pub(super) fn find(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name == name)
}

/// As `tools/list` tells them.
pub(super) fn listed() -> &'static [Tool] {
    static LISTED: LazyLock<Vec<Tool>> = LazyLock::new(|| TABLE.iter().map(Entry::tool).collect());
    &LISTED
}

impl Entry {
    fn tool(&self) -> Tool {
        let hints = ToolAnnotations::with_title(self.title);
        let hints = match self.kind {
            Kind::Reads => hints.read_only(true).open_world(false),
            Kind::Adds => hints.read_only(false).destructive(false).idempotent(false).open_world(false),
            Kind::Acts => hints.read_only(false).destructive(true).idempotent(false).open_world(true),
            Kind::Ends => hints.read_only(false).destructive(true).idempotent(true).open_world(false),
            Kind::Restores => hints.read_only(false).destructive(true).idempotent(false).open_world(false),
        };
        Tool::new(self.name, self.description, (self.takes)())
            .with_title(self.title)
            .with_raw_output_schema((self.gives)())
            .with_annotations(hints)
    }
}

static TABLE: &[Entry] = &[
    Entry {
        name: "session_create",
        title: "Open a shell",
        description: "Opens a shell that keeps its directory, variables, functions and background jobs between commands, on this machine, over SSH or in a Docker container. It lives on when the connection ends. Give the session_id to the other tools; close it with session_destroy.",
        takes: schema::create,
        gives: schema::created,
        needs: Scope::Write,
        kind: Kind::Acts,
        run: |ask| Box::pin(calls::create(ask)),
    },
    Entry {
        name: "session_exec",
        title: "Run a command",
        description: "Runs shell code in a session and returns stdout, stderr, exit_code and cwd. State carries over to the next command; also `exit 3` leaves the session usable. There is no terminal and no input: a prompt fails instead of waiting. Commands of one session run in order. For long ones set timeout_secs, or yield_secs to get `running` and a command_id for session_poll. A budget keeps large output short and its totals exact.",
        takes: schema::exec,
        gives: schema::exec_result,
        needs: Scope::Write,
        kind: Kind::Acts,
        run: |ask| Box::pin(calls::exec(ask)),
    },
    Entry {
        name: "session_poll",
        title: "Read a command's result",
        description: "What a command has written so far, or its result once it has ended; `running` tells which. Waits up to wait_secs for the end. Also for commands whose caller has gone.",
        takes: schema::poll,
        gives: schema::exec_result,
        needs: Scope::Read,
        kind: Kind::Reads,
        run: |ask| Box::pin(calls::poll(ask)),
    },
    Entry {
        name: "session_output",
        title: "Read a command's whole output",
        description: "Reads the whole text of a stream of which a result shows only a part (`truncated`, and `whole` names the stream), from offset on, in bytes. next_offset is where to read on; without it that was the end. Also after the session was closed.",
        takes: schema::output,
        gives: schema::output_piece,
        needs: Scope::Read,
        kind: Kind::Reads,
        run: |ask| Box::pin(calls::output(ask)),
    },
    Entry {
        name: "session_write",
        title: "Write to a command's input",
        description: "Writes text to the input of a running command that session_exec started with stdin \"open\"; eof closes it.",
        takes: schema::write,
        gives: schema::written,
        needs: Scope::Write,
        kind: Kind::Acts,
        run: |ask| Box::pin(calls::write(ask)),
    },
    Entry {
        name: "session_signal",
        title: "Signal a command",
        description: "Sends a signal to everything that a running command started, such as INT to interrupt it. The session's background jobs are left alone.",
        takes: schema::signal,
        gives: schema::signalled,
        needs: Scope::Write,
        kind: Kind::Acts,
        run: |ask| Box::pin(calls::signal(ask)),
    },
    Entry {
        name: "session_list",
        title: "List shells",
        description: "The sessions that are open, with where they are, how long they have been idle and which command runs.",
        takes: schema::nothing,
        gives: schema::sessions,
        needs: Scope::Read,
        kind: Kind::Reads,
        run: |ask| Box::pin(calls::list(ask)),
    },
    Entry {
        name: "session_destroy",
        title: "Close a shell",
        description: "Ends a session and every process that it started. The record of its commands stays.",
        takes: schema::one_session,
        gives: schema::destroyed,
        needs: Scope::Write,
        kind: Kind::Ends,
        run: |ask| Box::pin(calls::destroy(ask)),
    },
    Entry {
        name: "session_checkpoint",
        title: "Take a checkpoint",
        description: "Keeps the state of the workspace's files, with modes, empty folders and ignored files, so that session_restore can bring it back.",
        takes: schema::take_checkpoint,
        gives: schema::checkpoint,
        needs: Scope::Write,
        kind: Kind::Adds,
        run: |ask| Box::pin(calls::checkpoint(ask)),
    },
    Entry {
        name: "session_checkpoints",
        title: "List checkpoints",
        description: "The checkpoints of a session, newest first.",
        takes: schema::one_session,
        gives: schema::checkpoints,
        needs: Scope::Read,
        kind: Kind::Reads,
        run: |ask| Box::pin(calls::checkpoints(ask)),
    },
    Entry {
        name: "session_restore",
        title: "Restore a checkpoint",
        description: "Brings the workspace's files back to a checkpoint, the newest when none is named. What is there now is kept in a checkpoint first; its id is `undo`.",
        takes: schema::restore,
        gives: schema::restored,
        needs: Scope::Write,
        kind: Kind::Restores,
        run: |ask| Box::pin(calls::restore(ask)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_tools_are_those_of_the_contract() {
        let names: HashSet<_> = TABLE.iter().map(|entry| entry.name).collect();
        let contract = [
            "create",
            "exec",
            "write",
            "poll",
            "output",
            "signal",
            "destroy",
            "list",
            "checkpoint",
            "checkpoints",
            "restore",
        ];
        let contract: HashSet<_> = contract.iter().map(|name| format!("session_{name}")).collect();
        assert_eq!(names, contract.iter().map(String::as_str).collect());
    }

    #[test]
    fn every_tool_says_what_it_is() {
        for tool in listed() {
            let name = &tool.name;
            assert_eq!(tool.input_schema["additionalProperties"], false, "{name}");
            assert_eq!(tool.input_schema["type"], "object", "{name}");
            assert_eq!(tool.output_schema.as_ref().unwrap()["type"], "object", "{name}");
            let hints = tool.annotations.as_ref().unwrap();
            assert!(tool.title.is_some() && hints.title.is_some(), "{name}");
            assert!(hints.read_only_hint.is_some() && hints.open_world_hint.is_some(), "{name}");
        }
    }

    #[test]
    fn a_key_that_may_only_read_calls_only_what_reads() {
        for entry in TABLE {
            assert_eq!(entry.needs == Scope::Read, entry.kind == Kind::Reads, "{}", entry.name);
        }
    }
}
