//! `$1::integer`: the name of a type behind a parameter, as generators of SQL write it.
//!
//! To a parameter whose type was not declared, the name gives its type, and computes nothing; so it may be passed over where the
//! server resolved the parameter to that type ([`Cast::is_plain`]). Owns: which names are understood, and what they mean.
//! Never: a type with a modifier (`varchar(3)` cuts, `char` is `char(1)`), an array, a user's type.

/// A built-in type without a modifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cast {
    /// Its object id.
    pub oid: u16,
    /// Its name is looked for in `search_path`: it is no word of the grammar.
    pub looked_up: bool,
}

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
        to == of || widens || (TEXTS.contains(&to) && TEXTS.contains(&of))
    }

    /// The type that the parser calls so: `pg_catalog` and its name there, or a name alone.
    pub(super) fn of_tree(names: &[&str]) -> Option<Self> {
        let (name, looked_up) = match names {
            ["pg_catalog", name] => (name, false),
            [name] => (name, true),
            _ => return None,
        };
        let (_, oid) = NAMES.iter().find(|(known, _)| known == name)?;
        Some(Self { oid: *oid, looked_up })
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
    /// Another word. `None`: it is too long for any of the names.
    pub(super) fn push(&mut self, word: &[u8]) -> Option<()> {
        let begin = self.len + usize::from(self.len > 0);
        let end = begin + word.len();
        let place = self.bytes.get_mut(self.len..end)?;
        place[0] = b' ';
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
        let word = find(WORDS).map(|oid| Cast { oid, looked_up: false });
        word.or_else(|| find(NAMES).map(|oid| Cast { oid, looked_up: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_that_compute_nothing() {
        let to = |oid| Cast { oid, looked_up: false };
        for (of, oid) in [(23, 23), (21, 23), (21, 20), (23, 20), (25, 1043), (1043, 25), (1114, 1114)] {
            assert!(to(oid).is_plain(of), "{of} to {oid}");
        }
        for (of, oid) in [(23, 21), (20, 23), (1042, 25), (25, 1082), (1184, 1114), (700, 701), (26, 20)] {
            assert!(!to(oid).is_plain(of), "{of} to {oid}");
        }
    }

    #[test]
    fn the_tables_agree() {
        for (name, oid) in WORDS {
            assert!(NAMES.iter().any(|(_, known)| known == oid), "{name}");
            assert!(name.len() <= BYTES_MAX);
        }
    }
}
