//! One login: from StartupMessage to the first ReadyForQuery, and the role if it is asked for.
//!
//! Owns: the messages of a login and their bounds, the proof of who we are, the tries again without TLS and with an older protocol.
//! Never: which host gets it.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use super::{Address, ConnectError, Login, Result, Target, open};
use crate::auth::scram::{self, Binding, ClientKeys, Derivation};
use crate::auth::{Credential, md5};
use crate::limits::{LOGIN_BYTES_MAX, READ_BUFFER_BYTES, SMALL_MESSAGE_BYTES_MAX};
use crate::net::Stream;
use crate::net::tls::end_point;
use crate::server::role::{self, Role};
use crate::server::why_ended;
use crate::settings::{SslMode, TargetSessionAttrs};
use crate::wire::backend::{self, ErrorFields};
use crate::wire::frame::{self, Fields};
use crate::wire::frontend;
use crate::wire::startup::{self, authentication as code};
use crate::wire::{CancelKey, TransactionStatus};

/// One address, with the second try that sslmode and the protocol's minor may need.
pub(super) async fn login(target: &Target, address: &Address) -> Result<Login> {
    let sslmode = target.tls.sslmode();
    let first = login_minor(target, address, sslmode).await;
    let tcp = matches!(address, Address::Tcp(..));
    match (&first, sslmode) {
        // `allow`: in clear, unless the server does not want that.
        (Err(error), SslMode::Allow) if tcp && error.sqlstate() == Some(b"28000") => {
            login_minor(target, address, SslMode::Require).await
        }
        // `prefer`: what can't be had over TLS (protocol too old, odd certificate) is had without.
        (Err(ConnectError::Tls(_)), SslMode::Prefer) => login_minor(target, address, SslMode::Disable).await,
        _ => first,
    }
}

/// A server from before NegotiateProtocolVersion is asked again for 3.0.
async fn login_minor(target: &Target, address: &Address, sslmode: SslMode) -> Result<Login> {
    let first = login_once(target, address, sslmode, target.minor).await;
    match &first {
        Err(ConnectError::Server(body)) if target.minor > 0 && refuses_minor(body) => {
            login_once(target, address, sslmode, 0).await
        }
        _ => first,
    }
}

/// "unsupported frontend protocol", under whatever SQLSTATE servers and poolers give it.
fn refuses_minor(body: &[u8]) -> bool {
    let fields = ErrorFields::new(body);
    let message = fields.field(b'M').unwrap_or_default();
    matches!(fields.sqlstate(), b"0A000" | b"08P01")
        && memchr::memmem::find(message, b"unsupported").is_some()
        && memchr::memmem::find(message, b"protocol").is_some()
}

async fn login_once(target: &Target, address: &Address, sslmode: SslMode, minor: u16) -> Result<Login> {
    let stream = open(&target.tls, &target.keepalive, address, sslmode).await?;
    let mut talk = Talk { stream, buf: Vec::new(), start: 0, seen: 0 };
    let mut packet = Vec::with_capacity(256);
    let own = [("user", target.user.as_str()), ("database", target.dbname.as_str())];
    let settings = startup::setting_parameters(target.startup());
    let settings = settings.iter().map(|(name, value)| (*name, &**value));
    let own = own.into_iter().chain(target.replication.parameter());
    let all = own.chain(settings).map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    startup::put_startup(&mut packet, minor, all);
    talk.send(&packet).await?;
    let minor = authenticate(&mut talk, target, minor).await?;
    let Info { pid, key, params } = read_info(&mut talk).await?;
    let role = match target.attrs {
        TargetSessionAttrs::Any => None,
        _ => Some(find_role(&mut talk, &params).await?.unless_asked_for(target.startup())),
    };
    let (host, passed_over, unreached, address) = (String::new(), Vec::new(), Vec::new(), address.clone());
    let rest = talk.buf[talk.start..].to_vec();
    Ok(Login {
        stream: talk.stream,
        rest,
        host,
        address,
        role,
        passed_over,
        unreached,
        minor,
        pid,
        key,
        params,
    })
}

/// The messages of one login.
struct Talk {
    stream: Stream,
    buf: Vec<u8>,
    /// Bytes of `buf` that were consumed.
    start: usize,
    /// Bytes received in all.
    seen: usize,
}

fn lost(error: &io::Error) -> ConnectError {
    ConnectError::Lost(why_ended(error))
}

/// One message; its body lies in the [`Talk`]'s buffer.
#[derive(Clone, Copy)]
struct Message {
    tag: u8,
    at: usize,
    end: usize,
}

impl Talk {
    /// A server that does not hear it any more may have said why.
    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let Err(error) = self.write(bytes).await else { return Ok(()) };
        loop {
            match self.next().await {
                Ok(_) => {}
                Err(said @ ConnectError::Server(_)) => return Err(said),
                Err(_) => return Err(lost(&error)),
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    fn body(&self, message: Message) -> &[u8] {
        &self.buf[message.at..message.end]
    }

    /// The next message that means something: notices are dropped, an ErrorResponse is an error.
    async fn next(&mut self) -> Result<Message> {
        loop {
            let message = self.any().await?;
            match message.tag {
                backend::NOTICE_RESPONSE => {}
                backend::ERROR_RESPONSE => return Err(ConnectError::Server(self.body(message).to_vec())),
                _ => return Ok(message),
            }
        }
    }

    async fn any(&mut self) -> Result<Message> {
        loop {
            let unread = &self.buf[self.start..];
            if let Some((head, _)) = frame::whole(unread, SMALL_MESSAGE_BYTES_MAX)? {
                let at = self.start + frame::HEADER_BYTES;
                self.start += head.total();
                return Ok(Message { tag: head.tag, at, end: self.start });
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<()> {
        self.buf.drain(..self.start);
        self.start = 0;
        let room = READ_BUFFER_BYTES.min(LOGIN_BYTES_MAX - self.seen);
        if room == 0 {
            let what = format!("more than {LOGIN_BYTES_MAX} bytes before the first ReadyForQuery");
            return Err(ConnectError::Protocol(what));
        }
        let len = self.buf.len();
        self.buf.resize(len + room, 0);
        let read = self.stream.read(&mut self.buf[len..]).await.map_err(|error| lost(&error))?;
        self.buf.truncate(len + read);
        self.seen += read;
        if read == 0 {
            return Err(ConnectError::Lost("the server closed the connection during login".into()));
        }
        Ok(())
    }

    fn unexpected(message: Message, wanted: &str) -> ConnectError {
        let tag = char::from(message.tag);
        ConnectError::Protocol(format!("message {tag:?} where {wanted} is expected"))
    }
}

// ===== authentication =====

/// Up to AuthenticationOk; returns the minor that is spoken. One exchange at most: a server that asks
/// again is after the password.
async fn authenticate(talk: &mut Talk, target: &Target, asked: u16) -> Result<u16> {
    let mut message = talk.next().await?;
    let mut minor = asked;
    if message.tag == backend::NEGOTIATE_PROTOCOL_VERSION {
        minor = negotiated(talk.body(message), asked)?;
        message = talk.next().await?;
    }
    let (what, data) = authentication(talk, message)?;
    match what {
        code::OK => return Ok(minor),
        code::CLEARTEXT_PASSWORD => cleartext(talk, &target.credential).await?,
        code::MD5_PASSWORD => {
            let salt = Fields::new(backend::AUTHENTICATION, data).bytes(4, "salt")?;
            let salt = [salt[0], salt[1], salt[2], salt[3]];
            md5_password(talk, target, salt).await?;
        }
        code::SASL => {
            let mechanisms = data.to_vec();
            sasl(talk, &target.credential, &mechanisms).await?;
        }
        other => {
            return Err(ConnectError::Auth(format!(
                "the server asks for authentication method {other}, which pgsluice does not have"
            )));
        }
    }
    let message = talk.next().await?;
    match authentication(talk, message)? {
        (code::OK, _) => Ok(minor),
        _ => Err(ConnectError::Auth("the server asks for a second authentication".into())),
    }
}

fn authentication(talk: &Talk, message: Message) -> Result<(i32, &[u8])> {
    if message.tag != backend::AUTHENTICATION {
        return Err(Talk::unexpected(message, "an authentication request"));
    }
    Ok(startup::authentication(talk.body(message))?)
}

fn negotiated(body: &[u8], asked: u16) -> Result<u16> {
    match startup::negotiate(body)? {
        (minor, 0) if minor <= asked => Ok(minor),
        (minor, 0) => Err(ConnectError::Protocol(format!(
            "the server wants protocol 3.{minor}, 3.{asked} was asked for"
        ))),
        _ => {
            Err(ConnectError::Protocol("the server refuses protocol options that were not asked for".into()))
        }
    }
}

fn lacks(method: &str) -> ConnectError {
    ConnectError::Auth(format!(
        "the server asks for {method}, and there is no secret that can answer it (password of the database entry, or auth_file)"
    ))
}

async fn cleartext(talk: &mut Talk, credential: &Credential) -> Result<()> {
    let Credential::Plain(password) = credential else { return Err(lacks("a password in clear")) };
    send_password(talk, password).await
}

async fn md5_password(talk: &mut Talk, target: &Target, salt: [u8; 4]) -> Result<()> {
    let answer = match &target.credential {
        Credential::Plain(password) => md5::answer(&md5::stored(&target.user, password), salt),
        Credential::Md5(stored) => md5::answer(stored, salt),
        Credential::Scram(_) | Credential::None => return Err(lacks("MD5 authentication")),
    };
    send_password(talk, &answer).await
}

async fn send_password(talk: &mut Talk, password: &str) -> Result<()> {
    let zero_terminated = Zeroizing::new([password.as_bytes(), &[0]].concat());
    let mut message = Zeroizing::new(Vec::with_capacity(zero_terminated.len() + frame::HEADER_BYTES));
    startup::put_password(&mut message, &zero_terminated);
    talk.send(&message).await
}

/// From AuthenticationSASL to AuthenticationSASLFinal.
async fn sasl(talk: &mut Talk, credential: &Credential, mechanisms: &[u8]) -> Result<()> {
    // First: no secret answers a mechanism that is not there.
    let binding = binding(&talk.stream, mechanisms)?;
    if !matches!(credential, Credential::Plain(_) | Credential::Scram(_)) {
        return Err(lacks("SCRAM authentication"));
    }
    let mut message = Vec::new();
    let mechanism = binding.mechanism();
    let client = scram::Client::new(binding);
    startup::put_sasl_initial(&mut message, mechanism, &client.first());
    talk.send(&message).await?;

    let challenge = client.challenge(expect(talk, code::SASL_CONTINUE).await?)?;
    let keys = match credential {
        Credential::Scram(keys) => Arc::clone(keys),
        Credential::Plain(password) => Arc::new(derive(challenge.derivation(password)).await?),
        Credential::Md5(_) | Credential::None => return Err(lacks("SCRAM authentication")),
    };
    let (answer, proven) = challenge.answer(&keys)?;
    message.clear();
    startup::put_password(&mut message, &answer);
    talk.send(&message).await?;
    Ok(proven.check(expect(talk, code::SASL_FINAL).await?)?)
}

async fn expect(talk: &mut Talk, wanted: i32) -> Result<&[u8]> {
    let message = talk.next().await?;
    match authentication(talk, message)? {
        (found, data) if found == wanted => Ok(data),
        // AuthenticationOk here would be a server that never showed it knows the secret.
        (found, _) => Err(ConnectError::Auth(format!(
            "the server left the SCRAM exchange (authentication request {found})"
        ))),
    }
}

/// Many rounds of PBKDF2 are done on a thread that may block.
async fn derive(derivation: Derivation) -> Result<ClientKeys> {
    if !derivation.is_slow() {
        return Ok(derivation.run());
    }
    let keys = tokio::task::spawn_blocking(|| derivation.run()).await;
    keys.map_err(|_| ConnectError::Auth("deriving the SCRAM keys failed".into()))
}

/// Picks the mechanism: with channel binding wherever both sides can.
fn binding(stream: &Stream, mechanisms: &[u8]) -> Result<Binding> {
    let mut fields = Fields::new(backend::AUTHENTICATION, mechanisms);
    let (mut scram, mut plus, mut oauth) = (false, false, false);
    loop {
        match fields.cstr("SASL mechanism")? {
            b"" => break,
            name => {
                oauth |= name == b"OAUTHBEARER";
                scram |= name == scram::SCRAM_SHA_256.as_bytes();
                plus |= name == scram::SCRAM_SHA_256_PLUS.as_bytes();
            }
        }
    }
    let end_point = stream.peer_certificates().and_then(|chain| chain.first()).and_then(end_point);
    match (end_point, scram, plus) {
        (Some(hash), _, true) => Ok(Binding::EndPoint(hash)),
        (Some(_), true, false) => Ok(Binding::NotOffered),
        (None, true, _) => Ok(Binding::Unable),
        _ if oauth => Err(ConnectError::Auth(
            "the server asks for an OAuth token (OAUTHBEARER: an oauth line in its pg_hba.conf), which pgsluice does not have".into(),
        )),
        _ => Err(ConnectError::Auth("the server offers no SASL mechanism that pgsluice has".into())),
    }
}

// ===== after AuthenticationOk =====

/// What a server says of itself and of the connection.
struct Info {
    pid: i32,
    key: CancelKey,
    params: Vec<(Vec<u8>, Vec<u8>)>,
}

async fn read_info(talk: &mut Talk) -> Result<Info> {
    let (mut pid, mut key, mut params) = (0, CancelKey::default(), Vec::new());
    loop {
        let message = talk.next().await?;
        let body = talk.body(message);
        match message.tag {
            backend::PARAMETER_STATUS => {
                let (name, value) = backend::parameter_status(body)?;
                params.push((name.to_vec(), value.to_vec()));
            }
            backend::BACKEND_KEY_DATA => {
                let (id, secret) = backend::backend_key_data(body)?;
                (pid, key) = (id, CancelKey::from(secret));
            }
            backend::NOTIFICATION_RESPONSE => {}
            backend::READY_FOR_QUERY => break ready(body)?,
            _ => return Err(Talk::unexpected(message, "ParameterStatus, BackendKeyData or ReadyForQuery")),
        }
    }
    Ok(Info { pid, key, params })
}

/// By what came with the login; a server that said nothing is asked.
async fn find_role(talk: &mut Talk, params: &[(Vec<u8>, Vec<u8>)]) -> Result<Role> {
    if let Some(role) = Role::reported(params) {
        return Ok(role);
    }
    let mut packet = Vec::with_capacity(256);
    frontend::put_query(&mut packet, role::QUESTION.as_bytes());
    talk.send(&packet).await?;
    let mut role = None;
    loop {
        let message = talk.next().await?;
        let body = talk.body(message);
        match message.tag {
            backend::DATA_ROW => role = Role::answered(&backend::data_row(body)?),
            backend::ROW_DESCRIPTION
            | backend::COMMAND_COMPLETE
            | backend::PARAMETER_STATUS
            | backend::NOTIFICATION_RESPONSE => {}
            backend::READY_FOR_QUERY => break ready(body)?,
            _ => return Err(Talk::unexpected(message, "the answer to a query")),
        }
    }
    role.ok_or_else(|| {
        ConnectError::Protocol("the server does not say what it is (target_session_attrs)".into())
    })
}

fn ready(body: &[u8]) -> Result<()> {
    match backend::ready_for_query(body)? {
        TransactionStatus::Idle => Ok(()),
        _ => Err(ConnectError::Protocol("the first ReadyForQuery is not idle".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_without_a_farewell_is_told_as_any_other() {
        let end = || io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed: https://docs.rs/rustls");
        assert_eq!(why_ended(&end()), "unexpected end of file");
        assert_eq!(lost(&end()).to_string(), "cannot connect to the server: unexpected end of file");
    }
}
