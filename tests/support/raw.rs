//! A client that speaks the protocol by hand, so that a test can say exactly what it sends.
//!
//! Blocking; every read has a deadline, so nothing hangs: it panics and says what came before.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use pgsluice::wire::backend::{self, ErrorFields};
use pgsluice::wire::frontend;
use postgres_protocol::authentication::{md5_hash, sasl};

use super::PATIENCE;

/// Messages remembered, for a panic to say what came before.
const SEEN_KEPT: usize = 40;

/// One message from the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The type byte.
    pub tag: u8,
    /// Without the header.
    pub body: Vec<u8>,
}

impl Message {
    /// A field of an ErrorResponse or NoticeResponse as text; empty when there is none.
    pub fn field(&self, kind: u8) -> String {
        text(ErrorFields::new(&self.body).field(kind).unwrap_or_default())
    }

    /// SQLSTATE of an ErrorResponse or NoticeResponse.
    pub fn sqlstate(&self) -> String {
        self.field(b'C')
    }

    /// The tag of a CommandComplete.
    pub fn command(&self) -> String {
        text(self.body.strip_suffix(&[0]).unwrap_or(&self.body))
    }

    /// The values of a DataRow as text; `None` is NULL.
    pub fn row(&self) -> Vec<Option<String>> {
        let values = backend::data_row(&self.body).expect("DataRow");
        values.into_iter().map(|v| v.map(text)).collect()
    }

    /// One line that says everything an application could see, for comparing two conversations.
    pub fn outline(&self) -> String {
        let mut line = String::from(char::from(self.tag));
        match self.tag {
            backend::ERROR_RESPONSE | backend::NOTICE_RESPONSE => {
                for (kind, value) in ErrorFields::new(&self.body) {
                    let _ = write!(line, " {}={:?}", char::from(kind), text(value));
                }
            }
            backend::DATA_ROW => {
                let _ = write!(line, " {:?}", self.row());
            }
            backend::BACKEND_KEY_DATA => {}
            _ => {
                let _ = write!(line, " {}", self.body.escape_ascii());
            }
        }
        line
    }
}

/// A CancelRequest.
pub fn cancel_packet(pid: i32, key: &[u8]) -> Vec<u8> {
    let mut packet = (12 + key.len() as u32).to_be_bytes().to_vec();
    packet.extend_from_slice(&80_877_102u32.to_be_bytes());
    packet.extend_from_slice(&pid.to_be_bytes());
    packet.extend_from_slice(key);
    packet
}

/// The outline of each message, one a line.
pub fn outline(messages: &[Message]) -> String {
    messages.iter().map(|m| m.outline() + "\n").collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A raw connection.
pub struct Raw {
    stream: TcpStream,
    buf: Vec<u8>,
    seen: VecDeque<String>,
    /// Process id of BackendKeyData.
    pub pid: i32,
    /// Secret of BackendKeyData.
    pub key: Vec<u8>,
    /// ParameterStatus messages of the login, and of later reads.
    pub parameters: Vec<(String, String)>,
}

impl Raw {
    /// TCP only; nothing is sent.
    pub fn connect(port: u16) -> Self {
        Self::over(TcpStream::connect(("127.0.0.1", port)).expect("connect"))
    }

    /// Over a connection that is there.
    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
        Self {
            stream,
            buf: Vec::new(),
            seen: VecDeque::new(),
            pid: 0,
            key: Vec::new(),
            parameters: Vec::new(),
        }
    }

    /// Logs in as superuser `postgres`; panics when that is refused.
    pub fn login(port: u16, database: &str) -> Self {
        Self::login_as(port, &[("user", "postgres"), ("database", database)], "")
            .unwrap_or_else(|e| panic!("login refused: {}", e.outline()))
    }

    /// Logs in with these startup parameters and this password (used when asked for: clear, MD5 or
    /// SCRAM). The error is the ErrorResponse.
    pub fn login_as(port: u16, parameters: &[(&str, &str)], password: &str) -> Result<Self, Message> {
        let mut raw = Self::connect(port);
        raw.startup(3 << 16, parameters);
        let user = parameters.iter().find(|(k, _)| *k == "user").map(|(_, v)| *v).unwrap_or_default();
        raw.authenticate(user, password)?;
        Ok(raw)
    }

    /// Sends a StartupMessage of protocol `version` (`3 << 16 | minor`).
    pub fn startup(&mut self, version: u32, parameters: &[(&str, &str)]) {
        let mut body = version.to_be_bytes().to_vec();
        for (key, value) in parameters {
            body.extend_from_slice(key.as_bytes());
            body.push(0);
            body.extend_from_slice(value.as_bytes());
            body.push(0);
        }
        body.push(0);
        let mut packet = (body.len() as u32 + 4).to_be_bytes().to_vec();
        packet.extend_from_slice(&body);
        self.send(&packet);
    }

    /// Answers what the server asks until the first ReadyForQuery.
    pub fn authenticate(&mut self, user: &str, password: &str) -> Result<(), Message> {
        let mut scram: Option<sasl::ScramSha256> = None;
        loop {
            let message = self.read();
            match message.tag {
                backend::AUTHENTICATION => self.answer(&message.body, user, password, &mut scram),
                backend::BACKEND_KEY_DATA => {
                    let (pid, key) = backend::backend_key_data(&message.body).expect("BackendKeyData");
                    self.pid = pid;
                    self.key = key.to_vec();
                }
                backend::READY_FOR_QUERY => return Ok(()),
                backend::ERROR_RESPONSE => return Err(message),
                _ => {}
            }
        }
    }

    fn answer(&mut self, body: &[u8], user: &str, password: &str, scram: &mut Option<sasl::ScramSha256>) {
        let code = i32::from_be_bytes(body[..4].try_into().expect("authentication code"));
        let reply = match code {
            0 | 12 => return,
            3 => [password.as_bytes(), &[0]].concat(),
            5 => {
                let salt = body[4..8].try_into().expect("salt");
                [md5_hash(user.as_bytes(), password.as_bytes(), salt).as_bytes(), &[0]].concat()
            }
            10 => {
                let first = scram
                    .insert(sasl::ScramSha256::new(password.as_bytes(), sasl::ChannelBinding::unsupported()));
                let length = (first.message().len() as u32).to_be_bytes();
                [b"SCRAM-SHA-256\0".as_slice(), &length, first.message()].concat()
            }
            11 => {
                let scram = scram.as_mut().expect("SASLContinue after SASL");
                scram.update(&body[4..]).expect("server-first-message");
                scram.message().to_vec()
            }
            other => panic!("authentication request {other}"),
        };
        let mut message = Vec::new();
        pgsluice::wire::frame::put(&mut message, frontend::PASSWORD, |out| out.extend_from_slice(&reply));
        self.send(&message);
    }

    /// Waits until something is there to be read, and leaves it there.
    pub fn hear(&mut self) {
        assert!(!self.buf.is_empty() || self.fill(), "connection closed; seen: {:?}", self.seen);
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap_or_else(|e| panic!("send: {e}; seen: {:?}", self.seen));
    }

    /// As [`Self::send`], for tests in which the other side may have closed.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next message; panics at the end of the stream or when nothing comes.
    pub fn read(&mut self) -> Message {
        let message = self.try_read();
        message.unwrap_or_else(|| panic!("connection closed; seen: {:?}", self.seen))
    }

    /// The next message, or `None` at the end of the stream (also when the other side reset it).
    pub fn try_read(&mut self) -> Option<Message> {
        loop {
            if let Some((header, body)) = pgsluice::wire::frame::whole(&self.buf, usize::MAX).expect("frame")
            {
                let message = Message { tag: header.tag, body: body.to_vec() };
                let total = header.total();
                self.buf.drain(..total);
                self.note(&message);
                return Some(message);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// One byte outside of any message: the answer to SSLRequest.
    pub fn read_byte(&mut self) -> Option<u8> {
        while self.buf.is_empty() {
            if !self.fill() {
                return None;
            }
        }
        Some(self.buf.remove(0))
    }

    fn fill(&mut self) -> bool {
        let mut piece = [0; 64 << 10];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(n) => {
                self.buf.extend_from_slice(&piece[..n]);
                true
            }
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => false,
            Err(e) if e.kind() == ErrorKind::Interrupted => true,
            Err(e) => panic!("no message within {PATIENCE:?} ({e}); seen: {:?}", self.seen),
        }
    }

    fn note(&mut self, message: &Message) {
        if message.tag == backend::PARAMETER_STATUS
            && let Ok((name, value)) = backend::parameter_status(&message.body)
        {
            self.parameters.retain(|(n, _)| n.as_bytes() != name);
            self.parameters.push((text(name), text(value)));
        }
        let mut line = message.outline();
        line.truncate(line.floor_char_boundary(200));
        self.seen.push_back(line);
        if self.seen.len() > SEEN_KEPT {
            self.seen.pop_front();
        }
    }

    /// All messages up to and with the next ReadyForQuery.
    pub fn read_until_ready(&mut self) -> Vec<Message> {
        self.read_until(backend::READY_FOR_QUERY)
    }

    /// All messages up to and with the next one of type `tag`.
    pub fn read_until(&mut self, tag: u8) -> Vec<Message> {
        let mut all = vec![self.read()];
        while all.last().is_some_and(|m| m.tag != tag) {
            all.push(self.read());
        }
        all
    }

    /// All messages up to the end of the stream; panics when it does not end.
    pub fn read_until_closed(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.try_read()).collect()
    }

    /// A simple Query; all messages up to ReadyForQuery.
    pub fn query(&mut self, sql: &str) -> Vec<Message> {
        let mut out = Vec::new();
        frontend::put_query(&mut out, sql.as_bytes());
        self.send(&out);
        self.read_until_ready()
    }

    /// A simple Query that must succeed; the rows.
    pub fn rows(&mut self, sql: &str) -> Vec<Vec<Option<String>>> {
        let messages = self.query(sql);
        if let Some(error) = messages.iter().find(|m| m.tag == backend::ERROR_RESPONSE) {
            panic!("{sql}: {}", error.outline());
        }
        messages.iter().filter(|m| m.tag == backend::DATA_ROW).map(Message::row).collect()
    }

    /// A simple Query that must give one row of one column.
    pub fn value(&mut self, sql: &str) -> Option<String> {
        let rows = self.rows(sql);
        assert!(rows.len() == 1 && rows[0].len() == 1, "{sql}: {rows:?}");
        rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten()
    }

    /// A simple Query that must fail; the ErrorResponse.
    pub fn error(&mut self, sql: &str) -> Message {
        let messages = self.query(sql);
        let error = messages.iter().find(|m| m.tag == backend::ERROR_RESPONSE);
        error.cloned().unwrap_or_else(|| panic!("{sql} did not fail:\n{}", outline(&messages)))
    }

    /// Parse, Bind, Describe, Execute, Sync of an unnamed statement with text parameters; all
    /// messages up to ReadyForQuery.
    pub fn extended(&mut self, sql: &str, params: &[Option<&str>]) -> Vec<Message> {
        let mut out = Vec::new();
        let params: Vec<_> = params.iter().map(|p| p.map(str::as_bytes)).collect();
        frontend::put_parse(&mut out, b"", sql.as_bytes(), &[]);
        frontend::put_bind_text(&mut out, b"", &params);
        frontend::put_target(&mut out, frontend::DESCRIBE, b'P', b"");
        frontend::put_execute(&mut out, b"", 0);
        frontend::put_empty(&mut out, frontend::SYNC);
        self.send(&out);
        self.read_until_ready()
    }

    /// Sends a CancelRequest for this session on a connection of its own, and waits until that closes.
    pub fn cancel(&self, port: u16) {
        self.send_cancel(port).read_until_closed();
    }

    /// As [`Self::cancel`], without the wait; gives that connection.
    pub fn send_cancel(&self, port: u16) -> Self {
        let mut other = Self::connect(port);
        other.send(&cancel_packet(self.pid, &self.key));
        other
    }

    /// Cancels again and again until something is answered: the request may come before the statement does.
    pub fn cancel_until_answered(&self, port: u16) {
        let answered = super::poll(PATIENCE, || {
            self.cancel(port);
            super::poll(std::time::Duration::from_secs(5), || self.has_answer().then_some(()))
        });
        assert!(answered.is_some(), "no answer; seen: {:?}", self.seen);
    }

    /// Something can be read without waiting.
    pub fn has_answer(&self) -> bool {
        self.stream.set_nonblocking(true).expect("nonblocking");
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("blocking");
        !self.buf.is_empty() || seen.is_ok()
    }

    /// Sends Terminate and waits until the other side closes.
    pub fn terminate(mut self) {
        let mut out = Vec::new();
        frontend::put_empty(&mut out, frontend::TERMINATE);
        let _ = self.try_send(&out);
        self.read_until_closed();
    }

    /// The socket alone, for a client that must cost little; nothing was read ahead.
    pub fn into_stream(self) -> TcpStream {
        assert!(self.buf.is_empty(), "bytes that were read");
        self.stream
    }

    /// Half-closes: no more bytes from here.
    pub fn shutdown_write(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}
