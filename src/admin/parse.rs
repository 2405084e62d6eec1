//! The console's grammar: a text in, a [`Command`] out.
//!
//! Owns: PgBouncer's commands and ours, and who may say them. Never: does any of them. Words are matched
//! without case, names are not folded (as in PgBouncer), a `;` may end the text, comments count as space.

use super::{COMMAND_BYTES_MAX, PARAMETERS, Refusal};
use crate::config;

/// One thing said to the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Nothing but space: EmptyQueryResponse.
    Empty,
    /// `SHOW what`
    Show(Show),
    /// `SHOW name` of a session parameter, for drivers that ask: its index in [`PARAMETERS`].
    ShowParameter(usize),
    /// `SELECT 1`, the way a connection pool asks whether we live.
    SelectOne,
    /// `SELECT version()`
    SelectVersion,
    /// `SET name = value` of a session parameter, for drivers that do: ignored, with a notice.
    SetParameter,
    /// `SET key = value` of a setting of PgBouncer's that has no effect here: the notice that says so.
    SetIgnored(String),
    /// BEGIN, COMMIT, ROLLBACK of drivers that frame everything: nothing to do, with a warning.
    Transaction(&'static str),
    /// `DISCARD ALL` and `DEALLOCATE ALL`: the console's own prepared statements go.
    Discard(&'static str),
    /// Changes something; see [`Action`].
    Act(Action),
}

/// A command that changes the running proxy, or waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// `PAUSE [db]`: wait until servers are free, close them; clients queue. `None`: all databases.
    Pause(Option<String>),
    /// `RESUME [db]`
    Resume(Option<String>),
    /// `DISABLE db`: refuse new clients.
    Disable(String),
    /// `ENABLE db`
    Enable(String),
    /// `RECONNECT [db]`: replace server connections as they become free.
    Reconnect(Option<String>),
    /// `KILL [db]`: drop clients and servers now; the database is paused then.
    Kill(Option<String>),
    /// `KILL_CLIENT id`: by the `id` of SHOW CLIENTS.
    KillClient(u64),
    /// `SUSPEND`: flush and freeze all traffic. Refused.
    Suspend,
    /// `RELOAD`: read the files again.
    Reload,
    /// `SET key = value`: a setting of `[general]`.
    Set {
        /// As written.
        key: String,
        /// As written, unquoted.
        value: String,
    },
    /// `SHUTDOWN [WAIT_FOR_SERVERS | WAIT_FOR_CLIENTS]`
    Shutdown(Shutdown),
    /// `WAIT_CLOSE [db]`: return when RECONNECT has finished.
    WaitClose(Option<String>),
    /// `FLUSH [table]`: send what lanes hold, and wait for it. Ours.
    Flush(Option<String>),
}

/// How SHUTDOWN ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Now.
    Now,
    /// Accept no one; exit when servers are released.
    WaitForServers,
    /// Accept no one; exit when clients are gone.
    WaitForClients,
}

macro_rules! shows {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// What SHOW can show.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Show {
            $($(#[$doc])* $name,)*
        }

        impl Show {
            /// All of them, in the order of SHOW HELP.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

/// The word after SHOW, in lower case.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

shows! {
    /// A notice that lists the commands.
    Help = "help",
    /// Settings, their defaults, and whether a reload changes them.
    Config = "config",
    /// Databases and their limits.
    Databases = "databases",
    /// One row for each (database, user).
    Pools = "pools",
    /// Client connections.
    Clients = "clients",
    /// Server connections.
    Servers = "servers",
    /// Client connections and server connections.
    Sockets = "sockets",
    /// Those of them that are at work.
    ActiveSockets = "active_sockets",
    /// Users and their limits.
    Users = "users",
    /// Our version.
    Version = "version",
    /// Counts of things.
    Lists = "lists",
    /// Bytes held, by kind.
    Mem = "mem",
    /// active, paused or suspended.
    State = "state",
    /// Processes that share an address.
    Peers = "peers",
    /// Cancel requests on their way to them.
    PeerPools = "peer_pools",
    /// Names kept with their addresses: none.
    DnsHosts = "dns_hosts",
    /// Zones watched: none.
    DnsZones = "dns_zones",
    /// Totals and averages by database.
    Stats = "stats",
    /// Totals by database.
    StatsTotals = "stats_totals",
    /// Averages by database.
    StatsAverages = "stats_averages",
    /// Totals and averages over all.
    Totals = "totals",
    /// Lanes: what is being poured. Ours.
    Coalesce = "coalesce",
    /// Tables: what may be poured, and why not. Ours.
    CoalesceTables = "coalesce_tables",
    /// Flushes of late, and whose rows they held. Ours.
    CoalesceFlushes = "coalesce_flushes",
    /// Rules of the policy: how often each was met. Ours.
    Policy = "policy",
    /// Where audit events go, and how many were lost. Ours.
    Audit = "audit",
}

/// What PgBouncer shows and we do not: file descriptors for a process that takes over, with its clients' secrets.
const NOT_SHOWN: &[&str] = &["fds"];

/// Parameters that drivers set on any connection without asking who is there. Also those of [`PARAMETERS`].
const SET_IGNORED: &[&str] = &["application_name", "extra_float_digits", "statement_timeout", "search_path"];

/// The rights of the client that asks, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Neither of the lists: no business here.
    Other,
    /// In `stats_users`: looks, changes nothing.
    Stats,
    /// In `admin_users`.
    Admin,
}

impl Command {
    /// The authorisation table: the least role that may say this. Matched without a wildcard, so that a new
    /// command has no role by accident.
    pub fn least_role(&self) -> Role {
        match self {
            Self::Empty => Role::Stats,
            Self::Show(show) => match show {
                Show::Help | Show::Version | Show::State => Role::Stats,
                Show::Config | Show::Databases | Show::Users => Role::Stats,
                Show::Pools | Show::Clients | Show::Servers => Role::Stats,
                Show::Sockets | Show::ActiveSockets => Role::Stats,
                Show::Lists | Show::Mem => Role::Stats,
                Show::Peers | Show::PeerPools | Show::DnsHosts | Show::DnsZones => Role::Stats,
                Show::Stats | Show::StatsTotals | Show::StatsAverages | Show::Totals => Role::Stats,
                Show::Coalesce | Show::CoalesceTables | Show::CoalesceFlushes => Role::Stats,
                Show::Policy | Show::Audit => Role::Stats,
            },
            Self::ShowParameter(_) | Self::SelectOne | Self::SelectVersion => Role::Stats,
            Self::SetIgnored(_) => Role::Admin,
            Self::SetParameter | Self::Transaction(_) | Self::Discard(_) => Role::Stats,
            Self::Act(action) => match action {
                Action::Pause(_) | Action::Resume(_) | Action::Suspend => Role::Admin,
                Action::Disable(_) | Action::Enable(_) => Role::Admin,
                Action::Reconnect(_) | Action::WaitClose(_) => Role::Admin,
                Action::Kill(_) | Action::KillClient(_) => Role::Admin,
                Action::Reload | Action::Set { .. } => Role::Admin,
                Action::Shutdown(_) => Role::Admin,
                Action::Flush(_) => Role::Admin,
            },
        }
    }

    /// 42501 unless `role` may say this.
    pub fn authorise(&self, role: Role) -> Result<(), Refusal> {
        if role >= self.least_role() {
            return Ok(());
        }
        let setting = if self.least_role() == Role::Admin { "admin_users" } else { "stats_users" };
        Err(Refusal::new("42501", format!("permission denied: the user is not in {setting}")))
    }
}

impl Action {
    /// CommandComplete's tag, as PgBouncer says it.
    pub fn tag(&self) -> &'static str {
        match self {
            Self::Pause(_) => "PAUSE",
            Self::Resume(_) => "RESUME",
            Self::Disable(_) => "DISABLE",
            Self::Enable(_) => "ENABLE",
            Self::Reconnect(_) => "RECONNECT",
            Self::Kill(_) => "KILL",
            Self::KillClient(_) => "KILL_CLIENT",
            Self::Suspend => "SUSPEND",
            Self::Reload => "RELOAD",
            Self::Set { .. } => "SET",
            Self::Shutdown(_) => "SHUTDOWN",
            Self::WaitClose(_) => "WAIT_CLOSE",
            Self::Flush(_) => "FLUSH",
        }
    }

    /// Does it hold before it is answered, for as long as others take?
    pub fn waits(&self) -> bool {
        matches!(self, Self::Pause(_) | Self::Kill(_) | Self::WaitClose(_) | Self::Flush(_))
    }

    /// What the log says of it: the tag, and whom or what it is about.
    pub fn logged(&self) -> String {
        let about = match self {
            Self::Pause(name)
            | Self::Resume(name)
            | Self::Reconnect(name)
            | Self::Kill(name)
            | Self::WaitClose(name)
            | Self::Flush(name) => name.clone(),
            Self::Disable(name) | Self::Enable(name) => Some(name.clone()),
            Self::KillClient(id) => Some(id.to_string()),
            // A directory's options may hold a password.
            Self::Set { key, .. } if key == "auth_ldap_options" => Some(key.clone()),
            Self::Set { key, value } => Some(format!("{key} = {value}")),
            Self::Shutdown(Shutdown::WaitForServers) => Some("WAIT_FOR_SERVERS".to_owned()),
            Self::Shutdown(Shutdown::WaitForClients) => Some("WAIT_FOR_CLIENTS".to_owned()),
            Self::Suspend | Self::Reload | Self::Shutdown(Shutdown::Now) => None,
        };
        about.map_or_else(|| self.tag().to_owned(), |about| format!("{} {about}", self.tag()))
    }
}

/// Understands one text of the console. Errors: 42601 (not our grammar), 22023 (a value that can't be),
/// 0A000 (PgBouncer's, not ours), 54000 (longer than [`COMMAND_BYTES_MAX`]).
pub fn parse(text: &[u8]) -> Result<Command, Refusal> {
    if text.len() > COMMAND_BYTES_MAX {
        let message = format!("command is longer than {COMMAND_BYTES_MAX} bytes");
        return Err(Refusal::new("54000", message));
    }
    let text = std::str::from_utf8(text).map_err(|_| Refusal::new("22021", "command is not valid UTF-8"))?;
    let mut tokens = tokens(text).ok_or_else(unquoted)?;
    if tokens.last() == Some(&Token::Sign(';')) {
        tokens.pop();
    }
    let Some((first, rest)) = tokens.split_first() else { return Ok(Command::Empty) };
    command(&first.word().ok_or_else(syntax)?.to_ascii_lowercase(), rest)
}

fn command(word: &str, rest: &[Token]) -> Result<Command, Refusal> {
    let act = |action| Ok(Command::Act(action));
    match word {
        "show" => show(rest),
        "select" => select(rest),
        "set" => set(rest),
        "pause" => act(Action::Pause(optional(rest)?)),
        "resume" => act(Action::Resume(optional(rest)?)),
        "disable" => act(Action::Disable(required(rest)?)),
        "enable" => act(Action::Enable(required(rest)?)),
        "reconnect" => act(Action::Reconnect(optional(rest)?)),
        "kill" => act(Action::Kill(optional(rest)?)),
        "kill_client" => act(Action::KillClient(client_id(rest)?)),
        "suspend" => none(rest).and(act(Action::Suspend)),
        "reload" => none(rest).and(act(Action::Reload)),
        "shutdown" => act(Action::Shutdown(shutdown(rest)?)),
        "wait_close" => act(Action::WaitClose(optional(rest)?)),
        "flush" => act(Action::Flush(table(rest)?)),
        "begin" => Ok(Command::Transaction("BEGIN")),
        "commit" => none(rest).and(Ok(Command::Transaction("COMMIT"))),
        "rollback" => none(rest).and(Ok(Command::Transaction("ROLLBACK"))),
        "discard" if is_all(rest) => Ok(Command::Discard("DISCARD ALL")),
        "deallocate" if is_all(rest) => Ok(Command::Discard("DEALLOCATE ALL")),
        _ => Err(syntax()),
    }
}

fn show(rest: &[Token]) -> Result<Command, Refusal> {
    let word = required(rest).map_err(|_| syntax())?.to_ascii_lowercase();
    if let Some(show) = Show::ALL.iter().find(|s| s.word() == word) {
        return Ok(Command::Show(*show));
    }
    if let Some(i) = PARAMETERS.iter().position(|(name, _)| name.eq_ignore_ascii_case(&word)) {
        return Ok(Command::ShowParameter(i));
    }
    if NOT_SHOWN.contains(&word.as_str()) {
        return Err(Refusal::new("0A000", format!("SHOW {} is not supported", word.to_ascii_uppercase())));
    }
    Err(syntax())
}

/// PgBouncer answers `SELECT what` as `SHOW what`; two probes are answered as PostgreSQL would.
fn select(rest: &[Token]) -> Result<Command, Refusal> {
    match rest {
        [Token::Word(one)] if one == "1" => Ok(Command::SelectOne),
        [Token::Word(f), Token::Sign('('), Token::Sign(')')] if f.eq_ignore_ascii_case("version") => {
            Ok(Command::SelectVersion)
        }
        _ => show(rest),
    }
}

fn set(rest: &[Token]) -> Result<Command, Refusal> {
    let [key, sign, value @ ..] = rest else { return Err(syntax()) };
    // As SHOW CONFIG writes those of the other sections.
    if *sign == Token::Sign('.') {
        let refusal = Refusal::new("0A000", "SET changes the keys of [general] only");
        return Err(refusal.hint("Set it in the configuration file, then RELOAD."));
    }
    let is_to = sign.word().is_some_and(|w| w.eq_ignore_ascii_case("to"));
    if *sign != Token::Sign('=') && !is_to {
        return Err(syntax());
    }
    let key = key.name().ok_or_else(syntax)?.to_owned();
    let value = match value {
        [Token::Text(value)] => value.clone(),
        // As SHOW CONFIG shows parts of a second.
        [Token::Word(whole), Token::Sign('.'), Token::Word(part)] => format!("{whole}.{part}"),
        [value] => value.name().ok_or_else(unquoted)?.to_owned(),
        _ => return Err(unquoted()),
    };
    let named = |name: &str| name.eq_ignore_ascii_case(&key);
    if PARAMETERS.iter().any(|(name, _)| named(name)) || SET_IGNORED.iter().any(|name| named(name)) {
        return Ok(Command::SetParameter);
    }
    let key = key.to_ascii_lowercase();
    if let Some(why) = config::ignored(&key) {
        return Ok(Command::SetIgnored(format!("{key}: {why}")));
    }
    Ok(Command::Act(Action::Set { key, value }))
}

fn shutdown(rest: &[Token]) -> Result<Shutdown, Refusal> {
    match optional(rest)?.map(|w| w.to_ascii_lowercase()).as_deref() {
        None => Ok(Shutdown::Now),
        Some("wait_for_servers") => Ok(Shutdown::WaitForServers),
        Some("wait_for_clients") => Ok(Shutdown::WaitForClients),
        Some(_) => Err(syntax()),
    }
}

fn client_id(rest: &[Token]) -> Result<u64, Refusal> {
    let id = required(rest)?;
    id.parse().map_err(|_| {
        Refusal::new("22023", "invalid client id").hint("The id is a column of SHOW CLIENTS; it is a number.")
    })
}

/// A table's name: one word, or `schema.table`.
fn table(rest: &[Token]) -> Result<Option<String>, Refusal> {
    match rest {
        [schema, Token::Sign('.'), table] => match (schema.name(), table.name()) {
            (Some(schema), Some(table)) => Ok(Some(format!("{schema}.{table}"))),
            _ => Err(syntax()),
        },
        _ => optional(rest),
    }
}

fn is_all(rest: &[Token]) -> bool {
    matches!(rest, [Token::Word(all)] if all.eq_ignore_ascii_case("all"))
}

fn none(rest: &[Token]) -> Result<(), Refusal> {
    if rest.is_empty() { Ok(()) } else { Err(syntax()) }
}

fn optional(rest: &[Token]) -> Result<Option<String>, Refusal> {
    if rest.is_empty() { Ok(None) } else { required(rest).map(Some) }
}

fn required(rest: &[Token]) -> Result<String, Refusal> {
    match rest {
        [] => Err(Refusal::new("42601", "an argument is required").hint("Use SHOW HELP.")),
        [one] => one.name().map(str::to_owned).ok_or_else(syntax),
        _ => Err(syntax()),
    }
}

fn syntax() -> Refusal {
    // The text is not repeated: it may hold a secret (SET ...), and errors are logged.
    Refusal::new("42601", "invalid command").hint("Use SHOW HELP.")
}

/// What only quotes make one word.
fn unquoted() -> Refusal {
    syntax().hint("Use SHOW HELP. What has more than letters, digits and _ stands in quotes: a name in double ones, a value in single ones.")
}

// ===== tokens =====

#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// Letters, digits and `_`.
    Word(String),
    /// In double quotes.
    Quoted(String),
    /// In single quotes.
    Text(String),
    /// `;` `=` `(` `)` `.`
    Sign(char),
}

impl Token {
    fn word(&self) -> Option<&str> {
        if let Self::Word(word) | Self::Quoted(word) = self { Some(word) } else { None }
    }

    /// A word that names something: not empty.
    fn name(&self) -> Option<&str> {
        self.word().filter(|word| !word.is_empty())
    }
}

/// `None`: a quote or comment without its end, or a byte the grammar does not have.
fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = space(rest)?;
        let Some(first) = rest.chars().next() else { return Some(tokens) };
        let (token, after) = match first {
            ';' | '=' | '(' | ')' | '.' => (Token::Sign(first), &rest[1..]),
            '"' => quoted(rest, '"').map(|(word, after)| (Token::Quoted(word), after))?,
            '\'' => quoted(rest, '\'').map(|(text, after)| (Token::Text(text), after))?,
            _ => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                if end == 0 {
                    return None;
                }
                (Token::Word(rest[..end].to_owned()), &rest[end..])
            }
        };
        tokens.push(token);
        rest = after;
    }
}

/// What follows space and comments.
fn space(mut rest: &str) -> Option<&str> {
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        if rest.starts_with("--") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = &rest[rest[2..].find("*/")? + 4..];
        } else {
            return Some(rest);
        }
    }
}

/// The text between two `quote`s, a doubled one standing for itself, and what follows.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut word = String::new();
    let mut rest = &text[1..];
    loop {
        let end = rest.find(quote)?;
        word.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        if !rest.starts_with(quote) {
            return Some((word, rest));
        }
        word.push(quote);
        rest = &rest[1..];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn act(action: Action) -> Option<Command> {
        Some(Command::Act(action))
    }

    #[test]
    fn each_text_is_its_command_or_refused() {
        let db = || Some("app".to_owned());
        let set = |key: &str, value: &str| act(Action::Set { key: key.into(), value: value.into() });
        for (text, expected) in [
            ("", Some(Command::Empty)),
            (" ; ", Some(Command::Empty)),
            ("SHOW POOLS", Some(Command::Show(Show::Pools))),
            ("show \"pools\" ;", Some(Command::Show(Show::Pools))),
            ("\tsHoW\nStats_Totals;\n", Some(Command::Show(Show::StatsTotals))),
            ("/* who */ show -- what\n version", Some(Command::Show(Show::Version))),
            ("select lists", Some(Command::Show(Show::Lists))),
            ("SELECT 1", Some(Command::SelectOne)),
            ("select version()", Some(Command::SelectVersion)),
            ("show client_encoding", Some(Command::ShowParameter(2))),
            ("SHOW TimeZone", Some(Command::ShowParameter(6))),
            ("set client_encoding to 'UTF8'", Some(Command::SetParameter)),
            ("SET extra_float_digits = 3", Some(Command::SetParameter)),
            ("set query_timeout = 5", set("query_timeout", "5")),
            ("SET Query_Timeout='5';", set("query_timeout", "5")),
            ("set busy_poll = 0.0005", set("busy_poll", "0.0005")),
            ("set server_reset_query to 'select ''x'''", set("server_reset_query", "select 'x'")),
            ("set server_check_query = ''", set("server_check_query", "")),
            ("pause", act(Action::Pause(None))),
            ("PAUSE app;", act(Action::Pause(db()))),
            ("pause \"A \"\"b\"\"\"", act(Action::Pause(Some("A \"b\"".into())))),
            ("pause App", act(Action::Pause(Some("App".into())))),
            ("resume", act(Action::Resume(None))),
            ("disable app", act(Action::Disable("app".into()))),
            ("enable app", act(Action::Enable("app".into()))),
            ("reconnect app", act(Action::Reconnect(db()))),
            ("kill app", act(Action::Kill(db()))),
            ("kill", act(Action::Kill(None))),
            ("kill_client 42", act(Action::KillClient(42))),
            ("suspend", act(Action::Suspend)),
            ("reload;", act(Action::Reload)),
            ("shutdown", act(Action::Shutdown(Shutdown::Now))),
            ("shutdown wait_for_servers", act(Action::Shutdown(Shutdown::WaitForServers))),
            ("SHUTDOWN WAIT_FOR_CLIENTS", act(Action::Shutdown(Shutdown::WaitForClients))),
            ("wait_close", act(Action::WaitClose(None))),
            ("flush", act(Action::Flush(None))),
            ("flush public.t", act(Action::Flush(Some("public.t".into())))),
            ("flush \"public.t\"", act(Action::Flush(Some("public.t".into())))),
            ("begin", Some(Command::Transaction("BEGIN"))),
            ("discard all", Some(Command::Discard("DISCARD ALL"))),
            ("disable", None),
            ("enable", None),
            ("show", None),
            ("show nothing", None),
            ("show pools clients", None),
            ("show pools; show clients", None),
            ("show pools;;", None),
            ("pause \"\"", None),
            ("pause 'app'", None),
            ("reload now", None),
            ("kill_client x", None),
            ("kill_client -1", None),
            ("kill_client 99999999999999999999", None),
            ("shutdown now", None),
            ("set a", None),
            ("set a b", None),
            ("set a = b c", None),
            ("set a = 1.", None),
            ("set a = 1.2.3", None),
            ("set a =", None),
            ("select 2", None),
            ("select pools()", None),
            ("select version(", None),
            ("drop table t", None),
            ("show \"pools", None),
            ("show pools /*", None),
            ("show p\u{f6}ols", None),
            ("42", None),
        ] {
            assert_eq!(parse(text.as_bytes()).ok(), expected, "{text}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let sqlstate = |text: &[u8]| parse(text).expect_err("refused").sqlstate;
        assert_eq!(sqlstate(b"frobnicate"), "42601");
        assert_eq!(sqlstate(b"show fds"), "0A000", "it would show secrets");
        for text in ["set policy.enforce = report", "SET databases.\"my-db\".pool_size = 5"] {
            let refusal = parse(text.as_bytes()).expect_err("refused");
            assert_eq!(
                (refusal.sqlstate, refusal.message.contains("[general] only")),
                ("0A000", true),
                "{text}"
            );
        }
        assert_eq!(sqlstate(b"kill_client x"), "22023");
        assert_eq!(sqlstate(b"show \xff"), "22021");
        assert_eq!(sqlstate(&vec![b' '; COMMAND_BYTES_MAX + 1]), "54000");
        assert!(parse(&vec![b' '; COMMAND_BYTES_MAX]).is_ok());
        for text in ["pause my-db", "set query_timeout = -1", "set admin_users = a,b", "set a = b c"] {
            let hint = parse(text.as_bytes()).expect_err("refused").hint.expect("a hint");
            assert!(hint.contains("quotes"), "{text}: {hint}");
        }
    }

    #[test]
    fn every_show_is_reached_by_its_word() {
        for show in Show::ALL {
            let text = format!("show {}", show.word());
            assert_eq!(parse(text.as_bytes()), Ok(Command::Show(*show)));
        }
    }

    #[test]
    fn who_may_say_what() {
        let looks = [
            "",
            "select 1",
            "select version()",
            "show client_encoding",
            "set timezone = 'UTC'",
            "begin",
            "discard all",
        ];
        let shows = Show::ALL.iter().map(|s| format!("show {}", s.word()));
        for text in looks.into_iter().map(str::to_owned).chain(shows) {
            let command = parse(text.as_bytes()).expect("good");
            let may = [Role::Other, Role::Stats, Role::Admin].map(|role| command.authorise(role).is_ok());
            assert_eq!(may, [false, true, true], "{text}");
        }
        for text in [
            "pause",
            "resume a",
            "disable a",
            "enable a",
            "reconnect",
            "kill",
            "kill_client 1",
            "suspend",
            "reload",
            "set query_timeout = 1",
            "shutdown",
            "shutdown wait_for_servers",
            "wait_close",
            "flush",
        ] {
            let command = parse(text.as_bytes()).expect("good");
            let may = [Role::Other, Role::Stats, Role::Admin].map(|role| command.authorise(role).is_ok());
            assert_eq!(may, [false, false, true], "{text}");
            let refusal = command.authorise(Role::Stats).expect_err("refused");
            assert_eq!(refusal.sqlstate, "42501");
            assert!(refusal.message.contains("admin_users"));
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&text);
        }

        #[test]
        fn no_near_miss_panics(text in "(show|set|pause|kill_client|flush|/\\*|--|\"|'|;|=|[a-z_.0-9]{0,4}| |\n){0,12}") {
            let _ = parse(text.as_bytes());
        }

        #[test]
        fn any_name_comes_back_quoted(name in "[^\x00]{1,30}") {
            let text = format!("pause \"{}\"", name.replace('"', "\"\""));
            prop_assert_eq!(parse(text.as_bytes()), Ok(Command::Act(Action::Pause(Some(name)))));
        }
    }
}
