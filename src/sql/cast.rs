//! `$1::integer`, `'2026-01-01'::date`, `CAST($1 AS integer)`: the name of a type behind a parameter or a string, as generators of SQL write it.
//!
//! To a parameter whose type was not declared and to a string, the name gives its type, and computes nothing; so it may be passed
//! over where the server resolved the parameter to that type ([`Cast::is_plain`]), and where it is that of the string's column
//! ([`Cast::is_of`]). Owns: which names are understood, and what they mean. Never: a type with a modifier (`varchar(3)` cuts,
//! `char` is `char(1)`) but `numeric`'s, which rounds as the column's own would; an array, a user's type.

/// A built-in type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cast {
    /// Its object id.
    pub oid: u16,
    /// Its name is looked for in `search_path`: it is no word of the grammar.
    pub looked_up: bool,
    /// Its modifier, as columns have it; -1: none.
    pub typmod: i32,
}

/// `numeric`, the one type whose modifier is understood.
const NUMERIC: u16 = 1700;

/// Types of integers, the wider the later.
const INTEGERS: [u32; 3] = [21, 23, 20];

/// Types that are each other byte for byte.
const TEXTS: [u32; 2] = [25, 1043];

impl Cast {
    /// Of a parameter of this type it changes no value.
    pub fn is_plain(self, of: u32) -> bool {
        let to = u32::from(self.oid);
        let width = |oid| INTEGERS.iter().position(|known| *known == oid);
        let widens = width(of).zip(width(to)).is_some_and(|(of, to)| of <= to);
        to == of || widens || self.is_text_as(of)
    }

    /// Is it a column's type, so that a string is read as for the column itself?
    pub fn is_of(self, column: u32) -> bool {
        self.typmod < 0 && (u32::from(self.oid) == column || self.is_text_as(column))
    }

    /// The same but for how it was found.
    pub(super) fn is_same(self, other: Self) -> bool {
        (self.oid, self.typmod) == (other.oid, other.typmod)
    }

    fn is_text_as(self, of: u32) -> bool {
        TEXTS.contains(&self.oid.into()) && TEXTS.contains(&of)
    }

    /// With a precision and a scale. `None`: it takes none, or they are not plain.
    pub(super) fn with_modifier(self, precision: i32, scale: i32) -> Option<Self> {
        let plain =
            self.oid == NUMERIC && (1..=1000).contains(&precision) && (0..=precision).contains(&scale);
        // As the server packs them, behind the length of a header.
        plain.then_some(Self { typmod: ((precision << 16) | scale) + 4, ..self })
    }

    /// One word. `None`: it is none of the names.
    pub fn of_word(word: &[u8]) -> Option<Self> {
        let mut name = TypeName::default();
        name.push(word)?;
        name.meaning()
    }

    /// The type that the parser calls so: `pg_catalog` and its name there, or a name alone.
    pub(super) fn of_tree(names: &[&str]) -> Option<Self> {
        let (name, looked_up) = match names {
            ["pg_catalog", name] => (name, false),
            [name] => (name, true),
            _ => return None,
        };
        let (_, oid) = NAMES.iter().find(|(known, _)| known == name)?;
        Some(Self { oid: *oid, looked_up, typmod: -1 })
    }
}

/// Names in `pg_catalog`.
const NAMES: &[(&str, u16)] = &[
    ("bool", 16),
    ("bytea", 17),
    ("int8", 20),
    ("int2", 21),
    ("int4", 23),
    ("text", 25),
    ("json", 114),
    ("float4", 700),
    ("float8", 701),
    ("inet", 869),
    ("varchar", 1043),
    ("date", 1082),
    ("time", 1083),
    ("timestamp", 1114),
    ("timestamptz", 1184),
    ("interval", 1186),
    ("timetz", 1266),
    ("numeric", 1700),
    ("uuid", 2950),
    ("jsonb", 3802),
];

/// Words of the grammar.
const WORDS: &[(&str, u16)] = &[
    ("boolean", 16),
    ("bigint", 20),
    ("smallint", 21),
    ("int", 23),
    ("integer", 23),
    ("real", 700),
    ("float", 701),
    ("double precision", 701),
    ("varchar", 1043),
    ("character varying", 1043),
    ("char varying", 1043),
    ("time", 1083),
    ("time without time zone", 1083),
    ("timestamp", 1114),
    ("timestamp without time zone", 1114),
    ("timestamp with time zone", 1184),
    ("interval", 1186),
    ("time with time zone", 1266),
    ("numeric", 1700),
    ("decimal", 1700),
    ("dec", 1700),
];

/// Longest of them (bytes).
const BYTES_MAX: usize = 32;

/// A name while it is read, in lower case, with one blank between its words.
#[derive(Debug, Default)]
pub(super) struct TypeName {
    bytes: [u8; BYTES_MAX],
    len: usize,
}

impl TypeName {
    /// Another word. `None`: it is none, or too long for any of the names.
    pub(super) fn push(&mut self, word: &[u8]) -> Option<()> {
        let begin = self.len + usize::from(self.len > 0);
        let end = begin + word.len();
        let place = self.bytes.get_mut(self.len..end)?;
        *place.first_mut()? = b' ';
        let place = &mut self.bytes[begin..end];
        place.copy_from_slice(word);
        place.make_ascii_lowercase();
        self.len = end;
        Some(())
    }

    /// `None`: it is none of the names.
    pub(super) fn meaning(&self) -> Option<Cast> {
        let name = &self.bytes[..self.len];
        let find = |table: &[(&str, u16)]| {
            table.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, oid)| *oid)
        };
        let word = find(WORDS).map(|oid| Cast { oid, looked_up: false, typmod: -1 });
        word.or_else(|| find(NAMES).map(|oid| Cast { oid, looked_up: true, typmod: -1 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_that_compute_nothing() {
        let to = |oid| Cast { oid, looked_up: false, typmod: -1 };
        for (of, oid) in [(23, 23), (21, 23), (21, 20), (23, 20), (25, 1043), (1043, 25), (1114, 1114)] {
            assert!(to(oid).is_plain(of), "{of} to {oid}");
        }
        for (of, oid) in [(23, 21), (20, 23), (1042, 25), (25, 1082), (1184, 1114), (700, 701), (26, 20)] {
            assert!(!to(oid).is_plain(of), "{of} to {oid}");
        }
    }

    #[test]
    fn modifiers_of_numeric_alone() {
        let numeric = Cast::of_word(b"NUMERIC").unwrap();
        // `SELECT atttypmod` of a column `numeric(10, 2)`.
        assert_eq!(numeric.with_modifier(10, 2).unwrap().typmod, 655_366);
        for (precision, scale) in [(0, 0), (1001, 0), (2, 3), (2, -1)] {
            assert_eq!(numeric.with_modifier(precision, scale), None, "{precision}, {scale}");
        }
        assert_eq!(Cast::of_word(b"varchar").unwrap().with_modifier(3, 0), None);
        assert_eq!(Cast::of_word(b""), None);
        assert!(numeric.is_of(1700) && !numeric.with_modifier(10, 2).unwrap().is_of(1700));
    }

    #[test]
    fn the_tables_agree() {
        for (name, oid) in WORDS {
            assert!(NAMES.iter().any(|(_, known)| known == oid), "{name}");
            assert!(name.len() <= BYTES_MAX);
        }
    }
}
