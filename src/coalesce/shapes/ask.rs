//! The queries to the server about one statement, and the reasons for which it is refused.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::{NO_ANSWER_KEPT, REFUSAL_KEPT, Source, THOUGHT_MAX};
use crate::coalesce::catalog::{self, Reason, Table};
use crate::coalesce::plan::{self, InsertPlan};
use crate::coalesce::tables::{Seen, Tables};
use crate::pool::{Checkout, Pool, within};
use crate::proto::prepared::{NO_ROWS, OwnStatement, Statement, settings_of_texts};
use crate::proto::vars::{VarSet, Whose};
use crate::server::internal::{Lost, Reply};
use crate::sql::cast::OtherType;
use crate::sql::effects::Effects;
use crate::sql::insert::{Lifted, NotPourable, lift, table_named};
use crate::sql::meaning;
use crate::wire::backend::{ErrorFields, QUERY_CANCELED, row_shape};

/// A table as a statement names it: the catalogue may not know it.
fn as_written(target: &meaning::InsertTarget) -> String {
    match &target.schema {
        Some(schema) => format!("{schema}.{}", target.table),
        None => target.table.clone(),
    }
}

/// One question to the catalogue, with everything it needs of its own.
pub(super) enum Question {
    /// One row, and how many are run at once.
    Literals(Vec<u8>, usize),
    Prepared(Arc<Statement>),
}

/// For a statement that is no COPY: the statement to run, its rows, and the RowDescription of its answer.
type Together = Option<(Arc<Statement>, usize, Option<Vec<u8>>)>;

pub(super) struct Answer {
    pub(super) plan: InsertPlan,
    pub(super) param_description: Option<Vec<u8>>,
    pub(super) together: Together,
    /// [`Seen::wrong`]
    pub(super) wrong: Arc<AtomicBool>,
}

/// Why a question was not answered by a plan, and how long that is believed.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The table, once the statement was read.
    pub(super) table: Option<String>,
    pub(super) why: String,
    pub(super) kept: Duration,
    /// The reason is the table, and not the statement.
    pub(super) whole_table: bool,
    /// The connection that was asked would give everybody the same answer, or none.
    spoilt: bool,
}

impl Refusal {
    /// It says nothing about the statement: the connection, or the pool, could not answer.
    fn for_now(why: impl Into<String>) -> Self {
        Self { kept: NO_ANSWER_KEPT, ..why.into().into() }
    }

    pub(super) fn of(self, table: String) -> Self {
        Self { table: Some(table), ..self }
    }

    pub(super) fn of_whole_table(self) -> Self {
        Self { whole_table: true, ..self }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { table: None, why, kept: REFUSAL_KEPT, whole_table: false, spoilt: false }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        match reason {
            // They belong to the connection that was asked, until it ends; a client that has such objects keeps another one.
            Reason::TemporaryObjects => Self { spoilt: true, ..Self::for_now(reason.to_string()) },
            reason => reason.to_string().into(),
        }
    }
}

impl Question {
    pub(super) fn of(source: Source<'_>) -> Self {
        match source {
            Source::Literals { lifted, text, row, .. } => {
                let mut one_row = Vec::new();
                lifted.put_statement(text, row, &mut one_row);
                Self::Literals(one_row, lifted.rows_at_once())
            }
            Source::Prepared(statement) => Self::Prepared(Arc::clone(statement)),
        }
    }

    fn text(&self) -> &[u8] {
        match self {
            Self::Literals(text, _) => text,
            Self::Prepared(statement) => &statement.query,
        }
    }

    /// Asks what is not known yet.
    pub(super) async fn ask(&self, tables: &Tables, mut asker: Asker<'_>) -> Result<Answer, Refusal> {
        let pool = asker.pool;
        let mut lifted = Lifted::new();
        let by_its_text = |why: NotPourable| {
            let table = table_named(self.text()).map(|table| String::from_utf8_lossy(table).into_owned());
            Refusal { table, ..why.to_string().into() }
        };
        lift(self.text(), &mut lifted).map_err(by_its_text)?;
        // A named statement with many rows: they are alike.
        let mut one_row = Vec::new();
        lifted.put_statement(self.text(), 0, &mut one_row);
        lift(&one_row, &mut lifted).map_err(|why: NotPourable| why.to_string())?;
        let text = match self {
            // They are no part of the shape, and the next one may be in ASCII.
            Self::Literals(..) => meaning::with_readable_strings(&one_row, &lifted).ok(),
            Self::Prepared(_) => std::str::from_utf8(&one_row).ok().map(Cow::Borrowed),
        };
        let text = &*text.ok_or_else(|| "the text is not UTF-8".to_owned())?;
        let mut target = meaning::insert_target(text).map_err(by_its_text)?;
        if target.types != lifted.types {
            return Err(NotPourable::Disagreement.to_string().into());
        }
        if !lifted.tail.is_plain() && !pool.settings.load().coalesce.share_transaction {
            let why = "coalesce.share_transaction is off".to_owned();
            return Err(Refusal::from(why).of(as_written(&target)));
        }

        let answer = self.answer(tables, &mut asker, text, &mut target, &lifted).await;
        asker.done(answer.as_ref().is_err_and(|refusal| refusal.spoilt));
        let mut answer = answer.map_err(|refusal| refusal.of(as_written(&target)))?;
        answer.plan.max_value_bytes = pool.settings.load().coalesce.max_value_bytes;
        Ok(answer)
    }

    async fn answer(
        &self,
        tables: &Tables,
        asker: &mut Asker<'_>,
        text: &str,
        target: &mut meaning::InsertTarget,
        lifted: &Lifted,
    ) -> Result<Answer, Refusal> {
        if let Some(name) = asker.library_setting().await? {
            return Err(Refusal::from(Reason::LibrarySetting(name)).of_whole_table());
        }
        let name = catalog::lookup_name(target.schema.as_deref(), &target.table);
        let seen = asker.table(tables, &name).await?;
        if (lifted.looks_up_types() || target.returns_text() || target.computes()) && seen.names_catalog {
            return Err(Reason::TypeNames.into());
        }
        let table = &seen.table;
        if let Some(why) = &table.refused {
            return Err(Refusal { kept: seen.left(), ..Refusal::from(why.clone()).of_whole_table() });
        }
        target.type_oids = asker.types(&target.types).await?;
        let target = &*target;
        let together = !lifted.tail.is_plain();
        let (plan, param_description, together) = match self {
            Self::Literals(_, rows) if together => {
                let plan = plan::plan_literals_together(table, target)?;
                let mut sql = Vec::with_capacity(text.len() * rows);
                lifted.put_with_parameters(text.as_bytes(), *rows, &mut sql);
                let statement = Statement::new(&sql, &[], Effects::NONE);
                let reply = asker.describe(&statement, false).await?;
                let parameters = reply.param_types.unwrap_or_default().len();
                if parameters != usize::from(plan.literals) * rows {
                    return Err(Reason::ParameterList.into());
                }
                (plan, None, Some((statement, *rows, reply.row_description)))
            }
            Self::Literals(..) => (plan::plan_literals(table, target)?, None, None),
            Self::Prepared(statement) => {
                plan_prepared(statement, asker, table, target, (text, lifted)).await?
            }
        };
        if plan.names != "{}" && !asker.are_own(&plan.names).await? {
            return Err(Reason::OtherMeaning.into());
        }
        let plan = InsertPlan { has_sentinel: seen.has_sentinel && plan.has_sentinel, ..plan };
        Ok(Answer { plan, param_description, together, wrong: Arc::clone(&seen.wrong) })
    }
}

/// For a statement that a client prepared: its plan, ParameterDescription, and what is run if it is no COPY.
async fn plan_prepared(
    statement: &Arc<Statement>,
    asker: &mut Asker<'_>,
    table: &Table,
    target: &meaning::InsertTarget,
    (text, lifted): (&str, &Lifted),
) -> Result<(InsertPlan, Option<Vec<u8>>, Together), Refusal> {
    let reply = asker.describe(statement, asker.may_keep(statement)).await?;
    let types = reply.param_description.as_ref().and_then(|body| body.get(2..));
    let types = types.unwrap_or_default().to_vec();
    if statement.params.get().is_some_and(|told| **told != *types) {
        // Clients were told other types; the connection that was asked has these.
        statement.has_params(&types);
        return Err(Refusal::for_now("its parameters have other types by now"));
    }
    let oids = reply.param_types.unwrap_or_default();
    let rows = statement.as_insert().map_or(1, |insert| insert.rows);
    let oids = oids_of_one_row(&oids, rows)?;
    let (text, items) = (text.as_bytes(), &lifted.items);
    if lifted.tail.is_plain() {
        let plan = plan::plan_params(table, target, text, items, oids)?;
        return Ok((plan, reply.param_description, None));
    }
    let plan = plan::plan_params_together(table, target, text, items, oids)?;
    // With the types that it was planned for: connections may hold it with others, from before a column was altered.
    let Statement { query, class, effects, .. } = &**statement;
    let run = Statement::under(query, &types, *class, *effects);
    Ok((plan, reply.param_description, Some((run, rows, reply.row_description))))
}

/// Asks on a connection that has the client's settings, once there is something to ask.
pub(super) struct Asker<'a> {
    pool: &'a Arc<Pool>,
    vars: Arc<VarSet>,
    /// What sessions agree on that get the same answer.
    class: u64,
    /// The settings that a named statement would be parsed under.
    texts: u64,
    /// A timeout for each answer: no client waits for it, so nothing else ends the wait for a server that fell silent.
    limit: Duration,
    server: Option<Checkout>,
}

impl<'a> Asker<'a> {
    /// With limits of its own. To describe an INSERT takes the lock that the INSERT takes, and whoever has the table locked may
    /// itself be waiting for a connection: for this one, perhaps.
    pub(super) fn new(pool: &'a Arc<Pool>, vars: &VarSet, class: u64) -> Self {
        let settings = pool.settings.load();
        let (limit, lock_timeout) = (settings.server_connect_timeout, settings.coalesce.lock_timeout);
        let lock_timeout = lock_timeout.as_millis().to_string();
        let own =
            [("lock_timeout", lock_timeout.as_str()), ("statement_timeout", THOUGHT_MAX), ("jit", "off")];
        let texts = settings_of_texts(vars, true);
        let vars = pool.shared().vars.intern(vars.iter().chain(own));
        Self { pool, vars, class, texts, limit, server: None }
    }

    /// May it be prepared here for its clients? Parsed under other settings than theirs it would mean something else to them: types of
    /// its parameters, which table a name is.
    fn may_keep(&self, statement: &Statement) -> bool {
        statement.is_shared() && statement.settings.get().is_none_or(|own| *own == self.texts)
    }

    fn max(&self) -> usize {
        self.pool.settings.load().max_prepared_of_ours()
    }

    async fn server(&mut self) -> Result<&mut Checkout, Refusal> {
        let none = || Refusal::for_now("no server connection");
        if self.server.is_none() {
            let server = self.pool.checkout_to_ask(&self.vars).await.map_err(|_| none())?;
            let (max, limit) = (self.max(), self.limit);
            let settled = self.server.insert(server).settle_vars(&self.vars, max, Whose::nobody(&self.vars));
            if let Some(refused) = heard(limit, settled).await? {
                return Err(server_said(&refused.error));
            }
        }
        self.server.as_mut().ok_or_else(none)
    }

    /// `spoilt`: the connection is of no use to others.
    fn done(self, spoilt: bool) {
        if let Some(server) = self.server.filter(|server| !spoilt && server.is_reusable()) {
            server.release(Instant::now());
        }
    }

    /// A library's setting that the client has set: what the library says or does then is about the client's own statement, and
    /// nobody here knows what it would do with a shared one.
    async fn library_setting(&mut self) -> Result<Option<String>, Refusal> {
        let names: Vec<&str> = self.vars.custom_names().collect();
        if names.is_empty() {
            return Ok(None);
        }
        let names = serde_json::to_string(&names).unwrap_or_default();
        let (max, limit) = (self.max(), self.limit);
        let server = self.server().await?;
        let reply = heard(limit, server.prepared(&LIBRARIES, &[Some(names.as_bytes())], max)).await?;
        let row = one_row(&reply)?;
        Ok(row.first().copied().flatten().map(|name| String::from_utf8_lossy(name).into_owned()))
    }

    /// What the table is like, by the name that the statement has for it.
    async fn table(&mut self, tables: &Tables, name: &str) -> Result<Arc<Seen>, Refusal> {
        let place = tables.place(self.pool, self.class, name);
        let mut turn = match place.look().await {
            Ok(seen) => return Ok(seen),
            Err(turn) => turn,
        };
        let (max, limit) = (self.max(), self.limit);
        let server = self.server().await?;
        let reply = heard(limit, server.prepared(&SESSION, &[], max)).await?;
        let session = catalog::decode_session(&one_row(&reply)?)?;
        let reply = heard(limit, server.prepared(&ELIGIBILITY, &[Some(name.as_bytes())], max)).await?;
        let table = catalog::decode(name, &one_row(&reply)?)?;
        if table.viewer.temporary_objects {
            return Err(Reason::TemporaryObjects.into());
        }
        let has_sentinel = table.refused.is_none() && table.has_sentinel();
        let has_sentinel = has_sentinel && try_sentinel(server, (max, limit), &table).await?;
        let seen = Arc::new(Seen::new(table, session.names_catalog(), has_sentinel));
        *turn = Some(Arc::clone(&seen));
        Ok(seen)
    }

    /// What the names of types mean.
    async fn types(&mut self, names: &[OtherType]) -> Result<Vec<u32>, Refusal> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let (max, limit) = (self.max(), self.limit);
        let list = plan::text_array(names);
        let server = self.server().await?;
        let reply = heard(limit, server.prepared(&TYPES, &[Some(list.as_bytes())], max)).await?;
        Ok(catalog::decode_types(names.len(), &one_row(&reply)?)?)
    }

    /// Are the functions and operators of these names PostgreSQL's own, and the casts between its types?
    async fn are_own(&mut self, names: &str) -> Result<bool, Refusal> {
        let (max, limit) = (self.max(), self.limit);
        let server = self.server().await?;
        let reply = heard(limit, server.prepared(&NAMES, &[Some(names.as_bytes())], max)).await?;
        Ok(one_row(&reply)?.first() == Some(&Some(&b""[..])))
    }

    /// `kept`: the statement is one that clients have prepared.
    async fn describe(&mut self, statement: &Arc<Statement>, kept: bool) -> Result<Reply, Refusal> {
        let (max, limit) = (self.max(), self.limit);
        let server = self.server().await?;
        if !kept {
            return described(heard(limit, server.describe_anew(statement)).await?);
        }
        let reply = described(heard(limit, server.describe(statement, max)).await?)?;
        let shape = reply.row_description.as_deref().and_then(row_shape).unwrap_or(NO_ROWS);
        if statement.shape.get().is_some_and(|told| *told != shape) {
            // Its clients, who find it here, would take it for what they were told of.
            server.names.is_otherwise(statement.id);
        }
        Ok(reply)
    }
}

/// Cancel safety: none; drop the connection if this is cancelled.
async fn heard<T>(limit: Duration, work: impl Future<Output = Result<T, Lost>>) -> Result<T, Refusal> {
    match within(limit, work).await {
        Some(answer) => answer.map_err(|lost| Refusal::for_now(lost.why)),
        None => Err(Refusal { spoilt: true, ..Refusal::for_now("the server does not answer") }),
    }
}

/// The cheap guard needs SELECT on the table: where the role has not got it, the full one has to do.
async fn try_sentinel(
    server: &mut Checkout,
    (max, limit): (usize, Duration),
    table: &catalog::Table,
) -> Result<bool, Refusal> {
    let sql = catalog::sentinel_sql([table.target.as_str()]);
    let statement = Statement::own(&sql);
    let relid = table.relid.to_string();
    let params = [None, Some(table.name_as_written.as_bytes()), Some(relid.as_bytes())];
    let reply = heard(limit, server.prepared(&statement, &params, max)).await?;
    match one_row(&reply) {
        Ok(row) => Ok(catalog::decode_sentinel(&row).is_some()),
        Err(refusal) if refusal.kept == NO_ANSWER_KEPT => Err(refusal),
        Err(_) => Ok(false),
    }
}

/// What the server resolved for the parameters of one row, when it is the same for all of them.
fn oids_of_one_row(oids: &[u32], rows: usize) -> Result<&[u32], Reason> {
    let (first, _) = oids.split_at(oids.len() / rows.max(1));
    let same = first.len() * rows == oids.len()
        && (first.is_empty() || oids.chunks(first.len()).all(|row| row == first));
    if same { Ok(first) } else { Err(Reason::ParameterList) }
}

fn described(reply: Reply) -> Result<Reply, Refusal> {
    match &reply.error {
        Some(error) => Err(server_said(error)),
        None => Ok(reply),
    }
}

fn one_row(reply: &Reply) -> Result<Vec<Option<&[u8]>>, Refusal> {
    if let Some(error) = &reply.error {
        return Err(server_said(error));
    }
    let row = reply.rows.first().ok_or_else(|| Refusal::from("the catalogue gave no row".to_owned()))?;
    Ok(row.iter().map(Option::as_deref).collect())
}

fn server_said(error: &[u8]) -> Refusal {
    let fields = ErrorFields::new(error);
    let why = format!("the server says: {}", String::from_utf8_lossy(fields.field(b'M').unwrap_or_default()));
    // A lock that was not to be had (lock_timeout), a question that took too long.
    match fields.sqlstate() {
        b"55P03" | QUERY_CANCELED => Refusal::for_now(why),
        _ => why.into(),
    }
}

static SESSION: OwnStatement = OwnStatement::new(|| Statement::own(catalog::SESSION_SQL));
static ELIGIBILITY: OwnStatement = OwnStatement::new(|| Statement::own(catalog::ELIGIBILITY_SQL));
static TYPES: OwnStatement = OwnStatement::new(|| Statement::own(catalog::TYPES_SQL));
static NAMES: OwnStatement = OwnStatement::new(|| Statement::own(catalog::NAMES_SQL));
static LIBRARIES: OwnStatement = OwnStatement::new(|| Statement::own(catalog::LIBRARIES_SQL));

/// The check inside a flush's transaction.
pub(in crate::coalesce) static GUARD: OwnStatement =
    OwnStatement::new(|| Statement::own(catalog::guard_sql()));
