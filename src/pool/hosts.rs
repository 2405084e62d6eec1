//! Which of several hosts a pool's next connection begins with. Never: connects.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::mutex::lock;
use crate::settings::LoadBalanceHosts;

/// What a pool remembers of its hosts.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// The one that the next connection begins with.
    next: AtomicUsize,
    /// Those that could not be had, and until when they come last.
    shunned: Mutex<Vec<(String, Instant)>>,
}

impl Hosts {
    /// Which of so many comes first.
    pub(super) fn first(&self, hosts: usize, balance: LoadBalanceHosts) -> usize {
        let next = match balance {
            LoadBalanceHosts::RoundRobin => self.next.fetch_add(1, Ordering::Relaxed),
            LoadBalanceHosts::Disable => self.next.load(Ordering::Relaxed),
        };
        next % hosts.max(1)
    }

    /// Those that come last.
    pub(super) fn shunned(&self, now: Instant) -> Vec<String> {
        let mut shunned = lock(&self.shunned);
        shunned.retain(|(_, until)| *until > now);
        shunned.iter().map(|(host, _)| host.clone()).collect()
    }

    /// A connection was had from this one, which stands there in the list.
    pub(super) fn had(&self, host: &str, at: Option<usize>, balance: LoadBalanceHosts) {
        if balance == LoadBalanceHosts::Disable {
            self.next.store(at.unwrap_or_default(), Ordering::Relaxed);
        }
        lock(&self.shunned).retain(|(shunned, _)| shunned != host);
    }

    /// This one could not be had. True: that is new.
    pub(super) fn shun(&self, host: &str, until: Instant) -> bool {
        let mut shunned = lock(&self.shunned);
        let before = shunned.len();
        shunned.retain(|(known, _)| known != host);
        let is_new = shunned.len() == before;
        shunned.push((host.to_owned(), until));
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_host_is_shunned_for_its_time_or_until_it_is_had() {
        let (hosts, now) = (Hosts::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(hosts.shun("a", at(15)) && hosts.shun("b", at(15)));
        assert!(!hosts.shun("a", at(20)), "known");
        assert_eq!(hosts.shunned(at(14)), ["b", "a"]);
        assert_eq!(hosts.shunned(at(15)), ["a"]);
        hosts.had("a", Some(0), LoadBalanceHosts::RoundRobin);
        assert!(hosts.shunned(now).is_empty());
    }

    #[test]
    fn each_comes_first_in_turn_or_the_one_that_was_good() {
        let hosts = Hosts::default();
        let firsts = |balance| [(); 4].map(|()| hosts.first(3, balance));
        assert_eq!(firsts(LoadBalanceHosts::RoundRobin), [0, 1, 2, 0]);
        hosts.had("c", Some(2), LoadBalanceHosts::Disable);
        assert_eq!(firsts(LoadBalanceHosts::Disable), [2; 4]);
        assert_eq!(hosts.first(0, LoadBalanceHosts::Disable), 0, "none is an error elsewhere");
    }
}
