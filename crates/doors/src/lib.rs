//! How the outside reaches sessions: REST with server-sent events, JSON-RPC over a WebSocket, and the check of who is asking.
//!
//! A door parses, authorises, sends a command to [`session::Sessions`] and shapes the answer. It holds no state
//! of a session and decides nothing about one. This is the only room that knows HTTP statuses; it knows neither
//! SQL nor how processes are started.
//!
//! [`rest`](mod@rest) holds the calls and the one table that lists them; `gate` is what every request passes;
//! `rpc` is JSON-RPC over a WebSocket; `mcp` is shells as tools; `stream` turns events into frames; `door` is the listener with its limits and its way to stop.

mod answer;
mod docs;
mod door;
mod fault;
mod gate;
mod host;
mod intake;
mod json;
mod listen;
mod mcp;
mod metrics;
mod openapi;
mod options;
mod range;
mod reply;
mod rest;
mod rpc;
mod stream;
mod upload;

pub use door::{BindError, Door, ServeError};
pub use metrics::Visitors;
pub use openapi::document as openapi_document;
pub use options::{DocsPage, Limits, Options};
