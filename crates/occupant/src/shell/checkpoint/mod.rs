//! Checkpoints of a folder on another machine or in a container: the shell text that takes, lists and restores them there,
//! and the reading of what it says. Pure; whoever has a way to run a text on the target runs it with `sh`.
//!
//! The target needs git, which only stores content: neither the user's git configuration nor attributes, ignore rules,
//! hooks or nested repositories in the folder mean anything to it (`remote.sh` says how). Modes, empty folders, links
//! and ignored files are kept; names with a newline, owners, hard links and devices are not. The home folder and `/`
//! are refused unless they are asked for by [`Reach::Anywhere`].

use std::fmt;

const SCRIPT: &str = include_str!("remote.sh");
/// Names and patterns of one set of checkpoints, and the bytes of each and of a label.
pub const NAMES: usize = 1_000;
pub const NAME_BYTES: usize = 4_096;
pub const LABEL_CHARS: usize = 200;
const KEY_BYTES: usize = 128;

/// Which folders may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// Any but the home folder and `/`.
    #[default]
    Usual,
    Anywhere,
}

/// One folder's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoints {
    header: String,
}

/// What makes up a set of checkpoints.
#[derive(Debug, Clone, Default)]
pub struct Kept<'a> {
    /// The folder, absolute.
    pub folder: &'a str,
    /// What its store is called on the target: a session's alias or id.
    pub key: &'a str,
    /// Where stores are; none takes the first of the usual places that can be written.
    pub store: Option<&'a str>,
    /// Names in the folder; none is all of it.
    pub paths: &'a [String],
    /// Patterns that are left out, and left alone when something is restored. One without a slash is a name anywhere.
    pub ignores: &'a [String],
    pub reach: Reach,
}

/// What cannot be written into the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadCheckpoint {
    Folder,
    Key,
    Name,
    Id,
    TooMany,
}

impl fmt::Display for BadCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder => f.write_str("a checkpoint needs the absolute path of a folder, on one line"),
            Self::Key => {
                f.write_str("the name of a store of checkpoints is letters, digits, `.`, `_`, `@` and `-`")
            }
            Self::Name => {
                write!(f, "a path or pattern of a checkpoint is one line of at most {NAME_BYTES} bytes")
            }
            Self::Id => f.write_str("a checkpoint's id is the digits that taking it gave"),
            Self::TooMany => write!(f, "a checkpoint takes at most {NAMES} paths and {NAMES} patterns"),
        }
    }
}

impl std::error::Error for BadCheckpoint {}

/// The target's own word that it did not do it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// `no_git`, `no_folder`, `too_wide`, `no_store`, `git_failed`, `busy`, `bad_path`, `no_checkpoint` or
    /// `not_restored`; `no_answer` when it said nothing that can be read.
    pub code: String,
    pub sentence: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub id: String,
    /// Files, folders and links.
    pub entries: u64,
    /// Files that could not be read.
    pub left_out: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    pub id: String,
    /// Entries that were made, changed or removed.
    pub changed: u64,
    /// The checkpoint taken before, by which it can be undone.
    pub undo: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    /// Seconds since 1970, by the target's clock.
    pub created: i64,
    pub label: String,
}

impl Checkpoints {
    pub fn new(kept: &Kept<'_>) -> Result<Self, BadCheckpoint> {
        if !kept.folder.starts_with('/') || !fits(kept.folder) {
            return Err(BadCheckpoint::Folder);
        }
        let in_key = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        let dots = kept.key.bytes().all(|byte| byte == b'.');
        if kept.key.len() > KEY_BYTES || dots || !kept.key.bytes().all(in_key) {
            return Err(BadCheckpoint::Key);
        }
        if kept.paths.len() > NAMES || kept.ignores.len() > NAMES {
            return Err(BadCheckpoint::TooMany);
        }
        let mut names = kept.paths.iter().chain(kept.ignores);
        if !names.all(|name| fits(name) && !name.is_empty()) || !kept.store.is_none_or(fits) {
            return Err(BadCheckpoint::Name);
        }
        let reach = if kept.reach == Reach::Anywhere { "anywhere" } else { "" };
        let values = [
            ("ol_work", kept.folder.to_owned()),
            ("ol_key", kept.key.to_owned()),
            ("ol_store", kept.store.unwrap_or_default().to_owned()),
            ("ol_allow", reach.to_owned()),
            ("ol_paths", kept.paths.join("\n")),
            ("ol_ignores", kept.ignores.join("\n")),
        ];
        Ok(Self { header: values.iter().map(|(name, value)| set(name, value)).collect() })
    }

    /// The text that takes one.
    pub fn take(&self, label: Option<&str>) -> String {
        let clean = |character: char| if character.is_control() { ' ' } else { character };
        let label: String = label.unwrap_or_default().chars().take(LABEL_CHARS).map(clean).collect();
        self.script("take", "", &label)
    }

    /// The text that lists them.
    pub fn list(&self) -> String {
        self.script("list", "", "")
    }

    /// The text that restores one, the newest unless another is named, after it has taken one.
    pub fn restore(&self, id: Option<&str>) -> Result<String, BadCheckpoint> {
        let id = id.unwrap_or_default();
        match id.len() <= 20 && id.bytes().all(|byte| byte.is_ascii_digit()) {
            true => Ok(self.script("restore", id, "")),
            false => Err(BadCheckpoint::Id),
        }
    }

    fn script(&self, what: &str, id: &str, label: &str) -> String {
        format!("{}{}{}{}{SCRIPT}", set("ol_do", what), set("ol_id", id), set("ol_label", label), self.header)
    }
}

/// On one line, and not too long.
fn fits(text: &str) -> bool {
    text.len() <= NAME_BYTES && !text.contains(['\n', '\0'])
}

fn set(name: &str, value: &str) -> String {
    format!("{name}='{}'\n", value.replace('\'', "'\\''"))
}

/// The words of the last line, after `ok`, and the lines before it.
fn answer(output: &str) -> Result<(Vec<&str>, Vec<&str>), Failed> {
    let mut lines: Vec<&str> = output.lines().collect();
    let last = lines.pop().unwrap_or_default();
    if let Some((code, sentence)) = last.strip_prefix("error ").and_then(|rest| rest.split_once(' ')) {
        return Err(Failed { code: code.to_owned(), sentence: sentence.to_owned() });
    }
    let mut words = last.split(' ');
    match words.next() {
        Some("ok") => Ok((words.collect(), lines)),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> Failed {
    Failed { code: "no_answer".to_owned(), sentence: "the target did not say what came of it".to_owned() }
}

/// What the text of [`Checkpoints::take`] wrote.
pub fn taken(output: &str) -> Result<Taken, Failed> {
    match answer(output)?.0[..] {
        [id, entries, left_out] => Ok(Taken {
            id: id.to_owned(),
            entries: entries.parse().map_err(|_| unreadable())?,
            left_out: left_out.parse().map_err(|_| unreadable())?,
        }),
        _ => Err(unreadable()),
    }
}

/// What the text of [`Checkpoints::restore`] wrote.
pub fn restored(output: &str) -> Result<Restored, Failed> {
    match answer(output)?.0[..] {
        [id, changed, undo] => Ok(Restored {
            id: id.to_owned(),
            changed: changed.parse().map_err(|_| unreadable())?,
            undo: undo.to_owned(),
        }),
        _ => Err(unreadable()),
    }
}

/// What the text of [`Checkpoints::list`] wrote, newest first.
pub fn listed(output: &str) -> Result<Vec<Listed>, Failed> {
    let (_, lines) = answer(output)?;
    let read = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let (id, created) = (parts.next()?, parts.next()?.parse().ok()?);
        Some(Listed { id: id.to_owned(), created, label: parts.next().unwrap_or_default().to_owned() })
    };
    lines.into_iter().map(|line| read(line).ok_or_else(unreadable)).collect()
}

#[cfg(test)]
mod tests;
