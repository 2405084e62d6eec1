//! What a certificate says: its names, its time, the use of its key, its channel binding data.
//!
//! Owns: reading one certificate, as OpenSSL, and so PostgreSQL and libpq, read it. Never: a chain, a handshake, which certificate is trusted.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use sha2::Digest;
use x509_parser::prelude::{FromDer, GeneralName, KeyUsage, X509Certificate, X509Version};

use crate::files;
use crate::limits::PEM_BYTES_MAX;

pub(super) fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(certificate.as_ref()).ok().map(|(_, parsed)| parsed)
}

/// In a form whose chain and names can be checked.
pub(super) fn checkable<'a>(
    certificate: &'a CertificateDer<'_>,
) -> Result<ParsedCertificate<'a>, rustls::Error> {
    if parse(certificate).is_some_and(|parsed| parsed.version() != X509Version::V3) {
        let what = "the certificate is not of X.509 version 3: sign it with an -extfile, or name it in server_tls_ca_file";
        return Err(rustls::Error::General(what.into()));
    }
    ParsedCertificate::try_from(certificate)
}

/// Its key may be used so; without the extension it may be used for everything. As OpenSSL, and so PostgreSQL and libpq, look at it:
/// webpki does not.
pub(super) fn is_for(certificate: &CertificateDer<'_>, use_is: impl Fn(&KeyUsage) -> bool) -> bool {
    let Some(parsed) = parse(certificate) else { return false };
    match parsed.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| use_is(usage.value)),
        Err(_) => false,
    }
}

/// What is trusted for itself has no chain that says whether its time is over.
pub(super) fn is_current(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<(), rustls::CertificateError> {
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

pub(super) fn public_key(certificate: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
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
pub(super) fn common_name_matches(certificate: &CertificateDer<'_>, server: &ServerName<'_>) -> bool {
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
