//! The results as a table, and against the bars.

use std::fmt::Write as _;

use crate::cells::{self, Cell, Load, Target};
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

    /// The ratios of two targets, one for each repetition.
    fn ratios(&self, target: Target, to: Target, get: Get) -> Vec<f64> {
        let ratio = |r: &std::collections::BTreeMap<Target, Sample>| {
            let (a, b) = (get(r.get(&target)?)?, get(r.get(&to)?)?);
            (b > 0.0).then_some(a / b)
        };
        self.repetitions.iter().filter_map(ratio).collect()
    }

    /// Their median.
    pub fn ratio(&self, target: Target, to: Target, get: Get) -> Option<f64> {
        middle(self.ratios(target, to, get))
    }
}

/// The whole report as Markdown.
pub fn report(outcomes: &[Outcome], effort: Effort, facts: &Facts) -> String {
    let mut out = String::from("Written by `make bench`. ");
    let _ = writeln!(
        out,
        "Each cell (a workload) ran on every target in turn, {} times {} s. Cells that compare pgsluice with itself, where a few\n\
         percent count, ran {} times as often and each time in new processes, because two processes of one program differ by more.\n\
         Figures are medians; ratios are medians of the ratios inside one repetition. A rate counts rows, queries or connections;\n\
         CPU is the proxy process's own time for each of them; latency is that of one pgbench transaction. After each INSERT\n\
         run the rows in the tables were counted: a run stops unless exactly the acknowledged rows are there. The ceiling is a server\n\
         that answers and stores nothing: the most that any server could give this client on this machine.\n",
        effort.repetitions,
        effort.seconds,
        cells::TIMES_WITH_ITSELF
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

/// A figure of one cell, and what it has to be.
struct Aim {
    what: String,
    bar: Bar,
    /// One for each repetition.
    measured: Vec<f64>,
}

fn aims(outcomes: &[Outcome]) -> Vec<Aim> {
    use Bar::{AtLeast, AtMost};
    use Target::{Control, Direct, PgBouncer, Pgsluice, PgsluiceOff, Single};
    let of = |name: &str| outcomes.iter().find(|o| o.cell.name == name);
    let ratio = |cell: &str, what: &str, get: Get, target: Target, to: Target, bar| Aim {
        what: format!("`{cell}`: {what} of {} to {}", target.name(), to.name()),
        bar,
        measured: of(cell).map_or_else(Vec::new, |o| o.ratios(target, to, get)),
    };
    let cpu = |cell: &str, target, to, aim| ratio(cell, "CPU", CPU, target, to, AtMost(aim));
    let rate = |cell: &str, to, aim| ratio(cell, "throughput", RATE, Pgsluice, to, AtLeast(aim));
    let own = |cell: &str, get: Get| of(cell).and_then(|o| o.median(Pgsluice, get));
    let bytes = |what: &str, get| Aim {
        what: format!("`idle-9000`: bytes for each client after {what}"),
        bar: AtMost(4096.0),
        measured: own("idle-9000", get).into_iter().collect(),
    };
    let dearer = own("select-prepared", CPU).zip(own("select-extended", CPU)).map(|(p, e)| p / e);
    vec![
        cpu("select-simple", Pgsluice, PgBouncer, 1.3),
        cpu("select-extended", Pgsluice, PgBouncer, 1.3),
        rate("select-simple", PgBouncer, 1.0),
        rate("select-extended", PgBouncer, 1.0),
        Aim {
            what: "`select-prepared`: CPU to that of `select-extended`".into(),
            bar: AtMost(1.0),
            measured: dearer.into_iter().collect(),
        },
        cpu("policy-single", Single, Pgsluice, 1.3),
        cpu("policy-control", Control, Pgsluice, 1.3),
        bytes("login", LOGIN),
        bytes("one query", QUERY),
        rate("insert-simple-1", Direct, 0.9),
        rate("insert-prepared-1", Direct, 0.9),
        rate("insert-simple-64", Direct, 5.0),
        rate("insert-prepared-64", Direct, 5.0),
        rate("pipeline64-extended", Direct, 6.0),
        rate("pipeline64-prepared", Direct, 6.0),
        rate("tx12-deferred-simple", Direct, 4.0),
        rate("tx12-deferred-prepared", Direct, 4.0),
        rate("guilty-simple-64", Direct, 1.5),
        cpu("off-select-simple", Pgsluice, PgsluiceOff, 1.03),
        cpu("off-select-prepared", Pgsluice, PgsluiceOff, 1.03),
        cpu("off-closed-simple", Pgsluice, PgsluiceOff, 1.03),
        cpu("off-closed-prepared", Pgsluice, PgsluiceOff, 1.03),
    ]
}

fn bars_table(out: &mut String, outcomes: &[Outcome]) {
    let aims = aims(outcomes);
    if aims.iter().all(|aim| aim.measured.is_empty()) {
        return;
    }
    out.push_str(
        "\n## Aims\n\nMeasured is the median; the range is that of the middle half of the repetitions.\n\n",
    );
    out.push_str("| figure | aim | measured | range | |\n|---|--:|--:|--:|---|\n");
    for Aim { what, bar, measured } in aims {
        let range = quartiles(&measured);
        let Some(measured) = middle(measured) else { continue };
        let (aim, met) = match bar {
            Bar::AtMost(aim) => (format!("at most {aim}"), measured <= aim),
            Bar::AtLeast(aim) => (format!("at least {aim}"), measured >= aim),
        };
        let digits = if measured >= 100.0 { 0 } else { 2 };
        let range = range.map_or_else(|| "–".into(), |(low, high)| format!("{low:.2} to {high:.2}"));
        let met = if met { "met" } else { "**not met**" };
        let _ = writeln!(out, "| {what} | {aim} | {measured:.digits$} | {range} | {met} |");
    }
}

/// The ends of the middle half; `None` for less than three.
fn quartiles(all: &[f64]) -> Option<(f64, f64)> {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    let edge = all.len() / 4;
    (all.len() >= 3).then(|| (all[edge], all[all.len() - 1 - edge]))
}
