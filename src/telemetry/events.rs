//! One function for each event: the log line. Messages that met the policy are [`super::audit`]'s.
//!
//! Fields, not sentences; never a statement's text, a parameter or a secret.

use std::fmt::{self, Display, Write as _};
use std::path::Path;
use std::time::Duration;

use super::is_unseen;
use crate::error::Error;

/// Who a client is, in log lines.
#[derive(Debug, Clone, Copy)]
pub struct Who<'a> {
    /// The client's id.
    pub client: u64,
    /// Its user.
    pub user: &'a str,
    /// The database it asked for.
    pub database: &'a str,
    /// Where from.
    pub peer: &'a str,
}

/// What a client or a server said begins no line of its own, and moves no terminal's cursor.
struct OneLine<'a>(&'a dyn Display);

impl Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            if is_unseen(c) {
                write!(f, "{}", c.escape_default())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// A server connection logged in.
pub fn server_connected(database: &str, user: &str, pid: i32, tls: bool) {
    tracing::info!(database, user, server_pid = pid, tls, "server connected");
}

/// A server connection was closed, by us or by the server.
pub fn server_closed(database: &str, user: &str, pid: i32, why: &str) {
    tracing::info!(database, user, server_pid = pid, reason = %OneLine(&why), "server closed");
}

/// A server login failed.
pub fn server_login_failed(database: &str, user: &str, why: &dyn Display) {
    tracing::warn!(database, user, error = %OneLine(why), "server login failed");
}

/// Servers turned out not to match `target_session_attrs`: this many connections to them close.
pub fn servers_abandoned(database: &str, user: &str, servers: &str, connections: usize) {
    tracing::warn!(database, user, servers, connections, "servers left for target_session_attrs");
}

/// A host could not be had, and another was: it comes last for a while.
pub fn host_shunned(database: &str, user: &str, host: &str, why: &dyn Display) {
    tracing::warn!(database, user, host, error = %OneLine(why), "host passed over, and the others first for server_login_retry");
}

/// A server did not answer the check of an idle connection in time: this many connections to it close.
pub fn server_silent(database: &str, user: &str, server: &dyn Display, connections: usize) {
    tracing::warn!(database, user, server = %server, connections, "server left because it does not answer");
}

/// The server has closed this many connections that nobody used.
pub fn servers_gone(database: &str, user: &str, connections: usize) {
    tracing::info!(database, user, connections, "idle connections were closed by the server");
}

/// A host's name no longer has the addresses that this many connections go to: they close.
pub fn addresses_gone(database: &str, user: &str, connections: usize) {
    tracing::info!(database, user, connections, "servers left because their names have other addresses");
}

/// `connect_query` failed on a new server connection.
pub fn connect_query_failed(database: &str, why: &str) {
    tracing::warn!(database, error = why, "connect_query failed");
}

/// `server_reset_query` failed: the connection is closed, and the next client costs a login.
pub fn server_reset_query_failed(database: &str, user: &str, why: &str) {
    tracing::warn!(database, user, error = why, "server_reset_query failed: connection closed");
}

/// `server_check_query` failed, so many times up to now: the connection is used all the same where the server answered with an
/// error, and is closed otherwise.
pub fn server_check_query_failed(database: &str, user: &str, why: &str, times: u64) {
    tracing::warn!(database, user, error = why, times, "server_check_query failed");
}

/// `hosts_file` cannot be read, as it could before: the system is asked for each name.
pub fn hosts_file_unreadable(file: &std::path::Path, why: &dyn Display) {
    tracing::warn!(file = %OneLine(&file.display()), error = %OneLine(why), "hosts_file cannot be read: names are the system's");
}

/// A server connection could not be cleaned in time for the next client.
pub fn server_not_reset(database: &str, user: &str) {
    tracing::warn!(
        database,
        user,
        "server_reset_query took longer than server_connect_timeout: connection closed"
    );
}

/// A cancel request did not reach the server: what it was for goes on there.
pub fn cancel_failed(database: &str, user: &str, why: &dyn Display) {
    tracing::warn!(database, user, error = %OneLine(why), "cancel request not sent to the server");
}

/// A cancel request could not be passed on to a peer; this is the number of them so far.
pub fn peer_not_reached(peer_id: u16, why: &dyn Display, times: u64) {
    tracing::warn!(peer_id, error = %OneLine(why), times, "cancel request not passed on");
}

/// `auth_query` gave no usable answer.
pub fn lookup_failed(database: &str, why: &str) {
    tracing::warn!(database, error = why, "auth_query failed");
}

/// A client logged in.
pub fn client_login(who: Who<'_>, tls: bool) {
    tracing::info!(
        client = who.client,
        user = who.user,
        database = who.database,
        peer = who.peer,
        tls,
        "login"
    );
}

/// A client that was not let in: user and database are known if its startup packet was read.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields of the log line")]
pub struct Stranger<'a> {
    pub user: Option<&'a str>,
    pub database: Option<&'a str>,
    pub peer: &'a str,
}

/// A client's login failed by an error of ours: what it was told, and what only the operator is.
pub fn client_refused(who: Stranger<'_>, error: &Error) {
    let Stranger { user, database, peer } = who;
    let log = error.detail().or(error.log());
    tracing::info!(user, database, peer, error = error.message(), log, "login refused");
}

/// A client's login failed by the server's word.
pub fn client_refused_by_server(who: Stranger<'_>, error: &str) {
    let Stranger { user, database, peer } = who;
    let log = "said by the server";
    tracing::info!(user, database, peer, error, log, "login refused");
}

/// Connections that had not logged in were closed to make room; said when their number since the start has doubled.
pub fn logins_closed(total: u64) {
    tracing::warn!(total, "connections that had not logged in were closed (max_login_conn)");
}

/// Connections can't be accepted; said when their number since the start has doubled.
pub fn accept_failed(why: &dyn Display, total: u64) {
    tracing::warn!(error = %OneLine(why), total, "accept failed");
}

/// A session was closed, by whomever.
pub fn session_ended(who: Who<'_>, why: &str) {
    tracing::info!(
        client = who.client,
        user = who.user,
        database = who.database,
        peer = who.peer,
        reason = why,
        "closed"
    );
}

/// This many lines of the log were lost: what takes them was too slow.
pub fn log_lines_lost(lines: u64) {
    tracing::warn!(lines, "lines of the log were lost: standard error is not read");
}

/// Audit events can't be written any more; said once, until one can.
pub fn audit_failed(why: &dyn Display) {
    tracing::error!(error = %OneLine(why), "audit events can't be written (audit_file)");
}

/// The audit file can't be opened again; its lines go where they went.
pub fn audit_not_reopened(why: &dyn Display) {
    tracing::error!(error = %OneLine(why), "audit_file not reopened");
}

/// Statements were added to an allow-list.
pub fn learned(file: &Path, count: usize) {
    tracing::info!(file = %file.display(), count, "allow_list learned");
}

/// This many statements were learned for one allow-list; no more are, until the next reload.
pub fn learns_no_more(file: &Path, count: usize) {
    tracing::warn!(file = %file.display(), count, "allow_list learns no more until a reload");
}

/// An allow-list could not be written; what it was to get waits.
pub fn not_learned(file: &Path, error: &dyn Display) {
    tracing::warn!(file = %file.display(), error = %OneLine(error), "allow_list_file cannot be written");
}

/// The process listens.
pub fn listening(addr: &str) {
    tracing::info!(addr, "listening");
}

/// Whoever got the better of the process would have the machine.
pub fn runs_as_root() {
    tracing::warn!("runs as root, which nothing here needs: give it an account of its own");
}

/// Fewer files may be open than there may be connections.
pub fn few_files(limit: usize, max_client_conn: usize, needed: usize) {
    tracing::warn!(
        limit,
        max_client_conn,
        needed,
        "fewer files may be open than all clients and pools need: raise the limit (ulimit -n, LimitNOFILE= of systemd) \
         or lower max_client_conn"
    );
}

/// A port is no longer listened on here: new clients are the other processes' (`so_reuseport`).
pub fn left_to_others(addr: &str) {
    tracing::info!(addr, "left to others");
}

/// A reload succeeded or failed.
pub fn reloaded(problems: &[String]) {
    if problems.is_empty() {
        tracing::info!("configuration reloaded");
    } else {
        tracing::error!(problems = problems.join("; "), "configuration not reloaded");
    }
}

/// `auth_file` had changed and was read again, or could not be.
pub fn userlist_reread(problems: &[String]) {
    if problems.is_empty() {
        tracing::info!("auth_file has changed and was read again");
    } else {
        tracing::error!(problems = problems.join("; "), "auth_file has changed and can't be used");
    }
}

/// Files of TLS had changed and were read again, or could not be used.
pub fn tls_reread(problem: Option<&str>) {
    match problem {
        None => tracing::info!("files of TLS have changed and were read again"),
        Some(problem) => tracing::error!(problem, "files of TLS have changed and can't be used"),
    }
}

/// What the averages of all databases together were in one `stats_period`.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields of the log line")]
pub struct Stats {
    pub xacts: u64,
    pub queries: u64,
    pub client_parses: u64,
    pub server_parses: u64,
    pub binds: u64,
    pub logins: u64,
    pub received: u64,
    pub sent: u64,
    pub xact_us: u64,
    pub query_us: u64,
    pub wait_us: u64,
}

/// `log_stats`: counts and bytes for each second, times for each transaction, query, or (`wait_us`) server given.
pub fn stats(stats: &Stats) {
    let Stats { xacts, queries, client_parses, server_parses, binds, logins, .. } = *stats;
    let Stats { received, sent, xact_us, query_us, wait_us, .. } = *stats;
    tracing::info!(
        xacts,
        queries,
        client_parses,
        server_parses,
        binds,
        logins,
        received,
        sent,
        xact_us,
        query_us,
        wait_us,
        "stats"
    );
}

/// SIGUSR1: clients wait for a server connection until they are let go.
pub fn paused_by_signal() {
    tracing::info!("paused: SIGUSR1");
}

/// SIGUSR2, which nothing may have needed.
pub fn resumed_by_signal(paused: bool) {
    tracing::info!("{}", if paused { "resumed: SIGUSR2" } else { "SIGUSR2: nothing was paused" });
}

/// The process is about to drain: it is not ready any more, and goes on letting clients in for `grace`.
pub fn leaving(clients: usize, grace: Duration) {
    tracing::info!(clients, grace_s = grace.as_secs_f64(), "not ready any more");
}

/// The process drains.
pub fn draining(clients: usize) {
    tracing::info!(clients, "draining");
}

/// `shutdown_timeout` is over, and this many clients still have a transaction open.
pub fn drain_cut_short(clients: usize) {
    tracing::warn!(clients, "drained for shutdown_timeout: what is left is closed");
}

/// The process ends, and this many clients are cut off with it.
pub fn ended(clients: usize) {
    tracing::info!(clients, "ended");
}

/// A key stands in the file and has no effect.
pub fn has_no_effect(notice: &dyn Display) {
    tracing::warn!("{notice}");
}

/// A key was changed in the file, and only a restart changes it.
pub fn needs_restart(key: &str) {
    tracing::warn!(key, "changed in the file; takes effect after a restart");
}

/// An operator changed something on the console, or tried to.
pub fn console(who: Who<'_>, command: &str, refused: Option<&str>) {
    let Who { client, user, database, peer } = who;
    match refused {
        None => tracing::info!(client, user, database, peer, command, "console"),
        Some(error) => tracing::info!(client, user, database, peer, command, error, "console refused"),
    }
}
