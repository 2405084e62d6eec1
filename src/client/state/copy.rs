//! COPY FROM STDIN among other messages: which messages wait for its end, and which pgsluice itself sends after it.

use super::{Fault, State, Taken, unexpected_in_copy};
use crate::proto::pipeline::{Action, Fence, Kind, Pipeline};
use crate::server::ServerConn;
use crate::wire::frontend as f;

/// Why a COPY fails that other messages than data come to.
pub(super) const NOT_DATA: &[u8] = b"pgsluice: unexpected message during COPY from stdin";

/// The name of a statement that nobody has: its Close is a question whose answer shows what came before it.
const FENCE: &[u8] = b"pgsluice_fence";

/// A message that pgsluice answers itself does not reach the COPY that it ends, which would store what it has and be answered: the
/// connection ends, as directly.
pub(super) fn not_in_copy(pipeline: &Pipeline) -> Result<(), Fault> {
    if pipeline.in_copy_in() {
        return Err(unexpected_in_copy());
    }
    Ok(())
}

impl State {
    /// Whether a message behind a COPY that may have swallowed a Sync is run, if that fails, hangs on how far it had read: so it
    /// waits for the end of that COPY. One that the client did not end itself would wait for ever, and is made to fail. Behind a
    /// folded one it waits, too: a server that has found a bad row skips it, where directly it is run.
    pub(super) fn waits_for_copy(&mut self, tag: u8, server: &mut ServerConn) -> bool {
        let ServerConn { conn, pipeline, .. } = server;
        if pipeline.is_in_copy_with_syncs() {
            f::put_copy_fail(&mut conn.out, NOT_DATA);
            pipeline.push(Kind::CopyEnd, Action::Forward, false);
        } else if self.fold.sync_owed && pipeline.in_copy_in() {
            // Its type is all that a COPY which still reads looks at, and says as directly. One that has failed skips it.
            f::put_empty(&mut conn.out, tag);
            pipeline.push(Kind::CopyEnd, Action::Forward, false);
            self.put_owed_sync(pipeline, &mut conn.out);
        } else if !pipeline.is_behind_copy() {
            return false;
        }
        self.await_answers(server);
        true
    }

    pub(super) fn take_copy_end(&mut self, frame: &[u8], whole: bool, server: &mut ServerConn) -> Taken {
        if !whole {
            return Taken::NeedWhole;
        }
        let folded = self.fold.sync_owed && server.pipeline.in_copy_in();
        // Where it ends no Query the server says nothing before the client's Sync.
        if folded || server.pipeline.in_copy_of_query() {
            self.await_giving_back();
        }
        server.pipeline.push(Kind::CopyEnd, Action::Forward, false);
        if !folded {
            return Taken::Forward;
        }
        let ServerConn { conn, pipeline, .. } = server;
        conn.out.extend_from_slice(frame);
        self.put_owed_sync(pipeline, &mut conn.out);
        Taken::Done
    }

    /// [`State::put_between`] has something to put. Never inside a message of the client's: the server would take ours for
    /// its data, and what is behind its data for messages.
    pub fn owes_between(&self, pipeline: &Pipeline) -> bool {
        let inside = self.part.up > 0 && !self.part.dropping;
        let owes = || self.fold.sync_owed || pipeline.fence().is_some() || self.owes_loan(pipeline);
        !inside && pipeline.is_empty() && owes()
    }

    /// Hot path. Messages of ours that become due when something was answered: the Sync of a folded COPY that has ended, the
    /// question what a COPY that failed had read, names that are taken back.
    pub fn put_between(&mut self, pipeline: &mut Pipeline, to_server: &mut Vec<u8>) {
        if !self.owes_between(pipeline) {
            return;
        }
        if self.fold.sync_owed {
            return self.put_owed_sync(pipeline, to_server);
        }
        let Some(fence) = pipeline.fence() else { return self.put_loan_back(pipeline, to_server) };
        if fence == Fence::Skipped {
            f::put_empty(to_server, f::SYNC);
            self.awaiting = true;
        }
        f::put_target(to_server, f::CLOSE, b'S', FENCE);
        f::put_empty(to_server, f::SYNC);
        pipeline.push_fence(fence);
    }

    /// The client left amid a COPY. One that was folded and still reads swallows a Sync, one that has failed has it; and whoever
    /// said Terminate is told what a COPY says to that. Not behind data that are there in part.
    pub(in crate::client) fn put_last_words(&self, server: &mut ServerConn) {
        if self.part.up > 0 {
            return;
        }
        if self.fold.sync_owed {
            f::put_empty(&mut server.conn.out, f::SYNC);
            server.pipeline.push(Kind::Sync, Action::Forward, false);
        }
        if self.terminated {
            f::put_empty(&mut server.conn.out, f::TERMINATE);
        }
    }

    /// The client, in simple protocol, sends none.
    fn put_owed_sync(&mut self, pipeline: &mut Pipeline, to_server: &mut Vec<u8>) {
        self.fold.sync_owed = false;
        f::put_empty(to_server, f::SYNC);
        pipeline.push(Kind::Sync, Action::Forward, false);
    }
}
