//! Reading the whole text of an output, a piece at a time.

use super::{ShellCommand, no_shell};
use crate::{Caller, Sessions, faults};
use protocol::{
    Body, Code, EventKind, Fault, OutputKept, OutputPiece, OutputStream, SessionId, SessionKind, SessionRef,
    limits,
};

impl Sessions {
    /// A part of a command's whole output, of which its budget left something out. Offsets are bytes of UTF-8.
    pub async fn output(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
        stream: OutputStream,
        offset: u64,
        limit: Option<usize>,
    ) -> Result<OutputPiece, Fault> {
        let limit = limit.unwrap_or(limits::OUTPUT_PIECE_BYTES);
        if limit == 0 || limit > limits::OUTPUT_PIECE_MOST {
            return Err(Fault::invalid(format!("limit must be 1 to {}", limits::OUTPUT_PIECE_MOST)));
        }
        let row = self.row(caller, session).await?;
        if row.fixed.kind != SessionKind::Shell {
            return Err(no_shell());
        }
        let id = row.fixed.id;
        let mut kept = self.kept_output(id, command, stream).await?;
        if kept.is_none() && self.shared.live.has(id) {
            self.ask(id, |reply| ShellCommand::Kept { reply }).await?;
            kept = self.kept_output(id, command, stream).await?;
        }
        let Some(kept) = kept else {
            return Err(Fault::new(
                Code::NotFound,
                format!(
                    "Nothing more of that stream of command {command} is kept; a result's `whole` names the \
                     streams that are"
                ),
            ));
        };
        // A character that the limit cuts is read whole.
        let found = self.shared.journal.attached(&kept.blob, offset, limit.saturating_add(UTF8_BYTES)).await;
        let found = found.map_err(faults::read)?;
        Ok(piece(&found, offset, limit, &kept))
    }

    async fn kept_output(
        &self,
        session: SessionId,
        command: u64,
        stream: OutputStream,
    ) -> Result<Option<OutputKept>, Fault> {
        let mut after = 0;
        loop {
            let page = self.shared.journal.of_kind(session, EventKind::OutputKept, after).await;
            let page = page.map_err(faults::read)?;
            let Some(last) = page.last() else { return Ok(None) };
            after = last.seq;
            for event in &page {
                if let Ok(Body::OutputKept(kept)) = event.decode()
                    && (kept.command, kept.stream) == (command, stream)
                {
                    return Ok(Some(kept));
                }
            }
        }
    }
}

/// The longest character.
const UTF8_BYTES: usize = 4;

/// Whole characters of what was read: those that begin within the limit.
fn piece(found: &[u8], offset: u64, limit: usize, kept: &OutputKept) -> OutputPiece {
    let begins = |byte: u8| byte & 0xc0 != 0x80;
    let border = |from: usize| {
        let rest = found.get(from..).unwrap_or_default();
        from.min(found.len()) + rest.iter().position(|byte| begins(*byte)).unwrap_or(rest.len())
    };
    let (start, end) = (border(0), border(limit));
    let text = String::from_utf8_lossy(found.get(start..end).unwrap_or_default()).into_owned();
    let next = offset + end as u64;
    OutputPiece {
        text,
        offset: offset + start as u64,
        next_offset: (next < kept.bytes).then_some(next),
        bytes: kept.bytes,
        complete: kept.complete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(bytes: u64) -> OutputKept {
        OutputKept { command: 1, stream: OutputStream::Stdout, bytes, complete: true, blob: String::new() }
    }

    fn read(text: &str, offset: usize, limit: usize) -> OutputPiece {
        let bytes = text.as_bytes();
        let found = &bytes[offset.min(bytes.len())..(offset + limit + UTF8_BYTES).min(bytes.len())];
        piece(found, offset as u64, limit, &kept(bytes.len() as u64))
    }

    #[test]
    fn a_cut_character_is_in_one_piece_only() {
        let first = read("aéb", 0, 2);
        assert_eq!((&*first.text, first.next_offset), ("aé", Some(3)));
        let odd = read("aéb", 2, 8);
        assert_eq!((&*odd.text, odd.offset, odd.next_offset), ("b", 3, None));
        let beyond = read("aéb", 9, 8);
        assert_eq!((&*beyond.text, beyond.next_offset), ("", None));
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_whole(text in "\\PC{0,200}", limit in 1_usize..50) {
            let (mut all, mut at) = (String::new(), Some(0));
            while let Some(offset) = at {
                let piece = read(&text, offset, limit);
                prop_assert_eq!(piece.offset, offset as u64);
                all.push_str(&piece.text);
                at = piece.next_offset.map(|next| usize::try_from(next).unwrap());
            }
            prop_assert_eq!(all, text);
        }
    }
}
