//! One run of one cell on one target.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use pgsluice::wire::frontend;

use crate::cells::{Cell, Load, Target};
use crate::common::{Log, cpu_us, number_after, percentile, pgbench};
use crate::rig::{DATABASE, DEFERRED, Rig};
use crate::support::Raw;

/// What one run gave. A field that the cell does not have is `None`.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Sample {
    /// Rows (or queries, connections) per second.
    pub rate: Option<f64>,
    /// CPU time of the proxy process for each of them (microseconds).
    pub cpu_us: Option<f64>,
    /// Median latency of a transaction (milliseconds).
    pub p50_ms: Option<f64>,
    /// 99th percentile (milliseconds).
    pub p99_ms: Option<f64>,
    /// Resident bytes for each idle client after login.
    pub bytes_login: Option<f64>,
    /// Resident bytes for each idle client after one query.
    pub bytes_query: Option<f64>,
}

/// The samples of one cell: a repetition holds one sample for each target.
pub type Repetitions = Vec<BTreeMap<Target, Sample>>;

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub repetitions: usize,
    pub seconds: u64,
}

/// Runs one cell once on one target.
pub fn run(rig: &mut Rig, cell: &Cell, target: Target, seconds: u64) -> Sample {
    match cell.load {
        Load::Idle => idle(rig, cell, target),
        Load::InsertGuilty => guilty(rig, cell, target, seconds),
        _ => throughput(rig, cell, target, seconds),
    }
}

fn throughput(rig: &Rig, cell: &Cell, target: Target, seconds: u64) -> Sample {
    let tables = cell.load.tables();
    if !tables.is_empty() {
        rig.postgres.psql(DATABASE, &format!("TRUNCATE {}", tables.join(", ")));
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut command = pgbench(rig.port(target));
    let (clients, seconds, sampling) =
        (cell.clients.to_string(), seconds.to_string(), cell.sampling.to_string());
    command.args([
        "-n",
        "-M",
        cell.mode.as_str(),
        "-c",
        &clients,
        "-j",
        if cell.clients > 1 { "2" } else { "1" },
    ]);
    command
        .args(["-T", &seconds, "-l", "--sampling-rate", &sampling, "--log-prefix"])
        .arg(dir.path().join("log"));
    match cell.load.script() {
        None => command.arg("-S"),
        Some(script) => {
            fs::write(dir.path().join("script"), script).expect("write the script");
            command.arg("-f").arg(dir.path().join("script"))
        }
    };
    match cell.load {
        Load::Connect => drop(command.arg("-C")),
        Load::SelectOnlyTls => drop(command.env("PGSSLMODE", "require")),
        _ => {}
    }
    let deferred = cell.load == Load::Deferred12 && target == Target::Pgsluice;
    command.arg(if deferred { DEFERRED } else { DATABASE });
    let before = rig.pid(target).map(cpu_us);
    let output = command.output().expect("run pgbench");
    let after = rig.pid(target).map(cpu_us);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} through {}: pgbench failed: {stderr}", cell.name, target.name());
    let transactions: u64 = number_after(&stdout, "actually processed: ").expect("transactions");
    let failed: u64 = number_after(&stdout, "failed transactions: ").unwrap_or(0);
    assert!(failed == 0, "{} through {}: {failed} transactions failed", cell.name, target.name());
    let rows = transactions * cell.load.rows();
    count_rows(rig, cell, target, rows);
    // With -C pgbench gives the rate with connecting, otherwise without the first connect.
    let tps: f64 = number_after(&stdout, "\ntps = ").expect("tps");
    let log = Log::read(dir.path());
    Sample {
        rate: Some(tps * cell.load.rows() as f64),
        cpu_us: before.zip(after).map(|(before, after)| (after - before) / rows.max(1) as f64),
        p50_ms: log.percentile(0.5),
        p99_ms: log.percentile(0.99),
        ..Sample::default()
    }
}

/// Clients that go on after an error; of each hundred rows one is refused.
fn guilty(rig: &Rig, cell: &Cell, target: Target, seconds: u64) -> Sample {
    rig.postgres.psql(DATABASE, &format!("TRUNCATE {}", cell.load.tables().join(", ")));
    let port = rig.port(target);
    let before = rig.pid(target).map(cpu_us);
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let answers: Vec<Vec<(bool, f64)>> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..cell.clients).map(|client| scope.spawn(move || insert_until(end, port, client))).collect();
        clients.into_iter().map(|c| c.join().expect("a client")).collect()
    });
    let elapsed = begin.elapsed().as_secs_f64();
    let after = rig.pid(target).map(cpu_us);
    let mut latencies: Vec<f64> = answers.iter().flatten().map(|(_, ms)| *ms).collect();
    count_rows(rig, cell, target, answers.iter().flatten().filter(|(stored, _)| *stored).count() as u64);
    let rows = latencies.len();
    latencies.sort_by(f64::total_cmp);
    Sample {
        rate: Some(rows as f64 / elapsed),
        cpu_us: before.zip(after).map(|(before, after)| (after - before) / rows.max(1) as f64),
        p50_ms: percentile(&latencies, 0.5),
        p99_ms: percentile(&latencies, 0.99),
        ..Sample::default()
    }
}

/// One client: for each row, was it stored, and how long the answer took (milliseconds). An answer that is neither the tag
/// nor the violation ends the run.
fn insert_until(end: Instant, port: u16, client: usize) -> Vec<(bool, f64)> {
    let mut stream = Raw::login(port, DATABASE).into_stream();
    let (mut answers, mut query, mut buf) = (Vec::new(), Vec::new(), vec![0; 4096]);
    for n in 0.. {
        let begin = Instant::now();
        if begin >= end {
            break;
        }
        let guilty = (n + client).is_multiple_of(100);
        let value = if guilty { -1 } else { 1 };
        query.clear();
        let text = format!("INSERT INTO checked VALUES ({client}, {value}, {n}, 4, 5, 6, 7, 8, 9, 10)");
        frontend::put_query(&mut query, text.as_bytes());
        stream.write_all(&query).expect("send");
        let mut len = 0;
        // Both answers end in ReadyForQuery, idle.
        while !buf[..len].ends_with(b"Z\0\0\0\x05I") {
            let read = stream.read(&mut buf[len..]).expect("an answer");
            assert!(read > 0, "the connection closed");
            len += read;
        }
        let stored = buf[..len].starts_with(b"C\0\0\0\x0fINSERT 0 1\0");
        assert!(stored || (guilty && buf[..len].windows(6).any(|w| w == b"C23514")), "another answer");
        answers.push((stored, begin.elapsed().as_secs_f64() * 1000.0));
    }
    answers
}

/// Every row that was acknowledged must be there, and no other.
fn count_rows(rig: &Rig, cell: &Cell, target: Target, expected: u64) {
    let tables = cell.load.tables();
    // The ceiling stores none.
    if tables.is_empty() || target == Target::Ceiling {
        return;
    }
    let counts: Vec<String> = tables.iter().map(|t| format!("(SELECT count(*) FROM {t})")).collect();
    let found: u64 =
        rig.postgres.psql(DATABASE, &format!("SELECT {}", counts.join(" + "))).trim().parse().expect("count");
    assert!(
        found == expected,
        "{} through {}: {expected} rows acknowledged, {found} in the table",
        cell.name,
        target.name()
    );
}

fn rss(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the proxy lives");
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok()).expect("VmRSS") * 1024.0
}

/// Logs many clients in, has each run one query, and looks at the proxy's memory after both.
fn idle(rig: &mut Rig, cell: &Cell, target: Target) -> Sample {
    rig.restart(target);
    let pid = rig.pid(target).expect("idle cells have a proxy");
    let port = rig.port(target);
    // The pool's own connections and first-use memory are not a client's.
    Raw::login(port, DATABASE).rows("SELECT 1");
    let start = rss(pid);
    let mut clients: Vec<Raw> = (0..cell.clients).map(|_| Raw::login(port, DATABASE)).collect();
    let login = rss(pid);
    for client in &mut clients {
        client.rows("SELECT 1");
    }
    let query = rss(pid);
    let each = |now: f64| Some((now - start) / cell.clients as f64);
    Sample { bytes_login: each(login), bytes_query: each(query), ..Sample::default() }
}
