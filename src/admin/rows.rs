//! Rows of SHOW: plain values, filled by the core, in PgBouncer's columns and order.
//!
//! Owns: which columns each SHOW has, their names and types (a struct's fields *are* its columns). Never: where
//! the numbers come from. Times are microseconds where the name does not say otherwise.

use std::time::SystemTime;

use super::table::{Cell, Column, Row, Type, Value};

/// Declares a row struct whose fields are its columns: `field: RustType = "column" WireType`.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $rust:ty = $column:literal $ty:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default)]
        pub struct $name { $($(#[$fdoc])* pub $field: $rust,)* }

        impl Row for $name {
            const COLUMNS: &'static [Column] = &[$(Column { name: $column, ty: Type::$ty },)*];

            fn values(&self) -> Vec<Value> {
                vec![$(self.$field.value(),)*]
            }
        }
    };
}

row! {
    /// SHOW POOLS: one (database, user).
    PoolRow {
        /// The name clients ask for.
        database: String = "database" Text,
        /// The server's user.
        user: String = "user" Text,
        /// Clients linked to a server, or idle.
        cl_active: u64 = "cl_active" Int4,
        /// Clients that wait for a server.
        cl_waiting: u64 = "cl_waiting" Int4,
        /// Cancel requests on their way to the server.
        cl_active_cancel_req: u64 = "cl_active_cancel_req" Int4,
        /// Cancel requests that wait for a slot.
        cl_waiting_cancel_req: u64 = "cl_waiting_cancel_req" Int4,
        /// Servers linked to a client.
        sv_active: u64 = "sv_active" Int4,
        /// Servers that carry a cancel request.
        sv_active_cancel: u64 = "sv_active_cancel" Int4,
        /// Servers kept back while a cancel for them is in flight.
        sv_being_canceled: u64 = "sv_being_canceled" Int4,
        /// Servers ready for a client.
        sv_idle: u64 = "sv_idle" Int4,
        /// PgBouncer's; 0.
        sv_used: u64 = "sv_used" Int4,
        /// PgBouncer's; 0.
        sv_tested: u64 = "sv_tested" Int4,
        /// Servers logging in.
        sv_login: u64 = "sv_login" Int4,
        /// How long the first waiting client has waited: whole seconds.
        maxwait: u64 = "maxwait" Int4,
        /// And its microseconds.
        maxwait_us: u64 = "maxwait_us" Int4,
        /// session, transaction or statement.
        pool_mode: &'static str = "pool_mode" Text,
        /// NULL: there is one host.
        load_balance_hosts: Option<String> = "load_balance_hosts" Text,
    }
}

row! {
    /// SHOW CLIENTS and SHOW SERVERS: one connection.
    SocketRow {
        /// `C` or `S`.
        kind: &'static str = "type" Text,
        /// Who logged in.
        user: String = "user" Text,
        /// The name clients ask for.
        database: String = "database" Text,
        /// none, physical or logical.
        replication: &'static str = "replication" Text,
        /// The state's name; the one the code switches on.
        state: &'static str = "state" Text,
        /// The other end; `unix` for a Unix socket.
        addr: String = "addr" Text,
        /// Its port.
        port: u64 = "port" Int4,
        /// Our end.
        local_addr: String = "local_addr" Text,
        /// Its port.
        local_port: u64 = "local_port" Int4,
        /// When the connection was made.
        connect_time: Option<SystemTime> = "connect_time" Text,
        /// When the last request began; of a free server, when its client gave it back.
        request_time: Option<SystemTime> = "request_time" Text,
        /// How long the client has waited: whole seconds.
        wait: u64 = "wait" Int4,
        /// And its microseconds.
        wait_us: u64 = "wait_us" Int4,
        /// The server goes when it is released.
        close_needed: bool = "close_needed" Int4,
        /// PgBouncer's address in memory; ours is the id once more.
        ptr: String = "ptr" Text,
        /// The `ptr` of the other side while linked.
        link: String = "link" Text,
        /// The peer's process: of a server, the backend's.
        remote_pid: u64 = "remote_pid" Int4,
        /// TLS version and cipher; empty without TLS.
        tls: String = "tls" Text,
        /// As the client said; of a server, the client that it is linked to.
        application_name: String = "application_name" Text,
        /// How many it has prepared.
        prepared_statements: u64 = "prepared_statements" Int4,
        /// Unique over clients and servers while the process runs; KILL_CLIENT takes it.
        id: u64 = "id" Int4,
    }
}

/// SHOW SOCKETS and SHOW ACTIVE_SOCKETS: one connection, and where its buffers are. They are its worker's alone, so
/// they are shown as PgBouncer shows those of an idle connection: zero.
#[derive(Debug, Clone, Default)]
pub struct BufferedRow(pub SocketRow);

const BUFFERS: [&str; 7] =
    ["recv_pos", "pkt_pos", "pkt_remain", "send_pos", "send_remain", "pkt_avail", "send_avail"];

const BUFFERED: [Column; SocketRow::COLUMNS.len() + BUFFERS.len()] = {
    let mut all = [Column { name: "", ty: Type::Int4 }; SocketRow::COLUMNS.len() + BUFFERS.len()];
    let (mut at, own) = (0, SocketRow::COLUMNS.len());
    while at < all.len() {
        if at < own {
            all[at] = SocketRow::COLUMNS[at];
        } else {
            all[at].name = BUFFERS[at - own];
        }
        at += 1;
    }
    all
};

impl Row for BufferedRow {
    const COLUMNS: &'static [Column] = &BUFFERED;

    fn values(&self) -> Vec<Value> {
        let mut values = self.0.values();
        values.resize(Self::COLUMNS.len(), Value::Int(0));
        values
    }
}

row! {
    /// SHOW PEERS: one configured peer.
    PeerRow {
        /// Of a process that shares the address.
        peer_id: u64 = "peer_id" Int4,
        /// Where it is.
        host: String = "host" Text,
        /// Its port.
        port: u64 = "port" Int4,
        /// Connections to it.
        pool_size: u64 = "pool_size" Int4,
    }
}

row! {
    /// SHOW PEER_POOLS: cancel requests for one peer, those for ourselves not counted.
    PeerPoolRow {
        /// Of a process that shares the address.
        peer_id: u64 = "peer_id" Int4,
        /// Cancel requests on their way to it.
        cl_active_cancel_req: u64 = "cl_active_cancel_req" Int4,
        /// Cancel requests that wait for a connection to it.
        cl_waiting_cancel_req: u64 = "cl_waiting_cancel_req" Int4,
        /// Connections that carry one.
        sv_active_cancel: u64 = "sv_active_cancel" Int4,
        /// Connections that log in.
        sv_login: u64 = "sv_login" Int4,
    }
}

row! {
    /// SHOW DNS_HOSTS: nothing is kept, each name is looked up when it is needed.
    DnsHostRow {
        /// The name.
        hostname: String = "hostname" Text,
        /// Seconds that it is kept for.
        ttl: u64 = "ttl" Int8,
        /// What it stands for.
        addrs: String = "addrs" Text,
    }
}

row! {
    /// SHOW DNS_ZONES: no zone is watched.
    DnsZoneRow {
        /// The zone.
        zonename: String = "zonename" Text,
        /// Its serial number.
        serial: u64 = "serial" Int8,
        /// Names in it.
        count: u64 = "count" Int4,
    }
}

row! {
    /// SHOW DATABASES: one configured database.
    DatabaseRow {
        /// The name clients ask for.
        name: String = "name" Text,
        /// Where the server is; NULL: the default Unix socket.
        host: Option<String> = "host" Text,
        /// Its port.
        port: u64 = "port" Int4,
        /// Name on the server.
        database: String = "database" Text,
        /// The fixed server login, if there is one.
        force_user: Option<String> = "force_user" Text,
        /// Server connections for one (database, user).
        pool_size: u64 = "pool_size" Int4,
        /// Kept open.
        min_pool_size: u64 = "min_pool_size" Int4,
        /// Extra, after `reserve_pool_timeout`.
        reserve_pool_size: u64 = "reserve_pool_size" Int4,
        /// Seconds.
        server_lifetime: u64 = "server_lifetime" Int4,
        /// NULL: the global one.
        pool_mode: Option<&'static str> = "pool_mode" Text,
        /// NULL: there is one host.
        load_balance_hosts: Option<String> = "load_balance_hosts" Text,
        /// Servers over all users; 0: no limit.
        max_connections: u64 = "max_connections" Int4,
        /// Servers now.
        current_connections: u64 = "current_connections" Int4,
        /// Clients; 0: no limit.
        max_client_connections: u64 = "max_client_connections" Int4,
        /// Clients now.
        current_client_connections: u64 = "current_client_connections" Int4,
        /// By PAUSE.
        paused: bool = "paused" Int4,
        /// By DISABLE.
        disabled: bool = "disabled" Int4,
    }
}

row! {
    /// SHOW USERS: one configured user. The sizes are text in PgBouncer, too.
    UserRow {
        /// The user.
        name: String = "name" Text,
        /// Empty: inherited.
        pool_size: String = "pool_size" Text,
        /// Empty: inherited.
        reserve_pool_size: String = "reserve_pool_size" Text,
        /// NULL: inherited.
        pool_mode: Option<&'static str> = "pool_mode" Text,
        /// Servers; 0: no limit.
        max_user_connections: u64 = "max_user_connections" Int4,
        /// Servers now.
        current_connections: u64 = "current_connections" Int4,
        /// Clients; 0: no limit.
        max_user_client_connections: u64 = "max_user_client_connections" Int4,
        /// Clients now.
        current_client_connections: u64 = "current_client_connections" Int4,
    }
}

row! {
    /// SHOW LISTS: one count. PgBouncer's names: databases, users, peers, pools, peer_pools, free_clients,
    /// used_clients, login_clients, free_servers, used_servers, dns_names, dns_zones, dns_queries, dns_pending.
    ListRow {
        /// What is counted.
        list: &'static str = "list" Text,
        /// How many.
        items: u64 = "items" Int4,
    }
}

row! {
    /// SHOW CONFIG: one setting. A secret is never a value here.
    ConfigRow {
        /// The setting.
        key: String = "key" Text,
        /// As in effect.
        value: String = "value" Text,
        /// Where the file, in its format, does not have it.
        default: String = "default" Text,
        /// yes: a reload changes it (and SET, where it is one of `[general]`).
        changeable: &'static str = "changeable" Text,
    }
}

row! {
    /// SHOW MEM: one kind of thing that is kept.
    MemRow {
        /// What.
        name: &'static str = "name" Text,
        /// Bytes of one; 0 where they vary.
        size: u64 = "size" Int4,
        /// How many are in use.
        used: u64 = "used" Int4,
        /// How many are kept for later.
        free: u64 = "free" Int4,
        /// Bytes in all. (Wider than PgBouncer's int4.)
        memtotal: u64 = "memtotal" Int8,
    }
}

row! {
    /// SHOW STATE: one of active, paused, suspended.
    StateRow {
        /// The state.
        key: &'static str = "key" Text,
        /// yes or no.
        value: &'static str = "value" Text,
    }
}

row! {
    /// SHOW VERSION.
    VersionRow {
        /// Name and number.
        version: &'static str = "version" Text,
    }
}

row! {
    /// SHOW TOTALS: one counter over all databases.
    TotalRow {
        /// `total_` or `avg_` and the counter.
        name: String = "name" Text,
        /// Its value.
        value: u64 = "value" Numeric,
    }
}

row! {
    /// SHOW COALESCE: one table, column list and format, with all its lanes. Ours.
    LaneRow {
        /// The name clients ask for.
        database: String = "database" Text,
        /// The role whose rows these are.
        user: String = "user" Text,
        /// `schema.table`
        table: String = "table" Text,
        /// The column list.
        columns: String = "columns" Text,
        /// text, binary, or pipelined: INSERTs that share a transaction.
        format: String = "format" Text,
        /// on or shadow; empty while no lane is there.
        mode: &'static str = "mode" Text,
        /// The busiest lane's state, one that the code switches on; `none`: no lane since the last RELOAD.
        state: &'static str = "state" Text,
        /// Lanes now, one for each set of session settings.
        lanes: u64 = "lanes" Int4,
        /// Rows that wait for the next flush.
        waiting: u64 = "waiting" Int4,
        /// Their bytes.
        waiting_bytes: u64 = "waiting_bytes" Int8,
        /// Flushes on their way.
        in_flight: u64 = "in_flight" Int4,
        /// Rows confirmed.
        rows: u64 = "rows" Numeric,
        /// Of those, rows that left as an INSERT of many VALUES.
        values_rows: u64 = "values_rows" Numeric,
        /// Flushes confirmed.
        flushes: u64 = "flushes" Numeric,
        /// Flushes that were sent behind another one on its connection, before that was answered.
        behind: u64 = "behind" Numeric,
        /// Rows of each that was confirmed.
        rows_per_flush: Ratio = "rows_per_flush" Numeric,
        /// Rows that found the lane idle and left as they were sent.
        singles: u64 = "singles" Numeric,
        /// Rows handed back, which then ran singly.
        fallbacks: u64 = "fallbacks" Numeric,
        /// COPYs that failed.
        failures: u64 = "failures" Numeric,
        /// Of those, with an error that named the guilty row.
        isolated: u64 = "isolated" Numeric,
        /// Statements whose connection was lost at the commit, and whose outcome the server told afterwards.
        resolved: u64 = "resolved" Numeric,
        /// Statements whose outcome could not be known.
        unknown: u64 = "unknown" Numeric,
        /// Statements that went through untouched: over budget, or after failures.
        passed_through: u64 = "passed_through" Numeric,
        /// Rows that would have been poured (`mode = "shadow"`).
        shadow: u64 = "shadow" Numeric,
        /// Rows of undone COPYs, left for VACUUM.
        dead_rows: u64 = "dead_rows" Numeric,
        /// Notices and warnings that came with a flush and were passed on.
        notices: u64 = "notices" Numeric,
        /// Rows of a flush: half of the flushes had at most this many,
        rows_p50: u64 = "rows_p50" Numeric,
        /// 99 of 100,
        rows_p99: u64 = "rows_p99" Numeric,
        /// all.
        rows_max: u64 = "rows_max" Numeric,
        /// Time of a flush from its leaving to the answer, in the same way,
        flush_p50: u64 = "flush_us_p50" Numeric,
        /// in microseconds.
        flush_p99: u64 = "flush_us_p99" Numeric,
        /// The longest.
        flush_max: u64 = "flush_us_max" Numeric,
        /// Time that the first row of a flush waited before it left, in the same way,
        wait_p50: u64 = "wait_us_p50" Numeric,
        /// in microseconds.
        wait_p99: u64 = "wait_us_p99" Numeric,
        /// The longest.
        wait_max: u64 = "wait_us_max" Numeric,
    }
}

row! {
    /// SHOW COALESCE_FLUSHES: one COPY of late, the last one first. Ours.
    FlushRow {
        /// Counts up.
        flush: u64 = "flush" Int8,
        /// When it ended.
        ended: Option<SystemTime> = "ended" Text,
        /// The name clients ask for.
        database: String = "database" Text,
        /// The role whose rows these were.
        user: String = "user" Text,
        /// `schema.table`
        table: String = "table" Text,
        /// Rows in it.
        rows: u64 = "rows" Int4,
        /// Their bytes.
        bytes: u64 = "bytes" Int8,
        /// copy_text, copy_binary, values (INSERTs of many VALUES) or pipelined; of several tables both.
        plan: String = "plan" Text,
        /// How long its first row had waited, in microseconds.
        wait: u64 = "wait_us" Int8,
        /// From its leaving to the end, in microseconds.
        duration: u64 = "duration_us" Int8,
        /// How it ended.
        outcome: &'static str = "outcome" Text,
        /// Of the error.
        sqlstate: Option<String> = "sqlstate" Text,
        /// The client whose row the error named.
        guilty: Option<u64> = "guilty_client" Int8,
        /// The server process.
        server_pid: Option<u64> = "server_pid" Int4,
        /// The transaction: `xmin` of its rows, but of those copied under a savepoint.
        xid: Option<u64> = "xid" Numeric,
        /// Clients whose statements it held.
        units: u64 = "clients" Int4,
        /// Their `id`s in SHOW CLIENTS and the log; of many the first.
        ids: String = "client_ids" Text,
    }
}

row! {
    /// SHOW COALESCE_TABLES: one table, what the catalogue says of it, and what for. Ours.
    CoalesceTableRow {
        /// The name clients ask for.
        database: String = "database" Text,
        /// `schema.table`
        table: String = "table" Text,
        /// May it be poured: yes, no, asking.
        eligible: &'static str = "eligible" Text,
        /// Why not; empty if it may. A table has a row for each reason.
        reason: String = "reason" Text,
        /// Different statements that said so.
        statements: u64 = "statements" Int4,
        /// Times they came by.
        seen: u64 = "seen" Numeric,
        /// Lanes now.
        lanes: u64 = "lanes" Int4,
        /// Rows confirmed.
        rows: u64 = "rows" Numeric,
        /// Flushes with rows of it.
        flushes: u64 = "flushes" Numeric,
        /// Their ratio.
        rows_per_flush: Ratio = "rows_per_flush" Numeric,
        /// Rows of undone COPYs, left for VACUUM.
        dead_rows: u64 = "dead_rows" Numeric,
    }
}

row! {
    /// SHOW POLICY: one rule.
    PolicyRow {
        /// As errors and audit events name it.
        rule: &'static str = "rule" Text,
        /// Messages that it refused.
        rejected: u64 = "rejected" Numeric,
        /// Messages that it would have refused (`enforce = "report"`).
        reported: u64 = "reported" Numeric,
    }
}

row! {
    /// SHOW AUDIT: where its lines go.
    AuditRow {
        /// `audit_file`, or `stderr`.
        file: String = "file" Text,
        /// Lines written.
        written: u64 = "written" Numeric,
        /// Events lost: the queue was full, or the line could not be written.
        lost: u64 = "lost" Numeric,
        /// Events in the queue.
        waiting: u64 = "waiting" Int4,
        /// Why the last line could not be written; empty if it was.
        error: String = "error" Text,
    }
}

/// Two counters and what one is in terms of the other; NULL while there is nothing to divide by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ratio {
    /// What is shared out.
    pub of: u64,
    /// Among how many.
    pub by: u64,
}

impl Cell for Ratio {
    fn value(&self) -> Value {
        let hundredths = u128::from(self.of) * 100;
        match hundredths.checked_div(u128::from(self.by)) {
            Some(hundredths) => Value::Hundredths(u64::try_from(hundredths).unwrap_or(u64::MAX)),
            None => Value::Null,
        }
    }
}

/// One counter of [`Counters`]: its name in STATS_TOTALS, STATS_AVERAGES, TOTALS, STATS (total and average).
type CounterNames = (&'static str, &'static str, &'static str, &'static str, &'static str);

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $totals:literal $averages:literal $total:literal $stats:literal $avg:literal,)*) => {
        /// What SHOW STATS and its kin count.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $field: u64,)* }

        impl Counters {
            const NAMES: &'static [CounterNames] = &[$(($totals, $averages, $total, $stats, $avg),)*];

            /// In the order of the columns.
            fn all(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$field,)*]
            }

            /// Adds `other`, counter by counter.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.saturating_add(other.$field);)*
            }

            /// What came since `then`, counter by counter.
            pub fn since(&self, then: &Self) -> Self {
                Self { $($field: self.$field.saturating_sub(then.$field),)* }
            }
        }

        const STATS: &[Column] = &[
            Column { name: "database", ty: Type::Text },
            $(Column { name: $stats, ty: Type::Numeric },)*
            $(Column { name: $avg, ty: Type::Numeric },)*
            // Queries once more, by the name that they had before PgBouncer 1.8 and an exporter still reads.
            Column { name: "total_requests", ty: Type::Numeric },
        ];
        const STATS_TOTALS: &[Column] = &[
            Column { name: "database", ty: Type::Text },
            $(Column { name: $totals, ty: Type::Numeric },)*
        ];
        const STATS_AVERAGES: &[Column] = &[
            Column { name: "database", ty: Type::Text },
            $(Column { name: $averages, ty: Type::Numeric },)*
        ];
    };
}

// The prefixes are PgBouncer's, as they are. Columns: STATS_TOTALS, STATS_AVERAGES, TOTALS, STATS, STATS.
counters! {
    /// Times a client was given a server.
    server_assignment_count = "server_assignment_count" "server_assignment_count" "server_assignment_count" "total_server_assignment_count" "avg_server_assignment_count",
    /// Transactions.
    xact_count = "xact_count" "xact_count" "xact_count" "total_xact_count" "avg_xact_count",
    /// Queries.
    query_count = "query_count" "query_count" "query_count" "total_query_count" "avg_query_count",
    /// Bytes from clients.
    received = "bytes_received" "bytes_received" "client_bytes" "total_received" "avg_recv",
    /// Bytes to clients.
    sent = "bytes_sent" "bytes_sent" "server_bytes" "total_sent" "avg_sent",
    /// Time inside transactions.
    xact_time = "xact_time" "xact_time" "xact_time" "total_xact_time" "avg_xact_time",
    /// Time inside queries.
    query_time = "query_time" "query_time" "query_time" "total_query_time" "avg_query_time",
    /// Time clients waited for a server.
    wait_time = "wait_time" "wait_time" "wait_time" "total_wait_time" "avg_wait_time",
    /// Parse messages from clients.
    client_parse_count = "client_parse_count" "avg_client_parse_count" "ps_client_parse_count" "total_client_parse_count" "avg_client_parse_count",
    /// Parse messages to servers.
    server_parse_count = "server_parse_count" "avg_server_parse_count" "ps_server_parse_count" "total_server_parse_count" "avg_server_parse_count",
    /// Bind messages.
    bind_count = "bind_count" "avg_bind_count" "ps_bind_count" "total_bind_count" "avg_bind_count",
    /// Logins.
    client_login_count = "client_login_count" "avg_client_login_count" "client_login_count" "total_client_login_count" "avg_client_login_count",
}

/// One database's counters, for STATS, STATS_TOTALS, STATS_AVERAGES and TOTALS.
#[derive(Debug, Clone, Default)]
pub struct StatsRow {
    /// The name clients ask for.
    pub database: String,
    /// Since the start.
    pub total: Counters,
    /// Over the last `stats_period`, per second (times: per query, transaction or assignment of a server).
    pub average: Counters,
}

/// Which counters of a [`StatsRow`] are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// SHOW STATS
    Both,
    /// SHOW STATS_TOTALS
    Totals,
    /// SHOW STATS_AVERAGES
    Averages,
}

impl Wanted {
    /// The columns of that table.
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Both => STATS,
            Self::Totals => STATS_TOTALS,
            Self::Averages => STATS_AVERAGES,
        }
    }

    /// The values of `row` in those columns.
    pub fn values(self, row: &StatsRow) -> Vec<Value> {
        let (total, average) = (row.total.all(), row.average.all());
        let counters: &[&[u64]] = match self {
            Self::Both => &[&total, &average, &[row.total.query_count]],
            Self::Totals => &[&total],
            Self::Averages => &[&average],
        };
        let counters = counters.iter().copied().flatten().map(Cell::value);
        std::iter::once(row.database.value()).chain(counters).collect()
    }
}

/// SHOW TOTALS: all rows added up, and `average`, which is that over all of them: a mean of the rows' own would weigh them by
/// rates that are rounded down, to nothing below one a second.
pub fn totals(rows: &[StatsRow], average: Counters) -> Vec<TotalRow> {
    let mut total = Counters::default();
    rows.iter().for_each(|row| total.add(&row.total));
    let named = |prefix: &'static str, counters: Counters| {
        let names = Counters::NAMES.iter().map(move |names| format!("{prefix}_{}", names.2));
        names.zip(counters.all()).map(|(name, value)| TotalRow { name, value })
    };
    named("total", total).chain(named("avg", average)).collect()
}
