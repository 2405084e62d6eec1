//! The queries that ask the catalogue, and the checks inside a flush.

use std::fmt::Write as _;

use crate::coalesce::catalog::{Reason, only_column};
use crate::wire::Oid;
use crate::wire::backend::ErrorFields;

/// What stands in the guard's error, so that it can be told from the error of a client's row.
pub(super) const GUARD_MARK: &str = "pgsluice: the table changed";

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
/// `$1` of the macro is an SQL expression for the oids of the functions of users that the table computes with: one that is
/// native today is replaced by another of any language without a trace at the table.
macro_rules! fingerprint_query {
    ($functions:literal) => {
        concat!(
            "SELECT pg_catalog.concat(
  pg_catalog.to_hex(pg_catalog.hashtextextended(z.t COLLATE pg_catalog.\"C\", 0)), '-',
  pg_catalog.to_hex(pg_catalog.hashtextextended(z.t COLLATE pg_catalog.\"C\", 1))) AS f
  FROM (SELECT pg_catalog.concat_ws('|', r.relname, r.relnamespace,
    (SELECT pg_catalog.concat_ws(':', n.nspname, n.xmin, n.ctid) FROM pg_catalog.pg_namespace n WHERE n.oid OPERATOR(pg_catalog.=) r.relnamespace), r.relkind, r.relpersistence, r.relam, r.relowner,
    r.relacl, r.relhasrules, r.relhastriggers, r.relrowsecurity, r.relforcerowsecurity, r.relispartition,
    (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(':', c.oid, c.relam), ',' ORDER BY c.oid)
       FROM keyed l JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) l.relid), '#',\n    ",
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
            ", '#',\n    ",
            versions!("x.oid", "pg_proc", "x.oid OPERATOR(pg_catalog.=) ANY (", $functions, ")"),
            ") FROM r) z(t)"
        )
    };
}

/// Does a sequence `s` (`pg_sequence`) end soon, for a column that takes no value beyond `$most`? `$last` is the last value that was
/// drawn; of NULL nothing follows. A sequence that begins anew has no end. Halves, because the whole of an `int8` is more than one.
macro_rules! ends_soon {
    ($last:expr, $most:expr) => {
        concat!(
            "NOT s.seqcycle AND ((CASE WHEN s.seqincrement OPERATOR(pg_catalog.>) 0 THEN LEAST(s.seqmax, ",
            $most,
            ") ELSE GREATEST(s.seqmin, -1 OPERATOR(pg_catalog.-) ",
            $most,
            ") END OPERATOR(pg_catalog./) 2) OPERATOR(pg_catalog.-) (",
            $last,
            " OPERATOR(pg_catalog./) 2)) OPERATOR(pg_catalog./) s.seqincrement OPERATOR(pg_catalog.<) 500000"
        )
    };
}

/// The last value that was drawn from a sequence `s`, NULL if none was since it was set; its first one where the role may not look.
macro_rules! last_drawn {
    () => {
        "CASE WHEN pg_catalog.has_sequence_privilege(s.seqrelid, 'USAGE, SELECT'::pg_catalog.text)
       THEN pg_catalog.pg_sequence_last_value(s.seqrelid::pg_catalog.regclass) ELSE s.seqstart END"
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

/// Could one of these functions and operators be somebody's own, or a cast between types of PostgreSQL's? Wherever it stands: which of
/// equal names is meant, the types of the arguments decide before the path does, and a literal may become of any type. Extensions have
/// such names for types of their own (`=`, `||`), which are not meant where there is none: one counts that takes what is PostgreSQL's below
/// its domains and arrays, or what PostgreSQL's becomes by itself. No names: nothing is asked.
macro_rules! others_query {
    ($names:literal) => {
        concat!(
            "CASE WHEN pg_catalog.cardinality(",
            $names,
            ") OPERATOR(pg_catalog.=) 0 THEN ''
     WHEN EXISTS (SELECT 1 FROM (
              SELECT p.tableoid, p.oid, p.proargtypes::pg_catalog.oid[] FROM pg_catalog.pg_proc p
               WHERE p.proname OPERATOR(pg_catalog.=) ANY (",
            $names,
            ") AND p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
              UNION ALL SELECT o.tableoid, o.oid, ARRAY[o.oprleft, o.oprright] FROM pg_catalog.pg_operator o
               WHERE o.oprname OPERATOR(pg_catalog.=) ANY (",
            $names,
            ") AND o.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid) n(kind, oid, types)
            WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend e WHERE e.classid OPERATOR(pg_catalog.=) n.kind
                AND e.objid OPERATOR(pg_catalog.=) n.oid AND e.deptype OPERATOR(pg_catalog.=) 'e')
               OR EXISTS (WITH RECURSIVE below(type) AS (
                  SELECT a.type FROM pg_catalog.unnest(n.types) a(type)
                  UNION SELECT x.type FROM below b JOIN pg_catalog.pg_type y ON y.oid OPERATOR(pg_catalog.=) b.type,
                    LATERAL pg_catalog.unnest(ARRAY[y.typbasetype, y.typelem]) x(type)
                   WHERE b.type OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid)
                SELECT 1 FROM below b WHERE b.type OPERATOR(pg_catalog.<>) 0::pg_catalog.oid AND (b.type OPERATOR(pg_catalog.<) 16384::pg_catalog.oid
                   OR EXISTS (SELECT 1 FROM pg_catalog.pg_cast k WHERE k.casttarget OPERATOR(pg_catalog.=) b.type
                        AND k.castsource OPERATOR(pg_catalog.<) 16384::pg_catalog.oid AND k.castcontext OPERATOR(pg_catalog.=) 'i'))))
       OR EXISTS (SELECT 1 FROM pg_catalog.pg_cast k
            WHERE k.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND k.castsource OPERATOR(pg_catalog.<) 16384::pg_catalog.oid
              AND k.casttarget OPERATOR(pg_catalog.<) 16384::pg_catalog.oid)
       THEN ' others' ELSE '' END"
        )
    };
}

/// Is there anything in the session's temporary schema? That stays, empty, on a connection that a client has had temporary objects on.
macro_rules! has_temporary_objects {
    () => {
        "pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
    AND EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
          AND d.refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema())"
    };
}

/// Do the connection's texts mean what they meant when they were taken apart, and does a COPY look at their bytes as an INSERT does
/// (`encoding_pours`)? Of who is only poured none would hear of a change.
macro_rules! reads_as_an_insert {
    () => {
        "pg_catalog.current_setting('standard_conforming_strings') OPERATOR(pg_catalog.=) 'on'
   AND (pg_catalog.current_setting('client_encoding') OPERATOR(pg_catalog.<>)
          ALL ('{SQL_ASCII,SJIS,BIG5,GBK,UHC,GB18030,JOHAB,SHIFT_JIS_2004,MULE_INTERNAL}'::pg_catalog.text[])
        OR (pg_catalog.current_setting('client_encoding') OPERATOR(pg_catalog.=) 'SQL_ASCII'
          AND pg_catalog.current_setting('server_encoding') OPERATOR(pg_catalog.=) 'SQL_ASCII'))"
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

/// Asks whether what an expression uses is PostgreSQL's own: `$1` an array of the names of its functions and operators. Answers one row
/// of one text, which is empty then.
pub const NAMES_SQL: &str = concat!("SELECT ", others_query!("$1::pg_catalog.name[]"));

/// Asks which of some settings is a library's: `$1` their names in JSON, in lower case. Answers one row of one text, NULL where each is
/// nobody's. What nobody has defined the view does not show.
pub const LIBRARIES_SQL: &str = "SELECT pg_catalog.min(s.name) FROM pg_catalog.pg_settings s
 WHERE pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) ANY (ARRAY(
       SELECT n.name FROM pg_catalog.json_array_elements_text($1::pg_catalog.text::pg_catalog.json) n(name)))";

/// Asks for one table. `$1`: its name as [`lookup_name`] writes it, resolved by the session that asks. Answers one row
/// of one text column, JSON; the relation is `null` there when the name resolves to nothing. Takes 5 to 10 ms.
///
/// `bad`: also what reads and writes values of types as text (`cstring`), which by its mark depends on nothing, and reads settings that
/// are no reason to keep clients apart (`extra_float_digits`, `bytea_output`); a native function of a user's that takes a row or any
/// type (`hstore(record)`) may do so, too.
///
/// `moved`: the columns that have another value where one has, itself and the generated ones that are computed from it.
///
/// `to_regclass` itself fails for a schema that the role may not use; that error is a refusal too.
pub const ELIGIBILITY_SQL: &str = concat!(
    "WITH RECURSIVE named AS MATERIALIZED (SELECT pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid AS relid), ",
    relation_ctes!("(SELECT n.relid FROM named n)"),
    ", fingerprint AS (",
    fingerprint_query!("ARRAY(SELECT u.f FROM users_fn u)"),
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
  UNION SELECT 'foreign key', NULL, o.oprcode::pg_catalog.oid
    FROM rels l JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) l.relid AND k.contype OPERATOR(pg_catalog.=) 'f',
         LATERAL pg_catalog.unnest(k.conpfeqop) x(op), pg_catalog.pg_operator o WHERE o.oid OPERATOR(pg_catalog.=) x.op
  UNION SELECT 'operator class', NULL, ap.amproc::pg_catalog.oid
    FROM opclass oc JOIN pg_catalog.pg_opclass c ON c.oid OPERATOR(pg_catalog.=) oc.oid AND c.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
    JOIN pg_catalog.pg_amproc ap ON ap.amprocfamily OPERATOR(pg_catalog.=) c.opcfamily
), users_fn AS (
  SELECT DISTINCT fn.f FROM fn WHERE fn.f OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid
), bad AS (
  SELECT fn.what, fn.attnum,
         pg_catalog.concat(CASE WHEN p.oid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid THEN 'pg_catalog.' ELSE 'user ' END,
                           p.proname, '(', p.provolatile, ')') AS why
    FROM fn JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) fn.f
    JOIN pg_catalog.pg_language g ON g.oid OPERATOR(pg_catalog.=) p.prolang
   WHERE p.provolatile OPERATOR(pg_catalog.<>) 'i'
      OR (p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND g.lanname OPERATOR(pg_catalog.<>) ALL (ARRAY['internal', 'c']::pg_catalog.name[]))
      OR 2275::pg_catalog.oid OPERATOR(pg_catalog.=) ANY (p.proargtypes::pg_catalog.oid[]) OR p.prorettype OPERATOR(pg_catalog.=) 2275::pg_catalog.oid
      OR (p.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid AND p.proargtypes::pg_catalog.oid[] OPERATOR(pg_catalog.&&) ARRAY[2249, 2276, 2277, 2283, 5077, 5078]::pg_catalog.oid[])
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
), moved AS (
  SELECT a.attnum, a.attnum AS key FROM r JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) r.oid
  UNION SELECT x.m[1]::pg_catalog.int2, e.attnum
    FROM expr e, LATERAL pg_catalog.regexp_matches(e.node, ':varattno (-?[0-9]+)', 'g') x(m)
   WHERE e.what OPERATOR(pg_catalog.=) 'generated'
), draws AS (
  SELECT d.adnum AS attnum, e.refobjid AS seq FROM r JOIN pg_catalog.pg_attrdef d ON d.adrelid OPERATOR(pg_catalog.=) r.oid
    JOIN pg_catalog.pg_depend e ON e.classid OPERATOR(pg_catalog.=) 2604::pg_catalog.oid AND e.objid OPERATOR(pg_catalog.=) d.oid
   WHERE e.refclassid OPERATOR(pg_catalog.=) 1259::pg_catalog.oid
  UNION SELECT d.attnum, e.refobjid FROM dom d
    JOIN pg_catalog.pg_depend e ON e.classid OPERATOR(pg_catalog.=) 1247::pg_catalog.oid AND e.objid OPERATOR(pg_catalog.=) d.typ
   WHERE d.typtype OPERATOR(pg_catalog.=) 'd' AND e.refclassid OPERATOR(pg_catalog.=) 1259::pg_catalog.oid
  UNION SELECT a.attnum, e.objid FROM r JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) r.oid, keyed l
    JOIN pg_catalog.pg_attribute k ON k.attrelid OPERATOR(pg_catalog.=) l.relid
    JOIN pg_catalog.pg_depend e ON e.refclassid OPERATOR(pg_catalog.=) 1259::pg_catalog.oid AND e.refobjid OPERATOR(pg_catalog.=) l.relid
   WHERE a.attidentity OPERATOR(pg_catalog.<>) '' AND k.attname OPERATOR(pg_catalog.=) a.attname
     AND e.refobjsubid OPERATOR(pg_catalog.=) k.attnum AND e.classid OPERATOR(pg_catalog.=) 1259::pg_catalog.oid
     AND e.deptype OPERATOR(pg_catalog.=) 'i'
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
  'granted_by_column', EXISTS (SELECT 1 FROM r JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) r.oid,
     LATERAL pg_catalog.aclexplode(a.attacl) x WHERE x.privilege_type OPERATOR(pg_catalog.=) 'INSERT'::pg_catalog.text),
  'updates_alone', NOT EXISTS (SELECT 1 FROM r WHERE r.relkind OPERATOR(pg_catalog.<>) 'r' OR r.relispartition)
     AND NOT EXISTS (SELECT 1 FROM r JOIN pg_catalog.pg_trigger g ON g.tgrelid OPERATOR(pg_catalog.=) r.oid
       WHERE (g.tgtype OPERATOR(pg_catalog.&) 16::pg_catalog.int2) OPERATOR(pg_catalog.<>) 0
         AND NOT (g.tgisinternal AND g.tgfoid OPERATOR(pg_catalog.=) ANY (ARRAY[1645, 1647, 1649, 1651, 1653, 1655]::pg_catalog.oid[])))
     AND NOT EXISTS (SELECT 1 FROM r JOIN pg_catalog.pg_index i ON i.indrelid OPERATOR(pg_catalog.=) r.oid WHERE NOT i.indimmediate),
  'functions', (SELECT COALESCE(pg_catalog.json_agg(u.f::pg_catalog.int8 ORDER BY u.f), '[]') FROM users_fn u),
  'root', (SELECT COALESCE(pg_catalog.pg_partition_root(r.oid::pg_catalog.regclass)::pg_catalog.oid, r.oid)::pg_catalog.int8 FROM r),
  'references', (SELECT COALESCE(pg_catalog.json_agg(DISTINCT
                   COALESCE(pg_catalog.pg_partition_root(k.confrelid::pg_catalog.regclass)::pg_catalog.oid, k.confrelid)::pg_catalog.int8), '[]')
               FROM rels l JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) l.relid
              WHERE k.contype OPERATOR(pg_catalog.=) 'f'),
  'user', CURRENT_USER, 'session_user', SESSION_USER,
  'search_path', pg_catalog.current_setting('search_path'),
  'temporary', ",
    has_temporary_objects!(),
    ",
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
      'in_key', EXISTS (SELECT 1 FROM moved m JOIN pg_catalog.pg_index i ON m.key OPERATOR(pg_catalog.=) ANY (i.indkey::pg_catalog.int2[])
           WHERE i.indrelid OPERATOR(pg_catalog.=) r.oid AND m.attnum OPERATOR(pg_catalog.=) a.attnum)
         OR EXISTS (SELECT 1 FROM moved m JOIN pg_catalog.pg_constraint k ON m.key OPERATOR(pg_catalog.=) ANY (k.conkey)
           WHERE k.conrelid OPERATOR(pg_catalog.=) r.oid AND k.contype OPERATOR(pg_catalog.=) 'f' AND m.attnum OPERATOR(pg_catalog.=) a.attnum),
      'draws', (SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_array(s.seqrelid::pg_catalog.int8, ",
    ends_soon!(
        concat!("COALESCE(", last_drawn!(), ", s.seqstart)"),
        "CASE WHEN b.typ OPERATOR(pg_catalog.=) 21::pg_catalog.oid THEN 32767
           WHEN b.typ OPERATOR(pg_catalog.=) 23::pg_catalog.oid THEN 2147483647 ELSE 9223372036854775807 END"
    ),
    ")
         ORDER BY s.seqrelid), '[]')
         FROM draws w JOIN pg_catalog.pg_sequence s ON s.seqrelid OPERATOR(pg_catalog.=) w.seq
        WHERE w.attnum OPERATOR(pg_catalog.=) a.attnum),
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
/// `$4` the names of types, `$5` the oids of [`super::Table::functions`], `$6` the names of functions and operators, as [`NAMES_SQL`] has them; all may be sent as text. Answers one
/// row: the transaction's id as text ([`decode_guard`]). Anything else is an **error** ([`is_guard_error`]), so the
/// transaction cannot commit. `$2` is resolved by the flush's own `search_path`: it must be the clients' own, or `$2` a qualified name.
///
/// It fails, too, where what is no part of the table has changed:
/// - the isolation level (ALTER ROLE, ALTER SYSTEM): what is looked at then is older than COPY's lock;
/// - row security, which applies to the role once that has lost BYPASSRLS, SUPERUSER or its membership in the owner: a COPY would fail of
///   itself, but an INSERT that was prepared before is not planned again for that;
/// - what a backslash in the clients' strings means (ALTER SYSTEM and a reload), or the encoding that they are taken for (ALTER DATABASE).
pub fn guard_sql() -> &'static str {
    // The text under the cast is never a constant, so it is not folded (and raised) while planning; and it is int4's input
    // that raises: xid8's takes any text for zero before PostgreSQL 16.
    const SQL: &str = concat!(
        "WITH RECURSIVE ",
        relation_ctes!("$1::pg_catalog.oid"),
        ", found AS MATERIALIZED (SELECT (SELECT q.f FROM (",
        fingerprint_query!("$5::pg_catalog.oid[]"),
        ") q) AS f) SELECT CASE WHEN pg_catalog.concat(found.f, (",
        types_query!("$4::pg_catalog.text[]"),
        "), ",
        others_query!("$6::pg_catalog.name[]"),
        ") OPERATOR(pg_catalog.=) $3::pg_catalog.text
   AND pg_catalog.to_regclass($2::pg_catalog.text)::pg_catalog.oid OPERATOR(pg_catalog.=) $1::pg_catalog.oid
   AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
   AND NOT pg_catalog.row_security_active($1::pg_catalog.oid)
   AND ",
        reads_as_an_insert!(),
        "
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
/// users (ALTER DOMAIN invalidates no table), nor where functions of users are called (CREATE OR REPLACE FUNCTION invalidates none,
/// either): see [`super::Table::has_sentinel`]. The role needs SELECT.
pub fn sentinel_sql<'a>(targets: impl IntoIterator<Item = &'a str>) -> String {
    let mut sql = String::from(concat!(
        "SELECT CASE WHEN ($1::pg_catalog.text IS NULL OR s.mark OPERATOR(pg_catalog.=) $1::pg_catalog.text)
   AND ",
        reads_as_an_insert!()
    ));
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

/// Refuses, before a row draws from its sequences, a table that was made anew under the same name: what is drawn in vain an
/// application would see in the first ids of its new table. What else changed is for the guard behind the rows.
///
/// It refuses, too, where a sequence may end within what batches draw at once: the last values are for rows that are stored. So it
/// does before anything was drawn since the sequence was set: only a row tells where it stands then.
///
/// `$1` the name as [`lookup_name`] wrote it, `$2` the relid, `$3` the sequences' oids and `$4` the most that the column of each
/// takes, both arrays. Answers one row, or an error ([`is_guard_error`]).
pub const SAME_TABLE_SQL: &str = concat!(
    "SELECT CASE WHEN pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid OPERATOR(pg_catalog.=) $2::pg_catalog.oid
   AND NOT EXISTS (SELECT 1 FROM pg_catalog.generate_subscripts($3::pg_catalog.oid[], 1) i(n)
     JOIN pg_catalog.pg_sequence s ON s.seqrelid OPERATOR(pg_catalog.=) ($3::pg_catalog.oid[])[i.n]
    WHERE COALESCE(",
    ends_soon!(last_drawn!(), "($4::pg_catalog.int8[])[i.n]"),
    ", true))
  THEN 1 ELSE pg_catalog.concat('pgsluice: the table changed ', $2::pg_catalog.oid)::pg_catalog.int4 END"
);

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
/// ([`super::decode_session`]). Far below a millisecond.
pub const SESSION_SQL: &str = concat!(
    "SELECT pg_catalog.json_build_object(
  'user', CURRENT_USER, 'session_user', SESSION_USER, 'search_path', pg_catalog.current_setting('search_path'),
  'temporary', ",
    has_temporary_objects!(),
    ",
  'settings', (SELECT pg_catalog.json_object_agg(s.name, pg_catalog.current_setting(s.name, true)) FROM pg_catalog.unnest(
    '{DateStyle,IntervalStyle,TimeZone,timezone_abbreviations,array_nulls,xmloption,lc_monetary,client_encoding,server_encoding,synchronous_commit,default_toast_compression,row_security,default_transaction_isolation,default_transaction_read_only,default_transaction_deferrable,transaction_isolation,transaction_read_only,session_replication_role,standard_conforming_strings,backslash_quote,client_min_messages}'::pg_catalog.text[]) s(name)))::pg_catalog.text"
);

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
