//! HTTP for monitoring: the status page, `/metrics`, `/healthz`, `/readyz`. Never: changes anything, reads a body.
//!
//! Some fixed answers to GET, one for each connection, on a port of its own that is closed unless `http_addr` opens it.
//! It goes on while the process drains, so that a load balancer hears of that.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::{Proxy, ServeError};
use crate::limits::{ACCEPT_PAUSE, HTTP_CONNECTIONS_MAX, HTTP_REST_BYTES_MAX, HTTP_TIME_MAX};
use crate::telemetry::request::{self, Bad};
use crate::telemetry::{events, exposition, html};

const TEXT: &str = "text/plain; charset=utf-8";

/// A piece of a request (bytes).
const PIECE_BYTES: usize = 1024;

/// What is answered.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn text(status: &'static str, body: &str) -> Self {
        Self { status, content_type: TEXT, body: format!("{body}\n") }
    }

    fn refusal(bad: Bad) -> Self {
        match bad {
            Bad::Malformed => Self::text("400 Bad Request", "this is no HTTP/1 request"),
            Bad::TooLong => Self::text("431 Request Header Fields Too Large", "the request is too long"),
            Bad::Method => Self::text("405 Method Not Allowed", "only GET and HEAD"),
            Bad::Version => Self::text("505 HTTP Version Not Supported", "only HTTP/1.0 and HTTP/1.1"),
        }
    }

    /// As bytes; `is_head`: without the body.
    fn encode(&self, is_head: bool) -> Vec<u8> {
        let Self { status, content_type, body } = self;
        let (length, policy) = (body.len(), html::SECURITY_POLICY.as_str());
        let mut out = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nAllow: GET, HEAD\r\n\
             Cache-Control: no-store\r\nContent-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
        );
        if !is_head {
            out.push_str(body);
        }
        out.into_bytes()
    }
}

/// Opens `http_addr`; nothing is answered there yet.
pub(super) async fn open(addr: SocketAddr) -> Result<TcpListener, ServeError> {
    let opened = TcpListener::bind(addr).await;
    opened.map_err(|e| ServeError(format!("cannot listen on {addr} (http_addr): {e}")))
}

/// Answers what comes there, until the process ends.
pub(super) fn serve(proxy: &Arc<Proxy>, addr: SocketAddr, listener: TcpListener) {
    events::listening(&format!("http://{addr}"));
    tokio::spawn(Arc::clone(proxy).accept_http(listener));
}

impl Proxy {
    async fn accept_http(self: Arc<Self>, listener: TcpListener) {
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            open.retain(|task| !task.is_finished());
            if open.len() >= HTTP_CONNECTIONS_MAX
                && let Some(oldest) = open.pop_front()
            {
                // A client that asks at once is answered at once: those that are still here are slow or silent, and must keep nobody out.
                oldest.abort();
            }
            let proxy = Arc::clone(&self);
            let task = tokio::spawn(async move {
                let _ = timeout(HTTP_TIME_MAX, proxy.answer_http(stream)).await;
            });
            open.push_back(task.abort_handle());
        }
    }

    async fn answer_http(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = Vec::new();
        let answer = loop {
            match request::parse(&request) {
                Ok(None) => {}
                Ok(Some(asked)) => break self.page(asked.path).encode(asked.is_head),
                Err(bad) => break Answer::refusal(bad).encode(false),
            }
            let mut piece = [0; PIECE_BYTES];
            match stream.read(&mut piece).await? {
                0 => return Ok(()),
                n => request.extend_from_slice(&piece[..n]),
            }
        };
        stream.write_all(&answer).await?;
        stream.shutdown().await?;
        drop(answer);
        read_rest(stream).await
    }

    fn page(&self, path: &str) -> Answer {
        match path {
            "/" => Answer { status: "200 OK", content_type: html::CONTENT_TYPE, body: self.status() },
            "/metrics" => {
                Answer { status: "200 OK", content_type: exposition::CONTENT_TYPE, body: self.metrics() }
            }
            "/healthz" => Answer::text("200 OK", "ok"),
            "/readyz" if self.is_ready() => Answer::text("200 OK", "ready"),
            "/readyz" => Answer::text("503 Service Unavailable", "draining"),
            _ => Answer::text("404 Not Found", "there are /, /metrics, /healthz and /readyz"),
        }
    }
}

/// Reads what comes after a request. A connection that is closed before that was read is reset, and the answer may be lost with it.
async fn read_rest(mut stream: TcpStream) -> std::io::Result<()> {
    let mut rest = [0; PIECE_BYTES];
    let mut bytes = 0;
    while bytes < HTTP_REST_BYTES_MAX {
        match stream.read(&mut rest).await? {
            0 => break,
            n => bytes += n,
        }
    }
    Ok(())
}
