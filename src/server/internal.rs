//! Round trips of our own on a server connection: the session probe, reset, check, catalogue questions.
//!
//! Owns: sending one unit of pgsluice's own and reading its answers to the end. Never on the hot path.
//! Unless documented otherwise these functions are not cancel safe: drop the connection if one is cancelled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::role::{self, Role};
use super::{AT_ONCE, AT_ONCE_SQL, ServerConn, report, why_ended};
use crate::limits::HEARD_BYTES_MAX;
use crate::proto::pipeline::{Action, Kind, Settled};
use crate::proto::prepared::{OwnStatement, Statement};
use crate::proto::vars::{VarSet, Whose};
use crate::wire::{backend as b, frame, frontend as f};

/// Rows of text values.
pub type Rows = Vec<Vec<Option<Vec<u8>>>>;

/// Largest answer of a round trip (bytes).
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Largest answer of the statements of a batch (bytes), and the largest message in it.
const RAW_BYTES_MAX: usize = 64 << 20;

/// How often the probe is sent, at most, when a cancel request hits it.
const PROBE_TRIES: usize = 3;

/// Pause between looks at a cancel request on its way.
const CANCEL_POLL: Duration = Duration::from_millis(5);

/// A NoticeResponse.
#[derive(Debug)]
pub struct Notice {
    /// The number of command tags that came before it.
    pub behind: usize,
    /// Its body.
    pub body: Vec<u8>,
}

/// ParameterDescription, RowDescription or NoData.
#[derive(Debug)]
pub struct Described {
    /// The statement, as [`crate::proto::pipeline::Owed`] has it.
    pub statement: u32,
    /// The message's type byte.
    pub tag: u8,
    /// Its body.
    pub body: Vec<u8>,
}

/// The answers of one round trip.
#[derive(Debug, Default)]
pub struct Reply {
    /// All rows.
    pub rows: Rows,
    /// The body of the first ErrorResponse.
    pub error: Option<Vec<u8>>,
    /// Type OIDs of ParameterDescription, if one came.
    pub param_types: Option<Vec<u32>>,
    /// Command tags, in order.
    pub tags: Vec<Vec<u8>>,
    /// NoticeResponse messages.
    pub notices: Vec<Notice>,
    /// ParameterDescription's body, to be given to a client as it is.
    pub param_description: Option<Vec<u8>>,
    /// RowDescription's body, likewise.
    pub row_description: Option<Vec<u8>>,
    /// Descriptions of statements, by their ids.
    pub described: Vec<Described>,
    /// The answers of this many further statements are kept in `raw` and nowhere else ...
    pub raw_left: usize,
    /// ... after this many command tags of pgsluice's own statements.
    pub raw_behind: usize,
    /// DataRow, NoticeResponse and CommandComplete of those statements, whole and in order.
    pub raw: Vec<u8>,
    /// Bytes of all that came.
    pub bytes: usize,
    /// An impossible message came, so that no earlier answer is believed.
    pub contradicted: bool,
}

impl Reply {
    /// Keeps a message of a statement whose answer goes to a client. True: it was such a message.
    fn keep_raw(&mut self, tag: u8, frame: &[u8]) -> bool {
        let kept = self.raw_left > 0
            && self.tags.len() >= self.raw_behind
            && matches!(tag, b::DATA_ROW | b::NOTICE_RESPONSE | b::COMMAND_COMPLETE);
        if kept {
            self.raw.extend_from_slice(frame);
            self.raw_left -= usize::from(tag == b::COMMAND_COMPLETE);
        }
        kept
    }

    /// Keeps one message of an answer. `raw`: it goes to a client and is kept there. `statement`: the id of its statement, or 0.
    fn keep(&mut self, tag: u8, body: &[u8], raw: bool, statement: u32) -> Result<(), String> {
        if statement != 0 && matches!(tag, b::PARAMETER_DESCRIPTION | b::ROW_DESCRIPTION | b::NO_DATA) {
            self.described.push(Described { statement, tag, body: body.to_vec() });
        }
        match tag {
            b::ERROR_RESPONSE => {
                self.error.get_or_insert_with(|| body.to_vec());
            }
            _ if raw => {}
            b::ROW_DESCRIPTION => self.row_description = Some(body.to_vec()),
            b::DATA_ROW => {
                let row = b::data_row(body).map_err(|e| e.to_string())?;
                self.rows.push(row.into_iter().map(|v| v.map(<[u8]>::to_vec)).collect());
            }
            b::COMMAND_COMPLETE => self.tags.push(body.strip_suffix(b"\0").unwrap_or(body).to_vec()),
            b::PARAMETER_DESCRIPTION => {
                let oids = body.get(2..).map(|oids| oids.chunks_exact(4));
                self.param_types =
                    oids.map(|oids| oids.map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]])).collect());
                self.param_description = Some(body.to_vec());
            }
            _ => {}
        }
        Ok(())
    }

    fn bytes_max(&self) -> usize {
        if self.raw_left > 0 || !self.raw.is_empty() { RAW_BYTES_MAX } else { ANSWER_BYTES_MAX }
    }

    fn message_max(&self) -> usize {
        if self.raw_left > 0 { RAW_BYTES_MAX } else { ANSWER_BYTES_MAX }
    }
}

/// Settings could not be set; none of them was.
#[derive(Debug)]
pub struct Refused {
    /// The body of the ErrorResponse.
    pub error: Vec<u8>,
    /// The setting whose value was refused; `None`: a reset was refused.
    pub setting: Option<Box<str>>,
}

/// The connection can't be used any more.
#[derive(Debug)]
pub struct Lost {
    /// The reason.
    pub why: String,
    /// The body of the ErrorResponse with which the server ended it, if it sent one.
    pub said: Option<Vec<u8>>,
}

impl Lost {
    /// Without an ErrorResponse of the server.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), said: None }
    }

    /// With the server's last ErrorResponse, if that ended the connection.
    pub fn behind(reply: &Reply, why: impl Into<String>) -> Self {
        let said = reply.error.as_ref().filter(|body| b::ErrorFields::new(body).ends_connection());
        Self { why: why.into(), said: said.cloned() }
    }
}

impl ServerConn {
    /// Runs `text` as one Query of ours.
    ///
    /// # Errors
    /// [`Lost`] when the connection failed or the server broke the protocol.
    pub async fn simple(&mut self, text: &str) -> Result<Reply, Lost> {
        self.conn.prepare_out();
        f::put_query(&mut self.conn.out, text.as_bytes());
        self.pipeline.push(Kind::Query, Action::Own, false);
        self.names.unnamed = None;
        self.finish().await
    }

    /// As [`ServerConn::simple`], for a text that only reads: under a client's settings, but without waiting for other transactions.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn simple_at_once(&mut self, text: &str) -> Result<Reply, Lost> {
        if self.may_wait_for_others() {
            return self.simple(&format!("{AT_ONCE_SQL};{text}")).await;
        }
        self.simple(text).await
    }

    /// Runs a prepared statement of pgsluice's own, and prepares it first if it is missing.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn prepared(
        &mut self,
        statement: &Statement,
        params: &[Option<&[u8]>],
        max: usize,
    ) -> Result<Reply, Lost> {
        self.conn.prepare_out();
        if self.may_wait_for_others() {
            let mut names = std::mem::take(&mut self.own_names);
            self.put_own(&AT_ONCE, &[], &mut names, max);
            self.own_names = names;
        }
        self.ensure_own(statement, max);
        f::put_bind_text(&mut self.conn.out, statement.server_name.as_bytes(), params);
        self.pipeline.push(Kind::Bind, Action::Own, false);
        f::put_execute(&mut self.conn.out, b"", 0);
        self.pipeline.push(Kind::Execute, Action::Own, false);
        self.put_sync();
        self.finish().await
    }

    /// Appends a Parse, as part of a unit that [`ServerConn::finish`] reads to its end, unless the statement is there
    /// already.
    pub fn ensure_own(&mut self, statement: &Statement, max: usize) {
        let mut names = std::mem::take(&mut self.own_names);
        self.ensure(statement, &mut names, max, Action::Own);
        self.own_names = names;
    }

    /// Gives this connection the settings `want`, for `whose`, in a round trip of its own if they differ, because nothing may
    /// run if they cannot be set. `Some`: they could not; drop the connection, or give it others.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn settle_vars(
        &mut self,
        want: &Arc<VarSet>,
        max: usize,
        whose: Whose,
    ) -> Result<Option<Refused>, Lost> {
        let mut refused = self.set_vars(want, max, whose).await?;
        if refused.is_some() {
            // Maybe the role at hand may not give back what a client had set, or not set what this one set before it took that role
            // on: who logged in gives all back, sets what there is to set, and takes the role on.
            self.unvouched = Some(u64::MAX);
            refused = self.set_vars(want, max, whose).await?;
        }
        self.broken |= refused.is_some();
        Ok(refused)
    }

    async fn set_vars(
        &mut self,
        want: &Arc<VarSet>,
        max: usize,
        whose: Whose,
    ) -> Result<Option<Refused>, Lost> {
        let before = (Arc::clone(&self.vars), self.since, self.unvouched);
        let mut names = std::mem::take(&mut self.own_names);
        let appended = self.apply_vars(want, &mut names, max, whose);
        self.own_names = names;
        let reply = if appended { self.finish().await? } else { Reply::default() };
        let Some(error) = reply.error else { return Ok(None) };
        // Nothing of it was done.
        (self.vars, self.since, self.unvouched) = before;
        let (have, at) = (Arc::clone(&self.vars), reply.tags.iter().filter(|tag| **tag != b"SET").count());
        let refused = self.steps(&have, want, whose).into_iter().nth(at).filter(|step| step.value.is_some());
        Ok(Some(Refused { error, setting: refused.map(|step| step.name.into()) }))
    }

    /// Prepares a statement where it is missing and asks for its parameters' types.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn describe(&mut self, statement: &Statement, max: usize) -> Result<Reply, Lost> {
        self.conn.prepare_out();
        self.ensure_own(statement, max);
        f::put_target(&mut self.conn.out, f::DESCRIBE, b'S', statement.server_name.as_bytes());
        self.pipeline.push(Kind::Describe, Action::Own, false);
        self.put_sync();
        self.finish().await
    }

    /// As [`ServerConn::describe`], of a statement that a client parses anew each time: what its types are now, not
    /// what they were when it was prepared here.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn describe_anew(&mut self, statement: &Statement) -> Result<Reply, Lost> {
        self.conn.prepare_out();
        self.names.unnamed = None;
        f::put_parse(&mut self.conn.out, b"", &statement.query, &statement.types);
        self.pipeline.push(Kind::Parse, Action::Own, false);
        f::put_target(&mut self.conn.out, f::DESCRIBE, b'S', b"");
        self.pipeline.push(Kind::Describe, Action::Own, false);
        self.put_sync();
        self.finish().await
    }

    /// Writes what waits and reads until nothing is owed.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn finish(&mut self) -> Result<Reply, Lost> {
        let mut reply = Reply::default();
        self.finish_into(&mut reply).await?;
        Ok(reply)
    }

    /// As [`ServerConn::finish`], and `reply` keeps what came before the connection was lost.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn finish_into(&mut self, reply: &mut Reply) -> Result<(), Lost> {
        while !self.pipeline.is_empty() {
            std::future::poll_fn(|cx| self.poll_unit(cx, reply)).await?;
        }
        Ok(())
    }

    /// Writes what waits and reads to the end of the oldest unit, its ReadyForQuery; what comes behind it stays unread. Of a unit
    /// whose Sync was not sent yet: to the last answer that is owed.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    ///
    /// Cancel safety: call again; `reply` keeps what came.
    pub fn poll_unit(&mut self, cx: &mut Context<'_>, reply: &mut Reply) -> Poll<Result<(), Lost>> {
        self.poll_ready_for_query(cx, reply).map_err(|why| {
            self.broken = true;
            Lost::behind(reply, why)
        })
    }

    fn poll_ready_for_query(&mut self, cx: &mut Context<'_>, reply: &mut Reply) -> Poll<Result<(), String>> {
        loop {
            let ended = self.take_answers(reply).inspect_err(|_| reply.contradicted = true)?;
            if reply.bytes > reply.bytes_max() {
                return Poll::Ready(Err("answer is too large".into()));
            }
            if ended || self.pipeline.is_empty() {
                return Poll::Ready(Ok(()));
            }
            // Reading while writing: a server may answer before it has read everything.
            let _ = self.poll_send(cx);
            ready!(self.poll_read(cx)).map_err(|error| why_ended(&error))?;
        }
    }

    /// Takes in what has arrived whole, up to the end of a unit. True: it has come.
    fn take_answers(&mut self, reply: &mut Reply) -> Result<bool, String> {
        loop {
            let buf = self.conn.bytes();
            let Some(head) = frame::header(buf, reply.message_max()).map_err(|e| e.to_string())? else {
                return Ok(false);
            };
            let Some(body) = buf.get(frame::HEADER_BYTES..head.total()) else {
                self.conn.want(head.total());
                return Ok(false);
            };
            reply.bytes += head.total();
            // What comes next would be told to whose rows go before it.
            if reply.raw_left > 0 && matches!(head.tag, b::PORTAL_SUSPENDED | b::EMPTY_QUERY_RESPONSE) {
                return Err("a statement of a batch ends without a tag".into());
            }
            let raw = reply.keep_raw(head.tag, &buf[..head.total()]);
            match head.tag {
                b::READY_FOR_QUERY => {
                    let status = b::ready_for_query(body).map_err(|e| e.to_string())?;
                    self.pipeline.recv_ready(status).map_err(|violation| violation.to_string())?;
                }
                b::PARAMETER_STATUS => {
                    let (name, value) = b::parameter_status(body).map_err(|e| e.to_string())?;
                    if report(&mut self.reported, name, value) {
                        self.shared.heard_of(name);
                    }
                }
                b::NOTIFICATION_RESPONSE => {
                    if self.heard.len() + head.total() > HEARD_BYTES_MAX {
                        return Err("too many notifications".into());
                    }
                    self.heard.extend_from_slice(&buf[..head.total()]);
                }
                b::NOTICE_RESPONSE if raw => {}
                b::NOTICE_RESPONSE => {
                    let notice = Notice { behind: reply.tags.len(), body: body.to_vec() };
                    reply.notices.push(notice);
                }
                tag => {
                    reply.keep(tag, body, raw, self.pipeline.front_statement())?;
                    self.settle(tag)?;
                }
            }
            self.conn.consume(head.total());
            if head.tag == b::READY_FOR_QUERY {
                return Ok(true);
            }
        }
    }

    /// An answer has come that was owed.
    fn settle(&mut self, tag: u8) -> Result<(), String> {
        match self.pipeline.recv(tag).map_err(|violation| violation.to_string())?.1 {
            Settled::No => {}
            Settled::Done => self.own_names.settle(),
            Settled::Struck(count) | Settled::Failed(count) => {
                self.own_names.strike(count, &mut self.names);
            }
        }
        Ok(())
    }

    /// Waits until cancel requests on their way have arrived, and takes up with round trips what they leave behind.
    ///
    /// # Errors
    /// As [`ServerConn::simple`].
    pub async fn settle_cancels(&mut self) -> Result<(), Lost> {
        if self.shared.cancels.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        while self.shared.cancels.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(CANCEL_POLL).await;
        }
        for _ in 0..2 {
            self.simple("").await?;
        }
        Ok(())
    }

    /// Asks whether the server is still what the target wants; to be done where a doubt arose.
    ///
    /// # Errors
    /// As [`ServerConn::simple`]; an answer that says nothing is `Lost` too.
    pub async fn settle_role(&mut self) -> Result<bool, Lost> {
        self.shared.role_doubted.store(false, Ordering::Relaxed);
        let reply = self.simple_at_once(role::QUESTION).await?;
        let row: Vec<_> = reply.rows.first().into_iter().flatten().map(Option::as_deref).collect();
        let role = Role::answered(&row).ok_or_else(|| Lost::new("the server does not say what it is"))?;
        Ok(role
            .unless_asked_for(self.startup.iter().flat_map(|set| set.iter()))
            .unfit_for(self.shared.target.attrs)
            .is_none())
    }

    /// Asks what session state this connection carries now.
    ///
    /// # Errors
    /// As [`ServerConn::simple`]; a malformed answer is `Lost` too.
    ///
    /// `names` are settings of extensions and applications (`app.user`) that may have been set: `pg_settings` does not
    /// show those that nobody defined.
    /// `doubted`: what ran may have taken prepared statements of ours away or put others in their place, the probe too.
    pub async fn probe(&mut self, names: &[String], doubted: bool, max: usize) -> Result<Probe, Lost> {
        let vars = Arc::clone(&self.vars);
        // In another encoding there may be no such character, and the whole question fails.
        let utf8 = self.reported.has(b"server_encoding", b"UTF8");
        let mut asked: Vec<&String> = names.iter().filter(|name| utf8 || name.is_ascii()).collect();
        let mut refused = Vec::new();
        let mut reply = loop {
            // Those that are known to be set here must be in the answer, or they would be taken for gone.
            let known = vars.iter().map(|(name, _)| name).filter(|name| name.contains('.'));
            let names = ascii_json(&known.chain(asked.iter().map(|name| name.as_str())).collect::<Vec<_>>());
            let reply = self.probe_own(names.as_bytes(), doubted, max).await?;
            let Some(error) = &reply.error else { break reply };
            let error = b::ErrorFields::new(error);
            let why = String::from_utf8_lossy(error.field(b'M').unwrap_or_default());
            if asked.is_empty() {
                return Err(Lost::new(format!("session probe failed: {why}")));
            }
            refused.extend(take_named(&mut asked, &why).into_iter().cloned());
        };
        let login = self.shared.target.user.clone();
        let lifted = if reply.rows.len() > 1 { reply.rows.remove(0) } else { Vec::new() };
        let mut lifted =
            lifted.into_iter().map(|was| was.map(|was| String::from_utf8_lossy(&was).into_owned()));
        let mut probe =
            Probe::decode(&reply.rows, &login).ok_or_else(|| Lost::new("session probe gave no row"))?;
        if let Some(limit) = lifted.next().flatten() {
            probe
                .settings
                .iter_mut()
                .filter(|(n, _)| n == "statement_timeout")
                .for_each(|s| s.1.clone_from(&limit));
        }
        if let Some(jit) = lifted.next().flatten() {
            probe.put_jit(jit);
        }
        probe.refused = refused;
        if !probe.sees_all {
            // What was known before and is not shown now is taken to be as it was.
            for (name, value) in self.vars.hidden() {
                if !probe.settings.iter().any(|(shown, _)| shown == name) {
                    probe.settings.push((name.into(), value.into()));
                }
            }
        }
        Ok(probe)
    }

    /// The probe; where there is doubt whether what stands under our names is ours, with a look at that.
    async fn probe_own(&mut self, names: &[u8], doubted: bool, max: usize) -> Result<Reply, Lost> {
        let held = self.names.len().to_string();
        let mut reply = self.probe_unstruck(names, doubted, max).await?;
        let found =
            if doubted && !reply.rows.is_empty() { reply.rows.remove(0).pop().flatten() } else { None };
        if doubted && found.as_deref() != Some(held.as_bytes()) {
            self.forget_statements().await?;
            reply = self.probe_unstruck(names, false, max).await?;
        }
        Ok(reply)
    }

    /// What stands under our names is not what was prepared under them: it goes, and is prepared anew. What the client itself has
    /// prepared by SQL stays: it may be another pgsluice that gave ours other names.
    async fn forget_statements(&mut self) -> Result<(), Lost> {
        self.conn.prepare_out();
        let mut own = std::mem::take(&mut self.own_names);
        for id in self.names.take_all() {
            self.put_close(id, &mut own, Action::Own);
        }
        self.own_names = own;
        self.put_sync();
        match self.finish().await?.error {
            None => Ok(()),
            Some(_) => Err(Lost::new("prepared statements are not what they were")),
        }
    }

    /// An administrator's `pg_cancel_backend` that comes behind the client's answer strikes the probe, where directly it strikes
    /// nothing: it is asked again.
    async fn probe_unstruck(&mut self, names: &[u8], counted: bool, max: usize) -> Result<Reply, Lost> {
        let mut reply = self.probe_rows(names, counted, max).await?;
        for _ in 1..PROBE_TRIES {
            let Some(error) = &reply.error else { break };
            if b::ErrorFields::new(error).sqlstate() != b::QUERY_CANCELED {
                break;
            }
            reply = self.probe_rows(names, counted, max).await?;
        }
        Ok(reply)
    }

    /// The probe, which waits for nobody's transaction, and without the client's own short limit on statements and JIT: the row of what
    /// these were stands before the probe's. `counted`: before both, how many prepared statements are ours.
    async fn probe_rows(&mut self, names: &[u8], counted: bool, max: usize) -> Result<Reply, Lost> {
        self.conn.prepare_out();
        if counted {
            f::put_query(&mut self.conn.out, format!("{AT_ONCE_SQL};\n{NAMES_SQL}").as_bytes());
            self.pipeline.push(Kind::Query, Action::Own, false);
            self.names.unnamed = None;
        }
        let mut own = std::mem::take(&mut self.own_names);
        self.put_own(&AT_ONCE, &[], &mut own, max);
        self.put_own(&LIFT, &[], &mut own, max);
        let login = self.shared.target.user.clone();
        self.put_own(&PROBE, &[Some(names), Some(login.as_bytes())], &mut own, max);
        self.own_names = own;
        self.put_sync();
        self.finish().await
    }
}

/// Lifts a statement_timeout of less than a second for the rest of the transaction, and JIT where the probe would be compiled: before 18 a
/// kind of plan that is switched off is estimated to cost enough for it, which takes seconds. The row is what they were; of `jit`, what
/// the session itself has set. PostgreSQL shows such timeouts, and no others, in milliseconds.
static LIFT: OwnStatement = OwnStatement::new(|| Statement::own(LIFT_SQL));

const LIFT_SQL: &str = "\
SELECT CASE WHEN t.short THEN t.timeout END,
       CASE WHEN t.costly THEN (SELECT CASE WHEN s.source OPERATOR(pg_catalog.=) 'session'::pg_catalog.text THEN s.setting ELSE '' END
                                  FROM pg_catalog.pg_settings s WHERE s.name OPERATOR(pg_catalog.=) 'jit'::pg_catalog.text) END,
       CASE WHEN t.short THEN pg_catalog.set_config('statement_timeout', '0', true) END,
       CASE WHEN t.costly THEN pg_catalog.set_config('jit', 'off', true) END
  FROM (SELECT s.timeout, pg_catalog.right(s.timeout, 2) OPERATOR(pg_catalog.=) 'ms'::pg_catalog.text AS short,
               'off'::pg_catalog.text OPERATOR(pg_catalog.=) ANY (ARRAY[pg_catalog.current_setting('enable_nestloop'),
                   pg_catalog.current_setting('enable_seqscan'), pg_catalog.current_setting('enable_sort'),
                   pg_catalog.current_setting('enable_hashagg'), pg_catalog.current_setting('enable_indexscan')]) AS costly
          FROM (SELECT pg_catalog.current_setting('statement_timeout') AS timeout OFFSET 0) s) t";

/// How many prepared statements are ours, whatever the client's own limit on statements. Never prepared itself: nothing can
/// be put in its place.
const NAMES_SQL: &str = "\
SET LOCAL statement_timeout = 0;
SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_statements p
 WHERE NOT p.from_sql AND p.name OPERATOR(pg_catalog.~) '^pgsluice_[0-9]+$'::pg_catalog.text";

/// Session state as the server itself tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probe {
    /// Settings changed in the session, with `role` and `session_authorization` where they differ from the login.
    pub settings: Vec<(String, String)>,
    /// Channels listened to.
    pub listen: bool,
    /// Session-level advisory locks held.
    pub advisory_lock: bool,
    /// Objects in this session's temporary schema.
    pub temp: bool,
    /// Cursors WITH HOLD.
    pub hold_cursor: bool,
    /// Statements of SQL's PREPARE.
    pub prepare: bool,
    /// It was asked as a role that may read all settings: none that is set is missing.
    pub sees_all: bool,
    /// Names of settings that the server does not speak of to the role that asked.
    pub refused: Vec<String>,
}

impl Probe {
    /// State that can't be carried to another server connection.
    pub fn is_bound(&self) -> bool {
        self.listen || self.advisory_lock || self.temp || self.hold_cursor || self.prepare
    }

    /// `jit` was off while the probe ran; what the session itself had set, or nothing.
    fn put_jit(&mut self, own: String) {
        self.settings.retain(|(name, _)| name != "jit");
        if !own.is_empty() {
            self.settings.push(("jit".into(), own));
        }
    }

    fn decode(rows: &Rows, login: &str) -> Option<Self> {
        let row = rows.first()?;
        let flag = |i: usize| row.get(i).and_then(Option::as_deref) == Some(b"t");
        let json = unhex(row.first()?.as_deref()?)?;
        let (mut settings, role, session): (Vec<(String, String)>, Option<String>, String) =
            serde_json::from_slice(&json).ok()?;
        settings.extend(role.map(|role| ("role".into(), role)));
        if session != login {
            settings.push(("session_authorization".into(), session));
        }
        Some(Self {
            settings,
            listen: flag(1),
            advisory_lock: flag(2),
            temp: flag(3),
            hold_cursor: flag(4),
            prepare: flag(5),
            sees_all: flag(6),
            refused: Vec::new(),
        })
    }
}

/// Takes out those that the server names in why it does not answer; all, where it names none.
fn take_named<'a>(asked: &mut Vec<&'a String>, why: &str) -> Vec<&'a String> {
    let (named, rest): (Vec<_>, Vec<_>) =
        asked.drain(..).partition(|name| why.contains(&format!("\"{name}\"")));
    if named.is_empty() {
        return rest;
    }
    *asked = rest;
    named
}

/// JSON that every client encoding leaves as it is.
fn ascii_json(names: &[&str]) -> String {
    let json = serde_json::to_string(names).unwrap_or_default();
    let mut units = [0; 2];
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
        } else {
            ascii.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    ascii
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).map(|v| v as u8);
    digits.chunks(2).map(|pair| Some(value(pair[0])? << 4 | value(*pair.get(1)?)?)).collect()
}

/// One row: settings with their values, role (by the name that it has now) and session_user as JSON (in hexadecimal digits of
/// UTF-8, whatever the client's encoding is, but where the server has no conversion to it: then only ASCII can be read; not
/// those that are a transaction's, nor `seed`, which no SHOW gives back),
/// then a flag for each kind of state that is bound to the connection, and one that says whether the settings are all there
/// are. What the login role or the database has a default for is told also where it is none or empty: whoever has nothing set has that
/// default. Every name is qualified: it runs under the client's search_path.
static PROBE: OwnStatement = OwnStatement::new(|| Statement::own(PROBE_SQL));

const PROBE_SQL: &str = "\
WITH defaults AS MATERIALIZED (
       SELECT pg_catalog.lower(pg_catalog.split_part(c.said, '=', 1)) AS name
         FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) c(said)
        WHERE s.setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, (SELECT d.oid FROM pg_catalog.pg_database d
                WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())])
          AND s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, (SELECT r.oid FROM pg_catalog.pg_roles r
                WHERE r.rolname::pg_catalog.text OPERATOR(pg_catalog.=) $2::pg_catalog.text)]))
SELECT pg_catalog.encode(pg_catalog.convert_to(pg_catalog.json_build_array(
       COALESCE((SELECT pg_catalog.json_agg(pg_catalog.json_build_array(a.name, COALESCE(a.setting, ''))) FROM (
                  WITH known AS MATERIALIZED (SELECT s.name, s.setting, s.source FROM pg_catalog.pg_settings s)
                  SELECT s.name, s.setting
                    FROM known s
                   WHERE s.source OPERATOR(pg_catalog.=) 'session'::pg_catalog.text
                     AND s.name OPERATOR(pg_catalog.<>) ALL ('{session_authorization,role,seed,transaction_isolation,transaction_read_only,transaction_deferrable}'::pg_catalog.text[])
                  UNION
                  SELECT n.name, pg_catalog.current_setting(n.name, true)
                    FROM pg_catalog.json_array_elements_text($1::pg_catalog.text::pg_catalog.json) n(name)
                   WHERE n.name OPERATOR(pg_catalog.<>) ALL (ARRAY(SELECT pg_catalog.lower(k.name) FROM known k WHERE k.name OPERATOR(pg_catalog.~~) '%.%'::pg_catalog.text))
                     AND (pg_catalog.current_setting(n.name, true) OPERATOR(pg_catalog.<>) ''::pg_catalog.text
                          OR pg_catalog.current_setting(n.name, true) OPERATOR(pg_catalog.=) ''::pg_catalog.text
                             AND EXISTS (SELECT 1 FROM defaults d WHERE d.name OPERATOR(pg_catalog.=) n.name))) a),
               '[]'::pg_catalog.json),
       CASE WHEN pg_catalog.current_setting('role') OPERATOR(pg_catalog.=) 'none'::pg_catalog.text
            THEN (SELECT 'none'::pg_catalog.text FROM defaults d WHERE d.name OPERATOR(pg_catalog.=) 'role'::pg_catalog.text LIMIT 1)
            ELSE CURRENT_USER::pg_catalog.text END,
       SESSION_USER)::pg_catalog.text,
         CASE WHEN pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.=) 'MULE_INTERNAL'::pg_catalog.name
              THEN 'MULE_INTERNAL'::pg_catalog.name ELSE 'UTF8'::pg_catalog.name END), 'hex'),
       EXISTS (SELECT 1 FROM pg_catalog.pg_listening_channels()),
       EXISTS (SELECT 1 FROM pg_catalog.pg_locks l
                WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory'::pg_catalog.text
                  AND l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()),
       pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
         AND EXISTS (SELECT 1 FROM pg_catalog.pg_depend d
                      WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
                        AND d.refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()),
       EXISTS (SELECT 1 FROM pg_catalog.pg_cursors c WHERE c.is_holdable),
       EXISTS (SELECT 1 FROM pg_catalog.pg_prepared_statements p WHERE p.from_sql),
       pg_catalog.pg_has_role('pg_read_all_settings'::pg_catalog.name, 'USAGE'::pg_catalog.text)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_does_not_speak_of_is_asked_about_no_more() {
        let names = ["a.b".to_owned(), "c.d".into(), "e.f".into()];
        let mut asked: Vec<&String> = names.iter().collect();
        assert_eq!(take_named(&mut asked, "permission denied to examine \"c.d\""), ["c.d"]);
        assert_eq!(asked, ["a.b", "e.f"]);
        assert_eq!(take_named(&mut asked, "out of memory"), ["a.b", "e.f"]);
        assert!(asked.is_empty());
    }

    #[test]
    fn json_for_the_probe_is_ascii() {
        assert_eq!(ascii_json(&["a.b", "c.\u{e9}\u{1f600}"]), r#"["a.b","c.\u00e9\ud83d\ude00"]"#);
    }

    #[test]
    fn an_odd_answer_of_the_probe_is_no_answer() {
        let row = |json: &str| {
            let hex = json.bytes().map(|b| format!("{b:02x}")).collect::<String>().into_bytes();
            vec![vec![Some(hex), Some(b"t".to_vec())]]
        };
        let probe = Probe::decode(&row(r#"[[["a.b","\u00e9"]],null,"me"]"#), "me").unwrap();
        assert_eq!(probe.settings, [("a.b".to_owned(), "\u{e9}".to_owned())]);
        let probe = Probe::decode(&row(r#"[[],"none","me"]"#), "me").unwrap();
        assert_eq!(probe.settings, [("role".to_owned(), "none".to_owned())]);
        assert!(probe.listen && !probe.temp);
        assert!(Probe::decode(&row("[]"), "me").is_none());
        assert!(Probe::decode(&vec![vec![Some(b"123".to_vec())]], "me").is_none());
        assert!(Probe::decode(&Vec::new(), "me").is_none());
    }
}
