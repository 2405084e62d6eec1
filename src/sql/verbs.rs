//! What the statements of a text do, as a policy asks: a closed list of classes, by PostgreSQL's own parser.
//!
//! Owns: [`Class`], the node kinds behind each, what makes a SELECT more than a read, what names a statement in an
//! allow-list. Never: a verdict, what a function or a DO body does, a guess: a node that is in no class is
//! [`Class::Definition`], which the fewest may send.
//!
//! Where PostgreSQL has a list of its own it is followed: `log_statement = 'mod'` for what writes (so TRUNCATE is a
//! write), a read-only transaction for what a read is not (`SELECT ... FOR UPDATE`).

use pg_query::NodeEnum;
use pg_query::protobuf::{self, a_const::Val};
use sha2::{Digest as _, Sha256};

use super::meaning::{self, Kind, Unparsed, node_of, readable};
use super::scan;
use super::walk::{self, Step};
use crate::settings::Print;

/// What a statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE, ROLLBACK TO; the empty query.
    Control,
    /// SET, RESET, SHOW, DISCARD, DEALLOCATE, LISTEN, UNLISTEN, CLOSE, SET CONSTRAINTS.
    Session,
    /// SELECT, VALUES, TABLE, FETCH, MOVE, COPY TO STDOUT, EXPLAIN, DECLARE, EXECUTE of what was judged at PREPARE, LOCK IN
    /// ACCESS SHARE MODE.
    Read,
    /// INSERT, UPDATE, DELETE, MERGE, TRUNCATE, COPY FROM STDIN, LOCK, NOTIFY, CALL, two-phase commit; and reads that
    /// lock rows, hold one of these in WITH, or call a function of [`WRITERS`] or one that runs SQL given as text.
    Write,
    /// CREATE, ALTER, DROP, GRANT, COMMENT, SELECT INTO, CREATE TABLE AS, REFRESH, IMPORT and every node not named here.
    Definition,
    /// COPY with a file or program, LOAD, VACUUM, ANALYZE, CLUSTER, REINDEX, CHECKPOINT, ALTER SYSTEM.
    Server,
    /// DO: its body is not read.
    Code,
}

impl Class {
    /// A word for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "transaction control",
            Self::Session => "session state",
            Self::Read => "a read",
            Self::Write => "a write",
            Self::Definition => "data definition",
            Self::Server => "a command to the server itself",
            Self::Code => "a DO block",
        }
    }
}

/// One statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it does.
    pub class: Class,
    /// What it is.
    pub kind: Kind,
    /// What in a SELECT makes it a write, or in a SET undoes a read-only session: for the message.
    pub because: Option<&'static str>,
    /// It makes a prepared statement (SQL's PREPARE); the class is that of the body.
    pub prepares: bool,
    /// The prepared statement that it runs (SQL's EXECUTE, also in EXPLAIN and CREATE TABLE AS).
    pub executes: Option<String>,
    /// It runs what a cursor or a portal holds (FETCH, MOVE); see also [`runs_portals`].
    pub fetches: bool,
}

impl Found {
    fn plain(class: Class, kind: Kind) -> Self {
        Self { class, kind, because: None, prepares: false, executes: None, fetches: false }
    }

    fn because(self, class: Class, because: &'static str) -> Self {
        Self { class: self.class.max(class), because: Some(because), ..self }
    }
}

/// The statements of a text, in order; nothing for an empty text.
///
/// # Errors
/// The parser could not read it.
pub fn statements(text: &[u8]) -> Result<Vec<Found>, Unparsed> {
    let tree = meaning::tree(&readable(text)?)?;
    Ok(tree.stmts.iter().map(|raw| found(node_of(raw))).collect())
}

fn found(node: Option<&NodeEnum>) -> Found {
    use NodeEnum as N;
    let kind = meaning::kind(node);
    let plain = |class| Found::plain(class, kind);
    let Some(node) = node else { return plain(Class::Definition) };
    match node {
        N::TransactionStmt(_) if matches!(kind, Kind::TwoPhase | Kind::Other) => plain(Class::Write),
        N::TransactionStmt(stmt) if opens_writes(&stmt.options) => {
            plain(Class::Control).because(Class::Write, "READ WRITE")
        }
        N::TransactionStmt(_) => plain(Class::Control),
        N::VariableSetStmt(stmt) if undoes_read_only(stmt) => {
            plain(Class::Session).because(Class::Write, "a setting that opens transactions to writes")
        }
        N::VariableSetStmt(_)
        | N::VariableShowStmt(_)
        | N::ConstraintsSetStmt(_)
        | N::DiscardStmt(_)
        | N::DeallocateStmt(_)
        | N::ListenStmt(_)
        | N::UnlistenStmt(_)
        | N::ClosePortalStmt(_) => plain(Class::Session),
        N::FetchStmt(_) => Found { fetches: true, ..plain(Class::Read) },
        N::SelectStmt(_) => read(node, kind),
        N::InsertStmt(_) | N::UpdateStmt(_) | N::DeleteStmt(_) | N::MergeStmt(_) => plain(Class::Write),
        N::LockStmt(stmt) if stmt.mode == ACCESS_SHARE => plain(Class::Read),
        N::TruncateStmt(_) | N::LockStmt(_) | N::NotifyStmt(_) | N::CallStmt(_) => plain(Class::Write),
        N::DeclareCursorStmt(stmt) => as_inner(stmt.query.as_deref(), kind),
        N::PrepareStmt(stmt) => Found { prepares: true, ..as_inner(stmt.query.as_deref(), kind) },
        N::ExecuteStmt(stmt) => Found { executes: Some(stmt.name.clone()), ..read(node, kind) },
        N::ExplainStmt(stmt) => explained(stmt, kind),
        N::CreateTableAsStmt(stmt) => {
            let inner = inner(stmt.query.as_deref());
            Found { executes: inner.and_then(|inner| inner.executes), ..plain(Class::Definition) }
        }
        N::CopyStmt(stmt) => copied(stmt, kind),
        N::VacuumStmt(_)
        | N::ClusterStmt(_)
        | N::ReindexStmt(_)
        | N::CheckPointStmt(_)
        | N::LoadStmt(_)
        | N::AlterSystemStmt(_) => plain(Class::Server),
        N::DoStmt(_) => plain(Class::Code),
        _ => plain(Class::Definition),
    }
}

/// `AccessShareLock`: what each SELECT takes of the tables that it reads.
const ACCESS_SHARE: i32 = 1;

fn inner(node: Option<&protobuf::Node>) -> Option<Found> {
    node.map(|node| found(node.node.as_ref()))
}

/// A statement that is what it holds.
fn as_inner(node: Option<&protobuf::Node>, kind: Kind) -> Found {
    inner(node).map_or(Found::plain(Class::Definition, kind), |found| Found { kind, ..found })
}

/// EXPLAIN plans; with ANALYZE it runs. EXPLAIN EXECUTE evaluates the parameters, too, and whoever plans calls functions to estimate.
fn explained(stmt: &protobuf::ExplainStmt, kind: Kind) -> Found {
    let inner = as_inner(stmt.query.as_deref(), kind);
    match stmt.query.as_ref().and_then(|query| query.node.as_ref()) {
        Some(node) if inner.executes.is_none() && !runs(&stmt.options) => look(node, kind, false),
        _ => inner,
    }
}

/// ANALYZE is said, and not plainly said to be off.
fn runs(options: &[protobuf::Node]) -> bool {
    def_elems(options).any(|option| {
        option.defname.eq_ignore_ascii_case("analyze")
            && !matches!(option.arg.as_ref().and_then(|arg| arg.node.as_ref()),
                Some(NodeEnum::String(word)) if is_off(&word.sval))
            && !matches!(option.arg.as_ref().and_then(|arg| arg.node.as_ref()),
                Some(NodeEnum::Integer(number)) if number.ival == 0)
    })
}

fn is_off(word: &str) -> bool {
    ["false", "off"].iter().any(|off| word.eq_ignore_ascii_case(off))
}

fn copied(stmt: &protobuf::CopyStmt, kind: Kind) -> Found {
    if stmt.is_program || !stmt.filename.is_empty() {
        return Found::plain(Class::Server, kind);
    }
    if stmt.is_from {
        return Found::plain(Class::Write, kind);
    }
    match inner(stmt.query.as_deref()) {
        Some(found) => Found { kind, ..found },
        None => Found::plain(Class::Read, kind),
    }
}

fn def_elems(nodes: &[protobuf::Node]) -> impl Iterator<Item = &protobuf::DefElem> {
    nodes.iter().filter_map(|node| match node.node.as_ref() {
        Some(NodeEnum::DefElem(option)) => Some(&**option),
        _ => None,
    })
}

/// The settings that make transactions read-only.
const READ_ONLY_SETTINGS: [&str; 2] = ["transaction_read_only", "default_transaction_read_only"];

fn is_read_only_setting(name: &str) -> bool {
    READ_ONLY_SETTINGS.iter().any(|setting| name.eq_ignore_ascii_case(setting))
}

/// A setting of a StartupMessage that opens transactions to writes. Of the ways to say "on" the plain ones are taken.
pub fn opens_to_writes(name: &str, value: &str) -> bool {
    is_read_only_setting(name) && !["on", "true", "1"].iter().any(|on| value.eq_ignore_ascii_case(on))
}

/// Settings by which a connection loads libraries while it begins, as LOAD does later.
const LIBRARY_SETTINGS: [&str; 2] = ["local_preload_libraries", "session_preload_libraries"];

/// A setting of a StartupMessage that does what LOAD does.
pub fn loads_libraries(name: &str, value: &str) -> bool {
    LIBRARY_SETTINGS.iter().any(|setting| name.eq_ignore_ascii_case(setting)) && !value.trim().is_empty()
}

/// READ WRITE among the modes of a transaction.
fn opens_writes(options: &[protobuf::Node]) -> bool {
    def_elems(options).any(|option| {
        is_read_only_setting(&option.defname) && !option.arg.as_deref().is_some_and(is_plainly_on)
    })
}

/// RESET and SET TO DEFAULT take `default_transaction_read_only` back to what the role has; but `transaction_read_only` to off,
/// whatever the role has, in a PostgreSQL before 16 (from there on it is an error). RESET ALL leaves that one alone.
fn undoes_read_only(stmt: &protobuf::VariableSetStmt) -> bool {
    use protobuf::VariableSetKind as V;
    match stmt.kind() {
        V::VarSetValue => {
            is_read_only_setting(&stmt.name) && !matches!(stmt.args.as_slice(), [one] if is_plainly_on(one))
        }
        V::VarSetMulti => opens_writes(&stmt.args),
        V::VarSetDefault | V::VarReset => stmt.name.eq_ignore_ascii_case(READ_ONLY_SETTINGS[0]),
        _ => false,
    }
}

fn is_plainly_on(node: &protobuf::Node) -> bool {
    let Some(NodeEnum::AConst(constant)) = node.node.as_ref() else { return false };
    match &constant.val {
        Some(Val::Ival(value)) => value.ival == 1,
        Some(Val::Boolval(value)) => value.boolval,
        Some(Val::Sval(value)) => ["on", "true"].iter().any(|on| value.sval.eq_ignore_ascii_case(on)),
        _ => false,
    }
}

/// Functions of PostgreSQL's own that write, take a transaction id, or act on the server: those of `pg_proc` of 14 to 18.
/// What is gone with its session is no write: advisory locks, `setseed`; nor what is gone with its transaction:
/// `pg_export_snapshot`, which changes no data and which `pg_dump --jobs` reads by. Others cannot be known: what a function
/// does is the server's affair.
pub const WRITERS: [&str; 49] = [
    "nextval",
    "setval",
    "pg_notify",
    "brin_desummarize_range",
    "brin_summarize_new_values",
    "brin_summarize_range",
    "gin_clean_pending_list",
    "lo_creat",
    "lo_create",
    "lo_export",
    "lo_from_bytea",
    "lo_import",
    "lo_put",
    "lo_truncate",
    "lo_truncate64",
    "lo_unlink",
    "lowrite",
    "pg_backup_start",
    "pg_backup_stop",
    "pg_cancel_backend",
    "pg_copy_logical_replication_slot",
    "pg_copy_physical_replication_slot",
    "pg_create_logical_replication_slot",
    "pg_create_physical_replication_slot",
    "pg_create_restore_point",
    "pg_current_xact_id",
    "pg_drop_replication_slot",
    "pg_import_system_collations",
    "pg_log_backend_memory_contexts",
    "pg_log_standby_snapshot",
    "pg_logical_emit_message",
    "pg_logical_slot_get_binary_changes",
    "pg_logical_slot_get_changes",
    "pg_nextoid",
    "pg_promote",
    "pg_reload_conf",
    "pg_replication_slot_advance",
    "pg_rotate_logfile",
    "pg_rotate_logfile_old",
    "pg_start_backup",
    "pg_stop_backup",
    "pg_stop_making_pinned_objects",
    "pg_switch_wal",
    "pg_sync_replication_slots",
    "pg_terminate_backend",
    "pg_wal_replay_pause",
    "pg_wal_replay_resume",
    "pg_stat_reset",
    "txid_current",
];

/// Functions of PostgreSQL's own, and of what comes with it (dblink, tablefunc, xml2), that run SQL which they are given as text, or put
/// together from texts. It may call any of [`WRITERS`] or `set_config`; that of dblink may be anything.
const RUNNERS: [&str; 14] = [
    "query_to_xml",
    "query_to_xml_and_xmlschema",
    "ts_rewrite",
    "ts_stat",
    "connectby",
    "crosstab",
    "crosstab2",
    "crosstab3",
    "crosstab4",
    "dblink",
    "dblink_exec",
    "dblink_open",
    "dblink_send_query",
    "xpath_table",
];

/// And those that are told by a literal what to read: a table, a schema, or a SELECT of which they show the columns.
const TOLD: [&str; 7] = [
    "query_to_xmlschema",
    "schema_to_xml",
    "schema_to_xml_and_xmlschema",
    "schema_to_xmlschema",
    "table_to_xml",
    "table_to_xml_and_xmlschema",
    "table_to_xmlschema",
];

/// A SELECT, or the parameters of EXECUTE: every node of its tree is looked at.
fn read(node: &NodeEnum, kind: Kind) -> Found {
    look(node, kind, true)
}

/// Of what does not run only the functions count.
fn look(node: &NodeEnum, kind: Kind, runs: bool) -> Found {
    let mut reading = Reading { found: Found::plain(Class::Read, kind), runs, calls: Vec::new() };
    match walk::walk(node, &mut reading) {
        Ok(()) => reading.found,
        Err(_) => reading.found.because(Class::Definition, "a tree that cannot be walked"),
    }
}

/// A tree that is looked at.
struct Reading {
    found: Found,
    /// It is no mere plan.
    runs: bool,
    /// The calls that are open here, the outermost first.
    calls: Vec<Call>,
}

/// A call, as far as it was seen.
struct Call {
    /// Its function is set_config.
    sets: bool,
    setting: Setting,
}

/// The setting of a set_config, as far as its arguments say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// It may be one that makes transactions read-only.
    Unknown,
    /// It is one.
    ReadOnly,
    /// It is none, or its value is no boolean.
    Other,
}

/// No boolean is written with so many characters.
const NO_BOOLEAN_CHARS: usize = 6;

impl Call {
    /// A literal among its arguments.
    fn argument(&mut self, number: usize, word: &str) {
        self.setting = match (number, self.setting) {
            // With standard_conforming_strings off a backslash would spell something else.
            _ if word.contains('\\') => return,
            (0, _) if is_read_only_setting(word) => Setting::ReadOnly,
            (0, _) => Setting::Other,
            (1, Setting::Unknown) if word.trim().len() >= NO_BOOLEAN_CHARS => Setting::Other,
            (_, known) => known,
        };
    }
}

impl Reading {
    fn because(&mut self, class: Class, because: &'static str) {
        self.found.class = self.found.class.max(class);
        self.found.because = Some(because);
    }
}

impl walk::Look for Reading {
    /// A part of a tree that makes a read more than one.
    fn node(&mut self, path: &[Step]) {
        match path {
            [.., Step::Name("InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt")] if self.runs => {
                self.because(Class::Write, "INSERT, UPDATE, DELETE or MERGE in WITH");
            }
            [.., Step::Name("LockingClause")] if self.runs => {
                self.because(Class::Write, "FOR UPDATE or FOR SHARE");
            }
            [.., Step::Name("into_clause")] if self.runs => self.because(Class::Definition, "INTO"),
            [.., Step::Name("FuncCall")] => self.calls.push(Call { sets: false, setting: Setting::Unknown }),
            // The last part of a name is the function's.
            [.., Step::Name("FuncCall"), Step::Name("funcname"), Step::Item(_)] => {
                self.calls.last_mut().into_iter().for_each(|call| call.sets = false);
            }
            _ => {}
        }
    }

    fn end(&mut self, path: &[Step]) {
        if !matches!(path, [.., Step::Name("FuncCall")]) {
            return;
        }
        if self.calls.pop().is_some_and(|call| call.sets && call.setting != Setting::Other) {
            let because = "set_config() of a setting that opens transactions to writes, or of any";
            self.because(Class::Write, because);
        }
    }

    fn word(&mut self, path: &[Step], word: &str) {
        use Step::{Item, Name};
        // A name, wherever it stands: f(x) can be written x.f.
        if let [.., Name("String"), Name("sval")] = path
            && let Some(because) = what_it_does(word)
        {
            self.because(Class::Write, because);
        }
        let Some(call) = self.calls.last_mut() else { return };
        match path {
            [.., Name("FuncCall"), Name("funcname"), Item(_), Name("node"), Name("String"), Name("sval")] => {
                call.sets = word == "set_config";
            }
            [
                ..,
                Name("FuncCall"),
                Name("args"),
                Item(argument),
                Name("node"),
                Name("AConst"),
                Name("val"),
                Name("Sval"),
                Name("sval"),
            ] => call.argument(*argument, word),
            _ => {}
        }
    }
}

/// Of a function by its name, what makes its call more than a read.
fn what_it_does(function: &str) -> Option<&'static str> {
    match function {
        _ if writes(function) => {
            Some("a function that writes or acts on the server, such as nextval() or lo_unlink()")
        }
        _ if RUNNERS.contains(&function) => Some("a function that runs SQL which it is given as text"),
        _ => None,
    }
}

fn writes(function: &str) -> bool {
    WRITERS.contains(&function)
        || function.starts_with("pg_replication_origin_")
        || function.starts_with("pg_stat_reset_")
        || function.starts_with("pg_restore_")
        || function.starts_with("pg_clear_")
        || function.starts_with("binary_upgrade_")
}

/// What names a statement in an allow-list, and what it is, for people: no literal of the text is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub print: Print,
    /// The statement without its literals, or only its kind; one line.
    pub remark: String,
}

/// Longest remark (characters); the rest is cut.
const REMARK_CHARS_MAX: usize = 200;

/// Longest statement whose remark is more than its kind (bytes): it has to be parsed once more.
const REMARK_TEXT_BYTES_MAX: usize = 16 << 10;

/// The names of a text's statements. A PREPARE has that of its body. `None` for transaction control, which no list
/// needs to hold.
///
/// # Errors
/// The parser could not read it.
pub fn names(text: &[u8]) -> Result<Vec<Option<Named>>, Unparsed> {
    let text = readable(text)?;
    // The tree is gone before the parser reads the statements again.
    let parts: Vec<Option<Part<'_>>> = {
        let tree = meaning::tree(&text)?;
        tree.stmts.iter().map(|raw| part_of(raw, &text)).collect::<Result<_, _>>()?
    };
    parts.iter().map(|part| part.as_ref().map(named).transpose()).collect()
}

/// What a statement's name is made of.
struct Part<'a> {
    text: &'a str,
    kind: Kind,
    /// Its literals are what it does.
    letter_by_letter: bool,
}

fn part_of<'a>(raw: &protobuf::RawStmt, text: &'a str) -> Result<Option<Part<'a>>, Unparsed> {
    let start = usize::try_from(raw.stmt_location).map_err(|_| Unparsed::Syntax)?;
    let len = usize::try_from(raw.stmt_len).map_err(|_| Unparsed::Syntax)?;
    let end = if len == 0 { text.len() } else { start + len };
    let own = text.get(start..end).ok_or(Unparsed::Syntax)?;
    let node = node_of(raw);
    if found(node) == Found::plain(Class::Control, meaning::kind(node)) {
        return Ok(None);
    }
    let (text, node) = match node {
        Some(NodeEnum::PrepareStmt(stmt)) => {
            let body = stmt.query.as_ref().and_then(|query| query.node.as_ref());
            (body_of_prepare(own).ok_or(Unparsed::Syntax)?, body)
        }
        node => (own, node),
    };
    let told = |node: &NodeEnum| is_told_by_literals(node) || joins_literals(node);
    let letter_by_letter = !literals_are_parameters(node) || node.is_some_and(told);
    Ok(Some(Part { text, kind: meaning::kind(node), letter_by_letter }))
}

/// Of `PREPARE name [(types)] AS body` the body. AS is no name without quotes, and within types it stands in parentheses only.
fn body_of_prepare(text: &str) -> Option<&str> {
    let mut depth = 0usize;
    let end = scan::scan(text.as_bytes(), true).find_map(|token| {
        match &text.as_bytes()[token.start..token.end] {
            b"(" => depth += 1,
            b")" => depth = depth.saturating_sub(1),
            word if depth == 0 && word.eq_ignore_ascii_case(b"as") => return Some(token.end),
            _ => {}
        }
        None
    })?;
    text.get(end..)
}

fn named(part: &Part<'_>) -> Result<Named, Unparsed> {
    let Part { text, kind, letter_by_letter } = *part;
    let shape = pg_query::fingerprint(text, 0, meaning::full_names()).map_err(|_| Unparsed::Syntax)?.value;
    if letter_by_letter {
        let text = hash_of(text.trim());
        return Ok(Named { print: Print { shape, text }, remark: kind.as_str().to_owned() });
    }
    let remark = without_literals(text).unwrap_or_else(|| kind.as_str().to_owned());
    Ok(Named { print: Print { shape, text: 0 }, remark })
}

/// Does a call in it do what a literal says: a setting, a table, or SQL?
fn is_told_by_literals(node: &NodeEnum) -> bool {
    holds_name(node, |word| word == "set_config" || RUNNERS.contains(&word) || TOLD.contains(&word))
}

/// Does a literal alone stand among what AND or OR joins? The parser's fingerprint leaves it out as if it were not there, and
/// `a OR b` would pass for `a OR b OR true`. One that AND joins in the statement's own WHERE only narrows.
fn joins_literals(node: &NodeEnum) -> bool {
    let mut find = FindJoined { open: Vec::new(), found: false };
    walk::walk(node, &mut find).is_err() || find.found
}

struct FindJoined {
    /// AND, OR or NOT: those that are open here, the outermost first.
    open: Vec<protobuf::BoolExprType>,
    found: bool,
}

impl FindJoined {
    /// A literal stands among what is joined at `place`.
    fn may_widen(&self, place: &[Step]) -> bool {
        use Step::{Item, Name};
        use protobuf::BoolExprType::{AndExpr, NotExpr};
        let is_joined = |step: &Step| matches!(step, Name("node" | "BoolExpr" | "args") | Item(_));
        match (self.open.last(), place) {
            (Some(NotExpr), _) => false,
            (Some(AndExpr), [Name(_), Name("where_clause"), way @ ..]) => {
                self.open.contains(&NotExpr) || !way.iter().all(is_joined)
            }
            _ => true,
        }
    }
}

impl walk::Look for FindJoined {
    fn node(&mut self, path: &[Step]) {
        use Step::{Item, Name};
        match path {
            [.., Name("BoolExpr")] => self.open.push(protobuf::BoolExprType::Undefined),
            [way @ .., Name("AConst" | "ParamRef")] => {
                let mut way = way;
                while let [outer @ .., Name("TypeCast"), Name("arg"), Name("node")] = way {
                    way = outer;
                }
                if let [place @ .., Name("BoolExpr"), Name("args"), Item(_), Name("node")] = way {
                    self.found |= self.may_widen(place);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, path: &[Step]) {
        if matches!(path, [.., Step::Name("BoolExpr")]) {
            self.open.pop();
        }
    }

    fn word(&mut self, _: &[Step], _: &str) {}

    fn number(&mut self, path: &[Step], number: i32) {
        if let ([.., Step::Name("BoolExpr"), Step::Name("boolop")], Some(open)) = (path, self.open.last_mut())
        {
            *open = number.try_into().unwrap_or(protobuf::BoolExprType::Undefined);
        }
    }
}

/// Does a call in it run what a cursor or a portal holds, as FETCH does? A text that cannot be read may.
pub fn runs_portals(text: &[u8]) -> bool {
    let Ok(tree) = readable(text).and_then(|text| meaning::tree(&text)) else { return true };
    let runs = |node| holds_name(node, |word| word == "cursor_to_xml");
    tree.stmts.iter().any(|raw| node_of(raw).is_none_or(runs))
}

/// A name like this stands somewhere in a tree; one that cannot be walked may hold any.
fn holds_name(node: &NodeEnum, is: impl Fn(&str) -> bool) -> bool {
    let mut find = FindName { is, found: false };
    walk::walk(node, &mut find).is_err() || find.found
}

struct FindName<F> {
    is: F,
    found: bool,
}

impl<F: Fn(&str) -> bool> walk::Look for FindName<F> {
    fn node(&mut self, _: &[Step]) {}

    fn end(&mut self, _: &[Step]) {}

    fn word(&mut self, path: &[Step], word: &str) {
        self.found |= matches!(path, [.., Step::Name("String"), Step::Name("sval")]) && (self.is)(word);
    }
}

/// Never 0, which stands for no hash.
fn hash_of(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    let first = digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    first.max(1)
}

/// Statements whose literals could as well be parameters, and those that name nothing but what the session made. Of
/// others (SET, DO, CREATE FUNCTION ...) the literals are what they do, and the parser's fingerprint leaves them out.
fn literals_are_parameters(node: Option<&NodeEnum>) -> bool {
    use NodeEnum as N;
    match node {
        Some(N::SelectStmt(stmt)) => stmt.into_clause.is_none(),
        // A program's command stands there, too.
        Some(N::CopyStmt(stmt)) => stmt.filename.is_empty(),
        Some(N::ExplainStmt(stmt)) => {
            literals_are_parameters(stmt.query.as_ref().and_then(|q| q.node.as_ref()))
        }
        Some(N::DeclareCursorStmt(_)) => true,
        Some(
            N::InsertStmt(_)
            | N::UpdateStmt(_)
            | N::DeleteStmt(_)
            | N::MergeStmt(_)
            | N::ExecuteStmt(_)
            | N::CallStmt(_)
            | N::TruncateStmt(_)
            | N::LockStmt(_)
            | N::DeallocateStmt(_)
            | N::FetchStmt(_)
            | N::ClosePortalStmt(_)
            | N::DiscardStmt(_)
            | N::VariableShowStmt(_),
        ) => true,
        _ => false,
    }
}

/// The statement as PostgreSQL would write it, with `$n` for each literal, in one line. Comments are gone with it.
fn without_literals(text: &str) -> Option<String> {
    if text.len() > REMARK_TEXT_BYTES_MAX {
        return None;
    }
    let normal = pg_query::normalize(text).ok()?;
    let parsed = meaning::tree(&normal).ok()?;
    let written = parsed.deparse(pg_query::DeparseOptions::default()).ok()?;
    let written = without_constants(&written)?;
    let mut line: String = written.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = line.char_indices().nth(REMARK_CHARS_MAX) {
        line.truncate(cut);
        line.push_str(" ...");
    }
    Some(line)
}

/// What the parser leaves in (the arguments of EXECUTE, places in ORDER BY, counts, options): `?` for each number. `None`: a string.
fn without_constants(written: &str) -> Option<String> {
    use scan::Kind as K;
    let (mut line, mut shown) = (String::with_capacity(written.len()), 0);
    for token in scan::scan(written.as_bytes(), true) {
        match token.kind {
            K::Integer | K::Decimal | K::OtherNumber => {
                line.push_str(written.get(shown..token.start)?);
                line.push('?');
                shown = token.end;
            }
            K::Junk | K::Unterminated => return None,
            kind if kind.is_string() => return None,
            _ => {}
        }
    }
    line.push_str(written.get(shown..)?);
    Some(line)
}

#[cfg(test)]
mod tests;
