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

/// The reason shown for a connection that was found dead.
pub const BY_SERVER: &str = "closed by the server";

/// Why there is nothing more to read, for people. For an end without TLS' close_notify, which a server that crashes does not send, rustls'
/// own message only refers to its manual.
pub(crate) fn why_ended(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::from(error.kind()).to_string(),
        _ => error.to_string(),
    }
}

/// Are two logins, or a connection and a client, for the same startup settings? See [`ServerConn::is_for`].
pub fn same_startup(one: Option<&Arc<VarSet>>, other: Option<&Arc<VarSet>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

/// The part of a server connection that the console and cancel requests may see.
#[derive(Debug)]
pub struct ServerShared {
    /// Never reused within a process.
    pub id: u64,
    /// The backend's process id.
    pub pid: i32,
    /// Its secret.
    pub key: CancelKey,
    /// The server and its TLS, for cancel requests.
    pub target: Arc<connect::Target>,
    /// Where it is.
    pub address: connect::Address,
    /// Our address and the server's, for the console.
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
    /// Why it is to be closed, or was.
    end: OnceLock<Cow<'static, str>>,
    /// The server may have changed its role since the login: it is asked before another client gets the connection.
    pub role_doubted: AtomicBool,
    /// Prepared statements on it, for the console.
    pub statements: AtomicUsize,
}

/// `server_lifetime` less up to a fifth, by the connection's number. Connections that were opened together, at a start or after an
/// outage, would otherwise end together, and clients wait for as many logins at once.
fn lifetime_of(id: u64, lifetime: Duration) -> Duration {
    // Numbers that follow each other are far apart behind this.
    let share = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u32;
    lifetime - lifetime / (5 * 256) * share
}

impl ServerShared {
    /// Marks it to be closed as soon as it is free. False: it was marked already.
    pub fn close_when_free(&self, why: &'static str) -> bool {
        self.note_end(why);
        !self.close_needed.swap(true, Ordering::Relaxed)
    }

    /// Whether its age exceeds its share of `server_lifetime` ([`lifetime_of`]).
    pub fn has_lived_for(&self, lifetime: Duration, now: Instant) -> bool {
        let age = now.duration_since(self.connected);
        // Cheap for most connections: asked each time one comes back.
        age.as_secs() >= lifetime.as_secs() / 5 * 4 && age > lifetime_of(self.id, lifetime)
    }

    /// Notes why it closes, for the log; the first reason counts.
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

    /// The server answered a client's message with an error of this SQLSTATE.
    pub fn heard_error(&self, sqlstate: &[u8]) {
        match sqlstate {
            // The server's state is in doubt: no other client gets this connection.
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

/// A cancel request under way. If it was sent and the server has not confirmed that it dealt with it, it may take effect at any later
/// time: no other client gets the connection that it is for.
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

/// A number that no other client or server connection of this process has.
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
    /// Changes to `names` by units of pgsluice's own that are under way.
    pub own_names: ClientNames,
    /// Identifies the server and the start of it that it is connected to, once that was asked; empty: the server does not say.
    pub incarnation: Option<Box<[u8]>>,
    /// Settings on it that differ from its login's.
    pub vars: Arc<VarSet>,
    /// The roles in its settings had these names at this moment or later.
    pub since: u64,
    /// In session mode, the startup settings that it logged in with for one client; `None`: clients share it.
    pub startup: Option<Arc<VarSet>>,
    /// What it reported last.
    pub reported: Arc<Reported>,
    /// The part that others see.
    pub shared: Arc<ServerShared>,
    /// The last answer (mark) of each guard statement on it, by the statement's id.
    pub marks: Vec<(u64, Box<str>)>,
    /// The worker whose reactor its socket is registered with.
    pub worker: usize,
    /// When it was last given back.
    pub idle_since: Instant,
    /// It comes directly from its login.
    pub fresh: bool,
    /// The id of a client whose statements may have made settings that no catalogue lists (custom ones, set inside a function): another
    /// client gets the connection with all settings reset.
    pub unvouched: Option<u64>,
    /// NotificationResponse messages that came during round trips of pgsluice's own, whole. They belong to the linked client, which takes
    /// them before it goes on ([`Session::relay`](crate::client)); the next client never sees them.
    pub heard: Vec<u8>,
    /// Statement names were passed to it unchanged (`max_prepared_statements = 0`): any name may be some client's statement.
    pub names_passed: bool,
    /// A temporary object was, or may have been, made on it: the temporary schema is in the search path, which the next one does not change.
    pub had_temp: bool,
    /// It must not be used any more.
    pub broken: bool,
    /// Bytes of a message of the server still to come, when it is passed on in pieces.
    pub streaming: usize,
    /// The error of a write; messages that the server sent before may still be read.
    unheard: Option<io::Error>,
}

impl ServerConn {
    /// A new one from a login on this thread.
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
        // Messages that are not allowed here stay unread, and no client gets such a connection.
        let _ = new.take_unasked();
        new
    }

    /// Did it log in for these settings of one client, or (`None`) to be shared? That does not change when a reload changes
    /// `pool_mode`: clients that share a connection do not know what another one logged in with, and a client in session
    /// mode expects that nothing else is set on it.
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

    /// Reads the server's last message on an idle connection that it closed, and notes it as the reason.
    pub fn note_last_words(&self) {
        let first = frame::whole(self.conn.bytes(), SMALL_MESSAGE_BYTES_MAX).ok().flatten();
        let said = first.filter(|(head, _)| head.tag == b::ERROR_RESPONSE);
        self.shared.note_end(match said {
            Some((_, body)) => format!("{BY_SERVER}: {}", b::ErrorFields::new(body).outline()).into(),
            None => Cow::Borrowed(BY_SERVER),
        });
    }

    /// Has no write to it failed?
    pub fn hears(&self) -> bool {
        self.unheard.is_none()
    }

    /// Hot path. Is an idle connection still good? Without a system call if nothing came. Messages that a server may send unasked
    /// are taken in; an error or the end of the stream means that it is not.
    pub fn check_idle(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match self.conn.poll_fill(&mut cx) {
                // Part of a message: the next client must not get its rest.
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

    /// Appends a Parse unless the statement is there already; closes the oldest ones when there are more than `max`. `action` is
    /// [`Action::Skip`] inside a client's unit, [`Action::Own`] inside one of pgsluice's own.
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

    /// Counts `id` as held from now on; appends a Close for each statement that has to go.
    pub fn make_room(&mut self, id: u64, names: &mut ClientNames, max: usize, action: Action) {
        for oldest in self.names.add(id, max.max(1)) {
            self.put_close(oldest, names, action);
        }
        self.shared.statements.store(self.names.len(), Ordering::Relaxed);
    }

    /// Appends a Sync whose answer goes to no client.
    pub fn put_sync(&mut self) {
        self.conn.prepare_out();
        f::put_empty(&mut self.conn.out, f::SYNC);
        self.pipeline.push(Kind::Sync, Action::Own, false);
    }

    /// Appends a Close for a statement that the names do not count any more.
    pub fn put_close(&mut self, id: u64, names: &mut ClientNames, action: Action) {
        let name = format!("{}{id}", crate::proto::prepared::SERVER_NAME_PREFIX);
        f::put_target(&mut self.conn.out, f::CLOSE, b'S', name.as_bytes());
        self.pipeline.push(Kind::Close, action, true);
        names.close_on_server(id);
    }

    /// Hot path. Are the settings `want` known to be set here, for `whose`?
    pub fn has_vars(&self, want: &Arc<VarSet>, whose: Whose) -> bool {
        Arc::ptr_eq(&self.vars, want) && self.since >= whose.since && !self.is_unvouched(whose.client)
    }

    /// Do the settings `want` differ from those here in application_name at most?
    pub fn differs_in_name_only(&self, want: &VarSet, whose: Whose) -> bool {
        self.since >= whose.since && !self.is_unvouched(whose.client) && self.vars.equals_but_for_name(want)
    }

    /// Does it need a reset for `client`? Not if that client itself made the settings.
    fn is_unvouched(&self, client: u64) -> bool {
        self.unvouched.is_some_and(|made_by| made_by != client)
    }

    /// Appends one unit that changes this connection's settings into `want`, for `whose`, unless they are known to be equal.
    /// Returns true if something was appended.
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

    /// The changes from the settings `have`, which are those here, to `want`, for `whose`.
    fn steps<'a>(&self, have: &'a VarSet, want: &'a VarSet, whose: Whose) -> Vec<Change<'a>> {
        if self.is_unvouched(whose.client) {
            changes_from_anything(have, want)
        } else {
            changes(have, want, self.since < whose.since)
        }
    }

    /// Would a transaction of pgsluice's own wait for other transactions to end, by the settings here (deferrable), unless it says otherwise?
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

    /// Appends Bind and Execute of a statement of pgsluice's own.
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

    /// Hot path. Writes the output buffer. If writing fails the rest is dropped: messages that the server sent before come first, and
    /// [`ServerConn::poll_read`] returns the error when there are no more.
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

/// As [`SET_CONFIG`], with the value as hexadecimal digits of its UTF-8 form. The answer does not hold the value: the client
/// encoding may lack its characters.
static SET_CONFIG_HEX: OwnStatement = OwnStatement::new(|| {
    setting_of_texts(
        "SELECT pg_catalog.set_config($1,pg_catalog.convert_from(pg_catalog.decode($2,'hex'),'UTF8'),false) IS NULL",
    )
});

fn setting_of_texts(sql: &str) -> Arc<Statement> {
    Statement::new(sql.as_bytes(), &[0, 0, 0, 25, 0, 0, 0, 25], Effects::NONE)
}

/// Run first in a transaction, so that it does not wait for others. No other statement of pgsluice's own has its tag.
pub const AT_ONCE_SQL: &str = "SET transaction_deferrable = off";

static AT_ONCE: OwnStatement = OwnStatement::new(|| Statement::own(AT_ONCE_SQL));

/// Resets all settings but role and session_authorization, also those that no catalogue lists.
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
