//! What lives in a session: machines that turn prompts and process output into events and effects.
//!
//! A machine here is pure and synchronous. It takes bytes, commands and the time, and leaves in a [`Cx`] what
//! is to be recorded and what is to be done once that is durable. The session task drives it and owns the
//! process, the journal and the clock; this room knows none of them. [`Acp`] is any agent that speaks the Agent
//! Client Protocol v1 on its standard input and output; [`shell`] is one persistent shell.

mod acp;
mod cx;
pub mod fence;
mod redact;
pub mod shell;
pub mod text;
mod transcript;

pub use acp::{
    Acp, Ask, AskId, Before, Begin, Done, PlaceOffers, Saved, Spent, Terminal, TerminalExit, Terms,
    TurnLimits, Whose,
};
pub use cx::{Cx, Drained, Effect, Said};
pub use redact::Redactor;
pub use transcript::{TRANSCRIPT_BYTES, Transcript};
