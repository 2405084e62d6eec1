//! Transaction mode, two clients, one server connection: nothing that one does to its session is seen by the other,
//! and each keeps what is its own.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support;
use pgsluice::limits::SETTINGS_BYTES_MAX;
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::console::{set, tell, until};
use support::crowd::comparable;
use support::{Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, outline, poll};

/// A proxy with one server connection for each pool, and a database.
fn one_connection(general: &str) -> (&'static Postgres, Proxy, String) {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, &format!("default_pool_size = 1\n{general}"), "", "");
    (server, proxy, database)
}

fn two(proxy: &Proxy, database: &str) -> (Raw, Raw) {
    (Raw::login(proxy.port(), database), Raw::login(proxy.port(), database))
}

fn with(proxy: &Proxy, database: &str, more: &[(&str, &str)]) -> Raw {
    let mut parameters = vec![("user", "postgres"), ("database", database)];
    parameters.extend_from_slice(more);
    Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()))
}

fn parameter(raw: &Raw, name: &str) -> String {
    raw.parameters.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).unwrap_or_default()
}

fn backend_pid(raw: &mut Raw) -> String {
    raw.value("SELECT pg_backend_pid()").expect("a pid")
}

/// `a` makes a change; `b` does not see it; `a` does, before and after `b` had the connection.
fn stays_with_its_owner(change: &str, look: &str, changed: &str) {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    let before = other.value(look);
    a.rows(change);
    assert_eq!(a.value(look).as_deref(), Some(changed), "{change}");
    for _ in 0..2 {
        let seen = other.value(look).filter(|v| !v.is_empty());
        assert_eq!(seen, before.clone().filter(|v| !v.is_empty()), "{change} leaked");
        assert_eq!(a.value(look).as_deref(), Some(changed), "{change} was lost");
    }
    // Both had the one connection.
    assert_eq!(backend_pid(&mut a), backend_pid(&mut other));
}

#[test]
fn settings_stay_with_the_client_that_set_them() {
    stays_with_its_owner("SET search_path = pg_catalog, pg_temp", "SHOW search_path", "pg_catalog, pg_temp");
    stays_with_its_owner("SET TimeZone = 'Asia/Tokyo'", "SHOW TimeZone", "Asia/Tokyo");
    stays_with_its_owner("SET DateStyle = 'SQL, DMY'", "SHOW DateStyle", "SQL, DMY");
    stays_with_its_owner("SET statement_timeout = '17s'", "SHOW statement_timeout", "17s");
    stays_with_its_owner("SET SESSION work_mem = '3MB'", "SHOW work_mem", "3MB");
    stays_with_its_owner("SET client_encoding = 'LATIN1'", "SHOW client_encoding", "LATIN1");
    let characteristics = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE";
    stays_with_its_owner(characteristics, "SHOW transaction_isolation", "serializable");
    stays_with_its_owner(
        "SET app.tenant = 'a''b \u{e9}'",
        "SELECT current_setting('app.tenant', true)",
        "a'b \u{e9}",
    );
    stays_with_its_owner(
        "BEGIN; SET app.tenant = '1'; SET work_mem = '5MB'; COMMIT",
        "SELECT concat(current_setting('app.tenant', true), current_setting('work_mem'))",
        "15MB",
    );
}

/// Texts that set the library path and take on the role `@`, which may not read it.
const HIDES: [&str; 9] = [
    "BEGIN; SET dynamic_library_path = '/left'; SET ROLE @; COMMIT",
    "SET \"dynamic_library_path\" TO '/left'; SET ROLE @",
    "SET Dynamic_Library_Path = '/left'; SET SESSION AUTHORIZATION @",
    "SELECT set_config('dynamic_library_path', '/left', false), set_config('role', '@', false)",
    "UPDATE pg_settings SET setting = '/left' WHERE name = 'dynamic_library_path'; SET ROLE @",
    // The name does not stand in these.
    "SET U&\"dynamic\\005flibrary_path\" = '/left'; SET ROLE @",
    "SELECT set_config('dynamic_' || 'library_path', '/left', false); SET ROLE @",
    "UPDATE pg_settings SET setting = '/left' WHERE name LIKE 'dynamic\\_lib%'; SET ROLE @",
    "DO $$BEGIN EXECUTE 'SET dynamic_library' || '_path = ''/left'''; SET ROLE @; END$$",
];

#[test]
fn settings_that_a_role_may_not_read_are_not_left_behind_under_it() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let role = format!("role_{database}");
    server.psql("postgres", &format!("CREATE ROLE {role}; GRANT pg_signal_backend TO {role}"));
    let look = "SELECT current_user || ' ' || current_setting('dynamic_library_path')";
    let texts = HIDES.iter().map(|text| (*text, false)).chain([("", true)]);
    let states = ["pin", "reject", "allow"];
    for ((hides, extended), state) in texts.flat_map(|text| states.map(|state| (text, state))) {
        let general = format!("default_pool_size = 1\nquery_wait_timeout = 30\nsession_state = \"{state}\"");
        let proxy = Proxy::to(server, &general, "", "");
        let (mut a, mut other) = two(&proxy, &database);
        let before = other.value(look);
        if extended {
            let text = "SELECT set_config($1, $2, false), set_config($3, $4, false)";
            a.extended(text, &[Some("dynamic_library_path"), Some("/left"), Some("role"), Some(&role)]);
        } else {
            a.rows(&hides.replace('@', &role));
        }
        let mut out = Vec::new();
        f::put_query(&mut out, look.as_bytes());
        other.send(&out);
        assert_eq!(a.value("SELECT current_user"), Some(role.clone()), "{hides}");
        a.terminate();
        let messages = other.read_until_ready();
        let row = messages.iter().find(|m| m.tag == b::DATA_ROW).expect("a row").row();
        assert_eq!(row[0], before, "{state}: {hides}");
    }
}

#[test]
fn a_setting_that_its_client_may_not_read_stays_with_it_alone() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let role = format!("role_{database}");
    server.psql("postgres", &format!("CREATE ROLE {role}"));
    let proxy = Proxy::to(server, "default_pool_size = 1\nquery_wait_timeout = 30", "", "");
    let (mut a, mut other) = two(&proxy, &database);
    let before = other.value("SHOW dynamic_library_path");
    a.rows("SET dynamic_library_path = '/own'");
    assert_eq!(other.value("SHOW dynamic_library_path"), before);
    // Carried while it is read, held while it is not.
    a.rows(&format!("SET ROLE {role}"));
    let mut out = Vec::new();
    f::put_query(&mut out, b"SHOW dynamic_library_path");
    other.send(&out);
    for _ in 0..3 {
        assert_eq!(a.value("SELECT current_user"), Some(role.clone()));
    }
    a.rows("RESET ROLE");
    let messages = other.read_until_ready();
    let row = messages.iter().find(|m| m.tag == b::DATA_ROW).expect("a row").row();
    assert_eq!(row[0], before);
    assert_eq!(a.value("SHOW dynamic_library_path").as_deref(), Some("/own"));
    assert_eq!(backend_pid(&mut a), backend_pid(&mut other));
}

#[test]
fn a_setting_of_the_startup_packet_that_its_client_may_not_read_any_more_stays_with_it() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let role = format!("role_{database}");
    server.psql("postgres", &format!("CREATE ROLE {role}"));
    let proxy = Proxy::to(server, "default_pool_size = 1\nquery_wait_timeout = 30", "", "");
    let mut a = with(&proxy, &database, &[("options", "-c dynamic_library_path=/own")]);
    let mut other = Raw::login(proxy.port(), &database);
    let look = "SELECT current_user || ' ' || current_setting('dynamic_library_path')";
    assert_eq!(other.value(look).as_deref(), Some("postgres $libdir"));
    a.rows(&format!("SET ROLE {role}"));
    assert_eq!(a.value("SELECT current_user"), Some(role.clone()));
    a.rows("SET work_mem = '3MB'");
    assert_eq!(a.value("SHOW work_mem").as_deref(), Some("3MB"));
    a.rows("RESET ROLE");
    assert_eq!(other.value(look).as_deref(), Some("postgres $libdir"));
    assert_eq!(a.value(look).as_deref(), Some("postgres /own"));
}

#[test]
fn a_parameter_that_a_user_may_set_and_not_read_is_not_left_to_the_next_client() {
    let server = Postgres::shared();
    if server.major() < 15 {
        return;
    }
    let database = server.fresh_database("");
    let role = format!("role_{database}");
    server.psql(
        "postgres",
        &format!(
            "CREATE ROLE {role} LOGIN NOINHERIT; GRANT SET ON PARAMETER dynamic_library_path TO {role}; \
             GRANT pg_read_all_settings TO {role}"
        ),
    );
    let proxy = Proxy::to(server, "default_pool_size = 1\nquery_wait_timeout = 30", "", "");
    let login = || {
        let parameters = [("user", &*role), ("database", &*database)];
        Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    let (mut a, mut other) = (login(), login());
    let look =
        "BEGIN; SET LOCAL ROLE pg_read_all_settings; SELECT current_setting('dynamic_library_path'); COMMIT";
    let before = other.value(look);
    a.rows("SET dynamic_library_path = '/own'");
    let mut out = Vec::new();
    f::put_query(&mut out, look.as_bytes());
    other.send(&out);
    assert_eq!(a.value(look).as_deref(), Some("/own"));
    assert_eq!(a.value(look).as_deref(), Some("/own"));
    a.terminate();
    let messages = other.read_until_ready();
    let row = messages.iter().find(|m| m.tag == b::DATA_ROW).expect("a row").row();
    assert_eq!(row[0], before);
}

#[test]
fn settings_of_functions_and_blocks_stay_with_the_client() {
    stays_with_its_owner("SELECT set_config('work_mem', '3MB', false)", "SHOW work_mem", "3MB");
    let update = "UPDATE pg_settings SET setting = '3000' WHERE name = 'work_mem'";
    stays_with_its_owner(update, "SHOW work_mem", "3000kB");
    let only = "UPDATE ONLY (pg_catalog.pg_settings) SET setting = '3000' WHERE name = 'work_mem'";
    stays_with_its_owner(only, "SHOW work_mem", "3000kB");
    let own = "SELECT current_setting('my.own', true)";
    stays_with_its_owner("SELECT set_config('my.own', 'x', false)", own, "x");
    stays_with_its_owner("DO $$BEGIN PERFORM set_config('my.own', 'x', false); END$$", own, "x");
    stays_with_its_owner("DO $$BEGIN EXECUTE 'SET work_mem = ''3MB'''; END$$", "SHOW work_mem", "3MB");
    let function = "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT set_config('work_mem', '3MB', false)$$; \
                    SELECT f()";
    stays_with_its_owner(function, "SHOW work_mem", "3MB");
}

/// Where nested loops are off all plans of ours look costly enough to be compiled, which takes seconds; before 18, where
/// what is switched off is avoided at any cost.
#[test]
fn what_a_session_has_set_is_asked_without_jit() {
    let server = Postgres::start(PgOptions::without_compiler());
    let database = server.fresh_database("");
    let compiled = "SET enable_nestloop = off; SELECT count(*) FROM pg_am a, pg_am b";
    assert_eq!(server.try_psql(&database, compiled).is_err(), server.major() < 18);
    server.psql("postgres", &format!("ALTER DATABASE {database} SET enable_nestloop = off"));
    let proxy = Proxy::to(&server, "default_pool_size = 1", "", "");
    let (mut a, mut other) = two(&proxy, &database);
    let mut without = with(&proxy, &database, &[("options", "-c jit=off")]);
    let show = "SELECT current_setting('jit') || ' ' || current_setting('work_mem')";
    let of_a = [
        ("SELECT set_config('work_mem', '3MB', false)", "on 3MB"),
        ("SELECT set_config('jit', 'off', false)", "off 3MB"),
        ("SELECT set_config('work_mem', '5MB', false)", "off 5MB"),
        ("SELECT set_config('jit', 'on', false)", "on 5MB"),
    ];
    let of_without = [
        ("SELECT set_config('work_mem', '3MB', false)", "off 3MB"),
        ("SELECT set_config('jit', 'on', false)", "on 3MB"),
        ("SET jit TO DEFAULT", "off 3MB"),
    ];
    for (client, asked) in [(&mut a, &of_a[..]), (&mut without, &of_without)] {
        for (set, seen) in asked {
            client.rows(set);
            assert_eq!(other.value(show).as_deref(), Some("on 4MB"));
            assert_eq!(client.value(show).as_deref(), Some(*seen));
        }
    }
}

#[test]
fn a_setting_made_by_a_function_nobody_read_does_not_leak() {
    let (server, proxy, database) = one_connection("");
    // Made past the proxy, and the name is put together at run time: no text shows it.
    server.psql(
        &database,
        "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT set_config('hid' || 'den.name', 'x', false)$$",
    );
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SELECT f()");
    let seen = other.value("SELECT current_setting('hid' || 'den.name', true)");
    assert_eq!(seen.filter(|v| !v.is_empty()), None);
    assert_eq!(backend_pid(&mut a), backend_pid(&mut other));
}

#[test]
fn what_a_function_named_as_a_keyword_does_does_not_leak() {
    let (server, proxy, database) = one_connection("");
    for (name, call) in [
        ("escape", "SELECT escape('x')"),
        ("set", "SELECT 1, set('x')"),
        ("filter", "SELECT DISTINCT ON (1) filter('x')"),
        ("conflict", "SELECT 1 FROM pg_am a JOIN pg_am b ON conflict('x') IS NULL"),
        ("hash", "CREATE TABLE made AS SELECT hash('x')"),
        ("json_value", "SELECT json_value('x')"),
    ] {
        // From then on it is SQL's own.
        if name == "json_value" && server.major() >= 17 {
            continue;
        }
        server.psql(
            &database,
            &format!(
                "CREATE FUNCTION \"{name}\"(text) RETURNS text LANGUAGE sql \
                 AS $$SELECT set_config('hid' || 'den.name', $1, false) FROM pg_advisory_lock(4711)$$"
            ),
        );
        let (mut a, mut other) = two(&proxy, &database);
        a.rows(call);
        // A lock keeps the connection with its owner.
        drop(a);
        let seen = other.value(
            "SELECT concat(current_setting('hid' || 'den.name', true), count(*)) FROM pg_locks \
             WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        );
        assert_eq!(seen.as_deref(), Some("0"), "{call}");
    }
}

#[test]
fn a_setting_named_by_a_parameter_stays_with_the_client() {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    a.extended("SELECT set_config($1, $2, false)", &[Some("par.am"), Some("v")]);
    let look = "SELECT current_setting('par' || '.am', true)";
    assert_eq!(other.value(look).filter(|v| !v.is_empty()), None);
    assert_eq!(a.value(look).as_deref(), Some("v"));
    assert_eq!(backend_pid(&mut a), backend_pid(&mut other));
}

#[test]
fn a_setting_whose_name_no_text_shows_does_not_leak() {
    let many: String = (0..70).map(|i| format!("a.b{i} ")).collect();
    let changes = [
        "SELECT set_config('app' || '.tenant', '1', false)".to_owned(),
        "SELECT set_config(E'app\\x2etenant', '1', false)".to_owned(),
        "SELECT set_config(U&'app\\002etenant', '1', false)".to_owned(),
        format!("SELECT '{many}', CASE WHEN true THEN set_config ('app.tenant', '1', false) END"),
        "SET app.\"tenant\" = 1".to_owned(),
        "SET app /* */ . tenant = 1".to_owned(),
    ];
    for change in changes {
        let (_, proxy, database) = one_connection("");
        let (mut a, mut other) = two(&proxy, &database);
        // As many others as are remembered.
        let others: String = (0..300).map(|i| format!("SET o.o{i} = 1;")).collect();
        a.rows(&format!("{others} RESET ALL"));
        a.rows(&change);
        let seen = other.value("SELECT current_setting('app' || '.tenant', true)");
        assert_eq!(seen.filter(|v| !v.is_empty()), None, "{change}");
        assert_eq!(backend_pid(&mut a), backend_pid(&mut other));
    }
}

#[test]
fn roles_stay_with_the_client_that_took_them() {
    let (server, proxy, database) = one_connection("");
    let role = format!("role_{database}");
    server.psql("postgres", &format!("CREATE ROLE {role}"));
    let (mut a, mut other) = two(&proxy, &database);
    let who = "SELECT session_user || ' ' || current_user";
    for (change, seen) in [
        (format!("SET ROLE {role}"), format!("postgres {role}")),
        ("RESET ROLE".into(), "postgres postgres".into()),
        (format!("SET SESSION AUTHORIZATION {role}"), format!("{role} {role}")),
        ("RESET SESSION AUTHORIZATION".into(), "postgres postgres".into()),
        (format!("SELECT set_config('role', '{role}', false)"), format!("postgres {role}")),
    ] {
        a.rows(&change);
        for _ in 0..2 {
            assert_eq!(other.value(who).as_deref(), Some("postgres postgres"), "{change}");
            assert_eq!(a.value(who), Some(seen.clone()), "{change}");
        }
    }
}

/// RESET of one setting takes the privilege to set it, RESET ALL none.
#[test]
fn a_setting_of_superusers_is_given_back_by_who_may_not_set_it() {
    let (server, proxy, database) = one_connection("");
    let (login, superuser) = (format!("l_{database}"), format!("s_{database}"));
    server.psql(
        "postgres",
        &format!("CREATE ROLE {superuser} SUPERUSER; CREATE ROLE {login} LOGIN IN ROLE {superuser}"),
    );
    let me = [("user", login.as_str()), ("database", database.as_str())];
    let [mut a, mut other] = [0; 2].map(|_| Raw::login_as(proxy.port(), &me, "").expect("login"));
    let changed = "SELECT current_setting('log_min_messages') || ' ' || current_user";
    a.rows(&format!("BEGIN; SET ROLE {superuser}; SET log_min_messages = 'panic'; SET work_mem = '3MB'; RESET ROLE; COMMIT"));
    assert_eq!(a.value(changed), Some(format!("panic {login}")));
    assert_eq!(other.value(changed), Some(format!("warning {login}")));
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
    assert_eq!(backend_pid(&mut other), backend_pid(&mut other));
}

/// A connection goes on as the role that had the name when the name was set on it.
#[test]
fn a_role_that_was_made_again_is_the_new_one_on_every_connection() {
    let server = Postgres::shared();
    for (set, who) in [("SET ROLE", "current_user"), ("SET SESSION AUTHORIZATION", "session_user")] {
        let database = server.fresh_database("CREATE TABLE t (n int)");
        let proxy = Proxy::to(server, "default_pool_size = 2", "", "");
        let (role, oid) = (format!("role_{database}"), format!("SELECT {who}::regrole::oid"));
        let make = format!("CREATE ROLE {role}; GRANT INSERT ON t TO {role}");
        server.psql(&database, &make);
        let (mut before, mut behind) = two(&proxy, &database);
        before.rows(&format!("{set} {role}"));
        before.rows("BEGIN");
        server.psql(&database, &format!("DROP OWNED BY {role}; DROP ROLE {role}; {make}"));
        // On the other connection, which is then taken.
        behind.rows(&format!("{set} {role}"));
        let new = behind.value(&oid);
        let mut other = Raw::login(proxy.port(), &database);
        other.rows("BEGIN");
        before.rows("COMMIT");
        assert_eq!(behind.value(&oid), new, "{set}");
        let inserted = outline(&behind.query("INSERT INTO t VALUES (1)"));
        assert!(inserted.contains("INSERT 0 1"), "{set}: {inserted}");
    }
}

/// In session mode the startup packet sets it, and no reset looks it up again.
#[test]
fn a_role_of_the_startup_packet_that_was_made_again_is_the_new_one_for_the_next_client() {
    let (server, proxy, database) = one_connection("pool_mode = \"session\"");
    let role = format!("role_{database}");
    let look = "SELECT current_user::regrole::oid";
    for _ in 0..2 {
        server.psql("postgres", &format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}"));
        let direct = server.psql("postgres", &format!("SELECT '{role}'::regrole::oid"));
        let mut client = with(&proxy, &database, &[("role", &role)]);
        assert_eq!(client.value(look).as_deref(), Some(direct.trim()));
        client.terminate();
    }
}

#[test]
fn what_was_set_in_a_block_that_failed_is_not_kept() {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("BEGIN; SET work_mem = '3MB'; SET app.x = '1'; ROLLBACK");
    assert_eq!(a.value("SHOW work_mem").as_deref(), Some("4MB"));
    a.rows("BEGIN; SET work_mem = '3MB'");
    a.error("SELECT 1/0");
    a.rows("COMMIT");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
    a.rows("BEGIN; SET LOCAL work_mem = '3MB'; SELECT set_config('app.y', '1', true); COMMIT");
    for raw in [&mut a, &mut other] {
        assert_eq!(raw.value("SHOW work_mem").as_deref(), Some("4MB"));
        assert_eq!(raw.value("SELECT current_setting('app.y', true)").filter(|v| !v.is_empty()), None);
    }
}

#[test]
fn names_of_the_startup_packet_are_no_more_than_settings_in_options() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE ROLE nobodys LOGIN");
    let asked = "SELECT current_user || current_database() || current_setting('_pq_.x')";
    for mode in ["session", "transaction"] {
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "");
        let enter = |port, options| {
            let parameters = [("user", "nobodys"), ("database", database.as_str()), ("options", options)];
            let mut raw = Raw::login_as(port, &parameters, "").map_err(|error| error.outline())?;
            Ok::<_, String>(raw.value(asked))
        };
        for options in [
            "-c user=postgres",
            "--user=postgres",
            "-c database=template1",
            "-c replication=database",
            "-c options=-cuser=postgres",
            "-c _pq_.x=a\\ b",
        ] {
            let direct = enter(server.port(), options);
            assert_eq!(enter(proxy.port(), options), direct, "{mode} {options}");
            assert_eq!(direct.is_ok(), options.contains("_pq_"), "{options}: {direct:?}");
        }
    }
    server.psql("postgres", &format!("DROP DATABASE {database} WITH (FORCE)"));
    server.psql("postgres", "DROP ROLE nobodys");
}

/// A view, a default and a trigger call a function that no text names: `server_reset_query_always` is what helps.
#[test]
fn what_no_text_shows_goes_with_a_reset_behind_each_transaction() {
    let server = Postgres::shared();
    let database = server.fresh_database(
        "CREATE FUNCTION hidden() RETURNS int LANGUAGE plpgsql AS $$BEGIN
           PERFORM set_config('search_path', 'hidden', false), set_config('app.hidden', 'x', false);
           PERFORM pg_advisory_lock(7); SET ROLE pg_monitor; RETURN 1; END$$;
         CREATE FUNCTION hides() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.hidden(); RETURN NEW; END';
         CREATE VIEW v AS SELECT hidden(); CREATE TABLE d (a int DEFAULT hidden()); CREATE TABLE t (a int);
         CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION hides()",
    );
    let general =
        "default_pool_size = 1\nserver_reset_query = \"DISCARD ALL\"\nserver_reset_query_always = true";
    let proxy = Proxy::to(server, general, "", "");
    let asked = "SELECT current_user, current_setting('search_path'), coalesce(current_setting('app.hidden', true), ''), \
                 (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())";
    let direct = Raw::login(server.port(), &database).rows(asked);
    let (mut a, mut other) = two(&proxy, &database);
    for text in ["SELECT * FROM v", "INSERT INTO d DEFAULT VALUES", "INSERT INTO t VALUES (1)"] {
        a.rows(text);
        assert_eq!(other.rows(asked), direct, "{text}");
    }
}

/// What stands in a function is planned once for a server connection, and read then.
#[test]
fn what_was_planned_under_another_clients_settings_goes_with_a_reset() {
    let server = Postgres::shared();
    let database = server.fresh_database(
        "CREATE FUNCTION tenant() RETURNS text IMMUTABLE LANGUAGE plpgsql
           AS $$BEGIN RETURN current_setting('app.tenant', true); END$$;
         CREATE FUNCTION asks() RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN RETURN tenant(); END';
         CREATE FUNCTION begins() RETURNS text STABLE LANGUAGE plpgsql AS $$
           BEGIN RETURN (timestamptz '2024-01-01 00:00' AT TIME ZONE 'UTC')::time; END$$",
    );
    let general =
        "default_pool_size = 1\nserver_reset_query = \"DISCARD ALL\"\nserver_reset_query_always = true";
    let proxy = Proxy::to(server, general, "", "");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SET app.tenant = 'a'; SET TimeZone = 'Asia/Tokyo'");
    other.rows("SET app.tenant = 'other'; SET TimeZone = 'UTC'");
    let asked = [
        ("SELECT tenant()", "a", "other"),
        ("SELECT asks()", "a", "other"),
        ("SELECT begins()", "15:00:00", "00:00:00"),
    ];
    for (n, (sql, of_a, of_other)) in asked.iter().cycle().take(6).enumerate() {
        assert_eq!(value_of(&mut a, &format!("s{n}"), sql), *of_a, "{sql}");
        assert_eq!(value_of(&mut other, &format!("s{n}"), sql), *of_other, "{sql}");
    }
}

/// A client that stays has its own mode until it leaves, and what it leaves behind is for clients of that mode.
#[test]
fn a_connection_serves_whom_it_was_made_for_when_the_pool_mode_changes() {
    let server = Postgres::shared();
    let own = [("options", "-c search_path=own -c app.began=x")];
    let asked = "SELECT current_user, current_setting('search_path'), coalesce(current_setting('app.began', true), ''), \
                 coalesce(current_setting('app.mine', true), '')";
    for (before, after) in [("session", "transaction"), ("transaction", "session")] {
        let database = server.fresh_database("");
        let direct = Raw::login(server.port(), &database).rows(asked);
        let config = |mode: &str| {
            Proxy::config(server, &format!("pool_mode = \"{mode}\"\ndefault_pool_size = 2"), "", "")
        };
        let proxy = Proxy::start(&config(before));
        let (mut stays, mut leaves) = (with(&proxy, &database, &own), with(&proxy, &database, &own));
        let change = |raw: &mut Raw| {
            raw.rows("SET app.mine = 'x'");
            raw.rows("SET ROLE pg_monitor");
        };
        change(&mut stays);
        change(&mut leaves);
        leaves.terminate();
        proxy.write_config(&config(after));
        let mut console = Raw::login(proxy.port(), "pgsluice");
        tell(&mut console, "RELOAD");
        change(&mut stays);
        for _ in 0..2 {
            let mut next = with(&proxy, &database, &[]);
            assert_eq!(next.rows(asked), direct, "{before} to {after}");
            assert_eq!(stays.value("SELECT current_setting('app.mine')").as_deref(), Some("x"));
            assert_eq!(next.rows(asked), direct, "{before} to {after}, again");
            change(&mut next);
            next.terminate();
        }
        stays.terminate();
        until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_active", "0"), ("sv_active", "0")]);
        assert_eq!(with(&proxy, &database, &[]).rows(asked), direct, "{before} to {after}, at the end");
    }
}

#[test]
fn startup_parameters_and_options_are_each_clients_own_and_what_reset_goes_back_to() {
    let (_, proxy, database) = one_connection("");
    let more = [
        ("options", "-c work_mem=3MB -c app.o=opt --statement-timeout=9s"),
        ("TimeZone", "Asia/Tokyo"),
        ("application_name", "one"),
        ("search_path", "pg_catalog"),
    ];
    let mut a = with(&proxy, &database, &more);
    let mut other = Raw::login(proxy.port(), &database);
    assert_eq!(parameter(&a, "TimeZone"), "Asia/Tokyo");
    assert_eq!(parameter(&a, "application_name"), "one");
    assert_ne!(parameter(&other, "TimeZone"), "Asia/Tokyo");
    let all = "SELECT concat_ws(',', current_setting('work_mem'), current_setting('app.o', true), \
               current_setting('statement_timeout'), current_setting('TimeZone'), \
               current_setting('application_name'), current_setting('search_path'))";
    let mine = Some("3MB,opt,9s,Asia/Tokyo,one,pg_catalog".to_owned());
    let others = other.value(all);
    assert_ne!(others, mine);
    assert_eq!(a.value(all), mine);
    for reset in [
        "SET work_mem = '5MB'; RESET work_mem",
        "SET work_mem = '5MB'; SET TimeZone = 'UTC'; SET app.o = 'no'; RESET ALL",
        "SET TimeZone TO DEFAULT",
        "DISCARD ALL",
    ] {
        for part in reset.split("; ") {
            a.rows(part);
        }
        assert_eq!(other.value(all), others, "{reset}");
        assert_eq!(a.value(all), mine, "{reset}");
        assert_eq!(parameter(&a, "TimeZone"), "Asia/Tokyo", "{reset}");
    }
}

/// What a client's startup packet sets is its own again after RESET and DISCARD ALL, also by what it is told: the encoding in
/// which it writes the next statement.
#[test]
fn what_a_reset_brings_back_is_told_before_the_next_statement() {
    let own = [
        ("client_encoding", "LATIN1"),
        ("DateStyle", "German"),
        ("TimeZone", "Asia/Tokyo"),
        ("application_name", "one"),
    ];
    let texts = [
        "SET client_encoding TO 'UTF8'",
        "RESET client_encoding",
        "SET DateStyle = 'SQL'; SET IntervalStyle = 'sql_standard'",
        "RESET ALL",
        "SET application_name = 'two'",
        "SET application_name TO DEFAULT",
        "SELECT set_config('TimeZone', 'UTC', false)",
        "DISCARD ALL",
        "BEGIN; SET LOCAL TimeZone = 'Europe/Rome'; COMMIT",
        "RESET TimeZone; RESET DateStyle; SELECT 1/0",
        "RESET client_encoding; SET IntervalStyle = 'iso_8601'",
        "DO $$BEGIN RESET ALL; END$$",
    ];
    let (server, proxy, database) = one_connection("");
    let me = [("user", "postgres"), ("database", database.as_str())];
    let mut sides = [server.port(), proxy.port()]
        .map(|port| Raw::login_as(port, &[&me[..], &own].concat(), "").expect("login"));
    let mut other = Raw::login(proxy.port(), &database);
    for extended in [false, true] {
        for text in texts.iter().filter(|text| !extended || !text.contains("; ") || text.starts_with("DO")) {
            let [direct, through] = sides.each_mut().map(|raw| {
                let answer = if extended { raw.extended(text, &[]) } else { raw.query(text) };
                let lines = answer.iter().map(Message::outline);
                let (mut told, rest): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with('S'));
                told.sort();
                (told, rest)
            });
            assert_eq!(through, direct, "{text}");
            assert_eq!(other.value("SHOW client_encoding").as_deref(), Some("UTF8"), "{text}");
        }
    }
    // In a block the connection's own hold, and behind it the client's.
    for text in ["BEGIN", "RESET ALL", "SELECT 1", "COMMIT"] {
        sides[1].rows(text);
    }
    sides.iter_mut().for_each(|raw| raw.parameters.sort());
    assert_eq!(sides[1].parameters, sides[0].parameters);
    for (name, value) in own {
        assert_eq!(parameter(&sides[1], name).split(',').next(), Some(value), "{name}");
    }
}

/// Also of a client that does not wait for the answer.
#[test]
fn what_a_reset_brings_back_holds_for_what_is_sent_together_with_it() {
    let (server, proxy, database) = one_connection("");
    server.psql(&database, "CREATE TABLE t (v text)");
    for reset in ["RESET client_encoding", "RESET ALL", "SET client_encoding TO DEFAULT", "DISCARD ALL"] {
        for extended in [false, true] {
            let mut client = with(&proxy, &database, &[("client_encoding", "LATIN1")]);
            let mut batch = Vec::new();
            if extended {
                f::put_parse(&mut batch, b"", reset.as_bytes(), &[]);
                f::put_bind_text(&mut batch, b"", &[]);
                f::put_execute(&mut batch, b"", 0);
                f::put_empty(&mut batch, f::SYNC);
            } else {
                f::put_query(&mut batch, reset.as_bytes());
            }
            f::put_query(&mut batch, b"INSERT INTO t VALUES ('\xe9')");
            client.send(&batch);
            client.read_until_ready();
            client.read_until_ready();
            let stored = server.psql(&database, "DELETE FROM t RETURNING v");
            assert_eq!(stored.trim(), "\u{e9}", "{reset}, extended: {extended}");
            client.terminate();
        }
    }
}

/// Also behind a text that brings it back by the way.
#[test]
fn what_is_brought_back_by_the_way_holds_for_what_is_sent_together_with_it() {
    let (server, proxy, database) = one_connection("");
    server.psql(&database, "CREATE TABLE t (v text)");
    let own = [("user", "postgres"), ("database", database.as_str()), ("TimeZone", "Asia/Tokyo")];
    let query = |text: &str| {
        let mut out = Vec::new();
        f::put_query(&mut out, text.as_bytes());
        out
    };
    let bound = |text: &str, values: &[Option<&[u8]>]| {
        let mut out = Vec::new();
        f::put_parse(&mut out, b"", text.as_bytes(), &[]);
        f::put_bind_text(&mut out, b"", values);
        f::put_execute(&mut out, b"", 0);
        f::put_empty(&mut out, f::SYNC);
        out
    };
    let mut copy = query("RESET TimeZone; COPY t FROM STDIN");
    frame::put(&mut copy, f::COPY_DATA, |out| out.extend_from_slice(b"x\n"));
    f::put_empty(&mut copy, f::COPY_DONE);
    let ways = [
        query("SET TIME ZONE LOCAL"),
        query("DO $$BEGIN RESET TimeZone; END$$"),
        query("DO $$BEGIN RESET work_mem; RESET ALL; END$$"),
        bound("SELECT set_config('timezone', $1, false)", &[None]),
        bound("SELECT set_config($1, $2, false)", &[Some(b"TimeZone"), None]),
        copy,
    ];
    let mut sides = [server.port(), proxy.port()].map(|port| Raw::login_as(port, &own, "").expect("login"));
    for (way, text) in ways.iter().enumerate() {
        let [direct, through] = sides.each_mut().map(|raw| {
            raw.rows("SET TimeZone = 'Europe/Rome'");
            raw.send(&[&text[..], &query("SHOW TimeZone")].concat());
            raw.read_until_ready();
            let seen = raw.read_until_ready();
            (seen.iter().find(|m| m.tag == b::DATA_ROW).map(Message::row), parameter(raw, "TimeZone"))
        });
        assert_eq!(through, direct, "{way}");
        assert_eq!(direct.1, "Asia/Tokyo", "{way}");
    }
}

/// A DateStyle of one word is put on top of what there is, which is not another client's.
#[test]
fn half_a_datestyle_is_completed_by_nobody_elses() {
    let (server, proxy, database) = one_connection("");
    let mut a = Raw::login(proxy.port(), &database);
    for (mine, others) in [("ISO", "ISO, DMY"), ("DMY", "SQL, YMD"), ("German", "Postgres, YMD")] {
        a.rows(&format!("SET DateStyle = '{others}'"));
        let own = [("user", "postgres"), ("database", database.as_str()), ("DateStyle", mine)];
        let [direct, through] = [server.port(), proxy.port()].map(|port| {
            let mut raw = Raw::login_as(port, &own, "").expect("login");
            (
                parameter(&raw, "DateStyle"),
                raw.value("SELECT '01/02/2024'::date"),
                raw.value("SHOW DateStyle"),
            )
        });
        assert_eq!(through, direct, "{mine} behind {others}");
        assert_eq!(a.value("SHOW DateStyle").as_deref(), Some(others));
    }
}

/// Directly it is there again, and nothing works that needs it; here it cannot be set.
#[test]
fn a_startup_value_that_is_no_more_ends_nobody_who_resets() {
    for reset in ["RESET ALL", "DISCARD ALL", "RESET default_text_search_config"] {
        let (server, proxy, database) = one_connection("");
        server.psql(&database, "CREATE TEXT SEARCH CONFIGURATION gone (COPY = simple)");
        let own = [("default_text_search_config", "public.gone"), ("TimeZone", "Asia/Tokyo")];
        let mut a = with(&proxy, &database, &own);
        let mut other = Raw::login(proxy.port(), &database);
        let look =
            "SELECT current_setting('TimeZone') || ' ' || current_setting('default_text_search_config')";
        let plain = other.value("SHOW default_text_search_config").expect("a value");
        a.rows("SET default_text_search_config = 'simple'");
        server.psql(&database, "DROP TEXT SEARCH CONFIGURATION gone");
        let told: Vec<_> = a
            .query(reset)
            .iter()
            .filter(|message| message.tag == b::NOTICE_RESPONSE)
            .map(|notice| (notice.field(b'S'), notice.sqlstate()))
            .collect();
        assert_eq!(told, [("WARNING".to_owned(), "22023".to_owned())], "{reset}");
        for _ in 0..2 {
            assert_eq!(a.value(look), Some(format!("Asia/Tokyo {plain}")), "{reset}");
            assert_ne!(other.value("SHOW TimeZone").as_deref(), Some("Asia/Tokyo"), "{reset}");
            let notices = a.query(reset).iter().filter(|m| m.tag == b::NOTICE_RESPONSE).count();
            assert_eq!(notices, 0, "{reset}");
        }
    }
}

/// Nobody is somebody else for that.
#[test]
fn a_startup_role_that_is_no_more_is_not_done_without() {
    let (server, proxy, database) = one_connection("");
    let role = format!("gone_{database}");
    server.psql("postgres", &format!("CREATE ROLE {role}"));
    let mut a = with(&proxy, &database, &[("role", &role)]);
    a.rows("SET ROLE NONE");
    server.psql("postgres", &format!("DROP ROLE {role}"));
    a.send(&Step::query("RESET ROLE").bytes);
    let end = a.read_until(b::ERROR_RESPONSE).pop().expect("an error");
    assert_eq!((end.field(b'S'), end.sqlstate()), ("FATAL".into(), "22023".into()), "{}", end.outline());
}

/// Who becomes somebody of fewer rights is not the more powerful role of its startup packet again.
#[test]
fn a_startup_role_does_not_outlive_a_change_of_the_sessions_user() {
    let (server, proxy, database) = one_connection("");
    let [strong, weak] = ["strong", "weak"].map(|name| format!("{name}_{database}"));
    server.psql("postgres", &format!("CREATE ROLE {strong} SUPERUSER; CREATE ROLE {weak} IN ROLE {strong}"));
    let mut direct =
        Raw::login_as(server.port(), &[("user", "postgres"), ("role", &strong)], "").expect("a login");
    let mut a = with(&proxy, &database, &[("role", &strong)]);
    let mut other = Raw::login(proxy.port(), &database);
    const LOOK: &str = "SELECT session_user || ' ' || current_user || ' ' || current_setting('is_superuser')";
    for set in [
        format!("SET SESSION AUTHORIZATION {weak}"),
        format!("SET ROLE {strong}"),
        format!("SELECT set_config('session_authorization', '{weak}', false)"),
        "SET application_name = 'a'".to_owned(),
        "RESET SESSION AUTHORIZATION".to_owned(),
        format!("BEGIN; SET SESSION AUTHORIZATION {weak}; COMMIT"),
        "DISCARD ALL".to_owned(),
    ] {
        direct.rows(&set);
        a.rows(&set);
        for _ in 0..2 {
            assert_eq!(a.value(LOOK), direct.value(LOOK), "{set}");
            assert_eq!(other.value(LOOK).as_deref(), Some("postgres postgres on"), "{set}");
        }
    }
}

/// A transaction of pgsluice's own waits for nobody's, whatever its client wants of his.
#[test]
fn who_defers_transactions_defers_none_but_his() {
    const DEFER: &str =
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE";
    for general in ["", "server_check_delay = 0"] {
        let (server, proxy, database) = one_connection(general);
        server.psql(&database, "CREATE TABLE t (a int)");
        let (mut a, mut other) = two(&proxy, &database);
        let mut writer = Raw::login(server.port(), &database);
        writer.rows("BEGIN ISOLATION LEVEL SERIALIZABLE");
        writer.rows("INSERT INTO t VALUES (1)");
        for text in
            [DEFER, "BEGIN READ WRITE; DO $$BEGIN END$$; COMMIT", "SET default_transaction_deferrable = on"]
        {
            a.rows(text);
            assert_eq!(
                other.value("SHOW transaction_deferrable").as_deref(),
                Some("off"),
                "{general} {text}"
            );
        }
        writer.rows("ROLLBACK");
        assert_eq!(a.value("SHOW transaction_deferrable").as_deref(), Some("on"), "{general}");
    }
}

/// Who logged in may set what the role may not that it takes on.
#[test]
fn a_setting_of_superusers_goes_with_a_role_that_may_not_set_it() {
    let (server, proxy, database) = one_connection("");
    let role = format!("plain_{database}");
    server.psql("postgres", &format!("CREATE ROLE {role}"));
    let own = [("options", "-c log_min_messages=panic")];
    let (mut a, mut b, mut other) = (
        with(&proxy, &database, &own),
        Raw::login(proxy.port(), &database),
        Raw::login(proxy.port(), &database),
    );
    let look = "SELECT current_user || ' ' || current_setting('log_min_messages')";
    a.rows(&format!("SET ROLE {role}"));
    a.rows("RESET ALL");
    assert_eq!(a.value(look), Some(format!("{role} panic")));
    b.rows(&format!("SET ROLE {role}"));
    for _ in 0..2 {
        assert_eq!(other.value(look).as_deref(), Some("postgres warning"));
        assert_eq!(a.value(look), Some(format!("{role} panic")));
        assert_eq!(b.value(look), Some(format!("{role} warning")));
        assert_eq!(a.value(look), Some(format!("{role} panic")));
    }
}

/// A tenant that was taken away does not come back.
#[test]
fn a_setting_of_the_startup_packet_that_was_emptied_stays_empty() {
    let (_, proxy, database) = one_connection("");
    let mut a = with(&proxy, &database, &[("options", "-c app.tenant=5")]);
    let mut other = Raw::login(proxy.port(), &database);
    let look = "SELECT current_setting('app.tenant', true)";
    for (text, value) in [
        ("SET app.tenant = ''", ""),
        ("SET app.tenant = '6'", "6"),
        ("SELECT set_config('app.tenant', '', false)", ""),
        ("RESET app.tenant", "5"),
        ("SET app.tenant = ''", ""),
        ("RESET ALL", "5"),
    ] {
        a.rows(text);
        assert_eq!(other.value(look).filter(|v| !v.is_empty()), None, "{text}");
        assert_eq!(a.value(look).as_deref(), Some(value), "{text}");
    }
}

/// So it does where another setting is given back: what a client has emptied is not a tenant's again by the way.
#[test]
fn a_setting_of_the_startup_packet_that_was_emptied_stays_empty_whatever_else_is_given_back() {
    let (server, proxy, database) = one_connection("");
    server.psql(
        &database,
        "CREATE FUNCTION sets(name text, value text) RETURNS text LANGUAGE plpgsql AS \
         $$BEGIN RETURN set_config(name, value, false); END$$",
    );
    let look = "SELECT current_setting('app.tenant', true)";
    for port in [server.port(), proxy.port()] {
        let options = "-c app.tenant=5 -c App.Other=6";
        let parameters = [("user", "postgres"), ("database", database.as_str()), ("options", options)];
        let mut a = Raw::login_as(port, &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
        for (text, value) in [
            ("SET app.tenant = ''", ""),
            ("RESET statement_timeout", ""),
            ("SET work_mem TO DEFAULT", ""),
            ("SET NAMES 'utf8'", ""),
            ("SET TIME ZONE LOCAL", ""),
            ("BEGIN; SET LOCAL work_mem = '1MB'; SET statement_timeout = 0; COMMIT", ""),
            ("SELECT sets('work_mem', '3MB') WHERE 1 IS NOT NULL", ""),
            ("RESET app.other", ""),
            ("DISCARD PLANS", ""),
            ("RESET \"app\" . Tenant", "5"),
            ("SET app.tenant = ''", ""),
            ("DO $$BEGIN EXECUTE 'RESET ALL'; END$$", "5"),
            ("SET app.tenant = ''", ""),
            ("PREPARE giving AS SELECT set_config('app.tenant', $1, false)", ""),
            ("EXECUTE giving(NULL)", "5"),
        ] {
            a.rows(text);
            assert_eq!(a.value(look).as_deref(), Some(value), "{text}");
        }
        for (text, params, value) in [
            ("SELECT set_config('app.tenant', $1, false)", [Some("")].as_slice(), ""),
            ("SELECT sets('work_mem', '2MB') WHERE $1::int IS NULL", &[None], ""),
            ("SELECT set_config($1, $2, false)", &[Some("statement_timeout"), None], ""),
            ("SELECT set_config($1, $2, false)", &[Some("App.tenant"), None], "5"),
        ] {
            a.extended(text, params);
            assert_eq!(a.value(look).as_deref(), Some(value), "{text} {params:?}");
        }
    }
}

/// A setting that a library has a default for was not set by who is asked about because another client named it.
#[test]
fn a_librarys_setting_that_somebody_named_is_not_everybodys() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let role = format!("plain_{database}");
    let load = format!("ALTER DATABASE {database} SET session_preload_libraries = 'auto_explain'");
    server.psql("postgres", &format!("CREATE ROLE {role} LOGIN; {load}"));
    let proxy = Proxy::to(server, "default_pool_size = 2", "", "");
    let me = [("user", role.as_str()), ("database", database.as_str())];
    let [mut namer, mut a, mut other] = [0; 3].map(|_| Raw::login_as(proxy.port(), &me, "").expect("login"));
    assert_eq!(namer.error("SET auto_explain.log_level = notice").sqlstate(), "42501");
    namer.terminate();
    a.rows("SET work_mem = '7MB'");
    // It has the connection that `a` had, and `a` gets the other one.
    other.rows("BEGIN");
    assert_eq!(a.value("SHOW work_mem").as_deref(), Some("7MB"));
    other.rows("COMMIT");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
}

/// What each client has that asks for nothing, and what one has that asks.
const SETTINGS: &str = "SELECT concat_ws('|', current_setting('TimeZone'), current_setting('DateStyle'), \
                        current_setting('client_encoding'))";

#[test]
fn clients_that_ask_for_nothing_begin_with_what_the_database_entry_says() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let entry = "timezone = \"Asia/Tokyo\"\ndatestyle = \"German\"\nclient_encoding = \"LATIN1\"";
    for mode in ["session", "transaction", "statement"] {
        let general = format!("default_pool_size = 1\npool_mode = \"{mode}\"");
        let proxy = Proxy::to(server, &general, entry, "");
        let own = [("TimeZone", "UTC"), ("options", "-c datestyle=SQL")];
        for (more, begins) in [
            (&[][..], "Asia/Tokyo|German, DMY|LATIN1"),
            (&own[..], "UTC|SQL, DMY|LATIN1"),
            (&[][..], "Asia/Tokyo|German, DMY|LATIN1"),
        ] {
            let mut raw = with(&proxy, &database, more);
            let told =
                ["TimeZone", "DateStyle", "client_encoding"].map(|name| parameter(&raw, name)).join("|");
            assert_eq!(told, begins, "{mode}");
            assert_eq!(raw.value(SETTINGS).as_deref(), Some(begins), "{mode}");
            for reset in ["RESET TimeZone", "RESET ALL", "DISCARD ALL"] {
                raw.rows("SET TimeZone = 'Europe/Rome'");
                assert_ne!(raw.value(SETTINGS).as_deref(), Some(begins), "{mode}");
                raw.rows(reset);
                assert_eq!(raw.value(SETTINGS).as_deref(), Some(begins), "{mode}: {reset}");
            }
            raw.terminate();
        }
    }
}

#[test]
fn a_reload_replaces_what_clients_begin_with() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "default_pool_size = 1\nlog_level = \"info\"";
    let proxy = Proxy::to(server, general, "timezone = \"Asia/Tokyo\"", "");
    let mut old = Raw::login(proxy.port(), &database);
    assert_eq!(old.value("SHOW TimeZone").as_deref(), Some("Asia/Tokyo"));
    proxy.write_config(&Proxy::config(server, general, "timezone = \"Europe/Rome\"", ""));
    Raw::login(proxy.port(), "pgsluice").query("RELOAD");
    let new = Raw::login(proxy.port(), &database);
    assert_eq!(parameter(&new, "TimeZone"), "Europe/Rome");
    assert_eq!(old.value("SHOW TimeZone").as_deref(), Some("Europe/Rome"));
    assert_eq!(parameter(&old, "TimeZone"), "Europe/Rome", "it is told");
}

#[test]
fn a_value_of_the_entry_that_postgresql_refuses_is_told_at_once() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for mode in ["session", "transaction"] {
        let general = format!("pool_mode = \"{mode}\"");
        let proxy = Proxy::to(server, &general, "timezone = \"Nowhere/None\"", "");
        let me = [("user", "postgres"), ("database", database.as_str())];
        let wrong = Raw::login_as(proxy.port(), &me, "").err().expect("refused");
        assert_eq!((wrong.field(b'S'), wrong.sqlstate()), ("FATAL".into(), "22023".into()), "{mode}");
        assert!(wrong.field(b'M').contains("Nowhere/None"), "{mode}: {}", wrong.outline());
    }
}

#[test]
fn a_startup_parameter_that_postgresql_refuses_is_refused_in_its_words() {
    let (server, proxy, database) = one_connection("");
    let wrong = [("user", "postgres"), ("database", database.as_str()), ("DateStyle", "nonsense")];
    let direct = Raw::login_as(server.port(), &wrong, "").err().expect("refused");
    let ours = Raw::login_as(proxy.port(), &wrong, "").err().expect("refused");
    assert_eq!((ours.field(b'S'), ours.sqlstate()), ("FATAL".into(), direct.sqlstate()));
    assert_eq!(ours.field(b'M'), direct.field(b'M'));
    let mut fine = Raw::login(proxy.port(), &database);
    assert_ne!(fine.value("SHOW DateStyle").as_deref(), Some("nonsense"));
}

#[test]
fn each_client_is_told_the_reported_settings_that_hold_for_it() {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    let before = parameter(&other, "TimeZone");
    a.rows("SET TimeZone = 'Asia/Tokyo'");
    assert_eq!(parameter(&a, "TimeZone"), "Asia/Tokyo");
    a.rows("SET application_name = 'mine'");
    other.rows("SELECT 1");
    a.rows("SELECT 1");
    other.rows("SELECT 1");
    assert_eq!((parameter(&a, "TimeZone"), parameter(&other, "TimeZone")), ("Asia/Tokyo".into(), before));
    assert_eq!(parameter(&a, "application_name"), "mine");
    assert_ne!(parameter(&other, "application_name"), "mine");
}

/// The one value of a statement that is prepared under this name.
fn value_of(raw: &mut Raw, name: &str, sql: &str) -> String {
    let mut out = Vec::new();
    f::put_parse(&mut out, name.as_bytes(), sql.as_bytes(), &[]);
    f::put_bind_text(&mut out, name.as_bytes(), &[]);
    f::put_execute(&mut out, b"", 0);
    f::put_empty(&mut out, f::SYNC);
    raw.send(&out);
    let messages = raw.read_until_ready();
    let row = messages.iter().find(|m| m.tag == b::DATA_ROW);
    row.unwrap_or_else(|| panic!("{}", outline(&messages))).row()[0].clone().expect("a value")
}

#[test]
fn a_literal_means_what_it_means_under_the_clients_own_settings() {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SET DateStyle = 'ISO, DMY'");
    other.rows("SET DateStyle = 'ISO, MDY'");
    let run = |raw: &mut Raw, name: &str| value_of(raw, name, "SELECT '01/02/2003'::date");
    for name in ["", "named"] {
        assert_eq!(run(&mut a, name), "2003-02-01");
        assert_eq!(run(&mut other, name), "2003-01-02");
    }
}

#[test]
fn a_constant_is_written_under_the_clients_own_settings() {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SET bytea_output = escape; SET extra_float_digits = 0");
    let text = "SELECT concat('\\xff'::bytea::text, ' ', (0.1::float8 + 0.2::float8)::text)";
    let run = |raw: &mut Raw, name: &str| value_of(raw, name, text);
    for name in ["", "named"] {
        assert_eq!(run(&mut a, name), "\\377 0.3");
        assert_eq!(run(&mut other, name), "\\xff 0.30000000000000004");
    }
}

#[test]
fn settings_of_one_transaction_and_the_seed_are_not_carried() {
    let sets =
        ["SET seed = 0.5", "SET transaction_isolation = 'serializable'", "SET transaction_deferrable = off"];
    for set in sets {
        let (_, proxy, database) = one_connection("");
        let (mut a, mut other) = two(&proxy, &database);
        a.rows(set);
        for _ in 0..2 {
            for raw in [&mut other, &mut a] {
                assert_eq!(
                    raw.value("SHOW transaction_isolation").as_deref(),
                    Some("read committed"),
                    "{set}"
                );
            }
        }
    }
}

#[test]
fn a_statement_does_not_run_where_its_settings_cannot_be_set() {
    let make = "CREATE TEXT SEARCH CONFIGURATION gone (COPY = simple)";
    for extended in [false, true] {
        let (server, proxy, database) = one_connection("");
        server.psql(&database, &format!("{make}; CREATE TABLE t (a int)"));
        let (mut a, mut other) = two(&proxy, &database);
        a.rows("SET default_text_search_config = 'public.gone'");
        // The one connection has the other's settings now, and those of the first can be set no more.
        assert_ne!(other.value("SHOW default_text_search_config").as_deref(), Some("public.gone"));
        server.psql(&database, "DROP TEXT SEARCH CONFIGURATION gone");
        let pid = backend_pid(&mut other);
        let mut out = Vec::new();
        if extended {
            f::put_parse(&mut out, b"", b"INSERT INTO t VALUES (1)", &[]);
            f::put_bind_text(&mut out, b"", &[]);
            f::put_execute(&mut out, b"", 0);
            f::put_empty(&mut out, f::SYNC);
        } else {
            f::put_query(&mut out, b"INSERT INTO t VALUES (1)");
        }
        a.send(&out);
        let end = a.read();
        assert_eq!((end.field(b'S'), end.sqlstate()), ("FATAL".into(), "22023".into()), "{}", end.outline());
        let ended = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})");
        server.wait_until(&database, &ended);
        assert_eq!(server.psql(&database, "SELECT count(*) FROM t").trim(), "0", "extended: {extended}");
        assert_eq!(other.value("SELECT 1").as_deref(), Some("1"));
    }
}

#[test]
fn equal_statements_over_tables_of_several_schemas_do_not_disturb_each_other() {
    let (server, proxy, database) = one_connection("");
    server.psql(
        &database,
        "CREATE SCHEMA one; CREATE SCHEMA two; CREATE TABLE one.t AS SELECT 1 AS a; CREATE TABLE two.t AS SELECT 'x'::text AS a, 2 AS b",
    );
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SET search_path = one");
    other.rows("SET search_path = two");
    for raw in [&mut a, &mut other] {
        let mut out = Vec::new();
        f::put_parse(&mut out, b"s", b"SELECT * FROM t", &[]);
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        raw.read_until_ready();
    }
    for _ in 0..2 {
        for (raw, columns) in [(&mut a, 1), (&mut other, 2)] {
            let mut out = Vec::new();
            f::put_bind_text(&mut out, b"s", &[]);
            f::put_execute(&mut out, b"", 0);
            f::put_empty(&mut out, f::SYNC);
            raw.send(&out);
            let messages = raw.read_until_ready();
            let row = messages.iter().find(|m| m.tag == b::DATA_ROW);
            assert_eq!(row.unwrap_or_else(|| panic!("{}", outline(&messages))).row().len(), columns);
        }
    }
}

#[test]
fn settings_outside_ascii_survive_a_narrow_client_encoding() {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SET app.name = 'caf\u{e9} \u{20ac}'");
    a.rows("SET client_encoding = 'SQL_ASCII'");
    other.rows("SET client_encoding = 'LATIN1'");
    other.rows("SELECT 1");
    let hex = "SELECT encode(convert_to(current_setting('app.name'), 'UTF8'), 'hex')";
    assert_eq!(a.value(hex).as_deref(), Some("636166c3a920e282ac"));
}

/// `a` makes state that is bound to its connection; `other` gets the connection only when `a` undid it.
fn is_pinned(setup: &str, make: &[&str], holds: impl Fn(&mut Raw), undo: &str) {
    let (server, proxy, database) = one_connection("query_wait_timeout = 30");
    if !setup.is_empty() {
        server.psql(&database, setup);
    }
    let (mut a, mut other) = two(&proxy, &database);
    for sql in make {
        a.rows(sql);
    }
    let pid = backend_pid(&mut a);
    let mut out = Vec::new();
    f::put_query(&mut out, b"SELECT pg_backend_pid()");
    other.send(&out);
    // While the other waits, the state is there and the connection the same.
    for _ in 0..3 {
        holds(&mut a);
        assert_eq!(backend_pid(&mut a), pid, "{make:?}");
    }
    a.rows(undo);
    let messages = other.read_until_ready();
    let row = messages.iter().find(|m| m.tag == b::DATA_ROW).expect("a row").row();
    assert_eq!(row[0].as_deref(), Some(pid.as_str()), "{make:?}: {undo} gives the connection back");
    // And again, this time the client leaves.
    for sql in make {
        a.rows(sql);
    }
    a.terminate();
    let clean = "SELECT (SELECT count(*) FROM pg_listening_channels()) + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) \
                 + (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()) + (SELECT count(*) FROM pg_cursors WHERE is_holdable) \
                 + (SELECT count(*) FROM pg_prepared_statements WHERE from_sql)";
    assert_eq!(other.value(clean).as_deref(), Some("0"), "{make:?}");
}

#[test]
fn a_listening_client_keeps_its_connection_until_it_stops() {
    is_pinned("", &["LISTEN c"], |_| {}, "UNLISTEN c");
    is_pinned("", &["LISTEN c", "LISTEN d"], |_| {}, "UNLISTEN *");
    is_pinned("", &["BEGIN; LISTEN c; COMMIT"], |_| {}, "DISCARD ALL");
}

/// Tools look for listeners by what `pg_stat_activity` shows of them.
#[test]
fn a_listening_client_is_seen_by_its_own_statement() {
    let (server, proxy, database) = one_connection("query_wait_timeout = 30");
    let (mut a, mut other) = two(&proxy, &database);
    let seen = format!(
        "SELECT query FROM pg_stat_activity WHERE datname = '{database}' AND state = 'idle' ORDER BY query"
    );
    let listeners = || server.psql("postgres", &seen).trim().to_owned();
    // None that has ended listens.
    for none in ["LISTEN c; SELECT 1/0", "BEGIN; LISTEN c; ROLLBACK", "LISTEN c; UNLISTEN c", "UNLISTEN c"] {
        a.query(none);
        assert_eq!(
            other.value("SELECT count(*) FROM pg_listening_channels()").as_deref(),
            Some("0"),
            "{none}"
        );
    }
    a.rows("LISTEN \"c d\"");
    assert_eq!(listeners(), "LISTEN \"c d\"");
    server.psql(&database, "NOTIFY \"c d\", 'heard'");
    assert_eq!(a.read().tag, b::NOTIFICATION_RESPONSE);
    // What it does behind it is asked for.
    a.rows("SET work_mem = '5MB'");
    a.rows("UNLISTEN *");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
    assert_eq!(a.value("SHOW work_mem").as_deref(), Some("5MB"));
}

#[test]
fn an_advisory_lock_keeps_the_connection_until_it_is_given_back() {
    let held = |raw: &mut Raw| {
        assert_eq!(
            raw.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
                .as_deref(),
            Some("1")
        );
    };
    is_pinned("", &["SELECT pg_advisory_lock(7)"], held, "SELECT pg_advisory_unlock(7)");
    is_pinned("", &["SELECT (7::bigint).pg_advisory_lock"], held, "SELECT pg_advisory_unlock(7)");
    is_pinned("", &["SELECT pg_try_advisory_lock(7)"], held, "SELECT pg_advisory_unlock_all()");
    let hidden = "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_lock(7)'";
    is_pinned(hidden, &["SELECT f()"], held, "SELECT pg_advisory_unlock(7)");
}

#[test]
fn a_temporary_table_keeps_the_connection_until_it_is_dropped() {
    let there = |raw: &mut Raw| assert_eq!(raw.value("SELECT a FROM tt").as_deref(), Some("1"));
    is_pinned("", &["CREATE TEMP TABLE tt AS SELECT 1 AS a"], there, "DROP TABLE tt");
    is_pinned("", &["SELECT 1 AS a INTO TEMPORARY tt"], there, "DISCARD TEMP");
    is_pinned(
        "",
        &["CREATE TABLE pg_temp.tt AS SELECT 1 AS a"],
        there,
        "drop table if exists pg_temp.tt, nothing",
    );
}

#[test]
fn what_is_made_where_the_search_path_begins_with_pg_temp_is_temporary() {
    let there = |raw: &mut Raw| assert_eq!(raw.value("SELECT a FROM pg_temp.tt").as_deref(), Some("1"));
    let make = "CREATE TABLE tt AS SELECT 1 AS a";
    for set in [
        "SET search_path = PG_TEMP, public",
        r"SET search_path = E'pg\137temp', public",
        "SELECT set_config('search_path', 'pg_' || 'temp', false)",
    ] {
        is_pinned("", &[set, make], there, "DROP TABLE pg_temp.tt");
    }
    for make in [
        "BEGIN; SELECT set_config('search_path', 'pg_' || 'temp', true); CREATE TABLE tt AS SELECT 1 AS a; COMMIT",
        r"BEGIN; SET LOCAL search_path = E'pg\137temp'; SELECT 1 AS a INTO tt; COMMIT",
    ] {
        is_pinned("", &[make], there, "DROP TABLE pg_temp.tt");
    }
    // Statement by statement, and in a startup packet.
    is_pinned(
        "",
        &["BEGIN", "SELECT set_config('search_path', 'pg_' || 'temp', true)", make, "COMMIT"],
        there,
        "DROP TABLE pg_temp.tt",
    );
    let (_, proxy, database) = one_connection("");
    let mut a = with(&proxy, &database, &[("search_path", "pg_temp")]);
    a.rows(make);
    let mut other = Raw::login(proxy.port(), &database);
    set(proxy.port(), "query_wait_timeout = 1");
    let mut out = Vec::new();
    f::put_query(&mut out, b"SELECT a FROM tt");
    other.send(&out);
    let waited = outline(&other.read_until_closed());
    assert!(waited.contains("query_wait_timeout"), "{waited}");
}

#[test]
fn temporary_objects_of_every_kind_keep_the_connection() {
    for (make, drop) in [
        (
            "CREATE OPERATOR pg_temp.=== (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int)",
            "OPERATOR pg_temp.=== (int, int)",
        ),
        ("CREATE COLLATION pg_temp.c FROM \"C\"", "COLLATION pg_temp.c"),
        ("CREATE TEXT SEARCH CONFIGURATION pg_temp.t (COPY = simple)", "TEXT SEARCH CONFIGURATION pg_temp.t"),
        ("CREATE DOMAIN pg_temp.d AS int", "DOMAIN pg_temp.d"),
        ("CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "FUNCTION pg_temp.f()"),
    ] {
        is_pinned("", &[make], |_| {}, &format!("DROP {drop}"));
    }
}

/// Sends `texts` at once, each a Query.
fn send_all(raw: &mut Raw, texts: &[&[u8]]) {
    let mut out = Vec::new();
    texts.iter().for_each(|text| f::put_query(&mut out, text));
    raw.send(&out);
    texts.iter().for_each(|_| drop(raw.read_until_ready()));
}

#[test]
fn nothing_is_hidden_where_a_backslash_is_half_of_a_character() {
    for (encoding, lead) in [("GBK", 0x81), ("SJIS", 0x95), ("BIG5", 0xa5), ("GB18030", 0x81)] {
        let (_, proxy, database) = one_connection("");
        let mut a = with(&proxy, &database, &[("client_encoding", encoding)]);
        let mut other = Raw::login(proxy.port(), &database);
        let text =
            |hidden: &str| [b"SELECT E'", &[lead, b'\\'][..], b"'; ", hidden.as_bytes(), b" --'"].concat();
        let hidden = text("SET work_mem = '3MB'; SET ROLE pg_monitor; SET app.x = '1'");
        send_all(&mut a, &[&hidden]);
        let look = "SELECT current_setting('work_mem') || current_user || coalesce(current_setting('app.x', true), '')";
        assert_eq!(other.value(look).as_deref(), Some("4MBpostgres"), "{encoding}");
        // The one that set it has it.
        assert_eq!(a.value("SHOW work_mem").as_deref(), Some("3MB"), "{encoding}");
        a.rows("RESET ROLE");
        let hidden = text("SELECT pg_advisory_lock(1); LISTEN c; CREATE TEMP TABLE tt AS SELECT 1 AS a");
        send_all(&mut a, &[&hidden]);
        a.terminate();
        let clean = "SELECT (SELECT count(*) FROM pg_listening_channels()) + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                     AND pid = pg_backend_pid()) + (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema())";
        assert_eq!(other.value(clean).as_deref(), Some("0"), "{encoding}");
    }
}

/// Two forms of one character in EUC_JP, and two characters that are one there: as tags they are the same to the server.
#[test]
fn nothing_is_hidden_between_dollar_quotes_whose_tags_the_server_makes_one() {
    let euc_jp = ("", "EUC_JP", [&b"\xad\xb5"[..], b"\x8f\xf3\xfd"]);
    let utf8 = (
        " ENCODING 'EUC_JP' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
        "UTF8",
        ["\u{a6}", "\u{ffe4}"].map(str::as_bytes),
    );
    for (of, encoding, [one, other_form]) in [euc_jp, utf8] {
        let (server, proxy, database) = one_connection("");
        let database = if of.is_empty() {
            database
        } else {
            let own = format!("{database}_eucjp");
            Raw::login(server.port(), &database).rows(&format!("CREATE DATABASE {own}{of}"));
            own
        };
        let mut a = with(&proxy, &database, &[("client_encoding", encoding)]);
        let mut other = Raw::login(proxy.port(), &database);
        let tagged = |tag: &[u8], body: &[u8]| [b"$", tag, b"$", body, b"$", tag, b"$"].concat();
        let hidden = |hidden: &str| {
            let inner =
                [b"$", other_form, b"$; ", hidden.as_bytes(), b"; SELECT $", other_form, b"$"].concat();
            [b"SELECT ".to_vec(), tagged(one, &inner)].concat()
        };
        send_all(&mut a, &[&hidden("SET work_mem = '3MB'; SET ROLE pg_monitor")]);
        let look = "SELECT current_setting('work_mem') || current_user";
        assert_eq!(other.value(look).as_deref(), Some("4MBpostgres"), "{encoding}");
        // The one that set it has it.
        assert_eq!(a.value(look).as_deref(), Some("3MBpg_monitor"), "{encoding}");
        a.rows("RESET ROLE");
        send_all(&mut a, &[&hidden("SELECT pg_advisory_lock(1)")]);
        a.terminate();
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        assert_eq!(other.value(locks).as_deref(), Some("0"), "{encoding}");
    }
}

#[test]
fn nothing_is_hidden_behind_a_setting_of_one_transaction_that_is_not_answered_yet() {
    let trick = |hidden: &str| format!(r"SELECT '\', $$ ', {hidden}, 1 -- $$").into_bytes();
    for local in [
        "SET LOCAL standard_conforming_strings = off",
        "SELECT set_config('standard_conforming_strings', 'off', true)",
    ] {
        let (_, proxy, database) = one_connection("");
        let (mut a, mut other) = two(&proxy, &database);
        let hidden = trick("set_config('statement_timeout', '777', false)");
        send_all(&mut a, &[b"BEGIN", local.as_bytes(), &hidden, b"COMMIT"]);
        assert_eq!(other.value("SHOW statement_timeout").as_deref(), Some("0"), "{local}");
        assert_eq!(a.value("SHOW statement_timeout").as_deref(), Some("777ms"), "{local}");
        send_all(&mut a, &[b"BEGIN", local.as_bytes(), &trick("pg_advisory_lock(1)"), b"COMMIT"]);
        a.terminate();
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        assert_eq!(other.value(locks).as_deref(), Some("0"), "{local}");
    }
}

#[test]
fn a_cursor_with_hold_keeps_the_connection_until_it_is_closed() {
    let moves = |raw: &mut Raw| assert_eq!(raw.rows("FETCH 1 FROM c").len(), 1);
    is_pinned("", &["DECLARE c CURSOR WITH HOLD FOR SELECT generate_series(1, 100)"], moves, "CLOSE c");
    is_pinned(
        "",
        &["BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1 FROM generate_series(1, 100); COMMIT"],
        moves,
        "CLOSE ALL",
    );
}

#[test]
fn sql_prepare_keeps_the_connection_until_it_is_deallocated() {
    let runs = |raw: &mut Raw| assert_eq!(raw.value("EXECUTE p(41)").as_deref(), Some("42"));
    is_pinned("", &["PREPARE p(int) AS SELECT $1 + 1"], runs, "DEALLOCATE p");
    is_pinned("", &["PREPARE p(int) AS SELECT $1 + 1"], runs, "DEALLOCATE ALL");
}

/// Temporary replication slots of the server's process.
const SLOTS: &str =
    "SELECT count(*) FROM pg_replication_slots WHERE temporary AND active_pid = pg_backend_pid()";

#[test]
fn what_only_the_end_of_the_servers_process_ends_keeps_the_connection_until_it_is_closed() {
    let texts = [
        "SELECT pg_create_physical_replication_slot('slot_kept', false, true)",
        "DO $$BEGIN PERFORM pg_create_physical_replication_slot('slot_kept', false, true); END$$",
        "BEGIN; SELECT pg_create_physical_replication_slot('slot_kept', temporary => true); ROLLBACK",
    ];
    for (make, extended) in texts.iter().map(|text| (text, false)).chain([(&texts[0], true)]) {
        let (_, proxy, database) = one_connection("query_wait_timeout = 30");
        let (mut a, mut other) = two(&proxy, &database);
        let pid = backend_pid(&mut a);
        if extended {
            a.extended(make, &[]);
        } else {
            a.rows(make);
        }
        let mut out = Vec::new();
        f::put_query(&mut out, b"SELECT pg_backend_pid()");
        other.send(&out);
        for _ in 0..3 {
            assert_eq!(a.value(SLOTS).as_deref(), Some("1"), "{make}");
            assert_eq!(backend_pid(&mut a), pid, "{make}");
        }
        a.rows("DISCARD ALL");
        assert_eq!(a.value(SLOTS).as_deref(), Some("1"), "PostgreSQL keeps it: {make}");
        a.terminate();
        let messages = other.read_until_ready();
        let row = messages.iter().find(|m| m.tag == b::DATA_ROW).expect("a row").row();
        assert_ne!(row[0].as_deref(), Some(pid.as_str()), "{make}");
        assert_eq!(other.value(SLOTS).as_deref(), Some("0"), "{make}");
    }
}

/// A client of each pool mode makes a connection with dblink, by `text` with `values`; it is gone when the next client comes.
fn dblink_ends_with_its_client(
    server: &Postgres,
    database: &str,
    text: &str,
    values: Option<&[Option<&str>]>,
) {
    let made = format!("FROM pg_stat_activity WHERE application_name = 'of_{database}'");
    for mode in ["transaction", "session"] {
        let general = format!("default_pool_size = 1\npool_mode = \"{mode}\"\nquery_wait_timeout = 30");
        let proxy = Proxy::to(server, &general, "", "");
        let mut a = Raw::login(proxy.port(), database);
        let messages = match values {
            None => a.query(text),
            Some(values) => a.extended(text, values),
        };
        assert_eq!(
            server.psql(database, &format!("SELECT count(*) {made}")).trim(),
            "1",
            "{text}: {}",
            outline(&messages)
        );
        let pid = backend_pid(&mut a);
        a.terminate();
        let mut other = Raw::login(proxy.port(), database);
        assert_ne!(backend_pid(&mut other), pid, "{mode}: {text}");
        server.wait_until(database, &format!("SELECT count(*) = 0 {made}"));
    }
}

#[test]
fn a_connection_of_dblink_is_nobody_elses_however_its_making_is_spelled() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE EXTENSION dblink");
    let (host, port) = (server.socket_dir().display(), server.port());
    let to = format!("host={host} port={port} user=postgres dbname=postgres application_name=of_{database}");
    let arguments = format!("('k', '{to}')");
    let quoted = arguments.replace('\'', "''");
    let texts = [
        format!("SELECT dblink_connect{arguments}"),
        format!("SELECT public . \"dblink_connect\" {arguments}"),
        format!("SELECT /* a */ Public/* ( */.-- b\n DBLINK_connect_u /* /* */ */ {arguments}"),
        format!("SELECT U&\"dblink_connect\"{arguments}"),
        format!("SELECT U&\"dblink\\005fconnect\"{arguments}"),
        format!("SELECT public.u&\"!+000064blink_connect\" UESCAPE '!' {arguments}"),
        format!("SELECT (t).dblink_connect FROM (SELECT '{to}'::text t) x"),
        format!("DO $$BEGIN PERFORM dblink_connect{arguments}; END$$"),
        format!("DO 'BEGIN PERFORM public.dblink_connect{quoted}; END'"),
        format!("COPY (SELECT dblink_connect{arguments}) TO STDOUT"),
        format!("EXPLAIN ANALYZE SELECT dblink_connect{arguments}"),
        format!("PREPARE p AS SELECT dblink_connect{arguments}; EXECUTE p; DEALLOCATE p"),
        format!("SELECT query_to_xml('SELECT dblink_connect{quoted}', true, true, '')"),
        format!("BEGIN; SELECT dblink_connect{arguments}; ROLLBACK"),
    ];
    for text in &texts {
        dblink_ends_with_its_client(server, &database, text, None);
    }
    for text in ["SELECT dblink_connect($1, $2)", "SELECT U&\"dblink\\005fconnect\"($1, $2)"] {
        dblink_ends_with_its_client(server, &database, text, Some(&[Some("k"), Some(&to)]));
    }
}

#[test]
fn a_connection_of_dblink_in_a_text_that_is_a_parameter_is_nobody_elses() {
    let server = Postgres::shared();
    let (_, proxy, database) = one_connection("");
    server.psql(&database, "CREATE EXTENSION dblink");
    let mut a = Raw::login(proxy.port(), &database);
    let (host, port) = (server.socket_dir().display(), server.port());
    let run = format!("SELECT dblink_connect('k', 'host={host} port={port} user=postgres dbname=postgres')");
    a.extended("SELECT query_to_xml($1, true, true, '')", &[Some(&run)]);
    assert_eq!(a.value("SELECT dblink_get_connections()").as_deref(), Some("{k}"));
    a.terminate();
    let mut other = Raw::login(proxy.port(), &database);
    assert_eq!(other.value("SELECT dblink_get_connections()"), None);
}

#[test]
fn what_only_the_end_of_the_servers_process_ends_is_gone_with_a_client_of_session_mode() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "default_pool_size = 1\npool_mode = \"session\"\nquery_wait_timeout = 30";
    let proxy = Proxy::to(server, general, "", "");
    for extended in [false, true] {
        let mut a = Raw::login(proxy.port(), &database);
        let make = "SELECT pg_create_physical_replication_slot('slot_session', false, true)";
        if extended {
            a.extended(make, &[]);
        } else {
            a.rows(make);
        }
        assert_eq!(a.value(SLOTS).as_deref(), Some("1"));
        let pid = backend_pid(&mut a);
        a.terminate();
        let mut other = Raw::login(proxy.port(), &database);
        assert_eq!(other.value(SLOTS).as_deref(), Some("0"));
        assert_ne!(backend_pid(&mut other), pid);
        other.terminate();
    }
}

#[test]
fn a_second_connection_serves_others_while_one_is_pinned() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 2", "", "");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("CREATE TEMP TABLE tt AS SELECT 1 AS a");
    let pid = backend_pid(&mut a);
    for _ in 0..5 {
        assert_ne!(backend_pid(&mut other), pid);
        assert_eq!(a.value("SELECT a FROM tt").as_deref(), Some("1"));
    }
}

#[test]
fn a_notification_reaches_a_pinned_client_while_it_is_idle() {
    let (server, proxy, database) = one_connection("");
    let mut a = Raw::login(proxy.port(), &database);
    a.rows("LISTEN news");
    let pid = backend_pid(&mut a);
    for n in 0..20 {
        server.psql(&database, &format!("NOTIFY news, 'n{n}'"));
        if n % 2 == 0 {
            // Something that makes the session be looked at, while the notification comes.
            a.rows("SELECT set_config('app.n', '1', false)");
        }
    }
    // Those that came with the answers above were read there: ask for the last one.
    server.psql(&database, "NOTIFY news, 'last'");
    let last = loop {
        let message = a.read();
        if message.tag == b::NOTIFICATION_RESPONSE && message.outline().contains("last") {
            break message;
        }
    };
    assert!(last.outline().contains("news"));
    assert_eq!(backend_pid(&mut a), pid);
}

#[test]
fn large_settings_are_carried_up_to_a_bound_that_is_named() {
    let (_, proxy, database) = one_connection("");
    let (mut a, mut other) = two(&proxy, &database);
    let set = |bytes: usize| format!("SELECT length(set_config('app.large', repeat('x', {bytes}), false))");
    assert_eq!(a.value(&set(900_000)).as_deref(), Some("900000"));
    assert_eq!(other.value("SELECT current_setting('app.large', true)").unwrap_or_default(), "");
    assert_eq!(a.value("SELECT length(current_setting('app.large'))").as_deref(), Some("900000"));
    // Its answer comes first, what is wrong with it then.
    assert_eq!(a.value(&set(SETTINGS_BYTES_MAX)).as_deref(), Some("1048576"));
    let told = a.read();
    assert_eq!(
        (told.sqlstate().as_str(), told.field(b'S').as_str()),
        ("54000", "FATAL"),
        "{}",
        told.outline()
    );
    assert_eq!(other.value("SELECT 1").as_deref(), Some("1"));
}

#[test]
fn reject_refuses_state_that_cannot_be_carried_and_the_session_goes_on() {
    let (_, proxy, database) = one_connection("session_state = \"reject\"");
    let (mut a, mut other) = two(&proxy, &database);
    for sql in [
        "LISTEN c",
        "SELECT pg_advisory_lock(1)",
        "CREATE TEMP TABLE tt (a int)",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "PREPARE p AS SELECT 1",
        "SELECT dblink_connect('a', '')",
    ] {
        assert_eq!(a.error(sql).sqlstate(), "0A000", "{sql}");
        let messages = a.extended(sql, &[]);
        assert!(outline(&messages).contains("\"0A000\""), "{sql}: {}", outline(&messages));
        assert_eq!(other.value("SELECT 1").as_deref(), Some("1"));
    }
    a.rows("BEGIN");
    assert_eq!(a.error("LISTEN c").sqlstate(), "0A000");
    assert_eq!(a.error("SELECT 1").sqlstate(), "25P02", "the block has failed");
    a.rows("ROLLBACK");
    a.rows("SET work_mem = '3MB'");
    assert_eq!(a.value("SHOW work_mem").as_deref(), Some("3MB"));
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
}

#[test]
fn reject_gives_nobody_a_connection_with_state_made_where_no_text_shows_it() {
    let (server, proxy, database) = one_connection("session_state = \"reject\"");
    server.psql(&database, "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_lock(7)'");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SELECT f()");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(other.value(held).as_deref(), Some("0"));
}

#[test]
fn allow_lets_state_through_as_pgbouncer_does() {
    let (_, proxy, database) = one_connection("session_state = \"allow\"");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("CREATE TEMP TABLE tt AS SELECT 1 AS a");
    assert_eq!(other.value("SELECT a FROM tt").as_deref(), Some("1"));
    a.rows("SET work_mem = '3MB'");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"), "settings are carried all the same");
}

#[test]
fn a_pinned_client_that_leaves_leaves_a_clean_connection_without_a_reset_query() {
    let (server, proxy, database) = one_connection("server_reset_query = \"\"");
    let (mut a, mut other) = two(&proxy, &database);
    a.rows("SELECT pg_advisory_lock(9)");
    a.rows("SET work_mem = '3MB'");
    drop(a);
    let locks = "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid
        WHERE locktype = 'advisory' AND objid = 9 AND datname = current_database()";
    let free = poll(PATIENCE, || (server.psql(&database, locks).trim() == "0").then_some(()));
    assert!(free.is_some(), "the lock is still held");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
}

/// A table, a function that writes into it, and statements that a client prepares for it.
const HIDDEN: &str = "CREATE TABLE t (v text); CREATE FUNCTION put() RETURNS text LANGUAGE plpgsql AS $$\
     BEGIN INSERT INTO t VALUES ('f'); RETURN (SELECT string_agg(v, ' ') FROM t); END$$";

const MAKE: &str = "CREATE TEMP TABLE t (v text)";

/// What a client sends that hides the table behind a temporary one.
fn hiding() -> Vec<Vec<Step>> {
    let text = Step::query;
    let uses = || vec![Step::execute("s", &[]), Step::execute("r", &[]), text("SELECT put()")];
    let then = |steps: Vec<Step>| [steps, uses(), uses()].concat();
    let block = |begin: &str, steps: Vec<Step>| {
        [vec![text(begin)], steps, uses(), uses(), vec![text("COMMIT"), text("SELECT put()")]].concat()
    };
    let together = |steps: Vec<Step>| {
        let ready = steps.iter().map(|step| step.ready).sum();
        vec![Step { bytes: steps.into_iter().flat_map(|step| step.bytes).collect(), ready }]
    };
    let in_one_unit = || {
        let mut bytes = Vec::new();
        f::put_parse(&mut bytes, b"", MAKE.as_bytes(), &[]);
        for statement in ["", "s", "r"] {
            f::put_bind_text(&mut bytes, statement.as_bytes(), &[]);
            f::put_execute(&mut bytes, b"", 0);
        }
        f::put_empty(&mut bytes, f::SYNC);
        Step { bytes, ready: 1 }
    };
    vec![
        then(vec![text(MAKE)]),
        then(vec![Step::extended(MAKE, &[])]),
        then(vec![Step::prepare("c", MAKE), Step::execute("c", &[])]),
        then(vec![in_one_unit()]),
        then(vec![text(&format!("{MAKE}; SELECT put()"))]),
        then(vec![text("SELECT 'x'::text AS v INTO TEMP t")]),
        then(vec![text("DO $$BEGIN CREATE TEMP TABLE t (v text); END$$")]),
        then(vec![text("BEGIN"), text("SELECT 1 / 0"), text(MAKE), text("ROLLBACK"), text(MAKE)]),
        then(vec![text("BEGIN"), text(MAKE), text("ROLLBACK"), text(MAKE)]),
        then(vec![text("CREATE TEMP TABLE other (v text)"), text(MAKE)]),
        [then(vec![text("CREATE TEMP TABLE other (v text)")]), then(vec![text(MAKE)])].concat(),
        block("BEGIN", vec![text(MAKE)]),
        block("BEGIN ISOLATION LEVEL SERIALIZABLE", vec![Step::extended(MAKE, &[])]),
        block("BEGIN", vec![text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"), text(MAKE)]),
        block("BEGIN", vec![in_one_unit()]),
        block("BEGIN", vec![text("CREATE TEMP TABLE t (v text) ON COMMIT DROP")]),
        together(then(vec![text("BEGIN"), text(MAKE), text("COMMIT")])),
        together(block("BEGIN", vec![Step::extended(MAKE, &[])])),
        together(then(vec![Step::extended(MAKE, &[])])),
    ]
}

/// Directly a session's first temporary table changes its search path, and what it has prepared means that table from there on. Here another
/// client may have had temporary tables on the connection before.
#[test]
fn a_temporary_table_hides_another_one_on_a_connection_that_had_some_before() {
    let setup = || {
        let mut steps = vec![
            Step::prepare("s", "INSERT INTO t VALUES ('s')"),
            Step::prepare("r", "SELECT string_agg(v, ' ') FROM t"),
        ];
        steps.extend([Step::execute("s", &[]), Step::execute("r", &[]), Step::query("SELECT put()")]);
        steps
    };
    let answers = |mut raw: Raw, steps: &[Step]| {
        let mut answers = String::new();
        for Step { bytes, ready } in steps {
            raw.send(bytes);
            for _ in 0..*ready {
                answers += &comparable(&raw.read_until_ready());
            }
        }
        answers
    };
    let server = Postgres::shared();
    // A connection with a temporary schema does not outlive a look at the table.
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "[coalesce]\nmode = \"off\"");
    for (case, steps) in hiding().into_iter().enumerate() {
        let steps = [setup(), steps].concat();
        let [direct, pooled] = [(); 2].map(|()| server.fresh_database(HIDDEN));
        let mut before = Raw::login(proxy.port(), &pooled);
        before.rows("CREATE TEMP TABLE other (i int)");
        before.rows("DROP TABLE other");
        let pid = backend_pid(&mut before);
        let mut client = Raw::login(proxy.port(), &pooled);
        assert_eq!(backend_pid(&mut client), pid);
        let expected = answers(Raw::login(server.port(), &direct), &steps);
        assert_eq!(answers(client, &steps), expected, "case {case}");
        let rows = "SELECT string_agg(v, ' ') FROM t";
        assert_eq!(server.psql(&pooled, rows), server.psql(&direct, rows), "case {case}");
    }
}

/// One that another client had temporary objects on.
fn one_connection_with_a_past() -> (&'static Postgres, Proxy, String) {
    let (server, proxy, database) = one_connection("");
    let mut before = Raw::login(proxy.port(), &database);
    before.rows("CREATE TEMP TABLE other (i int)");
    before.terminate();
    (server, proxy, database)
}

#[test]
fn a_query_that_makes_a_temporary_object_may_speak_of_names_as_well() {
    for text in [
        "CREATE TEMP TABLE z AS EXECUTE a",
        "PREPARE p AS SELECT 1; CREATE TEMP TABLE z (i int)",
        "CREATE TEMP TABLE z (i int); DEALLOCATE a",
        "CREATE TEMP VIEW z AS SELECT 1 AS i; EXECUTE a",
        "EXECUTE a; CREATE TEMP TABLE z (i int)",
        "SET LOCAL search_path = pg_temp; CREATE TABLE z AS EXECUTE a",
    ] {
        let (server, proxy, database) = one_connection_with_a_past();
        let answers = |port| {
            let mut raw = Raw::login(port, &database);
            raw.send(&Step::prepare("a", "SELECT 8").bytes);
            let prepared = comparable(&raw.read_until_ready());
            prepared + &comparable(&raw.query(text)) + &comparable(&raw.query("SELECT i FROM z"))
        };
        assert_eq!(answers(proxy.port()), answers(server.port()), "{text}");
    }
}

/// On a connection that had temporary objects before, the server is told to plan anew by a portal of ours.
#[test]
fn a_temporary_object_may_be_made_beside_a_cursor_of_any_name() {
    let (server, proxy, database) = one_connection_with_a_past();
    let answers = |port| {
        let mut raw = Raw::login(port, &database);
        let block = ["BEGIN", "DECLARE pgsluice_plans CURSOR FOR SELECT 8"];
        let begun: String = block.iter().map(|text| comparable(&raw.query(text))).collect();
        let made = comparable(&raw.extended("CREATE TEMP TABLE z (i int)", &[]));
        begun + &made + &comparable(&raw.query("FETCH pgsluice_plans"))
    };
    assert_eq!(answers(proxy.port()), answers(server.port()));
}

/// Which names a text shows is no other user's and no other database's matter: those there may have no such character.
#[test]
fn names_of_settings_that_others_speak_of_do_no_harm() {
    let server = Postgres::shared();
    let _ = server.try_psql("postgres", "CREATE ROLE names_plain LOGIN");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let latin = server.fresh_database("");
    server.psql("postgres", &format!("DROP DATABASE {latin}"));
    server.psql(
        "postgres",
        &format!("CREATE DATABASE {latin} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"),
    );
    let other = server.fresh_database("");
    let login = |user, database: &str| {
        Raw::login_as(proxy.port(), &[("user", user), ("database", database)], "")
            .unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    for database in [&other, &latin] {
        login("postgres", database).query("SELECT 'set a.\u{6f22}' FROM set_config('b.x', 'y', false)");
    }
    for (user, database) in [("names_plain", &latin), ("postgres", &latin), ("names_plain", &other)] {
        let mut raw = login(user, database);
        raw.rows("SET work_mem = '6MB'");
        assert_eq!(raw.value("SHOW work_mem").as_deref(), Some("6MB"), "{user}");
        raw.rows("SELECT set_config('c.d', 'e', false)");
        assert_eq!(raw.value("SHOW c.d").as_deref(), Some("e"), "{user}");
    }
}

/// Of one encoding that a database may have PostgreSQL has no conversion into UTF-8.
#[test]
fn settings_are_kept_where_there_is_no_conversion_to_utf8() {
    let (server, proxy, database) = one_connection("");
    server.psql("postgres", &format!("DROP DATABASE {database}"));
    let own = format!("CREATE DATABASE {database} ENCODING 'MULE_INTERNAL' LOCALE 'C' TEMPLATE template0");
    server.psql("postgres", &own);
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("SELECT set_config('app.tenant', 'one', false)");
    Raw::login(proxy.port(), &database).rows("SELECT 1");
    assert_eq!(raw.value("SHOW app.tenant").as_deref(), Some("one"));
}

/// Whoever sets nothing has what the role's default is, whatever another client of the server connection made of it.
#[test]
fn what_a_role_has_by_default_is_not_taken_from_the_next_client() {
    let (server, proxy, database) = one_connection("");
    for sql in [
        "CREATE ROLE by_default_group",
        "CREATE ROLE by_default LOGIN IN ROLE by_default_group",
        "ALTER ROLE by_default SET role = 'by_default_group'",
        "ALTER ROLE by_default SET app.env = 'prod'",
    ] {
        let _ = server.try_psql("postgres", sql);
    }
    let login = || {
        Raw::login_as(proxy.port(), &[("user", "by_default"), ("database", &database)], "")
            .unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    const LOOK: &str = "SELECT current_user || ' ' || current_setting('app.env')";
    let (mut one, mut other) = (login(), login());
    for (set, mine) in [
        ("SET ROLE NONE", "by_default prod"),
        ("SET app.env = ''", "by_default "),
        ("SELECT set_config('role', 'by_default_group', false)", "by_default_group "),
        ("RESET app.env", "by_default_group prod"),
        ("SET app.env = 'test'", "by_default_group test"),
        ("RESET ROLE", "by_default_group test"),
        ("DISCARD ALL", "by_default_group prod"),
    ] {
        one.rows(set);
        assert_eq!(one.value(LOOK).as_deref(), Some(mine), "{set}");
        assert_eq!(other.value(LOOK).as_deref(), Some("by_default_group prod"), "{set}");
        assert_eq!(one.value(LOOK).as_deref(), Some(mine), "{set}");
    }
}

/// PostgreSQL cuts an identifier to 63 bytes, and what is of the type `name`.
#[test]
fn a_setting_whose_name_is_cut_is_nobody_elses() {
    let (_, proxy, database) = one_connection("");
    let (long, cut) = ("a".repeat(80), "a".repeat(63));
    for (set, name) in [
        (format!("SET my.{long} = 'mine'"), format!("my.{cut}")),
        (format!("SELECT set_config('my.{long}'::name, 'mine', false)"), format!("my.{}", &cut[3..])),
        (format!("SELECT set_config('my.{long}', 'mine', false)"), format!("my.{long}")),
    ] {
        let look = format!("SELECT current_setting('{name}', true)");
        let [mut one, mut other] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
        one.rows(&set);
        assert_eq!(one.value(&look).as_deref(), Some("mine"), "{set}");
        assert_ne!(other.value(&look).as_deref(), Some("mine"), "{set}");
        assert_eq!(one.value(&look).as_deref(), Some("mine"), "{set}");
    }
}

/// Directly such a cancel comes too late for anything.
#[test]
fn an_administrators_cancel_that_strikes_the_probe_ends_nobody() {
    const CANCELS: usize = 10;
    let (server, proxy, database) = one_connection("");
    let mut client = Raw::login(proxy.port(), &database);
    client.query("CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'");
    let calls = AtomicUsize::new(0);
    let sent = std::thread::scope(|scope| {
        let canceller = scope.spawn(|| {
            let mut administrator = Raw::login(server.port(), &database);
            let (mut sent, mut last) = (0, 0);
            poll(PATIENCE, || {
                let call = calls.load(Ordering::Acquire);
                // One for each call, at most.
                if call != last {
                    let cancelled = administrator.value(
                        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                         AND datname = current_database() AND state = 'active' AND query LIKE '%pg_settings s%'",
                    );
                    if cancelled.as_deref() != Some("0") {
                        (sent, last) = (sent + 1, call);
                    }
                }
                (sent == CANCELS).then_some(())
            });
            sent
        });
        while !canceller.is_finished() {
            calls.fetch_add(1, Ordering::AcqRel);
            assert_eq!(client.value("SELECT f()").as_deref(), Some("1"));
        }
        canceller.join().expect("the canceller")
    });
    assert_eq!(sent, CANCELS, "too few cancels met a probe");
}
