//! Good files, bad files with what is said of them, and files of noise.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use crate::config::*;
use crate::settings::*;

mod auth_files;
mod manual;

const VERIFIER: &str = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$\
    MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=:MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=";

/// A directory with these files.
fn files(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        if name.ends_with(".key") {
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its owner's");
        }
    }
    dir
}

fn read_in(dir: &TempDir, name: &str) -> Result<Loaded, Vec<Problem>> {
    read(&dir.path().join(name))
}

fn loaded(name: &str, text: &str) -> Loaded {
    let users = format!("\"app\" \"{VERIFIER}\"\n");
    let dir = files(&[(name, text), ("userlist.txt", &users)]);
    read_in(&dir, name).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"))
}

fn toml(text: &str) -> Settings {
    loaded("a.toml", text).settings
}

/// The problems of a file that must be refused.
fn refused(name: &str, text: &str, others: &[(&str, &str)]) -> Vec<Problem> {
    let mut all = vec![(name, text), ("userlist.txt", "\"app\" \"secret\"\n")];
    all.extend_from_slice(others);
    let dir = files(&all);
    match read_in(&dir, name) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(problems) => problems,
    }
}

/// There is exactly one problem: in this file, line, key, saying this.
fn assert_one(problems: &[Problem], (file, line, key, says): (&str, Option<usize>, &str, &str)) {
    let [problem] = problems else { panic!("expected one problem with {key}, found {problems:#?}") };
    assert_eq!(problem.file.file_name().and_then(|name| name.to_str()), Some(file), "{problem}");
    assert_eq!(problem.line, line, "{problem}");
    assert_eq!(problem.key, key, "{problem}");
    assert!(problem.message.contains(says), "{problem}\ndoes not say: {says}");
}

const BASE: &str = "[general]\nauth_type = \"trust\"\n";
const DATABASE: &str = "[databases.app]\nhost = \"127.0.0.1\"\n";

#[test]
fn the_designs_example_loads() {
    let settings = toml(
        r#"
[general]
listen_addr = "127.0.0.1"
listen_port = 6432
auth_type = "scram-sha-256"          # trust, plain, md5, scram-sha-256, cert, hba
auth_file = "userlist.txt"           # PgBouncer's format
admin_users = ["ops"]
pool_mode = "transaction"
default_pool_size = 20
max_client_conn = 10000

[databases.app]                      # "*" is the fallback
host = "127.0.0.1"
port = 5432
dbname = "app"

[policy]                             # also [databases.NAME.policy] and [users.NAME.policy]; the strictest wins
simple_query = "allow"               # allow | single | control | deny
function_call = "deny"
enforce = "reject"                   # reject | report

[coalesce]                           # also [databases.NAME.coalesce], and per table
mode = "on"                          # on | shadow | off
"#,
    );
    assert_eq!(settings.general.listen_addr, ["127.0.0.1"]);
    assert_eq!(settings.general.admin_users, ["ops"]);
    assert_eq!(settings.databases["app"].dbname.as_deref(), Some("app"));
    assert_eq!(settings.policy.function_call, Some(Switch::Deny));
    assert_eq!(settings.policy.enforce, Some(Enforce::Reject));
    assert_eq!(settings.userlist["app"], Secret::Scram(VERIFIER.into()));
}

#[test]
fn every_form_of_a_value_is_understood() {
    let settings = toml(
        r#"
[general]
auth_type = "any"
listen_addr = ["127.0.0.1", "::1"]
unix_socket_mode = 0o770
admin_users = "ops, root"
query_wait_timeout = 1.5
server_idle_timeout = "5min"
client_idle_timeout = "10s"
transaction_timeout = 7
server_round_robin = 1
log_connections = false
max_packet_size = "64MB"
prepared_statement_bytes_max = 1_048_576
server_check_query = "<empty>"
disable_pqexec = true
[databases."*"]
host = "a.example,b.example"
pool_mode = "session"
user = "u"
password = "s3cret"
[databases.app]
host = "/run"
policy.simple_query = "single"
[users.app]
query_timeout = "250ms"
[users.app.policy]
enforce = "report"
"#,
    );
    let general = &settings.general;
    assert_eq!(general.auth_type, AuthType::Trust);
    assert_eq!(general.listen_addr, ["127.0.0.1", "::1"]);
    assert_eq!(general.unix_socket_mode, 0o770);
    assert_eq!(general.admin_users, ["ops", "root"]);
    assert_eq!(general.query_wait_timeout, Duration::from_millis(1500));
    assert_eq!(general.server_idle_timeout, Duration::from_secs(300));
    assert_eq!(general.client_idle_timeout, Duration::from_secs(10));
    assert_eq!(general.transaction_timeout, Duration::from_secs(7));
    assert!(general.server_round_robin);
    assert!(!general.log_connections);
    assert_eq!(general.max_packet_size, 64 << 20);
    assert_eq!(general.prepared_statement_bytes_max, 1 << 20);
    assert_eq!(general.server_check_query, "");
    assert_eq!(settings.policy.simple_query, Some(SimpleQuery::Deny));
    let fallback = settings.database("anything").expect("a fallback");
    assert_eq!(fallback.host, ["a.example", "b.example"]);
    assert_eq!(fallback.pool_mode, Some(PoolMode::Session));
    assert_eq!(fallback.password, Some(Secret::Plain("s3cret".into())));
    assert_eq!(settings.databases["app"].policy.simple_query, Some(SimpleQuery::Single));
    assert_eq!(settings.users["app"].query_timeout, Some(Duration::from_millis(250)));
    assert_eq!(settings.users["app"].policy.enforce, Some(Enforce::Report));
}

#[test]
fn coalescing_is_merged_by_database_and_table() {
    let settings = toml(
        r#"
[general]
auth_type = "trust"
[coalesce]
max_rows = 500
[coalesce.tables."public.audit"]
mode = "off"
[databases.app]
host = "127.0.0.1"
[databases.app.coalesce]
mode = "shadow"
flush_timeout = "300ms"
[databases.app.coalesce.tables."public.audit"]
deferred = true
[databases.app.coalesce.tables."public.events"]
mode = "on"
[databases.other]
host = "127.0.0.1"
[users.app.coalesce]
deferred = true
[users.ledger.coalesce]
deferred = false
"#,
    );
    let app = &settings.databases["app"].coalesce;
    assert_eq!((app.mode, app.max_rows), (CoalesceMode::Shadow, 500));
    assert_eq!(app.flush_timeout, Duration::from_millis(300));
    let audit = CoalesceTable { mode: Some(CoalesceMode::Off), deferred: Some(true) };
    assert_eq!(app.tables["public.audit"], audit);
    assert_eq!(app.tables["public.events"].mode, Some(CoalesceMode::On));
    assert_eq!(settings.databases["other"].coalesce, settings.coalesce);
    // What a user says is laid over what a database does.
    assert!(!app.deferred && !app.defers(), "what is off defers nothing");
    let with = |deferred| app.for_user(&UserCoalesce { deferred });
    assert_eq!(with(None), *app);
    let eager = with(Some(true));
    assert_eq!((eager.deferred, &eager.tables, eager.max_rows), (true, &app.tables, 500));
    assert!(eager.defers(), "public.events is on");
    let patient = with(Some(false));
    assert!(!patient.defers() && patient.tables["public.audit"].mode == Some(CoalesceMode::Off));
    let mut events = app.clone();
    events.tables.get_mut("public.events").expect("the table").deferred = Some(true);
    assert!(events.defers());
    assert!(!events.for_user(&UserCoalesce { deferred: Some(false) }).defers());
    let users = ["app", "ledger"].map(|user| settings.users[user].coalesce.deferred);
    assert_eq!(users, [Some(true), Some(false)]);
}

#[test]
fn each_mistake_in_toml_is_named_with_its_remedy() {
    // What stands in [general], and which line and key it is a problem of. Lines count from [general].
    let general: &[(&str, &str, &str)] = &[
        ("listen_port = 70000", "listen_port", "found 70000; expected a whole number from 1 to 65535"),
        ("listen_port = \"x\"", "listen_port", "found \"x\"; expected a whole number"),
        ("server_check_query = 5", "server_check_query", "found 5; expected an SQL statement"),
        ("auth_user = 5", "auth_user", "found 5; expected a text"),
        ("auth_dbname = true", "auth_dbname", "found true; expected a text"),
        ("pidfile = 5", "pidfile", "found 5; expected a path"),
        ("pidfile = \"nowhere/pid\"", "pidfile", "does not exist; create it or name another"),
        ("audit_file = \"nowhere/audit\"", "audit_file", "does not exist; create it or name another"),
        ("hosts_file = \"nowhere\"", "hosts_file", "does not exist; create it or name another"),
        ("hosts_file = \"/dev/null\"", "hosts_file", "is not a regular file"),
        ("http_addr = 9127", "http_addr", "found 9127; expected an address and a port"),
        (
            "http_addr = \"9127\"",
            "http_addr",
            "\"[::1]:9127\"; write \"0.0.0.0:9127\" or \"[::]:9127\" for all",
        ),
        ("http_addr = \"*:9127\"", "http_addr", "; write \"0.0.0.0:9127\" or \"[::]:9127\" for all"),
        ("http_addr = \"127.0.0.1:70000\"", "http_addr", "; a port is at most 65535"),
        ("http_addr = \"127.0.0.1\"", "http_addr", "; the port is missing"),
        ("http_addr = \"::1\"", "http_addr", "; the port is missing"),
        ("http_addr = \"localhost:9127\"", "http_addr", "; names are not looked up here"),
        ("http_addr = \"http://127.0.0.1:9127\"", "http_addr", "; no URL stands here"),
        (
            "http_addr = \"127.0.0.1:6432\"",
            "http_addr",
            "clients come in at 127.0.0.1:6432 (listen_addr, listen_port)",
        ),
        ("http_addr = \"0.0.0.0:6432\"", "http_addr", "choose another port"),
        ("http_addr = \"[::]:6432\"", "http_addr", "choose another port"),
        ("prometheus_port = 9127", "prometheus_port", "did you mean http_addr?"),
        ("pool_mode = 1", "pool_mode", "found 1; expected one of session"),
        ("log_level = 1", "log_level", "found 1; expected one of"),
        ("auth_ldap_options = 5", "auth_ldap_options", "cannot be used; expected a directory's options"),
        (
            "auth_ldap_options = \"ldapbindpasswd=secret\\u0000\"",
            "auth_ldap_options",
            "cannot be used; expected",
        ),
        ("listen_prt = 6432", "listen_prt", "did you mean listen_port?"),
        ("LISTEN-PORT = 6432", "LISTEN-PORT", "did you mean listen_port?"),
        ("listen_port = 6432.0", "listen_port", "found 6432.0; expected a whole number"),
        (
            "pool_size = 5",
            "pool_size",
            "did you mean default_pool_size? pool_size itself belongs in [databases.NAME]",
        ),
        ("port = 6432", "port", "did you mean listen_port? port itself belongs in [databases.NAME]"),
        ("dbname = \"app\"", "dbname", "it belongs in [databases.NAME]"),
        ("max_connections = 5", "max_connections", "did you mean max_client_conn?"),
        ("connection_timeout = 5", "connection_timeout", "did you mean server_connect_timeout?"),
        ("login_timeout = 5", "login_timeout", "did you mean client_login_timeout?"),
        (
            "idle_timeout = 5",
            "idle_timeout",
            "did you mean server_idle_timeout or client_idle_timeout or idle_transaction_timeout?",
        ),
        ("client_tls_cert = \"a\"", "client_tls_cert", "did you mean client_tls_cert_file?"),
        ("policy = 1", "policy", "is a section of its own, not a part of [general]; write [policy]"),
        ("listen_addr = \"127.0.0.1:6432\"", "listen_addr", "or *; the port stands in listen_port"),
        (
            "proxy_protocol_from = [\"10.0.0.0/8\", \"lb\"]",
            "proxy_protocol_from",
            "found [\"10.0.0.0/8\", \"lb\"]; expected",
        ),
        ("zzzzzzzzzzzz = 1", "zzzzzzzzzzzz", "docs/config.md lists the keys of [general]"),
        ("dns_nxdomain_ttl = 5", "dns_nxdomain_ttl", "is PgBouncer's and has no effect here"),
        ("pool_mode = \"trasaction\"", "pool_mode", "expected one of session, transaction, statement"),
        ("default_pool_size = -1", "default_pool_size", "expected a whole number from 0 to 1000000"),
        ("max_client_conn = 0", "max_client_conn", "expected a whole number from 1 to"),
        ("listen_port = \"06432\"", "listen_port", "expected a whole number from 1 to"),
        ("query_timeout = \"5 parsecs\"", "query_timeout", "seconds, or a text such as"),
        ("query_timeout = -1", "query_timeout", "a time from 0s"),
        ("query_timeout = nan", "query_timeout", "a time from 0s"),
        ("query_timeout = 1e300", "query_timeout", "a time from 0s"),
        ("max_packet_size = \"2GB\"", "max_packet_size", "a size from"),
        ("unix_socket_mode = 770", "unix_socket_mode", "octal"),
        ("server_round_robin = 2", "server_round_robin", "true or false"),
        ("admin_users = [1]", "admin_users", "array of texts"),
        ("log_level = \"loud\"", "log_level", "error, warn, info, debug, trace"),
        ("listen_addr = \"127.0.0.300\"", "listen_addr", "write an address, a host name, or *"),
        ("listen_addr = \"\"", "listen_addr", "set listen_addr, or unix_socket_dir"),
        ("unix_socket_group = \"no such group\"", "unix_socket_group", "create it or name another"),
        ("unix_socket_dir = \"@here\"", "unix_socket_dir", "sockets without a file (@) are not offered"),
        ("unix_socket_dir = \"nowhere\"", "unix_socket_dir", "create it or name another"),
        ("min_pool_size = 30", "min_pool_size", "lower min_pool_size or raise default_pool_size"),
        ("auth_file = \"missing.txt\"", "auth_file", "check the path and its permissions"),
        ("auth_hba_file = \"missing\"", "auth_hba_file", "check the path and its permissions"),
        ("server_tls_ca_file = \"missing.pem\"", "server_tls_ca_file", "check the path"),
        ("server_tls_key_file = \"userlist.txt\"", "server_tls_cert_file", "set both or neither"),
        ("disable_pqexec = \"maybe\"", "disable_pqexec", "true or false"),
        ("client_tls_protocols = \"tlsv1.1\"", "client_tls_protocols", "TLS 1.0 and 1.1 cannot be spoken"),
        (
            "server_tls_protocols = \"all,!tlsv1\"",
            "server_tls_protocols",
            "expected tlsv1.2, tlsv1.3, or both",
        ),
        ("client_tls_ciphers = \"HIGH:!ECDHE\"", "client_tls_ciphers", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("client_tls_ciphers = \"HIGH:!WHAT\"", "client_tls_ciphers", "ECDHE-RSA-AES256-GCM-SHA384"),
        (
            "client_tls_ciphers = \"HIGH:!ECDHE-RSA-AES126-GCM-SHA256\"",
            "client_tls_ciphers",
            "ECDHE-RSA-AES256-GCM-SHA384",
        ),
        (
            "server_tls_ciphers = \"HIGH:-ecdhe-aes128-gcm-sha256\"",
            "server_tls_ciphers",
            "ECDHE-RSA-AES256-GCM-SHA384",
        ),
        ("client_tls_ciphers = \"MEDIUM:+3DES\"", "client_tls_ciphers", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("client_tls_ciphers = \"!aNULL:!MD5\"", "client_tls_ciphers", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("client_tls_ciphers = \"DHE-RSA-AES256-SHA\"", "client_tls_ciphers", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("client_tls_ciphers = \"TLS_AES_256_GCM_SHA384\"", "client_tls_ciphers", "ECDHE-RSA-AES256"),
        ("server_tls13_ciphers = \"AES\"", "server_tls13_ciphers", "TLS_CHACHA20_POLY1305_SHA256"),
    ];
    for (line, key, says) in general {
        let text = format!("[general]\nauth_type = \"trust\"\n{line}\n{DATABASE}");
        let problems = refused("a.toml", &text, &[]);
        // What is missing has no line of its own.
        let line = (*says != "set both or neither").then_some(3);
        assert_one(&problems, ("a.toml", line, key, says));
    }
    let types: &[(&str, &str, &str)] = &[
        ("auth_type = \"scram-sha-256\"", "auth_type", "set auth_file to a userlist"),
        ("auth_type = \"md5\"", "auth_type", "set auth_file to a userlist"),
        (
            "auth_type = \"cert\"",
            "auth_type",
            "set client_tls_sslmode to allow or more, and client_tls_ca_file",
        ),
        ("auth_type = \"hba\"", "auth_type", "set auth_hba_file"),
        ("auth_type = \"pam\"", "auth_type", "expected one of trust"),
    ];
    for (line, key, says) in types {
        let problems = refused("a.toml", &format!("[general]\n{line}\n{DATABASE}"), &[]);
        // An unknown word leaves the default, which has no line.
        let one: Vec<Problem> = problems.into_iter().filter(|problem| problem.line.is_some()).collect();
        assert_one(&one, ("a.toml", Some(2), key, says));
    }
    let sections: &[(&str, usize, &str, &str)] = &[
        ("[databases.app]\nport = 1\n", 3, "databases.app.host", "set host to where the server is"),
        ("[databases.app]\nhost = 5\n", 4, "databases.app.host", "found 5; expected"),
        (
            "[databases.app]\nhost = \"a\"\nconnect_query = 5\n",
            5,
            "databases.app.connect_query",
            "found 5; expected an SQL",
        ),
        (
            "[databases.app]\nhost = \"a\"\ndbname = 5\n",
            5,
            "databases.app.dbname",
            "found 5; expected a text",
        ),
        (
            "[databases.app]\nhost = \"a\"\npassword = 5\n",
            5,
            "databases.app.password",
            "cannot be used; expected a password in clear (a text)",
        ),
        ("[databases.app]\nhost = \"a b\"\n", 4, "databases.app.host", "write an address, a host name"),
        ("[databases.pgbouncer]\nhost = \"a\"\n", 3, "databases.pgbouncer", "choose another"),
        ("[databases.app]\nhost = \"a\"\nport = 0\n", 5, "databases.app.port", "from 1 to 65535"),
        (
            "[databases.app]\nhost = \"a\"\npool_siz = 1\n",
            5,
            "databases.app.pool_siz",
            "did you mean pool_size?",
        ),
        (
            "[databases.app]\nhost = \"a\"\nauth_dbname = \"x\"\n",
            5,
            "databases.app.auth_dbname",
            "no entry of [databases] is \"x\"",
        ),
        (
            "[databases.app]\nhost = \"a\"\nmin_pool_size = 30\n",
            5,
            "databases.app.min_pool_size",
            "lower one or raise the other",
        ),
        (
            "[databases.app]\nhost = \"a\"\npassword = \"x\"\n",
            5,
            "databases.app.password",
            "is the secret of user, which is not set",
        ),
        (
            "[databases.app]\nhost = \"a:5433\"\n",
            4,
            "databases.app.host",
            "a socket's directory; the port stands in port",
        ),
        (
            "[databases.app]\nhost = \"a\"\nsimple_query = \"deny\"\n",
            5,
            "databases.app.simple_query",
            "it belongs in [databases.NAME.policy]",
        ),
        (
            "[databases.app]\nhost = \"a\"\nlinger = 0\n",
            5,
            "databases.app.linger",
            "it belongs in [databases.NAME.coalesce]",
        ),
        ("[databases.app]\nhost = \"a\"\ndb = \"b\"\n", 5, "databases.app.db", "did you mean dbname?"),
        ("[users.app]\nstatements = \"all\"\n", 4, "users.app.statements", "belongs in [users.NAME.policy]"),
        (
            "[networks.\"10.0.0.0/8\"]\nsimple_query = \"deny\"\n",
            4,
            "networks.10.0.0.0/8.simple_query",
            "a network has a policy only: [networks.\"10.0.0.0/8\".policy]",
        ),
        (
            "[databases.app]\nhost = \"a\"\nsslmode = \"require\"\n",
            5,
            "databases.app.sslmode",
            "did you mean server_tls_sslmode? It stands in [general], for all databases",
        ),
        (
            "[databases.app]\nhost = \"a\"\n[databases.app.polcy]\nsimple_query = \"deny\"\n",
            5,
            "databases.app.polcy",
            "did you mean the section [databases.NAME.policy]?",
        ),
        (
            "[coalesce.table.x]\nmode = \"off\"\n",
            3,
            "coalesce.table",
            "did you mean the section [coalesce.tables]?",
        ),
        (
            "[databases.app]\nhost = \"localhost\"\nport = 6432\n",
            4,
            "databases.app.host",
            "\"localhost\" with port 6432 is where pgsluice itself listens; set host and port to the server's",
        ),
        ("[databases]\napp = 1\n", 4, "databases.app", "expected the section [databases.app]"),
        ("[database.app]\nhost = \"a\"\n", 3, "database", "did you mean [databases]?"),
        ("[users.app]\npassword = \"x\"\n", 4, "users.app.password", "auth_file"),
        ("[users.app]\ndeferred = true\n", 4, "users.app.deferred", "belongs in [users.NAME.coalesce]"),
        ("[users.app.coalesce]\nmode = \"off\"\n", 4, "users.app.coalesce.mode", "belongs in [coalesce]"),
        ("[users.app.coalesce]\ndefered = true\n", 4, "users.app.coalesce.defered", "did you mean deferred?"),
        (
            "[users.app.coalesce]\ndeferred = \"late\"\n",
            4,
            "users.app.coalesce.deferred",
            "expected true or false",
        ),
        (
            "[users.app.coalesce.tables.\"public.audit\"]\ndeferred = true\n",
            3,
            "users.app.coalesce.tables",
            "under [coalesce] or [databases.NAME.coalesce]",
        ),
        ("[users.app]\ncoalesce = true\n", 4, "users.app.coalesce", "the section [users.app.coalesce]"),
        ("[policy]\nsimple_query = \"none\"\n", 4, "policy.simple_query", "allow, single, control, deny"),
        ("[policy]\nsimple_query = \"\"\n", 4, "policy.simple_query", "allow, single, control, deny"),
        (
            "[users.app.policy]\nstatements = \"\"\n",
            4,
            "users.app.policy.statements",
            "all, no_ddl, read_only",
        ),
        ("[policy]\nfunction_cal = \"deny\"\n", 4, "policy.function_cal", "did you mean function_call?"),
        ("[coalesce]\ncopy_min_rows = 1\n", 4, "coalesce.copy_min_rows", "from 2 to"),
        ("[coalesce]\nflush_timeout = 1\n", 4, "coalesce.flush_timeout", "from 1ms to 999ms"),
        (
            "[coalesce]\nlock_timeout = \"600ms\"\n",
            4,
            "coalesce.lock_timeout",
            "below flush_timeout (500 ms)",
        ),
        ("[coalesce]\nmax_rows = 5\ncopy_min_rows = 6\n", 5, "coalesce.copy_min_rows", "raise max_rows"),
        ("[coalesce]\nmax_bytes = \"32kB\"\n", 0, "coalesce.max_value_bytes", "raise max_bytes"),
        ("[coalesce]\nbudget_bytes = \"1MB\"\n", 0, "coalesce.max_bytes", "raise budget_bytes"),
        ("[coalesce.tables.events]\nmode = \"off\"\n", 3, "coalesce.tables.\"events\"", "schema.table"),
    ];
    for (text, line, key, says) in sections {
        let database = if text.starts_with("[databases") { "" } else { DATABASE };
        let mut problems = refused("a.toml", &format!("{BASE}{text}{database}"), &[]);
        if text.starts_with("[databases]\n") {
            problems.retain(|problem| problem.key != "databases");
        }
        assert_one(&problems, ("a.toml", (*line > 0).then_some(*line), key, says));
    }
}

/// Who logs in there is led to the same entry again, with another connection each time.
#[test]
fn entries_that_lead_to_pgsluice_itself_are_found() {
    let leading_back = |listen: &str, entries: &str| -> Vec<String> {
        let dir = files(&[("a.toml", &format!("{BASE}{listen}\n{entries}"))]);
        let path = dir.path().join("a.toml");
        let text = std::fs::read_to_string(&path)
            .expect("a file")
            .replace("@DIR@", &dir.path().display().to_string());
        std::fs::write(&path, text).expect("a file");
        let problems = read(&path).err().unwrap_or_default();
        problems.iter().for_each(|p| assert!(p.message.contains("pgsluice itself listens"), "{p}"));
        problems.into_iter().map(|problem| problem.key).collect()
    };
    let one = |host: &str, more: &str| format!("[databases.a]\nhost = {host}\nport = 6432\n{more}");
    let all = "listen_addr = \"*\"";
    for (listen, host, back) in [
        ("", "\"127.0.0.1\"", true),
        ("", "[\"10.0.0.1\", \"localhost\"]", true),
        (all, "\"::1\"", true),
        ("listen_addr = \"0.0.0.0\"", "\"127.0.0.1\"", true),
        ("listen_addr = \"proxy.example\"", "\"proxy.example\"", true),
        ("unix_socket_dir = \"@DIR@\"", "\"@DIR@\"", true),
        ("listen_addr = \"10.0.0.1\"", "\"127.0.0.1\"", false),
        (all, "\"10.0.0.1\"", false),
        ("listen_port = 6433", "\"127.0.0.1\"", false),
        ("", "\"@DIR@\"", false),
    ] {
        let expected: &[&str] = if back { &["databases.a.host"] } else { &[] };
        assert_eq!(leading_back(listen, &one(host, "")), expected, "{listen} {host}");
    }
    // Its default port.
    assert_eq!(leading_back("listen_port = 5432", DATABASE), ["databases.app.host"]);
    // An alias of one that has a server, by way of another login; two that are each other's.
    let server = "[databases.b]\nhost = \"10.0.0.1\"\n";
    let here = "\"127.0.0.1\"";
    assert_eq!(leading_back("", &format!("{}{server}", one(here, "dbname = \"b\"\n"))), [""; 0]);
    assert_eq!(leading_back("", &one(here, "dbname = \"pgsluice\"\n")), [""; 0]);
    let other = "[databases.b]\nhost = \"127.0.0.1\"\nport = 6432\ndbname = \"a\"\n";
    let both = ["databases.a.host", "databases.b.host"];
    assert_eq!(leading_back("", &format!("{}{other}", one(here, "dbname = \"b\"\n"))), both);
    // PgBouncer would let it pass.
    let ini = "[databases]\na = host=127.0.0.1 port=6432\n[pgbouncer]\nlisten_addr = *\nunix_socket_dir =\nauth_type = trust\n";
    assert_one(
        &loaded("a.ini", ini).notices,
        ("a.ini", Some(2), "databases.a.host", "pgsluice itself listens"),
    );
}

#[test]
fn what_is_set_for_nothing_is_said() {
    let tls = format!("{BASE}client_tls_cert_file = \"userlist.txt\"\n{DATABASE}");
    let says = "has no effect, because client_tls_sslmode is \"disable\"";
    assert_one(&loaded("a.toml", &tls).notices, ("a.toml", Some(3), "client_tls_cert_file", says));
    let query = "auth_query = \"SELECT usename, passwd FROM pg_shadow WHERE usename = $1\"\n";
    let says = "has no effect, because nobody asks; set auth_user";
    let general = loaded("a.toml", &format!("{BASE}{query}{DATABASE}"));
    assert_one(&general.notices, ("a.toml", Some(3), "auth_query", says));
    let database = loaded("a.toml", &format!("{BASE}{DATABASE}{query}"));
    assert_one(&database.notices, ("a.toml", Some(5), "databases.app.auth_query", says));
    for asked in [
        format!("{BASE}{query}auth_user = \"app\"\n{DATABASE}"),
        format!("{BASE}{query}{DATABASE}auth_user = \"app\"\n"),
    ] {
        assert_eq!(loaded("a.toml", &asked).notices, [], "{asked}");
    }
}

#[test]
fn versions_and_ciphers_of_tls_are_understood_in_pgbouncers_words() {
    use TlsProtocols::{Both, Tls12, Tls13};
    for (words, protocols) in [
        ("secure", Both),
        ("all", Both),
        ("legacy", Both),
        ("tlsv1.2,tlsv1.3", Both),
        ("all:!tlsv1.0:!tlsv1.1", Both),
        ("TLSv1.3", Tls13),
        ("all, !tlsv1.3", Tls12),
    ] {
        let ini = format!(
            "[databases]\na = host=127.0.0.1\n[pgbouncer]\nauth_type = trust\nclient_tls_protocols = {words}\n\
             server_tls_ciphers = ECDHE-RSA-AES256-GCM-SHA384:ecdhe-ecdsa-aes128-gcm-sha256\n\
             client_tls_ciphers = fast\nclient_tls13_ciphers =\nserver_tls13_ciphers = TLS_AES_256_GCM_SHA384\n"
        );
        let general = loaded("a.ini", &ini).settings.general;
        assert_eq!(general.client_tls.protocols, protocols, "{words}");
        assert_eq!((general.client_tls.ciphers, general.client_tls.tls13_ciphers), (vec![], vec![]));
        let chosen = ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"];
        assert_eq!(general.server_tls.ciphers, chosen);
        assert_eq!(general.server_tls.tls13_ciphers, ["TLS13_AES_256_GCM_SHA384"]);
    }
}

#[test]
fn blanks_separate_names_in_lists_of_an_ini() {
    let ini = |line: &str| {
        loaded(
            "a.ini",
            &format!(
                "[databases]\n*=host=h\n[pgbouncer]\nauth_type = trust\nauth_file = userlist.txt\n{line}\n"
            ),
        )
    };
    let with_blanks =
        ini("admin_users = ops  root,\tadmin\nstats_users = a b\nignore_startup_parameters = x y");
    let general = &with_blanks.settings.general;
    assert_eq!(general.admin_users, ["ops", "root", "admin"]);
    assert_eq!(general.stats_users, ["a", "b"]);
    assert_eq!(general.ignore_startup_parameters, ["x", "y"]);
    let said: Vec<_> = with_blanks.notices.iter().map(|notice| (&*notice.key, &*notice.message)).collect();
    let means = "means ops, root, admin: a blank separates names, as in PgBouncer";
    assert!(said.contains(&("admin_users", means)), "{said:?}");
    assert_eq!(said.len(), 3, "{said:?}");
    // With commas nothing is said; in our own format a blank is part of a name.
    let commas = ini("admin_users = ops , root");
    assert_eq!(
        (&*commas.settings.general.admin_users, commas.notices.len()),
        (&["ops".into(), "root".into()][..], 0)
    );
    let own = toml(&format!("{BASE}admin_users = [\"two words\"]\n{DATABASE}"));
    assert_eq!(own.general.admin_users, ["two words"]);
}

#[test]
fn old_versions_of_tls_are_left_out_of_an_ini_while_one_is_spoken() {
    let ini = |words: &str| {
        format!(
            "[databases]\na = host=127.0.0.1\n[pgbouncer]\nauth_type = trust\nclient_tls_protocols = {words}\n"
        )
    };
    for (words, protocols, old) in [
        ("tlsv1.0,tlsv1.1,tlsv1.2", TlsProtocols::Tls12, "tlsv1.0, tlsv1.1 left out"),
        ("TLSv1.1:tlsv1.2:tlsv1.3", TlsProtocols::Both, "TLSv1.1 left out"),
    ] {
        let Loaded { settings, notices } = loaded("a.ini", &ini(words));
        assert_eq!(settings.general.client_tls.protocols, protocols, "{words}");
        assert_one(&notices, ("a.ini", Some(5), "client_tls_protocols", old));
        let set =
            set(Path::new("a.ini"), &settings, "server_tls_protocols", words).expect("also on the console");
        assert_eq!(set.general.server_tls.protocols, protocols);
    }
    for words in ["tlsv1.0,tlsv1.1", "tlsv1.1,tlsv1.2,!tlsv1.2"] {
        let says = ("a.ini", Some(5), "client_tls_protocols", words);
        assert_one(&refused("a.ini", &ini(words), &[]), says);
    }
    let text = format!("{BASE}client_tls_protocols = \"tlsv1.1,tlsv1.2\"\n{DATABASE}");
    assert_one(
        &refused("a.toml", &text, &[]),
        ("a.toml", Some(3), "client_tls_protocols", "tlsv1.2, tlsv1.3"),
    );
}

/// As pgbouncer.ini files have it; what cannot be left out is an error, see above.
#[test]
fn openssls_words_for_ciphers_mean_what_they_mean_there() {
    let chosen = |words: &str| {
        let ini = format!(
            "[databases]\na = host=127.0.0.1\n[pgbouncer]\nauth_type = trust\nserver_tls_ciphers = {words}\n"
        );
        loaded("a.ini", &ini).settings.general.server_tls.ciphers
    };
    let all: Vec<_> = ciphers::CIPHERS.0.iter().map(|(_, kept)| *kept).collect();
    for words in [
        "HIGH:!ADH:!AECDH:!LOW:!EXP:!MD5:!3DES:!SRP:!PSK:@STRENGTH",
        "HIGH:!aNULL:!MD5",
        "HIGH:MEDIUM-SHA:!RC4",
        "kEECDH:-kRSA:@SECLEVEL=2",
        "HIGH:MEDIUM:+3DES:!aNULL",
        "ALL:!DHE-RSA-AES256-SHA:!EXPORT:!LOW:!SSLv2:!SSLv3",
    ] {
        assert_eq!(chosen(words), all, "{words}");
    }
    let some = "ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-SHA384:ECDHE-RSA-AES128-GCM-SHA256";
    assert_eq!(chosen(some), ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    for word in ["compat", "fast", "normal", "secure", "legacy", "insecure", "all", "default"] {
        assert!(chosen(word).is_empty(), "{word} is all");
    }
    let names = |words: &str| value_of(&chosen(words));
    assert_eq!(
        names("EECDH+AESGCM+aRSA:EDH+AESGCM"),
        "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES128-GCM-SHA256"
    );
    assert_eq!(names("HIGH:!AES"), "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305");
    assert_eq!(
        names("ECDHE+aRSA:!AES128:+AES256"),
        "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES256-GCM-SHA384"
    );
    assert_eq!(
        names("HIGH:!aECDSA:-AES:ECDHE-ECDSA-AES128-GCM-SHA256:AES128"),
        "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-GCM-SHA256"
    );
}

/// A name that forbids nothing because nobody knows it is an error in TOML; an ini was read by OpenSSL, which passes over it.
#[test]
fn names_of_suites_that_are_forbidden_are_openssls() {
    let chosen = |file: &str, words: &str| {
        let text = match file {
            "a.toml" => format!("{BASE}server_tls_ciphers = \"{words}\"\n{DATABASE}"),
            _ => format!(
                "[databases]\na = host=127.0.0.1\n[pgbouncer]\nauth_type = trust\nserver_tls_ciphers = {words}\n"
            ),
        };
        value_of(&loaded(file, &text).settings.general.server_tls.ciphers)
    };
    let all = value_of(&ciphers::CIPHERS.0.iter().map(|(_, kept)| *kept).collect());
    for name in [
        "DHE-RSA-AES256-SHA",
        "ECDHE-RSA-AES256-SHA384",
        "dhe-psk-aes256-cbc-sha384",
        "AES128-GCM-SHA256",
        "ECDHE-ARIA256-GCM-SHA384",
        "ECDHE-ECDSA-AES256-CCM8",
        "SRP-DSS-AES-128-CBC-SHA",
        "RSA-PSK-CHACHA20-POLY1305",
        "NULL-SHA256",
        "EDH-RSA-DES-CBC3-SHA",
    ] {
        for list in [format!("HIGH:!{name}"), format!("HIGH:-{name}")] {
            assert_eq!(
                (chosen("a.toml", &list), chosen("a.ini", &list)),
                (all.clone(), all.clone()),
                "{list}"
            );
        }
    }
    let known = "HIGH:!ECDHE-RSA-AES128-GCM-SHA256";
    assert!(!chosen("a.toml", known).contains("ECDHE-RSA-AES128"), "{known}");
    assert_eq!(chosen("a.ini", "HIGH:!ECDHE-RSA-AES126-GCM-SHA256"), all);
}

fn value_of(kept: &Vec<&'static str>) -> String {
    use value::Kind as _;
    ciphers::CIPHERS.show(kept)
}

/// Where a list is in OpenSSL's language, an ini's reader hears what it comes to.
#[test]
fn what_a_list_of_openssls_comes_to_is_said_of_an_ini() {
    let notices = |words: &str| {
        let ini = "[databases]\na = host=127.0.0.1\n[pgbouncer]\nauth_type = trust\n";
        loaded("a.ini", &format!("{ini}client_tls_ciphers = {words}\n")).notices
    };
    for words in ["", "default", "secure", "ecdhe-rsa-aes256-gcm-sha384"] {
        assert_eq!(notices(words), [], "{words}");
    }
    let says = "means ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305 here: the suites are those of rustls";
    assert_one(&notices("HIGH:MEDIUM:!AES"), ("a.ini", Some(5), "client_tls_ciphers", says));
    assert_one(&notices("compat"), ("a.ini", Some(5), "client_tls_ciphers", "means default here"));
}

/// What the settings may name is what there is.
#[test]
fn every_cipher_of_rustls_has_a_name() {
    let suites = rustls::crypto::aws_lc_rs::default_provider().cipher_suites;
    let mut there: Vec<_> = suites.iter().filter_map(|suite| suite.suite().as_str()).collect();
    let mut named: Vec<_> =
        [ciphers::CIPHERS, ciphers::TLS13_CIPHERS].iter().flat_map(|c| c.0).map(|(_, kept)| *kept).collect();
    there.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, there);
}

#[test]
fn a_reset_query_that_costs_each_client_a_login_is_said() {
    let session = "pool_mode = \"session\"\n";
    let says = |general: &str, database: &str, query: &str| {
        let query = format!("server_reset_query = \"{query}\"\n");
        let text = format!("{BASE}{general}{query}{DATABASE}{database}");
        let notices = loaded("a.toml", &text).notices;
        notices.iter().any(|notice| notice.key == "server_reset_query" && notice.line.is_some())
    };
    for query in ["RESET ALL; DEALLOCATE ALL", "SELECT 'DISCARD ALL'", "DISCARD ALL; SELECT 1"] {
        assert!(says(session, "", query) && says("", session, query), "{query}");
        assert!(says("server_reset_query_always = true\n", "", query), "{query}");
        assert!(!says("", "", query), "it is not run: {query}");
    }
    for query in ["", "DISCARD ALL", " discard  all; "] {
        assert!(!says(session, session, query), "{query}");
    }
}

#[test]
fn tls_needs_its_files() {
    let text = format!("{BASE}client_tls_sslmode = \"verify-full\"\n{DATABASE}");
    let problems = refused("a.toml", &text, &[]);
    let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["client_tls_key_file", "client_tls_cert_file", "client_tls_ca_file"]);
    assert!(
        problems[0].message.contains("client_tls_sslmode \"verify-full\" needs it; set it to a PEM file")
    );
}

#[test]
fn files_of_tls_that_cannot_be_used_are_said_with_the_reason() {
    let certificate = || {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let ((ours, key), (others, _)) = (certificate(), certificate());
    let users = ("userlist.txt", "\"app\" \"secret\"\n");
    let pem = [users, ("a.crt", &*ours), ("a.key", &*key), ("b.crt", &*others), ("text", "no certificate")];
    let client = |cert: &str| {
        format!(
            "client_tls_sslmode = \"require\"\nclient_tls_cert_file = \"{cert}\"\nclient_tls_key_file = \"a.key\"\n"
        )
    };
    let server = |cert: &str| format!("server_tls_cert_file = \"{cert}\"\nserver_tls_key_file = \"a.key\"\n");
    let verify = |ca: &str| format!("server_tls_sslmode = \"verify-ca\"\nserver_tls_ca_file = \"{ca}\"\n");
    for (lines, key) in [
        (client("b.crt"), "client_tls_key_file"),
        (client("text"), "client_tls_cert_file"),
        (server("b.crt"), "server_tls_key_file"),
        (verify("text"), "server_tls_ca_file"),
    ] {
        let problems = refused("a.toml", &format!("{BASE}{lines}{DATABASE}"), &pem);
        let [problem] = &problems[..] else { panic!("{lines}: {problems:?}") };
        assert!(problem.key == key && problem.message.contains("cannot be used ("), "{lines}: {problem:?}");
        assert!(problem.line.is_some(), "{problem:?}");
    }
    let idle = "server_tls_sslmode = \"require\"\nserver_tls_ca_file = \"a.crt\"\n".to_owned();
    for lines in [client("a.crt"), server("a.crt"), verify("a.crt"), idle] {
        let text = format!("{BASE}{lines}{DATABASE}");
        let dir = files(&[&pem[..], &[("a.toml", &*text)]].concat());
        let notices = read_in(&dir, "a.toml").expect(&lines).notices;
        let told = notices.iter().any(|notice| notice.key == "server_tls_ca_file" && notice.line.is_some());
        assert_eq!(told, lines.contains("require\"\nserver"), "{lines}: {notices:?}");
    }
}

#[test]
fn a_key_with_a_passphrase_or_for_all_to_read_and_a_certificate_out_of_date_are_said() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = |until: i32| {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params.self_signed(&key).unwrap().pem()
    };
    let (old, good, key) = (certificate(2020), certificate(4000), key.serialize_pem());
    let modern = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let old_form =
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
    let users = ("userlist.txt", "\"app\" \"secret\"\n");
    let pem = [
        users,
        ("old.crt", &*old),
        ("a.crt", &*good),
        ("a.key", &*key),
        ("b.key", modern),
        ("c.key", old_form),
    ];
    for side in ["client", "server"] {
        let text = |cert: &str, key: &str| {
            format!(
                "{BASE}{side}_tls_sslmode = \"require\"\n{side}_tls_cert_file = \"{cert}\"\n\
                 {side}_tls_key_file = \"{key}\"\n{DATABASE}"
            )
        };
        for locked in ["b.key", "c.key"] {
            let problems = refused("a.toml", &text("a.crt", locked), &pem);
            let key = format!("{side}_tls_key_file");
            assert_one(&problems, ("a.toml", Some(5), &key, "it has a passphrase; write it without one"));
        }
        let notices = |cert: &str| {
            let dir = files(&[&pem[..], &[("a.toml", &*text(cert, "a.key"))]].concat());
            read_in(&dir, "a.toml").expect("it can be used").notices
        };
        assert!(notices("a.crt").is_empty());
        let key = format!("{side}_tls_cert_file");
        assert_one(&notices("old.crt"), ("a.toml", Some(4), &key, "and not now; have it renewed"));
        for (mode, is_said) in [(0o640, false), (0o644, true), (0o602, true)] {
            let dir = files(&[&pem[..], &[("a.toml", &*text("a.crt", "a.key"))]].concat());
            std::fs::set_permissions(dir.path().join("a.key"), Permissions::from_mode(mode)).expect("a mode");
            let notices = read_in(&dir, "a.toml").expect("it can be used").notices;
            assert_eq!(notices.len(), usize::from(is_said), "{mode:o}: {notices:?}");
            let key = format!("{side}_tls_key_file");
            let says = |notice: &Problem| notice.key == key && notice.message.contains("every user");
            assert!(notices.iter().all(says), "{notices:?}");
        }
    }
}

#[test]
fn what_follows_from_a_section_with_a_wrong_name_is_not_said() {
    let text = format!("[General]\nauth_file = \"userlist.txt\"\n{DATABASE}");
    assert_one(&refused("a.toml", &text, &[]), ("a.toml", Some(1), "General", "did you mean [general]?"));
}

#[test]
fn a_verifier_is_no_secret_to_log_in_to_a_server_with() {
    let says = "auth_file has a SCRAM verifier of \"app\", which cannot log in to a server";
    let general = "[general]\nauth_file = \"userlist.txt\"\n";
    let notices =
        |general: &str, database: &str| loaded("a.toml", &format!("{general}{DATABASE}{database}")).notices;
    let line = Some(3);
    assert_one(&notices(&format!("{general}auth_user = \"app\"\n"), ""), ("a.toml", line, "auth_user", says));
    for key in ["user", "auth_user"] {
        let full = format!("databases.app.{key}");
        assert_one(&notices(general, &format!("{key} = \"app\"\n")), ("a.toml", Some(5), &full, says));
        assert!(notices(general, &format!("{key} = \"other\"\n")).is_empty(), "{key}");
    }
    assert!(notices(general, "user = \"app\"\npassword = \"x\"\n").is_empty());
}

#[test]
fn a_user_called_star_is_said_to_be_one() {
    let text = format!("{BASE}{DATABASE}[users.\"*\"]\npool_size = 3\n");
    let line = 1 + BASE.lines().count() + DATABASE.lines().count();
    let says = "holds for a user called *, and not for all";
    assert_one(&loaded("a.toml", &text).notices, ("a.toml", Some(line), "users.*", says));
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_lines() {
    let text = "[general]\nlisten_port = 0\npool_mode = 3\n[coalesce]\nmax_rows = 0\n[nonsense]\n";
    let problems = refused("a.toml", text, &[]);
    let lines: Vec<Option<usize>> = problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [None, None, Some(2), Some(3), Some(5), Some(6)], "{problems:#?}");
}

#[test]
fn a_problem_is_shown_as_file_line_key_and_remedy() {
    let problem = Problem {
        file: PathBuf::from("/etc/a.toml"),
        line: Some(7),
        key: "listen_port".into(),
        message: "found 0; expected more".into(),
    };
    assert_eq!(problem.to_string(), "/etc/a.toml:7: listen_port: found 0; expected more");
}

#[test]
fn broken_toml_names_the_line_and_nothing_that_follows_from_it() {
    for (text, line, says) in [
        ("[general\n", 1, "not TOML"),
        ("[general]\nlisten_port = 1\nlisten_port = 2\n", 3, "stands twice"),
        ("[general]\nauth_file = \"x\n", 2, "not TOML"),
    ] {
        let problems = refused("a.toml", text, &[]);
        assert!(problems.iter().any(|p| p.line == Some(line) && p.message.contains(says)), "{problems:#?}");
        assert!(!problems.iter().any(|p| p.key == "databases"), "{problems:#?}");
    }
}

#[test]
fn files_that_are_none_are_refused() {
    let dir = files(&[("a.conf", ""), ("latin.toml", "")]);
    std::fs::write(dir.path().join("latin.toml"), b"[general]\n# caf\xe9\n").expect("a file");
    std::fs::create_dir(dir.path().join("dir.toml")).expect("a directory");
    for (name, line, says) in [
        ("a.conf", None, "name the file .toml"),
        ("absent.toml", None, "check the path"),
        ("dir.toml", None, "not a regular file; name a file"),
        ("latin.toml", Some(2), "save the file as UTF-8"),
    ] {
        let problems = read_in(&dir, name).expect_err(name);
        assert!(problems[0].message.contains(says), "{problems:#?}");
        assert_eq!(problems[0].line, line, "{problems:#?}");
        assert_eq!(problems.len(), 1, "nothing follows from it: {problems:#?}");
    }
}

/// A FIFO would hold the start until somebody writes to it, a device has no end.
#[test]
fn files_that_never_end_are_refused() {
    const TLS: &str = "client_tls_sslmode = \"allow\"\n";
    let dir = files(&[("include.ini", "%include fifo\n"), ("hba.conf", "local @fifo all trust\n")]);
    let place = dir.path();
    assert!(std::process::Command::new("mkfifo").arg(place.join("fifo")).status().expect("mkfifo").success());
    std::fs::create_dir(place.join("dir")).expect("a directory");
    // No disk holds it.
    std::fs::File::create(place.join("huge")).and_then(|file| file.set_len(1 << 40)).expect("a file");
    let says = |file: &str| if file == "huge" { "is larger than" } else { "is not a regular file" };
    for file in ["fifo", "dir", "/dev/zero", "huge"] {
        for (key, rest) in [
            ("auth_file", ""),
            ("auth_hba_file", "auth_type = \"hba\"\n"),
            ("auth_ident_file", ""),
            ("hosts_file", ""),
            ("pidfile", ""),
            ("client_tls_key_file", TLS),
            ("client_tls_cert_file", TLS),
            ("client_tls_ca_file", TLS),
            ("server_tls_ca_file", ""),
        ] {
            // What is held against its bound only when it is used.
            if file == "huge" && (key.contains("tls") || matches!(key, "hosts_file" | "pidfile")) {
                continue;
            }
            let base = if rest.contains("auth_type") { "[general]\n" } else { BASE };
            let text = format!("{base}{key} = \"{file}\"\n{rest}{DATABASE}");
            std::fs::write(place.join("a.toml"), text).expect("a file");
            let problems = read_in(&dir, "a.toml").expect_err(key);
            let told = problems.iter().find(|problem| problem.key == key);
            let told = told.unwrap_or_else(|| panic!("{key} = {file}: {problems:#?}"));
            assert!(told.message.contains(says(file)), "{key} = {file}: {told}");
        }
        let policy =
            format!("{BASE}{DATABASE}[policy]\nallow_list = \"learn\"\nallow_list_file = \"{file}\"\n");
        std::fs::write(place.join("a.toml"), policy).expect("a file");
        let problems = read_in(&dir, "a.toml").expect_err("allow_list_file");
        assert!(problems[0].message.contains(says(file)), "{problems:#?}");
    }
    for (name, text) in [
        ("include.ini", "%include fifo\n".to_owned()),
        ("hba.toml", format!("[general]\nauth_type = \"hba\"\nauth_hba_file = \"hba.conf\"\n{DATABASE}")),
    ] {
        std::fs::write(place.join(name), text).expect("a file");
        let problems = read_in(&dir, name).expect_err(name);
        assert!(problems[0].message.contains("is not a regular file"), "{problems:#?}");
    }
    let verified =
        format!("{BASE}server_tls_sslmode = \"verify-ca\"\nserver_tls_ca_file = \"huge\"\n{DATABASE}");
    std::fs::write(place.join("a.toml"), verified).expect("a file");
    let problems = read_in(&dir, "a.toml").expect_err("server_tls_ca_file");
    assert_one(&problems, ("a.toml", Some(4), "server_tls_ca_file", "larger than 16 MB"));
    std::fs::write(place.join("a.toml"), format!("{BASE}audit_file = \"dir\"\n{DATABASE}")).expect("a file");
    let problems = read_in(&dir, "a.toml").expect_err("audit_file");
    assert_one(&problems, ("a.toml", Some(3), "audit_file", "is not a regular file"));
}

/// Nobody could ever be connected.
#[test]
fn a_server_s_socket_has_a_path_that_the_system_takes() {
    // With `/.s.PGSQL.5432`: as long as may be.
    let longest = format!("/{}", "a".repeat(crate::limits::SOCKET_PATH_BYTES_MAX - 15));
    for (host, bytes) in [(longest.clone(), 0), (format!("{longest}b"), 108)] {
        for (text, line, key) in [
            (format!("{BASE}[databases.app]\nhost = [\"127.0.0.1\", \"{host}\"]\n"), 4, "databases.app.host"),
            (
                format!("{BASE}peer_id = 2\n{DATABASE}[peers.1]\nhost = \"{host}\"\nport = 5432\n"),
                7,
                "peers.1.host",
            ),
        ] {
            if bytes == 0 {
                toml(&text);
            } else {
                let says = "the socket's path would have 108 bytes, at most 107 work";
                assert_one(&refused("a.toml", &text, &[]), ("a.toml", Some(line), key, says));
            }
        }
    }
}

#[test]
fn a_pgbouncer_ini_loads_with_pgbouncers_defaults() {
    let loaded = loaded(
        "pgbouncer.ini",
        r#"
;; comment
# comment
[databases]
app = host=10.0.0.1 port=5433 dbname='my app' password='it''s' pool_size=5 reserve_pool=2
"odd name" = host=/run connect_query='select 1'
local =
* = host=db1,db2 auth_user=lookup

[users]
app = pool_mode=statement max_user_connections=7

[pgbouncer]
listen_addr = *
listen_port = 6433
auth_type = md5
auth_file = userlist.txt
logfile = /var/log/pgbouncer.log
admin_users = ops, root
max_packet_size = 4294967295
server_lifetime = 0.5
tcp_keepalive = 1
ignore_startup_parameters = extra_float_digits, options
disable_pqexec = 1

[peers]
1 = host=other pool_size=3
2 = host=/run/pgbouncer2 port=6433

[coalesce]
mode = shadow
"#,
    );
    let settings = &loaded.settings;
    assert_eq!(settings.general.listen_addr, ["*"]);
    assert_eq!(settings.general.pool_mode, PoolMode::Session);
    assert_eq!(settings.general.max_client_conn, 100);
    assert_eq!(settings.general.max_packet_size, crate::limits::MESSAGE_BYTES_MAX);
    assert_eq!(settings.general.server_lifetime, Duration::from_millis(500));
    assert_eq!(settings.general.ignore_startup_parameters, ["extra_float_digits", "options"]);
    assert_eq!(settings.policy.simple_query, Some(SimpleQuery::Deny));
    let app = &settings.databases["app"];
    assert_eq!((app.host[0].as_str(), app.port, app.dbname.as_deref()), ("10.0.0.1", 5433, Some("my app")));
    assert_eq!(app.password, Some(Secret::Plain("it's".into())));
    assert_eq!((app.pool_size, app.reserve_pool_size), (Some(5), Some(2)));
    assert_eq!(app.coalesce.mode, CoalesceMode::Shadow);
    assert_eq!(settings.databases["odd name"].connect_query.as_deref(), Some("select 1"));
    assert_eq!(settings.databases["local"].host, ["/tmp"]);
    assert_eq!(settings.fallback.as_ref().expect("a fallback").host, ["db1", "db2"]);
    assert_eq!(settings.fallback.as_ref().expect("a fallback").auth_user.as_deref(), Some("lookup"));
    assert_eq!(settings.users["app"].pool_mode, Some(PoolMode::Statement));
    assert_eq!(settings.users["app"].max_user_connections, Some(7));
    let notices: Vec<(&str, Option<usize>)> =
        loaded.notices.iter().map(|n| (n.key.as_str(), n.line)).collect();
    // Without user, as in PgBouncer.
    let password = ("databases.app.password", Some(5));
    assert_eq!(notices, [("logfile", Some(18)), password, ("peer_id", None)]);
    assert!(loaded.notices[0].message.contains("has no effect, because"));
    let peers: Vec<_> =
        settings.peers.iter().map(|(id, p)| (*id, p.host.as_deref(), p.port, p.pool_size)).collect();
    assert_eq!(peers, [(1, Some("other"), 6432, Some(3)), (2, Some("/run/pgbouncer2"), 6433, None)]);
}

#[test]
fn deferral_that_cannot_take_place_is_said() {
    let deferred = "[coalesce]\ndeferred = true\n";
    let of = |more: &str| {
        let text = format!("{BASE}{more}{deferred}{DATABASE}");
        loaded("a.toml", &text).notices.into_iter().map(|n| (n.key, n.line, n.message)).collect::<Vec<_>>()
    };
    assert_eq!(of(""), []);
    let [(key, line, says)] = &of("pool_mode = \"session\"\n")[..] else { panic!("one notice") };
    assert_eq!((key.as_str(), *line), ("coalesce.deferred", Some(5)));
    assert!(says.contains("pool_mode there is \"session\""), "{says}");
    assert_eq!(of("pool_mode = \"statement\"\n[users.app]\npool_mode = \"transaction\"\n"), []);
}

#[test]
fn an_ini_without_databases_is_as_good_as_with_pgbouncer_but_said() {
    let loaded = loaded("a.ini", "[pgbouncer]\nauth_type = trust\n");
    assert!(loaded.settings.databases.is_empty());
    assert_one(&loaded.notices, ("a.ini", None, "databases", "add [databases.NAME]"));
    assert_one(&refused("a.toml", BASE, &[]), ("a.toml", None, "databases", "add [databases.NAME]"));
}

#[test]
fn each_mistake_in_an_ini_is_named_with_its_remedy() {
    // Each stands in line 4.
    let cases: &[(&str, &str, &str)] = &[
        ("listen_prt = 1", "listen_prt", "did you mean listen_port?"),
        ("LISTEN_PORT = 1", "LISTEN_PORT", "did you mean listen_port?"),
        ("listen_port = 0", "listen_port", "expected a whole number from 1 to 65535"),
        ("listen_port = 6432 ; main", "listen_port", "to 65535; a comment stands on a line of its own"),
        ("listen_addr = 127.0.0.1\t# main", "listen_addr", "or *; a comment stands on a line of its own"),
        ("[databases]\nx = host=a ; main", "databases.x", "doubled; a comment stands on a line of its own"),
        ("auth_type = pam", "auth_type", "expected one of trust"),
        ("pool_mode = sesion", "pool_mode", "session, transaction, statement"),
        ("what is this", "", "expected key = value"),
        ("%include missing.ini", "%include", "check the path"),
        ("%include", "%include", "write %include FILE"),
        ("[nonsense]", "[nonsense]", "the sections are [pgbouncer]"),
        ("[databases", "", "write [name]"),
        ("[databases]\nx = host='unclosed", "databases.x", "key=value pairs"),
        ("[databases]\nx = nonsense", "databases.x", "key=value pairs"),
        ("[databases]\nx = hots=a", "databases.x.hots", "did you mean host?"),
        (
            "[databases]\nx = host=a max_client_conn=3",
            "databases.x.max_client_conn",
            "belongs in [pgbouncer]",
        ),
        ("[users]\nx = host=a", "users.x.host", "belongs in [databases]"),
        ("zzzzzzzzzzzz = 1", "zzzzzzzzzzzz", "docs/config.md lists the keys of [pgbouncer]"),
        ("[databases]\nx = password=SCRAM-SHA-256$1", "databases.x.password", "expected a password in clear"),
        ("[databases]\npgbouncer = host=a", "databases.pgbouncer", "choose another"),
    ];
    for (text, key, says) in cases {
        let all =
            format!("[databases]\napp=host=a\n[pgbouncer]\n{text}\n[pgbouncer]\nauth_file=userlist.txt\n");
        let problems = refused("a.ini", &all, &[]);
        let line = 3 + text.lines().count();
        let (name, line) = if text.contains("unclosed") { ("a.ini", 5) } else { ("a.ini", line) };
        assert_one(&problems, (name, Some(line), key, says));
    }
}

/// As an include that overrides what stands before it.
#[test]
fn of_what_stands_twice_in_an_ini_the_last_holds_with_a_notice() {
    let dir = files(&[
        (
            "a.ini",
            "[databases]\napp = host=a pool_size=5\n* = host=x port=1\nb = host=b\n[users]\nu = pool_mode=transaction\n\
             [peers]\n1 = host=one\n[pgbouncer]\nauth_type = trust\nmax_client_conn = 7\npeer_id = 1\n%include b.ini\n",
        ),
        (
            "b.ini",
            "[databases]\napp = host=b min_pool_size=1 min_pool_size=2\n* = host=y\n\
             [users]\nu = max_user_connections=3\n[peers]\n1 = host=two\n[pgbouncer]\nmax_client_conn = 8\n",
        ),
    ]);
    let Loaded { settings, notices } = read_in(&dir, "a.ini").expect("PgBouncer takes it");
    let app = &settings.databases["app"];
    assert_eq!((&*app.host[0], app.pool_size, app.min_pool_size), ("b", None, Some(2)));
    let any = settings.fallback.as_ref().expect("a fallback");
    assert_eq!((&*any.host[0], any.port), ("y", 5432));
    assert_eq!((settings.users["u"].pool_mode, settings.users["u"].max_user_connections), (None, Some(3)));
    assert_eq!(settings.peers[&1].host.as_deref(), Some("two"));
    assert_eq!(settings.general.max_client_conn, 8);
    let said: Vec<_> = notices.iter().map(|n| (n.line, n.key.as_str(), n.message.as_str())).collect();
    let places = said.iter().map(|(line, key, _)| (line.expect("a line"), *key)).collect::<Vec<_>>();
    let app = [(2, "databases.app"), (2, "databases.app.min_pool_size"), (3, "databases.*")];
    assert_eq!(places[..3], app);
    assert_eq!(places[3..], [(5, "users.u"), (7, "peers.1"), (8, "[pgbouncer]"), (9, "max_client_conn")]);
    assert!(said[1].2.contains("stands in this line already"), "{said:?}");
    for (at, line) in [(0, 2), (2, 3), (3, 6), (4, 8), (6, 11)] {
        assert!(said[at].2.contains(&format!("a.ini:{line} already; what stands last holds")), "{said:?}");
    }
    let pqexec =
        "[databases]\na = host=h\n[pgbouncer]\nauth_type = trust\ndisable_pqexec = 1\ndisable_pqexec = 0\n";
    assert_one(
        &loaded("a.ini", pqexec).notices,
        ("a.ini", Some(6), "disable_pqexec", "what stands last holds"),
    );
    // Our own format does not let it pass, and says which key it is.
    refused("a.toml", &format!("{BASE}{DATABASE}{DATABASE}"), &[]);
    let twice =
        format!("{BASE}pool_mode = \"session\"\nserver_lifetime = 5\npool_mode = \"session\"\n{DATABASE}");
    let problems = refused("a.toml", &twice, &[]);
    assert_one(&problems, ("a.toml", Some(5), "pool_mode", "stands twice; keep one of the two"));
}

#[test]
fn a_second_section_of_pgbouncers_is_said() {
    let text = "[databases]\na = host=h\n[pgbouncer]\nlisten_addr = *\nauth_type = any\n[databases]\nb = host=h\n[pgbouncer]\nlisten_port = 7000\n";
    let Loaded { settings, notices } = loaded("a.ini", text);
    assert_eq!((&*settings.general.listen_addr[0], settings.general.listen_port), ("*", 7000));
    let said: Vec<_> = notices.into_iter().filter(|n| n.key == "[pgbouncer]").collect();
    assert_one(
        &said,
        ("a.ini", Some(8), "[pgbouncer]", "begins in line 3 already; what stands there holds as well"),
    );
}

#[test]
fn a_pool_size_of_0_is_said_in_an_ini() {
    let text = "[databases]\na = host=h pool_size=0\nb = host=h\n[users]\nu = pool_size=0\n\
                [pgbouncer]\nauth_type = any\ndefault_pool_size = 0\n";
    let notices = loaded("a.ini", text).notices;
    let said: Vec<_> = notices.iter().filter(|n| n.message.contains("0 is no limit here")).collect();
    let places: Vec<_> = said.iter().map(|n| (n.line, &*n.key)).collect();
    let all =
        [(Some(8), "default_pool_size"), (Some(5), "users.u.pool_size"), (Some(2), "databases.a.pool_size")];
    assert_eq!(places, all);
    assert!(loaded("a.toml", &format!("{BASE}default_pool_size = 0\n{DATABASE}")).notices.is_empty());
}

#[test]
fn a_file_has_its_formats_defaults() {
    let ini = loaded("a.ini", "[databases]\na = host=h\n[pgbouncer]\nauth_type = any\npool_mode = session\n");
    assert!(describe(&ini.settings).contains("\npool_mode = \"session\"\n"), "{}", describe(&ini.settings));
    let shown = shown(&ini.settings);
    let of = |key: &str| {
        let row = shown.iter().find(|row| row.key == key).expect("a key");
        (row.value.clone(), row.default.clone())
    };
    assert_eq!(of("pool_mode"), ("session".into(), "session".into()));
    assert_eq!(of("max_client_conn"), ("100".into(), "100".into()));
    assert_eq!(of("auth_type"), ("trust".into(), "md5".into()));
    assert_eq!(of("policy.simple_query"), ("allow".into(), "allow".into()));
    assert_eq!(of("coalesce.mode"), ("on".into(), "on".into()));
    assert_eq!(of("coalesce.max_rows").0, of("coalesce.max_rows").1);
}

#[test]
fn less_than_nothing_in_a_line_of_an_ini_is_not_set() {
    let ini = "[databases]\na = host=h pool_size=-1 min_pool_size=-1 max_db_connections=-1 reserve_pool_size=5 reserve_pool=-1 \
        max_db_client_connections=-1\n[users]\nu = pool_size=-1 reserve_pool_size=-1 max_user_connections=-1 \
        max_user_client_connections=-1\n[pgbouncer]\nauth_type = trust\n";
    let settings = loaded("a.ini", ini).settings;
    let (a, u) = (&settings.databases["a"], &settings.users["u"]);
    assert_eq!([a.pool_size, a.min_pool_size, a.reserve_pool_size], [None; 3]);
    assert_eq!([a.max_db_connections, a.max_db_client_connections], [None; 2]);
    assert_eq!([u.pool_size, u.reserve_pool_size], [None; 2]);
    assert_eq!([u.max_user_connections, u.max_user_client_connections], [None; 2]);
    let problems = refused("a.ini", &ini.replace("pool_size=-1 min", "pool_size=-2 min"), &[]);
    assert_one(&problems, ("a.ini", Some(2), "databases.a.pool_size", "expected a whole number"));
    let other = loaded("a.ini", &ini.replace("host=h", "host=h dbname=-1")).settings;
    assert_eq!(other.databases["a"].dbname.as_deref(), Some("-1"), "a name is none of them");
    let text = format!("{BASE}{DATABASE}pool_size = -1\n");
    assert_one(&refused("a.toml", &text, &[]), ("a.toml", Some(5), "databases.app.pool_size", "from 0"));
}

/// What an entry of a database says is held against what holds for all, and told with the entry's own path.
#[test]
fn what_an_entry_says_is_checked_with_what_it_takes_over() {
    let cases: &[(&str, &str, usize, &str, &str)] = &[
        (
            "min_pool_size = 5\n",
            "pool_size = 3\n",
            6,
            "databases.app.pool_size",
            "min_pool_size 5 is more than pool_size 3",
        ),
        (
            "",
            "min_pool_size = 30\n",
            5,
            "databases.app.min_pool_size",
            "min_pool_size 30 is more than pool_size 20",
        ),
        (
            "",
            "[databases.app.coalesce]\nlock_timeout = \"900ms\"\nflush_timeout = \"800ms\"\n",
            6,
            "databases.app.coalesce.lock_timeout",
            "900 ms is not below flush_timeout (800 ms)",
        ),
        (
            "",
            "auth_dbname = \"other\"\n",
            5,
            "databases.app.auth_dbname",
            "no entry of [databases] is \"other\"",
        ),
    ];
    for (general, entry, line, key, says) in cases {
        let problems = refused("a.toml", &format!("{BASE}{general}{DATABASE}{entry}"), &[]);
        assert_one(&problems, ("a.toml", Some(*line), key, says));
    }
    toml(&format!("{BASE}{DATABASE}auth_dbname = \"other\"\n[databases.\"*\"]\nhost = \"h\"\n"));
}

#[test]
fn a_group_that_is_there_and_the_most_of_a_number_are_taken() {
    let group = nix::unistd::Group::from_gid(nix::unistd::getegid()).expect("groups").expect("one's own");
    let text =
        format!("{BASE}unix_socket_group = \"{}\"\ndefault_pool_size = 1000000\n{DATABASE}", group.name);
    assert_eq!(toml(&text).general.default_pool_size, 1_000_000);
    let problems = refused("a.toml", &text.replace("1000000", "1000001"), &[]);
    assert_one(
        &problems,
        ("a.toml", Some(4), "default_pool_size", "expected a whole number from 0 to 1000000"),
    );
}

#[test]
fn a_socket_of_our_own_has_a_path_that_the_system_takes() {
    let dir = files(&[]);
    let deep = dir.path().join("d".repeat(100));
    std::fs::create_dir(&deep).expect("a directory");
    let problems = refused("a.toml", &format!("{BASE}unix_socket_dir = {deep:?}\n{DATABASE}"), &[]);
    assert_one(&problems, ("a.toml", Some(3), "unix_socket_dir", "choose a shorter one"));
}

#[test]
fn tables_are_named_with_their_schema() {
    for name in ["t", ".t", "s.", "."] {
        let text = format!("{BASE}[coalesce.tables.\"{name}\"]\nmode = \"off\"\n{DATABASE}");
        let problems = refused("a.toml", &text, &[]);
        assert_eq!(problems.len(), 1, "{name}: {problems:#?}");
    }
    toml(&format!("{BASE}[coalesce.tables.\"s.t\"]\nmode = \"off\"\n{DATABASE}"));
}

/// Nobody could log in, unless users are looked up.
#[test]
fn an_empty_list_of_users_is_said_where_it_is_all_there_is() {
    let of = |more: &str, database: &str| {
        let text = format!(
            "[general]\nauth_type = \"scram-sha-256\"\nauth_file = \"none.txt\"\n{more}{DATABASE}{database}"
        );
        let dir = files(&[("a.toml", &text), ("none.txt", ""), ("userlist.txt", "\"q\" \"x\"\n")]);
        let loaded = read_in(&dir, "a.toml").expect("a file");
        loaded.notices.into_iter().map(|notice| (notice.key, notice.line)).collect::<Vec<_>>()
    };
    assert_eq!(of("", ""), [("auth_file".to_owned(), Some(3))]);
    assert_eq!(of("auth_user = \"q\"\n", ""), []);
    assert_eq!(of("", "auth_user = \"q\"\n"), []);
}

#[test]
fn secrets_are_not_in_messages() {
    let problems = refused("a.ini", "[databases]\nx = host=a password='hunter2 port=1\n", &[]);
    assert!(!format!("{problems:?}").contains("hunter2"));
    let problems = refused("a.ini", "[databases]\napp host=a password=hunter2\n", &[]);
    assert!(!format!("{problems:?}").contains("hunter2"));
    let problems = refused("a.toml", &format!("{BASE}{DATABASE}password = \"SCRAM-SHA-256$hunter2\"\n"), &[]);
    assert_one(&problems, ("a.toml", Some(5), "databases.app.password", "expected a password in clear"));
    assert!(!format!("{problems:?}").contains("hunter2"));
}

#[test]
fn includes_are_followed_and_bounded() {
    let dir = files(&[
        ("a.ini", "[pgbouncer]\nlisten_addr=*\nauth_type=trust\n%include b.ini\n"),
        ("b.ini", "listen_port=7777\n[databases]\napp=host=a\n"),
        ("loop.ini", "%include loop.ini\n"),
    ]);
    assert_eq!(read_in(&dir, "a.ini").expect("a file").settings.general.listen_port, 7777);
    let problems = read_in(&dir, "loop.ini").expect_err("a loop");
    assert!(problems[0].message.contains("does one include itself?"), "{problems:#?}");
    // Not only in depth.
    let of_files = |n: usize| {
        let text = format!(
            "[databases]\na = host=h\n[pgbouncer]\nauth_type=trust\n{}",
            "%include b.ini\n".repeat(n)
        );
        read_in(&files(&[("a.ini", &text), ("b.ini", "")]), "a.ini")
    };
    let names: Vec<_> = (0..9).map(|n| (format!("{n}.ini"), format!("%include {}.ini\n", n + 1))).collect();
    let mut chain: Vec<_> = names.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    chain.push(("9.ini", "[databases]\na = host=h\n[pgbouncer]\nauth_type=trust\n"));
    let chain = files(&chain);
    assert!(read_in(&chain, "1.ini").is_ok());
    let problems = read_in(&chain, "0.ini").expect_err("too deep");
    assert!(problems[0].message.contains("or 8 deep"), "{problems:#?}");
    assert!(of_files(64).is_ok());
    let problems = of_files(65).expect_err("too many");
    assert_one(&problems, ("a.ini", Some(69), "%include", "more than 64 files in all"));
}

#[test]
fn a_url_in_the_place_of_a_host_keeps_its_password() {
    let text = format!("{BASE}[databases.app]\nhost = \"postgres://u:sesame@h/\"\n");
    let problems = refused("a.toml", &text, &[]);
    assert_one(&problems, ("a.toml", Some(4), "databases.app.host", "\"h/\" is no host"));
    assert!(!problems[0].to_string().contains("sesame"), "{}", problems[0]);
}

/// Runs `parse` on a draft of a file in an empty directory.
fn with_draft<T>(parse: impl FnOnce(&mut Draft, &Path) -> T) -> (T, Draft) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("file");
    let mut draft = Draft::new(&file);
    let value = parse(&mut draft, &file);
    (value, draft)
}

#[test]
fn what_is_described_loads_to_the_same_and_holds_no_secret() {
    let text = r#"
[general]
auth_type = "scram-sha-256"
auth_file = "userlist.txt"
listen_addr = ["127.0.0.1", "::1"]
query_wait_timeout = 1.5
max_packet_size = "64MB"
[policy]
simple_query = "control"
[coalesce]
linger = "5ms"
[coalesce.tables."public.audit"]
mode = "off"
[databases."my \"app\""]
host = "127.0.0.1"
user = "svc"
password = "hunter2"
[databases."my \"app\"".coalesce]
mode = "shadow"
[databases."my \"app\"".coalesce.tables."public.events"]
deferred = true
[databases."*"]
host = ["a", "b"]
query_wait_timeout = 3
policy.enforce = "report"
[users.app]
pool_size = 3
[users.app.coalesce]
deferred = false
[users.app.policy]
allow_list = "learn"
allow_list_file = "list.txt"
[networks."10.0.0.0/8".policy]
statements = "read_only"
[networks.unix.policy]
sql_prepare = "deny"
"#;
    let dir =
        files(&[("a.toml", text), ("userlist.txt", &format!("\"app\" \"{VERIFIER}\"\n\"b\" \"hunter2\"\n"))]);
    let first = read_in(&dir, "a.toml").expect("good").settings;
    let described = describe(&first);
    assert!(!described.contains("hunter2") && !described.contains("MTIz"), "{described}");
    assert!(described.contains("query_wait_timeout = \"1500ms\"  # default: 120"), "{described}");
    assert!(
        described.contains("simple_query = \"control\"  # default: \"allow\"\nsql_prepare = \"allow\"\n"),
        "{described}"
    );
    assert!(described.contains("[databases.\"*\".policy]\nenforce = \"report\"\n"), "{described}");
    assert!(
        described.contains("[networks.\"10.0.0.0/8\".policy]\nstatements = \"read_only\"\n"),
        "{described}"
    );
    assert!(described.contains("\n[users.\"app\".coalesce]\ndeferred = false\n"), "{described}");
    assert!(described.contains("# password is set (in clear), not shown"), "{described}");
    assert!(described.contains("# users with a secret: 1 in clear, 1 scram-sha-256"), "{described}");
    std::fs::write(dir.path().join("b.toml"), &described).expect("a file");
    let again =
        read_in(&dir, "b.toml").unwrap_or_else(|problems| panic!("{described}\n{problems:#?}")).settings;
    assert_eq!(describe(&again), described.replace("# password is set (in clear), not shown\n", ""));
    assert_eq!(again.databases["my \"app\""].coalesce, first.databases["my \"app\""].coalesce);
}

#[test]
fn keys_are_named_once_and_start_with_their_defaults() {
    let mut seen = std::collections::HashSet::new();
    for key in keys() {
        assert!(seen.insert((key.section, key.name)), "{} stands twice", key.name);
        assert!(!key.meaning.is_empty() && !key.takes.is_empty(), "{}", key.name);
    }
    let shown = shown(&Settings::default());
    let of = |name: &str| shown.iter().find(|row| row.key == name).map(|row| row.value.as_str());
    assert_eq!(of("listen_port"), Some("6432"));
    assert_eq!(of("tcp_keepalive"), Some("1"));
    assert_eq!(of("query_wait_timeout"), Some("120"));
    assert_eq!(of("unix_socket_mode"), Some("0777"));
    assert_eq!(of("auth_file"), Some(""));
}

#[test]
fn no_key_of_ours_is_said_to_have_no_effect() {
    for key in keys() {
        assert_eq!(ignored::because(key.section, key.name), None, "{} is said to be ignored", key.name);
    }
}

#[test]
fn a_change_that_needs_a_restart_is_named() {
    let old = Settings::default();
    let mut new = Settings::default();
    new.general.listen_port = 7;
    new.general.max_client_conn = 7;
    assert_eq!(needs_restart(&old, &new), ["listen_port"]);
}

/// Reads `text` as each kind of file.
fn every_parser(text: &str) {
    with_draft(|draft, file| ini::parse(draft, file, text));
    with_draft(|draft, file| drop(userlist::parse(draft, file, text)));
    with_draft(|draft, file| drop(hba::parse(draft, file, text)));
    with_draft(|draft, file| drop(hba::parse_ident(draft, file, text)));
    with_draft(|draft, _| toml::parse(draft, text));
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        every_parser(&String::from_utf8_lossy(&bytes));
        let _ = into_text(bytes);
    }

    #[test]
    fn no_lines_of_pieces_make_a_parser_panic(pieces in proptest::collection::vec(piece(), 0..60)) {
        every_parser(&pieces.concat());
    }

    #[test]
    fn quoted_names_come_back_from_an_ident_file(names in proptest::array::uniform3("[^/\\x00-\\x1f\\x7f][^\\x00-\\x1f\\x7f]{0,19}")) {
        let [map, system, user] = &names;
        let quoted = names.each_ref().map(|name| format!("\"{}\"", name.replace('"', "\"\"")));
        let (maps, draft) = with_draft(|draft, file| hba::parse_ident(draft, file, &quoted.join(" ")));
        prop_assert_eq!(draft.problems, []);
        let mapping = Mapping { system: system.clone(), user: Some(user.clone()) };
        prop_assert_eq!(maps, [(map.clone(), vec![mapping])].into());
    }

    #[test]
    fn names_and_secrets_come_back_from_a_userlist(
        name in "[^\\x00-\\x1f\\x7f]{1,20}",
        secret in "[^\\x00-\\x1f\\x7f]{0,40}",
    ) {
        let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let line = format!("{} {}\n", quote(&name), quote(&secret));
        let (users, draft) = with_draft(|draft, file| userlist::parse(draft, file, &line));
        if !secret.starts_with("SCRAM-SHA-256$") {
            prop_assert!(draft.problems.is_empty(), "{:?}", draft.problems);
            let plain = Secret::Plain(secret.clone());
            // Noise that happens to be an MD5 secret would be one.
            prop_assert!(users.get(&name) == Some(&plain) || secret.starts_with("md5"));
        }
    }
}

/// A piece of any of the formats.
fn piece() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "[pgbouncer]",
        "[databases]",
        "[users]",
        "[general]",
        "[databases.a]",
        "[coalesce.tables.\"a.b\"]",
        "\n",
        "\n",
        "\n",
        "=",
        " ",
        "'",
        "\"",
        "''",
        "\"\"",
        ",",
        "@",
        "#",
        ";",
        "%include ",
        "host",
        "port",
        "all",
        "md5",
        "local ",
        "hostssl ",
        "10.0.0.0/8",
        "::1",
        "255.0.0.0",
        "SCRAM-SHA-256$",
        "4096:",
        "c2Fs",
        "password",
        "listen_port",
        "query_timeout",
        "999999999999999999999",
        "-1",
        "1e309",
        "kB",
        "min",
        "é",
        "\u{feff}",
        "*",
    ])
}

#[test]
fn sections_for_names_that_no_server_reads_are_named() {
    let name = "n".repeat(64);
    for section in [format!("databases.{name}"), format!("users.{name}")] {
        let key = if section.starts_with('d') { "host = \"a\"" } else { "pool_size = 1" };
        let text = format!("[general]\nauth_type = \"trust\"\n{DATABASE}\n[{section}]\n{key}\n");
        let problems = refused("a.toml", &text, &[]);
        assert!(problems.len() == 1 && problems[0].message.contains("reads 63 bytes"), "{problems:?}");
    }
    for key in ["user", "dbname", "auth_user"] {
        let text =
            format!("[general]\nauth_type = \"trust\"\n[databases.a]\nhost = \"a\"\n{key} = \"{name}\"\n");
        let problems = refused("a.toml", &text, &[]);
        assert_one(&problems, ("a.toml", Some(5), &format!("databases.a.{key}"), "reads 63 bytes"));
    }
    for key in ["auth_user", "admin_users", "stats_users"] {
        let text = format!("[general]\nauth_type = \"trust\"\n{key} = \"{name}\"\n{DATABASE}");
        assert_one(&refused("a.toml", &text, &[]), ("a.toml", Some(3), key, "reads 63 bytes"));
    }
}

#[test]
fn networks_are_addresses_with_a_prefix_or_unix() {
    let database = "[databases.\"*\"]\nhost = \"a\"\n[general]\nauth_type = \"trust\"\n";
    for (name, ip, holds) in [
        ("10.0.0.0/8", Some("10.255.0.1"), true),
        ("10.0.0.0/8", Some("::ffff:10.255.0.1"), true),
        ("10.0.0.0/8", Some("11.0.0.1"), false),
        ("10.0.0.0/8", None, false),
        ("192.0.2.1", Some("192.0.2.1"), true),
        ("192.0.2.1", Some("192.0.2.2"), false),
        ("2001:db8::/32", Some("2001:db8:1::1"), true),
        ("::/0", Some("10.0.0.1"), false),
        ("0.0.0.0/0", Some("10.0.0.1"), true),
        ("0.0.0.0/0", Some("2001:db8::1"), false),
        ("unix", None, true),
        ("unix", Some("127.0.0.1"), false),
    ] {
        let text = format!("{database}[networks.\"{name}\".policy]\nstatements = \"read_only\"\n");
        let dir = files(&[("a.toml", &text)]);
        let settings = read_in(&dir, "a.toml").expect(name).settings;
        let ip = ip.map(|ip| ip.parse().expect("an address"));
        assert_eq!(settings.networks[0].holds(ip), holds, "{name} {ip:?}");
    }
    for (name, why) in [
        ("10.0.0.1/8", "write 10.0.0.0/8"),
        ("10.0.0.0/33", "longer than 32 bits"),
        ("::1/129", "longer than 128 bits"),
        ("10.0.0", "is no network"),
        ("10.0.0.0/", "is no network"),
        ("10.0.0.0/-1", "is no network"),
        ("UNIX", "is no network"),
        ("::ffff:10.0.0.0/104", "written as IPv6"),
    ] {
        let dir =
            files(&[("a.toml", &format!("{database}[networks.\"{name}\".policy]\nenforce = \"report\"\n"))]);
        let problems = read_in(&dir, "a.toml").expect_err(name);
        assert!(problems[0].message.contains(why), "{name}: {problems:?}");
    }
    let dir = files(&[("a.toml", &format!("{database}[networks.unix]\npool_mode = \"session\"\n"))]);
    assert!(read_in(&dir, "a.toml").expect_err("a key")[0].message.contains("a network has a policy only"));
}

#[test]
fn allow_lists_are_read_with_the_file() {
    let database = "[databases.\"*\"]\nhost = \"a\"\n[general]\nauth_type = \"trust\"\n";
    let with = |policy: &str, list: Option<&str>| {
        let text = format!("{database}[policy]\n{policy}\n");
        let mut all = vec![("a.toml", text.as_str())];
        all.extend(list.map(|list| ("list", list)));
        let dir = files(&all);
        read_in(&dir, "a.toml")
            .map(|loaded| loaded.settings.allow_lists.values().map(|l| l.prints.len()).sum::<usize>())
    };
    let list = Some("# a list\n50fde20626009aba # SELECT\n\n8a2f0b6c1d3e4f50:3a7bd3e2360a3d29\n");
    assert_eq!(with("allow_list = \"reject\"\nallow_list_file = \"list\"", list).ok(), Some(2));
    assert_eq!(
        with("allow_list = \"learn\"\nallow_list_file = \"list\"", None).ok(),
        Some(0),
        "not there yet"
    );
    assert_eq!(with("allow_list = \"learn\"\nallow_list_file = \"list\"", list).ok(), Some(2), "goes on");
    for (policy, list, line, why) in [
        ("allow_list = \"reject\"\nallow_list_file = \"list\"", None, 7, "cannot be read"),
        ("allow_list = \"reject\"", None, 6, "needs a list"),
        ("allow_list = \"report\"\nallow_list_file = \"list\"", Some("\nSELECT 1\n"), 2, "is no fingerprint"),
    ] {
        let problems = with(policy, list).expect_err(policy);
        assert!(
            problems[0].message.contains(why) && problems[0].line == Some(line),
            "{policy}: {problems:?}"
        );
    }
}

/// What PgBouncer lets pass, and the start did, keeps no other key from being set.
#[test]
fn set_objects_to_no_more_than_the_start_did() {
    let text = "[databases]\na = host=h password=x\n[pgbouncer]\nlisten_addr = *\nauth_type = trust\nmin_pool_size = 30\n";
    let (ini, dir) = (Path::new("a.ini"), files(&[("a.ini", text)]));
    let settings = read(&dir.path().join("a.ini")).expect("PgBouncer takes it").settings;
    let settings = set(ini, &settings, "query_timeout", "7").expect("no matter of the others");
    assert_eq!(settings.general.query_timeout, Duration::from_secs(7));
    let Err(SetError::Invalid(why)) = set(Path::new("a.toml"), &settings, "query_timeout", "7") else {
        panic!("TOML is stricter")
    };
    assert!(why.contains("min_pool_size"), "{why}");
}

/// And to what the file would be refused for, in its words.
#[test]
fn set_objects_as_the_file_would() {
    let dir = files(&[("a.toml", &format!("{BASE}{DATABASE}pool_size = 5\n"))]);
    let file = dir.path().join("a.toml");
    let settings = read(&file).expect("a file").settings;
    let why = |key, value| match set(&file, &settings, key, value) {
        Err(SetError::Invalid(why)) => why,
        _ => panic!("{key} = {value}"),
    };
    let own = "30 is more than default_pool_size (20); lower min_pool_size or raise default_pool_size";
    assert_eq!(why("min_pool_size", "30"), own);
    assert_eq!(why("default_pool_size", "0x"), "expected a whole number from 0 to 1000000");
    // An entry is held against it, too.
    let entrys = why("min_pool_size", "6");
    assert!(
        entrys.starts_with("databases.app.pool_size: min_pool_size 6 is more than pool_size 5"),
        "{entrys}"
    );
    assert_eq!(set(&file, &settings, "min_pool_size", "5").expect("no more").general.min_pool_size, 5);
}
