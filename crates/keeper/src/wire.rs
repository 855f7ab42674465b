//! What a server and a keeper say to each other over the keeper's socket.
//!
//! A frame is a `u32` length and then that many bytes: a byte for the kind, and its fields. This module is pure:
//! it makes and reads frames and does no IO. [`Request::Hello`] and the first field of [`Notice::Welcome`] never
//! change their shape, so that either side can always tell which version the other speaks; a server takes up
//! keepers from [`OLDEST`] on, because a keeper lives longer than the server that started it.

use crate::codec::{Blob, Field, Malformed, Reader, choice, put_bytes, record, word};

/// The version that this code speaks.
pub const VERSION: u16 = 3;
/// The first version that knows shells.
pub const SHELLS: u16 = 2;
/// The first version that hands a shell's state out, and takes one for a new shell.
pub const STATES: u16 = 3;
/// The oldest version that a server takes up.
pub const OLDEST: u16 = 1;
/// One frame, without its length. A spawn with the largest environment and arguments fits.
pub const FRAME_BYTES: usize = 4 * 1024 * 1024;
/// A frame from somebody who has not said hello.
pub const HELLO_BYTES: usize = 64;
/// The most that one [`Notice::Output`] or one part of an input holds.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Channels of one process.
pub const CHANNELS: usize = 16;
/// Processes of one keeper that are not forgotten yet.
pub const PROCESSES: usize = 256;
/// The text of one command.
pub const COMMAND_BYTES: usize = 16 * 1024 * 1024;
/// Processes that are named of those a command left running.
pub const LEFT: usize = 64;

pub type Token = [u8; 32];

const _: () = assert!(OLDEST <= VERSION);
const _: () = assert!(CHUNK_BYTES + 64 < FRAME_BYTES);

choice! {
    /// What a server asks for. `tag` comes back in the answer; `process` is chosen by the server.
    pub enum Request {
        1 => Hello { version: u16, token: Token },
        2 => Spawn { tag: u32, spawn: Spawn },
        /// A part of one input. It counts once the last part is in; a number that was taken already is
        /// acknowledged again and not delivered.
        3 => Input { process: u64, fd: u32, number: u64, part: Part, bytes: Blob },
        4 => CloseInput { process: u64, fd: u32 },
        5 => Signal { tag: u32, process: u64, signal: i32, reach: Reach },
        /// Send output from `from` on, up to `upto`. Asked again, it starts over from there.
        6 => Subscribe { tag: u32, process: u64, fd: u32, from: u64, upto: u64 },
        /// The server has room for output up to here.
        7 => Want { process: u64, fd: u32, upto: u64 },
        /// Everything below is recorded and may be forgotten.
        8 => Ack { process: u64, fd: u32, upto: u64 },
        /// One process's tree, or with none the whole sandbox.
        9 => Freeze { tag: u32, process: Option<u64> },
        10 => Thaw { tag: u32, process: Option<u64> },
        /// The whole tree, whatever it ignores.
        11 => Kill { tag: u32, process: u64 },
        12 => List { tag: u32 },
        /// Kills what is left of the tree and drops every trace of the process.
        13 => Forget { tag: u32, process: u64 },
        14 => Shutdown { tag: u32 },
        15 => SetOrphanTimeout { tag: u32, seconds: u32 },
        /// Starts a shell, whose commands the keeper delivers and whose returns it sees for itself. Asked again once
        /// the shell has ended, it starts another in its place, with the state that was saved and among the same
        /// processes. `spawn` names no channels.
        16 => StartShell { tag: u32, spawn: Spawn },
        /// A part of one command, which is run once the last part is in. Numbers only go up; one that was taken
        /// already is acknowledged and not run again. Its streams are read like any other, by the numbers that
        /// [`command_stream`] gives, and end with the command, whoever still writes to them.
        17 => RunCommand { tag: u32, process: u64, command: u64, stdin: CommandInput, part: Part, text: Blob },
        18 => SignalCommand { tag: u32, process: u64, signal: i32, whom: Whom },
        19 => ShellState { tag: u32, process: u64 },
        /// What a shell last said of its state.
        20 => SavedState { tag: u32, process: u64 },
        /// The state of a shell of another time, for the one that is started next under this number.
        21 => Remember { tag: u32, process: u64, manner: Manner, state: Blob },
    }
}

choice! {
    /// What a keeper answers and tells.
    pub enum Notice {
        1 => Welcome { version: u16, epoch: u64, isolation: Isolation, processes: Vec<ProcessState> },
        2 => Done { tag: u32 },
        3 => Refused { tag: u32, reason: Refusal, text: String },
        4 => Spawned { tag: u32, process: u64, pid: u32 },
        5 => SpawnFailed { tag: u32, process: u64, failure: SpawnFailure, errno: i32 },
        6 => Output { process: u64, fd: u32, offset: u64, bytes: Blob },
        /// The stream ended at `offset`; everything before it was sent. Of a shell's command, its end tells that.
        7 => End { process: u64, fd: u32, offset: u64 },
        8 => Exited { process: u64, exit: Exit },
        9 => InputTaken { process: u64, fd: u32, number: u64 },
        /// Nothing of the input was or will be delivered.
        10 => InputRefused { process: u64, fd: u32, number: u64, reason: InputRefusal },
        11 => EgressRefused { host: String, port: u16, reason: EgressRefusal },
        /// Refused connections that nobody was told of, because too many came while no server was there.
        12 => EgressUntold { count: u64 },
        13 => Processes { tag: u32, processes: Vec<ProcessState> },
        /// Another server took the keeper up.
        14 => Replaced {},
        15 => ShuttingDown {},
        /// A shell waits for its first command, or its next after it was started again.
        16 => ShellReady { process: u64, cwd: Blob, manner: Manner },
        /// A shell came up and cannot be used; it is killed.
        17 => ShellUnusable { process: u64, reason: Unusable },
        18 => CommandEnded { process: u64, ended: Ended },
        19 => ShellIs { tag: u32, process: u64, shell: ShellState },
        /// A script that brings the state about in a shell that is known in the same manner.
        20 => StateIs { tag: u32, manner: Manner, state: Blob },
    }
}

record! {
    /// A process to start.
    pub struct Spawn {
        pub process: u64,
        /// The program first: a bare name is looked up in `env`'s PATH, a relative path from `cwd`.
        pub argv: Vec<Blob>,
        /// The whole environment, each `NAME=value`.
        pub env: Vec<Blob>,
        pub cwd: Blob,
        pub channels: Vec<Channel>,
        /// Open files; none leaves the keeper's own bound.
        pub open_files: Option<u64>,
    }
}

record! {
    /// A descriptor of the process. Descriptors below three that are not named are `/dev/null`.
    pub struct Channel {
        pub fd: u32,
        pub flow: Flow,
    }
}

word! {
    pub enum Flow {
        /// The process reads what the server sends.
        1 => In,
        /// The server reads what the process writes.
        2 => Out,
        3 => Null,
        /// A socket that the keeper itself speaks to; no server can ask for it.
        4 => Line,
    }
}

word! {
    pub enum Part {
        1 => More,
        2 => Last,
    }
}

word! {
    /// Whom a signal reaches.
    pub enum Reach {
        1 => Process,
        2 => Group,
        3 => Tree,
    }
}

record! {
    /// How a process ended: with a code or by a signal.
    pub struct Exit {
        pub code: Option<i32>,
        pub signal: Option<i32>,
    }
}

choice! {
    pub enum Life {
        1 => Starting {},
        2 => Running {},
        3 => Exited { exit: Exit },
    }
}

record! {
    pub struct ProcessState {
        pub process: u64,
        pub pid: u32,
        pub life: Life,
        pub frozen: bool,
        pub inputs: Vec<InputState>,
        pub outputs: Vec<OutputState>,
    }
}

record! {
    pub struct InputState {
        pub fd: u32,
        /// The last number that was taken, zero before the first.
        pub taken: u64,
        pub open: bool,
    }
}

record! {
    pub struct OutputState {
        pub fd: u32,
        /// The first offset that can still be read.
        pub start: u64,
        pub end: u64,
        /// Nothing comes after `end`.
        pub ended: bool,
    }
}

word! {
    /// What a command finds on its standard input.
    pub enum CommandInput {
        /// Nothing, at once.
        1 => Empty,
        /// What is sent to [`command_stream`]'s number for it, until it is closed.
        2 => Open,
    }
}

word! {
    /// Whom a signal to a running command reaches. Processes that were there before the command, and their
    /// children, are never reached.
    pub enum Whom {
        /// What the command started.
        1 => Own,
        2 => Shell,
        3 => Both,
    }
}

word! {
    /// Why the keeper cannot see what a shell does.
    pub enum Unusable {
        /// Not a bash, or one without the symbols that its own extensions need.
        1 => Opaque,
        /// The kernel lets nobody look.
        2 => Forbidden,
        /// It did not come to its first command in time.
        3 => Silent,
        /// The folder for its commands could not be made.
        4 => NoFolder,
    }
}

choice! {
    /// How a command ended.
    pub enum How {
        1 => Returned { code: i32 },
        /// The shell ended, or became a program that did.
        2 => Died { exit: Exit },
        /// The shell took the command and did not run it.
        3 => NotRun {},
    }
}

word! {
    /// What a command did to its shell so that the next one could not be trusted to run. The shell must be started
    /// again.
    pub enum Unfit {
        1 => NoExec,
        2 => Restricted,
        /// Every way to run a file is shadowed or switched off.
        3 => Shadowed,
        /// A trap on every command, which did not let itself be removed.
        4 => Trapped,
        /// It did not come back from saving its state.
        5 => Stuck,
        /// It could not even be given a command.
        6 => Deaf,
    }
}

record! {
    /// The end of a command, kept until the next is run.
    pub struct Ended {
        pub command: u64,
        pub how: How,
        /// None when the shell died: the one that is started next knows.
        pub cwd: Option<Blob>,
        pub stdout: u64,
        pub stderr: u64,
        pub milliseconds: u64,
        /// What it left running, the first [`LEFT`] of them.
        pub left: Vec<Left>,
    }
}

record! {
    pub struct Left {
        pub pid: u32,
        pub name: Blob,
    }
}

word! {
    pub enum ShellPhase {
        1 => Starting,
        2 => Idle,
        3 => Busy,
        4 => Dead,
    }
}

word! {
    /// How the keeper knows what a shell does.
    pub enum Manner {
        /// It looks into it: no word of the shell counts.
        1 => Seen,
        /// It asks the shell.
        2 => Told,
        /// There is no keeper: the server itself asks the shell, over the connection to it.
        3 => Bare,
    }
}

impl Manner {
    /// What is not promised, in words.
    pub const fn lesser(self) -> &'static [&'static str] {
        match self {
            Self::Seen => &[],
            Self::Told => &[
                "exit codes are the shell's own word: a command that redefines its builtins can change what later ones report",
                "a shell that ends comes back with its folder, exported variables and umask; functions, aliases, options and \
                 other variables are lost",
                "a timed-out or cancelled command ends its shell with it",
            ],
            Self::Bare => &[
                "no keeper runs there: when the connection drops or the server stops, the shell ends with what it runs",
                "exit codes are the shell's own word: a command that redefines its builtins can change what later ones report",
                "a shell that ends comes back with its folder, exported variables and umask; functions, aliases, options and \
                 other variables are lost",
                "a timed-out or cancelled command may end its shell with it; a program that left its parent is not found",
                "nothing can be written to a command's input, and what it leaves running is not named",
                "output is kept in a file there until the command ends, and takes room on its disk",
                "a shell cannot be frozen: a pause ends it",
            ],
        }
    }
}

record! {
    pub struct ShellState {
        pub phase: ShellPhase,
        pub manner: Manner,
        /// As it was when the shell was last looked at.
        pub cwd: Blob,
        /// The last command that was taken, zero before the first.
        pub command: u64,
        /// The end of that command.
        pub ended: Option<Ended>,
        pub unfit: Option<Unfit>,
        /// Everything that runs, but for the shell.
        pub running: Vec<Left>,
    }
}

/// The number under which a command's standard input (0), output (1) or error (2) is known.
pub const fn command_stream(command: u64, fd: u32) -> u32 {
    // Few commands are known at a time, and the numbers of a process's own channels are below.
    FIRST_STREAM + ((command % COMMANDS) as u32) * 4 + fd
}

const FIRST_STREAM: u32 = 64;
const COMMANDS: u64 = 8192;
const _: () = assert!(CHANNELS < FIRST_STREAM as usize);
const _: () = assert!(command_stream(COMMANDS - 1, 3) <= u16::MAX as u32);

word! {
    pub enum Mode {
        1 => Host,
        2 => Sandbox,
    }
}

word! {
    /// How a process's descendants are held together.
    pub enum Tree {
        1 => Cgroup2,
        2 => Freezer1,
        /// By process group and parentage; a daemon that left both may be missed while others run, and nothing
        /// can be frozen.
        3 => Walk,
    }
}

word! {
    pub enum Limit {
        1 => Memory,
        2 => Processes,
        3 => Cpu,
        4 => OpenFiles,
    }
}

record! {
    /// What is in force, as far as the machine allows it.
    pub struct Isolation {
        pub mode: Mode,
        pub tree: Tree,
        pub limits: Vec<Limit>,
        /// What was asked for and is not there, and why; for people.
        pub missing: Vec<String>,
        pub pid: u32,
        /// The sandbox's first process as the host sees it.
        pub init: Option<u32>,
        /// Where programs inside find the way out, if there is one.
        pub proxy: Option<u16>,
    }
}

word! {
    pub enum Refusal {
        1 => NoProcess,
        2 => NoChannel,
        3 => Exists,
        4 => TooMany,
        /// Below what was acknowledged, or beyond what there is.
        5 => BadOffset,
        6 => BadRequest,
        /// This machine gives no means for it.
        7 => Unsupported,
        8 => Failed,
        9 => Ended,
        /// The shell must be started again first.
        10 => Unfit,
    }
}

word! {
    pub enum InputRefusal {
        1 => Full,
        2 => Closed,
        3 => NoProcess,
        4 => NoChannel,
        /// The spool could not be written.
        5 => Failed,
    }
}

word! {
    pub enum SpawnFailure {
        1 => NotFound,
        2 => NotExecutable,
        3 => TooLarge,
        4 => BadCwd,
        /// Present and executable, and yet the system would not run it.
        5 => Exec,
        /// The place around the program could not be prepared.
        6 => Setup,
    }
}

word! {
    pub enum EgressRefusal {
        1 => NotAllowed,
        /// A private, loopback, link-local or otherwise special address.
        2 => PrivateAddress,
        3 => NotResolved,
        4 => BadRequest,
        5 => Unreachable,
        6 => TooMany,
    }
}

/// Why a request or notice was not framed: it is larger than the other side reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Adds the frame of `message` to `out`, whole or not at all.
pub fn frame(message: &impl Field, out: &mut Vec<u8>) -> Result<(), TooLong> {
    let start = out.len();
    0_u32.put(out);
    message.put(out);
    let length = out.len() - start - 4;
    if length > FRAME_BYTES {
        out.truncate(start);
        return Err(TooLong);
    }
    seal(start, out);
    Ok(())
}

/// Begins a [`Notice::Output`] frame whose bytes the caller reads straight into `out`; [`seal_output`] ends it.
pub(crate) fn open_output(process: u64, fd: u32, offset: u64, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    0_u32.put(out);
    out.push(6);
    process.put(out);
    fd.put(out);
    offset.put(out);
    put_bytes(&[], out);
    start
}

const OUTPUT_HEAD: usize = 4 + 1 + 8 + 4 + 8 + 4;

pub(crate) fn seal_output(start: usize, out: &mut [u8]) {
    let length = u32::try_from(out.len() - start - OUTPUT_HEAD).unwrap_or(u32::MAX);
    out[start + OUTPUT_HEAD - 4..start + OUTPUT_HEAD].copy_from_slice(&length.to_le_bytes());
    seal(start, out);
}

fn seal(start: usize, out: &mut [u8]) {
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The first whole frame of `bytes` and its length with the head, or `None` while more must come. Refuses a
/// frame above `limit` as soon as its length is known.
pub fn split(bytes: &[u8], limit: usize) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length > limit {
        return Err(Malformed("a frame above the limit"));
    }
    Ok(rest.get(..length).map(|body| (body, 4 + length)))
}

/// Reads one frame's content.
pub fn read<T: Field>(body: &[u8]) -> Result<T, Malformed> {
    let mut reader = Reader::new(body);
    let message = T::get(&mut reader)?;
    reader.finish()?;
    Ok(message)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
