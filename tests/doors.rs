//! Logins in both directions: ours to a real PostgreSQL and to servers that lie; psql, tokio-postgres and
//! clients that lie to us.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::support;
use pgsluice::auth::{Auth, Credential, Found};
use pgsluice::client::handshake::{self, Authenticated, LoginError, Opened};
use pgsluice::limits::{LOGIN_BYTES_MAX, SCRAM_ITERATIONS_MAX, STARTUP_BYTES_MAX};
use pgsluice::net::conn::Conn;
use pgsluice::net::{Acceptor, Connector, Keepalive, Peer, Stream};
use pgsluice::server::connect::{self, Address, Concerns, ConnectError, Login, Target};
use pgsluice::settings::{
    AuthType, HbaRule, HbaTransport, Secret, Settings, SslMode, TargetSessionAttrs, Tls, TlsProtocols,
};
use pgsluice::wire::backend::{self, ErrorFields};
use pgsluice::wire::startup::{self, Replication, StartupPacket, authentication as code};
use pgsluice::wire::{TransactionStatus, frame, frontend};
use support::{Certs, PATIENCE, PgOptions, Postgres};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE * 4, work).await.expect("hung") })
}

// ===== to a real server =====

const HBA: &str = "
local   all postgres trust
host    all t_trust  127.0.0.1/32 trust
host    all t_pass   127.0.0.1/32 password
host    all t_md5    127.0.0.1/32 md5
host    all t_scram  127.0.0.1/32 scram-sha-256
local   all t_scram  scram-sha-256
hostssl all t_tls    127.0.0.1/32 scram-sha-256
hostnossl all t_clear 127.0.0.1/32 scram-sha-256
hostssl all t_cert   127.0.0.1/32 cert
";

struct Real {
    postgres: Postgres,
    certs: Certs,
}

/// One PostgreSQL with TLS and a user for each method; all passwords are `secret`.
fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    REAL.get_or_init(|| {
        let certs = Certs::new("t_cert");
        let postgres = Postgres::start(PgOptions {
            hba: Some(HBA.into()),
            tls: Some(certs.clone()),
            ..PgOptions::default()
        });
        for (user, encryption) in [
            ("t_trust", "scram-sha-256"),
            ("t_pass", "scram-sha-256"),
            ("t_md5", "md5"),
            ("t_scram", "scram-sha-256"),
            ("t_tls", "scram-sha-256"),
            ("t_clear", "scram-sha-256"),
            ("t_cert", "scram-sha-256"),
        ] {
            let sql = format!(
                "SET password_encryption = '{encryption}'; CREATE ROLE {user} LOGIN PASSWORD 'secret'"
            );
            postgres.psql("postgres", &sql);
        }
        Real { postgres, certs }
    })
}

fn server_tls(sslmode: SslMode, ca: bool) -> Tls {
    Tls { sslmode, ca_file: ca.then(|| real().certs.ca.clone()), ..Tls::default() }
}

fn target(user: &str, credential: Credential, tls: &Tls) -> Target {
    Target {
        hosts: vec!["localhost".into()],
        port: real().postgres.port(),
        hosts_file: None,
        attrs: TargetSessionAttrs::Any,
        dbname: "postgres".into(),
        user: user.into(),
        credential,
        tls: Connector::new(tls).expect("TLS settings"),
        keepalive: Keepalive { on: true, ..Keepalive::default() },
        replication: Replication::None,
        startup: vec![("application_name".into(), "doors".into()), ("search_path".into(), "a, b".into())],
        minor: 2,
    }
}

fn secret() -> Credential {
    Credential::plain("secret")
}

async fn log_in(target: &Target) -> Result<Login, ConnectError> {
    connect::connect(target, &[], PATIENCE).await
}

/// Runs one statement over a fresh login and gives the first column of its first row, or the error's SQLSTATE.
async fn ask(login: &mut Login, sql: &str) -> String {
    let mut message = Vec::new();
    frontend::put_query(&mut message, sql.as_bytes());
    login.stream.write_all(&message).await.unwrap();
    login.stream.flush().await.unwrap();
    let mut answer = String::new();
    loop {
        let (tag, body) = message_from(&mut login.stream).await.expect("an answer");
        match tag {
            backend::DATA_ROW => {
                let values = backend::data_row(&body).unwrap();
                answer = String::from_utf8(values[0].unwrap_or_default().to_vec()).unwrap();
            }
            backend::ERROR_RESPONSE => {
                answer = String::from_utf8(ErrorFields::new(&body).sqlstate().to_vec()).unwrap()
            }
            backend::READY_FOR_QUERY => return answer,
            _ => {}
        }
    }
}

/// The next message, or `None` at the end of the stream.
async fn message_from(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let mut header = [0; frame::HEADER_BYTES];
    stream.read_exact(&mut header).await.ok()?;
    let head = frame::header(&header, 1 << 22).expect("header")?;
    let mut body = vec![0; head.body];
    stream.read_exact(&mut body).await.ok()?;
    Some((head.tag, body))
}

#[test]
fn every_method_with_every_sslmode() {
    block_on(async {
        let certificate = |mut tls: Tls| {
            tls.cert_file = Some(real().certs.client_cert.clone());
            tls.key_file = Some(real().certs.client_key.clone());
            tls
        };
        // Protocol 3.2, and with it a longer key for cancel requests, came with 18.
        let protocol = if real().postgres.major() >= 18 { (2, 32) } else { (0, 4) };
        for (sslmode, encrypted) in [
            (SslMode::Disable, false),
            (SslMode::Allow, false),
            (SslMode::Prefer, true),
            (SslMode::Require, true),
            (SslMode::VerifyCa, true),
            (SslMode::VerifyFull, true),
        ] {
            let tls = server_tls(sslmode, true);
            let can_tls = sslmode != SslMode::Disable;
            for (user, credential, tls, good, encrypted) in [
                ("t_trust", Credential::None, tls.clone(), true, encrypted),
                ("t_pass", secret(), tls.clone(), true, encrypted),
                ("t_md5", secret(), tls.clone(), true, encrypted),
                ("t_scram", secret(), tls.clone(), true, encrypted),
                // `allow` learns from the refusal in clear.
                ("t_tls", secret(), tls.clone(), can_tls, true),
                ("t_cert", Credential::None, certificate(tls.clone()), can_tls, true),
                ("t_clear", secret(), tls.clone(), !encrypted, false),
            ] {
                let login = log_in(&target(user, credential, &tls)).await;
                assert_eq!(login.is_ok(), good, "{user} {sslmode:?}: {:?}", login.err());
                let Ok(mut login) = login else {
                    assert_eq!(login.unwrap_err().sqlstate(), Some(&b"28000"[..]), "{user} {sslmode:?}");
                    continue;
                };
                assert_eq!(login.stream.is_tls(), encrypted, "{user} {sslmode:?}");
                assert_eq!(ask(&mut login, "SELECT current_user").await, user);
                assert_eq!(ask(&mut login, "SHOW search_path").await, "a, b");
                let ssl = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
                assert_eq!(ask(&mut login, ssl).await, if encrypted { "t" } else { "f" });
                assert_eq!(ask(&mut login, "SELECT pg_backend_pid()").await, login.pid.to_string());
                assert_eq!((login.minor, login.key.len()), protocol, "{user} {sslmode:?}");
                assert!(login.rest.is_empty());
                assert!(login.params.contains(&(b"application_name".to_vec(), b"doors".to_vec())));
                assert!(login.params.iter().any(|(name, _)| name == b"server_version"));
            }
        }
    });
}

#[test]
fn wrong_passwords_and_missing_secrets() {
    block_on(async {
        for user in ["t_pass", "t_md5", "t_scram"] {
            let tls = server_tls(SslMode::Prefer, false);
            let wrong = log_in(&target(user, Credential::plain("Secret"), &tls)).await.unwrap_err();
            assert_eq!(wrong.sqlstate(), Some(&b"28P01"[..]), "{user}: {wrong:?}");
            assert_eq!(wrong.concerns(), Concerns::Asked);
            let none = log_in(&target(user, Credential::None, &tls)).await.unwrap_err();
            assert!(matches!(none, ConnectError::Auth(_)), "{user}: {none:?}");
            assert_eq!(none.concerns(), Concerns::Asked);
        }
    });
}

#[test]
fn a_stored_md5_hash_logs_in_where_md5_is_asked_for() {
    block_on(async {
        let stored =
            real().postgres.psql("postgres", "SELECT rolpassword FROM pg_authid WHERE rolname = 't_md5'");
        let credential = Credential::from_secret(&Secret::Md5(stored.trim().to_owned()));
        let tls = server_tls(SslMode::Prefer, false);
        assert!(log_in(&target("t_md5", credential.clone(), &tls)).await.is_ok());
        let scram = log_in(&target("t_scram", credential, &tls)).await.unwrap_err();
        assert!(matches!(scram, ConnectError::Auth(_)), "{scram:?}");
    });
}

#[test]
fn certificates_of_another_authority_are_refused_where_they_are_checked() {
    block_on(async {
        let other = Certs::new("x");
        for sslmode in [SslMode::VerifyCa, SslMode::VerifyFull] {
            let tls = Tls { sslmode, ca_file: Some(other.ca.clone()), ..Tls::default() };
            let error = log_in(&target("t_scram", secret(), &tls)).await.unwrap_err();
            // Where `localhost` is `::1`, too, nobody listens there.
            let last = if let ConnectError::Several { last, .. } = &error { &**last } else { &error };
            assert!(matches!(last, ConnectError::Tls(_)), "{error:?}");
        }
    });
}

#[test]
fn the_server_is_offered_the_chosen_versions_and_ciphers_only() {
    use TlsProtocols::{Both, Tls12, Tls13};
    let (old, new) = ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS13_AES_128_GCM_SHA256");
    block_on(async {
        for (protocols, seen) in [
            (Both, "TLSv1.3 TLS_AES_128_GCM_SHA256"),
            (Tls12, "TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305"),
            (Tls13, "TLSv1.3 TLS_AES_128_GCM_SHA256"),
        ] {
            let tls = server_tls(SslMode::VerifyFull, true);
            let tls = Tls { protocols, ciphers: vec![old], tls13_ciphers: vec![new], ..tls };
            let mut login = log_in(&target("t_tls", secret(), &tls)).await.unwrap();
            let sql = "SELECT version || ' ' || cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            assert_eq!(ask(&mut login, sql).await, seen);
        }
    });
}

#[test]
fn a_client_with_other_versions_of_tls_is_kept_out() {
    block_on(async {
        for (protocols, works) in
            [(TlsProtocols::Both, true), (TlsProtocols::Tls12, true), (TlsProtocols::Tls13, false)]
        {
            let tls = Tls { protocols, ..own_tls(SslMode::Require) };
            let door = Door::new(AuthType::Trust, &[("t_trust", plain("secret"))], &tls);
            let conninfo = "user=t_trust sslmode=require ssl_max_protocol_version=TLSv1.2";
            let (said, _) = psql(&door, conninfo).await;
            assert_eq!(said.is_ok(), works, "{protocols:?}: {said:?}");
        }
    });
}

#[test]
fn hosts_are_tried_in_order_and_a_socket_directory_is_a_host() {
    block_on(async {
        let mut target = target("t_scram", secret(), &server_tls(SslMode::VerifyFull, true));
        let directory = real().postgres.socket_dir().display().to_string();
        target.hosts = vec!["/nowhere".into(), directory.clone(), "localhost".into()];
        let login = log_in(&target).await.unwrap();
        assert!(matches!(&login.address, Address::Unix(path) if path.starts_with(&directory)));
        assert!(login.stream.is_unix() && login.stream.addrs().is_none());
        target.hosts = vec!["/nowhere".into(), "no.such.host.invalid".into(), "127.0.0.1".into()];
        let login = log_in(&target).await.unwrap();
        assert!(matches!(&login.address, Address::Tcp(name, _) if &**name == "127.0.0.1"));
        target.hosts = vec!["/nowhere".into()];
        assert!(matches!(log_in(&target).await, Err(ConnectError::Network(_))));
        // An answer ends the search.
        target.hosts = vec!["localhost".into(), "/nowhere".into()];
        target.dbname = "no such database".into();
        let error = log_in(&target).await.unwrap_err();
        assert!(error.sqlstate() == Some(b"3D000") && error.concerns() == Concerns::Asked, "{error:?}");
    });
}

#[test]
fn cancel_reaches_the_server_in_clear_and_over_tls() {
    // The server's key is of another kind.
    let without_a_cipher = Tls {
        protocols: TlsProtocols::Tls12,
        ciphers: vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
        ..server_tls(SslMode::Prefer, false)
    };
    block_on(async {
        for (user, tls, encrypted) in [
            ("t_scram", server_tls(SslMode::Disable, true), false),
            ("t_scram", server_tls(SslMode::VerifyFull, true), true),
            ("t_tls", server_tls(SslMode::Allow, false), true),
            ("t_scram", without_a_cipher, false),
        ] {
            let target = target(user, secret(), &tls);
            let mut login = log_in(&target).await.unwrap();
            assert_eq!(login.stream.is_tls(), encrypted, "{tls:?}");
            let (pid, key, address) = (login.pid, login.key.clone(), login.address.clone());
            let query = ask(&mut login, "SELECT pg_sleep(600)");
            // One request may come before the statement does; that is the protocol's own race.
            let cancel = async {
                loop {
                    let (key, mut sent) = ((pid, &key[..]), false);
                    let request = connect::cancel(&target, &address, encrypted, key, PATIENCE, &mut sent);
                    request.await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let sqlstate = tokio::select! {
                answer = query => answer,
                () = cancel => unreachable!("ends with the statement"),
            };
            assert_eq!(sqlstate, "57014", "{tls:?}");
        }
    });
}

// ===== to servers that lie =====

/// What a [`Liar`] does with one connection.
type Script = Arc<dyn Fn(Liar) -> std::pin::Pin<Box<dyn Future<Output = ()>>>>;

struct Liar {
    tcp: TcpStream,
}

impl Liar {
    async fn packet(&mut self) -> Option<Vec<u8>> {
        let len = self.tcp.read_u32().await.ok()?;
        let mut packet = vec![0; len as usize - 4];
        self.tcp.read_exact(&mut packet).await.ok()?;
        Some(packet)
    }

    async fn say(&mut self, bytes: &[u8]) {
        // The other side may be gone already: that is what most tests are for.
        let _ = self.tcp.write_all(bytes).await;
    }

    async fn authentication(&mut self, code: i32, data: &[u8]) {
        let mut out = Vec::new();
        startup::put_authentication(&mut out, code, data);
        self.say(&out).await;
    }

    async fn offer_scram(&mut self) -> String {
        self.packet().await;
        self.authentication(code::SASL, b"SCRAM-SHA-256\0\0").await;
        let (_, body) = message_from(&mut self.tcp).await.expect("SASLInitialResponse");
        let (_, first) = startup::sasl_initial(&body).expect("SASLInitialResponse");
        let first = String::from_utf8(first.expect("client-first").to_vec()).unwrap();
        first.split("r=").nth(1).expect("nonce").to_owned()
    }

    /// Until the other side closes.
    async fn wait(mut self) {
        let mut sink = [0; 1024];
        while matches!(self.tcp.read(&mut sink).await, Ok(1..)) {}
    }
}

fn script<F: Future<Output = ()> + 'static>(play: impl Fn(Liar) -> F + 'static) -> Script {
    Arc::new(move |liar| Box::pin(play(liar)))
}

/// Logs in to a server that plays `script` on each connection.
async fn against(script: Script, credential: Credential, sslmode: SslMode) -> Result<Login, ConnectError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target {
        hosts: vec!["127.0.0.1".into()],
        port: listener.local_addr().unwrap().port(),
        hosts_file: None,
        attrs: TargetSessionAttrs::Any,
        dbname: "app".into(),
        user: "ann".into(),
        credential,
        tls: Connector::new(&Tls { sslmode, ..Tls::default() }).unwrap(),
        keepalive: Keepalive::default(),
        replication: Replication::None,
        startup: Vec::new(),
        minor: 2,
    };
    let play = async {
        loop {
            let tcp = listener.accept().await.unwrap().0;
            script(Liar { tcp }).await;
        }
    };
    tokio::select! {
        login = connect::connect(&target, &[], PATIENCE) => login,
        () = play => unreachable!("accepts for ever"),
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, tag, |out| out.extend_from_slice(body));
    out
}

fn is_protocol<T>(result: &Result<T, ConnectError>) -> bool {
    matches!(result, Err(ConnectError::Protocol(_)))
}

fn is_auth<T>(result: &Result<T, ConnectError>) -> bool {
    matches!(result, Err(ConnectError::Auth(_)))
}

#[test]
fn lies_before_the_startup_message() {
    block_on(async {
        // Injected bytes behind the 'S', another answer, an error in clear.
        let lies = [
            (&b"SZ\0\0\0\x05I"[..], "unencrypted data behind the answer"),
            (b"NR", "unencrypted data behind the answer"),
            (b"X", "neither 'S' nor 'N'"),
            (b"E\0\0\0\x10SFATAL\0\0", "with an error"),
            (b"Ecould not fork new process for connection\n\0", "with an error"),
        ];
        for (answer, what) in lies {
            let play = script(move |mut liar: Liar| async move {
                liar.packet().await;
                liar.say(answer).await;
                liar.wait().await;
            });
            for sslmode in [SslMode::Prefer, SslMode::Require] {
                let login = against(play.clone(), secret(), sslmode).await;
                let told = matches!(&login, Err(ConnectError::Protocol(told)) if told.contains(what));
                assert!(told, "{answer:?} {sslmode:?}: {login:?}");
            }
        }
        let no = script(|mut liar: Liar| async move {
            liar.packet().await;
            liar.say(b"N").await;
            liar.wait().await;
        });
        let login = against(no, secret(), SslMode::Require).await;
        assert!(matches!(login, Err(ConnectError::Network(_))), "{login:?}");
    });
}

/// AuthenticationOk and what follows, in one write.
fn welcome() -> Vec<u8> {
    let mut out = Vec::new();
    startup::put_authentication(&mut out, code::OK, &[]);
    backend::put_parameter_status(&mut out, b"server_version", b"99");
    backend::put_backend_key_data(&mut out, 7, &[1; 256]);
    backend::put_ready_for_query(&mut out, TransactionStatus::Idle);
    out
}

async fn saying(bytes: Vec<u8>) -> Result<Login, ConnectError> {
    let play = script(move |mut liar: Liar| {
        let bytes = bytes.clone();
        async move {
            liar.packet().await;
            liar.say(&bytes).await;
            liar.wait().await;
        }
    });
    against(play, secret(), SslMode::Disable).await
}

#[test]
fn an_honest_server_of_protocol_3_2_with_a_long_key() {
    block_on(async {
        let behind = message(backend::NOTICE_RESPONSE, b"SWARNING\0\0");
        let login = saying([welcome(), behind.clone()].concat()).await.unwrap();
        assert_eq!((login.minor, login.pid, login.key.len(), login.rest), (2, 7, 256, behind));
    });
}

#[test]
fn messages_that_break_the_protocol() {
    block_on(async {
        let ok = || message(b'R', &[0; 4]);
        let negotiate = |minor: u8, count: u8, options: &[u8]| {
            message(b'v', &[&[0, 3, 0, minor, 0, 0, 0, count][..], options].concat())
        };
        for (what, bytes) in [
            ("query answer first", message(b'D', &[0, 0])),
            ("negotiates a newer minor", [negotiate(3, 0, b""), welcome()].concat()),
            ("negotiates what was not asked", [negotiate(0, 1, b"_pq_.x\0"), welcome()].concat()),
            ("lies about options", [negotiate(0, 9, b""), welcome()].concat()),
            ("negotiates twice", [negotiate(0, 0, b""), negotiate(0, 0, b""), welcome()].concat()),
            ("key too short", [ok(), message(b'K', &[0; 7])].concat()),
            ("key too long", [ok(), message(b'K', &[0; 4 + 257])].concat()),
            ("not idle", [ok(), message(b'Z', b"T")].concat()),
            ("no such status", [ok(), message(b'Z', b"x")].concat()),
            ("data before ready", [ok(), message(b'D', &[0, 0])].concat()),
            ("length 3", vec![b'R', 0, 0, 0, 3]),
            ("length -1", vec![b'R', 0xff, 0xff, 0xff, 0xff]),
            ("length of 2 GiB", vec![b'R', 0x80, 0, 0, 0]),
            ("1 GiB announced", vec![b'S', 0x3f, 0xff, 0xff, 0xff]),
            ("status without its zero", [ok(), message(b'S', b"a\0b")].concat()),
            ("no code", message(b'R', &[0])),
            ("short salt", message(b'R', &[0, 0, 0, 5, 1])),
            ("mechanisms without end", message(b'R', b"\0\0\0\x0aSCRAM")),
        ] {
            let login = saying(bytes).await;
            assert!(is_protocol(&login), "{what}: {login:?}");
        }
        let older = saying([negotiate(0, 0, b""), welcome()].concat()).await.unwrap();
        assert_eq!(older.minor, 0);
    });
}

#[test]
fn endless_notices_end_at_the_bound() {
    block_on(async {
        let play = script(|mut liar: Liar| async move {
            liar.packet().await;
            let notices = message(backend::NOTICE_RESPONSE, b"SNOTICE\0\0").repeat(1000);
            let mut sent = 0;
            while sent < 4 * LOGIN_BYTES_MAX && liar.tcp.write_all(&notices).await.is_ok() {
                sent += notices.len();
            }
            liar.wait().await;
        });
        assert!(is_protocol(&against(play, secret(), SslMode::Disable).await));
    });
}

#[test]
fn errors_with_fields_left_out_or_broken() {
    block_on(async {
        for (body, sqlstate) in [
            (&b"SFATAL\0C3D000\0Mno\0\0"[..], &b"3D000"[..]),
            (b"SFATAL\0Mno\0\0", b"XX000"),
            (b"C\0\0", b"XX000"),
            (b"C12\0\0", b"XX000"),
            (b"", b"XX000"),
            (b"\0", b"XX000"),
            (b"C28P01", b"XX000"),
            (b"SFATAL\0C28P01\0\0", b"28P01"),
        ] {
            let error = saying(message(b'E', body)).await.expect_err("an error");
            assert_eq!(error, ConnectError::Server(body.to_vec()));
            assert_eq!(error.sqlstate(), Some(sqlstate), "{body:?}");
            assert!(!error.to_string().is_empty());
        }
    });
}

#[test]
fn a_server_that_knows_no_minor_versions_is_asked_again() {
    block_on(async {
        let play = script(|mut liar: Liar| async move {
            let packet = liar.packet().await.expect("StartupMessage");
            let Ok(StartupPacket::Startup(asked)) = StartupPacket::decode(&packet) else {
                panic!("{packet:?}")
            };
            if asked.minor == 0 {
                liar.say(&welcome()).await;
                return liar.wait().await;
            }
            liar.say(&message(b'E', b"SFATAL\0C08P01\0Munsupported protocol version\0\0")).await;
        });
        let login = against(play, secret(), SslMode::Disable).await.unwrap();
        assert_eq!(login.minor, 0);
    });
}

#[test]
fn authentication_that_leads_elsewhere() {
    block_on(async {
        let ask = |code: i32, data: &[u8]| message(b'R', &[&code.to_be_bytes()[..], data].concat());
        // A second request would get the password after the hash; unknown methods have no answer.
        for (what, bytes) in [
            (
                "md5, then clear",
                [ask(code::MD5_PASSWORD, b"salt"), ask(code::CLEARTEXT_PASSWORD, b"")].concat(),
            ),
            ("clear twice", ask(code::CLEARTEXT_PASSWORD, b"").repeat(2)),
            ("GSSAPI", ask(7, b"")),
            ("no such method", ask(99, b"")),
            ("only another mechanism", ask(code::SASL, b"SCRAM-SHA-1\0\0")),
            ("only with binding, without TLS", ask(code::SASL, b"SCRAM-SHA-256-PLUS\0\0")),
            ("none", ask(code::SASL, b"\0")),
            ("leaves SCRAM with OK", [ask(code::SASL, b"SCRAM-SHA-256\0\0"), ask(code::OK, b"")].concat()),
            ("leaves SCRAM for clear", {
                [ask(code::SASL, b"SCRAM-SHA-256\0\0"), ask(code::CLEARTEXT_PASSWORD, b"")].concat()
            }),
        ] {
            let login = saying(bytes).await;
            assert!(is_auth(&login), "{what}: {login:?}");
        }
    });
}

/// No secret would help: that there is none is not what is said.
#[test]
fn a_server_that_asks_for_oauth_is_told_of() {
    block_on(async {
        for credential in [secret(), Credential::None] {
            let play = script(|mut liar: Liar| async move {
                liar.packet().await;
                liar.authentication(code::SASL, b"OAUTHBEARER\0\0").await;
                liar.wait().await;
            });
            let error = against(play, credential, SslMode::Disable).await.expect_err("no login");
            assert!(error.to_string().contains("OAUTHBEARER"), "{error}");
        }
    });
}

#[test]
fn scram_challenges_that_lie() {
    block_on(async {
        let salt = "s=c2FsdHNhbHQ=";
        let bounded = format!("i={}", SCRAM_ITERATIONS_MAX + 1);
        type Make = Box<dyn Fn(&str) -> String>;
        let cases: Vec<(&str, Make)> = vec![
            ("nonce of one byte", Box::new(move |_| format!("r=x,{salt},i=1"))),
            ("our nonce alone", Box::new(move |ours| format!("r={ours},{salt},i=1"))),
            ("nonce of 64 KiB", Box::new(move |ours| format!("r={ours}{},{salt},i=1", "x".repeat(1 << 16)))),
            (
                "nonce near 1 MiB",
                Box::new(move |ours| format!("r={ours}{},{salt},i=1", "x".repeat((1 << 20) - 99))),
            ),
            (
                "nonce beyond 1 MiB",
                Box::new(move |ours| format!("r={ours}{},{salt},i=1", "x".repeat(1 << 20))),
            ),
            ("no iterations", Box::new(move |ours| format!("r={ours}x,{salt}"))),
            ("iterations 0", Box::new(move |ours| format!("r={ours}x,{salt},i=0"))),
            ("iterations 2^31-1", Box::new(move |ours| format!("r={ours}x,{salt},i=2147483647"))),
            ("iterations above the bound", Box::new(move |ours| format!("r={ours}x,{salt},{bounded}"))),
        ];
        for (what, make) in cases {
            let make = Rc::new(make);
            let play = script(move |mut liar: Liar| {
                let make = Rc::clone(&make);
                async move {
                    let ours = liar.offer_scram().await;
                    liar.authentication(code::SASL_CONTINUE, make(&ours).as_bytes()).await;
                    liar.wait().await;
                }
            });
            let login = against(play, secret(), SslMode::Disable).await;
            assert!(is_protocol(&login) || is_auth(&login), "{what}: {login:?}");
        }
    });
}

#[test]
fn a_server_that_does_not_know_the_secret_is_found_out() {
    block_on(async {
        for (server_final, then_ok) in [
            ("v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", true),
            ("v=", true),
            ("", true),
            ("e=x", false),
        ] {
            let play = script(move |mut liar: Liar| async move {
                let ours = liar.offer_scram().await;
                liar.authentication(code::SASL_CONTINUE, format!("r={ours}x,s=c2FsdA==,i=4096").as_bytes())
                    .await;
                message_from(&mut liar.tcp).await;
                liar.authentication(code::SASL_FINAL, server_final.as_bytes()).await;
                if then_ok {
                    liar.say(&welcome()).await;
                }
                liar.wait().await;
            });
            let login = against(play, secret(), SslMode::Disable).await;
            assert!(is_auth(&login) || is_protocol(&login), "{server_final}: {login:?}");
        }
    });
}

#[test]
fn many_iterations_do_not_hold_up_the_event_loop() {
    block_on(async {
        let turns = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let play = script(move |mut liar: Liar| {
            let turns = Arc::clone(&counted);
            async move {
                let ours = liar.offer_scram().await;
                let challenge = format!("r={ours}x,s=c2FsdA==,i=300000");
                liar.authentication(code::SASL_CONTINUE, challenge.as_bytes()).await;
                // The client's next message is not made on this thread: we get turns meanwhile.
                let mut byte = [0; 1];
                loop {
                    match liar.tcp.try_read(&mut byte) {
                        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                            turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            tokio::task::yield_now().await;
                        }
                        _ => return,
                    }
                }
            }
        });
        let login = against(play, secret(), SslMode::Disable).await;
        assert!(login.is_err());
        let turns = turns.load(std::sync::atomic::Ordering::Relaxed);
        assert!(turns > 100, "the event loop turned {turns} times only");
    });
}

#[test]
fn a_silent_server_is_given_up() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut target = target("t_scram", secret(), &server_tls(SslMode::Prefer, false));
        (target.hosts, target.port) = (vec!["127.0.0.1".into()], listener.local_addr().unwrap().port());
        let login = connect::connect(&target, &[], Duration::from_millis(50)).await;
        assert_eq!(login.unwrap_err(), ConnectError::Timeout);
    });
}

// ===== from clients =====

/// Where clients come in, in a test.
struct Door {
    settings: Settings,
    auth: Auth,
    acceptor: Acceptor,
    timeout: Duration,
}

impl Door {
    fn new(auth_type: AuthType, secrets: &[(&str, Secret)], tls: &Tls) -> Self {
        let mut settings = Settings::default();
        settings.general.auth_type = auth_type;
        settings.userlist =
            secrets.iter().map(|(name, secret)| ((*name).to_owned(), secret.clone())).collect();
        let auth = Auth::new(&settings);
        let acceptor = Acceptor::new(tls).expect("TLS settings");
        Self { settings, auth, acceptor, timeout: PATIENCE }
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn open(&self, listener: &TcpListener) -> Result<Opened, LoginError> {
        let (tcp, from) = listener.accept().await.unwrap();
        let stream = Stream::tcp(tcp, &Keepalive::default()).unwrap();
        let general = &self.settings.general;
        handshake::open(stream, Peer::Tcp(from), &self.acceptor, self.timeout, general).await
    }

    /// One client up to AuthenticationOk, which is sent.
    async fn take(&self, listener: &TcpListener) -> Result<Authenticated, LoginError> {
        let Opened::Startup(client) = self.open(listener).await? else { panic!("a CancelRequest") };
        let mut proven = client.authenticate(&self.settings, &self.auth, Found::NotAsked).await?;
        proven.client.flush().await.map_err(LoginError::Gone)?;
        Ok(proven)
    }

    /// As [`Self::take`], then says ReadyForQuery and answers each Query with one row that says `hello`.
    async fn serve(&self, listener: &TcpListener) -> Result<Authenticated, LoginError> {
        let mut proven = self.take(listener).await?;
        let conn = &mut proven.client;
        backend::put_backend_key_data(&mut conn.out, 1, &[0; 4]);
        backend::put_ready_for_query(&mut conn.out, TransactionStatus::Idle);
        conn.flush().await.unwrap();
        while let Some((tag, _)) = next_message(conn).await {
            if tag == frontend::TERMINATE {
                break;
            }
            assert_eq!(tag, frontend::QUERY);
            backend::put_text_row_description(&mut conn.out, &["word"]);
            backend::put_data_row(&mut conn.out, [Some(&b"hello"[..])].into_iter());
            backend::put_command_complete(&mut conn.out, b"SELECT 1");
            backend::put_ready_for_query(&mut conn.out, TransactionStatus::Idle);
            conn.flush().await.unwrap();
        }
        Ok(proven)
    }
}

/// The next whole message; `None` at the end.
async fn next_message(conn: &mut Conn) -> Option<(u8, Vec<u8>)> {
    loop {
        let head = frame::header(conn.bytes(), 1 << 22).expect("header");
        if let Some(head) = head
            && let Some(body) = conn.bytes().get(frame::HEADER_BYTES..frame::HEADER_BYTES + head.body)
        {
            let message = (head.tag, body.to_vec());
            conn.consume(frame::HEADER_BYTES + head.body);
            return Some(message);
        }
        conn.want(head.map_or(0, |head| frame::HEADER_BYTES + head.body));
        if std::future::poll_fn(|cx| conn.poll_fill(cx)).await.ok()? == 0 {
            return None;
        }
    }
}

/// Runs psql against one turn of the door; psql's stdout or stderr, and what the door saw.
async fn psql(door: &Door, conninfo: &str) -> (Result<String, String>, Result<Authenticated, LoginError>) {
    let (listener, address) = Door::listen().await;
    let conninfo = format!("host=localhost hostaddr=127.0.0.1 port={} dbname=app {conninfo}", address.port());
    let mut command = tokio::process::Command::new(support::client_program("psql"));
    command.args(["-XAtw", "-c", "SELECT 'hello'", "-d", &conninfo]).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/nowhere");
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    let run = command.output();
    let (output, seen) = tokio::join!(run, door.serve(&listener));
    let output = output.expect("psql");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let said = if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) };
    (said, seen)
}

fn plain(password: &str) -> Secret {
    Secret::Plain(password.into())
}

fn own_tls(sslmode: SslMode) -> Tls {
    let certs = &real().certs;
    Tls {
        sslmode,
        cert_file: Some(certs.server_cert.clone()),
        key_file: Some(certs.server_key.clone()),
        ca_file: Some(certs.ca.clone()),
        ..Tls::default()
    }
}

/// The secrets that PostgreSQL itself stored, of the password `secret`.
fn stored(user: &str) -> Secret {
    let sql = format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{user}'");
    let text = real().postgres.psql("postgres", &sql).trim().to_owned();
    if text.starts_with("md5") { Secret::Md5(text) } else { Secret::Scram(text) }
}

#[test]
fn psql_logs_in_by_every_method_with_every_secret_in_clear_and_over_tls() {
    block_on(async {
        use AuthType::{Md5, Plain, ScramSha256, Trust};
        for (user, secret) in
            [("t_md5", plain("secret")), ("t_md5", stored("t_md5")), ("t_scram", stored("t_scram"))]
        {
            for method in [Trust, Plain, Md5, ScramSha256] {
                for sslmode in ["disable", "require"] {
                    let door = Door::new(method, &[(user, secret.clone())], &own_tls(SslMode::Prefer));
                    let what = format!("{user} {secret:?} {method:?} {sslmode}");
                    let possible = !matches!((&secret, method), (Secret::Md5(_), ScramSha256));
                    for password in ["secret", "wrong"] {
                        let conninfo = format!("user={user} password={password} sslmode={sslmode}");
                        let (said, seen) = psql(&door, &conninfo).await;
                        if method == Trust || (possible && password == "secret") {
                            assert_eq!(said.as_deref(), Ok("hello\n"), "{what}");
                            let seen = seen.unwrap();
                            assert_eq!(
                                (seen.client.stream().is_tls(), seen.method),
                                (sslmode == "require", method)
                            );
                            assert_eq!(
                                (seen.startup.user.as_str(), seen.startup.database.as_str()),
                                (user, "app")
                            );
                        } else {
                            let told = said.unwrap_err();
                            let want = format!("password authentication failed for user \"{user}\"");
                            assert!(told.contains(&want), "{what}: {told}");
                            let Err(LoginError::Refused(error)) = seen else { panic!("{what}") };
                            assert_eq!((error.sqlstate(), error.log().is_some()), ("28P01", true));
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn channel_binding_is_offered_over_tls_only_and_holds() {
    block_on(async {
        for secret in [plain("secret"), stored("t_scram")] {
            let door = Door::new(AuthType::ScramSha256, &[("t_scram", secret)], &own_tls(SslMode::Prefer));
            let own = "user=t_scram password=secret";
            for (sslmode, binding, good) in [
                ("require", "require", true),
                ("require", "prefer", true),
                ("require", "disable", true),
                ("disable", "require", false),
                ("disable", "prefer", true),
            ] {
                let (said, _) =
                    psql(&door, &format!("{own} sslmode={sslmode} channel_binding={binding}")).await;
                assert_eq!(said.is_ok(), good, "{sslmode} {binding}: {said:?}");
            }
            let ca = real().certs.ca.display();
            let (said, _) = psql(&door, &format!("{own} sslmode=verify-full sslrootcert={ca}")).await;
            assert_eq!(said.as_deref(), Ok("hello\n"));
        }
    });
}

#[test]
fn keys_of_a_clients_login_open_the_server_and_nothing_else_does() {
    block_on(async {
        let verifier = stored("t_scram");
        let door =
            Door::new(AuthType::ScramSha256, &[("t_scram", verifier.clone())], &own_tls(SslMode::Prefer));
        for sslmode in ["disable", "require"] {
            let (said, seen) = psql(&door, &format!("user=t_scram password=secret sslmode={sslmode}")).await;
            assert_eq!(said.as_deref(), Ok("hello\n"));
            let credential = seen.unwrap().credential;
            assert!(matches!(credential, Credential::Scram(_)), "{credential:?}");
            for sslmode in [SslMode::Disable, SslMode::Require] {
                let tls = server_tls(sslmode, false);
                let mut login = log_in(&target("t_scram", credential.clone(), &tls)).await.unwrap();
                assert_eq!(ask(&mut login, "SELECT current_user").await, "t_scram");
            }
            // Another user's secret, of the same password, has another salt.
            let tls = server_tls(SslMode::Require, false);
            assert!(is_auth(&log_in(&target("t_tls", credential, &tls)).await));
        }
        assert!(matches!(Credential::from_secret(&verifier), Credential::None));
    });
}

#[test]
fn tls_that_is_required_of_clients() {
    block_on(async {
        let cert = real().certs.client_cert.display();
        // libpq wants a key that nobody else can read.
        let owned = tempfile::tempdir().unwrap();
        let private = owned.path().join("key");
        std::fs::copy(real().certs.client_key.as_path(), &private).unwrap();
        std::fs::set_permissions(&private, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let with_cert = format!("sslmode=require sslcert={cert} sslkey={}", private.display());
        for (sslmode, auth_type, conninfo, sqlstate) in [
            (SslMode::Require, AuthType::Trust, "user=ann sslmode=disable".to_owned(), Some("28000")),
            (SslMode::Require, AuthType::Trust, "user=ann sslmode=require".to_owned(), None),
            (SslMode::Disable, AuthType::Trust, "user=ann sslmode=prefer".to_owned(), None),
            (SslMode::VerifyCa, AuthType::Trust, format!("user=ann {with_cert}"), None),
            (SslMode::Require, AuthType::Cert, format!("user=t_cert {with_cert}"), None),
            (SslMode::Require, AuthType::Cert, format!("user=ann {with_cert}"), Some("28000")),
            (SslMode::Require, AuthType::Cert, "user=t_cert sslmode=require".to_owned(), Some("28000")),
            (SslMode::Prefer, AuthType::Cert, "user=t_cert sslmode=disable".to_owned(), Some("28000")),
        ] {
            let tls = if sslmode == SslMode::Disable { Tls::default() } else { own_tls(sslmode) };
            let (said, seen) = psql(&Door::new(auth_type, &[], &tls), &conninfo).await;
            let refused = match seen {
                Ok(_) => None,
                Err(LoginError::Refused(error)) => Some(error.sqlstate()),
                Err(LoginError::Gone(error)) => panic!("{conninfo}: {error} {said:?}"),
            };
            assert_eq!(refused, sqlstate, "{sslmode:?} {conninfo}: {said:?}");
            assert_eq!(said.is_ok(), sqlstate.is_none(), "{said:?}");
        }
    });
}

#[test]
fn users_without_a_password_method_must_be_in_a_userlist_that_is_there() {
    block_on(async {
        let door = Door::new(AuthType::Trust, &[("ann", plain("x"))], &Tls::default());
        assert!(psql(&door, "user=ann").await.0.is_ok());
        let (said, _) = psql(&door, "user=eve").await;
        assert!(said.unwrap_err().contains("user \"eve\" is not in auth_file"));
    });
}

#[test]
fn hba_rules_choose_the_method() {
    block_on(async {
        let rule = |line, transport, user: &str, method| HbaRule {
            map: None,
            ldap: None,
            line,
            transport,
            databases: vec!["app".into()],
            users: vec![user.into()],
            address: Some(("127.0.0.0".parse().unwrap(), 8)),
            method,
        };
        let mut door =
            Door::new(AuthType::Hba, &[("ann", plain("x")), ("bob", plain("x"))], &own_tls(SslMode::Prefer));
        door.settings.hba = vec![
            rule(1, HbaTransport::HostSsl, "ann", Some(AuthType::Trust)),
            rule(2, HbaTransport::Host, "ann", Some(AuthType::ScramSha256)),
            rule(3, HbaTransport::Host, "bob", None),
            rule(4, HbaTransport::Host, "bob", Some(AuthType::Trust)),
        ];
        assert_eq!(psql(&door, "user=ann sslmode=require").await.1.unwrap().method, AuthType::Trust);
        assert!(psql(&door, "user=ann sslmode=disable").await.0.is_err());
        let (_, seen) = psql(&door, "user=ann sslmode=disable password=x").await;
        assert_eq!(seen.unwrap().method, AuthType::ScramSha256);
        for (user, text) in [
            (
                "bob",
                "auth_hba_file rejects connection for host \"127.0.0.1\", user \"bob\", database \"app\", no encryption",
            ),
            (
                "eve",
                "no auth_hba_file entry for host \"127.0.0.1\", user \"eve\", database \"app\", no encryption",
            ),
        ] {
            let (said, seen) = psql(&door, &format!("user={user} sslmode=disable")).await;
            assert!(said.unwrap_err().contains(text), "{user}");
            assert!(matches!(seen, Err(LoginError::Refused(error)) if error.sqlstate() == "28000"));
        }
    });
}

// ===== clients that lie =====

/// Says `bytes`, then for each of `more`: waits for one message and says that. Everything that came back.
async fn talk(address: SocketAddr, bytes: Vec<u8>, more: Vec<Vec<u8>>) -> (Vec<(u8, Vec<u8>)>, bool) {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    tcp.write_all(&bytes).await.unwrap();
    let mut heard = Vec::new();
    for bytes in more {
        match message_from(&mut tcp).await {
            Some(message) => heard.push(message),
            None => return (heard, true),
        }
        tcp.write_all(&bytes).await.unwrap();
    }
    while let Some(message) = message_from(&mut tcp).await {
        let last = message.0 == backend::ERROR_RESPONSE || message.1 == [0; 4];
        heard.push(message);
        if last {
            break;
        }
    }
    let mut byte = [0; 1];
    let closed = heard.last().is_none_or(|(tag, _)| *tag == backend::ERROR_RESPONSE)
        && !matches!(tcp.read(&mut byte).await, Ok(1..));
    (heard, closed)
}

fn startup_bytes(user: &str) -> Vec<u8> {
    let mut out = Vec::new();
    startup::put_startup(&mut out, 0, [(&b"user"[..], user.as_bytes()), (b"database", b"app")]);
    out
}

fn ssl_request() -> Vec<u8> {
    let mut out = Vec::new();
    startup::put_ssl_request(&mut out);
    out
}

fn sqlstate(heard: &[(u8, Vec<u8>)]) -> String {
    match heard.last() {
        Some((backend::ERROR_RESPONSE, body)) => {
            String::from_utf8(ErrorFields::new(body).sqlstate().to_vec()).unwrap()
        }
        other => panic!("no error at the end: {other:?}"),
    }
}

/// What a client that says this hears, and how the door took it.
async fn heard(
    door: &Door,
    bytes: Vec<u8>,
    more: Vec<Vec<u8>>,
) -> (Vec<(u8, Vec<u8>)>, bool, Result<Authenticated, LoginError>) {
    let (listener, address) = Door::listen().await;
    let ((heard, closed), seen) = tokio::join!(talk(address, bytes, more), door.take(&listener));
    (heard, closed, seen)
}

#[test]
fn every_message_in_place_of_a_password_is_fatal() {
    block_on(async {
        for method in [AuthType::Plain, AuthType::Md5, AuthType::ScramSha256] {
            let door = Door::new(method, &[("ann", plain("secret"))], &Tls::default());
            for tag in (0..=255u8).filter(|tag| *tag != frontend::PASSWORD) {
                let (heard, closed, seen) =
                    heard(&door, startup_bytes("ann"), vec![message(tag, b"secret\0")]).await;
                assert_eq!(
                    (heard.len(), sqlstate(&heard).as_str(), closed),
                    (2, "08P01", true),
                    "{tag} {method:?}"
                );
                assert!(seen.is_err());
            }
            // A second startup packet, as another user, in the middle of it.
            let (heard, closed, _) = heard(&door, startup_bytes("ann"), vec![startup_bytes("bob")]).await;
            assert_eq!((sqlstate(&heard).as_str(), closed), ("08P01", true), "{method:?}");
        }
    });
}

#[test]
fn messages_of_the_wrong_exchange_or_size() {
    block_on(async {
        let initial = |mechanism: &str, first: &[u8]| {
            let mut out = Vec::new();
            startup::put_sasl_initial(&mut out, mechanism, first);
            out
        };
        let first = || initial("SCRAM-SHA-256", b"n,,n=,r=abcdefgh");
        let too_long = [&[b'p'][..], &65_536u32.to_be_bytes()].concat();
        let two_gib = [&[b'p'][..], &(1u32 << 31).to_be_bytes()].concat();
        let short = [&[b'p'][..], &3u32.to_be_bytes()].concat();
        for (method, what, more, want) in [
            (AuthType::Plain, "no zero", vec![message(b'p', b"secret")], "08P01"),
            (AuthType::Plain, "two passwords", vec![message(b'p', b"secret\0secret\0")], "08P01"),
            (AuthType::Plain, "empty", vec![message(b'p', b"\0")], "28P01"),
            (AuthType::Plain, "not UTF-8", vec![message(b'p', b"\xff\xfe\0")], "28P01"),
            (AuthType::Plain, "too long", vec![too_long.clone()], "08P01"),
            (AuthType::Md5, "2 GiB", vec![two_gib.clone()], "08P01"),
            (AuthType::Md5, "length 3", vec![short], "08P01"),
            (AuthType::Md5, "the password itself", vec![message(b'p', b"secret\0")], "28P01"),
            (AuthType::ScramSha256, "a password", vec![message(b'p', b"secret\0")], "08P01"),
            (
                AuthType::ScramSha256,
                "PLUS was not offered",
                vec![initial("SCRAM-SHA-256-PLUS", b"n,,n=,r=a")],
                "08P01",
            ),
            (AuthType::ScramSha256, "no such mechanism", vec![initial("PLAIN", b"x")], "08P01"),
            (
                AuthType::ScramSha256,
                "authorization identity",
                vec![initial("SCRAM-SHA-256", b"n,a=x,n=,r=a")],
                "0A000",
            ),
            (AuthType::ScramSha256, "extension", vec![initial("SCRAM-SHA-256", b"n,,m=x,n=,r=a")], "0A000"),
            (AuthType::ScramSha256, "empty", vec![initial("SCRAM-SHA-256", b"")], "08P01"),
            (
                AuthType::ScramSha256,
                "final without proof",
                vec![first(), message(b'p', b"c=biws,r=abcdefgh")],
                "08P01",
            ),
            (AuthType::ScramSha256, "first again", vec![first(), first()], "08P01"),
            (AuthType::ScramSha256, "empty final", vec![first(), message(b'p', b"")], "08P01"),
            (AuthType::ScramSha256, "other message", vec![first(), message(b'Q', b"SELECT 1\0")], "08P01"),
            (AuthType::ScramSha256, "too long", vec![first(), too_long], "08P01"),
        ] {
            let door = Door::new(method, &[("ann", plain("secret"))], &Tls::default());
            let (heard, closed, seen) = heard(&door, startup_bytes("ann"), more).await;
            assert_eq!((sqlstate(&heard).as_str(), closed), (want, true), "{what}: {heard:?}");
            assert!(seen.is_err(), "{what}");
        }
    });
}

#[test]
fn a_stranger_hears_what_a_user_with_a_wrong_password_hears() {
    block_on(async {
        for secret in [plain("secret"), stored("t_md5"), stored("t_scram")] {
            for method in [AuthType::Plain, AuthType::Md5, AuthType::ScramSha256] {
                let door = Door::new(method, &[("somebody", secret.clone())], &Tls::default());
                let mut transcripts = Vec::new();
                for user in ["somebody", "stranger"] {
                    let (listener, address) = Door::listen().await;
                    let config = format!(
                        "host=127.0.0.1 port={} user={user} password=wrong dbname=app sslmode=disable",
                        address.port()
                    );
                    let (error, seen) = tokio::join!(
                        tokio_postgres::connect(&config, tokio_postgres::NoTls),
                        door.take(&listener)
                    );
                    let error = error.err().expect("refused");
                    let told = error.as_db_error().expect("told why");
                    let text = told.to_string().replace(user, "who");
                    let Err(LoginError::Refused(seen)) = seen else { panic!("let in") };
                    let stranger = seen.log().is_some_and(|log| log.contains("not in auth_file"));
                    assert_eq!(stranger, user == "stranger", "the log knows");
                    let exchange =
                        door.auth.account_of(&door.settings, user, &Found::NotAsked).exchange(method);
                    transcripts.push((text, told.code().clone(), told.detail().map(str::to_owned), exchange));
                }
                assert_eq!(transcripts[0], transcripts[1], "{secret:?} {method:?}");
                assert_eq!(transcripts[0].1.code(), "28P01");
            }
        }
    });
}

#[test]
fn requests_for_encryption_are_answered_once_and_nothing_may_come_behind_them() {
    block_on(async {
        let gss_request = || [8u32, 1234 << 16 | 5680].map(u32::to_be_bytes).concat();
        for (tls, offered) in [(Tls::default(), false), (own_tls(SslMode::Prefer), true)] {
            let door = Door::new(AuthType::Trust, &[], &tls);
            for (bytes, answered) in [
                ([ssl_request(), startup_bytes("ann")].concat(), !offered),
                ([gss_request(), startup_bytes("ann")].concat(), true),
                ([ssl_request(), vec![0]].concat(), !offered),
            ] {
                let (listener, address) = Door::listen().await;
                let client = async {
                    let mut tcp = TcpStream::connect(address).await.unwrap();
                    tcp.write_all(&bytes).await.unwrap();
                    if answered {
                        assert_eq!(tcp.read_u8().await.unwrap(), b'N');
                    }
                    let heard = [message_from(&mut tcp).await.expect("an error")];
                    assert_eq!(sqlstate(&heard), "08P01");
                    assert!(message_from(&mut tcp).await.is_none());
                };
                let (seen, ()) = tokio::join!(door.take(&listener), client);
                assert!(seen.is_err());
            }
        }
        let door = Door::new(AuthType::Trust, &[], &Tls::default());
        for (requests, good) in [
            (vec![ssl_request()], true),
            (vec![gss_request()], true),
            (vec![gss_request(), ssl_request()], true),
            (vec![ssl_request(), gss_request()], true),
            (vec![ssl_request(), ssl_request()], false),
            (vec![gss_request(), gss_request()], false),
            (vec![gss_request(), ssl_request(), gss_request()], false),
        ] {
            let (listener, address) = Door::listen().await;
            let count = requests.len();
            let client = async {
                let mut tcp = TcpStream::connect(address).await.unwrap();
                for (i, request) in requests.into_iter().enumerate() {
                    tcp.write_all(&request).await.unwrap();
                    let answer = tcp.read_u8().await.unwrap();
                    assert_eq!(answer, if good || i + 1 < count { b'N' } else { b'E' });
                }
                if good {
                    tcp.write_all(&startup_bytes("ann")).await.unwrap();
                    assert_eq!(message_from(&mut tcp).await, Some((b'R', vec![0; 4])));
                }
            };
            let (seen, ()) = tokio::join!(door.take(&listener), client);
            assert_eq!(seen.is_ok(), good, "{:?}", seen.err());
        }
    });
}

/// Without a packet that asks for it, and by a client that would resume its session: the certificate is shown and checked anew.
#[test]
fn over_direct_tls_a_certificate_counts_each_time_and_only_if_an_authority_of_ours_signed_it() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    let config = |shown: Option<&Certs>| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&real().certs.ca).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(certs) => {
                let chain = vec![CertificateDer::from_pem_file(&certs.client_cert).unwrap()];
                let key = PrivateKeyDer::from_pem_file(&certs.client_key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Arc::new(config)
    };
    let others = Certs::new("t_cert");
    block_on(async {
        for sslmode in [SslMode::Allow, SslMode::Prefer, SslMode::Require] {
            let door = Door::new(AuthType::Cert, &[], &own_tls(sslmode));
            for (shown, want) in
                [(Some(&real().certs), Some(b'R')), (None, Some(b'E')), (Some(&others), None)]
            {
                let config = config(shown);
                for _ in 0..2 {
                    let (listener, address) = Door::listen().await;
                    let client = async {
                        let tcp = TcpStream::connect(address).await.unwrap();
                        let name = ServerName::try_from("localhost").unwrap();
                        let tls =
                            tokio_rustls::TlsConnector::from(Arc::clone(&config)).connect(name, tcp).await;
                        let mut tls = tls.ok()?;
                        tls.write_all(&startup_bytes("t_cert")).await.ok()?;
                        Some(message_from(&mut tls).await?.0)
                    };
                    let (seen, answer) = tokio::join!(door.take(&listener), client);
                    assert_eq!(answer, want, "{sslmode:?}");
                    assert_eq!(seen.is_ok(), want == Some(b'R'), "{sslmode:?}");
                }
            }
        }
    });
}

/// Over `tcp` by a client that knows our authority, has no certificate, and offers these protocols.
async fn client_tls(
    tcp: TcpStream,
    alpn: &[&[u8]],
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&real().certs.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

#[test]
fn direct_tls_needs_the_protocols_name() {
    block_on(async {
        for (alpn, offered, want) in [
            (&[&b"postgresql"[..]][..], true, Some(b'R')),
            (&[b"http/1.1", b"postgresql"], true, Some(b'R')),
            (&[], true, Some(b'E')),
            (&[b"http/1.1"], true, None),
            (&[b"postgresql"], false, None),
        ] {
            let tls = if offered { own_tls(SslMode::Require) } else { Tls::default() };
            let door = Door::new(AuthType::Trust, &[], &tls);
            let (listener, address) = Door::listen().await;
            let client = async {
                let tcp = TcpStream::connect(address).await.unwrap();
                let mut tls = client_tls(tcp, alpn).await.ok()?;
                tls.write_all(&startup_bytes("ann")).await.ok()?;
                Some(message_from(&mut tls).await?.0)
            };
            let (seen, answer) = tokio::join!(door.take(&listener), client);
            assert_eq!(answer, want, "{alpn:?}");
            assert_eq!(seen.is_ok(), want == Some(b'R'), "{alpn:?}");
        }
    });
}

#[test]
fn cancel_requests_come_out_whole_also_where_tls_is_required() {
    block_on(async {
        for len in [4, 32, 256] {
            let door = Door::new(AuthType::Trust, &[], &own_tls(SslMode::Require));
            let (listener, address) = Door::listen().await;
            let client = async {
                let mut out = Vec::new();
                startup::put_cancel_request(&mut out, -5, &vec![7; len]);
                let mut tcp = TcpStream::connect(address).await.unwrap();
                tcp.write_all(&out).await.unwrap();
                tcp
            };
            let (opened, _tcp) = tokio::join!(door.open(&listener), client);
            let Ok(Opened::Cancel { pid: -5, key, .. }) = opened else { panic!("{opened:?}") };
            assert_eq!(key[..], vec![7; len]);
        }
    });
}

/// As PostgreSQL does, whose clients they were. Version 0.0 is none of them.
#[test]
fn who_speaks_an_old_version_reads_why_it_is_refused() {
    block_on(async {
        let door = Door::new(AuthType::Trust, &[], &Tls::default());
        for (major, minor) in [(0u16, 1u16), (1, 0), (2, 0), (2, u16::MAX)] {
            let (listener, address) = Door::listen().await;
            let client = async {
                let version = (u32::from(major) << 16 | u32::from(minor)).to_be_bytes();
                let mut tcp = TcpStream::connect(address).await.unwrap();
                tcp.write_all(&[&[0, 0, 0, 12][..], &version, b"ann\0"].concat()).await.unwrap();
                let mut heard = Vec::new();
                tcp.read_to_end(&mut heard).await.unwrap();
                heard
            };
            let (seen, heard) = tokio::join!(door.take(&listener), client);
            let says = format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2");
            assert_eq!(String::from_utf8(heard).unwrap(), format!("EFATAL:  {says}\n\0"));
            assert!(matches!(seen, Err(LoginError::Refused(error)) if error.sqlstate() == "0A000"));
        }
    });
}

#[test]
fn startup_packets_that_lie() {
    block_on(async {
        let door = Door::new(AuthType::Trust, &[], &Tls::default());
        let with = |code: u32, body: &[u8]| {
            [&((body.len() + 8) as u32).to_be_bytes()[..], &code.to_be_bytes(), body].concat()
        };
        let named = |name: &[u8], value: &[u8]| {
            with(3 << 16, &[b"user\0ann\0", name, b"\0", value, b"\0\0"].concat())
        };
        let large = "x".repeat(STARTUP_BYTES_MAX - 30);
        // Who does not even give a length that can be true does not speak the protocol, and is told nothing.
        for (what, bytes) in [
            ("length 0", vec![0; 8]),
            ("length 4", vec![0, 0, 0, 4]),
            ("length 2^31", vec![0x80, 0, 0, 0]),
            ("length 2^32-1", vec![0xff; 4]),
            ("length beyond the bound", (STARTUP_BYTES_MAX as u32 + 1).to_be_bytes().to_vec()),
            ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
            ("a cancel request without a process id", with(80_877_102, b"")),
            ("one without a key", with(80_877_102, &[7; 4])),
            ("one with a short key", with(80_877_102, &[7; 7])),
            ("one with too long a key", with(80_877_102, &[7; 4 + 257])),
        ] {
            let (heard, closed, seen) = heard(&door, bytes, Vec::new()).await;
            assert_eq!((heard.len(), closed), (0, true), "{what}");
            assert!(matches!(seen, Err(LoginError::Refused(error)) if error.sqlstate() == "08P01"), "{what}");
        }
        for (what, bytes, want) in [
            ("protocol 4", with(4 << 16, b"\0"), "0A000"),
            ("nobody", with(3 << 16, b"\0"), "28000"),
            ("no terminator", with(3 << 16, b"user\0ann\0"), "08P01"),
            ("options", named(b"options", b"-c"), "42601"),
            ("replication", named(b"replication", b"xx"), "22023"),
            ("option without a name", named(b"options", b"-c="), "42704"),
            ("not UTF-8", named(b"search_path", b"\xff"), "22021"),
        ] {
            let (heard, closed, seen) = heard(&door, bytes, Vec::new()).await;
            assert_eq!((heard.len(), sqlstate(&heard).as_str(), closed), (1, want, true), "{what}");
            assert!(matches!(seen, Err(LoginError::Refused(error)) if error.sqlstate() == want), "{what}");
        }
        // In PostgreSQL's words.
        let layout = "invalid startup packet layout: expected terminator as last byte";
        for (what, bytes, says) in [
            (
                "protocol 4",
                with(4 << 16, b"\0"),
                "unsupported frontend protocol 4.0: server supports 3.0 to 3.2",
            ),
            ("nothing", with(3 << 16, b""), layout),
            ("no terminator", with(3 << 16, b"user\0ann\0"), layout),
            ("a name that does not end", with(3 << 16, b"user\0ann\0database"), layout),
            ("a name without a value", with(3 << 16, b"user\0ann\0database\0\0"), layout),
            ("something behind the terminator", with(3 << 16, b"user\0ann\0\0x\0"), layout),
        ] {
            let (_, _, seen) = heard(&door, bytes, Vec::new()).await;
            assert!(
                matches!(&seen, Err(LoginError::Refused(error)) if error.message() == says),
                "{what}: {seen:?}"
            );
        }
        let (_, _, seen) = heard(&door, named(b"x", large.as_bytes()), Vec::new()).await;
        assert_eq!(seen.unwrap().startup.param("x").map(str::len), Some(large.len()));
    });
}

#[test]
fn newer_protocols_are_negotiated_before_authentication() {
    block_on(async {
        let door = Door::new(AuthType::ScramSha256, &[("ann", plain("secret"))], &Tls::default());
        let mut bytes = Vec::new();
        startup::put_startup(&mut bytes, 9999, [(&b"user"[..], &b"ann"[..]), (b"_pq_.x", b"1")]);
        let (heard, _, _) = heard(&door, bytes, vec![Vec::new(), message(b'p', b"x")]).await;
        assert_eq!(heard[0], (b'v', b"\0\x03\0\x02\0\0\0\x01_pq_.x\0".to_vec()));
        assert_eq!(heard[1].0, b'R');
        assert!(heard[2..].iter().all(|(tag, _)| *tag != b'v'));
    });
}

#[test]
fn a_client_that_says_nothing_is_told_when_its_time_is_over() {
    block_on(async {
        let mut door = Door::new(AuthType::ScramSha256, &[("ann", plain("secret"))], &Tls::default());
        door.timeout = Duration::from_millis(50);
        for bytes in [Vec::new(), vec![0, 0, 0, 99, 0], startup_bytes("ann")] {
            let (heard, closed, seen) = heard(&door, bytes, Vec::new()).await;
            assert_eq!((sqlstate(&heard).as_str(), closed), ("57014", true));
            assert!(
                matches!(seen, Err(LoginError::Refused(error)) if error.message().contains("client_login_timeout"))
            );
        }
    });
}

#[test]
fn a_client_that_leaves_is_gone_and_not_refused() {
    block_on(async {
        let door = Door::new(AuthType::ScramSha256, &[("ann", plain("secret"))], &Tls::default());
        let startup = startup_bytes("ann");
        for bytes in [&[][..], &startup[..2], &startup[..20], &startup, &ssl_request()] {
            let (listener, address) = Door::listen().await;
            let client = async {
                let mut tcp = TcpStream::connect(address).await.unwrap();
                tcp.write_all(bytes).await.unwrap();
            };
            let (seen, ()) = tokio::join!(door.take(&listener), client);
            assert!(matches!(seen, Err(LoginError::Gone(_))), "{bytes:?}: {seen:?}");
        }
    });
}

#[test]
fn what_a_client_sends_ahead_is_still_there_after_the_login() {
    block_on(async {
        let texts: Vec<Vec<u8>> = [8, 500, 1000, 1100, 5000, 70_000].map(|n| vec![b'x'; n]).into();
        let ahead: Vec<u8> = texts.iter().flat_map(|text| message(b'Q', text)).collect();
        let password = message(b'p', b"secret\0");
        for (auth_type, encrypted) in [
            (AuthType::Trust, false),
            (AuthType::Trust, true),
            (AuthType::Plain, false),
            (AuthType::Plain, true),
        ] {
            let door = Door::new(auth_type, &[("ann", plain("secret"))], &own_tls(SslMode::Prefer));
            let (listener, address) = Door::listen().await;
            let said = if auth_type == AuthType::Plain { &password[..] } else { &[] };
            let all = [&startup_bytes("ann"), said, &ahead].concat();
            let client = async {
                let mut tcp = TcpStream::connect(address).await.unwrap();
                if !encrypted {
                    tcp.write_all(&all).await.unwrap();
                    return (Some(tcp), None);
                }
                tcp.write_all(&ssl_request()).await.unwrap();
                assert_eq!(tcp.read_u8().await.unwrap(), b'S');
                let mut tls = client_tls(tcp, &[]).await.unwrap();
                tls.write_all(&all).await.unwrap();
                tls.flush().await.unwrap();
                (None, Some(tls))
            };
            let server = async {
                let mut seen = door.take(&listener).await.unwrap();
                for text in &texts {
                    assert_eq!(
                        next_message(&mut seen.client).await.expect("a message"),
                        (b'Q', text.clone())
                    );
                }
            };
            let ((), _client) = tokio::join!(server, client);
        }
    });
}
