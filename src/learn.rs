//! Writes the statements seen under `allow_list = "learn"` into the list's file.
//!
//! Owns: the format of the file, the statements that wait to be written, the writing: all at once, into a new file that
//! replaces the old one. Never: gives a verdict, makes a session wait for a disk, uses more memory than its bounds.
//!
//! ```text
//! # a comment
//! 50fde20626009aba                    # SELECT a FROM t WHERE b = $1
//! 8a2f0b6c1d3e4f50:3a7bd3e2360a3d29   # SET
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use crate::files;
use crate::mutex::lock;
use crate::settings::Print;
use crate::sql::verbs::Named;
use crate::telemetry::{events, is_unseen};

/// Most statements that are learned for one file while the process runs, or until a reload: an application that
/// puts literals where parameters cannot go (names of tables) would otherwise fill memory and disk.
pub const PRINTS_MAX: usize = 50_000;

/// Largest allow-list that is read (bytes).
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// What was seen for one file.
#[derive(Debug, Default)]
struct Seen {
    all: HashSet<Print>,
    waiting: BTreeMap<Print, String>,
    /// That no more is learned was said.
    full: bool,
}

/// What one proxy learns.
#[derive(Debug, Default)]
pub struct Learner {
    seen: RwLock<HashMap<PathBuf, Seen>>,
    writing: Mutex<()>,
    /// Questions by [`Learner::waits`] that are denied after a file could not be written.
    pause: AtomicU64,
}

/// How many: a minute, as the janitor asks.
const PAUSE_TURNS: u64 = 60;

impl Learner {
    /// What was taken out of a file may be learned again: a reload has read the files anew.
    pub fn forget(&self) {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, seen| !seen.waiting.is_empty());
        for seen in seen.values_mut() {
            seen.all = seen.waiting.keys().copied().collect();
            seen.full = false;
        }
    }

    /// A statement that the list of `file` does not have went by.
    pub fn note(&self, file: &Path, named: Named) {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        if seen.get(file).is_some_and(|seen| seen.all.contains(&named.print)) {
            return;
        }
        drop(seen);
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.entry(file.to_owned()).or_default();
        if seen.all.len() >= PRINTS_MAX {
            if !std::mem::replace(&mut seen.full, true) {
                events::learns_no_more(file, PRINTS_MAX);
            }
        } else if seen.all.insert(named.print) {
            seen.waiting.insert(named.print, named.remark);
        }
    }

    /// Something waits to be written; asked once a second.
    pub fn waits(&self) -> bool {
        let paused =
            self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |turns| turns.checked_sub(1));
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        paused.is_err() && seen.values().any(|seen| !seen.waiting.is_empty())
    }

    /// Writes what waits; what cannot be written waits on. Blocks on files.
    pub fn flush(&self) {
        let _one = lock(&self.writing);
        for (file, new) in self.take_waiting() {
            match append(&file, &new) {
                Ok(count) => events::learned(&file, count),
                Err(error) => {
                    events::not_learned(&file, &error);
                    self.pause.store(PAUSE_TURNS, Ordering::Relaxed);
                    let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
                    seen.entry(file).or_default().waiting.extend(new);
                }
            }
        }
    }

    fn take_waiting(&self) -> Vec<(PathBuf, BTreeMap<Print, String>)> {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        let some = seen.iter_mut().filter(|(_, seen)| !seen.waiting.is_empty());
        some.map(|(file, seen)| (file.clone(), std::mem::take(&mut seen.waiting))).collect()
    }
}

/// What a file's text holds, and the lines (counted from 1) that are none of its form.
pub fn parse(text: &str) -> (HashSet<Print>, Vec<usize>) {
    let mut odd = Vec::new();
    let mut prints = HashSet::new();
    for (at, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        match Print::parse(entry) {
            _ if entry.is_empty() => {}
            Some(print) => drop(prints.insert(print)),
            None => odd.push(at + 1),
        }
    }
    (prints, odd)
}

/// Adds lines; the number of those that were not there. A reader sees the old file or the new one, whole.
fn append(file: &Path, new: &BTreeMap<Print, String>) -> io::Result<usize> {
    let mut text = String::new();
    let permissions = match files::open(file) {
        Ok(open) => {
            let permissions = open.metadata()?.permissions();
            open.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
            Some(permissions)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("the allow-list is too large"));
    }
    let (known, _) = parse(&text);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let mut count = 0;
    for (print, remark) in new.iter().filter(|(print, _)| !known.contains(*print)) {
        text.push_str(&format!("{print} # {}\n", remark.replace(is_unseen, " ")));
        count += 1;
    }
    if count > 0 {
        replace(file, &text, permissions)?;
    }
    Ok(count)
}

fn replace(file: &Path, text: &str, permissions: Option<fs::Permissions>) -> io::Result<()> {
    let mut half = file.as_os_str().to_owned();
    half.push(format!(".{}", std::process::id()));
    let half = PathBuf::from(half);
    let write = || {
        let mut to = fs::File::create(&half)?;
        if let Some(permissions) = permissions {
            to.set_permissions(permissions)?;
        }
        to.write_all(text.as_bytes())?;
        to.sync_all()?;
        fs::rename(&half, file)
    };
    write().inspect_err(|_| drop(fs::remove_file(&half)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(shape: u64) -> Named {
        let unseen = ['\n', '\u{202e}'][shape as usize % 2];
        Named { print: Print { shape, text: 0 }, remark: format!("SELECT {shape}{unseen}# DROP") }
    }

    #[test]
    fn what_is_learned_is_written_once_and_what_stood_there_stays() {
        let learner = Learner::default();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        fs::write(&file, "# mine\n0000000000000001 # one").unwrap();
        for shape in [1, 2, 3, 2] {
            learner.note(&file, named(shape));
        }
        assert!(learner.waits());
        learner.flush();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text,
            "# mine\n0000000000000001 # one\n0000000000000002 # SELECT 2 # DROP\n\
             0000000000000003 # SELECT 3 # DROP\n"
        );
        learner.note(&file, named(3));
        learner.flush();
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert_eq!(parse(&text).0.len(), 3);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no half file is left");
    }

    #[test]
    fn what_cannot_be_written_waits() {
        let learner = Learner::default();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("none/list");
        learner.note(&file, named(7));
        learner.flush();
        assert!(!learner.waits(), "not tried again at once");
        fs::create_dir(dir.path().join("none")).unwrap();
        learner.flush();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0000000000000007 # SELECT 7 # DROP\n");
    }

    #[test]
    fn learning_is_bounded() {
        let learner = Learner::default();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bounded");
        for shape in 0..PRINTS_MAX as u64 + 3 {
            learner.note(&file, named(shape + 1));
        }
        assert!(learner.seen.read().unwrap()[&file].full, "it is said once");
        learner.flush();
        assert_eq!(parse(&fs::read_to_string(&file).unwrap()).0.len(), PRINTS_MAX);
        learner.forget();
        learner.note(&file, named(PRINTS_MAX as u64 + 1));
        assert!(learner.waits(), "until a reload");
    }

    #[test]
    fn what_waits_is_written_behind_a_reload_too() {
        let learner = Learner::default();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        assert!(!learner.waits());
        learner.note(&file, named(8));
        learner.forget();
        learner.flush();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0000000000000008 # SELECT 8 # DROP\n");
        // What was taken out of the file is learned again.
        fs::write(&file, "").unwrap();
        learner.forget();
        learner.note(&file, named(8));
        learner.flush();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0000000000000008 # SELECT 8 # DROP\n");
    }

    #[test]
    fn an_entry_is_what_stands_before_the_remark() {
        let (prints, odd) = parse(
            "\n # x\n00000000000000ff\n00000000000000FF:0000000000000001 #y\nff\n+0000000000000ff\nSELECT 1\n",
        );
        assert_eq!(prints, HashSet::from([Print { shape: 255, text: 0 }, Print { shape: 255, text: 1 }]));
        assert_eq!(odd, [5, 6, 7]);
    }
}
