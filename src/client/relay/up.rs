//! Half of the hot path: frontend messages, from the client's input to the server's output.
//!
//! Owns: how far a walk over them goes. Never: what a message means (`client::state` decides what happens to it).

use super::{MADE_UP_BYTES_MAX, Pass};
use crate::client::state::{Fault, State, Taken, Withheld, next_head};
use crate::error::Error;
use crate::limits::{PIPELINE_MAX, TURN_TEXT_BYTES_MAX, WRITE_BUFFER_BYTES_MAX};
use crate::net::conn::Conn;
use crate::proto::pipeline::Pipeline;
use crate::server::ServerConn;
use crate::wire::frame::Header;
use crate::wire::frontend as f;

/// How far a pass got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Everything there is was taken in.
    Hungry,
    /// The other side's buffer is full, or a bound is reached.
    Full,
    /// Terminate.
    Terminate,
}

/// Hot path. Frontend messages from the client's input to the server's output.
pub(super) fn pump_up(
    client: &mut Conn,
    state: &mut State,
    server: &mut ServerConn,
) -> Result<Pumped, Fault> {
    let (buf, reply) = client.split();
    if reply.len() >= MADE_UP_BYTES_MAX {
        return Ok(Pumped::Full);
    }
    let mut walk = Pass::over(buf);
    let pumped = walk_up(&mut walk, reply, state, server, true)?;
    let Pass { pos, want, .. } = walk;
    client.consume(pos);
    client.want(want);
    Ok(pumped)
}

/// Whole messages of the client's that were kept, to the server's output. How many bytes were taken; what is left goes
/// when the answers to those were read.
pub(in crate::client) fn feed(
    kept: &[u8],
    reply: &mut Vec<u8>,
    state: &mut State,
    server: &mut ServerConn,
) -> Result<usize, Fault> {
    server.conn.prepare_out();
    let mut walk = Pass::over(kept);
    walk_up(&mut walk, reply, state, server, false)?;
    Ok(walk.pos)
}

fn walk_up(
    walk: &mut Pass<'_>,
    reply: &mut Vec<u8>,
    state: &mut State,
    server: &mut ServerConn,
    pauses: bool,
) -> Result<Pumped, Fault> {
    let pumped = loop {
        if state.part.up > 0 {
            state.part.up -= walk.go_on(state.part.up, state.part.dropping);
            if state.part.up > 0 {
                break Pumped::Hungry;
            }
        }
        if has_to_wait(walk, state, server) || (pauses && state.worked >= TURN_TEXT_BYTES_MAX) {
            break Pumped::Full;
        }
        let head = match next_head(walk.rest(), state.bounds.message_max) {
            Ok(Some(head)) => head,
            Ok(None) => break Pumped::Hungry,
            // What stands before it is run and answered first: the server would read no further before it.
            Err(_) if !server.pipeline.is_empty() && !server.pipeline.in_copy_in() => {
                walk.copy(&mut server.conn.out);
                state.behind_ours = server.pipeline.owes_ours_only();
                state.await_answers(server);
                break Pumped::Full;
            }
            Err(fault) => return Err(in_copy(fault, walk.rest(), &server.pipeline, reply)),
        };
        let frame = walk.frame(head);
        if may_put_before(head, state, server) {
            walk.copy(&mut server.conn.out);
        }
        let rest = head.total() - frame.len();
        let taken = state.take(head, frame, server, reply)?;
        state.behind_ours = taken == Taken::Later && server.pipeline.owes_ours_only();
        match taken {
            Taken::NeedWhole => {
                walk.want = head.total();
                break Pumped::Hungry;
            }
            Taken::NeedMore => break Pumped::Hungry,
            Taken::Later => break Pumped::Full,
            Taken::Terminate => break Pumped::Terminate,
            Taken::Forward => {
                walk.pos += frame.len();
                (state.part.up, state.part.dropping) = (rest, false);
            }
            Taken::Prefix(bytes) => {
                walk.run = walk.pos + bytes;
                walk.pos += frame.len();
                (state.part.up, state.part.dropping) = (rest, false);
            }
            Taken::Done | Taken::Drop => {
                walk.skip(frame.len(), &mut server.conn.out);
                (state.part.up, state.part.dropping) = (rest, true);
            }
        }
    };
    walk.copy(&mut server.conn.out);
    Ok(pumped)
}

/// What ends the connection; a COPY fails first for a message that there is none of, and the client is told.
fn in_copy(fault: Fault, rest: &[u8], pipeline: &Pipeline, reply: &mut Vec<u8>) -> Fault {
    match rest.first() {
        Some(&tag) if pipeline.in_copy_in() && !f::is_known(tag) => {
            Error::unexpected_in_copy(tag).put(reply);
            Fault::Client(Error::protocol_violation(
                "terminating connection because protocol synchronization was lost",
            ))
        }
        _ => fault,
    }
}

/// May this message put something into the server's buffer? It stands behind the run then.
fn may_put_before(head: Header, state: &State, server: &ServerConn) -> bool {
    !matches!(head.tag, f::COPY_DATA | f::EXECUTE | f::SYNC)
        || state.looks_into_executes()
        || state.fold.left
        || state.late.is_some()
        || server.pipeline.is_behind_copy()
        || server.pipeline.is_in_copy_with_syncs()
}

/// Between two messages: does the next one wait for answers, or for room?
fn has_to_wait(walk: &mut Pass<'_>, state: &mut State, server: &mut ServerConn) -> bool {
    if state.owes_between(&server.pipeline) {
        walk.copy(&mut server.conn.out);
        state.put_between(&mut server.pipeline, &mut server.conn.out);
    }
    if state.awaiting {
        let is_answered = server.pipeline.is_empty() || server.pipeline.in_copy_in();
        state.awaiting = !is_answered || state.vars.withheld == Withheld::Ready;
    }
    if state.awaiting || server.pipeline.len() >= PIPELINE_MAX {
        walk.copy(&mut server.conn.out);
        state.urge(server);
        return true;
    }
    state.urged = false;
    walk.pos - walk.run + server.conn.out.len() >= WRITE_BUFFER_BYTES_MAX
}
