//! The rules of the house, held by reading the sources.
//!
//! Owns: the direction of imports (the drawing in `src/lib.rs`), what the pure rooms may not touch, and
//! what may not be left lying about in any file. Each breach is printed as `file:line: rule`; nothing
//! here is a matter of taste that `rustfmt` or `clippy` could hold instead.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

// ===== the tables =====

/// Rooms by floor, lowest first. A room imports from floors below its own, never from its own floor.
/// A path such as `coalesce::batch` is a room of its own, with a door of its own.
const FLOORS: &[&[&str]] = &[
    &["wire", "sql"],
    &["proto"],
    &["policy", "coalesce::catalog"],
    &["coalesce::plan"],
    &["coalesce::rows", "coalesce::batch"],
    // ---- above: tasks, sockets, clocks, logs
    &["telemetry", "files"],
    &["net", "auth", "learn"],
    &["server"],
    &["pool"],
    &["cancel"],
    &["coalesce"],
    &["client", "config", "quickstart"],
    &["admin", "review"],
    &["proxy"],
    &["main"],
];

/// The lowest floors, up to this one, are pure.
const PURE_FLOORS: usize = 5;

/// Plain data that every room may read, and how a mutex is locked. `lib` is the list of rooms itself.
const OPEN: &[&str] = &["settings", "limits", "error", "mutex"];

/// What the pure rooms never say outside their tests, and why.
const IMPURE: &[(&str, &str)] = &[
    ("tokio", "a pure room has no runtime"),
    ("tracing", "a pure room returns facts; the rooms above log them"),
    ("Instant::now", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("println!", "a pure room returns facts"),
    ("eprintln!", "a pure room returns facts"),
    ("std::fs", "a pure room has no files"),
    ("std::thread", "a pure room has no threads"),
    (".unwrap()", "bytes from outside never panic: return an error"),
    (".expect(\"", "bytes from outside never panic: return an error"),
    (".expect(&", "bytes from outside never panic: return an error"),
];

/// Macros that stand for work not done.
const UNFINISHED: &[&str] = &[concat!("dbg", "!"), concat!("to", "do!"), concat!("unimple", "mented!")];

/// Words and paths that no file holds: notes to oneself, one machine's paths, talk of how the work goes.
/// Written in two halves, so that this file passes its own test.
const LEFTOVERS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "finish it or leave it out"),
    (concat!("FIX", "ME"), "finish it or leave it out"),
    (concat!("X", "XX"), "finish it or leave it out"),
    (concat!("HA", "CK"), "finish it or leave it out"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/Us", "ers/"), "a path of one machine"),
    (concat!("/tmp/", "bash"), "a path of one machine"),
    (concat!("work", "tree"), "the repository speaks of the product only"),
    (concat!("sub", "agent"), "the repository speaks of the product only"),
    (concat!("DESIGN", ".md"), "the repository speaks of the product only"),
    (concat!("SEEDS", ".md"), "the repository speaks of the product only"),
    (concat!("BRIEF", ".md"), "the repository speaks of the product only"),
    (concat!("anchors", "/"), "the repository speaks of the product only"),
    (concat!("issue", " #"), "say the reason, not its number"),
];

/// Directories that are not ours to read: build output, version control, downloads.
const SKIPPED_DIRS: &[&str] = &[".git", "target", ".cache", "artifacts", "found", "node_modules"];

// ===== the tests =====

#[test]
fn imports_point_downwards() {
    let mut breaches = Breaches::default();
    for file in sources("src") {
        let from = room_of(&file.path);
        if from == "lib" {
            continue;
        }
        for (line, path) in crate_paths(&file.code).into_iter().chain(paths_beside(&file)) {
            let to = room_of_path(&path);
            if let Err(why) = may_import(&from, &to) {
                breaches.add(&file.path, line, &format!("`{from}` may not import `crate::{path}`: {why}"));
            }
        }
        for line in escapes(&file) {
            breaches.add(&file.path, line, "`super` leaves the room here: say `crate::room`");
        }
    }
    breaches.none();
}

#[test]
fn every_room_has_a_floor_and_stands_in_the_drawing() {
    let lib = read("src/lib.rs");
    let drawing = lib.lines().filter(|l| l.starts_with("//!")).collect::<Vec<_>>().join("\n");
    let mut breaches = Breaches::default();
    if !drawing.replace("//! ", "").contains(block_of(&read("docs/architecture.md"))) {
        breaches.add("docs/architecture.md", 1, "its drawing is not that of src/lib.rs");
    }
    for (i, line) in lib.lines().enumerate() {
        let Some(room) = line.strip_prefix("pub mod ").and_then(|l| l.strip_suffix(';')) else { continue };
        if floor(room).is_none() && !OPEN.contains(&room) {
            breaches.add("src/lib.rs", i + 1, &format!("`{room}` has no floor in tests/house.rs"));
        }
        if find_word(&drawing, room).is_none() {
            breaches.add("src/lib.rs", i + 1, &format!("`{room}` is missing from the drawing"));
        }
    }
    breaches.none();
}

/// The first block of text in a page.
fn block_of(page: &str) -> &str {
    page.split_once("```text\n").and_then(|(_, rest)| rest.split_once("```")).expect("a block").0
}

#[test]
fn pure_rooms_are_pure() {
    let mut breaches = Breaches::default();
    for file in sources("src").into_iter().filter(|f| is_pure(&room_of(&f.path))) {
        for (i, line) in file.product().lines().enumerate() {
            for (word, why) in IMPURE {
                if find_word(line, word).is_some() {
                    breaches.add(&file.path, i + 1, &format!("`{word}` in a pure room: {why}"));
                }
            }
        }
    }
    breaches.none();
}

#[test]
fn nothing_is_unfinished() {
    let mut breaches = Breaches::default();
    for file in ["src", "tests", "benches"].into_iter().flat_map(sources) {
        for (i, line) in file.code.lines().enumerate() {
            for word in UNFINISHED.iter().filter(|w| find_word(line, w).is_some()) {
                breaches.add(&file.path, i + 1, &format!("`{word}` is work not done"));
            }
        }
    }
    breaches.none();
}

#[test]
fn no_leftovers_in_any_file() {
    let mut breaches = Breaches::default();
    for path in files("") {
        // Seeds and pictures are bytes, not text.
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else { continue };
        for (i, line) in text.lines().enumerate() {
            for (word, why) in LEFTOVERS {
                if find_word(line, word).is_some() {
                    breaches.add(&path, i + 1, &format!("`{word}`: {why}"));
                }
            }
        }
    }
    breaches.none();
}

#[test]
fn every_source_says_what_it_is() {
    let mut breaches = Breaches::default();
    for file in ["src", "tests", "benches"].into_iter().flat_map(sources) {
        if !file.text.starts_with("//! ") {
            breaches.add(&file.path, 1, "a file begins with `//!`: what it owns, what it never does");
        }
    }
    breaches.none();
}

#[test]
fn every_dependency_says_what_for() {
    let manifest = read("Cargo.toml");
    let mut breaches = Breaches::default();
    let (mut section, mut above) = ("", "");
    for (i, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let entry = line.contains('=') && !line.starts_with([' ', '#', '[']);
        if section.ends_with("dependencies]") && entry && !above.starts_with("# ") {
            breaches.add("Cargo.toml", i + 1, "a dependency has a comment line above it: what for");
        }
        above = line;
    }
    breaches.none();
}

/// What tests alone need is not shipped: it stands under `[dev-dependencies]`.
#[test]
fn every_dependency_is_the_products() {
    let manifest = read("Cargo.toml");
    let (_, entries) = manifest.split_once("\n[dependencies]\n").expect("the product's dependencies");
    let entries = entries.split("\n[").next().unwrap_or_default();
    let product: Vec<String> = sources("src").iter().map(Source::product).collect();
    let mut breaches = Breaches::default();
    for name in
        entries.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next())
    {
        // One is called otherwise in the code.
        let path = if name == "md-5" { "md5::".to_owned() } else { format!("{}::", name.replace('-', "_")) };
        let is_used = product.iter().any(|code| code.lines().any(|line| find_word(line, &path).is_some()));
        if !name.is_empty() && !is_used {
            breaches.add("Cargo.toml", 1, &format!("nothing but tests needs `{name}`"));
        }
    }
    breaches.none();
}

/// A file of tests that no program has would never be run, and neither would a program that the manifest does not name.
#[test]
fn every_file_of_tests_is_in_one_program() {
    let manifest = read("Cargo.toml");
    let mut breaches = Breaches::default();
    let programs: Vec<Source> = sources("tests/suites");
    for program in &programs {
        if !manifest.contains(&format!("path = \"{}\"", program.path)) {
            breaches.add(&program.path, 1, "Cargo.toml does not name this program");
        }
    }
    for file in files("tests") {
        let Some(name) = file.strip_prefix("tests/").filter(|name| name.ends_with(".rs")) else { continue };
        if name.contains('/') {
            continue;
        }
        let module = format!("#[path = \"../{name}\"]\nmod {};\n", name.trim_end_matches(".rs"));
        let times = programs.iter().filter(|program| program.text.contains(&module)).count()
            + usize::from(manifest.contains(&format!("path = \"{file}\"")));
        if times != 1 {
            breaches.add(&file, 1, &format!("{times} programs of tests have this file"));
        }
    }
    assert!(programs.len() > 1, "no programs");
    breaches.none();
}

/// A claim of these pages stands on a test that is there: `file::test` in `tests`, or by its path in `src`.
#[test]
fn claims_name_tests_that_exist() {
    let pages = ["docs/threat-model.md", "docs/semantics.md", "docs/protocol.md"];
    let named = pages.map(names_tests_that_exist);
    assert!(named[0] > 50 && named[1] > 50 && named[2] > 5, "{named:?}");
}

/// How many it names.
fn names_tests_that_exist(page: &str) -> usize {
    let mut breaches = Breaches::default();
    let mut named = 0;
    for (i, line) in read(page).lines().enumerate() {
        for name in line
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| code.contains("::") && !code.contains([' ', '$']))
        {
            let Some((place, test)) = name.rsplit_once("::") else { continue };
            if place == "file" {
                continue;
            }
            let path = place.replace("::", "/");
            let places = [
                format!("tests/{path}.rs"),
                format!("src/{path}.rs"),
                format!("src/{path}/mod.rs"),
                format!("src/{path}/tests.rs"),
            ];
            let there = places.iter().filter_map(|place| std::fs::read_to_string(root().join(place)).ok());
            if !there.into_iter().any(|text| text.contains(&format!("fn {test}("))) {
                breaches.add(page, i + 1, &format!("`{name}` is no test"));
            }
            named += 1;
        }
    }
    breaches.none();
    named
}

/// What the console refuses is no [`Kind`](pgsluice::error::Kind): its SQLSTATEs have a table of their own.
#[test]
fn every_refusal_of_the_console_stands_in_the_docs() {
    let page = read("docs/errors.md");
    let (_, table) = page.split_once("\n## The console's\n").expect("its section");
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    let documented: BTreeSet<&str> =
        cells.flat_map(|(codes, _)| codes.split(", ")).filter(|code| code.len() == 5).collect();
    let mut breaches = Breaches::default();
    let mut said = BTreeSet::new();
    for Source { path, text, .. } in sources("src/admin").into_iter().chain(sources("src/proxy")) {
        let product = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
        for (i, line) in product.lines().enumerate() {
            for code in line.split("Refusal::new(\"").skip(1).filter_map(|rest| rest.get(..5)) {
                if !documented.contains(code) {
                    breaches.add(&path, i + 1, &format!("{code} is not in docs/errors.md"));
                }
                said.insert(code.to_owned());
            }
        }
    }
    for code in documented.iter().filter(|code| !said.contains(**code)) {
        breaches.add("docs/errors.md", 1, &format!("the console never says {code}"));
    }
    assert!(said.len() > 10, "{said:?}");
    breaches.none();
}

/// A link in a page leads to a file that is there, and to a heading of it.
#[test]
fn links_lead_to_what_is_there() {
    let mut breaches = Breaches::default();
    let mut seen = 0;
    for page in files("").into_iter().filter(|path| path.ends_with(".md")) {
        let (dir, _) = page.rsplit_once('/').unwrap_or(("", &page));
        for (i, line) in read(&page).lines().enumerate() {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.contains("://") {
                    continue;
                }
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let file = if file.is_empty() { page.clone() } else { format!("{dir}/{file}") };
                let text = std::fs::read_to_string(root().join(file.trim_start_matches('/')));
                let leads = text.is_ok_and(|text| anchor.is_empty() || anchors(&text).any(|of| of == anchor));
                if !leads {
                    breaches.add(&page, i + 1, &format!("`{link}` leads nowhere"));
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen}");
    breaches.none();
}

/// What its headings are linked by.
fn anchors(page: &str) -> impl Iterator<Item = String> + '_ {
    page.lines().filter(|line| line.starts_with('#')).map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    })
}

// ===== the rules tested on themselves =====

#[test]
fn the_rules_find_what_they_look_for() {
    let text = "use crate::{wire::frame, client::{self, relay}};\n// crate::proxy\nlet s = \"crate::proxy\";\n\
                fn f() -> crate::coalesce::lane::Lane { 'x'; \"a\\\"\"; r#\"crate::main\"# }\n\
                use crate::{\n    coalesce::{batch::Batch, lane},\n};\n";
    let paths = crate_paths(&blank(text));
    let expected = [
        (1, "wire::frame"),
        (1, "client::self"),
        (1, "client::relay"),
        (4, "coalesce::lane"),
        (5, "coalesce::batch"),
        (5, "coalesce::lane"),
    ];
    assert_eq!(paths, expected.map(|(l, p)| (l, p.to_owned())));

    let source = Source::new(
        "src/wire/x.rs".into(),
        "fn a() { x.unwrap() }\n#[cfg(test)]\nmod tests {\n fn b() { y.unwrap() }\n}\nfn c() {}\n".into(),
    );
    assert_eq!(source.product().matches(".unwrap()").count(), 1);
    assert_eq!(source.product().lines().count(), 6, "lines keep their numbers");

    let batch = Source::new("src/coalesce/batch.rs".into(), "use super::lane::Lane;\n".into());
    assert_eq!(paths_beside(&batch), [(1, "coalesce::lane".to_owned())]);

    assert_eq!(room_of("src/coalesce/plan.rs"), "coalesce::plan");
    assert_eq!(room_of("src/coalesce/lane.rs"), "coalesce");
    assert_eq!(room_of("src/wire/frame.rs"), "wire");
    assert_eq!(room_of("src/cancel.rs"), "cancel");

    for (from, to, ok) in [
        ("wire", "limits", true),
        ("wire", "sql", false),
        ("wire", "proto", false),
        ("proto", "wire", true),
        ("policy", "coalesce::batch", false),
        ("pool", "coalesce", false),
        ("pool", "coalesce::batch", true),
        ("coalesce::batch", "coalesce", false),
        ("coalesce", "coalesce::batch", true),
        ("settings", "limits", true),
        ("settings", "wire", false),
        ("limits", "settings", false),
        ("client", "nowhere", false),
    ] {
        assert_eq!(may_import(from, to).is_ok(), ok, "{from} -> {to}");
    }
    assert!(find_word("use tokio::net", "tokio").is_some());
    assert!(find_word("my_tokio_name", "tokio").is_none());
}

// ===== how the sources are read =====

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every file below `dir`, relative to the root, in order.
fn files(dir: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = vec![root().join(dir)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Not followed: a link may lead out of the house.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && !SKIPPED_DIRS.contains(&name.as_str()) {
                open.push(entry.path());
            } else if kind.is_file() && !name.ends_with(".log") && name != ".git" {
                let path = entry.path();
                found.push(path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

struct Source {
    path: String,
    text: String,
    /// `text` with comments and the insides of literals blanked; same lines.
    code: String,
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let code = blank(&text);
        Self { path, text, code }
    }

    /// The code without its tests; same lines.
    fn product(&self) -> String {
        if self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
            || self.path.starts_with("tests/")
        {
            return String::new();
        }
        let mut code = self.code.clone();
        while let Some(at) = code.find("#[cfg(test)]") {
            let end = end_of_item(&code, at);
            let lines: String = code[at..end].chars().filter(|c| *c == '\n').collect();
            code.replace_range(at..end, &lines);
        }
        code
    }
}

fn sources(dir: &str) -> Vec<Source> {
    let found: Vec<_> = files(dir)
        .into_iter()
        .filter(|p| p.ends_with(".rs"))
        .map(|path| {
            let text = read(&path);
            Source::new(path, text)
        })
        .collect();
    assert!(dir != "src" || !found.is_empty(), "no sources: the rules would hold for nothing");
    found
}

/// Where the item behind an attribute at `at` ends: its closing brace, or its semicolon.
fn end_of_item(code: &str, at: usize) -> usize {
    let mut depth = 0;
    for (i, c) in code[at..].char_indices().skip("#[cfg(test)]".len()) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + i + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + i + 1,
            _ => {}
        }
    }
    code.len()
}

/// Blanks comments, and the insides of strings and characters; keeps every line where it was.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (keep, len) = literal(rest, out.chars().next_back());
        if len == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (gone, after) = rest.split_at(len);
        let mark = if keep { "\"" } else { "" };
        out.push_str(mark);
        out.extend(gone.chars().filter(|c| *c == '\n'));
        out.push_str(mark);
        rest = after;
    }
    out
}

/// Length of the comment or literal at the start of `text` (0: neither), and whether its quotes stay.
fn literal(text: &str, before: Option<char>) -> (bool, usize) {
    let up_to = |end: &str, from: usize| text[from..].find(end).map_or(text.len(), |i| from + i + end.len());
    if text.starts_with("//") {
        return (false, text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return (false, up_to("*/", 2));
    }
    if text.starts_with('"') {
        return (true, end_of_escaped(text, '"'));
    }
    // A character, not a lifetime.
    let mut chars = text.chars().skip(1);
    if text.starts_with('\'') {
        let (one, two) = (chars.next(), chars.next());
        return (true, if one == Some('\\') || two == Some('\'') { end_of_escaped(text, '\'') } else { 0 });
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let raw = ["r", "br", "cr"].iter().find(|p| !in_word && text.starts_with(**p));
    if let Some(prefix) = raw {
        let hashes = text[prefix.len()..].chars().take_while(|c| *c == '#').count();
        let open = prefix.len() + hashes;
        if text[open..].starts_with('"') {
            return (true, up_to(&format!("\"{}", "#".repeat(hashes)), open + 1));
        }
    }
    (false, 0)
}

fn end_of_escaped(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return i + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Every `crate::a::b` of the code with its line, `use` trees opened, two segments deep.
fn crate_paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let in_word =
            code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '$'));
        if in_word {
            continue;
        }
        let line = code[..at].matches('\n').count() + 1;
        for first in branches(&code[at + "crate::".len()..]) {
            for (room, second) in first {
                found.push((line, if second.is_empty() { room } else { format!("{room}::{second}") }));
            }
        }
    }
    found
}

/// In a room inside a room (`coalesce::batch`), `super::x` leads to the outer one: the same paths, from the crate.
fn paths_beside(file: &Source) -> Vec<(usize, String)> {
    let room = room_of(&file.path);
    let Some((outer, _)) = room.split_once("::") else { return Vec::new() };
    crate_paths(&file.product().replace("super::", &format!("crate::{outer}::")))
        .into_iter()
        .filter(|(_, path)| path.starts_with(outer))
        .collect()
}

/// The branches of a `use` tree: for each, its first segment with each of its second segments.
fn branches(tree: &str) -> Vec<Vec<(String, String)>> {
    group(tree)
        .into_iter()
        .filter_map(|branch| {
            let room = ident(branch);
            let rest = branch.trim_start()[room.len()..].trim_start();
            match rest.strip_prefix("::") {
                _ if room.is_empty() => None,
                None => Some(vec![(room.to_owned(), String::new())]),
                Some(rest) => {
                    Some(group(rest).into_iter().map(|s| (room.to_owned(), ident(s).to_owned())).collect())
                }
            }
        })
        .collect()
}

fn ident(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

/// The parts of `{a, b::{c, d}}` at its own level; a tree without braces is its own only part.
fn group(tree: &str) -> Vec<&str> {
    let Some(inner) = tree.trim_start().strip_prefix('{') else { return vec![tree] };
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (i, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.push(&inner[start..i]);
                start = i + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    parts
}

/// Lines where `super` climbs out of the room rather than within it.
fn escapes(file: &Source) -> Vec<usize> {
    // `src/room.rs` and `src/room/mod.rs` are one step from the crate, `src/room/part.rs` two.
    let depth = file.path.trim_end_matches("/mod.rs").matches('/').count();
    let out = "super::".repeat(depth);
    file.product().lines().enumerate().filter(|(_, l)| l.contains(&out)).map(|(i, _)| i + 1).collect()
}

/// The room a file belongs to.
fn room_of(path: &str) -> String {
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
    room_of_path(&inner.trim_end_matches("/mod").replace('/', "::"))
}

/// The room a path `a::b` leads to: `a::b` where that is a room of its own, else `a`.
fn room_of_path(path: &str) -> String {
    let two: Vec<_> = path.splitn(3, "::").take(2).collect();
    let inner = two.join("::");
    if floor(&inner).is_some() { inner } else { two[0].to_owned() }
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn is_pure(room: &str) -> bool {
    OPEN.contains(&room) || floor(room).is_some_and(|f| f < PURE_FLOORS)
}

fn may_import(from: &str, to: &str) -> Result<(), String> {
    if from == to {
        return Ok(());
    }
    if OPEN.contains(&from) {
        // The open ones rest on each other in the order limits, error, settings.
        let below = matches!((from, to), ("settings", "limits" | "error") | ("error", "limits"));
        return if below { Ok(()) } else { Err("it is open to all, so it stands on nothing".into()) };
    }
    if OPEN.contains(&to) {
        return Ok(());
    }
    match (floor(from), floor(to)) {
        (Some(here), Some(there)) if there < here => Ok(()),
        (Some(here), Some(there)) if there == here => Err("it is on the same floor".into()),
        (Some(_), Some(_)) => Err("it is above".into()),
        (None, _) => Err(format!("`{from}` has no floor in tests/house.rs")),
        (_, None) => Err(format!("`{to}` has no floor in tests/house.rs")),
    }
}

/// Where `word` stands in `line` on its own: where it begins or ends with a letter, no letter goes on.
fn find_word(line: &str, word: &str) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (first, last) = (word.chars().next()?, word.chars().next_back()?);
    let goes_on = |own: char, beside: Option<char>| is_word(own) && beside.is_some_and(is_word);
    line.match_indices(word).map(|(i, _)| i).find(|&i| {
        let before = line[..i].chars().next_back();
        let after = line[i + word.len()..].chars().next();
        !goes_on(first, before) && !goes_on(last, after)
    })
}

#[derive(Default)]
struct Breaches {
    report: String,
}

impl Breaches {
    fn add(&mut self, path: &str, line: usize, rule: &str) {
        let _ = writeln!(self.report, "{path}:{line}: {rule}");
    }

    #[track_caller]
    fn none(self) {
        assert!(self.report.is_empty(), "\n{}", self.report);
    }
}
