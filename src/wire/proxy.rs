//! PROXY protocol, versions 1 and 2: what a balancer says of its client before the client's own first byte.
//!
//! Owns: the header. Never: which balancer is believed (that is `proxy_protocol_from`).
//! See HAProxy's `proxy-protocol.txt`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::limits::PROXY_HEADER_BYTES_MAX;

/// Begins every header of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Begins every header of version 1.
const PREFIX: &[u8] = b"PROXY ";

/// The shortest line of version 1, and its longest.
const LINE_BYTES_MIN: usize = b"PROXY UNKNOWN\r\n".len();
const LINE_BYTES_MAX: usize = 107;

/// What is fixed of version 2: signature, version and command, family, length.
const FIXED_BYTES: usize = 16;

/// How far a header is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// At least this many bytes are still missing; none of them is beyond the header.
    More(usize),
    /// It is whole. The client's address; `None`: the balancer speaks for itself, or does not know.
    Whole(Option<SocketAddr>),
}

/// What is wrong with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

type Result<T> = std::result::Result<T, Malformed>;

/// Looks at the first bytes of a connection; call again with what [`Step::More`] asks for appended.
///
/// # Errors
/// They begin no header, or one that is not understood.
pub fn step(bytes: &[u8]) -> Result<Step> {
    let same = |start: &[u8]| bytes.iter().zip(start).all(|(have, want)| have == want);
    match bytes.first() {
        // Refused at once: a client that sends no header would wait for an answer.
        None => Ok(Step::More(1)),
        Some(b'P') if same(PREFIX) => line(bytes),
        Some(b'\r') if same(SIGNATURE) => binary(bytes),
        Some(_) => Err(Malformed("the connection does not begin with a PROXY header")),
    }
}

/// Version 1.
fn line(bytes: &[u8]) -> Result<Step> {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) if end + 1 == bytes.len() => {
            // No address has anything but UTF-8, and after `UNKNOWN` it does not matter.
            let text = bytes.strip_suffix(b"\r\n").map(String::from_utf8_lossy);
            text.and_then(|text| fields(&text))
                .map(Step::Whole)
                .ok_or(Malformed("the PROXY line is not understood"))
        }
        Some(_) => Err(Malformed("the PROXY line ends too early")),
        None if bytes.len() >= LINE_BYTES_MAX => Err(Malformed("the PROXY line is too long")),
        None => Ok(Step::More(LINE_BYTES_MIN.saturating_sub(bytes.len()).max(1))),
    }
}

/// `PROXY TCP4 source destination port port`; after `UNKNOWN` anything may stand.
fn fields(line: &str) -> Option<Option<SocketAddr>> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let ip = |word: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => word.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => word.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let port = |word: &str| word.bytes().all(|b| b.is_ascii_digit()).then(|| word.parse::<u16>().ok())?;
    let (source, _destination) = (ip(words.next()?)?, ip(words.next()?)?);
    let (from, _to) = (port(words.next()?)?, port(words.next()?)?);
    words.next().is_none().then(|| Some(SocketAddr::new(source, from)))
}

/// Version 2.
fn binary(bytes: &[u8]) -> Result<Step> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(Step::More(FIXED_BYTES - bytes.len()));
    };
    let [.., version, family, high, low] = *fixed;
    let len = usize::from(u16::from_be_bytes([high, low]));
    if FIXED_BYTES + len > PROXY_HEADER_BYTES_MAX {
        return Err(Malformed("the PROXY header is too long"));
    }
    if rest.len() < len {
        return Ok(Step::More(len - rest.len()));
    }
    match version {
        0x20 => Ok(Step::Whole(None)),
        0x21 => address(family, rest).map(Step::Whole),
        _ => Err(Malformed("the PROXY header is of an unknown version or command")),
    }
}

/// The client's address before the balancer's, then both ports, then anything.
fn address(family: u8, rest: &[u8]) -> Result<Option<SocketAddr>> {
    let short = Malformed("the PROXY header is shorter than its addresses");
    match family {
        0x11 => {
            let ([a, b, c, d, _, _, _, _, high, low, _, _], _) = rest.split_first_chunk().ok_or(short)?;
            let port = u16::from_be_bytes([*high, *low]);
            Ok(Some(SocketAddr::from(([*a, *b, *c, *d], port))))
        }
        0x21 => {
            let (source, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
            let (_destination, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
            let ([high, low, _, _], _) = rest.split_first_chunk().ok_or(short)?;
            Ok(Some(SocketAddr::from((*source, u16::from_be_bytes([*high, *low])))))
        }
        // Not said, or a Unix socket of the balancer's.
        0x00 | 0x31 => Ok(None),
        _ => Err(Malformed("the PROXY header is not of a TCP connection")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds exactly what is asked for: what the header says, and how much of `bytes` was taken.
    fn read(bytes: &[u8]) -> Result<Option<(Option<SocketAddr>, usize)>> {
        let mut have = 0;
        loop {
            match step(&bytes[..have])? {
                Step::Whole(address) => return Ok(Some((address, have))),
                Step::More(more) if have + more > bytes.len() => return Ok(None),
                Step::More(more) => have += more,
            }
        }
    }

    fn v2(version: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let len = (rest.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[version, family], &len, rest].concat()
    }

    #[test]
    fn headers_of_version_1_name_the_client() {
        for (line, address) in [
            ("PROXY TCP4 192.0.2.1 192.0.2.2 1 65535\r\n", Some("192.0.2.1:1")),
            ("PROXY TCP6 2001:db8::1 ::1 65535 5432\r\n", Some("[2001:db8::1]:65535")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
        ] {
            let address = address.map(|text| text.parse().unwrap());
            assert_eq!(read(line.as_bytes()), Ok(Some((address, line.len()))), "{line}");
        }
        let anything = b"PROXY UNKNOWN \xff\0\r \xc3\r\n";
        assert_eq!(read(anything), Ok(Some((None, anything.len()))));
        assert!(read(b"PROXY TCP4 192.0.2.1\xff 192.0.2.2 1 2\r\n").is_err());
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
        for line in [
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            "PROXY \r\n             ",
            "PROXY  UNKNOWN\r\n",
            "GET / HTTP/1.1\r\n",
            "PR0XY UNKNOWN\r\n",
            "\0\0\0\x08",
            &long,
        ] {
            assert!(read(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn headers_of_version_2_name_the_client() {
        let ipv4 = [192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x34, 0, 1];
        let ipv6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 28], &[0, 7, 0, 8]].concat();
        let with_more = [&ipv4[..], &[3, 0, 4, 1, 2, 3, 4]].concat();
        for (header, address) in [
            (v2(0x21, 0x11, &ipv4), Some("192.0.2.1:4660")),
            (v2(0x21, 0x11, &with_more), Some("192.0.2.1:4660")),
            (v2(0x21, 0x21, &ipv6), Some("[2001:db8::]:7")),
            (v2(0x21, 0x00, &[]), None),
            (v2(0x21, 0x31, &[0; 216]), None),
            (v2(0x20, 0x11, &ipv4), None),
            (v2(0x20, 0x00, &[]), None),
        ] {
            let address = address.map(|text| text.parse().unwrap());
            assert_eq!(read(&header), Ok(Some((address, header.len()))), "{header:?}");
        }
        for header in [
            v2(0x11, 0x11, &ipv4),
            v2(0x22, 0x11, &ipv4),
            v2(0x21, 0x12, &ipv4),
            v2(0x21, 0x11, &ipv4[..11]),
            v2(0x21, 0x21, &ipv4),
            v2(0x21, 0x11, &vec![0; PROXY_HEADER_BYTES_MAX]),
            [&SIGNATURE.map(|byte| byte.to_ascii_lowercase())[..], &[0x20, 0, 0, 0]].concat(),
        ] {
            assert!(read(&header).is_err(), "{header:?}");
        }
    }

    proptest! {
        #[test]
        fn a_header_is_taken_to_its_last_byte_and_no_further(
            source in any::<[u8; 16]>(),
            port in any::<u16>(),
            v4 in any::<bool>(),
            version in 1u8..=2,
            behind in proptest::collection::vec(any::<u8>(), 0..20),
            tlvs in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let [a, b, c, d, ..] = source;
            let ip = if v4 { IpAddr::from([a, b, c, d]) } else { IpAddr::from(source) };
            let header = match (version, ip) {
                (1, ip) => format!("PROXY TCP{} {ip} {ip} {port} 1\r\n", if v4 { 4 } else { 6 }).into_bytes(),
                (_, IpAddr::V4(ip)) => {
                    v2(0x21, 0x11, &[&ip.octets()[..], &ip.octets(), &port.to_be_bytes(), &[0, 1], &tlvs].concat())
                }
                (_, IpAddr::V6(ip)) => {
                    v2(0x21, 0x21, &[&ip.octets()[..], &ip.octets(), &port.to_be_bytes(), &[0, 1], &tlvs].concat())
                }
            };
            let whole = [&header[..], &behind].concat();
            prop_assert_eq!(read(&whole), Ok(Some((Some(SocketAddr::new(ip, port)), header.len()))));
            for end in 0..header.len() {
                prop_assert_eq!(read(&header[..end]), Ok(None));
            }
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
            let _ = read(&[SIGNATURE, bytes.as_slice()].concat());
            let _ = read(&[PREFIX, bytes.as_slice()].concat());
        }
    }
}
