//! The command line: `check` and `serve` say what is wrong with a configuration, and end accordingly.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support;
use support::{PgOptions, Postgres, Proxy, Raw};

fn pgsluice(arguments: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgsluice")).args(arguments).arg(file).output().expect("pgsluice starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn a_good_file_is_printed_as_it_is_effective_and_what_has_no_effect_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgbouncer.ini");
    let ini = "[databases]\napp = host=10.0.0.1\n[pgbouncer]\nauth_type = trust\nlogfile = /x\npool_mode = statement\n";
    std::fs::write(&file, ini).expect("a file");
    let output = pgsluice(&["check", "-c"], &file);
    assert!(output.status.success(), "{output:?}");
    let effective = text(&output.stdout);
    assert!(effective.contains("pool_mode = \"statement\"  # default: \"session\"\n"), "{effective}");
    assert!(effective.contains("[databases.\"app\"]\nhost = [\"10.0.0.1\"]\n"), "{effective}");
    let notices = text(&output.stderr);
    assert!(notices.contains("pgbouncer.ini:5: logfile: has no effect, because"), "{notices}");
    assert_eq!(notices.lines().count(), 1, "{notices}");
}

#[test]
fn a_bad_file_is_refused_by_check_and_by_serve_with_every_mistake() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgsluice.toml");
    let toml = "[general]\nauth_type = \"trust\"\nlisten_prt = 1\n[databases.app]\nhost = \"a\"\nport = 0\n";
    std::fs::write(&file, toml).expect("a file");
    for command in ["check", "serve"] {
        let output = pgsluice(&[command, "--config"], &file);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let lines: Vec<&str> = text(&output.stderr).lines().collect();
        let [first, second, last] = lines[..] else { panic!("{lines:?}") };
        assert!(
            first.ends_with("pgsluice.toml:3: listen_prt: unknown key; did you mean listen_port?"),
            "{first}"
        );
        assert!(second.contains("pgsluice.toml:6: databases.app.port: found 0; expected"), "{second}");
        assert_eq!(last, "pgsluice: 2 problems in the configuration");
    }
}

#[test]
fn a_pidfile_of_a_process_that_runs_is_not_taken_over() {
    let (server, dir) = (Postgres::shared(), tempfile::tempdir().expect("a directory"));
    let pidfile = dir.path().join("pid");
    let named =
        || std::fs::read_to_string(&pidfile).expect("a pidfile").trim().parse::<u32>().expect("a number");
    let config = |more: &str| Proxy::config(server, &format!("pidfile = {pidfile:?}\n{more}"), "", "");
    let first = Proxy::start(&config(""));
    assert_eq!(named(), first.pid());
    let file = dir.path().join("pgsluice.toml");
    let port = support::child::free_port().to_string();
    std::fs::write(&file, config("").replace("@PORT@", &port)).expect("a file");
    let serve = [env!("CARGO_BIN_EXE_pgsluice"), "serve", "-c"];
    let output = Command::new("timeout").arg("20").args(serve).arg(&file).output().expect("it runs");
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("pidfile") && why.contains(&format!("process {}", first.pid())), "{why}");
    assert_eq!(named(), first.pid());
    // What a process left behind that was killed is nobody's.
    drop(first);
    let sharing = config("so_reuseport = true\nunix_socket_dir = \"@DIR@\"");
    let first = Proxy::start(&sharing);
    assert_eq!(named(), first.pid());
    let next = Proxy::start_beside(first.port(), &sharing);
    assert_eq!(named(), next.pid(), "the next one of those that share a port");
}

/// What the chart makes of its own values runs, and is not killed before it has drained.
#[test]
fn the_chart_holds_a_configuration_and_leaves_time_for_its_drain() {
    let values = include_str!("../deploy/chart/values.yaml");
    let (_, behind) = values.split_once("\nconfig: |\n").expect("a configuration");
    let theirs: String = behind
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("  "))
        .map(|line| line.trim_start().to_owned() + "\n")
        .collect();
    let helpers = include_str!("../deploy/chart/templates/_helpers.tpl");
    let (_, behind) = helpers.split_once("$own := printf \"").expect("the chart's own keys");
    let (own, _) = behind.split_once("\" (add1 ").expect("their end");
    // As the chart fills them in, by what stands in its values.
    let number = |key: &str| {
        let line = values.lines().find_map(|line| line.trim().strip_prefix(key)).expect(key);
        line.parse::<u64>().expect(key)
    };
    let (grace, timeout) = (number("grace: "), number("timeout: "));
    let mut own = own.replace("\\n", "\n").replace("\\\"", "\"");
    for n in [1, grace, timeout] {
        own = own.replacen("%d", &n.to_string(), 1);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgsluice.toml");
    std::fs::write(dir.path().join("userlist.txt"), "\"app\" \"secret\"\n").expect("a file");
    std::fs::write(&file, theirs.replace("[general]", &own)).expect("a file");
    let output = pgsluice(&["check", "-c"], &file);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let general = pgsluice::config::read(&file).expect("a configuration").settings.general;
    assert_eq!(general.shutdown_grace, Duration::from_secs(grace));
    assert_eq!(general.shutdown_timeout, Duration::from_secs(timeout));
    let pods = include_str!("../deploy/chart/templates/statefulset.yaml");
    assert!(pods.contains("(int .Values.shutdown.grace) (int .Values.shutdown.timeout) 15"));
    let http = general.http_addr.expect("probes need it");
    for port in [general.listen_port, http.port()] {
        assert!(pods.contains(&format!("containerPort: {port}}}")), "{port}");
    }
    for path in ["/readyz", "/healthz"] {
        assert!(pods.contains(&format!("path: {path},")), "{path}");
    }
}

/// Seen by `check` as the one who will run it, and nothing is left of having looked.
#[test]
fn files_that_could_not_be_written_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let [program, file, closed] = ["pgsluice", "pgsluice.toml", "closed"].map(|name| dir.path().join(name));
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
    };
    mode(dir.path(), 0o755);
    std::fs::copy(env!("CARGO_BIN_EXE_pgsluice"), &program).expect("a copy that anybody may run");
    std::fs::create_dir(&closed).expect("a directory");
    std::fs::write(closed.join("audit"), "").expect("a file");
    mode(&closed.join("audit"), 0o444);
    mode(&closed, 0o555);
    for (key, name, bad) in [
        ("audit_file", "closed/audit", true),
        ("audit_file", "closed/other", true),
        ("pidfile", "closed/pid", true),
        ("audit_file", "/dev/null", false),
    ] {
        let toml =
            format!("[general]\nauth_type = \"trust\"\n{key} = {name:?}\n[databases.a]\nhost = \"h\"\n");
        std::fs::write(&file, toml).expect("a file");
        let mut command = Command::new(&program);
        if support::child::is_root() {
            command.uid(65_534).gid(65_534);
        }
        let output = command.args(["check", "-c"]).arg(&file).output().expect("pgsluice starts");
        let said = format!(
            "pgsluice.toml:3: {key}: {}/{name} cannot be written by the user who runs this",
            dir.path().display()
        );
        assert_eq!(!output.status.success(), bad, "{output:?}");
        assert_eq!(text(&output.stderr).contains(&said), bad, "{output:?}");
    }
    assert_eq!(std::fs::read_dir(&closed).expect("a directory").count(), 1);
    mode(&closed, 0o755);
}

#[test]
fn a_start_that_fails_leaves_no_socket_behind() {
    let (dir, taken) = (tempfile::tempdir().expect("a directory"), TcpListener::bind("127.0.0.1:0").unwrap());
    let (file, port) = (dir.path().join("pgsluice.toml"), support::child::free_port());
    let http_addr = format!("http_addr = \"{}\"", taken.local_addr().unwrap());
    for why in [&*http_addr, "pidfile = \"/proc/pgsluice.pid\""] {
        let general = format!("listen_addr = []\nunix_socket_dir = {:?}\n{why}", dir.path());
        let config = Proxy::config(Postgres::shared(), &general, "", "");
        std::fs::write(&file, config.replace("@PORT@", &port.to_string())).expect("a file");
        let output = pgsluice(&["serve", "-c"], &file);
        let key = why.split(' ').next().expect("a key");
        assert!(text(&output.stderr).contains(key), "{output:?}");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!dir.path().join(format!(".s.PGSQL.{port}")).exists());
    }
}

/// On a port that is shared its clients would be lost with it.
#[test]
fn a_start_that_fails_for_http_addr_has_not_listened_for_clients() {
    let dir = tempfile::tempdir().expect("a directory");
    let taken = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let (clients, http) = (taken(), taken());
    let port = |listener: &TcpListener| listener.local_addr().expect("bound").port();
    let general = format!("http_addr = \"127.0.0.1:{}\"", port(&http));
    let config = Proxy::config(Postgres::shared(), &general, "", "");
    let file = dir.path().join("pgsluice.toml");
    std::fs::write(&file, config.replace("@PORT@", &port(&clients).to_string())).expect("a file");
    let output = pgsluice(&["serve", "-c"], &file);
    // Both are another's: what is said is what was tried first.
    assert!(text(&output.stderr).contains("(http_addr)"), "{output:?}");
}

#[test]
fn who_runs_it_as_root_is_told() {
    let proxy = Proxy::to(Postgres::shared(), "", "", "");
    // What is said behind it.
    proxy.wait_for_log("listening");
    assert_eq!(proxy.log().contains("runs as root"), support::child::is_root(), "{}", proxy.log());
}

/// 300 clients, two pools of 30 with their reserve, of which one database may have 10, and what there is beside.
#[test]
fn who_lets_it_open_too_few_files_is_told() {
    let general = "max_client_conn = 300\ndefault_pool_size = 25\nreserve_pool_size = 5";
    let more = "[databases.small]\nhost = \"127.0.0.1\"\nmax_db_connections = 10\n";
    let config = Proxy::config(Postgres::shared(), general, "", more);
    let says =
        "fewer files may be open than all clients and pools need: raise the limit (ulimit -n, LimitNOFILE=";
    let line = Proxy::start_with_few_files(371, &config).wait_for_log(says);
    for part in ["limit=371", "max_client_conn=300", "needed=372"] {
        assert!(line.contains(part), "{line}");
    }
    let enough = Proxy::start_with_few_files(372, &config);
    enough.wait_for_log("listening");
    assert!(!enough.log().contains(says), "{}", enough.log());
}

/// Each login is a line of the log.
#[test]
fn a_log_that_takes_nothing_keeps_nobody_out() {
    for format in ["text", "json"] {
        let general = format!("log_format = \"{format}\"");
        let proxy = Proxy::start_with_a_full_log(&Proxy::config(Postgres::shared(), &general, "", ""));
        for _ in 0..3 {
            let mut client = Raw::login(proxy.port(), "postgres");
            assert_eq!(client.value("SELECT 1").as_deref(), Some("1"), "{format}");
        }
    }
}

/// More than the pipe holds, in lines for each statement.
#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let server = Postgres::shared();
    let general = "log_level = \"trace\"";
    let mut proxy = Proxy::start_with_a_stalled_log(&Proxy::config(server, general, "", ""));
    for _ in 0..400 {
        let mut client = Raw::login(proxy.port(), "postgres");
        assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
        client.terminate();
    }
    proxy.terminate();
    assert!(proxy.wait_end().success());
}

#[test]
fn what_stops_the_start_is_logged_in_the_form_that_was_asked_for() {
    // Somebody else has the port: the start fails whatever else the machine can do.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgsluice.toml");
    let toml = format!(
        "[general]\nauth_type = \"trust\"\nlog_format = \"json\"\nlog_level = \"error\"\n\
         listen_port = {port}\n[databases.\"*\"]\nhost = \"127.0.0.1\"\n"
    );
    std::fs::write(&file, toml).expect("a file");
    let output = pgsluice(&["serve", "-c"], &file);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    assert!(!lines.is_empty());
    for line in lines {
        let event: serde_json::Value = serde_json::from_str(line).expect(line);
        assert_eq!(event["level"], "ERROR", "{line}");
        assert!(event["message"].is_string(), "{line}");
    }
}

const POLICY: &str = r#"
[general]
auth_type = "trust"
[databases.app]
host = "127.0.0.1"
[databases."*"]
host = "127.0.0.1"
[policy]
simple_query = "single"
[users.reader.policy]
statements = "read_only"
[users.etl.policy]
sql_prepare = "deny"
enforce = "report"
[networks."10.0.0.0/8".policy]
simple_query = "deny"
[networks.unix.policy]
statements = "no_ddl"
"#;

/// A file with this text; the directory goes with the value.
fn file_of(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pgsluice.toml");
    std::fs::write(&file, text).expect("a file");
    (dir, file)
}

#[test]
fn what_a_user_says_of_deferral_is_printed_and_checked() {
    let config = |said: &str| {
        file_of(&format!(
            "[general]\nauth_type = \"trust\"\n[databases.app]\nhost = \"a\"\n[users.ledger.coalesce]\n{said}\n"
        ))
    };
    let (_dir, file) = config("deferred = false");
    let output = pgsluice(&["check", "-c"], &file);
    assert!(output.status.success(), "{output:?}");
    let effective = text(&output.stdout);
    assert!(effective.contains("\n[users.\"ledger\".coalesce]\ndeferred = false\n"), "{effective}");
    for (said, why) in [
        ("defer = true", "6: users.ledger.coalesce.defer: unknown key"),
        (
            "max_rows = 5",
            "6: users.ledger.coalesce.max_rows: unknown key in this section; it belongs in [coalesce]",
        ),
    ] {
        let (_dir, file) = config(said);
        let output = pgsluice(&["check", "-c"], &file);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(&format!("pgsluice.toml:{why}")), "{output:?}");
    }
}

/// The block of rules that a line is in.
fn rules_for<'a>(overview: &'a str, line: &str) -> &'a str {
    let block = overview.split("\n\n").find(|block| block.lines().any(|l| l.trim() == line));
    block.unwrap_or_else(|| panic!("no {line:?} in:\n{overview}"))
}

/// What a row of the table says, with single spaces.
fn row(block: &str, what: &str) -> String {
    let line =
        block.lines().find(|l| l.trim_start().starts_with(what)).unwrap_or_else(|| panic!("{what}: {block}"));
    line.trim_start()[what.len()..].split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_policy_of_each_user_database_and_network_is_printed() {
    let (_dir, file) = file_of(POLICY);
    let output = pgsluice(&["check", "--policy", "-c"], &file);
    assert!(output.status.success(), "{output:?}");
    let overview = text(&output.stdout);
    // Three users (with any other), two databases, three places.
    assert_eq!(overview.matches("  for user ").count(), 18, "{overview}");

    let plain = rules_for(overview, "for user any other, database any other, from anywhere else");
    assert!(plain.contains("simple_query = \"single\"\n") && plain.contains("function_call = \"deny\"\n"));
    assert_eq!(row(plain, "one statement that reads"), "passes (1) passes");
    assert_eq!(row(plain, "several statements"), "refused: simple_query=single passes");
    assert_eq!(row(plain, "data definition"), "passes (1) passes");
    assert_eq!(row(plain, "FunctionCall"), "refused: function_call=deny");
    assert_eq!(row(plain, "replication connection"), "refused: replication=deny");

    let reader = rules_for(overview, "for user \"reader\", database \"app\", from 10.0.0.0/8");
    assert_eq!(row(reader, "one statement that reads"), "refused: simple_query=deny passes");
    assert_eq!(row(reader, "a write "), "refused: simple_query=deny refused: statements=read_only");
    assert_eq!(
        row(reader, "a write inside a read"),
        "refused: simple_query=deny refused: statements=read_only"
    );
    assert_eq!(row(reader, "what cannot be parsed"), "refused: simple_query=deny refused: text/unparsed");

    let unix = rules_for(overview, "for user \"reader\", database \"app\", from unix");
    assert!(unix.contains("statements = \"read_only\"\n"), "the stricter of two: {unix}");
    let etl = rules_for(overview, "for user \"etl\", database \"app\", from anywhere else");
    assert_eq!(row(etl, "PREPARE "), "passes, reported: sql_prepare=deny passes, reported: sql_prepare=deny");
    // `simple_query` is everybody's, and rejects.
    assert_eq!(row(etl, "DEALLOCATE"), "passes (1) passes");
    assert_eq!(row(etl, "several statements"), "refused: simple_query=single passes");
}

#[test]
fn one_text_is_judged_as_its_sender_would_be() {
    let (_dir, file) = file_of(POLICY);
    let judged = |sql: &str, user: &str, more: &[&str]| {
        let mut arguments = vec!["check", "--try", sql, "--user", user, "--database", "app"];
        arguments.extend_from_slice(more);
        arguments.push("-c");
        let output = pgsluice(&arguments, &file);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).to_owned()
    };
    let said = judged("DELETE FROM t WHERE a = 'hunter2'", "reader", &["--from", "192.0.2.1"]);
    assert!(
        said.contains("as Query: refused: statements=read_only\n  42501: a write is not allowed"),
        "{said}"
    );
    assert!(said.contains("as Parse: refused: statements=read_only\n"), "{said}");
    assert!(said.contains("HINT: Connect as a user"), "{said}");
    assert!(said.contains("counts 1 statement.\n  INSERT, UPDATE, DELETE or MERGE: a write\n"), "{said}");
    assert!(said.contains("# DELETE FROM t WHERE a = $1\n") && !said.contains("hunter2"), "{said}");
    let said = judged("SELECT 1; SELECT 2", "somebody", &["--from", "::ffff:10.1.1.1"]);
    assert!(said.contains("as Query: refused: simple_query=deny\n"), "{said}");
    assert!(said.contains("as Parse: passes\n") && said.contains("counts 2 statements."), "{said}");
    let said = judged("CREATE TABLE u ()", "somebody", &[]);
    assert!(said.contains("as Parse: refused: statements=no_ddl\n"), "over the Unix socket: {said}");
    // Without somebody to be it is no question.
    let output = pgsluice(&["check", "--try", "SELECT 1", "-c"], &file);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_text_is_tried_on_the_server_and_taken_back() {
    let server = Postgres::start(PgOptions::default());
    server.psql("postgres", "CREATE TABLE t (a int)");
    let toml = format!(
        "[general]\nauth_type = \"trust\"\n[databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {}\n\
         [policy]\nstatements = \"no_ddl\"\n",
        server.port()
    );
    let (_dir, file) = file_of(&toml);
    let live = |sql: &str, database: &str| {
        let arguments = ["check", "--try", sql, "--user", "postgres", "--database", database, "--live", "-c"];
        pgsluice(&arguments, &file)
    };
    for (sql, says) in [
        ("INSERT INTO t VALUES (1)", "rolled back: INSERT 0 1\n"),
        (
            "SELECT 1",
            "took the text as one Parse.\nlive: run in a transaction that was rolled back: SELECT 1\n",
        ),
        ("SELECT 1/0", "rolled back: division by zero (22012)\n"),
        (
            "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)",
            "cannot insert multiple commands into a prepared statement (42601)",
        ),
        (
            "COMMIT; INSERT INTO t VALUES (3)",
            "cannot insert multiple commands into a prepared statement (42601)",
        ),
        ("COMMIT", "not run, because a transaction could not take it back"),
        ("COPY t FROM STDIN", "not run, because there is nobody whose rows"),
        ("COPY (SELECT 1) TO STDOUT", "not run, because there is nobody whose rows"),
        ("INSERT INTO t VALUES ($1)", "not run, because nobody has said values for its parameters"),
        ("-- nothing", "not run, because there is no statement in it"),
        (
            "SELECT * FROM nowhere",
            "the server refuses the text as one Parse: relation \"nowhere\" does not exist (42P01)",
        ),
        ("DROP TABLE t", "live: not tried, because the policy refuses it"),
    ] {
        let output = live(sql, "postgres");
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stdout).contains(says), "{sql}: {}", text(&output.stdout));
        assert_eq!(server.psql("postgres", "SELECT count(*) FROM t").trim(), "0", "{sql}");
    }
    let output = live("SELECT 1", "nowhere");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot be asked"), "{output:?}");
}

#[test]
fn who_is_told_that_it_is_ready_may_send_signals() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let socket = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
    socket.set_read_timeout(Some(support::PATIENCE)).expect("a timeout");
    let port = support::free_port();
    let general = format!("[general]\nlisten_port = {port}\nauth_type = \"trust\"\nworkers = 1");
    let file = dir.path().join("pgsluice.toml");
    std::fs::write(&file, format!("{general}\n[databases.\"*\"]\nhost = \"127.0.0.1\"\n")).expect("write");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgsluice"))
        .args(["serve", "-c"])
        .arg(&file)
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .spawn()
        .expect("start pgsluice");
    let mut said = [0; 64];
    let said = socket.recv(&mut said).map(|n| said[..n].to_vec());
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_eq!(said.expect("a word"), b"READY=1\n");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask").trim();
    let caught = u64::from_str_radix(caught, 16).expect("hexadecimal digits");
    let (hup, int, quit, usr1, usr2, term) = (1, 2, 3, 10, 12, 15);
    for signal in [hup, int, quit, usr1, usr2, term] {
        assert!(caught & (1 << (signal - 1)) != 0, "signal {signal} would end it: {caught:x}");
    }
}
