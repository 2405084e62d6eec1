//! A replication connection: one client and one server connection from login to end, and the bytes between them.
//!
//! Owns: whether it is admitted, both directions, its end. Never: looks into a message (if a rule would have to, the policy
//! refuses the connection), pools the server connection (it serves one client and is closed).
//! See "Streaming Replication Protocol" in the protocol chapter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll};
use std::time::Instant;

use super::Context;
use super::handshake::Authenticated;
use super::login::{LetIn, Linked, NotAdmitted, let_in, rules, withdrawn};
use super::state::{client_flaw, server_flaw};
use crate::cancel::{ClientShared, ClientState, Signal};
use crate::error::{Error, Kind};
use crate::limits::LAST_WORDS;
use crate::net::conn::Conn;
use crate::policy::judge_replication;
use crate::pool::{Checkout, CountedIn, Pool, PoolKey};
use crate::telemetry::audit::Source;
use crate::wire::{DecodeError, frame};

/// One client, logged in.
#[derive(Debug)]
pub struct Replicating {
    client: Conn,
    server: Checkout,
    pool: Arc<Pool>,
    me: Arc<ClientShared>,
    _counted: CountedIn,
    cx: Arc<Context>,
    /// Reloads seen.
    generation: usize,
    from_client: Messages,
    from_server: Messages,
}

/// Everything between AuthenticationOk and ReadyForQuery.
///
/// Cancel safety: dropping it closes the connection.
///
/// # Errors
/// The client is refused; it has to be told and closed.
pub async fn admit(cx: &Arc<Context>, proven: Authenticated) -> Result<Replicating, NotAdmitted> {
    let key = PoolKey::of(&proven.startup);
    if let Err(error) = may_replicate(cx, proven.source(&key)) {
        return Err(NotAdmitted::new(proven, error));
    }
    let LetIn { client, me, generation, settings, linked, .. } = let_in(cx, proven).await?;
    let Linked { pool, counted, server, .. } = linked;
    let Some(server) = server else {
        // Such a pool is in session mode, whatever is configured.
        let why = format!("pool_mode is {}", pool.settings.load().mode.as_str());
        return Err(NotAdmitted {
            client,
            asked: Box::new(key),
            why: Box::new(Error::new(Kind::NotSupported, why).into()),
        });
    };
    let messages = || Messages { max: settings.general.max_packet_size, left: 0 };
    let (from_client, from_server) = (messages(), messages());
    let cx = Arc::clone(cx);
    let _counted = counted;
    Ok(Replicating { client, server, pool, me, _counted, cx, generation, from_client, from_server })
}

/// What the policy says, now.
fn may_replicate(cx: &Context, source: Source<'_>) -> Result<(), Error> {
    let key = PoolKey::new(source.database.to_owned(), source.user.to_owned());
    let rules = rules(&cx.settings.load(), &key, source.address.map(|address| address.ip().to_canonical()));
    cx.judged(source, judge_replication(&rules))
}

/// Why the way of bytes ended.
enum End {
    /// One of both closed its connection: what it said last is all there is to be said.
    Closed,
    /// One of both broke the protocol.
    Fault(Error),
    /// Something was told from outside.
    Signalled,
}

/// However its task ends, nobody may wait for who is gone.
impl Drop for Replicating {
    fn drop(&mut self) {
        self.me.unlink();
        self.cx.clients.leave(&self.me);
    }
}

impl Replicating {
    /// As others see it.
    pub fn me(&self) -> &ClientShared {
        &self.me
    }

    /// Runs until one of both leaves or the client is closed. Its server connection is closed with it.
    ///
    /// Cancel safety: none; run as a task to its end, or its end is told to nobody.
    pub async fn run(mut self) {
        self.me.wakes_this_task().await;
        self.me.link(&self.server.shared);
        self.me.begin(ClientState::Active, Instant::now());
        let told = loop {
            match self.carry().await {
                End::Closed => break None,
                End::Fault(error) => break Some(error),
                End::Signalled => match self.obey() {
                    Ok(()) => {}
                    Err(error) => break Some(error),
                },
            }
        };
        self.me.unlink();
        self.part(told.as_ref()).await;
        let why = told.as_ref().map_or("connection closed".to_owned(), Error::to_string);
        self.server.shared.note_end(format!("client {}: {why}", self.me.id));
        told.iter().for_each(|error| self.cx.closed.count(Some(error.kind())));
        self.cx.log_end(&self.me, told.is_some(), &why);
    }

    /// Carries bytes until something ends that.
    async fn carry(&mut self) -> End {
        std::future::poll_fn(|cx| {
            if self.me.is_signalled() {
                return Poll::Ready(End::Signalled);
            }
            let Self { client, server, pool, from_client, from_server, .. } = self;
            let server = &mut server.conn;
            match pass(client, server, from_client, &pool.stats.received, cx) {
                // A server that does not listen any more may have said why.
                Poll::Pending | Poll::Ready(Ok(Left::To)) => {}
                Poll::Ready(Ok(Left::From)) => return Poll::Ready(End::Closed),
                Poll::Ready(Err(error)) => return Poll::Ready(End::Fault(client_flaw(error))),
            }
            pass(server, client, from_server, &pool.stats.sent, cx)
                .map(|ended| ended.map_or_else(|error| End::Fault(server_flaw(error)), |_| End::Closed))
        })
        .await
    }

    /// Does what was signalled. Timeouts of queries and transactions do not count here: streaming is one query without end.
    fn obey(&mut self) -> Result<(), Error> {
        let signals = self.me.take_signals();
        let told = |signal: Signal| signals & signal as u16 != 0;
        if told(Signal::Kill) {
            return Err(Error::killed());
        }
        if told(Signal::Drain) {
            // It is never between two transactions, and connects again wherever it is let in.
            return Err(Error::shutting_down());
        }
        let generation = self.cx.generation.load(Ordering::Acquire);
        if std::mem::replace(&mut self.generation, generation) == generation {
            return Ok(());
        }
        let PoolKey { database, user, .. } = &self.me.asked;
        if let Some(error) = withdrawn(&self.cx.settings.load(), &self.me.asked, &self.pool.key) {
            return Err(error);
        }
        let ClientShared { id: client, peer: address, tls, .. } = *self.me;
        may_replicate(&self.cx, Source { client, address, tls, user, database })
    }

    /// Tells the client why it is closed, where that would not be taken for the rest of a message.
    async fn part(&mut self, why: Option<&Error>) {
        if let Some(error) = why.filter(|_| self.from_server.left == 0) {
            error.clone().fatal().put(&mut self.client.out);
        }
        let _ = tokio::time::timeout(LAST_WORDS, self.client.say_goodbye()).await;
    }
}

/// Where in the stream of one side's messages we are.
#[derive(Debug)]
struct Messages {
    /// `max_packet_size`: bytes of one, without its type.
    max: usize,
    /// Bytes of the message that was begun still to come.
    left: usize,
}

impl Messages {
    /// How many of `bytes` can be passed on: all but a header that is not whole.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, DecodeError> {
        let mut taken = 0;
        loop {
            let rest = &bytes[taken..];
            let n = self.left.min(rest.len());
            self.left -= n;
            taken += n;
            if self.left > 0 || n == rest.len() {
                return Ok(taken);
            }
            match frame::header(&rest[n..], self.max)? {
                Some(head) => self.left = head.total(),
                None => return Ok(taken),
            }
        }
    }
}

/// Who of both left.
enum Left {
    /// Who sends; the other has all of it.
    From,
    /// Who receives.
    To,
}

/// Hot path. Carries what `from` sends to `to`, no faster than that takes it, until one of them leaves.
fn pass(
    from: &mut Conn,
    to: &mut Conn,
    messages: &mut Messages,
    count: &AtomicU64,
    cx: &mut Task<'_>,
) -> Poll<Result<Left, DecodeError>> {
    loop {
        match to.poll_flush(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(Ok(Left::To)),
            Poll::Ready(Ok(())) if from.at_eof() => return Poll::Ready(Ok(Left::From)),
            Poll::Ready(Ok(())) => {}
        }
        let n = messages.take(from.bytes())?;
        if n > 0 {
            to.prepare_out();
            to.out.extend_from_slice(&from.bytes()[..n]);
            from.consume(n);
            count.fetch_add(n as u64, Ordering::Relaxed);
            continue;
        }
        match from.poll_fill(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Ok(Left::From)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_passed_on_whole_however_they_come(
            bodies in proptest::collection::vec(0..40_usize, 0..8),
            cuts in proptest::collection::vec(1..60_usize, 1..40),
        ) {
            let mut stream = Vec::new();
            for body in &bodies {
                frame::put(&mut stream, b'd', |out| out.resize(out.len() + body, b'x'));
            }
            let mut messages = Messages { max: 64, left: 0 };
            let (mut passed, mut held) = (0, Vec::new());
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                held.extend_from_slice(piece);
                let n = messages.take(&held).unwrap();
                held.drain(..n);
                passed += n;
                prop_assert!(held.len() < frame::HEADER_BYTES);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!((passed, held.len(), messages.left), (stream.len(), 0, 0));
        }

        #[test]
        fn any_bytes_are_passed_on_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut messages = Messages { max: 64, left: 0 };
            let mut rest = &bytes[..];
            while let Ok(n @ 1..) = messages.take(rest) {
                rest = &rest[n..];
            }
            let refused = messages.take(rest).is_err();
            prop_assert!(refused || rest.len() < frame::HEADER_BYTES);
            prop_assert_eq!(refused, frame::header(rest, 64).is_err());
        }
    }
}
