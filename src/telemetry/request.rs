//! A request over HTTP/1, as far as it is looked at: which page, and whether its body is wanted. Never: a socket, a
//! header's meaning.
//!
//! Strict where leniency has no user: anything that is not a request as RFC 9112 writes it down is refused, as soon as it
//! is seen. What follows the headers (a body, another request) is nobody's: the connection ends with the answer.

use crate::limits::HTTP_REQUEST_BYTES_MAX;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Begins with `/`, without a query.
    pub path: &'a str,
    /// By HEAD: without the body.
    pub is_head: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// It is no request.
    Malformed,
    /// It is longer than `HTTP_REQUEST_BYTES_MAX`.
    TooLong,
    /// Neither GET nor HEAD.
    Method,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    Version,
}

/// The request at the start of `bytes`; `None` while its end has not come.
///
/// What was said of the beginning of some bytes, that they are bad or which request they are, is said of all of them.
///
/// # Errors
/// A request that is not answered with a page.
pub fn parse(bytes: &[u8]) -> Result<Option<Request<'_>>, Bad> {
    let seen = &bytes[..bytes.len().min(HTTP_REQUEST_BYTES_MAX)];
    let mut request = None;
    let mut rest = seen;
    while let Some(end) = rest.iter().position(|b| *b == b'\n') {
        let line = rest[..end].strip_suffix(b"\r").ok_or(Bad::Malformed)?;
        check_bytes(line)?;
        match request {
            None => request = Some(request_line(line)?),
            Some(_) if line.is_empty() => return Ok(request),
            Some(_) => check_header(line)?,
        }
        rest = &rest[end + 1..];
    }
    check_bytes(rest.strip_suffix(b"\r").unwrap_or(rest))?;
    if seen.len() == HTTP_REQUEST_BYTES_MAX { Err(Bad::TooLong) } else { Ok(None) }
}

/// What may stand in a line.
fn check_bytes(line: &[u8]) -> Result<(), Bad> {
    let is_fine = |b: &u8| *b == b'\t' || !b.is_ascii_control();
    if line.iter().all(is_fine) { Ok(()) } else { Err(Bad::Malformed) }
}

fn request_line(line: &[u8]) -> Result<Request<'_>, Bad> {
    let line = std::str::from_utf8(line).map_err(|_| Bad::Malformed)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Bad::Malformed);
    };
    if !is_token(method.as_bytes()) || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Bad::Malformed);
    }
    let path = path(target).ok_or(Bad::Malformed)?;
    match version.strip_prefix("HTTP/").map(str::as_bytes) {
        Some(b"1.0" | b"1.1") => {}
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => {
            return Err(Bad::Version);
        }
        _ => return Err(Bad::Malformed),
    }
    match method {
        "GET" => Ok(Request { path, is_head: false }),
        "HEAD" => Ok(Request { path, is_head: true }),
        _ => Err(Bad::Method),
    }
}

/// In the origin form, or in the absolute form, which clients send to proxies and every server takes. Only its path is looked at.
fn path(target: &str) -> Option<&str> {
    let target = target.split('?').next()?;
    if target.starts_with('/') {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    let path = rest.find('/').map_or("/", |at| &rest[at..]);
    let names_a_host = !rest.is_empty() && !rest.starts_with('/');
    (scheme.eq_ignore_ascii_case("http") && names_a_host).then_some(path)
}

/// A name, a colon right after it, a value. A line that continues the one before has no name.
fn check_header(line: &[u8]) -> Result<(), Bad> {
    match line.iter().position(|b| *b == b':') {
        Some(colon) if is_token(&line[..colon]) => Ok(()),
        _ => Err(Bad::Malformed),
    }
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get(path: &str) -> Result<Option<Request<'_>>, Bad> {
        Ok(Some(Request { path, is_head: false }))
    }

    #[test]
    fn requests_good_and_bad() {
        assert_eq!(
            parse(b"GET /metrics?x=y HTTP/1.1\r\nHost: a\r\nX:\r\nY: \xe9\t\r\n\r\n"),
            get("/metrics")
        );
        assert_eq!(parse(b"HEAD / HTTP/1.0\r\n\r\n"), Ok(Some(Request { path: "/", is_head: true })));
        assert_eq!(parse(b"GET / HTTP/1.1\r\n\r\nGET /more HTTP/1.1\r\n\r\n"), get("/"));
        let parts: [&[u8]; 5] =
            [b"", b"G", b"GET / HTTP/1.1\r", b"GET / HTTP/1.1\r\nHost", b"GET / HTTP/1.1\r\nA:\r\n\r"];
        for part in parts {
            assert_eq!(parse(part), Ok(None), "{}", part.escape_ascii());
        }
        for target in ["http://a/metrics", "HTTP://a:1/metrics?x=/y", "http://[::1]:9127/metrics"] {
            assert_eq!(parse(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes()), get("/metrics"));
        }
        assert_eq!(parse(b"GET http://a HTTP/1.1\r\n\r\n"), get("/"));
        assert_eq!(parse(b"GET http://a?b HTTP/1.1\r\n\r\n"), get("/"));
        let bad: [&[u8]; 26] = [
            b"\r\n\r\n",
            b"\n",
            b"GET / HTTP/1.1\n",
            b"GET /\r\n",
            b"GET /  HTTP/1.1\r\n",
            b" GET / HTTP/1.1\r\n",
            b"GET\t/\tHTTP/1.1\r\n",
            b"GET / FTP/1.1\r\n",
            b"GET / HTTP/1\r\n",
            b"GET / HTTP/1.x\r\n",
            b"GET / HTTP/x.1\r\n",
            b"GET / http/1.1\r\n",
            b"GET /a b HTTP/1.1\r\n",
            b"GET a HTTP/1.1\r\n",
            b"GET http:///a HTTP/1.1\r\n",
            b"GET http://?a HTTP/1.1\r\n",
            b"GET ftp://a/ HTTP/1.1\r\n",
            b"GET /\xc3\xa9 HTTP/1.1\r\n",
            b"\xff / HTTP/1.1\r\n",
            b"G(T / HTTP/1.1\r\n",
            b"GET /\0",
            b"GET / HTTP/1.1\rX",
            b"GET / HTTP/1.1\r\nA b: c\r\n",
            b"GET / HTTP/1.1\r\nA : c\r\n",
            b"GET / HTTP/1.1\r\nA: b\r\n c\r\n",
            b"GET / HTTP/1.1\r\n: c\r\n",
        ];
        for request in bad {
            assert_eq!(parse(request), Err(Bad::Malformed), "{}", request.escape_ascii());
        }
        assert_eq!(parse(b"POST /metrics HTTP/1.1\r\n"), Err(Bad::Method));
        assert_eq!(parse(b"get / HTTP/1.1\r\n"), Err(Bad::Method));
        assert_eq!(parse(b"GET / HTTP/2.0\r\n"), Err(Bad::Version));
        assert_eq!(parse(b"GET / HTTP/1.2\r\n"), Err(Bad::Version));
    }

    #[test]
    fn a_request_ends_within_its_bound() {
        let long = |bytes: usize| {
            let line = "GET / HTTP/1.1\r\nA: ";
            [line.as_bytes(), &vec![b'x'; bytes - line.len() - 4], b"\r\n\r\n"].concat()
        };
        assert_eq!(parse(&long(HTTP_REQUEST_BYTES_MAX)), get("/"));
        assert_eq!(parse(&long(HTTP_REQUEST_BYTES_MAX + 1)), Err(Bad::TooLong));
        assert_eq!(parse(&vec![b'x'; HTTP_REQUEST_BYTES_MAX]), Err(Bad::TooLong));
        assert_eq!(parse(&vec![b'x'; HTTP_REQUEST_BYTES_MAX - 1]), Ok(None));
    }

    const PIECES: &[&str] = &[
        "GET / HTTP/1.1",
        "HEAD",
        "POST",
        " ",
        "/x?y",
        "HTTP/1.0",
        "HTTP/3.1",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        "Host: a",
        ":",
        "\0",
        "\u{e9}",
    ];

    proptest! {
        /// Bytes come in pieces: what was said of the beginning holds for all.
        #[test]
        fn what_is_said_of_a_beginning_is_said_of_the_whole(
            pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..12),
            junk in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let all = [pieces.concat().into_bytes(), junk].concat();
            let whole = parse(&all);
            for end in 0..all.len() {
                match parse(&all[..end]) {
                    Ok(None) => {}
                    said => prop_assert_eq!(said, whole, "{}", all[..end].escape_ascii()),
                }
            }
            if let Ok(Some(request)) = whole {
                prop_assert!(request.path.starts_with('/') && request.path.bytes().all(|b| b.is_ascii_graphic() && b != b'?'));
            }
        }
    }
}
