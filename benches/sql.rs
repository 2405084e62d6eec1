//! The texts' hot paths: what a statement does to its session, and literal INSERTs taken apart.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pgsluice::policy::texts::Readings;
use pgsluice::policy::{self, Lexing, Rules};
use pgsluice::settings::{Policy, SimpleQuery};
use pgsluice::sql::again::{Beginning, Memo};
use pgsluice::sql::effects::effects;
use pgsluice::sql::insert::{Lifted, lift, quick_reject};
use pgsluice::sql::meaning;

const SELECT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = 12345;";
const INSERT: &str =
    "INSERT INTO pgbench_history (tid, bid, aid, delta, note) VALUES (1, -2, 3, 4.5, 'it''s')";

const INTEGERS: &str =
    "INSERT INTO batch VALUES (7, 123456, 123456, 123456, 123456, 123456, 123456, 123456, 123456, 123456);";

fn long_select() -> String {
    let columns: Vec<String> = (0..200).map(|i| format!("coalesce(t.column_{i}, 'none') AS c{i}")).collect();
    format!("SELECT {} FROM some_table t JOIN other o USING (id) WHERE o.name LIKE 'a%'", columns.join(", "))
}

fn long_insert() -> String {
    let columns: Vec<String> = (0..50).map(|i| format!("column_{i}")).collect();
    let items: Vec<String> =
        (0..50).map(|i| format!("'{}'", "some text of a row ".repeat(i % 7 + 1))).collect();
    format!("INSERT INTO s.wide ({}) VALUES ({})", columns.join(", "), items.join(", "))
}

fn texts(c: &mut Criterion) {
    let (long_select, long_insert) = (long_select(), long_insert());
    let mut group = c.benchmark_group("effects");
    for (name, text) in [
        ("begin", "BEGIN"),
        ("pgbench select", SELECT),
        ("insert", INSERT),
        ("select 8 kB", &long_select),
        ("insert 5 kB", &long_insert),
    ] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |b| b.iter(|| effects(black_box(text.as_bytes()), true)));
    }
    group.finish();

    let mut group = c.benchmark_group("lift");
    let (mut lifted, mut memo) = (Lifted::new(), Memo::default());
    for (name, text) in [("insert", INSERT), ("ten integers", INTEGERS), ("insert 5 kB", &long_insert)] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |b| b.iter(|| lift(black_box(text.as_bytes()), &mut lifted).is_ok()));
        memo.keep((), text.as_bytes(), &lifted, ());
        assert!(memo.head(&(), text.as_bytes()).and_then(Beginning::row).is_some());
        group.bench_function(format!("{name}, again"), |b| {
            b.iter(|| memo.head(&(), black_box(text.as_bytes())).and_then(Beginning::row).is_some());
        });
    }
    group.finish();

    let mut group = c.benchmark_group("insert");
    group.bench_function("quick_reject", |b| b.iter(|| quick_reject(black_box(SELECT.as_bytes()))));
    lift(INSERT.as_bytes(), &mut lifted).expect("pourable");
    group.bench_function("target_of", |b| {
        b.iter(|| meaning::target_of(black_box(INSERT.as_bytes()), &lifted).is_ok());
    });
    group.finish();
}

fn verdicts(c: &mut Criterion) {
    let lexing = Lexing::PLAIN;
    let mut group = c.benchmark_group("policy");
    for (name, level, text) in [
        ("single select", SimpleQuery::Single, SELECT),
        ("single quoted semicolon", SimpleQuery::Single, "SELECT a FROM t WHERE b = 'c;d'"),
        ("control begin", SimpleQuery::Control, "BEGIN"),
        ("control set", SimpleQuery::Control, "SET application_name = 'a'"),
        ("control refused", SimpleQuery::Control, SELECT),
    ] {
        let rules = Rules::merge([&Policy { simple_query: Some(level), ..Policy::default() }]);
        group.bench_function(name, |b| {
            b.iter(|| {
                policy::judge_query(&rules, black_box(text.as_bytes()), lexing, &mut Readings::default())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, texts, verdicts);
criterion_main!(benches);
