//! What one row costs on its way into a COPY.

#![allow(missing_docs, unreachable_pub)]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pgsluice::coalesce::batch::Batch;
use pgsluice::coalesce::catalog::{self, Table};
use pgsluice::coalesce::plan::{InsertPlan, plan_literals, plan_params};
use pgsluice::coalesce::rows::{encode_literals, encode_params, format_of};
use pgsluice::sql::insert::{Class, Item};
use pgsluice::sql::meaning::InsertTarget;
use pgsluice::wire::copy::{self, CopyFormat};
use pgsluice::wire::frontend::Bind;

/// A table of (int4, text, timestamptz, numeric).
fn mixed() -> Table {
    table(&[(23, "int4"), (25, "text"), (1184, "timestamptz"), (1700, "numeric")])
}

fn table(types: &[(u32, &str)]) -> Table {
    let column = |(n, (oid, name)): (usize, &(u32, &str))| {
        format!(
            r#"{{"attnum": {n}, "name": "c{n}", "type": {oid}, "typmod": -1, "base": {oid}, "base_name": "{name}",
             "kind": "b", "elem": 0, "elem_kind": "", "notnull": false, "identity": "", "generated": "",
             "may_insert": true, "domain_null_check": false, "cast_from_text": false, "cast_to_text": false, "in_key": false, "draws": [], "has_default": false, "default_whys": []}}"#
        )
    };
    let columns = (1..).zip(types).map(column).collect::<Vec<_>>().join(", ");
    let answer = format!(
        r#"{{"relid": 16400, "schema": "s", "table": "t", "relkind": "r", "fingerprint": "f", "stops": [], "self_fk": [], "quiet": true, "updates_alone": true,
         "functions": [], "root": 16400, "references": [], "user": "u", "session_user": "u", "search_path": "public", "temporary": false, "columns": [{columns}]}}"#
    );
    catalog::decode("t", &[Some(answer.as_bytes())]).expect("table")
}

fn target(items: &[Class]) -> InsertTarget {
    InsertTarget { table: "t".into(), items: items.to_vec(), ..InsertTarget::default() }
}

fn literals() -> (InsertPlan, Vec<u8>, Vec<Item>) {
    let values = vec![
        (Class::Integer, "123456".to_owned()),
        (
            Class::String,
            format!("'{}'", "a plain value of eighty bytes, with one ''quote'' in it ".repeat(2)),
        ),
        (Class::String, "'2024-02-29 12:34:56.789+00'".to_owned()),
        (Class::Decimal, "19.99".to_owned()),
    ];
    planned(&mixed(), values)
}

fn integers() -> (InsertPlan, Vec<u8>, Vec<Item>) {
    planned(&table(&[(23, "int4"); 10]), vec![(Class::Integer, "123456".to_owned()); 10])
}

fn planned(table: &Table, values: Vec<(Class, String)>) -> (InsertPlan, Vec<u8>, Vec<Item>) {
    let (mut text, mut items) = (Vec::new(), Vec::new());
    for (class, value) in values {
        let start = text.len();
        text.extend_from_slice(value.as_bytes());
        items.push(Item { class, start, end: text.len() });
    }
    let classes: Vec<Class> = items.iter().map(|i| i.class).collect();
    let plan = plan_literals(table, &target(&classes)).expect("plan");
    (plan, text, items)
}

fn bind(formats: u16, values: &[&[u8]]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 1];
    body.extend_from_slice(&formats.to_be_bytes());
    body.extend_from_slice(&(values.len() as u16).to_be_bytes());
    for value in values {
        copy::put_binary(&mut body, Some(value));
    }
    body.extend_from_slice(&[0, 0]);
    body
}

fn params() -> InsertPlan {
    let classes: Vec<Class> = (1..=4).map(Class::Param).collect();
    let items: Vec<Item> = classes.iter().map(|&class| Item { class, start: 0, end: 0 }).collect();
    plan_params(&mixed(), &target(&classes), b"", &items, &[23, 25, 1184, 1700]).expect("plan")
}

fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("row");
    group.throughput(Throughput::Elements(1));
    let mut out = Vec::with_capacity(1 << 16);
    for (name, (plan, text, items)) in [("literals", literals()), ("ten integers", integers())] {
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                encode_literals(&plan, &text, &items, &mut out)
            });
        });
    }
    let plan = params();
    let long =
        b"a plain value of eighty bytes, with one tab\tand one backslash \\ in it, as texts have".as_slice();
    let as_text = bind(0, &[b"123456", long, b"2024-02-29 12:34:56.789+00", b"19.99"]);
    let as_binary = bind(1, &[&[0, 1, 2, 3], long, &[0; 8], &[0, 2, 0, 0, 0, 0, 0, 2, 0, 19, 0x26, 0xac]]);
    for (name, body) in [("text parameters", &as_text), ("binary parameters", &as_binary)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                let bind = Bind::decode(body).expect("Bind");
                let format = format_of(&plan, &bind, 1).expect("format");
                encode_params(&plan, &bind, 1, format, &mut out)
            });
        });
    }
    group.finish();
}

fn escape(c: &mut Criterion) {
    let mut group = c.benchmark_group("escape");
    let mut out = Vec::with_capacity(1 << 17);
    for (name, value) in [("plain", vec![b'x'; 4096]), ("every byte", vec![b'\\'; 4096])] {
        group.throughput(Throughput::Bytes(value.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                copy::put_text(&mut out, &value);
            });
        });
    }
    group.finish();
}

fn batches(c: &mut Criterion) {
    let row = [b'x'; 120];
    let full = || {
        let mut batch = Batch::new(CopyFormat::Text);
        for _ in 0..1000 {
            batch.push(&row, 1);
        }
        batch
    };
    let mut group = c.benchmark_group("batch of 1000");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("fill", |b| b.iter(full));
    group.bench_function("without one", |b| {
        b.iter_batched(full, |batch| batch.without(500), BatchSize::LargeInput)
    });
    group.finish();
}

criterion_group!(benches, rows, escape, batches);
criterion_main!(benches);
