//! A batch under way.
//!
//! Owns: which rows are flushed again and which run singly when a COPY fails, and finding out how a transaction ended whose connection was
//! lost at its commit. Every ticket is resolved exactly once, as `Inserted` only after the server confirmed the COMMIT. Never: decides
//! when to leave.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;

use super::behind::Aboard;
use super::berths::Berth;
use super::flush::{Guard, Sent, Way};
use super::pace::lately;
use super::ticket::{Outcome, RowNotice, Ticket, count_work};
use super::{COPIES_ONLY, Lane, Owner};
use crate::coalesce::batch::{Cargo, copy_context};
use crate::coalesce::catalog;
use crate::coalesce::evidence::{Fallback, FlushOutcome, Seen};
use crate::mutex::lock;
use crate::net::busy::PipelinesFlush;
use crate::pool::Checkout;
use crate::proto::prepared::{OwnStatement, Statement};
use crate::proto::vars::Whose;
use crate::server::internal::{Notice, Reply};
use crate::wire::TransactionStatus;
use crate::wire::backend::{self, ErrorFields};

/// How long the server is asked for the outcome of a transaction whose connection was lost at its commit; its clients wait.
const IN_DOUBT_MAX: Duration = Duration::from_secs(10);

/// Between two such questions.
const IN_DOUBT_PAUSE: Duration = Duration::from_millis(5);

/// COPYs that a row is in, at most, before it runs singly.
const TRIES: usize = 3;

/// A lane keeps the buffers of its batches, one for each flight and one that fills, unless they grew beyond this.
const BUFFER_KEPT: usize = 64 << 10;

/// Notices of one COPY, and where its COMMIT's answers begin.
#[derive(Default)]
struct Said {
    notices: Vec<Notice>,
    /// The number of command tags before the COMMIT's answers.
    tags_before_commit: usize,
}

impl Lane {
    /// A connection that a flush can be sent on; `None`: there is none to be had.
    async fn a_server(&self) -> Option<Checkout> {
        let server = self.pool.checkout(&self.vars, None).await.ok()?;
        self.fit(server).await
    }

    /// As [`Lane::a_server`], and a place with it, which is given up while the connection has to be waited for.
    async fn a_berth(self: &Arc<Self>, berth: &mut Option<Berth>) -> Option<Checkout> {
        let server = match self.pool.checkout_now(&self.vars, None, None) {
            Some(server) => self.fit(server).await?,
            None => {
                *berth = None;
                self.a_server().await?
            }
        };
        if berth.is_none() {
            *berth = Berth::wait(self, self.settings.flush_timeout).await;
        }
        if berth.is_none() {
            server.release(Instant::now());
            return None;
        }
        Some(server)
    }

    /// Checks a connection. `None`: nothing can be sent on it, and it is closed.
    async fn fit(&self, mut server: Checkout) -> Option<Checkout> {
        // It could not be told whether rows that were sent to a server that is gone are stored.
        let delay = self.pool.settings.load().server_check_delay;
        if server.is_doubtful(Instant::now(), delay) && !server.still_answers().await {
            return None;
        }
        self.make_ready(&mut server).await.then_some(server)
    }

    /// Have all sessions of these tickets ended? Registers the task to be woken as long as not.
    pub(super) fn is_given_up<'a>(
        &'a self,
        mut told: Pin<&mut Notified<'a>>,
        cx: &mut Context<'_>,
        ended: impl Fn() -> bool,
    ) -> bool {
        while told.as_mut().poll(cx).is_ready() {
            told.set(self.given_up.notified());
        }
        ended()
    }

    /// A notice as clients get it, and the unit whose row it names, if it names one; `before` as in [`Lane::copied`].
    pub(super) fn row_notice(
        &self,
        batch: &Cargo,
        notice: &Notice,
        before: usize,
    ) -> (Option<usize>, RowNotice) {
        let fields = ErrorFields::new(&notice.body);
        let owner =
            notice.behind.checked_sub(before).and_then(|behind| self.owner_in(batch, behind, &fields));
        let (unit, row, relname) = match owner {
            Some(Owner { unit, row, relname }) => (Some(unit), Some(row), Some(relname)),
            None => (None, None, None),
        };
        let mut message = Vec::new();
        put_notice(&mut message, &fields, relname);
        (unit, RowNotice { row, message })
    }

    /// Before the first row is sent the connection must have the lane's settings, and its server and the start of that must
    /// be identified. False: it can't be used, and is closed.
    async fn make_ready(&self, server: &mut Checkout) -> bool {
        let max = self.max_prepared();
        if !matches!(server.settle_vars(&self.vars, max, Whose::nobody(&self.vars)).await, Ok(None)) {
            return false;
        }
        if server.incarnation.is_none() {
            let Ok(reply) = server.prepared(&INCARNATION, &[], max).await else { return false };
            server.incarnation = Some(only_value(reply).unwrap_or_default().into());
        }
        true
    }

    /// A connection was lost at the commit of transaction `xid`: asks the server how that ended, for a while.
    ///
    /// Only an answer of the same server since the same start is believed: after a crash it hands out ids again, and another
    /// transaction's commit would be taken for this one's.
    async fn in_doubt(&self, xid: u64, incarnation: &[u8]) -> Landed {
        let asked = async {
            loop {
                match self.ask_status(xid, incarnation).await {
                    Status::Known(landed) => return landed,
                    Status::NotYet => tokio::time::sleep(IN_DOUBT_PAUSE).await,
                }
            }
        };
        tokio::time::timeout(IN_DOUBT_MAX, asked).await.unwrap_or(Landed::Unknown)
    }

    async fn ask_status(&self, xid: u64, incarnation: &[u8]) -> Status {
        let Some(mut server) = self.a_server().await else { return Status::NotYet };
        if server.incarnation.as_deref() != Some(incarnation) {
            server.release(Instant::now());
            return Status::Known(Landed::Unknown);
        }
        let (text, max) = (xid.to_string(), self.max_prepared());
        let Ok(reply) = server.prepared(&STATUS, &[Some(text.as_bytes())], max).await else {
            return Status::NotYet;
        };
        server.release(Instant::now());
        match only_value(reply).as_deref() {
            Some(b"committed") => Status::Known(Landed::Committed),
            Some(b"aborted") => Status::Known(Landed::NotStored),
            Some(b"in progress") => Status::NotYet,
            _ => Status::Known(Landed::Unknown),
        }
    }
}

/// A batch under way and its tickets, one for each unit. If it is dropped with tickets left (the process ends), their outcome is
/// unknown.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) lane: Arc<Lane>,
    pub(super) berth: Option<Berth>,
    pub(super) number: u64,
    pub(super) tickets: Vec<Arc<Ticket>>,
    pub(super) units: usize,
    /// How long its first row waited before it left.
    pub(super) waited: Duration,
    /// When the COPY under way began.
    pub(super) left: Instant,
    /// How long the last committed one of its COPYs took; `None`: none was committed.
    pub(super) took: Option<Duration>,
    /// How long its COMMIT alone took.
    pub(super) commit: Duration,
    /// One of its COPYs failed.
    pub(super) failed: bool,
    /// The server's answers to statements that are no COPY.
    pub(super) answers: Vec<u8>,
    pub(super) way: Way,
    /// Rows of the last one that went as INSERTs of many VALUES.
    pub(super) values_rows: usize,
}

/// A flight on its way.
pub(super) type Flying = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The outcome of one COPY.
enum Landed {
    Committed,
    /// Rolled back, and the unit whose row failed, if it is known.
    Failed(Option<usize>),
    /// Not stored, for a reason that is not a row's fault.
    NotStored,
    Unknown,
}

/// What the server says of a transaction in doubt.
enum Status {
    Known(Landed),
    NotYet,
}

/// The one value of the last row.
fn only_value(mut reply: Reply) -> Option<Vec<u8>> {
    if reply.error.is_some() {
        return None;
    }
    reply.rows.pop()?.pop().flatten()
}

static INCARNATION: OwnStatement = OwnStatement::new(|| Statement::own(catalog::INCARNATION_SQL));

static STATUS: OwnStatement = OwnStatement::new(|| Statement::own(catalog::STATUS_SQL));

impl Flight {
    /// A COPY that fails because of a row that the error names is sent again without that row, once; if the error names none, in halves and
    /// quarters. Rows that fail then run singly. An INSERT of many VALUES is sent again as a COPY first. So a batch costs at most three, or
    /// eight, COPYs in addition to running its rows singly.
    pub(super) fn fly(self, batch: Cargo, aboard: Option<Aboard>) -> Flying {
        // One may start the next.
        Box::pin(self.fly_on(batch, aboard))
    }

    async fn fly_on(mut self, batch: Cargo, mut aboard: Option<Aboard>) {
        if aboard.is_none() && batch.rows() / self.lane.each() < self.lane.copy_min_rows() {
            return self.hand_back(&batch, Fallback::Few);
        }
        // The front of the tickets are those of the last one here.
        let mut batches = vec![(batch, TRIES)];
        while let Some((mut batch, tries)) = batches.pop() {
            let (landed, why) = self.land(&mut batch, aboard.take()).await;
            match landed {
                Landed::Committed => self.committed(batch),
                Landed::Failed(None) if self.values_rows > 0 => {
                    self.way = Way::Copies;
                    lock(&self.lane.inner).copies_only = COPIES_ONLY;
                    batches.push((batch, tries));
                }
                Landed::Failed(Some(unit)) if tries == TRIES && batch.units() > 1 => {
                    self.lane.stats.isolated.fetch_add(1, Ordering::Relaxed);
                    self.lane.stats.fell_back(why, batch.unit_rows(unit));
                    self.tickets.remove(unit).resolve(Outcome::RunSingly);
                    batches.push((batch.without(unit), tries - 1));
                }
                Landed::Failed(None)
                    if tries > 1 && batch.units() >= 2 * self.lane.settings.copy_min_rows =>
                {
                    self.lane.stats.bisects.fetch_add(1, Ordering::Relaxed);
                    let half = batch.units() / 2;
                    batches.push((batch.select(half..batch.units()), tries - 1));
                    batches.push((batch.select(0..half), tries - 1));
                }
                Landed::Failed(_) | Landed::NotStored => self.hand_back(&batch, why),
                Landed::Unknown => self.unknown(&batch),
            }
            self.left = Instant::now();
        }
    }

    /// Sends one COPY and reads its outcome, which is also kept for the console. Returns it, and why the rows fall back, if they have to.
    async fn land(&mut self, batch: &mut Cargo, aboard: Option<Aboard>) -> (Landed, Fallback) {
        let mut seen = Seen::default();
        let mut said = Said::default();
        let landed = self.send(batch, aboard, &mut seen, &mut said).await;
        if batch.is_empty() {
            return (landed, Fallback::NotSent);
        }
        if let Landed::Failed(Some(unit)) = landed {
            seen.guilty = self.tickets.get(unit).map(|ticket| ticket.client);
        }
        if matches!(landed, Landed::Committed) {
            self.pass_on(batch, &said);
        }
        let (stats, took) = (&self.lane.stats, self.left.elapsed());
        if matches!(landed, Landed::Committed) {
            self.took = Some(took);
            stats.batch_rows.record(batch.rows() as u64);
            stats.flush_time.record(took.as_micros() as u64);
            stats.wait.record(self.waited.as_micros() as u64);
            self.count(batch.units(), took);
        } else if seen.outcome != FlushOutcome::NotSent {
            self.failed = true;
            stats.failures.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(seen.outcome, FlushOutcome::SettledCommitted | FlushOutcome::SettledAborted) {
            stats.resolved.fetch_add(batch.units() as u64, Ordering::Relaxed);
        }
        let why = Fallback::after(&seen);
        self.log(batch, seen, took);
        (landed, why)
    }

    /// Counts committed units in the pool's statistics as if each client had had a server.
    fn count(&self, units: usize, took: Duration) {
        let mut sums = [0; 6];
        for ticket in &self.tickets[..units] {
            sums.iter_mut().zip(ticket.work()).for_each(|(sum, n)| *sum += n);
        }
        let [.., sent] = &mut sums;
        *sent += self.answers.len() as u64;
        let time = took.as_micros() as u64 * units as u64;
        let stats = &self.lane.pool.stats;
        count_work(stats, sums);
        for (to, n) in
            [(&stats.xact_time, time), (&stats.query_time, time), (&stats.server_assignment_count, 1)]
        {
            to.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Passes notices on. One that names a row goes to its client; a warning of the COMMIT goes to all clients; one about the guard or about a
    /// statement of pgsluice's own goes to none, because it may show rows of all. The portals of these end with the COMMIT, too: a
    /// library's messages about that are told from the COMMIT's by not being warnings.
    fn pass_on(&self, batch: &Cargo, said: &Said) {
        self.lane.stats.notices.fetch_add(said.notices.len() as u64, Ordering::Relaxed);
        for notice in &said.notices {
            let is_warning = ErrorFields::new(&notice.body).field(b'V') == Some(b"WARNING");
            let of_commit = is_warning && notice.behind >= said.tags_before_commit;
            let (unit, notice) = self.lane.row_notice(batch, notice, 0);
            if unit.is_none() && !of_commit {
                continue;
            }
            let tickets = match unit {
                Some(unit) => &self.tickets[unit..=unit],
                None => &self.tickets[..batch.units()],
            };
            for ticket in tickets {
                lock(&ticket.notices).push(notice.clone());
                ticket.noticed.store(true, Ordering::Release);
            }
        }
    }

    /// Its turn on the connection begins now, later than it left.
    pub(super) fn begins(&mut self, now: Instant) {
        self.waited += now.duration_since(self.left);
        self.left = now;
    }

    /// Resolves its tickets when its connection was lost before its turn came.
    pub(super) fn never_heard_of(mut self, batch: &Cargo) {
        let seen = Seen { outcome: FlushOutcome::Unknown, ..Seen::default() };
        self.failed = true;
        self.lane.stats.failures.fetch_add(1, Ordering::Relaxed);
        self.log(batch, seen, self.left.elapsed());
        self.unknown(batch);
    }

    /// For the console.
    fn log(&self, batch: &Cargo, seen: Seen, took: Duration) {
        let clients = self.tickets[..batch.units()].iter().map(|ticket| ticket.client);
        self.lane.remember(batch, seen, self.waited, took, clients);
    }

    /// A connection of its own, unless nobody waits for one any more. Units that were taken back while it was waited for are not in the batch any more.
    async fn board(&mut self, batch: &mut Cargo) -> Option<Aboard> {
        self.tickets.iter().for_each(|ticket| ticket.goes_ashore());
        let lane = Arc::clone(&self.lane);
        let server = {
            let mut asked = std::pin::pin!(lane.a_berth(&mut self.berth));
            let mut given_up = std::pin::pin!(lane.given_up.notified());
            let tickets = &self.tickets[..batch.units()];
            std::future::poll_fn(|cx| match asked.as_mut().poll(cx) {
                Poll::Pending if lane.is_given_up(given_up.as_mut(), cx, || has_ended(tickets)) => {
                    Poll::Ready(None)
                }
                polled => polled,
            })
            .await
        };
        if self.leave_behind(batch) {
            return server.map(|server| self.sit(server, batch));
        }
        if let Some(server) = server {
            server.release(Instant::now());
        }
        None
    }

    fn sit(&self, mut server: Checkout, batch: &Cargo) -> Aboard {
        let prepares = self.lane.prepares_answers(&server);
        let sent = self.lane.put_flush(&mut server, batch, self.way);
        Aboard { server, sent, prepares, behind: 0, committing: None }
    }

    /// Removes the units that were taken back. False: no others were in the batch.
    pub(super) fn leave_behind(&mut self, batch: &mut Cargo) -> bool {
        let mut unit = 0;
        while unit < batch.units() {
            if self.tickets[unit].boards() {
                unit += 1;
            } else {
                self.tickets.remove(unit);
                *batch = batch.without(unit);
            }
        }
        if self.tickets.is_empty() {
            self.end();
        }
        unit > 0
    }

    async fn send(
        &mut self,
        batch: &mut Cargo,
        mut aboard: Option<Aboard>,
        seen: &mut Seen,
        said: &mut Said,
    ) -> Landed {
        let lane = &Arc::clone(&self.lane);
        // A mark that moved says only that the full guard has to look.
        for _ in 0..2 {
            let place = match aboard.take() {
                Some(place) => Some(place),
                None => self.board(batch).await,
            };
            let Some(mut place) = place else { return Landed::NotStored };
            let statements = if lane.is_pipelined() { batch.rows() / lane.each() } else { 0 };
            let raw_behind = lane.names_first();
            let mut reply = Reply { raw_left: statements, raw_behind, ..Reply::default() };
            let tags = lane.tags_before_commit(batch, place.sent.guard);
            // Of several tables each block sends a row or two.
            let one_table = lane.parts.is_empty();
            let pipelines = one_table.then(|| PipelinesFlush::begin(batch.rows(), batch.units()));
            let (finished, follower) =
                lane.answer(&mut place, &self.tickets[..batch.units()], &mut reply, tags).await;
            drop(pipelines);
            self.note(&place, &mut reply, seen);
            // Of a transaction that goes on nobody knows how it ends.
            let is_over = place.server.pipeline.status() == TransactionStatus::Idle;
            let Aboard { mut server, sent: Sent { guard, .. }, prepares, behind, .. } = place;
            if finished.is_err() || !is_over {
                let is_out = server.conn.is_flushed();
                // One behind it was let in when all of it was out.
                let was_out = is_out || follower.is_some();
                if let Some(follower) = follower {
                    follower.lost(is_out, &reply);
                }
                return self.lost(server, was_out, guard, batch, &reply, seen).await;
            }
            let moved = lane.take_mark(&mut server, guard, &reply);
            if let Some(follower) = follower {
                follower.fly(server, behind + 1);
            } else if (prepares && reply.error.is_some()) || self.is_odd(batch, &reply) {
                // The rows may look different now: nobody is to find the statement here who was told how they looked. Or a statement
                // is planned there that PostgreSQL does not plan anew, though the rule is gone that made it store nothing.
                drop(server);
            } else {
                server.release(Instant::now());
            }
            if !moved {
                *said = Said { notices: std::mem::take(&mut reply.notices), tags_before_commit: tags };
                return self.answered(batch, &reply, seen);
            }
            lane.count_dead(batch);
        }
        seen.outcome = FlushOutcome::TableChanged;
        Landed::NotStored
    }

    /// What is known of the last one, however it ended.
    fn note(&mut self, place: &Aboard, reply: &mut Reply, seen: &mut Seen) {
        let Sent { guard, values_rows } = place.sent;
        self.values_rows = values_rows;
        self.commit = place.committing.map_or(Duration::ZERO, |since| since.elapsed());
        self.answers = std::mem::take(&mut reply.raw);
        seen.values_rows = values_rows;
        seen.server_pid = Some(place.server.shared.pid);
        seen.xid = guard.xid(reply, self.lane.names_first());
        let sqlstate = reply.error.as_ref().map(|error| ErrorFields::new(error).sqlstate().to_vec());
        seen.sqlstate = sqlstate.map(|state| String::from_utf8_lossy(&state).into_owned());
    }

    /// The server says that it stored another number of rows, and names no error.
    fn is_odd(&self, batch: &Cargo, reply: &Reply) -> bool {
        reply.error.is_none() && (reply.raw_left > 0 || !self.lane.copied(batch, reply, 0))
    }

    fn answered(&self, batch: &Cargo, reply: &Reply, seen: &mut Seen) -> Landed {
        let lane = &self.lane;
        match &reply.error {
            None if !self.is_odd(batch, reply) => {
                seen.outcome = FlushOutcome::Committed;
                Landed::Committed
            }
            // It has committed: nothing can be promised.
            None => {
                seen.outcome = FlushOutcome::Unknown;
                Landed::Unknown
            }
            Some(error) => {
                lane.count_dead(batch);
                let fields = ErrorFields::new(error);
                if catalog::is_guard_error(&fields) {
                    lane.forget_shapes();
                    seen.outcome = FlushOutcome::TableChanged;
                    return Landed::NotStored;
                }
                let mut owner = lane.guilty(batch, &fields, reply, 0);
                let state = fields.sqlstate();
                let otherwise = match lane.is_pipelined() {
                    false => owner.is_none() && state.starts_with(b"42"),
                    true => state.starts_with(b"42") || state == b"0A000",
                };
                if otherwise {
                    // No such table or column, or no privilege for it: not what was planned for either.
                    lane.forget_shapes();
                    owner = None;
                }
                seen.outcome = if owner.is_some() { FlushOutcome::RowFailed } else { FlushOutcome::Failed };
                // A row that violates something is looked for; a lock, a full disk or an administrator is nobody's row.
                match owner {
                    None if !state.starts_with(b"22") && !state.starts_with(b"23") => Landed::NotStored,
                    owner => Landed::Failed(owner),
                }
            }
        }
    }

    /// The connection is gone. Stored is nothing if the Sync never left whole, or if the server said why it ends the
    /// transaction before it answered the guard; otherwise the server has to say how the transaction ended, if its id
    /// was read.
    async fn lost(
        &mut self,
        server: Checkout,
        was_out: bool,
        guard: Guard,
        batch: &Cargo,
        reply: &Reply,
        seen: &mut Seen,
    ) -> Landed {
        let guard_answered = reply.tags.len() >= self.lane.tags_before_commit(batch, guard);
        let failed = reply.error.is_some() && !guard_answered && !reply.contradicted;
        if !was_out || failed {
            seen.outcome = FlushOutcome::Lost;
            return Landed::NotStored;
        }
        let incarnation = server.incarnation.clone().filter(|life| !life.is_empty());
        drop(server);
        seen.outcome = FlushOutcome::Unknown;
        // It may have ended the wait for a synchronous standby so, and what it calls committed then is not what COMMIT promises.
        if reply.notices.iter().any(|notice| ErrorFields::new(&notice.body).says_farewell()) {
            return Landed::Unknown;
        }
        let (Some(xid), Some(incarnation)) = (seen.xid, incarnation) else { return Landed::Unknown };
        // It has no connection now, and may wait for one.
        self.berth = None;
        let landed = self.lane.in_doubt(xid, &incarnation).await;
        seen.outcome = match landed {
            Landed::Committed => FlushOutcome::SettledCommitted,
            Landed::Failed(_) | Landed::NotStored => FlushOutcome::SettledAborted,
            Landed::Unknown => return landed,
        };
        landed
    }

    fn committed(&mut self, mut batch: Cargo) {
        self.lane.count(&batch, self.values_rows);
        let units = batch.units();
        if let [part] = batch.parts()
            && self.lane.is_pipelined()
        {
            for (ticket, answer) in self.tickets.iter().zip(part.answers(&self.answers, self.lane.each())) {
                let mut given = lock(&ticket.answer);
                given.clear();
                given.extend_from_slice(answer);
            }
        }
        batch.clear();
        let keeps = || self.lane.lanes.upgrade().is_some_and(|lanes| lanes.keeps_buffers());
        if batch.capacity() <= BUFFER_KEPT && keeps() {
            lock(&self.lane.inner).keep(batch);
        }
        self.resolve(units, Outcome::Inserted);
    }

    pub(super) fn hand_back(&mut self, batch: &Cargo, why: Fallback) {
        self.lane.stats.fell_back(why, batch.rows());
        self.resolve(batch.units(), Outcome::RunSingly);
    }

    fn unknown(&mut self, batch: &Cargo) {
        self.lane.stats.unknown.fetch_add(batch.units() as u64, Ordering::Relaxed);
        self.resolve(batch.units(), Outcome::Unknown);
    }

    /// The first `units` sessions hear. The flight is over before the last ones do, so that they find the lane as it is.
    fn resolve(&mut self, units: usize, outcome: Outcome) {
        if units == self.tickets.len() {
            self.end();
        }
        for ticket in self.tickets.drain(..units) {
            ticket.resolve(outcome);
        }
    }

    fn end(&mut self) {
        let units = std::mem::take(&mut self.units);
        if units == 0 {
            return;
        }
        // Other lanes come first: this one had its turn.
        self.berth = None;
        let mut inner = lock(&self.lane.inner);
        if let Some(took) = self.took {
            inner.failures = 0;
            inner.took = lately(inner.took, took);
            inner.pace.flew(took.saturating_sub(self.commit), self.commit);
        } else if self.failed {
            inner.failed();
        }
        inner.flights -= 1;
        inner.aloft.retain(|number| *number != self.number);
        inner.flying -= units;
        inner.crowd.answered(units);
        inner.pace.answered(Instant::now());
        self.lane.landed.notify_waiters();
        self.lane.flush_if_due(inner);
    }
}

/// Nobody waits for any of them.
pub(super) fn has_ended(tickets: &[Arc<Ticket>]) -> bool {
    tickets.iter().all(|ticket| ticket.is_out())
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.resolve(self.tickets.len(), Outcome::Unknown);
    }
}

/// A notice as the row's own INSERT would have brought it: without the lines of its context that speak of the COPY, if
/// `relname` is given.
fn put_notice<'a>(out: &mut Vec<u8>, fields: &ErrorFields<'a>, relname: Option<&str>) {
    let without_copy = |(kind, value): (u8, &'a [u8])| {
        let copy = relname.filter(|_| kind == b'W').and_then(|relname| copy_context(value, relname));
        match copy {
            Some(0) => None,
            Some(at) => Some((kind, &value[..at - 1])),
            None => Some((kind, value)),
        }
    };
    let kept = fields.clone().filter_map(without_copy);
    crate::wire::frame::put(out, backend::NOTICE_RESPONSE, |out| backend::put_fields(out, kept));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_loses_what_its_context_says_of_the_copy() {
        let notice = |context: &str, relname: Option<&str>| {
            let body = [b"SNOTICE\0Mword is too long\0", context.as_bytes(), b"\0"].concat();
            let mut out = Vec::new();
            put_notice(&mut out, &ErrorFields::new(&body), relname);
            String::from_utf8_lossy(&out[5..]).replace('\0', "|")
        };
        assert_eq!(notice("WCOPY t, line 2\0", Some("t")), "SNOTICE|Mword is too long||");
        let nested = "Wsomething\nCOPY t, line 2, column a: \"x\ny\"\0";
        assert_eq!(notice(nested, Some("t")), "SNOTICE|Mword is too long|Wsomething||");
        assert_eq!(notice("Welsewhere\0", None), "SNOTICE|Mword is too long|Welsewhere||");
    }
}
