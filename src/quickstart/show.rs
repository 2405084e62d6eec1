//! The show: pgbench, unmodified, inserts single rows direct and through pgsluice; then the tables are compared.

use std::path::Path;
use std::process::{Output, Stdio};

use tokio::process::Command;

use super::postgres::Installation;
use super::{Failure, Options, say, without_pg_settings};

/// Rounds of each query mode; direct and through pgsluice take turns.
const ROUNDS: u32 = 3;

/// A table as anybody's: a key, text, numbers.
const TABLE: &str =
    "CREATE TABLE readings (device int, seq int, kind text NOT NULL, value int, PRIMARY KEY (device, seq))";

/// What each client says, again and again. `seq` counts its own rows, so both ways must end in the same table.
const SCRIPT: &str = "\\set seq :seq + 1\n\\set value (:seq * 7919 + :client_id) % 1000\n\
INSERT INTO readings (device, seq, kind, value) VALUES (:client_id, :seq, 'temperature', :value);\n";

/// Rows in either table that the other has not.
const COMPARE: &str = "SELECT (SELECT count(*) FROM (TABLE readings EXCEPT ALL TABLE readings_direct) a) + \
(SELECT count(*) FROM (TABLE readings_direct EXCEPT ALL TABLE readings) b)";

/// The stage.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) installation: &'a Installation,
    pub(super) dir: &'a Path,
    /// Port of PostgreSQL.
    pub(super) direct: u16,
    /// Port of pgsluice.
    pub(super) through: u16,
    pub(super) options: Options,
}

/// What all rounds of one query mode came to.
#[derive(Debug, Default)]
struct Score {
    direct_seconds: f64,
    through_seconds: f64,
    rows: u64,
    different: u64,
}

impl Scene<'_> {
    /// Plays it and prints it. An error if a client failed or the tables differ.
    pub(super) async fn play(&self) -> Result<(), Failure> {
        let script = self.dir.join("insert.sql");
        std::fs::write(&script, SCRIPT).map_err(|e| format!("{}: {e}", script.display()))?;
        self.sql(self.direct, "postgres", TABLE).await?;
        let Options { clients, rows, .. } = self.options;
        say(format_args!(
            "pgbench, unmodified: {clients} clients, each row an INSERT and a transaction of its own (fsync on)\n"
        ))?;
        say(format_args!("  {}", SCRIPT.lines().last().unwrap_or_default()))?;
        say(format_args!(
            "\n{ROUNDS} rounds of {} rows, direct and through pgsluice in turn:\n",
            u64::from(clients) * u64::from(rows)
        ))?;
        say(format_args!(
            "  {:<10} {:>14} {:>18} {:>9}   tables",
            "queries", "direct rows/s", "pgsluice rows/s", "ratio"
        ))?;
        let mut different = 0;
        for mode in ["simple", "extended", "prepared"] {
            let score = self.rounds(mode, &script).await?;
            let rate = |seconds: f64| score.rows as f64 / seconds.max(1e-9);
            let (direct, through) = (rate(score.direct_seconds), rate(score.through_seconds));
            let same = if score.different == 0 {
                "the same".into()
            } else {
                format!("{} rows differ", score.different)
            };
            say(format_args!(
                "  {mode:<10} {direct:>14.0} {through:>18.0} {:>8.2}x   {same}",
                through / direct
            ))?;
            different += score.different;
        }
        say("")?;
        self.explain().await?;
        if different > 0 {
            return Err(format!("the tables differ in {different} rows"));
        }
        Ok(())
    }

    async fn rounds(&self, mode: &str, script: &Path) -> Result<Score, Failure> {
        let mut score = Score::default();
        for _ in 0..ROUNDS {
            score.direct_seconds += self.load(self.direct, mode, script).await?;
            let keep = "DROP TABLE IF EXISTS readings_direct; CREATE TABLE readings_direct AS TABLE readings; TRUNCATE readings";
            self.sql(self.direct, "postgres", keep).await?;
            score.through_seconds += self.load(self.through, mode, script).await?;
            score.different += self.number(COMPARE).await?;
            score.rows += self.number("SELECT count(*) FROM readings_direct").await?;
            self.sql(self.direct, "postgres", "TRUNCATE readings").await?;
        }
        let expected = u64::from(ROUNDS) * u64::from(self.options.clients) * u64::from(self.options.rows);
        if score.rows == expected {
            Ok(score)
        } else {
            Err(format!("{} rows direct instead of {expected}", score.rows))
        }
    }

    /// One run of pgbench; how long it took (seconds).
    async fn load(&self, port: u16, mode: &str, script: &Path) -> Result<f64, Failure> {
        let Options { clients, rows, .. } = self.options;
        let mut pgbench = self.client("pgbench", port);
        pgbench.args(["-n", "-D", "seq=0", "-j", "2", "-M", mode, "-f"]).arg(script);
        pgbench.args(["-c", &clients.to_string(), "-t", &rows.to_string(), "postgres"]);
        let said = output("pgbench", &mut pgbench).await?;
        let tps =
            said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
        let tps = tps.filter(|tps| *tps > 0.0).ok_or_else(|| format!("pgbench said no tps:\n{said}"))?;
        Ok(f64::from(clients) * f64::from(rows) / tps)
    }

    /// What pgsluice says it did.
    async fn explain(&self) -> Result<(), Failure> {
        let shown = self.sql_as(self.through, "pgsluice", "SHOW COALESCE", &["-A", "-F", "\t"]).await?;
        let mut lines = shown.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let names = lines.next().unwrap_or_default();
        let lanes: Vec<_> = lines.filter(|fields| fields.len() == names.len()).collect();
        let sum = |name: &str| -> u64 {
            let at = names.iter().position(|n| *n == name);
            let values = lanes.iter().filter_map(|fields| fields.get(at?)?.parse::<u64>().ok());
            values.sum()
        };
        let (rows, flushes, singles, undone) = (sum("rows"), sum("flushes"), sum("singles"), sum("failures"));
        let mean = rows as f64 / flushes.max(1) as f64;
        say(format_args!(
            "SHOW COALESCE: {rows} rows left in {flushes} COPYs of {mean:.1} rows each, {singles} as they were sent because \
             nothing was under way; {undone} COPYs failed and were undone"
        ))?;
        Ok(())
    }

    async fn number(&self, sql: &str) -> Result<u64, Failure> {
        let said = self.sql_as(self.direct, "postgres", sql, &["-A", "-t"]).await?;
        said.trim().parse().map_err(|_| format!("no number: {said:?}"))
    }

    async fn sql(&self, port: u16, database: &str, sql: &str) -> Result<String, Failure> {
        self.sql_as(port, database, sql, &["-A", "-t"]).await
    }

    async fn sql_as(&self, port: u16, database: &str, sql: &str, form: &[&str]) -> Result<String, Failure> {
        let mut psql = self.client("psql", port);
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "footer=off"])
            .args(form)
            .args(["-d", database, "-c", sql]);
        output("psql", &mut psql).await
    }

    fn client(&self, name: &str, port: u16) -> Command {
        let mut command = Command::new(self.installation.client(name));
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port.to_string()]);
        without_pg_settings(&mut command).env("PGSSLMODE", "disable").env("PGGSSENCMODE", "disable");
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

async fn output(name: &str, command: &mut Command) -> Result<String, Failure> {
    let Output { status, stdout, stderr } = command.output().await.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("no {name} found (Debian: apt install postgresql)"),
        _ => format!("{name}: {e}"),
    })?;
    let (said, complaint) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr));
    if status.success() { Ok(said) } else { Err(format!("{name} failed:\n{said}{complaint}")) }
}
