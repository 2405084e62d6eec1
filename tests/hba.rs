//! Rules that take the word of the system or of a certificate for who somebody is, and maps of names.

use std::process::Command;

use crate::support;
use support::{Certs, Postgres, Proxy, client_command};

/// A proxy with these rules and maps; every user of it is `postgres` on the server.
fn proxy(server: &Postgres, general: &str, hba: &str, ident: &str) -> Proxy {
    let general =
        format!("auth_type = \"hba\"\nauth_hba_file = \"hba\"\nauth_ident_file = \"ident\"\n{general}");
    let config = Proxy::config(server, &general, "user = \"postgres\"", "");
    Proxy::start_with(&config, &[("hba", hba), ("ident", ident)])
}

/// Logs in with psql: what it says of a refusal.
fn enter(conninfo: &str) -> Result<(), String> {
    let mut psql = client_command("psql");
    let output = psql.args(["-XAtc", "SELECT 'in'", conninfo]).output().expect("psql");
    match String::from_utf8_lossy(&output.stdout).trim() {
        "in" => Ok(()),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn refused(conninfo: &str, why: &str) {
    let said = enter(conninfo).expect_err(conninfo);
    assert!(said.contains(why), "{conninfo}: {said}");
}

#[test]
fn over_the_unix_socket_the_system_says_who_it_is() {
    let server = Postgres::shared();
    let id = Command::new("id").arg("-un").output().expect("id");
    let me = String::from_utf8(id.stdout).expect("a name").trim().to_owned();
    let hba = format!(
        "local all {me},stranger peer\nlocal all app,report peer map=ops\nlocal all boss peer map=everybody\n"
    );
    let ident = |report: &str| format!("ops {me} app\nops {report} report\neverybody {me} all\n");
    let proxy = proxy(server, "unix_socket_dir = \"@DIR@\"", &hba, &ident("somebody"));
    let socket = format!("host={} port={} dbname=postgres", proxy.dir().display(), proxy.port());
    for user in [&me, "app", "boss"] {
        assert_eq!(enter(&format!("{socket} user={user}")), Ok(()), "{user}");
    }
    for user in ["stranger", "report"] {
        refused(&format!("{socket} user={user}"), &format!("peer authentication failed for user \"{user}\""));
    }
    proxy.wait_for_log(&format!("the operating-system user is \\\"{me}\\\""));
    refused(&format!("{socket} user=other"), "no auth_hba_file entry");
    refused(
        &format!("host=127.0.0.1 port={} dbname=postgres user={me}", proxy.port()),
        "no auth_hba_file entry",
    );
    // A map is read again with everything else.
    std::fs::write(proxy.dir().join("ident"), ident(&me)).expect("write");
    proxy.signal("HUP");
    proxy.wait_for_log("configuration reloaded");
    assert_eq!(enter(&format!("{socket} user=report")), Ok(()));
}

#[test]
fn peer_alone_is_for_the_unix_socket() {
    let server = Postgres::shared();
    let config = Proxy::config(server, "auth_type = \"peer\"\nunix_socket_dir = \"@DIR@\"", "", "");
    let proxy = Proxy::start(&config);
    refused(
        &format!("host=127.0.0.1 port={} dbname=postgres user=postgres", proxy.port()),
        "peer authentication is for Unix sockets only",
    );
}

/// As in PostgreSQL: who has a rule with `cert` needs one, and nobody else.
#[test]
fn certificates_are_for_the_rules_that_want_them() {
    let server = Postgres::shared();
    let (certs, others) = (Certs::new("app"), Certs::new("app"));
    let hba = "hostssl all app all cert\nhostssl all bob all scram-sha-256\nhostnossl all bob all md5\n";
    let users = "\"app\" \"unused\"\n\"bob\" \"secret\"\n";
    for mode in ["allow", "prefer", "require"] {
        let general = format!(
            "auth_type = \"hba\"\nauth_hba_file = \"hba\"\nauth_file = \"users\"\nclient_tls_sslmode = \"{mode}\"\n\
             client_tls_key_file = {:?}\nclient_tls_cert_file = {:?}\nclient_tls_ca_file = {:?}",
            certs.server_key, certs.server_cert, certs.ca
        );
        let config = Proxy::config(server, &general, "user = \"postgres\"", "");
        let proxy = Proxy::start_with(&config, &[("hba", hba), ("users", users)]);
        let with = |certs: &Certs, name: &str| {
            // libpq wants a key that nobody else can read.
            let key = proxy.dir().join(name);
            std::fs::copy(&certs.client_key, &key).expect("copy");
            std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .expect("mode");
            format!("sslmode=require sslcert={} sslkey={}", certs.client_cert.display(), key.display())
        };
        let (ours, theirs) = (with(&certs, "ours"), with(&others, "theirs"));
        let none = "sslcert=/nowhere sslkey=/nowhere";
        let at = format!("host=127.0.0.1 port={} dbname=postgres password=secret", proxy.port());
        assert_eq!(enter(&format!("{at} user=app {ours}")), Ok(()), "{mode}");
        refused(
            &format!("{at} user=app sslmode=require {none}"),
            "connection requires a valid client certificate",
        );
        let unencrypted =
            if mode == "require" { "TLS is required" } else { "no auth_hba_file entry for host" };
        refused(&format!("{at} user=app sslmode=disable"), unencrypted);
        // One that nobody of ours has signed is no certificate, for no rule.
        for user in ["app", "bob"] {
            assert!(enter(&format!("{at} user={user} {theirs}")).is_err(), "{mode} {user}");
            proxy.wait_for_log("the TLS handshake failed");
        }
        assert_eq!(enter(&format!("{at} user=bob sslmode=require {none}")), Ok(()), "{mode}");
        let clear = enter(&format!("{at} user=bob sslmode=disable"));
        assert_eq!(clear.is_ok(), mode != "require", "{mode} {clear:?}");
    }
}

#[test]
fn a_certificate_is_whom_its_map_says() {
    let server = Postgres::shared();
    let certs = Certs::new("machine 7");
    let general = format!(
        "client_tls_sslmode = \"verify-full\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}\nclient_tls_ca_file = {:?}",
        certs.server_key, certs.server_cert, certs.ca
    );
    let hba = "hostssl all app,report all cert map=machines\nhostssl all all all cert clientname=CN\n";
    let proxy = proxy(server, &general, hba, "machines \"machine 7\" app\nmachines \"machine 8\" report\n");
    // libpq wants a key that nobody else can read.
    let key = proxy.dir().join("key");
    std::fs::copy(&certs.client_key, &key).expect("copy");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
    let login = |user: &str| {
        let (port, cert, key) = (proxy.port(), certs.client_cert.display(), key.display());
        format!(
            "host=127.0.0.1 port={port} dbname=postgres user='{user}' sslmode=require sslcert={cert} sslkey={key}"
        )
    };
    for user in ["app", "machine 7"] {
        assert_eq!(enter(&login(user)), Ok(()), "{user}");
    }
    for user in ["report", "machine 8", "postgres"] {
        refused(&login(user), &format!("certificate authentication failed for user \"{user}\""));
    }
}
