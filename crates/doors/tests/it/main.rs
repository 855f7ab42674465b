//! The door over a real socket, with real sessions behind it and a small agent written in shell.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod bodies;
mod streams;
mod support;
