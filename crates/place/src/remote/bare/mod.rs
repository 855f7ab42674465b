//! A stand-in for a keeper where none can run: another processor, folders that run nothing, an operator who forbids it.
//!
//! It speaks a keeper's language to this server, over a pipe in memory, so that whoever drives a shell need not know. Over
//! there are two sessions of the same connection: the *line*, a plain shell that reads its commands from it, and the
//! *hand*, a shell of ours that reads the command's output from files and sends signals ([`script`]). What that gives up
//! is said in [`Manner::lesser`]; above all, a shell ends with its connection, and is never taken up again.

mod hand;
mod script;

use super::{RemoteError, channel::Link};
use crate::keeper::Pipe;
use ::keeper::{
    codec::Blob,
    wire::{
        self, Ended, Exit, How, InputRefusal, Isolation, Manner, Mode, Notice, Part, Refusal, Request, Spawn,
        SpawnFailure, Tree, command_stream,
    },
};
use hand::{Caught, Hand};
use std::{io, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::Instant,
};

/// What of an answer that has no end by then is let go, but for its last part.
const HEARD_BYTES: usize = 64 * 1024;
/// How soon a running command's output is fetched, and how seldom when it says nothing.
const FETCH_FIRST: Duration = Duration::from_millis(20);
const FETCH_LAST: Duration = Duration::from_millis(500);
/// How much may wait between this server and the stand-in.
const PIPE_BYTES: usize = 256 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// What a server is told of a folder or a program that is not there, as Linux numbers it.
const NOT_FOUND: i32 = 2;

/// Starts one; what is on the other end of the pipe says hello as to a keeper.
pub(super) async fn start(link: &Link, folder: &str) -> Result<Pipe, RemoteError> {
    let hand = Hand::open(link, folder).await?;
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let stand = Stand {
        link: link.clone(),
        folder: folder.to_owned(),
        server: ours,
        hand,
        line: None,
        run: None,
        arriving: Vec::new(),
        last: (0, 0),
    };
    // It ends with either of its two connections, and both are then gone.
    tokio::spawn(async move {
        let whom = stand.link.whom();
        if let Err(error) = stand.serve().await {
            tracing::info!(whom, %error, "a plain shell's connection ended");
        }
    });
    let (read, write) = tokio::io::split(theirs);
    Ok(Pipe { read: Box::new(read), write: Box::new(write), hold: Box::new(()) })
}

struct Stand {
    link: Link,
    folder: String,
    server: DuplexStream,
    hand: Hand,
    line: Option<Line>,
    run: Option<Run>,
    /// Of a command's text.
    arriving: Vec<u8>,
    /// The last command's number, and its status.
    last: (u64, i32),
}

/// The shell.
struct Line {
    pipe: Pipe,
    process: u64,
    heard: Vec<u8>,
    end: String,
    doing: Doing,
}

enum Doing {
    Starting {
        tag: u32,
        nonce: String,
    },
    Idle,
    Running {
        nonce: String,
    },
    /// It said that it ended, and nothing more is expected.
    Dead,
}

/// A command that runs, or whose end is being read.
struct Run {
    command: u64,
    since: Instant,
    /// Of standard output and standard error: what was read, and what the server has room for.
    read: [u64; 2],
    room: [u64; 2],
    ended: Option<(How, Option<Vec<u8>>)>,
    /// Whether what is being fetched was asked for after the end.
    last: bool,
    next: Option<Instant>,
    wait: Duration,
    /// Until the hand has its files.
    text: Option<Vec<u8>>,
}

enum Heard {
    Server(usize),
    Line(usize),
    Hand(usize),
    Tick,
}

fn closed() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

impl Stand {
    async fn serve(mut self) -> io::Result<()> {
        let mut asked = Vec::new();
        loop {
            let tick = self.run.as_ref().and_then(|run| run.next);
            let readable = self.hand.has_room();
            asked.reserve(READ_BYTES);
            let heard = tokio::select! {
                read = self.server.read_buf(&mut asked) => Heard::Server(read?),
                read = hear(&mut self.line) => Heard::Line(read?),
                read = self.hand.read(), if readable => Heard::Hand(read?),
                () = until(tick) => Heard::Tick,
            };
            match heard {
                // The server went: the hand cleans up when it hears nothing more.
                Heard::Server(0) => return Ok(()),
                Heard::Server(_) => {
                    let mut used = 0;
                    while let Some((body, length)) =
                        wire::split(&asked[used..], wire::FRAME_BYTES).map_err(io::Error::other)?
                    {
                        let request = wire::read(body).map_err(io::Error::other)?;
                        used += length;
                        if !self.on_request(request).await? {
                            return Ok(());
                        }
                    }
                    asked.drain(..used);
                }
                // A shell that ends says so first.
                Heard::Line(0) => return Err(closed()),
                Heard::Line(_) => self.on_line().await?,
                Heard::Hand(0) => return Err(closed()),
                Heard::Hand(_) => {}
                Heard::Tick => self.fetch().await?,
            }
            self.on_hand().await?;
        }
    }

    async fn tell(&mut self, notice: Notice) -> io::Result<()> {
        let mut bytes = Vec::new();
        wire::frame(&notice, &mut bytes).map_err(|_| io::Error::other("a notice is too long"))?;
        self.server.write_all(&bytes).await
    }

    async fn refuse(&mut self, tag: u32, reason: Refusal, text: &str) -> io::Result<()> {
        self.tell(Notice::Refused { tag, reason, text: text.to_owned() }).await
    }

    /// False when it was told to end.
    async fn on_request(&mut self, request: Request) -> io::Result<bool> {
        match request {
            Request::Hello { .. } => self.welcome().await?,
            Request::StartShell { tag, spawn } => self.start_shell(tag, spawn).await?,
            Request::RunCommand { tag, command, part, text, .. } => {
                self.arriving.extend(text.0);
                if part == Part::Last {
                    let text = std::mem::take(&mut self.arriving);
                    self.run_command(tag, command, text).await?;
                }
            }
            Request::Subscribe { fd, upto, .. } | Request::Want { fd, upto, .. } => self.give_room(fd, upto),
            Request::Input { process, fd, number, part: Part::Last, .. } => {
                let reason = InputRefusal::NoChannel;
                self.tell(Notice::InputRefused { process, fd, number, reason }).await?;
            }
            Request::Input { .. } | Request::CloseInput { .. } | Request::Ack { .. } => {}
            Request::SignalCommand { signal, whom, .. } => self.hand.signal(whom, signal).await?,
            Request::Shutdown { tag } | Request::Kill { tag, .. } | Request::Forget { tag, .. } => {
                self.hand.leave().await?;
                self.tell(Notice::Done { tag }).await?;
                return Ok(false);
            }
            Request::SetOrphanTimeout { tag, .. } => self.tell(Notice::Done { tag }).await?,
            Request::Spawn { tag, .. }
            | Request::Signal { tag, .. }
            | Request::Freeze { tag, .. }
            | Request::Thaw { tag, .. }
            | Request::List { tag }
            | Request::ShellState { tag, .. }
            | Request::SavedState { tag, .. }
            | Request::Remember { tag, .. } => {
                let text = "no keeper runs on the shell's machine, and without one this cannot be done";
                self.refuse(tag, Refusal::Unsupported, text).await?;
            }
        }
        Ok(true)
    }

    async fn welcome(&mut self) -> io::Result<()> {
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch).map_err(io::Error::other)?;
        let isolation = Isolation {
            mode: Mode::Host,
            tree: Tree::Walk,
            limits: Vec::new(),
            missing: Vec::new(),
            pid: 0,
            init: None,
            proxy: None,
        };
        let (version, epoch, processes) = (wire::VERSION, u64::from_le_bytes(epoch), Vec::new());
        self.tell(Notice::Welcome { version, epoch, isolation, processes }).await
    }

    async fn start_shell(&mut self, tag: u32, spawn: Spawn) -> io::Result<()> {
        let end = nonce()?;
        let argv: Vec<String> =
            spawn.argv.iter().map(|word| String::from_utf8_lossy(&word.0).into_owned()).collect();
        let mut pipe = match self.link.open(&script::line(&argv, &end)).await {
            Ok(channel) => channel.pipe,
            Err(error) => return self.refuse(tag, Refusal::Failed, &error.to_string()).await,
        };
        let env: Vec<Vec<u8>> = spawn.env.into_iter().map(|entry| entry.0).collect();
        let cwd = Some(spawn.cwd.0.as_slice()).filter(|cwd| !cwd.is_empty());
        let nonce = nonce()?;
        pipe.write.write_all(&script::outfit(&env, cwd, &self.folder, &nonce)).await?;
        pipe.write.flush().await?;
        let doing = Doing::Starting { tag, nonce };
        self.line = Some(Line { pipe, process: spawn.process, heard: Vec::new(), end, doing });
        Ok(())
    }

    async fn run_command(&mut self, tag: u32, command: u64, text: Vec<u8>) -> io::Result<()> {
        let Some(line) = &self.line else {
            return self.refuse(tag, Refusal::Ended, "there is no shell").await;
        };
        match line.doing {
            _ if command <= self.last.0 => return self.tell(Notice::Done { tag }).await,
            Doing::Idle => {}
            Doing::Dead => return self.refuse(tag, Refusal::Ended, "the shell has ended").await,
            Doing::Starting { .. } | Doing::Running { .. } => {
                return self.refuse(tag, Refusal::BadRequest, "another command runs").await;
            }
        }
        self.last.0 = command;
        self.run = Some(Run {
            command,
            since: Instant::now(),
            read: [0; 2],
            room: [0; 2],
            ended: None,
            last: false,
            next: None,
            wait: FETCH_FIRST,
            text: Some(text),
        });
        self.hand.begin().await?;
        self.tell(Notice::Done { tag }).await
    }

    fn give_room(&mut self, fd: u32, upto: u64) {
        let Some(run) = &mut self.run else { return };
        for index in 0..run.room.len() {
            if fd == command_stream(run.command, index as u32 + 1) {
                run.room[index] = run.room[index].max(upto);
            }
        }
    }

    async fn fetch(&mut self) -> io::Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.next = None;
        run.last = run.ended.is_some();
        self.hand.fetch().await
    }

    /// The shell said something.
    async fn on_line(&mut self) -> io::Result<()> {
        let Some(line) = &mut self.line else { return Ok(()) };
        let process = line.process;
        let answer = match &line.doing {
            Doing::Starting { nonce, .. } | Doing::Running { nonce } => script::answer(&line.heard, nonce),
            Doing::Idle | Doing::Dead => None,
        };
        if let Some((word, pid, cwd)) = answer {
            line.heard.clear();
            return match std::mem::replace(&mut line.doing, Doing::Idle) {
                Doing::Starting { tag, .. } => self.on_started(tag, process, &word, &pid, cwd).await,
                Doing::Running { .. } => {
                    self.last.1 = word.parse().unwrap_or_default();
                    self.on_end(How::Returned { code: self.last.1 }, Some(cwd)).await
                }
                Doing::Idle | Doing::Dead => Ok(()),
            };
        }
        if let Some(code) = script::ended(&line.heard, &line.end) {
            let exit = Exit { code: Some(code), signal: None };
            return match std::mem::replace(&mut line.doing, Doing::Dead) {
                Doing::Starting { tag, .. } => {
                    let failure = SpawnFailure::Exec;
                    self.tell(Notice::SpawnFailed { tag, process, failure, errno: NOT_FOUND }).await
                }
                Doing::Idle if self.run.is_none() => self.tell(Notice::Exited { process, exit }).await,
                Doing::Idle | Doing::Running { .. } | Doing::Dead => {
                    self.on_end(How::Died { exit }, None).await
                }
            };
        }
        if line.heard.len() > HEARD_BYTES {
            // Nobody but a command that looked for it writes so much here.
            line.heard.drain(..HEARD_BYTES / 2);
        }
        Ok(())
    }

    async fn on_started(
        &mut self,
        tag: u32,
        process: u64,
        word: &str,
        pid: &str,
        cwd: Vec<u8>,
    ) -> io::Result<()> {
        let Ok(pid) = pid.parse::<u32>() else { return Err(closed()) };
        if word == script::OUT {
            self.line = None;
            let failure = SpawnFailure::BadCwd;
            return self.tell(Notice::SpawnFailed { tag, process, failure, errno: NOT_FOUND }).await;
        }
        self.hand.drives(pid).await?;
        self.tell(Notice::Spawned { tag, process, pid }).await?;
        self.tell(Notice::ShellReady { process, cwd: Blob(cwd), manner: Manner::Bare }).await
    }

    /// The command is over; what it wrote is still to be read.
    async fn on_end(&mut self, how: How, cwd: Option<Vec<u8>>) -> io::Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        if run.ended.is_none() {
            run.ended = Some((how, cwd));
        }
        // Else it is being fetched, and is fetched once more then.
        if run.next.is_some() { self.fetch().await } else { Ok(()) }
    }

    async fn on_hand(&mut self) -> io::Result<()> {
        loop {
            let room = self.run.as_ref().map_or([0; 2], |run| {
                [run.room[0].saturating_sub(run.read[0]), run.room[1].saturating_sub(run.read[1])]
            });
            match self.hand.next(room) {
                None => return Ok(()),
                Some(Caught::Begun) => self.give().await?,
                Some(Caught::Bytes { index, bytes }) => self.on_output(index, bytes).await?,
                Some(Caught::Fetched) => self.on_fetched().await?,
            }
        }
    }

    /// The hand has the files; now the shell gets the command.
    async fn give(&mut self) -> io::Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.next = Some(Instant::now() + run.wait);
        let Some(text) = run.text.take() else { return Ok(()) };
        let Some(line) = self.line.as_mut().filter(|line| matches!(line.doing, Doing::Idle)) else {
            return self.on_end(How::NotRun {}, None).await;
        };
        let nonce = nonce()?;
        let text = script::command(&text, self.last.1, &self.folder, &nonce);
        line.doing = Doing::Running { nonce };
        line.pipe.write.write_all(&text).await?;
        line.pipe.write.flush().await
    }

    async fn on_output(&mut self, index: usize, bytes: Vec<u8>) -> io::Result<()> {
        let (Some(run), Some(line)) = (&mut self.run, &self.line) else { return Ok(()) };
        let (process, offset) = (line.process, run.read[index]);
        let fd = command_stream(run.command, index as u32 + 1);
        run.read[index] += bytes.len() as u64;
        run.wait = FETCH_FIRST;
        self.tell(Notice::Output { process, fd, offset, bytes: Blob(bytes) }).await
    }

    async fn on_fetched(&mut self) -> io::Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        if run.ended.is_none() {
            run.next = Some(Instant::now() + run.wait);
            run.wait = (run.wait * 2).min(FETCH_LAST);
            return Ok(());
        }
        if !run.last {
            return self.fetch().await;
        }
        let (Some(run), Some(line)) = (self.run.take(), &self.line) else { return Ok(()) };
        let process = line.process;
        let Some((how, cwd)) = run.ended else { return Ok(()) };
        let ended = Ended {
            command: run.command,
            how,
            cwd: cwd.map(Blob),
            stdout: run.read[0],
            stderr: run.read[1],
            milliseconds: u64::try_from(run.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            left: Vec::new(),
        };
        self.hand.finish().await?;
        self.tell(Notice::CommandEnded { process, ended }).await
    }
}

/// More of what the shell says; for ever when there is none that could say anything.
async fn hear(line: &mut Option<Line>) -> io::Result<usize> {
    match line {
        Some(line) if matches!(line.doing, Doing::Dead) => std::future::pending().await,
        Some(line) => line.pipe.read.read_buf(&mut line.heard).await,
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A word that nobody knew before.
fn nonce() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
