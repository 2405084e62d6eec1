//! S7: Go's pgx with its own means, direct and through. The program is `kvs/main.go`; here are its table and the report.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::middle;
use crate::lab::{Lab, SYNC};
use crate::support::child::run;

/// Milliseconds of the seed: rows, INSERTs one by one, INSERT of many rows, COPY.
const SEED_7: [(u64, f64, f64, f64); 4] =
    [(30, 15.4, 1.8, 1.1), (100, 17.3, 2.5, 3.0), (500, 82.9, 7.8, 5.1), (1_000, 141.0, 13.5, 9.7)];

/// What pgx can do, and what the program calls it.
const WAYS: [(&str, &str); 5] = [
    ("loop", "Exec in a loop"),
    ("loop_tx", "Exec in a loop, BEGIN and COMMIT"),
    ("batch", "SendBatch of INSERTs"),
    ("values", "INSERT of many rows"),
    ("copy", "CopyFrom"),
];

/// S7.
pub fn pgx(lab: &Lab) -> String {
    let program = build();
    lab.sql(SYNC, "CREATE TABLE kvs (key uuid, value bytea, \"timestamp\" timestamptz)");
    let mut times: BTreeMap<(String, u64, bool), Vec<f64>> = BTreeMap::new();
    for _ in 0..lab.effort(3, 1) {
        for (through, port) in [(false, lab.postgres.port()), (true, lab.pgsluice().port())] {
            lab.empty(SYNC, "kvs");
            let dsn =
                format!("postgres://postgres@127.0.0.1:{port}/{SYNC}?sslmode=disable&connect_timeout=20");
            let said = run(Command::new(&program).arg(dsn).arg(lab.effort(9, 3).to_string()));
            for line in said.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [way, rows, millis] = words[..] else { panic!("not understood: {line}") };
                let key = (way.to_owned(), rows.parse().expect("rows"), through);
                times.entry(key).or_default().push(millis.parse().expect("milliseconds"));
            }
        }
    }
    let mut out = String::from(
        "Milliseconds until all rows are stored, Go's pgx, one connection, `kvs(key uuid, value bytea, timestamp timestamptz)`,\n\
         values of 64 bytes, `synchronous_commit = on`; direct / through pgsluice. The seed's columns are its INSERTs one by one, its INSERT of many\n\
         rows, and its COPY.\n\n",
    );
    let names: Vec<&str> = WAYS.iter().map(|(_, name)| *name).collect();
    let _ =
        writeln!(out, "| rows | the seed | {} |\n|--:|--:|{}", names.join(" | "), "--:|".repeat(names.len()));
    for (rows, single, values, copy) in SEED_7 {
        let shown = |way: &str, through: bool| {
            let all = times.get(&(way.to_owned(), rows, through)).cloned().unwrap_or_default();
            middle(all).map_or_else(|| "–".into(), |v| format!("{v:.1}"))
        };
        let cells: Vec<String> =
            WAYS.iter().map(|(way, _)| format!("{} / {}", shown(way, false), shown(way, true))).collect();
        let _ = writeln!(out, "| {rows} | {single} {values} {copy} | {} |", cells.join(" | "));
    }
    out
}

/// Builds the program under the target directory.
fn build() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/seeds/kvs");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kvs");
    run(Command::new("go")
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source));
    program
}
