//! HTTP for whoever watches: `/metrics`, `/healthz`, `/readyz`. Never: changes anything, reads a body.
//!
//! Some fixed answers to GET, one for each connection, on a port of its own that is closed unless `http_addr` opens it.
//! It goes on while the process drains, so that a load balancer hears of that.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Proxy, ServeError};
use crate::limits::{ACCEPT_PAUSE, HTTP_CONNECTIONS_MAX, HTTP_REQUEST_BYTES_MAX, HTTP_TIME_MAX};
use crate::telemetry::{events, exposition};

const TEXT: &str = "text/plain; charset=utf-8";

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn text(status: &'static str, body: &str) -> Self {
        Self { status, content_type: TEXT, body: format!("{body}\n") }
    }

    /// As bytes; `head`: without the body.
    fn encode(&self, head: bool) -> Vec<u8> {
        let Self { status, content_type, body } = self;
        let length = body.len();
        let mut out = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        );
        if !head {
            out.push_str(body);
        }
        out.into_bytes()
    }
}

/// Opens `http_addr`.
pub(super) async fn listen(proxy: &Arc<Proxy>, addr: SocketAddr) -> Result<(), ServeError> {
    let listener = TcpListener::bind(addr)
        .await
        .map_err(|e| ServeError(format!("cannot listen on {addr} (http_addr): {e}")))?;
    events::listening(&format!("http://{addr}"));
    tokio::spawn(Arc::clone(proxy).accept_http(listener));
    Ok(())
}

impl Proxy {
    async fn accept_http(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // One too many is closed: who watches comes again.
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let proxy = Arc::clone(&self);
            tokio::spawn(async move {
                let _ = timeout(HTTP_TIME_MAX, proxy.answer_http(stream)).await;
                drop(place);
            });
        }
    }

    async fn answer_http(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = Vec::new();
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            if request.len() >= HTTP_REQUEST_BYTES_MAX {
                let answer = Answer::text("431 Request Header Fields Too Large", "the request is too long");
                return stream.write_all(&answer.encode(false)).await;
            }
            let mut piece = [0; 1024];
            match stream.read(&mut piece).await? {
                0 => return Ok(()),
                n => request.extend_from_slice(&piece[..n]),
            }
        }
        let (answer, head) = match asked(&request) {
            Ok((path, head)) => (self.page(path), head),
            Err(answer) => (answer, false),
        };
        stream.write_all(&answer.encode(head)).await?;
        stream.shutdown().await
    }

    fn page(&self, path: &str) -> Answer {
        match path {
            "/metrics" => {
                Answer { status: "200 OK", content_type: exposition::CONTENT_TYPE, body: self.metrics() }
            }
            "/healthz" => Answer::text("200 OK", "ok"),
            "/readyz" if self.is_draining() => Answer::text("503 Service Unavailable", "draining"),
            "/readyz" => Answer::text("200 OK", "ready"),
            _ => Answer::text("404 Not Found", "there are /metrics, /healthz and /readyz"),
        }
    }
}

/// The path that is asked for, and whether by HEAD; or what is wrong with the request.
fn asked(request: &[u8]) -> Result<(&str, bool), Answer> {
    let bad = || Answer::text("400 Bad Request", "this is no HTTP/1 request");
    let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| bad())?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(bad());
    };
    if !version.starts_with("HTTP/1.") {
        return Err(bad());
    }
    let path = target.split('?').next().unwrap_or_default();
    match method {
        "GET" => Ok((path, false)),
        "HEAD" => Ok((path, true)),
        _ => Err(Answer::text("405 Method Not Allowed", "only GET and HEAD")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_good_and_bad() {
        assert_eq!(asked(b"GET /metrics?x=y HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(("/metrics", false)));
        assert_eq!(asked(b"HEAD / HTTP/1.0\r\n\r\n"), Ok(("/", true)));
        let status = |request: &[u8]| asked(request).map_err(|answer| answer.status).unwrap_err();
        assert!(status(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("405"));
        let bad: [&[u8]; 5] = [
            b"\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET / FTP/1.1\r\n",
            b"GET /a b HTTP/1.1\r\n",
            b"\xff / HTTP/1.1\r\n",
        ];
        for request in bad {
            assert!(status(request).starts_with("400"), "{request:?}");
        }
    }
}
