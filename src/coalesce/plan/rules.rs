//! Which literal and which parameter may go into which column.

use crate::coalesce::catalog::{Column, FIRST_USER_OID, Reason, TypeKind};
use crate::coalesce::plan::ItemRule;
use crate::coalesce::plan::literal::FixedField;
use crate::sql::cast::{self, Cast};
use crate::sql::expression::{Constant, Source, Used};
use crate::sql::insert::{Class, Item, without_cast};
use crate::sql::meaning::InsertTarget;
use crate::wire::Oid;

/// Built-in types, by their fixed object ids.
pub mod oid {
    #![allow(missing_docs)]
    use crate::wire::Oid;
    pub const BOOL: Oid = 16;
    pub const BYTEA: Oid = 17;
    pub const CHAR: Oid = 18;
    pub const NAME: Oid = 19;
    pub const INT8: Oid = 20;
    pub const INT2: Oid = 21;
    pub const INT4: Oid = 23;
    pub const TEXT: Oid = 25;
    pub const OID: Oid = 26;
    pub const XID: Oid = 28;
    pub const JSON: Oid = 114;
    pub const POINT: Oid = 600;
    pub const LSEG: Oid = 601;
    pub const PATH: Oid = 602;
    pub const BOX: Oid = 603;
    pub const POLYGON: Oid = 604;
    pub const LINE: Oid = 628;
    pub const CIDR: Oid = 650;
    pub const FLOAT4: Oid = 700;
    pub const FLOAT8: Oid = 701;
    pub const CIRCLE: Oid = 718;
    pub const MONEY: Oid = 790;
    pub const MACADDR: Oid = 829;
    pub const INET: Oid = 869;
    pub const INT2_ARRAY: Oid = 1005;
    pub const INT4_ARRAY: Oid = 1007;
    pub const TEXT_ARRAY: Oid = 1009;
    pub const VARCHAR_ARRAY: Oid = 1015;
    pub const INT8_ARRAY: Oid = 1016;
    pub const BPCHAR: Oid = 1042;
    pub const VARCHAR: Oid = 1043;
    pub const DATE: Oid = 1082;
    pub const TIME: Oid = 1083;
    pub const TIMESTAMP: Oid = 1114;
    pub const TIMESTAMPTZ: Oid = 1184;
    pub const INTERVAL: Oid = 1186;
    pub const TIMETZ: Oid = 1266;
    pub const BIT: Oid = 1560;
    pub const VARBIT: Oid = 1562;
    pub const NUMERIC: Oid = 1700;
    pub const UUID: Oid = 2950;
    pub const PG_LSN: Oid = 3220;
    pub const TSVECTOR: Oid = 3614;
    pub const JSONB: Oid = 3802;
    pub const INT4RANGE: Oid = 3904;
    pub const NUMRANGE: Oid = 3906;
    pub const TSRANGE: Oid = 3908;
    pub const TSTZRANGE: Oid = 3910;
    pub const DATERANGE: Oid = 3912;
    pub const INT8RANGE: Oid = 3926;
    pub const JSONPATH: Oid = 4072;
    pub const INT4MULTIRANGE: Oid = 4451;
    pub const NUMMULTIRANGE: Oid = 4532;
    pub const TSMULTIRANGE: Oid = 4533;
    pub const TSTZMULTIRANGE: Oid = 4534;
    pub const DATEMULTIRANGE: Oid = 4535;
    pub const INT8MULTIRANGE: Oid = 4536;
    pub const XID8: Oid = 5069;
}

/// A set of literal classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassSet(u16);

impl ClassSet {
    /// Of these classes.
    pub fn of(classes: &[Class]) -> Self {
        Self(classes.iter().fold(0, |bits, &class| bits | Self::bit(class)))
    }

    /// Is `class` in it?
    pub fn has(self, class: Class) -> bool {
        self.0 & Self::bit(class) != 0
    }

    fn add(&mut self, class: Class) {
        self.0 |= Self::bit(class);
    }

    fn bit(class: Class) -> u16 {
        match class {
            Class::Null | Class::CastNull(_) => 1,
            Class::Default => 2,
            Class::Integer => 4,
            Class::SignedInteger => 8,
            Class::Decimal => 16,
            Class::SignedDecimal => 32,
            Class::True => 64,
            Class::False => 128,
            Class::String | Class::CastString(_) => 256,
            Class::Param(_) | Class::CastParam(..) => 512,
            Class::Escaped => 1024,
            Class::Computed => 2048,
        }
    }
}

/// Can the text of a value mean another one in another transaction (`now`, `tomorrow`)?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temporal {
    /// No: not a date or time.
    No,
    /// A date or time: when it holds a word.
    Scalar,
    /// An array or range of such: when it holds a word, however quoted.
    Container,
    /// Always: a time with time zone takes the day's offset.
    Always,
}

/// A literal's way into its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiteralRule {
    /// Classes that are proven for the column's type.
    pub accept: ClassSet,
    /// The type that the statement names behind a string or NULL: it is the column's, or goes there unchanged.
    pub cast: Option<Cast>,
    /// That type is this integer, and the column's another number: only what the integer takes may leave.
    pub width: Option<IntWidth>,
    /// A float: a negative zero is 0 in an INSERT and -0 in a COPY.
    pub float: bool,
    /// See [`rounds`].
    pub rounds: bool,
    /// Does a string mean the transaction's time?
    pub temporal: Temporal,
    /// What means the same at any time?
    pub lasting: Lasting,
}

impl LiteralRule {
    /// Is `class` proven for the column?
    pub fn takes(self, class: Class) -> bool {
        self.accept.has(class) && (class.cast().is_none() || class.cast() == self.cast)
    }

    /// Does this item mean the same at any time, whatever the settings are and whatever is defined?
    pub fn is_lasting(self, class: Class, item: &[u8]) -> bool {
        match (class, self.lasting) {
            (Class::Null | Class::CastNull(_), _) | (_, Lasting::All) => true,
            (Class::String, Lasting::Iso(oid)) => iso(oid, item),
            (Class::CastString(_), Lasting::Iso(oid)) => iso(oid, without_cast(item)),
            // What NULL means in an array is a setting.
            (Class::String, Lasting::Array) => !has_null(item),
            (Class::CastString(_), Lasting::Array) => !has_null(without_cast(item)),
            _ => false,
        }
    }
}

/// Does the word stand anywhere in it?
fn has_null(text: &[u8]) -> bool {
    text.windows(4).any(|word| word.eq_ignore_ascii_case(b"null"))
}

/// Which literals of a column's type mean the same at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasting {
    /// All: the type's input depends on nothing.
    All,
    /// Those written as ISO 8601 has them, of this type.
    Iso(Oid),
    /// An array's without a NULL: its elements' input depends on nothing.
    Array,
    /// None, as far as is proven.
    Null,
}

impl Lasting {
    fn of(column: &Column) -> Self {
        match (column.base_oid, column.elem_oid) {
            // A domain's checks may be others then.
            (base, _) if column.type_oid != base => Self::Null,
            (base, 0) if immutable_input(base) => Self::All,
            (base @ (oid::DATE | oid::TIMESTAMP | oid::TIMESTAMPTZ), 0) => Self::Iso(base),
            (_, 0) => Self::Null,
            (_, elem) if immutable_input(elem) => Self::Array,
            _ => Self::Null,
        }
    }
}

/// Bytes of an integer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntWidth {
    /// `int2`
    Two,
    /// `int4`
    Four,
    /// `int8`
    Eight,
}

impl IntWidth {
    /// Of an integer type; `None` for any other.
    pub fn of(oid: Oid) -> Option<Self> {
        match oid {
            oid::INT2 => Some(Self::Two),
            oid::INT4 => Some(Self::Four),
            oid::INT8 => Some(Self::Eight),
            _ => None,
        }
    }

    /// Of the elements of an array of integers; `None` for any other type.
    fn of_elements(array: Oid) -> Option<Self> {
        match array {
            oid::INT2_ARRAY => Some(Self::Two),
            oid::INT4_ARRAY => Some(Self::Four),
            oid::INT8_ARRAY => Some(Self::Eight),
            _ => None,
        }
    }
}

/// How a binary value is written in a text row, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Print {
    /// An integer.
    Int(IntWidth),
    /// `t` or `f`.
    Bool,
    /// As it is.
    Text,
    /// Five groups of hexadecimal digits.
    Uuid,
    /// `\x` and hexadecimal digits.
    Bytea,
    /// A day.
    Date,
    /// A day and a time.
    Timestamp,
    /// The same, in UTC.
    TimestampTz,
    /// The fewest digits that are read as this number of four bytes.
    Float4,
    /// The same of eight.
    Float8,
    /// All digits of a number, as many behind the point as it says.
    Numeric,
    /// Not at all.
    No,
}

/// A parameter's way into its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamRule {
    /// Its place in Bind, from 0.
    pub index: usize,
    /// An integer of another width, from and to; `None`: the bytes as they are.
    pub convert: Option<(IntWidth, IntWidth)>,
    /// An array, as a text, of integers of this width, which the input of another array of numbers reads.
    pub elements: Option<IntWidth>,
    /// The value is a text, or another number, which the column's own input reads: a row of it is a text row.
    pub as_text: bool,
    /// A binary value in a text row.
    pub print: Print,
    /// See [`rounds`].
    pub rounds: bool,
    /// Does a text value mean the transaction's time?
    pub temporal: Temporal,
}

/// PostgreSQL has a cast of its own from each of these types to the others, so nobody can make another. Where it has none users
/// can, and their functions may read the session.
const CAST_BY_POSTGRESQL: [&[Oid]; 6] = [
    &[oid::INT2, oid::INT4, oid::INT8, oid::FLOAT4, oid::FLOAT8, oid::NUMERIC],
    &[oid::TEXT, oid::VARCHAR, oid::BPCHAR, oid::NAME],
    &[oid::DATE, oid::TIMESTAMP, oid::TIMESTAMPTZ],
    &[oid::JSON, oid::JSONB],
    &[oid::INET, oid::CIDR],
    &[oid::BIT, oid::VARBIT],
];

/// The server itself takes the value to the column.
pub(super) fn param_as_sent(index: usize, oid: Oid, column: &Column) -> Result<ParamRule, Reason> {
    let own_cast =
        CAST_BY_POSTGRESQL.iter().any(|types| types.contains(&oid) && types.contains(&column.type_oid));
    if oid != column.type_oid && oid != column.base_oid && !own_cast {
        return Err(Reason::Parameter { column: column.name.clone(), oid, base: column.base_name.clone() });
    }
    let temporal = temporal(column);
    let print = Print::No;
    Ok(ParamRule { index, convert: None, elements: None, as_text: false, print, rounds: false, temporal })
}

/// May a value of this type stand in an expression? One of PostgreSQL's own whose ways to others are known; what users could make of
/// it, the guard looks for.
pub(super) fn may_be_used(oid: Oid) -> bool {
    is_plain(oid)
        || matches!(
            oid,
            oid::DATE
                | oid::TIME
                | oid::TIMESTAMP
                | oid::TIMESTAMPTZ
                | oid::INTERVAL
                | oid::INT2_ARRAY
                | oid::INT4_ARRAY
                | oid::INT8_ARRAY
                | oid::TEXT_ARRAY
                | oid::VARCHAR_ARRAY
        )
}

/// Does a parameter's text mean the transaction's time, perhaps?
pub(super) fn means_time(oid: Oid) -> bool {
    temporal_of(oid) != Temporal::No
}

/// May the column take part in an expression, or take its value? Not a type of users: somebody may have made casts and operators.
pub(super) fn takes_computed(column: &Column) -> Result<(), Reason> {
    let own = column.type_oid == column.base_oid && column.type_oid < FIRST_USER_OID;
    if own && may_be_used(column.base_oid) {
        return Ok(());
    }
    Err(Reason::Type { column: column.name.clone(), base: column.base_name.clone() })
}

/// Is a parameter of this type taken to the types of its company without an error, whatever its value? Where its value is not needed,
/// an INSERT of its own would fail by it, perhaps, and one whose plan is for any value would not. A day may be none of a `timestamp`'s, and
/// so on, and a `numeric` be too large for a float; to no other types do others go by themselves, or they do so always. A day and an
/// `interval` or a `time` make a `timestamp`, and an `interval` is multiplied by a float.
pub(super) fn is_used_unfailingly(oid: Oid, types: &[Oid], used: &Used) -> bool {
    let times = [oid::DATE, oid::TIMESTAMP, oid::TIMESTAMPTZ];
    let of_spans = types.contains(&oid::INTERVAL) && used.names.iter().any(|name| name == "*" || name == "/");
    match oid {
        oid::NUMERIC => !types.iter().any(|other| is_float(*other)) && !of_spans,
        oid::DATE if types.contains(&oid::INTERVAL) || types.contains(&oid::TIME) => false,
        oid::DATE | oid::TIMESTAMP => {
            used.source != Some(Source::Time)
                && !types.iter().any(|other| *other != oid && times.contains(other))
        }
        _ => true,
    }
}

/// The same, of one that a column is set to.
pub(super) fn is_set_unfailingly(oid: Oid, column: &Column) -> Result<(), Reason> {
    let rounded = matches!(column.base_oid, oid::TIMESTAMP | oid::TIMESTAMPTZ | oid::TIME);
    let text_like = cast::is_text(oid) && cast::is_text(column.base_oid);
    let widens = cast::is_plain(oid, column.base_oid);
    let own = oid == column.type_oid || text_like || widens;
    if may_be_used(oid) && takes_computed(column).is_ok() && own && (column.typmod < 0 || rounded) {
        return Ok(());
    }
    Err(Reason::Parameter { column: column.name.clone(), oid, base: column.base_name.clone() })
}

fn is_float(oid: Oid) -> bool {
    matches!(oid, oid::FLOAT4 | oid::FLOAT8)
}

/// The same, of what an expression may be reduced to, in the company of these types: an integer may have become a float, of another value.
pub(super) fn is_constant_set_unfailingly(
    constant: Constant,
    column: &Column,
    param: impl FnOnce(u16) -> Result<(), Reason>,
    types: &[Oid],
) -> Result<(), Reason> {
    let base = column.base_oid;
    let rounded = IntWidth::of(base).is_some() && types.iter().any(|oid| is_float(*oid));
    let fits = match constant {
        _ if rounded => false,
        Constant::Param(number) => return param(number),
        Constant::Of(oid) => return is_set_unfailingly(oid.into(), column),
        Constant::Text => cast::is_text(base) && column.typmod < 0,
        Constant::Integer(value) => is_number_for(value, base) && column.typmod < 0,
        Constant::Unknown => false,
    };
    if fits {
        Ok(())
    } else {
        Err(Reason::Literal {
            column: column.name.clone(),
            class: class_name(Class::Computed),
            base: column.base_name.clone(),
        })
    }
}

fn is_number_for(value: i64, oid: Oid) -> bool {
    match IntWidth::of(oid) {
        Some(IntWidth::Two) => i16::try_from(value).is_ok(),
        Some(IntWidth::Four) => i32::try_from(value).is_ok(),
        Some(IntWidth::Eight) => true,
        None => oid == oid::NUMERIC || is_float(oid),
    }
}

/// An enum's label is its text, where nobody made a function for that cast.
pub(super) fn text_is_proven(column: &Column) -> Result<(), Reason> {
    let label = column.kind == TypeKind::Enum && column.type_oid == column.base_oid && column.elem_oid == 0;
    if label && !column.cast_to_text {
        return output_is_proven(column);
    }
    Err(Reason::Type { column: column.name.clone(), base: column.base_name.clone() })
}

pub(super) fn output_is_proven(column: &Column) -> Result<(), Reason> {
    let numeric = [oid::NUMERIC, oid::NUMRANGE, oid::NUMMULTIRANGE];
    // `1e100000` is seven bytes, and its output a hundred thousand.
    let unbounded =
        column.typmod < 0 && (numeric.contains(&column.base_oid) || numeric.contains(&column.elem_oid));
    let computed = column.generated && !is_short(column);
    if type_is_proven(column) && !unbounded && !computed {
        return Ok(());
    }
    Err(Reason::Type { column: column.name.clone(), base: column.base_name.clone() })
}

/// A type whose values are written in a few dozen bytes at most.
fn is_short(column: &Column) -> bool {
    let base = column.base_oid;
    let number =
        IntWidth::of(base).is_some() || matches!(base, oid::FLOAT4 | oid::FLOAT8 | oid::NUMERIC | oid::OID);
    column.elem_oid == 0
        && (number || temporal_of(base) == Temporal::Scalar || matches!(base, oid::BOOL | oid::UUID))
}

/// Types whose input and receive functions give the same for a COPY's field as for an INSERT's, and depend on nothing but
/// the settings of the batch key. Not: types that look names up (`regclass` ...), types of extensions, composites.
fn scalar_is_proven(oid: Oid) -> bool {
    immutable_input(oid) || reads_settings(oid) || temporal_of(oid) != Temporal::No
}

/// A quoted date, or a date and a time of day, as ISO 8601 has them: with the year in front in four digits, and of a type with a
/// zone its offset behind, they are read in one way at any time, whatever `DateStyle` and `TimeZone` are.
fn iso(oid: Oid, quoted: &[u8]) -> bool {
    let Some(text) = quoted.strip_suffix(b"'") else { return false };
    match oid {
        oid::DATE => text.len() == 11 && is_day_and_time(text),
        oid::TIMESTAMP => is_day_and_time(text),
        oid::TIMESTAMPTZ => {
            // The day's own hyphens stand before.
            let sign = text.iter().skip(11).position(|byte| matches!(byte, b'+' | b'-'));
            sign.and_then(|at| text.split_at_checked(at + 11)).is_some_and(|(moment, offset)| {
                moment.len() > 11 && is_day_and_time(moment) && is_offset(offset)
            })
        }
        _ => false,
    }
}

/// With the day, the minute, the second, or a part of it.
fn is_day_and_time(text: &[u8]) -> bool {
    matches!(text.len(), 11 | 17 | 20 | 22..=27) && has_shape(text, b"'dddd-dd-dd dd:dd:dd.dddddd")
}

/// In numbers: what a letter means is a setting.
fn is_offset(text: &[u8]) -> bool {
    let Some((b'+' | b'-', hours)) = text.split_first() else { return false };
    match hours.len() {
        2 | 4 => has_shape(hours, b"dddd"),
        5 => has_shape(hours, b"dd:dd"),
        _ => false,
    }
}

/// Is it the shape, or a beginning of it? `d` stands for a digit.
fn has_shape(text: &[u8], shape: &[u8]) -> bool {
    let alike = |(byte, like): (&u8, &u8)| if *like == b'd' { byte.is_ascii_digit() } else { byte == like };
    text.iter().zip(shape).all(alike)
}

/// A plain scalar type of PostgreSQL's, whose input function depends on nothing.
fn is_plain(oid: Oid) -> bool {
    matches!(
        oid,
        oid::INT2
            | oid::INT4
            | oid::INT8
            | oid::NUMERIC
            | oid::FLOAT4
            | oid::FLOAT8
            | oid::BOOL
            | oid::TEXT
            | oid::VARCHAR
            | oid::BPCHAR
            | oid::BYTEA
            | oid::UUID
            | oid::JSON
            | oid::JSONB
            | oid::INET
            | oid::CIDR
    )
}

/// Types whose input function depends on nothing: a literal of them may stand in a prepared statement.
fn immutable_input(oid: Oid) -> bool {
    is_plain(oid)
        || matches!(
            oid,
            oid::MACADDR
                | oid::BIT
                | oid::VARBIT
                | oid::PG_LSN
                | oid::POINT
                | oid::LSEG
                | oid::PATH
                | oid::BOX
                | oid::POLYGON
                | oid::LINE
                | oid::CIRCLE
        )
}

/// The other proven types that are neither dates nor times. Not `xml` and `tsquery`: their input functions send notices, and
/// a COPY's are not worded as an INSERT's.
fn reads_settings(oid: Oid) -> bool {
    matches!(
        oid,
        oid::CHAR
            | oid::NAME
            | oid::MONEY
            | oid::INTERVAL
            | oid::JSONPATH
            | oid::OID
            | oid::XID
            | oid::XID8
            | oid::TSVECTOR
            | oid::INT4RANGE
            | oid::INT8RANGE
            | oid::NUMRANGE
            | oid::INT4MULTIRANGE
            | oid::INT8MULTIRANGE
            | oid::NUMMULTIRANGE
    )
}

fn temporal_of(oid: Oid) -> Temporal {
    match oid {
        oid::DATE | oid::TIME | oid::TIMESTAMP | oid::TIMESTAMPTZ => Temporal::Scalar,
        oid::TIMETZ => Temporal::Always,
        oid::TSRANGE | oid::TSTZRANGE | oid::DATERANGE => Temporal::Container,
        oid::TSMULTIRANGE | oid::TSTZMULTIRANGE | oid::DATEMULTIRANGE => Temporal::Container,
        _ => Temporal::No,
    }
}

pub(super) fn type_is_proven(column: &Column) -> bool {
    let proven = |kind: TypeKind, oid: Oid| match kind {
        TypeKind::Enum => true,
        TypeKind::Base | TypeKind::Range | TypeKind::Multirange => scalar_is_proven(oid),
        TypeKind::Composite | TypeKind::Domain | TypeKind::Other => false,
    };
    if column.elem_oid != 0 {
        // A domain below an array may have checks that the catalogue query has not looked at.
        proven(column.elem_kind, column.elem_oid)
    } else {
        proven(column.kind, column.base_oid)
    }
}

fn temporal(column: &Column) -> Temporal {
    match (column.elem_oid, temporal_of(column.elem_oid)) {
        (0, _) => temporal_of(column.base_oid),
        (_, Temporal::Scalar) => Temporal::Container,
        (_, other) => other,
    }
}

/// A `numeric` of a certain scale, or an array of such. COPY rounds what it reads, and so takes more digits than a number may
/// have; an INSERT makes a number of them first, and refuses them.
fn rounds(column: &Column) -> bool {
    let numeric = column.base_oid == oid::NUMERIC || column.elem_oid == oid::NUMERIC;
    // A domain's own modifier is not known here.
    numeric && (column.typmod >= 0 || column.type_oid != column.base_oid)
}

/// The classes of literals that are proven for a column.
fn accepted(column: &Column) -> ClassSet {
    use Class::{Decimal, False, Integer, Null, SignedDecimal, SignedInteger, String, True};
    if modifier_changes_literal(column) {
        return ClassSet::of(&[Null]);
    }
    if column.elem_oid != 0 {
        return ClassSet::of(&[Null, String]);
    }
    match column.base_oid {
        oid::INT2 | oid::INT4 | oid::INT8 => ClassSet::of(&[Null, String, Integer, SignedInteger]),
        oid::NUMERIC | oid::FLOAT4 | oid::FLOAT8 => {
            ClassSet::of(&[Null, String, Integer, SignedInteger, Decimal, SignedDecimal])
        }
        oid::OID => ClassSet::of(&[Null, String, Integer]),
        oid::BOOL => ClassSet::of(&[Null, String, True, False]),
        _ => ClassSet::of(&[Null, String]),
    }
}

pub(super) fn literal_rule(
    class: Class,
    target: &InsertTarget,
    column: &Column,
) -> Result<LiteralRule, Reason> {
    let mut accept = accepted(column);
    // Numbers and times are looked at as they are written.
    if accept.has(Class::String) && !rounds(column) && temporal(column) == Temporal::No {
        accept.add(Class::Escaped);
    }
    let refused = || Reason::Literal {
        column: column.name.clone(),
        class: class_name(class),
        base: column.base_name.clone(),
    };
    if !accept.has(class) {
        return Err(refused());
    }
    let to = class.cast().map(|cast| target.type_oid(cast).ok_or_else(refused)).transpose()?;
    let width = to.and_then(IntWidth::of).filter(|_| to != Some(column.base_oid));
    let proven = match (class, to) {
        (Class::CastString(cast), Some(to)) => string_is_read(cast, to, column),
        // NULL whatever the way is, if there is one.
        (_, Some(to)) => param_rule(0, to, column).is_ok(),
        (_, None) => true,
    };
    if !proven {
        return Err(refused());
    }
    Ok(LiteralRule {
        accept,
        cast: class.cast(),
        width,
        float: matches!(column.base_oid, oid::FLOAT4 | oid::FLOAT8),
        rounds: rounds(column),
        temporal: temporal(column),
        lasting: Lasting::of(column),
    })
}

/// Is a string that is read as this type, and then taken to the column, what the column's input makes of it? Of an integer it is
/// for each that the integer takes.
fn string_is_read(cast: Cast, to: Oid, column: &Column) -> bool {
    let own = to == column.base_oid || (cast::is_text(to) && cast::is_text(column.base_oid));
    cast.typmod < 0
        && ((own && !modifier_changes_parameter(column, to)) || is_integer_for_number(to, column.base_oid))
}

/// Integers go into the other numbers by PostgreSQL's own casts, as those read their digits or not at all.
fn is_integer_for_number(from: Oid, to: Oid) -> bool {
    let number = matches!(to, oid::NUMERIC | oid::FLOAT4 | oid::FLOAT8) || IntWidth::of(to).is_some();
    from != to && IntWidth::of(from).is_some() && number
}

pub(super) fn class_name(class: Class) -> &'static str {
    match class {
        Class::Null | Class::CastNull(_) => "NULL",
        Class::Default => "DEFAULT",
        Class::Integer => "integer",
        Class::SignedInteger => "signed integer",
        Class::Decimal => "decimal",
        Class::SignedDecimal => "signed decimal",
        Class::True => "TRUE",
        Class::False => "FALSE",
        Class::String | Class::CastString(_) | Class::Escaped => "string",
        Class::Param(_) | Class::CastParam(..) => "parameter",
        Class::Computed => "expression",
    }
}

/// A literal of a prepared statement: the server read it at Parse, so it must mean the same at any time.
pub(super) fn fixed_literal(
    class: Class,
    text: &[u8],
    item: Item,
    target: &InsertTarget,
    column: &Column,
) -> Result<ItemRule, Reason> {
    let rule = literal_rule(class, target, column)?;
    let text = text.get(item.start..item.end).ok_or(Reason::ParameterList)?;
    if !rule.is_lasting(class, text) {
        return Err(Reason::FrozenLiteral(column.name.clone()));
    }
    Ok(ItemRule::Fixed(FixedField::new(rule, class, text)))
}

/// An interval of certain fields: its modifier changes what a text means (`5` is 5 seconds, but 5 minutes for `interval hour
/// to minute`). All other types only round or check with theirs, after reading.
fn interval_of_fields(typmod: i32) -> bool {
    const ALL_FIELDS: i32 = 0x7fff;
    typmod >= 0 && (typmod >> 16) & ALL_FIELDS != ALL_FIELDS
}

/// Does the type's modifier do to the parameter what the column's does?
pub(super) fn modifier_is_own(cast: Cast, to: Oid, param: Oid, column: &Column) -> bool {
    cast.typmod < 0 || (param == to && param == column.type_oid && cast.typmod == column.typmod)
}

/// COPY reads a value with the column's modifier, Bind without it.
pub(super) fn modifier_changes_parameter(column: &Column, param: Oid) -> bool {
    if column.base_oid != oid::INTERVAL && column.elem_oid != oid::INTERVAL {
        return false;
    }
    if column.type_oid != column.base_oid {
        // The domain's own input knows its modifier; we don't.
        return param != column.type_oid;
    }
    interval_of_fields(column.typmod)
}

/// A string literal is read with the modifier only where the type is `interval` itself, not an array of it.
fn modifier_changes_literal(column: &Column) -> bool {
    column.elem_oid == oid::INTERVAL
        && (column.type_oid != column.base_oid || interval_of_fields(column.typmod))
}

pub(super) fn param_rule(index: usize, oid: Oid, column: &Column) -> Result<ParamRule, Reason> {
    let base = column.base_oid;
    let same = oid != 0 && (oid == column.type_oid || oid == base);
    let text_like = matches!(oid, oid::TEXT | oid::VARCHAR);
    let convert = match (IntWidth::of(oid), IntWidth::of(base)) {
        (Some(from), Some(to)) if from != to => Some((from, to)),
        _ => None,
    };
    let into_text = text_like && matches!(base, oid::TEXT | oid::VARCHAR | oid::BPCHAR);
    // All its digits, which such a number's input makes of what the server's own cast does: a float's rounds once, to the nearest.
    let into_wider = matches!(base, oid::NUMERIC | oid::FLOAT4 | oid::FLOAT8) && IntWidth::of(oid).is_some();
    let convert = convert.or_else(|| IntWidth::of(oid).filter(|_| into_wider).map(|from| (from, from)));
    let into_array = is_read_as_array(oid, column);
    let proven = same && !modifier_changes_parameter(column, oid);
    if !proven && convert.is_none() && !into_text && !into_array {
        return Err(Reason::Parameter { column: column.name.clone(), oid, base: column.base_name.clone() });
    }
    // A domain's own oid means its base type's bytes.
    let print_as = if oid == column.type_oid { base } else { oid };
    let print = match print_as {
        oid::BOOL => Print::Bool,
        oid::TEXT | oid::VARCHAR => Print::Text,
        oid::UUID => Print::Uuid,
        oid::BYTEA => Print::Bytea,
        oid::DATE => Print::Date,
        oid::TIMESTAMP => Print::Timestamp,
        oid::TIMESTAMPTZ => Print::TimestampTz,
        oid::FLOAT4 => Print::Float4,
        oid::FLOAT8 => Print::Float8,
        oid::NUMERIC => Print::Numeric,
        other => IntWidth::of(other).map_or(Print::No, Print::Int),
    };
    let elements = IntWidth::of_elements(oid).filter(|_| into_array);
    let as_text = into_wider || into_array;
    let (rounds, temporal) = (rounds(column), temporal(column));
    Ok(ParamRule { index, convert, elements, as_text, print, rounds, temporal })
}

/// Does the column's own input make of such an array, as a text, what the server's casts make of its elements? Of integers it does
/// where each is one of its type. Nobody made a cast of the whole.
fn is_read_as_array(from: Oid, column: &Column) -> bool {
    let texts = |oid| matches!(oid, oid::TEXT_ARRAY | oid::VARCHAR_ARRAY);
    let into_numbers = IntWidth::of(column.elem_oid).is_some() || column.elem_oid == oid::NUMERIC;
    let ints = IntWidth::of_elements(from).is_some() && into_numbers;
    from != column.base_oid && !column.cast_from_text && (ints || (texts(from) && texts(column.base_oid)))
}
