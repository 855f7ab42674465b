//! Conversations with the built binary. One test program, so that it links once; one module for each subject.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking and says why"
)]

mod acp_client;
mod acp_door;
mod afar;
mod afar_faults;
mod afar_kit;
mod afar_plain;
mod agents;
mod bad_input;
mod cli;
mod crash;
mod doctor;
mod faults;
mod files;
mod forks;
mod kit;
mod leaks;
mod lifecycle;
mod mcp;
mod mcp_bridge;
mod misbehaviour;
mod packaging;
mod prompts;
mod public_clients;
mod rpc;
mod sandbox;
mod secrets;
mod storage;
mod streams;
mod survival;
mod tenants;
mod terms;
mod watch;
mod workspaces;
