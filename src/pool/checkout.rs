//! Getting a server connection and giving it back.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{Inner, Pool, registry::current_worker};
use crate::limits::FOREVER;
use crate::proto::prepared::ClientNames;
use crate::proto::vars::{VarSet, Whose};
use crate::server::connect::ConnectError;
use crate::server::internal::{Lost, Refused, Reply};
use crate::server::{BY_SERVER, ServerConn};
use crate::wire::TransactionStatus;
use crate::wire::backend::ErrorFields;

/// `None`: `limit` passed; zero is no limit.
///
/// Cancel safety: that of `work`.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let limit = if limit.is_zero() { FOREVER } else { limit };
    tokio::time::timeout(limit, work).await.ok()
}

/// Why there is no server connection.
#[derive(Debug, Clone)]
pub enum CheckoutError {
    /// `query_wait_timeout` passed, and what was in the way.
    Timeout(Duration, Busy),
    /// It passed while the pool was paused.
    Paused(Duration),
    /// The server refused the login.
    Login(Arc<ConnectError>),
    /// The pool is going away.
    Closed,
}

/// Why there was no connection within `query_wait_timeout`.
#[derive(Debug, Clone)]
pub enum Busy {
    /// None could be opened.
    Unreachable(Arc<ConnectError>),
    /// This setting allows no more of them.
    Full(&'static str),
    /// Logins took their time, or a limit was changed meanwhile.
    Other,
}

/// A server connection that is ours until [`Checkout::release`]. Dropped without it, the connection is closed:
/// on any doubt nobody else gets it.
#[derive(Debug)]
pub struct Checkout {
    server: Option<Box<ServerConn>>,
    pool: Arc<Pool>,
}

impl Checkout {
    /// Hot path. The connection is free, which is `now`: it goes to the first who waits, or is kept idle.
    pub fn release(mut self, now: Instant) {
        if let Some(mut server) = self.server.take() {
            server.heard = Vec::new();
            server.names.part();
            let shared = &server.shared;
            if shared.cancels.load(Ordering::Acquire) > 0 || shared.role_doubted.load(Ordering::Relaxed) {
                tokio::spawn(settle(server, Arc::clone(&self.pool)));
            } else {
                self.pool.give(server, now);
            }
        }
    }

    /// The pool it came from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Checkout {
    /// It was idle for so long, of `server_check_delay`, that it has to be asked before anything is at stake. One that has just
    /// logged in has answered.
    pub fn is_doubtful(&self, now: Instant, delay: Duration) -> bool {
        !self.fresh && now.duration_since(self.idle_since) >= delay
    }

    /// `server_check_query`. Where nothing is answered in time all connections that lead there are given up.
    ///
    /// Cancel safety: none; drop the connection if this is cancelled.
    pub async fn still_answers(&mut self) -> bool {
        let settings = self.pool.settings.load_full();
        let answer = within(settings.patience(), self.simple_at_once(&settings.server_check_query)).await;
        let failed = match self.leave_if_silent(answer) {
            None => return false,
            // What the client asks would be run in a block that it knows nothing of.
            Some(Ok(_)) if self.pipeline.status() != TransactionStatus::Idle => {
                Err("it leaves a transaction open".to_owned())
            }
            Some(Ok(Reply { error: None, .. })) => return true,
            Some(Ok(Reply { error: Some(error), .. })) => Ok(ErrorFields::new(&error).outline()),
            Some(Err(Lost { said: Some(error), .. })) => Err(ErrorFields::new(&error).outline()),
            Some(Err(Lost { why, said: None })) => Err(why),
        };
        // It proves as much by an error as by an answer; but whoever wrote it meant another one.
        let (Ok(why) | Err(why)) = &failed;
        self.pool.check_failed(why);
        failed.is_ok()
    }

    /// As [`ServerConn::settle_vars`], for nobody; `None`: nothing was answered in time, as above.
    ///
    /// Cancel safety: as above.
    pub async fn settle_in_time(
        &mut self,
        want: &Arc<VarSet>,
        max: usize,
    ) -> Option<Result<Option<Refused>, Lost>> {
        let limit = self.pool.settings.load().patience();
        let settled = within(limit, self.settle_vars(want, max, Whose::nobody(want))).await;
        self.leave_if_silent(settled)
    }

    /// Asks the server to end what runs here, for no longer than `limit`; the connection is of no more use. Whether that arrives
    /// or not, nobody else gets it.
    pub fn cancel(&self, limit: Duration) {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let _ = shared.cancel(limit).await;
        });
    }

    fn leave_if_silent<T>(&self, answer: Option<T>) -> Option<T> {
        if answer.is_none() {
            self.pool.leave_silent(&self.shared.address);
        }
        answer
    }
}

impl Deref for Checkout {
    type Target = ServerConn;

    fn deref(&self) -> &ServerConn {
        // Present from construction until `release` or `drop`, both of which take `self`.
        self.server.as_deref().expect("a checkout holds its connection")
    }
}

impl DerefMut for Checkout {
    fn deref_mut(&mut self) -> &mut ServerConn {
        self.server.as_deref_mut().expect("a checkout holds its connection")
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.broken = true;
            self.pool.discard(server, "given up in use");
        }
    }
}

/// A cancel request is on its way to this connection: it stays out of the pool until that has arrived, and a round
/// trip takes up what it may have left behind. Or it is asked whether its server is still what it was.
async fn settle(server: Box<ServerConn>, pool: Arc<Pool>) {
    let limit = pool.settings.load().server_connect_timeout;
    let mut checkout = Checkout { server: Some(server), pool };
    // Nobody waits for it, so no client's timeout ends it where the server fell silent.
    if !matches!(within(limit, checkout.settle_cancels()).await, Some(Ok(()))) {
        return;
    }
    if checkout.shared.role_doubted.load(Ordering::Relaxed) {
        match within(limit, checkout.settle_role()).await {
            Some(Ok(true)) => {}
            Some(Ok(false)) => checkout.pool.abandon(std::slice::from_ref(&checkout.shared.address)),
            Some(Err(_)) | None => return,
        }
    }
    checkout.release(Instant::now());
}

impl Pool {
    /// Hot path. An idle connection without waiting, or `None`.
    ///
    /// `want` are the settings that will be applied; `startup` is given in session mode and must be the connection's. `home`: where the
    /// unnamed statement of these names stands is best.
    pub fn checkout_now(
        self: &Arc<Self>,
        want: &Arc<VarSet>,
        startup: Option<&Arc<VarSet>>,
        home: Option<&ClientNames>,
    ) -> Option<Checkout> {
        let worker = current_worker();
        while let Some(mut server) = self.take_idle(want, startup, home, worker) {
            if server.worker != worker {
                match rehome(server, worker) {
                    Ok(moved) => server = moved,
                    Err(shared) => {
                        self.forget(&shared, BY_SERVER);
                        continue;
                    }
                }
            }
            if server.check_idle() {
                return Some(Checkout { server: Some(server), pool: Arc::clone(self) });
            }
            server.broken = true;
            server.note_last_words();
            self.discard(server, BY_SERVER);
        }
        None
    }

    /// A connection, waiting for one in order of arrival.
    ///
    /// # Errors
    /// [`CheckoutError`].
    ///
    /// Cancel safety: when dropped, the place in the queue is given up; a connection that was just handed over goes
    /// back to the next who waits.
    pub async fn checkout(
        self: &Arc<Self>,
        want: &Arc<VarSet>,
        startup: Option<&Arc<VarSet>>,
    ) -> Result<Checkout, CheckoutError> {
        self.checkout_since(want, startup, Instant::now()).await
    }

    /// As [`Pool::checkout`], to ask the server something that no client waits for: nobody is counted as waiting.
    ///
    /// # Errors
    /// As [`Pool::checkout`].
    ///
    /// Cancel safety: as [`Pool::checkout`].
    pub async fn checkout_to_ask(self: &Arc<Self>, want: &Arc<VarSet>) -> Result<Checkout, CheckoutError> {
        self.checkout_as(want, None, Instant::now(), true).await
    }

    /// As [`Pool::checkout`], for who waits since `began`.
    ///
    /// # Errors
    /// As [`Pool::checkout`].
    ///
    /// Cancel safety: as [`Pool::checkout`].
    pub async fn checkout_since(
        self: &Arc<Self>,
        want: &Arc<VarSet>,
        startup: Option<&Arc<VarSet>>,
        began: Instant,
    ) -> Result<Checkout, CheckoutError> {
        self.checkout_as(want, startup, began, false).await
    }

    async fn checkout_as(
        self: &Arc<Self>,
        want: &Arc<VarSet>,
        startup: Option<&Arc<VarSet>>,
        began: Instant,
        asks: bool,
    ) -> Result<Checkout, CheckoutError> {
        let limit = self.settings.load().query_wait_timeout;
        loop {
            if let Some(checkout) = self.checkout_now(want, startup, None) {
                return Ok(checkout);
            }
            let left = if limit.is_zero() { FOREVER } else { limit.saturating_sub(began.elapsed()) };
            if let Some(checkout) = self.wait_in_queue(startup, asks, left, limit).await? {
                return Ok(checkout);
            }
        }
    }

    /// One wait in the queue. `None`: what was handed over turned out dead.
    async fn wait_in_queue(
        self: &Arc<Self>,
        startup: Option<&Arc<VarSet>>,
        asks: bool,
        left: Duration,
        limit: Duration,
    ) -> Result<Option<Checkout>, CheckoutError> {
        let (tx, rx) = oneshot::channel();
        self.lock().queue.push(tx, startup.map(Arc::clone), asks);
        let mut handed = Handed { rx: Some(rx), pool: self };
        self.serve_waiters_from_idle(startup);
        self.launch_if_needed();
        let Some(answer) = self.handed_within(&mut handed, left).await else {
            let pool = self.lock();
            let timeout = || CheckoutError::Timeout(limit, self.why_busy(&pool, startup, limit));
            return Err(if pool.paused { CheckoutError::Paused(limit) } else { timeout() });
        };
        let server = answer?;
        let worker = current_worker();
        let mut server = match if server.worker == worker { Ok(server) } else { rehome(server, worker) } {
            Ok(server) => server,
            Err(shared) => {
                self.forget(&shared, BY_SERVER);
                return Ok(None);
            }
        };
        if server.check_idle() {
            return Ok(Some(Checkout { server: Some(server), pool: Arc::clone(self) }));
        }
        server.broken = true;
        server.note_last_words();
        self.discard(server, BY_SERVER);
        Ok(None)
    }

    /// `None`: nothing was handed over in time. Who has waited long enough for the reserve has a connection of it opened.
    async fn handed_within(
        self: &Arc<Self>,
        handed: &mut Handed<'_>,
        limit: Duration,
    ) -> Option<Result<Box<ServerConn>, CheckoutError>> {
        let patience = self.settings.load().reserve_after().filter(|patience| *patience < limit);
        let first = patience.unwrap_or(limit);
        if let Ok(answer) = tokio::time::timeout(first, handed.wait()).await {
            return Some(answer);
        }
        patience?;
        self.launch_if_needed();
        tokio::time::timeout(limit - first, handed.wait()).await.ok()
    }

    /// What is in the way of who has waited so long.
    fn why_busy(&self, inner: &Inner, startup: Option<&Arc<VarSet>>, waited: Duration) -> Busy {
        // While there is none that could become free, it is the server that keeps everybody waiting.
        let unanswered = || inner.queue.unanswered().filter(|_| inner.total == 0).map(Arc::new);
        match inner.queue.why(startup).or_else(unanswered) {
            Some(error) => Busy::Unreachable(error),
            None => self.full_by(inner, waited).map_or(Busy::Other, Busy::Full),
        }
    }

    /// What a client that waits is waiting for, in words for it.
    pub fn awaited(&self) -> &'static str {
        let inner = self.lock();
        if inner.paused {
            return "the database is paused: waiting until it is resumed";
        }
        match self.why_busy(&inner, None, Duration::ZERO) {
            Busy::Unreachable(_) => "no connection to the server can be opened: waiting for one",
            Busy::Full(_) | Busy::Other => "all server connections are in use: waiting for one",
        }
    }

    /// A connection may have become idle between looking and queueing.
    fn serve_waiters_from_idle(self: &Arc<Self>, startup: Option<&Arc<VarSet>>) {
        let server = {
            let mut inner = self.lock();
            let fits = inner.idle.iter().rposition(|server| server.is_for(startup));
            fits.filter(|_| !inner.paused).map(|at| inner.idle.remove(at))
        };
        if let Some(server) = server {
            self.give(server, Instant::now());
        }
    }
}

fn rehome(
    server: Box<ServerConn>,
    worker: usize,
) -> Result<Box<ServerConn>, Arc<crate::server::ServerShared>> {
    let shared = Arc::clone(&server.shared);
    server.rehome(worker).map_err(|_| shared)
}

/// The waiting end of the queue. If it is dropped after a connection was handed over, that goes back.
struct Handed<'a> {
    rx: Option<oneshot::Receiver<Result<Box<ServerConn>, CheckoutError>>>,
    pool: &'a Arc<Pool>,
}

impl Handed<'_> {
    async fn wait(&mut self) -> Result<Box<ServerConn>, CheckoutError> {
        let Some(rx) = self.rx.as_mut() else { return Err(CheckoutError::Closed) };
        let answer = rx.await.unwrap_or(Err(CheckoutError::Closed));
        self.rx = None;
        answer
    }
}

impl Drop for Handed<'_> {
    fn drop(&mut self) {
        if let Some(mut rx) = self.rx.take() {
            rx.close();
            if let Ok(Ok(server)) = rx.try_recv() {
                self.pool.give(server, Instant::now());
            }
        }
    }
}
