//! DDL under load, held against what the server says directly. While clients insert through pgsluice, everything that an INSERT can
//! depend on is made and undone: casts, domains, row security, privileges, defaults, columns, types, partitions, triggers, rules,
//! indexes, foreign keys, names. After each change every form of statement is run once directly, under every set of settings that
//! the clients use: what it is answered, and what is stored then, is what a client may hear and find whose statement was under
//! way at that time. Whoever held a lock on the table is held to the change that was in force by the order of transaction ids.
//! Clients without pgsluice are held to the same, so that the rule itself is tested.
//!
//! `PGSLUICE_TEST_SEED` chooses the order; `PGSLUICE_TEST_CHANGES` how many changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support;
use pgsluice::wire::{backend, frontend};
use support::console::tell;
use support::crowd::{comparable, put_bind_binary};
use support::seeded::{Seeded, from_env};
use support::{Message, PATIENCE, Postgres, Proxy, Raw, Step, poll};

/// Clients of each way to the server.
const CLIENTS: [(Via, usize); 3] = [(Via::Direct, 2), (Via::Transaction, 12), (Via::Statement, 6)];

/// Units that end between two changes.
const MEANWHILE: usize = 60;

/// The first number of a row: all have as many digits, so that errors' places are the same.
const FIRST: usize = 10_000_000;

/// Numbers of the rows of one unit.
const APART: usize = 4;

const SETUP: &str = r#"
    CREATE SCHEMA writer; CREATE SCHEMA away; GRANT USAGE ON SCHEMA writer, away TO PUBLIC;
    CREATE TYPE mood AS ENUM ('ok', 'sad');
    CREATE DOMAIN dom AS text;
    CREATE TABLE parent (n numeric PRIMARY KEY); INSERT INTO parent VALUES (1.5);
    CREATE TABLE few (n numeric PRIMARY KEY);
    -- Always 7.
    CREATE SEQUENCE drawn START 7 MINVALUE 7 MAXVALUE 8 INCREMENT 9 CYCLE; GRANT USAGE ON drawn TO writer;
    CREATE TABLE seen (a int, n bigint); GRANT INSERT ON seen TO PUBLIC;
    CREATE TABLE t (a int, b text, d date, n numeric, m mood, p dom, s int DEFAULT 0);
    GRANT INSERT, SELECT, UPDATE ON t TO writer;
    CREATE TABLE kept (a int, x bigint, r text);
    -- Wherever a row may be: each table with such a column.
    CREATE FUNCTION places() RETURNS SETOF regclass LANGUAGE sql AS $$
        SELECT c.oid FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'a'
         WHERE c.relkind = 'r' AND c.relname <> 'kept' AND c.relnamespace::regnamespace::text IN ('public', 'writer', 'away')
         ORDER BY c.relname = 'seen', c.oid$$;
    -- A parameter's label is read before the table's lock is had: it may have another name by then.
    CREATE FUNCTION look(low int, high int) RETURNS TABLE (a int, x bigint, r text) LANGUAGE plpgsql AS $$
    DECLARE place regclass; BEGIN
        FOR place IN SELECT * FROM places() LOOP
            RETURN QUERY EXECUTE format('SELECT x.a, x.xmin::text::bigint,
                %L || '' '' || replace((to_jsonb(x) - ''a'')::text, ''"good"'', ''"ok"'') FROM ONLY %s x WHERE x.a >= $1 AND x.a < $2', place, place) USING low, high;
        END LOOP;
    END$$;
    -- What a change would alter or take away is kept as it is.
    CREATE FUNCTION harvest() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE place regclass; BEGIN
        IF to_regclass('public.t') IS NOT NULL THEN LOCK TABLE public.t; END IF;
        FOR place IN SELECT * FROM places() LOOP EXECUTE format('LOCK TABLE %s', place); END LOOP;
        INSERT INTO kept SELECT * FROM look(0, 2147483647);
        FOR place IN SELECT * FROM places() LOOP EXECUTE format('DELETE FROM ONLY %s', place); END LOOP;
    END$$;
    CREATE FUNCTION clear() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE kind text; place regclass; BEGIN
        FOR kind, place IN SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid FROM pg_class c
             WHERE c.relname = ANY ('{t,base,other,child,t_0,t_1,t_2}') AND c.relnamespace::regnamespace::text = ANY ('{public,writer,away}')
             ORDER BY c.relkind <> 'v', NOT c.relispartition
        LOOP EXECUTE format('DROP %s %s CASCADE', kind, place); END LOOP;
    END$$;
    -- Without the column's name or type: PL/pgSQL goes on with what a session saw first.
    CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RETURN jsonb_populate_record(NEW, jsonb_build_object('b', concat(to_jsonb(NEW) ->> 'b', left(current_query(), 6)))); END$$;
    CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END$$;
    CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'told'; RETURN NULL; END$$;
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END$$;
    -- By its owner, who may use the schema throughout: the statement was let in at an earlier moment.
    CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN INSERT INTO public.seen SELECT n.a, count(*) OVER () FROM n; RETURN NULL; END$$;
    CREATE FUNCTION elsewhere() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN INSERT INTO public.seen VALUES (NEW.a, -1); RETURN NEW; END$$;
    CREATE FUNCTION sad(text) RETURNS mood LANGUAGE sql IMMUTABLE AS $$ SELECT mood 'sad' $$;
    CREATE FUNCTION loud(mood) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'loud' $$;
    CREATE FUNCTION fine(text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN true; END$$;
    CREATE FUNCTION native(text) RETURNS text LANGUAGE internal IMMUTABLE STRICT AS 'upper';
    CREATE FUNCTION noisy(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE NOTICE 'noise'; RETURN $1; END$$;
    CREATE FUNCTION compared(text, text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN bttextcmp($1, $2); END$$;
    CREATE OPERATOR CLASS own FOR TYPE text USING btree AS
        OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 compared(text, text);
"#;

/// `SETUP`'s table, and others of its name.
const TABLES: [&str; 4] = [
    "CREATE TABLE t (a int, b text, d date, n numeric, m mood, p dom, s int DEFAULT @)",
    "CREATE TABLE t (a int, s int DEFAULT @, m mood, n numeric, d date, p dom, b text)",
    "CREATE TABLE t (a int, b text, d date, n numeric, m mood, p dom, s int DEFAULT @) PARTITION BY RANGE (n);
     CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (1) TO (2); CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (2) TO (3)",
    "CREATE TABLE t (a int, b text, d date, n numeric, m mood, p dom, s int DEFAULT @) PARTITION BY LIST (m);
     CREATE TABLE t_1 PARTITION OF t DEFAULT",
];

/// Done behind a lock on the table, when its rows are kept; a second text undoes the first. `@`: the number of the change. An
/// identity's number is the same for all: an error tells it.
const LOCKED: &[(&str, &str)] = &[
    ("ALTER TABLE t ALTER s SET DEFAULT @", "ALTER TABLE t ALTER s SET DEFAULT @"),
    ("ALTER TABLE t ALTER s DROP DEFAULT", "ALTER TABLE t ALTER s SET DEFAULT @"),
    ("ALTER TABLE t ALTER s SET DEFAULT length(current_query())", "ALTER TABLE t ALTER s SET DEFAULT @"),
    ("ALTER TABLE t ADD COLUMN c int DEFAULT @", "ALTER TABLE t DROP COLUMN c"),
    ("ALTER TABLE t ADD COLUMN c text DEFAULT left(current_query(), 6)", "ALTER TABLE t DROP COLUMN c"),
    ("ALTER TABLE t ADD COLUMN g text GENERATED ALWAYS AS (b || '@') STORED", "ALTER TABLE t DROP COLUMN g"),
    // The column stays: with the next function it is computed in another way.
    ("CREATE OR REPLACE FUNCTION native(text) RETURNS text LANGUAGE internal IMMUTABLE STRICT AS 'upper';
      ALTER TABLE t ADD COLUMN IF NOT EXISTS h text GENERATED ALWAYS AS (native(b)) STORED",
     "CREATE OR REPLACE FUNCTION native(text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS
      $$ BEGIN RETURN left(current_query(), 6); END$$"),
    ("ALTER TABLE t ADD COLUMN i int GENERATED ALWAYS AS IDENTITY (START 7 MINVALUE 7 MAXVALUE 8 INCREMENT 9 CYCLE)", "ALTER TABLE t DROP COLUMN i"),
    ("ALTER TABLE t ALTER a SET NOT NULL, ALTER a ADD GENERATED ALWAYS AS IDENTITY", "ALTER TABLE t ALTER a DROP IDENTITY"),
    ("ALTER TABLE t DROP COLUMN b; ALTER TABLE t ADD COLUMN b text DEFAULT @", ""),
    ("ALTER TABLE t DROP COLUMN n CASCADE; ALTER TABLE t ADD COLUMN n numeric", ""),
    ("ALTER TABLE t ALTER b TYPE char(20)", "ALTER TABLE t ALTER b TYPE text"),
    ("ALTER TABLE t ALTER b TYPE varchar(2)", "ALTER TABLE t ALTER b TYPE text"),
    ("ALTER TABLE t ALTER n TYPE int", "ALTER TABLE t ALTER n TYPE numeric"),
    ("ALTER TABLE t ALTER n TYPE numeric(10, 0)", "ALTER TABLE t ALTER n TYPE numeric"),
    ("ALTER TABLE t ALTER n TYPE text", "ALTER TABLE t ALTER n TYPE numeric USING n::numeric"),
    ("ALTER TABLE t ALTER n TYPE float4", "ALTER TABLE t ALTER n TYPE numeric"),
    ("ALTER TABLE t ALTER d TYPE text", "ALTER TABLE t ALTER d TYPE date USING d::date"),
    ("ALTER TABLE t ALTER d TYPE timestamptz", "ALTER TABLE t ALTER d TYPE date"),
    ("ALTER TABLE t ALTER s DROP DEFAULT, ALTER s TYPE text", "ALTER TABLE t ALTER s TYPE int USING s::int"),
    ("ALTER TABLE t ALTER s TYPE float8", "ALTER TABLE t ALTER s TYPE int"),
    ("ALTER TABLE t ALTER s TYPE int8", "ALTER TABLE t ALTER s TYPE int"),
    ("ALTER TABLE t ALTER m TYPE text", "ALTER TABLE t ALTER m TYPE mood USING m::mood"),
    ("ALTER TABLE t ALTER p SET NOT NULL", "ALTER TABLE t ALTER p DROP NOT NULL"),
    ("ALTER DOMAIN dom SET NOT NULL", "ALTER DOMAIN dom DROP NOT NULL"),
    ("ALTER TABLE t RENAME b TO other", "ALTER TABLE t RENAME other TO b"),
    ("ALTER TABLE t RENAME n TO other; ALTER TABLE t RENAME s TO n; ALTER TABLE t RENAME other TO s",
     "ALTER TABLE t RENAME n TO other; ALTER TABLE t RENAME s TO n; ALTER TABLE t RENAME other TO s"),
    ("ALTER TABLE t RENAME TO other", "ALTER TABLE other RENAME TO t"),
    ("ALTER TABLE t SET SCHEMA away", "ALTER TABLE away.t SET SCHEMA public"),
    ("CREATE TABLE writer.t (LIKE t INCLUDING DEFAULTS); GRANT INSERT, SELECT, UPDATE ON writer.t TO writer", "DROP TABLE writer.t"),
    ("ALTER TABLE t RENAME TO base; CREATE VIEW t AS SELECT * FROM base; GRANT INSERT, SELECT, UPDATE ON t TO writer",
     "DROP VIEW t; ALTER TABLE base RENAME TO t"),
    ("ALTER TABLE t RENAME TO base; CREATE VIEW t AS SELECT * FROM base; GRANT INSERT, SELECT, UPDATE ON t TO writer;
      CREATE TRIGGER g INSTEAD OF INSERT ON t FOR EACH ROW EXECUTE FUNCTION elsewhere()",
     "DROP VIEW t; ALTER TABLE base RENAME TO t"),
    ("CREATE TABLE away.t (LIKE t INCLUDING DEFAULTS); GRANT INSERT, SELECT, UPDATE ON away.t TO writer", "DROP TABLE away.t"),
    ("ALTER TABLE t ALTER s SET DEFAULT nextval('drawn')", "ALTER TABLE t ALTER s SET DEFAULT @"),
    ("TRUNCATE t", ""),
];

/// Done as it is, with whatever lock it takes itself.
const FREE: &[(&str, &str)] = &[
    ("CREATE CAST (text AS mood) WITH FUNCTION sad(text)", "DROP CAST (text AS mood)"),
    ("CREATE CAST (mood AS text) WITH FUNCTION loud(mood)", "DROP CAST (mood AS text)"),
    ("ALTER TYPE mood RENAME TO temper", "ALTER TYPE temper RENAME TO mood"),
    // No lock on the table orders it: Bind reads labels before it has one.
    ("ALTER TYPE mood RENAME VALUE 'ok' TO 'good'", "ALTER TYPE mood RENAME VALUE 'good' TO 'ok'"),
    ("ALTER TYPE mood ADD VALUE IF NOT EXISTS 'x@'", ""),
    ("ALTER TYPE mood SET SCHEMA away", "ALTER TYPE away.mood SET SCHEMA public"),
    ("CREATE TYPE writer.mood AS ENUM ('ok')", "DROP TYPE writer.mood"),
    ("CREATE DOMAIN away.mood AS public.mood CHECK (VALUE <> 'ok')", "DROP DOMAIN away.mood"),
    ("CREATE DOMAIN away.date AS pg_catalog.date CHECK (VALUE <> '2024-02-03')", "DROP DOMAIN away.date"),
    ("REVOKE USAGE ON SEQUENCE drawn FROM writer", "GRANT USAGE ON SEQUENCE drawn TO writer"),
    (
        "ALTER SEQUENCE drawn MINVALUE 5 MAXVALUE 6 START 5 RESTART",
        "ALTER SEQUENCE drawn MAXVALUE 8 MINVALUE 7 START 7 RESTART",
    ),
    ("INSERT INTO few VALUES (1.5)", "DELETE FROM few"),
    ("CREATE PUBLICATION told FOR TABLE t WITH (publish = 'insert')", "DROP PUBLICATION told"),
    ("ALTER TABLE t DISABLE TRIGGER ALL", "ALTER TABLE t ENABLE TRIGGER ALL"),
    (
        "ALTER DOMAIN dom ADD CONSTRAINT ck CHECK (VALUE IS NOT NULL) NOT VALID",
        "ALTER DOMAIN dom DROP CONSTRAINT ck",
    ),
    (
        "ALTER DOMAIN dom ADD CONSTRAINT ck2 CHECK (VALUE <> '') NOT VALID",
        "ALTER DOMAIN dom DROP CONSTRAINT ck2",
    ),
    ("ALTER DOMAIN dom VALIDATE CONSTRAINT ck2", ""),
    ("ALTER DOMAIN dom SET DEFAULT '@'", "ALTER DOMAIN dom DROP DEFAULT"),
    ("ALTER TABLE t ADD CONSTRAINT ck CHECK (n < 1) NOT VALID", "ALTER TABLE t DROP CONSTRAINT ck"),
    ("ALTER TABLE t ADD CONSTRAINT ck2 CHECK (fine(b))", "ALTER TABLE t DROP CONSTRAINT ck2"),
    (
        "CREATE OR REPLACE FUNCTION fine(text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN false; END$$",
        "CREATE OR REPLACE FUNCTION fine(text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN true; END$$",
    ),
    ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER TABLE t DISABLE ROW LEVEL SECURITY"),
    ("ALTER TABLE t FORCE ROW LEVEL SECURITY", "ALTER TABLE t NO FORCE ROW LEVEL SECURITY"),
    ("CREATE POLICY pass ON t WITH CHECK (true)", "DROP POLICY pass ON t"),
    ("CREATE POLICY stop ON t AS RESTRICTIVE WITH CHECK (n < 1)", "DROP POLICY stop ON t"),
    ("ALTER ROLE writer BYPASSRLS", "ALTER ROLE writer NOBYPASSRLS"),
    ("ALTER ROLE writer SUPERUSER", "ALTER ROLE writer NOSUPERUSER"),
    ("GRANT postgres TO writer", "REVOKE postgres FROM writer"),
    (
        "ALTER TABLE t OWNER TO writer",
        "ALTER TABLE t OWNER TO postgres; GRANT INSERT, SELECT, UPDATE ON t TO writer",
    ),
    ("REVOKE INSERT ON t FROM writer", "GRANT INSERT ON t TO writer"),
    (
        "REVOKE INSERT ON t FROM writer; GRANT INSERT (a, b, d, n) ON t TO writer",
        "GRANT INSERT ON t TO writer",
    ),
    ("REVOKE SELECT ON t FROM writer", "GRANT SELECT ON t TO writer"),
    ("REVOKE USAGE ON SCHEMA public FROM PUBLIC", "GRANT USAGE ON SCHEMA public TO PUBLIC"),
    (
        "CREATE TRIGGER stamp BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION stamp()",
        "DROP TRIGGER stamp ON t",
    ),
    (
        "CREATE TRIGGER stamp2 BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION stamp(); ALTER TABLE t DISABLE TRIGGER stamp2",
        "ALTER TABLE t ENABLE TRIGGER stamp2",
    ),
    ("ALTER TABLE t ENABLE REPLICA TRIGGER stamp2", "DROP TRIGGER stamp2 ON t"),
    (
        "CREATE TRIGGER drop_row BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION drop_row()",
        "DROP TRIGGER drop_row ON t",
    ),
    ("CREATE TRIGGER tell AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION tell()", "DROP TRIGGER tell ON t"),
    (
        "CREATE TRIGGER tell_all BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION tell()",
        "DROP TRIGGER tell_all ON t",
    ),
    // It fires for ON CONFLICT DO UPDATE, whether or not there is one.
    (
        "CREATE TRIGGER tell_updates BEFORE UPDATE ON t FOR EACH STATEMENT EXECUTE FUNCTION tell()",
        "DROP TRIGGER tell_updates ON t",
    ),
    ("REVOKE UPDATE ON t FROM writer", "GRANT UPDATE ON t TO writer"),
    ("CREATE INDEX on_d ON t (d)", "DROP INDEX on_d"),
    (
        "CREATE TRIGGER count_rows AFTER INSERT ON t REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION count_rows()",
        "DROP TRIGGER count_rows ON t",
    ),
    (
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
        "DROP TRIGGER refuse ON t",
    ),
    (
        "CREATE TRIGGER leaf BEFORE INSERT ON t_1 FOR EACH ROW EXECUTE FUNCTION stamp()",
        "DROP TRIGGER leaf ON t_1",
    ),
    ("ALTER TABLE t_1 ALTER s SET DEFAULT -1", ""),
    ("ALTER TABLE t_1 ADD CHECK (n < 1) NOT VALID", ""),
    (
        "CREATE TABLE t_0 (LIKE t INCLUDING DEFAULTS); ALTER TABLE t ATTACH PARTITION t_0 FOR VALUES FROM (0) TO (1)",
        "DROP TABLE t_0",
    ),
    ("ALTER TABLE t DETACH PARTITION t_1", "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM (1) TO (2)"),
    ("CREATE RULE also AS ON INSERT TO t DO ALSO INSERT INTO seen VALUES (NEW.a, 0)", "DROP RULE also ON t"),
    (
        "CREATE RULE instead AS ON INSERT TO t DO INSTEAD INSERT INTO seen VALUES (NEW.a, -2)",
        "DROP RULE instead ON t",
    ),
    ("CREATE RULE nothing AS ON INSERT TO t WHERE NEW.n > 1 DO INSTEAD NOTHING", "DROP RULE nothing ON t"),
    ("CREATE UNIQUE INDEX own_a ON t (a)", "DROP INDEX own_a"),
    ("CREATE UNIQUE INDEX CONCURRENTLY own_a2 ON t (a)", "DROP INDEX CONCURRENTLY own_a2"),
    ("CREATE INDEX noise ON t (noisy(b))", "DROP INDEX noise"),
    ("CREATE INDEX own ON t (b own)", "DROP INDEX own"),
    (
        "ALTER TABLE t ADD CONSTRAINT only_a EXCLUDE USING btree (a WITH =)",
        "ALTER TABLE t DROP CONSTRAINT only_a",
    ),
    (
        "ALTER TABLE t ADD CONSTRAINT fk FOREIGN KEY (n) REFERENCES parent NOT VALID",
        "ALTER TABLE t DROP CONSTRAINT fk",
    ),
    (
        "ALTER TABLE t ADD CONSTRAINT fk2 FOREIGN KEY (n) REFERENCES few NOT VALID",
        "ALTER TABLE t DROP CONSTRAINT fk2",
    ),
    (
        "ALTER TABLE t ADD CONSTRAINT fk3 FOREIGN KEY (n) REFERENCES few DEFERRABLE INITIALLY DEFERRED NOT VALID",
        "ALTER TABLE t DROP CONSTRAINT fk3",
    ),
    ("CREATE TABLE child () INHERITS (t)", "DROP TABLE child"),
    (
        "ALTER ROLE writer SET default_transaction_isolation = 'repeatable read'",
        "ALTER ROLE writer RESET ALL",
    ),
    ("ALTER DATABASE % SET default_toast_compression = 'pglz'", "ALTER DATABASE % RESET ALL"),
    ("VACUUM FULL t", ""),
    ("ANALYZE t", ""),
];

/// What clients have set, one after another.
const SETTINGS: &[&[&str]] = &[
    &[],
    &["SET DateStyle = 'SQL, DMY'", "SET TimeZone = 'Asia/Kolkata'", "SET IntervalStyle = 'sql_standard'"],
    &["SET standard_conforming_strings = off", "SET extra_float_digits = 0"],
    &["SET session_replication_role = replica"],
    &["SET search_path = away, public", "SET bytea_output = escape"],
    &["SET search_path = away, pg_catalog, public"],
    &["SET default_transaction_isolation = 'repeatable read'"],
    &["SET default_transaction_read_only = on"],
];

/// How a client sends a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Literal,
    Bare,
    Short,
    CastLiteral,
    ManyRows,
    Extended,
    Cast,
    Binary,
    Named,
    NamedBinary,
    /// What a statement with a name comes to that is prepared now with the types that were told: only asked.
    Anew,
    AnewBinary,
    Returning,
    ReturningLiteral,
    Nothing,
    NothingColumn,
    Update,
    Pipeline,
    SyncEach,
    Run,
    Block,
}

const FORMS: [Form; 19] = [
    Form::Literal,
    Form::Bare,
    Form::Short,
    Form::CastLiteral,
    Form::ManyRows,
    Form::Extended,
    Form::Cast,
    Form::Binary,
    Form::Named,
    Form::NamedBinary,
    Form::Returning,
    Form::ReturningLiteral,
    Form::Nothing,
    Form::NothingColumn,
    Form::Update,
    Form::Pipeline,
    Form::SyncEach,
    Form::Run,
    Form::Block,
];

const INTO: &str = "INSERT INTO t (a, b, d, n, m) VALUES";

/// The number of the row, and its other values as parameters.
fn values(a: &str) -> [Option<&str>; 5] {
    [Some(a), Some("r\\ow"), Some("02/03/2024"), Some("1.5"), Some("ok")]
}

impl Form {
    fn rows(self) -> usize {
        match self {
            Self::ManyRows | Self::Pipeline | Self::SyncEach | Self::Run | Self::Block => 3,
            _ => 1,
        }
    }

    /// One statement, and so one moment.
    fn is_single(self) -> bool {
        self.rows() == 1 || self == Self::ManyRows
    }

    /// All of its rows are stored or none.
    fn is_whole(self) -> bool {
        self != Self::SyncEach
    }

    /// Of a statement that was prepared before: what it comes to when it is prepared now.
    fn prepared_now(self) -> Option<Self> {
        match self {
            Self::Named => Some(Self::Anew),
            Self::NamedBinary => Some(Self::AnewBinary),
            _ => None,
        }
    }

    fn is_block(self) -> bool {
        matches!(self, Self::Run | Self::Block)
    }

    fn steps(self, first: usize) -> Vec<Step> {
        let a = first.to_string();
        let params = values(&a);
        let literal = |a: usize| format!("({a}, 'r\\ow', '02/03/2024', 1.5, 'ok')");
        let many = (first..first + 3).map(|a| {
            let a = a.to_string();
            Step::extended(&format!("{INTO} ($1, $2, $3, $4, $5)"), &values(&a))
        });
        let (begin, commit) = (Step::query("BEGIN"), Step::query("COMMIT"));
        match self {
            Self::Literal => vec![Step::query(&format!("{INTO} {}", literal(first)))],
            Self::Bare => {
                vec![Step::query(&format!("INSERT INTO t VALUES ({a}, 'r\\ow', '02/03/2024', 1.5)"))]
            }
            Self::Short => vec![Step::query(&format!("INSERT INTO t (a, n) VALUES ({a}, 1.5)"))],
            Self::CastLiteral => vec![Step::query(&format!(
                "{INTO} ({a}, 'r\\ow'::text, '02/03/2024'::date, '1.5'::numeric, 'ok'::mood)"
            ))],
            Self::ManyRows => {
                let rows: Vec<_> = (first..first + 3).map(literal).collect();
                vec![Step::query(&format!("{INTO} {}", rows.join(", ")))]
            }
            Self::Extended => vec![Step::extended(&format!("{INTO} ($1, $2, $3, $4, $5)"), &params)],
            Self::Cast => {
                vec![Step::extended(
                    &format!("{INTO} ($1::int, $2, $3::text::date, CAST($4 AS numeric), $5::text::mood)"),
                    &params,
                )]
            }
            Self::Binary => vec![binary(first)],
            Self::Named => vec![Step::execute("named", &params)],
            Self::NamedBinary => vec![execute_binary("named", first)],
            Self::Anew => vec![Step::execute("anew", &params)],
            Self::AnewBinary => vec![execute_binary("anew", first)],
            Self::Returning => vec![Step::extended(
                &format!("{INTO} ($1, $2, $3, $4, $5) RETURNING a, b, d, m::text"),
                &params,
            )],
            Self::ReturningLiteral => {
                vec![Step::query(&format!("{INTO} {} RETURNING a, d, s", literal(first)))]
            }
            Self::Nothing => {
                vec![Step::extended(&format!("{INTO} ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"), &params)]
            }
            Self::NothingColumn => {
                vec![Step::query(&format!("{INTO} {} ON CONFLICT (a) DO NOTHING", literal(first)))]
            }
            Self::Update => vec![Step::extended(
                &format!(
                    "{INTO} ($1, $2, $3, $4, $5) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b, d = EXCLUDED.d RETURNING b"
                ),
                &params,
            )],
            Self::Pipeline => vec![joined(many, false)],
            Self::SyncEach => vec![joined(many, true)],
            Self::Run => {
                let all: Vec<_> = [begin].into_iter().chain([joined(many, false), commit]).collect();
                let ready = all.iter().map(|step| step.ready).sum();
                vec![Step { bytes: all.into_iter().flat_map(|step| step.bytes).collect(), ready }]
            }
            Self::Block => {
                let inside = (first..first + 3).map(|a| Step::query(&format!("{INTO} {}", literal(a))));
                [begin].into_iter().chain(inside).chain([commit]).collect()
            }
        }
    }
}

/// Integers in binary, declared as such.
fn binary(first: usize) -> Step {
    let mut bytes = Vec::new();
    let int4 = 23u32.to_be_bytes();
    frontend::put_parse(
        &mut bytes,
        b"",
        b"INSERT INTO t (a, s, n) VALUES ($1, $2, $3)",
        &[int4, int4, int4].concat(),
    );
    let values = [first as i32, 77, 1].map(i32::to_be_bytes);
    put_bind_binary(&mut bytes, b"", &values.each_ref().map(|value| Some(&value[..])));
    frontend::put_execute(&mut bytes, b"", 0);
    frontend::put_empty(&mut bytes, frontend::SYNC);
    Step { bytes, ready: 1 }
}

/// Bind, Execute, Sync of a statement with a name, in binary: of the types that its columns had at first.
fn execute_binary(name: &str, first: usize) -> Step {
    const DAYS: i32 = 8799;
    // 1.5: two digits of four each, none before the first, one behind the point.
    const NUMERIC: [u8; 12] = [0, 2, 0, 0, 0, 0, 0, 1, 0, 1, 0x13, 0x88];
    let (a, d) = ((first as i32).to_be_bytes(), DAYS.to_be_bytes());
    let values = [&a[..], b"r\\ow", &d, &NUMERIC, b"ok"];
    let mut bytes = Vec::new();
    put_bind_binary(&mut bytes, name.as_bytes(), &values.map(Some));
    frontend::put_execute(&mut bytes, b"", 0);
    frontend::put_empty(&mut bytes, frontend::SYNC);
    Step { bytes, ready: 1 }
}

/// All in one write, with a Sync each or one behind all.
fn joined(steps: impl Iterator<Item = Step>, sync_each: bool) -> Step {
    let mut sync = Vec::new();
    frontend::put_empty(&mut sync, frontend::SYNC);
    let (mut bytes, mut ready) = (Vec::new(), 0);
    for step in steps {
        bytes.extend_from_slice(step.bytes.strip_suffix(&sync[..]).expect("a Sync at the end"));
        if sync_each {
            bytes.extend_from_slice(&sync);
            ready += 1;
        }
    }
    if !sync_each {
        bytes.extend_from_slice(&sync);
    }
    Step { bytes, ready: ready.max(1) }
}

/// By which way a client comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Via {
    Direct,
    Transaction,
    Statement,
}

/// What came of a unit: what was said, and what is there of each of its rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Outcome {
    said: String,
    there: Vec<Vec<String>>,
}

/// A unit that has ended.
#[derive(Debug)]
struct Unit {
    via: Via,
    form: Form,
    settings: usize,
    first: usize,
    said: String,
    /// The last change that had ended when it began, and the last one that had begun when it ended.
    window: (usize, usize),
}

/// What the clients share.
struct World {
    db: String,
    ports: [u16; 3],
    seed: u64,
    stop: AtomicBool,
    next: AtomicUsize,
    ended: AtomicUsize,
    begun: AtomicUsize,
    done: AtomicUsize,
}

impl World {
    /// The first number of so many units.
    fn numbers(&self, units: usize) -> usize {
        self.next.fetch_add(APART * units, Ordering::Relaxed)
    }

    fn client(&self, via: Via) -> Raw {
        let asked = [("user", "writer"), ("database", self.db.as_str())];
        let mut client = Raw::login_as(self.ports[via as usize], &asked, "").expect("a login");
        run(&mut client, &[Step::prepare("named", &format!("{INTO} ($1, $2, $3, $4, $5)"))]);
        client
    }

    /// Which forms are sent now: few at a time, so that there is something to pour.
    fn form(&self, via: Via, random: &mut Seeded) -> Form {
        let hot = self.ended.load(Ordering::Relaxed) / 150;
        let mut which = Seeded(self.seed ^ ((hot as u64) << 8) ^ random.below(2) as u64);
        loop {
            let form = FORMS[which.below(FORMS.len())];
            if via != Via::Statement || !matches!(form, Form::Run | Form::Block) {
                return form;
            }
        }
    }

    /// Units until the end.
    fn insert(&self, via: Via, number: usize) -> Vec<Unit> {
        let mut random = Seeded(self.seed ^ (number as u64) << 32);
        let (mut units, mut client, mut settings) = (Vec::new(), self.client(via), 0);
        while !self.stop.load(Ordering::Acquire) {
            if random.one_in(if settings == 0 { 40 } else { 5 }) {
                settings = if settings == 0 { random.below(SETTINGS.len()) } else { 0 };
                set(&mut client, settings);
            }
            let (form, first) = (self.form(via, &mut random), self.numbers(1));
            let since = self.done.load(Ordering::Acquire);
            let said = said(&run(&mut client, &form.steps(first)), first);
            let window = (since, self.begun.load(Ordering::Acquire));
            units.push(Unit { via, form, settings, first, said, window });
            self.ended.fetch_add(1, Ordering::AcqRel);
        }
        units
    }

    /// Waits until so many units have ended.
    fn meanwhile(&self) {
        let until = self.ended.load(Ordering::Acquire) + MEANWHILE;
        let go_on = poll(PATIENCE, || (self.ended.load(Ordering::Acquire) >= until).then_some(()));
        assert!(go_on.is_some(), "nothing goes on any more");
    }
}

/// All that is answered to these.
fn run(client: &mut Raw, steps: &[Step]) -> Vec<Message> {
    let mut seen = Vec::new();
    for step in steps {
        client.send(&step.bytes);
        (0..step.ready).for_each(|_| seen.extend(client.read_until_ready()));
    }
    seen
}

/// The types of the parameters of the statement with a name.
fn told(client: &mut Raw) -> Vec<u8> {
    let mut bytes = Vec::new();
    frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', b"named");
    frontend::put_empty(&mut bytes, frontend::SYNC);
    let seen = run(client, &[Step { bytes, ready: 1 }]);
    let types = seen.iter().find(|m| m.tag == backend::PARAMETER_DESCRIPTION).expect("a description");
    types.body[2..].to_vec()
}

fn set(client: &mut Raw, settings: usize) {
    for sql in ["RESET ALL"].iter().chain(SETTINGS[settings]) {
        run(client, &[Step::query(sql)]);
    }
}

/// The answers, with the rows' numbers as places. Whether Bind or Execute notices a value that does not fit depends on the plan
/// that the server takes, and that on how often it was asked.
fn said(messages: &[Message], first: usize) -> String {
    let mut all = comparable(messages).replace("2 \nE ", "E ");
    (0..APART).for_each(|at| all = all.replace(&(first + at).to_string(), &format!("#{at}")));
    all
}

/// What direct says and stores after one change.
type State = BTreeMap<(usize, Form), Outcome>;

/// The one who changes things.
struct Ddl<'a> {
    world: &'a World,
    consoles: Vec<Raw>,
    admin: Raw,
    /// By settings.
    asking: Vec<Raw>,
    random: Seeded,
    /// What is done and can be undone.
    active: Vec<(&'static str, bool)>,
    states: Vec<State>,
    /// Of those changes that were made behind a lock, the lowest id of a transaction that can come behind them. It is not the
    /// change's own: that is given before the lock is.
    xids: Vec<Option<u64>>,
    /// Of each change: whatever reads the table is planned again.
    planned_anew: Vec<bool>,
    /// What everybody was told of the statement with a name, as Parse has it.
    types: Vec<u8>,
}

impl Ddl<'_> {
    fn change(&mut self, number: usize) {
        let (sql, undo, locked) = self.choose(number);
        let at = self.states.len();
        let sql = sql.replace('@', &at.to_string()).replace('%', &self.world.db);
        self.world.begun.store(at, Ordering::Release);
        let xid = if locked { self.locked(&sql) } else { self.free(&sql).then_some(None) };
        self.world.done.store(at, Ordering::Release);
        println!("{at} {}{sql}", if xid.is_none() { "(failed) " } else { "" });
        if xid.is_some() && !undo.is_empty() {
            self.active.push((undo, locked));
        }
        self.planned_anew.push(xid.is_some() && locked && sql.starts_with("ALTER TABLE t "));
        self.xids.push(xid.flatten());
        self.ask();
        self.world.meanwhile();
        // A refusal is not looked at again for a while otherwise.
        self.consoles.iter_mut().for_each(|console| tell(console, "RELOAD"));
        self.world.meanwhile();
    }

    fn choose(&mut self, number: usize) -> (String, &'static str, bool) {
        let all = LOCKED.len() + FREE.len();
        if self.active.len() > self.random.below(4) {
            let (undo, locked) = self.active.swap_remove(self.random.below(self.active.len()));
            return (undo.to_owned(), "", locked);
        }
        if self.random.one_in(8) {
            let table = TABLES[self.random.below(TABLES.len())];
            return (
                format!("SELECT clear(); {table}; GRANT INSERT, SELECT, UPDATE ON t TO writer"),
                "",
                true,
            );
        }
        let at = (number * 37 + self.random.below(3)) % all;
        let (sql, undo) = LOCKED.iter().chain(FREE).nth(at).expect("one of them");
        ((*sql).to_owned(), undo, at < LOCKED.len())
    }

    /// False: an error, and nothing is done.
    fn free(&mut self, sql: &str) -> bool {
        let seen = self.admin.query(sql);
        let error = seen.iter().find(|m| m.tag == backend::ERROR_RESPONSE);
        if let Some(error) = error {
            println!("    {}", error.field(b'M'));
        }
        error.is_none()
    }

    /// Behind a lock the order is that of the transactions: of these changes, those that rows of such transactions can have met.
    fn narrowed(&self, (mut first, mut last): (usize, usize), rows: &[u64]) -> (usize, usize) {
        for (at, xid) in self.xids.iter().enumerate().filter_map(|(at, xid)| Some((at, (*xid)?))) {
            for row in rows {
                if xid <= *row {
                    first = first.max(at);
                } else {
                    last = last.min(at - 1);
                }
            }
        }
        (first, last)
    }

    fn locked(&mut self, sql: &str) -> Option<Option<u64>> {
        self.admin.rows("BEGIN");
        self.admin.rows("SELECT harvest()");
        let xid = self.admin.value("SELECT pg_snapshot_xmax(pg_current_snapshot())").expect("an id");
        let done = self.free(sql);
        self.admin.rows(if done { "COMMIT" } else { "ROLLBACK" });
        done.then(|| Some(xid.parse().expect("a number")))
    }

    /// Every form with all settings, directly.
    fn ask(&mut self) {
        let mut state = State::new();
        for (settings, client) in self.asking.iter_mut().enumerate() {
            let begin = self.world.numbers(ASKED.len());
            for (at, form) in ASKED.into_iter().enumerate() {
                let first = begin + at * APART;
                let said = said(&asked(client, form, first, &self.types), first);
                state.insert((settings, form), Outcome { said, there: vec![Vec::new(); form.rows()] });
            }
            let end = begin + ASKED.len() * APART;
            for row in self.admin.rows(&format!("SELECT a, r FROM look({begin}, {end}) ORDER BY r")) {
                let [Some(a), Some(r)] = &row[..] else { panic!("{row:?}") };
                let at = a.parse::<usize>().expect("a number") - begin;
                let outcome = state.get_mut(&(settings, ASKED[at / APART])).expect("it was asked");
                outcome.there[at % APART].push(r.clone());
            }
        }
        self.states.push(state);
    }
}

/// What is asked directly: all that clients send.
const ASKED: [Form; FORMS.len() + 2] = {
    let mut all = [Form::Anew; FORMS.len() + 2];
    let mut at = 0;
    while at < FORMS.len() {
        all[at] = FORMS[at];
        at += 1;
    }
    all[at] = Form::AnewBinary;
    all
};

fn asked(client: &mut Raw, form: Form, first: usize, types: &[u8]) -> Vec<Message> {
    if !matches!(form, Form::Anew | Form::AnewBinary) {
        return run(client, &form.steps(first));
    }
    run(client, &[Step::query("DEALLOCATE anew")]);
    let mut bytes = Vec::new();
    frontend::put_parse(&mut bytes, b"anew", format!("{INTO} ($1, $2, $3, $4, $5)").as_bytes(), types);
    frontend::put_empty(&mut bytes, frontend::SYNC);
    let prepared = run(client, &[Step { bytes, ready: 1 }]);
    if prepared.iter().any(|m| m.tag == backend::ERROR_RESPONSE) {
        return prepared;
    }
    run(client, &form.steps(first))
}

/// Every row that is there or was, by its number: the transaction that stored it, and where and what it was.
type Kept = HashMap<usize, Vec<(u64, String)>>;

#[test]
fn what_is_stored_is_what_direct_would_have_stored_at_that_time() {
    let pg = Postgres::shared();
    pg.psql("postgres", "CREATE ROLE writer LOGIN");
    // New in 15.
    let _ = pg.try_psql("postgres", "GRANT SET ON PARAMETER session_replication_role TO writer");
    let db = pg.fresh_database(SETUP);
    let pool = |mode| {
        Proxy::to(
            pg,
            &format!("pool_mode = \"{mode}\"\ndefault_pool_size = 8"),
            "",
            "[coalesce]\ndeferred = true",
        )
    };
    let proxies = ["transaction", "statement"].map(pool);
    let counter = AtomicUsize::new;
    let world = World {
        db,
        ports: [pg.port(), proxies[0].port(), proxies[1].port()],
        seed: from_env("PGSLUICE_TEST_SEED", 1),
        stop: AtomicBool::new(false),
        next: counter(FIRST),
        ended: counter(0),
        begun: counter(0),
        done: counter(0),
    };
    let asking = (0..SETTINGS.len()).map(|settings| {
        let mut client = world.client(Via::Direct);
        set(&mut client, settings);
        client
    });
    let mut ddl = Ddl {
        consoles: proxies.iter().map(|proxy| Raw::login(proxy.port(), "pgsluice")).collect(),
        admin: Raw::login(pg.port(), &world.db),
        asking: asking.collect(),
        random: Seeded(world.seed),
        active: Vec::new(),
        states: Vec::new(),
        xids: vec![None],
        planned_anew: vec![true],
        types: told(&mut world.client(Via::Direct)),
        world: &world,
    };
    ddl.ask();
    let changes = from_env("PGSLUICE_TEST_CHANGES", 45) as usize;
    let units: Vec<Unit> = std::thread::scope(|scope| {
        let each = CLIENTS.iter().flat_map(|(via, n)| std::iter::repeat_n(*via, *n)).enumerate();
        let world = &world;
        let clients: Vec<_> =
            each.map(|(number, via)| scope.spawn(move || world.insert(via, number + 1))).collect();
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // Something is learnt and poured before anything changes.
            (0..40).for_each(|_| world.meanwhile());
            (0..changes).for_each(|number| ddl.change(number));
        }));
        world.stop.store(true, Ordering::Release);
        let units = clients.into_iter().flat_map(|c| c.join().expect("a client panicked")).collect();
        if let Err(panic) = changed {
            std::panic::resume_unwind(panic);
        }
        units
    });
    ddl.admin.rows("SELECT harvest()");
    let mut kept = Kept::new();
    for row in ddl.admin.rows("SELECT a, x, r FROM kept") {
        let [Some(a), Some(x), Some(r)] = &row[..] else { panic!("{row:?}") };
        kept.entry(a.parse().expect("a number")).or_default().push((x.parse().expect("an id"), r.clone()));
    }
    settle(&ddl, &units, &kept);
}

/// Holds what the clients were told and what is there against what direct would have said and stored.
fn settle(ddl: &Ddl<'_>, units: &[Unit], kept: &Kept) {
    let mut wrong = BTreeMap::<_, (usize, String)>::new();
    let mut note = |unit: &Unit, why: String| wrong.entry((unit.via, unit.form)).or_insert((0, why)).0 += 1;
    let mut counts = BTreeMap::<Via, [usize; 3]>::new();
    // Rows of several units that one transaction stored.
    let mut transactions = HashMap::<u64, BTreeSet<usize>>::new();
    for unit in units {
        let rows: Vec<_> = (0..unit.form.rows()).map(|at| kept.get(&(unit.first + at))).collect();
        let stored = rows.iter().any(Option::is_some);
        let failed = unit.said.lines().any(|line| line.starts_with('E'));
        let count = counts.entry(unit.via).or_default();
        count[if failed { 1 } else { 0 }] += 1;
        for (x, _) in rows.iter().copied().flatten().flatten() {
            transactions.entry(*x).or_default().insert(unit.first);
        }
        let poured = rows.iter().copied().flatten().flatten().any(|(x, _)| transactions[x].len() > 1);
        count[2] += usize::from(poured);
        if stored && failed && unit.form.is_whole() {
            note(unit, format!("stored and failed: {unit:?}\n  {rows:?}"));
        } else if let Err(why) = is_legal(ddl, unit, &rows) {
            note(unit, why);
        }
    }
    let names: BTreeSet<usize> = units.iter().flat_map(|unit| unit.first..unit.first + APART).collect();
    println!("{} units, {} changes, [stored, failed, shared]: {counts:?}", units.len(), ddl.states.len() - 1);
    let wrong: Vec<_> = wrong.values().map(|(n, why)| format!("{n} times as this: {why}")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(kept.keys().filter(|a| names.contains(a)).count() > 0);
    for via in [Via::Transaction, Via::Statement] {
        let [stored, failed, shared] = counts[&via];
        assert!(stored > 100 && failed > 20 && shared > 50, "{via:?}: {stored}, {failed}, {shared}");
    }
}

/// Is it what direct says and stores after one of the changes that may have been in force?
fn is_legal(ddl: &Ddl<'_>, unit: &Unit, rows: &[Option<&Vec<(u64, String)>>]) -> Result<(), String> {
    let there: Vec<Vec<String>> = rows
        .iter()
        .map(|rows| {
            let mut all: Vec<_> = rows.iter().copied().flatten().map(|(_, r)| r.clone()).collect();
            all.sort();
            all
        })
        .collect();
    let mut outcome = Outcome { said: unit.said.clone(), there };
    let stored = rows.iter().any(Option::is_some);
    // PostgreSQL reads a prepared statement again when something touches what it read before, and not when a name comes to mean
    // something else; and clients of pgsluice share what they prepared.
    let shared = unit.form.prepared_now();
    let within = |(mut first, last): (usize, usize)| -> Vec<&Outcome> {
        if shared.is_some() {
            // What the table does not tell of (a domain's default) it may not have noticed since the table last did.
            first = (0..=first).rev().find(|at| ddl.planned_anew[*at]).unwrap_or(first);
        }
        let forms = [Some(unit.form), shared].into_iter().flatten();
        let states = ddl.states.get(first..=last).unwrap_or_default();
        forms.flat_map(|form| states.iter().map(move |state| &state[&(unit.settings, form)])).collect()
    };
    let xids = |row: &Vec<(u64, String)>| row.iter().map(|(x, _)| *x).collect::<Vec<_>>();
    let all: Vec<u64> = rows.iter().copied().flatten().flat_map(xids).collect();
    let legal = within(if unit.form.is_whole() { ddl.narrowed(unit.window, &all) } else { unit.window });
    if legal.contains(&&outcome) {
        return Ok(());
    }
    // Changes lock partitions and tables in their own order.
    let alone = !stored || !unit.form.is_whole();
    if unit.window.0 < unit.window.1 && alone && unit.said.contains("C=\"40P01\"") {
        return Ok(());
    }
    let errors = || unit.said.lines().filter(|line| line.starts_with('E') && !line.contains("25P02"));
    // A deferred row that is dropped.
    let drops = legal.iter().any(|one| one.said.contains("INSERT 0 0"));
    if unit.form.is_block() && drops && !stored && unit.said.contains("C=\"40001\"") {
        return Ok(());
    }
    // A block's notices come when it leaves.
    let sorted = |said: &str| {
        said.lines().collect::<BTreeSet<_>>().into_iter().map(|l| l.to_owned() + "\n").collect::<String>()
    };
    if unit.form.is_block() {
        outcome.said = sorted(&outcome.said);
        if legal.iter().any(|one| one.there == outcome.there && sorted(&one.said) == outcome.said) {
            return Ok(());
        }
    }
    // Statements that were under way while something changed: each for itself. A block's error may come later, where it is deferred.
    let line = |line: &str| legal.iter().any(|one| one.said.lines().any(|other| other == line));
    if unit.form.is_block() && errors().next().is_some() && errors().all(line) && !stored {
        return Ok(());
    }
    if !unit.form.is_single() && legal.len() > 1 {
        let refused = unit.form.is_whole() && errors().next().is_some() && !stored;
        let row = |at: usize| {
            let legal = within(ddl.narrowed(unit.window, &rows[at].map(xids).unwrap_or_default()));
            refused || legal.iter().any(|one| one.there[at] == outcome.there[at])
        };
        if (0..unit.form.rows()).all(row) && outcome.said.lines().all(line) {
            return Ok(());
        }
    }
    Err(format!("{unit:?}\n  is there: {:?}\n  legal: {legal:#?}", outcome.there))
}
