//! A private PostgreSQL: its own directory, port and socket; gone with the test.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::child::{Guarded, as_user, free_port, is_root, poll, run, without_pg_settings};
use super::direct::Direct;
use super::{Certs, PATIENCE};

/// The operating system's user that PostgreSQL runs as when the tests run as root.
const OS_USER: &str = "postgres";

/// How a [`Postgres`] differs from the plain one (trust for everybody, no TLS, fsync off).
#[derive(Debug, Clone, Default)]
pub struct PgOptions {
    /// Directory of `initdb` and `postgres`; `None`: `PGSLUICE_TEST_PG_BIN`, or the newest of Debian's.
    pub bin: Option<PathBuf>,
    /// The contents of `pg_hba.conf`; `None`: trust.
    pub hba: Option<String>,
    /// Lines appended to `postgresql.conf`; the last one of a name wins.
    pub conf: String,
    /// Server certificate; turns `ssl` on.
    pub tls: Option<Certs>,
}

impl PgOptions {
    /// A server whose JIT compilation fails at its first use.
    pub fn without_compiler() -> Self {
        Self { conf: "jit = on\njit_provider = 'plpgsql'\n".into(), ..Self::default() }
    }
}

/// A running PostgreSQL. Superuser `postgres`, database `postgres`, on 127.0.0.1 and a Unix socket.
pub struct Postgres {
    server: Guarded,
    port: u16,
    bin: PathBuf,
    dir: tempfile::TempDir,
}

impl Postgres {
    /// The plain server that all tests of this binary share. Make a database of your own in it
    /// with [`Self::fresh_database`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(PgOptions::default()))
    }

    /// A server of your own; stopped (fast) on drop.
    pub fn start(options: PgOptions) -> Self {
        let dir = tempfile::Builder::new().prefix("pgsluice-pg-").tempdir().expect("temporary directory");
        own(dir.path());
        let bin = usable_bin(options.bin.clone().unwrap_or_else(default_bin), dir.path());
        let data = dir.path().join("data");
        run(Command::new("cp").arg("-a").arg(template(&bin)).arg(&data));
        configure(&data, dir.path(), &options);
        own(dir.path());
        for _ in 0..5 {
            let port = free_port();
            let mut server = launch(&bin, dir.path(), port);
            if ready(&mut server, dir.path(), port) {
                return Self { server, port, bin, dir };
            }
        }
        panic!(
            "PostgreSQL did not start:\n{}",
            fs::read_to_string(dir.path().join("log")).unwrap_or_default()
        );
    }

    /// A standby that streams from this server, which is stopped meanwhile: on the same port, and on 127.0.0.2.
    pub fn standby(&mut self) -> Self {
        self.standby_through(self.port)
    }

    /// As [`Self::standby`], streaming by way of this port of 127.0.0.1.
    pub fn standby_through(&mut self, port: u16) -> Self {
        let dir = tempfile::Builder::new().prefix("pgsluice-pg-").tempdir().expect("temporary directory");
        let data = dir.path().join("data");
        self.stop();
        run(Command::new("cp").arg("-a").arg(self.data_dir()).arg(&data));
        self.start_again();
        fs::write(data.join("standby.signal"), "").expect("standby.signal");
        let places = format!(
            "listen_addresses = '127.0.0.2'\nunix_socket_directories = '{}'\n\
             primary_conninfo = 'host=127.0.0.1 port={port} user=postgres'\n",
            dir.path().display()
        );
        let conf = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf"));
        conf.and_then(|mut conf| conf.write_all(places.as_bytes())).expect("postgresql.conf");
        own(dir.path());
        let mut server = launch(&self.bin, dir.path(), self.port);
        let up = ready(&mut server, dir.path(), self.port);
        let standby = Self { server, port: self.port, bin: self.bin.clone(), dir };
        assert!(up, "the standby did not start:\n{}", standby.log());
        self.wait_until("postgres", "SELECT bool_or(state = 'streaming') FROM pg_stat_replication");
        standby
    }

    /// Makes a standby a primary; it takes writes when this returns.
    pub fn promote(&self) {
        assert_eq!(self.psql("postgres", "SELECT pg_promote()").trim(), "t");
    }

    /// TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Directory of its programs.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// Directory of the Unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The postmaster's process id.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Major version (15, 18 ...).
    pub fn major(&self) -> u32 {
        let number = self.psql("postgres", "SHOW server_version_num");
        number.trim().parse::<u32>().expect("server_version_num") / 10_000
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A connection string of key=value form, direct, without TLS.
    pub fn dsn(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname={database} sslmode=disable", self.port)
    }

    /// Creates a database with a name that no other test has; `sql` is run in it.
    pub fn fresh_database(&self, sql: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("t{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        if !sql.is_empty() {
            self.psql(&name, sql);
        }
        name
    }

    /// Runs `sql` direct (over the Unix socket) as the superuser, in a session of its own; rows come as lines, columns
    /// apart by `|`. Panics on an error.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        self.try_psql(database, sql).unwrap_or_else(|e| panic!("psql: {e}\nin: {sql}"))
    }

    /// As [`Self::psql`]; the error is what the server said, with its SQLSTATE.
    pub fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        Direct::login(self.socket_dir(), self.port, database)?.run(sql)
    }

    /// Waits until `sql` gives `t`, asking in one session; panics when that does not come.
    pub fn wait_until(&self, database: &str, sql: &str) {
        let told = |e: String| format!("psql: {e}\nin: {sql}");
        let login = Direct::login(self.socket_dir(), self.port, database);
        let mut direct = login.unwrap_or_else(|e| panic!("{}", told(e)));
        let mut is_true = || direct.run(sql).unwrap_or_else(|e| panic!("{}", told(e))).trim() == "t";
        let seen = poll(PATIENCE, || is_true().then_some(()));
        assert!(seen.is_some(), "never became true: {sql}");
    }

    /// Ends it as a crash would (`immediate`: SIGQUIT; then the next start recovers).
    pub fn crash(&mut self) {
        self.server.signal("QUIT");
        self.server.wait(PATIENCE);
    }

    /// Ends it in order (`fast`).
    pub fn stop(&mut self) {
        self.server.stop("INT");
    }

    /// Starts it again on the same port, after [`Self::crash`] or [`Self::stop`].
    pub fn start_again(&mut self) {
        self.server = launch(&self.bin, self.dir.path(), self.port);
        assert!(ready(&mut self.server, self.dir.path(), self.port), "no restart:\n{}", self.log());
    }

    /// Sends a signal to the postmaster (`HUP` reloads).
    pub fn signal(&self, name: &str) {
        self.server.signal(name);
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.server.stop("INT");
    }
}

/// Runs a client program.
pub fn client_command(name: &str) -> Command {
    let mut command = Command::new(client_program(name));
    without_pg_settings(&mut command);
    command
}

/// A client program (`psql`, `pgbench`): Debian's newest, or the one in PATH.
pub fn client_program(name: &str) -> PathBuf {
    debian_bins().into_iter().map(|bin| bin.join(name)).find(|p| p.exists()).unwrap_or_else(|| name.into())
}

/// Debian's `/usr/lib/postgresql/*/bin`, newest first.
fn debian_bins() -> Vec<PathBuf> {
    let major = |path: &PathBuf| {
        path.parent().and_then(|p| p.file_name()?.to_str()?.parse::<u32>().ok()).unwrap_or_default()
    };
    let entries = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut bins: Vec<_> = entries.map(|e| e.path().join("bin")).filter(|p| p.exists()).collect();
    bins.sort_by_key(|path| std::cmp::Reverse(major(path)));
    bins
}

fn default_bin() -> PathBuf {
    if let Some(bin) = std::env::var_os("PGSLUICE_TEST_PG_BIN") {
        return bin.into();
    }
    let found = debian_bins().into_iter().find(|bin| bin.join("initdb").exists());
    found.expect("no PostgreSQL found: run `make setup`, or set PGSLUICE_TEST_PG_BIN")
}

/// `bin`, or a copy of its installation in `dir` where the user postgres can reach it.
fn usable_bin(bin: PathBuf, dir: &Path) -> PathBuf {
    let reachable = as_user(Some(OS_USER), "test").arg("-x").arg(bin.join("postgres")).status();
    if reachable.is_ok_and(|status| status.success()) {
        return bin;
    }
    let installation = bin.parent().expect("bin has a parent");
    run(Command::new("cp").arg("-a").arg(installation).arg(dir.join("installation")));
    own(dir);
    dir.join("installation/bin")
}

/// Gives a directory to the user postgres when we are root.
fn own(dir: &Path) {
    if is_root() {
        run(Command::new("chown").arg("-R").arg(format!("{OS_USER}:{OS_USER}")).arg(dir));
    }
}

/// A freshly initialised data directory of this version, made once and kept under the target directory.
fn template(bin: &Path) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let version = run(Command::new(bin.join("postgres")).arg("--version"));
    let version: String = version.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    let user = if is_root() { "root" } else { "user" };
    let kept =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("initdb-{}-{user}", version.trim_matches('-')));
    if kept.exists() {
        return kept;
    }
    let dir = tempfile::Builder::new().prefix("pgsluice-initdb-").tempdir().expect("temporary directory");
    own(dir.path());
    let data = dir.path().join("data");
    let mut initdb = as_user(Some(OS_USER), &bin.join("initdb").to_string_lossy());
    initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]);
    run(initdb.arg("-D").arg(&data).current_dir("/"));
    let half = kept.with_extension(std::process::id().to_string());
    run(Command::new("cp").arg("-a").arg(&data).arg(&half));
    if fs::rename(&half, &kept).is_err() {
        // Another test binary was faster.
        let _ = fs::remove_dir_all(&half);
    }
    kept
}

fn configure(data: &Path, socket_dir: &Path, options: &PgOptions) {
    let conf = data.join("postgresql.conf");
    let mut text = fs::read_to_string(&conf).expect("postgresql.conf");
    // No work in the background: its workers would be counted as sessions, and there are hundreds of databases.
    let _ = write!(
        text,
        "\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nmax_connections = 400\n\
         autovacuum = off\nfsync = off\nshared_buffers = 64MB\nmax_prepared_transactions = 10\nlog_line_prefix = '%m [%p] %q%u@%d '\n",
        socket_dir.display()
    );
    if let Some(certs) = &options.tls {
        let place = |from: &Path, name: &str| {
            fs::copy(from, data.join(name)).expect("copy a certificate");
            run(Command::new("chmod").arg("600").arg(data.join(name)));
        };
        place(&certs.server_cert, "server.crt");
        place(&certs.server_key, "server.key");
        place(&certs.ca, "ca.crt");
        text.push_str("ssl = on\nssl_ca_file = 'ca.crt'\n");
    }
    text.push_str(&options.conf);
    text.push('\n');
    fs::write(&conf, text).expect("postgresql.conf");
    if let Some(hba) = &options.hba {
        fs::write(data.join("pg_hba.conf"), format!("{hba}\n")).expect("pg_hba.conf");
    }
}

fn launch(bin: &Path, dir: &Path, port: u16) -> Guarded {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).expect("log file");
    let argv = [
        bin.join("postgres").display().to_string(),
        "-D".into(),
        dir.join("data").display().to_string(),
        "-p".into(),
        port.to_string(),
    ];
    Guarded::start(&argv, Some(OS_USER), "INT", &dir.to_string_lossy(), |command| {
        command.current_dir("/").stdout(Stdio::null()).stderr(log);
    })
}

/// True when it takes connections; false when it has ended (the port was taken meanwhile).
fn ready(server: &mut Guarded, dir: &Path, port: u16) -> bool {
    let up = poll(Duration::from_secs(60), || {
        if server.ended().is_some() {
            return Some(false);
        }
        // A server whose HBA file asks for a password is up as well once it says so.
        let pid_file = fs::read_to_string(dir.join("data/postmaster.pid")).unwrap_or_default();
        let says_ready = pid_file.lines().any(|l| l.trim() == "ready");
        (says_ready || Direct::login(dir, port, "postgres").is_ok()).then_some(true)
    });
    up.unwrap_or(false)
}
