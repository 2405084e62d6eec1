//! One connection to PostgreSQL after its login.
//!
//! Owns: the connection, the answers owed on it, the statements and settings that it has. Never: decides which client gets it
//! (the pool does) or what a client may send (the session does).

pub mod connect;
pub mod internal;
pub mod names;
mod reported;
pub mod role;

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

pub use self::reported::{Reported, are_equal, report};
use crate::limits::SMALL_MESSAGE_BYTES_MAX;
use crate::net::conn::Conn;
use crate::proto::pipeline::{Action, Kind, Pipeline};
use crate::proto::prepared::{ClientNames, OwnStatement, ServerNames, Statement};
use crate::proto::vars::{ALL, Change, DEFERRABLE, VarSet, Whose, changes, changes_from_anything, now};
use crate::settings::TargetSessionAttrs;
use crate::sql::effects::Effects;
use crate::wire::{CancelKey, backend as b, frame, frontend as f};

/// Why a connection ended that was found dead.
pub const BY_SERVER: &str = "closed by the server";

/// Why there is nothing more to read, for people. Of an end without TLS' own word of farewell, which a server that dies does not send,
/// rustls tells where its manual speaks of it.
pub(crate) fn why_ended(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::from(error.kind()).to_string(),
        _ => error.to_string(),
    }
}

/// Are two logins, or a connection and who wants one, for the same? See [`ServerConn::is_for`].
pub fn same_startup(one: Option<&Arc<VarSet>>, other: Option<&Arc<VarSet>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

/// What others may see of a server connection: the console, a cancel request.
#[derive(Debug)]
pub struct ServerShared {
    /// Never reused within a process.
    pub id: u64,
    /// The backend's process id.
    pub pid: i32,
    /// Its secret.
    pub key: CancelKey,
    /// How a cancel request gets to it.
    pub target: Arc<connect::Target>,
    /// Where it is.
    pub address: connect::Address,
    /// Our end and theirs, for the console.
    pub addr: Option<(SocketAddr, SocketAddr)>,
    /// TLS on this connection: its version and cipher suite.
    pub tls: Option<&'static str>,
    /// When it logged in.
    pub connected: Instant,
    /// Cancel requests on their way to it; it does not go to another client meanwhile.
    pub cancels: AtomicUsize,
    /// The client it serves, 0: none.
    pub client: AtomicU64,
    /// Close it as soon as it is free (RECONNECT, changed settings).
    pub close_needed: AtomicBool,
    /// Why it is to be closed, or was, once that is known.
    end: OnceLock<Cow<'static, str>>,
    /// The server may not be any more what it was at the login: it is asked before another client gets the connection.
    pub role_doubted: AtomicBool,
    /// Prepared statements on it, for the console.
    pub statements: AtomicUsize,
}

/// Connections that were opened together, at a start or after an outage, would end together each time, and their clients wait for
/// as many logins at once. So each ends by up to a fifth earlier, by its number.
fn lifetime_of(id: u64, lifetime: Duration) -> Duration {
    // Numbers that follow each other are far apart behind this.
    let share = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u32;
    lifetime - lifetime / (5 * 256) * share
}

impl ServerShared {
    /// It is closed as soon as it is free. False: that was known.
    pub fn close_when_free(&self, why: &'static str) -> bool {
        self.note_end(why);
        !self.close_needed.swap(true, Ordering::Relaxed)
    }

    /// Whether it has lived for `server_lifetime`, or for as much less as is its own.
    pub fn has_lived_for(&self, lifetime: Duration, now: Instant) -> bool {
        let age = now.duration_since(self.connected);
        // Of most that is told with less arithmetic.
        age.as_secs() >= lifetime.as_secs() / 5 * 4 && age > lifetime_of(self.id, lifetime)
    }

    /// What is known first of why it closes is what the log says.
    pub fn note_end(&self, why: impl Into<Cow<'static, str>>) {
        let _ = self.end.set(why.into());
    }

    /// See [`ServerShared::note_end`].
    pub fn end(&self) -> Option<&str> {
        self.end.get().map(|why| &**why)
    }

    /// Sends it a cancel request, encrypted if it is itself, and waits until the server has dealt with that.
    ///
    /// Cancel safety: dropping the future may leave the request sent or unsent.
    ///
    /// # Errors
    /// As [`connect::cancel`].
    pub async fn cancel(&self, limit: Duration) -> Result<(), connect::ConnectError> {
        let encrypted = self.tls.is_some();
        let mut request = Request { server: self, in_doubt: false };
        let sent = &mut request.in_doubt;
        connect::cancel(&self.target, &self.address, encrypted, (self.pid, &self.key), limit, sent).await?;
        request.in_doubt = false;
        Ok(())
    }

    /// The server reported a new value of `name`.
    pub fn heard_of(&self, name: &[u8]) {
        if self.target.attrs != TargetSessionAttrs::Any && role::is_changed_by(name) {
            self.role_doubted.store(true, Ordering::Relaxed);
        }
    }

    /// The server said an error with this SQLSTATE to a client's message.
    pub fn heard_error(&self, sqlstate: &[u8]) {
        match sqlstate {
            // The server is not what it should be: nobody else is given this connection.
            b"XX000" => drop(self.close_when_free("the server had an internal error")),
            // It does not write, because it may not or because the transaction is read-only.
            b"25006"
                if matches!(
                    self.target.attrs,
                    TargetSessionAttrs::ReadWrite | TargetSessionAttrs::Primary
                ) =>
            {
                self.role_doubted.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// A cancel request. One that was sent, and of which the server did not say that it has dealt with it, may strike any time from then on:
/// nobody else gets the connection that it is for.
struct Request<'a> {
    server: &'a ServerShared,
    in_doubt: bool,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.in_doubt {
            self.server.close_when_free("a cancel request may be on its way");
        }
    }
}

/// A number that no other connection has, of a client or to a server.
pub fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A logged-in connection.
#[derive(Debug)]
pub struct ServerConn {
    /// The socket and its buffers.
    pub conn: Conn,
    /// Answers owed on it.
    pub pipeline: Pipeline,
    /// Prepared statements on it.
    pub names: ServerNames,
    /// What units of our own that are under way change in `names`.
    pub own_names: ClientNames,
    /// Which life of which server it is connected to, once that was asked; empty: the server does not say.
    pub incarnation: Option<Box<[u8]>>,
    /// Settings on it that differ from its login's.
    pub vars: Arc<VarSet>,
    /// Whoever its settings name was called so at this moment, or later.
    pub since: u64,
    /// Settings it logged in with for one client, in session mode; `None`: clients share it.
    pub startup: Option<Arc<VarSet>>,
    /// What it reported last.
    pub reported: Arc<Reported>,
    /// Visible to others.
    pub shared: Arc<ServerShared>,
    /// Of statements on it that guard a table: the mark that they answered last, by the statement's id.
    pub marks: Vec<(u64, Box<str>)>,
    /// The worker whose reactor its socket is registered with.
    pub worker: usize,
    /// When it was last given back.
    pub idle_since: Instant,
    /// It came from its login without having been idle.
    pub fresh: bool,
    /// What ran on it for this client may have made settings that no catalogue shows (those of no module, set inside
    /// a function): another client gets it with all settings reset.
    pub unvouched: Option<u64>,
    /// NotificationResponse messages that came in round trips of ours, whole. They are those of the client that is
    /// linked, which takes them before it goes on ([`Session::relay`](crate::client)); who comes next never sees them.
    pub heard: Vec<u8>,
    /// Names of statements passed to it as they are (`max_prepared_statements = 0`): there may be anybody's behind any name.
    pub names_passed: bool,
    /// Somebody made a temporary object on it, or may have: the search path knows their schema, and the next one changes nothing there.
    pub had_temp: bool,
    /// Nothing more may be done with it.
    pub broken: bool,
    /// Bytes of a message of the server still to come, when it is passed on in pieces.
    pub streaming: usize,
    /// Why it does not hear any more; it may still have something to say.
    unheard: Option<io::Error>,
}

impl ServerConn {
    /// From a login on this thread.
    pub fn new(
        login: connect::Login,
        target: Arc<connect::Target>,
        startup: Option<Arc<VarSet>>,
        none: Arc<VarSet>,
        worker: usize,
    ) -> Self {
        let now = Instant::now();
        let reported = Reported::new(login.params);
        let shared = ServerShared {
            id: next_id(),
            pid: login.pid,
            key: login.key,
            target,
            address: login.address,
            addr: login.stream.addrs(),
            tls: login.stream.tls_name(),
            connected: now,
            cancels: AtomicUsize::new(0),
            client: AtomicU64::new(0),
            close_needed: AtomicBool::new(false),
            end: OnceLock::new(),
            role_doubted: AtomicBool::new(false),
            statements: AtomicUsize::new(0),
        };
        let mut new = Self {
            conn: Conn::new(login.stream, &login.rest),
            pipeline: Pipeline::default(),
            names: ServerNames::default(),
            own_names: ClientNames::default(),
            incarnation: None,
            vars: none,
            since: 0,
            startup,
            reported: Arc::new(reported),
            shared: Arc::new(shared),
            marks: Vec::new(),
            worker,
            idle_since: now,
            fresh: true,
            unvouched: None,
            heard: Vec::new(),
            names_passed: false,
            had_temp: false,
            broken: false,
            streaming: 0,
            unheard: None,
        };
        // What it may not say stays unread: nobody gets such a connection.
        let _ = new.take_unasked();
        new
    }

    /// Did it log in for this, the settings of one client or (`None`) for who shares it? What a connection was for is what
    /// it stays for when a reload changes `pool_mode`: those who share one know nothing of what another logged in with, and
    /// who has one alone expects that nothing is set on it.
    pub fn is_for(&self, startup: Option<&Arc<VarSet>>) -> bool {
        same_startup(self.startup.as_ref(), startup)
    }

    /// Moves the socket to this thread's reactor.
    ///
    /// # Errors
    /// The socket can't be registered; the connection is lost then.
    pub fn rehome(self: Box<Self>, worker: usize) -> io::Result<Box<Self>> {
        let this = *self;
        // The new reactor would not know what came before, and that is most likely why the server goes.
        if this.conn.stream().has_unread()? {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(Box::new(Self { conn: this.conn.rehome()?, worker, ..this }))
    }

    /// The mark of a guarding statement, while the statement is there.
    pub fn mark(&self, id: u64) -> Option<&str> {
        let (_, mark) = self.marks.iter().find(|(known, _)| *known == id)?;
        self.names.holds(id).then_some(mark)
    }

    /// Remembers a mark, or forgets it.
    pub fn set_mark(&mut self, id: u64, mark: Option<&str>) {
        self.marks.retain(|(known, _)| *known != id && self.names.holds(*known));
        self.marks.extend(mark.map(|mark| (id, mark.into())));
    }

    /// May another client have it? Nothing owed, no block open, nothing unread, no cancel under way.
    pub fn is_reusable(&self) -> bool {
        !self.broken
            && self.pipeline.is_quiet()
            && self.streaming == 0
            && self.conn.bytes().is_empty()
            && self.conn.is_flushed()
            && self.hears()
    }

    /// What an idle one was closed with by the server, if it said so: what it said last is still to be read.
    pub fn note_last_words(&self) {
        let first = frame::whole(self.conn.bytes(), SMALL_MESSAGE_BYTES_MAX).ok().flatten();
        let said = first.filter(|(head, _)| head.tag == b::ERROR_RESPONSE);
        self.shared.note_end(match said {
            Some((_, body)) => format!("{BY_SERVER}: {}", b::ErrorFields::new(body).outline()).into(),
            None => Cow::Borrowed(BY_SERVER),
        });
    }

    /// Nothing that was written to it failed to be.
    pub fn hears(&self) -> bool {
        self.unheard.is_none()
    }

    /// Hot path. Looks whether an idle connection is still good, without a system call when nothing came.
    /// What a server may send unasked is taken in; an error or the end means it is not.
    pub fn check_idle(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match self.conn.poll_fill(&mut cx) {
                // Half a message: what it will be, nobody who comes next shall find out.
                Poll::Pending => return self.conn.bytes().is_empty(),
                Poll::Ready(Ok(n)) if n > 0 && self.take_unasked().is_ok() => {}
                Poll::Ready(_) => return false,
            }
        }
    }

    /// Takes in ParameterStatus and notices that arrived while nothing was owed.
    fn take_unasked(&mut self) -> Result<(), ()> {
        while let Some((head, body)) =
            frame::whole(self.conn.bytes(), SMALL_MESSAGE_BYTES_MAX).map_err(|_| ())?
        {
            match head.tag {
                b::PARAMETER_STATUS => {
                    let (name, value) = b::parameter_status(body).map_err(|_| ())?;
                    if report(&mut self.reported, name, value) {
                        self.shared.heard_of(name);
                    }
                }
                b::NOTICE_RESPONSE | b::NOTIFICATION_RESPONSE => {}
                _ => return Err(()),
            }
            self.conn.consume(head.total());
        }
        Ok(())
    }

    /// Appends a Parse of ours unless the statement is there already; closes the oldest ones when there are more
    /// than `max`. `action` is [`Action::Skip`] inside a client's unit, [`Action::Own`] inside one of ours.
    pub fn ensure(&mut self, statement: &Statement, names: &mut ClientNames, max: usize, action: Action) {
        if self.names.holds(statement.id) {
            return;
        }
        self.make_room(statement.id, names, max, action);
        f::put_parse(
            &mut self.conn.out,
            statement.server_name.as_bytes(),
            &statement.query,
            &statement.types,
        );
        self.pipeline.push(Kind::Parse, action, true);
        names.parse_on_server(statement.id);
    }

    /// Counts `id` as held from here on; sends a Close for each statement that has to go.
    pub fn make_room(&mut self, id: u64, names: &mut ClientNames, max: usize, action: Action) {
        for oldest in self.names.add(id, max.max(1)) {
            self.put_close(oldest, names, action);
        }
        self.shared.statements.store(self.names.len(), Ordering::Relaxed);
    }

    /// Appends a Sync of ours; its answer is nobody's.
    pub fn put_sync(&mut self) {
        self.conn.prepare_out();
        f::put_empty(&mut self.conn.out, f::SYNC);
        self.pipeline.push(Kind::Sync, Action::Own, false);
    }

    /// Appends a Close of ours for a statement that the names do not count any more.
    pub fn put_close(&mut self, id: u64, names: &mut ClientNames, action: Action) {
        let name = format!("{}{id}", crate::proto::prepared::SERVER_NAME_PREFIX);
        f::put_target(&mut self.conn.out, f::CLOSE, b'S', name.as_bytes());
        self.pipeline.push(Kind::Close, action, true);
        names.close_on_server(id);
    }

    /// Hot path. The settings `want` are known to be set here, for `whose`.
    pub fn has_vars(&self, want: &Arc<VarSet>, whose: Whose) -> bool {
        Arc::ptr_eq(&self.vars, want) && self.since >= whose.since && !self.is_unvouched(whose.client)
    }

    /// Of the settings `want` none but application_name may differ from those here.
    pub fn differs_in_name_only(&self, want: &VarSet, whose: Whose) -> bool {
        self.since >= whose.since && !self.is_unvouched(whose.client) && self.vars.equals_but_for_name(want)
    }

    /// What a client itself made here needs no reset.
    fn is_unvouched(&self, client: u64) -> bool {
        self.unvouched.is_some_and(|made_by| made_by != client)
    }

    /// Appends one unit of ours that turns this connection's settings into `want`, for `whose`.
    /// Nothing is sent when they are known to be equal. Returns true when something was appended.
    pub fn apply_vars(
        &mut self,
        want: &Arc<VarSet>,
        names: &mut ClientNames,
        max: usize,
        whose: Whose,
    ) -> bool {
        if self.has_vars(want, whose) {
            return false;
        }
        self.conn.prepare_out();
        let have = Arc::clone(&self.vars);
        let unvouched = self.is_unvouched(whose.client);
        let anew = self.since < whose.since;
        if self.may_wait_for_others() {
            self.put_own(&AT_ONCE, &[], names, max);
        }
        for step in self.steps(&have, want, whose) {
            self.put_setting(&step, names, max);
        }
        if unvouched || anew || have.identity() != want.identity() {
            self.since = now();
        }
        if unvouched {
            self.unvouched = None;
        }
        self.put_sync();
        self.vars = Arc::clone(want);
        true
    }

    /// The steps from the settings `have`, which are those here, to `want`, for `whose`.
    fn steps<'a>(&self, have: &'a VarSet, want: &'a VarSet, whose: Whose) -> Vec<Change<'a>> {
        if self.is_unvouched(whose.client) {
            changes_from_anything(have, want)
        } else {
            changes(have, want, self.since < whose.since)
        }
    }

    /// A transaction of ours may wait until those of others have ended, by what is set here, unless it says that it does not.
    pub fn may_wait_for_others(&self) -> bool {
        self.unvouched.is_some() || self.vars.get(DEFERRABLE).is_some()
    }

    fn put_setting(&mut self, step: &Change<'_>, names: &mut ClientNames, max: usize) {
        let name = Some(step.name.as_bytes());
        match step.value {
            None if step.name == ALL => self.put_own(&RESET_ALL, &[], names, max),
            // Bytes outside ASCII would be read in the client encoding that the connection happens to have.
            Some(value) if !value.is_ascii() => {
                let hex: String = value.bytes().map(|b| format!("{b:02x}")).collect();
                let params = [name, Some(hex.as_bytes())];
                self.put_own(&SET_CONFIG_HEX, &params, names, max);
            }
            value => self.put_own(&SET_CONFIG, &[name, value.map(str::as_bytes)], names, max),
        }
    }

    /// Appends Bind and Execute of ours.
    pub(crate) fn put_own(
        &mut self,
        statement: &Statement,
        params: &[Option<&[u8]>],
        names: &mut ClientNames,
        max: usize,
    ) {
        self.ensure(statement, names, max, Action::Own);
        f::put_bind_text(&mut self.conn.out, statement.server_name.as_bytes(), params);
        self.pipeline.push(Kind::Bind, Action::Own, false);
        f::put_execute(&mut self.conn.out, b"", 0);
        self.pipeline.push(Kind::Execute, Action::Own, false);
    }

    /// Hot path. Writes what waits. What can't be written any more is dropped: what the server said before that stands
    /// in front of the error, which [`ServerConn::poll_read`] tells when nothing more comes.
    ///
    /// Cancel safety: as [`Conn::poll_flush`].
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.conn.poll_flush(cx).map(|sent| {
            if let Err(error) = sent {
                self.conn.discard_out();
                self.unheard = Some(error);
            }
        })
    }

    /// Hot path. Reads once.
    ///
    /// # Errors
    /// The socket's, also that of a write before, and its end.
    ///
    /// Cancel safety: as [`Conn::poll_fill`].
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let end = match ready!(self.conn.poll_fill(cx)) {
            Ok(0) => io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => return Poll::Ready(Ok(())),
            Err(error) => error,
        };
        Poll::Ready(Err(self.unheard.take().unwrap_or(end)))
    }
}

/// Sets one setting; NULL resets it.
static SET_CONFIG: OwnStatement =
    OwnStatement::new(|| setting_of_texts("SELECT pg_catalog.set_config($1,$2,false)"));

/// The same with the value as hexadecimal digits of its UTF-8 form. The answer does not hold it: the client encoding
/// may have no such characters.
static SET_CONFIG_HEX: OwnStatement = OwnStatement::new(|| {
    setting_of_texts(
        "SELECT pg_catalog.set_config($1,pg_catalog.convert_from(pg_catalog.decode($2,'hex'),'UTF8'),false) IS NULL",
    )
});

fn setting_of_texts(sql: &str) -> Arc<Statement> {
    Statement::new(sql.as_bytes(), &[0, 0, 0, 25, 0, 0, 0, 25], Effects::NONE)
}

/// Says that a transaction waits for no others, in front of all that it does. Its tag is nothing else's of ours.
pub const AT_ONCE_SQL: &str = "SET transaction_deferrable = off";

static AT_ONCE: OwnStatement = OwnStatement::new(|| Statement::own(AT_ONCE_SQL));

/// All settings but role and session_authorization, also those that no catalogue shows.
static RESET_ALL: OwnStatement = OwnStatement::new(|| Statement::own("RESET ALL"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_were_opened_together_do_not_end_together() {
        let lifetime = Duration::from_secs(3600);
        let window = Duration::from_secs(720);
        // As many as a pool may have, and their clients between them.
        for (first, step) in [(1, 1), (1_000, 1), (5, 2), (77, 3)] {
            let mut tenths = [0; 10];
            for id in (0..200).map(|n| first + n * step) {
                let early = lifetime - lifetime_of(id, lifetime);
                assert!(early < window, "{id}: {early:?}");
                tenths[(early.as_nanos() * 10 / window.as_nanos()) as usize] += 1;
            }
            assert!(tenths.iter().all(|n| (15..=25).contains(n)), "{tenths:?}");
        }
        assert_eq!(lifetime_of(1, Duration::ZERO), Duration::ZERO);
    }
}
