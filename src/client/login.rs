//! From a client that proved who it is to a session: pool, limits, settings, the greeting.
//!
//! Owns: the order in which a login is refused, ParameterStatus, BackendKeyData, ReadyForQuery.
//! Never: judges secrets (the handshake did). See "Start-up" in the message-flow section of the protocol chapter.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Instant;

use super::Context;
use super::handshake::Authenticated;
use super::session::Session;
use super::state::{Own, State};
use crate::auth::Credential;
use crate::cancel::{ClientShared, NewClient};
use crate::error::{Error, Kind};
use crate::limits::{CLOSED_HALF_WAIT, READ_BUFFER_BYTES};
use crate::net::busy::BusyWait;
use crate::net::conn::Conn;
use crate::net::{Connector, Keepalive, Peer};
use crate::policy::{Rules, judge_startup};
use crate::pool::{self, Busy, Checkout, CheckoutError, CountedIn, Pool, PoolKey, within};
use crate::proto::vars::{SESSION_AUTHORIZATION, VarSet, moment};
use crate::server::Reported;
use crate::server::connect::{ConnectError, Target};
use crate::settings::{Database, Policy, PoolMode, Settings};
use crate::wire::startup::{Replication, Startup};
use crate::wire::{TransactionStatus, backend as b, frontend};

/// Bytes of a cancel key, by the minor of the protocol: 3.0 knows four.
pub fn cancel_key_bytes(minor: u16) -> usize {
    if minor >= 2 { 32 } else { 4 }
}

/// A session and, in session mode, its server.
#[derive(Debug)]
pub struct Admitted {
    /// Run it with [`Session::run`]. Boxed: a future that was given it by value would hold it twice.
    pub session: Box<Session>,
    /// Given to [`Session::run`].
    pub server: Option<Checkout>,
}

/// A login that ended after authentication.
#[derive(Debug)]
pub struct NotAdmitted {
    /// The connection.
    pub client: Conn,
    /// What it asked for.
    pub asked: Box<PoolKey>,
    /// Why it ended.
    pub why: Box<Why>,
}

/// Why a login ended after authentication.
#[derive(Debug)]
pub enum Why {
    /// By us, who say so.
    Refused(Error),
    /// By the server: the body of its ErrorResponse.
    RefusedByServer(Vec<u8>),
    /// The client left while it waited for a server.
    Left,
}

impl From<Error> for Why {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<CheckoutError> for Why {
    fn from(error: CheckoutError) -> Self {
        why_none(error).map_or_else(Self::RefusedByServer, Self::Refused)
    }
}

impl NotAdmitted {
    /// A client that proved who it is, and is refused all the same.
    pub fn new(proven: Authenticated, why: Error) -> Self {
        let asked = Box::new(PoolKey::of(&proven.startup));
        Self { client: proven.client, asked, why: Box::new(why.into()) }
    }

    /// Tells the client why, and logs it.
    ///
    /// Cancel safety: the client may or may not hear it.
    pub async fn tell(mut self, cx: &Context, peer: &str) {
        match &*self.why {
            Why::Refused(error) => {
                cx.log_refused(&peer, Some(&self.asked), error);
                error.clone().fatal().put(&mut self.client.out);
            }
            Why::RefusedByServer(body) => {
                cx.log_refused_by_server(&peer, &self.asked, body);
                b::put_again(&mut self.client.out, b::ERROR_RESPONSE, "FATAL", body);
            }
            Why::Left => return,
        }
        let _ = tokio::time::timeout(crate::limits::LAST_WORDS, self.client.say_goodbye()).await;
    }
}

/// What governs a pool, from the operator's choices.
pub fn pool_settings(settings: &Settings, database: &Database, key: &PoolKey) -> pool::Settings {
    let general = &settings.general;
    let user = settings.users.get(&key.user);
    let chosen = || user.and_then(|u| u.pool_mode).or(database.pool_mode).unwrap_or(general.pool_mode);
    let replicates = key.replication != Replication::None;
    let (size, size_key) = match (user.and_then(|u| u.pool_size), database.pool_size) {
        (Some(size), _) => (size, "pool_size of the user"),
        (None, Some(size)) => (size, "pool_size of the database"),
        (None, None) => (general.default_pool_size, "default_pool_size"),
    };
    pool::Settings {
        mode: if replicates { PoolMode::Session } else { chosen() },
        size,
        size_key,
        // A replication connection serves the client that asked for it.
        min_size: if replicates { 0 } else { database.min_pool_size.unwrap_or(general.min_pool_size) },
        // Names that the fallback entry serves are the clients' choice, and without end.
        kept_alone: !replicates
            && database.user.as_ref() == Some(&key.user)
            && settings.databases.contains_key(&key.database),
        reserve_size: user
            .and_then(|u| u.reserve_pool_size)
            .or(database.reserve_pool_size)
            .unwrap_or(general.reserve_pool_size),
        reserve_timeout: general.reserve_pool_timeout,
        max_db_connections: database.max_db_connections.unwrap_or(general.max_db_connections),
        max_user_connections: user
            .and_then(|u| u.max_user_connections)
            .unwrap_or(general.max_user_connections),
        query_wait_timeout: user
            .and_then(|u| u.query_wait_timeout)
            .or(database.query_wait_timeout)
            .unwrap_or(general.query_wait_timeout),
        server_lifetime: database.server_lifetime.unwrap_or(general.server_lifetime),
        server_idle_timeout: general.server_idle_timeout,
        server_login_retry: general.server_login_retry,
        server_connect_timeout: general.server_connect_timeout,
        server_reset_query: general.server_reset_query.clone(),
        server_reset_query_always: general.server_reset_query_always,
        // A physical replication connection knows no SQL.
        connect_query: database.connect_query.clone().filter(|_| !replicates),
        max_prepared_statements: general.max_prepared_statements,
        session_state: database.session_state.unwrap_or(general.session_state),
        busy_poll: general.busy_poll,
        server_check_delay: general.server_check_delay,
        server_check_query: general.server_check_query.clone(),
        round_robin: general.server_round_robin,
        load_balance_hosts: database.load_balance_hosts,
        dns_max_ttl: general.dns_max_ttl,
        log_connections: general.log_connections,
        log_disconnections: general.log_disconnections,
        coalesce: match user {
            Some(user) => database.coalesce.for_user(&user.coalesce),
            None => database.coalesce.clone(),
        },
    }
}

/// Where a pool's connections log in, and as whom. `credential` is a client's own, and good for its own login only: one that
/// the entry names serves others, too.
pub fn pool_target(
    settings: &Settings,
    tls: Connector,
    database: &Database,
    key: &PoolKey,
    credential: Credential,
) -> Target {
    let general = &settings.general;
    let credential = match &database.user {
        Some(named) => {
            let secret = database.password.as_ref().or_else(|| settings.userlist.get(named));
            secret.map_or(Credential::None, Credential::from_secret)
        }
        None => credential,
    };
    Target {
        hosts: database.host.clone(),
        port: database.port,
        hosts_file: general.hosts_file.clone(),
        attrs: database.target_session_attrs,
        dbname: database.dbname.clone().unwrap_or_else(|| key.database.clone()),
        user: database.user.clone().unwrap_or_else(|| key.user.clone()),
        credential,
        tls,
        keepalive: Keepalive::from(general),
        replication: key.replication,
        startup: startup_settings(database),
        minor: 2,
    }
}

/// What a new pool is made of: what is so now, or what was where the database is no more.
pub fn as_of_now<'a>(
    now: &'a Settings,
    before: (&'a Settings, &'a Database),
    key: &PoolKey,
) -> (&'a Settings, &'a Database) {
    now.database(&key.database).map_or(before, |entry| (now, &**entry))
}

/// A pool before its first client; a login that the entry names needs nothing of one.
pub fn pool_of_entry(
    settings: &Settings,
    tls: &Connector,
    database: &Database,
    key: &PoolKey,
) -> (pool::Settings, Target) {
    let target = pool_target(settings, tls.clone(), database, key, Credential::None);
    (pool_settings(settings, database, key), target)
}

/// What the operator chose for clients that choose nothing.
fn startup_settings(database: &Database) -> Vec<(String, String)> {
    let Database { client_encoding, datestyle, timezone, .. } = database;
    let all = [("client_encoding", client_encoding), ("datestyle", datestyle), ("timezone", timezone)];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect()
}

/// Everything between AuthenticationOk and ReadyForQuery.
///
/// Cancel safety: dropping it closes the connection.
///
/// # Errors
/// The client is refused; it has to be told and closed.
pub async fn admit(cx: &Arc<Context>, proven: Authenticated) -> Result<Admitted, NotAdmitted> {
    if let Err(error) = may_set(cx, &proven) {
        return Err(NotAdmitted::new(proven, error));
    }
    let LetIn { client, me, generation, settings, linked, peer } = let_in(cx, proven).await?;
    let Linked { pool, counted, mode, base, since, reported, server } = linked;
    let governs = pool.settings.load_full();
    let rules = super::rules(&settings, &me.asked, peer.ip());
    let audit = super::Auditor::new(&me, &cx.audit);
    let own = Own {
        pid: me.pid,
        mode,
        rules,
        catalog: pool.catalog,
        texts: Arc::clone(&pool.texts),
        custom_settings: Arc::clone(&pool.custom_settings),
        base,
        since,
        reported,
        audit,
    };
    let session = Box::new(Session {
        client,
        state: State::new(cx, &settings.general, &governs, own),
        me,
        pool,
        _counted: counted,
        cx: Arc::clone(cx),
        generation,
        settings: governs,
        works_since: None,
        draining: false,
        withdrawn: false,
        outdated: false,
        pouring: None,
        refused: None,
        closed: None,
        busy_poll: settings.general.busy_poll,
        waits: BusyWait::default(),
        deferred: None,
        offered_at: None,
    });
    Ok(Admitted { session, server })
}

/// A client that was greeted.
pub(super) struct LetIn {
    pub(super) client: Conn,
    pub(super) me: Arc<ClientShared>,
    /// Reloads seen.
    pub(super) generation: usize,
    pub(super) settings: Arc<Settings>,
    pub(super) linked: Linked,
    pub(super) peer: Peer,
}

/// Finds the pool, and the server where it is the client's own from here on, and greets.
pub(super) async fn let_in(cx: &Arc<Context>, proven: Authenticated) -> Result<LetIn, NotAdmitted> {
    let Authenticated { mut client, startup, peer, credential, .. } = proven;
    let (tls, local) = (client.stream().tls_name(), client.stream().local_addr());
    // Before the settings: a reload while this login waits for a server is then seen at the first message.
    let generation = cx.generation.load(Ordering::Acquire);
    let settings = cx.settings.load_full();
    let who = PoolKey::of(&startup);
    let linking = Box::pin(link(cx, &settings, &who, &startup, (&mut client, peer), credential));
    let late = || Err(Error::timeout(Kind::QueryTimeout, "query_timeout").into());
    let linked = within(settings.timeouts(&who.user).query, linking).await.unwrap_or_else(late);
    let linked = match linked {
        Ok(linked) => linked,
        Err(why) => return Err(NotAdmitted { client, asked: Box::new(who), why: Box::new(why) }),
    };
    // It may have waited long.
    if let Some(error) = withdrawn(&cx.settings.load(), &who, &linked.pool.key) {
        return Err(NotAdmitted { client, asked: Box::new(who), why: Box::new(error.into()) });
    }
    let me = cx.clients.enter(NewClient {
        asked: who,
        console: false,
        pid: linked.server.as_ref().map(|s| s.shared.pid),
        peer_id: settings.general.peer_id,
        key_bytes: cancel_key_bytes(startup.minor),
        peer: peer.addr(),
        local,
        tls,
        application_name: named_by_host(&settings, &startup, peer)
            .or_else(|| startup.param("application_name").map(str::to_owned))
            .unwrap_or_default()
            .into(),
    });
    linked.pool.stats.login_count.fetch_add(1, Ordering::Relaxed);
    put_greeting(&mut client, &linked.reported, &me, &settings.general.login_notify_message);
    Ok(LetIn { client, me, generation, settings, linked, peer })
}

/// A login that found its pool, and what it is to be greeted with.
pub(super) struct Linked {
    pub(super) pool: Arc<Pool>,
    pub(super) counted: CountedIn,
    mode: PoolMode,
    base: Arc<VarSet>,
    since: u64,
    reported: Arc<Reported>,
    /// In session mode: its own.
    pub(super) server: Option<Checkout>,
}

async fn link(
    cx: &Context,
    settings: &Settings,
    who: &PoolKey,
    startup: &Startup,
    (client, peer): (&mut Conn, Peer),
    credential: Credential,
) -> Result<Linked, Why> {
    let (pool, counted) = open_pool(cx, settings, who, credential)?;
    let mode = pool.settings.load().mode;
    let mut own = asked_for(cx, settings, startup, peer);
    if mode != PoolMode::Session {
        own = without_claim(&pool, own, client).await?;
    }
    let base = begins_with(&pool, mode, own, client).await?;
    let since = base.since(moment());
    let (reported, server) = match mode {
        PoolMode::Session => {
            let server = session_server(&pool, &base, client).await?;
            (Arc::clone(&server.reported), Some(server))
        }
        PoolMode::Transaction | PoolMode::Statement => (welcome(&pool, &base, client).await?, None),
    };
    Ok(Linked { pool, counted, mode, base, since, reported, server })
}

/// The pool, if it takes one more.
fn open_pool(
    cx: &Context,
    settings: &Settings,
    who: &PoolKey,
    credential: Credential,
) -> Result<(Arc<Pool>, CountedIn), Error> {
    let database = settings.database(&who.database).ok_or_else(|| Error::unknown_database(&who.database))?;
    let key = who.pool(database);
    let pool = pool_of(cx, settings, database, &key, credential);
    if pool.disabled.load(Ordering::Relaxed) {
        let what = format!("database \"{}\" is disabled (DISABLE on the console)", key.database);
        return Err(Error::new(Kind::DatabaseDisabled, what));
    }
    // Counted first: the login may wait for a server, and those behind it must not take its place.
    let counted = pool.count_in(&who.user);
    match full(cx, settings, database, who) {
        Some(setting) => Err(Error::too_many_clients(setting)),
        None => Ok((pool, counted)),
    }
}

/// Why a client that asked for this may not go on in that pool: its entry is gone, or has the server log in as another.
pub(super) fn withdrawn(settings: &Settings, asked: &PoolKey, pool: &PoolKey) -> Option<Error> {
    match settings.database(&asked.database) {
        None => Some(Error::database_removed(&asked.database)),
        Some(entry) if asked.pool(entry) != *pool => Some(Error::login_changed(&asked.database)),
        Some(_) => None,
    }
}

/// What the policy says of the settings in the startup packet.
fn may_set(cx: &Context, proven: &Authenticated) -> Result<(), Error> {
    let (settings, key) = (cx.settings.load(), PoolKey::of(&proven.startup));
    let rules = rules(&settings, &key, proven.peer.ip());
    cx.judged(proven.source(&key), judge_startup(&rules, sent(&settings, &proven.startup)))
}

/// The settings in the startup packet that are not to be dropped.
fn sent<'a>(settings: &'a Settings, startup: &'a Startup) -> impl Iterator<Item = (&'a str, &'a str)> {
    let kept = |name: &str| !settings.general.drops_startup_parameter(name);
    startup.params.iter().filter(move |(name, _)| kept(name)).map(|(n, v)| (n.as_str(), v.as_str()))
}

/// The settings that a client begins with, of its own.
fn asked_for(cx: &Context, settings: &Settings, startup: &Startup, peer: Peer) -> Arc<VarSet> {
    let named = named_by_host(settings, startup, peer);
    cx.pools
        .shared()
        .vars
        .intern(sent(settings, startup).chain(named.as_deref().map(|name| ("application_name", name))))
}

fn put_greeting(client: &mut Conn, reported: &Reported, me: &ClientShared, notice: &str) {
    client.prepare_out();
    for (name, value) in reported.iter() {
        b::put_parameter_status(&mut client.out, name, value);
    }
    b::put_backend_key_data(&mut client.out, me.pid, &me.cancel_key);
    if !notice.is_empty() {
        b::put_notice(&mut client.out, notice);
    }
    b::put_ready_for_query(&mut client.out, TransactionStatus::Idle);
}

/// `application_name_add_host`: the name with the client's address behind it, as PgBouncer writes it.
fn named_by_host(settings: &Settings, startup: &Startup, peer: Peer) -> Option<String> {
    let name = startup.param("application_name").unwrap_or("app");
    settings.general.application_name_add_host.then(|| match peer.addr() {
        Some(addr) => format!("{name} - {}:{}", addr.ip(), addr.port()),
        None => format!("{name} - unix:{}", std::process::id()),
    })
}

/// The pool, made when it is the first login. What the last login proved is what servers are told from here on: a
/// password may have been changed since the pool was made.
fn pool_of(
    cx: &Context,
    settings: &Settings,
    database: &Database,
    key: &PoolKey,
    credential: Credential,
) -> Arc<Pool> {
    let pool = cx.pools.get(key, || {
        // A reload that this login knows nothing of yet knows nothing of this pool.
        let now = cx.settings.load();
        let (settings, database) = as_of_now(&now, (settings, database), key);
        let tls = (**cx.server_tls.load()).clone();
        let target = pool_target(settings, tls, database, key, credential.clone());
        (pool_settings(settings, database, key), target)
    });
    // A secret that the entry names comes with it.
    if database.user.is_none() && !matches!(credential, Credential::None) {
        pool.log_in_with(&credential);
    }
    pool
}

/// Which limit on clients is passed, with this one counted.
fn full(cx: &Context, settings: &Settings, database: &Database, who: &PoolKey) -> Option<&'static str> {
    let general = &settings.general;
    let max_db = database.max_db_client_connections.unwrap_or(general.max_db_client_connections);
    let max_user = settings
        .users
        .get(&who.user)
        .and_then(|u| u.max_user_client_connections)
        .unwrap_or(general.max_user_client_connections);
    let of_database =
        || cx.pools.of(Some(&who.database)).iter().map(|p| p.clients.load(Ordering::Relaxed)).sum();
    let of_user = || cx.pools.shared().clients_of(&who.user).load(Ordering::Relaxed);
    if max_db > 0 && max_db < of_database() {
        return Some("max_db_client_connections");
    }
    (max_user > 0 && max_user < of_user()).then_some("max_user_client_connections")
}

/// What a client's startup packet sets, on top of what `connect_query` does. In session mode its server is not asked.
async fn begins_with(
    pool: &Arc<Pool>,
    mode: PoolMode,
    own: Arc<VarSet>,
    client: &mut Conn,
) -> Result<Arc<VarSet>, Why> {
    if mode == PoolMode::Session {
        return Ok(own);
    }
    let greeting = while_it_waits(pool, client, pool.greeting()).await?;
    Ok(if greeting.is_empty() { own } else { pool.shared().vars.overlay(&greeting, &own) })
}

/// Session mode: the server that is the client's own, logged in with its settings.
async fn session_server(pool: &Arc<Pool>, base: &Arc<VarSet>, client: &mut Conn) -> Result<Checkout, Why> {
    while_it_waits(pool, client, pool.checkout(&pool.shared().none, Some(base))).await
}

/// Waits for a server as long as the client does: one that has left has no place in the queue. What it sends ahead is kept
/// for its session, and who closed only its own half behind that listens still, and waits a little, as in the session. A drain ends it.
///
/// Cancel safety: that of `work`.
async fn while_it_waits<T>(
    pool: &Pool,
    client: &mut Conn,
    work: impl Future<Output = Result<T, CheckoutError>>,
) -> Result<T, Why> {
    let (mut work, mut closed) = (std::pin::pin!(work), None);
    let mut closing = std::pin::pin!(pool.shared().is_closing());
    std::future::poll_fn(|cx| {
        if let Poll::Ready(got) = work.as_mut().poll(cx) {
            return Poll::Ready(got.map_err(Why::from));
        }
        if closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Error::shutting_down().into()));
        }
        while closed.is_none() && client.bytes().len() < READ_BUFFER_BYTES {
            match client.poll_hear(cx) {
                Poll::Pending => break,
                Poll::Ready(0) if asks_nothing(client.bytes()) => return Poll::Ready(Err(Why::Left)),
                Poll::Ready(0) => closed = Some(Box::pin(tokio::time::sleep(CLOSED_HALF_WAIT))),
                Poll::Ready(_) => {}
            }
        }
        match &mut closed {
            Some(closed) => closed.as_mut().poll(cx).map(|()| Err(Why::Left)),
            None => Poll::Pending,
        }
    })
    .await
}

/// Nothing was sent ahead, or a goodbye.
fn asks_nothing(ahead: &[u8]) -> bool {
    ahead.first().is_none_or(|tag| *tag == frontend::TERMINATE)
}

/// What the client is greeted with: known from an earlier login with the same settings, or asked of a server that
/// is given them (so that a setting PostgreSQL refuses is refused at login, in its words).
async fn welcome(pool: &Arc<Pool>, base: &Arc<VarSet>, client: &mut Conn) -> Result<Arc<Reported>, Why> {
    if let Some(known) = pool.known_welcome(base) {
        return Ok(known);
    }
    let (rest, name) = without_application_name(pool, base);
    if let (Some(name), Some(known)) = (name, rest.as_ref().and_then(|rest| pool.known_welcome(rest))) {
        return Ok(with_application_name(&known, &name));
    }
    let server = server_with(pool, base, client).await?;
    let reported = Arc::clone(&server.reported);
    pool.remember_welcome(base, &reported);
    if let Some(rest) = rest {
        pool.remember_welcome(&rest, &with_application_name(&reported, ""));
    }
    server.release(Instant::now());
    Ok(reported)
}

/// A server that was given these settings, unless it refuses them.
async fn server_with(pool: &Arc<Pool>, want: &Arc<VarSet>, client: &mut Conn) -> Result<Checkout, Why> {
    let (max, began) = (pool.settings.load().max_prepared_statements, Instant::now());
    loop {
        let mut server = while_it_waits(pool, client, pool.checkout_since(want, None, began)).await?;
        match server.settle_in_time(want, max).await {
            None => {}
            Some(Ok(None)) => return Ok(server),
            Some(Ok(Some(refused))) => return Err(Why::RefusedByServer(with_way_out(want, refused.error))),
            // It was others': directly no connection ends under a login that was there before it. One of its own is told.
            Some(Err(_)) if !server.fresh => {}
            Some(Err(lost)) => {
                return Err(lost
                    .said
                    .map_or_else(|| Error::server_lost(&lost.why).into(), Why::RefusedByServer));
            }
        }
    }
}

/// What PostgreSQL takes while a connection begins only, a connection that others had cannot be given: said is where it can.
fn with_way_out(want: &VarSet, error: Vec<u8>) -> Vec<u8> {
    let fields = b::ErrorFields::new(&error);
    let told = fields.field(b'M').unwrap_or_default();
    let names = |name: &str| memchr::memmem::find(told, name.as_bytes()).is_some();
    if fields.sqlstate() != b"55P02" || !want.at_start().any(names) {
        return error;
    }
    let hint = "Server connections are shared, and this one has begun before: leave the setting out \
                (ignore_startup_parameters drops it), or use pool_mode = \"session\".";
    b::with_hint(&error, hint)
}

/// `session_authorization` in a startup packet has no effect in PostgreSQL: whoever logged in is the session's user. Only
/// whether there is such a role, and whether the client might be it, is looked at; the server does that.
async fn without_claim(pool: &Arc<Pool>, own: Arc<VarSet>, client: &mut Conn) -> Result<Arc<VarSet>, Why> {
    let vars = &pool.shared().vars;
    let (claim, rest): (Vec<_>, Vec<_>) = own.iter().partition(|(name, _)| *name == SESSION_AUTHORIZATION);
    if claim.is_empty() {
        return Ok(own);
    }
    let (claim, rest) = (vars.intern(claim), vars.intern(rest));
    server_with(pool, &claim, client).await?.release(Instant::now());
    Ok(rest)
}

/// Most clients differ by their name only: that need not be asked of a server, as long as it is plain.
fn without_application_name(pool: &Pool, base: &Arc<VarSet>) -> (Option<Arc<VarSet>>, Option<String>) {
    let name = base.get("application_name");
    if name.is_some_and(|n| n.len() > 63 || !n.bytes().all(|c| (0x20..0x7f).contains(&c))) {
        return (None, None);
    }
    let rest = base.iter().filter(|(n, _)| *n != "application_name");
    (Some(pool.shared().vars.intern(rest)), Some(name.unwrap_or_default().to_owned()))
}

fn with_application_name(reported: &Arc<Reported>, name: &str) -> Arc<Reported> {
    let mut reported = Arc::clone(reported);
    crate::server::report(&mut reported, b"application_name", name.as_bytes());
    reported
}

/// Why there is no server connection: our error, or the body of the server's own.
pub(super) fn why_none(error: CheckoutError) -> Result<Error, Vec<u8>> {
    match error {
        CheckoutError::Login(error) => match error.response() {
            Some(body) => Err(body.to_vec()),
            None => Ok(Error::server_login(&error.to_string())),
        },
        CheckoutError::Timeout(_, Busy::Unreachable(error)) => match *error {
            ConnectError::Auth(_) => Ok(Error::server_login(&error.to_string())),
            ConnectError::Unfit { .. } => Ok(Error::no_fitting_server(&error.to_string())),
            _ => Ok(Error::server_unreachable(&error.to_string())),
        },
        CheckoutError::Timeout(limit, Busy::Full(setting)) => {
            Ok(Error::query_wait_timeout(limit, Some(setting)))
        }
        CheckoutError::Timeout(limit, Busy::Other) => Ok(Error::query_wait_timeout(limit, None)),
        CheckoutError::Paused(limit) => Ok(Error::paused(limit)),
        CheckoutError::Closed => Ok(Error::shutting_down()),
    }
}

/// The rules for a client from `ip` (`None`: over the Unix socket): the strictest of global, database, user and
/// every network it is in.
pub fn rules(settings: &Settings, key: &PoolKey, ip: Option<IpAddr>) -> Rules {
    let database = settings.database(&key.database).map(|d| &d.policy);
    let user = settings.users.get(&key.user).map(|u| &u.policy);
    let networks = settings.networks.iter().filter(|network| network.holds(ip)).map(|n| &n.policy);
    let policies: Vec<&Policy> =
        std::iter::once(&settings.policy).chain(database).chain(user).chain(networks).collect();
    let mut lists: Vec<_> = policies
        .iter()
        .filter_map(|policy| settings.allow_lists.get(policy.allow_list_file.as_ref()?))
        .cloned()
        .collect();
    lists.sort_by(|a, b| a.file.cmp(&b.file));
    lists.dedup_by(|a, b| a.file == b.file);
    Rules::merge(policies).with_lists(lists)
}
