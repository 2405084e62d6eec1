//! Finds an installed PostgreSQL and runs one in a temporary directory.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::{Failure, START_TIMEOUT, free_port};

/// The user that PostgreSQL runs as when quickstart runs as root: it refuses to be root.
const OS_USER: &str = "postgres";

/// Where the servers' programs are, and whom they run as.
#[derive(Debug)]
pub(super) struct Installation {
    bin: PathBuf,
    version: String,
    /// User and group to drop to; `None`: we are not root.
    run_as: Option<(u32, u32)>,
}

impl Installation {
    /// The one in PATH, or the newest of Debian's.
    pub(super) fn find() -> Result<Self, Failure> {
        let bin =
            candidates().into_iter().find(|bin| bin.join("initdb").exists() && bin.join("postgres").exists());
        let bin = bin.ok_or(
            "no PostgreSQL found: neither initdb in PATH nor /usr/lib/postgresql/*/bin (Debian: apt install postgresql)",
        )?;
        let said = std::process::Command::new(bin.join("postgres")).arg("--version").output();
        let said = said.map_err(|e| format!("{}: {e}", bin.join("postgres").display()))?;
        let version =
            String::from_utf8_lossy(&said.stdout).trim().replacen("postgres (PostgreSQL)", "PostgreSQL", 1);
        Ok(Self { bin, version, run_as: run_as()? })
    }

    /// As `postgres --version` says it.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// A client program of the same installation, or the one in PATH.
    pub(super) fn client(&self, name: &str) -> PathBuf {
        let own = self.bin.join(name);
        if own.exists() { own } else { name.into() }
    }

    /// A server program, to be run as whom it must.
    fn server(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        // A group of its own, as for the proxy.
        command.current_dir("/").stdin(Stdio::null()).process_group(0);
        if let Some((user, group)) = self.run_as {
            command.uid(user).gid(group);
        }
        command
    }
}

fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).filter(|dir| dir.join("initdb").exists());
    // A link in PATH leads to the directory where the server lies too.
    let in_path =
        in_path.filter_map(|dir| dir.join("initdb").canonicalize().ok()?.parent().map(Path::to_owned));
    let major =
        |dir: &PathBuf| dir.file_name().and_then(|n| n.to_str()?.parse::<u32>().ok()).unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = debian.map(|entry| entry.path()).collect();
    debian.sort_by_key(|dir| std::cmp::Reverse(major(dir)));
    in_path.chain(debian.into_iter().map(|dir| dir.join("bin"))).collect()
}

/// Whom to drop to: nobody unless we are root.
fn run_as() -> Result<Option<(u32, u32)>, Failure> {
    let me = std::fs::metadata("/proc/self").map_err(|e| format!("/proc/self: {e}"))?;
    if me.uid() != 0 {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").map_err(|e| format!("/etc/passwd: {e}"))?;
    let entry =
        passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|f| f.first() == Some(&OS_USER));
    let ids = entry.and_then(|f| Some((f.get(2)?.parse().ok()?, f.get(3)?.parse().ok()?)));
    let ids =
        ids.ok_or("PostgreSQL refuses to run as root, and there is no user postgres; run as another user")?;
    Ok(Some(ids))
}

/// A running PostgreSQL.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// On 127.0.0.1.
    pub(super) port: u16,
}

impl Server {
    /// Makes a cluster in `dir` (fsync on, as anybody's) and starts it.
    pub(super) async fn start(installation: &Installation, dir: &Path) -> Result<Self, Failure> {
        let home = dir.join("postgres");
        std::fs::create_dir(&home).map_err(|e| format!("{}: {e}", home.display()))?;
        if let Some((user, group)) = installation.run_as {
            // The way in and the home belong to the server's user; the configuration beside it stays ours.
            for path in [dir, &home] {
                chown(path, Some(user), Some(group)).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
        let data = home.join("data");
        let mut initdb = installation.server("initdb");
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-D"]).arg(&data);
        let made = initdb.output().await.map_err(|e| format!("initdb: {e}"))?;
        if !made.status.success() {
            return Err(format!("initdb failed:\n{}", String::from_utf8_lossy(&made.stderr)));
        }
        let port = free_port()?;
        let log = std::fs::File::create(dir.join("postgres.log")).map_err(|e| format!("no log file: {e}"))?;
        let mut postgres = installation.server("postgres");
        postgres.arg("-D").arg(&data).arg("-k").arg(&home).args(["-p", &port.to_string()]);
        for setting in
            ["listen_addresses=127.0.0.1", "max_connections=200", "shared_buffers=256MB", "max_wal_size=2GB"]
        {
            postgres.args(["-c", setting]);
        }
        let child = postgres.stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn();
        let mut server = Self { child: child.map_err(|e| format!("postgres: {e}"))?, port };
        match server.until_ready(&data).await {
            Ok(()) => Ok(server),
            Err(why) => {
                let log = std::fs::read_to_string(dir.join("postgres.log")).unwrap_or_default();
                Err(format!("PostgreSQL {why}:\n{log}"))
            }
        }
    }

    /// The last line of `postmaster.pid` says it.
    async fn until_ready(&mut self, data: &Path) -> Result<(), &'static str> {
        let file = data.join("postmaster.pid");
        let says_ready =
            || std::fs::read_to_string(&file).is_ok_and(|text| text.lines().any(|l| l.trim() == "ready"));
        let up = async {
            while !says_ready() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            reached = tokio::time::timeout(START_TIMEOUT, up) => reached.map_err(|_| "did not get ready"),
            _ = self.child.wait() => Err("ended at once"),
        }
    }

    /// Ends it at once, without a checkpoint: its data is about to be removed.
    pub(super) async fn stop(&mut self) {
        let Some(pid) = self.child.id() else { return };
        // QUIT is PostgreSQL's immediate shutdown; KILL would leave its children.
        let _ = Command::new("/bin/sh")
            .args(["-c", r#"kill -QUIT "$1""#, "kill", &pid.to_string()])
            .status()
            .await;
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}
