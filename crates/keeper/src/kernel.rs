//! Small files of the kernel, read with as few calls as they take: their length is not known before, and asking for it
//! costs as much as reading.

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::path::Path;

pub(crate) fn read(path: impl AsRef<Path>) -> Option<Vec<u8>> {
    let file = rustix::fs::open(path.as_ref(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut whole, mut piece) = (Vec::new(), [0; 2048]);
    loop {
        match rustix::io::read(&file, &mut piece) {
            Ok(0) => return Some(whole),
            Ok(length) => whole.extend_from_slice(&piece[..length]),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

pub(crate) fn read_text(path: impl AsRef<Path>) -> Option<String> {
    String::from_utf8(read(path)?).ok()
}
