//! Hot path. What a statement text may do to the state of its session, found in one pass over its bytes.
//!
//! Owns: [`Effects`] and the pass. Never: an allocation, a parse tree, the session's state itself.
//!
//! The pass sees words, not meaning. It errs toward "may have changed something", with one limit that no text
//! can show: triggers, rules, views, operators, casts, defaults and `t.f` for `f(t)` can run a function that
//! is not named as a call here. The same holds for a function made under a built-in's name, in a schema before
//! pg_catalog or for other arguments. A setting whose name is computed at run time, or spelled in another way than it is read, is
//! [`Effects::UNKNOWN`] beside [`Effects::SETTINGS`]: nobody could ask for it by its name.
//!
//! Encodings in which a byte of a multibyte character can be ASCII are the caller's to exclude, and texts of which it does not
//! know how they are read: [`Effects::UNREAD`].

mod backend;
#[cfg(test)]
mod tests;
mod words;

use super::scan::{self, Kind, Quoting};
use crate::limits::NAME_BYTES_MAX;
use words::{INDEX, Known, key, word};

/// What a text may do to session state; the union over its statements.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Effects(u32);

impl Effects {
    /// No effect that outlives the transaction.
    pub const NONE: Self = Self(0);
    /// Changes settings: SET, RESET, `set_config`, SET ROLE, SET SESSION AUTHORIZATION. Not SET LOCAL.
    pub const SETTINGS: Self = Self(1 << 0);
    /// LISTEN or UNLISTEN.
    pub const LISTEN: Self = Self(1 << 1);
    /// Takes or gives back a session-level advisory lock.
    pub const ADVISORY_LOCK: Self = Self(1 << 2);
    /// Makes or uses a temporary object.
    pub const TEMP: Self = Self(1 << 3);
    /// DECLARE ... WITH HOLD.
    pub const HOLD_CURSOR: Self = Self(1 << 4);
    /// SQL-level PREPARE.
    pub const PREPARE: Self = Self(1 << 5);
    /// SQL-level EXECUTE, also in EXPLAIN and CREATE TABLE AS. Alone it also says [`Self::UNKNOWN`].
    pub const EXECUTE: Self = Self(1 << 6);
    /// DEALLOCATE of one name.
    pub const DEALLOCATE: Self = Self(1 << 7);
    /// DEALLOCATE ALL.
    pub const DEALLOCATE_ALL: Self = Self(1 << 8);
    /// DISCARD PLANS, SEQUENCES or TEMP.
    pub const DISCARD: Self = Self(1 << 9);
    /// DISCARD ALL.
    pub const DISCARD_ALL: Self = Self(1 << 10);
    /// CLOSE.
    pub const CLOSE: Self = Self(1 << 11);
    /// LOAD.
    pub const LOAD: Self = Self(1 << 12);
    /// Transaction control: BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE, PREPARE TRANSACTION and their kin.
    pub const TRANSACTION: Self = Self(1 << 13);
    /// May have changed anything: DO, CALL, EXECUTE, a function that is not a known built-in, odd text.
    pub const UNKNOWN: Self = Self(1 << 14);
    /// Changes settings until its transaction ends: SET LOCAL, `set_config(..., true)`. Names and literals may have another meaning
    /// meanwhile.
    pub const LOCAL: Self = Self(1 << 15);
    /// Makes state that lasts as long as the server process, beyond the transaction and DISCARD ALL.
    pub const BACKEND: Self = Self(1 << 16);

    /// The effects of a text of which it is unknown how the server reads it: it may hide anything.
    pub const UNREAD: Self = Self::SETTINGS.union(Self::EXECUTE).union(Self::UNKNOWN).union(Self::LOCAL);

    const NAMES: [(Self, &'static str); 17] = [
        (Self::SETTINGS, "settings"),
        (Self::LISTEN, "listen"),
        (Self::ADVISORY_LOCK, "advisory_lock"),
        (Self::TEMP, "temp"),
        (Self::HOLD_CURSOR, "hold_cursor"),
        (Self::PREPARE, "prepare"),
        (Self::EXECUTE, "execute"),
        (Self::DEALLOCATE, "deallocate"),
        (Self::DEALLOCATE_ALL, "deallocate_all"),
        (Self::DISCARD, "discard"),
        (Self::DISCARD_ALL, "discard_all"),
        (Self::CLOSE, "close"),
        (Self::LOAD, "load"),
        (Self::TRANSACTION, "transaction"),
        (Self::UNKNOWN, "unknown"),
        (Self::LOCAL, "local"),
        (Self::BACKEND, "backend_state"),
    ];

    /// Nothing at all.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Every flag of `other` is set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Some flag of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Both.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without the flags of `other`.
    #[inline]
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The flags that both have.
    #[inline]
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Session state may differ afterwards: any flag but [`Self::TRANSACTION`] and [`Self::LOCAL`].
    #[inline]
    pub const fn touches_session(self) -> bool {
        !self.difference(Self::TRANSACTION.union(Self::LOCAL)).is_empty()
    }

    /// The names of the flags that are set, for logs and the console.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| name)
    }
}

impl std::fmt::Display for Effects {
    /// The names, with commas between.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, name) in self.names().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl std::ops::BitOr for Effects {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl std::ops::BitOrAssign for Effects {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl std::fmt::Debug for Effects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Does the server read this text the same way under all settings? It is ASCII, without a backslash.
pub fn is_read_plainly(text: &[u8]) -> bool {
    text.is_ascii() && memchr::memchr(b'\\', text).is_none()
}

/// What `text` may do to session state. `std_strings` is the session's `standard_conforming_strings`.
pub fn effects(text: &[u8], std_strings: bool) -> Effects {
    let mut walk = Walk {
        text,
        std_strings,
        found: Effects::NONE,
        pending: Effects::NONE,
        lead: Lead::None,
        words: 0,
        last: Mark::OTHER,
        before: Mark::OTHER,
        schema: None,
        dotted: false,
        on_relation: false,
        only_opened: false,
        close_may_precede_call: false,
        joins: false,
        depth: 0,
        looks: 0,
        names_temp: false,
        may_name_backend: false,
    };
    if walk.run().is_none() {
        walk.found |= Effects::UNKNOWN;
    }
    walk.end_statement();
    if walk.names_temp && names_pg_temp(text) {
        walk.found |= Effects::TEMP;
    }
    let unknown = walk.found.contains(Effects::UNKNOWN);
    if (unknown || walk.may_name_backend)
        && backend::may_be_named(text)
        && backend::is_called(text, std_strings, unknown)
    {
        walk.found |= Effects::BACKEND;
    }
    walk.found
}

/// The effects of a text of which it is unknown how the server reads it.
pub fn unread(text: &[u8]) -> Effects {
    if backend::may_be_named(text) { Effects::UNREAD | Effects::BACKEND } else { Effects::UNREAD }
}

/// May this value be a text that is run and makes state that lasts as long as the server process?
pub fn names_backend_state(value: &[u8]) -> bool {
    backend::is_mentioned(value)
}

/// The statement that `DEALLOCATE [PREPARE] name [;]` names, when that is all the text holds: without quotes,
/// letters in lower case as the server folds them. `None` also for ALL, and for a name whose folding or cutting
/// is the server's affair (letters outside ASCII, more than 63 bytes).
pub fn deallocated_name(text: &[u8]) -> Option<Vec<u8>> {
    let mut tokens = scan::scan(text, true);
    let mut next = || tokens.next().map(|token| (token.kind, &text[token.start..token.end]));
    let is = |token: Option<(Kind, &[u8])>, word: &[u8]| {
        token.is_some_and(|(kind, bytes)| kind == Kind::Word && bytes.eq_ignore_ascii_case(word))
    };
    let is_end = |token: Option<(Kind, &[u8])>| token.is_none_or(|(_, bytes)| bytes == b";");
    if !is(next(), b"deallocate") {
        return None;
    }
    let (mut name, mut after) = (next(), next());
    if is(name, b"prepare") && !is_end(after) {
        (name, after) = (after, next());
    }
    while let Some((Kind::Punctuation, b";")) = after {
        after = next();
    }
    if after.is_some() || is(name, b"all") {
        return None;
    }
    let name = name.and_then(|(kind, bytes)| identifier(kind, bytes))?;
    (1..=NAME_BYTES_MAX).contains(&name.len()).then_some(name)
}

/// What a statement of a text does to the name of a prepared statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameMove {
    /// PREPARE
    Made(Vec<u8>),
    /// DEALLOCATE
    Gone(Vec<u8>),
}

/// The name that each PREPARE and each DEALLOCATE of a text makes or removes, in order. `None`: a name whose folding depends on the server.
pub fn name_moves(text: &[u8], std_strings: bool) -> Vec<Option<NameMove>> {
    let mut moves = Vec::new();
    let mut tokens =
        scan::scan(text, std_strings).map(|token| (token.kind, &text[token.start..token.end])).peekable();
    let is = |token: Option<&(Kind, &[u8])>, word: &[u8]| {
        token.is_some_and(|(kind, bytes)| *kind == Kind::Word && bytes.eq_ignore_ascii_case(word))
    };
    let ends = |token: Option<&(Kind, &[u8])>| token.is_none_or(|(_, bytes)| *bytes == b";");
    let mut begins = true;
    while let Some(token) = tokens.next() {
        let begun = std::mem::replace(&mut begins, token.1 == b";");
        let (made, gone) = (is(Some(&token), b"prepare"), is(Some(&token), b"deallocate"));
        if !begun || !(made || gone) {
            continue;
        }
        let Some(mut name) = tokens.next() else { break };
        if gone && is(Some(&name), b"prepare") && !ends(tokens.peek()) {
            name = tokens.next().unwrap_or(name);
        }
        let all = gone && is(Some(&name), b"all");
        let block = made
            && is(Some(&name), b"transaction")
            && tokens.peek().is_some_and(|next| next.0 == Kind::String);
        if !all && !block {
            let known = identifier(name.0, name.1).filter(|name| name.len() <= NAME_BYTES_MAX);
            moves.push(known.map(if made { NameMove::Made } else { NameMove::Gone }));
        }
    }
    moves
}

/// The names that follow EXECUTE, PREPARE and DEALLOCATE in a text, as PostgreSQL reads them; may include words that are not names.
pub fn statement_names(text: &[u8], std_strings: bool) -> Vec<Vec<u8>> {
    let mut named = false;
    let mut names = Vec::new();
    for token in scan::scan(text, std_strings) {
        let bytes = &text[token.start..token.end];
        let is = |word: &[u8]| token.kind == Kind::Word && bytes.eq_ignore_ascii_case(word);
        if std::mem::replace(&mut named, is(b"execute") || is(b"prepare") || is(b"deallocate")) {
            names.extend(identifier(token.kind, bytes));
        }
    }
    names
}

/// An identifier's name. `None`: it is no identifier, or its case folding depends on the server.
fn identifier(kind: Kind, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        Kind::Word if bytes.is_ascii() => Some(bytes.to_ascii_lowercase()),
        Kind::Quoted => Some(scan::unquoted(bytes)),
        _ => None,
    }
}

/// What a byte may begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Space,
    Word,
    Digit,
    Quote,
    DoubleQuote,
    Dollar,
    Minus,
    Slash,
    Open,
    Close,
    Dot,
    Semicolon,
    Other,
}

static CLASSES: [Class; 256] = {
    let mut table = [Class::Other; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = match i as u8 {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => Class::Space,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80..=0xff => Class::Word,
            b'0'..=b'9' => Class::Digit,
            b'\'' => Class::Quote,
            b'"' => Class::DoubleQuote,
            b'$' => Class::Dollar,
            b'-' => Class::Minus,
            b'/' => Class::Slash,
            b'(' => Class::Open,
            b')' => Class::Close,
            b'.' => Class::Dot,
            b';' => Class::Semicolon,
            _ => Class::Other,
        };
        i += 1;
    }
    table
};

/// Bytes that go on in a word.
static IN_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = matches!(CLASSES[i], Class::Word | Class::Digit | Class::Dollar);
        i += 1;
    }
    table
};

/// The first byte from `at` on that is not one of these, or the end.
#[inline]
fn past(text: &[u8], at: usize, is: impl Fn(u8) -> bool) -> usize {
    text[at..].iter().position(|&b| !is(b)).map_or(text.len(), |n| at + n)
}

/// What the last token was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Word,
    Quoted,
    Close,
    Other,
}

/// The last token, and where.
#[derive(Clone, Copy)]
struct Mark {
    what: What,
    start: usize,
    end: usize,
}

impl Mark {
    const OTHER: Self = Self { what: What::Other, start: 0, end: 0 };
    const CLOSE: Self = Self { what: What::Close, start: 0, end: 0 };

    fn is_name(self) -> bool {
        matches!(self.what, What::Word | What::Quoted)
    }
}

/// How the first word of a statement determines what matters in the rest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// No word yet.
    None,
    /// SELECT and what can hold `INTO TEMP`.
    Select,
    /// INSERT, MERGE.
    Insert,
    /// Nothing but its calls matters.
    Plain,
    /// CREATE.
    Create,
    /// ALTER, DROP, COMMENT, GRANT ...: may name functions without calling them.
    Definition,
    /// EXPLAIN.
    Explain,
    /// SET.
    Set,
    /// DISCARD.
    Discard,
    /// DEALLOCATE.
    Deallocate,
    /// PREPARE: its body does not run yet.
    Prepare,
    /// DECLARE.
    Declare,
    /// The first word says all.
    Said,
}

/// The keywords that the call of a function may stand right behind, in PostgreSQL 13 to 18.
const CALL_MAY_FOLLOW: [u128; 52] = {
    use word::*;
    [
        ALL, AND, ASYMMETRIC, BETWEEN, BOTH, BY, CALL, CASE, CONTENT, DEFAULT, DISTINCT, DOCUMENT, ELSE,
        ESCAPE, FIRST, FOR, FROM, GROUPS, HAVING, ILIKE, IN, JOIN, LATERAL, LEADING, LIKE, LIMIT, NEXT, NOT,
        OFFSET, ON, OR, PASSING, PATH, PLACING, RANGE, REF, RETURN, RETURNING, ROWS, SELECT, SIMILAR,
        SYMMETRIC, THEN, TO, TRAILING, USING, VALUE, VARIADIC, VERSION, WHEN, WHERE, ZONE,
    ]
};

/// Most calls of `set_config` in one text whose arguments are looked at.
const LOOKS_MAX: u8 = 8;

/// The pass.
struct Walk<'a> {
    text: &'a [u8],
    std_strings: bool,
    found: Effects,
    /// Of the statement being read, unless a later word takes it back.
    pending: Effects,
    lead: Lead,
    /// Words of the statement so far; stops at the top.
    words: u16,
    last: Mark,
    /// What stood before `last` and its schema.
    before: Mark,
    schema: Option<Mark>,
    /// `last` is followed by a dot.
    dotted: bool,
    /// ON names a relation here, as in CREATE INDEX.
    on_relation: bool,
    /// `ONLY (` stood in this statement: a relation's name may follow, as without the parenthesis.
    only_opened: bool,
    /// `DISTINCT ON (`, `OPERATOR (` or `RETURNING WITH (` stood in this statement: a call may follow its `)`.
    close_may_precede_call: bool,
    /// JOIN or MERGE stood in this statement: a call may follow ON.
    joins: bool,
    /// Parentheses that are open.
    depth: u32,
    /// Calls of `set_config` whose arguments were looked at.
    looks: u8,
    /// A setting is changed that may be the search path.
    names_temp: bool,
    /// A name begins as those of [`backend`] do.
    may_name_backend: bool,
}

impl<'a> Walk<'a> {
    /// `None`: a string, a name or a comment does not end.
    fn run(&mut self) -> Option<()> {
        let text = self.text;
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            at = match CLASSES[byte as usize] {
                Class::Space => at + 1,
                Class::Word => {
                    let end = past(text, at, |b| IN_WORD[b as usize]);
                    if end - at == 1 && matches!(text.get(end), Some(b'\'' | b'&')) {
                        self.prefixed(at)?
                    } else {
                        self.word(at, end);
                        end
                    }
                }
                Class::Digit => {
                    self.other();
                    past(text, at, |b| CLASSES[b as usize] == Class::Digit)
                }
                Class::Quote => self.string(at, Quoting::plain(self.std_strings))?,
                Class::DoubleQuote => self.quoted(at)?,
                Class::Dollar => self.dollar(at)?,
                Class::Minus if text.get(at + 1) == Some(&b'-') => scan::line_end(text, at),
                Class::Slash if text.get(at + 1) == Some(&b'*') => scan::comment_end(text, at)?,
                Class::Open => {
                    if self.last.is_name() {
                        self.only_opened |= self.says_only();
                        self.close_may_precede_call |= self.opens_before_call();
                        self.call(at);
                    }
                    self.depth = self.depth.saturating_add(1);
                    self.other();
                    at + 1
                }
                Class::Close => {
                    self.before = self.last;
                    self.last = Mark::CLOSE;
                    self.dotted = false;
                    self.depth = self.depth.saturating_sub(1);
                    at + 1
                }
                Class::Dot => {
                    // `a . b` and `a."b"` are read as `a.b`, which does not stand there.
                    if self.lead == Lead::Set && !self.is_inside_word(at) {
                        self.found |= Effects::UNKNOWN;
                    }
                    if self.last.is_name() && !self.dotted {
                        self.dotted = true;
                    } else {
                        self.other();
                    }
                    at + 1
                }
                Class::Semicolon => {
                    self.end_statement();
                    at + 1
                }
                Class::Minus | Class::Slash | Class::Other => {
                    self.other();
                    at + 1
                }
            };
        }
        Some(())
    }

    fn is_inside_word(&self, at: usize) -> bool {
        let in_word = |at: usize| self.text.get(at).is_some_and(|&b| IN_WORD[b as usize]);
        at > 0 && in_word(at - 1) && in_word(at + 1)
    }

    fn end_statement(&mut self) {
        self.found |= self.pending;
        self.pending = Effects::NONE;
        self.lead = Lead::None;
        self.on_relation = false;
        self.only_opened = false;
        self.close_may_precede_call = false;
        self.joins = false;
        self.depth = 0;
        self.words = 0;
        self.other();
        self.before = Mark::OTHER;
    }

    #[inline]
    fn other(&mut self) {
        self.before = self.last;
        self.last = Mark::OTHER;
        self.dotted = false;
    }

    /// A string at `open`; not even one of those may begin a statement.
    fn string(&mut self, open: usize, quoting: Quoting) -> Option<usize> {
        if self.lead == Lead::None {
            self.found |= Effects::UNKNOWN;
        }
        self.other();
        scan::string_end(self.text, open, quoting).map(|(end, _)| end)
    }

    fn dollar(&mut self, at: usize) -> Option<usize> {
        self.other();
        scan::dollar(self.text, at).map(|(_, end)| end)
    }

    fn quoted(&mut self, open: usize) -> Option<usize> {
        let end = scan::quoted_end(self.text, open)?;
        if self.lead == Lead::None {
            self.found |= Effects::UNKNOWN;
        }
        self.name(Mark { what: What::Quoted, start: open, end });
        let bytes = self.bytes(self.last);
        self.may_name_backend |= backend::may_begin(bytes);
        self.name_of_catalog(bytes);
        if self.lead == Lead::Set && !is_plain_setting(bytes) {
            self.found |= Effects::UNKNOWN;
        }
        Some(end)
    }

    /// A one-letter word at `at` with a quote or `&` behind it.
    fn prefixed(&mut self, at: usize) -> Option<usize> {
        let text = self.text;
        match (text[at] | 0x20, text[at + 1], text.get(at + 2)) {
            (b'e', b'\'', _) => self.string(at + 1, Quoting::Backslash),
            (b'b' | b'x', b'\'', _) => self.string(at + 1, Quoting::Bits),
            (b'u', b'&', Some(b'\'')) => {
                // With the setting off the server refuses it.
                if !self.std_strings {
                    self.found |= Effects::UNKNOWN;
                }
                self.string(at + 2, Quoting::Standard)
            }
            (b'u', b'&', Some(b'"')) => {
                // A name whose letters are not what they look like.
                self.found |= Effects::UNKNOWN;
                self.quoted(at + 2)
            }
            _ => {
                self.word(at, at + 1);
                Some(at + 1)
            }
        }
    }

    #[inline]
    fn name(&mut self, mark: Mark) {
        if self.dotted {
            self.schema = Some(self.last);
        } else {
            self.before = self.last;
            self.schema = None;
        }
        self.dotted = false;
        self.last = mark;
        self.words = self.words.saturating_add(1);
    }

    #[inline]
    fn word(&mut self, start: usize, end: usize) {
        self.name(Mark { what: What::Word, start, end });
        let word = &self.text[start..end];
        self.may_name_backend |= backend::may_begin(word);
        match self.lead {
            Lead::None => self.begin(word),
            Lead::Select | Lead::Insert | Lead::Plain => self.word_of_query(word),
            _ => self.word_of_other(word, end),
        }
    }

    /// The words that matter in every statement: `pg_temp...` and `INTO TEMP`.
    #[inline]
    fn word_of_query(&mut self, word: &[u8]) {
        match (word[0] | 0x20, word.len()) {
            (b'p', 7..) => self.name_of_catalog(word),
            (b't', 4 | 9) if self.lead == Lead::Select && self.says_temp(word) => self.found |= Effects::TEMP,
            (b'j', 4) => self.joins |= key(word) == word::JOIN,
            (b'm', 5) => self.joins |= key(word) == word::MERGE,
            _ => {}
        }
    }

    /// Names that have an effect without a call's parentheses: `f(x)` can be written `(x).f`, and an UPDATE of `pg_settings`
    /// calls `set_config`. Also temporary schemas.
    fn name_of_catalog(&mut self, name: &[u8]) {
        if !matches!(name, [b'p' | b'P', b'g' | b'G', b'_', ..]) {
            return;
        }
        if is_pg_temp(name) {
            self.found |= Effects::TEMP;
        }
        if is_session_lock(name) {
            self.found |= Effects::ADVISORY_LOCK;
        }
        let updated =
            || self.only_opened || matches!(self.key_before(), word::UPDATE | word::ONLY | word::INTO);
        if name.eq_ignore_ascii_case(b"pg_settings") && updated() {
            // Its condition decides which settings.
            self.found |= Effects::SETTINGS | Effects::UNKNOWN;
        }
    }

    /// TEMP or TEMPORARY where it is a keyword of CREATE or INTO.
    fn says_temp(&self, word: &[u8]) -> bool {
        matches!(key(word), word::TEMP | word::TEMPORARY)
            && matches!(
                self.key_before(),
                word::INTO | word::CREATE | word::REPLACE | word::LOCAL | word::GLOBAL
            )
    }

    /// The last token is the keyword ONLY.
    fn says_only(&self) -> bool {
        self.last.what == What::Word && key(self.bytes(self.last)) == word::ONLY
    }

    /// The last token opens with the `(` that follows what is no operand when it is closed again.
    fn opens_before_call(&self) -> bool {
        match key(self.bytes(self.last)) {
            word::OPERATOR => true,
            word::ON => self.key_before() == word::DISTINCT,
            word::WITH => self.key_before() == word::RETURNING,
            _ => false,
        }
    }

    fn key_before(&self) -> u128 {
        match self.before.what {
            What::Word => key(&self.text[self.before.start..self.before.end]),
            _ => 0,
        }
    }

    fn word_of_other(&mut self, word: &[u8], end: usize) {
        self.word_of_query(word);
        let this = key(word);
        match (self.lead, this) {
            (Lead::Create | Lead::Explain, word::EXECUTE) => {
                self.found |= Effects::EXECUTE | Effects::UNKNOWN
            }
            (Lead::Create, word::INDEX | word::UNIQUE | word::STATISTICS) if self.words == 2 => {
                self.on_relation = true;
            }
            (Lead::Create | Lead::Explain, _) if self.says_temp(word) => self.found |= Effects::TEMP,
            (Lead::Create | Lead::Definition, word::EXTENSION) if self.words <= 4 => {
                self.found |= Effects::UNKNOWN;
            }
            (Lead::Explain, word::HOLD) | (Lead::Declare, word::HOLD) if self.key_before() == word::WITH => {
                self.found |= Effects::HOLD_CURSOR;
            }
            (Lead::Set, word::LOCAL | word::TRANSACTION | word::CONSTRAINTS) if self.words == 2 => {
                // `local.x` and `transaction.x` are settings; a comment next is not looked behind.
                if matches!(self.peek(end), Some(b) if IN_WORD[b as usize] || b == b'"') {
                    let local = this == word::LOCAL;
                    self.pending = if local { Effects::LOCAL } else { Effects::NONE };
                }
            }
            (Lead::Discard, word::ALL) if self.words == 2 => self.pending = Effects::DISCARD_ALL,
            (Lead::Deallocate, word::ALL)
                if self.words == 2 || self.words == 3 && self.key_before() == word::PREPARE =>
            {
                self.pending = Effects::DEALLOCATE_ALL;
            }
            (Lead::Prepare, word::TRANSACTION) if self.words == 2 && self.peek(end) == Some(b'\'') => {
                self.pending = Effects::TRANSACTION;
            }
            _ => {}
        }
    }

    /// The next byte that is not white space.
    fn peek(&self, at: usize) -> Option<u8> {
        self.text[at..].iter().copied().find(|&b| !scan::is_space(b))
    }

    /// The first word of a statement.
    fn begin(&mut self, word: &[u8]) {
        let first = key(word);
        let (lead, effects) = lead(first);
        self.joins = first == word::MERGE;
        self.lead = lead;
        self.pending = effects;
        if lead == Lead::Set {
            self.names_temp = true;
        }
    }

    /// A name followed by the `(` at `open`: a call, unless syntax says otherwise.
    fn call(&mut self, open: usize) {
        if matches!(self.lead, Lead::Prepare | Lead::Said) || self.dotted {
            return;
        }
        if self.words == 1 {
            return; // EXPLAIN (...), COPY (...), VALUES (...)
        }
        let name = self.bytes(self.last);
        let known = INDEX.find(name, self.last.what == What::Quoted);
        let in_catalog = match self.schema {
            None => true,
            Some(mark) => self.bytes(mark).eq_ignore_ascii_case(b"pg_catalog"),
        };
        match known {
            Known { function: true, .. } if in_catalog => {}
            Known { keyword: true, .. } if self.schema.is_none() => {}
            _ if self.is_introduced(name) => {}
            _ if in_catalog => {
                let effects = self.special(name, open);
                self.found |= effects;
            }
            _ => self.found |= Effects::UNKNOWN,
        }
    }

    /// The bytes of a name without its quotes.
    fn bytes(&self, mark: Mark) -> &'a [u8] {
        match mark.what {
            What::Quoted => &self.text[mark.start + 1..mark.end - 1],
            _ => &self.text[mark.start..mark.end],
        }
    }

    /// A list of columns, arguments or options belongs to the name, or the name is syntax.
    fn is_introduced(&self, name: &[u8]) -> bool {
        let before = self.key_before();
        let defines = matches!(self.lead, Lead::Create | Lead::Definition);
        match before {
            word::INTO | word::AS | word::WITH | word::RECURSIVE | word::REFERENCES => return true,
            word::TABLE
            | word::EXISTS
            | word::ONLY
            | word::VIEW
            | word::COPY
            | word::ANALYZE
            | word::VACUUM => {
                return true;
            }
            word::FUNCTION | word::PROCEDURE | word::ROUTINE | word::AGGREGATE | word::TYPE if defines => {
                return true;
            }
            word::ON if self.on_relation => return true,
            _ => {}
        }
        let alias = match self.before.what {
            What::Quoted => true,
            What::Word => !INDEX.find(self.bytes(self.before), false).is_keyword(),
            _ => false,
        };
        if alias || self.last.what == What::Quoted || self.schema.is_some() {
            return alias;
        }
        if INDEX.find(name, false).loose && !self.call_may_stand_here() {
            return true;
        }
        match key(name) {
            word::CONFLICT => before == word::ON && !self.joins,
            word::MATERIALIZED => before == word::NOT && self.word_before(self.before) == word::AS,
            word::ROLLUP | word::CUBE => before == word::BY && self.word_before(self.before) == word::GROUP,
            word::RANGE | word::LIST | word::HASH if before == word::BY => {
                // In a window the words are the same, in parentheses.
                self.lead == Lead::Create
                    && self.depth == 0
                    && self.word_before(self.before) == word::PARTITION
            }
            word::HASH | word::BTREE | word::GIN | word::GIST | word::BRIN | word::SPGIST => {
                self.on_relation && self.depth == 0 && before == word::USING
            }
            _ => false,
        }
    }

    /// The last name may be that of a function, by what stands before it: this is what can in PostgreSQL's grammar.
    fn call_may_stand_here(&self) -> bool {
        match self.before.what {
            What::Word => CALL_MAY_FOLLOW.contains(&self.key_before()),
            What::Quoted => false,
            What::Close => self.close_may_precede_call,
            What::Other => true,
        }
    }

    /// The word right before `mark`, on the same line: what ends another line may be a comment.
    fn word_before(&self, mark: Mark) -> u128 {
        let text = &self.text[..mark.start];
        let blank = text.iter().rev().take_while(|&&b| matches!(b, b' ' | b'\t')).count();
        let text = &text[..text.len() - blank];
        let word = text.iter().rev().take_while(|&&b| IN_WORD[b as usize]).count();
        key(&text[text.len() - word..])
    }

    /// A call of a name that is not known to be harmless.
    fn special(&mut self, name: &[u8], open: usize) -> Effects {
        let lower = key(name);
        if name.len() == 10 && lower == word::SET_CONFIG {
            self.names_temp = true;
            // Each look reads on to the closing parenthesis, and calls nest: only a few are worth it.
            self.looks = self.looks.saturating_add(1);
            return if self.looks <= LOOKS_MAX && self.third_is_true(open) {
                Effects::LOCAL
            } else if self.shows_setting(open) {
                Effects::SETTINGS
            } else {
                Effects::SETTINGS | Effects::UNKNOWN
            };
        }
        if is_session_lock(name) { Effects::ADVISORY_LOCK } else { Effects::UNKNOWN }
    }

    /// The first argument of the call whose `(` is at `open` is a name as it stands there, or a parameter.
    fn shows_setting(&self, open: usize) -> bool {
        let mut tokens = scan::scan_from(self.text, open, self.std_strings);
        let (_, first, next) = (tokens.next(), tokens.next(), tokens.next());
        let bytes = |token: scan::Token| &self.text[token.start..token.end];
        let is_plain = first.is_some_and(|token| match token.kind {
            Kind::Param => true,
            Kind::String => is_plain_setting(&self.text[token.start + 1..token.end - 1]),
            _ => false,
        });
        is_plain && next.is_some_and(|token| bytes(token) == b",")
    }

    /// The third argument of the call whose `(` is at `open` is the word TRUE, alone.
    fn third_is_true(&self, open: usize) -> bool {
        let (mut depth, mut commas, mut is_true, mut tokens) = (0u32, 0, false, 0);
        for token in scan::scan_from(self.text, open, self.std_strings) {
            let bytes = &self.text[token.start..token.end];
            match (token.kind, bytes) {
                (Kind::Punctuation, b"(" | b"[") => depth += 1,
                (Kind::Punctuation, b")" | b"]") if depth == 1 => {
                    return commas == 2 && is_true && tokens == 1;
                }
                (Kind::Punctuation, b")" | b"]") => depth -= 1,
                (Kind::Punctuation, b",") if depth == 1 => {
                    commas += 1;
                    tokens = 0;
                    continue;
                }
                (Kind::Junk | Kind::Unterminated, _) => return false,
                _ => {}
            }
            tokens += 1;
            is_true = token.kind == Kind::Word && bytes.eq_ignore_ascii_case(b"true");
        }
        false
    }
}

/// A function that takes or gives back an advisory lock of the session.
fn is_session_lock(name: &[u8]) -> bool {
    let starts =
        |prefix: &[u8]| name.len() >= prefix.len() && name[..prefix.len()].eq_ignore_ascii_case(prefix);
    [&b"pg_advisory_lock"[..], b"pg_advisory_unlock", b"pg_try_advisory_lock"]
        .iter()
        .any(|prefix| starts(prefix))
}

/// Is the name found by a search for names of settings in a text?
fn is_plain_setting(name: &[u8]) -> bool {
    name.iter().all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'.'))
}

/// `pg_temp` and `pg_temp_N`.
fn is_pg_temp(name: &[u8]) -> bool {
    name.len() >= 7 && name[..7].eq_ignore_ascii_case(b"pg_temp")
}

/// `pg_temp` anywhere, also inside strings.
fn names_pg_temp(text: &[u8]) -> bool {
    text.windows(7).any(is_pg_temp)
}

/// What a first word says.
fn lead(first: u128) -> (Lead, Effects) {
    use word::*;
    match first {
        SELECT | WITH | VALUES | TABLE => (Lead::Select, Effects::NONE),
        INSERT | MERGE => (Lead::Insert, Effects::NONE),
        UPDATE | DELETE | COPY | SHOW | NOTIFY | FETCH | MOVE | LOCK | TRUNCATE | CLUSTER | REINDEX
        | CHECKPOINT | VACUUM | ANALYZE | ANALYSE => (Lead::Plain, Effects::NONE),
        BEGIN | START | COMMIT | END | ROLLBACK | ABORT | SAVEPOINT | RELEASE => {
            (Lead::Said, Effects::TRANSACTION)
        }
        SET => (Lead::Set, Effects::SETTINGS),
        RESET => (Lead::Said, Effects::SETTINGS),
        CREATE => (Lead::Create, Effects::NONE),
        ALTER | DROP | COMMENT | GRANT | REVOKE | REFRESH | REASSIGN | SECURITY | IMPORT => {
            (Lead::Definition, Effects::NONE)
        }
        EXPLAIN => (Lead::Explain, Effects::NONE),
        LISTEN | UNLISTEN => (Lead::Said, Effects::LISTEN),
        DISCARD => (Lead::Discard, Effects::DISCARD),
        DEALLOCATE => (Lead::Deallocate, Effects::DEALLOCATE),
        PREPARE => (Lead::Prepare, Effects::PREPARE),
        EXECUTE => (Lead::Said, Effects::EXECUTE.union(Effects::UNKNOWN)),
        DECLARE => (Lead::Declare, Effects::NONE),
        CLOSE => (Lead::Said, Effects::CLOSE),
        LOAD => (Lead::Said, Effects::LOAD),
        _ => (Lead::Plain, Effects::UNKNOWN),
    }
}
