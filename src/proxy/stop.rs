//! The end of the process: signals, draining, SHUTDOWN. Never: how a session ends (it is told, and does it itself).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::signal::unix::{self, SignalKind};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Proxy;
use super::listen::SocketFile;
use crate::cancel::Signal;
use crate::files;
use crate::limits::{AUDIT_LAST_LINES, FOREVER, LAST_WORDS};
use crate::telemetry::events;

/// How far the process is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Stage {
    /// Not at all.
    Running,
    /// Clients are let in as ever; `/readyz` says that they should be sent elsewhere (`shutdown_grace`).
    Leaving,
    /// No one is let in; it ends with its last client (SHUTDOWN WAIT_FOR_CLIENTS).
    LastClients,
    /// And clients are closed when they have no transaction open (SIGTERM, SHUTDOWN WAIT_FOR_SERVERS).
    Draining,
    /// Now (SIGQUIT, SHUTDOWN).
    Now,
}

/// The stage, and what waits for the next one. Stages only go forward.
#[derive(Debug, Default)]
pub(super) struct Stopping {
    stage: AtomicU8,
    changed: Notify,
    closing: Notify,
    /// Ports that are shared (`so_reuseport`), with their queues, and connections by TCP that have not said yet who they are.
    arriving: AtomicUsize,
    /// Consoles that are answering a SHUTDOWN.
    answering: AtomicUsize,
}

impl Stopping {
    /// True: the stage is a new one.
    fn advance(&self, stage: Stage) -> bool {
        let before = self.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.changed.notify_one();
        if stage >= Stage::LastClients {
            self.closing.notify_waiters();
        }
        before < stage as u8
    }

    /// Until nobody is let in any more.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn is_closing(&self) {
        // Asked for before the look, so that what happens between the two is heard.
        let closing = self.closing.notified();
        if self.stage() < Stage::LastClients {
            closing.await;
        }
    }

    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Running,
            1 => Stage::Leaving,
            2 => Stage::LastClients,
            3 => Stage::Draining,
            _ => Stage::Now,
        }
    }

    /// It may have been the last one.
    pub(super) fn client_left(&self) {
        if self.stage() != Stage::Running {
            self.changed.notify_one();
        }
    }
}

/// What the end of the process waits for, besides its clients, while it lives.
pub(super) struct Awaited(Arc<Proxy>, fn(&Stopping) -> &AtomicUsize);

impl Awaited {
    /// Whoever may still turn out to be a client: SHUTDOWN WAIT_FOR_CLIENTS waits where that would be let in.
    pub(super) fn arriving(proxy: &Arc<Proxy>) -> Self {
        Self::new(proxy, |stopping| &stopping.arriving)
    }

    /// An answer to a SHUTDOWN that waits for others.
    pub(super) fn answering(proxy: &Arc<Proxy>) -> Self {
        Self::new(proxy, |stopping| &stopping.answering)
    }

    fn new(proxy: &Arc<Proxy>, of: fn(&Stopping) -> &AtomicUsize) -> Self {
        of(&proxy.stopping).fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(proxy), of)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.1(&self.0.stopping).fetch_sub(1, Ordering::AcqRel);
        self.0.stopping.client_left();
    }
}

impl Proxy {
    /// Not ready any more, that is all.
    fn leave(&self, grace: Duration) {
        if self.stopping.advance(Stage::Leaving) {
            let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
            events::leaving(self.cx.clients.len(), grace);
        }
    }

    /// No new clients; those that have no transaction open are closed now, others when it ends.
    pub fn drain(&self) {
        if self.stopping.advance(Stage::Draining) {
            let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
            events::draining(self.cx.clients.len());
        }
        self.cx.pools.shared().close();
        self.remind_drained();
    }

    /// The drain took too long: clients that are left are closed and told so.
    fn close_clients(&self) {
        events::drain_cut_short(self.cx.clients.len());
        self.cx.clients.all().iter().for_each(|client| client.signal(Signal::Kill));
    }

    /// No new clients; the process ends when the last one has left.
    pub fn wait_for_clients(&self) {
        if self.stopping.advance(Stage::LastClients) {
            let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
            events::draining(self.cx.clients.len());
        }
    }

    /// SHUTDOWN: the process ends now.
    pub fn stop_now(&self) {
        self.stopping.advance(Stage::Now);
    }

    /// True from the first of [`Proxy::drain`] and [`Proxy::wait_for_clients`] on.
    pub fn is_draining(&self) -> bool {
        self.stopping.stage() >= Stage::LastClients
    }

    /// Is a client that logs in let in? Whoever came by TCP before SHUTDOWN WAIT_FOR_CLIENTS left the port to the others
    /// (`so_reuseport`) is one of those who are waited for.
    pub(super) fn lets_in(&self, by_tcp: bool) -> bool {
        match self.stopping.stage() {
            Stage::Running | Stage::Leaving => true,
            Stage::LastClients => by_tcp && self.cx.settings.load().general.so_reuseport,
            Stage::Draining | Stage::Now => false,
        }
    }

    /// Should clients be sent here? Not from SIGTERM on.
    pub fn is_ready(&self) -> bool {
        self.stopping.stage() == Stage::Running
    }

    /// Clients that were still logging in when the drain began are told as well.
    pub(super) fn remind_drained(&self) {
        if self.stopping.stage() >= Stage::Draining {
            self.cx.clients.all().iter().for_each(|client| client.signal(Signal::Drain));
        }
    }

    fn has_ended(&self) -> bool {
        let none = |awaited: &AtomicUsize| awaited.load(Ordering::Acquire) == 0;
        let Stopping { arriving, answering, .. } = &self.stopping;
        // First: clients that have arrived are let in by then.
        let arrived = !self.lets_in(true) || none(arriving);
        match self.stopping.stage() {
            Stage::Running | Stage::Leaving => false,
            Stage::LastClients if !arrived => false,
            // A connection that is let in may not be a client yet; it is served or told.
            Stage::LastClients | Stage::Draining => {
                none(&self.let_in) && self.cx.clients.is_empty() && none(answering)
            }
            Stage::Now => true,
        }
    }
}

/// The signals that an operator sends. Each would end the process until it is caught.
pub(super) struct Signals {
    term: Option<unix::Signal>,
    int: Option<unix::Signal>,
    quit: Option<unix::Signal>,
    hup: Option<unix::Signal>,
    usr1: Option<unix::Signal>,
    usr2: Option<unix::Signal>,
}

impl Signals {
    /// From here on they are ours: before anybody is told that the process is there.
    pub(super) fn catch() -> Self {
        let catch = |kind| unix::signal(kind).ok();
        Self {
            term: catch(SignalKind::terminate()),
            int: catch(SignalKind::interrupt()),
            quit: catch(SignalKind::quit()),
            hup: catch(SignalKind::hangup()),
            usr1: catch(SignalKind::user_defined1()),
            usr2: catch(SignalKind::user_defined2()),
        }
    }
}

/// A started proxy: listeners are open.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) proxy: Arc<Proxy>,
    pub(super) sockets: Vec<SocketFile>,
}

impl Running {
    /// Runs until it is told to stop: SIGTERM and SIGINT drain after `shutdown_grace` and within `shutdown_timeout`, a
    /// second one or SIGQUIT ends at once; SIGHUP reloads; SIGUSR1 and SIGUSR2 pause and resume all databases.
    pub(super) async fn until_stopped(self, signals: Signals) {
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        let proxy = Arc::clone(&self.proxy);
        let Signals { mut term, mut int, mut quit, mut hup, mut usr1, mut usr2 } = signals;
        let mut told = Told::Nothing;
        while !proxy.has_ended() {
            tokio::select! {
                () = caught(&mut term) => if told.once_more(&proxy) { break },
                () = caught(&mut int) => if told.once_more(&proxy) { break },
                () = caught(&mut quit) => break,
                () = caught(&mut hup) => reload(&proxy).await,
                () = caught(&mut usr1) => {
                    events::paused_by_signal();
                    proxy.hold(None);
                }
                () = caught(&mut usr2) => events::resumed_by_signal(proxy.let_go(None)),
                () = proxy.stopping.changed.notified() => {}
                () = tokio::time::sleep_until(told.until()) => if told.is_over(&proxy) { break },
            }
        }
        events::ended(proxy.cx.clients.len());
        self.end();
    }

    /// Removes what the process leaves in the file system.
    fn end(self) {
        self.proxy.cx.learner.flush();
        drop(self.sockets);
        if let Some(pidfile) = &self.proxy.cx.settings.load().general.pidfile {
            remove_pidfile(pidfile);
        }
        // What could not be written in time is lost, as with any event that meets a slow disk.
        let _ = self.proxy.cx.audit.flush(AUDIT_LAST_LINES);
    }
}

/// The process that took over may have written its own by now.
fn remove_pidfile(file: &Path) {
    let own = std::process::id().to_string();
    if files::read(file, 64).is_ok_and(|held| held.trim_ascii_end() == own.as_bytes()) {
        let _ = std::fs::remove_file(file);
    }
}

/// The living process that a pidfile names, if it is another one and runs this program: its number may have been given to a
/// stranger since the process ended that wrote it.
pub(super) fn holder(pidfile: &Path) -> Option<u32> {
    let held = files::read(pidfile, 64).ok()?;
    let pid: u32 = std::str::from_utf8(held.trim_ascii()).ok()?.parse().ok()?;
    let about = |pid: &str, what: &str| files::read(&Path::new("/proc").join(pid).join(what), 4096).ok();
    let other = pid.to_string();
    let same = about(&other, "comm")? == about("self", "comm")?;
    (same && pid != std::process::id() && !has_ended(&about(&other, "stat")?)).then_some(pid)
}

/// What the kernel says of a process (`/proc/PID/stat`): it has ended, and only its parent has not asked how.
fn has_ended(stat: &[u8]) -> bool {
    let name_ends = stat.iter().rposition(|byte| *byte == b')');
    let state = name_ends.and_then(|at| stat[at + 1..].trim_ascii_start().first());
    matches!(state, None | Some(b'Z' | b'X' | b'x'))
}

/// SIGHUP. Files are read beside the runtime that accepts.
async fn reload(proxy: &Arc<Proxy>) {
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Reloading]);
    let reloading = Arc::clone(proxy);
    // What is wrong with the file was logged.
    let _ = tokio::task::spawn_blocking(move || reloading.reload()).await;
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
}

async fn caught(signal: &mut Option<unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// What signals have told the process.
#[derive(Debug)]
enum Told {
    Nothing,
    /// To stop; clients are let in until then.
    ToLeave(Instant),
    /// It drains, until then.
    ToDrain(Instant),
    /// Clients are being closed, whose last words are not waited for longer than this.
    ToClose(Instant),
}

impl Told {
    /// SIGTERM or SIGINT. True for the second one: end now.
    fn once_more(&mut self, proxy: &Proxy) -> bool {
        if !matches!(self, Self::Nothing) {
            return true;
        }
        let grace = proxy.cx.settings.load().general.shutdown_grace;
        if grace.is_zero() || proxy.is_draining() {
            *self = Self::drain(proxy);
        } else {
            proxy.leave(grace);
            *self = Self::ToLeave(Instant::now() + grace);
        }
        false
    }

    fn drain(proxy: &Proxy) -> Self {
        proxy.drain();
        let limit = proxy.cx.settings.load().general.shutdown_timeout;
        Self::ToDrain(Instant::now() + if limit.is_zero() { FOREVER } else { limit })
    }

    fn until(&self) -> Instant {
        match self {
            Self::Nothing => Instant::now() + FOREVER,
            Self::ToLeave(until) | Self::ToDrain(until) | Self::ToClose(until) => *until,
        }
    }

    /// Its time has come. True: end now.
    fn is_over(&mut self, proxy: &Proxy) -> bool {
        *self = match self {
            Self::Nothing => Self::Nothing,
            Self::ToLeave(_) => Self::drain(proxy),
            Self::ToDrain(_) => {
                proxy.close_clients();
                Self::ToClose(Instant::now() + LAST_WORDS)
            }
            Self::ToClose(_) => return true,
        };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::has_ended;

    #[test]
    fn a_process_that_nobody_asked_after_has_ended() {
        assert!(!has_ended(b"17 (a) R) S 1 17 17 0"));
        assert!(has_ended(b"17 (pgsluice) Z 1 17 17 0") && has_ended(b"17 (S) X 1") && has_ended(b""));
    }

    #[test]
    fn a_pidfile_of_ours_or_of_a_stranger_is_held_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        assert_eq!(super::holder(&file), None);
        let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pids = [stranger.id().to_string(), format!("{}\n", std::process::id()), "nonsense".into()];
        for held in pids {
            std::fs::write(&file, &held).unwrap();
            assert_eq!(super::holder(&file), None, "{held}");
        }
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn the_pidfile_of_another_process_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        for (held, stays) in [("1\n".to_owned(), true), (format!("{}\n", std::process::id()), false)] {
            std::fs::write(&file, held).unwrap();
            super::remove_pidfile(&file);
            assert_eq!(file.exists(), stays);
        }
    }
}
