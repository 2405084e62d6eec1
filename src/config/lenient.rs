//! What PgBouncer takes in its own file and our format does not, and what it means here.
//!
//! Never: lets a wish for less safety pass in silence, or one for more.

use std::path::Path;

use super::ciphers::CIPHERS;
use super::value::{Kind as _, Protocols, Raw, split_list, words_of};

/// Versions of TLS that nothing here speaks.
const OLD_TLS: [&str; 2] = ["tlsv1.0", "tlsv1.1"];

/// Keys of a line for a database, a user or a peer for which PgBouncer has -1 as "not set".
const MAY_BE_UNSET: [&str; 8] = [
    "pool_size",
    "min_pool_size",
    "reserve_pool_size",
    "reserve_pool",
    "max_db_connections",
    "max_db_client_connections",
    "max_user_connections",
    "max_user_client_connections",
];

/// The value of a key of such a line; empty where it is not set.
pub(super) fn of_line(key: &str, value: String) -> String {
    if value.trim() == "-1" && MAY_BE_UNSET.contains(&key) { String::new() } else { value }
}

/// What `value` of `[pgbouncer]` means here, and the notice of it; `None`: what it says.
pub(super) fn general(name: &str, value: &str) -> Option<(String, String)> {
    match name {
        "client_tls_protocols" | "server_tls_protocols" => protocols(value),
        "client_tls_ciphers" | "server_tls_ciphers" => ciphers(value),
        "admin_users" | "stats_users" | "ignore_startup_parameters" => names(value),
        _ => None,
    }
}

/// PgBouncer looks for a name between commas, blanks or both, so a list with blanks alone holds several names, too.
fn names(value: &str) -> Option<(String, String)> {
    let names = split_list(&value.replace(|c: char| c.is_ascii_whitespace(), ","));
    let blanks = names.len() > split_list(value).len();
    let names = names.join(", ");
    blanks.then(|| (names.clone(), format!("means {names}: a blank separates names, as in PgBouncer")))
}

/// Old versions are left out as long as one remains that pgsluice speaks.
fn protocols(value: &str) -> Option<(String, String)> {
    let words = words_of(&Raw::Text(value.to_owned()))?;
    let is_old = |word: &String| OLD_TLS.contains(&word.to_ascii_lowercase().as_str());
    let (old, spoken): (Vec<_>, Vec<_>) = words.into_iter().partition(is_old);
    let spoken = spoken.join(",");
    if old.is_empty() || Protocols.read(&Raw::Text(spoken.clone()), Path::new("")).is_none() {
        return None;
    }
    let notice = format!("{} left out: TLS 1.2 and 1.3 are spoken, nothing older", old.join(", "));
    Some((spoken, notice))
}

/// A list for OpenSSL means those of its suites that rustls has, which is said unless it names just them. Names that OpenSSL would
/// pass over are passed over.
fn ciphers(value: &str) -> Option<(String, String)> {
    let kept = CIPHERS.read_leniently(&Raw::Text(value.to_owned()))?;
    let shown = CIPHERS.show(&kept);
    if ["", "default", "secure", &shown].iter().any(|word| word.eq_ignore_ascii_case(value.trim())) {
        return None;
    }
    let notice = format!("means {shown} here: the suites are those of rustls, all of them strong");
    Some((shown, notice))
}
