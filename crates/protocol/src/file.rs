//! A session's files on the wire. A name on Linux is bytes, and JSON and URLs have text: names are percent-encoded
//! there, which leaves ordinary ones as they are and loses nothing of the others.

use crate::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileEntry {
    /// As [`path_text`] writes it; empty for the workspace itself.
    pub name: String,
    /// From the workspace on, to be given as `path`.
    pub path: String,
    pub kind: FileKind,
    /// In bytes; 0 for what is no regular file.
    pub size: u64,
    /// The permission bits, in octal, such as `644`.
    pub mode: String,
    pub modified_at: Timestamp,
    /// Where a link points, as it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FileKind {
    File,
    Folder,
    Link,
    /// A pipe, socket or device.
    Other,
}

/// Where files were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FileSource {
    /// The workspace as it is.
    Sandbox,
    /// The last snapshot: nothing runs, and nothing can be changed until the session is resumed.
    Snapshot,
}

/// `GET /api/sessions/:id/files`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListFiles {
    /// A folder below the workspace; empty for the workspace itself.
    #[serde(default)]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `nextCursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileList {
    /// In byte order of the names.
    pub files: Vec<FileEntry>,
    pub source: FileSource,
    /// Ask again with it as `cursor` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A path as text: `%` and two digits for each byte that is not part of UTF-8 text, for control characters, and
/// for `%` itself.
pub fn path_text(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
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

/// The path that [`path_text`] wrote; none for a `%` without two digits behind it.
pub fn path_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        bytes.push((digit(0)? * 16 + digit(1)?) as u8);
        rest = rest.get(2..).unwrap_or_default();
    }
    Some(bytes)
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
            assert_eq!(path_text(bytes), text);
        }
        for bad in ["%", "%4", "%zz", "a%+1"] {
            assert_eq!(path_bytes(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_path_round_trips(bytes: Vec<u8>) {
            prop_assert_eq!(path_bytes(&path_text(&bytes)), Some(bytes));
        }
    }
}
