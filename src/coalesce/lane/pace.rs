//! How long a lane's COMMITs take beside everything else, and so whether all its sessions (its crowd) are to leave together.
//!
//! ```text
//!   two halves take turns: while one waits for its COMMIT the other comes back, and its COMMIT waits for that of the first.
//!                          Each client is answered once in two COMMITs; everything else happens meanwhile.
//!   all together:          each client is answered once in one COMMIT and the time for everything else.
//! ```
//! A COMMIT waits for a disk or for a standby; everything else (rows that go to the server, clients that are answered and come back)
//! mostly for a processor. If the COMMIT takes longer than the rest, it is better to leave together.
//!
//! Owns: how long either recently took. Never: reads a clock, decides alone; the lane knows which sessions are expected.

use std::time::{Duration, Instant};

/// With quicker COMMITs the whole crowd is not waited for: the runtime's timer is too coarse to end a wait that is in vain.
const COMMIT_MIN: Duration = Duration::from_millis(1);

/// During slower COMMITs another flush is worth a connection of its own: the server processes its rows meanwhile. A quicker COMMIT waits
/// for a processor as much as for its disk, and two flushes at a time make that wait longer.
const COMMIT_SLOW: Duration = Duration::from_micros(500);

/// The longest that a session waits for the others, however slow COMMITs are.
const WAIT_MAX: Duration = Duration::from_millis(10);

/// The times of a lane's recent flushes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// From the guard's answer to the end.
    commit: Duration,
    /// From a flush's leaving to the guard's answer.
    rows: Duration,
    /// From a flush's end until all clients that it answered are back.
    turn: Duration,
    /// When clients were last answered, until all of them are back.
    answered: Option<Instant>,
    whole: bool,
}

impl Pace {
    /// A flush was committed.
    pub(super) fn flew(&mut self, rows: Duration, commit: Duration) {
        self.rows = lately(self.rows, rows);
        self.commit = lately(self.commit, commit);
        // Of a half only that half's way back is known.
        let turn = if self.whole { self.turn } else { self.turn * 2 };
        self.whole = self.commit >= COMMIT_MIN && self.commit > self.rows + turn;
    }

    /// Its clients are answered.
    pub(super) fn answered(&mut self, now: Instant) {
        self.answered.get_or_insert(now);
    }

    /// Nobody is away any more, be it that they are back or that they are not expected any more. The clock is read if that was
    /// waited for.
    pub(super) fn all_are_back(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(answered) = self.answered.take() {
            let turn = now().duration_since(answered);
            self.took_turn(turn);
        }
    }

    /// Some were waited for and did not come.
    pub(super) fn waited_in_vain(&mut self) {
        self.answered = None;
        self.took_turn(Duration::MAX);
    }

    /// One who took a rest says little of the others.
    fn took_turn(&mut self, turn: Duration) {
        self.turn = lately(self.turn, turn.min(self.commit * 4));
    }

    /// Is there time for the rows of another flush while one is committed?
    pub(super) fn commits_slowly(&self) -> bool {
        self.commit >= COMMIT_SLOW
    }

    /// Is the whole crowd to leave together?
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Those who are here wait for the others no longer than they would wait for a COMMIT.
    pub(super) fn longest_wait(&self) -> Duration {
        self.commit.min(WAIT_MAX)
    }
}

/// An average that forgets.
pub(super) fn lately(before: Duration, now: Duration) -> Duration {
    (before * 7 + now) / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// So many rounds of a crowd: its rows, COMMITs of this length, and this long until it is back, whole and in halves.
    fn is_whole_after(
        rounds: usize,
        pace: &mut Pace,
        commit: Duration,
        whole: Duration,
        half: Duration,
    ) -> bool {
        let mut now = Instant::now();
        for _ in 0..rounds {
            pace.flew(MS / 10, commit);
            pace.answered(now);
            now += if pace.is_whole() { whole } else { half };
            pace.all_are_back(|| now);
        }
        pace.is_whole()
    }

    #[test]
    fn all_leave_together_where_commits_take_longer_than_all_else() {
        let mut pace = Pace::default();
        assert!(is_whole_after(100, &mut pace, 5 * MS, MS, MS / 2));
        assert_eq!(pace.longest_wait().as_millis(), 4, "rounded down: an average that comes near");
        assert!(!is_whole_after(100, &mut pace, MS / 10, MS, MS / 2), "a quick disk");
        assert!(is_whole_after(100, &mut pace, 5 * MS, MS, MS / 2), "and a slow one again");
        assert!(!is_whole_after(100, &mut pace, 5 * MS, 8 * MS, 4 * MS), "clients that think");
        assert!(is_whole_after(200, &mut pace, 500 * MS, MS, MS));
        assert_eq!(pace.longest_wait(), WAIT_MAX);
    }

    #[test]
    fn one_who_rests_does_not_change_it_for_long() {
        let mut pace = Pace::default();
        assert!(is_whole_after(100, &mut pace, 5 * MS, MS, MS));
        assert!(is_whole_after(1, &mut pace, 5 * MS, 60_000 * MS, MS));
        assert!(is_whole_after(20, &mut pace, 5 * MS, MS, MS));
    }

    #[test]
    fn who_does_not_come_is_not_waited_for_often() {
        let mut pace = Pace::default();
        assert!(is_whole_after(100, &mut pace, 5 * MS, MS, MS));
        let mut waits = 0;
        while pace.is_whole() {
            waits += 1;
            pace.waited_in_vain();
            pace.flew(MS / 10, 5 * MS);
        }
        assert!(waits < 4, "{waits} waits");
    }

    #[test]
    fn what_nobody_waited_for_is_not_measured() {
        let mut pace = Pace::default();
        pace.all_are_back(|| unreachable!("the clock is not read"));
        assert_eq!(pace.turn, Duration::ZERO);
    }
}
