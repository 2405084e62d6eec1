//! Finds an installed PostgreSQL and runs one in a temporary directory.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::{Failure, START_TIMEOUT, free_port, without_pg_settings};

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
        without_pg_settings(&mut command).current_dir("/").stdin(Stdio::null()).process_group(0);
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

/// Makes a cluster in `dir` (fsync on, as anybody's). `initdb` stands in `maker` until it has ended: whoever gives this up has
/// to end it, because it goes on writing into `dir`.
pub(super) async fn make(
    installation: &Installation,
    dir: &Path,
    maker: &mut Option<Child>,
) -> Result<(), Failure> {
    let home = home(dir);
    std::fs::create_dir(&home).map_err(|e| format!("{}: {e}", home.display()))?;
    if let Some((user, group)) = installation.run_as {
        // The way in and the home belong to the server's user; the configuration beside it stays ours.
        for path in [dir, &home] {
            chown(path, Some(user), Some(group)).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    let log = dir.join("initdb.log");
    let mut initdb = installation.server("initdb");
    initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-D"]).arg(data(dir));
    let child = initdb.stdout(Stdio::null()).stderr(file(&log)?).kill_on_drop(true).spawn();
    let child = maker.insert(child.map_err(|e| format!("initdb: {e}"))?);
    let ended = child.wait().await.map_err(|e| format!("initdb: {e}"))?;
    *maker = None;
    if ended.success() { Ok(()) } else { Err(format!("initdb failed:\n{}", text(&log))) }
}

/// Ends one of these programs and all that it has started, and waits until it has.
pub(super) async fn end(child: &mut Child, signal: &str) {
    let Some(pid) = child.id() else { return };
    let _ = Command::new("/bin/sh")
        .args(["-c", r#"kill -"$1" -"$2""#, "kill", signal, &pid.to_string()])
        .status()
        .await;
    if tokio::time::timeout(Duration::from_secs(10), child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

fn home(dir: &Path) -> PathBuf {
    dir.join("postgres")
}

fn data(dir: &Path) -> PathBuf {
    home(dir).join("data")
}

fn file(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A running PostgreSQL.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    dir: PathBuf,
    /// On 127.0.0.1.
    pub(super) port: u16,
}

impl Server {
    /// Starts it over what [`make`] made in `dir`.
    pub(super) fn start(installation: &Installation, dir: &Path) -> Result<Self, Failure> {
        let port = free_port()?;
        let mut postgres = installation.server("postgres");
        // Without a socket's file, for which the name of a temporary directory may be too long.
        postgres.arg("-D").arg(data(dir)).args(["-k", "", "-p", &port.to_string()]);
        for setting in
            ["listen_addresses=127.0.0.1", "max_connections=200", "shared_buffers=256MB", "max_wal_size=2GB"]
        {
            postgres.args(["-c", setting]);
        }
        postgres.stdout(Stdio::null()).stderr(file(&log_of(dir))?).kill_on_drop(true);
        let child = postgres.spawn().map_err(|e| format!("postgres: {e}"))?;
        Ok(Self { child, dir: dir.to_owned(), port })
    }

    /// The last line of `postmaster.pid` says it.
    pub(super) async fn until_ready(&mut self) -> Result<(), Failure> {
        let file = data(&self.dir).join("postmaster.pid");
        let up = async {
            while !text(&file).lines().any(|line| line.trim() == "ready") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let reached = tokio::select! {
            reached = tokio::time::timeout(START_TIMEOUT, up) => reached.map_err(|_| "did not get ready"),
            _ = self.child.wait() => Err("ended at once"),
        };
        reached.map_err(|why| format!("PostgreSQL {why}:\n{}", text(&log_of(&self.dir))))
    }

    /// Ends it at once, without a checkpoint: its data is about to be removed.
    pub(super) async fn stop(&mut self) {
        // QUIT is PostgreSQL's immediate shutdown; KILL would leave its children.
        end(&mut self.child, "QUIT").await;
    }
}

fn log_of(dir: &Path) -> PathBuf {
    dir.join("postgres.log")
}
