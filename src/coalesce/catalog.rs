//! What the catalogue says of a table: may its INSERTs leave as a COPY, and if not, why.
//!
//! Owns: the queries that ask, the decoding of what they answer, the fingerprint that tells whether the answer
//! still holds, and the reasons for a refusal. Never: a socket, a cache, a clock.
//!
//! The queries run in a client's own session, under its `search_path`, because that is where its names mean what
//! the client meant. So every relation, function, type and operator in them is written with its schema, and none of
//! the constructs that look an operator up by its bare name (`IN`, `BETWEEN`, `IS DISTINCT FROM`, `USING`, `CASE x
//! WHEN`) is used: a schema that shadows `=` or `now()` cannot change an answer. Regular expressions avoid the
//! backslash, so `standard_conforming_strings` does not matter either.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::wire::Oid;
use crate::wire::backend::ErrorFields;

/// Most columns a heap table can have (`MaxHeapAttributeNumber`).
pub const COLUMNS_MAX: usize = 1600;

/// Longest identifier that PostgreSQL keeps whole (bytes); a longer one is cut with a notice to the client.
pub const IDENTIFIER_BYTES_MAX: usize = 63;

/// What stands in the guard's error, so that it can be told from the error of a client's row.
const GUARD_MARK: &str = "pgsluice: the table changed";

/// The common table expressions that both queries read: relation `r`, with its partitions `rels`, these and what it is itself a
/// partition of `keyed`, its columns and the chains of domains below them. `$1` of the macro is an SQL expression for the relation's oid.
macro_rules! relation_ctes {
    ($relid:literal) => {
        concat!(
            "r AS (
  SELECT c.* FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) ",
            $relid,
            "
), rels AS (
  SELECT r.oid AS relid FROM r
  UNION SELECT p.relid::pg_catalog.oid FROM r, LATERAL pg_catalog.pg_partition_tree(r.oid::pg_catalog.regclass) p
   WHERE r.relkind OPERATOR(pg_catalog.=) 'p'
), keyed AS (
  SELECT l.relid FROM rels l
  UNION SELECT p.relid::pg_catalog.oid FROM r, LATERAL pg_catalog.pg_partition_ancestors(r.oid::pg_catalog.regclass) p
), dom AS (
  SELECT a.attnum, t.oid AS typ, t.typtype, t.typbasetype, t.typnotnull, 0 AS depth
    FROM r JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) r.oid
    JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
   WHERE a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
  UNION ALL
  SELECT d.attnum, t.oid, t.typtype, t.typbasetype, t.typnotnull, d.depth OPERATOR(pg_catalog.+) 1
    FROM dom d JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) d.typbasetype
   WHERE d.typtype OPERATOR(pg_catalog.=) 'd'
)"
        )
    };
}

/// The types whose casts to a column's type are looked at: texts, and arrays of integers and of texts.
macro_rules! read_by_casts {
    () => {
        "ARRAY[25, 1043, 1005, 1007, 1016, 1009, 1015]::pg_catalog.oid[]"
    };
}

/// One catalogue's rows as text: oid, row version and place change with every DDL that touches them.
macro_rules! versions {
    ($key:literal, $table:literal, $($filter:expr),+) => {
        concat!(
            "(SELECT pg_catalog.string_agg(pg_catalog.concat_ws(':', ",
            $key,
            ", x.xmin, x.ctid), ',' ORDER BY x.ctid) FROM pg_catalog.",
            $table,
            " x WHERE ",
            $($filter,)+
            ")"
        )
    };
}

/// The fingerprint: changes with any DDL that could change an answer of [`ELIGIBILITY_SQL`], and not with ANALYZE,
/// VACUUM or a storage parameter. Two 64-bit hashes, since `md5()` fails where the server's OpenSSL runs in FIPS mode.
/// The same text in both queries; `pg_class.xmin` alone would miss SET DEFAULT, a second trigger and others.
/// A schema that is renamed and renamed back has another version, too: between the two the name meant another table.
macro_rules! fingerprint_query {
    () => {
        concat!(
            "SELECT pg_catalog.concat(
  pg_catalog.to_hex(pg_catalog.hashtextextended(z.t COLLATE pg_catalog.\"C\", 0)), '-',
  pg_catalog.to_hex(pg_catalog.hashtextextended(z.t COLLATE pg_catalog.\"C\", 1))) AS f
  FROM (SELECT pg_catalog.concat_ws('|', r.relname, r.relnamespace,
    (SELECT pg_catalog.concat_ws(':', n.nspname, n.xmin, n.ctid) FROM pg_catalog.pg_namespace n WHERE n.oid OPERATOR(pg_catalog.=) r.relnamespace), r.relkind, r.relpersistence, r.relam, r.relowner,
    r.relacl, r.relhasrules, r.relhastriggers, r.relrowsecurity, r.relforcerowsecurity, r.relispartition,
    (SELECT pg_catalog.string_agg(l.relid::pg_catalog.text, ',' ORDER BY l.relid) FROM keyed l), '#',\n    ",
            versions!(
                "x.attrelid, x.attnum",
                "pg_attribute",
                "x.attrelid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT l.relid FROM rels l)) AND x.attnum OPERATOR(pg_catalog.>) 0"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_trigger",
                "x.tgrelid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT l.relid FROM rels l))"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_rewrite",
                "x.ev_class OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT l.relid FROM rels l))"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_constraint",
                "x.conrelid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT l.relid FROM rels l))"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_constraint",
                "x.contypid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT d.typ FROM dom d WHERE d.typ OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid))"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_type",
                "x.oid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT d.typ FROM dom d WHERE d.typ OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid))"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_cast",
                "x.castsource OPERATOR(pg_catalog.=) ANY (",
                read_by_casts!(),
                ") AND x.casttarget OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT d.typ FROM dom d))"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_cast",
                "x.casttarget OPERATOR(pg_catalog.=) 25::pg_catalog.oid AND x.castsource OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT d.typ FROM dom d WHERE d.typ OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid))"
            ),
            ", '#',\n    ",
            versions!(
                "x.oid",
                "pg_attrdef",
                "x.adrelid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT l.relid FROM rels l))"
            ),
            ", '#',\n    ",
            versions!(
                "x.indexrelid",
                "pg_index",
                "x.indrelid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT l.relid FROM rels l))"
            ),
            ") FROM r) z(t)"
        )
    };
}

/// What each of these names of types means to the session: its oid, with a blank before it; nothing for one that means none.
macro_rules! types_query {
    ($names:literal) => {
        concat!(
            "SELECT pg_catalog.string_agg(pg_catalog.concat(' ', pg_catalog.to_regtype(n.name)::pg_catalog.oid), '' ORDER BY n.at)
     FROM pg_catalog.unnest(",
            $names,
            ") WITH ORDINALITY n(name, at)"
        )
    };
}

/// Asks for types. `$1`: an array of their names. Answers one row of one text column ([`decode_types`]).
pub const TYPES_SQL: &str = types_query!("$1::pg_catalog.text[]");

/// What [`TYPES_SQL`] answered for so many names. Errors: one of them means no type.
pub fn decode_types(names: usize, columns: &[Option<&[u8]>]) -> Result<Vec<Oid>, Reason> {
    let answer = std::str::from_utf8(only_column(columns)?).map_err(|_| Reason::Malformed("types"))?;
    let oids: Vec<Oid> = answer.split_ascii_whitespace().filter_map(|oid| oid.parse().ok()).collect();
    if oids.len() == names { Ok(oids) } else { Err(Reason::NoSuchType) }
}

/// Asks for one table. `$1`: its name as [`lookup_name`] writes it, resolved by the session that asks. Answers one row
/// of one text column, JSON; the relation is `null` there when the name resolves to nothing. Takes 5 to 10 ms.
///
/// `to_regclass` itself fails for a schema that the role may not use; that error is a refusal too.
pub const ELIGIBILITY_SQL: &str = concat!(
    "WITH RECURSIVE named AS MATERIALIZED (SELECT pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid AS relid), ",
    relation_ctes!("(SELECT n.relid FROM named n)"),
    ", fingerprint AS (",
    fingerprint_query!(),
    "), base AS (
  SELECT DISTINCT ON (d.attnum) d.attnum, t.oid AS typ, t.typtype, t.typname, e.oid AS elem, e.typtype AS elemkind
    FROM dom d JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) d.typ
    LEFT JOIN pg_catalog.pg_type e ON e.oid OPERATOR(pg_catalog.=) t.typelem AND e.typarray OPERATOR(pg_catalog.=) t.oid
   ORDER BY d.attnum, d.depth DESC
), expr AS (
  SELECT CASE WHEN a.attgenerated OPERATOR(pg_catalog.<>) '' THEN 'generated' ELSE 'default' END AS what,
         d.adnum AS attnum, d.adbin::pg_catalog.text AS node
    FROM rels l JOIN pg_catalog.pg_attrdef d ON d.adrelid OPERATOR(pg_catalog.=) l.relid
    JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) d.adrelid AND a.attnum OPERATOR(pg_catalog.=) d.adnum
   WHERE l.relid OPERATOR(pg_catalog.=) (SELECT n.relid FROM named n) OR a.attgenerated OPERATOR(pg_catalog.<>) ''
  UNION ALL SELECT 'default', d.attnum, t.typdefaultbin::pg_catalog.text
    FROM dom d JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) d.typ WHERE t.typdefaultbin IS NOT NULL
  UNION ALL SELECT 'check', NULL::pg_catalog.int2, k.conbin::pg_catalog.text
    FROM rels l JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) l.relid AND k.contype OPERATOR(pg_catalog.=) 'c'
  UNION ALL SELECT 'domain', d.attnum, k.conbin::pg_catalog.text
    FROM dom d JOIN pg_catalog.pg_constraint k ON k.contypid OPERATOR(pg_catalog.=) d.typ AND k.contype OPERATOR(pg_catalog.=) 'c'
  UNION ALL SELECT 'index', NULL, i.indexprs::pg_catalog.text
    FROM rels l JOIN pg_catalog.pg_index i ON i.indrelid OPERATOR(pg_catalog.=) l.relid WHERE i.indexprs IS NOT NULL
  UNION ALL SELECT 'index', NULL, i.indpred::pg_catalog.text
    FROM rels l JOIN pg_catalog.pg_index i ON i.indrelid OPERATOR(pg_catalog.=) l.relid WHERE i.indpred IS NOT NULL
  UNION ALL SELECT 'partition key', NULL, p.partexprs::pg_catalog.text
    FROM keyed l JOIN pg_catalog.pg_partitioned_table p ON p.partrelid OPERATOR(pg_catalog.=) l.relid WHERE p.partexprs IS NOT NULL
), opclass AS (
  SELECT o.oid FROM rels l JOIN pg_catalog.pg_index i ON i.indrelid OPERATOR(pg_catalog.=) l.relid, pg_catalog.unnest(i.indclass::pg_catalog.oid[]) o(oid)
  UNION SELECT o.oid FROM keyed l JOIN pg_catalog.pg_partitioned_table p ON p.partrelid OPERATOR(pg_catalog.=) l.relid, pg_catalog.unnest(p.partclass::pg_catalog.oid[]) o(oid)
), fn AS (
  SELECT e.what, e.attnum, x.m[1]::pg_catalog.oid AS f
    FROM expr e, LATERAL pg_catalog.regexp_matches(e.node, ':(?:funcid|opfuncid|negfuncid|hashfuncid|aggfnoid|winfnoid) ([0-9]+)', 'g') x(m)
   WHERE x.m[1] OPERATOR(pg_catalog.<>) '0'
  UNION SELECT e.what, e.attnum, o.oprcode::pg_catalog.oid
    FROM expr e, LATERAL pg_catalog.regexp_matches(e.node, ':opno ([0-9]+)', 'g') x(m), pg_catalog.pg_operator o
   WHERE o.oid OPERATOR(pg_catalog.=) x.m[1]::pg_catalog.oid
  UNION SELECT 'exclusion', NULL, o.oprcode::pg_catalog.oid
    FROM rels l JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) l.relid AND k.contype OPERATOR(pg_catalog.=) 'x',
         LATERAL pg_catalog.unnest(k.conexclop) x(op), pg_catalog.pg_operator o WHERE o.oid OPERATOR(pg_catalog.=) x.op
  UNION SELECT 'operator class', NULL, ap.amproc::pg_catalog.oid
    FROM opclass oc JOIN pg_catalog.pg_opclass c ON c.oid OPERATOR(pg_catalog.=) oc.oid AND c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
    JOIN pg_catalog.pg_amproc ap ON ap.amprocfamily OPERATOR(pg_catalog.=) c.opcfamily
), bad AS (
  SELECT fn.what, fn.attnum,
         pg_catalog.concat(CASE WHEN p.oid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid THEN 'pg_catalog.' ELSE 'user ' END,
                           p.proname, '(', p.provolatile, ')') AS why
    FROM fn JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) fn.f
    JOIN pg_catalog.pg_language g ON g.oid OPERATOR(pg_catalog.=) p.prolang
   WHERE p.provolatile OPERATOR(pg_catalog.<>) 'i'
      OR (p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND g.lanname OPERATOR(pg_catalog.<>) ALL (ARRAY['internal', 'c']::pg_catalog.name[]))
  UNION SELECT e.what, e.attnum, x.m[1]
    FROM expr e, LATERAL pg_catalog.regexp_matches(e.node, '[{]([A-Z_]+)', 'g') x(m)
   WHERE x.m[1] OPERATOR(pg_catalog.<>) ALL ('{SQLVALUEFUNCTION,CONST,VAR,OPEXPR,FUNCEXPR,BOOLEXPR,NULLTEST,BOOLEANTEST,SCALARARRAYOPEXPR,CASE,CASEEXPR,WHEN,CASEWHEN,CASETESTEXPR,RELABELTYPE,COALESCE,COALESCEEXPR,MINMAX,MINMAXEXPR,NULLIFEXPR,DISTINCTEXPR,ARRAY,ARRAYEXPR,ARRAYCOERCEEXPR,SUBSCRIPTINGREF,COERCETODOMAINVALUE,COLLATEEXPR,COLLATE,NEXTVALUEEXPR,ROW,ROWEXPR,FIELDSELECT}'::pg_catalog.text[])
  UNION SELECT e.what, e.attnum, pg_catalog.concat('SQLVALUEFUNCTION ', x.m[1])
    FROM expr e, LATERAL pg_catalog.regexp_matches(e.node, '[{]SQLVALUEFUNCTION :op ([0-9]+)', 'g') x(m)
), self_fk AS (
  SELECT k.conrelid, k.conparentid, k.conkey FROM r, rels l, pg_catalog.pg_constraint k
   WHERE k.conrelid OPERATOR(pg_catalog.=) l.relid AND k.contype OPERATOR(pg_catalog.=) 'f' AND (
     k.confrelid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT l2.relid FROM rels l2))
     OR EXISTS (SELECT 1 FROM pg_catalog.pg_partition_ancestors(r.oid::pg_catalog.regclass) z WHERE z.relid OPERATOR(pg_catalog.=) k.confrelid)
     OR EXISTS (SELECT 1 FROM pg_catalog.pg_inherits h WHERE h.inhparent OPERATOR(pg_catalog.=) k.confrelid AND h.inhrelid OPERATOR(pg_catalog.=) r.oid))
), stops AS (
  SELECT 'kind' AS stop, NULL::pg_catalog.text AS detail FROM r WHERE r.relkind OPERATOR(pg_catalog.<>) ALL (ARRAY['r','p']::pg_catalog.\"char\"[])
  UNION ALL SELECT 'system', NULL FROM r WHERE r.oid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid
  UNION ALL SELECT 'temporary', NULL FROM r WHERE r.relpersistence OPERATOR(pg_catalog.=) 't'
  UNION ALL SELECT 'method', m.amname::pg_catalog.text FROM r LEFT JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) r.relam
     WHERE r.relkind OPERATOR(pg_catalog.=) 'r' AND COALESCE(m.amname OPERATOR(pg_catalog.<>) 'heap', true)
  UNION ALL SELECT 'partition', pg_catalog.min(c.relname::pg_catalog.text) FROM r, rels l JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) l.relid
     LEFT JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) c.relam
     WHERE l.relid OPERATOR(pg_catalog.<>) r.oid AND (c.relkind OPERATOR(pg_catalog.<>) ALL (ARRAY['r','p']::pg_catalog.\"char\"[])
       OR (c.relkind OPERATOR(pg_catalog.=) 'r' AND COALESCE(m.amname OPERATOR(pg_catalog.<>) 'heap', true)) OR c.relpersistence OPERATOR(pg_catalog.=) 't')
     HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
  UNION ALL SELECT 'rule', pg_catalog.min(w.rulename::pg_catalog.text) FROM r JOIN pg_catalog.pg_rewrite w ON w.ev_class OPERATOR(pg_catalog.=) r.oid
     WHERE w.ev_type OPERATOR(pg_catalog.=) '3' HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
  UNION ALL SELECT 'trigger', pg_catalog.min(g.tgname::pg_catalog.text) FROM rels l JOIN pg_catalog.pg_trigger g ON g.tgrelid OPERATOR(pg_catalog.=) l.relid
     WHERE (g.tgtype OPERATOR(pg_catalog.&) 4::pg_catalog.int2) OPERATOR(pg_catalog.<>) 0
       AND NOT (g.tgisinternal AND g.tgfoid OPERATOR(pg_catalog.=) ANY (ARRAY[1250, 1644]::pg_catalog.oid[]))
     HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
  UNION ALL SELECT 'row security', NULL FROM r WHERE pg_catalog.row_security_active(r.oid)
  UNION ALL SELECT 'schema usage', NULL FROM r WHERE NOT pg_catalog.has_schema_privilege(r.relnamespace, 'USAGE'::pg_catalog.text)
  UNION ALL SELECT 'self foreign key', NULL FROM r WHERE EXISTS (SELECT 1 FROM self_fk s
     WHERE s.conrelid OPERATOR(pg_catalog.<>) r.oid AND s.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid)
  UNION ALL SELECT 'expression', pg_catalog.min(pg_catalog.concat(b.what, ': ', b.why)) FROM bad b
     WHERE b.what OPERATOR(pg_catalog.<>) 'default' HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
)
SELECT pg_catalog.json_build_object(
  'relid', (SELECT r.oid::pg_catalog.int8 FROM r),
  'schema', (SELECT n.nspname FROM r JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) r.relnamespace),
  'table', (SELECT r.relname FROM r),
  'relkind', (SELECT r.relkind::pg_catalog.text FROM r),
  'fingerprint', (SELECT f.f FROM fingerprint f),
  'stops', (SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_array(s.stop, s.detail)), '[]') FROM stops s),
  'self_fk', (SELECT COALESCE(pg_catalog.json_agg(DISTINCT u.n), '[]') FROM r, self_fk s, LATERAL pg_catalog.unnest(s.conkey) u(n)
               WHERE s.conrelid OPERATOR(pg_catalog.=) r.oid),
  'quiet', NOT EXISTS (SELECT 1 FROM fn JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) fn.f
     WHERE p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid OR p.proname::pg_catalog.text OPERATOR(pg_catalog.~~) '%ts%'::pg_catalog.text),
  'root', (SELECT COALESCE(pg_catalog.pg_partition_root(r.oid::pg_catalog.regclass)::pg_catalog.oid, r.oid)::pg_catalog.int8 FROM r),
  'references', (SELECT COALESCE(pg_catalog.json_agg(DISTINCT
                   COALESCE(pg_catalog.pg_partition_root(k.confrelid::pg_catalog.regclass)::pg_catalog.oid, k.confrelid)::pg_catalog.int8), '[]')
               FROM rels l JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) l.relid
              WHERE k.contype OPERATOR(pg_catalog.=) 'f'),
  'user', CURRENT_USER, 'session_user', SESSION_USER,
  'search_path', pg_catalog.current_setting('search_path'),
  'temporary', pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid,
  'columns', (SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_object(
      'attnum', a.attnum, 'name', a.attname, 'type', a.atttypid::pg_catalog.int8, 'typmod', a.atttypmod,
      'base', b.typ::pg_catalog.int8, 'base_name', b.typname, 'kind', b.typtype::pg_catalog.text,
      'elem', COALESCE(b.elem::pg_catalog.int8, 0), 'elem_kind', COALESCE(b.elemkind::pg_catalog.text, ''),
      'notnull', a.attnotnull, 'identity', a.attidentity::pg_catalog.text, 'generated', a.attgenerated::pg_catalog.text,
      'may_insert', pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'INSERT'::pg_catalog.text),
      'domain_null_check', EXISTS (SELECT 1 FROM dom d WHERE d.attnum OPERATOR(pg_catalog.=) a.attnum AND d.typtype OPERATOR(pg_catalog.=) 'd'
         AND (d.typnotnull OR EXISTS (SELECT 1 FROM pg_catalog.pg_constraint k WHERE k.contypid OPERATOR(pg_catalog.=) d.typ))),
      'cast_from_text', EXISTS (SELECT 1 FROM pg_catalog.pg_cast k WHERE k.castmethod OPERATOR(pg_catalog.<>) 'i'
         AND k.castsource OPERATOR(pg_catalog.=) ANY (",
    read_by_casts!(),
    ") AND k.casttarget OPERATOR(pg_catalog.=) b.typ),
      'cast_to_text', EXISTS (SELECT 1 FROM pg_catalog.pg_cast k WHERE k.castmethod OPERATOR(pg_catalog.<>) 'i'
         AND k.castsource OPERATOR(pg_catalog.=) b.typ AND k.casttarget OPERATOR(pg_catalog.=) 25::pg_catalog.oid),
      'has_default', EXISTS (SELECT 1 FROM expr e WHERE e.attnum OPERATOR(pg_catalog.=) a.attnum AND e.what OPERATOR(pg_catalog.=) 'default'),
      'default_whys', (SELECT COALESCE(pg_catalog.json_agg(x.why ORDER BY x.why), '[]') FROM bad x
         WHERE x.attnum OPERATOR(pg_catalog.=) a.attnum AND x.what OPERATOR(pg_catalog.=) 'default' AND x.why OPERATOR(pg_catalog.<>) 'SQLVALUEFUNCTION'))
      ORDER BY a.attnum), '[]')
    FROM r JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) r.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
    JOIN base b ON b.attnum OPERATOR(pg_catalog.=) a.attnum))::pg_catalog.text"
);

/// Verifies, inside the flush's transaction and after COPY took its lock, that the table is still the one that was planned
/// for: fingerprint and the meaning of the name. Prepared once for each server connection.
///
/// `$1` relid, `$2` the name as [`lookup_name`] wrote it, `$3` the known fingerprint, with what [`TYPES_SQL`] answered behind it,
/// `$4` the names of types; all may be sent as text. Answers one
/// row: the transaction's id as text ([`decode_guard`]). Anything else is an **error** ([`is_guard_error`]), so the
/// transaction cannot commit. `$2` is resolved by the flush's own `search_path`: it must be the clients' own, or `$2` a qualified name.
///
/// It fails, too, where what is no part of the table has changed:
/// - the isolation level (ALTER ROLE, ALTER SYSTEM): what is looked at then is older than COPY's lock;
/// - row security, which applies to the role once that has lost BYPASSRLS, SUPERUSER or its membership in the owner: a COPY would fail of
///   itself, but an INSERT that was prepared before is not planned again for that;
/// - what a backslash in the clients' strings means (ALTER SYSTEM and a reload): of who is only poured none would hear of it.
pub fn guard_sql() -> &'static str {
    // The text under the cast is never a constant, so it is not folded (and raised) while planning; and it is int4's input
    // that raises: xid8's takes any text for zero before PostgreSQL 16.
    const SQL: &str = concat!(
        "WITH RECURSIVE ",
        relation_ctes!("$1::pg_catalog.oid"),
        ", found AS MATERIALIZED (SELECT (SELECT q.f FROM (",
        fingerprint_query!(),
        ") q) AS f) SELECT CASE WHEN pg_catalog.concat(found.f, (",
        types_query!("$4::pg_catalog.text[]"),
        ")) OPERATOR(pg_catalog.=) $3::pg_catalog.text
   AND pg_catalog.to_regclass($2::pg_catalog.text)::pg_catalog.oid OPERATOR(pg_catalog.=) $1::pg_catalog.oid
   AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
   AND NOT pg_catalog.row_security_active($1::pg_catalog.oid)
   AND pg_catalog.current_setting('standard_conforming_strings') OPERATOR(pg_catalog.=) 'on'
  THEN pg_catalog.pg_current_xact_id()::pg_catalog.text
  ELSE pg_catalog.concat('pgsluice: the table changed ', found.f)::pg_catalog.int4::pg_catalog.text END FROM found"
    );
    SQL
}

/// A far cheaper guard, for a connection on which [`guard_sql`] has succeeded before: has PostgreSQL analysed this statement
/// again since then? It does so whenever the table's definition was invalidated (each of the changes in the fingerprint
/// invalidates it; ANALYZE and VACUUM do, too), and then reads `'now'` again, which is a constant otherwise.
///
/// For one table or several. `$1` the mark that was answered last time, NULL the first time; then for each table its name as
/// [`lookup_name`] wrote it, and its relid. Answers one row: the transaction's id and the mark ([`decode_sentinel`]); a mark that moved is an error
/// ([`is_guard_error`]), and then only the full guard can tell whether the table changed. A mark tells nothing in the transaction
/// in which it was taken: all that is analysed there has the same `'now'`.
///
/// Not for partitioned tables (a leaf's change does not invalidate the parent) nor for columns of domains and other types of
/// users (ALTER DOMAIN invalidates no table): see [`Table::has_sentinel`]. The role needs SELECT.
pub fn sentinel_sql<'a>(targets: impl IntoIterator<Item = &'a str>) -> String {
    let mut sql = String::from(
        "SELECT CASE WHEN ($1::pg_catalog.text IS NULL OR s.mark OPERATOR(pg_catalog.=) $1::pg_catalog.text)
   AND pg_catalog.current_setting('standard_conforming_strings') OPERATOR(pg_catalog.=) 'on'",
    );
    for (at, target) in targets.into_iter().enumerate() {
        let (name, relid) = (2 * at + 2, 2 * at + 3);
        let _ = write!(
            sql,
            "
   AND pg_catalog.to_regclass(${name}::pg_catalog.text)::pg_catalog.oid OPERATOR(pg_catalog.=) ${relid}::pg_catalog.oid
   AND NOT pg_catalog.row_security_active(${relid}::pg_catalog.oid)
   AND NOT EXISTS (SELECT 1 FROM ONLY {target} WHERE false)"
        );
    }
    sql.push_str(
        "
  THEN pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', s.mark)
  ELSE pg_catalog.concat('pgsluice: the table changed ', s.mark)::pg_catalog.int4::pg_catalog.text END
FROM (SELECT (EXTRACT(epoch FROM 'now'::pg_catalog.timestamptz) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8::pg_catalog.text
        AS mark) s",
    );
    sql
}

/// What [`sentinel_sql`] answered: the transaction's id and the mark.
pub fn decode_sentinel<'a>(columns: &[Option<&'a [u8]>]) -> Option<(u64, &'a str)> {
    let [Some(answer)] = columns else { return None };
    let (xid, mark) = std::str::from_utf8(answer).ok()?.split_once(' ')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits(mark) && mark.len() <= 20 { Some((xid.parse().ok()?, mark)) } else { None }
}

/// What [`guard_sql`] answered: the transaction's id, digits only.
pub fn decode_guard(columns: &[Option<&[u8]>]) -> Option<u64> {
    match columns {
        [Some(xid)] if !xid.is_empty() && xid.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(xid).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// Is this the guard's own error: the table, or what its name means, changed since it was planned for?
pub fn is_guard_error(fields: &ErrorFields<'_>) -> bool {
    let Some(message) = fields.field(b'M') else { return false };
    fields.sqlstate() == b"22P02" && memchr::memmem::find(message, GUARD_MARK.as_bytes()).is_some()
}

/// Which life of which server this is. Read once for each server connection (a connection lives in one incarnation only), and
/// again on a new connection before [`STATUS_SQL`] may be believed: after a crash, transaction ids are handed out again.
///
/// The postmaster's start alone is not enough: it survives the restart of all backends after one of them crashed. The reset
/// time of the background writer's statistics does not (it also moves with `pg_stat_reset_shared`, which is harmless here).
pub const INCARNATION_SQL: &str = "SELECT pg_catalog.concat_ws(' ',
  (SELECT s.system_identifier FROM pg_catalog.pg_control_system() s),
  (SELECT c.timeline_id FROM pg_catalog.pg_control_checkpoint() c),
  (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8,
  (EXTRACT(epoch FROM pg_catalog.pg_stat_get_bgwriter_stat_reset_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8)";

/// How a transaction ended. `$1`: its id as text, digits only (what [`decode_guard`] gave). Answers `committed`, `aborted`,
/// `in progress`, or NULL when it is too old to say.
///
/// Also NULL where the server would not have said, with this session's settings, that it gave up waiting for a synchronous standby.
pub const STATUS_SQL: &str = "SELECT CASE
  WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error'
    AND pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) '' THEN NULL
  ELSE pg_catalog.pg_xact_status($1::pg_catalog.text::pg_catalog.xid8)::pg_catalog.text END";

/// Asks a session for everything that two sessions must agree on to share a batch. One row of one text column, JSON
/// ([`decode_session`]). Far below a millisecond.
pub const SESSION_SQL: &str = "SELECT pg_catalog.json_build_object(
  'user', CURRENT_USER, 'session_user', SESSION_USER, 'search_path', pg_catalog.current_setting('search_path'),
  'temporary', pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid,
  'settings', (SELECT pg_catalog.json_object_agg(s.name, pg_catalog.current_setting(s.name, true)) FROM pg_catalog.unnest(
    '{DateStyle,IntervalStyle,TimeZone,timezone_abbreviations,array_nulls,xmloption,lc_monetary,client_encoding,synchronous_commit,default_toast_compression,row_security,default_transaction_isolation,default_transaction_read_only,default_transaction_deferrable,transaction_isolation,transaction_read_only,session_replication_role,standard_conforming_strings,backslash_quote,client_min_messages}'::pg_catalog.text[]) s(name)))::pg_catalog.text";

/// Appends an identifier in double quotes.
pub fn put_identifier(out: &mut String, name: &str) {
    out.push('"');
    for c in name.chars() {
        if c == '"' {
            out.push('"');
        }
        out.push(c);
    }
    out.push('"');
}

/// A relation's name as `$1` of [`ELIGIBILITY_SQL`]: the identifiers as decoded from the statement, quoted.
pub fn lookup_name(schema: Option<&str>, table: &str) -> String {
    let mut name = String::with_capacity(table.len() + 8);
    if let Some(schema) = schema {
        put_identifier(&mut name, schema);
        name.push('.');
    }
    put_identifier(&mut name, table);
    name
}

/// A table as one session saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its oid.
    pub relid: Oid,
    /// `"schema"."table"`, quoted: what a COPY names.
    pub target: String,
    /// The table's own name, unquoted: COPY prints it so in its CONTEXT lines.
    pub relname: String,
    /// The name that was looked up ([`lookup_name`]).
    pub name_as_written: String,
    /// Compared by [`guard_sql`] at each flush.
    pub fingerprint: String,
    /// It has partitions.
    pub partitioned: bool,
    /// Why nothing may be poured into it, whatever the statement. Kept with the fingerprint, so that it may be asked again.
    pub refused: Option<Reason>,
    /// Columns of its foreign keys to itself (attribute numbers).
    pub self_fk: Vec<i16>,
    /// Nothing that it computes sends a notice: no function of users (extensions'), none of text search.
    pub quiet: bool,
    /// The partitioned table that it is a part of, or itself.
    pub root: Oid,
    /// What its foreign keys, and those of its partitions, refer to (each one's root).
    pub references: Vec<Oid>,
    /// The live columns, by attribute number.
    pub columns: Vec<Column>,
    /// Who asked. Privileges and row security hold for this role only, the name for this `search_path` only.
    pub viewer: Viewer,
}

/// The first oid of objects that users made.
pub(super) const FIRST_USER_OID: Oid = 16384;

impl Table {
    /// May [`sentinel_sql`] stand in for the full guard?
    pub fn has_sentinel(&self) -> bool {
        !self.partitioned && self.columns.iter().all(|c| c.type_oid < FIRST_USER_OID)
    }

    /// The column of that name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }
}

/// Who asked for a table, and how its session resolves names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Viewer {
    /// `current_user`.
    pub user: String,
    /// `session_user`.
    pub session_user: String,
    /// `search_path`, as set.
    pub search_path: String,
    /// The session has a temporary schema: a name may be shadowed at any moment.
    pub temporary_schema: bool,
}

/// `pg_type.typtype` at the bottom of a column's chain of domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeKind {
    /// `b`
    Base,
    /// `c`
    Composite,
    /// `e`
    Enum,
    /// `r`
    Range,
    /// `m`
    Multirange,
    /// `d`: only for the elements of an array.
    Domain,
    /// `p`, or a letter that is not known yet.
    Other,
}

impl TypeKind {
    fn from_letter(letter: &str) -> Self {
        match letter {
            "b" => Self::Base,
            "c" => Self::Composite,
            "e" => Self::Enum,
            "r" => Self::Range,
            "m" => Self::Multirange,
            "d" => Self::Domain,
            _ => Self::Other,
        }
    }
}

/// `pg_attribute.attidentity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Not an identity column.
    No,
    /// GENERATED ALWAYS: INSERT refuses a value, COPY would store it.
    Always,
    /// GENERATED BY DEFAULT.
    ByDefault,
}

/// What a column gets when the INSERT does not name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultKind {
    /// NULL.
    None,
    /// The same value in whatever transaction or session of the same settings.
    Immutable,
    /// Another value for each row, in both ways alike (`clock_timestamp()`, `gen_random_uuid()`, `uuidv7()`).
    PerRow,
    /// A generated column.
    Generated,
    /// Draws from a sequence.
    Sequence,
    /// The transaction's time: each client its own, so at most one unit of a client shares a batch.
    TransactionTime,
    /// Reads what a batch cannot reproduce; the functions or nodes that do.
    Other(String),
}

/// One live column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Attribute number, 1 and up.
    pub attnum: i16,
    /// Its name.
    pub name: String,
    /// The name in double quotes.
    pub quoted: String,
    /// Its type; a domain's own oid for a domain.
    pub type_oid: Oid,
    /// The type below all domains.
    pub base_oid: Oid,
    /// The base type's name, for messages.
    pub base_name: String,
    /// The modifier; -1: none.
    pub typmod: i32,
    /// Kind of the base type.
    pub kind: TypeKind,
    /// Element type, 0 unless the base type is an array.
    pub elem_oid: Oid,
    /// Kind of the element type.
    pub elem_kind: TypeKind,
    /// NOT NULL of the column itself.
    pub notnull: bool,
    /// Identity.
    pub identity: Identity,
    /// A generated column.
    pub generated: bool,
    /// The role may insert into it.
    pub may_insert: bool,
    /// A domain with NOT NULL or a CHECK: left out, COPY stores NULL in it without a look.
    pub domain_null_check: bool,
    /// There is a function, a user's perhaps, for the cast of a text, or of an array of integers or texts, to its type: it is not
    /// read by the type's own input then.
    pub cast_from_text: bool,
    /// There is one for the cast of its type to `text`.
    pub cast_to_text: bool,
    /// What it gets when left out.
    pub default: DefaultKind,
}

/// Why something is not poured. The text of each is stable: the console shows it and counters are labelled with
/// [`Reason::code`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The name means no relation here.
    NotFound,
    /// The server's answer was not what the query gives.
    Malformed(&'static str),
    /// A view, sequence, foreign table ...
    Kind,
    /// A table of the system catalogue.
    System,
    /// A temporary table.
    Temporary,
    /// An access method other than heap.
    Method(String),
    /// A partition is foreign, temporary or not a heap.
    Partition(String),
    /// A rule ON INSERT.
    Rule(String),
    /// A trigger that fires for INSERT, on the table or a partition.
    Trigger(String),
    /// Row security applies to the role.
    RowSecurity,
    /// The role has no USAGE on the schema.
    SchemaUsage,
    /// A foreign key to the table itself: COPY checks at its end, so it takes what INSERT refuses.
    SelfForeignKey,
    /// A CHECK, index, partition key or generated column uses more than native immutable functions.
    Expression(String),
    /// A stop that this version does not know.
    Unknown(String),
    /// Longer than 63 bytes: the server cuts it, with a notice to each client.
    LongIdentifier,
    /// No such column.
    NoSuchColumn(String),
    /// A column named twice.
    ColumnTwice(String),
    /// Not as many values as columns.
    ValueCount,
    /// A cast to a type without its schema, and `search_path` may hold another one of that name before pg_catalog.
    TypeNames,
    /// A cast to a type that the session does not know.
    NoSuchType,
    /// Every column takes its default: COPY needs one.
    NoColumns,
    /// The role may not insert into the column.
    ColumnPrivilege(String),
    /// A value for an identity column GENERATED ALWAYS.
    IdentityAlways(String),
    /// A value for a generated column.
    GeneratedColumn(String),
    /// A type that is not proven.
    Type {
        /// The column.
        column: String,
        /// Its base type.
        base: String,
    },
    /// A left-out column whose domain has NOT NULL or a CHECK.
    DomainLeftOut(String),
    /// A left-out column whose default reads what a batch cannot reproduce.
    Default {
        /// The column.
        column: String,
        /// The functions that do.
        why: String,
    },
    /// A left-out column draws from a sequence, and the batch runs on another connection than the session's own.
    Sequence(String),
    /// This class of literal into this type: COPY would store another value, or take what INSERT refuses.
    Literal {
        /// The column.
        column: String,
        /// The class of the literal.
        class: &'static str,
        /// The column's base type.
        base: String,
    },
    /// A literal in a prepared statement, of a type whose input depends on the session: it was read at Parse.
    FrozenLiteral(String),
    /// A parameter's resolved type is not the column's own.
    Parameter {
        /// The column.
        column: String,
        /// The parameter's resolved type.
        oid: Oid,
        /// The column's base type.
        base: String,
    },
    /// Parameters are not exactly `$1` to `$n`, each once.
    ParameterList,
    /// A session with a temporary schema.
    TemporarySchema,
    /// A session setting under which nothing is poured.
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

impl Reason {
    /// The refusal in a few fixed words; without names, so it can label a counter.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "relation not found",
            Self::Malformed(_) => "catalogue answer not understood",
            Self::Kind => "not a table",
            Self::System => "system table",
            Self::Temporary => "temporary table",
            Self::Method(_) => "table access method",
            Self::Partition(_) => "partition not a plain table",
            Self::Rule(_) => "rule on insert",
            Self::Trigger(_) => "trigger on insert",
            Self::RowSecurity => "row security",
            Self::SchemaUsage => "no usage on schema",
            Self::SelfForeignKey => "foreign key to itself",
            Self::Expression(_) => "expression not immutable",
            Self::Unknown(_) => "unknown stop",
            Self::LongIdentifier => "identifier longer than 63 bytes",
            Self::NoSuchColumn(_) => "no such column",
            Self::ColumnTwice(_) => "column named twice",
            Self::ValueCount => "number of values",
            Self::TypeNames => "search_path names pg_catalog, and a cast no schema",
            Self::NoSuchType => "no such type",
            Self::NoColumns => "no column with a value",
            Self::ColumnPrivilege(_) => "no insert privilege on column",
            Self::IdentityAlways(_) => "value for identity always",
            Self::GeneratedColumn(_) => "value for generated column",
            Self::Type { .. } => "column type",
            Self::DomainLeftOut(_) => "domain with check left out",
            Self::Default { .. } => "default not reproducible",
            Self::Sequence(_) => "default draws from a sequence",
            Self::Literal { .. } => "literal for column type",
            Self::FrozenLiteral(_) => "literal read at parse",
            Self::Parameter { .. } => "parameter type for column type",
            Self::ParameterList => "parameter list",
            Self::TemporarySchema => "session has temporary objects",
            Self::Setting { .. } => "session setting",
        }
    }

    /// The refusal of a stop that the query reported.
    fn from_stop(stop: &str, detail: Option<String>) -> Self {
        let detail = detail.unwrap_or_default();
        match stop {
            "kind" => Self::Kind,
            "system" => Self::System,
            "temporary" => Self::Temporary,
            "method" => Self::Method(detail),
            "partition" => Self::Partition(detail),
            "rule" => Self::Rule(detail),
            "trigger" => Self::Trigger(detail),
            "row security" => Self::RowSecurity,
            "schema usage" => Self::SchemaUsage,
            "self foreign key" => Self::SelfForeignKey,
            "expression" => Self::Expression(detail),
            _ => Self::Unknown(stop.to_owned()),
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code())?;
        match self {
            Self::Malformed(what) => write!(f, ": {what}"),
            Self::Method(x)
            | Self::Partition(x)
            | Self::Rule(x)
            | Self::Trigger(x)
            | Self::Expression(x)
            | Self::Unknown(x)
            | Self::NoSuchColumn(x)
            | Self::ColumnTwice(x)
            | Self::ColumnPrivilege(x)
            | Self::IdentityAlways(x)
            | Self::GeneratedColumn(x)
            | Self::DomainLeftOut(x)
            | Self::Sequence(x)
            | Self::FrozenLiteral(x) => write!(f, ": {x}"),
            Self::Type { column, base } => write!(f, ": {column} {base}"),
            Self::Default { column, why } => write!(f, ": {column} {why}"),
            Self::Literal { column, class, base } => write!(f, ": {class} into {column} {base}"),
            Self::Parameter { column, oid, base } => write!(f, ": type {oid} into {column} {base}"),
            Self::Setting { name, value } => write!(f, ": {name} = {value}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Reason {}

#[derive(Deserialize)]
struct TableAnswer {
    relid: Option<i64>,
    schema: Option<String>,
    table: Option<String>,
    relkind: Option<String>,
    fingerprint: Option<String>,
    stops: Vec<(String, Option<String>)>,
    self_fk: Vec<i16>,
    quiet: bool,
    root: Option<i64>,
    references: Vec<i64>,
    user: String,
    session_user: String,
    search_path: String,
    temporary: bool,
    columns: Vec<ColumnAnswer>,
}

#[derive(Deserialize)]
struct ColumnAnswer {
    attnum: i16,
    name: String,
    r#type: i64,
    typmod: i32,
    base: i64,
    base_name: String,
    kind: String,
    elem: i64,
    elem_kind: String,
    notnull: bool,
    identity: String,
    generated: String,
    /// `None`: the table was dropped while the query ran.
    may_insert: Option<bool>,
    domain_null_check: bool,
    cast_from_text: bool,
    cast_to_text: bool,
    has_default: bool,
    default_whys: Vec<String>,
}

/// The one text of a one-column row.
fn only_column<'a>(columns: &[Option<&'a [u8]>]) -> Result<&'a [u8], Reason> {
    match columns {
        [Some(text)] if text.len() <= crate::limits::MESSAGE_BYTES_MAX => Ok(text),
        [_] => Err(Reason::Malformed("null")),
        _ => Err(Reason::Malformed("number of columns")),
    }
}

/// Decodes the row that [`ELIGIBILITY_SQL`] answered for `name` ([`lookup_name`]).
///
/// Errors: no such relation, or an answer that the query cannot have given. A table that is refused as a whole is not an
/// error here: see [`Table::refused`].
pub fn decode(name: &str, columns: &[Option<&[u8]>]) -> Result<Table, Reason> {
    let answer: TableAnswer =
        serde_json::from_slice(only_column(columns)?).map_err(|_| Reason::Malformed("json"))?;
    let Some(relid) = answer.relid else { return Err(Reason::NotFound) };
    let (Some(schema), Some(table), Some(fingerprint)) = (answer.schema, answer.table, answer.fingerprint)
    else {
        return Err(Reason::Malformed("name or fingerprint"));
    };
    let cut = |s: &str| s.is_empty() || s.len() > IDENTIFIER_BYTES_MAX * 4 || s.contains('\0');
    if cut(&schema) || cut(&table) || cut(&fingerprint) || answer.columns.len() > COLUMNS_MAX {
        return Err(Reason::Malformed("length"));
    }
    let columns = answer.columns.into_iter().map(column).collect::<Result<Vec<_>, _>>()?;
    if !columns.is_sorted_by(|a, b| a.attnum < b.attnum) {
        return Err(Reason::Malformed("order of columns"));
    }
    let refused = answer.stops.into_iter().next().map(|(stop, detail)| Reason::from_stop(&stop, detail));
    Ok(Table {
        relid: oid(relid)?,
        target: lookup_name(Some(&schema), &table),
        relname: table,
        name_as_written: name.to_owned(),
        fingerprint,
        partitioned: answer.relkind.as_deref() != Some("r"),
        refused,
        self_fk: answer.self_fk,
        quiet: answer.quiet,
        root: answer.root.map_or(oid(relid), oid)?,
        references: answer.references.into_iter().map(oid).collect::<Result<_, _>>()?,
        columns,
        viewer: Viewer {
            user: answer.user,
            session_user: answer.session_user,
            search_path: answer.search_path,
            temporary_schema: answer.temporary,
        },
    })
}

fn oid(number: i64) -> Result<Oid, Reason> {
    Oid::try_from(number).map_err(|_| Reason::Malformed("oid"))
}

fn column(c: ColumnAnswer) -> Result<Column, Reason> {
    if c.attnum < 1 || c.name.is_empty() || c.name.contains('\0') {
        return Err(Reason::Malformed("column"));
    }
    let identity = match c.identity.as_str() {
        "" => Identity::No,
        "a" => Identity::Always,
        "d" => Identity::ByDefault,
        _ => return Err(Reason::Malformed("identity")),
    };
    let generated = !c.generated.is_empty();
    let default = match (identity, generated, c.has_default) {
        (Identity::Always | Identity::ByDefault, _, _) => DefaultKind::Sequence,
        (_, true, _) => DefaultKind::Generated,
        (_, _, false) => DefaultKind::None,
        (_, _, true) => default_kind(&c.default_whys),
    };
    let mut quoted = String::with_capacity(c.name.len() + 2);
    put_identifier(&mut quoted, &c.name);
    Ok(Column {
        attnum: c.attnum,
        quoted,
        type_oid: oid(c.r#type)?,
        base_oid: oid(c.base)?,
        base_name: c.base_name,
        typmod: c.typmod,
        kind: TypeKind::from_letter(&c.kind),
        elem_oid: oid(c.elem)?,
        elem_kind: TypeKind::from_letter(&c.elem_kind),
        notnull: c.notnull,
        identity,
        generated,
        may_insert: c.may_insert.ok_or(Reason::NotFound)?,
        domain_null_check: c.domain_null_check,
        cast_from_text: c.cast_from_text,
        cast_to_text: c.cast_to_text,
        default,
        name: c.name,
    })
}

/// What one reason against a default means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Depends on settings of the batch key alone (the time zone).
    Key,
    PerRow,
    Sequence,
    Time,
    Other,
}

/// `pg_catalog.` is written by the query only before functions that come with the server, so a user's `now()` cannot pass
/// for the real one.
fn judge_why(why: &str) -> Why {
    if let Some(number) = why.strip_prefix("SQLVALUEFUNCTION ") {
        // CURRENT_DATE, CURRENT_TIME[(n)], CURRENT_TIMESTAMP[(n)], LOCALTIME[(n)], LOCALTIMESTAMP[(n)] are 0 to 8; the
        // session's user, catalogue and schema follow.
        return if number.parse::<u8>().is_ok_and(|n| n <= 8) { Why::Time } else { Why::Other };
    }
    match why {
        "pg_catalog.now(s)" | "pg_catalog.transaction_timestamp(s)" => Why::Time,
        // timestamptz to date, timestamp, time, and back: the session's time zone decides, and it is in the key.
        "pg_catalog.date(s)"
        | "pg_catalog.timestamp(s)"
        | "pg_catalog.timestamptz(s)"
        | "pg_catalog.time(s)" => Why::Key,
        "pg_catalog.clock_timestamp(v)"
        | "pg_catalog.gen_random_uuid(v)"
        | "pg_catalog.uuidv4(v)"
        | "pg_catalog.uuidv7(v)" => Why::PerRow,
        "pg_catalog.nextval(v)" => Why::Sequence,
        _ => Why::Other,
    }
}

fn default_kind(whys: &[String]) -> DefaultKind {
    let has = |what: Why| whys.iter().any(|w| judge_why(w) == what);
    if has(Why::Other) || (has(Why::Sequence) && whys.len() > 1) {
        DefaultKind::Other(whys.join(", "))
    } else if has(Why::Sequence) {
        DefaultKind::Sequence
    } else if has(Why::Time) {
        DefaultKind::TransactionTime
    } else if has(Why::PerRow) {
        DefaultKind::PerRow
    } else {
        DefaultKind::Immutable
    }
}

/// A session, as far as it matters for sharing a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// `current_user`.
    pub user: String,
    /// `session_user`.
    pub session_user: String,
    /// `search_path`, as set.
    pub search_path: String,
    /// Users and every setting of the key, in one text: two sessions may share a batch when it is equal. `search_path` is
    /// part of it, because the guard resolves the name by the flush's own.
    pub key: String,
}

impl Session {
    /// Perhaps `search_path` says where pg_catalog stands; otherwise it comes first.
    pub fn names_catalog(&self) -> bool {
        self.search_path.to_ascii_lowercase().contains("pg_catalog")
    }
}

#[derive(Deserialize)]
struct SessionAnswer {
    user: String,
    session_user: String,
    search_path: String,
    temporary: bool,
    settings: std::collections::BTreeMap<String, Option<String>>,
}

/// Settings under which nothing is poured, with the values that are fine.
const SETTINGS_THAT_STOP: [(&str, &[&str]); 9] = [
    ("default_transaction_isolation", &["read committed"]),
    ("transaction_isolation", &["read committed"]),
    ("default_transaction_read_only", &["off"]),
    ("transaction_read_only", &["off"]),
    ("session_replication_role", &["origin"]),
    ("standard_conforming_strings", &["on"]),
    ("backslash_quote", &["safe_encoding", "on", "off"]),
    ("client_min_messages", &["notice", "warning", "error"]),
    ("row_security", &["on", "off"]),
];

/// Decodes the row that [`SESSION_SQL`] answered. Errors: the session must not be poured from, and why.
pub fn decode_session(columns: &[Option<&[u8]>]) -> Result<Session, Reason> {
    let answer: SessionAnswer =
        serde_json::from_slice(only_column(columns)?).map_err(|_| Reason::Malformed("json"))?;
    if answer.temporary {
        return Err(Reason::TemporarySchema);
    }
    for (name, fine) in SETTINGS_THAT_STOP {
        let value = answer.settings.get(name).and_then(Option::as_deref).unwrap_or_default();
        if !fine.contains(&value) {
            return Err(Reason::Setting { name, value: value.to_owned() });
        }
    }
    let encoding = answer.settings.get("client_encoding").and_then(Option::as_deref).unwrap_or_default();
    if !encoding_pours(encoding) {
        return Err(Reason::Setting { name: "client_encoding", value: encoding.to_owned() });
    }
    let key =
        serde_json::to_string(&(&answer.user, &answer.session_user, &answer.search_path, &answer.settings))
            .map_err(|_| Reason::Malformed("settings"))?;
    Ok(Session { user: answer.user, session_user: answer.session_user, search_path: answer.search_path, key })
}

/// Is every byte below 128 a character of its own in this client encoding? In the others a backslash can be the second byte
/// of a character, and COPY's escapes would tear it apart.
///
/// `name` as `client_encoding` shows it; case and punctuation do not matter, as to the server.
pub fn encoding_pours(name: &str) -> bool {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    match plain.as_str() {
        "utf8" | "unicode" | "sqlascii" | "koi8r" | "koi8u" | "koi8" | "iso88595" | "iso88596"
        | "iso88597" | "iso88598" | "euccn" | "eucjp" | "euckr" | "euctw" | "eucjis2004" | "win866"
        | "win874" | "win1250" | "win1251" | "win1252" | "win1253" | "win1254" | "win1255" | "win1256"
        | "win1257" | "win1258" => true,
        latin => {
            latin.strip_prefix("latin").is_some_and(|n| n.parse::<u8>().is_ok_and(|n| (1..=10).contains(&n)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(columns: &str, stops: &str) -> String {
        format!(
            r#"{{"relid": 16400, "schema": "s", "table": "t", "relkind": "r", "fingerprint": "f", "stops": {stops}, "self_fk": [], "quiet": true,
             "root": 16400, "references": [],
             "user": "u", "session_user": "u", "search_path": "public", "temporary": false, "columns": [{columns}]}}"#
        )
    }

    fn column(attnum: i16, extra: &str) -> String {
        format!(
            r#"{{"attnum": {attnum}, "name": "c{attnum}", "type": 23, "typmod": -1, "base": 23, "base_name": "int4",
             "kind": "b", "elem": 0, "elem_kind": "", "notnull": false, "identity": "", "generated": "",
             "may_insert": true, "domain_null_check": false, "cast_from_text": false, "cast_to_text": false, {extra}}}"#
        )
    }

    fn with_default(whys: &str) -> DefaultKind {
        let text = answer(&column(1, &format!(r#""has_default": true, "default_whys": [{whys}]"#)), "[]");
        decode("t", &[Some(text.as_bytes())]).unwrap().columns.remove(0).default
    }

    #[test]
    fn defaults_are_judged_by_all_their_parts() {
        assert_eq!(with_default(""), DefaultKind::Immutable);
        assert_eq!(with_default(r#""pg_catalog.nextval(v)""#), DefaultKind::Sequence);
        assert_eq!(with_default(r#""pg_catalog.now(s)""#), DefaultKind::TransactionTime);
        assert_eq!(with_default(r#""SQLVALUEFUNCTION 8""#), DefaultKind::TransactionTime);
        assert_eq!(with_default(r#""pg_catalog.uuidv7(v)""#), DefaultKind::PerRow);
        assert_eq!(
            with_default(r#""pg_catalog.clock_timestamp(v)", "pg_catalog.timestamp(s)""#),
            DefaultKind::PerRow
        );
        for other in [r#""user now(s)""#, r#""SQLVALUEFUNCTION 9""#, r#""SUBLINK""#, r#""pg_catalog.now(v)""#]
        {
            assert!(matches!(with_default(other), DefaultKind::Other(_)), "{other}");
        }
        assert!(matches!(
            with_default(r#""pg_catalog.nextval(v)", "pg_catalog.now(s)""#),
            DefaultKind::Other(_)
        ));
    }

    #[test]
    fn an_answer_that_the_query_cannot_give_is_an_error() {
        let plain = r#""has_default": false, "default_whys": []"#;
        let twice = answer(&format!("{}, {}", column(1, plain), column(1, plain)), "[]");
        assert_eq!(decode("t", &[Some(twice.as_bytes())]), Err(Reason::Malformed("order of columns")));
        let zero = answer(&column(0, plain), "[]");
        assert_eq!(decode("t", &[Some(zero.as_bytes())]), Err(Reason::Malformed("column")));
        let identity = answer(&column(1, plain).replace(r#""identity": """#, r#""identity": "z""#), "[]");
        assert_eq!(decode("t", &[Some(identity.as_bytes())]), Err(Reason::Malformed("identity")));
        assert_eq!(decode("t", &[None]), Err(Reason::Malformed("null")));
        assert_eq!(decode("t", &[]), Err(Reason::Malformed("number of columns")));
        assert_eq!(decode("t", &[Some(b"{")]), Err(Reason::Malformed("json")));
        let gone = answer("", "[]").replace("16400", "null");
        assert_eq!(decode("t", &[Some(gone.as_bytes())]), Err(Reason::NotFound));
        let going = answer(&column(1, plain).replace(r#""may_insert": true"#, r#""may_insert": null"#), "[]");
        assert_eq!(decode("t", &[Some(going.as_bytes())]), Err(Reason::NotFound));
    }

    #[test]
    fn a_stop_is_kept_with_the_facts() {
        let stopped = |stops: &str| decode("t", &[Some(answer("", stops).as_bytes())]).unwrap().refused;
        assert_eq!(stopped("[]"), None);
        assert_eq!(stopped(r#"[["rule", "r"], ["kind", null]]"#), Some(Reason::Rule("r".into())));
        assert_eq!(stopped(r#"[["something new", null]]"#), Some(Reason::Unknown("something new".into())));
    }

    #[test]
    fn names_are_quoted_for_the_server() {
        assert_eq!(lookup_name(None, "T\"x"), "\"T\"\"x\"");
        assert_eq!(lookup_name(Some("a.b"), "c"), "\"a.b\".\"c\"");
    }

    #[test]
    fn only_encodings_without_ascii_in_their_tails_pour() {
        for pours in [
            "UTF8",
            "utf-8",
            "UNICODE",
            "SQL_ASCII",
            "LATIN1",
            "LATIN10",
            "WIN1252",
            "KOI8R",
            "EUC_JP",
            "ISO_8859_5",
        ] {
            assert!(encoding_pours(pours), "{pours}");
        }
        for stays in [
            "SJIS",
            "BIG5",
            "GBK",
            "UHC",
            "GB18030",
            "JOHAB",
            "SHIFT_JIS_2004",
            "MULE_INTERNAL",
            "",
            "LATIN11",
            "LATIN",
        ] {
            assert!(!encoding_pours(stays), "{stays}");
        }
    }

    #[test]
    fn the_guard_answers_digits_or_is_an_error() {
        assert_eq!(decode_guard(&[Some(b"742")]), Some(742));
        for wrong in [&b""[..], b"-1", b"7x", b"99999999999999999999"] {
            assert_eq!(decode_guard(&[Some(wrong)]), None);
        }
        assert_eq!(decode_guard(&[None]), None);
        let report = |code: &str, text: &str| format!("C{code}\0M{text}\0\0").into_bytes();
        let ours = report("22P02", &format!("invalid input syntax for type integer: \"{GUARD_MARK} 1-2\""));
        assert!(is_guard_error(&ErrorFields::new(&ours)));
        let other = report("22P02", "invalid input syntax for type integer: \"x\"");
        assert!(!is_guard_error(&ErrorFields::new(&other)));
        assert!(guard_sql().contains(GUARD_MARK));
    }

    /// Everything that is looked up by a bare name is out of the queries.
    #[test]
    fn the_queries_name_every_schema() {
        for sql in [ELIGIBILITY_SQL, guard_sql(), TYPES_SQL, SESSION_SQL, INCARNATION_SQL, STATUS_SQL] {
            for bare in [
                " = ",
                " <> ",
                " > ",
                " < ",
                " >= ",
                " || ",
                " IN ",
                " BETWEEN ",
                " LIKE ",
                "DISTINCT FROM",
                "USING",
            ] {
                assert!(!sql.contains(bare), "{bare:?} in {sql}");
            }
            for cast in sql.split("::").skip(1) {
                assert!(cast.starts_with("pg_catalog."), "::{}", &cast[..cast.len().min(20)]);
            }
            for table in sql.split(" pg_").skip(1) {
                assert!(table.starts_with("catalog."), "pg_{}", &table[..table.len().min(20)]);
            }
        }
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..600) {
            let _ = decode("t", &[Some(&bytes)]);
            let _ = decode_session(&[Some(&bytes)]);
            let whole = answer(&column(1, r#""has_default": true, "default_whys": ["x"]"#), "[]");
            let mut torn = whole.into_bytes();
            let at = cut % torn.len();
            torn[at] = bytes.first().copied().unwrap_or(0);
            let _ = decode("t", &[Some(&torn)]);
        }
    }
}
