//! A relay between pgsluice and PostgreSQL that cuts a connection at a chosen byte of a flush.
//!
//! A flush is recognised by its end ([`super::relay::FLUSH_END`]).

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::relay::{has_flush, listen};

/// Where a flush is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// After this many bytes of the flush have gone to the server (if it is shorter: modulo its length).
    Up(usize),
    /// After this many bytes of its answer have come back, or all but one: after a whole answer the connection may
    /// already be another client's.
    Down(usize),
    /// As `Down`, for the answer to the flush behind the next one.
    DownBehind(usize),
    /// The whole answer but its ReadyForQuery has come back.
    BeforeReady,
}

/// The tail of an answer: ReadyForQuery, idle.
const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];

#[derive(Debug, Default)]
struct Shared {
    armed: Mutex<Option<Cut>>,
    done: AtomicUsize,
    flushes: AtomicUsize,
}

/// The relay. Its threads end with their connections.
pub struct Cutter {
    port: u16,
    shared: Arc<Shared>,
}

impl Cutter {
    /// In front of the server on 127.0.0.1:`target`.
    pub fn start(target: u16) -> Self {
        let shared = Arc::new(Shared::default());
        let all = Arc::clone(&shared);
        let port = listen(target, move |client, server| relay(client, server, &all));
        Self { port, shared }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next flush is cut there.
    pub fn arm(&self, cut: Cut) {
        *self.shared.armed.lock().expect("armed") = Some(cut);
    }

    /// Nothing is cut any more; true: something was armed and not yet used.
    pub fn disarm(&self) -> bool {
        self.shared.armed.lock().expect("armed").take().is_some()
    }

    /// Connections cut so far.
    pub fn done(&self) -> usize {
        self.shared.done.load(Ordering::Acquire)
    }

    /// Flushes seen so far.
    pub fn flushes(&self) -> usize {
        self.shared.flushes.load(Ordering::Acquire)
    }
}

fn relay(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    // The cut that the answers' side is to make, set by the other side before the flush goes to the server.
    let down: Arc<Mutex<Option<Cut>>> = Arc::default();
    let (up_shared, down_shared) = (Arc::clone(shared), Arc::clone(shared));
    let up_says = Arc::clone(&down);
    let (mut from_client, mut to_server) =
        (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
    std::thread::spawn(move || {
        let mut piece = vec![0; 1 << 20];
        while let Ok(n) = from_client.read(&mut piece)
            && n > 0
        {
            let bytes = &piece[..n];
            let mut send = bytes;
            if has_flush(bytes) {
                up_shared.flushes.fetch_add(1, Ordering::AcqRel);
                match up_shared.armed.lock().expect("armed").take() {
                    Some(Cut::Up(at)) => send = &bytes[..at % n],
                    Some(cut) => *up_says.lock().expect("down") = Some(cut),
                    None => {}
                }
            }
            if to_server.write_all(send).is_err() {
                break;
            }
            if send.len() < n {
                up_shared.done.fetch_add(1, Ordering::AcqRel);
                break;
            }
        }
        close(&from_client, &to_server);
    });
    let (mut from_server, mut to_client) = (server, client);
    std::thread::spawn(move || {
        let mut piece = vec![0; 1 << 20];
        let mut passed = 0;
        while let Ok(n) = from_server.read(&mut piece)
            && n > 0
        {
            let bytes = &piece[..n];
            let cut = *down.lock().expect("down");
            let end = match cut {
                Some(Cut::Down(at)) if bytes.ends_with(&READY) => Some(at.saturating_sub(passed).min(n - 1)),
                Some(Cut::Down(at)) => (passed + n >= at).then(|| at.saturating_sub(passed)),
                Some(Cut::DownBehind(at)) if bytes.ends_with(&READY) => {
                    *down.lock().expect("down") = Some(Cut::Down(at));
                    passed = 0;
                    None
                }
                Some(Cut::BeforeReady) => bytes.ends_with(&READY).then(|| n - READY.len()),
                _ => None,
            };
            passed += if matches!(cut, Some(Cut::Down(_))) { n } else { 0 };
            if to_client.write_all(&bytes[..end.unwrap_or(n)]).is_err() {
                break;
            }
            if end.is_some() {
                down_shared.done.fetch_add(1, Ordering::AcqRel);
                break;
            }
        }
        close(&from_server, &to_client);
    });
}

fn close(one: &TcpStream, other: &TcpStream) {
    let _ = one.shutdown(Shutdown::Both);
    let _ = other.shutdown(Shutdown::Both);
}
