//! Child processes that never outlive the test, and waiting for a condition.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For a process that was sent `STOP`, or is to end. Long, because a server that is killed leaves files that confuse the next start.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// A server process. Ends on drop, and when the test binary goes away without dropping it.
pub struct Guarded {
    child: Child,
    // Kept apart: `Child::wait` would close it, which tells the watcher that the test died.
    watcher: ChildStdin,
}

impl Guarded {
    /// Starts `argv`, as `user` if that is given and the test runs as root. If the test dies the watcher sends `signal`
    /// and removes `litter`.
    pub fn start(
        argv: &[String],
        user: Option<&str>,
        signal: &str,
        litter: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        // The watcher is orphaned at once (two forks), so that it is no child of the server.
        let script = r#"
            signal=$1 litter=$2; shift 2; exec 3<&0 </dev/null
            ( ( trap '' INT TERM HUP; ! read -r _ <&3 || exit; kill -"$signal" $$ 2>/dev/null
                tries=0; while kill -0 $$ 2>/dev/null && [ $tries -lt 200 ]; do sleep 0.05; tries=$((tries+1)); done
                kill -KILL $$ 2>/dev/null; [ -z "$litter" ] || rm -rf -- "$litter"
              ) >/dev/null 2>&1 & )
            exec 3<&-; exec "$@""#;
        let mut command = as_user(user, "/bin/sh");
        command.args(["-c", script, "watched", signal, litter]).args(argv).stdin(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {argv:?}: {e}"));
        let watcher = child.stdin.take().expect("stdin is piped");
        Self { child, watcher }
    }

    /// The server's own process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal by name (`TERM`, `HUP`, `KILL` ...). After `STOP` it returns when the process has stopped.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let _ = Command::new("/bin/sh").args(["-c", r#"kill -"$1" "$2""#, "kill", name, &pid]).status();
        if name == "STOP" {
            let stopped = poll(STOP_PATIENCE, || self.has_stopped().then_some(()));
            assert!(stopped.is_some(), "process {pid} does not stop");
        }
    }

    /// Has every thread of it stopped?
    fn has_stopped(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else { return true };
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state stands behind the name, which is in parentheses.
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
        })
    }

    /// The exit status if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("try_wait")
    }

    /// Waits for the end; kills and panics when it takes longer than `patience`.
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        let ended = poll(patience, || self.ended());
        ended.unwrap_or_else(|| {
            let _ = self.child.kill();
            let _ = self.child.wait();
            panic!("process {} did not end within {patience:?}", self.pid());
        })
    }

    /// Sends `signal`, and kills if that does not end the process. Never panics.
    pub fn stop(&mut self, signal: &str) {
        if self.ended().is_none() {
            self.signal(signal);
            if poll(STOP_PATIENCE, || self.ended()).is_none() {
                let _ = self.child.kill();
            }
        }
        let _ = self.child.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A line instead of the pipe's end tells the watcher that nothing is left to do.
        let _ = self.watcher.write_all(b"over\n");
    }
}

/// Asks `condition` again and again until it gives a value or `patience` is over.
pub fn poll<T>(patience: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if start.elapsed() > patience {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A TCP port on 127.0.0.1 that was free a moment ago, and that no other test was given.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind a free port");
        let port = listener.local_addr().expect("local address").port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return port;
        }
    }
}

/// Whether this process is root (PostgreSQL and PgBouncer refuse to be).
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"))
}

/// Removes the environment variables that libpq and the server's programs would take from the shell.
pub fn without_pg_settings(command: &mut Command) -> &mut Command {
    let is_one = |name: &[u8]| name.starts_with(b"PG") && !name.starts_with(b"PGSLUICE_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_one(name.as_encoded_bytes())) {
        command.env_remove(name);
    }
    command
}

/// `program` run as `user` when we are root, otherwise as ourselves.
pub fn as_user(user: Option<&str>, program: &str) -> Command {
    let mut command = match user {
        Some(user) if is_root() => {
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={user}"), format!("--regid={user}")]);
            command.args(["--init-groups", "--", program]);
            command
        }
        _ => Command::new(program),
    };
    without_pg_settings(&mut command);
    command
}

/// Runs to the end; panics with its output when it fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?} failed: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
