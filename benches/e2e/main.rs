//! The end-to-end benchmark: direct, PgBouncer and pgsluice, interleaved in one run on real PostgreSQL.
//!
//! `make bench`, or `cargo bench --bench e2e -- CELL...`; `QUICK=1` for a short run, `REPS`, `SECS` and
//! `TARGETS="direct pgsluice"` to choose, `EXTRA_TOML` for lines of pgsluice's configuration.
//! A run of all cells at full length writes its section of `docs/benchmarks.md` (`WRITE=1`: any run does).

#![allow(clippy::print_stdout, missing_docs, unreachable_pub, missing_debug_implementations)]

mod ceiling;
mod cells;
#[path = "../common/mod.rs"]
mod common;
mod measure;
mod report;
mod rig;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use cells::{Cell, Target};
use common::{circumstances, setting, write_section};
use measure::{Effort, Repetitions};
use report::{Facts, Outcome};
use rig::Rig;

fn main() -> ExitCode {
    // cargo adds --bench.
    let names: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [argument, port] = &names[..]
        && argument == ceiling::ARGUMENT
    {
        ceiling::serve(port.parse().expect("a port"));
    }
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
        write_section("bench", &text);
    }
    ExitCode::SUCCESS
}

/// The targets of this run: all, or those that `TARGETS` names.
fn targets() -> Vec<Target> {
    let named = std::env::var("TARGETS").unwrap_or_default().to_lowercase();
    let all = [
        Target::Direct,
        Target::PgBouncer,
        Target::Pgsluice,
        Target::PgsluiceOff,
        Target::Single,
        Target::Control,
        Target::Ceiling,
    ]
    .into_iter();
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
    for turn in 0..if once { 1 } else { effort.repetitions * cell.times() } {
        let mut measured = |target| {
            // Two processes of one program differ, as long as they live, by more than is asked about.
            if cell.is_of_itself() {
                rig.restart(target);
                measure::run(rig, cell, target, 1);
            }
            (target, measure::run(rig, cell, target, seconds))
        };
        let samples: BTreeMap<_, _> = order.iter().map(|&target| measured(target)).collect();
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
    let quick = if quick { "QUICK=1 " } else { "" };
    let cells = if names.is_empty() { String::new() } else { format!(" CELLS=\"{}\"", names.join(" ")) };
    let mut lines = vec![("command", format!("`{quick}make bench{cells}`"))];
    lines.extend(circumstances(&rig.postgres));
    let pgbouncer = rig::pgbouncer_version();
    lines.push((
        "PgBouncer",
        format!("{pgbouncer}, transaction pooling, pool 20, TLS for who asks for it, trust, logging off"),
    ));
    let version = env!("CARGO_PKG_VERSION");
    lines.push(("pgsluice", format!("{version}, the same settings, otherwise its defaults")));
    Facts { lines }
}
