//! What both end-to-end benchmarks need: pgbench and its logs, a process's CPU time, where and when it ran, and the page that
//! the results are written to. Never: a load or a table of results.

#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Postgres, client_command};

/// A number from the environment; empty and 0 count as not set.
pub fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|v| !v.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number"))).filter(|n| *n > 0)
}

/// pgbench, ready for more arguments.
pub fn pgbench(port: u16) -> Command {
    let mut command = client_command("pgbench");
    command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port.to_string()]);
    command.env("PGSSLMODE", "disable").env("PGGSSENCMODE", "disable").stdin(Stdio::null());
    command
}

/// The number behind `key` in pgbench's report.
pub fn number_after<T: std::str::FromStr>(text: &str, key: &str) -> Option<T> {
    let rest = &text[text.find(key)? + key.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// pgbench's logs (files `log*` of a directory).
pub struct Log {
    /// Latency of each transaction (milliseconds), ascending.
    latencies: Vec<f64>,
    /// When each ended (seconds), ascending.
    ends: Vec<f64>,
}

impl Log {
    /// Reads all of them.
    pub fn read(dir: &Path) -> Self {
        let logs = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
        let logs = logs.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("log")));
        let (mut latencies, mut ends) = (Vec::new(), Vec::new());
        for path in logs {
            let text = fs::read_to_string(path).expect("pgbench's log");
            // client, transaction, latency (microseconds), script, end (seconds, microseconds)
            for line in text.lines() {
                let column: Vec<f64> = line.split(' ').filter_map(|c| c.parse().ok()).collect();
                if let [_, _, latency, _, seconds, micros, ..] = column[..] {
                    latencies.push(latency / 1e3);
                    ends.push(seconds + micros / 1e6);
                }
            }
        }
        latencies.sort_by(f64::total_cmp);
        ends.sort_by(f64::total_cmp);
        Self { latencies, ends }
    }

    /// The latency (milliseconds) below which `share` of the transactions lie.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        percentile(&self.latencies, share)
    }

    /// Fewest transactions that ended within one whole second of the run.
    pub fn worst_second(&self) -> Option<usize> {
        let (first, last) = (*self.ends.first()?, *self.ends.last()?);
        let mut seconds = vec![0; ((last - first) as usize).max(1)];
        for end in &self.ends {
            if let Some(count) = seconds.get_mut((end - first) as usize) {
                *count += 1;
            }
        }
        seconds.into_iter().min()
    }
}

/// The value that `share` of `sorted` do not exceed.
pub fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    sorted.get(((sorted.len().max(1) - 1) as f64 * share) as usize).copied()
}

/// User and system time of a process so far (microseconds).
pub fn cpu_us(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    // The name in parentheses may hold spaces.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    // USER_HZ is 100 on every Linux that Debian runs on.
    ticks as f64 * 10_000.0
}

/// The middle one; of an even number, the mean of the two.
pub fn middle(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => None,
        n if n % 2 == 1 => Some(all[n / 2]),
        n => Some((all[n / 2 - 1] + all[n / 2]) / 2.0),
    }
}

/// Where and when it runs, as pairs for a list.
pub fn circumstances(postgres: &Postgres) -> Vec<(&'static str, String)> {
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
    let root = env!("CARGO_MANIFEST_DIR");
    vec![
        ("date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("commit", said("git", &["-C", root, "describe", "--always", "--dirty"])),
        ("machine", format!("{cores} CPUs ({model}), {} GB, Linux {}", kib >> 20, said("uname", &["-r"]))),
        ("load when it began", load.split(' ').take(3).collect::<Vec<_>>().join(" ")),
        (
            "PostgreSQL",
            format!(
                "{}, on the same machine, fsync on, data on {filesystem}",
                postgres.psql("postgres", "SHOW server_version").trim()
            ),
        ),
    ]
}

/// Puts `text` into `docs/benchmarks.md` as section `name`, in place of the one of that name; the others stay as they are.
pub fn write_section(name: &str, text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/benchmarks.md");
    let page = fs::read_to_string(path).unwrap_or_default();
    fs::write(path, with_section(&page, name, text)).expect("write docs/benchmarks.md");
    println!("written: docs/benchmarks.md, section {name}");
}

fn with_section(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->\n"));
    let section = format!("{begin}\n{}\n\n{end}", text.trim());
    match (page.find(&begin), page.find(&end)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{section}{}", &page[..from], &page[to + end.len()..])
        }
        _ => format!("{}\n\n{section}", page.trim_end()),
    }
}
