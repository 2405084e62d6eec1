//! PostgreSQL's own regression statements, sent by psql direct and through pgsluice: the output of every file must be
//! the same, but for the files and causes listed here.
//!
//! `make regress` brings the statements (they are not ours to keep) and runs this. By hand: `PGSLUICE_REGRESS` is the
//! directory `src/test/regress` of PostgreSQL's sources; `PGSLUICE_REGRESS_FILES` chooses files.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{PgOptions, Postgres, Proxy, client_program};

/// As the regression suite wants it; and no work in the background.
const CONF: &str =
    "autovacuum = off\njit = off\ntimezone = 'PST8PDT'\ndatestyle = 'Postgres, MDY'\nlc_messages = 'C'";

/// A file whose output may differ.
struct Known {
    file: &'static str,
    /// Only with this `simple_query`, this `pool_mode`; empty: with every one.
    level: &'static str,
    mode: &'static str,
    why: &'static str,
}

const fn known(file: &'static str, level: &'static str, mode: &'static str, why: &'static str) -> Known {
    Known { file, level, mode, why }
}

#[rustfmt::skip]
const KNOWN: &[Known] = &[
    known("guc", "", "", "a server process that served others has PL/pgSQL loaded; pg_prepared_statements shows the pool's"),
    known("stats", "", "", "reconnecting starts no new session on the server"),
    known("temp", "", "", "a server process that served others has its temporary schema already"),
    known("constraints", "", "transaction", "currval() is known within a transaction only, and a default reads it"),
    known("prepare", "", "transaction", "pg_prepared_statements shows the pool's statements, too"),
    known("sysviews", "", "transaction", "pg_prepared_statements shows the pool's statements, too"),
    known("copyselect", "single", "", "several statements in one Query"),
    known("psql", "single", "", "several statements in one Query"),
    known("transactions", "single", "", "several statements in one Query"),
    known("portals", "single", "", "pg_cursors shows the query itself; rows of a binary cursor"),
    known("sysviews", "single", "", "pg_cursors shows the query itself"),
    known("rules", "single", "", "several results of one statement"),
    known("with", "single", "", "several results of one statement"),
];

/// One way to the server.
struct Way {
    name: String,
    level: &'static str,
    mode: &'static str,
}

/// What came of it: the outputs by file, and how many statements the proxy passed.
struct Outcome {
    outputs: BTreeMap<String, String>,
    statements: u64,
}

/// Files in the order of the schedule, one after the other.
fn files(regress: &Path) -> Vec<String> {
    let schedule = fs::read_to_string(regress.join("parallel_schedule")).expect("parallel_schedule");
    let chosen = std::env::var("PGSLUICE_REGRESS_FILES").unwrap_or_default();
    let chosen: Vec<&str> = chosen.split_whitespace().collect();
    let lines = schedule.lines().filter_map(|line| line.strip_prefix("test:"));
    let all = lines.flat_map(str::split_whitespace).map(str::to_owned);
    all.filter(|file| chosen.is_empty() || file == "test_setup" || chosen.contains(&file.as_str()))
        .filter(|file| regress.join("sql").join(format!("{file}.sql")).exists())
        .collect()
}

fn run(way: &Way, regress: &Path, files: &[String]) -> Outcome {
    let pg = Postgres::start(PgOptions { conf: CONF.into(), ..PgOptions::default() });
    // Where the server can read the data and write its results.
    let place = pg.socket_dir().join("regress");
    support::child::run(Command::new("cp").arg("-a").arg(regress).arg(&place));
    for made in ["results", "testtablespace"] {
        let _ = fs::create_dir(place.join(made));
    }
    support::child::run(Command::new("chmod").args(["-R", "a+rwX"]).arg(&place));
    let proxy = (way.level != "direct").then(|| {
        let general = format!(
            "pool_mode = \"{}\"\ndefault_pool_size = 5\nlog_connections = false\nlog_disconnections = false",
            way.mode
        );
        Proxy::to(&pg, &general, "", &format!("[policy]\nsimple_query = \"{}\"", way.level))
    });
    pg.psql("postgres", "CREATE DATABASE regression TEMPLATE template0");
    let port = proxy.as_ref().map_or(pg.port(), Proxy::port);
    let mut outputs = BTreeMap::new();
    for file in files {
        let output = psql(port, &place, file);
        outputs.insert(file.clone(), output.replace(&pg.socket_dir().display().to_string(), "DIR"));
    }
    keep(way, &outputs);
    Outcome { outputs, statements: proxy.map_or(0, |proxy| statements(&proxy)) }
}

/// For who looks into a difference.
fn keep(way: &Way, outputs: &BTreeMap<String, String>) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regress").join(way.name.trim().replace(' ', "-"));
    fs::create_dir_all(&dir).expect("directory of outputs");
    for (file, output) in outputs {
        fs::write(dir.join(format!("{file}.out")), output).expect("write an output");
    }
}

/// Output and errors in the order in which they came, statements among them.
fn psql(port: u16, place: &Path, file: &str) -> String {
    let (sql, out) = (place.join("sql").join(format!("{file}.sql")), place.join("out"));
    let written = File::create(&out).expect("output file");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "600"]).arg(client_program("psql")).args([
        "-X",
        "-a",
        "-d",
        "regression",
    ]);
    command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port.to_string()]);
    command.args(["-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"]).current_dir(place);
    command.envs([("PG_ABS_SRCDIR", place), ("PG_ABS_BUILDDIR", place), ("PG_LIBDIR", place)]);
    command.env("PG_DLSUFFIX", ".so").env("LC_ALL", "C").env_remove("PGOPTIONS");
    command.stdin(File::open(sql).expect("statements"));
    command.stdout(written.try_clone().expect("output file")).stderr(Stdio::from(written));
    let status = command.status().expect("run psql");
    String::from_utf8_lossy(&fs::read(&out).expect("output")).into_owned() + &format!("psql: {status}\n")
}

/// `total_query_count` of the database.
fn statements(proxy: &Proxy) -> u64 {
    let rows = support::Raw::login(proxy.port(), "pgsluice").rows("SHOW STATS_TOTALS");
    let row = rows.into_iter().find(|row| row[0].as_deref() == Some("regression"));
    row.and_then(|row| row[3].as_deref()?.parse().ok()).expect("query_count of the database")
}

/// How many lines differ, and the first of them.
fn difference(direct: &str, through: &str) -> (usize, String) {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::write(dir.path().join("direct"), direct).expect("write");
    fs::write(dir.path().join("through"), through).expect("write");
    let diff = Command::new("diff").args(["-U1", "direct", "through"]).current_dir(dir.path()).output();
    let text = String::from_utf8_lossy(&diff.expect("run diff").stdout).into_owned();
    let lines = text.lines().skip(2);
    let count = lines.clone().filter(|l| l.starts_with(['+', '-'])).count();
    (count, lines.take(24).map(|l| format!("    {:.160}\n", l)).collect())
}

#[test]
#[ignore = "needs PostgreSQL's sources and minutes: make regress"]
fn the_regression_suite_cannot_tell() {
    let regress = std::env::var_os("PGSLUICE_REGRESS").map(PathBuf::from);
    let regress = regress.expect("PGSLUICE_REGRESS: run `make regress`");
    let files = files(&regress);
    assert!(!files.is_empty(), "no statements in {}", regress.display());
    let mut ways = vec![("direct", ""), ("direct", "")];
    ways.extend(["allow", "single"].into_iter().flat_map(|l| ["session", "transaction"].map(|m| (l, m))));
    let ways: Vec<Way> =
        ways.into_iter().map(|(level, mode)| Way { name: format!("{level} {mode}"), level, mode }).collect();
    let mut outcomes = Vec::new();
    for pair in ways.chunks(2) {
        let ran: Vec<Outcome> = std::thread::scope(|scope| {
            let work: Vec<_> = pair.iter().map(|way| scope.spawn(|| run(way, &regress, &files))).collect();
            work.into_iter().map(|w| w.join().expect("a way failed")).collect()
        });
        outcomes.extend(ran);
    }
    let direct = &outcomes[0].outputs;
    let stable = |file: &String| direct[file] == outcomes[1].outputs[file];
    let unstable: Vec<_> = files.iter().filter(|file| !stable(file)).collect();
    println!(
        "{} files, {} of them differ from one direct run to the next: {unstable:?}",
        files.len(),
        unstable.len()
    );
    let mut surprises = 0;
    for (way, outcome) in ways.iter().zip(&outcomes).skip(2) {
        let differ: Vec<_> =
            files.iter().filter(|f| stable(f) && direct[*f] != outcome.outputs[*f]).collect();
        println!("{}: {} statements, {} files differ", way.name, outcome.statements, differ.len());
        for file in differ {
            let (count, first) = difference(&direct[file], &outcome.outputs[file]);
            let fits = |k: &&Known| {
                k.file == file
                    && (k.level.is_empty() || k.level == way.level)
                    && (k.mode.is_empty() || k.mode == way.mode)
            };
            match KNOWN.iter().find(fits) {
                Some(known) => println!("  {file}: {count} lines: {}", known.why),
                None => {
                    surprises += 1;
                    println!("  {file}: {count} lines, and nobody knows why:\n{first}");
                }
            }
        }
    }
    assert_eq!(surprises, 0, "files differ and nobody knows why");
}
