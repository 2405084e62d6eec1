//! A histogram of fixed size, for values of any unit. Never: a clock.
//!
//! Four buckets for each power of two, so a quantile is at most a quarter too high; about one kilobyte. Recording is three
//! atomic operations.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets: values below four have one each; the last holds everything from 2^32 - 2^29 on.
const BUCKETS: usize = 124;

/// Counts of values.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

/// What of a [`Histogram`] is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spread {
    /// Half of the values are at most this.
    pub p50: u64,
    /// 99 of 100 values are at most this.
    pub p99: u64,
    /// The largest value, exactly.
    pub max: u64,
}

impl Histogram {
    /// Counts one value.
    pub fn record(&self, value: u64) {
        self.buckets[bucket(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.max.fetch_max(value, Ordering::Relaxed);
    }

    /// Zeros while nothing was counted. The quantiles are rounded up to the end of their bucket.
    pub fn spread(&self) -> Spread {
        let counts = self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed));
        let max = self.max.load(Ordering::Relaxed);
        let all: u64 = counts.iter().sum();
        let quantile = |hundredths: u64| {
            let rank = (all * hundredths).div_ceil(100);
            let mut below = 0;
            let at = counts.iter().position(|count| {
                below += count;
                below >= rank
            });
            at.map_or(0, last).min(max)
        };
        Spread { p50: quantile(50), p99: quantile(99), max }
    }
}

impl Histogram {
    /// How many values lie below each of `ends`, powers of two in rising order, and how many there are.
    pub fn cumulated<const N: usize>(&self, ends: &[u64; N]) -> ([u64; N], u64) {
        let counts = self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed));
        let below = ends.map(|end| counts[..bucket(end)].iter().sum());
        (below, counts.iter().sum())
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// All values together.
    pub fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }
}

fn bucket(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let power = value.ilog2();
    let quarter = (value >> (power - 2)) & 3;
    ((power as usize - 1) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn last(bucket: usize) -> u64 {
    let (power, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    match bucket {
        0..4 => bucket as u64,
        _ if bucket == BUCKETS - 1 => u64::MAX,
        _ => ((4 + quarter + 1) << (power - 2)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_the_bucket_that_ends_at_or_above_it() {
        let mut before = 0;
        for value in (0..5000).chain([1 << 31, (1 << 32) - 1, 1 << 40, u64::MAX]) {
            let at = bucket(value);
            assert!(at == before || at == before + 1 || value > 5000, "{value} in {at} after {before}");
            assert!(value <= last(at) && (at == 0 || value > last(at - 1)), "{value} in {at}");
            before = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_a_quarter_too_high_at_most() {
        let histogram = Histogram::default();
        assert_eq!(histogram.spread(), Spread::default());
        (1..=1000).for_each(|value| histogram.record(value));
        let Spread { p50, p99, max } = histogram.spread();
        assert!((500..=625).contains(&p50) && (990..=1000).contains(&p99), "{p50} {p99}");
        assert_eq!((max, histogram.count(), histogram.sum()), (1000, 1000, 500_500));
        let one = Histogram::default();
        one.record(u64::MAX);
        assert_eq!(one.spread(), Spread { p50: u64::MAX, p99: u64::MAX, max: u64::MAX });
    }
}
