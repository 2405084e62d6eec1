//! The hot path: one client, one server connection, until nothing is owed.
//!
//! Owns: back-pressure (a side is read only while the other's buffer has room); `up` and `down` walk headers and copy runs of messages.
//! Never: looks into DataRow or CopyData, allocates for a message, takes a lock, logs; reads the clock, except when a client that is
//! pinned to its server connection becomes idle or active.

mod down;
mod up;

use std::io;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use self::down::pump_down;
pub(super) use self::up::feed;
use self::up::{Pumped, pump_up};
use super::session::Session;
use super::state::Fault;
use crate::cancel::ClientState;
use crate::error::Error;
use crate::limits::{
    LAST_WORDS, PIPELINE_MAX, TURN_TEXT_BYTES_MAX, UNTAKEN_BYTES_MAX, WRITE_BUFFER_BYTES_MAX,
};
use crate::server::ServerConn;
use crate::wire::frame::{Header, header};
use crate::wire::{TransactionStatus, frontend as f};

/// What a server says stops at [`WRITE_BUFFER_BYTES_MAX`]; what stands above it are answers of our own, and a client that does
/// not take them asks for no more (bytes).
const MADE_UP_BYTES_MAX: usize = 2 * WRITE_BUFFER_BYTES_MAX;

/// How far a pass over one side's messages got: `run..pos` is to be copied to the other side as it is, and everything before
/// `run` is dealt with.
struct Pass<'a> {
    buf: &'a [u8],
    run: usize,
    pos: usize,
    /// Bytes of the next message that have to be there together.
    want: usize,
}

impl<'a> Pass<'a> {
    fn over(buf: &'a [u8]) -> Self {
        Self { buf, run: 0, pos: 0, want: 0 }
    }

    /// What was not taken in.
    fn rest(&self) -> &'a [u8] {
        &self.buf[self.pos..]
    }

    /// The message that begins here, as far as it is there.
    fn frame(&self, head: Header) -> &'a [u8] {
        let rest = self.rest();
        &rest[..head.total().min(rest.len())]
    }

    /// Copies what is to be copied.
    fn copy(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.buf[self.run..self.pos]);
        self.run = self.pos;
    }

    /// So many bytes are not copied.
    fn skip(&mut self, bytes: usize, out: &mut Vec<u8>) {
        self.copy(out);
        self.pos += bytes;
        self.run = self.pos;
    }

    /// What is there of `rest` bytes of a message that has begun, copied unless it is dropped. How many these are.
    fn go_on(&mut self, rest: usize, dropping: bool) -> usize {
        let bytes = rest.min(self.buf.len() - self.pos);
        self.pos += bytes;
        if dropping {
            self.run = self.pos;
        }
        bytes
    }
}

/// Whose socket had nothing more to read in this turn of the task. It is not asked once more: what came since is not known before
/// the next turn, and that comes with it.
#[derive(Debug, Default, Clone, Copy)]
struct Dry {
    client: bool,
    server: bool,
}

/// How far the server is heard of whose client left. But for the first it is told that nothing more comes: it sees through what
/// came whole, as it would directly, and is nobody else's then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Till {
    /// Nothing is owed, or a COPY reads on.
    CopyReads,
    /// Nothing is owed.
    Answered,
    /// It has closed the connection.
    Closed,
}

/// Why the relay stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nothing is owed and no block is open.
    Quiet,
    /// The client said Terminate, or left.
    ClientLeft,
    /// Somebody told the session something.
    Signalled,
    /// INSERTs inside the block stand at the front that may be poured.
    Run,
}

impl Session {
    /// Relays until [`End`]. `stay`: the server is the client's own; stop when quiet only after
    /// something that may change that.
    ///
    /// Cancel safety: none; the session that is dropped inside closes both connections.
    pub(super) async fn relay(&mut self, server: &mut ServerConn, stay: bool) -> Result<End, Fault> {
        self.hear(server)?;
        std::future::poll_fn(|cx| self.poll_relay(server, stay, cx)).await
    }

    /// Notifications that came while pgsluice itself asked this client's server something, and what came right behind its answer:
    /// it was read with that, so no more needs to come of the server.
    pub(super) fn hear(&mut self, server: &mut ServerConn) -> Result<(), Fault> {
        if server.heard.is_empty() && server.conn.bytes().is_empty() {
            return Ok(());
        }
        self.client.prepare_out();
        let heard = std::mem::take(&mut server.heard);
        let mut rest = &heard[..];
        while let Ok(Some(head)) = header(rest, usize::MAX) {
            let (frame, behind) = rest.split_at(head.total());
            self.state.put_notification(frame, &server.shared, &mut self.client.out);
            rest = behind;
        }
        pump_down(server, &mut self.state, &mut self.client)
    }

    /// Sees through what a client asked before it left, as the server itself would. It may have closed only its own
    /// half, so it is told the answers as long as it takes them.
    pub(super) async fn finish_without_client(&mut self, server: &mut ServerConn) -> Result<(), Fault> {
        let mut breaks_off = self.state.part.up > 0;
        // What was not taken; `None`: it listens.
        let mut untaken = None;
        let finished = loop {
            server.conn.prepare_out();
            if server.pipeline.in_copy_in() {
                // It fails when the server hears that nothing more comes, and says so.
                breaks_off = true;
                self.state.put_last_words(server);
            } else if !breaks_off && server.pipeline.is_within_unit() {
                // Its Sync does not come any more: nothing else would make the server answer, and what the unit did goes with
                // the connection.
                f::put_empty(&mut server.conn.out, f::FLUSH);
            }
            let (is_owed, till) =
                (!server.pipeline.is_empty(), if breaks_off { Till::Answered } else { Till::CopyReads });
            let poll = |cx: &mut Context<'_>| self.poll_finish(server, till, &mut untaken, cx);
            let finished = std::future::poll_fn(poll).await;
            if breaks_off && is_owed && finished.is_ok() && untaken.is_none() {
                // Why it goes may come behind its answer.
                let poll = |cx: &mut Context<'_>| self.poll_finish(server, Till::Closed, &mut untaken, cx);
                let _ = tokio::time::timeout(LAST_WORDS, std::future::poll_fn(poll)).await;
            }
            if breaks_off || finished.is_err() || server.pipeline.is_empty() {
                break finished;
            }
        };
        if untaken.is_none() {
            self.state.put_withheld(&mut self.client.out);
            let _ = tokio::time::timeout(LAST_WORDS, self.client.flush()).await;
        }
        match finished {
            // It was asked to end.
            Ok(()) | Err(Fault::ServerLost(_) | Fault::ServerLeft(_)) if breaks_off => Err(Fault::ClientGone),
            finished => finished,
        }
    }

    fn poll_finish(
        &mut self,
        server: &mut ServerConn,
        till: Till,
        untaken: &mut Option<usize>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        loop {
            if untaken.is_none() && matches!(self.client.poll_flush(cx), Poll::Ready(Err(_))) {
                *untaken = Some(0);
            }
            let is_done = match till {
                Till::CopyReads => server.pipeline.is_empty() || server.pipeline.in_copy_in(),
                Till::Answered => server.pipeline.is_empty(),
                Till::Closed => untaken.is_some(),
            };
            if is_done {
                return Poll::Ready(Ok(()));
            }
            if untaken.is_none() && !self.client.has_room() {
                return self.poll_end();
            }
            if untaken.is_some_and(|bytes| bytes > UNTAKEN_BYTES_MAX) {
                return Poll::Ready(Err(Fault::ClientGone));
            }
            if server.poll_send(cx).is_ready() && till != Till::CopyReads {
                let _ = server.conn.poll_goodbye(cx);
            }
            match server.poll_read(cx) {
                Poll::Ready(Ok(())) => {
                    self.client.prepare_out();
                    pump_down(server, &mut self.state, &mut self.client)?;
                    if let Some(bytes) = untaken {
                        *bytes += self.client.out.len();
                        self.client.out.clear();
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.why_lost(&error))),
                Poll::Pending => return self.poll_end(),
            }
        }
    }

    /// Nothing moves: it waits, for its client or for its server, until something is told that ends it.
    fn poll_end(&mut self) -> Poll<Result<(), Fault>> {
        if self.me.must_end() {
            return Poll::Ready(self.obey(false).and(Err(Fault::Client(Error::killed()))));
        }
        Poll::Pending
    }

    /// Hot path.
    fn poll_relay(
        &mut self,
        server: &mut ServerConn,
        stay: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<End, Fault>> {
        let mut dry = Dry::default();
        self.state.worked = 0;
        // Mostly the transaction ends with what is owed: then nothing more is asked of the client.
        if !server.pipeline.is_empty() && self.poll_down(server, &mut dry, cx)? {
            self.waits.over();
            if self.is_done(server, stay) {
                return Poll::Ready(Ok(End::Quiet));
            }
        }
        loop {
            let mut moved = false;
            if let Some(end) = self.poll_client(server, &mut moved, &mut dry, cx)? {
                return Poll::Ready(Ok(end));
            }
            if !server.conn.is_flushed() && server.poll_send(cx).is_ready() {
                moved = true;
            }
            moved |= self.poll_down(server, &mut dry, cx)?;
            if self.is_done(server, stay) {
                return Poll::Ready(Ok(End::Quiet));
            }
            if self.me.is_signalled() {
                return Poll::Ready(Ok(End::Signalled));
            }
            if moved {
                self.waits.over();
            }
            if !moved || self.has_seen_all(server, dry) {
                if self.gives_back(server, stay) {
                    server.put_sync();
                    server.pipeline.end_prepared();
                    continue;
                }
                self.show(server);
                self.waits.look_again(self.busy_poll, cx);
                if self.state.worked >= TURN_TEXT_BYTES_MAX {
                    // It goes on when the sockets of others were looked at.
                    let _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
                }
                return Poll::Pending;
            }
        }
    }

    /// Nothing more can be done in this turn.
    fn has_seen_all(&self, server: &ServerConn, dry: Dry) -> bool {
        let flushed = server.conn.is_flushed() && self.client.is_flushed();
        dry.client && dry.server && flushed && self.client.bytes().is_empty()
    }

    /// Nothing is owed, and nothing keeps the server here. Who waited for no more than what was done for its coming has asked
    /// nothing yet: sent away, it would come again, and wait again where others had the server meanwhile, or a reset.
    fn is_done(&self, server: &ServerConn, stay: bool) -> bool {
        let may_go = !stay || self.state.ties.recheck || self.is_leaving();
        let comes_first = self.state.behind_ours && !server.broken && server.hears();
        may_go
            && !comes_first
            && server.pipeline.is_quiet()
            && self.state.part.up == 0
            && self.client.is_flushed()
    }

    /// A unit that only prepared keeps the server for as long as its Sync does not come (asyncpg's `prepare()`), and ends with one of ours
    /// where others wait for that, or a PAUSE.
    fn gives_back(&self, server: &ServerConn, stay: bool) -> bool {
        !stay
            && server.pipeline.has_only_prepared()
            && self.state.may_go_elsewhere()
            && self.state.part.up == 0
            && self.client.is_flushed()
            && self.pool.wants_back(server)
    }

    /// Hot path. From the server to the client. True: something moved.
    fn poll_down(
        &mut self,
        server: &mut ServerConn,
        dry: &mut Dry,
        cx: &mut Context<'_>,
    ) -> Result<bool, Fault> {
        let mut moved = self.poll_server(server, dry, cx)?;
        if !self.client.is_flushed() {
            match self.client.poll_flush(cx) {
                Poll::Ready(Ok(())) => moved = true,
                Poll::Ready(Err(_)) => return Err(Fault::ClientGone),
                Poll::Pending => {}
            }
        }
        Ok(moved)
    }

    /// Hot path. What others see of this client before it waits.
    fn show(&mut self, server: &ServerConn) {
        let owed = !server.pipeline.is_empty() || self.state.part.up > 0;
        let state = match server.pipeline.status() {
            _ if owed => ClientState::Active,
            TransactionStatus::Idle if server.pipeline.has_nothing_open() => ClientState::Idle,
            _ => ClientState::IdleInTransaction,
        };
        self.me.show(state, self.state.turns, self.state.xact_turns);
        self.me.statements.store(self.state.names.len() as u64, Ordering::Relaxed);
        if state == ClientState::Idle {
            self.rest_linked();
        }
    }

    /// Takes in what the client sent, as far as the server's buffer has room.
    fn poll_client(
        &mut self,
        server: &mut ServerConn,
        moved: &mut bool,
        dry: &mut Dry,
        cx: &mut Context<'_>,
    ) -> Result<Option<End>, Fault> {
        if server.broken || !server.hears() {
            return Ok(None);
        }
        loop {
            // A rule that was made stricter holds from the next message on: what was read behind its coming waits.
            if self.me.is_signalled() {
                return Ok(Some(End::Signalled));
            }
            if !self.client.bytes().is_empty() {
                if self.holds_run(server) {
                    return Ok(Some(End::Run));
                }
                if self.holds_run_behind_parse(server) {
                    server.put_sync();
                    server.pipeline.end_prepared();
                    *moved = true;
                }
                // When that is answered, it stands between transactions.
                if server.pipeline.ends_prepared() {
                    return Ok(None);
                }
                let before = self.client.bytes().len();
                server.conn.prepare_out();
                self.client.prepare_out();
                let pumped = pump_up(&mut self.client, &mut self.state, server)?;
                *moved |= self.client.bytes().len() != before;
                match pumped {
                    Pumped::Hungry => {}
                    Pumped::Full => return Ok(None),
                    Pumped::Terminate => return Ok(Some(End::ClientLeft)),
                }
            }
            // What was asked is not yet answered, or the first message is here in part: there may be more to read.
            let enough = server.pipeline.len() >= PIPELINE_MAX && self.state.part.up == 0;
            if !server.conn.has_room() || enough || dry.client {
                return Ok(None);
            }
            match self.client.poll_hear(cx) {
                Poll::Pending => {
                    dry.client = true;
                    return Ok(None);
                }
                Poll::Ready(0) => return Ok(Some(End::ClientLeft)),
                Poll::Ready(n) => {
                    self.work_linked();
                    self.state.counts.received += n as u64;
                    *moved = true;
                }
            }
        }
    }

    /// Takes in what the server sent, as far as the client's buffer has room. True: there was something.
    fn poll_server(
        &mut self,
        server: &mut ServerConn,
        dry: &mut Dry,
        cx: &mut Context<'_>,
    ) -> Result<bool, Fault> {
        let mut moved = false;
        while self.client.has_room() && !server.broken && !dry.server {
            match server.poll_read(cx) {
                Poll::Pending => {
                    dry.server = true;
                    break;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.server_left(server, &error)?;
                    break;
                }
            }
            moved = true;
            self.client.prepare_out();
            pump_down(server, &mut self.state, &mut self.client)?;
            if server.pipeline.is_quiet() {
                // What it might say unasked is for later.
                break;
            }
        }
        Ok(moved)
    }

    /// No more comes of it. Between two transactions that is no loss to a client whose next one may run elsewhere: the
    /// connection is [`ServerConn::broken`] then.
    fn server_left(&mut self, server: &mut ServerConn, error: &io::Error) -> Result<(), Fault> {
        // Its last words may have come with the answer to a unit of ours.
        self.client.prepare_out();
        pump_down(server, &mut self.state, &mut self.client)?;
        let in_part = self.state.part.up > 0 || server.streaming > 0;
        if self.state.may_go_elsewhere() && server.pipeline.is_quiet() && !in_part {
            server.broken = true;
            return Ok(());
        }
        Err(self.why_lost(error))
    }

    fn why_lost(&mut self, error: &io::Error) -> Fault {
        if let Some(said) = self.state.server_left.take() {
            return Fault::ServerLeft(said);
        }
        Fault::ServerLost(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".into(),
            _ => error.to_string(),
        })
    }
}
