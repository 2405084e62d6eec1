//! One console client: its frames in, our bytes out.
//!
//! Owns: the simple and the extended protocol as far as statements without parameters need them. Never: reads a
//! socket, waits. See "Message Flow" in the protocol chapter.
//!
//! ```text
//!            Query ............ answered, ReadyForQuery        error: ErrorResponse, ReadyForQuery
//!  Normal -- Parse Bind ... --  answered                       error: ErrorResponse -> Skipping
//!  Skipping  everything but Sync and Terminate is dropped; Sync: ReadyForQuery -> Normal
//! ```

use std::collections::HashMap;

use super::parse::{Action, Command, Role, Show, parse};
use super::rows::*;
use super::table::{Column, Formats, Table, Type, Value, put_row, put_row_description};
use super::{COMMAND_BYTES_MAX, PARAMETERS, Refusal, STATEMENTS_MAX};
use crate::wire::TransactionStatus;
use crate::wire::backend::{self, Report};
use crate::wire::frontend::{self, Bind, Parse};

/// What the console shows; the core fills the rows. Each call is a snapshot, taken when it is asked for.
pub trait Engine {
    /// SHOW POOLS
    fn pools(&self) -> Vec<PoolRow>;
    /// SHOW CLIENTS
    fn clients(&self) -> Vec<SocketRow>;
    /// SHOW SERVERS
    fn servers(&self) -> Vec<SocketRow>;
    /// SHOW DATABASES
    fn databases(&self) -> Vec<DatabaseRow>;
    /// SHOW USERS
    fn users(&self) -> Vec<UserRow>;
    /// SHOW LISTS
    fn lists(&self) -> Vec<ListRow>;
    /// SHOW PEERS
    fn peers(&self) -> Vec<PeerRow>;
    /// SHOW PEER_POOLS
    fn peer_pools(&self) -> Vec<PeerPoolRow>;
    /// SHOW CONFIG; no secrets.
    fn config(&self) -> Vec<ConfigRow>;
    /// SHOW MEM
    fn mem(&self) -> Vec<MemRow>;
    /// SHOW STATE
    fn state(&self) -> Vec<StateRow>;
    /// SHOW STATS, STATS_TOTALS, STATS_AVERAGES, TOTALS: one row for each database.
    fn stats(&self) -> Vec<StatsRow>;
    /// SHOW TOTALS: the averages over all databases.
    fn averages(&self) -> Counters;
    /// SHOW COALESCE
    fn lanes(&self) -> Vec<LaneRow>;
    /// SHOW COALESCE_TABLES
    fn coalesce_tables(&self) -> Vec<CoalesceTableRow>;
    /// SHOW COALESCE_FLUSHES, the last one first.
    fn coalesce_flushes(&self) -> Vec<FlushRow>;
    /// SHOW POLICY
    fn policy(&self) -> Vec<PolicyRow>;
    /// SHOW AUDIT
    fn audit(&self) -> Vec<AuditRow>;
}

/// What the caller does next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Send `out`, read on.
    Next,
    /// Do this, then call [`Session::finish`]; no frame in between.
    Perform(Action),
    /// Send `out`, close.
    Close,
}

/// One client of the console, after its login.
#[derive(Debug)]
pub struct Session {
    role: Role,
    statements: HashMap<Vec<u8>, Command>,
    portals: HashMap<Vec<u8>, Portal>,
    mode: Mode,
    /// The command that [`Step::Perform`] handed out.
    performing: Option<(Action, Protocol)>,
    /// What this client asked for and may not, in the log's words.
    denied: Option<(String, Refusal)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Normal,
    /// An extended message failed; the client has not sent its Sync yet.
    Skipping,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Simple,
    Extended,
}

#[derive(Debug)]
struct Portal {
    command: Command,
    formats: Formats,
    /// What a row limit left over, after the first Execute.
    rest: Option<std::vec::IntoIter<Vec<Value>>>,
}

impl Portal {
    fn is_suspended(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.as_slice().is_empty())
    }
}

/// Why a frame was not answered.
enum Failure {
    /// ERROR: the session goes on.
    Refused(Refusal),
    /// FATAL: it does not.
    Violation(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<crate::wire::DecodeError> for Failure {
    fn from(error: crate::wire::DecodeError) -> Self {
        Self::Violation(Refusal::new("08P01", error.to_string()))
    }
}

impl Session {
    /// For a client whose role the login has found.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            statements: HashMap::new(),
            portals: HashMap::new(),
            mode: Mode::Normal,
            performing: None,
            denied: None,
        }
    }

    /// Takes one frame (`body` without its header) and appends the answer to `out`.
    pub fn recv(&mut self, tag: u8, body: &[u8], engine: &impl Engine, out: &mut Vec<u8>) -> Step {
        debug_assert!(self.performing.is_none(), "finish() comes before the next frame");
        if self.mode == Mode::Skipping && !matches!(tag, frontend::SYNC | frontend::TERMINATE) {
            return Step::Next;
        }
        match self.answer(tag, body, engine, out) {
            Ok(step) => step,
            Err(Failure::Refused(refusal)) => {
                put_refusal(out, "ERROR", &refusal);
                self.fail(tag, out);
                Step::Next
            }
            Err(Failure::Violation(refusal)) => {
                put_refusal(out, "FATAL", &refusal);
                Step::Close
            }
        }
    }

    /// How the action of the last [`Step::Perform`] went; appends the answer.
    pub fn finish(&mut self, result: Result<(), Refusal>, out: &mut Vec<u8>) {
        let Some((action, protocol)) = self.performing.take() else { return };
        match &result {
            Ok(()) => backend::put_command_complete(out, action.tag().as_bytes()),
            Err(refusal) => put_refusal(out, "ERROR", refusal),
        }
        match (protocol, result.is_ok()) {
            (Protocol::Simple, _) => backend::put_ready_for_query(out, TransactionStatus::Idle),
            (Protocol::Extended, true) => {}
            (Protocol::Extended, false) => self.mode = Mode::Skipping,
        }
    }

    fn answer(
        &mut self,
        tag: u8,
        body: &[u8],
        engine: &impl Engine,
        out: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        match tag {
            frontend::QUERY => return self.query(frontend::query(body)?, engine, out),
            frontend::PARSE => self.parse(&Parse::decode(body)?, out)?,
            frontend::BIND => self.bind(&Bind::decode(body)?, out)?,
            frontend::DESCRIBE => self.describe(frontend::target(tag, body)?, out)?,
            frontend::EXECUTE => return self.execute(frontend::execute(body)?, engine, out),
            frontend::CLOSE => self.close(frontend::target(tag, body)?, out),
            frontend::SYNC => self.sync(out),
            frontend::FLUSH => {}
            frontend::TERMINATE => return Ok(Step::Close),
            // Left over from a COPY that never was: PostgreSQL drops them, too.
            frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => {}
            frontend::FUNCTION_CALL => {
                return Err(Refusal::new("0A000", "function calls are not supported by the console").into());
            }
            _ => {
                let message = format!("invalid frontend message type {tag}");
                return Err(Failure::Violation(Refusal::new("08P01", message)));
            }
        }
        Ok(Step::Next)
    }

    /// What follows an ErrorResponse to a message of type `tag`.
    fn fail(&mut self, tag: u8, out: &mut Vec<u8>) {
        if matches!(tag, frontend::QUERY | frontend::FUNCTION_CALL) {
            backend::put_ready_for_query(out, TransactionStatus::Idle);
        } else {
            self.mode = Mode::Skipping;
        }
    }

    fn query(&mut self, text: &[u8], engine: &impl Engine, out: &mut Vec<u8>) -> Result<Step, Failure> {
        let command = self.understand(text)?;
        if let Command::Act(action) = command {
            self.performing = Some((action.clone(), Protocol::Simple));
            return Ok(Step::Perform(action));
        }
        let formats = Formats::default();
        if let Some(columns) = columns(&command) {
            put_row_description(out, &columns, &formats);
            let rows = rows(&command, engine);
            rows.iter().for_each(|row| put_row(out, &columns, row, &formats));
            put_selected(out, &command, rows.len());
        } else {
            self.complete(&command, out);
        }
        // As PostgreSQL: a Query ends the unnamed statement, and the portals of the transaction with it.
        self.statements.remove(&b""[..]);
        self.portals.clear();
        backend::put_ready_for_query(out, TransactionStatus::Idle);
        Ok(Step::Next)
    }

    fn parse(&mut self, parse: &Parse<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        if parse.name.is_empty() {
            self.statements.remove(parse.name);
        } else if self.statements.contains_key(parse.name) {
            return Err(Refusal::new("42P05", "prepared statement already exists").into());
        }
        let command = self.understand(parse.query)?;
        keep(&mut self.statements, parse.name, command)?;
        backend::put_empty(out, backend::PARSE_COMPLETE);
        Ok(())
    }

    fn bind(&mut self, bind: &Bind<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let command = self.statement(bind.statement)?.clone();
        if bind.params_len > 0 {
            let message = format!(
                "bind message supplies {} parameters, but prepared statement requires 0",
                bind.params_len
            );
            return Err(Refusal::new("08P01", message).into());
        }
        let width = columns(&command).map_or(0, |c| c.len());
        let formats = Formats::of_bind(bind.result_formats, width)?;
        // One without a name takes the place of the one before it.
        if !bind.portal.is_empty() && self.portals.contains_key(bind.portal) {
            return Err(Refusal::new("42P03", "portal already exists").into());
        }
        keep(&mut self.portals, bind.portal, Portal { command, formats, rest: None })?;
        backend::put_empty(out, backend::BIND_COMPLETE);
        Ok(())
    }

    fn describe(&self, (kind, name): (u8, &[u8]), out: &mut Vec<u8>) -> Result<(), Failure> {
        let text = Formats::default();
        let (command, formats) = if kind == b'S' {
            backend::put_no_parameters(out);
            (self.statement(name)?, &text)
        } else {
            let portal = self.portals.get(name).ok_or_else(no_portal)?;
            (&portal.command, &portal.formats)
        };
        match columns(command) {
            Some(columns) => put_row_description(out, &columns, formats),
            None => backend::put_empty(out, backend::NO_DATA),
        }
        Ok(())
    }

    fn execute(
        &mut self,
        (name, limit): (&[u8], i32),
        engine: &impl Engine,
        out: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        let others_wait = self.portals.iter().any(|(other, portal)| other != name && portal.is_suspended());
        let portal = self.portals.get_mut(name).ok_or_else(no_portal)?;
        if let Command::Act(action) = &portal.command {
            self.performing = Some((action.clone(), Protocol::Extended));
            return Ok(Step::Perform(action.clone()));
        }
        let Some(columns) = columns(&portal.command) else {
            let command = portal.command.clone();
            self.complete(&command, out);
            return Ok(Step::Next);
        };
        // What waits are the rows of all clients, say, and a name costs nothing.
        if others_wait {
            let message = "the console keeps the rows of one portal at a time";
            return Err(Refusal::new("54000", message).into());
        }
        let rest = portal.rest.get_or_insert_with(|| rows(&portal.command, engine).into_iter());
        let most = usize::try_from(limit).ok().filter(|n| *n > 0).unwrap_or(usize::MAX);
        let mut sent = 0;
        for row in rest.by_ref().take(most) {
            put_row(out, &columns, &row, &portal.formats);
            sent += 1;
        }
        if sent == most && portal.is_suspended() {
            backend::put_empty(out, backend::PORTAL_SUSPENDED);
        } else {
            portal.rest = Some(Vec::new().into_iter());
            put_selected(out, &portal.command, sent);
        }
        Ok(Step::Next)
    }

    fn close(&mut self, (kind, name): (u8, &[u8]), out: &mut Vec<u8>) {
        if kind == b'S' {
            self.statements.remove(name);
        } else {
            self.portals.remove(name);
        }
        backend::put_empty(out, backend::CLOSE_COMPLETE);
    }

    fn sync(&mut self, out: &mut Vec<u8>) {
        self.mode = Mode::Normal;
        // There is no transaction block here: portals end with their Sync.
        self.portals.clear();
        backend::put_ready_for_query(out, TransactionStatus::Idle);
    }

    /// The action of the last frame that was refused for the client's role.
    pub fn take_denied(&mut self) -> Option<(String, Refusal)> {
        self.denied.take()
    }

    fn understand(&mut self, text: &[u8]) -> Result<Command, Refusal> {
        let command = parse(text)?;
        command.authorise(self.role).inspect_err(|refusal| {
            if let Command::Act(action) = &command {
                self.denied = Some((action.logged(), refusal.clone()));
            }
        })?;
        Ok(command)
    }

    fn statement(&self, name: &[u8]) -> Result<&Command, Refusal> {
        self.statements.get(name).ok_or_else(|| Refusal::new("26000", "prepared statement does not exist"))
    }

    /// Answers a command that has no rows.
    fn complete(&mut self, command: &Command, out: &mut Vec<u8>) {
        let notice = |out: &mut Vec<u8>, severity, sqlstate, message, detail: Option<&str>| {
            let report = Report { severity, sqlstate, message, detail, hint: None };
            backend::put_report(out, backend::NOTICE_RESPONSE, &report);
        };
        let tag = match command {
            Command::Empty => return backend::put_empty(out, backend::EMPTY_QUERY_RESPONSE),
            Command::SetParameter => {
                backend::put_notice(out, "SET ignored");
                "SET"
            }
            Command::SetIgnored(why) => {
                notice(out, "NOTICE", "00000", why, None);
                "SET"
            }
            Command::Transaction(tag) => {
                notice(out, "WARNING", "25P01", "the console has no transactions", None);
                tag
            }
            Command::Discard(tag) => {
                self.statements.clear();
                tag
            }
            // All that is left of the commands without columns is SHOW HELP.
            _ => {
                notice(out, "NOTICE", "00000", "Console usage", Some(&help()));
                "SHOW"
            }
        };
        backend::put_command_complete(out, tag.as_bytes());
    }
}

/// The columns of a command's answer; `None`: it has no rows.
fn columns(command: &Command) -> Option<Vec<Column>> {
    let one = |name, ty| Some(vec![Column { name, ty }]);
    match command {
        Command::ShowParameter(i) => one(PARAMETERS.get(*i).map_or("", |p| p.0), Type::Text),
        Command::SelectOne => one("?column?", Type::Int4),
        Command::SelectVersion => one("version", Type::Text),
        Command::Show(show) => show_columns(*show).map(<[Column]>::to_vec),
        Command::Empty
        | Command::SetParameter
        | Command::SetIgnored(_)
        | Command::Transaction(_)
        | Command::Discard(_)
        | Command::Act(_) => None,
    }
}

fn show_columns(show: Show) -> Option<&'static [Column]> {
    use super::table::Row;
    Some(match show {
        Show::Help => return None,
        Show::Config => ConfigRow::COLUMNS,
        Show::Databases => DatabaseRow::COLUMNS,
        Show::Pools => PoolRow::COLUMNS,
        Show::Clients | Show::Servers => SocketRow::COLUMNS,
        Show::Sockets | Show::ActiveSockets => BufferedRow::COLUMNS,
        Show::Users => UserRow::COLUMNS,
        Show::Version => VersionRow::COLUMNS,
        Show::Lists => ListRow::COLUMNS,
        Show::Mem => MemRow::COLUMNS,
        Show::State => StateRow::COLUMNS,
        Show::Peers => PeerRow::COLUMNS,
        Show::PeerPools => PeerPoolRow::COLUMNS,
        Show::DnsHosts => DnsHostRow::COLUMNS,
        Show::DnsZones => DnsZoneRow::COLUMNS,
        Show::Stats => Wanted::Both.columns(),
        Show::StatsTotals => Wanted::Totals.columns(),
        Show::StatsAverages => Wanted::Averages.columns(),
        Show::Totals => TotalRow::COLUMNS,
        Show::Coalesce => LaneRow::COLUMNS,
        Show::CoalesceTables => CoalesceTableRow::COLUMNS,
        Show::CoalesceFlushes => FlushRow::COLUMNS,
        Show::Policy => PolicyRow::COLUMNS,
        Show::Audit => AuditRow::COLUMNS,
    })
}

/// The rows of a command's answer, one value for each of its [`columns`].
fn rows(command: &Command, engine: &impl Engine) -> Vec<Vec<Value>> {
    let one = |value| vec![vec![value]];
    match command {
        Command::ShowParameter(i) => one(Value::Text(PARAMETERS.get(*i).map_or("", |p| p.1).into())),
        Command::SelectOne => one(Value::Int(1)),
        Command::SelectVersion => one(Value::Text(version().into())),
        Command::Show(show) => show_rows(*show, engine),
        Command::Empty
        | Command::SetParameter
        | Command::SetIgnored(_)
        | Command::Transaction(_)
        | Command::Discard(_)
        | Command::Act(_) => Vec::new(),
    }
}

fn show_rows(show: Show, engine: &impl Engine) -> Vec<Vec<Value>> {
    let stats = |wanted: Wanted| engine.stats().iter().map(|row| wanted.values(row)).collect();
    let sockets = |shown: fn(&SocketRow) -> bool| {
        let all = engine.clients().into_iter().chain(engine.servers()).filter(shown);
        Table::of(&all.map(BufferedRow).collect::<Vec<_>>()).rows
    };
    match show {
        Show::Help | Show::DnsHosts | Show::DnsZones => Vec::new(),
        Show::Peers => Table::of(&engine.peers()).rows,
        Show::PeerPools => Table::of(&engine.peer_pools()).rows,
        Show::Config => Table::of(&engine.config()).rows,
        Show::Databases => Table::of(&engine.databases()).rows,
        Show::Pools => Table::of(&engine.pools()).rows,
        Show::Clients => Table::of(&engine.clients()).rows,
        Show::Servers => Table::of(&engine.servers()).rows,
        Show::Sockets => sockets(|_| true),
        Show::ActiveSockets => sockets(|socket| socket.state != "idle"),
        Show::Users => Table::of(&engine.users()).rows,
        Show::Version => Table::of(&[VersionRow { version: version() }]).rows,
        Show::Lists => Table::of(&engine.lists()).rows,
        Show::Mem => Table::of(&engine.mem()).rows,
        Show::State => Table::of(&engine.state()).rows,
        Show::Stats => stats(Wanted::Both),
        Show::StatsTotals => stats(Wanted::Totals),
        Show::StatsAverages => stats(Wanted::Averages),
        Show::Totals => Table::of(&totals(&engine.stats(), engine.averages())).rows,
        Show::Coalesce => Table::of(&engine.lanes()).rows,
        Show::CoalesceTables => Table::of(&engine.coalesce_tables()).rows,
        Show::CoalesceFlushes => Table::of(&engine.coalesce_flushes()).rows,
        Show::Policy => Table::of(&engine.policy()).rows,
        Show::Audit => Table::of(&engine.audit()).rows,
    }
}

/// PgBouncer's name and number come first: monitors look for them to know what they may ask.
fn version() -> &'static str {
    concat!("PgBouncer 1.25.2 (pgsluice ", env!("CARGO_PKG_VERSION"), ")")
}

/// The detail of SHOW HELP's notice.
fn help() -> String {
    let shows: Vec<_> = Show::ALL.iter().map(|s| s.word().to_ascii_uppercase()).collect();
    format!(
        "\n\tSHOW {}\n\tSET key = arg\n\tRELOAD\n\tPAUSE [<db>]\n\tRESUME [<db>]\n\tDISABLE <db>\n\tENABLE <db>\
         \n\tRECONNECT [<db>]\n\tKILL [<db>]\n\tKILL_CLIENT <client_id>\n\tSUSPEND\n\tSHUTDOWN\
         \n\tSHUTDOWN WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS\n\tWAIT_CLOSE [<db>]\n\tFLUSH [<table>]",
        shows.join("|")
    )
}

/// Appends CommandComplete of a command with rows. SHOW has no count, as in PostgreSQL.
fn put_selected(out: &mut Vec<u8>, command: &Command, rows: usize) {
    match command {
        Command::SelectOne | Command::SelectVersion => {
            backend::put_command_complete(out, format!("SELECT {rows}").as_bytes());
        }
        _ => backend::put_command_complete(out, b"SHOW"),
    }
}

fn put_refusal(out: &mut Vec<u8>, severity: &str, refusal: &Refusal) {
    let Refusal { sqlstate, message, hint } = refusal;
    let report = Report { severity, sqlstate, message, detail: None, hint: *hint };
    backend::put_report(out, backend::ERROR_RESPONSE, &report);
}

/// Remembers `value` under `name`, within the bound.
fn keep<T>(map: &mut HashMap<Vec<u8>, T>, name: &[u8], value: T) -> Result<(), Refusal> {
    if map.len() >= STATEMENTS_MAX && !map.contains_key(name) {
        let message = format!("the console keeps at most {STATEMENTS_MAX} prepared statements or portals");
        return Err(Refusal::new("54000", message));
    }
    if name.len() > COMMAND_BYTES_MAX {
        return Err(Refusal::new("42622", "name is too long"));
    }
    map.insert(name.to_owned(), value);
    Ok(())
}

fn no_portal() -> Refusal {
    Refusal::new("34000", "portal does not exist")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::SMALL_MESSAGE_BYTES_MAX;
    use crate::wire::backend::{ErrorFields, data_row};
    use crate::wire::frame::{put, put_cstr, whole};

    struct Fixed;

    impl Engine for Fixed {
        fn pools(&self) -> Vec<PoolRow> {
            let row =
                |database: &str| PoolRow { database: database.into(), cl_active: 3, ..PoolRow::default() };
            vec![row("a"), row("b"), row("c")]
        }
        fn clients(&self) -> Vec<SocketRow> {
            vec![SocketRow { kind: "C", id: 7, ..SocketRow::default() }]
        }
        fn servers(&self) -> Vec<SocketRow> {
            vec![SocketRow { kind: "S", ..SocketRow::default() }]
        }
        fn databases(&self) -> Vec<DatabaseRow> {
            vec![DatabaseRow::default()]
        }
        fn users(&self) -> Vec<UserRow> {
            vec![UserRow::default()]
        }
        fn lists(&self) -> Vec<ListRow> {
            vec![ListRow { list: "databases", items: 3 }]
        }
        fn peers(&self) -> Vec<PeerRow> {
            vec![PeerRow::default()]
        }
        fn peer_pools(&self) -> Vec<PeerPoolRow> {
            vec![PeerPoolRow::default()]
        }
        fn config(&self) -> Vec<ConfigRow> {
            vec![ConfigRow::default()]
        }
        fn mem(&self) -> Vec<MemRow> {
            vec![MemRow::default()]
        }
        fn state(&self) -> Vec<StateRow> {
            vec![StateRow { key: "active", value: "yes" }]
        }
        fn stats(&self) -> Vec<StatsRow> {
            vec![StatsRow::default()]
        }
        fn averages(&self) -> Counters {
            Counters::default()
        }
        fn lanes(&self) -> Vec<LaneRow> {
            vec![LaneRow::default()]
        }
        fn coalesce_tables(&self) -> Vec<CoalesceTableRow> {
            vec![CoalesceTableRow::default()]
        }
        fn coalesce_flushes(&self) -> Vec<FlushRow> {
            vec![FlushRow::default()]
        }
        fn policy(&self) -> Vec<PolicyRow> {
            vec![PolicyRow::default()]
        }
        fn audit(&self) -> Vec<AuditRow> {
            vec![AuditRow::default()]
        }
    }

    /// Feeds a stream of frames; the types of the answers, and the answers.
    fn say(session: &mut Session, stream: &[u8]) -> (String, Vec<Vec<u8>>) {
        let (mut out, mut rest) = (Vec::new(), stream);
        while let Some((head, body)) = whole(rest, SMALL_MESSAGE_BYTES_MAX).expect("ours") {
            match session.recv(head.tag, body, &Fixed, &mut out) {
                Step::Next => {}
                Step::Perform(Action::Reload) => session.finish(Ok(()), &mut out),
                Step::Perform(_) => session.finish(Err(Refusal::new("3D000", "no such database")), &mut out),
                Step::Close => out.extend_from_slice(b"!\0\0\0\x04"),
            }
            rest = &rest[head.total()..];
        }
        let (mut tags, mut bodies, mut rest) = (String::new(), Vec::new(), &out[..]);
        while let Some((head, body)) = whole(rest, SMALL_MESSAGE_BYTES_MAX).expect("ours") {
            tags.push(char::from(head.tag));
            bodies.push(body.to_vec());
            rest = &rest[head.total()..];
        }
        assert!(rest.is_empty(), "whole messages only");
        (tags, bodies)
    }

    fn query(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::put_query(&mut out, text.as_bytes());
        out
    }

    /// Parse, Bind, Describe (portal), Execute, Sync of `text`, with one result format for all.
    fn extended(text: &str, format: u8, limit: i32) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::put_parse(&mut out, b"", text.as_bytes(), &[]);
        put(&mut out, frontend::BIND, |out| out.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, format]));
        frontend::put_target(&mut out, frontend::DESCRIBE, b'P', b"");
        frontend::put_execute(&mut out, b"", limit);
        frontend::put_empty(&mut out, frontend::SYNC);
        out
    }

    fn admin() -> Session {
        Session::new(Role::Admin)
    }

    #[test]
    fn each_query_gets_its_answer_and_one_ready_for_query() {
        for (text, expected) in [
            ("show pools", "TDDDCZ"),
            ("show clients", "TDCZ"),
            ("select 1", "TDCZ"),
            ("select version()", "TDCZ"),
            ("show client_encoding", "TDCZ"),
            ("show help", "NCZ"),
            ("show totals", &format!("T{}CZ", "D".repeat(24))),
            ("set timezone = 'UTC'", "NCZ"),
            ("set Verbose = 2", "NCZ"),
            ("begin", "NCZ"),
            ("", "IZ"),
            ("reload", "CZ"),
            ("pause nothing", "EZ"),
            ("show me", "EZ"),
        ] {
            assert_eq!(say(&mut admin(), &query(text)).0, expected, "{text}");
        }
    }

    #[test]
    fn every_show_fits_its_columns_in_both_formats() {
        let always_empty = [Show::DnsHosts, Show::DnsZones];
        for show in Show::ALL.iter().filter(|s| **s != Show::Help) {
            let text = format!("show {}", show.word());
            for format in [0, 1] {
                let (tags, bodies) = say(&mut admin(), &extended(&text, format, 0));
                if always_empty.contains(show) {
                    assert_eq!(tags, "12TCZ", "{text}");
                    continue;
                }
                assert!(tags.starts_with("12TD") && tags.ends_with("DCZ"), "{text}: {tags}");
                let columns = usize::from(u16::from_be_bytes([bodies[2][0], bodies[2][1]]));
                for (tag, body) in tags.chars().zip(&bodies).filter(|(tag, _)| *tag == 'D') {
                    assert_eq!(data_row(body).expect("good").len(), columns, "{text} {tag}");
                }
            }
        }
    }

    #[test]
    fn an_error_skips_to_sync_and_no_further() {
        let mut stream = extended("show me", 0, 0);
        stream.extend_from_slice(&extended("show lists", 0, 0));
        assert_eq!(say(&mut admin(), &stream).0, "EZ12TDCZ");
        // A failed action skips, too; a performed one goes on.
        assert_eq!(say(&mut admin(), &extended("kill x", 0, 0)).0, "12nEZ");
        assert_eq!(say(&mut admin(), &extended("reload", 0, 0)).0, "12nCZ");
    }

    #[test]
    fn a_row_limit_suspends_the_portal() {
        let mut stream = Vec::new();
        frontend::put_parse(&mut stream, b"s", b"show pools", &[]);
        frontend::put_bind_text(&mut stream, b"s", &[]);
        frontend::put_execute(&mut stream, b"", 2);
        frontend::put_execute(&mut stream, b"", 2);
        frontend::put_empty(&mut stream, frontend::SYNC);
        // The portal ended with Sync; the statement did not.
        frontend::put_target(&mut stream, frontend::DESCRIBE, b'S', b"s");
        frontend::put_execute(&mut stream, b"", 2);
        frontend::put_empty(&mut stream, frontend::SYNC);
        assert_eq!(say(&mut admin(), &stream).0, "12DDsDCZtTEZ");
    }

    #[test]
    fn rows_of_one_portal_wait_at_a_time() {
        let bind = |out: &mut Vec<u8>, name: &[u8]| {
            put(out, frontend::BIND, |out| {
                put_cstr(out, name);
                out.extend_from_slice(b"s\0\0\0\0\0\0\0");
            });
        };
        let mut stream = Vec::new();
        frontend::put_parse(&mut stream, b"s", b"show pools", &[]);
        bind(&mut stream, b"a");
        bind(&mut stream, b"b");
        for (name, limit) in [(&b"a"[..], 1), (b"a", 0), (b"b", 1), (b"a", 0), (b"b", 1)] {
            frontend::put_execute(&mut stream, name, limit);
        }
        frontend::put_empty(&mut stream, frontend::SYNC);
        assert_eq!(say(&mut admin(), &stream).0, "122DsDDCDsEZ");
    }

    #[test]
    fn who_looks_may_not_act() {
        let mut stats = Session::new(Role::Stats);
        assert_eq!(say(&mut stats, &query("show pools")).0, "TDDDCZ");
        for text in ["reload", "shutdown", "set query_timeout = 1", "set verbose = 1", "flush"] {
            let (tags, bodies) = say(&mut stats, &query(text));
            assert_eq!((&tags[..], ErrorFields::new(&bodies[0]).sqlstate()), ("EZ", &b"42501"[..]), "{text}");
            assert_eq!(say(&mut stats, &extended(text, 0, 0)).0, "EZ");
        }
        // What was refused is told once, to be logged; a question is not.
        let mut stats = Session::new(Role::Stats);
        let mut denied = |text: &str| {
            say(&mut stats, &query(text));
            stats.take_denied().map(|(action, refusal)| (action, refusal.sqlstate))
        };
        assert_eq!(denied("show pools"), None);
        assert!(matches!(denied("reload"), Some((_, "42501"))));
        assert_eq!(denied("show pools"), None);
        assert_eq!(say(&mut Session::new(Role::Other), &query("show version")).0, "EZ");
    }

    #[test]
    fn out_of_place_and_malformed_messages() {
        let message = |tag: u8, body: &[u8]| {
            let mut out = Vec::new();
            put(&mut out, tag, |out| out.extend_from_slice(body));
            out
        };
        for (stream, expected) in [
            (message(frontend::QUERY, b"no zero"), "E!"),
            (message(frontend::PASSWORD, b"\0"), "E!"),
            (message(b'?', b""), "E!"),
            (message(frontend::BIND, b"\0nothing\0\0\0\0\0\0\0"), "E"),
            (message(frontend::FUNCTION_CALL, b""), "EZ"),
            (message(frontend::COPY_DATA, b"x"), ""),
            (message(frontend::TERMINATE, b""), "!"),
            (message(frontend::SYNC, b""), "Z"),
        ] {
            assert_eq!(say(&mut admin(), &stream).0, expected, "{stream:?}");
        }
    }

    #[test]
    fn names_are_taken_and_given_back_as_in_postgresql() {
        let parse = |name: &str, text: &str| {
            let mut out = Vec::new();
            frontend::put_parse(&mut out, name.as_bytes(), text.as_bytes(), &[]);
            out
        };
        let bind = |portal: &str| {
            let mut out = Vec::new();
            put(&mut out, frontend::BIND, |out| {
                put_cstr(out, portal.as_bytes());
                out.extend_from_slice(&[0; 7]);
            });
            out
        };
        let mut sync = Vec::new();
        frontend::put_empty(&mut sync, frontend::SYNC);
        let good = || parse("", "show lists");
        let long = "n".repeat(COMMAND_BYTES_MAX + 1);
        for (stream, sqlstate) in [
            ([parse("s", "show lists"), parse("s", "show lists")].concat(), "42P05"),
            ([good(), bind("p"), bind("p")].concat(), "42P03"),
            ([good(), bind(""), bind(""), query("show lists"), bind("")].concat(), "26000"),
            // A Parse that fails leaves no statement.
            ([good(), parse("", "show me"), sync.clone(), bind("")].concat(), "26000"),
            (parse(&long, "show lists"), "42622"),
        ] {
            let (tags, bodies) = say(&mut admin(), &stream);
            assert!(tags.ends_with('E'), "{sqlstate}: {tags}");
            assert_eq!(ErrorFields::new(&bodies[tags.len() - 1]).sqlstate(), sqlstate.as_bytes());
        }
    }

    #[test]
    fn parameters_are_refused_and_memory_is_bounded() {
        let mut stream = Vec::new();
        frontend::put_parse(&mut stream, b"", b"show pools", &[]);
        frontend::put_bind_text(&mut stream, b"", &[Some(b"1")]);
        assert_eq!(say(&mut admin(), &stream).0, "1E");

        let mut session = admin();
        for i in 0..STATEMENTS_MAX + 2 {
            let mut stream = Vec::new();
            frontend::put_parse(&mut stream, format!("s{i}").as_bytes(), b"show pools", &[]);
            frontend::put_empty(&mut stream, frontend::SYNC);
            let expected = if i < STATEMENTS_MAX { "1Z" } else { "EZ" };
            assert_eq!(say(&mut session, &stream).0, expected, "{i}");
        }
        // A name that exists already takes no more room.
        for i in 0..STATEMENTS_MAX {
            let mut stream = Vec::new();
            put(&mut stream, frontend::BIND, |out| {
                let name = if i == 0 { String::new() } else { format!("p{i}") };
                put_cstr(out, name.as_bytes());
                out.extend_from_slice(b"s0\0\0\0\0\0\0\0");
            });
            assert_eq!(say(&mut session, &stream).0, "2", "{i}");
        }
        for (portal, expected) in [(&b"\0"[..], "2"), (b"one more\0", "E")] {
            let mut stream = Vec::new();
            put(&mut stream, frontend::BIND, |out| {
                out.extend_from_slice(portal);
                out.extend_from_slice(b"s0\0\0\0\0\0\0\0");
            });
            assert_eq!(say(&mut session, &stream).0, expected);
        }
        let mut sync = Vec::new();
        frontend::put_empty(&mut sync, frontend::SYNC);
        assert_eq!(say(&mut session, &sync).0, "Z");
        assert_eq!(say(&mut session, &query("deallocate all")).0, "CZ");
        assert!(session.statements.is_empty());
    }

    proptest! {
        /// Whatever the frames: no panic, whole answers, and each Sync or Query heard outside of a failed
        /// extended exchange gets one ReadyForQuery.
        #[test]
        fn any_frames_are_answered(frames in proptest::collection::vec((proptest::sample::select(b"QPBDECSHXFdcfp?".to_vec()), 0usize..6, proptest::collection::vec(any::<u8>(), 0..12)), 0..20)) {
            let mut session = admin();
            for (tag, shape, noise) in frames {
                let mut stream = Vec::new();
                put(&mut stream, tag, |out| match shape {
                    0 => out.extend_from_slice(&noise),
                    1 => put_cstr(out, b"show pools"),
                    2 => out.extend_from_slice(b"\0show lists\0\0\0"),
                    3 => out.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0]),
                    4 => out.extend_from_slice(b"P\0"),
                    _ => {}
                });
                let skipping = session.mode == Mode::Skipping;
                let (tags, _) = say(&mut session, &stream);
                let closed = tags.contains('!');
                let owed = matches!((tag, skipping), (b'S', _) | (b'Q' | b'F', false)) && !closed;
                prop_assert_eq!(tags.matches('Z').count(), usize::from(owed), "{}", tags);
                if closed { break }
            }
        }
    }
}
