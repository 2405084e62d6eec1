//! PgBouncer's settings that have no counterpart here, and why.
//!
//! In an ini file each is a notice; in our own format it is an error that says the same.

use super::keys::Section;

const TLS: &str = "the two ends choose among what rustls has, all of it safe";
const LOGGING: &str = "the log goes to standard error, where the service manager picks it up";
const DNS: &str = "host names are looked up by the system for each new connection";

/// Settings of `[pgbouncer]`.
const GENERAL: &[(&str, &str)] = &[
    ("user", "the service manager chooses the account"),
    ("job_name", "it names a service that pgsluice does not register"),
    ("service_name", "it names a service that pgsluice does not register"),
    ("conffile", "RELOAD reads the file that was given at start"),
    ("track_extra_parameters", "every session setting is carried from server to server"),
    ("logfile", LOGGING),
    ("syslog", LOGGING),
    ("syslog_ident", LOGGING),
    ("syslog_facility", LOGGING),
    ("verbose", "log_level says what is logged"),
    ("autodb_idle_timeout", "the fallback database costs nothing while unused"),
    ("pool_idle_timeout", "a pool without connections costs next to nothing"),
    ("suspend_timeout", "there is no SUSPEND"),
    ("dns_nxdomain_ttl", DNS),
    ("dns_zone_check_period", DNS),
    ("resolv_conf", DNS),
    ("client_tls_ecdhcurve", TLS),
    ("client_tls_dheparams", TLS),
    ("pkt_buf", "an idle connection holds no buffer, a busy one a fixed one"),
    ("sbuf_loopcnt", "fairness between connections is the scheduler's"),
    ("tcp_defer_accept", "the kernel's default is kept"),
    ("tcp_socket_buffer", "the kernel sizes socket buffers"),
];

/// Keys of a database line.
const DATABASE: &[(&str, &str)] = &[("application_name", "the client's own choice is carried to the server")];

/// Why PgBouncer's `name` has no effect; `None` if it is not one of those.
pub(super) fn because(section: Section, name: &str) -> Option<&'static str> {
    let table = match section {
        Section::General => GENERAL,
        Section::Database => DATABASE,
        Section::Peer
        | Section::User
        | Section::UserCoalesce
        | Section::Policy
        | Section::Coalesce
        | Section::CoalesceTable => return None,
    };
    table.iter().find(|(key, _)| *key == name).map(|(_, because)| *because)
}

/// What is said of a setting of `[pgbouncer]` that has no effect; `None` if `name` is not one of those.
pub fn ignored(name: &str) -> Option<String> {
    because(Section::General, name).map(said)
}

/// The words for one that is ignored `because`.
pub(super) fn said(because: &str) -> String {
    format!("has no effect, because {because}")
}

/// Every ignored setting: its section as an ini file names it, its name, why.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let of = |place, table: &'static [(&'static str, &'static str)]| {
        table.iter().map(move |(name, because)| (place, *name, *because))
    };
    of("[pgbouncer]", GENERAL).chain(of("[databases]", DATABASE))
}
