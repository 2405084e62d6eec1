//! TLS and certificates: what is built from files, and whom a handshake lets in.

use super::*;
use crate::net::Keepalive;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

/// An authority and what it signs, as files.
struct Authority {
    dir: tempfile::TempDir,
    key: KeyPair,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let this = Self { dir: tempfile::tempdir().unwrap(), key, certificate };
        this.write("ca", &this.certificate.pem());
        this
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn ca(&self) -> Option<PathBuf> {
        Some(self.dir.path().join("ca"))
    }

    /// Settings with a certificate for `names` and CN `cn`.
    fn sign(&self, sslmode: SslMode, cn: &str, names: &[&str]) -> Tls {
        self.sign_for(Vec::new(), sslmode, cn, names)
    }

    /// The same, of a key that is for these uses alone; for none that are said: for all.
    fn sign_for(&self, uses: Vec<KeyUsagePurpose>, sslmode: SslMode, cn: &str, names: &[&str]) -> Tls {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, cn);
        params.key_usages = uses;
        let certificate = params.signed_by(&key, &self.certificate, &self.key).unwrap();
        let file = key.serialize_pem().len().to_string() + cn;
        let file = file.replace(['*', '.'], "_");
        Tls {
            sslmode,
            cert_file: Some(self.write(&format!("{file}.crt"), &certificate.pem())),
            key_file: Some(self.write(&format!("{file}.key"), &key.serialize_pem())),
            ca_file: None,
            ..Tls::default()
        }
    }
}

fn connector(sslmode: SslMode, ca_file: Option<PathBuf>) -> Connector {
    Connector::new(&Tls { sslmode, ca_file, ..Tls::default() }).unwrap()
}

/// A handshake between our two halves and a byte each way; both ends.
async fn meet(acceptor: &Acceptor, connector: &Connector, host: &str) -> io::Result<(Stream, Stream)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let dial = async {
        let tcp = TcpStream::connect(listener.local_addr()?).await?;
        let mut stream = connector.connect(host, tcp).await?;
        stream.write_all(b"q").await?;
        stream.flush().await?;
        assert_eq!(stream.read_u8().await?, b'a');
        Ok::<_, io::Error>(stream)
    };
    let take = async {
        let tcp = listener.accept().await?.0;
        let Stream::Tcp(tcp) = Stream::tcp(tcp, &Keepalive::default())? else { unreachable!() };
        let mut stream = acceptor.accept(tcp).await?;
        assert_eq!(stream.read_u8().await?, b'q');
        stream.write_all(b"a").await?;
        stream.flush().await?;
        Ok::<_, io::Error>(stream)
    };
    let (dialed, taken) = tokio::join!(dial, take);
    Ok((dialed?, taken?))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn each_sslmode_checks_what_it_says() {
    let (ours, other) = (Authority::new(), Authority::new());
    let named = Acceptor::new(&ours.sign(SslMode::Require, "x", &["localhost", "127.0.0.1"])).unwrap();
    block_on(async {
        for (sslmode, ca, host, good) in [
            (SslMode::Prefer, None, "elsewhere", true),
            (SslMode::Require, None, "elsewhere", true),
            (SslMode::Require, other.ca(), "elsewhere", true),
            (SslMode::Require, None, "not a name", true),
            (SslMode::VerifyCa, ours.ca(), "elsewhere", true),
            (SslMode::VerifyCa, other.ca(), "localhost", false),
            (SslMode::VerifyFull, ours.ca(), "localhost", true),
            (SslMode::VerifyFull, ours.ca(), "LOCALHOST.", true),
            (SslMode::VerifyFull, ours.ca(), "127.0.0.1", true),
            (SslMode::VerifyFull, ours.ca(), "127.0.0.2", false),
            (SslMode::VerifyFull, ours.ca(), "elsewhere", false),
            (SslMode::VerifyFull, ours.ca(), "x", false),
            (SslMode::VerifyFull, ours.ca(), "not a name", false),
            (SslMode::VerifyFull, other.ca(), "localhost", false),
        ] {
            let met = meet(&named, &connector(sslmode, ca), host).await;
            assert_eq!(met.is_ok(), good, "{sslmode:?} {host}: {:?}", met.err());
        }
    });
}

#[test]
fn without_an_alternative_name_of_the_hosts_kind_the_common_name_counts() {
    let ours = Authority::new();
    let acceptor = |cn: &str, names: &[&str]| Acceptor::new(&ours.sign(SslMode::Require, cn, names)).unwrap();
    let full = connector(SslMode::VerifyFull, ours.ca());
    block_on(async {
        for (cn, names, host, good) in [
            ("db.example.com", &[][..], "db.example.com", true),
            ("DB.example.com", &[], "db.EXAMPLE.com", true),
            ("*.example.com", &[], "db.example.com", true),
            ("*.example.com", &[], "a.db.example.com", false),
            ("*.example.com", &[], "example.com", false),
            ("*.com", &[], "example.com", false),
            ("db.example.com", &[], "example.com", false),
            ("127.0.0.1", &[], "127.0.0.1", true),
            ("127.0.0.1", &[], "127.0.0.2", false),
            ("db.example.com", &["192.0.2.1"], "db.example.com", true),
            ("db.example.com", &["192.0.2.1", "example.com"], "db.example.com", false),
            ("127.0.0.1", &["db.example.com"], "127.0.0.1", true),
            ("127.0.0.1", &["db.example.com", "192.0.2.1"], "127.0.0.1", false),
        ] {
            let met = meet(&acceptor(cn, names), &full, host).await;
            assert_eq!(met.is_ok(), good, "{cn} {names:?} for {host}: {:?}", met.err());
        }
    });
}

/// Certificates that signed themselves, as PostgreSQL's manual begins with, whether they may sign others or not.
#[test]
fn a_certificate_that_is_in_the_file_itself_is_trusted_while_it_is_valid() {
    let ours = Authority::new();
    let own = |name: &str, is_ca, until: i32| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = is_ca;
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        let cert_file = Some(ours.write(&format!("{name}.crt"), &certificate.pem()));
        let key_file = Some(ours.write(&format!("{name}.key"), &key.serialize_pem()));
        Tls { sslmode: SslMode::Require, cert_file, key_file, ..Tls::default() }
    };
    let authority = || IsCa::Ca(BasicConstraints::Unconstrained);
    let (signs, leaf) = (own("signs", authority(), 4096), own("leaf", IsCa::NoCa, 4096));
    let (like_it, over) = (own("like_it", authority(), 4096), own("over", authority(), 2001));
    block_on(async {
        use SslMode::{VerifyCa, VerifyFull};
        for (shown, trusted, sslmode, host, good) in [
            (&signs, &signs, VerifyCa, "elsewhere", true),
            (&signs, &signs, VerifyFull, "localhost", true),
            (&signs, &signs, VerifyFull, "elsewhere", false),
            (&leaf, &leaf, VerifyFull, "localhost", true),
            (&leaf, &leaf, VerifyFull, "elsewhere", false),
            (&like_it, &signs, VerifyCa, "localhost", false),
            (&over, &over, VerifyCa, "localhost", false),
        ] {
            let connector = connector(sslmode, trusted.cert_file.clone());
            let met = meet(&Acceptor::new(shown).unwrap(), &connector, host).await;
            assert_eq!(met.is_ok(), good, "{shown:?} {sslmode:?} {host}: {:?}", met.err());
        }
    });
}

#[test]
fn both_sides_see_the_same_binding_data_and_the_protocol_name() {
    let ours = Authority::new();
    let acceptor = Acceptor::new(&ours.sign(SslMode::Require, "x", &["localhost"])).unwrap();
    block_on(async {
        let (dialed, taken) = meet(&acceptor, &connector(SslMode::Require, None), "localhost").await.unwrap();
        let seen = end_point(&dialed.peer_certificates().unwrap()[0]).unwrap();
        assert_eq!((seen.len(), Some(seen.as_slice())), (32, acceptor.end_point()));
        assert_eq!((dialed.alpn(), taken.alpn()), (Some(ALPN), Some(ALPN)));
        assert!(dialed.is_tls() && taken.is_tls() && taken.peer_certificates().is_none());
        assert_eq!(dialed.addrs().map(|(a, b)| (b, a)), taken.addrs());
    });
}

/// Exactly these are what rustls has, and nothing is chosen that is not among them.
#[test]
fn chosen_ciphers_come_in_their_order() {
    let names = |tls: &Tls| -> Vec<_> {
        chosen(tls).cipher_suites.iter().filter_map(|suite| suite.suite().as_str()).collect()
    };
    let all = names(&Tls::default());
    let (older, newer): (Vec<_>, Vec<_>) = all.iter().partition(|name| name.starts_with("TLS_"));
    let reversed: Vec<&'static str> = older.iter().rev().copied().collect();
    let tls = Tls { ciphers: reversed.clone(), tls13_ciphers: vec![newer[1]], ..Tls::default() };
    assert_eq!(names(&tls), [&[newer[1]][..], &reversed[..]].concat());
    assert_eq!((older.len(), newer.len()), (6, 3));
}

#[test]
fn ends_without_a_common_version_or_cipher_do_not_meet() {
    let ours = Authority::new();
    let identity = ours.sign(SslMode::Require, "x", &["localhost"]);
    let aes = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    let chacha = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    let with = |base: &Tls, protocols, cipher: &'static str| {
        let sslmode = SslMode::Require;
        Tls { sslmode, protocols, ciphers: vec![cipher], ..base.clone() }
    };
    block_on(async {
        use TlsProtocols::{Both, Tls12, Tls13};
        for (client, server, good) in [
            ((Both, aes), (Both, chacha), true),
            ((Tls12, aes), (Both, aes), true),
            ((Tls13, aes), (Tls12, aes), false),
            ((Tls12, aes), (Tls13, aes), false),
            ((Tls12, aes), (Both, chacha), false),
        ] {
            let acceptor = Acceptor::new(&with(&identity, server.0, server.1)).unwrap();
            let connector = Connector::new(&with(&Tls::default(), client.0, client.1)).unwrap();
            let met = meet(&acceptor, &connector, "localhost").await;
            assert_eq!(met.is_ok(), good, "{client:?} {server:?}: {:?}", met.err());
        }
    });
}

#[test]
fn client_certificates_are_asked_for_checked_and_read() {
    let (ours, other) = (Authority::new(), Authority::new());
    let dial = |from: Option<&Authority>| {
        let mut tls = from.map_or_else(Tls::default, |a| a.sign(SslMode::Require, "ann", &[]));
        tls.sslmode = SslMode::Require;
        Connector::new(&tls).unwrap()
    };
    block_on(async {
        for (sslmode, from, good, cn) in [
            (SslMode::Require, None, true, None),
            (SslMode::Require, Some(&ours), true, Some("ann")),
            (SslMode::Require, Some(&other), false, None),
            (SslMode::VerifyCa, None, false, None),
            (SslMode::VerifyCa, Some(&ours), true, Some("ann")),
            (SslMode::VerifyFull, Some(&other), false, None),
            (SslMode::VerifyFull, Some(&ours), true, Some("ann")),
        ] {
            let tls = Tls { ca_file: ours.ca(), ..ours.sign(sslmode, "server", &["localhost"]) };
            let met = meet(&Acceptor::new(&tls).unwrap(), &dial(from), "localhost").await;
            assert_eq!(met.is_ok(), good, "{sslmode:?}: {:?}", met.as_ref().err());
            let name = met.ok().and_then(|(_, taken)| common_name(taken.peer_certificates()?.first()?));
            assert_eq!(name.as_deref(), cn, "{sslmode:?}");
        }
    });
}

#[test]
fn files_that_hold_something_else_are_seen_whatever_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let of = |ca: &str, cert: &str| {
        digest(&Tls { ca_file: file("ca", ca), cert_file: file("cert", cert), ..Tls::default() })
    };
    let first = of("one", "two");
    assert_eq!(first, of("one", "two"));
    assert_eq!(
        first,
        digest(&Tls { ca_file: file("other", "one"), cert_file: file("cert", "two"), ..Tls::default() })
    );
    for (ca, cert) in [("one", "too"), ("ones", "two"), ("onet", "wo"), ("", "onetwo"), ("two", "one")] {
        assert_ne!(first, of(ca, cert), "{ca} {cert}");
    }
}

/// What OpenSSL asks of each side.
#[test]
fn a_certificate_whose_key_is_for_something_else_is_none() {
    use KeyUsagePurpose::{CrlSign, DigitalSignature, KeyAgreement, KeyCertSign, KeyEncipherment};
    let ours = Authority::new();
    for (uses, good_for_clients, good_for_servers) in [
        (vec![], true, true),
        (vec![DigitalSignature], true, true),
        (vec![KeyAgreement], true, true),
        (vec![KeyCertSign, DigitalSignature], true, true),
        (vec![KeyEncipherment], false, true),
        (vec![KeyCertSign], false, false),
        (vec![CrlSign], false, false),
    ] {
        // Without a name rcgen writes no extension.
        let of_client = ours.sign_for(uses.clone(), SslMode::Require, "ann", &["ann"]);
        let of_server = ours.sign_for(uses.clone(), SslMode::Require, "server", &["localhost"]);
        let plain = ours.sign(SslMode::Require, "plain", &["localhost"]);
        let asks = Acceptor::new(&Tls { ca_file: ours.ca(), ..plain }).unwrap();
        let met = block_on(meet(&asks, &Connector::new(&of_client).unwrap(), "localhost"));
        assert_eq!(met.is_ok(), good_for_clients, "{uses:?}: {:?}", met.err());
        let checks = connector(SslMode::VerifyCa, ours.ca());
        let met = block_on(meet(&Acceptor::new(&of_server).unwrap(), &checks, "localhost"));
        assert_eq!(met.is_ok(), good_for_servers, "{uses:?}: {:?}", met.err());
    }
}

#[test]
fn of_several_common_names_the_first_is_the_user() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "first");
    params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "last");
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    assert_eq!(common_name(certificate.der()).as_deref(), Some("first"));
}

/// Who reads it up to the zero would take it for another's.
#[test]
fn a_common_name_with_a_zero_inside_is_nobodys() {
    for (name, whose) in
        [("ann", Some("ann")), ("ann\0.example", None), ("ann\0", None), ("\0", None), ("", None)]
    {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(common_name(certificate.der()).as_deref(), whose, "{name:?}");
    }
}

/// What a certificate says is checked each time.
#[test]
fn no_session_is_resumed() {
    let ours = Authority::new();
    for protocols in [TlsProtocols::Tls12, TlsProtocols::Tls13] {
        let tls = Tls { protocols, ..ours.sign(SslMode::Require, "x", &["localhost"]) };
        let (acceptor, connector) = (Acceptor::new(&tls).unwrap(), connector(SslMode::Require, None));
        block_on(async {
            for _ in 0..2 {
                let (dialed, _taken) = meet(&acceptor, &connector, "localhost").await.unwrap();
                let Stream::Tls(tls) = dialed else { unreachable!() };
                assert_eq!(tls.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
            }
        });
    }
}

/// libpq takes in one record at a time, as far as it has room, and who waits for the socket does not hear of the rest.
#[test]
fn a_client_has_room_for_each_record() {
    let ours = Authority::new();
    for protocols in [TlsProtocols::Tls12, TlsProtocols::Tls13] {
        let tls = Tls { protocols, ..ours.sign(SslMode::Require, "x", &["localhost"]) };
        let (acceptor, connector) = (Acceptor::new(&tls).unwrap(), connector(SslMode::Require, None));
        let told = block_on(async {
            let (dialed, mut taken) = meet(&acceptor, &connector, "localhost").await.unwrap();
            taken.write_all(&[b'x'; 40_000]).await.unwrap();
            taken.flush().await.unwrap();
            records(dialed, 40_000).await
        });
        assert!(told.iter().all(|&bytes| bytes <= TLS_RECORD_BYTES_MAX), "{told:?}");
        assert_eq!(told.len(), 5, "{told:?}");
    }
}

/// What each record holds that comes, until they are so many bytes.
async fn records(stream: Stream, bytes: usize) -> Vec<usize> {
    let Stream::Tls(tls) = stream else { unreachable!() };
    let tokio_rustls::TlsStream::Client(tls) = *tls else { unreachable!() };
    let (mut tcp, mut tls) = tls.into_inner();
    let mut told = Vec::new();
    while told.iter().sum::<usize>() < bytes {
        let mut record = vec![0; RECORD_HEAD_BYTES];
        tcp.read_exact(&mut record).await.unwrap();
        let rest = u16::from_be_bytes([record[3], record[4]]);
        record.resize(RECORD_HEAD_BYTES + usize::from(rest), 0);
        tcp.read_exact(&mut record[RECORD_HEAD_BYTES..]).await.unwrap();
        let mut record = &record[..];
        while !record.is_empty() {
            tls.read_tls(&mut record).unwrap();
        }
        let held = tls.process_new_packets().unwrap().plaintext_bytes_to_read();
        io::Read::read_exact(&mut tls.reader(), &mut vec![0; held]).unwrap();
        told.push(held);
    }
    told
}

/// The values that follow each other in `der`, with their heads.
fn values(mut der: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let [_, length, rest @ ..] = der {
        let more = if *length < 0x80 { 0 } else { usize::from(*length & 0x7f) };
        let long = rest[..more].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (value, behind) = der.split_at(2 + more + if more == 0 { usize::from(*length) } else { long });
        found.push(value);
        der = behind;
    }
    found
}

fn inside(value: &[u8]) -> &[u8] {
    &value[2 + if value[1] < 0x80 { 0 } else { usize::from(value[1] & 0x7f) }..]
}

fn sequence(values: &[&[u8]]) -> Vec<u8> {
    let body = values.concat();
    let length = (body.len() as u16).to_be_bytes();
    let head: &[u8] = match length {
        [0, short @ ..0x80] => &[0x30, short],
        [0, long] => &[0x30, 0x81, long],
        [high, low] => &[0x30, 0x82, high, low],
    };
    [head, &body].concat()
}

/// As the first version of X.509 had it: without a version and without extensions. Its signature is not looked at here.
fn of_version_1(pem: &str) -> String {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let parts = values(inside(&certificate));
    let signed = values(inside(parts[0])).into_iter().filter(|value| value[0] & 0xf0 != 0xa0);
    let signed = sequence(&signed.collect::<Vec<_>>());
    let der = sequence(&[&signed, parts[1], parts[2]]);
    assert_eq!(X509Certificate::from_der(&der).unwrap().1.version(), X509Version::V1);
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

#[test]
fn a_certificate_of_version_1_is_shown_like_any_other() {
    let ours = Authority::new();
    let old = |cn: &str| {
        let tls = ours.sign(SslMode::Require, cn, &["localhost"]);
        let file = tls.cert_file.clone().unwrap();
        std::fs::write(&file, of_version_1(&std::fs::read_to_string(&file).unwrap())).unwrap();
        tls
    };
    let (server, other) = (old("server"), old("other"));
    let connector = Connector::new(&old("client")).unwrap();
    let (dialed, _taken) = block_on(meet(&Acceptor::new(&server).unwrap(), &connector, "localhost")).unwrap();
    assert_eq!(common_name(&dialed.peer_certificates().unwrap()[0]).as_deref(), Some("server"));
    let mixed = Tls { key_file: other.key_file, ..server };
    let error = Acceptor::new(&mixed).expect_err("another's key");
    assert!(
        error.setting == "client_tls_key_file" && error.what.contains("not the key of the certificate"),
        "{error}"
    );
}

#[test]
fn errors_name_the_setting_and_the_file() {
    let ours = Authority::new();
    let good = ours.sign(SslMode::Require, "x", &[]);
    let empty = ours.write("empty", "");
    let garbage = ours.write("garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let missing = ours.dir.path().join("missing");
    let with = |change: &dyn Fn(&mut Tls)| {
        let mut tls = good.clone();
        change(&mut tls);
        tls
    };
    for (tls, setting, file) in [
        (with(&|t| t.cert_file = None), "cert_file", None),
        (with(&|t| t.key_file = None), "key_file", None),
        (with(&|t| t.cert_file = Some(missing.clone())), "cert_file", Some(&missing)),
        (with(&|t| t.cert_file = Some(empty.clone())), "cert_file", Some(&empty)),
        (with(&|t| t.cert_file = Some(garbage.clone())), "key_file", good.key_file.as_ref()),
        (with(&|t| t.key_file = Some(empty.clone())), "key_file", Some(&empty)),
        (with(&|t| t.ca_file = Some(missing.clone())), "ca_file", Some(&missing)),
        (with(&|t| t.ca_file = Some(empty.clone())), "ca_file", Some(&empty)),
        (with(&|t| t.sslmode = SslMode::VerifyCa), "ca_file", None),
    ] {
        let error = Acceptor::new(&tls).expect_err(setting);
        assert_eq!(error.setting, format!("client_tls_{setting}"));
        assert_eq!(error.file.as_ref(), file, "{error}");
    }
    let tls = Tls { sslmode: SslMode::VerifyCa, ca_file: Some(garbage.clone()), ..Tls::default() };
    let error = Connector::new(&tls).expect_err("garbage");
    assert_eq!((error.setting.as_str(), error.file), ("server_tls_ca_file", Some(garbage)));
}

#[test]
fn a_file_that_breaks_off_is_not_used_and_told() {
    let ours = Authority::new();
    let good = ours.sign(SslMode::Require, "x", &["localhost"]);
    let ca = ours.ca();
    let (cert, key) = (good.cert_file.as_deref().unwrap(), good.key_file.as_deref().unwrap());
    for (file, what) in [(cert, "CERTIFICATE"), (key, "PRIVATE KEY"), (ca.as_deref().unwrap(), "CERTIFICATE")]
    {
        let whole = std::fs::read_to_string(file).unwrap();
        // From there on it may be whole, but for the end of its last line.
        let end = whole.rfind("-----END").unwrap();
        for cut in [0, 5, 27, 40, whole.len() / 2, end - 1, end, end + 9] {
            std::fs::write(file, &whole[..cut]).unwrap();
            let tls = Tls { ca_file: ca.clone(), ..good.clone() };
            let error = Acceptor::new(&tls).expect_err(what).to_string();
            assert!(
                cut < 40 || error.contains(&format!("it breaks off before the end of a {what}")),
                "{error}"
            );
        }
        std::fs::write(file, whole).unwrap();
    }
    assert!(Acceptor::new(&Tls { ca_file: ca, ..good }).is_ok());
}

#[test]
fn disable_needs_no_files() {
    let acceptor = Acceptor::new(&Tls { cert_file: Some("/nowhere".into()), ..Tls::default() }).unwrap();
    assert!(!acceptor.offers() && !acceptor.requires());
    assert_eq!(connector(SslMode::Disable, None).sslmode(), SslMode::Disable);
}
