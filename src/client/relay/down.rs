//! Half of the hot path: backend messages, from the server's input to the client's output.
//!
//! Owns: how far a walk over them goes, and which of them the client sees. Never: which answer is due (`proto::pipeline`).

use std::fmt::Display;
use std::sync::Arc;

use super::Pass;
use crate::client::state::{
    DUPLICATE_STATEMENT, Fault, MOVES_NAMES, Refusal, Reporting, State, Withheld, server_flaw,
    unexpected_in_copy,
};
use crate::error::Error;
use crate::limits::{ERROR_HEAD_BYTES, SMALL_MESSAGE_BYTES_MAX};
use crate::net::conn::Conn;
use crate::proto::pipeline::{Answer, Kind, Pipeline, Settled};
use crate::proto::prepared::ServerNames;
use crate::server::{Reported, ServerConn, ServerShared, report};
use crate::settings::PoolMode;
use crate::wire::frame::{HEADER_BYTES, Header, header};
use crate::wire::{DecodeError, TransactionStatus, backend as b};

/// Hot path. Backend messages from the server's input to the client's output.
pub(super) fn pump_down(server: &mut ServerConn, state: &mut State, client: &mut Conn) -> Result<(), Fault> {
    let ServerConn { conn, pipeline, names, reported, streaming, shared, broken, .. } = server;
    let (buf, to_server) = conn.split();
    let before = client.out.len();
    let mut walk = Down { at: Pass::over(buf), out: &mut client.out };
    let walked = walk_down(&mut walk, state, Below { pipeline, names, reported, streaming, shared, broken });
    // Also before an error of ours: a message that the client has in part goes on.
    walk.copy();
    let Pass { pos, want, .. } = walk.at;
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
    loop {
        if *streaming > 0 {
            *streaming -= walk.at.go_on(*streaming, state.part.dropping_down);
            if *streaming > 0 {
                return Ok(());
            }
        }
        let Some(head) = header(walk.at.rest(), state.bounds.message_max).map_err(unbounded)? else {
            return Ok(());
        };
        let frame = walk.at.frame(head);
        let rest = head.total() - frame.len();
        let wanted = if rest == 0 { 0 } else { wanted_of(head, pipeline)? };
        if wanted > frame.len() {
            walk.at.want = wanted;
            return Ok(());
        }
        let answer = match head.tag {
            b::DATA_ROW | b::COPY_DATA => pipeline.recv(head.tag).map_err(violation)?.0,
            b::NOTICE_RESPONSE | b::ERROR_RESPONSE
                if pipeline.is_quiet() && state.may_go_elsewhere() && is_farewell(frame) =>
            {
                *broken = true;
                return Ok(());
            }
            b::NOTICE_RESPONSE | b::NOTIFICATION_RESPONSE => forward_unless_own(pipeline),
            b::READY_FOR_QUERY => match state.pass_ready(frame, pipeline)? {
                Answer::Forward if state.vars.withheld != Withheld::Nothing => {
                    walk.copy();
                    state.pass_withheld_ready(pipeline, reported, walk.out)
                }
                answer => answer,
            },
            b::PARAMETER_STATUS => pass_parameter_status(frame, state, pipeline, reported, shared)?,
            b::ERROR_RESPONSE if pipeline.is_empty() => {
                // Unasked: the server says why it goes (57P01 ...). The client hears it as it would directly.
                walk.at.pos += frame.len();
                let said = b::ErrorFields::new(&frame[HEADER_BYTES..]).outline();
                return Err(Fault::ServerLeft(said));
            }
            tag => state.pass_answer(tag, frame, rest, pipeline, names, shared)?,
        };
        if !state.fold.kept.is_empty() && head.tag != b::NOTICE_RESPONSE {
            state.put_kept(head.tag, walk);
        }
        if answer == Answer::Refuse && head.tag == b::ERROR_RESPONSE && rest > 0 {
            return Err(too_long());
        }
        if answer == Answer::OwnFailed {
            // The client's name could not be set (its own cancel request came as early as that): this connection
            // is not what it is taken for, which does not matter to this client.
            shared.close_when_free("its client's name could not be set");
        }
        let is_whole = answer == Answer::Forward && rest == 0;
        if !(is_whole && state.put_translated(head.tag, frame, shared, walk)) {
            state.put_answer(answer, head.tag, frame, rest, walk);
        }
        if head.tag == b::COPY_IN_RESPONSE && pipeline.is_ended_by_fake() {
            return Err(unexpected_in_copy());
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

/// What the server reports is remembered for whoever uses the connection next; the client hears it unless it answers a message of ours.
fn pass_parameter_status(
    frame: &[u8],
    state: &mut State,
    pipeline: &Pipeline,
    reported: &mut Arc<Reported>,
    shared: &ServerShared,
) -> Result<Answer, Fault> {
    let (name, value) = b::parameter_status(&frame[HEADER_BYTES..]).map_err(violation)?;
    if report(reported, name, value) {
        shared.heard_of(name);
    }
    state.note_parameter(name, value);
    Ok(match forward_unless_own(pipeline) {
        Answer::Forward if !pipeline.is_empty() => state.pass_parameter(name, value),
        answer => answer,
    })
}

/// A pass over backend messages, and the client's output.
struct Down<'a> {
    at: Pass<'a>,
    out: &'a mut Vec<u8>,
}

impl Down<'_> {
    fn copy(&mut self) {
        self.at.copy(self.out);
    }

    fn skip(&mut self, bytes: usize) {
        self.at.skip(bytes, self.out);
    }
}

/// A message of which a part is there: how much of it must be there to deal with it?
fn wanted_of(head: Header, pipeline: &Pipeline) -> Result<usize, Fault> {
    let small = head.total() <= SMALL_MESSAGE_BYTES_MAX;
    let is_needed = match head.tag {
        // Nothing of ours may stand inside a message that comes while nothing is owed.
        b::NOTICE_RESPONSE | b::NOTIFICATION_RESPONSE => small,
        b::ROW_DESCRIPTION => small && (pipeline.front_statement() != 0 || pipeline.keeps_rows()),
        // It names a value of the client's, maybe, however long that is; severity and SQLSTATE stand before.
        b::ERROR_RESPONSE if !small && !pipeline.is_empty() => return Ok(ERROR_HEAD_BYTES),
        b::READY_FOR_QUERY | b::PARAMETER_STATUS | b::COMMAND_COMPLETE | b::ERROR_RESPONSE if !small => {
            return Err(too_long());
        }
        b::READY_FOR_QUERY | b::PARAMETER_STATUS | b::COMMAND_COMPLETE | b::ERROR_RESPONSE => true,
        _ => false,
    };
    Ok(if is_needed { head.total() } else { 0 })
}

#[cold]
fn too_long() -> Fault {
    violation("message is too long")
}

/// Never seen of an honest server: nothing of it stands in the hot path's way.
#[cold]
fn violation(why: impl Display) -> Fault {
    Fault::ServerViolation(why.to_string())
}

/// A header that is none, or is that of more than a message may have.
#[cold]
fn unbounded(why: DecodeError) -> Fault {
    match why {
        DecodeError::LengthTooLarge { .. } => Fault::Client(server_flaw(why)),
        why => violation(why),
    }
}

/// What comes while nothing is asked: does the server say that it goes?
fn is_farewell(frame: &[u8]) -> bool {
    frame[0] == b::ERROR_RESPONSE || b::ErrorFields::new(&frame[HEADER_BYTES..]).says_farewell()
}

fn forward_unless_own(pipeline: &Pipeline) -> Answer {
    if pipeline.front_is_own() { Answer::Skip } else { Answer::Forward }
}

impl State {
    #[inline]
    fn pass_ready(&mut self, frame: &[u8], pipeline: &mut Pipeline) -> Result<Answer, Fault> {
        let status = b::ready_for_query(&frame[HEADER_BYTES..]).map_err(violation)?;
        let answer = pipeline.recv_ready(status).map_err(violation)?;
        self.recv_ready(status, answer);
        if self.mode == PoolMode::Statement && status != TransactionStatus::Idle {
            return Err(Fault::Client(Error::statement_mode()));
        }
        if pipeline.is_empty() {
            self.shapes.described.clear();
            let idle = status == TransactionStatus::Idle;
            if idle {
                self.meaning.end();
            }
            self.forget_moves(idle);
            self.nothing_in_flight(idle);
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
        let (answer, settled) = pipeline.recv(tag).map_err(violation)?;
        match settled {
            Settled::No => {}
            Settled::Done => self.names.settle(),
            Settled::Struck(count) => self.names.strike(count, names),
            Settled::Failed(count) => self.names.fail(count, names),
        }
        match tag {
            b::ERROR_RESPONSE => {
                self.recv_error(body, (asked, answer), shared, pipeline)?;
                // Whatever it meets: the client hears why the server goes.
                if self.server_left.is_some() && matches!(answer, Answer::Skip | Answer::OwnFailed) {
                    return Ok(Answer::Forward);
                }
            }
            b::PARAMETER_DESCRIPTION if asked != 0 => {
                self.recv_params(asked, (rest == 0).then_some(body), answer);
            }
            b::ROW_DESCRIPTION | b::NO_DATA if asked != 0 => {
                self.recv_shape(asked, (rest == 0).then_some(body), answer, names);
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
    pub(super) fn put_notification(&self, frame: &[u8], server: &ServerShared, out: &mut Vec<u8>) {
        b::put_notification(out, frame, server.pid, self.pid);
    }

    /// What speaks of the client's session or its statements as the server calls them goes out in the client's terms. False: this
    /// message does not.
    #[inline]
    fn put_translated(&self, tag: u8, frame: &[u8], server: &ServerShared, walk: &mut Down<'_>) -> bool {
        match tag {
            b::NOTIFICATION_RESPONSE => {
                walk.skip(frame.len());
                self.put_notification(frame, server, walk.out);
            }
            b::ERROR_RESPONSE => {
                let body = &frame[HEADER_BYTES..];
                let Some(message) = self.reworded(body) else { return false };
                walk.skip(frame.len());
                b::put_reworded(walk.out, body, &message);
            }
            _ => return false,
        }
        true
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
            let next = walk.at.rest().get(frame.len());
            rest == 0 && matches!(next, None | Some(&(b::ERROR_RESPONSE | b::NOTICE_RESPONSE)))
        };
        match answer {
            Answer::Keep if may_be_taken_back() => {
                walk.skip(frame.len());
                self.fold.kept.extend_from_slice(frame);
            }
            Answer::Forward | Answer::Keep => walk.at.pos += frame.len(),
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
    fn put_report(&mut self, reported: &mut Arc<Reported>, walk: &mut Down<'_>) {
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
