//! The two copiers: one thread reads stdin and writes to the server, the other reads from the server and writes to
//! stdout. Plain blocking reads and writes, because nothing is quicker between two pipes.
//!
//! When the stream ends, the second thread looks for the server again, has one started where that is fitting, and
//! says to it what the [`Ledger`] says; meanwhile the first one waits. When stdin ends, so does the bridge; what
//! runs in sessions goes on.

use super::{
    connect::{self, Connection, Hello, Refused, Stream},
    ledger::{Ledger, Pass},
    watch,
};
use crate::{
    background::Server,
    exit::{Exit, Failure},
};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write as _},
    os::fd::AsFd as _,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// A longer line passes in pieces, unwatched; the server refuses it.
const LINE_BYTES: usize = 2 * protocol::limits::REQUEST_BYTES;
const READ_BYTES: usize = 64 * 1024;
/// How long a server may be away before everything that waits is answered.
const AWAY: Duration = Duration::from_secs(120);
/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(50);
/// For answers under way when stdin has ended.
const LINGER: Duration = Duration::from_secs(2);

pub(super) struct Bridge {
    server: Server,
    hello: Hello,
    runtime: Handle,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Where lines go; nothing while the server is away.
    stream: Option<Arc<Stream>>,
    ledger: Ledger,
    input: Input,
}

/// How far stdin is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Input {
    #[default]
    Open,
    Ended,
}

/// Why the copying ended.
enum Ending {
    /// Stdin ended, or nobody reads stdout.
    ClientLeft,
    Broken(Failure),
}

impl Bridge {
    pub(super) fn new(server: Server, hello: Hello, runtime: Handle) -> Self {
        Self { server, hello, runtime, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Copies until the client leaves.
    pub(super) fn run(self: &Arc<Self>) -> Result<Exit, Failure> {
        // The first connection is made before anything is read: what fails now fails with a sentence.
        let connection = match self.open() {
            Ok(connection) => connection,
            Err(Refused::Away(_)) => match self.find()? {
                Some(connection) => connection,
                None => return Ok(Exit::Done),
            },
            Err(Refused::Final(text)) => return Err(Failure::Broken(text)),
        };
        let up = Arc::clone(self);
        let threads = |error: io::Error| Failure::Broken(format!("a thread cannot be started: {error}"));
        // It ends with the client's end of the pipe, or with the process: nothing else can end a read.
        std::thread::Builder::new()
            .name("mcp-stdin".to_owned())
            .spawn(move || up.copy_up())
            .map_err(threads)?;
        match self.copy_down(connection) {
            Ending::ClientLeft => Ok(Exit::Done),
            Ending::Broken(failure) => Err(failure),
        }
    }

    fn copy_up(&self) {
        // An unreadable stdin is one that has ended.
        let _ = self.read_stdin();
        let mut state = self.state();
        state.input = Input::Ended;
        if let Some(stream) = &state.stream {
            let _ = stream.finish();
        }
        let waiting = |state: &mut State| !state.ledger.is_settled();
        let waited = self.changed.wait_timeout_while(state, LINGER, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = &state.stream {
            let _ = stream.close();
        }
    }

    fn read_stdin(&self) -> io::Result<()> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut stdin = BufReader::with_capacity(READ_BYTES, stdin);
        let mut line = vec![];
        let mut whole = true;
        while let Some(got) = read_line(&mut stdin, &mut line)? {
            let stream = {
                let mut state = self.state();
                while state.stream.is_none() {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if whole && got == Got::Line {
                    state.ledger.said(watch::said(&line), &line);
                }
                state.stream.clone()
            };
            whole = got == Got::Line;
            // A stream that broke is noticed by the reading side, and what this line asked is answered there.
            let _ = stream.map(|stream| stream.send(&line));
        }
        Ok(())
    }

    fn copy_down(&self, first: Connection) -> Ending {
        let stdout = match io::stdout().as_fd().try_clone_to_owned() {
            Ok(stdout) => File::from(stdout),
            Err(_) => return Ending::ClientLeft,
        };
        let mut connection = first;
        loop {
            if self.resume(&connection.writer, &stdout).is_err() {
                return Ending::ClientLeft;
            }
            let Connection { mut reader, writer } = connection;
            self.publish(Some(Arc::new(writer)));
            if self.copy_lines(&mut reader, &stdout).is_err() || self.state().input == Input::Ended {
                return Ending::ClientLeft;
            }
            self.publish(None);
            connection = match self.find() {
                Ok(Some(connection)) => connection,
                Ok(None) => return Ending::ClientLeft,
                Err(failure) => return self.give_up(failure, &stdout),
            };
        }
    }

    /// Copies until the server's stream ends; fails when nobody reads stdout.
    fn copy_lines(&self, reader: &mut BufReader<Stream>, mut stdout: &File) -> io::Result<()> {
        let mut line = vec![];
        let mut whole = true;
        loop {
            // A stream that breaks has ended.
            let Ok(Some(got)) = read_line(reader, &mut line) else { return Ok(()) };
            let pass = if whole && got == Got::Line {
                let heard = watch::heard(&line);
                let mut state = self.state();
                let pass = state.ledger.heard(heard);
                if state.input == Input::Ended && state.ledger.is_settled() {
                    self.changed.notify_all();
                }
                pass
            } else {
                Pass::On
            };
            whole = got == Got::Line;
            if pass == Pass::On {
                stdout.write_all(&line)?;
            }
        }
    }

    /// Says to a new server what the old one was told, and to the client what cannot be known.
    fn resume(&self, writer: &Stream, mut stdout: &File) -> io::Result<()> {
        let resumption = self.state().ledger.resume();
        for line in &resumption.to_client {
            stdout.write_all(line)?;
        }
        for line in &resumption.to_server {
            // A server that is gone again is noticed when its answers are read.
            let _ = writer.send(line);
        }
        Ok(())
    }

    fn publish(&self, stream: Option<Arc<Stream>>) {
        let mut state = self.state();
        if let (Some(stream), Input::Ended) = (&stream, state.input) {
            let _ = stream.finish();
        }
        state.stream = stream;
        self.changed.notify_all();
    }

    fn open(&self) -> Result<Connection, Refused> {
        let (address, key) = self.server.door().map_err(|failure| Refused::Final(failure.to_string()))?;
        connect::connect(&address, &key, &self.hello)
    }

    /// Looks for the server, or has one started, until it is there or the client has left.
    fn find(&self) -> Result<Option<Connection>, Failure> {
        let until = Instant::now() + AWAY;
        loop {
            if self.state().input == Input::Ended {
                return Ok(None);
            }
            // Still away is what the next look says.
            let renewed = self.runtime.block_on(self.server.renew());
            match self.open() {
                Ok(connection) => return Ok(Some(connection)),
                Err(Refused::Final(text)) => return Err(Failure::Broken(text)),
                Err(Refused::Away(error)) if Instant::now() > until => {
                    return Err(renewed
                        .err()
                        .unwrap_or_else(|| Failure::Broken(format!("the server does not answer: {error}"))));
                }
                Err(Refused::Away(_)) => std::thread::sleep(LOOK),
            }
        }
    }

    fn give_up(&self, failure: Failure, mut stdout: &File) -> Ending {
        let why = format!("the server went away and did not come back: {failure}");
        for line in self.state().ledger.give_up(&why) {
            if stdout.write_all(&line).is_err() {
                return Ending::ClientLeft;
            }
        }
        Ending::Broken(failure)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a read gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Got {
    Line,
    /// A part of one that is too long; more of it follows.
    Piece,
}

/// Reads a line with its end, or as much of it as is kept. None at the end of the stream.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<Got>> {
    line.clear();
    line.shrink_to(READ_BYTES);
    loop {
        let bytes = match reader.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if bytes.is_empty() {
            return Ok((!line.is_empty()).then_some(Got::Piece));
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(bytes.len(), |end| end + 1);
        line.extend_from_slice(&bytes[..taken]);
        reader.consume(taken);
        if end.is_some() {
            return Ok(Some(Got::Line));
        }
        if line.len() >= LINE_BYTES {
            return Ok(Some(Got::Piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whole_or_in_pieces() {
        let long = "x".repeat(LINE_BYTES + 2 * READ_BYTES);
        let text = format!("one\n{long}\ntwo\nrest");
        let mut reader = BufReader::new(text.as_bytes());
        let mut line = vec![];
        let mut read = vec![];
        while let Some(got) = read_line(&mut reader, &mut line).unwrap() {
            read.push((got, line.len()));
        }
        assert_eq!(read[0], (Got::Line, 4));
        assert_eq!(read[1].0, Got::Piece);
        assert_eq!(read[1].1 + read[2].1, long.len() + 1);
        assert_eq!(read[2].0, Got::Line);
        assert_eq!(&read[3..], [(Got::Line, 4), (Got::Piece, 4)]);
    }
}
