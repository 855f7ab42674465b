//! The hand, from here: what it is told, and what comes of it, in order.

use super::{nonce, script};
use crate::{
    keeper::Pipe,
    remote::{RemoteError, channel::Link},
};
use ::keeper::wire::{CHUNK_BYTES, Whom};
use std::{collections::VecDeque, io, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Nothing more is read while so much waits for room.
const HELD_BYTES: usize = 256 * 1024;
/// How long it has to end what the shell left.
const LEAVING: Duration = Duration::from_secs(5);

pub(super) struct Hand {
    pipe: Pipe,
    heard: Vec<u8>,
    due: VecDeque<Due>,
}

/// What it will say next, and the mark behind it.
struct Due {
    kind: Kind,
    mark: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Begun,
    Stream { index: usize },
    Nothing,
}

/// What came of it.
pub(super) enum Caught {
    Begun,
    Bytes {
        index: usize,
        bytes: Vec<u8>,
    },
    /// Both streams were read to where they end now.
    Fetched,
}

impl Hand {
    pub(super) async fn open(link: &Link, folder: &str) -> Result<Self, RemoteError> {
        let channel = link.open(&script::hand(folder)).await?;
        Ok(Self { pipe: channel.pipe, heard: Vec::new(), due: VecDeque::new() })
    }

    pub(super) fn has_room(&self) -> bool {
        self.heard.len() < HELD_BYTES
    }

    /// Cancel-safe.
    pub(super) async fn read(&mut self) -> io::Result<usize> {
        self.pipe.read.read_buf(&mut self.heard).await
    }

    /// The shell's number, whose children are looked for.
    pub(super) async fn drives(&mut self, pid: u32) -> io::Result<()> {
        self.say(&format!("drive {pid}")).await
    }

    /// Makes new files for a command's output.
    pub(super) async fn begin(&mut self) -> io::Result<()> {
        self.order("begin", "", &[Kind::Begun]).await
    }

    pub(super) async fn fetch(&mut self) -> io::Result<()> {
        self.order("fetch", "", &[Kind::Stream { index: 0 }, Kind::Stream { index: 1 }]).await
    }

    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.order("finish", "", &[Kind::Nothing]).await
    }

    pub(super) async fn signal(&mut self, whom: Whom, signal: i32) -> io::Result<()> {
        let order = match whom {
            Whom::Own => "own",
            Whom::Shell => "main",
            Whom::Both => "both",
        };
        self.order(order, &signal.to_string(), &[Kind::Nothing]).await
    }

    async fn order(&mut self, order: &str, argument: &str, kinds: &[Kind]) -> io::Result<()> {
        let nonce = nonce()?;
        for kind in kinds {
            self.due.push_back(Due { kind: *kind, mark: format!("\n{nonce}\n").into_bytes() });
        }
        self.say(&format!("{order} {nonce} {argument}")).await
    }

    async fn say(&mut self, order: &str) -> io::Result<()> {
        self.pipe.write.write_all(format!("{order}\n").as_bytes()).await?;
        self.pipe.write.flush().await
    }

    /// Has it end everything that the shell has running, and the shell, and waits until it did.
    pub(super) async fn leave(&mut self) -> io::Result<()> {
        self.pipe.write.shutdown().await?;
        // Only now a pipe is closed.
        self.pipe.write = Box::new(tokio::io::sink());
        let mut rest = [0; 4096];
        let ended = async { while self.pipe.read.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
        if tokio::time::timeout(LEAVING, ended).await.is_err() {
            tracing::warn!("a plain shell's machine did not say that everything ended");
        }
        Ok(())
    }

    /// What came next, as far as there is room for it.
    pub(super) fn next(&mut self, room: [u64; 2]) -> Option<Caught> {
        loop {
            let due = self.due.front()?;
            let at = script::find(&self.heard, &due.mark);
            if at == Some(0) {
                let length = due.mark.len();
                self.heard.drain(..length);
                match self.due.pop_front()?.kind {
                    Kind::Begun => return Some(Caught::Begun),
                    Kind::Stream { index: 0 } | Kind::Nothing => continue,
                    Kind::Stream { .. } => return Some(Caught::Fetched),
                }
            }
            // The mark may be there in part.
            let safe = at.unwrap_or_else(|| (self.heard.len() + 1).saturating_sub(due.mark.len()));
            match due.kind {
                Kind::Stream { index } => {
                    let room = usize::try_from(room[index]).unwrap_or(usize::MAX);
                    let length = safe.min(room).min(CHUNK_BYTES);
                    if length == 0 {
                        return None;
                    }
                    let bytes = self.heard.drain(..length).collect();
                    return Some(Caught::Bytes { index, bytes });
                }
                Kind::Begun | Kind::Nothing if safe == 0 => return None,
                // A complaint of the other side's.
                Kind::Begun | Kind::Nothing => drop(self.heard.drain(..safe)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hand(kinds: &[Kind]) -> Hand {
        let due = kinds.iter().map(|kind| Due { kind: *kind, mark: b"\nn0\n".to_vec() }).collect();
        let (read, write) = (Box::new(tokio::io::empty()), Box::new(tokio::io::sink()));
        Hand { pipe: Pipe { read, write, hold: Box::new(()) }, heard: Vec::new(), due }
    }

    proptest! {
        #[test]
        fn streams_are_told_apart_however_they_are_cut(
            out in "[ab\n0]{0,40}", err in "[ab\n0]{0,40}", cut in 1_usize..9, room in 1_u64..9,
        ) {
            let mut hand = hand(&[Kind::Begun, Kind::Stream { index: 0 }, Kind::Stream { index: 1 }]);
            let wire = format!("noise\nn0\n{out}\nn0\n{err}\nn0\n").into_bytes();
            let (mut got, mut order) = ([Vec::new(), Vec::new()], Vec::new());
            for piece in wire.chunks(cut) {
                hand.heard.extend_from_slice(piece);
                while let Some(caught) = hand.next([room; 2]) {
                    match caught {
                        Caught::Begun => order.push("begun"),
                        Caught::Fetched => order.push("fetched"),
                        Caught::Bytes { index, bytes } => {
                            prop_assert!(bytes.len() as u64 <= room);
                            got[index].extend(bytes);
                        }
                    }
                }
            }
            prop_assert_eq!(order, ["begun", "fetched"]);
            prop_assert_eq!(got, [out.into_bytes(), err.into_bytes()]);
        }
    }

    #[test]
    fn without_room_nothing_is_taken() {
        let mut hand = hand(&[Kind::Stream { index: 0 }]);
        hand.heard.extend(b"abc\nn0\n");
        assert!(hand.next([0, 9]).is_none());
        assert!(matches!(hand.next([2, 0]), Some(Caught::Bytes { index: 0, bytes }) if bytes == b"ab"));
    }
}
