//! The log's thread: logging never waits for the reader of the log.
//!
//! Owns: the queue of lines, and the count of lines lost because it was full. Never: what a line says.
//!
//! Standard error may be a pipe that is not read: a journal that hangs, a terminal that was stopped. Lines that do not fit into the
//! queue are lost and counted, and their number is logged when there is room again.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use super::{events, is_unseen};
use crate::limits::LOG_QUEUE_BYTES;

enum Order {
    Write(Box<[u8]>),
    /// Everything before this was dealt with.
    Tell(SyncSender<()>),
}

/// Where lines are left for the thread.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    queue: Sender<Order>,
    shared: Arc<Shared>,
    json: bool,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes of the lines that wait.
    waiting: AtomicUsize,
    /// Lines that found no place, and that no line has told of yet.
    lost: AtomicU64,
}

impl Lines {
    /// Starts the thread that writes to `sink`. `json`: the lines are JSON.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(sink: impl Write + Send + 'static, json: bool) -> io::Result<Self> {
        let (queue, orders) = channel();
        let shared = Arc::new(Shared::default());
        let lines = Self { queue, shared: Arc::clone(&shared), json };
        std::thread::Builder::new().name("pgsluice-log".into()).spawn(move || run(sink, &orders, &shared))?;
        Ok(lines)
    }

    /// Waits until every line so far was dealt with, at most for `limit`; false if it was not. Blocks.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let (told, heard) = sync_channel(1);
        self.queue.send(Order::Tell(told)).is_ok() && heard.recv_timeout(limit).is_ok()
    }
}

fn run(mut sink: impl Write, orders: &Receiver<Order>, shared: &Shared) {
    while let Ok(order) = orders.recv() {
        match order {
            Order::Write(line) => {
                // What a full disk or a closed pipe does not take is lost.
                let _ = sink.write_all(&line);
                shared.waiting.fetch_sub(line.len(), Ordering::Relaxed);
                let lost = shared.lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    events::log_lines_lost(lost);
                }
            }
            Order::Tell(told) => {
                let _ = told.send(());
            }
        }
    }
}

/// A line of JSON in which everything can be seen. The library escapes what JSON itself must not hold; beyond that only strings hold
/// anything but ASCII, and there each character may be written so.
fn visible(line: &[u8]) -> Cow<'_, [u8]> {
    let hides = |text: &&str| text.chars().any(|c| c != '\n' && is_unseen(c));
    let Some(text) = std::str::from_utf8(line).ok().filter(hides) else { return Cow::Borrowed(line) };
    let mut seen = String::with_capacity(line.len() + 16);
    for c in text.chars() {
        match c {
            c if c == '\n' || !is_unseen(c) => seen.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    seen.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    Cow::Owned(seen.into_bytes())
}

impl Write for &Lines {
    /// One line, whole: the library writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Shared { waiting, lost } = &*self.shared;
        let taken = line.len();
        let line = if self.json { visible(line) } else { Cow::Borrowed(line) };
        if waiting.fetch_add(line.len(), Ordering::Relaxed) > LOG_QUEUE_BYTES
            || self.queue.send(Order::Write(line.as_ref().into())).is_err()
        {
            waiting.fetch_sub(line.len(), Ordering::Relaxed);
            lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a line for each turn that it is given.
    struct Gate(Receiver<()>);

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_logs_never_waits_and_what_is_lost_is_counted() {
        let (open, gate) = channel();
        let lines = Lines::start(Gate(gate), false).unwrap();
        let line = [b'x'; 1024];
        let fit = LOG_QUEUE_BYTES / line.len() + 1;
        for _ in 0..fit + 3 {
            (&lines).write_all(&line).unwrap();
        }
        assert_eq!(lines.shared.lost.load(Ordering::Relaxed), 3);
        assert!(!lines.flush(Duration::from_millis(1)));
        drop(open);
        assert!(lines.flush(Duration::from_secs(600)));
        assert_eq!(lines.shared.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(lines.shared.lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_line_of_json_shows_what_it_holds() {
        let plain = "{\"user\":\"\u{e9}\u{4e2d}\u{1f600}\"}\n".as_bytes();
        assert!(matches!(visible(plain), Cow::Borrowed(line) if line == plain));
        let hidden = "a\u{7f}\u{85}\u{9b}31m\u{2028}\u{202e}\u{e0001}\u{e9}";
        let line = format!("{{\"user\":\"{hidden}\"}}\n");
        let seen = String::from_utf8(visible(line.as_bytes()).into_owned()).unwrap();
        assert_eq!(seen, "{\"user\":\"a\\u007f\\u0085\\u009b31m\\u2028\\u202e\\udb40\\udc01\u{e9}\"}\n");
        let read: serde_json::Value = serde_json::from_str(&seen).unwrap();
        assert_eq!(read["user"], hidden);
    }
}
