//! What a server reported of its settings: ParameterStatus.
//!
//! Owns: the values, bounded, and what they say of how texts are read. Never: what a client knows of them.

use std::sync::Arc;

use crate::limits::{REPORTED_MAX, REPORTED_VALUE_BYTES_MAX};
use crate::policy::Lexing;

/// A name and a value.
type Parameter = (Box<[u8]>, Box<[u8]>);

/// ParameterStatus values, in the order in which they were first reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    values: Vec<Parameter>,
    lexing: Lexing,
}

impl Default for Reported {
    fn default() -> Self {
        Self::new([])
    }
}

impl Reported {
    /// What a login was answered.
    pub fn new(values: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Self {
        let mut reported = Self { values: Vec::new(), lexing: Lexing::UNTOLD };
        for (name, value) in values {
            reported.take(&name, &value);
        }
        reported.read_lexing();
        reported
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.values.iter().map(|(name, value)| (&**name, &**value))
    }

    /// What they say of how the server reads a text.
    pub const fn lexing(&self) -> Lexing {
        self.lexing
    }

    /// Is this value known?
    pub fn has(&self, name: &[u8], value: &[u8]) -> bool {
        self.iter().any(|known| known == (name, value))
    }

    fn read_lexing(&mut self) {
        let mut lexing = Lexing::UNTOLD;
        for (name, value) in self.iter() {
            lexing.hear(name, value);
        }
        self.lexing = lexing;
    }

    /// True when something changed.
    fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        let values = &mut self.values;
        if name.len() + value.len() > REPORTED_VALUE_BYTES_MAX {
            let before = values.len();
            values.retain(|(n, _)| **n != *name);
            return values.len() < before;
        }
        if values.len() >= REPORTED_MAX && values.iter().all(|(n, _)| **n != *name) {
            return false;
        }
        match values.iter_mut().find(|(n, _)| **n == *name) {
            Some((_, old)) => *old = value.into(),
            None => values.push((name.into(), value.into())),
        }
        true
    }
}

/// Remembers a reported value. Returns true when it is new.
///
/// What no honest server reports (more than [`REPORTED_MAX`] settings, a value longer than
/// [`REPORTED_VALUE_BYTES_MAX`]) is not remembered.
pub fn report(reported: &mut Arc<Reported>, name: &[u8], value: &[u8]) -> bool {
    if reported.has(name, value) {
        return false;
    }
    let reported = Arc::make_mut(reported);
    let changed = reported.take(name, value);
    reported.read_lexing();
    changed
}

/// Hot path. Do both say the same? They are one and the same from then on, so that the next look at them is a short one.
pub fn are_equal(one: &mut Arc<Reported>, other: &mut Arc<Reported>) -> bool {
    if Arc::ptr_eq(one, other) {
        return true;
    }
    if one != other {
        return false;
    }
    // Whoever they meet next, all come to have the same one.
    if Arc::as_ptr(one) < Arc::as_ptr(other) {
        *other = Arc::clone(one);
    } else {
        *one = Arc::clone(other);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'r>(reported: &'r Reported, name: &[u8]) -> Option<&'r [u8]> {
        reported.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    #[test]
    fn no_more_is_remembered_than_the_bounds_say() {
        let mut reported = Arc::default();
        let longest = vec![b'x'; REPORTED_VALUE_BYTES_MAX - 1];
        assert!(report(&mut reported, b"a", &longest) && !report(&mut reported, b"a", &longest));
        assert_eq!(value(&reported, b"a"), Some(&*longest));
        // What was there is not true any more.
        assert!(report(&mut reported, b"a", &vec![b'x'; REPORTED_VALUE_BYTES_MAX]));
        assert_eq!(value(&reported, b"a"), None);
        for i in 0..REPORTED_MAX {
            assert!(report(&mut reported, i.to_string().as_bytes(), b"0"));
        }
        assert!(!report(&mut reported, b"one more", b"0"));
        assert_eq!((reported.iter().count(), value(&reported, b"one more")), (REPORTED_MAX, None));
        assert!(
            report(&mut reported, b"7", b"1") && value(&reported, b"7") == Some(b"1"),
            "those there go on"
        );
    }

    #[test]
    fn nor_is_more_remembered_of_a_login() {
        let told = |name: String, value: &[u8]| (name.into_bytes(), value.to_vec());
        let many = (0..2 * REPORTED_MAX).map(|i| told(i.to_string(), b"0"));
        let long = told("long".into(), &vec![b'x'; REPORTED_VALUE_BYTES_MAX]);
        let reported = Reported::new([long, told("0".into(), b"1")].into_iter().chain(many));
        assert_eq!(reported.iter().count(), REPORTED_MAX);
        assert_eq!((value(&reported, b"long"), value(&reported, b"0")), (None, Some(&b"0"[..])));
    }

    #[test]
    fn it_says_how_texts_are_read() {
        let mut reported = Arc::default();
        let says =
            |reported: &Arc<Reported>| (reported.lexing().std_strings, reported.lexing().encoding_safe);
        assert_eq!(says(&reported), (true, false), "an encoding that is not named is not safe");
        for (name, value, reads) in [
            ("client_encoding", "UTF8", (true, true)),
            ("standard_conforming_strings", "off", (false, true)),
            ("client_encoding", "SJIS", (false, false)),
            ("standard_conforming_strings", "on", (true, false)),
            ("client_encoding", "LATIN1", (true, true)),
        ] {
            assert!(report(&mut reported, name.as_bytes(), value.as_bytes()));
            assert_eq!(says(&reported), reads, "{name} = {value}");
        }
        let login = |value: &str| {
            let told = [("client_encoding", value), ("standard_conforming_strings", "off")];
            Arc::new(Reported::new(told.map(|(name, value)| (name.into(), value.into()))))
        };
        assert_eq!([says(&login("UTF8")), says(&login("SJIS"))], [(false, true), (false, false)]);
        let folded = |reported: &Arc<Reported>| reported.lexing().dotted_i;
        assert!(folded(&reported).is_some(), "an encoding that is not named may fold");
        for (value, byte) in [
            ("UTF8", None),
            ("LATIN1", None),
            ("LATIN3", Some(0xa9)),
            ("LATIN5", Some(0xdd)),
            ("WIN1254", Some(0xdd)),
        ] {
            report(&mut reported, b"server_encoding", value.as_bytes());
            assert_eq!(folded(&reported), byte, "{value}");
        }
        report(&mut reported, b"client_encoding", &vec![b'x'; REPORTED_VALUE_BYTES_MAX]);
        assert_eq!(says(&reported), (true, false), "what is not remembered is not known");
    }

    #[test]
    fn all_that_say_the_same_come_to_have_the_same_one() {
        let new = |value: &str| Arc::new(Reported::new([(b"a".to_vec(), value.into())]));
        let mut all: Vec<_> = (0..5).map(|_| new("1")).collect();
        for i in (1..all.len()).chain(1..all.len()) {
            let (one, rest) = all.split_at_mut(i);
            assert!(are_equal(&mut one[i - 1], &mut rest[0]));
        }
        for i in (1..all.len()).rev() {
            let (one, rest) = all.split_at_mut(i);
            assert!(are_equal(&mut one[i - 1], &mut rest[0]));
        }
        assert!(all.iter().all(|one| Arc::ptr_eq(one, &all[0])));
        assert!(!are_equal(&mut all[0], &mut new("2")), "another value is another one");
    }
}
