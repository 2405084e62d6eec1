//! Messages that a server sends: type bytes, views, encoders.
//!
//! See "Message Formats" in the protocol chapter, entries marked (B).

use super::frame::{Fields, put, put_cstr};
use super::{DecodeError, TransactionStatus};

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
pub fn ready_for_query(body: &[u8]) -> Result<TransactionStatus, DecodeError> {
    let mut f = Fields::new(READY_FOR_QUERY, body);
    let byte = f.u8("transaction status")?;
    f.end()?;
    TransactionStatus::from_byte(byte)
        .ok_or(DecodeError::Malformed { tag: READY_FOR_QUERY, what: "transaction status" })
}

/// ParameterStatus: name and value.
pub fn parameter_status(body: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let mut f = Fields::new(PARAMETER_STATUS, body);
    let name = f.cstr("name")?;
    let value = f.cstr("value")?;
    f.end()?;
    Ok((name, value))
}

/// BackendKeyData: process id and secret.
pub fn backend_key_data(body: &[u8]) -> Result<(i32, &[u8]), DecodeError> {
    let mut f = Fields::new(BACKEND_KEY_DATA, body);
    let pid = f.i32("process id")?;
    let key = f.rest();
    if key.len() < 4 || key.len() > crate::limits::CANCEL_KEY_BYTES_MAX {
        return Err(DecodeError::Malformed { tag: BACKEND_KEY_DATA, what: "length of the secret key" });
    }
    Ok((pid, key))
}

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

/// Appends ErrorResponse (or NoticeResponse, by `tag`).
pub fn put_report(out: &mut Vec<u8>, tag: u8, report: &Report<'_>) {
    put(out, tag, |out| {
        let mut field = |kind: u8, text: &str| {
            out.push(kind);
            put_cstr(out, text.as_bytes());
        };
        field(b'S', report.severity);
        field(b'V', report.severity);
        field(b'C', report.sqlstate);
        field(b'M', report.message);
        if let Some(detail) = report.detail {
            field(b'D', detail);
        }
        if let Some(hint) = report.hint {
            field(b'H', hint);
        }
        out.push(0);
    });
}

/// Appends ReadyForQuery.
pub fn put_ready_for_query(out: &mut Vec<u8>, status: TransactionStatus) {
    out.extend_from_slice(&[READY_FOR_QUERY, 0, 0, 0, 5, status.as_byte()]);
}

/// Appends a message without a body (ParseComplete, BindComplete, CloseComplete, NoData ...).
pub fn put_empty(out: &mut Vec<u8>, tag: u8) {
    out.extend_from_slice(&[tag, 0, 0, 0, 4]);
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

/// Appends RowDescription of text columns (type `text`, OID 25), for answers we make ourselves.
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
        for value in values {
            match value {
                None => out.extend_from_slice(&(-1i32).to_be_bytes()),
                Some(value) => {
                    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
                    out.extend_from_slice(value);
                }
            }
        }
    });
}

/// DataRow: the values in order; `None` is NULL.
pub fn data_row(body: &[u8]) -> Result<Vec<Option<&[u8]>>, DecodeError> {
    let mut f = Fields::new(DATA_ROW, body);
    let count = f.i16("number of columns")? as u16 as usize;
    // A lying count can't reserve more than the body could hold.
    let mut values = Vec::with_capacity(count.min(body.len() / 4));
    for _ in 0..count {
        let len = f.i32("value length")?;
        values.push(match usize::try_from(len) {
            Err(_) => None,
            Ok(len) => Some(f.bytes(len, "value")?),
        });
    }
    f.end()?;
    Ok(values)
}
