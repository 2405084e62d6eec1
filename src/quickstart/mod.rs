//! `pgsluice quickstart`: a PostgreSQL of its own, pgsluice before it, and an unmodified client that shows the
//! difference.
//!
//! Owns: the temporary directory, the two server processes in it and their end, and what is printed. Never: the
//! proxy's own work; pgsluice runs as a process of the same binary, with a configuration that is shown.

mod postgres;
mod show;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

use postgres::{Installation, Server};

/// How long a server may take to answer for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// What the operator asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Show once and end; otherwise stay until Ctrl-C, so that one's own client can be tried.
    pub once: bool,
    /// Clients of the show.
    pub clients: u32,
    /// Rows that each client inserts in one round.
    pub rows: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { once: false, clients: 64, rows: 500 }
    }
}

/// Why there was nothing to show.
type Failure = String;

/// What ends it: Ctrl-C, the service manager's, a terminal that is closed, Ctrl-\.
const ENDING: [SignalKind; 4] =
    [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];

/// Runs it to the end, or until a signal of [`ENDING`]; leaves no process and no file behind either way.
///
/// Blocks; builds its own runtime. What went wrong is printed on standard error.
pub fn run(options: Options) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    runtime.block_on(async {
        // Before there is anything to clear away.
        let mut signals = match ENDING.into_iter().map(signal).collect::<io::Result<Vec<_>>>() {
            Ok(signals) => signals,
            Err(error) => return failed(&format!("no signal handler: {error}")),
        };
        let mut site = match Site::new() {
            Ok(site) => site,
            Err(why) => return failed(&why),
        };
        let ended = tokio::select! {
            ended = site.work(options) => ended,
            () = any(&mut signals) => {
                // Behind the ^C; to nobody where the terminal is gone.
                let _ = say("");
                Ok(())
            }
        };
        site.clear().await;
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failed(&why),
        }
    })
}

fn failed(why: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "pgsluice quickstart: {why}");
    ExitCode::FAILURE
}

/// Waits for the first of them.
async fn any(signals: &mut [Signal]) {
    std::future::poll_fn(|context| {
        let come = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
        if come { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Prints a line. Whoever closed the pipe (`| head`) has seen enough: that ends the work, in order.
fn say(line: impl Display) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(|e| format!("cannot print: {e}"))
}

/// Takes the settings of libpq and PostgreSQL away that a shell may have for another server.
fn without_pg_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
        command.env_remove(name);
    }
    command
}

/// Everything that has to be cleared away.
#[derive(Debug)]
struct Site {
    installation: Installation,
    dir: PathBuf,
    /// `initdb`, while it runs.
    maker: Option<Child>,
    server: Option<Server>,
    proxy: Option<Child>,
}

impl Site {
    fn new() -> Result<Self, Failure> {
        let installation = Installation::find()?;
        let dir = temporary_dir().map_err(|e| format!("no temporary directory: {e}"))?;
        Ok(Self { installation, dir, maker: None, server: None, proxy: None })
    }

    async fn work(&mut self, options: Options) -> Result<(), Failure> {
        say(format_args!("starting {} in {}", self.installation.version(), self.dir.display()))?;
        postgres::make(&self.installation, &self.dir, &mut self.maker).await?;
        let server = self.server.insert(Server::start(&self.installation, &self.dir)?);
        server.until_ready().await?;
        let port = free_port()?;
        let config = self.dir.join("pgsluice.toml");
        std::fs::write(&config, configuration(port, server.port))
            .map_err(|e| format!("{}: {e}", config.display()))?;
        self.proxy = Some(start_proxy(&config)?);
        let proxy = self.proxy.as_mut().ok_or("no proxy")?;
        until_ready(proxy, port, &self.dir).await?;
        say(format_args!("\n  direct            {}", dsn(server.port)))?;
        say(format_args!("  through pgsluice  {}", dsn(port)))?;
        say(format_args!("  configuration     {}\n", config.display()))?;
        let scene = show::Scene {
            installation: &self.installation,
            dir: &self.dir,
            direct: server.port,
            through: port,
            options,
        };
        scene.play().await?;
        if !options.once {
            say("\nBoth go on running; connect with psql and try. Ctrl-C ends them and removes everything.")?;
            proxy.wait().await.map_err(|e| format!("waiting for the proxy: {e}"))?;
            return Err(format!("pgsluice ended:\n{}", log_of(&self.dir)));
        }
        Ok(())
    }

    /// Ends the processes and removes the directory.
    async fn clear(&mut self) {
        if let Some(mut proxy) = self.proxy.take() {
            // Nothing of it is worth a drain: all its data is about to be removed.
            let _ = proxy.kill().await;
        }
        if let Some(maker) = &mut self.maker {
            postgres::end(maker, "TERM").await;
        }
        if let Some(mut server) = self.server.take() {
            server.stop().await;
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn configuration(port: u16, server: u16) -> String {
    format!(
        "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = {port}\nauth_type = \"trust\"\nadmin_users = [\"postgres\"]\n\
         pool_mode = \"transaction\"\ndefault_pool_size = 20\nlog_connections = false\nlog_disconnections = false\n\n\
         [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {server}\n\n[coalesce]\nmode = \"on\"\n"
    )
}

fn dsn(port: u16) -> String {
    format!("postgresql://postgres@127.0.0.1:{port}/postgres")
}

fn start_proxy(config: &Path) -> Result<Child, Failure> {
    let program = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let log = std::fs::File::create(config.with_extension("log")).map_err(|e| format!("no log file: {e}"))?;
    let also = log.try_clone().map_err(|e| format!("no log file: {e}"))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("-c").arg(config).stdin(Stdio::null()).stdout(log).stderr(also);
    // A group of its own: Ctrl-C in the terminal reaches this process only, which then ends the others in order.
    command.process_group(0).kill_on_drop(true).spawn().map_err(|e| format!("cannot start the proxy: {e}"))
}

/// Waits until the proxy takes connections.
async fn until_ready(proxy: &mut Child, port: u16, dir: &Path) -> Result<(), Failure> {
    let up = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        reached = tokio::time::timeout(START_TIMEOUT, up) => {
            reached.map_err(|_| format!("pgsluice does not answer on port {port}\n{}", log_of(dir)))
        }
        _ = proxy.wait() => Err(format!("pgsluice ended\n{}", log_of(dir))),
    }
}

fn log_of(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("pgsluice.log")).unwrap_or_default()
}

fn free_port() -> Result<u16, Failure> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr());
    listener.map(|address| address.port()).map_err(|e| format!("no free port: {e}"))
}

/// A new directory that only its owner may enter.
fn temporary_dir() -> io::Result<PathBuf> {
    let name = format!("pgsluice-quickstart-{}-{:08x}", std::process::id(), rand::random::<u32>());
    let dir = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(dir)
}
