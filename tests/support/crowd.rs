//! Several clients that work at the same time, each through a script of its own.

use std::sync::Barrier;

use pgsluice::wire::{backend, frontend};

use super::{Message, Raw};

/// Messages that a client sends at once, and the number of ReadyForQuery that end the answers.
#[derive(Debug, Clone)]
pub struct Step {
    /// The messages.
    pub bytes: Vec<u8>,
    /// ReadyForQuery to read before the next step.
    pub ready: usize,
}

impl Step {
    /// A simple Query.
    pub fn query(sql: &str) -> Self {
        let mut bytes = Vec::new();
        frontend::put_query(&mut bytes, sql.as_bytes());
        Self { bytes, ready: 1 }
    }

    /// Parse, Bind, Describe, Execute, Sync of an unnamed statement with text parameters.
    pub fn extended(sql: &str, params: &[Option<&str>]) -> Self {
        Self::typed(sql, &[], params)
    }

    /// The same, of parameters whose types are declared.
    pub fn typed(sql: &str, types: &[u32], params: &[Option<&str>]) -> Self {
        let mut bytes = Vec::new();
        let params: Vec<_> = params.iter().map(|p| p.map(str::as_bytes)).collect();
        let types: Vec<u8> = types.iter().flat_map(|oid| oid.to_be_bytes()).collect();
        frontend::put_parse(&mut bytes, b"", sql.as_bytes(), &types);
        frontend::put_bind_text(&mut bytes, b"", &params);
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'P', b"");
        frontend::put_execute(&mut bytes, b"", 0);
        frontend::put_empty(&mut bytes, frontend::SYNC);
        Self { bytes, ready: 1 }
    }

    /// Parse of a named statement, Describe, Sync.
    pub fn prepare(name: &str, sql: &str) -> Self {
        let mut bytes = Vec::new();
        frontend::put_parse(&mut bytes, name.as_bytes(), sql.as_bytes(), &[]);
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', name.as_bytes());
        frontend::put_empty(&mut bytes, frontend::SYNC);
        Self { bytes, ready: 1 }
    }

    /// Bind, Execute, Sync of a named statement with text parameters.
    pub fn execute(name: &str, params: &[Option<&str>]) -> Self {
        let mut bytes = Vec::new();
        let params: Vec<_> = params.iter().map(|p| p.map(str::as_bytes)).collect();
        frontend::put_bind_text(&mut bytes, name.as_bytes(), &params);
        frontend::put_execute(&mut bytes, b"", 0);
        frontend::put_empty(&mut bytes, frontend::SYNC);
        Self { bytes, ready: 1 }
    }

    /// Parse of an unnamed statement, Bind and Execute for each row of text parameters, and one Sync for all or one each.
    pub fn pipeline(sql: &str, rows: impl IntoIterator<Item = [String; 2]>, sync_each: bool) -> Self {
        let (mut bytes, mut ready) = (Vec::new(), 0);
        frontend::put_parse(&mut bytes, b"", sql.as_bytes(), &[]);
        for row in rows {
            frontend::put_bind_text(&mut bytes, b"", &row.each_ref().map(|value| Some(value.as_bytes())));
            frontend::put_execute(&mut bytes, b"", 0);
            if sync_each {
                frontend::put_empty(&mut bytes, frontend::SYNC);
                ready += 1;
            }
        }
        if !sync_each {
            frontend::put_empty(&mut bytes, frontend::SYNC);
            ready = 1;
        }
        Self { bytes, ready }
    }
}

/// Appends a Bind with every parameter in binary.
pub fn put_bind_binary(out: &mut Vec<u8>, statement: &[u8], params: &[Option<&[u8]>]) {
    pgsluice::wire::frame::put(out, frontend::BIND, |out| {
        out.push(0);
        out.extend_from_slice(statement);
        out.extend_from_slice(&[0, 0, 1, 0, 1]);
        out.extend_from_slice(&(params.len() as u16).to_be_bytes());
        for param in params {
            match param {
                Some(bytes) => {
                    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
                    out.extend_from_slice(bytes);
                }
                None => out.extend_from_slice(&(-1i32).to_be_bytes()),
            }
        }
        out.extend_from_slice(&[0, 0]);
    });
}

/// Changes a Bind to the unnamed portal into one to `portal`.
pub fn to_portal(bind: &[u8], portal: &[u8]) -> Vec<u8> {
    let mut bytes = bind.to_vec();
    bytes.splice(5..5, portal.iter().copied());
    let length = (bytes.len() - 1) as u32;
    bytes[1..5].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Runs each client's script; all begin at the same moment, and each step, too, if `in_step`. Returns each client's
/// answers, which end early if its connection closed.
pub fn run(clients: &mut [Raw], scripts: &[Vec<Step>], in_step: bool) -> Vec<Vec<Message>> {
    assert_eq!(clients.len(), scripts.len());
    let longest = scripts.iter().map(Vec::len).max().unwrap_or_default();
    let barrier = Barrier::new(clients.len());
    std::thread::scope(|scope| {
        let work: Vec<_> = clients
            .iter_mut()
            .zip(scripts)
            .map(|(client, script)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    let mut open = true;
                    for at in 0..longest {
                        if at == 0 || in_step {
                            barrier.wait();
                        }
                        if let Some(step) = script.get(at).filter(|_| open) {
                            open =
                                client.try_send(&step.bytes).is_ok() && answer(client, step.ready, &mut seen);
                        }
                    }
                    seen
                })
            })
            .collect();
        work.into_iter().map(|w| w.join().expect("a client panicked")).collect()
    })
}

/// Reads to the last ReadyForQuery; false: the connection closed.
fn answer(client: &mut Raw, ready: usize, seen: &mut Vec<Message>) -> bool {
    let mut left = ready;
    while left > 0 {
        let Some(message) = client.try_read() else { return false };
        left -= usize::from(message.tag == backend::READY_FOR_QUERY);
        seen.push(message);
    }
    true
}

/// The outline of a conversation without positions in the text and source lines of the server.
pub fn comparable(messages: &[Message]) -> String {
    use std::fmt::Write as _;
    let mut all = String::new();
    for message in messages {
        if matches!(message.tag, backend::ERROR_RESPONSE | backend::NOTICE_RESPONSE) {
            let _ = write!(all, "{}", char::from(message.tag));
            for (kind, value) in backend::ErrorFields::new(&message.body) {
                if !b"PpL".contains(&kind) {
                    let _ = write!(all, " {}={:?}", char::from(kind), String::from_utf8_lossy(value));
                }
            }
            all.push('\n');
        } else if message.tag != backend::PARAMETER_STATUS {
            let message = Message { tag: message.tag, body: without_oids(message) };
            all.push_str(&message.outline());
            all.push('\n');
        }
    }
    all
}

/// The body without object ids that differ between twin databases: those of tables in a RowDescription and of types that
/// are not built in.
fn without_oids(message: &Message) -> Vec<u8> {
    let mut body = message.body.clone();
    match message.tag {
        backend::PARAMETER_DESCRIPTION => {
            for oid in body[2..].chunks_exact_mut(4).filter(|oid| **oid >= 16384u32.to_be_bytes()[..]) {
                oid.fill(0);
            }
        }
        backend::ROW_DESCRIPTION => {
            let mut at = 2;
            while let Some(end) = body.get(at..).and_then(|rest| rest.iter().position(|b| *b == 0)) {
                let oid = at + end + 1;
                body[oid..oid + 4].fill(0);
                if body[oid + 6..oid + 10] >= 16384u32.to_be_bytes()[..] {
                    body[oid + 6..oid + 10].fill(0);
                }
                at = oid + 18;
            }
        }
        _ => {}
    }
    body
}
