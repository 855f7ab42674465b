//! Paths below a folder, and names as text. A name on Linux is bytes; JSON and URLs have text. Names cross those
//! doors percent-encoded, which leaves ordinary names as they are and loses nothing of the others.

use super::FilesError;
use std::{
    ffi::{OsStr, OsString},
    fmt::Write,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Component, Path, PathBuf},
};

/// The longest path that the kernel takes in one call.
pub const FILE_PATH_BYTES: usize = 4_095;

/// A relative path of plain names, which may be none: the folder itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Below(PathBuf);

impl Below {
    pub(crate) fn new(path: &Path) -> Result<Self, FilesError> {
        let bad = || FilesError::BadPath(path.to_owned());
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() > FILE_PATH_BYTES || bytes.contains(&0) {
            return Err(bad());
        }
        let mut plain = PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => plain.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(bad()),
            }
        }
        Ok(Self(plain))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn names(&self) -> impl DoubleEndedIterator<Item = &OsStr> {
        self.0.iter()
    }

    /// The folder that holds it and its name there; the folder itself has neither.
    pub(crate) fn split(&self) -> Result<(Self, &OsStr), FilesError> {
        match (self.0.parent(), self.0.file_name()) {
            (Some(parent), Some(name)) => Ok((Self(parent.to_owned()), name)),
            _ => Err(FilesError::BadPath(self.0.clone())),
        }
    }
}

/// A path as text: `%` and two digits for each byte that is not part of UTF-8 text, for control characters, and
/// for `%` itself.
pub fn encode_path(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '%' || character.is_ascii_control() {
                let _ = write!(text, "%{:02X}", u32::from(character));
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The path that [`encode_path`] wrote as `text`. A `%` without two digits is refused.
pub fn decode_path(text: &str) -> Result<PathBuf, FilesError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(FilesError::BadPath(PathBuf::from(text)));
        };
        bytes.push((high * 16 + low) as u8);
        rest = rest.get(2..).unwrap_or_default();
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for (bytes, text) in [
            (&b"src/main.rs"[..], "src/main.rs"),
            ("größe ☂".as_bytes(), "größe ☂"),
            (b"100%", "100%25"),
            (b"a\nb", "a%0Ab"),
            (b"\xff\xfe.txt", "%FF%FE.txt"),
            (b"caf\xe9", "caf%E9"),
        ] {
            assert_eq!(encode_path(Path::new(OsStr::from_bytes(bytes))), text);
        }
        for bad in ["%", "%4", "%zz", "a%+1"] {
            assert!(matches!(decode_path(bad), Err(FilesError::BadPath(_))), "{bad}");
        }
    }

    #[test]
    fn paths_stay_below() {
        for bad in ["/etc", "..", "a/../b", "a/..", "a\0b", &"x/".repeat(3000)] {
            assert!(matches!(Below::new(Path::new(bad)), Err(FilesError::BadPath(_))), "{bad:?}");
        }
        for (path, plain) in [("", ""), (".", ""), ("a//b/", "a/b"), ("./a/./b", "a/b"), ("...", "...")] {
            assert_eq!(Below::new(Path::new(path)).unwrap().path(), Path::new(plain));
        }
    }

    proptest! {
        #[test]
        fn every_path_round_trips(bytes: Vec<u8>) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            prop_assert_eq!(decode_path(&encode_path(&path)).unwrap(), path);
        }
    }
}
