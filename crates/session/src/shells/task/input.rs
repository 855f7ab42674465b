//! What callers write to a running command: held until the keeper has it, and sent again over a new connection, so that
//! nobody is told of bytes as written that went into a dead one.

use super::{asks::no_input, *};

/// Input that the keeper has not acknowledged.
pub(super) struct Sent {
    command: u64,
    number: u64,
    bytes: bytes::Bytes,
    reply: Option<Reply<u64>>,
}

/// One command's input, or that of several while one ends.
#[derive(Default)]
pub(super) struct Inputs {
    sent: VecDeque<Sent>,
    /// The command whose input was closed last.
    closed: Option<u64>,
}

impl ShellTask {
    pub(super) fn on_write(&mut self, command: u64, bytes: bytes::Bytes, eof: bool, reply: Reply<u64>) {
        if self.is_away() {
            return drop(reply.send(Err(away())));
        }
        let mut taken = bytes.is_empty();
        if !taken {
            self.step(|machine, _, out| taken = machine.write(command, bytes, out));
        }
        if eof && taken {
            self.step(|machine, _, out| taken = machine.close_input(command, out));
            self.inputs.closed = taken.then_some(command);
        }
        match self.inputs.sent.back_mut() {
            _ if !taken => drop(reply.send(Err(no_input(command)))),
            // The newest is this one: nothing else is written in between.
            Some(sent) if sent.reply.is_none() => sent.reply = Some(reply),
            Some(_) | None => drop(reply.send(Ok(0))),
        }
    }

    /// Keeps what is about to be sent.
    pub(super) fn keep_input(&mut self, number: u64, bytes: &bytes::Bytes) {
        let Some(command) = self.machine.as_ref().and_then(shell::Shell::running) else { return };
        self.inputs.sent.push_back(Sent { command, number, bytes: bytes.clone(), reply: None });
    }

    pub(super) fn on_input_taken(&mut self, number: u64) {
        while self.inputs.sent.front().is_some_and(|sent| sent.number <= number) {
            let Some(Sent { bytes, reply: Some(reply), .. }) = self.inputs.sent.pop_front() else { continue };
            let _ = reply.send(Ok(bytes.len() as u64));
        }
    }

    pub(super) fn on_input_refused(&mut self, number: u64) {
        let Some(at) = self.inputs.sent.iter().position(|sent| sent.number == number) else { return };
        if let Some(Sent { command, reply: Some(reply), .. }) = self.inputs.sent.remove(at) {
            let _ = reply.send(Err(no_input(command)));
        }
    }

    /// The command ended without having had it.
    pub(super) fn drop_input(&mut self, command: u64) {
        let (gone, rest): (VecDeque<Sent>, _) =
            self.inputs.sent.drain(..).partition(|sent| sent.command == command);
        self.inputs.sent = rest;
        for reply in gone.into_iter().filter_map(|sent| sent.reply) {
            let _ = reply.send(Err(no_input(command)));
        }
    }

    pub(super) fn fail_input(&mut self, fault: &Fault) {
        let sent = std::mem::take(&mut self.inputs).sent;
        for reply in sent.into_iter().filter_map(|sent| sent.reply) {
            let _ = reply.send(Err(fault.clone()));
        }
    }

    /// Over a new connection: a keeper that had it already says so again.
    pub(super) fn send_input_again(&mut self) {
        let Some(running) = self.machine.as_ref().and_then(shell::Shell::running) else { return };
        for sent in self.inputs.sent.iter().filter(|sent| sent.command == running) {
            self.pen.then(Deed::Write { number: sent.number, bytes: sent.bytes.clone() });
        }
        if self.inputs.closed == Some(running) {
            self.pen.then(Deed::CloseInput);
        }
    }

    /// Whether the way to the shell is being made again.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.link, Link::Rejoining(..))
    }
}

/// For what cannot be held until the way is there again.
pub(super) fn away() -> Fault {
    Fault::new(Code::Unreachable, "The connection to the shell's machine is being made again; try again soon")
}
