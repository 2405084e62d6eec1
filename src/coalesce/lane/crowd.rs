//! The sessions that use a lane at the same time, and whether a batch is to wait for them.
//!
//! Owns: their number, as far as a lane can know: sessions in the batch, in flight, and answered a moment ago. Never: reads a clock,
//! decides alone; the lane knows what is under way.
//!
//! ```text
//!   clients in a cycle, each with one unit:   wait in the batch -> fly -> answered, away -> back with the next one
//!   two halves of them take turns: one flies, while the other is answered, works and comes back.
//!   A flush costs the server as much as a hundred rows. If a batch left with the first clients that are back, there would soon
//!   be as many flushes as clients; so it waits until half are here, unless they recently did not come.
//! ```

/// So few sessions gain less by a COPY of their rows than each loses by its wait for the other.
pub(super) const FEW: usize = 2;

/// Most batches that do not wait after one waited in vain.
const HURRIED_MAX: u32 = 128;

/// Who uses a lane.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Sessions that were answered and are not back.
    away: usize,
    /// Sessions that lately used the lane at the same time.
    expected: usize,
    /// Batches that are still not to wait, and how many that will be the next time one waits in vain.
    hurried: u32,
    penalty: u32,
}

impl Crowd {
    /// Somebody is back, or new. True: nobody is away.
    pub(super) fn came(&mut self) -> bool {
        self.away = self.away.saturating_sub(1);
        self.away == 0
    }

    /// So many have their answer.
    pub(super) fn answered(&mut self, sessions: usize) {
        self.away += sessions;
    }

    /// Those that stay away are not waited for much longer.
    pub(super) fn forget_some(&mut self) {
        self.away -= self.away.div_ceil(8);
    }

    /// A batch leaves; `here` are in it or under way. Slow to forget: a crowd once taken for small would leave in ever
    /// smaller batches. True: nobody is away.
    pub(super) fn left(&mut self, here: usize) -> bool {
        self.expected = (here + self.away).max(self.expected - self.expected.div_ceil(8));
        self.forget_some();
        self.hurried = self.hurried.saturating_sub(1);
        self.away == 0
    }

    /// A batch waited for them until half were here.
    pub(super) fn kept_its_word(&mut self) {
        self.penalty = 0;
    }

    /// A batch waited for them, and they did not come: there are only those who are `here`.
    pub(super) fn stayed_away(&mut self, here: usize) {
        (self.away, self.expected) = (0, here);
        self.penalty = self.penalty.saturating_mul(2).clamp(1, HURRIED_MAX);
        self.hurried = self.penalty;
    }

    /// Too few for a COPY to be worth a wait.
    pub(super) fn is_few(&self) -> bool {
        self.expected <= FEW
    }

    /// More than one at a time.
    pub(super) fn is_several(&self) -> bool {
        self.expected > 1
    }

    /// Are these half of them?
    pub(super) fn is_half(&self, sessions: usize) -> bool {
        sessions * 2 >= self.expected
    }

    /// Will so many become half of them soon, or all of them if the `whole` crowd is to leave together, so that nothing is lost by a wait?
    pub(super) fn is_coming(&self, waiting: usize, whole: bool) -> bool {
        let enough = if whole { self.is_complete(waiting) } else { self.is_half(waiting) };
        !self.is_few() && !enough && self.away > 0 && !self.is_hurried()
    }

    /// Batches are not to wait for anybody.
    pub(super) fn is_hurried(&self) -> bool {
        self.hurried > 0
    }

    /// Is nobody away, who was with `here`?
    pub(super) fn is_complete(&self, here: usize) -> bool {
        here >= self.expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One that knows `n` clients, all of them just answered.
    fn of(n: usize) -> Crowd {
        let mut crowd = Crowd::default();
        crowd.left(n);
        crowd.answered(n);
        crowd
    }

    #[test]
    fn half_of_a_crowd_is_waited_for() {
        let mut crowd = of(8);
        for waiting in 1..4 {
            crowd.came();
            assert!(crowd.is_coming(waiting, false), "{waiting} of 8");
        }
        crowd.came();
        assert!(!crowd.is_coming(4, false));
        assert!(crowd.is_complete(8) && !crowd.is_complete(7));
    }

    #[test]
    fn all_of_a_crowd_are_waited_for_where_they_leave_together() {
        let mut crowd = of(8);
        for waiting in 1..8 {
            crowd.came();
            assert!(crowd.is_coming(waiting, true), "{waiting} of 8");
        }
        assert!(crowd.came() && !crowd.is_coming(8, true));
        assert!(!crowd.is_coming(7, true), "nobody is away");
    }

    #[test]
    fn one_client_or_two_are_no_crowd() {
        assert!(!Crowd::default().is_coming(1, false));
        assert!(!of(1).is_coming(1, false) && !of(2).is_coming(1, false));
        assert!(of(3).is_coming(1, false));
    }

    #[test]
    fn nobody_is_waited_for_who_is_not_away() {
        let mut crowd = of(8);
        let back: Vec<bool> = (0..8).map(|_| crowd.came()).collect();
        assert_eq!(
            back.iter().position(|all| *all),
            Some(7),
            "one of them is forgotten by a batch that leaves"
        );
        assert!(!crowd.is_coming(1, false));
    }

    #[test]
    fn a_wait_in_vain_makes_the_next_ones_rare() {
        let (mut crowd, mut waits) = (Crowd::default(), 0);
        for _ in 0..1000 {
            // All come once and never again.
            crowd.answered(8);
            if crowd.is_coming(1, false) {
                waits += 1;
                crowd.stayed_away(1);
            }
            crowd.left(1);
        }
        assert!((5..40).contains(&waits), "{waits} waits");
        while !crowd.is_coming(1, false) {
            crowd.answered(8);
            crowd.left(1);
        }
        crowd.kept_its_word();
        crowd.stayed_away(1);
        assert_eq!(crowd.hurried, 1, "one that was worth it makes good for all");
    }

    proptest! {
        #[test]
        fn whoever_is_gone_is_forgotten(n in 0..1000usize, here in 0..4usize) {
            let mut crowd = of(n);
            for _ in 0..100 {
                crowd.left(here);
            }
            prop_assert!(crowd.expected <= here.max(1) && crowd.away == 0);
            prop_assert!(!crowd.is_coming(here, false));
        }
    }
}
