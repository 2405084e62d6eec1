//! Metrics as Prometheus reads them: its text format, version 0.0.4. Never: knows what is counted.

use std::fmt::Write as _;

use super::histogram::Histogram;

/// What a scraper is told of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper ends of the buckets that are shown of a time: powers of four from 64 us to 67 s.
const LE_MICROS: [u64; 11] =
    [1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];

/// A page of metrics that grows. The series of one name stand together: begin a family, then add its series.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    family: &'static str,
}

impl Exposition {
    /// What comes next is a counter: a name ends in `_total`, and only grows.
    pub fn counter(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "counter", help)
    }

    /// What comes next is a state of now.
    pub fn gauge(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "gauge", help)
    }

    /// What comes next are times.
    pub fn times(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "histogram", help)
    }

    fn begin(&mut self, name: &'static str, kind: &str, help: &str) -> &mut Self {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self.family = name;
        self
    }

    /// One series of the family.
    pub fn add(&mut self, labels: &[(&str, &str)], value: u64) -> &mut Self {
        self.line("", labels, format_args!("{value}"))
    }

    /// The same, of microseconds shown as seconds.
    pub fn add_micros(&mut self, labels: &[(&str, &str)], micros: u64) -> &mut Self {
        self.line("", labels, format_args!("{}", Seconds(micros)))
    }

    /// One series of times that were recorded in microseconds; `sum` of all of them.
    pub fn add_times(&mut self, labels: &[(&str, &str)], times: &Histogram, sum: u64) -> &mut Self {
        let (below, all) = times.cumulated(&LE_MICROS);
        for (le, count) in LE_MICROS.into_iter().zip(below) {
            let le = Seconds(le).to_string();
            let labels: Vec<_> = labels.iter().copied().chain([("le", le.as_str())]).collect();
            self.line("_bucket", &labels, format_args!("{count}"));
        }
        let labels_inf: Vec<_> = labels.iter().copied().chain([("le", "+Inf")]).collect();
        self.line("_bucket", &labels_inf, format_args!("{all}"));
        self.line("_sum", labels, format_args!("{}", Seconds(sum)));
        self.line("_count", labels, format_args!("{all}"))
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: std::fmt::Arguments<'_>) -> &mut Self {
        let _ = write!(self.text, "{}{suffix}", self.family);
        for (i, (name, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{name}=\"", if i == 0 { '{' } else { ',' });
            put_escaped(&mut self.text, text);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }

    /// The page.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Names are a client's: none may end its quotes or its line.
fn put_escaped(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// Microseconds, shown as seconds without rounding.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_stand_below_their_family_and_no_name_breaks_out() {
        let mut page = Exposition::default();
        page.counter("a_total", "What.").add(&[], 1).add(&[("user", "a\"} 9\nb\\")], 2);
        page.gauge("b_seconds", "That.").add_micros(&[("x", "y")], 1_500_000);
        assert_eq!(
            page.into_text(),
            "# HELP a_total What.\n# TYPE a_total counter\na_total 1\na_total{user=\"a\\\"} 9\\nb\\\\\"} 2\n\
             # HELP b_seconds That.\n# TYPE b_seconds gauge\nb_seconds{x=\"y\"} 1.500000\n"
        );
    }

    #[test]
    fn buckets_are_cumulated() {
        let times = Histogram::default();
        [10, 100, 3000, u64::MAX].iter().for_each(|&time| times.record(time));
        let mut page = Exposition::default();
        page.times("t_seconds", "Time.").add_times(&[("p", "q")], &times, 3110);
        let text = page.into_text();
        for line in [
            "t_seconds_bucket{p=\"q\",le=\"0.000064\"} 1",
            "t_seconds_bucket{p=\"q\",le=\"0.000256\"} 2",
            "t_seconds_bucket{p=\"q\",le=\"0.001024\"} 2",
            "t_seconds_bucket{p=\"q\",le=\"0.004096\"} 3",
            "t_seconds_bucket{p=\"q\",le=\"67.108864\"} 3",
            "t_seconds_bucket{p=\"q\",le=\"+Inf\"} 4",
            "t_seconds_sum{p=\"q\"} 0.003110",
            "t_seconds_count{p=\"q\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
