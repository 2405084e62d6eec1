//! A running pgsluice: the built binary with a configuration of the test's own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::child::{Guarded, free_port, poll};
use super::{PATIENCE, Postgres};

/// A running pgsluice; killed on drop.
pub struct Proxy {
    process: Guarded,
    port: u16,
    log: Arc<Mutex<String>>,
    dir: tempfile::TempDir,
}

impl Proxy {
    /// With the whole configuration (TOML). `@PORT@` stands for the port to listen on, `@DIR@` for a
    /// directory of this proxy's own. Returns when it answers; panics with its log when it does not.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// As [`Self::start`], with files (name, text) placed into `@DIR@` first.
    pub fn start_with(config: &str, files: &[(&str, &str)]) -> Self {
        Self::start_below(&[], config, files)
    }

    /// As [`Self::start`], beside another one that listens on `port` already (`so_reuseport`).
    pub fn start_beside(port: u16, config: &str) -> Self {
        let proxy = Self::launch(port, &[], config, &[]);
        // Its port answers anyway.
        proxy.wait_for_log(".s.PGSQL.");
        proxy
    }

    /// As [`Self::start`], with a listener that was opened by somebody else, as a service manager does it (LISTEN_FDS).
    pub fn start_handed(port: u16, listener: OwnedFd, config: &str) -> Self {
        let script = r#"exec 3>&1 >&2; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@""#;
        let below = ["/bin/sh", "-c", script, "handed"].map(str::to_owned);
        let proxy = Self::launch_with(port, &below, config, &[], Stdio::from(listener));
        proxy.wait_for_log("listening");
        proxy
    }

    /// As [`Self::start_with`], on a machine that trusts this authority.
    pub fn start_trusting(authority: &Path, config: &str, files: &[(&str, &str)]) -> Self {
        let below = ["env".to_owned(), format!("SSL_CERT_FILE={}", authority.display())];
        Self::start_below(&below, config, files)
    }

    /// As [`Self::start`], with at most `files` open files.
    pub fn start_with_few_files(files: usize, config: &str) -> Self {
        Self::start_below(&["prlimit".into(), format!("--nofile={files}:{files}")], config, &[])
    }

    /// As [`Self::start`], with a log that takes no line: its disk is full.
    pub fn start_with_a_full_log(config: &str) -> Self {
        let below = ["/bin/sh", "-c", r#"exec "$@" 2>/dev/full"#, "full"].map(str::to_owned);
        Self::start_below(&below, config, &[])
    }

    /// As [`Self::start`], with a log into a pipe that stays open and is not read.
    pub fn start_with_a_stalled_log(config: &str) -> Self {
        let script = r#"mkfifo "$1" && exec 3<>"$1" && rm "$1" && shift && exec "$@" 2>&3"#;
        let dir = tempfile::tempdir().expect("temporary directory");
        let fifo = dir.path().join("fifo").display().to_string();
        let below = ["/bin/sh", "-c", script, "stalled", &fifo].map(str::to_owned);
        Self::start_below(&below, config, &[])
    }

    /// `below` runs the proxy as its own last act.
    pub fn start_below(below: &[String], config: &str, files: &[(&str, &str)]) -> Self {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut proxy = Self::launch(free_port(), below, config, files);
            match proxy.until_ready() {
                Ok(()) => return proxy,
                Err(why) if tries < 3 && why.contains("in use") => {}
                Err(why) => panic!("pgsluice did not start: {why}\nconfiguration:\n{config}"),
            }
        }
    }

    /// Trust, transaction mode, every database of `server`. `general` and `database` are lines added
    /// to `[general]` and `[databases."*"]` (a key given there replaces the one from here); `rest`
    /// is appended (`[policy]`, `[coalesce]` ...).
    pub fn to(server: &Postgres, general: &str, database: &str, rest: &str) -> Self {
        Self::start(&Self::config(server, general, database, rest))
    }

    /// The text that [`Self::to`] starts with.
    pub fn config(server: &Postgres, general: &str, database: &str, rest: &str) -> String {
        let defaults = [
            r#"listen_addr = "127.0.0.1""#,
            "listen_port = @PORT@",
            r#"auth_type = "trust""#,
            r#"admin_users = ["postgres"]"#,
            "workers = 2",
        ];
        let port = format!("port = {}", server.port());
        let general = merged(&defaults, general);
        let database = merged(&[r#"host = "127.0.0.1""#, &port], database);
        format!("[general]\n{general}\n[databases.\"*\"]\n{database}\n{rest}\n")
    }

    fn launch(port: u16, below: &[String], config: &str, files: &[(&str, &str)]) -> Self {
        Self::launch_with(port, below, config, files, Stdio::piped())
    }

    fn launch_with(port: u16, below: &[String], config: &str, files: &[(&str, &str)], stdout: Stdio) -> Self {
        let dir = tempfile::Builder::new().prefix("pgsluice-proxy-").tempdir().expect("temporary directory");
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("write a file of the proxy");
        }
        let path = dir.path().join("pgsluice.toml");
        fs::write(&path, filled(config, port, dir.path())).expect("write the configuration");
        let own =
            [env!("CARGO_BIN_EXE_pgsluice"), "serve", "-c", &path.display().to_string()].map(str::to_owned);
        let argv = [below, &own].concat();
        let mut process = Guarded::start(&argv, None, "KILL", &dir.path().to_string_lossy(), |command| {
            command.stdout(stdout).stderr(Stdio::piped()).env("RUST_BACKTRACE", "1");
        });
        let log = Arc::new(Mutex::new(String::new()));
        let child = process.child();
        collect(child.stderr.take().expect("stderr is piped"), Arc::clone(&log));
        if let Some(stdout) = child.stdout.take() {
            collect(stdout, Arc::clone(&log));
        }
        Self { process, port, log, dir }
    }

    /// Up when an SSLRequest is answered: then the acceptor and a session both work.
    fn until_ready(&mut self) -> Result<(), String> {
        let port = self.port;
        let up = poll(PATIENCE, || match self.process.ended() {
            Some(status) => Some(Err(format!("it ended with {status}"))),
            None => answers(port).then_some(Ok(())),
        });
        match up {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => {
                // The reader thread may still be at the last lines.
                poll(Duration::from_millis(200), || (!self.log().is_empty()).then_some(()));
                Err(format!("{why}\n{}", self.log()))
            }
            None => Err(format!("no answer on port {port}\n{}", self.log())),
        }
    }

    /// TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The directory that `@DIR@` stands for.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A connection string of key=value form, through this proxy, without TLS.
    pub fn dsn(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname={database} sslmode=disable", self.port)
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("log").clone()
    }

    /// Waits for a log line that contains `text`; returns it. Panics when none comes.
    pub fn wait_for_log(&self, text: &str) -> String {
        let found = poll(PATIENCE, || self.log().lines().find(|l| l.contains(text)).map(str::to_owned));
        found.unwrap_or_else(|| panic!("no log line with {text:?} in:\n{}", self.log()))
    }

    /// Writes a new configuration (as for [`Self::start`]) and sends SIGHUP. The caller waits for
    /// what the reload is to change.
    pub fn reload(&self, config: &str) {
        self.write_config(config);
        self.process.signal("HUP");
    }

    /// Writes a new configuration, for a RELOAD on the console.
    pub fn write_config(&self, config: &str) {
        let path = self.dir.path().join("pgsluice.toml");
        fs::write(path, filled(config, self.port, self.dir.path())).expect("write the configuration");
    }

    /// Sends SIGTERM: drain. See [`Self::wait_end`].
    pub fn terminate(&self) {
        self.process.signal("TERM");
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits for the end; panics when it does not come.
    pub fn wait_end(&mut self) -> ExitStatus {
        self.process.wait(PATIENCE)
    }

    /// Whether it still runs; a test of hostile input ends with this.
    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none() && answers(self.port)
    }

    /// Resident memory now (bytes).
    pub fn rss(&self) -> u64 {
        status_kib(self.pid(), "VmRSS:") * 1024
    }

    /// Highest resident memory so far (bytes).
    pub fn peak_rss(&self) -> u64 {
        status_kib(self.pid(), "VmHWM:") * 1024
    }
}

/// `defaults`, without those whose key stands in `lines`, and `lines`.
fn merged(defaults: &[&str], lines: &str) -> String {
    let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let given: Vec<String> = lines.lines().map(key).collect();
    let mut all: Vec<&str> = defaults.iter().copied().filter(|line| !given.contains(&key(line))).collect();
    all.extend(lines.lines());
    all.join("\n")
}

fn filled(config: &str, port: u16, dir: &Path) -> String {
    config.replace("@PORT@", &port.to_string()).replace("@DIR@", &dir.display().to_string())
}

fn collect(from: impl Read + Send + 'static, log: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            log.lock().expect("log").push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
}

fn answers(port: u16) -> bool {
    let try_it = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f])?;
        stream.read_exact(&mut [0])
    };
    try_it().is_ok()
}

fn status_kib(pid: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or_default()
}
