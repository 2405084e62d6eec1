//! Certificates for one test: an authority, a server's and a client's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// PEM files in a directory that lives as long as any clone of this.
#[derive(Debug, Clone)]
pub struct Certs {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// For `localhost` and 127.0.0.1.
    pub server_cert: PathBuf,
    /// Its key.
    pub server_key: PathBuf,
    /// CN is the user that was asked for.
    pub client_cert: PathBuf,
    /// Its key.
    pub client_key: PathBuf,
    dir: Arc<tempfile::TempDir>,
}

impl Certs {
    /// A new authority, a server certificate for localhost, a client certificate for `user`.
    pub fn new(user: &str) -> Self {
        // Under the target directory: a shared server's certificates are not removed when the test ends.
        let dir = tempfile::Builder::new().prefix("certs-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.expect("temporary directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("write PEM");
            if name.ends_with(".key") {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its owner's");
            }
            path
        };
        let ca_key = KeyPair::generate().expect("key");
        let mut ca_params = CertificateParams::new(Vec::new()).expect("params");
        ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // What RFC 5280 asks for, here and below: Python looks for it from 3.13 on.
        ca_params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca_params.distinguished_name.push(DnType::CommonName, "pgsluice test authority");
        let ca = ca_params.self_signed(&ca_key).expect("authority");
        let leaf = |names: Vec<String>, cn: &str| {
            let key = KeyPair::generate().expect("key");
            let mut params = CertificateParams::new(names).expect("params");
            params.distinguished_name.push(DnType::CommonName, cn);
            params.use_authority_key_identifier_extension = true;
            let cert = params.signed_by(&key, &ca, &ca_key).expect("sign");
            (cert.pem(), key.serialize_pem())
        };
        let (server_cert, server_key) = leaf(vec!["localhost".into(), "127.0.0.1".into()], "localhost");
        let (client_cert, client_key) = leaf(Vec::new(), user);
        Self {
            ca: write("ca.crt", &ca.pem()),
            server_cert: write("server.crt", &server_cert),
            server_key: write("server.key", &server_key),
            client_cert: write("client.crt", &client_cert),
            client_key: write("client.key", &client_key),
            dir: Arc::new(dir),
        }
    }
}
