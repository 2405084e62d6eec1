//! A superuser's own session over the Unix socket, with `trust`. It prints what psql would, without a process for each query: the tests
//! make thousands of them.

use std::io::{Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pgsluice::wire::{backend, frame, frontend};

use super::Message;

/// An open session.
pub(super) struct Direct {
    stream: UnixStream,
    buf: Vec<u8>,
}

impl Direct {
    /// Logs in as `postgres`.
    pub(super) fn login(socket_dir: &Path, port: u16, database: &str) -> Result<Self, String> {
        let path = socket_dir.join(format!(".s.PGSQL.{port}"));
        let mut direct = Self { stream: UnixStream::connect(&path).map_err(told)?, buf: Vec::new() };
        let mut body = (3u32 << 16).to_be_bytes().to_vec();
        body.extend_from_slice(
            format!("user\0postgres\0database\0{database}\0application_name\0psql\0\0").as_bytes(),
        );
        let length = (body.len() as u32 + 4).to_be_bytes();
        direct.stream.write_all(&[&length[..], &body].concat()).map_err(told)?;
        direct.answer()?;
        Ok(direct)
    }

    /// Runs `sql` as one Query; rows come as lines, columns apart by `|`. The error says SQLSTATE and message.
    pub(super) fn run(&mut self, sql: &str) -> Result<String, String> {
        let mut out = Vec::new();
        frontend::put_query(&mut out, sql.as_bytes());
        self.stream.write_all(&out).map_err(told)?;
        self.answer()
    }

    /// Up to ReadyForQuery.
    fn answer(&mut self) -> Result<String, String> {
        let (mut rows, mut error) = (String::new(), None);
        loop {
            let message = match self.read() {
                Ok(message) => message,
                // What the server said before it closed.
                Err(closed) => return Err(error.unwrap_or(told(closed))),
            };
            match message.tag {
                backend::READY_FOR_QUERY => return error.map_or(Ok(rows), Err),
                backend::ERROR_RESPONSE => {
                    let [severity, code, text] = [b'S', b'C', b'M'].map(|kind| message.field(kind));
                    error = error.or(Some(format!("{severity}:  {code}: {text}")));
                }
                backend::DATA_ROW => {
                    let row = message.row().into_iter().map(Option::unwrap_or_default);
                    rows.push_str(&row.collect::<Vec<_>>().join("|"));
                    rows.push('\n');
                }
                backend::COPY_IN_RESPONSE | backend::COPY_OUT_RESPONSE => panic!("COPY needs a client"),
                backend::AUTHENTICATION if message.body != [0; 4] => {
                    return Err("a password is asked for".into());
                }
                _ => {}
            }
        }
    }

    fn read(&mut self) -> Result<Message, Error> {
        let mut piece = [0; 16 << 10];
        loop {
            if let Some((header, body)) = frame::whole(&self.buf, usize::MAX).expect("frame") {
                let message = Message { tag: header.tag, body: body.to_vec() };
                self.buf.drain(..header.total());
                return Ok(message);
            }
            match self.stream.read(&mut piece)? {
                0 => return Err(Error::other("the server closed the connection")),
                n => self.buf.extend_from_slice(&piece[..n]),
            }
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let mut out = Vec::new();
        frontend::put_empty(&mut out, frontend::TERMINATE);
        let _ = self.stream.write_all(&out);
    }
}

fn told(error: Error) -> String {
    error.to_string()
}
