//! The commands, one module each. They ask the server through the client and print through `term`.

pub(crate) mod acp;
mod add;
pub(crate) mod agents;
pub(crate) mod doctor;
pub(crate) mod files;
pub(crate) mod logs;
pub(crate) mod mcp;
pub(crate) mod mcp_config;
pub(crate) mod run;
pub(crate) mod secrets;
pub(crate) mod serve;
pub(crate) mod sessions;
mod trial;
mod watch;

use crate::term::Term;
use client::Client;

/// What every command that asks the server needs.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) client: Client,
    pub(crate) term: &'a Term,
}
