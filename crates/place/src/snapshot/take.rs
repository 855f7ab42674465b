//! Taking a snapshot: one walk over the folder beside the index of the previous snapshot, both in path order.
//!
//! The folder may change under the walk. Everything is opened from the folder it is in, without following links;
//! a file that changes while it is read is read again, then kept as it was read and counted as torn. Objects are
//! durable before the index that names them, and the index before the root.

use super::{
    Limits, ObjectId, Owners, Progress, SnapshotError, SnapshotId, Store, TakeOptions, Watch, content,
    error::path_of,
    manifest::{At, Entry, Hint, Kind, Object, Root, Section, SectionWriter, Time},
    objects::{Entries, Objects},
    options::{DEPTH, NOBODY, PATH_BYTES},
    pack::Packer,
};
use crate::files::descent::{Descent, FOLDER, Named, names};
use protocol::Timestamp;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    collections::{HashMap, HashSet},
    ffi::CStr,
    path::Path,
};

/// A snapshot was taken, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub id: SnapshotId,
    /// Files, folders and links, the workspace itself included.
    pub files: u64,
    /// Content, holes left out.
    pub bytes: u64,
    /// What this snapshot added to the store, as stored.
    pub new_bytes: u64,
    /// Files whose content was read; the others were known to be unchanged.
    pub read: u64,
    pub skipped: Skipped,
}

/// What a snapshot does not hold, or holds only as well as could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    pub sockets: u64,
    pub devices: u64,
    /// Could not be opened; a folder among them is kept, without what is in it.
    pub unreadable: u64,
    /// Folders of another file system, kept empty.
    pub mounts: u64,
    /// Changed or went away while they were read: kept as they were read, if at all.
    pub torn: u64,
    /// Recorded as belonging to nobody: their owner has no name inside.
    pub unmapped: u64,
}

/// Times are told in ticks of at most this length, so a change this close before the reading may be followed by
/// another that leaves the same time.
const TICK_MILLIS: i64 = 50;
/// The same for file systems that tell whole seconds.
const COARSE_TICK_MILLIS: i64 = 2_500;
/// A mapped page, once written to, takes further writes without a mark until the kernel has written it back, by
/// default within 35 s. Files from this size on may be mapped; smaller ones hardly ever are.
const MAPPED_BYTES: i64 = 32 * 1024;
const MAPPED_MILLIS: i64 = 60_000;
/// How often a file that changes while it is read is read before it is kept as it is.
const READS: usize = 3;
/// An object of which less than one part in this many is still used is not relied on any more: its files are
/// read and packed again, and it can go.
const WORN: u64 = 4;
/// So many packs below this size are merged in the same way.
const SMALL_PACKS: usize = 64;
const SMALL_PACK_BYTES: u32 = 128 * 1024;
/// Once more than this has been read, all of the previous snapshot is searched for it. Below, storing a moved file
/// again costs less than the search.
const LEARN_BYTES: u64 = 256 * 1024;
/// Entries between two looks at the watch.
const WATCH_ENTRIES: u64 = 256;

pub(crate) fn take(
    store: &dyn Store,
    folder: &Path,
    previous: Option<&SnapshotId>,
    options: &TakeOptions<'_>,
    now: Timestamp,
) -> Result<Taken, SnapshotError> {
    let root = rustix::fs::openat(CWD, folder, FOLDER, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => SnapshotError::NoFolder(folder.to_owned()),
        error => SnapshotError::io("open", folder, error),
    })?;
    let stat = rustix::fs::fstat(&root).map_err(|error| SnapshotError::io("look at", folder, error))?;
    let previous = previous.map(|id| Previous::open(store, id)).transpose()?;
    let mut walk = Walk {
        store,
        started: now.as_millis(),
        device: stat.st_dev,
        limits: options.limits,
        owners: &options.owners,
        watch: options.watch,
        descent: Descent::new(root),
        frames: Vec::new(),
        path: Vec::new(),
        previous,
        packer: Packer::new(store),
        section: SectionWriter::default(),
        index: Root::default(),
        links: HashMap::new(),
        used: HashMap::new(),
        buffer: Vec::new(),
        fresh: 0,
        read: 0,
        skipped: Skipped::default(),
    };
    walk.folder(&stat)?;
    walk.run()?;
    walk.finish()
}

/// The snapshot before, read along with the walk.
struct Previous<'a> {
    id: SnapshotId,
    entries: Entries<'a>,
    sections: HashSet<ObjectId>,
    worn: HashSet<ObjectId>,
    /// Whether all its pieces are known to the packer.
    learnt: bool,
}

impl<'a> Previous<'a> {
    fn open(store: &'a dyn Store, id: &SnapshotId) -> Result<Self, SnapshotError> {
        let entries = Entries::open(store, id)?;
        let sections = entries.root.sections.iter().map(|section| section.id).collect();
        let worn = entries.root.worn.iter().copied().collect();
        Ok(Self { id: *id, entries, sections, worn, learnt: false })
    }
}

impl Previous<'_> {
    fn is_worn(&self, at: &At) -> bool {
        matches!(at.object, Object::Stored { id, .. } if self.worn.contains(&id))
    }
}

struct Frame {
    names: std::vec::IntoIter<Named>,
    /// The length of this folder's path.
    path: usize,
}

struct Walk<'a> {
    store: &'a dyn Store,
    started: i64,
    device: u64,
    limits: Limits,
    owners: &'a Owners,
    watch: Watch<'a>,
    descent: Descent,
    frames: Vec<Frame>,
    path: Vec<u8>,
    previous: Option<Previous<'a>>,
    packer: Packer<'a>,
    section: SectionWriter,
    index: Root,
    /// First paths of files with several names.
    links: HashMap<(u64, u64), Vec<u8>>,
    /// The objects of this snapshot: their length, and how much of it is used.
    used: HashMap<ObjectId, (u32, u64)>,
    buffer: Vec<u8>,
    /// Bytes of the files read so far.
    fresh: u64,
    read: u64,
    skipped: Skipped,
}

/// What reading a file came to.
enum Attempt {
    Whole(Entry),
    /// It changed meanwhile.
    Torn(Entry),
    Unreadable,
    /// It is no longer there, or no longer a regular file.
    Gone,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), SnapshotError> {
        while let Some(frame) = self.frames.last_mut() {
            self.path.truncate(frame.path);
            let Some(named) = frame.names.next() else {
                self.frames.pop();
                self.leave();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(named.name.as_bytes());
            if self.path.len() > PATH_BYTES {
                return Err(SnapshotError::TooLong { limit: PATH_BYTES });
            }
            self.visit(&named)?;
        }
        Ok(())
    }

    fn leave(&mut self) {
        if self.descent.depth() == 0 {
            return;
        }
        // A folder that was moved while we were far below it cannot be gone on with; nor can those above that
        // moved with it.
        while self.descent.leave().1.is_err() {
            self.skipped.torn += 1;
            self.frames.pop();
        }
    }

    fn visit(&mut self, named: &Named) -> Result<(), SnapshotError> {
        let name = named.name.as_c_str();
        if named.kind == FileType::Directory && self.enter(name)? {
            return Ok(());
        }
        // What turns into something else between two looks is looked at again, a few times.
        for _ in 0..READS {
            let stat = match rustix::fs::statat(self.descent.here(), name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => break,
                Err(Errno::ACCESS) => {
                    self.skipped.unreadable += 1;
                    return Ok(());
                }
                Err(error) => return Err(SnapshotError::io("look at", path_of(&self.path), error)),
            };
            let done = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => self.file(name, &stat)?,
                FileType::Directory => self.enter(name)?,
                FileType::Symlink => self.link(name, &stat)?,
                FileType::Fifo => {
                    let entry = self.entry(Kind::Fifo, &stat, None, Vec::new());
                    self.push(name.to_bytes(), &entry)?;
                    true
                }
                FileType::Socket => {
                    self.skipped.sockets += 1;
                    true
                }
                FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
                    self.skipped.devices += 1;
                    true
                }
            };
            if done {
                return Ok(());
            }
        }
        self.skipped.torn += 1;
        Ok(())
    }

    /// Enters a folder; `false` when there is none of that name any more.
    fn enter(&mut self, name: &CStr) -> Result<bool, SnapshotError> {
        if self.descent.depth() >= DEPTH {
            return Err(SnapshotError::TooDeep { limit: DEPTH });
        }
        match self.descent.enter(name) {
            Ok(stat) => self.folder(&stat).map(|()| true),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(false),
            Err(Errno::ACCESS) => {
                let Ok(stat) = rustix::fs::statat(self.descent.here(), name, AtFlags::SYMLINK_NOFOLLOW)
                else {
                    return Ok(false);
                };
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    return Ok(false);
                }
                self.skipped.unreadable += 1;
                let entry = self.entry(Kind::Folder, &stat, None, Vec::new());
                self.push(name.to_bytes(), &entry)?;
                Ok(true)
            }
            Err(error) => Err(SnapshotError::io("open", path_of(&self.path), error)),
        }
    }

    /// Records the folder one has just entered, and lists it.
    fn folder(&mut self, stat: &Stat) -> Result<(), SnapshotError> {
        let old = self.unchanged(stat)?;
        let hint = self.hint(stat);
        let xattrs = match old {
            Some(old) => old.xattrs,
            None => content::xattrs(self.descent.here()),
        };
        let entry = self.entry(Kind::Folder, stat, hint, xattrs);
        let name = self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        self.push(&name, &entry)?;
        let names = if stat.st_dev == self.device {
            let room = self.limits.files.saturating_sub(self.index.entries);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            names(self.descent.here(), room).map_err(|error| match error {
                Errno::OVERFLOW => SnapshotError::TooMany { limit: self.limits.files },
                error => SnapshotError::io("list", path_of(&self.path), error),
            })?
        } else {
            self.skipped.mounts += 1;
            Vec::new()
        };
        self.frames.push(Frame { names: names.into_iter(), path: self.path.len() });
        Ok(())
    }

    fn link(&mut self, name: &CStr, stat: &Stat) -> Result<bool, SnapshotError> {
        match rustix::fs::readlinkat(self.descent.here(), name, Vec::new()) {
            Ok(target) => {
                let entry = self.entry(Kind::Link(target.into_bytes()), stat, None, Vec::new());
                self.push(name.to_bytes(), &entry)?;
                Ok(true)
            }
            Err(Errno::NOENT | Errno::INVAL) => Ok(false),
            Err(error) => Err(SnapshotError::io("read the link", path_of(&self.path), error)),
        }
    }

    fn file(&mut self, name: &CStr, stat: &Stat) -> Result<bool, SnapshotError> {
        if stat.st_nlink > 1 {
            match self.links.get(&(stat.st_dev, stat.st_ino)) {
                Some(first) => {
                    let size = u64::try_from(stat.st_size).unwrap_or(0);
                    let entry = self.entry(Kind::Hard(first.clone(), size), stat, None, Vec::new());
                    self.push(name.to_bytes(), &entry)?;
                    return Ok(true);
                }
                None => {
                    self.links.insert((stat.st_dev, stat.st_ino), self.path.clone());
                }
            }
        }
        let entry = match self.unchanged(stat)? {
            Some(old) => self.entry(old.kind, stat, old.hint, old.xattrs),
            None => match self.read_file(name)? {
                Attempt::Whole(entry) => entry,
                Attempt::Torn(entry) => {
                    self.skipped.torn += 1;
                    entry
                }
                Attempt::Unreadable => {
                    self.links.remove(&(stat.st_dev, stat.st_ino));
                    self.skipped.unreadable += 1;
                    return Ok(true);
                }
                Attempt::Gone => {
                    self.links.remove(&(stat.st_dev, stat.st_ino));
                    return Ok(false);
                }
            },
        };
        if let Kind::File(content) = &entry.kind {
            self.index.bytes += content.stored();
            if self.index.bytes > self.limits.bytes {
                return Err(SnapshotError::TooLarge { limit: self.limits.bytes });
            }
        }
        self.push(name.to_bytes(), &entry)?;
        Ok(true)
    }

    /// The entry of the snapshot before, if it is the same and may be relied on.
    fn unchanged(&mut self, stat: &Stat) -> Result<Option<Entry>, SnapshotError> {
        let Some(previous) = &mut self.previous else { return Ok(None) };
        let Some(old) = previous.entries.find(&self.path)? else { return Ok(None) };
        let same = old.hint == Some(hint_of(stat)) && old.mtime == mtime_of(stat);
        let kept = match &old.kind {
            Kind::File(content) => {
                same && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                    && i64::try_from(content.size) == Ok(stat.st_size)
                    && !content.pieces.iter().filter_map(|piece| piece.at).any(|at| previous.is_worn(&at))
            }
            Kind::Folder => same && FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
            Kind::Link(_) | Kind::Hard(..) | Kind::Fifo => false,
        };
        if kept {
            return Ok(Some(old));
        }
        // What it was before is where its pieces are most likely found.
        if let Kind::File(content) = old.kind {
            for at in content.pieces.iter().filter_map(|piece| piece.at) {
                if !previous.is_worn(&at) {
                    self.packer.learn(at);
                }
            }
        }
        Ok(None)
    }

    /// Reads a file, again if it changes meanwhile.
    fn read_file(&mut self, name: &CStr) -> Result<Attempt, SnapshotError> {
        self.read += 1;
        let mut last = Attempt::Gone;
        for _ in 0..READS {
            last = self.attempt(name)?;
            if !matches!(last, Attempt::Torn(_)) {
                break;
            }
        }
        Ok(last)
    }

    fn attempt(&mut self, name: &CStr) -> Result<Attempt, SnapshotError> {
        // Not to wait at a pipe that has just taken the file's place.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.descent.here(), name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::NOTDIR) => return Ok(Attempt::Gone),
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Attempt::Unreadable),
            Err(error) => return Err(SnapshotError::io("open", path_of(&self.path), error)),
        };
        let failed = |path: &[u8], error| SnapshotError::io("look at", path_of(path), error);
        let before = rustix::fs::fstat(&file).map_err(|error| failed(&self.path, error))?;
        if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
            return Ok(Attempt::Gone);
        }
        let room = self.limits.bytes.saturating_sub(self.index.bytes);
        let occupied = u64::try_from(before.st_blocks).unwrap_or(u64::MAX).saturating_mul(512);
        if u64::try_from(before.st_size).unwrap_or(0).min(occupied) > room {
            return Err(SnapshotError::TooLarge { limit: self.limits.bytes });
        }
        self.fresh = self.fresh.saturating_add(u64::try_from(before.st_size).unwrap_or(0));
        if self.fresh > LEARN_BYTES {
            self.learn()?;
        }
        let borrowed = std::os::fd::AsFd::as_fd(&file);
        let content =
            content::read(borrowed, &before, &self.path, &mut self.packer, &self.watch, &mut self.buffer)?;
        let xattrs = content::xattrs(&file);
        let after = rustix::fs::fstat(&file).map_err(|error| failed(&self.path, error))?;
        let whole = hint_of(&before) == hint_of(&after)
            && mtime_of(&before) == mtime_of(&after)
            && i64::try_from(content.size) == Ok(after.st_size);
        let hint = if whole { self.hint(&before) } else { None };
        let entry = self.entry(Kind::File(content), &after, hint, xattrs);
        Ok(if whole { Attempt::Whole(entry) } else { Attempt::Torn(entry) })
    }

    /// Makes all pieces of the snapshot before known, so that what was moved or copied is not stored again.
    fn learn(&mut self) -> Result<(), SnapshotError> {
        let Some(previous) = &mut self.previous else { return Ok(()) };
        if previous.learnt {
            return Ok(());
        }
        previous.learnt = true;
        let mut path = Vec::new();
        let objects = Objects::new(self.store);
        for section in &previous.entries.root.sections {
            let mut section = objects.section(&section.id)?;
            path.clear();
            while let Some(entry) = section.next(&mut path)? {
                let Kind::File(content) = entry.kind else { continue };
                for piece in content.pieces {
                    let Some(at) = piece.at else { continue };
                    if !previous.is_worn(&at) {
                        self.packer.learn(at);
                    }
                }
            }
        }
        Ok(())
    }

    /// What to compare next time, unless the file was changed so lately that it could change without a trace.
    fn hint(&self, stat: &Stat) -> Option<Hint> {
        let hint = hint_of(stat);
        let changed =
            hint.ctime.sec.saturating_mul(1000).saturating_add(i64::from(hint.ctime.nsec / 1_000_000));
        let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let window = match hint.ctime.nsec {
            _ if file && stat.st_size >= MAPPED_BYTES => MAPPED_MILLIS,
            0 => COARSE_TICK_MILLIS,
            _ => TICK_MILLIS,
        };
        (changed.saturating_add(window) < self.started).then_some(hint)
    }

    fn entry(
        &mut self,
        kind: Kind,
        stat: &Stat,
        hint: Option<Hint>,
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Entry {
        let (uid, gid) = self.owners.inside(stat.st_uid, stat.st_gid);
        if uid.is_none() || gid.is_none() {
            self.skipped.unmapped += 1;
        }
        Entry {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: uid.unwrap_or(NOBODY),
            gid: gid.unwrap_or(NOBODY),
            mtime: mtime_of(stat),
            hint,
            xattrs,
        }
    }

    fn push(&mut self, name: &[u8], entry: &Entry) -> Result<(), SnapshotError> {
        if self.index.entries >= self.limits.files {
            return Err(SnapshotError::TooMany { limit: self.limits.files });
        }
        if self.section.ends_before(name) {
            self.end_section()?;
        }
        self.section.push(&self.path, entry);
        self.index.entries += 1;
        if self.index.entries.is_multiple_of(WATCH_ENTRIES) {
            self.watch.check()?;
            self.watch.tell(Progress { files: self.index.entries, bytes: self.index.bytes });
        }
        Ok(())
    }

    fn end_section(&mut self) -> Result<(), SnapshotError> {
        if self.section.is_empty() {
            return Ok(());
        }
        self.packer.close()?;
        let section = std::mem::take(&mut self.section).finish(&self.packer.closed);
        for (id, length, used) in section.used {
            self.used.entry(id).or_insert((length, 0)).1 += used;
        }
        let id = ObjectId::of(&section.bytes);
        if !self.previous.as_ref().is_some_and(|previous| previous.sections.contains(&id)) {
            self.packer.store_object(id, &section.bytes)?;
        }
        self.index.sections.push(Section { id, first: section.first });
        Ok(())
    }

    fn finish(mut self) -> Result<Taken, SnapshotError> {
        self.end_section()?;
        self.index.worn = worn(&self.used);
        let root = self.index.encode();
        let id = SnapshotId(ObjectId::of(&root));
        // All that the root names is durable before the root is.
        self.packer.flush()?;
        if self.previous.as_ref().is_none_or(|previous| previous.id != id) {
            self.packer.store_object(id.0, &root)?;
            self.packer.flush()?;
        }
        let progress = Progress { files: self.index.entries, bytes: self.index.bytes };
        self.watch.tell(progress);
        let Progress { files, bytes } = progress;
        Ok(Taken {
            id,
            files,
            bytes,
            new_bytes: self.packer.new_bytes,
            read: self.read,
            skipped: self.skipped,
        })
    }
}

/// Objects to be given up: those mostly unused, and small packs once there are many.
fn worn(used: &HashMap<ObjectId, (u32, u64)>) -> Vec<ObjectId> {
    let small = |length: u32| length < SMALL_PACK_BYTES;
    let many = used.values().filter(|(length, _)| small(*length)).count() >= SMALL_PACKS;
    let mut worn: Vec<_> = used
        .iter()
        .filter(|(_, (length, bytes))| {
            bytes.saturating_mul(WORN) < u64::from(*length) || (many && small(*length))
        })
        .map(|(id, _)| *id)
        .collect();
    worn.sort_unstable();
    worn
}

fn hint_of(stat: &Stat) -> Hint {
    Hint { ino: stat.st_ino, ctime: Time { sec: stat.st_ctime, nsec: nanos(stat.st_ctime_nsec) } }
}

fn mtime_of(stat: &Stat) -> Time {
    Time { sec: stat.st_mtime, nsec: nanos(stat.st_mtime_nsec) }
}

fn nanos(nsec: impl TryInto<u32>) -> u32 {
    nsec.try_into().unwrap_or(0)
}
