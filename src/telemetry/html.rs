//! A page of HTML that says what it is given. Never: a script, a link, anything from elsewhere.
//!
//! Names are a client's: every text goes through [`put_escaped`], and [`SECURITY_POLICY`] would hold what got past it.

use std::fmt::Write as _;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::is_unseen;
use crate::limits::LOG_NAME_BYTES_MAX;

/// What a browser is told of the format.
pub const CONTENT_TYPE: &str = "text/html; charset=utf-8";

const STYLE: &str = "body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}h1{font-size:1.4em}\
    h2{font-size:1.1em;margin:1.6em 0 .4em}table{border-collapse:collapse}th,td{padding:.15em .7em;text-align:left;\
    border-bottom:1px solid #ddd}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}p{margin:.4em 0;color:#555}";

/// The content security policy: nothing runs, nothing is fetched, nothing is sent; this page's style and no other.
pub static SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let style = STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A name or a word.
    Text(String),
    /// A number, as it is to be shown.
    Number(String),
}

/// A page that grows.
#[derive(Debug)]
pub struct Page {
    text: String,
}

impl Page {
    /// With a title.
    pub fn new(title: &str) -> Self {
        let mut text =
            String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
        put_escaped(&mut text, title);
        let _ = write!(text, "</title><style>{STYLE}</style></head><body>");
        let mut page = Self { text };
        page.put("h1", title);
        page
    }

    /// What comes next is about this.
    pub fn heading(&mut self, text: &str) {
        self.put("h2", text);
    }

    /// A line of text.
    pub fn note(&mut self, text: &str) {
        self.put("p", text);
    }

    /// A table.
    pub fn table(&mut self, columns: &[&str], rows: &[Vec<Cell>]) {
        self.text.push_str("<table><tr>");
        for (i, column) in columns.iter().enumerate() {
            let is_number = rows.first().is_some_and(|row| matches!(row.get(i), Some(Cell::Number(_))));
            self.put_cell("th", column, is_number);
        }
        self.text.push_str("</tr>");
        for row in rows {
            self.text.push_str("<tr>");
            for cell in row {
                match cell {
                    Cell::Text(text) => self.put_cell("td", text, false),
                    Cell::Number(number) => self.put_cell("td", number, true),
                }
            }
            self.text.push_str("</tr>");
        }
        self.text.push_str("</table>\n");
    }

    fn put_cell(&mut self, tag: &str, text: &str, is_number: bool) {
        let _ = write!(self.text, "<{tag}{}>", if is_number { " class=\"n\"" } else { "" });
        put_escaped(&mut self.text, text);
        let _ = write!(self.text, "</{tag}>");
    }

    fn put(&mut self, tag: &str, text: &str) {
        let _ = write!(self.text, "<{tag}>");
        put_escaped(&mut self.text, text);
        let _ = writeln!(self.text, "</{tag}>");
    }

    /// The page.
    pub fn into_text(mut self) -> String {
        self.text.push_str("</body></html>\n");
        self.text
    }
}

/// A text as a text: no tag, no entity, no end of an attribute; what is not seen or turns the line around is named. Cut where
/// no honest name is that long.
fn put_escaped(out: &mut String, text: &str) {
    let mut bytes = 0;
    for c in text.chars() {
        bytes += c.len_utf8();
        if bytes > LOG_NAME_BYTES_MAX {
            out.push('\u{2026}');
            return;
        }
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_unseen(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The page's tags, and its texts as a browser shows them.
    fn read(page: &str) -> (Vec<String>, Vec<String>) {
        let (mut tags, mut texts) = (Vec::new(), Vec::new());
        let mut rest = page;
        while !rest.is_empty() {
            let (text, tag) = rest.split_once('<').unwrap_or((rest, ""));
            assert!(!text.contains('>'), "{text}");
            if !text.trim_matches('\n').is_empty() {
                texts.push(shown(text));
            }
            let (tag, behind) = tag.split_once('>').unwrap_or((tag, ""));
            tags.push(tag.to_owned());
            rest = behind;
        }
        (tags, texts)
    }

    fn shown(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, entity)) = rest.split_once('&') {
            out.push_str(before);
            let (name, behind) = entity.split_once(';').expect("an entity's end");
            out.push(match name {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                "#39" => '\'',
                other => panic!("&{other};"),
            });
            rest = behind;
        }
        out + rest
    }

    fn page(title: &str, cells: &[Cell]) -> String {
        let mut page = Page::new(title);
        page.heading(title);
        page.note(title);
        page.table(&["a", "b"], &cells.chunks(2).map(<[_]>::to_vec).collect::<Vec<_>>());
        page.into_text()
    }

    #[test]
    fn what_is_hostile_is_shown_and_not_obeyed() {
        let text =
            page("x", &[Cell::Text("<script>alert('1')</script>&lt;\"".into()), Cell::Number("7".into())]);
        assert!(text.contains(
            "<td>&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;lt;&quot;</td><td class=\"n\">7</td>"
        ));
        assert!(page("a\u{202e}b\n\0", &[]).contains("<h1>a\\u{202e}b\\u{a}\\u{0}</h1>"));
        let long = "\u{e9}".repeat(LOG_NAME_BYTES_MAX);
        assert!(
            page(&long, &[]).contains(&format!("<p>{}\u{2026}</p>", "\u{e9}".repeat(LOG_NAME_BYTES_MAX / 2)))
        );
    }

    #[test]
    fn a_page_is_whole() {
        let page = page("t", &[Cell::Text("x".into()), Cell::Number("7".into())]);
        let (_, body) = page.split_once("<body>").expect("a body");
        assert_eq!(
            body,
            "<h1>t</h1>\n<h2>t</h2>\n<p>t</p>\n<table><tr><th>a</th><th class=\"n\">b</th></tr>\
             <tr><td>x</td><td class=\"n\">7</td></tr></table>\n</body></html>\n"
        );
    }

    #[test]
    fn the_policy_names_this_style_and_nothing_else() {
        let style = STANDARD.encode(Sha256::digest(STYLE));
        assert!(SECURITY_POLICY.contains(&format!("style-src 'sha256-{style}';")));
        assert!(!SECURITY_POLICY.contains("unsafe") && !SECURITY_POLICY.contains('*'));
        assert!(!STYLE.contains(['<', '&']) && !STYLE.contains("url("));
    }

    proptest! {
        #[test]
        fn no_text_changes_what_the_page_is_made_of(
            title in any::<String>(),
            names in proptest::collection::vec(prop_oneof![any::<String>(), "[<>&\"'a;/#! -]{0,40}"], 0..8),
        ) {
            let cells = |text: &dyn Fn(&str) -> String| names.iter().map(|n| Cell::Text(text(n))).collect::<Vec<_>>();
            let hostile = page(&title, &cells(&|name| name.to_owned()));
            let (tags, texts) = read(&hostile);
            let (honest, _) = read(&page("t", &cells(&|_| "n".to_owned())));
            prop_assert_eq!(tags, honest);
            prop_assert!(hostile.chars().all(|c| c == '\n' || !is_unseen(c)));
            // What needs no escape of ours is shown as it is.
            for name in names.iter().filter(|n| n.len() <= LOG_NAME_BYTES_MAX && !n.trim_matches('\n').is_empty()) {
                if !name.chars().any(is_unseen) {
                    prop_assert!(texts.contains(name), "{:?} in {:?}", name, texts);
                }
            }
        }
    }
}
