//! What the console shows: the state of what runs, in PgBouncer's columns. Never: changes anything, shows a secret.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use super::Proxy;
use super::averages::ByDatabase;
use crate::admin::rows::*;
use crate::admin::session::Engine;
use crate::cancel::{ClientShared, ClientState, Way};
use crate::coalesce::batch::Form;
use crate::coalesce::evidence::{Flush, LaneStats, StatsKey, TableStats};
use crate::coalesce::lane::Lane;
use crate::config;
use crate::mutex::lock;
use crate::pool::{Pool, Stats};
use crate::server::connect::Address;
use crate::server::{ServerConn, ServerShared};
use crate::settings::{CONSOLES, CoalesceMode, Database, LoadBalanceHosts, Peer, Settings};
use crate::telemetry::audit::Progress;
use crate::telemetry::tally::load;

/// The pool_mode that PgBouncer shows for its console.
const CONSOLE_MODE: &str = "statement";

impl Engine for Proxy {
    fn pools(&self) -> Vec<PoolRow> {
        let (linked, settings) = (self.links(), self.cx.settings.load());
        let mut clients: HashMap<_, u64> = HashMap::new();
        for client in self.cx.clients.all().iter().filter(|c| c.state() != ClientState::Waiting) {
            let entry = settings.database(&client.asked.database);
            let key = entry.map_or_else(|| client.asked.clone(), |entry| client.asked.pool(entry));
            *clients.entry(key).or_default() += 1;
        }
        let row = |pool: &Arc<Pool>| pool_row(pool, clients.get(&pool.key).copied().unwrap_or(0), &linked);
        let mut pools = self.cx.pools.all();
        pools.sort_by(|a, b| a.key.cmp(&b.key));
        let mut rows: Vec<PoolRow> = Vec::new();
        for row in pools.iter().map(row) {
            // That of replication connections is shown with the one for SQL: readers expect one row for each database and user.
            match rows.last_mut().filter(|last| (&last.database, &last.user) == (&row.database, &row.user)) {
                Some(last) => add_up(last, &row),
                None => rows.push(row),
            }
        }
        let consoles = self.cx.clients.consoles();
        rows.extend(CONSOLES.iter().filter_map(|name| {
            let active = count(consoles.iter().filter(|c| c.asked.database == *name).count());
            let (database, user) = ((*name).to_owned(), (*name).to_owned());
            let row =
                PoolRow { database, user, cl_active: active, pool_mode: CONSOLE_MODE, ..PoolRow::default() };
            (active > 0).then_some(row)
        }));
        rows
    }

    fn clients(&self) -> Vec<SocketRow> {
        let now = Instant::now();
        let mut clients = self.cx.clients.all();
        clients.extend(self.cx.clients.consoles());
        clients.sort_by_key(|client| client.id);
        clients.iter().map(|client| client_row(client, now)).collect()
    }

    fn servers(&self) -> Vec<SocketRow> {
        let (linked, now) = (self.links(), Instant::now());
        let of_pool = |pool: &Arc<Pool>| {
            let servers = pool.servers();
            let rows = servers.iter().map(|(s, free)| server_row(pool, s, *free, linked.get(&s.id), now));
            rows.collect::<Vec<_>>()
        };
        let mut rows: Vec<_> = self.cx.pools.all().iter().flat_map(of_pool).collect();
        rows.sort_by_key(|row| row.id);
        rows
    }

    fn databases(&self) -> Vec<DatabaseRow> {
        let settings = self.cx.settings.load();
        // The fallback is shown as the databases that it serves.
        let mut shown: BTreeMap<String, &Database> =
            settings.databases.iter().map(|(name, database)| (name.clone(), &**database)).collect();
        for pool in self.cx.pools.all() {
            if let Some(database) = settings.database(&pool.key.database) {
                shown.entry(pool.key.database.clone()).or_insert(database);
            }
        }
        let mut rows: Vec<_> =
            shown.iter().map(|(name, database)| self.database_row(&settings, name, database)).collect();
        let consoles = self.cx.clients.consoles();
        rows.extend(CONSOLES.iter().map(|name| DatabaseRow {
            name: (*name).to_owned(),
            port: settings.general.listen_port.into(),
            database: (*name).to_owned(),
            force_user: Some((*name).to_owned()),
            pool_mode: Some(CONSOLE_MODE),
            current_client_connections: count(consoles.iter().filter(|c| c.asked.database == *name).count()),
            ..DatabaseRow::default()
        }));
        rows
    }

    fn users(&self) -> Vec<UserRow> {
        let settings = self.cx.settings.load();
        let pools = self.cx.pools.all();
        let mut used: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for name in settings.users.keys().chain(settings.userlist.keys()) {
            used.entry(name.clone()).or_default();
        }
        for pool in &pools {
            used.entry(pool.key.user.clone()).or_default().0 += pool.servers().len();
        }
        for client in self.cx.clients.all() {
            used.entry(client.asked.user.clone()).or_default().1 += 1;
        }
        used.into_iter().map(|(name, used)| user_row(&settings, name, used)).collect()
    }

    fn lists(&self) -> Vec<ListRow> {
        let pools = self.cx.pools.all();
        let counts: Vec<_> = pools.iter().map(|pool| pool.counts()).collect();
        let (clients, consoles) = (self.cx.clients.len(), self.cx.clients.consoles().len());
        let open = self.logins_under_way() + self.let_in();
        let row = |list, items: usize| ListRow { list, items: count(items) };
        vec![
            row("databases", Engine::databases(self).len()),
            row("users", Engine::users(self).len()),
            row("peers", self.cx.settings.load().peers.len()),
            row("pools", Engine::pools(self).len()),
            row("peer_pools", self.peers.load().ways().count()),
            row("free_clients", 0),
            row("used_clients", clients + consoles),
            row("login_clients", open.saturating_sub(clients)),
            // As `free_clients`: places that PgBouncer has ready for more, not connections.
            row("free_servers", 0),
            row("used_servers", counts.iter().map(|c| c.idle + c.active).sum()),
            row("dns_names", 0),
            row("dns_zones", 0),
            row("dns_queries", 0),
            row("dns_pending", 0),
        ]
    }

    fn peers(&self) -> Vec<PeerRow> {
        let settings = self.cx.settings.load();
        let row = |(id, peer): (&u16, &Peer)| PeerRow {
            peer_id: u64::from(*id),
            host: peer.host.clone().unwrap_or_default(),
            port: peer.port.into(),
            pool_size: count(peer.pool_size.unwrap_or(settings.general.default_pool_size)),
        };
        settings.peers.iter().map(row).collect()
    }

    fn peer_pools(&self) -> Vec<PeerPoolRow> {
        let peers = self.peers.load();
        let row = |(id, way): (u16, &Way)| {
            let (under_way, waiting) = way.requests();
            PeerPoolRow {
                peer_id: id.into(),
                cl_active_cancel_req: count(under_way),
                cl_waiting_cancel_req: count(waiting),
                sv_active_cancel: count(under_way),
                sv_login: 0,
            }
        };
        peers.ways().map(row).collect()
    }

    fn config(&self) -> Vec<ConfigRow> {
        let row = |config::Shown { key, value, default, reloadable }| ConfigRow {
            key,
            value,
            default,
            changeable: if reloadable { "yes" } else { "no" },
        };
        config::shown(&self.cx.settings.load()).into_iter().map(row).collect()
    }

    fn mem(&self) -> Vec<MemRow> {
        let shared = self.cx.pools.shared();
        let servers: usize = self.cx.pools.all().iter().map(|pool| pool.servers().len()).sum();
        let of = |name, size: usize, used: usize| MemRow {
            name,
            size: count(size),
            used: count(used),
            free: 0,
            memtotal: count(size * used),
        };
        let bytes = |name, used: usize, memtotal: usize| MemRow {
            name,
            used: count(used),
            memtotal: count(memtotal),
            ..MemRow::default()
        };
        let lanes = self.cx.lanes.lanes();
        let waiting: usize = lanes.iter().map(|lane| lane.load().bytes).sum();
        let [holders, held] = self.cx.lanes.held();
        let mut rows = vec![
            of("client", size_of::<crate::client::session::Session>(), self.cx.clients.len()),
            of("server", size_of::<ServerConn>(), servers),
            of("pool", size_of::<Pool>(), self.cx.pools.all().len()),
            bytes("prepared_statement_text", 0, shared.statements.bytes()),
            bytes("coalesce_waiting", lanes.len(), waiting),
            bytes("coalesce_held", holders, held),
        ];
        rows.extend(resident_bytes().map(|all| bytes("process_resident", 1, all)));
        rows
    }

    fn state(&self) -> Vec<StateRow> {
        let paused = self.cx.pools.all_paused();
        let row = |key, on| StateRow { key, value: if on { "yes" } else { "no" } };
        // SUSPEND is not supported.
        vec![row("active", !paused), row("paused", paused), row("suspended", false)]
    }

    fn stats(&self) -> Vec<StatsRow> {
        let totals: BTreeMap<_, _> = self.totals().into_iter().collect();
        let row = |(database, total): (String, Counters)| {
            let average = self.averages.of(&database);
            StatsRow { database, total, average }
        };
        totals.into_iter().map(row).collect()
    }

    fn averages(&self) -> Counters {
        self.averages.over_all()
    }

    fn lanes(&self) -> Vec<LaneRow> {
        // Each lane is looked at once: there may be ten thousand, and as many counters, and meanwhile the worker serves nobody.
        let mut lanes: HashMap<_, Vec<_>> = HashMap::new();
        for lane in self.cx.lanes.lanes() {
            lanes.entry(Arc::as_ptr(&lane.stats)).or_default().push(lane);
        }
        let of = |stats: &Arc<LaneStats>| lanes.get(&Arc::as_ptr(stats)).map_or(&[][..], Vec::as_slice);
        self.cx.lanes.evidence.all().iter().map(|stats| lane_row(stats, of(stats))).collect()
    }

    fn coalesce_tables(&self) -> Vec<CoalesceTableRow> {
        let mut tables: BTreeMap<_, CoalesceTableRow> = BTreeMap::new();
        for shape in self.cx.lanes.shapes() {
            let eligible = match shape.eligible {
                Some(true) => "yes",
                Some(false) => "no",
                None => "asking",
            };
            let key = ((shape.database, shape.table.unwrap_or_default()), eligible, shape.reason);
            let row = tables.entry(key).or_default();
            row.statements += 1;
            row.seen += shape.seen;
        }
        let counted = by_table(&self.cx.lanes.lanes(), self.cx.lanes.evidence.all().iter());
        tables
            .into_iter()
            .map(|((table, eligible, reason), row)| {
                let counted = counted.get(&table).filter(|_| eligible == "yes").cloned().unwrap_or_default();
                let (statements, seen, (database, table)) = (row.statements, row.seen, table);
                CoalesceTableRow { database, table, eligible, reason, statements, seen, ..counted }
            })
            .collect()
    }

    fn coalesce_flushes(&self) -> Vec<FlushRow> {
        self.cx.lanes.evidence.flushes().into_iter().map(flush_row).collect()
    }

    fn policy(&self) -> Vec<PolicyRow> {
        let counts = self.cx.audit.counts();
        counts
            .map(|(rule, rejected, reported)| PolicyRow { rule: rule.as_str(), rejected, reported })
            .collect()
    }

    fn audit(&self) -> Vec<AuditRow> {
        let file = self.cx.settings.load().general.audit_file.clone();
        let Progress { written, lost, waiting, error } = self.cx.audit.progress();
        vec![AuditRow {
            file: file.map_or_else(|| "stderr".to_owned(), |file| file.display().to_string()),
            written,
            lost,
            waiting: count(waiting),
            error: error.unwrap_or_default(),
        }]
    }
}

impl Proxy {
    /// Which client has which server, by the server's id.
    fn links(&self) -> HashMap<u64, Arc<ClientShared>> {
        let clients = self.cx.clients.all();
        clients.into_iter().filter_map(|client| Some((client.linked()?.id, client))).collect()
    }

    /// The counters of all databases since the start.
    pub(super) fn totals(&self) -> ByDatabase {
        // Held to the end: a pool that is forgotten meanwhile counts once.
        let past = lock(&self.past);
        let mut totals = past.clone();
        for pool in self.cx.pools.all() {
            totals.entry(pool.key.database.clone()).or_default().add(&counters(&pool.stats));
        }
        totals
    }

    fn database_row(&self, settings: &Settings, name: &str, database: &Database) -> DatabaseRow {
        let general = &settings.general;
        let pools = self.cx.pools.of(Some(name));
        let hosts = (!database.host.is_empty()).then(|| database.host.join(","));
        DatabaseRow {
            name: name.to_owned(),
            host: hosts,
            port: database.port.into(),
            database: database.dbname.clone().unwrap_or_else(|| name.to_owned()),
            force_user: database.user.clone(),
            pool_size: count(database.pool_size.unwrap_or(general.default_pool_size)),
            min_pool_size: count(database.min_pool_size.unwrap_or(general.min_pool_size)),
            reserve_pool_size: count(database.reserve_pool_size.unwrap_or(general.reserve_pool_size)),
            server_lifetime: database.server_lifetime.unwrap_or(general.server_lifetime).as_secs(),
            pool_mode: database.pool_mode.map(|mode| mode.as_str()),
            load_balance_hosts: balanced(database.host.len(), database.load_balance_hosts),
            max_connections: count(database.max_db_connections.unwrap_or(general.max_db_connections)),
            current_connections: count(pools.iter().map(|pool| pool.servers().len()).sum()),
            max_client_connections: count(
                database.max_db_client_connections.unwrap_or(general.max_db_client_connections),
            ),
            current_client_connections: count(
                pools.iter().map(|pool| pool.clients.load(Ordering::Relaxed)).sum(),
            ),
            paused: self.cx.pools.is_paused(name),
            disabled: self.cx.pools.is_disabled(name),
        }
    }
}

/// As in PgBouncer it is shown where it means something.
fn balanced(hosts: usize, by: LoadBalanceHosts) -> Option<String> {
    (hosts > 1).then(|| by.as_str().to_owned())
}

fn count(n: usize) -> u64 {
    n as u64
}

/// When `instant` was, by the wall's clock.
fn wall(instant: Instant, now: Instant) -> Option<SystemTime> {
    SystemTime::now().checked_sub(now.duration_since(instant))
}

fn seconds_and_micros(time: Duration) -> (u64, u64) {
    (time.as_secs(), time.subsec_micros().into())
}

/// What a pool has counted.
pub(super) fn counters(stats: &Stats) -> Counters {
    Counters {
        server_assignment_count: load(&stats.server_assignment_count),
        xact_count: load(&stats.xact_count),
        query_count: load(&stats.query_count),
        received: load(&stats.received),
        sent: load(&stats.sent),
        xact_time: load(&stats.xact_time),
        query_time: load(&stats.query_time),
        wait_time: load(&stats.wait_time),
        client_parse_count: load(&stats.client_parse_count),
        server_parse_count: load(&stats.server_parse_count),
        bind_count: load(&stats.bind_count),
        client_login_count: load(&stats.login_count),
    }
}

fn pool_row(pool: &Pool, cl_active: u64, linked: &HashMap<u64, Arc<ClientShared>>) -> PoolRow {
    let counts = pool.counts();
    let servers = pool.servers();
    let in_state = |state: ServerState| {
        count(
            servers
                .iter()
                .filter(|(s, free)| server_state(s, free.is_some(), linked.get(&s.id)) == state)
                .count(),
        )
    };
    let (maxwait, maxwait_us) = seconds_and_micros(counts.maxwait);
    let (settings, target) = (pool.settings.load(), pool.target.load());
    PoolRow {
        database: pool.key.database.clone(),
        user: target.user.clone(),
        cl_active,
        cl_waiting: count(counts.waiting),
        cl_active_cancel_req: count(servers.iter().map(|(s, _)| s.cancels.load(Ordering::Relaxed)).sum()),
        cl_waiting_cancel_req: 0,
        sv_active: in_state(ServerState::Active),
        sv_active_cancel: 0,
        sv_being_canceled: in_state(ServerState::BeingCanceled),
        sv_idle: in_state(ServerState::Idle),
        sv_used: 0,
        sv_tested: 0,
        sv_login: count(counts.login),
        maxwait,
        maxwait_us,
        pool_mode: settings.mode.as_str(),
        load_balance_hosts: balanced(target.hosts.len(), settings.load_balance_hosts),
    }
}

fn add_up(row: &mut PoolRow, more: &PoolRow) {
    for (sum, n) in [
        (&mut row.cl_active, more.cl_active),
        (&mut row.cl_waiting, more.cl_waiting),
        (&mut row.cl_active_cancel_req, more.cl_active_cancel_req),
        (&mut row.sv_active, more.sv_active),
        (&mut row.sv_being_canceled, more.sv_being_canceled),
        (&mut row.sv_idle, more.sv_idle),
        (&mut row.sv_login, more.sv_login),
    ] {
        *sum += n;
    }
    (row.maxwait, row.maxwait_us) = (row.maxwait, row.maxwait_us).max((more.maxwait, more.maxwait_us));
}

/// PgBouncer's words. `used` and `tested` are no states here: a connection is checked when it is given out, and one
/// that is being reset still belongs to the client that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerState {
    Active,
    BeingCanceled,
    Idle,
}

fn server_state(server: &ServerShared, free: bool, client: Option<&Arc<ClientShared>>) -> ServerState {
    if free {
        ServerState::Idle
    } else if client.is_none() && server.cancels.load(Ordering::Relaxed) > 0 {
        ServerState::BeingCanceled
    } else {
        ServerState::Active
    }
}

fn address(address: Option<SocketAddr>) -> (String, u64) {
    address.map_or_else(|| ("unix".to_owned(), 0), |a| (a.ip().to_canonical().to_string(), a.port().into()))
}

fn application_name(client: &ClientShared) -> String {
    lock(&client.application_name).to_string()
}

fn client_row(client: &ClientShared, now: Instant) -> SocketRow {
    let (state, (age, _)) = (client.state(), client.ages(now));
    let waited = if state == ClientState::Waiting { age } else { Duration::ZERO };
    let ((addr, port), (local_addr, local_port)) = (address(client.peer), address(client.local));
    let (wait, wait_us) = seconds_and_micros(waited);
    SocketRow {
        kind: "C",
        user: client.asked.user.clone(),
        database: client.asked.database.clone(),
        replication: client.asked.replication.as_str(),
        state: state.as_str(),
        addr,
        port,
        local_addr,
        local_port,
        connect_time: wall(client.connected, now),
        request_time: SystemTime::now().checked_sub(age),
        wait,
        wait_us,
        close_needed: false,
        ptr: format!("C{}", client.id),
        link: client.linked().map(|server| format!("S{}", server.id)).unwrap_or_default(),
        remote_pid: 0,
        tls: client.tls.unwrap_or_default().to_owned(),
        application_name: application_name(client),
        prepared_statements: load(&client.statements),
        id: client.id,
    }
}

fn server_row(
    pool: &Pool,
    server: &ServerShared,
    free: Option<Instant>,
    client: Option<&Arc<ClientShared>>,
    now: Instant,
) -> SocketRow {
    let state = match server_state(server, free.is_some(), client) {
        ServerState::Active => "active",
        ServerState::BeingCanceled => "being_canceled",
        ServerState::Idle => "idle",
    };
    let (local_addr, local_port) = address(server.addr.map(|(local, _)| local));
    let (addr, port) = match &server.address {
        Address::Tcp(_, at) => address(Some(*at)),
        Address::Unix(_) => ("unix".to_owned(), server.target.port.into()),
    };
    let since = client.and_then(|client| now.checked_sub(client.ages(now).1));
    let since = since.or(free).unwrap_or(server.connected);
    SocketRow {
        kind: "S",
        user: server.target.user.clone(),
        database: pool.key.database.clone(),
        replication: pool.key.replication.as_str(),
        state,
        addr,
        port,
        local_addr,
        local_port,
        connect_time: wall(server.connected, now),
        request_time: wall(since, now),
        wait: 0,
        wait_us: 0,
        close_needed: server.close_needed.load(Ordering::Relaxed),
        ptr: format!("S{}", server.id),
        link: client.map(|client| format!("C{}", client.id)).unwrap_or_default(),
        remote_pid: u64::try_from(server.pid).unwrap_or_default(),
        tls: server.tls.unwrap_or_default().to_owned(),
        application_name: client.map(|client| application_name(client)).unwrap_or_default(),
        prepared_statements: count(server.statements.load(Ordering::Relaxed)),
        id: server.id,
    }
}

fn user_row(settings: &Settings, name: String, (servers, clients): (usize, usize)) -> UserRow {
    let (general, user) = (&settings.general, settings.users.get(&name));
    UserRow {
        pool_size: user.and_then(|u| u.pool_size).map(|n| n.to_string()).unwrap_or_default(),
        reserve_pool_size: user.and_then(|u| u.reserve_pool_size).map(|n| n.to_string()).unwrap_or_default(),
        pool_mode: user.and_then(|u| u.pool_mode).map(|mode| mode.as_str()),
        max_user_connections: count(
            user.and_then(|u| u.max_user_connections).unwrap_or(general.max_user_connections),
        ),
        current_connections: count(servers),
        max_user_client_connections: count(
            user.and_then(|u| u.max_user_client_connections).unwrap_or(general.max_user_client_connections),
        ),
        current_client_connections: count(clients),
        name,
    }
}

/// What is counted of each table of each database. In one pass, see [`Engine::lanes`].
fn by_table<'a>(
    lanes: &[Arc<Lane>],
    all: impl Iterator<Item = &'a Arc<LaneStats>>,
) -> HashMap<(String, String), CoalesceTableRow> {
    fn each(stats: &LaneStats) -> impl Iterator<Item = ((String, String), &TableStats)> {
        stats.tables.iter().map(|table| ((stats.key.database.clone(), table.name.clone()), table))
    }
    let mut tables: HashMap<_, CoalesceTableRow> = HashMap::new();
    for lane in lanes {
        each(&lane.stats).for_each(|(key, _)| tables.entry(key).or_default().lanes += 1);
    }
    for stats in all {
        for (key, table) in each(stats) {
            let row = tables.entry(key).or_default();
            row.rows += load(&table.rows);
            row.flushes += load(&stats.flushes);
            row.dead_rows += load(&table.dead_rows);
        }
    }
    for row in tables.values_mut() {
        row.rows_per_flush = Ratio { of: row.rows, by: row.flushes };
    }
    tables
}

fn lane_row(stats: &LaneStats, lanes: &[Arc<Lane>]) -> LaneRow {
    let StatsKey { database, user, table, columns, format } = stats.key.clone();
    let loads: Vec<_> = lanes.iter().map(|lane| lane.load()).collect();
    let (rows, flushes) = (load(&stats.rows), load(&stats.flushes));
    let (batch_rows, flush_time, wait) =
        (stats.batch_rows.spread(), stats.flush_time.spread(), stats.wait.spread());
    LaneRow {
        database,
        user,
        table,
        columns,
        format,
        mode: lanes.last().map_or("", |lane| match lane.mode {
            CoalesceMode::On => "on",
            CoalesceMode::Shadow => "shadow",
            CoalesceMode::Off => "off",
        }),
        state: loads.iter().map(|load| load.state).max().map_or("none", |state| state.as_str()),
        lanes: count(lanes.len()),
        waiting: count(loads.iter().map(|load| load.rows).sum()),
        waiting_bytes: count(loads.iter().map(|load| load.bytes).sum()),
        in_flight: count(loads.iter().map(|load| load.flights).sum()),
        rows,
        values_rows: load(&stats.values_rows),
        behind: load(&stats.behind),
        flushes,
        rows_per_flush: Ratio { of: rows, by: flushes },
        singles: load(&stats.singles),
        fallbacks: stats.fallbacks().iter().map(|(_, rows)| rows).sum(),
        failures: load(&stats.failures),
        isolated: load(&stats.isolated),
        resolved: load(&stats.resolved),
        unknown: load(&stats.unknown),
        passed_through: load(&stats.passed_on),
        shadow: load(&stats.shadow),
        dead_rows: load(&stats.dead_rows),
        notices: load(&stats.notices),
        rows_p50: batch_rows.p50,
        rows_p99: batch_rows.p99,
        rows_max: batch_rows.max,
        flush_p50: flush_time.p50,
        flush_p99: flush_time.p99,
        flush_max: flush_time.max,
        wait_p50: wait.p50,
        wait_p99: wait.p99,
        wait_max: wait.max,
    }
}

/// What carried the rows.
fn plan(format: &str, rows: usize, values_rows: usize) -> String {
    match format {
        pipelined if pipelined == Form::Pipelined.as_str() => pipelined.to_owned(),
        _ if values_rows == rows => "values".to_owned(),
        format if values_rows == 0 => format!("copy_{format}"),
        format => format!("copy_{format} values"),
    }
}

fn flush_row(flush: Flush) -> FlushRow {
    let StatsKey { database, user, table, format, .. } = flush.stats.key.clone();
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut ids = flush.clients.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    if flush.units > flush.clients.len() {
        ids.push_str(" ...");
    }
    FlushRow {
        flush: flush.number,
        ended: Some(flush.ended),
        database,
        user,
        table,
        rows: count(flush.rows),
        bytes: count(flush.bytes),
        plan: plan(&format, flush.rows, flush.seen.values_rows),
        wait: micros(flush.waited),
        duration: micros(flush.took),
        outcome: flush.seen.outcome.as_str(),
        sqlstate: flush.seen.sqlstate,
        guilty: flush.seen.guilty,
        server_pid: flush.seen.server_pid.and_then(|pid| u64::try_from(pid).ok()),
        xid: flush.seen.xid,
        units: count(flush.units),
        ids,
    }
}

/// What the system says this process holds in memory.
pub(super) fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coalesce::evidence::Evidence;

    #[test]
    fn of_two_pools_in_one_row_the_longest_wait_is_shown() {
        let waits =
            |maxwait, maxwait_us| PoolRow { maxwait, maxwait_us, cl_waiting: 1, ..PoolRow::default() };
        for (one, other) in [((2, 7), (3, 5)), ((3, 5), (2, 7)), ((3, 4), (3, 5))] {
            let mut row = waits(one.0, one.1);
            add_up(&mut row, &waits(other.0, other.1));
            assert_eq!((row.cl_waiting, row.maxwait, row.maxwait_us), (2, 3, 5));
        }
    }

    /// As many as are counted; the square of that takes longer than clients wait.
    #[test]
    fn each_counter_of_ten_thousand_tables_is_looked_at_once() {
        const TABLES: usize = 10_000;
        let evidence = Evidence::default();
        for n in 0..TABLES {
            let table = format!("public.t{}", n / 2);
            let formats = ["text", "binary"];
            let key = StatsKey {
                database: "app".into(),
                table: table.clone(),
                format: formats[n % 2].into(),
                ..StatsKey::default()
            };
            let stats = evidence.stats(key, [table.as_str(), "public.shared"].into_iter());
            stats.flushes.store(1, Ordering::Relaxed);
            stats.of_table(&table).expect("its table").rows.store(3, Ordering::Relaxed);
        }
        let mut looks = 0;
        let tables = by_table(&[], evidence.all().iter().inspect(|_| looks += 1));
        assert_eq!(looks, TABLES);
        let of = |name: &str| tables[&("app".to_owned(), name.to_owned())].clone();
        let (one, shared) = (of("public.t7"), of("public.shared"));
        assert_eq!((tables.len(), one.rows, one.flushes), (TABLES / 2 + 1, 6, 2));
        assert_eq!((shared.rows, shared.flushes), (0, TABLES as u64));
    }
}
