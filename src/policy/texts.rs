//! The rules for what stands in a text, whichever message brings it: `statements`, `sql_prepare`, `allow_list`.
//!
//! Owns: [`judge_text`]; [`Readings`], what the parser said of the texts seen lately. Never: how many statements a
//! Query may hold (that is `simple_query`), a file, a session.
//!
//! A text is parsed once: what was found is kept by the text itself (compared byte by byte, so that nobody can make
//! one text pass for another), in memory that is bounded in bytes.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::{Hazard, Lexing, Rejection, Rule, Rules, Verdict, hazard, too_many_tokens};
use crate::proto::prepared::SERVER_NAME_PREFIX;
use crate::settings::{AllowList, AllowListMode, Enforce, Statements, Switch};
use crate::sql::meaning::Unparsed;
use crate::sql::verbs::{self, Class, Found, Named};

/// Longest text that these rules read (bytes). With as many tokens as [`crate::limits::TREE_TOKENS_MAX`] allows, of the
/// heaviest kind, it takes 250 milliseconds and 110 megabytes, while it is read.
pub const TEXT_BYTES_MAX: usize = 256 << 10;

/// Memory for what was read (bytes, for one thread).
const READINGS_BYTES_MAX: usize = 4 << 20;

/// What an entry costs beside its text (bytes), about.
const ENTRY_BYTES: usize = 256;

/// What one statement of it costs beside that (bytes), about: a text may hold one for every fourth byte.
const STATEMENT_BYTES: usize = size_of::<Found>() + size_of::<Option<Named>>() + 64;

/// What the parser said of a text.
#[derive(Debug)]
pub struct Reading {
    statements: Result<Vec<Found>, Unparsed>,
    names: OnceCell<Result<Vec<Option<Named>>, Unparsed>>,
}

impl Reading {
    fn new(text: &[u8]) -> Self {
        Self { statements: verbs::statements(text), names: OnceCell::new() }
    }

    /// The statements, in order.
    ///
    /// # Errors
    /// The parser could not read the text.
    pub fn statements(&self) -> Result<&[Found], Unparsed> {
        self.statements.as_deref().map_err(|unparsed| *unparsed)
    }

    /// What is kept of it, with its text (bytes), about.
    fn bytes(&self, text: &[u8]) -> usize {
        let statements = self.statements.as_ref().map_or(0, Vec::len);
        text.len() + ENTRY_BYTES + statements * STATEMENT_BYTES
    }

    fn names(&self, text: &[u8]) -> Result<&[Option<Named>], Unparsed> {
        self.names.get_or_init(|| verbs::names(text)).as_deref().map_err(|unparsed| *unparsed)
    }
}

/// The texts read lately. Two generations: when the younger is full it becomes the older, and the older goes.
#[derive(Debug, Default)]
pub struct Readings {
    young: HashMap<Box<[u8]>, Rc<Reading>, ahash::RandomState>,
    old: HashMap<Box<[u8]>, Rc<Reading>, ahash::RandomState>,
    young_bytes: usize,
    parsed: u64,
}

impl Readings {
    /// What the parser says of `text`, which is at most [`TEXT_BYTES_MAX`] long.
    pub fn read(&mut self, text: &[u8]) -> Rc<Reading> {
        if let Some(known) = self.young.get(text) {
            return Rc::clone(known);
        }
        let (key, reading) = self.old.remove_entry(text).unwrap_or_else(|| {
            self.parsed += 1;
            (text.into(), Rc::new(Reading::new(text)))
        });
        let bytes = reading.bytes(text);
        if self.young_bytes + bytes > READINGS_BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(key, Rc::clone(&reading));
        reading
    }

    /// Texts that were given to the parser.
    pub fn parsed(&self) -> u64 {
        self.parsed
    }
}

/// What becomes of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// Whether it may pass.
    pub verdict: Verdict,
    /// What `allow_list = "learn"` writes: into which list (by its place in [`Rules::lists`]), what.
    pub learned: Vec<(usize, Named)>,
}

impl From<Verdict> for Judged {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, learned: Vec::new() }
    }
}

/// What a text runs may be what these rules never saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unseen {
    /// EXECUTE: prepared by somebody else, or before them.
    pub statements: bool,
    /// FETCH, MOVE and `cursor_to_xml()`: bound or declared before them, in the transaction that is open.
    pub portals: bool,
}

/// The verdict on the text of a Query, a Parse, or a statement that is bound again.
pub fn judge_text(
    rules: &Rules,
    text: &[u8],
    lexing: Lexing,
    unseen: Unseen,
    readings: &mut Readings,
) -> Judged {
    if !rules.reads_texts() {
        return Verdict::Pass.into();
    }
    if let Some(hazard) = hazard(text, lexing) {
        return rules.cannot_read(misread(hazard, rules)).into();
    }
    if text.len() > TEXT_BYTES_MAX {
        return judge_long_text(rules, text.len()).into();
    }
    let reading = readings.read(text);
    let statements = match reading.statements() {
        Ok(statements) => statements,
        Err(why) => return rules.cannot_read(unparsed(rules, why).of(text)).into(),
    };
    let mut verdict =
        refuse(rules, statements).map_or(Verdict::Pass, |rejection| rules.broken(rejection.of(text)));
    // Looked for only while there may be such a portal.
    let runs_portals = || unseen.portals && verbs::runs_portals(text);
    if statements.iter().any(|found| runs_unseen(found, unseen)) || runs_portals() {
        verdict = verdict.or(rules.cannot_read(unseen_statement(rules).of(text)));
    }
    match rules.allow_list {
        AllowListMode::Off => verdict.into(),
        AllowListMode::Learn if verdict != Verdict::Pass => verdict.into(),
        _ if matches!(verdict, Verdict::Reject(_)) => verdict.into(),
        mode => {
            let Judged { verdict: listed, learned } = look_up(rules, mode, text, &reading);
            Judged { verdict: verdict.or(listed), learned }
        }
    }
}

/// The verdict on a text, or a message, of this many bytes, which is too long to be read.
pub fn judge_long_text(rules: &Rules, bytes: usize) -> Verdict {
    if !rules.reads_texts() {
        return Verdict::Pass;
    }
    let what = format!("statement text is longer than {TEXT_BYTES_MAX} bytes: {}", rules.reader());
    let hint = "Send values as parameters, or rows with COPY.";
    rules.cannot_read(Rejection::new(Rule::TextBytes, what, hint).of_bytes(bytes))
}

/// The verdict on running what was prepared under other rules, where its text is not known any more.
pub fn judge_unseen(rules: &Rules) -> Verdict {
    if rules.reads_texts() { rules.cannot_read(unseen_statement(rules)) } else { Verdict::Pass }
}

impl Rules {
    /// Where only the allow-list needs the text, and refuses nothing, neither does what it cannot read.
    fn cannot_read(&self, rejection: Rejection) -> Verdict {
        let refuses = self.statements != Statements::All
            || self.sql_prepare == Switch::Deny
            || self.allow_list == AllowListMode::Reject;
        match self.allow_list {
            _ if refuses => self.broken(rejection),
            AllowListMode::Report => Verdict::Report(rejection),
            _ => Verdict::Pass,
        }
    }

    /// The setting that needs texts read, for messages.
    fn reader(&self) -> &'static str {
        match (self.statements, self.sql_prepare) {
            (Statements::ReadOnly, _) => "statements is \"read_only\"",
            (Statements::NoDdl, _) => "statements is \"no_ddl\"",
            (Statements::All, Switch::Deny) => "sql_prepare is \"deny\"",
            (Statements::All, Switch::Allow) => "allow_list is on",
        }
    }
}

fn misread(hazard: Hazard, rules: &Rules) -> Rejection {
    hazard.rejection(
        (Rule::TextStrings, Rule::TextEncoding),
        rules.reader(),
        (
            "Set standard_conforming_strings to on and wait for the answer, or send the value as a parameter.",
            "Set client_encoding to UTF8 and wait for the answer, or send the value as a parameter.",
        ),
    )
}

fn unparsed(rules: &Rules, why: Unparsed) -> Rejection {
    match why {
        Unparsed::Syntax => Rejection::new(
            Rule::TextUnparsed,
            format!("the statement could not be parsed: {}", rules.reader()),
            "Correct the statement; what pgsluice cannot read may not pass here.",
        ),
        Unparsed::Tokens => Rejection::new(
            Rule::TextTokens,
            too_many_tokens(rules.reader()),
            "Send values as parameters (one array for a long list), or rows with COPY.",
        ),
    }
}

fn unseen_statement(rules: &Rules) -> Rejection {
    Rejection::new(
        Rule::TextUnseen,
        format!("what was prepared or bound was not judged by the rules of today: {}", rules.reader()),
        "Connect again and prepare the statement there.",
    )
}

/// The first statement that a rule refuses; if there is none, the first that a rule reports.
fn refuse(rules: &Rules, statements: &[Found]) -> Option<Rejection> {
    let broken = |enforce| {
        statements.iter().enumerate().find_map(|(at, found)| {
            let all = [refuse_prepare(rules, found), refuse_class(rules, found)];
            let first = all.into_iter().flatten().find(|broken| rules.enforced(broken.rule) == enforce);
            first.map(|rejection| told_of(at, statements.len(), rejection))
        })
    };
    broken(Enforce::Reject).or_else(|| broken(Enforce::Report))
}

/// Which statement it is about, and of how many.
fn told_of(at: usize, count: usize, rejection: Rejection) -> Rejection {
    if count == 1 {
        return rejection;
    }
    let which = format!("It is statement {} of {count}.", at + 1);
    let detail = rejection.detail.as_ref().map_or(which.clone(), |d| format!("{d} {which}"));
    rejection.detail(detail)
}

/// EXECUTE of a statement that was not judged: what a name stands for is not known, or it is one of those that pgsluice gives to
/// the statements of all clients.
fn runs_unseen(found: &Found, unseen: Unseen) -> bool {
    (found.fetches && unseen.portals)
        || found
            .executes
            .as_ref()
            .is_some_and(|name| unseen.statements || name.starts_with(SERVER_NAME_PREFIX))
}

fn refuse_prepare(rules: &Rules, found: &Found) -> Option<Rejection> {
    if rules.sql_prepare == Switch::Allow || !(found.prepares || found.executes.is_some()) {
        return None;
    }
    Some(Rejection::new(
        Rule::SqlPrepareDeny,
        "PREPARE and EXECUTE are not allowed: sql_prepare is \"deny\"".into(),
        "Prepare statements with the extended query protocol.",
    ))
}

fn refuse_class(rules: &Rules, found: &Found) -> Option<Rejection> {
    let (rule, level, passes) = match rules.statements {
        Statements::All => return None,
        Statements::NoDdl => (Rule::StatementsNoDdl, "no_ddl", found.class <= Class::Write),
        Statements::ReadOnly => (Rule::StatementsReadOnly, "read_only", found.class <= Class::Read),
    };
    if passes {
        return None;
    }
    let rejection = Rejection::new(
        rule,
        format!("{} is not allowed: statements is \"{level}\"", found.class.as_str()),
        "Connect as a user whose policy allows it.",
    );
    Some(match found.because {
        Some(because) => {
            rejection.detail(format!("The statement is {}, with {because}.", found.kind.as_str()))
        }
        None => rejection.detail(format!("The statement is {}.", found.kind.as_str())),
    })
}

/// Each statement must be in each list.
fn look_up(rules: &Rules, mode: AllowListMode, text: &[u8], reading: &Reading) -> Judged {
    let names = match reading.names(text) {
        Ok(names) => names,
        Err(why) => return rules.cannot_read(unparsed(rules, why).of(text)).into(),
    };
    let lacks = |list: &AllowList, named: &Named| !list.prints.contains(&named.print);
    if mode == AllowListMode::Learn {
        let lists = rules.lists.iter().enumerate();
        let learned = lists.flat_map(|(at, list)| {
            let new = names.iter().flatten().filter(move |named| lacks(list, named));
            new.map(move |named| (at, named.clone()))
        });
        return Judged { verdict: Verdict::Pass, learned: learned.collect() };
    }
    let unlisted =
        |named: &&Named| rules.lists.is_empty() || rules.lists.iter().any(|list| lacks(list, named));
    let Some(named) = names.iter().flatten().find(unlisted) else { return Verdict::Pass.into() };
    let mut rejection = Rejection::new(
        Rule::AllowList,
        "the statement is not in the allow-list: see allow_list".into(),
        "If it may pass, add it to allow_list_file and reload.",
    )
    .of(text);
    rejection.fingerprint = Some(named.print.to_string());
    match mode {
        AllowListMode::Report => Verdict::Report(rejection).into(),
        _ => rules.broken(rejection).into(),
    }
}

#[cfg(test)]
mod tests;
