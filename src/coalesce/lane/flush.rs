//! The messages of one round trip to the server: the rows, and the guard that verifies the table that they were planned for.
//!
//! Owns: the messages of a flush and of a run inside a client's own block, the guard and its mark. Never: waits for an answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Lane, Leg, RowNotice};
use crate::coalesce::batch::{Batch, Cargo, Cut, Form, put_copy, put_many_values};
use crate::coalesce::catalog;
use crate::coalesce::evidence::{Fallback, FlushOutcome, Seen};
use crate::coalesce::plan::InsertPlan;
use crate::coalesce::shapes::GUARD;
use crate::pool::Checkout;
use crate::proto::pipeline::{Action, Kind};
use crate::proto::prepared::{OwnStatement, Statement};
use crate::server::internal::Reply;
use crate::wire::backend::ErrorFields;
use crate::wire::frontend as f;

impl Lane {
    /// Appends everything of one round trip that stores a client's rows in its own transaction on its own connection. `None`:
    /// the rows are not those of this lane, and nothing was appended.
    ///
    /// `marks`: no mark was taken in this transaction yet ([`Flown::took_mark`]). `portal`: the client's messages would leave an
    /// unnamed portal.
    pub fn put_run(
        &self,
        server: &mut Checkout,
        encoded: &[u8],
        cuts: &[Cut],
        opening: Opening,
        (marks, portal): (bool, bool),
    ) -> Option<Flown> {
        let mut batch = self.empty();
        if !batch.push_unit(encoded, cuts) {
            return None;
        }
        let max = self.max_prepared();
        server.conn.prepare_out();
        for text in opening.before() {
            put_plain(server, text, max);
        }
        let Sent { guard, values_rows } =
            self.put_rows(server, &batch, Way::Cheapest, marks, opening.guard_portal());
        for text in opening.after() {
            put_plain(server, text, max);
        }
        if !portal {
            put_close(server, b"");
        }
        server.put_sync();
        Some(Flown { batch, guard, values_rows, opening, left: Instant::now() })
    }

    /// Did it store all of them? Counts it, and remembers it as that of `client`; what the server had to say of the rows, then.
    pub fn run_succeeded(
        &self,
        server: &mut Checkout,
        flown: Flown,
        reply: &Reply,
        client: u64,
    ) -> Option<Vec<RowNotice>> {
        let Flown { batch, guard, values_rows, opening, left } = flown;
        self.take_mark(server, guard, reply);
        let took = left.elapsed();
        let before = opening.before().len();
        let error = reply.error.as_deref().map(ErrorFields::new);
        let stored = error.is_none() && self.copied(&batch, reply, before);
        let changed = error.as_ref().is_some_and(catalog::is_guard_error);
        let guilty = error.as_ref().and_then(|error| self.guilty(&batch, error, reply, before));
        let outcome = match (stored, changed, guilty) {
            (true, ..) => FlushOutcome::InBlock,
            (_, true, _) => FlushOutcome::TableChanged,
            (.., Some(_)) => FlushOutcome::RowFailed,
            (.., None) => FlushOutcome::Failed,
        };
        if stored {
            self.count(&batch, values_rows);
            self.stats.batch_rows.record(batch.rows() as u64);
            self.stats.flush_time.record(took.as_micros() as u64);
        } else {
            self.stats.failures.fetch_add(1, Ordering::Relaxed);
            self.count_dead(&batch);
            if changed && guard != Guard::Sentinel {
                self.forget_shapes();
            }
        }
        let seen = Seen {
            outcome,
            values_rows,
            server_pid: Some(server.shared.pid),
            xid: guard.xid(reply, opening.rows() + self.names_first()),
            sqlstate: error.map(|error| String::from_utf8_lossy(error.sqlstate()).into_owned()),
            guilty: guilty.map(|_| client),
        };
        if !stored {
            self.stats.fell_back(Fallback::after(&seen), batch.rows());
        }
        self.remember(&batch, seen, Duration::ZERO, took, std::iter::once(client));
        stored.then(|| {
            self.stats.notices.fetch_add(reply.notices.len() as u64, Ordering::Relaxed);
            // What is said of the guard is not the client's.
            let own = reply.notices.iter().filter(|notice| notice.behind >= before);
            own.map(|notice| self.row_notice(&batch, notice, before).1).collect()
        })
    }

    /// Keeps the sentinel's mark for the next flush on this connection. True: it has moved, and the flush was undone.
    pub(super) fn take_mark(&self, server: &mut Checkout, guard: Guard, reply: &Reply) -> bool {
        let Some(sentinel) = &self.sentinel else { return false };
        let guard_failed =
            reply.error.as_ref().is_some_and(|e| catalog::is_guard_error(&ErrorFields::new(e)));
        match guard {
            Guard::Full => false,
            Guard::FullWithMark => {
                let row = reply.rows.last().map(|row| row.iter().map(Option::as_deref).collect::<Vec<_>>());
                let mark = row.as_deref().and_then(catalog::decode_sentinel).map(|(_, mark)| mark);
                server.set_mark(sentinel.id, mark.filter(|_| reply.error.is_none()));
                false
            }
            Guard::Sentinel => {
                if guard_failed {
                    server.set_mark(sentinel.id, None);
                }
                guard_failed
            }
        }
    }

    /// Appends COPY, its rows and its end, for each table, or one INSERT of many VALUES where that does less work, or the clients'
    /// own INSERTs; and a guard. Where the cheap guard has a mark from an
    /// earlier flush on this connection it is enough; otherwise the full one goes, for each table, and takes the mark. Without
    /// `marks` the full one goes alone. `portal` is the guard's.
    pub(super) fn put_rows(
        &self,
        server: &mut Checkout,
        batch: &Cargo,
        way: Way,
        marks: bool,
        portal: &[u8],
    ) -> Sent {
        let max = self.max_prepared();
        server.conn.prepare_out();
        let sentinel = self.sentinel.as_ref().filter(|_| marks);
        let mark = sentinel.and_then(|s| server.mark(s.id).map(str::to_owned));
        let guard = match (sentinel, &mark) {
            (Some(_), Some(_)) => Guard::Sentinel,
            (Some(_), None) => Guard::FullWithMark,
            (None, _) => Guard::Full,
        };
        let relids: Vec<String> = self.legs.iter().map(|leg| leg.plan.relid.to_string()).collect();
        for (Leg { plan, .. }, relid) in self.legs.iter().zip(&relids).take(self.names_first()) {
            server.ensure_own(&SAME_TABLE, max);
            let params = [&plan.name_as_written, relid, &plan.sequences, &plan.most];
            put_own(server, &SAME_TABLE, &params.map(|param| Some(param.as_bytes())));
        }
        let parts = self.legs.iter().zip(batch.parts());
        let values_rows = parts.map(|(leg, part)| self.put_leg(server, leg, part, way)).sum();
        if guard != Guard::Sentinel {
            server.ensure_own(&GUARD, max);
            for (Leg { plan, .. }, relid) in self.legs.iter().zip(&relids) {
                let InsertPlan { name_as_written, fingerprint, types, functions, names, .. } = &**plan;
                let params = [relid, name_as_written, fingerprint, types, functions, names];
                let params = params.map(|param| Some(param.as_bytes()));
                put_guard(server, portal, &GUARD, &params);
            }
        }
        if let Some(sentinel) = sentinel {
            server.ensure_own(sentinel, max);
            let mut params = vec![mark.as_deref().map(str::as_bytes)];
            for (leg, relid) in self.legs.iter().zip(&relids) {
                params.extend([Some(leg.plan.name_as_written.as_bytes()), Some(relid.as_bytes())]);
            }
            put_guard(server, portal, sentinel, &params);
        }
        Sent { guard, values_rows }
    }

    /// Appends the rows of one table. How many of them go as an INSERT of many VALUES.
    fn put_leg(&self, server: &mut Checkout, leg: &Leg, part: &Batch, way: Way) -> usize {
        let max = self.max_prepared();
        let values = if way == Way::Cheapest { self.values_of(leg, part.rows(), server, max) } else { None };
        let statement = values.unwrap_or(&leg.statement);
        server.ensure_own(statement, max);
        match leg.form {
            Form::Copy(format) if values.is_some() => {
                let (name, fields) = (&statement.server_name, leg.plan.fields);
                put_many_values(format, name, fields, part.rows(), part.bytes(), &mut server.conn.out);
                expect_own(server);
                return part.rows();
            }
            Form::Copy(format) => {
                for rows in part.copied(format) {
                    put_own(server, &leg.statement, &[]);
                    put_copy(format, rows, &mut server.conn.out);
                    server.pipeline.push(Kind::CopyEnd, Action::Own, false);
                }
            }
            Form::Pipelined => {
                server.conn.out.extend_from_slice(part.bytes());
                (0..part.rows() / leg.each).for_each(|_| expect_own(server));
            }
        }
        0
    }

    /// How many tables are looked at by name before their rows go: each answers a row and a tag that stand before theirs.
    pub(super) fn names_first(&self) -> usize {
        let draws = self.legs.iter().any(|leg| leg.plan.draws_sequence);
        if draws { self.legs.len() } else { 0 }
    }

    /// Tags of ours once everything is answered but the COMMIT.
    pub(super) fn tags_before_commit(&self, batch: &Cargo, guard: Guard) -> usize {
        self.names_first() + self.copies(batch) + guard.tags(self.legs.len())
    }

    /// The INSERT of many VALUES that so many rows go as. Each number of rows is a statement of its own: there are many, and on a
    /// connection that is half full of statements none takes the place of another.
    fn values_of<'a>(
        &self,
        leg: &'a Leg,
        rows: usize,
        server: &Checkout,
        max: usize,
    ) -> Option<&'a Arc<Statement>> {
        let statement = if rows <= self.settings.values_max_rows { leg.values(rows) } else { None };
        statement.filter(|s| server.names.holds(s.id) || server.names.len() < max / 2)
    }

    /// Will this connection hold a statement from here on whose answers are the clients'?
    pub(super) fn prepares_answers(&self, server: &Checkout) -> bool {
        self.is_pipelined() && self.legs.iter().any(|leg| !server.names.holds(leg.statement.id))
    }

    /// Everything of one round trip, in one write.
    pub(super) fn put_flush(&self, server: &mut Checkout, batch: &Cargo, way: Way) -> Sent {
        let sent = self.put_rows(server, batch, way, true, b"");
        // The guard's answer, and with it the transaction's id, sets out before the COMMIT: a connection that is lost at the
        // commit is then a question that the server can answer.
        f::put_empty(&mut server.conn.out, f::FLUSH);
        server.put_sync();
        sent
    }
}

/// What went up.
pub(super) struct Sent {
    pub(super) guard: Guard,
    /// Rows that went as INSERTs of many VALUES.
    pub(super) values_rows: usize,
}

/// How the rows of a lane of COPYs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A few rows of a table as one INSERT, if they may.
    Cheapest,
    /// All as COPYs: an error then names its row.
    Copies,
}

static SAME_TABLE: OwnStatement = OwnStatement::new(|| Statement::own(catalog::SAME_TABLE_SQL));

/// Appends Bind and Execute of a statement of ours.
fn put_own(server: &mut Checkout, statement: &Statement, params: &[Option<&[u8]>]) {
    f::put_bind_text(&mut server.conn.out, statement.server_name.as_bytes(), params);
    f::put_execute(&mut server.conn.out, b"", 0);
    expect_own(server);
}

/// As [`put_own`], to this portal; none with a name stays.
fn put_guard(server: &mut Checkout, portal: &[u8], statement: &Statement, params: &[Option<&[u8]>]) {
    f::put_bind_text_to(&mut server.conn.out, portal, statement.server_name.as_bytes(), params);
    f::put_execute(&mut server.conn.out, portal, 0);
    expect_own(server);
    if !portal.is_empty() {
        put_close(server, portal);
    }
}

/// Appends Close of a portal.
fn put_close(server: &mut Checkout, portal: &[u8]) {
    f::put_target(&mut server.conn.out, f::CLOSE, b'P', portal);
    server.pipeline.push(Kind::Close, Action::Own, false);
}

/// The answers to Bind and Execute.
fn expect_own(server: &mut Checkout) {
    server.pipeline.push(Kind::Bind, Action::Own, false);
    server.pipeline.push(Kind::Execute, Action::Own, false);
}

/// Appends Bind and Execute of a statement of ours without parameters.
fn put_plain(server: &mut Checkout, statement: &Statement, max: usize) {
    server.ensure_own(statement, max);
    put_own(server, statement, &[]);
}

/// What stands around a run of rows in a client's own block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The client's own BEGIN, a plain one, which is not answered yet.
    Begin,
    /// A savepoint of ours: the block was open before.
    Savepoint,
}

impl Opening {
    fn before(self) -> &'static [OwnStatement] {
        static BEGIN: [OwnStatement; 1] = [OwnStatement::new(|| Statement::own("BEGIN"))];
        // An older snapshot than the COPY's would show the guard an older table.
        static SAVEPOINT: [OwnStatement; 2] = [
            OwnStatement::new(|| Statement::own("SAVEPOINT pgsluice_run")),
            OwnStatement::new(|| {
                Statement::own(
                "SELECT CASE WHEN pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
  THEN 1 ELSE pg_catalog.concat('pgsluice: ', pg_catalog.current_setting('transaction_isolation'))::pg_catalog.int4 END",
            )
            }),
        ];
        match self {
            Self::Begin => &BEGIN,
            Self::Savepoint => &SAVEPOINT,
        }
    }

    fn after(self) -> &'static [OwnStatement] {
        static RELEASE: [OwnStatement; 1] =
            [OwnStatement::new(|| Statement::own("RELEASE SAVEPOINT pgsluice_run"))];
        match self {
            Self::Begin => &[],
            Self::Savepoint => &RELEASE,
        }
    }

    /// In a block that goes on, the unnamed portal stays behind the Sync. To Describe, Execute and Close an executed COPY or RELEASE in it is as
    /// the client's executed INSERT would be; the guard returns rows, so it is in it only where something follows.
    fn guard_portal(self) -> &'static [u8] {
        match self {
            Self::Begin => b"pgsluice_guard",
            Self::Savepoint => b"",
        }
    }

    /// Rows that what stands before it answers.
    fn rows(self) -> usize {
        match self {
            Self::Begin => 0,
            Self::Savepoint => 1,
        }
    }

    /// What puts the block back as it was.
    pub fn undo(self) -> &'static str {
        match self {
            Self::Begin => "ROLLBACK",
            Self::Savepoint => "ROLLBACK TO SAVEPOINT pgsluice_run; RELEASE SAVEPOINT pgsluice_run",
        }
    }
}

/// A run on its way.
#[derive(Debug)]
pub struct Flown {
    batch: Cargo,
    guard: Guard,
    values_rows: usize,
    opening: Opening,
    left: Instant,
}

impl Flown {
    /// Did it take the sentinel's mark? That tells nothing while its transaction goes on: `'now'` is the transaction's time, and a
    /// statement that is analysed again there, because the block's own DDL asks for it, comes to the same.
    pub fn took_mark(&self) -> bool {
        self.guard == Guard::FullWithMark
    }
}

/// What verifies the table inside a flush's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// The fingerprint.
    Full,
    /// The fingerprint, and the sentinel's mark is taken for the next flush.
    FullWithMark,
    /// The sentinel alone.
    Sentinel,
}

impl Guard {
    /// Command tags of its own for so many tables, before the Sync is obeyed.
    pub(super) fn tags(self, legs: usize) -> usize {
        match self {
            Self::Full => legs,
            Self::FullWithMark => legs + 1,
            Self::Sentinel => 1,
        }
    }

    /// The transaction's id, once the guard has answered behind so many rows.
    pub(super) fn xid(self, reply: &Reply, before: usize) -> Option<u64> {
        let row: Vec<Option<&[u8]>> = reply.rows.get(before)?.iter().map(Option::as_deref).collect();
        match self {
            Self::Full | Self::FullWithMark => catalog::decode_guard(&row),
            Self::Sentinel => catalog::decode_sentinel(&row).map(|(xid, _)| xid),
        }
    }
}
