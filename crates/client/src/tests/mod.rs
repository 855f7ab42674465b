//! The client against a server of a few lines that does what the test tells it to, faults included.

mod calls;
mod follow;
mod server;
