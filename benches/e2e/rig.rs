//! The servers of one run: PostgreSQL, PgBouncer, pgsluice.

use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::ceiling;
use crate::cells::Target;
use crate::common::pgbench;
use crate::support::Certs;
use crate::support::child::{Guarded, run};
use crate::support::{PATIENCE, PgOptions, Postgres, Proxy, free_port, poll};

/// The database all cells use.
pub const DATABASE: &str = "bench";

/// The same one by the name under which pgsluice defers.
pub const DEFERRED: &str = "bench_deferred";

/// A table of ten integers.
const COLUMNS: &str =
    "(id1 int, id2 int, id3 int, id4 int, id5 int, id6 int, id7 int, id8 int, id9 int, id10 int)";

/// Everything that a run talks to.
pub struct Rig {
    pub postgres: Postgres,
    /// What both proxies show a client that asks for TLS.
    certs: Certs,
    pgbouncer: Option<Server>,
    pgsluice: Option<Proxy>,
    pgsluice_off: Option<Proxy>,
    single: Option<Proxy>,
    control: Option<Proxy>,
    ceiling: Option<Server>,
}

impl Rig {
    /// Starts PostgreSQL, fills the database, and starts the proxies among `targets`.
    pub fn start(targets: &[Target]) -> Self {
        raise_open_files();
        let conf = "fsync = on\nsynchronous_commit = on\nmax_connections = 300\nshared_buffers = 1GB\n\
                    max_wal_size = 8GB\ncheckpoint_timeout = 30min\nlog_checkpoints = off\n";
        let postgres = Postgres::start(PgOptions { conf: conf.into(), ..PgOptions::default() });
        postgres.psql("postgres", &format!("CREATE DATABASE {DATABASE}"));
        let mut pgbench = pgbench(postgres.port());
        run(pgbench.args(["-i", "-q", "-s", "10", DATABASE]));
        postgres.psql(DATABASE, &format!("CREATE TABLE batch {COLUMNS}"));
        postgres.psql(DATABASE, &format!("CREATE TABLE closed {COLUMNS}; CREATE TABLE checked {COLUMNS}"));
        postgres.psql(DATABASE, "CREATE RULE keep_out AS ON INSERT TO closed DO ALSO NOTHING");
        postgres.psql(DATABASE, "ALTER TABLE checked ADD CHECK (id2 > 0)");
        for n in 1..=12 {
            postgres.psql(DATABASE, &format!("CREATE TABLE t{n} {COLUMNS}"));
        }
        let mut rig = Self {
            postgres,
            certs: Certs::new("postgres"),
            pgbouncer: None,
            pgsluice: None,
            pgsluice_off: None,
            single: None,
            control: None,
            ceiling: None,
        };
        targets.iter().for_each(|&target| rig.restart(target));
        rig
    }

    /// Where clients of this target connect.
    pub fn port(&self, target: Target) -> u16 {
        match target {
            Target::Direct => self.postgres.port(),
            Target::PgBouncer => self.pgbouncer.as_ref().expect("started").port,
            Target::Pgsluice => self.pgsluice.as_ref().expect("started").port(),
            Target::PgsluiceOff => self.pgsluice_off.as_ref().expect("started").port(),
            Target::Single => self.single.as_ref().expect("started").port(),
            Target::Control => self.control.as_ref().expect("started").port(),
            Target::Ceiling => self.ceiling.as_ref().expect("started").port,
        }
    }

    /// The proxy's process; `None` for direct.
    pub fn pid(&self, target: Target) -> Option<u32> {
        match target {
            Target::Direct | Target::Ceiling => None,
            Target::PgBouncer => self.pgbouncer.as_ref().map(|p| p.process.pid()),
            Target::Pgsluice => self.pgsluice.as_ref().map(Proxy::pid),
            Target::PgsluiceOff => self.pgsluice_off.as_ref().map(Proxy::pid),
            Target::Single => self.single.as_ref().map(Proxy::pid),
            Target::Control => self.control.as_ref().map(Proxy::pid),
        }
    }

    /// A fresh process of this proxy (memory is measured from its start).
    pub fn restart(&mut self, target: Target) {
        match target {
            Target::Direct => {}
            Target::PgBouncer => self.pgbouncer = Some(start_pgbouncer(&self.postgres, &self.certs)),
            Target::Pgsluice => self.pgsluice = Some(self.start_pgsluice("")),
            Target::PgsluiceOff => {
                self.pgsluice_off = Some(self.start_pgsluice("[coalesce]\nmode = \"off\"\n"));
            }
            Target::Single => {
                self.single = Some(self.start_pgsluice("[policy]\nsimple_query = \"single\"\n"));
            }
            Target::Control => {
                self.control = Some(self.start_pgsluice("[policy]\nsimple_query = \"control\"\n"));
            }
            Target::Ceiling => self.ceiling = Some(start_ceiling()),
        }
    }

    /// pgsluice as it comes, logging off as for PgBouncer. `EXTRA_TOML` is appended, for experiments.
    fn start_pgsluice(&self, rest: &str) -> Proxy {
        let quiet = "workers = 0\nlog_connections = false\nlog_disconnections = false\nlog_pooler_errors = false\n\
                     log_level = \"warn\"\nmax_client_conn = 10000\ndefault_pool_size = 20\n\
                     pool_mode = \"transaction\"\nclient_tls_sslmode = \"allow\"\n";
        let (cert, key) = (self.certs.server_cert.display(), self.certs.server_key.display());
        let general = format!("{quiet}client_tls_cert_file = \"{cert}\"\nclient_tls_key_file = \"{key}\"");
        let extra = std::env::var("EXTRA_TOML").unwrap_or_default();
        let port = self.postgres.port();
        // pgbench prepares a client's statements with calls that block its whole thread: one that waited for a server would keep
        // those of its thread that have one from giving it back. So there are as many as clients.
        let deferred = format!(
            "[databases.{DEFERRED}]\nhost = \"127.0.0.1\"\nport = {port}\ndbname = \"{DATABASE}\"\n\
             pool_size = 40\n[databases.{DEFERRED}.coalesce]\ndeferred = true\n"
        );
        Proxy::to(&self.postgres, &general, "", &format!("{deferred}{rest}{extra}"))
    }
}

/// A server that is neither PostgreSQL nor pgsluice.
struct Server {
    process: Guarded,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Waits until it listens.
    fn up(what: &str, process: Guarded, port: u16, dir: tempfile::TempDir) -> Self {
        let up = poll(PATIENCE, || TcpStream::connect(("127.0.0.1", port)).ok());
        assert!(up.is_some(), "{what} did not start on port {port}");
        Self { process, port, _dir: dir }
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("pgsluice-bench-").tempdir().expect("temporary directory")
}

/// Debian's PgBouncer.
fn start_pgbouncer(postgres: &Postgres, certs: &Certs) -> Server {
    let (dir, port) = (directory(), free_port());
    let ini = dir.path().join("pgbouncer.ini");
    let userlist = dir.path().join("userlist.txt");
    let (cert, key) = (dir.path().join("server.crt"), dir.path().join("server.key"));
    fs::copy(&certs.server_cert, &cert).expect("server.crt");
    fs::copy(&certs.server_key, &key).expect("server.key");
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
         default_pool_size = 20\nmax_client_conn = 10000\nlog_connections = 0\nlog_disconnections = 0\n\
         log_pooler_errors = 0\nlog_stats = 0\nignore_startup_parameters = extra_float_digits\n\
         client_tls_sslmode = allow\nclient_tls_cert_file = {}\nclient_tls_key_file = {}\n",
        postgres.port(),
        userlist.display(),
        cert.display(),
        key.display()
    );
    fs::write(&ini, text).expect("pgbouncer.ini");
    fs::write(&userlist, "\"postgres\" \"\"\n").expect("userlist.txt");
    // It refuses to run as root.
    run(Command::new("chmod").arg("-R").arg("a+rX").arg(dir.path()));
    let argv = [program().into(), ini.display().to_string()];
    let litter = dir.path().to_string_lossy().into_owned();
    let process = Guarded::start(&argv, Some("postgres"), "TERM", &litter, silent);
    Server::up("PgBouncer", process, port, dir)
}

/// This program as [`ceiling`].
fn start_ceiling() -> Server {
    let (dir, port) = (directory(), free_port());
    let program = std::env::current_exe().expect("this program").display().to_string();
    let argv = [program, ceiling::ARGUMENT.into(), port.to_string()];
    let process = Guarded::start(&argv, None, "TERM", "", silent);
    Server::up("the ceiling", process, port, dir)
}

fn silent(command: &mut Command) {
    command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
}

fn program() -> &'static str {
    let found =
        ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|p| fs::exists(p).unwrap_or(false));
    found.expect("no pgbouncer: run `tests/setup.sh bench`")
}

/// The version line of PgBouncer.
pub fn pgbouncer_version() -> String {
    run(Command::new(program()).arg("--version")).lines().next().unwrap_or_default().to_owned()
}

/// Enough open files for the idle clients, here and in the children.
fn raise_open_files() {
    let pid = std::process::id().to_string();
    let raised =
        Command::new("prlimit").args(["--pid", &pid, "--nofile=65536:65536"]).stderr(Stdio::null()).status();
    if !raised.is_ok_and(|s| s.success()) {
        // Not root: as far as the hard limit allows.
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let line = limits.lines().find(|l| l.starts_with("Max open files")).unwrap_or_default();
        let hard = line.split_whitespace().nth(4).unwrap_or("1024").to_owned();
        let both = format!("--nofile={hard}:{hard}");
        let _ = Command::new("prlimit").args(["--pid", &pid, &both]).status();
    }
}
