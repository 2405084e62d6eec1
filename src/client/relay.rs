//! The hot path: one client, one server connection, until nothing is owed.
//!
//! Owns: walking headers on both sides, copying runs, back-pressure (a side is read only while the other's buffer has
//! room). Never: looks into DataRow or CopyData, allocates for a message, takes a lock, reads the clock, logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::session::Session;
use super::state::{
    DUPLICATE_STATEMENT, Fault, MOVES_NAMES, Refusal, Reporting, State, Taken, UNEXPECTED_IN_COPY,
};
use crate::cancel::ClientState;
use crate::error::Error;
use crate::limits::{LAST_WORDS, PIPELINE_MAX, SMALL_MESSAGE_BYTES_MAX, WRITE_BUFFER_BYTES_MAX};
use crate::net::conn::Conn;
use crate::proto::pipeline::{Answer, Kind, Pipeline, Settled};
use crate::proto::prepared::ServerNames;
use crate::server::{Reported, ServerConn, ServerShared, report};
use crate::settings::PoolMode;
use crate::wire::frame::{HEADER_BYTES, Header, header};
use crate::wire::{TransactionStatus, backend as b, frontend as f};

/// What a server says stops at [`WRITE_BUFFER_BYTES_MAX`]; what stands above it are answers of our own, and a client that does
/// not take them asks for no more (bytes).
const MADE_UP_BYTES_MAX: usize = 2 * WRITE_BUFFER_BYTES_MAX;

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

/// How far a pass got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pumped {
    /// Everything there is was taken in.
    Hungry,
    /// The other side's buffer is full, or a bound is reached.
    Full,
    /// Terminate.
    Terminate,
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
        if server.pipeline.in_copy_in() {
            return Err(Fault::ClientGone);
        }
        let breaks_off = self.state.part.up > 0;
        if breaks_off {
            // The server sees through what came whole, as it would directly, and is nobody else's then.
            let _ = tokio::time::timeout(LAST_WORDS, server.conn.say_goodbye()).await;
        } else if server.pipeline.is_within_unit() {
            // Its Sync does not come any more: nothing else would make the server answer, and what the unit did goes with
            // the connection.
            server.conn.prepare_out();
            f::put_empty(&mut server.conn.out, f::FLUSH);
        }
        let mut listens = true;
        let finished = std::future::poll_fn(|cx| self.poll_finish(server, &mut listens, cx)).await;
        if listens {
            let _ = tokio::time::timeout(LAST_WORDS, self.client.flush()).await;
        }
        if breaks_off { Err(Fault::ClientGone) } else { finished }
    }

    fn poll_finish(
        &mut self,
        server: &mut ServerConn,
        listens: &mut bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        loop {
            if *listens {
                *listens = !matches!(self.client.poll_flush(cx), Poll::Ready(Err(_)));
            }
            if server.pipeline.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if *listens && !self.client.has_room() {
                return Poll::Pending;
            }
            let _ = server.conn.poll_flush(cx).map_err(server_lost)?;
            match server.conn.poll_fill(cx) {
                Poll::Ready(Ok(n)) if n > 0 => {
                    self.client.prepare_out();
                    pump_down(server, &mut self.state, &mut self.client)?;
                    if !*listens {
                        self.client.out.clear();
                    }
                    if server.pipeline.in_copy_in() {
                        return Poll::Ready(Err(Fault::ClientGone));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Err(Fault::ServerLost(String::new()))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Hot path.
    fn poll_relay(
        &mut self,
        server: &mut ServerConn,
        stay: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<End, Fault>> {
        loop {
            let mut moved = false;
            if let Some(end) = self.poll_client(server, &mut moved, cx)? {
                return Poll::Ready(Ok(end));
            }
            if !server.conn.is_flushed() && server.conn.poll_flush(cx).map_err(server_lost)?.is_ready() {
                moved = true;
            }
            self.poll_server(server, &mut moved, cx)?;
            if !self.client.is_flushed() {
                match self.client.poll_flush(cx) {
                    Poll::Ready(Ok(())) => moved = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Fault::ClientGone)),
                    Poll::Pending => {}
                }
            }
            let done = !stay || self.state.ties.recheck || self.draining;
            if done && server.pipeline.is_quiet() && self.state.part.up == 0 && self.client.is_flushed() {
                return Poll::Ready(Ok(End::Quiet));
            }
            if self.me.is_signalled() {
                return Poll::Ready(Ok(End::Signalled));
            }
            if !moved {
                self.show(server);
                self.waits.look_again(self.busy_poll, cx);
                return Poll::Pending;
            }
            self.waits.over();
        }
    }

    /// Hot path. What others see of this client before it waits.
    fn show(&self, server: &ServerConn) {
        let owed = !server.pipeline.is_empty() || self.state.part.up > 0;
        let state = match server.pipeline.status() {
            _ if owed => ClientState::Active,
            TransactionStatus::Idle if !server.pipeline.is_still_started() => ClientState::Idle,
            _ => ClientState::IdleInTransaction,
        };
        self.me.show(state, self.state.turns, self.state.xact_turns);
        self.me.statements.store(self.state.names.len() as u64, Ordering::Relaxed);
    }

    /// Takes in what the client sent, as far as the server's buffer has room.
    fn poll_client(
        &mut self,
        server: &mut ServerConn,
        moved: &mut bool,
        cx: &mut Context<'_>,
    ) -> Result<Option<End>, Fault> {
        if server.broken {
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
            if !server.conn.has_room() || enough {
                return Ok(None);
            }
            match self.client.poll_fill(cx) {
                Poll::Pending => return Ok(None),
                Poll::Ready(Ok(0)) => return Ok(Some(End::ClientLeft)),
                Poll::Ready(Ok(n)) => {
                    self.state.counts.received += n as u64;
                    *moved = true;
                }
                Poll::Ready(Err(_)) => return Err(Fault::ClientGone),
            }
        }
    }

    /// Takes in what the server sent, as far as the client's buffer has room.
    fn poll_server(
        &mut self,
        server: &mut ServerConn,
        moved: &mut bool,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        while self.client.has_room() && !server.broken {
            match server.conn.poll_fill(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(n)) if n > 0 => {}
                Poll::Ready(end) => return self.server_left(server, end.err()),
            }
            *moved = true;
            self.client.prepare_out();
            pump_down(server, &mut self.state, &mut self.client)?;
        }
        Ok(())
    }

    /// No more comes of it. Between two transactions that is no loss to a client whose next one may run elsewhere: the
    /// connection is [`ServerConn::broken`] then.
    fn server_left(&mut self, server: &mut ServerConn, error: Option<std::io::Error>) -> Result<(), Fault> {
        // Its last words may have come with the answer to a unit of ours.
        self.client.prepare_out();
        pump_down(server, &mut self.state, &mut self.client)?;
        let in_part = self.state.part.up > 0 || server.streaming > 0;
        if self.state.may_go_elsewhere() && server.pipeline.is_quiet() && !in_part {
            server.broken = true;
            return Ok(());
        }
        Err(match error {
            // It said why it goes, and that was passed on.
            _ if self.state.server_left => Fault::ServerLost(String::new()),
            Some(error) => server_lost(error),
            None => Fault::ServerLost("it closed the connection".into()),
        })
    }
}

fn server_lost(error: std::io::Error) -> Fault {
    Fault::ServerLost(error.to_string())
}

/// Hot path. Frontend messages from the client's input to the server's output.
fn pump_up(client: &mut Conn, state: &mut State, server: &mut ServerConn) -> Result<Pumped, Fault> {
    let (buf, reply) = client.split();
    if reply.len() >= MADE_UP_BYTES_MAX {
        return Ok(Pumped::Full);
    }
    let (pumped, taken, want) = pump(buf, reply, state, server)?;
    client.consume(taken);
    client.want(want);
    Ok(pumped)
}

/// Whole messages of the client's that were kept, to the server's output. How many bytes were taken; what is left goes
/// when the answers to those were read.
pub(super) fn feed(
    kept: &[u8],
    reply: &mut Vec<u8>,
    state: &mut State,
    server: &mut ServerConn,
) -> Result<usize, Fault> {
    server.conn.prepare_out();
    Ok(pump(kept, reply, state, server)?.1)
}

/// Also the bytes taken, and how many the next message needs whole.
fn pump(
    buf: &[u8],
    reply: &mut Vec<u8>,
    state: &mut State,
    server: &mut ServerConn,
) -> Result<(Pumped, usize, usize), Fault> {
    // `buf[run..pos]` is to be copied as it is; everything before `run` is dealt with.
    let (mut run, mut pos) = (0, 0);
    let mut want = 0;
    let pumped = loop {
        if state.part.up > 0 {
            let n = state.part.up.min(buf.len() - pos);
            state.part.up -= n;
            pos += n;
            if state.part.dropping {
                run = pos;
            }
            if state.part.up > 0 {
                break Pumped::Hungry;
            }
        }
        if state.owes_between(&server.pipeline) {
            server.conn.out.extend_from_slice(&buf[run..pos]);
            run = pos;
            state.put_between(&mut server.pipeline, &mut server.conn.out);
        }
        if state.awaiting {
            if !server.pipeline.is_empty() && !server.pipeline.in_copy_in() {
                break Pumped::Full;
            }
            state.awaiting = false;
        }
        if server.pipeline.len() >= PIPELINE_MAX {
            server.conn.out.extend_from_slice(&buf[run..pos]);
            run = pos;
            state.urge(server);
            break Pumped::Full;
        }
        state.urged = false;
        if pos - run + server.conn.out.len() >= WRITE_BUFFER_BYTES_MAX {
            break Pumped::Full;
        }
        let Some(head) = header(&buf[pos..], state.bounds.message_max)? else { break Pumped::Hungry };
        let frame = &buf[pos..(pos + head.total()).min(buf.len())];
        let fake = state.looks_into_executes()
            || state.fold.left
            || state.late.is_some()
            || server.pipeline.is_behind_copy()
            || server.pipeline.is_in_copy_with_syncs();
        if !matches!(head.tag, f::COPY_DATA | f::EXECUTE | f::SYNC) || fake {
            // What this message may put into the server's buffer stands behind the run.
            server.conn.out.extend_from_slice(&buf[run..pos]);
            run = pos;
        }
        let rest = head.total() - frame.len();
        match state.take(head, frame, server, reply)? {
            Taken::Forward => {
                pos += frame.len();
                (state.part.up, state.part.dropping) = (rest, false);
            }
            Taken::Done => {
                pos += frame.len();
                run = pos;
            }
            Taken::Prefix(n) => {
                run = pos + n;
                pos += frame.len();
                (state.part.up, state.part.dropping) = (rest, false);
            }
            Taken::Drop => {
                server.conn.out.extend_from_slice(&buf[run..pos]);
                pos += frame.len();
                run = pos;
                (state.part.up, state.part.dropping) = (rest, true);
            }
            Taken::NeedWhole => {
                want = head.total();
                break Pumped::Hungry;
            }
            Taken::Later => break Pumped::Full,
            Taken::Terminate => break Pumped::Terminate,
        }
    };
    server.conn.out.extend_from_slice(&buf[run..pos]);
    Ok((pumped, pos, want))
}

/// Hot path. Backend messages from the server's input to the client's output.
fn pump_down(server: &mut ServerConn, state: &mut State, client: &mut Conn) -> Result<(), Fault> {
    let ServerConn { conn, pipeline, names, reported, streaming, shared, broken, .. } = server;
    let (buf, to_server) = conn.split();
    let before = client.out.len();
    let mut walk = Down { buf, out: &mut client.out, run: 0, pos: 0, want: 0 };
    let walked = walk_down(&mut walk, state, Below { pipeline, names, reported, streaming, shared, broken });
    // Also before an error of ours: a message that the client has in part goes on.
    walk.copy();
    let Down { pos, want, .. } = walk;
    walked?;
    state.put_between(pipeline, to_server);
    state.counts.sent += (client.out.len() - before) as u64;
    conn.consume(pos);
    conn.want(want);
    Ok(())
}

/// What a walk over a server's messages changes of its connection.
struct Below<'a> {
    pipeline: &'a mut Pipeline,
    names: &'a mut ServerNames,
    reported: &'a mut Arc<Reported>,
    streaming: &'a mut usize,
    shared: &'a ServerShared,
    broken: &'a mut bool,
}

/// Hot path. Takes in what is there, up to a message that has to be whole and is not.
fn walk_down(walk: &mut Down<'_>, state: &mut State, below: Below<'_>) -> Result<(), Fault> {
    let Below { pipeline, names, reported, streaming, shared, broken } = below;
    let buf = walk.buf;
    loop {
        if *streaming > 0 {
            *streaming -= walk.pass(*streaming, state.part.dropping_down);
            if *streaming > 0 {
                return Ok(());
            }
        }
        let Some(head) = header(&buf[walk.pos..], state.bounds.message_max)
            .map_err(|e| Fault::ServerViolation(e.to_string()))?
        else {
            return Ok(());
        };
        let frame = &buf[walk.pos..(walk.pos + head.total()).min(buf.len())];
        let rest = head.total() - frame.len();
        if rest > 0 && waits_for_whole(head, pipeline)? {
            walk.want = head.total();
            return Ok(());
        }
        let answer = match head.tag {
            b::DATA_ROW | b::COPY_DATA => answer(pipeline.recv(head.tag))?.0,
            b::NOTICE_RESPONSE | b::ERROR_RESPONSE
                if pipeline.is_quiet() && state.may_go_elsewhere() && is_farewell(frame) =>
            {
                *broken = true;
                return Ok(());
            }
            b::NOTICE_RESPONSE | b::NOTIFICATION_RESPONSE => forward_unless_own(pipeline),
            b::READY_FOR_QUERY => state.pass_ready(frame, pipeline)?,
            b::PARAMETER_STATUS => {
                let (name, value) = b::parameter_status(&frame[HEADER_BYTES..])
                    .map_err(|e| Fault::ServerViolation(e.to_string()))?;
                if report(reported, name, value) {
                    shared.heard_of(name);
                }
                state.note_parameter(name, value);
                forward_unless_own(pipeline)
            }
            b::ERROR_RESPONSE if pipeline.is_empty() => {
                // Unasked: the server says why it goes (57P01 ...). The client hears it as it would directly.
                walk.pos += frame.len();
                return Err(Fault::ServerLost(String::new()));
            }
            tag => state.pass_answer(tag, frame, rest, pipeline, names, shared)?,
        };
        if !state.fold.kept.is_empty() && head.tag != b::NOTICE_RESPONSE {
            state.put_kept(head.tag, walk);
        }
        if answer == Answer::OwnFailed {
            // The client's name could not be set (its own cancel request came as early as that): this connection
            // is not what it is taken for, which does not matter to this client.
            shared.close_needed.store(true, Ordering::Relaxed);
        }
        if head.tag == b::NOTIFICATION_RESPONSE && answer == Answer::Forward && rest == 0 {
            walk.skip(frame.len());
            state.put_notification(frame, shared, walk.out);
        } else {
            state.put_answer(answer, head.tag, frame, rest, walk);
        }
        if head.tag == b::COPY_IN_RESPONSE && pipeline.is_ended_by_fake() {
            return Err(Fault::Client(Error::protocol_violation(UNEXPECTED_IN_COPY)));
        }
        *streaming = rest;
        state.part.dropping_down = !matches!(answer, Answer::Forward | Answer::Keep);
        if rest == 0 && !pipeline.is_empty() {
            state.put_fakes(pipeline, walk);
        }
        if state.vars.report == Reporting::Due {
            state.put_report(reported, walk);
        }
    }
}

/// Where a walk over backend messages stands: `run..pos` is to be copied to the client as it is.
struct Down<'a> {
    buf: &'a [u8],
    out: &'a mut Vec<u8>,
    run: usize,
    pos: usize,
    /// Bytes of the next message that have to be there together.
    want: usize,
}

impl Down<'_> {
    /// Copies what is to be copied.
    fn copy(&mut self) {
        self.out.extend_from_slice(&self.buf[self.run..self.pos]);
        self.run = self.pos;
    }

    /// So many bytes are not copied.
    fn skip(&mut self, bytes: usize) {
        self.copy();
        self.pos += bytes;
        self.run = self.pos;
    }

    /// What is there of `rest` bytes of a message that has begun, copied unless it is dropped. How many these are.
    fn pass(&mut self, rest: usize, dropping: bool) -> usize {
        let bytes = rest.min(self.buf.len() - self.pos);
        self.pos += bytes;
        if dropping {
            self.run = self.pos;
        }
        bytes
    }
}

/// A message of which a part is there: has it to be whole to be dealt with?
fn waits_for_whole(head: Header, pipeline: &Pipeline) -> Result<bool, Fault> {
    let small = head.total() <= SMALL_MESSAGE_BYTES_MAX;
    match head.tag {
        // Nothing of ours may stand inside a message that comes while nothing is owed.
        b::NOTICE_RESPONSE | b::NOTIFICATION_RESPONSE => Ok(small),
        b::ROW_DESCRIPTION => Ok(small && (pipeline.front_statement() != 0 || pipeline.keeps_rows())),
        b::READY_FOR_QUERY | b::PARAMETER_STATUS | b::COMMAND_COMPLETE | b::ERROR_RESPONSE if !small => {
            Err(Fault::ServerViolation("message is too long".into()))
        }
        b::READY_FOR_QUERY | b::PARAMETER_STATUS | b::COMMAND_COMPLETE | b::ERROR_RESPONSE => Ok(true),
        _ => Ok(false),
    }
}

/// What comes while nothing is asked: does the server say that it goes?
fn is_farewell(frame: &[u8]) -> bool {
    frame[0] == b::ERROR_RESPONSE || b::ErrorFields::new(&frame[HEADER_BYTES..]).says_farewell()
}

fn forward_unless_own(pipeline: &Pipeline) -> Answer {
    if pipeline.front_is_own() { Answer::Skip } else { Answer::Forward }
}

fn answer<T>(received: Result<T, crate::proto::pipeline::Violation>) -> Result<T, Fault> {
    received.map_err(|v| {
        Fault::ServerViolation(format!("unexpected message {:?}, owed {:?}", char::from(v.tag), v.owed))
    })
}

impl State {
    #[inline]
    fn pass_ready(&mut self, frame: &[u8], pipeline: &mut Pipeline) -> Result<Answer, Fault> {
        let status =
            b::ready_for_query(&frame[HEADER_BYTES..]).map_err(|e| Fault::ServerViolation(e.to_string()))?;
        let answer = pipeline
            .recv_ready(status)
            .map_err(|v| Fault::ServerViolation(format!("unexpected ReadyForQuery, owed {:?}", v.owed)))?;
        self.recv_ready(status, answer);
        if self.mode == PoolMode::Statement && status != TransactionStatus::Idle {
            return Err(Fault::Client(Error::statement_mode()));
        }
        if pipeline.is_empty() {
            self.shapes.described.clear();
            self.forget_moves(status == TransactionStatus::Idle);
            self.nothing_in_flight();
        }
        Ok(answer)
    }

    /// A message that answers what was asked; `rest` bytes of it are still to come.
    #[inline]
    fn pass_answer(
        &mut self,
        tag: u8,
        frame: &[u8],
        rest: usize,
        pipeline: &mut Pipeline,
        names: &mut ServerNames,
        shared: &ServerShared,
    ) -> Result<Answer, Fault> {
        let body = &frame[HEADER_BYTES..];
        let asked = pipeline.front_statement();
        let (answer, settled) = answer(pipeline.recv(tag))?;
        match settled {
            Settled::No => {}
            Settled::Done => self.names.settle(),
            Settled::Struck(count) => self.names.strike(count, names),
            Settled::Failed(count) => self.names.fail(count, names),
        }
        match tag {
            b::ERROR_RESPONSE => self.recv_error(body, (asked, answer), shared, pipeline)?,
            b::PARAMETER_DESCRIPTION if asked != 0 => {
                self.recv_params(asked, (rest == 0).then_some(body), answer, names);
            }
            b::ROW_DESCRIPTION | b::NO_DATA if asked != 0 => {
                self.recv_shape(asked, (rest == 0).then_some(body), answer);
            }
            b::COMMAND_COMPLETE => {
                if self.ties.taint.intersects(MOVES_NAMES) {
                    self.recv_forgetting_tag(body, names);
                }
                self.recv_end(body);
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Clients know their own notifications by the process id that they were told, and those of others by any other: the
    /// server's own stands for that one here, and the other way round, should another session of the server's have it.
    fn put_notification(&self, frame: &[u8], server: &ServerShared, out: &mut Vec<u8>) {
        b::put_notification(out, frame, server.pid, self.pid);
    }

    /// What was kept back goes out before this message, or nowhere if it is an error.
    fn put_kept(&mut self, tag: u8, walk: &mut Down<'_>) {
        walk.copy();
        if tag != b::ERROR_RESPONSE {
            walk.out.extend_from_slice(&self.fold.kept);
        }
        self.fold.kept.clear();
    }

    #[inline]
    fn put_answer(&mut self, answer: Answer, tag: u8, frame: &[u8], rest: usize, walk: &mut Down<'_>) {
        // Mostly what comes next is here, too, and shows that nothing is to be kept.
        let may_be_taken_back = || {
            let next = walk.buf.get(walk.pos + frame.len());
            rest == 0 && matches!(next, None | Some(&(b::ERROR_RESPONSE | b::NOTICE_RESPONSE)))
        };
        match answer {
            Answer::Keep if may_be_taken_back() => {
                walk.skip(frame.len());
                self.fold.kept.extend_from_slice(frame);
            }
            Answer::Forward | Answer::Keep => walk.pos += frame.len(),
            Answer::Skip | Answer::OwnFailed => walk.skip(frame.len()),
            Answer::Refuse => {
                walk.skip(frame.len());
                if tag == b::ERROR_RESPONSE {
                    self.put_refusal(frame, walk.out);
                }
            }
        }
    }

    /// Answers that no server is asked for, where their turn has come.
    #[inline]
    fn put_fakes(&mut self, pipeline: &mut Pipeline, walk: &mut Down<'_>) {
        while let Some(owed) = pipeline.pop_fake() {
            walk.copy();
            let tag = if owed.kind == Kind::Parse { b::PARSE_COMPLETE } else { b::CLOSE_COMPLETE };
            b::put_empty(walk.out, tag);
            if owed.names {
                self.names.settle();
            }
        }
    }

    /// A unit of ours that changes settings has ended: what it changed for the client.
    fn put_report(&mut self, reported: &Arc<Reported>, walk: &mut Down<'_>) {
        walk.copy();
        self.vars.report = Reporting::None;
        if self.rules.needs_lexing() {
            self.know_lexing(reported);
        }
        self.report_differences(reported, walk.out);
    }

    /// A refusal takes the place of the server's error.
    fn put_refusal(&mut self, error: &[u8], out: &mut Vec<u8>) {
        match self.refusals.pop_front() {
            Some(Refusal::Taken(_))
                if b::ErrorFields::new(&error[HEADER_BYTES..]).sqlstate() != DUPLICATE_STATEMENT =>
            {
                out.extend_from_slice(error);
            }
            Some(Refusal::Taken(error)) => error.put(out),
            Some(Refusal::Ours(error)) => error.put(out),
            Some(Refusal::Late(message)) => out.extend_from_slice(&message),
            None => Error::internal("a refusal without its reason").put(out),
        }
    }
}
