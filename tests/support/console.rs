//! What a console shows, by column names.

use std::collections::HashMap;

use pgsluice::wire::backend;

use super::{Message, PATIENCE, Raw, outline, poll};

/// One row of a SHOW by its columns' names.
pub type Row = HashMap<String, String>;

/// The columns' names of a RowDescription.
fn names(message: &Message) -> Vec<String> {
    let mut rest = &message.body[2..];
    let mut names = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|b| *b == 0).expect("a name");
        names.push(String::from_utf8(rest[..end].to_vec()).expect("UTF-8"));
        rest = &rest[end + 19..];
    }
    names
}

/// The rows of a SHOW; NULL is empty.
pub fn show(console: &mut Raw, sql: &str) -> Vec<Row> {
    let messages = console.query(sql);
    let head =
        messages.iter().find(|m| m.tag == b'T').unwrap_or_else(|| panic!("{sql}:\n{}", outline(&messages)));
    let names = names(head);
    let row = |m: &Message| {
        names.iter().cloned().zip(m.row().into_iter().map(Option::unwrap_or_default)).collect::<Row>()
    };
    messages.iter().filter(|m| m.tag == backend::DATA_ROW).map(row).collect()
}

/// The row in which each of these columns has that value.
pub fn find(console: &mut Raw, sql: &str, by: &[(&str, &str)]) -> Option<Row> {
    show(console, sql).into_iter().find(|row| by.iter().all(|(key, value)| row[*key] == *value))
}

/// Waits until SHOW has such a row.
pub fn until(console: &mut Raw, sql: &str, by: &[(&str, &str)]) {
    let seen = poll(PATIENCE, || find(console, sql, by));
    assert!(seen.is_some(), "{sql} never had {by:?}: {:?}", show(console, sql));
}

/// Sets a limit on the running proxy, which the earlier steps of the test need not keep.
pub fn set(port: u16, setting: &str) {
    tell(&mut Raw::login(port, "pgsluice"), &format!("SET {setting}"));
}

/// A command that must succeed.
pub fn tell(console: &mut Raw, command: &str) {
    let messages = console.query(command);
    let tag = command.split_whitespace().next().expect("a word");
    let done = messages.iter().any(|m| m.tag == backend::COMMAND_COMPLETE && m.command() == tag);
    assert!(done, "{command}:\n{}", outline(&messages));
}
