//! What a text means, by PostgreSQL's own parser (the grammar of 18).
//!
//! Owns: statement counts and kinds, fingerprints, the target of an INSERT. Never: the hot path, a text that
//! was not bounded by [`crate::limits::STATEMENT_BYTES_MAX`] before, a guess about what does not parse.
//!
//! The parser reads with `standard_conforming_strings` on. A text that is not UTF-8 is read as if each byte
//! were a Latin-1 letter: for the lexer every byte above 0x7f is the same.

use std::borrow::Cow;

use pg_query::NodeEnum;
use pg_query::protobuf::{self, a_const::Val};

use super::cast::{Cast, OtherType, Type};
use super::expression::{Reader, Used};
use super::insert::{Class, Lifted, NotPourable};
use super::scan;
use crate::limits::{TREE_NAME_TOKENS, TREE_TOKENS_MAX};

/// The table and columns that an INSERT names, and the classes of one row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InsertTarget {
    /// The schema, when the statement names one.
    pub schema: Option<String>,
    /// The table.
    pub table: String,
    /// The columns, in order; empty: no list.
    pub columns: Vec<String>,
    /// The name in a form that `to_regclass()` and COPY resolve as the statement would: each part quoted.
    pub name_as_written: String,
    /// One row's classes.
    pub items: Vec<Class>,
    /// ON CONFLICT.
    pub conflict: bool,
    /// What its DO UPDATE sets. Empty: DO NOTHING.
    pub updates: Vec<Update>,
    /// What its expressions use, those of DO UPDATE and its WHERE, too.
    pub used: Used,
    /// RETURNING, when there is one.
    pub returning: Option<Vec<Returned>>,
    /// The types that casts name, beside PostgreSQL's own ...
    pub types: Vec<OtherType>,
    /// ... and what the server says that each is; nothing until it was asked.
    pub type_oids: Vec<u32>,
}

impl InsertTarget {
    /// Is anything computed but a column's value by itself?
    pub fn computes(&self) -> bool {
        self.items.contains(&Class::Computed)
            || self.updates.iter().any(|update| update.to != SetTo::Excluded)
    }

    /// Does RETURNING name a type, which is looked for in `search_path`?
    pub fn returns_text(&self) -> bool {
        self.returning.iter().flatten().any(|returned| matches!(returned, Returned::Text(_)))
    }

    /// Parameters in what is computed, or set.
    pub fn used_params(&self) -> impl Iterator<Item = u16> {
        let set = self.updates.iter().filter_map(|update| match update.to {
            SetTo::Param(number) => Some(number),
            SetTo::Excluded | SetTo::Computed => None,
        });
        self.used.params.iter().copied().chain(set)
    }

    /// What a cast takes a value to. `None`: the server was not asked, or knows no such type.
    pub fn type_oid(&self, cast: Cast) -> Option<u32> {
        match cast.to {
            Type::Own(oid) => Some(oid.into()),
            Type::Named(place) => self.type_oids.get(usize::from(place)).copied(),
        }
    }
}

/// One column that DO UPDATE sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The column.
    pub column: String,
    /// What it is set to.
    pub to: SetTo,
}

/// What a column is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTo {
    /// The value that the row would have had.
    Excluded,
    /// A parameter.
    Param(u16),
    /// An expression.
    Computed,
}

/// One entry of RETURNING.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    /// `*`.
    All,
    /// A column.
    Column(String),
    /// `column::text`.
    Text(String),
    /// NULL.
    Null,
}

/// What kind of statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// BEGIN, START TRANSACTION.
    Begin,
    /// COMMIT, END.
    Commit,
    /// ROLLBACK, ABORT.
    Rollback,
    /// SAVEPOINT.
    Savepoint,
    /// RELEASE, ROLLBACK TO.
    Release,
    /// PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED.
    TwoPhase,
    /// SET, SET LOCAL, SET CONSTRAINTS.
    Set,
    /// RESET.
    Reset,
    /// SHOW.
    Show,
    /// DISCARD.
    Discard,
    /// DEALLOCATE.
    Deallocate,
    /// LISTEN.
    Listen,
    /// UNLISTEN.
    Unlisten,
    /// NOTIFY.
    Notify,
    /// PREPARE.
    Prepare,
    /// EXECUTE.
    Execute,
    /// DO.
    Do,
    /// CALL.
    Call,
    /// COPY.
    Copy,
    /// SELECT, VALUES, TABLE.
    Select,
    /// INSERT, UPDATE, DELETE, MERGE.
    Dml,
    /// CREATE, ALTER, DROP, GRANT, COMMENT and their kin.
    Ddl,
    /// EXPLAIN.
    Explain,
    /// Anything else: cursors, LOCK, VACUUM, LOAD ...
    Other,
}

impl Kind {
    /// Transaction control or session state: what drivers send as simple queries on their own.
    pub const fn is_control(self) -> bool {
        matches!(
            self,
            Self::Begin
                | Self::Commit
                | Self::Rollback
                | Self::Savepoint
                | Self::Release
                | Self::Set
                | Self::Reset
                | Self::Show
                | Self::Discard
                | Self::Deallocate
                | Self::Listen
                | Self::Unlisten
                | Self::Notify
        )
    }

    /// A word for messages: `SELECT`, `DO`, `data definition` ...
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "BEGIN",
            Self::Commit => "COMMIT",
            Self::Rollback => "ROLLBACK",
            Self::Savepoint => "SAVEPOINT",
            Self::Release => "RELEASE",
            Self::TwoPhase => "PREPARE TRANSACTION",
            Self::Set => "SET",
            Self::Reset => "RESET",
            Self::Show => "SHOW",
            Self::Discard => "DISCARD",
            Self::Deallocate => "DEALLOCATE",
            Self::Listen => "LISTEN",
            Self::Unlisten => "UNLISTEN",
            Self::Notify => "NOTIFY",
            Self::Prepare => "PREPARE",
            Self::Execute => "EXECUTE",
            Self::Do => "DO",
            Self::Call => "CALL",
            Self::Copy => "COPY",
            Self::Select => "SELECT",
            Self::Dml => "INSERT, UPDATE, DELETE or MERGE",
            Self::Ddl => "data definition",
            Self::Explain => "EXPLAIN",
            Self::Other => "another statement",
        }
    }
}

/// Why there is no parse tree of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unparsed {
    /// The parser could not read it.
    Syntax,
    /// It was not given to the parser: the tree would take too much memory.
    Tokens,
}

impl std::fmt::Display for Unparsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Syntax => "the statement could not be parsed",
            Self::Tokens => "the statement holds too many tokens",
        })
    }
}

impl std::error::Error for Unparsed {}

/// Longest run of operator bytes outside literals that is given to the parser (bytes). Its lexer takes time
/// with the square of such a run: 100 kB of `/*` keep it busy for 15 seconds.
const OPERATOR_RUN_MAX: usize = 256;

/// The text for the parser: as it is, or byte by byte.
pub(super) fn readable(text: &[u8]) -> Result<Cow<'_, str>, Unparsed> {
    if scan::longest_operator_run(text) > OPERATOR_RUN_MAX {
        return Err(Unparsed::Syntax);
    }
    Ok(match std::str::from_utf8(text) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(text.iter().copied().map(char::from).collect()),
    })
}

/// The parse tree of a text.
pub(super) fn tree(text: &str) -> Result<protobuf::ParseResult, Unparsed> {
    if is_too_much(text.as_bytes()) {
        return Err(Unparsed::Tokens);
    }
    pg_query::parse(text, 0).map(|parsed| parsed.protobuf).map_err(|_| Unparsed::Syntax)
}

fn is_too_much(text: &[u8]) -> bool {
    if text.len() <= TREE_TOKENS_MAX / TREE_NAME_TOKENS {
        return false;
    }
    let mut tokens = 0;
    scan::scan(text, true).any(|token| {
        use scan::Kind as K;
        let written = &text[token.start..token.end];
        tokens += match token.kind {
            // The server's lexer takes some for several, and a run that is too long for one operator for that many signs.
            K::Operator | K::Junk => TREE_NAME_TOKENS * written.len(),
            K::Word
                if ["null", "default"].iter().any(|word| written.eq_ignore_ascii_case(word.as_bytes())) =>
            {
                1
            }
            K::Word | K::Quoted | K::UnicodeQuoted | K::Unterminated => TREE_NAME_TOKENS,
            _ => 1,
        };
        tokens > TREE_TOKENS_MAX
    })
}

/// How many statements a text holds; empty ones don't count.
///
/// # Errors
/// The parser could not read it.
pub fn statement_count(text: &[u8]) -> Result<usize, Unparsed> {
    pg_query::is_utility_stmt(&readable(text)?).map(|each| each.len()).map_err(|_| Unparsed::Syntax)
}

/// The kind of each statement of a text, in order; nothing for an empty text.
///
/// # Errors
/// The parser could not read it.
pub fn kinds(text: &[u8]) -> Result<Vec<Kind>, Unparsed> {
    let tree = tree(&readable(text)?)?;
    Ok(tree.stmts.iter().map(|raw| kind(node_of(raw))).collect())
}

/// Schemas, full relation names and not their aliases go into a fingerprint: two statements on different
/// relations must never share one.
pub(super) fn full_names() -> pg_query::FingerprintOptions {
    pg_query::FingerprintOptions::RANGEVAR_PG17_COMPAT | pg_query::FingerprintOptions::FULL_RELNAME
}

/// A name for the statements of a text that is the same whatever their literals are: 16 hexadecimal digits.
///
/// # Errors
/// The parser could not read it.
pub fn fingerprint(text: &[u8]) -> Result<String, Unparsed> {
    pg_query::fingerprint(&readable(text)?, 0, full_names())
        .map(|found| found.hex)
        .map_err(|_| Unparsed::Syntax)
}

pub(super) fn node_of(raw: &protobuf::RawStmt) -> Option<&NodeEnum> {
    raw.stmt.as_ref()?.node.as_ref()
}

pub(super) fn kind(node: Option<&NodeEnum>) -> Kind {
    use NodeEnum as N;
    match node {
        None => Kind::Other,
        Some(N::TransactionStmt(stmt)) => transaction_kind(stmt.kind()),
        Some(N::VariableSetStmt(stmt)) => match stmt.kind() {
            protobuf::VariableSetKind::VarReset | protobuf::VariableSetKind::VarResetAll => Kind::Reset,
            _ => Kind::Set,
        },
        Some(N::ConstraintsSetStmt(_)) => Kind::Set,
        Some(N::VariableShowStmt(_)) => Kind::Show,
        Some(N::DiscardStmt(_)) => Kind::Discard,
        Some(N::DeallocateStmt(_)) => Kind::Deallocate,
        Some(N::ListenStmt(_)) => Kind::Listen,
        Some(N::UnlistenStmt(_)) => Kind::Unlisten,
        Some(N::NotifyStmt(_)) => Kind::Notify,
        Some(N::PrepareStmt(_)) => Kind::Prepare,
        Some(N::ExecuteStmt(_)) => Kind::Execute,
        Some(N::DoStmt(_)) => Kind::Do,
        Some(N::CallStmt(_)) => Kind::Call,
        Some(N::CopyStmt(_)) => Kind::Copy,
        Some(N::ExplainStmt(_)) => Kind::Explain,
        // SELECT ... INTO makes a table.
        Some(N::SelectStmt(stmt)) if stmt.into_clause.is_some() => Kind::Ddl,
        Some(N::SelectStmt(_)) => Kind::Select,
        Some(N::InsertStmt(_) | N::UpdateStmt(_) | N::DeleteStmt(_) | N::MergeStmt(_)) => Kind::Dml,
        Some(
            N::DeclareCursorStmt(_)
            | N::ClosePortalStmt(_)
            | N::FetchStmt(_)
            | N::LockStmt(_)
            | N::VacuumStmt(_)
            | N::ClusterStmt(_)
            | N::ReindexStmt(_)
            | N::CheckPointStmt(_)
            | N::LoadStmt(_)
            | N::RefreshMatViewStmt(_),
        ) => Kind::Other,
        // All the rest changes definitions.
        Some(_) => Kind::Ddl,
    }
}

fn transaction_kind(kind: protobuf::TransactionStmtKind) -> Kind {
    use protobuf::TransactionStmtKind as T;
    match kind {
        T::TransStmtBegin | T::TransStmtStart => Kind::Begin,
        T::TransStmtCommit => Kind::Commit,
        T::TransStmtRollback => Kind::Rollback,
        T::TransStmtSavepoint => Kind::Savepoint,
        T::TransStmtRelease | T::TransStmtRollbackTo => Kind::Release,
        T::TransStmtPrepare | T::TransStmtCommitPrepared | T::TransStmtRollbackPrepared => Kind::TwoPhase,
        T::Undefined => Kind::Other,
    }
}

/// The target of the INSERT that [`super::insert::lift`] took apart, with the scan's classes, where the parser sees in all of
/// its rows what the scan saw. For tests of the two; a plan compares them itself.
///
/// # Errors
/// [`NotPourable::Disagreement`] when it does not.
pub fn target_of(text: &[u8], lifted: &Lifted) -> Result<InsertTarget, NotPourable> {
    let (mut target, all) = parse_insert(&with_readable_strings(text, lifted)?)?;
    let same = all.len() == lifted.items.len()
        && target.items.len() == lifted.row(0).len()
        && all.iter().zip(&lifted.items).all(|(tree, item)| is_same(*tree, item.class))
        && target.types == lifted.types
        && (target.conflict, target.returning.is_some()) == (lifted.tail.conflict, lifted.tail.returning)
        && target.items.contains(&Class::Computed) == lifted.tail.computed;
    if !same {
        return Err(NotPourable::Disagreement);
    }
    target.items.clear();
    target.items.extend(lifted.row(0).iter().map(|item| item.class));
    Ok(target)
}

/// May the scanner have called this so? The tree has no sign for zero, one kind of string, and words of its grammar that are names on older servers.
pub fn is_same(tree: Class, scanned: Class) -> bool {
    match (tree, scanned) {
        (Class::Integer, Class::SignedInteger) | (Class::String, Class::Escaped) => true,
        (Class::CastParam(a, to), Class::CastParam(b, like)) => a == b && to.is_same(like),
        (Class::CastString(to), Class::CastString(like)) | (Class::CastNull(to), Class::CastNull(like)) => {
            to.is_same(like)
        }
        (tree, scanned) => tree == scanned,
    }
}

/// The text; where its strings are not UTF-8, with letters of ASCII in their place: what they say is no matter here. Each item stands where
/// it stood.
///
/// # Errors
/// [`NotPourable::Name`] when something else is not UTF-8.
pub fn with_readable_strings<'a>(text: &'a [u8], lifted: &Lifted) -> Result<Cow<'a, str>, NotPourable> {
    if let Ok(text) = std::str::from_utf8(text) {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = text.to_vec();
    let is_string = |class| matches!(class, Class::String | Class::Escaped | Class::CastString(_));
    for item in lifted.items.iter().filter(|item| is_string(item.class)) {
        let string = out.get_mut(item.start..item.end).ok_or(NotPourable::Disagreement)?;
        string.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'x');
    }
    String::from_utf8(out).map(Cow::Owned).map_err(|_| NotPourable::Name)
}

/// The target of an INSERT, and the classes of its first row.
///
/// # Errors
/// Why the tree rules pouring out.
pub fn insert_target(text: &str) -> Result<InsertTarget, NotPourable> {
    parse_insert(text).map(|(target, _)| target)
}

/// As [`insert_target`], with the classes of all rows.
fn parse_insert(text: &str) -> Result<(InsertTarget, Vec<Class>), NotPourable> {
    let text = readable(text.as_bytes()).map_err(|_| NotPourable::Syntax)?;
    let tree = tree(&text).map_err(|unparsed| match unparsed {
        Unparsed::Syntax => NotPourable::Syntax,
        Unparsed::Tokens => NotPourable::Count,
    })?;
    let stmt = match tree.stmts.as_slice() {
        [] => return Err(NotPourable::NotInsert),
        [raw] => match node_of(raw) {
            Some(NodeEnum::InsertStmt(stmt)) => stmt,
            _ => return Err(NotPourable::NotInsert),
        },
        _ => return Err(NotPourable::SecondStatement),
    };
    refuse_clauses(stmt)?;
    let conflict = stmt.on_conflict_clause.is_some();
    let relation = stmt.relation.as_ref().ok_or(NotPourable::Disagreement)?;
    if !relation.catalogname.is_empty() || !relation.inh || relation.relname.is_empty() {
        return Err(NotPourable::Name);
    }
    if relation.alias.as_ref().is_some_and(|alias| hides(&alias.aliasname) || !alias.colnames.is_empty()) {
        return Err(NotPourable::Alias);
    }
    let schema = (!relation.schemaname.is_empty()).then(|| relation.schemaname.clone());
    let name_as_written = match &schema {
        Some(schema) => format!("{}.{}", quote_ident(schema), quote_ident(&relation.relname)),
        None => quote_ident(&relation.relname),
    };
    let columns: Vec<String> = stmt.cols.iter().map(column).collect::<Result<_, _>>()?;
    let (mut types, mut used) = (Vec::new(), Used::default());
    let rows = rows(stmt, &mut types, &mut used)?;
    let items = rows.first().cloned().unwrap_or_default();
    if rows.iter().any(|row| row.len() != items.len()) {
        return Err(NotPourable::Count);
    }
    if !columns.is_empty() && columns.len() != items.len() {
        return Err(NotPourable::Count);
    }
    let updates = updates(stmt, relation, &mut used)?;
    let returning = returning(stmt, relation)?;
    let table = relation.relname.clone();
    let target = InsertTarget {
        schema,
        table,
        columns,
        name_as_written,
        items,
        conflict,
        updates,
        used,
        returning,
        types,
        type_oids: Vec::new(),
    };
    Ok((target, rows.concat()))
}

/// ON CONFLICT by names alone: what its DO UPDATE sets.
fn updates(
    stmt: &protobuf::InsertStmt,
    relation: &protobuf::RangeVar,
    used: &mut Used,
) -> Result<Vec<Update>, NotPourable> {
    let Some(clause) = &stmt.on_conflict_clause else { return Ok(Vec::new()) };
    let plain = |node: &protobuf::Node| match node.node.as_ref() {
        Some(NodeEnum::IndexElem(element)) => {
            element.expr.is_none() && element.collation.is_empty() && element.opclass.is_empty()
        }
        _ => false,
    };
    let by_names = clause
        .infer
        .as_ref()
        .is_none_or(|infer| infer.where_clause.is_none() && infer.index_elems.iter().all(plain));
    if !by_names {
        return Err(NotPourable::OnConflict);
    }
    let (schema, table) = called(relation);
    let mut reader = Reader { used, table: Some((schema, table)), lazy: true };
    let where_clause = clause.where_clause.as_deref();
    match clause.action() {
        protobuf::OnConflictAction::OnconflictNothing if where_clause.is_none() => Ok(Vec::new()),
        protobuf::OnConflictAction::OnconflictUpdate if !clause.target_list.is_empty() => {
            let updates = clause.target_list.iter().map(|node| updated(node, &mut reader));
            let updates = updates.collect::<Option<_>>().ok_or(NotPourable::OnConflict)?;
            where_clause.map_or(Some(()), |node| reader.read(node)).ok_or(NotPourable::OnConflict)?;
            Ok(updates)
        }
        _ => Err(NotPourable::OnConflict),
    }
}

/// `name = expression`. `None`: something else, or not a harmless one.
fn updated(node: &protobuf::Node, reader: &mut Reader<'_>) -> Option<Update> {
    let NodeEnum::ResTarget(target) = node.node.as_ref()? else { return None };
    let value = target.val.as_deref()?;
    if !target.indirection.is_empty() {
        return None;
    }
    let excluded = match value.node.as_ref()? {
        NodeEnum::ColumnRef(value) => match value.fields.as_slice() {
            [row, column] => is_name(row, "excluded") && is_name(column, &target.name),
            _ => false,
        },
        _ => false,
    };
    let to = match value.node.as_ref()? {
        _ if excluded => SetTo::Excluded,
        NodeEnum::ParamRef(param) => SetTo::Param(param_number(param).ok()?),
        _ => {
            reader.read_into(&target.name, value)?;
            SetTo::Computed
        }
    };
    Some(Update { column: target.name.clone(), to })
}

/// The schema and the name that its columns are called by. By its alias a table is called alone, and without its schema.
fn called(relation: &protobuf::RangeVar) -> (&str, &str) {
    match &relation.alias {
        Some(alias) => ("", alias.aliasname.as_str()),
        None => (relation.schemaname.as_str(), relation.relname.as_str()),
    }
}

/// What RETURNING names: the table's columns, and nothing else.
fn returning(
    stmt: &protobuf::InsertStmt,
    relation: &protobuf::RangeVar,
) -> Result<Option<Vec<Returned>>, NotPourable> {
    let Some(clause) = &stmt.returning_clause else { return Ok(None) };
    let (schema, table) = called(relation);
    let hidden = hides(table);
    if !clause.options.is_empty() {
        return Err(NotPourable::Returning);
    }
    let named = |node: &protobuf::Node| {
        let NodeEnum::ColumnRef(column) = node.node.as_ref()? else { return None };
        let last = match column.fields.as_slice() {
            [last] => last,
            [first, last] if is_name(first, table) && !hidden => last,
            // A schema that the statement itself does not name may be another one's.
            [zero, first, last] if is_name(zero, schema) && is_name(first, table) && !hidden => last,
            _ => return None,
        };
        match last.node.as_ref()? {
            NodeEnum::AStar(_) => Some(Returned::All),
            NodeEnum::String(name) => Some(Returned::Column(name.sval.clone())),
            _ => None,
        }
    };
    let entry = |node: &protobuf::Node| {
        let Some(NodeEnum::ResTarget(target)) = node.node.as_ref() else { return None };
        let value = target.val.as_ref()?;
        match value.node.as_ref()? {
            NodeEnum::AConst(constant) if constant.isnull => Some(Returned::Null),
            NodeEnum::TypeCast(cast) => {
                let to = type_of(cast, &mut Vec::new())?;
                let Returned::Column(name) = named(cast.arg.as_ref()?)? else { return None };
                (to.is_text() && to.looked_up).then_some(Returned::Text(name))
            }
            _ => named(value),
        }
    };
    clause.exprs.iter().map(entry).collect::<Option<_>>().map(Some).ok_or(NotPourable::Returning)
}

/// A table called so would be hidden by the aliases of what was there before and after.
fn hides(name: &str) -> bool {
    ["old", "new", "excluded"].contains(&name)
}

pub(super) fn is_name(node: &protobuf::Node, name: &str) -> bool {
    matches!(node.node.as_ref(), Some(NodeEnum::String(found)) if found.sval == name)
}

fn refuse_clauses(stmt: &protobuf::InsertStmt) -> Result<(), NotPourable> {
    if stmt.with_clause.is_some() {
        return Err(NotPourable::NotValues);
    }
    match stmt.r#override() {
        protobuf::OverridingKind::OverridingNotSet => Ok(()),
        _ => Err(NotPourable::Overriding),
    }
}

fn column(node: &protobuf::Node) -> Result<String, NotPourable> {
    match node.node.as_ref() {
        Some(NodeEnum::ResTarget(target)) if target.indirection.is_empty() && target.val.is_none() => {
            Ok(target.name.clone())
        }
        _ => Err(NotPourable::Subscript),
    }
}

/// The classes of each row of VALUES.
fn rows(
    stmt: &protobuf::InsertStmt,
    types: &mut Vec<OtherType>,
    used: &mut Used,
) -> Result<Vec<Vec<Class>>, NotPourable> {
    let source = stmt.select_stmt.as_ref().ok_or(NotPourable::DefaultValues)?;
    let Some(NodeEnum::SelectStmt(select)) = source.node.as_ref() else {
        return Err(NotPourable::NotValues);
    };
    let plain = protobuf::SelectStmt {
        values_lists: select.values_lists.clone(),
        limit_option: select.limit_option,
        op: select.op,
        ..protobuf::SelectStmt::default()
    };
    if **select != plain || select.op() != protobuf::SetOperation::SetopNone {
        return Err(NotPourable::NotValues);
    }
    if select.values_lists.is_empty() {
        return Err(NotPourable::NotValues);
    }
    let mut item = |item: &protobuf::Node| match class(item, types) {
        Err(NotPourable::Expression) => {
            let read = Reader { used, table: None, lazy: false }.read(item);
            read.map(|()| Class::Computed).ok_or(NotPourable::Expression)
        }
        class => class,
    };
    let row = |node: &protobuf::Node| match node.node.as_ref() {
        Some(NodeEnum::List(list)) => list.items.iter().map(&mut item).collect(),
        _ => Err(NotPourable::NotValues),
    };
    select.values_lists.iter().map(row).collect()
}

fn class(node: &protobuf::Node, types: &mut Vec<OtherType>) -> Result<Class, NotPourable> {
    match node.node.as_ref() {
        Some(NodeEnum::SetToDefault(_)) => Ok(Class::Default),
        Some(NodeEnum::ParamRef(param)) => param_number(param).map(Class::Param),
        Some(NodeEnum::TypeCast(cast)) => cast_of(cast, types).unwrap_or(Err(NotPourable::Expression)),
        Some(NodeEnum::AConst(constant)) => match &constant.val {
            None if constant.isnull => Ok(Class::Null),
            Some(Val::Ival(value)) if value.ival < 0 => Ok(Class::SignedInteger),
            Some(Val::Ival(_)) => Ok(Class::Integer),
            Some(Val::Fval(value)) => number_class(&value.fval),
            Some(Val::Boolval(value)) => Ok(if value.boolval { Class::True } else { Class::False }),
            Some(Val::Sval(_)) => Ok(Class::String),
            _ => Err(NotPourable::Literal),
        },
        _ => Err(NotPourable::Expression),
    }
}

pub(super) fn param_number(param: &protobuf::ParamRef) -> Result<u16, NotPourable> {
    u16::try_from(param.number).map_err(|_| NotPourable::Params)
}

/// `$n::type`, `$n::text::type`, `'...'::type`, `'...'::type::type` or `NULL::type`. `None`: it is another cast.
fn cast_of(cast: &protobuf::TypeCast, types: &mut Vec<OtherType>) -> Option<Result<Class, NotPourable>> {
    match cast.arg.as_ref()?.node.as_ref()? {
        NodeEnum::ParamRef(param) => {
            let to = type_of(cast, types)?;
            Some(param_number(param).map(|n| Class::CastParam(n, to)))
        }
        NodeEnum::TypeCast(inner) => {
            let through = type_of(inner, types)?;
            let to = type_of(cast, types)?;
            match inner.arg.as_ref()?.node.as_ref()? {
                NodeEnum::ParamRef(param) if through.is_text() => {
                    Some(param_number(param).map(|n| Class::CastParam(n, to.behind(through))))
                }
                NodeEnum::AConst(protobuf::AConst { val: Some(Val::Sval(_)), .. }) if to.is_same(through) => {
                    Some(Ok(Class::CastString(to)))
                }
                _ => None,
            }
        }
        NodeEnum::AConst(protobuf::AConst { val: Some(Val::Sval(_)), .. }) => {
            Some(Ok(Class::CastString(type_of(cast, types)?)))
        }
        NodeEnum::AConst(constant) if constant.isnull => Some(Ok(Class::CastNull(type_of(cast, types)?))),
        _ => None,
    }
}

pub(super) fn type_of(cast: &protobuf::TypeCast, types: &mut Vec<OtherType>) -> Option<Cast> {
    let name = cast.type_name.as_ref()?;
    let plain = name.typemod == -1 && !name.setof && !name.pct_type;
    let names: Vec<&str> = name
        .names
        .iter()
        .map(|part| match part.node.as_ref() {
            Some(NodeEnum::String(part)) => Some(part.sval.as_str()),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let (schema, last) = match names[..] {
        [schema, last] => (Some(schema), last),
        [last] => (None, last),
        _ => return None,
    };
    let modifiers: Vec<i32> = numbers(&name.typmods)?;
    let array = match numbers(&name.array_bounds)?[..] {
        [] => false,
        [-1] => true,
        _ => return None,
    };
    match modifiers[..] {
        _ if !plain => None,
        [] => Cast::of_name(schema.map(str::to_owned), last.to_owned(), array, types),
        _ if array => None,
        [precision] => Cast::of_names(schema, last)?.with_modifier(precision, 0),
        [precision, scale] => Cast::of_names(schema, last)?.with_modifier(precision, scale),
        _ => None,
    }
}

/// Of a list of plain ones. `None`: there is something else.
fn numbers(nodes: &[protobuf::Node]) -> Option<Vec<i32>> {
    let number = |node: &protobuf::Node| match node.node.as_ref() {
        Some(NodeEnum::AConst(protobuf::AConst { val: Some(Val::Ival(value)), .. })) => Some(value.ival),
        Some(NodeEnum::Integer(value)) => Some(value.ival),
        _ => None,
    };
    nodes.iter().map(number).collect()
}

/// The class of a number that the tree keeps as text.
fn number_class(text: &str) -> Result<Class, NotPourable> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let signed = digits.len() < text.len();
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    match digits.split_once('.') {
        None if all_digits(digits) => Ok(if signed { Class::SignedInteger } else { Class::Integer }),
        Some((whole, part)) if all_digits(whole) && all_digits(part) => {
            Ok(if signed { Class::SignedDecimal } else { Class::Decimal })
        }
        _ => Err(NotPourable::Literal),
    }
}

fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests;
