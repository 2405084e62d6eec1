//! Authentication: secrets, and the exchanges that prove them, of clients and toward servers.
//!
//! Owns: SCRAM-SHA-256 (both halves), MD5, the choice of exchange for a user, HBA rules. Never: a
//! socket, a log; [`crate::client::handshake`] and [`crate::server::connect`] carry the messages.
//! Secrets are compared in constant time and wiped when dropped; `Debug` prints none.
//!
//! | the secret in auth_file | plain | md5 | scram-sha-256 |
//! |---|---|---|---|
//! | in clear | compared | MD5 exchange | SCRAM with keys derived from it |
//! | `md5...` | hashed, compared | MD5 exchange | never right |
//! | `SCRAM-SHA-256$...` | derived, compared | SCRAM | SCRAM |
//!
//! An unknown user gets a made-up secret of a kind that known users have, and the exchange is the same; only
//! its verdict is fixed.

pub mod hba;
pub mod ldap;
pub mod md5;
pub mod scram;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::mutex::lock;
use crate::settings::{AuthType, Secret, Settings};
use scram::{Derivation, Verifier};

/// Derived verifiers that are kept, for known and for unknown users each (some 300 bytes apiece).
const DERIVED_MAX: usize = 8192;

/// Different [`Look`]s that are remembered.
const LOOKS_MAX: usize = 64;

/// Bytes of a salt of ours, as PostgreSQL's.
const SALT_BYTES: usize = 16;

// ===== toward servers =====

/// What a server login can be made with.
#[derive(Clone, Default)]
pub enum Credential {
    /// Nothing: good for servers that trust us, or know our certificate.
    #[default]
    None,
    /// A password in clear: good for every method.
    Plain(Arc<Zeroizing<String>>),
    /// `md5` and 32 hex digits: good for the MD5 exchange.
    Md5(Arc<Zeroizing<String>>),
    /// Keys that a client's own SCRAM login left behind: good for SCRAM with the same verifier.
    Scram(Arc<scram::ClientKeys>),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Plain(_) => "Plain(..)",
            Self::Md5(_) => "Md5(..)",
            Self::Scram(_) => "Scram(..)",
        })
    }
}

impl Credential {
    /// From a password in clear.
    pub fn plain(password: impl Into<String>) -> Self {
        Self::Plain(Arc::new(Zeroizing::new(password.into())))
    }

    /// From a configured secret. A SCRAM verifier alone proves nothing to a server: [`Credential::None`].
    pub fn from_secret(secret: &Secret) -> Self {
        match secret {
            Secret::Plain(password) => Self::plain(password.clone()),
            Secret::Md5(hash) => Self::Md5(Arc::new(Zeroizing::new(hash.clone()))),
            Secret::Scram(_) => Self::None,
        }
    }

    /// Does it prove to a server what `other` proves?
    pub fn proves_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Plain(a), Self::Plain(b)) | (Self::Md5(a), Self::Md5(b)) => same_text(a, b),
            (Self::Scram(a), Self::Scram(b)) => a.prove_the_same(b),
            _ => false,
        }
    }
}

// ===== of clients =====

/// The result of looking up a user that auth_file does not have (`auth_query`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Found {
    /// No lookup was made.
    #[default]
    NotAsked,
    /// There is no such user.
    Nobody,
    /// The lookup failed, or its answer could not be used. The client is told the same as for [`Self::Nobody`].
    Failed,
    /// A user without a valid password: let in only by methods that ask for none.
    NoSecret,
    /// A user with this secret.
    Secret(Secret),
}

/// What is known of the user that a client claims to be.
#[derive(Debug, Clone)]
pub struct Account<'a> {
    user: &'a str,
    secret: Cow<'a, Secret>,
    known: bool,
    /// The lookup's result; a secret in it is in the other two fields.
    found: &'a Found,
}

/// The exchange that an account and a method ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// AuthenticationCleartextPassword
    Cleartext,
    /// AuthenticationCleartextPassword, checked by an LDAP directory.
    Directory,
    /// AuthenticationMD5Password
    Md5,
    /// AuthenticationSASL
    Scram,
}

impl Account<'_> {
    /// Does the user exist, with or without a secret?
    pub fn is_known(&self) -> bool {
        self.known || *self.found == Found::NoSecret
    }

    /// The places where no such user was found, for the error. It is the same for a lookup that failed.
    pub fn sought(&self) -> &'static str {
        match self.found {
            Found::NotAsked => "is not in auth_file",
            _ => "is not in auth_file, and auth_query gives no such user",
        }
    }

    /// The exchange for `method`; `None` if the method asks for no password.
    pub fn exchange(&self, method: AuthType) -> Option<Exchange> {
        match (method, self.secret.as_ref()) {
            (AuthType::Plain, _) => Some(Exchange::Cleartext),
            (AuthType::Ldap, _) => Some(Exchange::Directory),
            (AuthType::Md5, Secret::Scram(_)) | (AuthType::ScramSha256, _) => Some(Exchange::Scram),
            (AuthType::Md5, _) => Some(Exchange::Md5),
            (AuthType::Trust | AuthType::Cert | AuthType::Peer | AuthType::Hba, _) => None,
        }
    }

    /// The credential toward a server that the user's secret alone makes.
    pub fn credential(&self) -> Credential {
        if self.known { Credential::from_secret(&self.secret) } else { Credential::None }
    }

    /// Why no password can be right, for the log.
    pub fn flaw(&self, exchange: Exchange) -> Option<&'static str> {
        let looked_up = matches!(self.found, Found::Secret(_));
        let whence = |in_file, by_query| Some(if looked_up { by_query } else { in_file });
        match (self.known, self.secret.as_ref()) {
            (false, _) => Some(self.absence()),
            (true, Secret::Plain(password)) if password.is_empty() => {
                whence("the user's password in auth_file is empty", "auth_query gave an empty password")
            }
            (true, Secret::Md5(_)) if exchange == Exchange::Scram => whence(
                "the user's secret in auth_file is an MD5 hash, which SCRAM can't use",
                "the secret that auth_query gave is an MD5 hash, which SCRAM can't use",
            ),
            (true, Secret::Md5(hash)) if !md5::is_well_formed(hash) => whence(
                "the user's MD5 hash in auth_file is malformed",
                "the MD5 hash that auth_query gave is malformed",
            ),
            (true, Secret::Scram(text)) if Verifier::parse(text).is_none() => whence(
                "the user's SCRAM secret in auth_file is malformed",
                "the SCRAM secret that auth_query gave is malformed",
            ),
            _ => None,
        }
    }

    /// Why there is no secret, for the log.
    pub fn absence(&self) -> &'static str {
        match self.found {
            Found::NotAsked => "the user is not in auth_file",
            Found::NoSecret => "the user is not in auth_file, and has no password on the server",
            Found::Failed => "the user is not in auth_file, and auth_query failed",
            Found::Nobody | Found::Secret(_) => {
                "the user is not in auth_file, and auth_query finds no such user"
            }
        }
    }

    fn may_pass(&self, exchange: Exchange) -> bool {
        self.flaw(exchange).is_none()
    }

    /// Is `answer` the right one to the MD5 exchange's `salt`?
    pub fn verify_md5(&self, salt: [u8; 4], answer: &[u8]) -> bool {
        let right = match self.secret.as_ref() {
            Secret::Plain(password) => md5::verify(&md5::stored(self.user, password), salt, answer),
            Secret::Md5(stored) => md5::verify(stored, salt, answer),
            Secret::Scram(_) => false,
        };
        right & self.may_pass(Exchange::Md5)
    }

    /// Is `password` the right one?
    ///
    /// Cancel safe.
    pub async fn verify_password(&self, password: &str) -> bool {
        let right = match self.secret.as_ref() {
            Secret::Plain(stored) => same_text(stored, password),
            Secret::Md5(stored) => {
                let given = md5::stored(self.user, password);
                same_text(&stored.to_ascii_lowercase(), &given)
            }
            Secret::Scram(text) => match Verifier::parse(text) {
                None => false,
                Some(verifier) => verify_derived(verifier, password).await,
            },
        };
        right & self.may_pass(Exchange::Cleartext)
    }
}

async fn verify_derived(verifier: Verifier, password: &str) -> bool {
    if !verifier.is_slow() {
        return verifier.verify_password(password);
    }
    let password = Zeroizing::new(password.to_owned());
    tokio::task::spawn_blocking(move || verifier.verify_password(&password)).await.unwrap_or(false)
}

/// In constant time, whatever the lengths.
fn same_text(a: &str, b: &str) -> bool {
    Sha256::digest(a).ct_eq(&Sha256::digest(b)).into()
}

// ===== impl Auth =====

/// What one process keeps to judge logins: a random secret of its own, derived keys, and which [`Look`]s the secrets in auth_file have.
pub struct Auth {
    key: scram::Key,
    looks: Mutex<Looks>,
    derived: Derived,
    derived_for_strangers: Derived,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").finish_non_exhaustive()
    }
}

impl Auth {
    /// With a fresh secret.
    pub fn new(settings: &Settings) -> Self {
        Self {
            key: Zeroizing::new(rand::random()),
            looks: Mutex::new(Looks::of(settings)),
            derived: Derived::default(),
            derived_for_strangers: Derived::default(),
        }
    }

    /// Applies a reload. Unknown users keep their made-up salts, known ones their derived keys.
    pub fn reload(&self, settings: &Settings) {
        *lock(&self.looks) = Looks::of(settings);
    }

    /// The account of `user`, for whom the lookup gave `found`; for an unknown user, or one without a secret, a made-up account that a
    /// client cannot tell from a real one.
    pub fn account_of<'a>(&self, settings: &'a Settings, user: &'a str, found: &'a Found) -> Account<'a> {
        // Made for every user, so that it takes equally long.
        let made_up = self.made_up(user);
        let given = match found {
            Found::Secret(secret) => Some(secret),
            _ => None,
        };
        if let Some(secret) = given {
            lock(&self.looks).see(secret);
        }
        match (settings.userlist.get(user), given) {
            (Some(secret), _) => {
                Account { user, secret: Cow::Borrowed(secret), known: true, found: &Found::NotAsked }
            }
            (None, Some(secret)) => Account { user, secret: Cow::Borrowed(secret), known: true, found },
            (None, None) => Account { user, secret: Cow::Owned(made_up), known: false, found },
        }
    }

    /// The verifier for an account's SCRAM exchange, and whether a proof can be right at all.
    ///
    /// Keys of a password in clear are derived once and kept. Cancel safe.
    pub async fn verifier(&self, account: &Account<'_>, settings: &Settings) -> (Arc<Verifier>, bool) {
        let can_pass = account.may_pass(Exchange::Scram);
        let salt = self.hash(b"salt", account.user)[..SALT_BYTES].to_vec();
        let iterations = settings.general.scram_iterations.max(1);
        let mock =
            |salt| Arc::new(Verifier::mock(iterations, salt, self.hash(b"mock", account.user).as_slice()));
        match account.secret.as_ref() {
            Secret::Scram(text) => match Verifier::parse(text) {
                Some(verifier) => (Arc::new(verifier), can_pass),
                None => (mock(salt), false),
            },
            Secret::Md5(_) => (mock(salt), false),
            Secret::Plain(password) => (self.derive(account, password, &salt, iterations).await, can_pass),
        }
    }

    async fn derive(
        &self,
        account: &Account<'_>,
        password: &str,
        salt: &[u8],
        iterations: u32,
    ) -> Arc<Verifier> {
        let cache = if account.known { &self.derived } else { &self.derived_for_strangers };
        let id = self.id(account.user, password, iterations);
        if let Some(verifier) = cache.get(&id) {
            return verifier;
        }
        let derivation = Derivation::new(password, salt, iterations);
        let keys = if derivation.is_slow() {
            tokio::task::spawn_blocking(|| derivation.run()).await.ok()
        } else {
            Some(derivation.run())
        };
        match keys {
            Some(keys) => cache.put(id, Arc::new(keys.verifier())),
            // Only when the runtime is going down.
            None => Arc::new(Verifier::mock(iterations, salt.to_vec(), self.key.as_slice())),
        }
    }

    fn mac(&self) -> Hmac<Sha256> {
        // HMAC takes a key of any length, so this can't fail.
        Hmac::new_from_slice(self.key.as_slice()).expect("HMAC takes any key")
    }

    /// 32 bytes for a use and a name that look random to anyone without the process's secret.
    fn hash(&self, usage: &[u8], name: &str) -> scram::Key {
        let mac = self.mac().chain_update(usage).chain_update([0]).chain_update(name);
        Zeroizing::new(mac.finalize().into_bytes().into())
    }

    fn id(&self, user: &str, password: &str, iterations: u32) -> [u8; 32] {
        let mac = self.mac().chain_update((user.len() as u64).to_be_bytes()).chain_update(user);
        mac.chain_update(iterations.to_be_bytes()).chain_update(password).finalize().into_bytes().into()
    }

    /// A secret for an unknown user, of a kind that known users have.
    fn made_up(&self, user: &str) -> Secret {
        let chance = self.hash(b"look", user);
        let look = lock(&self.looks).pick(&chance);
        let secret = self.hash(b"secret", user);
        match look {
            Look::Plain => Secret::Plain(BASE64.encode(secret.as_slice())),
            Look::Md5 => Secret::Md5(md5::stored(user, &BASE64.encode(secret.as_slice())).to_string()),
            Look::Scram { iterations, salt_bytes } => {
                let salt: Vec<u8> =
                    self.hash(b"salt", user).iter().copied().cycle().take(salt_bytes).collect();
                let salt = BASE64.encode(salt);
                let (stored, server) = (BASE64.encode(secret.as_slice()), BASE64.encode(chance.as_slice()));
                Secret::Scram(format!("SCRAM-SHA-256${iterations}:{salt}${stored}:{server}"))
            }
        }
    }
}

/// What a client can observe of a secret: its kind, and its SCRAM iterations and length of salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    Plain,
    Md5,
    Scram { iterations: u32, salt_bytes: usize },
}

impl Look {
    /// That of the verifiers that PostgreSQL makes by default.
    const SERVERS: Self = Self::Scram { iterations: 4096, salt_bytes: SALT_BYTES };

    fn of(secret: &Secret) -> Option<Self> {
        match secret {
            Secret::Plain(_) => Some(Self::Plain),
            Secret::Md5(_) => Some(Self::Md5),
            Secret::Scram(text) => Verifier::parse(text)
                .map(|v| Self::Scram { iterations: v.iterations, salt_bytes: v.salt.len() }),
        }
    }
}

/// The looks of the secrets in auth_file, and how many secrets have each.
#[derive(Debug, Default)]
struct Looks(BTreeMap<Look, usize>);

impl Looks {
    fn of(settings: &Settings) -> Self {
        let mut looks = BTreeMap::new();
        for look in settings.userlist.values().filter_map(Look::of) {
            *looks.entry(look).or_default() += 1;
        }
        let mut databases = settings.databases.values().chain(&settings.fallback);
        if settings.general.auth_user.is_some() || databases.any(|d| d.auth_user.is_some()) {
            *looks.entry(Look::SERVERS).or_default() += 1;
        }
        Self(looks)
    }

    /// Counts in a secret that a lookup found, so that made-up ones may look like it.
    fn see(&mut self, secret: &Secret) {
        if let Some(look) = Look::of(secret).filter(|_| self.0.len() < LOOKS_MAX) {
            self.0.entry(look).or_insert(1);
        }
    }

    /// Picks each look as often as known users have it. A change of few users changes the look of few unknown ones.
    fn pick(&self, chance: &[u8; 32]) -> Look {
        let chance = u64::from_be_bytes(*chance.first_chunk().unwrap_or(&[0; 8]));
        let total: usize = self.0.values().sum();
        let mut at = ((u128::from(chance) * total as u128) >> 64) as usize;
        for (look, count) in &self.0 {
            if at < *count {
                return *look;
            }
            at -= count;
        }
        Look::Plain
    }
}

/// Verifiers derived from passwords in clear, by a keyed hash of all that went in.
#[derive(Default)]
struct Derived(Mutex<HashMap<[u8; 32], Arc<Verifier>>>);

impl Derived {
    fn get(&self, id: &[u8; 32]) -> Option<Arc<Verifier>> {
        lock(&self.0).get(id).cloned()
    }

    /// When it is full a random entry is dropped.
    fn put(&self, id: [u8; 32], verifier: Arc<Verifier>) -> Arc<Verifier> {
        let mut kept = lock(&self.0);
        if kept.len() >= DERIVED_MAX {
            let victim = kept.keys().next().copied();
            victim.map(|victim| kept.remove(&victim));
        }
        kept.insert(id, Arc::clone(&verifier));
        verifier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "ann";

    fn settings(secrets: &[(&str, Secret)]) -> Settings {
        let mut settings = Settings::default();
        settings.general.scram_iterations = 3;
        settings.userlist =
            secrets.iter().map(|(name, secret)| ((*name).to_owned(), secret.clone())).collect();
        settings
    }

    fn plain(password: &str) -> Secret {
        Secret::Plain(password.to_owned())
    }

    fn hashed(password: &str) -> Secret {
        Secret::Md5(md5::stored(USER, password).to_string())
    }

    /// A verifier in its stored form.
    fn scrambled(password: &str) -> Secret {
        let salt = b"some salt 123456";
        let mut salted = [0u8; 32];
        let mut mac = Hmac::<Sha256>::new_from_slice(password.as_bytes()).unwrap();
        mac.update(salt);
        mac.update(&[0, 0, 0, 1]);
        salted.copy_from_slice(&mac.finalize().into_bytes());
        let key = |usage: &[u8]| {
            let mac = Hmac::<Sha256>::new_from_slice(&salted).unwrap();
            mac.chain_update(usage).finalize().into_bytes()
        };
        let stored = BASE64.encode(Sha256::digest(key(b"Client Key")));
        let server = BASE64.encode(key(b"Server Key"));
        Secret::Scram(format!("SCRAM-SHA-256$1:{}${stored}:{server}", BASE64.encode(salt)))
    }

    impl Auth {
        fn account<'a>(&self, settings: &'a Settings, user: &'a str) -> Account<'a> {
            self.account_of(settings, user, &Found::NotAsked)
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    /// Would `password` get in by SCRAM?
    fn scram(auth: &Auth, settings: &Settings, user: &str, password: &str) -> bool {
        let account = auth.account(settings, user);
        let (verifier, can_pass) = block_on(auth.verifier(&account, settings));
        let client = scram::Client::new(scram::Binding::Unable);
        let server = scram::Server::new(&client.first(), false, None, verifier, can_pass).unwrap();
        let challenge = client.challenge(server.first()).unwrap();
        let keys = challenge.derivation(password).run();
        server.finish(&challenge.answer(&keys).unwrap().0).is_ok()
    }

    fn md5_login(auth: &Auth, settings: &Settings, user: &str, password: &str) -> bool {
        let salt = [1, 2, 3, 4];
        let answer = md5::answer(&md5::stored(user, password), salt);
        auth.account(settings, user).verify_md5(salt, answer.as_bytes())
    }

    fn cleartext(auth: &Auth, settings: &Settings, user: &str, password: &str) -> bool {
        block_on(auth.account(settings, user).verify_password(password))
    }

    #[test]
    fn every_secret_with_every_method() {
        for (secret, md5_exchange, plain_passes, md5_passes, scram_passes) in [
            (plain("secret"), Exchange::Md5, true, true, true),
            (hashed("secret"), Exchange::Md5, true, true, false),
            (scrambled("secret"), Exchange::Scram, true, false, true),
        ] {
            let settings = settings(&[(USER, secret.clone())]);
            let auth = Auth::new(&settings);
            let account = auth.account(&settings, USER);
            assert_eq!(account.exchange(AuthType::Plain), Some(Exchange::Cleartext));
            assert_eq!(account.exchange(AuthType::Md5), Some(md5_exchange), "{secret:?}");
            assert_eq!(account.exchange(AuthType::ScramSha256), Some(Exchange::Scram));
            assert_eq!(account.exchange(AuthType::Trust), None);
            assert_eq!(account.exchange(AuthType::Cert), None);
            for (password, right) in [("secret", true), ("Secret", false), ("", false)] {
                assert_eq!(cleartext(&auth, &settings, USER, password), right && plain_passes, "{secret:?}");
                assert_eq!(md5_login(&auth, &settings, USER, password), right && md5_passes, "{secret:?}");
                assert_eq!(scram(&auth, &settings, USER, password), right && scram_passes, "{secret:?}");
            }
        }
    }

    #[test]
    fn who_has_no_secret_looks_like_nobody_wherever_one_is_asked_for() {
        let settings = settings(&[(USER, plain("secret")), ("bob", hashed("x")), ("cid", scrambled("x"))]);
        let auth = Auth::new(&settings);
        let names: Vec<String> = (0..20).map(|n| format!("u{n}")).collect();
        for name in &names {
            let of = |found| auth.account_of(&settings, name, found);
            let (nobody, no_secret) = (of(&Found::Nobody), of(&Found::NoSecret));
            assert!(!nobody.is_known() && no_secret.is_known());
            let failed = of(&Found::Failed);
            assert!(
                !failed.is_known() && failed.secret == nobody.secret && failed.sought() == nobody.sought()
            );
            assert!(nobody.secret == no_secret.secret && matches!(no_secret.credential(), Credential::None));
            for method in [AuthType::Plain, AuthType::Md5, AuthType::ScramSha256] {
                assert_eq!(no_secret.exchange(method), nobody.exchange(method));
            }
            for exchange in [Exchange::Cleartext, Exchange::Md5, Exchange::Scram] {
                assert!(!no_secret.may_pass(exchange));
            }
        }
    }

    #[test]
    fn the_log_says_where_the_secret_that_does_not_fit_is_from() {
        let settings = settings(&[(USER, hashed("secret"))]);
        let auth = Auth::new(&settings);
        let flaw = |user: &str, found: &Found| {
            auth.account_of(&settings, user, found).flaw(Exchange::Scram).unwrap_or_default()
        };
        let given = Found::Secret(hashed("x"));
        assert!(flaw(USER, &given).contains("in auth_file is an MD5 hash"));
        assert!(flaw("bob", &given).contains("that auth_query gave is an MD5 hash"));
        assert!(flaw("bob", &Found::Nobody).contains("finds no such user"));
        assert!(flaw("bob", &Found::Failed).contains("auth_query failed"));
    }

    #[test]
    fn an_empty_or_malformed_secret_lets_nobody_in() {
        for secret in [plain(""), Secret::Md5(String::new()), Secret::Scram("SCRAM-SHA-256$".into())] {
            let settings = settings(&[(USER, secret.clone())]);
            let auth = Auth::new(&settings);
            for password in ["", "md5", "SCRAM-SHA-256$"] {
                assert!(!cleartext(&auth, &settings, USER, password), "{secret:?}");
                assert!(!scram(&auth, &settings, USER, password), "{secret:?}");
                assert!(!md5_login(&auth, &settings, USER, password), "{secret:?}");
            }
            let account = auth.account(&settings, USER);
            assert!(!account.verify_md5([0; 4], md5::answer("", [0; 4]).as_bytes()));
        }
    }

    #[test]
    fn a_stranger_looks_like_a_user_and_never_gets_in() {
        for secret in [plain("secret"), hashed("secret"), scrambled("secret")] {
            let settings = settings(&[(USER, secret.clone())]);
            let auth = Auth::new(&settings);
            let (user, stranger) = (auth.account(&settings, USER), auth.account(&settings, "eve"));
            assert!(user.is_known() && !stranger.is_known());
            for method in [AuthType::Plain, AuthType::Md5, AuthType::ScramSha256] {
                assert_eq!(user.exchange(method), stranger.exchange(method), "{secret:?} {method:?}");
            }
            let shape = |account| {
                let (verifier, _) = block_on(auth.verifier(account, &settings));
                (verifier.iterations, verifier.salt.len())
            };
            assert_eq!(shape(&user), shape(&stranger), "{secret:?}");
            assert!(matches!(stranger.credential(), Credential::None));
            // Not even with the made-up secret itself.
            let Secret::Plain(made_up) = stranger.secret.as_ref() else { continue };
            assert!(!cleartext(&auth, &settings, "eve", made_up));
            assert!(!md5_login(&auth, &settings, "eve", made_up));
            assert!(!scram(&auth, &settings, "eve", made_up));
        }
    }

    #[test]
    fn salts_stay_the_same_for_users_and_strangers_also_after_a_reload() {
        let mut settings = settings(&[(USER, plain("secret"))]);
        let auth = Auth::new(&settings);
        let salt = |settings: &Settings, user| {
            let account = auth.account(settings, user);
            block_on(auth.verifier(&account, settings)).0.salt.clone()
        };
        let before = (salt(&settings, USER), salt(&settings, "eve"), salt(&settings, "mallory"));
        assert!(before.0 != before.1 && before.1 != before.2);
        settings.userlist.insert("bob".into(), plain("x"));
        auth.reload(&settings);
        assert_eq!(before, (salt(&settings, USER), salt(&settings, "eve"), salt(&settings, "mallory")));
    }

    #[test]
    fn keys_are_derived_once_and_again_when_the_password_changes() {
        let mut settings = settings(&[(USER, plain("secret"))]);
        let auth = Auth::new(&settings);
        let verifier =
            |settings: &Settings| block_on(auth.verifier(&auth.account(settings, USER), settings)).0;
        assert!(Arc::ptr_eq(&verifier(&settings), &verifier(&settings)));
        settings.userlist.insert(USER.into(), plain("other"));
        assert!(scram(&auth, &settings, USER, "other"));
        assert!(!scram(&auth, &settings, USER, "secret"));
        settings.general.scram_iterations = 5;
        assert_eq!(verifier(&settings).iterations, 5);
    }

    #[test]
    fn what_is_kept_is_bounded_and_strangers_do_not_push_users_out() {
        let settings = settings(&[(USER, plain("secret"))]);
        let auth = Auth::new(&settings);
        let account = auth.account(&settings, USER);
        let kept = block_on(auth.verifier(&account, &settings)).0;
        for n in 0..DERIVED_MAX + 10 {
            let name = format!("stranger{n}");
            block_on(auth.verifier(&auth.account(&settings, &name), &settings));
        }
        assert_eq!(auth.derived_for_strangers.0.lock().unwrap().len(), DERIVED_MAX);
        assert!(Arc::ptr_eq(&kept, &block_on(auth.verifier(&account, &settings)).0));
    }

    #[test]
    fn strangers_have_the_looks_of_users_in_proportion() {
        let mut list: Vec<_> = (0..30).map(|n| (format!("p{n}"), plain("x"))).collect();
        list.extend((0..10).map(|n| (format!("m{n}"), hashed("x"))));
        let list: Vec<_> = list.iter().map(|(name, secret)| (name.as_str(), secret.clone())).collect();
        let settings = settings(&list);
        let auth = Auth::new(&settings);
        let names: Vec<_> = (0..1000).map(|n| format!("stranger{n}")).collect();
        let md5s =
            names.iter().filter(|n| matches!(auth.account(&settings, n).secret.as_ref(), Secret::Md5(_)));
        // A quarter; the chance of being this far off is one in a thousand million.
        assert!((150..350).contains(&md5s.count()));
    }

    #[test]
    fn strangers_look_like_those_whom_the_server_knows() {
        let is_servers = |secret: &Secret| Look::of(secret) == Some(Look::SERVERS);
        let mut settings = settings(&[]);
        let auth = Auth::new(&settings);
        assert!(!is_servers(&auth.account(&settings, "eve").secret));
        settings.general.auth_user = Some("lookup".into());
        auth.reload(&settings);
        assert!(is_servers(&auth.account(&settings, "eve").secret));
        settings.general.auth_user = None;
        auth.reload(&settings);
        // Nobody else was seen yet.
        auth.account_of(&settings, USER, &Found::Secret(hashed("x")));
        assert!(matches!(auth.account(&settings, "eve").secret.as_ref(), Secret::Md5(_)));
    }

    #[test]
    fn debug_shows_no_secret() {
        let secret =
            Settings { userlist: settings(&[(USER, plain("hunter2"))]).userlist, ..Settings::default() };
        let auth = Auth::new(&secret);
        let account = auth.account(&secret, USER);
        let text = format!("{account:?} {:?} {auth:?}", account.credential());
        assert!(!text.contains("hunter2"), "{text}");
    }
}
