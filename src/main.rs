//! The command line.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use pgsluice::config::{self, Problem};
use pgsluice::quickstart::{self, Options};
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
    /// Check a configuration: print what is effective and what was not understood
    Check(Config),
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
        Command::Check(args) => check(&args.config),
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
    telemetry::init(general.log_format, &general.log_level);
    for notice in &loaded.notices {
        tracing::warn!("{notice}");
    }
    match proxy::serve(loaded.settings, path.to_owned()) {
        Ok(()) => true,
        Err(error) => {
            tracing::error!("{error}");
            false
        }
    }
}

/// Prints the effective settings on standard output, and what has no effect on standard error.
fn check(path: &Path) -> bool {
    match config::read(path) {
        Ok(loaded) => {
            for notice in &loaded.notices {
                eprintln!("{notice}");
            }
            // A closed pipe (| head) is no failure of the configuration.
            let _ = std::io::stdout().write_all(config::describe(&loaded.settings).as_bytes());
            true
        }
        Err(problems) => refuse(&problems),
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
