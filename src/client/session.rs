//! A client between transactions: its requests, the server connection that it gets, and the settings put on that and read back.
//!
//! Owns: the loop over [`ClientState`]; linking and releasing servers; the probe (a query for the session's state) after a transaction
//! that may have changed it. Never: walks messages of a running transaction (the relay does).

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::Context;
use super::defer::{Deferred, Left};
use super::hold::Hold;
use super::login::{self, why_none};
use super::pour::{Poured, Pouring};
use super::relay::End;
use super::state::{
    BOUND, Bounds, Counts, Fault, Late, MAKES_TEMP, MOVES_NAMES, PROBED, Reporting, State, Ties, UNKEPT,
    UNPINS, Withheld, may_go_in_pieces, next_head, policy_error,
};
use crate::cancel::{ClientShared, ClientState, Signal};
use crate::coalesce::lane::Opening;
use crate::coalesce::shapes::{Closed, Shape};
use crate::error::{Error, Kind};
use crate::limits::{CLOSED_HALF_WAIT, HELD_BYTES_MAX, READ_BUFFER_BYTES, SETTINGS_BYTES_MAX};
use crate::net::busy::BusyWait;
use crate::net::conn::Conn;
use crate::policy::{self, Verdict};
use crate::pool::{self, Checkout, CountedIn, PinnedBy, Pool, PoolKey, within};
use crate::proto::prepared::Statement;
use crate::proto::vars::{SESSION_AUTHORIZATION, Whose, moment};
use crate::server::internal::Probe;
use crate::settings::{SessionState, discards_all};
use crate::sql::effects::{Effects, effects};
use crate::telemetry::events;
use crate::wire::frame;
use crate::wire::{TransactionStatus, backend as b, frontend as f};

/// Unnamed statements remembered by one thread, so that the same text parsed again is the same statement.
const UNNAMED_KEPT: usize = 512;

/// Longest text remembered so (bytes).
const UNNAMED_BYTES_MAX: usize = 4096;

thread_local! {
    static UNNAMED: RefCell<Vec<Option<Arc<Statement>>>> = RefCell::new(vec![None; UNNAMED_KEPT]);
    static HASHER: ahash::RandomState = ahash::RandomState::new();
}

/// Hot path. The statement of an unnamed Parse: the same one for the same text, as long as this thread remembers it.
/// `standard_conforming_strings` is on, and known to be.
pub(super) fn unnamed_statement(query: &[u8], types: &[u8], class: u64) -> Arc<Statement> {
    if query.len() > UNNAMED_BYTES_MAX {
        return Statement::under(query, types, class, effects(query, true));
    }
    let slot = HASHER.with(|h| h.hash_one((query, types, class))) as usize % UNNAMED_KEPT;
    UNNAMED.with(|kept| {
        let kept = &mut kept.borrow_mut()[slot];
        match kept {
            Some(known) if known.is(query, types, class) && !known.has_moved() => Arc::clone(known),
            _ => Arc::clone(kept.insert(Statement::under(query, types, class, effects(query, true)))),
        }
    })
}

/// One client, logged in.
#[derive(Debug)]
pub struct Session {
    /// Its connection.
    pub(super) client: Conn,
    /// What it remembers between messages.
    pub(super) state: State,
    /// The part that others see.
    pub(super) me: Arc<ClientShared>,
    /// Its pool.
    pub(super) pool: Arc<Pool>,
    /// Counts it in its pool as long as it lives.
    pub(super) _counted: CountedIn,
    /// What it may use.
    pub(super) cx: Arc<Context>,
    /// The reloads that it has seen, and the pool's settings since the last one.
    pub(super) generation: usize,
    pub(super) settings: Arc<pool::Settings>,
    /// When its server connection began to work for it. `None`: it has none, or is pinned to one and idle.
    pub(super) works_since: Option<Instant>,
    /// The process drains: it ends when no transaction is open.
    pub(super) draining: bool,
    /// A reload removed its database, or gave it another login: it ends then, too, unless a later reload took that back.
    pub(super) withdrawn: bool,
    /// `server_fast_close`: the server connection that it is pinned to is outdated.
    pub(super) outdated: bool,
    /// State for pouring; made with its first INSERT.
    pub(super) pouring: Option<Box<Pouring>>,
    /// The shape for which the statement noted as unpoured is refused; `None`: it is no INSERT.
    pub(super) refused: Option<Arc<Shape>>,
    /// The first bytes of its last text that wrote into a table which is not poured into.
    pub(super) closed: Option<Box<Closed>>,
    /// See [`BusyWait::look_again`].
    pub(super) busy_poll: Duration,
    /// Its waits for the client and for the server.
    pub(super) waits: BusyWait,
    /// A deferred block that no server knows of yet.
    pub(super) deferred: Option<Box<Deferred>>,
    /// When rows were offered to a batch that handed them back to be run singly: the wait for a server counts from then.
    pub(super) offered_at: Option<Instant>,
}

/// `query_wait_notify`; boxed, because few sessions wait at a time.
fn patience(limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    match limit {
        Duration::ZERO => Box::pin(std::future::pending()),
        limit => Box::pin(tokio::time::sleep(limit)),
    }
}

fn put_wait_notice(client: &mut Conn, message: &str) {
    client.prepare_out();
    b::put_notice(&mut client.out, message);
}

/// Why the wait for a message ended.
enum Woken {
    Input,
    Left,
    Signalled,
}

/// However its task ends, it must not be counted any more by a drain, `WAIT_FOR_CLIENTS` or the limits on clients.
impl Drop for Session {
    fn drop(&mut self) {
        self.me.unlink();
        self.cx.clients.leave(&self.me);
    }
}

impl Session {
    /// Runs until the client leaves or is closed. `server` is given in session mode.
    ///
    /// Cancel safety: none; run it as a task to its end, or its unfinished work is neither done nor reported.
    pub async fn run(mut self: Box<Self>, server: Option<Checkout>) {
        self.me.wakes_this_task().await;
        let ended = match server {
            Some(server) => self.keep(server).await,
            None => self.share().await,
        };
        self.me.unlink();
        Box::pin(self.tell(ended.err().unwrap_or(Fault::ClientGone))).await;
    }

    /// Session mode: one server from login to the end.
    async fn keep(&mut self, server: Checkout) -> Result<(), Fault> {
        let mut server = server;
        let now = Instant::now();
        self.linked(&mut server, now, now);
        loop {
            match self.relay(&mut server, true).await {
                // Only a drain ends it here.
                Ok(End::Quiet) => self.obey(true)?,
                // Only where servers are shared.
                Ok(End::Run) => {}
                Ok(End::ClientLeft) => break,
                Ok(End::Signalled) => {
                    let obeyed = self.obey(server.pipeline.has_nothing_open());
                    obeyed.map_err(|fault| self.abandon(&server, fault))?;
                }
                Err(fault) => return Err(self.abandon(&server, fault)),
            }
        }
        Box::pin(self.leave(server)).await
    }

    /// Transaction and statement mode: a server for each transaction.
    async fn share(&mut self) -> Result<(), Fault> {
        let mut hold: Option<Hold> = None;
        loop {
            match self.idle().await? {
                Woken::Input => {}
                Woken::Left => return Ok(()),
                Woken::Signalled => {
                    self.obey(self.deferred.is_none())?;
                    continue;
                }
            }
            if self.answer_without_server()? {
                continue;
            }
            hold.iter_mut().for_each(Hold::rests);
            let poured = self.pour_or_defer().await?;
            if matches!(poured, Poured::NeedMore) && self.holds_on(&mut hold).await? {
                continue;
            }
            if hold.take().is_some_and(|hold| hold.is_over()) {
                // Nor is it waited for once more in its block.
                self.let_pass(self.client.bytes().len());
            }
            // Kept until the answer is there: a batch waits for it.
            let (_single, plain) = match poured {
                Poured::Answered => {
                    if self.is_leaving() && self.deferred.is_none() {
                        self.obey(true)?;
                    }
                    continue;
                }
                Poured::NeedMore => (None, false),
                Poured::No(single) => (single, false),
                Poured::Plain => (None, true),
            };
            let Some(mut server) = self.link_block().await? else { continue };
            let before = self.client.consumed();
            let left = match self.deferred {
                Some(_) => Box::pin(self.leave_block(&mut server)).await,
                None => Ok(Left::Open),
            };
            let left = left.map_err(|fault| self.abandon(&server, fault))?;
            if let Some(pouring) = &mut self.pouring {
                pouring.begins();
            }
            if !plain && matches!(left, Left::Open) && self.holds_opening_run(&server) {
                let poured = Box::pin(self.pour_run(&mut server, Opening::Begin)).await;
                poured.map_err(|fault| self.abandon(&server, fault))?;
            }
            if matches!(left, Left::Open) && !self.transactions(&mut server).await? {
                return Box::pin(self.leave(server)).await;
            }
            self.unlink(server);
            if self.is_leaving() {
                self.obey(true)?;
            }
            let taken = self.client.consumed() - before;
            self.went_singly(taken);
        }
    }

    /// Waits for the end of the unit at the front, which is not here yet. False: the wait is over, and what is here goes as it was sent.
    async fn holds_on(&mut self, hold: &mut Option<Hold>) -> Result<bool, Fault> {
        let hold = hold.get_or_insert_with(|| Hold::new(&self.cx.lanes, &self.settings.coalesce));
        if hold.is_over() || self.client.bytes().len() >= HELD_BYTES_MAX {
            return Ok(false);
        }
        self.read_unit(self.deferred.is_none(), HELD_BYTES_MAX, hold).await?;
        Ok(true)
    }

    /// Hot path. Pours or defers what is at the front. On [`Poured::No`] the messages held by a deferred block have to leave.
    async fn pour_or_defer(&mut self) -> Result<Poured, Fault> {
        if self.defers() {
            let poured = Box::pin(self.defer()).await?;
            if self.deferred.is_some() || !matches!(poured, Poured::No(_) | Poured::Plain) {
                return Ok(poured);
            }
        }
        self.pour().await
    }

    /// Waits for the beginning of a message that needs a server. Holds no buffer meanwhile.
    async fn idle(&mut self) -> Result<Woken, Fault> {
        let (client, me, waits) = (&mut self.client, &self.me, &mut self.waits);
        std::future::poll_fn(|cx| {
            loop {
                if me.is_signalled() {
                    return Poll::Ready(Ok(Woken::Signalled));
                }
                if !client.is_flushed() && client.poll_flush(cx).map_err(|_| Fault::ClientGone)?.is_pending()
                {
                    return Poll::Pending;
                }
                match what_is_there(client, self.state.bounds.message_max)? {
                    There::Enough => return Poll::Ready(Ok(Woken::Input)),
                    There::Part(want) => client.want(want),
                }
                match client.poll_hear(cx) {
                    Poll::Pending => {
                        waits.look_again(self.busy_poll, cx);
                        return Poll::Pending;
                    }
                    Poll::Ready(0) => return Poll::Ready(Ok(Woken::Left)),
                    Poll::Ready(n) => {
                        self.state.counts.received += n as u64;
                        waits.over();
                    }
                }
            }
        })
        .await
    }

    /// Answers a message that needs no server: Terminate, a lone Sync, a Query that the policy refuses. True: there was one.
    fn answer_without_server(&mut self) -> Result<bool, Fault> {
        self.take_new_settings(false);
        let (buf, out) = self.client.split();
        let Some((head, body)) = frame::whole(buf, self.state.bounds.message_max)? else { return Ok(false) };
        let (message, verdict) = match head.tag {
            f::TERMINATE => return Err(Fault::ClientGone),
            f::SYNC if body.is_empty() => {
                let in_block = self.deferred.is_some();
                let status =
                    if in_block { TransactionStatus::InTransaction } else { TransactionStatus::Idle };
                b::put_ready_for_query(out, status);
                self.client.consume(head.total());
                return Ok(true);
            }
            // In a block a refusal fails the block, and that is the server's.
            _ if self.deferred.is_some() => return Ok(false),
            f::FLUSH if !body.is_empty() => return Ok(false),
            f::FLUSH | f::COPY_DATA | f::COPY_DONE | f::COPY_FAIL => {
                self.client.consume(head.total());
                return Ok(true);
            }
            f::QUERY if !self.state.rules.passes_all_queries() => {
                let Ok(text) = f::query(body) else { return Ok(false) };
                ("Query", self.state.query_verdict(text, self.state.reading.lexing))
            }
            f::FUNCTION_CALL => ("FunctionCall", policy::judge_function_call(&self.state.rules)),
            _ => return Ok(false),
        };
        let Verdict::Reject(rejection) = verdict else { return Ok(false) };
        policy_error(&rejection).put(out);
        b::put_ready_for_query(out, TransactionStatus::Idle);
        self.client.consume(head.total());
        if head.tag == f::QUERY {
            self.state.names.forget_unnamed();
        }
        self.state.audit.record(message, &rejection, true);
        Ok(true)
    }

    /// Takes the rules and settings of a reload, if there was one. `is_open`: a transaction may be open.
    fn take_new_settings(&mut self, is_open: bool) {
        let generation = self.cx.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            let settings = self.cx.settings.load();
            let rules = super::rules(&settings, &self.me.asked, self.me.peer.map(|peer| peer.ip()));
            self.state.take_rules(rules, is_open);
            self.settings = self.pool.settings.load_full();
            self.state.take_bounds(Bounds::new(&settings.general, &self.settings));
            self.busy_poll = settings.general.busy_poll;
            self.withdrawn = login::withdrawn(&settings, &self.me.asked, &self.pool.key).is_some();
        }
    }

    /// As [`Session::link`], for a deferred block. Its COMMIT was taken from the buffer already, so it goes on waiting whatever signals come.
    async fn link_block(&mut self) -> Result<Option<Checkout>, Fault> {
        loop {
            let server = self.link().await?;
            if server.is_some() || !self.holds_commit() {
                return Ok(server);
            }
            self.obey(false)?;
        }
    }

    /// Gets a server and puts the client's settings on it. `None`: the client has an answer instead.
    async fn link(&mut self) -> Result<Option<Checkout>, Fault> {
        let mut since = self.offered_at.take();
        let (mut server, mut now) = loop {
            let home = self.runs_unnamed().then_some(&self.state.names);
            let mut server = match self.pool.checkout_now(&self.state.vars.want, None, home) {
                Some(server) => server,
                None => {
                    match Box::pin(self.wait_for_server(*since.get_or_insert_with(Instant::now))).await? {
                        Some(server) => server,
                        None => return Ok(None),
                    }
                }
            };
            if server.names_passed && self.state.tracks_names() {
                // A client that follows none may have left a statement behind any name: the connection ends here.
                continue;
            }
            let now = Instant::now();
            if !server.is_doubtful(now, self.settings.server_check_delay) {
                break (server, now);
            }
            let began = *since.get_or_insert(now);
            if Box::pin(self.still_answers(&mut server, began)).await? {
                break (server, Instant::now());
            }
        };
        if !server.has_vars(&self.state.vars.want, self.whose()) {
            if !Box::pin(self.carry_settings(&mut server, since.unwrap_or(now))).await? {
                server.release(Instant::now());
                return Ok(None);
            }
            now = Instant::now();
        }
        self.linked(&mut server, now, since.unwrap_or(now));
        Ok(Some(server))
    }

    /// May the next message use the unnamed statement of an earlier transaction? On the connection that still holds it, the statement need
    /// not be parsed again and compared with what the client was told.
    fn runs_unnamed(&self) -> bool {
        let is_of_one = |tag: &u8| matches!(*tag, f::BIND | f::DESCRIBE);
        self.client.bytes().first().is_some_and(is_of_one) && self.state.names.lookup(b"").is_some()
    }

    /// Checks a connection that was idle for long before the client's own statement is at stake. The client has waited for a server since
    /// `began`.
    async fn still_answers(&mut self, server: &mut Checkout, began: Instant) -> Result<bool, Fault> {
        self.asks(ClientState::Active, began);
        self.unless_ended(server.still_answers()).await
    }

    /// A round trip of pgsluice's own, unless a signal ends the session: a silent server must not prevent that. The connection
    /// cannot be used then.
    pub(super) async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Fault> {
        let (me, mut work) = (&self.me, std::pin::pin!(work));
        let done = std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Pending if me.must_end() => Poll::Ready(None),
            polled => polled.map(Some),
        });
        if let Some(done) = done.await {
            return Ok(done);
        }
        self.obey(false)?;
        Err(Fault::Client(Error::killed()))
    }

    /// Whose role its settings name.
    fn whose(&self) -> Whose {
        Whose { client: self.me.id, since: self.state.vars.since }
    }

    /// Puts the client's settings on the connection in a round trip of their own: if one can't be set (the role or the text
    /// search configuration is gone) nothing of the client's may run. Only application_name goes out together with the
    /// client's messages, unless a block is held. False: the client cancelled meanwhile, and has its answer. `asked`: when the
    /// client sent its request.
    async fn carry_settings(&mut self, server: &mut Checkout, asked: Instant) -> Result<bool, Fault> {
        let (want, max) = (Arc::clone(&self.state.vars.want), self.state.bounds.max_prepared);
        if self.deferred.is_none() && server.differs_in_name_only(&want, self.whose()) {
            return Ok(true);
        }
        self.asks(ClientState::Active, asked);
        let whose = self.whose();
        match self.unless_ended(server.settle_vars(&want, max, whose)).await? {
            Ok(None) if self.deferred.is_none() && self.me.take_signal(Signal::Cancel) => {
                self.me.set_state(ClientState::Idle, Instant::now());
                self.answer_cancelled();
                Ok(false)
            }
            Ok(None) => Ok(true),
            Ok(Some(refused)) => Err(Fault::Server(refused.error)),
            Err(lost) => Err(lost.into()),
        }
    }

    /// Hot path. Links the server to the client, at `now`, for the request that the client sent at `asked`.
    fn linked(&mut self, server: &mut Checkout, now: Instant, asked: Instant) {
        // A request that waited is judged by the present rules.
        self.take_new_settings(false);
        self.works_since = Some(now);
        self.pool.stats.server_assignment_count.fetch_add(1, Ordering::Relaxed);
        if self.deferred.is_some() {
            self.me.set_state(ClientState::Active, asked);
        } else {
            self.me.begin_linked(asked, now, self.state.turns, self.state.xact_turns);
        }
        self.me.link(&server.shared);
        // Nothing that the client asked is owed: a message that was to wait for something waits no longer.
        (self.state.vars.report, self.state.awaiting) = (Reporting::None, false);
        self.state.behind_ours = false;
        if self.state.shares_servers() {
            let (want, max) = (Arc::clone(&self.state.vars.want), self.state.bounds.max_prepared);
            if self.state.rules.needs_lexing() {
                self.state.know_lexing(&server.reported);
            }
            let whose = self.whose();
            if server.apply_vars(&want, &mut self.state.names, max, whose) {
                self.state.vars.report = Reporting::Pending;
            }
        }
        if self.state.vars.report != Reporting::Pending {
            self.client.prepare_out();
            self.state.report_differences(&mut server.reported, &mut self.client.out);
        }
    }

    /// Waits in the pool's queue. Also ends when the client leaves or gets a signal. A client that closed only its sending half cannot be
    /// told from one that is gone: it waits for a short time only.
    async fn wait_for_server(&mut self, since: Instant) -> Result<Option<Checkout>, Fault> {
        self.me.set_state(ClientState::Waiting, since);
        let pool = Arc::clone(&self.pool);
        let want = Arc::clone(&self.state.vars.want);
        let mut queue = std::pin::pin!(pool.checkout_since(&want, None, since));
        let mut notify = Some(patience(self.cx.settings.load().general.query_wait_notify));
        let mut closed = None;
        let (client, me, settings) = (&mut self.client, &self.me, &self.cx.settings);
        let got = std::future::poll_fn(|cx| {
            // Taken when there is a server: no reason to lose the place in the queue, unless it is a queue for nothing.
            if me.take_signal(Signal::Reload)
                && login::withdrawn(&settings.load(), &me.asked, &pool.key).is_some()
            {
                me.signal(Signal::Reload);
            }
            // It has none.
            me.take_signal(Signal::ServerOutdated);
            // First: a request to cancel that came before a server did is not lost by its coming.
            if me.is_signalled() {
                return Poll::Ready(Ok(None));
            }
            if let Poll::Ready(got) = queue.as_mut().poll(cx) {
                return Poll::Ready(Ok(Some(got)));
            }
            if notify.as_mut().is_some_and(|notify| notify.as_mut().poll(cx).is_ready()) {
                notify = None;
                put_wait_notice(client, pool.awaited());
            }
            if let Poll::Ready(Err(_)) = client.poll_flush(cx) {
                return Poll::Ready(Err(Fault::ClientGone));
            }
            while closed.is_none() && client.bytes().len() < READ_BUFFER_BYTES {
                match client.poll_hear(cx) {
                    Poll::Pending => break,
                    Poll::Ready(0) => closed = Some(patience(CLOSED_HALF_WAIT)),
                    Poll::Ready(_) => {}
                }
            }
            match &mut closed {
                Some(closed) => closed.as_mut().poll(cx).map(|()| Err(Fault::ClientGone)),
                None => Poll::Pending,
            }
        })
        .await?;
        match got {
            Some(Ok(server)) => Ok(Some(server)),
            Some(Err(error)) => Err(why_none(error).map_or_else(Fault::Server, Fault::Client)),
            None => {
                if self.me.take_signal(Signal::Cancel) {
                    match self.deferred {
                        Some(_) => self.cancel_block(),
                        None => self.answer_cancelled(),
                    }
                    if self.state.late.is_some() {
                        self.offered_at = Some(since);
                    }
                }
                self.asks_nothing();
                // Other signals are obeyed before the next message is read.
                Ok(None)
            }
        }
    }

    /// A cancel request came before a server did: the client's request is answered as cancelled. A request that opens a block goes on
    /// waiting, and the statement in the block is cancelled; a request whose end is not here goes on, too, and is cancelled on its server.
    fn answer_cancelled(&mut self) {
        if self.cancels_inside_block() {
            return;
        }
        match self.first_unit_end() {
            Some(end) => self.answer_as_cancelled(end),
            None => self.state.late = Some(Late::cancelled(0)),
        }
    }

    /// Relays transactions one after the other while nobody else waits. False: the client left.
    async fn transactions(&mut self, server: &mut Checkout) -> Result<bool, Fault> {
        (self.state.ties.pinned, self.state.ties.sql_prepared) = (false, false);
        self.state.ties.plans_renewed = false;
        self.state.meaning.own = 0;
        loop {
            let pinned = self.state.ties.pinned;
            match self.relay(server, pinned).await {
                Ok(End::Quiet) => {}
                Ok(End::ClientLeft) => return Ok(false),
                Ok(End::Signalled) => {
                    let obeyed = self.obey(server.pipeline.has_nothing_open());
                    obeyed.map_err(|fault| self.abandon(server, fault))?;
                    continue;
                }
                Ok(End::Run) => {
                    let poured = Box::pin(self.pour_run(server, Opening::Savepoint)).await;
                    poured.map_err(|fault| self.abandon(server, fault))?;
                    continue;
                }
                Err(fault) => return Err(self.abandon(server, fault)),
            }
            self.settle(server);
            self.state.ties.recheck = false;
            if self.state.ties.taint.intersects(PROBED) || pinned {
                let listens = !pinned && self.pins_to_listen();
                self.state.ties.pinned = listens || Box::pin(self.probe(server)).await?;
                if self.state.ties.pinned {
                    if self.is_leaving() {
                        self.obey(true)?;
                    }
                    continue;
                }
            }
            self.state.ties.forget_taint();
            return Ok(true);
        }
    }

    /// The session ends and its server connection with it, so that a statement ended by a timeout or an administrator does not run on.
    pub(super) fn abandon(&mut self, server: &Checkout, fault: Fault) -> Fault {
        self.me.unlink();
        self.state.part.cut_short = server.streaming > 0 && !self.state.part.dropping_down;
        if matches!(fault, Fault::Client(_)) && !server.pipeline.is_empty() {
            server.cancel(self.cx.settings.load().general.cancel_wait_timeout);
        }
        server.shared.note_end(format!("client {}: {}", self.me.id, fault_text(&fault)));
        fault
    }

    /// A transaction has ended: the values that the client was told are those that it knows.
    pub(super) fn settle(&mut self, server: &Checkout) {
        if self.state.vars.withheld == Withheld::Nothing
            && !Arc::ptr_eq(&self.state.vars.reported, &server.reported)
        {
            self.state.know(&server.reported);
        }
    }

    /// The part that others see.
    pub fn me(&self) -> &ClientShared {
        &self.me
    }

    /// Asks the server for the state that the transaction left: settings go with the client from now on; state that is bound to the
    /// connection pins the client to it. True: it is pinned.
    async fn probe(&mut self, server: &mut Checkout) -> Result<bool, Fault> {
        let taint = std::mem::replace(&mut self.state.ties.taint, Effects::NONE);
        let had_temp = server.had_temp;
        server.had_temp |= taint.intersects(MAKES_TEMP);
        if self.state.bounds.session_state == SessionState::Allow
            && taint.intersection(PROBED.difference(BOUND)).is_empty()
        {
            return Ok(false);
        }
        // The client has its answer: a cancel request that comes now is late, and none may hit the probe.
        self.me.unlink();
        self.me.begin(ClientState::Active, Instant::now());
        self.unless_ended(server.settle_cancels()).await??;
        let mut names = std::mem::take(&mut self.state.ties.candidates);
        self.pool.custom_settings.add_to(&mut names);
        let since = moment();
        let doubted = taint.intersects(MOVES_NAMES);
        let max = self.state.bounds.max_prepared;
        let found = self.unless_ended(server.probe(&names, doubted, max)).await??;
        self.me.rest();
        self.pool.custom_settings.refuse(&found.refused);
        let hidden = self.state.hides_settings(found.sees_all);
        if hidden || !found.refused.is_empty() || taint.intersects(Effects::UNKNOWN) {
            server.unvouched = Some(self.me.id);
        }
        self.client.prepare_out();
        if self.state.vars.withheld == Withheld::Nothing {
            self.state.report_differences(&mut server.reported, &mut self.client.out);
        }
        let bytes: usize = found.settings.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > SETTINGS_BYTES_MAX {
            return Err(Fault::Client(Error::settings_bytes(SETTINGS_BYTES_MAX)));
        }
        self.take_settings(&found, since, server);
        self.state.ties.sql_prepared = found.prepare;
        if self.state.vars.withheld != Withheld::Nothing {
            self.give_back(server).await?;
        }
        if !found.is_bound() && !hidden && !self.state.ties.for_good {
            return Ok(false);
        }
        match self.state.bounds.session_state {
            SessionState::Pin => {
                self.count_pinned(&found);
                if found.temp && !std::mem::replace(&mut self.state.ties.plans_renewed, true) && had_temp {
                    // Made where no text shows it.
                    self.unless_ended(server.simple("DISCARD PLANS")).await??;
                }
                self.give_back(server).await?;
                self.me.link(&server.shared);
                Ok(true)
            }
            SessionState::Reject => {
                // Made where no text shows it, inside a function: nobody else may have it.
                server.shared.close_when_free(STATE);
                Ok(false)
            }
            SessionState::Allow => Ok(false),
        }
    }

    /// The settings found on the server connection are the client's from now on.
    fn take_settings(&mut self, found: &Probe, since: u64, server: &mut Checkout) {
        let given_back = std::mem::take(&mut self.state.ties.given_back);
        let base = Arc::clone(&self.state.vars.base);
        let is_told = |name: &str| found.settings.iter().any(|(told, _)| told == name);
        // An empty value and none are the same to the server: what was not given back is empty.
        let is_given_back = |name: &str| given_back.iter().any(|given| **given == *name);
        let emptied =
            base.custom_names().filter(|name| !is_given_back(name) && !is_told(name)).map(|name| (name, ""));
        // SET SESSION AUTHORIZATION takes the role away: that of the startup packet, who may do more, is not the client's again.
        let taken = base.get("role").is_some() && is_told(SESSION_AUTHORIZATION) && !is_told("role");
        let roleless = taken.then_some(("role", "none"));
        let vars = &self.cx.pools.shared().vars;
        let told = found.settings.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let set = vars.intern(told.chain(emptied).chain(roleless));
        (server.vars, server.since) = (Arc::clone(&set), since);
        self.state.vars.want = vars.overlay(&base, &set);
        self.state.vars.since = self.state.vars.want.since(since);
    }

    /// True if all it did was to LISTEN: it is pinned without asking the server, so that `pg_stat_activity` shows the
    /// LISTEN as its last statement.
    fn pins_to_listen(&mut self) -> bool {
        let pins = self.state.bounds.session_state == SessionState::Pin
            && self.state.vars.withheld == Withheld::Nothing
            && self.state.ties.take_listen();
        if pins {
            self.count_pinned(&Probe { listen: true, ..Probe::default() });
        }
        pins
    }

    /// After RESET and DISCARD ALL puts the values of the startup packet back, as PostgreSQL does: on the connection, and in
    /// ParameterStatus.
    async fn give_back(&mut self, server: &mut Checkout) -> Result<(), Fault> {
        let (max, whose) = (self.state.bounds.max_prepared, self.whose());
        self.me.begin(ClientState::Active, Instant::now());
        loop {
            let want = Arc::clone(&self.state.vars.want);
            let settled = self.unless_ended(server.settle_vars(&want, max, whose)).await??;
            let Some(refused) = settled else { break };
            if !self.state.does_without(&refused, &self.cx.pools.shared().vars, &mut self.client.out) {
                return Err(Fault::Server(refused.error));
            }
            server.broken = false;
        }
        self.me.rest();
        let out = &mut self.client.out;
        self.state.report_differences(&mut server.reported, out);
        self.state.put_withheld(out);
        Ok(())
    }

    fn count_pinned(&self, found: &Probe) {
        let Ties { for_good, hidden, .. } = self.state.ties;
        let Probe { listen, advisory_lock, temp, hold_cursor, prepare, .. } = *found;
        for (by, found) in [
            (PinnedBy::Listen, listen),
            (PinnedBy::AdvisoryLock, advisory_lock),
            (PinnedBy::Temporary, temp),
            (PinnedBy::HoldCursor, hold_cursor),
            (PinnedBy::Prepare, prepare),
            (PinnedBy::BackendState, for_good),
            (PinnedBy::HiddenSetting, hidden),
        ] {
            self.pool.stats.pinned(by).fetch_add(u64::from(found), Ordering::Relaxed);
        }
    }

    /// Hot path. Gives the server back to the pool.
    fn unlink(&mut self, mut server: Checkout) {
        self.me.unlink();
        self.me.statements.store(self.state.names.len() as u64, Ordering::Relaxed);
        let now = Instant::now();
        self.me.set_state(ClientState::Idle, now);
        if server.names.unnamed == Some(UNKEPT) {
            server.names.unnamed = None;
        }
        self.state.forget_loan();
        self.add_counts(now);
        self.state.ties.hidden = false;
        if std::mem::take(&mut self.state.ties.for_good) {
            server.shared.close_when_free(STATE);
            return server.release(now);
        }
        if self.settings.server_reset_query_always {
            tokio::spawn(reset(server, self.settings.server_reset_query.clone()));
        } else {
            server.release(now);
        }
    }

    /// A client pinned to its server becomes idle: its work so far is counted now, not only when it leaves, and the time from now on is
    /// not.
    pub(super) fn rest_linked(&mut self) {
        if self.works_since.is_some() {
            self.add_counts(Instant::now());
        }
    }

    /// A client pinned to its server becomes active again.
    pub(super) fn work_linked(&mut self) {
        self.works_since.get_or_insert_with(Instant::now);
    }

    /// Its server connection no longer works for it: adds its counts to the pool's, and shows its new application_name.
    fn add_counts(&mut self, now: Instant) {
        if let Some(name) = self.state.renamed.take() {
            self.me.rename(name);
        }
        let Counts { queries, executed: _, client_parses, server_parses, binds, received, sent, xacts } =
            std::mem::take(&mut self.state.counts);
        let worked = self.works_since.take().map_or(Duration::ZERO, |since| now.duration_since(since));
        let (stats, time) = (&self.pool.stats, worked.as_micros() as u64);
        let add = |to: &std::sync::atomic::AtomicU64, n: u64| {
            if n > 0 {
                to.fetch_add(n, Ordering::Relaxed);
            }
        };
        add(&stats.query_count, queries);
        add(&stats.client_parse_count, client_parses);
        add(&stats.server_parse_count, server_parses);
        add(&stats.bind_count, binds);
        add(&stats.received, received);
        add(&stats.sent, sent);
        add(&stats.xact_count, xacts);
        add(&stats.xact_time, time);
        add(&stats.query_time, time);
    }

    /// The client left: the messages that it had sent are still processed, as PostgreSQL does; then its server connection is cleaned and
    /// given back, or closed if a transaction is open. A client that closed only its sending half still gets its answers and errors.
    async fn leave(&mut self, mut server: Checkout) -> Result<(), Fault> {
        // Its last request may have come together with its leaving.
        self.me.set_state(ClientState::Active, Instant::now());
        let done = self.finish_without_client(&mut server).await;
        self.me.unlink();
        done.map_err(|fault| self.abandon(&server, fault))?;
        self.add_counts(Instant::now());
        // No reset looks a role up again that it logged in with: the next client may mean another one by its name.
        let is_a_role = server.startup.as_ref().is_some_and(|set| set.names_a_role());
        if !server.is_reusable() || is_a_role || self.state.ties.for_good {
            let why = if server.is_reusable() { STATE } else { "its client left in a transaction" };
            server.shared.note_end(why);
            return Ok(());
        }
        let settings = self.pool.settings.load_full();
        let touched = self.state.ties.pinned || self.state.ties.taint.intersects(UNPINS);
        server.had_temp |= self.state.ties.pinned || self.state.ties.taint.intersects(MAKES_TEMP);
        let query = if !self.state.shares_servers() || settings.server_reset_query_always {
            settings.server_reset_query.clone()
        } else if touched {
            // Not the operator's to leave out: what was bound to the connection goes.
            "DISCARD ALL".into()
        } else {
            server.release(Instant::now());
            return Ok(());
        };
        self.me.begin(ClientState::Active, Instant::now());
        let _ = self.unless_ended(reset(server, query)).await;
        Ok(())
    }

    /// Does it end as soon as no transaction is open?
    pub(super) fn is_leaving(&self) -> bool {
        self.draining || self.withdrawn || self.outdated
    }

    /// Obeys its signals. `quiet`: no transaction is open and nothing is owed.
    pub(super) fn obey(&mut self, quiet: bool) -> Result<(), Fault> {
        let signals = self.me.take_signals();
        let told = |signal: Signal| signals & signal as u16 != 0;
        if told(Signal::Kill) {
            return Err(Fault::Client(Error::killed()));
        }
        if told(Signal::Reload) {
            self.take_new_settings(!quiet);
        }
        self.draining |= told(Signal::Drain);
        self.outdated |= told(Signal::ServerOutdated);
        if self.is_leaving() && quiet {
            self.leaves()?;
        }
        for (signal, error) in [
            (Signal::IdleTimeout, Error::timeout(Kind::IdleTimeout, "client_idle_timeout")),
            (
                Signal::IdleTransactionTimeout,
                Error::timeout(Kind::IdleTransactionTimeout, "idle_transaction_timeout"),
            ),
            (Signal::QueryTimeout, Error::timeout(Kind::QueryTimeout, "query_timeout")),
            (Signal::TransactionTimeout, Error::timeout(Kind::TransactionTimeout, "transaction_timeout")),
        ] {
            if told(signal) {
                return Err(Fault::Client(error));
            }
        }
        Ok(())
    }

    /// Between two transactions: ends the session if it is draining or withdrawn and that still holds.
    fn leaves(&mut self) -> Result<(), Fault> {
        let withdrawn = login::withdrawn(&self.cx.settings.load(), &self.me.asked, &self.pool.key);
        let outdated = self.keeps_outdated();
        (self.withdrawn, self.outdated) = (withdrawn.is_some(), outdated.is_some());
        match withdrawn.or_else(|| self.draining.then(Error::shutting_down)).or(outdated) {
            Some(why) => Err(Fault::Client(why)),
            None => Ok(()),
        }
    }

    /// The error if it is pinned to a server connection that is to close.
    fn keeps_outdated(&self) -> Option<Error> {
        let keeps = !self.state.shares_servers() || self.state.ties.pinned;
        let server = self.me.linked().filter(|_| keeps && self.outdated)?;
        let why = server.end().unwrap_or_default();
        server.close_needed.load(Ordering::Relaxed).then(|| Error::server_outdated(why))
    }

    /// Tells the client why it is closed, if it can still receive that.
    async fn tell(&mut self, fault: Fault) {
        self.log_end(&fault);
        let out = &mut self.client.out;
        match &fault {
            Fault::ClientGone => return,
            // The client would take it for the rest of that message.
            _ if self.state.part.cut_short => {}
            Fault::Client(error) => error.clone().fatal().put(out),
            // The server's own words were passed on already.
            Fault::ServerLeft(_) => {}
            Fault::ServerLost(why) => Error::server_lost(why).put(out),
            Fault::ServerViolation(why) => Error::server_violation(why).put(out),
            Fault::Server(body) => b::put_again(out, b::ERROR_RESPONSE, "FATAL", body),
        }
        let _ = tokio::time::timeout(crate::limits::LAST_WORDS, self.client.say_goodbye()).await;
    }

    fn log_end(&self, fault: &Fault) {
        match fault {
            Fault::ClientGone => {}
            Fault::Client(error) => self.cx.closed.count(Some(error.kind())),
            Fault::ServerLost(_) | Fault::ServerLeft(_) => self.cx.closed.count(Some(Kind::ServerLost)),
            Fault::ServerViolation(_) => self.cx.closed.count(Some(Kind::ServerViolation)),
            Fault::Server(_) => self.cx.closed.count(None),
        }
        let ours = matches!(fault, Fault::Client(_) | Fault::ServerViolation(_));
        self.cx.log_end(&self.me, ours, &fault_text(fault));
    }
}

fn fault_text(fault: &Fault) -> String {
    match fault {
        Fault::Client(error) => error.to_string(),
        Fault::ClientGone => "client left".into(),
        Fault::ServerLost(why) | Fault::ServerLeft(why) => format!("server connection lost: {why}"),
        Fault::ServerViolation(why) => format!("server broke the protocol: {why}"),
        Fault::Server(body) => {
            String::from_utf8_lossy(b::ErrorFields::new(body).field(b'M').unwrap_or_default()).into_owned()
        }
    }
}

/// Why a connection serves no other client.
const STATE: &str = "its client left state that lasts as long as it does";

/// How much of the first message there is.
enum There {
    /// It is whole, or it goes on in pieces: a server can work on it.
    Enough,
    /// It must be whole to be understood; the buffer has to hold this many bytes for it (0: nothing more than usual).
    Part(usize),
}

/// How much of the first message is here. A server is asked for only when it can be given something: otherwise it would wait for a slow
/// client, and a message that stays in the buffer would be offered again and again.
fn what_is_there(client: &Conn, max: usize) -> Result<There, Fault> {
    let buf = client.bytes();
    let Some(head) = next_head(buf, max)? else { return Ok(There::Part(0)) };
    if buf.len() >= head.total() {
        return Ok(There::Enough);
    }
    if !may_go_in_pieces(head, buf) {
        return Ok(There::Part(if head.tag == f::BIND {
            buf.len() + READ_BUFFER_BYTES
        } else {
            head.total()
        }));
    }
    Ok(if buf.len() >= READ_BUFFER_BYTES / 2 { There::Enough } else { There::Part(0) })
}

/// Cleans a server connection for the next client, within the time that a login may take; otherwise it is closed and another one made.
async fn reset(mut server: Checkout, query: String) {
    let pool = Arc::clone(server.pool());
    let limit = pool.settings.load().server_connect_timeout;
    match within(limit, clean(&mut server, query)).await {
        Some(Ok(())) => server.release(Instant::now()),
        Some(Err(why)) => server.shared.note_end(why),
        None => {
            server.shared.note_end("server_reset_query took too long");
            events::server_not_reset(&pool.key.database, &pool.key.user);
        }
    }
}

/// Runs the reset query, after which the session's state is gone, prepared statements included.
///
/// # Errors
/// Why it could not be cleaned.
///
/// Cancel safety: none; drop the connection if this is cancelled.
async fn clean(server: &mut Checkout, query: String) -> Result<(), String> {
    if query.is_empty() {
        return Ok(());
    }
    let failed = |why: &str| format!("server_reset_query failed: {why}");
    match server.simple(&query).await {
        Ok(reply) if reply.error.is_none() => {}
        Ok(reply) => {
            let why = b::ErrorFields::new(&reply.error.unwrap_or_default()).outline();
            let PoolKey { database, user, .. } = &server.pool().key;
            events::server_reset_query_failed(database, user, &why);
            return Err(failed(&why));
        }
        Err(lost) => return Err(failed(&lost.why)),
    }
    if !discards_all(&query) {
        server.shared.close_when_free("server_reset_query leaves what DISCARD ALL would take away");
    }
    server.names.clear();
    server.unvouched = None;
    server.vars = Arc::clone(&server.pool().shared().none);
    let pool = Arc::clone(server.pool());
    let greeted = pool.greet(server).await;
    greeted.inspect_err(|why| events::connect_query_failed(&pool.key.database, why))
}
