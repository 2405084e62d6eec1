//! `ldap`: who gets in is a directory's word. The directory here is a small one of ours, which notes what it is asked.

use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use ldap3_proto::LdapCodec;
use ldap3_proto::proto::{
    LdapBindCred, LdapBindResponse, LdapExtendedResponse, LdapFilter, LdapMsg, LdapOp, LdapResult,
    LdapResultCode, LdapSearchResultEntry,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::codec::{Decoder, Encoder};

use crate::support;
use support::{Certs, PATIENCE, Postgres, Proxy, client_command, poll};

/// Entries: name, `uid`, password. Two of one `uid` are twins.
const ENTRIES: [(&str, &str, &str); 5] = [
    ("uid=ann,ou=people,dc=x", "ann", "open sesame"),
    ("uid=twin,ou=people,dc=x", "twin", "same"),
    ("uid=twin,ou=robots,dc=x", "twin", "same"),
    ("ann@corp", "", "open sesame"),
    ("cn=pg,dc=x", "", "look, for: \"me\""),
];

/// How a directory speaks.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Clear,
    /// From the first byte.
    Tls,
    /// After StartTLS; `true`: with a word in clear behind its answer.
    StartTls(bool),
    /// Whatever it hears, it says this, and then, `true`: closes.
    Says(&'static [u8], bool),
}

/// A directory on a thread of its own, which ends with the test's process.
struct Directory {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Directory {
    fn start(way: Way, certs: Option<&Certs>) -> Self {
        Self::start_at("127.0.0.1:0", way, certs)
    }

    fn start_at(address: &str, way: Way, certs: Option<&Certs>) -> Self {
        let listener = std::net::TcpListener::bind(address).expect("bind");
        listener.set_nonblocking(true).expect("non-blocking");
        let port = listener.local_addr().expect("address").port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (notes, tls) = (Arc::clone(&heard), certs.map(acceptor));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("listener");
                loop {
                    let (tcp, _) = listener.accept().await.expect("accept");
                    tokio::spawn(serve(tcp, way, tls.clone(), Arc::clone(&notes)));
                }
            });
        });
        Self { port, heard }
    }

    /// What it was asked since the last look.
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().expect("notes"))
    }
}

fn acceptor(certs: &Certs) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = CertificateDer::pem_file_iter(&certs.server_cert).expect("certificate");
    let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificate");
    let key = PrivateKeyDer::from_pem_file(&certs.server_key).expect("key");
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_no_client_auth().with_single_cert(chain, key);
    TlsAcceptor::from(Arc::new(config.expect("TLS")))
}

async fn serve(mut tcp: TcpStream, way: Way, tls: Option<TlsAcceptor>, notes: Arc<Mutex<Vec<String>>>) {
    let tls = tls.as_ref();
    match way {
        Way::Clear => talk(&mut tcp, false, &notes).await,
        Way::Says(words, closes) => {
            let mut sink = [0; 1024];
            while matches!(tcp.read(&mut sink).await, Ok(1..)) {
                if tcp.write_all(words).await.is_err() || closes {
                    return;
                }
            }
        }
        Way::Tls => {
            // A client that does not trust it is gone before.
            if let Ok(mut stream) = tls.expect("certificates").accept(tcp).await {
                talk(&mut stream, true, &notes).await;
            }
        }
        Way::StartTls(injects) => {
            let Some(asked) = next(&mut tcp, &mut BytesMut::new()).await else { return };
            let LdapOp::ExtendedRequest(request) = asked.op else { return };
            assert_eq!(request.name, "1.3.6.1.4.1.1466.20037");
            let response =
                LdapExtendedResponse { res: result(LdapResultCode::Success), name: None, value: None };
            let mut out = encoded(asked.msgid, LdapOp::ExtendedResponse(response));
            if injects {
                // An answer to the Bind that is to come.
                out.extend(encoded(1, bind_response(LdapResultCode::Success)));
            }
            tcp.write_all(&out).await.expect("send");
            if let Ok(mut stream) = tls.expect("certificates").accept(tcp).await {
                talk(&mut stream, true, &notes).await;
            }
        }
    }
}

fn result(code: LdapResultCode) -> LdapResult {
    LdapResult { code, matcheddn: String::new(), message: "because".into(), referral: Vec::new() }
}

fn bind_response(code: LdapResultCode) -> LdapOp {
    LdapOp::BindResponse(LdapBindResponse { res: result(code), saslcreds: None })
}

fn encoded(msgid: i32, op: LdapOp) -> Vec<u8> {
    let mut out = BytesMut::new();
    LdapCodec::default().encode(LdapMsg { msgid, op, ctrl: Vec::new() }, &mut out).expect("encode");
    out.to_vec()
}

async fn next(stream: &mut (impl AsyncRead + Unpin), unread: &mut BytesMut) -> Option<LdapMsg> {
    loop {
        if let Some(message) = LdapCodec::default().decode(unread).expect("a message") {
            return Some(message);
        }
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
}

/// Binds and searches, until the client leaves.
async fn talk(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), tls: bool, notes: &Mutex<Vec<String>>) {
    let mut unread = BytesMut::new();
    while let Some(LdapMsg { msgid, op, .. }) = next(stream, &mut unread).await {
        let note =
            |what: String| notes.lock().expect("notes").push(if tls { format!("tls {what}") } else { what });
        let mut answers = Vec::new();
        match op {
            LdapOp::BindRequest(request) => {
                note(format!("bind {:?}", request.dn));
                let LdapBindCred::Simple(password) = request.cred else { panic!("another bind") };
                // As directories do: without a name or a password it is nobody's, and a success.
                let right = password.is_empty()
                    || ENTRIES
                        .iter()
                        .any(|(name, _, own)| name.eq_ignore_ascii_case(&request.dn) && *own == password);
                answers.push(bind_response(match right {
                    true => LdapResultCode::Success,
                    false => LdapResultCode::InvalidCredentials,
                }));
            }
            LdapOp::SearchRequest(request) => {
                note(format!("search {:?}", request.base));
                let fits = |(name, uid, _): &&(&str, &str, &str)| {
                    name.ends_with(&request.base) && is_met(&request.filter, uid)
                };
                let entry = |(name, ..): &(&str, &str, &str)| {
                    LdapOp::SearchResultEntry(LdapSearchResultEntry {
                        dn: (*name).into(),
                        attributes: Vec::new(),
                    })
                };
                answers.extend(ENTRIES.iter().filter(fits).map(entry));
                answers.push(LdapOp::SearchResultDone(result(LdapResultCode::Success)));
            }
            LdapOp::UnbindRequest => return,
            other => panic!("{other:?}"),
        }
        let out: Vec<u8> = answers.into_iter().flat_map(|op| encoded(msgid, op)).collect();
        if stream.write_all(&out).await.and(stream.flush().await).is_err() {
            return;
        }
    }
}

fn is_met(filter: &LdapFilter, uid: &str) -> bool {
    match filter {
        LdapFilter::And(all) => all.iter().all(|filter| is_met(filter, uid)),
        LdapFilter::Or(all) => all.iter().any(|filter| is_met(filter, uid)),
        LdapFilter::Present(attribute) => attribute == "uid" && !uid.is_empty(),
        LdapFilter::Equality(attribute, value) => attribute == "uid" && value.eq_ignore_ascii_case(uid),
        other => panic!("{other:?}"),
    }
}

/// A proxy whose users a directory knows; every user of it is `postgres` on the server.
fn config(general: &str) -> String {
    Proxy::config(Postgres::shared(), general, "user = \"postgres\"", "")
}

fn options(options: &str) -> String {
    config(&format!("auth_type = \"ldap\"\nauth_ldap_options = '{options}'"))
}

fn enter(proxy: &Proxy, user: &str, password: &str) -> Result<(), String> {
    let mut psql = client_command("psql");
    psql.env("PGPASSWORD", password).env("PGHOST", "127.0.0.1").env("PGPORT", proxy.port().to_string());
    let output = psql.args(["-XAtc", "SELECT 'in'", "-U", user, "-d", "postgres"]).output().expect("psql");
    match String::from_utf8_lossy(&output.stdout).trim() {
        "in" => Ok(()),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// What governs a login must not change while it is under way.
fn reload(proxy: &Proxy, config: &str) {
    let count = || proxy.log().matches("configuration reloaded").count();
    let before = count();
    proxy.reload(config);
    assert!(poll(PATIENCE, || (count() > before).then_some(())).is_some(), "no reload in:\n{}", proxy.log());
}

/// It is refused with PostgreSQL's words, and the log says why.
fn refused(proxy: &Proxy, user: &str, password: &str, why: &str) {
    let said = enter(proxy, user, password).expect_err(user);
    assert!(said.contains(&format!("LDAP authentication failed for user \"{user}\"")), "{user}: {said}");
    proxy.wait_for_log(why);
}

#[test]
fn a_name_is_made_of_the_users() {
    let directory = Directory::start(Way::Clear, None);
    let text = format!(
        r#"ldapserver="nowhere.invalid 127.0.0.1" ldapport={} ldapprefix="uid=" ldapsuffix=",ou=people,dc=x""#,
        directory.port
    );
    let proxy = Proxy::start(&options(&text));
    assert_eq!(enter(&proxy, "ann", "open sesame"), Ok(()));
    assert_eq!(directory.heard(), [r#"bind "uid=ann,ou=people,dc=x""#]);
    refused(&proxy, "ann", "open", "invalidCredentials");
    refused(&proxy, "bob", "open sesame", "invalidCredentials");
    directory.heard();
    // Nobody is asked about these: the name would be another entry's, the password proves nothing.
    refused(&proxy, "ann,ou=people,dc=x", "open sesame", "the user's name holds");
    let said = support::Raw::login_as(proxy.port(), &[("user", "ann"), ("database", "postgres")], "");
    let said = said.err().expect("no password lets nobody in");
    assert_eq!(
        (said.sqlstate().as_str(), said.field(b'M').as_str()),
        ("28P01", "empty password returned by client")
    );
    assert!(directory.heard().is_empty());
    // What suits a name without attributes, as Active Directory's.
    reload(&proxy, &options(&format!("ldapserver=127.0.0.1 ldapport={} ldapsuffix=@corp", directory.port)));
    assert_eq!(enter(&proxy, "ann", "open sesame"), Ok(()));
    assert_eq!(directory.heard(), [r#"bind "ann@corp""#]);
}

#[test]
fn a_name_is_searched_for() {
    let directory = Directory::start(Way::Clear, None);
    let text = |rest: &str| format!("ldapserver=127.0.0.1 ldapport={} {rest}", directory.port);
    let looker = r#"ldapbinddn="cn=pg,dc=x" ldapbindpasswd="look, for: ""me""""#;
    let proxy = Proxy::start(&options(&text(&format!(r#"ldapbasedn="dc=x" {looker}"#))));
    assert_eq!(enter(&proxy, "ann", "open sesame"), Ok(()));
    assert_eq!(
        directory.heard(),
        [r#"bind "cn=pg,dc=x""#, r#"search "dc=x""#, r#"bind "uid=ann,ou=people,dc=x""#]
    );
    refused(&proxy, "ann", "same", "invalidCredentials");
    refused(&proxy, "twin", "same", "more than one entry");
    refused(&proxy, "bob", "same", "the search finds no entry");
    refused(&proxy, "*", "open sesame", "means something in a search filter");
    // The narrower base has one of the twins. As nobody in particular, by an URL.
    let url = format!(
        r#"ldapurl="ldap://127.0.0.1:{}/ou=robots,dc=x??sub?(&(uid=*)(uid=$username))""#,
        directory.port
    );
    reload(&proxy, &options(&url));
    directory.heard();
    assert_eq!(enter(&proxy, "twin", "same"), Ok(()));
    assert_eq!(
        directory.heard(),
        [r#"bind """#, r#"search "ou=robots,dc=x""#, r#"bind "uid=twin,ou=robots,dc=x""#]
    );
    refused(&proxy, "ann", "open sesame", "the search finds no entry");
    // Who looks must be let look.
    reload(&proxy, &options(&text(r#"ldapbasedn="dc=x" ldapbinddn="cn=pg,dc=x" ldapbindpasswd=wrong"#)));
    refused(&proxy, "ann", "open sesame", "ldapbinddn: the directory says invalidCredentials");
}

#[test]
fn whom_the_directory_takes_for_a_user_with_rules_is_not_let_in() {
    let directory = Directory::start(Way::Clear, None);
    let text = format!(
        r#"auth_type = "ldap"
auth_ldap_options = 'ldapserver=127.0.0.1 ldapport={} ldapprefix="uid=" ldapsuffix=",ou=people,dc=x"'"#,
        directory.port
    );
    let without = config(&text);
    let proxy = Proxy::start(&without);
    assert_eq!(enter(&proxy, "ANN", "open sesame"), Ok(()));
    reload(&proxy, &format!("{without}\n[users.ann]\n[users.ann.policy]\nstatements = \"read_only\"\n"));
    refused(&proxy, "ANN", "open sesame", "the directory may take this name for");
    assert_eq!(enter(&proxy, "ann", "open sesame"), Ok(()));
    // Who has a section of its own is under its own rules.
    reload(&proxy, &format!("{without}\n[users.ann]\npool_size = 1\n[users.ANN]\npool_size = 1\n"));
    assert_eq!(enter(&proxy, "ANN", "open sesame"), Ok(()));
}

#[test]
fn a_rule_has_its_own_directory_and_secrets_stay_with_the_others() {
    let directory = Directory::start(Way::Clear, None);
    let rules = format!(
        "host all ann all ldap ldapserver=127.0.0.1 ldapport={} ldapprefix=\"uid=\" ldapsuffix=\",ou=people,dc=x\"\n\
         host all all all md5\n",
        directory.port
    );
    let general = "auth_type = \"hba\"\nauth_hba_file = \"hba\"\nauth_file = \"users\"";
    let files = [("hba", rules.as_str()), ("users", "\"bob\" \"builder\"\n\"ann\" \"of the file\"\n")];
    let proxy = Proxy::start_with(&config(general), &files);
    assert_eq!(enter(&proxy, "ann", "open sesame"), Ok(()));
    assert_eq!(enter(&proxy, "bob", "builder"), Ok(()));
    refused(&proxy, "ann", "of the file", "invalidCredentials");
    let said = enter(&proxy, "bob", "open sesame").expect_err("bob");
    assert!(said.contains("password authentication failed for user \"bob\""), "{said}");
}

#[test]
fn tls_is_checked_against_what_the_machine_trusts() {
    let certs = Certs::new("postgres");
    let made = r#"ldapprefix="uid=" ldapsuffix=",ou=people,dc=x""#;
    for (way, how) in [(Way::Tls, "ldapscheme=ldaps"), (Way::StartTls(false), "ldaptls=1")] {
        let directory = Directory::start(way, Some(&certs));
        let of = |host: &str, port| options(&format!("ldapserver={host} ldapport={port} {how} {made}"));
        let proxy = Proxy::start_trusting(&certs.ca, &of("localhost", directory.port), &[]);
        assert_eq!(enter(&proxy, "ann", "open sesame"), Ok(()));
        assert_eq!(directory.heard(), [r#"tls bind "uid=ann,ou=people,dc=x""#]);
        refused(&proxy, "ann", "open", "invalidCredentials");
        directory.heard();
        // Another name than its certificate's, an authority that nobody knows: no password is sent.
        let elsewhere = Directory::start_at("127.0.0.2:0", way, Some(&certs));
        reload(&proxy, &of("127.0.0.2", elsewhere.port));
        refused(&proxy, "ann", "open sesame", "TLS: ");
        let stranger = Certs::new("postgres");
        let proxy = Proxy::start_trusting(&stranger.ca, &of("localhost", directory.port), &[]);
        refused(&proxy, "ann", "open sesame", "TLS: ");
        assert!(directory.heard().is_empty() && elsewhere.heard().is_empty());
    }
    let directory = Directory::start(Way::StartTls(true), Some(&certs));
    let text = options(&format!("ldapserver=localhost ldapport={} ldaptls=1 {made}", directory.port));
    let proxy = Proxy::start_trusting(&certs.ca, &text, &[]);
    refused(&proxy, "ann", "wrong", "in clear behind its answer to StartTLS");
}

#[test]
fn whatever_a_directory_says_nobody_gets_in_by_it() {
    // A Bind's answer of success with another number, one that is cut off, an announced gigabyte, no BER at all, silence.
    let words: [(&'static [u8], bool); 5] = [
        (b"\x30\x0c\x02\x01\x07\x61\x07\x0a\x01\x00\x04\x00\x04\x00", true),
        (b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01", true),
        (b"\x30\x84\x40\x00\x00\x00\x02\x01\x01", true),
        (&[0xff; 96 << 10], false),
        (b"", true),
    ];
    for (words, closes) in words {
        let directory = Directory::start(Way::Says(words, closes), None);
        let text = format!("ldapserver=127.0.0.1 ldapport={} ldapprefix=a ldapsuffix=b", directory.port);
        let proxy = Proxy::start(&options(&text));
        refused(&proxy, "ann", "open sesame", "LDAP authentication failed");
        refused(&proxy, "bob", "open sesame", "LDAP authentication failed");
    }
    // The very answer that is right lets in: the others are refused for what they are.
    let right = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
    let directory = Directory::start(Way::Says(right, true), None);
    let text = format!("ldapserver=127.0.0.1 ldapport={} ldapprefix=a ldapsuffix=b", directory.port);
    assert_eq!(enter(&Proxy::start(&options(&text)), "ann", "open sesame"), Ok(()));
}
