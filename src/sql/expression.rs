//! Expressions that give the same in whatever session and whatever company they are computed: what an INSERT may compute with
//! and still share a transaction with those of others.
//!
//! Owns: which nodes, functions, operators and constants those are, and what else has to be known of each: the columns and
//! parameters that it uses, and the names that somebody else could have given to something of his own. Never: asks whether
//! anybody did, or what type a column has; guesses: what is not known to be harmless is refused.
//!
//! Nothing here reads the session but by settings that clients of one batch agree on (`TimeZone`, `DateStyle` ...), nor a table, a
//! sequence or the statement. The transaction's time is told ([`Used::time`]): a client has one of its own in each of its transactions.
//!
//! What a value could be refused for is refused no later than in a statement of its own. A value that is computed in any case is: with
//! whatever error, which its client then hears by itself. But where it may never be needed (DO UPDATE, COALESCE, CASE, AND), the server
//! computes what hangs on parameters alone, or is reduced to that ([`part`]), while it plans for just these parameters, and not at all
//! where it plans for any: so that is refused here.

mod part;

use pg_query::NodeEnum;
use pg_query::protobuf::{self, AExprKind, SqlValueFunctionOp, a_const::Val};

use super::cast::{Cast, NUMERIC, Type};
use super::insert::ITEMS_MAX;
use super::meaning::{is_name, param_number, type_of};
pub use part::Constant;
use part::{Nulls, Part};

/// What an INSERT computes with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// Columns of the table, or of the row that was to be inserted.
    pub columns: Vec<String>,
    /// Parameters ...
    pub params: Vec<u16>,
    /// ... those that may be never needed ...
    pub lazy_params: Vec<u16>,
    /// ... and those that are of a type, when they have to be of just that.
    pub typed: Vec<(u16, Cast)>,
    /// Types that are cast to.
    pub casts: Vec<u16>,
    /// Types that functions and constants may make of others.
    pub makes: Vec<u16>,
    /// Columns that DO UPDATE sets to what may be one of these while the server plans.
    pub set: Vec<(String, Constant)>,
    /// Functions that take arguments, and operators: somebody may have others of these names.
    pub names: Vec<String>,
    /// Values go by casts from one type to another, perhaps, before they come to their columns.
    pub converts: bool,
    /// The transaction's time.
    pub time: bool,
    /// What it is made of that takes no arguments, while that is of one kind.
    pub source: Option<Source>,
}

/// What gives a value of a certain type out of nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A `date`, `timestamp` or `timestamptz`.
    Time,
    /// A `uuid`.
    Uuid,
}

impl Used {
    fn source(&mut self, source: Source) {
        self.converts |= self.source.is_some_and(|before| before != source);
        self.source = Some(source);
    }

    fn name(&mut self, name: &str) {
        self.converts = true;
        if !self.names.iter().any(|known| known == name) {
            self.names.push(name.to_owned());
        }
    }
}

/// Functions without arguments, and whether they give the transaction's time; another value for each row otherwise. Nobody's own one
/// is found before them.
const SOURCES: [(&str, Source, bool); 6] = [
    ("now", Source::Time, true),
    ("transaction_timestamp", Source::Time, true),
    ("clock_timestamp", Source::Time, false),
    ("gen_random_uuid", Source::Uuid, false),
    ("uuidv4", Source::Uuid, false),
    ("uuidv7", Source::Uuid, false),
];

/// Functions of `pg_catalog`, and how many arguments they take: all of them that are called so and take as many are immutable, or
/// depend on nothing but settings that are agreed on. None makes much of little.
pub const FUNCTIONS: &[(&str, std::ops::RangeInclusive<usize>)] = &[
    ("abs", 1..=1),
    ("array_append", 2..=2),
    ("array_cat", 2..=2),
    ("array_prepend", 2..=2),
    ("array_remove", 2..=2),
    ("btrim", 1..=2),
    ("cardinality", 1..=1),
    ("ceil", 1..=1),
    ("ceiling", 1..=1),
    ("char_length", 1..=1),
    ("date_trunc", 2..=2),
    ("decode", 2..=2),
    ("encode", 2..=2),
    ("floor", 1..=1),
    ("initcap", 1..=1),
    ("jsonb_set", 3..=4),
    ("left", 2..=2),
    ("length", 1..=1),
    ("lower", 1..=1),
    ("ltrim", 1..=2),
    ("md5", 1..=1),
    ("mod", 2..=2),
    ("octet_length", 1..=1),
    ("reverse", 1..=1),
    ("right", 2..=2),
    ("round", 1..=2),
    ("rtrim", 1..=2),
    ("sha256", 1..=1),
    ("sign", 1..=1),
    ("split_part", 3..=3),
    ("strpos", 2..=2),
    ("substr", 2..=3),
    ("to_timestamp", 1..=1),
    ("trunc", 1..=2),
    ("upper", 1..=1),
];

/// Those of them that are called with NULL, too; `||` is of arrays. All others give NULL then.
pub const CALLED_WITH_NULL: &[&str] = &["array_append", "array_cat", "array_prepend", "array_remove", "||"];

/// Types that they make of others: of an integer, of a date.
const MAKES: [(&str, u16); 8] = [
    ("ceil", FLOAT8),
    ("ceiling", FLOAT8),
    ("date_trunc", TIMESTAMP),
    ("floor", FLOAT8),
    ("round", FLOAT8),
    ("sign", FLOAT8),
    ("to_timestamp", TIMESTAMPTZ),
    ("trunc", FLOAT8),
];

/// Operators of `pg_catalog`, of which the same holds.
pub const OPERATORS: &[&str] =
    &["%", "&", "*", "+", "-", "->", "->>", "/", "<", "<=", "<>", "=", ">", ">=", "?", "@>", "|", "||"];

/// Words that mean a time where a date or time is read.
const TIME_WORDS: [&str; 5] = ["now", "today", "tomorrow", "yesterday", "allballs"];

/// Types whose input may read the transaction's time.
const TIME_TYPES: [u16; 4] = [DATE, TIME, TIMESTAMP, TIMESTAMPTZ];

/// `timetz`: what is not said of the zone is taken from the day.
const TIMETZ: u16 = 1266;

const BOOL: u16 = 16;
const FLOAT8: u16 = 701;
const DATE: u16 = 1082;
const TIME: u16 = 1083;
const TIMESTAMP: u16 = 1114;
const TIMESTAMPTZ: u16 = 1184;

/// Longest constant that is taken for one that is always the same (bytes).
const HABIT_BYTES_MAX: usize = 4;

/// Is this constant, as it is written, one that programs write themselves and not one of their values? In a text of literals others
/// would make another statement of it each time. Strings have their quotes.
pub fn is_habit(constant: &[u8]) -> bool {
    let Some(body) = constant.strip_prefix(b"'").and_then(|rest| rest.strip_suffix(b"'")) else {
        return constant.len() <= HABIT_BYTES_MAX;
    };
    matches!(body, b"" | b"{}" | b"[]") || std::str::from_utf8(body).is_ok_and(is_span)
}

/// `1 day`, `30 minutes`: an interval that is the same in every style.
fn is_span(text: &str) -> bool {
    let units = ["second", "minute", "hour", "day", "week", "month", "year"];
    text.split_once(' ').is_some_and(|(number, unit)| {
        (1..=HABIT_BYTES_MAX).contains(&number.len())
            && number.bytes().all(|b| b.is_ascii_digit())
            && units.contains(&unit.strip_suffix('s').unwrap_or(unit))
    })
}

/// Does a string mean the same of whatever type it is taken to be, whenever and under whatever settings it is read?
fn is_lasting(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    // `20240101` and `J2451187` are moments of the session's time zone, `jan_1_24` is one. None has fewer digits alone than six, nor
    // one beside letters but for Julian days.
    let number = digits == text.len() && digits < 6;
    let name = text.bytes().all(word) && !text.as_bytes().first().is_some_and(u8::is_ascii_digit);
    let name = name && (digits == 0 || (digits == 1 && !lower.contains('j')));
    text.is_ascii()
        && !TIME_WORDS.iter().any(|time| lower.contains(time))
        // What NULL means in an array is a setting.
        && !lower.contains("null")
        && (digits == 0 || number || name || is_span(text))
}

/// A number that every type of numbers with a point takes, whether it is ever needed or not.
fn is_small(number: &str) -> bool {
    number.len() <= 16 && number.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// A string that is no date too large for a timestamp, and no such number.
fn is_short(text: &str) -> bool {
    text.bytes().filter(u8::is_ascii_digit).count() <= 8
}

/// What becomes of NULL in the function or operator.
fn nulls_of(name: &str) -> Nulls {
    if CALLED_WITH_NULL.contains(&name) { Nulls::Either } else { Nulls::Pass }
}

/// What `CASE subject WHEN value` asks. Of constants that is harmless where they have their own collations, and not those of columns.
fn compared(subject: &Part, value: Part) -> Option<Part> {
    let sides = [subject.clone(), value];
    let made = Part::call(&sides, Nulls::Pass);
    let early = made.param && made.waits && Part::fold(&sides);
    (!early).then_some(made)
}

/// Reads expressions into what they use.
pub(super) struct Reader<'a> {
    pub(super) used: &'a mut Used,
    /// The schema and the name of the table whose columns may be used, beside EXCLUDED's; otherwise none may.
    pub(super) table: Option<(&'a str, &'a str)>,
    /// Perhaps it is never needed.
    pub(super) lazy: bool,
}

/// Deepest that an expression may be nested.
const DEPTH_MAX: usize = 32;

impl Reader<'_> {
    /// `None`: it may not be harmless.
    pub(super) fn read(&mut self, node: &protobuf::Node) -> Option<()> {
        self.part(node, 0).map(|_| ())
    }

    /// The same, of what DO UPDATE sets a column to.
    pub(super) fn read_into(&mut self, column: &str, node: &protobuf::Node) -> Option<()> {
        let part = self.part(node, 0)?;
        // What hangs on no parameter is planned alike for all of them.
        let constants = part.constants.into_iter().filter(|_| part.param);
        self.used.set.extend(constants.map(|constant| (column.to_owned(), constant)));
        Some(())
    }

    fn part(&mut self, node: &protobuf::Node, depth: usize) -> Option<Part> {
        if depth > DEPTH_MAX {
            return None;
        }
        match node.node.as_ref()? {
            NodeEnum::AConst(constant) => self.constant(constant),
            NodeEnum::ParamRef(param) => {
                let number = param_number(param).ok()?;
                self.used.params.push(number);
                if self.lazy {
                    self.used.lazy_params.push(number);
                }
                Some(Part::param(number))
            }
            NodeEnum::ColumnRef(column) => self.column(column),
            NodeEnum::FuncCall(call) => self.call(call, depth),
            NodeEnum::AExpr(expr) => self.operator(expr, depth),
            NodeEnum::BoolExpr(expr) => {
                let parts = self.lazily(|reader| reader.parts(&expr.args, depth))?;
                self.chosen(Part::logic(&parts))
            }
            NodeEnum::CoalesceExpr(expr) => {
                let parts = self.lazily(|reader| reader.parts(&expr.args, depth))?;
                self.chosen(Part::coalesce(&parts))
            }
            NodeEnum::CaseExpr(case) => {
                let part = self.lazily(|reader| reader.case(case, depth))?;
                self.chosen(part)
            }
            NodeEnum::MinMaxExpr(expr) => {
                let parts = self.parts(&expr.args, depth)?;
                self.computed(&parts, Nulls::Count)
            }
            NodeEnum::NullTest(test) => {
                let part = self.part(test.arg.as_ref()?, depth + 1)?;
                Some(Part::null_test(&part))
            }
            NodeEnum::BooleanTest(test) => {
                let part = self.part(test.arg.as_ref()?, depth + 1)?;
                Some(Part::test(&[part]))
            }
            NodeEnum::SqlvalueFunction(function) => self.value_function(function),
            NodeEnum::TypeCast(cast) => self.cast(cast, depth),
            NodeEnum::AArrayExpr(array) => {
                let parts = self.parts(&array.elements, depth)?;
                self.computed(&parts, Nulls::Count)
            }
            _ => None,
        }
    }

    fn parts(&mut self, nodes: &[protobuf::Node], depth: usize) -> Option<Vec<Part>> {
        nodes.iter().map(|node| self.part(node, depth + 1)).collect()
    }

    fn constant(&self, constant: &protobuf::AConst) -> Option<Part> {
        let made = match &constant.val {
            None if constant.isnull => return Some(Part::null()),
            Some(Val::Ival(value)) => Constant::Integer(value.ival.into()),
            Some(Val::Fval(value)) if !self.lazy || is_small(&value.fval) => {
                value.fval.parse().map_or(Constant::Of(NUMERIC), Constant::Integer)
            }
            Some(Val::Boolval(_)) => Constant::Of(BOOL),
            Some(Val::Sval(text)) if is_lasting(&text.sval) && (!self.lazy || is_short(&text.sval)) => {
                Constant::Text
            }
            _ => return None,
        };
        Some(Part::constant(made))
    }

    /// Something is made of these.
    fn computed(&mut self, parts: &[Part], nulls: Nulls) -> Option<Part> {
        self.used.converts = true;
        let made = Part::call(parts, nulls);
        // Nobody can say whether that fails.
        let early = self.lazy && made.param && Part::fold(parts);
        (!early).then_some(made)
    }

    /// The same, by a function or operator. Of constants alone, whose types are open, the one of a user could be meant that takes none
    /// but types of users'.
    fn called(&mut self, parts: &[Part], nulls: Nulls) -> Option<Part> {
        let open = parts.iter().all(|part| !part.waits && !part.param);
        if open { None } else { self.computed(parts, nulls) }
    }

    /// Reads what may never be needed.
    fn lazily<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let lazy = std::mem::replace(&mut self.lazy, true);
        let read = read(self);
        self.lazy = lazy;
        read
    }

    /// One of several. What may never be needed hangs not on parameters alone.
    fn chosen(&mut self, part: Part) -> Option<Part> {
        self.used.converts = true;
        (!self.lazy || !part.param || part.waits).then_some(part)
    }

    fn case(&mut self, case: &protobuf::CaseExpr, depth: usize) -> Option<Part> {
        let mut subject = None;
        if let Some(node) = &case.arg {
            self.used.name("=");
            subject = Some(self.part(node, depth + 1)?);
        }
        let mut whens = Vec::new();
        for when in &case.args {
            let NodeEnum::CaseWhen(when) = when.node.as_ref()? else { return None };
            let condition = self.part(when.expr.as_deref()?, depth + 1)?;
            let condition = match &subject {
                Some(subject) => compared(subject, condition)?,
                None => condition,
            };
            whens.push((condition, self.part(when.result.as_deref()?, depth + 1)?));
        }
        let otherwise = match &case.defresult {
            Some(node) => self.part(node, depth + 1)?,
            None => Part::null(),
        };
        Some(Part::case(&whens, &otherwise))
    }

    /// `table.column`, `schema.table.column` or `EXCLUDED.column`.
    fn column(&mut self, column: &protobuf::ColumnRef) -> Option<Part> {
        let (schema, table) = self.table?;
        let last = match column.fields.as_slice() {
            [row, last] if is_name(row, table) || is_name(row, "excluded") => last,
            [zero, row, last] if !schema.is_empty() && is_name(zero, schema) && is_name(row, table) => last,
            _ => return None,
        };
        let NodeEnum::String(name) = last.node.as_ref()? else { return None };
        if !self.used.columns.contains(&name.sval) {
            // No table has as many, and each name is looked for among those before it.
            if self.used.columns.len() == ITEMS_MAX {
                return None;
            }
            self.used.columns.push(name.sval.clone());
        }
        Some(Part::waits())
    }

    fn call(&mut self, call: &protobuf::FuncCall, depth: usize) -> Option<Part> {
        let plain = call.agg_order.is_empty()
            && call.agg_filter.is_none()
            && call.over.is_none()
            && !(call.agg_within_group || call.agg_star || call.agg_distinct || call.func_variadic);
        let (own, name) = match call.funcname.as_slice() {
            [name] => (false, name),
            [schema, name] if is_name(schema, "pg_catalog") => (true, name),
            _ => return None,
        };
        let NodeEnum::String(name) = name.node.as_ref()? else { return None };
        let name = name.sval.as_str();
        if !plain {
            return None;
        }
        if call.args.is_empty() {
            let (_, source, time) = SOURCES.iter().find(|(known, ..)| *known == name)?;
            self.used.source(*source);
            self.used.time |= time;
            return Some(Part::waits());
        }
        let known = FUNCTIONS.iter().any(|(known, args)| *known == name && args.contains(&call.args.len()));
        if !known {
            return None;
        }
        if own {
            self.used.converts = true;
        } else {
            self.used.name(name);
        }
        // With a number of digits it is of `numeric` alone.
        let makes =
            MAKES.iter().filter(|(known, oid)| *known == name && (*oid != FLOAT8 || call.args.len() == 1));
        self.used.makes.extend(makes.map(|(_, oid)| oid));
        let parts = self.parts(&call.args, depth)?;
        self.called(&parts, nulls_of(name))
    }

    fn operator(&mut self, expr: &protobuf::AExpr, depth: usize) -> Option<Part> {
        let [name] = expr.name.as_slice() else { return None };
        let NodeEnum::String(name) = name.node.as_ref()? else { return None };
        let kind = matches!(
            expr.kind(),
            AExprKind::AexprOp
                | AExprKind::AexprNullif
                | AExprKind::AexprDistinct
                | AExprKind::AexprNotDistinct
        );
        if !kind || !OPERATORS.contains(&name.sval.as_str()) {
            return None;
        }
        self.used.name(&name.sval);
        let sides = [expr.lexpr.as_ref(), Some(expr.rexpr.as_ref()?)];
        let sides = sides.into_iter().flatten().map(|side| self.part(side, depth + 1));
        let sides = sides.collect::<Option<Vec<_>>>()?;
        let made = self.called(&sides, nulls_of(&name.sval))?;
        Some(match expr.kind() {
            AExprKind::AexprNullif => Part::null_if(&sides),
            AExprKind::AexprDistinct | AExprKind::AexprNotDistinct => Part::test(&sides),
            _ => made,
        })
    }

    /// CURRENT_TIMESTAMP and its kin, but for CURRENT_TIME, which is a `timetz`.
    fn value_function(&mut self, function: &protobuf::SqlValueFunction) -> Option<Part> {
        use SqlValueFunctionOp as Op;
        match function.op() {
            Op::SvfopCurrentDate
            | Op::SvfopCurrentTimestamp
            | Op::SvfopCurrentTimestampN
            | Op::SvfopLocaltimestamp
            | Op::SvfopLocaltimestampN => self.used.source(Source::Time),
            // A `time`.
            Op::SvfopLocaltime | Op::SvfopLocaltimeN => {
                self.used.converts = true;
                self.used.makes.push(TIME);
            }
            _ => return None,
        }
        self.used.time = true;
        Some(Part::waits())
    }

    /// To a type of PostgreSQL's own.
    fn cast(&mut self, cast: &protobuf::TypeCast, depth: usize) -> Option<Part> {
        let mut others = Vec::new();
        let to = type_of(cast, &mut others)?;
        let Type::Own(oid) = to.to else { return None };
        if oid == TIMETZ {
            return None;
        }
        self.used.time |= TIME_TYPES.contains(&oid);
        self.used.casts.push(oid);
        let value = cast.arg.as_ref()?;
        let part = self.part(value, depth + 1)?;
        if let NodeEnum::ParamRef(param) = value.node.as_ref()? {
            // Then nothing is computed.
            self.used.converts = true;
            self.used.typed.push((param_number(param).ok()?, to));
            return (to.typmod < 0).then_some(part);
        }
        let mut made = self.computed(&[part], Nulls::Pass)?;
        if !made.constants.is_empty() {
            made.constants = vec![Constant::Of(oid)];
        }
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::insert::NotPourable;
    use crate::sql::meaning::insert_target;

    fn value(expression: &str) -> Result<Used, NotPourable> {
        insert_target(&format!("INSERT INTO t VALUES (1, {expression})")).map(|target| target.used)
    }

    fn set(expression: &str) -> Result<Used, NotPourable> {
        let text =
            format!("INSERT INTO s.t VALUES ($1) ON CONFLICT (a) DO UPDATE SET b = {expression} RETURNING a");
        insert_target(&text).map(|target| target.used)
    }

    #[test]
    fn what_is_harmless_is_read() {
        for time in
            ["now()", "CURRENT_TIMESTAMP", "current_timestamp(3)", "transaction_timestamp()", "CURRENT_DATE"]
        {
            let source = Some(Source::Time);
            assert_eq!(value(time), Ok(Used { time: true, source, ..Used::default() }), "{time}");
        }
        let localtime = value("LOCALTIME").expect("a time");
        assert!(localtime.time && localtime.converts);
        for alone in ["gen_random_uuid()", "pg_catalog.uuidv7()"] {
            let source = Some(Source::Uuid);
            assert_eq!(value(alone), Ok(Used { source, ..Used::default() }), "{alone}");
        }
        assert!(value("now(), clock_timestamp()").is_ok_and(|used| !used.converts));
        assert!(value("now(), gen_random_uuid()").is_ok_and(|used| used.converts));
        let used = value("lower($1) || 'x' || round($2::numeric, 2)").expect("names");
        assert_eq!(used.names, ["||", "lower", "round"]);
        assert_eq!((used.params, used.lazy_params.len(), used.typed.len()), (vec![1, 2], 0, 1));
        assert_eq!(used.casts, [NUMERIC]);
        assert!(used.makes.is_empty());
        assert!(used.converts && !used.time);
        for (expression, names) in [
            ("now() - interval '1 day'", &["-"][..]),
            ("to_timestamp($1)", &["to_timestamp"]),
            ("ARRAY[1, 2]", &[]),
            ("CASE WHEN $1 THEN 'a' ELSE 'b' END", &[]),
            ("COALESCE($1, now())", &[]),
            ("NULLIF($1, '')", &["="]),
            ("pg_catalog.lower($1)", &[]),
            ("$1::jsonb || '{}'", &["||"]),
            ("CURRENT_DATE + 1", &["+"]),
        ] {
            assert_eq!(value(expression).expect(expression).names, names, "{expression}");
        }
        for (expression, columns) in [
            ("t.n + 1", &["n"][..]),
            ("s.t.n + EXCLUDED.n", &["n"]),
            ("COALESCE(EXCLUDED.x, t.y)", &["x", "y"]),
            ("GREATEST(t.n, excluded.n)", &["n"]),
            ("CASE WHEN t.n > EXCLUDED.n THEN t.n ELSE $1 END", &["n"]),
            ("t.n + $2", &["n"]),
            ("now() - $2", &[]),
            ("gen_random_uuid()", &[]),
            ("1", &[]),
            ("NULL", &[]),
        ] {
            assert_eq!(set(expression).expect(expression).columns, columns, "{expression}");
        }
        assert_eq!(set("$2").expect("a parameter").lazy_params, Vec::<u16>::new());
        assert_eq!(set("COALESCE(t.b, $2)").expect("a parameter").lazy_params, [2]);
        assert!(set("EXCLUDED.b WHERE t.b IS DISTINCT FROM EXCLUDED.b AND t.c < 5").is_ok());
    }

    #[test]
    fn what_may_be_anything_is_refused() {
        for expression in [
            "random()",
            "current_user",
            "CURRENT_TIME",
            "current_setting('a')",
            "statement_timestamp()",
            "txid_current()",
            "nextval('s')",
            "currval('s')",
            "(SELECT 1)",
            "EXISTS (SELECT 1)",
            "generate_series(1, 2)",
            "f(1)",
            "s.lower($1)",
            "1 + 1",
            "'a' || 'b'",
            "lower('A')",
            "lower()",
            "lower($1, 'b')",
            "now(1)",
            "sum(1)",
            "count(*)",
            "lower(DISTINCT $1)",
            "lower(VARIADIC $1)",
            "1 OPERATOR(s.+) 1",
            "1 OPERATOR(pg_catalog.+) 1",
            "1 # 1",
            "1 = ANY ($1)",
            "NULLIF($1, 'now'::timestamptz)",
            "COALESCE($1, 'today')",
            "NULLIF($1, '1/2/2024'::date)",
            "NULLIF($1, 's'::regclass)",
            "lower($1::mood)",
            "$1::timetz + '1'",
            "lower($1::varchar(3))",
            "ROW(1, 2)",
            "a",
            "t.a",
            "a COLLATE \"C\"",
            "($1).f",
            "$1[1]",
            "x'1f'",
            "repeat('x', 1000000000)",
            "EXTRACT(year FROM now())",
            "now() AT TIME ZONE 'UTC'",
        ] {
            assert!(value(expression).is_err(), "{expression}");
        }
        for expression in [
            "a + 1",
            "u.a",
            "o.t.a",
            "t.*",
            "(t.a).b",
            "DEFAULT",
            "(SELECT 1)",
            "$2 + 1",
            "COALESCE(t.a, $2 / $3)",
            "lower($2)",
            "CASE WHEN $2 / $3 > 1 THEN t.a END",
            "GREATEST($2, $3)",
            "$2::text::int",
        ] {
            assert_eq!(set(expression), Err(NotPourable::OnConflict), "{expression}");
        }
    }

    #[test]
    fn what_may_be_a_parameter_alone_is_not_computed_with() {
        for expression in [
            "COALESCE($2, t.a) + 1",
            "COALESCE(t.a + $2, 5) + 1",
            "1 + CASE WHEN $2 THEN $3 ELSE t.a END",
            "1 + CASE WHEN t.a > $2 THEN t.a ELSE 5 END",
            "1 + CASE $2 WHEN 'x' THEN 5 ELSE t.a END",
            "CASE COALESCE($2, t.a) WHEN COALESCE($3, t.b) THEN 1 ELSE 2 END",
            "1 WHERE COALESCE($2, t.a) + 1 > 5",
            "$2 AND COALESCE($3, t.a) / $4 > 1",
            "($2 OR t.a)::int",
            "(NOT (t.a IS NULL AND $2))::int",
            "(COALESCE($2, t.a) IS NULL)::int",
            "(t.a IS DISTINCT FROM $2)::int",
            "((t.a > $2) IS TRUE)::int",
            "NULLIF(COALESCE($2, t.a), 1) / 0",
            "COALESCE($2, t.b)::int",
            "COALESCE($2, t.b)::numeric(4, 2)",
            "split_part(COALESCE($2, t.b), 'x', 0)",
            "ARRAY[COALESCE($2, t.b)]",
            "GREATEST(COALESCE($2, t.a), 5)",
            "GREATEST(t.a + $2, 5) + 1",
            "1 / (cardinality(ARRAY[t.a + $2]) - 1)",
            "cardinality(t.a || $2 || $3)",
            "CASE WHEN $2 THEN t.a ELSE 1e400 END",
            "COALESCE($2, '5000000101')",
        ] {
            assert_eq!(set(expression), Err(NotPourable::OnConflict), "{expression}");
        }
        for expression in [
            "CASE WHEN now() > $2 THEN COALESCE($3, length(now()::text)) + 1 ELSE 0 END",
            "now() > $2 OR COALESCE($3, length(now()::text)) + 1 > 0",
        ] {
            assert_eq!(value(expression), Err(NotPourable::Expression), "{expression}");
        }
        assert!(value("COALESCE($1, 1) + 1").is_ok());
    }

    #[test]
    fn what_a_column_may_be_set_to_early_is_told() {
        for (expression, constants) in [
            ("COALESCE($2, t.b)", &[Constant::Param(2)][..]),
            ("COALESCE(t.b, $2)", &[]),
            ("COALESCE(t.n, 0) + $2", &[]),
            ("COALESCE(5, t.n)", &[]),
            ("CASE WHEN $2 THEN 1 ELSE t.n END", &[Constant::Integer(1)]),
            ("CASE WHEN $2 THEN 1.5 ELSE t.m END + t.n", &[]),
            ("CASE WHEN t.n > EXCLUDED.n THEN t.n ELSE $2 END", &[]),
            ("CASE WHEN t.n > $2 THEN 7 ELSE $3 END", &[Constant::Param(3)]),
            ("CASE WHEN t.n IS NULL THEN $2 END", &[Constant::Param(2)]),
            ("CASE WHEN $2 THEN 'a' ELSE t.b END", &[Constant::Text]),
            ("CASE WHEN $2 THEN interval '1 day' ELSE t.b END", &[Constant::Of(1186)]),
            ("t.o AND $2", &[Constant::Of(BOOL)]),
            ("NULLIF(t.b, $2)", &[]),
            ("NULLIF($2, t.b)", &[Constant::Param(2)]),
            ("GREATEST(t.n, $2)", &[]),
            ("t.b || $2 || '.'", &[Constant::Text]),
            ("now() - $2", &[]),
        ] {
            let set = set(expression).expect(expression).set;
            let expected: Vec<_> = constants.iter().map(|constant| ("b".to_owned(), *constant)).collect();
            assert_eq!(set, expected, "{expression}");
        }
        // What is compared is set to nothing.
        assert!(set("1 WHERE COALESCE($2, t.n) IS NULL").expect("WHERE").set.is_empty());
        let makes = |expression: &str| set(expression).expect(expression).makes;
        assert_eq!(makes("floor(t.n) + date_trunc('day', t.d) + round(t.n, 2)"), [FLOAT8, TIMESTAMP]);
        assert_eq!(makes("LOCALTIME"), [TIME]);
    }

    #[test]
    fn constants_of_habit_and_lasting_ones() {
        for habit in ["0", "1", "9999", "1.5", "''", "'{}'", "'1 day'", "'30 minutes'"] {
            assert!(is_habit(habit.as_bytes()), "{habit}");
        }
        for value in ["12345", "1.234", "'Bob'", "'1'", "'day 1'", "'1 day '", "'99999 days'"] {
            assert!(!is_habit(value.as_bytes()), "{value}");
        }
        for lasting in ["", "active", "{}", "[]", "42", "7 days", "a_1", "{\"a\": true}", ", "] {
            assert!(is_lasting(lasting), "{lasting}");
        }
        for other in ["now", "Today", "{tomorrow}", "1/2/2024", "1-2", "{NULL}", "é", "12:00", "1.5", "$5"] {
            assert!(!is_lasting(other), "{other}");
        }
        for moment in ["20240101", "240101", "20240101120000", "J1", "julian_2", "jan_1_24", "on_1_2_2024"] {
            assert!(!is_lasting(moment), "{moment}");
        }
    }

    #[test]
    fn nesting_has_an_end() {
        assert!(value(&format!("{}now(){}", "COALESCE(".repeat(20), ")".repeat(20))).is_ok());
        assert!(value(&format!("{}now(){}", "COALESCE(".repeat(100), ")".repeat(100))).is_err());
    }

    #[test]
    fn no_table_has_so_many_columns() {
        let columns = |count: usize| (0..count).map(|n| format!(", c = t.c{n}")).collect::<String>();
        assert!(set(&format!("1{}", columns(ITEMS_MAX))).is_ok());
        assert_eq!(set(&format!("1{}", columns(ITEMS_MAX + 1))), Err(NotPourable::OnConflict));
    }
}
