//! The ceiling: a server that answers as PostgreSQL answers these loads, and stores nothing. What a client reaches there is the
//! most that any server, however quick, could give it on this machine.
//!
//! A process of its own, this program's, on one thread. Trusts its client, which is pgbench.

use std::io;

use pgsluice::wire::{TransactionStatus, backend, frame, frontend, startup};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The argument that makes this program the server; the port follows.
pub const ARGUMENT: &str = "--answer-only";

/// Answers on `port` until the process is ended.
pub fn serve(port: u16) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
        loop {
            let Ok((client, _)) = listener.accept().await else { continue };
            tokio::task::spawn_local(answer(client));
        }
    });
}

/// Longest message that a load has.
const MESSAGE_MAX: usize = 1 << 16;

async fn answer(mut client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let length = client.read_u32().await? as usize;
    client.read_exact(&mut vec![0; length.saturating_sub(4).min(MESSAGE_MAX)]).await?;
    let (mut input, mut output) = (Vec::with_capacity(MESSAGE_MAX), Vec::new());
    startup::put_authentication(&mut output, 0, &[]);
    backend::put_ready_for_query(&mut output, TransactionStatus::Idle);
    let mut session = Session::default();
    loop {
        client.write_all(&output).await?;
        output.clear();
        if client.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let mut at = 0;
        while let Ok(Some((head, body))) = frame::whole(&input[at..], MESSAGE_MAX) {
            session.answer(head.tag, body, &mut output);
            at += head.total();
        }
        input.drain(..at);
    }
}

#[derive(Default)]
struct Session {
    in_block: bool,
    /// The statements that were prepared, by name: what each does.
    prepared: Vec<(Vec<u8>, Command)>,
    bound: Command,
}

#[derive(Clone, Copy, Default)]
enum Command {
    Begin,
    Commit,
    #[default]
    Insert,
}

impl Command {
    fn of(text: &[u8]) -> Self {
        match text.first() {
            Some(b'B') => Self::Begin,
            Some(b'C') => Self::Commit,
            _ => Self::Insert,
        }
    }
}

impl Session {
    fn answer(&mut self, tag: u8, body: &[u8], out: &mut Vec<u8>) {
        match tag {
            frontend::QUERY => {
                self.run(Command::of(body), out);
                self.ready(out);
            }
            frontend::PARSE => {
                if let Ok(parse) = frontend::Parse::decode(body) {
                    self.prepared.retain(|(name, _)| name != parse.name);
                    self.prepared.push((parse.name.to_vec(), Command::of(parse.query)));
                }
                backend::put_empty(out, backend::PARSE_COMPLETE);
            }
            frontend::BIND => {
                // Portal (the unnamed one) and statement.
                let name = body.get(1..).and_then(|rest| rest.split(|b| *b == 0).next()).unwrap_or_default();
                let known = self.prepared.iter().find(|(n, _)| n == name);
                self.bound = known.map_or(Command::Insert, |(_, command)| *command);
                backend::put_empty(out, backend::BIND_COMPLETE);
            }
            frontend::DESCRIBE => backend::put_empty(out, backend::NO_DATA),
            frontend::EXECUTE => self.run(self.bound, out),
            frontend::SYNC => self.ready(out),
            _ => {}
        }
    }

    fn run(&mut self, command: Command, out: &mut Vec<u8>) {
        let (in_block, tag): (_, &[u8]) = match command {
            Command::Begin => (true, b"BEGIN"),
            Command::Commit => (false, b"COMMIT"),
            Command::Insert => (self.in_block, b"INSERT 0 1"),
        };
        self.in_block = in_block;
        backend::put_command_complete(out, tag);
    }

    fn ready(&self, out: &mut Vec<u8>) {
        let status = if self.in_block { TransactionStatus::InTransaction } else { TransactionStatus::Idle };
        backend::put_ready_for_query(out, status);
    }
}
