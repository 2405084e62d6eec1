//! SET on the console: one key of a running configuration.

use std::path::Path;

use super::keys::{self, Section};
use super::table::GENERAL;
use super::value::Raw;
use super::{Draft, check, lenient};
use crate::settings::Settings;

/// Why a key can't be set while running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetError {
    /// No such key in `[general]`; what it most likely meant.
    Unknown(String),
    /// Only a restart changes it.
    Restart,
    /// It names a file: set it in the configuration file and reload.
    File,
    /// The value can't be used; what would be right.
    Invalid(String),
}

/// `settings`, read from `file`, with one key of `[general]` changed, written as in PgBouncer's format. Reads the files
/// that the settings name (TLS), as a reload does.
///
/// # Errors
/// See [`SetError`]; what must hold between keys is checked as at start.
pub fn set(file: &Path, settings: &Settings, key: &str, value: &str) -> Result<Settings, SetError> {
    let entry = keys::find(GENERAL, Section::General, key)
        .ok_or_else(|| SetError::Unknown(keys::hint(Section::General, key, settings.ini)))?;
    if !entry.reloadable {
        return Err(SetError::Restart);
    }
    if key.ends_with("_file") {
        return Err(SetError::File);
    }
    let mut draft = Draft::new(file);
    draft.settings = settings.clone();
    draft.databases = settings.databases.values().chain(&settings.fallback).map(|d| (**d).clone()).collect();
    let meant = lenient::general(key, value).filter(|_| draft.ini).map(|(meant, _)| meant);
    let raw = Raw::Text(meant.unwrap_or_else(|| value.to_owned()));
    (entry.set)(&mut draft.settings.general, &raw, Path::new(""))
        .map_err(|takes| SetError::Invalid(format!("expected {takes}")))?;
    check::check(&mut draft);
    match draft.problems.first() {
        Some(problem) if problem.key == key => Err(SetError::Invalid(problem.message.clone())),
        Some(problem) => Err(SetError::Invalid(format!("{}: {}", problem.key, problem.message))),
        None => Ok(draft.settings),
    }
}
