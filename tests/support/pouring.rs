//! Clients whose INSERTs are poured, and how a test sees that they were.

use pgsluice::wire::backend;

use super::crowd::{self, comparable};
use super::{Message, Postgres, Proxy, Raw, Step};

/// Clients at a time.
pub const CLIENTS: usize = 8;

/// Rounds in which a statement must have been poured: the first ones are learnt from.
pub const ROUNDS: usize = 40;

pub fn crowd_of(port: u16, database: &str, n: usize) -> Vec<Raw> {
    (0..n).map(|_| Raw::login(port, database)).collect()
}

/// Rows, and the commands that brought them: a COPY brings many.
pub fn rows_and_commands(pg: &Postgres, database: &str, table: &str) -> (usize, usize) {
    let answer =
        pg.psql(database, &format!("SELECT count(*), count(DISTINCT (xmin::text, cmin::text)) FROM {table}"));
    let (rows, commands) = answer.trim().split_once('|').expect("two columns");
    (rows.parse().expect("rows"), commands.parse().expect("commands"))
}

pub fn tags(messages: &[Message]) -> Vec<String> {
    messages.iter().filter(|m| m.tag == backend::COMMAND_COMPLETE).map(Message::command).collect()
}

pub fn errors(messages: &[Message]) -> Vec<Message> {
    messages.iter().filter(|m| m.tag == backend::ERROR_RESPONSE).cloned().collect()
}

/// Runs rounds of `script(client, round)` until rows of several statements came by one COPY; panics when they never do.
/// Every tag must be that of an INSERT, every row there. `(a int, ...)`: the scripts' rows have distinct `a`.
pub fn until_poured(
    pg: &Postgres,
    clients: &mut [Raw],
    database: &str,
    table: &str,
    mut script: impl FnMut(usize, usize) -> Vec<Step>,
) {
    let (mut sent, mut statements) = (0, 0);
    for round in 0..ROUNDS {
        let scripts: Vec<_> = (0..clients.len()).map(|c| script(c, round)).collect();
        for seen in crowd::run(clients, &scripts, false) {
            let tags = tags(&seen);
            assert!(errors(&seen).is_empty(), "{}", comparable(&seen));
            let rows = |tag: &String| tag.strip_prefix("INSERT 0 ").and_then(|n| n.parse::<usize>().ok());
            sent += tags.iter().map(|tag| rows(tag).unwrap_or_else(|| panic!("{tags:?}"))).sum::<usize>();
            statements += tags.len();
        }
        let (rows, commands) = rows_and_commands(pg, database, table);
        assert_eq!(rows, sent, "rows of {table}");
        if commands < statements {
            let twice = pg.psql(database, &format!("SELECT a FROM {table} GROUP BY a HAVING count(*) > 1"));
            assert_eq!(twice, "", "rows that are there twice");
            return;
        }
    }
    panic!("nothing of {table} was poured");
}

/// A different number for each row.
pub fn number(client: usize, round: usize, at: usize) -> usize {
    round * 1_000_000 + client * 1000 + at
}

/// Clients that have a table learnt and poured; rows `(a, b)`.
pub fn warmed(pg: &Postgres, proxy: &Proxy, db: &str, n: usize) -> Vec<Raw> {
    let mut clients = crowd_of(proxy.port(), db, n);
    until_poured(pg, &mut clients, db, "t", |c, r| {
        (0..4)
            .map(|i| Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'w')", number(c, r, i))))
            .collect()
    });
    pg.psql(db, "DELETE FROM t");
    clients
}

/// Sends an INSERT and does not wait for its answer.
pub fn send_insert(client: &mut Raw, a: usize) {
    client.send(&Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'x')")).bytes);
}

/// Of a server process: it runs a flush, which waits for a lock.
pub const FLUSH_WAITS: &str = "wait_event_type = 'Lock' AND application_name = 'pgsluice'";

/// SQL that asks `what` of the database's server processes for which `condition` is true.
pub fn servers(what: &str, database: &str, condition: &str) -> String {
    format!("SELECT {what} FROM pg_stat_activity WHERE datname = '{database}' AND {condition}")
}

/// INSERTs that wait for a lock now: those that were sent on in their own sessions.
pub fn waiting(pg: &Postgres, db: &str, at_least: usize) {
    pg.wait_until(
        "postgres",
        &servers(&format!("count(*) >= {at_least}"), db, "wait_event_type = 'Lock' AND query LIKE 'INSERT%'"),
    );
}
