//! The keeper: a small, static, single-threaded supervisor that holds a sandbox's processes while servers come and
//! go.
//!
//! A server starts one for each sandbox and speaks to it over a socket in a private folder ([`wire`]). The keeper
//! lives outside the sandbox's namespaces and cgroup. It spools what processes write until a server has recorded it,
//! takes input once by its number, freezes and kills whole trees, and carries the sandbox's way out. It must not know
//! of journals, sessions or agents, and it has no runtime, no logger and no parser of anything but its own frames
//! and the head of a proxied request. The same program, uploaded, is both ends of a connection to a keeper on another
//! machine ([`roles`]).

pub mod cgroup;
mod channel;
pub mod codec;
pub mod config;
mod egress;
mod keeper;
mod kernel;
mod launch;
mod line;
mod poller;
mod process;
pub mod roles;
mod sandbox;
mod shell;
mod spool;
mod start;
mod sys;
mod tree;
pub mod wire;

pub use channel::{INPUT_BYTES, OUTPUT_BYTES};
pub use shell::quoted;
pub use start::Failure;
