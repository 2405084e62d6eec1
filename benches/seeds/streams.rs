//! S1, S2, S5, S8: streams of INSERTs from pgbench, which does not know pgsluice, beside what the seeds did by hand.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Instant;

use pgsluice::wire::{frame, frontend};

use crate::common::middle;
use crate::lab::{ASYNC, Lab, Load, Ran, SYNC, TEN_INTS, Until};
use crate::support::{Postgres, Raw, client_command};

/// Commands a packet, and what the seed measured (commands per second).
const SEED_1: [(usize, u32); 8] = [
    (1, 77_712),
    (2, 101_294),
    (4, 132_640),
    (8, 178_584),
    (16, 183_232),
    (32, 185_440),
    (64, 186_688),
    (128, 166_784),
];

/// S1: many commands in one packet, and clients that never do that.
pub fn multi_command(lab: &Lab) -> String {
    lab.sql(ASYNC, &format!("CREATE TABLE batch {TEN_INTS}"));
    let seconds = Until::Seconds(lab.effort(2, 1));
    let insert = "INSERT INTO batch VALUES (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)";
    let rate = |commands: usize, clients: usize, port: u16| {
        lab.empty(ASYNC, "batch");
        let script = vec![insert; commands].join("\\;\n") + ";\n";
        let load = Load { script, mode: "simple", clients, rows: commands, until: seconds, database: ASYNC };
        load.run(port).rate
    };
    let plain = lab.pgsluice_with("[coalesce]\nmode = \"off\"");
    let mut out = String::from(
        "Commands per second, 8 clients, `synchronous_commit = off`. Several commands in one Query have to be put together by the\n\
         application, cannot be prepared, and are what an injection needs. pgsluice ran with its default policy, which allows\n\
         them, and `coalesce.mode = \"off\"`.\n\n\
         | commands in a packet | the seed, 2012 | direct | through pgsluice |\n|--:|--:|--:|--:|\n",
    );
    let mut best: f64 = 0.0;
    for (commands, seed) in SEED_1 {
        let (direct, through) = (rate(commands, 8, lab.postgres.port()), rate(commands, 8, plain.port()));
        best = best.max(direct);
        let _ = writeln!(out, "| {commands} | {seed} | {direct:.0} | {through:.0} |");
    }
    out.push_str(
        "\nUnmodified clients, one INSERT in a Query, through pgsluice with its defaults:\n\n\
         | clients | direct | through pgsluice | share of the best packet above |\n|--:|--:|--:|--:|\n",
    );
    for clients in [8, 64] {
        let (direct, through) =
            (rate(1, clients, lab.postgres.port()), rate(1, clients, lab.pgsluice().port()));
        let _ = writeln!(out, "| {clients} | {direct:.0} | {through:.0} | {:.2} |", through / best);
    }
    out.push_str(
        "\nTests cover what the same document says about safety: `tests/doors.rs` the levels that refuse several commands in a Query, or\n\
         every Query (S3); `tests/pour.rs` and `tests/differential.rs` that one client's bad row costs no other client\n\
         anything (S4).\n",
    );
    out
}

/// S2: native COPY, and clients that never heard of it.
pub fn native_copy(lab: &Lab) -> String {
    const ROWS: u64 = 1_000_000;
    lab.sql(SYNC, &format!("CREATE TABLE batch {TEN_INTS}"));
    let rows = if lab.quick { ROWS / 10 } else { ROWS };
    let data: String = (0..rows).map(|n| format!("{n}\t2\t3\t4\t5\t6\t7\t8\t9\t10\n")).collect();
    let insert = "INSERT INTO batch VALUES (:client_id, :r, :r, :r, :r, :r, :r, :r, :r, :r);\n";
    let random = "\\set r random(1, 1000000)\n";
    let pipeline = format!("{random}\\startpipeline\n{}\\endpipeline\n", insert.repeat(64));
    let single = format!("{random}{insert}");
    let clients = |script: &str, mode: &'static str, clients: usize, rows_each: usize, until: Until| {
        lab.empty(SYNC, "batch");
        let load = Load { script: script.into(), mode, clients, rows: rows_each, until, database: SYNC };
        load.run(lab.pgsluice().port()).rate
    };
    let same_rows = Until::Transactions(rows / 64 / 8);
    let seconds = Until::Seconds(lab.effort(4, 2));
    let short = |clients: u64, each: u64| short_copies(lab, clients, each, rows);
    let ways: [(&str, &dyn Fn() -> f64); 8] = [
        ("COPY FROM STDIN, one client, direct", &|| {
            lab.empty(SYNC, "batch");
            copy(&lab.postgres, SYNC, "batch", &data, rows)
        }),
        ("COPY of 512 rows after COPY, one client, direct", &|| short(1, 512)),
        ("COPY of 256 rows after COPY, 2 clients, direct", &|| short(2, 256)),
        ("COPY of 64 rows after COPY, 8 clients, direct", &|| short(8, 64)),
        ("8 clients, pipelines of 64 INSERTs, prepared", &|| {
            clients(&pipeline, "prepared", 8, 64, same_rows)
        }),
        ("8 clients, pipelines of 64 INSERTs, extended", &|| {
            clients(&pipeline, "extended", 8, 64, same_rows)
        }),
        ("64 clients, one autocommit INSERT, prepared", &|| clients(&single, "prepared", 64, 1, seconds)),
        ("64 clients, one autocommit INSERT, simple", &|| clients(&single, "simple", 64, 1, seconds)),
    ];
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    for _ in 0..lab.effort(3, 1) {
        for (rates, (_, way)) in rates.iter_mut().zip(&ways) {
            rates.push(way());
        }
    }
    let mut out = format!(
        "Rows per second into a table of ten integers, {rows} rows by COPY and by the pipelines; `synchronous_commit = on`.\n\
         A share is the median of the shares inside one repetition. The seed, 2012: 717101 rows/s by COPY, 9.2 times the INSERTs.\n\n\
         Eight clients that wait for the answer to 64 rows have 512 rows under way, all waiting for a commit. The most that the\n\
         server can give such clients is shown by COPYs with as many rows under way, each COPY a transaction, sent direct by\n\
         clients that only repeat the same bytes.\n\n\
         | way | rows/s | share of COPY |\n|---|--:|--:|\n"
    );
    for ((name, _), mine) in ways.iter().zip(&rates) {
        let shares = mine.iter().zip(&rates[0]).map(|(mine, copy)| mine / copy).collect();
        let (rate, share) = (middle(mine.clone()).unwrap_or(0.0), middle(shares).unwrap_or(0.0));
        let _ = writeln!(out, "| {name} | {rate:.0} | {:.0} % |", share * 100.0);
    }
    out
}

/// Rows per second of one COPY by psql.
fn copy(postgres: &Postgres, database: &str, table: &str, data: &str, rows: u64) -> f64 {
    let mut command = client_command("psql");
    command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres", "-d", database]);
    command.args(["-p", &postgres.port().to_string(), "-c", &format!("COPY {table} FROM STDIN")]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("run psql");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let begin = Instant::now();
    stdin.write_all(data.as_bytes()).expect("feed psql");
    drop(stdin);
    assert!(child.wait().expect("psql").success(), "COPY failed");
    rows as f64 / begin.elapsed().as_secs_f64()
}

/// Rows per second of COPYs of `each` rows from clients that send one when the one before is committed.
fn short_copies(lab: &Lab, clients: u64, each: u64, rows: u64) -> f64 {
    lab.empty(SYNC, "batch");
    let mut packet = Vec::new();
    frontend::put_query(&mut packet, b"COPY batch FROM STDIN");
    let line = "1\t2\t3\t4\t5\t6\t7\t8\t9\t10\n";
    frame::put(&mut packet, frontend::COPY_DATA, |out| out.extend(line.repeat(each as usize).bytes()));
    frontend::put_empty(&mut packet, frontend::COPY_DONE);
    let times = rows / clients / each;
    let logged_in = (0..clients).map(|_| Raw::login(lab.postgres.port(), SYNC).into_stream());
    let mut streams: Vec<_> = logged_in.collect();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for stream in &mut streams {
            scope.spawn(|| (0..times).for_each(|_| answered(stream, &packet)));
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let found = lab.sql(SYNC, "SELECT count(*) FROM batch");
    assert!(found.trim() == (times * clients * each).to_string(), "{found} rows in the table");
    (times * clients * each) as f64 / seconds
}

/// Sends a packet and reads until the server is ready, idle.
fn answered(stream: &mut TcpStream, packet: &[u8]) {
    stream.write_all(packet).expect("send");
    let (mut buf, mut len) = ([0; 1024], 0);
    while !buf[..len].ends_with(b"Z\0\0\0\x05I") {
        let read = stream.read(&mut buf[len..]).expect("an answer");
        assert!(read > 0, "the connection closed, or the answer is too long");
        len += read;
    }
}

/// S5: one INSERT into each of twelve tables.
pub fn twelve_tables(lab: &Lab) -> String {
    let tables: Vec<String> = (1..=12).map(|n| format!("t{n}")).collect();
    let columns = "(id serial PRIMARY KEY, c1 text, c2 text, c3 text, c4 text, c5 text, c6 text, c7 text, \
                   c8 timestamp DEFAULT now())";
    for table in &tables {
        lab.sql(SYNC, &format!("CREATE TABLE {table} {columns}"));
    }
    let inserts: String = tables
        .iter()
        .map(|t| {
            format!(
                "INSERT INTO {t} (c1, c2, c3, c4, c5, c6, c7) \
                 VALUES ('test1', 'test2', 'test3', 'test4', 'test5', 'test6', 'test7');\n"
            )
        })
        .collect();
    lab.sql(
        SYNC,
        &format!("CREATE FUNCTION all_twelve() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {inserts} END $$"),
    );
    let block = format!("BEGIN;\n{inserts}COMMIT;\n");
    let pipelined = format!("\\startpipeline\n{block}\\endpipeline\n");
    let call = "SELECT all_twelve();\n".to_owned();
    let deferred = lab.pgsluice_with("[coalesce]\ndeferred = true");
    let (direct, through) = (lab.postgres.port(), lab.pgsluice().port());
    let ways = [
        ("direct, statement by statement", &block, "simple", direct),
        ("direct, one call of a PL/pgSQL function", &call, "simple", direct),
        ("direct, one pipeline", &pipelined, "extended", direct),
        ("through pgsluice, statement by statement", &block, "simple", through),
        ("through pgsluice, one pipeline", &pipelined, "extended", through),
        ("through pgsluice, `deferred = true`, statement by statement", &block, "simple", deferred.port()),
    ];
    let mut out = String::from(
        "BEGIN, twelve INSERTs, COMMIT from 32 clients, `synchronous_commit = on`; transactions per second. The seeds, 2012 and\n\
         2013: 450 to 2700 for InnoDB, depending on its tuning, 2000 to 2600 for Oracle, 8023 and 15151 for PostgreSQL with the\n\
         function and 16 clients.\n\n\
         | way | mean | worst second | p50 ms | p99 ms |\n|---|--:|--:|--:|--:|\n",
    );
    let until = Until::Seconds(lab.effort(8, 3));
    for (name, script, mode, port) in ways {
        lab.empty(SYNC, &tables.join(", "));
        let load = Load { script: script.clone(), mode, clients: 32, rows: 12, until, database: SYNC };
        let Ran { tps, log, .. } = load.run(port);
        // The tables have as many rows as were acknowledged, or the figure means nothing.
        let found = lab.sql(SYNC, "SELECT (SELECT count(*) FROM t1), (SELECT count(*) FROM t12)");
        let (first, last) = found.trim().split_once('|').expect("two counts");
        assert!(first == last, "{name}: {first} rows in the first table, {last} in the last");
        let shown = |v: Option<f64>| v.map_or_else(|| "–".into(), |v| format!("{v:.1}"));
        let _ = writeln!(
            out,
            "| {name} | {tps:.0} | {} | {} | {} |",
            log.worst_second().unwrap_or(0),
            shown(log.percentile(0.5)),
            shown(log.percentile(0.99))
        );
    }
    out
}

/// S8: eight writers, one table, one index.
pub fn one_table(lab: &Lab) -> String {
    const ROW_BYTES: f64 = 455.0;
    let texts: Vec<String> = (1..=12).map(|n| format!("c{n} text")).collect();
    lab.sql(
        SYNC,
        &format!(
            "CREATE TABLE wide (id int, {}, c13 timestamp); CREATE INDEX ON wide (id)",
            texts.join(", ")
        ),
    );
    let text = "0123456789abcdef0123456789abcdef";
    let values = format!(":r{}, '2013-11-05 00:00:00'", format!(", '{text}'").repeat(12));
    let rows = lab.effort(60_000, 10_000);
    let line = |n: u64| format!("{n}{}\t2013-11-05 00:00:00\n", format!("\t{text}").repeat(12));
    let data: String = (0..rows).map(line).collect();
    let mut out = format!(
        "Rows of {ROW_BYTES} bytes into one table with one index, `synchronous_commit = on`. The seed, 2013: 223000 rows/s (91 MB/s)\n\
         by eight COPYs of 600000 rows each, which wait for the lock to extend the table.\n\n\
         | way | rows/s | MB/s |\n|---|--:|--:|\n"
    );
    let mut add = |name: &str, rate: f64| {
        let _ = writeln!(out, "| {name} | {rate:.0} | {:.0} |", rate * ROW_BYTES / 1e6);
    };
    for streams in [1, 8] {
        lab.empty(SYNC, "wide");
        let (begin, postgres, data) = (Instant::now(), &lab.postgres, &data);
        std::thread::scope(|scope| {
            for _ in 0..streams {
                scope.spawn(move || copy(postgres, SYNC, "wide", data, rows));
            }
        });
        let rate = (rows * streams) as f64 / begin.elapsed().as_secs_f64();
        add(&format!("COPY, {streams} at once, {rows} rows each"), rate);
    }
    let insert = format!("INSERT INTO wide VALUES ({values});\n");
    let random = "\\set r random(1, 1000000000)\n";
    let single = format!("{random}{insert}");
    let pipeline = format!("{random}\\startpipeline\n{}\\endpipeline\n", insert.repeat(64));
    let kinds = [
        ("8 clients, pipelines of 64 INSERTs", &pipeline, "extended", 8, 64),
        ("64 clients, one autocommit INSERT", &single, "simple", 64, 1),
    ];
    let until = Until::Seconds(lab.effort(3, 1));
    for (kind, script, mode, clients, rows) in kinds {
        let rate = |port: u16| {
            lab.empty(SYNC, "wide");
            Load { script: script.clone(), mode, clients, rows, until, database: SYNC }.run(port).rate
        };
        add(&format!("{kind}, direct"), rate(lab.postgres.port()));
        for flushes in [1, 2, 4] {
            let proxy = lab.pgsluice_with(&format!("[coalesce]\nmax_flushes_per_table = {flushes}"));
            add(&format!("{kind}, through, at most {flushes} flushes"), rate(proxy.port()));
        }
    }
    out
}
