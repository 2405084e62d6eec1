//! Settings that are one of a few words.

use std::marker::PhantomData;
use std::path::Path;

use super::value::{Kind, Raw};
use crate::settings::{
    AllowListMode, AuthType, CoalesceMode, Enforce, LoadBalanceHosts, LogFormat, PoolMode, SessionState,
    SimpleQuery, SslMode, Statements, Switch, TargetSessionAttrs,
};

/// Words that stand for a value; the first one for a value is the one shown.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// Every word and its value.
    const WORDS: &'static [(&'static str, Self)];
}

/// One of a type's words.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneOf<T>(PhantomData<T>);

/// The words of `T`.
pub(super) const fn one_of<T: Word>() -> OneOf<T> {
    OneOf(PhantomData)
}

impl<T: Word> Kind for OneOf<T> {
    type Value = T;
    fn takes(&self) -> String {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        format!("one of {}", words.join(", "))
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<T> {
        let Raw::Text(text) = raw else { return None };
        T::WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim())).map(|(_, value)| *value)
    }
    fn show(&self, value: &T) -> String {
        T::WORDS.iter().find(|(_, v)| v == value).map(|(word, _)| (*word).to_owned()).unwrap_or_default()
    }
}

/// The word that stands for `value`.
pub(super) fn word<T: Word>(value: T) -> String {
    one_of::<T>().show(&value)
}

impl Word for PoolMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("session", Self::Session), ("transaction", Self::Transaction), ("statement", Self::Statement)];
}

impl Word for SessionState {
    const WORDS: &'static [(&'static str, Self)] =
        &[("pin", Self::Pin), ("reject", Self::Reject), ("allow", Self::Allow)];
}

impl Word for LoadBalanceHosts {
    const WORDS: &'static [(&'static str, Self)] =
        &[("round-robin", Self::RoundRobin), ("disable", Self::Disable)];
}

impl Word for TargetSessionAttrs {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("any", Self::Any),
        ("read-write", Self::ReadWrite),
        ("read-only", Self::ReadOnly),
        ("primary", Self::Primary),
        ("standby", Self::Standby),
        ("prefer-standby", Self::PreferStandby),
    ];
}

impl Word for AuthType {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("trust", Self::Trust),
        ("any", Self::Trust),
        ("plain", Self::Plain),
        ("md5", Self::Md5),
        ("scram-sha-256", Self::ScramSha256),
        ("cert", Self::Cert),
        ("peer", Self::Peer),
        ("ldap", Self::Ldap),
        ("hba", Self::Hba),
    ];
}

impl Word for SslMode {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

impl Word for LogFormat {
    const WORDS: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}

/// A level of the log; the settings keep the word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level;

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

impl Kind for Level {
    type Value = String;
    fn takes(&self) -> String {
        format!("one of {}", LEVELS.join(", "))
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<String> {
        let Raw::Text(text) = raw else { return None };
        LEVELS.iter().find(|level| level.eq_ignore_ascii_case(text.trim())).map(|level| (*level).to_owned())
    }
    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

impl Word for SimpleQuery {
    const WORDS: &'static [(&'static str, Self)] =
        &[("allow", Self::Allow), ("single", Self::Single), ("control", Self::Control), ("deny", Self::Deny)];
}

impl Word for Switch {
    const WORDS: &'static [(&'static str, Self)] = &[("allow", Self::Allow), ("deny", Self::Deny)];
}

impl Word for Statements {
    const WORDS: &'static [(&'static str, Self)] =
        &[("all", Self::All), ("no_ddl", Self::NoDdl), ("read_only", Self::ReadOnly)];
}

impl Word for AllowListMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("learn", Self::Learn), ("report", Self::Report), ("reject", Self::Reject)];
}

impl Word for Enforce {
    const WORDS: &'static [(&'static str, Self)] = &[("reject", Self::Reject), ("report", Self::Report)];
}

impl Word for CoalesceMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("on", Self::On), ("shadow", Self::Shadow), ("off", Self::Off)];
}
