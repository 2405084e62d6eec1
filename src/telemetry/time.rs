//! Points in time as text. Never: which clock they are from.

use std::time::{SystemTime, UNIX_EPOCH};

/// A point in time, taken apart (UTC). Before 1970: 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc {
    /// Year, month from 1, day from 1.
    pub date: (u64, u64, u64),
    /// Hour, minute, second.
    pub time: (u64, u64, u64),
    /// Microseconds of the second.
    pub micros: u32,
}

impl From<SystemTime> for Utc {
    fn from(at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs();
        Self {
            date: civil(seconds / 86_400),
            time: (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60),
            micros: since.subsec_micros(),
        }
    }
}

/// RFC 3339: `2026-01-31T23:59:59.000001Z`.
impl std::fmt::Display for Utc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { date: (year, month, day), time: (hour, minute, second), micros } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// Year, month and day of a count of days since 1970-01-01. Years are counted from March, so that a leap day
/// is a year's last; 146,097 days are 400 years.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // 0000-03-01 to 1970-01-01
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn leap_days_and_the_ends_of_years() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000007Z"),
            (951_782_399, "2000-02-28T23:59:59.000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000007Z"),
            (1_769_903_999, "2026-01-31T23:59:59.000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000007Z"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(7);
            assert_eq!(Utc::from(at).to_string(), text);
        }
        assert_eq!(Utc::from(UNIX_EPOCH - Duration::from_secs(1)).to_string(), "1970-01-01T00:00:00.000000Z");
    }
}
