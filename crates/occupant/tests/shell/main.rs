//! Shells end to end: the machine, a real keeper, a real bash.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is a test's own code")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

mod cases;
mod driver;
mod forging;
mod restart;
mod speed;
mod time;
