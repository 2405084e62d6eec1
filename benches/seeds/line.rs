//! A connection that costs the client next to nothing: what is sent was made before, and of the answers only their ends and
//! errors are looked at. Never: reads while it writes, so one burst is at most what the sockets' buffers hold.

use std::io::{Read, Write};
use std::net::TcpStream;

use pgsluice::wire::frame::{HEADER_BYTES, header};
use pgsluice::wire::{backend, frontend};

use crate::support::PATIENCE;

pub struct Line {
    stream: TcpStream,
    buf: Vec<u8>,
    /// The server process.
    pub pid: u32,
}

impl Line {
    /// Logs in as superuser `postgres` (trust).
    pub fn new(port: u16, database: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut startup = vec![0, 0, 0, 0, 0, 3, 0, 0];
        startup.extend_from_slice(format!("user\0postgres\0database\0{database}\0\0").as_bytes());
        let length = (startup.len() as u32).to_be_bytes();
        startup[..4].copy_from_slice(&length);
        let mut line = Self { stream, buf: Vec::with_capacity(1 << 16), pid: 0 };
        line.run(&startup, 1);
        line
    }

    /// Sends `bytes` and reads until `ends` ReadyForQuery have come; the last value of the last DataRow of one column, if there
    /// was one. Panics on an ErrorResponse.
    pub fn run(&mut self, bytes: &[u8], mut ends: usize) -> Option<Vec<u8>> {
        self.stream.write_all(bytes).expect("send");
        self.buf.clear();
        let (mut pos, mut value) = (0, None);
        while ends > 0 {
            let rest = &self.buf[pos..];
            let Some(head) = header(rest, usize::MAX).expect("frame") else {
                self.fill();
                continue;
            };
            let Some(body) = rest.get(HEADER_BYTES..head.total()) else {
                self.fill();
                continue;
            };
            match head.tag {
                backend::READY_FOR_QUERY => ends -= 1,
                backend::ERROR_RESPONSE => panic!("the server says {}", body.escape_ascii()),
                backend::DATA_ROW => value = body.get(6..).map(<[u8]>::to_vec),
                backend::BACKEND_KEY_DATA => {
                    self.pid = u32::from_be_bytes([body[0], body[1], body[2], body[3]]);
                }
                _ => {}
            }
            pos += head.total();
        }
        value
    }

    /// One Query.
    pub fn query(&mut self, text: &str) {
        let mut bytes = Vec::new();
        frontend::put_query(&mut bytes, text.as_bytes());
        self.run(&bytes, 1);
    }

    /// Prepares `text` as `name`.
    pub fn prepare(&mut self, name: &str, text: &str) {
        let mut bytes = Vec::new();
        frontend::put_parse(&mut bytes, name.as_bytes(), text.as_bytes(), &[]);
        frontend::put_empty(&mut bytes, frontend::SYNC);
        self.run(&bytes, 1);
    }

    fn fill(&mut self) {
        let begin = self.buf.len();
        self.buf.resize(begin + (1 << 16), 0);
        let n = self.stream.read(&mut self.buf[begin..]).expect("read");
        assert!(n > 0, "the connection was closed");
        self.buf.truncate(begin + n);
    }
}

/// Appends Bind and Execute of a prepared statement with text parameters.
pub fn put_run(out: &mut Vec<u8>, name: &str, params: &[Option<&[u8]>]) {
    frontend::put_bind_text(out, name.as_bytes(), params);
    frontend::put_execute(out, b"", 0);
}
