//! S6 and the plans of a flush: from how many rows on is COPY cheaper than INSERTs? One client, so that nothing else decides.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use pgsluice::coalesce::catalog::{decode_sentinel, sentinel_sql};
use pgsluice::wire::copy::{self, CopyFormat};
use pgsluice::wire::frontend::{self, put_empty};

use pgsluice::coalesce::batch::{Batch, put_copy};

use crate::common::middle;
use crate::lab::{ASYNC, Lab, SYNC};
use crate::line::{Line, put_run};

/// INSERTs a transaction and the seed's rows per second; the same for rows of a COPY.
const SEED_6_INSERT: [(usize, u32); 6] =
    [(1, 83), (5, 419), (10, 843), (50, 3_100), (100, 4_200), (1_000, 5_400)];
const SEED_6_COPY: [(usize, u32); 7] =
    [(5, 405), (10, 700), (50, 3_400), (100, 6_000), (1_000, 20_000), (10_000, 27_500), (100_000, 27_600)];

/// Rows per second of `once`, which stores `rows`: it is repeated for about `time`.
fn rate(time: Duration, rows: usize, mut once: impl FnMut()) -> f64 {
    once();
    let (begin, mut times) = (Instant::now(), 0);
    while begin.elapsed() < time {
        once();
        times += 1;
    }
    (times * rows) as f64 / begin.elapsed().as_secs_f64()
}

/// S6: INSERTs in one transaction, each waited for, against COPY; and the same INSERTs as a pipeline.
pub fn copytest(lab: &Lab) -> String {
    lab.sql(
        SYNC,
        "CREATE TABLE copytest (id serial PRIMARY KEY, name varchar(64), thread int, block int, num int)",
    );
    let time = Duration::from_millis(lab.effort(1_000, 200));
    let mut direct = Line::new(lab.postgres.port(), SYNC);
    let mut through = Line::new(lab.pgsluice().port(), SYNC);
    let insert = "INSERT INTO copytest (name, thread, block, num) VALUES ($1, $2, $3, $4)";
    for line in [&mut direct, &mut through] {
        line.prepare("insert", insert);
    }
    let mut one = Vec::new();
    put_run(&mut one, "insert", &[Some(b"a name of some length"), Some(b"1"), Some(b"2"), Some(b"3")]);
    let ended = |mut bytes: Vec<u8>| {
        put_empty(&mut bytes, frontend::SYNC);
        bytes
    };
    let mut out = String::from(
        "Rows per second, one client, `fsync = on`, `synchronous_commit = on`. INSERTs are prepared; \"waiting\" sends each after the\n\
         answer to the one before, inside BEGIN and COMMIT if there is more than one; a pipeline is sent whole.\n\n\
         | rows | INSERTs, the seed | COPY, the seed | INSERTs, waiting | INSERTs, one pipeline | the same through pgsluice | COPY |\n\
         |--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let sizes = [1, 5, 10, 50, 100, 1_000, 10_000, 100_000];
    for rows in sizes {
        lab.empty(SYNC, "copytest");
        let seed = |table: &[(usize, u32)]| {
            table.iter().find(|(n, _)| *n == rows).map_or_else(|| "–".into(), |(_, rate)| rate.to_string())
        };
        let figure = |most: usize, measure: &mut dyn FnMut() -> f64| {
            if rows > most { "–".into() } else { format!("{:.0}", measure()) }
        };
        let single = ended(one.clone());
        let waiting = figure(1_000, &mut || {
            rate(time, rows, || {
                if rows > 1 {
                    direct.query("BEGIN");
                }
                for _ in 0..rows {
                    direct.run(&single, 1);
                }
                if rows > 1 {
                    direct.query("COMMIT");
                }
            })
        });
        let pipeline = ended(one.repeat(rows));
        let pipelined = figure(1_000, &mut || rate(time, rows, || drop(direct.run(&pipeline, 1))));
        let poured = figure(1_000, &mut || rate(time, rows, || drop(through.run(&pipeline, 1))));
        let mut batch = Batch::new(CopyFormat::Text);
        for _ in 0..rows {
            batch.push(b"a name of some length\t1\t2\t3\n", 1);
        }
        let mut bytes = Vec::new();
        frontend::put_query(&mut bytes, b"COPY copytest (name, thread, block, num) FROM STDIN");
        put_copy(CopyFormat::Text, batch.bytes(), &mut bytes);
        let copied = figure(usize::MAX, &mut || rate(time, rows, || drop(direct.run(&bytes, 1))));
        let _ = writeln!(
            out,
            "| {rows} | {} | {} | {waiting} | {pipelined} | {poured} | {copied} |",
            seed(&SEED_6_INSERT),
            seed(&SEED_6_COPY)
        );
    }
    out
}

/// How rows can leave for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// Each INSERT with a Sync and so a transaction of its own, all in one write.
    Singly,
    /// All INSERTs before one Sync.
    Pipelined,
    /// One INSERT of as many rows, prepared for that number.
    Values,
    /// COPY, rows, the cheap guard, Sync.
    CopyText,
    /// The same with binary rows.
    CopyBinary,
}

const PLANS: [(Plan, &str); 5] = [
    (Plan::Singly, "as sent"),
    (Plan::Pipelined, "one pipeline"),
    (Plan::Values, "one INSERT"),
    (Plan::CopyText, "COPY text"),
    (Plan::CopyBinary, "COPY binary"),
];

/// Its place in [`PLANS`].
const COPY_TEXT: usize = 3;

/// Bytes of a row's values.
const WIDTHS: [usize; 4] = [20, 100, 455, 2_000];
const SIZES: [usize; 10] = [1, 2, 3, 5, 8, 16, 32, 64, 128, 512];

/// What one row costs.
#[derive(Clone, Copy)]
struct Cost {
    /// From the first byte sent to the last byte read (microseconds).
    time: f64,
    /// CPU of the server process (microseconds).
    cpu: f64,
}

/// Every plan of a flush, by rows and their width.
pub fn plans(lab: &Lab) -> String {
    let mut out = String::from(
        "The cost of a row by the plan that a flush chooses, in one round trip of one server connection: microseconds from the\n\
         first byte sent to the last byte read, and in brackets CPU time of the server process. \"As sent\" is a transaction for each\n\
         row. A COPY, or one INSERT of many VALUES, is followed by the guard, as in a flush. The table is (int, text) without an index; each\n\
         figure is the least of many interleaved rounds of 4 ms.\n",
    );
    for width in WIDTHS {
        let _ = write!(out, "\nRows of {width} bytes, `synchronous_commit = off`:\n\n");
        plans_of_width(lab, ASYNC, width, &mut out);
    }
    let _ = write!(out, "\nRows of {} bytes, `synchronous_commit = on`:\n\n", WIDTHS[1]);
    plans_of_width(lab, SYNC, WIDTHS[1], &mut out);
    plans_by_columns(lab, &mut out);
    out
}

/// Columns that a few rows have values for, and how many rows there are.
const COLUMNS: [usize; 6] = [1, 2, 4, 10, 20, 40];
const FEW: [usize; 6] = [2, 3, 4, 6, 8, 16];

/// Statements of one transaction, so that little of its own is in the figure.
const STATEMENTS: usize = 8;

/// One INSERT of many VALUES against COPY, where the number of values decides: `coalesce.values_max_rows`.
fn plans_by_columns(lab: &Lab, out: &mut String) {
    out.push_str(
        "\nA few rows by the number of their columns: CPU time of the server process in microseconds for one INSERT of many VALUES, and\n\
         in brackets for one COPY text (without the guard, eight of a kind in a transaction, `synchronous_commit = off`). Values are\n\
         texts of 10 bytes; the table also has a serial column and one with `DEFAULT now()`, which get no values.\n\n",
    );
    let _ = writeln!(out, "| columns | {} |", FEW.map(|rows| format!("{rows} rows")).join(" | "));
    let _ = writeln!(out, "|--:|{}", "--:|".repeat(FEW.len()));
    for columns in COLUMNS {
        let costs = FEW.map(|rows| few_rows(lab, columns, rows));
        let cells = costs.map(|[insert, copy]| format!("{insert:.1} ({copy:.1})"));
        let _ = writeln!(out, "| {columns} | {} |", cells.join(" | "));
    }
}

/// Server CPU (microseconds) of an INSERT and of a COPY.
fn few_rows(lab: &Lab, columns: usize, rows: usize) -> [f64; 2] {
    const TABLE: &str = "public.few";
    let list = |one: &dyn Fn(usize) -> String| (0..columns).map(one).collect::<Vec<_>>().join(", ");
    let (names, types) = (list(&|n| format!("c{n}")), list(&|n| format!("c{n} text")));
    let own = "z serial, y timestamptz DEFAULT now()";
    lab.sql(ASYNC, &format!("DROP TABLE IF EXISTS {TABLE}; CREATE TABLE {TABLE} ({types}, {own})"));
    let mut line = Line::new(lab.postgres.port(), ASYNC);
    line.query("SET plan_cache_mode = force_generic_plan");
    let row = |r: usize| format!("({})", list(&|n| format!("${}", r * columns + n + 1)));
    let values = (0..rows).map(row).collect::<Vec<_>>().join(", ");
    line.prepare("values", &format!("INSERT INTO {TABLE} ({names}) VALUES {values}"));
    line.prepare("copy", &format!("COPY {TABLE} ({names}) FROM STDIN"));
    let value = b"ten bytes.".as_slice();
    let (mut insert, mut copy) = (Vec::new(), Vec::new());
    let text = [vec![value; columns].join(&copy::FIELD_END), vec![copy::ROW_END]].concat().repeat(rows);
    for _ in 0..STATEMENTS {
        put_run(&mut insert, "values", &vec![Some(value); columns * rows]);
        put_run(&mut copy, "copy", &[]);
        put_copy(CopyFormat::Text, &text, &mut copy);
    }
    let mut samples: [Vec<f64>; 2] = Default::default();
    for bytes in [&mut insert, &mut copy] {
        put_empty(bytes, frontend::SYNC);
    }
    for _ in 0..lab.effort(150, 30) {
        for (samples, bytes) in samples.iter_mut().zip([&insert, &copy]) {
            let before = on_cpu(line.pid);
            line.run(bytes, 1);
            samples.push((on_cpu(line.pid) - before) / STATEMENTS as f64);
        }
    }
    samples.map(|samples| middle(samples).expect("samples"))
}

fn plans_of_width(lab: &Lab, database: &str, width: usize, out: &mut String) {
    const TABLE: &str = "public.plans";
    lab.sql(database, &format!("CREATE TABLE IF NOT EXISTS {TABLE} (id int, v text)"));
    let relid = lab.sql(database, &format!("SELECT '{TABLE}'::regclass::oid")).trim().to_owned();
    let mut line = Line::new(lab.postgres.port(), database);
    line.query("SET plan_cache_mode = force_generic_plan");
    line.prepare("insert", &format!("INSERT INTO {TABLE} VALUES ($1, $2)"));
    line.prepare("text", &format!("COPY {TABLE} (id, v) FROM STDIN"));
    line.prepare("binary", &format!("COPY {TABLE} (id, v) FROM STDIN (FORMAT binary)"));
    line.prepare("guard", &sentinel_sql([TABLE]));
    let guard = |mark: Option<&[u8]>| {
        let mut bytes = Vec::new();
        put_run(&mut bytes, "guard", &[mark, Some(TABLE.as_bytes()), Some(relid.as_bytes())]);
        bytes
    };
    let _ = writeln!(out, "| rows | {} |", PLANS.map(|(_, name)| name).join(" | "));
    let _ = writeln!(out, "|--:|{}", "--:|".repeat(PLANS.len()));
    let mut costs = Vec::new();
    for rows in SIZES {
        let values: Vec<String> = (0..rows).map(|n| format!("(${}, ${})", 2 * n + 1, 2 * n + 2)).collect();
        line.prepare(&format!("values{rows}"), &format!("INSERT INTO {TABLE} VALUES {}", values.join(", ")));
        lab.empty(database, TABLE);
        // TRUNCATE moves the mark.
        let mut first = guard(None);
        put_empty(&mut first, frontend::SYNC);
        let answer = line.run(&first, 1).expect("a mark");
        let mark = decode_sentinel(&[Some(&answer)]).expect("a mark").1.to_owned();
        let cost = measure(lab, &mut line, width, rows, &guard(Some(mark.as_bytes())));
        let cells = cost.map(|c| format!("{:.1} ({:.1})", c.time, c.cpu));
        let _ = writeln!(out, "| {rows} | {} |", cells.join(" | "));
        costs.push((rows, cost));
    }
    let from = |to: usize| {
        let dearer = costs.iter().rposition(|(_, cost)| cost[COPY_TEXT].cpu >= cost[to].cpu);
        let first = costs.get(dearer.map_or(0, |last| last + 1));
        first.map_or_else(|| "at no size here".into(), |(rows, _)| format!("from {rows} rows on"))
    };
    let _ = writeln!(
        out,
        "\nCOPY text costs the server less CPU than rows as sent {}, than a pipeline {}, than one INSERT {}.",
        from(0),
        from(1),
        from(2)
    );
}

fn measure(lab: &Lab, line: &mut Line, width: usize, rows: usize, guard: &[u8]) -> [Cost; PLANS.len()] {
    let flushes = PLANS.map(|(plan, _)| flush(plan, width, rows, guard));
    let mut samples: [Vec<Cost>; PLANS.len()] = Default::default();
    let time = Duration::from_millis(4);
    for _ in 0..lab.effort(25, 8) {
        for (samples, (bytes, ends)) in samples.iter_mut().zip(&flushes) {
            let (begin, before, mut times) = (Instant::now(), on_cpu(line.pid), 0);
            while begin.elapsed() < time {
                line.run(bytes, *ends);
                times += 1;
            }
            let each = |micros: f64| micros / f64::from(times * rows as u32);
            let (time, cpu) = (begin.elapsed().as_secs_f64() * 1e6, on_cpu(line.pid) - before);
            samples.push(Cost { time: each(time), cpu: each(cpu) });
        }
    }
    samples.map(|samples| {
        // What else runs on the machine only ever adds.
        let of = |get: fn(&Cost) -> f64| samples.iter().map(get).fold(f64::INFINITY, f64::min);
        Cost { time: of(|c| c.time), cpu: of(|c| c.cpu) }
    })
}

/// The bytes of one flush, and how many ReadyForQuery answer it.
fn flush(plan: Plan, width: usize, rows: usize, guard: &[u8]) -> (Vec<u8>, usize) {
    let number = b"1234567";
    let text = vec![b'x'; width - number.len()];
    let mut out = Vec::new();
    let mut batch = Batch::new(CopyFormat::Text);
    let mut row = Vec::new();
    match plan {
        Plan::Singly | Plan::Pipelined => {
            for _ in 0..rows {
                put_run(&mut out, "insert", &[Some(number), Some(&text)]);
                if plan == Plan::Singly {
                    put_empty(&mut out, frontend::SYNC);
                }
            }
        }
        Plan::Values => {
            let values = [Some(number.as_slice()), Some(&text)].repeat(rows);
            put_run(&mut out, &format!("values{rows}"), &values);
            out.extend_from_slice(guard);
        }
        Plan::CopyText => {
            copy::put_text(&mut row, number);
            row.push(copy::FIELD_END);
            copy::put_text(&mut row, &text);
            row.push(copy::ROW_END);
        }
        Plan::CopyBinary => {
            batch = Batch::new(CopyFormat::Binary);
            copy::put_binary_count(&mut row, 2);
            copy::put_binary(&mut row, Some(&1_234_567_i32.to_be_bytes()));
            copy::put_binary(&mut row, Some(&text));
        }
    }
    if let Plan::CopyText | Plan::CopyBinary = plan {
        for _ in 0..rows {
            batch.push(&row, 1);
        }
        let (name, format) = match plan {
            Plan::CopyText => ("text", CopyFormat::Text),
            _ => ("binary", CopyFormat::Binary),
        };
        for rows in batch.copied(format) {
            put_run(&mut out, name, &[]);
            put_copy(format, rows, &mut out);
        }
        out.extend_from_slice(guard);
        put_empty(&mut out, frontend::FLUSH);
    }
    if plan == Plan::Singly {
        return (out, rows);
    }
    put_empty(&mut out, frontend::SYNC);
    (out, 1)
}

/// Time that a process was on a CPU so far (microseconds).
fn on_cpu(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("the server process lives");
    text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("nanoseconds") / 1e3
}
