//! Server-sent events, read in whatever pieces the network brings.
//!
//! [`Frames`] takes bytes and gives whole frames. It holds at most one line and one frame, each bounded, and
//! refuses a longer one: a server that never ends a line must not fill the client's memory.

/// One line or one frame's data: an event at its largest, with its envelope and field name.
pub(crate) const FRAME_BYTES: usize = protocol::limits::EVENT_BYTES + 4096;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The `event:` field; empty when there was none.
    pub event: String,
    /// The `id:` field of this frame, when it had one.
    pub id: Option<String>,
    /// The `data:` lines, joined by line feeds.
    pub data: String,
}

/// Why a stream cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of more than {FRAME_BYTES} bytes")]
    TooLong,
    #[error("a line that is not UTF-8")]
    NotText,
}

/// An incremental reader.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Where the unread bytes begin, and up to where they were searched for a line's end.
    start: usize,
    searched: usize,
    /// The last line ended in CR: a LF right after it belongs to that end.
    after_cr: bool,
    begun: bool,
    frame: Frame,
    data_lines: usize,
    heartbeats: u64,
    limit: Option<usize>,
}

impl Frames {
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    fn with_limit(limit: usize) -> Self {
        Self { limit: Some(limit), ..Self::default() }
    }

    /// Takes the next bytes off the wire.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Comments seen so far; servers send them to keep a connection open.
    pub const fn heartbeats(&self) -> u64 {
        self.heartbeats
    }

    /// The next whole frame, if its end has arrived. An error is final.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        while let Some((from, to)) = self.next_line()? {
            let line = std::str::from_utf8(&self.buffer[from..to]).map_err(|_| FrameError::NotText)?;
            // A byte order mark may open the stream.
            let line = if self.begun { line } else { line.strip_prefix('\u{feff}').unwrap_or(line) };
            self.begun = true;
            if line.is_empty() {
                let frame = std::mem::take(&mut self.frame);
                if std::mem::take(&mut self.data_lines) > 0 {
                    return Ok(Some(frame));
                }
                continue;
            }
            let (field, value) = match line.split_once(':') {
                Some((field, value)) => (field, value.strip_prefix(' ').unwrap_or(value)),
                None => (line, ""),
            };
            match field {
                "" => self.heartbeats += 1,
                "data" => {
                    if self.frame.data.len() + value.len() > self.limit.unwrap_or(FRAME_BYTES) {
                        return Err(FrameError::TooLong);
                    }
                    if self.data_lines > 0 {
                        self.frame.data.push('\n');
                    }
                    self.frame.data.push_str(value);
                    self.data_lines += 1;
                }
                "event" => value.clone_into(&mut self.frame.event),
                "id" if !value.contains('\0') => self.frame.id = Some(value.to_owned()),
                // `retry`, and what later versions may add.
                _ => {}
            }
        }
        Ok(None)
    }

    /// The bounds of the next whole line, without its end.
    fn next_line(&mut self) -> Result<Option<(usize, usize)>, FrameError> {
        if self.after_cr && self.start < self.buffer.len() {
            if self.buffer[self.start] == b'\n' {
                self.start += 1;
            }
            self.after_cr = false;
        }
        self.searched = self.searched.max(self.start);
        let end = self.buffer[self.searched..].iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let length = end.map_or(self.buffer.len(), |at| self.searched + at) - self.start;
        if length > self.limit.unwrap_or(FRAME_BYTES) {
            return Err(FrameError::TooLong);
        }
        let Some(end) = end else {
            self.searched = self.buffer.len();
            return Ok(None);
        };
        let (from, to) = (self.start, self.searched + end);
        self.after_cr = self.buffer[to] == b'\r';
        self.start = to + 1;
        self.searched = self.start;
        Ok(Some((from, to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(frames: &mut Frames) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next_frame().unwrap()).collect()
    }

    fn frame(event: &str, id: Option<&str>, data: &str) -> Frame {
        Frame { event: event.into(), id: id.map(Into::into), data: data.into() }
    }

    #[test]
    fn reads_what_the_standard_says() {
        for (text, want) in [
            ("data: a\n\n", vec![frame("", None, "a")]),
            ("event: x\nid: 7\ndata: a\n\n", vec![frame("x", Some("7"), "a")]),
            ("data:a\ndata: b\ndata\n\n", vec![frame("", None, "a\nb\n")]),
            ("data:  two\n\n", vec![frame("", None, " two")]),
            (": beat\n\n:\n\ndata: a\n\n", vec![frame("", None, "a")]),
            ("event: x\n\ndata: a\n\n", vec![frame("", None, "a")]),
            (
                "data: a\r\n\r\ndata: b\r\rdata: c\n\n",
                vec![frame("", None, "a"), frame("", None, "b"), frame("", None, "c")],
            ),
            ("\u{feff}data: a\n\n", vec![frame("", None, "a")]),
            ("retry: 10\nunknown: x\ndata: é\n\n", vec![frame("", None, "é")]),
            ("data: unfinished\n", vec![]),
            ("id: a\0b\ndata: x\n\n", vec![frame("", None, "x")]),
        ] {
            let mut frames = Frames::new();
            frames.push(text.as_bytes());
            assert_eq!(read(&mut frames), want, "{text:?}");
        }
    }

    #[test]
    fn refuses_what_never_ends() {
        let mut frames = Frames::with_limit(16);
        frames.push(b"data: 0123456789");
        assert_eq!(frames.next_frame(), Ok(None));
        frames.push(b"x");
        assert_eq!(frames.next_frame(), Err(FrameError::TooLong));

        let mut frames = Frames::with_limit(16);
        frames.push(b"data: 01234567\ndata: 01234567\ndata: 0\n");
        assert_eq!(frames.next_frame(), Err(FrameError::TooLong), "many short lines are one long frame");

        let mut frames = Frames::new();
        frames.push(b"data: \xff\n\n");
        assert_eq!(frames.next_frame(), Err(FrameError::NotText));
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(
            texts in proptest::collection::vec("[ -~éß]{0,20}", 1..12),
            ends in proptest::collection::vec(prop_oneof![Just("\n"), Just("\r\n"), Just("\r")], 12),
            cuts in proptest::collection::vec(0usize..400, 0..12),
        ) {
            let mut wire = String::new();
            for (n, text) in texts.iter().enumerate() {
                let end = ends[n % ends.len()];
                wire.push_str(&format!(": beat{end}id: {n}{end}event: e{n}{end}data: {text}{end}{end}"));
            }
            let want: Vec<_> = texts.iter().enumerate()
                .map(|(n, text)| frame(&format!("e{n}"), Some(&n.to_string()), text))
                .collect();

            let bytes = wire.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut frames, mut got) = (Frames::new(), vec![]);
            for pair in cuts.windows(2) {
                frames.push(&bytes[pair[0]..pair[1]]);
                got.extend(read(&mut frames));
            }
            prop_assert_eq!(got, want);
        }

        #[test]
        fn junk_never_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut frames = Frames::with_limit(64);
            for piece in bytes.chunks(7) {
                frames.push(piece);
                while let Ok(Some(frame)) = frames.next_frame() {
                    prop_assert!(frame.data.len() <= 128);
                }
            }
        }
    }
}
