//! A table of the console and how it goes over the wire.
//!
//! Owns: column types, values, RowDescription and DataRow in text and in binary. Never: what the columns are;
//! that is [`super::rows`].

use std::borrow::Cow;
use std::time::SystemTime;

use super::Refusal;
use crate::telemetry::time::Utc;
use crate::wire::Oid;
use crate::wire::backend::{DATA_ROW, ROW_DESCRIPTION};
use crate::wire::frame::{put, put_cstr};

/// A column's type; PgBouncer's, so that what parses its output parses ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// text
    Text,
    /// integer; a larger value is shown as the largest.
    Int4,
    /// bigint; a larger value is shown as the largest.
    Int8,
    /// numeric
    Numeric,
}

impl Type {
    /// The object id and length that RowDescription carries.
    fn oid_and_len(self) -> (Oid, i16) {
        match self {
            Self::Text => (25, -1),
            Self::Int4 => (23, 4),
            Self::Int8 => (20, 8),
            Self::Numeric => (1700, -1),
        }
    }
}

/// One column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// As RowDescription says it.
    pub name: &'static str,
    /// Its type.
    pub ty: Type,
}

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// NULL
    Null,
    /// Of a text column.
    Text(Cow<'static, str>),
    /// Of a number column.
    Int(u64),
    /// Of a numeric column: a number with two decimals, times 100.
    Hundredths(u64),
}

/// What may stand in a row's field.
pub trait Cell {
    /// The value that goes over the wire.
    fn value(&self) -> Value;
}

impl Cell for String {
    fn value(&self) -> Value {
        Value::Text(self.clone().into())
    }
}

impl Cell for &'static str {
    fn value(&self) -> Value {
        Value::Text((*self).into())
    }
}

impl Cell for u64 {
    fn value(&self) -> Value {
        Value::Int(*self)
    }
}

impl Cell for bool {
    fn value(&self) -> Value {
        Value::Int(u64::from(*self))
    }
}

/// As PgBouncer prints it: `2026-01-31 23:59:59 UTC`.
impl Cell for SystemTime {
    fn value(&self) -> Value {
        let Utc { date: (year, month, day), time: (hour, minute, second), .. } = (*self).into();
        Value::Text(format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC").into())
    }
}

impl<T: Cell> Cell for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::value)
    }
}

/// A struct of [`super::rows`].
pub trait Row {
    /// Its columns, in order.
    const COLUMNS: &'static [Column];

    /// Its values, one for each column.
    fn values(&self) -> Vec<Value>;
}

/// Columns and rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The columns.
    pub columns: &'static [Column],
    /// Values, one for each column.
    pub rows: Vec<Vec<Value>>,
}

impl Table {
    /// Of rows of one kind.
    pub fn of<R: Row>(rows: &[R]) -> Self {
        Self { columns: R::COLUMNS, rows: rows.iter().map(R::values).collect() }
    }
}

/// Result formats as Bind gives them: none (text), one for all, or one for each column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Formats(Vec<bool>);

impl Formats {
    /// From Bind's codes, two bytes each, for `columns` columns. Errors: 08P01 as PostgreSQL's, 22023 for a
    /// code that is neither 0 nor 1.
    pub fn of_bind(codes: &[u8], columns: usize) -> Result<Self, Refusal> {
        let given = codes.len() / 2;
        if given > 1 && given != columns {
            let message = format!("bind message has {given} result formats but query has {columns} columns");
            return Err(Refusal::new("08P01", message));
        }
        let binary = |code: &[u8]| match code {
            [0, 0] => Ok(false),
            [0, 1] => Ok(true),
            _ => Err(Refusal::new("22023", "invalid format code")),
        };
        codes.chunks_exact(2).map(binary).collect::<Result<_, _>>().map(Self)
    }

    fn binary(&self, column: usize) -> bool {
        let at = if self.0.len() == 1 { 0 } else { column };
        self.0.get(at).copied().unwrap_or(false)
    }
}

/// Appends RowDescription.
pub fn put_row_description(out: &mut Vec<u8>, columns: &[Column], formats: &Formats) {
    put(out, ROW_DESCRIPTION, |out| {
        out.extend_from_slice(&(columns.len() as u16).to_be_bytes());
        for (i, column) in columns.iter().enumerate() {
            let (oid, len) = column.ty.oid_and_len();
            put_cstr(out, column.name.as_bytes());
            out.extend_from_slice(&[0; 6]); // no table, no column number
            out.extend_from_slice(&oid.to_be_bytes());
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&(-1i32).to_be_bytes());
            out.extend_from_slice(&[0, u8::from(formats.binary(i))]);
        }
    });
}

/// Appends DataRow.
pub fn put_row(out: &mut Vec<u8>, columns: &[Column], row: &[Value], formats: &Formats) {
    put(out, DATA_ROW, |out| {
        out.extend_from_slice(&(row.len() as u16).to_be_bytes());
        for (i, (column, value)) in columns.iter().zip(row).enumerate() {
            let at = out.len();
            out.extend_from_slice(&(-1i32).to_be_bytes());
            if *value == Value::Null {
                continue;
            }
            if formats.binary(i) {
                put_binary(out, column.ty, value)
            } else {
                put_text(out, column.ty, value)
            }
            let len = (out.len() - at - 4) as u32;
            out[at..at + 4].copy_from_slice(&len.to_be_bytes());
        }
    });
}

fn put_text(out: &mut Vec<u8>, ty: Type, value: &Value) {
    match value {
        Value::Null => {}
        Value::Text(text) => out.extend_from_slice(text.as_bytes()),
        Value::Int(n) => out.extend_from_slice(clamp(ty, *n).to_string().as_bytes()),
        Value::Hundredths(n) => out.extend_from_slice(format!("{}.{:02}", n / 100, n % 100).as_bytes()),
    }
}

fn put_binary(out: &mut Vec<u8>, ty: Type, value: &Value) {
    match (ty, value) {
        (_, Value::Null) => {}
        (Type::Int4, Value::Int(n)) => out.extend_from_slice(&(clamp(ty, *n) as i32).to_be_bytes()),
        (Type::Int8, Value::Int(n)) => out.extend_from_slice(&(clamp(ty, *n) as i64).to_be_bytes()),
        (Type::Numeric, Value::Int(n)) => put_numeric(out, *n, None),
        (Type::Numeric, Value::Hundredths(n)) => put_numeric(out, n / 100, Some((n % 100) as u16)),
        // Text is the same in both formats; a number in a text column is its digits.
        (_, value) => put_text(out, ty, value),
    }
}

/// PostgreSQL's numeric: digits to the base of 10,000, the first one's weight, sign, decimals shown.
fn put_numeric(out: &mut Vec<u8>, whole: u64, hundredths: Option<u16>) {
    let mut digits = Vec::with_capacity(6);
    let mut rest = whole;
    while rest > 0 {
        digits.push((rest % 10_000) as u16);
        rest /= 10_000;
    }
    digits.reverse();
    let weight = digits.len() as i16 - 1;
    digits.extend(hundredths.map(|h| h * 100));
    // As PostgreSQL stores it: no zeros at the end, and zero itself has no digits and no weight.
    digits.truncate(digits.iter().rposition(|d| *d > 0).map_or(0, |last| last + 1));
    let weight = if digits.is_empty() { 0 } else { weight };
    out.extend_from_slice(&(digits.len() as u16).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&[0, 0]); // positive
    out.extend_from_slice(&(if hundredths.is_some() { 2u16 } else { 0 }).to_be_bytes());
    digits.iter().for_each(|d| out.extend_from_slice(&d.to_be_bytes()));
}

fn clamp(ty: Type, n: u64) -> u64 {
    match ty {
        Type::Int4 => n.min(i32::MAX as u64),
        Type::Int8 => n.min(i64::MAX as u64),
        Type::Text | Type::Numeric => n,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::admin::rows::*;
    use crate::wire::backend::data_row;
    use crate::wire::frame::HEADER_BYTES;

    fn names(columns: &[Column]) -> String {
        columns.iter().map(|c| c.name).collect::<Vec<_>>().join(", ")
    }

    /// PgBouncer's letters: s text, i int4, q int8, N numeric.
    fn types(columns: &[Column]) -> String {
        let letter = |c: &Column| match c.ty {
            Type::Text => 's',
            Type::Int4 => 'i',
            Type::Int8 => 'q',
            Type::Numeric => 'N',
        };
        columns.iter().map(letter).collect()
    }

    /// What follows them are names that exporters read.
    #[test]
    fn columns_are_pgbouncers_in_its_order() {
        let sockets = "type, user, database, replication, state, addr, port, local_addr, local_port, connect_time, request_time, wait, wait_us, close_needed, ptr, link, remote_pid, tls, application_name, prepared_statements, id";
        let counters = "server_assignment_count, xact_count, query_count, bytes_received, bytes_sent, xact_time, query_time, wait_time";
        for (columns, expected, letters) in [
            (PoolRow::COLUMNS, "database, user, cl_active, cl_waiting, cl_active_cancel_req, cl_waiting_cancel_req, sv_active, sv_active_cancel, sv_being_canceled, sv_idle, sv_used, sv_tested, sv_login, maxwait, maxwait_us, pool_mode, load_balance_hosts".to_owned(), "ssiiiiiiiiiiiiiss"),
            (SocketRow::COLUMNS, sockets.to_owned(), "ssssssisissiiississii"),
            (BufferedRow::COLUMNS, format!("{sockets}, recv_pos, pkt_pos, pkt_remain, send_pos, send_remain, pkt_avail, send_avail"), "ssssssisissiiississiiiiiiiii"),
            (PeerRow::COLUMNS, "peer_id, host, port, pool_size".to_owned(), "isii"),
            (PeerPoolRow::COLUMNS, "peer_id, cl_active_cancel_req, cl_waiting_cancel_req, sv_active_cancel, sv_login".to_owned(), "iiiii"),
            (DnsHostRow::COLUMNS, "hostname, ttl, addrs".to_owned(), "sqs"),
            (DnsZoneRow::COLUMNS, "zonename, serial, count".to_owned(), "sqi"),
            (DatabaseRow::COLUMNS, "name, host, port, database, force_user, pool_size, min_pool_size, reserve_pool_size, server_lifetime, pool_mode, load_balance_hosts, max_connections, current_connections, max_client_connections, current_client_connections, paused, disabled".to_owned(), "ssissiiiissiiiiii"),
            (UserRow::COLUMNS, "name, pool_size, reserve_pool_size, pool_mode, max_user_connections, current_connections, max_user_client_connections, current_client_connections".to_owned(), "ssssiiii"),
            (ListRow::COLUMNS, "list, items".to_owned(), "si"),
            (ConfigRow::COLUMNS, "key, value, default, changeable".to_owned(), "ssss"),
            (StateRow::COLUMNS, "key, value".to_owned(), "ss"),
            (VersionRow::COLUMNS, "version".to_owned(), "s"),
            (TotalRow::COLUMNS, "name, value".to_owned(), "sN"),
            // The last is wider than PgBouncer's, which overflows.
            (MemRow::COLUMNS, "name, size, used, free, memtotal".to_owned(), "siiiq"),
            (Wanted::Totals.columns(), format!("database, {counters}, client_parse_count, server_parse_count, bind_count, client_login_count"), "sNNNNNNNNNNNN"),
            (Wanted::Averages.columns(), format!("database, {counters}, avg_client_parse_count, avg_server_parse_count, avg_bind_count, avg_client_login_count"), "sNNNNNNNNNNNN"),
            (Wanted::Both.columns(), "database, total_server_assignment_count, total_xact_count, total_query_count, total_received, total_sent, total_xact_time, total_query_time, total_wait_time, total_client_parse_count, total_server_parse_count, total_bind_count, total_client_login_count, avg_server_assignment_count, avg_xact_count, avg_query_count, avg_recv, avg_sent, avg_xact_time, avg_query_time, avg_wait_time, avg_client_parse_count, avg_server_parse_count, avg_bind_count, avg_client_login_count, total_requests".to_owned(), "sNNNNNNNNNNNNNNNNNNNNNNNNN"),
        ] {
            assert_eq!(names(columns), expected);
            assert_eq!(types(columns), letters, "{expected}");
        }
    }

    #[test]
    fn columns_are_described_with_their_types() {
        let columns = [
            Column { name: "a", ty: Type::Text },
            Column { name: "b", ty: Type::Int4 },
            Column { name: "c", ty: Type::Int8 },
        ];
        let mut out = Vec::new();
        put_row_description(&mut out, &columns, &Formats::default());
        assert_eq!(
            out,
            b"T\0\0\0\x42\0\x03\
              a\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0\
              b\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0\
              c\0\0\0\0\0\0\0\0\0\0\x14\0\x08\xff\xff\xff\xff\0\0"
        );
    }

    #[test]
    fn totals_are_named_as_pgbouncers_and_add_up() {
        let total = Counters { xact_count: 2, received: 7, ..Counters::default() };
        let average = Counters { client_login_count: 1, ..Counters::default() };
        let row = StatsRow { database: "app".into(), total, average };
        let all = totals(&[row.clone(), row.clone()], Counters { client_login_count: 2, ..average });
        let value = |name: &str| all.iter().find(|r| r.name == name).map(|r| r.value);
        assert_eq!(all.len(), 24);
        assert_eq!(value("total_xact_count"), Some(4));
        assert_eq!(value("total_client_bytes"), Some(14));
        assert_eq!(value("total_ps_bind_count"), Some(0));
        assert_eq!(value("avg_client_login_count"), Some(2));
        assert_eq!(value("avg_xact_time"), Some(0), "no transactions, no time");
        for wanted in [Wanted::Both, Wanted::Totals, Wanted::Averages] {
            assert_eq!(wanted.values(&row).len(), wanted.columns().len());
        }
        assert_eq!(Wanted::Averages.values(&row)[12], Value::Int(1));
    }

    fn encoded(ty: Type, value: Value, binary: bool) -> Option<Vec<u8>> {
        let formats = Formats(vec![binary]);
        let mut out = Vec::new();
        put_row(&mut out, &[Column { name: "x", ty }], &[value], &formats);
        data_row(&out[HEADER_BYTES..]).expect("good")[0].map(<[u8]>::to_vec)
    }

    #[test]
    fn values_in_text_and_binary() {
        let text = |ty, value| encoded(ty, value, false).map(|t| String::from_utf8(t).expect("text"));
        let binary = |ty, value| encoded(ty, value, true);
        assert_eq!(text(Type::Text, Value::Null), None);
        assert_eq!(binary(Type::Int4, Value::Null), None);
        assert_eq!(text(Type::Text, Value::Text("".into())).as_deref(), Some(""));
        assert_eq!(text(Type::Int4, Value::Int(u64::MAX)).as_deref(), Some("2147483647"));
        assert_eq!(text(Type::Numeric, Value::Int(u64::MAX)).as_deref(), Some("18446744073709551615"));
        assert_eq!(text(Type::Numeric, Value::Hundredths(605)).as_deref(), Some("6.05"));
        assert_eq!(binary(Type::Text, Value::Text("ab".into())), Some(b"ab".to_vec()));
        assert_eq!(binary(Type::Int4, Value::Int(258)), Some(vec![0, 0, 1, 2]));
        assert_eq!(binary(Type::Int4, Value::Int(1 << 40)), Some(i32::MAX.to_be_bytes().to_vec()));
        assert_eq!(binary(Type::Int8, Value::Int(u64::MAX)), Some(i64::MAX.to_be_bytes().to_vec()));
        // As `select 0::numeric`, `123456789::numeric`, `10000::numeric`, `6.05::numeric(10,2)` are sent.
        for (value, expected) in [
            (Value::Int(0), vec![0i16, 0, 0, 0]),
            (Value::Int(123_456_789), vec![3, 2, 0, 0, 1, 2345, 6789]),
            (Value::Int(10_000), vec![1, 1, 0, 0, 1]),
            (Value::Hundredths(605), vec![2, 0, 0, 2, 6, 500]),
            (Value::Hundredths(5), vec![1, -1, 0, 2, 500]),
            (Value::Hundredths(600), vec![1, 0, 0, 2, 6]),
        ] {
            let expected: Vec<u8> = expected.iter().flat_map(|d| d.to_be_bytes()).collect();
            assert_eq!(binary(Type::Numeric, value.clone()), Some(expected), "{value:?}");
        }
    }

    #[test]
    fn a_ratio_of_nothing_is_null() {
        assert_eq!(Ratio::default().value(), Value::Null);
        assert_eq!(Ratio { of: 20, by: 3 }.value(), Value::Hundredths(666));
        assert_eq!(Ratio { of: u64::MAX, by: 1 }.value(), Value::Hundredths(u64::MAX));
    }

    #[test]
    fn times_are_printed_in_utc() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(time.value(), Value::Text(expected.into()));
        }
    }

    #[test]
    fn formats_follow_binds_rule() {
        let of = |codes: &[u8], columns| Formats::of_bind(codes, columns).map_err(|e| e.sqlstate);
        assert!(!of(&[], 3).expect("none").binary(2));
        assert!(of(&[0, 1], 3).expect("one").binary(2));
        let each = of(&[0, 1, 0, 0, 0, 1], 3).expect("each");
        assert_eq!([0, 1, 2].map(|i| each.binary(i)), [true, false, true]);
        assert_eq!(of(&[0, 1, 0, 1], 3), Err("08P01"));
        assert_eq!(of(&[0, 2], 3), Err("22023"));
    }
}
