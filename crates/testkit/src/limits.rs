//! How long the kit waits for anything. A passed limit is a failed test, never a longer wait.

use std::time::Duration;

/// From spawning the server to its line on stdout. Generous: the suite runs many servers on few cores.
pub const START: Duration = Duration::from_secs(60);
/// From SIGTERM to the server's exit.
pub const STOP: Duration = Duration::from_secs(60);
/// One HTTP call, or the next frame of a stream that is due.
pub const CALL: Duration = Duration::from_secs(60);
/// A program that is run to its end.
pub const RUN: Duration = Duration::from_secs(300);
/// Until every accepted turn has its outcome.
pub const SETTLE: Duration = Duration::from_secs(60);
/// One HTTP head.
pub const HEAD_BYTES: usize = 64 * 1024;
/// One server-sent event: an event of the largest size and what is written around it.
pub const FRAME_BYTES: usize = 64 * 1024 * 1024;
/// Shown of a server's log when a test fails.
pub const LOG_TAIL_BYTES: usize = 16 * 1024;
