//! Metrics as Prometheus reads them: its text format, version 0.0.4. Never: knows what is counted.

use std::fmt::Write as _;

use super::histogram::Histogram;

/// What a scraper is told of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper ends of the buckets that are shown of a time: powers of four from 64 us to 67 s.
const LE_MICROS: [u64; 11] =
    [1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];

/// Upper ends of the buckets that are shown of numbers, 1 less than a power of two: 1, 3, 7 ... 16383.
const LE_NUMBERS: [u64; 14] = {
    let mut ends = [0; 14];
    let mut i = 0;
    while i < ends.len() {
        ends[i] = (2 << i) - 1;
        i += 1;
    }
    ends
};

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

    /// What comes next are times or numbers, by how many were how large.
    pub fn histogram(&mut self, name: &'static str, help: &str) -> &mut Self {
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

    /// One series of times that were recorded in microseconds.
    pub fn add_times(&mut self, labels: &[(&str, &str)], times: &[&Histogram]) -> &mut Self {
        // Microseconds were cut off: what was recorded below an end lies below it.
        let seconds = |micros| Seconds(micros).to_string();
        self.add_buckets(labels, times, LE_MICROS, seconds, seconds)
    }

    /// One series of numbers.
    pub fn add_numbers(&mut self, labels: &[(&str, &str)], numbers: &[&Histogram]) -> &mut Self {
        let ends = LE_NUMBERS.map(|le| le + 1);
        self.add_buckets(labels, numbers, ends, |end| (end - 1).to_string(), |sum| sum.to_string())
    }

    /// The buckets of `all` together; `ends` are the first values beyond them, `le` the last values in them.
    fn add_buckets<const N: usize>(
        &mut self,
        labels: &[(&str, &str)],
        all: &[&Histogram],
        ends: [u64; N],
        le: fn(u64) -> String,
        sum: fn(u64) -> String,
    ) -> &mut Self {
        let (mut below, mut count) = ([0; N], 0);
        for histogram in all {
            let (more, n) = histogram.cumulated(&ends);
            below.iter_mut().zip(more).for_each(|(all, more)| *all += more);
            count += n;
        }
        let les = ends.map(le);
        let buckets = les.iter().map(String::as_str).zip(below).chain([("+Inf", count)]);
        for (le, count) in buckets {
            let labels: Vec<_> = labels.iter().copied().chain([("le", le)]).collect();
            self.line("_bucket", &labels, format_args!("{count}"));
        }
        let total = all.iter().map(|histogram| histogram.sum()).sum();
        self.line("_sum", labels, format_args!("{}", sum(total)));
        self.line("_count", labels, format_args!("{count}"))
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
        [10, 100, 3000, 1 << 40].iter().for_each(|&time| times.record(time));
        let mut page = Exposition::default();
        page.histogram("t_seconds", "Time.").add_times(&[("p", "q")], &[&times]);
        let text = page.into_text();
        for line in [
            "t_seconds_bucket{p=\"q\",le=\"0.000064\"} 1",
            "t_seconds_bucket{p=\"q\",le=\"0.000256\"} 2",
            "t_seconds_bucket{p=\"q\",le=\"0.001024\"} 2",
            "t_seconds_bucket{p=\"q\",le=\"0.004096\"} 3",
            "t_seconds_bucket{p=\"q\",le=\"67.108864\"} 3",
            "t_seconds_bucket{p=\"q\",le=\"+Inf\"} 4",
            "t_seconds_sum{p=\"q\"} 1099511.630886",
            "t_seconds_count{p=\"q\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn numbers_of_several_are_one_series() {
        let (one, two) = (Histogram::default(), Histogram::default());
        [1, 3, 4, 16_383].iter().for_each(|&n| one.record(n));
        [2, 16_384].iter().for_each(|&n| two.record(n));
        let mut page = Exposition::default();
        page.histogram("n", "Numbers.").add_numbers(&[], &[&one, &two]);
        let text = page.into_text();
        let of = |le: &str| text.lines().find_map(|l| l.strip_prefix(&format!("n_bucket{{le=\"{le}\"}} ")));
        assert_eq!(["1", "3", "7", "16383", "+Inf"].map(of), ["1", "3", "4", "5", "6"].map(Some), "{text}");
        assert!(text.ends_with("\nn_sum 32777\nn_count 6\n"), "{text}");
    }
}
