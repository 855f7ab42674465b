//! Writing a tar archive, for downloads from a place or a snapshot: plain headers with GNU's extensions for long
//! names, large numbers and, since names are bytes, anything that is not UTF-8. Names are made relative to the
//! folder that holds what is archived, so that unpacking makes one thing of that name.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;
const NAME: usize = 100;

pub(crate) struct Archive<'w> {
    into: &'w mut dyn Write,
    /// What is cut off the front of every path.
    prefix: usize,
}

pub(crate) struct Member<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) kind: MemberKind<'a>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: i64,
}

pub(crate) enum MemberKind<'a> {
    File,
    Folder,
    Link(&'a [u8]),
    /// With the path of the member that it is another name of.
    Hard(&'a [u8]),
    Fifo,
}

impl<'w> Archive<'w> {
    /// An archive of `top` and what is below it.
    pub(crate) fn new(into: &'w mut dyn Write, top: &[u8]) -> Self {
        let prefix = top.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        Self { into, prefix }
    }

    /// Adds a member without content.
    pub(crate) fn add(&mut self, member: &Member<'_>) -> io::Result<()> {
        self.header(member, 0)
    }

    /// Adds a file of exactly `size` bytes. A reader that ends early is filled up with zeros: the size is
    /// promised before the content is read.
    pub(crate) fn add_file(
        &mut self,
        member: &Member<'_>,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        self.header(member, size)?;
        let copied = io::copy(&mut content.take(size), &mut self.into)?;
        io::copy(&mut io::repeat(0).take(size.saturating_sub(copied) + padding(size)), &mut self.into)?;
        Ok(())
    }

    pub(crate) fn finish(self) -> io::Result<()> {
        self.into.write_all(&[0; 2 * BLOCK])?;
        self.into.flush()
    }

    fn header(&mut self, member: &Member<'_>, size: u64) -> io::Result<()> {
        let mut name = member.path.get(self.prefix..).unwrap_or_default().to_vec();
        if name.is_empty() {
            name.push(b'.');
        }
        let (tag, target): (u8, &[u8]) = match member.kind {
            MemberKind::File => (b'0', b""),
            MemberKind::Folder => {
                name.push(b'/');
                (b'5', b"")
            }
            MemberKind::Link(target) => (b'2', target),
            MemberKind::Hard(first) => (b'1', first.get(self.prefix..).unwrap_or_default()),
            MemberKind::Fifo => (b'6', b""),
        };
        self.long(b'K', target)?;
        self.long(b'L', &name)?;
        let mut header = Header([0; BLOCK]);
        header.text(0, NAME, &name);
        header.number(100, 8, i64::from(member.mode & 0o7777));
        header.number(108, 8, i64::from(member.uid));
        header.number(116, 8, i64::from(member.gid));
        header.number(124, 12, i64::try_from(size).unwrap_or(i64::MAX));
        header.number(136, 12, member.mtime);
        header.text(157, NAME, target);
        self.into.write_all(&header.sealed(tag))
    }

    /// Announces a name that the next header has no room for.
    fn long(&mut self, tag: u8, name: &[u8]) -> io::Result<()> {
        if name.len() <= NAME {
            return Ok(());
        }
        let size = name.len() as u64 + 1;
        let mut header = Header([0; BLOCK]);
        header.text(0, NAME, b"././@LongLink");
        header.number(124, 12, i64::try_from(size).unwrap_or(i64::MAX));
        self.into.write_all(&header.sealed(tag))?;
        self.into.write_all(name)?;
        self.into.write_all(&[0])?;
        io::copy(&mut io::repeat(0).take(padding(size)), &mut self.into).map(|_| ())
    }
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

struct Header([u8; BLOCK]);

impl Header {
    fn text(&mut self, at: usize, room: usize, text: &[u8]) {
        for (into, byte) in self.0.iter_mut().skip(at).take(room).zip(text) {
            *into = *byte;
        }
    }

    /// Octal where it fits, else GNU's binary form.
    fn number(&mut self, at: usize, room: usize, number: i64) {
        let octal = format!("{number:0width$o}", width = room - 1);
        if number >= 0 && octal.len() < room {
            return self.text(at, room, octal.as_bytes());
        }
        let mut field = vec![if number < 0 { 0xff } else { 0 }; room];
        let bytes = number.to_be_bytes();
        let start = room.saturating_sub(bytes.len());
        field.splice(start.., bytes.iter().copied().skip(bytes.len().saturating_sub(room)));
        if let Some(first) = field.first_mut() {
            *first |= 0x80;
        }
        self.text(at, room, &field);
    }

    fn sealed(mut self, tag: u8) -> [u8; BLOCK] {
        self.text(156, 1, &[tag]);
        self.text(257, 8, b"ustar  \0");
        self.text(148, 8, b"        ");
        let sum: u32 = self.0.iter().map(|byte| u32::from(*byte)).sum();
        self.text(148, 8, format!("{sum:06o}\0 ").as_bytes());
        self.0
    }
}
