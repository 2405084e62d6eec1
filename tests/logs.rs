//! What the log says of connections that come and go, and which setting has it say so.

use crate::support;
use support::console::{set, tell};
use support::{PATIENCE, Postgres, Proxy, Raw, poll};

fn proxy(server: &Postgres, general: &str) -> Proxy {
    Proxy::to(server, &format!("admin_users = [\"postgres\"]\n{general}"), "", "")
}

/// Everything logged so far, behind what an order of ours is logged with: what came before it has been written.
fn logged(proxy: &Proxy) -> String {
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "RELOAD");
    proxy.wait_for_log("configuration reloaded");
    proxy.log()
}

/// The first line of a log with all of these in it.
fn line<'l>(log: &'l str, parts: &[&str]) -> Option<&'l str> {
    log.lines().find(|line| parts.iter().all(|part| line.contains(part)))
}

fn wait_for_line(proxy: &Proxy, parts: &[&str]) -> String {
    let found = poll(PATIENCE, || line(&proxy.log(), parts).map(str::to_owned));
    found.unwrap_or_else(|| panic!("no line with {parts:?} in:\n{}", proxy.log()))
}

#[test]
fn an_end_is_said_whoever_made_it_and_an_error_of_ours_by_itself() {
    let server = Postgres::shared();
    for (disconnections, errors) in [(true, true), (true, false), (false, true), (false, false)] {
        let database = server.fresh_database("");
        let general = format!(
            "default_pool_size = 1\nlog_disconnections = {disconnections}\nlog_pooler_errors = {errors}"
        );
        let proxy = proxy(server, &general);
        let mut holder = Raw::login(proxy.port(), &database);
        holder.rows("BEGIN");
        let mut waiting = Raw::login(proxy.port(), &database);
        set(proxy.port(), "query_wait_timeout = 1");
        waiting.send(&query("SELECT 1"));
        waiting.read_until_closed();
        holder.rows("COMMIT");
        holder.terminate();
        let parameters = [("user", "postgres"), ("database", "pgbouncer"), ("replication", "true")];
        assert!(Raw::login_as(proxy.port(), &parameters, "").is_err());
        let of = |why| [" closed ", why, &*database];
        if disconnections {
            wait_for_line(&proxy, &of("client left"));
        }
        let log = logged(&proxy);
        let case = format!("{disconnections} {errors}:\n{log}");
        assert_eq!(line(&log, &of("query_wait_timeout")).is_some(), disconnections || errors, "{case}");
        assert_eq!(line(&log, &of("client left")).is_some(), disconnections, "{case}");
        assert_eq!(line(&log, &["login refused"]).is_some(), errors, "{case}");
    }
}

fn query(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pgsluice::wire::frontend::put_query(&mut out, text.as_bytes());
    out
}

#[test]
fn who_was_refused_is_named_where_that_is_known() {
    let server = Postgres::shared();
    let config = Proxy::config(server, "auth_type = \"scram-sha-256\"\nauth_file = \"users\"", "", "");
    let proxy = Proxy::start_with(&config, &[("users", "\"ann\" \"right\"\n")]);
    for (user, database) in [("ann", "one"), ("eve", "two")] {
        assert!(Raw::login_as(proxy.port(), &[("user", user), ("database", database)], "wrong").is_err());
        wait_for_line(&proxy, &["login refused", &format!("user=\"{user}\" database=\"{database}\"")]);
    }
    // Also behind the proof.
    assert!(Raw::login_as(proxy.port(), &[("user", "ann"), ("database", "pgsluice")], "right").is_err());
    wait_for_line(&proxy, &["login refused", "user=\"ann\" database=\"pgsluice\"", "admin_users"]);
}

#[test]
fn server_connections_are_said_with_why_they_close() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let by = format!("database=\"{database}\"");
    let proxy = proxy(server, "");
    let mut client = Raw::login(proxy.port(), &database);
    let pid = |client: &mut Raw| client.value("SELECT pg_backend_pid()").expect("a pid");
    let end = |pid: &str| server.psql("postgres", &format!("SELECT pg_terminate_backend({pid})"));
    let first = pid(&mut client);
    let of = |pid: &str| format!("server_pid={pid} ");
    wait_for_line(&proxy, &["server connected", &by, &of(&first)]);
    tell(&mut Raw::login(proxy.port(), "pgsluice"), &format!("RECONNECT {database}"));
    wait_for_line(&proxy, &["server closed", &by, &of(&first), "reason=RECONNECT"]);
    // By the server, while nobody has it, and while somebody does.
    let said = "57P01 terminating connection due to administrator command";
    let second = pid(&mut client);
    end(&second);
    wait_for_line(&proxy, &["server closed", &of(&second), &format!("reason=closed by the server: {said}")]);
    client.rows("BEGIN");
    let third = pid(&mut client);
    end(&third);
    client.read_until_closed();
    wait_for_line(&proxy, &[" closed ", "client=", &by, &format!("server connection lost: {said}")]);
    wait_for_line(&proxy, &["server closed", &of(&third), &format!("server connection lost: {said}")]);
    // By a client that leaves a transaction open.
    let mut client = Raw::login(proxy.port(), &database);
    client.rows("BEGIN");
    let fourth = pid(&mut client);
    client.terminate();
    wait_for_line(&proxy, &["server closed", &of(&fourth), "its client left in a transaction"]);
    let log = proxy.log();
    assert_eq!(log.matches("server closed").count(), 4, "{log}");
}

#[test]
fn server_connections_are_not_said_where_that_is_not_wanted() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = proxy(server, "log_connections = false\nlog_disconnections = false");
    let mut client = Raw::login(proxy.port(), &database);
    client.rows("SELECT 1");
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "RECONNECT");
    let log = logged(&proxy);
    assert!(!log.contains("server connected") && !log.contains("server closed"), "{log}");
}

#[test]
fn an_idle_connection_that_nobody_needs_closes_for_its_idleness() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = proxy(server, "server_idle_timeout = 1");
    Raw::login(proxy.port(), &database).terminate();
    wait_for_line(&proxy, &["server closed", &database, "reason=server_idle_timeout"]);
}

#[test]
fn what_the_console_orders_is_said_with_what_it_is_about_and_no_later_than_it_holds() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = proxy(server, "stats_users = [\"looks\"]");
    let mut client = Raw::login(proxy.port(), &database);
    client.rows("BEGIN");
    // One that waits for others holds already, and goes on when who gave it has gone.
    let mut pausing = Raw::login(proxy.port(), "pgsluice");
    pausing.send(&query(&format!("PAUSE {database}")));
    wait_for_line(&proxy, &[" console ", &format!("command=\"PAUSE {database}\"")]);
    drop(pausing);
    wait_for_line(
        &proxy,
        &["console refused", &format!("command=\"PAUSE {database}\""), "left while it waited"],
    );
    let mut console = Raw::login(proxy.port(), "pgsluice");
    tell(&mut console, &format!("RESUME {database}"));
    client.rows("COMMIT");
    let told = [
        &*format!("RESUME {database}"),
        &format!("PAUSE {database}"),
        &format!("KILL {database}"),
        "RESUME",
        "SET default_pool_size = 7",
        "SHUTDOWN WAIT_FOR_CLIENTS",
    ];
    // A password may stand there.
    tell(&mut console, "SET auth_ldap_options = 'ldapserver=127.0.0.1 ldapbindpasswd=hidden'");
    wait_for_line(&proxy, &["command=\"SET auth_ldap_options\""]);
    // Nor is what somebody may not order passed over.
    let mut looking =
        Raw::login_as(proxy.port(), &[("user", "looks"), ("database", "pgsluice")], "").expect("a console");
    assert_eq!(looking.error("KILL_CLIENT 77").sqlstate(), "42501");
    wait_for_line(
        &proxy,
        &["console refused", "user=\"looks\"", "command=\"KILL_CLIENT 77\"", "admin_users"],
    );
    told[1..].iter().for_each(|command| tell(&mut console, command));
    for command in told {
        wait_for_line(&proxy, &[" console ", "user=\"postgres\"", &format!("command=\"{command}\"")]);
    }
    // What waits is said once, if it comes to its end.
    let log = proxy.log();
    assert!(!log.contains("ldapbindpasswd"), "{log}");
    assert_eq!(log.matches(&format!("command=\"PAUSE {database}\"")).count(), 3, "{log}");
}

#[test]
fn a_pause_by_signal_is_said() {
    let proxy = proxy(Postgres::shared(), "");
    for (signal, said) in
        [("USR1", "paused: SIGUSR1"), ("USR2", "resumed: SIGUSR2"), ("USR2", "nothing was paused")]
    {
        proxy.signal(signal);
        wait_for_line(&proxy, &[said]);
    }
}
