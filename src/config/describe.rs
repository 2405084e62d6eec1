//! The effective settings as TOML that could be loaded again. Secrets are never printed, only their kind.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::keys::{self, Entry};
use super::table;
use super::userlist;
use super::value::quote;
use super::words::word;
use crate::settings::{
    Coalesce, CoalesceTable, Database, HbaRule, HbaTransport, Policy, Settings, User, UserCoalesce,
};

/// Everything that is effective, as commented TOML: what differs from its default says so.
pub fn describe(settings: &Settings) -> String {
    let mut out = String::new();
    out.push_str("# Effective settings. A comment names the default where the value is another.\n");
    out.push_str("\n[general]\n");
    entries(&mut out, table::GENERAL, &settings.general, Some(&keys::default_general(settings.ini)));
    let effective = keys::effective_policy(&settings.policy);
    out.push_str("\n[policy]\n");
    entries(&mut out, table::POLICY, &effective, Some(&keys::default_policy()));
    out.push_str("\n[coalesce]\n");
    entries(&mut out, table::COALESCE, &settings.coalesce, Some(&Coalesce::default()));
    tables(&mut out, "coalesce", &settings.coalesce, &BTreeMap::new());
    for database in settings.databases.values().chain(&settings.fallback) {
        describe_database(&mut out, database, &settings.coalesce);
    }
    for (id, peer) in &settings.peers {
        let _ = writeln!(out, "\n[peers.{id}]");
        entries(&mut out, table::PEER, peer, None);
    }
    let users: BTreeMap<_, _> = settings.users.iter().collect();
    for (name, user) in users {
        describe_user(&mut out, name, user);
    }
    for network in &settings.networks {
        policy(&mut out, &format!("networks.{}.policy", quote(&network.name)), &network.policy);
    }
    userlist(&mut out, settings);
    for rule in &settings.hba {
        let _ = writeln!(out, "# hba line {}: {}", rule.line, describe_rule(rule));
    }
    out
}

/// `key = value` for each entry that is set; with a default, the comment says where they differ.
fn entries<T>(out: &mut String, table: &'static [Entry<T>], from: &T, default: Option<&T>) {
    for entry in table {
        let Some(value) = (entry.toml)(from) else { continue };
        let default = default.and_then(|default| (entry.toml)(default).or_else(|| Some("not set".into())));
        let _ = match default.filter(|default| *default != value) {
            Some(default) => writeln!(out, "{} = {value}  # default: {default}", entry.name),
            None => writeln!(out, "{} = {value}", entry.name),
        };
    }
}

fn policy(out: &mut String, path: &str, policy: &Policy) {
    if *policy != Policy::default() {
        let _ = writeln!(out, "\n[{path}]");
        entries(out, table::POLICY, policy, None);
    }
}

fn describe_database(out: &mut String, database: &Database, global: &Coalesce) {
    let path = format!("databases.{}", quote(&database.name));
    let _ = writeln!(out, "\n[{path}]");
    entries(out, table::DATABASE, database, None);
    if let Some(secret) = &database.password {
        let _ = writeln!(out, "# password is set ({}), not shown", userlist::kind(secret));
    }
    policy(out, &format!("{path}.policy"), &database.policy);
    let path = format!("{path}.coalesce");
    let differing = |entry: &&Entry<Coalesce>| (entry.toml)(&database.coalesce) != (entry.toml)(global);
    let own: Vec<_> = table::COALESCE.iter().filter(differing).collect();
    if !own.is_empty() {
        let _ = writeln!(out, "\n[{path}]");
    }
    for entry in own {
        let value = (entry.toml)(&database.coalesce).unwrap_or_default();
        let _ = writeln!(out, "{} = {value}", entry.name);
    }
    tables(out, &path, &database.coalesce, &global.tables);
}

/// The tables that `base` does not say the same of.
fn tables(out: &mut String, path: &str, coalesce: &Coalesce, base: &BTreeMap<String, CoalesceTable>) {
    for (name, table) in coalesce.tables.iter().filter(|(name, table)| base.get(*name) != Some(table)) {
        let _ = writeln!(out, "\n[{path}.tables.{}]", quote(name));
        entries(out, table::COALESCE_TABLE, table, None);
    }
}

fn describe_user(out: &mut String, name: &str, user: &User) {
    let path = format!("users.{}", quote(name));
    let _ = writeln!(out, "\n[{path}]");
    entries(out, table::USER, user, None);
    policy(out, &format!("{path}.policy"), &user.policy);
    if user.coalesce != UserCoalesce::default() {
        let _ = writeln!(out, "\n[{path}.coalesce]");
        entries(out, table::USER_COALESCE, &user.coalesce, None);
    }
}

fn userlist(out: &mut String, settings: &Settings) {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for secret in settings.userlist.values() {
        *kinds.entry(userlist::kind(secret)).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let kinds = if kinds.is_empty() { "none".into() } else { kinds.join(", ") };
    let _ = writeln!(out, "\n# users with a secret: {kinds}");
}

fn describe_rule(rule: &HbaRule) -> String {
    let names = |names: &[String]| match names {
        [] => "all".to_owned(),
        names => names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(","),
    };
    let transport = match rule.transport {
        HbaTransport::Local => "local",
        HbaTransport::Host => "host",
        HbaTransport::HostSsl => "hostssl",
        HbaTransport::HostNoSsl => "hostnossl",
    };
    let address = match rule.address {
        Some((ip, length)) => format!(" {ip}/{length}"),
        None if rule.transport == HbaTransport::Local => String::new(),
        None => " all".into(),
    };
    let method = rule.method.map_or_else(|| "reject".to_owned(), word);
    let map = rule.map.as_ref().map(|map| format!(" map={map}")).unwrap_or_default();
    format!("{transport} {} {}{address} {method}{map}", names(&rule.databases), names(&rule.users))
}
