//! The end-to-end benchmark: direct, PgBouncer and pgsluice, interleaved in one run on real PostgreSQL.
//!
//! `make bench`, or `cargo bench --bench e2e -- CELL...`; `QUICK=1` for a short run, `REPS`, `SECS` and
//! `TARGETS="direct pgsluice"` to choose, `EXTRA_TOML` for lines of pgsluice's configuration.
//! A run of all cells at full length writes `docs/benchmarks.md` (`WRITE=1`: any run does).

#![allow(clippy::print_stdout, missing_docs, unreachable_pub, missing_debug_implementations)]

mod cells;
mod measure;
mod report;
mod rig;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, ExitCode};

use cells::{Cell, Target};
use measure::{Effort, Repetitions};
use report::{Facts, Outcome};
use rig::Rig;

fn main() -> ExitCode {
    // cargo adds --bench.
    let names: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let chosen = match cells::select(&names) {
        Ok(chosen) => chosen,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let quick = setting("QUICK").is_some();
    let effort = Effort {
        repetitions: setting("REPS").unwrap_or(if quick { 2 } else { 5 }) as usize,
        seconds: setting("SECS").unwrap_or(if quick { 2 } else { 4 }),
    };
    let targets = targets();
    let needed = |t: &&Target| chosen.iter().any(|cell| cell.targets.contains(t));
    let mut rig = Rig::start(&targets.iter().filter(needed).copied().collect::<Vec<_>>());
    let facts = facts(&rig, &names, quick);
    let outcomes: Vec<Outcome> =
        chosen.into_iter().map(|cell| outcome(&mut rig, cell, &targets, effort)).collect();
    let text = report::report(&outcomes, effort, &facts);
    println!("\n{text}");
    keep(&outcomes);
    if setting("WRITE").is_some() || (names.is_empty() && !quick) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/benchmarks.md");
        fs::write(path, text).expect("write docs/benchmarks.md");
        println!("written: docs/benchmarks.md");
    }
    ExitCode::SUCCESS
}

/// A number from the environment; empty and 0 count as not set.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|v| !v.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number"))).filter(|n| *n > 0)
}

/// The targets of this run: all, or those that `TARGETS` names.
fn targets() -> Vec<Target> {
    let named = std::env::var("TARGETS").unwrap_or_default().to_lowercase();
    let all = [Target::Direct, Target::PgBouncer, Target::Pgsluice, Target::PgsluiceOff].into_iter();
    all.filter(|t| named.is_empty() || named.split(' ').any(|n| n == t.name().to_lowercase())).collect()
}

/// All repetitions of one cell. Who comes first changes from one to the next.
fn outcome(rig: &mut Rig, cell: &'static Cell, targets: &[Target], effort: Effort) -> Outcome {
    let mut order: Vec<Target> = cell.targets.iter().copied().filter(|t| targets.contains(t)).collect();
    let (mut repetitions, seconds) = (Repetitions::new(), effort.seconds);
    let once = cell.load == cells::Load::Idle;
    if !once {
        for &target in &order {
            measure::run(rig, cell, target, 1);
        }
    }
    for turn in 0..if once { 1 } else { effort.repetitions } {
        let samples: BTreeMap<_, _> =
            order.iter().map(|&t| (t, measure::run(rig, cell, t, seconds))).collect();
        let line: Vec<String> = samples.iter().map(|(target, s)| brief(*target, s)).collect();
        eprintln!("{:<20} {}: {}", cell.name, turn + 1, line.join("   "));
        repetitions.push(samples);
        if !order.is_empty() {
            order.rotate_left(1);
        }
    }
    Outcome { cell, repetitions }
}

fn brief(target: Target, sample: &measure::Sample) -> String {
    let mut line = target.name().to_owned();
    if let Some(rate) = sample.rate {
        line += &format!(" {rate:.0}/s");
    }
    if let Some(cpu) = sample.cpu_us {
        line += &format!(" {cpu:.2} us");
    }
    if let (Some(login), Some(query)) = (sample.bytes_login, sample.bytes_query) {
        line += &format!(" {login:.0}, {query:.0} bytes");
    }
    line
}

/// All samples as JSON under the target directory, for tools.
fn keep(outcomes: &[Outcome]) {
    let cells: serde_json::Map<String, serde_json::Value> = outcomes
        .iter()
        .map(|o| {
            let repetitions = o.repetitions.iter().map(|r| {
                let each = r.iter().map(|(t, s)| (t.name().to_owned(), serde_json::json!(s)));
                serde_json::Value::Object(each.collect())
            });
            (o.cell.name.to_owned(), repetitions.collect())
        })
        .collect();
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/e2e.json");
    fs::write(path, serde_json::to_string_pretty(&cells).expect("JSON")).expect("write e2e.json");
    println!("samples: {path}");
}

fn facts(rig: &Rig, names: &[String], quick: bool) -> Facts {
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success());
        output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
    };
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, m)| m);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let temp = std::env::temp_dir();
    let filesystem = said("stat", &["-f", "-c", "%T", &temp.to_string_lossy()]);
    let quick = if quick { "QUICK=1 " } else { "" };
    let commit = said("git", &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"]);
    Facts {
        lines: vec![
            (
                "command",
                format!(
                    "`{quick}make bench{}`",
                    if names.is_empty() { String::new() } else { format!(" CELLS=\"{}\"", names.join(" ")) }
                ),
            ),
            ("date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
            ("commit", commit),
            (
                "machine",
                format!("{cores} CPUs ({model}), {} GB, Linux {}", kib >> 20, said("uname", &["-r"])),
            ),
            ("load when it began", load.split(' ').take(3).collect::<Vec<_>>().join(" ")),
            (
                "PostgreSQL",
                format!(
                    "{}, on the same machine, fsync on, data on {filesystem}",
                    rig.postgres.psql("postgres", "SHOW server_version").trim()
                ),
            ),
            (
                "PgBouncer",
                format!(
                    "{}, transaction pooling, pool 20, no TLS, trust, logging off",
                    rig::pgbouncer_version()
                ),
            ),
            ("pgsluice", format!("{}, the same settings, otherwise its defaults", env!("CARGO_PKG_VERSION"))),
        ],
    }
}
