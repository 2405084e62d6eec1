//! The protocol policy: what a client may send, and by which rule it may not.
//!
//! Owns: [`Rules`] in effect for one session, and the verdict on each message. Never: a socket, the session,
//! the answer's bytes, the audit log. Pure: the same rules, text and lexing give the same verdict.
//!
//! How to read this file: [`judge_query`] applies `simple_query` to Query messages, [`texts::judge_text`] the rules for the text
//! of a Query or a Parse. Three laws hold in them:
//!
//! * A text that is not understood is refused if a rule has to understand it (`control`, `statements`, `sql_prepare`,
//!   `allow_list`).
//! * "One statement" is not decided here. [`Verdict::Single`] has the caller send the text as one Parse, and
//!   PostgreSQL refuses a second statement in it. Refusing early here only gives a clearer message.
//! * A rule in a section tightens, never loosens: [`Rules::merge`].
//!
//! See "Message Flow" in PostgreSQL's protocol chapter, and `docs/policy.md`.

pub mod texts;

use std::borrow::Cow;
use std::sync::Arc;

use memchr::memchr;

use crate::limits::{STATEMENT_BYTES_MAX, TREE_NAME_TOKENS, TREE_TOKENS_MAX};
use crate::settings::{AllowList, AllowListMode, Enforce, Policy, SimpleQuery, Statements, Switch};
use crate::sql::meaning::{self, Kind, Unparsed};
use crate::sql::scan;
use crate::sql::verbs::{loads_libraries, opens_to_writes};
use texts::Readings;

/// Longest text that is given a fingerprint in an audit event (bytes): parsing it must not cost more than
/// the refusal is worth.
pub const FINGERPRINT_BYTES_MAX: usize = 16 << 10;

/// Longest text that is parsed for a verdict (bytes), so that no client can keep a worker busy with it. No
/// honest transaction control or session state is near it; `single` leaves longer ones to the server.
pub const PARSED_BYTES_MAX: usize = 64 << 10;

/// The rules in effect for one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    simple_query: SimpleQuery,
    function_call: Switch,
    sql_prepare: Switch,
    replication: Switch,
    statements: Statements,
    allow_list: AllowListMode,
    /// The allow-lists: a statement must be in each of them.
    lists: Vec<Arc<AllowList>>,
    /// What happens when a rule is broken, for each rule in the order of [`Policy::forbids`]; `None`: it forbids nothing.
    enforce: [Option<Enforce>; 7],
}

impl Default for Rules {
    fn default() -> Self {
        Self::merge([&Policy::default()])
    }
}

impl Rules {
    /// The strictest of all policies that apply, the first of which is `[policy]`. Where none says anything: everything
    /// passes, FunctionCall too unless Query is restricted, and a rule rejects. What becomes of a broken rule is what the policies say that have
    /// that rule, and the first one for those that do not say it: nobody's `report` loosens what others forbid.
    pub fn merge<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Self {
        let mut all = Policy::default();
        let mut policies = policies.into_iter().peekable();
        let first = policies.peek();
        let unless_said = first.and_then(|first| first.enforce).unwrap_or(Enforce::Reject);
        let calls_unless_said = first.and_then(|first| first.function_call).unwrap_or(Switch::Deny);
        let mut enforce = [None; 7];
        for policy in policies {
            let said = Some(policy.enforce.unwrap_or(unless_said));
            let forbidding = enforce.iter_mut().zip(policy.forbids()).filter(|(_, forbids)| *forbids);
            forbidding.for_each(|(enforce, _)| *enforce = (*enforce).max(said));
            // `None` is below every `Some`, and the variants are in order of strictness.
            all.simple_query = all.simple_query.max(policy.simple_query);
            all.function_call = all.function_call.max(policy.function_call_beside(calls_unless_said));
            all.sql_prepare = all.sql_prepare.max(policy.sql_prepare);
            all.replication = all.replication.max(policy.replication);
            all.statements = all.statements.max(policy.statements);
            all.allow_list = all.allow_list.max(policy.allow_list);
        }
        Self {
            simple_query: all.simple_query.unwrap_or_default(),
            function_call: all.function_call.unwrap_or_default(),
            sql_prepare: all.sql_prepare.unwrap_or_default(),
            replication: all.replication.unwrap_or_default(),
            statements: all.statements.unwrap_or_default(),
            allow_list: all.allow_list.unwrap_or_default(),
            lists: Vec::new(),
            enforce,
        }
    }

    /// Adds the lists that the policies name; a missing list allows nothing.
    #[must_use]
    pub fn with_lists(self, lists: Vec<Arc<AllowList>>) -> Self {
        let lists = if self.allow_list == AllowListMode::Off { Vec::new() } else { lists };
        Self { lists, ..self }
    }

    /// Whether SQL's PREPARE and EXECUTE pass.
    pub fn sql_prepare(&self) -> Switch {
        self.sql_prepare
    }

    /// Whether replication connections pass.
    pub fn replication(&self) -> Switch {
        self.replication
    }

    /// The kinds of statements that pass.
    pub fn statements(&self) -> Statements {
        self.statements
    }

    /// What happens to statements that are in no list.
    pub fn allow_list(&self) -> AllowListMode {
        self.allow_list
    }

    /// The lists, each of which must have a statement.
    pub fn lists(&self) -> &[Arc<AllowList>] {
        &self.lists
    }

    /// What happens to a message that breaks this rule. For a replication connection, on which no rule can be applied, the strictest.
    pub fn enforced(&self, rule: Rule) -> Enforce {
        let [simple_query, function_call, sql_prepare, _, statements, allow_list, _] = self.enforce;
        let said = match rule {
            Rule::SimpleQueryDeny
            | Rule::SimpleQuerySingle
            | Rule::SimpleQueryControl
            | Rule::ControlUnparsed
            | Rule::ControlTokens
            | Rule::ControlStrings
            | Rule::ControlEncoding
            | Rule::StatementBytes => simple_query,
            Rule::FunctionCallDeny => function_call.max(simple_query),
            Rule::SqlPrepareDeny => sql_prepare,
            Rule::ReplicationDeny => self.enforce.into_iter().max().flatten(),
            Rule::StatementsNoDdl | Rule::StatementsReadOnly => statements,
            Rule::TextUnseen
            | Rule::TextUnparsed
            | Rule::TextTokens
            | Rule::TextStrings
            | Rule::TextEncoding
            | Rule::TextBytes => statements.max(sql_prepare).max(allow_list),
            Rule::AllowList => allow_list,
        };
        said.unwrap_or(Enforce::Reject)
    }

    /// Is any rule enforced by refusing, and not only reported?
    pub fn rejects(&self) -> bool {
        // Such a connection counts as breaking every rule.
        self.enforced(Rule::ReplicationDeny) == Enforce::Reject
    }

    /// Hot path. Does any rule judge the texts of Query and Parse messages?
    #[inline]
    pub fn reads_texts(&self) -> bool {
        self.statements != Statements::All
            || self.sql_prepare == Switch::Deny
            || self.allow_list != AllowListMode::Off
    }

    /// Hot path. Does a verdict depend on how the server reads a text?
    #[inline]
    pub fn needs_lexing(&self) -> bool {
        matches!(self.simple_query, SimpleQuery::Control | SimpleQuery::Single) || self.reads_texts()
    }

    /// May statements prepared under `old` be ones that these rules refuse?
    pub fn distrust_what_was_prepared(&self, old: &Self) -> bool {
        let lists = self.allow_list >= AllowListMode::Report
            && (self.allow_list > old.allow_list || self.lists != old.lists);
        let is_stricter = |rule| self.enforced(rule) > old.enforced(rule);
        let reading = [Rule::StatementsReadOnly, Rule::SqlPrepareDeny, Rule::AllowList];
        let enforced = self.reads_texts() && reading.into_iter().any(is_stricter);
        self.statements > old.statements || self.sql_prepare > old.sql_prepare || lists || enforced
    }

    /// The level for Query messages.
    pub fn simple_query(&self) -> SimpleQuery {
        self.simple_query
    }

    /// Whether FunctionCall messages pass.
    pub fn function_call(&self) -> Switch {
        self.function_call
    }

    /// Hot path. Do all Query messages pass unread?
    #[inline]
    pub fn passes_all_queries(&self) -> bool {
        self.simple_query == SimpleQuery::Allow
    }

    /// A setting that makes messages be inspected, for errors.
    fn strict_setting(&self) -> Option<&'static str> {
        let set = [
            ("simple_query", !self.passes_all_queries()),
            ("function_call", self.function_call == Switch::Deny),
            ("sql_prepare", self.sql_prepare == Switch::Deny),
            ("statements", self.statements != Statements::All),
            ("allow_list", !matches!(self.allow_list, AllowListMode::Off | AllowListMode::Learn)),
        ];
        set.into_iter().find_map(|(name, is_set)| is_set.then_some(name))
    }

    fn broken(&self, rejection: Rejection) -> Verdict {
        match self.enforced(rejection.rule) {
            Enforce::Reject => Verdict::Reject(rejection),
            Enforce::Report => Verdict::Report(rejection),
        }
    }

    /// Where it is only reported nothing may change for the client, folding included.
    fn single(&self) -> Verdict {
        match self.enforced(Rule::SimpleQuerySingle) {
            Enforce::Reject => Verdict::Single,
            Enforce::Report => Verdict::Pass,
        }
    }
}

/// How the server reads a text, by the session's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lexing {
    /// `standard_conforming_strings` is on.
    pub std_strings: bool,
    /// No byte of a multibyte character of the client encoding can be ASCII: [`encoding_is_safe`].
    pub encoding_safe: bool,
    /// The byte of `İ` in the server's encoding, where the server may fold it to `i`: [`dotted_i`].
    pub dotted_i: Option<u8>,
    /// Two characters of the client's encoding may be one of the server's: [`may_merge`], of either.
    pub merges: Merges,
}

/// Whose encoding it is that [`may_merge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merges {
    client: bool,
    server: bool,
}

impl Lexing {
    /// Before the server has reported anything: an unknown encoding is not safe.
    pub const UNTOLD: Self = Self {
        std_strings: true,
        encoding_safe: false,
        dotted_i: Some(0xdd),
        merges: Merges { client: true, server: true },
    };
    /// Nothing is known.
    pub const UNSURE: Self = Self { std_strings: false, ..Self::UNTOLD };
    /// What most sessions have.
    pub const PLAIN: Self = Self {
        std_strings: true,
        encoding_safe: true,
        dotted_i: None,
        merges: Merges { client: false, server: false },
    };

    /// Takes a setting that the server reports. False: it does not matter here.
    pub fn hear(&mut self, name: &[u8], value: &[u8]) -> bool {
        match name {
            b"standard_conforming_strings" => self.std_strings = value != b"off",
            b"client_encoding" => {
                (self.encoding_safe, self.merges.client) = (encoding_is_safe(value), may_merge(value));
            }
            b"server_encoding" => {
                (self.dotted_i, self.merges.server) = (dotted_i(value), may_merge(value));
            }
            _ => return false,
        }
        true
    }

    /// A dollar quote that seems to go on may have ended: the server compares tags when it has converted the text.
    pub fn may_end_early(self, text: &[u8]) -> bool {
        (self.merges.client || self.merges.server) && scan::has_tag_beyond_ascii(text)
    }

    /// A word outside quotes holds the letter that the server may fold to `i`: to the server it is another word.
    pub fn may_fold(self, text: &[u8]) -> bool {
        let Some(byte) = self.dotted_i else { return false };
        let holds =
            |text: &[u8]| memchr(byte, text).is_some() || memchr::memmem::find(text, DOTTED_I).is_some();
        let is_quoted = |kind: scan::Kind| {
            kind.is_string() || matches!(kind, scan::Kind::Quoted | scan::Kind::UnicodeQuoted)
        };
        holds(text)
            && scan::scan(text, self.std_strings)
                .any(|token| !is_quoted(token.kind) && holds(&text[token.start..token.end]))
    }
}

/// What to do with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Send it on as it is.
    Pass,
    /// Send the text on as one extended unit (Parse, Bind, Describe, Execute, Sync), answers folded back.
    Single,
    /// Answer with this error; write an audit event.
    Reject(Rejection),
    /// Send it on as it is; write the same audit event.
    Report(Rejection),
}

impl Verdict {
    /// This verdict if it refuses or reports, unless only the other one refuses; otherwise the other one.
    #[must_use]
    fn or(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Reject(_), _) | (Self::Report(_), Self::Pass | Self::Single | Self::Report(_)) => self,
            _ => other,
        }
    }
}

/// A rule that a message can break. The words of [`Rule::as_str`] are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Query messages are refused.
    SimpleQueryDeny,
    /// A Query message holds one statement at most.
    SimpleQuerySingle,
    /// A Query message holds one statement of transaction control or session state.
    SimpleQueryControl,
    /// `control`: PostgreSQL's parser could not read it.
    ControlUnparsed,
    /// `control`: more tokens than PostgreSQL's parser is given.
    ControlTokens,
    /// `control`: a backslash while `standard_conforming_strings` is off.
    ControlStrings,
    /// `control`: a byte above 0x7f in a client encoding whose characters may hold ASCII bytes.
    ControlEncoding,
    /// Longer than what is held whole (`single`) or parsed (`control`).
    StatementBytes,
    /// FunctionCall messages are refused.
    FunctionCallDeny,
    /// SQL's PREPARE and EXECUTE are refused.
    SqlPrepareDeny,
    /// Replication connections are refused.
    ReplicationDeny,
    /// A statement that defines, or acts on the server.
    StatementsNoDdl,
    /// A statement that does more than read.
    StatementsReadOnly,
    /// EXECUTE or Bind of a statement that was not judged by these rules.
    TextUnseen,
    /// A rule has to read the text: PostgreSQL's parser could not.
    TextUnparsed,
    /// A rule has to read the text: it has more tokens than PostgreSQL's parser is given.
    TextTokens,
    /// A rule has to read the text: a backslash while `standard_conforming_strings` is off.
    TextStrings,
    /// A rule has to read the text: a byte above 0x7f in a client encoding whose characters may hold ASCII bytes.
    TextEncoding,
    /// A rule has to read the text: it is too long for that.
    TextBytes,
    /// The allow-list does not have the statement.
    AllowList,
}

impl Rule {
    /// Every rule, for counters.
    pub const ALL: [Self; 20] = [
        Self::SimpleQueryDeny,
        Self::SimpleQuerySingle,
        Self::SimpleQueryControl,
        Self::ControlUnparsed,
        Self::ControlTokens,
        Self::ControlStrings,
        Self::ControlEncoding,
        Self::StatementBytes,
        Self::FunctionCallDeny,
        Self::SqlPrepareDeny,
        Self::ReplicationDeny,
        Self::StatementsNoDdl,
        Self::StatementsReadOnly,
        Self::TextUnseen,
        Self::TextUnparsed,
        Self::TextTokens,
        Self::TextStrings,
        Self::TextEncoding,
        Self::TextBytes,
        Self::AllowList,
    ];

    /// The rule's name in messages, audit events and counters.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SimpleQueryDeny => "simple_query=deny",
            Self::SimpleQuerySingle => "simple_query=single",
            Self::SimpleQueryControl => "simple_query=control",
            Self::ControlUnparsed => "simple_query=control/unparsed",
            Self::ControlTokens => "simple_query=control/tokens",
            Self::ControlStrings => "simple_query=control/standard_conforming_strings",
            Self::ControlEncoding => "simple_query=control/client_encoding",
            Self::StatementBytes => "simple_query/statement_bytes",
            Self::FunctionCallDeny => "function_call=deny",
            Self::SqlPrepareDeny => "sql_prepare=deny",
            Self::ReplicationDeny => "replication=deny",
            Self::StatementsNoDdl => "statements=no_ddl",
            Self::StatementsReadOnly => "statements=read_only",
            Self::TextUnseen => "text/unseen",
            Self::TextUnparsed => "text/unparsed",
            Self::TextTokens => "text/tokens",
            Self::TextStrings => "text/standard_conforming_strings",
            Self::TextEncoding => "text/client_encoding",
            Self::TextBytes => "text/statement_bytes",
            Self::AllowList => "allow_list",
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A message that breaks a rule. Nothing in it holds a literal of the client's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Which rule.
    pub rule: Rule,
    /// The error's message; names the setting.
    pub message: String,
    /// The error's detail.
    pub detail: Option<String>,
    /// The error's hint: what to do instead.
    pub hint: &'static str,
    /// The statement's fingerprint, where there is one to be had.
    pub fingerprint: Option<String>,
    /// The text's length (bytes), or its message's where it is not held whole; 0 where there is none.
    pub bytes: usize,
}

impl Rejection {
    fn new(rule: Rule, message: String, hint: &'static str) -> Self {
        Self { rule, message, detail: None, hint, fingerprint: None, bytes: 0 }
    }

    /// The hint as a client is told it: with what to write into the list, where that would let the statement pass.
    pub fn advice(&self) -> Cow<'static, str> {
        match (&self.fingerprint, self.rule) {
            (Some(print), Rule::AllowList) => Cow::Owned(format!("{} Its line: {print}", self.hint)),
            _ => Cow::Borrowed(self.hint),
        }
    }

    fn detail(mut self, detail: String) -> Self {
        self.detail = Some(detail);
        self
    }

    /// The rejection of a text that is not held, of so many bytes.
    fn of_bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    fn of(mut self, text: &[u8]) -> Self {
        self.bytes = text.len();
        if text.len() <= FINGERPRINT_BYTES_MAX {
            self.fingerprint = meaning::fingerprint(text).ok();
        }
        self
    }
}

/// The verdict on a Query message that holds `text` (without its final zero byte).
pub fn judge_query(rules: &Rules, text: &[u8], lexing: Lexing, readings: &mut Readings) -> Verdict {
    let broken = match rules.simple_query {
        SimpleQuery::Allow => return Verdict::Pass,
        SimpleQuery::Deny => Some(denied()),
        SimpleQuery::Single | SimpleQuery::Control if text.len() > STATEMENT_BYTES_MAX => {
            Some(too_long_at(rules.simple_query))
        }
        SimpleQuery::Single => refuse_many(text, lexing),
        SimpleQuery::Control => refuse_but_control(text, lexing, readings),
    };
    match broken {
        None => rules.single(),
        Some(rejection) => rules.broken(rejection.of(text)),
    }
}

/// The verdict on a FunctionCall message. It names its function by number, so it is neither known to only read nor in an allow-list.
pub fn judge_function_call(rules: &Rules) -> Verdict {
    let broken = |rule, what: &str| rules.broken(Rejection::new(rule, what.into(), CALL_BY_SELECT));
    let unlisted = || broken(Rule::AllowList, "FunctionCall messages are in no allow-list: see allow_list");
    let call = match rules.function_call {
        Switch::Allow => Verdict::Pass,
        Switch::Deny => {
            broken(Rule::FunctionCallDeny, "FunctionCall messages are not allowed: function_call is \"deny\"")
        }
    };
    let statement = match rules.statements {
        Statements::All | Statements::NoDdl => Verdict::Pass,
        Statements::ReadOnly => broken(
            Rule::StatementsReadOnly,
            "FunctionCall messages are not allowed: statements is \"read_only\"",
        ),
    };
    let listed = match (rules.allow_list, unlisted()) {
        (AllowListMode::Off | AllowListMode::Learn, _) => Verdict::Pass,
        (AllowListMode::Report, Verdict::Reject(unlisted)) => Verdict::Report(unlisted),
        (_, unlisted) => unlisted,
    };
    call.or(statement).or(listed)
}

const CALL_BY_SELECT: &str = "Call the function with SELECT in the extended query protocol.";

/// The verdict on a replication connection. Messages on one are not inspected: it passes only if no rule would inspect any message.
pub fn judge_replication(rules: &Rules) -> Verdict {
    let why = match rules.strict_setting() {
        _ if rules.replication == Switch::Deny => "replication is \"deny\"".to_owned(),
        Some(setting) => format!("{setting} is set, and nothing on them is judged"),
        None => return Verdict::Pass,
    };
    let what = format!("replication connections are not allowed: {why}");
    let hint = "Connect without the replication parameter.";
    rules.broken(Rejection::new(Rule::ReplicationDeny, what, hint))
}

/// The verdict on the settings in a StartupMessage: they must not do for a whole session what SET or LOAD may not.
pub fn judge_startup<'a>(rules: &Rules, mut settings: impl Iterator<Item = (&'a str, &'a str)>) -> Verdict {
    let (rule, level) = match rules.statements {
        Statements::All => return Verdict::Pass,
        Statements::NoDdl => (Rule::StatementsNoDdl, "no_ddl"),
        Statements::ReadOnly => (Rule::StatementsReadOnly, "read_only"),
    };
    let refused = |name: &str, value: &str| match rules.statements {
        Statements::ReadOnly if opens_to_writes(name, value) => {
            Some("a setting that opens transactions to writes")
        }
        _ if loads_libraries(name, value) => Some("a setting that loads libraries"),
        _ => None,
    };
    let Some(what) = settings.find_map(|(name, value)| refused(name, value)) else { return Verdict::Pass };
    let message = format!("{what} is not allowed: statements is \"{level}\"");
    rules.broken(Rejection::new(rule, message, "Connect without it."))
}

/// The verdict on a Query message of so many bytes, which is too long to be held whole.
pub fn judge_long_query(rules: &Rules, bytes: usize) -> Verdict {
    match rules.simple_query {
        SimpleQuery::Allow => Verdict::Pass,
        SimpleQuery::Deny => rules.broken(denied().of_bytes(bytes)),
        level => rules.broken(too_long_at(level).of_bytes(bytes)),
    }
}

/// No byte of a multibyte character is below 0x80 in this client encoding, as ParameterStatus or a startup
/// packet names it. An encoding that is not known is not safe.
pub fn encoding_is_safe(name: &[u8]) -> bool {
    let name = alphanumeric(name);
    let begins = |prefixes: &[&[u8]]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let is = |names: &[&[u8]]| names.contains(&name.as_slice());
    is(&[
        b"utf8",
        b"unicode",
        b"sqlascii",
        b"muleinternal",
        b"koi8",
        b"koi8r",
        b"koi8u",
        b"win",
        b"alt",
        b"tcvn",
    ]) || is(&[b"eucjp", b"eucjis2004", b"euccn", b"euckr", b"euctw", b"tcvn5712", b"vscii", b"abc"])
        || begins(&[b"latin", b"iso8859", b"win12", b"windows12"])
        || is(&[b"win866", b"win874", b"windows866", b"windows874"])
}

/// Two of its characters, or forms of one, may be one in another encoding, or two of another's one in it: EUC_JP has the Roman numbers
/// twice, which UTF8 has once, and makes one bar of U+00A6 and U+FFE4; two letters of WIN1251 are one in WIN866. Of the encodings
/// of PostgreSQL that are safe otherwise no others of single bytes do that, nor UTF8 with those.
fn may_merge(name: &[u8]) -> bool {
    let name = alphanumeric(name);
    let is_win866 = [&b"win866"[..], b"windows866", b"alt"].contains(&name.as_slice());
    !encoding_is_safe(&name) || name.starts_with(b"euc") || name == b"muleinternal" || is_win866
}

/// As the server compares names of encodings: letters and digits only, in lower case.
fn alphanumeric(name: &[u8]) -> Vec<u8> {
    name.iter().filter(|b| b.is_ascii_alphanumeric()).take(32).map(u8::to_ascii_lowercase).collect()
}

/// The only character beyond ASCII that an encoding of single bytes has and whose lower case is ASCII.
const DOTTED_I: &[u8] = "\u{130}".as_bytes();

/// Its byte in this server encoding, as ParameterStatus names it. `None`: it has none, or the server folds nothing beyond ASCII
/// because a character may be several bytes. To SQL_ASCII all bytes are the locale's.
fn dotted_i(server_encoding: &[u8]) -> Option<u8> {
    match server_encoding {
        b"LATIN3" => Some(0xa9),
        b"LATIN5" | b"WIN1254" | b"SQL_ASCII" => Some(0xdd),
        _ => None,
    }
}

fn denied() -> Rejection {
    Rejection::new(
        Rule::SimpleQueryDeny,
        "the simple query protocol is not allowed: simple_query is \"deny\"".into(),
        "Use the extended query protocol; most drivers have a setting for it.",
    )
}

fn too_long_at(level: SimpleQuery) -> Rejection {
    let (level, max) = match level {
        SimpleQuery::Control => ("control", PARSED_BYTES_MAX),
        _ => ("single", STATEMENT_BYTES_MAX),
    };
    Rejection::new(
        Rule::StatementBytes,
        format!("query text is longer than {max} bytes: simple_query is \"{level}\""),
        "Use the extended query protocol.",
    )
}

fn many(rule: Rule, level: &str, count: usize) -> Rejection {
    Rejection::new(
        rule,
        format!("a Query message may hold only one statement: simple_query is \"{level}\""),
        "Send each statement in a message of its own.",
    )
    .detail(format!("The message holds {count} statements."))
}

/// `single`: a clear message if the text surely holds several statements. In all other cases the server decides.
fn refuse_many(text: &[u8], lexing: Lexing) -> Option<Rejection> {
    if is_surely_one(text, lexing) || hazard(text, lexing).is_some() || text.len() > PARSED_BYTES_MAX {
        return None;
    }
    match meaning::statement_count(text) {
        Ok(count) if count > 1 => Some(many(Rule::SimpleQuerySingle, "single", count)),
        _ => None,
    }
}

/// `control`: refuses anything but one statement that is known to be of an allowed kind.
fn refuse_but_control(text: &[u8], lexing: Lexing, readings: &mut Readings) -> Option<Rejection> {
    if is_plain_control(text) {
        return None;
    }
    if text.len() > PARSED_BYTES_MAX {
        return Some(too_long_at(SimpleQuery::Control));
    }
    if let Some(hazard) = hazard(text, lexing) {
        return Some(hazard.rejection(
            (Rule::ControlStrings, Rule::ControlEncoding),
            "simple_query is \"control\"",
            (
                "Set standard_conforming_strings to on, or use the extended query protocol.",
                "Set client_encoding to UTF8, or use the extended query protocol.",
            ),
        ));
    }
    let reading = readings.read(text);
    let statements = match reading.statements() {
        Ok(statements) => statements,
        Err(Unparsed::Syntax) => {
            return Some(Rejection::new(
                Rule::ControlUnparsed,
                "the statement could not be parsed: simple_query is \"control\"".into(),
                "Use the extended query protocol: there the server says what is wrong with it.",
            ));
        }
        Err(Unparsed::Tokens) => {
            return Some(Rejection::new(
                Rule::ControlTokens,
                too_many_tokens("simple_query is \"control\""),
                "Use the extended query protocol.",
            ));
        }
    };
    match statements {
        [] => None,
        [one] if one.kind.is_control() => None,
        [one] => Some(not_control(one.kind)),
        many_of_them => Some(many(Rule::SimpleQueryControl, "control", many_of_them.len())),
    }
}

/// Of a text that is not given to the parser.
fn too_many_tokens(reader: &str) -> String {
    format!(
        "the statement holds more than {TREE_TOKENS_MAX} tokens, names, keywords and operators counted {TREE_NAME_TOKENS} times: {reader}"
    )
}

fn not_control(kind: Kind) -> Rejection {
    Rejection::new(
        Rule::SimpleQueryControl,
        "a Query message may hold only transaction control or session state: simple_query is \"control\""
            .into(),
        "Use the extended query protocol for this statement.",
    )
    .detail(format!("The message holds {}.", kind.as_str()))
}

/// Why a text may not mean to the server what it means to the parser here. A text without backslashes reads the
/// same whatever `standard_conforming_strings` is, and a text in ASCII the same in every encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hazard {
    Strings,
    Encoding,
    Tag,
    Folding,
}

fn hazard(text: &[u8], lexing: Lexing) -> Option<Hazard> {
    if !lexing.std_strings && memchr(b'\\', text).is_some() {
        return Some(Hazard::Strings);
    }
    if !lexing.encoding_safe && !text.is_ascii() {
        return Some(Hazard::Encoding);
    }
    if lexing.may_end_early(text) {
        return Some(Hazard::Tag);
    }
    lexing.may_fold(text).then_some(Hazard::Folding)
}

impl Hazard {
    /// The rejection; `setting` is the one that needs the text to be read.
    fn rejection(self, rules: (Rule, Rule), setting: &str, hint: (&'static str, &'static str)) -> Rejection {
        match self {
            Self::Strings => Rejection::new(
                rules.0,
                format!("backslash while standard_conforming_strings is off: {setting}"),
                hint.0,
            ),
            Self::Encoding => Rejection::new(
                rules.1,
                format!("characters beyond ASCII in a client_encoding that hides ASCII bytes: {setting}"),
                hint.1,
            ),
            Self::Tag => Rejection::new(
                rules.1,
                format!(
                    "characters beyond ASCII in the tag of a dollar quote, which client_encoding and server_encoding may make those of another: {setting}"
                ),
                "Give the dollar quote a tag of ASCII, or none.",
            ),
            Self::Folding => Rejection::new(
                rules.1,
                format!("a letter in a name that the server_encoding may fold to one of ASCII: {setting}"),
                "Put names that hold a capital I with a dot in double quotes.",
            ),
        }
    }
}

/// Hot path. Surely one statement at most: no semicolon, or nothing but white space behind the first.
fn is_surely_one(text: &[u8], lexing: Lexing) -> bool {
    let Some(first) = memchr(b';', text) else { return true };
    if text[first..].iter().all(|&b| b == b';' || b.is_ascii_whitespace()) {
        return true;
    }
    let mut ended = false;
    for token in scan::scan(text, lexing.std_strings) {
        match token.kind {
            scan::Kind::Punctuation if text[token.start] == b';' => ended = true,
            scan::Kind::Junk | scan::Kind::Unterminated => return false,
            _ if ended => return false,
            _ => {}
        }
    }
    lexing.encoding_safe
}

/// Hot path. One of the bare commands that drivers send all day, and that nobody can read in two ways: `BEGIN`, `COMMIT`,
/// `START TRANSACTION`, `ROLLBACK WORK` ... Each of them is what the parser would read, too.
fn is_plain_control(text: &[u8]) -> bool {
    let mut words = text.strip_suffix(b";").unwrap_or(text).split(|&b| b == b' ');
    let (Some(first), second, None) = (words.next(), words.next(), words.next()) else { return false };
    let is = |word: &[u8], known: &[&str]| known.iter().any(|k| word.eq_ignore_ascii_case(k.as_bytes()));
    match second {
        Some(second) if is(first, &["start"]) => is(second, &["transaction"]),
        Some(second) if !is(second, &["work", "transaction"]) => false,
        _ => is(first, &["begin", "commit", "end", "rollback", "abort"]),
    }
}

#[cfg(test)]
mod tests;
