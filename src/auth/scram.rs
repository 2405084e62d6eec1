//! SCRAM-SHA-256 and SCRAM-SHA-256-PLUS, both halves (RFC 5802, RFC 7677).
//!
//! ```text
//! client-first   n,,n=,r=ours             (p=tls-server-end-point,, with channel binding)
//! server-first   r=oursTheirs,s=salt,i=iterations
//! client-final   c=binding,r=oursTheirs,p=proof
//! server-final   v=signature
//! ```
//!
//! Owns: the grammar and the arithmetic. Never: a socket, where a secret comes from. Deriving keys is
//! slow by design; callers move [`Derivation::run`] off the event loop when [`Derivation::is_slow`].

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest, Sha256};
use stringprep::tables;
use subtle::ConstantTimeEq;
use unicode_normalization::UnicodeNormalization;
use zeroize::{Zeroize, Zeroizing};

use crate::limits::{SASL_ATTRIBUTE_BYTES_MAX, SCRAM_ITERATIONS_MAX};

/// The mechanism without channel binding.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const SCRAM_SHA_256_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// The only channel binding that PostgreSQL has.
const BINDING: &str = "tls-server-end-point";

/// Above this many iterations (some milliseconds) keys are not derived on an event loop.
const SLOW_ITERATIONS: u32 = 20_000;

/// Bytes of a nonce before base64, as PostgreSQL's.
const NONCE_BYTES: usize = 18;

/// A SHA-256 key or digest, wiped when dropped.
pub type Key = Zeroizing<[u8; 32]>;

/// Why an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScramError {
    /// The grammar is broken; which part.
    Malformed(&'static str),
    /// The proof (client) or signature (server) is not that of someone who knows the secret.
    WrongSecret,
    /// The other side asks for an authorization identity or an extension.
    Unsupported(&'static str),
    /// Channel binding does not hold together: someone may sit between.
    Binding(&'static str),
    /// The server asks for more iterations than [`SCRAM_ITERATIONS_MAX`], or for none.
    Iterations,
    /// The server said `e=`.
    Refused,
    /// The server's salt or iterations are not those of the keys we hold.
    OtherVerifier,
}

impl fmt::Display for ScramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => write!(f, "malformed SCRAM message: {what}"),
            Self::WrongSecret => f.write_str("the SCRAM proof is wrong"),
            Self::Unsupported(what) => write!(f, "{what} is not supported in SCRAM"),
            Self::Binding(what) => write!(f, "SCRAM channel binding failed: {what}"),
            Self::Iterations => {
                write!(f, "the SCRAM iteration count is not between 1 and {SCRAM_ITERATIONS_MAX}")
            }
            Self::Refused => f.write_str("the server refused the SCRAM exchange"),
            Self::OtherVerifier => f.write_str(
                "the server's SCRAM secret is not the one that the client proved, so the client's keys can't be used",
            ),
        }
    }
}

impl std::error::Error for ScramError {}

type Result<T> = std::result::Result<T, ScramError>;

// ===== arithmetic =====

fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    // HMAC takes a key of any length, so this can't fail.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes any key");
    for part in parts {
        mac.update(part);
    }
    Zeroizing::new(mac.finalize().into_bytes().into())
}

fn sha256(bytes: &[u8]) -> Key {
    Zeroizing::new(Sha256::digest(bytes).into())
}

fn xor(a: &[u8; 32], b: &[u8; 32]) -> Key {
    Zeroizing::new(std::array::from_fn(|i| a[i] ^ b[i]))
}

/// PBKDF2 with HMAC-SHA-256, one block.
fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    let keyed = Hmac::<Sha256>::new_from_slice(password).expect("HMAC takes any key");
    let mut first = keyed.clone();
    first.update(salt);
    first.update(&1u32.to_be_bytes());
    let mut block = first.finalize().into_bytes();
    let mut sum: Key = Zeroizing::new(block.into());
    for _ in 1..iterations {
        let mut next = keyed.clone();
        next.update(&block);
        block = next.finalize().into_bytes();
        for (sum, byte) in sum.iter_mut().zip(&block) {
            *sum ^= byte;
        }
    }
    block.as_mut_slice().zeroize();
    sum
}

/// SASLprep as PostgreSQL does it: prohibited characters are looked for before the password is normalized, not after it. A password
/// without a prepared form (prohibited characters, nothing left) is used unchanged.
fn prepared(password: &str) -> Zeroizing<String> {
    if password.is_ascii() {
        return Zeroizing::new(password.to_owned());
    }
    let space = |c| if tables::non_ascii_space_character(c) { ' ' } else { c };
    let mapped = password.chars().map(space).filter(|c| !tables::commonly_mapped_to_nothing(*c));
    let mapped = Zeroizing::new(mapped.collect::<String>());
    if mapped.is_empty() || mapped.chars().any(is_prohibited) || mixes_directions(&mapped) {
        return Zeroizing::new(password.to_owned());
    }
    Zeroizing::new(mapped.nfkc().collect())
}

/// By the tables of RFC 4013 (sections 2.3 and 2.5).
fn is_prohibited(c: char) -> bool {
    tables::non_ascii_space_character(c)
        || tables::ascii_control_character(c)
        || tables::non_ascii_control_character(c)
        || tables::private_use(c)
        || tables::non_character_code_point(c)
        || tables::inappropriate_for_plain_text(c)
        || tables::inappropriate_for_canonical_representation(c)
        || tables::change_display_properties_or_deprecated(c)
        || tables::tagging_character(c)
        || tables::unassigned_code_point(c)
}

/// Does it break the rule for right-to-left text: to begin and end with such characters, and to hold no left-to-right ones (RFC 3454,
/// section 6)?
fn mixes_directions(text: &str) -> bool {
    let ends = [text.chars().next(), text.chars().next_back()];
    text.chars().any(tables::bidi_r_or_al)
        && (text.chars().any(tables::bidi_l) || !ends.into_iter().flatten().all(tables::bidi_r_or_al))
}

/// Text of 24 printable characters that nobody can guess.
fn fresh_nonce() -> String {
    BASE64.encode(rand::random::<[u8; NONCE_BYTES]>())
}

// ===== keys =====

/// What a server stores: enough to check a proof, not enough to make one.
#[derive(Clone)]
pub struct Verifier {
    /// PBKDF2 rounds.
    pub iterations: u32,
    /// Its salt.
    pub salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

impl Verifier {
    /// From `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (iterations_salt, keys) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
        let (iterations, salt) = iterations_salt.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let key =
            |text: &str| -> Option<Key> { BASE64.decode(text).ok()?.try_into().ok().map(Zeroizing::new) };
        let iterations = number(iterations.as_bytes()).filter(|i| (1..=SCRAM_ITERATIONS_MAX).contains(i))?;
        let salt =
            BASE64.decode(salt).ok().filter(|s| !s.is_empty() && s.len() <= SASL_ATTRIBUTE_BYTES_MAX)?;
        Some(Self { iterations, salt, stored_key: key(stored_key)?, server_key: key(server_key)? })
    }

    /// One that no proof fits, for users that do not exist: `seed` is a secret hash of the name.
    pub fn mock(iterations: u32, salt: Vec<u8>, seed: &[u8]) -> Self {
        let stored_key = hmac(seed, &[b"stored key"]);
        Self { iterations, salt, stored_key, server_key: hmac(seed, &[b"server key"]) }
    }

    /// Does `password` belong to it? Slow, like [`Derivation::run`].
    pub fn verify_password(&self, password: &str) -> bool {
        let derived = Derivation::new(password, &self.salt, self.iterations).run().verifier();
        derived.stored_key.ct_eq(self.stored_key.as_slice()).into()
    }

    /// Is deriving keys for it too slow for an event loop?
    pub fn is_slow(&self) -> bool {
        self.iterations > SLOW_ITERATIONS
    }
}

/// What a client needs to log in: the keys, and the salt and rounds they were made with.
#[derive(Clone)]
pub struct ClientKeys {
    iterations: u32,
    salt: Vec<u8>,
    client_key: Key,
    server_key: Key,
}

impl fmt::Debug for ClientKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientKeys").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

impl ClientKeys {
    /// What a server stores for these keys.
    pub fn verifier(&self) -> Verifier {
        Verifier {
            iterations: self.iterations,
            salt: self.salt.clone(),
            stored_key: sha256(self.client_key.as_slice()),
            server_key: self.server_key.clone(),
        }
    }

    /// The same password, salted and hashed in the same way.
    pub fn prove_the_same(&self, other: &Self) -> bool {
        self.client_key.as_slice().ct_eq(other.client_key.as_slice()).into()
    }
}

/// The slow step, ready to be moved elsewhere.
pub struct Derivation {
    password: Zeroizing<String>,
    salt: Vec<u8>,
    iterations: u32,
}

impl fmt::Debug for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Derivation").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

impl Derivation {
    /// Of a password, with a salt and a number of rounds.
    pub fn new(password: &str, salt: &[u8], iterations: u32) -> Self {
        Self { password: prepared(password), salt: salt.to_vec(), iterations }
    }

    /// Too slow for an event loop?
    pub fn is_slow(&self) -> bool {
        self.iterations > SLOW_ITERATIONS
    }

    /// About 0.1 µs a round.
    pub fn run(self) -> ClientKeys {
        let salted = salted_password(self.password.as_bytes(), &self.salt, self.iterations);
        ClientKeys {
            iterations: self.iterations,
            salt: self.salt,
            client_key: hmac(salted.as_slice(), &[b"Client Key"]),
            server_key: hmac(salted.as_slice(), &[b"Server Key"]),
        }
    }
}

// ===== grammar =====

/// Takes attributes `x=value` off a message, in the order in which the grammar has them.
struct Attributes<'a> {
    rest: &'a [u8],
    ended: bool,
}

impl<'a> Attributes<'a> {
    fn new(message: &'a [u8]) -> Self {
        Self { rest: message, ended: false }
    }

    /// The next attribute, whatever its name.
    fn any(&mut self) -> Result<(u8, &'a [u8])> {
        if self.ended {
            return Err(ScramError::Malformed("an attribute is missing"));
        }
        let end = memchr::memchr(b',', self.rest).unwrap_or(self.rest.len());
        let (attribute, rest) = self.rest.split_at(end);
        self.ended = rest.is_empty();
        self.rest = rest.get(1..).unwrap_or_default();
        match attribute {
            [name, b'=', value @ ..] if name.is_ascii_alphabetic() => Ok((*name, value)),
            _ => Err(ScramError::Malformed("an attribute is not of the form x=value")),
        }
    }

    /// The next attribute, which must be `name` and not longer than its bound.
    fn expect(&mut self, name: u8, what: &'static str) -> Result<&'a [u8]> {
        match self.any()? {
            (found, value) if found == name && value.len() <= SASL_ATTRIBUTE_BYTES_MAX => Ok(value),
            (found, _) if found == name => Err(ScramError::Malformed("an attribute is too long")),
            (b'm', _) => Err(ScramError::Unsupported("an extension")),
            _ => Err(ScramError::Malformed(what)),
        }
    }

    /// Extensions may follow; they are passed over, but they must be attributes, and none of the
    /// grammar's own may come back.
    fn extensions(&mut self) -> Result<()> {
        while !self.ended {
            let (name, _) = self.any()?;
            if matches!(name, b'a' | b'm' | b'n' | b'r' | b'c' | b's' | b'i' | b'p' | b'v' | b'e') {
                return Err(ScramError::Malformed("an attribute is repeated or out of order"));
            }
        }
        Ok(())
    }
}

/// Printable ASCII without comma, and something of it.
fn nonce(value: &[u8]) -> Result<&str> {
    if value.is_empty() || !value.iter().all(|b| matches!(b, 0x21..=0x2b | 0x2d..=0x7e)) {
        return Err(ScramError::Malformed("the nonce is empty or holds characters that it must not"));
    }
    std::str::from_utf8(value).map_err(|_| ScramError::Malformed("the nonce is not text"))
}

fn base64(value: &[u8], what: &'static str) -> Result<Vec<u8>> {
    BASE64.decode(value).map_err(|_| ScramError::Malformed(what))
}

/// A decimal number without sign or spaces that fits.
fn number(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || digits.len() > 10 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

// ===== impl Client =====

/// What the client half knows of channel binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// There is no TLS, or no binding data: `n`.
    Unable,
    /// We could, the server does not offer it: `y`.
    NotOffered,
    /// `p=tls-server-end-point`, with its data.
    EndPoint(Vec<u8>),
}

impl Binding {
    /// The mechanism that goes with it.
    pub fn mechanism(&self) -> &'static str {
        match self {
            Self::Unable | Self::NotOffered => SCRAM_SHA_256,
            Self::EndPoint(_) => SCRAM_SHA_256_PLUS,
        }
    }

    fn gs2_header(&self) -> &'static str {
        match self {
            Self::Unable => "n,,",
            Self::NotOffered => "y,,",
            Self::EndPoint(_) => "p=tls-server-end-point,,",
        }
    }

    fn attribute(&self) -> String {
        let mut data = self.gs2_header().as_bytes().to_vec();
        if let Self::EndPoint(hash) = self {
            data.extend_from_slice(hash);
        }
        BASE64.encode(data)
    }
}

/// The client half: [`Client::first`], then [`Client::challenge`], then [`Challenge::answer`], then
/// [`Proven::check`].
#[derive(Debug)]
pub struct Client {
    binding: Binding,
    nonce: String,
}

impl Client {
    /// Begins.
    pub fn new(binding: Binding) -> Self {
        Self { binding, nonce: fresh_nonce() }
    }

    fn bare(&self) -> String {
        // PostgreSQL takes the name from the startup packet.
        format!("n=,r={}", self.nonce)
    }

    /// client-first.
    pub fn first(&self) -> Vec<u8> {
        format!("{}{}", self.binding.gs2_header(), self.bare()).into_bytes()
    }

    /// Takes server-first.
    ///
    /// # Errors
    /// Grammar, bounds (iterations above all), a nonce that does not continue ours.
    pub fn challenge(self, server_first: &[u8]) -> Result<Challenge> {
        let mut attributes = Attributes::new(server_first);
        let nonce = nonce(attributes.expect(b'r', "r= is expected first")?)?;
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err(ScramError::Malformed("the nonce does not continue ours"));
        }
        let salt = base64(attributes.expect(b's', "s= is expected second")?, "the salt is not base64")?;
        if salt.is_empty() {
            return Err(ScramError::Malformed("the salt is empty"));
        }
        let iterations = attributes.expect(b'i', "i= is expected third")?;
        attributes.extensions()?;
        let iterations = number(iterations).filter(|i| (1..=SCRAM_ITERATIONS_MAX).contains(i));
        let iterations = iterations.ok_or(ScramError::Iterations)?;
        let final_bare = format!("c={},r={nonce}", self.binding.attribute());
        let first = std::str::from_utf8(server_first).map_err(|_| ScramError::Malformed("not text"))?;
        let auth_message = format!("{},{first},{final_bare}", self.bare());
        Ok(Challenge { salt, iterations, auth_message, final_bare })
    }
}

/// What the server asked.
#[derive(Debug)]
pub struct Challenge {
    salt: Vec<u8>,
    iterations: u32,
    auth_message: String,
    final_bare: String,
}

impl Challenge {
    /// The slow step for a password.
    pub fn derivation(&self, password: &str) -> Derivation {
        Derivation::new(password, &self.salt, self.iterations)
    }

    /// client-final, made with `keys`.
    ///
    /// # Errors
    /// The keys were made with another salt or number of rounds.
    pub fn answer(self, keys: &ClientKeys) -> Result<(Vec<u8>, Proven)> {
        if keys.salt != self.salt || keys.iterations != self.iterations {
            return Err(ScramError::OtherVerifier);
        }
        let message = self.auth_message.as_bytes();
        let signature = hmac(sha256(keys.client_key.as_slice()).as_slice(), &[message]);
        let proof = xor(&keys.client_key, &signature);
        let answer = format!("{},p={}", self.final_bare, BASE64.encode(proof.as_slice()));
        let server_signature = hmac(keys.server_key.as_slice(), &[message]);
        Ok((answer.into_bytes(), Proven { server_signature }))
    }
}

/// We have proven ourselves; the server has not yet.
pub struct Proven {
    server_signature: Key,
}

impl fmt::Debug for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proven(..)")
    }
}

impl Proven {
    /// Takes server-final: does the server know the secret too?
    ///
    /// # Errors
    /// Grammar, `e=`, a wrong signature.
    pub fn check(self, server_final: &[u8]) -> Result<()> {
        let mut attributes = Attributes::new(server_final);
        let value = match attributes.any()? {
            (b'v', value) => value,
            (b'e', _) => return Err(ScramError::Refused),
            _ => return Err(ScramError::Malformed("v= is expected")),
        };
        attributes.extensions()?;
        let signature = base64(value, "the signature is not base64")?;
        let right: bool = signature.ct_eq(self.server_signature.as_slice()).into();
        if right { Ok(()) } else { Err(ScramError::WrongSecret) }
    }
}

// ===== impl Server =====

/// The server half, after client-first: what to say, and what to wait for.
#[derive(Debug)]
pub struct Server {
    verifier: Arc<Verifier>,
    /// Is it the verifier of someone who exists? If not, no proof is right.
    known: bool,
    nonce: String,
    /// What `c=` must be.
    binding: String,
    /// client-first-bare, a comma, server-first.
    opening: String,
    server_first_at: usize,
}

impl Server {
    /// Takes client-first. `plus`: the client chose the mechanism with channel binding. `end_point`:
    /// our own binding data, if the mechanism with channel binding was offered.
    ///
    /// # Errors
    /// Grammar, bounds, what is not supported, a downgrade.
    pub fn new(
        client_first: &[u8],
        plus: bool,
        end_point: Option<&[u8]>,
        verifier: Arc<Verifier>,
        known: bool,
    ) -> Result<Self> {
        let (binding, bare) = gs2(client_first, plus, end_point)?;
        let mut attributes = Attributes::new(bare);
        // The name is that of the startup packet, whatever stands here, as in PostgreSQL.
        attributes.expect(b'n', "n= is expected")?;
        let theirs = nonce(attributes.expect(b'r', "r= is expected")?)?;
        attributes.extensions()?;
        let nonce = format!("{theirs}{}", fresh_nonce());
        let bare = std::str::from_utf8(bare).map_err(|_| ScramError::Malformed("not UTF-8"))?;
        let mut opening = format!("{bare},");
        let server_first_at = opening.len();
        opening.push_str(&format!("r={nonce},s={},i={}", BASE64.encode(&verifier.salt), verifier.iterations));
        Ok(Self { verifier, known, nonce, binding, opening, server_first_at })
    }

    /// server-first.
    pub fn first(&self) -> &[u8] {
        &self.opening.as_bytes()[self.server_first_at..]
    }

    /// Takes client-final; gives server-final and the keys that the proof reveals.
    ///
    /// # Errors
    /// Grammar, another nonce, another binding, a wrong proof.
    pub fn finish(self, client_final: &[u8]) -> Result<(Vec<u8>, ClientKeys)> {
        let mut attributes = Attributes::new(client_final);
        let binding = attributes.expect(b'c', "c= is expected")?;
        let nonce = attributes.expect(b'r', "r= is expected")?;
        let (without_proof, proof) = split_proof(client_final, attributes)?;
        if binding != self.binding.as_bytes() {
            return Err(ScramError::Binding("the data do not match"));
        }
        if nonce != self.nonce.as_bytes() {
            return Err(ScramError::Malformed("the nonce does not match"));
        }
        let without_proof =
            std::str::from_utf8(without_proof).map_err(|_| ScramError::Malformed("not UTF-8"))?;
        let message = format!("{},{without_proof}", self.opening);
        self.judge(message.as_bytes(), &proof)
    }

    fn judge(self, message: &[u8], proof: &[u8; 32]) -> Result<(Vec<u8>, ClientKeys)> {
        let verifier = &*self.verifier;
        let client_key = xor(proof, &hmac(verifier.stored_key.as_slice(), &[message]));
        let right = sha256(client_key.as_slice()).ct_eq(verifier.stored_key.as_slice());
        // Asked only after all the work is done, so that a stranger takes as long as a wrong password.
        if !(bool::from(right) && self.known) {
            return Err(ScramError::WrongSecret);
        }
        let server_key = verifier.server_key.clone();
        let signature = hmac(server_key.as_slice(), &[message]);
        let server_final = format!("v={}", BASE64.encode(signature.as_slice()));
        let (iterations, salt) = (verifier.iterations, verifier.salt.clone());
        Ok((server_final.into_bytes(), ClientKeys { iterations, salt, client_key, server_key }))
    }
}

/// The gs2 header: what `c=` must be later, and client-first-bare.
fn gs2<'a>(client_first: &'a [u8], plus: bool, end_point: Option<&[u8]>) -> Result<(String, &'a [u8])> {
    let mut parts = client_first.splitn(3, |b| *b == b',');
    let (Some(flag), Some(identity), Some(bare)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(ScramError::Malformed("the header is incomplete"));
    };
    let binding = match (flag, plus, end_point) {
        (b"n", false, _) => Binding::Unable,
        (b"y", false, None) => Binding::NotOffered,
        (b"y", false, Some(_)) => {
            return Err(ScramError::Binding(
                "the client thinks that the server does not support it, but it does",
            ));
        }
        (b"n" | b"y", true, _) => {
            return Err(ScramError::Malformed("channel binding was chosen and is not used"));
        }
        ([b'p', b'=', kind @ ..], true, Some(hash)) if kind == BINDING.as_bytes() => {
            Binding::EndPoint(hash.to_vec())
        }
        ([b'p', b'=', ..], true, Some(_)) => {
            return Err(ScramError::Binding("the type is not tls-server-end-point"));
        }
        ([b'p', b'=', ..], ..) => {
            return Err(ScramError::Malformed("channel binding is used and was not chosen"));
        }
        _ => return Err(ScramError::Malformed("the channel binding flag is not n, y or p")),
    };
    match identity {
        [] => Ok((binding.attribute(), bare)),
        [b'a', b'=', ..] => Err(ScramError::Unsupported("an authorization identity")),
        _ => Err(ScramError::Malformed("the authorization identity is malformed")),
    }
}

/// The rest of client-final: extensions, then the proof as its last attribute.
fn split_proof<'a>(message: &'a [u8], mut attributes: Attributes<'_>) -> Result<(&'a [u8], Key)> {
    loop {
        let before = message.len() - attributes.rest.len();
        match attributes.any()? {
            (b'p', value) if attributes.ended => {
                let proof = Zeroizing::new(base64(value, "the proof is not base64")?);
                let proof = <[u8; 32]>::try_from(proof.as_slice())
                    .map_err(|_| ScramError::Malformed("the proof is not 32 bytes"))?;
                // Without the comma before `p=`.
                return Ok((&message[..before - 1], Zeroizing::new(proof)));
            }
            (b'p', _) => return Err(ScramError::Malformed("the proof is not the last attribute")),
            (b'a' | b'm' | b'n' | b'r' | b'c' | b's' | b'i' | b'v' | b'e', _) => {
                return Err(ScramError::Malformed("an attribute is repeated or out of order"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
