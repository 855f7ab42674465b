//! What a bash does, seen from outside: whether it waits at its top level for the next line, what its last command
//! returned, and whether the next line would be run as it is meant.
//!
//! It reads, and never writes: the system call that the shell is blocked in, and a few of its variables by the names
//! that it exports for loadable builtins. Nothing that shell code can do changes any of them but by doing what
//! they stand for, so that there is no word of the shell to forge. Native code in the same shell could; that is
//! outside of what is defended here.

use super::symbols::{self, long, word};
use crate::{kernel, sys, wire::Unusable};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
    io::Errno,
    process::Pid,
};
use std::fs;

const NAMES: [&str; 15] = [
    "last_command_exit_value",
    "parse_and_execute_level",
    "executing_builtin",
    "sourcelevel",
    "variable_context",
    "read_but_dont_execute",
    "restricted",
    "echo_command_at_execute",
    "echo_input_at_read",
    "trap_list",
    "shell_functions",
    "global_variables",
    "shell_builtins",
    "num_shell_builtins",
    "aliases",
];
/// Of `NAMES`, the plain numbers at its beginning.
const NUMBERS: usize = 9;
const TRAPS: usize = 9;
const FUNCTIONS: usize = 10;
const VARIABLES: usize = 11;
const BUILTINS: usize = 12;
const BUILTIN_COUNT: usize = 13;
const ALIASES: usize = 14;
/// The traps that run before every command, after failures and after files stand behind those of the signals.
const DEBUG: usize = 65;
const ERROR: usize = 66;
const RETURN: usize = 67;
/// The trap for the shell's end stands before them.
const END: usize = 0;
const TRAP_COUNT: usize = 68;
/// `struct builtin`, and its flags' place and meaning.
const BUILTIN: usize = 48;
const FLAGS_AT: u64 = 16;
const ENABLED: u32 = 1;
/// Where a scope has its table of variables.
const TABLE_AT: u64 = 32;
/// Where a variable has its attributes, and what says that it cannot be assigned to.
const ATTRIBUTES_AT: u64 = 40;
const READONLY: u32 = 2;
/// Chains and names longer than these are given up on.
const CHAIN: usize = 64;
const TEXT: usize = 256;
/// More builtins than any shell has.
const BUILTINS_MOST: u32 = 512;

#[derive(Debug)]
pub(crate) struct Glass {
    pid: Pid,
    at: [u64; NAMES.len()],
    /// Where `.` and `source` say whether they are enabled.
    flags: [u64; 2],
    /// The names of the builtins that it began with.
    builtins: Vec<Vec<u8>>,
    /// The line as the kernel names it.
    line: String,
}

/// Where a program's file has the names, looked up while the program still starts.
#[derive(Debug)]
pub(crate) struct Names {
    file: (u64, u64),
    found: Option<symbols::Symbols<{ NAMES.len() }>>,
}

impl Names {
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let exe = open(&format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()?;
        Some(Self { file: file_of(&exe)?, found: symbols::find(&exe, NAMES) })
    }
}

fn file_of(exe: &OwnedFd) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(exe).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Waiting at the top level for the next line. The last command's status.
    Idle { code: i32 },
    /// In a command, which has begun.
    Inside,
    /// Somewhere between.
    Between,
    /// It cannot be seen: dead, or another program by now.
    Blind,
}

/// How deep in functions and files a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// In the command's own text.
    Shallow,
    Deep,
}

/// How the next line can have a file run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Dot,
    Source,
    /// By a builtin of this name that runs builtins.
    Builtin,
    /// As every shell can, without ending at a failure.
    Command,
}

/// Where a shell stands that can run a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) way: Way,
    pub(crate) words: Words,
}

/// What a plain word at the beginning of a command can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// A program, or a builtin that was there from the start; and no trap runs beside it.
    Plain,
    /// Also something that the shell was taught.
    Defined,
}

/// What stands in the way of the next line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    NoExec,
    Restricted,
    Shadowed,
    Trapped,
}

impl Glass {
    /// `line` is the inode of the socket that the shell reads from; `names` are of the program that was there before.
    pub(crate) fn new(pid: Pid, line: u64, names: Option<Names>) -> Result<Self, Unusable> {
        let raw = pid.as_raw_nonzero();
        let exe = open(&format!("/proc/{raw}/exe")).map_err(denied)?;
        let known = names.filter(|names| file_of(&exe) == Some(names.file));
        let found = known.map_or_else(|| symbols::find(&exe, NAMES), |names| names.found);
        let found = found.ok_or(Unusable::Opaque)?;
        let base = if found.relative { base(pid)? } else { 0 };
        let at = found.addresses.map(|address| base.wrapping_add(address));
        let mut glass =
            Self { pid, at, flags: [0; 2], builtins: Vec::new(), line: format!("socket:[{line}]") };
        glass.read_builtins().ok_or(Unusable::Forbidden)?;
        // What cannot be read now never can be.
        fs::read(format!("/proc/{raw}/syscall")).map_err(|_| Unusable::Forbidden)?;
        Ok(glass)
    }

    fn read_builtins(&mut self) -> Option<()> {
        let array = self.pointer(self.at[BUILTINS])?;
        let count = word(&self.read(self.at[BUILTIN_COUNT], 4)?, 0)?;
        if count > BUILTINS_MOST {
            return None;
        }
        let table = self.read(array, count as usize * BUILTIN)?;
        let names = table.chunks_exact(BUILTIN).map(|entry| long(entry, 0));
        let names = self.names(&names.collect::<Option<Vec<u64>>>()?)?;
        let place = |name: &[u8]| {
            let index = names.iter().position(|text| text == name)? as u64;
            Some(array + index * BUILTIN as u64 + FLAGS_AT)
        };
        self.flags = [place(b".")?, place(b"source")?];
        self.builtins = names;
        Some(())
    }

    pub(crate) fn is_builtin(&self, name: &[u8]) -> bool {
        self.builtins.iter().any(|builtin| builtin == name)
    }

    /// Whether the shell waits for a line. Only what the kernel and the shell's own counters say counts.
    pub(crate) fn look(&self) -> Look {
        let Some(numbers) = self.numbers() else { return Look::Blind };
        let [code, evaluating, builtin, sourcing, function, ..] = numbers;
        if evaluating > 0 || builtin > 0 || sourcing > 0 || function > 0 {
            return if sourcing > 0 { Look::Inside } else { Look::Between };
        }
        if self.reads_line() { Look::Idle { code } } else { Look::Between }
    }

    /// In which depth the shell is, while it runs a command.
    pub(crate) fn depth(&self) -> Depth {
        match self.numbers() {
            Some([_, 1, _, 1, 0, ..]) => Depth::Shallow,
            Some(_) | None => Depth::Deep,
        }
    }

    fn numbers(&self) -> Option<[i32; NUMBERS]> {
        let mut bytes = Vec::new();
        sys::read_memory(self.pid, &self.number_pieces(), &mut bytes).ok()?;
        numbers(&bytes)
    }

    fn number_pieces(&self) -> [(u64, usize); NUMBERS] {
        std::array::from_fn(|index| (self.at[index], 4))
    }

    /// Everything that decides about the next line and has an address of its own, in one reading.
    fn table(&self) -> Option<Table> {
        let mut pieces = self.number_pieces().to_vec();
        pieces.extend(self.flags.map(|at| (at, 4)));
        pieces.push((self.at[BUILTIN_COUNT], 4));
        pieces.push((self.at[FUNCTIONS], 8));
        pieces.push((self.at[ALIASES], 8));
        pieces.push((self.at[TRAPS], TRAP_COUNT * 8));
        let mut bytes = Vec::new();
        sys::read_memory(self.pid, &pieces, &mut bytes).ok()?;
        let rest = bytes.get(NUMBERS * 4..)?;
        Some(Table {
            numbers: numbers(&bytes)?,
            enabled: [word(rest, 0)? & ENABLED != 0, word(rest, 4)? & ENABLED != 0],
            builtins: word(rest, 8)?,
            functions: long(rest, 12)?,
            aliases: long(rest, 20)?,
            traps: rest.get(28..)?.chunks_exact(8).map(|trap| long(trap, 0)).collect::<Option<_>>()?,
        })
    }

    /// Blocked in `read`, on the line and nothing else.
    fn reads_line(&self) -> bool {
        reads(self.pid, &self.line)
    }

    /// Whether another process could read from the shell's line: a copy of the shell, and not another program.
    pub(crate) fn shared_with(&self, pid: Pid) -> bool {
        has_open(pid, &self.line)
    }

    /// How to run the next file, or what is in the way.
    pub(crate) fn way(&self) -> Result<Way, Obstacle> {
        self.stand().map(|stand| stand.way)
    }

    /// The same, and whether a plain word could be anything but a program or a builtin.
    pub(crate) fn stand(&self) -> Result<Stand, Obstacle> {
        let table = self.table().ok_or(Obstacle::Shadowed)?;
        let [.., no_exec, restricted, _, _] = table.numbers;
        if no_exec != 0 {
            return Err(Obstacle::NoExec);
        }
        if restricted != 0 {
            return Err(Obstacle::Restricted);
        }
        let trap = |number: usize| table.traps.get(number).copied();
        let quiet = [DEBUG, ERROR, RETURN].into_iter().all(|number| trap(number) == Some(0));
        if !quiet || !trap(END).is_some_and(|trap| self.ends_as_fitted(trap)) {
            return Err(Obstacle::Trapped);
        }
        let free = |name: &str| table.functions == 0 || self.entry(table.functions, name) == Some(None);
        let [dot, source] = table.enabled;
        let way = if dot && free(".") {
            Way::Dot
        } else if source && free("source") {
            Way::Source
        } else if dot && free("builtin") {
            Way::Builtin
        } else {
            return Err(Obstacle::Shadowed);
        };
        let plain = table.traps.iter().skip(END + 1).all(|trap| *trap == 0)
            && usize::try_from(table.builtins).is_ok_and(|count| count == self.builtins.len())
            && self.is_empty(table.functions)
            && self.is_empty(table.aliases);
        Ok(Stand { way, words: if plain { Words::Plain } else { Words::Defined } })
    }

    fn is_empty(&self, table: u64) -> bool {
        table == 0 || self.read(table, 16).and_then(|head| word(&head, 12)) == Some(0)
    }

    /// Whether something of the keeper's own behind a command would go unseen.
    pub(crate) fn quiet(&self) -> bool {
        let numbers = self.numbers().is_some_and(|[.., executed, read]| executed == 0 && read == 0);
        numbers && !self.traps_errors() && self.assignable(super::script::PIPES)
    }

    /// Whether a trap runs for every failure.
    pub(crate) fn traps_errors(&self) -> bool {
        self.trap(ERROR) != Some(0)
    }

    /// Where the text of a trap is, zero where none is set.
    fn trap(&self, number: usize) -> Option<u64> {
        self.pointer(self.at[TRAPS] + number as u64 * 8)
    }

    /// Whether the trap for the shell's end is the keeper's own; another could change the status.
    fn ends_as_fitted(&self, trap: u64) -> bool {
        let own = super::script::OWN_END;
        trap != 0 && self.read(trap, own.len()).is_some_and(|text| text == own)
    }

    /// A global variable's text.
    pub(crate) fn variable(&self, name: &str) -> Option<Vec<u8>> {
        let variable = self.find_variable(name)??;
        self.text(self.pointer(variable.checked_add(8)?)?)
    }

    fn find_variable(&self, name: &str) -> Option<Option<u64>> {
        let scope = self.pointer(self.at[VARIABLES])?;
        let table = self.pointer(scope.checked_add(TABLE_AT)?)?;
        self.entry(table, name)
    }

    fn assignable(&self, name: &str) -> bool {
        match self.find_variable(name) {
            None => false,
            Some(None) => true,
            Some(Some(variable)) => {
                let attributes = variable.checked_add(ATTRIBUTES_AT).and_then(|at| self.read(at, 4));
                attributes.and_then(|bytes| word(&bytes, 0)).is_some_and(|bits| bits & READONLY == 0)
            }
        }
    }

    /// What one of the shell's hash tables has under a name.
    fn entry(&self, table: u64, name: &str) -> Option<Option<u64>> {
        let head = self.read(table, 16)?;
        let (buckets, count, entries) = (long(&head, 0)?, word(&head, 8)?, word(&head, 12)?);
        if buckets == 0 || count == 0 || entries == 0 {
            return Some(None);
        }
        let index = hash(name) & (count - 1);
        let mut bucket = self.pointer(buckets.checked_add(u64::from(index) * 8)?)?;
        for _ in 0..CHAIN {
            if bucket == 0 {
                return Some(None);
            }
            let entry = self.read(bucket, 24)?;
            if self.text(long(&entry, 8)?)? == name.as_bytes() {
                return Some(Some(long(&entry, 16)?));
            }
            bucket = long(&entry, 0)?;
        }
        None
    }

    fn read(&self, at: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        sys::read_memory(self.pid, &[(at, length)], &mut bytes).ok()?;
        Some(bytes)
    }

    fn pointer(&self, at: u64) -> Option<u64> {
        long(&self.read(at, 8)?, 0)
    }

    /// Short texts, in one reading where all of them can be read that far.
    fn names(&self, at: &[u64]) -> Option<Vec<Vec<u8>>> {
        const NAME: usize = 24;
        let pieces: Vec<_> = at.iter().map(|at| (*at, NAME)).collect();
        let mut bytes = Vec::new();
        if sys::read_memory(self.pid, &pieces, &mut bytes).is_err() {
            return at.iter().map(|at| self.text(*at)).collect();
        }
        let name = |(at, piece): (&u64, &[u8])| match piece.iter().position(|byte| *byte == 0) {
            Some(end) => piece.get(..end).map(<[u8]>::to_vec),
            None => self.text(*at),
        };
        at.iter().zip(bytes.chunks_exact(NAME)).map(name).collect()
    }

    fn text(&self, at: u64) -> Option<Vec<u8>> {
        // A page's end may be the end of what can be read.
        let first = usize::try_from(4096 - at % 4096).unwrap_or(TEXT).min(TEXT);
        let mut bytes = self.read(at, first)?;
        if !bytes.contains(&0) && first < TEXT {
            bytes.extend(self.read(at.checked_add(first as u64)?, TEXT - first)?);
        }
        let end = bytes.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        Some(bytes)
    }
}

/// What decides about the next line, as it stood at one moment.
struct Table {
    numbers: [i32; NUMBERS],
    /// Whether `.` and `source` are.
    enabled: [bool; 2],
    builtins: u32,
    /// Where the tables of functions and of aliases are, zero where none was ever made.
    functions: u64,
    aliases: u64,
    /// Where the texts of all traps are, zero where none is set.
    traps: Vec<u64>,
}

fn numbers(bytes: &[u8]) -> Option<[i32; NUMBERS]> {
    let mut numbers = [0; NUMBERS];
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(4)) {
        *number = word(bytes, 0)?.cast_signed();
    }
    Some(numbers)
}

/// Whether a process is blocked in `read` on what the kernel calls `line`.
pub(super) fn reads(pid: Pid, line: &str) -> bool {
    let raw = pid.as_raw_nonzero();
    let Some(call) = kernel::read_text(format!("/proc/{raw}/syscall")) else { return false };
    let mut fields = call.split_ascii_whitespace();
    let number = fields.next().and_then(|field| field.parse::<i64>().ok());
    let fd = fields.next().and_then(|field| field.strip_prefix("0x"));
    let Some(fd) = fd.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else { return false };
    number == Some(libc::SYS_read) && is(format!("/proc/{raw}/fd/{fd}"), line)
}

/// Whether a process has it open.
pub(super) fn has_open(pid: Pid, line: &str) -> bool {
    let folder = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| is(entry.path(), line))
}

fn is(path: impl AsRef<std::path::Path>, line: &str) -> bool {
    fs::read_link(path).is_ok_and(|target| target.as_os_str().as_encoded_bytes() == line.as_bytes())
}

/// As the shell hashes names.
fn hash(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash: u32, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte))
}

/// Where the program's file begins in its memory.
fn base(pid: Pid) -> Result<u64, Unusable> {
    let raw = pid.as_raw_nonzero();
    let exe = fs::read_link(format!("/proc/{raw}/exe")).map_err(|_| Unusable::Forbidden)?;
    let maps = fs::read_to_string(format!("/proc/{raw}/maps")).map_err(|_| Unusable::Forbidden)?;
    let own = |line: &&str| line.ends_with(&*exe.to_string_lossy());
    let first = maps.lines().find(own).or_else(|| maps.lines().next()).ok_or(Unusable::Forbidden)?;
    let start = first.split('-').next().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    start.ok_or(Unusable::Forbidden)
}

fn open(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn denied(_: Errno) -> Unusable {
    Unusable::Forbidden
}
