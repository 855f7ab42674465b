//! Servers, faults and checks for tests and benchmarks. Never part of the shipped binary.
//!
//! Owns the harness that starts the built program ([`Server`]), a tiny HTTP and server-sent-events reader that
//! shares no code with our own client ([`Http`]), the crash checker ([`crash`]), the look for what shells leave ([`leaks`]), a scripted model ([`model`]), a small
//! MCP client ([`mcp`]), the power-loss rig ([`power`]), and real SSH servers and container engines ([`sshd`],
//! [`Engine`]). The whole-binary tests, the soak and the benchmarks call it; it refuses to wait without a
//! limit, and every limit is in [`limits`].

pub mod crash;
mod engine;
mod http;
pub mod leaks;
pub mod limits;
pub mod mcp;
pub mod model;
pub mod power;
mod process;
mod rng;
mod server;
mod socket;
pub mod sshd;

pub use engine::{Engine, Inside};
pub use http::{Connection, Frame, Http, Opened, Reply, Sse};
pub use mcp::{Mcp, McpHttp};
pub use process::{Finished, end_below, run, run_in};
pub use rng::Rng;
pub use server::{Server, Setup};
pub use socket::Socket;
