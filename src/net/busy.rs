//! Busy polling (`busy_poll`): polling again instead of sleeping, for a session that is alone on its worker, and for a flush of many
//! sessions' rows.
//!
//! A sleeping thread wakes late: tens of microseconds, twice in each round trip through a proxy. While one session has
//! the worker to itself, and the other side has recently answered sooner than `busy_poll`, its waits are spent polling. So are waits
//! for flushes that have recently ended sooner: otherwise each client that comes back meanwhile would wake the worker.
//! Owns: when polling is worth it. Never: delays another task (tasks run between two polls); goes on after it was in vain.

use std::cell::Cell;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Waits on a worker that sleep after two sessions were active at once, or the core was lost; doubled each time that happens again, up
/// to [`CROWDED_MAX`]: with many sessions polling delays nobody, but wastes CPU.
const CROWDED: u32 = 256;

/// See [`CROWDED`].
const CROWDED_MAX: u32 = 1 << 11;

/// A poll that comes this late means that another thread or process had the core, and needs it.
const CORE_LOST: Duration = Duration::from_millis(1);

/// Most waits of one session that sleep after one was polled in vain.
const VAIN_MAX: u8 = 127;

/// One thread.
#[derive(Debug, Clone, Copy)]
struct Worker {
    /// Changes whenever a session of this worker receives something.
    turns: u32,
    /// Waits that still sleep.
    asleep: u32,
    /// As many as the next time.
    crowded: u32,
}

impl Worker {
    const NEW: Self = Self { turns: 0, asleep: 0, crowded: CROWDED };
}

thread_local! {
    static WORKER: Cell<Worker> = const { Cell::new(Worker::NEW) };
}

/// A session's waits.
#[derive(Debug, Default)]
pub struct BusyWait {
    wait: Wait,
    /// How many waits sleep after one in vain, and how many of them are left.
    vain: u8,
    asleep: u8,
}

/// How the present wait is spent.
#[derive(Debug, Default, Clone, Copy)]
enum Wait {
    /// There is none.
    #[default]
    None,
    /// Polling since `began`, last at `looked`; `turns` of the worker at that time.
    Looking { began: Instant, looked: Instant, turns: u32 },
    /// Asleep.
    Asleep,
}

impl BusyWait {
    /// Hot path. The session has nothing to do: has its task polled again soon, without sleep, if that is worth it. `limit`: the longest
    /// wait that is spent polling; zero: none.
    pub fn look_again(&mut self, limit: Duration, cx: &Context<'_>) {
        if limit.is_zero() || matches!(self.wait, Wait::Asleep) {
            return;
        }
        let mut worker = WORKER.get();
        self.wait = self.next(&mut worker, limit);
        WORKER.set(worker);
        if matches!(self.wait, Wait::Looking { .. }) {
            after_the_others(cx);
        }
    }

    fn next(&mut self, worker: &mut Worker, limit: Duration) -> Wait {
        match self.wait {
            Wait::Asleep => Wait::Asleep,
            Wait::None if worker.asleep > 0 => {
                worker.asleep -= 1;
                Wait::Asleep
            }
            Wait::None if self.asleep > 0 => {
                self.asleep -= 1;
                Wait::Asleep
            }
            Wait::None => {
                let now = Instant::now();
                Wait::Looking { began: now, looked: now, turns: worker.turns }
            }
            Wait::Looking { began, looked, turns } => {
                let now = Instant::now();
                if turns != worker.turns || now.duration_since(looked) > CORE_LOST {
                    worker.asleep = worker.crowded;
                    worker.crowded = worker.crowded.saturating_mul(2).min(CROWDED_MAX);
                    Wait::Asleep
                } else if now.duration_since(began) > limit {
                    self.vain = self.vain.saturating_mul(2).clamp(1, VAIN_MAX);
                    self.asleep = self.vain;
                    Wait::Asleep
                } else {
                    Wait::Looking { began, looked: now, turns }
                }
            }
        }
    }

    /// Hot path. The wait is over.
    pub fn over(&mut self) {
        let mut worker = WORKER.get();
        if matches!(self.wait, Wait::Looking { .. }) {
            self.vain = 0;
            worker.crowded = CROWDED;
        }
        self.wait = Wait::None;
        worker.turns = worker.turns.wrapping_add(1);
        WORKER.set(worker);
    }
}

/// Flushes of a worker whose waits are slept through after a look at one had lost the core; doubled each time that happens again, up to
/// [`CROWDED_MAX`], and halved by each wait that was spent looking.
const NEEDED: u32 = 8;

/// One thread's waits for flushes.
#[derive(Debug, Clone, Copy)]
struct Flushes {
    /// Those that are still slept through.
    asleep: u32,
    /// As many as the next time.
    needed: u32,
}

impl Flushes {
    const NEW: Self = Self { asleep: 0, needed: NEEDED };

    /// Is the next wait to be spent looking?
    fn looks(&mut self) -> bool {
        let looks = self.asleep == 0;
        self.asleep = self.asleep.saturating_sub(1);
        looks
    }

    fn lost_the_core(&mut self) {
        self.asleep = self.needed;
        self.needed = self.needed.saturating_mul(2).min(CROWDED_MAX);
    }

    fn kept_the_core(&mut self) {
        self.needed = (self.needed / 2).max(NEEDED);
    }
}

thread_local! {
    static FLUSHES: Cell<Flushes> = const { Cell::new(Flushes::NEW) };
}

fn of_flushes<T>(what: impl FnOnce(&mut Flushes) -> T) -> T {
    let mut flushes = FLUSHES.get();
    let out = what(&mut flushes);
    FLUSHES.set(flushes);
    out
}

/// The wait for the end of one flush.
#[derive(Debug)]
pub struct BusyFlush {
    /// Since when it is spent looking, and when that was done last; `None`: it is slept through.
    looking: Option<(Instant, Instant)>,
}

impl BusyFlush {
    /// `worth`: looking may be worth it.
    pub fn new(worth: bool, now: Instant) -> Self {
        Self { looking: (worth && of_flushes(Flushes::looks)).then_some((now, now)) }
    }

    /// Hot path. It has not ended: has the task polled again soon, without sleep, for no longer than `limit` altogether. Whoever waits
    /// for this core has it first: clients that share it with the worker then come back several at a time.
    pub fn look_again(&mut self, limit: Duration, cx: &Context<'_>) {
        let Some((began, looked)) = self.looking else { return };
        self.looking = Self::next(began, looked, Instant::now(), limit);
        if self.looking.is_some() {
            after_the_others(cx);
            std::thread::yield_now();
        }
    }

    fn next(began: Instant, looked: Instant, now: Instant, limit: Duration) -> Option<(Instant, Instant)> {
        if now.duration_since(looked) > CORE_LOST {
            of_flushes(Flushes::lost_the_core);
            return None;
        }
        (now.duration_since(began) <= limit).then_some((began, now))
    }
}

impl Drop for BusyFlush {
    fn drop(&mut self) {
        if self.looking.is_some() {
            of_flushes(Flushes::kept_the_core);
        }
    }
}

/// Rows of each session from which on a flush is one of pipelines.
const ROWS_OF_A_PIPELINE: usize = 8;

thread_local! {
    /// Flushes of pipelines that this worker waits for.
    static PIPELINES: Cell<u32> = const { Cell::new(0) };
}

/// A flush of pipelines is under way. Meanwhile the worker yields its core to whatever waits for it before it goes to sleep: a client
/// that is still writing, the server that is still answering. What they have to say is then taken in at once, not bit by bit.
#[derive(Debug)]
pub struct PipelinesFlush(());

impl PipelinesFlush {
    /// `None`: with so many rows of so many sessions it is none. Of one session's it is not known whether others come.
    pub fn begin(rows: usize, sessions: usize) -> Option<Self> {
        let is_one = sessions > 1 && rows / sessions >= ROWS_OF_A_PIPELINE;
        is_one.then(|| {
            PIPELINES.set(PIPELINES.get().saturating_add(1));
            Self(())
        })
    }
}

impl Drop for PipelinesFlush {
    fn drop(&mut self) {
        PIPELINES.set(PIPELINES.get().saturating_sub(1));
    }
}

/// Hot path. The worker has nothing to do and is about to sleep.
pub fn before_sleep() {
    if PIPELINES.get() > 0 {
        std::thread::yield_now();
    }
}

/// Has the task polled again once the sockets were asked and everybody else had a turn.
fn after_the_others(cx: &Context<'_>) {
    let mut cx = Context::from_waker(cx.waker());
    let mut turn = std::pin::pin!(tokio::task::yield_now());
    // The request remains; the future itself has done its work.
    let _: Poll<()> = turn.as_mut().poll(&mut cx);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3600);

    fn looks(wait: &mut BusyWait, worker: &mut Worker, limit: Duration) -> bool {
        wait.wait = wait.next(worker, limit);
        matches!(wait.wait, Wait::Looking { .. })
    }

    #[test]
    fn a_session_alone_looks_until_it_gets_something() {
        let (mut wait, mut worker) = (BusyWait::default(), Worker::NEW);
        assert!(looks(&mut wait, &mut worker, LIMIT));
        wait.over();
        assert!(looks(&mut wait, &mut worker, LIMIT));
    }

    #[test]
    fn who_is_not_alone_sleeps_and_so_do_the_next() {
        let (mut wait, mut worker) = (BusyWait::default(), Worker::NEW);
        assert!(looks(&mut wait, &mut worker, LIMIT));
        // Once more, and it is twice as many.
        for sleeps in [CROWDED, 2 * CROWDED, 4 * CROWDED] {
            worker.turns += 1;
            assert!(!looks(&mut wait, &mut worker, LIMIT));
            for _ in 0..sleeps {
                wait.over();
                assert!(!looks(&mut wait, &mut worker, LIMIT));
            }
            wait.over();
            assert!(looks(&mut wait, &mut worker, LIMIT));
        }
        for _ in 0..10 {
            worker.turns += 1;
            assert!(!looks(&mut wait, &mut worker, LIMIT));
            assert!(worker.asleep <= CROWDED_MAX);
            (wait.wait, worker.asleep) = (Wait::None, 0);
            assert!(looks(&mut wait, &mut worker, LIMIT));
        }
    }

    #[test]
    fn waits_in_vain_become_rare() {
        let (mut wait, mut worker) = (BusyWait::default(), Worker::NEW);
        let mut looked = 0;
        for _ in 0..1000 {
            // Nothing is faster than no time at all.
            while looks(&mut wait, &mut worker, Duration::ZERO) {
                looked += 1;
            }
            worker.asleep = 0;
            wait.over();
        }
        assert!((1..30).contains(&looked), "looked {looked} times");
        wait = BusyWait { wait: Wait::None, vain: VAIN_MAX, asleep: 0 };
        assert!(looks(&mut wait, &mut worker, LIMIT));
        wait.over();
        assert_eq!(wait.vain, 0, "one that was worth it makes good for all");
    }

    #[test]
    fn a_flush_is_looked_for_no_longer_than_the_limit() {
        let begin = Instant::now();
        let at = |micros| begin + Duration::from_micros(micros);
        let limit = Duration::from_micros(500);
        assert_eq!(BusyFlush::next(begin, begin, at(400), limit), Some((begin, at(400))));
        assert_eq!(BusyFlush::next(begin, at(400), at(501), limit), None);
        assert!(FLUSHES.get().asleep == 0, "no core was lost");
        assert!(BusyFlush::new(false, begin).looking.is_none());
    }

    #[test]
    fn where_the_core_is_needed_flushes_are_slept_through() {
        let begin = Instant::now();
        let late = begin + 2 * CORE_LOST;
        for sleeps in [NEEDED, 2 * NEEDED, 4 * NEEDED] {
            assert_eq!(BusyFlush::next(begin, begin, late, LIMIT), None);
            for _ in 0..sleeps {
                assert!(BusyFlush::new(true, begin).looking.is_none());
            }
        }
        for _ in 0..10 {
            drop(BusyFlush::new(true, begin));
        }
        assert_eq!(FLUSHES.get().needed, NEEDED, "those that kept the core make good for it");
        for _ in 0..20 {
            BusyFlush::next(begin, begin, late, LIMIT);
        }
        assert_eq!(FLUSHES.get().asleep, CROWDED_MAX);
    }

    #[test]
    fn nothing_is_looked_at_when_it_is_switched_off() {
        let mut wait = BusyWait::default();
        wait.look_again(Duration::ZERO, &Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(wait.wait, Wait::None));
    }

    #[test]
    fn a_flush_of_pipelines_is_one_of_many_rows_of_each_of_several_sessions() {
        assert!(PipelinesFlush::begin(64, 1).is_none());
        assert!(PipelinesFlush::begin(15, 2).is_none());
        assert!(PipelinesFlush::begin(0, 0).is_none());
        let first = PipelinesFlush::begin(16, 2);
        let second = PipelinesFlush::begin(4096, 64);
        assert!(first.is_some() && second.is_some());
        assert_eq!(PIPELINES.get(), 2);
        drop(first);
        drop(second);
        assert_eq!(PIPELINES.get(), 0);
    }
}
