//! A strict reader of Prometheus' text format, version 0.0.4: panics on anything else.

use std::collections::{BTreeMap, BTreeSet};

/// One `# TYPE` and its samples.
#[derive(Debug)]
pub struct Family {
    pub name: String,
    pub kind: String,
    pub samples: Vec<Sample>,
}

/// One line.
#[derive(Debug)]
pub struct Sample {
    pub series: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Its labels without `le`: what the buckets of one histogram share.
    fn shared(&self) -> Vec<&(String, String)> {
        self.labels.iter().filter(|(name, _)| name != "le").collect()
    }
}

impl Family {
    /// A line of JSON for it and for each of its series.
    pub fn outline(&self) -> Vec<String> {
        let line = |sample: &Sample| {
            let labels: BTreeMap<_, _> = sample.labels.iter().cloned().collect();
            let labels: Vec<_> = labels.into_iter().collect();
            serde_json::json!([sample.series, labels, sample.value]).to_string()
        };
        let head = serde_json::json!([self.name, self.kind]).to_string();
        std::iter::once(head).chain(self.samples.iter().map(line)).collect()
    }

    fn check(&self) {
        let suffixes: &[&str] = match self.kind.as_str() {
            "counter" => {
                assert!(self.name.ends_with("_total"), "{}", self.name);
                &[""]
            }
            "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count"],
            kind => panic!("{kind} is no kind"),
        };
        for sample in &self.samples {
            let suffix = sample.series.strip_prefix(&self.name);
            assert!(suffix.is_some_and(|s| suffixes.contains(&s)), "{sample:?} in {}", self.name);
            assert!(sample.value.is_finite() && (self.kind == "gauge" || sample.value >= 0.0), "{sample:?}");
        }
        if self.kind == "histogram" {
            self.check_histograms();
        }
    }

    /// For each set of labels: buckets that rise, the last one is all, then the sum and the number.
    fn check_histograms(&self) {
        let mut rest = &self.samples[..];
        while !rest.is_empty() {
            let buckets = rest.iter().take_while(|s| s.series.ends_with("_bucket")).count();
            let (one, more) = rest.split_at(buckets + 2);
            let (shared, name) = (one[0].shared(), &self.name);
            assert!(one.iter().all(|sample| sample.shared() == shared), "{one:?}");
            let ends: Vec<&str> = one[..buckets].iter().map(|s| s.label("le").expect("an end")).collect();
            let (inf, finite) = ends.split_last().expect("a bucket");
            assert_eq!(*inf, "+Inf");
            let finite: Vec<f64> = finite.iter().map(|end| end.parse().expect("a number")).collect();
            assert!(
                finite.is_sorted_by(|a, b| a < b) && one[..buckets].is_sorted_by_key(|s| s.value),
                "{one:?}"
            );
            assert_eq!(
                [&one[buckets].series, &one[buckets + 1].series],
                [&format!("{name}_sum"), &format!("{name}_count")]
            );
            assert_eq!(one[buckets - 1].value, one[buckets + 1].value);
            rest = more;
        }
    }
}

/// The families of a page.
pub fn read(page: &str) -> Vec<Family> {
    assert!(page.is_empty() || page.ends_with('\n'));
    let mut families: Vec<Family> = Vec::new();
    let mut helped = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for line in page.split_terminator('\n') {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect("a text");
            assert!(is_name(name) && !text.contains('\\'), "{line}");
            assert!(helped.insert(name.to_owned()), "{name} stands twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a kind");
            assert!(helped.contains(name) && families.iter().all(|f| f.name != name), "{line}");
            families.push(Family { name: name.to_owned(), kind: kind.to_owned(), samples: Vec::new() });
        } else {
            let sample = sample(line);
            let mut labels = sample.labels.clone();
            labels.sort();
            assert!(labels.is_sorted_by(|a, b| a.0 < b.0), "a label twice: {line}");
            assert!(seen.insert((sample.series.clone(), labels)), "twice: {line}");
            families.last_mut().expect("a family").samples.push(sample);
        }
    }
    families.iter().for_each(Family::check);
    families
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_lowercase()) && chars.all(|c| c.is_ascii_lowercase() || c == '_')
}

fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (series, mut rest) = line.split_at(end);
    assert!(is_name(series), "{line}");
    let mut labels = Vec::new();
    while let Some(label) = rest.strip_prefix(if labels.is_empty() { '{' } else { ',' }) {
        let (name, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        assert!(is_name(name), "{line}");
        let (value, after) = quoted(value).unwrap_or_else(|| panic!("{line}"));
        labels.push((name.to_owned(), value));
        rest = after;
    }
    if !labels.is_empty() {
        rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok());
    Sample { series: series.to_owned(), labels, value: value.unwrap_or_else(|| panic!("{line}")) }
}

/// What stands before the closing quote, and what behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
}
