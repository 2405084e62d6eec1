//! Prepared statements: what a client calls them, what a server connection holds.
//!
//! A client's names are its own; on the server a statement is named by its content, so that clients share it.
//! Owns: both maps and the undo list (an error strikes what was sent behind it, so its effect on names must be
//! taken back). Never: sends anything.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};

use crate::limits::NAME_BYTES_MAX;
use crate::mutex::lock;
use crate::proto::vars::VarSet;
use crate::sql::block::Word;
use crate::sql::effects::{Effects, is_read_plainly};
use crate::sql::insert::{Lifted, NotPourable, Tail, lift, quick_reject};
use crate::sql::moves;

/// The prefix of names on servers. A client that uses such a name itself is told that it does not exist.
pub const SERVER_NAME_PREFIX: &str = "pgsluice_";

/// Stands for NoData where a hash of a RowDescription is kept.
pub const NO_ROWS: u64 = 0;

/// One statement by content. Cheap to compare: equal id, equal content.
#[derive(Debug)]
pub struct Statement {
    /// Never reused within a process.
    pub id: u64,
    /// The name on server connections.
    pub server_name: Box<str>,
    /// The text.
    pub query: Box<[u8]>,
    /// Declared parameter types in wire form.
    pub types: Box<[u8]>,
    /// A hash of the settings under which it was parsed, which fix the meaning of its literals and the schemas of its tables.
    pub class: u64,
    /// Of a named statement: a hash of those of its settings that are a session's own; see [`Statement::reads_settings`].
    pub settings: OnceLock<u64>,
    /// The catalogue it was parsed against; see [`Statements::catalog_moved`].
    era: u64,
    /// Its possible effects on session state.
    pub effects: Effects,
    /// See [`is_read_plainly`].
    pub is_read_plainly: bool,
    insert: OnceLock<Result<Box<PreparedInsert>, NotPourable>>,
    /// See [`Statement::makes_for_all`].
    makes_for_all: OnceLock<bool>,
    /// Whether it is a plain command that opens or closes a transaction block; found once.
    pub block: OnceLock<Option<Word>>,
    /// A hash of the RowDescription that the first client was told; see [`Statement::is_stale`].
    pub shape: OnceLock<u64>,
    /// The types of its parameters in wire form, as the server told them first; see [`Statement::has_params`].
    pub params: OnceLock<Box<[u8]>>,
    moved: AtomicBool,
    stale: AtomicBool,
    /// The counters of its bytes: of all statements, and of its pool's.
    bytes: Option<[Arc<AtomicUsize>; 2]>,
}

/// A prepared INSERT, as far as its text shows.
#[derive(Debug)]
pub struct PreparedInsert {
    /// Number of rows of its VALUES, which differ only in the numbers of their parameters.
    pub rows: usize,
    /// What follows the rows.
    pub tail: Tail,
    /// All its values are literals. They mostly differ each time, so the statement is recognised without them.
    pub of_literals: bool,
    /// Its text is ASCII, the same in every encoding.
    pub is_ascii: bool,
    known_as: Option<Arc<Statement>>,
}

impl PreparedInsert {
    fn of(statement: &Statement) -> Result<Box<Self>, NotPourable> {
        if quick_reject(&statement.query) {
            return Err(NotPourable::NotInsert);
        }
        let mut lifted = Lifted::new();
        lift(&statement.query, &mut lifted)?;
        let Lifted { rows, tail, .. } = lifted;
        tail.allows(rows)?;
        let types = types_of_one_row(&statement.types, rows, usize::from(lifted.params()))
            .ok_or(NotPourable::ManyRows)?;
        let of_literals = lifted.params() == 0 && types.is_empty();
        let known_as = (!statement.is_shared() && !of_literals).then(|| {
            let mut text = Vec::with_capacity(statement.query.len() + 64);
            let types = if tail.is_plain() {
                lifted.put_statement(&statement.query, 0, &mut text);
                types
            } else {
                lifted.put_whole(&statement.query, &mut text);
                &statement.types
            };
            Statement::under(&text, types, statement.class, statement.effects)
        });
        let is_ascii = statement.query.is_ascii();
        Ok(Box::new(Self { rows, tail, of_literals, is_ascii, known_as }))
    }

    /// The statement under which an INSERT that is parsed each time is remembered: without comments, and with one row if its rows may leave
    /// separately, so that comments and the number of rows do not make it another one. `None`: a named statement, which is remembered as it
    /// is, or one of literals.
    pub fn known_as(&self) -> Option<&Arc<Statement>> {
        self.known_as.as_ref()
    }

    /// How many times it repeats the parameters of the statement that it is remembered as.
    pub fn times(&self) -> usize {
        if self.known_as.is_some() && self.tail.is_plain() { self.rows } else { 1 }
    }
}

/// The declared types of the first row's parameters; `None`: those of another row differ.
fn types_of_one_row(types: &[u8], rows: usize, params: usize) -> Option<&[u8]> {
    let first = types.get(..params * 4).unwrap_or(types);
    let same = rows == 1
        || types.is_empty()
        || (types.len() == first.len() * rows && types.chunks(first.len()).all(|row| row == first));
    same.then_some(if rows == 1 { types } else { first })
}

/// A hash of the settings under which a named statement is parsed that affect its meaning.
pub fn settings_of_texts(vars: &VarSet, std_strings: bool) -> u64 {
    vars.answer_class ^ u64::from(std_strings)
}

/// A statement of pgsluice's own, made when it is first run, for all connections.
pub type OwnStatement = LazyLock<Arc<Statement>>;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Statement {
    /// A statement that is not shared (the unnamed one).
    pub fn new(query: &[u8], types: &[u8], effects: Effects) -> Arc<Self> {
        Self::under(query, types, 0, effects)
    }

    /// A statement of pgsluice's own, without parameters whose types would have to be declared.
    pub fn own(text: &str) -> Arc<Self> {
        Self::new(text.as_bytes(), &[], Effects::NONE)
    }

    /// As [`Statement::new`], parsed under the settings of `class` (see [`crate::proto::vars::VarSet::pour_class`]).
    pub fn under(query: &[u8], types: &[u8], class: u64, effects: Effects) -> Arc<Self> {
        Arc::new(Self::build(query, types, class, 0, effects, None))
    }

    /// Has it this text, these types and these settings?
    pub fn is(&self, query: &[u8], types: &[u8], class: u64) -> bool {
        *self.query == *query && *self.types == *types && self.class == class
    }

    /// Is it a named statement, which clients share by content? Otherwise each Parse makes a new one.
    pub fn is_shared(&self) -> bool {
        self.bytes.is_some()
    }

    /// The INSERT that it is, if it could be poured; found once.
    /// `standard_conforming_strings` must be on.
    ///
    /// Errors: why its text rules that out.
    pub fn as_insert(&self) -> Result<&PreparedInsert, NotPourable> {
        self.insert.get_or_init(|| PreparedInsert::of(self)).as_deref().map_err(|&why| why)
    }

    /// Does it create objects that others see, although its tag may not say so ([`moves::makes_for_all`])? Found once.
    pub fn makes_for_all(&self) -> bool {
        *self.makes_for_all.get_or_init(|| moves::makes_for_all(&self.query))
    }

    /// May its text hold a string whose meaning depends on the settings at Parse, as a date's on DateStyle?
    pub fn reads_settings(&self) -> bool {
        let mut quotes = memchr::memchr2_iter(b'\'', b'$', &self.query);
        quotes.any(|at| self.query[at] == b'\'' || !self.query.get(at + 1).is_some_and(u8::is_ascii_digit))
    }

    /// May its text hold a parameter whose type was not declared? The table that `search_path` leads to decides it then.
    pub fn leaves_types_open(&self) -> bool {
        memchr::memchr_iter(b'$', &self.query).any(|at| {
            let digits = self.query[at + 1..].iter().take_while(|byte| byte.is_ascii_digit());
            let next = |n: usize, digit: &u8| n.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
            let number = digits.fold(0, next);
            let declared = number.checked_sub(1).and_then(|index| self.types.chunks_exact(4).nth(index));
            number > 0 && declared.is_none_or(|oid| oid == [0; 4])
        })
    }

    fn build(
        query: &[u8],
        types: &[u8],
        class: u64,
        era: u64,
        effects: Effects,
        bytes: Option<[Arc<AtomicUsize>; 2]>,
    ) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        for bytes in bytes.iter().flatten() {
            bytes.fetch_add(query.len() + types.len(), Ordering::Relaxed);
        }
        Self {
            id,
            server_name: format!("{SERVER_NAME_PREFIX}{id}").into(),
            query: query.into(),
            types: types.into(),
            class,
            settings: OnceLock::new(),
            era,
            effects,
            is_read_plainly: is_read_plainly(query),
            insert: OnceLock::new(),
            makes_for_all: OnceLock::new(),
            block: OnceLock::new(),
            shape: OnceLock::new(),
            params: OnceLock::new(),
            moved: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            bytes,
        }
    }

    /// Are these parameter types, which a client is to be told or a connection has, those that were told first? Types that are not declared
    /// are decided at each Parse, perhaps differently (a column was altered).
    pub fn has_params(&self, types: &[u8]) -> bool {
        let same = **self.params.get_or_init(|| types.into()) == *types;
        if !same {
            self.moved.store(true, Ordering::Relaxed);
        }
        same
    }

    /// Does a client that was told the rows and parameters of `other` know those of this statement? This one takes them over if it has none.
    pub fn is_told_as(&self, other: &Self) -> bool {
        fn agree<T: Clone + PartialEq>(own: &OnceLock<T>, other: &OnceLock<T>) -> bool {
            other.get().is_none_or(|other| own.get_or_init(|| other.clone()) == other)
        }
        agree(&self.shape, &other.shape) && agree(&self.params, &other.params)
    }

    /// A Parse of it now decides its parameters' types differently. No client prepares it any more; those that have it go on with the types
    /// told first, which are declared from now on.
    pub fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    /// Were types told that are not declared? What a Parse decides has to be compared with them.
    pub fn was_told_open(&self) -> bool {
        self.params.get().is_some_and(|told| *told != self.types)
    }

    /// Did its rows somewhere differ from their description (a table was changed, or a session has another one by that name)? A client that
    /// prepares the same text from now on gets a new statement; one that has it gets PostgreSQL's error where the rows still differ.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// See [`Statement::is_stale`].
    pub fn make_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        for bytes in self.bytes.iter().flatten() {
            bytes.fetch_sub(self.query.len() + self.types.len(), Ordering::Relaxed);
        }
    }
}

/// This part of all bytes is each pool's own, whatever others hold.
const POOLS_SHARE: usize = 64;

/// All named statements that some client holds, by content.
#[derive(Debug, Default)]
pub struct Statements {
    by_content: Mutex<HashMap<u64, Vec<Weak<Statement>>, ahash::RandomState>>,
    hasher: ahash::RandomState,
    bytes: Arc<AtomicUsize>,
    era: AtomicU64,
}

impl Statements {
    /// A catalogue was changed: a text that is prepared from here on may mean something else than the same text that
    /// was prepared before (types of its parameters, which table a name is), so it is another statement.
    pub fn catalog_moved(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// A number for the texts of one pool, or of one session that has temporary objects of its own: no other has it.
    pub fn own_catalog() -> u64 {
        // Spread over all bits, because it stands beside hashes.
        NEXT_ID.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The statement with this content under settings of this class; made when nobody holds it yet. `own` counts the bytes of
    /// the pool's. `None`: `bytes_max` is reached, and the pool has its share of it.
    pub fn intern(
        &self,
        query: &[u8],
        types: &[u8],
        class: u64,
        effects: impl FnOnce() -> Effects,
        bytes_max: usize,
        own: &Arc<AtomicUsize>,
    ) -> Option<Arc<Statement>> {
        let key = self.hasher.hash_one((query, types, class));
        let era = self.era.load(Ordering::Acquire);
        let mut map = lock(&self.by_content);
        let same =
            |s: &Arc<Statement>| s.era == era && s.is(query, types, class) && !s.is_stale() && !s.has_moved();
        let known = map.get(&key).and_then(|slot| slot.iter().filter_map(Weak::upgrade).find(same));
        if known.is_some() {
            return known;
        }
        let with_it = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) + query.len() + types.len();
        if with_it(&self.bytes) > bytes_max && with_it(own) > bytes_max / POOLS_SHARE {
            return None;
        }
        let bytes = Some([Arc::clone(&self.bytes), Arc::clone(own)]);
        let made = Arc::new(Statement::build(query, types, class, era, effects(), bytes));
        let slot = map.entry(key).or_default();
        slot.retain(|weak| weak.strong_count() > 0);
        slot.push(Arc::downgrade(&made));
        if map.len().is_multiple_of(1024) {
            map.retain(|_, slot| slot.iter().any(|weak| weak.strong_count() > 0));
        }
        Some(made)
    }

    /// Text bytes of all statements held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Whose texts may mean something else behind a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Those of the session that has a temporary object now.
    pub own: bool,
    /// Everybody's.
    pub all: bool,
}

impl Moved {
    /// Hot path. By the tag of CommandComplete (with its zero). `temp`: the transaction's texts speak of temporary objects. `makes`: one
    /// of them makes what others see ([`Statement::makes_for_all`]).
    pub fn by(tag: &[u8], temp: bool, makes: bool) -> Self {
        // Who is a member of what, and who owns a table, decides which row security a statement is planned with.
        let ddl = matches!(tag.first(), Some(b'A' | b'C' | b'D' | b'G' | b'I' | b'R'))
            && (tag.starts_with(b"CREATE ")
                || tag.starts_with(b"ALTER ")
                || tag.starts_with(b"DROP ")
                || tag.starts_with(b"IMPORT ")
                || matches!(tag, b"DO\0" | b"COMMIT PREPARED\0" | b"REASSIGN OWNED\0")
                || matches!(tag, b"GRANT ROLE\0" | b"REVOKE ROLE\0"));
        // CREATE TABLE ... AS is a SELECT by its tag, and EXPLAIN may run one.
        let is_query = || tag.starts_with(b"SELECT") || tag == b"EXPLAIN\0";
        let either = matches!(tag, b"CREATE TABLE\0" | b"CREATE TYPE\0") || (temp || makes) && is_query();
        let own = temp && either;
        Self { own, all: makes && either || ddl && !own }
    }
}

impl Undo {
    /// It is about the unnamed statement.
    fn is_unnamed(&self) -> bool {
        match self {
            Self::Unnamed { .. } => true,
            Self::Name { .. } | Self::Closed { .. } => false,
            Self::Server { on_server } => on_server & UNNAMED != 0,
        }
    }
}

/// Ids of this bit stand for a Parse of the unnamed statement.
const UNNAMED: u64 = 1 << 63;

/// One client's names.
#[derive(Debug, Default)]
pub struct ClientNames {
    named: HashMap<Box<[u8]>, Arc<Statement>, ahash::RandomState>,
    unnamed: Option<Arc<Statement>>,
    /// The server connection where the unnamed statement was parsed, and which Parse that was.
    unnamed_at: (u64, u64),
    undo: VecDeque<Undo>,
    /// This one was found to mean nothing that may be poured; whatever changes a name's meaning takes it away.
    unpoured: ShortName,
}

/// A name with its zero byte, if it is short: to be compared without a search.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShortName {
    bytes: [u8; SHORT_NAME_BYTES_MAX],
    /// 0: none.
    len: u8,
}

impl ShortName {
    /// None if it is longer than [`SHORT_NAME_BYTES_MAX`], its zero byte counted.
    pub fn new(name: &[u8]) -> Self {
        let mut short = Self::default();
        if name.len() < SHORT_NAME_BYTES_MAX {
            short.bytes[..name.len()].copy_from_slice(name);
            short.len = name.len() as u8 + 1;
        }
        short
    }

    /// Does `rest` of a message begin with it?
    fn begins(&self, rest: &[u8]) -> bool {
        self.len > 0 && rest.starts_with(&self.bytes[..usize::from(self.len)])
    }
}

/// Drivers number their statements; few names are longer (bytes).
const SHORT_NAME_BYTES_MAX: usize = 31;

/// What a Parse or Close that is not yet confirmed changed.
#[derive(Debug)]
enum Undo {
    /// `name` meant this before; on the server connection `on_server` was counted as there.
    Name { name: Box<[u8]>, before: Option<Arc<Statement>>, on_server: Option<u64> },
    /// The unnamed statement meant this before, which stood there; on the server connection `number` took the place of `was`.
    Unnamed {
        before: Option<Arc<Statement>>,
        at: (u64, u64),
        number: u64,
        was: Option<u64>,
        /// A Parse of ours, of what it means already.
        again: bool,
    },
    /// Only the server connection's set changes (a Parse of ours).
    Server { on_server: u64 },
    /// A Close of ours: if it is struck, the statement is still there.
    Closed { on_server: u64 },
}

/// As much of a name as tells it from others.
pub fn told_apart(name: &[u8]) -> &[u8] {
    &name[..name.len().min(NAME_BYTES_MAX)]
}

impl ClientNames {
    /// What `name` means (empty: the unnamed statement).
    pub fn lookup(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(told_apart(name)) }
    }

    /// Number of names, the unnamed one not counted.
    pub fn len(&self) -> usize {
        self.named.len()
    }

    /// No named statement.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// The statement of this name is nothing that may be poured, as it is now.
    pub fn note_unpoured(&mut self, name: ShortName) {
        self.unpoured = name;
    }

    /// Hot path. Does `rest` of a message begin with the name of such a statement, as far as that was noted?
    pub fn begins_with_unpoured(&self, rest: &[u8]) -> bool {
        self.unpoured.begins(rest)
    }

    fn set(&mut self, name: &[u8], statement: Option<Arc<Statement>>) -> Option<Arc<Statement>> {
        self.unpoured = ShortName::default();
        match (name.is_empty(), statement) {
            (true, statement) => std::mem::replace(&mut self.unnamed, statement),
            (false, Some(statement)) => self.named.insert(told_apart(name).into(), statement),
            (false, None) => self.named.remove(told_apart(name)),
        }
    }

    /// A Parse was taken: `name` means `statement` from here on, unless an error strikes it.
    /// `on_server`: the id that the server connection's set gained with it. For one with a name.
    pub fn parse(&mut self, name: &[u8], statement: Arc<Statement>, on_server: Option<u64>) {
        let before = self.set(name, Some(statement));
        self.undo.push_back(Undo::Name { name: told_apart(name).into(), before, on_server });
    }

    /// A Close of a statement with a name was taken.
    pub fn close(&mut self, name: &[u8]) {
        let before = self.set(name, None);
        self.undo.push_back(Undo::Name { name: told_apart(name).into(), before, on_server: None });
    }

    /// A Parse of the unnamed statement was taken, on the server connection `id`.
    pub fn parse_unnamed(&mut self, statement: Arc<Statement>, server: &mut ServerNames, id: u64) {
        let before = self.set(b"", Some(statement));
        self.move_unnamed(before, server, id, false);
    }

    /// A Parse of ours was sent there: the unnamed statement means what it meant.
    pub fn parse_unnamed_again(&mut self, server: &mut ServerNames, id: u64) {
        self.move_unnamed(self.unnamed.clone(), server, id, true);
    }

    /// A Close of the unnamed statement was taken.
    pub fn close_unnamed(&mut self, server: &mut ServerNames) {
        let (before, at, was) = (self.set(b"", None), self.unnamed_at, server.unnamed);
        let number = server.unnamed_parsed();
        self.undo.push_back(Undo::Unnamed { before, at, number, was, again: false });
    }

    fn move_unnamed(
        &mut self,
        before: Option<Arc<Statement>>,
        server: &mut ServerNames,
        id: u64,
        again: bool,
    ) {
        let was = server.unnamed;
        let number = server.unnamed_parsed();
        let at = std::mem::replace(&mut self.unnamed_at, (id, number));
        self.undo.push_back(Undo::Unnamed { before, at, number, was, again });
    }

    /// What stands unnamed on the server connection `id` is what this client has.
    pub fn unnamed_is_at(&self, server: &ServerNames, id: u64) -> bool {
        (id, server.unnamed) == (self.unnamed_at.0, Some(self.unnamed_at.1))
    }

    /// A Parse of ours was sent.
    pub fn parse_on_server(&mut self, id: u64) {
        self.undo.push_back(Undo::Server { on_server: id });
    }

    /// A Close of ours was sent.
    pub fn close_on_server(&mut self, id: u64) {
        self.undo.push_back(Undo::Closed { on_server: id });
    }

    /// A name is forgotten at once, without undo (SQL-level DEALLOCATE that succeeded).
    pub fn forget(&mut self, name: &[u8]) {
        self.set(name, None);
    }

    /// The statement whose id has this low half, if some name means it.
    pub fn find(&self, id: u32) -> Option<&Arc<Statement>> {
        self.named.values().find(|s| s.id as u32 == id)
    }

    /// The name of the statement that is `server_name` on servers, as far as it is told from others; `None` if several mean it.
    pub fn only_name_of(&self, server_name: &[u8]) -> Option<&[u8]> {
        let mut names = self.named.iter().filter(|(_, s)| s.server_name.as_bytes() == server_name);
        let (name, _) = names.next()?;
        names.next().is_none().then_some(name)
    }

    /// The statements that its names mean.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.named.values().map(|s| s.id)
    }

    /// Every name that means `old` means `new` from here on.
    pub fn replace(&mut self, old: u64, new: &Arc<Statement>) {
        self.unpoured = ShortName::default();
        self.named.values_mut().filter(|s| s.id == old).for_each(|s| *s = Arc::clone(new));
    }

    /// As [`ClientNames::replace`], of `name` alone, if that means `old` still: of its other names the client was told something else.
    /// `None`: it is not known which name it is.
    pub fn replace_told(&mut self, name: Option<&[u8]>, old: u64, new: &Arc<Statement>) {
        let Some(name) = name else { return self.replace(old, new) };
        self.unpoured = ShortName::default();
        if let Some(known) = self.named.get_mut(told_apart(name)).filter(|known| known.id == old) {
            *known = Arc::clone(new);
        }
    }

    /// The unnamed statement that a client was told other types of goes on with those, declared.
    pub fn replace_unnamed(&mut self, new: Arc<Statement>) {
        self.unpoured = ShortName::default();
        self.unnamed = Some(new);
    }

    /// A Query destroys the unnamed statement, also one that a Parse before it leaves as it was.
    pub fn forget_unnamed(&mut self) {
        self.set_unnamed(None);
        for undo in &mut self.undo {
            if let Undo::Unnamed { before, .. } = undo {
                *before = None;
            }
        }
    }

    /// The unnamed statement is this one, without undo; it is on no server connection.
    pub fn set_unnamed(&mut self, statement: Option<Arc<Statement>>) {
        self.unpoured = ShortName::default();
        (self.unnamed, self.unnamed_at) = (statement, (0, 0));
    }

    /// DISCARD ALL, DEALLOCATE ALL: PostgreSQL leaves the unnamed statement, if no Query took it away.
    pub fn clear(&mut self) {
        self.unpoured = ShortName::default();
        self.named = HashMap::default();
    }

    /// The oldest recorded change took effect.
    pub fn settle(&mut self) {
        self.undo.pop_front();
        if self.undo.is_empty() {
            self.undo = VecDeque::new();
        }
    }

    /// May an error of an earlier unit still strike what a name means now? `in_unit`: the newest changes, which no such error
    /// does ([`names_in_unit`](super::pipeline::Pipeline::names_in_unit)).
    pub fn is_in_doubt(&self, name: &[u8], in_unit: usize) -> bool {
        let earlier = self.undo.len().saturating_sub(in_unit);
        if earlier == 0 {
            return false;
        }
        if name.is_empty() {
            self.undo.iter().rposition(Undo::is_unnamed).is_some_and(|last| last < earlier)
        } else {
            self.undo.iter().take(earlier).any(|undo| !undo.is_unnamed())
        }
    }

    /// A Parse or Close of this name is not answered yet.
    pub fn is_unconfirmed(&self, name: &[u8]) -> bool {
        self.undo
            .iter()
            .any(|undo| matches!(undo, Undo::Name { name: other, .. } if **other == *told_apart(name)))
    }

    /// As [`ClientNames::strike`], where the oldest is a Parse that failed: it has no meaning to give to the unnamed statement, but
    /// the one before it is gone.
    pub fn fail(&mut self, count: usize, server: &mut ServerNames) {
        if let Some(Undo::Unnamed { before, was, again, .. }) = self.undo.front_mut() {
            *was = None;
            if !*again {
                *before = None;
            }
        }
        self.strike(count, server);
    }

    /// `name` means what it meant before; where a unit behind has changed it again, that is what it meant before that.
    fn give_back(&mut self, name: &[u8], statement: Option<Arc<Statement>>) {
        let later = self.undo.iter_mut().find_map(|undo| match undo {
            Undo::Name { name: other, before, .. } if **other == *name => Some(before),
            _ => None,
        });
        match later {
            Some(before) => *before = statement,
            None => drop(self.set(name, statement)),
        }
    }

    /// As [`ClientNames::give_back`], of the unnamed statement: `number` was never taken up.
    fn give_back_unnamed(
        &mut self,
        (statement, place): (Option<Arc<Statement>>, (u64, u64)),
        (number, stood): (u64, Option<u64>),
        server: &mut ServerNames,
    ) {
        for undo in &mut self.undo {
            if let Undo::Unnamed { before, at, was, .. } = undo {
                (*before, *at) = (statement, place);
                if *was == Some(number) {
                    *was = stood;
                }
                return;
            }
        }
        self.unpoured = ShortName::default();
        (self.unnamed, self.unnamed_at) = (statement, place);
        if server.unnamed == Some(number) {
            server.unnamed = stood;
        }
    }

    /// The oldest `count` recorded changes were struck: take them back, newest first.
    pub fn strike(&mut self, count: usize, server: &mut ServerNames) {
        let count = count.min(self.undo.len());
        let struck: Vec<Undo> = self.undo.drain(..count).collect();
        for undo in struck.into_iter().rev() {
            let on_server = match undo {
                Undo::Name { name, before, on_server } => {
                    self.give_back(&name, before);
                    on_server
                }
                Undo::Unnamed { before, at, number, was, .. } => {
                    self.give_back_unnamed((before, at), (number, was), server);
                    None
                }
                Undo::Server { on_server } => Some(on_server),
                Undo::Closed { on_server } => {
                    server.put_back(on_server);
                    None
                }
            };
            if let Some(id) = on_server {
                server.forget(id);
            }
        }
    }
}

/// What is known of a statement that a server connection holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// It was parsed.
    Parsed,
    /// It was, where a name may mean what it means to nobody else: the types of its parameters may be another table's.
    InDoubt,
    /// The same, and whom that may have been right for has left: it is closed before it is used again.
    Left,
    /// Its parameters were compared with what was told of it, and are the same.
    AsTold,
    /// Its rows were, and are not; or nobody knows.
    Otherwise,
}

/// What one server connection holds, oldest use first.
#[derive(Debug, Default)]
pub struct ServerNames {
    held: HashMap<u64, Held, ahash::RandomState>,
    /// One of them is in doubt.
    doubts: bool,
    order: VecDeque<u64>,
    /// Which Parse made the unnamed statement that is there now, or which Close left none; see `unnamed_parsed`.
    pub unnamed: Option<u64>,
    unnamed_parses: u64,
}

impl ServerNames {
    /// The statement is there.
    pub fn holds(&self, id: u64) -> bool {
        self.held.get(&id).is_some_and(|held| *held != Held::Left)
    }

    /// What was parsed just now was parsed in doubt.
    pub fn doubt(&mut self, id: u64) {
        self.held.entry(id).and_modify(|held| *held = Held::InDoubt);
        self.doubts = true;
    }

    /// The client that had the connection leaves it to others.
    pub fn part(&mut self) {
        if std::mem::take(&mut self.doubts) {
            self.held.values_mut().filter(|held| **held == Held::InDoubt).for_each(|held| *held = Held::Left);
        }
    }

    /// The statement is there, and its parameters were compared with what was told of it.
    pub fn holds_as_told(&self, id: u64) -> bool {
        self.held.get(&id) == Some(&Held::AsTold)
    }

    /// The statement is there, and its rows do not look as was told: it has to be parsed again before it is used.
    pub fn holds_otherwise(&self, id: u64) -> bool {
        self.held.get(&id) == Some(&Held::Otherwise)
    }

    /// They were found to be the same.
    pub fn is_as_told(&mut self, id: u64) {
        self.held.entry(id).and_modify(|held| *held = Held::AsTold);
    }

    /// Its rows look different here.
    pub fn is_otherwise(&mut self, id: u64) {
        self.held.entry(id).and_modify(|held| *held = Held::Otherwise);
    }

    /// Number of statements held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// None is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// A Parse was sent. Returns the statements to close first, so that there are no more than `max`: several, where that was
    /// lowered.
    pub fn add(&mut self, id: u64, max: usize) -> Vec<u64> {
        let before = self.held.get(&id);
        let beyond = (self.held.len() + usize::from(before.is_none())).saturating_sub(max);
        let mut closed = Vec::new();
        closed.extend(before.filter(|held| **held == Held::Left).map(|_| id));
        let beyond = beyond + closed.len();
        while closed.len() < beyond
            && let Some(at) = self.order.iter().position(|held| *held != id)
        {
            closed.extend(self.order.remove(at).filter(|oldest| self.held.remove(oldest).is_some()));
        }
        if self.held.insert(id, Held::Parsed).is_none() {
            self.order.push_back(id);
        }
        closed
    }

    /// It was not closed after all: the next one to go. It may have been closed for what it is.
    fn put_back(&mut self, id: u64) {
        if self.held.insert(id, Held::Otherwise).is_none() {
            self.order.push_front(id);
        }
    }

    /// It is gone (struck, closed, or its plan is stale).
    pub fn forget(&mut self, id: u64) {
        self.held.remove(&id);
        self.order.retain(|held| *held != id);
        if self.unnamed == Some(id) {
            self.unnamed = None;
        }
    }

    /// All that are held, to be closed; none is from here on.
    pub fn take_all(&mut self) -> Vec<u64> {
        let held = self.held.keys().copied().collect();
        self.clear();
        held
    }

    /// DISCARD ALL, DEALLOCATE ALL.
    pub fn clear(&mut self) {
        *self = Self { unnamed_parses: self.unnamed_parses, ..Self::default() };
    }

    /// A Parse or a Close of the unnamed statement was sent. Returns its number on this connection: an older Parse of the same
    /// text may mean something else (a table was changed, other settings held).
    fn unnamed_parsed(&mut self) -> u64 {
        // Never the id of a statement with a name.
        self.unnamed_parses += 1;
        let number = UNNAMED | self.unnamed_parses;
        self.unnamed = Some(number);
        number
    }
}

#[cfg(test)]
mod tests;
