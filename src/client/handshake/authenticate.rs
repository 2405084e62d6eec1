//! A client proves who it is: from the StartupMessage to AuthenticationOk.
//!
//! Owns: which method applies (`auth_type`, HBA rules) and the exchange of each. Never: how a secret is compared (`auth`).

use std::future::Future;
use std::io;
use std::pin::Pin;

use nix::unistd::{Uid, User};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{Authenticated, Line, LoginError, Outcome, Step, Unauthenticated};
use crate::auth::hba::{self, Asker};
use crate::auth::ldap::taken_for;
use crate::auth::scram::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError};
use crate::auth::{Account, Auth, Credential, Exchange, Found};
use crate::client::ldap;
use crate::error::{Error, Kind};
use crate::net::conn::Conn;
use crate::net::tls::common_name;
use crate::net::{Peer, Stream};
use crate::pool::PoolKey;
use crate::settings::{AuthType, Ldap, Mapping, Secret, Settings};
use crate::telemetry::audit::Source;
use crate::wire::startup::{self, Startup, authentication as code};

impl Unauthenticated {
    /// Its user, database and settings, as claimed.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// The connection; `None`: it broke.
    pub fn stream(&self) -> Option<&Stream> {
        self.line.stream.as_ref()
    }

    /// When its login must be over; `None`: no limit.
    pub fn deadline(&self) -> Option<Instant> {
        self.line.deadline
    }

    /// Lets in a client that need not prove its user.
    ///
    /// # Errors
    /// The client went.
    pub fn let_in(self) -> Outcome<Authenticated> {
        let mut out = Vec::new();
        negotiate(&self, &mut out);
        self.authenticated(AuthType::Trust, Credential::None, &out)
    }

    /// Appends AuthenticationOk to the messages still `unsent`.
    fn authenticated(
        self,
        method: AuthType,
        credential: Credential,
        unsent: &[u8],
    ) -> Outcome<Authenticated> {
        let Line { stream, ahead, .. } = self.line;
        let stream = stream.ok_or_else(|| LoginError::Gone(io::ErrorKind::NotConnected.into()))?;
        let mut client = Conn::new(stream, ahead.bytes());
        client.prepare_out();
        client.out.extend_from_slice(unsent);
        startup::put_authentication(&mut client.out, code::OK, &[]);
        Ok(Authenticated { client, startup: self.startup, peer: self.peer, credential, method })
    }

    /// Refuses it (too many clients, shutting down ...): says why and closes.
    ///
    /// Cancel safety: the client may or may not hear it.
    pub fn refuse(mut self, error: &Error) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move { self.line.tell(error).await })
    }

    /// `auth_type`, or that of the HBA rule for this client.
    ///
    /// # Errors
    /// No rule lets it in.
    pub fn method(&self, settings: &Settings) -> Result<AuthType, Error> {
        self.rule(settings).map(|rule| rule.method)
    }

    fn rule<'s>(&self, settings: &'s Settings) -> Result<Rule<'s>, Error> {
        rule(settings, &self.startup, self.peer, self.line.stream().is_ok_and(Stream::is_tls))
    }

    /// Has the client prove who it is, by `auth_type`. `found` is what the server said of a
    /// user that auth_file does not have.
    ///
    /// Cancel safety: dropping the future closes the connection.
    ///
    /// # Errors
    /// The client went, or was refused.
    pub fn authenticate<'a>(
        mut self,
        settings: &'a Settings,
        auth: &'a Auth,
        found: Found,
    ) -> Step<'a, Authenticated> {
        Box::pin(async move {
            let judge = Judge { settings, auth, found };
            match judge.run(&mut self).await {
                Err(error) => Err(self.line.end(error).await),
                Ok((method, credential, unsent)) => self.authenticated(method, credential, &unsent),
            }
        })
    }

    fn wrong_password(&self, why: &'static str) -> Error {
        let user = &self.startup.user;
        Error::new(Kind::InvalidPassword, format!("password authentication failed for user \"{user}\""))
            .with_log(why)
    }
}

impl Authenticated {
    /// Who it is, for the audit, while it has no session.
    pub(in crate::client) fn source<'k>(&self, key: &'k PoolKey) -> Source<'k> {
        let (address, tls) = (self.peer.addr(), self.client.stream().tls_name());
        Source { client: 0, address, tls, user: &key.user, database: &key.database }
    }

    /// Was it judged by a rule or a secret `before` that is another one `now`?
    pub fn is_outdated(&self, before: &Settings, now: &Settings) -> bool {
        self.judged_by(before) != self.judged_by(now)
    }

    fn judged_by<'s>(&self, settings: &'s Settings) -> Option<(Rule<'s>, Option<&'s Secret>, bool)> {
        let rule = rule(settings, &self.startup, self.peer, self.client.stream().is_tls()).ok()?;
        Some((rule, settings.userlist.get(&self.startup.user), lists_users(settings)))
    }
}

/// How a client is to prove who it is.
#[derive(PartialEq)]
struct Rule<'s> {
    method: AuthType,
    /// Who may be whom.
    map: Option<&'s [Mapping]>,
    /// Where `ldap` asks.
    ldap: Option<&'s Ldap>,
}

fn rule<'s>(
    settings: &'s Settings,
    Startup { database, user, replication, .. }: &Startup,
    peer: Peer,
    tls: bool,
) -> Result<Rule<'s>, Error> {
    let method = settings.general.auth_type;
    if method != AuthType::Hba {
        return Ok(Rule { method, map: None, ldap: settings.ldap.as_deref() });
    }
    let asker = Asker { ip: peer.ip(), tls, database, user, replication: *replication };
    let who = || {
        let host = peer.ip().map_or_else(|| "[local]".to_owned(), |ip| ip.to_string());
        let encryption = if tls { "SSL encryption" } else { "no encryption" };
        format!("host \"{host}\", user \"{user}\", database \"{database}\", {encryption}")
    };
    let refused = |what: String| Error::new(Kind::InvalidAuthorization, what);
    match hba::find(&settings.hba, &asker) {
        None => Err(refused(format!("no auth_hba_file entry for {}", who()))),
        Some(rule) => rule
            .method
            .filter(|method| *method != AuthType::Hba)
            .map(|method| Rule {
                method,
                // A map that is not there lets nobody in.
                map: rule.map.as_ref().map(|map| settings.ident.get(map).map_or(&[][..], Vec::as_slice)),
                ldap: rule.ldap.as_deref(),
            })
            .ok_or_else(|| refused(format!("auth_hba_file rejects connection for {}", who())))
            .map_err(|error| error.with_log(format!("auth_hba_file line {}", rule.line))),
    }
}

/// With an auth_file nobody gets in who is not in it, whatever the method.
fn lists_users(settings: &Settings) -> bool {
    !settings.userlist.is_empty() || settings.general.auth_file.is_some()
}

/// What the protocol's minor is, where it is not the one asked for.
fn negotiate(client: &Unauthenticated, out: &mut Vec<u8>) {
    if let Some(negotiate) = &client.startup.negotiate {
        startup::put_negotiate(out, negotiate);
    }
}

struct Judge<'a> {
    settings: &'a Settings,
    auth: &'a Auth,
    found: Found,
}

impl Judge<'_> {
    /// How, with what, and what the client is to be sent before AuthenticationOk.
    async fn run(&self, client: &mut Unauthenticated) -> Outcome<(AuthType, Credential, Vec<u8>)> {
        let Rule { method, map, ldap } = client.rule(self.settings)?;
        let user = client.startup.user.clone();
        let account = self.auth.account_of(self.settings, &user, &self.found);
        let mut out = Vec::new();
        negotiate(client, &mut out);
        let credential = match account.exchange(method) {
            None => {
                if let Some(system) = proven_name(client, method).await? {
                    admit_as(&user, method, map, &system)?;
                }
                self.admit(&user, &account)?;
                account.credential()
            }
            Some(Exchange::Directory) => by_directory(client, self.settings, ldap, &mut out).await?,
            Some(Exchange::Cleartext) => cleartext(client, &account, &mut out).await?,
            Some(Exchange::Md5) => md5(client, &account, &mut out).await?,
            Some(Exchange::Scram) => self.scram(client, &account, &mut out).await?,
        };
        Ok((method, credential, out))
    }

    /// Methods without a password: with an auth_file the user must be in it, or be found by `auth_query`.
    fn admit(&self, user: &str, account: &Account<'_>) -> Result<(), Error> {
        if lists_users(self.settings) && !account.is_known() {
            let what = format!("user \"{user}\" {}", account.sought());
            return Err(Error::new(Kind::InvalidAuthorization, what).with_log(account.absence()));
        }
        Ok(())
    }

    async fn scram(
        &self,
        client: &mut Unauthenticated,
        account: &Account<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome<Credential> {
        let mechanisms = [SCRAM_SHA_256_PLUS, SCRAM_SHA_256];
        let offered = if client.end_point.is_some() { &mechanisms[..] } else { &mechanisms[1..] };
        startup::put_sasl_mechanisms(out, offered);
        client.line.write(out).await?;
        out.clear();

        let answer = client.line.answer().await?;
        let (mechanism, first) = startup::sasl_initial(&answer).map_err(Error::from)?;
        let plus =
            offered.iter().find(|name| name.as_bytes() == mechanism).map(|name| *name == SCRAM_SHA_256_PLUS);
        let Some(plus) = plus else {
            let what = "client selected an invalid SASL authentication mechanism";
            return Err(Error::new(Kind::ProtocolViolation, what).into());
        };
        let first = match first {
            Some(first) => Zeroizing::new(first.to_vec()),
            None => challenge(client, &[]).await?,
        };
        let (verifier, can_pass) = self.auth.verifier(account, self.settings).await;
        let end_point = client.end_point.as_deref();
        let server = scram::Server::new(&first, plus, end_point, verifier, can_pass);
        let server = server.map_err(|e| sasl_error(client, account, e))?;
        let last = challenge(client, server.first()).await?;
        let (server_final, keys) = server.finish(&last).map_err(|e| sasl_error(client, account, e))?;
        startup::put_authentication(out, code::SASL_FINAL, &server_final);
        Ok(match account.credential() {
            Credential::None => Credential::Scram(keys.into()),
            stored => stored,
        })
    }
}

/// What `cert` and `peer` prove, empty if they prove no name; `None`: another method.
async fn proven_name(client: &Unauthenticated, method: AuthType) -> Result<Option<String>, Error> {
    let stream = client.line.stream().ok();
    let refused = |what| Error::new(Kind::InvalidAuthorization, what);
    match method {
        AuthType::Cert => {
            let certificates = stream.and_then(Stream::peer_certificates);
            let own = certificates.and_then(<[_]>::first);
            let own = own.ok_or_else(|| refused("connection requires a valid client certificate"))?;
            Ok(Some(common_name(own).unwrap_or_default()))
        }
        AuthType::Peer => {
            let uid = stream.and_then(Stream::peer_uid);
            let uid = uid.ok_or_else(|| refused("peer authentication is for Unix sockets only"))?;
            // The system may ask a directory server.
            let found = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid))).await;
            Ok(Some(found.ok().and_then(Result::ok).flatten().map(|user| user.name).unwrap_or_default()))
        }
        _ => Ok(None),
    }
}

/// `cert` and `peer`: who was proven to be `system` may be the user.
fn admit_as(user: &str, method: AuthType, map: Option<&[Mapping]>, system: &str) -> Result<(), Error> {
    if !system.is_empty() && hba::may_be(map, system, user) {
        return Ok(());
    }
    let (how, whose) = match method {
        AuthType::Peer => ("peer", "operating-system user"),
        _ => ("certificate", "certificate's common name"),
    };
    let what = format!("{how} authentication failed for user \"{user}\"");
    Err(Error::new(Kind::InvalidAuthorization, what).with_log(format!("the {whose} is {system:?}")))
}

/// Sends AuthenticationSASLContinue and waits for the answer.
async fn challenge(client: &mut Unauthenticated, data: &[u8]) -> Outcome<Zeroizing<Vec<u8>>> {
    let mut message = Vec::with_capacity(data.len() + 16);
    startup::put_authentication(&mut message, code::SASL_CONTINUE, data);
    client.line.write(&message).await?;
    client.line.answer().await
}

fn sasl_error(client: &Unauthenticated, account: &Account<'_>, error: ScramError) -> Error {
    match error {
        ScramError::WrongSecret => {
            client.wrong_password(account.flaw(Exchange::Scram).unwrap_or("the SCRAM proof is wrong"))
        }
        ScramError::Unsupported(_) => Error::new(Kind::NotSupported, error.to_string()),
        ScramError::Binding(_) => Error::new(Kind::InvalidAuthorization, error.to_string()),
        _ => Error::new(Kind::ProtocolViolation, error.to_string()),
    }
}

/// An empty password is refused before anybody looks whose it is, as PostgreSQL does.
fn said(password: &[u8]) -> Result<&[u8], Error> {
    let what = "empty password returned by client";
    if password.is_empty() { Err(Error::new(Kind::InvalidPassword, what)) } else { Ok(password) }
}

/// Asks for the password in clear. The message that holds it, as it came.
async fn ask_password(client: &mut Unauthenticated, out: &mut Vec<u8>) -> Outcome<Zeroizing<Vec<u8>>> {
    startup::put_authentication(out, code::CLEARTEXT_PASSWORD, &[]);
    client.line.write(out).await?;
    out.clear();
    client.line.answer().await
}

/// `ldap`: whoever the directory knows by this password. Neither auth_file nor auth_query is looked at.
async fn by_directory(
    client: &mut Unauthenticated,
    settings: &Settings,
    ldap: Option<&Ldap>,
    out: &mut Vec<u8>,
) -> Outcome<Credential> {
    let answer = ask_password(client, out).await?;
    let password = said(startup::password(&answer).map_err(Error::from)?)?;
    let user = &client.startup.user;
    let proven = match (ldap, std::str::from_utf8(password)) {
        (Some(ldap), Ok(text)) => {
            client.line.in_time(async { Ok(ldap::prove(ldap, user, text).await) }).await?
        }
        (None, _) => Err("no directory is named".to_owned()),
        (_, Err(_)) => Err("the password is not UTF-8".to_owned()),
    };
    let users = settings.users.keys().map(String::as_str);
    let proven = proven.and_then(|()| match taken_for(user, users) {
        None => Ok(()),
        Some(other) => Err(format!("the directory may take this name for \"{other}\", whom [users] knows")),
    });
    proven.map_err(|why| {
        let what = format!("LDAP authentication failed for user \"{user}\"");
        Error::new(Kind::InvalidAuthorization, what).with_log(why)
    })?;
    Ok(Credential::plain(String::from_utf8_lossy(password)))
}

async fn cleartext(
    client: &mut Unauthenticated,
    account: &Account<'_>,
    out: &mut Vec<u8>,
) -> Outcome<Credential> {
    let answer = ask_password(client, out).await?;
    let password = said(startup::password(&answer).map_err(Error::from)?)?;
    // What is not UTF-8 is no password of auth_file, which is UTF-8; it must fail as late as others.
    let text = Zeroizing::new(String::from_utf8_lossy(password).into_owned());
    let right = account.verify_password(&text).await & (text.as_bytes() == password);
    if !right {
        let why = account.flaw(Exchange::Cleartext).unwrap_or("the password does not match");
        return Err(client.wrong_password(why).into());
    }
    Ok(Credential::plain(text.as_str()))
}

async fn md5(client: &mut Unauthenticated, account: &Account<'_>, out: &mut Vec<u8>) -> Outcome<Credential> {
    let salt: [u8; 4] = rand::random();
    startup::put_authentication(out, code::MD5_PASSWORD, &salt);
    client.line.write(out).await?;
    out.clear();
    let answer = client.line.answer().await?;
    let given = said(startup::password(&answer).map_err(Error::from)?)?;
    if !account.verify_md5(salt, given) {
        let why = account.flaw(Exchange::Md5).unwrap_or("the password does not match");
        return Err(client.wrong_password(why).into());
    }
    Ok(account.credential())
}
