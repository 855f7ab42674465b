//! The two streams that an engine sends in one: each piece has a head that says whose it is.
//!
//! Standard output is read through; standard error is put aside.

use crate::remote::channel::Complaints;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, ReadBuf};

const HEAD: usize = 8;
const STDERR: u8 = 2;
const PIECE: usize = 4096;

pub(super) struct Frames<R> {
    inner: R,
    head: [u8; HEAD],
    /// Of the head, or of the piece once the head is whole.
    got: usize,
    left: usize,
    complaints: Complaints,
}

impl<R> Frames<R> {
    pub(super) fn new(inner: R, complaints: Complaints) -> Self {
        Self { inner, head: [0; HEAD], got: 0, left: 0, complaints }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Frames<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.left == 0 {
                let mut rest = ReadBuf::new(&mut this.head[this.got..]);
                ready!(Pin::new(&mut this.inner).poll_read(context, &mut rest))?;
                match rest.filled().len() {
                    // The end; a head that is cut short is the end too.
                    0 => return Poll::Ready(Ok(())),
                    length => this.got += length,
                }
                if this.got < HEAD {
                    continue;
                }
                this.got = 0;
                let [.., a, b, c, d] = this.head;
                this.left = u32::from_be_bytes([a, b, c, d]) as usize;
                continue;
            }
            if this.head[0] == STDERR {
                let mut piece = [0; PIECE];
                let most = this.left.min(PIECE);
                let mut aside = ReadBuf::new(&mut piece[..most]);
                ready!(Pin::new(&mut this.inner).poll_read(context, &mut aside))?;
                let length = aside.filled().len();
                if length == 0 {
                    return Poll::Ready(Ok(()));
                }
                this.left -= length;
                this.complaints.add(aside.filled());
                continue;
            }
            let most = this.left.min(out.remaining());
            let mut piece = ReadBuf::new(out.initialize_unfilled_to(most));
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut piece))?;
            let length = piece.filled().len();
            out.advance(length);
            this.left -= length;
            return Poll::Ready(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    fn frame(kind: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&[kind, 0, 0, 0], length.as_slice(), bytes].concat()
    }

    proptest! {
        #[test]
        fn streams_are_told_apart_however_they_are_cut(
            pieces in proptest::collection::vec((1_u8..=2, proptest::collection::vec(any::<u8>(), 0..50)), 0..20),
            cuts in proptest::collection::vec(1_usize..30, 1..200),
        ) {
            let wire: Vec<u8> = pieces.iter().flat_map(|(kind, bytes)| frame(*kind, bytes)).collect();
            let of = |wanted: u8| -> Vec<u8> {
                pieces.iter().filter(|(kind, _)| *kind == wanted).flat_map(|(_, bytes)| bytes.clone()).collect()
            };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (got, complaints) = runtime.block_on(async {
                let (mut feeder, fed) = tokio::io::duplex(16);
                let complaints = Complaints::default();
                let mut frames = Frames::new(fed, complaints.clone());
                let feeding = async {
                    let mut rest = wire.as_slice();
                    for cut in cuts.iter().cycle() {
                        let (now, later) = rest.split_at((*cut).min(rest.len()));
                        tokio::io::AsyncWriteExt::write_all(&mut feeder, now).await.unwrap();
                        rest = later;
                        if rest.is_empty() { break }
                    }
                    drop(feeder);
                };
                let mut got = Vec::new();
                let (read, ()) = tokio::join!(frames.read_to_end(&mut got), feeding);
                read.unwrap();
                (got, complaints)
            });
            prop_assert_eq!(got, of(1));
            let aside = String::from_utf8_lossy(&of(2)).trim().to_owned();
            prop_assert_eq!(complaints.text(), aside);
        }
    }
}
