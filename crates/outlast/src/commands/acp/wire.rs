//! Lines on stdin and stdout, with bounds: one thread reads, one writes. The SDK's own queues have none, so what
//! is sent without being asked for (updates) holds a permit from when it is queued until it is written; an editor
//! that reads slowly slows the reading of the journal, and costs no memory.

use futures_util::{Sink, Stream, sink, stream};
use protocol::limits;
use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufWriter, Read as _, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Lines read and not yet taken by the SDK, and lines it gave that are not yet written.
const QUEUED_LINES: usize = 64;
/// One permit stands for so many bytes of an update.
const PERMIT_BYTES: usize = 1024;
/// Updates on their way to the editor, together.
const UPDATE_PERMITS: u32 = 4096;
/// How long the last lines have to be written after the editor closed its end.
const LAST_LINES: Duration = Duration::from_secs(5);
const LAST_LOOK: Duration = Duration::from_millis(5);
/// What tells an update from other lines.
const UPDATE_MARK: &str = "\"method\":\"session/update\"";

/// The permits of updates between the SDK's queue and the editor's pipe.
#[derive(Debug)]
pub(super) struct Outbox {
    room: Arc<Semaphore>,
    under_way: Mutex<VecDeque<OwnedSemaphorePermit>>,
}

impl Outbox {
    pub(super) fn new() -> Arc<Self> {
        let room = Arc::new(Semaphore::new(UPDATE_PERMITS as usize));
        Arc::new(Self { room, under_way: Mutex::default() })
    }

    /// Waits for room for an update of this size, then queues it with `send`.
    pub(super) async fn queue<T>(&self, bytes: usize, send: impl FnOnce() -> T) -> T {
        let cost = u32::try_from(bytes / PERMIT_BYTES + 1).unwrap_or(UPDATE_PERMITS).min(UPDATE_PERMITS);
        // The semaphore is never closed; without a permit the update only goes uncounted.
        let permit = Arc::clone(&self.room).acquire_many_owned(cost).await;
        let mut under_way = self.under_way();
        under_way.extend(permit);
        // Under the lock: permits leave in the order in which updates are written.
        send()
    }

    fn written(&self, line: &str) {
        if line.contains(UPDATE_MARK) {
            self.under_way().pop_front();
        }
    }

    fn under_way(&self) -> MutexGuard<'_, VecDeque<OwnedSemaphorePermit>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lines that come in; an error, once, for one over the limit.
pub(super) fn incoming() -> io::Result<impl Stream<Item = io::Result<String>> + Send + 'static> {
    let (sender, receiver) = mpsc::channel(QUEUED_LINES);
    // It ends with the editor's end of the pipe, or with the process: nothing else can end a read.
    std::thread::Builder::new().name("acp-stdin".to_owned()).spawn(move || {
        let mut input = io::stdin().lock();
        while let Some(line) = next_line(&mut input, limits::LINE_BYTES) {
            let broken = line.is_err();
            if sender.blocking_send(line).is_err() || broken {
                return;
            }
        }
    })?;
    Ok(Box::pin(stream::unfold(receiver, async |mut lines| {
        let line = lines.recv().await?;
        Some((line, lines))
    })))
}

/// The next line without its end; nothing at the end of the input.
fn next_line(input: &mut impl io::BufRead, limit: usize) -> Option<io::Result<String>> {
    let mut bytes = vec![];
    let read = input.by_ref().take(limit as u64 + 1).read_until(b'\n', &mut bytes);
    match read {
        Ok(0) => return None,
        Ok(_) => {}
        Err(error) => return Some(Err(error)),
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() > limit {
        return Some(Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line is over {limit} bytes"),
        )));
    }
    Some(
        String::from_utf8(bytes)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line is not UTF-8")),
    )
}

/// How the writing ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Written,
    /// It closed its end, or stopped reading, with lines on their way: its choice, and no failure.
    EditorLeft,
}

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Writer(JoinHandle<io::Result<()>>);

pub(super) fn outgoing(
    outbox: Arc<Outbox>,
) -> io::Result<(impl Sink<String, Error = io::Error> + Send + 'static, Writer)> {
    let (sender, receiver) = mpsc::channel::<String>(QUEUED_LINES);
    let writing = std::thread::Builder::new()
        .name("acp-stdout".to_owned())
        .spawn(move || write(receiver, &outbox, io::stdout().lock()))?;
    let lines = sink::unfold(sender, async |sender, line: String| {
        sender.send(line).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(sender)
    });
    Ok((Box::pin(lines), Writer(writing)))
}

fn write(mut lines: mpsc::Receiver<String>, outbox: &Outbox, out: impl io::Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    while let Some(first) = lines.blocking_recv() {
        let mut next = Some(first);
        while let Some(line) = next {
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")?;
            outbox.written(&line);
            next = lines.try_recv().ok();
        }
        out.flush()?;
    }
    Ok(())
}

impl Writer {
    /// Waits for the last lines; an editor that does not read them gets none. Says whether it still listened.
    pub(super) async fn finish(self) -> Ending {
        let looks = LAST_LINES.as_millis() / LAST_LOOK.as_millis();
        for _ in 0..looks {
            if self.0.is_finished() {
                let left = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
                return match self.0.join() {
                    Ok(Err(error)) if left(&error) => Ending::EditorLeft,
                    _ => Ending::Written,
                };
            }
            tokio::time::sleep(LAST_LOOK).await;
        }
        Ending::EditorLeft
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_bounded() {
        let lines = |text: &[u8]| {
            let mut input = io::BufReader::new(text);
            let mut lines = vec![];
            while let Some(line) = next_line(&mut input, 4) {
                let over = line.is_err();
                lines.push(line.map_err(|error| error.to_string()));
                if over {
                    break;
                }
            }
            lines
        };
        assert_eq!(lines(b""), vec![]);
        assert_eq!(lines(b"a\n\nbcde\nf"), ["a", "", "bcde", "f"].map(|line| Ok(line.to_owned())));
        assert_eq!(lines(b"abcde\n"), vec![Err("a line is over 4 bytes".to_owned())]);
        assert_eq!(lines(b"\xff\n"), vec![Err("a line is not UTF-8".to_owned())]);
    }

    #[tokio::test]
    async fn updates_wait_for_the_reader() {
        let outbox = Outbox::new();
        let line = format!("{{{UPDATE_MARK}}}");
        for _ in 0..UPDATE_PERMITS {
            outbox.queue(10, || ()).await;
        }
        let mut next = Box::pin(outbox.queue(10, || ()));
        assert!(futures_util::poll!(&mut next).is_pending());
        outbox.written("{\"id\":1}");
        assert!(futures_util::poll!(&mut next).is_pending());
        outbox.written(&line);
        next.await;
        for _ in 0..UPDATE_PERMITS {
            outbox.written(&line);
        }
        // The largest is let through alone.
        outbox.queue(usize::MAX, || ()).await;
        assert_eq!(outbox.room.available_permits(), 0);
    }
}
