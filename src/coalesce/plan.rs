//! How one INSERT becomes a row of a COPY: built once for a shape (or prepared statement) and a table.
//!
//! Owns: which literal and which parameter may go into which column type (`rules`), which columns may be left out, and the COPY's text.
//! Never: a row's bytes, a cache. A statement whose COPY is not proven equal is refused, with a [`Reason`].
//!
//! The rule behind all of it: a COPY may fail where the INSERT would not (then the INSERT itself is run), but it must never
//! succeed where the INSERT would have failed or stored something else.

pub mod literal;
mod rules;

use std::fmt::Write as _;

use super::catalog::{Column, DefaultKind, Identity, Reason, Table, lookup_name};
use crate::limits::{NAME_BYTES_MAX, VALUES_ROWS_MAX};
use crate::sql::cast::{self, Cast, OtherType};
use crate::sql::expression::Source;
use crate::sql::insert::{Class, Item};
use crate::sql::meaning::{self, InsertTarget, Returned, SetTo, Update};
use crate::wire::Oid;
use literal::FixedField;
pub use rules::{ClassSet, IntWidth, Lasting, LiteralRule, ParamRule, Print, Temporal, oid};
use rules::{
    class_name, fixed_literal, is_constant_set_unfailingly, is_set_unfailingly, is_used_unfailingly,
    literal_rule, may_be_used, means_time, modifier_changes_parameter, modifier_is_own, output_is_proven,
    param_as_sent, param_rule, takes_computed, text_is_proven, type_is_proven,
};

/// Longest value of a plan that was given no other bound (bytes); the default of `coalesce.max_value_bytes`.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// What becomes of one item of the VALUES list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemRule {
    /// DEFAULT: the column is left out of the COPY.
    LeftOut,
    /// A literal that each row brings.
    Literal(LiteralRule),
    /// A literal of the prepared statement: the same in every row.
    Fixed(FixedField),
    /// A parameter.
    Param(ParamRule),
    /// The server computes it.
    Computed,
}

/// How a few rows of one table go as one INSERT: each value a parameter of its column's own type.
///
/// Exact where the server says nothing of single rows but by an error, and an error is never passed on: then the rows go as a
/// COPY, which names the guilty one. So not for tables whose functions send notices; and a text has to mean for a parameter what
/// it means for the column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManyValues {
    /// `INSERT INTO "schema"."table" ("a", "b") VALUES `.
    into: String,
    /// The columns' types.
    types: Vec<Oid>,
}

/// Most values of one such INSERT. Each costs the server more than a field of a COPY does: somewhere beyond this, and at about a
/// hundred even where a COPY has defaults to plan, a COPY does less (`make bench-seeds CELLS=plans`).
const VALUES_MAX: usize = 40;

impl ManyValues {
    fn of(table: &Table, given: &[&Column]) -> Option<Self> {
        let plain = given.iter().all(|column| !modifier_changes_parameter(column, column.type_oid));
        // What has a sentinel has no partitions and no types of users.
        let exact = table.quiet && table.has_sentinel() && plain;
        exact.then(|| Self {
            into: format!("INSERT INTO {} ({}) VALUES ", table.target, column_list(given)),
            types: given.iter().map(|column| column.type_oid).collect(),
        })
    }

    /// Most rows of one.
    pub fn rows_max(&self) -> usize {
        (VALUES_MAX / self.types.len()).min(VALUES_ROWS_MAX)
    }

    /// The INSERT of this many rows, and its parameters' types as Parse has them.
    pub fn statement(&self, rows: usize) -> (String, Vec<u8>) {
        let columns = self.types.len();
        let mut sql = self.into.clone();
        for parameter in 0..rows * columns {
            let before = match (parameter, parameter % columns) {
                (0, _) => "(",
                (_, 0) => "), (",
                _ => ", ",
            };
            let _ = write!(sql, "{before}${}", parameter + 1);
        }
        sql.push(')');
        let row: Vec<u8> = self.types.iter().flat_map(|oid| oid.to_be_bytes()).collect();
        (sql, row.repeat(rows))
    }
}

/// How the rows of one statement reach one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InsertPlan {
    /// The table.
    pub relid: Oid,
    /// `"schema"."table"`.
    pub target: String,
    /// The table's own name, as COPY's CONTEXT lines show it.
    pub relname: String,
    /// For the guard.
    pub name_as_written: String,
    /// The types that casts name, for the guard: an array of texts.
    pub types: String,
    /// The functions of users that an INSERT calls, for the guard: an array of oids.
    pub functions: String,
    /// The functions and operators by whose names it computes, for the guard: an array of names. Empty where no cast, either, could be
    /// another one.
    pub names: String,
    /// For the guard. With what the types are.
    pub fingerprint: String,
    /// The cheap guard may stand in for the full one ([`super::catalog::sentinel_sql`]).
    pub has_sentinel: bool,
    /// The partitioned table that the table is a part of, or itself.
    pub root: Oid,
    /// The roots of the tables that its foreign keys refer to.
    pub references: Vec<Oid>,
    /// The COPY of text rows. Plans with the same text may share a batch (of one format and one session key).
    pub copy_text_sql: String,
    /// The COPY of binary rows, when a row can be all binary.
    pub copy_binary_sql: Option<String>,
    /// The INSERT of a few rows, where that is exact.
    pub values: Option<ManyValues>,
    /// One rule for each item of the VALUES list.
    pub items: Vec<ItemRule>,
    /// Fields of a COPY row: the items that are not left out.
    pub fields: u16,
    /// Literals among them.
    pub literals: u16,
    /// Parameters of the statement.
    pub params: usize,
    /// The parameters stand in the VALUES list in their order.
    pub params_in_order: bool,
    /// A left-out column takes the transaction's time: at most one unit of a client in one batch, unless they share a
    /// transaction anyway. Single values can ask for the same: `RowInfo::own_time`.
    pub one_row_per_client: bool,
    /// A left-out column draws from a sequence.
    pub draws_sequence: bool,
    /// Those sequences, for the look before the rows: an array of oids.
    pub sequences: String,
    /// The most that the column of each takes: an array of integers.
    pub most: String,
    /// Longest value that is poured (bytes). Set it from `coalesce.max_value_bytes`.
    pub max_value_bytes: usize,
}

impl InsertPlan {
    /// Do rows of one of the two tables refer to rows of the other? Then the order of statements over both matters
    /// between clients, too: of two that each need the other's row, neither may be served.
    pub fn is_tied_to(&self, other: &Self) -> bool {
        self.root != other.root
            && (self.references.contains(&other.root) || other.references.contains(&self.root))
    }

    /// Memory that it takes (bytes), about.
    pub fn bytes(&self) -> usize {
        let texts = [
            &self.target,
            &self.relname,
            &self.name_as_written,
            &self.types,
            &self.functions,
            &self.names,
            &self.fingerprint,
            &self.copy_text_sql,
            &self.sequences,
            &self.most,
        ];
        let literal = |item: &ItemRule| if let ItemRule::Fixed(fixed) = item { fixed.bytes() } else { 0 };
        texts.into_iter().chain(&self.copy_binary_sql).map(String::len).sum::<usize>()
            + self.values.as_ref().map_or(0, |values| values.into.len() + size_of_val(&*values.types))
            + size_of_val(&*self.items)
            + self.items.iter().map(literal).sum::<usize>()
    }

    /// The table as the configuration names it: `schema.table`, without quotes.
    pub fn configured_name(&self) -> String {
        let mut quoted = String::new();
        super::catalog::put_identifier(&mut quoted, &self.relname);
        let schema = self.target.strip_suffix(&quoted).and_then(|rest| rest.strip_suffix('.')).unwrap_or("");
        let schema = schema.strip_prefix('"').and_then(|s| s.strip_suffix('"')).unwrap_or(schema);
        format!("{}.{}", schema.replace("\"\"", "\""), self.relname)
    }
}

/// Plans an INSERT of literals alone: simple protocol. `target.items` are the classes of one row.
///
/// Errors: why its rows must leave as they were sent.
pub fn plan_literals(table: &Table, target: &InsertTarget) -> Result<InsertPlan, Reason> {
    may_be_unnamed(table, target)?;
    build(table, target, 0, |_, class, column| match class {
        Class::Default => Ok(ItemRule::LeftOut),
        Class::Param(_) | Class::CastParam(..) => Err(Reason::ParameterList),
        class => literal_rule(class, target, column).map(ItemRule::Literal),
    })
}

/// Plans a prepared INSERT: parameters, and literals where they are safe. `text` and `items` are the statement's own
/// (one row); `param_oids` what the *server* resolved for it (ParameterDescription).
///
/// Errors: why its rows must leave as they were sent.
pub fn plan_params(
    table: &Table,
    target: &InsertTarget,
    text: &[u8],
    items: &[Item],
    param_oids: &[Oid],
) -> Result<InsertPlan, Reason> {
    if !each_once(&target.items, param_oids.len()) {
        return Err(Reason::ParameterList);
    }
    may_be_unnamed(table, target)?;
    build_params(table, target, (text, items), param_oids, param_rule)
}

/// May the columns that are given DEFAULT go without their names? The INSERT asks for the privilege to insert into each column that it
/// names, the COPY for those of the values. They are one and the same where nobody has it for single columns, whatever roles are given
/// or taken; and whether somebody has is in the fingerprint.
fn may_be_unnamed(table: &Table, target: &InsertTarget) -> Result<(), Reason> {
    if !table.granted_by_column {
        return Ok(());
    }
    let columns = target_columns(table, target)?;
    let unnamed = columns.iter().zip(&target.items).find(|(_, class)| **class == Class::Default);
    unnamed.map_or(Ok(()), |(column, _)| Err(Reason::DefaultPrivilege(column.name.clone())))
}

/// The scanner and the parser must have seen the same statement: the list of one is that of the other.
fn build_params(
    table: &Table,
    target: &InsertTarget,
    (text, items): (&[u8], &[Item]),
    param_oids: &[Oid],
    rule: impl Fn(usize, Oid, &Column) -> Result<ParamRule, Reason>,
) -> Result<InsertPlan, Reason> {
    let classes_agree = items.len() == target.items.len()
        && items.iter().zip(&target.items).all(|(item, tree)| meaning::is_same(*tree, item.class));
    let numbers = target.items.iter().filter_map(|class| class.param());
    if !classes_agree || !numbers.chain(target.used_params()).all(|number| is_one_of(number, param_oids)) {
        return Err(Reason::ParameterList);
    }
    build(table, target, param_oids.len(), |at, class, column| match class {
        Class::Default => Ok(ItemRule::LeftOut),
        Class::Computed => takes_computed(column).map(|()| ItemRule::Computed),
        Class::Param(number) => {
            let index = usize::from(number) - 1;
            rule(index, param_oids[index], column).map(ItemRule::Param)
        }
        Class::CastParam(number, cast) => {
            let index = usize::from(number) - 1;
            cast_param(index, cast, param_oids[index], target, column, &rule).map(ItemRule::Param)
        }
        class => fixed_literal(class, text, items[at], target, column),
    })
}

fn is_one_of(number: u16, param_oids: &[Oid]) -> bool {
    (1..=param_oids.len()).contains(&usize::from(number))
}

/// A parameter of type `oid` that is cast.
fn cast_param(
    index: usize,
    cast: Cast,
    oid: Oid,
    target: &InsertTarget,
    column: &Column,
    rule: impl Fn(usize, Oid, &Column) -> Result<ParamRule, Reason>,
) -> Result<ParamRule, Reason> {
    let refused = || Reason::Parameter { column: column.name.clone(), oid, base: column.base_name.clone() };
    let to = target.type_oid(cast).ok_or_else(refused)?;
    // The column gets a value of the cast's type.
    let own = rule(index, to, column)?;
    if cast::is_text(oid) && !cast::is_text(to) {
        // Explicit casts from a text are the type's own input, as a parameter's of that type in text, where nobody made a function.
        let read = to == column.base_oid && cast.typmod < 0 && !column.cast_from_text;
        return if read {
            Ok(ParamRule { print: Print::Text, as_text: true, ..own })
        } else {
            Err(refused())
        };
    }
    if cast.through_text || !cast::is_plain(oid, to) || !modifier_is_own(cast, to, oid, column) {
        return Err(refused());
    }
    rule(index, oid, column)
}

/// Plans an INSERT whose rows cannot leave as a COPY (RETURNING, ON CONFLICT, expressions), but as it is: one after another with
/// those of others in one transaction. Of literals: each becomes a parameter of its column's type.
///
/// Errors: why it must have a transaction of its own.
pub fn plan_literals_together(table: &Table, target: &InsertTarget) -> Result<InsertPlan, Reason> {
    may_be_returned(table, target)?;
    may_be_updated(table, target)?;
    may_be_computed(table, target, &[])?;
    build(table, target, 0, |_, class, column| match class {
        Class::Default => Ok(ItemRule::LeftOut),
        Class::Computed => takes_computed(column).map(|()| ItemRule::Computed),
        Class::Param(_) | Class::CastParam(..) => Err(Reason::ParameterList),
        class if modifier_changes_parameter(column, column.type_oid) => Err(Reason::Literal {
            column: column.name.clone(),
            class: class_name(class),
            base: column.base_name.clone(),
        }),
        class => literal_rule(class, target, column).map(ItemRule::Literal),
    })
}

/// As [`plan_literals_together`], of a prepared statement; see [`plan_params`].
///
/// Errors: as above.
pub fn plan_params_together(
    table: &Table,
    target: &InsertTarget,
    text: &[u8],
    items: &[Item],
    param_oids: &[Oid],
) -> Result<InsertPlan, Reason> {
    may_be_returned(table, target)?;
    may_be_updated(table, target)?;
    may_be_computed(table, target, param_oids)?;
    let plan = build_params(table, target, (text, items), param_oids, param_as_sent)?;
    let own_time = target.used_params().any(|number| means_time(param_oids[usize::from(number) - 1]));
    Ok(InsertPlan { one_row_per_client: plan.one_row_per_client || own_time, ..plan })
}

/// May RETURNING show these columns? Their output must depend on nothing but settings of the key, and be about as long as what
/// was sent.
fn may_be_returned(table: &Table, target: &InsertTarget) -> Result<(), Reason> {
    for returned in target.returning.iter().flatten() {
        match returned {
            Returned::Null => {}
            Returned::All => table.columns.iter().try_for_each(output_is_proven)?,
            Returned::Column(name) => output_is_proven(returned_column(table, name)?)?,
            Returned::Text(name) => text_is_proven(returned_column(table, name)?)?,
        }
    }
    Ok(())
}

/// May DO UPDATE set these columns? After another client's statement in the same transaction it must do what it would have done after that
/// one's COMMIT: nothing may be checked later than the statement itself.
fn may_be_updated(table: &Table, target: &InsertTarget) -> Result<(), Reason> {
    target.updates.iter().try_for_each(|update| {
        let column = returned_column(table, &update.column)?;
        let alone = table.updates_alone && !column.in_key && !column.generated;
        if alone { Ok(()) } else { Err(Reason::Update(update.column.clone())) }
    })
}

/// May this be computed? Of PostgreSQL's own types alone, so that its own functions, operators and casts are meant, and nothing may
/// fail in a statement of its own that does not fail here.
fn may_be_computed(table: &Table, target: &InsertTarget, param_oids: &[Oid]) -> Result<(), Reason> {
    let used = &target.used;
    let oid = |number: u16| oid_of(number, param_oids);
    let mut types: Vec<Oid> = used.casts.iter().chain(&used.makes).copied().map(Oid::from).collect();
    for name in &used.columns {
        let column = returned_column(table, name)?;
        takes_computed(column)?;
        // A virtual one is what it is computed from, a constant perhaps.
        if column.generated && !used.lazy_params.is_empty() {
            return Err(Reason::GeneratedColumn(name.clone()));
        }
        types.push(column.type_oid);
    }
    for Update { column: name, to } in &target.updates {
        let column = returned_column(table, name)?;
        match to {
            SetTo::Excluded => {}
            SetTo::Computed => {
                takes_computed(column)?;
                types.push(column.type_oid);
            }
            SetTo::Param(number) => param_is_set(table, target, column, *number, param_oids)?,
        }
    }
    let columns = target_columns(table, target)?;
    let computed = columns.iter().zip(&target.items).filter(|(_, class)| **class == Class::Computed);
    types.extend(computed.map(|(column, _)| column.type_oid));
    for &number in &used.params {
        types.push(oid(number)?);
    }
    let refused = |number: u16, oid: Oid| Reason::Used { number, oid };
    for &number in &used.params {
        let oid = oid(number)?;
        if !may_be_used(oid) {
            return Err(refused(number, oid));
        }
    }
    for &number in &used.lazy_params {
        let oid = oid(number)?;
        if !is_used_unfailingly(oid, &types, used) {
            return Err(refused(number, oid));
        }
    }
    for (name, constant) in &used.set {
        let column = returned_column(table, name)?;
        let param = |number: u16| param_is_set(table, target, column, number, param_oids);
        is_constant_set_unfailingly(*constant, column, param, &types)?;
    }
    for &(number, cast) in &used.typed {
        let oid = oid(number)?;
        if target.type_oid(cast) != Some(oid) {
            return Err(refused(number, oid));
        }
    }
    Ok(())
}

fn oid_of(number: u16, param_oids: &[Oid]) -> Result<Oid, Reason> {
    let place = usize::from(number).checked_sub(1);
    place.and_then(|place| param_oids.get(place)).copied().ok_or(Reason::ParameterList)
}

/// May DO UPDATE set the column to this parameter, which is taken there whether it comes to that or not?
fn param_is_set(
    table: &Table,
    target: &InsertTarget,
    column: &Column,
    number: u16,
    param_oids: &[Oid],
) -> Result<(), Reason> {
    if is_given(table, target, &column.name, number) {
        return Ok(());
    }
    is_set_unfailingly(oid_of(number, param_oids)?, column)
}

/// Does the row that is to be inserted have this parameter in this column? Then it was taken there before.
fn is_given(table: &Table, target: &InsertTarget, name: &str, number: u16) -> bool {
    let columns = target_columns(table, target).unwrap_or_default();
    let mut given = columns.iter().zip(&target.items);
    given.any(|(column, class)| column.name == name && *class == Class::Param(number))
}

/// Could any name or cast in the expression mean another than PostgreSQL's own, which has all casts between the types of times?
fn relies_on_names(target: &InsertTarget, computed: &[&Column]) -> bool {
    let times = [oid::DATE, oid::TIMESTAMP, oid::TIMESTAMPTZ];
    let own = |column: &&Column| match target.used.source {
        Some(Source::Time) => times.contains(&column.type_oid),
        Some(Source::Uuid) => column.type_oid == oid::UUID,
        None => false,
    };
    target.used.converts || !computed.iter().all(own)
}

fn returned_column<'a>(table: &'a Table, name: &str) -> Result<&'a Column, Reason> {
    table.column(name).ok_or_else(|| Reason::NoSuchColumn(name.to_owned()))
}

/// Are the parameters exactly `$1` to `$n`, each once?
fn each_once(items: &[Class], params: usize) -> bool {
    let mut seen = vec![false; params];
    for class in items {
        if let Some(number) = class.param() {
            match usize::from(number).checked_sub(1).and_then(|index| seen.get_mut(index)) {
                Some(seen) if !*seen => *seen = true,
                _ => return false,
            }
        }
    }
    seen.into_iter().all(|seen| seen)
}

fn build(
    table: &Table,
    target: &InsertTarget,
    params: usize,
    mut rule: impl FnMut(usize, Class, &Column) -> Result<ItemRule, Reason>,
) -> Result<InsertPlan, Reason> {
    if let Some(reason) = &table.refused {
        return Err(reason.clone());
    }
    if table.viewer.temporary_objects {
        return Err(Reason::TemporaryObjects);
    }
    let columns = target_columns(table, target)?;
    let mut given = Vec::with_capacity(columns.len());
    let mut items = Vec::with_capacity(columns.len());
    for (at, (&class, &column)) in target.items.iter().zip(&columns).enumerate() {
        if class != Class::Default {
            may_be_given(column)?;
            given.push(column);
        }
        items.push(rule(at, class, column)?);
    }
    let left_out = LeftOut::of(table, &given)?;
    let to_computed = |update: &Update| {
        if update.to == SetTo::Computed { table.column(&update.column) } else { None }
    };
    let computed = items.iter().zip(&columns).filter(|(item, _)| **item == ItemRule::Computed);
    let computed = computed.map(|(_, column)| *column).chain(target.updates.iter().filter_map(to_computed));
    let relies_on_names = relies_on_names(target, &computed.collect::<Vec<_>>());
    Ok(InsertPlan {
        relid: table.relid,
        target: table.target.clone(),
        relname: table.relname.clone(),
        name_as_written: table.name_as_written.clone(),
        types: text_array(&target.types),
        functions: array_of(&table.functions),
        names: if relies_on_names { name_array(&target.used.names) } else { "{}".to_owned() },
        fingerprint: with_types(&table.fingerprint, &target.type_oids),
        has_sentinel: table.has_sentinel()
            && target.types.is_empty()
            && !reads_texts(&items)
            && !relies_on_names,
        root: table.root,
        references: table.references.clone(),
        copy_text_sql: copy_sql(table, &given, ""),
        copy_binary_sql: all_can_be_binary(&items).then(|| copy_sql(table, &given, " (FORMAT binary)")),
        values: ManyValues::of(table, &given),
        fields: u16::try_from(given.len()).map_err(|_| Reason::ValueCount)?,
        literals: items.iter().map(|item| u16::from(matches!(item, ItemRule::Literal(_)))).sum(),
        params,
        params_in_order: in_order(&items),
        items,
        one_row_per_client: left_out.transaction_time || target.used.time,
        draws_sequence: !left_out.sequences.is_empty(),
        sequences: array_of(left_out.sequences.iter().map(|(oid, _)| oid)),
        most: array_of(left_out.sequences.iter().map(|(_, most)| most)),
        max_value_bytes: VALUE_BYTES_MAX,
    })
}

/// Is a value read through a cast that a user could replace? Whether one did is for the full guard to see, because that touches no
/// table. Of numbers PostgreSQL has all casts itself.
fn reads_texts(items: &[ItemRule]) -> bool {
    let reads = |rule: &ParamRule| rule.as_text && !matches!(rule.print, Print::Int(_));
    items.iter().any(|item| matches!(item, ItemRule::Param(rule) if reads(rule)))
}

/// As the guard puts them together.
fn with_types(fingerprint: &str, oids: &[Oid]) -> String {
    oids.iter().fold(fingerprint.to_owned(), |all, oid| format!("{all} {oid}"))
}

/// The names as `to_regtype()` takes them, in an array as its input function does.
pub(super) fn text_array(types: &[OtherType]) -> String {
    let name = |of: &OtherType| {
        let mut name = lookup_name(of.schema.as_deref(), &of.name);
        name.push_str(if of.array { "[]" } else { "" });
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    };
    format!("{{{}}}", types.iter().map(name).collect::<Vec<_>>().join(","))
}

/// The names of functions and operators in an array, as its input function takes them, after a first one that nothing has.
fn name_array(names: &[String]) -> String {
    names.iter().fold("{\"\"".to_owned(), |all, name| format!("{all},\"{name}\"")) + "}"
}

/// Numbers in an array as its input function takes them.
fn array_of(numbers: impl IntoIterator<Item: ToString>) -> String {
    format!("{{{}}}", numbers.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(","))
}

/// The column of each item. Without a list: the live columns from the first on.
fn target_columns<'a>(table: &'a Table, target: &InsertTarget) -> Result<Vec<&'a Column>, Reason> {
    let names = target.schema.iter().chain([&target.table]).chain(&target.columns);
    if names.into_iter().any(|name| name.len() > NAME_BYTES_MAX) {
        return Err(Reason::LongIdentifier);
    }
    let columns: Vec<&Column> = if target.columns.is_empty() {
        if target.items.len() > table.columns.len() {
            return Err(Reason::ValueCount);
        }
        table.columns.iter().take(target.items.len()).collect()
    } else {
        let find = |name: &String| table.column(name).ok_or_else(|| Reason::NoSuchColumn(name.clone()));
        target.columns.iter().map(find).collect::<Result<_, _>>()?
    };
    if columns.len() != target.items.len() {
        return Err(Reason::ValueCount);
    }
    let mut attnums: Vec<i16> = columns.iter().map(|c| c.attnum).collect();
    attnums.sort_unstable();
    if let Some(twice) = attnums.windows(2).find(|pair| pair[0] == pair[1]) {
        let name = columns.iter().find(|c| c.attnum == twice[0]).map(|c| c.name.clone());
        return Err(Reason::ColumnTwice(name.unwrap_or_default()));
    }
    Ok(columns)
}

/// May a value be given for the column at all?
fn may_be_given(column: &Column) -> Result<(), Reason> {
    if column.identity == Identity::Always {
        return Err(Reason::IdentityAlways(column.name.clone()));
    }
    if column.generated {
        return Err(Reason::GeneratedColumn(column.name.clone()));
    }
    if !column.may_insert {
        return Err(Reason::ColumnPrivilege(column.name.clone()));
    }
    if !type_is_proven(column) {
        return Err(Reason::Type { column: column.name.clone(), base: column.base_name.clone() });
    }
    Ok(())
}

/// What the columns that get no value ask for.
#[derive(Default)]
struct LeftOut {
    transaction_time: bool,
    /// Each with the most that its column takes.
    sequences: Vec<(Oid, i64)>,
}

impl LeftOut {
    fn of(table: &Table, given: &[&Column]) -> Result<Self, Reason> {
        if given.is_empty() {
            return Err(Reason::NoColumns);
        }
        let mut asked = Self::default();
        for column in &table.columns {
            let is_given = given.iter().any(|g| g.attnum == column.attnum);
            // With all its columns NULL a key to the table itself is never checked.
            let has_value = is_given || column.default != DefaultKind::None;
            if has_value && table.self_fk.contains(&column.attnum) {
                return Err(Reason::SelfForeignKey);
            }
            if !is_given {
                asked.ask(column)?;
            }
        }
        Ok(asked)
    }

    fn ask(&mut self, column: &Column) -> Result<(), Reason> {
        let name = || column.name.clone();
        match &column.default {
            DefaultKind::None if column.domain_null_check => return Err(Reason::DomainLeftOut(name())),
            DefaultKind::None | DefaultKind::Immutable | DefaultKind::PerRow | DefaultKind::Generated => {}
            DefaultKind::TransactionTime => self.transaction_time = true,
            DefaultKind::Sequence if column.ends_soon => return Err(Reason::SequenceEnd(name())),
            DefaultKind::Sequence => {
                self.sequences.extend(column.sequences.iter().map(|sequence| (*sequence, column.most())));
            }
            DefaultKind::Other(why) => return Err(Reason::Default { column: name(), why: why.clone() }),
        }
        Ok(())
    }
}

fn copy_sql(table: &Table, given: &[&Column], options: &str) -> String {
    format!("COPY {} ({}) FROM STDIN{options}", table.target, column_list(given))
}

fn column_list(given: &[&Column]) -> String {
    given.iter().map(|column| column.quoted.as_str()).collect::<Vec<_>>().join(", ")
}

fn all_can_be_binary(items: &[ItemRule]) -> bool {
    items.iter().all(|item| match item {
        ItemRule::LeftOut => true,
        ItemRule::Param(rule) => !rule.as_text,
        ItemRule::Fixed(fixed) => fixed.is_null(),
        ItemRule::Literal(_) | ItemRule::Computed => false,
    })
}

fn in_order(items: &[ItemRule]) -> bool {
    let params = items.iter().filter_map(|item| match item {
        ItemRule::Param(rule) => Some(rule.index),
        _ => None,
    });
    params.enumerate().all(|(at, index)| at == index)
}
