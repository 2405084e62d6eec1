//! Messages that a server sends: type bytes, views, encoders.
//!
//! See "Message Formats" in the protocol chapter, entries marked (B).

use std::hash::{DefaultHasher, Hash, Hasher};

use super::copy;
use super::frame::{Fields, HEADER_BYTES, put, put_cstr};
use super::{DecodeError, Flaw, TransactionStatus};

/// Authentication...
pub const AUTHENTICATION: u8 = b'R';
/// BackendKeyData
pub const BACKEND_KEY_DATA: u8 = b'K';
/// BindComplete
pub const BIND_COMPLETE: u8 = b'2';
/// CloseComplete
pub const CLOSE_COMPLETE: u8 = b'3';
/// CommandComplete
pub const COMMAND_COMPLETE: u8 = b'C';
/// CopyData
pub const COPY_DATA: u8 = b'd';
/// CopyDone
pub const COPY_DONE: u8 = b'c';
/// CopyInResponse
pub const COPY_IN_RESPONSE: u8 = b'G';
/// CopyOutResponse
pub const COPY_OUT_RESPONSE: u8 = b'H';
/// CopyBothResponse
pub const COPY_BOTH_RESPONSE: u8 = b'W';
/// DataRow
pub const DATA_ROW: u8 = b'D';
/// EmptyQueryResponse
pub const EMPTY_QUERY_RESPONSE: u8 = b'I';
/// ErrorResponse
pub const ERROR_RESPONSE: u8 = b'E';
/// FunctionCallResponse
pub const FUNCTION_CALL_RESPONSE: u8 = b'V';
/// NegotiateProtocolVersion
pub const NEGOTIATE_PROTOCOL_VERSION: u8 = b'v';
/// NoData
pub const NO_DATA: u8 = b'n';
/// NoticeResponse
pub const NOTICE_RESPONSE: u8 = b'N';
/// NotificationResponse
pub const NOTIFICATION_RESPONSE: u8 = b'A';
/// ParameterDescription
pub const PARAMETER_DESCRIPTION: u8 = b't';
/// ParameterStatus
pub const PARAMETER_STATUS: u8 = b'S';
/// ParseComplete
pub const PARSE_COMPLETE: u8 = b'1';
/// PortalSuspended
pub const PORTAL_SUSPENDED: u8 = b's';
/// ReadyForQuery
pub const READY_FOR_QUERY: u8 = b'Z';
/// RowDescription
pub const ROW_DESCRIPTION: u8 = b'T';

/// ReadyForQuery.
///
/// Errors: an unknown status, or more than its one byte.
pub fn ready_for_query(body: &[u8]) -> Result<TransactionStatus, DecodeError> {
    let mut f = Fields::new(READY_FOR_QUERY, body);
    let byte = f.u8("transaction status")?;
    f.end()?;
    TransactionStatus::from_byte(byte).ok_or(DecodeError::Malformed {
        tag: READY_FOR_QUERY,
        what: "transaction status",
        flaw: Flaw::Value(byte),
    })
}

/// ParameterStatus: name and value.
///
/// Errors: a string without its zero, or bytes left over.
pub fn parameter_status(body: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let mut f = Fields::new(PARAMETER_STATUS, body);
    let name = f.cstr("name")?;
    let value = f.cstr("value")?;
    f.end()?;
    Ok((name, value))
}

/// BackendKeyData: process id and secret (4 to [`crate::limits::CANCEL_KEY_BYTES_MAX`] bytes).
///
/// Errors: a secret shorter or longer than that.
pub fn backend_key_data(body: &[u8]) -> Result<(i32, &[u8]), DecodeError> {
    let mut f = Fields::new(BACKEND_KEY_DATA, body);
    let pid = f.i32("process id")?;
    let key = f.rest();
    if key.len() < 4 || key.len() > crate::limits::CANCEL_KEY_BYTES_MAX {
        return Err(DecodeError::Malformed {
            tag: BACKEND_KEY_DATA,
            what: "secret key is not of 4 to 256 bytes",
            flaw: Flaw::Short,
        });
    }
    Ok((pid, key))
}

/// SQLSTATE `query_canceled`: a cancel request, a timeout, or a COPY that its client gives up.
pub const QUERY_CANCELED: &[u8] = b"57014";

/// The fields of an ErrorResponse or NoticeResponse: type byte and text, in order. Stops at the
/// first malformed field, so a server that leaves fields out, or lies, is only ever read short.
#[derive(Debug, Clone)]
pub struct ErrorFields<'a> {
    rest: Fields<'a>,
}

impl<'a> ErrorFields<'a> {
    /// Over a body.
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: Fields::new(ERROR_RESPONSE, body) }
    }

    /// The first field of type `kind` (`C` SQLSTATE, `M` message, `W` context ...), if there is one.
    pub fn field(&self, kind: u8) -> Option<&'a [u8]> {
        self.clone().find(|(k, _)| *k == kind).map(|(_, text)| text)
    }

    /// The SQLSTATE; `XX000` when the server sent none.
    pub fn sqlstate(&self) -> &'a [u8] {
        self.field(b'C').filter(|c| c.len() == 5).unwrap_or(b"XX000")
    }

    /// True for a warning after which the server ends the connection.
    pub fn says_farewell(&self) -> bool {
        self.sqlstate().starts_with(b"57P")
    }

    /// The server ends the connection after it.
    pub fn ends_connection(&self) -> bool {
        matches!(self.field(b'V'), Some(b"FATAL" | b"PANIC"))
    }

    /// SQLSTATE and message, for the log.
    pub fn outline(&self) -> String {
        let text = |bytes| String::from_utf8_lossy(bytes);
        format!("{} {}", text(self.sqlstate()), text(self.field(b'M').unwrap_or_default()))
    }
}

impl<'a> Iterator for ErrorFields<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        match self.rest.u8("field type") {
            Ok(0) | Err(_) => None,
            Ok(kind) => self.rest.cstr("field").ok().map(|text| (kind, text)),
        }
    }
}

/// What goes into an ErrorResponse or NoticeResponse of ours.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// ERROR, FATAL, WARNING, NOTICE.
    pub severity: &'a str,
    /// Five characters.
    pub sqlstate: &'a str,
    /// Lower case, no full stop.
    pub message: &'a str,
    /// A sentence.
    pub detail: Option<&'a str>,
    /// A sentence.
    pub hint: Option<&'a str>,
}

impl<'a> From<&'a crate::error::Error> for Report<'a> {
    fn from(error: &'a crate::error::Error) -> Self {
        Self {
            severity: error.severity().as_str(),
            sqlstate: error.sqlstate(),
            message: error.message(),
            detail: error.detail(),
            hint: error.hint(),
        }
    }
}

/// Appends ErrorResponse (or NoticeResponse, by `tag`).
pub fn put_report(out: &mut Vec<u8>, tag: u8, report: &Report<'_>) {
    put_report_of(out, tag, report, None);
}

/// Appends NoticeResponse: a NOTICE with these words and nothing else.
pub fn put_notice(out: &mut Vec<u8>, message: &str) {
    let report = Report { severity: "NOTICE", sqlstate: "00000", message, detail: None, hint: None };
    put_report(out, NOTICE_RESPONSE, &report);
}

/// As [`put_report`], with the file and the routine that PostgreSQL would report it from.
fn put_report_of(out: &mut Vec<u8>, tag: u8, report: &Report<'_>, source: Option<(&str, &str)>) {
    let fields = [
        (b'S', Some(report.severity)),
        (b'V', Some(report.severity)),
        (b'C', Some(report.sqlstate)),
        (b'M', Some(report.message)),
        (b'D', report.detail),
        (b'H', report.hint),
        (b'F', source.map(|(file, _)| file)),
        (b'R', source.map(|(_, routine)| routine)),
    ];
    let said = fields.into_iter().filter_map(|(kind, text)| Some((kind, text?.as_bytes())));
    put(out, tag, |out| put_fields(out, said));
}

/// Appends the body of an ErrorResponse or NoticeResponse: these fields, and the end of them.
pub fn put_fields<'a>(out: &mut Vec<u8>, fields: impl IntoIterator<Item = (u8, &'a [u8])>) {
    for (kind, text) in fields {
        out.push(kind);
        put_cstr(out, text);
    }
    out.push(0);
}

/// Appends what a server reported again, all fields kept, with this severity. FATAL: the connection closes after it.
pub fn put_again(out: &mut Vec<u8>, tag: u8, severity: &str, body: &[u8]) {
    let severe = |(kind, text)| (kind, if matches!(kind, b'S' | b'V') { severity.as_bytes() } else { text });
    put(out, tag, |out| put_fields(out, ErrorFields::new(body).map(severe)));
}

/// Appends a server's ErrorResponse again, all fields kept, but for this message.
pub fn put_reworded(out: &mut Vec<u8>, body: &[u8], message: &[u8]) {
    let reworded = |(kind, text)| (kind, if kind == b'M' { message } else { text });
    put(out, ERROR_RESPONSE, |out| put_fields(out, ErrorFields::new(body).map(reworded)));
}

/// The body of a server's ErrorResponse, all fields kept, with a hint where it has none.
pub fn with_hint(body: &[u8], hint: &str) -> Vec<u8> {
    let own = ErrorFields::new(body).field(b'H').is_none().then_some((b'H', hint.as_bytes()));
    let mut hinted = Vec::with_capacity(body.len() + hint.len() + 2);
    put_fields(&mut hinted, ErrorFields::new(body).chain(own));
    hinted
}

impl crate::error::Error {
    /// Appends the ErrorResponse.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_report_of(out, ERROR_RESPONSE, &Report::from(self), self.source());
    }
}

/// Appends ReadyForQuery.
pub fn put_ready_for_query(out: &mut Vec<u8>, status: TransactionStatus) {
    out.extend_from_slice(&[READY_FOR_QUERY, 0, 0, 0, 5, status.as_byte()]);
}

/// Appends a message without a body (ParseComplete, BindComplete, CloseComplete, NoData ...).
pub fn put_empty(out: &mut Vec<u8>, tag: u8) {
    out.extend_from_slice(&[tag, 0, 0, 0, 4]);
}

/// How many rows the tag of an INSERT or of a COPY counts, without its zero; `None`: it is another command's.
pub fn stored_rows(tag: &[u8]) -> Option<usize> {
    let count = tag.strip_prefix(b"INSERT 0 ").or(tag.strip_prefix(b"COPY "))?;
    std::str::from_utf8(count).ok()?.parse().ok()
}

/// Appends CommandComplete.
pub fn put_command_complete(out: &mut Vec<u8>, command: &[u8]) {
    put(out, COMMAND_COMPLETE, |out| put_cstr(out, command));
}

/// Appends ParameterStatus.
pub fn put_parameter_status(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    put(out, PARAMETER_STATUS, |out| {
        put_cstr(out, name);
        put_cstr(out, value);
    });
}

/// Appends BackendKeyData.
pub fn put_backend_key_data(out: &mut Vec<u8>, pid: i32, key: &[u8]) {
    put(out, BACKEND_KEY_DATA, |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// Appends a NotificationResponse in which two process ids change places.
pub fn put_notification(out: &mut Vec<u8>, frame: &[u8], one: i32, other: i32) {
    let body = out.len() + HEADER_BYTES;
    out.extend_from_slice(frame);
    // Whoever gets one without a process id is to see it for itself.
    let Some(pid) = out.get_mut(body..).and_then(|body| body.first_chunk_mut()) else { return };
    let said = i32::from_be_bytes(*pid);
    let shown = if said == one {
        other
    } else if said == other {
        one
    } else {
        said
    };
    *pid = shown.to_be_bytes();
}

/// Appends ParameterDescription of a statement without parameters.
pub fn put_no_parameters(out: &mut Vec<u8>) {
    out.extend_from_slice(&[PARAMETER_DESCRIPTION, 0, 0, 0, 6, 0, 0]);
}

/// Appends RowDescription of text columns (type `text`, OID 25).
pub fn put_text_row_description(out: &mut Vec<u8>, columns: &[&str]) {
    put(out, ROW_DESCRIPTION, |out| {
        out.extend_from_slice(&(columns.len() as u16).to_be_bytes());
        for name in columns {
            put_cstr(out, name.as_bytes());
            out.extend_from_slice(&[0, 0, 0, 0, 0, 0]); // no table, no column number
            out.extend_from_slice(&25u32.to_be_bytes());
            out.extend_from_slice(&(-1i16).to_be_bytes());
            out.extend_from_slice(&(-1i32).to_be_bytes());
            out.extend_from_slice(&[0, 0]); // text format
        }
    });
}

/// Appends DataRow of text values (`None`: NULL).
pub fn put_data_row<'a>(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = Option<&'a [u8]>>) {
    put(out, DATA_ROW, |out| {
        out.extend_from_slice(&(values.len() as u16).to_be_bytes());
        values.for_each(|value| copy::put_binary(out, value));
    });
}

/// DataRow: the values in order; `None` is NULL. A length below -1 is malformed.
///
/// Errors: a count or length that the body does not hold, or bytes left over.
pub fn data_row(body: &[u8]) -> Result<Vec<Option<&[u8]>>, DecodeError> {
    let mut f = Fields::new(DATA_ROW, body);
    let count = f.i16("number of columns")? as u16 as usize;
    // A lying count can't reserve more than the body could hold.
    let mut values = Vec::with_capacity(count.min(body.len() / 4));
    for _ in 0..count {
        let len = f.i32("value length")?;
        values.push(match usize::try_from(len) {
            Ok(len) => Some(f.bytes(len, "value")?),
            Err(_) if len == -1 => None,
            Err(_) => return Err(f.malformed("value length", Flaw::Short)),
        });
    }
    f.end()?;
    Ok(values)
}

/// A hash of what RowDescription says of the rows: names and types of the columns, not the format and not where the
/// columns come from. `None`: malformed.
pub fn row_shape(body: &[u8]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let (count, mut rest) = body.split_at_checked(2)?;
    count.hash(&mut hasher);
    for _ in 0..u16::from_be_bytes([count[0], count[1]]) {
        let name = memchr::memchr(0, rest)?;
        rest[..name].hash(&mut hasher);
        // Behind the name: table and column (6 bytes), type, its length and modifier (10), format (2).
        let (field, next) = rest[name + 1..].split_at_checked(18)?;
        field[6..16].hash(&mut hasher);
        rest = next;
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::{CANCEL_KEY_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX};
    use crate::wire::frame::whole;

    #[test]
    fn the_shape_of_rows_is_names_and_types() {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        put_text_row_description(&mut a, &["x", "y"]);
        put_text_row_description(&mut b, &["x", "z"]);
        let (a, b) = (&mut a[HEADER_BYTES..], &b[HEADER_BYTES..]);
        let shape = row_shape(a);
        assert!(shape.is_some() && shape != row_shape(b));
        // Where the first column comes from does not matter; its type does.
        a[2 + 2] ^= 1;
        assert_eq!(row_shape(a), shape);
        a[2 + 2 + 6] ^= 1;
        assert_ne!(row_shape(a), shape);
        for cut in 0..b.len() {
            assert_eq!(row_shape(&b[..cut]), None);
        }
    }

    /// The one message in `buf`: its tag and body.
    fn only(buf: &[u8]) -> (u8, &[u8]) {
        let (head, body) = whole(buf, SMALL_MESSAGE_BYTES_MAX).expect("a good header").expect("whole");
        assert_eq!(head.total(), buf.len(), "one message and nothing behind it");
        (head.tag, body)
    }

    /// Bytes as they may stand in a zero-terminated string.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(1u8..=255, 0..40)
    }

    #[test]
    fn ready_for_query_knows_three_bytes_only() {
        for byte in 0..=255u8 {
            let status = ready_for_query(&[byte]);
            assert_eq!(status.is_ok(), b"ITE".contains(&byte), "{byte}");
            if let Ok(status) = status {
                let mut out = Vec::new();
                put_ready_for_query(&mut out, status);
                assert_eq!(only(&out), (READY_FOR_QUERY, &[byte][..]));
            }
        }
        assert!(ready_for_query(b"").is_err());
        assert!(ready_for_query(b"II").is_err());
    }

    #[test]
    fn a_key_outside_the_bounds_is_refused_by_name() {
        for (len, good) in [
            (0, false),
            (3, false),
            (4, true),
            (CANCEL_KEY_BYTES_MAX, true),
            (CANCEL_KEY_BYTES_MAX + 1, false),
        ] {
            let mut out = Vec::new();
            put_backend_key_data(&mut out, 7, &vec![1; len]);
            match backend_key_data(only(&out).1) {
                Ok((pid, key)) => assert_eq!((good, pid, key.len()), (true, 7, len)),
                Err(e) => {
                    assert!(!good, "{len}");
                    assert!(e.to_string().contains(&CANCEL_KEY_BYTES_MAX.to_string()), "{e}");
                }
            }
        }
    }

    #[test]
    fn two_process_ids_of_notifications_change_places_and_no_other_does() {
        let notification = |pid: i32| {
            let mut out = Vec::new();
            put(&mut out, NOTIFICATION_RESPONSE, |out| {
                out.extend_from_slice(&pid.to_be_bytes());
                out.extend_from_slice(b"channel\0payload\0");
            });
            out
        };
        for (said, shown) in [(7, 9), (9, 7), (8, 8), (-1, -1)] {
            let mut out = b"before".to_vec();
            put_notification(&mut out, &notification(said), 7, 9);
            assert_eq!(out, [b"before".to_vec(), notification(shown)].concat());
        }
        let short = [NOTIFICATION_RESPONSE, 0, 0, 0, 7, 0, 0, 0];
        let mut out = Vec::new();
        put_notification(&mut out, &short, 0, 1);
        assert_eq!(out, short);
    }

    #[test]
    fn a_row_that_lies_about_its_columns_is_refused() {
        let row = |count: u16, values: &[u8]| [&count.to_be_bytes()[..], values].concat();
        assert_eq!(data_row(&row(0, b"")), Ok(vec![]));
        assert_eq!(data_row(&row(1, &(-1i32).to_be_bytes())), Ok(vec![None]));
        for count in [1, 2, 0x7fff, 0x8000, 0xffff] {
            assert!(data_row(&row(count, b"")).is_err(), "{count}");
        }
        for len in [1u32, 4, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe] {
            assert!(data_row(&row(1, &len.to_be_bytes())).is_err(), "{len}");
        }
        assert!(data_row(&row(0, b"x")).is_err(), "bytes behind the last value");
    }

    #[test]
    fn fields_of_a_truncated_report_are_read_short() {
        let mut out = Vec::new();
        let report =
            Report { severity: "ERROR", sqlstate: "42501", message: "no", detail: None, hint: Some("Ask.") };
        put_report(&mut out, ERROR_RESPONSE, &report);
        let body = only(&out).1;
        for end in 0..body.len() {
            let fields: Vec<_> = ErrorFields::new(&body[..end]).collect();
            assert!(fields.len() <= 5);
            assert_eq!(ErrorFields::new(&body[..end]).sqlstate().len(), 5);
        }
        assert_eq!(ErrorFields::new(b"C42\0\0").sqlstate(), b"XX000", "an SQLSTATE has five characters");
        assert_eq!(ErrorFields::new(b"M").next(), None);
    }

    proptest! {
        #[test]
        fn reports_come_back(message in "[^\0]{0,60}", detail in proptest::option::of("[^\0]{0,60}"), hint in proptest::option::of("[^\0]{0,60}")) {
            let report = Report { severity: "FATAL", sqlstate: "08P01", message: &message, detail: detail.as_deref(), hint: hint.as_deref() };
            let mut out = Vec::new();
            put_report(&mut out, NOTICE_RESPONSE, &report);
            let (tag, body) = only(&out);
            let fields = ErrorFields::new(body);
            prop_assert_eq!(tag, NOTICE_RESPONSE);
            prop_assert_eq!(fields.sqlstate(), b"08P01");
            prop_assert_eq!(fields.field(b'S'), Some(&b"FATAL"[..]));
            prop_assert_eq!(fields.field(b'M'), Some(message.as_bytes()));
            prop_assert_eq!(fields.field(b'D'), detail.as_ref().map(|d| d.as_bytes()));
            prop_assert_eq!(fields.field(b'H'), hint.as_ref().map(|h| h.as_bytes()));
        }

        #[test]
        fn parameters_and_tags_come_back(name in text(), value in text()) {
            let mut out = Vec::new();
            put_parameter_status(&mut out, &name, &value);
            prop_assert_eq!(parameter_status(only(&out).1), Ok((&name[..], &value[..])));
            out.clear();
            put_command_complete(&mut out, &name);
            prop_assert_eq!(only(&out), (COMMAND_COMPLETE, &[&name[..], b"\0"].concat()[..]));
        }

        #[test]
        fn rows_come_back(values in proptest::collection::vec(proptest::option::of(proptest::collection::vec(any::<u8>(), 0..30)), 0..20)) {
            let mut out = Vec::new();
            put_data_row(&mut out, values.iter().map(|v| v.as_deref()));
            let body = only(&out).1;
            let back: Vec<_> = values.iter().map(|v| v.as_deref()).collect();
            prop_assert_eq!(data_row(body), Ok(back));
            for end in 0..body.len() {
                prop_assert!(data_row(&body[..end]).is_err(), "cut at {}", end);
            }
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ready_for_query(&body);
            let _ = parameter_status(&body);
            let _ = backend_key_data(&body);
            let _ = data_row(&body);
            // Each field takes a byte at least, so a report never has more fields than bytes.
            prop_assert!(ErrorFields::new(&body).count() <= body.len());
        }
    }
}
