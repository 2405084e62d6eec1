//! The founding measurements, made again: `make bench-seeds`, or `cargo bench --bench seeds -- CELL...`.
//!
//! Each cell prints a table beside the figures of the document it comes from. `QUICK=1` for a short run; `WRITE=1` puts each
//! table into its section of `docs/benchmarks.md`. Starts a PostgreSQL and pgsluices of its own and stops them.

#![allow(clippy::print_stdout, missing_docs, unreachable_pub, missing_debug_implementations)]

#[path = "../common/mod.rs"]
mod common;
mod crossover;
mod kvs;
mod lab;
mod line;
mod streams;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use common::{circumstances, setting, write_section};
use lab::Lab;

/// Name, title, and what makes the text.
type Cell = (&'static str, &'static str, fn(&Lab) -> String);

const CELLS: &[Cell] = &[
    ("multi-command", "S1: many commands in one packet", streams::multi_command),
    ("native-copy", "S2: a million rows, and native COPY", streams::native_copy),
    ("twelve-tables", "S5: twelve tables, 32 clients", streams::twelve_tables),
    ("copytest", "S6: INSERT against COPY", crossover::copytest),
    ("plans", "S6: the plans of a flush, by rows and width", crossover::plans),
    ("kvs", "S7: pgx, by each of its means", kvs::pgx),
    ("one-table", "S8: eight writers, one table", streams::one_table),
];

fn main() -> ExitCode {
    // cargo adds --bench.
    let names: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let Some(unknown) = names.iter().find(|n| !CELLS.iter().any(|(name, ..)| name == n)) {
        let known: Vec<_> = CELLS.iter().map(|(name, ..)| *name).collect();
        eprintln!("no cell is called {unknown:?}; there are: {}", known.join(", "));
        return ExitCode::from(2);
    }
    let quick = setting("QUICK").is_some();
    let lab = Lab::start(quick);
    for (name, title, make) in
        CELLS.iter().filter(|(name, ..)| names.is_empty() || names.iter().any(|n| n == name))
    {
        let begin = Instant::now();
        let mut text = format!("## {title}\n\n");
        let quick = if quick { "QUICK=1 " } else { "" };
        let _ = write!(text, "`{quick}make bench-seeds CELLS={name}`");
        for (what, value) in circumstances(&lab.postgres) {
            let _ = write!(text, "; {what}: {value}");
        }
        text += ".\n\n";
        text += &make(&lab);
        println!("{text}");
        eprintln!("{name}: {:.0} s", begin.elapsed().as_secs_f64());
        if setting("WRITE").is_some() {
            write_section(&format!("seeds {name}"), &text);
        }
    }
    ExitCode::SUCCESS
}
