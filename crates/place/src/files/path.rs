//! Paths below a folder, and their form as text.

use super::FilesError;
use std::{
    ffi::{OsStr, OsString},
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

/// A path as text, as the protocol writes it.
pub fn encode_path(path: impl AsRef<Path>) -> String {
    protocol::path_text(path.as_ref().as_os_str().as_bytes())
}

/// The path that [`encode_path`] wrote as `text`. A `%` without two digits is refused.
pub fn decode_path(text: &str) -> Result<PathBuf, FilesError> {
    let bytes = protocol::path_bytes(text).ok_or_else(|| FilesError::BadPath(PathBuf::from(text)))?;
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_round_trip_as_text() {
        let odd = Path::new(OsStr::from_bytes(b"caf\xe9/100%"));
        assert_eq!(encode_path(odd), "caf%E9/100%25");
        assert_eq!(decode_path("caf%E9/100%25").unwrap(), odd);
        assert!(matches!(decode_path("%zz"), Err(FilesError::BadPath(_))));
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
}
