//! The command line.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use pgsluice::config::{self, Problem};
use pgsluice::limits::LOG_LAST_LINES;
use pgsluice::quickstart::{self, Options};
use pgsluice::review::{self, Sender};
use pgsluice::settings::Settings;
use pgsluice::{proxy, telemetry};

/// An async PostgreSQL proxy: pools connections, enforces a query-protocol policy,
/// and pours single INSERTs into COPY.
#[derive(Debug, Parser)]
#[command(name = "pgsluice", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy
    Serve(Config),
    /// Check a configuration: print what is effective and what has no effect
    Check(Check),
    /// Show it: a PostgreSQL in a temporary directory, pgsluice before it, an unmodified client's INSERTs both ways
    Quickstart(Show),
}

#[derive(Debug, Args)]
struct Config {
    /// The configuration: pgsluice's own (.toml) or PgBouncer's (.ini)
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    config: Config,
    /// Print what the policy lets through, for each user, database and network that the file names
    #[arg(long)]
    policy: bool,
    /// Say what becomes of this text, and by which rule
    #[arg(long = "try", value_name = "SQL", requires_all = ["user", "database"], allow_hyphen_values = true)]
    text: Option<String>,
    /// Who would send it
    #[arg(long, value_name = "NAME", requires = "text")]
    user: Option<String>,
    /// The database asked for
    #[arg(long, value_name = "NAME", requires = "text")]
    database: Option<String>,
    /// Where from: an address, or unix
    #[arg(long, value_name = "ADDRESS", requires = "text", default_value = "unix", value_parser = from_where)]
    from: From,
    /// Ask the configured server, too: it counts the statements, and one that passes is run in a transaction that is rolled back
    #[arg(long, requires = "text")]
    live: bool,
}

/// An address; `None`: over the Unix socket.
#[derive(Debug, Clone, Copy)]
struct From(Option<IpAddr>);

fn from_where(text: &str) -> Result<From, String> {
    if text == "unix" {
        return Ok(From(None));
    }
    text.parse().map(|ip| From(Some(ip))).map_err(|_| "neither an address nor unix".to_owned())
}

#[derive(Debug, Args)]
struct Show {
    /// Show once and end, instead of staying until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Clients that insert
    #[arg(long, value_name = "N", default_value_t = Options::default().clients, value_parser = clap::value_parser!(u32).range(1..=150))]
    clients: u32,
    /// Rows that each client inserts in one round
    #[arg(long, value_name = "N", default_value_t = Options::default().rows, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => serve(&args.config),
        Command::Check(args) => check(args),
        Command::Quickstart(Show { once, clients, rows }) => {
            return quickstart::run(Options { once, clients, rows });
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs until the proxy is told to stop; false if it could not start or had to give up.
fn serve(path: &Path) -> bool {
    let loaded = match config::read(path) {
        Ok(loaded) => loaded,
        Err(problems) => return refuse(&problems),
    };
    let general = &loaded.settings.general;
    if let Err(error) = telemetry::init(general.log_format, &general.log_level) {
        eprintln!("pgsluice: no thread for the log: {error}");
        return false;
    }
    for notice in &loaded.notices {
        telemetry::events::has_no_effect(notice);
    }
    let served = proxy::serve(loaded.settings, path.to_owned());
    if let Err(error) = &served {
        tracing::error!("{error}");
    }
    telemetry::flush(LOG_LAST_LINES);
    served.is_ok()
}

/// Prints the effective settings on standard output, and what has no effect on standard error.
fn check(args: Check) -> bool {
    let loaded = match config::read(&args.config.config) {
        Ok(loaded) => loaded,
        Err(problems) => return refuse(&problems),
    };
    for notice in &loaded.notices {
        eprintln!("{notice}");
    }
    let settings = &loaded.settings;
    // A closed pipe (| head) is no failure of the configuration.
    let print = |text: &str| drop(std::io::stdout().write_all(text.as_bytes()));
    let Some(text) = args.text else {
        print(&if args.policy { review::overview(settings) } else { config::describe(settings) });
        return true;
    };
    let (user, database) = (args.user.unwrap_or_default(), args.database.unwrap_or_default());
    let sender = Sender { user, database, ip: args.from.0 };
    print(&review::verdict(settings, &sender, &text));
    !args.live || ask_the_server(settings, &sender, &text, &print)
}

/// False if the server could not be asked.
fn ask_the_server(settings: &Settings, sender: &Sender, text: &str, print: &dyn Fn(&str)) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answer = match runtime {
        Ok(runtime) => runtime.block_on(review::live(settings, sender, text)),
        Err(error) => Err(error.to_string()),
    };
    match answer {
        Ok(answer) => {
            print(&answer);
            true
        }
        Err(error) => {
            eprintln!("pgsluice: the server cannot be asked: {error}");
            false
        }
    }
}

fn refuse(problems: &[Problem]) -> bool {
    for problem in problems {
        eprintln!("{problem}");
    }
    let (count, s) = (problems.len(), if problems.len() == 1 { "" } else { "s" });
    eprintln!("pgsluice: {count} problem{s} in the configuration");
    false
}
