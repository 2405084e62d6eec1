//! Which rule of `auth_hba_file` applies to a client: the first that matches.
//!
//! Owns: the comparison, and that of names with a map. Never: the file (the config room reads it), what the rule's method does.

use std::net::IpAddr;

use crate::settings::{HbaRule, HbaTransport, Mapping, is_within};
use crate::wire::startup::Replication;

/// What a rule is compared with.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// `None` over a Unix socket.
    pub ip: Option<IpAddr>,
    /// Over TLS?
    pub tls: bool,
    /// The database asked for.
    pub database: &'a str,
    /// The user claimed.
    pub user: &'a str,
    /// What kind of connection.
    pub replication: Replication,
}

/// The first rule that matches.
pub fn find<'a>(rules: &'a [HbaRule], asker: &Asker<'_>) -> Option<&'a HbaRule> {
    rules.iter().find(|rule| {
        transport(rule.transport, asker)
            && address(rule.address, asker.ip)
            && database(&rule.databases, asker)
            && user(&rule.users, asker.user)
    })
}

/// May a client that proved the system name `system` log in as `user`, by this map?
pub fn may_be(map: Option<&[Mapping]>, system: &str, user: &str) -> bool {
    let Some(map) = map else { return system == user };
    let allows = |line: &Mapping| line.system == system && line.user.as_deref().is_none_or(|own| own == user);
    map.iter().any(allows)
}

fn transport(transport: HbaTransport, asker: &Asker<'_>) -> bool {
    match transport {
        HbaTransport::Local => asker.ip.is_none(),
        HbaTransport::Host => asker.ip.is_some(),
        HbaTransport::HostSsl => asker.ip.is_some() && asker.tls,
        HbaTransport::HostNoSsl => asker.ip.is_some() && !asker.tls,
    }
}

fn address(network: Option<(IpAddr, u8)>, ip: Option<IpAddr>) -> bool {
    let (Some(network), Some(ip)) = (network, ip) else { return true };
    is_within(network, ip)
}

/// As in PostgreSQL only `replication` matches physical replication connections: the database that they name means nothing.
fn database(names: &[String], asker: &Asker<'_>) -> bool {
    let physical = asker.replication == Replication::Physical;
    let fits = |name: &String| match name.as_str() {
        "replication" => physical,
        _ if physical => false,
        "all" => true,
        "sameuser" => asker.database == asker.user,
        name => name == asker.database,
    };
    (names.is_empty() && !physical) || names.iter().any(fits)
}

fn user(names: &[String], user: &str) -> bool {
    names.is_empty() || names.iter().any(|name| name == "all" || name == user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::AuthType;

    fn rule(transport: HbaTransport, address: Option<(&str, u8)>) -> HbaRule {
        HbaRule {
            line: 1,
            transport,
            databases: Vec::new(),
            users: Vec::new(),
            address: address.map(|(ip, prefix)| (ip.parse().unwrap(), prefix)),
            method: Some(AuthType::Trust),
            map: None,
            ldap: None,
        }
    }

    fn asker(ip: Option<&str>, tls: bool) -> Asker<'static> {
        Asker {
            ip: ip.map(|ip| ip.parse().unwrap()),
            tls,
            database: "app",
            user: "ann",
            replication: Replication::None,
        }
    }

    #[test]
    fn a_rule_holds_for_its_transport_alone() {
        use HbaTransport::{Host, HostNoSsl, HostSsl, Local};
        for (transport, unix, clear, tls) in [
            (Local, true, false, false),
            (Host, false, true, true),
            (HostSsl, false, false, true),
            (HostNoSsl, false, true, false),
        ] {
            let rules = [rule(transport, None)];
            let fits = |asker| find(&rules, &asker).is_some();
            assert_eq!(fits(asker(None, false)), unix, "{transport:?}");
            assert_eq!(fits(asker(Some("10.0.0.1"), false)), clear, "{transport:?}");
            assert_eq!(fits(asker(Some("10.0.0.1"), true)), tls, "{transport:?}");
        }
    }

    #[test]
    fn a_rule_holds_for_addresses_in_its_network() {
        for (network, prefix, ip, fits) in [
            ("10.1.0.0", 16, "10.1.200.3", true),
            ("10.1.0.0", 16, "10.2.0.1", false),
            ("10.1.0.0", 16, "::ffff:10.1.200.3", true),
            ("0.0.0.0", 0, "192.0.2.1", true),
            ("0.0.0.0", 0, "::1", false),
            ("::", 0, "::1", true),
            ("::", 0, "192.0.2.1", false),
            ("2001:db8::", 32, "2001:db8:ffff::1", true),
            ("2001:db8::", 32, "2001:db9::1", false),
            ("192.0.2.1", 32, "192.0.2.1", true),
            ("192.0.2.1", 32, "192.0.2.2", false),
            ("192.0.2.1", 255, "192.0.2.1", true),
        ] {
            let rules = [rule(HbaTransport::Host, Some((network, prefix)))];
            assert_eq!(find(&rules, &asker(Some(ip), false)).is_some(), fits, "{ip} in {network}/{prefix}");
        }
    }

    #[test]
    fn a_map_says_who_may_be_whom() {
        let line =
            |system: &str, user: Option<&str>| Mapping { system: system.into(), user: user.map(Into::into) };
        let map = [line("ann", Some("app")), line("ann", Some("report")), line("root", None)];
        for (system, user, alone, mapped) in [
            ("ann", "ann", true, false),
            ("ann", "app", false, true),
            ("ann", "report", false, true),
            ("ann", "root", false, false),
            ("root", "app", false, true),
            ("Ann", "app", false, false),
            ("", "", true, false),
        ] {
            assert_eq!(may_be(None, system, user), alone, "{system} as {user}");
            assert_eq!(may_be(Some(&map), system, user), mapped, "{system} as {user}");
            assert!(!may_be(Some(&[]), system, user));
        }
    }

    /// Only a rule that says so fits a connection for the write-ahead log; one for a database's changes is as any other.
    #[test]
    fn replication_is_no_database() {
        use Replication::{Logical, None, Physical};
        for (databases, fits) in [
            (&[][..], [true, false, true]),
            (&["all"], [true, false, true]),
            (&["app"], [true, false, true]),
            (&["sameuser", "app", "all"], [true, false, true]),
            (&["replication"], [false, true, false]),
            (&["other", "replication"], [false, true, false]),
            (&["other"], [false; 3]),
        ] {
            let rules = [HbaRule {
                databases: databases.iter().map(|name| (*name).to_owned()).collect(),
                ..rule(HbaTransport::Host, Option::None)
            }];
            let found = [None, Physical, Logical].map(|replication| {
                find(&rules, &Asker { replication, ..asker(Some("10.0.0.1"), false) }).is_some()
            });
            assert_eq!(found, fits, "{databases:?}");
        }
    }

    #[test]
    fn names_and_order() {
        let mut first = rule(HbaTransport::Host, None);
        first.databases = vec!["sameuser".into(), "other".into()];
        first.line = 7;
        let mut second = rule(HbaTransport::Host, None);
        second.users = vec!["bob".into(), "ann".into()];
        second.line = 8;
        let rules = [first, second];
        let line = |database, user| {
            let asker = Asker { database, user, ..asker(Some("10.0.0.1"), false) };
            find(&rules, &asker).map(|rule| rule.line)
        };
        assert_eq!(line("ann", "ann"), Some(7));
        assert_eq!(line("other", "eve"), Some(7));
        assert_eq!(line("app", "bob"), Some(8));
        assert_eq!(line("app", "eve"), None);
    }
}
