//! What a configuration lets through, shown before anything runs: `pgsluice check --policy`.
//!
//! Owns: the table of representative messages, the verdict on one text, the question to a server whether it agrees. Never:
//! a rule (it asks the same functions that a session asks), a change on a server that stays: what is run there is rolled
//! back.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use crate::auth::Credential;
use crate::client::login;
use crate::error;
use crate::net::Connector;
use crate::policy::texts::{self, Readings};
use crate::policy::{self, Lexing, Rejection, Rules, Verdict};
use crate::pool::PoolKey;
use crate::proto::prepared::Statement;
use crate::proto::vars::Vars;
use crate::server::ServerConn;
use crate::server::connect::connect;
use crate::server::internal::{Lost, Reply};
use crate::settings::{AllowListMode, Settings, SimpleQuery, Statements, Switch};
use crate::sql::meaning::Kind;
use crate::sql::verbs::{self, Class, Found};
use crate::wire::backend::ErrorFields;

/// How a session reads that has changed nothing.
const PLAIN: Lexing = Lexing::PLAIN;

/// Most combinations of user, database and network that are printed.
const LINES_MAX: usize = 10_000;

/// Longest that a statement may run with `--live`.
const LIVE_TIMEOUT: &str = "10s";

/// Who would send it, and from where.
#[derive(Debug, Clone, Default)]
pub struct Sender {
    /// The user who logs in.
    pub user: String,
    /// The database asked for.
    pub database: String,
    /// The address; `None`: over the Unix socket.
    pub ip: Option<IpAddr>,
}

/// One row of the table of representative messages.
struct Sample {
    what: &'static str,
    text: &'static str,
}

/// What each set of rules is asked about.
const SAMPLES: &[Sample] = &[
    Sample { what: "one statement that reads", text: "SELECT 1" },
    Sample { what: "several statements", text: "SELECT 1; SELECT 2" },
    Sample { what: "BEGIN", text: "BEGIN" },
    Sample { what: "SET", text: "SET work_mem = '1MB'" },
    Sample { what: "BEGIN READ WRITE", text: "BEGIN READ WRITE" },
    Sample { what: "a write", text: "INSERT INTO t VALUES (1)" },
    Sample { what: "a write inside a read", text: "WITH w AS (DELETE FROM t RETURNING a) SELECT * FROM w" },
    Sample { what: "a read that locks", text: "SELECT * FROM t FOR UPDATE" },
    Sample { what: "PREPARE", text: "PREPARE p AS SELECT 1" },
    Sample { what: "EXECUTE", text: "EXECUTE p" },
    Sample { what: "DEALLOCATE", text: "DEALLOCATE p" },
    Sample { what: "COPY out", text: "COPY t TO STDOUT" },
    Sample { what: "COPY in", text: "COPY t FROM STDIN" },
    Sample { what: "COPY with a program", text: "COPY t TO PROGRAM 'cat'" },
    Sample { what: "CALL", text: "CALL p()" },
    Sample { what: "DO", text: "DO 'BEGIN END'" },
    Sample { what: "data definition", text: "CREATE TABLE t (a int)" },
    Sample { what: "what cannot be parsed", text: "SELEC 1" },
];

/// The effective rules of every user, database and network that the file names, and of all others, and what they pass.
pub fn overview(settings: &Settings) -> String {
    let mut groups: Vec<(Rules, Vec<String>)> = Vec::new();
    let mut left_out = 0;
    for (line, rules) in combinations(settings) {
        match groups.iter_mut().find(|(known, _)| *known == rules) {
            Some((_, lines)) if lines.len() < LINES_MAX => lines.push(line),
            Some(_) => left_out += 1,
            None => groups.push((rules, vec![line])),
        }
    }
    let mut out = String::new();
    for (at, (rules, lines)) in groups.iter().enumerate() {
        let _ = writeln!(out, "{}Rules {} of {}", if at == 0 { "" } else { "\n" }, at + 1, groups.len());
        for line in lines {
            let _ = writeln!(out, "  for {line}");
        }
        levels(&mut out, rules);
        samples(&mut out, rules);
    }
    if left_out > 0 {
        let _ =
            writeln!(out, "\n{left_out} combinations more are not shown; each has one of the rules above.");
    }
    out.push_str(
        "\n(1) one statement is made sure of by the server: the text is sent on as one Parse.\n\
         Functions, DO bodies and what the server itself runs are not seen: docs/policy.md.\n",
    );
    out
}

/// Every user, database and network that is named, and one that is not.
fn combinations(settings: &Settings) -> Vec<(String, Rules)> {
    let mut users: Vec<Option<&String>> = settings.users.keys().map(Some).collect();
    users.sort();
    users.push(None);
    let mut databases: Vec<Option<&String>> = settings.databases.keys().map(Some).collect();
    if settings.fallback.is_some() {
        databases.push(None);
    }
    let nowhere = Settings { networks: Vec::new(), ..settings.clone() };
    let mut all = Vec::new();
    for user in users {
        for database in &databases {
            let key = PoolKey::new(
                database.cloned().unwrap_or_else(|| unnamed(|name| settings.databases.contains_key(name))),
                user.cloned().unwrap_or_else(|| unnamed(|name| settings.users.contains_key(name))),
            );
            let who = |from: &str| {
                let quoted = |name: Option<&String>, other: &str| {
                    name.map_or_else(|| other.to_owned(), |name| format!("\"{}\"", name.escape_default()))
                };
                let database = quoted(*database, "any other");
                format!("user {}, database {database}, from {from}", quoted(user, "any other"))
            };
            for network in &settings.networks {
                let ip = network.address.map(|(ip, _)| ip);
                all.push((who(&network.name), login::rules(settings, &key, ip)));
            }
            let elsewhere = if settings.networks.is_empty() { "anywhere" } else { "anywhere else" };
            all.push((who(elsewhere), login::rules(&nowhere, &key, None)));
        }
    }
    all
}

/// A name that nobody has.
fn unnamed(taken: impl Fn(&str) -> bool) -> String {
    let mut name = String::from("other");
    while taken(&name) {
        name.push('_');
    }
    name
}

fn levels(out: &mut String, rules: &Rules) {
    let switch = |switch| match switch {
        Switch::Allow => "allow",
        Switch::Deny => "deny",
    };
    let simple_query = match rules.simple_query() {
        SimpleQuery::Allow => "allow",
        SimpleQuery::Single => "single",
        SimpleQuery::Control => "control",
        SimpleQuery::Deny => "deny",
    };
    let statements = match rules.statements() {
        Statements::All => "all",
        Statements::NoDdl => "no_ddl",
        Statements::ReadOnly => "read_only",
    };
    let allow_list = match rules.allow_list() {
        AllowListMode::Off => "off",
        AllowListMode::Learn => "learn",
        AllowListMode::Report => "report",
        AllowListMode::Reject => "reject",
    };
    let enforce = if rules.rejects() { "reject" } else { "report" };
    for (name, value) in [
        ("simple_query", simple_query),
        ("function_call", switch(rules.function_call())),
        ("sql_prepare", switch(rules.sql_prepare())),
        ("replication", switch(rules.replication())),
        ("statements", statements),
        ("allow_list", allow_list),
        ("enforce", enforce),
    ] {
        let _ = writeln!(out, "    {name} = \"{value}\"");
    }
    for list in rules.lists() {
        let _ = writeln!(out, "    # {}: {} statements", list.file.display(), list.prints.len());
    }
}

fn samples(out: &mut String, rules: &Rules) {
    let _ = writeln!(out, "    {:<26} {:<46} as Parse", "", "as Query");
    let mut readings = Readings::default();
    for Sample { what, text } in SAMPLES {
        let [query, parse] = both(rules, text.as_bytes(), &mut readings).map(|verdict| word(&verdict));
        let _ = writeln!(out, "    {what:<26} {query:<46} {parse}");
    }
    for (what, verdict) in [
        ("FunctionCall", policy::judge_function_call(rules)),
        ("replication connection", policy::judge_replication(rules)),
    ] {
        let _ = writeln!(out, "    {what:<26} {}", word(&verdict));
    }
}

/// What becomes of a text as Query and as Parse.
fn both(rules: &Rules, text: &[u8], readings: &mut Readings) -> [Verdict; 2] {
    let parse = texts::judge_text(rules, text, PLAIN, texts::Unseen::default(), readings).verdict;
    let query = match policy::judge_query(rules, text, PLAIN, readings) {
        passes @ (Verdict::Pass | Verdict::Single) => match &parse {
            Verdict::Pass => passes,
            other => other.clone(),
        },
        reported @ Verdict::Report(_) if !matches!(parse, Verdict::Reject(_)) => reported,
        Verdict::Report(_) => parse.clone(),
        refused => refused,
    };
    [query, parse]
}

fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Pass => "passes".into(),
        Verdict::Single => "passes (1)".into(),
        Verdict::Reject(rejection) => format!("refused: {}", rejection.rule),
        Verdict::Report(rejection) => format!("passes, reported: {}", rejection.rule),
    }
}

/// The verdict on `text`, as Query and as Parse, with what the client would be told.
pub fn verdict(settings: &Settings, sender: &Sender, text: &str) -> String {
    let rules = rules_of(settings, sender);
    let mut out = String::new();
    if settings.database(&sender.database).is_none() {
        let _ = writeln!(
            out,
            "No [databases] entry serves \"{}\": nobody gets that far.",
            sender.database.escape_default()
        );
    }
    let [query, parse] = both(&rules, text.as_bytes(), &mut Readings::default());
    for (message, verdict) in [("Query", query), ("Parse", parse)] {
        let _ = writeln!(out, "as {message}: {}", word(&verdict));
        if let Verdict::Reject(rejection) | Verdict::Report(rejection) = &verdict {
            explain(&mut out, rejection);
        }
    }
    match verbs::statements(text.as_bytes()) {
        Ok(found) => {
            let _ = writeln!(out, "PostgreSQL's parser counts {}.", statements(found.len()));
            for found in &found {
                let _ =
                    writeln!(out, "  {}: {}{}", found.kind.as_str(), found.class.as_str(), because(found));
            }
        }
        Err(unparsed) => {
            let _ = writeln!(out, "PostgreSQL's parser: {unparsed}.");
        }
    }
    for named in verbs::names(text.as_bytes()).unwrap_or_default().into_iter().flatten() {
        let _ = writeln!(out, "  in an allow-list: {} # {}", named.print, named.remark);
    }
    out
}

fn rules_of(settings: &Settings, sender: &Sender) -> Rules {
    let key = PoolKey::new(sender.database.clone(), sender.user.clone());
    login::rules(settings, &key, sender.ip)
}

fn statements(count: usize) -> String {
    if count == 1 { "1 statement".into() } else { format!("{count} statements") }
}

fn because(found: &Found) -> String {
    found.because.map(|because| format!(", with {because}")).unwrap_or_default()
}

fn explain(out: &mut String, rejection: &Rejection) {
    let _ = writeln!(out, "  {}: {}", error::Kind::PolicyRefused.sqlstate(), rejection.message);
    if let Some(detail) = &rejection.detail {
        let _ = writeln!(out, "  DETAIL: {detail}");
    }
    let _ = writeln!(out, "  HINT: {}", rejection.advice());
}

/// Asks the configured server how many statements it counts in `text`, and, where it is one that a transaction can take
/// back, runs it in a transaction that is rolled back. Only what would pass as Parse is asked about.
///
/// Cancel safety: the server connection is closed, and the transaction rolled back with it.
///
/// # Errors
/// The server cannot be asked; why.
pub async fn live(settings: &Settings, sender: &Sender, text: &str) -> Result<String, String> {
    let rules = rules_of(settings, sender);
    let [_, parse] = both(&rules, text.as_bytes(), &mut Readings::default());
    if matches!(parse, Verdict::Reject(_)) {
        return Ok("live: not tried, because the policy refuses it.\n".into());
    }
    let mut server = log_in(settings, sender).await?;
    let asked = |reply: Result<Reply, Lost>| reply.map_err(|lost| lost.why);
    for ours in ["BEGIN".to_owned(), format!("SET LOCAL statement_timeout = '{LIVE_TIMEOUT}'")] {
        if let Some(body) = asked(server.simple(&ours).await)?.error {
            return Err(said(&body));
        }
    }
    let statement = Statement::own(text);
    let mut out = String::new();
    let parsed = asked(server.describe_anew(&statement).await)?;
    let refused = parsed.error.as_deref().map(said);
    match &refused {
        None => {
            out.push_str("live: the server counts one statement at most; it took the text as one Parse.\n")
        }
        Some(error) => {
            let _ = writeln!(out, "live: the server refuses the text as one Parse: {error}");
        }
    }
    let takes_values = parsed.param_types.is_some_and(|types| !types.is_empty());
    match verbs::statements(text.as_bytes()).as_deref() {
        _ if refused.is_some() => {}
        Ok([]) => out.push_str("live: not run, because there is no statement in it.\n"),
        Ok([_]) if takes_values => {
            out.push_str("live: not run, because nobody has said values for its parameters.\n")
        }
        Ok([Found { kind: Kind::Copy, .. }]) => {
            out.push_str("live: not run, because there is nobody whose rows a COPY could take or give.\n")
        }
        Ok([found]) if may_be_run(found) => {
            let reply = asked(server.prepared(&statement, &[], 1).await)?;
            let outcome = match &reply.error {
                Some(body) => said(body),
                None => {
                    reply.tags.last().map(|tag| String::from_utf8_lossy(tag).into_owned()).unwrap_or_default()
                }
            };
            let _ = writeln!(
                out,
                "live: run in a transaction that was rolled back: {}",
                outcome.trim_end_matches('\0')
            );
        }
        _ => out.push_str("live: not run, because a transaction could not take it back.\n"),
    }
    asked(server.simple("ROLLBACK").await)?;
    Ok(out)
}

/// A ROLLBACK behind it takes back what it did (but sequences go on, as they always do).
fn may_be_run(found: &Found) -> bool {
    matches!(found.class, Class::Session | Class::Read | Class::Write | Class::Definition)
        && !matches!(found.kind, Kind::TwoPhase | Kind::Begin | Kind::Call)
}

async fn log_in(settings: &Settings, sender: &Sender) -> Result<ServerConn, String> {
    let Some(database) = settings.database(&sender.database) else {
        return Err(format!("no [databases] entry serves \"{}\"", sender.database.escape_default()));
    };
    let key = PoolKey::new(sender.database.clone(), sender.user.clone());
    let credential = settings.userlist.get(&sender.user).map_or(Credential::None, Credential::from_secret);
    let tls = Connector::new(&settings.general.server_tls).map_err(|e| e.to_string())?;
    let target = login::pool_target(settings, tls, database, &key, credential);
    let found =
        connect(&target, &[], settings.general.server_connect_timeout).await.map_err(|e| e.to_string())?;
    let none = Vars::default().intern(std::iter::empty());
    Ok(ServerConn::new(found, Arc::new(target), None, none, 0))
}

/// An ErrorResponse in one line.
fn said(body: &[u8]) -> String {
    let fields = ErrorFields::new(body);
    let message = String::from_utf8_lossy(fields.field(b'M').unwrap_or_default()).into_owned();
    format!("{message} ({})", String::from_utf8_lossy(fields.sqlstate()))
}
