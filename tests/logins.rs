//! Who gets in by what the server knows (`auth_query`), and what the log says of who does not.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::support;
use pgsluice::wire::{backend as b, frame};
use support::console::{find, tell, until};
use support::{Certs, PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, poll};

/// A server that asks for SCRAM over TCP, with roles of every kind, and a schema full of traps.
fn server() -> Postgres {
    let hba = "local all all trust\nhost all postgres all trust\nhost all all all scram-sha-256\n";
    let server = Postgres::start(PgOptions { hba: Some(hba.into()), ..PgOptions::default() });
    server.psql(
        "postgres",
        "CREATE ROLE lookup LOGIN SUPERUSER PASSWORD 'asks';
         CREATE ROLE ann LOGIN PASSWORD 'right';
         CREATE ROLE expired LOGIN PASSWORD 'right' VALID UNTIL '2001-01-01';
         CREATE ROLE nologin PASSWORD 'right';
         CREATE ROLE nothing LOGIN;
         SET password_encryption = 'md5';
         CREATE ROLE old LOGIN PASSWORD 'right';
         GRANT CREATE ON DATABASE postgres TO ann;
         CREATE VIEW public.pg_authid AS SELECT 'ann'::name AS rolname, 'forged'::text AS rolpassword,
                true AS rolcanlogin, NULL::timestamptz AS rolvaliduntil;
         ALTER ROLE lookup SET search_path = public, pg_catalog;",
    );
    server
}

fn asking(server: &Postgres, general: &str, database: &str) -> Proxy {
    let method = if general.contains("auth_type") { "" } else { "auth_type = \"scram-sha-256\"\n" };
    let general = format!("{method}auth_file = \"users\"\nauth_user = \"lookup\"\n{general}");
    let users = "\"lookup\" \"asks\"\n\"listed\" \"by file\"\n";
    Proxy::start_with(&Proxy::config(server, &general, database, ""), &[("users", users)])
}

/// Whose session it becomes, or SQLSTATE and message.
fn enter(proxy: &Proxy, user: &str, password: &str, more: &[(&str, &str)]) -> Result<String, String> {
    let parameters = [&[("user", user), ("database", "postgres")], more].concat();
    let mut raw = Raw::login_as(proxy.port(), &parameters, password)
        .map_err(|error| format!("{} {}", error.sqlstate(), error.field(b'M')))?;
    Ok(raw.value("SELECT session_user").unwrap_or_default())
}

#[test]
fn an_empty_password_is_refused_in_postgresqls_words() {
    for method in ["password", "md5"] {
        let hba = format!("local all all trust\nhost all postgres all trust\nhost all all all {method}\n");
        let server = Postgres::start(PgOptions { hba: Some(hba), ..PgOptions::default() });
        server.psql("postgres", "SET password_encryption = 'md5'; CREATE ROLE ann LOGIN PASSWORD 'right'");
        let auth_type = method.replace("password", "plain");
        let general = format!("auth_type = \"{auth_type}\"\nauth_file = \"users\"");
        let config = Proxy::config(&server, &general, "", "");
        let proxy = Proxy::start_with(&config, &[("users", "\"ann\" \"right\"\n")]);
        let [direct, through] = [server.port(), proxy.port()].map(|port| {
            let mut raw = Raw::connect(port);
            raw.startup(3 << 16, &[("user", "ann"), ("database", "postgres")]);
            raw.read();
            raw.send(b"p\0\0\0\x05\0");
            let error = raw.read();
            format!("{} {}", error.sqlstate(), error.field(b'M'))
        });
        assert_eq!(through, direct, "{method}");
    }
}

#[test]
fn only_whom_the_lookup_finds_gets_in() {
    let server = server();
    let proxy = asking(&server, "", "");
    assert_eq!(enter(&proxy, "ann", "right", &[]).as_deref(), Ok("ann"));
    for user in ["ann", "expired", "nologin", "nothing", "nobody", "old", "' OR true --"] {
        for password in ["wrong", "", "forged", "asks"] {
            let refused = format!("28P01 password authentication failed for user \"{user}\"");
            assert_eq!(enter(&proxy, user, password, &[]), Err(refused));
        }
    }
    for user in ["expired", "nologin", "nothing", "old"] {
        assert!(enter(&proxy, user, "right", &[]).is_err(), "{user}");
    }
    // What was changed on the server holds for the next login; who is in stays.
    server.psql("postgres", "ALTER ROLE ann PASSWORD 'new'");
    assert!(enter(&proxy, "ann", "right", &[]).is_err());
    assert_eq!(enter(&proxy, "ann", "new", &[]).as_deref(), Ok("ann"));
    // The file goes before the server.
    server.psql("postgres", "CREATE ROLE listed LOGIN PASSWORD 'by server'");
    assert!(enter(&proxy, "listed", "by server", &[]).is_err());
    // MD5 secrets are good for MD5.
    let md5 = asking(&server, "auth_type = \"md5\"", "");
    assert_eq!(enter(&md5, "ann", "new", &[]).as_deref(), Ok("ann"));
    assert!(enter(&md5, "old", "wrong", &[]).is_err());
    // Where everybody is one login to the server, which then refuses nobody, the lookup alone keeps them out.
    let as_one = asking(&server, "", "user = \"lookup\"\npassword = \"asks\"");
    assert_eq!(enter(&as_one, "ann", "new", &[]).as_deref(), Ok("lookup"));
    for user in ["expired", "nologin", "nothing", "old", "nobody"] {
        for password in ["right", "asks", "wrong"] {
            let refused = format!("28P01 password authentication failed for user \"{user}\"");
            assert_eq!(enter(&as_one, user, password, &[]), Err(refused), "{password}");
        }
    }
}

/// A function that selects INTO gives one where it has found nobody.
#[test]
fn a_row_of_nulls_is_nobody() {
    let server = server();
    let proxy = asking(&server, "", "auth_query = \"SELECT NULL::text, NULL::text WHERE $1 <> ''\"");
    assert!(enter(&proxy, "ann", "right", &[]).is_err_and(|e| e.starts_with("28P01 ")));
    assert!(proxy.wait_for_log("login refused").contains("auth_query finds no such user"));
    assert!(!proxy.log().contains("auth_query failed"), "{}", proxy.log());
}

/// A role without a password, or with one that has expired, is somebody all the same.
#[test]
fn who_has_no_password_gets_in_where_none_is_asked_for() {
    let hba = "local all all trust\nhost all lookup all scram-sha-256\nhost all all all trust\n";
    let server = Postgres::start(PgOptions { hba: Some(hba.into()), ..PgOptions::default() });
    server.psql(
        "postgres",
        "CREATE ROLE lookup LOGIN SUPERUSER PASSWORD 'asks'; CREATE ROLE nothing LOGIN; CREATE ROLE nologin;
         CREATE ROLE expired LOGIN PASSWORD 'right' VALID UNTIL '2001-01-01';",
    );
    let trusting = asking(&server, "auth_type = \"trust\"", "");
    for user in ["nothing", "expired"] {
        assert_eq!(enter(&trusting, user, "", &[]).as_deref(), Ok(user));
    }
    let refused =
        |user| format!("28000 user \"{user}\" is not in auth_file, and auth_query gives no such user");
    for user in ["nobody", "nologin"] {
        assert_eq!(enter(&trusting, user, "", &[]), Err(refused(user)));
    }
    for method in ["plain", "md5", "scram-sha-256"] {
        let proxy = asking(&server, &format!("auth_type = \"{method}\""), "");
        for user in ["nothing", "expired", "nobody"] {
            for password in ["right", "wrong", ""] {
                let told = enter(&proxy, user, password, &[]).expect_err("let in");
                let empty = password.is_empty() && told == "28P01 empty password returned by client";
                let refused = format!("28P01 password authentication failed for user \"{user}\"");
                assert!(empty || told == refused, "{method} {user}: {told}");
            }
        }
        proxy.wait_for_log("has no password on the server");
    }
}

/// As docs/config.md has it, typed by a superuser into a fresh database.
#[test]
fn the_manuals_function_for_lookups_works_as_it_stands_there() {
    let manual = include_str!("../docs/config.md");
    let section = manual.split("## The lookup").nth(1).expect("the section");
    let sql = section.split("```sql").nth(1).and_then(|rest| rest.split("```").next()).expect("its SQL");
    let query = sql.lines().find_map(|line| line.strip_prefix("-- ")).expect("its auth_query");
    let hba = "local all all trust\nhost all postgres all trust\nhost all all all scram-sha-256\n";
    let server = Postgres::start(PgOptions { hba: Some(hba.into()), ..PgOptions::default() });
    server.psql("postgres", &format!("CREATE ROLE ann LOGIN PASSWORD 'right'; {sql}"));
    let proxy = asking(&server, query, "");
    assert_eq!(enter(&proxy, "ann", "right", &[]).as_deref(), Ok("ann"));
    assert!(enter(&proxy, "ann", "wrong", &[]).is_err() && enter(&proxy, "postgres", "", &[]).is_err());
}

#[test]
fn nothing_of_a_client_reaches_a_lookup() {
    let server = server();
    let proxy = asking(&server, "", "");
    // A view of the same name that the client, the role and the server's search_path would all find first.
    for more in [[("search_path", "public, pg_catalog")], [("options", "-c search_path=public,pg_catalog")]] {
        assert!(enter(&proxy, "ann", "forged", &more).is_err(), "{more:?}");
        assert_eq!(enter(&proxy, "ann", "right", &more).as_deref(), Ok("ann"), "{more:?}");
    }
    let who = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'lookup' AND application_name <> 'pgsluice auth_query'";
    assert_eq!(server.psql("postgres", who).trim(), "0");
}

#[test]
fn an_answer_that_is_none_lets_nobody_in_and_is_logged() {
    let server = server();
    let verifier = "(SELECT rolpassword FROM pg_authid WHERE rolname = 'ann')";
    for (query, why) in [
        ("SELECT nonsense, $1", "\"nonsense\""),
        (
            &*format!("SELECT 'ann', {verifier} WHERE $1 <> '' UNION ALL SELECT 'ann', 'x'"),
            "more than one row",
        ),
        (&*format!("SELECT 'someone', {verifier} WHERE $1 <> ''"), "another user's"),
        (&*format!("SELECT {verifier} WHERE $1 <> ''"), "a name and a secret"),
        ("SELECT 'ann', 'SCRAM-SHA-256$1:x' WHERE $1 <> ''", "malformed"),
    ] {
        let proxy = asking(&server, "", &format!("auth_query = '''{query}'''"));
        assert!(enter(&proxy, "ann", "right", &[]).is_err_and(|e| e.starts_with("28P01 ")), "{query}");
        let line = proxy.wait_for_log("auth_query failed");
        assert!(proxy.wait_for_log("login refused").contains("and auth_query failed"), "{}", proxy.log());
        assert!(line.contains(why.trim_matches('"')), "{line}");
    }
    // A database that is not there is no answer either, and tells a stranger nothing.
    let wrong = asking(&server, "", "auth_user = \"nobody\"");
    assert!(enter(&wrong, "ann", "right", &[]).is_err_and(|e| e.starts_with("28P01 ")));
    wrong.wait_for_log("auth_query failed");
    // Nobody there, or no answer: it is said, when the time of a login is over. Where a server is, is not for a stranger.
    for database in ["port = 1", "auth_query = \"SELECT 'ann', pg_sleep(600)::text WHERE $1 <> ''\""] {
        let down = asking(&server, "client_login_timeout = 1", database);
        let parameters = [("user", "ann"), ("database", "postgres")];
        let told = Raw::login_as(down.port(), &parameters, "right").err().expect("nobody was asked");
        assert_eq!((&*told.sqlstate(), &*told.field(b'M')), ("08001", "auth_query could not be asked"));
        assert!(!told.field(b'D').contains("127.0.0.1"), "{database}: {}", told.field(b'D'));
    }
}

/// As for the connections of clients, in the database that is asked.
#[test]
fn what_the_console_orders_of_a_database_holds_for_lookups_in_it() {
    let server = server();
    server.psql("postgres", "CREATE DATABASE asked");
    let proxy = asking(&server, "admin_users = [\"lookup\", \"ann\"]\nauth_dbname = \"asked\"", "");
    let console = |user: &str, password: &str| {
        Raw::login_as(proxy.port(), &[("user", user), ("database", "pgbouncer")], password)
            .unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    let there = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'asked'";
        server.psql("postgres", sql).trim().to_owned()
    };
    // Sooner than they close by themselves.
    let gone = || poll(Duration::from_secs(5), || (there() == "0").then_some(())).is_some();
    let mut listed = console("lookup", "asks");
    for commands in [
        &["RELOAD"][..],
        &["RECONNECT asked", "WAIT_CLOSE asked"],
        &["KILL asked", "RESUME asked"],
        &["PAUSE", "RESUME"],
        &["PAUSE asked"],
    ] {
        assert_eq!(enter(&proxy, "ann", "right", &[]).as_deref(), Ok("ann"));
        assert_eq!(there(), "1");
        commands.iter().for_each(|command| tell(&mut listed, command));
        assert!(gone(), "{commands:?}");
    }
    // Nobody comes while it is paused, but who may end that, and that one for no longer than it takes.
    server.psql("postgres", "DROP DATABASE asked");
    server.psql("postgres", "CREATE DATABASE asked");
    let mut held = Raw::connect(proxy.port());
    held.startup(3 << 16, &[("user", "ann"), ("database", "postgres")]);
    assert_eq!(enter(&proxy, "lookup", "asks", &[]).as_deref(), Ok("lookup"), "auth_file has this one");
    assert!(!held.has_answer() && there() == "0");
    let mut found = console("ann", "right");
    assert!(gone() && !held.has_answer());
    tell(&mut found, "RESUME asked");
    held.authenticate("ann", "right").unwrap_or_else(|e| panic!("{}", e.outline()));
    tell(&mut listed, "DISABLE asked");
    let told = "57P03 authentication database \"asked\" is disabled (DISABLE on the console)";
    assert_eq!(enter(&proxy, "ann", "right", &[]), Err(told.to_owned()));
    tell(&mut console("ann", "right"), "ENABLE asked");
    assert_eq!(enter(&proxy, "ann", "right", &[]).as_deref(), Ok("ann"));
    tell(&mut listed, "SET client_login_timeout = 1");
    tell(&mut listed, "PAUSE asked");
    let late = Raw::login_as(proxy.port(), &[("user", "ann"), ("database", "postgres")], "right").err();
    let late = late.expect("let in");
    assert!(late.sqlstate() == "08001" && late.field(b'D').contains("paused"), "{}", late.outline());
}

/// Lookups go to one server so many at a time; those that wait for a RESUME are none of them.
#[test]
fn a_paused_database_keeps_no_lookup_in_another_waiting() {
    let server = server();
    server.psql("postgres", "CREATE DATABASE asked");
    let proxy = asking(&server, "admin_users = [\"lookup\"]", "");
    let parameters = [("user", "lookup"), ("database", "pgbouncer")];
    let mut console = Raw::login_as(proxy.port(), &parameters, "asks").expect("the console");
    tell(&mut console, "PAUSE asked");
    let held = |_| {
        let mut raw = Raw::connect(proxy.port());
        raw.startup(3 << 16, &[("user", "ann"), ("database", "asked")]);
        raw
    };
    let mut held: Vec<Raw> = (0..20).map(held).collect();
    assert_eq!(enter(&proxy, "ann", "right", &[]).as_deref(), Ok("ann"));
    assert!(!held.iter().any(Raw::has_answer));
    tell(&mut console, "RESUME asked");
    for raw in &mut held {
        raw.authenticate("ann", "right").unwrap_or_else(|e| panic!("{}", e.outline()));
    }
}

#[test]
fn the_console_is_entered_by_a_lookup_where_auth_dbname_says_in_which_database() {
    let server = server();
    let console = |proxy: &Proxy| {
        Raw::login_as(proxy.port(), &[("user", "ann"), ("database", "pgbouncer")], "right").map(drop)
    };
    assert!(console(&asking(&server, "admin_users = [\"ann\"]", "")).is_err());
    let proxy = asking(&server, "admin_users = [\"ann\"]\nauth_dbname = \"postgres\"", "");
    console(&proxy).unwrap_or_else(|e| panic!("{}", e.outline()));
}

#[test]
fn why_a_tls_handshake_failed_is_logged() {
    let certs = Certs::new("postgres");
    let server = Postgres::shared();
    let tls = format!(
        "client_tls_sslmode = \"verify-full\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}\n\
         client_tls_ca_file = {:?}",
        certs.server_key, certs.server_cert, certs.ca
    );
    let proxy = Proxy::to(server, &tls, "", "");
    let conninfo = format!("host=127.0.0.1 port={} user=postgres sslmode=require sslcert=none", proxy.port());
    let output = support::client_command("psql").args(["-XAtc", "SELECT 1", &conninfo]).output();
    assert!(!output.expect("run psql").status.success());
    let line = proxy.wait_for_log("the TLS handshake failed");
    assert!(line.contains("no certificates") && line.contains("peer=\"127.0.0.1:"), "{line}");
}

#[test]
fn a_userlist_that_changes_holds_for_the_next_login_and_one_that_is_wrong_does_not() {
    let server = Postgres::shared();
    let general = "auth_type = \"scram-sha-256\"\nauth_file = \"users\"";
    let config = Proxy::config(server, general, "user = \"postgres\"", "");
    let proxy = Proxy::start_with(&config, &[("users", "\"ann\" \"one\"\n\"bob\" \"b\"\n")]);
    let user = |name: &str, password: &str| enter(&proxy, name, password, &[]).is_ok();
    assert!(user("ann", "one") && user("bob", "b") && !user("eve", "e"));
    let mut inside =
        Raw::login_as(proxy.port(), &[("user", "bob"), ("database", "postgres")], "b").expect("bob");
    let file = proxy.dir().join("users");
    std::fs::write(&file, "\"ann\" \"two\"\n\"eve\" \"e\"\n").expect("write");
    proxy.wait_for_log("auth_file has changed and was read again");
    assert!(user("ann", "two") && user("eve", "e") && !user("ann", "one") && !user("bob", "b"));
    assert_eq!(inside.value("SELECT 1").as_deref(), Some("1"), "who is in stays");
    std::fs::write(&file, "\"ann\" \"three\"\nnonsense\n").expect("write");
    let line = proxy.wait_for_log("auth_file has changed and can't be used");
    assert!(line.contains("users:2"), "{line}");
    assert!(user("ann", "two") && user("eve", "e"), "what was effective stays so");
    // Another file in its place, as editors do it.
    std::fs::write(proxy.dir().join("new"), "\"ann\" \"four\"\n").expect("write");
    std::fs::rename(proxy.dir().join("new"), &file).expect("rename");
    assert!(poll(PATIENCE, || user("ann", "four").then_some(())).is_some() && !user("eve", "e"));
    let lines = proxy.log().matches("can't be used").count();
    std::fs::remove_file(&file).expect("remove");
    assert!(
        poll(PATIENCE, || (proxy.log().matches("can't be used").count() > lines).then_some(())).is_some()
    );
    assert!(user("ann", "four"), "what was effective stays so");
}

/// `server_tls_ca_file` and its kin keep their names when what they hold is replaced.
#[test]
fn a_server_that_the_file_of_authorities_does_not_name_any_more_is_left() {
    let certs = Certs::new("postgres");
    let server = Postgres::start(PgOptions { tls: Some(certs.clone()), ..PgOptions::default() });
    let general =
        "server_tls_sslmode = \"verify-full\"\nserver_tls_ca_file = \"ca\"\nquery_wait_timeout = \"6s\"";
    let config = Proxy::config(&server, general, "host = \"localhost\"", "");
    let read = |certs: &Certs| std::fs::read_to_string(&certs.ca).expect("an authority");
    let proxy = Proxy::start_with(&config, &[("ca", &read(&certs))]);
    let reload = |ca: &str| {
        std::fs::write(proxy.dir().join("ca"), ca).expect("write");
        Raw::login(proxy.port(), "pgsluice").rows("RELOAD");
    };
    let mut client = Raw::login(proxy.port(), "postgres");
    let mut pid = || client.value("SELECT pg_backend_pid()");
    let first = pid();
    reload(&read(&certs));
    assert_eq!(pid(), first, "nothing changed");
    reload(&format!("{}{}", read(&certs), read(&Certs::new("postgres"))));
    assert_ne!(pid(), first, "another file");
    reload(&read(&Certs::new("postgres")));
    let mut query = Vec::new();
    pgsluice::wire::frontend::put_query(&mut query, b"SELECT 1");
    client.send(&query);
    assert_eq!(client.read_until_closed().last().expect("an error").sqlstate(), "08001");
}

/// Also where no file says anything else.
#[test]
fn a_connection_that_was_made_in_another_way_than_is_wanted_now_is_left() {
    let options = PgOptions { tls: Some(Certs::new("postgres")), ..PgOptions::default() };
    let server = Postgres::start(options);
    let proxy = Proxy::to(&server, "server_tls_sslmode = \"allow\"", "host = \"localhost\"", "");
    let mut client = Raw::login(proxy.port(), "postgres");
    let mut is_tls = || client.value("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()");
    assert_eq!(is_tls().as_deref(), Some("f"));
    for (before, now, tls) in [("allow", "require", "t"), ("require", "disable", "f")] {
        let file = proxy.dir().join("pgsluice.toml");
        let text = std::fs::read_to_string(&file).expect("the configuration");
        std::fs::write(&file, text.replace(before, now)).expect("write");
        Raw::login(proxy.port(), "pgsluice").rows("RELOAD");
        assert_eq!(is_tls().as_deref(), Some(tls), "{now}");
    }
}

/// What a server that asks for a certificate sees is the proxy's own, whoever the client is; and it is that of today.
#[test]
fn a_server_that_asks_for_a_certificate_is_shown_the_one_of_the_settings() {
    let certs = Certs::new("postgres");
    let hba = "hostssl all all all cert\nhost all postgres all trust\nlocal all all trust\n";
    let options = PgOptions { tls: Some(certs.clone()), hba: Some(hba.into()), ..PgOptions::default() };
    let server = Postgres::start(options);
    server.psql("postgres", "CREATE ROLE app LOGIN");
    let read = |path| std::fs::read_to_string(path).expect("PEM");
    let general = format!(
        "server_tls_sslmode = \"verify-full\"\nserver_tls_ca_file = {:?}\nquery_wait_timeout = \"6s\"\n\
         server_tls_cert_file = \"cert\"\nserver_tls_key_file = \"key\"",
        certs.ca
    );
    let config = Proxy::config(&server, &general, "host = \"localhost\"", "");
    let proxy =
        Proxy::start_with(&config, &[("cert", &read(&certs.client_cert)), ("key", &read(&certs.client_key))]);
    let shown = || {
        let mut client = Raw::login(proxy.port(), "postgres");
        client.value("SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    };
    assert_eq!(shown().as_deref(), Some("/CN=postgres"));
    let refused = |user: &str| {
        let mut raw = Raw::connect(proxy.port());
        raw.startup(3 << 16, &[("user", user), ("database", "postgres")]);
        raw.send(&Step::query("SELECT 1").bytes);
        raw.read_until_closed().last().expect("an error").sqlstate()
    };
    assert_eq!(refused("app"), "28000", "the certificate is another's");

    let change = |cert: &str, key: &str| {
        std::fs::write(proxy.dir().join("cert"), cert).expect("write");
        std::fs::write(proxy.dir().join("key"), key).expect("write");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        console.send(&Step::query("RELOAD").bytes);
        let answer = console.read_until_ready();
        answer.iter().find(|m| m.tag == b'E').map(|m| m.field(b'M'))
    };
    let told = change(&read(&certs.client_cert), &read(&certs.server_key));
    assert!(told.is_some_and(|why| why.contains("server_tls_key_file")), "the key is another's");
    assert_eq!(shown().as_deref(), Some("/CN=postgres"), "what was effective stays so");
    assert_eq!(change(&read(&certs.server_cert), &read(&certs.server_key)), None);
    assert_eq!(refused("postgres"), "28000", "a certificate with another name");
}

/// A program renews certificates that knows of no RELOAD, and writes one file after the other.
#[test]
fn a_certificate_that_is_renewed_is_shown_without_a_reload() {
    let (old, new) = (Certs::new("ann"), Certs::new("ann"));
    let general = "client_tls_sslmode = \"require\"\nclient_tls_key_file = \"key\"\nclient_tls_cert_file = \"cert\"\nclient_tls_ca_file = \"ca\"";
    let config = Proxy::config(Postgres::shared(), general, "", "");
    let read = |path| std::fs::read_to_string(path).expect("PEM");
    let files =
        [("key", &*read(&old.server_key)), ("cert", &*read(&old.server_cert)), ("ca", &*read(&old.ca))];
    let proxy = Proxy::start_with(&config, &files);
    let is_trusted = |certs: &Certs| {
        let dsn = format!(
            "host=localhost hostaddr=127.0.0.1 port={} user=postgres dbname=postgres sslmode=verify-full sslrootcert={}",
            proxy.port(),
            certs.ca.display()
        );
        let mut psql = Command::new(support::client_program("psql"));
        psql.args(["-XAtw", "-c", "SELECT 1", "-d", &dsn]).env("HOME", "/nowhere");
        psql.output().expect("psql").status.success()
    };
    assert!(is_trusted(&old) && !is_trusted(&new));
    std::fs::write(proxy.dir().join("cert"), read(&new.server_cert)).expect("write");
    let line = proxy.wait_for_log("files of TLS have changed and can't be used");
    assert!(line.contains("client_tls_key_file"), "{line}");
    assert!(is_trusted(&old), "what was in effect stays so");
    std::fs::write(proxy.dir().join("key"), read(&new.server_key)).expect("write");
    proxy.wait_for_log("files of TLS have changed and were read again");
    assert!(is_trusted(&new) && !is_trusted(&old));
    assert_eq!(proxy.log().matches("can't be used").count(), 1, "{}", proxy.log());
}

/// The same of who signs the servers' certificates: connections to one that is not among them any more are left.
#[test]
fn authorities_of_servers_that_are_replaced_count_without_a_reload() {
    let certs = Certs::new("postgres");
    let server = Postgres::start(PgOptions { tls: Some(certs.clone()), ..PgOptions::default() });
    let general = "server_tls_sslmode = \"verify-full\"\nserver_tls_ca_file = \"ca\"";
    let config = Proxy::config(&server, general, "host = \"localhost\"", "");
    let read = |certs: &Certs| std::fs::read_to_string(&certs.ca).expect("an authority");
    let proxy = Proxy::start_with(&config, &[("ca", &read(&certs))]);
    let mut client = Raw::login(proxy.port(), "postgres");
    let first = client.value("SELECT pg_backend_pid()");
    std::fs::write(proxy.dir().join("ca"), format!("{}{}", read(&certs), read(&Certs::new("x"))))
        .expect("write");
    proxy.wait_for_log("files of TLS have changed and were read again");
    let other = poll(PATIENCE, || Some(client.value("SELECT pg_backend_pid()")).filter(|pid| *pid != first));
    assert!(other.is_some(), "{}", proxy.log());
}

/// Keys and certificates are two files, and others than those who change a userlist replace them.
#[test]
fn a_userlist_that_changes_holds_while_a_key_is_being_replaced() {
    let certs = Certs::new("ann");
    let general = format!(
        "auth_type = \"scram-sha-256\"\nauth_file = \"users\"\nclient_tls_sslmode = \"allow\"\n\
         client_tls_key_file = \"key\"\nclient_tls_cert_file = {:?}",
        certs.server_cert
    );
    let config = Proxy::config(Postgres::shared(), &general, "user = \"postgres\"", "");
    let key = std::fs::read_to_string(&certs.server_key).expect("a key");
    let proxy = Proxy::start_with(&config, &[("users", "\"ann\" \"one\"\n\"bob\" \"b\"\n"), ("key", &key)]);
    assert!(enter(&proxy, "bob", "b", &[]).is_ok());
    std::fs::write(proxy.dir().join("key"), "").expect("write");
    std::fs::write(proxy.dir().join("users"), "\"ann\" \"one\"\n").expect("write");
    let again = poll(PATIENCE, || Some(proxy.log()).filter(|log| log.contains("auth_file has changed")));
    assert!(again.is_some_and(|log| log.contains("was read again")), "{}", proxy.log());
    assert!(enter(&proxy, "bob", "b", &[]).is_err() && enter(&proxy, "ann", "one", &[]).is_ok());
}

#[test]
fn a_login_that_was_under_way_when_what_governs_it_changed_ends() {
    let server = Postgres::shared();
    let certs = Certs::new("ann");
    let general = "auth_type = \"hba\"\nauth_hba_file = \"hba\"\nauth_file = \"users\"";
    let tls = format!(
        "{general}\nclient_tls_sslmode = \"require\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let config = |general: &str| Proxy::config(server, general, "user = \"postgres\"", "");
    let (hba, users) = ("host all all all scram-sha-256\n", "\"ann\" \"one\"\n\"ops\" \"one\"\n");
    let proxy = Proxy::start_with(&config(general), &[("hba", hba), ("users", users)]);
    let put = |file: &str, text: &str| match file {
        "config" => proxy.write_config(text),
        file => std::fs::write(proxy.dir().join(file), text).expect("write"),
    };
    let mut reloads = 0;
    let mut reload = || {
        proxy.signal("HUP");
        reloads += 1;
        let done = poll(PATIENCE, || {
            (proxy.log().matches("configuration reloaded").count() == reloads).then_some(())
        });
        assert!(done.is_some(), "{}", proxy.log());
    };
    let changes = [
        ("another secret", "users", "\"ann\" \"two\"\n".to_owned(), users),
        ("no secret", "users", "\"ops\" \"one\"\n".to_owned(), users),
        ("reject", "hba", "host all all all reject\n".to_owned(), hba),
        ("TLS only", "config", config(&tls), &config(general)),
        ("another user", "users", format!("{users}\"new\" \"x\"\n"), users),
    ];
    for (what, file, text, before) in changes {
        let asked = || {
            let mut raw = Raw::connect(proxy.port());
            raw.startup(3 << 16, &[("user", "ann"), ("database", "postgres")]);
            raw
        };
        // One was asked for its proof before, one said nothing before.
        let (mut challenged, mut silent) = (asked(), Raw::connect(proxy.port()));
        challenged.hear();
        put(file, &text);
        reload();
        silent.startup(3 << 16, &[("user", "ann"), ("database", "postgres")]);
        for raw in [&mut challenged, &mut silent] {
            let ended = raw.authenticate("ann", "one").err().map(|error| error.sqlstate());
            assert_eq!(ended.is_none(), what == "another user", "{what}: {ended:?}");
        }
        put(file, before);
        reload();
    }
}

/// RELOAD, the `nth` of a proxy: when it returns, `config` is effective.
fn reload(proxy: &Proxy, config: &str, nth: usize) {
    proxy.reload(config);
    let done = || (proxy.log().matches("configuration reloaded").count() == nth).then_some(());
    assert!(poll(PATIENCE, done).is_some(), "{}", proxy.log());
}

/// Clients prove who they are by what the server knows, and are all to be ann to it; each session has a connection of
/// its own, which no other gets.
fn all_as_ann(server: &Postgres, general: &str, database: &str) -> String {
    Proxy::config(server, &format!("{general}\npool_mode = \"session\"\nserver_lifetime = 0"), database, "")
}

const LOOKED_UP: &str = "auth_type = \"scram-sha-256\"\nauth_file = \"users\"\nauth_user = \"lookup\"";
const USERS: (&str, &str) = ("users", "\"lookup\" \"asks\"\n\"listed\" \"by file\"\n");
const NO_SECRET: &str = "08001 cannot log in to the server";

#[test]
fn what_a_client_proved_logs_in_for_nobody_else() {
    let server = server();
    let proxy = Proxy::start_with(&all_as_ann(&server, LOOKED_UP, "user = \"ann\""), &[USERS]);
    for (user, password) in [("listed", "by file"), ("ann", "right"), ("listed", "by file")] {
        assert_eq!(enter(&proxy, user, password, &[]), Err(NO_SECRET.to_owned()), "{user}");
    }
}

#[test]
fn a_secret_of_an_entrys_user_may_stand_in_the_userlist() {
    let server = server();
    let users = format!("{}\"ann\" \"right\"\n", USERS.1);
    let config = all_as_ann(&server, LOOKED_UP, "user = \"ann\"");
    let proxy = Proxy::start_with(&config, &[(USERS.0, &users)]);
    assert_eq!(enter(&proxy, "listed", "by file", &[]).as_deref(), Ok("ann"));
}

#[test]
fn a_secret_that_a_reload_takes_from_an_entry_is_gone() {
    let server = server();
    let config = |database: &str| all_as_ann(&server, LOOKED_UP, database);
    let (with_secret, without) = ("user = \"ann\"\npassword = \"right\"", "user = \"ann\"");
    let proxy = Proxy::start_with(&config(with_secret), &[USERS]);
    assert_eq!(enter(&proxy, "listed", "by file", &[]).as_deref(), Ok("ann"));
    reload(&proxy, &config(without), 1);
    assert_eq!(enter(&proxy, "listed", "by file", &[]), Err(NO_SECRET.to_owned()));
    reload(&proxy, &config(with_secret), 2);
    assert_eq!(enter(&proxy, "listed", "by file", &[]).as_deref(), Ok("ann"));
    reload(&proxy, &all_as_ann(&server, "auth_type = \"trust\"", ""), 3);
    assert_eq!(enter(&proxy, "ann", "", &[]), Err(NO_SECRET.to_owned()), "it was not hers");
}

/// A server that lets none of them in, and takes its time.
#[test]
fn made_up_databases_cost_a_server_a_few_connections_at_a_time() {
    const MANY: usize = 60;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let proxy = Proxy::start(&format!(
        "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = @PORT@\nworkers = 2\nauth_type = \"scram-sha-256\"
         auth_user = \"lookup\"\nserver_tls_sslmode = \"disable\"
         [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {port}"
    ));
    let strangers = (0..MANY).map(|n| {
        let mut raw = Raw::connect(proxy.port());
        raw.startup(3 << 16, &[("user", "somebody"), ("database", &format!("made_up_{n}"))]);
        raw
    });
    let _strangers: Vec<Raw> = strangers.collect();
    let mut refusal = Vec::new();
    frame::put(&mut refusal, b::ERROR_RESPONSE, |out| {
        out.extend_from_slice(b"SFATAL\0C3D000\0Mthere is no such database\0\0");
    });
    let (mut open, mut seen) = (VecDeque::new(), 0);
    while seen < MANY {
        while open.len() < 16 && seen < MANY {
            let (asked, _) = poll(PATIENCE, || listener.accept().ok()).expect("one more comes");
            open.push_back(asked);
            seen += 1;
        }
        assert!(listener.accept().is_err(), "one came that did not wait for its turn");
        let mut asked: TcpStream = open.pop_front().expect("one is open");
        assert!(asked.read(&mut [0; 1024]).expect("a startup packet") > 0);
        asked.write_all(&refusal).expect("it listens");
    }
}

/// One that asked for this, and has no answer yet.
fn asked(port: u16, database: &str, more: &[(&str, &str)]) -> Raw {
    let mut raw = Raw::connect(port);
    raw.startup(3 << 16, &[&[("user", "postgres"), ("database", database)], more].concat());
    raw
}

#[test]
fn settings_that_a_login_is_refused_for_are_the_matter_of_who_asked_for_them() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "pool_mode = \"session\"", "", "");
    let enter = |port: u16, more: &[(&str, &str)]| {
        asked(port, &database, more).authenticate("postgres", "").map_err(|error| error.outline())
    };
    Raw::login(proxy.port(), &database).terminate();
    let mut failed = 0;
    for refused in [("transaction_isolation", "serializable"), ("transaction_deferrable", "on")] {
        let direct = enter(server.port(), &[refused]);
        // Newer releases let it in.
        let refuses = direct.as_ref().is_err_and(|told| told.contains("25001"));
        assert!(refuses || direct.is_ok() && server.major() > 15, "{direct:?}");
        failed += usize::from(refuses);
        assert_eq!(enter(proxy.port(), &[refused]), direct);
        assert_eq!(enter(proxy.port(), &[]), Ok(()), "who fits an idle connection");
        assert_eq!(enter(proxy.port(), &[("work_mem", "3MB")]), Ok(()), "who does not");
    }
    let said = || proxy.log().matches("server login failed").count();
    poll(PATIENCE, || (said() >= failed).then_some(()));
    assert_eq!(said(), failed, "{}", proxy.log());
}

#[test]
fn settings_that_logins_hang_for_hold_up_nobody_else() {
    let server = Postgres::shared();
    for size in [1, 3] {
        let database = server.fresh_database("");
        let general = format!(
            "pool_mode = \"session\"\nserver_connect_timeout = 2\nquery_wait_timeout = 12\ndefault_pool_size = {size}"
        );
        let proxy = Proxy::to(server, &general, "", "");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let hanging = |name| {
            let more = [("post_auth_delay", "600"), ("application_name", name)];
            asked(proxy.port(), &database, &more)
        };
        let mut crowd = [hanging("one"), hanging("two")];
        until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "2")]);
        proxy.wait_for_log("did not complete the login in time");
        for more in [&[][..], &[("work_mem", "3MB")]] {
            let mut raw = asked(proxy.port(), &database, more);
            raw.authenticate("postgres", "").unwrap_or_else(|error| panic!("{size}: {}", error.outline()));
            raw.terminate();
        }
        for raw in &mut crowd {
            let error = raw.authenticate("postgres", "").expect_err("let in");
            assert_eq!(error.sqlstate(), "08001", "{}", error.outline());
        }
    }
}

#[test]
fn who_leaves_while_its_login_waits_for_a_server_keeps_no_place() {
    let server = Postgres::shared();
    let other = server.fresh_database("");
    for mode in ["session", "transaction"] {
        let database = server.fresh_database("");
        let general = format!("pool_mode = \"{mode}\"\ndefault_pool_size = 1\nmax_client_conn = 5");
        let proxy = Proxy::to(server, &general, "", "");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let mut holder = Raw::login(proxy.port(), &database);
        holder.rows("BEGIN");
        let mut waits = |n: usize| {
            until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", &n.to_string())]);
        };
        // Settings of their own: in transaction mode a server is asked for what they are greeted with.
        let mut waiting: Vec<Raw> = Vec::new();
        for name in ["1000kB", "1001kB", "1002kB", "1003kB"] {
            waiting.push(asked(proxy.port(), &database, &[("work_mem", name)]));
        }
        waits(4);
        let entering = || asked(proxy.port(), &other, &[]).authenticate("postgres", "");
        assert!(entering().is_err_and(|error| error.field(b'M').contains("max_client_conn")), "{mode}");
        // One says goodbye before it goes.
        waiting[0].send(b"X\0\0\0\x04");
        waiting.truncate(2);
        waits(2);
        assert!(poll(PATIENCE, || entering().ok()).is_some(), "{mode}: places are kept");
        waiting.clear();
        waits(0);
    }
}

#[test]
fn what_is_sent_while_a_login_waits_is_answered_behind_it() {
    let server = Postgres::shared();
    for mode in ["session", "transaction"] {
        let database = server.fresh_database("");
        let general = format!("pool_mode = \"{mode}\"\ndefault_pool_size = 1");
        let proxy = Proxy::to(server, &general, "", "");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        for closes in [false, true] {
            tell(&mut console, &format!("PAUSE {database}"));
            let mut early = asked(proxy.port(), &database, &[("work_mem", "1000kB")]);
            early.send(&Step::query("SELECT current_setting('work_mem')").bytes);
            if closes {
                early.shutdown_write();
            }
            until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "1")]);
            tell(&mut console, &format!("RESUME {database}"));
            early.authenticate("postgres", "").unwrap_or_else(|error| panic!("{}", error.outline()));
            let answer = early.read_until_ready();
            assert_eq!(answer[1].row(), [Some("1000kB".to_owned())], "{mode} {closes}");
        }
    }
}

#[test]
fn who_may_have_left_behind_its_first_query_keeps_no_place_for_good() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "pool_mode = \"session\"\ndefault_pool_size = 1", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let _holder = Raw::login(proxy.port(), &database);
    let mut early = asked(proxy.port(), &database, &[]);
    early.send(&Step::query("SELECT 1").bytes);
    let waiting = [("database", &*database), ("cl_waiting", "1")];
    until(&mut console, "SHOW POOLS", &waiting);
    early.shutdown_write();
    let nobody = poll(PATIENCE, || find(&mut console, "SHOW POOLS", &waiting).is_none().then_some(()));
    assert!(nobody.is_some(), "it keeps its place");
}

#[test]
fn a_database_that_takes_no_connections_says_so_as_direct_and_those_it_has_go_on() {
    let server = Postgres::shared();
    for mode in ["session", "transaction", "statement"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\"\ndefault_pool_size = 2"), "", "");
        let shut = |shut: bool| {
            server.psql("postgres", &format!("ALTER DATABASE {database} ALLOW_CONNECTIONS {}", !shut));
        };
        shut(true);
        for more in [&[][..], &[("work_mem", "3MB")]] {
            let refusal =
                |port| asked(port, &database, more).authenticate("postgres", "").map_err(|e| e.outline());
            let direct = refusal(server.port());
            assert!(direct.as_ref().is_err_and(|told| told.contains("55000")), "{direct:?}");
            assert_eq!(refusal(proxy.port()), direct, "{mode}");
        }
        shut(false);
        let mut inside = Raw::login(proxy.port(), &database);
        let mut waiting = (mode == "transaction").then(|| Raw::login(proxy.port(), &database));
        inside.rows("SELECT 1");
        shut(true);
        if let Some(waiting) = &mut waiting {
            inside.rows("BEGIN");
            let refused = proxy.log().matches("not currently accepting").count();
            waiting.send(&Step::query("SELECT 2").bytes);
            let again = || (proxy.log().matches("not currently accepting").count() > refused).then_some(());
            assert!(poll(PATIENCE, again).is_some(), "no login was made: {}", proxy.log());
            inside.rows("COMMIT");
            assert_eq!(waiting.read_until_ready()[1].row(), [Some("2".to_owned())]);
        }
        assert_eq!(inside.value("SELECT 3").as_deref(), Some("3"), "{mode}");
    }
}

#[test]
fn who_one_is_by_the_startup_packet_is_as_direct() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let names = ["group", "plain", "other"].map(|name| format!("{name}_{database}"));
    let [group, plain, other] = names.each_ref().map(String::as_str);
    server.psql(
        &database,
        &format!("CREATE ROLE {group}; CREATE ROLE {plain} LOGIN; CREATE ROLE {other} LOGIN; GRANT {group} TO {plain}"),
    );
    fn claim(name: &str) -> (&str, &str) {
        ("session_authorization", name)
    }
    let who = "SELECT session_user, current_user, current_setting('session_authorization'), \
               current_setting('role'), current_setting('is_superuser')";
    let told = |port: u16, user: &str, more: &[(&str, &str)]| {
        let parameters = [&[("user", user), ("database", &*database)], more].concat();
        let mut raw = Raw::login_as(port, &parameters, "").map_err(|e| (e.sqlstate(), e.field(b'M')))?;
        let mut greeted = raw.parameters.clone();
        greeted.retain(|(name, _)| ["is_superuser", "session_authorization"].contains(&&**name));
        greeted.sort();
        let mut seen = vec![raw.rows(who)];
        for change in ["RESET SESSION AUTHORIZATION", "RESET ROLE", "RESET ALL", "DISCARD ALL"] {
            raw.rows(change);
            seen.push(raw.rows(who));
        }
        Ok((greeted, seen))
    };
    for mode in ["session", "transaction", "statement"] {
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "");
        for user in ["postgres", plain] {
            for more in [
                vec![claim(plain)],
                vec![claim(other)],
                vec![claim("nobody_has_this")],
                vec![claim("default")],
                vec![claim("")],
                vec![claim(other), ("role", group)],
                vec![("role", group), claim(plain)],
                vec![("role", group)],
                vec![("role", other)],
                vec![("role", "none")],
                vec![("options", "-c session_authorization=postgres")],
            ] {
                let direct: Result<_, (String, String)> = told(server.port(), user, &more);
                assert_eq!(told(proxy.port(), user, &more), direct, "{mode} {user} {more:?}");
                // Who comes next is who it is.
                assert_eq!(told(proxy.port(), user, &[]), told(server.port(), user, &[]), "{mode} {user}");
            }
        }
    }
    server.psql("postgres", &format!("DROP ROLE {}", names.join(", ")));
}

#[test]
fn what_is_set_at_connection_start_only_is_refused_where_connections_are_shared_and_said_why() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let at_start = [
        ("ignore_system_indexes", "on"),
        ("jit_debugging_support", "on"),
        ("jit_profiling_support", "on"),
        ("log_connections", "on"),
        ("log_disconnections", "on"),
        ("post_auth_delay", "1"),
    ];
    let all = "SELECT string_agg(name, ' ' ORDER BY name COLLATE \"C\") FROM pg_settings WHERE context LIKE '%backend'";
    let names: Vec<&str> = at_start.iter().map(|(name, _)| *name).collect();
    assert_eq!(server.psql("postgres", all).trim(), names.join(" "), "they are all");
    let told = |port: u16, setting: (&str, &str)| {
        let mut raw = asked(port, &database, &[setting]);
        raw.authenticate("postgres", "").map_err(|e| (e.sqlstate(), e.field(b'M'), e.field(b'H')))?;
        Ok::<_, (String, String, String)>(raw.value(&format!("SHOW {}", setting.0)).unwrap_or_default())
    };
    let [session, transaction, ignoring] = [
        "pool_mode = \"session\"".to_owned(),
        String::new(),
        format!("ignore_startup_parameters = {names:?}"),
    ]
    .map(|general| Proxy::to(server, &general, "", ""));
    for setting in at_start {
        let direct = told(server.port(), setting);
        assert!(direct.is_ok(), "{direct:?}");
        assert_eq!(told(session.port(), setting), direct, "{setting:?}");
        let (code, message, hint) = told(transaction.port(), setting).expect_err("let in");
        assert!(code == "55P02" && message.contains(setting.0), "{code} {message}");
        assert!(hint.contains("ignore_startup_parameters") && hint.contains("pool_mode"), "{hint}");
        assert!(told(ignoring.port(), setting).is_ok(), "{setting:?}");
    }
    // No pool_mode helps these, and nothing says so.
    let fixed = ("shared_buffers", "1GB");
    assert_eq!(told(transaction.port(), fixed), told(server.port(), fixed));
}

#[test]
fn options_are_dropped_where_they_are_ignored_but_what_pgbouncer_keeps() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let [reading, dropping, naming] = ["[]", "[\"extra_float_digits\", \"OPTIONS\"]", "[\"work_mem\"]"]
        .map(|names| Proxy::to(server, &format!("ignore_startup_parameters = {names}"), "", ""));
    // What holds then, or the SQLSTATE.
    let shown = |proxy: &Proxy, options: &str| {
        let mut raw = asked(proxy.port(), &database, &[("options", options)]);
        match raw.authenticate("postgres", "") {
            Ok(()) => raw.value("SHOW work_mem").unwrap_or_default(),
            Err(error) => error.sqlstate(),
        }
    };
    let usual = &*shown(&reading, "");
    assert!(usual.ends_with("MB"), "{usual}");
    for (options, read, named) in [
        ("-c work_mem=7MB", "7MB", usual),
        ("-c work_mem=nonsense", "22023", usual),
        ("-c =x", "42704", "42704"),
        ("stray", "42601", "42601"),
    ] {
        assert_eq!(shown(&reading, options), read, "{options}");
        assert_eq!(shown(&dropping, options), usual, "{options}");
        assert_eq!(shown(&naming, options), named, "{options}");
    }
    let options = "-c work_mem=7MB -c timezone=Europe/Lisbon --intervalstyle=iso_8601";
    let mut raw = asked(dropping.port(), &database, &[("options", options)]);
    raw.authenticate("postgres", "").expect("logged in");
    for (name, value) in [("work_mem", usual), ("TimeZone", "Europe/Lisbon"), ("IntervalStyle", "iso_8601")] {
        assert_eq!(raw.value(&format!("SHOW {name}")).as_deref(), Some(value));
    }
}

/// What comes before any protocol is spoken: requests for encryption, one behind the other or with something behind, and the
/// longest startup packet that there is.
#[test]
fn what_opens_a_connection_is_answered_as_directly() {
    let server = Postgres::shared();
    let proxy = Proxy::to(server, "", "", "");
    let packet = |code: u32, body: &[u8]| {
        [&(8 + body.len() as u32).to_be_bytes()[..], &code.to_be_bytes(), body].concat()
    };
    let ssl = packet(80_877_103, b"");
    let me = b"user\0postgres\0database\0postgres\0options\0";
    let longest = packet(3 << 16, &[&me[..], &vec![b' '; 10_004 - 8 - me.len() - 2], b"\0\0"].concat());
    // How many bytes without a header come before an error, and what of it is the same.
    for (steps, bytes, fields) in [
        (vec![[&ssl[..], b"abcd"].concat()], 1, &b"SVCM"[..]),
        (vec![[&ssl[..], &packet(3 << 16, b"user\0postgres\0\0")].concat()], 1, b"SVCM"),
        (vec![ssl.clone(), ssl.clone()], 1, b"SVC"),
        (vec![longest], 0, b""),
    ] {
        let [direct, through] = [server.port(), proxy.port()].map(|port| {
            let mut tcp = TcpStream::connect(("127.0.0.1", port)).expect("connect");
            tcp.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let mut answer = Vec::new();
            for step in &steps {
                tcp.write_all(step).expect("sent");
                let mut byte = [0];
                tcp.read_exact(&mut byte).expect("an answer");
                answer.push(byte[0]);
            }
            let mut told = Vec::new();
            if bytes > 0 {
                tcp.read_to_end(&mut answer).expect("it closes");
                let error = b::ErrorFields::new(&answer[bytes + frame::HEADER_BYTES..]);
                told = fields.iter().map(|&f| error.field(f).expect("a field").to_vec()).collect();
            }
            (answer[..=bytes].to_vec(), told)
        });
        assert_eq!(through, direct);
    }
}
