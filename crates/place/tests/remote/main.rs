//! Other machines end to end: a real SSH server and a real container engine, real keepers on the other side, real shells
//! in them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is a test's own code")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

mod docker;
mod kit;
mod plain;
mod ssh;
