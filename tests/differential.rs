//! The same statements direct and through pgsluice, by several clients at a time: tags, errors, notices, transaction status
//! and the tables must be the same, whatever the column, the form of the statement and the session's settings.
//!
//! `PGSLUICE_TEST_SEED` chooses other combinations; `PGSLUICE_TEST_CASES` how many. On another version of PostgreSQL:
//! `tests/drivers/prepare.sh postgres-14` (16, 17, 18), then `PGSLUICE_TEST_PG_BIN=target/drivers/postgres-14/bin`, as an
//! absolute path, before `cargo test --test pouring differential::`.

use crate::support;
use pgsluice::wire::frontend;
use support::crowd::{self, comparable};
use support::seeded::{Seeded, from_env};
use support::{Message, PgOptions, Postgres, Proxy, Raw, Step};

/// Clients at a time.
const CLIENTS: usize = 8;

/// Rounds of a case; the first ones are learnt from.
const ROUNDS: usize = 4;

/// Rows of a client in a round in which nothing fails.
const GOOD_ROWS: usize = 12;

/// A table and what is inserted into its column `v`. `@` stands for the table's name.
struct Kind {
    /// Columns behind `id int`; or a whole script if it holds a `;`.
    table: &'static str,
    /// Literals that are stored, `|` apart.
    good: &'static str,
    /// Literals that fail, or are refused by a COPY for another reason, `|` apart.
    bad: &'static str,
    /// What of a row must be the same.
    see: &'static str,
}

const fn kind(table: &'static str, good: &'static str, bad: &'static str) -> Kind {
    Kind { table, good, bad, see: "" }
}

const fn seen(table: &'static str, good: &'static str, see: &'static str) -> Kind {
    Kind { table, good, bad: "", see }
}

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    // Numbers
    kind("v smallint", "1|-1|'32767'|NULL|' 7 '", "32768|'1.5'|'x'|''|1.5"),
    kind("v int", "1|-1|'2147483647'|NULL|'007'|007", "2147483648|99999999999|'x'|''|1.5|1e3|TRUE|0x1F|1_000"),
    kind("v bigint", "1|-9223372036854775808|'9223372036854775807'|NULL", "9223372036854775808|'x'|1.5"),
    kind("v numeric(6,2)", "1|-1.005|'NaN'|1234.567|NULL|'1e3'|.5", "12345.6|'x'|'Infinity'"),
    kind("v numeric", "1|-0|-0.0|123456789012345678901234567890.5|'Infinity'|1e3", "'x'|TRUE|''"),
    kind("v real", "1|-0|-0.0|1.5|'-0'|'NaN'|'Infinity'|0.1", "'x'|'1e99'|''"),
    kind("v double precision", "1|-0|-0.0|0.1|'-0'|'-Infinity'|1e300", "'x'|'1e999'"),
    kind("v money", "'12.34'|'$1,000.00'|12|NULL", "'x'|'99999999999999999999'"),
    kind("v oid", "1|'4294967295'|NULL", "-1|'x'|'4294967296'"),
    // Strings
    kind("v text", "'a'|''|'it''s'|'\\'|'\\.'|'\\N'|'\\\\n'|'a\tb'|'a\nb'|'a\rb'|'a\r\nb'|'é€😀'|NULL|'NULL'", "007|1e3|.5|-0|TRUE|1|0x1F|1_000"),
    kind("v text", "'\\x41'|'\\t'|'\\101'|'\\\t'|'\"'|','|'{}'|' x '|'\u{1}\u{7f}'|'$1'|'--'|'/*'|E'a\\nb'|E'\\\\x41 it''s'|e'\\\\.'", "B'101'|X'1F'|N'abc  '|E'a\\x41'|E'\\''|E'\\\\0\\0'|U&'\\0041'|$$a$$"),
    kind("v varchar(3)", "'abc'|'abc   '|''|NULL|'é€😀'", "'abcd'|'ab cd'|1"),
    kind("v char(4)", "'a'|'abcd'|'ab      '|''|NULL", "'abcde'|1"),
    kind("v \"char\"", "'a'|''|'abc'|NULL", "1"),
    kind("v name", "'a'|'abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz'", "1"),
    kind("v text COLLATE \"C\" CHECK (v ~ '^[a-z]*$')", "'abc'|''|NULL", "'ABC'|'1'"),
    kind("v text NOT NULL", "'a'|''", "NULL"),
    // Booleans, bits, bytes
    kind("v boolean", "TRUE|FALSE|'t'|'yes'|'OFF'|NULL|'1'", "1|0|'x'|''"),
    kind("v bytea", "'\\x00ff'|'abc'|'a\\\\b'|''|NULL|'\\000'", "'\\xzz'|'\\9'|5"),
    kind("v bit(3)", "'101'|NULL", "'1011'|'2'|5|B'101'"),
    kind("v varbit(3)", "'101'|''|'1'", "'1011'|5"),
    kind("v uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'|'{a0eebc999c0b4ef8bb6d6bb9bd380a11}'|NULL", "'x'|12345678901234567890123456789012"),
    // Dates and times
    kind("v date", "'2024-02-29'|'02/03/2024'|'infinity'|'4713-01-01 BC'|NULL|'J2451187'", "'2023-02-29'|'x'|20240101|'31/12/2024 x'"),
    kind("v timestamp", "'2024-02-29 12:34:56.789'|'02/03/2024 1:2'|'-infinity'|NULL|'2024-01-01T00:00:00Z'", "'x'|'2024-13-01'|20240101"),
    kind("v timestamptz", "'2024-02-29 12:34:56+02'|'02/03/2024 1:2'|'infinity'|'2024-07-01 12:00 PST'|NULL|'epoch'", "'x'|'2024-01-01 25:00'"),
    kind("v timestamp(0)", "'2024-01-01 12:34:56.5'|'2024-01-01 12:34:56.49'", "'x'"),
    kind("v time", "'12:34:56.789'|'04:05 PM'|'24:00'|NULL", "'25:00'|120000"),
    kind("v timetz", "'12:34+02'|'12:34:56'|NULL", "'x'"),
    kind("v interval", "'1 day 2 hours'|'-1 2:03:04'|'P1Y2M'|'1-2'|NULL|'5'", "'x'|5"),
    kind("v interval hour to minute", "'1:30'|'5'|'2 days 3:04:05'", "'x'"),
    kind("v interval(2)", "'1.23456 seconds'|'5'", "'x'"),
    seen("v timestamptz", "'now'|'today'|'tomorrow 12:00'", "v > current_date - 2"),
    seen("v date", "'today'|'now'|'yesterday'", "v - current_date < 2"),
    // Documents, networks, geometry, searches
    kind("v jsonb", "'{\"a\": [1, 2, {\"b\": null}]}'|'1'|'\"\\u00e9\\n\"'|'{\"a\":1,\"a\":2}'|NULL", "'{a}'|''|5"),
    kind("v json", "'{\"a\": 1 }'|'[1 , 2]'|'\"\\\\\"'", "'{a}'|5"),
    kind("v xml", "'<a>b</a>'|'text'|NULL", "'<a>'|5"),
    kind("v inet", "'192.168.0.1/24'|'::1'|NULL", "'x'|5"),
    kind("v cidr", "'192.168.0.0/24'|'10'", "'192.168.0.1/24'|5"),
    kind("v macaddr", "'08:00:2b:01:02:03'", "'x'"),
    kind("v point", "'(1,2)'|'1 , -0'", "'x'"),
    kind("v tsvector", "'a b:1'|'''x y'' z'", "5"),
    kind("v pg_lsn", "'16/B374D848'", "'x'|5"),
    kind("v xid", "'5'", "5"),
    kind("v regclass", "'pg_class'|'1259'", "'nonesuch'|'@'"),
    // Arrays, ranges, own types
    kind("v int[]", "'{1,2,NULL}'|'{}'|'{{1},{2}}'|NULL|'[2:3]={1,2}'", "'{1,x}'|'{1'|ARRAY[1]|5"),
    kind("v smallint[]", "'{1,-32768,NULL}'|'{}'|NULL|'{{1,2}}'|'{ 7 , +8 }'", "'{32768}'|'{1.5}'|'[0:1]={1,2}'|'{1,,2}'"),
    kind("v bigint[]", "'{1,32768,2147483648}'|NULL|'{}'|'{NULL}'|'{\"5\"}'", "'{9223372036854775808}'|'{x}'|'[0:1]={1,2}'|'{{1},{2,3}}'"),
    kind("v numeric[]", "'{1,2.50,NULL}'|'{9223372036854775807}'|'{-0,007}'|NULL", "'{NaN,x}'|'[2:2]={1}'|'{32768}'"),
    kind("v numeric(5,1)[]", "'{1,22}'|'{1.25,9999}'|NULL", "'{10000}'|'{123456}'"),
    kind("v varchar[]", "'{a,\"b c\",NULL}'|'{}'|NULL|'{{a},{b}}'|'{ x }'", "'{a'|'[0:0]={a}'"),
    kind("CREATE DOMAIN list_@ AS int[] CHECK (VALUE[1] > 0); CREATE TABLE @ (id int, v list_@)", "'{1,2}'|NULL|'{}'", "'{0}'|'{x}'"),
    kind("v text[]", "'{a,\"b,c\",NULL,\"NULL\",\"\\\\\"}'|'{\"\"}'|'{\"a\tb\nc\"}'", "'{a'|'x'"),
    kind("v timestamptz[]", "'{2024-01-01,infinity}'", "'{x}'"),
    kind("v varchar(2)[]", "'{ab,c}'", "'{abc}'"),
    kind("v int4range", "'[1,5)'|'(,3]'|'empty'", "'[5,1)'|5"),
    kind("v tstzrange", "'[2024-01-01,2024-02-01)'", "'x'"),
    kind("CREATE TYPE mood_@ AS ENUM ('ok', 'sad', '1'); CREATE TABLE @ (id int, v mood_@)", "'ok'|'sad'|NULL", "'glad'|''|1"),
    kind("CREATE TYPE pair_@ AS (a int, b text); CREATE TABLE @ (id int, v pair_@)", "'(1,x)'|'(,)'", "'(x,y)'|ROW(1,'x')"),
    kind("CREATE DOMAIN pos_@ AS int CHECK (VALUE > 0); CREATE TABLE @ (id int, v pos_@)", "1|'2'|NULL", "0|-1|'x'"),
    kind("CREATE DOMAIN must_@ AS text NOT NULL; CREATE TABLE @ (id int, v must_@)", "'a'", "NULL"),
    kind("CREATE DOMAIN short_@ AS varchar(2); CREATE TABLE @ (id int, v short_@)", "'ab'|'ab  '", "'abc'"),
    kind("CREATE DOMAIN must_@ AS int NOT NULL; CREATE TABLE @ (id int, v int, d must_@)", "", "1|NULL"),
    kind("CREATE DOMAIN pos_@ AS int CHECK (VALUE IS NOT NULL); CREATE TABLE @ (id int, v int, d pos_@)", "", "1|NULL"),
    kind("CREATE DOMAIN who_@ AS text CHECK (VALUE <> current_user); CREATE TABLE @ (id int, v who_@)", "'x'", "'postgres'"),
    // Columns
    kind("v int GENERATED ALWAYS AS IDENTITY", "", "5|NULL"),
    kind("v int GENERATED BY DEFAULT AS IDENTITY", "5|'7'", "NULL"),
    kind("g int GENERATED ALWAYS AS (id * 2) STORED, v text", "'x'", "NULL|5"),
    kind("g text GENERATED ALWAYS AS (upper(v)) STORED, v text", "'x'|NULL", ""),
    kind("v int, w int DEFAULT 7, x text DEFAULT 'd'", "1|NULL|DEFAULT", "'x'"),
    kind("v int DEFAULT 9", "DEFAULT|1", "'x'"),
    seen("v int, w timestamptz DEFAULT now()", "1|2", "id, v, w > now() - interval '1 hour'"),
    seen("v int, w timestamptz DEFAULT clock_timestamp(), x uuid DEFAULT gen_random_uuid()", "1|2", "id, v, w > now() - interval '1 hour', x IS NULL"),
    seen("v int, w date DEFAULT current_date, x time DEFAULT localtime", "1|2", "id, v, w >= current_date - 1, x IS NULL"),
    seen("v int, w bigserial", "1|2", "id, v, w > 0"),
    seen("v int, w int GENERATED ALWAYS AS IDENTITY", "1|2", "id, v, w > 0"),
    seen("v int, w text DEFAULT current_user, x text DEFAULT current_setting('app.x_@', true)", "1|2", "*"),
    seen("v int, w text DEFAULT current_query()", "1|2", "id, v, w LIKE 'COPY%'"),
    seen("v int, w int DEFAULT pg_backend_pid(), x text DEFAULT current_schema()", "1|2", "id, v, x"),
    kind("dropped int, v int; ALTER TABLE @ DROP COLUMN dropped", "1|NULL", "'x'"),
    kind("v int, \"W x\" int, w int", "1", "'x'"),
    // Constraints
    kind("v int UNIQUE NULLS NOT DISTINCT; INSERT INTO @ (v) VALUES (-5), (NULL)", "", "-5|NULL"),
    kind("v int; CREATE UNIQUE INDEX ON @ (id); INSERT INTO @ SELECT c * 1000, 0 FROM generate_series(0, 7) c", "1|2", "'x'"),
    kind("v int CHECK (v > 0), CHECK (v < id + 10000)", "1|NULL|'9'", "0|20000"),
    kind("v text CHECK (current_setting('app.x_@', true) IS DISTINCT FROM 'bad')", "'a'", ""),
    kind("v int CHECK (v <> length(current_user))", "1|2", "8"),
    kind("CREATE TABLE p_@ (id int PRIMARY KEY); INSERT INTO p_@ VALUES (1), (2); CREATE TABLE @ (id int, v int REFERENCES p_@)", "1|2|NULL", "3|'x'"),
    kind("CREATE TABLE p_@ (id int PRIMARY KEY); INSERT INTO p_@ VALUES (1); CREATE TABLE @ (id int, v int REFERENCES p_@ DEFERRABLE INITIALLY DEFERRED)", "1|NULL", "3"),
    kind("CREATE TABLE @ (id int PRIMARY KEY, v int REFERENCES @)", "NULL", "5|1000000"),
    kind("v int, EXCLUDE USING btree (v WITH =); INSERT INTO @ (v) VALUES (7)", "", "7"),
    kind("v int, UNIQUE (v) DEFERRABLE INITIALLY DEFERRED; INSERT INTO @ (v) VALUES (7)", "NULL", "7"),
    kind("v int; CREATE INDEX ON @ ((v * 2)); CREATE INDEX ON @ (v) WHERE v > 5", "1|9|NULL", "2147483647"),
    // Relations
    kind("CREATE TABLE @ (id int, v int) PARTITION BY RANGE (v); CREATE TABLE a_@ PARTITION OF @ FOR VALUES FROM (0) TO (10); CREATE TABLE b_@ PARTITION OF @ FOR VALUES FROM (10) TO (20)", "1|15|'9'", "20|NULL|-1"),
    kind("CREATE TABLE @ (id int, v text) PARTITION BY LIST (v); CREATE TABLE a_@ PARTITION OF @ FOR VALUES IN ('a'); CREATE TABLE d_@ PARTITION OF @ DEFAULT", "'a'|'b'|NULL", "1"),
    kind("CREATE TABLE up_@ (id int, v int); CREATE TABLE @ () INHERITS (up_@)", "1|2", "'x'"),
    kind("CREATE UNLOGGED TABLE @ (id int, v int)", "1", "'x'"),
    kind("CREATE TABLE b_@ (id int, v int); CREATE VIEW @ AS SELECT * FROM b_@", "1", "'x'"),
    kind("v int; CREATE RULE r AS ON INSERT TO @ WHERE NEW.v = 2 DO INSTEAD NOTHING", "1|2", "'x'"),
    kind("v text; CREATE FUNCTION f_@() RETURNS trigger LANGUAGE plpgsql AS $f$BEGIN RAISE NOTICE 'saw %', NEW.v; NEW.v := NEW.v || '!'; RETURN NEW; END$f$; CREATE TRIGGER g BEFORE INSERT ON @ FOR EACH ROW EXECUTE FUNCTION f_@()", "'a'|NULL", "5"),
    kind("v int; CREATE FUNCTION f_@() RETURNS trigger LANGUAGE plpgsql AS $f$BEGIN RETURN CASE WHEN NEW.v = 1 THEN NULL ELSE NEW END; END$f$; CREATE TRIGGER g BEFORE INSERT ON @ FOR EACH ROW EXECUTE FUNCTION f_@()", "1|2", "'x'"),
    kind("v int; ALTER TABLE @ ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON @ FOR INSERT TO PUBLIC WITH CHECK (v > 0)", "1", "-1|'x'"),
    // What only newer servers know: on others there is no such table, and both sides say so.
    kind("v int, g int GENERATED ALWAYS AS (v * 2) VIRTUAL CHECK (g < 100) NOT NULL", "1|2|'9'", "NULL|50"),
    kind("v int, CHECK (v > 0) NOT ENFORCED", "1|-1", "'x'"),
    kind("CREATE TABLE @ (id int, v int4range, w int4range DEFAULT '[1,2)', PRIMARY KEY (v, w WITHOUT OVERLAPS)); INSERT INTO @ (v) VALUES ('[7,8)')", "", "'[7,8)'|'x'"),
    seen("v int, w uuid DEFAULT uuidv7()", "1|2", "id, v, w IS NULL"),
    // At the ends of what a number may be: more digits than it may have are refused before they are rounded.
    kind("v numeric(10,2)", "'1e-9999'|'1E3'|'-0.005'|NULL", "'1e-17000'|'-2E-20000'|1e-17000|'1e10'"),
    kind("v numeric(3,-2)", "12345|'99949'|0|NULL", "99950|'1e-17000'|'x'"),
    kind("v numeric(3,1)[]", "'{1.25,-1e-30}'|'{{1},{2}}'", "'{1e-17000}'|'{100}'"),
    kind("v macaddr8", "'08:00:2b:01:02:03:04:05'", "'x'"),
    kind("v tsquery", "'a & b'|'a <-> b'", "'&'|5"),
    kind("v jsonpath", "'$.a[*] ? (@ > 1)'", "'$.'|5"),
    kind("v int8range[]", "'{\"[1,2)\",empty}'|'{}'", "'{[1}'"),
    kind("v text STORAGE EXTERNAL, w bytea DEFAULT '\\x00'", "'a'|''|'é'", "5"),
    kind("CREATE TYPE mood_@ AS ENUM ('ok', 'sad'); CREATE TABLE @ (id int, v mood_@[])", "'{ok,NULL}'|'{}'", "'{glad}'|'ok'"),
    kind("CREATE DOMAIN pos_@ AS int CHECK (VALUE > 0); CREATE TABLE @ (id int, v pos_@[])", "'{1,2}'|NULL", "'{0}'"),
    kind("CREATE TYPE span_@ AS RANGE (subtype = float8); CREATE TABLE @ (id int, v span_@)", "'[1,2.5)'|'empty'", "'[2,1]'"),
    kind("CREATE TYPE row_@ AS (id int, v int); CREATE TABLE @ OF row_@ (v CHECK (v <> 3))", "1|NULL", "3|'x'"),
    // Whole rows, and the table itself, in what is computed
    kind("v int, CHECK (@ IS NOT NULL)", "1|'2'", "NULL"),
    kind("v int, CHECK (tableoid::bigint > v)", "1|NULL", "2147483647|'x'"),
    seen("CREATE TABLE @ (id int, v int, w oid GENERATED ALWAYS AS (tableoid) STORED) PARTITION BY LIST (v); CREATE TABLE a_@ PARTITION OF @ FOR VALUES IN (1); CREATE TABLE d_@ PARTITION OF @ DEFAULT", "1|2|3", "id, v, w = tableoid"),
    // Columns in another order below, and names that need quotes
    kind("CREATE TABLE @ (id int, v int, w text DEFAULT 'w') PARTITION BY RANGE (v); CREATE TABLE a_@ (x int, w text DEFAULT 'leaf', v int, id int) PARTITION BY LIST (id); ALTER TABLE a_@ DROP COLUMN x; ALTER TABLE @ ATTACH PARTITION a_@ FOR VALUES FROM (0) TO (100); CREATE TABLE b_@ (v int, x int, id int, w text CHECK (w <> 'no')); ALTER TABLE b_@ DROP COLUMN x; ALTER TABLE a_@ ATTACH PARTITION b_@ DEFAULT", "1|'99'|2", "100|NULL|-1"),
    kind("CREATE TABLE @ (id int, v text) PARTITION BY HASH (v, id); CREATE TABLE a_@ PARTITION OF @ FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "'a'|'b'|NULL", "5"),
    kind("v int, \"a\"\"b\" int DEFAULT 3, \"select\" text, \"na\u{ef}ve\" text DEFAULT 'x', aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa int", "1|NULL", "'x'"),
    seen("v int; DO $d$BEGIN EXECUTE (SELECT 'ALTER TABLE @ ' || string_agg('ADD c' || n || ' int', ', ') FROM generate_series(1, 1598) n); END$d$", "1|NULL", "id, v, c1598"),
    kind("CREATE TABLE up_@ (id int, v int CHECK (v <> 5)); CREATE TABLE @ (w int DEFAULT 3) INHERITS (up_@)", "1|2", "5"),
    // Extensions
    kind("CREATE EXTENSION IF NOT EXISTS citext SCHEMA pg_catalog; CREATE TABLE @ (id int, v text, w citext DEFAULT 'X', CHECK (w = 'x')); CREATE UNIQUE INDEX ON @ (w, id)", "'a'|NULL", "5"),
    kind("CREATE EXTENSION IF NOT EXISTS citext SCHEMA pg_catalog; CREATE TABLE @ (id int, v citext)", "'a'|NULL|'É'", "5"),
    kind("CREATE EXTENSION IF NOT EXISTS hstore SCHEMA pg_catalog; CREATE TABLE @ (id int, v text, w hstore DEFAULT 'a=>1', CHECK (w ? 'a'))", "'a'", "5"),
    kind("CREATE EXTENSION IF NOT EXISTS ltree SCHEMA pg_catalog; CREATE TABLE @ (id int, v ltree)", "'a.b'", "'a..b'"),
    kind("CREATE EXTENSION IF NOT EXISTS btree_gist SCHEMA pg_catalog; CREATE TABLE @ (id int, v int, EXCLUDE USING gist (v WITH =)); INSERT INTO @ (v) VALUES (7)", "NULL", "7|'x'"),
    // Nothing that fits
    kind("w int", "", "1|'x'"),
    kind("v nonesuch; SELECT 1", "", "1"),
];

/// How the statement is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Simple,
    NoColumns,
    Spelled,
    Extended,
    Cast,
    CastText,
    CastLiteral,
    Named,
    Pipeline,
    SyncEach,
    Mixed,
    Typed,
    Parsed,
    InBlock,
    ManyRows,
    ManyParams,
    Tagged,
    Returning,
    ReturningParams,
    ReturningParsed,
    ManyReturning,
    ManyReturningParams,
    Nothing,
    Update,
    UpdateParams,
    Computed,
    UpdateComputed,
}

impl Form {
    /// A statement alone brings several.
    fn has_many_rows(self) -> bool {
        matches!(self, Self::ManyRows | Self::ManyParams | Self::ManyReturning | Self::ManyReturningParams)
    }

    /// Not a COPY at best, but a transaction with others' statements.
    fn is_together(self) -> bool {
        matches!(self, Self::Returning | Self::ReturningParams | Self::ReturningParsed)
            || matches!(self, Self::Nothing | Self::Update | Self::UpdateParams)
            || matches!(self, Self::Computed | Self::UpdateComputed)
    }
}

const FORMS: [Form; 27] = [
    Form::Simple,
    Form::NoColumns,
    Form::Spelled,
    Form::Extended,
    Form::Cast,
    Form::CastText,
    Form::CastLiteral,
    Form::Named,
    Form::Pipeline,
    Form::SyncEach,
    Form::Mixed,
    Form::Typed,
    Form::Parsed,
    Form::InBlock,
    Form::ManyRows,
    Form::ManyParams,
    Form::Tagged,
    Form::Returning,
    Form::ReturningParams,
    Form::ReturningParsed,
    Form::ManyReturning,
    Form::ManyReturningParams,
    Form::Nothing,
    Form::Update,
    Form::UpdateParams,
    Form::Computed,
    Form::UpdateComputed,
];

/// What every other client has set; `@` stands for the table.
const SETTINGS: &[(&str, &str)] = &[
    ("", ""),
    ("", ""),
    ("SET DateStyle = 'SQL, DMY'", "SET DateStyle = 'German'"),
    ("SET TimeZone = 'America/New_York'", "SET TimeZone = 'Asia/Kolkata'"),
    ("SET IntervalStyle = 'sql_standard'", "SET IntervalStyle = 'iso_8601'"),
    ("SET search_path = s, public", ""),
    ("SET ROLE diff_columns", "SET ROLE diff_nothing"),
    ("SET default_transaction_read_only = on", ""),
    ("SET default_transaction_isolation = 'repeatable read'", ""),
    ("SET standard_conforming_strings = off", ""),
    ("SET client_encoding = 'LATIN1'", ""),
    ("CREATE TEMP TABLE @ (LIKE @ INCLUDING ALL)", ""),
    ("SET array_nulls = off", "SET synchronous_commit = off"),
    ("SET app.x_@ = 'bad'", "SET app.x_@ = 'good'"),
    ("SET application_name = 'a'", "SET statement_timeout = '20s'"),
    ("SET client_min_messages = warning", "SET xmloption = document"),
    ("SET SESSION AUTHORIZATION diff_columns", ""),
    ("SET extra_float_digits = 0", "SET bytea_output = escape"),
    ("SET client_encoding = 'SQL_ASCII'", "SET client_encoding = 'EUC_JP'"),
    ("SET client_encoding = 'SJIS'", "SET client_encoding = 'WIN1252'"),
    ("SET TIME ZONE INTERVAL '+02:30' HOUR TO MINUTE", "SET timezone_abbreviations = 'India'"),
    ("SET IntervalStyle = 'postgres_verbose'", "SET default_toast_compression = 'pglz'"),
    ("SET session_replication_role = replica", "SET session_replication_role = local"),
    ("SET row_security = off", "SET default_transaction_deferrable = on"),
    ("SET backslash_quote = off", "SET transform_null_equals = on"),
    (
        "SELECT set_config('DateStyle', 'German', false)",
        "DO $$BEGIN PERFORM set_config('TimeZone', 'Asia/Tokyo', false); END$$",
    ),
    ("BEGIN; SET LOCAL DateStyle = 'German'; COMMIT", "BEGIN; SET DateStyle = 'German'; ROLLBACK"),
    ("SET search_path = \"$user\", s", "SET search_path = ''"),
    ("SET search_path = public, pg_catalog", "SET search_path = s, pg_temp, public"),
];

/// Types by which a parameter is cast: the column's own, another one now and then.
const CASTS: &[&str] = &[
    "smallint",
    "int",
    "bigint",
    "numeric",
    "numeric(5, 2)",
    "numeric(6)",
    "real",
    "double precision",
    "text",
    "varchar",
    "bool",
    "date",
    "timestamp",
    "timestamptz",
    "timestamp with time zone",
    "time",
    "interval",
    "bytea",
    "uuid",
    "json",
    "jsonb",
    "inet",
    "char(4)",
    "varchar(2)",
    "int[]",
    "text[]",
    "timestamptz[]",
    "varchar[]",
    "money",
    "oid",
    "name",
    "\"char\"",
    "bit",
    "varbit",
    "cidr",
    "macaddr",
    "point",
    "tsvector",
    "pg_lsn",
    "int4range",
    "pg_catalog.tstzrange",
    "mood_@",
    "public.\"mood_@\"",
    "pos_@",
];

/// For a column that is defined so.
fn cast_for(table: &str, number: usize) -> &'static str {
    let column = table.rsplit_once("v ").map_or(table, |(_, column)| column);
    if column.starts_with("mood_@") && number.is_multiple_of(2) {
        return "public.\"mood_@\"";
    }
    let own = CASTS.iter().filter(|name| column.starts_with(**name)).max_by_key(|name| name.len());
    own.filter(|_| !number.is_multiple_of(3)).unwrap_or(&CASTS[number % CASTS.len()])
}

/// The value that a literal means as a parameter: `None` when it has none. `Some(None)` is NULL.
fn as_parameter(literal: &str) -> Option<Option<String>> {
    if literal == "NULL" {
        return Some(None);
    }
    if let Some(inner) = literal.strip_prefix('\'').and_then(|l| l.strip_suffix('\'')) {
        return Some(Some(inner.replace("''", "'")));
    }
    literal.starts_with(|c: char| c.is_ascii_digit() || c == '-').then(|| Some(literal.to_owned()))
}

/// Other types by which drivers declare a parameter for a column that is defined so: integers, arrays of integers or texts, texts.
fn declared_for(table: &str) -> &'static [u32] {
    let column = table.rsplit_once("v ").map_or(table, |(_, column)| column);
    let numbers = ["smallint", "int", "bigint", "numeric", "real", "double", "pos_", "money", "oid"];
    let is_array = column.split([',', ';']).next().is_some_and(|column| column.contains("[]"))
        || column.starts_with("list_");
    if is_array {
        &[1005, 1007, 1016, 1009, 1015]
    } else if numbers.iter().any(|name| column.starts_with(name)) {
        &[21, 23, 20]
    } else {
        &[25, 1043, 0]
    }
}

struct Case {
    table: String,
    form: Form,
    values: Vec<&'static str>,
    /// A type's name.
    cast: String,
    /// What RETURNING may show: no time of the server's.
    returned: &'static str,
    /// Types that a parameter for the column may be declared as.
    declared: &'static [u32],
}

impl Case {
    /// All clients' statements are alike: of several, one for each table.
    fn turn(&self) -> usize {
        self.table.bytes().map(usize::from).sum()
    }

    /// What client `c` sends in round `r`.
    fn script(&self, c: usize, r: usize, good: usize) -> Vec<Step> {
        // What fails comes twice: it is learnt from first. In the other rounds there is more to pour.
        let values: Vec<(usize, &str)> = if (r == 0 || r == 3) && good > 0 {
            self.values[..good].iter().copied().cycle().take(GOOD_ROWS).enumerate().collect()
        } else {
            self.values.iter().copied().enumerate().collect()
        };
        let id = |i: usize| c * 1000 + r * 100 + i + 1;
        let t = &self.table;
        let returning = format!(" RETURNING {}", self.returned);
        let with_param = |make: &dyn Fn(usize, &str, Option<&str>) -> Step| -> Vec<Step> {
            values
                .iter()
                .filter_map(|&(i, literal)| {
                    as_parameter(literal).map(|value| make(i, &id(i).to_string(), value.as_deref()))
                })
                .collect()
        };
        let sql = format!("INSERT INTO {t} (id, v) VALUES ($1, $2)");
        match self.form {
            Form::Simple => values
                .iter()
                .map(|&(i, v)| Step::query(&format!("INSERT INTO {t} (id, v) VALUES ({}, {v})", id(i))))
                .collect(),
            Form::NoColumns => values
                .iter()
                .map(|&(i, v)| Step::query(&format!("INSERT INTO {t} VALUES ({}, {v})", id(i))))
                .collect(),
            Form::Spelled => values
                .iter()
                .map(|&(i, v)| {
                    let tag = format!("/* client {c} */");
                    Step::query(&format!(
                        "insert {tag} INTO \"{t}\"(\"v\",ID)\n VALUES( {v} ,{}) ; -- {i}",
                        id(i)
                    ))
                })
                .collect(),
            Form::Extended => with_param(&|_, id, v| Step::extended(&sql, &[Some(id), v])),
            Form::Cast => {
                let sql = match c % 2 {
                    0 => format!("INSERT INTO {t} (id, v) VALUES ($1::INTEGER, $2 :: {})", self.cast),
                    _ => format!("INSERT INTO {t} (id, v) VALUES (($1), CAST($2 AS {}))", self.cast),
                };
                with_param(&|_, id, v| Step::extended(&sql, &[Some(id), v]))
            }
            // Of a text: declared as one, as jOOQ does, or taken to one, as Prisma does.
            Form::CastText => {
                let (cast, types) = match c % 4 {
                    0 => (format!("CAST($2 AS {})", self.cast), &[23, 1043][..]),
                    1 => (format!("CAST($2::text AS {})", self.cast), &[][..]),
                    2 => (format!("$2::{}", self.cast), &[0, 25][..]),
                    _ => (format!("$2::varchar::{}", self.cast), &[0, 1043][..]),
                };
                let tail = if c / 4 == 0 { "" } else { " ON CONFLICT DO NOTHING" };
                let sql = format!("INSERT INTO {t} (id, v) VALUES ($1, {cast}){tail}");
                with_param(&|_, id, v| Step::typed(&sql, types, &[Some(id), v]))
            }
            // As psycopg writes what it binds itself, and pgjdbc in parentheses; only strings have types.
            Form::CastLiteral => values
                .iter()
                .map(|&(i, v)| {
                    let v = match (v.starts_with('\''), c % 4) {
                        (true, 0) => format!("{v}::{}", self.cast),
                        // As SQLAlchemy writes behind what psycopg2 does.
                        (true, 1) => format!("{v}::{}::{}", self.cast, self.cast),
                        (true, 2) => format!("CAST({v} AS {})", self.cast),
                        (true, _) => format!("({v}::{})", self.cast),
                        (false, 0 | 2) if v == "NULL" => format!("CAST(NULL AS {})", self.cast),
                        (false, 3) => format!("({v})"),
                        (false, _) => v.to_owned(),
                    };
                    let tail = if c.is_multiple_of(3) { " ON CONFLICT DO NOTHING" } else { "" };
                    Step::query(&format!("INSERT INTO {t} (id, v) VALUES ({}, {v}){tail}", id(i)))
                })
                .collect(),
            // Declared as another type of the same family: drivers do so by what they are given.
            Form::Typed => {
                let types = [23, self.declared[(c + r) % self.declared.len()]];
                with_param(&|_, id, v| Step::typed(&sql, &types, &[Some(id), v]))
            }
            Form::Named => {
                let mut steps = if r == 0 { vec![Step::prepare(t, &sql)] } else { Vec::new() };
                steps.extend(with_param(&|_, id, v| Step::execute(t, &[Some(id), v])));
                steps
            }
            Form::Returning => values
                .iter()
                .map(|&(i, v)| {
                    let returned = self.returned;
                    Step::query(&format!(
                        "INSERT INTO {t} (id, v) VALUES ({}, {v}) RETURNING {returned}",
                        id(i)
                    ))
                })
                .collect(),
            Form::ReturningParams => {
                let sql = format!("{sql} RETURNING {}", self.returned);
                let named = c.is_multiple_of(2);
                let mut steps = if named && r == 0 { vec![Step::prepare(t, &sql)] } else { Vec::new() };
                steps.extend(with_param(&|_, id, v| match named {
                    true => Step::execute(t, &[Some(id), v]),
                    false => Step::extended(&sql, &[Some(id), v]),
                }));
                steps
            }
            // Each is another text, read at Parse.
            Form::Parsed | Form::ReturningParsed => {
                let tail = match self.form {
                    Form::Parsed => String::new(),
                    _ => format!(" ON CONFLICT DO NOTHING RETURNING {}", self.returned),
                };
                let step = |i: usize, v: &str| {
                    let sql = format!("INSERT INTO {t} (id, v) VALUES ({}, {v}){tail}", id(i));
                    if c % 4 < 3 {
                        return vec![Step::extended(&sql, &[])];
                    }
                    // A name for each text, and what came of it if it could not be parsed.
                    let name = format!("{t}_{r}_{i}");
                    vec![Step::prepare(&name, &sql), Step::execute(&name, &[])]
                };
                values.iter().flat_map(|&(i, v)| step(i, v)).collect()
            }
            Form::Nothing => values
                .iter()
                .map(|&(i, v)| {
                    Step::query(&format!(
                        "INSERT INTO {t} (id, v) VALUES ({}, {v}) ON CONFLICT DO NOTHING",
                        id(i)
                    ))
                })
                .collect(),
            // Each client's rows of the rounds before.
            Form::Update => values
                .iter()
                .map(|&(i, v)| {
                    Step::query(&format!(
                        "INSERT INTO {t} (id, v) VALUES ({}, {v}) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v",
                        c * 1000 + i % 5
                    ))
                })
                .collect(),
            Form::UpdateParams => {
                let tail = format!("ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING {}", self.returned);
                let sql = format!("{sql} {tail}");
                let row = |i: usize, v: Option<&str>| {
                    Step::extended(&sql, &[Some(&(c * 1000 + i % 5).to_string()), v])
                };
                with_param(&|i, _, v| row(i, v))
            }
            // Of one value the same value.
            Form::Computed => {
                let cast = &self.cast;
                let values = match self.turn() % 6 {
                    0 => format!("$1, COALESCE($2::{cast}, NULL)"),
                    1 => format!("$1, CASE WHEN now() IS NULL THEN NULL ELSE CAST($2 AS {cast}) END"),
                    2 => format!("$1, GREATEST($2::{cast}, $2::{cast})"),
                    3 => "CASE WHEN clock_timestamp() > now() THEN $1::int ELSE $1 END, $2".to_owned(),
                    4 => "-(-$1::int), $2".to_owned(),
                    _ => "abs($1::int) + 0, $2".to_owned(),
                };
                let tail = if c.is_multiple_of(2) { "" } else { " ON CONFLICT DO NOTHING RETURNING id" };
                let sql = format!("INSERT INTO {t} (id, v) VALUES ({values}){tail}");
                with_param(&|_, id, v| Step::extended(&sql, &[Some(id), v]))
            }
            // Each client's rows of the rounds before.
            Form::UpdateComputed => {
                let set = match self.turn() % 6 {
                    0 => format!("v = COALESCE({t}.v, EXCLUDED.v)"),
                    1 => format!("v = GREATEST(EXCLUDED.v, {t}.v) WHERE {t}.id >= 0"),
                    2 => format!("v = CASE WHEN {t}.id % 2 = 0 THEN EXCLUDED.v ELSE {t}.v END"),
                    3 => format!("v = {t}.v WHERE {t}.v IS DISTINCT FROM EXCLUDED.v AND {t}.id < EXCLUDED.id + 1"),
                    4 => "v = NULLIF(EXCLUDED.v, NULL)".to_owned(),
                    _ => "v = $2".to_owned(),
                };
                let sql = format!("{sql} ON CONFLICT (id) DO UPDATE SET {set} RETURNING {}", self.returned);
                let row = |i: usize, v: Option<&str>| {
                    Step::extended(&sql, &[Some(&(c * 1000 + i % 5).to_string()), v])
                };
                with_param(&|i, _, v| row(i, v))
            }
            // A tag that is never the same.
            Form::Tagged => {
                with_param(&|i, id, v| Step::extended(&format!("/* {c} */ {sql} -- {r} {i}"), &[Some(id), v]))
            }
            // What fails takes its statement's other rows with it.
            Form::ManyRows | Form::ManyReturning => values
                .chunks(2 + r % 2)
                .map(|rows| {
                    let rows: Vec<_> = rows.iter().map(|&(i, v)| format!("({}, {v})", id(i))).collect();
                    let tail = if self.form == Form::ManyReturning { returning.as_str() } else { "" };
                    Step::query(&format!("INSERT INTO {t} (id, v) VALUES {}{tail}", rows.join(", ")))
                })
                .collect(),
            Form::ManyParams | Form::ManyReturningParams => {
                let rows: Vec<_> = values
                    .iter()
                    .filter_map(|&(i, v)| as_parameter(v).map(|v| (id(i).to_string(), v)))
                    .collect();
                let step = |rows: &[(String, Option<String>)]| {
                    let places: Vec<_> =
                        (0..rows.len()).map(|i| format!("(${}, ${})", 2 * i + 1, 2 * i + 2)).collect();
                    let params: Vec<_> =
                        rows.iter().flat_map(|(id, v)| [Some(id.as_str()), v.as_deref()]).collect();
                    let places = places.join(", ");
                    let tail = if self.form == Form::ManyParams { "" } else { returning.as_str() };
                    Step::extended(&format!("INSERT INTO {t} (id, v) VALUES {places}{tail}"), &params)
                };
                rows.chunks(1 + (c + r) % 3).map(step).collect()
            }
            Form::Pipeline => {
                vec![joined(with_param(&|_, id, v| Step::extended(&sql, &[Some(id), v])), false)]
            }
            Form::SyncEach => {
                vec![joined(with_param(&|_, id, v| Step::extended(&sql, &[Some(id), v])), true)]
            }
            // The literal is read at Parse.
            Form::Mixed => values
                .iter()
                .map(|&(i, v)| {
                    Step::extended(
                        &format!("INSERT INTO {t} (id, v) VALUES ($1, {v})"),
                        &[Some(&id(i).to_string())],
                    )
                })
                .collect(),
            Form::InBlock => {
                let mut steps = vec![Step::query("BEGIN")];
                steps.extend(
                    values.iter().map(|&(i, v)| {
                        Step::query(&format!("INSERT INTO {t} (id, v) VALUES ({}, {v})", id(i)))
                    }),
                );
                steps.push(Step::query("COMMIT"));
                steps
            }
        }
    }
}

/// All steps in one write; `sync_each`: each keeps its Sync, else only the last one does.
fn joined(steps: Vec<Step>, sync_each: bool) -> Step {
    let mut sync = Vec::new();
    frontend::put_empty(&mut sync, frontend::SYNC);
    let ready = if sync_each { steps.len().max(1) } else { 1 };
    let mut bytes = Vec::new();
    for step in steps {
        let body = step.bytes.strip_suffix(&sync[..]).expect("a Sync at the end");
        bytes.extend_from_slice(if sync_each { &step.bytes } else { body });
    }
    if !sync_each || bytes.is_empty() {
        bytes.extend_from_slice(&sync);
    }
    Step { bytes, ready }
}

/// The conversation as [`comparable`]; whether a value that does not fit is noticed by Bind or by Execute depends on the
/// server's choice between a plan for these values and one for any, and that on how often it was asked.
fn settled(messages: &[Message]) -> String {
    let mut all = comparable(messages).replace("2 \nE ", "E ");
    // Whose temporary schema it is depends on the server process.
    while let Some(at) = all.find(" s=\"pg_temp_") {
        let end = at + 4 + all[at + 4..].find(' ').unwrap_or(0);
        all.replace_range(at..end, " s=temporary");
    }
    all
}

/// One side: a database with its clients.
struct Side {
    admin: Raw,
    clients: Vec<Raw>,
}

impl Side {
    fn new(pg: &Postgres, port: u16, encoding: &str) -> Self {
        let db = pg.fresh_database("");
        pg.psql("postgres", &format!("DROP DATABASE {db}"));
        let own = format!("CREATE DATABASE {db} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0");
        pg.psql("postgres", &own);
        pg.psql(&db, "CREATE SCHEMA s; GRANT USAGE ON SCHEMA s TO PUBLIC");
        // What is sent to it is in UTF-8.
        if encoding != "UTF8" {
            pg.psql("postgres", &format!("ALTER DATABASE {db} SET client_encoding = 'UTF8'"));
        }
        let admin = Raw::login(pg.port(), &db);
        let clients = (0..CLIENTS).map(|_| Raw::login(port, &db)).collect();
        Self { admin, clients }
    }

    fn rows(&mut self, sql: &str) -> String {
        let messages = self.admin.query(sql);
        comparable(&messages)
    }

    /// The same table in two schemas. False: it can't be.
    fn create(&mut self, script: &str, table: &str) {
        for schema in ["s", "public"] {
            self.rows(&format!("SET search_path = {schema}"));
            self.rows(script);
            self.rows(&format!("GRANT INSERT (id, v) ON {table} TO diff_columns"));
        }
    }

    fn each(&mut self, sql: impl Fn(usize) -> String) {
        for (c, client) in self.clients.iter_mut().enumerate() {
            let sql = sql(c);
            if !sql.is_empty() {
                client.query(&sql);
            }
        }
    }

    fn run(&mut self, scripts: &[Vec<Step>]) -> Vec<Vec<Message>> {
        crowd::run(&mut self.clients, scripts, false)
    }

    fn content(&mut self, table: &str, see: &str) -> String {
        let see = if see.is_empty() || see == "*" { "x::text".to_owned() } else { see.to_owned() };
        ["s", "public"]
            .map(|s| self.rows(&format!("SELECT {see} FROM {s}.{table} x ORDER BY x.id, x::text")))
            .concat()
    }

    /// Did one command, or one transaction, bring several rows?
    fn was_poured(&mut self, table: &str, together: bool) -> bool {
        let by = if together { "xmin::text" } else { "(xmin::text, cmin::text)" };
        let rows = self.admin.query(&format!("SELECT count(*) > count(DISTINCT {by}) FROM public.{table}"));
        rows.iter().any(|m| m.tag == pgsluice::wire::backend::DATA_ROW && m.row()[0].as_deref() == Some("t"))
    }
}

// Two halves, for two cores.

#[test]
fn nobody_can_tell() {
    compare(0);
}

#[test]
fn nobody_can_tell_of_the_other_half() {
    compare(1);
}

/// Every second case.
fn compare(half: usize) {
    let (seed, cases) =
        (from_env("PGSLUICE_TEST_SEED", 20_240_229), from_env("PGSLUICE_TEST_CASES", 440) as usize / 2);
    println!("seed {seed}, {cases} cases");
    // Which of two errors a statement gets can depend on whether its plan is a generic one yet, and clients of pgsluice share
    // the statements that count towards that.
    let conf = "plan_cache_mode = force_custom_plan".into();
    let pg = &Postgres::start(PgOptions { conf, ..PgOptions::default() });
    pg.psql("postgres", "CREATE ROLE diff_columns; CREATE ROLE diff_nothing");
    // A few rows as one INSERT of many VALUES, or all of them as COPYs.
    let proxies = ["", "[coalesce]\nvalues_max_rows = 0"].map(|plans| Proxy::to(pg, "", "", plans));
    let encodings = ["UTF8", "LATIN1", "SQL_ASCII"];
    let mut directs = encodings.map(|encoding| Side::new(pg, pg.port(), encoding));
    let mut ways = encodings.map(|encoding| proxies.each_ref().map(|p| Side::new(pg, p.port(), encoding)));
    let mut random = Seeded(seed + half as u64);
    let mut poured = std::collections::BTreeMap::<String, (usize, usize)>::new();
    let mut differences = Vec::new();
    for number in (0..2 * cases).filter(|number| number % 2 == half) {
        // Every kind in turn; forms and settings so that neighbours differ.
        let kind = &KINDS[number % KINDS.len()];
        let turn = number / KINDS.len();
        // Most databases are in UTF-8.
        let place = [0, 0, 1, 0, 2][random.below(5)];
        let (direct, through) = (&mut directs[place], &mut ways[place][turn % 2]);
        let form = FORMS[(turn + number + random.below(2)) % FORMS.len()];
        let setting = SETTINGS[random.below(SETTINGS.len())];
        let table = format!("t{number}");
        let split = |list: &'static str| list.split('|').filter(|v| !v.is_empty()).collect::<Vec<_>>();
        let (good, bad) = (split(kind.good), split(kind.bad));
        let good_len = good.len();
        let values = good.into_iter().chain(bad).collect();
        let returned = if kind.see.is_empty() { "*" } else { "id" };
        let cast = cast_for(kind.table, number).replace('@', &table);
        let case = Case {
            table: table.clone(),
            form,
            values,
            cast: cast.clone(),
            returned,
            declared: declared_for(kind.table),
        };
        let whole = kind.table.contains("CREATE TABLE @")
            || kind.table.contains("CREATE UNLOGGED")
            || kind.table.contains("VIEW @");
        let script = if whole {
            kind.table.to_owned()
        } else {
            let (columns, rest) = kind.table.split_once(';').unwrap_or((kind.table, ""));
            format!("CREATE TABLE @ (id int, {columns}); {rest}")
        };
        let script = script.replace('@', &table);
        let script = match form {
            Form::Update | Form::UpdateParams | Form::UpdateComputed => {
                format!("{script}; CREATE UNIQUE INDEX ON {table} (id)")
            }
            _ => script,
        };
        let mut was_poured = false;
        for side in [&mut *direct, &mut *through] {
            side.create(&script, &table);
            side.each(|c| [setting.0, setting.1][c % 2].replace('@', &table));
        }
        let what =
            format!("case {number}: {:?}, {form:?} {cast}, {setting:?}, {}", kind.table, encodings[place]);
        'rounds: for r in 0..ROUNDS {
            let scripts: Vec<_> = (0..CLIENTS).map(|c| case.script(c, r, good_len)).collect();
            let (expected, seen) = (direct.run(&scripts), through.run(&scripts));
            for c in 0..CLIENTS {
                let (expected, seen) = (settled(&expected[c]), settled(&seen[c]));
                if expected != seen {
                    let at = expected.lines().zip(seen.lines()).find(|(e, s)| e != s);
                    differences.push(format!("{what}, round {r}, client {c}: {at:?}"));
                    break 'rounds;
                }
            }
            let one_row_each = !matches!(form, Form::InBlock) && !form.has_many_rows();
            was_poured |= one_row_each && through.was_poured(&table, form.is_together());
            let (expected, seen) = (direct.content(&table, kind.see), through.content(&table, kind.see));
            if expected != seen {
                let at = expected.lines().zip(seen.lines()).find(|(e, s)| e != s);
                differences.push(format!("{what}, round {r}: table {at:?}"));
                break;
            }
        }
        for side in [&mut *direct, &mut *through] {
            side.each(|_| "DROP TABLE IF EXISTS pg_temp.".to_owned() + &table);
            side.each(|_| "RESET SESSION AUTHORIZATION".into());
            side.each(|_| "RESET ROLE".into());
            side.each(|_| "RESET ALL".into());
        }
        let entry = poured.entry(format!("{form:?}")).or_default();
        entry.0 += usize::from(was_poured);
        entry.1 += 1;
    }
    println!("poured, of all: {poured:?}");
    assert!(differences.is_empty(), "seed {seed}: {} differ:\n{}", differences.len(), differences.join("\n"));
    let total: usize = poured.values().map(|(n, _)| n).sum();
    assert!(total * 4 > cases, "only {total} of {cases} were poured");
}
