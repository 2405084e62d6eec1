//! What the catalogue query, the plans and the rows say of real tables, held against PostgreSQL itself.

use crate::support;
use pgsluice::coalesce::batch::{self, Batch, put_copy};
use pgsluice::coalesce::catalog::{self, Reason, Table};
use pgsluice::coalesce::plan::{InsertPlan, plan_literals, plan_literals_together};
use pgsluice::coalesce::rows::encode_literals;
use pgsluice::sql::cast::OtherType;
use pgsluice::sql::expression;
use pgsluice::sql::insert::{Class, Item};
use pgsluice::sql::meaning::{InsertTarget, SetTo, Update};
use pgsluice::wire::backend::{self, ErrorFields};
use pgsluice::wire::copy::CopyFormat;
use pgsluice::wire::frontend;
use support::{Message, Postgres, Raw, outline};

/// Asks for a table in that session.
fn ask(raw: &mut Raw, schema: Option<&str>, table: &str) -> Result<Table, Reason> {
    let name = catalog::lookup_name(schema, table);
    let messages = raw.extended(catalog::ELIGIBILITY_SQL, &[Some(&name)]);
    let row = messages.iter().find(|m| m.tag == backend::DATA_ROW);
    let row = row.unwrap_or_else(|| panic!("{table}:\n{}", outline(&messages)));
    catalog::decode(&name, &backend::data_row(&row.body).expect("DataRow"))
}

fn target(table: &str, columns: &[&str], items: &[Class]) -> InsertTarget {
    InsertTarget {
        schema: None,
        table: table.into(),
        columns: columns.iter().map(|&c| c.into()).collect(),
        name_as_written: table.into(),
        items: items.to_vec(),
        ..InsertTarget::default()
    }
}

fn plan(raw: &mut Raw, table: &str, columns: &[&str], items: &[Class]) -> Result<InsertPlan, Reason> {
    let facts = ask(raw, None, table)?;
    plan_literals(&facts, &target(table, columns, items))
}

/// Classes by letter: n NULL, d DEFAULT, i integer, s string.
fn classes(letters: &str) -> Vec<Class> {
    let class = |letter| match letter {
        'n' => Class::Null,
        'd' => Class::Default,
        'i' => Class::Integer,
        's' => Class::String,
        other => panic!("class {other}"),
    };
    letters.chars().map(class).collect()
}

/// Sends one flush (COPY, rows, guard, Sync) in one write; all messages up to ReadyForQuery.
fn flush(raw: &mut Raw, plan: &InsertPlan, batch: &Batch) -> Vec<Message> {
    let mut out = Vec::new();
    frontend::put_parse(&mut out, b"", plan.copy_text_sql.as_bytes(), &[]);
    frontend::put_bind_text(&mut out, b"", &[]);
    frontend::put_execute(&mut out, b"", 0);
    put_copy(CopyFormat::Text, batch.bytes(), &mut out);
    let relid = plan.relid.to_string();
    let known = [&relid, &plan.name_as_written, &plan.fingerprint, &plan.types, &plan.functions, &plan.names];
    let known = known.map(|known| known.as_bytes());
    frontend::put_parse(&mut out, b"", catalog::guard_sql().as_bytes(), &[]);
    frontend::put_bind_text(&mut out, b"", &known.map(Some));
    frontend::put_execute(&mut out, b"", 0);
    frontend::put_empty(&mut out, frontend::SYNC);
    raw.send(&out);
    raw.read_until_ready()
}

fn error(messages: &[Message]) -> Option<&Message> {
    messages.iter().find(|m| m.tag == backend::ERROR_RESPONSE)
}

/// One row of integers.
fn one_row(plan: &InsertPlan, values: &[i32]) -> Batch {
    let mut text = Vec::new();
    let mut items = Vec::new();
    for value in values {
        let start = text.len();
        text.extend_from_slice(value.to_string().as_bytes());
        items.push(Item { class: Class::Integer, start, end: text.len() });
    }
    let mut row = Vec::new();
    encode_literals(plan, &text, &items, &mut row).expect("row");
    let mut batch = Batch::new(CopyFormat::Text);
    batch.push(&row, 1);
    batch
}

/// Table by table: what is created, what is inserted, and the refusal (empty: poured).
#[test]
fn every_trap_is_seen_and_harmless_tables_pour() {
    const SETUP: &str = "
        CREATE FUNCTION noop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE FUNCTION lies(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
        CREATE FUNCTION now(int) RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT pg_catalog.now()';
        CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE TYPE comp AS (a int, b int);
        CREATE DOMAIN dnn AS int NOT NULL; CREATE DOMAIN dck AS int CHECK (VALUE > 0); CREATE DOMAIN dplain AS int;
        CREATE DOMAIN ddef AS int DEFAULT 7 CHECK (VALUE > 0);
        CREATE DOMAIN duser AS text CHECK (VALUE <> current_user);
        CREATE DOMAIN dnest AS dck;
        CREATE TABLE log (a int); CREATE TABLE other (id int PRIMARY KEY);
        CREATE FUNCTION told(int, int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 = $2';
        CREATE OPERATOR === (FUNCTION = told, LEFTARG = int, RIGHTARG = int);
        CREATE OPERATOR CLASS own FOR TYPE int USING btree AS
            OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 ===, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
        CREATE TABLE odd (id int); CREATE UNIQUE INDEX ON odd (id own);
        CREATE SEQUENCE seq;";
    type Case = (&'static str, &'static [&'static str], &'static str, &'static str);
    #[rustfmt::skip]
    const CASES: &[Case] = &[
        // Relations
        ("CREATE TABLE t (a int, b text)", &["a", "b"], "is", ""),
        ("CREATE UNLOGGED TABLE t (a int)", &["a"], "i", ""),
        ("CREATE TEMP TABLE t (a int)", &["a"], "i", "temporary table"),
        ("CREATE VIEW t AS SELECT a FROM log", &["a"], "i", "not a table"),
        ("CREATE MATERIALIZED VIEW t AS SELECT a FROM log", &["a"], "i", "not a table"),
        ("CREATE SEQUENCE t", &["last_value"], "i", "not a table"),
        ("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER far FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE t (a int) SERVER far", &["a"], "i", "not a table"),
        ("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER far FOREIGN DATA WRAPPER w; CREATE TABLE t (a int) PARTITION BY LIST (a); CREATE FOREIGN TABLE t1 PARTITION OF t DEFAULT SERVER far", &["a"], "i", "partition not a plain table: t1"),
        ("CREATE TABLE t (a int); CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO log VALUES (1)", &["a"], "i", "rule on insert: r"),
        ("CREATE TABLE t (a int); CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING", &["a"], "i", "rule on insert: r"),
        ("CREATE TABLE t (a int); CREATE RULE r AS ON UPDATE TO t DO INSTEAD NOTHING", &["a"], "i", ""),
        ("CREATE TABLE t (a int); CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION noop()", &["a"], "i", "trigger on insert: g"),
        ("CREATE TABLE t (a int); CREATE TRIGGER g AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION noop()", &["a"], "i", "trigger on insert: g"),
        ("CREATE TABLE t (a int); CREATE TRIGGER g AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION noop(); ALTER TABLE t DISABLE TRIGGER g", &["a"], "i", "trigger on insert: g"),
        ("CREATE TABLE t (a int); CREATE CONSTRAINT TRIGGER g AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION noop()", &["a"], "i", "trigger on insert: g"),
        ("CREATE TABLE t (a int); CREATE TRIGGER g BEFORE UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION noop()", &["a"], "i", ""),
        ("CREATE TABLE t (a int); CREATE TABLE kid () INHERITS (t); CREATE TRIGGER g BEFORE INSERT ON kid FOR EACH ROW EXECUTE FUNCTION noop()", &["a"], "i", ""),
        ("CREATE TABLE t (a int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)", &["a"], "i", ""),
        ("CREATE TABLE t (a int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t DEFAULT; CREATE TRIGGER leaf BEFORE INSERT ON t1 FOR EACH ROW EXECUTE FUNCTION noop()", &["a"], "i", "trigger on insert: leaf"),
        ("CREATE TABLE t (a int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t DEFAULT; CREATE RULE r AS ON INSERT TO t1 DO INSTEAD NOTHING", &["a"], "i", ""),
        ("CREATE TABLE t (a int) PARTITION BY LIST (a); CREATE TABLE t1 PARTITION OF t DEFAULT PARTITION BY LIST (a); CREATE TABLE t2 PARTITION OF t1 (CHECK (current_user <> 'x')) DEFAULT", &["a"], "i", "expression not immutable: check: SQLVALUEFUNCTION 10"),
        ("CREATE TABLE t (a int) PARTITION BY LIST (lies(a))", &["a"], "i", "expression not immutable: partition key: user lies(i)"),
        ("CREATE TABLE top (a int) PARTITION BY LIST (lies(a)); CREATE TABLE t PARTITION OF top FOR VALUES IN (1)", &["a"], "i", "expression not immutable: partition key: user lies(i)"),
        ("CREATE TABLE top (a int) PARTITION BY LIST (a); CREATE TABLE t PARTITION OF top FOR VALUES IN (1)", &["a"], "i", ""),
        // Columns
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY)", &["a", "id"], "ii", "value for identity always: id"),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY)", &["a", "id"], "id", ""),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY)", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id int GENERATED BY DEFAULT AS IDENTITY)", &["a", "id"], "ii", ""),
        ("CREATE TABLE t (a int, g int GENERATED ALWAYS AS (a + 1) STORED, b int)", &[], "ii", "value for generated column: g"),
        ("CREATE TABLE t (a int, g int GENERATED ALWAYS AS (a + 1) STORED, b int)", &[], "idi", ""),
        ("CREATE TABLE t (a int, g int GENERATED ALWAYS AS (a + 1) STORED, b int)", &["a", "b"], "ii", ""),
        ("CREATE TABLE t (a int, g int GENERATED ALWAYS AS (lies(a)) STORED)", &["a"], "i", "expression not immutable: generated: user lies(i)"),
        ("CREATE TABLE t (a int, d dnn)", &["a"], "i", "domain with check left out: d"),
        ("CREATE TABLE t (a int, d dck)", &["a"], "i", "domain with check left out: d"),
        ("CREATE TABLE t (a int, d dnest)", &["a"], "i", "domain with check left out: d"),
        ("CREATE TABLE t (a int, d dnn)", &["a", "d"], "id", "domain with check left out: d"),
        ("CREATE TABLE t (a int, d dnn, e dck)", &["a", "d", "e"], "iii", ""),
        ("CREATE TABLE t (a int, d dplain)", &["a"], "i", ""),
        ("CREATE TABLE t (a int, d ddef)", &["a"], "i", ""),
        ("CREATE TABLE t (a duser)", &["a"], "s", "expression not immutable: domain: SQLVALUEFUNCTION 10"),
        ("CREATE TABLE t (a int, m mood, ms mood[])", &["m", "ms"], "ss", ""),
        ("CREATE TABLE t (a comp)", &["a"], "s", "column type: a comp"),
        ("CREATE TABLE t (a dck[])", &["a"], "s", "column type: a _dck"),
        ("CREATE TABLE t (a regclass)", &["a"], "s", "column type: a regclass"),
        ("CREATE TABLE t (a regtype, b int)", &["b"], "i", ""),
        ("CREATE TABLE t (a int)", &["b"], "i", "no such column: b"),
        ("CREATE TABLE t (a int)", &["a", "a"], "ii", "column named twice: a"),
        ("CREATE TABLE t (a int)", &["a"], "ii", "number of values"),
        ("CREATE TABLE t (a int, b int)", &["a", "b"], "i", "number of values"),
        ("CREATE TABLE t (a int, b int)", &[], "i", ""),
        ("CREATE TABLE t (a int, b int)", &[], "iii", "number of values"),
        ("CREATE TABLE t (a int, b int)", &["a", "b"], "dd", "no column with a value"),
        ("CREATE TABLE t (x int, a int, b text); ALTER TABLE t DROP COLUMN x", &[], "is", ""),
        ("CREATE TABLE t (a text)", &["a"], "i", "literal for column type: integer into a text"),
        ("CREATE TABLE t (a bool)", &["a"], "i", "literal for column type: integer into a bool"),
        // Defaults
        ("CREATE TABLE t (a int, d timestamptz DEFAULT now())", &["a"], "i", ""),
        ("CREATE TABLE t (a int, d timestamp DEFAULT now())", &["a"], "i", ""),
        ("CREATE TABLE t (a int, d timestamp DEFAULT (now() AT TIME ZONE 'utc'))", &["a"], "i", ""),
        ("CREATE TABLE t (a int, d date DEFAULT CURRENT_DATE, e timetz DEFAULT CURRENT_TIME(0), f timestamp(3) DEFAULT LOCALTIMESTAMP(2))", &["a"], "i", ""),
        ("CREATE TABLE t (a int, d timestamptz DEFAULT clock_timestamp(), e uuid DEFAULT gen_random_uuid())", &["a"], "i", ""),
        ("CREATE TABLE t (a int, d timestamptz DEFAULT statement_timestamp())", &["a"], "i", "default not reproducible: d pg_catalog.statement_timestamp(s)"),
        ("CREATE TABLE t (a int, d timestamptz DEFAULT public.now(1))", &["a"], "i", "default not reproducible: d user now(s)"),
        ("CREATE TABLE t (a int, d text DEFAULT current_user)", &["a"], "i", "default not reproducible: d current_user"),
        ("CREATE TABLE t (a int, d text DEFAULT session_user)", &["a"], "i", "default not reproducible: d session_user"),
        ("CREATE TABLE t (a int, d text DEFAULT current_schema)", &["a"], "i", "default not reproducible: d current_schema"),
        ("CREATE TABLE t (a int, d text DEFAULT current_setting('application_name'))", &["a"], "i", "default not reproducible: d pg_catalog.current_setting(s)"),
        ("CREATE TABLE t (a int, d text DEFAULT current_query())", &["a"], "i", "default not reproducible: d pg_catalog.current_query(v)"),
        ("CREATE TABLE t (a int, d float8 DEFAULT random())", &["a"], "i", "default not reproducible: d pg_catalog.random(v)"),
        ("CREATE TABLE t (a int, d bigint DEFAULT txid_current())", &["a"], "i", "default not reproducible: d pg_catalog.txid_current(s)"),
        ("CREATE TABLE t (a int, d int DEFAULT pg_backend_pid())", &["a"], "i", "default not reproducible: d pg_catalog.pg_backend_pid(s)"),
        ("CREATE TABLE t (a int, d int DEFAULT lies(1))", &["a"], "i", "default not reproducible: d user lies(i)"),
        ("CREATE TABLE t (a int, d int DEFAULT lies(1))", &["a", "d"], "ii", ""),
        ("CREATE TABLE t (a int, d text DEFAULT 'x', e int DEFAULT 1 + 2, f text[] DEFAULT '{}')", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id serial)", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY)", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id smallserial)", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, id smallserial)", &["a", "id"], "ii", ""),
        ("CREATE TABLE t (a int, id smallint DEFAULT nextval('seq'))", &["a"], "i", "sequence near its end: id"),
        ("CREATE DOMAIN dseq AS smallint DEFAULT nextval('seq'); CREATE TABLE t (a int, id dseq)", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY (MAXVALUE 1000))", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY (MAXVALUE 1000 CYCLE))", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY (INCREMENT -1))", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY (INCREMENT -1 MINVALUE -1000))", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY (INCREMENT 10000))", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, id serial); SELECT setval('t_id_seq', 2146483640)", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id serial); SELECT setval('t_id_seq', 2146483660)", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, id bigserial); SELECT setval('t_id_seq', 9223372036854775800)", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, id bigint GENERATED ALWAYS AS IDENTITY (MINVALUE -9223372036854775808 START -9223372036854775808)); SELECT nextval('t_id_seq')", &["a"], "i", ""),
        ("CREATE TABLE t (a int, id int GENERATED ALWAYS AS IDENTITY (MAXVALUE 1000)) PARTITION BY LIST (a)", &["a"], "i", "sequence near its end: id"),
        ("CREATE TABLE t (a int, d int DEFAULT nextval('seq') + pg_backend_pid())", &["a"], "i", "default not reproducible: d pg_catalog.nextval(v), pg_catalog.pg_backend_pid(s)"),
        // Constraints
        ("CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES t)", &["id", "a"], "ii", "foreign key to itself"),
        ("CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES t)", &["id"], "i", ""),
        ("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 1 REFERENCES t)", &["id"], "i", "foreign key to itself"),
        ("CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES t) PARTITION BY LIST (id); CREATE TABLE t1 PARTITION OF t DEFAULT", &["id", "a"], "ii", "foreign key to itself"),
        ("CREATE TABLE t (id int PRIMARY KEY, a int) PARTITION BY LIST (id); CREATE TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE t1 ADD FOREIGN KEY (a) REFERENCES t", &["id"], "i", "foreign key to itself"),
        ("CREATE TABLE t (a int REFERENCES odd (id))", &["a"], "i", "expression not immutable: foreign key: user told(i)"),
        ("CREATE TABLE t (id int UNIQUE DEFERRABLE INITIALLY DEFERRED, a int REFERENCES other DEFERRABLE)", &["id", "a"], "ii", ""),
        ("CREATE TABLE t (a int CHECK (a > 0 AND a = ANY ('{1,2}')))", &["a"], "i", ""),
        ("CREATE TABLE t (a text CHECK (a <> current_setting('x.y')))", &["a"], "s", "expression not immutable: check: pg_catalog.current_setting(s)"),
        ("CREATE TABLE t (a timestamptz CHECK (a < now()))", &["a"], "s", "expression not immutable: check: pg_catalog.now(s)"),
        ("CREATE TABLE t (a int CHECK (lies(a) > 0))", &["a"], "i", "expression not immutable: check: user lies(i)"),
        ("CREATE TABLE t (a int); CREATE UNIQUE INDEX ON t (lies(a))", &["a"], "i", "expression not immutable: index: user lies(i)"),
        ("CREATE TABLE t (a int); CREATE INDEX ON t (a) WHERE lies(a) > 0", &["a"], "i", "expression not immutable: index: user lies(i)"),
        ("CREATE TABLE t (a text); CREATE UNIQUE INDEX ON t (lower(a)) WHERE a IS NOT NULL", &["a"], "s", ""),
        ("CREATE TABLE t (a int, r int4range, EXCLUDE USING gist (r WITH &&))", &["a"], "i", ""),
        // What writes and reads values as text does so by settings, whatever it is marked as.
        ("CREATE TABLE t (a float8, g text GENERATED ALWAYS AS (textin(float8out(a))) STORED)", &["a"], "s", "expression not immutable: generated: pg_catalog.float8out(i)"),
        ("CREATE TABLE t (a bytea, CHECK (textin(byteaout(a)) <> 'x'))", &["a"], "s", "expression not immutable: check: pg_catalog.byteaout(i)"),
        ("CREATE TABLE t (a float8); CREATE INDEX ON t (textin(float8out(a)))", &["a"], "s", "expression not immutable: index: pg_catalog.float8out(i)"),
        ("CREATE TABLE t (a float8); CREATE INDEX ON t (a) WHERE textin(float8out(a)) <> 'x'", &["a"], "s", "expression not immutable: index: pg_catalog.float8out(i)"),
        ("CREATE TABLE t (a float8) PARTITION BY HASH (textin(float8out(a)))", &["a"], "s", "expression not immutable: partition key: pg_catalog.float8out(i)"),
        ("CREATE DOMAIN dout AS float8 CHECK (textin(float8out(VALUE)) <> 'x'); CREATE TABLE t (a dout)", &["a"], "s", "expression not immutable: domain: pg_catalog.float8out(i)"),
        ("CREATE TABLE t (a int, d text DEFAULT textin(byteaout('x')))", &["a"], "i", "default not reproducible: d pg_catalog.byteaout(i), pg_catalog.textin(i)"),
        ("CREATE EXTENSION hstore; CREATE TABLE t (a float8, g hstore GENERATED ALWAYS AS (hstore(ROW(a))) STORED)", &["a"], "s", "expression not immutable: generated: user hstore(i)"),
        ("CREATE EXTENSION hstore; CREATE TABLE t (a text, g hstore GENERATED ALWAYS AS (hstore(a, 'x')) STORED)", &["a"], "s", ""),
        // Row security: a superuser is exempt.
        ("CREATE TABLE t (a int); ALTER TABLE t ENABLE ROW LEVEL SECURITY", &["a"], "i", ""),
    ];
    let server = Postgres::shared();
    let database = server.fresh_database(SETUP);
    let mut failures = String::new();
    for &(ddl, columns, items, expected) in CASES {
        let mut raw = Raw::login(server.port(), &database);
        raw.rows(&format!("BEGIN; {ddl}"));
        let got = plan(&mut raw, "t", columns, &classes(items));
        let got = got.err().map(|reason| reason.to_string()).unwrap_or_default();
        if got != expected {
            failures += &format!("{ddl}\n  ({columns:?}) {items}: {got:?}, not {expected:?}\n");
        }
        raw.terminate();
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// What DO UPDATE does beyond its row is done at its end or at the COMMIT, and not where the next client's statement finds it.
#[test]
fn updates_of_keys_and_with_triggers_are_alone() {
    const TRIGGER: &str =
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER g";
    let server = Postgres::shared();
    let cases = [
        ("", "b", true),
        ("CREATE INDEX ON t (c); CREATE UNIQUE INDEX ON t (lower(c)) WHERE a > 0", "b", true),
        ("CREATE TABLE u (a int REFERENCES t ON UPDATE CASCADE ON DELETE SET NULL)", "b", true),
        ("ALTER TABLE t ADD FOREIGN KEY (c) REFERENCES p DEFERRABLE", "b", true),
        ("TRIGGER AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION f()", "b", true),
        ("ALTER TABLE t ADD k int GENERATED ALWAYS AS (length(c)) STORED UNIQUE", "b", true),
        ("", "a", false),
        ("", "g", false),
        ("CREATE INDEX ON t (g)", "b", false),
        ("ALTER TABLE t ADD UNIQUE (c, g)", "b", false),
        ("ALTER TABLE t ADD FOREIGN KEY (g) REFERENCES q DEFERRABLE INITIALLY DEFERRED", "b", false),
        (
            "ALTER TABLE t ADD k text GENERATED ALWAYS AS (CASE WHEN a > 0 THEN upper(coalesce(c, b)) END) STORED UNIQUE",
            "b",
            false,
        ),
        ("CREATE INDEX ON t (c, b)", "b", false),
        ("CREATE INDEX ON t (c) INCLUDE (b)", "b", false),
        ("ALTER TABLE t ADD FOREIGN KEY (b) REFERENCES p", "b", false),
        ("CREATE TABLE u (a int, b text REFERENCES t (c) ON UPDATE CASCADE)", "c", false),
        ("ALTER TABLE t ADD UNIQUE (a, c) DEFERRABLE", "b", false),
        ("ALTER TABLE t ADD EXCLUDE USING btree ((a + 1) WITH =) DEFERRABLE", "b", false),
        ("TRIGGER BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()", "b", false),
        (
            "TRIGGER AFTER UPDATE OF c ON t FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t DISABLE TRIGGER g",
            "b",
            false,
        ),
        ("TRIGGER AFTER UPDATE ON t FOR EACH STATEMENT EXECUTE FUNCTION f()", "b", false),
        (
            "ALTER TABLE t RENAME TO x; CREATE TABLE t (a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
            "b",
            false,
        ),
    ];
    for (change, column, together) in cases {
        let database = server.fresh_database(
            "CREATE TABLE p (b text PRIMARY KEY);
             CREATE TABLE q (a int PRIMARY KEY);
             CREATE TABLE t (a int PRIMARY KEY, b text, c text UNIQUE, g int GENERATED ALWAYS AS (length(b)) STORED)",
        );
        let mut raw = Raw::login(server.port(), &database);
        let change = change.replace("TRIGGER BEFORE", &format!("{TRIGGER} BEFORE"));
        let change = match change.strip_prefix("TRIGGER AFTER") {
            Some(rest) => format!("{TRIGGER} AFTER{rest}"),
            None => change,
        };
        raw.rows(&change);
        let facts = ask(&mut raw, None, "t").expect("t");
        let target = InsertTarget {
            conflict: true,
            updates: vec![Update { column: column.to_owned(), to: SetTo::Excluded }],
            ..target("t", &["a", "b"], &classes("is"))
        };
        let planned = plan_literals_together(&facts, &target);
        match together {
            true => assert!(planned.is_ok(), "{change}: {planned:?}"),
            false => assert_eq!(planned, Err(Reason::Update(column.to_owned())), "{change}"),
        }
    }
}

#[test]
fn plans_say_what_their_rows_ask_for() {
    let server = Postgres::shared();
    let database = server.fresh_database(
        "CREATE TABLE t (id serial, a int, d timestamptz DEFAULT now(), \"Q\"\"q\" int);
         CREATE TABLE u (a int, g uuid DEFAULT gen_random_uuid());",
    );
    let mut raw = Raw::login(server.port(), &database);
    let one = plan(&mut raw, "t", &["a", "Q\"q"], &classes("ii")).expect("plan");
    assert!(one.one_row_per_client && one.draws_sequence);
    assert_eq!(one.copy_text_sql, "COPY \"public\".\"t\" (\"a\", \"Q\"\"q\") FROM STDIN");
    assert_eq!(one.copy_binary_sql, None);
    let two = plan(&mut raw, "u", &["a"], &classes("i")).expect("plan");
    assert!(!two.one_row_per_client && !two.draws_sequence);
}

#[test]
fn names_mean_what_they_mean_in_the_session() {
    let server = Postgres::shared();
    let database = server.fresh_database(
        "CREATE SCHEMA one; CREATE SCHEMA two; CREATE TABLE one.t (a int); CREATE TABLE two.t (b int);
         CREATE TABLE \"Odd . name\" (a int);",
    );
    let mut raw = Raw::login(server.port(), &database);
    assert_eq!(ask(&mut raw, None, "t"), Err(Reason::NotFound));
    raw.rows("SET search_path = two, one");
    assert_eq!(ask(&mut raw, None, "t").expect("table").target, "\"two\".\"t\"");
    assert_eq!(ask(&mut raw, Some("one"), "t").expect("table").target, "\"one\".\"t\"");
    assert_eq!(
        ask(&mut raw, Some("public"), "Odd . name").expect("table").target,
        "\"public\".\"Odd . name\""
    );
    assert_eq!(ask(&mut raw, Some("pg_catalog"), "pg_class").map(|t| t.refused), Ok(Some(Reason::System)));
    // A temporary table shadows the permanent one, and any stops the session; their schema stays when they are gone.
    raw.rows("CREATE TEMP TABLE t (c int)");
    assert_eq!(ask(&mut raw, None, "t").map(|t| t.refused), Ok(Some(Reason::Temporary)));
    raw.rows("ALTER TABLE pg_temp.t RENAME TO other");
    let plan = |raw: &mut Raw| {
        let table = ask(raw, None, "t").expect("table");
        assert_eq!(table.target, "\"two\".\"t\"");
        plan_literals(&table, &target("t", &["b"], &classes("i"))).err()
    };
    assert_eq!(plan(&mut raw), Some(Reason::TemporaryObjects));
    raw.rows("DROP TABLE other");
    assert_eq!(plan(&mut raw), None);
}

#[test]
fn privileges_and_row_security_are_those_of_the_role() {
    let server = Postgres::shared();
    let database = server.fresh_database(
        "DROP ROLE IF EXISTS pour_app; CREATE ROLE pour_app LOGIN;
         CREATE TABLE t (a int, b int); GRANT INSERT (a) ON t TO pour_app;
         CREATE TABLE whole (a int, b int); GRANT INSERT, SELECT (a) ON whole TO pour_app;
         CREATE TABLE rls (a int); ALTER TABLE rls ENABLE ROW LEVEL SECURITY; GRANT ALL ON rls TO pour_app;
         CREATE SCHEMA shut; CREATE TABLE shut.t (a int); GRANT INSERT ON shut.t TO pour_app;",
    );
    let login = [("user", "pour_app"), ("database", database.as_str())];
    let mut raw = Raw::login_as(server.port(), &login, "").expect("login");
    assert!(plan(&mut raw, "t", &["a"], &classes("i")).is_ok());
    assert_eq!(plan(&mut raw, "t", &["a", "b"], &classes("ii")), Err(Reason::ColumnPrivilege("b".into())));
    // An INSERT asks for the privilege of a column that it gives DEFAULT, too; a COPY has no name for it.
    assert_eq!(plan(&mut raw, "t", &["a", "b"], &classes("id")), Err(Reason::DefaultPrivilege("b".into())));
    assert!(plan(&mut raw, "whole", &["a", "b"], &classes("id")).is_ok());
    assert_eq!(plan(&mut raw, "rls", &["a"], &classes("i")), Err(Reason::RowSecurity));
    let name = catalog::lookup_name(Some("shut"), "t");
    let refused = raw.extended(catalog::ELIGIBILITY_SQL, &[Some(&name)]);
    assert_eq!(error(&refused).map(Message::sqlstate).as_deref(), Some("42501"));
}

/// Operators, functions, types and tables of a schema before `pg_catalog` must not be heard.
#[test]
fn a_hostile_search_path_changes_no_answer() {
    let server = Postgres::shared();
    let mut evil = String::from("CREATE SCHEMA evil; SET search_path = pg_catalog;\n");
    for (left, right) in [
        ("oid", "oid"),
        ("text", "text"),
        ("name", "name"),
        ("name", "text"),
        ("\"char\"", "\"char\""),
        ("int2", "int2"),
        ("int2", "int4"),
        ("int4", "int4"),
        ("int8", "int8"),
        ("bool", "bool"),
        ("regclass", "regclass"),
    ] {
        for (operator, name) in [("=", "eq"), ("<>", "ne"), (">", "gt"), ("<", "lt"), (">=", "ge")] {
            evil += &format!(
                "CREATE FUNCTION evil.{name}({left}, {right}) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT false';
                 CREATE OPERATOR evil.{operator} (FUNCTION = evil.{name}, LEFTARG = {left}, RIGHTARG = {right});\n"
            );
        }
    }
    for (signature, returns, body) in [
        ("concat_ws(text, VARIADIC \"any\")", "text", ""),
        ("concat(VARIADIC \"any\")", "text", ""),
        ("to_regclass(text)", "regclass", "SELECT NULL::regclass"),
        ("row_security_active(oid)", "bool", "SELECT true"),
        ("current_setting(text)", "text", "SELECT 'evil'::text"),
        ("current_setting(text, bool)", "text", "SELECT 'evil'::text"),
        ("pg_my_temp_schema()", "oid", "SELECT 1::oid"),
        ("has_schema_privilege(oid, text)", "bool", "SELECT false"),
        ("has_column_privilege(oid, int2, text)", "bool", "SELECT false"),
        ("now()", "timestamptz", "SELECT 'epoch'::timestamptz"),
    ] {
        if !body.is_empty() {
            evil +=
                &format!("CREATE FUNCTION evil.{signature} RETURNS {returns} LANGUAGE sql AS $${body}$$;\n");
        }
    }
    for table in
        ["pg_class", "pg_attribute", "pg_trigger", "pg_type", "pg_constraint", "pg_namespace", "rels"]
    {
        evil += &format!("CREATE TABLE evil.{table} (oid oid, relid oid);\n");
    }
    for domain in ["oid", "text", "int2", "int4", "int8", "regclass", "name", "xid8"] {
        evil += &format!("CREATE DOMAIN evil.{domain} AS pg_catalog.bool;\n");
    }
    evil += "CREATE TABLE public.t (id serial, a int CHECK (a > 0), b text DEFAULT 'x', c timestamptz DEFAULT now());
             CREATE INDEX ON public.t (lower(b));";
    let database = server.fresh_database(&evil);
    let mut clean = Raw::login(server.port(), &database);
    let mut hostile = Raw::login(server.port(), &database);
    hostile.rows("SET search_path = evil, pg_catalog, public");
    assert_eq!(hostile.value("SELECT 1::pg_catalog.int4 = 1").as_deref(), Some("f"), "the trap is set");
    let seen = ask(&mut clean, Some("public"), "t").expect("table");
    let mut other = ask(&mut hostile, Some("public"), "t").expect("table");
    other.viewer.search_path.clone_from(&seen.viewer.search_path);
    assert_eq!(seen, other);
    assert_eq!(seen.refused, None);
    let plan = plan_literals(&other, &target("t", &["a"], &classes("i"))).expect("plan");
    assert!(plan.one_row_per_client && plan.draws_sequence);
    let messages = flush(&mut hostile, &plan, &one_row(&plan, &[3]));
    assert!(error(&messages).is_none(), "{}", outline(&messages));
    for sql in [catalog::SESSION_SQL, catalog::INCARNATION_SQL] {
        let settings = |raw: &mut Raw| raw.value(sql).expect("one text");
        let (clean, hostile) = (settings(&mut clean), settings(&mut hostile));
        assert_eq!(clean.replace("\\\"$user\\\", public", "evil, pg_catalog, public"), hostile);
    }
}

/// Three sessions of a fresh database; names are looked for in the schema `earlier` first by those that plan and flush.
fn who_plans_flushes_and_changes(setup: &str) -> [Raw; 3] {
    let server = Postgres::shared();
    let database = server.fresh_database(setup);
    let mut sessions = [(); 3].map(|()| Raw::login(server.port(), &database));
    for raw in &mut sessions[..2] {
        raw.rows("SET search_path = earlier, public");
    }
    sessions
}

/// A flush whose table changed since it was planned must not commit; what cannot matter must not fail it.
#[test]
fn ddl_between_planning_and_commit_fails_the_flush() {
    const SETUP: &str = "
        CREATE FUNCTION noop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE DOMAIN d AS int; CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1);
        CREATE TYPE mood AS ENUM ('ok');
        CREATE FUNCTION at(text) RETURNS timestamptz LANGUAGE sql AS $$SELECT '2000-01-01'::timestamptz$$;
        CREATE FUNCTION twice(int2[]) RETURNS int4[] LANGUAGE sql AS 'SELECT ARRAY[2]';
        CREATE TABLE t (a int, b d, c text, d timestamptz, e int[]);
        CREATE TRIGGER first BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION noop();
        CREATE RULE one AS ON UPDATE TO t DO INSTEAD NOTHING;
        CREATE TABLE feel (a int, b int, c mood);
        CREATE TABLE loose (a int, b d, c text);
        CREATE FUNCTION checked(int) RETURNS int LANGUAGE internal IMMUTABLE AS 'int4abs';
        CREATE FUNCTION indexed(int) RETURNS int LANGUAGE internal IMMUTABLE AS 'int4abs';
        CREATE FUNCTION made(int) RETURNS int LANGUAGE internal IMMUTABLE AS 'int4abs';
        CREATE FUNCTION given(int) RETURNS int LANGUAGE internal IMMUTABLE AS 'int4abs';
        CREATE FUNCTION bounded(int) RETURNS int LANGUAGE internal IMMUTABLE AS 'int4abs';
        CREATE FUNCTION same(int, int) RETURNS bool LANGUAGE internal IMMUTABLE AS 'int4eq';
        CREATE FUNCTION compared(int, int) RETURNS int LANGUAGE internal IMMUTABLE AS 'btint4cmp';
        CREATE FUNCTION parted(int) RETURNS int LANGUAGE internal IMMUTABLE AS 'int4abs';
        CREATE OPERATOR === (FUNCTION = same, LEFTARG = int, RIGHTARG = int);
        CREATE OPERATOR CLASS own FOR TYPE int USING btree AS
            OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 compared(int, int);
        CREATE DOMAIN bound AS int CHECK (bounded(VALUE) < 9);
        CREATE TABLE calls (a int CHECK (checked(a) < 9), b int CHECK (b === 1), e int GENERATED ALWAYS AS (made(a)) STORED);
        CREATE INDEX ON calls (indexed(a)); CREATE INDEX ON calls (b own);
        CREATE TABLE bounds (a int, b bound); CREATE TABLE gives (a int, b int, c int DEFAULT given(1));
        CREATE TABLE parts (a int, b int) PARTITION BY LIST (parted(a)); CREATE TABLE parts1 PARTITION OF parts DEFAULT;
        CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler;
        CREATE TABLE p (a int, b int) PARTITION BY LIST (a); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
        CREATE TABLE p2 (a int, b int); CREATE SCHEMA earlier;";
    // What is done, and whether a flush of (1, 1) must fail then.
    const STEPS: &[(&str, &str, bool)] = &[
        ("t", "SELECT 1", false),
        ("t", "ANALYZE t", false),
        ("t", "VACUUM t", false),
        ("t", "ALTER TABLE t SET (fillfactor = 90)", false),
        ("t", "ALTER TABLE t ALTER c SET DEFAULT 'x'", true),
        ("t", "ALTER TABLE t ALTER a SET NOT NULL", true),
        ("t", "CREATE TRIGGER second BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION noop()", true),
        ("t", "ALTER TABLE t DISABLE TRIGGER second", true),
        ("t", "ALTER TABLE t ENABLE ALWAYS TRIGGER second", true),
        ("t", "DROP TRIGGER second ON t", true),
        ("t", "CREATE RULE two AS ON DELETE TO t DO INSTEAD NOTHING", true),
        ("t", "CREATE OR REPLACE RULE two AS ON DELETE TO t DO ALSO NOTHING", true),
        ("t", "ALTER TABLE t ENABLE ROW LEVEL SECURITY", true),
        ("t", "ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES other", true),
        ("t", "CREATE INDEX ON t (c)", true),
        ("t", "ALTER TABLE t RENAME c TO cc", true),
        ("t", "ALTER TABLE t ADD id int GENERATED ALWAYS AS IDENTITY", true),
        ("t", "ALTER TABLE t ALTER cc TYPE varchar(9)", true),
        ("t", "ALTER TABLE t DROP COLUMN cc", true),
        ("t", "ALTER DOMAIN d ADD CHECK (VALUE > 0)", true),
        ("t", "ALTER DOMAIN d SET NOT NULL", true),
        ("t", "GRANT SELECT ON t TO PUBLIC", true),
        // The first two are of no type of its columns'.
        ("t", "CREATE CAST (text AS point) WITH INOUT", false),
        ("t", "CREATE CAST (varchar AS public.mood) WITH INOUT", false),
        ("t", "CREATE CAST (text AS timestamptz) WITH FUNCTION at(text)", true),
        ("t", "DROP CAST (text AS timestamptz)", true),
        ("t", "CREATE CAST (int2[] AS int8[]) WITH INOUT", false),
        ("t", "CREATE CAST (int2[] AS int4[]) WITH FUNCTION twice(int2[]) AS ASSIGNMENT", true),
        ("feel", "CREATE CAST (public.mood AS varchar) WITH INOUT", false),
        ("feel", "CREATE CAST (public.mood AS text) WITH INOUT", true),
        ("p", "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)", true),
        ("p", "CREATE TRIGGER leaf BEFORE INSERT ON p2 FOR EACH ROW EXECUTE FUNCTION noop()", true),
        // 14 cannot.
        (
            "p",
            "DO $$BEGIN IF current_setting('server_version_num')::int >= 150000 THEN EXECUTE 'ALTER TABLE p1 SET ACCESS METHOD heap2';
             ELSE EXECUTE 'ALTER TABLE p1 ALTER a SET NOT NULL'; END IF; END$$",
            true,
        ),
        ("p", "ALTER TABLE p DETACH PARTITION p2", true),
        (
            "p1",
            "CREATE TABLE top (a int, b int) PARTITION BY LIST (b); ALTER TABLE top ATTACH PARTITION p DEFAULT",
            true,
        ),
        (
            "calls",
            "CREATE OR REPLACE FUNCTION checked(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'",
            true,
        ),
        (
            "calls",
            "CREATE OR REPLACE FUNCTION indexed(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'",
            true,
        ),
        (
            "calls",
            "CREATE OR REPLACE FUNCTION made(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'",
            true,
        ),
        (
            "gives",
            "CREATE OR REPLACE FUNCTION given(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'",
            true,
        ),
        (
            "calls",
            "CREATE OR REPLACE FUNCTION same(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END'",
            true,
        ),
        (
            "calls",
            "CREATE OR REPLACE FUNCTION compared(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 0; END'",
            true,
        ),
        (
            "bounds",
            "CREATE OR REPLACE FUNCTION bounded(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'",
            true,
        ),
        (
            "parts",
            "CREATE OR REPLACE FUNCTION parted(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'",
            true,
        ),
        (
            "p",
            "CREATE OR REPLACE FUNCTION parted(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 2; END'",
            false,
        ),
        ("t", "CREATE TABLE earlier.t (a int, b int)", true),
    ];
    let [mut planner, mut flusher, mut changer] = who_plans_flushes_and_changes(SETUP);
    for &(table, step, must_fail) in STEPS {
        // The refusal of the table as such is not the question here.
        let mut facts = ask(&mut planner, None, table).expect("table");
        facts.refused = None;
        let plan = plan_literals(&facts, &target(table, &["a", "b"], &classes("ii")));
        let plan = plan.unwrap_or_else(|e| panic!("before {step}: {e}"));
        let rows = |raw: &mut Raw| raw.value(&format!("SELECT count(*) FROM public.{table}"));
        let before = rows(&mut changer);
        changer.rows(step);
        let messages = flush(&mut flusher, &plan, &one_row(&plan, &[1, 1]));
        let failed = error(&messages);
        assert_eq!(failed.is_some(), must_fail, "after {step}:\n{}", outline(&messages));
        assert_eq!(rows(&mut changer) == before, must_fail, "after {step}");
        if let Some(failed) = failed {
            assert!(catalog::is_guard_error(&ErrorFields::new(&failed.body)), "{}", failed.outline());
        } else {
            let row = messages.iter().find(|m| m.tag == backend::DATA_ROW).expect("guard's row");
            let xid = catalog::decode_guard(&backend::data_row(&row.body).expect("DataRow")).expect("xid");
            let status = flusher.extended(catalog::STATUS_SQL, &[Some(&xid.to_string())]);
            let status = status.iter().find(|m| m.tag == backend::DATA_ROW).expect("status").row();
            assert_eq!(status, [Some("committed".to_owned())]);
        }
    }
}

/// A flush whose statement named a type that is another one by now must not commit, nor one whose role may not look for it.
#[test]
fn names_of_types_mean_what_they_mean_in_the_flush() {
    const SETUP: &str = "
        CREATE TYPE mood AS ENUM ('ok'); CREATE TYPE \"a,\"\"b\" AS ENUM ('ok'); CREATE TABLE t (a int, b mood, c \"a,\"\"b\", d mood[]);
        CREATE SCHEMA earlier; CREATE SCHEMA other; GRANT ALL ON SCHEMA earlier, other TO PUBLIC;
        CREATE TYPE other.feeling AS ENUM ('ok'); CREATE TABLE u (a int, b other.feeling)";
    let other = |schema: Option<&str>, name: &str, array| OtherType {
        schema: schema.map(str::to_owned),
        name: name.to_owned(),
        array,
    };
    let all = [other(None, "mood", false), other(Some("public"), "a,\"b", false), other(None, "mood", true)];
    let feeling = [other(Some("other"), "feeling", false)];
    let steps: &[(&str, &[OtherType], &str, bool)] = &[
        ("t", &all, "SELECT 1", false),
        ("t", &all[1..2], "CREATE DOMAIN earlier.mood AS public.mood", false),
        ("t", &all[..1], "DROP DOMAIN earlier.mood", true),
        ("t", &all[..1], "CREATE TABLE earlier.mood (a int)", true),
        (
            "u",
            &feeling,
            "ALTER TYPE other.feeling RENAME TO felt; ALTER TYPE other.felt RENAME TO feeling",
            true,
        ),
        ("u", &feeling, "ALTER SCHEMA other RENAME TO others; CREATE SCHEMA other", true),
        ("u", &[other(Some("others"), "feeling", false)], "SELECT 1", false),
        ("t", &[other(None, "nonesuch", false)], "SELECT 1", true),
    ];
    let [mut planner, mut flusher, mut changer] = who_plans_flushes_and_changes(SETUP);
    for (table, types, step, must_fail) in steps {
        let facts = ask(&mut planner, None, table).expect("table");
        let mut target = target(table, &["a"], &classes("i"));
        target.types = types.to_vec();
        let names = plan_literals(&facts, &target).expect("plan").types;
        let answer = planner.extended(catalog::TYPES_SQL, &[Some(&names)]);
        let row = answer.iter().find(|m| m.tag == backend::DATA_ROW).expect("a row");
        let row = backend::data_row(&row.body).expect("DataRow");
        match catalog::decode_types(types.len(), &row) {
            Ok(oids) => target.type_oids = oids,
            Err(why) => {
                assert_eq!((why, types[0].name.as_str()), (Reason::NoSuchType, "nonesuch"));
                continue;
            }
        }
        let plan = plan_literals(&facts, &target).expect("plan");
        changer.query(step);
        let messages = flush(&mut flusher, &plan, &one_row(&plan, &[1]));
        let failed = error(&messages);
        assert_eq!(failed.is_some(), *must_fail, "after {step}:\n{}", outline(&messages));
        assert!(
            failed.is_none_or(|failed| catalog::is_guard_error(&ErrorFields::new(&failed.body))),
            "{step}"
        );
    }
}

#[test]
fn a_failed_copy_points_at_the_guilty_line() {
    let server = Postgres::shared();
    let name = "t, line 9, column a: \"x\"";
    let database = server.fresh_database(
        "CREATE TABLE \"t, line 9, column a: \"\"x\"\"\" (a int PRIMARY KEY CHECK (a < 100), b int)",
    );
    let mut raw = Raw::login(server.port(), &database);
    let plan = plan(&mut raw, name, &["a", "b"], &classes("ii")).expect("plan");
    for (bad, why) in [(100, "23514"), (2, "23505")] {
        let mut batch = Batch::new(CopyFormat::Text);
        for a in [1, 2, 3, bad, 5] {
            batch.push(one_row(&plan, &[a, 0]).bytes(), 1);
        }
        let messages = flush(&mut raw, &plan, &batch);
        let failed = error(&messages).expect("an error");
        assert_eq!(failed.sqlstate(), why);
        let line = batch::line_of_error(&ErrorFields::new(&failed.body), &plan.relname).expect("line");
        assert_eq!(batch.line_owner(line), Some(3), "{}", failed.outline());
        let messages = flush(&mut raw, &plan, &batch.without(3));
        assert!(error(&messages).is_none(), "{}", outline(&messages));
        assert!(messages.iter().any(|m| m.tag == backend::COMMAND_COMPLETE && m.command() == "COPY 4"));
        raw.rows(&format!("TRUNCATE {}", plan.target));
    }
}

#[test]
fn sessions_that_may_share_a_batch_have_equal_keys() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let session = |setup: &str| {
        let mut raw = Raw::login(server.port(), &database);
        raw.rows(setup);
        let text = raw.value(catalog::SESSION_SQL).expect("one text");
        catalog::decode_session(&[Some(text.as_bytes())])
    };
    let plain = session("SELECT 1").expect("session");
    assert_eq!(session("SET application_name = 'x'; SET work_mem = '1MB'").as_ref(), Ok(&plain));
    for differs in [
        "SET DateStyle = 'SQL, DMY'",
        "SET IntervalStyle = 'sql_standard'",
        "SET TimeZone = 'Asia/Tokyo'",
        "SET array_nulls = off",
        "SET xmloption = document",
        "SET synchronous_commit = off",
        "SET client_encoding = LATIN1",
        "SET search_path = pg_catalog",
        "SET ROLE pg_monitor",
    ] {
        assert_ne!(session(differs).expect(differs).key, plain.key, "{differs}");
    }
    for stops in [
        "SET client_encoding = SJIS",
        "SET client_encoding = BIG5",
        "SET client_encoding = SQL_ASCII",
        "SET standard_conforming_strings = off",
        "SET client_min_messages = debug1",
        "SET client_min_messages = log",
        "SET default_transaction_isolation = serializable",
        "SET default_transaction_read_only = on",
        "SET session_replication_role = replica",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
    ] {
        assert!(matches!(session(stops), Err(Reason::Setting { .. })), "{stops}");
    }
    assert_eq!(session("CREATE TEMP TABLE x ()"), Err(Reason::TemporaryObjects));
}

/// A transaction's id means something in one incarnation of the server only, also across a crash that the postmaster
/// itself survives.
#[test]
fn a_crash_of_one_backend_is_another_incarnation() {
    let server = Postgres::start(support::PgOptions::default());
    let incarnation = || Raw::login(server.port(), "postgres").value(catalog::INCARNATION_SQL);
    let before = incarnation();
    assert_eq!(before, incarnation());
    let mut victim = Raw::login(server.port(), "postgres");
    let pid = victim.pid.to_string();
    let started = victim.value("SELECT pg_postmaster_start_time()");
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().expect("kill").success());
    victim.read_until_closed();
    // psql, because a connection may still be cut off while the server recovers; and more than once, because one may still
    // get in before the postmaster has noticed.
    let after = support::poll(support::PATIENCE, || {
        let text = server.try_psql("postgres", catalog::INCARNATION_SQL).ok()?;
        (Some(text.trim()) != before.as_deref()).then_some(())
    });
    assert!(after.is_some(), "the incarnation never changed");
    let again = Raw::login(server.port(), "postgres").value("SELECT pg_postmaster_start_time()");
    assert_eq!(again, started, "the postmaster itself lives on");
}

/// Of each function and operator that an expression may use all that are called so, and that take as many arguments, are PostgreSQL's own,
/// and give the same whoever asks. Some read what clients of a batch agree on.
#[test]
fn what_expressions_may_use_gives_the_same_to_everybody() {
    let pg = Postgres::shared();
    let stable = |sql: &str, other: &str| -> Vec<String> {
        let sql = format!(
            "SELECT DISTINCT p.oid::regprocedure::text FROM ({sql}) x(f) JOIN pg_proc p ON p.oid = x.f
              WHERE p.provolatile <> 'i' OR p.prokind <> 'f' OR p.proretset OR p.pronamespace <> 11 {other} ORDER BY 1"
        );
        pg.psql("postgres", &sql).lines().map(str::to_owned).collect()
    };
    let mut read_settings = Vec::new();
    for (name, args) in expression::FUNCTIONS {
        let (least, most) = (args.start(), args.end());
        let all = format!(
            "SELECT oid FROM pg_proc WHERE proname = '{name}' AND pronargs BETWEEN {least} AND {most}"
        );
        assert_ne!(pg.psql("postgres", &all), "", "there is no {name}");
        read_settings.extend(stable(&all, "OR p.provariadic <> 0"));
    }
    for name in expression::OPERATORS {
        let all = format!("SELECT oprcode FROM pg_operator WHERE oprname = '{name}'");
        assert_ne!(pg.psql("postgres", &all), "", "there is no {name}");
        read_settings.extend(stable(&all, ""));
    }
    read_settings.sort();
    read_settings.dedup();
    // The time zone, and how values are written.
    let known = |function: &&String| {
        let written = function.starts_with("textanycat(") || function.starts_with("anytextcat(");
        let zone = function.contains("timestamp with time zone");
        !(written || zone)
    };
    assert_eq!(read_settings.iter().filter(known).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Those that are called with NULL are known by name, and take arrays.
#[test]
fn what_expressions_may_use_gives_null_of_null() {
    let pg = Postgres::shared();
    let strict = |name: &str, from: &str, function: &str| {
        let sql = format!(
            "SELECT count(*) FROM pg_proc p WHERE NOT p.proisstrict AND p.oid IN (SELECT {function} FROM {from} = '{name}' AND oid < 16384)"
        );
        pg.psql("postgres", &sql).trim() == "0"
    };
    for (name, _) in expression::FUNCTIONS {
        let known = expression::CALLED_WITH_NULL.contains(name);
        assert!(known || strict(name, "pg_proc WHERE proname", "oid"), "{name}");
    }
    for name in expression::OPERATORS {
        let known = expression::CALLED_WITH_NULL.contains(name);
        assert!(known || strict(name, "pg_operator WHERE oprname", "oprcode"), "{name}");
    }
}

/// Which of the functions and operators of a name are meant, the server decides by their arguments: an extension's for its own types
/// are not, as long as nothing becomes such a type by itself.
#[test]
fn names_of_users_count_where_they_could_be_meant() {
    let server = Postgres::shared();
    let cast = "CREATE FUNCTION of(int) RETURNS mood LANGUAGE sql AS $$SELECT 'ok'::mood$$; CREATE CAST (int AS mood) WITH FUNCTION of(int)";
    let lower = "CREATE FUNCTION lower(mood) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$";
    let plus = "CREATE FUNCTION plus(mood, mood) RETURNS int LANGUAGE sql AS $$SELECT 1$$; CREATE OPERATOR + (FUNCTION = plus, LEFTARG = mood, RIGHTARG = mood)";
    let domain = "CREATE DOMAIN whole AS int; CREATE DOMAIN wholes AS whole[]; CREATE DOMAIN felt AS mood";
    let owned = |what: &str| format!("ALTER EXTENSION plpgsql ADD {what}");
    let (lowers, pluses) = (owned("FUNCTION lower(mood)"), owned("OPERATOR + (mood, mood)"));
    // An extension's `lower` for this type.
    let lower_of = |args: &str| {
        let (lower, args_alone) =
            (lower.replace("(mood)", &format!("({args})")), args.replace("VARIADIC ", ""));
        format!("{domain}; {lower}; {}", owned(&format!("FUNCTION lower({args_alone})")))
    };
    for (setup, others) in [
        ("SELECT 1".to_owned(), false),
        (lower.to_owned(), true),
        (plus.to_owned(), true),
        (lower.replace("(mood)", "()"), true),
        (format!("{domain}; {}", lower.replace("mood)", "whole)")), true),
        (format!("{lower}; {lowers}"), false),
        (format!("{plus}; {pluses}"), false),
        (format!("{plus}; {pluses}; {cast}"), false),
        (format!("{plus}; {pluses}; {cast} AS IMPLICIT"), true),
        (format!("{lower}; {lowers}; {cast} AS IMPLICIT"), true),
        (format!("{}; {cast} AS IMPLICIT", lower_of("felt[]")), true),
        (lower_of(""), false),
        (lower_of("felt"), false),
        (lower_of("felt[]"), false),
        (lower_of("whole"), true),
        (lower_of("wholes"), true),
        (lower_of("VARIADIC whole[]"), true),
        (lower_of("mood, int"), true),
        (lower_of("anyelement"), true),
        (lower.replace("lower(mood)", "upper(int)"), false),
        (
            "CREATE SCHEMA s; CREATE FUNCTION s.lower(int) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$"
                .to_owned(),
            true,
        ),
        ("CREATE CAST (date AS text) WITH INOUT AS IMPLICIT".to_owned(), true),
        ("CREATE CAST (mood AS text) WITH INOUT AS IMPLICIT".to_owned(), false),
    ] {
        let database = server.fresh_database("CREATE TYPE mood AS ENUM ('ok')");
        let mut raw = Raw::login(server.port(), &database);
        raw.rows(&setup);
        let mut asked = |names: &str| {
            let messages = raw.extended(catalog::NAMES_SQL, &[Some(names)]);
            let row = messages.iter().find(|m| m.tag == backend::DATA_ROW).expect("a row");
            row.row()[0].clone().expect("a text")
        };
        assert_eq!(asked(r#"{"","lower","+"}"#), if others { " others" } else { "" }, "{setup}");
        assert_eq!(asked("{}"), "", "{setup}");
    }
}
