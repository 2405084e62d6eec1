//! The clients that wait for a server connection, the logins under way for them, and the logins that failed.
//!
//! Owns: for which client the next login is made, which clients get the error of a failed one, when it is tried again. Never: a
//! connection.
//!
//! In session mode a login carries the settings that a client asked for, so its outcome concerns only clients that asked for the
//! same: they get the server's error, or wait while it hangs. Only a failure that a login without settings would have had as well
//! counts as the server's, and makes all clients wait before the next try.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::checkout::CheckoutError;
use crate::proto::vars::VarSet;
use crate::server::connect::{Concerns, ConnectError};
use crate::server::{ServerConn, same_startup};

/// The first pause after a failed login.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// The longest pause while somebody waits. A try that takes as long holds up no other.
const RETRY_WAITED_FOR: Duration = Duration::from_secs(1);

/// Those who came so long after somebody are not served before: until then, because what becomes free may be for them alone.
const PASSED_OVER: Duration = Duration::from_millis(200);

/// What a login asks for; `None`: nothing, it is for whoever shares the connection.
type Asked = Option<Arc<VarSet>>;

/// A client in the queue, or pgsluice itself.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) tx: oneshot::Sender<Result<Box<ServerConn>, CheckoutError>>,
    pub(super) since: Instant,
    /// It asks the server something of our own: no client waits for that.
    pub(super) asks: bool,
    /// See [`ServerConn::startup`].
    startup: Asked,
    /// With that; the same for all who ask for the same.
    trouble: Trouble,
}

impl Waiter {
    fn is_gone(&self) -> bool {
        self.tx.is_closed()
    }
}

/// A login under way.
#[derive(Debug, Clone)]
pub(super) struct Underway {
    pub(super) startup: Asked,
    pub(super) began: Instant,
}

/// Tries that failed in a row, why the last one did, and when the next one may be made.
#[derive(Debug, Clone, Default)]
struct Trouble {
    failures: u32,
    why: Option<Arc<ConnectError>>,
    retry_at: Option<Instant>,
}

impl Trouble {
    fn pauses(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| now < at)
    }

    /// One more. How long the pause is.
    fn grow(&mut self, why: &Arc<ConnectError>, longest: Duration, now: Instant) -> Duration {
        let pause = RETRY_FIRST.saturating_mul(1 << self.failures.min(5));
        let pause = pause.min(longest.min(RETRY_WAITED_FOR).max(RETRY_FIRST));
        *self = Self { failures: self.failures + 1, why: Some(Arc::clone(why)), retry_at: Some(now + pause) };
        pause
    }
}

/// What a login that failed leads to.
#[derive(Debug)]
pub(super) enum Failed {
    /// These are told; others may have their login now.
    Tell(VecDeque<Waiter>),
    /// It is tried again after that pause; others may have their login now.
    TryAgain(Duration),
    /// Nobody's login is made before that pause is over.
    Pause(Duration),
    /// Those who wait get one of the connections that there are.
    Nothing,
}

/// The queue of one pool.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    logins: Vec<Underway>,
    /// The server's, whatever is asked for.
    trouble: Trouble,
    /// When a login failed that asked for nothing of its own, and nobody has succeeded since.
    failed_at: Option<Instant>,
    /// The last login succeeded.
    lets_in: bool,
}

impl Queue {
    /// Nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// In order of arrival.
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| !waiter.is_gone())
    }

    /// Logins under way.
    pub(super) fn logins(&self) -> usize {
        self.logins.len()
    }

    /// The server lets nobody in.
    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.failures > 0
    }

    /// A login that nobody waits for is not to be made now: one has failed less than `pause` ago.
    pub(super) fn hesitates(&self, pause: Duration, now: Instant) -> bool {
        self.failed_at.is_some_and(|at| now.saturating_duration_since(at) < pause)
    }

    /// So many such logins make sense at a time: one, while it is not known whether any succeeds.
    pub(super) fn tries(&self) -> usize {
        if self.lets_in { usize::MAX } else { usize::from(self.logins.is_empty()) }
    }

    /// Why there is no connection for who asks for this.
    pub(super) fn why(&self, startup: Option<&Arc<VarSet>>) -> Option<Arc<ConnectError>> {
        let own = self.mate(startup).and_then(|mate| mate.trouble.why.clone());
        own.or_else(|| self.trouble.why.clone())
    }

    /// The login that has been under way longest, in place of why one failed.
    pub(super) fn unanswered(&self) -> Option<ConnectError> {
        let began = self.logins.iter().map(|login| login.began).min()?;
        Some(ConnectError::Unanswered(began.elapsed()))
    }

    /// Somebody waits for a connection that is for this.
    pub(super) fn waits_for(&self, startup: Option<&Arc<VarSet>>) -> bool {
        self.mate(startup).is_some()
    }

    fn mate(&self, startup: Option<&Arc<VarSet>>) -> Option<&Waiter> {
        self.waiters().find(|waiter| same_startup(waiter.startup.as_ref(), startup))
    }

    /// The last in the queue from here on.
    pub(super) fn push(
        &mut self,
        tx: oneshot::Sender<Result<Box<ServerConn>, CheckoutError>>,
        startup: Asked,
        asks: bool,
    ) {
        let trouble = self.mate(startup.as_ref()).map(|mate| mate.trouble.clone()).unwrap_or_default();
        self.waiters.push_back(Waiter { tx, since: Instant::now(), asks, startup, trouble });
    }

    /// The first to whom this connection is of use. In session mode one that was logged in with other settings is not.
    pub(super) fn take_first(&mut self, server: &ServerConn) -> Option<Waiter> {
        let at = self.waiters.iter().position(|waiter| server.is_for(waiter.startup.as_ref()))?;
        self.waiters.remove(at)
    }

    /// Those who do not wait any more have no place.
    pub(super) fn forget_gone(&mut self) {
        self.waiters.retain(|waiter| !waiter.is_gone());
    }

    /// What the next login is to ask for. `None`: none is to be made now.
    pub(super) fn next_login(&self, now: Instant) -> Option<Asked> {
        self.next_without(now).map(|waiter| waiter.startup.clone())
    }

    /// This connection is to make room: somebody whom it is not for waits, and came so long before the first whom it is for. Not for
    /// one whose login failed: another may.
    pub(super) fn is_owed_to_another(&self, server: &ServerConn, now: Instant) -> bool {
        let is_owed = |next: &&Waiter| {
            !self.is_in_trouble() && next.trouble.failures == 0 && !server.is_for(next.startup.as_ref())
        };
        let next = self.next_without(now).filter(is_owed);
        let first = self.mate(server.startup.as_ref());
        next.zip(first)
            .is_some_and(|(next, first)| first.since.saturating_duration_since(next.since) >= PASSED_OVER)
    }

    /// The first who has no login under way, among those whose logins failed least often, so that one whose settings make them hang
    /// is before nobody. `None`: no login is to be made now.
    fn next_without(&self, now: Instant) -> Option<&Waiter> {
        let probing = |login: &Underway| now.saturating_duration_since(login.began) < RETRY_WAITED_FOR;
        let in_trouble = self.is_in_trouble();
        if in_trouble && (self.trouble.pauses(now) || self.logins.iter().any(probing)) {
            return None;
        }
        let mut others: Vec<&Underway> = self.logins.iter().collect();
        let mut best: Option<&Waiter> = None;
        for waiter in self.waiters() {
            let is_its = |login: &&Underway| same_startup(login.startup.as_ref(), waiter.startup.as_ref());
            if let Some(at) = others.iter().position(is_its) {
                others.swap_remove(at);
                continue;
            }
            let Trouble { failures, .. } = waiter.trouble;
            // While there is trouble one try at a time is enough to see it pass.
            let has_one = || self.logins.iter().any(|login| is_its(&login));
            if waiter.trouble.pauses(now) || ((in_trouble || failures > 0) && has_one()) {
                continue;
            }
            if best.is_none_or(|best| failures < best.trouble.failures) {
                best = Some(waiter);
            }
            if failures == 0 {
                break;
            }
        }
        best
    }

    /// A login that asks for this is under way from here on, until [`Queue::succeeded`] or [`Queue::failed`].
    pub(super) fn begin(&mut self, startup: Asked) -> Underway {
        let login = Underway { startup, began: Instant::now() };
        self.logins.push(login.clone());
        login
    }

    /// It is not under way any more.
    pub(super) fn end(&mut self, ended: &Underway) {
        let is_it = |login: &Underway| {
            login.began == ended.began && same_startup(login.startup.as_ref(), ended.startup.as_ref())
        };
        if let Some(at) = self.logins.iter().position(is_it) {
            self.logins.swap_remove(at);
        }
    }

    fn mates_of<'a>(&'a mut self, login: &'a Underway) -> impl Iterator<Item = &'a mut Waiter> {
        self.waiters.iter_mut().filter(|waiter| same_startup(waiter.startup.as_ref(), login.startup.as_ref()))
    }

    /// All trouble is over that it could have met.
    pub(super) fn succeeded(&mut self, login: &Underway) {
        self.end(login);
        (self.failed_at, self.lets_in) = (None, true);
        self.trouble = Trouble::default();
        self.mates_of(login).for_each(|mate| mate.trouble = Trouble::default());
    }

    /// `alive`: there are connections that come back; `longest`: the longest pause that is allowed.
    pub(super) fn failed(
        &mut self,
        login: &Underway,
        error: &Arc<ConnectError>,
        alive: bool,
        longest: Duration,
    ) -> Failed {
        self.end(login);
        let now = Instant::now();
        let plain = login.startup.as_ref().is_none_or(|own| own.is_empty());
        if plain {
            (self.failed_at, self.lets_in) = (Some(now), false);
        }
        match error.concerns() {
            Concerns::Asked => self.answered(login, error, alive),
            // Direct, it would have heard the same.
            Concerns::Unknown if !plain && error.response().is_some() => self.answered(login, error, alive),
            Concerns::Unknown if !plain => {
                let pauses = self.mates_of(login).map(|mate| mate.trouble.grow(error, longest, now));
                pauses.max().map_or(Failed::Tell(VecDeque::new()), Failed::TryAgain)
            }
            Concerns::Server | Concerns::Unknown => Failed::Pause(self.trouble.grow(error, longest, now)),
        }
    }

    /// Those who asked for the same are told; the others' own logins may end in another way.
    fn answered(&mut self, login: &Underway, error: &Arc<ConnectError>, alive: bool) -> Failed {
        if login.startup.is_none() {
            self.trouble.why = Some(Arc::clone(error));
            // Those who share connections go on with what there is.
            if alive {
                return Failed::Nothing;
            }
        }
        let waiters = std::mem::take(&mut self.waiters);
        let (told, others): (VecDeque<_>, _) = waiters
            .into_iter()
            .partition(|waiter| same_startup(waiter.startup.as_ref(), login.startup.as_ref()));
        self.waiters = others;
        Failed::Tell(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::vars::Vars;
    use crate::wire::backend as b;

    type Receiver = oneshot::Receiver<Result<Box<ServerConn>, CheckoutError>>;

    const LONGEST: Duration = Duration::from_secs(15);

    fn wait(queue: &mut Queue, startup: Option<&Arc<VarSet>>) -> Receiver {
        let (tx, rx) = oneshot::channel();
        queue.push(tx, startup.cloned(), false);
        rx
    }

    fn refusal(code: &str) -> Arc<ConnectError> {
        let mut message = Vec::new();
        crate::error::Error::new(crate::error::Kind::Internal, "no").fatal().put(&mut message);
        let body = String::from_utf8(message[5..].to_vec()).unwrap().replace("XX000", code);
        assert_eq!(b::ErrorFields::new(body.as_bytes()).sqlstate(), code.as_bytes());
        Arc::new(ConnectError::Server(body.into_bytes()))
    }

    /// Whom the next login is for; it begins.
    fn next(queue: &mut Queue) -> Option<Underway> {
        queue.next_login(Instant::now()).map(|startup| queue.begin(startup))
    }

    fn is_for(login: Option<&Underway>, startup: &Arc<VarSet>) -> bool {
        login.is_some_and(|login| same_startup(login.startup.as_ref(), Some(startup)))
    }

    #[test]
    fn each_who_waits_has_one_login_in_order() {
        let vars = Vars::default();
        let (a, b) = (vars.intern([("x.y", "a")]), vars.intern([("x.y", "b")]));
        let mut queue = Queue::default();
        let waiting = [&a, &b, &a].map(|startup| wait(&mut queue, Some(startup)));
        let gone = wait(&mut queue, Some(&b));
        drop(gone);
        assert!(is_for(next(&mut queue).as_ref(), &a));
        assert!(is_for(next(&mut queue).as_ref(), &b));
        assert!(is_for(next(&mut queue).as_ref(), &a));
        assert!(next(&mut queue).is_none(), "who is gone needs none");
        queue.forget_gone();
        assert_eq!(queue.waiters.len(), waiting.len());
        drop(waiting);
        let _shared = wait(&mut queue, None);
        assert!(next(&mut queue).is_some_and(|login| login.startup.is_none()));
    }

    #[test]
    fn an_answer_is_told_to_those_who_asked_for_the_same() {
        let vars = Vars::default();
        let (a, plain) = (vars.intern([("x.y", "a")]), vars.intern([]));
        for code in ["25001", "55P02", "28000", "3D000", "XX000", "42501", "55000"] {
            let mut queue = Queue::default();
            let _waiting = [&a, &plain, &a].map(|startup| wait(&mut queue, Some(startup)));
            let login = next(&mut queue).unwrap();
            let Failed::Tell(told) = queue.failed(&login, &refusal(code), true, LONGEST) else {
                panic!("{code} is no answer")
            };
            assert_eq!(told.len(), 2, "{code}");
            assert!(queue.why(Some(&plain)).is_none(), "{code} is told to others");
            assert!(is_for(next(&mut queue).as_ref(), &plain), "{code}");
        }
    }

    #[test]
    fn settings_that_hang_hold_up_nobody_else() {
        let vars = Vars::default();
        let [a, b, plain] = ["a", "b", ""].map(|v| vars.intern((!v.is_empty()).then_some(("x.y", v))));
        let mut queue = Queue::default();
        let _waiting = [&a, &b, &plain].map(|startup| wait(&mut queue, Some(startup)));
        let login = next(&mut queue).unwrap();
        let timeout = Arc::new(ConnectError::Timeout);
        assert!(matches!(queue.failed(&login, &timeout, false, LONGEST), Failed::TryAgain(_)));
        assert!(!queue.is_in_trouble() && queue.why(Some(&a)).is_some() && queue.why(Some(&b)).is_none());
        // Also when its pause is over, whoever did not fail is first.
        let later = Instant::now() + LONGEST;
        assert!(queue.next_login(later).is_some_and(|startup| same_startup(startup.as_ref(), Some(&b))));
        queue.begin(Some(Arc::clone(&b)));
        assert!(queue.next_login(later).is_some_and(|startup| same_startup(startup.as_ref(), Some(&plain))));
        queue.begin(Some(Arc::clone(&plain)));
        assert!(queue.next_login(later).is_some_and(|startup| same_startup(startup.as_ref(), Some(&a))));
        assert!(queue.next_login(Instant::now()).is_none());
        // One that comes later with the same does not begin anew.
        let _more = wait(&mut queue, Some(&a));
        assert!(queue.next_login(Instant::now()).is_none());
        // It is the server's, if a login hangs that asks for nothing.
        let login = queue.logins.iter().find(|login| is_for(Some(login), &plain)).cloned().unwrap();
        assert!(matches!(queue.failed(&login, &timeout, false, LONGEST), Failed::Pause(_)));
        assert!(queue.is_in_trouble() && queue.why(Some(&b)).is_some());
        queue.succeeded(&Underway { startup: Some(a), began: Instant::now() });
        assert!(!queue.is_in_trouble());
    }

    #[test]
    fn while_the_server_is_in_trouble_one_try_at_a_time_is_made() {
        let vars = Vars::default();
        let (a, b) = (vars.intern([("x.y", "a")]), vars.intern([("x.y", "b")]));
        for code in ["57P03", "53300"] {
            let mut queue = Queue::default();
            let _waiting = [&a, &b].map(|startup| wait(&mut queue, Some(startup)));
            let login = next(&mut queue).unwrap();
            assert!(matches!(queue.failed(&login, &refusal(code), false, LONGEST), Failed::Pause(_)));
            assert!(next(&mut queue).is_none(), "{code}: pause");
            let later = Instant::now() + RETRY_WAITED_FOR;
            let startup = queue.next_login(later).unwrap();
            queue.begin(startup);
            let soon = Instant::now() + RETRY_FIRST * 2;
            assert!(queue.next_login(soon).is_none(), "{code}: one is under way");
            let later = later + RETRY_WAITED_FOR;
            assert!(queue.next_login(later).is_some_and(|startup| same_startup(startup.as_ref(), Some(&b))));
        }
    }

    #[test]
    fn pauses_grow_and_are_no_longer_than_a_client_may_wait_or_than_is_allowed() {
        let pauses = |longest: u64| {
            let mut queue = Queue::default();
            [(); 6].map(|()| {
                let login = queue.begin(None);
                let longest = Duration::from_millis(longest);
                match queue.failed(&login, &refusal("57P03"), false, longest) {
                    Failed::Pause(pause) => pause.as_millis(),
                    other => panic!("{other:?}"),
                }
            })
        };
        assert_eq!(pauses(15_000), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pauses(300), [100, 200, 300, 300, 300, 300]);
        assert_eq!(pauses(0), [100; 6], "never none at all");
    }

    #[test]
    fn what_nobody_waits_for_is_tried_again_one_at_a_time() {
        let mut queue = Queue::default();
        // Nor is it known at first.
        assert_eq!(queue.tries(), 1);
        let login = queue.begin(None);
        assert!(!queue.hesitates(LONGEST, login.began));
        assert_eq!(queue.tries(), 0);
        queue.failed(&login, &refusal("28000"), false, LONGEST);
        let failed = Instant::now();
        assert!(queue.hesitates(LONGEST, failed) && !queue.hesitates(LONGEST, failed + LONGEST));
        assert_eq!(queue.tries(), 1);
        let login = queue.begin(None);
        queue.succeeded(&login);
        assert!(!queue.hesitates(LONGEST, failed) && queue.tries() > 1);
    }

    #[test]
    fn those_who_share_go_on_with_the_connections_there_are() {
        let mut queue = Queue::default();
        let _waiting = wait(&mut queue, None);
        let login = next(&mut queue).unwrap();
        assert!(matches!(queue.failed(&login, &refusal("55000"), true, LONGEST), Failed::Nothing));
        let login = next(&mut queue).unwrap();
        let told = queue.failed(&login, &refusal("55000"), false, LONGEST);
        assert!(matches!(told, Failed::Tell(told) if told.len() == 1));
    }
}
