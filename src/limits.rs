//! Hard bounds, each with its reason: those of the protocol, and those that several files use. A length from the wire is
//! compared with one of these before it is used. Bounds that an operator may choose are in [`crate::settings`].

/// Longest startup packet: PostgreSQL's own `MAX_STARTUP_PACKET_LENGTH`, and the length word (bytes).
pub const STARTUP_BYTES_MAX: usize = 10_004;

/// The first of the process ids that pgsluice makes up for clients; they are below twice this number. Far above those that systems give
/// (Linux: 2²² at most), and not negative.
pub const PROCESS_IDS_OURS: u32 = 1 << 30;

/// Longest message PostgreSQL itself takes or sends (bytes, length word included): just below 1 GiB.
pub const MESSAGE_BYTES_MAX: usize = 0x3fff_ffff;

/// Longest header of the PROXY protocol (bytes): the addresses, and the fields that cloud providers' load balancers add.
pub const PROXY_HEADER_BYTES_MAX: usize = 2048;

/// Longest message accepted from a client before it has logged in (bytes): PostgreSQL's `PG_MAX_AUTH_TOKEN_LENGTH`.
pub const AUTH_MESSAGE_BYTES_MAX: usize = 65_535;

/// Longest message taken from a directory (bytes). The answers to a bind, and to a search that asks for no attributes, hold a name
/// and a remark.
pub const LDAP_MESSAGE_BYTES_MAX: usize = 32 << 10;

/// How deep a search filter may be nested.
pub const LDAP_FILTER_DEPTH_MAX: usize = 32;

/// Longest that a directory is waited for, all servers tried and all of its answers counted.
pub const LDAP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Longest message of the small kinds that must be whole to be understood (ReadyForQuery,
/// ParameterStatus, names in Bind, Describe, Close ...), in bytes.
pub const SMALL_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Bytes read of an ErrorResponse longer than [`SMALL_MESSAGE_BYTES_MAX`]: as many as severity and SQLSTATE, its first fields, may take.
pub const ERROR_HEAD_BYTES: usize = 512;

/// Longest Describe, Close, Execute, Flush, Sync, CopyDone, CopyFail that PostgreSQL takes: its
/// `PQ_SMALL_MESSAGE_LIMIT` (bytes, length word included).
pub const SHORT_MESSAGE_BYTES_MAX: usize = 10_000;

/// One read buffer (bytes). Larger messages stream through it in pieces.
pub const READ_BUFFER_BYTES: usize = 16 << 10;

/// Most data in one TLS record to a client (bytes): as much as libpq always has room for, and as PostgreSQL's output buffer holds. A program
/// that waits for the socket itself, as those with an event loop do, would miss the rest of a longer record, which OpenSSL keeps.
pub const TLS_RECORD_BYTES_MAX: usize = 8 << 10;

/// A side is not read while this much waits to be written to the other (bytes).
pub const WRITE_BUFFER_BYTES_MAX: usize = 64 << 10;

/// Largest Query or Parse text that is held whole to be understood (bytes). A longer one streams
/// through; it counts as "may have changed anything", and strict policy levels refuse it.
pub const STATEMENT_BYTES_MAX: usize = 1 << 20;

/// Most tokens of a text that is parsed into a tree for the policy: less than 1 kB of memory each.
pub const TREE_TOKENS_MAX: usize = 1 << 17;

/// The number of tokens that a name, a keyword or a byte of an operator counts as: it takes up to five times the memory.
pub const TREE_NAME_TOKENS: usize = 5;

/// Longest name in PostgreSQL (bytes), be it an identifier, an operator, a statement, a portal, a user or a database: its `NAMEDATALEN`
/// without the zero. Longer names are cut, with a notice to the client.
pub const NAME_BYTES_MAX: usize = 63;

/// Longest Parse that is kept for replay on other server connections (bytes).
pub const PREPARED_TEXT_BYTES_MAX: usize = 16 << 20;

/// Bytes of statements that are prepared on a server for one text that names them (`EXECUTE name`): one of any length
/// that is kept, or several that together are no longer.
pub const LENT_BYTES_MAX: usize = PREPARED_TEXT_BYTES_MAX;

/// Bytes of kept texts that a session searches (at each Bind) before other sessions have their turn.
pub const TURN_TEXT_BYTES_MAX: usize = 1 << 20;

/// How long a closing session waits for its client to read the last ErrorResponse.
pub const LAST_WORDS: std::time::Duration = std::time::Duration::from_secs(2);

/// How much of an answer is read for a client that reads nothing any more (bytes): small answers are read to their end; for a longer one
/// the server connection is closed, as the server itself would end it if its client did not read.
pub const UNTAKEN_BYTES_MAX: usize = 256 * 1024;

/// How long a client that closed its sending half behind a request still waits for a server connection. It may be gone.
pub const CLOSED_HALF_WAIT: std::time::Duration = std::time::Duration::from_secs(5);

/// How long a connection that has not logged in may stay when others wait for its place (`max_login_conn`): several
/// round trips around the world.
pub const LOGIN_GRACE: std::time::Duration = std::time::Duration::from_secs(2);

/// First size of the buffer for a login message (bytes), which grows as bytes come: an announced length costs nothing. In all a
/// connection that has not logged in holds twice [`STARTUP_BYTES_MAX`] or twice [`AUTH_MESSAGE_BYTES_MAX`] at most, and what its TLS
/// handshake needs.
pub const LOGIN_PIECE_BYTES: usize = 1024;

/// How much of `hosts_file` is read (bytes).
pub const HOSTS_BYTES_MAX: u64 = 1 << 20;

/// Longest file of certificates or of a key (bytes): all public authorities together are some 300 kB.
pub const PEM_BYTES_MAX: u64 = 16 << 20;

/// Longest path of a Unix socket (bytes): `sockaddr_un` less its closing zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Cancel requests on their way to one server connection; further ones would add nothing, and are dropped.
pub const CANCELS_PER_SERVER_MAX: usize = 4;

/// Cancel requests on their way to servers in all; the next one waits, within `cancel_wait_timeout`.
pub const CANCELS_MAX: usize = 128;

/// No limit, for a timer that must have one.
pub const FOREVER: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);

/// Pause after accept failed (out of files or memory).
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Most bytes of one client that are held while the end of a pipeline that may be poured is awaited.
pub const HELD_BYTES_MAX: usize = 1 << 20;

/// Answers owed to one client at a time; when reached, the client is not read.
pub const PIPELINE_MAX: usize = 16_384;

/// Notifications kept for a client during pgsluice's own round trips on its server connection (bytes); if more come, the
/// connection is closed.
pub const HEARD_BYTES_MAX: usize = 4 << 20;

/// Names of prepared statements of one client, unless `max_prepared_statements = 0`. Their texts are held once for all clients, within
/// `prepared_statement_bytes_max`; a name costs about a hundred bytes.
pub const PREPARED_NAMES_MAX: usize = 65_536;

/// Names and values of the settings that one client carries from one server connection to the next (bytes).
pub const SETTINGS_BYTES_MAX: usize = 1 << 20;

/// Most rows of one INSERT of many VALUES: each number of rows is a prepared statement of its own on a server connection.
pub const VALUES_ROWS_MAX: usize = 16;

/// Longest cancel key we hand out or accept from a server (bytes, protocol 3.2).
pub const CANCEL_KEY_BYTES_MAX: usize = 256;

/// Longest user, database or parameter name and value in a startup packet is bounded by the packet;
/// a name longer than this is cut in logs (bytes).
pub const LOG_NAME_BYTES_MAX: usize = 128;

/// Audit events that wait for a slow disk (some 500 bytes each); further ones are lost and counted.
pub const AUDIT_QUEUE_EVENTS: usize = 4096;

/// How long the end of the process waits for the audit's last lines.
pub const AUDIT_LAST_LINES: std::time::Duration = std::time::Duration::from_secs(1);

/// Bytes of log lines that wait for a journal that hangs (some 150 bytes each); further lines are lost and counted.
pub const LOG_QUEUE_BYTES: usize = 1024 * 1024;

/// How long the end of the process waits for the log's last lines.
pub const LOG_LAST_LINES: std::time::Duration = std::time::Duration::from_secs(1);

/// HTTP connections at a time; a further one closes the oldest.
pub const HTTP_CONNECTIONS_MAX: usize = 16;

/// Longest request over HTTP (bytes), headers included.
pub const HTTP_REQUEST_BYTES_MAX: usize = 8 << 10;

/// Most bytes that are read after an HTTP request, and ignored.
pub const HTTP_REST_BYTES_MAX: usize = 64 << 10;

/// Longest time that one request over HTTP may take, its answer included.
pub const HTTP_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// Most rows of one table of the status page.
pub const STATUS_ROWS_MAX: usize = 100;

/// Tables that `/metrics` names: the first ones that rows were poured into. All others share one label.
pub const METRICS_TABLES_MAX: usize = 256;

/// Most SCRAM iterations a server may ask of us; a hostile one would otherwise hold a core.
pub const SCRAM_ITERATIONS_MAX: u32 = 1_000_000;

/// Longest nonce, salt or attribute in a SASL message from either side (bytes).
pub const SASL_ATTRIBUTE_BYTES_MAX: usize = 1024;

/// Settings that are remembered as reported by one server (PostgreSQL has about 15, extensions may add theirs).
pub const REPORTED_MAX: usize = 128;

/// Longest name and value of a reported setting that is remembered (bytes).
pub const REPORTED_VALUE_BYTES_MAX: usize = 16 << 10;

/// Most that a server may send before its first ReadyForQuery (bytes): notices without end stop here.
pub const LOGIN_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(STATEMENT_BYTES_MAX <= MESSAGE_BYTES_MAX);
const _: () = assert!(READ_BUFFER_BYTES <= WRITE_BUFFER_BYTES_MAX);
const _: () = assert!(AUTH_MESSAGE_BYTES_MAX <= SMALL_MESSAGE_BYTES_MAX);
const _: () = assert!(SMALL_MESSAGE_BYTES_MAX <= LOGIN_BYTES_MAX);
