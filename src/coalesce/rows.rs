//! One statement's values as a row of a COPY, or as a Bind where its batch is a pipeline.
//!
//! Owns: the bytes of a row. Never: a socket, a clock, the decision whether a statement may be poured at all ([`super::plan`]); here only
//! single values can still be refused.

use super::plan::literal::{
    Field, NotPourable, PUT, is_of_few_digits, is_too_long, means_own_time, put_escaped, put_literal,
    read_text_int, without_its_cast,
};
use super::plan::{InsertPlan, IntWidth, ItemRule, ParamRule, Print};
use crate::sql::insert::{Class, Item, decode_string, put_unescaped};
use crate::wire::copy::{self, CopyFormat};
use crate::wire::frame;
use crate::wire::frontend::{self, Bind};

/// What a row asks of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowInfo {
    /// A value means the transaction's time (`'now'`): as [`InsertPlan::one_row_per_client`], for this row.
    pub own_time: bool,
}

/// Hot path. Appends the text row of one row of literals (`text[item]`, quotes included), or leaves `out` as it was.
///
/// Errors: why the row must be sent as it came: a value that COPY would read otherwise, or not at all.
pub fn encode_literals(
    plan: &InsertPlan,
    text: &[u8],
    items: &[Item],
    out: &mut Vec<u8>,
) -> Result<RowInfo, NotPourable> {
    let begin = out.len();
    let row = text_row(out, plan, items.len(), |at, out| {
        let item = items[at];
        match &plan.items[at] {
            ItemRule::LeftOut if item.class == Class::Default => Ok(Field::LeftOut),
            ItemRule::Literal(rule) if rule.takes(item.class) => {
                let bytes = text.get(item.start..item.end).ok_or(NotPourable::Literal)?;
                put_literal(*rule, item.class, bytes, plan.max_value_bytes, out)
            }
            _ => Err(NotPourable::Class),
        }
    });
    row.inspect_err(|_| out.truncate(begin))
}

/// Do these items mean the same at any time? The server read those of a prepared statement at Parse, and a COPY reads them again.
pub fn are_lasting(plan: &InsertPlan, text: &[u8], items: &[Item]) -> bool {
    items.iter().zip(&plan.items).all(|(item, rule)| match rule {
        ItemRule::Literal(rule) => rule.is_lasting(item.class, item.bytes(text)),
        ItemRule::LeftOut | ItemRule::Computed => true,
        ItemRule::Fixed(_) | ItemRule::Param(_) => false,
    })
}

/// Appends the `rows` rows of the text or binary COPY from a Bind's parameters, or leaves `out` as it was. `format` is what
/// [`format_of`] chose for this Bind. The plan is that of one row.
///
/// Errors: counts that are not those of the plan, or a value that COPY would read otherwise, or not at all.
pub fn encode_params(
    plan: &InsertPlan,
    bind: &Bind<'_>,
    rows: usize,
    format: CopyFormat,
    out: &mut Vec<u8>,
) -> Result<RowInfo, NotPourable> {
    check_counts(plan, bind, rows)?;
    let begin = out.len();
    let mut params = Params::new(plan, bind);
    let mut info = RowInfo::default();
    for _ in 0..rows {
        let row = match format {
            CopyFormat::Text => params_text(plan, &mut params, out),
            CopyFormat::Binary => params_binary(plan, &mut params, out),
        };
        info.own_time |= row.inspect_err(|_| out.truncate(begin))?.own_time;
        params.next_row(plan.params);
    }
    Ok(info)
}

/// The form of a Bind's row: binary when every parameter is and the plan can, text when every binary parameter can be written
/// as text; `None`: the row leaves as it was sent. Part of what rows must agree on to share a batch.
pub fn format_of(plan: &InsertPlan, bind: &Bind<'_>, rows: usize) -> Option<CopyFormat> {
    check_counts(plan, bind, rows).ok()?;
    if bind.formats.is_empty() {
        return Some(CopyFormat::Text);
    }
    if plan.copy_binary_sql.is_some() && bind.params_len > 0 && (0..bind.params_len).all(|i| bind.binary(i)) {
        return Some(CopyFormat::Binary);
    }
    // Without a code for each parameter all have the same.
    let rows = if bind.formats.len() <= 2 { 1 } else { rows };
    let as_text = |item: &ItemRule| match item {
        ItemRule::Param(rule) if rule.print == Print::No => {
            (0..rows).all(|row| !bind.binary(row * plan.params + rule.index))
        }
        _ => true,
    };
    plan.items.iter().all(as_text).then_some(CopyFormat::Text)
}

/// The server answers a wrong count or code before it looks at a value.
fn check_counts(plan: &InsertPlan, bind: &Bind<'_>, rows: usize) -> Result<(), NotPourable> {
    let codes = bind.formats.len() / 2;
    if plan.params.checked_mul(rows) != Some(bind.params_len) {
        return Err(NotPourable::Count);
    }
    if codes > 1 && codes != bind.params_len {
        return Err(NotPourable::FormatCode);
    }
    if bind.formats.chunks_exact(2).any(|code| code != [0, 0] && code != [0, 1]) {
        return Err(NotPourable::FormatCode);
    }
    Ok(())
}

/// A text row: `field` appends that of each item.
fn text_row(
    out: &mut Vec<u8>,
    plan: &InsertPlan,
    items: usize,
    mut field: impl FnMut(usize, &mut Vec<u8>) -> Result<Field, NotPourable>,
) -> Result<RowInfo, NotPourable> {
    if items != plan.items.len() {
        return Err(NotPourable::Count);
    }
    let begin = out.len();
    let mut info = RowInfo::default();
    for at in 0..items {
        if let Field::Put { own_time } = field(at, out)? {
            info.own_time |= own_time;
            out.push(copy::FIELD_END);
        }
    }
    // A plan has at least one field, so what was appended ends with a field's end.
    match out[begin..].last_mut() {
        Some(last) => *last = copy::ROW_END,
        None => return Err(NotPourable::Count),
    }
    Ok(info)
}

/// The parameters of one row by index, walked once when the plan takes them in their order.
struct Params<'a> {
    bind: &'a Bind<'a>,
    /// From the row's first parameter on.
    row: frontend::Values<'a>,
    /// How many stand before it.
    before: usize,
    next: frontend::Values<'a>,
    in_order: bool,
}

impl<'a> Params<'a> {
    fn new(plan: &InsertPlan, bind: &'a Bind<'a>) -> Self {
        let in_order = plan.params_in_order;
        Self { bind, row: bind.values(), before: 0, next: bind.values(), in_order }
    }

    fn take(&mut self, index: usize, max: usize) -> Result<Option<&'a [u8]>, NotPourable> {
        let value = if self.in_order { self.next.next() } else { self.row.clone().nth(index) };
        let value = value.ok_or(NotPourable::Count)?;
        match value {
            Some(bytes) if bytes.len() > max => Err(NotPourable::ValueTooLong),
            value => Ok(value),
        }
    }

    fn is_binary(&self, index: usize) -> bool {
        self.bind.binary(self.before + index)
    }

    fn next_row(&mut self, params: usize) {
        self.before += params;
        if self.in_order {
            self.row = self.next.clone();
        } else if let Some(last) = params.checked_sub(1) {
            self.row.nth(last);
        }
    }
}

fn params_text(
    plan: &InsertPlan,
    params: &mut Params<'_>,
    out: &mut Vec<u8>,
) -> Result<RowInfo, NotPourable> {
    text_row(out, plan, plan.items.len(), |at, out| match &plan.items[at] {
        ItemRule::LeftOut => Ok(Field::LeftOut),
        ItemRule::Literal(_) | ItemRule::Computed => Err(NotPourable::Class),
        ItemRule::Fixed(fixed) => fixed.put(plan.max_value_bytes, out),
        ItemRule::Param(rule) => {
            let value = params.take(rule.index, plan.max_value_bytes)?;
            put_param_text(*rule, value, params.is_binary(rule.index), out)
        }
    })
}

fn put_param_text(
    rule: ParamRule,
    value: Option<&[u8]>,
    binary: bool,
    out: &mut Vec<u8>,
) -> Result<Field, NotPourable> {
    let Some(value) = value else {
        copy::put_text_null(out);
        return Ok(PUT);
    };
    if rule.rounds && (!binary || rule.as_text) && !is_of_few_digits(value) {
        return Err(NotPourable::Digits);
    }
    if binary {
        print(rule.print, value, out)?;
        // A text that is read as the column's type: a number has no words.
        return Ok(Field::Put { own_time: rule.as_text && means_own_time(rule.temporal, value) });
    }
    if memchr::memchr(0, value).is_some() {
        return Err(NotPourable::ZeroByte);
    }
    if let Some((from, _)) = rule.convert {
        copy::put_text_int(out, read_text_int(from, value)?);
        return Ok(PUT);
    }
    if rule.elements.is_some_and(|width| !are_ints(width, value)) {
        return Err(NotPourable::Range);
    }
    copy::put_text(out, value);
    Ok(Field::Put { own_time: means_own_time(rule.temporal, value) })
}

/// Are the elements of this array, of as many dimensions as it may have, NULL or plain integers of its type?
fn are_ints(width: IntWidth, array: &[u8]) -> bool {
    let mut elements = array.split(|b| b"{},".contains(b)).filter(|element| !element.is_empty());
    elements.all(|element| element == b"NULL" || read_text_int(width, element).is_ok())
}

/// Appends a binary value as text.
fn print(print: Print, value: &[u8], out: &mut Vec<u8>) -> Result<(), NotPourable> {
    match print {
        Print::Int(width) => copy::put_text_int(out, read_int(width, value)?),
        Print::Bool => out.push(match value {
            [0] => b'f',
            [_] => b't',
            _ => return Err(NotPourable::Binary),
        }),
        Print::Text if memchr::memchr(0, value).is_some() => return Err(NotPourable::ZeroByte),
        Print::Text => copy::put_text(out, value),
        Print::Uuid => copy::put_text_uuid(out, bytes(value)?),
        Print::Bytea => copy::put_text_hex(out, value),
        Print::Date if copy::put_text_date(out, i32::from_be_bytes(bytes(value)?)) => {}
        Print::Timestamp if copy::put_text_timestamp(out, read_int(IntWidth::Eight, value)?) => {}
        Print::TimestampTz if copy::put_text_timestamptz(out, read_int(IntWidth::Eight, value)?) => {}
        Print::Float4 if copy::put_text_float4(out, f32::from_be_bytes(bytes(value)?)) => {}
        Print::Float8 if copy::put_text_float8(out, f64::from_be_bytes(bytes(value)?)) => {}
        Print::Numeric if copy::put_text_numeric(out, value) => {}
        // Beyond the calendar, or the numbers, that are written so.
        Print::Date
        | Print::Timestamp
        | Print::TimestampTz
        | Print::Float4
        | Print::Float8
        | Print::Numeric => return Err(NotPourable::Binary),
        Print::No => return Err(NotPourable::Format),
    }
    Ok(())
}

fn read_int(width: IntWidth, value: &[u8]) -> Result<i64, NotPourable> {
    Ok(match width {
        IntWidth::Two => i16::from_be_bytes(bytes(value)?).into(),
        IntWidth::Four => i32::from_be_bytes(bytes(value)?).into(),
        IntWidth::Eight => i64::from_be_bytes(bytes(value)?),
    })
}

/// A value of a type that has this length.
fn bytes<const N: usize>(value: &[u8]) -> Result<[u8; N], NotPourable> {
    value.try_into().map_err(|_| NotPourable::Binary)
}

fn params_binary(
    plan: &InsertPlan,
    params: &mut Params<'_>,
    out: &mut Vec<u8>,
) -> Result<RowInfo, NotPourable> {
    copy::put_binary_count(out, plan.fields);
    for item in &plan.items {
        match item {
            ItemRule::LeftOut => {}
            ItemRule::Fixed(fixed) if fixed.is_null() => copy::put_binary(out, None),
            ItemRule::Literal(_) | ItemRule::Fixed(_) | ItemRule::Computed => {
                return Err(NotPourable::Format);
            }
            ItemRule::Param(rule) => {
                let value = params.take(rule.index, plan.max_value_bytes)?;
                if !params.is_binary(rule.index) {
                    return Err(NotPourable::Format);
                }
                put_param_binary(*rule, value, out)?;
            }
        }
    }
    Ok(RowInfo::default())
}

fn put_param_binary(rule: ParamRule, value: Option<&[u8]>, out: &mut Vec<u8>) -> Result<(), NotPourable> {
    let (Some(bytes), Some((from, to))) = (value, rule.convert) else {
        copy::put_binary(out, value);
        return Ok(());
    };
    let number = read_int(from, bytes)?;
    let wrong = |_| NotPourable::Binary;
    match to {
        IntWidth::Two => copy::put_binary(out, Some(&i16::try_from(number).map_err(wrong)?.to_be_bytes())),
        IntWidth::Four => copy::put_binary(out, Some(&i32::try_from(number).map_err(wrong)?.to_be_bytes())),
        IntWidth::Eight => copy::put_binary(out, Some(&number.to_be_bytes())),
    }
    Ok(())
}

/// Hot path. Appends Bind of the prepared statement `name`, with its rows of literals (`text[item]`, quotes included) as text
/// parameters of their columns' types and the codes of the formats that its results are asked for in, and Execute; or leaves `out`
/// as it was.
///
/// Errors: why the statement must be sent as it came.
pub fn put_literals_bound(
    plan: &InsertPlan,
    name: &str,
    text: &[u8],
    items: &[Item],
    result_formats: &[u8],
    out: &mut Vec<u8>,
) -> Result<RowInfo, NotPourable> {
    let codes = u16::try_from(result_formats.len() / 2).map_err(|_| NotPourable::FormatCode)?;
    let rows = items.len() / plan.items.len().max(1);
    if rows == 0 || items.len() != plan.items.len() * rows {
        return Err(NotPourable::Count);
    }
    let params = u16::try_from(usize::from(plan.literals) * rows).map_err(|_| NotPourable::Count)?;
    let begin = out.len();
    let mut info = Ok(RowInfo::default());
    frame::put(out, frontend::BIND, |out| {
        out.push(0);
        frame::put_cstr(out, name.as_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&params.to_be_bytes());
        let places = items.iter().zip(plan.items.iter().zip(items).cycle());
        info = { places }.try_fold(RowInfo::default(), |info, (item, (rule, first))| {
            if !may_stand_below(first.class, item.class) {
                return Err(NotPourable::Class);
            }
            let own_time = put_literal_bound(rule, *item, text, plan.max_value_bytes, out)?;
            Ok(RowInfo { own_time: info.own_time | own_time })
        });
        out.extend_from_slice(&codes.to_be_bytes());
        out.extend_from_slice(result_formats);
    });
    frontend::put_execute(out, b"", 0);
    info.inspect_err(|_| out.truncate(begin))
}

/// Does the proof for a class in the first row hold for this class in a row below it? A cast is a way of its own.
fn may_stand_below(first: Class, class: Class) -> bool {
    class == first || class == Class::Null || (class.cast().is_none() && first.cast().is_none())
}

/// Returns whether it means the transaction's time.
fn put_literal_bound(
    rule: &ItemRule,
    item: Item,
    text: &[u8],
    max: usize,
    out: &mut Vec<u8>,
) -> Result<bool, NotPourable> {
    let rule = match rule {
        ItemRule::LeftOut if item.class == Class::Default => return Ok(false),
        // It is in the statement.
        ItemRule::Computed if item.class == Class::Computed => return Ok(false),
        ItemRule::Literal(rule) if rule.takes(item.class) => *rule,
        _ => return Err(NotPourable::Class),
    };
    let bytes = text.get(item.start..item.end).ok_or(NotPourable::Literal)?;
    if matches!(item.class, Class::Null | Class::CastNull(_)) {
        out.extend_from_slice(&(-1i32).to_be_bytes());
        return Ok(false);
    }
    let length = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut own_time = false;
    if matches!(item.class, Class::String | Class::CastString(_)) && rule.width.is_none() {
        let bytes = without_its_cast(item.class, bytes);
        if is_too_long(bytes.len(), max) {
            return Err(NotPourable::ValueTooLong);
        }
        own_time = means_own_time(rule.temporal, bytes);
        decode_string(bytes).for_each(|piece| out.extend_from_slice(piece));
    } else if item.class == Class::Escaped {
        if bytes.len() > max.saturating_add(3) {
            return Err(NotPourable::ValueTooLong);
        }
        put_escaped(rule, bytes, |body| put_unescaped(body, out))?;
    } else {
        // Such a literal is written in the same way in a COPY's field.
        put_literal(rule, item.class, bytes, max, out)?;
    }
    let written = u32::try_from(out.len() - length - 4).map_err(|_| NotPourable::ValueTooLong)?;
    out[length..length + 4].copy_from_slice(&written.to_be_bytes());
    Ok(own_time)
}

/// Hot path. Appends a client's Bind for the prepared statement `name` in the place of the client's own, values and formats as
/// sent, to the unnamed portal. `body` is the body that `bind` was read from; the plan is that of one of its `rows`.
///
/// Errors: why the statement must be sent as it came.
pub fn put_bound(
    plan: &InsertPlan,
    name: &str,
    (body, bind): (&[u8], &Bind<'_>),
    rows: usize,
    out: &mut Vec<u8>,
) -> Result<RowInfo, NotPourable> {
    check_counts(plan, bind, rows)?;
    // Portal and statement, each with its zero byte.
    let rest = body.get(bind.portal.len() + bind.statement.len() + 2..).ok_or(NotPourable::Count)?;
    if rest.len() > plan.max_value_bytes {
        return Err(NotPourable::ValueTooLong);
    }
    let mut params = Params::new(plan, bind);
    let mut info = RowInfo::default();
    for _ in 0..rows {
        for item in &plan.items {
            match item {
                ItemRule::LeftOut | ItemRule::Fixed(_) | ItemRule::Computed => {}
                ItemRule::Literal(_) => return Err(NotPourable::Class),
                ItemRule::Param(rule) => {
                    let value = params.take(rule.index, plan.max_value_bytes)?;
                    let text = value.filter(|_| rule.as_text || !params.is_binary(rule.index));
                    info.own_time |= text.is_some_and(|text| means_own_time(rule.temporal, text));
                }
            }
        }
        params.next_row(plan.params);
    }
    frame::put(out, frontend::BIND, |out| {
        out.push(0);
        frame::put_cstr(out, name.as_bytes());
        out.extend_from_slice(rest);
    });
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coalesce::plan::literal::{DIGITS_MAX, FixedField};
    use crate::coalesce::plan::{ClassSet, Lasting, LiteralRule, Temporal};
    use crate::sql::cast::Cast;
    use proptest::prelude::*;

    /// A plan of these rules; only what the encoders look at.
    fn plan(items: Vec<ItemRule>) -> InsertPlan {
        let params = items.iter().filter(|i| matches!(i, ItemRule::Param(_))).count();
        let fields = items.iter().filter(|i| **i != ItemRule::LeftOut).count() as u16;
        let literals = items.iter().filter(|i| matches!(i, ItemRule::Literal(_))).count() as u16;
        InsertPlan {
            relid: 1,
            target: "\"s\".\"t\"".into(),
            relname: "t".into(),
            name_as_written: "\"t\"".into(),
            types: "{}".into(),
            functions: "{}".into(),
            names: "{}".into(),
            fingerprint: "f".into(),
            has_sentinel: false,
            root: 1,
            references: Vec::new(),
            copy_text_sql: "COPY".into(),
            copy_binary_sql: Some("COPY binary".into()),
            values: None,
            items,
            fields,
            literals,
            params,
            params_in_order: true,
            one_row_per_client: false,
            draws_sequence: false,
            sequences: "{}".into(),
            most: "{}".into(),
            max_value_bytes: 10,
        }
    }

    fn literal(classes: &[Class]) -> LiteralRule {
        LiteralRule {
            accept: ClassSet::of(classes),
            cast: None,
            width: None,
            float: false,
            rounds: false,
            temporal: Temporal::No,
            lasting: Lasting::Null,
        }
    }

    fn any_literal() -> ItemRule {
        use Class::{Decimal, False, Integer, Null, SignedDecimal, SignedInteger, String, True};
        let all = [Null, True, False, Integer, SignedInteger, Decimal, SignedDecimal, String];
        ItemRule::Literal(literal(&all))
    }

    fn encode_one(rule: ItemRule, class: Class, text: &str) -> Result<(String, RowInfo), NotPourable> {
        let mut out = b"kept".to_vec();
        let item = Item { class, start: 0, end: text.len() };
        let info = encode_literals(&plan(vec![rule]), text.as_bytes(), &[item], &mut out);
        if info.is_err() {
            assert_eq!(out, b"kept");
        }
        info.map(|info| (String::from_utf8(out.split_off(4)).unwrap(), info))
    }

    #[test]
    fn each_class_has_its_field() {
        let field = |class, text| encode_one(any_literal(), class, text).map(|(row, _)| row);
        assert_eq!(field(Class::Null, "NULL").as_deref(), Ok("\\N\n"));
        assert_eq!(field(Class::True, "TRUE").as_deref(), Ok("t\n"));
        assert_eq!(field(Class::False, "False").as_deref(), Ok("f\n"));
        assert_eq!(field(Class::Integer, "0010").as_deref(), Ok("10\n"));
        assert_eq!(field(Class::Integer, "000").as_deref(), Ok("0\n"));
        assert_eq!(field(Class::SignedInteger, "-08").as_deref(), Ok("-8\n"));
        assert_eq!(field(Class::Decimal, "00.10").as_deref(), Ok("0.10\n"));
        assert_eq!(field(Class::SignedDecimal, "-1.50").as_deref(), Ok("-1.50\n"));
        assert_eq!(field(Class::String, "'a''\tb'").as_deref(), Ok("a'\\tb\n"));
        assert_eq!(field(Class::String, "''").as_deref(), Ok("\n"));
        assert_eq!(field(Class::String, "'0123456789'").as_deref(), Ok("0123456789\n"));
        assert_eq!(field(Class::String, "'0123456789a'"), Err(NotPourable::ValueTooLong));
        assert_eq!(field(Class::Default, "DEFAULT"), Err(NotPourable::Class));
        assert_eq!(field(Class::Param(1), "$1"), Err(NotPourable::Class));
        for (class, text) in [
            (Class::Integer, "-1"),
            (Class::Integer, ""),
            (Class::Integer, "1\n"),
            (Class::SignedInteger, "- 1"),
            (Class::SignedInteger, "--1"),
            (Class::Decimal, "1"),
            (Class::Decimal, ".5"),
            (Class::Decimal, "1.5.5"),
            (Class::SignedDecimal, "1.5"),
            (Class::String, "'"),
            (Class::String, "'a'b'"),
            (Class::String, "a"),
        ] {
            assert_eq!(field(class, text), Err(NotPourable::Literal), "{text}");
        }
    }

    #[test]
    fn what_a_prepared_statement_has_is_written_as_each_rows_own() {
        let dated = LiteralRule { temporal: Temporal::Scalar, ..literal(&[Class::String]) };
        let float = LiteralRule { float: true, ..literal(&[Class::SignedInteger]) };
        let any = literal(&[Class::Null, Class::Integer, Class::String]);
        for (rule, class, text) in [
            (any, Class::Null, "NULL"),
            (any, Class::Integer, "007"),
            (any, Class::String, "'a''\tb'"),
            (any, Class::String, "'0123456789'"),
            (any, Class::String, "'0123456789a'"),
            (any, Class::String, "'a'b'"),
            (dated, Class::String, "'now'"),
            (float, Class::SignedInteger, "-0"),
        ] {
            let fixed = plan(vec![ItemRule::Fixed(FixedField::new(rule, class, text.as_bytes()))]);
            let (body, mut out) = (body(&[], &[]), Vec::new());
            let row = encode_params(&fixed, &Bind::decode(&body).unwrap(), 1, CopyFormat::Text, &mut out);
            let row = row.map(|info| (String::from_utf8(out).unwrap(), info));
            assert_eq!(row, encode_one(ItemRule::Literal(rule), class, text), "{text}");
        }
    }

    #[test]
    fn classes_that_are_not_proven_are_refused() {
        let number = ItemRule::Literal(literal(&[Class::Integer]));
        assert_eq!(encode_one(number.clone(), Class::String, "'1'"), Err(NotPourable::Class));
        let cast = |name: &str| Class::CastString(Cast::of_word(name.as_bytes()).unwrap());
        let dated = LiteralRule { cast: cast("date").cast(), ..literal(&[Class::String]) };
        let field = |class| encode_one(ItemRule::Literal(dated), class, "'7'::date").map(|(text, _)| text);
        assert_eq!(field(cast("date")).as_deref(), Ok("7\n"));
        // Another statement's type.
        assert_eq!(field(cast("text")), Err(NotPourable::Class));
        assert_eq!(encode_one(number, Class::Null, "NULL"), Err(NotPourable::Class));
        assert_eq!(encode_one(ItemRule::LeftOut, Class::Integer, "1"), Err(NotPourable::Class));
    }

    #[test]
    fn negative_zero_never_reaches_a_float() {
        let float = || {
            ItemRule::Literal(LiteralRule {
                float: true,
                ..literal(&[Class::SignedInteger, Class::SignedDecimal])
            })
        };
        for zero in ["-0", "-000"] {
            assert_eq!(encode_one(float(), Class::SignedInteger, zero), Err(NotPourable::NegativeZero));
        }
        assert_eq!(encode_one(float(), Class::SignedDecimal, "-0.00"), Err(NotPourable::NegativeZero));
        assert!(encode_one(float(), Class::SignedDecimal, "-0.01").is_ok());
        assert!(encode_one(any_literal(), Class::SignedInteger, "-0").is_ok());
    }

    #[test]
    fn numbers_have_no_more_digits_than_numbers_may_have() {
        let nines = "9".repeat(DIGITS_MAX);
        for few in
            ["", "1.50", "-1e-9999", "1E+0012", "NaN", "x", &nines, "{1e-20,\"2e-30\",NULL}", "{{1},{2}}"]
        {
            assert!(is_of_few_digits(few.as_bytes()), "{few}");
        }
        let many = format!("{nines}9");
        for many in
            ["1e-10000", "1e-00001", "1e-1_7000", "{1e-20,2E-17000}", "{1e\\-17000}", "{1e-1\\7000}", &many]
        {
            assert!(!is_of_few_digits(many.as_bytes()), "{many}");
        }
        let decimal = format!("0.{nines}");
        assert_eq!(encode_one(any_literal(), Class::Decimal, &decimal), Err(NotPourable::ValueTooLong));
        let plan = InsertPlan { max_value_bytes: 1 << 16, ..plan(vec![any_literal()]) };
        let item = Item { class: Class::Decimal, start: 0, end: decimal.len() };
        let row = encode_literals(&plan, decimal.as_bytes(), &[item], &mut Vec::new());
        assert_eq!(row, Err(NotPourable::Digits));
    }

    #[test]
    fn words_in_dates_ask_for_the_clients_own_time() {
        let own = |temporal, value: &str| means_own_time(temporal, value.as_bytes());
        for word in ["now", "NOW", "today", "12:00 tomorrow", "2024-01-01 10:00 Asia/Tokyo", "epoch"] {
            assert!(own(Temporal::Scalar, word), "{word}");
        }
        for plain in ["2024-01-01", "2024-01-01T12:00:00.5Z", "2024-01-01 12:00:00+02", "12:00"] {
            assert!(!own(Temporal::Scalar, plain), "{plain}");
        }
        for hidden in ["[now,)", "{n\"o\"w}", "{n\\ow}", "[\"now\",]"] {
            assert!(own(Temporal::Container, hidden), "{hidden}");
        }
        assert!(!own(Temporal::Container, "[\"2024-01-01 10:00\",2024-02-01)"));
        assert!(own(Temporal::Always, "12:00"));
        assert!(!own(Temporal::No, "now"));
    }

    fn param(index: usize, convert: Option<(IntWidth, IntWidth)>, print: Print) -> ItemRule {
        ItemRule::Param(ParamRule {
            index,
            convert,
            elements: None,
            as_text: false,
            print,
            rounds: false,
            temporal: Temporal::No,
        })
    }

    fn body(formats: &[u16], values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut body = vec![0, 0];
        body.extend_from_slice(&(formats.len() as u16).to_be_bytes());
        formats.iter().for_each(|f| body.extend_from_slice(&f.to_be_bytes()));
        body.extend_from_slice(&(values.len() as u16).to_be_bytes());
        for value in values {
            copy::put_binary(&mut body, *value);
        }
        body.extend_from_slice(&[0, 0]);
        body
    }

    fn params(plan: &InsertPlan, formats: &[u16], values: &[Option<&[u8]>]) -> Result<Vec<u8>, NotPourable> {
        let body = body(formats, values);
        let bind = Bind::decode(&body).unwrap();
        let format = format_of(plan, &bind, 1).unwrap_or(CopyFormat::Text);
        let mut out = b"kept".to_vec();
        let done = encode_params(plan, &bind, 1, format, &mut out);
        if done.is_err() {
            assert_eq!(out, b"kept");
        }
        done.map(|_| out.split_off(4))
    }

    #[test]
    fn parameters_go_as_they_came_or_exactly_converted() {
        use IntWidth::{Eight, Four, Two};
        let one = |convert, print| plan(vec![param(0, convert, print)]);
        let same = one(None, Print::Int(Four));
        assert_eq!(params(&same, &[], &[Some(b"\\5\t")]).as_deref(), Ok(&b"\\\\5\\t\n"[..]));
        assert_eq!(
            params(&same, &[1], &[Some(b"\0\0\0\x05")]).as_deref(),
            Ok(&b"\0\x01\0\0\0\x04\0\0\0\x05"[..])
        );
        assert_eq!(params(&same, &[1], &[None]).as_deref(), Ok(&b"\0\x01\xff\xff\xff\xff"[..]));
        assert_eq!(params(&same, &[0], &[None]).as_deref(), Ok(&b"\\N\n"[..]));
        let widen = one(Some((Two, Eight)), Print::Int(Two));
        let wide = b"\0\x01\0\0\0\x08\xff\xff\xff\xff\xff\xff\xff\xfe";
        assert_eq!(params(&widen, &[1], &[Some(b"\xff\xfe")]).as_deref(), Ok(&wide[..]));
        assert_eq!(params(&widen, &[1], &[Some(b"\xff")]), Err(NotPourable::Binary));
        assert_eq!(params(&widen, &[0], &[Some(b"-32768")]).as_deref(), Ok(&b"-32768\n"[..]));
        assert_eq!(params(&widen, &[0], &[Some(b"32768")]), Err(NotPourable::Range));
        assert_eq!(params(&widen, &[0], &[Some(b"0x10")]), Err(NotPourable::Range));
        let narrow = one(Some((Eight, Two)), Print::Int(Eight));
        assert_eq!(params(&narrow, &[1], &[Some(&32768i64.to_be_bytes())]), Err(NotPourable::Binary));
        assert_eq!(params(&same, &[0], &[Some(b"a\0b")]), Err(NotPourable::ZeroByte));
        assert_eq!(params(&same, &[0], &[Some(b"01234567890")]), Err(NotPourable::ValueTooLong));
        assert_eq!(params(&same, &[2], &[Some(b"1")]), Err(NotPourable::FormatCode));
        assert_eq!(params(&same, &[0, 0], &[Some(b"1")]), Err(NotPourable::FormatCode));
        assert_eq!(params(&same, &[], &[]), Err(NotPourable::Count));
    }

    #[test]
    fn a_row_is_binary_only_when_all_of_it_is() {
        let two = plan(vec![param(0, None, Print::Bool), param(1, None, Print::No)]);
        let format = |plan: &InsertPlan, formats: &[u16]| {
            let body = body(formats, &[Some(b"\x01"), Some(b"x")]);
            format_of(plan, &Bind::decode(&body).unwrap(), 1)
        };
        assert_eq!(format(&two, &[1]), Some(CopyFormat::Binary));
        assert_eq!(format(&two, &[1, 1]), Some(CopyFormat::Binary));
        assert_eq!(format(&two, &[]), Some(CopyFormat::Text));
        assert_eq!(format(&two, &[1, 0]), Some(CopyFormat::Text));
        assert_eq!(format(&two, &[0, 1]), None);
        assert_eq!(format(&two, &[0, 0, 0]), None);
        let text_only = InsertPlan { copy_binary_sql: None, ..two };
        assert_eq!(format(&text_only, &[1]), None);
        assert_eq!(params(&text_only, &[1, 0], &[Some(b"\x01"), Some(b"x")]).as_deref(), Ok(&b"t\tx\n"[..]));
    }

    #[test]
    fn literals_become_text_parameters() {
        let rules = vec![any_literal(), ItemRule::LeftOut, any_literal(), any_literal()];
        let plan = InsertPlan { fields: 3, ..plan(rules) };
        let text = "INSERT INTO t VALUES ('a''b', DEFAULT, NULL, -1.5)";
        let mut lifted = crate::sql::insert::Lifted::new();
        crate::sql::insert::lift(text.as_bytes(), &mut lifted).unwrap();
        let mut out = b"x".to_vec();
        put_literals_bound(&plan, "s", text.as_bytes(), lifted.row(0), &[0, 1, 0, 0], &mut out).unwrap();
        let (head, body) = frame::whole(&out[1..], usize::MAX).unwrap().unwrap();
        let bind = Bind::decode(body).unwrap();
        assert_eq!((bind.portal, bind.statement), (&b""[..], &b"s"[..]));
        assert_eq!(bind.result_formats, [0, 1, 0, 0]);
        let values: Vec<_> = bind.values().collect();
        assert_eq!(values, [Some(&b"a'b"[..]), None, Some(b"-1.5")]);
        assert_eq!(out[1 + head.total()], frontend::EXECUTE);
        let plan = InsertPlan { max_value_bytes: 2, ..plan };
        assert!(put_literals_bound(&plan, "s", text.as_bytes(), lifted.row(0), &[], &mut out).is_err());
        assert_eq!(out.len(), 1 + head.total() + 10);
    }

    #[test]
    fn many_rows_are_the_parameters_of_one_bind() {
        let of = |plan: &InsertPlan, text: &str| {
            let (mut lifted, mut out) = (crate::sql::insert::Lifted::new(), Vec::new());
            crate::sql::insert::lift(text.as_bytes(), &mut lifted).unwrap();
            put_literals_bound(plan, "s", text.as_bytes(), &lifted.items, &[], &mut out)?;
            let (_, body) = frame::whole(&out, usize::MAX).unwrap().unwrap();
            let values = Bind::decode(body).unwrap();
            let values = values.values().map(|value| value.map(|v| String::from_utf8(v.to_vec()).unwrap()));
            Ok::<_, NotPourable>(values.collect::<Vec<_>>())
        };
        let some = |value: &str| Some(value.to_owned());
        let two = plan(vec![any_literal(), any_literal()]);
        let values = of(&two, "INSERT INTO t VALUES ('a', 1), (NULL, 'b'), (-1.5, TRUE) RETURNING a");
        assert_eq!(values, Ok(vec![some("a"), some("1"), None, some("b"), some("-1.5"), some("t")]));
        let left_out = InsertPlan { fields: 1, ..plan(vec![any_literal(), ItemRule::LeftOut]) };
        let values = of(&left_out, "INSERT INTO t VALUES (1, DEFAULT), (2, DEFAULT) RETURNING a");
        assert_eq!(values, Ok(vec![some("1"), some("2")]));
        let text = "INSERT INTO t VALUES (1, DEFAULT), (2, 3) RETURNING a";
        assert_eq!(of(&left_out, text), Err(NotPourable::Class));
        // What an int4 is for a float is no sign of what a string is: `-0` would lose its sign.
        let mut lifted = crate::sql::insert::Lifted::new();
        crate::sql::insert::lift(b"INSERT INTO t VALUES ('1'::int4)", &mut lifted).unwrap();
        let cast = lifted.items[0].class.cast();
        let all = [Class::Null, Class::String];
        let rule = LiteralRule { cast, width: Some(IntWidth::Four), ..literal(&all) };
        let one = plan(vec![ItemRule::Literal(rule)]);
        let cast = |rows: &str| of(&one, &format!("INSERT INTO t VALUES {rows} RETURNING a"));
        assert_eq!(cast("('1'::int4), ('2'::int4), (NULL)"), Ok(vec![some("1"), some("2"), None]));
        for rows in ["('1'::int4), ('-0')", "(NULL::int4), ('2'::int4)", "('1'::int4), ('2'::int2)"] {
            assert_eq!(cast(rows), Err(NotPourable::Class), "{rows}");
        }
    }

    proptest! {
        #[test]
        fn a_row_of_literals_comes_back(values in proptest::collection::vec("[^\0]{0,8}", 1..6)) {
            let (mut text, mut items) = (Vec::new(), Vec::new());
            for value in &values {
                let start = text.len();
                text.extend_from_slice(format!("'{}'", value.replace('\'', "''")).as_bytes());
                items.push(Item { class: Class::String, start, end: text.len() });
            }
            let plan = InsertPlan { max_value_bytes: 1000, ..plan(vec![any_literal(); values.len()]) };
            let mut out = Vec::new();
            encode_literals(&plan, &text, &items, &mut out).unwrap();
            let (row, rest) = copy::take_text_row(&out).unwrap();
            prop_assert!(rest.is_empty());
            let expected: Vec<_> = values.iter().map(|v| Some(v.clone().into_bytes())).collect();
            prop_assert_eq!(row, expected);
        }

        #[test]
        fn no_bind_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(bind) = Bind::decode(&bytes) {
                let rules = [Print::Int(IntWidth::Four), Print::Date, Print::Text, Print::Timestamp, Print::Bytea, Print::No];
                let items = (0..bind.params_len.min(6)).map(|i| param(i, None, rules[i])).collect();
                let plan = plan(items);
                for format in [CopyFormat::Text, CopyFormat::Binary] {
                    let _ = encode_params(&plan, &bind, 1, format, &mut Vec::new());
                    let _ = encode_params(&plan, &bind, 2, format, &mut Vec::new());
                }
                let _ = (format_of(&plan, &bind, 1), format_of(&plan, &bind, 3));
            }
        }
    }
}
