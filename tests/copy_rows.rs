//! The same values as an INSERT and as the COPY row made of it, and as the row of an INSERT of many VALUES: when that succeeds,
//! the INSERT did too, and the tables are equal. A COPY that fails where the INSERT would not is allowed, because then the INSERT itself is run.

use std::fmt::Write as _;

use crate::support;
use pgsluice::coalesce::batch::put_many_values;
use pgsluice::coalesce::catalog::{self, Table};
use pgsluice::coalesce::plan::{InsertPlan, plan_literals, plan_params};
use pgsluice::coalesce::rows::{encode_literals, encode_params, format_of};
use pgsluice::sql::insert::{Class, Item, Lifted, lift};
use pgsluice::sql::meaning::{self, InsertTarget};
use pgsluice::wire::backend;
use pgsluice::wire::copy::{BINARY_HEADER, BINARY_TRAILER, CopyFormat};
use pgsluice::wire::frame;
use pgsluice::wire::frontend::{self, Bind};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::{Message, Postgres, Raw, outline};

/// Column types, as CREATE TABLE takes them.
const TYPES: &[&str] = &[
    "int2",
    "int4",
    "int8",
    "numeric",
    "numeric(6,2)",
    "numeric(1000,1000)",
    "float4",
    "float8",
    "money",
    "bool",
    "text",
    "varchar",
    "varchar(5)",
    "char(5)",
    "bpchar",
    "\"char\"",
    "name",
    "bytea",
    "date",
    "time",
    "time(0)",
    "timetz",
    "timetz(2)",
    "timestamp",
    "timestamp(0)",
    "timestamptz",
    "timestamptz(3)",
    "interval",
    "interval(0)",
    "interval hour to minute",
    "interval second(2)",
    "interval year",
    "uuid",
    "json",
    "jsonb",
    "jsonpath",
    "xml",
    "inet",
    "cidr",
    "macaddr",
    "bit(4)",
    "varbit(4)",
    "oid",
    "xid",
    "xid8",
    "pg_lsn",
    "point",
    "box",
    "circle",
    "path",
    "polygon",
    "line",
    "lseg",
    "int4range",
    "numrange",
    "daterange",
    "tstzrange",
    "int4multirange",
    "tsmultirange",
    "nummultirange",
    "int2[]",
    "int4[]",
    "int8[]",
    "numeric[]",
    "numeric(5,1)[]",
    "float8[]",
    "text[]",
    "varchar[]",
    "varchar(3)[]",
    "char(3)[]",
    "timestamp(0)[]",
    "timetz[]",
    "time(0)[]",
    "bit(3)[]",
    "varbit(2)[]",
    "interval(0)[]",
    "\"char\"[]",
    "name[]",
    "money[]",
    "json[]",
    "jsonb[]",
    "bytea[]",
    "bool[]",
    "numrange[]",
    "tstzrange[]",
    "point[]",
    "box[]",
    "mood",
    "mood[]",
    "dint",
    "dtext",
    "dvc",
    "dnum",
    "dnest",
    "dfloat",
    "dhour",
    "darray",
    "dints",
    "dchar",
    "dbits",
    "dstamp",
    "dspan",
    "dmood",
    "drange",
    "dnums",
    "interval hour to minute[]",
    "tsvector",
    "tsquery",
];

const DOMAINS: &str = "CREATE TYPE mood AS ENUM ('ok', 'sad', '1');
    CREATE DOMAIN dint AS int CHECK (VALUE < 1000); CREATE DOMAIN dtext AS text NOT NULL;
    CREATE DOMAIN dvc AS varchar(4); CREATE DOMAIN dnum AS numeric(5,1); CREATE DOMAIN dnest AS dint CHECK (VALUE > -5);
    CREATE DOMAIN dfloat AS float8; CREATE DOMAIN dhour AS interval hour to minute;
    CREATE DOMAIN darray AS text[] CHECK (VALUE[1] <> 'a'); CREATE DOMAIN dints AS int8[];
    CREATE DOMAIN dchar AS char(3); CREATE DOMAIN dbits AS bit(3); CREATE DOMAIN dstamp AS timestamp(0);
    CREATE DOMAIN dspan AS interval(0); CREATE DOMAIN dmood AS mood CHECK (VALUE <> 'sad'); CREATE DOMAIN drange AS numrange;
    CREATE DOMAIN dnums AS numeric(5, 1)[];";

/// Strings that some type takes, or that only look like it.
const STRINGS: &[&str] = &[
    "",
    " ",
    "0",
    "1",
    "-1",
    "007",
    "+5",
    " 5 ",
    "5.0",
    "1e3",
    "0x1F",
    "1_000",
    "32768",
    "2147483648",
    "9223372036854775808",
    "NaN",
    "Infinity",
    "-0",
    "-0.0",
    "1.005",
    "12345.678",
    "$1,234.50",
    "t",
    "true",
    "yes",
    "off",
    "abc",
    "abc  ",
    "abcdef",
    "abcde   ",
    "\\",
    "\\\\",
    "\\N",
    "\\.",
    "\n",
    "\r\n",
    "\t",
    "a\tb\nc\rd\\e",
    "it's",
    "''",
    "\"q\"",
    "\\x",
    "\\x1F2e",
    "\\101",
    "é",
    "日本語",
    "2024-02-29",
    "02/03/2024",
    "20240203",
    "2024-02-29 12:34:56.789",
    "2024-02-29T12:34:56.5Z",
    "2024-02-29 12:34:56+05:30",
    "2024-01-01 10:00 Asia/Tokyo",
    "now",
    "today",
    "12:00 tomorrow",
    "NOW",
    "yesterday",
    "infinity",
    "-infinity",
    "epoch",
    "12:34:56",
    "12:34:56.75",
    "23:59:60",
    "24:00",
    "12:00 PM",
    "12:00 America/New_York",
    "allballs",
    "1 day 2 hours",
    "-1 2:03:04",
    "P1Y2M",
    "1:30",
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
    "{\"a\": [1, 2.50]}",
    "null",
    "[1,2]",
    "$.a[*] ? (@ > 1)",
    "<a>x</a>",
    "<a>",
    "10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.1/8",
    "08:00:2b:01:02:03",
    "1010",
    "101",
    "10101",
    "16/B374D848",
    "(1,2)",
    "((0,0),(1,1))",
    "<(1,2),3>",
    "[1,5)",
    "empty",
    "(,3]",
    "[2024-01-01,2024-02-01)",
    "[now,)",
    "[\"n\\ow\",)",
    "{[1,3),[5,7)}",
    "{}",
    "{1,2,NULL}",
    "{null, +1 , -0}",
    "{32767,-32768}",
    "{32768}",
    "{2147483648,007}",
    "{9223372036854775808}",
    "{\"1\",\" 2 \"}",
    "{1.5}",
    "{1,,2}",
    "{1}}",
    "1,2",
    "[2:3]={1,2}",
    "[-1:0][1:1]={{1},{2}}",
    "{{1,2},{3}}",
    "{0x10,1_0}",
    "{1e3,NaN}",
    "{a,\"b c\",NULL,\"NULL\",\"\\\"\"}",
    "{abc  ,\"abc  \"}",
    "{{1,2},{3,4}}",
    "{now,\"2024-01-01 10:00\"}",
    "{n\\ow}",
    "{12:00,13:00+02}",
    "{abcd,e}",
    "ok",
    "sad",
    "{ok,sad}",
    "fat & cat",
    "'a':1 b:2A",
    "a:1",
    "x\\",
    "--",
    "$$",
    "COPY t, line 1",
    // More digits behind the point than a number has: refused before it is rounded.
    "1e-16383",
    "1e-16384",
    "1e-17000",
    "-0.5E-99999",
    "1e131071",
    "1e131072",
    "1e-2147483648",
    "{1e-17000}",
    "{1,2e-20000}",
    "[1e-17000,2)",
    "{[0,1e-17000)}",
    // At the ends of what dates, times and spans can be.
    "294276-12-31 23:59:59.9999999",
    "294277-01-01",
    "5874897-12-31",
    "4714-11-24 00:00:00 BC",
    "4714-11-23 BC",
    "23:59:59.9999999",
    "23:59:59.9999999+15:59:59",
    "24:00:00.0000001",
    "0.0000005 seconds",
    "178956970 years 7 mons",
    "-178956970 years -8 mons",
    "2147483647 days 2562047788:00:54.775807",
    "2147483648 mons",
    "1:2:3.5555555",
    "P0001-02-03T04:05:06.789",
    "1 year ago",
    "@ 1 minute 1.999999 seconds",
    "{\"1:02:03.5\",\"2 days\"}",
    // Names are cut between characters.
    "ééééééééééééééééééééééééééééééééa",
    "aéééééééééééééééééééééééééééééééé",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "{aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}",
    // Documents.
    "\"\\u0000\"",
    "\"\\ud83d\\ude00\"",
    "{\"a\":1e400000}",
    "{\"a\":-0,\"b\":1.0}",
    "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]",
    "{\"{\\\"a\\\": 1}\"}",
    // Bits, bytes, signs.
    "{101,11}",
    "b101",
    "x1F",
    "{\"\\\\x00ff\"}",
    "{t,f,NULL}",
    "(1,2),(3,4)",
    "((1,2),(3,4),(5,6))",
    "[(1,2),(3,4)]",
    "{1,2,3}",
    "{(1,2),(3,4)}",
    "{(1,2),(3,4);(5,6),(7,8)}",
    "-$1,234.565",
    "(12.345)",
    "{-$5.005}",
    "{\"[1,2)\",empty}",
    "{\\\\}",
    "\u{1}",
    "\u{7f}",
];

/// A literal: its class and its text in the statement.
type Literal = (Class, String);

/// As drivers write it where there is a backslash.
fn escaped(text: &str) -> String {
    format!("E{}", quoted(&text.replace('\\', "\\\\")).replace('\n', "\\n"))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn literal() -> impl Strategy<Value = Literal> {
    let string = prop_oneof![
        3 => proptest::sample::select(STRINGS).prop_map(str::to_owned),
        1 => "[-'\\\\\t\n\r.N,{}\"()\\[\\]:+ 0-9a-eT]{0,8}",
        1 => "[0-9]{1,4}-[01]?[0-9]-[0-3]?[0-9]( [0-2]?[0-9]:[0-5][0-9](:[0-5][0-9](\\.[0-9]{1,7})?)?)?",
        1 => any::<String>().prop_map(|s| s.replace('\0', "")),
    ];
    let digits = prop_oneof![4 => "[0-9]{1,5}", 2 => "[0-9]{6,22}", 1 => "0{1,3}", 1 => "[0-9]{30,45}"];
    let fraction =
        prop_oneof![3 => "[0-9]{1,4}\\.[0-9]{1,4}", 1 => "0\\.0{1,3}", 1 => "[0-9]{10,25}\\.[0-9]{10,25}"];
    prop_oneof![
        1 => Just((Class::Null, "NULL".to_owned())),
        1 => Just((Class::True, "TRUE".to_owned())),
        1 => Just((Class::False, "false".to_owned())),
        2 => digits.clone().prop_map(|d| (Class::Integer, d)),
        2 => digits.prop_map(|d| (Class::SignedInteger, format!("-{d}"))),
        2 => fraction.clone().prop_map(|d| (Class::Decimal, d)),
        2 => fraction.prop_map(|d| (Class::SignedDecimal, format!("-{d}"))),
        2 => string.clone().prop_map(|s| (Class::Escaped, escaped(&s))),
        8 => string.prop_map(|s| (Class::String, quoted(&s))),
    ]
}

/// The statement, and where its items stand.
fn insert(table: &str, literals: &[Literal]) -> (String, Vec<Item>) {
    let mut sql = format!("INSERT INTO {table} VALUES (");
    let mut items = Vec::new();
    for (i, (class, text)) in literals.iter().enumerate() {
        sql.push_str(if i > 0 { ", " } else { "" });
        let start = sql.len();
        sql.push_str(text);
        items.push(Item { class: *class, start, end: sql.len() });
    }
    sql.push(')');
    (sql, items)
}

fn target(table: &str, items: &[Class]) -> InsertTarget {
    InsertTarget { table: table.into(), items: items.to_vec(), ..InsertTarget::default() }
}

fn ask(raw: &mut Raw, table: &str) -> Table {
    let name = catalog::lookup_name(None, table);
    let messages = raw.extended(catalog::ELIGIBILITY_SQL, &[Some(&name)]);
    let row = messages.iter().find(|m| m.tag == backend::DATA_ROW).expect("one row");
    catalog::decode(&name, &backend::data_row(&row.body).expect("DataRow")).expect("table")
}

fn error(messages: &[Message]) -> Option<String> {
    messages.iter().find(|m| m.tag == backend::ERROR_RESPONSE).map(Message::outline)
}

/// Messages that are answered by so many ReadyForQuery.
struct Sent(Vec<u8>, usize);

impl Sent {
    fn once(put: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut out = Vec::new();
        put(&mut out);
        Self(out, 1)
    }

    fn query(sql: &str) -> Self {
        Self::once(|out| frontend::put_query(out, sql.as_bytes()))
    }

    /// A COPY and its data.
    fn copy(sql: &str, data: &[&[u8]]) -> Self {
        Self::once(|out| {
            frontend::put_query(out, sql.as_bytes());
            for piece in data {
                frame::put(out, frontend::COPY_DATA, |out| out.extend_from_slice(piece));
            }
            frontend::put_empty(out, frontend::COPY_DONE);
        })
    }

    /// A prepared statement with this Bind.
    fn execute(bind: &[u8]) -> Self {
        Self::once(|out| {
            frame::put(out, frontend::BIND, |out| out.extend_from_slice(bind));
            frontend::put_execute(out, b"", 0);
            frontend::put_empty(out, frontend::SYNC);
        })
    }

    fn twice(&self) -> Self {
        Self(self.0.repeat(2), 2 * self.1)
    }
}

/// Attempts inside the open block, each from how it was: the table's contents after it, or the error. All in one write, because
/// there are tens of thousands.
fn attempts<const N: usize>(raw: &mut Raw, table: &str, sent: [Sent; N]) -> [Result<String, String>; N] {
    let [begin, look, back] =
        ["SAVEPOINT s", &format!("SELECT t::text, t IS NULL FROM {table} t"), "ROLLBACK TO s; RELEASE s"]
            .map(|sql| Sent::query(sql).0);
    let all: Vec<u8> =
        sent.iter().flat_map(|sent| [&begin, &sent.0, &look, &back]).flatten().copied().collect();
    raw.send(&all);
    sent.map(|Sent(_, answers)| {
        raw.read_until_ready();
        let failed = (0..answers)
            .filter_map(|_| error(&raw.read_until_ready()))
            .fold(None, |first: Option<String>, next| first.or(Some(next)));
        let rows = raw.read_until_ready();
        assert_eq!(error(&raw.read_until_ready()), None, "the block goes on");
        match failed.or_else(|| error(&rows)) {
            Some(error) => Err(error),
            None => {
                let rows = rows.iter().filter(|m| m.tag == backend::DATA_ROW).map(Message::row);
                Ok(format!("{:?}", rows.collect::<Vec<_>>()))
            }
        }
    })
}

/// What no COPY may do.
fn judge(inserted: &Result<String, String>, copied: &Result<String, String>) -> Result<(), String> {
    match (inserted, copied) {
        (_, Err(_)) => Ok(()),
        (Ok(inserted), Ok(copied)) if inserted == copied => Ok(()),
        _ => Err(format!("INSERT gives {inserted:?}\nCOPY gives {copied:?}")),
    }
}

/// The row twice as one INSERT of two VALUES, against the INSERT itself, twice.
fn values_agree(
    raw: &mut Raw,
    plan: &InsertPlan,
    (format, row): (CopyFormat, &[u8]),
    table: &str,
    counts: &mut Counts,
    insert: &Sent,
) -> Result<(), String> {
    let Some(values) = &plan.values else { return Ok(()) };
    let (sql, types) = values.statement(2);
    let many = Sent::once(|out| {
        frontend::put_parse(out, b"", sql.as_bytes(), &types);
        put_many_values(format, "", plan.fields, 2, &row.repeat(2), out);
        frontend::put_empty(out, frontend::SYNC);
    });
    let [twice, many] = attempts(raw, table, [insert.twice(), many]);
    counts.values += usize::from(twice.is_ok() && many.is_ok());
    judge(&twice, &many).map_err(|e| format!("{sql}\n{e}"))
}

/// Counts, so that a test that poured nothing fails.
#[derive(Debug, Default)]
struct Counts {
    poured: usize,
    both_failed: usize,
    refused: usize,
    copy_alone_failed: usize,
    /// As INSERTs of many VALUES.
    values: usize,
}

impl Counts {
    fn add(&mut self, inserted: &Result<String, String>, copied: &Result<String, String>) {
        match (inserted, copied) {
            (Ok(_), Ok(_)) => self.poured += 1,
            (Ok(_), Err(_)) => self.copy_alone_failed += 1,
            _ => self.both_failed += 1,
        }
    }
}

/// A column of each type: table `c<i>`.
fn setup() -> String {
    let mut sql = String::from(DOMAINS);
    for (i, t) in TYPES.iter().enumerate() {
        let _ = write!(sql, "CREATE TABLE c{i} (a {t});");
    }
    sql
}

fn literals_agree(
    raw: &mut Raw,
    facts: &Table,
    table: &str,
    row: &[Literal],
    counts: &mut Counts,
) -> Result<(), String> {
    let (sql, items) = insert(table, row);
    let classes: Vec<Class> = row.iter().map(|(class, _)| *class).collect();
    let mut line = Vec::new();
    let encoded =
        plan_literals(facts, &target(table, &classes)).map_err(|e| e.to_string()).and_then(|plan| {
            let info = encode_literals(&plan, sql.as_bytes(), &items, &mut line).map_err(|e| e.to_string());
            info.map(|_| plan)
        });
    let Ok(plan) = encoded else {
        counts.refused += 1;
        return Ok(());
    };
    let both = [Sent::query(&sql), Sent::copy(&plan.copy_text_sql, &[&line])];
    let [inserted, copied] = attempts(raw, table, both);
    counts.add(&inserted, &copied);
    judge(&inserted, &copied)
        .and_then(|()| values_agree(raw, &plan, (CopyFormat::Text, &line), table, counts, &Sent::query(&sql)))
        .map_err(|e| format!("{sql}\n{}\n{e}", line.escape_ascii()))
}

/// Every string and a few of each other class into every type.
#[test]
fn every_literal_into_every_type() {
    let server = Postgres::shared();
    let database = server.fresh_database(&setup());
    let mut raw = Raw::login(server.port(), &database);
    let mut all: Vec<Literal> = STRINGS.iter().map(|s| (Class::String, quoted(s))).collect();
    all.push((Class::Null, "NULL".into()));
    all.extend(
        [Class::True, Class::False].map(|c| (c, if c == Class::True { "TRUE" } else { "FALSE" }.into())),
    );
    for digits in [
        "0",
        "1",
        "007",
        "010",
        "08",
        "5",
        "999",
        "32767",
        "32768",
        "120000",
        "20240101",
        "2147483648",
        "9223372036854775808",
    ] {
        all.push((Class::Integer, digits.into()));
        all.push((Class::SignedInteger, format!("-{digits}")));
        all.push((Class::Decimal, format!("{digits}.50")));
        all.push((Class::SignedDecimal, format!("-{digits}.0")));
    }
    // More digits than a number may have, but for a float's or a rounded number's input.
    let zeros = "0".repeat(17_000);
    all.push((Class::String, format!("'1.{zeros}1'")));
    all.push((Class::Decimal, format!("1.{zeros}1")));
    all.push((Class::SignedDecimal, format!("-1.{zeros}1")));
    let (mut counts, mut wrong) = (Counts::default(), String::new());
    for (i, name) in TYPES.iter().enumerate() {
        let table = format!("c{i}");
        let facts = ask(&mut raw, &table);
        raw.rows("BEGIN");
        for literal in &all {
            if let Err(e) =
                literals_agree(&mut raw, &facts, &table, std::slice::from_ref(literal), &mut counts)
            {
                wrong += &format!("{name}: {e}\n");
            }
        }
        raw.rows("ROLLBACK");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(counts.poured > 900 && counts.both_failed > 900 && counts.refused > 900, "{counts:?}");
    assert!(counts.values > 700, "{counts:?}");
}

/// Random rows of random literals into a table of many types.
#[test]
fn random_rows_are_equal_or_fail() {
    let server = Postgres::shared();
    let database = server.fresh_database(&setup());
    let raw = std::cell::RefCell::new(Raw::login(server.port(), &database));
    let facts: Vec<Table> = (0..TYPES.len()).map(|i| ask(&mut raw.borrow_mut(), &format!("c{i}"))).collect();
    let counts = std::cell::RefCell::new(Counts::default());
    raw.borrow_mut().rows("BEGIN");
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let result = runner.run(&(0..TYPES.len(), literal()), |(i, literal)| {
        let (mut raw, mut counts) = (raw.borrow_mut(), counts.borrow_mut());
        literals_agree(&mut raw, &facts[i], &format!("c{i}"), &[literal], &mut counts)
            .map_err(|e| TestCaseError::fail(format!("{}: {e}", TYPES[i])))
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    let counts = counts.into_inner();
    assert!(counts.poured > 200, "{counts:?}");

    // Wide rows, so that fields stand beside each other.
    let mut raw = raw.into_inner();
    raw.rows("ROLLBACK; CREATE TABLE wide (a text, b int4, c varchar, d bytea, e bool, f numeric, g text, h float8); BEGIN");
    let facts = ask(&mut raw, "wide");
    let raw = std::cell::RefCell::new(raw);
    let wide = std::cell::RefCell::new(Counts::default());
    let text = prop_oneof![
        any::<String>().prop_map(|s| s.replace('\0', "")),
        "[\\\\\t\n\r.N']{0,6}",
        proptest::sample::select(STRINGS).prop_map(str::to_owned)
    ];
    let text = prop_oneof![5 => text.prop_map(|s| (Class::String, quoted(&s))), 1 => Just((Class::Null, "null".to_owned()))];
    let bytes = proptest::collection::vec(any::<u8>(), 0..12).prop_map(|b| {
        (Class::String, quoted(&b.iter().fold("\\x".to_owned(), |s, b| s + &format!("{b:02x}"))))
    });
    let number =
        any::<i32>().prop_map(|n| (if n < 0 { Class::SignedInteger } else { Class::Integer }, n.to_string()));
    let decimal = "-?[0-9]{1,18}\\.[0-9]{1,12}"
        .prop_map(|d| (if d.starts_with('-') { Class::SignedDecimal } else { Class::Decimal }, d));
    let truth = any::<bool>()
        .prop_map(|b| if b { (Class::True, "True".to_owned()) } else { (Class::False, "FALSE".to_owned()) });
    let row = (text.clone(), number, text.clone(), bytes, truth, decimal.clone(), text, decimal);
    let mut runner = TestRunner::new(Config { cases: 600, failure_persistence: None, ..Config::default() });
    let result = runner.run(&row, |(a, b, c, d, e, f, g, h)| {
        let row = [a, b, c, d, e, f, g, h];
        let (mut raw, mut counts) = (raw.borrow_mut(), wide.borrow_mut());
        literals_agree(&mut raw, &facts, "wide", &row, &mut counts).map_err(TestCaseError::fail)
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    let wide = wide.into_inner();
    assert!(wide.poured > 500, "{wide:?}");
}

/// Bind's body for these values.
fn bind_body(statement: &[u8], values: &[Option<Vec<u8>>], binary: &[bool]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend_from_slice(statement);
    body.push(0);
    body.extend_from_slice(&(binary.len() as u16).to_be_bytes());
    for &b in binary {
        body.extend_from_slice(&u16::from(b).to_be_bytes());
    }
    body.extend_from_slice(&(values.len() as u16).to_be_bytes());
    for value in values {
        match value {
            None => body.extend_from_slice(&(-1i32).to_be_bytes()),
            Some(v) => {
                body.extend_from_slice(&(v.len() as u32).to_be_bytes());
                body.extend_from_slice(v);
            }
        }
    }
    body.extend_from_slice(&[0, 0]);
    body
}

/// Parses `sql` as statement `p` with these parameter types; what the server resolved, or its error.
fn parse(raw: &mut Raw, sql: &str, types: &[u32]) -> Result<Vec<u32>, String> {
    let types: Vec<u8> = types.iter().flat_map(|t| t.to_be_bytes()).collect();
    let mut out = Vec::new();
    frontend::put_target(&mut out, frontend::CLOSE, b'S', b"p");
    frontend::put_parse(&mut out, b"p", sql.as_bytes(), &types);
    frontend::put_target(&mut out, frontend::DESCRIBE, b'S', b"p");
    frontend::put_empty(&mut out, frontend::SYNC);
    raw.send(&out);
    let messages = raw.read_until_ready();
    match messages.iter().find(|m| m.tag == backend::PARAMETER_DESCRIPTION) {
        Some(m) => {
            Ok(m.body[2..].chunks_exact(4).map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]])).collect())
        }
        None => Err(outline(&messages)),
    }
}

fn params_agree(
    raw: &mut Raw,
    plan: &InsertPlan,
    table: &str,
    values: &[Option<Vec<u8>>],
    binary: &[bool],
    counts: &mut Counts,
) -> Result<(), String> {
    let body = bind_body(b"p", values, binary);
    let bind = Bind::decode(&body).expect("Bind");
    let mut row = Vec::new();
    let Some(format) = format_of(plan, &bind, 1) else {
        counts.refused += 1;
        return Ok(());
    };
    if encode_params(plan, &bind, 1, format, &mut row).is_err() {
        assert!(row.is_empty(), "a refused row leaves nothing behind");
        counts.refused += 1;
        return Ok(());
    }
    let copy = match format {
        CopyFormat::Text => Sent::copy(&plan.copy_text_sql, &[&row]),
        CopyFormat::Binary => {
            let sql = plan.copy_binary_sql.as_deref().expect("binary");
            Sent::copy(sql, &[BINARY_HEADER, &row, BINARY_TRAILER])
        }
    };
    let [inserted, copied] = attempts(raw, table, [Sent::execute(&body), copy]);
    counts.add(&inserted, &copied);
    judge(&inserted, &copied)
        .and_then(|()| values_agree(raw, plan, (format, &row), table, counts, &Sent::execute(&body)))
        .map_err(|e| format!("{table} {:?} {values:?} {format:?}\n{e}", plan.items))
}

/// Each parameter type into each column type, text and binary, wherever the plan allows it.
#[test]
fn every_parameter_type_into_every_column_type() {
    let server = Postgres::shared();
    let database = server.fresh_database(&setup());
    let mut raw = Raw::login(server.port(), &database);
    let mut oids: Vec<(u32, Vec<Vec<u8>>)> = vec![(0, Vec::new())];
    for name in TYPES {
        let oid = raw.value(&format!("SELECT '{name}'::regtype::oid")).expect("oid").parse().expect("oid");
        if oids.iter().all(|(o, _)| *o != oid) {
            oids.push((oid, binary_samples(&mut raw, name)));
        }
    }
    let (mut counts, mut wrong, mut allowed) = (Counts::default(), String::new(), 0);
    for (i, name) in TYPES.iter().enumerate() {
        let table = format!("c{i}");
        let facts = ask(&mut raw, &table);
        for (oid, binaries) in &oids {
            let Some(plan) = plan_of_one(&mut raw, &facts, &table, *oid) else { continue };
            allowed += 1;
            raw.rows("BEGIN");
            let texts = STRINGS.iter().map(|s| (Some(s.as_bytes().to_vec()), false));
            let binaries = binaries.iter().map(|b| (Some(b.clone()), true));
            for (value, binary) in texts.chain(binaries).chain([(None, false), (None, true)]) {
                if let Err(e) = params_agree(&mut raw, &plan, &table, &[value], &[binary], &mut counts) {
                    wrong += &format!("{name} from {oid}: {e}\n");
                }
            }
            raw.rows("ROLLBACK");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(allowed > 150, "{allowed} pairs");
    assert!(counts.poured > 1500 && counts.both_failed > 1500, "{counts:?}");
    assert!(counts.values > 1200, "{counts:?}");
}

/// Each type behind a text (declared so, or taken to one), behind a string and behind NULL, into each column type, wherever the
/// plan allows it.
#[test]
fn every_cast_into_every_column_type() {
    let server = Postgres::shared();
    let database = server.fresh_database(&setup());
    let mut raw = Raw::login(server.port(), &database);
    let (mut counts, mut wrong, mut allowed) = (Counts::default(), String::new(), [0; 3]);
    for (i, column) in TYPES.iter().enumerate() {
        let table = format!("c{i}");
        let facts = ask(&mut raw, &table);
        for name in TYPES {
            // What is declared, and what it comes to.
            let forms = [
                ("$1::{}", 25, 25),
                ("$1::{}", 1043, 1043),
                ("CAST($1::text AS {})", 0, 25),
                ("$1::varchar::{}", 0, 1043),
            ];
            for (turn, (form, declared, oid)) in forms.into_iter().enumerate() {
                let sql = format!("INSERT INTO {table} VALUES ({})", form.replace("{}", name));
                let Some((target, lifted)) = lifted(&mut raw, &sql) else { continue };
                let (text, resolved) = (sql.as_bytes(), [oid]);
                let plan = plan_params(&facts, &target, text, &lifted.items, &resolved);
                let Ok(plan) = plan else { continue };
                assert_eq!(parse(&mut raw, &sql, &[declared]).as_deref(), Ok(&resolved[..]), "{sql}");
                allowed[0] += 1;
                raw.rows("BEGIN");
                // Both formats of a text are the same bytes: each value in one of them, and in the other with the next form.
                let values = STRINGS.iter().map(|s| Some(s.as_bytes().to_vec())).chain([None]);
                for (at, value) in values.enumerate() {
                    let binary = [(at + turn) % 2 == 1];
                    if let Err(e) = params_agree(&mut raw, &plan, &table, &[value], &binary, &mut counts) {
                        wrong += &format!("{sql}, {column} from {oid}: {e}\n");
                    }
                }
                raw.rows("ROLLBACK");
            }
            raw.rows("BEGIN");
            let values = STRINGS.iter().map(|s| (1, format!("{}::{name}", quoted(s))));
            for (which, value) in values.chain([(2, format!("CAST(NULL AS {name})"))]) {
                let sql = format!("INSERT INTO {table} VALUES ({value})");
                let Some((target, lifted)) = lifted(&mut raw, &sql) else { continue };
                let Ok(plan) = plan_literals(&facts, &target) else { break };
                allowed[which] += 1;
                let mut line = Vec::new();
                if encode_literals(&plan, sql.as_bytes(), &lifted.items, &mut line).is_err() {
                    counts.refused += 1;
                    continue;
                }
                let both = [Sent::query(&sql), Sent::copy(&plan.copy_text_sql, &[&line])];
                let [inserted, copied] = attempts(&mut raw, &table, both);
                counts.add(&inserted, &copied);
                if let Err(e) = judge(&inserted, &copied) {
                    wrong += &format!("{sql}, {column}: {e}\n");
                }
            }
            raw.rows("ROLLBACK");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(allowed[0] > 150 && allowed[1] > 3000 && allowed[2] > 60, "{allowed:?}");
    assert!(counts.poured > 3000 && counts.both_failed > 3000 && counts.refused > 100, "{counts:?}");
}

/// The statement as it is planned for, with what the server says of its types. `None`: it is not one that is poured.
fn lifted(raw: &mut Raw, sql: &str) -> Option<(InsertTarget, Lifted)> {
    let mut lifted = Lifted::new();
    lift(sql.as_bytes(), &mut lifted).ok()?;
    let mut target = meaning::target_of(sql.as_bytes(), &lifted).ok()?;
    for of in &target.types {
        let name = catalog::lookup_name(of.schema.as_deref(), &of.name) + if of.array { "[]" } else { "" };
        let oid = raw.extended("SELECT to_regtype($1)::oid", &[Some(&name)]);
        let row = oid.iter().find(|m| m.tag == backend::DATA_ROW)?.row();
        target.type_oids.push(row[0].as_deref()?.parse().expect("oid"));
    }
    Some((target, lifted))
}

/// The binary form of every sample that the type takes, and some that it does not.
fn binary_samples(raw: &mut Raw, name: &str) -> Vec<Vec<u8>> {
    let mut samples: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0; 4], vec![0xff; 8], vec![1; 16]];
    if parse(raw, &format!("SELECT $1::{name}"), &[0]).is_err() {
        return samples;
    }
    for text in STRINGS {
        let mut body = bind_body(b"p", &[Some(text.as_bytes().to_vec())], &[false]);
        body.truncate(body.len() - 2);
        body.extend_from_slice(&[0, 1, 0, 1]);
        raw.send(&Sent::execute(&body).0);
        let messages = raw.read_until_ready();
        if let Some(row) = messages.iter().find(|m| m.tag == backend::DATA_ROW)
            && let [Some(value)] = backend::data_row(&row.body).expect("DataRow")[..]
        {
            samples.push(value.to_vec());
        }
    }
    samples
}

/// Rows of several parameters: order, formats mixed, literals between them.
#[test]
fn mixed_rows_are_equal() {
    let server = Postgres::shared();
    let database =
        server.fresh_database("CREATE TABLE m (a int8, b text, c uuid, d bool, e bytea, f int2, g numeric)");
    let mut raw = Raw::login(server.port(), &database);
    let facts = ask(&mut raw, "m");
    let sql = "INSERT INTO m VALUES ($2, $1, $4, $3, $5, 7, NULL)";
    let resolved = parse(&mut raw, sql, &[25, 23, 16, 2950, 17]).expect("parse");
    assert_eq!(resolved, [25, 23, 16, 2950, 17]);
    let items: Vec<Item> = [("$2", 2), ("$1", 1), ("$4", 4), ("$3", 3), ("$5", 5)]
        .iter()
        .map(|&(text, n)| (Class::Param(n), text))
        .chain([(Class::Integer, "7"), (Class::Null, "NULL")])
        .map(|(class, text)| {
            let start = sql.rfind(text).expect("item");
            Item { class, start, end: start + text.len() }
        })
        .collect();
    let classes: Vec<Class> = items.iter().map(|i| i.class).collect();
    let plan = plan_params(&facts, &target("m", &classes), sql.as_bytes(), &items, &resolved);
    let plan = plan.expect("plan");
    assert!(!plan.params_in_order && plan.copy_binary_sql.is_none());
    let text = |s: &str| Some(s.as_bytes().to_vec());
    let both: [[Option<Vec<u8>>; 2]; 5] = [
        [text("a\\b\tc\n"), text("a\\b\tc\n")],
        [text("-70000"), Some((-70000i32).to_be_bytes().to_vec())],
        [text("yes"), Some(vec![1])],
        [text("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), Some((0..16).collect())],
        [text("\\x00ff"), Some(vec![0, 9, 10, 92, 255])],
    ];
    raw.rows("BEGIN");
    let mut counts = Counts::default();
    for mask in 0..32usize {
        let binary: Vec<bool> = (0..5).map(|i| mask >> i & 1 == 1).collect();
        let values: Vec<_> = both.iter().zip(&binary).map(|(v, &b)| v[usize::from(b)].clone()).collect();
        params_agree(&mut raw, &plan, "m", &values, &binary, &mut counts).unwrap_or_else(|e| panic!("{e}"));
    }
    assert_eq!(counts.poured, 32, "{counts:?}");
}

/// Integers of one width into a column of another number, both formats: exact, or left to the server.
#[test]
fn integers_become_other_numbers_exactly() {
    let server = Postgres::shared();
    let columns = ["int2", "int4", "int8", "numeric", "numeric(6, 2)", "float4", "float8", "amount"];
    let database = server.fresh_database("CREATE DOMAIN amount AS float8 CHECK (value > -9e15)");
    let mut raw = Raw::login(server.port(), &database);
    let mut counts = Counts::default();
    for (at, column) in columns.into_iter().enumerate() {
        let table = format!("i{at}");
        raw.rows(&format!("CREATE TABLE {table} (a {column})"));
        let facts = ask(&mut raw, &table);
        for param in [21, 23, 20] {
            let plan = plan_of_one(&mut raw, &facts, &table, param).expect("plan");
            raw.rows("BEGIN");
            let texts = INTEGERS_WRITTEN.iter().map(|text| (Some(text.as_bytes().to_vec()), false));
            let numbers = integers().flat_map(|n| {
                let wire = match param {
                    21 => i16::try_from(n).map(|n| n.to_be_bytes().to_vec()).ok(),
                    23 => i32::try_from(n).map(|n| n.to_be_bytes().to_vec()).ok(),
                    _ => Some(n.to_be_bytes().to_vec()),
                };
                wire.map(|w| (Some(w), true)).into_iter().chain([(Some(n.to_string().into_bytes()), false)])
            });
            for (value, binary) in numbers.chain(texts) {
                params_agree(&mut raw, &plan, &table, &[value], &[binary], &mut counts)
                    .unwrap_or_else(|e| panic!("{column} {e}"));
            }
            raw.rows("ROLLBACK");
        }
    }
    assert!(counts.poured > 1500, "{counts:?}");
}

/// At the edges of the integers, and where those are halfway between two floats.
fn integers() -> impl Iterator<Item = i64> {
    let edges = [15, 16, 23, 24, 25, 30, 31, 32, 52, 53, 54, 55, 61, 62].into_iter().flat_map(|bits| {
        let power = 1i64 << bits;
        let half = power >> 24 | power >> 53;
        [power - 1, power, power + 1, power + half - 1, power + half, power + half + 1, power + 3 * half]
    });
    edges.flat_map(|n| [n, -n]).chain([0, 1, -1, i64::MAX, i64::MIN, i64::MAX - 255, i64::MAX - 256])
}

/// As an integer's input reads them, and other numbers' might otherwise; and what it does not read.
const INTEGERS_WRITTEN: [&str; 14] =
    ["-0", "-00", "+5", "007", " 7", "7 ", "0x1F", "0b1", "1_000", "1e3", "1.5", "", "-", "Infinity"];

/// Arrays of integers or texts into columns of other such arrays: exact, or left to the server.
#[test]
fn arrays_become_other_arrays_exactly() {
    const ARRAYS: [&str; 24] = [
        "{}",
        "{1,2,3}",
        "{1,NULL}",
        "{NULL}",
        "{{1,-2},{3,+4}}",
        "{{1},{2,3}}",
        "{{1},{}}",
        "{32767,-32768}",
        "{32768}",
        "{2147483648}",
        "{9223372036854775807}",
        "{9223372036854775808}",
        "{-0}",
        "{007}",
        "{ 1 , 2 }",
        "[2:3]={1,2}",
        "{\"1\"}",
        "{null}",
        "{1.5}",
        "{1",
        "5",
        "{abcd,\"a b\"}",
        "{\"ab  \",\"\\\\\"}",
        "{abc,\"NULL\",NULL,''}",
    ];
    let server = Postgres::shared();
    let columns = [
        "int2[]",
        "int4[]",
        "int8[]",
        "numeric[]",
        "numeric(3, 1)[]",
        "text[]",
        "varchar[]",
        "varchar(3)[]",
        "many",
    ];
    let database = server.fresh_database("CREATE DOMAIN many AS int[] CHECK (array_length(VALUE, 1) > 1)");
    let mut raw = Raw::login(server.port(), &database);
    let (mut counts, mut allowed) = (Counts::default(), 0);
    for (at, column) in columns.into_iter().enumerate() {
        let table = format!("i{at}");
        raw.rows(&format!("CREATE TABLE {table} (a {column})"));
        let facts = ask(&mut raw, &table);
        for param in [1005, 1007, 1016, 1009, 1015] {
            let Some(plan) = plan_of_one(&mut raw, &facts, &table, param) else { continue };
            allowed += 1;
            raw.rows("BEGIN");
            for text in ARRAYS {
                let value = Some(text.as_bytes().to_vec());
                params_agree(&mut raw, &plan, &table, &[value], &[false], &mut counts)
                    .unwrap_or_else(|e| panic!("{param} into {column} {e}"));
            }
            raw.rows("ROLLBACK");
        }
    }
    assert_eq!(allowed, 6 * 3 + 3 * 2, "pairs of numbers, and of texts");
    assert!(counts.poured > 250 && counts.refused > 50 && counts.both_failed > 50, "{counts:?}");
}

/// The plan of one parameter of this type into a table of one column. `None`: PostgreSQL refuses it, or it is not poured.
fn plan_of_one(raw: &mut Raw, facts: &Table, table: &str, oid: u32) -> Option<InsertPlan> {
    let sql = format!("INSERT INTO {table} VALUES ($1)");
    let resolved = parse(raw, &sql, &[oid]).ok()?;
    let item = Item { class: Class::Param(1), start: sql.len() - 3, end: sql.len() - 1 };
    let target = target(table, &[Class::Param(1)]);
    plan_params(facts, &target, sql.as_bytes(), &[item], &resolved).ok()
}

/// The plan of two parameters of these types into a table of two columns.
fn plan_of_two(raw: &mut Raw, table: &str, types: [u32; 2]) -> InsertPlan {
    let facts = ask(raw, table);
    let sql = format!("INSERT INTO {table} VALUES ($1, $2)");
    let resolved = parse(raw, &sql, &types).expect("parse");
    let items = [(1, sql.len() - 7), (2, sql.len() - 3)].map(|(n, start)| Item {
        class: Class::Param(n),
        start,
        end: start + 2,
    });
    let target = target(table, &items.map(|item| item.class));
    plan_params(&facts, &target, sql.as_bytes(), &items, &resolved).expect("plan")
}

/// A binary float in a row that is text for another value's sake.
#[test]
fn binary_floats_in_text_rows_are_exact() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE DOMAIN amount AS float8 CHECK (value > -1e200)");
    let mut raw = Raw::login(server.port(), &database);
    let wide: Vec<Vec<u8>> = float_bits(64).map(|bits| bits.to_be_bytes().to_vec()).collect();
    let narrow: Vec<Vec<u8>> = float_bits(32).map(|bits| (bits as u32).to_be_bytes().to_vec()).collect();
    let mut counts = Counts::default();
    for (table, column, oid, values) in [
        ("wide", "float8", 701, &wide),
        ("narrow", "float4", 700, &narrow),
        ("checked", "amount", 701, &wide),
    ] {
        raw.rows(&format!("CREATE TABLE {table} (a {column}, b numeric)"));
        let plan = plan_of_two(&mut raw, table, [oid, 1700]);
        raw.rows("BEGIN");
        for value in values {
            let row = [Some(value.clone()), Some(b"1.5".to_vec())];
            params_agree(&mut raw, &plan, table, &row, &[true, false], &mut counts)
                .unwrap_or_else(|e| panic!("{value:?} {e}"));
        }
        raw.rows("ROLLBACK");
    }
    assert!(counts.poured > 800, "{counts:?}");
}

/// Groups of four digits with their weight, sign and scale, also such as no driver writes.
fn numerics() -> Vec<Vec<u8>> {
    let groups: [&[u16]; 9] =
        [&[], &[0], &[1], &[9999], &[1, 0, 0], &[0, 0, 5], &[12, 3400], &[7, 9999, 9999, 9999], &[10_000]];
    let mut values = Vec::new();
    for groups in groups {
        for weight in [-7i16, -3, -2, -1, 0, 1, 2, 3, 40, 249, 250, i16::MAX, i16::MIN] {
            for sign in [0u16, 0x4000, 0xc000, 0xd000, 0xf000, 1] {
                for scale in [0u16, 1, 2, 3, 4, 5, 9, 30, 1000, 1001, 0x3fff, 0x4000] {
                    let header = [groups.len() as u16, weight as u16, sign, scale];
                    values.push(header.iter().chain(groups).flat_map(|word| word.to_be_bytes()).collect());
                }
            }
        }
    }
    values
}

/// As floats; NaN, infinity and what is malformed goes as sent.
#[test]
fn binary_numerics_in_text_rows_are_exact() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE DOMAIN price AS numeric(12, 4) CHECK (value < 1e6)");
    let mut raw = Raw::login(server.port(), &database);
    let values = numerics();
    let mut counts = Counts::default();
    for (at, (column, step)) in
        [("numeric", 1), ("numeric(10, 2)", 3), ("numeric(300, 40)", 5), ("price", 7)].into_iter().enumerate()
    {
        let table = format!("numerics{at}");
        raw.rows(&format!("CREATE TABLE {table} (a {column}, b text)"));
        let plan = plan_of_two(&mut raw, &table, [1700, 25]);
        raw.rows("BEGIN");
        for value in values.iter().step_by(step) {
            let row = [Some(value.clone()), Some(b"x".to_vec())];
            params_agree(&mut raw, &plan, &table, &row, &[true, false], &mut counts)
                .unwrap_or_else(|e| panic!("{column} {value:?} {e}"));
        }
        raw.rows("ROLLBACK");
    }
    assert!(counts.poured > 2000, "{counts:?}");
}

/// Bits of floats: of each exponent, of the ends, and any.
fn float_bits(width: u32) -> impl Iterator<Item = u64> {
    let mantissa = if width == 64 { 52 } else { 23 };
    let every = (0..1u64 << (width - mantissa)).step_by(if width == 64 { 37 } else { 5 });
    let ends = every.flat_map(move |top| {
        let top = top << mantissa;
        [top, top + 1, top + (1 << mantissa) - 1]
    });
    // A linear congruence is enough to be any.
    let any = std::iter::successors(Some(0x9e37_79b9_7f4a_7c15u64), |n| {
        Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    });
    ends.chain(any.take(150).map(move |n| n >> (64 - width)))
}

/// A binary date or time in a row that is text for another value's sake.
#[test]
fn binary_times_in_text_rows_are_exact() {
    const SECOND: i64 = 1_000_000;
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut raw = Raw::login(server.port(), &database);
    let days =
        [0, -1, 59, 60, 8825, -36_466, -36_465, 2_921_939, 2_921_940, -365_242, -365_243, i32::MAX, i32::MIN];
    let micros = [0, -1, 1, 499, 500, 1500, 86_399 * SECOND + 999_999, i64::MAX, i64::MIN, i64::MAX - 1]
        .into_iter()
        .chain(days.map(|day| i64::from(day).saturating_mul(86_400 * SECOND).saturating_add(12_345_678_901)));
    let times: Vec<Vec<u8>> = micros.map(|n| n.to_be_bytes().to_vec()).collect();
    let dates: Vec<Vec<u8>> = days.iter().map(|n| n.to_be_bytes().to_vec()).collect();
    let mut counts = Counts::default();
    for (at, (column, oid, values)) in [
        ("date", 1082, &dates),
        ("timestamp", 1114, &times),
        ("timestamp(3)", 1114, &times),
        ("timestamptz", 1184, &times),
        ("timestamptz(0)", 1184, &times),
    ]
    .into_iter()
    .enumerate()
    {
        let table = format!("times{at}");
        raw.rows(&format!("CREATE TABLE {table} (a {column}, b numeric)"));
        let plan = plan_of_two(&mut raw, &table, [oid, 1700]);
        for setting in
            ["SET DateStyle = 'German, DMY'", "SET DateStyle = 'SQL, MDY'; SET TimeZone = 'Asia/Kolkata'"]
        {
            raw.rows(setting);
            raw.rows("BEGIN");
            for value in values {
                let row = [Some(value.clone()), Some(b"1.5".to_vec())];
                params_agree(&mut raw, &plan, &table, &row, &[true, false], &mut counts)
                    .unwrap_or_else(|e| panic!("{e}"));
            }
            raw.rows("ROLLBACK");
            raw.rows("RESET ALL");
        }
    }
    assert!(counts.poured > 100, "{counts:?}");
}
