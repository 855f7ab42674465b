//! A typed client for an Outlast server: one method per REST call, and an event stream that reconnects and
//! resumes by itself.
//!
//! The command line, the test kit and programs of others use it. It knows the wire and nothing of the server's
//! insides, reads no environment and prints nothing. Every wait, retry and buffer in it has a bound; the
//! waits are in [`Patience`].

mod backoff;
mod calls;
mod error;
mod files;
mod http;
mod send;
mod sse;
mod stream;
mod target;
#[cfg(test)]
mod tests;

pub use backoff::Patience;
pub use calls::{Archive, Logs, SessionPage};
pub use error::Error;
pub use files::{Download, Removal};
pub use http::Client;
pub use send::Sent;
pub use sse::{Frame, FrameError, Frames};
pub use stream::{EventStream, Followed};
pub use target::Target;
