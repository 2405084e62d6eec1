//! May this message pass? (the rules are being written)

use crate::settings;

/// Effective rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    simple: settings::SimpleQuery,
}

/// What the lexer may rely on.
#[derive(Debug, Clone, Copy)]
pub struct Lexing {
    /// standard_conforming_strings
    pub std_strings: bool,
    /// client_encoding is ASCII-safe
    pub encoding_safe: bool,
}

/// A refusal.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// Stable name.
    pub rule: &'static str,
    /// Message.
    pub message: String,
    /// Hint.
    pub hint: &'static str,
}

/// What becomes of a message.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// On.
    Pass,
    /// On, as one extended unit.
    Single,
    /// Refused.
    Reject(Rejection),
    /// On, and recorded.
    Report(Rejection),
}

impl Rules {
    /// Strictest wins.
    pub fn new(global: &settings::Policy, database: &settings::Policy, user: &settings::Policy) -> Self {
        let simple = [global, database, user].iter().filter_map(|p| p.simple_query).max().unwrap_or_default();
        Self { simple }
    }

    /// No Query is looked at.
    pub fn passes_all_queries(&self) -> bool {
        self.simple == settings::SimpleQuery::Allow
    }
}

/// Judge.
pub fn judge_query(_rules: &Rules, _text: &[u8], _lexing: Lexing) -> Verdict {
    Verdict::Single
}

/// Judge.
pub fn judge_function_call(_rules: &Rules) -> Verdict {
    Verdict::Pass
}

/// Encoding.
pub fn encoding_is_safe(_name: &[u8]) -> bool {
    true
}

/// Judge.
pub fn judge_long_query(_rules: &Rules) -> Verdict {
    Verdict::Pass
}
