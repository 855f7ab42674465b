//! The whole text of a command's output, beside what its budget shows: gathered while the command runs, and kept as an
//! attachment of the journal when something was left out. What fits into one piece waits in memory for the end;
//! the rest goes to a file by a thread of its own, a few pieces ahead at most, and the shell waits for that.
//!
//! The command's end does not wait for the disk: `output_kept` follows it once the text is there.

use journal::{Attachment, Journal};
use protocol::OutputStream;
use std::io;
use tokio::{sync::mpsc, task::JoinHandle};

/// Text goes to the file in pieces of at least this.
const PIECE_BYTES: usize = 64 * 1024;
/// Pieces on their way to the file, beside the one in hand.
const PIECES: usize = 2;

/// Both streams of one command.
pub(super) struct Whole {
    journal: Journal,
    most: u64,
    lines: [Line; 2],
}

/// One stream.
#[derive(Default)]
struct Line {
    piece: Vec<u8>,
    bytes: u64,
    extent: Extent,
    writing: Option<Writing>,
}

/// How much of a stream there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Extent {
    #[default]
    All,
    /// Its beginning is lost.
    Late,
    /// The limit is reached: nothing more is taken.
    Cut,
}

struct Writing {
    pieces: mpsc::Sender<Piece>,
    /// One that had no room yet.
    waiting: Option<Vec<u8>>,
    done: JoinHandle<io::Result<Attachment>>,
}

enum Piece {
    Text(Vec<u8>),
    /// Nothing more comes; without it what was written is thrown away.
    End,
}

/// A text that is on disk.
pub(super) struct Kept {
    pub(super) stream: OutputStream,
    pub(super) attachment: Attachment,
    pub(super) complete: bool,
}

/// What comes of a stream that is to be kept, or why it was not.
pub(super) type Keeping = std::pin::Pin<Box<dyn Future<Output = Result<Kept, io::Error>> + Send>>;

impl Whole {
    /// Keeps at most so many bytes of each stream.
    /// `late` says of which the beginning is lost.
    pub(super) fn new(journal: Journal, most: u64, late: [bool; 2]) -> Self {
        Self { journal, most, lines: late.map(Line::new) }
    }

    pub(super) fn bytes(&self, stream: OutputStream) -> u64 {
        self.lines[index(stream)].bytes
    }

    pub(super) fn push(&mut self, stream: OutputStream, text: &str) {
        let line = &mut self.lines[index(stream)];
        if line.extent == Extent::Cut {
            return;
        }
        let room = usize::try_from(self.most.saturating_sub(line.bytes)).unwrap_or(usize::MAX);
        let fits = text.floor_char_boundary(room);
        if fits < text.len() {
            line.extent = Extent::Cut;
        }
        line.bytes += fits as u64;
        line.piece.extend_from_slice(&text.as_bytes()[..fits]);
        if line.piece.len() >= PIECE_BYTES {
            line.send(&self.journal);
        }
    }

    /// Whether the disk is behind, so that no more should be taken from the shell.
    pub(super) fn is_behind(&self) -> bool {
        self.lines.iter().any(|line| line.writing.as_ref().is_some_and(|writing| writing.waiting.is_some()))
    }

    /// Waits until it is not. Cancel-safe.
    pub(super) async fn catch_up(&mut self) {
        for writing in self.lines.iter_mut().filter_map(|line| line.writing.as_mut()) {
            if writing.waiting.is_some() {
                let room = writing.pieces.reserve().await;
                let piece = writing.waiting.take();
                // One whose thread gave up is told of at the end.
                if let (Ok(room), Some(piece)) = (room, piece) {
                    room.send(Piece::Text(piece));
                }
            }
        }
    }

    /// The command has ended: keeps a stream.
    pub(super) fn keep(&mut self, stream: OutputStream) -> Keeping {
        let Line { piece, extent, writing, .. } = std::mem::take(&mut self.lines[index(stream)]);
        let journal = self.journal.clone();
        Box::pin(async move {
            let done = match writing {
                None => tokio::task::spawn_blocking(move || {
                    let mut draft = journal.draft()?;
                    draft.write(&piece)?;
                    draft.finish()
                }),
                Some(Writing { pieces, waiting, done }) => {
                    let rest = waiting.into_iter().chain([piece]).map(Piece::Text).chain([Piece::End]);
                    for piece in rest {
                        if pieces.send(piece).await.is_err() {
                            break;
                        }
                    }
                    done
                }
            };
            let attachment = done.await.map_err(io::Error::other)??;
            Ok(Kept { stream, attachment, complete: extent == Extent::All })
        })
    }
}

impl Line {
    fn new(late: bool) -> Self {
        Self { extent: if late { Extent::Late } else { Extent::All }, ..Self::default() }
    }

    fn send(&mut self, journal: &Journal) {
        let writing = self.writing.get_or_insert_with(|| {
            let (pieces, mut texts) = mpsc::channel(PIECES);
            let journal = journal.clone();
            let done = tokio::task::spawn_blocking(move || {
                let mut draft = journal.draft()?;
                while let Some(piece) = texts.blocking_recv() {
                    match piece {
                        Piece::Text(text) => draft.write(&text)?,
                        Piece::End => return draft.finish(),
                    }
                }
                Err(io::Error::other("its command was given up"))
            });
            Writing { pieces, waiting: None, done }
        });
        // While one waits for room, the piece in hand grows by what was on its way from the shell.
        if writing.waiting.is_none() {
            let piece = std::mem::take(&mut self.piece);
            match writing.pieces.try_send(Piece::Text(piece)) {
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
                Err(mpsc::error::TrySendError::Full(piece)) => {
                    if let Piece::Text(text) = piece {
                        writing.waiting = Some(text);
                    }
                }
            }
        }
    }
}

fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}
