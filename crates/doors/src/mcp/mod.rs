//! Shells for agents, as MCP tools: Streamable HTTP at `/mcp`, and a stream of messages at `/mcp/stream` for the
//! bridge that `outlast mcp` is.
//!
//! Thin like the other doors. The SDK (rmcp) speaks the protocol in all its versions; [`tools`] is the one table
//! of what can be called, [`arguments`] is what each takes, [`schema`] says the same to callers, and [`exec`] waits
//! for a command and tells what it writes. A shell belongs to its tenant and never to a connection: hanging up
//! cancels nothing, except where the protocol's version says that it is how a call is cancelled.

mod arguments;
mod calls;
mod exec;
mod handler;
mod http;
mod line;
mod own;
mod schema;
mod stream;
mod tools;

use std::time::Duration;

pub(crate) use http::{PATH, route};
pub(crate) use stream::{STREAM_PATH, open as open_stream};

/// Calls under way at once, over all connections; the next ones are refused.
pub(crate) const CALLS: usize = 4_096;
/// The longest that an answer may let its caller wait: the longest command, and some.
pub(crate) const CALL_TIME: Duration = Duration::from_secs(arguments::MAX_SECS + 120);
