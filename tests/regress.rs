//! PostgreSQL's own regression and isolation suites, direct and through pgsluice.
//!
//! The first once with its statements sent by psql one file after the other, each way: the output of every file must be the
//! same, but for the files and causes listed here. And once as its own program `pg_regress` runs it, twenty files at a time,
//! against the outputs that PostgreSQL's developers expect, pouring on. The second, of sessions that wait for each other, as
//! its own `isolationtester` runs it, which the server's package has; its outputs are compared byte for byte, too.
//!
//! `make regress` brings the suite (it is not ours to keep), builds what it needs and runs this; with another server where
//! `PGSLUICE_TEST_PG_BIN` says so. By hand: `PGSLUICE_REGRESS` is a directory with the suite (`src/test/regress` of
//! PostgreSQL's sources), the directory `specs` of `src/test/isolation`, `pg_regress`, and the shared libraries;
//! `PGSLUICE_REGRESS_FILES` chooses files, `PGSLUICE_REGRESS_WAY` ways through ("allow", "single session"), and
//! `PGSLUICE_REGRESS_GENERAL` and `PGSLUICE_REGRESS_COALESCE` are lines for these tables of the configuration
//! (`session_state = "reject"`, `deferred = true`). What was answered is kept under the target directory (`tmp/regress`).

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use support::{PgOptions, Postgres, Proxy, client_program};

/// As the regression suite wants it; and no work in the background.
const CONF: &str =
    "autovacuum = off\njit = off\ntimezone = 'PST8PDT'\ndatestyle = 'Postgres, MDY'\nlc_messages = 'C'";

/// The databases that the suites name.
const REGRESSION: &str = "regression";
const ISOLATION: &str = "isolation_regression";

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
    known("isolation-async-notify", "", "transaction", "the process id in another's notification is the server's"),
    known("event_trigger_login", "", "", "a login is the server connection's, made before the client came"),
    known("guc", "", "", "a server process that served others has PL/pgSQL loaded; pg_prepared_statements shows the pool's"),
    known("stats", "", "", "reconnecting starts no new session on the server"),
    known("temp", "", "", "a server process that served others has its temporary schema already"),
    known("constraints", "", "transaction", "currval() is known within a transaction only, and a default reads it"),
    known("create_index", "", "transaction", "while a table is looked at for the first time VACUUM marks no page all-visible"),
    known("random", "", "transaction", "from 17 on: what setseed() sets belongs to the server connection"),
    known("sequence", "", "transaction", "currval() and lastval() are known within a transaction only"),
    known("triggers", "", "transaction", "ttdummy() keeps in the server process that it is switched off"),
    known("psql", "allow", "transaction", "from 18 on: pg_prepared_statements shows the pool's statements, too"),
    known("prepare", "", "transaction", "pg_prepared_statements shows the pool's statements, too"),
    known("sysviews", "", "transaction", "pg_prepared_statements shows the pool's statements, too"),
    known("copyselect", "single", "", "several statements in one Query"),
    known("psql", "single", "", "several statements in one Query"),
    known("transactions", "single", "", "several statements in one Query"),
    known("portals", "single", "", "pg_cursors shows the query itself; rows of a binary cursor"),
    known("sysviews", "single", "", "pg_cursors shows the query itself"),
    known("returning", "single", "", "from 18 on: several results of one statement"),
    known("rules", "single", "", "several results of one statement"),
    known("with", "single", "", "several results of one statement"),
];

/// A file that shows a fault of the server where the suite is newer: it crashes every session, or its output is chance.
struct Faulty {
    file: &'static str,
    /// Of the file: it may show the fault.
    statement: &'static str,
    why: &'static str,
}

const FAULTY: [Faulty; 3] = [
    Faulty {
        file: "encoding",
        statement: "SELECT ascii(test_bytea_to_text(",
        why: "ascii() reads behind the end of a value",
    },
    Faulty {
        file: "hash_part",
        statement: "VARIADIC NULL::int[]",
        why: "satisfies_hash_partition() of VARIADIC NULL crashes the server",
    },
    Faulty {
        file: "sqljson",
        statement: "CREATE TYPE sqljson_mystr",
        why: "IS JSON of a string without a cast to text crashes the server",
    },
];

/// The last minor releases that have these faults.
const FAULTY_UP_TO: [(u32, u32); 5] = [(14, 23), (15, 18), (16, 14), (17, 10), (18, 4)];

/// The files that are left out of this suite on this server.
fn faulty(regress: &Path, (major, minor): (u32, u32)) -> Vec<&'static str> {
    if !FAULTY_UP_TO.iter().any(|&(m, last)| m == major && minor <= last) {
        return Vec::new();
    }
    let shows = |f: &&Faulty| {
        let text = fs::read(regress.join("sql").join(format!("{}.sql", f.file))).unwrap_or_default();
        String::from_utf8_lossy(&text).contains(f.statement)
    };
    FAULTY
        .iter()
        .filter(shows)
        .map(|f| {
            println!("{} is left out: on {major}.{minor} {}", f.file, f.why);
            f.file
        })
        .collect()
}

/// Major and minor release of the server under test.
fn release() -> (u32, u32) {
    let number = Postgres::shared().psql("postgres", "SHOW server_version_num");
    let number: u32 = number.trim().parse().expect("server_version_num");
    (number / 10_000, number % 10_000)
}

/// A schedule without these files.
fn without(schedule: &str, left_out: &[&str]) -> String {
    let kept = |line: &str| match line.strip_prefix("test:") {
        Some(files) => {
            let files: Vec<_> = files.split_whitespace().filter(|file| !left_out.contains(file)).collect();
            if files.is_empty() { String::new() } else { format!("test: {}\n", files.join(" ")) }
        }
        None => format!("{line}\n"),
    };
    schedule.lines().map(kept).collect()
}

#[test]
fn what_is_left_out_stands_in_no_schedule() {
    let schedule = "# a\ntest: test_setup\ntest: json encoding sqljson\ntest: hash_part\n";
    assert_eq!(
        without(schedule, &["sqljson", "encoding", "hash_part"]),
        "# a\ntest: test_setup\ntest: json\n"
    );
    assert_eq!(without(schedule, &[]), schedule);
}

/// Why this file may differ, if it may.
fn why(file: &str, level: &str, mode: &str) -> Option<&'static str> {
    let fits = |k: &&Known| {
        k.file == file && (k.level.is_empty() || k.level == level) && (k.mode.is_empty() || k.mode == mode)
    };
    KNOWN.iter().find(fits).map(|known| known.why)
}

/// One way to the server.
struct Way {
    name: String,
    level: &'static str,
    mode: &'static str,
}

/// `simple_query` and `pool_mode` of those that are compared with direct.
const THROUGH: [(&str, &str); 4] =
    [("allow", "session"), ("allow", "transaction"), ("single", "session"), ("single", "transaction")];

fn asked(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Those of them that were asked for.
fn through() -> Vec<(&'static str, &'static str)> {
    let asked = asked("PGSLUICE_REGRESS_WAY");
    let mut through = THROUGH.to_vec();
    through.retain(|(level, mode)| format!("{level} {mode}").contains(&asked));
    through
}

/// What came of it: the outputs by file, and how many statements the proxy passed.
struct Outcome {
    outputs: BTreeMap<String, String>,
    statements: u64,
}

/// Files in the order of the schedule, one after the other.
fn files(regress: &Path) -> Vec<String> {
    let schedule = fs::read_to_string(regress.join("parallel_schedule")).expect("parallel_schedule");
    let schedule = without(&schedule, &faulty(regress, release()));
    let chosen = std::env::var("PGSLUICE_REGRESS_FILES").unwrap_or_default();
    let chosen: Vec<&str> = chosen.split_whitespace().collect();
    let lines = schedule.lines().filter_map(|line| line.strip_prefix("test:"));
    let all = lines.flat_map(str::split_whitespace).map(str::to_owned);
    all.filter(|file| chosen.is_empty() || file == "test_setup" || chosen.contains(&file.as_str()))
        .filter(|file| regress.join("sql").join(format!("{file}.sql")).exists())
        .collect()
}

/// A server of its own with an empty database, what stands before it, and the suite where the server can
/// read its data and write its results.
struct Site {
    pg: Postgres,
    proxy: Option<Proxy>,
    place: PathBuf,
}

impl Site {
    fn start(way: &Way, regress: &Path, database: &str, conf: &str, general: &str) -> Self {
        let pg = Postgres::start(PgOptions { conf: conf.into(), ..PgOptions::default() });
        let place = pg.socket_dir().join("regress");
        support::child::run(Command::new("cp").arg("-aL").arg(regress).arg(&place));
        for made in ["results", "testtablespace"] {
            let _ = fs::create_dir(place.join(made));
        }
        support::child::run(Command::new("chmod").args(["-R", "a+rwX"]).arg(&place));
        let proxy = (way.level != "direct").then(|| {
            let quiet = "log_connections = false\nlog_disconnections = false";
            let general = format!("pool_mode = \"{}\"\n{quiet}\n{general}", way.mode);
            let general = format!("{general}\n{}", asked("PGSLUICE_REGRESS_GENERAL"));
            let policy = format!("[policy]\nsimple_query = \"{}\"\nfunction_call = \"allow\"", way.level);
            let coalesce = format!("[coalesce]\n{}", asked("PGSLUICE_REGRESS_COALESCE"));
            Proxy::to(&pg, &general, "", &format!("{policy}\n{coalesce}"))
        });
        pg.psql("postgres", &format!("CREATE DATABASE {database} TEMPLATE template0"));
        Self { pg, proxy, place }
    }

    fn port(&self) -> u16 {
        self.proxy.as_ref().map_or(self.pg.port(), Proxy::port)
    }

    /// What was built of the suite finds what it links with.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        support::without_pg_settings(&mut command);
        command.args(["--kill-after=5", "1200"]).arg(program).current_dir(&self.place);
        command.envs(["PG_ABS_SRCDIR", "PG_ABS_BUILDDIR", "PG_LIBDIR"].map(|name| (name, &self.place)));
        command.env("LD_LIBRARY_PATH", &self.place).env("PG_DLSUFFIX", ".so");
        command.env("LC_ALL", "C");
        command
    }

    /// Output and errors in the order in which they came, statements among them.
    fn psql(&self, file: &str) -> String {
        let (sql, out) = (self.place.join("sql").join(format!("{file}.sql")), self.place.join("out"));
        let written = File::create(&out).expect("output file");
        let mut command = self.command(&built_or_installed(&self.place, "psql"));
        command.args(["-X", "-a", "-d", REGRESSION, "-h", "127.0.0.1", "-U", "postgres"]);
        command.args(["-p", &self.port().to_string()]);
        command.args(["-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"]);
        command.stdin(File::open(sql).expect("statements"));
        command.stdout(written.try_clone().expect("output file")).stderr(Stdio::from(written));
        let status = command.status().expect("run psql");
        let output = String::from_utf8_lossy(&fs::read(&out).expect("output")).into_owned();
        let output: String = output.lines().map(|line| without_large_object(line) + "\n").collect();
        output.replace(&self.pg.socket_dir().display().to_string(), "DIR") + &format!("psql: {status}\n")
    }
}

/// The program of the suite's own version, where it was built, or the one that is installed here.
fn built_or_installed(place: &Path, name: &str) -> PathBuf {
    let built = place.join(name);
    if built.exists() { built } else { client_program(name) }
}

/// Ids of large objects count on with everything that is made on the server, temporary schemas too.
fn without_large_object(line: &str) -> String {
    let made = ["lo_import ", "lo_unlink "].into_iter().find(|made| line.starts_with(made));
    made.map_or_else(|| line.to_owned(), |made| format!("{made}N"))
}

fn run(way: &Way, regress: &Path, files: &[String]) -> Outcome {
    let site = Site::start(way, regress, REGRESSION, CONF, "default_pool_size = 5");
    let outputs: BTreeMap<_, _> = files.iter().map(|file| (file.clone(), site.psql(file))).collect();
    keep(way, &outputs);
    Outcome { outputs, statements: site.proxy.map_or(0, |proxy| statements(&proxy, REGRESSION)) }
}

/// For who looks into a difference.
fn keep(way: &Way, outputs: &BTreeMap<String, String>) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regress").join(way.name.trim().replace(' ', "-"));
    fs::create_dir_all(&dir).expect("directory of outputs");
    for (file, output) in outputs {
        fs::write(dir.join(format!("{file}.out")), output).expect("write an output");
    }
}

/// `total_query_count` of the suite's database.
fn statements(proxy: &Proxy, database: &str) -> u64 {
    let rows = support::Raw::login(proxy.port(), "pgsluice").rows("SHOW STATS_TOTALS");
    let row = rows.into_iter().find(|row| row[0].as_deref() == Some(database));
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

/// Runs the files twice direct and then each way through, two at a time. Fails where an output differs and nobody knows why.
fn compare(files: &[String], through: &[(&'static str, &'static str)], run: impl Fn(&Way) -> Outcome + Sync) {
    let mut ways = vec![("direct", ""), ("direct", "")];
    ways.extend(through);
    let ways: Vec<Way> =
        ways.into_iter().map(|(level, mode)| Way { name: format!("{level} {mode}"), level, mode }).collect();
    let mut outcomes = Vec::new();
    for pair in ways.chunks(2) {
        let ran: Vec<Outcome> = std::thread::scope(|scope| {
            let work: Vec<_> = pair.iter().map(|way| scope.spawn(|| run(way))).collect();
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
            match why(file, way.level, way.mode) {
                Some(why) => println!("  {file}: {count} lines: {why}"),
                None => {
                    surprises += 1;
                    println!("  {file}: {count} lines, and nobody knows why:\n{first}");
                }
            }
        }
    }
    assert_eq!(surprises, 0, "files differ and nobody knows why");
}

fn suite() -> PathBuf {
    std::env::var_os("PGSLUICE_REGRESS").map(PathBuf::from).expect("PGSLUICE_REGRESS: run `make regress`")
}

/// One test after the other: each keeps the machine busy.
static TURN: Mutex<()> = Mutex::new(());

#[test]
#[ignore = "needs PostgreSQL's sources and minutes: make regress"]
fn the_regression_suite_cannot_tell() {
    let _turn = TURN.lock();
    let regress = suite();
    let files = files(&regress);
    assert!(!files.is_empty(), "no statements in {}", regress.display());
    compare(&files, &through(), |way| run(way, &regress, &files));
}

/// `pg_regress` runs the files as their schedule says, many at a time, and compares with the expected outputs. Returns
/// the files that failed, and how many there were.
fn pg_regress(way: &Way, regress: &Path) -> (Vec<String>, usize) {
    let site = Site::start(way, regress, REGRESSION, "", "default_pool_size = 20");
    for setting in [
        "lc_messages TO 'C'",
        "lc_monetary TO 'C'",
        "lc_numeric TO 'C'",
        "lc_time TO 'C'",
        "bytea_output TO 'hex'",
        "timezone_abbreviations TO 'Default'",
    ] {
        site.pg.psql("postgres", &format!("ALTER DATABASE {REGRESSION} SET {setting}"));
    }
    let schedule = site.place.join("parallel_schedule");
    let files = fs::read_to_string(&schedule).expect("parallel_schedule");
    fs::write(&schedule, without(&files, &faulty(regress, release()))).expect("parallel_schedule");
    let psql = built_or_installed(&site.place, "psql");
    let mut command = site.command(&site.place.join("pg_regress"));
    command.args(["--use-existing", "--host=127.0.0.1", "--user=postgres", "--dbname=regression"]);
    command.args(["--inputdir=.", "--outputdir=.", "--schedule=parallel_schedule", "--max-connections=20"]);
    command.arg(format!("--port={}", site.port())).arg(format!("--dlpath={}", site.place.display()));
    command.arg(format!("--bindir={}", psql.parent().expect("a directory").display()));
    let output = command.output().expect("run pg_regress");
    let said = String::from_utf8_lossy(&output.stdout);
    let diffs = fs::read_to_string(site.place.join("regression.diffs")).unwrap_or_default();
    keep(way, &BTreeMap::from([("pg_regress".to_owned(), format!("{said}{diffs}"))]));
    let results: Vec<(bool, String)> = said.lines().filter_map(result).collect();
    let failed = results.iter().filter(|(ok, _)| !ok).map(|(_, file)| file.clone()).collect();
    (failed, results.len())
}

/// What a line of `pg_regress` says: `test boolean ... ok  120 ms`, or from version 16 on `not ok 3 + boolean 120 ms`.
fn result(line: &str) -> Option<(bool, String)> {
    if let Some((file, verdict)) = line.split_once(" ... ") {
        let file = file.split_whitespace().next_back()?;
        return Some((verdict.trim_start().starts_with("ok"), file.to_owned()));
    }
    let (ok, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok ")?),
    };
    Some((ok, rest.split_whitespace().nth(2)?.to_owned()))
}

#[test]
fn lines_of_pg_regress_are_understood() {
    for (line, want) in [
        ("test tablespace                   ... ok           80 ms", Some((true, "tablespace"))),
        ("     triggers                     ... FAILED     3136 ms", Some((false, "triggers"))),
        ("ok 1         - test_setup                                218 ms", Some((true, "test_setup"))),
        ("not ok 40    + triggers                                 1200 ms", Some((false, "triggers"))),
        ("# parallel group (20 tests):  char int4", None),
    ] {
        assert_eq!(result(line), want.map(|(ok, file)| (ok, file.to_owned())), "{line}");
    }
}

#[test]
#[ignore = "needs PostgreSQL's sources and minutes: make regress"]
fn pg_regress_cannot_tell() {
    let _turn = TURN.lock();
    let regress = suite();
    let way = |level, mode| Way { name: format!("pg_regress {level} {mode}"), level, mode };
    let (direct, count) = pg_regress(&way("direct", ""), &regress);
    assert!(count > 100, "pg_regress did not run: see tmp/regress");
    println!("pg_regress: {count} files, {} of them fail direct: {direct:?}", direct.len());
    let mut surprises = Vec::new();
    for (level, mode) in through() {
        let (failed, ran) = pg_regress(&way(level, mode), &regress);
        assert_eq!(ran, count);
        let failed: Vec<_> = failed.into_iter().filter(|file| !direct.contains(file)).collect();
        println!("{level} {mode}: {} files fail", failed.len());
        for file in failed {
            let why = why(&file, level, mode);
            println!("  {file}: {}", why.unwrap_or("nobody knows why"));
            surprises.extend(why.is_none().then_some(file));
        }
    }
    assert!(surprises.is_empty(), "files fail and nobody knows why: {surprises:?}");
}

// ----- isolation

/// What `isolationtester` asks to learn whether a session waits. It asks by process ids, of which a client in transaction mode
/// knows none that the server knows; so the sessions are found by their application names, in the order of the ids.
const SESSIONS_BY_NAME: &str = "
    CREATE SCHEMA tester;
    CREATE TABLE tester.sessions (names text[]);
    ALTER FUNCTION pg_catalog.pg_isolation_test_session_is_blocked(int, int[]) RENAME TO process_is_blocked;
    CREATE FUNCTION pg_catalog.pg_isolation_test_session_is_blocked(pid int, pids int[]) RETURNS bool LANGUAGE sql AS $$
        WITH ours AS (SELECT * FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend')
        SELECT coalesce(bool_or(process_is_blocked(o.pid, (SELECT array_agg(ours.pid) FROM ours
               WHERE application_name = ANY ((SELECT names FROM tester.sessions)::text[])))), false) FROM ours o
         WHERE o.application_name = (SELECT names[array_position(pids, $1)] FROM tester.sessions) $$";

/// The isolation suite's specifications, told from files of the other by their names.
fn specs(regress: &Path) -> Vec<String> {
    let all = fs::read_dir(regress.join("specs")).expect("specs of the isolation suite");
    let name = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.strip_suffix(".spec").map(|spec| format!("isolation-{spec}"))
    };
    let chosen = std::env::var("PGSLUICE_REGRESS_FILES").unwrap_or_default();
    let chosen: Vec<&str> = chosen.split_whitespace().collect();
    let mut specs: Vec<String> = all.filter_map(|entry| name(entry.expect("an entry"))).collect();
    assert!(!specs.is_empty(), "no specifications in {}", regress.display());
    specs.retain(|spec| chosen.is_empty() || chosen.contains(&spec.as_str()));
    specs.sort();
    specs
}

/// Sessions in their order, by the application names that the tester gives them.
fn sessions(spec: &str, text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix("session")?.split_whitespace().next());
    names.map(|name| format!("isolation/{spec}/{}", name.trim_matches('"'))).collect()
}

impl Site {
    fn isolation(&self, name: &str) -> String {
        let spec = name.strip_prefix("isolation-").unwrap_or(name);
        let path = self.place.join("specs").join(format!("{spec}.spec"));
        let names = sessions(spec, &fs::read_to_string(&path).expect("a specification"));
        let known = format!(
            "TRUNCATE tester.sessions; INSERT INTO tester.sessions VALUES ('{{{}}}')",
            names.join(",")
        );
        self.pg.psql(ISOLATION, &known);
        let mut command = self.command(&isolationtester(self.pg.bin()));
        command.arg(format!("host=127.0.0.1 port={} user=postgres dbname={ISOLATION}", self.port()));
        command
            .env("PGAPPNAME", format!("isolation/{spec}"))
            .envs([("PGISOLATIONTIMEOUT", "60"), ("PG_TEST_TIMEOUT_DEFAULT", "30")]);
        command.stdin(File::open(path).expect("a specification"));
        let output = command.output().expect("run isolationtester");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        text.concat() + &format!("isolationtester: {}\n", output.status)
    }
}

/// Where the server's package keeps it: Debian's, or the one in `tests/drivers/prepare.sh`.
fn isolationtester(bin: &Path) -> PathBuf {
    let at = |lib: &str| bin.join("..").join(lib).join("pgxs/src/test/isolation/isolationtester");
    let found = ["lib", "lib/postgresql"].into_iter().map(at).find(|path| path.exists());
    found.expect("isolationtester beside the server")
}

fn run_isolation(way: &Way, regress: &Path, specs: &[String]) -> Outcome {
    let site = Site::start(way, regress, ISOLATION, "lc_messages = 'C'", "default_pool_size = 20");
    site.pg.psql(ISOLATION, SESSIONS_BY_NAME);
    let outputs: BTreeMap<_, _> = specs.iter().map(|spec| (spec.clone(), site.isolation(spec))).collect();
    keep(way, &outputs);
    Outcome { outputs, statements: site.proxy.map_or(0, |proxy| statements(&proxy, ISOLATION)) }
}

#[test]
#[ignore = "needs PostgreSQL's sources and minutes: make regress"]
fn the_isolation_suite_cannot_tell() {
    let _turn = TURN.lock();
    let regress = suite();
    let specs = specs(&regress);
    if specs.is_empty() {
        println!("PGSLUICE_REGRESS_FILES names none of the isolation suite");
        return;
    }
    compare(&specs, &THROUGH[..2], |way| run_isolation(way, &regress, &specs));
}
