//! The effects of a text on its session that have to be followed.

use super::{BOUND, State};
use crate::error::Error;
use crate::limits::NAME_BYTES_MAX;
use crate::proto::vars::HIDDEN;
use crate::settings::SessionState;
use crate::sql::effects::{Effects, deallocated_name, names_backend_state, unread};
use crate::sql::moves::may_change_meaning;
use crate::sql::scan::{Underscored, mentions};
use crate::wire::frame::Header;
use crate::wire::frontend as f;

/// What can make settings that no module defines (`SET app.user = ...`).
pub(super) const MAKES_SETTINGS: Effects = Effects::SETTINGS.union(Effects::UNKNOWN);

/// Most names noted for one probe.
const CANDIDATES_MAX: usize = 64;

/// Longest name noted (bytes): PostgreSQL cuts none that a string gives, but none is longer in earnest.
const CANDIDATE_BYTES_MAX: usize = 128;

impl State {
    /// What a text that is run now may do to the session's state, as far as that is followed.
    pub(super) fn effects_of(&mut self, text: &[u8]) -> Effects {
        if !self.follows_lexing() {
            return unread(text).intersection(Effects::BACKEND);
        }
        let found = self.read_effects(text);
        self.note_in_flight(found);
        if self.shares_servers() { found } else { found.intersection(Effects::BACKEND) }
    }

    /// Something is done that may change the session; `text` is where names of settings may stand.
    pub(super) fn tainted(&mut self, found: Effects, text: &[u8]) {
        self.ties.taint = self.ties.taint.union(found.difference(Effects::LOCAL));
        self.ties.local |= found.contains(Effects::LOCAL);
        self.note_giving_back(found, text);
        self.ties.for_good |= found.contains(Effects::BACKEND) && !self.lets_state_through();
        self.ties.loaded |= found.contains(Effects::LOAD);
        self.ties.apart |= found.contains(Effects::LOCAL) && sets_apart(text);
        self.meaning.open |= may_change_meaning(text, found);
        if found.contains(Effects::DEALLOCATE) && !self.deallocates_its_own(text) {
            self.ties.taint = self.ties.taint.union(Effects::EXECUTE);
        }
        if found.intersects(MAKES_SETTINGS) {
            self.ties.hidden |= names_hidden_setting(text);
            if !find_setting_names(text, &mut self.ties.candidates) {
                self.ties.taint = self.ties.taint.union(Effects::UNKNOWN);
            }
        }
        if self.ties.pinned && !self.ties.recheck {
            // DROP of a temporary object has no mark of its own.
            self.ties.recheck = found.touches_session()
                || memchr::memmem::find(&text.to_ascii_lowercase(), b"drop").is_some();
        }
    }

    /// A text is run; `makes`: it makes an object that is not temporary by what it says, or may. Without a schema that is made where
    /// the search path says, which may be where temporary ones are.
    pub(super) fn note_made(&mut self, makes: bool) {
        self.meaning.note_made(makes);
        if makes && (self.ties.local || self.vars.want.names_temp) {
            self.ties.taint = self.ties.taint.union(Effects::TEMP);
        }
    }

    /// A name that is not the client's may be the pool's.
    fn deallocates_its_own(&self, text: &[u8]) -> bool {
        deallocated_name(text).is_some_and(|name| self.names.lookup(&name).is_some())
    }

    /// Settings that PostgreSQL does not list must be known by name to be carried.
    pub(super) fn note_custom_settings(&self, text: &[u8], found: Effects) {
        let defines = matches!(text.first(), Some(b'c' | b'C')) && self.shares_servers();
        if defines || found.intersects(Effects::SETTINGS.union(Effects::UNKNOWN)) {
            self.custom_settings.note(text);
        }
    }

    /// The server was asked; `sees_all`: as one who may read all settings. True: some may be set that it did not tell of.
    pub fn hides_settings(&mut self, sees_all: bool) -> bool {
        let may_be_set = self.ties.hidden || self.vars.want.hidden().next().is_some();
        self.ties.hidden = may_be_set && !sees_all;
        self.ties.hidden
    }

    fn lets_state_through(&self) -> bool {
        self.shares_servers() && self.bounds.session_state == SessionState::Allow
    }

    /// As in `set_config($1, ...)`: names of settings come as parameters, too, and texts that are run.
    pub(super) fn note_bound_names(&mut self, text: &[u8], head: Header, body: &[u8]) {
        let bind = if body.len() == head.body { f::Bind::decode(body).ok() } else { None };
        if let Some(bind) = bind.as_ref().filter(|bind| bind.values().any(|value| value.is_none())) {
            self.note_bound_null(text, bind.values().flatten());
        }
        let may_tie = !self.lets_state_through();
        let ties = &mut self.ties;
        let mut missed = |value: &&[u8]| {
            ties.hidden |= names_hidden_setting(value);
            ties.for_good |= may_tie && names_backend_state(value);
            !find_setting_names(value, &mut ties.candidates)
        };
        let all = bind.is_some_and(|bind| bind.values().flatten().filter(&mut missed).count() == 0);
        if !all {
            self.ties.taint = self.ties.taint.union(Effects::UNKNOWN);
        }
    }

    pub(super) fn state_refusal(&self, found: Effects) -> Option<Error> {
        let bound = found.intersection(BOUND);
        (self.shares_servers() && self.bounds.session_state == SessionState::Reject && !bound.is_empty())
            .then(|| Error::session_state_rejected(bound.names().next().unwrap_or_default()))
    }
}

/// A text with SET LOCAL may have the server say more of each statement, or a library: it names what messages are sent, or what may
/// be a setting of a library's. Or it has what was prepared, or planned for, before mean another thing: names, and in which encoding
/// characters are. All ways to write these settings count, and whatever may be written in escapes; so does `set_config()`, which is
/// told the name as a value.
fn sets_apart(text: &[u8]) -> bool {
    const NAMES: [Underscored; 4] = [
        Underscored::new("client_min_messages"),
        Underscored::new("client_encoding"),
        Underscored::new("search_path"),
        Underscored::new("set_config"),
    ];
    const WORDS: [&[u8]; 2] = [b"names", b"schema"];
    let mut custom = Vec::new();
    let all = find_setting_names(text, &mut custom);
    let has = |word: &[u8]| text.windows(word.len()).any(|found| found.eq_ignore_ascii_case(word));
    let escaped = memchr::memchr2(b'\\', b'&', text).is_some();
    !all || !custom.is_empty() || escaped || mentions(text, NAMES.iter()) || WORDS.into_iter().any(has)
}

/// One of them stands somewhere in the text.
fn names_hidden_setting(text: &[u8]) -> bool {
    mentions(text, HIDDEN.map(Underscored::new).iter())
}

/// Notes every `word.word` of a text, wherever it stands: in a SET, in a string, in the body of a DO. False: there are more,
/// or such that the probe does not ask for.
fn find_setting_names(text: &[u8], names: &mut Vec<String>) -> bool {
    let in_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$') || b >= 0x80;
    let (mut at, mut all) = (0, true);
    while let Some(dot) = memchr::memchr(b'.', &text[at..]).map(|n| at + n) {
        let start = text[..dot].iter().rposition(|&b| !in_name(b) && b != b'.').map_or(0, |n| n + 1);
        let end = text[dot..].iter().position(|&b| !in_name(b) && b != b'.').map_or(text.len(), |n| dot + n);
        at = end.max(dot + 1);
        let name = &text[start..end];
        let begins = |b: u8| b.is_ascii_alphabetic() || b == b'_' || b >= 0x80;
        if !name.split(|&b| b == b'.').all(|word| word.first().is_some_and(|&b| begins(b))) {
            continue;
        }
        // What of a longer one is the name depends on how it is said.
        all &= name.len() <= NAME_BYTES_MAX;
        let known = |name: &&str| name.is_ascii() && name.len() <= CANDIDATE_BYTES_MAX;
        let Some(name) = std::str::from_utf8(name).ok().filter(known).map(str::to_ascii_lowercase) else {
            all = false;
            continue;
        };
        for name in ways_to_cut(&name).into_iter().flatten().chain([name]) {
            if names.contains(&name) {
                continue;
            }
            if names.len() < CANDIDATES_MAX {
                names.push(name);
            } else {
                all = false;
            }
        }
    }
    all
}

/// What a longer name may be cut to: as a whole, where it is of the type `name`, and word by word.
fn ways_to_cut(name: &str) -> [Option<String>; 2] {
    if name.len() <= NAME_BYTES_MAX {
        return [None, None];
    }
    let cut = |word: &str| word[..word.len().min(NAME_BYTES_MAX)].to_owned();
    [Some(cut(name)), Some(name.split('.').map(cut).collect::<Vec<_>>().join("."))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(text: &str) -> Vec<String> {
        let mut names = Vec::new();
        find_setting_names(text.as_bytes(), &mut names);
        names
    }

    #[test]
    fn a_name_that_is_not_noted_is_told_of() {
        let all = |text: &str| find_setting_names(text.as_bytes(), &mut Vec::new());
        assert!(all("SET a.b = '1.5 ... c.d'"));
        assert!(!all("SET a.\u{e9} = 1"));
        assert!(!all(&format!("SET a.{} = 1", "b".repeat(CANDIDATE_BYTES_MAX))));
        assert!(all(&format!("SET a.{} = 1", "b".repeat(NAME_BYTES_MAX - 2))));
        assert!(!all(&format!("SET a.{} = 1", "b".repeat(NAME_BYTES_MAX - 1))));
        assert!(!all(&(0..=CANDIDATES_MAX).map(|i| format!("a.b{i} ")).collect::<String>()));
    }

    #[test]
    fn settings_that_are_not_shown_are_found_wherever_they_stand() {
        assert!(names_hidden_setting(b"SET Dynamic_Library_Path = 'a'"));
        assert!(names_hidden_setting(b"_ session_preload_libraries"));
        assert!(names_hidden_setting(b"\0\0extension_destdir"));
        assert!(!names_hidden_setting(b"_path SET library_path = dynamic_library_"));
    }

    #[test]
    fn names_of_settings_are_found_wherever_they_stand() {
        assert_eq!(names_in("SET App.User = 'x'; SET app.user TO 2"), ["app.user"]);
        assert_eq!(names_in("SELECT set_config('a.b_c', $1, false), 1.5, .5, t.*"), ["a.b_c"]);
        assert_eq!(names_in("DO $$BEGIN PERFORM set_config('x.y.z','1',false); END$$"), ["x.y.z"]);
        assert_eq!(names_in("\0\0\x01app.x\0"), ["app.x"]);
        assert!(names_in("... a. .b 1.a").is_empty());
        let (long, cut) = ("b".repeat(80), "b".repeat(63));
        assert_eq!(
            names_in(&format!("SET a.{long} = 1")),
            [format!("a.{}", &cut[2..]), format!("a.{cut}"), format!("a.{long}")]
        );
        assert_eq!(
            names_in(&(0..1000).map(|i| format!("a.b{i} ")).collect::<String>()).len(),
            CANDIDATES_MAX
        );
    }
}
