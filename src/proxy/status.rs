//! The status page: what the console shows, as far as an operator looks first. Never: changes anything, shows a secret.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Proxy;
use super::show::resident_bytes;
use crate::admin::rows::{CoalesceTableRow, LaneRow, PolicyRow};
use crate::admin::session::Engine;
use crate::admin::table::{Row, Value};
use crate::limits::STATUS_ROWS_MAX;
use crate::pool::Pool;
use crate::telemetry::html::{Cell, Page};

const POOLS: [&str; 14] = [
    "database",
    "user",
    "pool_mode",
    "clients",
    "waiting",
    "longest wait now (ms)",
    "servers active",
    "idle",
    "login",
    "pool_size",
    "waits",
    "wait p50 (ms)",
    "p99",
    "max",
];

const POURED: [&str; 18] = [
    "database",
    "user",
    "table",
    "format",
    "mode",
    "rows",
    "flushes",
    "rows_per_flush",
    "singles",
    "fallbacks",
    "passed_through",
    "failures",
    "dead_rows",
    "resolved",
    "unknown",
    "flush_us_p50",
    "flush_us_p99",
    "wait_us_p99",
];

const NOT_POURED: [&str; 6] = ["database", "table", "eligible", "reason", "statements", "seen"];

impl Proxy {
    /// The page.
    pub(super) fn status(&self) -> String {
        let mut page = Page::new("pgsluice");
        self.put_state(&mut page);
        self.put_pools(&mut page);
        let mut lanes = Engine::lanes(self);
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.rows + lane.shadow + lane.singles));
        put_rows::<LaneRow>(&mut page, "Poured", &POURED, &lanes, "SHOW COALESCE");
        let mut tables = Engine::coalesce_tables(self);
        tables.retain(|table| table.eligible != "yes");
        tables.sort_by_key(|table| std::cmp::Reverse(table.seen));
        put_rows::<CoalesceTableRow>(&mut page, "Not poured", &NOT_POURED, &tables, "SHOW COALESCE_TABLES");
        let mut rules = Engine::policy(self);
        rules.retain(|rule| rule.rejected + rule.reported > 0);
        put_rows::<PolicyRow>(
            &mut page,
            "Refused by the policy",
            &["rule", "rejected", "reported"],
            &rules,
            "SHOW POLICY",
        );
        page.into_text()
    }

    fn put_state(&self, page: &mut Page) {
        let state = match () {
            () if self.is_draining() => "draining: no client is let in any more",
            () if !self.is_ready() => "leaving: clients are still let in, and should be sent elsewhere",
            () if self.cx.pools.all_paused() => "paused: PAUSE holds all databases",
            () => "ready",
        };
        let audit = self.cx.audit.progress();
        let number = |n: usize| Cell::Number(n.to_string());
        let mut facts = vec![
            ("version", Cell::Text(env!("CARGO_PKG_VERSION").to_owned())),
            ("up", Cell::Text(since(self.started.elapsed()))),
            ("state", Cell::Text(state.to_owned())),
            ("clients", number(self.let_in())),
            ("connections not logged in", number(self.logins_under_way())),
            ("audit events lost", Cell::Number(audit.lost.to_string())),
        ];
        if let Some(bytes) = resident_bytes() {
            facts.push(("memory (MB)", number(bytes >> 20)));
        }
        let (names, values): (Vec<_>, Vec<_>) = facts.into_iter().unzip();
        page.table(&names, &[values]);
    }

    fn put_pools(&self, page: &mut Page) {
        let mut pools = self.cx.pools.all();
        pools.sort_by(|a, b| a.key.cmp(&b.key));
        let mut rows: Vec<_> = pools.iter().map(|pool| (pool.counts().waiting, pool_row(pool))).collect();
        rows.sort_by_key(|(waiting, _)| std::cmp::Reverse(*waiting));
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        put_table(page, "Pools", &POOLS, &rows, "SHOW POOLS");
    }
}

fn pool_row(pool: &Pool) -> Vec<Cell> {
    let (counts, settings, wait) = (pool.counts(), pool.settings.load(), pool.stats.wait.spread());
    let text = |text: &str| Cell::Text(text.to_owned());
    let number = |n: usize| Cell::Number(n.to_string());
    let millis = |micros: u64| Cell::Number(format!("{}.{:03}", micros / 1000, micros % 1000));
    vec![
        text(&pool.key.database),
        text(&pool.key.user),
        text(settings.mode.as_str()),
        number(pool.clients.load(Ordering::Relaxed)),
        number(counts.waiting),
        millis(u64::try_from(counts.maxwait.as_micros()).unwrap_or(u64::MAX)),
        number(counts.active),
        number(counts.idle),
        number(counts.login),
        number(settings.size),
        Cell::Number(pool.stats.wait.count().to_string()),
        millis(wait.p50),
        millis(wait.p99),
        millis(wait.max),
    ]
}

/// Some columns of what the console shows as `command`.
fn put_rows<R: Row>(page: &mut Page, heading: &str, columns: &[&str], rows: &[R], command: &str) {
    let all: Vec<&str> = R::COLUMNS.iter().map(|column| column.name).collect();
    let picked = |row: &R| {
        let values = row.values();
        let at = |name: &&str| all.iter().position(|column| column == name);
        columns.iter().filter_map(at).map(|i| cell(&values[i])).collect()
    };
    // One more than is shown tells that there are more.
    let shown: Vec<_> = rows.iter().take(STATUS_ROWS_MAX + 1).map(picked).collect();
    put_table(page, heading, columns, &shown, command);
}

fn put_table(page: &mut Page, heading: &str, columns: &[&str], rows: &[Vec<Cell>], command: &str) {
    page.heading(heading);
    match rows.get(..STATUS_ROWS_MAX) {
        _ if rows.is_empty() => page.note("nothing"),
        Some(first) if rows.len() > STATUS_ROWS_MAX => {
            page.table(columns, first);
            page.note(&format!("There are more: {command}."));
        }
        _ => page.table(columns, rows),
    }
}

fn cell(value: &Value) -> Cell {
    match value {
        Value::Null => Cell::Number(String::new()),
        Value::Text(text) => Cell::Text(text.to_string()),
        Value::Int(n) => Cell::Number(n.to_string()),
        Value::Hundredths(n) => Cell::Number(format!("{}.{:02}", n / 100, n % 100)),
    }
}

fn since(up: Duration) -> String {
    let minutes = up.as_secs() / 60;
    format!("{} d {} h {} min {} s", minutes / 1440, minutes / 60 % 24, minutes % 60, up.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A column that the console no longer has would be missing from its rows.
    #[test]
    fn each_column_is_one_of_the_consoles() {
        let has = |columns: &[&str], of: &[crate::admin::table::Column]| {
            columns.iter().all(|name| of.iter().any(|column| column.name == *name))
        };
        assert!(has(&POURED, LaneRow::COLUMNS));
        assert!(has(&NOT_POURED, CoalesceTableRow::COLUMNS));
        assert!(has(&["rule", "rejected", "reported"], PolicyRow::COLUMNS));
    }

    #[test]
    fn a_long_list_ends_and_says_so() {
        let rows = |n: usize| {
            let rows: Vec<_> =
                (0..n).map(|seen| CoalesceTableRow { seen: seen as u64, ..Default::default() }).collect();
            let mut page = Page::new("t");
            put_rows(&mut page, "h", &NOT_POURED, &rows, "SHOW IT");
            page.into_text()
        };
        assert!(rows(0).contains("<p>nothing</p>") && !rows(1).contains("<p>"));
        assert_eq!(rows(STATUS_ROWS_MAX).matches("<tr>").count(), STATUS_ROWS_MAX + 1);
        assert!(!rows(STATUS_ROWS_MAX).contains("SHOW IT"));
        let more = rows(STATUS_ROWS_MAX + 5);
        assert_eq!(more.matches("<tr>").count(), STATUS_ROWS_MAX + 1);
        assert!(more.contains("<p>There are more: SHOW IT.</p>"));
    }

    #[test]
    fn uptime_in_words() {
        assert_eq!(since(Duration::from_secs(93_784)), "1 d 2 h 3 min 4 s");
    }
}
