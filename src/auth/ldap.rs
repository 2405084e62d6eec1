//! Whom an LDAP directory lets in: the requests to it, and which of its answers count.
//!
//! ```text
//! made:      Bind(prefix user suffix, password)
//! searched:  Bind(ldapbinddn, ldapbindpasswd)  Search(ldapbasedn, filter): one entry  Bind(its name, password)
//! ```
//!
//! Owns: names, filters and verdicts. Never: a socket; that is [`crate::client`]'s. A Bind without a password is a success in LDAP
//! that proves nothing, and so is one without a name: neither leaves here for a user.

use stringprep::tables;
use unicode_normalization::UnicodeNormalization as _;

use crate::wire::ldap::{Answer, Filter, Outcome};

/// The placeholder for the user's name in a filter.
pub const USERNAME: &str = "$username";

const SOMETHING_ELSE: &str = "the directory gave something else for an answer";

/// The name to bind as, made of prefix, user and suffix.
///
/// # Errors
/// The user's name would be read as more than a part of it (for the log).
pub fn made_name(prefix: &str, user: &str, suffix: &str) -> Result<String, String> {
    let is_special = |c: char| matches!(c, ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=') || c.is_control();
    if user.contains(is_special) || user.starts_with(['#', ' ']) || user.ends_with(' ') {
        return Err("the user's name holds what means something in a name of the directory".into());
    }
    Ok(format!("{prefix}{user}{suffix}"))
}

/// The filter that finds a user; `template` is one in which `$username` stands for it.
///
/// # Errors
/// The user's name would be read as more than a value, as PostgreSQL has it; or the filter is none (for the log).
pub fn filter(template: &str, user: &str) -> Result<Filter, String> {
    if user.contains(['*', '(', ')', '\\', '/']) {
        return Err("the user's name holds what means something in a search filter".into());
    }
    Filter::parse(&template.replace(USERNAME, user)).map_err(|why| format!("the search filter {why}"))
}

/// The one of `users` (those with rules and limits of their own) that a directory may take `user` to be, although it is another name:
/// a directory folds case, ignores invisible characters, and counts a run of blanks as one. A client let in so would evade their rules.
pub fn taken_for<'a>(user: &str, users: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let prepared = |name: &str| {
        // Letters that are younger than the tables of RFC 3454, too.
        let lower = name.to_lowercase();
        let seen = lower.chars().filter(|c| !is_unseen(*c));
        let text: String = seen.nfkc().flat_map(tables::case_fold_for_nfkc).nfkc().collect();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    if users.clone().any(|known| known == user) {
        return None;
    }
    let user = prepared(user);
    users.into_iter().find(|known| prepared(known) == user)
}

/// Is the character ignored where a directory compares values (RFC 4518, section 2.2), by the tables of RFC 3454?
fn is_unseen(c: char) -> bool {
    let is_control = tables::ascii_control_character(c) || tables::non_ascii_control_character(c);
    (is_control && !c.is_whitespace())
        || tables::commonly_mapped_to_nothing(c)
        || tables::change_display_properties_or_deprecated(c)
        || tables::tagging_character(c)
}

/// Did the directory agree to a Bind?
///
/// # Errors
/// Why not, for the log.
pub fn bound(answer: Answer) -> Result<(), String> {
    match answer {
        Answer::Bound(outcome) => agreed(&outcome),
        _ => Err(SOMETHING_ELSE.into()),
    }
}

/// Did the directory agree to TLS?
///
/// # Errors
/// Why not, for the log.
pub fn tls_begins(answer: Answer) -> Result<(), String> {
    match answer {
        Answer::Extended(outcome) => agreed(&outcome),
        _ => Err(SOMETHING_ELSE.into()),
    }
}

fn agreed(outcome: &Outcome) -> Result<(), String> {
    if outcome.code == 0 { Ok(()) } else { Err(format!("the directory says {outcome}")) }
}

/// The answers to a search, as they come.
#[derive(Debug, Default)]
pub struct Searched {
    name: Option<String>,
}

impl Searched {
    /// One more answer; the entry's name when it was the last.
    ///
    /// # Errors
    /// There is no such entry, or more than one, or the directory does not say (for the log).
    pub fn take(&mut self, answer: Answer) -> Result<Option<String>, String> {
        match answer {
            Answer::Entry(name) if name.is_empty() => Err("the entry that was found has no name".into()),
            Answer::Entry(name) => match self.name.replace(name) {
                Some(_) => Err("the search finds more than one entry".into()),
                None => Ok(None),
            },
            // Another directory may know the user; this one does not.
            Answer::Reference => Ok(None),
            Answer::Done(outcome) => {
                agreed(&outcome)?;
                self.name.take().map(Some).ok_or_else(|| "the search finds no entry".into())
            }
            Answer::Bound(_) | Answer::Extended(_) => Err(SOMETHING_ELSE.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(code: u32) -> Outcome {
        Outcome { code, remark: String::new() }
    }

    #[test]
    fn a_name_that_a_directory_may_take_for_one_with_rules_is_known() {
        let users = ["ann", "de la Cruz", "Ω", "ANNE", "ⴀ", "strasse"];
        let taken = |user| taken_for(user, users.into_iter());
        for same in ["ANN", "Ann", "an\u{ad}n", "ａｎｎ", " ann", "ann\u{200d}"] {
            assert_eq!(taken(same), Some("ann"), "{same}");
        }
        assert_eq!(taken("De  La Cruz"), Some("de la Cruz"));
        assert_eq!(taken("de\tla\u{85}Cruz"), Some("de la Cruz"), "a blank is one, whatever it is");
        assert_eq!(taken("a\u{7}n\u{9d}n"), Some("ann"));
        assert_eq!(taken("ω"), Some("Ω"));
        // A letter whose small one came later; one that came later itself, in a fold of two.
        assert_eq!(taken("Ⴀ"), Some("ⴀ"));
        assert_eq!(taken("STRAẞE"), Some("strasse"));
        // Themselves, and others.
        for other in ["ann", "de la Cruz", "ANNE", "an", "a nn", "dela Cruz", "", "\u{fffd}"] {
            assert_eq!(taken(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_is_a_name_and_no_more() {
        assert_eq!(made_name("uid=", "ann", ",dc=x").unwrap(), "uid=ann,dc=x");
        assert_eq!(made_name("", "ann.b-c", "@corp").unwrap(), "ann.b-c@corp");
        for user in ["ann,dc=y", "a+b", "a\\2c", "a=b", "#a", " a", "a ", "a\"", "a;b", "a\n"] {
            assert!(made_name("uid=", user, ",dc=x").is_err(), "{user}");
        }
        let template = "(&(a=b)(uid=$username))";
        assert_eq!(filter(template, "ann"), Ok(Filter::parse("(&(a=b)(uid=ann))").unwrap()));
        assert_eq!(filter(template, "a=&|!~<>"), Ok(Filter::parse("(&(a=b)(uid=\\61\\3d&|!~<>))").unwrap()));
        for user in ["*", "a)(uid=b", "a\\2a", "a/b", "(a"] {
            assert!(filter(template, user).is_err(), "{user}");
        }
    }

    #[test]
    fn only_a_success_lets_in() {
        assert_eq!(bound(Answer::Bound(outcome(0))), Ok(()));
        for code in [1, 10, 14, 49, 51, u32::MAX] {
            assert!(bound(Answer::Bound(outcome(code))).is_err());
        }
        assert!(bound(Answer::Done(outcome(0))).is_err());
        assert!(bound(Answer::Extended(outcome(0))).is_err());
        assert!(tls_begins(Answer::Bound(outcome(0))).is_err());
        assert!(tls_begins(Answer::Extended(outcome(2))).is_err());
    }

    #[test]
    fn one_entry_is_found_or_none() {
        let entry = |name: &str| Answer::Entry(name.into());
        let done = |code| Answer::Done(outcome(code));
        let of = |answers: Vec<Answer>| {
            let mut searched = Searched::default();
            let mut taken = answers.into_iter().map(|answer| searched.take(answer));
            taken.find(|taken| !matches!(taken, Ok(None))).unwrap()
        };
        assert_eq!(of(vec![entry("uid=a"), Answer::Reference, done(0)]), Ok(Some("uid=a".into())));
        assert!(of(vec![done(0)]).is_err());
        assert!(of(vec![Answer::Reference, done(0)]).is_err());
        assert!(of(vec![entry("uid=a"), entry("uid=b"), done(0)]).is_err());
        assert!(of(vec![entry("uid=a"), done(4)]).is_err());
        assert!(of(vec![entry("")]).is_err());
        assert!(of(vec![Answer::Bound(outcome(0))]).is_err());
    }
}
