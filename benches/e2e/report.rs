//! The results as a table, and against the bars.

use std::fmt::Write as _;

use crate::cells::{Cell, Load, Target};
use crate::common::middle;
use crate::measure::{Effort, Repetitions, Sample};

/// One cell's results.
pub struct Outcome {
    pub cell: &'static Cell,
    pub repetitions: Repetitions,
}

/// Where and when it ran.
pub struct Facts {
    pub lines: Vec<(&'static str, String)>,
}

type Get = fn(&Sample) -> Option<f64>;
const RATE: Get = |s| s.rate;
const CPU: Get = |s| s.cpu_us;
const P50: Get = |s| s.p50_ms;
const P99: Get = |s| s.p99_ms;
const LOGIN: Get = |s| s.bytes_login;
const QUERY: Get = |s| s.bytes_query;

impl Outcome {
    /// The targets of this cell that took part in this run.
    fn measured(&self) -> impl Iterator<Item = Target> {
        let took_part = |t: &Target| self.repetitions.iter().any(|r| r.contains_key(t));
        self.cell.targets.iter().copied().filter(took_part)
    }

    /// Median over the repetitions.
    pub fn median(&self, target: Target, get: Get) -> Option<f64> {
        middle(self.repetitions.iter().filter_map(|r| get(r.get(&target)?)).collect())
    }

    /// Median of the ratios of two targets inside one repetition.
    pub fn ratio(&self, target: Target, to: Target, get: Get) -> Option<f64> {
        let ratio = |r: &std::collections::BTreeMap<Target, Sample>| {
            let (a, b) = (get(r.get(&target)?)?, get(r.get(&to)?)?);
            (b > 0.0).then_some(a / b)
        };
        middle(self.repetitions.iter().filter_map(ratio).collect())
    }
}

/// The whole report as Markdown.
pub fn report(outcomes: &[Outcome], effort: Effort, facts: &Facts) -> String {
    let mut out = String::from("Written by `make bench`. ");
    let _ = writeln!(
        out,
        "Each cell ran on every target in turn, {} times {} s; figures are medians, ratios are medians of the\n\
         ratios inside one repetition. A rate counts rows (queries, connections); CPU is the proxy process's own time for\n\
         each of them; latency is that of one of pgbench's transactions. After each INSERT run the rows in the tables were\n\
         counted: exactly those that had been acknowledged were there, or the run would have stopped. The ceiling is a server\n\
         that answers and stores nothing: the most that any server could give this client on this machine.\n",
        effort.repetitions, effort.seconds
    );
    for (name, value) in &facts.lines {
        let _ = writeln!(out, "- {name}: {value}");
    }
    throughput_table(&mut out, outcomes);
    memory_table(&mut out, outcomes);
    bars_table(&mut out, outcomes);
    out
}

fn throughput_table(out: &mut String, outcomes: &[Outcome]) {
    let rows: Vec<_> = outcomes.iter().filter(|o| o.cell.load != Load::Idle).collect();
    if rows.is_empty() {
        return;
    }
    out.push_str("\n## Throughput, CPU, latency\n\n");
    out.push_str("| cell | target | per second | to direct | to PgBouncer | to the ceiling | CPU us each | CPU to PgBouncer | p50 ms | p99 ms |\n");
    out.push_str("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for outcome in rows {
        for target in outcome.measured() {
            let against = |to, get| if to == target { None } else { outcome.ratio(target, to, get) };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                outcome.cell.name,
                target.name(),
                shown(outcome.median(target, RATE), 0),
                shown(against(Target::Direct, RATE), 2),
                shown(against(Target::PgBouncer, RATE), 2),
                shown(against(Target::Ceiling, RATE), 2),
                shown(outcome.median(target, CPU), 2),
                shown(against(Target::PgBouncer, CPU), 2),
                shown(outcome.median(target, P50), 2),
                shown(outcome.median(target, P99), 2),
            );
        }
    }
    out.push('\n');
    for outcome in outcomes {
        let _ = writeln!(out, "- `{}`: {}", outcome.cell.name, outcome.cell.what);
    }
}

fn memory_table(out: &mut String, outcomes: &[Outcome]) {
    for outcome in outcomes.iter().filter(|o| o.cell.load == Load::Idle) {
        let _ =
            writeln!(out, "\n## Memory of an idle client (`{}`: {})\n", outcome.cell.name, outcome.cell.what);
        out.push_str("| target | bytes each after login | bytes each after one query |\n|---|--:|--:|\n");
        for target in outcome.measured() {
            let (login, query) = (outcome.median(target, LOGIN), outcome.median(target, QUERY));
            let _ = writeln!(out, "| {} | {} | {} |", target.name(), shown(login, 0), shown(query, 0));
        }
    }
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |v| format!("{v:.digits$}"))
}

/// What a figure has to be.
enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

fn bars_table(out: &mut String, outcomes: &[Outcome]) {
    use Bar::{AtLeast, AtMost};
    use Target::{Control, Direct, PgBouncer, Pgsluice, PgsluiceOff, Single};
    let of = |name: &str| outcomes.iter().find(|o| o.cell.name == name);
    let ratio = |name: &str, to, get| of(name).and_then(|o| o.ratio(Pgsluice, to, get));
    let own = |name: &str, get| of(name).and_then(|o| o.median(Pgsluice, get));
    let dearer = own("select-prepared", CPU).zip(own("select-extended", CPU)).map(|(p, e)| p / e);
    let stricter = |name: &str, target| of(name).and_then(|o| o.ratio(target, Pgsluice, CPU));
    let bars = [
        ("select-simple: CPU to PgBouncer", ratio("select-simple", PgBouncer, CPU), AtMost(1.3)),
        ("select-extended: CPU to PgBouncer", ratio("select-extended", PgBouncer, CPU), AtMost(1.3)),
        ("select-simple: throughput to PgBouncer", ratio("select-simple", PgBouncer, RATE), AtLeast(1.0)),
        ("select-extended: throughput to PgBouncer", ratio("select-extended", PgBouncer, RATE), AtLeast(1.0)),
        ("select-prepared: CPU to our select-extended", dearer, AtMost(1.0)),
        ("policy-single: CPU to allow", stricter("policy-single", Single), AtMost(1.3)),
        ("policy-control: CPU to allow", stricter("policy-control", Control), AtMost(1.3)),
        ("idle-9000: bytes for each client after login", own("idle-9000", LOGIN), AtMost(4096.0)),
        ("idle-9000: bytes for each client after one query", own("idle-9000", QUERY), AtMost(4096.0)),
        ("insert-simple-64: to direct", ratio("insert-simple-64", Direct, RATE), AtLeast(2.0)),
        ("insert-prepared-64: to direct", ratio("insert-prepared-64", Direct, RATE), AtLeast(2.0)),
        ("insert-simple-1: to direct", ratio("insert-simple-1", Direct, RATE), AtLeast(0.8)),
        ("insert-prepared-1: to direct", ratio("insert-prepared-1", Direct, RATE), AtLeast(0.8)),
        ("guilty-simple-64: to direct", ratio("guilty-simple-64", Direct, RATE), AtLeast(1.5)),
        ("off-select-simple: CPU to mode = off", ratio("off-select-simple", PgsluiceOff, CPU), AtMost(1.03)),
        (
            "off-select-prepared: CPU to mode = off",
            ratio("off-select-prepared", PgsluiceOff, CPU),
            AtMost(1.03),
        ),
        ("off-closed-simple: CPU to mode = off", ratio("off-closed-simple", PgsluiceOff, CPU), AtMost(1.03)),
        (
            "off-closed-prepared: CPU to mode = off",
            ratio("off-closed-prepared", PgsluiceOff, CPU),
            AtMost(1.03),
        ),
        ("pipeline64-extended: to direct", ratio("pipeline64-extended", Direct, RATE), AtLeast(2.0)),
        ("pipeline64-prepared: to direct", ratio("pipeline64-prepared", Direct, RATE), AtLeast(2.0)),
    ];
    if bars.iter().all(|(_, measured, _)| measured.is_none()) {
        return;
    }
    out.push_str("\n## Aims\n\n| figure of pgsluice | aim | measured | |\n|---|--:|--:|---|\n");
    for (what, measured, bar) in bars {
        let Some(measured) = measured else { continue };
        let (aim, met) = match bar {
            AtMost(aim) => (format!("at most {aim}"), measured <= aim),
            AtLeast(aim) => (format!("at least {aim}"), measured >= aim),
        };
        let digits = if measured >= 100.0 { 0 } else { 2 };
        let _ = writeln!(
            out,
            "| {what} | {aim} | {measured:.digits$} | {} |",
            if met { "met" } else { "**not met**" }
        );
    }
}
