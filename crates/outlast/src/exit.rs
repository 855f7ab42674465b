//! How the program ends: one code for each thing a script may want to tell apart, and one error type that
//! knows which code it is.

use protocol::Outcome;
use std::{io, process::ExitCode};

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// An exit code. Documented in `--help`; a number never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Exit { $($(#[$doc])* $name,)* }

        impl Exit {
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub(crate) const fn code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }
        }

        /// The last part of `outlast --help`.
        pub(crate) const TABLE: &str = concat!("Exit codes:\n", $("  ", $code, "\t", $text, "\n",)*);
    };
}

exits! {
    Done = 0, "done; for `run`: the turn ended as done";
    Broken = 1, "something failed on this side, or `doctor` found a fault";
    Usage = 2, "the command line or the configuration is wrong";
    Refused = 3, "the server refused";
    Unreachable = 4, "the server cannot be reached, or its answer cannot be used";
    Forced = 5, "`serve` was stopped by a second signal, without grace";
    Failed = 10, "`run`: the turn failed";
    Cancelled = 11, "`run`: the turn was cancelled";
    TimedOut = 12, "`run`: the turn timed out";
    Interrupted = 13, "`run`: the turn was interrupted (agent, session or server went away)";
    Left = 14, "`run`: left by Ctrl-C while the turn goes on";
    Pipe = 141, "whoever read the output stopped reading";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl From<Outcome> for Exit {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Done,
            Outcome::Failed => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::TimedOut => Self::TimedOut,
            Outcome::Interrupted => Self::Interrupted,
        }
    }
}

/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A sentence about the command line or the configuration.
    #[error("{0}")]
    Usage(String),
    /// A sentence about this machine.
    #[error("{0}")]
    Broken(String),
    #[error("the output was closed")]
    Pipe,
}

impl Failure {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Client(error) => match error {
                client::Error::Refused { .. } => Exit::Refused,
                client::Error::Address(_) | client::Error::Key => Exit::Usage,
                client::Error::Archive(_) | client::Error::Setup(_) => Exit::Broken,
                client::Error::Foreign { .. }
                | client::Error::Unreachable { .. }
                | client::Error::TimedOut { .. }
                | client::Error::Protocol(_)
                | client::Error::Newer(_) => Exit::Unreachable,
            },
            Self::Usage(_) => Exit::Usage,
            Self::Broken(_) => Exit::Broken,
            Self::Pipe => Exit::Pipe,
        }
    }

    /// What stderr should still hear; nothing when nobody listens.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Pipe => None,
            Self::Client(error) => {
                let hint = match error.status() {
                    Some(401) => {
                        " (give a key with --key or OUTLAST_KEY, or name the server's --data folder)"
                    }
                    Some(403) => " (use a key with a wider scope; `outlast key ls` shows them)",
                    _ => "",
                };
                Some(format!("{error}{hint}"))
            }
            Self::Usage(_) | Self::Broken(_) => Some(self.to_string()),
        }
    }
}

/// Only writes to the terminal end here: other input and output says what it was about.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Pipe;
        }
        Self::Broken(format!("the output cannot be written: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_means_one_thing() {
        let codes: std::collections::BTreeSet<_> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes.len(), Exit::ALL.len());
        for exit in Exit::ALL {
            assert!(TABLE.contains(&format!("  {}\t", exit.code())), "{exit:?}");
        }
    }

    #[test]
    fn only_a_done_turn_is_a_success() {
        for outcome in [Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut, Outcome::Interrupted] {
            assert_ne!(Exit::from(outcome).code(), 0);
        }
        assert_eq!(Exit::from(Outcome::Done).code(), 0);
    }
}
