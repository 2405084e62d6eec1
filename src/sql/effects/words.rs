//! Hot path. The names that mean something, found by what they are: words in one number, and built-in functions and keywords by
//! their hash.

use std::sync::LazyLock;

use crate::sql::builtins::{FUNCTIONS, KEYWORDS, LOOSE_KEYWORDS};

/// The first 16 bytes of a word, in one number. Setting bit 0x20 makes ASCII letters lower case, leaves
/// digits alone and maps no other byte of a word onto a letter.
#[inline]
pub(super) const fn key(bytes: &[u8]) -> u128 {
    if bytes.len() > 16 {
        return u128::MAX;
    }
    let mut packed = 0;
    let mut i = 0;
    while i < bytes.len() {
        packed = packed << 8 | (bytes[i] | 0x20) as u128;
        i += 1;
    }
    packed
}

macro_rules! words {
    ($($name:ident $text:literal)*) => {
        /// The words that are looked for.
        pub(super) mod word {
            $(pub(in crate::sql::effects) const $name: u128 = super::key($text);)*
        }
    };
}

words! {
    ABORT b"abort" AGGREGATE b"aggregate" ALL b"all" ALTER b"alter" ANALYSE b"analyse" ANALYZE b"analyze" AND b"and"
    AS b"as" ASYMMETRIC b"asymmetric" BEGIN b"begin" BETWEEN b"between" BOTH b"both" BRIN b"brin" BTREE b"btree"
    BY b"by" CALL b"call" CASE b"case" CHECKPOINT b"checkpoint" CLOSE b"close" CLUSTER b"cluster" COMMENT b"comment"
    COMMIT b"commit" CONFLICT b"conflict" CONSTRAINTS b"constraints" CONTENT b"content" COPY b"copy"
    CREATE b"create" CUBE b"cube" DEALLOCATE b"deallocate" DECLARE b"declare" DEFAULT b"default" DELETE b"delete"
    DISCARD b"discard" DISTINCT b"distinct" DOCUMENT b"document" DROP b"drop" ELSE b"else" END b"end"
    ESCAPE b"escape" EXECUTE b"execute" EXISTS b"exists" EXPLAIN b"explain" EXTENSION b"extension" FETCH b"fetch"
    FIRST b"first" FOR b"for" FROM b"from" FUNCTION b"function" GIN b"gin" GIST b"gist" GLOBAL b"global"
    GRANT b"grant" GROUP b"group" GROUPS b"groups" HASH b"hash" HAVING b"having" HOLD b"hold" ILIKE b"ilike"
    IMPORT b"import" IN b"in" INDEX b"index" INSERT b"insert" INTO b"into" JOIN b"join" LATERAL b"lateral"
    LEADING b"leading" LIKE b"like" LIMIT b"limit" LIST b"list" LISTEN b"listen" LOAD b"load" LOCAL b"local"
    LOCK b"lock" MATERIALIZED b"materialized" MERGE b"merge" MOVE b"move" NEXT b"next" NOT b"not" NOTIFY b"notify"
    OFFSET b"offset" ON b"on" ONLY b"only" OPERATOR b"operator" OR b"or" PARTITION b"partition" PASSING b"passing"
    PATH b"path" PLACING b"placing" PREPARE b"prepare" PROCEDURE b"procedure" RANGE b"range" REASSIGN b"reassign"
    RECURSIVE b"recursive" REF b"ref" REFERENCES b"references" REFRESH b"refresh" REINDEX b"reindex"
    RELEASE b"release" REPLACE b"replace" RESET b"reset" RETURN b"return" RETURNING b"returning" REVOKE b"revoke"
    ROLLBACK b"rollback" ROLLUP b"rollup" ROUTINE b"routine" ROWS b"rows" SAVEPOINT b"savepoint"
    SECURITY b"security" SELECT b"select" SET b"set" SET_CONFIG b"set_config" SHOW b"show" SIMILAR b"similar"
    SPGIST b"spgist" START b"start" STATISTICS b"statistics" SYMMETRIC b"symmetric" TABLE b"table" TEMP b"temp"
    TEMPORARY b"temporary" THEN b"then" TO b"to" TRAILING b"trailing" TRANSACTION b"transaction"
    TRUNCATE b"truncate" TYPE b"type" UNIQUE b"unique" UNLISTEN b"unlisten" UPDATE b"update" USING b"using"
    VACUUM b"vacuum" VALUE b"value" VALUES b"values" VARIADIC b"variadic" VERSION b"version" VIEW b"view"
    WHEN b"when" WHERE b"where" WITH b"with" ZONE b"zone"
}

/// What is known of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Known {
    pub(super) function: bool,
    pub(super) keyword: bool,
    pub(super) loose: bool,
}

impl Known {
    pub(super) fn is_keyword(self) -> bool {
        self.keyword || self.loose
    }
}

/// The tables of [`crate::sql::builtins`], by hash; open addressing. The names are ours, so no key is needed.
pub(super) struct Index {
    slots: Vec<u16>,
}

/// Four times the names, rounded up to a power of two.
const SLOTS: usize = ((FUNCTIONS.len() + KEYWORDS.len() + LOOSE_KEYWORDS.len()) * 4).next_power_of_two();
const EMPTY: u16 = u16::MAX;

pub(super) static INDEX: LazyLock<Index> = LazyLock::new(Index::new);

/// FNV-1a over the bytes in lower case.
#[inline]
fn hash(bytes: &[u8]) -> usize {
    let hash = bytes
        .iter()
        .fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b.to_ascii_lowercase())).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 15)) as usize
}

impl Index {
    fn new() -> Self {
        let mut index = Self { slots: vec![EMPTY; SLOTS] };
        let count = FUNCTIONS.len() + KEYWORDS.len() + LOOSE_KEYWORDS.len();
        for id in 0..count {
            let mut slot = hash(Self::text(id as u16)) & (SLOTS - 1);
            while index.slots[slot] != EMPTY {
                slot = (slot + 1) & (SLOTS - 1);
            }
            index.slots[slot] = id as u16;
        }
        index
    }

    fn text(id: u16) -> &'static [u8] {
        let id = usize::from(id);
        match id.checked_sub(FUNCTIONS.len()) {
            None => FUNCTIONS[id].as_bytes(),
            Some(n) if n < KEYWORDS.len() => KEYWORDS[n].as_bytes(),
            Some(n) => LOOSE_KEYWORDS[n - KEYWORDS.len()].as_bytes(),
        }
    }

    /// `exact`: the name was quoted, so its case counts and it is no keyword.
    #[inline]
    pub(super) fn find(&self, name: &[u8], exact: bool) -> Known {
        let mut known = Known::default();
        let mut slot = hash(name) & (SLOTS - 1);
        while self.slots[slot] != EMPTY {
            let id = self.slots[slot];
            let text = Self::text(id);
            if if exact { text == name } else { text.eq_ignore_ascii_case(name) } {
                match usize::from(id) {
                    id if id < FUNCTIONS.len() => known.function = true,
                    _ if exact => {}
                    id if id < FUNCTIONS.len() + KEYWORDS.len() => known.keyword = true,
                    _ => known.loose = true,
                }
            }
            slot = (slot + 1) & (SLOTS - 1);
        }
        known
    }
}
