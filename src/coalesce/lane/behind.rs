//! One flight (a batch under way) behind another on the same server connection: its messages are sent before the one ahead of it is
//! answered.
//!
//! So the server begins the next transaction as soon as it has ended one, instead of waiting until that answer has reached pgsluice and
//! the next batch has arrived. Each flight has its own Sync, so the failure of one does not affect the other.
//!
//! Owns: which flight the next one follows, and the outcome of one whose connection is lost before its turn came. Never: decides when a
//! batch leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::flight::{Flight, has_ended};
use super::flush::Sent;
use super::ticket::Ticket;
use super::{Inner, Lane, SLOW, SLOW_FEW};
use crate::coalesce::batch::Cargo;
use crate::mutex::lock;
use crate::net::busy::BusyFlush;
use crate::pool::Checkout;
use crate::server::internal::{Lost, Reply};
use crate::wire::backend::ErrorFields;

/// So many flights follow each other on one connection before it goes back to its pool.
const BEHIND_MAX: usize = 64;

/// Fewer rows do not go behind others: what is lost before its turn came is unknown for good, while the server can be asked about a
/// flush that had its turn.
const ROWS_MIN: usize = 8;

/// The end of a flush for so many sessions is looked for without sleep: meanwhile they come back one by one, and each would have to wake
/// the worker.
const CROWD: usize = 8;

/// A flight's place on a server connection, once all it has to say is in the connection's hands.
pub(super) struct Aboard {
    pub(super) server: Checkout,
    pub(super) sent: Sent,
    /// The connection will hold a statement whose answers are the clients'.
    pub(super) prepares: bool,
    /// Flights before it, since the connection was had from the pool.
    pub(super) behind: usize,
    /// Since when it waits for nothing but its COMMIT.
    pub(super) committing: Option<Instant>,
}

/// A flight that left and has no place yet.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) flight: Flight,
    pub(super) batch: Cargo,
}

impl Next {
    /// On a connection of its own.
    pub(super) fn fly(self) {
        tokio::spawn(self.flight.fly(self.batch, None));
    }
}

/// Does a flight under way take the next one along?
#[derive(Debug, Default)]
pub(super) enum Along {
    /// None does.
    #[default]
    Not,
    /// One does, and is to be woken.
    Awaited(Waker),
    /// It is to take this one.
    Given(Next),
}

impl Along {
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self, Self::Awaited(_))
    }

    /// The flight under way takes this one along. `Some`: there is none that does, or it is not worth it.
    pub(super) fn give(&mut self, next: Next) -> Option<Next> {
        match std::mem::take(self) {
            Self::Awaited(waker) if next.batch.rows() >= ROWS_MIN => {
                *self = Self::Given(next);
                waker.wake();
                None
            }
            other => {
                *self = other;
                Some(next)
            }
        }
    }
}

/// While it lives, the flight under way takes the next one along. Dropped with one that it did not take, it sends that on its
/// own way.
struct Open<'a> {
    lane: &'a Lane,
    taken: bool,
}

impl<'a> Open<'a> {
    /// `None`: another flight takes the next one.
    fn new(lane: &'a Arc<Lane>, cx: &Context<'_>) -> Option<Self> {
        let mut inner = lock(&lane.inner);
        if !matches!(inner.along, Along::Not) {
            return None;
        }
        inner.along = Along::Awaited(cx.waker().clone());
        lane.flush_if_due(inner);
        Some(Self { lane, taken: false })
    }

    fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Next> {
        let along = &mut lock(&self.lane.inner).along;
        match std::mem::take(along) {
            Along::Given(next) => {
                self.taken = true;
                Poll::Ready(next)
            }
            _ => {
                *along = Along::Awaited(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let along = std::mem::take(&mut lock(&self.lane.inner).along);
        if let Along::Given(next) = along {
            next.fly();
        }
    }
}

/// One that was taken along.
pub(super) struct Follower {
    next: Next,
    sent: Sent,
}

impl Follower {
    /// Its turn has come: the one before it is answered.
    pub(super) fn fly(mut self, server: Checkout, behind: usize) {
        self.next.flight.begins(Instant::now());
        let aboard = Aboard { server, sent: self.sent, prepares: false, behind, committing: None };
        tokio::spawn(self.next.flight.fly(self.next.batch, Some(aboard)));
    }

    /// The connection is lost before its turn came. It has not run if its Sync never left whole, or if the server said that it
    /// ends the connection; otherwise it may have, and there is no transaction id to ask for.
    pub(super) fn lost(self, is_out: bool, reply: &Reply) {
        let ended = reply.error.as_deref().is_some_and(|error| ErrorFields::new(error).ends_connection());
        if is_out && (!ended || reply.contradicted) {
            self.next.flight.never_heard_of(&self.next.batch);
        } else {
            self.next.fly();
        }
    }
}

/// A flight under way of which the server has all rows.
struct Committing<'a>(&'a Lane);

impl<'a> Committing<'a> {
    fn new(lane: &'a Arc<Lane>) -> Self {
        let mut inner = lock(&lane.inner);
        inner.committing += 1;
        lane.flush_if_due(inner);
        Self(lane)
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        lock(&self.0.inner).committing -= 1;
    }
}

impl Inner {
    /// Does the flush under way rather wait for a disk than for a processor, so that one beside it is answered sooner than one
    /// that waits for it?
    pub(super) fn waits_for_disk(&self) -> bool {
        let few = self.here() < 2 * ROWS_MIN;
        self.took >= if few { SLOW_FEW } else { SLOW }
    }

    /// Could a flight behind the one under way gain by it?
    fn is_quick(&self) -> bool {
        self.took < SLOW && !self.pace.commits_slowly()
    }

    /// Is it time for the batch to go behind the flight that takes one along? Not before half of the crowd is in it: the others'
    /// turn is the next one.
    pub(super) fn may_follow(&self) -> bool {
        self.batch.rows() >= ROWS_MIN && !self.crowd.is_few() && self.crowd.is_half(self.tickets.len())
    }
}

impl Lane {
    /// Could a flight behind this one gain by it? Not where the one under way waits for a disk rather than for us, nor where it
    /// has to do with several tables: both of a crowd's halves wait longer then, and come back in smaller ones.
    fn may_be_followed(&self, aboard: &Aboard) -> bool {
        !self.is_pipelined()
            && self.parts.is_empty()
            && self.settings.max_flushes_per_table > 1
            && aboard.behind < BEHIND_MAX
            && lock(&self.inner).is_quick()
            && !self.pool.wants_back(&aboard.server)
    }

    /// The answer to the end of its transaction, for those who wait for it; and the flight that was taken along meanwhile. With so
    /// many `tags` only the COMMIT is left. Where nobody waits for either any more the connection is given up.
    ///
    /// Cancel safety: none; the connection is closed.
    pub(super) async fn answer(
        self: &Arc<Self>,
        aboard: &mut Aboard,
        tickets: &[Arc<Ticket>],
        reply: &mut Reply,
        tags: usize,
    ) -> (Result<(), Lost>, Option<Follower>) {
        let (mut open, mut follower, mut committing) = (None, None, None);
        let mut may = self.may_be_followed(aboard);
        let mut given_up = std::pin::pin!(self.given_up.notified());
        let limit = self.pool.settings.load().busy_poll;
        let worth = tickets.len() >= CROWD && lock(&self.inner).took < limit;
        let mut waits = BusyFlush::new(worth, Instant::now());
        let answered = std::future::poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = aboard.server.poll_unit(cx, reply) {
                    return Poll::Ready(ended);
                }
                if aboard.committing.is_none() && reply.tags.len() >= tags {
                    aboard.committing = Some(Instant::now());
                    committing = Some(Committing::new(self));
                }
                // Before all of it is out nobody could tell whose bytes were lost.
                if !may || !aboard.server.conn.is_flushed() {
                    break;
                }
                if open.is_none() {
                    open = Open::new(self, cx);
                }
                let Some(open) = &mut open else {
                    may = false;
                    break;
                };
                let Poll::Ready(mut next) = open.poll_next(cx) else { break };
                may = false;
                if !next.flight.leave_behind(&mut next.batch) {
                    continue;
                }
                let sent = self.put_flush(&mut aboard.server, &next.batch, next.flight.way);
                self.stats.behind.fetch_add(1, Ordering::Relaxed);
                follower = Some(Follower { next, sent });
            }
            let behind = || follower.as_ref().map_or(&[][..], |follower| &follower.next.flight.tickets);
            if !self.is_given_up(given_up.as_mut(), cx, || has_ended(tickets) && has_ended(behind())) {
                waits.look_again(limit, cx);
                return Poll::Pending;
            }
            aboard.server.cancel(self.pool.settings.load().server_connect_timeout);
            Poll::Ready(Err(Lost::new("nobody waits for it any more")))
        })
        .await;
        (answered, follower)
    }
}
