//! `$1::integer`, `'2026-01-01'::date`, `CAST($1 AS integer)`: the name of a type behind a parameter, a string or NULL, as generators of SQL write it.
//!
//! To a parameter whose type was not declared and to a string, the name gives its type, and computes nothing; so it may be passed
//! over where the server resolved the parameter to that type ([`is_plain`]), and where it is that of the string's column.
//! A parameter that is a text is read by the type's own input function, if nobody made another cast. Owns: which names are
//! understood, and what those of the grammar mean. Never: what any other name means (the server is asked), a type with a modifier
//! (`varchar(3)` cuts, `char` is `char(1)`) but `numeric`'s, which rounds as the column's own would.

use crate::limits::NAME_BYTES_MAX;

/// A type that is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cast {
    /// Which one.
    pub to: Type,
    /// Its name is one of PostgreSQL's own, and looked for in `search_path`: it is no word of the grammar.
    pub looked_up: bool,
    /// Its modifier, as columns have it; -1: none.
    pub typmod: i32,
    /// The value is taken to `text` or `varchar` first: `$1::text::mood`.
    pub through_text: bool,
}

/// A type by what is known of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// PostgreSQL's own, by its object id.
    Own(u16),
    /// Another: the place of its name among those of the statement, from 0.
    Named(u16),
}

/// The name of a type that only the server knows, folded as the server folds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OtherType {
    /// The schema, when it is named.
    pub schema: Option<String>,
    /// The type.
    pub name: String,
    /// An array of it.
    pub array: bool,
}

/// Most of them in one statement.
const OTHERS_MAX: usize = 64;

/// Types of integers, the wider the later.
const INTEGERS: [u32; 3] = [21, 23, 20];

/// Types that are each other byte for byte.
const TEXTS: [u32; 2] = [25, 1043];

/// `numeric`, the one type whose modifier is understood.
pub(super) const NUMERIC: u16 = 1700;

/// Is it `text` or `varchar`?
pub fn is_text(oid: u32) -> bool {
    TEXTS.contains(&oid)
}

/// Does a cast from one to the other change no value?
pub fn is_plain(of: u32, to: u32) -> bool {
    let width = |oid| INTEGERS.iter().position(|known| *known == oid);
    let widens = width(of).zip(width(to)).is_some_and(|(of, to)| of <= to);
    to == of || widens || (is_text(of) && is_text(to))
}

impl Cast {
    /// To a type without a modifier.
    pub(super) fn plain(to: Type, looked_up: bool) -> Self {
        Self { to, looked_up, typmod: -1, through_text: false }
    }

    /// The same but for how it was found.
    pub(super) fn is_same(self, other: Self) -> bool {
        (self.to, self.typmod, self.through_text) == (other.to, other.typmod, other.through_text)
    }

    /// To `text` or `varchar`, and so another may follow.
    pub(super) fn is_text(self) -> bool {
        matches!(self.to, Type::Own(oid) if is_text(oid.into())) && self.typmod < 0 && !self.through_text
    }

    /// By way of `inner`, which is one of these.
    pub(super) fn behind(self, inner: Self) -> Self {
        Self { through_text: true, looked_up: self.looked_up || inner.looked_up, ..self }
    }

    /// With a precision and a scale. `None`: it takes none, or they are not plain.
    pub(super) fn with_modifier(self, precision: i32, scale: i32) -> Option<Self> {
        let plain = self.to == Type::Own(NUMERIC)
            && (1..=1000).contains(&precision)
            && (0..=precision).contains(&scale);
        // As the server packs them, behind the length of a header.
        plain.then_some(Self { typmod: ((precision << 16) | scale) + 4, ..self })
    }

    /// An array of it. `None`: it is none of those that are known.
    pub(super) fn array(self) -> Option<Self> {
        let Type::Own(oid) = self.to else { return None };
        let (_, array) = ARRAYS.iter().find(|(element, _)| *element == oid)?;
        (self.typmod < 0).then_some(Self { to: Type::Own(*array), ..self })
    }

    /// One word. `None`: it is none of the names.
    pub fn of_word(word: &[u8]) -> Option<Self> {
        let mut name = TypeName::default();
        name.push(word)?;
        name.meaning()
    }

    /// PostgreSQL's own type that the parser calls so: `pg_catalog` and its name there, or a name alone.
    pub(super) fn of_names(schema: Option<&str>, name: &str) -> Option<Self> {
        let (_, oid) = NAMES.iter().find(|(known, _)| *known == name)?;
        matches!(schema, None | Some("pg_catalog")).then(|| Self::plain(Type::Own(*oid), schema.is_none()))
    }

    /// The type that is called so, whoever's it is; its name is noted in `others` if it is another's. `None`: there are too many.
    pub(super) fn of_name(
        schema: Option<String>,
        name: String,
        array: bool,
        others: &mut Vec<OtherType>,
    ) -> Option<Self> {
        if let Some(own) = Self::of_names(schema.as_deref(), &name) {
            return if array { own.array() } else { Some(own) };
        }
        let names = schema.iter().chain([&name]);
        if names.into_iter().any(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
            return None;
        }
        let other = OtherType { schema, name, array };
        let place = others.iter().position(|known| *known == other).unwrap_or_else(|| {
            others.push(other);
            others.len() - 1
        });
        let place = u16::try_from(place).ok().filter(|_| place < OTHERS_MAX)?;
        Some(Self::plain(Type::Named(place), false))
    }
}

/// Arrays of them.
const ARRAYS: &[(u16, u16)] = &[
    (16, 1000),
    (17, 1001),
    (20, 1016),
    (21, 1005),
    (23, 1007),
    (25, 1009),
    (114, 199),
    (700, 1021),
    (701, 1022),
    (869, 1041),
    (1043, 1015),
    (1082, 1182),
    (1083, 1183),
    (1114, 1115),
    (1184, 1185),
    (1186, 1187),
    (1266, 1270),
    (1700, 1231),
    (2950, 2951),
    (3802, 3807),
];

/// Words with which the grammar makes other types than their names say, or none: never looked for as a name.
const NO_NAMES: &[&[u8]] =
    &[b"bit", b"char", b"character", b"national", b"nchar", b"setof", b"double", b"array"];

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

/// A name while it is read, in lower case, with one blank between its words.
#[derive(Debug)]
pub(super) struct TypeName {
    bytes: [u8; NAME_BYTES_MAX],
    len: usize,
}

impl Default for TypeName {
    fn default() -> Self {
        Self { bytes: [0; NAME_BYTES_MAX], len: 0 }
    }
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
        let word = find(WORDS).map(|oid| Cast::plain(Type::Own(oid), false));
        word.or_else(|| find(NAMES).map(|oid| Cast::plain(Type::Own(oid), true)))
    }

    /// No word was read.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One word, and none of the grammar's own: perhaps the name of another type.
    pub(super) fn other(&self) -> Option<String> {
        let name = &self.bytes[..self.len];
        let plain = !name.contains(&b' ') && name.is_ascii() && !NO_NAMES.contains(&name);
        plain.then(|| String::from_utf8_lossy(name).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_that_compute_nothing() {
        for (of, to) in [(23, 23), (21, 23), (21, 20), (23, 20), (25, 1043), (1043, 25), (1114, 1114)] {
            assert!(is_plain(of, to), "{of} to {to}");
        }
        for (of, to) in [(23, 21), (20, 23), (1042, 25), (25, 1082), (1184, 1114), (700, 701), (26, 20)] {
            assert!(!is_plain(of, to), "{of} to {to}");
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
        assert_eq!(numeric.with_modifier(10, 2).unwrap().array(), None);
    }

    #[test]
    fn the_tables_agree() {
        for (name, oid) in WORDS {
            assert!(NAMES.iter().any(|(_, known)| known == oid), "{name}");
            assert!(name.len() <= NAME_BYTES_MAX);
        }
        for (name, oid) in NAMES {
            assert!(ARRAYS.iter().any(|(element, _)| element == oid), "{name}");
        }
    }

    #[test]
    fn other_names_are_numbered_as_they_come() {
        let mut others = Vec::new();
        let mut named = |schema: Option<&str>, name: &str, array| {
            Cast::of_name(schema.map(str::to_owned), name.to_owned(), array, &mut others).map(|cast| cast.to)
        };
        assert_eq!(named(None, "mood", false), Some(Type::Named(0)));
        assert_eq!(named(Some("s"), "mood", false), Some(Type::Named(1)));
        assert_eq!(named(None, "mood", true), Some(Type::Named(2)));
        assert_eq!(named(None, "mood", false), Some(Type::Named(0)));
        assert_eq!(named(Some("pg_catalog"), "int4", true), Some(Type::Own(1007)));
        assert_eq!(named(None, "int4", false), Some(Type::Own(23)));
        assert_eq!(named(Some("s"), "int4", false), Some(Type::Named(3)));
        assert_eq!(named(None, "", false), None);
        assert_eq!(named(None, &"m".repeat(64), false), None);
        for n in 4..OTHERS_MAX {
            assert!(named(None, &format!("t{n}"), false).is_some());
        }
        assert_eq!(named(None, "one_more", false), None);
    }
}
