//! One client of the console: which clients may log in, frames through [`Session`], actions performed.
//!
//! Owns: the roles (`admin_users`, `stats_users`), the greeting, waiting for an action while its client may leave or
//! cancel. Never: the grammar or the answers (`admin` does), a policy (an operator is never locked out).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::Proxy;
use super::stop::Awaited;
use crate::admin::parse::{Action, Role, Shutdown};
use crate::admin::session::{Session, Step};
use crate::admin::{PARAMETERS, Refusal};
use crate::cancel::{ClientShared, ClientState, NewClient, Signal};
use crate::client::handshake::Authenticated;
use crate::client::{Context, login};
use crate::error::Error;
use crate::limits::{LAST_WORDS, READ_BUFFER_BYTES, SMALL_MESSAGE_BYTES_MAX};
use crate::net::Stream;
use crate::net::conn::Conn;
use crate::pool::PoolKey;
use crate::settings::{CONSOLES, General};
use crate::telemetry::events::{self, Who};
use crate::wire::startup::Startup;
use crate::wire::{TransactionStatus, backend, frame};

/// A console client after its login.
#[derive(Debug)]
pub(super) struct Console {
    client: Conn,
    session: Session,
    role: Role,
    own: bool,
    me: Arc<ClientShared>,
    cx: Arc<Context>,
}

/// Why it ended.
enum End {
    /// It said Terminate, or its socket closed or failed.
    Left,
    /// We close it.
    Closed(Error),
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> Self {
        Self::Left
    }
}

/// What ended a wait for an action.
enum Waited {
    Done(Result<(), Refusal>),
    Cancelled,
}

/// What the log says of an action: that it was given, once: at its end, or as soon as it waits for others.
struct Said {
    command: String,
    waits: bool,
    before: bool,
}

impl Said {
    fn given(&mut self, who: Who<'_>) {
        if !std::mem::replace(&mut self.before, true) {
            events::console(who, &self.command, None);
        }
    }

    fn refused(&self, who: Who<'_>, why: &str) {
        events::console(who, &self.command, Some(why));
    }
}

/// Greets a client that proved its user, or refuses it. `None`: it was refused.
pub(super) async fn admit(cx: &Arc<Context>, proven: Authenticated) -> Option<Console> {
    let Authenticated { mut client, startup, peer, .. } = proven;
    let (tls, local) = (client.stream().tls_name(), client.stream().local_addr());
    let settings = cx.settings.load_full();
    let own = is_our_own(&startup, client.stream());
    let role = role(&settings.general, &startup.user, own);
    if role == Role::Other {
        let error = Error::console_not_allowed(&startup.user);
        cx.log_refused(&peer, Some(&PoolKey::of(&startup)), &error);
        error.put(&mut client.out);
        let _ = tokio::time::timeout(LAST_WORDS, client.say_goodbye()).await;
        return None;
    }
    let me = cx.clients.enter(NewClient {
        asked: PoolKey::of(&startup),
        console: true,
        pid: None,
        peer_id: settings.general.peer_id,
        key_bytes: login::cancel_key_bytes(startup.minor),
        peer: peer.addr(),
        local,
        tls,
        application_name: startup.param("application_name").unwrap_or_default().into(),
    });
    client.prepare_out();
    for (name, value) in PARAMETERS {
        backend::put_parameter_status(&mut client.out, name.as_bytes(), value.as_bytes());
    }
    backend::put_backend_key_data(&mut client.out, me.pid, &me.cancel_key);
    backend::put_ready_for_query(&mut client.out, TransactionStatus::Idle);
    let console = Console { client, session: Session::new(role), role, own, me, cx: Arc::clone(cx) };
    if settings.general.log_connections {
        events::client_login(console.me.who(&console.me.place()), tls.is_some());
    }
    Some(console)
}

/// The user that runs the process may do everything on the console, as in PgBouncer: over the Unix socket, as a user of the console's name.
pub(super) fn is_our_own(startup: &Startup, stream: &Stream) -> bool {
    let named = [&startup.database, &startup.user].iter().all(|name| CONSOLES.contains(&name.as_str()));
    named && stream.is_of_our_user()
}

fn role(general: &General, user: &str, own: bool) -> Role {
    let is_in = |list: &[String]| list.iter().any(|name| name == user);
    match () {
        () if own => Role::Admin,
        () if is_in(&general.admin_users) => Role::Admin,
        () if is_in(&general.stats_users) => Role::Stats,
        () => Role::Other,
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.cx.clients.leave(&self.me);
    }
}

impl Console {
    /// Answers until the client leaves or is closed.
    pub(super) async fn run(mut self: Box<Self>, proxy: Arc<Proxy>) {
        self.me.wakes_this_task().await;
        let end = self.converse(&proxy).await;
        let (ours, why) = match &end {
            End::Left => (false, "client left"),
            End::Closed(error) => (true, error.message()),
        };
        self.cx.log_end(&self.me, ours, why);
        let End::Closed(error) = end else { return };
        error.fatal().put(&mut self.client.out);
        let _ = tokio::time::timeout(LAST_WORDS, self.client.say_goodbye()).await;
    }

    async fn converse(&mut self, proxy: &Arc<Proxy>) -> End {
        loop {
            if let Err(end) = self.turn(proxy).await {
                return end;
            }
        }
    }

    /// One frame and its answer.
    async fn turn(&mut self, proxy: &Arc<Proxy>) -> Result<(), End> {
        self.client.flush().await?;
        let (input, out) = self.client.split();
        let whole = frame::whole(input, SMALL_MESSAGE_BYTES_MAX);
        let violation = |e: crate::wire::DecodeError| End::Closed(Error::protocol_violation(e.to_string()));
        let Some((head, body)) = whole.map_err(violation)? else { return self.read().await };
        let user = &self.me.asked.user;
        if role(&self.cx.settings.load().general, user, self.own) < self.role {
            return Err(End::Closed(Error::console_rights_taken(user)));
        }
        let step = self.session.recv(head.tag, body, &**proxy, out);
        if let Some((command, refusal)) = self.session.take_denied() {
            events::console(self.me.who(&self.me.place()), &command, Some(&refusal.message));
        }
        let total = head.total();
        self.client.consume(total);
        match step {
            Step::Next => Ok(()),
            Step::Perform(action) => self.perform(proxy, action).await,
            Step::Close => {
                self.client.flush().await?;
                Err(End::Left)
            }
        }
    }

    async fn read(&mut self) -> Result<(), End> {
        let (client, me) = (&mut self.client, &self.me);
        client.want(client.bytes().len() + READ_BUFFER_BYTES / 2);
        let read = poll_fn(|cx| {
            if me.is_signalled() {
                return Poll::Ready(Ok(None));
            }
            client.poll_fill(cx).map_ok(Some)
        })
        .await?;
        match read {
            Some(0) => Err(End::Left),
            Some(_) => Ok(()),
            None => self.obey(),
        }
    }

    /// A cancel request while nothing runs is for nothing; everything else ends the session.
    fn obey(&self) -> Result<(), End> {
        let signals = self.me.take_signals();
        if signals & !(Signal::Cancel as u16) == 0 { Ok(()) } else { Err(End::Closed(Error::killed())) }
    }

    /// An action may take long (PAUSE waits for transactions): meanwhile the client may leave or cancel, which ends
    /// the waiting and undoes nothing.
    async fn perform(&mut self, proxy: &Arc<Proxy>, action: Action) -> Result<(), End> {
        self.me.set_state(ClientState::Active, std::time::Instant::now());
        let ends_now = action == Action::Shutdown(Shutdown::Now);
        let is_shutdown = matches!(action, Action::Shutdown(_));
        let _answering = is_shutdown.then(|| Awaited::answering(proxy));
        let mut said = Said { command: action.logged(), waits: action.waits(), before: false };
        let result = match self.wait_for(proxy.perform(action), &mut said).await {
            Err(end) => {
                // What it began goes on, so that somebody has to know.
                said.refused(self.me.who(&self.me.place()), "left while it waited");
                return Err(end);
            }
            Ok(Waited::Done(result)) => result,
            Ok(Waited::Cancelled) => {
                self.obey()?;
                let what = "canceling statement due to user request";
                Err(Refusal::new("57014", what).hint("What it began goes on: a pause stays until RESUME."))
            }
        };
        self.me.set_state(ClientState::Idle, std::time::Instant::now());
        let (me, place) = (&self.me, self.me.place());
        match &result {
            Ok(()) => said.given(me.who(&place)),
            Err(refusal) => said.refused(me.who(&place), &refusal.message),
        }
        self.session.finish(result, &mut self.client.out);
        if ends_now {
            // The answer goes out first; the process does not wait for a client that does not read it.
            let _ = tokio::time::timeout(LAST_WORDS, self.client.say_goodbye()).await;
            proxy.stop_now();
        } else if is_shutdown {
            // Nor does it end before the answer if there is nobody to wait for.
            let _ = tokio::time::timeout(LAST_WORDS, self.client.flush()).await;
        }
        Ok(())
    }

    async fn wait_for(
        &mut self,
        action: impl Future<Output = Result<(), Refusal>>,
        said: &mut Said,
    ) -> Result<Waited, End> {
        let mut action = pin!(action);
        let (client, me) = (&mut self.client, &self.me);
        poll_fn(|cx| {
            if let Poll::Ready(result) = action.as_mut().poll(cx) {
                return Poll::Ready(Ok(Waited::Done(result)));
            }
            if said.waits {
                said.given(me.who(&me.place()));
            }
            if me.is_signalled() {
                return Poll::Ready(Ok(Waited::Cancelled));
            }
            // What it sends meanwhile waits; reading on shows whether it is still there.
            while client.bytes().len() < READ_BUFFER_BYTES {
                match client.poll_fill(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(n)) if n > 0 => {}
                    Poll::Ready(_) => return Poll::Ready(Err(End::Left)),
                }
            }
            Poll::Pending
        })
        .await
    }
}
