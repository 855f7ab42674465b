//! JSON-RPC 2.0 over a WebSocket at `/rpc`: the calls of an agent client, and a session's events as they come.
//!
//! Thin like the other doors: the gate has checked the key before the socket opens, each call checks its scope,
//! asks [`session::Sessions`] and shapes the answer. A socket has one task that reads, one that writes, a
//! bounded queue between them, and bounded numbers of calls and subscriptions. A reader that is slow holds up
//! its own subscriptions only: they read the journal again from where they were. Hanging up cancels nothing.

mod calls;
mod events;
mod socket;
mod wire;

pub(crate) use socket::open;

/// Sockets open at once.
pub(crate) const SOCKETS: usize = 4_096;
