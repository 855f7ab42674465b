//! A command on its way to a shell: its text, which becomes a file, its streams, and what it can do to the shell.

use super::{
    Shell,
    plain::{self, Sight},
    script,
    site::{self, Site},
};
use crate::wire::CommandInput;
use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
};

/// A command with everything that it needs.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) command: u64,
    pub(super) script: Script,
    pub(super) stdin: Option<String>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// A command's text, as a file.
#[derive(Debug)]
pub(crate) struct Script {
    pub(super) name: String,
    pub(super) pipes: Pipes,
    pub(super) effect: Effect,
}

/// What a command can do to the state of its shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    Any,
}

/// Whether a script says what the statuses of its last pipeline were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pipes {
    Told,
    Untold,
}

/// A text of which a part has come.
#[derive(Debug)]
pub(super) struct Arriving {
    command: u64,
    name: String,
    file: OwnedFd,
    length: usize,
}

impl Arriving {
    pub(super) fn command(&self) -> u64 {
        self.command
    }
}

/// The keeper's ends of a command's streams.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl Shell {
    /// Takes a part of a command's text. The file, once it is whole.
    pub(crate) fn take_text(
        &mut self,
        command: u64,
        bytes: &[u8],
        last: bool,
        limit: usize,
    ) -> Result<Option<Script>, Errno> {
        let site = self.site.as_ref().ok_or(Errno::NOENT)?;
        let first = self.arriving.as_ref().is_none_or(|arriving| arriving.command != command);
        if first && let Some(old) = self.arriving.take() {
            site.remove(&old.name);
        }
        let before = match &self.glass {
            _ if !first => Vec::new(),
            Some(Sight::Told(plain)) => plain::prologue(bytes, plain.code),
            Some(Sight::Seen(_)) | None => script::prologue(bytes, &self.pipes),
        };
        if first && last {
            return Ok(Some(self.write_text(&[&before, bytes].concat(), bytes, limit)?));
        }
        if first {
            let name = site::fresh()?;
            let file = site.file(&name)?;
            self.arriving = Some(Arriving { command, name, file, length: 0 });
        }
        let Some(arriving) = &mut self.arriving else { return Ok(None) };
        arriving.length += bytes.len();
        let fits = if arriving.length > limit { Err(Errno::FBIG) } else { Ok(()) };
        let file = arriving.file.as_fd();
        if let Err(error) =
            fits.and_then(|()| site::write_all(file, &before)).and_then(|()| site::write_all(file, bytes))
        {
            site.remove(&arriving.name);
            self.arriving = None;
            return Err(error);
        }
        let whole = if last { self.arriving.take() } else { None };
        Ok(whole.map(|arriving| Script { name: arriving.name, pipes: Pipes::Untold, effect: Effect::Any }))
    }

    /// A text that came in one piece.
    fn write_text(&self, whole: &[u8], text: &[u8], limit: usize) -> Result<Script, Errno> {
        let site = self.site.as_ref().ok_or(Errno::NOENT)?;
        if text.len() > limit {
            return Err(Errno::FBIG);
        }
        let mut whole = std::borrow::Cow::Borrowed(whole);
        let mut pipes = Pipes::Untold;
        let after = script::epilogue(text);
        if !after.is_empty() && self.glass.as_ref().is_some_and(Sight::quiet) {
            whole.to_mut().extend(after);
            pipes = Pipes::Told;
        }
        let neutral = self.glass.as_ref().is_some_and(|glass| glass.neutral(&whole));
        let effect = if neutral { Effect::None } else { Effect::Any };
        let name = site::fresh()?;
        match site.write(&name, &whole) {
            Ok(()) => Ok(Script { name, pipes, effect }),
            // A command may be what makes room.
            Err(Errno::NOSPC | Errno::DQUOT) => {
                site.remove(&name);
                site.write_spare(&whole).map(|name| Script { name, pipes, effect })
            }
            Err(error) => {
                site.remove(&name);
                Err(error)
            }
        }
    }

    /// Makes a command's streams.
    pub(crate) fn prepare(
        &mut self,
        command: u64,
        script: Script,
        stdin: CommandInput,
    ) -> Result<(Order, Streams), Errno> {
        let site = self.site.as_ref().ok_or(Errno::NOENT)?;
        let (stdout, stderr) = (site::fresh()?, site::fresh()?);
        let out = site.queue(&stdout, site::Side::Reader)?;
        let err = site.queue(&stderr, site::Side::Reader)?;
        let (stdin, input) = match stdin {
            CommandInput::Empty => (None, None),
            CommandInput::Open => {
                let name = site::fresh()?;
                let queue = site.queue(&name, site::Side::Both)?;
                (Some(name), Some(queue))
            }
        };
        self.command = command;
        self.ended = None;
        let order = Order { command, script, stdin, stdout, stderr };
        Ok((order, Streams { stdin: input, stdout: out, stderr: err }))
    }
}

impl Order {
    pub(super) fn forget(&self, site: &Site) {
        for name in [Some(&self.script.name), Some(&self.stdout), Some(&self.stderr), self.stdin.as_ref()] {
            name.into_iter().for_each(|name| site.remove(name));
        }
    }
}
