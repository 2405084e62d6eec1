//! What must hold between keys, and between the file and the machine.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use super::value::{shorten, without_user};
use super::words::word;
use super::{At, Draft, join};
use crate::files;
use crate::limits::{NAME_BYTES_MAX, SOCKET_PATH_BYTES_MAX};
use crate::net::{Acceptor, Connector, TlsError, out_of_date};
use crate::settings::{
    AllowListMode, AuthType, CONSOLES, Coalesce, Database, HbaTransport, PoolMode, Secret, SslMode, Tls,
    discards_all,
};

/// Reports everything that does not fit together.
pub(super) fn check(draft: &mut Draft) {
    listening(draft);
    hosts_file(draft);
    pools(draft);
    reset_query(draft);
    auth(draft);
    hba(draft);
    client_tls(draft);
    server_tls(draft);
    let coalesce = draft.settings.coalesce.clone();
    check_coalesce(draft, "coalesce", &coalesce);
    databases(draft);
    for name in draft.settings.users.keys().cloned().collect::<Vec<_>>() {
        let path = join("users", &name);
        name_is_read(draft, &path, &name);
        if name == "*" {
            let at = draft.place(&path);
            let message =
                "holds for a user called *, and not for all; what holds for all stands in [general]";
            draft.notice(&at, &path, message);
        }
    }
    operators(draft);
    peers(draft);
    allow_lists(draft);
}

/// A mode needs a list: its section's own, or the global one.
fn allow_lists(draft: &mut Draft) {
    let global = draft.settings.policy.allow_list_file.is_some();
    for (path, policy) in draft.policies() {
        let on = policy.allow_list.is_some_and(|mode| mode != AllowListMode::Off);
        if on && policy.allow_list_file.is_none() && !global {
            let word = word(policy.allow_list.unwrap_or_default());
            let message = format!("\"{word}\" needs a list; set allow_list_file here or in [policy]");
            draft.object(&join(&path, "allow_list"), message);
        }
    }
}

fn listening(draft: &mut Draft) {
    let general = draft.settings.general.clone();
    if general.listen_addr.is_empty() && general.unix_socket_dir.is_none() {
        draft.object("listen_addr", "nothing to listen on; set listen_addr, or unix_socket_dir, or both");
    }
    for addr in general.listen_addr.iter().filter(|addr| *addr != "*" && !is_host(addr)) {
        let (port, comment, addr) = (port_hint(addr, "listen_port"), draft.comment_hint(addr), shorten(addr));
        let message = format!("\"{addr}\" is no address; write an address, a host name, or *{port}{comment}");
        draft.object("listen_addr", message);
    }
    if let Some(dir) = &general.unix_socket_dir {
        if !dir.is_dir() && dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"@")) {
            let message = "sockets without a file (@) are not offered; name a directory";
            return draft.object("unix_socket_dir", message);
        }
        directory(draft, "unix_socket_dir", dir);
        socket_path(draft, "unix_socket_dir", dir, general.listen_port);
    }
    if let Some(group) = &general.unix_socket_group
        && !matches!(nix::unistd::Group::from_name(group), Ok(Some(_)))
    {
        let group = shorten(group);
        draft
            .object("unix_socket_group", format!("there is no group \"{group}\"; create it or name another"));
    }
    for (key, file) in [("pidfile", &general.pidfile), ("audit_file", &general.audit_file)] {
        let Some(file) = file.as_deref() else { continue };
        if let Some(dir) = file.parent() {
            directory(draft, key, dir);
        }
        // What an audit event goes to may be a FIFO or a device.
        let bad = if key == "pidfile" { file.exists() && !file.is_file() } else { file.is_dir() };
        if bad {
            draft.object(key, format!("{} is not a regular file; name a file", file.display()));
        } else if let Err(error) = writable(file) {
            let message = format!(
                "{} cannot be written by the user who runs this ({}); check the path and its permissions",
                file.display(),
                error.desc()
            );
            draft.object(key, message);
        }
    }
    let taken = |http: &SocketAddr| {
        http.port() == general.listen_port && general.listen_addr.iter().any(|addr| meets(addr, http.ip()))
    };
    if let Some(http) = general.http_addr.filter(taken) {
        let message = format!("clients come in at {http} (listen_addr, listen_port); choose another port");
        draft.object("http_addr", message);
    }
}

/// Whether a file could be opened for writing, without leaving a trace. A file that does not exist would be made in its directory, about which
/// [`directory`] has spoken.
fn writable(file: &Path) -> nix::Result<()> {
    let (at, how) = match file.parent() {
        _ if file.exists() => (file, AccessFlags::W_OK),
        Some(dir) if dir.is_dir() => (dir, AccessFlags::W_OK | AccessFlags::X_OK),
        _ => return Ok(()),
    };
    access(at, how)
}

/// The address that a word for one means, as far as that can be told without looking names up.
fn address(text: &str) -> Option<IpAddr> {
    if text.eq_ignore_ascii_case("localhost") {
        return Some(IpAddr::from([127, 0, 0, 1]));
    }
    text.parse().ok()
}

/// Whether `listen_addr` already takes the address and port of `http`, which takes both families if it is `::`.
fn meets(listen_addr: &str, http: IpAddr) -> bool {
    let both = http.is_unspecified() && http.is_ipv6();
    listen_addr == "*"
        || address(listen_addr).is_some_and(|ip| {
            let all = (ip.is_unspecified() || http.is_unspecified()) && ip.is_ipv4() == http.is_ipv4();
            ip == http || all || both
        })
}

/// The system takes no longer one.
fn socket_path(draft: &mut Draft, key: &str, dir: &Path, port: u16) {
    let bytes = dir.join(format!(".s.PGSQL.{port}")).as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let message = format!(
            "the socket's path would have {bytes} bytes, at most {SOCKET_PATH_BYTES_MAX} work; choose a shorter one"
        );
        draft.object(key, message);
    }
}

fn directory(draft: &mut Draft, key: &str, dir: &Path) {
    if !dir.is_dir() {
        draft.object(key, format!("directory {} does not exist; create it or name another", dir.display()));
    }
}

/// It may change at any time, but should be there.
fn hosts_file(draft: &mut Draft) {
    let Some(path) = draft.settings.general.hosts_file.clone() else { return };
    if !path.exists() {
        let message = format!("file {} does not exist; create it or name another", path.display());
        draft.object("hosts_file", message);
    } else if !path.is_file() {
        draft.object("hosts_file", format!("{} is not a regular file; name a file", path.display()));
    }
}

fn file(draft: &mut Draft, key: &str, file: Option<&Path>) {
    let Some(file) = file else { return };
    if file.exists() && !file.is_file() {
        draft.object(key, format!("{} is not a regular file; name a PEM file", file.display()));
    } else if let Err(error) = files::open(file) {
        let message =
            format!("{} cannot be read ({error}); check the path and its permissions", file.display());
        draft.object(key, message);
    }
}

fn pools(draft: &mut Draft) {
    let general = &draft.settings.general;
    let (min, size) = (general.min_pool_size, general.default_pool_size);
    pool_sizes(draft, "min_pool_size", min, size, "default_pool_size");
    no_limit(draft, "default_pool_size", size);
    let users: Vec<_> = draft
        .settings
        .users
        .iter()
        .filter_map(|(name, user)| Some((name.clone(), user.pool_size?)))
        .collect();
    for (name, size) in users {
        no_limit(draft, &join(&join("users", &name), "pool_size"), size);
    }
}

/// In PgBouncer's own file 0 may stand for what it is there.
fn no_limit(draft: &mut Draft, key: &str, size: usize) {
    if draft.ini && size == 0 {
        let at = draft.place(key);
        draft.notice(
            &at,
            key,
            "0 is no limit here; in PgBouncer it is one connection at a time, so write 1 for that",
        );
    }
}

fn pool_sizes(draft: &mut Draft, key: &str, min: usize, size: usize, size_key: &str) {
    if size > 0 && min > size {
        let message = format!("{min} is more than {size_key} ({size}); lower {key} or raise {size_key}");
        draft.object_ours(key, message);
    }
}

/// A query that leaves something costs a login for each client, which is not what one expects of a query that resets a connection.
fn reset_query(draft: &mut Draft) {
    let general = &draft.settings.general;
    let users = draft.settings.users.values().map(|user| user.pool_mode);
    let mut modes = draft.databases.iter().map(|d| d.pool_mode).chain(users).chain([Some(general.pool_mode)]);
    let is_run = general.server_reset_query_always || modes.any(|mode| mode == Some(PoolMode::Session));
    let query = &general.server_reset_query;
    if is_run && !query.is_empty() && !discards_all(query) {
        let at = draft.place("server_reset_query");
        let message = "is not \"DISCARD ALL\", so that each server connection is closed behind it: \
                       something of a client might be left; write \"DISCARD ALL\", so that they are used again";
        draft.notice(&at, "server_reset_query", message);
    }
}

fn auth(draft: &mut Draft) {
    let general = &draft.settings.general;
    let auth_type = general.auth_type;
    let unproven = no_certificate(&general.client_tls);
    let has_list = general.auth_file.is_some();
    let looks_up = general.auth_user.is_some();
    let has_hba = general.auth_hba_file.is_some();
    let has_socket = general.unix_socket_dir.is_some();
    let name = word(auth_type);
    match auth_type {
        AuthType::Plain | AuthType::Md5 | AuthType::ScramSha256 if !has_list && !looks_up => {
            draft.object(
                "auth_type",
                format!("\"{name}\" needs the users' secrets; set auth_file to a userlist"),
            );
        }
        AuthType::Cert => {
            if let Some(way_out) = unproven {
                draft.object("auth_type", format!("\"cert\" needs checked client certificates; {way_out}"));
            }
        }
        AuthType::Peer if !has_socket => {
            draft.object("auth_type", "\"peer\" is for Unix sockets only; set unix_socket_dir");
        }
        AuthType::Ldap if general.auth_ldap_options.is_none() => {
            draft.object("auth_type", "\"ldap\" needs a directory; set auth_ldap_options to its options");
        }
        AuthType::Hba if !has_hba => {
            draft.object("auth_type", "\"hba\" needs rules; set auth_hba_file to a file with them");
        }
        _ => {}
    }
    if !looks_up {
        let unasked = |d: &&Database| d.auth_query.is_some() && d.auth_user.is_none();
        let of_databases = draft.databases.iter().filter(unasked).map(|d| join("databases", &d.name));
        let sections: Vec<_> = of_databases.chain(none_asks(draft).then(String::new)).collect();
        for key in sections.iter().map(|section| join(section, "auth_query")) {
            let at = draft.place(&key);
            draft.notice(&at, &key, "has no effect, because nobody asks; set auth_user to who does");
        }
    }
    let asks = matches!(auth_type, AuthType::Plain | AuthType::Md5 | AuthType::ScramSha256);
    let looked_up = looks_up || draft.databases.iter().any(|d| d.auth_user.is_some());
    if asks && has_list && !looked_up && draft.settings.userlist.is_empty() {
        let at = draft.place("auth_file");
        draft.notice(
            &at,
            "auth_file",
            "names no users, so nobody can log in; add a line \"name\" \"secret\" for each",
        );
    }
    if auth_type == AuthType::ScramSha256 {
        let md5 = draft.settings.userlist.values().filter(|secret| matches!(secret, Secret::Md5(_))).count();
        if md5 > 0 {
            let at = draft.place("auth_file");
            let message = format!(
                "{md5} users have an md5 secret and cannot log in with auth_type \"scram-sha-256\"; \
                 give them SCRAM verifiers, or set auth_type to md5"
            );
            draft.notice(&at, "auth_file", message);
        }
    }
}

/// Whether the `auth_query` for all is set, and no `auth_user` is whom it would be asked as.
fn none_asks(draft: &Draft) -> bool {
    let asked = |d: &Database| d.auth_user.is_some() && d.auth_query.is_none();
    draft.set.contains_key("auth_query") && !draft.databases.iter().any(asked)
}

/// Rules that could never let anyone in as they are meant to.
fn hba(draft: &mut Draft) {
    let general = draft.settings.general.clone();
    if general.auth_type != AuthType::Hba {
        return;
    }
    let looked_up = general.auth_user.is_some() || draft.databases.iter().any(|d| d.auth_user.is_some());
    let has_secrets = general.auth_file.is_some() || looked_up;
    let Some(file) = general.auth_hba_file else { return };
    let unproven = no_certificate(&general.client_tls);
    for rule in draft.settings.hba.clone() {
        let at = At::line(&file, rule.line);
        match (rule.method, unproven) {
            (Some(AuthType::Cert), Some(way_out)) => {
                let message = format!("method cert needs checked client certificates; {way_out}");
                draft.problem(&at, "auth_hba_file", message);
            }
            (Some(AuthType::Cert), None) if rule.transport != HbaTransport::HostSsl => {
                draft.problem(&at, "auth_hba_file", "method cert needs TLS; make the rule a hostssl rule");
            }
            (Some(AuthType::Plain | AuthType::Md5 | AuthType::ScramSha256), _) if !has_secrets => {
                let message = "this method needs the users' secrets; set auth_file to a userlist";
                draft.problem(&at, "auth_hba_file", message);
            }
            _ => {}
        }
        if let Some(map) = rule.map.filter(|map| !draft.settings.ident.contains_key(map)) {
            let map = shorten(&map);
            let message =
                format!("no line of auth_ident_file is for the map \"{map}\"; add one, or name another");
            draft.problem(&at, "auth_hba_file", message);
        }
        if rule.transport == HbaTransport::HostSsl && general.client_tls.sslmode == SslMode::Disable {
            let message =
                "no client can match hostssl while client_tls_sslmode is disable; set it to allow or more";
            draft.notice(&at, "auth_hba_file", message);
        }
    }
}

/// What to do so that client certificates are asked for, and checked. Where there are authorities, one that is shown is checked in
/// every mode. That `verify-ca` and `verify-full` lack them is said elsewhere.
fn no_certificate(tls: &Tls) -> Option<&'static str> {
    match (tls.sslmode, &tls.ca_file) {
        (SslMode::Disable, Some(_)) => Some("set client_tls_sslmode to allow or more"),
        (SslMode::Disable, None) => Some("set client_tls_sslmode to allow or more, and client_tls_ca_file"),
        (mode, None) if !verifies(mode) => Some("set client_tls_ca_file to the authorities that sign them"),
        _ => None,
    }
}

fn verifies(sslmode: SslMode) -> bool {
    matches!(sslmode, SslMode::VerifyCa | SslMode::VerifyFull)
}

fn client_tls(draft: &mut Draft) {
    let tls = draft.settings.general.client_tls.clone();
    tls_files(draft, "client", &tls);
    if tls.sslmode == SslMode::Disable {
        if tls.cert_file.is_some() {
            let at = draft.place("client_tls_cert_file");
            let message = "has no effect, because client_tls_sslmode is \"disable\" and clients get no TLS; \
                           set that to allow or more";
            draft.notice(&at, "client_tls_cert_file", message);
        }
        return;
    }
    let mode = word(tls.sslmode);
    for (key, set) in
        [("client_tls_key_file", tls.key_file.is_some()), ("client_tls_cert_file", tls.cert_file.is_some())]
    {
        if !set {
            draft.object(
                key,
                format!("is not set, but client_tls_sslmode \"{mode}\" needs it; set it to a PEM file"),
            );
        }
    }
    if verifies(tls.sslmode) && tls.ca_file.is_none() {
        draft.object(
            "client_tls_ca_file",
            format!(
                "is not set, but client_tls_sslmode \"{mode}\" needs the authorities; set it to a PEM file"
            ),
        );
    }
    is_in_date(draft, "client_tls_cert_file", &tls);
    is_private(draft, "client_tls_key_file", &tls);
    usable(draft, |draft| Acceptor::new(&draft.settings.general.client_tls).err());
}

fn server_tls(draft: &mut Draft) {
    let tls = draft.settings.general.server_tls.clone();
    tls_files(draft, "server", &tls);
    match (&tls.key_file, &tls.cert_file) {
        (Some(_), None) => draft
            .object("server_tls_cert_file", "is not set, but server_tls_key_file is; set both or neither"),
        (None, Some(_)) => draft
            .object("server_tls_key_file", "is not set, but server_tls_cert_file is; set both or neither"),
        _ => {}
    }
    if tls.ca_file.is_some() && !verifies(tls.sslmode) {
        let at = draft.place("server_tls_ca_file");
        let message = format!(
            "has no effect, because server_tls_sslmode \"{}\" checks no certificate; \
             set that to verify-full or verify-ca",
            word(tls.sslmode)
        );
        draft.notice(&at, "server_tls_ca_file", message);
    }
    is_in_date(draft, "server_tls_cert_file", &tls);
    is_private(draft, "server_tls_key_file", &tls);
    usable(draft, |draft| Connector::new(&draft.settings.general.server_tls).err());
}

/// A file that opens may hold no certificate, or another one's key: if nothing else is wrong, the files are put to use.
fn usable(draft: &mut Draft, built: impl Fn(&Draft) -> Option<TlsError>) {
    if !draft.problems.is_empty() {
        return;
    }
    let Some(TlsError { setting, file, what }) = built(draft) else { return };
    let message = match file {
        Some(file) => {
            format!("{} cannot be used ({what}); name a PEM file that fits the others", file.display())
        }
        None => what,
    };
    draft.object(&setting, message);
}

/// One's own certificate is for others to judge, but all of them refuse such a one.
fn is_in_date(draft: &mut Draft, key: &str, tls: &Tls) {
    let Some(file) = tls.cert_file.as_deref().filter(|_| tls.sslmode != SslMode::Disable) else { return };
    if let Some(valid) = out_of_date(file) {
        let at = draft.place(key);
        let message = format!("{} is valid {valid}, and not now; have it renewed", file.display());
        draft.notice(&at, key, message);
    }
}

/// PostgreSQL refuses a key that others may read or write. Here it is only said: PgBouncer's files have to work.
fn is_private(draft: &mut Draft, key: &str, tls: &Tls) {
    let Some(file) = tls.key_file.as_deref().filter(|_| tls.sslmode != SslMode::Disable) else { return };
    let is_open = std::fs::metadata(file).is_ok_and(|file| file.permissions().mode() & 0o007 != 0);
    if is_open {
        let at = draft.place(key);
        let message = format!(
            "{} can be read or written by every user of this machine; take that away (chmod o= FILE)",
            file.display()
        );
        draft.notice(&at, key, message);
    }
}

/// Files are looked at even where the mode does not use them: a path that is there should be right.
fn tls_files(draft: &mut Draft, side: &str, tls: &Tls) {
    file(draft, &format!("{side}_tls_key_file"), tls.key_file.as_deref());
    file(draft, &format!("{side}_tls_cert_file"), tls.cert_file.as_deref());
    file(draft, &format!("{side}_tls_ca_file"), tls.ca_file.as_deref());
}

fn check_coalesce(draft: &mut Draft, path: &str, coalesce: &Coalesce) {
    let c = coalesce;
    let mut at_most = |key: &str, value: usize, bound: &str, max: usize| {
        if value > max {
            let message = format!("{value} is more than {bound} ({max}); lower {key} or raise {bound}");
            draft.object(&join(path, key), message);
        }
    };
    at_most("copy_min_rows", c.copy_min_rows, "max_rows", c.max_rows);
    at_most("max_value_bytes", c.max_value_bytes, "max_bytes", c.max_bytes);
    at_most("max_bytes", c.max_bytes, "budget_bytes", c.budget_bytes);
    if c.lock_timeout >= c.flush_timeout {
        let (lock, flush) = (milliseconds(c.lock_timeout), milliseconds(c.flush_timeout));
        let message =
            format!("{lock} ms is not below flush_timeout ({flush} ms); lower lock_timeout or raise it");
        draft.object(&join(path, "lock_timeout"), message);
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn databases(draft: &mut Draft) {
    if draft.databases.is_empty() {
        let message = "no database is configured; add [databases.NAME], or \"*\" for any name";
        draft.object_ours("databases", message);
    }
    let general = draft.settings.general.auth_dbname.clone();
    check_auth_dbname(draft, "auth_dbname", general.as_deref());
    let names: Vec<_> = draft.databases.iter().map(|d| (d.name.clone(), d.auth_dbname.clone())).collect();
    for (name, auth_dbname) in names {
        check_auth_dbname(draft, &join(&join("databases", &name), "auth_dbname"), auth_dbname.as_deref());
    }
    for database in std::mem::take(&mut draft.databases) {
        check_database(draft, &database);
        draft.databases.push(database);
    }
    entries_that_lead_back(draft);
}

/// A lookup in a database that is not there would let nobody in.
fn check_auth_dbname(draft: &mut Draft, key: &str, name: Option<&str>) {
    let Some(name) = name else { return };
    let served = draft.databases.iter().any(|database| database.name == name || database.name == "*");
    if !served || CONSOLES.contains(&name) {
        let name = shorten(name);
        draft.object(key, format!("no entry of [databases] is \"{name}\"; add one, or name another"));
    }
}

/// No user has a longer name, so the section would hold for nobody.
fn name_is_read(draft: &mut Draft, path: &str, name: &str) {
    if name.len() > NAME_BYTES_MAX {
        draft.object(path, format!("PostgreSQL reads {NAME_BYTES_MAX} bytes of a name; write no more"));
    }
}

/// Who may enter the console, and who asks for secrets.
fn operators(draft: &mut Draft) {
    let general = draft.settings.general.clone();
    for (key, names) in [("admin_users", &general.admin_users), ("stats_users", &general.stats_users)] {
        names.iter().for_each(|name| name_is_read(draft, key, name));
    }
    name_is_read(draft, "auth_user", general.auth_user.as_deref().unwrap_or_default());
    can_log_in(draft, "auth_user", general.auth_user.as_deref());
}

/// A verifier can only check a password that a client proves. For these logins no client does, so they fail if the server asks for one.
fn can_log_in(draft: &mut Draft, key: &str, name: Option<&str>) {
    let Some(Secret::Scram(_)) = name.and_then(|name| draft.settings.userlist.get(name)) else { return };
    let at = draft.place(key);
    let name = shorten(name.unwrap_or_default());
    let message = format!(
        "auth_file has a SCRAM verifier of \"{name}\", which cannot log in to a server that asks for a password; \
         put the password itself there"
    );
    draft.notice(&at, key, message);
}

fn check_database(draft: &mut Draft, database: &Database) {
    let path = join("databases", &database.name);
    if CONSOLES.contains(&database.name.as_str()) {
        draft.object(&path, "this name is the console's; choose another and set dbname to the server's");
    }
    if database.name.is_empty() {
        draft.object(&path, "the name is empty; write [databases.NAME]");
    }
    name_is_read(draft, &path, &database.name);
    for (key, name) in
        [("user", &database.user), ("dbname", &database.dbname), ("auth_user", &database.auth_user)]
    {
        name_is_read(draft, &join(&path, key), name.as_deref().unwrap_or_default());
    }
    let host = join(&path, "host");
    if database.host.is_empty() {
        let near = if draft.ini { "set host=, or unix_socket_dir in [pgbouncer]" } else { "set host" };
        draft.object_or_section(&host, &path, format!("is not set; {near} to where the server is"));
    }
    for name in &database.host {
        server_host(draft, &host, name, database.port);
    }
    can_log_in(draft, &join(&path, "auth_user"), database.auth_user.as_deref());
    if database.password.is_none() {
        can_log_in(draft, &join(&path, "user"), database.user.as_deref());
    }
    if database.password.is_some() && database.user.is_none() {
        draft.object_ours(
            &join(&path, "password"),
            "is the secret of user, which is not set; set user, or leave password out",
        );
    }
    if let Some(size) = database.pool_size {
        no_limit(draft, &join(&path, "pool_size"), size);
    }
    let general = &draft.settings.general;
    let min = database.min_pool_size.unwrap_or(general.min_pool_size);
    let size = database.pool_size.unwrap_or(general.default_pool_size);
    if database.min_pool_size.is_some() || database.pool_size.is_some() {
        let key = if database.min_pool_size.is_some() { "min_pool_size" } else { "pool_size" };
        if size > 0 && min > size {
            let message =
                format!("min_pool_size {min} is more than pool_size {size}; lower one or raise the other");
            draft.object_ours(&join(&path, key), message);
        }
    }
    if database.coalesce != draft.settings.coalesce {
        check_coalesce(draft, &join(&path, "coalesce"), &database.coalesce);
    }
    check_deferred(draft, database, &path);
}

/// Entries at which a login would be one at the same entry again, until no connection is left.
fn entries_that_lead_back(draft: &mut Draft) {
    let found: Vec<_> = draft
        .databases
        .iter()
        .filter(|database| leads_back(draft, database))
        .filter_map(|d| Some((join("databases", &d.name), shorten(own_host(draft, d)?), d.port)))
        .collect();
    for (path, host, port) in found {
        let key = if draft.set.contains_key(&join(&path, "host")) { "host" } else { "port" };
        let message = format!(
            "\"{host}\" with port {port} is where pgsluice itself listens; set host and port to the server's"
        );
        draft.object_ours(&join(&path, key), message);
    }
}

/// An entry whose `dbname` is another's is an alias of that, by way of a login here, and leads back only if that one does.
fn leads_back(draft: &Draft, database: &Database) -> bool {
    let named = |name: &str| draft.databases.iter().find(|d| d.name == name);
    let mut seen: Vec<&str> = Vec::new();
    let mut at = Some(database);
    while let Some(entry) = at.filter(|entry| own_host(draft, entry).is_some()) {
        if seen.contains(&entry.name.as_str()) {
            return true;
        }
        seen.push(&entry.name);
        at = match entry.dbname.as_deref() {
            Some(name) if CONSOLES.contains(&name) => None,
            Some(name) => named(name).or_else(|| named("*")),
            None => Some(entry),
        };
    }
    false
}

/// The one of its hosts at which pgsluice itself listens, as far as that can be told without looking names up.
fn own_host<'d>(draft: &Draft, database: &'d Database) -> Option<&'d str> {
    let general = &draft.settings.general;
    let is_own = |host: &&String| {
        let dir = general.unix_socket_dir.as_deref().is_some_and(|dir| dir == Path::new(host));
        dir || general.listen_addr.iter().any(|addr| reaches(addr, host))
    };
    let found = database.host.iter().find(is_own)?;
    (database.port == general.listen_port).then_some(found.as_str())
}

/// Whether a connection to `host` reaches a listener on `listen_addr`.
fn reaches(listen_addr: &str, host: &str) -> bool {
    let Some(host_ip) = address(host) else { return listen_addr.eq_ignore_ascii_case(host) };
    let this_machine = host_ip.is_loopback() || host_ip.is_unspecified();
    match address(listen_addr) {
        Some(ip) if ip.is_unspecified() => this_machine && ip.is_ipv4() == host_ip.is_ipv4(),
        Some(ip) => ip == host_ip,
        None => listen_addr == "*" && this_machine,
    }
}

/// The entry of one's own id is passed over, so that all may have the same.
fn peers(draft: &mut Draft) {
    let (peers, own) = (draft.settings.peers.clone(), draft.settings.general.peer_id);
    for (id, peer) in &peers {
        let path = join("peers", &id.to_string());
        let key = join(&path, "host");
        let Some(host) = &peer.host else {
            draft.object_or_section(&key, &path, "is not set; set host to where the peer itself is");
            continue;
        };
        server_host(draft, &key, host, peer.port);
    }
    if own == 0 && !peers.is_empty() {
        let at = draft.place("peer_id");
        let message = "is 0, so that no cancel request is passed on to [peers]; give each process a number";
        draft.notice(&at, "peer_id", message);
    }
}

/// A host, or the directory of a socket.
fn server_host(draft: &mut Draft, key: &str, host: &str, port: u16) {
    if Path::new(host).is_absolute() {
        socket_path(draft, key, Path::new(host), port);
    } else if !is_host(host) {
        let host = without_user(host);
        let (port, host) = (port_hint(host, "port"), shorten(host));
        let message =
            format!("\"{host}\" is no host; write an address, a host name, or a socket's directory{port}");
        draft.object(key, message);
    }
}

/// Where to put the port of `HOST:PORT`.
fn port_hint(text: &str, key: &str) -> String {
    match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => format!("; the port stands in {key}"),
        _ => String::new(),
    }
}

/// Deferral that is asked for and cannot take place, for any client.
fn check_deferred(draft: &mut Draft, database: &Database, path: &str) {
    let transaction = |mode: Option<PoolMode>| mode == Some(PoolMode::Transaction);
    let mode = database.pool_mode.unwrap_or(draft.settings.general.pool_mode);
    let for_some = draft.settings.users.values().any(|user| transaction(user.pool_mode));
    if !database.coalesce.defers() || transaction(Some(mode)) || for_some {
        return;
    }
    let own = join(path, "coalesce.deferred");
    let key = if draft.set.contains_key(&own) { own } else { "coalesce.deferred".to_owned() };
    let at = draft.place(&key);
    let message = format!(
        "defers nothing in [{path}], because pool_mode there is \"{}\"; set pool_mode to \"transaction\"",
        mode.as_str()
    );
    draft.notice(&at, &key, message);
}

/// An address or a name that could be a host's.
pub(super) fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let digits = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let name = text.strip_suffix('.').unwrap_or(text);
    text.parse::<IpAddr>().is_ok() || (!digits && text.len() <= 253 && name.split('.').all(label))
}
