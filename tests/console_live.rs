//! The console of a running pgsluice before a real PostgreSQL: what SHOW says moves with what clients do, commands do
//! what they say, and only who may.

use std::process::Command;
use std::thread;
use std::time::Instant;

use crate::support;
use pgsluice::wire::{backend, frontend};
use support::console::{Row, find, show, tell, until};
use support::crowd::Step;
use support::{
    Certs, Message, PATIENCE, Postgres, Proxy, Raw, client_command, client_program, outline, poll,
};

/// Trust; `postgres` may everything on the console, `viewer` may look. Databases are those of the shared server.
fn proxy(general: &str, rest: &str) -> Proxy {
    let general = format!("stats_users = [\"viewer\"]\n{general}");
    Proxy::to(Postgres::shared(), &general, "", rest)
}

fn console(proxy: &Proxy) -> Raw {
    Raw::login(proxy.port(), "pgsluice")
}

fn login(proxy: &Proxy, user: &str, database: &str) -> Result<Raw, Message> {
    Raw::login_as(proxy.port(), &[("user", user), ("database", database)], "")
}

/// The pool of `postgres` in `database`.
fn pool(console: &mut Raw, database: &str) -> Row {
    find(console, "SHOW POOLS", &[("database", database), ("user", "postgres")]).expect("the pool")
}

/// The last words of a connection that is closed.
fn last_error(client: &mut Raw) -> Message {
    let mut error = None;
    while let Some(message) = client.try_read() {
        if message.tag == backend::ERROR_RESPONSE {
            error = Some(message);
        }
    }
    error.expect("an ErrorResponse before the end")
}

fn backends(server: &Postgres, database: &str) -> String {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'");
    server.psql("postgres", &sql).trim().to_owned()
}

// ===== SHOW =====

#[test]
fn each_show_answers_and_moves_with_the_clients() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut busy = Raw::login(proxy.port(), &database);
    let mut idle = Raw::login(proxy.port(), &database);
    assert_eq!(idle.value("SELECT 7").as_deref(), Some("7"));
    busy.rows("BEGIN");
    until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_active", "2"), ("sv_active", "1")]);
    let row = pool(&mut console, &database);
    assert_eq!((row["cl_waiting"].as_str(), row["pool_mode"].as_str()), ("0", "transaction"));

    let clients = show(&mut console, "SHOW CLIENTS");
    let states: Vec<_> =
        clients.iter().filter(|c| c["database"] == database).map(|c| c["state"].as_str()).collect();
    assert_eq!(states.len(), 2);
    assert!(states.contains(&"idle"), "{states:?}");
    let linked = clients.iter().find(|c| !c["link"].is_empty()).expect("the busy one is linked");
    let servers = show(&mut console, "SHOW SERVERS");
    let its = servers.iter().find(|s| s["ptr"] == linked["link"]).expect("the other end");
    assert_eq!((its["link"].as_str(), its["state"].as_str()), (linked["ptr"].as_str(), "active"));
    let pid = busy.value("SELECT pg_backend_pid()");
    assert_eq!(pid.as_deref(), Some(its["remote_pid"].as_str()), "the backend's own process id");
    assert_eq!(its["port"], server.port().to_string());
    until(&mut console, "SHOW CLIENTS", &[("database", &database), ("state", "idle_in_transaction")]);
    let mut of_both = |sql: &str| -> Vec<_> {
        let rows = show(&mut console, sql).into_iter().filter(|s| s["database"] == database);
        rows.map(|s| [&*s["type"], &*s["state"], &*s["recv_pos"]].join(" ")).collect()
    };
    let mut all = of_both("SHOW SOCKETS");
    all.sort();
    assert_eq!(all[..3], ["C idle 0", "C idle_in_transaction 0", "S active 0"]);
    assert_eq!(of_both("SHOW ACTIVE_SOCKETS"), ["C idle_in_transaction 0", "S active 0"]);

    let mut ids: Vec<_> = show(&mut console, "SHOW SOCKETS").into_iter().map(|s| s["id"].clone()).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|two| two[0] != two[1]), "over clients and servers: {ids:?}");
    busy.rows("COMMIT");
    until(&mut console, "SHOW POOLS", &[("database", &database), ("sv_active", "0"), ("cl_active", "2")]);
    assert_ne!(pool(&mut console, &database)["sv_idle"], "0");

    let row = find(&mut console, "SHOW DATABASES", &[("name", &database)]).expect("the database");
    assert_eq!(
        (row["host"].as_str(), row["port"].as_str()),
        ("127.0.0.1", server.port().to_string().as_str())
    );
    assert_eq!((row["current_client_connections"].as_str(), row["paused"].as_str()), ("2", "0"));
    assert!(
        find(&mut console, "SHOW USERS", &[("name", "postgres"), ("current_client_connections", "2")])
            .is_some()
    );
    // The console's own is one, as in SHOW POOLS.
    assert!(find(&mut console, "SHOW LISTS", &[("list", "pools"), ("items", "2")]).is_some());
    let count = show(&mut console, "SHOW SERVERS").len().to_string();
    assert!(find(&mut console, "SHOW LISTS", &[("list", "used_servers"), ("items", &count)]).is_some());
    assert!(find(&mut console, "SHOW LISTS", &[("list", "free_servers"), ("items", "0")]).is_some());
    assert!(
        find(&mut console, "SHOW CONFIG", &[("key", "coalesce.mode"), ("value", "on"), ("default", "on")])
            .is_some()
    );
    assert!(
        find(
            &mut console,
            "SHOW CONFIG",
            &[("key", "pool_mode"), ("value", "transaction"), ("changeable", "yes")]
        )
        .is_some()
    );
    assert!(find(&mut console, "SHOW CONFIG", &[("key", "listen_port"), ("changeable", "no")]).is_some());
    assert!(find(&mut console, "SHOW STATE", &[("key", "active"), ("value", "yes")]).is_some());
    let mem = show(&mut console, "SHOW MEM");
    let resident = mem.iter().find(|m| m["name"] == "process_resident").expect("resident");
    assert!(resident["memtotal"].parse::<u64>().expect("a number") > 1 << 20);
    assert!(mem.iter().any(|m| m["name"] == "client" && m["used"] == "2"), "{mem:?}");
    let version = format!("pgsluice {}", env!("CARGO_PKG_VERSION"));
    assert!(show(&mut console, "SHOW VERSION")[0]["version"].contains(&version));
    for probe in ["SHOW COALESCE", "SHOW COALESCE_TABLES", "SHOW STATS_AVERAGES", "SHOW TOTALS"] {
        show(&mut console, probe);
    }
}

#[test]
fn clients_are_shown_with_what_the_server_knows_them_by() {
    let database = Postgres::shared().fresh_database("");
    let certs = Certs::new("postgres");
    let tls = format!(
        "client_tls_sslmode = \"allow\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    // Over an IPv6 socket, where there is IPv6.
    let proxy = proxy(&format!("listen_addr = \"*\"\napplication_name_add_host = true\n{tls}"), "");
    let mut console = console(&proxy);
    let named = [("user", "postgres"), ("database", &*database), ("application_name", "zz")];
    let mut client = Raw::login_as(proxy.port(), &named, "").expect("a login");
    let seen = client.value("SHOW application_name").expect("a name");
    assert!(seen.starts_with("zz - 127.0.0.1:"), "{seen}");
    let its = [("database", &*database), ("application_name", &*seen)];
    assert!(find(&mut console, "SHOW CLIENTS", &its).is_some());
    client.rows("BEGIN");
    until(&mut console, "SHOW SERVERS", &its);
    client.rows("ROLLBACK");
    for name in ["b", "c"] {
        client.rows(&format!("SET application_name = {name}"));
        until(&mut console, "SHOW CLIENTS", &[("database", &*database), ("application_name", name)]);
    }
    client.rows("RESET application_name");
    until(&mut console, "SHOW CLIENTS", &its);
    let dsn = format!("host=127.0.0.1 port={} user=postgres dbname=pgsluice sslmode=require", proxy.port());
    let mut psql = client_command("psql");
    let output = psql.args(["-XAt", &dsn, "-c", "SHOW CLIENTS"]).output().expect("psql");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("TLSv1.3/TLS_AES_256_GCM_SHA384"), "{shown}");
}

#[test]
fn counters_count_what_was_done() {
    let database = Postgres::shared().fresh_database("CREATE TABLE t (a int)");
    let proxy = proxy("stats_period = 1", "");
    let mut console = console(&proxy);
    let mut client = Raw::login(proxy.port(), &database);
    client.rows("SELECT 1");
    let total = |console: &mut Raw, column: &str| {
        let row = find(console, "SHOW STATS", &[("database", &database)]).expect("the database");
        row[column].parse::<u64>().expect("a number")
    };
    let at = |console: &mut Raw, column: &str, value: u64| {
        let seen = poll(PATIENCE, || (total(console, column) == value).then_some(()));
        assert!(seen.is_some(), "{column} is {}, not {value}", total(console, column));
    };
    // Counted when the server goes back, which may be after the answer.
    at(&mut console, "total_xact_count", 1);
    at(&mut console, "total_query_count", 1);
    for _ in 0..5 {
        client.rows("SELECT 1");
    }
    client.rows("BEGIN");
    client.rows("SELECT 1");
    client.rows("COMMIT");
    at(&mut console, "total_xact_count", 7);
    at(&mut console, "total_query_count", 9);
    // What only prepares is a transaction and a query, as in PgBouncer; inside a block it is a query.
    client.send(&Step::prepare("it", "SELECT 1").bytes);
    client.read_until_ready();
    at(&mut console, "total_xact_count", 8);
    at(&mut console, "total_query_count", 10);
    client.rows("BEGIN");
    let mut copy = Vec::new();
    frontend::put_parse(&mut copy, b"", b"COPY t FROM STDIN", &[]);
    frontend::put_bind_text(&mut copy, b"", &[]);
    frontend::put_execute(&mut copy, b"", 0);
    for message in [frontend::SYNC, frontend::COPY_DONE, frontend::SYNC] {
        frontend::put_empty(&mut copy, message);
    }
    for bytes in [Step::prepare("other", "SELECT 2").bytes, Step::execute("other", &[]).bytes, copy] {
        client.send(&bytes);
        client.read_until_ready();
    }
    client.rows("COMMIT");
    at(&mut console, "total_xact_count", 9);
    at(&mut console, "total_query_count", 15);
    assert_eq!(total(&mut console, "total_client_login_count"), 1);
    assert!(total(&mut console, "total_received") > 0 && total(&mut console, "total_sent") > 0);
    // An average is over a whole period: while this goes on, one of them sees it.
    let seen = poll(PATIENCE, || {
        client.rows("SELECT 1");
        let row = find(&mut console, "SHOW STATS_AVERAGES", &[("database", &database)])?;
        (row["xact_count"] != "0" && row["bytes_sent"] != "0").then_some(())
    });
    assert!(seen.is_some());
}

/// In session mode, and where state keeps a client on its connection, what it did is seen while it is there.
#[test]
fn who_keeps_a_connection_is_counted_while_it_does() {
    let database = Postgres::shared().fresh_database("");
    for (mode, first) in [("session", "SELECT 1"), ("transaction", "LISTEN a")] {
        let proxy = proxy(&format!("pool_mode = \"{mode}\""), "");
        let mut console = console(&proxy);
        let begun = Instant::now();
        let mut client = Raw::login(proxy.port(), &database);
        client.rows(first);
        until(&mut console, "SHOW STATS", &[("database", &*database), ("total_xact_count", "1")]);
        let rested = Instant::now();
        Postgres::shared().psql("postgres", "SELECT pg_sleep(0.2)");
        let rested = rested.elapsed();
        for sql in ["BEGIN", "SELECT 2", "COMMIT", "SET application_name = me"] {
            client.rows(sql);
        }
        let counted = [
            ("total_xact_count", "3"),
            ("total_query_count", "5"),
            ("total_server_assignment_count", "1"),
            ("database", &*database),
        ];
        until(&mut console, "SHOW STATS", &counted);
        let row = find(&mut console, "SHOW STATS", &counted).expect("the database");
        let time: u128 = row["total_xact_time"].parse().expect("a number");
        assert!(time <= (begun.elapsed() - rested).as_micros(), "{mode}: {time}");
        until(&mut console, "SHOW CLIENTS", &[("database", &*database), ("application_name", "me")]);
    }
}

#[test]
fn what_was_counted_outlives_the_pool_that_counted_it() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    // What is kept is of databases with an entry of their own.
    let rest = format!("[databases.{database}]\nhost = \"127.0.0.1\"\nport = {}", server.port());
    let proxy = proxy("server_idle_timeout = 1", &rest);
    let mut console = console(&proxy);
    for logins in ["1", "2"] {
        let mut client = Raw::login(proxy.port(), &database);
        client.rows("SELECT 1");
        drop(client);
        let gone = || find(&mut console, "SHOW POOLS", &[("database", &database)]).is_none().then_some(());
        assert!(poll(PATIENCE, gone).is_some(), "the pool is still there");
        let row = find(&mut console, "SHOW STATS_TOTALS", &[("database", &database)]).expect("the database");
        assert_eq!((&*row["client_login_count"], &*row["query_count"]), (logins, logins));
    }
}

#[test]
fn pouring_is_shown() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut client = Raw::login(proxy.port(), &database);
    // Each is asked about once, in the background.
    let table = |console: &mut Raw, eligible: &str| {
        let by = [("database", database.as_str()), ("eligible", eligible)];
        find(console, "SHOW COALESCE_TABLES", &by)
    };
    let mut n = 0;
    let yes = poll(PATIENCE, || {
        n += 1;
        client.rows(&format!("INSERT INTO t VALUES ({n}, 'x')"));
        table(&mut console, "yes")
    });
    assert_eq!(yes.expect("t is eligible")["table"], "public.t");
    let no = poll(PATIENCE, || {
        client.error("INSERT INTO missing VALUES (1)");
        table(&mut console, "no")
    });
    let no = no.expect("there is no such table");
    assert_eq!(no["table"], "missing");
    assert!(!no["reason"].is_empty());
    // Those that their own text rules out are listed as well, and counted.
    let many: Vec<_> = (101..134).map(|n| format!("(-{n}, 'x')")).collect();
    let many = format!("INSERT INTO t VALUES {} ON CONFLICT DO NOTHING", many.join(", "));
    let names: Vec<_> = (0..300).map(|n| format!("a AS name_{n:055}")).collect();
    let long = format!("INSERT INTO t VALUES (-6, 'x') RETURNING {}", names.join(", "));
    for (sql, reason) in [
        ("INSERT INTO t VALUES (-1, 'x'), (-4, 'x') ON CONFLICT (a) WHERE true DO NOTHING", "on_conflict"),
        (&many, "many_rows"),
        (&long, "long_text"),
        ("INSERT INTO t SELECT -2, 'x'", "not_values"),
        ("INSERT INTO t VALUES (-3, 'x') RETURNING a + 1", "returning"),
    ] {
        client.rows(sql);
        client.rows(&sql.replace("-", "-1"));
        let by = [("database", database.as_str()), ("table", "t"), ("reason", reason), ("seen", "2")];
        assert!(find(&mut console, "SHOW COALESCE_TABLES", &by).is_some(), "{sql}");
    }
    // Also with parameters, as ORMs write them.
    let params = [Some("-21"), Some("x"), Some("-22"), Some("x")];
    for (sql, params, reason) in [
        ("INSERT INTO \"t\" VALUES ($1::int, $2::varchar(5))", &params[..2], "expression"),
        (
            "INSERT INTO \"t\" VALUES ($1, $2), ($3, $4) ON CONFLICT (a) WHERE true DO NOTHING",
            &params[..],
            "on_conflict",
        ),
    ] {
        client.extended(sql, params);
        let by = [("database", database.as_str()), ("table", "\"t\""), ("reason", reason), ("seen", "1")];
        assert!(find(&mut console, "SHOW COALESCE_TABLES", &by).is_some(), "{sql}");
    }
    n += 1;
    client.rows(&format!("INSERT INTO t VALUES ({n}, 'x')"));
    let lane =
        find(&mut console, "SHOW COALESCE", &[("table", "public.t"), ("format", "text")]).expect("a lane");
    assert_eq!(lane["columns"], "\"a\", \"b\"");
    until(&mut console, "SHOW COALESCE", &[("table", "public.t"), ("format", "text"), ("state", "idle")]);
    assert_ne!(lane["singles"], "0", "one client alone: its rows leave as they were sent");
    tell(&mut console, "FLUSH");
    tell(&mut console, "FLUSH t");
    tell(&mut console, "FLUSH public.t");
    assert_eq!(console.error("FLUSH nothing").sqlstate(), "42P01");
}

// ===== who may =====

#[test]
fn each_command_wants_its_role() {
    let proxy = proxy("", "[policy]\nsimple_query = \"deny\"");
    let refused = login(&proxy, "nobody", "pgbouncer").err().expect("refused");
    assert_eq!((refused.field(b'S').as_str(), refused.sqlstate().as_str()), ("FATAL", "28000"));
    assert!(refused.field(b'M').starts_with("not allowed"), "{}", refused.outline());

    let mut viewer = login(&proxy, "viewer", "pgbouncer").expect("a stats_user");
    for word in [
        "HELP",
        "CONFIG",
        "DATABASES",
        "POOLS",
        "CLIENTS",
        "SERVERS",
        "SOCKETS",
        "ACTIVE_SOCKETS",
        "PEERS",
        "PEER_POOLS",
        "DNS_HOSTS",
        "DNS_ZONES",
        "USERS",
        "VERSION",
        "LISTS",
        "MEM",
        "STATE",
        "STATS",
        "STATS_TOTALS",
        "STATS_AVERAGES",
        "TOTALS",
        "COALESCE",
        "COALESCE_TABLES",
        "COALESCE_FLUSHES",
        "POLICY",
        "AUDIT",
    ] {
        let answer = viewer.query(&format!("SHOW {word}"));
        assert!(answer.iter().all(|m| m.tag != backend::ERROR_RESPONSE), "{word}:\n{}", outline(&answer));
    }
    for command in [
        "PAUSE",
        "PAUSE postgres",
        "RESUME",
        "DISABLE postgres",
        "ENABLE postgres",
        "RECONNECT",
        "WAIT_CLOSE",
        "KILL",
        "KILL postgres",
        "KILL_CLIENT 1",
        "SUSPEND",
        "RELOAD",
        "SET default_pool_size = 1",
        "SHUTDOWN",
        "SHUTDOWN WAIT_FOR_CLIENTS",
        "SHUTDOWN WAIT_FOR_SERVERS",
        "FLUSH",
    ] {
        assert_eq!(viewer.error(command).sqlstate(), "42501", "{command}");
    }
    // None of it was done, and the policy that refuses every Query of a client has not locked the console out.
    let mut console = console(&proxy);
    assert!(find(&mut console, "SHOW STATE", &[("key", "paused"), ("value", "no")]).is_some());
    let suspend = console.error("SUSPEND");
    assert_eq!(suspend.sqlstate(), "0A000");
    for instead in ["PAUSE", "so_reuseport", "SHUTDOWN WAIT_FOR_CLIENTS"] {
        assert!(suspend.field(b'H').contains(instead), "{}", suspend.field(b'H'));
    }
    assert_eq!(console.error("PAUSE pgbouncer").sqlstate(), "55000");
    assert_eq!(console.error("RESUME").sqlstate(), "55000", "nothing is paused");
    assert_eq!(console.error("KILL_CLIENT 4711").sqlstate(), "42704");
}

#[test]
fn who_is_taken_out_of_the_lists_gives_no_more_commands() {
    let config = |general: &str| Proxy::config(Postgres::shared(), general, "", "");
    let both = "admin_users = [\"postgres\", \"ops\"]\nstats_users = [\"viewer\"]";
    let proxy = Proxy::start(&config(both));
    let enter = |user| login(&proxy, user, "pgsluice").expect(user);
    let (mut ops, mut prepared, mut viewer, mut stays) =
        (enter("ops"), enter("ops"), enter("viewer"), enter("postgres"));
    let mut parse = Vec::new();
    frontend::put_parse(&mut parse, b"later", b"PAUSE", &[]);
    frontend::put_empty(&mut parse, frontend::SYNC);
    prepared.send(&parse);
    prepared.read_until_ready();
    proxy.write_config(&config("admin_users = [\"postgres\"]\nstats_users = [\"ops\"]"));
    stays.rows("RELOAD");
    let mut run = Vec::new();
    frontend::put_bind_text(&mut run, b"later", &[]);
    frontend::put_execute(&mut run, b"", 0);
    frontend::put_empty(&mut run, frontend::SYNC);
    let mut query = Vec::new();
    frontend::put_query(&mut query, b"SHOW POOLS");
    for (raw, message) in [(&mut ops, &query), (&mut prepared, &run), (&mut viewer, &query)] {
        raw.send(message);
        let error = last_error(raw);
        assert_eq!((error.field(b'S').as_str(), error.sqlstate().as_str()), ("FATAL", "28000"));
        assert!(error.field(b'M').starts_with("not allowed any more"), "{}", error.outline());
    }
    assert!(!stays.rows("SHOW POOLS").is_empty() && !enter("ops").rows("SHOW POOLS").is_empty());
}

#[test]
fn the_console_takes_no_clients_place() {
    let database = Postgres::shared().fresh_database("");
    let proxy = proxy("max_client_conn = 1", "");
    let mut first = console(&proxy);
    let mut second = console(&proxy);
    let _client = Raw::login(proxy.port(), &database);
    let refused = login(&proxy, "postgres", &database).err().expect("the second client");
    assert_eq!(refused.sqlstate(), "53300");
    let mut third = console(&proxy);
    for console in [&mut first, &mut second, &mut third] {
        assert!(find(console, "SHOW POOLS", &[("database", "pgsluice"), ("cl_active", "3")]).is_some());
    }
}

// ===== PAUSE, RESUME, KILL =====

#[test]
fn pause_closes_what_is_free_and_ends_as_it_was_asked_for() {
    let database = Postgres::shared().fresh_database("");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let [mut client, mut gone] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
    gone.rows("SELECT 1");
    gone.terminate();
    until(&mut console, "SHOW POOLS", &[("database", &database), ("sv_idle", "1")]);
    tell(&mut console, "PAUSE");
    assert!(show(&mut console, "SHOW SERVERS").is_empty());
    let error = console.error(&format!("RESUME {database}"));
    assert!(error.field(b'M').contains("all are (RESUME)"), "{}", error.outline());
    tell(&mut console, "RESUME");
    assert_eq!(client.value("SELECT 2").as_deref(), Some("2"));
    let error = console.error(&format!("RESUME {database}"));
    assert!(error.field(b'M').ends_with("is not paused"), "{}", error.outline());
}

#[test]
fn pause_waits_for_transactions_and_holds_what_comes() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    server.psql("postgres", "DROP ROLE IF EXISTS console_other; CREATE ROLE console_other LOGIN");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut inside = Raw::login(proxy.port(), &database);
    let mut outside = Raw::login(proxy.port(), &database);
    outside.rows("SELECT 1");
    inside.rows("BEGIN");

    let mut pausing = self::console(&proxy);
    let command = format!("PAUSE {database}");
    let paused = thread::spawn(move || pausing.query(&command));
    until(&mut console, "SHOW DATABASES", &[("name", &database), ("paused", "1")]);
    let waiting = thread::spawn(move || {
        let answer = outside.value("SELECT 'after'");
        (outside, answer)
    });
    until(&mut console, "SHOW POOLS", &[("database", &database), ("user", "postgres"), ("cl_waiting", "1")]);
    // Still inside its transaction, and so PAUSE has not answered.
    assert_eq!(inside.value("SELECT 'inside'").as_deref(), Some("inside"));
    assert!(find(&mut console, "SHOW CLIENTS", &[("database", "pgsluice"), ("state", "active")]).is_some());
    inside.rows("COMMIT");
    let answer = paused.join().expect("PAUSE");
    assert!(answer.iter().any(|m| m.command() == "PAUSE"), "{}", outline(&answer));
    server.wait_until(
        "postgres",
        &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = '{database}'"),
    );

    // A pool that did not exist when PAUSE was said is held as well.
    let (port, name) = (proxy.port(), database.clone());
    let other = thread::spawn(move || {
        Raw::login_as(port, &[("user", "console_other"), ("database", &name)], "")
            .map(|mut c| c.value("SELECT 1"))
    });
    until(
        &mut console,
        "SHOW POOLS",
        &[("database", &database), ("user", "console_other"), ("cl_waiting", "1")],
    );
    assert_eq!(backends(server, &database), "0");
    tell(&mut console, &format!("PAUSE {database}"));

    tell(&mut console, &format!("RESUME {database}"));
    assert_eq!(waiting.join().expect("a client").1.as_deref(), Some("after"));
    let other = other.join().expect("a client").unwrap_or_else(|e| panic!("{}", e.outline()));
    assert_eq!(other.as_deref(), Some("1"));
    assert_eq!(console.error(&format!("RESUME {database}")).sqlstate(), "55000");
}

#[test]
fn a_pause_that_waits_ends_with_a_resume_on_another_console() {
    let database = Postgres::shared().fresh_database("");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut pausing = self::console(&proxy);
    let mut inside = Raw::login(proxy.port(), &database);
    for (pause, resume, paused) in [
        ("PAUSE".to_owned(), "RESUME".to_owned(), ("SHOW STATE", [("key", "paused"), ("value", "yes")])),
        (
            format!("PAUSE {database}"),
            format!("RESUME {database}"),
            ("SHOW DATABASES", [("name", database.as_str()), ("paused", "1")]),
        ),
        (
            format!("PAUSE {database}"),
            "RESUME".to_owned(),
            ("SHOW DATABASES", [("name", database.as_str()), ("paused", "1")]),
        ),
    ] {
        inside.rows("BEGIN");
        pausing.send(&query(&pause));
        until(&mut console, paused.0, &paused.1);
        assert!(!pausing.has_answer(), "{pause}: a transaction is open");
        tell(&mut console, &resume);
        let answer = pausing.read_until_ready();
        let error = answer.iter().find(|m| m.tag == backend::ERROR_RESPONSE).expect("an error");
        assert_eq!(error.sqlstate(), "55000", "{}", error.outline());
        assert!(error.field(b'M').contains("RESUME"), "{}", error.outline());
        inside.rows("COMMIT");
        assert_eq!(inside.value("SELECT 1").as_deref(), Some("1"), "nobody is held");
    }
    assert!(find(&mut pausing, "SHOW STATE", &[("key", "paused"), ("value", "no")]).is_some());
}

#[test]
fn a_pause_that_is_cancelled_stays_and_the_console_goes_on() {
    let database = Postgres::shared().fresh_database("");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut inside = Raw::login(proxy.port(), &database);
    inside.rows("BEGIN");
    let mut pausing = self::console(&proxy);
    pausing.send(&query("PAUSE"));
    until(&mut console, "SHOW STATE", &[("key", "paused"), ("value", "yes")]);
    pausing.cancel(proxy.port());
    let answer = pausing.read_until_ready();
    let error = answer.iter().find(|m| m.tag == backend::ERROR_RESPONSE).expect("cancelled");
    assert_eq!(error.sqlstate(), "57014");
    assert!(find(&mut pausing, "SHOW STATE", &[("key", "paused"), ("value", "yes")]).is_some());
    // Who stopped waiting waits again, for one database or for all.
    for command in [format!("PAUSE {database}"), "PAUSE".into()] {
        pausing.send(&query(&command));
        pausing.cancel_until_answered(proxy.port());
        let answer = pausing.read_until_ready();
        assert!(answer.iter().any(|m| m.sqlstate() == "57014"), "{}", outline(&answer));
    }
    pausing.send(&query("PAUSE"));
    inside.rows("COMMIT");
    let answer = pausing.read_until_ready();
    assert!(answer.iter().any(|m| m.command() == "PAUSE"), "{}", outline(&answer));
    tell(&mut pausing, "RESUME");
    assert_eq!(pausing.error("RESUME").sqlstate(), "55000", "nothing is paused");
    assert_eq!(inside.value("SELECT 1").as_deref(), Some("1"));
    // One that leaves while it waits leaves no trace either.
    inside.rows("BEGIN");
    pausing.send(&query("PAUSE"));
    until(&mut console, "SHOW STATE", &[("key", "paused"), ("value", "yes")]);
    drop(pausing);
    until(&mut console, "SHOW POOLS", &[("database", "pgsluice"), ("cl_active", "1")]);
    tell(&mut console, "RESUME");
    inside.rows("COMMIT");
}

fn query(sql: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pgsluice::wire::frontend::put_query(&mut out, sql.as_bytes());
    out
}

#[test]
fn kill_closes_clients_and_holds_the_database() {
    let server = Postgres::shared();
    let (database, other) = (server.fresh_database(""), server.fresh_database(""));
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut busy = Raw::login(proxy.port(), &database);
    let mut idle = Raw::login(proxy.port(), &database);
    let mut spared = Raw::login(proxy.port(), &other);
    busy.rows("BEGIN");
    tell(&mut console, &format!("KILL {database}"));
    for client in [&mut busy, &mut idle] {
        assert_eq!(last_error(client).sqlstate(), "57P01");
    }
    assert_eq!(spared.value("SELECT 1").as_deref(), Some("1"));
    assert!(find(&mut console, "SHOW DATABASES", &[("name", &database), ("paused", "1")]).is_some());
    let held = Raw::login(proxy.port(), &database);
    let waits = thread::spawn(move || {
        let mut held = held;
        held.value("SELECT 1")
    });
    until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "1")]);
    tell(&mut console, &format!("RESUME {database}"));
    assert_eq!(waits.join().expect("a client").as_deref(), Some("1"));
}

#[test]
fn kill_client_closes_one() {
    let database = Postgres::shared().fresh_database("");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let named = |name: &str| {
        let parameters = [("user", "postgres"), ("database", database.as_str()), ("application_name", name)];
        Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    let (mut one, mut two) = (named("one"), named("two"));
    let row = find(&mut console, "SHOW CLIENTS", &[("application_name", "one")]).expect("it");
    tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
    assert_eq!(last_error(&mut one).sqlstate(), "57P01");
    assert_eq!(two.value("SELECT 1").as_deref(), Some("1"));
    // A console is a client, too.
    let mut victim = self::console(&proxy);
    let ids: Vec<u64> = show(&mut console, "SHOW CLIENTS")
        .iter()
        .filter(|c| c["database"] == "pgsluice")
        .map(|c| c["id"].parse().expect("a number"))
        .collect();
    tell(&mut console, &format!("KILL_CLIENT {}", ids.iter().max().expect("one")));
    assert_eq!(last_error(&mut victim).sqlstate(), "57P01");
}

#[test]
fn disable_enable_reconnect() {
    let database = Postgres::shared().fresh_database("");
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    // Before the first client: it holds for pools that come.
    tell(&mut console, &format!("DISABLE {database}"));
    let refused = login(&proxy, "postgres", &database).err().expect("refused");
    assert_eq!(refused.sqlstate(), "57P03");
    tell(&mut console, &format!("ENABLE {database}"));
    let mut client = Raw::login(proxy.port(), &database);
    tell(&mut console, &format!("DISABLE {database}"));
    until(&mut console, "SHOW DATABASES", &[("name", &database), ("disabled", "1")]);
    let before = client.value("SELECT pg_backend_pid()");
    assert!(login(&proxy, "postgres", &database).is_err());
    tell(&mut console, &format!("ENABLE {database}"));

    client.rows("BEGIN");
    tell(&mut console, &format!("RECONNECT {database}"));
    assert!(find(&mut console, "SHOW SERVERS", &[("database", &database), ("close_needed", "1")]).is_some());
    let mut closing = self::console(&proxy);
    closing.send(&query(&format!("WAIT_CLOSE {database}")));
    assert_eq!(client.value("SELECT pg_backend_pid()"), before, "not inside a transaction");
    until(&mut console, "SHOW CLIENTS", &[("database", "pgsluice"), ("state", "active")]);
    assert!(!closing.has_answer(), "WAIT_CLOSE waits");
    client.rows("COMMIT");
    let answer = closing.read_until_ready();
    assert!(answer.iter().any(|m| m.command() == "WAIT_CLOSE"), "{}", outline(&answer));
    assert_ne!(client.value("SELECT pg_backend_pid()"), before);
}

/// `server_fast_close`: between two transactions; who shares server connections, or has a new one, stays.
#[test]
fn who_keeps_an_outdated_server_connection_is_closed_between_two_transactions() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for (mode, keeps) in [("session", "SELECT 1"), ("transaction", "LISTEN x")] {
        let proxy = proxy(&format!("pool_mode = \"{mode}\"\nserver_fast_close = true"), "");
        let mut console = console(&proxy);
        let [mut idle, mut busy] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
        idle.query(keeps);
        busy.query(keeps);
        busy.query("BEGIN");
        let mut shares = (mode == "transaction").then(|| Raw::login(proxy.port(), &database));
        shares.iter_mut().for_each(|shares| {
            shares.query("BEGIN");
        });
        tell(&mut console, &format!("RECONNECT {database}"));
        let error = idle.read();
        assert_eq!((error.sqlstate().as_str(), error.field(b'S').as_str()), ("57P01", "FATAL"), "{mode}");
        let says = "the server connection of this session is to be replaced (server_fast_close): RECONNECT";
        assert!(error.field(b'M').starts_with(says), "{mode}: {}", error.outline());
        assert!(idle.read_until_closed().is_empty(), "{mode}");
        // Told by now as well.
        assert_eq!(busy.value("SELECT 'inside'").as_deref(), Some("inside"), "{mode}");
        busy.send(&query("COMMIT"));
        let answer = busy.read_until_ready();
        assert_eq!(answer[0].command(), "COMMIT", "{mode}: {}", outline(&answer));
        assert_eq!(busy.read().sqlstate(), "57P01", "{mode}");
        assert!(busy.read_until_closed().is_empty(), "{mode}");
        shares.iter_mut().for_each(|shares| {
            shares.query("COMMIT");
            assert_eq!(shares.value("SELECT 'stays'").as_deref(), Some("stays"));
        });
        tell(&mut console, &format!("WAIT_CLOSE {database}"));
    }
}

#[test]
fn each_login_ends_with_the_notice_of_login_notify_message() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = proxy("login_notify_message = \"maintenance at six\"", "");
    let greeted = || {
        let mut client = Raw::connect(proxy.port());
        client.startup(3 << 16, &[("user", "postgres"), ("database", &database)]);
        let answer = client.read_until_ready();
        (client, answer)
    };
    for mode in ["transaction", "session"] {
        let (mut client, mut answer) = greeted();
        let ready = answer.pop().expect("ReadyForQuery");
        let notice = answer.pop().expect("the notice");
        assert_eq!((notice.tag, ready.tag), (backend::NOTICE_RESPONSE, backend::READY_FOR_QUERY), "{mode}");
        let fields = [b'S', b'C', b'M'].map(|kind| notice.field(kind));
        assert_eq!(fields, ["NOTICE", "00000", "maintenance at six"], "{mode}");
        assert_eq!(client.value("SELECT 'ready'").as_deref(), Some("ready"));
        tell(&mut console(&proxy), "SET pool_mode = session");
    }
    let mut console = console(&proxy);
    tell(&mut console, "SET login_notify_message = ''");
    assert!(greeted().1.iter().all(|message| message.tag != backend::NOTICE_RESPONSE));
}

/// Who waits gets none of the connections that are to be closed: what the server says to a new one is told at once.
#[test]
fn who_waits_behind_a_reconnect_is_told_why_there_is_no_new_connection() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = proxy("query_wait_timeout = 20", "");
    let mut console = console(&proxy);
    let [mut holder, mut waiting] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
    holder.rows("BEGIN");
    server.psql("postgres", &format!("ALTER DATABASE \"{database}\" ALLOW_CONNECTIONS false"));
    waiting.send(&query("SELECT 1"));
    until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "1")]);
    proxy.wait_for_log("not currently accepting connections");
    tell(&mut console, &format!("RECONNECT {database}"));
    assert_eq!(last_error(&mut waiting).sqlstate(), "55000");
    assert_eq!(login(&proxy, "postgres", &database).err().expect("refused").sqlstate(), "55000");
    holder.rows("COMMIT");
}

// ===== settings =====

fn effective(console: &mut Raw, key: &str) -> String {
    find(console, "SHOW CONFIG", &[("key", key)]).expect("the key")["value"].clone()
}

#[test]
fn reload_changes_all_or_nothing() {
    let server = Postgres::shared();
    let (kept, gone) = (server.fresh_database(""), server.fresh_database(""));
    let config = |general: &str, databases: &[&str]| {
        let general = format!(
            "listen_addr = \"127.0.0.1\"\nauth_type = \"trust\"\nadmin_users = [\"postgres\"]\n{general}"
        );
        let entry =
            |name: &&str| format!("[databases.{name}]\nhost = \"127.0.0.1\"\nport = {}\n", server.port());
        format!("[general]\n{general}\n{}", databases.iter().map(entry).collect::<String>())
    };
    let proxy = Proxy::start(&config("listen_port = @PORT@", &[&kept, &gone]));
    let mut console = console(&proxy);
    let mut stays = Raw::login(proxy.port(), &kept);
    let mut idle = Raw::login(proxy.port(), &gone);
    let mut inside = Raw::login(proxy.port(), &gone);
    inside.rows("BEGIN");

    proxy.write_config(&config("listen_port = @PORT@\ndefault_pool_size = 3\nno_such_key = 1", &[&kept]));
    let error = console.error("RELOAD");
    assert_eq!(error.sqlstate(), "F0000");
    assert!(error.field(b'M').contains("no_such_key"), "{}", error.outline());
    let wrong: String = (0..12).map(|n| format!("no_such_key_{n} = 1\n")).collect();
    proxy.write_config(&config(&format!("listen_port = @PORT@\n{wrong}"), &[&kept]));
    let error = console.error("RELOAD");
    assert!(error.field(b'M').ends_with("; and 2 more"), "{}", error.outline());
    assert_eq!(effective(&mut console, "default_pool_size"), "20");
    proxy.write_config(&config("listen_port = @PORT@\ndefault_pool_size = 3\nclient_tls_sslmode = \"require\"\nclient_tls_cert_file = \"@DIR@/pgsluice.toml\"\nclient_tls_key_file = \"@DIR@/pgsluice.toml\"", &[&kept]));
    console.error("RELOAD");
    assert_eq!(effective(&mut console, "default_pool_size"), "20");
    assert_eq!(idle.value("SELECT 1").as_deref(), Some("1"), "its database is still there");

    proxy.write_config(&config("listen_port = 1\ndefault_pool_size = 3", &[&kept]));
    tell(&mut console, "RELOAD");
    assert_eq!(effective(&mut console, "default_pool_size"), "3");
    assert_eq!(effective(&mut console, "listen_port"), proxy.port().to_string(), "what is in effect");
    proxy.wait_for_log("takes effect after a restart");
    assert_eq!(stays.value("SELECT 1").as_deref(), Some("1"));
    // The database that is no more: nobody comes in, who is idle goes, a transaction may end.
    assert_eq!(last_error(&mut idle).sqlstate(), "57P01");
    assert_eq!(login(&proxy, "postgres", &gone).err().expect("refused").sqlstate(), "3D000");
    assert_eq!(inside.value("SELECT 'still'").as_deref(), Some("still"));
    inside.rows("COMMIT");
    let error = last_error(&mut inside);
    assert_eq!(error.sqlstate(), "57P01");
    assert!(error.field(b'M').contains("removed"), "{}", error.outline());
    let forgotten =
        poll(PATIENCE, || find(&mut console, "SHOW POOLS", &[("database", &gone)]).is_none().then_some(()));
    assert!(forgotten.is_some(), "its pool is forgotten");
}

#[test]
fn set_changes_one_key_until_the_next_reload() {
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    tell(&mut console, "SET default_pool_size = 7");
    assert_eq!(effective(&mut console, "default_pool_size"), "7");
    tell(&mut console, "SET query_wait_timeout TO '5'");
    assert_eq!(effective(&mut console, "query_wait_timeout"), "5");
    for (command, sqlstate) in [
        ("SET default_pool_sise = 7", "42704"),
        ("SET listen_port = 7", "55P02"),
        ("SET default_pool_size = many", "22023"),
        ("SET min_pool_size = 99", "22023"),
        ("SET auth_type = ldap", "22023"),
        ("SET auth_file = x", "0A000"),
    ] {
        let error = console.error(command);
        assert_eq!(error.sqlstate(), sqlstate, "{command}");
        let key = command.split(' ').nth(1).expect("a key");
        assert!(error.field(b'M').matches(&format!("{key}: ")).count() <= 1, "{}", error.outline());
    }
    assert_eq!(effective(&mut console, "default_pool_size"), "7");
    let answer = console.query("SET suspend_timeout = 1");
    assert_eq!(answer[0].tag, backend::NOTICE_RESPONSE, "{}", outline(&answer));
    let says = "suspend_timeout: has no effect, because there is no SUSPEND";
    assert!(answer[0].field(b'M').starts_with(says), "{}", outline(&answer));
    assert_eq!(answer[1].command(), "SET", "{}", outline(&answer));
    tell(&mut console, "RELOAD");
    assert_eq!(effective(&mut console, "default_pool_size"), "20");
}

#[test]
fn the_log_begins_and_ends_to_say_more_while_it_runs() {
    let proxy = proxy("log_level = \"warn\"", "");
    let mut console = console(&proxy);
    let databases: [String; 5] = std::array::from_fn(|_| Postgres::shared().fresh_database(""));
    let log_in = |at: usize| drop(Raw::login(proxy.port(), &databases[at]));
    log_in(0);
    tell(&mut console, "SET log_level = info");
    assert_eq!(effective(&mut console, "log_level"), "info");
    log_in(1);
    tell(&mut console, "RELOAD");
    assert_eq!(effective(&mut console, "log_level"), "warn");
    log_in(2);
    // Each kind of line by itself, too.
    tell(&mut console, "SET log_level = info");
    tell(&mut console, "SET log_connections = 0");
    log_in(3);
    tell(&mut console, "SET log_connections = 1");
    log_in(4);
    let said = || -> Vec<_> {
        let log = proxy.log();
        let is_said = |name: &String| log.lines().any(|line| line.contains(" login ") && line.contains(name));
        databases.iter().map(is_said).collect()
    };
    // The connection to the server, which that login needs, has a line of its own.
    poll(PATIENCE, || said()[4].then_some(()));
    assert_eq!(said(), [false, true, false, false, true], "{}", proxy.log());
}

#[test]
fn who_waited_too_long_for_a_paused_database_is_told_of_the_pause() {
    let database = Postgres::shared().fresh_database("");
    let proxy = proxy("query_wait_timeout = 1", "");
    let mut inside = Raw::login(proxy.port(), &database);
    tell(&mut console(&proxy), &format!("PAUSE {database}"));
    inside.send(&query("SELECT 1"));
    let error = last_error(&mut inside);
    assert_eq!(error.sqlstate(), "53300");
    assert!(
        error.field(b'M').contains("paused") && error.field(b'H').contains("RESUME"),
        "{}",
        error.outline()
    );
}

// ===== SHUTDOWN =====

#[test]
fn shutdown_answers_and_ends() {
    let mut proxy = proxy("", "");
    let mut console = console(&proxy);
    tell(&mut console, "SHUTDOWN");
    assert!(proxy.wait_end().success());
}

#[test]
fn a_shutdown_that_waits_for_nobody_is_answered() {
    for command in ["SHUTDOWN WAIT_FOR_CLIENTS", "SHUTDOWN WAIT_FOR_SERVERS"] {
        for _ in 0..10 {
            let mut proxy = proxy("", "");
            tell(&mut console(&proxy), command);
            assert!(proxy.wait_end().success());
        }
    }
}

#[test]
fn shutdown_waits_for_clients() {
    let database = Postgres::shared().fresh_database("");
    let mut proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut client = Raw::login(proxy.port(), &database);
    tell(&mut console, "SHUTDOWN WAIT_FOR_CLIENTS");
    assert_eq!(login(&proxy, "postgres", &database).err().expect("refused").sqlstate(), "57P01");
    assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
    assert!(find(&mut self::console(&proxy), "SHOW CLIENTS", &[("database", &database)]).is_some());
    client.terminate();
    assert!(proxy.wait_end().success());
}

#[test]
fn shutdown_waits_for_servers() {
    let database = Postgres::shared().fresh_database("");
    let mut proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut idle = Raw::login(proxy.port(), &database);
    let mut inside = Raw::login(proxy.port(), &database);
    inside.rows("BEGIN");
    tell(&mut console, "SHUTDOWN WAIT_FOR_SERVERS");
    assert_eq!(last_error(&mut idle).sqlstate(), "57P01");
    assert_eq!(inside.value("SELECT 1").as_deref(), Some("1"));
    inside.send(&query("COMMIT"));
    let done = inside.read_until_closed();
    assert!(done.iter().any(|m| m.command() == "COMMIT"), "{}", outline(&done));
    assert!(proxy.wait_end().success());
}

// ===== programs as they are =====

#[test]
fn psql_and_tokio_postgres_talk_to_it() {
    let proxy = proxy("", "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let dsn = proxy.dsn("pgbouncer");
        let (client, connection) =
            tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.expect("a login");
        tokio::spawn(connection);
        let row = client.query_one("SHOW STATE", &[]).await;
        assert!(row.is_err(), "three rows");
        let rows = client.query("SHOW POOLS", &[]).await.expect("rows");
        assert_eq!(rows.iter().map(|r| r.get::<_, i32>("cl_active")).sum::<i32>(), 1);
        client.batch_execute("RELOAD").await.expect("reloaded");
        let error = client.execute("RESUME", &[]).await.expect_err("not paused");
        assert_eq!(error.code().map(|c| c.code()), Some("55000"));
    });
    // As exporters ask.
    for probe in
        ["SHOW VERSION;", "SHOW LISTS;", "SHOW CONFIG;", "SHOW DATABASES;", "SHOW POOLS;", "SHOW STATS;"]
    {
        let mut psql = client_command("psql");
        psql.args(["-XAt", "-v", "ON_ERROR_STOP=1", "-c", probe, &proxy.dsn("pgbouncer")]);
        let output = psql.output().expect("psql");
        assert!(output.status.success(), "{probe}: {}", String::from_utf8_lossy(&output.stderr));
        // No database has been used yet, so there are no stats.
        assert!(!output.stdout.is_empty() || probe == "SHOW STATS;", "{probe}");
    }
}

/// That a date and a time stand where Datadog's check reads them; it ends over an empty text.
fn have_their_times(console: &mut Raw, sql: &str) {
    for row in show(console, sql) {
        for column in ["connect_time", "request_time"] {
            let words: Vec<_> = row[column].split(' ').map(str::len).collect();
            assert_eq!(words, ["2026-01-01".len(), "00:00:00".len(), "UTC".len()], "{sql}: {row:?}");
        }
    }
}

#[test]
fn a_monitor_made_for_pgbouncer_finds_what_it_asks_for() {
    let proxy = proxy("", "");
    let mut console = console(&proxy);
    let mut client = Raw::login(proxy.port(), "postgres");
    client.rows("SELECT pg_sleep(1.1)");
    until(&mut console, "SHOW SERVERS", &[("database", "postgres"), ("state", "idle")]);
    have_their_times(&mut console, "SHOW CLIENTS");
    have_their_times(&mut console, "SHOW SERVERS");
    let server = find(&mut console, "SHOW SERVERS", &[("state", "idle")]).expect("the free one");
    assert!(server["connect_time"] < server["request_time"], "{server:?}");
    client.rows("BEGIN");
    have_their_times(&mut console, "SHOW SERVERS");
    // Netdata's leaves unless it reads the name, and more than 1.8 in the first number.
    let version = show(&mut console, "SHOW VERSION")[0]["version"].clone();
    let minor = version.strip_prefix("PgBouncer 1.").and_then(|rest| rest.split('.').next());
    assert!(minor.is_some_and(|minor| minor.parse::<u32>().is_ok_and(|minor| minor > 8)), "{version}");
    // Prometheus' has one metric for both names, and where it reads both it answers with an error.
    for row in show(&mut console, "SHOW DATABASES") {
        assert!(row.contains_key("reserve_pool_size") && !row.contains_key("reserve_pool"), "{row:?}");
    }
}

#[test]
fn who_runs_the_process_needs_no_secret_on_the_console_and_nobody_else_gains() {
    let server = Postgres::shared();
    let general = "auth_type = \"scram-sha-256\"\nauth_file = \"@DIR@/users\"\nunix_socket_dir = \"@DIR@\"";
    let config = Proxy::config(server, general, "", "");
    let proxy =
        Proxy::start_with(&config, &[("users", "\"pgbouncer\" \"secret\"\n\"postgres\" \"secret\"\n")]);
    let mut open = std::fs::metadata(proxy.dir()).expect("the directory").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o755);
    std::fs::set_permissions(proxy.dir(), open).expect("a directory that others may enter");
    let socket = proxy.dir().display().to_string();
    let psql = |as_whom: Option<&str>, host: &str, user: &str, database: &str| {
        let program = client_program("psql").display().to_string();
        let mut psql = support::child::as_user(as_whom, &program);
        psql.args([
            "-XAtw",
            "-h",
            host,
            "-p",
            &proxy.port().to_string(),
            "-U",
            user,
            "-c",
            "RELOAD",
            database,
        ]);
        psql.env_remove("PGPASSWORD").env("PGPASSFILE", "/nowhere").env("PGSSLMODE", "disable");
        let output = psql.output().expect("psql");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for user in ["pgsluice", "pgbouncer"] {
        for database in ["pgsluice", "pgbouncer"] {
            assert_eq!(psql(None, &socket, user, database), (true, String::new()), "{user} on {database}");
        }
    }
    // Another name, another database, another way in, another user of the machine: the secret is asked for.
    for (as_whom, host, user, database) in [
        (None, &*socket, "postgres", "pgsluice"),
        (None, &socket, "pgbouncer", "postgres"),
        (None, "127.0.0.1", "pgbouncer", "pgbouncer"),
        (Some("postgres"), &socket, "pgbouncer", "pgbouncer"),
    ] {
        if as_whom.is_some() && !support::child::is_root() {
            continue;
        }
        let (in_, told) = psql(as_whom, host, user, database);
        assert!(
            !in_ && told.contains("no password supplied"),
            "{as_whom:?} {host} {user} {database}: {told}"
        );
    }
}

#[test]
fn what_is_no_command_is_told_and_what_is_no_protocol_ends() {
    let mut proxy = proxy("", "");
    let mut console = console(&proxy);
    assert_eq!(console.error("DROP TABLE t").sqlstate(), "42601");
    assert_eq!(console.error("SHOW FDS").sqlstate(), "0A000");
    for empty in ["PEERS", "PEER_POOLS", "DNS_HOSTS", "DNS_ZONES"] {
        assert_eq!(show(&mut console, &format!("SHOW {empty}")), Vec::<Row>::new());
    }
    let extended = console.extended("SHOW STATE", &[]);
    assert_eq!(extended.iter().filter(|m| m.tag == backend::DATA_ROW).count(), 3);
    console.send(&[b'Q', 0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(last_error(&mut console).sqlstate(), "08P01");
    assert!(proxy.alive());
}

#[test]
fn the_averages_are_logged_each_period_unless_they_are_not_wanted() {
    let loud = proxy("stats_period = 1", "");
    let mut raw = Raw::login(loud.port(), "postgres");
    let busy = poll(PATIENCE, || {
        raw.rows("SELECT 1");
        let lines = loud.log();
        let mut stats = lines.lines().filter(|line| line.contains(" stats "));
        stats.find(|line| !line.contains(" queries=0 ") && !line.contains(" sent=0 ")).map(str::to_owned)
    });
    assert!(busy.is_some(), "no line with what was done:\n{}", loud.log());
    let quiet = proxy("stats_period = 1\nlog_stats = false", "");
    let (mut raw, mut console) = (Raw::login(quiet.port(), "postgres"), console(&quiet));
    let averaged = poll(PATIENCE, || {
        raw.rows("SELECT 1");
        show(&mut console, "SHOW STATS").iter().any(|row| row["avg_query_count"] != "0").then_some(())
    });
    assert!(averaged.is_some() && !quiet.log().contains(" stats "), "{}", quiet.log());
}

#[test]
fn the_sockets_file_has_the_group_and_mode_that_are_wanted() {
    use std::os::unix::fs::MetadataExt;
    // As root one that is not its own; otherwise the last of those it is in.
    let name = if support::child::is_root() {
        "daemon".to_owned()
    } else {
        let groups = Command::new("id").arg("-Gn").output().expect("id");
        String::from_utf8_lossy(&groups.stdout).split_whitespace().last().expect("a group").to_owned()
    };
    let general =
        format!("unix_socket_dir = \"@DIR@\"\nunix_socket_group = \"{name}\"\nunix_socket_mode = \"0750\"");
    let proxy = proxy(&general, "");
    let path = proxy.dir().join(format!(".s.PGSQL.{}", proxy.port()));
    let file = std::fs::metadata(path).expect("the socket");
    let group = nix::unistd::Group::from_name(&name).expect("groups").expect("the group");
    assert_eq!((file.gid(), file.mode() & 0o777), (group.gid.as_raw(), 0o750));
}

#[test]
fn the_socket_queues_as_many_connections_as_the_port() {
    let proxy = proxy("unix_socket_dir = \"@DIR@\"\nlisten_backlog = 2", "");
    let path = proxy.dir().join(format!(".s.PGSQL.{}", proxy.port()));
    let address = socket2::SockAddr::unix(&path).expect("an address");
    let connect = || {
        let socket =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("nonblocking");
        socket.connect(&address).is_ok().then_some(socket)
    };
    // Nobody accepts meanwhile.
    proxy.signal("STOP");
    let queued: Vec<_> = (0..20).map_while(|_| connect()).collect();
    proxy.signal("CONT");
    assert!((2..=4).contains(&queued.len()), "{} of them", queued.len());
}
