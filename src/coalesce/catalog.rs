//! What the catalogue says about a table: whether its INSERTs may leave as a COPY, and if not, why.
//!
//! Owns: the queries that ask (`queries`), the decoding of what they answer, the fingerprint that tells whether the answer
//! still holds, and the reasons for a refusal. Never: a socket, a cache, a clock.
//!
//! The queries run in a client's own session, under its `search_path`, because that is where its names mean what
//! the client meant. So every relation, function, type and operator in them is written with its schema, and none of
//! the constructs that look an operator up by its bare name (`IN`, `BETWEEN`, `IS DISTINCT FROM`, `USING`, `CASE x
//! WHEN`) is used: a schema that shadows `=` or `now()` cannot change an answer. Regular expressions avoid the
//! backslash, so `standard_conforming_strings` does not matter either.

mod queries;
#[cfg(test)]
mod tests;

use serde::Deserialize;

use crate::limits::NAME_BYTES_MAX;
use crate::wire::Oid;
pub use queries::{
    ELIGIBILITY_SQL, INCARNATION_SQL, LIBRARIES_SQL, NAMES_SQL, SAME_TABLE_SQL, SESSION_SQL, STATUS_SQL,
    TYPES_SQL, decode_guard, decode_sentinel, decode_types, guard_sql, is_guard_error, lookup_name,
    put_identifier, sentinel_sql,
};

/// Most columns a heap table can have (`MaxHeapAttributeNumber`).
pub const COLUMNS_MAX: usize = 1600;

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
    /// Somebody has the privilege to insert into single columns of it.
    pub granted_by_column: bool,
    /// An UPDATE of a row that does not touch a key runs nothing but the CHECKs and generated columns of that row: it has no trigger of
    /// users, no partitions, and no index that is looked at later.
    pub updates_alone: bool,
    /// The functions of users (extensions') that an INSERT calls: for the guard, which asks whether they are still the same.
    pub functions: Vec<Oid>,
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
        let native = self.functions.is_empty() && self.columns.iter().all(|c| c.type_oid < FIRST_USER_OID);
        native && !self.partitioned
    }

    /// Memory that it takes (bytes), about.
    pub fn bytes(&self) -> usize {
        let texts =
            |c: &Column| c.name.len() + c.quoted.len() + c.base_name.len() + size_of_val(&*c.sequences);
        size_of::<Self>()
            + size_of_val(&*self.columns)
            + self.columns.iter().map(texts).sum::<usize>()
            + size_of_val(&*self.functions)
            + size_of_val(&*self.references)
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
    /// The session has temporary objects: one may shadow another's name.
    pub temporary_objects: bool,
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
    /// It, or a generated column that is computed from it, is part of an index or a foreign key.
    pub in_key: bool,
    /// What it gets when left out.
    pub default: DefaultKind,
    /// The sequences that it draws from then.
    pub sequences: Vec<Oid>,
    /// One of them is near its end.
    pub ends_soon: bool,
}

impl Column {
    /// The most that it takes of a sequence.
    pub(super) fn most(&self) -> i64 {
        match self.base_oid {
            21 => i64::from(i16::MAX),
            23 => i64::from(i32::MAX),
            _ => i64::MAX,
        }
    }
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
    /// DO UPDATE of a column that is part of a key, or of a table whose updates do more than that.
    Update(String),
    /// No such column.
    NoSuchColumn(String),
    /// A column named twice.
    ColumnTwice(String),
    /// Not as many values as columns.
    ValueCount,
    /// A cast or a call without a schema, and `search_path` may hold another type or function of that name before pg_catalog.
    TypeNames,
    /// A cast to a type that the session does not know.
    NoSuchType,
    /// Every column takes its default: COPY needs one.
    NoColumns,
    /// The role may not insert into the column.
    ColumnPrivilege(String),
    /// DEFAULT for a column, of a table where somebody may insert into single columns only: COPY does not name it, and so does not ask.
    DefaultPrivilege(String),
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
    /// A left-out column draws from a sequence that is near its end: what a batch draws in vain would be the last values.
    SequenceEnd(String),
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
    /// A parameter of this type in an expression.
    Used {
        /// `$n`.
        number: u16,
        /// Its resolved type.
        oid: Oid,
    },
    /// A function, an operator or a cast that an expression uses could be one that somebody made.
    OtherMeaning,
    /// Parameters are not exactly `$1` to `$n`, each once.
    ParameterList,
    /// A session with temporary objects.
    TemporaryObjects,
    /// A session setting under which nothing is poured.
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The session has set this one of a loaded library's, which may look at each statement.
    LibrarySetting(String),
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
            Self::Update(_) => "update of a key, or with a trigger",
            Self::NoSuchColumn(_) => "no such column",
            Self::ColumnTwice(_) => "column named twice",
            Self::ValueCount => "number of values",
            Self::TypeNames => "search_path names pg_catalog, and a cast or an expression no schema",
            Self::NoSuchType => "no such type",
            Self::NoColumns => "no column with a value",
            Self::ColumnPrivilege(_) => "no insert privilege on column",
            Self::DefaultPrivilege(_) => "DEFAULT where columns have insert privileges",
            Self::IdentityAlways(_) => "value for identity always",
            Self::GeneratedColumn(_) => "value for generated column",
            Self::Type { .. } => "column type",
            Self::DomainLeftOut(_) => "domain with check left out",
            Self::Default { .. } => "default not reproducible",
            Self::SequenceEnd(_) => "sequence near its end",
            Self::Literal { .. } => "literal for column type",
            Self::FrozenLiteral(_) => "literal read at parse",
            Self::Parameter { .. } => "parameter type for column type",
            Self::Used { .. } => "parameter type in expression",
            Self::OtherMeaning => "a function, operator or cast of a user's",
            Self::ParameterList => "parameter list",
            Self::TemporaryObjects => "session has temporary objects",
            Self::Setting { .. } => "session setting",
            Self::LibrarySetting(_) => "session setting of a library",
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

/// What a default was found to hold, as it is written in SQL where the catalogue has a number for it.
fn in_sql(why: &str) -> &str {
    match why.strip_prefix("SQLVALUEFUNCTION ") {
        Some("9") => "current_role",
        Some("10") => "current_user",
        Some("11") => "user",
        Some("12") => "session_user",
        Some("13") => "current_catalog",
        Some("14") => "current_schema",
        _ => why,
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
            | Self::Update(x)
            | Self::NoSuchColumn(x)
            | Self::ColumnTwice(x)
            | Self::ColumnPrivilege(x)
            | Self::DefaultPrivilege(x)
            | Self::IdentityAlways(x)
            | Self::GeneratedColumn(x)
            | Self::DomainLeftOut(x)
            | Self::SequenceEnd(x)
            | Self::FrozenLiteral(x)
            | Self::LibrarySetting(x) => write!(f, ": {x}"),
            Self::Type { column, base } => write!(f, ": {column} {base}"),
            Self::Default { column, why } => write!(f, ": {column} {}", in_sql(why)),
            Self::Literal { column, class, base } => write!(f, ": {class} into {column} {base}"),
            Self::Parameter { column, oid, base } => write!(f, ": type {oid} into {column} {base}"),
            Self::Used { number, oid } => write!(f, ": type {oid} of ${number}"),
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
    granted_by_column: bool,
    updates_alone: bool,
    functions: Vec<i64>,
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
    in_key: bool,
    /// Sequences, each with whether it is near its end.
    draws: Vec<(i64, bool)>,
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
    let cut = |s: &str| s.is_empty() || s.len() > NAME_BYTES_MAX * 4 || s.contains('\0');
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
        granted_by_column: answer.granted_by_column,
        updates_alone: answer.updates_alone,
        functions: answer.functions.into_iter().map(oid).collect::<Result<_, _>>()?,
        root: answer.root.map_or(oid(relid), oid)?,
        references: answer.references.into_iter().map(oid).collect::<Result<_, _>>()?,
        columns,
        viewer: Viewer {
            user: answer.user,
            session_user: answer.session_user,
            search_path: answer.search_path,
            temporary_objects: answer.temporary,
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
    let default = match default {
        DefaultKind::Sequence if c.draws.is_empty() => {
            DefaultKind::Other("a sequence that is not known".into())
        }
        default => default,
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
        in_key: c.in_key,
        default,
        sequences: c.draws.iter().map(|(seq, _)| oid(*seq)).collect::<Result<_, _>>()?,
        ends_soon: c.draws.iter().any(|(_, soon)| *soon),
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
        return Err(Reason::TemporaryObjects);
    }
    for (name, fine) in SETTINGS_THAT_STOP {
        let value = answer.settings.get(name).and_then(Option::as_deref).unwrap_or_default();
        if !fine.contains(&value) {
            return Err(Reason::Setting { name, value: value.to_owned() });
        }
    }
    let setting = |name: &str| answer.settings.get(name).and_then(Option::as_deref).unwrap_or_default();
    let encoding = setting("client_encoding");
    if !encoding_pours(encoding, setting("server_encoding")) {
        return Err(Reason::Setting { name: "client_encoding", value: encoding.to_owned() });
    }
    let key =
        serde_json::to_string(&(&answer.user, &answer.session_user, &answer.search_path, &answer.settings))
            .map_err(|_| Reason::Malformed("settings"))?;
    Ok(Session { user: answer.user, session_user: answer.session_user, search_path: answer.search_path, key })
}

/// Does a COPY read texts in this client encoding as an INSERT does? Where a backslash can be the second byte of a character its
/// escapes would tear that apart; and what is said to be in no encoding it takes unseen, where an INSERT's bytes have to be
/// characters of the server's.
///
/// Names as the settings show them; case and punctuation do not matter, as to the server. [`guard_sql`] asks again.
pub fn encoding_pours(client: &str, server: &str) -> bool {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    match plain(client).as_str() {
        "sqlascii" => plain(server) == "sqlascii",
        "utf8" | "unicode" | "koi8r" | "koi8u" | "koi8" | "iso88595" | "iso88596" | "iso88597"
        | "iso88598" | "euccn" | "eucjp" | "euckr" | "euctw" | "eucjis2004" | "win866" | "win874"
        | "win1250" | "win1251" | "win1252" | "win1253" | "win1254" | "win1255" | "win1256" | "win1257"
        | "win1258" => true,
        latin => {
            latin.strip_prefix("latin").is_some_and(|n| n.parse::<u8>().is_ok_and(|n| (1..=10).contains(&n)))
        }
    }
}
