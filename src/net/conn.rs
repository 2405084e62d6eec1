//! One connection: its stream, what was read and not yet understood, what waits to be written.
//!
//! Owns: buffers. An idle connection holds none: they come from a small store of this thread when bytes arrive,
//! and go back when the buffer is empty. Never: knows what the bytes mean.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::Stream;
use crate::limits::{READ_BUFFER_BYTES, WRITE_BUFFER_BYTES_MAX};

/// Buffers kept for reuse on one thread.
const KEPT_BUFFERS: usize = 64;

thread_local! {
    static READ_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static WRITE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take_read_buffer() -> Box<[u8]> {
    READ_BUFFERS
        .with(|kept| kept.borrow_mut().pop())
        .unwrap_or_else(|| vec![0; READ_BUFFER_BYTES].into_boxed_slice())
}

fn keep_read_buffer(buffer: Box<[u8]>) {
    if buffer.len() == READ_BUFFER_BYTES {
        READ_BUFFERS.with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_BUFFERS {
                kept.push(buffer);
            }
        });
    }
}

fn take_write_buffer() -> Vec<u8> {
    WRITE_BUFFERS.with(|kept| kept.borrow_mut().pop()).unwrap_or_default()
}

fn keep_write_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() > 0 && buffer.capacity() <= WRITE_BUFFER_BYTES_MAX {
        buffer.clear();
        WRITE_BUFFERS.with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_BUFFERS {
                kept.push(buffer);
            }
        });
    }
}

/// Bytes read and not yet consumed.
#[derive(Debug, Default)]
struct Input {
    data: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    /// Makes room after `end`: moves what is left to the front, grows when a message of `want` bytes needs it.
    fn make_room(&mut self, want: usize) {
        if self.start > 0 && (self.end == self.data.len() || self.start + want > self.data.len()) {
            self.data.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let need = want.max(self.end - self.start + 1);
        if need > self.data.len() {
            let mut grown = vec![0; need.next_power_of_two()].into_boxed_slice();
            grown[..self.end].copy_from_slice(&self.data[..self.end]);
            self.data = grown;
        }
    }

    fn release_if_empty(&mut self) {
        if self.start == self.end && !self.data.is_empty() {
            keep_read_buffer(std::mem::take(&mut self.data));
            (self.start, self.end) = (0, 0);
        }
    }
}

/// A stream with its buffers.
#[derive(Debug)]
pub struct Conn {
    stream: Stream,
    input: Input,
    want: usize,
    consumed: usize,
    /// What waits to be written; append to it, then [`Conn::poll_flush`].
    pub out: Vec<u8>,
    written: usize,
    eof: bool,
    unflushed: bool,
}

impl Conn {
    /// Over `stream`; `rest` was already read from it.
    pub fn new(stream: Stream, rest: &[u8]) -> Self {
        let mut input = Input::default();
        if !rest.is_empty() {
            input.data = take_read_buffer();
            input.make_room(rest.len());
            input.data[..rest.len()].copy_from_slice(rest);
            input.end = rest.len();
        }
        Self {
            stream,
            input,
            want: 0,
            consumed: 0,
            out: Vec::new(),
            written: 0,
            eof: false,
            unflushed: false,
        }
    }

    /// The stream below.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Moves the socket to this thread's reactor; see [`Stream::rehome`].
    ///
    /// # Errors
    /// The socket can't be registered; the connection is lost then.
    pub fn rehome(self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.rehome()?, ..self })
    }

    /// What was read and not yet consumed.
    pub fn bytes(&self) -> &[u8] {
        self.input.bytes()
    }

    /// What was read and not yet consumed, beside what waits to be written.
    pub fn split(&mut self) -> (&[u8], &mut Vec<u8>) {
        (self.input.bytes(), &mut self.out)
    }

    /// The first `n` of [`Conn::bytes`] are done with.
    pub fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.input.end - self.input.start);
        self.input.start += n;
        self.consumed = self.consumed.wrapping_add(n);
        self.want = 0;
        self.input.release_if_empty();
    }

    /// Bytes consumed in all.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// The next message is `n` bytes long and must be whole: the buffer grows to hold it.
    /// `n` was compared with a bound before.
    pub fn want(&mut self, n: usize) {
        self.want = n;
    }

    /// The other side closed its half.
    pub fn at_eof(&self) -> bool {
        self.eof
    }

    /// Hot path. Reads once. `Ready(Ok(0))` is the end of the stream. Registers the task when nothing is there.
    ///
    /// Cancel safety: no byte is lost; what was read stands in [`Conn::bytes`].
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.stream.poll_read_ready(cx)?.is_pending() {
            return Poll::Pending;
        }
        if self.input.data.is_empty() {
            self.input.data = take_read_buffer();
        }
        if self.input.end == self.input.data.len() || self.want > self.input.data.len() - self.input.start {
            self.input.make_room(self.want);
        }
        let mut space = ReadBuf::new(&mut self.input.data[self.input.end..]);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut space);
        let read = space.filled().len();
        match polled {
            Poll::Ready(Ok(())) => {
                self.input.end += read;
                self.eof |= read == 0;
                if read == 0 {
                    self.input.release_if_empty();
                }
                Poll::Ready(Ok(read))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.input.release_if_empty();
                Poll::Pending
            }
        }
    }

    /// Hot path. As [`Conn::poll_fill`], of a client: one whose connection breaks (a reset, TLS without a goodbye) has left, and
    /// what it said before is done, as by PostgreSQL.
    ///
    /// Cancel safety: as [`Conn::poll_fill`].
    pub fn poll_hear(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        self.poll_fill(cx).map(|read| read.unwrap_or(0))
    }

    /// True while more may be appended to [`Conn::out`] without waiting for the other side.
    pub fn has_room(&self) -> bool {
        self.out.len() - self.written < WRITE_BUFFER_BYTES_MAX
    }

    /// True when nothing waits to be written.
    pub fn is_flushed(&self) -> bool {
        self.out.is_empty() && !self.unflushed
    }

    /// Gives `out` a kept buffer before the first append.
    pub fn prepare_out(&mut self) {
        if self.out.capacity() == 0 {
            self.out = take_write_buffer();
        }
    }

    /// Hot path. Writes what waits. `Ready` when all of it is written.
    ///
    /// Cancel safety: what was written is remembered; call again.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out[self.written..]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += n;
            self.unflushed = self.stream.is_tls();
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        if !self.out.is_empty() {
            self.discard_out();
        }
        Poll::Ready(Ok(()))
    }

    /// What waits to be written is not written any more.
    pub fn discard_out(&mut self) {
        self.written = 0;
        self.unflushed = false;
        keep_write_buffer(std::mem::take(&mut self.out));
    }

    /// Writes what waits.
    ///
    /// Cancel safety: as [`Conn::poll_flush`].
    ///
    /// # Errors
    /// The socket's.
    pub async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Writes what waits, and says that nothing more comes: over TLS its peer would take silence for a cut.
    ///
    /// Cancel safety: as [`Conn::poll_flush`].
    ///
    /// # Errors
    /// The socket's.
    pub async fn say_goodbye(&mut self) -> io::Result<()> {
        self.flush().await?;
        std::future::poll_fn(|cx| self.poll_goodbye(cx)).await
    }

    /// The same, of one that has written everything.
    ///
    /// Cancel safety: call again.
    pub fn poll_goodbye(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if !self.data.is_empty() {
            keep_read_buffer(std::mem::take(&mut self.data));
        }
    }
}
