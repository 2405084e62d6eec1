//! Cipher suites, in OpenSSL's language.
//!
//! Owns: which suites there are, which sets of OpenSSL's hold them. Never: a suite that rustls does not have; a word
//! that is not understood and may forbid something.

use std::path::Path;

use super::value::{Kind, Raw, words_of};

/// Cipher suites: their names in OpenSSL, and in rustls, which the settings keep.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ciphers(pub(super) &'static [(&'static str, &'static str)]);

/// Those of TLS 1.2.
pub(super) const CIPHERS: Ciphers = Ciphers(&[
    ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
]);

/// Those of TLS 1.3.
pub(super) const TLS13_CIPHERS: Ciphers = Ciphers(&[
    ("TLS_AES_256_GCM_SHA384", "TLS13_AES_256_GCM_SHA384"),
    ("TLS_AES_128_GCM_SHA256", "TLS13_AES_128_GCM_SHA256"),
    ("TLS_CHACHA20_POLY1305_SHA256", "TLS13_CHACHA20_POLY1305_SHA256"),
]);

/// PgBouncer's words for what is the default, and for every cipher: all that there are here are safe.
const EVERY_CIPHER: [&str; 8] =
    ["default", "secure", "fast", "normal", "all", "compat", "legacy", "insecure"];

/// OpenSSL's words for sets that hold every suite of TLS 1.2 that rustls has.
const ALL_OF_OURS: [&str; 9] =
    ["HIGH", "DEFAULT", "ALL", "ECDH", "ECDHE", "EECDH", "KECDHE", "KEECDH", "TLSV1.2"];

/// Its words for sets that hold none of them.
const NONE_OF_OURS: [&str; 54] = [
    "ANULL",
    "ENULL",
    "NULL",
    "LOW",
    "MEDIUM",
    "EXP",
    "EXPORT",
    "EXPORT40",
    "EXPORT56",
    "ADH",
    "AECDH",
    "DH",
    "DHE",
    "EDH",
    "KDHE",
    "KEDH",
    "KRSA",
    "RSA",
    "DSS",
    "ADSS",
    "PSK",
    "KPSK",
    "APSK",
    "SRP",
    "KSRP",
    "ASRP",
    "MD5",
    "SHA",
    "SHA1",
    "SHA256",
    "SHA384",
    "DES",
    "3DES",
    "RC2",
    "RC4",
    "IDEA",
    "SEED",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "AESCCM",
    "AESCCM8",
    "SSLV2",
    "SSLV3",
    "TLSV1",
    "TLSV1.0",
    "KECDHEPSK",
    "KDHEPSK",
    "COMPLEMENTOFALL",
    "COMPLEMENTOFDEFAULT",
];

/// Its names of suites that there are not here, by the hash or the tag at their end.
const ENDS_OF_SUITES: [&str; 6] = ["-SHA", "-SHA256", "-SHA384", "-POLY1305", "-CCM", "-CCM8"];

/// How its names of suites begin: the exchange of keys and who signs it. RSA's own begin with the cipher.
const EXCHANGES: [&str; 20] = [
    "",
    "ADH-",
    "AECDH-",
    "DH-DSS-",
    "DH-RSA-",
    "DHE-DSS-",
    "DHE-PSK-",
    "DHE-RSA-",
    "ECDH-ECDSA-",
    "ECDH-RSA-",
    "ECDHE-ECDSA-",
    "ECDHE-PSK-",
    "ECDHE-RSA-",
    "EDH-DSS-",
    "EDH-RSA-",
    "PSK-",
    "RSA-PSK-",
    "SRP-",
    "SRP-DSS-",
    "SRP-RSA-",
];

/// How they go on: the cipher and the hash.
const SEALS: [&str; 36] = [
    "3DES-EDE-CBC-SHA",
    "AES-128-CBC-SHA",
    "AES-256-CBC-SHA",
    "AES128-CBC-SHA",
    "AES128-CBC-SHA256",
    "AES128-CCM",
    "AES128-CCM8",
    "AES128-GCM-SHA256",
    "AES128-SHA",
    "AES128-SHA256",
    "AES256-CBC-SHA",
    "AES256-CBC-SHA384",
    "AES256-CCM",
    "AES256-CCM8",
    "AES256-GCM-SHA384",
    "AES256-SHA",
    "AES256-SHA256",
    "AES256-SHA384",
    "ARIA128-GCM-SHA256",
    "ARIA256-GCM-SHA384",
    "CAMELLIA128-SHA",
    "CAMELLIA128-SHA256",
    "CAMELLIA256-SHA",
    "CAMELLIA256-SHA256",
    "CAMELLIA256-SHA384",
    "CHACHA20-POLY1305",
    "DES-CBC-SHA",
    "DES-CBC3-SHA",
    "IDEA-CBC-SHA",
    "NULL-SHA",
    "NULL-SHA256",
    "NULL-SHA384",
    "RC2-CBC-SHA",
    "RC4-SHA",
    "RC4-SHA256",
    "SEED-SHA",
];

/// These have no signer in their name.
const ODD_SUITES: [&str; 2] = ["ECDHE-ARIA128-GCM-SHA256", "ECDHE-ARIA256-GCM-SHA384"];

/// A suite of OpenSSL's, by its name.
fn is_openssls(name: &str) -> bool {
    let seal = |exchange: &&str| name.strip_prefix(*exchange);
    ODD_SUITES.contains(&name) || EXCHANGES.iter().filter_map(seal).any(|seal| SEALS.contains(&seal))
}

/// How far a list is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It forbids nothing that is unknown.
    Strict,
    /// OpenSSL passes over names of suites that it does not know, so a list for it may have some.
    Lenient,
}

/// What the words so far came to.
#[derive(Debug, Default)]
struct List {
    kept: Vec<&'static str>,
    /// Taken out with a `!`: no word brings them back.
    gone: Vec<&'static str>,
}

impl Ciphers {
    /// Does what one word of OpenSSL's language says. `None`: it is not understood, and may forbid something.
    fn obey(&self, word: &str, list: &mut List, trust: Trust) -> Option<()> {
        let word = word.to_ascii_uppercase();
        if word == "@STRENGTH" || word.starts_with("@SECLEVEL=") {
            return Some(());
        }
        let name = word.trim_start_matches(['!', '-', '+']);
        let named = self.named(name)?;
        // If it is misspelt it would forbid nothing, in silence.
        if trust == Trust::Strict && word.starts_with(['!', '-']) && is_like_a_suite(name) {
            (!named.is_empty() || is_openssls(name)).then_some(())?;
        }
        match word.as_bytes().first() {
            Some(b'!') => {
                list.kept.retain(|name| !named.contains(name));
                list.gone.extend(named);
            }
            Some(b'-') => list.kept.retain(|name| !named.contains(name)),
            // To the end of the list.
            Some(b'+') => list.kept.sort_by_key(|name| named.contains(name)),
            _ => {
                for name in named {
                    if !list.kept.contains(&name) && !list.gone.contains(&name) {
                        list.kept.push(name);
                    }
                }
            }
        }
        Some(())
    }

    /// The suites that `word` means: the one of this name, or those that are in each of its sets.
    fn named(&self, word: &str) -> Option<Vec<&'static str>> {
        let is_called =
            |(openssl, rustls): &&(&'static str, &'static str)| [*openssl, *rustls].contains(&word);
        if let Some((_, name)) = self.0.iter().find(is_called) {
            return Some(vec![name]);
        }
        if is_like_a_suite(word) {
            return Some(Vec::new());
        }
        let mut suites = self.0.to_vec();
        for set in word.split('+') {
            let holds = suites.iter().map(|(suite, _)| is_in(suite, set)).collect::<Option<Vec<_>>>()?;
            // A word that nothing is left for must be one, too.
            is_in(self.0.first()?.0, set)?;
            let mut holds = holds.into_iter();
            suites.retain(|_| holds.next() == Some(true));
        }
        Some(suites.into_iter().map(|(_, name)| name).collect())
    }

    /// As [`Kind::read`], of a list that was written for OpenSSL.
    pub(super) fn read_leniently(&self, raw: &Raw) -> Option<Vec<&'static str>> {
        self.kept(raw, Trust::Lenient)
    }

    fn kept(&self, raw: &Raw, trust: Trust) -> Option<Vec<&'static str>> {
        let words = words_of(raw)?;
        if matches!(&words[..], [word] if EVERY_CIPHER.contains(&word.to_ascii_lowercase().as_str())) {
            return Some(Vec::new());
        }
        let mut list = List::default();
        words.iter().try_for_each(|word| self.obey(word, &mut list, trust))?;
        (words.is_empty() || !list.kept.is_empty()).then_some(list.kept)
    }
}

fn is_like_a_suite(word: &str) -> bool {
    ENDS_OF_SUITES.iter().any(|end| word.ends_with(end))
}

/// Whether OpenSSL's `set` holds `suite`. `None`: it is not understood. TLS 1.3 has names only.
fn is_in(suite: &str, set: &str) -> Option<bool> {
    if ALL_OF_OURS.contains(&set) || NONE_OF_OURS.contains(&set) {
        return Some(ALL_OF_OURS.contains(&set));
    }
    if !suite.starts_with("ECDHE-") {
        return None;
    }
    let part = match set {
        "AES" | "AESGCM" => "-AES",
        "AES128" => "-AES128",
        "AES256" => "-AES256",
        "CHACHA20" => "-CHACHA20",
        "ARSA" => "-RSA-",
        "AECDSA" | "ECDSA" => "-ECDSA-",
        _ => return None,
    };
    Some(suite.contains(part))
}

impl Kind for Ciphers {
    type Value = Vec<&'static str>;
    fn takes(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
        format!(
            "\"default\" for all, or names with colons between, the preferred one first: {}",
            names.join(", ")
        )
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<Vec<&'static str>> {
        self.kept(raw, Trust::Strict)
    }
    fn show(&self, value: &Vec<&'static str>) -> String {
        let name = |kept: &&str| self.0.iter().find(|(_, known)| known == kept).map(|(name, _)| *name);
        let names: Vec<&str> = value.iter().filter_map(name).collect();
        if names.is_empty() { EVERY_CIPHER[0].to_owned() } else { names.join(":") }
    }
}
