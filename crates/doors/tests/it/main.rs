//! The door over a real socket, with real sessions behind it and a small agent written in shell.

mod bodies;
mod streams;
mod support;
