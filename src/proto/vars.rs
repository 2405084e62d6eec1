//! Session variables: what a client wants set, what a server connection has set, and the difference.
//!
//! Owns: the sets and the order in which a difference is applied. Never: sends anything.
//! `role` and `session_authorization` are members like any other, but come in their own order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ahash::RandomState;
use std::collections::HashMap;

use crate::mutex::lock;

/// Says who logged in, or whom they became.
pub const SESSION_AUTHORIZATION: &str = "session_authorization";

/// Settings that PostgreSQL takes while a connection begins, and never later.
const AT_START: [&str; 6] = [
    "ignore_system_indexes",
    "jit_debugging_support",
    "jit_profiling_support",
    "log_connections",
    "log_disconnections",
    "post_auth_delay",
];

/// Settings that say who one is.
const IDENTITY: [&str; 2] = ["role", SESSION_AUTHORIZATION];

/// Counts on with every client that may have taken on who it is.
static MOMENTS: AtomicU64 = AtomicU64::new(1);

/// The moment that is.
pub fn now() -> u64 {
    MOMENTS.load(Ordering::SeqCst)
}

/// A new moment, after all before it.
pub fn moment() -> u64 {
    MOMENTS.fetch_add(1, Ordering::SeqCst) + 1
}

/// Whose settings a connection is given.
#[derive(Debug, Clone, Copy)]
pub struct Whose {
    /// The client; 0: nobody's in particular.
    pub client: u64,
    /// When it took on who it is, 0: it is who logged in. A role may be dropped and made again, or renamed, and a
    /// connection goes on as the one that had the name when the name was set there.
    pub since: u64,
}

impl Whose {
    /// Of no client: as one that takes it on now.
    pub fn nobody(want: &VarSet) -> Self {
        Self { client: 0, since: want.since(now()) }
    }
}

/// Values of settings that differ from the server connection's own defaults, by name. Interned: two
/// sets with equal content made by one [`Vars`] are the same `Arc`.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct VarSet {
    values: BTreeMap<Box<str>, Box<str>>,
    /// Equal for sets that differ only in what can't matter to an INSERT, nor to what a statement is parsed into.
    pub pour_class: u64,
    /// As `pour_class`, and equal only where values are written in the same way in an answer.
    pub answer_class: u64,
    /// Equal for sets that set the same settings with a dot in their name, whatever to; 0: none.
    custom: u64,
    /// What is made without a schema may be made in that of temporary objects: the `search_path` names it.
    pub names_temp: bool,
}

/// Settings of a session that PostgreSQL shows only to who may read all of them.
pub const HIDDEN: [&str; 4] =
    ["dynamic_library_path", "extension_control_path", "extension_destdir", "session_preload_libraries"];

impl VarSet {
    /// The value of `name`, if it is set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(AsRef::as_ref)
    }

    /// All values by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(k, v)| (&**k, &**v))
    }

    /// The values that may matter to what an INSERT stores.
    pub fn pouring(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().filter(|(name, _)| matters_to_insert(name))
    }

    /// The values that may matter to what an INSERT stores, or to the rows that it answers.
    pub fn answering(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().filter(|(name, _)| matters_to_answer(name))
    }

    /// What sessions agree on that are told the same of an INSERT; `answers`: of one that answers rows. A setting of a library's may
    /// have that see or say something of each statement; which name is one is not known here.
    pub fn asked_class(&self, answers: bool) -> u64 {
        (if answers { self.answer_class } else { self.pour_class }) ^ self.custom
    }

    /// Settings with a dot in their name: a library's, or nobody's (`app.user`).
    pub fn custom_names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name).filter(|name| is_custom(name))
    }

    /// Those that a connection that is there cannot be given any more.
    pub fn at_start(&self) -> impl Iterator<Item = &str> {
        AT_START.into_iter().filter(|name| self.get(name).is_some())
    }

    /// Those that PostgreSQL does not show to everybody.
    pub fn hidden(&self) -> impl Iterator<Item = (&str, &str)> {
        HIDDEN.into_iter().filter_map(|name| self.get(name).map(|value| (name, value)))
    }

    /// `role` and `session_authorization`: who one is.
    pub fn identity(&self) -> [Option<&str>; 2] {
        IDENTITY.map(|name| self.get(name))
    }

    /// It says who one is.
    pub fn names_a_role(&self) -> bool {
        self.identity() != [None; 2]
    }

    /// `moment` where it does, otherwise 0.
    pub fn since(&self, moment: u64) -> u64 {
        if self.names_a_role() { moment } else { 0 }
    }

    /// What `other` has, but for application_name: a name that is not set changes no result.
    pub fn equals_but_for_name(&self, other: &Self) -> bool {
        let unnamed = |(name, _): &(&str, &str)| *name != "application_name";
        self.iter().filter(unnamed).eq(other.iter().filter(unnamed))
    }

    /// Nothing is set.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// One step from one set to another. `None` resets to the connection's own default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<'a> {
    /// Name of the setting.
    pub name: &'a str,
    /// New value.
    pub value: Option<&'a str>,
}

/// True for role and session_authorization, which RESET ALL leaves alone.
pub fn is_identity(name: &str) -> bool {
    IDENTITY.contains(&name)
}

/// The name by which RESET gives back all settings but those that say who one is.
pub const ALL: &str = "all";

/// The steps that lead to `want` from a connection on which `have` is known of, and may be more: RESET ALL, by who logged in.
pub fn changes_from_anything<'a>(have: &'a VarSet, want: &'a VarSet) -> Vec<Change<'a>> {
    let back = IDENTITY.iter().filter(|n| have.get(n).is_some()).map(|&name| Change { name, value: None });
    let plain = want.iter().filter(|(n, _)| !is_identity(n));
    let taken = IDENTITY.iter().rev().filter_map(|&n| want.get(n).map(|v| (n, v)));
    let all = std::iter::once(Change { name: ALL, value: None });
    let set = plain.chain(taken).map(|(name, value)| Change { name, value: Some(value) });
    back.chain(all).chain(set).collect()
}

/// The setting by which transactions wait until nothing can roll them back.
pub const DEFERRABLE: &str = "default_transaction_deferrable";

/// The setting that stops statements.
const LIMIT: &str = "statement_timeout";

/// The setting whose value may say a part (`ISO`, `DMY`): PostgreSQL leaves the other as it is, which must not be another client's.
const MERGED: &str = "datestyle";

/// The steps that lead from `have` to `want`. Who one is comes first when it must be given back (only the
/// login role may do the rest), and last when it is taken on; `anew`: also where the names are the same.
pub fn changes<'a>(have: &'a VarSet, want: &'a VarSet, anew: bool) -> Vec<Change<'a>> {
    let identity_differs = anew || have.identity() != want.identity();
    let mut steps = Vec::new();
    if identity_differs {
        steps.extend(
            IDENTITY.iter().filter(|n| have.get(n).is_some()).map(|&name| Change { name, value: None }),
        );
    }
    // Nobody's short limit may stop the steps: it goes first and comes last.
    let (old_limit, new_limit) = (have.get(LIMIT), want.get(LIMIT));
    if old_limit.is_some() && old_limit != new_limit {
        steps.push(Change { name: LIMIT, value: None });
    }
    let is_plain = |n: &str| n != LIMIT && !IDENTITY.contains(&n);
    for (name, _) in have.iter().filter(|(n, _)| want.get(n).is_none() && is_plain(n)) {
        steps.push(Change { name, value: None });
    }
    for (name, value) in want.iter().filter(|(n, v)| have.get(n) != Some(*v) && is_plain(n)) {
        if name == MERGED && have.get(name).is_some() {
            steps.push(Change { name, value: None });
        }
        steps.push(Change { name, value: Some(value) });
    }
    if let Some(limit) = new_limit.filter(|_| old_limit != new_limit) {
        steps.push(Change { name: LIMIT, value: Some(limit) });
    }
    if identity_differs {
        for name in IDENTITY.iter().rev() {
            if let Some(value) = want.get(name) {
                steps.push(Change { name, value: Some(value) });
            }
        }
    }
    steps
}

/// A library's, or nobody's.
fn is_custom(name: &str) -> bool {
    name.contains('.')
}

/// Settings that can't matter to what an INSERT stores or answers (values of `app.*` settings are read by
/// expressions only, and those are not poured; for those of libraries see [`VarSet::asked_class`]).
fn matters_to_insert(name: &str) -> bool {
    const NOT: [&str; 8] = [
        "application_name",
        "work_mem",
        "extra_float_digits",
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "transaction_timeout",
        "bytea_output",
    ];
    !NOT.contains(&name) && !is_custom(name)
}

/// As [`matters_to_insert`], where the INSERT has RETURNING.
fn matters_to_answer(name: &str) -> bool {
    matters_to_insert(name) || ["extra_float_digits", "bytea_output"].contains(&name)
}

/// Makes equal sets one.
#[derive(Debug, Default)]
pub struct Vars {
    known: Mutex<HashMap<u64, Vec<Weak<VarSet>>, RandomState>>,
    hasher: RandomState,
}

impl Vars {
    /// The set with these values. Later pairs win; names are compared as PostgreSQL does, without case.
    pub fn intern<'a>(&self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Arc<VarSet> {
        let mut values: BTreeMap<Box<str>, Box<str>> = BTreeMap::new();
        for (name, value) in pairs {
            values.insert(name.to_ascii_lowercase().into(), value.into());
        }
        let key = self.hasher.hash_one(&values);
        let mut known = lock(&self.known);
        let slot = known.entry(key).or_default();
        slot.retain(|weak| weak.strong_count() > 0);
        if let Some(set) = slot.iter().filter_map(Weak::upgrade).find(|s| s.values == values) {
            return set;
        }
        let pour: Vec<_> = values.iter().filter(|(n, _)| matters_to_insert(n)).collect();
        let pour_class = self.hasher.hash_one(&pour);
        let answer: Vec<_> = values.iter().filter(|(n, _)| matters_to_answer(n)).collect();
        let answer_class = self.hasher.hash_one(&answer);
        let mut custom = values.keys().filter(|name| is_custom(name)).peekable();
        let custom = custom.peek().is_some().then(|| self.hasher.hash_one(custom.collect::<Vec<_>>()));
        let names_temp =
            values.get("search_path").is_some_and(|path| path.to_ascii_lowercase().contains("pg_temp"));
        let custom = custom.unwrap_or_default();
        let set = Arc::new(VarSet { values, pour_class, answer_class, custom, names_temp });
        slot.push(Arc::downgrade(&set));
        if known.len().is_multiple_of(256) {
            known.retain(|_, slot| slot.iter().any(|weak| weak.strong_count() > 0));
        }
        set
    }

    /// `base` with `over` laid on top.
    pub fn overlay(&self, base: &VarSet, over: &VarSet) -> Arc<VarSet> {
        self.intern(base.iter().chain(over.iter()))
    }

    /// `set` but for one of them.
    pub fn without(&self, set: &VarSet, name: &str) -> Arc<VarSet> {
        self.intern(set.iter().filter(|(known, _)| *known != name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_one() {
        let vars = Vars::default();
        let a = vars.intern([("TimeZone", "UTC"), ("a.b", "1")]);
        let b = vars.intern([("a.b", "0"), ("timezone", "UTC"), ("a.b", "1")]);
        assert!(Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn difference_gives_identity_back_first_and_takes_it_last() {
        let vars = Vars::default();
        let have = vars.intern([("role", "a"), ("work_mem", "1"), ("x.y", "1")]);
        let want = vars.intern([("role", "b"), ("work_mem", "2")]);
        let steps: Vec<(String, Option<String>)> =
            changes(&have, &want, false).iter().map(|c| (c.name.into(), c.value.map(Into::into))).collect();
        assert_eq!(
            steps,
            [
                ("role".to_string(), None),
                ("x.y".to_string(), None),
                ("work_mem".to_string(), Some("2".to_string())),
                ("role".to_string(), Some("b".to_string())),
            ]
        );
        assert!(changes(&want, &want, false).is_empty());
        let anew: Vec<_> = changes(&want, &want, true).iter().map(|c| (c.name, c.value)).collect();
        assert_eq!(anew, [("role", None), ("role", Some("b"))]);
    }

    #[test]
    fn from_anything_everything_is_said_again() {
        let vars = Vars::default();
        let have = vars.intern([("role", "a"), ("x.y", "1")]);
        let want = vars.intern([("role", "a"), ("work_mem", "2")]);
        let steps: Vec<_> = changes_from_anything(&have, &want).iter().map(|c| (c.name, c.value)).collect();
        assert_eq!(steps, [("role", None), (ALL, None), ("work_mem", Some("2")), ("role", Some("a"))]);
    }

    #[test]
    fn a_limit_on_statements_goes_first_and_comes_last() {
        let vars = Vars::default();
        let have = vars.intern([("a.b", "1"), ("statement_timeout", "1")]);
        let want = vars.intern([("statement_timeout", "2"), ("work_mem", "2"), ("x.y", "1")]);
        let names: Vec<_> =
            changes(&have, &want, false).iter().map(|c| (c.name, c.value.is_some())).collect();
        let limit = "statement_timeout";
        assert_eq!(names, [(limit, false), ("a.b", false), ("work_mem", true), ("x.y", true), (limit, true)]);
    }

    #[test]
    fn a_limit_that_stays_is_left_alone() {
        let vars = Vars::default();
        let have = vars.intern([("a.b", "1"), ("statement_timeout", "1")]);
        let want = vars.intern([("statement_timeout", "1")]);
        let steps: Vec<_> = changes(&have, &want, false).iter().map(|c| (c.name, c.value)).collect();
        assert_eq!(steps, [("a.b", None)]);
    }

    /// What one value leaves open another would otherwise keep.
    #[test]
    fn a_date_style_is_set_on_the_plain_one() {
        let vars = Vars::default();
        let (none, iso) =
            (vars.intern([("x.y", "1")]), vars.intern([("datestyle", "ISO, DMY"), ("x.y", "1")]));
        let german = vars.intern([("datestyle", "German"), ("x.y", "2")]);
        let steps = |have, want| -> Vec<(String, Option<String>)> {
            changes(have, want, false).iter().map(|c| (c.name.into(), c.value.map(Into::into))).collect()
        };
        let step = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
        let anew = [step("datestyle", None), step("datestyle", Some("German")), step("x.y", Some("2"))];
        assert_eq!(steps(&iso, &german), anew);
        assert_eq!(steps(&none, &german), anew[1..]);
    }

    #[test]
    fn what_is_given_back_is_given_back_once() {
        let vars = Vars::default();
        let have = vars.intern([("a.b", "1"), ("role", "a"), ("statement_timeout", "1")]);
        let want = vars.intern([("x.y", "1")]);
        let steps: Vec<_> = changes(&have, &want, false).iter().map(|c| (c.name, c.value)).collect();
        assert_eq!(steps, [("role", None), ("statement_timeout", None), ("a.b", None), ("x.y", Some("1"))]);
    }

    #[test]
    fn application_name_does_not_split_batches() {
        let vars = Vars::default();
        let a = vars.intern([("application_name", "a"), ("timezone", "UTC")]);
        let b = vars.intern([("application_name", "b"), ("timezone", "UTC")]);
        let c = vars.intern([("application_name", "b"), ("timezone", "CET")]);
        assert_eq!(a.pour_class, b.pour_class);
        assert_ne!(a.pour_class, c.pour_class);
        let d = vars.intern([("bytea_output", "escape"), ("timezone", "UTC")]);
        assert_eq!(a.pour_class, d.pour_class);
        assert_eq!(a.answer_class, b.answer_class);
        assert_ne!(a.answer_class, d.answer_class);
    }

    #[test]
    fn settings_with_a_dot_split_questions_by_their_names_and_no_batches() {
        let vars = Vars::default();
        let none = vars.intern([("timezone", "UTC")]);
        let [one, other, two] =
            [[("a.b", "1"), ("a.b", "1")], [("a.b", "2"), ("a.b", "2")], [("a.b", "1"), ("a.c", "1")]]
                .map(|custom| vars.intern(custom.into_iter().chain([("timezone", "UTC")])));
        for set in [&one, &other, &two] {
            assert_eq!((set.pour_class, set.answer_class), (none.pour_class, none.answer_class));
        }
        for answers in [false, true] {
            let [none, one, other, two] = [&none, &one, &other, &two].map(|set| set.asked_class(answers));
            assert_eq!(one, other);
            assert!(none != one && none != two && one != two);
        }
        assert_eq!(two.custom_names().collect::<Vec<_>>(), ["a.b", "a.c"]);
    }
}
