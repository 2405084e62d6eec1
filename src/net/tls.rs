//! TLS on both sides, from `client_tls_*` and `server_tls_*`.
//!
//! Owns: certificates, the meaning of each sslmode, channel binding data, the name in a client's
//! certificate. Never: the decision whether a connection without TLS is good enough (the handshakes
//! ask [`Acceptor`] and [`Connector`]). A reload builds new values; live connections keep theirs.
//! See "SSL Session Encryption" in the message-flow section of the protocol chapter.

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
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
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
use x509_parser::prelude::{FromDer, GeneralName, KeyUsage, X509Certificate, X509Version};
use zeroize::Zeroizing;

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

/// Is it a key that nobody can use without its passphrase? Both of OpenSSL's forms.
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
    /// Our own certificate is for others to judge. rustls reads its key from it before, and can't where it is of X.509 version 1.
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
        // Before they are read for use: who writes them meanwhile is heard at the next look.
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
        // A session that is resumed shows its certificate again and nobody checks it: it may have expired since. As in PostgreSQL.
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
        // Before they are read for use: who writes them meanwhile is heard at the next reload.
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

// ===== certificates =====

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(certificate.as_ref()).ok().map(|(_, parsed)| parsed)
}

/// In a form whose chain and names can be checked.
fn checkable<'a>(certificate: &'a CertificateDer<'_>) -> Result<ParsedCertificate<'a>, rustls::Error> {
    if parse(certificate).is_some_and(|parsed| parsed.version() != X509Version::V3) {
        let what = "the certificate is not of X.509 version 3: sign it with an -extfile, or name it in server_tls_ca_file";
        return Err(rustls::Error::General(what.into()));
    }
    ParsedCertificate::try_from(certificate)
}

/// Its key may be used so; without the extension it may be used for everything. As OpenSSL, and so PostgreSQL and libpq, look at it:
/// webpki does not.
fn is_for(certificate: &CertificateDer<'_>, use_is: impl Fn(&KeyUsage) -> bool) -> bool {
    let Some(parsed) = parse(certificate) else { return false };
    match parsed.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| use_is(usage.value)),
        Err(_) => false,
    }
}

/// What is trusted for itself has no chain that says whether its time is over.
fn is_current(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::CertificateError> {
    use rustls::CertificateError::{BadEncoding, Expired, NotValidYet};
    let validity = parse(certificate).ok_or(BadEncoding)?.validity().clone();
    let now = i64::try_from(now.as_secs()).map_err(|_| Expired)?;
    match () {
        () if now < validity.not_before.timestamp() => Err(NotValidYet),
        () if now > validity.not_after.timestamp() => Err(Expired),
        () => Ok(()),
    }
}

/// From when to when the first certificate of `file`, one's own, is valid; `None` if that is now, or is not to be found out.
pub fn out_of_date(file: &Path) -> Option<String> {
    let bytes = files::read_whole(file, PEM_BYTES_MAX).ok()?;
    let certificate = CertificateDer::pem_slice_iter(&bytes).next()?.ok()?;
    let validity = parse(&certificate)?.validity().clone();
    let current = is_current(&certificate, UnixTime::now()).is_ok();
    (!current).then(|| format!("from {} to {}", validity.not_before, validity.not_after))
}

fn public_key(certificate: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    Some(SubjectPublicKeyInfoDer::from(parse(certificate)?.public_key().raw.to_vec()))
}

/// The first CommonName of the subject, as PostgreSQL takes it: the user in `cert` authentication.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = parse(certificate)?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    // A zero inside is how a certificate pretends to another name.
    (!name.is_empty() && !name.contains('\0')).then(|| name.to_owned())
}

/// libpq's rule: a certificate that has no alternative name of the host's kind, a name or an address, is judged by its CommonName.
fn common_name_matches(certificate: &CertificateDer<'_>, server: &ServerName<'_>) -> bool {
    let Some(parsed) = parse(certificate) else { return false };
    let Ok(alternatives) = parsed.subject_alternative_name() else { return false };
    let named = alternatives.is_some_and(|extension| {
        let names = &extension.value.general_names;
        names.iter().any(|name| match server {
            ServerName::DnsName(_) => matches!(name, GeneralName::DNSName(_)),
            _ => matches!(name, GeneralName::IPAddress(_)),
        })
    });
    if named {
        return false;
    }
    let Some(pattern) = common_name(certificate) else { return false };
    match server {
        ServerName::DnsName(name) => name_matches(&pattern, name.as_ref()),
        _ => pattern == server.to_str(),
    }
}

/// `*.` stands for exactly one label, of a name with at least two more.
fn name_matches(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return !pattern.contains('*');
    }
    let (Some(suffix), Some((label, rest))) = (pattern.strip_prefix("*."), host.split_once('.')) else {
        return false;
    };
    !label.is_empty() && suffix.contains('.') && suffix.eq_ignore_ascii_case(rest)
}

/// `tls-server-end-point`: the certificate's hash by the hash of its signature algorithm, SHA-256 in
/// place of MD5 and SHA-1. `None` where the algorithm has no hash of its own (Ed25519), as in PostgreSQL.
pub fn end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let der = certificate.as_ref();
    Some(match signature_hash(&parse(certificate)?)? {
        Hash::Sha224 => sha2::Sha224::digest(der).to_vec(),
        Hash::Sha256 => sha2::Sha256::digest(der).to_vec(),
        Hash::Sha384 => sha2::Sha384::digest(der).to_vec(),
        Hash::Sha512 => sha2::Sha512::digest(der).to_vec(),
    })
}

enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

fn signature_hash(certificate: &X509Certificate<'_>) -> Option<Hash> {
    use x509_parser::signature_algorithm::SignatureAlgorithm as Algorithm;
    let oid = match Algorithm::try_from(&certificate.signature_algorithm) {
        Ok(Algorithm::RSASSA_PSS(params)) => params.hash_algorithm_oid().to_id_string(),
        _ => certificate.signature_algorithm.algorithm.to_id_string(),
    };
    Some(match oid.as_str() {
        // md5WithRSA, sha1WithRSA, ecdsa-with-SHA1, sha1, and the SHA-256 ones.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" | "1.3.14.3.2.26" => {
            Hash::Sha256
        }
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" | "2.16.840.1.101.3.4.2.1" => Hash::Sha256,
        "1.2.840.113549.1.1.14" | "1.2.840.10045.4.3.1" | "2.16.840.1.101.3.4.2.4" => Hash::Sha224,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" | "2.16.840.1.101.3.4.2.2" => Hash::Sha384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" | "2.16.840.1.101.3.4.2.3" => Hash::Sha512,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Keepalive;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
        let acceptor =
            |cn: &str, names: &[&str]| Acceptor::new(&ours.sign(SslMode::Require, cn, names)).unwrap();
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
            let (dialed, taken) =
                meet(&acceptor, &connector(SslMode::Require, None), "localhost").await.unwrap();
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
            let (value, behind) =
                der.split_at(2 + more + if more == 0 { usize::from(*length) } else { long });
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
        let (dialed, _taken) =
            block_on(meet(&Acceptor::new(&server).unwrap(), &connector, "localhost")).unwrap();
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
        for (file, what) in
            [(cert, "CERTIFICATE"), (key, "PRIVATE KEY"), (ca.as_deref().unwrap(), "CERTIFICATE")]
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
}
