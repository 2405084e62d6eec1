//! TLS on both sides, from `client_tls_*` and `server_tls_*`.
//!
//! Owns: certificates, the meaning of each sslmode, channel binding data, the name in a client's
//! certificate. Never: the decision whether a connection without TLS is good enough (the handshakes
//! ask [`Acceptor`] and [`Connector`]). A reload builds new values; live connections keep theirs.
//! See "SSL Session Encryption" in the message-flow section of the protocol chapter.

mod certificate;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, InconsistentKeys, RootCertStore, ServerConfig,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};
use sha2::Digest;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use x509_parser::prelude::KeyUsage;
use zeroize::Zeroizing;

pub use certificate::{common_name, end_point, out_of_date};

use certificate::{checkable, common_name_matches, is_current, is_for, public_key};

use super::Stream;
use crate::files;
use crate::limits::{PEM_BYTES_MAX, TLS_RECORD_BYTES_MAX};
use crate::settings::{SslMode, Tls, TlsProtocols};
use crate::wire::startup::ALPN;

/// A TLS setting that can't be used: which, its file, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError {
    /// The setting's name.
    pub setting: String,
    /// The file it names, if it names one.
    pub file: Option<PathBuf>,
    /// What is wrong: lower case, no full stop.
    pub what: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}: \"{}\": {}", self.setting, file.display(), self.what),
            None => write!(f, "{}: {}", self.setting, self.what),
        }
    }
}

impl std::error::Error for TlsError {}

/// Which half of the settings an error names.
#[derive(Clone, Copy)]
struct Side(&'static str);

const TOWARD_CLIENTS: Side = Side("client_tls");
const TOWARD_SERVERS: Side = Side("server_tls");

impl Side {
    fn error(self, key: &str, file: Option<&Path>, what: impl fmt::Display) -> TlsError {
        TlsError {
            setting: format!("{}_{key}", self.0),
            file: file.map(Path::to_owned),
            what: what.to_string(),
        }
    }

    fn read(self, key: &str, file: &Path) -> Result<Zeroizing<Vec<u8>>, TlsError> {
        let bytes = files::read_whole(file, PEM_BYTES_MAX);
        bytes.map(Zeroizing::new).map_err(|e| self.error(key, Some(file), e))
    }

    fn certificates(self, key: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = self.read(key, file)?;
        let certificates = CertificateDer::pem_slice_iter(&bytes)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| self.error(key, Some(file), in_words(&e)))?;
        if certificates.is_empty() {
            return Err(self.error(key, Some(file), "the file holds no certificate in PEM form"));
        }
        Ok(certificates)
    }

    fn roots(self, file: &Path) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates("ca_file", file)? {
            roots.add(certificate).map_err(|e| self.error("ca_file", Some(file), e))?;
        }
        Ok(roots)
    }

    /// Certificate chain and key; both or neither must be set.
    fn identity(self, tls: &Tls) -> Result<Option<Identity>, TlsError> {
        match (&tls.cert_file, &tls.key_file) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.error("key_file", None, "must be set when the certificate is set")),
            (None, Some(_)) => Err(self.error("cert_file", None, "must be set when the key is set")),
            (Some(cert), Some(key)) => {
                let chain = self.certificates("cert_file", cert)?;
                let bytes = self.read("key_file", key)?;
                let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| {
                    let why = if is_encrypted(&bytes) {
                        "it has a passphrase; write it without one, as openssl pkey -in FILE does".to_owned()
                    } else {
                        in_words(&e)
                    };
                    self.error("key_file", Some(key), format!("no usable private key: {why}"))
                })?;
                Ok(Some(Identity { chain, key }))
            }
        }
    }
}

/// The library's own words for a file that breaks off, one that is just being written perhaps, are numbers.
fn in_words(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("it breaks off before the end of a {}", String::from_utf8_lossy(end_marker))
        }
        error => error.to_string(),
    }
}

/// Is it a key with a passphrase, in either of OpenSSL's forms?
fn is_encrypted(pem: &[u8]) -> bool {
    let holds = |text: &[u8]| pem.windows(text.len()).any(|part| part == text);
    holds(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || holds(b"Proc-Type: 4,ENCRYPTED")
}

fn unfit(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "it is not the key of the certificate that is named".to_owned()
        }
        error => error.to_string(),
    }
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Our own certificate is for others to judge. rustls would first read the key from it, and can't if it is of X.509 version 1.
    fn certified(self) -> Result<SingleCertAndKey, rustls::Error> {
        let key = provider().key_provider.load_private_key(self.key)?;
        let certified = CertifiedKey::new(self.chain, key);
        match (certified.key.public_key(), public_key(certified.end_entity_cert()?)) {
            (Some(own), Some(shown)) if own != shown => return Err(InconsistentKeys::KeyMismatch.into()),
            (_, None) => certified.keys_match()?,
            _ => {}
        }
        Ok(certified.into())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// With the cipher suites that were chosen, in their order.
fn chosen(tls: &Tls) -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let all = std::mem::take(&mut provider.cipher_suites);
    for (version, names) in [(&TLS13, &tls.tls13_ciphers), (&TLS12, &tls.ciphers)] {
        let mut suites: Vec<_> = all.iter().copied().filter(|suite| suite.version() == version).collect();
        if !names.is_empty() {
            let place =
                |suite: &SupportedCipherSuite| names.iter().position(|n| suite.suite().as_str() == Some(n));
            suites.retain(|suite| place(suite).is_some());
            suites.sort_by_key(place);
        }
        provider.cipher_suites.extend(suites);
    }
    Arc::new(provider)
}

fn versions(tls: &Tls) -> Vec<&'static SupportedProtocolVersion> {
    match tls.protocols {
        TlsProtocols::Both => vec![&TLS13, &TLS12],
        TlsProtocols::Tls12 => vec![&TLS12],
        TlsProtocols::Tls13 => vec![&TLS13],
    }
}

// ===== toward clients =====

/// What rustls counts with a record's content: its head (bytes).
const RECORD_HEAD_BYTES: usize = 5;

/// TLS toward clients.
#[derive(Clone, Default)]
pub struct Acceptor {
    sslmode: SslMode,
    config: Option<Arc<ServerConfig>>,
    end_point: Option<Arc<[u8]>>,
    /// Of what its files held.
    digest: [u8; 32],
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("sslmode", &self.sslmode).finish_non_exhaustive()
    }
}

impl Acceptor {
    /// Builds it from `client_tls_*`. Reads the files; blocks for that.
    ///
    /// Certificates of clients are checked against `client_tls_ca_file` where it is set, and asked
    /// for without fail from `verify-ca` on.
    ///
    /// # Errors
    /// A file that can't be read or used, or a setting that is missing.
    pub fn new(tls: &Tls) -> Result<Self, TlsError> {
        if tls.sslmode == SslMode::Disable {
            return Ok(Self::default());
        }
        let side = TOWARD_CLIENTS;
        // Before they are read for use: what is written meanwhile is noticed at the next look.
        let digest = digest(tls);
        let identity = side.identity(tls)?.ok_or_else(|| {
            side.error(
                "cert_file",
                None,
                "must be set, with client_tls_key_file, unless client_tls_sslmode = disable",
            )
        })?;
        let end_point = end_point(&identity.chain[0]).map(Arc::from);
        let builder = ServerConfig::builder_with_provider(chosen(tls))
            .with_protocol_versions(&versions(tls))
            .map_err(|e| side.error("protocols", None, e))?;
        let builder = match client_verifier(tls)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let certified =
            identity.certified().map_err(|e| side.error("key_file", tls.key_file.as_deref(), unfit(&e)))?;
        let mut config = builder.with_cert_resolver(Arc::new(certified));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would bring its certificate with it, unchecked: it may have expired since. As in PostgreSQL.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_fragment_size = Some(TLS_RECORD_BYTES_MAX + RECORD_HEAD_BYTES);
        Ok(Self { sslmode: tls.sslmode, config: Some(Arc::new(config)), end_point, digest })
    }

    /// Did the files hold something else for `other`, whatever their names?
    pub fn read_others(&self, other: &Self) -> bool {
        self.digest != other.digest
    }

    /// Is TLS offered?
    pub fn offers(&self) -> bool {
        self.config.is_some()
    }

    /// Must a client over TCP use TLS?
    pub fn requires(&self) -> bool {
        matches!(self.sslmode, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull)
    }

    /// Is a connection that is open already as good as a new one has to be?
    pub fn is_enough(&self, stream: &Stream) -> bool {
        let needs_certificate = matches!(self.sslmode, SslMode::VerifyCa | SslMode::VerifyFull);
        stream.is_unix()
            || !self.requires()
            || (stream.is_tls() && (!needs_certificate || stream.peer_certificates().is_some()))
    }

    /// Channel binding data (`tls-server-end-point`) of our own certificate.
    pub fn end_point(&self) -> Option<&[u8]> {
        self.end_point.as_deref()
    }

    /// The TLS handshake with a client.
    ///
    /// Cancel safety: the connection is closed if the future is dropped.
    ///
    /// # Errors
    /// What rustls or the socket says; the connection is closed.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<Stream> {
        let Some(config) = &self.config else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "TLS is off (client_tls_sslmode)"));
        };
        let tls = TlsAcceptor::from(Arc::clone(config)).accept(tcp).await?;
        Ok(Stream::Tls(Box::new(tls.into())))
    }
}

fn client_verifier(tls: &Tls) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let side = TOWARD_CLIENTS;
    let must = matches!(tls.sslmode, SslMode::VerifyCa | SslMode::VerifyFull);
    let Some(file) = &tls.ca_file else {
        return if must {
            Err(side.error("ca_file", None, "must be set for client_tls_sslmode = verify-ca or verify-full"))
        } else {
            Ok(None)
        };
    };
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(side.roots(file)?), provider());
    if !must {
        builder = builder.allow_unauthenticated();
    }
    let chain = builder.build().map_err(|e| side.error("ca_file", Some(file), e))?;
    Ok(Some(Arc::new(ClientVerifier { chain })))
}

/// Checks a client's certificate: its chain, and what its key is for.
#[derive(Debug)]
struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        if is_for(end_entity, |usage| usage.digital_signature() || usage.key_agreement()) {
            Ok(verified)
        } else {
            Err(rustls::CertificateError::InvalidPurpose.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

// ===== toward servers =====

/// TLS toward servers.
#[derive(Clone, Default)]
pub struct Connector {
    sslmode: SslMode,
    config: Option<Arc<ClientConfig>>,
    /// Of what its files held.
    digest: [u8; 32],
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("sslmode", &self.sslmode).finish_non_exhaustive()
    }
}

impl Connector {
    /// Builds it from `server_tls_*`. Reads the files; blocks for that.
    ///
    /// # Errors
    /// A file that can't be read or used, or a setting that is missing.
    pub fn new(tls: &Tls) -> Result<Self, TlsError> {
        if tls.sslmode == SslMode::Disable {
            return Ok(Self::default());
        }
        let side = TOWARD_SERVERS;
        // Before they are read for use: what is written meanwhile is noticed at the next reload.
        let digest = digest(tls);
        let builder = ClientConfig::builder_with_provider(chosen(tls))
            .with_protocol_versions(&versions(tls))
            .map_err(|e| side.error("protocols", None, e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::new(tls)?));
        let mut config = match side.identity(tls)? {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let certified = identity
                    .certified()
                    .map_err(|e| side.error("key_file", tls.key_file.as_deref(), unfit(&e)))?;
                builder.with_client_cert_resolver(Arc::new(certified))
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { sslmode: tls.sslmode, config: Some(Arc::new(config)), digest })
    }

    /// TLS toward a directory: its certificate is checked against the machine's authorities, its name too, and no protocol is
    /// named, because LDAP has no name for it. Reads the authorities; blocks for that.
    ///
    /// # Errors
    /// The machine has none.
    pub fn to_directories() -> Result<Self, TlsError> {
        let mut connector = Self::new(&Tls { sslmode: SslMode::VerifyFull, ..Tls::default() })?;
        if let Some(config) = &mut connector.config {
            Arc::make_mut(config).alpn_protocols.clear();
        }
        Ok(connector)
    }

    /// Did the files hold something else for `other`, whatever their names?
    pub fn read_others(&self, other: &Self) -> bool {
        self.digest != other.digest
    }

    /// `server_tls_sslmode`.
    pub fn sslmode(&self) -> SslMode {
        self.sslmode
    }

    /// The TLS handshake with a server known as `host` (a name or an address).
    ///
    /// Cancel safety: the connection is closed if the future is dropped.
    ///
    /// # Errors
    /// What rustls or the socket says; the connection is closed.
    pub async fn connect(&self, host: &str, tcp: TcpStream) -> io::Result<Stream> {
        let Some(config) = &self.config else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "TLS is off (server_tls_sslmode)"));
        };
        let name = self.server_name(host, &tcp)?;
        let tls = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await?;
        Ok(Stream::Tls(Box::new(tls.into())))
    }

    /// A host that is no DNS name can't be checked; where nothing is checked its address will do.
    fn server_name(&self, host: &str, tcp: &TcpStream) -> io::Result<ServerName<'static>> {
        match ServerName::try_from(host.trim_end_matches('.').to_owned()) {
            Ok(name) => Ok(name),
            Err(e) if self.sslmode == SslMode::VerifyFull => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, e))
            }
            Err(_) => Ok(ServerName::IpAddress(tcp.peer_addr()?.ip().into())),
        }
    }
}

/// Checks a server's certificate as far as sslmode asks; the handshake's signature always.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None`: the chain is not checked.
    trusted: Option<Trusted>,
    names: bool,
}

#[derive(Debug)]
struct Trusted {
    roots: RootCertStore,
    /// `server_tls_ca_file` as it is: a server may show one of these itself, as one that signed its own certificate does.
    shown: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn new(tls: &Tls) -> Result<Self, TlsError> {
        let names = tls.sslmode == SslMode::VerifyFull;
        let trusted = match (&tls.ca_file, names || tls.sslmode == SslMode::VerifyCa) {
            (_, false) => None,
            (Some(file), true) => Some(Trusted {
                roots: TOWARD_SERVERS.roots(file)?,
                shown: TOWARD_SERVERS.certificates("ca_file", file)?,
            }),
            (None, true) => Some(Trusted { roots: machine_roots()?, shown: Vec::new() }),
        };
        Ok(Self { provider: provider(), trusted, names })
    }
}

fn digest(tls: &Tls) -> [u8; 32] {
    let mut digest = sha2::Sha256::new();
    for file in [&tls.ca_file, &tls.cert_file, &tls.key_file] {
        let held = file.as_deref().and_then(|file| files::read(file, PEM_BYTES_MAX).ok()).map(Zeroizing::new);
        let held = held.as_deref().map_or(&[][..], Vec::as_slice);
        digest.update(held.len().to_be_bytes());
        digest.update(held);
    }
    digest.finalize().into()
}

fn machine_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(TOWARD_SERVERS.error(
            "ca_file",
            None,
            "is not set, and this machine has no trusted authorities",
        ));
    }
    Ok(roots)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(Trusted { roots, shown }) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        if shown.contains(end_entity) {
            is_current(end_entity, now)?;
        } else {
            let certificate = checkable(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
            let of_servers = |usage: &KeyUsage| {
                usage.digital_signature() || usage.key_encipherment() || usage.key_agreement()
            };
            if !is_for(end_entity, of_servers) {
                return Err(rustls::CertificateError::InvalidPurpose.into());
            }
        }
        if self.names && !common_name_matches(end_entity, server_name) {
            verify_server_name(&checkable(end_entity)?, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        if ParsedCertificate::try_from(cert).is_ok() {
            return verify_tls13_signature(message, cert, dss, algorithms);
        }
        // Self-made certificates of X.509 version 1, which webpki can't read: nothing is checked, or they are trusted themselves.
        let key = public_key(cert).ok_or(rustls::CertificateError::BadEncoding)?;
        verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
