//! The method `ldap`: a conversation with a directory.
//!
//! Owns: the connection, TLS on it, the time it may take. Never: the messages' bytes ([`crate::wire::ldap`]), which answers let a client
//! in ([`crate::auth::ldap`]).

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::auth::ldap::{Searched, bound, filter, made_name, tls_begins};
use crate::limits::LDAP_TIMEOUT;
use crate::net::{Connector, Keepalive, Stream};
use crate::settings::{Ldap, LdapEncryption, LdapName, Secret};
use crate::wire::ldap::{Answer, Packet, answer, bind, search, start_tls, unbind};

/// The place of a server that cannot be reached is tried no longer, where there are others.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Does the directory know `user` by this password, which is not empty? Within [`LDAP_TIMEOUT`].
///
/// Cancel safety: dropping the future closes the connection.
///
/// # Errors
/// Why not, or why it cannot be said, for the log.
pub(super) async fn prove(ldap: &Ldap, user: &str, password: &str) -> Result<(), String> {
    let late = || format!("the directory took longer than {} s", LDAP_TIMEOUT.as_secs());
    timeout(LDAP_TIMEOUT, proven(ldap, user, password)).await.unwrap_or_else(|_| Err(late()))
}

async fn proven(ldap: &Ldap, user: &str, password: &str) -> Result<(), String> {
    let mut talk = connect(ldap).await?;
    let name = match &ldap.name {
        LdapName::Made { prefix, suffix } => made_name(prefix, user, suffix)?,
        LdapName::Searched { base, scope, filter: template, bind_dn, bind_password } => {
            // Made before anything is said: most users who are none end here.
            let filter = filter(template, user)?;
            let Secret::Plain(secret) = bind_password else {
                return Err("ldapbindpasswd is no password".into());
            };
            bound(talk.ask(|number| bind(number, bind_dn, secret)).await?)
                .map_err(|why| format!("ldapbinddn: {why}"))?;
            talk.find(|number| search(number, base, *scope, &filter)).await?
        }
    };
    bound(talk.ask(|number| bind(number, &name, password)).await?)?;
    talk.leave().await;
    Ok(())
}

/// The first server that answers.
async fn connect(ldap: &Ldap) -> Result<Talk, String> {
    let mut failed = Vec::new();
    for server in &ldap.servers {
        match connect_to(ldap, server).await {
            Ok(talk) => return Ok(talk),
            Err(why) => failed.push(format!("{server}, port {}: {why}", ldap.port)),
        }
    }
    Err(failed.join("; "))
}

async fn connect_to(ldap: &Ldap, server: &str) -> Result<Talk, String> {
    let tcp = timeout(CONNECT_TIMEOUT, TcpStream::connect((server, ldap.port))).await;
    let tcp = tcp.map_err(|_| "no connection in time".to_owned())?.map_err(|e| e.to_string())?;
    match ldap.encryption {
        LdapEncryption::Clear => Talk::over_tcp(tcp),
        LdapEncryption::Tls => Talk::over_tls(server, tcp).await,
        LdapEncryption::StartTls => {
            let mut talk = Talk::over_tcp(tcp)?;
            tls_begins(talk.ask(start_tls).await?)?;
            // What came in clear behind the answer would pass for encrypted.
            match talk.stream {
                Stream::Tcp(tcp) if talk.unread.is_empty() => Talk::over_tls(server, tcp).await,
                _ => Err("the directory sent something in clear behind its answer to StartTLS".into()),
            }
        }
    }
}

/// A connection to a directory, and what was read of its next answer.
struct Talk {
    stream: Stream,
    unread: Vec<u8>,
    /// Of the request that was sent last.
    number: i32,
}

impl Talk {
    fn over(stream: Stream) -> Self {
        Self { stream, unread: Vec::new(), number: 0 }
    }

    fn over_tcp(tcp: TcpStream) -> Result<Self, String> {
        Stream::tcp(tcp, &Keepalive::default()).map(Self::over).map_err(|e| e.to_string())
    }

    async fn over_tls(server: &str, tcp: TcpStream) -> Result<Self, String> {
        let connector = tokio::task::spawn_blocking(Connector::to_directories).await;
        let connector = connector.map_err(|e| e.to_string())?.map_err(|e| e.what)?;
        let stream = connector.connect(server, tcp).await;
        stream.map(Self::over).map_err(|e| format!("TLS: {e}"))
    }

    /// One request that has one answer.
    async fn ask(&mut self, request: impl FnOnce(i32) -> Packet) -> Result<Answer, String> {
        self.send(request).await?;
        self.hear().await
    }

    /// The name of the one entry that a search finds.
    async fn find(&mut self, search: impl FnOnce(i32) -> Packet) -> Result<String, String> {
        self.send(search).await?;
        let mut searched = Searched::default();
        loop {
            if let Some(name) = searched.take(self.hear().await?)? {
                return Ok(name);
            }
        }
    }

    async fn send(&mut self, request: impl FnOnce(i32) -> Packet) -> Result<(), String> {
        self.number += 1;
        let packet = request(self.number);
        self.write(&packet).await.map_err(|e| e.to_string())
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    async fn hear(&mut self) -> Result<Answer, String> {
        loop {
            let came =
                answer(&self.unread).map_err(|e| format!("the directory's answer cannot be read: {e}"))?;
            if let Some(came) = came {
                self.unread.drain(..came.bytes);
                // 0: it says why it ends the connection.
                return match i32::try_from(came.number) {
                    Ok(number) if number == self.number => Ok(came.answer),
                    _ => Err(format!("the directory says, of nothing that was asked: {:?}", came.answer)),
                };
            }
            let read = self.stream.read_buf(&mut self.unread).await.map_err(|e| e.to_string())?;
            if read == 0 {
                return Err("the directory closed the connection".into());
            }
        }
    }

    /// Says that nothing more comes. That it may fail changes nothing.
    async fn leave(mut self) {
        if self.send(unbind).await.is_ok() {
            let _ = self.stream.shutdown().await;
        }
    }
}
