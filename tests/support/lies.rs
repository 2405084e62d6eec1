//! A relay in front of PostgreSQL that changes the answer to a flush.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pgsluice::wire::{TransactionStatus, backend as b, frame};

use super::relay::{has_flush, listen};

pub type Frames = Vec<(u8, Vec<u8>)>;

/// Changes the frames of an honest answer.
pub type Lie = fn(&mut Frames);

#[derive(Default)]
struct Shared {
    armed: Mutex<Option<Lie>>,
    told: AtomicUsize,
    flushes: AtomicUsize,
}

/// The relay. Its threads end with their connections.
pub struct Liar {
    port: u16,
    shared: Arc<Shared>,
}

impl Liar {
    /// In front of the server on 127.0.0.1:`target`.
    pub fn start(target: u16) -> Self {
        let shared = Arc::default();
        let all = Arc::clone(&shared);
        let port = listen(target, move |client, server| relay(client, server, &all));
        Self { port, shared }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes the answer to the next flush, which is the next one on its connection if another is under way there.
    pub fn arm(&self, lie: Lie) {
        *self.shared.armed.lock().expect("armed") = Some(lie);
    }

    /// Answers changed so far.
    pub fn told(&self) -> usize {
        self.shared.told.load(Ordering::Acquire)
    }

    /// Flushes seen so far. A lie that was armed before this call changes the answer to a later one.
    pub fn flushes(&self) -> usize {
        self.shared.flushes.load(Ordering::Acquire)
    }
}

fn relay(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    let lie: Arc<Mutex<Option<Lie>>> = Arc::default();
    let (mut up, mut to_server) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
    let (lies, all) = (Arc::clone(&lie), Arc::clone(shared));
    std::thread::spawn(move || {
        let mut piece = vec![0; 1 << 20];
        while let Ok(n) = up.read(&mut piece)
            && n > 0
        {
            if has_flush(&piece[..n]) {
                if let Some(armed) = all.armed.lock().expect("armed").take() {
                    *lies.lock().expect("lie") = Some(armed);
                }
                all.flushes.fetch_add(1, Ordering::AcqRel);
            }
            if to_server.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        let _ = (up.shutdown(Shutdown::Both), to_server.shutdown(Shutdown::Both));
    });
    let (mut down, mut to_client, shared) = (server, client, Arc::clone(shared));
    std::thread::spawn(move || {
        let (mut piece, mut held) = (vec![0; 1 << 20], Vec::new());
        while let Ok(n) = down.read(&mut piece)
            && n > 0
        {
            held.extend_from_slice(&piece[..n]);
            let armed = *lie.lock().expect("lie");
            if let Some(tell) = armed {
                let Some((mut frames, end)) = whole_answer(&held) else { continue };
                tell(&mut frames);
                let behind = held.split_off(end);
                held.clear();
                for (tag, body) in &frames {
                    frame::put(&mut held, *tag, |out| out.extend_from_slice(body));
                }
                held.extend_from_slice(&behind);
                *lie.lock().expect("lie") = None;
                shared.told.fetch_add(1, Ordering::AcqRel);
            }
            if to_client.write_all(&held).is_err() {
                break;
            }
            held.clear();
        }
        let _ = (down.shutdown(Shutdown::Both), to_client.shutdown(Shutdown::Both));
    });
}

/// The frames of an answer and where it ends, once its ReadyForQuery is there.
fn whole_answer(bytes: &[u8]) -> Option<(Frames, usize)> {
    let (mut frames, mut end) = (Vec::new(), 0);
    while let Ok(Some((head, body))) = frame::whole(&bytes[end..], usize::MAX) {
        frames.push((head.tag, body.to_vec()));
        end += head.total();
        if head.tag == b::READY_FOR_QUERY {
            return Some((frames, end));
        }
    }
    None
}

fn each(frames: &mut Frames, tag: u8, change: impl Fn(&mut Vec<u8>)) {
    frames.iter_mut().filter(|f| f.0 == tag).for_each(|f| change(&mut f.1));
}

fn ready(status: TransactionStatus) -> (u8, Vec<u8>) {
    (b::READY_FOR_QUERY, vec![status.as_byte()])
}

fn error() -> (u8, Vec<u8>) {
    (b::ERROR_RESPONSE, b"SERROR\0C23505\0Ma lie\0WCOPY t, line 1\0\0".to_vec())
}

/// Lies that a server may tell, by name.
pub const LIES: &[(&str, Lie)] = &[
    ("more rows than were sent", |f| each(f, b::COMMAND_COMPLETE, |body| *body = b"COPY 4711\0".to_vec())),
    ("a count that is none", |f| {
        each(f, b::COMMAND_COMPLETE, |body| *body = b"COPY 99999999999999999999\0".to_vec())
    }),
    ("a tag without its zero", |f| each(f, b::COMMAND_COMPLETE, |body| *body = b"COPY 1".to_vec())),
    ("another command's tag", |f| each(f, b::COMMAND_COMPLETE, |body| *body = b"INSERT 0 1\0".to_vec())),
    ("no tag at all", |f| f.retain(|f| f.0 != b::COMMAND_COMPLETE)),
    ("every tag twice", |f| {
        let twice = f
            .iter()
            .flat_map(|f| if f.0 == b::COMMAND_COMPLETE { vec![f.clone(); 2] } else { vec![f.clone()] });
        *f = twice.collect();
    }),
    ("no row from the guard", |f| f.retain(|f| f.0 != b::DATA_ROW)),
    ("a row of nothing", |f| each(f, b::DATA_ROW, |body| *body = vec![0, 0])),
    ("a row that lies about its fields", |f| {
        each(f, b::DATA_ROW, |body| *body = vec![0xff, 0xff, 0x7f, 0xff, 0xff, 0xff])
    }),
    ("rows without end", |f| {
        let rows = vec![(b::DATA_ROW, vec![0, 1, 0xff, 0xff, 0xff, 0xff]); 50_000];
        let at = f.len() - 1;
        f.splice(at..at, rows);
    }),
    ("done before it began", |f| f.insert(0, ready(TransactionStatus::Idle))),
    ("done twice", |f| f.push(ready(TransactionStatus::Idle))),
    ("in a transaction that nobody began", |f| {
        *f.last_mut().expect("ready") = ready(TransactionStatus::InTransaction)
    }),
    ("a transaction failed, and no error", |f| {
        *f.last_mut().expect("ready") = ready(TransactionStatus::Failed)
    }),
    ("a status that is none", |f| *f.last_mut().expect("ready") = (b::READY_FOR_QUERY, b"X".to_vec())),
    ("settings without end", |f| {
        let storm = (0..20_000).map(|n| (b::PARAMETER_STATUS, format!("a.s{n}\0x\0").into_bytes()));
        f.splice(0..0, storm.collect::<Vec<_>>());
    }),
    ("notifications between all of it", |f| {
        let odd = (b::NOTIFICATION_RESPONSE, b"\0\0\0\x01of another\0of another\0".to_vec());
        *f = f.iter().flat_map(|f| [odd.clone(), f.clone()]).collect();
    }),
    ("an error behind the tag", |f| f.insert(f.len() - 1, error())),
    ("two errors and nothing else", |f| *f = vec![error(), error(), ready(TransactionStatus::Idle)]),
    ("an error of 8 MB", |f| {
        let body = [b"SERROR\0C23505\0M".to_vec(), vec![b'x'; 8 << 20], b"\0\0".to_vec()].concat();
        *f = vec![(b::ERROR_RESPONSE, body), ready(TransactionStatus::Idle)];
    }),
    ("a login", |f| f.insert(0, (b::AUTHENTICATION, vec![0; 4]))),
    ("COPY out of nowhere", |f| f.insert(0, (b::COPY_OUT_RESPONSE, vec![0, 0, 0]))),
    ("a type that is none", |f| f.insert(0, (b'?', Vec::new()))),
];
