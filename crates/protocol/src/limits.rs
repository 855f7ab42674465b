//! Every bound of the system, by name, with the relations between them asserted at compile time.
//! An operator's setting may lower or raise some of these; the names say what happens without one.

/// A tenant or agent name.
pub const NAME_BYTES: usize = 64;
/// A session alias.
pub const ALIAS_BYTES: usize = 128;
/// A session's display name, a key's or a credential's label.
pub const LABEL_BYTES: usize = 256;
/// A client's own id for a prompt.
pub const CLIENT_ID_BYTES: usize = 256;
/// A model, mode or thought level.
pub const SETTING_BYTES: usize = 256;

/// Bodies above this are stored as content-addressed blobs beside the store.
pub const INLINE_BODY_BYTES: usize = 64 * 1024;
/// One JSON-RPC line from an agent. Longer is a typed failure, not a larger buffer.
pub const LINE_BYTES: usize = 32 * 1024 * 1024;
/// One event body, encoded. Room for a whole line and what we write around it.
pub const EVENT_BYTES: usize = LINE_BYTES + 64 * 1024;
/// One page of events: ends at whichever comes first, but holds at least one event.
pub const PAGE_EVENTS: usize = 1_000;
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Events that one session may put into one commit, so that a flood delays nobody.
pub const COMMIT_EVENTS_PER_SESSION: usize = 4_096;
pub const COMMIT_BYTES_PER_SESSION: usize = 2 * 1024 * 1024;
/// Bytes a session may have waiting for a commit before it stops reading from its occupant.
pub const PENDING_BYTES: usize = 4 * 1024 * 1024;
/// Committed batches a session keeps for its tail followers; one that falls further behind re-reads the journal.
pub const TAIL_BATCHES: usize = 64;

/// A prompt's content, encoded.
pub const PROMPT_BYTES: usize = 8 * 1024 * 1024;
/// Prompts waiting behind a running turn.
pub const QUEUED_PROMPTS: usize = 20;
/// Commands waiting in a session's mailbox.
pub const MAILBOX: usize = 256;
/// Environment given to one session.
pub const ENV_ENTRIES: usize = 256;
pub const ENV_BYTES: usize = 256 * 1024;
/// A secret shorter than this is too short to be looked for in output.
pub const SECRET_MIN_BYTES: usize = 6;
/// MCP servers of one session.
pub const MCP_SERVERS: usize = 64;
/// An agent's instructions or a session's system prompt.
pub const INSTRUCTIONS_BYTES: usize = 1024 * 1024;

/// One JSON request body.
pub const REQUEST_BYTES: usize = 16 * 1024 * 1024;
/// Sessions in one list page when the caller names a limit.
pub const LIST_PAGE: usize = 1_000;
/// An uploaded agent: its archive, its files and how many of them.
pub const AGENT_ARCHIVE_BYTES: usize = 1024 * 1024 * 1024;
pub const AGENT_BYTES: u64 = 1024 * 1024 * 1024;
pub const AGENT_FILES: usize = 100_000;
/// One file written into a workspace from outside.
pub const FILE_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Entries in one page of a folder.
pub const FILE_PAGE: usize = 1_000;
/// `agent.toml` and `.mcp.json`.
pub const MANIFEST_BYTES: usize = 1024 * 1024;

/// Live sessions on one server, and of one tenant.
pub const LIVE_SESSIONS: usize = 1_000;
pub const TENANT_LIVE_SESSIONS: usize = 1_000;

/// Shells open at once, and seconds after which one without a command is ended.
pub const SHELL_SESSIONS: usize = 64;
pub const SHELL_IDLE_SECS: u64 = 30 * 60;
/// Seconds that a shell's command may take when nothing is said, and at most.
pub const COMMAND_SECS: u64 = 120;
pub const COMMAND_SECS_MOST: u64 = 3600;
/// Kept of one stream of a command when its budget left something out, and of all streams of one shell.
pub const OUTPUT_BYTES: u64 = 64 * 1024 * 1024;
pub const OUTPUTS_BYTES: u64 = 1024 * 1024 * 1024;
/// Read of a kept output at once: when nothing is said, and at most.
pub const OUTPUT_PIECE_BYTES: usize = 64 * 1024;
pub const OUTPUT_PIECE_MOST: usize = 1024 * 1024;
/// One command's text.
pub const COMMAND_BYTES: usize = 8 * 1024 * 1024;

/// Seconds an agent has to answer `initialize` and `session/new`.
pub const HANDSHAKE_SECS: u64 = 60;
/// Seconds a cancelled agent has before it is stopped.
pub const CANCEL_GRACE_SECS: u64 = 10;
/// Seconds a closed agent has before it is killed.
pub const CLOSE_GRACE_SECS: u64 = 5;
/// Of these, the milliseconds for which the end of its input is the only sign: agents save what they know then, and one
/// that is told to terminate at the same time may not.
pub const INPUT_END_GRACE_MS: u64 = 1_000;
/// An agent that crashes is started again this often within the window; then it stays down until it is needed.
pub const CRASH_RESTARTS: usize = 5;
pub const CRASH_WINDOW_SECS: u64 = 600;
/// Milliseconds before the first restart; each further one within the window waits twice as long, up to the most.
pub const CRASH_BACKOFF_MS: u64 = 500;
pub const CRASH_BACKOFF_MOST_MS: u64 = 30_000;
/// Seconds a permission request stays open.
pub const PERMISSION_SECS: u64 = 24 * 3600;
/// Seconds after which an idle session is paused.
pub const IDLE_SECS: u64 = 30 * 60;
/// Seconds after which the workspace of a session at rest is put away into its snapshot.
pub const EVICT_SECS: u64 = 3600;
/// Seconds between two looks at the size of a workspace whose session works, and of one at rest.
pub const DISK_BUSY_SECS: u64 = 5;
pub const DISK_IDLE_SECS: u64 = 30;
/// Seconds after which a keeper whose server does not come back ends its processes and itself.
pub const ORPHAN_SECS: u64 = 3600;
/// Kept of an agent's stderr, newest last.
pub const STDERR_BYTES: usize = 256 * 1024;

const _: () = {
    assert!(INLINE_BODY_BYTES < COMMIT_BYTES_PER_SESSION);
    assert!(LINE_BYTES < EVENT_BYTES);
    assert!(PROMPT_BYTES < REQUEST_BYTES);
    assert!(INSTRUCTIONS_BYTES < REQUEST_BYTES);
    // A prompt is recorded as one event and sent to the agent as one line.
    assert!(PROMPT_BYTES < LINE_BYTES);
    assert!(COMMIT_BYTES_PER_SESSION <= PENDING_BYTES);
    assert!(COMMIT_EVENTS_PER_SESSION >= PAGE_EVENTS);
    assert!(TENANT_LIVE_SESSIONS <= LIVE_SESSIONS);
    assert!(INPUT_END_GRACE_MS < CLOSE_GRACE_SECS * 1000);
    assert!(CRASH_BACKOFF_MS <= CRASH_BACKOFF_MOST_MS && CRASH_BACKOFF_MOST_MS < CRASH_WINDOW_SECS * 1000);
};
