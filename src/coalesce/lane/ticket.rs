//! A session's handle on a batch.
//!
//! Owns: the outcome, which is set once, and the task that it wakes; what the session's messages count as. Never: knows the batch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Poll, Waker};

use crate::mutex::lock;
use crate::pool::Stats;

/// What became of a unit of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Committed.
    Inserted,
    /// Not stored; the session runs its own messages as they were sent.
    RunSingly,
    /// The connection was lost at the commit.
    Unknown,
}

/// What the server had to say of one row.
#[derive(Debug, Clone)]
pub struct RowNotice {
    /// Which row of the unit, from 0; `None`: the COMMIT's own.
    pub row: Option<usize>,
    /// NoticeResponse, whole.
    pub message: Vec<u8>,
}

/// A session's end of a batch; kept and used again.
#[derive(Debug, Default)]
pub struct Ticket {
    pub(super) client: u64,
    stage: AtomicU8,
    outcome: AtomicU8,
    waker: Mutex<Option<Waker>>,
    work: [AtomicU32; 6],
    pub(super) noticed: AtomicBool,
    pub(super) notices: Mutex<Vec<RowNotice>>,
    pub(super) answer: Mutex<Vec<u8>>,
}

/// Where a unit of rows is. Its flight moves it from `Waits` to `Aboard`, and back when it has to go again; its session from
/// `Waits` to `Out`, and when it ends, from wherever it is.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Stage {
    /// In its lane, or for a connection.
    Waits,
    /// On its way, to be stored or not.
    Aboard,
    /// Taken back; or on its way, and nobody waits for it any more.
    Out,
}

/// What messages are in the counters of their pool, once they are answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Queries and Executes.
    pub statements: u32,
    /// Transactions of the client's.
    pub transactions: u32,
    /// Parse messages.
    pub parses: u32,
    /// Bind messages.
    pub binds: u32,
    /// Bytes that the client sent.
    pub received: u32,
    /// Bytes of its answers.
    pub sent: u32,
}

impl Work {
    fn words(self) -> [u32; 6] {
        let Self { statements, transactions, parses, binds, received, sent } = self;
        [statements, transactions, parses, binds, received, sent]
    }

    /// Both.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            statements: self.statements + more.statements,
            transactions: self.transactions + more.transactions,
            parses: self.parses + more.parses,
            binds: self.binds + more.binds,
            received: self.received + more.received,
            sent: self.sent + more.sent,
        }
    }

    /// Counts what no server had to do with.
    pub fn count(self, stats: &Stats) {
        count_work(stats, self.words().map(u64::from));
    }
}

/// In the order of [`Work::words`].
pub(super) fn count_work(stats: &Stats, work: [u64; 6]) {
    let to = [
        &stats.query_count,
        &stats.xact_count,
        &stats.client_parse_count,
        &stats.bind_count,
        &stats.received,
        &stats.sent,
    ];
    for (to, n) in to.into_iter().zip(work) {
        to.fetch_add(n, Ordering::Relaxed);
    }
}

impl Ticket {
    /// For the client of this id.
    pub fn new(client: u64) -> Self {
        Self { client, ..Self::default() }
    }

    fn moves(&self, from: Stage, to: Stage) -> bool {
        self.stage.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The unit joins a batch.
    pub(super) fn waits(&self) {
        self.stage.store(Stage::Waits as u8, Ordering::Relaxed);
    }

    /// The unit goes to the server from here on. False: it was taken back.
    pub(super) fn boards(&self) -> bool {
        self.moves(Stage::Waits, Stage::Aboard)
    }

    /// The unit did not stay on the server, and waits to go again. The session looks whether it was asked meanwhile to take it back.
    pub(super) fn goes_ashore(&self) {
        if self.moves(Stage::Aboard, Stage::Waits) {
            self.wake();
        }
    }

    /// Takes the unit back. False: it is on its way. A ticket whose unit was taken back is of no more use: its flight may have it yet.
    pub(super) fn stays_behind(&self) -> bool {
        self.moves(Stage::Waits, Stage::Out)
    }

    /// Its session ends: nobody waits for the outcome.
    pub(super) fn give_up(&self) {
        self.stage.store(Stage::Out as u8, Ordering::Release);
    }

    /// It was taken back, or given up.
    pub(super) fn is_out(&self) -> bool {
        self.stage.load(Ordering::Acquire) == Stage::Out as u8
    }

    /// Hot path. What the unit that is offered next comes to; said before it is offered.
    pub fn set_work(&self, work: Work) {
        for (to, n) in self.work.iter().zip(work.words()) {
            to.store(n, Ordering::Relaxed);
        }
    }

    pub(super) fn work(&self) -> [u64; 6] {
        self.work.each_ref().map(|n| n.load(Ordering::Relaxed).into())
    }

    /// Hot path. What the server said of the unit's rows, in their order, if it did; to be passed on with the answers.
    pub fn take_notices(&self) -> Option<Vec<RowNotice>> {
        let any = self.noticed.load(Ordering::Acquire);
        any.then(|| {
            self.noticed.store(false, Ordering::Relaxed);
            std::mem::take(&mut *lock(&self.notices))
        })
    }

    /// With [`Outcome::Inserted`]: what the server answered to the unit's statements, where they were not a COPY: DataRow and
    /// NoticeResponse messages and a CommandComplete for each, whole.
    pub fn take_answer(&self) -> Vec<u8> {
        std::mem::take(&mut *lock(&self.answer))
    }

    pub(super) fn resolve(&self, outcome: Outcome) {
        let code = match outcome {
            Outcome::Inserted => 1,
            Outcome::RunSingly => 2,
            Outcome::Unknown => 3,
        };
        self.outcome.store(code, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = lock(&self.waker).as_ref() {
            waker.wake_by_ref();
        }
    }

    /// The outcome, once. Registers the task while there is none; a session's task stays registered for its next rows.
    pub fn poll(&self, cx: &std::task::Context<'_>) -> Poll<Outcome> {
        let take = || match self.outcome.swap(0, Ordering::AcqRel) {
            1 => Some(Outcome::Inserted),
            2 => Some(Outcome::RunSingly),
            3 => Some(Outcome::Unknown),
            _ => None,
        };
        if let Some(outcome) = take() {
            return Poll::Ready(outcome);
        }
        let mut registered = lock(&self.waker);
        if !registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *registered = Some(cx.waker().clone());
        }
        drop(registered);
        take().map_or(Poll::Pending, Poll::Ready)
    }
}
