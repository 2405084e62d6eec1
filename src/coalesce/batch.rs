//! Rows on their way into a COPY: the batch that holds those of many statements.
//!
//! Owns: which row belongs to which client, so that the row at fault can be taken out and each client gets its own answers. Never: the
//! contents of a row ([`super::rows`]), a socket, a clock.

use std::ops::Range;

use crate::wire::backend::ErrorFields;
use crate::wire::copy::{self, CopyFormat};
use crate::wire::{frame, frontend};

/// The body of a statement's RowDescription with the formats that a Bind asked for; `None`: the server would refuse them.
pub fn put_row_description(out: &mut Vec<u8>, described: &[u8], formats: &[u8]) -> Option<()> {
    let codes = formats.len() / 2;
    let columns = usize::from(u16::from_be_bytes([*described.first()?, *described.get(1)?]));
    if codes > 1 && codes != columns || formats.chunks_exact(2).any(|code| code != [0, 0] && code != [0, 1]) {
        return None;
    }
    let begin = out.len();
    out.extend_from_slice(described);
    let mut at = begin + 2;
    for column in 0..columns {
        // The name, then table, attribute, type, size and modifier; the format stands last.
        at += memchr::memchr(0, out.get(at..)?)? + 1 + 16;
        let code = if codes == 1 { formats } else { formats.get(column * 2..).unwrap_or_default() };
        out.get_mut(at..at + 2)?.copy_from_slice(code.get(..2).unwrap_or(&[0, 0]));
        at += 2;
    }
    Some(())
}

/// About the most rows of one COPY; more rows take several, in one transaction. Until it has buffered as many as it wants
/// to (1000), PostgreSQL holds the table's description once for each row, in a list that it searches: the time grows with the
/// square of the rows. 1000 rows in one COPY cost it twice what they cost in eight (`make bench-seeds CELLS=plans`).
pub const COPY_ROWS: usize = 160;

/// What a batch is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Rows of a COPY.
    Copy(CopyFormat),
    /// The clients' own statements, each a Bind and an Execute.
    Pipelined,
}

impl Form {
    /// As the console shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copy(CopyFormat::Text) => "text",
            Self::Copy(CopyFormat::Binary) => "binary",
            Self::Pipelined => "pipelined",
        }
    }
}

impl From<CopyFormat> for Form {
    fn from(format: CopyFormat) -> Self {
        Self::Copy(format)
    }
}

/// What a cargo has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Most rows.
    pub rows: usize,
    /// Most bytes of rows.
    pub bytes: usize,
}

/// One client statement's place in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit {
    /// Its first byte.
    start: usize,
    /// Its first row, from 0.
    row: usize,
}

/// The rows of one COPY, by unit: a unit is one client statement with one row or more, which stand or fall together.
#[derive(Debug, Clone)]
pub struct Batch {
    form: Form,
    bytes: Vec<u8>,
    units: Vec<Unit>,
    rows: usize,
}

impl Batch {
    /// Empty.
    pub fn new(form: impl Into<Form>) -> Self {
        Self { form: form.into(), bytes: Vec::new(), units: Vec::new(), rows: 0 }
    }

    /// Rows in it.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Units in it.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Takes everything out and keeps the buffers.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.units.clear();
        self.rows = 0;
    }

    /// Bytes of rows that it holds without growing.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Nothing in it?
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// All rows, without header and trailer.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends a unit of `rows` (1 or more) encoded rows.
    pub fn push(&mut self, encoded: &[u8], rows: usize) {
        self.units.push(Unit { start: self.bytes.len(), row: self.rows });
        self.bytes.extend_from_slice(encoded);
        self.rows += rows;
    }

    /// The rows of unit `unit`; `None`: no such unit.
    pub fn unit_bytes(&self, unit: usize) -> Option<&[u8]> {
        self.bytes.get(self.byte_range(unit..unit + 1)?)
    }

    /// How many rows unit `unit` has; 0: no such unit.
    pub fn unit_rows(&self, unit: usize) -> usize {
        let Some(first) = self.units.get(unit) else { return 0 };
        self.units.get(unit + 1).map_or(self.rows, |next| next.row) - first.row
    }

    /// The first row of unit `unit`, from 0; 0: no such unit.
    pub fn first_row(&self, unit: usize) -> usize {
        self.units.get(unit).map_or(0, |unit| unit.row)
    }

    /// Whose is line `line` (from 1, as COPY counts, in both formats)? `None`: no such line.
    pub fn line_owner(&self, line: u64) -> Option<usize> {
        let row = usize::try_from(line).ok()?.checked_sub(1)?;
        if row >= self.rows {
            return None;
        }
        self.units.partition_point(|unit| unit.row <= row).checked_sub(1)
    }

    /// The units of `units` alone, in their order; for a search by halves. Out of range: empty.
    pub fn select(&self, units: Range<usize>) -> Self {
        let mut part = Self::new(self.form);
        for unit in units {
            part.copy_unit(self, unit);
        }
        part
    }

    /// All but unit `unit`; later units move down by one.
    pub fn without(&self, unit: usize) -> Self {
        let mut part = Self::new(self.form);
        for other in (0..self.units.len()).filter(|&other| other != unit) {
            part.copy_unit(self, other);
        }
        part
    }

    fn copy_unit(&mut self, from: &Self, unit: usize) {
        if let Some(bytes) = from.unit_bytes(unit) {
            self.push(bytes, from.unit_rows(unit));
        }
    }

    fn byte_range(&self, units: Range<usize>) -> Option<Range<usize>> {
        let start = self.units.get(units.start)?.start;
        Some(start..self.units.get(units.end).map_or(self.bytes.len(), |unit| unit.start))
    }

    /// The answers of each unit, cut out of those of all: a CommandComplete ends those of each statement, which has `each` rows.
    pub fn answers<'a>(&'a self, all: &'a [u8], each: usize) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = all;
        (0..self.units()).map(move |unit| {
            let mut end = 0;
            for _ in 0..self.unit_rows(unit) / each.max(1) {
                end += statement_end(&rest[end..]);
            }
            let (own, others) = rest.split_at(end);
            rest = others;
            own
        })
    }

    /// The COPYs that carry it, of about the same size each: how many rows they have, in their order.
    pub fn copies(&self) -> impl Iterator<Item = usize> {
        let many = self.rows.div_ceil(COPY_ROWS).max(1);
        let (each, more) = (self.rows / many, self.rows % many);
        (0..many).map(move |copy| each + usize::from(copy < more))
    }

    /// The rows of each COPY in `format`, without header and trailer.
    pub fn copied(&self, format: CopyFormat) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes();
        self.copies().map(move |rows| {
            let end = if rows < self.rows { copy::rows_end(format, rest, rows) } else { rest.len() };
            let (own, others) = rest.split_at(end);
            rest = others;
            own
        })
    }
}

/// Appends everything between Execute(COPY) and what follows it: one CopyData with header, rows and trailer, and CopyDone.
pub fn put_copy(format: CopyFormat, rows: &[u8], out: &mut Vec<u8>) {
    out.reserve(rows.len() + copy::BINARY_HEADER.len() + 2 * frame::HEADER_BYTES + 2);
    frame::put(out, frontend::COPY_DATA, |out| match format {
        CopyFormat::Text => out.extend_from_slice(rows),
        CopyFormat::Binary => {
            out.extend_from_slice(copy::BINARY_HEADER);
            out.extend_from_slice(rows);
            out.extend_from_slice(copy::BINARY_TRAILER);
        }
    });
    frontend::put_empty(out, frontend::COPY_DONE);
}

/// Appends Bind and Execute of the prepared INSERT `name` of as many VALUES as these rows have.
pub fn put_many_values(
    format: CopyFormat,
    name: &str,
    fields: u16,
    rows: usize,
    bytes: &[u8],
    out: &mut Vec<u8>,
) {
    // A few dozen: ManyValues bounds them.
    let count = rows as u16 * fields;
    frame::put(out, frontend::BIND, |out| {
        out.push(0);
        frame::put_cstr(out, name.as_bytes());
        match format {
            CopyFormat::Text => out.extend_from_slice(&[0, 0]),
            CopyFormat::Binary => out.extend_from_slice(&[0, 1, 0, 1]),
        }
        out.extend_from_slice(&count.to_be_bytes());
        copy::put_values(format, bytes, out);
        out.extend_from_slice(&[0, 0]);
    });
    frontend::put_execute(out, b"", 0);
}

/// Where the rows of one COPY end in a unit's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The byte after the last one.
    pub end: usize,
    /// Rows up to here since the cut before; at least 1.
    pub rows: usize,
}

/// One of the COPYs that carry a cargo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOf {
    /// Which of its batches.
    pub part: usize,
    /// Rows of that batch that earlier ones carry.
    pub before: usize,
    /// Its own.
    pub rows: usize,
}

/// What one flush carries: a batch for each of its COPYs, in the order in which they run. Every unit has rows in each.
#[derive(Debug, Clone)]
pub struct Cargo {
    parts: Vec<Batch>,
    caps: Caps,
}

impl Cargo {
    /// Empty, for one COPY of each of these forms. A unit that is larger than the caps is taken by an empty cargo only.
    pub fn new(forms: impl IntoIterator<Item = impl Into<Form>>, caps: Caps) -> Self {
        Self { parts: forms.into_iter().map(Batch::new).collect(), caps }
    }

    /// The batch of each COPY.
    pub fn parts(&self) -> &[Batch] {
        &self.parts
    }

    /// Nothing in it?
    pub fn is_empty(&self) -> bool {
        self.parts.first().is_none_or(Batch::is_empty)
    }

    /// Rows in all.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(Batch::rows).sum()
    }

    /// Bytes of rows in all.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes().len()).sum()
    }

    /// Rows of one unit in all.
    pub fn unit_rows(&self, unit: usize) -> usize {
        self.parts.iter().map(|part| part.unit_rows(unit)).sum()
    }

    /// Bytes of one unit in all.
    pub fn unit_bytes(&self, unit: usize) -> usize {
        self.parts.iter().map(|part| part.unit_bytes(unit).map_or(0, <[u8]>::len)).sum()
    }

    /// Appends a unit: `encoded` holds its rows of the first COPY, up to the first of `cuts`, and so on. False: no room, or
    /// the cuts are not those of this cargo; nothing was appended.
    pub fn push_unit(&mut self, encoded: &[u8], cuts: &[Cut]) -> bool {
        let rows: usize = cuts.iter().map(|cut| cut.rows).sum();
        let in_order = cuts.is_sorted_by(|a, b| a.end < b.end) && cuts.iter().all(|cut| cut.rows > 0);
        let all = cuts.last().is_some_and(|cut| cut.end == encoded.len());
        let room = self.is_empty()
            || (self.rows() + rows <= self.caps.rows && self.bytes() + encoded.len() <= self.caps.bytes);
        if cuts.len() != self.parts.len() || !in_order || !all || !room {
            return false;
        }
        let mut start = 0;
        for (part, cut) in self.parts.iter_mut().zip(cuts) {
            part.push(&encoded[start..cut.end], cut.rows);
            start = cut.end;
        }
        true
    }

    /// The COPYs that carry it, in the order in which they run.
    pub fn copies(&self) -> impl Iterator<Item = CopyOf> {
        self.parts.iter().enumerate().flat_map(|(part, batch)| {
            let mut next = 0;
            batch.copies().map(move |rows| {
                let before = next;
                next += rows;
                CopyOf { part, before, rows }
            })
        })
    }

    /// Takes everything out and keeps the buffers.
    pub fn clear(&mut self) {
        self.parts.iter_mut().for_each(Batch::clear);
    }

    /// Bytes of rows that it holds without growing.
    pub fn capacity(&self) -> usize {
        self.parts.iter().map(Batch::capacity).sum()
    }

    /// Units in it.
    pub fn units(&self) -> usize {
        self.parts.first().map_or(0, Batch::units)
    }

    /// The units of `units` alone, in their order.
    #[must_use]
    pub fn select(&self, units: Range<usize>) -> Self {
        Self { parts: self.parts.iter().map(|part| part.select(units.clone())).collect(), caps: self.caps }
    }

    /// All but unit `unit`; later units move down by one.
    #[must_use]
    pub fn without(&self, unit: usize) -> Self {
        Self { parts: self.parts.iter().map(|part| part.without(unit)).collect(), caps: self.caps }
    }
}

/// The line that a failed COPY's error points at, from `COPY <relname>, line N` at the beginning of a line of its context
/// ([`super::plan::InsertPlan::relname`]). Only a hint: foreign keys and deferred checks carry none, other languages word it otherwise, and
/// a value shown behind it may imitate it, which is why the first such line counts.
pub fn line_of_error(fields: &ErrorFields<'_>, relname: &str) -> Option<u64> {
    let context = fields.field(b'W')?;
    let at = copy_context(context, relname)?;
    let rest = &context[at + "COPY , line ".len() + relname.len()..];
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok().filter(|&line| line > 0)
}

/// Where a context begins to speak of the COPY.
pub fn copy_context(context: &[u8], relname: &str) -> Option<usize> {
    let prefix = format!("COPY {relname}, line ");
    memchr::memmem::find_iter(context, prefix.as_bytes()).find(|&at| at == 0 || context[at - 1] == b'\n')
}

/// Where the first statement's answer ends: behind its CommandComplete.
pub fn statement_end(answers: &[u8]) -> usize {
    let mut at = 0;
    while let Ok(Some((head, _))) = frame::whole(&answers[at..], usize::MAX) {
        at += head.total();
        if head.tag == crate::wire::backend::COMMAND_COMPLETE {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cargo_holds_each_unit_in_each_copy() {
        let caps = Caps { rows: 10, bytes: 100 };
        let mut cargo = Cargo::new([CopyFormat::Text, CopyFormat::Binary], caps);
        let cut = |end, rows| Cut { end, rows };
        assert!(cargo.is_empty());
        assert!(cargo.push_unit(b"a1b1b2", &[cut(2, 1), cut(6, 2)]));
        assert!(cargo.push_unit(b"A1A2B1", &[cut(4, 2), cut(6, 1)]));
        assert_eq!((cargo.rows(), cargo.bytes(), cargo.unit_rows(1), cargo.unit_bytes(0)), (6, 12, 3, 6));
        for wrong in [
            &[cut(6, 3)][..],
            &[cut(2, 1), cut(5, 2)],
            &[cut(4, 1), cut(2, 1)],
            &[cut(2, 0), cut(6, 1)],
            &[cut(2, 1), cut(4, 1), cut(6, 1)],
            &[],
            &[cut(2, 1), cut(6, 9)],
        ] {
            assert!(!cargo.push_unit(b"a1b1b2", wrong), "{wrong:?}");
        }
        assert_eq!(cargo.rows(), 6, "nothing of what is refused is kept");
        // Line 3 of the first COPY and line 1 of the second are of different units.
        assert_eq!(cargo.parts()[0].line_owner(3), Some(1));
        assert_eq!(cargo.parts()[1].line_owner(1), Some(0));
        let rest = cargo.without(0);
        assert_eq!((rest.parts()[0].bytes(), rest.parts()[1].bytes()), (&b"A1A2"[..], &b"B1"[..]));
        cargo.clear();
        assert!(cargo.is_empty() && cargo.rows() == 0 && cargo.capacity() > 0);
    }

    #[test]
    fn a_batch_knows_whose_line_it_is() {
        let mut batch = Batch::new(CopyFormat::Text);
        for unit in [&b"a\n"[..], b"b\nc\n", b"d\n"] {
            batch.push(unit, unit.len() / 2);
        }
        let owners: Vec<_> = (0..6).map(|line| batch.line_owner(line)).collect();
        assert_eq!(owners, [None, Some(0), Some(1), Some(1), Some(2), None]);
        assert_eq!(batch.line_owner(u64::MAX), None);
        let rest = batch.without(1);
        assert_eq!((rest.bytes(), rest.rows(), rest.units()), (&b"a\nd\n"[..], 2, 2));
        assert_eq!(batch.select(1..3).bytes(), b"b\nc\nd\n");
        assert_eq!(batch.select(1..9).units(), 2);
        assert_eq!((batch.unit_rows(1), batch.unit_rows(2), batch.unit_rows(3)), (2, 1, 0));
        assert!(batch.unit_bytes(3).is_none());
    }

    #[test]
    fn an_empty_cargo_takes_a_unit_of_any_size_and_another_one_what_it_has_room_for() {
        let mut cargo = Cargo::new([CopyFormat::Text], Caps { rows: 5, bytes: 100 });
        let mut push = |bytes: usize, rows| cargo.push_unit(&vec![b'\n'; bytes], &[Cut { end: bytes, rows }]);
        assert!(push(200, 200) && !push(1, 1));
        cargo.clear();
        let mut push = |bytes: usize, rows| cargo.push_unit(&vec![b'\n'; bytes], &[Cut { end: bytes, rows }]);
        assert!(push(2, 4) && !push(2, 2) && !push(99, 1) && push(98, 1));
    }

    #[test]
    fn many_rows_are_several_copies_of_about_the_same_size() {
        for (rows, expected) in [(1, &[1][..]), (COPY_ROWS, &[160]), (161, &[81, 80]), (1000, &[143; 7])] {
            let mut batch = Batch::new(CopyFormat::Text);
            let all: Vec<u8> = (0..rows).flat_map(|row| [b'0' + (row % 7) as u8, b'\n']).collect();
            batch.push(&all, rows);
            assert_eq!(batch.copied(CopyFormat::Text).collect::<Vec<_>>().concat(), all);
            let mut copies: Vec<usize> = batch.copies().collect();
            let bytes: Vec<usize> = batch.copied(CopyFormat::Text).map(<[u8]>::len).collect();
            assert_eq!(bytes, copies.iter().map(|n| n * 2).collect::<Vec<_>>());
            assert_eq!(copies.iter().sum::<usize>(), rows);
            copies.truncate(expected.len());
            let near = copies.iter().zip(expected).all(|(n, e)| n.abs_diff(*e) <= 1);
            assert!(near && batch.copies().count() == expected.len(), "{copies:?}");
        }
    }

    #[test]
    fn each_copy_of_a_cargo_knows_its_rows() {
        let forms = [CopyFormat::Text, CopyFormat::Text];
        let mut cargo = Cargo::new(forms, Caps { rows: 2000, bytes: 100_000 });
        let encoded = b"1\n".repeat(210);
        assert!(cargo.push_unit(&encoded, &[Cut { end: 400, rows: 200 }, Cut { end: 420, rows: 10 }]));
        let copies: Vec<_> = cargo.copies().map(|copy| (copy.part, copy.before, copy.rows)).collect();
        assert_eq!(copies, [(0, 0, 100), (0, 100, 100), (1, 0, 10)]);
    }

    #[test]
    fn a_binary_copy_has_its_header_and_trailer() {
        let mut batch = Batch::new(CopyFormat::Binary);
        batch.push(b"\0\x01\xff\xff\xff\xff", 1);
        let mut out = Vec::new();
        put_copy(CopyFormat::Binary, batch.bytes(), &mut out);
        let (head, body) = frame::whole(&out, usize::MAX).unwrap().unwrap();
        assert_eq!(head.tag, frontend::COPY_DATA);
        assert_eq!(body, b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\xff\xff");
        assert_eq!(&out[head.total()..], [frontend::COPY_DONE, 0, 0, 0, 4]);
    }

    #[test]
    fn a_description_takes_the_formats_that_were_asked_for() {
        let mut described = Vec::new();
        crate::wire::backend::put_text_row_description(&mut described, &["a", "bc"]);
        let body = &described[frame::HEADER_BYTES..];
        let with = |formats: &[u8]| {
            let mut out = Vec::new();
            put_row_description(&mut out, body, formats).map(|()| out)
        };
        assert_eq!(with(&[]).as_deref(), Some(body));
        let (first, second) = (2 + 2 + 17, body.len() - 1);
        let set = |at: &[usize]| {
            let mut body = body.to_vec();
            at.iter().for_each(|&at| body[at] = 1);
            Some(body)
        };
        assert_eq!(with(&[0, 1]), set(&[first, second]));
        assert_eq!(with(&[0, 0, 0, 1]), set(&[second]));
        assert_eq!(with(&[0, 2]), None);
        assert_eq!(with(&[0, 1, 0, 1, 0, 1]), None);
        for cut in 0..body.len() {
            let _ = put_row_description(&mut Vec::new(), &body[..cut], &[0, 1]);
        }
    }

    #[test]
    fn answers_are_cut_by_unit() {
        let mut batch = Batch::new(Form::Pipelined);
        batch.push(b"x", 1);
        batch.push(b"yy", 2);
        let done = |tag: &str| {
            let mut out = Vec::new();
            frame::put(&mut out, crate::wire::backend::DATA_ROW, |out| out.extend_from_slice(tag.as_bytes()));
            crate::wire::backend::put_command_complete(&mut out, tag.as_bytes());
            out
        };
        let all = [done("a"), done("b"), done("c")].concat();
        let cut: Vec<_> = batch.answers(&all, 1).map(<[u8]>::to_vec).collect();
        assert_eq!(cut, [done("a"), [done("b"), done("c")].concat()]);
        assert_eq!(batch.answers(b"", 1).map(<[u8]>::len).sum::<usize>(), 0);
    }

    #[test]
    fn the_context_names_the_line() {
        let line = |context: &str, relname: &str| {
            let body = format!("C23505\0W{context}\0\0").into_bytes();
            line_of_error(&ErrorFields::new(&body), relname)
        };
        assert_eq!(line("COPY t, line 3, column a: \"x\"", "t"), Some(3));
        assert_eq!(line("COPY t, line 12", "t"), Some(12));
        assert_eq!(
            line("while inserting index tuple (0,3) in relation \"t_pkey\"\nCOPY t, line 4", "t"),
            Some(4)
        );
        assert_eq!(line("COPY t, line 2, column a: \"\nCOPY t, line 9, column a\"", "t"), Some(2));
        assert_eq!(line("COPY t, line 9, line 1", "t, line 9"), Some(1));
        assert_eq!(line("COPY other, line 1", "t"), None);
        assert_eq!(line("xCOPY t, line 1", "t"), None);
        assert_eq!(line("COPY t, line ", "t"), None);
        assert_eq!(line("COPY t, line 0", "t"), None);
        assert_eq!(line("COPY t, line 99999999999999999999999", "t"), None);
        assert_eq!(line_of_error(&ErrorFields::new(b"C23503\0\0"), "t"), None);
    }

    proptest! {
        #[test]
        fn taking_units_out_keeps_the_others(sizes in proptest::collection::vec(1usize..4, 1..8), out in any::<usize>()) {
            let mut batch = Batch::new(CopyFormat::Text);
            for (i, &rows) in sizes.iter().enumerate() {
                let unit = format!("{i}\n").repeat(rows);
                batch.push(unit.as_bytes(), rows);
            }
            let gone = out % sizes.len();
            let rest = batch.without(gone);
            prop_assert_eq!(rest.rows(), batch.rows() - sizes[gone]);
            for (line, text) in rest.bytes().split_inclusive(|&b| b == b'\n').enumerate() {
                let owner = rest.line_owner(line as u64 + 1).unwrap();
                let original = if owner < gone { owner } else { owner + 1 };
                let expected = format!("{original}\n");
                prop_assert_eq!(text, expected.as_bytes());
            }
        }
    }
}
