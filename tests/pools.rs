//! Pools: who gets a connection when, the limits, the timeouts, reload and drain.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use pgsluice::wire::{backend as b, frontend as f};
use support::console::{find, set, show, tell, until};
use support::crowd::comparable;
use support::{Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, outline, poll};

fn build(parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    parts(&mut out);
    out
}

fn send_query(raw: &mut Raw, sql: &str) {
    raw.send(&build(|o| f::put_query(o, sql.as_bytes())));
}

fn login_error(proxy: &Proxy, user: &str, database: &str) -> Message {
    let parameters = [("user", user), ("database", database)];
    Raw::login_as(proxy.port(), &parameters, "").err().unwrap_or_else(|| panic!("{user} was let in"))
}

/// What closes a connection.
fn last(raw: &mut Raw) -> Message {
    raw.read_until_closed().pop().expect("an answer before the end")
}

fn connections(server: &Postgres, database: &str) -> usize {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'");
    server.psql("postgres", &sql).trim().parse().expect("a count")
}

fn wait_for_connections(server: &Postgres, database: &str, n: usize) {
    let seen = poll(PATIENCE, || (connections(server, database) == n).then_some(()));
    assert!(seen.is_some(), "{} connections, not {n}", connections(server, database));
}

/// A role that may log in, by a name of this test's own.
fn role(server: &Postgres, database: &str, name: &str) -> String {
    let role = format!("{name}_{database}");
    server.psql("postgres", &format!("CREATE ROLE {role} LOGIN SUPERUSER"));
    role
}

fn login_as(proxy: &Proxy, user: &str, database: &str) -> Raw {
    Raw::login_as(proxy.port(), &[("user", user), ("database", database)], "")
        .unwrap_or_else(|e| panic!("{}", e.outline()))
}

#[test]
fn clients_are_served_in_the_order_in_which_they_came() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (n serial, who int)");
    // One worker takes requests up in the order in which they arrive.
    let proxy = Proxy::to(server, "default_pool_size = 1\nworkers = 1", "", "");
    let mut holder = Raw::login(proxy.port(), &database);
    let mut raws: Vec<Raw> = (0..8).map(|_| Raw::login(proxy.port(), &database)).collect();
    holder.rows("BEGIN");
    for (n, raw) in raws.iter_mut().enumerate() {
        send_query(raw, &format!("INSERT INTO t (who) SELECT {n}"));
    }
    holder.rows("COMMIT");
    for raw in &mut raws {
        raw.read_until_ready();
    }
    let order = server.psql(&database, "SELECT string_agg(who::text, ',' ORDER BY n) FROM t");
    assert_eq!(order.trim(), "0,1,2,3,4,5,6,7");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let stats = find(&mut console, "SHOW STATS", &[("database", &database)]).expect("the database");
    assert_ne!(stats["total_wait_time"], "0");
}

#[test]
fn connections_take_turns_where_they_are_to() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for (round_robin, served) in [(true, 3), (false, 1)] {
        let general = format!("workers = 1\ndefault_pool_size = 3\nserver_round_robin = {round_robin}");
        let proxy = Proxy::to(server, &general, "", "");
        let mut raws = [(); 3].map(|()| Raw::login(proxy.port(), &database));
        for sql in ["BEGIN", "COMMIT"] {
            raws.iter_mut().for_each(|raw| drop(raw.rows(sql)));
        }
        let mut pids = [(); 3].map(|()| raws[0].value("SELECT pg_backend_pid()")).to_vec();
        pids.sort();
        pids.dedup();
        assert_eq!(pids.len(), served, "server_round_robin = {round_robin}");
    }
}

#[test]
fn a_pool_opens_no_more_connections_than_its_size_under_load() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 3", "", "");
    let port = proxy.port();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let database = database.clone();
            std::thread::spawn(move || {
                let mut raw = Raw::login(port, &database);
                (0..40)
                    .map(|_| {
                        let count =
                            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
                        raw.value(count).expect("a count").parse::<usize>().expect("a number")
                    })
                    .max()
            })
        })
        .collect();
    let most = threads.into_iter().filter_map(|t| t.join().expect("a client")).max();
    assert!(most.is_some_and(|n| n <= 3), "{most:?}");
}

#[test]
fn who_waits_too_long_is_told_which_setting_governs_it() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let general = format!("pool_mode = \"{mode}\"\ndefault_pool_size = 1");
        let proxy = Proxy::to(server, &general, "", "");
        let mut holder = Raw::login(proxy.port(), &database);
        holder.rows("BEGIN");
        set(proxy.port(), "query_wait_timeout = 1");
        let error = if mode == "session" {
            login_error(&proxy, "postgres", &database)
        } else {
            let mut raw = Raw::login(proxy.port(), &database);
            send_query(&mut raw, "SELECT 1");
            last(&mut raw)
        };
        assert_eq!((error.field(b'S'), error.sqlstate()), ("FATAL".into(), "53300".into()));
        assert!(error.field(b'M').contains("query_wait_timeout"), "{}", error.outline());
        holder.rows("COMMIT");
    }
}

/// `server_connect_timeout` has not given it up yet.
#[test]
fn who_waits_too_long_for_a_server_that_does_not_answer_is_told_so() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let entry = format!("port = {port}\npool_size = 1");
    let proxy =
        Proxy::to(Postgres::shared(), "query_wait_timeout = 1\nserver_connect_timeout = 600", &entry, "");
    let error = login_error(&proxy, "postgres", "any");
    assert_eq!(error.sqlstate(), "08001", "{}", error.outline());
    assert!(error.field(b'D').contains("server_connect_timeout"), "{}", error.outline());
}

#[test]
fn who_waits_too_long_is_told_which_limit_is_reached() {
    let server = Postgres::shared();
    for (general, entry, user, full) in [
        ("default_pool_size = 1", "", "", "default_pool_size"),
        // 0 is no reserve.
        (
            "default_pool_size = 1\nreserve_pool_size = 1\nreserve_pool_timeout = 0",
            "",
            "",
            "default_pool_size",
        ),
        (
            "default_pool_size = 1\nreserve_pool_size = 1\nreserve_pool_timeout = 600",
            "",
            "",
            "default_pool_size",
        ),
        ("", "pool_size = 1", "", "pool_size of the database"),
        ("", "pool_size = 5", "[users.postgres]\npool_size = 1", "pool_size of the user"),
        ("max_db_connections = 1", "", "", "max_db_connections"),
        ("", "", "[users.postgres]\nmax_user_connections = 1", "max_user_connections"),
    ] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, general, entry, user);
        let mut holder = Raw::login(proxy.port(), &database);
        holder.rows("BEGIN");
        set(proxy.port(), "query_wait_timeout = 1");
        let mut raw = Raw::login(proxy.port(), &database);
        send_query(&mut raw, "SELECT 1");
        let error = last(&mut raw);
        assert_eq!(error.sqlstate(), "53300", "{}", error.outline());
        let hint = format!("Raise {full} or query_wait_timeout, or look for long transactions.");
        assert_eq!(error.field(b'H'), hint);
        holder.rows("COMMIT");
    }
}

#[test]
fn what_is_said_of_a_user_wins_for_the_reserve_and_the_wait() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let bob = role(server, &database, "bob");
    // The notice that tells a client of its wait would be an answer, too.
    let general = "default_pool_size = 1\nreserve_pool_timeout = \"1ms\"\nquery_wait_notify = 0";
    let entry = "reserve_pool_size = 0\nquery_wait_timeout = 60";
    let user = format!("[users.\"{bob}\"]\nreserve_pool_size = 1\nquery_wait_timeout = 5");
    let proxy = Proxy::to(server, general, entry, &user);
    let mut bobs = [(); 3].map(|()| login_as(&proxy, &bob, &database));
    let mut others = [(); 2].map(|()| Raw::login(proxy.port(), &database));
    // One of the pool, one of the reserve.
    bobs[0].rows("BEGIN");
    bobs[1].rows("BEGIN");
    send_query(&mut bobs[2], "SELECT 1");
    others[0].rows("BEGIN");
    send_query(&mut others[1], "SELECT 1");
    let error = last(&mut bobs[2]);
    assert_eq!((error.field(b'S'), error.sqlstate()), ("FATAL".into(), "53300".into()));
    assert!(error.field(b'M').contains("within 5 s (query_wait_timeout)"), "{}", error.outline());
    assert!(!others[1].has_answer(), "there is no reserve for others, and they wait longer");
    others[0].rows("COMMIT");
    others[1].read_until_ready();
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let shown = console.rows("SHOW USERS").into_iter().find(|row| row[0].as_ref() == Some(&bob));
    assert_eq!(shown.expect("the user")[2].as_deref(), Some("1"));
}

/// Pools are looked after each second, when a line of averages may be written: nobody waits for that.
#[test]
fn the_reserve_opens_when_its_time_has_come() {
    const ROUNDS: usize = 10;
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general =
        "default_pool_size = 1\nreserve_pool_size = 1\nreserve_pool_timeout = \"1ms\"\nserver_lifetime = 0";
    let proxy = Proxy::to(server, &format!("{general}\nstats_period = 1\nquery_wait_notify = 0"), "", "");
    let [mut holder, mut other] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
    let looks = || proxy.log().lines().filter(|line| line.contains(" stats ")).count();
    let before = looks();
    for _ in 0..ROUNDS {
        holder.rows("BEGIN");
        assert_eq!(other.value("SELECT 1").as_deref(), Some("1"));
        holder.rows("COMMIT");
    }
    let passed = looks() - before;
    assert!(passed + 2 < ROUNDS, "{passed} looks in {ROUNDS} rounds");
}

#[test]
fn more_clients_than_max_client_conn_are_refused() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "max_client_conn = 3", "", "");
    let mut raws: Vec<Raw> = Vec::new();
    // The probe that found the proxy up may not have left yet.
    let full = poll(PATIENCE, || {
        match Raw::login_as(proxy.port(), &[("user", "postgres"), ("database", &database)], "") {
            Ok(raw) => {
                raws.push(raw);
                None
            }
            Err(error) if raws.len() == 3 => Some(error),
            Err(_) => None,
        }
    });
    let error = full.expect("the fourth is refused");
    assert_eq!((error.field(b'S'), error.sqlstate(), raws.len()), ("FATAL".into(), "53300".into(), 3));
    assert!(error.field(b'M').contains("max_client_conn"));
    raws.pop().expect("a client").terminate();
    let again = poll(PATIENCE, || {
        Raw::login_as(proxy.port(), &[("user", "postgres"), ("database", &database)], "").ok()
    });
    assert!(again.is_some(), "a place is free again");
}

#[test]
fn clients_of_one_database_or_user_are_limited() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let bob = role(server, &database, "bob");
    let general = "max_db_client_connections = 2\nmax_user_client_connections = 1";
    let proxy = Proxy::to(server, general, "", "");
    let _one = Raw::login(proxy.port(), &database);
    let error = login_error(&proxy, "postgres", &database);
    assert!(error.field(b'M').contains("max_user_client_connections"), "{}", error.outline());
    let _two = login_as(&proxy, &bob, &database);
    let error = login_error(&proxy, &bob, &database);
    assert!(error.field(b'M').contains("max_db_client_connections"), "{}", error.outline());
    assert_eq!(error.sqlstate(), "53300");
}

#[test]
fn clients_of_all_names_share_the_pool_of_a_login_that_the_entry_names() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let [ann, bob] = ["forced_ann", "forced_bob"].map(|name| role(server, &database, name));
    let limit = |name: &str, n: u8| format!("[users.{name}]\nmax_user_client_connections = {n}\n");
    let rest = format!("{}{}[users.postgres]\npool_size = 1", limit(&ann, 1), limit(&bob, 2));
    let entry = "user = \"postgres\"\nmax_db_client_connections = 7";
    let proxy = Proxy::to(server, "", entry, &rest);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut one = login_as(&proxy, &ann, &database);
    let mut two = login_as(&proxy, &bob, &database);
    let asks = "SELECT current_user || pg_backend_pid()";
    one.rows("BEGIN");
    let who = one.value(asks).expect("who");
    two.send(&build(|o| f::put_query(o, asks.as_bytes())));
    let row = [("database", &*database), ("user", "postgres"), ("cl_active", "1"), ("cl_waiting", "1")];
    support::console::until(&mut console, "SHOW POOLS", &row);
    one.rows("COMMIT");
    assert_eq!(two.read_until_ready()[1].row()[0].as_ref(), Some(&who), "the one connection there is");
    assert!(who.starts_with("postgres"), "{who}");
    // Clients are counted by their own names.
    let error = login_error(&proxy, &ann, &database);
    assert!(error.field(b'M').contains("max_user_client_connections"), "{}", error.outline());
    for name in [&ann, &bob] {
        let row = [("name", &**name), ("current_client_connections", "1"), ("current_connections", "0")];
        support::console::until(&mut console, "SHOW USERS", &row);
    }
    until(&mut console, "SHOW USERS", &[("name", "postgres"), ("current_connections", "1")]);
    until(&mut console, "SHOW POOLS", &[("database", &database), ("user", "postgres"), ("cl_active", "2")]);
    until(&mut console, "SHOW DATABASES", &[("name", &database), ("max_client_connections", "7")]);
    login_as(&proxy, &bob, &database).terminate();
    let asked = [("user", bob.as_str()), ("database", &database)];
    assert!(poll(PATIENCE, || Raw::login_as(proxy.port(), &asked, "").ok()).is_some(), "one of two has left");
}

#[test]
fn a_login_that_a_reload_takes_back_serves_nobody_any_longer() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let ann = role(server, &database, "withdrawn_ann");
    let config = |user: &str, mode| Proxy::config(server, &format!("pool_mode = \"{mode}\""), user, "");
    for mode in ["transaction", "session"] {
        for (before, after) in [("user = \"postgres\"", ""), ("", "user = \"postgres\"")] {
            let proxy = Proxy::start(&config(before, mode));
            let [mut idle, mut busy] = [(); 2].map(|()| login_as(&proxy, &ann, &database));
            let was = busy.value("SELECT current_user").expect("a name");
            assert_eq!(was == "postgres", !before.is_empty(), "{was}");
            busy.rows("BEGIN");
            proxy.reload(&config(after, mode));
            let last = idle.read_until_closed().pop().expect("a word");
            assert_eq!(last.sqlstate(), "57P01", "{}", last.outline());
            assert!(last.field(b'M').contains("user of database"), "{}", last.outline());
            assert_eq!(busy.value("SELECT current_user"), Some(was), "a transaction is finished");
            busy.send(&build(|o| f::put_query(o, b"COMMIT")));
            assert!(busy.read_until_closed().iter().any(|m| m.tag == b'E' && m.sqlstate() == "57P01"));
            let now = login_as(&proxy, &ann, &database).value("SELECT current_user").expect("a name");
            assert_eq!(now == "postgres", !after.is_empty(), "{now}");
        }
    }
}

/// What the server of before says comes when the database is another one's already.
#[test]
fn a_login_that_was_under_way_when_its_server_changed_serves_nobody() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for before in ["", "dbname = \"not_there\""] {
        let (answers, held) = std::sync::mpsc::channel::<()>();
        let slow = support::relay::listen(server.port(), move |client, server| {
            let _ = held.recv();
            support::relay::both_ways(client, server);
        });
        let proxy = Proxy::to(server, "", &format!("port = {slow}\n{before}"), "");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let mut client = Raw::connect(proxy.port());
        client.startup(3 << 16, &[("user", "postgres"), ("database", &database)]);
        until(&mut console, "SHOW POOLS", &[("database", &database), ("sv_login", "1")]);
        proxy.write_config(&Proxy::config(server, "", "", ""));
        tell(&mut console, "RELOAD");
        answers.send(()).expect("somebody has connected");
        client.read_until_ready();
        assert_eq!(client.value("SELECT 1").as_deref(), Some("1"), "{before}");
        let ports: Vec<_> = show(&mut console, "SHOW SERVERS").iter().map(|s| s["port"].clone()).collect();
        assert_eq!(ports, [server.port().to_string()], "{before}");
    }
}

#[test]
fn a_database_that_is_back_before_a_transaction_ends_loses_no_client() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for mode in ["transaction", "session"] {
        let there = Proxy::config(server, &format!("pool_mode = \"{mode}\""), "", "");
        let gone = there.replace("[databases.\"*\"]", "[databases.other]");
        assert_ne!(there, gone);
        let proxy = Proxy::start(&there);
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let mut reload = |config: &str| {
            proxy.write_config(config);
            tell(&mut console, "RELOAD");
        };
        let mut client = Raw::login(proxy.port(), &database);
        client.rows("BEGIN");
        reload(&gone);
        assert_eq!(login_error(&proxy, "postgres", &database).sqlstate(), "3D000");
        assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
        reload(&there);
        client.rows("COMMIT");
        assert_eq!(client.value("SELECT 2").as_deref(), Some("2"), "{mode}");
        // And if it stays away, it is told so.
        client.rows("BEGIN");
        reload(&gone);
        send_query(&mut client, "COMMIT");
        let last = client.read_until_closed().pop().expect("a word");
        assert!(last.field(b'M').contains("removed from the configuration"), "{}", last.outline());
    }
}

#[test]
fn who_waits_in_a_database_that_a_reload_takes_away_is_not_served() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let there = Proxy::config(server, "", "", "");
    let proxy = Proxy::start(&there);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut client = Raw::login(proxy.port(), &database);
    tell(&mut console, "PAUSE");
    send_query(&mut client, "INSERT INTO t VALUES (1)");
    let mut logs_in = Raw::connect(proxy.port());
    let parameters = [("user", "postgres"), ("database", &*database), ("extra_float_digits", "1")];
    logs_in.startup(3 << 16, &parameters);
    until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "2")]);
    proxy.write_config(&there.replace("[databases.\"*\"]", "[databases.other]"));
    tell(&mut console, "RELOAD");
    // While nobody gets a server.
    let told = |raw: &mut Raw| {
        let last = last(raw);
        assert_eq!(last.sqlstate(), "57P01", "{}", last.outline());
        assert!(last.field(b'M').contains("removed from the configuration"), "{}", last.outline());
    };
    told(&mut client);
    tell(&mut console, "RESUME");
    told(&mut logs_in);
    assert_eq!(server.psql(&database, "SELECT count(*) FROM t").trim(), "0");
    wait_for_connections(server, &database, 0);
}

/// Whose login the entry named until the reload was served beside others: those keep their connection.
#[test]
fn a_login_that_a_reload_takes_back_while_it_waits_costs_others_nothing() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let ann = role(server, &database, "waiting_ann");
    let config = |user: &str| Proxy::config(server, "default_pool_size = 1", user, "");
    let proxy = Proxy::start(&config("user = \"postgres\""));
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut client = Raw::login(proxy.port(), &database);
    client.rows("BEGIN");
    let mine = client.value("SELECT pg_backend_pid()");
    let mut logs_in = Raw::connect(proxy.port());
    let parameters = [("user", &*ann), ("database", &*database), ("extra_float_digits", "1")];
    logs_in.startup(3 << 16, &parameters);
    until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "1")]);
    proxy.write_config(&config(""));
    tell(&mut console, "RELOAD");
    client.rows("COMMIT");
    let last = last(&mut logs_in);
    assert_eq!(last.sqlstate(), "57P01", "{}", last.outline());
    assert_eq!(client.value("SELECT pg_backend_pid()"), mine);
}

#[test]
fn limits_that_a_reload_lowers_are_kept_as_connections_come_back() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for limit in ["default_pool_size", "max_db_connections", "max_user_connections"] {
        let config = |max: usize| Proxy::config(server, &format!("{limit} = {max}"), "", "");
        let proxy = Proxy::start(&config(3));
        let mut clients: Vec<Raw> = (0..3).map(|_| Raw::login(proxy.port(), &database)).collect();
        clients.iter_mut().for_each(|client| drop(client.rows("BEGIN")));
        proxy.reload(&config(1));
        proxy.wait_for_log("configuration reloaded");
        clients.iter_mut().for_each(|client| drop(client.rows("COMMIT")));
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let row = [("database", &*database), ("sv_idle", "1"), ("sv_active", "0")];
        support::console::until(&mut console, "SHOW POOLS", &row);
    }
}

#[test]
fn a_pool_without_a_size_has_a_connection_for_everybody() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 0", "", "");
    let mut clients: Vec<Raw> = (0..30).map(|_| Raw::login(proxy.port(), &database)).collect();
    clients.iter_mut().for_each(|client| drop(client.rows("BEGIN")));
    let mut pids: Vec<_> = clients.iter_mut().map(|client| client.value("SELECT pg_backend_pid()")).collect();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 30);
}

#[test]
fn clients_whose_logins_wait_for_a_server_are_counted() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "default_pool_size = 1\nmax_user_client_connections = 3";
    let proxy = Proxy::to(server, general, "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut holder = Raw::login(proxy.port(), &database);
    holder.rows("BEGIN");
    // Settings of their own: a server is asked for what they are greeted with.
    let asked = |n: usize| {
        let mut raw = Raw::connect(proxy.port());
        let work_mem = format!("{}kB", 1000 + n);
        raw.startup(3 << 16, &[("user", "postgres"), ("database", &database), ("work_mem", &work_mem)]);
        raw
    };
    let mut logins = Vec::new();
    for n in 1..=2 {
        logins.push(asked(n));
        let waiting = |row: &Vec<Option<String>>| {
            row[0].as_deref() == Some(&*database) && row[3].as_deref() == Some(&n.to_string())
        };
        let waits = poll(PATIENCE, || console.rows("SHOW POOLS").iter().any(waiting).then_some(()));
        assert!(waits.is_some(), "{n} do not wait");
    }
    let error = asked(3).authenticate("postgres", "").expect_err("one too many");
    assert!(error.field(b'M').contains("max_user_client_connections"), "{}", error.outline());
    holder.rows("COMMIT");
    for raw in &mut logins {
        raw.authenticate("postgres", "").unwrap_or_else(|error| panic!("{}", error.outline()));
    }
    drop(logins);
    let freed = poll(PATIENCE, || {
        Raw::login_as(proxy.port(), &[("user", "postgres"), ("database", &database)], "").ok()
    });
    assert!(freed.is_some(), "a place is free again");
}

#[test]
fn a_common_limit_of_a_database_holds_and_idle_siblings_make_room() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let users = ["a", "b", "c"].map(|name| role(server, &database, name));
    let proxy = Proxy::to(server, "max_db_connections = 2\nquery_wait_timeout = 20", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    // The server lists those that were told to go, too, until they are gone; what is open here is what the limit is of.
    let open = |console: &mut Raw| {
        show(console, "SHOW SERVERS").iter().filter(|server| server["database"] == database).count()
    };
    // One after the other: each pool has to take a connection from a sibling.
    let mut raws: Vec<Raw> = users.iter().map(|user| login_as(&proxy, user, &database)).collect();
    for _ in 0..3 {
        for raw in &mut raws {
            raw.rows("SELECT 1");
            assert!(open(&mut console) <= 2);
        }
    }
    // Two are in use: the third waits, and is served as soon as one is idle, without a tick of a clock.
    raws[0].rows("BEGIN");
    raws[1].rows("BEGIN");
    send_query(&mut raws[2], "SELECT 1");
    raws[0].rows("COMMIT");
    raws[2].read_until_ready();
    raws[1].rows("COMMIT");
    // All at once.
    let port = proxy.port();
    let threads: Vec<_> = users
        .iter()
        .cycle()
        .take(9)
        .cloned()
        .map(|user| {
            let database = database.clone();
            std::thread::spawn(move || {
                let parameters = [("user", user.as_str()), ("database", database.as_str())];
                let mut raw =
                    Raw::login_as(port, &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
                (0..15).for_each(|_| drop(raw.rows("SELECT 1")));
            })
        })
        .collect();
    loop {
        let done = threads.iter().all(|thread| thread.is_finished());
        assert!(open(&mut console) <= 2);
        if done {
            break;
        }
    }
    threads.into_iter().for_each(|thread| thread.join().expect("a client"));
    let held = format!("SELECT count(*) <= 2 FROM pg_stat_activity WHERE datname = '{database}'");
    server.wait_until("postgres", &held);
}

/// Who always has somebody waiting leaves no connection idle.
#[test]
fn a_pool_that_is_never_idle_leaves_some_of_a_common_limit_to_its_siblings() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let busy = role(server, &database, "busy");
    let proxy = Proxy::to(server, "max_db_connections = 1\nquery_wait_timeout = 10", "", "");
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..5)
        .map(|_| {
            let (mut raw, done) = (login_as(&proxy, &busy, &database), Arc::clone(&done));
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    raw.rows("SELECT pg_sleep(0.05)");
                }
            })
        })
        .collect();
    let mut raw = Raw::login(proxy.port(), &database);
    assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
    done.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("a client"));
}

#[test]
fn in_session_mode_who_asks_for_other_settings_is_not_passed_over_for_long() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "pool_mode = \"session\"\ndefault_pool_size = 1\nquery_wait_timeout = 10";
    let proxy = Proxy::to(server, general, "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let asks = |name: &str| {
        let mut raw = Raw::connect(proxy.port());
        raw.startup(3 << 16, &[("user", "postgres"), ("database", &database), ("application_name", name)]);
        raw
    };
    let mut waits = |waiting: &str| {
        until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", waiting)]);
    };
    let enters = |raw: &mut Raw| {
        raw.authenticate("postgres", "").unwrap_or_else(|error| panic!("{}", error.outline()));
    };
    let mut one = asks("one");
    enters(&mut one);
    let mut other = asks("other");
    waits("1");
    // Long enough for its turn to have come.
    std::thread::sleep(Duration::from_millis(500));
    let mut again = asks("one");
    waits("2");
    one.terminate();
    enters(&mut other);
    waits("1");
    other.terminate();
    enters(&mut again);
}

#[test]
fn a_common_limit_of_a_user_holds_over_databases() {
    let server = Postgres::shared();
    let databases = [server.fresh_database(""), server.fresh_database("")];
    let bob = role(server, &databases[0], "bob");
    let proxy = Proxy::to(server, "max_user_connections = 1\nquery_wait_timeout = 20", "", "");
    let mut raws = databases.each_ref().map(|database| login_as(&proxy, &bob, database));
    for _ in 0..3 {
        for raw in &mut raws {
            assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
        }
    }
    let count = format!("SELECT count(*) <= 1 FROM pg_stat_activity WHERE usename = '{bob}'");
    server.wait_until("postgres", &count);
}

/// Nor does anybody lose a connection who has no part in the limit.
#[test]
fn who_waits_for_the_limit_of_a_user_takes_no_place_of_the_database() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let bob = role(server, &database, "bob");
    let rest = format!("[users.\"{bob}\"]\nmax_user_connections = 1");
    let general = "max_db_connections = 2\nquery_wait_timeout = 20\nquery_wait_notify = 0";
    let proxy = Proxy::to(server, general, "", &rest);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut bobs = [(); 2].map(|()| login_as(&proxy, &bob, &database));
    bobs[0].rows("BEGIN");
    send_query(&mut bobs[1], "SELECT 1");
    until(&mut console, "SHOW POOLS", &[("user", &bob), ("cl_waiting", "1")]);
    let mut other = Raw::login(proxy.port(), &database);
    let pid = other.value("SELECT pg_backend_pid()");
    bobs[0].rows("COMMIT");
    bobs[1].read_until_ready();
    assert_eq!(other.value("SELECT pg_backend_pid()"), pid);
}

#[test]
fn a_minimum_of_connections_is_kept_and_idle_ones_close() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "min_pool_size = 3\nserver_idle_timeout = 1", "", "");
    let mut raws: Vec<Raw> = (0..5).map(|_| Raw::login(proxy.port(), &database)).collect();
    wait_for_connections(server, &database, 3);
    for raw in &mut raws {
        raw.rows("BEGIN");
    }
    assert_eq!(connections(server, &database), 5);
    for raw in &mut raws {
        raw.rows("COMMIT");
    }
    wait_for_connections(server, &database, 3);
    drop(raws);
}

/// Each logs in with the settings of its client there, and the next one like it finds a connection.
#[test]
fn session_mode_keeps_its_minimum_for_the_next_client_like_the_last() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "pool_mode = \"session\"\nmin_pool_size = 3", "", "");
    let enter = |name: &str| {
        let parameters = [("user", "postgres"), ("database", &database), ("application_name", name)];
        let mut raw = Raw::login_as(proxy.port(), &parameters, "").expect("let in");
        let pid = raw.value("SELECT pg_backend_pid()").expect("pid");
        (raw, pid)
    };
    let pids = || {
        let sql =
            format!("SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE datname = '{database}'");
        server.psql("postgres", &sql)
    };
    let _first = enter("app");
    wait_for_connections(server, &database, 3);
    let kept = pids();
    for _ in 0..2 {
        let (raw, pid) = enter("app");
        assert!(kept.contains(&pid), "{pid} of {kept}");
        drop(raw);
    }
    // Others are kept for another application; those of the first are there as long as they are not needed elsewhere.
    let _other = enter("other");
    wait_for_connections(server, &database, 5);
    assert!(pids().contains(&enter("other").1));
}

/// The entry says whom they log in as: no client has to come first.
#[test]
fn a_minimum_of_an_entry_with_a_user_is_kept_before_the_first_client() {
    let server = Postgres::shared();
    let [one, two] = [server.fresh_database(""), server.fresh_database("")];
    let entry = |name: &str, more: &str| {
        format!("[databases.{name}]\nhost = \"127.0.0.1\"\nport = {}\n{more}\n", server.port())
    };
    let user = "user = \"postgres\"\nmin_pool_size = 2";
    for mode in ["transaction", "session"] {
        let general = format!("pool_mode = \"{mode}\"");
        let named = |text: String| text.replace("[databases.\"*\"]", "[databases.none]");
        let config = |rest: &str| named(Proxy::config(server, &general, "", rest));
        let proxy =
            Proxy::start(&config(&format!("{}{}", entry(&one, user), entry(&two, "min_pool_size = 2"))));
        wait_for_connections(server, &one, 2);
        assert_eq!(connections(server, &two), 0, "{mode}: nobody knows as whom");
        let pids = format!("SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE datname = '{one}'");
        let kept = server.psql("postgres", &pids);
        let mut client = Raw::login(proxy.port(), &one);
        let pid = client.value("SELECT pg_backend_pid()").expect("pid");
        assert!(kept.contains(&pid), "{mode}: {pid} of {kept}");
        drop(client);
        // Another entry has one from here on, and the first is gone.
        proxy.reload(&config(&entry(&two, user)));
        wait_for_connections(server, &two, 2);
        wait_for_connections(server, &one, 0);
        drop(proxy);
        wait_for_connections(server, &two, 0);
    }
}

/// Without a client that would find them.
#[test]
fn idle_connections_that_the_server_closed_are_replaced() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for mode in ["transaction", "session"] {
        let entry = format!(
            "[databases.{database}]\nhost = \"127.0.0.1\"\nport = {}\nuser = \"postgres\"\nmin_pool_size = 2\n",
            server.port()
        );
        let proxy = Proxy::start(&Proxy::config(server, &format!("pool_mode = \"{mode}\""), "", &entry));
        wait_for_connections(server, &database, 2);
        server.psql(
            "postgres",
            &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"),
        );
        let line = proxy.wait_for_log("idle connections were closed by the server");
        assert!(line.contains(&database), "{line}");
        wait_for_connections(server, &database, 2);
        let mut client = Raw::login(proxy.port(), &database);
        assert_eq!(client.value("SELECT 1").as_deref(), Some("1"), "{mode}");
        drop((client, proxy));
        wait_for_connections(server, &database, 0);
    }
}

#[test]
fn a_connection_that_has_just_logged_in_needs_no_check() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE SEQUENCE checks MINVALUE 0");
    let general = "server_check_delay = 0\nserver_check_query = \"SELECT nextval('checks')\"";
    let proxy = Proxy::to(server, general, "", "");
    server.psql(&database, "SELECT nextval('checks')");
    let checks = || server.psql(&database, "SELECT last_value FROM checks").trim().to_owned();
    let [mut holder, mut other] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
    holder.rows("BEGIN");
    assert_eq!(checks(), "1", "its server was asked what it is greeted with before");
    other.rows("SELECT 1");
    assert_eq!(checks(), "1", "a server of its own");
    other.rows("SELECT 1");
    assert_eq!(checks(), "2", "that was idle");
}

#[test]
fn the_server_is_told_that_a_connection_ends() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "", "", "");
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("SELECT 1");
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "RECONNECT");
    wait_for_connections(server, &database, 0);
    let ended = format!("SELECT sessions > 0 FROM pg_stat_database WHERE datname = '{database}'");
    server.wait_until("postgres", &ended);
    let lost = format!("SELECT sessions_abandoned FROM pg_stat_database WHERE datname = '{database}'");
    assert_eq!(server.psql("postgres", &lost).trim(), "0");
}

#[test]
fn old_connections_are_replaced() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 1\nserver_lifetime = 1", "", "");
    let mut raw = Raw::login(proxy.port(), &database);
    let pid = raw.value("SELECT pg_backend_pid()");
    let other = poll(PATIENCE, || {
        let now = raw.value("SELECT pg_backend_pid()");
        (now != pid).then_some(now)
    });
    assert!(other.is_some());
    // Zero: one use each.
    let once = Proxy::to(server, "default_pool_size = 1\nserver_lifetime = 0", "", "");
    let mut raw = Raw::login(once.port(), &database);
    assert_ne!(raw.value("SELECT pg_backend_pid()"), raw.value("SELECT pg_backend_pid()"));
}

#[test]
fn each_session_has_what_a_trigger_for_logins_sets_where_no_connection_is_used_again() {
    let server = Postgres::shared();
    // From there on logins have triggers.
    if server.major() < 17 {
        return;
    }
    let database = server.fresh_database(
        "CREATE FUNCTION begins() RETURNS event_trigger LANGUAGE plpgsql AS $f$
         BEGIN PERFORM set_config('search_path', 'its_own', false), set_config('app.tenant', '7', false); END$f$;
         CREATE EVENT TRIGGER begins ON login EXECUTE FUNCTION begins()",
    );
    let proxy =
        Proxy::to(server, "pool_mode = \"session\"\ndefault_pool_size = 1\nserver_lifetime = 0", "", "");
    for _ in 0..3 {
        let mut raw = Raw::login(proxy.port(), &database);
        let seen = raw.value("SELECT current_setting('search_path') || current_setting('app.tenant', true)");
        assert_eq!(seen.as_deref(), Some("its_own7"));
        raw.rows("RESET search_path");
        raw.rows("SET app.tenant = '8'");
        raw.terminate();
    }
}

#[test]
fn a_database_that_no_client_is_in_can_be_dropped_and_copied() {
    let server = Postgres::shared();
    for mode in ["session", "transaction"] {
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "");
        let mut admin = Raw::login(proxy.port(), "postgres");
        let (mut left, copy) = (server.fresh_database(""), format!("copy_{mode}"));
        for said in [format!("CREATE DATABASE {copy} TEMPLATE @"), "DROP DATABASE @".into()] {
            for _ in 0..2 {
                let mut client = Raw::login(proxy.port(), &left);
                assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
                client.terminate();
                admin.rows(&said.replace('@', &left));
                if said.starts_with("CREATE") {
                    break;
                }
                left.clone_from(&copy);
            }
        }
        let there = format!("SELECT FROM pg_database WHERE datname = '{copy}'");
        assert_eq!(admin.rows(&there).len(), 0, "{mode}");
    }
}

#[test]
fn a_database_can_be_dropped_however_its_name_is_written() {
    let server = Postgres::shared();
    let proxy = Proxy::to(server, "", "", "");
    let mut admin = Raw::login(proxy.port(), "postgres");
    for (name, written) in [("way\"Out", "\"way\"\"Out\""), ("way_\\out", "U&\"\\0077ay_\\\\out\"")] {
        let quoted = name.replace('"', "\"\"");
        admin.rows(&format!("CREATE DATABASE \"{quoted}\""));
        let mut client = Raw::login(proxy.port(), name);
        assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
        client.terminate();
        admin.rows(&format!("DROP DATABASE {written}"));
    }
}

#[test]
fn a_database_that_a_client_is_in_stays() {
    let server = Postgres::shared();
    let proxy = Proxy::to(server, "", "", "");
    let database = server.fresh_database("");
    let (mut admin, mut client) = (Raw::login(proxy.port(), "postgres"), Raw::login(proxy.port(), &database));
    assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
    assert_eq!(admin.error(&format!("DROP DATABASE {database}")).sqlstate(), "55006");
    assert_eq!(client.value("SELECT 2").as_deref(), Some("2"));
}

#[test]
fn the_reset_query_runs_between_clients_in_session_mode() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE resets (n int)");
    let general = "pool_mode = \"session\"\ndefault_pool_size = 1\n\
                   server_reset_query = \"INSERT INTO resets VALUES (1); DISCARD PLANS\"";
    let proxy = Proxy::to(server, general, "", "");
    let mut processes = HashSet::new();
    for n in 0..3 {
        let mut raw = Raw::login(proxy.port(), &database);
        assert_eq!(raw.value("SELECT count(*) FROM resets"), Some(n.to_string()));
        assert!(
            processes.insert(raw.value("SELECT pg_backend_pid()")),
            "it leaves what DISCARD ALL would not"
        );
        raw.terminate();
        server.wait_until(&database, &format!("SELECT count(*) = {} FROM resets", n + 1));
    }
    // In every mode, when the operator wants it.
    let always =
        "default_pool_size = 1\nserver_reset_query_always = true\nserver_reset_query = \"DISCARD ALL\"";
    let proxy = Proxy::to(server, always, "", "");
    let mut raw = Raw::login(proxy.port(), &database);
    let mut other = Raw::login(proxy.port(), &database);
    raw.rows("SET work_mem = '3MB'");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
    assert_eq!(raw.value("SHOW work_mem").as_deref(), Some("3MB"));
}

#[test]
fn a_reset_after_each_transaction_does_not_keep_who_said_discard_all_from_going_on() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "default_pool_size = 1\nserver_reset_query_always = true";
    for (level, discard) in
        [("allow", "DISCARD ALL"), ("allow", "DEALLOCATE ALL"), ("control", "DISCARD ALL")]
    {
        let proxy = Proxy::to(server, general, "", &format!("[policy]\nsimple_query = \"{level}\""));
        let parameters = [("user", "postgres"), ("database", &database), ("application_name", "psql")];
        let mut raw =
            Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
        for sql in [discard, "SHOW application_name", discard, "SHOW application_name"] {
            let rows = raw.rows(sql);
            assert!(rows.iter().flatten().flatten().all(|name| name == "psql"), "{level}: {sql}: {rows:?}");
        }
    }
}

/// Its name is set again in one go with what it asks next, and that waits for it.
#[test]
fn a_reset_after_each_transaction_does_not_keep_who_has_a_name_from_going_on() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "default_pool_size = 1\nserver_reset_query_always = true";
    let proxy = Proxy::to(server, general, "", "");
    let mut malformed = Vec::new();
    f::put_execute(&mut malformed, b"", 0);
    malformed.truncate(malformed.len() - 1);
    malformed[4] -= 1;
    f::put_empty(&mut malformed, f::SYNC);
    let cases = [
        ("a Bind of what is prepared", Step::execute("s", &[]).bytes),
        ("its name once more", Step::prepare("s", "SELECT 2").bytes),
        ("DEALLOCATE", Step::query("DEALLOCATE s").bytes),
        ("EXECUTE", Step::query("EXECUTE s").bytes),
        ("a temporary table", Step::query("CREATE TEMP TABLE z (i int)").bytes),
        ("another one", Step::query("CREATE TEMP TABLE z (i int)").bytes),
        ("a malformed message", malformed),
    ];
    for (case, bytes) in cases {
        let answers = |port| {
            let parameters = [("user", "postgres"), ("database", &*database), ("application_name", "psql")];
            let mut raw = Raw::login_as(port, &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
            raw.send(&Step::prepare("s", "SELECT 1").bytes);
            raw.read_until_ready();
            raw.send(&bytes);
            let answered = comparable(&raw.read_until_ready());
            raw.terminate();
            answered
        };
        assert_eq!(answers(proxy.port()), answers(server.port()), "{case}");
    }
    // No message at all: what is said of it is the last that is said.
    let parameters = [("user", "postgres"), ("database", &*database), ("application_name", "psql")];
    let mut raw = Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
    raw.send(b"\x01\0\0\0\x04");
    let said = raw.read_until_closed();
    assert_eq!(said.iter().map(Message::sqlstate).collect::<Vec<_>>(), ["08P01"]);
}

#[test]
fn what_connect_query_sets_is_there_for_every_client_whatever_others_set() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let reader = format!("reader_{database}");
    server.psql("postgres", &format!("CREATE ROLE {reader}"));
    let greeting =
        format!("connect_query = \"SET TimeZone = 'Asia/Tokyo'; SET my.own = 'x'; SET ROLE {reader}\"");
    let expected = format!("Asia/Tokyo|x|{reader}");
    let sql =
        "SELECT current_setting('TimeZone') || '|' || current_setting('my.own', true) || '|' || current_user";
    for mode in ["transaction", "statement", "session"] {
        let general = format!("default_pool_size = 1\npool_mode = \"{mode}\"");
        let proxy = Proxy::to(server, &general, &greeting, "");
        for change in [
            "SET TimeZone = 'UTC'",
            "RESET TimeZone",
            "RESET ALL",
            "RESET ROLE",
            "SET my.own = 'y'",
            "DISCARD ALL",
        ] {
            let mut one = Raw::login(proxy.port(), &database);
            assert_eq!(one.value(sql).as_deref(), Some(&*expected), "{mode}: before {change}");
            one.rows(change);
            if mode == "session" {
                one.terminate();
            }
            let mut other = Raw::login(proxy.port(), &database);
            assert_eq!(other.value(sql).as_deref(), Some(&*expected), "{mode}: behind {change}");
        }
    }
}

#[test]
fn who_comes_behind_a_reload_begins_with_what_connect_query_sets_then() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let entry = |zone: &str| format!("connect_query = \"SET TimeZone = '{zone}'\"");
    let proxy = Proxy::to(server, "", &entry("Asia/Tokyo"), "");
    let begins = || Raw::login(proxy.port(), &database).value("SHOW TimeZone");
    assert_eq!(begins().as_deref(), Some("Asia/Tokyo"));
    proxy.write_config(&Proxy::config(server, "", &entry("Europe/Rome"), ""));
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "RELOAD");
    assert_eq!(begins().as_deref(), Some("Europe/Rome"));
}

/// As people write it in an ini file: each client costs a login, and nothing else would say so.
#[test]
fn why_server_reset_query_failed_is_logged() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general =
        "pool_mode = \"session\"\nserver_reset_query = \"'DISCARD ALL'\"\nlog_disconnections = false";
    let proxy = Proxy::to(server, general, "", "");
    Raw::login(proxy.port(), &database).terminate();
    let line = proxy.wait_for_log("server_reset_query failed");
    assert!(line.contains("WARN") && line.contains("syntax error"), "{line}");
}

/// The connections are used: a server that says so answers. But not at each check.
#[test]
fn why_server_check_query_failed_is_logged() {
    let server = Postgres::shared();
    let general = "default_pool_size = 1\nserver_check_delay = 0\nserver_check_query = \"SELECT nonsense\"";
    let proxy = Proxy::to(server, general, "", "");
    let mut raw = Raw::login(proxy.port(), "postgres");
    let pid = raw.value("SELECT pg_backend_pid()");
    for _ in 0..20 {
        assert_eq!(raw.value("SELECT pg_backend_pid()"), pid);
    }
    let log = proxy.wait_for_log("times=16");
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("server_check_query failed")).collect();
    assert!(failed.iter().all(|line| line.contains("column \\\"nonsense\\\" does not exist")), "{failed:#?}");
    assert!(failed.len() <= 5, "{failed:#?}");
}

/// An INSERT in it would be told as one that is stored.
#[test]
fn what_server_check_query_opens_no_client_is_in() {
    let server = Postgres::shared();
    let general = "default_pool_size = 1\nserver_check_delay = 0\nserver_check_query = \"BEGIN\"";
    let proxy = Proxy::to(server, general, "", "");
    for _ in 0..3 {
        let mut raw = Raw::login(proxy.port(), "postgres");
        let ready = raw.query("SELECT 1").pop().expect("an answer");
        assert_eq!(ready.body, b"I");
        raw.terminate();
    }
    let line = proxy.wait_for_log("server_check_query failed");
    assert!(line.contains("it leaves a transaction open"), "{line}");
}

#[test]
fn why_connect_query_failed_is_logged() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "", "connect_query = \"SELECT nonsense\"", "");
    assert_eq!(Raw::login(proxy.port(), &database).value("SELECT 1").as_deref(), Some("1"));
    let line = proxy.wait_for_log("connect_query failed");
    assert!(line.contains("nonsense") && line.contains("does not exist"), "{line}");
}

/// It is a login that failed: said, told to who waits, and not tried again each second.
#[test]
fn a_connect_query_that_leaves_no_usable_connection_is_a_failed_login() {
    let server = Postgres::shared();
    let [spoilt, sound] = [server.fresh_database(""), server.fresh_database("")];
    let entry = |name: &str, more: &str| {
        let port = server.port();
        format!(
            "[databases.{name}]\nhost = \"127.0.0.1\"\nport = {port}\nuser = \"postgres\"\nmin_pool_size = 1\n{more}\n"
        )
    };
    for (query, why) in [
        ("BEGIN", "a transaction is open"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "connect_query"),
    ] {
        for mode in ["transaction", "session"] {
            let general =
                format!("pool_mode = \"{mode}\"\nserver_login_retry = 3600\nquery_wait_timeout = 1");
            let more = format!("connect_query = \"{query}\"");
            let rest = format!("{}{}", entry(&spoilt, &more), entry(&sound, ""));
            let proxy = Proxy::start(&Proxy::config(server, &general, "", &rest));
            let failures = || proxy.log().lines().filter(|line| line.contains("server login failed")).count();
            let line = proxy.wait_for_log("server login failed");
            assert!(line.contains("connect_query") && line.contains(why), "{line}");
            // What is replaced there shows that time goes on for both.
            let pid = || {
                server
                    .psql("postgres", &format!("SELECT pid FROM pg_stat_activity WHERE datname = '{sound}'"))
            };
            for _ in 0..3 {
                wait_for_connections(server, &sound, 1);
                let old = pid();
                server.psql("postgres", &format!("SELECT pg_terminate_backend({})", old.trim()));
                let new = poll(PATIENCE, || Some(pid()).filter(|new| !new.trim().is_empty() && *new != old));
                assert!(new.is_some(), "{old} is not replaced");
            }
            assert_eq!(failures(), 1, "{query}, {mode}: {}", proxy.log());
            let parameters = [("user", "postgres"), ("database", &*spoilt)];
            let error = match Raw::login_as(proxy.port(), &parameters, "") {
                Ok(mut client) => client.error("SELECT 1"),
                Err(error) => error,
            };
            assert_eq!(error.sqlstate(), "08001", "{query}, {mode}: {}", error.outline());
            assert!(error.field(b'D').contains("connect_query"), "{query}, {mode}: {}", error.outline());
        }
    }
}

#[test]
fn a_secret_that_was_changed_is_the_one_that_servers_are_told() {
    let hba = "local all all trust\nhost all postgres all trust\nhost all all all scram-sha-256\n";
    let server = Postgres::start(PgOptions { hba: Some(hba.into()), ..PgOptions::default() });
    server.psql(
        "postgres",
        "CREATE ROLE plain LOGIN PASSWORD 'one'; CREATE ROLE verified LOGIN PASSWORD 'one'",
    );
    let verifier = || {
        let sql = "SELECT rolpassword FROM pg_authid WHERE rolname = 'verified'";
        server.psql("postgres", sql).trim().to_owned()
    };
    let list =
        |plain: &str| format!("\"postgres\" \"p\"\n\"plain\" \"{plain}\"\n\"verified\" \"{}\"\n", verifier());
    let general = "auth_type = \"scram-sha-256\"\nauth_file = \"users\"\nserver_lifetime = 0";
    let config = Proxy::config(&server, general, "", "");
    let proxy = Proxy::start_with(&config, &[("users", &list("one"))]);
    let enter = |user: &str, password: &str| {
        Raw::login_as(proxy.port(), &[("user", user), ("database", "postgres")], password)
            .unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    let works = |raw: &mut Raw| assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
    // They stay, so that their pools do: from here on each use is a login of its own.
    let (mut plain, mut verified) = (enter("plain", "one"), enter("verified", "one"));
    works(&mut plain);
    works(&mut verified);
    server.psql("postgres", "ALTER ROLE plain PASSWORD 'two'; ALTER ROLE verified PASSWORD 'two'");
    std::fs::write(proxy.dir().join("users"), list("two")).expect("write the userlist");
    proxy.reload(&config);
    proxy.wait_for_log("reloaded");
    // In clear it is known by the file, of a verifier only by whoever logs in.
    works(&mut plain);
    works(&mut enter("verified", "two"));
    works(&mut verified);
}

#[test]
fn session_mode_shows_the_servers_own_process_id_and_defaults() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "pool_mode = \"session\"\ndefault_pool_size = 2", "", "");
    let parameters = [
        ("user", "postgres"),
        ("database", database.as_str()),
        ("options", "-c work_mem=3MB"),
        ("TimeZone", "Asia/Tokyo"),
    ];
    for _ in 0..3 {
        let mut raw =
            Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
        assert_eq!(raw.value("SELECT pg_backend_pid()"), Some(raw.pid.to_string()));
        raw.rows("SET work_mem = '7MB'; SET TimeZone = 'UTC'");
        raw.rows("RESET ALL");
        assert_eq!(raw.value("SHOW work_mem").as_deref(), Some("3MB"));
        assert_eq!(raw.value("SHOW TimeZone").as_deref(), Some("Asia/Tokyo"));
        assert_eq!(
            raw.value("SELECT reset_val FROM pg_settings WHERE name = 'work_mem'").as_deref(),
            Some("3072")
        );
        raw.rows("SET work_mem = '7MB'");
        raw.terminate();
        let mut plain = Raw::login(proxy.port(), &database);
        assert_eq!(plain.value("SHOW work_mem").as_deref(), Some("4MB"));
        plain.terminate();
    }
}

#[test]
fn a_reload_changes_the_size_of_a_pool() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let config = |size: usize| Proxy::config(server, &format!("default_pool_size = {size}"), "", "");
    let proxy = Proxy::start(&config(1));
    let mut raws: Vec<Raw> = (0..3).map(|_| Raw::login(proxy.port(), &database)).collect();
    raws[0].rows("BEGIN");
    send_query(&mut raws[1], "BEGIN");
    send_query(&mut raws[2], "BEGIN");
    proxy.reload(&config(3));
    raws[1].read_until_ready();
    raws[2].read_until_ready();
    assert_eq!(connections(server, &database), 3);
    proxy.reload(&config(1));
    for raw in &mut raws {
        raw.rows("COMMIT");
    }
    let fewer = poll(PATIENCE, || {
        for raw in &mut raws {
            raw.rows("SELECT 1");
        }
        (connections(server, &database) == 1).then_some(())
    });
    assert!(fewer.is_some());
}

#[test]
fn a_reload_changes_the_policy_of_live_sessions() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let config = |rule: &str| {
            let policy = format!("[policy]\nsimple_query = \"{rule}\"");
            Proxy::config(server, &format!("pool_mode = \"{mode}\""), "", &policy)
        };
        let proxy = Proxy::start(&config("allow"));
        let mut raw = Raw::login(proxy.port(), &database);
        assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
        proxy.reload(&config("deny"));
        let refused = poll(PATIENCE, || {
            raw.query("SELECT 1").iter().find(|m| m.tag == b::ERROR_RESPONSE).map(Message::sqlstate)
        });
        assert_eq!(refused.as_deref(), Some("42501"), "{mode}");
        assert!(outline(&raw.extended("SELECT 2", &[])).contains("Some(\"2\")"));
        proxy.reload(&config("allow"));
        let allowed =
            poll(PATIENCE, || raw.query("SELECT 1").iter().any(|m| m.tag == b::DATA_ROW).then_some(()));
        assert!(allowed.is_some());
    }
}

#[test]
fn a_reload_of_a_broken_file_changes_nothing() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::start(&Proxy::config(server, "default_pool_size = 1", "", ""));
    let mut raw = Raw::login(proxy.port(), &database);
    proxy.reload("[general]\nnonsense = 1\n");
    proxy.wait_for_log("nonsense");
    assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
}

#[test]
fn sigterm_lets_transactions_finish_and_closes_the_idle() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let mut proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "");
        let mut busy = Raw::login(proxy.port(), &database);
        let mut idle = Raw::login(proxy.port(), &database);
        idle.rows("SELECT 1");
        let mut listening = Raw::login(proxy.port(), &database);
        listening.rows("LISTEN c");
        busy.rows("BEGIN; INSERT INTO t VALUES (1)");
        proxy.terminate();
        for raw in [&mut idle, &mut listening] {
            let error = last(raw);
            assert_eq!((error.field(b'S'), error.sqlstate()), ("FATAL".into(), "57P01".into()), "{mode}");
        }
        // New ones are not let in any more.
        let refused = poll(PATIENCE, || {
            let mut raw = Raw::connect(proxy.port());
            raw.startup(3 << 16, &[("user", "postgres"), ("database", &database)]);
            raw.read_until_closed().pop().filter(|m| m.tag == b::ERROR_RESPONSE)
        });
        assert_eq!(refused.expect("an answer").sqlstate(), "57P01");
        busy.rows("INSERT INTO t VALUES (2)");
        send_query(&mut busy, "COMMIT");
        let messages = busy.read_until_closed();
        assert!(outline(&messages).contains("COMMIT"), "{mode}: {}", outline(&messages));
        assert_eq!(messages.last().expect("a last word").sqlstate(), "57P01");
        assert!(proxy.wait_end().success());
        assert_eq!(server.psql(&database, "SELECT count(*) FROM t").trim(), "2");
    }
}

#[test]
fn a_login_that_waits_for_a_server_is_told_of_a_drain() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for how in ["SIGTERM", "SHUTDOWN WAIT_FOR_SERVERS"] {
        // Alone, and beside a client whose transaction goes on.
        for others in [false, true] {
            let mut proxy = Proxy::to(server, "pool_mode = \"session\"\ndefault_pool_size = 1", "", "");
            let mut console = Raw::login(proxy.port(), "pgsluice");
            let mut inside = others.then(|| Raw::login(proxy.port(), &database));
            match &mut inside {
                Some(inside) => _ = inside.rows("BEGIN"),
                None => tell(&mut console, "PAUSE"),
            }
            let mut waits = Raw::connect(proxy.port());
            waits.startup(3 << 16, &[("user", "postgres"), ("database", &database)]);
            until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "1")]);
            match how {
                "SIGTERM" => proxy.terminate(),
                command => tell(&mut console, command),
            }
            let last = last(&mut waits);
            assert_eq!(last.sqlstate(), "57P01", "{how}: {}", last.outline());
            assert!(last.field(b'M').contains("shutting down"), "{how}: {}", last.outline());
            if let Some(mut inside) = inside {
                send_query(&mut inside, "COMMIT");
                assert!(inside.read_until_closed().iter().any(|m| m.command() == "COMMIT"), "{how}");
            }
            assert!(proxy.wait_end().success());
        }
    }
}

#[test]
fn a_drain_ends_at_its_deadline() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut proxy = Proxy::to(server, "shutdown_timeout = 1", "", "");
    let mut busy = Raw::login(proxy.port(), &database);
    busy.rows("BEGIN");
    proxy.terminate();
    proxy.wait_end();
    assert_eq!(last(&mut busy).sqlstate(), "57P01");
    proxy.wait_for_log("drained for shutdown_timeout");
    proxy.wait_for_log("ended clients=0");
}

/// Its Sync does not come, and nothing that it would end is missed: others have the server meanwhile, and a PAUSE ends.
#[test]
fn who_only_prepared_keeps_no_server_from_others() {
    let server = Postgres::shared();
    for mode in ["transaction", "statement"] {
        let database = server.fresh_database("");
        let general = format!("default_pool_size = 1\npool_mode = \"{mode}\"\nquery_wait_timeout = 30");
        let proxy = Proxy::to(server, &general, "", "");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let [mut other, mut prepared] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
        only_prepare(&mut prepared);
        assert_eq!(other.value("SELECT 2").as_deref(), Some("2"), "{mode}");
        for _ in 0..2 {
            prepared.send(&Step::execute("p", &[]).bytes);
            let seen = comparable(&prepared.read_until_ready());
            assert!(seen.contains("Some(\"1\")"), "{mode}: {seen}");
            prepared.send(&build(|o| {
                f::put_target(o, f::DESCRIBE, b'S', b"p");
                f::put_empty(o, f::FLUSH);
            }));
            prepared.read_until(b::ROW_DESCRIPTION);
            tell(&mut console, "PAUSE");
            tell(&mut console, "RESUME");
        }
    }
}

#[test]
fn who_only_prepared_keeps_no_place_from_other_pools() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let bob = role(server, &database, "bob");
    let proxy = Proxy::to(server, "max_db_connections = 1\nquery_wait_timeout = 30", "", "");
    let mut other = login_as(&proxy, &bob, &database);
    let mut prepared = Raw::login(proxy.port(), &database);
    only_prepare(&mut prepared);
    assert_eq!(other.value("SELECT 2").as_deref(), Some("2"));
}

#[test]
fn a_drain_waits_for_no_client_that_only_prepared() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let general = format!("pool_mode = \"{mode}\"\nshutdown_timeout = 600");
        let mut proxy = Proxy::to(server, &general, "", "");
        let mut prepared = Raw::login(proxy.port(), &database);
        only_prepare(&mut prepared);
        proxy.terminate();
        is_closed(&mut prepared, "57P01", "shutting down");
        assert!(proxy.wait_end().success());
    }
}

/// The client is closed with `sqlstate` and a text that names `setting`, not before `at_least`, and its server is gone
/// when `inside` a transaction.
fn is_closed(raw: &mut Raw, sqlstate: &str, setting: &str) {
    let error = last(raw);
    assert_eq!(
        (error.field(b'S'), error.sqlstate()),
        ("FATAL".into(), sqlstate.into()),
        "{}",
        error.outline()
    );
    assert!(error.field(b'M').contains(setting), "{}", error.outline());
}

#[test]
fn idle_clients_are_closed_and_busy_ones_are_not() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\"\nclient_idle_timeout = 2"), "", "");
        let mut idle = Raw::login(proxy.port(), &database);
        idle.rows("SELECT 1");
        let mut busy = Raw::login(proxy.port(), &database);
        let began = Instant::now();
        // Longer than the limit and the janitor's pace, but never idle for that long.
        while began.elapsed() < Duration::from_secs(4) {
            assert_eq!(busy.value("SELECT 1 FROM pg_sleep(0.2)").as_deref(), Some("1"));
        }
        is_closed(&mut idle, "57P05", "client_idle_timeout");
        is_closed(&mut busy, "57P05", "client_idle_timeout");
    }
}

/// A server that says so is not what it should be: its client keeps it to the end of the block, and nobody else is given it.
#[test]
fn a_connection_with_an_internal_error_serves_nobody_else() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let mut raw = Raw::login(proxy.port(), &database);
    let pid = |raw: &mut Raw| raw.value("SELECT pg_backend_pid()");
    let raise = |code: &str| format!("DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END$$");
    let first = pid(&mut raw);
    assert_eq!(raw.error(&raise("22000")).sqlstate(), "22000");
    assert_eq!(pid(&mut raw), first);
    raw.rows("BEGIN; SAVEPOINT a");
    assert_eq!(raw.error(&raise("XX000")).sqlstate(), "XX000");
    raw.rows("ROLLBACK TO a");
    assert_eq!(pid(&mut raw), first);
    raw.rows("COMMIT");
    assert_ne!(pid(&mut raw), first);
}

#[test]
fn clients_idle_inside_a_transaction_are_closed_and_their_server_dropped() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let general = format!("pool_mode = \"{mode}\"\nidle_transaction_timeout = 2\ndefault_pool_size = 2");
        let proxy = Proxy::to(server, &general, "", "");
        let mut idle = Raw::login(proxy.port(), &database);
        idle.rows("BEGIN");
        let pid = idle.value("SELECT pg_backend_pid()").expect("pid");
        let mut busy = Raw::login(proxy.port(), &database);
        busy.rows("BEGIN");
        assert_eq!(
            busy.value("SELECT 1 FROM pg_sleep(4)").as_deref(),
            Some("1"),
            "a long query is not idleness"
        );
        busy.rows("COMMIT");
        is_closed(&mut idle, "25P03", "idle_transaction_timeout");
        server.wait_until(&database, &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}"));
        assert_eq!(busy.value("SELECT 1").as_deref(), Some("1"));
    }
}

/// As asyncpg's prepare() leaves it: there is nothing that a Sync would end.
fn only_prepare(raw: &mut Raw) {
    raw.send(&build(|o| {
        f::put_parse(o, b"p", b"SELECT 1", &[]);
        f::put_target(o, f::DESCRIBE, b'S', b"p");
        f::put_empty(o, f::FLUSH);
    }));
    raw.read_until(b::ROW_DESCRIPTION);
}

#[test]
fn clients_that_leave_a_unit_without_its_sync_are_idle_inside_a_transaction() {
    let server = Postgres::shared();
    let unit = |sql: &str| {
        build(|o| {
            f::put_parse(o, b"", sql.as_bytes(), &[]);
            f::put_bind_text(o, b"", &[]);
            f::put_execute(o, b"", 0);
            f::put_empty(o, f::FLUSH);
        })
    };
    for (mode, setting, sqlstate) in [
        ("transaction", "idle_transaction_timeout", "25P03"),
        ("session", "idle_transaction_timeout", "25P03"),
        ("transaction", "transaction_timeout", "25P04"),
    ] {
        let database = server.fresh_database("");
        let general = format!("pool_mode = \"{mode}\"\n{setting} = 2\ndefault_pool_size = 4");
        let proxy = Proxy::to(server, &general, "", "");
        let mut clients = [0; 3].map(|_| Raw::login(proxy.port(), &database));
        let [run, failed, prepared] = &mut clients;
        run.send(&unit("SELECT 1"));
        run.read_until(b::COMMAND_COMPLETE);
        failed.send(&unit("SELECT 1/0"));
        failed.read_until(b::ERROR_RESPONSE);
        only_prepare(prepared);
        is_closed(run, sqlstate, setting);
        is_closed(failed, sqlstate, setting);
        assert_eq!(prepared.value("SELECT 1").as_deref(), Some("1"), "{mode}");
    }
}

#[test]
fn long_queries_are_ended_on_the_server_too() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\"\nquery_timeout = 2"), "", "");
        let mut raw = Raw::login(proxy.port(), &database);
        raw.rows("BEGIN");
        // Many short ones together are longer than the limit, none is.
        for _ in 0..12 {
            raw.rows("SELECT pg_sleep(0.25)");
        }
        let pid = raw.value("SELECT pg_backend_pid()").expect("pid");
        send_query(&mut raw, "SELECT pg_sleep(600)");
        is_closed(&mut raw, "57014", "query_timeout");
        server.wait_until(&database, &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}"));
    }
}

#[test]
fn who_waits_for_a_server_is_bound_by_query_timeout_too() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 1\nquery_wait_timeout = 0", "", "");
    let mut holder = Raw::login(proxy.port(), &database);
    let mut raws = [(); 2].map(|()| Raw::login(proxy.port(), &database));
    holder.rows("BEGIN");
    set(proxy.port(), "query_timeout = 1");
    for (raw, sql) in raws.iter_mut().zip(["SELECT 7", "SELECT 8"]) {
        send_query(raw, sql);
    }
    for raw in &mut raws {
        is_closed(raw, "57014", "query_timeout");
    }
    // A login that asks the server for what its client is greeted with.
    let mut login = Raw::connect(proxy.port());
    login.startup(3 << 16, &[("user", "postgres"), ("database", &database), ("work_mem", "1MB")]);
    is_closed(&mut login, "57014", "query_timeout");
    assert_eq!(
        holder.value("SELECT 1").as_deref(),
        Some("1"),
        "it is inside a transaction, and asks nothing"
    );
}

/// Nobody waits for it any more, but the server.
#[test]
fn a_long_query_whose_client_left_is_ended_too() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "");
        let mut raw = Raw::login(proxy.port(), &database);
        let pid = raw.value("SELECT pg_backend_pid()").expect("pid");
        set(proxy.port(), "query_timeout = 1");
        send_query(&mut raw, "SELECT pg_sleep(40)");
        raw.send(b"X\0\0\0\x04");
        let count = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
        server.wait_until(&database, &count);
    }
}

#[test]
fn long_transactions_are_ended() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\"\ntransaction_timeout = 2"), "", "");
        let mut short = Raw::login(proxy.port(), &database);
        let mut long = Raw::login(proxy.port(), &database);
        long.rows("BEGIN");
        let ended = poll(PATIENCE, || {
            // Transactions of its own, one after the other, for longer than the limit.
            short.rows("SELECT 1");
            let mut out = Vec::new();
            f::put_query(&mut out, b"SELECT 1");
            if long.try_send(&out).is_err() {
                return Some(());
            }
            loop {
                match long.try_read() {
                    Some(m) if m.sqlstate() == "25P04" && m.tag == b::ERROR_RESPONSE => return Some(()),
                    Some(m) if m.tag == b::READY_FOR_QUERY => return None,
                    Some(_) => {}
                    None => panic!("closed without a word"),
                }
            }
        });
        assert!(ended.is_some(), "{mode}");
        assert_eq!(short.value("SELECT 1").as_deref(), Some("1"));
    }
}

#[test]
fn who_waits_is_told_so_once_and_then_served() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 1\nquery_wait_notify = \"50ms\"", "", "");
    let mut holder = Raw::login(proxy.port(), &database);
    let mut raw = Raw::login(proxy.port(), &database);
    for round in 0..4 {
        holder.rows("BEGIN");
        match round {
            0 => send_query(&mut raw, "SELECT 7"),
            1 => raw.send(&build(|o| {
                f::put_parse(o, b"", b"SELECT 7", &[]);
                f::put_bind_text(o, b"", &[]);
                f::put_execute(o, b"", 0);
                f::put_empty(o, f::SYNC);
            })),
            // Behind answers of the same write, in front of a wait of its own.
            2 => raw.send(&build(|o| {
                ["BEGIN", "SELECT 7"].iter().for_each(|sql| f::put_query(o, sql.as_bytes()))
            })),
            _ => send_query(&mut raw, "ROLLBACK; SELECT 7"),
        }
        let notice = raw.read_until(b::NOTICE_RESPONSE).pop().expect("a notice");
        assert_eq!((notice.field(b'S'), notice.sqlstate()), ("NOTICE".into(), "00000".into()));
        assert!(!raw.has_answer(), "and nothing else");
        holder.rows("COMMIT");
        let mut messages = raw.read_until_ready();
        if round == 2 {
            messages.extend(raw.read_until_ready());
            raw.rows("COMMIT");
        }
        let told = messages.iter().filter(|m| m.tag == b::NOTICE_RESPONSE).count();
        assert_eq!(told, usize::from(round == 3), "the server's own at most: {}", outline(&messages));
        let row = messages.iter().find(|m| m.tag == b::DATA_ROW).expect("a row");
        assert_eq!(row.row(), [Some("7".to_owned())]);
    }
    // A client that is told can still give up.
    holder.rows("BEGIN");
    send_query(&mut raw, "SELECT 7");
    raw.read_until(b::NOTICE_RESPONSE);
    raw.cancel(proxy.port());
    let messages = raw.read_until_ready();
    assert_eq!(messages[0].sqlstate(), "57014", "{}", outline(&messages));
}

#[test]
fn who_waits_is_told_what_for() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "query_wait_timeout = 0\nquery_wait_notify = \"500ms\"";
    let config = Proxy::config(server, general, "", "");
    let proxy = Proxy::start(&config);
    let mut raw = Raw::login(proxy.port(), &database);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    tell(&mut console, &format!("PAUSE {database}"));
    send_query(&mut raw, "SELECT 7");
    let notice = raw.read_until(b::NOTICE_RESPONSE).pop().expect("a notice");
    assert!(notice.field(b'M').contains("paused"), "{}", notice.outline());
    tell(&mut console, &format!("RESUME {database}"));
    raw.read_until_ready();
    let nowhere = support::free_port();
    let gone = config.replace(&format!("port = {}\n", server.port()), &format!("port = {nowhere}\n"));
    assert_ne!(gone, config);
    proxy.write_config(&gone);
    tell(&mut console, "RELOAD");
    send_query(&mut raw, "SELECT 7");
    let notice = raw.read_until(b::NOTICE_RESPONSE).pop().expect("a notice");
    assert!(notice.field(b'M').contains("no connection to the server"), "{}", notice.outline());
    proxy.reload(&config);
    raw.read_until_ready();
}

#[test]
fn an_answer_that_nobody_takes_any_more_ends_with_its_connection() {
    let server = Postgres::shared();
    for mode in ["transaction", "session"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, &format!("default_pool_size = 1\npool_mode = \"{mode}\""), "", "");
        let mut raw = Raw::login(proxy.port(), &database);
        send_query(
            &mut raw,
            "SELECT repeat('x', 1000) FROM generate_series(1, 3000) a, generate_series(1, 1000000) b",
        );
        raw.read_until(b::DATA_ROW);
        // Its leaving is heard before it turns out that it takes nothing more: as one that said so, and closed its socket then.
        raw.send(&build(|o| f::put_empty(o, f::TERMINATE)));
        raw.shutdown_write();
        std::thread::sleep(Duration::from_millis(300));
        drop(raw);
        assert_eq!(Raw::login(proxy.port(), &database).value("SELECT 1").as_deref(), Some("1"), "{mode}");
        let runs = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND query LIKE '%repeat%'"
        );
        let ended = poll(PATIENCE, || (server.psql("postgres", &runs).trim() == "0").then_some(()));
        assert!(ended.is_some(), "{mode}");
    }
}
